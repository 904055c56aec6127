"""Entries of nodes that gather and scatter by indices, which may be computed at execution."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.operands import Array, Value
from nnhal.frontends.common.element_moves import NOWHERE, axis_moved, moved, numbered, part_of
from nnhal.frontends.common.folding import FAILURES, require_foldable, taken
from nnhal.frontends.common.integer_ranges import of_all, of_first
from nnhal.frontends.common.reductions import PAIRWISE, halved, unfused
from nnhal.frontends.common.row_gathers import index_offsets, row_numbers, rows_at
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.writing import INT32_RANGE, MOST_DIMENSIONS, check_count, filled, nonzero_mask, ones
from nnhal.frontends.onnx.task import MOST_FOLDED, NodeTask, operator
from nnhal.ops.schema import B8, F16, F32, I32


def gather_moves(t: NodeTask, x: Array) -> Any:
    indices = t.data(1, "indices")
    axis = t.attr("axis", 0)
    require_foldable(indices.dtype != object and x.ndim)
    require_foldable(indices.size * (x.size // max(1, x.shape[axis])) <= max(MOST_FOLDED, x.size))
    return x.take(indices.astype(np.int64), axis)


@operator("Gather", inputs=2, becomes="GATHER; of one place SLICE", moves=gather_moves, span=of_first)
def gather(t: NodeTask) -> None:
    """Gather along an axis. A scalar index removes the dimension; negative indices count from the end."""
    x, indices = t.x(0), t.index(1, "indices")
    shape, axis = t.shape(x)[: t.rank(x)], t.axis(t.attr("axis", 0), t.rank(x))
    size = shape[axis]
    if indices.data is not None:
        numbers = np.asarray(indices.data)
        t.require(size is not None or (numbers >= 0).all(), "counts from an end that is known only at execution")
        if size is not None:
            t.require(((numbers >= -size) & (numbers < size)).all(), f"has an index outside of the {size} places")
            numbers = np.where(numbers < 0, numbers + size, numbers)
        if numbers.ndim == 0:
            dims = [*shape[:axis], *shape[axis + 1 :]]
            part = (
                part_of(t, x, axis, int(numbers), 1) if x.value.type != B8 else through(t, x, axis, numbers.reshape(1))
            )
            t.result(0, t.reshaped(part, dims or [1]), x.kind, scalar=not dims)
            return
        if x.value.type == B8:
            t.result(0, through(t, x, axis, numbers), x.kind)
            return
        chosen = constant(Value(I32), numbers.astype(np.int32))
    else:
        chosen = from_begin(t, indices, size)
    made = t.make("GATHER", ones(t, x) if x.value.type == B8 else x, axis, chosen)
    made = nonzero_mask(t, made) if x.value.type == B8 else made
    if indices.scalar:
        dims = [*shape[:axis], *shape[axis + 1 :]]
        t.result(0, t.reshaped(made, dims or [1]), x.kind, scalar=not dims)
    else:
        t.result(0, made, x.kind)


def through(t: NodeTask, x: Term, axis: int, numbers: "np.ndarray[tuple[int, ...], np.dtype[np.integer]]") -> Term:
    """Gather booleans by constant indices."""
    return moved(t, [x], numbered(t, [x])[0].take(numbers, axis))


def from_begin(t: NodeTask, indices: Term, size: int | None) -> Term:
    """Convert negative indices, which count from the end."""
    if indices.span is not None and indices.span[0] >= 0:
        return indices
    t.require(size is not None, "may count from an end that is known only at execution")
    shape = t.shape(indices)
    flat = indices if len(shape) <= MOST_DIMENSIONS else t.reshaped(indices, (math.prod(t.known(indices)),))
    below = t.make("LESS", flat, t.scalar(0, flat), like=Value(B8))
    from_end = t.make("ADD", flat, t.scalar(size, flat), activation=0)
    return t.reshaped(t.make("SELECT", below, from_end, flat, like=flat), shape)


def gather_elements_moves(t: NodeTask, x: Array) -> Any:
    indices = t.data(1, "indices")
    axis = t.attr("axis", 0) % max(1, x.ndim)
    require_foldable(x.ndim == indices.ndim > 0)
    cut = tuple(slice(None) if n == axis else slice(size) for n, size in enumerate(indices.shape))
    return np.take_along_axis(x[cut], indices, axis)


@operator("GatherElements", inputs=2, becomes="GATHER of elements counted through", moves=gather_elements_moves,
          span=of_all)  # fmt: skip
def gather_elements(t: NodeTask) -> None:
    """Gather elements, each with an index within its row."""
    x, indices = t.x(0), t.index(1, "indices")
    shape, places = t.known(x), t.known(indices)
    axis = t.axis(t.attr("axis", 0), t.rank(x))
    check_count(max(math.prod(shape), math.prod(places)))
    numbered = np.arange(math.prod(shape)).reshape(shape)
    if indices.data is not None:
        try:
            found = np.take_along_axis(numbered[tuple(slice(0, n if i != axis else None) for i, n in enumerate(places))],
                                       np.asarray(indices.data).astype(np.int64), axis)  # fmt: skip
        except FAILURES:
            t.refuse(f"indices do not fit a tensor of shape {list(shape)}")
        t.result(0, moved(t, [x], found), x.kind)
        return
    grid = np.indices(places)
    stride = math.prod(shape[axis + 1 :])
    starts = np.zeros(places, np.int64)
    for i in range(len(shape)):
        if i != axis:
            starts += grid[i] * math.prod(shape[i + 1 :])
    flat = t.reshaped(from_begin(t, indices, shape[axis]), (math.prod(places),))
    rows = index_offsets(t, flat, shape[axis], stride)
    rows = t.make("ADD", rows, constant(Value(I32), starts.reshape(-1).astype(np.int32)), activation=0)
    bare = ones(t, x) if x.value.type == B8 else x
    made = t.reshaped(t.make("GATHER", t.reshaped(bare, (math.prod(shape),)), 0, rows), places)
    t.result(0, nonzero_mask(t, made) if x.value.type == B8 else made, x.kind)


def gather_nd_moves(t: NodeTask, x: Array) -> Any:
    indices = t.data(1, "indices")
    require_foldable(not t.attr("batch_dims", 0) and indices.dtype != object)
    depth = indices.shape[-1]
    require_foldable(math.prod(indices.shape[:-1]) * math.prod(x.shape[depth:]) <= max(MOST_FOLDED, x.size))
    return taken(x, indices)


@operator("GatherND", inputs=2, becomes="GATHER of rows counted through", moves=gather_nd_moves, span=of_all)
def gather_nd(t: NodeTask) -> None:
    """Gather rows by index vectors, converted to row numbers."""
    x, indices = t.x(0), t.index(1, "indices")
    t.require(not t.attr("batch_dims", 0), "with batch_dims has no operation in NNAPI")
    shape, places = t.known(x), t.known(indices)
    depth = places[-1]
    t.require(0 < depth <= t.rank(x), f"has indices of {depth} dimensions, must have 1 to {t.rank(x)}")
    if indices.data is not None:
        data = np.asarray(indices.data)
        indices = constant(Value(I32), np.where(data < 0, data + np.array(shape[:depth]), data).astype(np.int32))
    else:
        indices = vectors_from_begin(t, indices, shape[:depth])
    flat = row_numbers(t, indices, shape[:depth])
    found = rows_at(t, x, flat, places[:-1], depth)
    t.result(0, found, x.kind, scalar=len(places) - 1 + len(shape) - depth == 0)


def vectors_from_begin(t: NodeTask, indices: Term, sizes: Sequence[int]) -> Term:
    """Convert negative numbers of index vectors (the last dimension), which count from the end."""
    if indices.span and indices.span[0] >= 0:
        return indices
    ends = constant(Value(I32), np.array(sizes, np.int32))
    below = t.make("LESS", indices, t.scalar(0, indices), like=Value(B8))
    return t.make("SELECT", below, t.make("ADD", indices, ends, activation=0), indices, like=indices)


@operator("ScatterND", inputs=3, becomes="GATHER and SELECT; of computed indices EQUAL, SELECT, a reduction; ADD, MUL, "
          "MAXIMUM, MINIMUM",
          span=of_all)  # fmt: skip
def scatter_nd(t: NodeTask) -> None:
    """Write rows into a tensor."""
    x, indices, updates = t.x(0), t.index(1, "indices"), t.x(2)
    shape, places = t.known(x), t.known(t.raw(1))
    depth, size = places[-1], math.prod(shape)
    t.require(0 < depth <= len(shape), f"has indices of {depth} dimensions, must have 1 to {len(shape)}")
    if indices.data is None:
        count, inner = math.prod(shape[:depth]), math.prod(shape[depth:])
        rows = t.reshaped(
            row_numbers(t, vectors_from_begin(t, indices, shape[:depth]), shape[:depth]), (math.prod(places[:-1]), 1)
        )
        made = written(t, t.reshaped(x, (count, inner)), rows, t.reshaped(updates, (t.known(rows)[0], inner)))
        t.result(0, t.reshaped(made, shape), x.kind)
        return
    check_count(size + math.prod(t.known(updates)))
    vectors = np.asarray(indices.data).astype(np.int64).reshape(-1, depth)
    vectors = np.where(vectors < 0, vectors + np.array(shape[:depth]), vectors)
    inside = bool(((vectors >= 0) & (vectors < np.array(shape[:depth]))).all())
    t.require(inside, f"indices reach outside of {list(shape[:depth])}")
    scattered(t, x, updates, np.arange(size).reshape(shape)[tuple(vectors.T)])


@operator("ScatterElements", inputs=3, becomes="as ScatterND", span=of_all)
def scatter_elements(t: NodeTask) -> None:
    """Write elements into a tensor."""
    x, numbers, updates = t.x(0), t.index(1, "indices"), t.x(2)
    shape, axis = t.known(x), t.axis(t.attr("axis", 0), t.rank(x))
    size = math.prod(shape)
    if numbers.data is None:
        scatter_along(t, x, from_begin(t, numbers, shape[axis]), updates, axis)
        return
    indices = np.asarray(numbers.data).astype(np.int64)
    check_count(size + indices.size)
    indices = np.where(indices < 0, indices + shape[axis], indices)
    try:
        part = tuple(slice(0, n if i != axis else None) for i, n in enumerate(indices.shape))
        targets = np.take_along_axis(np.arange(size).reshape(shape)[part], indices, axis)
    except FAILURES:
        t.refuse(f"indices do not fit a tensor of shape {list(shape)}")
    scattered(t, x, updates, targets)


def scatter_along(t: NodeTask, x: Term, indices: Term, updates: Term, axis: int) -> None:
    """Set the node's output: x with elements of updates at computed indices along an axis."""
    shape, places = t.known(x), t.known(indices)
    others = [n for n in range(len(shape)) if n != axis]
    t.require(
        places == t.known(updates) and all(places[n] == shape[n] for n in others),
        f"has computed indices of shape {list(places)} for {list(shape)}, must have one size except along the axis",
    )
    order, inner = [axis, *others], math.prod(shape[n] for n in others)
    ids = index_offsets(t, indices, shape[axis])
    rows = [t.reshaped(axis_moved(t, each, order), (t.known(each)[axis], inner)) for each in (x, ids, updates)]
    made = t.reshaped(written(t, *rows), [shape[n] for n in order])
    t.result(0, axis_moved(t, made, np.argsort(order).tolist()), x.kind)


