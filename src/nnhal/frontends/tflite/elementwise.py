"""Entries of operators on single elements: arithmetic, comparisons, choices, activations, conversions."""

import math
from collections.abc import Sequence

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.operands import Value
from nnhal.frontends.tflite.graph import PLAIN_SCALE, Term, constant, stored
from nnhal.frontends.tflite.task import ASYMMETRIC, MOST_DIMENSIONS, TANH, OperatorTask, entry, number
from nnhal.ops.schema import B8, F16, F32, I32, Q8S

FLOATS = (F32, F16)
SAME_NAME = {"RELU_N1_TO_1": "RELU1"}  # the others are called what NNAPI calls them
MOST_CLASSES = 1 << 20  # of ONE_HOT, whose numbers become a constant
SMALL = 4096  # elements of a constant that is repeated at import rather than at execution


@entry("ADD", "SUB", "MUL", inputs=2, real=True)
def arithmetic(t: OperatorTask) -> None:
    """With a fused activation."""
    code = t.options(f"{t.name.title()}Options")("FusedActivationFunction")
    binary(t, code, t.x(0), t.x(1))


@entry("DIV", inputs=2, real=True)
def divide(t: OperatorTask) -> None:
    """NNAPI rounds integer quotients down, TFLite towards 0."""
    x, y = t.x(0), t.x(1)
    t.require(x.value.type != I32, "of integers rounds towards 0, NNAPI's rounds down")
    binary(t, t.options("DivOptions")("FusedActivationFunction"), x, y)


def binary(t: OperatorTask, code: int, x: Term, y: Term) -> None:
    """With a fused activation. Of more than four dimensions, those that lie together and broadcast alike become one."""
    shapes = [t.shape(x), t.shape(y)]
    if max(map(len, shapes)) <= MOST_DIMENSIONS or code >= TANH:
        t.fused(code, t.name, x, y)
        return
    try:
        whole = np.broadcast_shapes(t.known(x), t.known(y))
    except ValueError:
        t.refuse(f"shapes {shapes} do not broadcast")
    first, second = merged([t.known(x), t.known(y)], whole)
    result = t.make(t.name, t.reshaped(x, first), t.reshaped(y, second), like=t.out(), activation=code)
    t.reshaped(result, whole, out=True)


def merged(shapes: Sequence[tuple[int, ...]], whole: Sequence[int]) -> list[list[int]]:
    """Shapes that broadcast to `whole` as these do, with as few dimensions as that takes."""
    full = [(1,) * (len(whole) - len(shape)) + shape for shape in shapes]
    results: list[list[int]] = [[] for _ in shapes]
    before: list[bool] | None = None
    for size, *sizes in zip(whole, *full, strict=True):
        if size == 1:
            continue
        alike = [n == size for n in sizes]
        for result, n in zip(results, sizes, strict=True):
            if alike == before:
                result[-1] *= n
            else:
                result.append(n)
        before = alike
    return [result or [1] for result in results]


@entry("FLOOR_DIV", inputs=2)
def floor_divide(t: OperatorTask) -> None:
    """What NNAPI's DIV is for integers."""
    x, y = t.x(0), t.x(1)
    if x.value.type == I32:
        t.give("DIV", x, y, activation=0)
    else:
        t.give("FLOOR", t.make("DIV", x, y, activation=0))


@entry("FLOOR_MOD", inputs=2)
def floor_modulo(t: OperatorTask) -> None:
    """x - floor(x / y) * y, exact for integers only."""
    x, y = t.x(0), t.x(1)
    t.require(x.value.type == I32, f"of {x.kind} rounds differently when it is composed")
    product = t.make("MUL", t.make("DIV", x, y, activation=0), y, activation=0)
    t.give("SUB", x, product, activation=0)


@entry("ADD_N", inputs=(1, None))
def add_many(t: OperatorTask) -> None:
    """From the first to the last."""
    total, *others = t.xs()
    if not others:
        t.same(total)
        return
    for x in others[:-1]:
        total = t.make("ADD", total, x, activation=0)
    t.give("ADD", total, others[-1], activation=0)


@entry("SQUARE", real=True)
def square(t: OperatorTask) -> None:
    """The product with itself."""
    t.give("MUL", t.x(0), t.x(0), activation=0)


@entry("SQUARED_DIFFERENCE", inputs=2, real=True)
def squared_difference(t: OperatorTask) -> None:
    """Quantised, the difference would be rounded too: that takes real values."""
    x, y = t.x(0), t.x(1)
    t.require(x.value.type not in ASYMMETRIC, "is rounded twice when it is composed")
    difference = t.make("SUB", x, y, activation=0)
    t.give("MUL", difference, difference, activation=0)


