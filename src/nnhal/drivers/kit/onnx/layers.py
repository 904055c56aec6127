"""Entries of layers: pooling, convolutions, matrix products, normalisations, resizing."""

import math
from typing import Any

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.operands import Value, fixed
from nnhal.drivers.kit import bounds, product_scales, stored_bounds, window
from nnhal.drivers.kit.movement import interpolation, nearest_indices, repeats
from nnhal.drivers.kit.onnx.graph import (
    AWAY,
    FLOATS,
    SIGN,
    OnnxTask,
    entry,
    require_known,
    zero_point,
)
from nnhal.drivers.kit.onnx.shapes import add_up, padded
from nnhal.drivers.kit.sums import (
    EXPONENTIALS,
    greatest_of,
    greatest_sum,
    mean_windows,
    reach,
    require_32_bits,
    require_exact,
)
from nnhal.ops.common import ACTIVATION_RANGE
from nnhal.ops.schema import F32, Q8, Q8PC, Q8S
from nnhal.ops.transposed import cut, products_extent

SQUARED = 2.0**50  # numbers are squared up to here
NEAR = 2.0**17  # up to so many quantisation steps of the output, sums of rounded numbers are close to the exact ones
FEW = 4096  # up to so many elements of a window, no mean but an exact half is so close to a half
LEAST = float(np.finfo(np.float32).min)
WIDEST = 64  # the greatest radius of sums of shifted tensors
WAYS = ("uint8", "float")  # products in the processor's own instructions, or of integers in float32
FORMS: dict[int, tuple[str, ...]] = {Q8: WAYS, Q8S: WAYS}


def window_attributes(t: OnnxTask) -> dict[str, Any]:
    """Return the movement of a window, as attributes."""
    h, w = window(t.a, "h"), window(t.a, "w")
    found = {"kernel_shape": (h.size, w.size), "strides": (h.stride, w.stride)}
    found |= {"dilations": (h.dilation, w.dilation)} if t.a.form_has("dilation_h") else {}
    return found | {"pads": (h.before, w.before, h.after, w.after)}


def new_sizes(t: OnnxTask) -> tuple[int, ...]:
    """Return height and width of the output."""
    found = Value(F32, t.shape()).known
    return found[2:] if t.a.nchw else found[1:3]


@entry("AVERAGE_POOL_2D", "MAX_POOL_2D", exact=True)
def pool(t: OnnxTask) -> None:
    """Padding does not count. The maximum of quantised elements is that of the stored values."""
    how = window_attributes(t)
    if t.name != "AVERAGE_POOL_2D":
        given = t.real("input") if t.a.T in FLOATS else t.x("input")
        made = t.as_given(t.o.MaxPool(t.image(given), **how))
        if t.a.T in FLOATS:
            t.give(made)
        else:
            t.put(clipped(t, made))
    elif t.a.T in FLOATS:
        t.give(t.as_given(mean_pool(t, t.image(t.real("input")))))
    else:
        zero = SIGN if t.a.T == Q8S else np.uint8(0)  # the engine's element for a stored 0
        means = mean_pool(t, t.image(t.o.DequantizeLinear(t.x("input"), 1.0, zero)))
        scale = 1 / AWAY if math.prod(how["kernel_shape"]) <= FEW else 1.0
        t.put(clipped(t, t.as_given(t.o.QuantizeLinear(means, scale, zero))))


def mean_pool(t: OnnxTask, x: str) -> str:
    """Return the means of windows, in stages if they are long."""
    how, windows = window_attributes(t), mean_windows(t.a)
    if windows == [how["kernel_shape"]]:
        return t.o.AveragePool(x, **how)
    if not windows:
        shape = Value(F32, (t.a.batch, t.a.depth, t.a.height, t.a.width)).known
        return t.reshaped(add_up(t, "ReduceMean", x, shape, (2, 3)), (*shape[:2], 1, 1))
    (top, left, bottom, right), (down, across) = how["pads"], how["strides"]
    x = t.o.AveragePool(x, kernel_shape=windows[0], strides=(1, across), pads=(0, left, 0, right))
    return t.o.AveragePool(x, kernel_shape=windows[1], strides=(down, 1), pads=(top, 0, bottom, 0))


def clipped(t: OnnxTask, y: str) -> str:
    """Clip stored values of the output to the bounds of its activation."""
    if bounds(t.a) == ACTIVATION_RANGE[Activation.NONE]:
        return y
    return t.o.Clip(y, *[np.uint8(end + int(SIGN) * (t.a.out.type == Q8S)) for end in stored_bounds(t.a)])


