"""Operators on elements and those that move data give what LiteRT's own kernels give on the same file."""

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperationType
from nnhal.frontends.tflite import load
from tests.frontends.cases import Case, X, b, begin, c, channels, check, const, f, file_of, i, out, q
from tests.frontends.flat import Writer, litert

begin(__name__)

BEYOND_BYTES = np.array([0, 255, 256, -1, -129, 70_000, 2**31 - 1, -(2**31)], np.int32)
SUMS_BEYOND_INT32 = np.array([[2**31 - 1] * 3, [-(2**31), -(2**31), 5], [-7, -8, 2], [2**30, 2**30, -1]], np.int32)
STRIDED = [f(4, 5, 6), c([1, 0, -1]), c([3, 5, -6]), c([1, 2, -2])]

ELEMENTS: list[Case] = [
    *[(n, [f(2, 3, 4), f(3, 1)], [out(2, 3, 4)], n.title()) for n in ("ADD", "SUB", "MUL", "DIV")],
    ("ADD", [f(2, 3), f(2, 3)], [out(2, 3)], "Add", {"fusedActivationFunction": 1}),
    ("SUB", [f(2, 3), f(2, 3)], [out(2, 3)], "Sub", {"fusedActivationFunction": 3}),
    ("MUL", [i(2, 3), i(3)], [out(2, 3, kind="i4")], "Mul"),
    ("ADD", [q(2, 3), q(3, scale=0.1)], [out(2, 3, kind="i1", scale=0.13, zero=-7)], "Add"),
    ("MUL", [q(2, 3), q(3, scale=0.1)], [out(2, 3, kind="i1", scale=0.005, zero=-7)], "Mul"),
    ("ADD", [f(1, 2, 3, 1, 2, 5), f(3, 4, 1, 1)], [out(1, 2, 3, 4, 2, 5)], "Add"),
    ("MUL", [f(2, 1, 2, 2, 3), f()], [out(2, 1, 2, 2, 3)], "Mul"),
    ("FLOOR_DIV", [i(2, 3), const(i(3, low=1))], [out(2, 3, kind="i4")]),
    ("FLOOR_DIV", [f(2, 3), const(f(3, low=1))], [out(2, 3)]),
    ("FLOOR_MOD", [i(2, 3), const(i(3, low=-5, high=-1))], [out(2, 3, kind="i4")]),
    ("ADD_N", [f(2, 3), f(2, 3), f(2, 3)], [out(2, 3)]),
    ("SQUARE", [f(2, 3)], [out(2, 3)]),
    ("SQUARED_DIFFERENCE", [f(2, 3), f(3)], [out(2, 3)]),
    ("SQUARED_DIFFERENCE", [q(2, 3, zero=0), q(2, 3, zero=0)], [out(2, 3, kind="i1", scale=0.5, zero=-128)]),
    *[(n, [f(2, 3), f(3)], [out(2, 3)]) for n in ("MAXIMUM", "MINIMUM")],
    ("POW", [f(2, 3, low=0.5), f(3)], [out(2, 3)]),
    *[
        (n, [i(4, 5, low=0, high=3), i(5, low=0, high=3)], [out(4, 5, kind="b1")])
        for n in ("EQUAL", "NOT_EQUAL", "LESS")
    ],
    *[(n, [f(4, 5), f(5)], [out(4, 5, kind="b1")]) for n in ("LESS_EQUAL", "GREATER", "GREATER_EQUAL")],
    *[(n, [b(4, 5), b(5)], [out(4, 5, kind="b1")]) for n in ("LOGICAL_AND", "LOGICAL_OR")],
    ("LOGICAL_NOT", [b(4, 5)], [out(4, 5, kind="b1")]),
    *[(n, [f(2, 3)], [out(2, 3)]) for n in ("ABS", "EXP", "FLOOR", "LOGISTIC", "NEG", "SIN", "TANH", "CEIL", "ELU")],
    *[(n, [f(2, 3, low=0.1)], [out(2, 3)]) for n in ("LOG", "RSQRT", "SQRT")],
    *[(n, [f(2, 3, high=8)], [out(2, 3)]) for n in ("RELU", "RELU6", "RELU_N1_TO_1", "HARD_SWISH", "RELU_0_TO_1")],
    ("TANH", [f(1, 2, 3, 2, 2)], [out(1, 2, 3, 2, 2)]),
    ("RELU", [q(40)], [out(40, kind="i1", scale=0.05, zero=3)]),
    ("RELU", [q(40)], [out(40, kind="i1", scale=0.03, zero=-128)]),
    ("RELU6", [q(40)], [out(40, kind="i1", scale=0.03, zero=-128)]),
    ("LOGISTIC", [q(40)], [out(40, kind="i1", scale=1 / 256, zero=-128)]),
    ("LEAKY_RELU", [f(2, 3)], [out(2, 3)], "LeakyRelu", {"alpha": 0.2}),
    ("LEAKY_RELU", [q(40)], [out(40, kind="i1", scale=0.04, zero=5)], "LeakyRelu", {"alpha": 0.1}),
    ("PRELU", [f(1, 2, 3, 4), const(f(1, 1, 4))], [out(1, 2, 3, 4)]),
    ("CAST", [f(2, 3, low=-9, high=9)], [out(2, 3, kind="i4")], "Cast", {"inDataType": 0, "outDataType": 2}),
    ("CAST", [i(2, 3)], [out(2, 3)], "Cast", {"inDataType": 2, "outDataType": 0}),
    ("CAST", [i(2, 3, low=0, high=2)], [out(2, 3, kind="b1")], "Cast", {"inDataType": 2, "outDataType": 6}),
    ("CAST", [X(BEYOND_BYTES, "i4")], [out(8, kind="u1")], "Cast", {"inDataType": 2, "outDataType": 3}),
    ("CAST", [X(BEYOND_BYTES.astype("i8"), "i8")], [out(8, kind="u1")], "Cast", {"inDataType": 4, "outDataType": 3}),
    ("CAST", [b(2, 3)], [out(2, 3)], "Cast", {"inDataType": 6, "outDataType": 0}),
    ("CAST", [X(np.arange(6, dtype="u1"), "u1")], [out(6)], "Cast", {"inDataType": 3, "outDataType": 0}),
    ("CAST", [X(np.arange(-3, 3, dtype="i1"), "i1")], [out(6)], "Cast", {"inDataType": 9, "outDataType": 0}),
    ("DEQUANTIZE", [q(2, 3)], [out(2, 3)]),
    (
        "DEQUANTIZE",
        [
            channels((3, 4), 0),
        ],
        [out(3, 4)],
    ),
    ("QUANTIZE", [f(2, 30)], [out(2, 30, kind="i1", scale=0.02, zero=3)]),
    ("QUANTIZE", [q(2, 30)], [out(2, 30, kind="u1", scale=0.06, zero=120)]),
    ("SELECT", [b(2, 3), f(2, 3), f(2, 3)], [out(2, 3)]),
    ("SELECT", [b(4), f(4, 3), f(4, 3)], [out(4, 3)]),
    ("SELECT_V2", [b(2, 1), f(3), const(f())], [out(2, 3)]),
    ("SELECT_V2", [b(3), i(2, 3), i(1)], [out(2, 3, kind="i4")]),
    ("BROADCAST_TO", [f(3, 1), c([2, 3, 4])], [out(2, 3, 4)], "BroadcastTo", {"version": 2}),
    (
        "FILL",
        [
            c([2, 3]),
            c(1.5, "f4"),
        ],
        [out(2, 3)],
    ),
    ("ZEROS_LIKE", [f(2, 3)], [out(2, 3)]),
    ("ONE_HOT", [i(2, 3, low=0, high=4), c(4), c(2.0, "f4"), c(-1.0, "f4")], [out(2, 3, 4)], "OneHot", {"axis": -1}),
    ("ONE_HOT", [i(2, 3, low=0, high=4), c(4), c(5), c(0)], [out(2, 4, 3, kind="i4")], "OneHot", {"axis": 1}),
]

