"""Entries of elementwise nodes: arithmetic, comparisons, selection, activations, conversions."""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from nnhal.base.codes import Activation, OperandType
from nnhal.base.operands import Array, Value
from nnhal.frontends.common import integer_ranges as spans
from nnhal.frontends.common.element_moves import broadcast
from nnhal.frontends.common.folding import elementwise, exact, quotient, require_foldable
from nnhal.frontends.common.functions import RealArithmetic, floor_remainder, power, truncated_quotient
from nnhal.frontends.common.functions import modulo as remainder
from nnhal.frontends.common.functions import plain as combined
from nnhal.frontends.common.integer_ranges import Span
from nnhal.frontends.common.operators import Fold
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.writing import FLOATS, broadcast_shapes, check_count, copied, either, filled, number
from nnhal.frontends.onnx.file import DTYPES, KINDS
from nnhal.frontends.onnx.fusion import fuse_activation, fuse_into_weights
from nnhal.frontends.onnx.graph import TYPES
from nnhal.frontends.onnx.task import MOST_FOLDED, NodeTask, operator
from nnhal.ops.schema import B8, F16, F32, I32, Q8, Q8S

RANGES = {(0.0, math.inf): Activation.RELU, (0.0, 6.0): Activation.RELU6, (-1.0, 1.0): Activation.RELU1}


def floats(t: NodeTask, place: int = 0) -> Term:
    """Return an input of floats."""
    x = t.x(place)
    stored = t.eight and x.value.type in (Q8, Q8S)
    t.require(x.value.type in FLOATS or stored, f"of {x.kind} has no operation in NNAPI, must be FLOAT")
    return x


def single_floats(t: NodeTask) -> Term:
    """Return the first input, FLOAT16 as FLOAT: squares and sums soon exceed the 65,504 of FLOAT16."""
    x = floats(t)
    return t.real(x) if x.value.type == F16 else x


def in_own_type(t: NodeTask, made: Term) -> Term:
    """Convert a result to the type of the first input."""
    kind = t.x(0).value.type
    return made if made.value.type == kind else t.make("CAST", made, like=Value(kind))


def plain(function: Callable[..., Any]) -> Fold:
    """Fold by a function of the arrays alone."""
    return elementwise(function, MOST_FOLDED)


def truth(function: Callable[..., Any]) -> Fold:
    """Fold by a function of the arrays that gives booleans."""
    return lambda t, *xs: (plain(function)(t, *xs), "BOOL")


def many(function: Callable[[Array, Array], Any]) -> Fold:
    """Fold any number of arrays by a function of two."""
    return plain(lambda *xs: reduce(function, xs))


@operator("Add", to="ADD", inputs=2, single=True, fold=plain(exact(np.add)), span=spans.added, on_reals=True)
@operator("Sub", to="SUB", inputs=2, single=True, fold=plain(exact(np.subtract)), span=spans.subtracted, on_reals=True)
@operator("Mul", to="MUL", inputs=2, single=True, fold=plain(exact(np.multiply)), span=spans.multiplied, on_reals=True)
def arithmetic(t: NodeTask) -> None:
    x, y = t.x(0), t.x(1)
    t.require(x.value.type in (*FLOATS, I32), f"of {x.kind} has no operation in NNAPI")
    if x.value.type == F32 and fuse_into_layer(t):
        return
    t.give(t.facts.to, x, y, activation=0)


def fuse_into_layer(t: NodeTask) -> bool:
    """Merge a constant for each channel into the layer before; return whether that was possible."""
    for place, other in ((0, 1), (1, 0)):
        value = t.raw(other).data
        if value is None or t.raw(place).data is not None or (t.name == "Sub" and place):
            continue
        if t.name == "Mul":
            merged = fuse_into_weights(t, place, value, None)
        else:
            merged = fuse_into_weights(t, place, None, -value if t.name == "Sub" else value)
        if merged is not None:
            t.fresh(merged)
            return True
    return False


def within_dividend(x: Span, y: Span) -> Span:
    """Return the range of a quotient: no farther from 0 than the dividend, of either sign."""
    most = max(map(abs, x))
    return -most, most


@operator("Div", inputs=2, single=True, becomes="DIV; of integers corrected to round towards 0", fold=plain(quotient),
          span=spans.of_values(within_dividend))  # fmt: skip
