"""Calls with more channels, rows and terms of sums than kernels have in a tile: layers, pools, operations along an axis.

The values are those of `hard`. Other sizes are small, so that the calls of an operation and type cost little.
"""

import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from nnhal.base.codes import OperandType, Padding
from nnhal.base.errors import InvalidModel
from nnhal.base.operands import Value
from nnhal.conformance.draw import Call, contents
from nnhal.conformance.proving.hard import (
    CHANNELS,
    MAKERS,
    ROWS,
    SCALE,
    Hard,
    Made,
    ModelMaker,
    call_of,
    convolution,
    dense_layer,
    matrix_product,
    pool,
)
from nnhal.ops import OPS
from nnhal.ops.schema import I32, Op, T

BROAD, DEEP = 261, 1039  # outputs or channels, and terms of a sum: beyond tiles of 256 and 1,024, and no multiple of 8
FEW = 5  # channels and terms of a call with many rows or positions
ALONG = frozenset(("input", "axes", "keep_dims", "axis", "beta"))  # arguments of operations along an axis


def wide_calls(operation: str, kind: int, seed: int = 0) -> Iterator[Call]:
    """Yield two or three calls of an operation of `WIDE`, which are wider than the tiles and vectors of kernels."""
    m = ModelMaker(operation, kind, np.random.default_rng([zlib.crc32(operation.encode()), kind, seed, DEEP]))
    for arguments, given, out in WIDE[operation](m):
        with suppress(InvalidModel):  # zero points that the type does not allow
            yield call_of(operation, kind, arguments, given, out, "wide")


def _weights(m: ModelMaker) -> Iterator[tuple[int, int, float]]:
    """Yield zero points and the ratio of scales, as `all_weights`: its first, and those with sums on both sides of 0."""
    yield next(m.all_weights())
    middle, layer = m.zero_points()[m.quantised], m.operation in ("FULLY_CONNECTED", "BATCH_MATMUL")
    yield (middle, middle, 0.0) if layer or not m.quantised else (middle, 0, CHANNELS[0])


def _wide_convolutions(m: ModelMaker) -> Iterator[Made]:
    depthwise, groups = m.operation == "DEPTHWISE_CONV_2D", 2 if m.operation == "GROUPED_CONV_2D" else 1
    grouping = (BROAD, 1, 1) if depthwise else (groups, DEEP, -(-BROAD // groups))
    for weights in m.turns(_weights(m)):
        way = ((3, 3) if depthwise else (1, 1)), 1, Padding.SAME
        yield convolution(m, weights, grouping, way, (ROWS, 2, 2), coarse=m.turn == 0)
    few = (FEW, 1, 1) if depthwise else (groups, FEW, FEW)
    yield convolution(m, next(_weights(m)), few, way, (1, 2, DEEP), coarse=True)


def _wide_layers(m: ModelMaker) -> Iterator[Made]:
    make = matrix_product if m.operation == "BATCH_MATMUL" else dense_layer
    for x, weights, _ in m.turns(_weights(m)):
        yield make(m, (x, weights), BROAD, DEEP, coarse=m.turn == 0)
    x, weights, _ = next(_weights(m))
    yield make(m, (x, weights), FEW, FEW, coarse=True, rows=DEEP)


def _wide_pools(m: ModelMaker) -> Iterator[Made]:
    for window, shape in m.turns(((2, (ROWS, 4, 5, BROAD)), (3, (ROWS, 4, 5, BROAD)), (2, (1, 4, DEEP, FEW)))):
        yield pool(m, m.tensor(shape, m.zero_points()[0]), window)


def _along_axis(m: ModelMaker) -> Iterator[Made]:
    """Yield a long last axis, and a long first one. The greatest elements lie at the end and in the middle."""
    places = OPS[m.operation].forms[0].places
    for axis in m.turns((1, 0)):
        data = contents(m.rng, m.kind, (3, DEEP), "ordinary")
        low, high = (np.iinfo(data.dtype).min, np.iinfo(data.dtype).max) if m.quantised else (-12, 12)
        data[0, -1], data[1, BROAD], data[1, -2] = high, high, low
        data[2, :-7], data[2, -7:] = low, high
        data = data if axis else data.T.copy()
        x = Value(m.kind, data.shape, SCALE if m.quantised else 0.0, 0, data=data)
        arguments: dict[str, Any] = {"input": x}
        if "axes" in places:
            arguments |= {"axes": Value(I32, (1,), data=np.array([axis], np.int32))}
            arguments |= {"keep_dims": 0 if m.operation == "MEAN" else False}
        else:
            arguments |= {"axis": axis}
            if "beta" in places:
                arguments["beta"] = Value(OperandType.FLOAT32, data=np.asarray(1, np.float32))
        rule = OPS[m.operation].outputs[0].quant
        kept = rule is None or rule.same or not m.quantised
        yield arguments, ["input"], (x.scale, x.zero_point) if rule is None or kept else rule.fixed[m.kind]


def _wide_maker(op: Op) -> Hard | None:
    """Return what makes the wide calls of an operation."""
    places = op.forms[0].places
    if op.weights is not None:
        return _wide_convolutions if op.weights.name == "filter" else _wide_layers
    if "filter_w" in places:
        return _wide_pools
    if "adj_x" in places:
        return _wide_layers
    along = op.cost in ("mean", "softmax") and places.keys() <= ALONG and op.outputs[0].spec is T
    return _along_axis if along and op.name != "REDUCE_PROD" else None  # products of so many are infinite


WIDE = {name: made for name in MAKERS if (made := _wide_maker(OPS[name])) is not None}
