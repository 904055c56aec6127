"""Entries of operations that move elements: reshaping, slicing, joining, padding, blocks, lookups."""

import math

import numpy as np

from nnhal.base.codes import LshProjection, MirrorPad
from nnhal.drivers.litert import quantisation as quant
from nnhal.drivers.litert.common import image, image_out, out_of_rank
from nnhal.drivers.litert.elementwise import without_nan
from nnhal.drivers.litert.graph import FLOATS, QUANTS
from nnhal.drivers.litert.limits import BEYOND_XNNPACK
from nnhal.drivers.litert.task import Task, entry
from nnhal.ops.common import axis_of
from nnhal.ops.schema import B8, F16, I32
from nnhal.ops.slice import strided

NUMBERS = FLOATS | QUANTS | {I32}


def require_shape_of_input(t: Task, name: str) -> None:
    """Refuse an output whose shape is open because an argument is computed.

    A shape that follows from the input is known later.
    """
    if None in t.out.value.dims:
        t.array(name)


@entry("RESHAPE", "SQUEEZE", "EXPAND_DIMS", types=NUMBERS, exact=True)
def reshape(t: Task) -> None:
    """Reshape to the output's shape."""
    if t.name == "RESHAPE":
        require_shape_of_input(t, "shape")
    t.reshape(t.x("input"), t.out)


@entry("TRANSPOSE", exact=True)
def transpose(t: Task) -> None:
    """Without an order, reverse the dimensions."""
    order = np.arange(t.a.input.rank)[::-1] if t.a.permutation is None else t.array("permutation")
    t.emit("TRANSPOSE", [t.x("input"), t.constant(order)], t.out)


@entry("CONCATENATION", exact=True)
def concatenation(t: Task) -> None:
    """Convert inputs to the output's scale.

    LiteRT's signed kernel needs one scale, and its unsigned one rounds differently.
    """
    inputs = [quant.requantised(t, x, t.out.value) for x in t.many("parts")]
    t.emit(t.name, inputs, t.out, "Concatenation", axis=axis_of(t.a, "axis", t.out.value.rank))


@entry("PACK", types=NUMBERS, exact=True)
def pack(t: Task) -> None:
    """Join along a new dimension, with CONCATENATION."""
    parts = t.many("parts")
    t.emit(t.name, parts, t.out, "Pack", valuesCount=len(parts), axis=axis_of(t.a, "axis", t.out.value.rank))


@entry("SPLIT", types=NUMBERS, exact=True)
def split(t: Task) -> None:
    """Pass the axis as a tensor, as TFLite needs it."""
    rank = t.a.input.rank
    t.require(rank <= BEYOND_XNNPACK, f"the rank is {rank}, must be at most {BEYOND_XNNPACK} for XNNPACK")
    axis = t.constant(axis_of(t.a, "axis", rank))
    t.emit(t.name, [axis, t.x("input")], t.outs, "Split", numSplits=len(t.outs))


@entry("PAD", exact=True)
def pad(t: Task) -> None:
    """Pad with real zeros."""
    t.emit(t.name, [t.x("input"), t.constant(t.array("paddings"))], t.out)


@entry("PAD_V2", types=NUMBERS, exact=True)
def pad_with(t: Task) -> None:
    """Pad with a value; a quantised one is passed as it is stored."""
    x = t.x("input")
    t.emit("PADV2", [x, t.constant(t.array("paddings")), t.constant(t.a.value, value=x.value)], t.out)


@entry("MIRROR_PAD", types=NUMBERS, exact=True)
def mirror_pad(t: Task) -> None:
    """Pad with a mirror image."""
    mode = 0 if t.a.mode == MirrorPad.REFLECT else 1
    t.emit(t.name, [t.x("input"), t.constant(t.array("paddings"))], t.out, "MirrorPad", mode=mode)


@entry("SLICE", types=NUMBERS, exact=True)
def slice_(t: Task) -> None:
    """Take a contiguous slice."""
    require_shape_of_input(t, "size")
    t.slice(t.x("input"), t.array("begin").tolist(), t.out)


@entry("STRIDED_SLICE", exact=True)
def strided_slice(t: Task) -> None:
    """Slice from the first picked element to one after the last.

    LiteRT interprets other bounds outside a dimension differently.
    """
    a, rank = t.a, t.a.input.rank
    begin, end, steps = (t.array(name).tolist() for name in ("begin", "end", "strides"))
    open_begin, open_end = a.begin_mask, a.end_mask
    if None not in a.input.dims:
        ranges = [range(*part.indices(size)) for part, size in zip(strided(a), a.input.known, strict=True)]
        t.require(all(len(r) > 0 for r in ranges), "LiteRT needs elements, but none are picked")
        begin, end = [r.start for r in ranges], [r[-1] + (1 if r.step > 0 else -1) for r in ranges]
        open_begin, open_end = 0, sum(1 << i for i, place in enumerate(end) if place < 0)
    bounds = [t.constant(numbers) for numbers in (begin, end, steps)]
    masks = {"beginMask": open_begin, "endMask": open_end, "shrinkAxisMask": a.shrink_mask}
    left = rank - (a.shrink_mask & (1 << rank) - 1).bit_count()
    t.emit(t.name, [t.x("input"), *bounds], out_of_rank(t, left), "StridedSlice", **masks)


