"""Entries of operators that move data: shapes, slices, joining and splitting, padding, blocks, reductions over axes."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nnhal.base.operands import Value
from nnhal.frontends.common.element_moves import transposed
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.writing import MOST_DIMENSIONS
from nnhal.frontends.tflite.reader import Fields
from nnhal.frontends.tflite.task import OperatorTask, entry
from nnhal.ops.schema import B8, I32

# ---------------------------------------------------------------------------------------------------------------- shapes


@entry("RESHAPE", inputs=(1, 2))
def reshape(t: OperatorTask) -> None:
    """Reshape to an input or an option. One dimension may be open (-1), or be known only at execution."""
    x = t.x(0)
    if t.given(1) and t.raw(1).data is None:
        t.give("RESHAPE", x, t.index(1, "shape"))
        return
    wanted = t.partly(1, "shape") if t.given(1) else list(t.options("ReshapeOptions").numbers("NewShape") or ())
    if wanted == [0] and not t.graph.source.tensors[t.operator.outputs[0]].shape:
        wanted = []  # a scalar in old files
    t.reshaped(x, [None if n == -1 else n for n in wanted] or [1], out=True)


@entry("SQUEEZE")
def squeeze(t: OperatorTask) -> None:
    """Remove the named dimensions of 1, or all."""
    x = t.x(0)
    shape = t.shape(x)[: t.rank(x)]
    named = t.options("SqueezeOptions").numbers("SqueezeDims") or ()
    axes = sorted({t.axis(n, len(shape)) for n in named})
    if not axes:
        t.known(x)
        axes = [i for i, d in enumerate(shape) if d == 1]
    t.require(all(shape[i] in (1, None) for i in axes), f"dimensions {axes} of {list(shape)} must be 1")
    left = [d for i, d in enumerate(shape) if i not in axes]
    if x.value.type != I32 and axes and len(shape) <= 4:
        t.give("SQUEEZE", x, t.integers(axes))
    else:
        t.reshaped(x, left or [1], out=True)


@entry("EXPAND_DIMS", inputs=2)
def expand_dims(t: OperatorTask) -> None:
    """Insert a dimension of 1."""
    x, axis = t.x(0), t.integer(1, "axis")
    if x.scalar:
        t.reshaped(x, [1], out=True)
    else:
        t.give("EXPAND_DIMS", x, t.axis(axis, t.rank(x) + 1))


@entry("SHAPE")
def shape_of(t: OperatorTask) -> None:
    """Return the shape, known at import as far as possible."""
    x = t.raw(0)
    shape = t.shape(x)[: t.rank(x)]
    t.known_result(np.array(shape, object if None in shape else np.int64))


@entry("RANK")
def rank_of(t: OperatorTask) -> None:
    """Return the rank, known at import."""
    t.known_result(np.array(t.rank(t.raw(0))))


@entry("TRANSPOSE", inputs=2)
def transpose(t: OperatorTask) -> None:
    """Permute the dimensions; above four, adjacent ones that stay adjacent are merged."""
    x = t.x(0)
    if t.rank(x) <= MOST_DIMENSIONS:
        t.give("TRANSPOSE", x, t.index(1, "permutation"))
        return
    shape, order = t.known(x), t.ints(1, "permutation")
    t.require(
        sorted(order) == list(range(len(shape))), f"permutation is {order}, must be one of {len(shape)} dimensions"
    )
    t.result(0, transposed(t, x, order))


# ------------------------------------------------------------------------------------------------- joining and splitting


@entry("CONCATENATION", inputs=(1, None))
def concatenate(t: OperatorTask) -> None:
    """Concatenate; quantised inputs may have different scales."""
    o, terms = t.options("ConcatenationOptions"), t.xs()
    axis, code = o("Axis"), o("FusedActivationFunction")
    axis = t.axis(axis, t.rank(terms[0]))
    if t.rank(terms[0]) > MOST_DIMENSIONS:
        joined_flat(t, terms, axis)
    elif code:
        t.activated(code, t.make("CONCATENATION", *terms, axis, like=t.out()))
    else:
        t.give("CONCATENATION", *terms, axis)


def joined_flat(t: OperatorTask, terms: Sequence[Term], axis: int) -> None:
    """Concatenate more than four dimensions: those before and those after the axis are merged."""
    shapes = [t.known(term) for term in terms]
    first = shapes[0]
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    t.require(len(rest) == 1, f"shapes {', '.join(str(list(s)) for s in shapes)} must differ along axis {axis} only")
    outer, inner = math.prod(first[:axis]), math.prod(first[axis + 1 :])
    flat = [t.reshaped(term, (outer, shape[axis], inner)) for term, shape in zip(terms, shapes, strict=True)]
    joined = t.make("CONCATENATION", *flat, 1, like=t.out())
    t.reshaped(joined, (*first[:axis], sum(s[axis] for s in shapes), *first[axis + 1 :]), out=True)


@entry("PACK", inputs=(1, None))
def pack(t: OperatorTask) -> None:
    """Concatenate along a new dimension."""
    terms = t.xs()
    rank = t.rank(terms[0])
    axis = t.axis(t.options("PackOptions")("Axis"), rank + 1)
    if rank:
        t.give("PACK", axis, *terms)
    else:
        t.reshaped(t.make("PACK", 0, *terms, like=terms[0]), [len(terms)], out=True)


@entry("UNPACK", outputs=(1, None))
def unpack(t: OperatorTask) -> None:
    """Split into slices of size 1, without that dimension."""
    x = t.x(0)
    shape, count = t.shape(x), len(t.operator.outputs)
    axis = t.axis(t.options("UnpackOptions")("Axis"), t.rank(x))
    t.require(
        shape[axis] in (count, None), f"dimension {axis} is {shape[axis]}, must be {count}, the number of outputs"
    )
    left = (*shape[:axis], *shape[axis + 1 :])
    parts = [x] if count == 1 else t.run("SPLIT", x, axis, count, outs=[bare(x)] * count)
    for number, part in enumerate(parts):
        if x.value.type == I32 or not left:
            like = t.out(number)
            dims = t.integers([-1 if d is None else d for d in left or (1,)])
            t.result(number, t.run("RESHAPE", part, dims, outs=[like])[0])
        else:
            t.result(number, t.run("SQUEEZE", part, t.integers([axis]), outs=[t.out(number)])[0])


@entry("SPLIT", inputs=2, outputs=(1, None))
def split(t: OperatorTask) -> None:
    """Split into equal slices; the axis comes first in TFLite."""
    x, count = t.x(1), len(t.operator.outputs)
    t.give("SPLIT", x, t.axis(t.integer(0, "axis"), t.rank(x)), count)


@entry("SPLIT_V", inputs=3, outputs=(1, None))
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


@entry("SLICE", inputs=3)
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


@entry("STRIDED_SLICE", inputs=4)
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


@entry("TILE", inputs=2)
def tile(t: OperatorTask) -> None:
    t.give("TILE", t.x(0), t.index(1, "multiples"))


@entry("REVERSE_V2", inputs=2)
def reverse(t: OperatorTask) -> None:
    """Reverse one dimension after the other."""
    x, axes = t.x(0), t.ints(1, "axis")
    axes = [t.axis(axis, t.rank(x)) for axis in axes]
    for axis in axes[:-1]:
        x = t.make("REVERSE", x, t.integers([axis]))
    t.give("REVERSE", x, t.integers(axes[-1:]))


# --------------------------------------------------------------------------------------------------------------- padding


@entry("PAD", inputs=2)
def pad(t: OperatorTask) -> None:
    """Pad with real 0."""
    t.give("PAD", t.x(0), t.index(1, "paddings"))


@entry("PADV2", inputs=3)
def pad_value(t: OperatorTask) -> None:
    """Pad with a constant that has the quantisation of the input."""
    x, value = t.x(0), t.x(2)
    scales = [(v.scale, v.zero_point) for v in (x.value, value.value)]
    t.require(scales[0] == scales[1], "the value has another scale than the input, must have the same")
    t.give("PAD_V2", x, t.index(1, "paddings"), t.number(2, "value"))


@entry("MIRROR_PAD", inputs=2)
def mirror_pad(t: OperatorTask) -> None:
    """Pad by mirroring; TFLite's modes are NNAPI's."""
    t.give("MIRROR_PAD", t.x(0), t.index(1, "paddings"), t.options("MirrorPadOptions")("Mode"))


# ---------------------------------------------------------------------------------------------------------------- blocks


@entry("SPACE_TO_DEPTH", "DEPTH_TO_SPACE")
def blocks(t: OperatorTask) -> None:
    kind = "SpaceToDepthOptions" if t.name == "SPACE_TO_DEPTH" else "DepthToSpaceOptions"
    t.give(t.name, t.x(0), t.options(kind)("BlockSize"))


@entry("SPACE_TO_BATCH_ND", inputs=3)
def space_to_batch(t: OperatorTask) -> None:
    """Move blocks to batches; NNAPI requires four dimensions."""
    t.give(t.name, t.x(0), t.index(1, "block_shape"), t.index(2, "paddings"))


@entry("BATCH_TO_SPACE_ND", inputs=3)
def batch_to_space(t: OperatorTask) -> None:
    """Move batches to blocks, and slice the result, because NNAPI does not crop."""
    x, block, crops = t.x(0), t.index(1, "block_shape"), t.ints(2, "crops")
    if not any(crops):
        t.give(t.name, x, block)
        return
    t.require(len(crops) == 4 and min(crops) >= 0, f"crops is {crops}, must be two for height and two for width")
    whole = t.make(t.name, x, block)
    sizes = t.shape(whole)
    t.require(None not in sizes[1:3], "height or width is known only at execution, must be known for crops")
    (top, bottom), (left, right) = crops[:2], crops[2:]
    extents = [-1, (sizes[1] or 0) - top - bottom, (sizes[2] or 0) - left - right, -1]
    t.give("SLICE", whole, t.integers([0, top, left, 0]), t.integers(extents))


def bare(term: Term) -> Value:
    """Return the type and quantisation of a term, for another one."""
    value = term.value
    return Value(value.type, None, value.scale, value.zero_point)
