"""Operators that move data: joining and splitting, slices, padding, repeating."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.common.element_moves import NOWHERE, joined, moved, part_of, three
from nnhal.frontends.common.folding import numbers, require_foldable
from nnhal.frontends.common.integer_ranges import of_all, of_first
from nnhal.frontends.common.operators import COUNTED
from nnhal.frontends.common.terms import Term, bare, constant, stored
from nnhal.frontends.common.writing import (
    ASYMMETRIC,
    INT32_RANGE,
    MOST_DIMENSIONS,
    broadcast_shapes,
    check_count,
    copied,
)
from nnhal.frontends.onnx.file import DTYPES, KINDS
from nnhal.frontends.onnx.task import MOST_FOLDED, NodeTask, computed, lower_by_places, operator
from nnhal.ops.schema import B8, F16, F32, I32

# ------------------------------------------------------------------------------------------------- joining and splitting


def concat_moves(t: NodeTask, *xs: Array) -> Any:
    mixed = any(x.dtype == object for x in xs)
    return np.concatenate([x.astype(object) for x in xs] if mixed else xs, t.attr("axis", 0))


@operator("Concat", inputs=(1, None), becomes="CONCATENATION; of booleans and integers GATHER and SELECT",
          moves=concat_moves, joins=True, span=of_all, on_stored=True, on_reals=True)  # fmt: skip
def concat(t: NodeTask) -> None:
    """Concatenate, without empty inputs."""
    places = [n for n in range(len(t.node.inputs)) if t.raw(n).data is None or np.asarray(t.raw(n).data).size]
    terms = [t.x(n) for n in places]
    t.require(terms, "has no elements, which NNAPI has no tensors for")
    axis = t.axis(t.attr("axis", 0), t.rank(terms[0]))
    kind = terms[0].kind
    even = all((x.value.scale, x.value.zero_point) == (terms[0].value.scale, terms[0].value.zero_point) for x in terms)
    t.require(even, "has inputs with different scales")
    terms = [x for x in terms if 0 not in t.shape(x)] or terms[:1]
    if len(terms) == 1:
        t.result(0, copied(t, terms[0]) if terms[0].value.data is None else terms[0], kind)
        return
    t.result(0, joined(t, terms, axis), kind)


def parts_of(t: NodeTask, size: int) -> list[int]:
    """Return the sizes of the outputs: given ones, or equal ones, of which the last may be smaller."""
    parts, count = t.listed(1, "split"), len(t.node.outputs)
    if not parts:
        step = -(-size // count)
        parts = [min(step, size - n * step) for n in range(count)]
    fits = len(parts) == count and sum(parts) == size and min(parts) >= 0
    t.require(fits, f"split is {parts}, must sum up to {size}")
    return parts


def split_moves(t: NodeTask, x: Array) -> Any:
    axis = t.attr("axis", 0)
    return np.split(x, np.cumsum(parts_of(t, x.shape[axis]))[:-1], axis)


@operator("Split", inputs=(1, 2), outputs=(1, None), becomes="SPLIT, or SLICE for each part", moves=split_moves,
          span=of_all, on_stored=True, on_reals=True)  # fmt: skip
def split(t: NodeTask) -> None:
    """Split a dimension."""
    x = t.x(0)
    axis = t.axis(t.attr("axis", 0), t.rank(x))
    size = t.shape(x)[axis]
    if size is None:
        t.refuse("has a size along its axis that is known only at execution")
    parts = parts_of(t, size)
    if len(set(parts)) == 1 and t.rank(x) <= MOST_DIMENSIONS and x.value.type != B8:
        for n, term in enumerate(equal_parts(t, x, axis, len(parts))):
            t.result(n, term, x.kind)
        return
    start = 0
    for n, part in enumerate(parts):
        if t.is_output_used(n):
            t.result(n, part_of(t, x, axis, start, part), x.kind)
        start += part


def equal_parts(t: NodeTask, x: Term, axis: int, count: int) -> list[Term]:
    """Split one dimension into equal parts, for at most `MOST_DIMENSIONS` dimensions."""
    if count == 1:
        return [x]
    return t.run("SPLIT", x, axis, count, outs=[bare(x.value)] * count)


class SliceBounds(NamedTuple):
    """The range of one axis of a Slice."""

    start: int
    end: int
    axis: int
    step: int


def bounds_of(t: NodeTask, rank: int) -> list[SliceBounds]:
    """Return the ranges of a Slice."""
    starts, ends, axes = (t.listed(n, name) for n, name in enumerate(("starts", "ends", "axes"), 1))
    axes = axes or list(range(len(starts)))
    steps = t.ints(4, "steps") if t.given(4) else [1] * len(starts)
    even = len(starts) == len(ends) == len(axes) == len(steps)
    t.require(even, "starts, ends, axes and steps must have the same length")
    found = [
        SliceBounds(low, high, t.axis(n, rank), step)
        for low, high, n, step in zip(starts, ends, axes, steps, strict=True)
    ]
    t.require(all(bounds.step for bounds in found), "has a step of 0")
    return found


def slice_moves(t: NodeTask, x: Array) -> Any:
    index = [slice(None)] * x.ndim
    for bounds in bounds_of(t, x.ndim):
        index[bounds.axis] = sliced(bounds, x.shape[bounds.axis])
    return x[tuple(index)]


def sliced(bounds: SliceBounds, size: int) -> slice:
    """Return a slice of a dimension, clamped as in ONNX."""
    start, end, _, step = bounds
    start += size if start < 0 else 0
    end += size if end < 0 else 0
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return slice(start, None if end < 0 else end, step)


@operator("Slice", inputs=(1, 5), becomes="SLICE, or STRIDED_SLICE; of booleans GATHER", moves=slice_moves,
          span=of_first, on_stored=True, on_reals=True)  # fmt: skip
def slice_(t: NodeTask) -> None:
    """Slice. Negative bounds count from the end, and bounds are clamped to the size."""
    x = t.x(0)
    shape = t.shape(x)[: t.rank(x)]
    index = [slice(None)] * len(shape)
    for bounds in bounds_of(t, len(shape)):
        size = shape[bounds.axis]
        if size is not None:
            index[bounds.axis] = sliced(bounds, size)
        else:
            whole = bounds.start == 0 and bounds.end >= INT32_RANGE.max and bounds.step == 1
            t.require(whole, "of a size known only at execution")
    ranges = [range(*each.indices(size)) if size is not None else None for each, size in zip(index, shape, strict=True)]
    left = [len(r) if r is not None else None for r in ranges]
    if 0 in left:
        t.require(
            x.kind in DTYPES and None not in left,
            f"leaves no elements of {list(shape)}, which NNAPI has no tensors for",
        )
        t.known_result(np.zeros([d or 0 for d in left], DTYPES[x.kind]), kind=x.kind)
        return
    if left == list(shape) and all(r is None or r.step == 1 for r in ranges):
        t.result(0, copied(t, x) if x.value.data is None else x, x.kind)
        return
    if x.value.type == B8 or len(shape) > MOST_DIMENSIONS:
        cut = [i for i, r in enumerate(ranges) if r is not None and r != range(shape[i] or 0)]
        first = ranges[cut[0]] if cut else None
        if x.value.type != B8 and len(cut) == 1 and first is not None and first.step == 1:
            t.result(0, part_of(t, x, cut[0], first.start, len(first)), x.kind)
        else:
            lower_by_places(t)
        return
    if all(r is None or r.step == 1 for r in ranges):
        begin = t.integers([0 if r is None else r.start for r in ranges])
        t.result(0, t.make("SLICE", x, begin, t.integers([-1 if d is None else d for d in left])), x.kind)
        return
    begin = t.integers([0 if r is None else r.start for r in ranges])
    end = t.integers([0 if r is None else max(r.stop, 0) for r in ranges])
    strides = t.integers([1 if r is None else r.step for r in ranges])
    open_ends = sum(1 << i for i, r in enumerate(ranges) if r is None or r.stop < 0)
    open_starts = sum(1 << i for i, r in enumerate(ranges) if r is None)
    t.result(0, t.make("STRIDED_SLICE", x, begin, end, strides, open_starts, open_ends, 0), x.kind)


# ---------------------------------------------------------------------------------------------------- padding, repeating


@operator("Pad", inputs=(1, 4), becomes="PAD, PAD_V2, MIRROR_PAD; of edges, and where it cuts, GATHER "
          "or SLICE",
          span=of_all)  # fmt: skip
def pad(t: NodeTask) -> None:
    """Add elements around a tensor; negative numbers remove some."""
    x, mode = t.x(0), t.attr("mode", "constant")
    rank = t.rank(x)
    pads = t.listed(1, "pads")
    axes = t.ints(3, "axes") if t.given(3) else list(range(rank))
    t.require(len(pads) == 2 * len(axes), f"has {len(pads)} pads, must have {2 * len(axes)}")
    widths = [(0, 0)] * rank
    for n, axis in enumerate(axes):
        widths[t.axis(axis, rank)] = pads[n], pads[n + len(axes)]
    for axis, (low, high) in enumerate(widths):
        if low < 0 or high < 0:
            size = t.known(x)[axis]
            left = size + min(low, 0) + min(high, 0)
            t.require(left > 0, "leaves nothing")
            x = part_of(t, x, axis, -min(low, 0), left)
            widths[axis] = max(low, 0), max(high, 0)
    if not any(map(sum, widths)):
        t.result(0, copied(t, x) if x is t.raw(0) and x.value.data is None else x, t.raw(0).kind)
        return
    kind = t.raw(0).kind
    if mode == "constant":
        value = t.number(2, "value") if t.given(2) else t.attr("value", 0.0)
        t.result(0, filled_around(t, x, widths, value), kind)
        return
    t.require(mode in ("reflect", "edge", "wrap"), f"mode is {mode}, must be constant, reflect, edge or wrap")
    mirrors = all(sum(w) == 0 or max(w) < d for w, d in zip(widths, t.known(x), strict=True))
    if mode == "reflect" and rank <= MOST_DIMENSIONS and mirrors and x.value.type in (F32, F16):
        t.result(0, t.make("MIRROR_PAD", x, rows(t, widths), 0), kind)
        return
    how = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}[mode]
    for axis, pair in enumerate(widths):
        if sum(pair):
            check_count(t.known(x)[axis] + sum(pair))
            places = np.pad(np.arange(t.known(x)[axis]), pair, how)  # type: ignore[call-overload]
            x = t.make("GATHER", x, axis, constant(Value(I32), places.astype(np.int32)))
    t.result(0, x, kind)


def rows(t: NodeTask, widths: Sequence[tuple[int, int]]) -> Term:
    """Return paddings in NNAPI's layout."""
    return constant(Value(I32), np.array(widths, np.int32).reshape(-1, 2))


