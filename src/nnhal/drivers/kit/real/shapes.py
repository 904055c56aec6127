"""Entries of operations that move elements, and of reductions along axes."""

import math
from collections.abc import Sequence

import numpy as np

from nnhal.base.codes import MirrorPad
from nnhal.base.operands import Value
from nnhal.drivers.kit.real.engine import Node
from nnhal.drivers.kit.real.graph import FLOATS, FORMS, NUMBERS, QUANTS, RealTask, entry
from nnhal.drivers.kit.sums import stages
from nnhal.ops.common import axis_of
from nnhal.ops.schema import B8, I32
from nnhal.ops.slice import strided

WHOLE = 2**24  # float32 holds every integer up to here
REDUCTIONS = {"REDUCE_ALL": "logical_and", "REDUCE_ANY": "logical_or"}


@entry("RESHAPE", "SQUEEZE", "EXPAND_DIMS", types=NUMBERS, exact=True)
def reshape(t: RealTask) -> None:
    """Reshape to the output's shape, of which one dimension may be open. A shape given at execution would go unchecked."""
    for name in ("shape", "axes"):
        if t.a.form_has(name) and t.places(name):
            t.array(name)
    dims = t.value().dims
    shape = [-1 if size is None else size for size in dims] if dims.count(None) == 1 else t.value().known
    t.hold(t.o.reshape(t.stored("input"), shape))


@entry("TRANSPOSE", exact=True)
def transpose(t: RealTask) -> None:
    """Without an order, reverse the dimensions."""
    order = range(t.a.input.rank)[::-1] if t.a.permutation is None else t.array("permutation").tolist()
    t.hold(t.o.transpose(t.stored("input"), order))


@entry("CONCATENATION", types=NUMBERS, forms=FORMS, exact=True)
@entry("PACK", types=NUMBERS, exact=True)
def join(t: RealTask) -> None:
    """Join along an axis, or along a new one."""
    t.require_alike()
    places, value = t.places("parts"), t.value()
    axis = axis_of(t.a, "axis", value.rank)
    t.form = "float" if t.halves() else t.form
    alike = all((v.scale, v.zero_point) == (value.scale, value.zero_point) for v in map(t.graph.value, places))
    parts = [t.graph.held(place) if alike else t.real(place) for place in places]
    if len({t.o.dtype(part) for part in parts}) > 1:
        parts = [t.graph.converted(part, value.dtype if t.eight else np.float32) for part in parts]
    if t.name == "PACK":
        parts = [t.o.unsqueeze(part, axis) for part in parts]
    (t.hold if alike else t.give)(t.o.concat(parts, axis))


@entry("SPLIT", types=NUMBERS, exact=True)
def split(t: RealTask) -> None:
    """Split into equal parts."""
    axis, count = axis_of(t.a, "axis", t.a.input.rank), len(t.operation.outputs)
    size = t.a.input.known[axis] // count
    for number in range(count):
        t.hold(t.part(t.stored("input"), axis, number * size, (number + 1) * size), number)


@entry("PAD", "PAD_V2", "MIRROR_PAD", types=NUMBERS, exact=True)
def pad(t: RealTask) -> None:
    """Pad with real zeros, with a value, or with a mirror image."""
    x, (before, after) = t.stored("input"), t.array("paddings").T.tolist()
    if t.name == "MIRROR_PAD":
        t.hold(t.o.pad(x, before, after, "reflect" if t.a.mode == MirrorPad.REFLECT else "symmetric"))
    else:
        t.hold(padded(t, x, before, after, t.a.input.zero_point if t.name == "PAD" else t.a.value))


def padded(t: RealTask, x: Node, before: Sequence[int], after: Sequence[int], stored: float) -> Node:
    """Surround a tensor with a stored value."""
    return t.o.pad(x, before, after, "constant", t.constant(stored, t.o.dtype(x)))


@entry("SLICE", types=NUMBERS, exact=True)
def slice_(t: RealTask) -> None:
    """Take a contiguous slice."""
    begin, sizes = t.array("begin"), t.array("size")
    end, axes = np.where(sizes < 0, 2**31 - 1, begin + sizes), range(len(begin))
    t.hold(t.o.slice(t.stored("input"), begin.tolist(), end.tolist(), [1] * len(axes), axes))


