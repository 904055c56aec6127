"""The ten operations that have no published vector of their own, against scipy and formulas in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from nnhal.base.operands import Array, Value
from tests.ops.run import B8, F16, F32, I32, Q8, Q8S, Type, result, value
from tests.oracles.strategies import STABLE, Example, Source, assert_agrees, broadcastable, quantised, shapes
from tests.oracles.test_formulas import nearest, real

Draw = Callable[..., Any]
Entry = tuple[str, tuple[int, ...], Callable[[int], st.SearchStrategy[Example]], Callable[[Example], Array]]
FLOATS = (F32, F16)


@st.composite
def floats(draw: Draw, kind: int, low: float, high: float, *scalars: Callable[[Source], float]) -> Example:
    """One tensor of values in [low, high], and scalar arguments."""
    source = Source(draw)
    x = source.tensor(kind, draw(shapes()), points=(1.0,))
    x.array[...] = source.rng.uniform(low, high, x.array.shape)
    return Example((x, *(scalar(source) for scalar in scalars)), result(kind))


@st.composite
def pictures(draw: Draw, kind: int) -> Example:
    source, nchw = Source(draw), draw(st.booleans())
    x = source.tensor(kind, draw(shapes((4, 4))), span=3.0, points=(0.0, 1.0, -1.0))
    gamma, beta, epsilon = source.rng.uniform(0.5, 2), source.rng.uniform(-1, 1), source.pick(1e-3, 1e-2)
    return Example((x, *(half(kind, v) for v in (gamma, beta, epsilon)), nchw), result(kind))


@st.composite
def classes(draw: Draw, kind: int) -> Example:
    source, shape = Source(draw), draw(shapes())
    x = source.tensor(kind, shape, span=5.0, points=(0.0, 5.0, -5.0))
    beta = half(kind, source.rng.uniform(0.2, 2))
    return Example((x, beta, draw(st.integers(-len(shape), len(shape) - 1))), result(kind))


@st.composite
def booleans(draw: Draw, kind: int) -> Example:
    source = Source(draw)
    return Example(tuple(source.tensor(kind, shape) for shape in broadcastable(draw)), result(B8))


@st.composite
def reversals(draw: Draw, kind: int) -> Example:
    source, shape = Source(draw), draw(shapes())
    q = source.quant(kind)
    axis = source.tensor(I32, (1,))
    axis.array[0] = draw(st.integers(0, len(shape) - 1))
    return Example((source.tensor(kind, shape, q), axis), result(kind, None, *q))


@st.composite
def products(draw: Draw, kind: int) -> Example:
    source = Source(draw)
    batch = draw(st.sampled_from([(), (2,), (2, 3)]))
    n, m, k = (draw(st.integers(1, 4)) for _ in range(3))
    turned = draw(st.booleans()), draw(st.booleans())
    left, right = (n, m) if not turned[0] else (m, n), (m, k) if not turned[1] else (k, m)
    q, r = source.quant(kind, 0, 2), source.quant(kind, 0, 2)
    x, y = source.tensor(kind, (*batch, *left), q, span=3.0), source.tensor(kind, (*batch, *right), r, span=3.0)
    scale = float(np.float32(q[0] * r[0] * source.rng.uniform(1.5, 100)))
    out = result(kind, None, scale, source.quant(kind)[1]) if quantised(kind) else result(kind)
    return Example((x, y, *turned), out)


@st.composite
def positives(draw: Draw, kind: int) -> Example:
    """Quantised elements above the zero point, so that the root is defined."""
    source = Source(draw)
    if not quantised(kind):
        return draw(floats(kind, 0.01, 100.0))
    scale, zero = source.quant(kind, 0, 2)
    zero = min(zero, np.iinfo(np.uint8 if kind == Q8 else np.int8).max - 1)
    x = source.tensor(kind, draw(shapes()), (scale, zero))
    np.maximum(x.array, zero + 1, out=x.array)
    return Example((x,), result(kind, None, float(np.float32(source.rng.uniform(0.005, 0.05))), source.quant(kind)[1]))


def half(kind: int, number: float) -> Value | float:
    """A scalar of the tensor type's own scalar type."""
    return value(Type.FLOAT16, np.float16(number)) if kind == F16 else float(np.float32(number))


def plain(scalar: Value | float) -> float:
    """The number that a scalar holds."""
    return float(scalar.array) if isinstance(scalar, Value) else float(scalar)


def elu(e: Example) -> Array:
    x, alpha = real(e.inputs[0]), plain(e.inputs[1])
    return np.where(x > 0, x, alpha * special.expm1(np.minimum(x, 0)))


def normalised(e: Example) -> Array:
    x, *scalars, nchw = e.inputs
    gamma, beta, epsilon = map(plain, scalars)
    values, axes = real(x), (2, 3) if nchw else (1, 2)
    spread = values.var(axes, keepdims=True) + epsilon
    return (values - values.mean(axes, keepdims=True)) / np.sqrt(spread) * gamma + beta


def log_softmax(e: Example) -> Array:
    x, beta, axis = e.inputs
    return special.log_softmax(real(x) * plain(beta), axis)


def product(e: Example) -> Array:
    x, y, *turned = e.inputs
    a, b = (real(v).swapaxes(-1, -2) if t else real(v) for v, t in zip((x, y), turned, strict=True))
    return a.astype(np.int64) @ b.astype(np.int64) if x.type == I32 else a @ b


ENTRIES: list[Entry] = [
    ("ELU", FLOATS, lambda k: floats(k, -8, 8, lambda s: half(k, s.rng.uniform(0.1, 2))), elu),
    ("EXP", FLOATS, lambda k: floats(k, -8, 8), lambda e: np.exp(real(e.inputs[0]))),
    ("LOG", FLOATS, lambda k: floats(k, 0.01, 1e4), lambda e: np.log(real(e.inputs[0]))),
    ("SIN", FLOATS, lambda k: floats(k, -30, 30), lambda e: np.sin(real(e.inputs[0]))),
    ("RSQRT", (F32, F16, Q8, Q8S), positives, lambda e: 1 / np.sqrt(real(e.inputs[0]))),
    ("LOGICAL_AND", (B8,), booleans, lambda e: np.logical_and(e.inputs[0].array, e.inputs[1].array)),
    ("LOG_SOFTMAX", FLOATS, classes, log_softmax),
    ("INSTANCE_NORMALIZATION", FLOATS, pictures, normalised),
    ("REVERSE", (F32, F16, I32, Q8, Q8S), reversals, lambda e: np.flip(real(e.inputs[0]), int(e.inputs[1].array[0]))),
    ("BATCH_MATMUL", (F32, F16, I32, Q8S), products, product),
]
CASES = [pytest.param(*entry, kind, id=f"{entry[0]}-{kind}") for entry in ENTRIES for kind in entry[1]]


@pytest.mark.parametrize(("name", "kinds", "drawn", "oracle", "kind"), CASES)
def test_the_kernel_is_the_formula(name, kinds, drawn, oracle, kind):
    @STABLE
    @given(drawn(kind))
    def holds(example: Example) -> None:
        with np.errstate(all="ignore"):
            expected = nearest(example.output, oracle(example))
        assert_agrees(name, example, expected, floor=1e-5 if kind == F32 else 0.0)

    holds()
