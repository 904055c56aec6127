"""Entries of layers: pooling, convolutions, matrix products, normalisations, resizing."""

import math
from typing import NamedTuple

import numpy as np

from nnhal.base.codes import Padding as Scheme
from nnhal.base.operands import Array, ChannelQuant, Shape, UnknownValue, Value
from nnhal.base.records import replace
from nnhal.drivers.kit.numbers import has_many_ties
from nnhal.drivers.kit.sums import EXPONENTIALS, mean_windows
from nnhal.drivers.litert import quantisation as quant
from nnhal.drivers.litert import sums
from nnhal.drivers.litert.common import SAME, VALID, activation, image, image_out, pad, padded, scheme
from nnhal.drivers.litert.graph import COARSEST, FLOATS, QUANTS, EngineTensor, require_scales
from nnhal.drivers.litert.limits import (
    BEYOND_XNNPACK,
    product_of_scales,
    require_32_bits,
    require_scale,
    require_sum,
)
from nnhal.drivers.litert.reductions import add_up
from nnhal.drivers.litert.task import Task, entry, reach
from nnhal.ops.common import lowest, out_size, padding
from nnhal.ops.resize import nearest_elements
from nnhal.ops.schema import B8, F32, Q8, Q8PC, Q8S, Bound
from nnhal.ops.weighted import product_scales

WINDOW = 1024  # twice the greatest number of elements of a window at which halves of means differ from other fractions
SQUARED = 2.0**50  # numbers are squared up to here
SMALL = 2.0**-80  # a factor that makes all numbers small
WIDEST = 64  # the greatest radius of sums of shifted tensors
LEAST_EPSILON = float(np.float32(1e-12))  # as a model declares it
POINTER, ACCUMULATOR = 8, 4  # bytes: XNNPACK holds a pointer for each element that a window meets, LiteRT numbers
# LiteRT quantises their inputs if the weights are integers
DYNAMIC = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
LANES = 16  # channels that XNNPACK computes at once
TAPS = "for the positions of its filter"


@entry("AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D", exact=True)
def pool(t: Task) -> None:
    """Scale the mean afterwards: LiteRT's means count explicit padding that matches no scheme, NNAPI's do not."""
    a, x, out, how = t.a, image(t, "input"), image_out(t), scheme(t.a)
    _, height, width, _ = sizes(out)
    met = None if width is None else a.filter_w + (width - 1) * min(a.stride_w, a.filter_w)
    t.room.require((height, a.filter_h, met), POINTER, "for the positions of its window")
    if t.name == "AVERAGE_POOL_2D" and t.a.T in QUANTS:
        require_sum(a.filter_h * a.filter_w)
    window = {"strideW": a.stride_w, "strideH": a.stride_h, "filterWidth": a.filter_w, "filterHeight": a.filter_h}
    if t.name == "L2_POOL_2D":
        root_of_squares(t, x, out, window)
        return
    if t.name == "MAX_POOL_2D" or (how is not None and t.a.T in QUANTS):
        x, how = padded(t, x, lowest(np.empty(0, x.value.dtype)))
        t.emit(t.name, [x], out, "Pool2D", padding=how, fusedActivationFunction=activation(t), **window)
        return
    if how is not None:
        mean_pool(t, x, out, how, activation(t))
        return
    t.require(not (t.exact and t.a.T in QUANTS), "LiteRT's mean counts explicit padding, must not for exact numerics")
    factor = t.constant(1 / real_window_shares(a), np.float32)
    x, how = padded(t, quant.dequantised(t, x))
    out = quant.dequantised_out(t, out)
    mean = t.temporary(out.value)
    mean_pool(t, x, mean, how)
    if t.a.T not in QUANTS:
        t.emit("MUL", [mean, factor], out, "Mul", fusedActivationFunction=activation(t))
        return
    whole = t.temporary(out.value)
    t.emit("MUL", [mean, factor], whole, "Mul")
    t.emit("ADD", [whole, without_ties(t, whole)], out, "Add", fusedActivationFunction=activation(t))


