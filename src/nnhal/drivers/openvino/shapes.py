"""Entries of operations that move elements, and of reductions along axes."""

import math

import numpy as np

from nnhal.base.codes import MirrorPad
from nnhal.drivers.openvino.graph import FLOATS, NUMBERS, QUANTS, Node, Task, entry, shape_of
from nnhal.ops.common import axis_of
from nnhal.ops.schema import B8, I32
from nnhal.ops.slice import strided

REDUCTIONS = {"REDUCE_ALL": "reduce_logical_and", "REDUCE_ANY": "reduce_logical_or", "MEAN": "reduce_mean"}


def i64(t: Task, numbers: object) -> Node:
    """A constant of axes or sizes."""
    return t.constant(numbers, np.int64)


def reshaped(t: Task, x: Node, shape: object) -> Node:
    """The elements in another shape."""
    return t.o.reshape(x, i64(t, shape), special_zero=False)


def transposed(t: Task, x: Node, order: object) -> Node:
    """The dimensions in another order."""
    return t.o.transpose(x, i64(t, order))


@entry("RESHAPE", "SQUEEZE", "EXPAND_DIMS", types=NUMBERS)
def reshape(t: Task) -> None:
    """The output's shape says it all; one dimension of it may be open."""
    if t.name == "RESHAPE":
        t.array("shape")
    shape = list(t.value().dims)
    if shape.count(None) == 1 and 0 not in shape:
        shape[shape.index(None)] = -1
    t.hold(reshaped(t, t.stored("input"), shape if -1 in shape else t.value().known))


@entry("TRANSPOSE")
def transpose(t: Task) -> None:
    """Without an order the dimensions are reversed."""
    order = np.arange(t.a.input.rank)[::-1] if t.a.permutation is None else t.array("permutation")
    t.hold(transposed(t, t.stored("input"), order))


@entry("CONCATENATION", "PACK", types=NUMBERS)
def join(t: Task) -> None:
    """Along an axis, or a new one."""
    places, value = t.places("parts"), t.value()
    axis = axis_of(t.a, "axis", value.rank)
    alike = all((v.scale, v.zero_point) == (value.scale, value.zero_point) for v in map(t.graph.value, places))
    parts = [t.graph.held(place) if alike else t.graph.real(place) for place in places]
    if len({str(part.get_element_type()) for part in parts}) > 1:
        parts = [t.graph.converted(part, "f32") for part in parts]
    if t.name == "PACK":
        parts = [t.o.unsqueeze(part, i64(t, axis)) for part in parts]
    (t.hold if alike else t.give)(t.o.concat(parts, axis))


