"""Entries of elementwise operators: arithmetic, comparisons, selection, activations, conversions."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nnhal.base.codes import Activation, OperandType
from nnhal.base.operands import Array, Value
from nnhal.frontends.common import integer_ranges as spans
from nnhal.frontends.common.element_moves import broadcast
from nnhal.frontends.common.folding import elementwise, exact, numbers, quotient, require_foldable
from nnhal.frontends.common.functions import floor_remainder, modulo, power, truncated_quotient
from nnhal.frontends.common.operators import Fold
from nnhal.frontends.common.terms import PLAIN_SCALE, UNTYPED, Term, constant, stored
from nnhal.frontends.common.writing import ASYMMETRIC, FLOATS, MOST_DIMENSIONS, broadcast_shapes, filled, number
from nnhal.frontends.tflite.file import DTYPES
from nnhal.frontends.tflite.task import FUSED, MOST_FOLDED, OperatorTask, operator
from nnhal.ops.schema import B8, F16, F32, I32, Q8, Q8S

BOUNDS = {0: (None, None), 1: (0, None), 2: (-1, 1), 3: (0, 6)}  # of fused activations
MOST_CLASSES = 1 << 20  # of ONE_HOT, whose class numbers become a constant
SMALL = 4096  # elements of a constant that is repeated at import, not at execution


def plain(function: Callable[..., Any], options: str = "") -> Fold:
    """Wrap a function of the arrays alone. options: those that may fuse an activation."""

    def folded(t: OperatorTask, *xs: Array) -> Any:
        require_foldable(not options or t.options(options)("FusedActivationFunction") == 0)
        return elementwise(function, MOST_FOLDED)(t, *xs)

    return folded


@operator("ADD", inputs=2, real=True, single=True, fold=plain(exact(np.add), "AddOptions"), span=spans.added)
@operator("SUB", inputs=2, real=True, single=True, fold=plain(exact(np.subtract), "SubOptions"), span=spans.subtracted)
@operator("MUL", inputs=2, real=True, single=True, fold=plain(exact(np.multiply), "MulOptions"), span=spans.multiplied)
def arithmetic(t: OperatorTask) -> None:
    """Write arithmetic with a fused activation."""
    combined(t, t.name, t.options(f"{t.name.title()}Options")("FusedActivationFunction"))


@operator("DIV", inputs=2, real=True, single=True, becomes="DIV; of integers corrected to round towards "
          "0",
          fold=plain(quotient, "DivOptions"))  # fmt: skip
def divide(t: OperatorTask) -> None:
    """Round integer quotients towards 0, as TFLite does; NNAPI rounds down."""
    x, y, code = t.x(0), t.x(1), t.options("DivOptions")("FusedActivationFunction")
    if x.value.type == I32:
        bounded(t, code, truncated_quotient(t, x, y))
    else:
        t.fused(code, "DIV", x, y)


def combined(t: OperatorTask, name: str, code: int) -> None:
    """Combine two tensors, with a fused activation, which NNAPI lacks for integers."""
    x, y = t.x(0), t.x(1)
    if x.value.type == I32:
        bounded(t, code, t.make(name, x, y, activation=0))
    else:
        t.fused(code, name, x, y)


def bounded(t: OperatorTask, code: int, term: Term) -> None:
    """Set the operator's output to integers with a fused activation."""
    t.require(code in BOUNDS, f"activation is {FUSED.get(code, code)}, which integers do not have")
    for name, bound in zip(("MAXIMUM", "MINIMUM"), BOUNDS[code], strict=True):
        if bound is not None:
            term = t.make(name, term, t.scalar(bound, term))
    t.result(0, term)


def folded_floor_quotient(x: Array, y: Array) -> Any:
    require_foldable((y != 0).all())
    return np.floor(x / y) if x.dtype.kind == "f" else x.astype(np.int64) // y


@operator("FLOOR_DIV", inputs=2, single=True, integral=True, fold=plain(folded_floor_quotient),
          becomes="DIV, which rounds down; FLOOR behind it for floats")  # fmt: skip
