"""Entries of operators that gather by indices, which may be computed, through flat row numbers."""

import math

import numpy as np

from nnhal.base.operands import Value
from nnhal.frontends.common.element_moves import axis_moved, broadcast
from nnhal.frontends.common.row_gathers import added, batched, count_below, index_offsets, row_numbers
from nnhal.frontends.common.terms import constant
from nnhal.frontends.tflite.positions import lower_by_places
from nnhal.frontends.tflite.task import OperatorTask, entry
from nnhal.ops.schema import B8, I32


@entry("GATHER", inputs=2, becomes="GATHER; with batches, of their rows behind one another")
def gather(t: OperatorTask) -> None:
    """Gather along an axis; a scalar index removes the dimension."""
    x, o, indices = t.x(0), t.options("GatherOptions"), t.index(1, "indices")
    axis, batches = t.axis(o("Axis"), t.rank(x)), o("BatchDims")
    batches += t.rank(indices) if batches < 0 else 0
    t.require(batches >= 0, f"batch_dims is {o('BatchDims')}, must be at least -{t.rank(indices)}")
    if batches:
        t.result(0, batched(t, x, indices, axis, batches))
        return
    if not indices.scalar:
        t.give("GATHER", x, axis, indices)
        return
    shape = t.shape(x)
    left = (*shape[:axis], *shape[axis + 1 :])
    t.reshaped(t.make("GATHER", x, axis, indices), left or (1,), out=True)


@entry("GATHER_ND", inputs=2, becomes="GATHER of rows counted through")
def gather_nd(t: OperatorTask) -> None:
    """Gather rows by index vectors, converted to row numbers."""
    x, indices = t.x(0), t.index(1, "indices")
    shape, places = t.known(x), t.known(indices)
    depth = places[-1]
    t.require(0 < depth <= t.rank(x), f"has indices of {depth} dimensions, must have 1 to {t.rank(x)}")
    flat = row_numbers(t, indices, shape[:depth]) if depth > 1 else t.reshaped(indices, (math.prod(places[:-1]),))
    bare_x = t.ones(x) if x.value.type == B8 else x
    rows = t.reshaped(bare_x, (math.prod(shape[:depth]), math.prod(shape[depth:])))
    found = t.reshaped(t.make("GATHER", rows, 0, flat), (*places[:-1], *shape[depth:]) or (1,))
    t.result(0, t.nonzero_mask(found) if x.value.type == B8 else found)


@entry("REVERSE_SEQUENCE", inputs=2, becomes="GATHER of steps counted through")
def reverse_sequence(t: OperatorTask) -> None:
    """Reverse the first elements of each batch: element i of n becomes n - 1 - i. A negative length moves none."""
    o, x, lengths = t.options("ReverseSequenceOptions"), t.x(0), t.index(1, "lengths")
    shape = t.known(x)
    batch, steps = t.axis(o("BatchDim"), len(shape)), t.axis(o("SeqDim"), len(shape))
    t.require(batch != steps, f"batch and sequence are both dimension {batch}")
    order = [batch, steps, *[i for i in range(len(shape)) if i not in (batch, steps)]]
    front = axis_moved(t, x, order)
    batches, count = shape[batch], shape[steps]
    numbers = constant(Value(I32), np.arange(count, dtype=np.int32).reshape(1, count))
    lengths = index_offsets(t, count_below(t, lengths), count + 1)
    last = t.make("SUB", t.reshaped(lengths, (batches, 1)), t.scalar(1, lengths), activation=0)
    mirrored = t.make("SUB", last, numbers, activation=0)
    same = t.make("LESS", mirrored, t.scalar(0, mirrored), like=Value(B8))
    places = t.make("SELECT", same, broadcast(t, numbers, (batches, count)), mirrored, like=mirrored)
    places = added(t, places, np.arange(batches).reshape(batches, 1) * count)
    inner = [shape[i] for i in order[2:]]
    rows = t.reshaped(front, (batches * count, math.prod(inner)))
    found = t.reshaped(t.make("GATHER", rows, 0, places), [shape[i] for i in order])
    t.result(0, axis_moved(t, found, np.argsort(order).tolist()))


@entry("MATRIX_DIAG", "MATRIX_SET_DIAG", inputs=(1, 2), becomes="GATHER and SELECT")
@entry("STABLEHLO_PAD", inputs=2, becomes="GATHER and SELECT")
@entry("DILATE", inputs=3, becomes="GATHER and SELECT")
def by_places(t: OperatorTask) -> None:
    """Move elements by constant indices."""
    lower_by_places(t)