@entry("SPLIT", types=NUMBERS)
def split(t: Task) -> None:
    """In equal parts."""
    axis, count = axis_of(t.a, "axis", t.a.input.rank), len(t.operation.outputs)
    size = t.a.input.dims[axis]
    t.require(size is not None and size % count == 0, "the size of the axis is only known at execution")
    for number in range(count):
        at = number * (size or 0) // count
        t.hold(sliced(t, t.stored("input"), axis, at, at + (size or 0) // count), number)


def sliced(t: Task, x: Node, axis: int, start: int, end: int, step: int = 1) -> Node:
    """A part of one dimension; an end of -1 behind a negative step is before the first element."""
    end = end if end >= 0 else -(2**31)
    return t.o.slice(x, i64(t, [start]), i64(t, [end]), i64(t, [step]), i64(t, [axis]))


@entry("PAD", "PAD_V2", "MIRROR_PAD", types=NUMBERS)
def pad(t: Task) -> None:
    """With real zeros, with a value, or with what lies on the other side of the border."""
    x, (before, after) = t.stored("input"), t.array("paddings").T
    mode, fill = "constant", t.a.input.zero_point if t.name == "PAD" else t.a.__dict__.get("value", 0)
    if t.name == "MIRROR_PAD":
        mode = "reflect" if t.a.mode == MirrorPad.REFLECT else "symmetric"
    given = t.o.convert(t.constant(fill, np.int32 if isinstance(fill, int) else np.float32), x.get_element_type())
    t.hold(t.o.pad(x, i64(t, before), i64(t, after), mode, given if mode == "constant" else None))


@entry("SLICE", types=NUMBERS)
def slice_(t: Task) -> None:
    """A part in one piece."""
    x, begin, sizes = t.stored("input"), t.array("begin"), t.array("size")
    sizes = np.where(sizes < 0, 2**31 - 1 - begin, sizes)
    t.hold(t.o.slice(x, i64(t, begin), i64(t, begin + sizes), i64(t, np.ones_like(begin))))


@entry("STRIDED_SLICE")
def strided_slice(t: Task) -> None:
    """A part in steps; dimensions that are left out are of 1 element."""
    for name in ("begin", "end", "strides"):
        t.array(name)
    x = t.stored("input")
    for axis, (part, size) in enumerate(zip(strided(t.a), t.a.input.known, strict=True)):
        picked = range(*part.indices(size))
        t.require(len(picked), "OpenVINO needs elements, and none are picked")
        end = picked[-1] + (1 if picked.step > 0 else -1)
        if picked != range(size):
            x = sliced(t, x, axis, picked.start, end, picked.step)
    t.hold(reshaped(t, x, t.value().known))


@entry("GATHER", "EMBEDDING_LOOKUP", types=NUMBERS)
def gather(t: Task) -> None:
    """OpenVINO gives zeros for an index outside, where NNAPI wants an error."""
    source, indices, axis = ("input", "indices", t.a.axis) if t.name == "GATHER" else ("values", "lookups", 0)
    t.array(indices)
    found = t.o.gather(t.stored(source), t.stored(indices), i64(t, axis))
    t.hold(found)


@entry("TILE", types=NUMBERS)
def tile(t: Task) -> None:
    """Repeated along each dimension."""
    t.hold(t.o.tile(t.stored("input"), i64(t, t.array("multiples"))))


@entry("DEPTH_TO_SPACE", "SPACE_TO_DEPTH")
def depth_and_space(t: Task) -> None:
    """Blocks of pictures."""
    kind = t.o.depth_to_space if t.name == "DEPTH_TO_SPACE" else t.o.space_to_depth
    t.hold(t.layout(kind(t.image(t.stored("input")), "blocks_first", t.a.block)))


@entry("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND")
def batch_and_space(t: Task) -> None:
    """By moving dimensions."""
    (h, w), x = t.array("blocks").tolist(), t.image(t.stored("input"))
    if t.name == "SPACE_TO_BATCH_ND":
        (top, bottom), (left, right) = t.array("paddings").tolist()
        zero = t.o.convert(t.constant(t.a.input.zero_point, np.int32), x.get_element_type())
        x = t.o.pad(x, i64(t, [0, 0, top, left]), i64(t, [0, 0, bottom, right]), "constant", zero)
        n, c = t.a.batch, t.a.depth
        height, width = (t.a.height + top + bottom) // h, (t.a.width + left + right) // w
        x = transposed(t, reshaped(t, x, [n, c, height, h, width, w]), [3, 5, 0, 1, 2, 4])
        x = reshaped(t, x, [h * w * n, c, height, width])
    else:
        n, c, height, width = t.a.batch // (h * w), t.a.depth, t.a.height, t.a.width
        x = transposed(t, reshaped(t, x, [h, w, n, c, height, width]), [2, 3, 4, 0, 5, 1])
        x = reshaped(t, x, [n, c, height * h, width * w])
    t.hold(t.layout(x))


@entry("REVERSE", types=NUMBERS)
def reverse(t: Task) -> None:
    """Along one dimension."""
    axis = int(t.array("axis").item()) % t.a.input.rank
    t.hold(sliced(t, t.stored("input"), axis, -1, -1, -1))


@entry("CHANNEL_SHUFFLE")
def channel_shuffle(t: Task) -> None:
    """The transpose of groups and members."""
    shape, groups = t.a.input.known, t.a.groups
    axis = axis_of(t.a, "axis", len(shape))
    cells = reshaped(t, t.stored("input"), [math.prod(shape[:axis]), groups, shape[axis] // groups, -1])
    t.hold(reshaped(t, transposed(t, cells, [0, 2, 1, 3]), shape))


@entry("FILL")
def fill(t: Task) -> None:
    """From a value that is known."""
    kind = np.int32 if t.value().type == I32 else np.float32
    t.hold(t.o.broadcast(t.constant(t.a.value, kind), i64(t, t.array("shape"))))


@entry("RANK", types=NUMBERS | {B8})
def rank(t: Task) -> None:
    """Known when the model is prepared."""
    t.hold(t.constant(t.a.input.rank, np.int32))


# ----------------------------------------------------------------------------------------------------------- reductions


@entry("MEAN", "REDUCE_MAX", "REDUCE_MIN")
@entry("REDUCE_PROD", "REDUCE_SUM", types=FLOATS)
@entry("REDUCE_ALL", "REDUCE_ANY", types=frozenset((B8,)))
def reduce(t: Task) -> None:
    """An axis named twice counts once. OpenVINO's maxima forget NaN: it is put in afterwards."""
    x = t.x("input")
    axes = i64(t, sorted({int(axis) % t.a.input.rank for axis in t.array("axes")}))
    keep = bool(t.a.keep_dims)
    found = getattr(t.o, REDUCTIONS.get(t.name, t.name.lower()))(x, axes, keep)
    if t.name in ("REDUCE_MAX", "REDUCE_MIN") and t.a.T in FLOATS:
        spoilt = t.o.reduce_logical_or(t.missing(x), axes, keep)
        found = t.where(spoilt, t.f32(np.nan), found)
    if shape_of(found).rank == 0:
        found = reshaped(t, found, [1])
    t.give(found)


@entry("ARGMAX", "ARGMIN", types=FLOATS | QUANTS | {I32})
def arg_extreme(t: Task) -> None:
    """The first among equals; NaN counts as the least, or the greatest."""
    most, x = t.name == "ARGMAX", t.graph.converted(t.stored("input"), "i32" if t.a.T == I32 else "f32")
    if t.a.T in FLOATS:
        x = t.where(t.missing(x), t.f32(-np.inf if most else np.inf), x)
    axis = axis_of(t.a, "axis", t.a.input.rank)
    found = t.o.topk(x, t.constant(1, np.int64), axis, "max" if most else "min", "value", "i32", stable=True).output(1)
    squeezed = t.o.squeeze(found, i64(t, [axis]))
    t.hold(reshaped(t, squeezed, [1]) if t.a.input.rank == 1 else squeezed)


@entry("TOPK_V2", types=NUMBERS)
def top(t: Task) -> None:
    """Among equals NNAPI takes the last first and OpenVINO the first: it is given the elements in reverse."""
    x, last, size = t.stored("input"), t.a.input.rank - 1, t.a.input.known[-1]
    turned = sliced(t, x, last, -1, -1, -1)
    compared = t.graph.converted(turned, "i32" if t.a.T == I32 else "f32")
    if t.a.T in FLOATS:
        compared = t.where(t.missing(compared), t.f32(-np.inf), compared)
    found = t.o.topk(compared, t.constant(t.a.k, np.int64), last, "max", "value", "i32", stable=True)
    places = t.o.subtract(t.constant(size - 1, np.int32), found.output(1))
    t.hold(t.o.gather_elements(x, places, last), 0)
    t.hold(places, 1)