def divide(t: NodeTask) -> None:
    """Round integer quotients towards 0, as ONNX does; NNAPI rounds down."""
    x, y = t.x(0), t.x(1)
    t.require(x.value.type in (*FLOATS, I32), f"of {x.kind} has no operation in NNAPI")
    if x.value.type == I32:
        t.result(0, truncated_quotient(t, x, y))
    else:
        t.give("DIV", x, y, activation=0)


def folded_modulo(t: NodeTask, x: Array, y: Array) -> Any:
    require_foldable(x.dtype.kind == "f" or (y != 0).all())
    return np.fmod(x, y) if t.attr("fmod", 0) else np.mod(x, y)


@operator("Mod", inputs=2, single=True, fold=folded_modulo,
          span=spans.of_values(lambda x, y: (-max(map(abs, y)), max(map(abs, y)))),
          becomes="SUB, MUL and DIV: x - floor(x / y) * y, of floats with an exact product")  # fmt: skip
def modulo(t: NodeTask) -> None:
    """Give the remainder the sign of the divisor; with fmod, that of the dividend."""
    x, y = t.x(0), t.x(1)
    if x.value.type == I32:
        down = truncated_quotient(t, x, y) if t.attr("fmod", 0) else combined(t, "DIV", x, y)
        t.result(0, combined(t, "SUB", x, combined(t, "MUL", down, y)))
        return
    t.require(x.value.type == F32, f"of {x.kind} has no operation in NNAPI")
    rest = floor_remainder(t, t.make("ABS", x), t.make("ABS", y))
    negative = t.make("LESS", x, t.scalar(0, x), like=Value(B8))
    sizes = broadcast_shapes(t.known(x), t.known(y))
    terms = [broadcast(t, each, sizes) for each in (negative, t.make("NEG", rest), rest)]
    if t.attr("fmod", 0):
        t.give("SELECT", *terms, like=x)
        return
    rest = t.make("SELECT", *terms, like=x)
    other = t.make("NOT_EQUAL", negative, t.make("LESS", y, t.scalar(0, y), like=Value(B8)), like=Value(B8))
    left = t.make("NOT_EQUAL", rest, t.scalar(0, x), like=Value(B8))
    wrong = broadcast(t, t.make("LOGICAL_AND", other, left), sizes)
    t.give("SELECT", wrong, t.make("ADD", rest, y, activation=0), rest, like=x)


def folded_power(x: Array, y: Array) -> Any:
    return np.power(x.astype(np.float64), y).astype(x.dtype) if x.dtype.kind == "f" else np.power(x, y)


def powers(x: Span, y: Span) -> Span:
    """Return the range of a power. Negative exponents result in at most 1."""
    most = spans.power(max(map(abs, x)), max(0, y[1]))
    even = y[0] == y[1] and y[0] % 2 == 0
    return (0 if even or x[0] >= 0 else -max(1, most)), max(1, most)


@operator("Pow", inputs=2, single=True, becomes="POW; MUL for squares; of integers, products of squares",
          fold=plain(folded_power), span=spans.of_values(powers))  # fmt: skip
def raised(t: NodeTask) -> None:
    """Give the result the type of the base."""
    x, y = t.x(0), t.x(1)
    one = y.data is not None and y.data.size == 1 and y.data.ndim <= t.rank(x)
    exponent = float(np.asarray(y.data).reshape(-1)[0]) if one else None
    if x.value.type == I32:
        t.require(y.value.type == I32, "of integers must have integers as exponents")
        if y.data is None or (np.asarray(y.data) < 0).any():
            x, y = require_integers(t, x, y), t.make("ABS", y)
        t.result(0, power(t, x, y), x.kind)
    elif exponent == 2:
        t.result(0, t.make("MUL", x, x, activation=0), x.kind)
    else:
        if exponent is not None:
            y = t.scalar(exponent, x)
        elif y.value.type == I32:
            y = t.make("CAST", y, like=Value(x.value.type))
        t.result(0, t.make("POW", x, y), x.kind)


def require_integers(t: NodeTask, x: Term, y: Term) -> Term:
    """Return the bases, with 0 for those whose negative power is less than a whole number."""
    shape = broadcast_shapes(t.known(x), t.known(y))
    x, y = broadcast(t, x, shape), broadcast(t, y, shape)
    r = RealArithmetic(t)
    small = t.make("LOGICAL_AND", r.test("LESS", y, 0), r.test("GREATER", t.make("ABS", x), 1))
    return r.choose(small, filled(t, shape, 0, OperandType(I32)), x)


