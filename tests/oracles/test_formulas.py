"""Operations against their definitions written out in float64: every type, and scales from 2^-22 to 2^22.

An entry says how to draw a call and which function of real numbers it is; `real` and `nearest` put quantisation around it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from nnhal.base.operands import Array, ChannelQuant, Value, dtype_of
from tests.ops.run import B8, F16, F32, I32, Q8, Q8PC, Q8S, Q8SYMM, Q16A, Q16S, Type, result, value
from tests.oracles.strategies import STABLE, Example, Source, assert_agrees, broadcastable, quantised, shapes

FLOAT, QUANT = (F32, F16), (Q8, Q8S)
INF = float("inf")
POINTS = {F32: (0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 6.0, 1e30, -1e30, 3e38, -3e38, 1e-40, INF, -INF)}
POINTS[F16] = (0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 6.0, 6e4, -6e4, 6e-8, INF, -INF)
LIMITS = {0: (-INF, INF), 1: (0, INF), 2: (-1, 1), 3: (0, 6)}
AROUND = st.sampled_from((-16, 0, 0, 16))  # the power of two that the scales of one call are about


def real(v: Value) -> Array:
    """The numbers that a tensor stands for, in float64."""
    if v.channel is not None:
        along = [-1 if axis == v.channel.axis else 1 for axis in range(v.array.ndim)]
        return v.array * np.reshape(np.asarray(v.channel.scales, np.float64), along)
    if quantised(v.type):
        return (v.array.astype(np.float64) - v.zero_point) * v.scale
    return v.array.astype(np.float64) if v.type in FLOAT else v.array


def nearest(v: Value, x: Array) -> Array:
    """The elements of `v`'s type that stand for numbers: quantised ones rounded and saturated, integers wrapped."""
    dtype = dtype_of(v.type)
    if not quantised(v.type):
        with np.errstate(over="ignore"):
            return np.asarray(x).astype(dtype)
    limits = np.iinfo(dtype)
    return np.clip(np.rint(x / np.float64(v.scale)) + v.zero_point, limits.min, limits.max).astype(dtype)


# ----------------------------------------------------------------------------------------------- how calls are drawn


@st.composite
def unary(draw: Any, kind: int, same: bool = False, fixed: Any = None, points: Any = POINTS) -> Example:
    source, base = Source(draw), draw(AROUND)
    x = source.tensor(kind, draw(shapes()), q := source.quant(kind, base), points=points.get(kind, ()))
    wanted = q if same else fixed[kind] if fixed and kind in fixed else source.quant(kind, base)
    return Example((x,), result(kind, None, *wanted))


@st.composite
def binary(
    draw: Any,
    kind: int,
    fused: bool = False,
    nonzero: bool = False,
    narrower: bool = False,
    wild: bool = True,
    **more: Any,
) -> Example:
    """nonzero: no zeros in the second tensor. narrower: the second tensor broadcasts to the first. wild: as to scales."""
    source, base, spread = Source(draw), draw(AROUND) if wild else 0, 6 if wild else 2
    more.setdefault("points", POINTS.get(kind, ()))
    sizes = broadcastable(draw)
    if narrower:
        sizes = sorted(sizes, key=lambda s: (len(s), math.prod(s)), reverse=True)
    x, y = (source.tensor(kind, shape, source.quant(kind, base, spread), **more) for shape in sizes)
    if nonzero:
        y.array[y.array == 0] = 1
    activation = (draw(st.integers(0, 3)) if kind != I32 else 0,) if fused else ()
    return Example((x, y, *activation), result(kind, None, *source.quant(kind, base, spread)))


@st.composite
def product(draw: Any, kind: int, least: int = 0, **more: Any) -> Example:
    """The output's scale is greater than the product of the factors', by 2 to the power of `least` and up to 18."""
    example, source = draw(binary(kind, True, **more)), Source(draw)
    if not quantised(kind):
        return example
    x, y = example.tensors
    ratio = source.rng.uniform(1.001, 2) * 2.0 ** source.pick(least, least, 8, 17)
    scale = np.float32(x.scale) * np.float32(y.scale) * np.float32(ratio)
    return Example(example.inputs, result(kind, None, float(scale), example.output.zero_point))


@st.composite
def compared(draw: Any, kind: int) -> Example:
    """Exact scales: what is equal in real numbers is equal in float32 too."""
    source, base = Source(draw), draw(AROUND)
    first, second = (source.quant(kind, base, 3, exact=True) for _ in range(2))
    scales = first, source.pick(first, second)
    points = POINTS.get(kind, ())
    x, y = (source.tensor(kind, s, q, points=points) for s, q in zip(broadcastable(draw), scales, strict=True))
    return Example((x, y), result(B8))


