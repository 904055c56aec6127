"""Files whose operators NNAPI cannot say, or that contradict themselves: the reason names the operator and the rule."""

import re
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.frontends.tflite import load
from tests.frontends.cases import Case, X, b, begin, bias, c, channels, const, f, file_of, i, out, q, refused

begin(__name__)

UNIT = {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}
DEEP = {"strideD": 1, "strideW": 1, "strideH": 1} | dict.fromkeys(
    ("dilationDFactor", "dilationWFactor", "dilationHFactor"), 1
)
BOXES = f(3, 4), f(3)
LIMITS = c(2), c(0.5, "f4"), c(0.1, "f4")
SPARSE: dict[str, Any] = {
    "ids": c([1, 0]),
    "indices": c([[0, 0], [1, 1]]),
    "shape": c([2, 2]),
    "weights": f(2),
    "table": f(3, 4),
}


def wide(*shape: int, kind: str = "f4") -> X:
    """An input of which only the shape counts: it takes no room."""
    return X(np.broadcast_to(np.zeros((), kind), shape), kind)


def none(*shape: int, kind: str = "f4") -> X:
    """A constant without elements: of an input 0 would be open."""
    return X(np.zeros(shape, kind), kind, constant=True)


def embeddings(combiner: int = 0, **more: X) -> Case:
    given = SPARSE | more
    return "EMBEDDING_LOOKUP_SPARSE", list(given.values()), [out(2, 4)], "EmbeddingLookupSparse", {"combiner": combiner}


def window(x: X, first: X, function: int = 1, shape: Any = (2,), steps: Any = (1,), apart: Any = (1,)) -> Case:
    lists = [c(each, "i8") for each in (shape, steps, apart)]
    return "REDUCE_WINDOW", [x, first, *lists], [out(3, kind=x.kind)], "ReduceWindow", {"reduceFunction": function}


def product(x: X, w: X, b: X | None = None, y: X | None = None, **fields: Any) -> Case:
    return "FULLY_CONNECTED", [x, w, b], [y or out(2, 4)], "FullyConnected", fields


def convolution(x: X, w: X, **fields: Any) -> Case:
    return "CONV_2D", [x, w, const(f(w.data.shape[0]))], [out(1, 4, 4, 2)], "Conv2D", UNIT | fields


def deep(x: X, w: X, **fields: Any) -> Case:
    return "CONV_3D", [x, w], [out(1, 3, 3, 3, 2)], "Conv3D", DEEP | fields


def deep_back(shape: Any, w: X, x: X, **fields: Any) -> Case:
    return "CONV_3D_TRANSPOSE", [c(shape), w, x], [out(1, 3, 3, 3, 2)], "Conv3D", DEEP | fields


def strided(x: X, *rows: X, **fields: Any) -> Case:
    return "STRIDED_SLICE", [x, *rows], [out(1)], "StridedSlice", fields


