"""Entries of operations on single elements: arithmetic, comparisons, logic, activations, conversions."""

import math

import numpy as np

from nnhal.drivers.litert.common import BEYOND_XNNPACK, activation, require_bound
from nnhal.drivers.litert.graph import FLOATS, QUANTS, Tensor
from nnhal.drivers.litert.task import Task, entry
from nnhal.ops.schema import B8, F16, I32, Q8PC, Q8SYMM

NUMBERS = FLOATS | QUANTS | {I32}
COARSEST_SWISH = 128  # input scale of a quantised HARD_SWISH


def pair(t: Task, first: str = "input1", second: str = "input2") -> list[Tensor]:
    """Two tensors; LiteRT broadcasts them against each other as NNAPI does."""
    return [t.x(first), t.x(second)]


@entry("ADD", "SUB", "MUL", types=NUMBERS)
def arithmetic(t: Task) -> None:
    """Broadcasting, with a fused activation. LiteRT's difference has room for coarser inputs than its sum."""
    inputs = pair(t)
    if t.name != "MUL":
        coarsest = max(x.value.scale for x in inputs)
        t.require_scale(coarsest if t.name == "ADD" else coarsest / 1024, t.out.value)
    t.emit(t.name, inputs, t.out, t.name.title(), fusedActivationFunction=activation(t))


@entry("DIV", types=FLOATS | {I32})
def divide(t: Task) -> None:
    """Integers are divided towards minus infinity, which TFLite calls another operation."""
    if t.a.T != I32:
        t.emit("DIV", pair(t), t.out, "Div", fusedActivationFunction=activation(t))
        return
    safe = not np.isin(t.array("input2"), (0, -1)).any()
    t.require(safe, "LiteRT fails on an integer division by 0, and the least integer by -1 ends the process")
    t.emit("FLOOR_DIV", pair(t), t.out)


@entry("MAXIMUM", "MINIMUM", types=NUMBERS)
def extreme(t: Task) -> None:
    """LiteRT compares stored values, so quantised inputs are brought to the output's scale first."""
    inputs = [t.requantised(x, t.out.value) for x in pair(t)]
    t.emit(t.name, inputs, t.out)


@entry("POW", types=FLOATS)
def power(t: Task) -> None:
    """Broadcasting."""
    t.emit("POW", pair(t, "base", "exponent"), t.out)


@entry("PRELU")
def prelu(t: Task) -> None:
    """Alpha may be broadcast, the input may not."""
    t.require(t.x("input").value.known == t.out.value.known, "LiteRT broadcasts alpha alone, and the input is smaller")
    t.require_scale(max(1, t.x("alpha").value.scale) * t.x("input").value.scale, t.out.value)
    t.emit("PRELU", pair(t, "input", "alpha"), t.out)


@entry("ABS", "NEG", types=FLOATS | {I32})
@entry("FLOOR", "LOG", "SIN", "SQRT", types=FLOATS)
@entry("RELU", "LOGISTIC", "TANH")
def unary(t: Task) -> None:
    """One input, no options."""
    t.emit(t.name, [t.x("input")], t.out)


@entry("RSQRT")
def reciprocal_root(t: Task) -> None:
    """Quantised ones by real values; what is below 0 gives the greatest value then, as 0 does."""
    x = t.dequantised(t.x("input"))
    if t.a.T in QUANTS:
        positive = t.temporary(x.value)
        t.emit("RELU", [x], positive)
        x = positive
    t.emit("RSQRT", [x], t.dequantised_out(t.out))


@entry("RELU1", "RELU6")
def clipped(t: Task) -> None:
    """Clipped on both sides."""
    require_bound(t)
    t.emit("RELU6" if t.name == "RELU6" else "RELU_N1_TO_1", [t.x("input")], t.out)


@entry("HARD_SWISH")
def hard_swish(t: Task) -> None:
    """LiteRT's quantised kernel has 16 bits for x / 3, and rescales downwards only."""
    scale = t.x("input").value.scale
    t.require(scale < COARSEST_SWISH, f"input scale {scale:g} is too coarse for LiteRT, must be below {COARSEST_SWISH}")
    t.require_scale(2 * scale, t.out.value)
    t.emit(t.name, [t.x("input")], t.out)


@entry("EXP", types=FLOATS)
def exp(t: Task) -> None:
    """XNNPACK's is off by up to 32 units in the last place above 8. It takes no tensors of 7 dimensions: LiteRT's own
    kernel does, and is exact to one unit.
    """
    shape = (*(1,) * BEYOND_XNNPACK, math.prod(t.out.value.known))
    x, y = t.temporary(t.out.value, shape=shape), t.temporary(t.out.value, shape=shape)
    t.reshape(t.x("input"), x)
    t.emit("EXP", [x], y)
    t.reshape(y, t.out)


@entry("ELU", types=FLOATS)
def elu(t: Task) -> None:
    """TFLite's ELU has no alpha."""
    t.require(t.a.alpha == 1, f"alpha is {t.a.alpha:g}, LiteRT's kernel has 1")
    t.emit("ELU", [t.x("input")], t.out)


@entry("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", types=NUMBERS | {B8})
def compare(t: Task) -> None:
    """Booleans become numbers where order counts. Quantised values are compared as real ones: the quantised kernels end
    the process where a scale is 1 or more.
    """
    inputs = [t.dequantised(x) for x in pair(t)]
    if t.a.T == B8 and t.name not in ("EQUAL", "NOT_EQUAL"):
        inputs = [t.cast(x, I32) for x in inputs]
    t.emit(t.name, inputs, t.out)


@entry("LOGICAL_AND", "LOGICAL_OR", types=frozenset((B8,)))
def logical(t: Task) -> None:
    """Broadcasting."""
    t.emit(t.name, pair(t), t.out)


@entry("LOGICAL_NOT", types=frozenset((B8,)))
def logical_not(t: Task) -> None:
    """One input."""
    t.emit(t.name, [t.x("input")], t.out)


@entry("SELECT", types=NUMBERS)
def select(t: Task) -> None:
    """All three have one shape; quantised inputs are brought to the output's scale."""
    choices = [t.requantised(t.x(name), t.out.value) for name in ("input1", "input2")]
    t.emit("SELECT", [t.x("condition"), *choices], t.out)


@entry("CAST", types=NUMBERS | {B8, Q8SYMM})
def cast(t: Task) -> None:
    """Stored values are converted, whatever scale they have; what does not fit into 8 bits is saturated."""
    x, kind = t.x("input"), t.a.out.type
    if kind == x.value.type or (kind in FLOATS and x.value.type in FLOATS):
        rounded = kind != F16 or x.value.type == F16 or t.leaves(0)
        t.require(
            rounded, "rounding to float16 within the model is left out here, where float16 is computed as float32"
        )
        t.copy(x, 0)
        return
    if kind in QUANTS:
        limits = np.iinfo(t.a.out.dtype)
        for bound, limit in (("MAXIMUM", limits.min), ("MINIMUM", limits.max)):
            clipped = t.temporary(x.value)
            t.emit(bound, [x, t.constant(limit, np.int32 if x.value.type == I32 else np.float32)], clipped)
            x = clipped
    t.emit("CAST", [x], t.out)


@entry("QUANTIZE", types=FLOATS)
@entry("DEQUANTIZE", types=QUANTS | {Q8SYMM, Q8PC})
def quantise(t: Task) -> None:
    """From real values to stored ones, and back."""
    t.emit(t.name, [t.x("input")], t.out)
