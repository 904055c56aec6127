"""8-bit operations in integers, as TensorFlow Lite's built-in kernels compute them: the results under exact numerics.

Sums are 32-bit integers. A real factor is a fraction of 31 bits and a power of two, so a product with it is rounded twice:
when the fraction is multiplied, halves upwards, and when the power divides. The second rounds halves upwards in some
kernels, away from zero in others. The real kernels round once, halves away from zero.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.ops.common import ACTIVATION_RANGE, encode, fused
from nnhal.ops.schema import Bound, Kernel

LEAST_SHIFT = -31  # a factor below 2**-32 is taken for 0
SUM_BITS = 20  # that sums of tensors have behind the point


def multiplier(factor: float | Array) -> tuple[Array, Array]:
    """Real factors as fractions of 31 bits and powers of two."""
    mantissa, power = np.frexp(np.asarray(factor, np.float64))
    fraction, power = np.floor(mantissa * 2**31 + 0.5).astype(np.int64), power.astype(np.int64)
    whole = fraction == 2**31
    fraction, power = np.where(whole, fraction // 2, fraction), np.where(whole, power + 1, power)
    return np.where(power < LEAST_SHIFT, 0, fraction), np.where(power < LEAST_SHIFT, 0, power)


def rescaled(x: Array, factor: float | Array, up: bool | Array = False) -> Array:
    """32-bit integers times real factors. up: where the second rounding is upwards at halves; elsewhere away from zero."""
    fraction, power = multiplier(factor)
    left, right = np.clip(power, 0, 30), np.maximum(-power, 0)
    wide = np.clip(x.astype(np.int64) << left, -(2**31), 2**31 - 1)
    product = np.minimum((wide * fraction + (1 << 30)) >> 31, 2**31 - 1)
    half = (np.int64(1) << right) >> 1
    return np.asarray((product + half - ((product < 0) & (right > 0) & ~np.asarray(up))) >> right)


def stored(a: Bound, steps: Array) -> Array:
    """Steps from the output's zero point as it stores them, within the fused activation's bounds."""
    value = a.out
    low, high = encode(value, np.array(ACTIVATION_RANGE[fused(a)], np.float32)).tolist()
    return np.clip(steps + value.zero_point, low, high).astype(value.dtype)


def quantised(kernel: Kernel, otherwise: Kernel) -> Kernel:
    """A kernel for quantised outputs, with another for all others."""

    @wraps(kernel)
    def chosen(a: Bound, *tensors: Any) -> Any:
        return (kernel if a.out.quantised else otherwise)(a, *tensors)

    return chosen


def steps(value: Value, x: Array) -> Array:
    """q - zero_point of a quantised tensor."""
    return np.subtract(x, value.zero_point, dtype=np.int64)


def summed(function: Callable[[Array, Array], Array]) -> Kernel:
    """Kernel: a sum or difference of two tensors, in a common scale of twice the coarser one with 20 bits behind it."""

    def kernel(a: Bound, x: Array, y: Array) -> Array:
        coarse = 2.0 * max(a.input1.scale, a.input2.scale)
        wide = (
            rescaled(steps(v, q) << SUM_BITS, v.scale / coarse) for v, q in ((a.input1, x), (a.input2, y))
        )
        return stored(a, rescaled(function(*wide), coarse / (2**SUM_BITS * a.out.scale)))

    return kernel


def product(a: Bound, x: Array, y: Array) -> Array:
    """A product of two tensors, whose factor is computed in float32."""
    factor = np.float32(a.input1.scale) * np.float32(a.input2.scale) / np.float32(a.out.scale)
    return stored(a, rescaled(steps(a.input1, x) * steps(a.input2, y), float(factor)))
