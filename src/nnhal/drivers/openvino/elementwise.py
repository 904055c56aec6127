"""Entries of operations on single elements: arithmetic, comparisons, logic, activations, conversions."""

import numpy as np

from nnhal.drivers.openvino.graph import FLOATS, NUMBERS, QUANTS, Node, Task, entry
from nnhal.ops.common import ACTIVATION_RANGE, type_range
from nnhal.base.codes import Activation
from nnhal.ops.schema import B8, I32, Q8PC, Q8SYMM, Q16A, Q16S

STEEP = 2.0**125  # reciprocals of what is greater are subnormal
LARGEST_I32 = 2.0**31 - 128  # in float32
EVERY = NUMBERS | {B8}
SIMPLE = {"ADD": "add", "SUB": "subtract", "MUL": "multiply", "POW": "power"}
SIMPLE |= {"LOGICAL_AND": "logical_and", "LOGICAL_OR": "logical_or", "LOGICAL_NOT": "logical_not"}
SIMPLE |= {"FLOOR": "floor", "ABS": "abs", "NEG": "negative", "EXP": "exp", "SIN": "sin", "TANH": "tanh"}
SIMPLE |= {"LOG": "log", "SQRT": "sqrt", "LOGISTIC": "sigmoid", "HARD_SWISH": "hswish"}


def all_of(t: Task) -> list[Node]:
    """The real values of all tensor arguments."""
    return [t.graph.real(place) for argument, _ in t.a.inputs for place in t.places(argument.name)]


@entry("POW", "EXP", "SIN", "LOG", "SQRT", "FLOOR", types=FLOATS)
@entry("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT", types=frozenset((B8,)))
@entry("ABS", "NEG", types=FLOATS | {I32})
@entry("ADD", "SUB", "MUL", types=NUMBERS)
@entry("TANH", "LOGISTIC", "HARD_SWISH")
def simple(t: Task) -> None:
    """What OpenVINO has too."""
    t.give(getattr(t.o, SIMPLE[t.name])(*all_of(t)))


@entry("DIV", types=FLOATS)
def divide(t: Task) -> None:
    """OpenVINO multiplies with the reciprocal of a constant."""
    known = t.a.input2.data
    t.require(known is None or np.abs(known).max() < STEEP, "OpenVINO's reciprocal of a divisor is no normal float32")
    t.give(t.o.divide(t.x("input1"), t.x("input2")))


@entry("MAXIMUM", "MINIMUM", types=NUMBERS)
def extreme(t: Task) -> None:
    """Of a NaN and a number OpenVINO gives either, NNAPI the NaN."""
    x, y = all_of(t)
    found = (t.o.maximum if t.name == "MAXIMUM" else t.o.minimum)(x, y)
    if t.a.T in FLOATS:
        found = t.where(t.missing(x), x, t.where(t.missing(y), y, found))
    t.give(found)


@entry("PRELU")
def prelu(t: Task) -> None:
    """Broadcasting."""
    x = t.x("input")
    t.give(t.where(t.o.less(x, t.f32(0)), t.o.multiply(t.x("alpha"), x), x))


@entry("RELU", "RELU1", "RELU6")
def limited(t: Task) -> None:
    """The fused activation of the same name."""
    t.give(t.x("input"), within=ACTIVATION_RANGE[Activation[t.name]])


@entry("RSQRT")
def reciprocal_root(t: Task) -> None:
    """No quantised value stands for NaN: what is below 0 gives the greatest value."""
    x = t.x("input")
    x = t.o.relu(x) if t.a.T in QUANTS else x
    t.give(t.o.divide(t.f32(1), t.o.sqrt(x)))


@entry("ELU", types=FLOATS)
def elu(t: Task) -> None:
    """With an alpha."""
    t.require(t.a.alpha >= 0, f"alpha is {t.a.alpha:g}, must be at least 0 for OpenVINO's kernel")
    t.give(t.o.elu(t.x("input"), t.a.alpha))


@entry("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", types=EVERY)
def compare(t: Task) -> None:
    """Truth values as numbers, quantised ones as real ones."""
    inputs = [t.graph.converted(x, "i32") if t.a.T == B8 else x for x in all_of(t)]
    t.hold(getattr(t.o, t.name.lower())(*inputs))


@entry("SELECT", types=NUMBERS)
def select(t: Task) -> None:
    """All three have one shape."""
    t.give(t.where(t.x("condition"), t.x("input1"), t.x("input2")))


@entry("CAST", types=EVERY | {Q8SYMM, Q16A, Q16S})
def cast(t: Task) -> None:
    """Stored values are converted, whatever scale they have; what does not fit is saturated, NaN is 0."""
    x, kind, source = t.stored("input"), t.value().type, t.a.input.type
    if kind in FLOATS:
        x = t.graph.converted(x, "f32")
    elif kind in QUANTS and source != kind:
        x = saturated(t, x, *type_range(kind))
    elif kind == I32 and source != I32:
        x = integers(t, x) if source in FLOATS else t.graph.converted(x, "i32")
    t.hold(x)


def saturated(t: Task, x: Node, low: int, high: int) -> Node:
    """Whole numbers within a range of float32's integers."""
    if x.get_element_type() == t.graph.ov.Type.f32:
        number = t.where(t.missing(x), t.f32(0), x)
        number = t.o.clamp(number, float(low), float(high))
        return t.where(t.o.less(number, t.f32(0)), t.o.ceiling(number), t.o.floor(number))
    low_, high_ = t.constant(low, np.int32), t.constant(high, np.int32)
    whole = t.o.maximum(t.o.minimum(t.graph.converted(x, "i32"), high_), low_)
    return t.o.convert(whole, "f32")


def integers(t: Task, x: Node) -> Node:
    """float32 as int32; the conversion itself does not saturate."""
    number = t.where(t.missing(x), t.f32(0), x)
    near = t.o.convert(t.o.clamp(number, -(2.0**31), LARGEST_I32), "i32")
    return t.where(t.o.greater(number, t.f32(LARGEST_I32)), t.constant(2**31 - 1, np.int32), near)


@entry("QUANTIZE", types=FLOATS)
@entry("DEQUANTIZE", types=QUANTS | {Q8SYMM, Q8PC})
def convert(t: Task) -> None:
    """From real values to stored ones, and back."""
    t.give(t.x("input"))
