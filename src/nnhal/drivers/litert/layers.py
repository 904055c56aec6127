"""Entries of layers: pooling, convolutions, matrix products, normalisations, resizing."""

import math
from dataclasses import dataclass, replace

import numpy as np

from nnhal.base.codes import Padding as Scheme
from nnhal.base.operands import Array, ChannelQuant, Value
from nnhal.drivers.litert.common import SAME, VALID, activation, padded, scheme
from nnhal.drivers.litert.graph import FLOATS, QUANTS, Tensor
from nnhal.drivers.litert.task import Task, entry
from nnhal.ops.common import lowest, out_size, padding
from nnhal.ops.schema import I32, Q8, Q8PC, Q8S, Bound


@entry("AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D")
def pool(t: Task) -> None:
    """Padding that is no scheme's counts in LiteRT's means, and not in NNAPI's: the mean is scaled afterwards."""
    a, x, out, how = t.a, t.image("input"), t.image_out(), scheme(t.a)
    window = {"strideW": a.stride_w, "strideH": a.stride_h, "filterWidth": a.filter_w, "filterHeight": a.filter_h}
    if how is not None or t.name == "MAX_POOL_2D":
        x, how = padded(t, x, lowest(np.empty(0, x.value.dtype)))
        t.emit(t.name, [x], out, "Pool2D", padding=how, fusedActivationFunction=activation(t), **window)
        return
    share = counted(a, "h")[:, None] * counted(a, "w") / (a.filter_h * a.filter_w)
    factor = t.constant((1 / share if t.name == "AVERAGE_POOL_2D" else 1 / np.sqrt(share))[..., None], np.float32)
    x, how = padded(t, t.dequantised(x))
    out = t.dequantised_out(out)
    mean = t.temporary(out.value)
    t.emit(t.name, [x], mean, "Pool2D", padding=how, **window)
    t.emit("MUL", [mean, factor], out, "Mul", fusedActivationFunction=activation(t))


def counted(a: Bound, axis: str) -> Array:
    """How many real elements each window holds along an axis."""
    size = a.height if axis == "h" else a.width
    start = np.arange(out_size(axis)(a)) * getattr(a, f"stride_{axis}") - padding(a, axis)[0]
    return np.minimum(start + getattr(a, f"filter_{axis}"), size) - np.maximum(start, 0)


# --------------------------------------------------------------------------------------------------------- convolutions


@dataclass(frozen=True)
class Weighted:
    """The tensors of a layer with weights, pictures as NHWC."""

    x: Tensor
    weights: Tensor
    bias: Tensor
    out: Tensor


def weighted(t: Task, name: str = "filter") -> Weighted:
    """LiteRT has per-channel weights for signed activations only, and zero points of weights for unsigned ones only:
    where the sign is the wrong one for the weights, 8-bit tensors are converted around the layer.
    """
    pictures = t.a.form_has("nchw")
    x, weights = t.image("input") if pictures else t.x("input"), t.x(name)
    out = t.image_out() if pictures else t.out
    if x.value.type in QUANTS:
        per_channel = weights.value.type == Q8PC
        sign = Q8S if per_channel or (weights.value.type == Q8S and weights.value.zero_point == 0) else Q8
        x, out = t.recast(x, sign), t.recast_out(out, sign)
        weights = weights if per_channel else t.recast(weights, sign)
        channel = weights.value.channel
        t.require_scale(x.value.scale * max(channel.scales if channel else (weights.value.scale,)), out.value)
    return Weighted(x, weights, bias(t, x.value, weights.value), out)


def bias(t: Task, x: Value, weights: Value) -> Tensor:
    """The bias; a constant integer one has the scale of the products, for each channel where the weights have."""
    value, scale = t.a.bias, np.float32(x.scale)
    if value.type != I32 or value.data is None:
        return t.x("bias")
    if weights.channel is None:
        value = replace(value, scale=float(scale * np.float32(weights.scale)))
    else:
        products = scale * np.array(weights.channel.scales, np.float32)
        value = replace(value, scale=0.0, channel=ChannelQuant(tuple(products.tolist()), 0))
    return t.constant(value.data, value=value)


