"""Functions of real numbers and of integers without an NNAPI operation, composed from existing ones."""

import math
from typing import Any

import numpy as np

from nnhal.base.codes import MAX_RANK
from nnhal.base.operands import Array, Value
from nnhal.frontends.common.element_moves import NOWHERE, moved
from nnhal.frontends.common.folding import numbers, require_foldable
from nnhal.frontends.common.functions import (
    TOP,
    RealArithmetic,
    angle_of,
    cosine_of,
    gelu_of,
    parity,
    rounded,
    sign_of,
)
from nnhal.frontends.common.functions import plain as combined
from nnhal.frontends.common.integer_ranges import sign as sign_range
from nnhal.frontends.common.operators import COUNTED
from nnhal.frontends.common.terms import PLAIN_SCALE, Term, constant
from nnhal.frontends.common.writing import ASYMMETRIC, check_count, either
from nnhal.frontends.tflite.elementwise import plain
from nnhal.frontends.tflite.task import MOST_FOLDED, OperatorTask, computed, operator
from nnhal.ops.schema import B8, F32, I32, Q8, Q8S

MOST_BITS = 16  # of FAKE_QUANT


def real(t: OperatorTask, place: int = 0) -> Term:
    """Return an input of floats; a quantised one requires the attempt on real values."""
    x = t.x(place)
    t.require(x.value.type not in ASYMMETRIC, "is rounded twice when it is composed")
    return x


@operator("COS", real=True, single=True, becomes="1 - 2 SIN(x / 2)²")
def cosine(t: OperatorTask) -> None:
    """Write the cosine without a sum that would round a large argument."""
    t.result(0, cosine_of(t, real(t)))


@operator("SIGN", single=True, fold=plain(np.sign), span=sign_range, becomes="GREATER, LESS, SELECT, ABS")
def sign(t: OperatorTask) -> None:
    """Write 1 or -1; for 0 and NaN, their absolute value."""
    t.result(0, sign_of(t, real(t)))


@operator("ROUND", single=True, fold=plain(np.rint), becomes="FLOOR and SELECT, halves to even")
def round_(t: OperatorTask) -> None:
    """Round halves to even: up if more than half is left, or exactly half above an odd number."""
    t.result(0, rounded(t, real(t)))


@operator("GELU", real=True, single=True, becomes="exact: EXP and a polynomial for erf; approximate: TANH")
def gelu(t: OperatorTask) -> None:
    t.result(0, gelu_of(t, real(t), bool(t.options("GeluOptions")("Approximate"))))


@operator("ATAN2", inputs=2, single=True, becomes="DIV and a polynomial, in the eighth of the circle, then SELECT")
def angle(t: OperatorTask) -> None:
    """Write atan2 of equal shapes."""
    y, x, r = real(t, 0), real(t, 1), RealArithmetic(t)
    first = angle_of(t, t.make("ABS", y), t.make("ABS", x))
    left = r.choose(r.negative(x), r.less(math.pi, first), first)
    t.result(0, r.choose(r.negative(y), t.make("NEG", left), left))


@operator("FAKE_QUANT", single=True, becomes="MAXIMUM, MINIMUM, then FLOOR of quantisation steps")
def fake_quantise(t: OperatorTask) -> None:
    """Clamp to a range in which 0 is a quantisation step, and round to a step."""
    o, x, r = t.options("FakeQuantOptions"), real(t), RealArithmetic(t)
    low, high, bits = o("Min"), o("Max"), o("NumBits")
    t.require(low <= 0 <= high and low < high and 2 <= bits <= MOST_BITS, f"has range {low} to {high} in {bits} bits")
    least, most = np.float32(bool(o("NarrowRange"))), np.float32(2**bits - 1)
    scale = np.float32((np.float32(high) - np.float32(low)) / (most - least))
    zero = np.clip(np.floor(least - np.float32(low) / scale + np.float32(0.5)), least, most).astype(np.float32)
    bottom, top = float((least - zero) * scale), float((most - zero) * scale)
    inside = r("MINIMUM", r("MAXIMUM", x, bottom), top)
    steps = t.make("FLOOR", r("ADD", r("MUL", r("SUB", inside, bottom), float(np.float32(1) / scale)), 0.5))
    t.result(0, r("ADD", r("MUL", steps, float(scale)), bottom))


# ---------------------------------------------------------------------------------------------------------- of integers


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