@operator("Max", to="MAXIMUM", inputs=(1, None), single=True, fold=many(np.maximum), span=spans.of_all)
@operator("Min", to="MINIMUM", inputs=(1, None), single=True, fold=many(np.minimum), span=spans.of_all)
@operator("Sum", to="ADD", inputs=(1, None), single=True)
@operator("Mean", to="ADD", inputs=(1, None), single=True, becomes="ADD, from the first to the last; MUL")
def several(t: NodeTask) -> None:
    """Combine the inputs from the first to the last."""
    total, *others = t.xs()
    more = {"activation": 0} if t.facts.to == "ADD" else {}
    for x in others:
        total = t.make(t.facts.to, total, x, **more)
    if t.name == "Mean" and others:
        total = t.make("MUL", total, t.scalar(1 / (1 + len(others)), total), activation=0)
    t.result(0, total)


@operator("Equal", to="EQUAL", inputs=2, single=True, fold=truth(np.equal))
@operator("Greater", to="GREATER", inputs=2, single=True, fold=truth(np.greater))
@operator("GreaterOrEqual", to="GREATER_EQUAL", inputs=2, single=True, fold=truth(np.greater_equal))
@operator("Less", to="LESS", inputs=2, single=True, fold=truth(np.less))
@operator("LessOrEqual", to="LESS_EQUAL", inputs=2, single=True, fold=truth(np.less_equal))
@operator("And", to="LOGICAL_AND", inputs=2, single=True, fold=truth(np.logical_and))
@operator("Or", to="LOGICAL_OR", inputs=2, single=True, fold=truth(np.logical_or))
def compare(t: NodeTask) -> None:
    t.give(t.facts.to, t.x(0), t.x(1), like=Value(B8))


@operator("Xor", to="NOT_EQUAL", inputs=2, single=True, fold=truth(np.logical_xor))
def exclusive(t: NodeTask) -> None:
    t.give("NOT_EQUAL", t.x(0), t.x(1))


@operator("Not", to="LOGICAL_NOT", single=True, fold=truth(np.logical_not))
@operator("Abs", to="ABS", single=True, fold=plain(np.abs), span=spans.absolute)
@operator("Exp", to="EXP", single=True, fold=plain(np.exp))
@operator("Floor", to="FLOOR", single=True, fold=plain(np.floor))
@operator("Log", to="LOG", single=True, fold=plain(np.log))
@operator("Neg", to="NEG", single=True, fold=plain(exact(np.negative)), span=spans.negated)
@operator("Sigmoid", to="LOGISTIC", single=True)
@operator("Sin", to="SIN", single=True, fold=plain(np.sin))
@operator("Sqrt", to="SQRT", single=True, fold=plain(np.sqrt))
@operator("Tanh", to="TANH", single=True)
@operator("HardSwish", to="HARD_SWISH", single=True)
def unary(t: NodeTask) -> None:
    t.give(t.facts.to, t.x(0))


@operator("Ceil", single=True, fold=plain(np.ceil), becomes="NEG, FLOOR, NEG")
def ceil(t: NodeTask) -> None:
    """Write -floor(-x)."""
    t.give("NEG", t.make("FLOOR", t.make("NEG", floats(t))))


@operator("Reciprocal", single=True, fold=plain(lambda x: 1 / x), becomes="DIV of 1")
def reciprocal(t: NodeTask) -> None:
    x = floats(t)
    t.give("DIV", t.scalar(1, x), x, like=x, activation=0)


# ------------------------------------------------------------------------------------------------------------ activations


def clipped(t: NodeTask, low: float, high: float) -> None:
    """Clamp the input to two numbers, in the operation before it if possible."""
    x = floats(t)
    code = RANGES.get((low, high))
    if code is not None:
        fused = fuse_activation(t, 0, code)
        if fused is None:
            t.give(code.name, x)
        else:
            t.fresh(fused)
        return
    if (low, high) == (0.0, 1.0):
        t.give("RELU", fuse_activation(t, 0, Activation.RELU1) or t.make("RELU1", x))
        return
    if low > -math.inf:
        x = t.make("MAXIMUM", x, t.scalar(low, x))
    if high < math.inf:
        x = t.make("MINIMUM", x, t.scalar(high, x))
    t.result(0, x)


@operator("Relu", single=True, span=spans.of_all, on_stored=True,
          becomes="RELU, or the activation of the operation before; of integers MAXIMUM")  # fmt: skip
