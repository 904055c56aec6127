"""Functions of one real number without an NNAPI operation, composed from existing ones."""

import math

import numpy as np

from nnhal.frontends.common.real_functions import ATAN, TINY, RealArithmetic, cosine_of, gelu_of, rounded, sign_of
from nnhal.frontends.common.terms import Term
from nnhal.frontends.common.writing import ASYMMETRIC
from nnhal.frontends.tflite.task import OperatorTask, entry

MOST_BITS = 16  # of FAKE_QUANT


def real(t: OperatorTask, place: int = 0) -> Term:
    """Return an input of floats; a quantised one requires the attempt on real values."""
    x = t.x(place)
    t.require(x.value.type not in ASYMMETRIC, "is rounded twice when it is composed")
    return x


@entry("COS", real=True, single=True, becomes="1 - 2 SIN(x / 2)²")
def cosine(t: OperatorTask) -> None:
    """Write the cosine without a sum that would round a large argument."""
    t.result(0, cosine_of(t, real(t)))


@entry("SIGN", single=True, becomes="GREATER, LESS, SELECT, ABS")
def sign(t: OperatorTask) -> None:
    """Write 1 or -1; for 0 and NaN, their absolute value."""
    t.result(0, sign_of(t, real(t)))


@entry("ROUND", single=True, becomes="FLOOR and SELECT, halves to even")
def round_(t: OperatorTask) -> None:
    """Round halves to even: up if more than half is left, or exactly half above an odd number."""
    t.result(0, rounded(t, real(t)))


@entry("GELU", real=True, single=True, becomes="exact: EXP and a polynomial for erf; approximate: TANH")
def gelu(t: OperatorTask) -> None:
    t.result(0, gelu_of(t, real(t), bool(t.options("GeluOptions")("Approximate"))))


@entry("ATAN2", inputs=2, single=True, becomes="DIV and a polynomial, in the eighth of the circle, then SELECT")
def angle(t: OperatorTask) -> None:
    """Write atan2 of equal shapes."""
    y, x, r = real(t, 0), real(t, 1), RealArithmetic(t)
    height, width = t.make("ABS", y), t.make("ABS", x)
    long = r("MAXIMUM", r("MAXIMUM", height, width), TINY)
    slope = r("DIV", r("MINIMUM", height, width), long)
    flat = r("MUL", r.polynomial(ATAN, r("MUL", slope, slope)), slope)
    first = r.choose(r.test("GREATER", height, width), r.less(math.pi / 2, flat), flat)
    left = r.choose(r.negative(x), r.less(math.pi, first), first)
    t.result(0, r.choose(r.negative(y), t.make("NEG", left), left))


@entry("FAKE_QUANT", single=True, becomes="MAXIMUM, MINIMUM, then FLOOR of quantisation steps")
def fake_quantise(t: OperatorTask) -> None:
    """Clamp to a range in which 0 is a quantisation step, and round to a step."""
    o, x, r = t.options("FakeQuantOptions"), real(t), RealArithmetic(t)
    low, high, bits = o("Min"), o("Max"), o("NumBits")
    t.require(low <= 0 <= high and low < high and 2 <= bits <= MOST_BITS, f"has range {low} to {high} in {bits} bits")
    least, most = np.float32(bool(o("NarrowRange"))), np.float32(2**bits - 1)
    scale = np.float32((np.float32(high) - np.float32(low)) / (most - least))
    zero = np.clip(np.floor(least - np.float32(low) / scale + np.float32(0.5)), least, most).astype(np.float32)
    bottom, top = float((least - zero) * scale), float((most - zero) * scale)
    inside = r("MINIMUM", r("MAXIMUM", x, bottom), top)
    steps = t.make("FLOOR", r("ADD", r("MUL", r("SUB", inside, bottom), float(np.float32(1) / scale)), 0.5))
    t.result(0, r("ADD", r("MUL", steps, float(scale)), bottom))
