"""Entries of elementwise nodes: arithmetic, comparisons, selection, activations, conversions."""

import math

import numpy as np

from nnhal.base.codes import Activation, OperandType
from nnhal.base.operands import Value
from nnhal.frontends.common.element_moves import broadcast
from nnhal.frontends.common.integer_arithmetic import modulo as remainder
from nnhal.frontends.common.integer_arithmetic import plain, power, truncated_quotient
from nnhal.frontends.common.real_functions import RealArithmetic, floor_remainder
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.writing import number
from nnhal.frontends.onnx.file import KINDS
from nnhal.frontends.onnx.graph import TYPES
from nnhal.frontends.onnx.task import NodeTask, all_scalars, node
from nnhal.ops.schema import B8, F16, F32, I32, Q8, Q8S

FLOATS = (F32, F16)
NAMES = {"Add": "ADD", "Sub": "SUB", "Mul": "MUL", "Equal": "EQUAL", "Greater": "GREATER", "Less": "LESS",
         "GreaterOrEqual": "GREATER_EQUAL", "LessOrEqual": "LESS_EQUAL", "And": "LOGICAL_AND", "Or": "LOGICAL_OR",
         "Max": "MAXIMUM", "Min": "MINIMUM", "Abs": "ABS", "Exp": "EXP", "Floor": "FLOOR", "Log": "LOG", "Neg": "NEG",
         "Sigmoid": "LOGISTIC", "Sin": "SIN", "Sqrt": "SQRT", "Tanh": "TANH", "Not": "LOGICAL_NOT",
         "HardSwish": "HARD_SWISH"}  # fmt: skip
RANGES = {(0.0, math.inf): Activation.RELU, (0.0, 6.0): Activation.RELU6, (-1.0, 1.0): Activation.RELU1}
OPERATIONS = {Activation.RELU: "RELU", Activation.RELU6: "RELU6", Activation.RELU1: "RELU1"}


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
    kind = t.raw(0).value.type
    return made if made.value.type == kind else t.make("CAST", made, like=Value(kind))


@node("Add", "Sub", "Mul", inputs=2, single=True, becomes="ADD, SUB, MUL")
def arithmetic(t: NodeTask) -> None:
    x, y = t.x(0), t.x(1)
    t.require(x.value.type in (*FLOATS, I32), f"of {x.kind} has no operation in NNAPI")
    if x.value.type == F32 and fuse_into_layer(t):
        return
    t.give(NAMES[t.name], x, y, activation=0, scalar=all_scalars(t))


def fuse_into_layer(t: NodeTask) -> bool:
    """Merge a constant for each channel into the layer before; return whether that was possible."""
    for place, other in ((0, 1), (1, 0)):
        value = t.raw(other).data
        if value is None or t.raw(place).data is not None or (t.name == "Sub" and place):
            continue
        if t.name == "Mul":
            merged = t.fuse_into_weights(place, value, None)
        else:
            merged = t.fuse_into_weights(place, None, -value if t.name == "Sub" else value)
        if merged is not None:
            t.fresh(merged)
            return True
    return False


@node("Div", inputs=2, single=True, becomes="DIV; of integers corrected to round towards 0")
def divide(t: NodeTask) -> None:
    """Round integer quotients towards 0, as ONNX does; NNAPI rounds down."""
    x, y = t.x(0), t.x(1)
    t.require(x.value.type in (*FLOATS, I32), f"of {x.kind} has no operation in NNAPI")
    if x.value.type == I32:
        t.result(0, truncated_quotient(t, x, y), scalar=all_scalars(t))
    else:
        t.give("DIV", x, y, activation=0, scalar=all_scalars(t))