@operator("RIGHT_SHIFT", inputs=2, single=True, integral=True, becomes="DIV by powers of 2, which rounds down")
def shift(t: OperatorTask) -> None:
    """Shift arithmetically, by at most 31 bits."""
    x, y = widened(t, 0), widened(t, 1)
    y = t.make("MINIMUM", t.make("MAXIMUM", y, t.scalar(0, y)), t.scalar(TOP + 1, y))
    steps = [2 ** min(n, TOP) for n in range(TOP + 2)]
    for powers in (steps, [1] * (TOP + 1) + [2]):
        table = constant(Value(I32), np.array(powers, np.int32))
        x = combined(t, "DIV", x, t.make("GATHER", table, 0, y, like=Value(I32)))
    narrowed(t, x)


@operator(
    "BITWISE_XOR", inputs=2, single=True, integral=True, becomes="NOT_EQUAL of booleans; of integers the bits, by DIV"
)
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
        both = combined(t, "ADD", x, y) if bit == 0 else combined(t, "ADD", parity(t, x), parity(t, y))
        part = combined(t, "MUL", parity(t, both), t.scalar(weight, x))
        total = part if total is None else combined(t, "ADD", total, part)
        x, y = (combined(t, "DIV", term, t.scalar(2, x)) for term in (x, y))
    if total is not None:
        narrowed(t, total)


@operator("STABLEHLO_SHIFT_LEFT", inputs=2, single=True, integral=True, becomes="MUL by powers of 2")
def shift_left(t: OperatorTask) -> None:
    """Shift left.

    Bits beyond the 32nd are lost, as in MUL; from 32 places on, LiteRT's result depends on the processor.
    """
    x, y = t.x(0), t.x(1)
    t.require(x.value.type == y.value.type == I32, f"of {x.kind} has no operation on bits in NNAPI, must be INT32")
    y = t.make("MINIMUM", t.make("MAXIMUM", y, t.scalar(0, y)), t.scalar(TOP + 2, y))
    powers = np.array([1 << n for n in range(TOP + 3)], np.int64).astype(np.int32)
    t.result(0, combined(t, "MUL", x, t.make("GATHER", constant(Value(I32), powers), 0, y, like=Value(I32))))


def folded_broadcast_args(_: OperatorTask, x: Array, y: Array) -> Any:
    require_foldable(max(x.size, y.size) <= MAX_RANK)
    return np.array(np.broadcast_shapes(tuple(numbers(x)), tuple(numbers(y))), np.int64)


@operator("BROADCAST_ARGS", inputs=2, fold=folded_broadcast_args, becomes="GATHER, EQUAL, SELECT")
def broadcast_args(t: OperatorTask) -> None:
    """Return the shape that two shapes broadcast to: from the back, the other's dimension if one is 1."""
    shapes = [t.index(place, "a shape") for place in (0, 1)]
    most = max(math.prod(t.known(shape)) for shape in shapes)
    check_count(most)
    places = [
        np.concatenate([np.full(most - n, NOWHERE), np.arange(n)]) for n in (math.prod(t.known(s)) for s in shapes)
    ]
    x, y = (moved(t, [shape], at, 1) for shape, at in zip(shapes, places, strict=True))
    single = t.make("EQUAL", x, t.scalar(1, x), like=Value(B8))
    t.result(0, t.make("SELECT", single, y, x, like=x))


@operator("BUCKETIZE", becomes="GREATER_EQUAL with each boundary, SELECT, REDUCE_SUM, CAST")
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
    check_count(size * bounds.size)
    rows = t.reshaped(x, (size, 1))
    above = t.make("GREATER_EQUAL", rows, constant(Value(x.value.type), bounds.reshape(1, -1)), like=Value(B8))
    count = t.make("CAST", t.make("REDUCE_SUM", either(t, above, 1, 0, F32), t.integers([1]), False), like=Value(I32))
    t.result(0, t.reshaped(count, shape))


# ------------------------------------------------------------------------------------------- computed at import only


@computed("RANGE", becomes="",
          refused=f"of limits that are computed at execution {COUNTED}")  # fmt: skip
def range_(_: OperatorTask, start: Array, limit: Array, delta: Array) -> Any:
    first, last, step = (x.reshape(()) for x in (start, limit, delta))
    require_foldable(
        first.dtype.kind == "i" and step != 0 and abs(int(last) - int(first)) // abs(int(step)) <= MOST_FOLDED
    )
    return np.arange(int(first), int(last), int(step))


@computed("WHERE", becomes="",
          refused=f"of a condition that is computed at execution {COUNTED}")  # fmt: skip
def where(_: OperatorTask, condition: Array) -> Any:
    return np.argwhere(condition)
