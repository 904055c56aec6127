"""Functions of real numbers and of int32 without an NNAPI operation, composed from existing ones.

Those of integers are composed from ADD, SUB, MUL and DIV, which rounds down.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.operands import Array, Value
from nnhal.frontends.common.terms import Term
from nnhal.frontends.common.writing import OperationWriter, filled
from nnhal.ops.schema import B8, F32

# exp(z²) erfc(z) = t P(t) with t = 1 / (1 + z / 2) for z >= 0, approximated to a relative error of 1.7e-7; lowest power
# first.
ERFC = (
    0.28209474168104315, 0.2821042750418356, 0.24651391069956172, 0.180391165200921, 0.058372405893200814,
    0.07923203623687392, -0.19832467811213028, 0.03072278108633752, 0.0643736965041603, -0.02548048615247626,
)  # fmt: skip
# atan(s) = s P(s²) for 0 <= s <= 1, approximated to 1.1e-7.
ATAN = (
    0.9999999842426359, -0.3333306678069131, 0.19992483578497475, -0.14202570511671397, 0.10636754098013634,
    -0.0749544544309546, 0.042587607462732255, -0.01600503050194432, 0.0028340642986113477,
)  # fmt: skip
# log((1 + s) / (1 - s)) = s P(s²) for 0 <= s <= 1/3, approximated to 4.1e-9.
LOG_RATIO = 2.000000007681758, 0.6666632164140144, 0.40024595229818943, 0.2796515775679465, 0.28157778313522575
TINY = float(np.finfo(np.float32).tiny)
NO_TAIL = 40.0  # beyond this, float32 cannot distinguish the tail of the normal distribution from 0
EXPONENT_BITS = 5  # powers above 31 overflow, except those of -1, 0 and 1
TOP = 30  # the greatest power of 2 within int32


class RealArithmetic:
    """Arithmetic on float tensors and numbers, written as operations."""

    def __init__(self, t: OperationWriter) -> None:
        self.t = t

    def __call__(self, name: str, x: Term, y: Term | float) -> Term:
        """Write ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM or POW."""
        other = y if isinstance(y, Term) else self.t.scalar(y, x)
        more: dict[str, Any] = {"activation": 0} if name in ("ADD", "SUB", "MUL", "DIV") else {}
        return self.t.make(name, x, other, **more)

    def less(self, number: float, x: Term) -> Term:
        """Return number - x."""
        return self.t.make("SUB", self.t.scalar(number, x), x, like=x, activation=0)

    def over(self, number: float, x: Term) -> Term:
        """Return number / x."""
        return self.t.make("DIV", self.t.scalar(number, x), x, like=x, activation=0)

    def polynomial(self, coefficients: Sequence[float], x: Term) -> Term:
        """Evaluate a polynomial; the lowest power comes first."""
        *rest, last = coefficients
        result: Term | None = None
        for coefficient in reversed(rest):
            result = self("ADD", self("MUL", x, last if result is None else result), coefficient)
        assert result is not None
        return result

    def test(self, name: str, x: Term, y: Term | float) -> Term:
        """Write a comparison."""
        return self.t.make(name, x, y if isinstance(y, Term) else self.t.scalar(y, x), like=Value(B8))

    def negative(self, x: Term) -> Term:
        """Return which elements are below 0 or are -0.0, whose reciprocal is below 0."""
        return self.t.make("LOGICAL_OR", self.test("LESS", x, 0.0), self.test("LESS", self.over(1.0, x), 0.0))

    def like_sign(self, x: Term, size: Term) -> Term:
        """Return size, or -size where x is below 0."""
        return self.choose(self.test("LESS", x, 0.0), self.t.make("NEG", size), size)

    def choose(self, condition: Term, x: Term, y: Term) -> Term:
        """Return x where the condition holds, otherwise y."""
        return self.t.make("SELECT", condition, x, y, like=x)


def cosines_and_sines(places: int, bins: int, size: int) -> tuple[Array, Array]:
    """Return the waves [places, bins] of the first frequencies of a transform of this size, at the first places."""
    angles = 2 * np.pi * (np.outer(np.arange(places), np.arange(bins)) % size) / size
    return np.cos(angles), np.sin(angles)


def cosine_of(t: OperationWriter, x: Term) -> Term:
    """Return 1 - 2 sin(x / 2)^2, without a sum that would round a large argument."""
    r = RealArithmetic(t)
    half = t.make("SIN", r("MUL", x, 0.5))
    return r.less(1.0, r("MUL", r("MUL", half, half), 2.0))


def angle_of(t: OperationWriter, height: Term, width: Term | float) -> Term:
    """Return the angle from 0 to pi / 2 whose tangent is height / width, of numbers that are not below 0."""
    r = RealArithmetic(t)
    long = r("MAXIMUM", r("MAXIMUM", height, width), TINY)
    slope = r("DIV", r("MINIMUM", height, width), long)
    flat = r("MUL", r.polynomial(ATAN, r("MUL", slope, slope)), slope)
    return r.choose(r.test("GREATER", height, width), r.less(math.pi / 2, flat), flat)


def sign_of(t: OperationWriter, x: Term) -> Term:
    """Return 1 or -1; for 0 and NaN, their absolute value."""
    r = RealArithmetic(t)
    one, minus = (filled(t, t.known(x), n, OperandType(x.value.type)) for n in (1, -1))
    rest = r.choose(r.test("LESS", x, 0), minus, t.make("ABS", x))
    return r.choose(r.test("GREATER", x, 0), one, rest)


def rounded(t: OperationWriter, x: Term) -> Term:
    """Round to whole numbers, halves to even: up if more than half is left, or exactly half above an odd number."""
    r = RealArithmetic(t)
    down = t.make("FLOOR", x)
    rest = r("SUB", x, down)
    even = r("MUL", t.make("FLOOR", r("MUL", down, 0.5)), 2.0)
    tie = t.make("LOGICAL_AND", r.test("EQUAL", rest, 0.5), r.test("NOT_EQUAL", down, even))
    up = t.make("LOGICAL_OR", r.test("GREATER", rest, 0.5), tie)
    return r.choose(up, r("ADD", down, 1.0), down)


def log_of_one_and(r: RealArithmetic, x: Term) -> Term:
    """Return log(1 + x) for x from 0 to 1, with float32's precision even if 1 + x rounds to 1."""
    s = r("DIV", x, r("ADD", x, 2.0))
    return r("MUL", s, r.polynomial(LOG_RATIO, r("MUL", s, s)))


