"""Entries of operations on single elements: arithmetic, comparisons, logic, activations, conversions."""

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.operands import Array, fixed
from nnhal.drivers.kit.onnx.graph import FLOATS, MOVED, QUANTS, OnnxTask, engine_dtype, entry
from nnhal.ops.common import ACTIVATION_RANGE, decode
from nnhal.ops.schema import B8, F16, I32, Q8PC, Q8SYMM

PLAIN = {"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "POW": "Pow", "MAXIMUM": "Max", "MINIMUM": "Min", "SELECT": "Where"}
PLAIN |= {"ABS": "Abs", "NEG": "Neg", "FLOOR": "Floor", "EXP": "Exp", "SIN": "Sin", "LOG": "Log", "SQRT": "Sqrt"}
PLAIN |= {"TANH": "Tanh", "HARD_SWISH": "HardSwish"}
CHOICES = ("MAXIMUM", "MINIMUM", "SELECT")  # which return elements unchanged
COMPARED = {"EQUAL": "Equal", "NOT_EQUAL": "Equal", "LESS": "Less", "LESS_EQUAL": "LessOrEqual", "GREATER": "Greater"}
COMPARED |= {"GREATER_EQUAL": "GreaterOrEqual"}


@entry(*(name for name in PLAIN if name not in CHOICES), types=MOVED)
@entry(*CHOICES, types=MOVED, exact=True)
def plain(t: OnnxTask) -> None:
    """Write the operation itself.

    A constant tensor of one value becomes that value if another operand has the result's shape. x * LOGISTIC(x) uses
    the engine's sigmoid, one kernel, as the engine fuses it: off by 2e-6 at most, 0 below -18.
    """
    if t.name in CHOICES:
        t.require_alike()
    given, filled, shape = t.reals(), t.graph.filled, fixed(t.a.shapes[0])
    values = [t.graph.values[place] for argument, _ in t.a.inputs for place in t.places(argument.name)]
    whole = [x not in filled and v is not None and fixed(v.shape) == shape for x, v in zip(given, values, strict=True)]
    if shape is not None and any(whole):
        chosen = [filled[x][1] for x in given[1:] if x in filled] if t.name == "SELECT" else []
        if len(chosen) == 2 and alike(chosen[0], 1) and alike(chosen[1], 0):
            t.put(t.cast(given[0], engine_dtype(t.a.out)))
            return
        given = [filled[x][0] if x in filled else x for x in given]
    for x, gate in (given, given[::-1]) if t.name == "MUL" else ():
        if t.graph.gates.get(gate) == x:
            given = [x, t.o.Sigmoid(x)]
    t.give(t.graph.node(PLAIN[t.name], *given))


def alike(known: Array | None, number: int) -> bool:
    """Whether a value is known, and is that number; of zeros, the one without a sign."""
    return known is not None and bool((known == number).all()) and not np.signbit(known).any()


@entry("DIV", types=FLOATS | {I32})
def divide(t: OnnxTask) -> None:
    """Round integers towards minus infinity, in float64: it holds them and never rounds a quotient up to the next."""
    x, y = t.reals()
    if t.a.T != I32:
        t.give(t.o.Div(x, y))
        return
    safe = not np.isin(t.array("input2"), (0, -1)).any()
    t.require(safe, "ONNX Runtime does not define an integer division by 0, nor of the least integer by -1")
    t.put(t.cast(t.o.Floor(t.o.Div(t.cast(x, np.float64), t.cast(y, np.float64))), np.int32))


@entry("PRELU")
def prelu(t: OnnxTask) -> None:
    """Write several operations unless alpha is one number: ONNX Runtime's own kernel is nine times slower.

    An infinite alpha must not meet the 0 of the positive elements.
    """
    x, alpha = t.reals()
    known, shape = t.known("alpha"), fixed(t.a.shapes[0])
    alone = known is not None and known.size == 1 and shape is not None and shape == fixed(t.a.input.shape)
    if known is None or not np.isfinite(known).all():
        t.give(t.o.Where(t.o.Less(x, 0.0), t.o.Mul(alpha, x), x))
    elif t.a.T in FLOATS and alone:
        t.give(t.o.LeakyRelu(x, alpha=known.item()))
    else:
        t.give(t.o.Add(t.o.Relu(x), t.o.Mul(alpha, t.o.Min(x, 0.0))))


@entry("LOGISTIC")
def logistic(t: OnnxTask) -> None:
    """Write several operations for floats: ONNX Runtime's own is 0 below -18, whose logarithm is infinite.

    They take twice the time.
    """
    x = t.real("input")
    y = t.o.Sigmoid(x) if t.a.T in QUANTS else t.o.Div(1.0, t.o.Add(t.o.Exp(t.o.Neg(x)), 1.0))
    if t.a.T not in QUANTS:
        t.graph.gates[y] = x
    t.give(y)


@entry("RSQRT")
def reciprocal_root(t: OnnxTask) -> None:
    """Return the greatest value below 0, as for 0: no quantised value represents NaN."""
    x = t.real("input")
    t.give(t.o.Reciprocal(t.o.Sqrt(t.o.Relu(x) if t.a.T in QUANTS else x)))


@entry("RELU", exact=True)
@entry("RELU1", "RELU6")
def limited(t: OnnxTask) -> None:
    t.give(t.real("input"), ACTIVATION_RANGE[Activation[t.name]])


@entry("ELU", types=FLOATS)
def elu(t: OnnxTask) -> None:
    t.give(t.o.Elu(t.real("input"), alpha=t.a.alpha))


@entry(*COMPARED, types=MOVED | {B8})
def compare(t: OnnxTask) -> None:
    """Convert booleans to numbers if order counts."""
    inputs = t.reals()
    if t.a.T == B8 and COMPARED[t.name] != "Equal":
        inputs = [t.cast(x, np.int32) for x in inputs]
    y = t.graph.node(COMPARED[t.name], *inputs)
    t.put(t.o.Not(y) if t.name == "NOT_EQUAL" else y)


@entry("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT", types=frozenset((B8,)))
def logical(t: OnnxTask) -> None:
    t.put(t.graph.node(t.name[8:].title(), *t.reals()))


@entry("CAST", types=MOVED | {B8, Q8SYMM}, exact=True)
def cast(t: OnnxTask) -> None:
    """Convert stored values, regardless of the scale: truncated and saturated, NaN as 0. Float64 holds them all."""
    x, source, out = t.x("input"), t.a.input.type, t.a.out
    if source in FLOATS and out.type in FLOATS and folded(t):
        return
    if source != out.type and out.type in QUANTS | {I32}:
        x = t.o.Where(t.o.IsNaN(x), 0.0, x) if source in FLOATS else x
        limits = np.iinfo(out.dtype)
        x = t.o.Clip(t.cast(x, np.float64), np.float64(limits.min), np.float64(limits.max))
    t.put(x if source == out.type else halved(t, t.cast(x, engine_dtype(out))))


@entry("QUANTIZE", types=FLOATS)
@entry("DEQUANTIZE", types=QUANTS | {Q8SYMM, Q8PC})
def converted(t: OnnxTask) -> None:
    if not (t.name == "DEQUANTIZE" and folded(t)):
        y = t.real("input")
        t.give(halved(t, y) if t.name == "DEQUANTIZE" else t.o.Where(t.o.IsNaN(y), 0.0, y))


def folded(t: OnnxTask) -> bool:
    """Whether the output is a constant: weights that a model stores in another type."""
    data = t.known("input")
    if data is not None:
        with np.errstate(over="ignore"):  # float16 overflows to infinity
            data = decode(t.a.input, data).astype(t.a.out.dtype).astype(np.float32, copy=False)
        t.graph.fold(t.operation.outputs[0], data)
    return data is not None


def halved(t: OnnxTask, y: str) -> str:
    """Round numbers to float16 if that is the output's type."""
    return t.cast(t.cast(y, np.float16), np.float32) if t.a.out.type == F16 else y