@entry("MAXIMUM", "MINIMUM", "POW", "EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", inputs=2)
@entry("LOGICAL_AND", "LOGICAL_OR", inputs=2)
def pair(t: OperatorTask) -> None:
    """Two tensors that broadcast as NNAPI's do."""
    t.give(t.name, t.x(0), t.x(1))


@entry("ABS", "EXP", "FLOOR", "LOG", "LOGISTIC", "NEG", "RSQRT", "SIN", "SQRT", "TANH", real=True)
@entry("HARD_SWISH", "LOGICAL_NOT")
def unary(t: OperatorTask) -> None:
    """One tensor, no options."""
    t.flattened(t.name, t.x(0))


@entry("RELU", "RELU6", "RELU_N1_TO_1")
def relu(t: OperatorTask) -> None:
    """NNAPI's keep the scale; where the file has another one, a fused activation of `x + 0` says the same."""
    name, x, value = SAME_NAME.get(t.name, t.name), t.x(0), t.out()
    if x.value.type in ASYMMETRIC and (x.value.scale, x.value.zero_point) != (value.scale, value.zero_point):
        zero = constant(x.value, np.array([stored(x.value)], x.value.dtype))
        t.give("ADD", x, zero, activation={"RELU": 1, "RELU1": 2, "RELU6": 3}[name])
    else:
        t.flattened(name, x)


@entry("RELU_0_TO_1", real=True)
def relu_to_one(t: OperatorTask) -> None:
    """At least 0, at most 1."""
    x = t.x(0)
    t.require(x.value.type not in ASYMMETRIC, "is rounded twice when it is composed")
    t.give("MINIMUM", t.make("MAXIMUM", x, t.scalar(0, x)), t.scalar(1, x))


@entry("CEIL")
def ceil(t: OperatorTask) -> None:
    """-floor(-x)."""
    t.give("NEG", t.make("FLOOR", t.make("NEG", t.x(0))))


@entry("ELU", real=True)
def elu(t: OperatorTask) -> None:
    """TFLite's alpha is 1."""
    t.give("ELU", t.x(0), 1.0)


@entry("PRELU", inputs=2)
def prelu(t: OperatorTask) -> None:
    """Alpha broadcasts."""
    t.give("PRELU", t.x(0), t.real(t.x(1)) if t.x(0).value.type == F32 else t.x(1))


@entry("LEAKY_RELU")
def leaky_relu(t: OperatorTask) -> None:
    """PRELU with a constant: a quantised one holds alpha exactly, as one step of its own scale."""
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


@entry("CAST")
def cast(t: OperatorTask) -> None:
    """Stored values in another type. What NNAPI's does not take is said by comparing, choosing, or a scale of 1."""
    x, value = t.x(0), t.declared()
    kind, to = x.value.type, value.type
    plain = (x.value.scale, x.value.zero_point) == (PLAIN_SCALE, 0)
    if to == B8 and kind in (*FLOATS, I32):
        t.give("NOT_EQUAL", x, t.scalar(0, x))
    elif kind == B8 and to in (*FLOATS, I32):
        shape = t.known(x)
        t.give("SELECT", x, *[t.filled(shape, n, OperandType(to)) for n in (1, 0)])
    elif kind == Q8S and to in FLOATS and plain:
        t.give("DEQUANTIZE", x)
    else:
        t.give("CAST", x)


@entry("DEQUANTIZE")
def dequantise(t: OperatorTask) -> None:
    """float16 is converted: NNAPI calls that CAST."""
    x = t.x(0)
    t.give("CAST" if x.value.type in FLOATS else "DEQUANTIZE", x)


@entry("DENSIFY")
def densify(t: OperatorTask) -> None:
    """Sparse constants are expanded where they are read."""
    t.require(t.raw(0).data is not None, "of a tensor that is computed at execution is not in NNAPI")
    t.same(t.x(0))


@entry("QUANTIZE")
def quantise(t: OperatorTask) -> None:
    """NNAPI quantises real values only, so that one scale becomes another by way of them."""
    t.give("QUANTIZE", t.real(t.x(0)))


# ---------------------------------------------------------------------------------------------------------------- choices


