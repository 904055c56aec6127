"""int32 arithmetic without an NNAPI operation, composed from ADD, SUB, MUL and DIV, which rounds down."""

import math

import numpy as np

from nnhal.base.operands import Value
from nnhal.frontends.common.element_moves import NOWHERE, moved
from nnhal.frontends.common.integer_arithmetic import TOP, parity, plain
from nnhal.frontends.common.terms import PLAIN_SCALE, Term, constant
from nnhal.frontends.tflite.task import OperatorTask, entry
from nnhal.ops.schema import B8, F32, I32, Q8, Q8S

# ------------------------------------------------------------------------------------------------------------------- bits


def widened(t: OperatorTask, place: int) -> Term:
    """Return an input as int32; int8 through floats, because NNAPI's CAST rejects it."""
    x = t.x(place)
    if x.value.type == Q8S:
        t.require((x.value.scale, x.value.zero_point) == (PLAIN_SCALE, 0), "of int8 requires a scale of 1")
        return t.make("CAST", t.real(x), like=Value(I32))
    return t.make("CAST", x, like=Value(I32)) if x.value.type == Q8 else x


def narrowed(t: OperatorTask, term: Term) -> None:
    """Set the operator's output, of int32 or of a type that the values fit."""
    if t.out().type == I32:
        t.result(0, term)
    elif t.out().type == Q8S:
        t.give("QUANTIZE", t.make("CAST", term, like=Value(F32)))
    else:
        t.give("CAST", term)


@entry("RIGHT_SHIFT", inputs=2, single=True, becomes="DIV by powers of 2, which rounds down")
def shift(t: OperatorTask) -> None:
    """Shift arithmetically, by at most 31 bits."""
    x, y = widened(t, 0), widened(t, 1)
    y = t.make("MINIMUM", t.make("MAXIMUM", y, t.scalar(0, y)), t.scalar(TOP + 1, y))
    steps = [2 ** min(n, TOP) for n in range(TOP + 2)]
    for powers in (steps, [1] * (TOP + 1) + [2]):
        table = constant(Value(I32), np.array(powers, np.int32))
        x = plain(t, "DIV", x, t.make("GATHER", table, 0, y, like=Value(I32)))
    narrowed(t, x)


@entry("BITWISE_XOR", inputs=2, single=True, becomes="NOT_EQUAL of booleans; of integers the bits, by DIV")
def exclusive_or(t: OperatorTask) -> None:
    """Combine bits one by one: compare which of both are odd, then halve both."""
    if t.x(0).value.type == B8:
        t.give("NOT_EQUAL", t.x(0), t.x(1))
        return
    bits = 32 if t.x(0).value.type == I32 else 8
    x, y = widened(t, 0), widened(t, 1)
    total: Term | None = None
    for bit in range(bits):
        weight = -(2**bit) if bit == bits - 1 and t.out().type != Q8 else 2**bit
        both = plain(t, "ADD", x, y) if bit == 0 else plain(t, "ADD", parity(t, x), parity(t, y))
        part = plain(t, "MUL", parity(t, both), t.scalar(weight, x))
        total = part if total is None else plain(t, "ADD", total, part)
        x, y = (plain(t, "DIV", term, t.scalar(2, x)) for term in (x, y))
    if total is not None:
        narrowed(t, total)


@entry("STABLEHLO_SHIFT_LEFT", inputs=2, single=True, becomes="MUL by powers of 2")
def shift_left(t: OperatorTask) -> None:
    """Shift left.

    Bits beyond the 32nd are lost, as in MUL; from 32 places on, LiteRT's result depends on the processor.
    """
    x, y = t.x(0), t.x(1)
    t.require(x.value.type == y.value.type == I32, f"of {x.kind} has no operation on bits in NNAPI, must be INT32")
    y = t.make("MINIMUM", t.make("MAXIMUM", y, t.scalar(0, y)), t.scalar(TOP + 2, y))
    powers = np.array([1 << n for n in range(TOP + 3)], np.int64).astype(np.int32)
    t.result(0, plain(t, "MUL", x, t.make("GATHER", constant(Value(I32), powers), 0, y, like=Value(I32))))


@entry("BROADCAST_ARGS", inputs=2, becomes="GATHER, EQUAL, SELECT")
def broadcast_args(t: OperatorTask) -> None:
    """Return the shape that two shapes broadcast to: from the back, the other's dimension if one is 1."""
    shapes = [t.index(place, "a shape") for place in (0, 1)]
    most = max(math.prod(t.known(shape)) for shape in shapes)
    t.check_count(most)
    places = [
        np.concatenate([np.full(most - n, NOWHERE), np.arange(n)]) for n in (math.prod(t.known(s)) for s in shapes)
    ]
    x, y = (moved(t, [shape], at, 1) for shape, at in zip(shapes, places, strict=True))
    single = t.make("EQUAL", x, t.scalar(1, x), like=Value(B8))
    t.result(0, t.make("SELECT", single, y, x, like=x))


@entry("BUCKETIZE", becomes="GREATER_EQUAL with each boundary, SELECT, REDUCE_SUM, CAST")
def bucketize(t: OperatorTask) -> None:
    """Count the boundaries that are not greater."""
    x, found = t.x(0), t.options("BucketizeOptions").numbers("Boundaries") or ()
    shape, bounds = t.known(x), np.asarray(found, np.float32)
    if x.value.type == I32:
        whole = np.ceil(bounds.astype(np.float64))
        t.require((np.abs(whole) < 2**31).all(), "has boundaries beyond 32 bits")
        bounds = whole.astype(np.int32)
    else:
        t.require(x.value.type == F32, f"of {x.kind} is not in TFLite")
    size = math.prod(shape)
    t.require(size and bounds.size, "has no elements, or no boundaries")
    t.check_count(size * bounds.size)
    rows = t.reshaped(x, (size, 1))
    above = t.make("GREATER_EQUAL", rows, constant(Value(x.value.type), bounds.reshape(1, -1)), like=Value(B8))
    one, none = (t.filled((size, bounds.size), n, F32) for n in (1, 0))
    hits = t.make("SELECT", above, one, none, like=Value(F32))
    count = t.make("CAST", t.make("REDUCE_SUM", hits, t.integers([1]), False), like=Value(I32))
    t.result(0, t.reshaped(count, shape))
