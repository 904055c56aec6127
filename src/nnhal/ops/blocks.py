"""SPACE_TO_DEPTH, DEPTH_TO_SPACE, SPACE_TO_BATCH_ND, BATCH_TO_SPACE_ND, CHANNEL_SHUFFLE: blocks moved between axes."""

import math
from collections.abc import Callable

import numpy as np

from nnhal.base.levels import V1_0, V1_1, V1_2, V1_3
from nnhal.base.operands import Array
from nnhal.ops.common import axis_of, nhwc, padded_with_zero
from nnhal.ops.order import by_axis
from nnhal.ops.ranges import Draw, Range, among, array, axis_range, parts_of_axis
from nnhal.ops.schema import BOOL, F16, F32, I32, INT32, Q8, Q8S, SAME, Bound, Form, Op, T, arg, example, out, register

x = arg("input", T, "batch height width depth", layout=True)
LAYOUT = arg("nchw", BOOL, since=V1_2, default=False)
FORM = Form(x, arg("block", INT32, at_least=1, drawn=among(1, 2, 2, 3)), LAYOUT)
SIZES = arg("blocks", I32, "2", drawn=array("blocks", 1, 3), doc="height and width of a block")


def to_space(a: Bound, x: Array) -> Array:
    n, h, w, c = x.shape
    b = a.block
    return x.reshape(n, h, w, b, b, c // b**2).transpose(0, 1, 3, 2, 4, 5).reshape(n, h * b, w * b, c // b**2)


def to_depth(a: Bound, x: Array) -> Array:
    n, h, w, c = x.shape
    b = a.block
    return x.reshape(n, h // b, b, w // b, b, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, h // b, w // b, c * b**2)


def multiple(name: str, of: Callable[[Bound], int]) -> Callable[[Bound], None]:
    """Rule: `name` is a multiple of `of`."""

    def check(a: Bound) -> None:
        size, unit = getattr(a, name), of(a)
        a.require(size % unit == 0, f"{name} = {size}, must be a multiple of {unit}")

    return check


def block_sizes(a: Bound) -> tuple[int, int]:
    height, width = a.blocks.array.tolist()
    a.require(min(height, width) >= 1, f"blocks = {[height, width]}, must be at least 1")
    return height, width


def margins(a: Bound) -> list[list[int]]:
    found: list[list[int]] = a.paddings.array.tolist()
    a.require(min(map(min, found)) >= 0, f"paddings = {found}, must be at least 0")
    return found


def padded_size(a: Bound, axis: int) -> int:
    size: int = (a.height, a.width)[axis] + sum(margins(a)[axis])
    block = block_sizes(a)[axis]
    a.require(size % block == 0, f"padded size {size}, must be a multiple of the block, {block}")
    return size // block


def to_batch(a: Bound, x: Array, _: Array, paddings: Array) -> Array:
    (h, w), fill = block_sizes(a), a.input.zero_point
    x = np.pad(x, [(0, 0), *margins(a), (0, 0)], constant_values=fill)
    n, height, width, c = x.shape
    cells = x.reshape(n, height // h, h, width // w, w, c).transpose(2, 4, 0, 1, 3, 5)
    return cells.reshape(n * h * w, height // h, width // w, c)


def from_batch(a: Bound, x: Array, _: Array) -> Array:
    h, w = block_sizes(a)
    n, height, width, c = x.shape
    cells = x.reshape(h, w, n // (h * w), height, width, c).transpose(2, 3, 0, 4, 1, 5)
    return cells.reshape(n // (h * w), height * h, width * w, c)


def shuffled(a: Bound, x: Array) -> Array:
    groups = np.moveaxis(x, a.axis, 0)
    cells = groups.reshape(a.groups, len(groups) // a.groups, *groups.shape[1:]).swapaxes(0, 1)
    return np.moveaxis(cells.reshape(groups.shape), 0, a.axis)


def grouped(a: Bound) -> None:
    """The channels are in groups of one size."""
    size = a.input.dims[axis_of(a, "axis", a.input.rank)]
    a.require(size is None or size % a.groups == 0, f"axis {a.axis} has size {size}, must be a multiple of {a.groups}")


def blocked(size: str) -> dict[str, Range]:
    """Ranges: a dimension that is a multiple of the block."""
    return {size: lambda d: d["block"] * d.whole(1, 3)}


def filling(d: Draw) -> list[list[int]]:
    """Range: paddings after which the blocks fit."""
    blocks = d["blocks"].array.tolist()
    sizes = [d.size("height"), d.size("width")]
    before = d.whole(0, 3, 2).tolist()
    return [[b, -(n + b) % unit + unit * d.pick(0, 0, 1)] for n, b, unit in zip(sizes, before, blocks, strict=True)]


FIRST, SECOND = {F32: V1_0, F16: V1_2, Q8: V1_0, Q8S: V1_3}, {F32: V1_1, F16: V1_2, Q8: V1_1, Q8S: V1_3}
OUT = (out("output", T, "batch out_h out_w out_d", layout=True, quant=SAME),)
BATCHED = (out("output", T, "out_n out_h out_w depth", layout=True, quant=SAME),)

register(
    Op(
        "DEPTH_TO_SPACE",
        FIRST,
        (FORM,),
        OUT,
        nhwc(to_space),
        (multiple("depth", lambda a: a.block**2),),
        where={
            "out_h": lambda a: a.height * a.block,
            "out_w": lambda a: a.width * a.block,
            "out_d": lambda a: a.depth // a.block**2,
        },
        sized={"depth": lambda d: d["block"] ** 2 * d.whole(1, 3)},
        cost="transpose",
        moves=True,
        doc="Moves depth to blocks of height and width.",
        example=example([[[[1], [2]], [[3], [4]]]], input=[[[[1, 2, 3, 4]]]], block=2),
    ),
    Op(
        "SPACE_TO_DEPTH",
        FIRST,
        (FORM,),
        OUT,
        nhwc(to_depth),
        (multiple("height", lambda a: a.block), multiple("width", lambda a: a.block)),
        where={
            "out_h": lambda a: a.height // a.block,
            "out_w": lambda a: a.width // a.block,
            "out_d": lambda a: a.depth * a.block**2,
        },
        sized=blocked("height") | blocked("width"),
        cost="transpose",
        moves=True,
        doc="Moves blocks of height and width to depth.",
        example=example([[[[1, 2, 3, 4]]]], input=[[[[1], [2]], [[3], [4]]]], block=2),
    ),
    Op(
        "SPACE_TO_BATCH_ND",
        SECOND,
        (Form(x, SIZES, arg("paddings", I32, "2 2", drawn=filling), LAYOUT),),
        BATCHED,
        nhwc(to_batch),
        (padded_with_zero,),
        where={
            "out_n": lambda a: a.batch * math.prod(block_sizes(a)),
            "out_h": lambda a: padded_size(a, 0),
            "out_w": lambda a: padded_size(a, 1),
        },
        cost="transpose",
        moves=True,
        doc="Moves blocks of height and width to the batch.",
        example=example(
            [[[[1]]], [[[2]]], [[[3]]], [[[4]]]],
            input=[[[[1], [2]], [[3], [4]]]],
            blocks=[2, 2],
            paddings=[[0, 0], [0, 0]],
        ),
    ),
    Op(
        "BATCH_TO_SPACE_ND",
        SECOND,
        (Form(x, SIZES, LAYOUT),),
        BATCHED,
        nhwc(from_batch),
        (multiple("batch", lambda a: math.prod(block_sizes(a))),),
        where={
            "out_n": lambda a: a.batch // math.prod(block_sizes(a)),
            "out_h": lambda a: a.height * block_sizes(a)[0],
            "out_w": lambda a: a.width * block_sizes(a)[1],
        },
        sized={"batch": lambda d: d["blocks"].array.prod() * d.whole(1, 2)},
        cost="transpose",
        moves=True,
        doc="Moves the batch to blocks of height and width.",
        example=example([[[[1], [2]], [[3], [4]]]], input=[[[[1]]], [[[2]]], [[[3]]], [[[4]]]], blocks=[2, 2]),
    ),
    Op(
        "CHANNEL_SHUFFLE",
        {F32: V1_2, F16: V1_2, Q8: V1_2, Q8S: V1_3},
        (
            Form(
                arg("input", T, rank=(1, 4)),
                arg("groups", INT32, at_least=1, drawn=parts_of_axis),
                arg("axis", INT32, drawn=axis_range()),
            ),
        ),
        (out("output", T, quant=SAME),),
        shuffled,
        (grouped,),
        reorder=by_axis("axis"),
        cost="transpose",
        moves=True,
        doc="Groups the channels that have the same position in each group.",
        example=example([1, 3, 2, 4], input=[1, 2, 3, 4], groups=2, axis=0),
    ),
)
