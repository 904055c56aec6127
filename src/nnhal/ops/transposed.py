"""TRANSPOSE_CONV_2D: each element of the input spreads its product with the filter over the output."""

from collections.abc import Callable

import numpy as np

from nnhal.base.codes import Activation, Padding
from nnhal.base.operands import Array
from nnhal.ops.common import nhwc, nonzero, product
from nnhal.ops.ranges import Draw, whole
from nnhal.ops.schema import BOOL, I32, INT32, Bound, Form, Op, T, arg, args, example, out, pattern, register, show
from nnhal.ops.weighted import (
    BIAS,
    FILTER,
    TYPES,
    bias_of,
    bias_scale,
    channel_axis,
    filter_of,
    in_whole_lanes,
    weighted,
    weighted_integers,
)


def asked(d: Draw) -> list[int]:
    """Range: a shape that CONV_2D reduces to that of the input."""
    sizes = []
    for side, axis in (("height", "h"), ("width", "w")):
        stride, reach = d[f"stride_{axis}"], 1 if d["scheme"] == Padding.SAME else d.size(f"filter_{axis}")
        sizes.append((d.size(side) - 1) * stride + reach + int(d.whole(0, stride - 1)))
    depth = d.size("depth_out")
    return [d.size("batch"), *([depth, *sizes] if d["nchw"] else [*sizes, depth])]


HEAD = (
    arg("input", T, "batch height width depth_in", layout=True),
    arg("filter", FILTER, "depth_out filter_h filter_w depth_in", drawn=filter_of(0)),
    arg("bias", BIAS, "depth_out", drawn=bias_of()),
)
TAIL = *args("stride_w stride_h", INT32, at_least=1), arg("activation", Activation), arg("nchw", BOOL)
pads_before = args("pad_left pad_top", INT32, at_least=0, drawn=whole(0, 2))
pads_after = args(
    "pad_right pad_bottom",
    INT32,
    drawn=whole(-2, 2),
    doc="may be negative: the output then ends after the last product",
)
pads = pads_before[0], pads_after[0], pads_before[1], pads_after[1]
OUTPUT = (out("output", T, "batch out_h out_w depth_out", layout=True),)


def sizes(a: Bound, axis: str) -> tuple[int, int, int]:
    """Return along "h" or "w": positions of the filter, the stride between them, size of the filter."""
    return a.height if axis == "h" else a.width, getattr(a, f"stride_{axis}"), getattr(a, f"filter_{axis}")


def products_extent(a: Bound, axis: str) -> int:
    """Return the extent of the products."""
    count, stride, size = sizes(a, axis)
    return (count - 1) * stride + size


def wanted(a: Bound) -> dict[str, int]:
    """Return the argument `output_shape` by dimension name."""
    return dict(zip(pattern(a, a.op.outputs[0]), a.output_shape.array.tolist(), strict=True))


def out_size(axis: str) -> Callable[[Bound], int]:
    """Shape rule: the requested size, or the size that the explicit padding leaves of the products."""

    def rule(a: Bound) -> int:
        if a.form_has("scheme"):
            size, source = wanted(a)[f"out_{axis}"], f"output_shape {show(a.output_shape.array)}"
        else:
            pads = (a.pad_top, a.pad_bottom) if axis == "h" else (a.pad_left, a.pad_right)
            size, source = products_extent(a, axis) - sum(pads), f"padding {pads}"
        a.require(size > 0, f"{source} makes out_{axis} = {size}, must be at least 1")
        return size

    return rule


def cut(a: Bound, axis: str) -> int:
    """Return how many of the first products along an axis the padding cuts off."""
    if not a.form_has("scheme"):
        return int(a.pad_top if axis == "h" else a.pad_left)
    if a.scheme == Padding.VALID:
        return 0
    return max(0, products_extent(a, axis) - out_size(axis)(a)) // 2


def reversible(a: Bound) -> None:
    """CONV_2D of the output, with this filter and scheme, has the shape of the input."""
    if not a.form_has("scheme"):
        return
    for axis in "hw":
        size = out_size(axis)(a)
        count, stride, reach = sizes(a, axis)
        reach = 1 if a.scheme == Padding.SAME else reach
        low, high = (count - 1) * stride + reach, count * stride + reach - 1
        a.require(low <= size <= high, f"output_shape holds out_{axis} = {size}, must be {low} to {high}")


def shape_agrees(a: Bound) -> None:
    """output_shape holds the batch of the input and the output depth of the filter."""
    if not a.form_has("output_shape"):
        return
    for name in ("batch", "depth_out"):
        asked, there = wanted(a)[name], getattr(a, name)
        a.require(asked == there, f"output_shape {show(a.output_shape.array)} holds {name} = {asked}, must be {there}")


def transposed(a: Bound, x: Array, weights: Array) -> Array:
    batch, height, width, depth = x.shape
    (cut_h, out_h), (cut_w, out_w) = ((cut(a, axis), out_size(axis)(a)) for axis in "hw")
    room = max(products_extent(a, "h"), cut_h + out_h), max(products_extent(a, "w"), cut_w + out_w)
    result = np.zeros((batch, *room, len(weights)), x.dtype)
    flat = x.reshape(-1, depth)
    for i, j in np.ndindex(weights.shape[1:3]):
        rows = slice(i, i + (height - 1) * a.stride_h + 1, a.stride_h)
        columns = slice(j, j + (width - 1) * a.stride_w + 1, a.stride_w)
        result[:, rows, columns] += product(flat, weights[:, i, j].T).reshape(batch, height, width, len(weights))
    return result[:, cut_h : cut_h + out_h, cut_w : cut_w + out_w]


register(
    Op(
        "TRANSPOSE_CONV_2D",
        TYPES,
        (
            Form(*HEAD, *pads, *TAIL),
            Form(*HEAD, arg("output_shape", I32, "4", by_layout=True, drawn=asked), arg("scheme", Padding), *TAIL),
        ),
        OUTPUT,
        nhwc(weighted(transposed)),
        (
            nonzero("height width depth_in depth_out filter_h filter_w"),
            bias_scale,
            channel_axis,
            shape_agrees,
            reversible,
        ),
        integer=nhwc(weighted_integers(transposed, halves_up=lambda a, signed: not signed or in_whole_lanes(a))),
        where={"out_h": out_size("h"), "out_w": out_size("w")},
        sized={f"filter_{axis}": lambda d: d.whole(1, 4) for axis in "hw"},
        sums="products",
        cost="transpose_conv",
        doc="The transpose of CONV_2D: its output has the shape of CONV_2D's input.",
        example=example(
            [[[[10], [21], [2]]]],
            input=[[[[1], [2]]]],
            filter=[[[[10], [1]]]],
            bias=[0],
            padding=((0, 0), (0, 0)),
            nchw=False,
        ),
    ),
)