def written(t: NodeTask, x: Term, ids: Term, updates: Term) -> Term:
    """Write each element of updates [k, inner] into its column of x [n, inner], to row ids [k, inner or 1]."""
    (n, inner), k = t.known(x), t.known(updates)[0]
    reduction = t.attr("reduction", "none")
    kind, types = t.raw(0).kind, (F16, F32, I32, B8) if reduction == "none" else (F16, F32, I32)
    t.require(reduction in ("none", *COMBINED), f"reduction is {reduction}, must be one of none, {', '.join(COMBINED)}")
    t.require(
        x.value.type in types and (kind != "INT64" or reduction not in ("add", "mul")),
        f"of {kind} with reduction {reduction!r} and computed indices has no operation in NNAPI",
    )
    check_count(k * n * inner)
    ids = ids if t.known(ids)[1] == inner else t.make("TILE", ids, t.integers([1, inner]))
    rows = constant(Value(I32), np.arange(n, dtype=np.int32).reshape(1, n, 1))
    here = t.make("EQUAL", t.reshaped(ids, (k, 1, inner)), rows, like=Value(B8))
    if reduction == "none":
        return last_written(t, x, here, updates)
    name, neutral = COMBINED[reduction](x.value.dtype)
    values = t.make("TILE", t.reshaped(updates, (k, 1, inner)), t.integers([1, n, 1]))
    chosen = t.make("SELECT", here, values, filled(t, (k, n, inner), neutral, OperandType(x.value.type)), like=x)
    total = combined_over_first(t, name, chosen)
    return t.make(name, x, t.reshaped(total, (n, inner)), **unfused(name))


