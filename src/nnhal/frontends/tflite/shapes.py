"""Operators of shapes: reshaping, dimensions of 1, transposition."""

from typing import Any

import numpy as np

from nnhal.base.operands import Array
from nnhal.frontends.common.element_moves import transposed
from nnhal.frontends.common.folding import numbers, require_foldable
from nnhal.frontends.common.integer_ranges import of_all
from nnhal.frontends.common.writing import MOST_DIMENSIONS
from nnhal.frontends.tflite.task import OperatorTask, operator
from nnhal.ops.schema import I32


def reshape_moves(t: OperatorTask, x: Array, *shape: Array) -> Any:
    wanted = numbers(shape[0]) if shape else list(t.options("ReshapeOptions").numbers("NewShape") or ())
    return x.reshape([] if wanted == [0] and x.size == 1 else wanted)


@operator("RESHAPE", inputs=(1, 2), moves=reshape_moves, span=of_all, shape=1)
def reshape(t: OperatorTask) -> None:
    """Reshape to an input or an option. One dimension may be open (-1), or be known only at execution."""
    x = t.x(0)
    if t.given(1) and t.raw(1).data is None:
        t.give("RESHAPE", x, t.index(1, "shape"))
        return
    wanted = t.partly(1, "shape") if t.given(1) else list(t.options("ReshapeOptions").numbers("NewShape") or ())
    if wanted == [0] and not t.graph.source.tensors[t.operator.outputs[0]].shape:
        wanted = []  # a scalar in old files
    t.reshaped(x, [None if n == -1 else n for n in wanted] or [1], out=True)


def squeeze_moves(t: OperatorTask, x: Array) -> Any:
    return x.squeeze(t.options("SqueezeOptions").numbers("SqueezeDims") or None)


@operator("SQUEEZE", moves=squeeze_moves, span=of_all)
def squeeze(t: OperatorTask) -> None:
    """Remove the named dimensions of 1, or all."""
    x = t.x(0)
    shape = t.shape(x)[: t.rank(x)]
    named = t.options("SqueezeOptions").numbers("SqueezeDims") or ()
    axes = sorted({t.axis(n, len(shape)) for n in named})
    if not axes:
        t.known(x)
        axes = [i for i, d in enumerate(shape) if d == 1]
    t.require(all(shape[i] in (1, None) for i in axes), f"dimensions {axes} of {list(shape)} must be 1")
    left = [d for i, d in enumerate(shape) if i not in axes]
    if x.value.type != I32 and axes and len(shape) <= 4:
        t.give("SQUEEZE", x, t.integers(axes))
    else:
        t.reshaped(x, left or [1], out=True)


def axis_of(axis: Array) -> int:
    """Return an axis that is an input."""
    require_foldable(axis.size == 1)
    return int(axis.item())


def expand_dims_moves(_: OperatorTask, x: Array, axis: Array) -> Any:
    return np.expand_dims(x, axis_of(axis))


@operator("EXPAND_DIMS", inputs=2, moves=expand_dims_moves, span=of_all)
def expand_dims(t: OperatorTask) -> None:
    """Insert a dimension of 1."""
    x, axis = t.x(0), t.integer(1, "axis")
    if x.scalar:
        t.reshaped(x, [1], out=True)
    else:
        t.give("EXPAND_DIMS", x, t.axis(axis, t.rank(x) + 1))


@operator("SHAPE")
def shape_of(t: OperatorTask) -> None:
    """Return the shape, known at import as far as possible."""
    x = t.raw(0)
    shape = t.shape(x)[: t.rank(x)]
    t.known_result(np.array(shape, object if None in shape else np.int64))


@operator("RANK")
def rank_of(t: OperatorTask) -> None:
    """Return the rank, known at import."""
    t.known_result(np.array(t.rank(t.raw(0))))


def transpose_moves(_: OperatorTask, x: Array, order: Array) -> Any:
    return x.transpose(numbers(order))


@operator("TRANSPOSE", inputs=2, moves=transpose_moves, span=of_all)
def transpose(t: OperatorTask) -> None:
    """Permute the dimensions; above four, adjacent ones that stay adjacent are merged."""
    x = t.x(0)
    if t.rank(x) <= MOST_DIMENSIONS:
        t.give("TRANSPOSE", x, t.index(1, "permutation"))
        return
    shape, order = t.known(x), t.ints(1, "permutation")
    t.require(
        sorted(order) == list(range(len(shape))), f"permutation is {order}, must be one of {len(shape)} dimensions"
    )
    t.result(0, transposed(t, x, order))
