"""Fixed-point arithmetic of the quantised LSTMs, which are defined bit by bit.

Every product is rounded in a prescribed way. A 16-bit value with n integer bits is an integer q that represents q *
2**(n - 15). The functions follow the published algorithms of gemmlowp, on which all implementations agree. Their tanh
is off by up to 12 units of 2**-15, so floating-point computation would not give the defined results. Arrays are int64,
so that no intermediate overflows.
"""

import math
from collections.abc import Iterable

import numpy as np

from nnhal.base.operands import Array

ONE = 2**15 - 1  # the greatest value without integer bits


def saturate(x: Array, bits: int = 16) -> Array:
    limit = 1 << (bits - 1)
    return np.clip(x, -limit, limit - 1)


def quotient(x: Array, by: int) -> Array:
    """Return x / by without its fraction."""
    return np.sign(x) * (np.abs(x) // by)


def halve(x: Array, times: int | Array) -> Array:
    """Return x / 2**times, rounded half away from zero."""
    return np.sign(x) * ((np.abs(x) + np.left_shift(1, times) // 2) >> times)


def multiply(x: Array, y: int | Array, fraction: int = 15) -> Array:
    """Return x * y / 2**fraction, rounded half up."""
    return np.minimum(np.right_shift(x * y + (1 << (fraction - 1)), fraction), (1 << fraction) - 1)


def scaled(x: Array, factor: float) -> Array:
    """Return 32-bit x times a real factor, represented by a fraction of 31 bits and a power of two."""
    mantissa, exponent = math.frexp(factor)
    fraction = round(mantissa * 2**31)
    if fraction == 2**31:
        fraction, exponent = fraction // 2, exponent + 1
    left, right = max(exponent, 0), min(max(-exponent, 0), 62)
    return halve(multiply(saturate(x << min(left, 31), 32), fraction, 31), right)


def dot(x: Array, zero_point: int, weights: Array) -> Array:
    """Return exact sums of products (x - zero_point) * weights."""
    return ((x.astype(np.float64) - zero_point) @ weights.astype(np.float64).T).astype(np.int64)


def _constant(value: float, fraction: int = 15) -> int:
    return round(value * 2**fraction)


def _powers(bits: int) -> Iterable[tuple[int, int]]:
    """Yield for each power of two from 1/4 up its bit in a value with `bits` integer bits, and e to its negative."""
    return ((1 << (15 - bits + p), _constant(math.exp(-(2.0**p)))) for p in range(-2, bits))


def exp_negative(x: Array, bits: int) -> Array:
    """Return e**x without integer bits, for x <= 0 with `bits` integer bits.

    x is split into r in [-1/4, 0) and a multiple of 1/4. Taylor's series around -1/8 gives e**r; each bit of the
    multiple contributes one more factor.
    """
    quarter = 1 << (13 - bits)
    r = (x & (quarter - 1)) - quarter
    t = (r << bits) + _constant(1 / 8)
    t2 = multiply(t, t)
    t3, t4 = multiply(t2, t), multiply(t2, t2)
    series = t + halve(multiply(halve(t4, 2) + t3, _constant(1 / 3)) + t2, 1)
    middle = _constant(math.exp(-1 / 8))
    result = saturate(middle + multiply(series, middle))
    for bit, factor in _powers(bits):
        result = np.where((r - x) & bit, multiply(result, factor), result)
    return np.where(x == 0, ONE, result)


def _reciprocal(e: Array) -> Array:
    """Return 2 / (1 + e) with two integer bits, for e in [0, 1]: three Newton steps from a line close to it."""
    half = (e + ONE + 1) >> 1
    y = _constant(48 / 17, 13) + multiply(half, _constant(-32 / 17, 13))
    for _ in range(3):
        y = y + saturate(multiply(y, _constant(1, 13) - multiply(half, y)) << 2)
    return y


def tanh(x: Array, bits: int) -> Array:
    """Return tanh without integer bits, of x with `bits` integer bits: (1 - e) / (1 + e) with e = exp(-2 |x|)."""
    y = saturate((_reciprocal(exp_negative(-np.abs(x), bits + 1)) - _constant(1, 13)) << 2)
    return np.sign(x) * y


def logistic(x: Array, bits: int) -> Array:
    """Return 1 / (1 + exp(-x)) without integer bits, of x with `bits` integer bits."""
    y = saturate(_reciprocal(exp_negative(-np.abs(x), bits)) << 1)
    return np.where(x > 0, y, np.where(x == 0, _constant(1 / 2), ONE - y))


def inverse_root(x: Array) -> tuple[Array, Array]:
    """Return 1 / sqrt(x) of positive 31-bit integers.

    The result is a fraction of 31 bits and the number of halvings of the product with it. The definition has five
    Newton steps from 1, which do not always give all digits.
    """
    pairs = (29 - np.frexp(x)[1].astype(np.int64)) // 2
    between = x * 4.0**pairs * 2.0**-29  # from 1/4 to 1
    y = np.ones_like(between)
    for _ in range(5):
        y = 1.5 * y - 0.5 * between * y**3
    fraction = np.rint(y * math.sqrt(0.5) * 2**28).astype(np.int64)
    shift = 11 - pairs
    many = x > 1
    return np.where(many, fraction << np.maximum(-shift, 0), 2**31 - 1), np.where(many, np.maximum(shift, 0), 0)
