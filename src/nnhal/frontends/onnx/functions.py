"""Entries of functions of one real number without an NNAPI operation, composed from existing ones."""

import math

import numpy as np

from nnhal.frontends.common.functions import (
    LOG_RATIO,
    RealArithmetic,
    angle_of,
    cosine_of,
    gelu_of,
    log_of_one_and,
    normal_tail,
    rounded,
    sign_of,
)
from nnhal.frontends.common.integer_ranges import sign as sign_range
from nnhal.frontends.common.terms import Term
from nnhal.frontends.onnx.elementwise import floats, in_own_type, plain, single_floats
from nnhal.frontends.onnx.task import NodeTask, operator
from nnhal.ops.schema import I32


@operator("Erf", single=True, becomes="EXP and a polynomial; near 0 a polynomial in x²")
def erf(t: NodeTask) -> None:
    """Write twice the normal distribution's share; away from 0, from the tail."""
    x, r = floats(t), RealArithmetic(t)
    size = t.make("ABS", x)
    far = r.less(1.0, r("MUL", normal_tail(t, r("MUL", size, math.sqrt(2))), 2.0))
    square = r("MUL", x, x)
    near = r("MUL", size, r.polynomial(ERF, r("MINIMUM", square, 1.0)))
    found = r.choose(r.test("LESS", size, 0.5), near, far)
    t.result(0, r.like_sign(x, found))


ERF = (1.1283791670955126, -0.37612638903183754, 0.11283791670955126, -0.026866170645131252, 0.005223977625442188,
       -0.0008548327023450853)  # the series of erf(x) / x in x²  # fmt: skip


@operator("Gelu", single=True, becomes="exact: EXP and a polynomial for erf; approximate: TANH")
def gelu(t: NodeTask) -> None:
    mode = t.attr("approximate", "none")
    t.require(mode in ("none", "tanh"), f"approximate is {mode}, must be 'none' or 'tanh'")
    t.result(0, gelu_of(t, floats(t), mode == "tanh"))


@operator("Cos", single=True, fold=plain(np.cos), becomes="1 - 2 SIN(x / 2)²")
def cosine(t: NodeTask) -> None:
    """Write the cosine without a sum that would round a large argument."""
    t.result(0, cosine_of(t, floats(t)))


@operator("Tan", single=True, becomes="SIN and DIV")
def tangent(t: NodeTask) -> None:
    """Write sin(x) / cos(x)."""
    x, r = single_floats(t), RealArithmetic(t)
    t.result(0, in_own_type(t, r("DIV", t.make("SIN", x), cosine_of(t, x))))


@operator("Atan", single=True, fold=plain(np.arctan), becomes="DIV and a polynomial, in the eighth of the circle")
def arctangent(t: NodeTask) -> None:
    x, r = single_floats(t), RealArithmetic(t)
    t.result(0, in_own_type(t, r.like_sign(x, angle_of(t, t.make("ABS", x), 1.0))))


@operator("Asin", "Acos", single=True, becomes="SQRT, DIV and a polynomial, in the eighth of the circle")
def arcsine(t: NodeTask) -> None:
    """Write the angle of |x| and sqrt(1 - x²), or of these the other way round; NaN, as the root is, beyond 1."""
    x, r = single_floats(t), RealArithmetic(t)
    size = t.make("ABS", x)
    root = t.make("SQRT", r("MUL", r.less(1.0, size), r("ADD", size, 1.0)))
    if t.name == "Asin":
        angle = r.like_sign(x, angle_of(t, size, root))
    else:
        first = angle_of(t, root, size)
        angle = r.choose(r.test("LESS", x, 0.0), r.less(math.pi, first), first)
    t.result(0, in_own_type(t, r.choose(r.test("LESS_EQUAL", size, 1.0), angle, root)))


@operator("Asinh", single=True, fold=plain(np.arcsinh), becomes="SQRT, DIV, LOG; a polynomial near 0")
def inverse_hyperbolic_sine(t: NodeTask) -> None:
    """Write log(|x| + sqrt(x² + 1)) with the sign of x, as sums that neither overflow nor cancel."""
    x, r = single_floats(t), RealArithmetic(t)
    size = t.make("ABS", x)
    small = r("MINIMUM", size, 0.5)
    square = r("MUL", small, small)
    root = t.make("SQRT", r("ADD", square, 1.0))
    near = log_of_one_and(r, r("ADD", small, r("DIV", square, r("ADD", root, 1.0))))
    far = log_of_sum(r, size, 1.0)
    t.result(0, in_own_type(t, r.like_sign(x, r.choose(r.test("LESS", size, 0.5), near, far))))


@operator("Acosh", single=True, fold=plain(np.arccosh), becomes="SQRT, DIV, LOG; a polynomial near 1")
def inverse_hyperbolic_cosine(t: NodeTask) -> None:
    """Write log(x + sqrt(x² - 1)), as sums that neither overflow nor cancel; NaN, as a root of x - 1 is, below 1."""
    x, r = single_floats(t), RealArithmetic(t)
    more = r("SUB", x, 1.0)
    root = r("MUL", t.make("SQRT", more), t.make("SQRT", r("ADD", x, 1.0)))
    near = log_of_one_and(r, r("ADD", more, root))
    t.result(0, in_own_type(t, r.choose(r.test("LESS", x, 1.25), near, log_of_sum(r, x, -1.0))))