def last_written(t: NodeTask, x: Term, here: Term, updates: Term) -> Term:
    """Replace elements of x [n, inner] by the last of the updates [k, inner] that are `here` [k, n, inner]."""
    k, n, inner = t.known(here)
    counted = np.broadcast_to(np.arange(k, dtype=np.int32).reshape(k, 1, 1), (k, n, inner)).copy()
    numbers = t.make("SELECT", here, constant(Value(I32), counted), filled(t, (k, n, inner), -1, I32), like=Value(I32))
    last = t.reshaped(combined_over_first(t, "MAXIMUM", numbers), (n, inner))
    hit = t.make("GREATER_EQUAL", last, t.scalar(0, last), like=Value(B8))
    row = t.make("MUL", t.make("MAXIMUM", last, t.scalar(0, last)), t.scalar(inner, last), activation=0)
    columns = constant(Value(I32), np.arange(inner, dtype=np.int32).reshape(1, inner))
    flat = t.reshaped(t.make("ADD", row, columns, activation=0), (n * inner,))
    truth = x.value.type == B8
    sources = ones(t, updates) if truth else updates
    found = t.reshaped(t.make("GATHER", t.reshaped(sources, (k * inner,)), 0, flat), (n, inner))
    made = t.make("SELECT", hit, found, ones(t, x) if truth else x, like=found)
    return nonzero_mask(t, made) if truth else made


