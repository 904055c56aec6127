"""Layers give what LiteRT's own kernels give on the same file."""

import pytest

from tests.frontends.cases import Case, begin, bias, c, channels, check, const, f, i, out, q

begin(__name__)

POOL = {"filterWidth": 2, "filterHeight": 3, "strideW": 2, "strideH": 1}
UNIT = {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}
WINDOW = UNIT | {"strideW": 2}
NORM = {"radius": 2, "bias": 1.0, "alpha": 0.5, "beta": 0.75}
GRIDS = {}, {"alignCorners": True}, {"halfPixelCenters": True}

LAYERS: list[Case] = [
    (
        "CONV_2D",
        [f(1, 5, 6, 3), const(f(4, 2, 3, 3)), const(f(4))],
        [out(1, 5, 3, 4)],
        "Conv2D",
        {**WINDOW, "padding": 0},
    ),
    (
        "CONV_2D",
        [f(2, 5, 6, 3), const(f(4, 2, 3, 3)), const(f(4))],
        [out(2, 4, 2, 4)],
        "Conv2D",
        {**WINDOW, "padding": 1, "fusedActivationFunction": 3},
    ),
    (
        "CONV_2D",
        [f(1, 7, 7, 2), const(f(3, 2, 3, 2)), const(f(3))],
        [out(1, 7, 7, 3)],
        "Conv2D",
        {"strideW": 1, "strideH": 1, "dilationWFactor": 2, "dilationHFactor": 3},
    ),
    ("CONV_2D", [f(1, 4, 4, 4), const(f(6, 2, 2, 2)), const(f(6))], [out(1, 4, 4, 6)], "Conv2D", UNIT),
    (
        "CONV_2D",
        [q(1, 4, 4, 3, scale=0.05), channels((5, 2, 2, 3), 0), bias(5, [0.0005] * 5)],
        [out(1, 4, 4, 5, kind="i1", scale=0.1)],
        "Conv2D",
        UNIT,
    ),
    (
        "CONV_2D",
        [
            q(1, 4, 4, 3, scale=0.05, zero=120, kind="u1"),
            q(5, 2, 2, 3, scale=0.01, zero=110, kind="u1", constant=True),
            bias(5, 0.05 * 0.01),
        ],
        [out(1, 4, 4, 5, kind="u1", scale=0.1, zero=128)],
        "Conv2D",
        UNIT,
    ),
    (
        "DEPTHWISE_CONV_2D",
        [f(1, 5, 6, 3), const(f(1, 2, 3, 6)), const(f(6))],
        [out(1, 5, 3, 6)],
        "DepthwiseConv2D",
        {**WINDOW, "depthMultiplier": 2},
    ),
    (
        "DEPTHWISE_CONV_2D",
        [q(1, 5, 5, 4, scale=0.05), channels((1, 3, 3, 4), 3), bias(4, [0.0005] * 4)],
        [out(1, 5, 5, 4, kind="i1", scale=0.1)],
        "DepthwiseConv2D",
        UNIT | {"depthMultiplier": 1},
    ),
    (
        "TRANSPOSE_CONV",
        [c([1, 6, 6, 2]), const(f(2, 3, 3, 3)), f(1, 3, 3, 3), const(f(2))],
        [out(1, 6, 6, 2)],
        "TransposeConv",
        {"strideW": 2, "strideH": 2, "padding": 0},
    ),
    (
        "TRANSPOSE_CONV",
        [c([1, 7, 7, 2]), const(f(2, 3, 3, 3)), f(1, 3, 3, 3)],
        [out(1, 7, 7, 2)],
        "TransposeConv",
        {"strideW": 2, "strideH": 2, "padding": 1},
    ),
    (
        "FULLY_CONNECTED",
        [f(2, 3), const(f(4, 3)), const(f(4))],
        [out(2, 4)],
        "FullyConnected",
        {"fusedActivationFunction": 1},
    ),
    ("FULLY_CONNECTED", [f(2, 5, 3), const(f(4, 3)), None], [out(2, 5, 4)], "FullyConnected", {"keepNumDims": True}),
    (
        "FULLY_CONNECTED",
        [f(1, 2, 1, 5, 3), const(f(4, 3)), None],
        [out(1, 2, 1, 5, 4)],
        "FullyConnected",
        {"keepNumDims": True},
    ),
    ("FULLY_CONNECTED", [f(2, 2, 3), const(f(4, 6)), None], [out(2, 4)], "FullyConnected"),
    (
        "FULLY_CONNECTED",
        [q(3, 8, scale=0.02), q(4, 8, scale=0.01, zero=0, constant=True), bias(4, 0.02 * 0.01)],
        [out(3, 4, kind="i1", scale=0.05)],
        "FullyConnected",
    ),
    (
        "FULLY_CONNECTED",
        [q(3, 8, scale=0.02), channels((4, 8), 0), bias(4, [0.0002] * 4)],
        [out(3, 4, kind="i1", scale=0.05)],
        "FullyConnected",
    ),
    ("BATCH_MATMUL", [f(2, 3, 4), f(2, 4, 5)], [out(2, 3, 5)], "BatchMatMul"),
    ("BATCH_MATMUL", [f(2, 4, 3), f(2, 5, 4)], [out(2, 3, 5)], "BatchMatMul", {"adjX": True, "adjY": True}),
    ("BATCH_MATMUL", [f(2, 2, 3, 4), const(f(4, 5))], [out(2, 2, 3, 5)], "BatchMatMul"),
    *[
        (f"{n}_POOL_2D", [f(1, 5, 6, 3)], [out(1, 5, 3, 3)], "Pool2D", {**POOL, "padding": 0})
        for n in ("AVERAGE", "MAX", "L2")
    ],
    (
        "AVERAGE_POOL_2D",
        [q(1, 5, 6, 3)],
        [out(1, 3, 3, 3, kind="i1", scale=0.05, zero=3)],
        "Pool2D",
        {**POOL, "padding": 1},
    ),
    ("SOFTMAX", [f(2, 5)], [out(2, 5)], "Softmax", {"beta": 1.0}),
    ("SOFTMAX", [f(1, 2, 2, 2, 5)], [out(1, 2, 2, 2, 5)], "Softmax", {"beta": 0.5}),
    ("SOFTMAX", [q(2, 5)], [out(2, 5, kind="i1", scale=1 / 256, zero=-128)], "Softmax", {"beta": 1.0}),
    ("LOG_SOFTMAX", [f(2, 5)], [out(2, 5)]),
    ("LOG_SOFTMAX", [q(2, 5)], [out(2, 5, kind="i1", scale=16 / 256, zero=127)]),
    ("L2_NORMALIZATION", [f(2, 3, 4, 5)], [out(2, 3, 4, 5)], "L2Norm"),
    ("LOCAL_RESPONSE_NORMALIZATION", [f(1, 2, 2, 6)], [out(1, 2, 2, 6)], "LocalResponseNormalization", NORM),
    *[("RESIZE_BILINEAR", [f(1, 3, 4, 2), c([5, 7])], [out(1, 5, 7, 2)], "ResizeBilinear", o) for o in GRIDS],
    *[
        ("RESIZE_NEAREST_NEIGHBOR", [f(1, 3, 4, 2), c([5, 7])], [out(1, 5, 7, 2)], "ResizeNearestNeighbor", o)
        for o in GRIDS
    ],
    ("EMBEDDING_LOOKUP", [i(3, low=0, high=4), const(f(4, 5))], [out(3, 5)]),
    ("HASHTABLE_LOOKUP", [c([3, 9, 1]), c([1, 3, 5]), const(f(3, 4))], [out(3, 4), out(3, kind="u1")]),
]


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{case[0]}-{n}") for n, case in enumerate(LAYERS)])
def test_an_operator_gives_what_litert_gives(case):
    check(case)