def relu(t: NodeTask) -> None:
    x = t.x(0)
    if id(x) in t.graph.context.rectified:
        t.same(x)
    elif x.value.type == I32:
        t.give("MAXIMUM", x, t.scalar(0, x))
    else:
        clipped(t, 0.0, math.inf)


@operator("Clip", inputs=(1, 3), single=True, span=spans.of_all,
          becomes="RELU6, RELU1 or RELU, or the activation of the operation before; from 0 to 1 RELU1, "
          "RELU; else MAXIMUM, MINIMUM")  # fmt: skip
def clip(t: NodeTask) -> None:
    """Clamp to bounds, which are optional inputs; before version 11, attributes."""
    x = t.x(0)
    bounds = [t.raw(place) if t.given(place) else None for place in (1, 2)]
    if x.value.type in FLOATS and all(b is None or (b.data is not None and b.data.size == 1) for b in bounds):
        given = [None if b is None or b.data is None else float(b.data.reshape(-1)[0]) for b in bounds]
        low, high = t.attr("min", -math.inf), t.attr("max", math.inf)
        low = low if given[0] is None else given[0]
        high = high if given[1] is None else given[1]
        clipped(t, low, high)
        return
    for name, place in (("MAXIMUM", 1), ("MINIMUM", 2)):
        if t.given(place):
            x = t.make(name, x, t.x(place))
    t.result(0, x)


@operator("LeakyRelu", single=True, becomes="PRELU with a constant")
def leaky(t: NodeTask) -> None:
    """Write alpha x for x below 0."""
    x = floats(t)
    t.give("PRELU", x, t.scalar(t.attr("alpha", 0.01), x))


@operator("PRelu", inputs=2, single=True, becomes="PRELU")
def prelu(t: NodeTask) -> None:
    """Write PRELU; the slope broadcasts."""
    t.give("PRELU", floats(t), t.x(1))


@operator("Elu", single=True, becomes="ELU")
def elu(t: NodeTask) -> None:
    """Write alpha (e^x - 1) for x below 0."""
    t.result(0, elu_of(t, floats(t), t.attr("alpha", 1.0)))


def elu_of(t: NodeTask, x: Term, alpha: float) -> Term:
    """Return ELU. NNAPI has it as max(0, x) + min(0, alpha (e^x - 1)), which is the same only if alpha >= 0."""
    if alpha >= 0:
        return t.make("ELU", x, alpha)
    r = RealArithmetic(t)
    return r("ADD", t.make("RELU", x), r("MUL", t.make("ELU", r("MINIMUM", x, 0.0), 1.0), alpha))


@operator("Selu", single=True, becomes="ELU, MUL")
def selu(t: NodeTask) -> None:
    """Write gamma times the ELU."""
    alpha, gamma = t.attr("alpha", 1.6732632423543772), t.attr("gamma", 1.0507009873554805)
    t.result(0, RealArithmetic(t)("MUL", elu_of(t, floats(t), alpha), gamma))


@operator("Celu", single=True, becomes="MUL, ELU, MUL")
def celu(t: NodeTask) -> None:
    """Write max(0, x) + min(0, alpha (e^(x / alpha) - 1))."""
    x, alpha, r = floats(t), t.attr("alpha", 1.0), RealArithmetic(t)
    t.require(alpha > 0, f"alpha is {alpha}, must be above 0")
    t.result(0, r("MUL", t.make("ELU", r("MUL", x, 1 / alpha), 1.0), alpha))


@operator("HardSigmoid", single=True, becomes="MUL, ADD, RELU")
def hard_sigmoid(t: NodeTask) -> None:
    """Write alpha x + beta, clamped to 0 and 1."""
    x = floats(t)
    product = RealArithmetic(t)("MUL", x, t.attr("alpha", 0.2))
    line = t.make("ADD", product, t.scalar(t.attr("beta", 0.5), x), activation=int(Activation.RELU1))
    t.give("RELU", line)


@operator("ThresholdedRelu", single=True, becomes="GREATER, SELECT")
def thresholded(t: NodeTask) -> None:
    """Write x where it exceeds alpha, otherwise 0."""
    x, r = floats(t), RealArithmetic(t)
    zeros = filled(t, t.known(x), 0, OperandType(x.value.type))
    t.result(0, r.choose(r.test("GREATER", x, t.attr("alpha", 1.0)), x, zeros))


# ------------------------------------------------------------------------------------------------------ choices and types


def folded_where(t: NodeTask, condition: Array, x: Array, y: Array) -> Any:
    require_foldable(
        math.prod(np.broadcast_shapes(condition.shape, x.shape, y.shape)) <= max(MOST_FOLDED, x.size, y.size)
    )
    return np.where(condition, x, y), t.raw(1).kind