@entry("L2_POOL_2D", types=FLOATS)
def root_of_squares(t: OnnxTask) -> None:
    """Scale the numbers down if their squares would overflow."""
    x = t.image(t.real("input"))

    def pooled(numbers: str) -> str:
        return t.o.Sqrt(mean_pool(t, t.o.Mul(numbers, numbers)))

    plain, great = pooled(x), t.o.Mul(pooled(t.o.Div(x, SQUARED**2)), SQUARED**2)
    t.give(t.as_given(t.o.Where(t.o.Less(plain, SQUARED), plain, great)))


# --------------------------------------------------------------------------------------------------------- convolutions


def moved(t: OnnxTask, name: str, order: tuple[int, ...]) -> str:
    """Reorder the dimensions of weights; quantised ones become float32 integers."""
    value, data = getattr(t.a, name), t.known(name)
    if data is None:
        return t.o.Transpose(t.steps(name), perm=order)
    data = np.subtract(data, value.zero_point, dtype=np.float32) if value.quantised else data
    return t.graph.constant(np.ascontiguousarray(data.transpose(order)))


def as_uint8(t: OnnxTask, name: str) -> tuple[str, int]:
    """Return 8-bit weights as uint8, and their zero point."""
    value = getattr(t.a, name)
    if value.type != Q8PC:
        return t.x(name), zero_point(value)
    if value.data is not None:
        return t.graph.constant(np.asarray(value.data).view(np.uint8) ^ SIGN), int(SIGN)
    return t.o.BitwiseXor(t.cast(t.x(name), np.uint8), SIGN), int(SIGN)


def bias_steps(t: OnnxTask) -> str:
    return t.cast(t.x("bias"), np.float32) if t.a.out.quantised else t.x("bias")


def summed(t: OnnxTask, y: str, weights: Any, rank: int, axis: int) -> None:
    """Give the output by sums of integer products, adding the bias. axis: of the channels."""
    if not t.a.out.quantised:
        t.give(y)
        return
    ratios = product_scales(t.a.input, weights) / t.a.out.scale
    if ratios.size == 1:
        t.put(clipped(t, t.quantised(t.o.Mul(y, float(ratios[0])), 1)))
        return
    along = np.array(ratios, np.float32).reshape([-1 if n == axis else 1 for n in range(rank)])
    t.put(clipped(t, t.quantised(t.o.Mul(y, along), 1)))


def require_sums(t: OnnxTask, weights: Any, axis: int) -> bool:
    """Refuse quantised sums that float32 does not hold; a great bias is rounded, as is any sum with it.

    Return whether the sums must be whole numbers; otherwise sums that nearly cancel are off by a large part of an LSB.
    """
    if not t.a.out.quantised:
        return False
    ratio = product_scales(t.a.input, weights).max() / t.a.out.scale
    most = greatest_sum(t.a.input, weights, axis)
    require_exact(most, ratio)
    return bool((most + greatest_of(t.a.bias)) * ratio > NEAR)


@entry("CONV_2D", "DEPTHWISE_CONV_2D", "GROUPED_CONV_2D", forms=FORMS)
def convolution(t: OnnxTask) -> None:
    a, depthwise = t.a, t.name == "DEPTHWISE_CONV_2D"
    order, axis = ((3, 0, 1, 2), 3) if depthwise else ((0, 3, 1, 2), 0)
    groups = a.depth_out // a.depth_multiplier if depthwise else a.groups if a.form_has("groups") else 1
    how = window_attributes(t) | {"group": groups}
    if t.form == "uint8" and a.bias.data is not None:
        require_32_bits(greatest_sum(a.input, a.filter, axis, a.bias))
        t.put(clipped(t, t.as_given(in_integers(t, order, axis, how))))
        return
    whole = require_sums(t, a.filter, axis)
    y = t.o.Conv(t.image(t.steps("input")), moved(t, "filter", order), bias_steps(t), **how)
    if whole:  # otherwise ONNX Runtime multiplies a subsequent factor into the weights
        y = t.o.Max(y, LEAST)
    summed(t, t.as_given(y), a.filter, 4, 1 if a.nchw else 3)


