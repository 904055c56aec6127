"""The arithmetic of gemmlowp, number by number in whole numbers, with the constants that its sources state."""

import math


def high_product(x: int, y: int, bits: int = 15) -> int:
    """SaturatingRoundingDoublingHighMul: x * y / 2**bits, rounded to the nearest."""
    if x == y == -(1 << bits):
        return (1 << bits) - 1
    product = x * y
    product += 1 << (bits - 1) if product >= 0 else 1 - (1 << (bits - 1))
    return product >> bits if product >= 0 else -(-product >> bits)


def divided(x: int, exponent: int) -> int:
    """RoundingDivideByPOT: x / 2**exponent, rounded half away from zero."""
    mask = (1 << exponent) - 1
    return (x >> exponent) + int((x & mask) > (mask >> 1) + int(x < 0))


def clamped(x: int, bits: int = 16) -> int:
    return max(-(1 << (bits - 1)), min(x, (1 << (bits - 1)) - 1))


def scaled(x: int, factor: float) -> int:
    """MultiplyByQuantizedMultiplier, by the fraction and the shift that QuantizeMultiplier makes of a factor."""
    mantissa, shift = math.frexp(factor)
    fraction = round(mantissa * (1 << 31))
    if fraction == 1 << 31:
        fraction, shift = fraction // 2, shift + 1
    return divided(high_product(x << max(shift, 0), fraction, 31), max(-shift, 0))


def _constant(of_31_bits: int) -> int:
    return divided(of_31_bits, 16)


FACTORS = ((-2, 1672461947), (-1, 1302514674), (0, 790015084), (1, 290630308), (2, 39332535), (3, 720401), (4, 242))


def exp_on_quarter(a: int) -> int:
    """exp_on_interval_between_negative_one_quarter_and_0_excl."""
    x = a + (1 << 12)
    x2 = high_product(x, x)
    x3, x4 = high_product(x2, x), high_product(x2, x2)
    series = divided(high_product(divided(x4, 2) + x3, _constant(715827883)) + x2, 1)
    term = _constant(1895147668)
    return clamped(term + high_product(term, x + series))


def exp_on_negative_values(a: int, bits: int) -> int:
    if a == 0:
        return 2**15 - 1
    fraction = 15 - bits
    quarter = 1 << (fraction - 2)
    within = (a & (quarter - 1)) - quarter
    result, remainder = exp_on_quarter(within << bits), within - a
    for exponent, factor in FACTORS:
        if bits > exponent and remainder & (1 << (fraction + exponent)):
            result = high_product(result, _constant(factor))
    return 0 if bits > 5 and a < -32 << fraction else result


def _newton(e: int) -> int:
    """Of both functions below: 2 / (1 + e) with two integer bits."""
    half = (e + 2**15 - 1 + 1) // 2
    x = _constant(1515870810) + high_product(half, _constant(-1010580540))
    for _ in range(3):
        x += clamped(high_product(x, (1 << 13) - high_product(half, x)) << 2)
    return x


def tanh(a: int, bits: int) -> int:
    found = clamped((_newton(exp_on_negative_values(-abs(a), bits + 1)) - (1 << 13)) << 2)
    return 0 if a == 0 else found if a > 0 else -found


def logistic(a: int, bits: int) -> int:
    found = clamped(_newton(exp_on_negative_values(-abs(a), bits)) << 1)
    return 1 << 14 if a == 0 else found if a > 0 else 2**15 - 1 - found