def floor_divide(t: OperatorTask) -> None:
    """Write DIV, which rounds down for integers."""
    x, y = t.x(0), t.x(1)
    if x.value.type == I32:
        t.give("DIV", x, y, activation=0)
    else:
        t.give("FLOOR", t.make("DIV", x, y, activation=0))


def folded_modulo(x: Array, y: Array) -> Any:
    require_foldable(x.dtype.kind == "i" and (y != 0).all())
    return x.astype(np.int64) % y


@operator("FLOOR_MOD", inputs=2, single=True, integral=True, fold=plain(folded_modulo),
          span=spans.of_values(lambda x, y: (min(y[0] + 1, 0), max(y[1] - 1, 0))),
          becomes="SUB, MUL and DIV: x - floor(x / y) * y, of floats with an exact product")  # fmt: skip
def floor_modulo(t: OperatorTask) -> None:
    """Write x - floor(x / y) * y."""
    x, y = t.x(0), t.x(1)
    if x.value.type == F32:
        t.result(0, floor_remainder(t, x, y))
        return
    product = t.make("MUL", t.make("DIV", x, y, activation=0), y, activation=0)
    t.give("SUB", x, product, activation=0)


def folded_sum(_: OperatorTask, *xs: Array) -> Any:
    return sum(x.astype(object) if x.dtype.kind in "iu" else x for x in xs)


@operator("ADD_N", inputs=(1, None), single=True, fold=folded_sum, becomes="ADD, from the first to the last")
def add_many(t: OperatorTask) -> None:
    """Add from the first to the last."""
    total, *others = t.xs()
    if not others:
        t.same(total)
        return
    for x in others[:-1]:
        total = t.make("ADD", total, x, activation=0)
    t.give("ADD", total, others[-1], activation=0)


@operator("SQUARE", real=True, single=True, becomes="MUL")
def square(t: OperatorTask) -> None:
    t.give("MUL", t.x(0), t.x(0), activation=0)


@operator("SQUARED_DIFFERENCE", inputs=2, real=True, single=True, becomes="SUB, MUL")
def squared_difference(t: OperatorTask) -> None:
    """Require real values, because a quantised difference would be rounded too."""
    x, y = t.x(0), t.x(1)
    t.require(x.value.type not in ASYMMETRIC, "is rounded twice when it is composed")
    difference = t.make("SUB", x, y, activation=0)
    t.give("MUL", difference, difference, activation=0)


@operator("MAXIMUM", inputs=2, real=True, single=True, fold=plain(np.maximum), span=spans.of_all)
@operator("MINIMUM", inputs=2, real=True, single=True, fold=plain(np.minimum), span=spans.of_all)
@operator("EQUAL", inputs=2, real=True, single=True, fold=plain(np.equal), span=spans.of_truth)
@operator("NOT_EQUAL", inputs=2, real=True, single=True, fold=plain(np.not_equal), span=spans.of_truth)
@operator("LESS", inputs=2, real=True, single=True, fold=plain(np.less), span=spans.of_truth)
@operator("LESS_EQUAL", inputs=2, real=True, single=True, fold=plain(np.less_equal), span=spans.of_truth)
@operator("GREATER", inputs=2, real=True, single=True, fold=plain(np.greater), span=spans.of_truth)
@operator("GREATER_EQUAL", inputs=2, real=True, single=True, fold=plain(np.greater_equal), span=spans.of_truth)
@operator("LOGICAL_AND", inputs=2, single=True, fold=plain(np.logical_and))
@operator("LOGICAL_OR", inputs=2, single=True, fold=plain(np.logical_or))
def pair(t: OperatorTask) -> None:
    """Combine two tensors with NNAPI's broadcasting."""
    t.give(t.name, t.x(0), t.x(1))


@operator("POW", inputs=2, single=True, becomes="POW; of integers, products of squares")
def raised(t: OperatorTask) -> None:
    """Write POW, which NNAPI has for floats only."""
    x, y = t.x(0), t.x(1)
    if x.value.type == I32:
        t.result(0, power(t, x, y))
    else:
        t.give("POW", x, y)


