"""Operators that gather or write by indices, which may be computed, or combine elements with the same index."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import MAX_RANK, OperandType, type_name
from nnhal.base.operands import Array, Value
from nnhal.frontends.common.element_moves import axis_moved, broadcast
from nnhal.frontends.common.folding import numbers, require_foldable, taken
from nnhal.frontends.common.functions import lowest
from nnhal.frontends.common.integer_ranges import of_all
from nnhal.frontends.common.reductions import PAIRWISE, halved
from nnhal.frontends.common.row_gathers import added, batched, count_below, index_offsets, row_numbers, rows_at
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.writing import check_count, filled, nonzero_mask, ones
from nnhal.frontends.tflite.task import MOST_FOLDED, OperatorTask, operator
from nnhal.ops.schema import B8, F32, I32

MOST_CHOICES = 1 << 24  # elements of all candidates for each place


def rows(x: Array, count: int) -> Array:
    """Merge the first `count` dimensions."""
    return x.reshape(-1, *x.shape[count:])


def gather_moves(t: OperatorTask, x: Array, indices: Array) -> Any:
    fields = t.options("GatherOptions")
    batches, axis = fields("BatchDims"), fields("Axis") % x.ndim
    batches += indices.ndim if batches < 0 else 0
    require_foldable(
        indices.min(initial=0) >= 0 and 0 <= batches <= axis and x.shape[:batches] == indices.shape[:batches]
    )
    left = math.prod(x.shape[batches:axis]) * math.prod(x.shape[axis:][1:])
    require_foldable(left * indices.size <= MOST_FOLDED)
    indices = indices.astype(np.int64)
    if not batches:
        return x.take(indices, axis)
    pairs = zip(rows(x, batches), rows(indices, batches), strict=True)
    taken = [row.take(places, axis - batches) for row, places in pairs]
    return np.stack(taken).reshape(*x.shape[:batches], *taken[0].shape)


@operator("GATHER", inputs=2, becomes="GATHER; with batches, of their rows behind one another", moves=gather_moves,
          indexed=True, span=of_all)  # fmt: skip
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


def gather_nd_moves(_: OperatorTask, x: Array, indices: Array) -> Any:
    depth = indices.shape[-1]
    require_foldable((indices >= 0).all() and (indices < x.shape[:depth]).all())
    require_foldable(math.prod(indices.shape[:-1]) * math.prod(x.shape[depth:]) <= MOST_FOLDED)
    return taken(x, indices)


@operator("GATHER_ND", inputs=2, becomes="GATHER of rows counted through", moves=gather_nd_moves, indexed=True,
          span=of_all)  # fmt: skip
def gather_nd(t: OperatorTask) -> None:
    """Gather rows by index vectors, converted to row numbers."""
    x, indices = t.x(0), t.index(1, "indices")
    shape, places = t.known(x), t.known(indices)
    depth = places[-1]
    t.require(0 < depth <= t.rank(x), f"has indices of {depth} dimensions, must have 1 to {t.rank(x)}")
    flat = row_numbers(t, indices, shape[:depth]) if depth > 1 else t.reshaped(indices, (math.prod(places[:-1]),))
    t.result(0, rows_at(t, x, flat, places[:-1], depth))


def reverse_sequence_moves(t: OperatorTask, x: Array, lengths: Array) -> Any:
    fields = t.options("ReverseSequenceOptions")
    batch, steps = fields("BatchDim") % x.ndim, fields("SeqDim") % x.ndim
    require_foldable(batch != steps and lengths.shape == (x.shape[batch],))
    moved = np.moveaxis(x, (batch, steps), (0, 1)).copy()
    for row, length in zip(moved, numbers(lengths), strict=True):
        require_foldable(0 <= length <= len(row))
        row[:length] = row[:length][::-1].copy()
    return np.moveaxis(moved, (0, 1), (batch, steps))


@operator("REVERSE_SEQUENCE", inputs=2, becomes="GATHER of steps counted through", moves=reverse_sequence_moves,
          span=of_all)  # fmt: skip
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


# ----------------------------------------------------------------------------- writing to indices, combining by indices


def neutral(kind: str, type: OperandType) -> float | int:
    """Return the neutral value, which a segment without elements gets."""
    if kind in ("REDUCE_MAX", "REDUCE_MIN"):
        return (
            float(np.finfo(np.float32).min) * (1 if kind == "REDUCE_MAX" else -1)
            if type == F32
            else lowest(type, highest=kind == "REDUCE_MIN")
        )
    return 1 if kind == "REDUCE_PROD" else 0


def combined(t: OperatorTask, kind: str, rows: Term, ids: Term, count: int) -> Term:
    """Combine the rows [n, inner] with the same number of 0 to count - 1 into [count, inner]."""
    t.require(
        rows.value.type in (F32, I32),
        f"of {type_name(rows.value.type)} uses sums, which NNAPI supports for float32 and int32",
    )
    n, inner = t.known(rows)
    t.require(n and inner and count > 0, f"combines {n} rows of {inner} elements to {count}, must have some of each")
    t.require(count * inner <= MOST_CHOICES, too_many(count * inner))
    type = OperandType(rows.value.type)
    if ids.data is not None:
        numbers = np.asarray(ids.data).reshape(-1)
        lists = [np.flatnonzero(numbers == place) for place in range(count)]
        n = max(1, *(len(found) for found in lists))
        t.require(count * n * inner <= MOST_CHOICES, too_many(count * n * inner))
        places, hits = np.zeros((count, n), np.int32), np.zeros((count, n, 1), bool)
        for place, found in enumerate(lists):
            places[place, : len(found)], hits[place, : len(found)] = found, True
        choices = t.make("GATHER", rows, 0, constant(Value(I32), places))
        whole = constant(Value(B8), np.broadcast_to(hits, (count, n, inner)).copy())
    else:
        t.require(count * n * inner <= MOST_CHOICES, too_many(count * n * inner))
        places = np.broadcast_to(np.arange(count, dtype=np.int32).reshape(count, 1, 1), (count, n, inner)).copy()
        wide = broadcast(t, t.reshaped(ids, (1, n, 1)), (count, n, inner))
        whole = t.make("EQUAL", wide, constant(Value(I32), places), like=Value(B8))
        choices = broadcast(t, t.reshaped(rows, (1, n, inner)), (count, n, inner))
    chosen = t.make("SELECT", whole, choices, filled(t, (count, n, inner), neutral(kind, type), type), like=choices)
    if type == I32:
        return t.reshaped(halved(t, PAIRWISE[kind], chosen), (count, inner))
    return t.make(kind, chosen, t.integers([1]), False)


def too_many(size: int) -> str:
    """Return the message for too large a selection."""
    return f"needs {size} elements to select from, must need at most {MOST_CHOICES}"


def segments(t: OperatorTask, kind: str, ids: Term, count: int) -> None:
    """Combine the first dimension by segment numbers."""
    x = t.x(0)
    shape = t.known(x)
    t.require(t.known(ids) == shape[: len(t.known(ids))], "segment_ids must have the shape of the first dimensions")
    depth = len(t.known(ids))
    rows = t.reshaped(x, (math.prod(shape[:depth]), math.prod(shape[depth:])))
    t.result(0, t.reshaped(combined(t, kind, rows, ids, count), (count, *shape[depth:])))


@operator("SEGMENT_SUM", inputs=2, becomes="GATHER, SELECT, REDUCE_SUM; of int32 ADD")
def segment_sum(t: OperatorTask) -> None:
    """Sum segments; the last number determines their count."""
    ids = t.ints(1, "segment_ids")
    t.require(ids and min(ids) >= 0, f"segment_ids is {ids}, must not be negative")
    segments(t, "REDUCE_SUM", t.index(1, "segment_ids"), max(ids) + 1)


@operator("UNSORTED_SEGMENT_SUM", "UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_MAX", "UNSORTED_SEGMENT_MIN", inputs=3,
          becomes="EQUAL or GATHER, SELECT, then REDUCE_SUM, REDUCE_PROD, REDUCE_MAX, REDUCE_MIN")  # fmt: skip
def unsorted_segments(t: OperatorTask) -> None:
    """Combine segments in any order; negative numbers belong to no segment."""
    ids, count = t.index(1, "segment_ids"), t.integer(2, "num_segments")
    t.require(count > 0, f"num_segments is {count}, must be at least 1")
    looked_up = index_offsets(t, count_below(t, ids), count)
    ids = t.make("MINIMUM", ids, looked_up) if ids.data is None else ids
    segments(t, f"REDUCE_{t.name.rpartition('_')[2]}", ids, count)


@operator("SCATTER_ND", inputs=3, becomes="EQUAL or GATHER, SELECT, REDUCE_SUM")
def scatter_nd(t: OperatorTask) -> None:
    """Write updates to indices, and sum those of the same place."""
    indices, updates, shape = t.index(0, "indices"), t.x(1), t.ints(2, "shape")
    depth = t.known(indices)[-1]
    t.require(0 < depth <= len(shape), f"has indices of {depth} dimensions, must have 1 to {len(shape)}")
    t.result(0, t.reshaped(scattered(t, indices, updates, shape), shape))


def scattered(t: OperatorTask, indices: Term, updates: Term, shape: Sequence[int]) -> Term:
    """Sum updates at the rows of indices [.., depth]: [rows, inner]."""
    depth = t.known(indices)[-1]
    count, inner = math.prod(shape[:depth]), math.prod(shape[depth:])
    ids = row_numbers(t, indices, shape[:depth])
    rows = t.reshaped(updates, (math.prod(t.known(ids)), inner))
    return combined(t, "REDUCE_SUM", rows, ids, count)


@operator("SPARSE_TO_DENSE", inputs=4, becomes="EQUAL or GATHER, SELECT, REDUCE_SUM")
def sparse_to_dense(t: OperatorTask) -> None:
    """Write values to their places, with a default elsewhere; no place is repeated."""
    indices, shape, values, default = t.index(0, "indices"), t.ints(1, "output_shape"), t.x(2), t.x(3)
    rank, sizes = len(shape), t.known(indices)
    table = t.reshaped(indices, (math.prod(sizes) // rank, rank))
    count = t.known(table)[0]
    values = broadcast(t, values, (count,)) if t.known(values) != (count,) else values
    ones = filled(t, (count,), 1, OperandType(values.value.type))
    size = math.prod(shape)
    there = scattered(t, table, ones, shape)
    hits = t.make("NOT_EQUAL", there, t.scalar(0, there), like=Value(B8))
    found = t.make("SELECT", hits, scattered(t, table, values, shape), broadcast(t, default, (size, 1)), like=values)
    t.result(0, t.reshaped(found, shape))


@operator("DYNAMIC_UPDATE_SLICE", inputs=3, becomes="GATHER along each dimension, SELECT", span=of_all)
def update_slice(t: OperatorTask) -> None:
    """Replace a range of a tensor; its start is clamped so that it fits."""
    x, part, starts = t.x(0), t.x(1), t.index(2, "start_indices")
    truth = x.value.type == B8
    if truth:
        x, part = ones(t, x), ones(t, part)
    shape, sizes, rank = t.known(x), t.known(part), t.rank(x)
    check_count(max(shape, default=0))
    t.require(
        rank == t.rank(part) and all(0 < n <= m for n, m in zip(sizes, shape, strict=True)),
        f"the update has shape {list(sizes)}, must fit into {list(shape)}",
    )
    mask: Term | None = None
    for axis in range(rank):
        start = t.make("SLICE", starts, t.integers([axis]), t.integers([1]))
        first = clamped(t, start, shape[axis] - sizes[axis])
        steps = constant(Value(I32), np.arange(shape[axis], dtype=np.int32))
        places = t.make("SUB", steps, first, activation=0)
        kept = clamped(t, places, sizes[axis] - 1)
        inside = t.make("EQUAL", places, kept, like=Value(B8))
        part = t.make("GATHER", part, axis, kept)
        whole = broadcast(t, t.reshaped(inside, [n if i == axis else 1 for i, n in enumerate(shape)]), shape)
        mask = whole if mask is None else t.make("LOGICAL_AND", mask, whole)
    if mask is None:
        t.same(t.x(1))
        return
    result = t.make("SELECT", mask, part, x, like=x)
    t.result(0, nonzero_mask(t, result) if truth else result)


def clamped(t: OperatorTask, term: Term, most: int) -> Term:
    """Clamp numbers to 0 and a limit."""
    return t.make("MINIMUM", t.make("MAXIMUM", term, t.scalar(0, term)), t.scalar(most, term))


@operator("EMBEDDING_LOOKUP_SPARSE", inputs=5, becomes="GATHER, MUL, SELECT, REDUCE_SUM; DIV by the sum of weights")
def sparse_embeddings(t: OperatorTask) -> None:
    """Sum weighted rows of a table by the row of a sparse tensor that contains them."""
    ids, indices, shape = t.index(0, "ids"), t.data(1, "indices"), t.ints(2, "dense_shape")
    weights, table, kind = t.x(3), t.x(4), t.options("EmbeddingLookupSparseOptions")("Combiner")
    t.require(kind in (0, 1, 2), f"combiner is {kind}, must be 0 (SUM), 1 (MEAN) or 2 (SQRTN)")
    t.require(table.value.type == F32, f"of {table.kind} is not in TFLite")
    t.require(2 <= len(shape) <= MAX_RANK, f"dense_shape has {len(shape)} dimensions, must have 2 to {MAX_RANK}")
    lead, rest, count = shape[:-1], t.known(table)[1:], math.prod(shape[:-1])
    t.require(0 < count <= MOST_CHOICES, too_many(count))
    fits = indices.ndim == 2 and len(shape) == indices.shape[1] and indices.dtype.kind == "i" and min(shape) > 0
    t.require(fits, f"indices have shape {list(indices.shape)}, must have {len(shape)} numbers in each row")
    inside = ((indices >= 0) & (indices < np.array(shape))).all()
    t.require(inside, f"indices reach outside of {shape}")
    places = np.ravel_multi_index(tuple(indices[:, :-1].T), tuple(lead)).astype(np.int32)
    t.require(len(places) and (np.diff(places) >= 0).all(), "indices are not sorted, must be sorted as LiteRT requires")
    inner, n = math.prod(rest), len(places)
    sizes = [math.prod(t.known(each)) for each in (ids, weights)]
    t.require(sizes == [n, n], f"has {sizes[0]} ids and {sizes[1]} weights, must have {n}, like the indices")
    rows = t.make("GATHER", t.reshaped(table, (t.known(table)[0], inner)), 0, t.reshaped(ids, (n,)))
    share = t.reshaped(weights, (n, 1))
    numbers = constant(Value(I32), places)
    total = combined(t, "REDUCE_SUM", t.make("MUL", rows, share, activation=0), numbers, count)
    if kind:
        parts = share if kind == 1 else t.make("MUL", share, share, activation=0)
        whole = combined(t, "REDUCE_SUM", parts, numbers, count)
        whole = whole if kind == 1 else t.make("SQRT", whole)
        empty = ~np.isin(np.arange(count), places)
        none = constant(Value(F32), empty.astype(np.float32).reshape(count, 1))
        total = t.make("DIV", total, t.make("ADD", whole, none, activation=0), activation=0)
    t.result(0, t.reshaped(total, (*lead, *rest)))