def without_ties(t: Task, mean: EngineTensor) -> EngineTensor:
    """Return the offset that moves means of stored values away from a stored 0, past a half of a quantisation step only.

    It moves them past no other multiple of 1 / WINDOW.
    """
    value = t.a.out
    above, moved = t.temporary(mean.value, type=B8), t.temporary(mean.value)
    t.emit("GREATER_EQUAL", [mean, t.constant(-value.zero_point * value.scale, np.float32)], above)
    ends = [t.constant(sign * value.scale / (2 * WINDOW), np.float32) for sign in (1, -1)]
    t.emit("SELECT_V2", [above, *ends], moved)
    return moved


def mean_pool(t: Task, x: EngineTensor, out: EngineTensor, how: int, activation: int = 0) -> None:
    """Write the means of windows, in stages if they are long."""
    a = t.a
    windows = mean_windows(a)
    if not windows:
        mean = t.temporary(out.value) if activation else out
        add_up(t, "MEAN", x, (1, 2), mean)
        if activation:
            t.emit("ADD", [mean, t.constant(0.0, np.float32)], out, "Add", fusedActivationFunction=activation)
    for height, width in windows:
        last = (height, width) == windows[-1]
        batch, high, _, depth = sizes(x)
        y = out if last else t.temporary(out.value, shape=(batch, high, sizes(out)[2], depth))
        options = {"padding": how, "fusedActivationFunction": activation if last else 0}
        options |= {"filterHeight": height, "strideH": a.stride_h if last else 1}
        options |= {"filterWidth": width, "strideW": a.stride_w if windows[0] == (height, width) else 1}
        t.emit("AVERAGE_POOL_2D", [x], y, "Pool2D", **options)
        x = y


def root_of_squares(t: Task, x: EngineTensor, out: EngineTensor, window: dict[str, int]) -> None:
    """Write L2_POOL_2D; if squares would overflow, of scaled numbers."""
    a, how = t.a, scheme(t.a)
    short = mean_windows(a) == [(a.filter_h, a.filter_w)]
    factor = None if how is not None else t.constant(1 / np.sqrt(real_window_shares(a)), np.float32)
    x, how = padded(t, x)

    def pooled(numbers: EngineTensor) -> EngineTensor:
        root, whole = t.temporary(out.value), t.temporary(out.value)
        if short:
            t.emit(t.name, [numbers], root, "Pool2D", padding=how, **window)
        else:
            squares, mean = t.temporary(numbers.value), t.temporary(out.value)
            t.emit("MUL", [numbers, numbers], squares, "Mul")
            mean_pool(t, squares, mean, how)
            t.emit("SQRT", [mean], root)
        if factor is None:
            return root
        t.emit("MUL", [root, factor], whole, "Mul")
        return whole

    smaller, great, chosen = t.temporary(x.value), t.temporary(out.value), t.temporary(out.value)
    within = t.temporary(out.value, type=B8)
    t.emit("MUL", [x, t.constant(1 / SQUARED**2, np.float32)], smaller, "Mul")
    t.emit("MUL", [pooled(smaller), t.constant(SQUARED**2, np.float32)], great, "Mul")
    plain = pooled(x)
    t.emit("LESS", [plain, t.constant(SQUARED, np.float32)], within)
    t.emit("SELECT_V2", [within, plain, great], chosen)
    t.emit("ADD", [chosen, t.constant(0.0, np.float32)], out, "Add", fusedActivationFunction=activation(t))


def real_window_shares(a: Bound) -> Array:
    """Return the share of real elements in each window: [height, width, 1]."""
    return (counted(a, "h")[:, None] * counted(a, "w") / (a.filter_h * a.filter_w))[..., None]


def counted(a: Bound, axis: str) -> Array:
    """Return how many real elements each window holds along an axis."""
    size = a.height if axis == "h" else a.width
    start = np.arange(out_size(axis)(a)) * getattr(a, f"stride_{axis}") - padding(a, axis)[0]
    return np.minimum(start + getattr(a, f"filter_{axis}"), size) - np.maximum(start, 0)


# --------------------------------------------------------------------------------------------------------- convolutions


class WeightedLayer(NamedTuple):
    """The tensors of a layer with weights, pictures as NHWC."""

    x: EngineTensor
    weights: EngineTensor
    bias: EngineTensor
    out: EngineTensor

    @property
    def constant(self) -> bool:
        """Whether XNNPACK supports the layer: it needs constant weights and bias."""
        return self.weights.value.data is not None and self.bias.value.data is not None


