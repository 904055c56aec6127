"""Entries of operations on single elements: arithmetic, comparisons, logic, activations, conversions."""

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.operands import Value
from nnhal.drivers.kit.operations.common import has_ties, with_nan, without_nan
from nnhal.drivers.kit.operations.task import FLOATS, NUMBERS, QUANTS, GraphTask, entry
from nnhal.ops.common import ACTIVATION_RANGE
from nnhal.ops.schema import B8, I32, Q8PC, Q8SYMM

EVERY = NUMBERS | {B8}
LEAST = float(np.finfo(np.float32).min)
KINDS = {"ADD": "add", "SUB": "subtract", "MUL": "multiply", "DIV": "divide", "NEG": "negative", "LOGISTIC": "sigmoid"}
KINDS |= {"HARD_SWISH": "hswish"}  # the others have NNAPI's names


@entry("DIV", "SIN", "LOG", "SQRT", "FLOOR", types=FLOATS)
@entry("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT", types=frozenset((B8,)))
@entry("ABS", "NEG", types=FLOATS | {I32})
@entry("ADD", "SUB", "MUL", types=NUMBERS, variants=True)
@entry("TANH", "LOGISTIC", "HARD_SWISH", variants=True)
def simple(t: GraphTask) -> None:
    """Write one primitive.

    There is no 8-bit variant with a constant: a rounding and a subsequent addition would become one that is several LSB
    off. There is also none if many results are halves, which 8-bit kernels round to even.
    """
    if t.form:
        constant = any(value.data is not None for _, value in t.a.inputs if isinstance(value, Value))
        t.form = "float" if constant or (t.name in ("ADD", "SUB", "MUL", "HARD_SWISH") and has_ties(t)) else t.form
    kind = KINDS.get(t.name, t.name.lower())
    total = t.sum_of_steps(kind) if t.name in ("ADD", "SUB") and t.a.T in QUANTS else None
    t.give(t.op(kind, *t.xs()) if total is None else total)


@entry("EXP", types=FLOATS)
def exponential(t: GraphTask) -> None:
    x = t.x("input")
    t.give(with_nan(t, "exp", t.op("exp", x), x))


@entry("MAXIMUM", "MINIMUM", types=NUMBERS, exact=True)
def greater(t: GraphTask) -> None:
    """Return NaN for a NaN and a number."""
    t.require_alike()
    kind, inputs = t.name.lower(), t.xs()
    t.give(with_nan(t, kind, t.op(kind, *inputs), *inputs))


@entry("POW", types=FLOATS)
def power(t: GraphTask) -> None:
    t.give(t.o.power(*t.xs()))


@entry("SELECT", types=NUMBERS, exact=True)
def select(t: GraphTask) -> None:
    """All three inputs have one shape."""
    t.require_alike()
    t.give(t.op("select", *t.xs()))


@entry("PRELU")
def prelu(t: GraphTask) -> None:
    """Write the engine's own for finite slopes, which do not make NaN of a 0; otherwise choose between two numbers."""
    x, alpha = t.xs()
    slopes, found = t.o.elements(alpha), None
    if slopes is not None and np.isfinite(slopes).all():
        found = t.o.prelu(x, alpha, t.a.T in FLOATS and t.a.input.shape == t.a.out.shape)
    t.give(t.op("select", t.op("less", x, t.f32(0)), t.op("multiply", alpha, x), x) if found is None else found)


@entry("RELU", "RELU1", "RELU6", variants=True, exact=True)
def limited(t: GraphTask) -> None:
    """Write the fused activation of the same name."""
    t.give(t.x("input"), within=ACTIVATION_RANGE[Activation[t.name]])


@entry("RSQRT")
def reciprocal_root(t: GraphTask) -> None:
    """Return the greatest value below 0: no quantised value represents NaN."""
    x = t.op("relu", t.x("input")) if t.a.T in QUANTS else t.x("input")
    t.give(t.op("reciprocal", t.op("sqrt", x)))


@entry("ELU", types=FLOATS)
def elu(t: GraphTask) -> None:
    """Write the activation with an alpha."""
    t.give(t.o.elu(t.x("input"), t.a.alpha))


@entry("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", types=EVERY)
def compare(t: GraphTask) -> None:
    """Compare truth values as numbers, and quantised values as real ones."""
    t.hold(t.o.compare(t.name.lower(), *t.xs()))


@entry("CAST", types=EVERY | {Q8SYMM}, exact=True)
def cast(t: GraphTask) -> None:
    """Convert stored values, regardless of the scale; saturate those that do not fit, and NaN becomes 0."""
    x, out, source = t.stored("input"), t.value(), t.a.input.type
    if out.type in FLOATS:
        if not (source in FLOATS and t.folded()):
            t.hold(x if source == out.type else t.halved(t.converted(x, np.float32)))
    elif source != out.type and out.type in QUANTS | {I32}:
        fits = out.type == I32 and source not in FLOATS
        t.hold(t.converted(x, np.int32) if fits else t.o.saturate(x, out.dtype))
    else:
        t.hold(x)


@entry("QUANTIZE", types=FLOATS)
def quantise(t: GraphTask) -> None:
    """Convert real values to stored ones, NaN to 0."""
    t.give(without_nan(t, t.x("input")))


@entry("DEQUANTIZE", types=QUANTS | {Q8SYMM, Q8PC})
def dequantise(t: GraphTask) -> None:
    """Convert stored values to real ones.

    A guard keeps their products out of 8-bit kernels, which nobody verified for them.
    """
    if not t.folded():
        x, guarded = t.x("input"), t.o.merges_factors and t.a.input.data is None
        t.give(t.halved(t.op("maximum", x, t.f32(LEAST)) if guarded else x))