@st.composite
def selected(draw: Any, kind: int) -> Example:
    source, shape, base = Source(draw), draw(shapes()), draw(AROUND)
    x, y = (source.tensor(kind, shape, source.quant(kind, base)) for _ in range(2))
    return Example((source.tensor(B8, shape), x, y), result(kind, None, *source.quant(kind, base)))


@st.composite
def reduced(draw: Any, kind: int, number: bool = False, **more: Any) -> Example:
    source, shape = Source(draw), draw(shapes())
    q = source.quant(kind, draw(AROUND))
    axes = source.rng.integers(-len(shape), len(shape), draw(st.integers(1, len(shape))))
    keep = draw(st.booleans())
    x = source.tensor(kind, shape, q, **more)
    return Example((x, value(I32, axes), int(keep) if number else keep), result(kind, None, *q))


@st.composite
def indexed(draw: Any, kind: int) -> Example:
    source, shape = Source(draw), draw(shapes())
    x = source.tensor(kind, shape, source.quant(kind))
    return Example((x, draw(st.integers(-len(shape), len(shape) - 1))), result(I32))


@st.composite
def cast(draw: Any, kind: int) -> Example:
    """What lies outside of the type it becomes is not defined: numbers are drawn within its range."""
    source = Source(draw)
    to = draw(st.sampled_from((F32, F16, I32, Q8) if kind in (F32, F16, I32, Q8) else (kind,)))
    x = source.contents(kind, draw(shapes()), points=(0.0, -0.0, 0.99, -0.99, 255.0, 1e-4, 6e4), span=300)
    if dtype_of(to).kind != "f" and to != kind:
        limits = np.iinfo(dtype_of(to))
        x = np.clip(x, max(limits.min, -60000), min(limits.max, 60000))
    return Example((value(kind, x, *source.quant(kind)),), result(to, None, *source.quant(to)))


@st.composite
def to_steps(draw: Any, kind: int, ends: tuple[float, ...] = (INF, -INF)) -> Example:
    source, to = Source(draw), draw(st.sampled_from(QUANT))
    scale, zero = source.quant(to, draw(AROUND) if kind == F32 else 0)
    points = (0.0, -0.0, scale, scale / 2, *ends)
    return Example(
        (source.tensor(kind, draw(shapes()), span=300 * scale, points=points),), result(to, None, scale, zero)
    )


@st.composite
def from_steps(draw: Any, kind: int, exact: bool = False) -> Example:
    source, shape, half = Source(draw), draw(shapes()), draw(st.booleans())
    q, channel = source.quant(kind, 0 if half else draw(AROUND), exact=exact), None
    if kind == Q8PC:
        axis = draw(st.integers(0, len(shape) - 1))
        q, channel = (0.0, 0), ChannelQuant(tuple(source.quant(Q8SYMM)[0] for _ in range(shape[axis])), axis)
    x = value(kind, source.contents(kind, shape), *q, channel)
    return Example((x,), result(F16 if half else F32))


# --------------------------------------------------------------------------------------------------- what they compute