def in_integers(t: OnnxTask, order: tuple[int, ...], axis: int, how: dict[str, Any]) -> str:
    """Convolve unsigned activations and weights, with kernels that add up in 32 bits."""
    a, (weights, zero), by_channel = t.a, as_uint8(t, "filter"), t.a.filter.channel is not None
    scales = np.array(a.filter.channel.scales if by_channel else a.filter.scale, np.float32)
    zeros = np.full(scales.shape, zero, np.uint8)
    x, x_zero = t.image(t.x("input")), np.uint8(zero_point(a.input))
    out = require_known(a.out)
    ends = out.scale / AWAY, np.uint8(zero_point(out))
    weights = t.o.Transpose(weights, perm=order)
    return t.o.QLinearConv(x, a.input.scale, x_zero, weights, scales, zeros, *ends, t.x("bias"), **how)


@entry("TRANSPOSE_CONV_2D")
def transposed_convolution(t: OnnxTask) -> None:
    """Pad after the last product afterwards, and cut off the beginning then, before the bias."""
    a, sizes = t.a, new_sizes(t)
    require_sums(t, a.filter, 0)
    before = cut(a, "h"), cut(a, "w")
    after = [products_extent(a, axis) - b - size for axis, b, size in zip("hw", before, sizes, strict=True)]
    pads = (*before, *after) if min(after) >= 0 else (0, 0, 0, 0)
    strides = a.stride_h, a.stride_w
    y = t.o.ConvTranspose(t.image(t.steps("input")), moved(t, "filter", (3, 0, 1, 2)), strides=strides, pads=pads)
    if min(after) < 0:
        y = padded(t, y, [[0, 0], [0, 0], *([0, max(0, -n)] for n in after)], 0.0)
        y = t.o.Slice(y, before, [b + size for b, size in zip(before, sizes, strict=True)], [2, 3])
    y = t.o.Add(y, t.reshaped(bias_steps(t), (-1, 1, 1)))
    summed(t, t.as_given(y), a.filter, 4, 1 if a.nchw else 3)


@entry("FULLY_CONNECTED", forms=FORMS)
def fully_connected(t: OnnxTask) -> None:
    """Treat the input as rows of `input_size` elements, whatever its rank."""
    a, width = t.a, t.a.input_size
    count = None if None in a.input.dims else math.prod(a.input.known) // width

    def rows(x: str) -> str:
        return x if a.input.dims[1:] == (width,) else t.reshaped(x, [count, width])

    if t.form == "uint8":
        require_32_bits(greatest_sum(a.input, a.weights, 0))
        weights, zero = as_uint8(t, "weights")
        y = t.o.MatMulInteger(
            rows(t.x("input")), t.o.Transpose(weights, perm=(1, 0)), np.uint8(zero_point(a.input)), np.uint8(zero)
        )
        y = t.o.Add(t.cast(y, np.float32), bias_steps(t))
    else:
        require_sums(t, a.weights, 0)
        weights = moved(t, "weights", (0, 1)) if a.out.quantised else t.x("weights")
        y = t.o.Gemm(rows(t.steps("input")), weights, bias_steps(t), transB=1)
    summed(t, y, a.weights, 2, 1)


@entry("BATCH_MATMUL", types=FLOATS | {Q8S})
def batch_matmul(t: OnnxTask) -> None:
    """Either side may be transposed."""
    a, sides = t.a, []
    for name, turned in (("x", a.adj_x), ("y", a.adj_y)):
        rank = getattr(a, name).rank
        order = [*range(rank - 2), rank - 1, rank - 2]
        sides.append(t.o.Transpose(t.steps(name), perm=order) if turned else t.steps(name))
    y = t.o.MatMul(*sides)
    if a.out.quantised:
        ratio = a.x.scale * a.y.scale / a.out.scale
        require_exact(a.x.known[-2 if a.adj_x else -1] * reach(a.x) * reach(a.y), ratio)
        t.put(t.quantised(t.o.Mul(y, float(ratio)), 1))
    else:
        t.give(y)


# ------------------------------------------------------------------------------------------------------- normalisations


