"""What is made of several operations of NNAPI gives what LiteRT's own kernels give, or what numpy and scipy do."""

import warnings

import numpy as np
import pytest
import tflite
from generate_tflite_operators import text as page_of_operators
from scipy.special import erf

import nnhal
from nnhal.frontends.tflite import load
from tests.frontends.cases import Case, X, b, begin, c, check, const, f, file_of, i, litert, out, refused, run
from tests.frontends.flat import Writer
from tests.nightly.random_models import RECIPES, many_draws

begin(__name__)

HALVES = X(np.array([-2.5, -1.5, -0.5, -0.49999997, 0.49999997, 0.5, 1.5, 2.5, 1.2, -3.7], "f4"))
LENGTHS = X(np.array([2, 4], "i4"), "i4")

CASES: list[Case] = [
    ("ROUND", [HALVES], [out(10)]),
    ("ROUND", [X(np.array([1e9, -1e9, 8388609], "f4"))], [out(3)]),
    ("COS", [f(40, low=-20, high=20)], [out(40)], "Cos"),
    ("SIGN", [X(np.array([-2.0, -0.0, 0.0, 3.0], "f4"))], [out(4)]),
    ("SIGN", [X(np.array([-2, 0, 3, -(2**31)], "i4"), "i4")], [out(4, kind="i4")]),
    ("CUMSUM", [f(3, 7), c(1)], [out(3, 7)], "Cumsum", {"exclusive": True, "reverse": True}),
    ("CUMSUM", [i(2, 9, 2), c(-2)], [out(2, 9, 2, kind="i4")], "Cumsum"),
    ("REVERSE_SEQUENCE", [f(2, 5, 3), LENGTHS], [out(2, 5, 3)], "ReverseSequence", {"seqDim": 1, "batchDim": 0}),
    ("GATHER_ND", [f(3, 4, 2), i(5, 2, low=0, high=3)], [out(5, 2)], "GatherNd"),
    ("ADD", [i(8), i(8)], [out(8, kind="i4")], "Add", {"fusedActivationFunction": 3}),
    ("POW", [i(9), X(np.arange(9, dtype="i4"), "i4")], [out(9, kind="i4")]),
    ("RIGHT_SHIFT", [i(6, low=-1000, high=1000), X(np.array([0, 1, 5, 30, 31, 2], "i4"), "i4")], [out(6, kind="i4")]),
    ("BITWISE_XOR", [i(6, low=-(2**31), high=2**31 - 1), i(6)], [out(6, kind="i4")]),
    ("RESHAPE", [b(2, 3), c([6])], [out(6, kind="b1")]),
    ("TRANSPOSE", [i(2, 3, 4, 2, 2), c([4, 2, 0, 3, 1])], [out(2, 4, 2, 2, 3, kind="i4")], "Transpose"),
    ("PAD", [i(2, 3), c([[1, 0], [0, 2]])], [out(3, 5, kind="i4")], "Pad"),
    ("SUM", [f(2, 3, 1, 2, 3, 2), c([0, 2, 4])], [out(3, 2, 2)], "Reducer"),
    ("REDUCE_MAX", [i(2, 7, 3), c([1])], [out(2, 3, kind="i4")], "Reducer"),
    ("SCATTER_ND", [i(4, 1, low=0, high=3), f(4, 2), c([5, 2])], [out(5, 2)], "ScatterNd"),
    ("UNSORTED_SEGMENT_MAX", [f(4, 2), i(4, low=0, high=3), c(4)], [out(4, 2)], "UnsortedSegmentMax"),
    (
        "DYNAMIC_UPDATE_SLICE",
        [f(4, 5), f(2, 3), X(np.array([3, -1], "i4"), "i4")],
        [out(4, 5)],
        "DynamicUpdateSlice",
    ),
    (
        "CONV_3D",
        [f(1, 4, 3, 5, 2), const(f(2, 2, 3, 2, 3)), const(f(3))],
        [out(1, 2, 3, 5, 3)],
        "Conv3D",
        {"strideD": 2, "strideH": 1, "strideW": 1, "padding": 0}
        | dict.fromkeys(("dilationDFactor", "dilationHFactor", "dilationWFactor"), 1),
    ),
]


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{case[0]}-{n}") for n, case in enumerate(CASES)])
def test_an_operator_gives_what_litert_gives(case):
    check(case)