def combined_over_first(t: NodeTask, name: str, x: Term) -> Term:
    """Combine the first dimension of three by an operation of two."""
    if x.value.type == I32:
        k, n, inner = t.known(x)
        return halved(t, name, t.reshaped(x, (1, k, n * inner)))
    reduction = next(each for each, by in PAIRWISE.items() if by == name)
    return t.make(reduction, x, t.integers([0]), False)


def scattered(t: NodeTask, x: Term, updates: Term, targets: Array) -> None:
    """Set the node's output: x with elements of updates at targets, which are element numbers of x."""
    shape, reduction, targets = t.known(x), t.attr("reduction", "none"), targets.reshape(-1)
    t.require(targets.size == math.prod(t.known(updates)), "has different numbers of updates and indices")
    size, sources = math.prod(shape), np.arange(targets.size)
    if reduction == "none":
        numbered = np.arange(size)
        numbered[targets] = sources + size
        t.result(0, moved(t, [x, updates], numbered.reshape(shape)), x.kind)
        return
    t.require(reduction in COMBINED, f"reduction is {reduction}, must be 'none' or one of {', '.join(COMBINED)}")
    t.require(
        x.value.type in (F32, F16, I32) and (x.kind != "INT64" or reduction not in ("add", "mul")),
        f"of {x.kind} with reduction {reduction!r} has no operation in NNAPI",
    )
    name, neutral = COMBINED[reduction](x.value.dtype)
    order = np.argsort(targets, kind="stable")
    first = np.searchsorted(targets[order], targets[order])
    turns = np.empty(targets.size, np.int64)
    turns[order] = sources - first  # the number of earlier updates of the same element
    rounds = int(turns.max(initial=-1)) + 1
    t.require(rounds <= MOST_ROUNDS, f"updates an element {rounds} times, must update it at most {MOST_ROUNDS} times")
    made = t.reshaped(x, (size,))
    for turn in range(rounds):
        places = np.full(size, NOWHERE)
        places[targets[turns == turn]] = sources[turns == turn]
        part, more = moved(t, [updates], places, neutral), {"activation": 0} if name in ("ADD", "MUL") else {}
        made = t.make(name, made, part, **more)
    t.result(0, t.reshaped(made, shape), x.kind)


