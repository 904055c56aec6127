"""Operators that move data: joining and splitting, slices, repeating, reversing."""

import math
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.common.element_moves import joined
from nnhal.frontends.common.folding import numbers, require_foldable
from nnhal.frontends.common.integer_ranges import of_all
from nnhal.frontends.common.terms import Term, bare, constant
from nnhal.frontends.common.writing import MOST_DIMENSIONS
from nnhal.frontends.tflite.reader import Fields
from nnhal.frontends.tflite.shapes import axis_of
from nnhal.frontends.tflite.task import MOST_FOLDED, OperatorTask, operator
from nnhal.ops.schema import B8, I32

# ------------------------------------------------------------------------------------------------- joining and splitting


def concatenate_moves(t: OperatorTask, *xs: Array) -> Any:
    fields = t.options("ConcatenationOptions")
    require_foldable(fields("FusedActivationFunction") == 0)
    return np.concatenate([x.astype(object) for x in xs], fields("Axis"))


@operator("CONCATENATION", inputs=(1, None), moves=concatenate_moves, joins=True, span=of_all)
def concatenate(t: OperatorTask) -> None:
    """Concatenate; quantised inputs may have different scales."""
    o, terms = t.options("ConcatenationOptions"), t.xs()
    axis, code = o("Axis"), o("FusedActivationFunction")
    axis = t.axis(axis, t.rank(terms[0]))
    if t.rank(terms[0]) > MOST_DIMENSIONS:
        t.result(0, joined(t, terms, axis, t.out()))
    elif code:
        t.activated(code, t.make("CONCATENATION", *terms, axis, like=t.out()))
    else:
        t.give("CONCATENATION", *terms, axis)


def pack_moves(t: OperatorTask, *xs: Array) -> Any:
    return np.stack([x.astype(object) for x in xs], t.options("PackOptions")("Axis"))


@operator("PACK", inputs=(1, None), moves=pack_moves, joins=True, span=of_all)
def pack(t: OperatorTask) -> None:
    """Concatenate along a new dimension."""
    terms = t.xs()
    rank = t.rank(terms[0])
    axis = t.axis(t.options("PackOptions")("Axis"), rank + 1)
    if rank:
        t.give("PACK", axis, *terms)
    else:
        t.reshaped(t.make("PACK", 0, *terms, like=terms[0]), [len(terms)], out=True)


def unpack_moves(t: OperatorTask, x: Array) -> Any:
    axis = t.options("UnpackOptions")("Axis")
    require_foldable(x.shape[axis] <= MOST_FOLDED)
    return list(np.moveaxis(x, axis, 0))


@operator("UNPACK", outputs=(1, None), moves=unpack_moves, span=of_all)
def unpack(t: OperatorTask) -> None:
    """Split into slices of size 1, without that dimension."""
    x = t.x(0)
    shape, count = t.shape(x), len(t.operator.outputs)
    axis = t.axis(t.options("UnpackOptions")("Axis"), t.rank(x))
    t.require(
        shape[axis] in (count, None), f"dimension {axis} is {shape[axis]}, must be {count}, the number of outputs"
    )
    left = (*shape[:axis], *shape[axis + 1 :])
    parts = [x] if count == 1 else t.run("SPLIT", x, axis, count, outs=[bare(x.value)] * count)
    for number, part in enumerate(parts):
        if x.value.type == I32 or not left:
            like = t.out(number)
            dims = t.integers([-1 if d is None else d for d in left or (1,)])
            t.result(number, t.run("RESHAPE", part, dims, outs=[like])[0])
        else:
            t.result(number, t.run("SQUEEZE", part, t.integers([axis]), outs=[t.out(number)])[0])


def split_moves(t: OperatorTask, axis: Array, x: Array) -> Any:
    count = t.options("SplitOptions")("NumSplits")
    require_foldable(0 < count <= MOST_FOLDED)
    return np.split(x, count, axis_of(axis))


@operator("SPLIT", inputs=2, outputs=(1, None), moves=split_moves, first=1, span=of_all)
def split(t: OperatorTask) -> None:
    """Split into equal slices; the axis comes first in TFLite."""
    x, count = t.x(1), len(t.operator.outputs)
    t.give("SPLIT", x, t.axis(t.integer(0, "axis"), t.rank(x)), count)


def split_sizes_moves(_: OperatorTask, x: Array, sizes: Array, axis: Array) -> Any:
    require_foldable(min(numbers(sizes), default=0) >= 0 and sum(numbers(sizes)) == x.shape[axis_of(axis)])
    return np.split(x, np.cumsum(sizes)[:-1].astype(np.int64), axis_of(axis))


