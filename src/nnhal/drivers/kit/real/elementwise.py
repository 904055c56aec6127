"""Entries of operations on single elements: arithmetic, comparisons, logic, activations, conversions."""

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.operands import Value
from nnhal.drivers.kit.real.engine import Node
from nnhal.drivers.kit.real.graph import FLOATS, FORMS, NUMBERS, QUANTS, RealTask, entry, scales_of
from nnhal.ops.common import ACTIVATION_RANGE, type_range
from nnhal.ops.schema import B8, F32, I32, Q8PC, Q8SYMM, Q16A, Q16S

LARGEST = 2.0**31 - 128  # the greatest float32 that an int32 holds
EVERY = NUMBERS | {B8}
TINY = np.finfo(np.float32).tiny
LEAST = float(np.finfo(np.float32).min)
# the two inputs' order: which one, 0 or not 0, is the greater; None: the other
INTEGERS: dict[str, tuple[str, bool | None]] = {
    "EQUAL": ("equal", None),
    "NOT_EQUAL": ("not_equal", None),
    "LESS": ("not_equal", False),
    "GREATER": ("not_equal", True),
    "LESS_EQUAL": ("equal", True),
    "GREATER_EQUAL": ("equal", False),
}
KINDS = {"ADD": "add", "SUB": "subtract", "MUL": "multiply", "DIV": "divide", "NEG": "negative", "LOGISTIC": "sigmoid"}
KINDS |= {"HARD_SWISH": "hswish"}  # the others have NNAPI's names


@entry("DIV", "SIN", "LOG", "SQRT", "FLOOR", types=FLOATS)
@entry("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT", types=frozenset((B8,)))
@entry("ABS", "NEG", types=FLOATS | {I32})
@entry("ADD", "SUB", "MUL", types=NUMBERS, forms=FORMS)
@entry("TANH", "LOGISTIC", "HARD_SWISH", forms=FORMS)
def simple(t: RealTask) -> None:
    """Write one primitive.

    There is no 8-bit variant with a constant: a rounding and a subsequent addition would become one that is several LSB
    off. There is also none if many results are halves, which 8-bit kernels round to even.

    Inputs of one scale are added up as integers, so the difference of equal ones is 0. An engine that joins the scaling
    of one with the subtraction would leave a rounding error, which is several LSB of a fine output.
    """
    constant = any(value.data is not None for _, value in t.a.inputs if isinstance(value, Value))
    t.form = "float" if constant or (t.name in ("ADD", "SUB", "MUL", "HARD_SWISH") and t.halves()) else t.form
    kind = KINDS.get(t.name, t.name.lower())
    if t.name in ("ADD", "SUB") and t.a.T in QUANTS and not t.eight and t.a.input1.scale == t.a.input2.scale:
        total = t.op(kind, *(t.graph.steps(t.place(name)) for name in ("input1", "input2")))
        t.give(t.op("multiply", t.graph.apart(total), t.constant(scales_of(t.a.input1))))
        return
    t.give(t.op(kind, *t.xs()))


@entry("EXP", types=FLOATS)
def exponential(t: RealTask) -> None:
    """Keep NaN, for which engines return a number."""
    x = t.x("input")
    t.give(t.op("select", t.missing(x), x, t.op("exp", x)))


@entry("MAXIMUM", "MINIMUM", types=NUMBERS, exact=True)
def extreme(t: RealTask) -> None:
    """Return NaN for a NaN and a number, of which engines return either."""
    t.require_alike()
    x, y = t.xs()
    found = t.op(t.name.lower(), x, y)
    if t.a.T in FLOATS:
        found = t.op("select", t.missing(x), x, t.op("select", t.missing(y), y, found))
    t.give(found)


@entry("PRELU")
def prelu(t: RealTask) -> None:
    """Write it with broadcasting, or the engine's own, which its layers can include.

    The engine's own is not used if a slope makes NaN of a number that is not below 0.
    """
    x, alpha = t.x("input"), t.x("alpha")
    slopes, rank = t.o.elements(alpha), t.a.input.rank
    plain = slopes is not None and (np.isfinite(slopes) & (np.abs(slopes) >= TINY)).all()
    if slopes is not None and plain and t.a.T in FLOATS and rank > 1 and t.a.input.shape == t.a.out.shape:
        t.give(t.op("prelu", x, t.o.reshape(alpha, (1,) * (rank - slopes.ndim) + slopes.shape)))
        return
    t.give(t.op("select", t.op("less", x, t.f32(0)), t.op("multiply", alpha, x), x))


@entry("RELU", "RELU1", "RELU6", forms=FORMS, exact=True)
def limited(t: RealTask) -> None:
    """Write the fused activation of the same name."""
    t.give(t.x("input"), within=ACTIVATION_RANGE[Activation[t.name]])


