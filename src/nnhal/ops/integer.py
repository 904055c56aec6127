"""8-bit operations in integers, as TensorFlow Lite's built-in kernels compute them: the results under exact numerics.

Sums are 32-bit integers. A real factor is a fraction of 31 bits and a power of two, so a product with it is rounded
twice: after the multiplication by the fraction, halves upwards, and at the division by the power. The second rounding
is half upwards in some kernels, half away from zero in others. The real kernels round once, halves away from zero.
"""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.ops.common import ACTIVATION_RANGE, decode, encode, fused, rounded
from nnhal.ops.fixedpoint import halve, quotient
from nnhal.ops.schema import Bound, Kernel

LEAST_SHIFT = -31  # a factor below 2**-32 counts as 0
LANES = 8  # elements that most kernels compute at once
SUM_BITS = 20  # fraction bits of sums of tensors


def multiplier(factor: float | Array) -> tuple[Array, Array]:
    """Return real factors as fractions of 31 bits and powers of two."""
    mantissa, power = np.frexp(np.asarray(factor, np.float64))
    fraction, power = np.floor(mantissa * 2**31 + 0.5).astype(np.int64), power.astype(np.int64)
    whole = fraction == 2**31
    fraction, power = np.where(whole, fraction // 2, fraction), np.where(whole, power + 1, power)
    return np.where(power < LEAST_SHIFT, 0, fraction), np.where(power < LEAST_SHIFT, 0, power)


def rescaled(x: Array, factor: float | Array, up: bool | Array = False, cut: bool | Array = False) -> Array:
    """Multiply 32-bit integers by real factors.

    up: whether the second rounding is half upwards; else half away from zero. cut: whether bits are cut off instead of
    the second rounding.
    """
    return scaled_by(x, *multiplier(factor), up, cut)


def scaled_by(
    x: Array, fraction: int | Array, power: int | Array, up: bool | Array = False, cut: bool | Array = False
) -> Array:
    """Multiply as `rescaled`, by a fraction of 31 bits and a power of two."""
    left, right = np.clip(power, 0, 30), np.maximum(-power, 0)
    wide = np.clip(x.astype(np.int64) << left, -(2**31), 2**31 - 1)
    product = np.minimum((wide * np.asarray(fraction) + (1 << 30)) >> 31, 2**31 - 1)
    half = (np.int64(1) << right) >> 1
    away = (product < 0) & (right > 0) & ~np.asarray(up)
    return np.asarray((product + np.where(cut, 0, half - away)) >> right)


def stored(a: Bound, steps: Array) -> Array:
    """Return the output's stored values from distances to its zero point, within the fused activation's bounds."""
    value = a.out
    low, high = encode(value, np.array(ACTIVATION_RANGE[fused(a)], np.float32)).tolist()
    return np.clip(steps + value.zero_point, low, high).astype(value.dtype)


def quantised(kernel: Kernel, otherwise: Kernel) -> Kernel:
    """Make a kernel for quantised outputs, with another for all others."""

    @wraps(kernel)
    def chosen(a: Bound, *tensors: Any) -> Any:
        return (kernel if a.out.quantised else otherwise)(a, *tensors)

    return chosen


def in_lanes(count: int) -> Array:
    """Return which of so many elements are among eight that are computed at once."""
    return np.asarray(np.arange(count) < count // LANES * LANES)


def steps(value: Value, x: Array) -> Array:
    """Return q - zero_point of a quantised tensor."""
    return np.subtract(x, value.zero_point, dtype=np.int64)


def summed(function: Callable[[Array, Array], Array], cut: bool = False) -> Kernel:
    """Make a kernel for the sum or difference of two tensors, in twice the coarser scale with 20 more bits.

    cut: whether unsigned tensors of one shape have bits cut off instead of rounded, eight elements at a time.
    """

    def kernel(a: Bound, x: Array, y: Array) -> Array:
        coarse, sides = 2.0 * max(a.input1.scale, a.input2.scale), ((a.input1, x), (a.input2, y))
        lanes = cut and x.dtype == np.uint8 and x.shape == y.shape
        off = in_lanes(x.size).reshape(x.shape) if lanes else False
        wide = (rescaled(steps(v, q) << SUM_BITS, v.scale / coarse, cut=off) for v, q in sides)
        return stored(a, rescaled(function(*wide), coarse / (2**SUM_BITS * a.out.scale)))

    return kernel


def product(a: Bound, x: Array, y: Array) -> Array:
    """Multiply two tensors; the factor is computed in float32."""
    factor = np.float32(a.input1.scale) * np.float32(a.input2.scale) / np.float32(a.out.scale)
    return stored(a, rescaled(steps(a.input1, x) * steps(a.input2, y), float(factor)))


def prelu(a: Bound, x: Array, alpha: Array) -> Array:
    """Rescale elements from 0, and products with alpha below; both factors are computed in float32."""
    factor = np.float32(a.input.scale) / np.float32(a.out.scale)
    steep = np.float32(a.input.scale) * np.float32(a.alpha.scale) / np.float32(a.out.scale)
    distances = steps(a.input, x)
    below = rescaled(distances * steps(a.alpha, alpha), float(steep))
    return stored(a, np.where(distances < 0, below, rescaled(distances, float(factor))))


def mean(a: Bound, x: Array, axes: Array) -> Array:
    """Return the mean along axes, for one scale and zero point.

    Over pictures it is that of stored values, by the factor 1 / count. Elsewhere the factor is 1, and its fraction is
    divided by the count.
    """
    over = tuple({axis % x.ndim for axis in axes.tolist()})
    count = math.prod(x.shape[axis] for axis in over)
    if x.ndim == 4 and set(over) == {1, 2} and a.keep_dims:
        found = rescaled(x.sum(over, np.int64), float(np.float32(1) / np.float32(count))) - a.out.zero_point
    else:
        fraction, power = (int(part) for part in multiplier(1.0))
        more = min(count.bit_length() - 1, 32, 31 + power)
        found = scaled_by(steps(a.input, x).sum(over), (fraction << more) // count, power - more)
    return stored(a, found).reshape(a.shape_of_output)


def scaled_and_shifted(a: Bound, x: Array) -> Array:
    """Return the real values of stored ones: a product, then a sum, each rounded to float32."""
    value = a.input
    if value.channel is not None or not value.zero_point:
        return encode(a.out, decode(value, x))
    scale = np.float32(value.scale)
    return encode(a.out, x.astype(np.float32) * scale + np.float32(-value.zero_point) * scale)


def nearest(a: Bound, x: Array) -> Array:
    """Return real values as stored ones; NaN as 0.

    Eight at a time are multiplied by the reciprocal of the scale, and halves are rounded to even. The rest is divided
    by the scale, and halves are rounded away from zero.
    """
    real = decode(a.input, x).ravel()
    real = np.where(np.isnan(real), np.float32(0), real)
    scale, least, limits = np.float32(a.out.scale), real.size // LANES * LANES, np.iinfo(a.out.dtype)
    whole = np.concatenate([np.rint(real[:least] * (np.float32(1) / scale)), rounded(real[least:] / scale)])
    return np.clip(whole + a.out.zero_point, limits.min, limits.max).astype(a.out.dtype).reshape(x.shape)


# ------------------------------------------------------------------------------------------- HARD_SWISH, in 16 bits

FINE = 7  # fraction bits that inputs get


def hard_swish(a: Bound, x: Array) -> Array:
    """Multiply x by a gate between 0 and 1.

    The fraction of the last product is cut off, so the result is below the real one.
    """
    fine = np.float32(2.0**-FINE) * np.float32(a.input.scale)
    wide = steps(a.input, x) << FINE
    factor, power = _short(fine / np.float32(a.out.scale))
    before = _doubled(wide, factor)
    third, up = _short(fine / np.float32(3 / 2**15))
    gate = _in_16_bits(wide << (up - 1)) if up > 0 else wide
    gate = _doubled(gate, third)
    gate = _in_16_bits(gate << 1) if up > 0 else halve(gate, -up)
    product = quotient(((gate + 2**15) >> 1) * before, 2**15)
    return stored(a, halve(product, max(-power, 0)))


def _short(factor: Any) -> tuple[int, int]:
    """Return a real factor as a fraction of 15 bits and a power of two."""
    fraction, power = multiplier(float(factor))
    return min((int(fraction) + 2**15) >> 16, 2**15 - 1), int(power)


def _in_16_bits(x: Array) -> Array:
    return np.clip(x, -(2**15), 2**15 - 1)


def _doubled(x: Array, factor: int) -> Array:
    """Return x * factor / 2**15, rounded half up."""
    return np.asarray((x * factor + (1 << 14)) >> 15)
