"""Rows gathered by indices that may be computed: counted through."""

import math
from collections.abc import Sequence

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.common.places import axis_moved
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.writing import INT32_RANGE, OperationWriter
from nnhal.ops.schema import I32

MOST_LOOKED_UP = 1 << 24  # of a dimension: a constant has them all


def batched(t: OperationWriter, x: Term, indices: Term, axis: int, batches: int) -> Term:
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


def inside(t: OperationWriter, indices: Term, size: int, stride: int = 1) -> Term:
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


def none_below(t: OperationWriter, numbers: Term) -> Term:
    """Numbers, and 0 in place of those below it."""
    if numbers.data is not None:
        return constant(Value(I32), np.maximum(np.asarray(numbers.data), 0))
    return t.make("MAXIMUM", numbers, t.scalar(0, numbers))


def added(t: OperationWriter, indices: Term, numbers: Array) -> Term:
    """Indices and constant numbers that broadcast, in few dimensions."""
    full = np.broadcast_to(numbers, t.known(indices)).reshape(-1).astype(np.int32)
    return t.make("ADD", t.reshaped(indices, (full.size,)), constant(Value(I32), full), activation=0)


def row_numbers(t: OperationWriter, indices: Term, sizes: Sequence[int]) -> Term:
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
