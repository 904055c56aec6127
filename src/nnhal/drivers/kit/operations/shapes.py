"""Entries of operations that move elements, and of reductions along axes."""

from collections.abc import Sequence

import numpy as np

from nnhal.base.codes import MirrorPad
from nnhal.base.operands import Value
from nnhal.drivers.kit.movement import block_move, strided_slices
from nnhal.drivers.kit.operations.common import add_up, has_ties, image, layout, part, spoilt, without_nan
from nnhal.drivers.kit.operations.primitives import Node
from nnhal.drivers.kit.operations.task import FLOATS, NUMBERS, GraphTask, entry
from nnhal.drivers.kit.sums import stages
from nnhal.ops.common import axis_of
from nnhal.ops.schema import B8, I32

REDUCTIONS = {"REDUCE_ALL": "logical_and", "REDUCE_ANY": "logical_or"}


@entry("RESHAPE", "SQUEEZE", "EXPAND_DIMS", types=NUMBERS, exact=True)
def reshape(t: GraphTask) -> None:
    """Reshape to the output's shape, of which one dimension may be open."""
    t.require_new_shape()
    dims = t.value().dims
    shape = [-1 if size is None else size for size in dims] if dims.count(None) == 1 else t.value().known
    t.hold(t.o.reshape(t.stored("input"), shape))


@entry("TRANSPOSE", exact=True)
def transpose(t: GraphTask) -> None:
    """Without an order, reverse the dimensions."""
    given = t.places("permutation") or (t.o.needs_elements and t.a.permutation is not None)  # which may be empty
    order = t.array("permutation").tolist() if given else range(t.a.input.rank)[::-1]
    t.hold(t.o.transpose(t.stored("input"), order))


@entry("CONCATENATION", types=NUMBERS, variants=True, exact=True)
@entry("PACK", types=NUMBERS, exact=True)
def join(t: GraphTask) -> None:
    """Join along an axis, or along a new one; inputs of other scales by their real values."""
    t.require_alike()
    places, value = t.places("parts"), t.value()
    axis = axis_of(t.a, "axis", value.rank)
    t.form = "float" if t.form and has_ties(t) else t.form
    alike = all((v.scale, v.zero_point) == (value.scale, value.zero_point) for v in map(t.graph.value, places))
    parts = [t.graph.held(place) if alike else t.real(place) for place in places]
    if len({t.o.dtype(part) for part in parts}) > 1:
        parts = [t.converted(part, value.dtype if t.eight else np.float32) for part in parts]
    if t.name == "PACK":
        parts = [t.o.unsqueeze(part, axis) for part in parts]
    (t.hold if alike else t.give)(t.o.concat(parts, axis))