@entry("CONV_2D", "DEPTHWISE_CONV_2D", "GROUPED_CONV_2D")
def convolution(t: Task) -> None:
    """Groups need no option: LiteRT sees them by the depth of the filter."""
    a, w = t.a, weighted(t)
    x, how = padded(t, w.x)
    options = {"strideW": a.stride_w, "strideH": a.stride_h, "fusedActivationFunction": activation(t), "padding": how}
    if a.form_has("dilation_w"):
        options |= {"dilationWFactor": a.dilation_w, "dilationHFactor": a.dilation_h}
    if t.name == "DEPTHWISE_CONV_2D":
        options["depthMultiplier"] = a.depth_multiplier
        t.emit(t.name, [x, w.weights, w.bias], w.out, "DepthwiseConv2D", **options)
    else:
        t.emit("CONV_2D", [x, w.weights, w.bias], w.out, "Conv2D", **options)


@entry("TRANSPOSE_CONV_2D")
def transposed_convolution(t: Task) -> None:
    """Padding that is no scheme's is cut off afterwards."""
    a, w = t.a, weighted(t)
    out, how = w.out, SAME
    if a.form_has("scheme"):
        shape = t.array("output_shape")
        how = SAME if a.scheme == Scheme.SAME else VALID
        shape = shape[[0, 2, 3, 1]] if a.nchw else shape
    else:
        shape = np.array(out.value.known)
        fitting = [s for s in (SAME, VALID) if all(fits(a, s, axis, shape) for axis in "hw")]
        how = fitting[0] if fitting else VALID
        if not fitting:
            t.require(min(a.pad_right, a.pad_bottom) >= 0, "negative padding behind and padding before")
            shape[1:3] = [spread(a, axis) for axis in "hw"]
            out = t.temporary(out.value, shape=tuple(int(n) for n in shape))
    options = {"strideW": a.stride_w, "strideH": a.stride_h, "fusedActivationFunction": activation(t), "padding": how}
    t.emit("TRANSPOSE_CONV", [t.constant(shape), w.weights, w.x, w.bias], out, "TransposeConv", **options)
    if out is not w.out:
        t.slice(out, (0, a.pad_top, a.pad_left, 0), w.out)


def spread(a: Bound, axis: str) -> int:
    """How far the products of a transposed convolution reach along an axis."""
    count = a.height if axis == "h" else a.width
    return int((count - 1) * getattr(a, f"stride_{axis}") + getattr(a, f"filter_{axis}"))


def fits(a: Bound, how: int, axis: str, shape: Array) -> bool:
    """Whether a scheme cuts the products of a transposed convolution where the explicit padding does."""
    size, before = (shape[1], a.pad_top) if axis == "h" else (shape[2], a.pad_left)
    stride, reach = getattr(a, f"stride_{axis}"), 1 if how == SAME else getattr(a, f"filter_{axis}")
    least = spread(a, axis) - getattr(a, f"filter_{axis}") + reach
    cut = max(0, spread(a, axis) - size) // 2 if how == SAME else 0
    return bool(least <= size < least + stride and before == cut)


@entry("FULLY_CONNECTED")
def fully_connected(t: Task) -> None:
    """The input is taken for rows of `input_size` elements, whatever its rank."""
    w = weighted(t, "weights")
    t.emit(t.name, [w.x, w.weights, w.bias], w.out, "FullyConnected", fusedActivationFunction=activation(t))


@entry("BATCH_MATMUL", types=FLOATS | {Q8S})
def batch_matmul(t: Task) -> None:
    """Either side may be transposed."""
    t.emit(t.name, [t.x("x"), t.x("y")], t.out, "BatchMatMul", adjX=t.a.adj_x, adjY=t.a.adj_y)


# ------------------------------------------------------------------------------------------------------- normalisations


def axis_last(t: Task) -> tuple[Tensor, Tensor]:
    """Input and output with dimension `axis` moved to the end, where LiteRT's kernels work."""
    x, rank = t.x("input"), t.a.input.rank
    axis = t.a.axis % rank
    if axis == rank - 1:
        return x, t.out
    order = [i for i in range(rank) if i != axis] + [axis]
    return t.transposed(x, order), t.transposed_out([int(i) for i in np.argsort(order)])