@operator("SPLIT_V", inputs=3, outputs=(1, None), moves=split_sizes_moves, span=of_all)
def split_sizes(t: OperatorTask) -> None:
    """Split into slices of given sizes, one of which may be the rest."""
    x, sizes = t.x(0), t.ints(1, "size_splits")
    axis, count = t.axis(t.integer(2, "axis"), t.rank(x)), len(t.operator.outputs)
    t.require(len(sizes) == count, f"has {len(sizes)} sizes, must have {count}, one for each output")
    if -1 in sizes:
        rest = t.known(x)[axis] - sum(n for n in sizes if n != -1)
        sizes = [rest if n == -1 else n for n in sizes]
    if len(set(sizes)) == 1:
        t.give("SPLIT", x, axis, count)
        return
    rank, begin = t.rank(x), 0
    for number, size in enumerate(sizes):
        starts = [begin if i == axis else 0 for i in range(rank)]
        extents = [size if i == axis else -1 for i in range(rank)]
        outs = [t.out(number)]
        t.result(number, t.run("SLICE", x, t.integers(starts), t.integers(extents), outs=outs)[0])
        begin += size


# ---------------------------------------------------------------------------------------------------------------- slices


def slice_moves(_: OperatorTask, x: Array, begin: Array, size: Array) -> Any:
    starts, sizes = numbers(begin), numbers(size)
    require_foldable(len(starts) == len(sizes) == x.ndim)
    for start, count, room in zip(starts, sizes, x.shape, strict=True):
        require_foldable(0 <= start <= room and -1 <= count <= room - start)
    return x[tuple(slice(s, None if n == -1 else s + n) for s, n in zip(starts, sizes, strict=True))]


@operator("SLICE", inputs=3, moves=slice_moves, span=of_all)
def slice_(t: OperatorTask) -> None:
    """Slice; a size of -1 is the rest."""
    t.give("SLICE", t.x(0), t.index(1, "begin"), t.index(2, "size"))


class Range(NamedTuple):
    """The range of one dimension in a strided slice. all_before, all_behind: whether begin or end is ignored."""

    begin: int = 0
    end: int = 0
    stride: int = 1
    all_before: bool = True
    all_behind: bool = True
    shrinks: bool = False


def strided_slice_moves(t: OperatorTask, x: Array, begin: Array, end: Array, strides: Array) -> Any:
    fields = t.options("StridedSliceOptions")
    masks = [fields(n) for n in ("EllipsisMask", "NewAxisMask", "ShrinkAxisMask", "BeginMask", "EndMask")]
    require_foldable(not fields("Offset"))
    index: list[Any] = []
    for i, (first, last, stride) in enumerate(zip(numbers(begin), numbers(end), numbers(strides), strict=True)):
        ellipsis, new, shrink, all_before, all_behind = (mask >> i & 1 for mask in masks)
        if ellipsis:
            index.append(Ellipsis)
        elif new:
            index.append(None)
        elif shrink:
            index.append(0 if all_before else first)
        else:
            index.append(slice(None if all_before else first, None if all_behind else last, stride))
    return x[tuple(index)]


@operator("STRIDED_SLICE", inputs=4, moves=strided_slice_moves, span=of_all)
def strided_slice(t: OperatorTask) -> None:
    """Slice with strides; an ellipsis is expanded and new axes are inserted later, because NNAPI has neither."""
    x, o = t.x(0), t.options("StridedSliceOptions")
    if any(t.raw(place).data is None for place in (1, 2, 3)):
        plain = not (o("EllipsisMask") or o("NewAxisMask") or o("Offset"))
        t.require(
            plain, "begin, end or strides are computed at execution, must be constant for an ellipsis or new axes"
        )
        begin, end, strides = t.index(1, "begin"), t.index(2, "end"), t.index(3, "strides")
        masks = [o("BeginMask"), o("EndMask"), o("ShrinkAxisMask")]
        if masks[2]:
            begin, end = one_element(t, x, begin, end, masks[0], masks[2])
            masks = [masks[0] & ~masks[2], masks[1] & ~masks[2], masks[2]]
        if masks[2] == (1 << t.rank(x)) - 1:  # one element, though begin and end are not known before execution
            part = t.make("STRIDED_SLICE", x, begin, end, strides, *masks, like=t.out())
            t.reshaped(part, [1], out=True)
        else:
            t.give("STRIDED_SLICE", x, begin, end, strides, *masks)
        return
    ranges, added = written_out(t, o, t.rank(x))
    rows = [t.integers([getattr(r, name) for r in ranges]) for name in ("begin", "end", "stride")]
    flags = [[getattr(r, name) for r in ranges] for name in ("all_before", "all_behind", "shrinks")]
    masks = [sum(1 << i for i, flag in enumerate(column) if flag) for column in flags]
    if all(r.shrinks for r in ranges):
        added = added[1:]  # a scalar has one dimension already
    if not added:
        t.give("STRIDED_SLICE", x, *rows, *masks)
        return
    part = t.make("STRIDED_SLICE", x, *rows, *masks, like=t.out())
    for axis in added[:-1]:
        part = t.make("EXPAND_DIMS", part, axis)
    t.give("EXPAND_DIMS", part, added[-1])


