"""Gathers rows by indices that may be computed at execution, through flat row numbers."""

import math
from collections.abc import Sequence

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.common.element_moves import axis_moved
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.writing import INT32_RANGE, OperationWriter, check_count, nonzero_mask, ones
from nnhal.ops.schema import B8, I32

MOST_LOOKED_UP = 1 << 24  # entries of a dimension: a constant holds them all


def batched(t: OperationWriter, x: Term, indices: Term, axis: int, batches: int) -> Term:
    """Gather with separate indices for each batch, as flat numbers of the rows along `axis` of all batches."""
    shape, places = t.known(x), t.known(indices)
    t.require(
        shape[:batches] == places[:batches], f"batches are {shape[:batches]} and {places[:batches]}, must be equal"
    )
    t.require(batches <= axis, f"axis is {axis}, must be after the {batches} batch dimensions")
    check_count(max(math.prod(places), math.prod(shape[:batches])))
    between, size = shape[batches:axis], shape[axis]
    inner = math.prod(between) * math.prod(shape[axis + 1 :])
    order = [*range(batches), axis, *range(batches, axis), *range(axis + 1, len(shape))]
    whole = t.reshaped(axis_moved(t, x, order), (math.prod(shape[:batches]) * size, inner))
    starts = np.arange(math.prod(shape[:batches])).reshape(*shape[:batches], *[1] * (len(places) - batches)) * size
    counted = added(t, index_offsets(t, indices, size), starts)
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


def index_offsets(t: OperationWriter, indices: Term, size: int, stride: int = 1) -> Term:
    """Multiply indices by a stride. Refuses an index outside 0 to size - 1, which would refer to another element.

    If it is known only at execution, GATHER refuses it.
    """
    if indices.data is not None:
        numbers = np.asarray(indices.data)
        t.require(
            ((numbers >= 0) & (numbers < size)).all(), f"has an index outside of the {size} places of its dimension"
        )
        return constant(Value(I32), (numbers * stride).astype(np.int32))
    t.require(size <= MOST_LOOKED_UP, f"has indices to {size} places, must have at most {MOST_LOOKED_UP}")
    places = (np.arange(size, dtype=np.int64) * stride).astype(np.int32)
    return t.make("GATHER", constant(Value(I32), places), 0, indices)


def count_below(t: OperationWriter, numbers: Term) -> Term:
    """Replace numbers below 0 by 0."""
    if numbers.data is not None:
        return constant(Value(I32), np.maximum(np.asarray(numbers.data), 0))
    return t.make("MAXIMUM", numbers, t.scalar(0, numbers))


def added(t: OperationWriter, indices: Term, numbers: Array) -> Term:
    """Add indices and constant numbers that broadcast, in few dimensions."""
    full = np.broadcast_to(numbers, t.known(indices)).reshape(-1).astype(np.int32)
    return t.make("ADD", t.reshaped(indices, (full.size,)), constant(Value(I32), full), activation=0)


def row_numbers(t: OperationWriter, indices: Term, sizes: Sequence[int]) -> Term:
    """Convert index vectors (the last dimension) to row numbers in dimensions of these sizes; refuses like
    `index_offsets`."""
    places = t.known(indices)
    count, depth = math.prod(places[:-1]), places[-1]
    t.require(math.prod(sizes) <= INT32_RANGE.max, f"has {math.prod(sizes)} rows, must have at most {INT32_RANGE.max}")
    if indices.data is not None:
        vectors = np.asarray(indices.data).reshape(count, depth)
        within = bool(((vectors >= 0) & (vectors < np.array(sizes))).all())
        t.require(within, f"indices reach outside of {list(sizes)}")
        return constant(Value(I32), np.ravel_multi_index(tuple(vectors.T), tuple(sizes)).astype(np.int32))
    table = t.reshaped(indices, (count, depth))
    total: Term | None = None
    for n, size in enumerate(sizes):
        column = t.make("SLICE", table, t.integers([0, n]), t.integers([count, 1])) if depth > 1 else table
        column = index_offsets(t, column, size, math.prod(sizes[n + 1 :]))
        total = column if total is None else t.make("ADD", total, column, activation=0)
    if total is None:
        t.refuse("has no indices")
    return t.reshaped(total, (count,))


def rows_at(t: OperationWriter, x: Term, rows: Term, places: Sequence[int], depth: int) -> Term:
    """Return rows of a tensor by their flat numbers, in the shape `places`. depth: the dimensions that count rows."""
    shape = t.known(x)
    bare = ones(t, x) if x.value.type == B8 else x
    table = t.reshaped(bare, (math.prod(shape[:depth]), math.prod(shape[depth:])))
    found = t.reshaped(t.make("GATHER", table, 0, rows), (*places, *shape[depth:]) or (1,))
    return nonzero_mask(t, found) if x.value.type == B8 else found