REFUSED: dict[str, tuple[Case, str]] = {
    "an activation of integers": (
        ("ADD", [i(2), i(2)], [out(2, kind="i4")], "Add", {"fusedActivationFunction": 4}),
        "activation is TANH, which integers do not have",
    ),
    "an activation that NNAPI lacks": (
        ("ADD", [f(2), f(2)], [out(2)], "Add", {"fusedActivationFunction": 5}),
        "activation is SIGN_BIT, which NNAPI does not have",
    ),
    "an activation that there is not": (
        ("ADD", [f(2), f(2)], [out(2)], "Add", {"fusedActivationFunction": 6}),
        "activation is 6, must be one of 0, 1, 2, 3, 4, 5",
    ),
    "sparse, computed": (("DENSIFY", [f(2)], [out(2)], "Densify"), "of a tensor that is computed at execution"),
    "a dimension that is not 1, repeated": (
        ("BROADCAST_TO", [f(2, 3), c([2, 4])], [out(2, 4)], "BroadcastTo"),
        "shape is [2, 4], must be one that [2, 3] broadcasts to",
    ),
    "fewer dimensions": (
        ("BROADCAST_TO", [f(2, 3), c([3])], [out(3)], "BroadcastTo"),
        "shape is [3], must be one that [2, 3] broadcasts to",
    ),
    **{
        f"{depth} classes": (
            ("ONE_HOT", [i(2), c(depth), c(1.0, "f4"), c(0.0, "f4")], [out(2, 1)], "OneHot", {"axis": -1}),
            f"depth is {depth}, must be 1 to 1048576",
        )
        for depth in (-1, 0, 1048577)
    },
    "classes along a dimension that is not there": (
        ("ONE_HOT", [i(2), c(3), c(1.0, "f4"), c(0.0, "f4")], [out(2, 3)], "OneHot", {"axis": 2}),
        "axis is 2, must be from -2 to 1",
    ),
    "bits of int8 with a scale": (
        ("BITWISE_XOR", [q(3), q(3)], [out(3, kind="i1", scale=0.05, zero=3)], "BitwiseXor"),
        "of int8 requires a scale of 1",
    ),
    "bits of uint8 shifted": (
        ("STABLEHLO_SHIFT_LEFT", [X(np.zeros(3, "u1"), "u1")] * 2, [out(3, kind="u1")], "StablehloShiftLeft"),
        "of UINT8 has no operation on bits in NNAPI, must be INT32",
    ),
    "boundaries beyond 32 bits": (
        ("BUCKETIZE", [i(3)], [out(3, kind="i4")], "Bucketize", {"boundaries": [2.0**31]}),
        "has boundaries beyond 32 bits",
    ),
    "buckets of int8": (
        ("BUCKETIZE", [q(3)], [out(3, kind="i4")], "Bucketize", {"boundaries": [1.0]}),
        "of INT8 is not in TFLite",
    ),
    "a sign of truths": (
        ("SIGN", [X(np.zeros(3, "?"), "b1")], [out(3, kind="b1")], "Sign"),
        "fills a tensor of TENSOR_BOOL8",
    ),
    "a product of vectors": (
        ("BATCH_MATMUL", [f(3), f(2, 3, 4)], [out(2, 4)], "BatchMatMul"),
        "has ranks 1 and 3, must have a matrix",
    ),
    "no boundaries": (
        ("BUCKETIZE", [f(3)], [out(3, kind="i4")], "Bucketize", {"boundaries": []}),
        "has no elements, or no boundaries",
    ),
    "nothing for buckets": (
        ("BUCKETIZE", [none(0)], [out(0, kind="i4")], "Bucketize", {"boundaries": [1.0]}),
        "has no elements, or no boundaries",
    ),
    "a padding that there is not": (
        convolution(f(1, 4, 4, 3), const(f(2, 2, 2, 3)), padding=2),
        "padding is 2, must be 0 (SAME) or 1 (VALID)",
    ),
    "groups with gaps": (
        convolution(f(1, 4, 4, 4), const(f(2, 2, 2, 2)), dilationWFactor=2),
        "in groups has no dilation in NNAPI",
    ),
    "a filter of three dimensions": (
        convolution(f(1, 4, 4, 3), const(f(2, 2, 3))),
        "filter has shape [2, 2, 3], must have four dimensions",
    ),
    "a million units without a bias": (
        product(f(1, 1), wide(1048577, 1)),
        "has 1048577 units without a bias, must have at most 1048576",
    ),
    "a bias of another scale": (
        product(
            q(2, 3, scale=0.02),
            q(4, 3, scale=0.01, zero=0, constant=True),
            bias(4, 0.0013),
            out(2, 4, kind="i1", scale=0.05),
        ),
        "the bias has scale 0.0013, must be 0.0002, that of the products",
    ),
    "shuffled weights": (
        product(f(2, 3), const(f(4, 3)), None, weightsFormat=1),
        "weights are shuffled, which NNAPI does not support",
    ),
    "weights of three dimensions": (
        product(f(2, 3), const(f(4, 3, 1))),
        "weights have shape [4, 3, 1], must have two dimensions",
    ),
    "weights of nothing": (product(f(2, 1, 1, 1, 3), none(4, 0)), "weights have no elements"),
    "a kept dimension under TANH": (
        product(f(2, 2, 3), const(f(4, 3)), None, out(2, 2, 4), keepNumDims=True, fusedActivationFunction=4),
        "has an activation that NNAPI does not fuse",
    ),
    "scales of inputs": (
        product(
            q(2, 3, scale=0.02), channels((4, 3), 1), bias(4, [0.0002] * 4), out(2, 4, kind="i1", scale=0.05)
        ),
        "has scales along another dimension than the units",
    ),
    "a size of three": (
        ("RESIZE_BILINEAR", [f(1, 2, 2, 1), c([3, 3, 1])], [out(1, 3, 3, 1)], "ResizeBilinear"),
        "size is [3, 3, 1], must be height and width",
    ),
    "a size that is computed": (
        ("RESIZE_BILINEAR", [f(1, 2, 2, 1), i(2)], [out(1, 3, 3, 1)], "ResizeBilinear"),
        "size is computed at execution, must be constant for NNAPI",
    ),
    **{
        f"a projection of type {kind}": (
            ("LSH_PROJECTION", [f(3, 2), i(2)], [out(3, kind="i4")], "LSHProjection", {"type": kind}),
            f"type is {kind}, must be 1 (SPARSE) or 2 (DENSE)",
        )
        for kind in (0, 3)
    },
    "a squeezed dimension of 2": (
        ("SQUEEZE", [f(2, 1)], [out(1)], "Squeeze", {"squeezeDims": [0]}),
        "dimensions [0] of [2, 1] must be 1",
    ),
    "a dimension twice": (
        ("TRANSPOSE", [f(1, 2, 1, 2, 1), c([0, 1, 2, 3, 3])], [out(1, 2, 1, 2, 1)]),
        "permutation is [0, 1, 2, 3, 3], must be one of 5 dimensions",
    ),
    "five dimensions that do not fit": (
        ("CONCATENATION", [f(1, 2, 1, 2, 1), f(1, 3, 1, 2, 1)], [out(2, 2, 1, 2, 1)], "Concatenation", {"axis": 0}),
        "shapes [1, 2, 1, 2, 1], [1, 3, 1, 2, 1] must differ along axis 0 only",
    ),
    "another number of rows": (
        ("UNPACK", [f(3, 2)], [out(2)] * 2, "Unpack", {"num": 2}),
        "dimension 0 is 3, must be 2, the number of outputs",
    ),
    "another number of sizes": (
        ("SPLIT_V", [f(4), c([1, 1, 2]), c(0)], [out(2)] * 2, "SplitV", {"numSplits": 2}),
        "has 3 sizes, must have 2, one for each output",
    ),
    "begin and end of two lengths": (
        strided(f(2, 3), c([0, 0]), c([1]), c([1, 1])),
        "begin, end and strides are [[0, 0], [1], [1, 1]], must have the same length",
    ),
    "more begins than dimensions": (
        strided(f(2), c([0, 0]), c([1, 1]), c([1, 1])),
        "begin has 2 elements, must have at most 1, one for each dimension",
    ),
    "two ellipses": (
        strided(f(2, 3), c([0, 0]), c([1, 1]), c([1, 1]), ellipsisMask=3),
        "has more than one ellipsis",
    ),
    **{
        f"{field} with a computed begin": (
            strided(f(2, 3), i(2), c([1, 1]), c([1, 1]), **{field: 1}),
            "begin, end or strides are computed at execution, must be constant",
        )
        for field in ("ellipsisMask", "newAxisMask", "offset")
    },
    "an axis too great": (
        ("REVERSE_V2", [f(2), c([1])], [out(2)], "ReverseV2"),
        "axis is 1, must be from -1 to 0",
    ),
    "an axis too small": (
        ("REVERSE_V2", [f(2), c([-2])], [out(2)], "ReverseV2"),
        "axis is -2, must be from -1 to 0",
    ),
    "an axis of a scalar": (
        ("UNPACK", [f()], [out()], "Unpack", {"num": 1}),
        "axis is 0 for a tensor without dimensions, must not be set",
    ),
    "padding of another scale": (
        ("PADV2", [q(2), c([[1, 0]]), X(np.array(9, "i1"), "i1", 0.1, 3, True)], [out(3, kind="i1", scale=0.05, zero=3)]),
        "the value has another scale than the input, must have the same",
    ),
    "crops below 0": (
        ("BATCH_TO_SPACE_ND", [f(4, 2, 2, 1), c([2, 2]), c([[-1, 0], [0, 0]])], [out(1, 5, 4, 1)]),
        "crops is [-1, 0, 0, 0], must be two for height and two for width",
    ),
    "batches below those there are": (
        ("GATHER", [f(2, 3), i(2, low=0, high=1)], [out(2)], "Gather", {"axis": 1, "batchDims": -2}),
        "batch_dims is -2, must be at least -1",
    ),
    "batches of two sizes": (
        ("GATHER", [f(2, 3), i(3, 1, low=0, high=1)], [out(2, 1)], "Gather", {"axis": 1, "batchDims": 1}),
        "batches are (2,) and (3,), must be equal",
    ),
    "batches behind the axis": (
        ("GATHER", [f(2, 3), i(2, 1, low=0, high=1)], [out(2, 1)], "Gather", {"axis": 0, "batchDims": 1}),
        "axis is 0, must be after the 1 batch dimensions",
    ),
    **{
        f"indices of {n} dimensions": (
            ("GATHER_ND", [f(2, 3), X(np.zeros((1, n), "i4"), "i4", constant=True)], [out(1)], "GatherNd"),
            f"has indices of {n} dimensions, must have 1 to 2",
        )
        for n in (3,)
    },
    "indices to very many places": (
        ("GATHER_ND", [wide(2, 16777217), i(1, 2)], [out(1)], "GatherNd"),
        "has indices to 16777217 places, must have at most 16777216",
    ),
    "very many indices in batches": (
        ("GATHER", [wide(2, 5), wide(2, 524289, kind="i4")], [out(2, 1)], "Gather", {"axis": 1, "batchDims": 1}),
        "has 1048578 elements to move individually, must have at most 1048576",
    ),
    "steps that are batches": (
        ("REVERSE_SEQUENCE", [f(2, 2), i(2)], [out(2, 2)], "ReverseSequence", {"seqDim": 1, "batchDim": -1}),
        "batch and sequence are both dimension 1",
    ),
    "the mean of very many integers": (
        ("MEAN", [wide(46341, kind="i4"), c([0])], [out(kind="i4")], "Reducer"),
        "averages 46341 integers, must average at most 46340",
    ),
    "any of integers": (
        ("REDUCE_ANY", [i(3, 2), c([0])], [out(2, kind="i4")], "Reducer"),
        "of INT32 is not in TFLite",
    ),
    "running sums of int8": (
        ("CUMSUM", [q(3), c(0)], [out(3, kind="i1", scale=0.05, zero=3)], "Cumsum"),
        "of INT8 is not in TFLite",
    ),
    "running sums of nothing": (("CUMSUM", [none(3, 0), c(0)], [out(3, 0)], "Cumsum"), "has no elements"),
    **{
        f"windows under function {n}": (
            window(f(4), c(0, "f4"), n),
            "reduces with a function that NNAPI has no reduction for",
        )
        for n in (0, 7)
    },
    "windows of int8": (
        ("REDUCE_WINDOW", [q(4), *window(f(4), X(np.array(0, "i1"), "i1", 0.05, 3, True))[1][1:]],
         [out(3, kind="i1", scale=0.05, zero=3)], "ReduceWindow", {"reduceFunction": 1}),
        "of INT8 sums stored integers",
    ),
    "windows of truths summed up": (window(b(4), c(False, "b1")), "of BOOL has a reduction of another type"),
    "any of windows of numbers": (window(f(4), c(0, "f4"), 6), "of FLOAT32 has a reduction of another type"),
    "a window that fits in one dimension alone": (
        window(f(4, 4), c(0, "f4"), 1, (2, 5), (1, 1), (1, 1)), "has a window that does not fit"
    ),
    "a window that does not fit": (window(f(4), c(0, "f4"), 1, (3,), (1,), (2,)), "has a window that does not fit"),
    "a step of 0": (window(f(4), c(0, "f4"), 1, (2,), (0,)), "must be 1 positive numbers each"),
    "a window of two dimensions": (window(f(4), c(0, "f4"), 1, (2, 1)), "must be 1 positive numbers each"),
    "no segments": (
        ("UNSORTED_SEGMENT_SUM", [f(3), c([0, 0, 0]), c(0)], [out(0)], "UnsortedSegmentSum"),
        "num_segments is 0, must be at least 1",
    ),
    "segments of int8": (
        ("UNSORTED_SEGMENT_SUM", [q(3), c([0, 0, 0]), c(1)], [out(1, kind="i1", scale=0.05, zero=3)],
         "UnsortedSegmentSum"),
        "of TENSOR_QUANT8_ASYMM_SIGNED uses sums, which NNAPI supports for float32 and int32",
    ),
    "segments of another shape": (
        ("UNSORTED_SEGMENT_SUM", [f(3), c([0, 0]), c(1)], [out(1)], "UnsortedSegmentSum"),
        "segment_ids must have the shape of the first dimensions",
    ),
    "a number of segments below 0": (
        ("UNSORTED_SEGMENT_MAX", [f(4, 2), c([0, 1, 2, 3]), c(-5)], [out(1, 2)], "UnsortedSegmentMax"),
        "num_segments is -5, must be at least 1",
    ),
    "a segment below 0": (
        ("SEGMENT_SUM", [f(3), c([-1, 0, 0])], [out(1)], "SegmentSum"),
        "segment_ids is [-1, 0, 0], must not be negative",
    ),
    "segments of nothing": (
        ("UNSORTED_SEGMENT_SUM", [none(3, 0), c([0, 0, 0]), c(1)], [out(1, 0)], "UnsortedSegmentSum"),
        "combines 3 rows of 0 elements to 1, must have some of each",
    ),
    "very many segments": (
        ("UNSORTED_SEGMENT_SUM", [f(1, 2), c([0]), c((1 << 23) + 1)], [out(1, 2)], "UnsortedSegmentSum"),
        "needs 16777218 elements to select from, must need at most 16777216",
    ),
    "many segments of many rows": (
        ("UNSORTED_SEGMENT_SUM", [f(2, 1), i(2), c((1 << 23) + 1)], [out(1, 1)], "UnsortedSegmentSum"),
        "needs 16777218 elements to select from, must need at most 16777216",
    ),
    **{
        f"places of {n} dimensions": (
            ("SCATTER_ND", [X(np.zeros((1, n), "i4"), "i4", constant=True), f(1), c([2, 3])], [out(2, 3)], "ScatterNd"),
            f"has indices of {n} dimensions, must have 1 to 2",
        )
        for n in (0, 3)
    },
    "an update that does not fit": (
        ("DYNAMIC_UPDATE_SLICE", [f(2, 3), f(2, 4), c([0, 0])], [out(2, 3)], "DynamicUpdateSlice"),
        "the update has shape [2, 4], must fit into [2, 3]",
    ),
    "an update of nothing": (
        ("DYNAMIC_UPDATE_SLICE", [f(2, 3), none(2, 0), c([0, 0])], [out(2, 3)], "DynamicUpdateSlice"),
        "the update has shape [2, 0], must fit into [2, 3]",
    ),
    "an update of fewer dimensions": (
        ("DYNAMIC_UPDATE_SLICE", [f(2, 3), f(2), c([0, 0])], [out(2, 3)], "DynamicUpdateSlice"),
        "the update has shape [2], must fit into [2, 3]",
    ),
    "an update along a long dimension": (
        ("DYNAMIC_UPDATE_SLICE", [wide((1 << 20) + 1), f(2), c([0])], [out(2)], "DynamicUpdateSlice"),
        "has 1048577 elements to move individually, must have at most 1048576",
    ),
    "embeddings combined in a fourth way": (embeddings(3), "combiner is 3, must be 0 (SUM), 1 (MEAN) or 2 (SQRTN)"),
    "embeddings of integers": (embeddings(table=i(3, 4)), "of INT32 is not in TFLite"),
    "embeddings of one dimension": (embeddings(shape=c([2])), "dense_shape has 1 dimensions, must have 2 to 8"),
    "embeddings of nine dimensions": (
        embeddings(shape=c([1] * 9)),
        "dense_shape has 9 dimensions, must have 2 to 8",
    ),
    "embeddings of no rows": (embeddings(shape=c([0, 2])), "needs 0 elements to select from"),
    "embeddings of very many rows": (embeddings(shape=c([16777217, 2])), "needs 16777217 elements to select from"),
    "embeddings by triples": (
        embeddings(indices=c([[0, 0, 0], [1, 1, 1]])),
        "indices have shape [2, 3], must have 2 numbers in each row",
    ),
    "embeddings of an empty row": (embeddings(shape=c([2, 0])), "must have 2 numbers in each row"),
    "embeddings outside": (embeddings(indices=c([[0, 0], [2, 1]])), "indices reach outside of [2, 2]"),
    "embeddings before the first": (embeddings(indices=c([[0, 0], [1, -1]])), "indices reach outside of [2, 2]"),
    "embeddings in disorder": (embeddings(indices=c([[1, 0], [0, 1]])), "indices are not sorted"),
    "embeddings of fewer numbers": (embeddings(ids=c([1])), "has 1 ids and 2 weights, must have 2, like the indices"),
    "embeddings of fewer weights": (embeddings(weights=f(1)), "has 2 ids and 1 weights, must have 2, like the indices"),
    **{
        f"a transform of {lengths}": (
            ("RFFT2D", [f(2, 4), c(lengths)], [out(2, 3, kind="c8")], "Rfft2d"),
            f"fft_length is {lengths}, must be two sizes",
        )
        for lengths in ([4], [2, 4, 1], [0, 4], [2, 0])
    },
    "a transform of a row": (
        ("RFFT2D", [f(4), c([1, 4])], [out(1, 3, kind="c8")], "Rfft2d"),
        "the input has shape [4], must have rows and columns",
    ),
    "a transform of nothing": (
        ("RFFT2D", [none(0, 4), c([1, 4])], [out(1, 3, kind="c8")], "Rfft2d"),
        "the input has shape [0, 4], must have rows and columns",
    ),
    "a transform of long rows": (
        ("RFFT2D", [f(1, 4), c([1, 2896])], [out(1, 1449, kind="c8")], "Rfft2d"),
        "has 2896 places, a matrix of 4196304 waves, must have at most 4194304",
    ),
    "a part of what is no transform": (
        ("REAL", [wide(2, kind="c8")], [out(2)]),
        "of COMPLEX64, must come from an RFFT2D: NNAPI has no complex numbers",
    ),
    "pictures without depth": (deep(f(1, 3, 3, 2), const(f(1, 2, 2, 2, 2))), "must have five dimensions"),
    "a filter without depth": (deep(f(1, 3, 3, 3, 2), const(f(1, 2, 2, 2))), "must have five dimensions"),
    "steps of 0 through the depth": (
        deep(f(1, 3, 3, 3, 2), const(f(1, 2, 2, 2, 2)), strideD=0),
        "stride and dilation of the depth are 0 and 1, must be at least 1",
    ),
    "gaps of 0 through the depth": (
        deep(f(1, 3, 3, 3, 2), const(f(1, 2, 2, 2, 2)), dilationDFactor=0),
        "stride and dilation of the depth are 1 and 0, must be at least 1",
    ),
    "a filter deeper than all": (
        deep(f(1, 3, 3, 3, 2), const(f(2, 2, 2, 2, 2)), dilationDFactor=3, padding=1),
        "a filter of depth 4 must fit into 3 planes",
    ),
    "pictures without depth to grow": (
        deep_back([1, 3, 3, 3, 2], const(f(1, 2, 2, 2, 2)), f(3, 3, 3, 2)),
        "must have five dimensions",
    ),
    "a growing filter with gaps": (
        deep_back([1, 3, 3, 3, 2], const(f(1, 2, 2, 2, 2)), f(1, 3, 3, 3, 2), dilationWFactor=2),
        "has dilations (2, 1) of width and height",
    ),
    "a growing filter with gaps down": (
        deep_back([1, 3, 3, 3, 2], const(f(1, 2, 2, 2, 2)), f(1, 3, 3, 3, 2), dilationHFactor=2),
        "has dilations (1, 2) of width and height",
    ),
    "another batch": (
        deep_back([2, 3, 3, 3, 2], const(f(1, 2, 2, 2, 2)), f(1, 3, 3, 3, 2)),
        "output_shape is [2, 3, 3, 3, 2], which does not fit",
    ),
    "four dimensions to grow to": (
        deep_back([1, 3, 3, 2], const(f(1, 2, 2, 2, 2)), f(1, 3, 3, 3, 2)),
        "output_shape is [1, 3, 3, 2], which does not fit",
    ),
    "nothing to grow to": (
        deep_back([1, 0, 3, 3, 2], const(f(1, 2, 2, 2, 2)), f(1, 3, 3, 3, 2)),
        "output_shape is [1, 0, 3, 3, 2], which does not fit",
    ),
    "other channels in": (
        deep_back([1, 3, 3, 3, 2], const(f(1, 2, 2, 2, 3)), f(1, 3, 3, 3, 2)),
        "the filter must have the channels of input and output",
    ),
    "other channels out": (
        deep_back([1, 3, 3, 3, 2], const(f(1, 2, 2, 3, 2)), f(1, 3, 3, 3, 2)),
        "the filter must have the channels of input and output",
    ),
    "growing by steps of 0": (
        deep_back([1, 3, 3, 3, 2], const(f(1, 2, 2, 2, 2)), f(1, 3, 3, 3, 2), strideD=0),
        "has stride 0 and dilation 1, must be at least 1",
    ),
    "growing by gaps of 0": (
        deep_back([1, 3, 3, 3, 2], const(f(1, 2, 2, 2, 2)), f(1, 3, 3, 3, 2), dilationDFactor=0),
        "has stride 1 and dilation 0, must be at least 1",
    ),
    "boxes of three numbers": (
        ("NON_MAX_SUPPRESSION_V4", [f(3, 3), f(3), *LIMITS], [out(2, kind="i4"), out(kind="i4")]),
        "must have boxes, a score for each, and rows",
    ),
    "more boxes than scores": (
        ("NON_MAX_SUPPRESSION_V4", [f(4, 4), f(3), *LIMITS], [out(2, kind="i4"), out(kind="i4")]),
        "must have boxes, a score for each, and rows",
    ),
    "no boxes": (
        ("NON_MAX_SUPPRESSION_V4", [none(0, 4), none(0), *LIMITS], [out(2, kind="i4"), out(kind="i4")]),
        "must have boxes, a score for each, and rows",
    ),
    "no rows for boxes": (
        ("NON_MAX_SUPPRESSION_V4", [*BOXES, c(0), *LIMITS[1:]], [out(0, kind="i4"), out(kind="i4")]),
        "must have boxes, a score for each, and rows",
    ),
    "boxes of integers": (
        ("NON_MAX_SUPPRESSION_V4", [i(3, 4), f(3), *LIMITS], [out(2, kind="i4"), out(kind="i4")]),
        "of other types than FLOAT32 is not in TFLite",
    ),
    "very many boxes": (
        ("NON_MAX_SUPPRESSION_V4", [wide(16777217, 4), wide(16777217), *LIMITS], [out(2, kind="i4"), out(kind="i4")]),
        "has 16777217 boxes, must have at most 16777216",
    ),
    "a threshold below every number": (
        ("NON_MAX_SUPPRESSION_V4", [*BOXES, *LIMITS[:2], c(-3.4028234663852886e38, "f4")],
         [out(2, kind="i4"), out(kind="i4")]),
        "score_threshold is -3.4028234663852886e+38, must be greater than",
    ),
    "a cell without a state": (
        ("RNN", [f(1, 2), f(3, 2), f(3, 3), f(3), f(1, 3)], [out(1, 3)], "RNN"),
        "must be a variable tensor, which holds a state",
    ),
    "a cell under SIGN_BIT": (
        ("RNN", [f(1, 2), f(3, 2), f(3, 3), f(3), f(1, 3)], [out(1, 3)], "RNN", {"fusedActivationFunction": 5}),
        "must be a variable tensor|activation is 5, must be one of 0, 1, 2, 3, 4",
    ),
    "a cell of integers": (
        ("RNN", [i(1, 2), f(3, 2), f(3, 3), f(3), f(1, 3)], [out(1, 3)], "RNN"),
        "of INT32 has no operation in NNAPI, must be FLOAT32",
    ),
    "a full kernel of five inputs": (
        ("LSTM", [f(1, 2), f(1, 3), f(12, 5), f(12), f(1, 3)], [out(1, 3)], "LSTM"),
        "of the full kernel has 5 inputs, must have 20 or more",
    ),
    "a basic kernel of six inputs": (
        ("LSTM", [f(1, 2)] * 6, [out(1, 3)] * 4, "LSTM", {"kernelType": 1}),
        "of the basic kernel has 6 inputs, must have 5",
    ),
    "a basic kernel of one output": (
        ("LSTM", [f(1, 2)] * 5, [out(1, 3)], "LSTM", {"kernelType": 1}),
        "of the basic kernel has 1 outputs, must have 4",
    ),
    "a basic kernel of int8": (
        ("LSTM", [q(1, 2)] * 5, [out(1, 3, kind="i1", scale=0.1)] * 4, "LSTM", {"kernelType": 1}),
        "of INT8 is not in TFLite, must be UINT8 or FLOAT32|has readers of its scratch tensors",
    ),
    "diagonal weights": (
        ("UNIDIRECTIONAL_SEQUENCE_LSTM", [f(1, 1, 2), *[None] * 19], [out(1, 1, 3)], "UnidirectionalSequenceLSTM",
         {"diagonalRecurrentTensors": True}),
        "has diagonal recurrent weights, which NNAPI does not support",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_said_is_refused_with_its_rule(what):
    case, says = REFUSED[what]
    choices = "|".join(map(re.escape, says.split("|")))
    refused(file_of(*case)[0], f"{case[0]} #0: .*({choices})")


def test_a_reason_with_a_long_list_is_cut():
    content, _ = file_of("SEGMENT_SUM", [X(np.zeros((500, 2), "f4"), "f4"), c([-1] * 500)], [out(1, 2)])
    with pytest.raises(nnhal.UnsupportedModel) as caught:
        load(content)
    ((_, _, reason),) = caught.value.refused
    assert reason.startswith("segment_ids is [-1, -1") and reason.endswith(" ...")
    assert len(reason) <= 400
