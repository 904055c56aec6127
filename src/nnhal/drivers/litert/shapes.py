"""Entries of operations that move elements: reshaping, cutting, joining, padding, blocks."""

import numpy as np

from nnhal.base.codes import MirrorPad
from nnhal.drivers.litert.common import BEYOND_XNNPACK
from nnhal.drivers.litert.graph import FLOATS, QUANTS
from nnhal.drivers.litert.task import Task, entry
from nnhal.ops.common import axis_of
from nnhal.ops.schema import I32

NUMBERS = FLOATS | QUANTS | {I32}


@entry("RESHAPE", "SQUEEZE", "EXPAND_DIMS", types=NUMBERS)
def reshape(t: Task) -> None:
    """The output's shape says it all."""
    t.reshape(t.x("input"), t.out)


@entry("TRANSPOSE")
def transpose(t: Task) -> None:
    """Without an order the dimensions are reversed."""
    order = np.arange(t.a.input.rank)[::-1] if t.a.permutation is None else t.array("permutation")
    t.emit("TRANSPOSE", [t.x("input"), t.constant(order)], t.out)


@entry("CONCATENATION")
def concatenation(t: Task) -> None:
    """LiteRT's signed kernel wants one scale, so inputs of others are brought to the output's."""
    inputs = [t.requantised(x, t.out.value) for x in t.many("inputs_")]
    t.emit(t.name, inputs, t.out, "Concatenation", axis=axis_of(t.a, "axis", t.out.value.rank))


@entry("PACK", types=NUMBERS)
def pack(t: Task) -> None:
    """As CONCATENATION, along a new dimension."""
    values = [t.requantised(x, t.out.value) for x in t.many("values")]
    t.emit(t.name, values, t.out, "Pack", valuesCount=len(values), axis=axis_of(t.a, "axis", t.out.value.rank))


@entry("SPLIT", types=NUMBERS)
def split(t: Task) -> None:
    """TFLite takes the axis as a tensor."""
    rank = t.a.input.rank
    t.require(rank <= BEYOND_XNNPACK, f"XNNPACK fails to prepare it for rank {rank}, must be at most {BEYOND_XNNPACK}")
    axis = t.constant(axis_of(t.a, "axis", rank))
    t.emit(t.name, [axis, t.x("input")], t.outs, "Split", numSplits=len(t.outs))


@entry("PAD")
def pad(t: Task) -> None:
    """With real zeros."""
    t.emit(t.name, [t.x("input"), t.constant(t.array("paddings"))], t.out)


@entry("PAD_V2", types=NUMBERS)
def pad_with(t: Task) -> None:
    """With a value; a quantised one is given as it is stored."""
    x = t.x("input")
    t.emit("PADV2", [x, t.constant(t.array("paddings")), t.constant(t.a.value, value=x.value)], t.out)


@entry("MIRROR_PAD", types=NUMBERS)
def mirror_pad(t: Task) -> None:
    """With what lies on the other side of the border."""
    mode = 0 if t.a.mode == MirrorPad.REFLECT else 1
    t.emit(t.name, [t.x("input"), t.constant(t.array("paddings"))], t.out, "MirrorPad", mode=mode)


@entry("SLICE", types=NUMBERS)
def slice_(t: Task) -> None:
    """A part in one piece."""
    t.slice(t.x("input"), t.array("begin").tolist(), t.out)


@entry("STRIDED_SLICE")
def strided_slice(t: Task) -> None:
    """A part in steps."""
    a, bounds = t.a, [t.constant(t.array(name)) for name in ("begin", "end", "strides")]
    masks = {"beginMask": a.begin_mask, "endMask": a.end_mask, "shrinkAxisMask": a.shrink_mask}
    rank = a.input.rank
    left = rank - (a.shrink_mask & (1 << rank) - 1).bit_count()
    t.emit(t.name, [t.x("input"), *bounds], t.out_of_rank(left), "StridedSlice", **masks)


@entry("GATHER", types=NUMBERS)
def gather(t: Task) -> None:
    """An index outside ends the execution."""
    t.emit(t.name, [t.x("input"), t.x("indices")], t.out, "Gather", axis=axis_of(t.a, "axis", t.a.input.rank))


@entry("TILE", types=NUMBERS)
def tile(t: Task) -> None:
    """Repeated along each dimension."""
    t.emit(t.name, [t.x("input"), t.constant(t.array("multiples"))], t.out)


@entry("DEPTH_TO_SPACE", "SPACE_TO_DEPTH")
def depth_and_space(t: Task) -> None:
    """Blocks of pictures."""
    kind = "DepthToSpace" if t.name == "DEPTH_TO_SPACE" else "SpaceToDepth"
    t.emit(t.name, [t.image("input")], t.image_out(), kind, blockSize=t.a.block)
