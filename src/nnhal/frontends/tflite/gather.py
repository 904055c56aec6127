"""Entries of operators that gather by indices which may be computed: rows counted through."""

import math
from collections.abc import Sequence

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.tflite.graph import Term, constant
from nnhal.frontends.tflite.positions import axis_moved, broadcast, lower_by_places
from nnhal.frontends.tflite.task import OperatorTask, entry
from nnhal.ops.schema import B8, I32


@entry("GATHER", inputs=2, becomes="GATHER; with batches, of their rows behind one another")
def gather(t: OperatorTask) -> None:
    """One index takes a dimension away."""
    x, o, indices = t.x(0), t.options("GatherOptions"), t.index(1, "indices")
    axis, batches = t.axis(o("Axis"), t.rank(x)), o("BatchDims")
    batches += t.rank(indices) if batches < 0 else 0
    t.require(batches >= 0, f"batch_dims = {o('BatchDims')}, must be at least -{t.rank(indices)}")
    if batches:
        t.result(0, batched(t, x, indices, axis, batches))
        return
    if not indices.scalar:
        t.give("GATHER", x, axis, indices)
        return
    shape = t.shape(x)
    left = (*shape[:axis], *shape[axis + 1 :])
    t.reshaped(t.make("GATHER", x, axis, indices), left or (1,), out=True)


def batched(t: OperatorTask, x: Term, indices: Term, axis: int, batches: int) -> Term:
    """Each batch has indices of its own: those of row `axis` of all batches, counted through."""
    shape, places = t.known(x), t.known(indices)
    t.require(
        shape[:batches] == places[:batches], f"batches are {shape[:batches]} and {places[:batches]}, must be equal"
    )
    t.require(batches <= axis, f"axis = {axis}, must be behind the {batches} batch dimensions")
    t.check_count(max(math.prod(places), math.prod(shape[:batches])))
    between, size = shape[batches:axis], shape[axis]
    inner = math.prod(between) * math.prod(shape[axis + 1 :])
    order = [*range(batches), axis, *range(batches, axis), *range(axis + 1, len(shape))]
    whole = t.reshaped(axis_moved(t, x, order), (math.prod(shape[:batches]) * size, inner))
    starts = np.arange(math.prod(shape[:batches])).reshape(*shape[:batches], *[1] * (len(places) - batches)) * size
    counted = added(t, indices, starts)
    found = t.make("GATHER", whole, 0, t.reshaped(counted, (math.prod(places),)))
    rest = places[batches:]
    found = t.reshaped(found, (*places, *between, *shape[axis + 1 :]))
    count = len(rest)
    back = [
        *range(batches),
        *range(batches + count, batches + count + len(between)),
        *range(batches, batches + count),
        *range(batches + count + len(between), len(t.known(found))),
    ]
    return axis_moved(t, found, back)


def added(t: OperatorTask, indices: Term, numbers: Array) -> Term:
    """Indices and constant numbers that broadcast, in few dimensions."""
    full = np.broadcast_to(numbers, t.known(indices)).reshape(-1).astype(np.int32)
    return t.make("ADD", t.reshaped(indices, (full.size,)), constant(Value(I32), full), activation=0)


@entry("GATHER_ND", inputs=2, becomes="GATHER of rows counted through")
def gather_nd(t: OperatorTask) -> None:
    """Indices of the first dimensions are one index of all rows."""
    x, indices = t.x(0), t.index(1, "indices")
    shape, places = t.known(x), t.known(indices)
    depth = places[-1]
    t.require(0 < depth <= t.rank(x), f"has indices of {depth} dimensions, must be 1 to {t.rank(x)}")
    flat = row_numbers(t, indices, shape[:depth])
    bare_x = t.ones(x) if x.value.type == B8 else x
    rows = t.reshaped(bare_x, (math.prod(shape[:depth]), math.prod(shape[depth:])))
    found = t.reshaped(t.make("GATHER", rows, 0, flat), (*places[:-1], *shape[depth:]) or (1,))
    t.result(0, t.truths(found) if x.value.type == B8 else found)


def row_numbers(t: OperatorTask, indices: Term, sizes: Sequence[int]) -> Term:
    """Vectors of indices, the last dimension, as numbers of rows in dimensions of these sizes."""
    places = t.known(indices)
    count, depth = math.prod(places[:-1]), places[-1]
    table = t.reshaped(indices, (count, depth))
    total: Term | None = None
    for n in range(depth):
        column = t.make("SLICE", table, t.integers([0, n]), t.integers([count, 1]))
        stride = math.prod(sizes[n + 1 :])
        column = t.make("MUL", column, t.scalar(stride, column), activation=0) if stride != 1 else column
        total = column if total is None else t.make("ADD", total, column, activation=0)
    if total is None:
        t.refuse("has no indices")
    return t.reshaped(total, (count,))


@entry("REVERSE_SEQUENCE", inputs=2, becomes="GATHER of steps counted through")
def reverse_sequence(t: OperatorTask) -> None:
    """The first steps of each batch in the other order: step i of n is n - 1 - i."""
    o, x, lengths = t.options("ReverseSequenceOptions"), t.x(0), t.index(1, "lengths")
    shape = t.known(x)
    batch, steps = t.axis(o("BatchDim"), len(shape)), t.axis(o("SeqDim"), len(shape))
    t.require(batch != steps, f"batch and sequence are both dimension {batch}")
    order = [batch, steps, *[i for i in range(len(shape)) if i not in (batch, steps)]]
    front = axis_moved(t, x, order)
    batches, count = shape[batch], shape[steps]
    numbers = constant(Value(I32), np.arange(count, dtype=np.int32).reshape(1, count))
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
    """A move with constant places."""
    lower_by_places(t)