def sizes(x: EngineTensor) -> Shape:
    """Return the known dimensions of a tensor of rank 4."""
    return (None,) * 4 if x.value.shape is None else x.value.shape


def weighted(t: Task) -> WeightedLayer:
    """Return a layer's tensors, with 8-bit ones converted around the layer if their sign does not match the weights.

    LiteRT has per-channel weights only for signed activations, and zero points of weights only for unsigned ones.
    """
    (name, axis), pictures = t.weights, t.a.form_has("nchw")
    x, weights = image(t, "input") if pictures else t.x("input"), integers(t) or t.x(name)
    out = image_out(t) if pictures else t.out
    require_packed(t, weights.value)
    if x.value.type not in QUANTS:
        return WeightedLayer(x, weights, t.x("bias"), out)
    products = product_scales(x.value, weights.value)
    require_scales(products.min(), products.max())
    require_scale(products.max(), out.value)
    added = bias(t, products, weights.value.channel is not None)
    dynamic = weights.value.data is None or added.value.data is None
    if dynamic and not t.exact and sums.greatest_product_sum(x.value, weights.value, axis) <= sums.EXACT:
        # XNNPACK supports constant weights alone, and LiteRT's own 8-bit kernels round twice, upwards.
        return WeightedLayer(
            quant.dequantised(t, x),
            quant.dequantised(t, weights),
            of_reals(t, added, products),
            quant.dequantised_out(t, out),
        )
    per_channel = weights.value.type == Q8PC
    sign = Q8S if per_channel or (weights.value.type == Q8S and weights.value.zero_point == 0) else Q8
    x, out = quant.recast(t, x, sign), quant.recast_out(t, out, sign)
    weights = weights if per_channel else quant.recast(t, weights, sign)
    if t.name == "FULLY_CONNECTED" and weights.value.data is not None and t.shared(name):
        weights = t.constant(
            weights.value.data, value=weights.value
        )  # its own, which LiteRT marks as scaled by channel
    return WeightedLayer(
        x, weights, sums.bias_without_overflow(t, x.value, weights.value, axis, added, products / out.value.scale), out
    )


def integers(t: Task) -> EngineTensor | None:
    """Return 8-bit weights for a float input, if the application requests them and LiteRT has a kernel for that."""
    name, axis = t.weights
    found = t.integers(name)
    if found is None or t.name not in DYNAMIC or t.a.input.type != F32:
        return None
    channel = found.value.channel
    if t.name == "DEPTHWISE_CONV_2D" and channel is None:
        return None
    return found if channel is None or channel.axis == axis else None