@operator("EXP", "LOG", "LOGISTIC", "RSQRT", "SIN", "SQRT", "TANH", "HARD_SWISH", real=True, single=True)
@operator("ABS", real=True, single=True, fold=plain(exact(np.abs)), span=spans.absolute)
@operator("FLOOR", real=True, single=True, fold=plain(np.floor))
@operator("NEG", real=True, single=True, fold=plain(exact(np.negative)), span=spans.negated)
@operator("LOGICAL_NOT", single=True, fold=plain(np.logical_not))
def unary(t: OperatorTask) -> None:
    t.give(t.name, t.x(0))


@operator("RELU", "RELU6", real=True, single=True)
@operator("RELU_N1_TO_1", to="RELU1", real=True, single=True)
def relu(t: OperatorTask) -> None:
    """Write RELU, which keeps the scale in NNAPI; for another scale, fuse the activation into `x + 0`."""
    name, x, value = t.facts.to or t.name, t.x(0), t.out()
    if x.value.type in ASYMMETRIC and (x.value.scale, x.value.zero_point) != (value.scale, value.zero_point):
        zero = constant(x.value, np.array([stored(x.value)], x.value.dtype))
        t.give("ADD", x, zero, activation=Activation[name])
    else:
        t.give(name, x)


@operator("RELU_0_TO_1", real=True, single=True, becomes="RELU1, RELU")
def relu_to_one(t: OperatorTask) -> None:
    """Write RELU_0_TO_1: at least 0, at most 1."""
    x = t.x(0)
    t.require(x.value.type not in ASYMMETRIC, "is rounded twice when it is composed")
    t.give("RELU", t.make("RELU1", x))


@operator("CEIL", single=True, fold=plain(np.ceil), becomes="NEG, FLOOR, NEG")
def ceil(t: OperatorTask) -> None:
    """Write -floor(-x)."""
    t.give("NEG", t.make("FLOOR", t.make("NEG", t.x(0))))


@operator("ELU", real=True, single=True)
def elu(t: OperatorTask) -> None:
    """Write ELU; TFLite's alpha is 1."""
    t.give("ELU", t.x(0), 1.0)


@operator("PRELU", inputs=2, real=True, single=True)
def prelu(t: OperatorTask) -> None:
    """Write PRELU; alpha broadcasts."""
    t.give("PRELU", t.x(0), t.real(t.x(1)) if t.x(0).value.type == F32 else t.x(1))


@operator("LEAKY_RELU", real=True, single=True, becomes="PRELU with a constant")
def leaky_relu(t: OperatorTask) -> None:
    """Write PRELU with a constant: a quantised one holds alpha exactly, as one quantisation step."""
    x, alpha = t.x(0), t.options("LeakyReluOptions")("Alpha")
    t.require(math.isfinite(alpha), f"alpha is {alpha}, must be finite")
    if x.value.type in ASYMMETRIC:
        zero, step = (1, int(np.sign(alpha)))
        value = Value(x.value.type, None, abs(alpha) or PLAIN_SCALE, zero)
        slope = constant(value, np.array([zero + step], value.dtype))
    else:
        slope = t.scalar(alpha, x)
    t.give("PRELU", x, slope)


# ----------------------------------------------------------------------------------------------------------- conversions


def folded_cast(t: OperatorTask, x: Array) -> Any:
    """Cast: floats to integers towards 0, numbers to whether they are not 0."""
    kind = t.kind()
    if kind in ("FLOAT32", "BOOL"):
        return x.astype(DTYPES[kind])
    require_foldable(x.dtype.kind != "f" or (np.isfinite(x).all() and np.abs(x).max(initial=0) < 2**31))
    return np.trunc(x).astype(np.int64) if x.dtype.kind == "f" else x.astype(np.int64)


@operator("CAST", single=True, integral=True, fold=folded_cast, span=spans.unchanged,
          becomes="CAST; of booleans NOT_EQUAL and SELECT; of integers to UINT8 their last byte, by DIV")  # fmt: skip