def at(*numbers):
    return X(np.array(numbers, "i4"), "i4")


ROWS, INDEXED = f(3, 4, 2), {"axis": 1, "batchDims": 1}
REVERSED = {"seqDim": 1, "batchDim": 0}
OUTSIDE: dict[str, Case] = {
    "an inner index too great": ("GATHER_ND", [ROWS, at([0, 4])], [out(1, 2)], "GatherNd"),
    "an inner index below 0": ("GATHER_ND", [ROWS, at([1, -1])], [out(1, 2)], "GatherNd"),
    "an index that overflows": ("GATHER_ND", [ROWS, at([2**30, 0])], [out(1, 2)], "GatherNd"),
    "a single index below 0": ("GATHER_ND", [ROWS, at([-1])], [out(1, 4, 2)], "GatherNd"),
    "a place behind the last": ("SCATTER_ND", [at([5]), f(1, 2), c([5, 2])], [out(5, 2)], "ScatterNd"),
    "a place before the first": ("SCATTER_ND", [at([-1]), f(1, 2), c([5, 2])], [out(5, 2)], "ScatterNd"),
    "an inner place": ("SCATTER_ND", [at([0, 2]), f(1), c([5, 2])], [out(5, 2)], "ScatterNd"),
    "an element": ("SPARSE_TO_DENSE", [at([0, 2]), c([5, 2]), f(1), c(0.5, "f4")], [out(5, 2)], "SparseToDense"),
    "the next batch": ("GATHER", [f(2, 3, 2), at([0, 3], [0, 1])], [out(2, 2, 2)], "Gather", INDEXED),
    "the batch before": ("GATHER", [f(2, 3, 2), at([0, 1], [0, -1])], [out(2, 2, 2)], "Gather", INDEXED),
    "a length": ("REVERSE_SEQUENCE", [f(2, 5, 3), at(6, 2)], [out(2, 5, 3)], "ReverseSequence", REVERSED),
    "a segment": ("UNSORTED_SEGMENT_MAX", [f(4, 2), at(0, 1, 4, 2), c(4)], [out(4, 2)], "UnsortedSegmentMax"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_index_outside_of_its_dimension_is_no_other_element(name):
    operator, inputs, *rest = OUTSIDE[name]
    content, fed = file_of(operator, inputs, *rest)
    with pytest.raises(RuntimeError):
        litert(content, *fed)
    for device in ("reference", "litert"):
        with pytest.raises(nnhal.OperationFailed, match="GATHER"):
            nnhal.compile(nnhal.load(content), devices=[device, "reference"])(*fed)
    known = [const(x) if x.kind == "i4" else x for x in inputs]
    refused(file_of(operator, known, *rest)[0], f"{operator} #0: .*(outside|must be from 0)")


@pytest.mark.parametrize("known", [False, True])
def test_numbers_below_0_reverse_nothing_and_belong_to_no_segment(known):
    kept = const if known else lambda x: x
    for case in (
        ("REVERSE_SEQUENCE", [f(2, 5, 3), kept(at(-(2**31), 5))], [out(2, 5, 3)], "ReverseSequence", REVERSED),
        ("UNSORTED_SEGMENT_SUM", [f(4, 2), kept(at(0, -1, 3, -(2**31))), c(4)], [out(4, 2)], "UnsortedSegmentSum"),
    ):
        check(case)


@pytest.mark.parametrize("name", ["SIGN", "ROUND", "COS"])
def test_no_number_stays_none(name):
    content, fed = file_of(name, [X(np.array([np.nan, -np.nan, -0.0, 2.0], "f4"))], [out(4)])
    for device in ("reference", "litert"):
        found = nnhal.compile(nnhal.load(content), devices=device, fallback="allow")(*fed)
        assert np.isnan(found[:2]).all()
        np.testing.assert_allclose(found, litert(content, *fed)[0], atol=1e-6)


def test_gelu_is_exact_where_its_results_are_small():
    x = np.linspace(-6, 6, 1001, dtype="f4")
    content, fed = file_of("GELU", [X(x)], [out(1001)], "Gelu")
    wide = x.astype("f8")
    expected = wide * (1 + erf(wide / np.sqrt(2))) / 2
    np.testing.assert_allclose(run(content, fed)[0], expected, rtol=2e-5, atol=1e-11)


def test_the_angle_of_every_quadrant():
    y, x = np.meshgrid(np.linspace(-3, 3, 25, dtype="f4"), np.linspace(-3, 3, 24, dtype="f4"))
    content, fed = file_of("ATAN2", [X(y), X(x)], [out(24, 25)])
    np.testing.assert_allclose(run(content, fed)[0], np.arctan2(y, x), atol=1e-6)


def test_the_angle_of_zeros_goes_by_their_signs():
    y, x = np.array([[0.0, -0.0, 0, -0.0, 0, -0.0, -np.inf, 1], [1, 1, -1, -1, -0.0, -0.0, 2, -0.0]], "f4")
    content, fed = file_of("ATAN2", [X(y), X(x)], [out(8)])
    for device in ("reference", "litert"):
        found = nnhal.compile(load(content), devices=[device, "reference"])(*fed)
        np.testing.assert_allclose(found, np.arctan2(y, x), atol=1e-6)


@pytest.mark.parametrize("name", ["REAL", "IMAG", "COMPLEX_ABS"])
@pytest.mark.parametrize("size", [[1, 16], [4, 8]])
def test_a_part_of_a_real_transform(name, size):
    given = np.random.default_rng(3).normal(size=(2, *size)).astype("f4")
    w = Writer()
    x, lengths, z = w.tensor(given.shape), w.tensor([2], "i4", size), w.tensor([2, size[0], size[1] // 2 + 1], "c8")
    y = w.tensor([2, size[0], size[1] // 2 + 1])
    w.operator("RFFT2D", [x, lengths], [z], "Rfft2d")
    w.operator(name, [z], [y])
    w.ends([x], [y])
    parts = {"REAL": np.real, "IMAG": np.imag, "COMPLEX_ABS": np.abs}
    np.testing.assert_allclose(run(w.bytes(), [given])[0], parts[name](np.fft.rfft2(given)), atol=1e-5)


MOVED = {
    "RESHAPE": (np.array([3, 2, 4, 5], "i4"), [3, 2, 4, 5], "Reshape", {}, lambda z: z.reshape(3, 2, 4, 5)),
    "SQUEEZE": (None, [6, 4, 5], "Squeeze", {"squeezeDims": [1]}, lambda z: z.reshape(6, 4, 5)),
    "EXPAND_DIMS": (np.array(0, "i4"), [1, 6, 1, 4, 5], "ExpandDims", {}, lambda z: z[None]),
    "TRANSPOSE": (np.array([3, 0, 2, 1], "i4"), [5, 6, 4, 1], "Transpose", {}, lambda z: z.transpose(3, 0, 2, 1)),
    "REVERSE_V2": (np.array([2], "i4"), [6, 1, 4, 5], "ReverseV2", {}, lambda z: z[:, :, ::-1]),
}


@pytest.mark.parametrize("name", ["REAL", "IMAG", "COMPLEX_ABS", "CAST"])
@pytest.mark.parametrize("move", MOVED)
def test_complex_numbers_are_moved_in_parts(move, name):
    """As tf.signal.stft has it: EXPAND_DIMS, RFFT2D, SQUEEZE, COMPLEX_ABS. A cast takes the real parts."""
    given = np.random.default_rng(3).normal(size=(6, 1, 4, 8)).astype("f4")
    argument, shape, options, fields, moved = MOVED[move]
    w = Writer()
    x, lengths, z = w.tensor(given.shape), w.tensor([2], "i4", [4, 8]), w.tensor([6, 1, 4, 5], "c8")
    places = [z] if argument is None else [z, w.tensor(argument.shape, "i4", argument)]
    m, y = w.tensor(shape, "c8"), w.tensor(shape)
    w.operator("RFFT2D", [x, lengths], [z], "Rfft2d")
    w.operator(move, places, [m], options, **fields)
    w.operator(name, [m], [y])
    w.ends([x], [y])
    part = {"REAL": np.real, "IMAG": np.imag, "COMPLEX_ABS": np.abs, "CAST": np.real}[name]
    (found,) = run(w.bytes(), [given])
    assert found.shape == tuple(shape)
    np.testing.assert_allclose(found, part(moved(np.fft.rfft2(given))), atol=1e-5)


def test_what_reads_complex_numbers_of_a_refused_operator_is_not_blamed():
    w = Writer()
    x, z, m, y = w.tensor([1, 4]), w.tensor([1, 4], "c8"), w.tensor([4], "c8"), w.tensor([4])
    w.operator("MyOwnThing", [x], [z])
    w.operator("SQUEEZE", [z], [m], "Squeeze")
    w.operator("COMPLEX_ABS", [m], [y])
    with pytest.raises(nnhal.UnsupportedModel) as caught:
        nnhal.load(w.file([x], [y]))
    assert [(name, place) for name, place, _ in caught.value.refused] == [("custom operation MyOwnThing", "#0")]


def test_joined_constants_of_floats_stay_floats():
    content, fed = file_of("PACK", [c(0.5, "f4"), c(-1.25, "f4")], [out(2)], "Pack", valuesCount=2)
    assert run(content, fed)[0].tolist() == [0.5, -1.25]


STABLE = {
    "ADD": np.add, "SUBTRACT": np.subtract, "MULTIPLY": np.multiply, "DIVIDE": np.divide, "MAXIMUM": np.maximum,
    "MINIMUM": np.minimum, "POWER": np.power, "ABS": np.abs, "EXPONENTIAL": np.exp, "FLOOR": np.floor, "LOG": np.log,
    "NEGATE": np.negative, "TANH": np.tanh, "COSINE": np.cos,
}  # fmt: skip


@pytest.mark.parametrize("name", STABLE)
def test_an_operator_of_stablehlo_on_single_elements(name):
    xs = [f(2, 3, low=0.5), f(2, 3, low=0.5)][: STABLE[name].nin]
    content, fed = file_of(f"STABLEHLO_{name}", [*xs], [out(2, 3)])
    np.testing.assert_allclose(run(content, fed)[0], STABLE[name](*fed), rtol=1e-5, atol=1e-6)


def test_the_page_of_operators_has_each_of_the_schema():
    numbers = [number for number in vars(tflite.BuiltinOperator).values() if isinstance(number, int)]
    assert page_of_operators().partition("## Operators")[2].count("\n| ") == 2 + len(numbers)


def test_random_models_give_what_litert_gives():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tally = many_draws(80, 5, devices=["reference", "litert"])
    assert tally.faults == []
    assert tally.share >= 0.97
    assert len({one.name for one in RECIPES}) >= 89


def test_shifts_beyond_the_bits_there_are_leave_the_sign():
    """More than 31 is undefined in LiteRT; as of any register that is wide enough, nothing but the sign is left."""
    x, by = np.array([2**31 - 1, -(2**31), -1, 5], "i4"), np.array([32, 40, 100, 2**31 - 1], "i4")
    content, fed = file_of("RIGHT_SHIFT", [X(x, "i4"), X(by, "i4")], [out(4, kind="i4")])
    assert run(content, fed)[0].tolist() == [0, -1, -1, 0]