@entry("SOFTMAX")
@entry("LOG_SOFTMAX", types=FLOATS)
def softmax(t: OnnxTask) -> None:
    """Multiply the distance from the greatest element by beta, halved so that it cannot overflow.

    A long sum of exponentials is made in stages.
    """
    x, axis = t.real("input"), t.a.axis % t.a.input.rank
    if t.a.beta != 1:
        half = t.o.Mul(x, 0.5)
        x = t.o.Mul(t.o.Sub(half, t.o.ReduceMax(half, [axis])), 2.0 * t.a.beta)
    shape = fixed(t.a.input.shape)
    if shape is not None and shape[axis] > EXPONENTIALS:
        below = t.o.Sub(x, t.o.ReduceMax(x, [axis]))
        powers = t.o.Exp(below)
        kept = [1 if n == axis else size for n, size in enumerate(shape)]
        whole = t.reshaped(add_up(t, "ReduceSum", powers, shape, [axis]), kept)
        t.give(t.o.Sub(below, t.o.Log(whole)) if t.name == "LOG_SOFTMAX" else t.o.Div(powers, whole))
        return
    t.give((t.o.LogSoftmax if t.name == "LOG_SOFTMAX" else t.o.Softmax)(x, axis=axis))


def to_float64(t: OnnxTask, name: str) -> str:
    """Return an argument in float64, in which no square overflows."""
    return t.cast(t.real(name), np.float64)


@entry("L2_NORMALIZATION")
def l2_normalisation(t: OnnxTask) -> None:
    """Zeros stay zeros."""
    x = to_float64(t, "input")
    length = t.o.Sqrt(t.o.ReduceSum(t.o.Mul(x, x), [t.a.axis % t.a.input.rank]))
    t.give(t.cast(t.o.Div(x, t.o.Max(length, np.float64(1e-300))), np.float32))


@entry("LOCAL_RESPONSE_NORMALIZATION", types=FLOATS)
def local_response(t: OnnxTask) -> None:
    """Add up shifted squares."""
    a, axis, x = t.a, t.a.axis % t.a.input.rank, to_float64(t, "input")
    size = a.input.known[axis]
    radius = min(a.radius, size)
    t.require(radius <= WIDEST, f"radius is {radius}, must be at most {WIDEST}")
    rows = [[radius * (n == axis)] * 2 for n in range(a.input.rank)]
    squares = padded(t, t.o.Mul(x, x), rows, np.float64(0))
    parts = [t.o.Slice(squares, [n], [n + size], [axis]) for n in range(2 * radius + 1)]
    total = t.o.Add(t.o.Mul(t.o.Sum(*parts), np.float64(a.alpha)), np.float64(a.bias))
    t.give(t.cast(t.o.Div(x, t.o.Pow(total, np.float64(a.beta))), np.float32))


@entry("INSTANCE_NORMALIZATION", types=FLOATS)
def instance_normalisation(t: OnnxTask) -> None:
    """Compute (x - mean) * gamma / sqrt(variance + epsilon) + beta."""
    a, x, axes = t.a, to_float64(t, "input"), [2, 3] if t.a.nchw else [1, 2]
    centred = t.o.Sub(x, t.o.ReduceMean(x, axes))
    variance = t.o.ReduceMean(t.o.Mul(centred, centred), axes)
    deviation = t.o.Sqrt(t.o.Add(variance, np.float64(a.epsilon)))
    y = t.o.Div(t.o.Mul(centred, np.float64(a.gamma)), deviation)
    t.give(t.cast(t.o.Add(y, np.float64(a.beta)), np.float32))


# ------------------------------------------------------------------------------------------------------------- resizing


@entry("RESIZE_NEAREST_NEIGHBOR", exact=True)
def pick_nearest(t: OnnxTask) -> None:
    """Pick exactly the definition's elements.

    If each is repeated equally often, use ONNX's operator, which is much faster.
    """
    y, first, times = t.x("input"), 2 if t.a.nchw else 1, repeats(t.a)
    if t.a.nchw and times:
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        t.put(t.o.Resize(y, "", np.array([1, 1, *times], np.float32), **how))
        return
    for axis, (size, new) in enumerate(zip((t.a.height, t.a.width), new_sizes(t), strict=True), first):
        y = t.o.Gather(y, nearest_indices(t.a, size, new).tolist(), axis=axis)
    t.put(y)


@entry("RESIZE_BILINEAR")
def bilinear(t: OnnxTask) -> None:
    """Multiply by the shares of the definition: ONNX Runtime's own positions are less exact."""
    (height, width), y = new_sizes(t), t.image(t.real("input"))
    y = t.o.MatMul(y, np.ascontiguousarray(interpolation(t.a, t.a.width, width).T))
    t.give(t.as_given(t.o.MatMul(interpolation(t.a, t.a.height, height), y)))