def filled_around(t: NodeTask, x: Term, widths: Sequence[tuple[int, int]], value: float) -> Term:
    """Add elements of one value around a term; for quantised terms, a stored value."""
    shape = t.shape(x)
    t.require(
        all(0 <= n <= INT32_RANGE.max for pair in widths for n in pair), f"pads is {widths}, must fit into 32 bits"
    )
    if x.value.type not in (F32, F16, *ASYMMETRIC):
        sizes = t.known(x)
        check_count(math.prod(d + sum(w) for d, w in zip(sizes, widths, strict=True)))
        places = np.pad(np.arange(math.prod(sizes)).reshape(sizes), widths, constant_values=NOWHERE)
        return moved(t, [x], places, int(value))
    if len(shape) > MOST_DIMENSIONS:
        return deep_padded(t, x, widths, value)
    if value == stored(x.value):
        return t.make("PAD", x, rows(t, widths))
    return t.make("PAD_V2", x, rows(t, widths), float(value) if x.value.type in (F32, F16) else int(value))


def deep_padded(t: NodeTask, x: Term, widths: Sequence[tuple[int, int]], value: float) -> Term:
    """Pad more than four dimensions, one after the other."""
    for axis, pair in enumerate(widths):
        if sum(pair):
            shape = t.known(x)
            flat = filled_around(t, t.reshaped(x, three(shape, axis)), [(0, 0), pair, (0, 0)], value)
            x = t.reshaped(flat, (*shape[:axis], shape[axis] + sum(pair), *shape[axis + 1 :]))
    return x