@entry("SELECT", "SELECT_V2", inputs=3)
def select(t: OperatorTask) -> None:
    """NNAPI's takes equal shapes, so that smaller tensors are repeated first."""
    terms = [t.x(place) for place in range(3)]
    shapes = [term.value.shape for term in terms]
    if len(set(shapes)) == 1:
        t.give("SELECT", *terms)
        return
    sizes = [t.known(term) for term in terms]
    if t.name == "SELECT" and len(sizes[0]) == 1 < len(sizes[1]):  # chooses among the first dimension's parts
        sizes[0] = (*sizes[0], *[1] * (len(sizes[1]) - 1))
        terms[0] = condition_of_rank(t, terms[0], sizes[0])
    try:
        shape = np.broadcast_shapes(*sizes)
    except ValueError:
        t.refuse(f"shapes {', '.join(str(list(s)) for s in sizes)} do not broadcast")
    t.give("SELECT", *[repeated(t, term, shape) for term in terms])


def condition_of_rank(t: OperatorTask, term: Term, shape: Sequence[int]) -> Term:
    """Booleans in another shape; NNAPI reshapes numbers only."""
    numbers = t.make("SELECT", term, *[t.filled(t.known(term), n, I32) for n in (1, 0)], like=Value(I32))
    numbers = t.reshaped(numbers, shape)
    return t.make("NOT_EQUAL", numbers, t.scalar(0, numbers), like=Value(B8))


def repeated(t: OperatorTask, term: Term, shape: Sequence[int]) -> Term:
    """A term broadcast to a shape."""
    sizes, wanted = t.known(term), tuple(int(n) for n in shape)
    if sizes == wanted:
        return term
    if term.value.data is not None and math.prod(wanted) <= SMALL:
        return constant(term.value, np.broadcast_to(term.value.data, wanted).copy(), term.kind)
    if term.value.type == B8:  # there is no TILE of booleans, but AND broadcasts
        zeros = t.filled(wanted, 0, I32)
        return t.make("LOGICAL_AND", term, t.make("EQUAL", zeros, zeros, like=Value(B8)))
    full = (1,) * (len(wanted) - len(sizes)) + sizes
    times = [w // s if s else 1 for w, s in zip(wanted, full, strict=True)]
    return t.make("TILE", t.reshaped(term, full), t.integers(times))


@entry("BROADCAST_TO", inputs=2)
def broadcast_to(t: OperatorTask) -> None:
    """Repeats along dimensions of 1."""
    x, shape = t.x(0), t.ints(1, "shape")
    sizes = (1,) * (len(shape) - len(t.known(x))) + t.known(x)
    fits = len(sizes) == len(shape) and all(s in (1, w) for s, w in zip(sizes, shape, strict=True))
    t.require(fits, f"shape = {shape}, must be one that {list(sizes)} broadcasts to")
    t.give("TILE", t.reshaped(x, sizes), t.integers([w // s if s else 1 for w, s in zip(shape, sizes, strict=True)]))


@entry("FILL", inputs=2)
def fill(t: OperatorTask) -> None:
    """Of one constant."""
    value, kind = t.number(1, "value"), t.out().type
    t.require(kind in (*FLOATS, I32), "NNAPI fills with float and int32 only")
    t.give("FILL", t.index(0, "dims"), number(value, OperandType(kind)))


@entry("ZEROS_LIKE")
def zeros_like(t: OperatorTask) -> None:
    """A constant where it is small."""
    x = t.x(0)
    shape, value = t.known(x), t.out()
    if math.prod(shape) <= SMALL:
        t.known_result(np.full(shape if t.rank(x) else (), stored(value), value.dtype))
    else:
        t.require(value.type in (*FLOATS, I32), "NNAPI fills with float and int32 only")
        t.give("FILL", t.integers(shape), number(0, OperandType(value.type)))


@entry("ONE_HOT", inputs=4)
def one_hot(t: OperatorTask) -> None:
    """SELECT(index == 0, 1, .. depth - 1; on; off)."""
    indices, depth = t.index(0, "indices"), t.integer(1, "depth")
    on, off, value = t.number(2, "on_value"), t.number(3, "off_value"), t.out()
    t.require(value.type in (F32, I32), f"NNAPI fills with float and int32 only, not {t.x(2).kind}")
    t.require(0 < depth <= MOST_CLASSES, f"depth = {depth}, must be 1 to {MOST_CLASSES}")
    rank = t.rank(indices)
    axis = t.axis(t.options("OneHotOptions")("Axis"), rank + 1)
    shape = t.known(indices)[:rank]
    steps = np.arange(depth, dtype=np.int32).reshape([depth if i == axis else 1 for i in range(rank + 1)])
    expanded = t.make("EXPAND_DIMS", indices, axis) if rank else indices
    hits = t.make("EQUAL", expanded, constant(Value(I32), steps), like=Value(B8))
    whole = (*shape[:axis], depth, *shape[axis:])
    t.give("SELECT", hits, *[t.filled(whole, n, OperandType(value.type)) for n in (on, off)])
