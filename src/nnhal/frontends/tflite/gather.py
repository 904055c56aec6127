"""Entries of operators that gather by indices which may be computed: rows counted through."""

import math
from collections.abc import Sequence

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.tflite.graph import Term, constant
from nnhal.frontends.tflite.positions import axis_moved, broadcast, lower_by_places
from nnhal.frontends.tflite.task import INT32_RANGE, OperatorTask, entry
from nnhal.ops.schema import B8, I32

MOST_LOOKED_UP = 1 << 24  # of a dimension: a constant has them all


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
    counted = added(t, inside(t, indices, size), starts)
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


def inside(t: OperatorTask, indices: Term, size: int, stride: int = 1) -> Term:
    """Indices times a stride. One outside of 0 to size - 1, of which the place of another element would be made, is refused:
    by GATHER where it is known at execution only.
    """
    if indices.data is not None:
        numbers = np.asarray(indices.data)
        t.require(
            ((numbers >= 0) & (numbers < size)).all(), f"has an index outside of the {size} places of its dimension"
        )
        return constant(Value(I32), (numbers * stride).astype(np.int32))
    t.require(size <= MOST_LOOKED_UP, f"takes indices to {size} places, must be {MOST_LOOKED_UP} at most")
    places = (np.arange(size, dtype=np.int64) * stride).astype(np.int32)
    return t.make("GATHER", constant(Value(I32), places), 0, indices)


def none_below(t: OperatorTask, numbers: Term) -> Term:
    """Numbers, and 0 in place of those below it."""
    if numbers.data is not None:
        return constant(Value(I32), np.maximum(np.asarray(numbers.data), 0))
    return t.make("MAXIMUM", numbers, t.scalar(0, numbers))


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
    flat = row_numbers(t, indices, shape[:depth]) if depth > 1 else t.reshaped(indices, (math.prod(places[:-1]),))
    bare_x = t.ones(x) if x.value.type == B8 else x
    rows = t.reshaped(bare_x, (math.prod(shape[:depth]), math.prod(shape[depth:])))
    found = t.reshaped(t.make("GATHER", rows, 0, flat), (*places[:-1], *shape[depth:]) or (1,))
    t.result(0, t.truths(found) if x.value.type == B8 else found)


def row_numbers(t: OperatorTask, indices: Term, sizes: Sequence[int]) -> Term:
    """Vectors of indices, the last dimension, as numbers of rows in dimensions of these sizes; refused as by `inside`."""
    places = t.known(indices)
    count, depth = math.prod(places[:-1]), places[-1]
    t.require(math.prod(sizes) <= INT32_RANGE.max, f"has {math.prod(sizes)} rows, must have {INT32_RANGE.max} at most")
    if indices.data is not None:
        vectors = np.asarray(indices.data).reshape(count, depth)
        within = bool(((vectors >= 0) & (vectors < np.array(sizes))).all())
        t.require(within, f"indices reach outside of {list(sizes)}")
        return constant(Value(I32), np.ravel_multi_index(tuple(vectors.T), tuple(sizes)).astype(np.int32))
    table = t.reshaped(indices, (count, depth))
    total: Term | None = None
    for n, size in enumerate(sizes):
        column = t.make("SLICE", table, t.integers([0, n]), t.integers([count, 1])) if depth > 1 else table
        column = inside(t, column, size, math.prod(sizes[n + 1 :]))
        total = column if total is None else t.make("ADD", total, column, activation=0)
    if total is None:
        t.refuse("has no indices")
    return t.reshaped(total, (count,))


@entry("REVERSE_SEQUENCE", inputs=2, becomes="GATHER of steps counted through")
def reverse_sequence(t: OperatorTask) -> None:
    """The first steps of each batch in the other order: step i of n is n - 1 - i. Of a negative number none is moved."""
    o, x, lengths = t.options("ReverseSequenceOptions"), t.x(0), t.index(1, "lengths")
    shape = t.known(x)
    batch, steps = t.axis(o("BatchDim"), len(shape)), t.axis(o("SeqDim"), len(shape))
    t.require(batch != steps, f"batch and sequence are both dimension {batch}")
    order = [batch, steps, *[i for i in range(len(shape)) if i not in (batch, steps)]]
    front = axis_moved(t, x, order)
    batches, count = shape[batch], shape[steps]
    numbers = constant(Value(I32), np.arange(count, dtype=np.int32).reshape(1, count))
    lengths = inside(t, none_below(t, lengths), count + 1)
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