@node("Mod", inputs=2, single=True, becomes="SUB, MUL and DIV: x - floor(x / y) * y, of floats with an exact product")
def modulo(t: NodeTask) -> None:
    """Give the remainder the sign of the divisor; with fmod, that of the dividend."""
    x, y = t.x(0), t.x(1)
    if x.value.type == I32:
        down = truncated_quotient(t, x, y) if t.attr("fmod", 0) else plain(t, "DIV", x, y)
        t.result(0, plain(t, "SUB", x, plain(t, "MUL", down, y)), scalar=all_scalars(t))
        return
    t.require(x.value.type == F32, f"of {x.kind} has no operation in NNAPI")
    rest = floor_remainder(t, t.make("ABS", x), t.make("ABS", y))
    negative = t.make("LESS", x, t.scalar(0, x), like=Value(B8))
    sizes = t.together(t.known(x), t.known(y))
    terms = [broadcast(t, each, sizes) for each in (negative, t.make("NEG", rest), rest)]
    if t.attr("fmod", 0):
        t.give("SELECT", *terms, like=x, scalar=all_scalars(t))
        return
    rest = t.make("SELECT", *terms, like=x)
    other = t.make("NOT_EQUAL", negative, t.make("LESS", y, t.scalar(0, y), like=Value(B8)), like=Value(B8))
    left = t.make("NOT_EQUAL", rest, t.scalar(0, x), like=Value(B8))
    wrong = broadcast(t, t.make("LOGICAL_AND", other, left), sizes)
    t.give("SELECT", wrong, t.make("ADD", rest, y, activation=0), rest, like=x, scalar=all_scalars(t))


@node("Pow", inputs=2, single=True, becomes="POW; MUL for squares; of integers, products of squares")
def raised(t: NodeTask) -> None:
    """Give the result the type of the base."""
    x, y, scalar = t.x(0), t.x(1), all_scalars(t)
    one = y.data is not None and y.data.size == 1 and y.data.ndim <= t.rank(x)
    exponent = float(np.asarray(y.data).reshape(-1)[0]) if one else None
    if x.value.type == I32:
        t.require(y.value.type == I32, "of integers must have integers as exponents")
        if y.data is None or (np.asarray(y.data) < 0).any():
            x, y = require_integers(t, x, y), t.make("ABS", y)
        t.result(0, power(t, x, y), x.kind, scalar=scalar)
    elif exponent == 2:
        t.give("MUL", x, x, activation=0, scalar=scalar)
    else:
        if exponent is not None:
            y = t.scalar(exponent, x)
        elif y.value.type == I32:
            y = t.make("CAST", y, like=Value(x.value.type))
        t.give("POW", x, y, scalar=scalar)


def require_integers(t: NodeTask, x: Term, y: Term) -> Term:
    """Return the bases, with 0 for those whose negative power is less than a whole number."""
    shape = t.together(t.known(x), t.known(y))
    x, y = broadcast(t, x, shape), broadcast(t, y, shape)
    r = RealArithmetic(t)
    small = t.make("LOGICAL_AND", r.test("LESS", y, 0), r.test("GREATER", t.make("ABS", x), 1))
    return r.choose(small, t.filled(shape, 0, OperandType(I32)), x)


@node(
    "Max",
    "Min",
    "Sum",
    "Mean",
    inputs=(1, None),
    single=True,
    becomes="MAXIMUM, MINIMUM, ADD, from the first to the last",
)
def several(t: NodeTask) -> None:
    """Combine the inputs from the first to the last."""
    total, *others = t.xs()
    more = {} if t.name in NAMES else {"activation": 0}
    for x in others:
        total = t.make(NAMES.get(t.name, "ADD"), total, x, **more)
    if t.name == "Mean" and others:
        total = t.make("MUL", total, t.scalar(1 / (1 + len(others)), total), activation=0)
    t.result(0, total, scalar=all_scalars(t))


@node("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", inputs=2, single=True,
      becomes="EQUAL, GREATER, GREATER_EQUAL, LESS, LESS_EQUAL")  # fmt: skip
@node("And", "Or", inputs=2, single=True, becomes="LOGICAL_AND, LOGICAL_OR")
def compare(t: NodeTask) -> None:
    t.give(NAMES[t.name], t.x(0), t.x(1), like=Value(B8), scalar=all_scalars(t))


