"""Entries of layers: convolutions, matrix products, pooling, normalisations, resizing."""

import math
from functools import partial

import numpy as np

from nnhal.base.codes import Padding as Scheme
from nnhal.base.operands import UnknownValue, fixed
from nnhal.drivers.kit.movement import interpolation, nearest_indices, repeats
from nnhal.drivers.kit.numbers import window
from nnhal.drivers.kit.operations.common import add_up, image, layout, mean_pool, spoilt
from nnhal.drivers.kit.operations.primitives import Node, WindowAttributes
from nnhal.drivers.kit.operations.task import FLOATS, GraphTask, entry
from nnhal.drivers.kit.sums import EXPONENTIALS
from nnhal.ops.common import axis_of
from nnhal.ops.resize import new_size
from nnhal.ops.schema import Q8S
from nnhal.ops.transposed import cut, out_size, products_extent

LEAST, GREATEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
SQUARED = 2.0**50  # numbers are squared up to here
LEAST_EPSILON = float(np.float32(1e-12))


def sliding(t: GraphTask) -> WindowAttributes:
    """Return the movement of a window or filter. Some engines compute a padding scheme, for pictures of unknown sizes."""
    a, strides = t.a, (t.a.stride_h, t.a.stride_w)
    size, dilations = (a.filter_h, a.filter_w), (a.dilation_h, a.dilation_w) if a.form_has("dilation_h") else (1, 1)
    if t.o.unknown_sizes and a.form_has("scheme"):
        return WindowAttributes(strides, size=size, dilations=dilations, same=a.scheme == Scheme.SAME)
    h, w = window(a, "h"), window(a, "w")
    return WindowAttributes(strides, (h.before, w.before), (h.after, w.after), size, dilations)


def filters(t: GraphTask) -> tuple[tuple[int, ...], int]:
    """Return the order of dimensions that makes a filter [outputs, inputs, height, width], and the number of groups."""
    if t.name != "DEPTHWISE_CONV_2D":
        return (0, 3, 1, 2), t.a.groups if t.name == "GROUPED_CONV_2D" else 1
    return (3, 0, 1, 2), t.a.filter.known[3] // t.a.depth_multiplier


@entry("CONV_2D", "GROUPED_CONV_2D", "DEPTHWISE_CONV_2D", variants=True)
def convolution(t: GraphTask) -> None:
    """Each group has its own filters; a group of DEPTHWISE_CONV_2D is one channel.

    If several groups of one channel have several outputs each, OpenVINO's 8-bit kernel for small pictures (gemm) is
    wrong. So is one for a filter that meets only padding.
    """
    how, (order, groups), axis = sliding(t), filters(t), t.weights.axis
    spreading = t.a.filter.known[axis] > groups > 1 and (axis == 3 or t.a.filter.known[3] == 1)

    def product(x: Node, weights: Node, bias: Node | None = None) -> Node:
        return t.o.convolution(image(t, x), t.o.transpose(weights, order), groups, how, bias)

    t.layer(product, fast=not (spreading or any(map(partial(idle, t), "hw"))))


def idle(t: GraphTask, axis: str) -> bool:
    """Whether a row or column of the filter meets only padding, at each position of the filter."""
    try:
        size, w = (t.a.height if axis == "h" else t.a.width), window(t.a, axis)
    except UnknownValue:  # only during verdicts: a compiled model has known sizes
        return False
    taps = np.arange(w.size) * w.dilation - w.before
    places = np.arange(0, size + w.before + w.after - (w.size - 1) * w.dilation, w.stride)
    met = taps[:, None] + places
    return not ((met >= 0) & (met < size)).any(1).all()


@entry("TRANSPOSE_CONV_2D")
def transposed_convolution(t: GraphTask) -> None:
    """Cut off products at both ends, or pad after the last one."""
    a = t.a
    if a.form_has("scheme"):
        t.array("output_shape")
    sizes = [(cut(a, axis), out_size(axis)(a), products_extent(a, axis)) for axis in "hw"]
    beyond = any(before >= reached for before, _, reached in sizes)
    t.require(not (beyond and t.o.needs_elements), "only padding is left of the output")
    before, after = [before for before, *_ in sizes], [reached - before - size for before, size, reached in sizes]

    def product(x: Node, weights: Node, bias: Node | None = None) -> Node:
        weights = t.o.transpose(weights, [3, 0, 1, 2])
        ends = ([0, 0], [0, 0]) if beyond else (before, [max(0, n) for n in after])
        y = t.o.spread(image(t, x), weights, [a.stride_h, a.stride_w], *ends)
        if min(after) < 0:
            y = t.o.pad(y, [0] * 4, [0, 0, *(max(0, -n) for n in after)], t.f32(0))
        if beyond:
            y = t.o.slice(y, before, [first + size for first, size, _ in sizes], [1, 1], [2, 3])
        return y if bias is None else t.op("add", y, t.o.reshape(bias, [1, -1, 1, 1]))

    t.layer(product)