def one_element(t: OperatorTask, x: Term, begin: Term, end: Term, all_before: int, shrinks: int) -> tuple[Term, Term]:
    """Return begin and end of dimensions that shrink, computed at execution: one element, regardless of end."""
    sizes = t.shape(x)
    bits = [shrinks >> i & 1 for i in range(len(sizes))]
    rooms = [0 if d is None or not bit else d for d, bit in zip(sizes, bits, strict=True)]
    t.require(None not in [d for d, bit in zip(sizes, bits, strict=True) if bit], "shrinks a dimension of open size")
    zeros, ones = t.integers([0] * len(bits)), t.integers([1] * len(bits))
    first = constant(Value(B8), np.array([bool(all_before >> i & 1 and bit) for i, bit in enumerate(bits)]))
    start = t.make("SELECT", first, zeros, begin, like=Value(I32))
    before = t.make("LESS", start, zeros, like=Value(B8))
    counted = t.make("ADD", start, t.integers(rooms), activation=0, like=Value(I32))
    start = t.make("SELECT", before, counted, start, like=Value(I32))
    chosen = constant(Value(B8), np.array(bits, bool))
    behind = t.make("ADD", start, ones, activation=0, like=Value(I32))
    return start, t.make("SELECT", chosen, behind, end, like=Value(I32))


def written_out(t: OperatorTask, o: Fields, rank: int) -> tuple[list[Range], list[int]]:
    """Return a range for each dimension of the input, and the places of new axes in the result."""
    rows = [t.ints(place, what) for place, what in ((1, "begin"), (2, "end"), (3, "strides"))]
    count = len(rows[0])
    t.require(all(len(row) == count for row in rows), f"begin, end and strides are {rows}, must have the same length")
    begin_mask, end_mask, shrink_mask = o("BeginMask"), o("EndMask"), o("ShrinkAxisMask")
    ellipsis, new = o("EllipsisMask"), o("NewAxisMask")
    ranges: list[Range] = []
    added: list[int] = []
    missing = rank - sum(not (ellipsis | new) >> i & 1 for i in range(count))
    t.require(missing >= 0, f"begin has {count} elements, must have at most {rank}, one for each dimension")
    for i, (begin, end, stride) in enumerate(zip(*rows, strict=True)):
        if ellipsis >> i & 1:
            t.require(ellipsis == 1 << i, "has more than one ellipsis")
            ranges += [Range()] * missing
        elif new >> i & 1:
            added.append(len([r for r in ranges if not r.shrinks]) + len(added))
        else:
            last = begin + end if o("Offset") else end
            all_before, all_behind, shrinks = (bool(mask >> i & 1) for mask in (begin_mask, end_mask, shrink_mask))
            if shrinks:  # selects one element, regardless of end
                first = 0 if all_before else begin
                ranges.append(Range(first, first + 1, 1, all_before=False, all_behind=first == -1, shrinks=True))
            else:
                ranges.append(Range(begin, last, stride, all_before, all_behind))
    return ranges + ([] if ellipsis else [Range()] * missing), added


def tile_moves(_: OperatorTask, x: Array, times: Array) -> Any:
    require_foldable(min(numbers(times), default=1) >= 0 and x.size * math.prod(numbers(times)) <= MOST_FOLDED)
    return np.tile(x, numbers(times))


@operator("TILE", inputs=2, moves=tile_moves, span=of_all)
def tile(t: OperatorTask) -> None:
    t.give("TILE", t.x(0), t.index(1, "multiples"))


def reverse_moves(_: OperatorTask, x: Array, axes: Array) -> Any:
    return np.flip(x, tuple(numbers(axes)))


@operator("REVERSE_V2", inputs=2, moves=reverse_moves, span=of_all)
def reverse(t: OperatorTask) -> None:
    """Reverse one dimension after the other."""
    x, axes = t.x(0), t.ints(1, "axis")
    axes = [t.axis(axis, t.rank(x)) for axis in axes]
    for axis in axes[:-1]:
        x = t.make("REVERSE", x, t.integers([axis]))
    t.give("REVERSE", x, t.integers(axes[-1:]))
