"""Computes operators whose inputs are all known at import: functions on arrays that both formats share.

Arrays of objects hold None or OpenDimension for values known only at execution: they may be moved, but not computed
with.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nnhal.base.operands import Array
from nnhal.frontends.common.terms import OpenDimension

FAILURES = (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError, MemoryError, KeyError)


class CannotFold(Exception):
    """This operator must be left to execution."""


def require_foldable(condition: Any) -> None:
    """Leave the operator to execution unless the condition holds."""
    if not condition:
        raise CannotFold


def as_stored(result: Array, dtype: "np.dtype[Any]") -> Array:
    """Convert a result to the type of its output; leave it to execution if a value does not fit."""
    if result.dtype == object:
        if any(n is None or isinstance(n, OpenDimension) for n in result.reshape(-1)):
            return result
        result = result.astype(np.float64 if dtype.kind == "f" else np.int64)
    array = result.astype(dtype, copy=False)
    require_foldable(dtype.kind == "f" or dtype == result.dtype or bool((array.astype(result.dtype) == result).all()))
    return array


def numbers(x: Array) -> list[int]:
    """Return integers that are all known."""
    return [int(n) for n in x.reshape(-1)]


def elementwise(function: Callable[..., Any], most: int) -> Callable[..., Any]:
    """Wrap a function of the arrays alone, whose result has at most `most` elements or as many as an input."""

    def folded(_: Any, *xs: Array) -> Any:
        require_foldable(math.prod(np.broadcast_shapes(*(x.shape for x in xs))) <= max(most, *(x.size for x in xs)))
        return function(*xs)

    return folded


def exact(function: Callable[..., Any], most: int = 1 << 20) -> Callable[..., Any]:
    """Wrap a function of integers, of at most `most`; it is left to execution if a result exceeds 64 bits."""

    def folded(*xs: Array) -> Any:
        if all(x.dtype.kind == "f" for x in xs):
            return function(*xs)
        require_foldable(max(x.size for x in xs) <= most)
        return function(*(x.astype(object) for x in xs))

    return folded


def quotient(x: Array, y: Array) -> Any:
    """Divide; integers round towards 0."""
    if x.dtype.kind == "f":
        return x / y
    require_foldable((y != 0).all())
    down = np.abs(x.astype(np.int64)) // np.abs(y.astype(np.int64))
    return down * np.sign(x).astype(np.int64) * np.sign(y).astype(np.int64)


def taken(x: Array, indices: Array) -> Array:
    """Return rows by index vectors, the last dimension of `indices`."""
    return x[tuple(np.moveaxis(indices.astype(np.int64), -1, 0))]
