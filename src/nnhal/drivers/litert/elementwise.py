"""Entries of operations on single elements: arithmetic, comparisons, logic, activations, conversions."""

import math

import numpy as np

from nnhal.drivers.kit.numbers import has_many_ties
from nnhal.drivers.litert import quantisation as quant
from nnhal.drivers.litert.common import activation, require_bound
from nnhal.drivers.litert.graph import FLOATS, QUANTS, EngineTensor
from nnhal.drivers.litert.limits import BEYOND_XNNPACK, product_of_scales, require_scale
from nnhal.drivers.litert.task import Task, entry, reach
from nnhal.ops.schema import B8, F16, F32, I32, Q8, Q8PC, Q8SYMM

NUMBERS = FLOATS | QUANTS | {I32}
STEEPEST_SUM = 127  # LiteRT's own sum has 16 bits for quantisation steps of the output, 255 of each scale
FINEST_SWISH = 2.0**-20  # and the input scale from which it has them
FLATTEST_SWISH = 2.0**-7  # the quotient of scales from which LiteRT's quantised HARD_SWISH shifts by less than 15 bits
COARSEST_SWISH = 128  # the input scale of a quantised HARD_SWISH
FAR = 1024.0  # beyond it LOGISTIC is 0 or 1
GREAT = 2.0**125  # from about here on some of XNNPACK's functions fail


def pair(t: Task, first: str = "input1", second: str = "input2") -> list[EngineTensor]:
    """Return two tensors that LiteRT broadcasts as NNAPI does.

    If the result has one element and more dimensions, LiteRT would give it those of the other tensor.
    """
    inputs = [t.x(first), t.x(second)]
    ranks = [0 if x.value.shape is None else x.value.rank for x in inputs]
    low, high = (0, 1) if ranks[0] < ranks[1] else (1, 0)
    if ranks[low] == ranks[high] or set(inputs[high].value.dims) != {1} or None in inputs[low].value.dims:
        return inputs
    lifted = t.temporary(inputs[low].value, shape=(1,) * (ranks[high] - ranks[low]) + inputs[low].value.known)
    t.reshape(inputs[low], lifted)
    inputs[low] = lifted
    return inputs


@entry("ADD", "SUB", "MUL", types=NUMBERS, exact=True)
def arithmetic(t: Task) -> None:
    """Write it with broadcasting and a fused activation. LiteRT's difference holds coarser inputs than its sum.

    XNNPACK rounds halves of a quantisation step upwards in both, and to even in products. If scales make halves, real
    values are computed.
    """
    inputs, out = pair(t), t.out
    scales = [x.value.scale for x in inputs]
    if t.a.T in QUANTS and t.name == "MUL":
        factor = product_of_scales(*scales) / t.out.value.scale
        most = reach(inputs[0].value) * reach(inputs[1].value) * factor + 255
        t.require(
            not t.exact or most < 2**15, "LiteRT's own product has only 16 bits for the output's quantisation steps"
        )
    elif t.name == "ADD":
        alike = inputs[0].value.dims == inputs[1].value.dims
        t.require(
            not (t.exact and t.a.T == Q8) or alike,
            "LiteRT's own sum of unsigned tensors cuts off bits, depending on the shape",
        )
        require_scale(sum(scales), t.out.value, STEEPEST_SUM)
    elif t.name == "SUB":
        require_scale(max(scales) / 1024, t.out.value)
    multiples = [math.prod(scales)] if t.name == "MUL" else scales
    if t.a.T in QUANTS and not t.exact and has_many_ties(multiples, out.value.scale):
        inputs, out = [quant.dequantised(t, x) for x in inputs], quant.dequantised_out(t, out)
    t.emit(t.name, inputs, out, t.name.title(), fusedActivationFunction=activation(t))


@entry("DIV", types=FLOATS | {I32})
def divide(t: Task) -> None:
    """Divide integers towards minus infinity, which is another operation in TFLite."""
    if t.a.T != I32:
        t.emit("DIV", pair(t), t.out, "Div", fusedActivationFunction=activation(t))
        return
    safe = not np.isin(t.array("input2"), (0, -1)).any()
    t.require(safe, "LiteRT fails on an integer division by 0, and the least integer by -1 ends the process")
    t.emit("FLOOR_DIV", pair(t), t.out)


