"""Operators on shapes no two sizes of which are alike, with each of their options: what LiteRT's own kernels give."""

import numpy as np
import pytest

import nnhal
from nnhal.frontends.tflite import load
from tests.frontends.cases import RANDOM, Case, X, b, begin, bias, c, channels, check, const, f, file_of, i, out, q, run
from tests.frontends.flat import Writer

begin(__name__)

UNIT = {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}
DEEP = {"strideD": 1, "strideH": 1, "strideW": 1} | dict.fromkeys(
    ("dilationDFactor", "dilationHFactor", "dilationWFactor"), 1
)


def at(*numbers: object) -> X:
    return X(np.array(numbers, "i4"), "i4")


ELEMENTS: list[Case] = [
    *[
        (n, [i(3, 5), i(5, low=1)], [out(3, 5, kind="i4")], n.title(), {"fusedActivationFunction": code})
        for n in ("ADD", "SUB", "MUL", "DIV")
        for code in (1, 2, 3)
        if (n, code) != ("DIV", 2)
    ],
    ("ADD", [f(3, 5), f(5)], [out(3, 5)], "Add", {"fusedActivationFunction": 2}),
    ("FLOOR_MOD", [i(3, 5), i(5, low=1)], [out(3, 5, kind="i4")]),
    ("FLOOR_DIV", [i(3, 5), i(5, low=-7, high=-1)], [out(3, 5, kind="i4")]),
    ("FLOOR_DIV", [f(3, 5), f(5, low=0.5)], [out(3, 5)]),
    ("ADD_N", [i(2, 3), i(2, 3)], [out(2, 3, kind="i4")]),
    ("SQUARED_DIFFERENCE", [i(2, 3), i(3)], [out(2, 3, kind="i4")]),
    ("RELU6", [q(60, scale=0.1)], [out(60, kind="i1", scale=0.03, zero=-100)]),
    ("RELU_N1_TO_1", [q(60)], [out(60, kind="i1", scale=0.01, zero=3)]),
    ("LEAKY_RELU", [q(60)], [out(60, kind="i1", scale=0.04, zero=5)], "LeakyRelu", {"alpha": 0.0}),
    (
        "PRELU",
        [q(2, 3, 5), q(1, 1, 5, scale=0.01, zero=7, constant=True)],
        [out(2, 3, 5, kind="i1", scale=0.06, zero=1)],
    ),
    ("CAST", [b(3, 5)], [out(3, 5, kind="i4")], "Cast", {"inDataType": 6, "outDataType": 2}),
    ("CAST", [f(3, 5)], [out(3, 5, kind="b1")], "Cast", {"inDataType": 0, "outDataType": 6}),
    ("SELECT_V2", [b(2, 1), b(3), b(2, 3)], [out(2, 3, kind="b1")]),
    ("SELECT", [b(2), i(2, 3, 5), i(2, 3, 5)], [out(2, 3, 5, kind="i4")]),
    ("BROADCAST_TO", [i(3), c([2, 3])], [out(2, 3, kind="i4")], "BroadcastTo", {"version": 2}),
    ("BROADCAST_TO", [b(3, 1), c([2, 3, 5])], [out(2, 3, 5, kind="b1")], "BroadcastTo", {"version": 2}),
    ("FILL", [c([2, 3]), f()], [out(2, 3)]),
    ("FILL", [c([2, 3]), i()], [out(2, 3, kind="i4")]),
    ("FILL", [c([2, 3]), b()], [out(2, 3, kind="b1")]),
    ("ZEROS_LIKE", [f(5, 1000)], [out(5, 1000)]),
    ("ZEROS_LIKE", [i(5, 1000)], [out(5, 1000, kind="i4")]),
    ("ZEROS_LIKE", [f()], [out()]),
    ("ONE_HOT", [i(2, 3, low=0, high=4), c(4), c(2.0, "f4"), c(-1.0, "f4")], [out(4, 2, 3)], "OneHot", {"axis": 0}),
    ("ONE_HOT", [i(low=0, high=4), c(4), c(2.0, "f4"), c(-1.0, "f4")], [out(4)], "OneHot", {"axis": 0}),
    *[
        ("ONE_HOT", [i(2, 3, low=-1, high=4), c(4), c(on, "b1"), c(off, "b1")], [out(2, 3, 4, kind="b1")], "OneHot",
         {"axis": -1})
        for on, off in ((True, False), (False, True), (True, True), (False, False))
    ],
    *[
        ("RIGHT_SHIFT", [X(np.arange(-128, 128, 17).astype(kind), kind), X(np.arange(16).astype(kind) % 8, kind)],
         [out(16, kind=kind)])
        for kind in ("i1", "u1", "i4")
    ],
    *[
        ("BITWISE_XOR", [X(np.arange(-128, 128, 17).astype(kind), kind), X(np.arange(16).astype(kind) * 7, kind)],
         [out(16, kind=kind)])
        for kind in ("i1", "u1", "i4")
    ],
    ("POW", [at(2, -2, -2, 3, -3, 0, 0, 1, -1, -1, 5), at(30, 31, 30, 19, 19, 0, 9, 99, 98, 99, 1)], [out(11, kind="i4")]),
    ("BUCKETIZE", [at(-3, -2, -1, 0, 1, 2, 3)], [out(7, kind="i4")], "Bucketize", {"boundaries": [-2.0, 0.5, 2.0]}),
]  # fmt: skip