def ends(dtype: "np.dtype[Any]") -> tuple[Any, Any]:
    """Return the least and the greatest number of a type."""
    return (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)


# by a reduction's name: the operation and its neutral number
COMBINED: dict[str, Callable[["np.dtype[Any]"], tuple[str, Any]]] = {
    "add": lambda dtype: ("ADD", -0.0 if dtype.kind == "f" else 0),
    "mul": lambda _: ("MUL", 1),
    "max": lambda dtype: ("MAXIMUM", ends(dtype)[0]),
    "min": lambda dtype: ("MINIMUM", ends(dtype)[1]),
}
MOST_ROUNDS = 64


@operator("Trilu", inputs=(1, 2), becomes="MUL by ones and zeros; of integers and booleans SELECT", span=of_all)
def triangle(t: NodeTask) -> None:
    """Keep one side of the diagonal, with zeros on the other."""
    x, k = t.x(0), t.integer_of(1, "k") if t.given(1) else 0
    shape = t.known(x)
    every = numbered(t, [x])[0]
    t.require(INT32_RANGE.min <= k <= INT32_RANGE.max and len(shape) >= 2, f"k is {k}, must fit into 32 bits")
    side = np.triu if t.attr("upper", 1) else np.tril
    keep = np.broadcast_to(side(np.ones(shape[-2:], bool), k), shape)
    places = np.where(keep, every, NOWHERE)
    if x.value.type == B8:
        t.give("LOGICAL_AND", x, constant(Value(B8), keep.copy()))
    else:
        t.result(0, moved(t, [x], places, 0), x.kind)


@operator("ReverseSequence", inputs=2, becomes="GATHER, of lengths that are constant", span=of_all)
def reverse_sequence(t: NodeTask) -> None:
    """Reverse the first elements of each batch."""
    x, lengths = t.x(0), t.ints(1, "sequence_lens")
    shape = t.known(x)
    batch, time = t.axis(t.attr("batch_axis", 1), len(shape)), t.axis(t.attr("time_axis", 0), len(shape))
    t.require(
        batch != time and len(lengths) == shape[batch],
        f"sequence_lens is {lengths}, must have one number for each batch",
    )
    rows = np.moveaxis(numbered(t, [x])[0], (batch, time), (0, 1)).copy()
    for row, length in zip(rows, lengths, strict=True):
        t.require(0 <= length <= shape[time], f"has a length of {length}, must be 0 to {shape[time]}")
        row[:length] = row[:length][::-1].copy()
    t.result(0, moved(t, [x], np.moveaxis(rows, (0, 1), (batch, time))), x.kind)


def reversed_along(t: NodeTask, x: Term, axis: int) -> Term:
    """Reverse a term along a dimension."""
    size = t.shape(x)[axis]
    if size is None:
        t.refuse("has a dimension to reverse that is known only at execution")
    if size == 1:
        return x
    return t.make("GATHER", x, axis, constant(Value(I32), np.arange(size, dtype=np.int32)[::-1].copy()))