@entry("MAXIMUM", "MINIMUM", types=NUMBERS, exact=True)
def extreme(t: Task) -> None:
    """Convert quantised inputs to the output's scale first, because LiteRT compares stored values.

    LiteRT's kernels return the second of a NaN and a number, so a first one that is NaN is selected afterwards.
    """
    first, second = (quant.requantised(t, x, t.out.value) for x in pair(t))
    if t.a.T not in FLOATS:
        t.emit(t.name, [first, second], t.out)
        return
    better = t.temporary(t.out.value, type=B8)
    chosen = t.temporary(t.out.value)
    t.emit("GREATER" if t.name == "MAXIMUM" else "LESS", [first, second], better)
    t.emit("SELECT_V2", [better, first, second], chosen)
    t.emit("SELECT_V2", [missing(t, first), first, chosen], t.out)


def missing(t: Task, x: EngineTensor) -> EngineTensor:
    """Return whether each element of a tensor is NaN."""
    y = t.temporary(x.value, type=B8)
    t.emit("NOT_EQUAL", [x, x], y)
    return y


def without_nan(t: Task, x: EngineTensor, instead: float) -> EngineTensor:
    """Return a tensor of real numbers with another number for NaN."""
    y = t.temporary(x.value)
    t.emit("SELECT_V2", [missing(t, x), t.constant(instead, np.float32), x], y)
    return y


@entry("POW", types=FLOATS)
def power(t: Task) -> None:
    """Write it with broadcasting."""
    t.emit("POW", pair(t, "base", "exponent"), t.out)


@entry("PRELU")
def prelu(t: Task) -> None:
    """Write several operators: LiteRT broadcasts alpha, but not the input.

    XNNPACK, which supports constant alphas, treats -0 as negative. Quantised tensors use real values: LiteRT's own
    kernel for them is slow, and rounds to one side.
    """
    sizes, alphas = t.x("input").value.dims, t.x("alpha").value.dims
    behind = zip(reversed(sizes), reversed(alphas), strict=False)
    alone = sizes == t.out.value.dims and all(d is not None or a == 1 for d, a in behind)
    t.require(alone, "LiteRT broadcasts only alpha, but the input is smaller")
    x, slope = (quant.dequantised(t, each) for each in pair(t, "input", "alpha"))
    slopes = t.a.alpha.data
    if t.a.T in FLOATS and slopes is not None and not np.isfinite(slopes).all():
        positive = t.temporary(x.value)
        t.emit("ADD", [x, t.constant(0, np.float32)], positive, "Add")
        x = positive
    t.emit("PRELU", [x, slope], quant.dequantised_out(t, t.out))


@entry("ABS", "NEG", types=FLOATS | {I32})
@entry("FLOOR", types=FLOATS)
@entry("RELU", "TANH", exact=True)
def unary(t: Task) -> None:
    """Write an operator with one input and no options."""
    t.emit(t.name, [t.x("input")], t.out)


@entry("RSQRT")
def reciprocal_root(t: Task) -> None:
    """Use real values for quantised tensors, for which XNNPACK returns NaN for 0.

    Values below 0 give the greatest value then, as 0 does.
    """
    x = quant.dequantised(t, t.x("input"))
    if t.a.T in QUANTS:
        positive = t.temporary(x.value)
        t.emit("RELU", [x], positive)
        x = positive
    out = quant.dequantised_out(t, t.out)
    near, found, infinite = t.temporary(x.value, type=B8), t.temporary(out.value), t.temporary(out.value)
    size = t.temporary(x.value)
    t.emit("RSQRT", [x], found)
    t.emit("ABS", [x], size)
    t.emit("LESS", [size, t.constant(np.finfo(np.float32).tiny, np.float32)], near)
    t.emit("DIV", [t.constant(1.0, np.float32), x], infinite, "Div")
    t.emit("SELECT_V2", [near, infinite, found], out)