LAYERS: list[Case] = [
    ("CONV_2D", [f(2, 5, 7, 3), const(f(4, 3, 2, 3)), const(f(4))], [out(2, 5, 7, 4)], "Conv2D", UNIT),
    ("CONV_2D", [f(2, 5, 7, 3), const(f(4, 3, 2, 3)), const(f(4))], [out(2, 2, 7, 4)], "Conv2D", UNIT | {"strideH": 3}),
    (
        "DEPTHWISE_CONV_2D",
        [f(1, 7, 9, 2), const(f(1, 2, 3, 6)), const(f(6))],
        [out(1, 5, 5, 6)],
        "DepthwiseConv2D",
        {"strideW": 1, "strideH": 1, "dilationWFactor": 2, "dilationHFactor": 2, "padding": 1, "depthMultiplier": 3}
        | {"fusedActivationFunction": 1},
    ),
    (
        "TRANSPOSE_CONV",
        [c([1, 6, 8, 2]), const(f(2, 3, 3, 3)), f(1, 3, 8, 3), const(f(2))],
        [out(1, 6, 8, 2)],
        "TransposeConv",
        {"strideW": 1, "strideH": 2, "padding": 0},
    ),
    ("FULLY_CONNECTED", [f(2, 3), const(f(4, 3)), None], [out(2, 4)], "FullyConnected", {"keepNumDims": True}),
    ("FULLY_CONNECTED", [f(6), const(f(4, 3)), None], [out(2, 4)], "FullyConnected"),
    ("FULLY_CONNECTED", [f(2, 1, 3, 1, 5), const(f(4, 15)), const(f(4))], [out(2, 4)], "FullyConnected"),
    (
        "FULLY_CONNECTED",
        [q(2, 3, 8, scale=0.02), channels((5, 8), 0), bias(5, [0.0002] * 5)],
        [out(2, 3, 5, kind="i1", scale=0.05)],
        "FullyConnected",
        {"keepNumDims": True},
    ),
    (
        "FULLY_CONNECTED",
        [q(3, 8, scale=0.02), q(4, 8, scale=0.01, zero=0, constant=True), bias(4, 0.0011)],
        [out(3, 4, kind="i1", scale=0.05)],
        "FullyConnected",
    ),
    ("BATCH_MATMUL", [f(3, 2, 4), f(1, 4, 5)], [out(3, 2, 5)], "BatchMatMul"),
    ("BATCH_MATMUL", [f(1, 2, 4), f(3, 4, 5)], [out(3, 2, 5)], "BatchMatMul"),
    ("BATCH_MATMUL", [f(3, 1, 2, 4), f(1, 6, 4, 5)], [out(3, 6, 2, 5)], "BatchMatMul"),
    ("BATCH_MATMUL", [f(3, 4, 2), f(1, 4, 5)], [out(3, 2, 5)], "BatchMatMul", {"adjX": True}),
    ("BATCH_MATMUL", [f(3, 2, 4), f(1, 5, 4)], [out(3, 2, 5)], "BatchMatMul", {"adjY": True}),
    ("BATCH_MATMUL", [f(3, 4, 2), f(3, 4, 5)], [out(3, 2, 5)], "BatchMatMul", {"adjX": True}),
    ("BATCH_MATMUL", [f(3, 2, 4), f(3, 5, 4)], [out(3, 2, 5)], "BatchMatMul", {"adjY": True}),
    ("BATCH_MATMUL", [f(1, 3, 2, 2, 4), f(1, 3, 2, 4, 5)], [out(1, 3, 2, 2, 5)], "BatchMatMul"),
    ("LOG_SOFTMAX", [f(2, 3, 5)], [out(2, 3, 5)]),
    ("SOFTMAX", [f(7)], [out(7)], "Softmax", {"beta": 2.0}),
    ("MAX_POOL_2D", [f(2, 6, 5, 3, high=9)], [out(2, 3, 5, 3)], "Pool2D",
     {"filterWidth": 3, "filterHeight": 2, "strideW": 1, "strideH": 2, "padding": 0, "fusedActivationFunction": 3}),
    ("LSH_PROJECTION", [const(f(3, 2)), i(5), f(5)], [out(3, kind="i4")], "LSHProjection", {"type": 1}),
    ("LSH_PROJECTION", [const(f(3, 2)), i(5), f(5)], [out(6, kind="i4")], "LSHProjection", {"type": 2}),
]  # fmt: skip