@entry("RSQRT")
def reciprocal_root(t: RealTask) -> None:
    """Return the greatest value below 0: no quantised value represents NaN."""
    x = t.op("relu", t.x("input")) if t.a.T in QUANTS else t.x("input")
    t.give(t.op("divide", t.f32(1), t.op("sqrt", x)))


@entry("ELU", types=FLOATS)
def elu(t: RealTask) -> None:
    """Write the activation with an alpha."""
    t.require(t.a.alpha >= 0, f"alpha is {t.a.alpha:g}, must be at least 0 for {t.o.name}'s kernel")
    t.give(t.o.elu(t.x("input"), t.a.alpha))


@entry("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", types=EVERY)
def compare(t: RealTask) -> None:
    """Compare truth values as numbers, and quantised values as real ones.

    Engines compare integers in float32: the greater of two, and whether a difference is 0, are exact. Only "less" is
    false for NaN everywhere.
    """
    require_normal(t)
    x, y = (t.graph.converted(x, np.int32) if t.a.T == B8 else x for x in t.xs())
    if t.a.T == I32:
        kind, of_the_greater = INTEGERS[t.name]
        other = y if of_the_greater is None else t.op("maximum", x, y)
        t.hold(t.op(kind, t.op("subtract", other, y if of_the_greater else x), t.constant(0, np.int32)))
    elif t.name.startswith("GREATER"):
        t.hold(t.op(t.name.lower().replace("greater", "less"), y, x))
    else:
        t.hold(t.op(t.name.lower(), x, y))


def require_normal(t: RealTask) -> None:
    """Refuse subnormal constants: engines may treat these as 0, but not the other operand."""
    for _, value in t.a.inputs:
        known = value.data if isinstance(value, Value) and value.type == F32 else None
        small = known is not None and ((np.abs(known) < TINY) & (known != 0)).any()
        t.require(not small, f"{t.o.name} treats a subnormal constant as 0, but not the other operand")


@entry("POW", types=FLOATS)
def power(t: RealTask) -> None:
    """Write it with broadcasting. For a constant 0.5 engines use the root, which is NaN at minus infinity."""
    require_normal(t)
    base, exponent = t.xs()
    known = t.a.exponent.data
    if known is not None and (known == 0.5).any():
        base = t.op("select", t.op("equal", base, t.f32(-np.inf)), t.f32(np.inf), base)
    t.give(t.op("power", base, exponent))


@entry("SELECT", types=NUMBERS, exact=True)
def select(t: RealTask) -> None:
    """All three inputs have one shape."""
    t.require_alike()
    t.give(t.op("select", t.x("condition"), t.x("input1"), t.x("input2")))


@entry("CAST", types=EVERY | {Q8SYMM, Q16A, Q16S}, exact=True)
def cast(t: RealTask) -> None:
    """Convert stored values, regardless of the scale; saturate those that do not fit, and NaN becomes 0."""
    x, kind, source = t.stored("input"), t.value().type, t.a.input.type
    if kind in FLOATS:
        x = t.graph.converted(x, np.float32)
    elif kind in QUANTS and source != kind:
        x = saturated(t, x, *type_range(kind))
    elif kind == I32 and source != I32:
        x = integers(t, x) if source in FLOATS else t.graph.converted(x, np.int32)
    t.hold(x)


def numbers(t: RealTask, x: Node) -> Node:
    """Return float32 with 0 for NaN."""
    return t.op("select", t.missing(x), t.f32(0), x)


def saturated(t: RealTask, x: Node, low: int, high: int) -> Node:
    """Return whole numbers of a small range, in float32."""
    if t.o.dtype(x) == np.float32:
        return t.truncated(t.o.clamp(numbers(t, x), float(low), float(high)))
    whole = t.op("minimum", t.graph.converted(x, np.int32), t.constant(high, np.int32))
    return t.o.convert(t.op("maximum", whole, t.constant(low, np.int32)), np.float32)


def integers(t: RealTask, x: Node) -> Node:
    """Convert float32 to int32, saturated, which the conversion itself does not do."""
    x = numbers(t, x)
    near = t.o.convert(t.o.clamp(x, -(2.0**31), LARGEST), np.int32)
    return t.op("select", t.op("greater", x, t.f32(LARGEST)), t.constant(2**31 - 1, np.int32), near)


@entry("QUANTIZE", types=FLOATS)
def quantise(t: RealTask) -> None:
    """Convert real values to stored ones, NaN to 0."""
    t.give(numbers(t, t.x("input")))


@entry("DEQUANTIZE", types=QUANTS | {Q8SYMM, Q8PC})
def dequantise(t: RealTask) -> None:
    """Convert stored values to real ones.

    A guard keeps their products out of 8-bit kernels, which nobody verified for them.
    """
    x = t.x("input")
    t.give(t.op("maximum", x, t.f32(LEAST)) if t.a.input.data is None else x)
