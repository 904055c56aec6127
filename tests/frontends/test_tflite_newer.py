"""Operators that NNAPI has no operation for: windows, remainders, suppression, sparse tables, composites."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tflite

import nnhal
from nnhal.base.codes import OperationType
from nnhal.frontends.tflite import load
from nnhal.frontends.tflite.task import OPERATORS, UNRUN
from tests.frontends.cases import (
    RANDOM,
    Case,
    X,
    agrees,
    b,
    begin,
    c,
    check,
    const,
    f,
    file_of,
    i,
    malformed,
    out,
    refused,
    run,
)
from tests.frontends.flat import Writer, litert, one_operator, tensor

begin(__name__)

NUMBERS = [name for name, number in vars(tflite.BuiltinOperator).items() if isinstance(number, int)]


def box(count: int) -> X:
    """Boxes of any two corners, some of no area."""
    data = RANDOM.uniform(0, 1, (count, 4)).astype("f4")
    data[0, 2:] = data[0, :2]
    return X(data)


def score(count: int) -> X:
    return X((RANDOM.permutation(count).astype("f4") - 2) / count)


def limits(*numbers: Any) -> list[X]:
    return [c(numbers[0]), *(c(n, "f4") for n in numbers[1:])]


DILATIONS = "dilationDFactor", "dilationHFactor", "dilationWFactor"
WINDOW = [c([2, 1, 3], "i8"), c([1, 2, 1], "i8"), c([1, 1, 2], "i8")]
NEWER: list[Case] = [
    ("DILATE", [f(2, 3), c([2, 3]), c(-1.5, "f4")], [out(3, 7)]),
    ("DILATE", [i(4), c([3]), c(7)], [out(10, kind="i4")]),
    *[
        ("REDUCE_WINDOW", [f(3, 4, 6), c(0.25, "f4"), *WINDOW], [out(2, 2, 2)], "ReduceWindow", {"reduceFunction": n})
        for n in (1, 2, 3, 4)
    ],
    ("REDUCE_WINDOW", [f(3, 4, 6), f(), *WINDOW], [out(2, 2, 2)], "ReduceWindow", {"reduceFunction": 1}),
    ("REDUCE_WINDOW", [i(3, 4, 6), c(2), *WINDOW], [out(2, 2, 2, kind="i4")], "ReduceWindow", {"reduceFunction": 1}),
    *[
        (
            "REDUCE_WINDOW",
            [b(3, 4, 6), c(n == 5, "b1"), *WINDOW],
            [out(2, 2, 2, kind="b1")],
            "ReduceWindow",
            {"reduceFunction": n},
        )
        for n in (5, 6)
    ],
    ("BUCKETIZE", [f(3, 5)], [out(3, 5, kind="i4")], "Bucketize", {"boundaries": [-1.0, 0.0, 0.5, 1.5]}),
    ("BUCKETIZE", [i(9)], [out(9, kind="i4")], "Bucketize", {"boundaries": [-2.5, 0.0, 3.0, 3.5]}),
    ("FLOOR_MOD", [f(50, low=-100, high=100), f(50, low=0.1, high=3)], [out(50)]),
    ("FLOOR_MOD", [f(50, low=-1e5, high=1e5), f(50, low=-3, high=-0.1)], [out(50)]),
    ("BROADCAST_ARGS", [X(np.array([3, 1], "i4"), "i4"), X(np.array([2, 1, 5], "i4"), "i4")], [out(3, kind="i4")]),
    ("BROADCAST_ARGS", [X(np.array([1, 4], "i4"), "i4"), c([7, 1])], [out(2, kind="i4")]),
    (
        "STABLEHLO_SHIFT_LEFT",
        [i(20), X(RANDOM.integers(0, 32, 20).astype("i4"), "i4")],
        [out(20, kind="i4")],
        "StablehloShiftLeft",
    ),
    (
        "STABLEHLO_PAD",
        [f(4, 3), c(2.5, "f4")],
        [out(4, 8)],
        "StablehloPad",
        {"edgePaddingLow": [1, 2], "edgePaddingHigh": [-1, 1], "interiorPadding": [0, 1]},
    ),
    ("NON_MAX_SUPPRESSION_V4", [box(12), score(12), *limits(5, 0.3, 0.1)], [out(5, kind="i4"), out(kind="i4")]),
    ("NON_MAX_SUPPRESSION_V4", [box(6), score(6), *limits(9, 0.9, -0.2)], [out(9, kind="i4"), out(kind="i4")]),
    *[
        (
            "NON_MAX_SUPPRESSION_V5",
            [box(12), score(12), *limits(8, 0.6, 0.05, sigma)],
            [out(8, kind="i4"), out(8), out(kind="i4")],
        )
        for sigma in (0.0, 0.4)
    ],
    *[
        (
            "EMBEDDING_LOOKUP_SPARSE",
            [
                c([1, 3, 0, 1]),
                c([[0, 0], [0, 2], [2, 1], [2, 2]]),
                c([4, 3]),
                X(np.array([1, 2, 0.5, 4], "f4")),
                f(5, 2, 3),
            ],
            [out(4, 2, 3)],
            "EmbeddingLookupSparse",
            {"combiner": combiner},
        )
        for combiner in (0, 1, 2)
    ],
    *[
        (
            "CONV_3D_TRANSPOSE",
            [c([2, deep, 7, 6, 2]), const(f(3, 3, 2, 2, 3)), f(2, 3, 3, 3, 3), const(f(2))],
            [out(2, deep, 7, 6, 2)],
            "Conv3D",
            {"strideD": stride, "strideH": 2, "strideW": 2, "padding": padding, "dilationDFactor": grown}
            | dict.fromkeys(("dilationHFactor", "dilationWFactor"), 1),
        )
        for deep, stride, padding, grown in ((5, 1, 1, 1), (7, 2, 1, 1), (7, 1, 1, 2))
    ],
]


@pytest.mark.parametrize("case", NEWER, ids=[case[0] for case in NEWER])
def test_an_operator_made_of_several_gives_what_litert_gives(case):
    check(case)


def test_a_float_remainder_is_exact_as_long_as_the_quotient_is():
    random = np.random.default_rng(1)
    x = (random.uniform(-1, 1, 4000) * 10.0 ** random.uniform(-3, 5, 4000)).astype("f4")
    y = (random.choice([-1, 1], 4000) * random.uniform(0.5, 9, 4000)).astype("f4")
    x[:9], y[:9] = [6, -6, 0, -1e-12, 1e-12, 3, 5, -5, 7], [3, 3, 2, 2, -2, 3, -7, 7, 7]
    content, fed = file_of("FLOOR_MOD", [X(x), X(y)], [out(4000)])
    (found,) = run(content, fed)
    right = np.fmod(x.astype("f8"), y.astype("f8"))
    right = np.where((right != 0) & ((right < 0) != (y < 0)), right + y, right).astype("f4")
    assert (found == right).all()


def test_a_window_of_a_scalar_has_it_and_the_first_value():
    """LiteRT does not run it."""
    inputs = [X(np.array(1.5, "f4")), c(0.25, "f4"), *[c([], "i8")] * 3]
    (found,) = run(*file_of("REDUCE_WINDOW", inputs, [out()], "ReduceWindow", reduceFunction=1))
    assert found.shape == () and found == 1.75


def windows_of(windows: str) -> bytes:
    how = {"windowDimensions": [1, 3], "windowStrides": [1, 2], "baseDilations": [1, 2], "windowDilations": [1, 1]}
    begin = tensor([], "f4", 0 if windows.endswith("ADD") else -9)
    return reduced([tensor([2, 5]), begin], [2, 4], windows, padding=[0, 0, 1, -1], **how)


def reduced(inputs: list[Any], shape: Sequence[int], body: str, **how: Any) -> bytes:
    """Windows of stablehlo that are reduced with `body`."""
    w = Writer()
    fields = {"bodySubgraphIndex": 1} | how
    w.only("STABLEHLO_REDUCE_WINDOW", inputs, [tensor(shape)], "StablehloReduceWindow", **fields)
    return combined(w, body)


def combined(w: Writer, body: str) -> bytes:
    """The file, with another subgraph that combines two numbers."""
    w.subgraph()
    w.only(body, [tensor([]), tensor([])], [tensor([])])
    return w.bytes()


@pytest.mark.parametrize("windows", ["STABLEHLO_ADD", "STABLEHLO_MAXIMUM", "ADD", "MUL", "MAXIMUM", "MINIMUM"])
def test_windows_of_stablehlo_are_reduced_with_what_their_subgraph_does(windows):
    agrees(windows_of(windows), [f(2, 5).data])


def summed(
    padding: list[int] | None, shape: tuple[int, ...] = (2, 5), begin: tuple[int, ...] = (), **how: Any
) -> bytes:
    """Sums of 3 along the last dimension. begin: the shape of what is added to them."""
    inputs = [tensor(shape), tensor(begin, "f4", np.zeros(begin, np.float32))]
    window = [*[1] * (len(shape) - 1), 3]
    sums = [*shape[:-1], shape[-1] - 2]
    return reduced(inputs, sums, "STABLEHLO_ADD", windowDimensions=window, padding=padding, **how)


@pytest.mark.parametrize("body", ["ADD", "MAXIMUM"])
@pytest.mark.parametrize(
    ("shape", "size", "stride", "dilation", "pads", "start"),
    [
        ((2, 9, 8, 3), (1, 3, 2, 1), (1, 2, 1, 1), (1, 1, 1, 1), (0, 0, 1, 2, 1, 0, 0, 0), None),  # pictures
        ((2, 3, 9, 8), (1, 1, 3, 3), (1, 1, 1, 1), (1, 1, 2, 1), (0, 0, 0, 0, 1, 1, 1, 1), None),  # channels first
        ((1, 2, 6, 5, 4), (1, 1, 3, 1, 1), (1, 1, 1, 1, 1), (1,) * 5, (0,) * 10, None),  # as a response is normalised
        ((2, 7), (1, 3), (1, 2), (1, 2), (0, 0, 0, 1), None),
        ((3, 4, 5), (2, 1, 3), (1, 1, 1), (1, 1, 1), (0,) * 6, None),  # not neighbours
        ((4, 6), (2, 3), (1, 1), (1, 1), (1, 0, 0, 1), 2.5),  # padding counts
        ((5, 4), (2, 2), (2, 1), (1, 1), (2, 0, 0, 0), None),  # a window of padding alone
        ((6, 4), (2, 2), (1, 1), (1, 1), (-1, 0, 0, 0), None),
    ],
)
def test_windows_of_floats_are_reduced_as_numpy_does(body, shape, size, stride, dilation, pads, start):
    x, neutral = f(*shape).data, 0.0 if body == "ADD" else -np.inf
    start = neutral if start is None else start
    edges = list(zip(pads[::2], pads[1::2], strict=True))
    cut = x[tuple(slice(max(0, -low), n - max(0, -high)) for (low, high), n in zip(edges, shape, strict=True))]
    whole = np.pad(cut, [(max(0, low), max(0, high)) for low, high in edges], constant_values=start)
    reach = [(n - 1) * d + 1 for n, d in zip(size, dilation, strict=True)]
    seen = np.lib.stride_tricks.sliding_window_view(whole, reach)
    seen = seen[tuple(slice(None, None, n) for n in (*stride, *dilation))]
    over = tuple(range(len(shape), 2 * len(shape)))
    wanted = seen.sum(over) + np.float32(start) if body == "ADD" else np.maximum(seen.max(over), np.float32(start))
    how = {"windowDimensions": size, "windowStrides": stride, "windowDilations": dilation, "padding": pads}
    for known in (False, True):
        given = [tensor(shape, "f4", x if known else None), tensor([], "f4", start)]
        content = reduced(given, wanted.shape, body, **how)
        for device in ("reference", "litert"):
            found = nnhal.compile(nnhal.load(content), devices=[device, "reference"])(*[] if known else [x])
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("begin", [(0,), (2,)])
def test_windows_that_begin_with_several_numbers_or_none_are_refused(begin):
    refused(summed(None, begin=begin), f"begins with {begin[0]} numbers, must begin with one", nnhal.NnhalError)


def test_windows_of_a_large_picture_are_added_up_by_one_operation():
    """Its windows have more elements than may be gathered."""
    size, padding = [1, 112, 112, 64], [0, 0, 1, 1, 1, 1, 0, 0]
    content = reduced([tensor(size), tensor([], "f4", 0)], size, "ADD", windowDimensions=[1, 3, 3, 1], padding=padding)
    assert [o.type for o in nnhal.load(content).main.operations] == [OperationType.DEPTHWISE_CONV_2D]


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 3, 4)])
def test_what_is_not_said_of_windows_of_stablehlo_is_1_and_padding_none(shape):
    x = f(*shape).data
    wanted = np.lib.stride_tricks.sliding_window_view(x, 3, -1).sum(-1)
    for padding in (None, [0] * (2 * len(shape))):
        (found,) = run(summed(padding, shape), [x])
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("number", [-1, 2])
def test_windows_that_are_reduced_with_a_subgraph_that_is_not_there_are_refused(number):
    refused(summed(None, bodySubgraphIndex=number), f"refers to subgraph {number}, must be 0 to 1")


@pytest.mark.parametrize("how", [{"padding": [0, 0, 1]}, {"baseDilations": [1]}, {"baseDilations": [1, 0]}])
def test_windows_have_two_paddings_and_a_dilation_for_each_dimension(how):
    refused(summed(**{"padding": [0, 0, 0, 0]} | how), "must have two paddings and a dilation for each dimension")


def test_integers_of_stablehlo_are_divided_towards_0():
    """LiteRT has no kernel for it."""
    x, y = np.array([7, -7, 7, -7, 0, 2**31 - 1], "i4"), np.array([2, 2, -2, -2, -5, -1], "i4")
    (found,) = run(*file_of("STABLEHLO_DIVIDE", [X(x, "i4"), X(y, "i4")], [out(6, kind="i4")]))
    assert found.tolist() == [3, -3, -3, 3, 0, -(2**31 - 1)]


def composite() -> bytes:
    w = Writer()
    x, shape, y = w.tensor([2, 3]), w.tensor([2], "i4", [3, 2]), w.tensor([3, 2])
    same = w.tensor([2, 3])
    how = {"decompositionSubgraphIndex": 1}
    w.operator("STABLEHLO_COMPOSITE", [x, shape], [y, same], "StableHLOComposite", **how)
    w.graph.operators[-1].builtinOptions2.name = "odml.turned"
    w.graph.operators[-1].builtinOptions2.compositeAttributes = [0]
    w.ends([x], [y, same])
    w.subgraph()
    a, sizes, turned, other = w.tensor([2, 3]), w.tensor([2], "i4"), w.tensor([3, 2]), w.tensor([3, 2])
    w.operator("RESHAPE", [a, sizes], [turned])
    w.operator("EXP", [turned], [other])
    return w.file([a, sizes], [other, a])


def test_a_composite_stands_for_its_subgraph():
    agrees(composite(), [f(2, 3).data])


def test_a_composite_of_itself_is_refused():
    w = Writer()
    w.only("STABLEHLO_COMPOSITE", [tensor([2])], [tensor([2])], "StableHLOComposite", decompositionSubgraphIndex=1)
    w.subgraph()
    w.only("STABLEHLO_COMPOSITE", [tensor([2])], [tensor([2])], "StableHLOComposite", decompositionSubgraphIndex=1)
    malformed(w.bytes(), "subgraph 1 refers to itself")


@pytest.mark.parametrize("constant", [False, True])
def test_parts_of_a_tensor_are_gathered_where_they_fit(constant):
    places = X(np.array([[[0, 1], [2, 9], [-4, 0]], [[1, 1], [3, 3], [9, 2]]], "i4"), "i4", constant=constant)
    how = {"sliceSizes": [2, 3, 1], "startIndexMap": [0, 1], "offsetDims": [0, 3], "collapsedSliceDims": [2]}
    fields = {"indexVectorDim": 2, **how}
    check(("STABLEHLO_GATHER", [f(4, 5, 1), places], [out(2, 2, 3, 3)], "StablehloGather", fields))


ROWS = np.array([[1], [3], [1], [0]], "i4")


def scattered(body: str, *, constant: bool) -> bytes:
    w = Writer()
    indices = tensor([4, 1], "i4", ROWS if constant else None)
    how = {"updateWindowDims": [1], "insertedWindowDims": [0], "scatterDimsToOperandDims": [0], "indexVectorDim": 1}
    w.only(
        "STABLEHLO_SCATTER",
        [tensor([4, 3]), indices, tensor([4, 3])],
        [tensor([4, 3])],
        "StablehloScatter",
        updateComputationSubgraphIndex=1,
        **how,
    )
    return combined(w, f"STABLEHLO_{body}")


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("body", ["ADD", "MULTIPLY", "MAXIMUM", "MINIMUM"])
def test_rows_of_a_tensor_are_combined_with_updates(constant, body):
    fed = [f(4, 3).data, f(4, 3).data] if constant else [f(4, 3).data, ROWS, f(4, 3).data]
    agrees(scattered(body, constant=constant), fed)


def test_padding_without_a_value_is_a_bad_file():
    malformed(file_of("STABLEHLO_PAD", [f(3)], [out(3)], "StablehloPad")[0], "has 1 inputs, must have 2")


UNRUN_NAMES = [name for name in NUMBERS if OPERATORS[name].refused == UNRUN]


@pytest.mark.parametrize("name", UNRUN_NAMES)
def test_what_is_said_to_have_no_kernel_in_litert_has_none(name):
    with pytest.raises(ValueError, match=f"Didn't find op for builtin opcode '{name}'"):
        litert(one_operator(name, [tensor([2])], [tensor([2])]), np.zeros(2, "f4"))


def test_an_axis_that_one_scale_has_no_use_for_is_not_looked_at():
    w = Writer()
    x, real = w.tensor([2], "i2", [30, -10], scale=0.5, zero=10, axis=7), w.tensor([2])
    w.operator("DEQUANTIZE", [x], [real])
    y = w.tensor([2])
    w.operator("ABS", [real], [y])
    assert nnhal.compile(load(w.file([], [y])), devices="reference")().tolist() == [10, 10]


def conv_3d(**options) -> bytes:
    return one_operator(
        "CONV_3D",
        [tensor([1, 2, 3, 3, 1]), tensor([1, 1, 1, 1, 1], data=np.ones(1, "f4"))],
        [tensor([1, 2, 3, 3, 1])],
        "Conv3D",
        **{"strideD": 1, "strideH": 1, "strideW": 1, **options},
    )


@pytest.mark.parametrize("name", ["CONV_3D", "CONV_3D_TRANSPOSE"])
def test_a_filter_of_five_dimensions_may_be_float16(name):
    """As converters write it: a DEQUANTIZE converts a constant of float16 to float32."""
    w, x = Writer(), RANDOM.uniform(-2, 2, (1, 3, 4, 4, 2)).astype("f4")
    given, stored = w.tensor([*x.shape]), RANDOM.uniform(-2, 2, (2, 2, 2, 2, 2)).astype("f2")
    narrow, wide, y = w.tensor([*stored.shape], "f2", stored), w.tensor([*stored.shape]), w.tensor([*x.shape])
    w.operator("DEQUANTIZE", [narrow], [wide])
    inputs = [given, wide] if name == "CONV_3D" else [w.tensor([5], "i4", [*x.shape]), wide, given]
    strides = dict.fromkeys(("strideD", "strideH", "strideW"), 1)
    w.operator(name, inputs, [y], "Conv3D", **strides, **dict.fromkeys(DILATIONS, 1), padding=0)
    w.ends([given], [y])
    np.testing.assert_allclose(run(w.bytes(), [x])[0], litert(w.bytes(), x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("option", "says"), [("strideD", "0 and 1, must be at least 1"), ("dilationDFactor", "1 and 0, must be at least 1")]
)
def test_steps_of_0_are_refused(option, says):
    refused(conv_3d(**{option: 0}), f"stride and dilation of the depth are {says}")


def test_a_shape_of_64_dimensions_is_numbers():
    w = Writer()
    long, x = w.tensor([64], "i4", np.ones(64, "i4")), w.tensor([64], "i4")
    w.operator("BROADCAST_ARGS", [long, long], [x])
    assert nnhal.compile(load(w.file([], [x])), devices="reference")().tolist() == [1] * 64