@entry("STRIDED_SLICE", exact=True)
def strided_slice(t: RealTask) -> None:
    """Take a slice with strides; omitted dimensions have 1 element."""
    for name in ("begin", "end", "strides"):
        t.array(name)
    x = t.stored("input")
    for axis, (part, size) in enumerate(zip(strided(t.a), t.a.input.known, strict=True)):
        picked = range(*part.indices(size))
        t.require(len(picked), f"{t.o.name} needs elements, but none are picked")
        end = picked[-1] + (1 if picked.step > 0 else -1)
        if picked != range(size):
            x = t.part(x, axis, picked.start, end, picked.step)
    t.hold(t.o.reshape(x, t.value().known))


@entry("GATHER", "EMBEDDING_LOOKUP", types=NUMBERS, exact=True)
def gather(t: RealTask) -> None:
    """Fail the execution for an index outside: a check of the graph reports it."""
    source, indices, axis = "values", "lookups", 0
    if t.name == "GATHER":
        source, indices, axis = "input", "indices", axis_of(t.a, "axis", t.a.input.rank)
    found = t.stored(indices)
    if getattr(t.a, indices).data is None:
        value = getattr(t.a, source)
        size, rank = value.known[axis], getattr(t.a, indices).rank
        t.require(
            size < WHOLE,
            f"the dimension of {t.o.name} is {size}, must be less than {WHOLE} to compare indices in float32",
        )
        beyond = t.op("less", t.constant(size - 1, np.int32), found)
        outside = t.op("logical_or", t.op("less", found, t.constant(0, np.int32)), beyond)
        t.graph.checks.append(t.o.reshape(t.o.reduce("logical_or", outside, range(rank), True), [1]))
        found = t.op("minimum", t.op("maximum", found, t.constant(0, np.int32)), t.constant(size - 1, np.int32))
    t.hold(t.o.gather(t.stored(source), found, axis))


@entry("TILE", types=NUMBERS, exact=True)
def tile(t: RealTask) -> None:
    """Repeat along each dimension."""
    t.hold(t.o.tile(t.stored("input"), t.array("multiples").tolist()))


@entry("DEPTH_TO_SPACE", "SPACE_TO_DEPTH", exact=True)
def depth_and_space(t: RealTask) -> None:
    """Move blocks of pictures."""
    kind = "depth_to_space" if t.name == "DEPTH_TO_SPACE" else "space_to_depth"
    t.hold(t.layout(t.o.blocks(kind, t.image(t.stored("input")), t.a.block)))


@entry("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND", exact=True)
def batch_and_space(t: RealTask) -> None:
    """Move dimensions."""
    (h, w), x = t.array("blocks").tolist(), t.image(t.stored("input"))
    if t.name == "SPACE_TO_BATCH_ND":
        (top, bottom), (left, right) = t.array("paddings").tolist()
        x = padded(t, x, [0, 0, top, left], [0, 0, bottom, right], t.a.input.zero_point)
        n, c = t.a.batch, t.a.depth
        height, width = (t.a.height + top + bottom) // h, (t.a.width + left + right) // w
        x = t.o.transpose(t.o.reshape(x, [n, c, height, h, width, w]), [3, 5, 0, 1, 2, 4])
        x = t.o.reshape(x, [h * w * n, c, height, width])
    else:
        n, c, height, width = t.a.batch // (h * w), t.a.depth, t.a.height, t.a.width
        x = t.o.transpose(t.o.reshape(x, [h, w, n, c, height, width]), [2, 3, 4, 0, 5, 1])
        x = t.o.reshape(x, [n, c, height * h, width * w])
    t.hold(t.layout(x))


@entry("REVERSE", types=NUMBERS, exact=True)
def reverse(t: RealTask) -> None:
    """Reverse along one dimension."""
    axis = int(t.array("axis").item()) % t.a.input.rank
    t.hold(t.part(t.stored("input"), axis, -1, -1, -1))