@entry("GATHER", types=NUMBERS, exact=True)
def gather(t: Task) -> None:
    """Fail the execution for an index outside."""
    t.emit(t.name, [t.x("input"), t.x("indices")], t.out, "Gather", axis=axis_of(t.a, "axis", t.a.input.rank))


@entry("TILE", types=NUMBERS, exact=True)
def tile(t: Task) -> None:
    """Repeat along each dimension."""
    t.emit(t.name, [t.x("input"), t.constant(t.array("multiples"))], t.out)


@entry("DEPTH_TO_SPACE", "SPACE_TO_DEPTH", exact=True)
def depth_and_space(t: Task) -> None:
    """Move blocks of pictures."""
    kind = "DepthToSpace" if t.name == "DEPTH_TO_SPACE" else "SpaceToDepth"
    t.emit(t.name, [image(t, "input")], image_out(t), kind, blockSize=t.a.block)


@entry("REVERSE", types=NUMBERS, exact=True)
def reverse(t: Task) -> None:
    """Reverse along one dimension."""
    t.emit("REVERSE_V2", [t.x("input"), t.constant(t.array("axis"))], t.out)


@entry("TOPK_V2", types=NUMBERS, exact=True)
def top(t: Task) -> None:
    """Reverse the input: among equals NNAPI returns the last first and LiteRT the first.

    NaN counts as the least, which LiteRT's comparisons do not ensure.
    """
    x, values, indices = t.x("input"), t.output(0), t.output(1)
    last, size = x.value.rank - 1, x.value.known[-1]
    turned, places = t.temporary(x.value), t.temporary(indices.value)
    t.emit("REVERSE_V2", [x, t.constant([last])], turned)
    compared = without_nan(t, turned, -np.inf) if t.a.T in FLOATS else turned
    found = t.temporary(values.value) if t.a.T in FLOATS else values
    t.emit(t.name, [compared, t.constant(t.a.k)], [found, places], "TopKV2")
    t.emit("SUB", [t.constant(size - 1), places], indices, "Sub")
    if t.a.T in FLOATS:
        t.emit("GATHER", [turned, places], values, "Gather", axis=last, batchDims=last)


@entry("SPACE_TO_BATCH_ND", exact=True)
def space_to_batch(t: Task) -> None:
    """Pad with real zeros."""
    sizes = [t.constant(t.array(name)) for name in ("blocks", "paddings")]
    t.emit(t.name, [image(t, "input"), *sizes], image_out(t))


@entry("BATCH_TO_SPACE_ND", exact=True)
def batch_to_space(t: Task) -> None:
    """Crop nothing, as NNAPI does; TFLite could."""
    sizes = t.constant(t.array("blocks")), t.constant([[0, 0], [0, 0]])
    t.emit(t.name, [image(t, "input"), *sizes], image_out(t))


@entry("CHANNEL_SHUFFLE", exact=True)
def channel_shuffle(t: Task) -> None:
    """Transpose groups and members."""
    x, groups = t.x("input"), t.a.groups
    shape = x.value.known
    axis = axis_of(t.a, "axis", len(shape))
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    cells = t.temporary(x.value, shape=(before, groups, shape[axis] // groups, after))
    t.reshape(x, cells)
    t.reshape(t.transposed(cells, (0, 2, 1, 3)), t.out)


@entry("FILL")
def fill(t: Task) -> None:
    """Fill with a known value."""
    value = t.constant(t.a.value, np.int32 if t.out.value.type == I32 else np.float32)
    t.emit(t.name, [t.constant(t.array("shape")), value], t.out)


@entry("RANK", types=NUMBERS | {B8}, exact=True)
def rank(t: Task) -> None:
    """Return a scalar."""
    t.emit(t.name, [t.x("input")], t.out)


@entry("EMBEDDING_LOOKUP", types=NUMBERS, exact=True)
def embedding_lookup(t: Task) -> None:
    """Write a GATHER; an index outside fails the execution."""
    t.emit("GATHER", [t.x("values"), t.x("lookups")], t.out, "Gather", axis=0)


@entry("HASHTABLE_LOOKUP", types=NUMBERS)
def hashtable_lookup(t: Task) -> None:
    """Return rows of zeros for missing keys."""
    t.emit(t.name, [t.x("lookups"), t.x("keys"), t.x("values")], t.outs)


@entry("LSH_PROJECTION")
def lsh_projection(t: Task) -> None:
    """Require stored bytes without a conversion, because they are hashed."""
    kind = t.a.kind
    t.require(
        kind != LshProjection.SPARSE_DEPRECATED,
        "the signature is sparse without offsets, must have an offset for each function for LiteRT",
    )
    halves = F16 in (t.a.hashes.type, t.a.input.type)
    t.require(not halves, "the bytes of float16 are hashed, but float16 is float32 here")
    t.require(t.a.bits <= 32, f"the signatures have {t.a.bits} bits, must have at most 32 for LiteRT")
    weight = t.maybe("weight")
    t.require(
        kind == LshProjection.DENSE or weight is None, "the sparse projection has weights, must have none for LiteRT"
    )
    inputs = [t.x("hashes"), t.x("input"), *([weight] if weight else [])]
    t.emit(t.name, inputs, t.out, "LSHProjection", type=2 if kind == LshProjection.DENSE else 1)
