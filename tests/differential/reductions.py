"""Oracles of reductions along some axes, and of the places of the greatest and least elements."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from nnhal.base.operands import Array
from tests.differential.oracle import oracle

Row = list[Any]


def total(row: Row) -> float:
    """Rounded once."""
    return math.fsum(row) if np.isfinite(row).all() else float(sum(row))


def product(row: Row) -> float:
    """Exponents apart, so that nothing overflows on the way."""
    if not np.isfinite(row).all():
        return float(np.prod(row))
    parts, exponents = np.frexp(np.array(row, float))
    return float(np.ldexp(np.prod(parts), exponents.sum()))


def extreme(better: Callable[[float, float], bool], worst: float) -> Callable[[Row], float]:
    """The best element; NaN where there is one."""

    def of(row: Row) -> float:
        best = worst
        for x in row:
            if math.isnan(x) or better(x, best):
                best = x
        return best

    return of


REDUCTIONS: dict[str, Callable[[Row], Any]] = {
    "REDUCE_ALL": all,
    "REDUCE_ANY": any,
    "REDUCE_SUM": total,
    "MEAN": lambda row: total(row) / len(row),
    "REDUCE_PROD": product,
}
EXTREMES = {
    "REDUCE_MAX": extreme(lambda x, best: x > best, -math.inf),
    "REDUCE_MIN": extreme(lambda x, best: x < best, math.inf),
}


def reduced(c: SimpleNamespace, function: Callable[[Row], Any]) -> Array:
    """What a function makes of the elements along the axes; where no dimension is left, the shape is [1]."""
    x = c.input
    over = {axis % x.ndim for axis in c.axes}
    rows: dict[tuple[int, ...], Row] = {}
    for place in np.ndindex(x.shape):
        rows.setdefault(tuple(0 if i in over else p for i, p in enumerate(place)), []).append(x[place].item())
    found = np.array([function(row) for row in rows.values()])
    kept = [1 if i in over else n for i, n in enumerate(x.shape) if c.keep_dims or i not in over]
    return found.reshape(kept or [1])


@oracle(*REDUCTIONS)
def reduction(c: SimpleNamespace) -> Array:
    return reduced(c, REDUCTIONS[c.name])


@oracle(*EXTREMES, exact=True)
def extreme_reduction(c: SimpleNamespace) -> Array:
    return reduced(c, EXTREMES[c.name])


def ranked(row: Row, nan: float) -> list[Any]:
    """What counts for the order."""
    return [nan if math.isnan(x) else x for x in row]


def rows_along(x: Array, axis: int) -> tuple[tuple[int, ...], list[Row]]:
    moved = np.moveaxis(x, axis, -1)
    return moved.shape[:-1], [moved[place].tolist() for place in np.ndindex(moved.shape[:-1])]


@oracle("ARGMAX", "ARGMIN", exact=True)
def place_of_extreme(c: SimpleNamespace) -> Array:
    """The first among equals; NaN is never better than another."""
    best, nan = (max, -math.inf) if c.name == "ARGMAX" else (min, math.inf)
    shape, rows = rows_along(c.input, c.axis)
    orders = [ranked(row, nan) for row in rows]
    return np.array([order.index(best(order)) for order in orders]).reshape(shape or (1,))


@oracle("TOPK_V2", exact=True)
def topk(c: SimpleNamespace) -> tuple[Array, Array]:
    """From the greatest on; of equals the last is first; NaN counts as minus infinity."""
    shape, rows = rows_along(c.input, -1)
    places = []
    for row in rows:
        order = ranked(row, -math.inf)
        places.append(sorted(range(len(row)), key=lambda i: (order[i], i), reverse=True)[: c.k])
    values = [[row[i] for i in picked] for row, picked in zip(rows, places, strict=True)]
    return np.array(values).reshape(*shape, c.k), np.array(places).reshape(*shape, c.k)
