"""Operations without published vectors over the whole range of their types, against scipy and formulas in float64."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from nnhal.base.operands import Array
from tests.ops.run import B8, F16, F32, I32, Q8, Q8S, Type, result, value
from tests.oracles.strategies import STABLE, Example, Source, assert_agrees, quantised, shapes
from tests.oracles.test_formulas import POINTS, nearest
from tests.strategies import calls, real_arrays

FLOAT = (F32, F16)
WIDE = {kind: (*points, np.nan, 88.7, -104.0, 11.09, -17.0) for kind, points in POINTS.items()}  # ends of exp's range


def elu(x: Array, alpha: Array) -> Array:
    return np.maximum(0, x) + np.minimum(0, alpha * np.expm1(np.minimum(x, 700)))


def rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def log_softmax(x: Array, beta: Array, axis: Array) -> Array:
    return special.log_softmax(beta * x, axis=int(axis))


def instance_normalization(x: Array, gamma: Array, beta: Array, epsilon: Array, nchw: Array) -> Array:
    axes = (2, 3) if nchw else (1, 2)
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) * gamma / np.sqrt(variance + epsilon) + beta


def reverse(x: Array, axis: Array) -> Array:
    return np.flip(x, axis.astype(int))


def batch_matmul(x: Array, y: Array, adj_x: Array, adj_y: Array) -> Array:
    return np.einsum(f"...{'ji' if adj_x else 'ij'},...{'kj' if adj_y else 'jk'}->...ik", x, y)


@st.composite
def not_negative(draw: Any, kind: int) -> Example:
    """Quantised elements from the zero point on: no quantised value stands for the root of a negative one."""
    example = draw(calls("RSQRT", kind, WIDE.get(kind, ())))
    (x,) = example.inputs
    if quantised(kind):
        np.maximum(x.array, x.zero_point, out=x.array)
    return example


@st.composite
def matrices(draw: Any, kind: int) -> Example:
    source, batch = Source(draw), draw(shapes((1, 2))) if draw(st.booleans()) else ()
    rows, inner, columns = source.rng.integers(1, 6, 3)
    turned = source.rng.integers(0, 2, 2)
    sizes = [(rows, inner)[:: -1 if turned[0] else 1], (inner, columns)[:: -1 if turned[1] else 1]]
    x, y = (source.tensor(kind, (*batch, *size), source.quant(kind, 0), span=4.0) for size in sizes)
    flags = [value(Type.BOOL, flag) for flag in turned]
    near = (x.scale * y.scale * 2.0 ** source.rng.integers(-2, 12), source.quant(kind)[1]) if quantised(kind) else ()
    return Example((x, y, *flags), result(kind, None, *near))


RULES = [
    *[("ELU", k, partial(calls, "ELU", points=WIDE[k]), elu) for k in FLOAT],
    *[("EXP", k, partial(calls, "EXP", points=WIDE[k]), np.exp) for k in FLOAT],
    *[("LOG", k, partial(calls, "LOG", points=WIDE[k]), np.log) for k in FLOAT],
    *[("SIN", k, partial(calls, "SIN", points=WIDE[k]), np.sin) for k in FLOAT],
    *[("RSQRT", k, not_negative, rsqrt) for k in (*FLOAT, Q8, Q8S)],
    *[("LOG_SOFTMAX", k, partial(calls, "LOG_SOFTMAX"), log_softmax) for k in FLOAT],
    *[("INSTANCE_NORMALIZATION", k, partial(calls, "INSTANCE_NORMALIZATION"), instance_normalization) for k in FLOAT],
    ("LOGICAL_AND", B8, partial(calls, "LOGICAL_AND"), np.logical_and),
    *[("REVERSE", k, partial(calls, "REVERSE", points=WIDE.get(k, ())), reverse) for k in (*FLOAT, I32, Q8, Q8S)],
    *[("BATCH_MATMUL", k, matrices, batch_matmul) for k in (*FLOAT, Q8S)],
]


@pytest.mark.parametrize(
    ("name", "kind", "drawn", "formula"),
    [pytest.param(*rule, id=f"{rule[0]}-{Type(rule[1]).name}") for rule in RULES],
)
def test_operation_computes_its_formula(name, kind, drawn, formula):
    @STABLE
    @given(drawn(kind=kind))
    def holds(example: Example) -> None:
        with np.errstate(all="ignore"):
            expected = nearest(example.output, formula(*real_arrays(example)))
        assert_agrees(name, example, expected)

    holds()


@STABLE
@given(matrices(kind=I32))
def test_products_of_integers_wrap_around(example: Example) -> None:
    x, y, *turned = (v.array for v in example.inputs)
    expected = batch_matmul(x.astype(np.int64), y.astype(np.int64), *turned)
    assert_agrees("BATCH_MATMUL", example, expected.astype(np.int32))