@entry("SOFTMAX")
def softmax(t: Task) -> None:
    """Along the last dimension."""
    x, out = axis_last(t)
    t.emit(t.name, [x], out, "Softmax", beta=t.a.beta)


@entry("LOG_SOFTMAX", types=FLOATS)
def log_softmax(t: Task) -> None:
    """LiteRT's has no beta."""
    x, out = axis_last(t)
    if t.a.beta != 1:
        scaled = t.temporary(x.value)
        t.emit("MUL", [x, t.constant(t.a.beta, np.float32)], scaled, "Mul")
        x = scaled
    t.emit(t.name, [x], out)


@entry("LOCAL_RESPONSE_NORMALIZATION", types=FLOATS)
def local_response(t: Task) -> None:
    """Along the last of four dimensions."""
    a, (x, out) = t.a, axis_last(t)
    options = {"radius": a.radius, "bias": a.bias, "alpha": a.alpha, "beta": a.beta}
    shape = x.value.known
    if len(shape) != 4:
        flat = t.temporary(x.value, shape=(1, 1, math.prod(shape[:-1]), shape[-1]))
        result = t.temporary(flat.value)
        t.reshape(x, flat)
        t.emit(t.name, [flat], result, "LocalResponseNormalization", **options)
        t.reshape(result, out)
    else:
        t.emit(t.name, [x], out, "LocalResponseNormalization", **options)


@entry("L2_NORMALIZATION")
def l2_normalisation(t: Task) -> None:
    """Real values by parts: LiteRT's kernel takes lengths below 0.001 for 0.001."""
    if t.a.T in QUANTS:
        x, out = axis_last(t)
        t.emit(t.name, [x], out, "L2Norm")
        return
    x, axis = t.x("input"), t.constant([t.a.axis % t.a.input.rank])
    squares, sums, lengths = t.temporary(x.value), t.along(x.value, [t.a.axis]), t.along(x.value, [t.a.axis])
    bounded = t.along(x.value, [t.a.axis])
    t.emit("MUL", [x, x], squares, "Mul")
    t.emit("SUM", [squares, axis], sums, "Reducer", keepDims=True)
    t.emit("SQRT", [sums], lengths)
    t.emit("MAXIMUM", [lengths, t.constant(np.finfo(np.float32).tiny, np.float32)], bounded)
    t.emit("DIV", [x, bounded], t.out, "Div")


@entry("INSTANCE_NORMALIZATION", types=FLOATS)
def instance_normalisation(t: Task) -> None:
    """By parts: (x - mean) * gamma / sqrt(variance + epsilon) + beta."""
    a, x = t.a, t.image("input")
    axes, out = t.constant([1, 2]), t.image_out()
    mean, variance, bounded, factor, gain = (t.along(x.value, (1, 2)) for _ in range(5))
    centred, squares, scaled = (t.temporary(x.value) for _ in range(3))
    t.emit("MEAN", [x, axes], mean, "Reducer", keepDims=True)
    t.emit("SUB", [x, mean], centred, "Sub")
    t.emit("MUL", [centred, centred], squares, "Mul")
    t.emit("MEAN", [squares, axes], variance, "Reducer", keepDims=True)
    t.emit("ADD", [variance, t.constant(a.epsilon, np.float32)], bounded, "Add")
    t.emit("RSQRT", [bounded], factor)
    t.emit("MUL", [factor, t.constant(a.gamma, np.float32)], gain, "Mul")
    t.emit("MUL", [centred, gain], scaled, "Mul")
    t.emit("ADD", [scaled, t.constant(a.beta, np.float32)], out, "Add")


# ------------------------------------------------------------------------------------------------------------- resizing


@entry("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def resize(t: Task) -> None:
    """By scale or by size: the output's shape says it."""
    a, out = t.a, t.image_out()
    options = {"alignCorners": a.align_corners, "halfPixelCenters": a.half_pixel_centers}
    kind = "ResizeBilinear" if t.name == "RESIZE_BILINEAR" else "ResizeNearestNeighbor"
    t.emit(t.name, [t.image("input"), t.constant(out.value.known[1:3])], out, kind, **options)