def floor_remainder(t: OperationWriter, x: Term, y: Term) -> Term:
    """Return x - q y with q = floor(x / y), corrected into the range from 0 to below y: rounding may make q off by one.

    If a device rounds a quotient to just below q, y is left. Then x is a multiple of it; otherwise y is the rounded
    value of a remainder just below it. The product is exact by its halves, so the remainder is rounded once. Quotients
    from 2**24 on have no exact remainder.
    """
    r = RealArithmetic(t)
    q = t.make("FLOOR", r("DIV", x, y))
    product = r("MUL", q, y)
    (q1, q2), (y1, y2) = halves(r, q), halves(r, y)
    rest = r("SUB", r("SUB", r("SUB", product, r("MUL", q1, y1)), r("MUL", q2, y1)), r("MUL", q1, y2))
    rest = r("ADD", r("SUB", x, product), r("SUB", rest, r("MUL", q2, y2)))
    signs = t.make("NOT_EQUAL", r.test("LESS", rest, 0.0), r.test("LESS", y, 0.0), like=Value(B8))
    below = t.make("LOGICAL_AND", signs, r.test("NOT_EQUAL", rest, 0.0))
    whole = t.make("LOGICAL_AND", r.test("EQUAL", rest, y), r.test("EQUAL", r("ADD", product, y), x))
    above = t.make("LOGICAL_OR", r.test("GREATER", t.make("ABS", rest), t.make("ABS", y)), whole)
    return r.choose(below, r("ADD", rest, y), r.choose(above, r("SUB", rest, y), rest))


