"""Moves of elements and rows by constant indices with GATHER, if NNAPI's operation lacks the type or rank."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.common.terms import Term, bare, constant
from nnhal.frontends.common.writing import (
    MOST_DIMENSIONS,
    OperationWriter,
    broadcast_shapes,
    check_count,
    copied,
    nonzero_mask,
    ones,
)
from nnhal.ops.schema import B8, I32

NOWHERE = -1  # the index of an element that is filled in


def moved(t: OperationWriter, terms: Sequence[Term], places: Array, fill: Any = 0) -> Term:
    """Return the elements of the concatenated terms at `places`; `fill` at NOWHERE."""
    check_count(places.size)
    t.require(places.size, "has no elements")
    if terms[0].value.type == B8:
        return nonzero_mask(t, moved(t, [ones(t, term) for term in terms], places, int(fill)))
    shape, start, result = places.shape or (1,), 0, None
    places = places.reshape(shape)
    if (places == NOWHERE).any():
        value = terms[0].value
        result = constant(bare(value), np.full(shape, fill, value.dtype))
    for term in terms:
        size = math.prod(t.known(term))
        here = (start <= places) & (places < start + size)
        if here.any():
            part = gathered(t, term, np.where(here, places - start, 0))
            result = part if result is None else chosen(t, here, part, result)
        start += size
    if result is None:
        t.refuse("has no elements")
    return result


def numbered(t: OperationWriter, terms: Sequence[Term]) -> list[Array]:
    """Return the number of each element of some terms, counted through, in their shapes in the file."""
    check_count(sum(math.prod(t.known(term)) for term in terms))
    start, arrays = 0, []
    for term in terms:
        shape = t.known(term)[: t.rank(term)]
        arrays.append((np.arange(math.prod(shape), dtype=np.int64) + start).reshape(shape))
        start += arrays[-1].size
    return arrays


def chosen(t: OperationWriter, here: Array, x: Term, y: Term) -> Term:
    """Return x where `here` holds, y elsewhere."""
    if here.all():
        return x
    return t.make("SELECT", constant(Value(B8), here), x, y, like=x)


def gathered(t: OperationWriter, x: Term, places: Array) -> Term:
    """Return elements of a term by their indices, moved in the largest possible blocks."""
    size, shape = math.prod(t.known(x)), places.shape
    block = together(places, size)
    rows = places.reshape(-1, block)[:, 0] // block
    if block == size and rows.size == 1:
        return t.reshaped(x, shape)
    flat = t.reshaped(x, (size // block, block))
    found = t.make("GATHER", flat, 0, constant(Value(I32), rows.astype(np.int32)))
    return t.reshaped(found, shape)


def together(places: Array, size: int) -> int:
    """Return the length of the largest aligned runs of consecutive elements."""
    best = block = 1
    for n in reversed(places.shape):
        block *= n
        if block < 1 or size % block:
            break
        rows = places.reshape(-1, block)
        if (rows[:, 0] % block).any() or (rows != rows[:, :1] + np.arange(block)).any():
            break
        best = block
    return best


def broadcast(t: OperationWriter, term: Term, shape: Sequence[int]) -> Term:
    """Repeat a term to a shape, for any type and rank."""
    sizes = t.known(term)
    if sizes == tuple(shape):
        return term
    t.require(
        broadcast_shapes(sizes, shape) == tuple(shape), f"a shape of {list(sizes)} must broadcast to {list(shape)}"
    )
    check_count(math.prod(shape))
    places = np.broadcast_to(np.arange(math.prod(sizes)).reshape(sizes), tuple(shape))
    return moved(t, [term], places)


def axis_moved(t: OperationWriter, x: Term, order: Sequence[int]) -> Term:
    """Permute the dimensions of a term."""
    if list(order) == sorted(order):
        return x
    if len(order) <= 4 and x.value.type not in (I32, B8):
        return t.make("TRANSPOSE", x, t.integers(order))
    shape = t.known(x)
    return moved(t, [x], np.arange(math.prod(shape)).reshape(shape).transpose(order))


def transposed(t: OperationWriter, x: Term, order: Sequence[int]) -> Term:
    """Permute the dimensions of a term; above four, adjacent ones that stay adjacent are merged."""
    if len(order) <= MOST_DIMENSIONS or x.value.type in (I32, B8):
        return axis_moved(t, x, order) if list(order) != sorted(order) else copied(t, x)
    shape = t.known(x)
    runs = alongside(order, shape)
    inside = sorted(runs)
    narrow = t.reshaped(x, [math.prod(shape[i] for i in run) for run in inside])
    turned = [inside.index(run) for run in runs]
    if len(turned) > MOST_DIMENSIONS:
        return axis_moved_in_steps(t, narrow, turned, [shape[i] for i in order])
    made = narrow if turned == sorted(turned) else t.make("TRANSPOSE", narrow, t.integers(turned))
    return t.reshaped(made, [shape[i] for i in order])


def axis_moved_in_steps(t: OperationWriter, x: Term, order: Sequence[int], shape: Sequence[int]) -> Term:
    """Move each dimension to its place, by a TRANSPOSE of the dimensions before it, itself, and those behind it."""
    there = list(range(len(order)))
    for place, wanted in enumerate(order):
        at = there.index(wanted)
        if at == place:
            continue
        sizes = t.known(x)
        parts = [sizes[:place], sizes[place:at], sizes[at : at + 1], sizes[at + 1 :]]
        turned = t.make("TRANSPOSE", t.reshaped(x, [math.prod(p) for p in parts]), t.integers([0, 2, 1, 3]))
        x = t.reshaped(turned, (*parts[0], *parts[2], *parts[1], *parts[3]))
        there.insert(place, there.pop(at))
    return t.reshaped(x, shape)


def alongside(order: Sequence[int], shape: Sequence[int]) -> list[list[int]]:
    """Return the dimensions in their new order, grouped if adjacent before and after, without dimensions of 1."""
    counting = [i for i, size in enumerate(shape) if size != 1]
    after = dict(pairwise(counting))
    runs: list[list[int]] = []
    for i in order:
        if shape[i] == 1:
            continue
        if runs and after.get(runs[-1][-1]) == i:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs or [[0]]


def merged(shapes: Sequence[tuple[int, ...]], whole: Sequence[int]) -> list[list[int]]:
    """Return equivalent shapes that broadcast to `whole`, with as few dimensions as possible."""
    full = [(1,) * (len(whole) - len(shape)) + shape for shape in shapes]
    results: list[list[int]] = [[] for _ in shapes]
    before: list[bool] | None = None
    for size, *sizes in zip(whole, *full, strict=True):
        if size == 1:
            continue
        alike = [n == size for n in sizes]
        for result, n in zip(results, sizes, strict=True):
            if alike == before:
                result[-1] *= n
            else:
                result.append(n)
        before = alike
    return [result or [1] for result in results]


def three(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Return a shape with the dimensions before an axis, and those behind it, merged."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def part_of(t: OperationWriter, x: Term, axis: int, start: int, size: int) -> Term:
    """Return a range along one dimension."""
    shape = t.shape(x)
    if (start, size) == (0, shape[axis]):
        return x
    if len(shape) > MOST_DIMENSIONS:
        sizes = t.known(x)
        flat = t.reshaped(x, three(sizes, axis))
        return t.reshaped(part_of(t, flat, 1, start, size), (*sizes[:axis], size, *sizes[axis + 1 :]))
    starts = [start if i == axis else 0 for i in range(len(shape))]
    sizes_ = [size if i == axis else -1 if d is None else d for i, d in enumerate(shape)]
    return t.make("SLICE", x, t.integers(starts), t.integers(sizes_))


def joined(t: OperationWriter, terms: Sequence[Term], axis: int, like: Any = None) -> Term:
    """Concatenate terms; of more than four dimensions, those before and those behind the axis are merged."""
    like = terms[0] if like is None else like
    if len(t.shape(terms[0])) <= MOST_DIMENSIONS:
        return t.make("CONCATENATION", *terms, axis, like=like)
    shapes = [t.known(term) for term in terms]
    first = shapes[0]
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    t.require(len(rest) == 1, f"shapes {', '.join(str(list(s)) for s in shapes)} must differ along axis {axis} only")
    flat = [t.reshaped(term, three(shape, axis)) for term, shape in zip(terms, shapes, strict=True)]
    whole = t.make("CONCATENATION", *flat, 1, like=like)
    return t.reshaped(whole, (*first[:axis], sum(s[axis] for s in shapes), *first[axis + 1 :]))