@entry("LOGISTIC", exact=True)
def logistic(t: Task) -> None:
    """Clip large numbers, whose result is 0 or 1: XNNPACK's kernel returns NaN beyond 1e26.

    The factor is a power of two, which changes no digit. Unlike MAXIMUM and MINIMUM this clipping keeps NaN.
    """
    x = t.x("input")
    if t.a.T == F32:
        x = quant.clipped(t, x, FAR)
    t.emit(t.name, [x], t.out)


@entry("RELU1", "RELU6", exact=True)
def clipped(t: Task) -> None:
    """Clip on both sides."""
    require_bound(t)
    t.emit("RELU6" if t.name == "RELU6" else "RELU_N1_TO_1", [t.x("input")], t.out)


@entry("HARD_SWISH", exact=True)
def hard_swish(t: Task) -> None:
    """Use real values for quantised tensors, because LiteRT's own kernel cuts off a fraction.

    Exact numerics are those of that kernel: it has 16 bits for x / 3 and for the quotient of scales, and rescales only
    downwards.
    """
    x, out = t.x("input"), t.out
    if not t.exact:
        t.emit(t.name, [quant.dequantised(t, x)], quant.dequantised_out(t, out))
        return
    scale = x.value.scale
    t.require(scale < COARSEST_SWISH, f"input scale {scale:g} is too coarse for LiteRT, must be below {COARSEST_SWISH}")
    require_scale(2 * scale, out.value)
    flat = out.value.quantised and (scale / out.value.scale < FLATTEST_SWISH or scale < FINEST_SWISH)
    t.require(not flat, "the quotient of scales exceeds 16 bits, must fit for LiteRT's kernel under exact numerics")
    t.emit(t.name, [x], out)


@entry("EXP", "SIN", types=FLOATS)
def exact(t: Task) -> None:
    """Use the kernels of LiteRT itself, which are exact to one unit in the last place.

    XNNPACK's EXP is off by up to 32 units above 8, its SIN from 6e6 on. XNNPACK does not support tensors of 7
    dimensions, for which LiteRT's kernels run.
    """
    sizes = t.out.value.dims
    shape = (*(1,) * BEYOND_XNNPACK, None if None in sizes else math.prod(t.out.value.known))
    x, y = t.temporary(t.out.value, shape=shape), t.temporary(t.out.value, shape=shape)
    t.reshape(t.x("input"), x)
    t.emit(t.name, [x], y)
    t.reshape(y, t.out)


@entry("LOG", "SQRT", types=FLOATS)
def of_great_numbers(t: Task) -> None:
    """Compute LOG and SQRT of great numbers from a quarter of them.

    XNNPACK's LOG is infinite in the greatest octave, and its SQRT wrong by half. On some processors its LOG of infinity
    and of NaN is a number: both are returned unchanged.
    """
    x, kind = t.x("input"), t.out.value
    quarter, less, great, small = (t.temporary(kind) for _ in range(4))
    beyond = t.temporary(kind, type=B8)
    t.emit("MUL", [x, t.constant(0.25, np.float32)], quarter, "Mul")
    t.emit(t.name, [quarter], less)
    if t.name == "LOG":
        t.emit("ADD", [less, t.constant(math.log(4), np.float32)], great, "Add")
    else:
        t.emit("MUL", [less, t.constant(2.0, np.float32)], great, "Mul")
    t.emit(t.name, [x], small)
    t.emit("GREATER", [x, t.constant(GREAT, np.float32)], beyond)
    if t.name == "SQRT":
        t.emit("SELECT_V2", [beyond, great, small], t.out)
        return
    found, finite = t.temporary(kind), t.temporary(kind, type=B8)
    t.emit("SELECT_V2", [beyond, great, small], found)
    t.emit("LESS", [x, t.constant(np.inf, np.float32)], finite)
    t.emit("SELECT_V2", [finite, found, x], t.out)


@entry("ELU", types=FLOATS)
def elu(t: Task) -> None:
    """Require an alpha of 1: TFLite's ELU has none."""
    t.require(t.a.alpha == 1, f"alpha is {t.a.alpha:g}, must be 1 for LiteRT's kernel")
    t.emit("ELU", [t.x("input")], t.out)