def tile_moves(t: NodeTask, x: Array) -> Any:
    counts = t.ints(1, "repeats")
    require_foldable(
        len(counts) == x.ndim and min(counts, default=1) >= 0 and x.size * math.prod(counts) <= MOST_FOLDED
    )
    return np.tile(x, counts)


@operator("Tile", inputs=2, becomes="TILE", moves=tile_moves, span=of_first)
def tile(t: NodeTask) -> None:
    """Repeat along each dimension."""
    x, counts = t.x(0), t.ints(1, "repeats")
    t.require(
        len(counts) == t.rank(x) and min(counts, default=1) > 0,
        f"repeats is {counts}, must have one positive number for each dimension",
    )
    t.result(0, repeated(t, x, counts), x.kind, scalar=x.scalar)


def repeated(t: NodeTask, x: Term, counts: Sequence[int]) -> Term:
    """Repeat a term along each dimension."""
    if all(n == 1 for n in counts):
        return copied(t, x) if x.value.data is None else x
    return t.make("TILE", x, t.integers(counts))


def expand_moves(t: NodeTask, x: Array) -> Any:
    full = np.broadcast_shapes(x.shape, tuple(t.ints(1, "shape")))
    require_foldable(math.prod(full) <= MOST_FOLDED)
    return np.broadcast_to(x, full)