@operator("Where", inputs=3, single=True, becomes="SELECT; of booleans LOGICAL_AND, LOGICAL_OR", fold=folded_where,
          span=spans.of_all)  # fmt: skip
def where(t: NodeTask) -> None:
    """Select elements; NNAPI's SELECT requires equal shapes, so smaller tensors are repeated first."""
    terms = [t.x(place) for place in range(3)]
    kind = terms[1].kind
    if len({term.value.shape for term in terms}) > 1:
        shape = broadcast_shapes(*map(t.known, terms))
        terms = [broadcast(t, term, shape) for term in terms]
    condition, x, y = terms
    if x.value.type == B8:
        others = t.make("LOGICAL_AND", t.make("LOGICAL_NOT", condition), y)
        t.give("LOGICAL_OR", t.make("LOGICAL_AND", condition, x), others)
    else:
        t.result(0, t.make("SELECT", condition, x, y, like=x), kind)


def folded_cast(t: NodeTask, x: Array) -> Any:
    kind = KINDS.get(t.attr("to", 0), "")
    require_foldable(kind in DTYPES)
    dtype = np.dtype(DTYPES[kind])
    if x.dtype == object:
        require_foldable(kind in ("INT64", "INT32"))
        return x, kind
    if kind == "BOOL":
        return x != 0, kind
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if x.dtype.kind == "f":
            whole = np.where(np.isneginf(x), float(limits.min), np.trunc(x))  # a logarithm of 0 is the least integer
            require_foldable(((whole >= -(2.0**63)) & (whole < 2.0**62)).all())
            cast = whole.astype(np.int64)
        else:
            cast = x.astype(np.int64)
        fits = cast.size == 0 or (limits.min <= cast.min() and (kind == "UINT64" or cast.max() <= limits.max))
        require_foldable(fits)
        return cast, kind
    return x.astype(dtype), kind


@operator("Cast", single=True, becomes="CAST; of booleans SELECT, to booleans NOT_EQUAL; of integers "
          "alike nothing",
          fold=folded_cast, span=spans.unchanged)  # fmt: skip
def cast(t: NodeTask) -> None:
    """Convert values to another type."""
    to, reals = KINDS.get(t.attr("to", 0), ""), t.raw(0).reals
    if reals is not None and to == "FLOAT":
        t.result(0, reals, to, scalar=t.raw(0).scalar)
        return
    converted(t, t.x(0), to)


@operator("CastLike", inputs=2, single=True, becomes="as Cast", fold=lambda t, x, y: (x.astype(y.dtype), t.raw(1).kind))
def cast_like(t: NodeTask) -> None:
    """Convert values to the type of another tensor."""
    converted(t, t.x(0), t.raw(1).kind)


def converted(t: NodeTask, x: Term, to: str) -> None:
    """Set the node's output to a term in another type."""
    kind = x.value.type
    t.require(to in TYPES, f"converts to {to or 'no type'}, which NNAPI has no type for")
    wanted = TYPES[to]
    if to == x.kind:
        t.same(x)
    elif wanted == kind == I32:
        t.result(0, copied(t, x), to)
    elif wanted == B8:
        t.give("NOT_EQUAL", numbers(t, x), t.scalar(0, numbers(t, x)), like=Value(B8))
    elif kind == B8 and wanted in (*FLOATS, I32):
        t.result(0, either(t, x, 1, 0, OperandType(wanted)), to)
    elif kind in (Q8, Q8S):
        t.require(
            (x.value.scale, x.value.zero_point) == (1.0, 0), "of stored values as numbers has no operation in NNAPI"
        )
        real = t.make("DEQUANTIZE", x, like=Value(F32))
        if wanted in (Q8, Q8S):
            real = in_range(t, real, wanted)
            t.result(0, t.make("QUANTIZE", real, like=Value(wanted, None, 1.0)), to)
            return
        t.result(0, real if wanted == F32 else t.make("CAST", real, like=Value(wanted)), to)
    elif wanted in (Q8, Q8S):
        t.result(0, t.make("QUANTIZE", bytes_as_reals(t, x, wanted), like=Value(wanted, None, 1.0)), to)
    elif wanted == kind:
        t.result(0, copied(t, x), to)
    else:
        t.result(0, t.make("CAST", x, like=Value(wanted)), to)


