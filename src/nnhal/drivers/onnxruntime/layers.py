"""Entries of layers: pooling, convolutions, matrix products, normalisations, resizing."""

import math
from typing import Any

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.operands import Array
from nnhal.drivers.kit import bounds, product_scales, stored_bounds, window
from nnhal.drivers.onnxruntime.graph import (
    DOUBLE,
    FLOAT,
    FLOATS,
    INT32,
    QUANTS,
    SIGN,
    OnnxTask,
    engine_data,
    engine_dtype,
    entry,
    require_known,
    zero_point,
)
from nnhal.drivers.onnxruntime.shapes import padded
from nnhal.ops.common import ACTIVATION_RANGE, type_range
from nnhal.ops.resize import positions
from nnhal.ops.schema import Q8, Q8S
from nnhal.ops.transposed import cut, spread

SQUARED = 2.0**50  # numbers up to here are squared
EXACT = 2**24  # integers up to here are float32
WIDEST = 64  # radius of sums of shifted tensors
FORMS = {Q8: ("uint8", "float"), Q8S: ("uint8", "float")}


def sliding(t: OnnxTask) -> dict[str, Any]:
    """How a window moves, as attributes."""
    h, w = window(t.a, "h"), window(t.a, "w")
    found = {"kernel_shape": (h.size, w.size), "strides": (h.stride, w.stride)}
    if t.a.form_has("dilation_h"):
        found["dilations"] = h.dilation, w.dilation
    return found | {"pads": (h.before, w.before, h.after, w.after)}


@entry("AVERAGE_POOL_2D", "MAX_POOL_2D")
def pool(t: OnnxTask) -> None:
    """Padding does not count. The greatest of quantised elements are those of the greatest stored values."""
    if t.name == "AVERAGE_POOL_2D":
        t.give(t.as_given(t.node("AveragePool", t.image(t.real("input")), **sliding(t))))
        return
    y = t.as_given(t.node("MaxPool", t.image(t.x("input")), **sliding(t)))
    if t.a.T in QUANTS:
        t.put(clipped(t, y))
    else:
        t.give(y)


def clipped(t: OnnxTask, y: str) -> str:
    """Stored values of the output, within what its activation leaves."""
    if bounds(t.a) == ACTIVATION_RANGE[Activation.NONE]:
        return y
    ends = np.array(stored_bounds(t.a)) + SIGN * (t.a.out.type == Q8S)
    return t.node("Clip", y, *[t.constant(end, np.uint8) for end in ends])


@entry("L2_POOL_2D", types=FLOATS)
def root_of_squares(t: OnnxTask) -> None:
    """Of the numbers, and of far smaller ones where squares of the numbers would overflow."""

    def pooled(numbers: str) -> str:
        return t.node("Sqrt", t.node("AveragePool", t.node("Mul", numbers, numbers), **sliding(t)))

    x = t.image(t.real("input"))
    plain, far = pooled(x), t.constant(SQUARED**2)
    great = t.node("Mul", pooled(t.node("Div", x, far)), far)
    t.give(t.as_given(t.node("Where", t.node("Less", plain, t.constant(SQUARED)), plain, great)))


# --------------------------------------------------------------------------------------------------------- convolutions


def moved(t: OnnxTask, name: str, order: tuple[int, ...], *, integers: bool = False) -> str:
    """Weights with their dimensions in another order: in steps of float32, or as they are stored."""
    value = getattr(t.a, name)
    if value.data is None:
        return t.node("Transpose", t.x(name) if integers else t.steps(name), perm=order)
    data = np.asarray(value.data)
    data = engine_data(value, data) if integers or not value.quantised else data.astype(np.float32) - value.zero_point
    return t.constant(np.ascontiguousarray(data.transpose(order), engine_dtype(value) if integers else np.float32))