MOVES: list[Case] = [
    ("RESHAPE", [f(1, 1)], [out()], "Reshape", {"newShape": [0]}),
    ("SQUEEZE", [f(1, 3, 1, 5, 1)], [out(1, 3, 5)], "Squeeze", {"squeezeDims": [2, -1]}),
    ("SQUEEZE", [b(1, 3, 1)], [out(3, kind="b1")], "Squeeze", {"squeezeDims": []}),
    ("PACK", [i(3, 5), i(3, 5)], [out(3, 5, 2, kind="i4")], "Pack", {"valuesCount": 2, "axis": -1}),
    ("UNPACK", [f(2, 3, 5)], [out(2, 5)] * 3, "Unpack", {"num": 3, "axis": 1}),
    ("UNPACK", [f(2, 1, 5)], [out(2, 5)], "Unpack", {"num": 1, "axis": -2}),
    ("UNPACK", [i(2, 3, 5)], [out(2, 5, kind="i4")] * 3, "Unpack", {"num": 3, "axis": 1}),
    ("UNPACK", [b(3, 2)], [out(2, kind="b1")] * 3, "Unpack", {"num": 3, "axis": 0}),
    ("SPLIT_V", [i(5, 7), c([4, 1, 2]), c(1)], [out(5, n, kind="i4") for n in (4, 1, 2)], "SplitV", {"numSplits": 3}),
    ("SPLIT_V", [f(7, 2), c([4, 1, -1]), c(0)], [out(n, 2) for n in (4, 1, 2)], "SplitV", {"numSplits": 3}),
    ("CONCATENATION", [i(3, 2), i(3, 5), i(3, 1)], [out(3, 8, kind="i4")], "Concatenation", {"axis": 1}),
    ("CONCATENATION", [b(3, 2), b(3, 5)], [out(3, 7, kind="b1")], "Concatenation", {"axis": 1}),
    ("STRIDED_SLICE", [f(7), c([2]), c([3]), c([2])], [out(2)], "StridedSlice", {"offset": True}),
    *[
        ("STRIDED_SLICE", [f(4, 5), at(1, -2), at(3, 5), at(1, 1)], [out(*shape)], "StridedSlice", fields)
        for shape, fields in (
            ((2, 2), {}),
            ((3, 2), {"beginMask": 1}),
            ((3, 2), {"endMask": 1}),
            ((2,), {"shrinkAxisMask": 2}),
            ((2,), {"shrinkAxisMask": 1}),
            ((2,), {"shrinkAxisMask": 1, "beginMask": 1}),
            ((), {"shrinkAxisMask": 3}),
            ((5,), {"shrinkAxisMask": 1, "beginMask": 2, "endMask": 3}),
        )
    ],
    ("REVERSE_V2", [f(2, 3, 5), c([0, 1])], [out(2, 3, 5)], "ReverseV2"),
    ("REVERSE_V2", [i(2, 3, 5), c([-1, -2])], [out(2, 3, 5, kind="i4")], "ReverseV2"),
    ("TILE", [f(2, 3), c([3, 2])], [out(6, 6)]),
    ("TILE", [b(2, 3), c([1, 2])], [out(2, 6, kind="b1")]),
    ("PAD", [f(1, 2, 1, 3, 2), c([[0, 0], [1, 0], [0, 2], [0, 0], [0, 1]])], [out(1, 3, 3, 3, 3)]),
    ("PAD", [b(2, 3), c([[1, 0], [0, 2]])], [out(3, 5, kind="b1")]),
    ("PADV2", [i(2, 3), c([[1, 0], [0, 2]]), c(7)], [out(3, 5, kind="i4")]),
    ("MIRROR_PAD", [i(3, 4), c([[1, 2], [3, 0]])], [out(6, 7, kind="i4")], "MirrorPad", {"mode": 0}),
    ("BATCH_TO_SPACE_ND", [f(2, 3, 5), c([2]), c([[1, 0]])], [out(1, 5, 5)]),
    ("BATCH_TO_SPACE_ND", [f(6, 2, 4, 3), c([2, 3]), c([[1, 0], [2, 3]])], [out(1, 3, 7, 3)]),
    ("SPACE_TO_BATCH_ND", [f(1, 4, 5), c([2]), c([[1, 1]])], [out(2, 3, 5)]),
    ("SPACE_TO_BATCH_ND", [f(2, 3, 4, 5), c([2, 3]), c([[0, 1], [2, 0]])], [out(12, 2, 2, 5)]),
    ("SPACE_TO_DEPTH", [i(2, 4, 6, 3)], [out(2, 2, 3, 12, kind="i4")], "SpaceToDepth", {"blockSize": 2}),
    ("DEPTH_TO_SPACE", [i(2, 2, 3, 12)], [out(2, 4, 6, 3, kind="i4")], "DepthToSpace", {"blockSize": 2}),
    ("TRANSPOSE", [b(2, 3, 5), c([2, 0, 1])], [out(5, 2, 3, kind="b1")]),
    ("TRANSPOSE", [f(2, 1, 3, 1, 5), c([4, 1, 2, 3, 0])], [out(5, 1, 3, 1, 2)]),
    ("TRANSPOSE", [f(1, 1, 1, 1, 1), c([4, 1, 2, 3, 0])], [out(1, 1, 1, 1, 1)]),
    ("EXPAND_DIMS", [b(2, 3), c(1)], [out(2, 1, 3, kind="b1")]),
    ("MATRIX_DIAG", [f(2, 3)], [out(2, 3, 3)], "MatrixDiag"),
    ("MATRIX_SET_DIAG", [f(2, 3, 5), f(2, 3)], [out(2, 3, 5)], "MatrixSetDiag"),
    ("GATHER", [f(2, 3, 5), i(2, 4, low=0, high=2)], [out(2, 4, 5)], "Gather", {"axis": 1, "batchDims": 1}),
    ("GATHER", [f(2, 3, 5, 4), i(2, 3, 2, low=0, high=4)], [out(2, 3, 3, 2, 4)], "Gather", {"axis": 2, "batchDims": 1}),
    ("GATHER", [f(2, 3, 5), i(2, 3, low=0, high=4)], [out(2, 3)], "Gather", {"axis": 2, "batchDims": 2}),
    ("GATHER", [f(2, 3, 5), i(2, 1, low=0, high=4)], [out(2, 3, 1)], "Gather", {"axis": 2, "batchDims": -1}),
    ("GATHER", [f(3, 5), i(low=0, high=4)], [out(3)], "Gather", {"axis": 1}),
    ("GATHER", [f(5), i(low=0, high=4)], [out()], "Gather", {"axis": 0}),
    ("GATHER_ND", [f(3, 4, 5), i(2, 3, low=0, high=2)], [out(2)], "GatherNd"),
    ("GATHER_ND", [f(3, 4, 5), i(2, 1, low=0, high=2)], [out(2, 4, 5)], "GatherNd"),
    ("GATHER_ND", [i(3, 4, 5), i(2, 7, 2, low=0, high=2)], [out(2, 7, 5, kind="i4")], "GatherNd"),
    ("GATHER_ND", [f(3, 4), c([[2, 3], [0, 1]])], [out(2)], "GatherNd"),
    ("REVERSE_SEQUENCE", [f(5, 2, 3), at(5, 2)], [out(5, 2, 3)], "ReverseSequence", {"seqDim": 0, "batchDim": 1}),
    ("REVERSE_SEQUENCE", [f(5, 2, 4), at(0, 3)], [out(5, 2, 4)], "ReverseSequence", {"seqDim": 2, "batchDim": 1}),
    ("REVERSE_SEQUENCE", [i(2, 5), c([4, 2])], [out(2, 5, kind="i4")], "ReverseSequence", {"seqDim": 1}),
]  # fmt: skip