@node("Xor", inputs=2, single=True, becomes="NOT_EQUAL")
def exclusive(t: NodeTask) -> None:
    t.give("NOT_EQUAL", t.x(0), t.x(1), scalar=all_scalars(t))


@node("Not", single=True, becomes="LOGICAL_NOT")
@node("Abs", "Exp", "Floor", "Log", "Neg", "Sigmoid", "Sin", "Sqrt", "Tanh", "HardSwish", single=True,
      becomes="ABS, EXP, FLOOR, LOG, NEG, LOGISTIC, SIN, SQRT, TANH, HARD_SWISH")  # fmt: skip
def unary(t: NodeTask) -> None:
    t.give(NAMES[t.name], t.x(0), scalar=all_scalars(t))


@node("Ceil", single=True, becomes="NEG, FLOOR, NEG")
def ceil(t: NodeTask) -> None:
    """Write -floor(-x)."""
    t.give("NEG", t.make("FLOOR", t.make("NEG", floats(t))), scalar=all_scalars(t))


@node("Reciprocal", single=True, becomes="DIV of 1")
def reciprocal(t: NodeTask) -> None:
    x = floats(t)
    t.give("DIV", t.scalar(1, x), x, like=x, activation=0, scalar=all_scalars(t))


# ------------------------------------------------------------------------------------------------------------ activations


def clipped(t: NodeTask, low: float, high: float) -> None:
    """Clamp the input to two numbers, in the operation before it if possible."""
    x = floats(t)
    code = RANGES.get((low, high))
    if code is not None:
        fused = t.fused(0, code)
        if fused is None:
            t.give(OPERATIONS[code], x, scalar=all_scalars(t))
        else:
            t.fresh(fused)
        return
    if (low, high) == (0.0, 1.0):
        t.give("RELU", t.fused(0, Activation.RELU1) or t.make("RELU1", x), scalar=all_scalars(t))
        return
    if low > -math.inf:
        x = t.make("MAXIMUM", x, t.scalar(low, x))
    if high < math.inf:
        x = t.make("MINIMUM", x, t.scalar(high, x))
    t.result(0, x, scalar=all_scalars(t))


@node("Relu", single=True, becomes="RELU, or the activation of the operation before; of integers MAXIMUM")
def relu(t: NodeTask) -> None:
    x = t.x(0)
    if id(x) in t.graph.context.rectified:
        t.same(x)
    elif x.value.type == I32:
        t.give("MAXIMUM", x, t.scalar(0, x), scalar=all_scalars(t))
    else:
        clipped(t, 0.0, math.inf)


@node("Clip", inputs=(1, 3), single=True, becomes="RELU6, RELU1 or RELU, or the activation of the operation before; "
      "from 0 to 1 RELU1, RELU; else MAXIMUM, MINIMUM")  # fmt: skip
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
    t.result(0, x, scalar=all_scalars(t))


@node("LeakyRelu", single=True, becomes="PRELU with a constant")
def leaky(t: NodeTask) -> None:
    """Write alpha x for x below 0."""
    x = floats(t)
    t.give("PRELU", x, t.scalar(t.attr("alpha", 0.01), x), scalar=all_scalars(t))


@node("PRelu", inputs=2, single=True, becomes="PRELU")
def prelu(t: NodeTask) -> None:
    """Write PRELU; the slope broadcasts."""
    t.give("PRELU", floats(t), t.x(1), scalar=all_scalars(t))


@node("Elu", single=True, becomes="ELU")
def elu(t: NodeTask) -> None:
    """Write alpha (e^x - 1) for x below 0."""
    t.result(0, elu_of(t, floats(t), t.attr("alpha", 1.0)), scalar=all_scalars(t))