@operator("Expand", inputs=2, becomes="TILE", moves=expand_moves, span=of_first)
def expand(t: NodeTask) -> None:
    """Broadcast: repeat along dimensions of 1, in both directions."""
    x, wanted = t.x(0), t.ints(1, "shape")
    sizes = t.known(x)[: t.rank(x)]
    whole = broadcast_shapes(sizes, wanted)
    full = (1,) * (len(whole) - len(sizes)) + sizes
    t.require(0 not in whole, "has no elements")
    if not whole:
        t.same(x)
        return
    t.result(0, repeated(t, t.reshaped(x, full), [w // s for w, s in zip(whole, full, strict=True)]), x.kind)


# ------------------------------------------------------------------------------------------- computed at import only


@computed("Range", becomes="a constant, of limits that are known",
          refused=f"of limits that are computed at execution {COUNTED}")  # fmt: skip
def range_(_: NodeTask, start: Array, limit: Array, delta: Array) -> Any:
    first, last, step = (x.reshape(()) for x in (start, limit, delta))
    require_foldable(step != 0 and abs(float(last) - float(first)) / abs(float(step)) <= MOST_FOLDED)
    count = max(0, math.ceil((last.item() - first.item()) / step.item()))
    return (first + np.arange(count) * step).astype(start.dtype)


@computed("ConstantOfShape", becomes="a constant, of a shape that is known",
          refused=f"of a shape that is computed at execution {COUNTED}")  # fmt: skip
def constant_of_shape(t: NodeTask, shape: Array) -> Any:
    sizes = numbers(shape)
    require_foldable(min(sizes, default=0) >= 0 and math.prod(sizes) <= MOST_FOLDED and len(sizes) <= 8)
    if "value" not in t.node.attributes:
        return np.zeros(sizes, np.float32), "FLOAT"
    tensor = t.attr.tensor("value")
    value = t.graph.array(tensor)
    require_foldable(value is not None and value.size == 1)
    return np.full(sizes, np.asarray(value).reshape(())), tensor.kind


@operator("EyeLike", becomes="a constant of the input's shape")
def eye_like(t: NodeTask) -> None:
    """Write ones on a diagonal, and zeros elsewhere."""
    x = t.raw(0)
    kind = KINDS.get(t.attr("dtype", 0), "") or x.kind
    shape = t.known(x)
    t.require(
        len(shape) == 2 and kind in DTYPES, f"of {x.kind} of rank {len(shape)} has no value, must be numbers of 2"
    )
    check_count(math.prod(shape))
    t.known_result(np.eye(shape[0], shape[1], t.attr("k", 0), np.dtype(DTYPES[kind])), kind=kind)


@computed("NonZero", becomes="a constant, of values that are known",
          refused=f"of values that are computed at execution {COUNTED}")  # fmt: skip
def nonzero(_: NodeTask, x: Array) -> Any:
    require_foldable(x.size <= MOST_FOLDED)
    return np.array(np.nonzero(x)), "INT64"