@entry("CHANNEL_SHUFFLE", exact=True)
def channel_shuffle(t: RealTask) -> None:
    """Transpose groups and members."""
    shape, groups = t.a.input.known, t.a.groups
    axis = axis_of(t.a, "axis", len(shape))
    cells = t.o.reshape(t.stored("input"), [math.prod(shape[:axis]), groups, shape[axis] // groups, -1])
    t.hold(t.o.reshape(t.o.transpose(cells, [0, 2, 1, 3]), shape))


@entry("FILL")
def fill(t: RealTask) -> None:
    """Fill with a known value."""
    kind = np.int32 if t.value().type == I32 else np.float32
    t.hold(t.o.broadcast(t.constant(t.a.value, kind), t.array("shape").tolist()))


@entry("RANK", types=NUMBERS | {B8}, exact=True)
def rank(t: RealTask) -> None:
    """Return a value that is known when the model is prepared."""
    t.hold(t.constant(t.a.input.rank, np.int32))


# ----------------------------------------------------------------------------------------------------------- reductions


@entry("MEAN", forms=FORMS)
@entry("REDUCE_MAX", "REDUCE_MIN", exact=True)
@entry("REDUCE_PROD", "REDUCE_SUM", types=FLOATS)
@entry("REDUCE_ALL", "REDUCE_ANY", types=frozenset((B8,)))
def reduce(t: RealTask) -> None:
    """Reduce; an axis named twice counts once.

    Engines' maxima forget NaN, so it is restored afterwards. Maxima of stored values stay stored values. Of real ones
    OpenVINO kept 8 bits without a sign if an 8-bit kernel followed, and made that rounding part of the reduction.
    """
    keep, kind = bool(t.a.keep_dims), REDUCTIONS.get(t.name, t.name.removeprefix("REDUCE_").lower())
    stored = kind in ("max", "min") and t.value().quantised and same_numbers(t.a.input, t.value())
    axes = sorted({int(axis) % t.a.input.rank for axis in t.array("axes")})
    even = any((t.a.input.dims[axis] or 0) % 2 == 0 for axis in axes)
    if kind == "mean" and even:
        t.form = "float"  # such means are often halves of a quantisation step, which 8-bit kernels round to even
    if kind in ("mean", "sum") and stages(t.a.input.shape, axes):
        t.form = "float"  # stages are not 8-bit kernels
    of_steps = kind == "mean" and t.a.input.quantised and not t.eight  # halves of quantisation steps are exact
    if of_steps:
        x = t.graph.apart(t.graph.steps(t.place("input")))
    else:
        x = t.graph.converted(t.stored("input"), np.float32) if stored else t.x("input")
    found = t.add_up(kind, x, axes, keep) if kind in ("mean", "sum") else t.o.reduce(kind, x, axes, keep)
    found = t.spoilt(found, x, axes, keep) if kind in ("max", "min") else found
    found = found if keep or len(axes) < t.a.input.rank else t.o.reshape(found, [1])
    if stored:
        t.hold(t.graph.apart(found))
    elif of_steps:
        t.give_steps(found)
    else:
        t.give(found)


def same_numbers(one: Value, other: Value) -> bool:
    """Whether stored values of both represent the same real ones."""
    return (one.scale, one.zero_point) == (other.scale, other.zero_point)


def comparable(t: RealTask, x: Node, instead: float) -> Node:
    """Return numbers that have an order, with another one for NaN."""
    x = t.graph.converted(x, np.int32 if t.a.T == I32 else np.float32)
    return t.op("select", t.missing(x), t.f32(instead), x) if t.a.T in FLOATS else x


@entry("ARGMAX", "ARGMIN", types=FLOATS | QUANTS | {I32}, exact=True)
def arg_extreme(t: RealTask) -> None:
    """Return the first among equals; NaN counts as the least, or the greatest."""
    most, axis = t.name == "ARGMAX", axis_of(t.a, "axis", t.a.input.rank)
    _, found = t.o.top(comparable(t, t.stored("input"), -np.inf if most else np.inf), 1, axis, most)
    t.hold(found if t.a.input.rank == 1 else t.o.squeeze(found, axis))


@entry("TOPK_V2", types=NUMBERS, exact=True)
def top(t: RealTask) -> None:
    """Reverse the input for the engine: among equals NNAPI returns the last first. NaN counts as the least."""
    x, last, size = t.stored("input"), t.a.input.rank - 1, t.a.input.known[-1]
    turned = t.part(x, last, -1, -1, -1)
    _, found = t.o.top(comparable(t, turned, -np.inf), t.a.k, last, True)
    t.hold(x if size == 1 else t.o.gather_each(turned, found, last), 0)
    t.hold(t.op("subtract", t.constant(size - 1, np.int32), found), 1)