MOVES: list[Case] = [
    ("RESHAPE", [f(2, 3, 4), c([4, -1])], [out(4, 6)]),
    ("RESHAPE", [f(2, 3, 4)], [out(6, 4)], "Reshape", {"newShape": [6, -1]}),
    ("RESHAPE", [f(1, 1), c([], "i4")], [out()]),
    ("SQUEEZE", [f(1, 3, 1, 4)], [out(3, 4)], "Squeeze", {"squeezeDims": []}),
    ("SQUEEZE", [f(1, 3, 1, 4)], [out(1, 3, 4)], "Squeeze", {"squeezeDims": [-2]}),
    ("SQUEEZE", [i(1, 3, 1, 4, 1)], [out(1, 3, 4, kind="i4")], "Squeeze", {"squeezeDims": [2, 4]}),
    ("EXPAND_DIMS", [f(2, 3), c(-1)], [out(2, 3, 1)]),
    ("EXPAND_DIMS", [f(), c(0)], [out(1)]),
    ("TRANSPOSE", [f(2, 3, 4), c([2, 0, 1])], [out(4, 2, 3)]),
    ("TRANSPOSE", [f(1, 2, 3, 4, 5), c([0, 4, 1, 2, 3])], [out(1, 5, 2, 3, 4)]),
    ("TRANSPOSE", [f(2, 1, 3, 1, 2, 2), c([4, 5, 1, 0, 3, 2])], [out(2, 2, 1, 2, 1, 3)]),
    ("CONCATENATION", [f(2, 3), f(2, 1)], [out(2, 4)], "Concatenation", {"axis": -1}),
    ("CONCATENATION", [q(2, 3), q(2, 3)], [out(4, 3, kind="i1", scale=0.05, zero=3)], "Concatenation", {}),
    ("CONCATENATION", [f(1, 2, 3, 2, 2), f(1, 2, 1, 2, 2)], [out(1, 2, 4, 2, 2)], "Concatenation", {"axis": 2}),
    ("PACK", [f(2, 3), f(2, 3)], [out(2, 2, 3)], "Pack", {"valuesCount": 2, "axis": 1}),
    ("PACK", [f(), f(), f()], [out(3)], "Pack", {"valuesCount": 3, "axis": 0}),
    ("UNPACK", [f(2, 3)], [out(2), out(2), out(2)], "Unpack", {"num": 3, "axis": 1}),
    ("UNPACK", [i(2, 3)], [out(3, kind="i4"), out(3, kind="i4")], "Unpack", {"num": 2, "axis": 0}),
    ("UNPACK", [f(2)], [out(), out()], "Unpack", {"num": 2, "axis": 0}),
    ("SPLIT", [c(-1), f(2, 6)], [out(2, 2)] * 3, "Split", {"numSplits": 3}),
    ("SPLIT_V", [f(2, 6), c([1, -1, 2]), c(1)], [out(2, 1), out(2, 3), out(2, 2)], "SplitV", {"numSplits": 3}),
    ("SPLIT_V", [f(2, 6), c([3, 3]), c(1)], [out(2, 3)] * 2, "SplitV", {"numSplits": 2}),
    ("SLICE", [f(3, 4), c([1, 0], "i8"), c([2, -1], "i8")], [out(2, 4)]),
    ("STRIDED_SLICE", STRIDED, [out(2, 3, 3)], "StridedSlice"),
    ("STRIDED_SLICE", STRIDED, [out(3, 5, 6)], "StridedSlice", {"beginMask": 2, "endMask": 5}),
    ("STRIDED_SLICE", STRIDED, [out(5)], "StridedSlice", {"shrinkAxisMask": 1, "beginMask": 6, "endMask": 2}),
    (
        "STRIDED_SLICE",
        [f(4, 5, 6), c([1, 2]), c([2, 3]), c([1, 1])],
        [out(4, 5)],
        "StridedSlice",
        {"ellipsisMask": 1, "shrinkAxisMask": 2},
    ),
    (
        "STRIDED_SLICE",
        [f(4, 5), c([0, 0, 1]), c([3, 0, 4]), c([1, 1, 1])],
        [out(3, 1, 3)],
        "StridedSlice",
        {"newAxisMask": 2},
    ),
    (
        "STRIDED_SLICE",
        [f(4, 5), c([0, 1, 0]), c([1, 3, 0]), c([1, 1, 1])],
        [out(1, 2, 1, 5)],
        "StridedSlice",
        {"newAxisMask": 4},
    ),
    (
        "STRIDED_SLICE",
        [f(4, 5), c([0, 1, 2]), c([0, 2, 3]), c([1, 1, 1])],
        [out(1)],
        "StridedSlice",
        {"newAxisMask": 1, "shrinkAxisMask": 6},
    ),
    (
        "STRIDED_SLICE",
        [f(4, 5), c([1, 0, 0]), c([2, 0, 3]), c([1, 1, 1])],
        [out(1, 3)],
        "StridedSlice",
        {"newAxisMask": 2, "shrinkAxisMask": 1},
    ),
    (
        "STRIDED_SLICE",
        [f(4, 5), c([0, 0, 0, 1]), c([0, 3, 0, 3]), c([1, 1, 1, 1])],
        [out(1, 3, 1, 2)],
        "StridedSlice",
        {"newAxisMask": 5},
    ),
    ("STRIDED_SLICE", [f(4), c([-2]), c([-1]), c([1])], [out()], "StridedSlice", {"shrinkAxisMask": 1}),
    ("GATHER", [f(3, 4), i(2, 2, low=0, high=4)], [out(3, 2, 2)], "Gather", {"axis": 1}),
    ("GATHER", [f(3, 4), c(2)], [out(3)], "Gather", {"axis": -1}),
    ("TILE", [f(2, 3), c([2, 1])], [out(4, 3)]),
    ("REVERSE_V2", [f(2, 3), c([0])], [out(2, 3)], "ReverseV2"),
    ("PAD", [f(2, 3), c([[1, 0], [0, 2]])], [out(3, 5)]),
    ("PAD", [q(2, 3), c([[1, 0], [0, 2]])], [out(3, 5, kind="i1", scale=0.05, zero=3)]),
    ("PADV2", [f(2, 3), c([[1, 0], [0, 2]]), c(1.5, "f4")], [out(3, 5)]),
    (
        "PADV2",
        [q(2, 3), c([[1, 0], [0, 2]]), X(np.array(9, "i1"), "i1", 0.05, 3, True)],
        [out(3, 5, kind="i1", scale=0.05, zero=3)],
    ),
    ("MIRROR_PAD", [f(2, 3), c([[1, 0], [0, 2]])], [out(3, 5)], "MirrorPad", {"mode": 0}),
    ("MIRROR_PAD", [f(2, 3), c([[1, 0], [0, 2]])], [out(3, 5)], "MirrorPad", {"mode": 1}),
    ("SPACE_TO_DEPTH", [f(1, 4, 4, 1)], [out(1, 2, 2, 4)], "SpaceToDepth", {"blockSize": 2}),
    ("DEPTH_TO_SPACE", [f(1, 2, 2, 8)], [out(1, 4, 4, 2)], "DepthToSpace", {"blockSize": 2}),
    ("SPACE_TO_BATCH_ND", [f(1, 4, 3, 1), c([2, 2]), c([[0, 0], [1, 0]])], [out(4, 2, 2, 1)]),
    ("BATCH_TO_SPACE_ND", [f(4, 2, 2, 1), c([2, 2]), c([[0, 0], [0, 0]])], [out(1, 4, 4, 1)]),
    ("BATCH_TO_SPACE_ND", [f(4, 2, 2, 1), c([2, 2]), c([[1, 0], [0, 1]])], [out(1, 3, 3, 1)]),
    *[
        (n, [f(2, 3, 4), c([0, -1])], [out(3)], "Reducer")
        for n in ("SUM", "MEAN", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD")
    ],
    ("SUM", [f(2, 3), c([0, 1])], [out()], "Reducer"),
    ("MEAN", [f(2, 3, 4), c(1)], [out(2, 1, 4)], "Reducer", {"keepDims": True}),
    *[
        (n, [q(2, 3), c(np.zeros(0, "i4"))], [out(2, 3, kind="i1", scale=0.05, zero=3)], "Reducer")
        for n in ("SUM", "MEAN", "REDUCE_MAX")
    ],
    ("MEAN", [X(SUMS_BEYOND_INT32, "i4"), c([1])], [out(4, kind="i4")], "Reducer"),
    ("MEAN", [X(SUMS_BEYOND_INT32.reshape(2, 2, 1, 1, 3), "i4"), c([1, 4])], [out(2, 1, 1, kind="i4")], "Reducer"),
    ("MEAN", [q(2, 30), c([1])], [out(2, kind="i1", scale=0.01, zero=0)], "Reducer"),
    *[  # as group normalisation does
        (n, [q(1, 4, 3, 2, 2), c([1, 2, 4])], [out(1, 2, kind="i1", scale=scale, zero=zero)], "Reducer")
        for n, scale, zero in (("MEAN", 0.05, 3), ("MEAN", 0.02, -5), ("REDUCE_MAX", 0.05, 3), ("SUM", 0.3, 1))
    ],
    ("SUM", [q(2, 5), c([1])], [out(2, kind="i1", scale=0.2, zero=0)], "Reducer"),
    ("REDUCE_ANY", [b(2, 3), c([1])], [out(2, kind="b1")], "Reducer"),
    ("REDUCE_ALL", [b(2, 3), c([0])], [out(3, kind="b1")], "Reducer"),
    ("ARG_MAX", [f(2, 3), c(1)], [out(2, kind="i4")], "ArgMax", {"outputType": 2}),
    ("ARG_MIN", [f(2, 3), c(-2)], [out(3, kind="i4")], "ArgMin", {"outputType": 2}),
    ("TOPK_V2", [X(np.array([[1, 3, 3, 2], [0, 0, 0, 0]], "f4")), c(3)], [out(2, 3), out(2, 3, kind="i4")]),
]


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{case[0]}-{n}") for n, case in enumerate((*ELEMENTS, *MOVES))]
)
def test_an_operator_gives_what_litert_gives(case):
    check(case)