def log_of_sum(r: RealArithmetic, x: Term, square: float) -> Term:
    """Return log(x + sqrt(x² + square)) for x from 0.5, of which no square is taken."""
    part = r.over(1.0, x)
    root = r.t.make("SQRT", r("ADD", r("MUL", r("MUL", part, part), square), 1.0))
    return r("ADD", r.t.make("LOG", x), r.t.make("LOG", r("ADD", root, 1.0)))


@operator("Atanh", single=True, fold=plain(np.arctanh), becomes="DIV, LOG; a polynomial near 0")
def inverse_hyperbolic_tangent(t: NodeTask) -> None:
    """Write half the logarithm of (1 + x) / (1 - x)."""
    x, r = single_floats(t), RealArithmetic(t)
    near = r("MUL", x, r.polynomial([half / 2 for half in LOG_RATIO], r("MINIMUM", r("MUL", x, x), 1.0)))
    far = r("MUL", t.make("LOG", r("DIV", r("ADD", x, 1.0), r.less(1.0, x))), 0.5)
    t.result(0, in_own_type(t, r.choose(r.test("LESS", t.make("ABS", x), 1 / 3), near, far)))


@operator("Sign", single=True, fold=plain(np.sign), span=sign_range, becomes="GREATER, LESS, SELECT, ABS")
def sign(t: NodeTask) -> None:
    """Write 1 or -1; for 0 and NaN, their absolute value."""
    x = t.x(0)
    t.require(x.value.type != I32 or x.value.shape, "has no shape")
    t.result(0, sign_of(t, x))


@operator("Round", single=True, fold=plain(np.round), becomes="FLOOR and SELECT, halves to even")
def round_(t: NodeTask) -> None:
    """Round halves to even: up if more than half is left, or exactly half above an odd number."""
    t.result(0, rounded(t, floats(t)))


@operator("Softplus", single=True, becomes="EXP of -|x|, a polynomial for the logarithm, RELU")
def softplus(t: NodeTask) -> None:
    """Write max(x, 0) + log(1 + e^-|x|)."""
    x, r = floats(t), RealArithmetic(t)
    fall = t.make("EXP", t.make("NEG", t.make("ABS", x)))
    t.result(0, r("ADD", t.make("RELU", x), log_of_one_and(r, fall)))


@operator("Mish", single=True, becomes="EXP, ADD, MUL, DIV")
def mish(t: NodeTask) -> None:
    """Write x tanh(softplus(x)), which is x n / (n + 2) with n = e^x (e^x + 2)."""
    x, r = single_floats(t), RealArithmetic(t)
    power = t.make("EXP", r("MINIMUM", x, NO_BEND))
    n = r("MUL", power, r("ADD", power, 2.0))
    t.result(0, in_own_type(t, r("MUL", x, r("DIV", n, r("ADD", n, 2.0)))))


NO_BEND = 20.0  # from here on, float32 cannot distinguish mish(x) from x


@operator("Softsign", single=True, becomes="ABS, ADD, DIV")
def softsign(t: NodeTask) -> None:
    """Write x / (1 + |x|)."""
    x, r = floats(t), RealArithmetic(t)
    t.result(0, r("DIV", x, r("ADD", t.make("ABS", x), 1.0)))


@operator("Sinh", "Cosh", single=True, becomes="EXP, MUL, DIV, ADD, SUB")
def hyperbolic(t: NodeTask) -> None:
    """Combine half of e^|x| and half of e^-|x|: their sum, or their difference with the sign of x.

    Half of e^|x| is e^(|x| / 2) times half of itself, which overflows only if the result does.
    """
    x, r = floats(t), RealArithmetic(t)
    root = t.make("EXP", r("MUL", t.make("ABS", x), 0.5))
    up = r("MUL", root, r("MUL", root, 0.5))
    down = r.over(0.25, up)
    if t.name == "Sinh":
        small = r("MUL", x, r.polynomial([1.0, 1 / 6, 1 / 120, 1 / 5040], r("MINIMUM", r("MUL", x, x), 1.0)))
        size = r("SUB", up, down)
        t.result(0, r.choose(r.test("LESS", t.make("ABS", x), 0.5), small, r.like_sign(x, size)))
    else:
        t.result(0, r("ADD", up, down))


@operator("IsNaN", single=True, becomes="NOT_EQUAL with itself")
def is_nan(t: NodeTask) -> None:
    """Compare each element with itself: only NaN differs."""
    x = floats(t)
    t.result(0, RealArithmetic(t).test("NOT_EQUAL", x, x), "BOOL")


@operator("IsInf", single=True, becomes="EQUAL with infinity, of ABS for either sign")
def is_infinite(t: NodeTask) -> None:
    """Compare each element with the infinities that the node detects."""
    x, r = floats(t), RealArithmetic(t)
    negative, positive = t.attr("detect_negative", 1), t.attr("detect_positive", 1)
    t.require(negative or positive, "detects no infinity, must detect one")
    sought = t.make("ABS", x) if negative and positive else x
    t.result(0, r.test("EQUAL", sought, math.inf if positive else -math.inf), "BOOL")


@operator("Swish", single=True, becomes="LOGISTIC, MUL")
def swish(t: NodeTask) -> None:
    """Write x times the sigmoid of alpha x."""
    x, r, alpha = floats(t), RealArithmetic(t), t.attr("alpha", 1.0)
    inner = x if alpha == 1 else r("MUL", x, alpha)
    t.result(0, r("MUL", x, t.make("LOGISTIC", inner)))