def bytes_as_reals(t: NodeTask, x: Term, wanted: OperandType) -> Term:
    """Convert numbers to 8 bits, as floats: the last bits of an integer; of a float, those of its integer part."""
    r = RealArithmetic(t)
    if x.value.type == B8:
        return r.choose(x, *(filled(t, t.known(x), n, OperandType(F32)) for n in (1, 0)))
    if x.value.type == I32:
        return in_range(t, t.make("CAST", remainder(t, x, 256), like=Value(F32)), wanted)
    whole = t.make("FLOOR", t.make("ABS", x))
    return r.choose(r.test("LESS", x, 0.0), t.make("NEG", whole), whole)


def in_range(t: NodeTask, x: Term, wanted: OperandType) -> Term:
    """Map whole numbers from -128 to 255 to the numbers of an 8-bit type with the same last bits."""
    r = RealArithmetic(t)
    if wanted == Q8:
        return r.choose(r.test("LESS", x, 0.0), r("ADD", x, 256.0), x)
    return r.choose(r.test("GREATER", x, 127.0), r("SUB", x, 256.0), x)


def numbers(t: NodeTask, x: Term) -> Term:
    """Return a term that is not of an 8-bit type."""
    if x.value.type not in (Q8, Q8S):
        return x
    t.require((x.value.scale, x.value.zero_point) == (1.0, 0), "of stored values as numbers has no operation in NNAPI")
    return t.make("DEQUANTIZE", x, like=Value(F32))


@operator("Identity", inputs=(1, 3), outputs=(1, 2), becomes="nothing, or a copy", moves=lambda _, x: x,
          span=spans.of_all, on_reals=True)  # fmt: skip
@operator("Dropout", inputs=(1, 3), outputs=(1, 2), becomes="nothing, or a copy")
def identity(t: NodeTask) -> None:
    """Return the input. A Dropout drops elements only in training."""
    if t.given(2):
        ratio = t.raw(1).data if t.given(1) else None
        kept = ratio is not None and ratio.size == 1 and not ratio.reshape(-1)[0]
        t.require(kept or not t.number(2, "training_mode"), "is in training mode, which NNAPI does not have")
    t.same(t.raw(0))
    stored = t.graph.context.stored.get(id(t.raw(0)))
    if stored is not None:
        t.later.append(lambda: t.graph.context.note_real_term(t.results[0], stored))


def folded_one_hot(t: NodeTask, indices: Array, depth: Array, values: Array) -> Any:
    axis, count = t.attr("axis", -1), int(depth.reshape(()))
    require_foldable(count > 0 and indices.size * count <= MOST_FOLDED)
    hits = np.where(indices < 0, indices + count, indices)[..., None] == np.arange(count)
    return np.moveaxis(np.where(hits, values[1], values[0]), -1, axis), t.raw(2).kind


@operator("OneHot", inputs=3, becomes="EQUAL with 0, 1, .. depth - 1, then SELECT", fold=folded_one_hot,
          span=spans.of_all)  # fmt: skip
def one_hot(t: NodeTask) -> None:
    """Write SELECT(index == 0, 1, .. depth - 1; on; off); negative indices count from the end."""
    indices, depth, values = t.index(0, "indices"), t.integer_of(1, "depth"), t.data(2, "values")
    t.require(0 < depth <= 1 << 20 and values.size == 2, f"depth is {depth}, must be 1 to {1 << 20}")
    rank = t.rank(indices)
    axis = t.axis(t.attr("axis", -1), rank + 1)
    shape = t.known(indices)[:rank]
    whole = (*shape[:axis], depth, *shape[axis:])
    check_count(math.prod(whole))
    steps = np.arange(depth, dtype=np.int32).reshape([depth if i == axis else 1 for i in range(rank + 1)])
    expanded = t.reshaped(indices, (*shape[:axis], 1, *shape[axis:]))
    hits = [t.make("EQUAL", expanded, constant(Value(I32), steps - below), like=Value(B8)) for below in (0, depth)]
    hit = broadcast(t, t.make("LOGICAL_OR", *hits), whole)
    off, on = values.reshape(-1).tolist()
    kind = t.raw(2).kind
    t.require(TYPES.get(kind) in (*FLOATS, I32), f"of {kind} has no operation in NNAPI")
    wanted = OperandType(TYPES[kind])
    parts = [t.make("FILL", t.integers(whole), number(n, wanted), like=Value(wanted)) for n in (on, off)]
    t.result(0, t.make("SELECT", hit, *parts, like=parts[0]), kind)