def require_packed(t: Task, weights: Value) -> None:
    """Refuse weights that XNNPACK would pack into many times their size: each group's channels fill whole registers."""
    groups = t.a.groups if t.a.form_has("groups") else 1
    channels = weights.known[t.weights.axis]
    lanes = groups * -(-channels // groups // LANES) * LANES
    t.room.require((lanes, math.prod(weights.known) // channels), weights.dtype.itemsize, "for its weights")


def bias(t: Task, products: Array, per_channel: bool) -> EngineTensor:
    """Return the bias of a quantised layer; a constant one has the scales of the products."""
    value, scales = t.a.bias, tuple(products.astype(np.float32).tolist())
    if value.data is None:
        return t.x("bias")
    if per_channel:
        return t.constant(value.data, value=replace(value, scale=0.0, channel=ChannelQuant(scales, 0)))
    return t.constant(value.data, value=replace(value, scale=scales[0]))


def of_reals(t: Task, added: EngineTensor, products: Array) -> EngineTensor:
    """Return the real values of a quantised layer's bias."""
    if added.value.data is not None:
        return t.constant(np.asarray(added.value.data, np.float64) * products, np.float32)
    numbers = quant.cast(t, added, F32)
    y = t.temporary(numbers.value, scale=0.0, zero_point=0)
    t.emit("MUL", [numbers, t.constant(products, np.float32)], y, "Mul")
    return y


@entry("CONV_2D", "DEPTHWISE_CONV_2D", "GROUPED_CONV_2D", exact=True)
def convolution(t: Task) -> None:
    """Groups need no option: LiteRT derives them from the depth of the filter."""
    depthwise = t.name == "DEPTHWISE_CONV_2D"
    a, w = t.a, weighted(t)
    batch, height, width, _ = sizes(w.out)
    if depthwise or w.constant:
        t.room.require((height, width, a.filter_h, a.filter_w), POINTER, TAPS)
    else:
        t.room.require((batch, height, width, *sizes(w.weights)[1:]), w.x.value.dtype.itemsize, TAPS)
    x, how = padded(t, w.x, apart=not depthwise and w.x.value.type in FLOATS and filter_covers_input(a))
    options = {"strideW": a.stride_w, "strideH": a.stride_h, "fusedActivationFunction": activation(t), "padding": how}
    if a.form_has("dilation_w"):
        options |= {"dilationWFactor": a.dilation_w, "dilationHFactor": a.dilation_h}
    if depthwise:
        options["depthMultiplier"] = a.depth_multiplier
        t.emit(t.name, [x, w.weights, w.bias], w.out, "DepthwiseConv2D", **options)
    else:
        t.emit("CONV_2D", [x, w.weights, w.bias], w.out, "Conv2D", **options)


def filter_covers_input(a: Bound) -> bool:
    """Whether a filter is as large as the picture, and has more positions than the first, which meets no padding.

    LiteRT's multi-threaded float kernel computes only that first position.
    """
    try:
        around = [padding(a, axis) for axis in "hw"]
        whole = (a.filter_h, a.filter_w) == (a.height, a.width)
    except UnknownValue:
        return False
    return whole and all(before == 0 for before, _ in around) and any(after for _, after in around)


@entry("TRANSPOSE_CONV_2D", exact=True)
def transposed_convolution(t: Task) -> None:
    """Cut off explicit padding that matches no scheme afterwards."""
    a, w = t.a, weighted(t)
    require_32_bits(np.array([products_extent(a, axis) for axis in "hw"]))
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
            t.require(
                min(a.pad_right, a.pad_bottom) >= 0, "padding is negative at the end and positive at the beginning"
            )
            shape[1:3] = [products_extent(a, axis) for axis in "hw"]
            out = t.temporary(out.value, shape=tuple(int(n) for n in shape))
    if w.constant:
        t.room.require((*sizes(out)[1:3], a.filter_h, a.filter_w), POINTER, TAPS)
    else:
        t.room.require((*sizes(w.x)[1:3], *sizes(w.weights)[:3]), ACCUMULATOR, TAPS)
    options = {"strideW": a.stride_w, "strideH": a.stride_h, "fusedActivationFunction": activation(t), "padding": how}
    t.emit("TRANSPOSE_CONV", [t.constant(shape), w.weights, w.x, w.bias], out, "TransposeConv", **options)
    if out is not w.out:
        t.slice(out, (0, a.pad_top, a.pad_left, 0), w.out)


def products_extent(a: Bound, axis: str) -> int:
    """Return the extent of the products of a transposed convolution along an axis."""
    count = a.height if axis == "h" else a.width
    return int((count - 1) * getattr(a, f"stride_{axis}") + getattr(a, f"filter_{axis}"))


def fits(a: Bound, how: int, axis: str, shape: Array) -> bool:
    """Whether a scheme cuts off the same products of a transposed convolution as the explicit padding."""
    size, before = (shape[1], a.pad_top) if axis == "h" else (shape[2], a.pad_left)
    stride, reach = getattr(a, f"stride_{axis}"), 1 if how == SAME else getattr(a, f"filter_{axis}")
    least = products_extent(a, axis) - getattr(a, f"filter_{axis}") + reach
    cut = max(0, products_extent(a, axis) - size) // 2 if how == SAME else 0
    return bool(least <= size < least + stride and before == cut)


@entry("FULLY_CONNECTED", exact=True)
def fully_connected(t: Task) -> None:
    """Treat the input as rows of `input_size` elements, whatever its rank."""
    w = weighted(t)
    how = {"fusedActivationFunction": activation(t), "asymmetricQuantizeInputs": True}  # as converters write it
    t.emit(t.name, [w.x, w.weights, w.bias], w.out, "FullyConnected", **how)


@entry("BATCH_MATMUL", types=FLOATS | {Q8S}, exact=True)
def batch_matmul(t: Task) -> None:
    """Refuse a product that may wrap around in 32 bits, by the longest possible sum. Either side may be transposed.

    LiteRT's own 8-bit kernel, which has zero points for the second factor, rounds halves of a quantisation step
    upwards. If scales make halves, and float32 holds the sums, the product is one of real values.
    """
    a, (x, y) = t.a, (t.a.x, t.a.y)
    factors, out = [t.x("x"), t.x("y")], t.out
    if a.T == Q8S:
        ratio = product_of_scales(x.scale, y.scale) / a.out.scale
        require_scale(x.scale * y.scale, a.out)
        inner = x.known[-2 if a.adj_x else -1]
        longest = inner * reach(x) * reach(y)
        fits = longest <= sums.capacity(ratio)
        t.require(fits, f"a product of scale {x.scale * y.scale:g} may exceed 32 bits, must fit for LiteRT")
        own = y.zero_point != 0 and not t.exact
        if own and longest <= sums.EXACT and has_many_ties([x.scale * y.scale], a.out.scale):
            factors, out = [quant.dequantised(t, each) for each in factors], quant.dequantised_out(t, out)
    t.graph.keep_transposed(*factors)
    t.emit(t.name, factors, out, "BatchMatMul", adjX=t.a.adj_x, adjY=t.a.adj_y)


# ------------------------------------------------------------------------------------------------------- normalisations


def axis_last(t: Task) -> tuple[EngineTensor, EngineTensor]:
    """Return input and output with dimension `axis` moved to the end, where LiteRT's kernels work."""
    x, rank = t.x("input"), t.a.input.rank
    axis = t.a.axis % rank
    if axis == rank - 1:
        return x, t.out
    order = [i for i in range(rank) if i != axis] + [axis]
    return t.transposed(x, order), t.transposed_out([int(i) for i in np.argsort(order)])


@entry("SOFTMAX", exact=True)
def softmax(t: Task) -> None:
    """Compute along the last dimension."""
    x, out = axis_last(t)
    steep = t.a.beta * x.value.scale
    t.require(steep <= COARSEST, f"beta times the scale is {steep:g}, must be at most {COARSEST:g}")
    if t.a.T in FLOATS and x.value.known[-1] > EXPONENTIALS:
        softmax_in_stages(t, distances(t, x), out)
        return
    t.emit(t.name, [x], out, "Softmax", beta=t.a.beta)


def distances(t: Task, x: EngineTensor) -> EngineTensor:
    """Return the distances of elements from the greatest in their row, times beta, halved to avoid overflow."""
    half, distance, scaled = (t.temporary(x.value) for _ in range(3))
    greatest = t.along(x.value, [-1])
    t.emit("MUL", [x, t.constant(0.5, np.float32)], half, "Mul")
    t.emit("REDUCE_MAX", [half, t.constant([x.value.rank - 1])], greatest, "Reducer", keepDims=True)
    t.emit("SUB", [half, greatest], distance, "Sub")
    t.emit("MUL", [distance, t.constant(2 * t.a.beta, np.float32)], scaled, "Mul")
    return scaled


def softmax_in_stages(t: Task, below: EngineTensor, out: EngineTensor) -> None:
    """Write the (logarithm of a) softmax along the last dimension, whose sum of exponentials is long."""
    powers, whole = t.temporary(below.value), t.along(below.value, [-1])
    t.emit("EXP", [below], powers)
    add_up(t, "SUM", powers, [below.value.rank - 1], whole)
    if t.name == "SOFTMAX":
        t.emit("DIV", [powers, whole], out, "Div")
        return
    logarithm = t.along(below.value, [-1])
    t.emit("LOG", [whole], logarithm)
    t.emit("SUB", [below, logarithm], out, "Sub")


def flattened(t: Task, x: EngineTensor, out: EngineTensor) -> tuple[EngineTensor, EngineTensor]:
    """Return input and output with all dimensions but the last merged."""
    shape = math.prod(x.value.known[:-1]), x.value.known[-1]
    flat, made = t.temporary(x.value, shape=shape), t.temporary(out.value, shape=shape)
    t.reshape(x, flat)
    t.later(lambda: t.reshape(made, out))
    return flat, made


@entry("LOG_SOFTMAX", types=FLOATS)
def log_softmax(t: Task) -> None:
    """Multiply the distance from the greatest element by beta, which LiteRT's lacks; halved so that it cannot overflow."""
    x, out = axis_last(t)
    if x.value.rank > BEYOND_XNNPACK:
        x, out = flattened(t, x, out)
    long = x.value.known[-1] > EXPONENTIALS
    if t.a.beta != 1 or long:
        x = distances(t, x)
    if long:
        softmax_in_stages(t, x, out)
    else:
        t.emit(t.name, [x], out)


@entry("LOCAL_RESPONSE_NORMALIZATION", types=FLOATS)
def local_response(t: Task) -> None:
    """Write several operators: LiteRT's kernel updates sums of squares, which loses small ones beside great ones.

    If squares overflow, the numbers are scaled down first.
    """
    a, (given, out) = t.a, axis_last(t)
    shape = given.value.known
    size, radius = shape[-1], min(a.radius, max(0, shape[-1] - 1))
    t.require(radius <= WIDEST, f"radius is {radius}, must be at most {WIDEST}")
    x = t.temporary(given.value, shape=(math.prod(shape[:-1]), size))
    t.reshape(given, x)

    def normalised(factor: float) -> tuple[EngineTensor, EngineTensor]:
        """Return the sums of squares of the numbers times a factor, and the numbers divided by their power."""
        small, squares, weighed, base, power, made = (t.temporary(x.value) for _ in range(6))
        t.emit("MUL", [x, t.constant(factor, np.float32)], small, "Mul")
        t.emit("MUL", [small, small], squares, "Mul")
        total = shifted_sum(t, squares, radius)
        t.emit("MUL", [total, t.constant(a.alpha, np.float32)], weighed, "Mul")
        t.emit("ADD", [weighed, t.constant(a.bias * factor**2, np.float32)], base, "Add")
        t.emit("POW", [base, t.constant(a.beta, np.float32)], power)
        t.emit("DIV", [small, power], made, "Div")
        return total, made

    (_, plain), (total, raised) = normalised(1.0), normalised(SMALL)
    great, chosen, beyond = t.temporary(x.value), t.temporary(x.value), t.temporary(x.value, type=B8)
    t.emit("MUL", [raised, t.constant(SMALL ** (2 * a.beta - 1), np.float32)], great, "Mul")
    t.emit("GREATER", [total, t.constant((SQUARED * SMALL) ** 2, np.float32)], beyond)
    t.emit("SELECT_V2", [beyond, great, plain], chosen)
    t.reshape(chosen, out)


def shifted_sum(t: Task, x: EngineTensor, radius: int) -> EngineTensor:
    """Return the sum of the elements up to `radius` away, along the last of two dimensions."""
    around = pad(t, x, ((0, 0), (radius, radius)))
    total = x
    for shift in range(-radius, radius + 1):
        if shift:
            moved, more = t.temporary(x.value), t.temporary(x.value)
            t.slice(around, (0, radius + shift), moved)
            t.emit("ADD", [total, moved], more, "Add")
            total = more
    return total


@entry("L2_NORMALIZATION")
def l2_normalisation(t: Task) -> None:
    """Write several operators for real values: LiteRT's kernel replaces lengths below 0.001 by 0.001.

    The shares of the greatest element are squared, which neither overflow nor all underflow.
    """
    if t.a.T in QUANTS:
        x, out = axis_last(t)
        if None not in x.value.dims:
            require_sum(x.value.known[-1], reach(x.value) ** 2)
        t.emit(t.name, [x], out, "L2Norm")
        return
    x, axis, limits = t.x("input"), t.constant([t.a.axis % t.a.input.rank]), np.finfo(np.float32)
    unit, sizes, squares = (t.temporary(x.value) for _ in range(3))
    greatest, some, scale, whole, length, bounded = (t.along(x.value, [t.a.axis]) for _ in range(6))
    t.emit("ABS", [x], sizes)
    t.emit("REDUCE_MAX", [sizes, axis], greatest, "Reducer", keepDims=True)
    t.emit("MAXIMUM", [greatest, t.constant(limits.tiny, np.float32)], some)
    t.emit("MINIMUM", [some, t.constant(limits.max, np.float32)], scale)
    t.emit("DIV", [x, scale], unit, "Div")
    t.emit("MUL", [unit, unit], squares, "Mul")
    add_up(t, "SUM", squares, [t.a.axis % t.a.input.rank], whole)
    t.emit("SQRT", [whole], length)
    t.emit("MAXIMUM", [length, t.constant(limits.tiny, np.float32)], bounded)
    t.emit("DIV", [unit, bounded], t.out, "Div")


@entry("INSTANCE_NORMALIZATION", types=FLOATS)
def instance_normalisation(t: Task) -> None:
    """Compute (x - mean) * gamma / sqrt(variance + epsilon) + beta.

    Numbers whose squares overflow are scaled down first.
    """
    a, x = t.a, image(t, "input")
    t.require(a.epsilon >= LEAST_EPSILON, f"epsilon is {a.epsilon:g}, must be at least {LEAST_EPSILON:g} for float32")
    axes, out = t.constant([1, 2]), image_out(t)
    greatest, scale, over, mean, rest, variance, share, least, some, bounded, factor, gain = (
        t.along(x.value, (1, 2)) for _ in range(12)
    )
    sizes, smaller, near, centred, squares, scaled = (t.temporary(x.value) for _ in range(6))
    t.emit("ABS", [x], sizes)
    t.emit("REDUCE_MAX", [sizes, axes], greatest, "Reducer", keepDims=True)
    t.emit("MUL", [greatest, t.constant(1 / SQUARED, np.float32)], over, "Mul")
    t.emit("MAXIMUM", [over, t.constant(1.0, np.float32)], scale)
    t.emit("DIV", [x, scale], smaller, "Div")
    t.emit("DIV", [t.constant(a.epsilon, np.float32), scale], share, "Div")
    t.emit("DIV", [share, scale], least, "Div")
    add_up(t, "MEAN", smaller, (1, 2), mean)
    t.emit("SUB", [smaller, mean], near, "Sub")
    add_up(t, "MEAN", near, (1, 2), rest)  # so that the error of the mean is not part of the deviation
    t.emit("SUB", [near, rest], centred, "Sub")
    t.emit("MUL", [centred, centred], squares, "Mul")
    add_up(t, "MEAN", squares, (1, 2), variance)
    t.emit("ADD", [variance, least], some, "Add")
    t.emit("MAXIMUM", [some, t.constant(np.finfo(np.float32).tiny, np.float32)], bounded)
    t.emit("RSQRT", [bounded], factor)
    t.emit("MUL", [factor, t.constant(a.gamma, np.float32)], gain, "Mul")
    t.emit("MUL", [centred, gain], scaled, "Mul")
    t.emit("ADD", [scaled, t.constant(a.beta, np.float32)], out, "Add")


# ------------------------------------------------------------------------------------------------------------- resizing


def of_fixed_point(size: int, new: int) -> Array:
    """Return the elements that LiteRT's kernel of 8 bits takes: its step has 16 bits behind the point, rounded up."""
    index: Array = (np.arange(new, dtype=np.int64) * ((size << 16) // new + 1)) >> 16
    return np.minimum(index, size - 1)


@entry("RESIZE_BILINEAR")
@entry("RESIZE_NEAREST_NEIGHBOR", exact=True)
def resize(t: Task) -> None:
    """Resize to the output's shape, by scale or by size.

    Quantised means use real values, because LiteRT's and XNNPACK's own kernels round them to one side.
    """
    a, out, x = t.a, image_out(t), image(t, "input")
    if t.name == "RESIZE_BILINEAR":
        x, out = quant.dequantised(t, x), quant.dequantised_out(t, out)
    elif a.T in QUANTS and not (a.align_corners or a.half_pixel_centers):
        old, new = (replace(each.value, shape=each.value.dims[1:3]).known for each in (x, out))
        sizes = list(zip(old, new, strict=True))
        taken = [nearest_elements(a, *each) for each in sizes]
        if any((mine != of_fixed_point(*each)).any() for mine, each in zip(taken, sizes, strict=True)):
            rows = t.temporary(x.value, shape=(x.value.dims[0], new[0], *x.value.dims[2:]))
            t.emit("GATHER", [x, t.constant(taken[0].astype(np.int32))], rows, "Gather", axis=1)
            t.emit("GATHER", [rows, t.constant(taken[1].astype(np.int32))], out, "Gather", axis=2)
            return
    options = {"alignCorners": a.align_corners, "halfPixelCenters": a.half_pixel_centers}
    kind = "ResizeBilinear" if t.name == "RESIZE_BILINEAR" else "ResizeNearestNeighbor"
    t.emit(
        t.name,
        [x, t.constant(replace(out.value, shape=out.value.dims[1:3]).known)],
        out,
        kind,
        **options,
    )