def rows(t: GraphTask, x: Node) -> Node:
    """Return the input of FULLY_CONNECTED as rows."""
    size = t.a.weights.known[1]
    return x if t.a.input.shape is not None and t.a.input.dims[1:] == (size,) else t.o.reshape(x, [-1, size])


@entry("FULLY_CONNECTED", variants=True)
def fully_connected(t: GraphTask) -> None:
    """Treat the input as rows of `input_size` elements, whatever its rank.

    A single weight is arithmetic with a constant, which has no 8-bit variant (see `elementwise`).
    """
    single = t.a.weights.known == (1, 1)

    def product(x: Node, weights: Node, bias: Node | None = None) -> Node:
        x = rows(t, x)
        return t.o.dense(t.apart(x) if single and t.a.input.quantised else x, weights, bias)

    t.layer(product, image=False, fast=not single)


@entry("BATCH_MATMUL", types=FLOATS | {Q8S})
def batch_matmul(t: GraphTask) -> None:
    """Either side may be transposed."""
    t.give_product(lambda x, y: t.o.matmul(x, y, bool(t.a.adj_x), bool(t.a.adj_y), t.a.x.rank))


# -------------------------------------------------------------------------------------------------------------- pooling


@entry("MAX_POOL_2D", variants=True, exact=True)
@entry("AVERAGE_POOL_2D", "L2_POOL_2D", exact=True)
def pool(t: GraphTask) -> None:
    """Compute means over the real elements; a quantised one is of stored values.

    8-bit kernels round halves of means to even, so a mean has no 8-bit variant.
    """
    how, mean = sliding(t), t.name != "MAX_POOL_2D"
    if t.eight:
        t.give(layout(t, t.o.max_pool(image(t, t.x("input")), how)))
        return
    x = image(t, t.counts("input", mean=mean))
    if t.name == "AVERAGE_POOL_2D":
        y = mean_pool(t, x, how)
    elif t.name == "MAX_POOL_2D":
        y = t.o.max_pool(x, how)
    else:
        less = t.op("multiply", x, t.f32(1 / SQUARED**2))
        plain, root = (t.op("sqrt", mean_pool(t, t.op("multiply", y, y), how)) for y in (x, less))
        great = t.op("multiply", root, t.f32(SQUARED**2))
        y = t.op("select", t.op("less", plain, t.f32(SQUARED)), plain, great)
    t.give_counts(y, mean=mean)


# ------------------------------------------------------------------------------------------------------- normalisations


@entry("LOG_SOFTMAX", types=FLOATS)
@entry("SOFTMAX")
def softmax(t: GraphTask) -> None:
    """Multiply the distances from the greatest element by beta, so that it never overflows; halved first if it is small.

    A long sum of exponentials is made in stages. OpenVINO would merge a SOFTMAX that reads a product once with it.
    """
    x, axis, shape = t.x("input"), t.a.axis % t.a.input.rank, fixed(t.a.input.shape)
    long, logarithm = shape is not None and shape[axis] > EXPONENTIALS, t.name == "LOG_SOFTMAX"
    below, beta = x, t.a.beta
    if beta < 1 and not t.o.merges_factors:  # which would undo it
        below, beta = t.op("multiply", below, t.f32(0.5)), 2 * beta
    if long or t.a.beta != 1 or t.o.merges_factors:
        greatest = t.o.reduce("max", below, [axis], True)
        below = t.op("subtract", below, greatest)
        if logarithm and beta < 1:  # distances may be infinite, and their logarithms are not
            scaled = t.op("subtract", t.op("multiply", x, t.f32(beta)), t.op("multiply", greatest, t.f32(beta)))
            finite = t.op("less", t.f32(-GREATEST), below)
            below, beta = t.op("select", finite, t.op("multiply", below, t.f32(beta)), scaled), 1
    below = below if beta == 1 else t.op("multiply", below, t.f32(beta))
    if not long:
        found = t.o.softmax(below, axis, logarithm)
    else:
        powers = t.op("exp", below)
        whole = add_up(t, "sum", powers, shape, [axis])
        found = t.op("subtract", below, t.op("log", whole)) if logarithm else t.op("divide", powers, whole)
    t.give(spoilt(t, "softmax", found, x, [axis]))