def elu_of(t: NodeTask, x: Term, alpha: float) -> Term:
    """Return ELU. NNAPI has it as max(0, x) + min(0, alpha (e^x - 1)), which is the same only if alpha >= 0."""
    if alpha >= 0:
        return t.make("ELU", x, alpha)
    r = RealArithmetic(t)
    return r("ADD", t.make("RELU", x), r("MUL", t.make("ELU", r("MINIMUM", x, 0.0), 1.0), alpha))


@node("Selu", single=True, becomes="ELU, MUL")
def selu(t: NodeTask) -> None:
    """Write gamma times the ELU."""
    alpha, gamma = t.attr("alpha", 1.6732632423543772), t.attr("gamma", 1.0507009873554805)
    t.result(0, RealArithmetic(t)("MUL", elu_of(t, floats(t), alpha), gamma), scalar=all_scalars(t))


@node("Celu", single=True, becomes="MUL, ELU, MUL")
def celu(t: NodeTask) -> None:
    """Write max(0, x) + min(0, alpha (e^(x / alpha) - 1))."""
    x, alpha, r = floats(t), t.attr("alpha", 1.0), RealArithmetic(t)
    t.require(alpha > 0, f"alpha is {alpha}, must be above 0")
    t.result(0, r("MUL", t.make("ELU", r("MUL", x, 1 / alpha), 1.0), alpha), scalar=all_scalars(t))


@node("HardSigmoid", single=True, becomes="MUL, ADD, RELU")
def hard_sigmoid(t: NodeTask) -> None:
    """Write alpha x + beta, clamped to 0 and 1."""
    x = floats(t)
    product = RealArithmetic(t)("MUL", x, t.attr("alpha", 0.2))
    line = t.make("ADD", product, t.scalar(t.attr("beta", 0.5), x), activation=int(Activation.RELU1))
    t.give("RELU", line, scalar=all_scalars(t))


@node("ThresholdedRelu", single=True, becomes="GREATER, SELECT")
def thresholded(t: NodeTask) -> None:
    """Write x where it exceeds alpha, otherwise 0."""
    x, r = floats(t), RealArithmetic(t)
    zeros = t.filled(t.known(x), 0, OperandType(x.value.type))
    t.result(0, r.choose(r.test("GREATER", x, t.attr("alpha", 1.0)), x, zeros), scalar=all_scalars(t))


# ------------------------------------------------------------------------------------------------------ choices and types


@node("Where", inputs=3, single=True, becomes="SELECT; of booleans LOGICAL_AND, LOGICAL_OR")
def where(t: NodeTask) -> None:
    """Select elements; NNAPI's SELECT requires equal shapes, so smaller tensors are repeated first."""
    terms = [t.x(place) for place in range(3)]
    kind = terms[1].kind
    if len({term.value.shape for term in terms}) > 1:
        shape = t.together(*map(t.known, terms))
        terms = [broadcast(t, term, shape) for term in terms]
    condition, x, y = terms
    if x.value.type == B8:
        others = t.make("LOGICAL_AND", t.make("LOGICAL_NOT", condition), y)
        t.give("LOGICAL_OR", t.make("LOGICAL_AND", condition, x), others, scalar=all_scalars(t))
    else:
        t.result(0, t.make("SELECT", condition, x, y, like=x), kind, scalar=all_scalars(t))


@node("Cast", single=True, becomes="CAST; of booleans SELECT, to booleans NOT_EQUAL; of integers alike nothing")
def cast(t: NodeTask) -> None:
    """Convert values to another type."""
    to, reals = KINDS.get(t.attr("to", 0), ""), t.raw(0).reals
    if reals is not None and to == "FLOAT":
        t.result(0, reals, to, scalar=t.raw(0).scalar)
        return
    converted(t, t.x(0), to)


@node("CastLike", inputs=2, single=True, becomes="as Cast")
def cast_like(t: NodeTask) -> None:
    """Convert values to the type of another tensor."""
    converted(t, t.x(0), t.raw(1).kind)