@entry("SPLIT", types=NUMBERS, exact=True)
def split(t: GraphTask) -> None:
    """Split into equal parts."""
    axis, count = axis_of(t.a, "axis", t.a.input.rank), len(t.operation.outputs)
    t.hold_all(*t.o.split(t.stored("input"), axis, t.a.input.known[axis] // count, count))


@entry("PAD", "PAD_V2", "MIRROR_PAD", types=NUMBERS, exact=True)
def pad(t: GraphTask) -> None:
    """Pad with real zeros, with a value, or with a mirror image."""
    x, (before, after) = t.stored("input"), t.array("paddings").T.tolist()
    if t.name == "MIRROR_PAD":
        mode = "reflect" if t.a.mode == MirrorPad.REFLECT else "symmetric"
        t.hold(t.o.mirror(x, before, after, mode, t.a.input.dims))
    else:
        stored = t.a.input.zero_point if t.name == "PAD" else t.a.value
        t.hold(t.o.pad(x, before, after, t.stored_constant(t.a.input, stored, x)))


@entry("SLICE", types=NUMBERS, exact=True)
def block(t: GraphTask) -> None:
    """Take a contiguous slice."""
    begin, sizes = t.array("begin"), t.array("size")
    end, axes = np.where(sizes < 0, 2**31 - 1, begin + sizes), range(len(begin))
    t.hold(t.o.slice(t.stored("input"), begin.tolist(), end.tolist(), [1] * len(axes), axes))


@entry("STRIDED_SLICE", exact=True)
def strided_slice(t: GraphTask) -> None:
    """Take a slice with strides; omitted dimensions have 1 element."""
    for name in ("begin", "end", "strides"):
        t.array(name)
    x, found = t.stored("input"), []
    for axis, (begin, end, step) in enumerate(zip(*strided_slices(t.a), strict=True)):
        picked = range(begin, max(end, -1), step)
        t.require(picked or not t.o.needs_elements, f"{t.o.name} needs elements, but none are picked")
        if picked != range(t.a.input.known[axis]):
            found.append((begin, end, step, axis))
    x = t.o.slice(x, *zip(*found, strict=True)) if found else x
    t.hold(t.o.reshape(x, t.value().known) if t.a.shrink_mask else x)


@entry("GATHER", "EMBEDDING_LOOKUP", types=NUMBERS, exact=True)
def gather(t: GraphTask) -> None:
    """An index outside fails the execution."""
    source, indices, axis = "values", "lookups", 0
    if t.name == "GATHER":
        source, indices, axis = "input", "indices", axis_of(t.a, "axis", t.a.input.rank)
    found, value = t.stored(indices), getattr(t.a, indices)
    if value.data is None:
        found = t.checked(found, lambda: getattr(t.a, source).known[axis], value.rank)
    t.hold(t.o.gather(t.stored(source), found, axis))


@entry("TILE", types=NUMBERS, exact=True)
def tile(t: GraphTask) -> None:
    """Repeat along each dimension."""
    t.hold(t.o.tile(t.stored("input"), t.array("multiples").tolist()))


@entry("DEPTH_TO_SPACE", "SPACE_TO_DEPTH", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND", "CHANNEL_SHUFFLE", exact=True)
def blocks(t: GraphTask) -> None:
    """Move blocks of pictures with channels first, or groups of channels."""
    x, picture = t.stored("input"), t.name != "CHANNEL_SHUFFLE"
    if t.a.form_has("blocks"):
        t.array("blocks")
    x = image(t, x) if picture else x
    if t.a.form_has("paddings"):
        (top, bottom), (left, right) = t.array("paddings").tolist()
        fill = t.stored_constant(t.a.input, t.a.input.zero_point, x)
        x = t.o.pad(x, [0, 0, top, left], [0, 0, bottom, right], fill)
    y = t.o.blocks(t.name.lower(), x, t.a.block) if t.name in ("DEPTH_TO_SPACE", "SPACE_TO_DEPTH") else None
    if y is None:
        cut, order, whole = block_move(t.a)
        y = t.o.reshape(t.o.transpose(t.o.reshape(x, cut), order), whole)
    t.hold(layout(t, y) if picture else y)


@entry("REVERSE", types=NUMBERS, exact=True)
def reverse(t: GraphTask) -> None:
    """Reverse along one dimension."""
    t.hold(part(t, t.stored("input"), int(t.array("axis").item()) % t.a.input.rank, -1, -1, -1))


@entry("FILL")
def fill(t: GraphTask) -> None:
    """Repeat one value."""
    t.hold(t.o.broadcast(t.stored("value"), t.array("shape").tolist()))


@entry("RANK", types=NUMBERS | {B8}, exact=True)
def rank(t: GraphTask) -> None:
    """Return a value that is known when the model is prepared."""
    t.hold(t.constant(t.a.input.rank, np.int32))


# ----------------------------------------------------------------------------------------------------------- reductions


@entry("MEAN", variants=True)
@entry("REDUCE_MAX", "REDUCE_MIN", exact=True)
@entry("REDUCE_PROD", "REDUCE_SUM", types=FLOATS)
@entry("REDUCE_ALL", "REDUCE_ANY", types=frozenset((B8,)))
def reduce(t: GraphTask) -> None:
    """Reduce; an axis named twice counts once.

    Maxima of stored values stay stored values if an engine merges factors. Of real ones OpenVINO kept 8 bits without a
    sign if an 8-bit kernel followed, and made that rounding part of the reduction. A mean is one of quantisation steps,
    because their halves are exact.
    """
    keep, kind = bool(t.a.keep_dims), REDUCTIONS.get(t.name, t.name.removeprefix("REDUCE_").lower())
    stored = kind in ("max", "min") and t.value().quantised and same_numbers(t.a.input, t.value())
    stored = stored and t.o.merges_factors
    axes = sorted({int(axis) % t.a.input.rank for axis in t.array("axes")})
    even = any((t.a.input.dims[axis] or 0) % 2 == 0 for axis in axes)
    if t.form and (even or stages(t.a.input.shape, axes)):
        # such means are often halves of a quantisation step, which 8-bit kernels round to even; stages have no such kernel
        t.form = "float"
    of_steps = kind == "mean" and t.a.input.quantised and not t.eight
    x = t.counts("input", mean=False) if stored else t.steps("input") if of_steps else t.x("input")
    summed = kind in ("mean", "sum")
    found = add_up(t, kind, x, t.a.input.shape, axes, keep) if summed else extreme_of(t, kind, x, axes, keep)
    found = spoilt(t, f"reduce_{kind}", found, x, axes, keep)
    found = found if keep or len(axes) < t.a.input.rank else t.o.reshape(found, [1])
    if stored:
        t.hold(t.apart(found))
    elif of_steps:
        t.give_steps(found)
    else:
        t.give(found)


def extreme_of(t: GraphTask, kind: str, x: Node, axes: Sequence[int], keep: bool) -> Node:
    """Reduce; of numbers that may be infinite, reduce their halves: twice the greatest finite number is infinite."""
    if kind not in ("max", "min") or t.a.T not in FLOATS or not t.o.forgets_infinity:
        return t.o.reduce(kind, x, axes, keep)
    found = t.o.reduce(kind, t.op("multiply", x, t.f32(0.5)), axes, keep)
    return t.op("multiply", found, t.f32(2))


def same_numbers(one: Value, other: Value) -> bool:
    """Whether stored values of both represent the same real ones."""
    return (one.scale, one.zero_point) == (other.scale, other.zero_point)


def comparable(t: GraphTask, x: Node, instead: float) -> Node:
    """Return numbers that have an order, with another one for NaN."""
    x = t.converted(x, np.int32 if t.a.T == I32 else np.float32)
    return without_nan(t, x, instead) if t.a.T in FLOATS else x


@entry("ARGMAX", "ARGMIN", types=NUMBERS, exact=True)
def arg_extreme(t: GraphTask) -> None:
    """Return the first among equals; NaN counts as the least, or the greatest."""
    most, rank = t.name == "ARGMAX", t.a.input.rank
    x = comparable(t, t.stored("input"), -np.inf if most else np.inf)
    t.hold(t.o.extreme(x, axis_of(t.a, "axis", rank), most, rank == 1))


@entry("TOPK_V2", types=NUMBERS, exact=True)
def top(t: GraphTask) -> None:
    """Reverse the input for the engine: among equals NNAPI returns the last first. NaN counts as the least."""
    x, last, size = t.stored("input"), t.a.input.rank - 1, t.a.input.known[-1]
    turned = part(t, x, last, -1, -1, -1)
    found = t.o.top(comparable(t, turned, -np.inf), t.a.k, last)
    t.hold(x if size == 1 else t.o.gather_each(turned, found, last), 0)
    t.hold(t.converted(t.op("subtract", t.constant(size - 1, t.o.dtype(found)), found), np.int32), 1)