def cast(t: OperatorTask) -> None:
    """Convert stored values. Conversions that NNAPI lacks use comparison, selection, or a scale of 1."""
    parts, value = t.raw(0).parts, t.declared()
    x = parts[0] if parts else t.x(0)
    kind, to = x.value.type, value.type
    plain = (x.value.scale, x.value.zero_point) == (PLAIN_SCALE, 0)
    if to == B8 and kind in (*FLOATS, I32):
        t.give("NOT_EQUAL", x, t.scalar(0, x))
    elif kind == B8 and to in (*FLOATS, I32):
        shape = t.known(x)
        t.give("SELECT", x, *[filled(t, shape, n, OperandType(to)) for n in (1, 0)])
    elif kind == Q8S and to in FLOATS and plain:
        t.give("DEQUANTIZE", x)
    elif kind == I32 and to == Q8 and not (x.span and 0 <= x.span[0] <= x.span[1] <= 255):
        t.give("CAST", modulo(t, x, 256))  # NNAPI's CAST saturates
    else:
        t.give("CAST", x)


@operator("DEQUANTIZE", single=True)
def dequantise(t: OperatorTask) -> None:
    """Convert float16 to float32, which is CAST in NNAPI.

    Constants of a type that NNAPI lacks, such as zero points per channel, become real at import, and so do constants of
    more than four dimensions: filters that have to be known.
    """
    raw, tensor = t.raw(0), t.graph.source.tensors[t.operator.inputs[0]]
    if raw.value.type == UNTYPED and raw.data is not None and tensor.quant is not None and t.declared().type == F32:
        t.known_result(tensor.quant.real(raw.data))
        return
    if tensor.step:
        t.result(0, saturated(t, t.x(0), tensor.step))
        return
    x = t.x(0)
    if x.value.type == F16 and x.data is not None and x.data.ndim > MOST_DIMENSIONS:
        t.known_result(x.data.astype(np.float32))
        return
    t.give("CAST" if x.value.type in FLOATS else "DEQUANTIZE", x)


@operator("DENSIFY")
def densify(t: OperatorTask) -> None:
    """Return the constant, which was expanded when it was read."""
    t.require(t.raw(0).data is not None, "of a tensor that is computed at execution has no operation in NNAPI")
    t.same(t.x(0))


@operator("QUANTIZE", single=True)
def quantise(t: OperatorTask) -> None:
    """Change the scale through real values, because NNAPI quantises only those."""
    x, tensor = t.real(t.x(0)), t.graph.source.tensors[t.operator.outputs[0]]
    if tensor.step:
        t.result(0, saturated(t, x, tensor.step))
    else:
        t.give("QUANTIZE", x)


def saturated(t: OperatorTask, x: Term, step: float) -> Term:
    """Limit real values to those of 16-bit integers with a scale."""
    limits = np.iinfo(np.int16)
    least = t.make("MAXIMUM", x, t.scalar(limits.min * step, x))
    return t.make("MINIMUM", least, t.scalar(limits.max * step, x))


# ---------------------------------------------------------------------------------------------------------------- choices


def folded_select(t: OperatorTask, condition: Array, x: Array, y: Array) -> Any:
    """Select; a vector of conditions has one for each row of the others."""
    rows_of = condition.ndim == 1 and x.ndim > 1
    return plain(np.where)(t, condition.reshape(-1, *[1] * (x.ndim - 1)) if rows_of else condition, x, y)


@operator("SELECT", inputs=3, becomes="SELECT; of booleans LOGICAL_AND, LOGICAL_OR", fold=folded_select,
          span=spans.of_all)  # fmt: skip
@operator("SELECT_V2", inputs=3, becomes="SELECT; of booleans LOGICAL_AND, LOGICAL_OR", fold=plain(np.where),
          span=spans.of_all)  # fmt: skip
def select(t: OperatorTask) -> None:
    """Select elements; NNAPI's SELECT requires equal shapes, so smaller tensors are repeated first."""
    terms = [t.x(place) for place in range(3)]
    shapes = [term.value.shape for term in terms]
    if len(set(shapes)) > 1:
        sizes = [t.known(term) for term in terms]
        if t.name == "SELECT" and len(sizes[0]) == 1 < len(sizes[1]):  # selects slices of the first dimension
            sizes[0] = (*sizes[0], *[1] * (len(sizes[1]) - 1))
            terms[0] = t.reshaped(terms[0], sizes[0])
        shape = broadcast_shapes(*sizes)
        terms = [broadcast(t, term, shape) for term in terms]
    if terms[1].value.type == B8:
        condition, x, y = terms
        others = t.make("LOGICAL_AND", t.make("LOGICAL_NOT", condition), y)
        t.give("LOGICAL_OR", t.make("LOGICAL_AND", condition, x), others)
    else:
        t.give("SELECT", *terms)