def halves(r: RealArithmetic, x: Term) -> tuple[Term, Term]:
    """Split x into two numbers of 12 bits whose sum is x."""
    wide = r("MUL", x, 4097.0)
    high = r("SUB", wide, r("SUB", wide, x))
    return high, r("SUB", x, high)


def lowest(kind: OperandType, *, highest: bool = False) -> float | int:
    """Return the bound below (above) every number of a type."""
    if kind == F32:
        return math.inf if highest else -math.inf
    limits = np.iinfo(np.int32)
    return int(limits.max if highest else limits.min)


def normal_tail(t: OperationWriter, size: Term) -> Term:
    """Return the normal distribution's share above `size` >= 0, with a relative error that keeps small shares exact."""
    r = RealArithmetic(t)
    u = r.over(1.0, r("ADD", r("MUL", size, math.sqrt(1 / 8)), 1.0))
    fall = t.make("EXP", r("MUL", r("MUL", size, size), -0.5))
    return r("MUL", r("MUL", r("MUL", r.polynomial(ERFC, u), u), fall), 0.5)


def gelu_of(t: OperationWriter, x: Term, approximate: bool) -> Term:
    """Return x times the normal distribution's share below x, computed from the tail for small results; 0 for -inf."""
    r = RealArithmetic(t)
    if approximate:
        cubic = r("ADD", x, r("MUL", r("MUL", x, r("MUL", x, x)), 0.044715))
        bent = t.make("TANH", r("MUL", cubic, math.sqrt(2 / math.pi)))
        return r("MUL", r("MUL", x, 0.5), r("ADD", bent, 1.0))
    size = r("MINIMUM", t.make("ABS", x), NO_TAIL)
    return r("SUB", t.make("RELU", x), r("MUL", size, normal_tail(t, size)))


# ---------------------------------------------------------------------------------------------------------- of integers


def plain(t: OperationWriter, name: str, x: Term, y: Term) -> Term:
    """Write arithmetic without activation; either input may be a constant."""
    return t.make(name, x, y, activation=0)


def truncated_quotient(t: OperationWriter, x: Term, y: Term) -> Term:
    """Return x / y rounded towards 0: add one to a negative quotient that was rounded down and is not exact."""
    down = plain(t, "DIV", x, y)
    return towards_zero(t, down, plain(t, "SUB", x, plain(t, "MUL", down, y)))


def towards_zero(t: OperationWriter, down: Term, rest: Term) -> Term:
    """Round a quotient, which was rounded down and left a rest, towards 0."""
    negative = t.make("LESS", down, t.scalar(0, down), like=Value(B8))
    inexact = t.make("NOT_EQUAL", rest, t.scalar(0, rest), like=Value(B8))
    up = plain(t, "ADD", down, t.scalar(1, down))
    return t.make("SELECT", t.make("LOGICAL_AND", negative, inexact), up, down, like=down)


def power(t: OperationWriter, x: Term, y: Term) -> Term:
    """Return x to the power of y >= 0, by squaring.

    Exponents are clamped to 30 or 31, whichever has the same parity.
    """
    odd = parity(t, y)
    limit = plain(t, "ADD", odd, t.scalar(TOP, y))
    left = t.make("MINIMUM", y, limit)
    result, square = t.scalar(1, x), x
    for bit in range(EXPONENT_BITS):
        half = plain(t, "DIV", left, t.scalar(2, left))
        taken = parity(t, left)
        factor = plain(t, "ADD", plain(t, "MUL", taken, plain(t, "SUB", square, t.scalar(1, x))), t.scalar(1, x))
        result = plain(t, "MUL", result, factor)
        left = half
        if bit < EXPONENT_BITS - 1:
            square = plain(t, "MUL", square, square)
    return result


def modulo(t: OperationWriter, x: Term, size: int) -> Term:
    """Return x modulo a number above 0, as a number from 0 on."""
    whole = t.scalar(size, x)
    return plain(t, "SUB", x, plain(t, "MUL", plain(t, "DIV", x, whole), whole))


def parity(t: OperationWriter, x: Term) -> Term:
    """Return x modulo 2."""
    return modulo(t, x, 2)