def activated(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda x, y, activation: np.clip(function(x, y), *LIMITS[activation]) if activation else function(x, y)


def quotient(x: Array, y: Array) -> Array:
    return x // y if x.dtype.kind == "i" else x / y


def along(function: Callable[..., Array]) -> Callable[..., Array]:
    def over(x: Array, axes: Array, keep: int) -> Array:
        y = function(x, axis=tuple({int(axis) % x.ndim for axis in axes}), keepdims=bool(keep))
        return y.reshape(y.shape or (1,))

    return over


def place(function: Callable[..., Array]) -> Callable[..., Array]:
    def at(x: Array, axis: int) -> Array:
        y = np.asarray(function(x, axis=axis))
        return y.reshape(y.shape or (1,))

    return at


def wide(function: Callable[..., Array]) -> Callable[..., Array]:
    """Integers in 64 bits, wrapped to 32 by `nearest`."""
    return lambda *xs: function(
        *[x.astype(np.int64) if isinstance(x, np.ndarray) and x.dtype == np.int32 else x for x in xs]
    )


@dataclass(frozen=True)
class Rule:
    """How one operation is drawn and what it computes; `stored`: from stored values, not from the real ones."""

    name: str
    types: tuple[int, ...]
    draw: Callable[[int], st.SearchStrategy[Example]]
    function: Callable[..., Array]
    stored: bool = False

    def expected(self, example: Example) -> Array:
        decoded = [x if not isinstance(x, Value) else x.array if self.stored else real(x) for x in example.inputs]
        with np.errstate(all="ignore"):
            y = self.function(*decoded)
            return y.astype(dtype_of(example.output.type)) if self.stored else nearest(example.output, y)


SQUASHED = {"TANH": {Q8: (1 / 128, 128), Q8S: (1 / 128, 0)}, "LOGISTIC": {Q8: (1 / 256, 0), Q8S: (1 / 256, -128)}}
POSITIVE = {F32: (0.0, 1e-40, 1.0, 3e38, -1.0, INF), F16: (0.0, 6e-8, 1.0, 6e4, -1.0, INF)}
MILD = {"span": 4.0, "points": (0.0, 1.0, -1.0, 2.0, -2.0, 3.0, 0.5)}
ALL = (*FLOAT, I32, *QUANT)

RULES = [
    Rule("ADD", ALL, partial(binary, fused=True), activated(wide(np.add))),
    Rule("SUB", ALL, partial(binary, fused=True), activated(wide(np.subtract))),
    Rule("MUL", ALL, product, activated(wide(np.multiply))),
    Rule("DIV", (*FLOAT, I32), partial(binary, fused=True, nonzero=True), activated(wide(quotient))),
    Rule("POW", FLOAT, partial(binary, **MILD), np.power),
    Rule("MAXIMUM", ALL, binary, np.maximum),
    Rule("MINIMUM", ALL, binary, np.minimum),
    Rule("PRELU", (*FLOAT, *QUANT), partial(binary, **MILD), lambda x, slope: np.where(x < 0, slope * x, x)),
    Rule("ABS", (*FLOAT, I32), unary, wide(np.abs)),
    Rule("NEG", (*FLOAT, I32), unary, wide(np.negative)),
    Rule("SQRT", FLOAT, partial(unary, points=POSITIVE), np.sqrt),
    Rule("FLOOR", FLOAT, unary, np.floor),
    Rule("RELU", (*FLOAT, *QUANT), partial(unary, same=True), lambda x: np.where(x > 0, x, 0)),
    Rule("RELU1", (*FLOAT, *QUANT), partial(unary, same=True), lambda x: np.minimum(1, np.maximum(-1, x))),
    Rule("RELU6", (*FLOAT, *QUANT), partial(unary, same=True), lambda x: np.minimum(6, np.maximum(0, x))),
    Rule("TANH", (*FLOAT, *QUANT), partial(unary, fixed=SQUASHED["TANH"]), np.tanh),
    Rule("LOGISTIC", (*FLOAT, *QUANT), partial(unary, fixed=SQUASHED["LOGISTIC"]), special.expit),
    Rule("HARD_SWISH", (*FLOAT, *QUANT), unary, lambda x: x * np.maximum(0, np.minimum(6, x + 3)) / 6),
    Rule("EQUAL", (*ALL, B8), compared, np.equal),
    Rule("NOT_EQUAL", (*ALL, B8), compared, np.not_equal),
    Rule("LESS", (*ALL, B8), compared, np.less),
    Rule("LESS_EQUAL", (*ALL, B8), compared, np.less_equal),
    Rule("GREATER", (*ALL, B8), compared, np.greater),
    Rule("GREATER_EQUAL", (*ALL, B8), compared, np.greater_equal),
    Rule("LOGICAL_OR", (B8,), compared, lambda x, y: (x != 0) | (y != 0)),
    Rule("LOGICAL_NOT", (B8,), unary, lambda x: x == 0),
    Rule("SELECT", ALL, selected, lambda condition, x, y: np.where(condition != 0, x, y)),
    Rule("CAST", (*FLOAT, I32, Q8, B8, Q16A, Q16S, Q8S, Q8SYMM), cast, lambda x: x, stored=True),  # numpy truncates
    Rule("QUANTIZE", FLOAT, to_steps, lambda x: x),
    Rule("DEQUANTIZE", (Q8, Q8S, Q8SYMM, Q8PC), from_steps, lambda x: x),
    Rule("REDUCE_SUM", FLOAT, reduced, along(np.sum)),
    Rule("REDUCE_PROD", FLOAT, partial(reduced, **MILD), along(np.prod)),
    Rule("REDUCE_MAX", (*FLOAT, *QUANT), reduced, along(np.max)),
    Rule("REDUCE_MIN", (*FLOAT, *QUANT), reduced, along(np.min)),
    Rule("REDUCE_ALL", (B8,), reduced, along(np.all)),
    Rule("REDUCE_ANY", (B8,), reduced, along(np.any)),
    Rule("MEAN", (*FLOAT, *QUANT), partial(reduced, number=True), along(np.mean)),
    Rule("ARGMAX", ALL, indexed, place(np.argmax), stored=True),
    Rule("ARGMIN", ALL, indexed, place(np.argmin), stored=True),
]


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        pytest.param(rule, kind, id=f"{rule.name}-{TYPE_NAME}")
        for rule in RULES
        for kind in rule.types
        for TYPE_NAME in [Type(kind).name]
    ],
)
@STABLE
@given(data=st.data())
def test_operation_computes_its_definition(rule: Rule, kind: int, data: st.DataObject) -> None:
    example = data.draw(rule.draw(kind))
    assert_agrees(rule.name, example, rule.expected(example))