def converted(t: NodeTask, x: Term, to: str) -> None:
    """Set the node's output to a term in another type."""
    kind, scalar = x.value.type, all_scalars(t)
    t.require(to in TYPES, f"converts to {to or 'no type'}, which NNAPI has no type for")
    wanted = TYPES[to]
    if to == x.kind:
        t.same(x)
    elif wanted == kind == I32:
        t.result(0, t.copied(x), to, scalar=scalar)
    elif wanted == B8:
        t.give("NOT_EQUAL", numbers(t, x), t.scalar(0, numbers(t, x)), like=Value(B8), scalar=scalar)
    elif kind == B8 and wanted in (*FLOATS, I32):
        parts = [t.filled(t.known(x), n, OperandType(wanted)) for n in (1, 0)]
        t.result(0, t.make("SELECT", x, *parts, like=parts[0]), to, scalar=scalar)
    elif kind in (Q8, Q8S):
        t.require(
            (x.value.scale, x.value.zero_point) == (1.0, 0), "of stored values as numbers has no operation in NNAPI"
        )
        real = t.make("DEQUANTIZE", x, like=Value(F32))
        if wanted in (Q8, Q8S):
            real = in_range(t, real, wanted)
            t.result(0, t.make("QUANTIZE", real, like=Value(wanted, None, 1.0)), to, scalar=scalar)
            return
        t.result(0, real if wanted == F32 else t.make("CAST", real, like=Value(wanted)), to, scalar=scalar)
    elif wanted in (Q8, Q8S):
        t.result(0, t.make("QUANTIZE", bytes_as_reals(t, x, wanted), like=Value(wanted, None, 1.0)), to, scalar=scalar)
    elif wanted == kind:
        t.result(0, t.copied(x), to, scalar=scalar)
    else:
        t.result(0, t.make("CAST", x, like=Value(wanted)), to, scalar=scalar)


def bytes_as_reals(t: NodeTask, x: Term, wanted: OperandType) -> Term:
    """Convert numbers to 8 bits, as floats: the last bits of an integer; of a float, those of its integer part."""
    r = RealArithmetic(t)
    if x.value.type == B8:
        return r.choose(x, *(t.filled(t.known(x), n, OperandType(F32)) for n in (1, 0)))
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


@node("Identity", "Dropout", inputs=(1, 3), outputs=(1, 2), becomes="nothing, or a copy")
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


@node("ai.onnx.ml.Scaler", becomes="SUB, MUL")
def scaler(t: NodeTask) -> None:
    """Write (x - offset) scale, with one number each or one for each feature."""
    x = t.x(0)
    if x.value.type == I32:
        x = t.make("CAST", x, like=Value(F32))
    t.require(x.value.type == F32, f"of {x.kind}, must be FLOAT or integers")
    for name, attribute in (("SUB", "offset"), ("MUL", "scale")):
        numbers = [float(n) for n in t.attr(attribute, ())]
        features = t.shape(x)[-1]
        t.require(len(numbers) in (1, features), f"{attribute} has {len(numbers)} numbers, must have 1 or {features}")
        x = t.make(name, x, constant(Value(F32), np.array(numbers, np.float32)), activation=0)
    t.result(0, x)


@node("OneHot", inputs=3, becomes="EQUAL with 0, 1, .. depth - 1, then SELECT")
def one_hot(t: NodeTask) -> None:
    """Write SELECT(index == 0, 1, .. depth - 1; on; off); negative indices count from the end."""
    indices, depth, values = t.index(0, "indices"), t.integer_of(1, "depth"), t.data(2, "values")
    t.require(0 < depth <= 1 << 20 and values.size == 2, f"depth is {depth}, must be 1 to {1 << 20}")
    rank = t.rank(indices)
    axis = t.axis(t.attr("axis", -1), rank + 1)
    shape = t.known(indices)[:rank]
    whole = (*shape[:axis], depth, *shape[axis:])
    t.check_count(math.prod(whole))
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
