"""Oracles of operations on single elements."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import special

from nnhal.base.operands import Array
from tests.differential.oracle import activated, oracle

UNARY = {
    "ABS": np.abs,
    "NEG": lambda x: -x,
    "EXP": np.exp,
    "LOG": np.log,
    "SQRT": np.sqrt,
    "SIN": np.sin,
    "FLOOR": np.floor,
    "TANH": np.tanh,
    "LOGISTIC": special.expit,
    "RELU": lambda x: np.where(x < 0, 0, x),
    "RELU1": lambda x: np.where(x > 1, 1, np.where(x < -1, -1, x)),
    "RELU6": lambda x: np.where(x > 6, 6, np.where(x < 0, 0, x)),
    "HARD_SWISH": lambda x: x * (np.where(x + 3 > 6, 6, np.where(x + 3 < 0, 0, x + 3)) / 6),
    "LOGICAL_NOT": lambda x: ~x,
    "DEQUANTIZE": lambda x: x,
    "QUANTIZE": lambda x: x,
}
BINARY = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "EQUAL": np.equal,
    "NOT_EQUAL": np.not_equal,
    "LOGICAL_AND": lambda x, y: x & y,
    "LOGICAL_OR": lambda x, y: x | y,
    "MAXIMUM": lambda x, y: np.where(np.isnan(x) | (x >= y), x, y),
    "MINIMUM": lambda x, y: np.where(np.isnan(x) | (x <= y), x, y),
    "POW": np.power,
}


@oracle(*UNARY)
def unary(c: SimpleNamespace) -> Array:
    return UNARY[c.name](c.input)


@oracle("ADD", "SUB", "MUL")
def fused(c: SimpleNamespace) -> Any:
    """Integers wrap around."""
    made = BINARY[c.name](c.input1, c.input2)
    return made if made.dtype == np.int32 else activated(c, made)


@oracle("RSQRT")
def reciprocal_root(c: SimpleNamespace) -> Array:
    """Quantised: no value stands for NaN, what is below 0 counts as 0."""
    x = np.maximum(c.input, 0) if c.values["input"].quantised else c.input
    return 1 / np.sqrt(x)


@oracle("DIV")
def quotient(c: SimpleNamespace) -> Array:
    """Integers are divided towards minus infinity, and wrap around."""
    x, y = c.input1, c.input2
    if x.dtype != np.int32:
        return activated(c, x / y)
    whole = np.frompyfunc(lambda m, n: m // n if n else 0, 2, 1)(x.astype(object), y.astype(object))
    return whole.astype(np.int64).astype(np.int32)


@oracle("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", "LOGICAL_AND", "LOGICAL_OR", exact=True)
def compared(c: SimpleNamespace) -> Array:
    return BINARY[c.name](c.input1, c.input2)


@oracle("MAXIMUM", "MINIMUM", exact=True)
def extreme(c: SimpleNamespace) -> Array:
    """NaN where one of the two is."""
    return BINARY[c.name](c.input1, c.input2)


@oracle("POW")
def power(c: SimpleNamespace) -> Array:
    return BINARY[c.name](c.base, c.exponent)


@oracle("PRELU")
def prelu(c: SimpleNamespace) -> Array:
    return np.where(c.input < 0, c.input * c.alpha, c.input)


@oracle("ELU")
def elu(c: SimpleNamespace) -> Array:
    return np.where(c.input > 0, c.input, c.alpha * np.expm1(c.input))


@oracle("SELECT", exact=True)
def select(c: SimpleNamespace) -> Array:
    return np.where(c.condition, c.input1, c.input2)


@oracle("CAST", exact=True)
def cast(c: SimpleNamespace) -> Array:
    """Of stored values; to integers truncated, saturated, 0 for NaN."""
    x, (out,) = c.values["input"].array, c.outs
    if out.dtype.kind == "f" or out.dtype == x.dtype:
        found = x.astype(np.float64) if x.dtype.kind == "f" else x
    else:
        limits = np.iinfo(out.dtype)
        whole = [0 if np.isnan(v) else v if np.isinf(v) else int(v) for v in x.ravel().tolist()]
        found = np.array([int(min(max(v, limits.min), limits.max)) for v in whole], np.int64).reshape(x.shape)
    return (found.astype(np.float64) - out.zero_point) * out.scale if out.quantised else found