@entry("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", types=NUMBERS | {B8})
def compare(t: Task) -> None:
    """Convert booleans to numbers if order counts, and quantised values to real ones.

    The quantised kernels end the process if a scale is 1 or more.
    """
    inputs = [quant.dequantised(t, x) for x in pair(t)]
    if t.a.T == B8 and t.name not in ("EQUAL", "NOT_EQUAL"):
        inputs = [quant.cast(t, x, I32) for x in inputs]
    t.emit(t.name, inputs, t.out)


@entry("LOGICAL_AND", "LOGICAL_OR", types=frozenset((B8,)))
def logical(t: Task) -> None:
    """Write it with broadcasting."""
    t.emit(t.name, pair(t), t.out)


@entry("LOGICAL_NOT", types=frozenset((B8,)))
def logical_not(t: Task) -> None:
    """Write an operator with one input."""
    t.emit(t.name, [t.x("input")], t.out)


@entry("SELECT", types=NUMBERS, exact=True)
def select(t: Task) -> None:
    """Convert quantised inputs to the output's scale; all three inputs have one shape."""
    choices = [quant.requantised(t, t.x(name), t.out.value) for name in ("input1", "input2")]
    t.emit("SELECT", [t.x("condition"), *choices], t.out)


@entry("CAST", types=NUMBERS | {B8, Q8SYMM}, exact=True)
def cast(t: Task) -> None:
    """Convert stored values, regardless of the scale; those outside 8 bits are saturated."""
    x, kind = t.x("input"), t.a.out.type
    if kind == F16 and x.value.type in (F32, I32) and not t.leaves(0):
        halved(t, x, t.out)
        return
    if kind == x.value.type or (kind in FLOATS and x.value.type in FLOATS):
        if (x.value.scale, x.value.zero_point) == (t.a.out.scale, t.a.out.zero_point):
            t.copy(x, 0)
        else:
            t.reshape(x, t.out)
        return
    if kind == I32 or kind in QUANTS:
        x = without_nan(t, x, 0.0) if x.value.type in FLOATS else x
    if kind in QUANTS:
        limits = np.iinfo(t.a.out.dtype)
        for bound, limit in (("MAXIMUM", limits.min), ("MINIMUM", limits.max)):
            clipped = t.temporary(x.value)
            t.emit(bound, [x, t.constant(limit, np.int32 if x.value.type == I32 else np.float32)], clipped)
            x = clipped
    t.emit("CAST", [x], t.out)


@entry("QUANTIZE", types=FLOATS, exact=True)
@entry("DEQUANTIZE", types=QUANTS | {Q8SYMM, Q8PC}, exact=True)
def quantise(t: Task) -> None:
    """Convert real values to stored ones, NaN to 0, or back."""
    if t.name == "QUANTIZE":
        x = t.x("input")
        quant.quantise(t, x if x.index in t.graph.numbers else without_nan(t, x, 0.0), t.out)
        return
    source = t.a.input
    kept = t.graph.dynamic_range and t.operation.outputs[0] not in t.graph.model.main.outputs
    if kept and source.data is not None and t.a.out.type == F32 and not source.zero_point:
        t.graph.defer_constant(t.operation.outputs[0], t.x("input"), lambda: dequantise(t))
    else:
        dequantise(t)


def dequantise(t: Task) -> None:
    """Write the real values of a tensor."""
    x, narrow = t.x("input"), t.out.value.type == F16 and not t.leaves(0)
    exact = t.temporary(t.out.value) if narrow else t.out
    if t.a.input.data is not None and t.a.input.zero_point:
        t.reshape(quant.dequantised(t, x), exact)
    else:
        t.emit(t.name, [x], exact)
    t.graph.numbers.update((exact.index, t.out.index))
    if narrow:
        halved(t, exact, t.out)


def halved(t: Task, x: EngineTensor, out: EngineTensor) -> None:
    """Round numbers to float16: inside the graph it is float32, and only the model's ends round."""
    half = EngineTensor(t.graph.writer.tensor("FLOAT16", out.value.shape), out.value)
    t.emit("CAST", [x], half)
    t.emit("DEQUANTIZE", [half], out)