REDUCTIONS: list[Case] = [
    *[
        (n, [i(2, 7, 3, low=-3, high=3), c([0, 2])], [out(1, 7, 1, kind="i4")], "Reducer", {"keepDims": True})
        for n in ("SUM", "REDUCE_PROD", "REDUCE_MIN", "REDUCE_MAX", "MEAN")
    ],
    *[
        (n, [f(2, 3, 1, 4, 5), c([1, -1])], [out(2, 1, 4)], "Reducer")
        for n in ("SUM", "REDUCE_PROD", "REDUCE_MIN", "REDUCE_MAX", "MEAN")
    ],
    ("REDUCE_ALL", [b(2, 3, 1, 2, 2), c([1, 4])], [out(2, 1, 2, kind="b1")], "Reducer"),
    ("REDUCE_ANY", [b(2, 3, 1, 2, 2), c([0, 4])], [out(1, 3, 1, 2, 1, kind="b1")], "Reducer", {"keepDims": True}),
    ("SUM", [f(), c([], "i4")], [out()], "Reducer"),
    *[
        ("CUMSUM", [x, c(1)], [out(2, 7, 3, kind=x.kind)], "Cumsum", {"exclusive": one, "reverse": two})
        for x in (f(2, 7, 3), i(2, 7, 3))
        for one, two in ((False, False), (True, False), (False, True))
    ],
    ("CUMSUM", [f(3, 1), c(1)], [out(3, 1)], "Cumsum"),
    ("ARG_MAX", [f(2, 3, 5), c(1)], [out(2, 5, kind="i4")], "ArgMax", {"outputType": 2}),
    ("ARG_MAX", [b(2, 5), c(-1)], [out(2, kind="i4")], "ArgMax", {"outputType": 2}),
    ("ARG_MIN", [q(2, 50), c(1)], [out(2, kind="i8")], "ArgMin", {"outputType": 4}),
    ("TOPK_V2", [f(2, 1, 3, 1, 5), c(2)], [out(2, 1, 3, 1, 2), out(2, 1, 3, 1, 2, kind="i4")]),
    ("TOPK_V2", [i(3, 7, low=0, high=3), c(4)], [out(3, 4, kind="i4"), out(3, 4, kind="i4")]),
    ("SEGMENT_SUM", [f(5, 2, 3), c([0, 0, 1, 1, 2])], [out(3, 2, 3)], "SegmentSum"),
    ("SEGMENT_SUM", [i(5, 3), c([0, 1, 1, 1, 2])], [out(3, 3, kind="i4")], "SegmentSum"),
    *[
        (f"UNSORTED_SEGMENT_{n}", [x, ids, c(4)], [out(4, 3, kind=x.kind)], f"UnsortedSegment{n.title()}")
        for n in ("SUM", "PROD", "MAX", "MIN")
        for x in (f(5, 3), i(5, 3))
        for ids in (c([3, 0, 3, -1, 1]), at(3, 0, 3, -1, 1))
    ],
    ("SCATTER_ND", [c([[2, 1], [0, 3], [2, 1]]), f(3, 2), c([3, 4, 2])], [out(3, 4, 2)], "ScatterNd"),
    ("SCATTER_ND", [at([4], [0], [4]), i(3, 2), c([5, 2])], [out(5, 2, kind="i4")], "ScatterNd"),
    (
        "SPARSE_TO_DENSE",
        [at([0, 2], [3, 1]), c([4, 3]), f(2), c(0.5, "f4")],
        [out(4, 3)],
        "SparseToDense",
    ),
    ("SPARSE_TO_DENSE", [at(1, 3), c([5]), i(), c(9)], [out(5, kind="i4")], "SparseToDense"),
    *[
        ("DYNAMIC_UPDATE_SLICE", [x(4, 5, 3), x(2, 5, 1), at(*starts)], [out(4, 5, 3, kind=x(1).kind)],
         "DynamicUpdateSlice")
        for x in (f, i, b)
        for starts in ([1, 0, 2], [3, 4, -1], [-5, 0, 1])
    ],
]  # fmt: skip