def broadcast_to_moves(_: OperatorTask, x: Array, shape: Array) -> Any:
    return np.broadcast_to(x, numbers(shape))


@operator("BROADCAST_TO", inputs=2, moves=broadcast_to_moves, span=spans.of_all, shape=1, becomes="TILE, or GATHER")
def broadcast_to(t: OperatorTask) -> None:
    """Repeat along dimensions of 1."""
    x, shape = t.x(0), t.ints(1, "shape")
    sizes = (1,) * (len(shape) - len(t.known(x))) + t.known(x)
    fits = len(sizes) == len(shape) and all(s in (1, w) for s, w in zip(sizes, shape, strict=True))
    t.require(fits, f"shape is {shape}, must be one that {list(sizes)} broadcasts to")
    t.give("TILE", t.reshaped(x, sizes), t.integers([w // s if s else 1 for w, s in zip(shape, sizes, strict=True)]))


def folded_filled(_: OperatorTask, dims: Array, value: Array) -> Any:
    require_foldable(min(numbers(dims), default=0) >= 0 and math.prod(numbers(dims)) <= MOST_FOLDED)
    return np.full(numbers(dims), value.reshape(()))


@operator("FILL", inputs=2, fold=folded_filled, span=spans.of_all, shape=0, becomes="FILL, or the value repeated")
def fill(t: OperatorTask) -> None:
    kind, value = t.out().type, t.x(1)
    if t.raw(1).data is not None and kind in (*FLOATS, I32):
        t.give("FILL", t.index(0, "dims"), number(t.number(1, "value"), OperandType(kind)))
    else:
        t.result(0, broadcast(t, value, t.ints(0, "dims") or (1,)))


@operator("ZEROS_LIKE", span=spans.of_all, becomes="a constant, or FILL")
def zeros_like(t: OperatorTask) -> None:
    """Return a constant if it is small."""
    x = t.x(0)
    shape, value = t.known(x), t.out()
    if math.prod(shape) <= SMALL:
        t.known_result(np.full(shape if t.rank(x) else (), stored(value), value.dtype))
    elif value.type in (*FLOATS, I32):
        t.give("FILL", t.integers(shape), number(0, OperandType(value.type)))
    else:
        zero = constant(value, np.full((1,) * len(shape), stored(value), value.dtype))
        t.result(0, broadcast(t, zero, shape))


@operator("ONE_HOT", inputs=4, span=spans.of_all, becomes="EQUAL with 0, 1, .. depth - 1, then SELECT")
def one_hot(t: OperatorTask) -> None:
    """Write SELECT(index == 0, 1, .. depth - 1; on; off)."""
    indices, depth = t.index(0, "indices"), t.integer(1, "depth")
    on, off, value = t.x(2), t.x(3), t.out()
    t.require(0 < depth <= MOST_CLASSES, f"depth is {depth}, must be 1 to {MOST_CLASSES}")
    rank = t.rank(indices)
    axis = t.axis(t.options("OneHotOptions")("Axis"), rank + 1)
    shape = t.known(indices)[:rank]
    steps = np.arange(depth, dtype=np.int32).reshape([depth if i == axis else 1 for i in range(rank + 1)])
    expanded = t.make("EXPAND_DIMS", indices, axis) if rank else indices
    hits = t.make("EQUAL", expanded, constant(Value(I32), steps), like=Value(B8))
    whole = (*shape[:axis], depth, *shape[axis:])
    if value.type == B8:
        both = bool(t.number(2, "on_value")), bool(t.number(3, "off_value"))
        if both[0] == both[1]:
            t.known_result(np.full(whole, both[0]))
        else:
            t.result(0, hits if both[0] else t.make("LOGICAL_NOT", hits))
    else:
        t.give("SELECT", hits, *[broadcast(t, n, whole) for n in (on, off)])
