"""Quantised sums of products: the capacity of LiteRT's accumulators, and biases that stay within it.

LiteRT's sums have 32 bits and wrap around, while NNAPI's are exact and saturate. If the output's scale is the finer
one, LiteRT's own kernels then shift a sum to the left, again in 32 bits. Zero points are handled modulo 2**32, which is
right if the whole sum fits.
"""

import math

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.drivers.litert.graph import MOST, EngineTensor
from nnhal.drivers.litert.task import Task, reach

EXACT = 2**24  # integers up to here, and their sums, are exact in float32
SATURATED = 256  # quantisation steps from the zero point, for any zero point
SLACK = 1 + 2.0**-20  # LiteRT rounds products and quotients of scales before it determines the shift


def capacity(ratio: float) -> int:
    """Return the greatest |sum| that can be rescaled by this ratio of the products' scale to the output's."""
    return MOST >> max(0, math.frexp(ratio * SLACK)[1])


def greatest_weight_sums(weights: Value, axis: int) -> Array:
    """Return the greatest sum of |q - zero_point| of weights, for each channel along `axis`."""
    if weights.data is None:
        channels = weights.known[axis]
        return np.full(channels, math.prod(weights.known) // channels * reach(weights), np.int64)
    data = np.moveaxis(np.asarray(weights.data), axis, 0)
    return np.array([np.abs(part.astype(np.int64) - weights.zero_point).sum() for part in data])


def greatest_product_sum(x: Value, weights: Value, axis: int) -> int:
    """Return the greatest |sum of products| of a layer, whatever its elements. axis: the output channels of the weights."""
    return math.prod(weights.known) // weights.known[axis] * reach(x) * reach(weights)


def greatest(numbers: Array) -> int:
    """Return the greatest absolute value of integers."""
    return max(int(numbers.max(initial=0)), -int(numbers.min(initial=0)))


def bias_without_overflow(
    t: Task, x: Value, weights: Value, axis: int, bias: EngineTensor, ratios: Array
) -> EngineTensor:
    """Return the bias of a layer none of whose sums wrap around; refuse the layer if there is none.

    ratios: of the products' scales, one or for each channel, to the output's. A constant bias may not take a sum beyond
    32 bits. A computed one is clipped to 32 bits, as long as that saturates the output just as well.
    """
    given, channels = bias.value.data, weights.known[axis]
    if given is not None and greatest_product_sum(x, weights, axis) + greatest(given) <= capacity(ratios.max()):
        return bias
    held = np.array([capacity(ratio) for ratio in ratios])
    sums, constant = (
        reach(x) * greatest_weight_sums(weights, axis),
        0 if given is None else np.abs(np.asarray(given, np.int64)),
    )
    why = "sums of products and bias exceed LiteRT's 32 bits"
    t.require((sums + constant <= held).all(), why)
    if given is not None:
        return bias
    t.require(((held - 2 * sums) * ratios >= SATURATED).all(), f"{why} if the bias, known only at execution, is large")
    return clipped(t, bias, np.broadcast_to(held - sums, channels))


def clipped(t: Task, x: EngineTensor, most: Array) -> EngineTensor:
    """Return an integer tensor with its elements clipped to -most and most."""
    for kind, bound in (("MINIMUM", most), ("MAXIMUM", -most)):
        y = t.temporary(x.value)
        t.emit(kind, [x, t.constant(bound)], y)
        x = y
    return x