TRANSFORMS: list[Case] = [
    *[
        ("CONV_3D", [f(2, 5, 3, 6, 2), const(f(depth, 2, 3, 2, 3)), last], [out(2, *size, 3)], "Conv3D", DEEP | fields)
        for depth, last, size, fields in (
            (2, None, (5, 3, 6), {"padding": 0}),
            (2, const(f(3)), (4, 2, 4), {"padding": 1}),
            (3, const(f(3)), (2, 3, 3), {"padding": 0, "strideD": 3, "strideW": 2, "fusedActivationFunction": 1}),
            (2, const(f(3)), (3, 2, 4), {"padding": 1, "dilationDFactor": 2}),
            (3, const(f(3)), (5, 3, 6), {"padding": 0, "dilationDFactor": 2, "dilationHFactor": 2, "dilationWFactor": 3}),
            (2, const(f(3)), (2, 1, 4), {"padding": 1, "strideD": 2, "strideH": 2}),
        )
    ],
    (
        "CONV_3D_TRANSPOSE",
        [c([1, 9, 3, 8, 2]), const(f(2, 3, 2, 2, 3)), f(1, 3, 3, 4, 3)],
        [out(1, 9, 3, 8, 2)],
        "Conv3D",
        DEEP | {"strideD": 3, "strideW": 2, "padding": 0},
    ),
    (
        "CONV_3D_TRANSPOSE",
        [c([1, 5, 4, 6, 2]), const(f(3, 2, 3, 2, 1)), f(1, 3, 3, 4, 1)],
        [out(1, 5, 4, 6, 2)],
        "Conv3D",
        DEEP | {"padding": 1},
    ),
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{case[0]}-{n}")
        for n, case in enumerate([*ELEMENTS, *LAYERS, *MOVES, *REDUCTIONS, *TRANSFORMS])
    ],
)
def test_an_operator_gives_what_litert_gives(case):
    check(case)