def summed(t: OnnxTask, y: str, bias: str | None, axis: int, rank: int, weights: Any) -> None:
    """Sums of products of steps, and the bias where that is not in them, to the output.

    axis: of the channels.
    """
    out, along = t.a.out, [1] * rank
    along[axis] = -1
    if bias is not None:
        y = t.node("Add", y, t.reshaped(bias, along))
    if not out.quantised:
        t.give(y)
        return
    ratios = (product_scales(t.a.input, weights) / out.scale).astype(np.float32)
    y = t.node("Mul", y, t.constant(ratios.reshape(along) if ratios.size > 1 else ratios[0]))
    stored(t, y)


def stored(t: OnnxTask, y: str) -> None:
    """Steps of the output to its type."""
    require_known(t.a.out)
    t.put(clipped(t, t.node("QuantizeLinear", y, t.constant(1), t.constant(zero_point(t.a.out), np.uint8))))


def require_exact(t: OnnxTask, weights: Any, axis: int) -> None:
    """Refuse quantised sums that float32 may get wrong by a step of the output."""
    if t.a.out.quantised:
        greatest = most(t.a.input, weights, axis)
        off = greatest / EXACT * product_scales(t.a.input, weights).max() / t.a.out.scale
        t.require(greatest <= EXACT or off < 1 / 16, f"sums of up to {greatest:g} are not exact in float32")


def most(x: Any, weights: Any, axis: int) -> float:
    """The greatest sum of products of steps."""
    reach = [max(abs(limit - v.zero_point) for limit in type_range(v.type)) for v in (x, weights)]
    if weights.data is None:
        return reach[0] * reach[1] * math.prod(weights.known) / max(1, weights.known[axis])
    steps = np.abs(np.moveaxis(np.asarray(weights.data), axis, 0).astype(np.float32) - weights.zero_point)
    return float(reach[0] * steps.reshape(len(steps), -1).sum(1).max(initial=0))


def bias_steps(t: OnnxTask) -> str:
    """The bias in float32, in steps where it is quantised."""
    bias = t.x("bias")
    return t.node("Cast", bias, to=FLOAT) if t.a.input.quantised else bias


@entry("CONV_2D", "DEPTHWISE_CONV_2D", "GROUPED_CONV_2D", forms=FORMS)
def convolution(t: OnnxTask) -> None:
    """uint8: ONNX Runtime's own kernel, that sums up in 32 bits. float: sums of steps, which are exact in float32."""
    a, depthwise = t.a, t.name == "DEPTHWISE_CONV_2D"
    order, axis = ((3, 0, 1, 2), 3) if depthwise else ((0, 3, 1, 2), 0)
    groups = a.depth_out // a.depth_multiplier if depthwise else a.groups if a.form_has("groups") else 1
    how = sliding(t) | {"group": groups}
    if t.form == "uint8" and a.bias.data is not None:
        t.put(clipped(t, t.as_given(in_integers(t, moved(t, "filter", order, integers=True), axis, how))))
        return
    require_exact(t, a.filter, axis)
    y = t.node("Conv", t.image(t.steps("input")), moved(t, "filter", order), bias_steps(t), **how)
    summed(t, t.as_given(y), None, 1 if a.nchw else 3, 4, a.filter)


def in_integers(t: OnnxTask, weights: str, axis: int, how: dict[str, Any]) -> str:
    """A convolution of unsigned activations and weights."""
    a, scales = t.a, product_scales(t.a.input, t.a.filter) / t.a.input.scale
    channels = a.filter.known[axis]
    if engine_dtype(a.filter) != np.uint8:  # by channel, signed
        weights = t.node("BitwiseXor", t.node("Cast", weights, to=2), t.constant(SIGN, np.uint8))
    zero = zero_point(a.filter) + SIGN * (a.filter.channel is not None)
    reach = most(a.input, a.filter, axis) + np.abs(np.asarray(a.bias.data, np.float64)).max(initial=0)
    t.require(reach < 2**31, f"sums of up to {reach:g} leave ONNX Runtime's 32 bits")
    require_known(a.out)
    return t.node(
        "QLinearConv",
        t.image(t.x("input")),
        t.constant(a.input.scale),
        t.constant(zero_point(a.input), np.uint8),
        weights,
        t.constant(scales if scales.size > 1 else scales[0]),
        t.constant([zero] * channels if scales.size > 1 else zero, np.uint8),
        t.constant(a.out.scale),
        t.constant(zero_point(a.out), np.uint8),
        t.x("bias"),
        **how,
    )


