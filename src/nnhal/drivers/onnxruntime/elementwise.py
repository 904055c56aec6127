"""Entries of operations on single elements: arithmetic, comparisons, logic, activations, conversions."""

import numpy as np

from nnhal.base.codes import Activation
from nnhal.drivers.onnxruntime.graph import (
    BOOL,
    DOUBLE,
    FLOAT,
    FLOATS,
    HALF,
    INT32,
    ONNX_TYPES,
    QUANTS,
    OnnxTask,
    engine_dtype,
    entry,
)
from nnhal.ops.common import ACTIVATION_RANGE
from nnhal.ops.schema import B8, F16, I32, Q8PC, Q8SYMM

NUMBERS = FLOATS | QUANTS | {I32}
PAIRS = {"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "POW": "Pow", "MAXIMUM": "Max", "MINIMUM": "Min"}
SINGLE = {"ABS": "Abs", "NEG": "Neg", "FLOOR": "Floor", "EXP": "Exp", "SIN": "Sin", "LOG": "Log", "SQRT": "Sqrt"}
SINGLE |= {"LOGISTIC": "Sigmoid", "TANH": "Tanh", "HARD_SWISH": "HardSwish"}
COMPARED = {"EQUAL": "Equal", "LESS": "Less", "LESS_EQUAL": "LessOrEqual"}
COMPARED |= {"GREATER": "Greater", "GREATER_EQUAL": "GreaterOrEqual"}


def reals(t: OnnxTask) -> list[str]:
    """All tensors of the operation, as real values."""
    return [t.real(argument.name) for argument, _ in t.a.inputs]


@entry(*PAIRS, types=NUMBERS)
def pair(t: OnnxTask) -> None:
    """Two tensors, broadcast against each other."""
    t.give(t.node(PAIRS[t.name], *reals(t)))


@entry("DIV", types=FLOATS | {I32})
def divide(t: OnnxTask) -> None:
    """Integers are divided towards minus infinity: in float64, which holds them and never rounds a quotient up to the next."""
    x, y = reals(t)
    if t.a.T != I32:
        t.give(t.node("Div", x, y))
        return
    safe = not np.isin(t.array("input2"), (0, -1)).any()
    t.require(safe, "ONNX Runtime has no rule for an integer division by 0, nor for the least integer by -1")
    quotient = t.node("Div", t.node("Cast", x, to=DOUBLE), t.node("Cast", y, to=DOUBLE))
    t.put(t.node("Cast", t.node("Floor", quotient), to=INT32))


@entry("PRELU")
def prelu(t: OnnxTask) -> None:
    """Either side may be broadcast."""
    x, alpha = reals(t)
    t.give(t.node("Where", t.node("Less", x, t.constant(0)), t.node("Mul", alpha, x), x))


@entry(*SINGLE, types=NUMBERS)
def single(t: OnnxTask) -> None:
    """One input."""
    t.give(t.node(SINGLE[t.name], *reals(t)))


@entry("RSQRT")
def reciprocal_root(t: OnnxTask) -> None:
    """No quantised value stands for NaN: what is below 0 gives the greatest value, as 0 does."""
    x = t.node("Relu", *reals(t)) if t.a.T in QUANTS else t.real("input")
    t.give(t.node("Reciprocal", t.node("Sqrt", x)))


@entry("RELU", "RELU1", "RELU6")
def limited(t: OnnxTask) -> None:
    """Clipped on one side or both."""
    t.give(t.real("input"), ACTIVATION_RANGE[Activation[t.name]])


@entry("ELU", types=FLOATS)
def elu(t: OnnxTask) -> None:
    """Alpha is an attribute."""
    t.give(t.node("Elu", t.real("input"), alpha=t.a.alpha))


@entry(*COMPARED, "NOT_EQUAL", types=NUMBERS | {B8})
def compare(t: OnnxTask) -> None:
    """Booleans become numbers where order counts."""
    inputs = reals(t)
    if t.a.T == B8 and "EQUAL" not in (t.name, t.name[4:]):
        inputs = [t.node("Cast", x, to=INT32) for x in inputs]
    y = t.node(COMPARED.get(t.name, "Equal"), *inputs)
    t.put(t.node("Not", y) if t.name == "NOT_EQUAL" else y)


@entry("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT", types=frozenset((B8,)))
def logical(t: OnnxTask) -> None:
    """Of truth values."""
    t.put(t.node(t.name[8:].title(), *reals(t)))


@entry("SELECT", types=NUMBERS)
def select(t: OnnxTask) -> None:
    """All three have one shape."""
    t.give(t.node("Where", *reals(t)))


@entry("CAST", types=NUMBERS | {B8, Q8SYMM})
def cast(t: OnnxTask) -> None:
    """Stored values are converted, whatever scale they have: truncated and saturated, NaN as 0. Float64 holds them all."""
    x, source, out = t.x("input"), t.a.input, t.a.out
    if source.type == out.type:
        t.put(x)
        return
    if out.type in QUANTS | {I32}:
        if source.type in FLOATS:
            x = t.node("Where", t.node("IsNaN", x), t.constant(0), x)
        limits = np.iinfo(out.dtype)
        ends = (t.constant(n, np.float64) for n in (limits.min, limits.max))
        x = t.node("Clip", t.node("Cast", x, to=DOUBLE), *ends)
    t.put(halved(t, t.node("Cast", x, to=ONNX_TYPES[engine_dtype(out).str[1:]])))


@entry("QUANTIZE", types=FLOATS)
@entry("DEQUANTIZE", types=QUANTS | {Q8SYMM, Q8PC})
def converted(t: OnnxTask) -> None:
    """From real values to stored ones, and back."""
    channel = t.a.input.channel
    if channel is None:
        y = t.real("input")
    else:
        scales, zeros = t.constant(channel.scales), t.constant([0] * len(channel.scales), np.int8)
        y = t.node("DequantizeLinear", t.x("input"), scales, zeros, axis=channel.axis)
    t.give(halved(t, y) if t.name == "DEQUANTIZE" else y)


def halved(t: OnnxTask, y: str) -> str:
    """Numbers as float16 holds them, where the output is of it."""
    return t.node("Cast", t.node("Cast", y, to=HALF), to=FLOAT) if t.a.out.type == F16 else y


_ = BOOL