@pytest.mark.parametrize("rows", [1, 3, 4, 6])
@pytest.mark.parametrize("columns", [5, 4, 8])
def test_a_transform_cuts_or_fills_its_input(rows, columns):
    given = np.random.default_rng(5).normal(size=(2, 4, 5)).astype("f4")
    w = Writer()
    half = columns // 2 + 1
    x, lengths, z = w.tensor(given.shape), w.tensor([2], "i4", [rows, columns]), w.tensor([2, rows, half], "c8")
    parts = [w.tensor([2, rows, half]) for _ in range(2)]
    w.operator("RFFT2D", [x, lengths], [z], "Rfft2d")
    for name, y in zip(("REAL", "IMAG"), parts, strict=True):
        w.operator(name, [z], [y])
    w.ends([x], parts)
    expected = np.fft.rfft2(given, (rows, columns))
    real, imaginary = run(w.bytes(), [given])
    np.testing.assert_allclose(real + 1j * imaginary, expected, atol=1e-5)


FILTER, TABLE = f(4, 3, 2, 3).data, RANDOM.integers(-127, 128, (4, 3, 2, 3)).astype("i1")


@pytest.mark.parametrize(
    ("x", "w", "zeros", "y"),
    [
        (f(2, 5, 7, 3), const(X(FILTER)), const(X(np.zeros(4, "f4"))), out(2, 5, 7, 4)),
        *[
            (
                q(2, 5, 7, 3),
                X(TABLE, "i1", scale, 0, True),
                X(np.zeros(4, "i4"), "i4", 0.05 * np.float32(scale), 0, True),
                out(2, 5, 7, 4, kind="i1", scale=0.1),
            )
            for scale in (0.01, [0.01, 0.02, 0.005, 0.03])
        ],
    ],
    ids=["floats", "one scale", "a scale for each channel"],
)
def test_no_bias_is_a_bias_of_zeros(x, w, zeros, y):
    with_zeros, fed = file_of("CONV_2D", [x, w, zeros], [y], "Conv2D", **UNIT)
    expected = run(with_zeros, fed)[0]
    assert np.unique(expected).size > 9
    for given in ([x, w, None], [x, w]):
        content, fed = file_of("CONV_2D", given, [y], "Conv2D", **UNIT)
        assert (run(content, fed)[0] == expected).all()


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (("ADD_N", [f(2, 3)], [out(2, 3)]), lambda x: [x]),
        (("BITWISE_XOR", [b(3, 5), b(5)], [out(3, 5, kind="b1")]), lambda x, y: [x ^ y]),
        (
            ("PACK", [b(3, 5), b(3, 5)], [out(2, 3, 5, kind="b1")], "Pack", {"valuesCount": 2}),
            lambda x, y: [np.stack([x, y])],
        ),
        (
            ("SPLIT", [c(1), b(2, 6)], [out(2, 3, kind="b1")] * 2, "Split", {"numSplits": 2}),
            lambda x: np.split(x, 2, 1),
        ),
    ],
    ids=["ADD_N", "BITWISE_XOR", "PACK", "SPLIT"],
)
def test_what_litert_has_for_fewer_types_is_taken_all_the_same(case, expected):
    content, fed = file_of(*case)
    for actual, right in zip(run(content, fed), expected(*fed), strict=True):
        assert actual.shape == right.shape and (actual == right).all()