@pytest.mark.parametrize("left", ["builtinCode", "deprecatedBuiltinCode"])
def test_the_number_of_an_operator_may_stand_in_either_of_two_fields(left):
    """Old files have but the one byte, files of ai-edge-quantizer but the newer integer."""

    def change(model):
        for code in model.operatorCodes:
            setattr(code, left, 0)

    w = Writer()
    x, y = w.tensor([1, 2]), w.tensor([1, 2])
    w.operator("PRELU", [x, w.tensor([2], "f4", [0.5, -2])], [y])
    w.ends([x], [y])
    content, given = w.bytes(change), np.array([[-1, -1]], np.float32)
    assert litert(content, given)[0].tolist() == [[-0.5, 2]]
    assert nnhal.compile(nnhal.load(content), devices="reference")(given).tolist() == [[-0.5, 2]]


def test_a_new_axis_is_put_in_behind_a_slice_and_no_element_is_moved_alone():
    case = "STRIDED_SLICE", [f(4, 5), c([0, 0, 1]), c([3, 0, 4]), c([1, 1, 1])], [out(3, 1, 3)], "StridedSlice"
    content, _ = file_of(*case, newAxisMask=2)
    found = [OperationType(operation.type).name for operation in load(content).main.operations]
    assert found == ["STRIDED_SLICE", "EXPAND_DIMS"]