@entry("TRANSPOSE_CONV_2D")
def transposed_convolution(t: OnnxTask) -> None:
    """What lies behind the last product is put there afterwards, before the bias."""
    a = t.a
    require_exact(t, a.filter, 0)
    made = t.made().known
    reach, sizes = (spread(a, "h"), spread(a, "w")), made[2:] if a.nchw else made[1:3]
    before = cut(a, "h"), cut(a, "w")
    after = [r - b - size for r, b, size in zip(reach, before, sizes, strict=True)]
    pads = (*before, *(max(0, n) for n in after))
    y = t.node(
        "ConvTranspose",
        t.image(t.steps("input")),
        moved(t, "filter", (3, 0, 1, 2)),
        strides=(a.stride_h, a.stride_w),
        pads=pads,
    )
    if min(after) < 0:
        rows = [(0, 0), (0, 0), *((0, max(0, -n)) for n in after)]
        y = padded(t, y, np.array(rows), t.constant(0))
    summed(t, t.as_given(y), bias_steps(t), 1 if a.nchw else 3, 4, a.filter)


@entry("FULLY_CONNECTED", forms=FORMS)
def fully_connected(t: OnnxTask) -> None:
    """The input is taken for rows of `input_size` elements, whatever its rank."""
    a, size = t.a, [None if None in t.a.input.dims else math.prod(t.a.input.known) // t.a.input_size, t.a.input_size]
    if t.form == "uint8":
        reach = most(a.input, a.weights, 0)
        t.require(reach < 2**31, f"sums of up to {reach:g} leave ONNX Runtime's 32 bits")
        weights = t.node("Transpose", t.x("weights"), perm=(1, 0))
        zeros = (t.constant(zero_point(v), np.uint8) for v in (a.input, a.weights))
        y = t.node("MatMulInteger", t.reshaped(t.x("input"), size), weights, *zeros)
        summed(t, t.node("Cast", y, to=FLOAT), bias_steps(t), 1, 2, a.weights)
        return
    require_exact(t, a.weights, 0)
    weights = t.x("weights") if not a.out.quantised else moved(t, "weights", (0, 1))
    y = t.node("Gemm", t.reshaped(t.steps("input"), size), weights, bias_steps(t), transB=1)
    summed(t, y, None, 1, 2, a.weights)


@entry("BATCH_MATMUL", types=FLOATS | {Q8S})
def batch_matmul(t: OnnxTask) -> None:
    """Either side may be transposed."""
    a, sides = t.a, []
    for name, turned in (("x", a.adj_x), ("y", a.adj_y)):
        order = [*range(getattr(a, name).rank)]
        order[-2:] = order[:-3:-1] if turned else order[-2:]
        side = t.steps(name)
        sides.append(t.node("Transpose", side, perm=order) if turned else side)
    y = t.node("MatMul", *sides)
    if not a.out.quantised:
        t.give(y)
        return
    inner, product = a.x.known[-2 if a.adj_x else -1], a.x.scale * a.y.scale
    greatest = inner * math.prod(max(abs(limit - v.zero_point) for limit in type_range(v.type)) for v in (a.x, a.y))
    fits = greatest <= EXACT or greatest / EXACT * product / a.out.scale < 1 / 16
    t.require(fits, f"sums of up to {greatest:g} are not exact in float32")
    stored(t, t.node("Mul", y, t.constant(product / a.out.scale)))


# ------------------------------------------------------------------------------------------------------- normalisations


@entry("SOFTMAX")
@entry("LOG_SOFTMAX", types=FLOATS)
def softmax(t: OnnxTask) -> None:
    """Beta is put to the distance from the greatest element, which cannot overflow then."""
    x, kind = t.real("input"), "LogSoftmax" if t.name == "LOG_SOFTMAX" else "Softmax"
    if t.a.beta != 1:
        below = t.node("Sub", x, t.node("ReduceMax", x, t.ints(t.a.axis % t.a.input.rank)))
        x = t.node("Mul", below, t.constant(t.a.beta))
    t.give(t.node(kind, x, axis=t.a.axis % t.a.input.rank))


def wide(t: OnnxTask, x: str) -> str:
    """In float64, whose range no square leaves."""
    return t.node("Cast", x, to=DOUBLE)


def number(t: OnnxTask, x: Any) -> str:
    """A constant of float64."""
    return t.constant(x, np.float64)


@entry("L2_NORMALIZATION")
def l2_normalisation(t: OnnxTask) -> None:
    """Zeros stay zeros."""
    x = wide(t, t.real("input"))
    total = t.node("ReduceSum", t.node("Mul", x, x), t.ints(t.a.axis % t.a.input.rank))
    length = t.node("Max", t.node("Sqrt", total), number(t, 1e-300))
    t.give(t.node("Cast", t.node("Div", x, length), to=FLOAT))


@entry("LOCAL_RESPONSE_NORMALIZATION", types=FLOATS)
def local_response(t: OnnxTask) -> None:
    """Sums of shifted squares, in float64."""
    a, rank = t.a, t.a.input.rank
    axis, size = a.axis % rank, a.input.known[a.axis % rank]
    radius = min(a.radius, size)
    t.require(radius <= WIDEST, f"radius is {radius}, sums of shifted squares are made up to {WIDEST}")
    x = wide(t, t.real("input"))
    rows = np.zeros((rank, 2), np.int64)
    rows[axis] = radius
    squares = padded(t, t.node("Mul", x, x), rows, number(t, 0))
    parts = [t.node("Slice", squares, t.ints(n), t.ints(n + size), t.ints(axis)) for n in range(2 * radius + 1)]
    total = t.node("Add", t.node("Mul", t.node("Sum", *parts), number(t, a.alpha)), number(t, a.bias))
    t.give(t.node("Cast", t.node("Div", x, t.node("Pow", total, number(t, a.beta))), to=FLOAT))


@entry("INSTANCE_NORMALIZATION", types=FLOATS)
def instance_normalisation(t: OnnxTask) -> None:
    """(x - mean) * gamma / sqrt(variance + epsilon) + beta, in float64."""
    a, axes = t.a, t.ints(2, 3) if t.a.nchw else t.ints(1, 2)
    x = wide(t, t.real("input"))
    centred = t.node("Sub", x, t.node("ReduceMean", x, axes))
    variance = t.node("ReduceMean", t.node("Mul", centred, centred), axes)
    deviation = t.node("Sqrt", t.node("Add", variance, number(t, a.epsilon)))
    y = t.node("Div", t.node("Mul", centred, number(t, a.gamma)), deviation)
    t.give(t.node("Cast", t.node("Add", y, number(t, a.beta)), to=FLOAT))


# ------------------------------------------------------------------------------------------------------------- resizing


@entry("RESIZE_NEAREST_NEIGHBOR")
def nearest(t: OnnxTask) -> None:
    """Elements are picked along height and width, by the very places of the definition."""
    a, y = t.a, t.x("input")
    sizes, first = t.made().known, 2 if a.nchw else 1
    for axis, size in enumerate((a.height, a.width), first):
        new = sizes[axis]
        index = np.floor(positions(a, size, new).astype(np.float64) + (0.5 if a.align_corners else 0)).astype(np.int64)
        y = t.node("Gather", y, t.constant(np.clip(index, 0, size - 1), np.int64), axis=axis)
    t.put(y)


@entry("RESIZE_BILINEAR")
def bilinear(t: OnnxTask) -> None:
    """By size: one that is given by a scale is rounded before."""
    a = t.a
    grid = "align_corners" if a.align_corners else "half_pixel" if a.half_pixel_centers else "asymmetric"
    sizes = t.made().known
    sizes = sizes if a.nchw else (sizes[0], sizes[3], sizes[1], sizes[2])
    x = t.image(t.real("input"))
    t.give(t.as_given(t.node("Resize", x, "", "", t.ints(*sizes), mode="linear", coordinate_transformation_mode=grid)))


_ = INT32, Array