def test_what_litert_does_not_fuse_is_the_activation_behind_the_operator():
    for name, options, inputs, expected in (
        ("L2_NORMALIZATION", "L2Norm", [f(2, 5)], lambda x: x / np.sqrt((x**2).sum(-1, keepdims=True))),
        ("CONCATENATION", "Concatenation", [f(2, 3), f(4, 3)], lambda *xs: np.concatenate(xs)),
    ):
        shape = (2, 5) if name == "L2_NORMALIZATION" else (6, 3)
        content, fed = file_of(name, inputs, [out(*shape)], options, fusedActivationFunction=1)
        np.testing.assert_allclose(run(content, fed)[0], np.maximum(expected(*fed), 0), atol=1e-6)


@pytest.mark.parametrize(
    "crops", [[[1, 0], [0, 0]], [[0, 1], [0, 0]], [[0, 0], [1, 0]], [[0, 0], [0, 1]], [[2, 1], [1, 3]]]
)
def test_each_side_of_a_picture_is_cropped_for_itself(crops):
    check(
        (
            "BATCH_TO_SPACE_ND",
            [f(4, 3, 4, 2), c([2, 2]), c(crops)],
            [out(1, 6 - sum(crops[0]), 8 - sum(crops[1]), 2)],
        )
    )


BLOCK = c([2, 2])
OWN: list[tuple[Case, list[str]]] = [
    (("RESHAPE", [f(2, 6), c([3, -1])], [out(3, 4)]), ["RESHAPE"]),
    (("SQUEEZE", [f(1, 3, 1)], [out(1, 3)], "Squeeze", {"squeezeDims": [2]}), ["SQUEEZE"]),
    (("SQUEEZE", [i(1, 3, 1)], [out(1, 3, kind="i4")], "Squeeze", {"squeezeDims": [2]}), ["RESHAPE"]),
    (("EXPAND_DIMS", [f(2, 3), c(-1)], [out(2, 3, 1)]), ["EXPAND_DIMS"]),
    (("TRANSPOSE", [f(2, 3, 5, 4), c([3, 0, 2, 1])], [out(4, 2, 5, 3)]), ["TRANSPOSE"]),
    (("TRANSPOSE", [f(2, 1, 3, 1, 5), c([4, 1, 2, 3, 0])], [out(5, 1, 3, 1, 2)]), ["RESHAPE", "TRANSPOSE", "RESHAPE"]),
    (("CONCATENATION", [f(2, 3), f(2, 1)], [out(2, 4)], "Concatenation", {"axis": -1}), ["CONCATENATION"]),
    (("PACK", [f(2, 3), f(2, 3)], [out(2, 2, 3)], "Pack", {"valuesCount": 2, "axis": 1}), ["PACK"]),
    (("UNPACK", [f(2, 3)], [out(2)] * 3, "Unpack", {"num": 3, "axis": 1}), ["SPLIT", *["SQUEEZE"] * 3]),
    (("SPLIT", [c(-1), f(2, 6)], [out(2, 2)] * 3, "Split", {"numSplits": 3}), ["SPLIT"]),
    (("SPLIT_V", [f(2, 6), c([2, -1, 2]), c(1)], [out(2, 2)] * 3, "SplitV", {"numSplits": 3}), ["SPLIT"]),
    (("SPLIT_V", [f(2, 6), c([1, 3, 2]), c(1)], [out(2, n) for n in (1, 3, 2)], "SplitV", {"numSplits": 3}),
     ["SLICE"] * 3),
    (("SLICE", [f(3, 4), c([1, 0]), c([2, -1])], [out(2, 4)]), ["SLICE"]),
    (("STRIDED_SLICE", [f(4, 5), c([1, 0]), c([3, 5]), c([1, 2])], [out(2, 3)], "StridedSlice"), ["STRIDED_SLICE"]),
    (("STRIDED_SLICE", [f(4, 5), c([1, 0]), c([2, 5]), c([1, 2])], [out(3)], "StridedSlice", {"shrinkAxisMask": 1}),
     ["STRIDED_SLICE"]),
    (("STRIDED_SLICE", [f(4), c([0, 1]), c([0, 3]), c([1, 1])], [out(1, 2)], "StridedSlice", {"newAxisMask": 1}),
     ["STRIDED_SLICE", "EXPAND_DIMS"]),
    (("GATHER", [f(3, 4), c([1, 0, 1])], [out(3, 3)], "Gather", {"axis": 1}), ["GATHER"]),
    (("TILE", [f(2, 3), c([2, 1])], [out(4, 3)]), ["TILE"]),
    (("REVERSE_V2", [f(2, 3), c([0, 1])], [out(2, 3)], "ReverseV2"), ["REVERSE", "REVERSE"]),
    (("PAD", [f(2, 3), c([[1, 0], [0, 2]])], [out(3, 5)]), ["PAD"]),
    (("PADV2", [f(2, 3), c([[1, 0], [0, 2]]), c(1.5, "f4")], [out(3, 5)]), ["PAD_V2"]),
    (("MIRROR_PAD", [f(2, 3), c([[1, 0], [0, 2]])], [out(3, 5)], "MirrorPad", {"mode": 1}), ["MIRROR_PAD"]),
    (("SPACE_TO_DEPTH", [f(1, 4, 6, 3)], [out(1, 2, 3, 12)], "SpaceToDepth", {"blockSize": 2}), ["SPACE_TO_DEPTH"]),
    (("DEPTH_TO_SPACE", [f(1, 2, 3, 12)], [out(1, 4, 6, 3)], "DepthToSpace", {"blockSize": 2}), ["DEPTH_TO_SPACE"]),
    (("SPACE_TO_BATCH_ND", [f(1, 4, 6, 3), BLOCK, c([[0, 0], [0, 0]])], [out(4, 2, 3, 3)]), ["SPACE_TO_BATCH_ND"]),
    (("BATCH_TO_SPACE_ND", [f(4, 2, 3, 3), BLOCK, c([[0, 0], [0, 0]])], [out(1, 4, 6, 3)]), ["BATCH_TO_SPACE_ND"]),
    (("BATCH_TO_SPACE_ND", [f(4, 2, 3, 3), BLOCK, c([[1, 0], [0, 2]])], [out(1, 3, 4, 3)]),
     ["BATCH_TO_SPACE_ND", "SLICE"]),
    (("BATCH_MATMUL", [f(2, 3, 4), f(2, 4, 5)], [out(2, 3, 5)], "BatchMatMul"), ["BATCH_MATMUL"]),
    (("BATCH_MATMUL", [f(2, 3, 4), f(1, 4, 5)], [out(2, 3, 5)], "BatchMatMul"),
     ["RESHAPE", "RESHAPE", "BATCH_MATMUL", "RESHAPE"]),
    (("FULLY_CONNECTED", [f(2, 3), const(f(4, 3)), None], [out(2, 4)], "FullyConnected"), ["FULLY_CONNECTED"]),
    (("SOFTMAX", [f(2, 3, 4, 5)], [out(2, 3, 4, 5)], "Softmax", {"beta": 1.0}), ["SOFTMAX"]),
    (("SUM", [f(2, 3, 4, 5), c([1])], [out(2, 4, 5)], "Reducer"), ["REDUCE_SUM"]),
    (("SELECT_V2", [b(2, 3), f(2, 3), f(2, 3)], [out(2, 3)]), ["SELECT"]),
    (("BROADCAST_TO", [f(3), c([2, 3])], [out(2, 3)], "BroadcastTo"), ["RESHAPE", "TILE"]),
    (("CONV_2D", [f(1, 4, 5, 4), const(f(6, 2, 2, 2)), const(f(6))], [out(1, 4, 5, 6)], "Conv2D", UNIT),
     ["GROUPED_CONV_2D"]),
]  # fmt: skip


@pytest.mark.parametrize(("case", "names"), [pytest.param(*each, id=f"{each[0][0]}-{n}") for n, each in enumerate(OWN)])
def test_what_nnapi_has_an_operation_for_is_that_operation(case, names):
    """No way round it, though one would give the same numbers."""
    assert [o.op.name for o in nnhal.validate(load(file_of(*case)[0])).subgraphs[0].operations] == names
