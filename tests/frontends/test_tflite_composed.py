"""What is made of several operations of NNAPI gives what LiteRT's own kernels give, or what numpy and scipy do."""

import warnings
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import tflite
from scipy.special import erf

from tests.frontends.cases import Case, X, b, c, check, const, f, file_of, i, out, run
from tests.frontends.flat import Writer
from tests.frontends.random_models import RECIPES, many_draws

DOCS = Path(__file__).parents[2] / "docs"
HALVES = X(np.array([-2.5, -1.5, -0.5, -0.49999997, 0.49999997, 0.5, 1.5, 2.5, 1e9, -3.7], "f4"))
LENGTHS = X(np.array([2, 4], "i4"), "i4")

CASES: list[Case] = [
    ("ROUND", [HALVES], [out(10)]),
    ("COS", [f(40, low=-20, high=20)], [out(40)], "Cos"),
    ("SIGN", [X(np.array([-2.0, -0.0, 0.0, 3.0], "f4"))], [out(4)]),
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


def test_the_page_of_operators_is_what_the_table_says():
    spec = spec_from_file_location("generate_tflite_operators", DOCS / "generate_tflite_operators.py")
    assert spec is not None and spec.loader is not None
    page = module_from_spec(spec)
    spec.loader.exec_module(page)
    current = (DOCS / "tflite-operators.md").read_text()
    assert current == page.text(), "run python docs/generate_tflite_operators.py"
    assert current.count("\n| ") == 2 + len([n for n in vars(tflite.BuiltinOperator).values() if isinstance(n, int)])


def test_random_models_give_what_litert_gives():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tally = many_draws(250, 5)
    assert tally.faults == []
    assert tally.share >= 0.97
    assert len({one.name for one in RECIPES}) >= 89