@entry("L2_NORMALIZATION")
def l2_normalisation(t: GraphTask) -> None:
    """Square the shares of the greatest element, which neither overflow nor all underflow."""
    x, axis, shape = t.x("input"), [t.a.axis % t.a.input.rank], t.a.input.shape
    greatest = t.o.reduce("max", t.op("abs", x), axis, True)
    unit = t.op("divide", x, t.o.clamp(greatest, LEAST, GREATEST))
    length = t.op("sqrt", add_up(t, "sum", t.op("multiply", unit, unit), shape, axis))
    t.give(spoilt(t, "reduce_max", t.op("divide", unit, t.op("maximum", length, t.f32(LEAST))), x, axis))


@entry("LOCAL_RESPONSE_NORMALIZATION", types=FLOATS)
def local_response(t: GraphTask) -> None:
    """Write several operations. If squares overflow, the numbers are scaled down first."""
    a, shape = t.a, t.a.input.known
    axis = axis_of(a, "axis", len(shape))
    radius, small = min(a.radius, shape[axis]), 2.0**-80
    flat = [math.prod(shape[:axis]), 1, shape[axis], math.prod(shape[axis + 1 :])]
    x = t.o.reshape(t.x("input"), flat)

    def normalised(factor: float) -> tuple[Node, Node]:
        less = t.op("multiply", x, t.f32(factor))
        around = WindowAttributes((1, 1), (radius, 0), (radius, 0), (2 * radius + 1, 1))
        mean = t.o.mean_pool(t.op("multiply", less, less), around, padded=True)
        total = t.op("multiply", mean, t.f32(2 * radius + 1))
        base = t.op("add", t.op("multiply", total, t.f32(a.alpha)), t.f32(a.bias * factor**2))
        return total, t.op("divide", less, t.op("power", base, t.f32(a.beta)))

    (_, plain), (total, raised) = normalised(1.0), normalised(small)
    great = t.op("multiply", raised, t.f32(small ** (2 * a.beta - 1)))
    t.give(t.o.reshape(t.op("select", t.op("less", t.f32((SQUARED * small) ** 2), total), great, plain), shape))


@entry("INSTANCE_NORMALIZATION", types=FLOATS)
def instance_normalisation(t: GraphTask) -> None:
    """Compute (x - mean) * gamma / sqrt(variance + epsilon) + beta.

    Numbers whose squares overflow are scaled down first.
    """
    a, x, axes, shape = t.a, t.x("input"), [2, 3] if t.a.nchw else [1, 2], t.a.input.shape
    t.require(a.epsilon >= LEAST_EPSILON, f"epsilon is {a.epsilon:g}, must be at least {LEAST_EPSILON:g} for float32")
    greatest = t.o.reduce("max", t.op("abs", x), axes, True)
    scale = t.op("maximum", t.op("multiply", greatest, t.f32(1 / SQUARED)), t.f32(1))
    less = t.op("divide", x, scale)
    centred = t.op("subtract", less, add_up(t, "mean", less, shape, axes))
    # so that the error of the mean is not part of the deviation
    centred = t.op("subtract", centred, add_up(t, "mean", centred, shape, axes))
    variance = add_up(t, "mean", t.op("multiply", centred, centred), shape, axes)
    least = t.op("divide", t.op("divide", t.f32(a.epsilon), scale), scale)
    root = t.op("sqrt", t.op("maximum", t.op("add", variance, least), t.f32(LEAST)))
    found = t.op("add", t.op("multiply", t.op("divide", centred, root), t.f32(a.gamma)), t.f32(a.beta))
    t.give(spoilt(t, "reduce_max", found, x, axes))


# ------------------------------------------------------------------------------------------------------------- resizing


def new_sizes(t: GraphTask) -> tuple[int, int]:
    """Return height and width of the output."""
    if not t.o.unknown_sizes:
        _ = t.value().known  # raises UnknownValue
    return new_size("h")(t.a), new_size("w")(t.a)


@entry("RESIZE_BILINEAR")
def resize(t: GraphTask) -> None:
    """Resize by scale or by size."""
    a, (height, width) = t.a, new_sizes(t)
    how = "align_corners" if a.align_corners else "half_pixel" if a.half_pixel_centers else "asymmetric"

    def shares() -> tuple[Node, Node]:
        return interpolation(a, a.height, height), interpolation(a, a.width, width)

    t.give(layout(t, t.o.interpolate(image(t, t.x("input")), (height, width), how, shares)))


@entry("RESIZE_NEAREST_NEIGHBOR", exact=True)
def resize_nearest(t: GraphTask) -> None:
    """Pick elements by index, as engines' own kernels round positions in another way, or repeat each equally often."""
    a, x = t.a, t.stored("input")
    sizes, times = new_sizes(t), repeats(a)
    if a.nchw and times:
        t.hold(t.o.repeat(x, times, sizes))
        return
    for size, new, axis in zip((a.height, a.width), sizes, (2, 3) if a.nchw else (1, 2), strict=True):
        x = t.o.gather(x, t.constant(nearest_indices(a, size, new), np.int32), axis)
    t.hold(x)
