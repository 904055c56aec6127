"""Reductions over axes, and cumulative sums, composed if NNAPI's operation lacks the type or rank."""

import math
from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from typing import Any

from nnhal.frontends.common.element_moves import part_of, three
from nnhal.frontends.common.terms import Term
from nnhal.frontends.common.writing import OperationWriter

PAIRWISE = {"REDUCE_SUM": "ADD", "MEAN": "ADD", "REDUCE_PROD": "MUL", "REDUCE_MAX": "MAXIMUM", "REDUCE_MIN": "MINIMUM"}
BOTH = PAIRWISE | {"REDUCE_ALL": "LOGICAL_AND", "REDUCE_ANY": "LOGICAL_OR"}


def unfused(name: str) -> dict[str, Any]:
    """Return the arguments of an operation of two tensors without a fused activation."""
    return {"activation": 0} if name in ("ADD", "SUB", "MUL", "DIV") else {}


def grouped(
    t: OperationWriter, x: Term, shape: Sequence[int], axes: Collection[int], along: Callable[[Term], Term]
) -> Term:
    """Reduce a term of `shape`; each run of reduced dimensions becomes 1.

    Adjacent dimensions that are both reduced, or both kept, are merged. along: reduces the second of three dimensions.
    """
    t.require(0 not in shape, "has no elements")
    sizes, places = runs(shape, axes)
    for place in reversed(places):
        x = along(t.reshaped(x, three(sizes, place)))
        sizes[place] = 1
    return x


def runs(shape: Sequence[int], axes: Collection[int]) -> tuple[list[int], list[int]]:
    """Merge adjacent dimensions that are both reduced, or both kept; return the sizes, and the places of the reduced."""
    groups = [(gone, [shape[i] for i in run]) for gone, run in groupby(range(len(shape)), key=lambda i: i in axes)]
    return [math.prod(run) for _, run in groups], [place for place, (gone, _) in enumerate(groups) if gone]


def halved(t: OperationWriter, name: str, x: Term) -> Term:
    """Reduce int32 by an operation of two: combine the halves of the second of three dimensions until one is left."""
    left: list[Term] = []
    size = t.known(x)[1]
    while size > 1:
        half = size // 2
        if size % 2:
            left.append(part_of(t, x, 1, size - 1, 1))
        x = t.make(name, part_of(t, x, 1, 0, half), part_of(t, x, 1, half, half), **unfused(name))
        size = half
    for other in left:
        x = t.make(name, x, other, **unfused(name))
    return x


def cumulated(t: OperationWriter, x: Term, axis: int, shifted: Callable[[Term, int], Term], *, exclusive: bool) -> Term:
    """Sum over 1, 2, 4, .. elements: each iteration adds the sums that end where the current ones begin.

    shifted: moves the second of three dimensions by some places.
    """
    shape, step = t.known(x), 1
    x = t.reshaped(x, three(shape, axis))
    while step < shape[axis]:
        x = t.make("ADD", x, shifted(x, step), activation=0)
        step *= 2
    return t.reshaped(shifted(x, 1) if exclusive else x, shape)
