"""Moves by constant indices, if NNAPI's operation lacks the type or rank: a GATHER of elements.

`fold` knows each operator's effect on an array. Applied to element numbers, it gives the source of each element of the
result. Booleans are converted to numbers.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.common.element_moves import NOWHERE, broadcast, merged, moved
from nnhal.frontends.common.terms import Term, UnsupportedOperator, stored
from nnhal.frontends.common.writing import MOST_DIMENSIONS, MOST_PLACES
from nnhal.frontends.tflite.file import Operator, Options
from nnhal.frontends.tflite.fold import FAILURES, MOST, MOVES, CannotFold, numbers, require_foldable
from nnhal.frontends.tflite.graph import ImportGraph
from nnhal.frontends.tflite.task import OperatorTask
from nnhal.ops.schema import B8, I32


def lower_by_places(t: OperatorTask) -> None:
    """Lower an operator of `fold.MOVES` or `FILLED` as source indices of elements."""
    first, last = (1, 2) if t.name == "SPLIT" else (0, len(t.operator.inputs) if t.name in JOINS else 1)
    terms = [t.x(place) for place in range(first, last)]
    starts, numbered = 0, []
    t.check_count(sum(math.prod(t.known(term)) for term in terms))
    for term in terms:
        shape = t.known(term)[: t.rank(term)]
        numbered.append((np.arange(math.prod(shape), dtype=np.int64) + starts).reshape(shape))
        starts += numbered[-1].size
    given: list[Array] = [t.data(n, f"input {n}") for n in range(len(t.operator.inputs)) if not first <= n < last]
    if t.name in VALUED:
        given.pop()
    t.require(all(each.size <= MOST or t.name in INDEXED for each in given), "has more arguments than dimensions")
    arrays = [*given, *numbered] if first else [*numbered, *given]
    function = FILLED.get(t.name) or MOVES[t.name]
    try:
        found = function(t.operator.options, *arrays)
    except (*FAILURES, CannotFold) as error:
        raise UnsupportedOperator(f"its arguments do not fit a tensor of shape {list(numbered[0].shape)}") from error
    for number, places in enumerate(found if isinstance(found, list) else [found]):
        t.result(number, moved(t, terms, np.asarray(places).astype(np.int64), fill_of(t, terms[0])))


def fill_of(t: OperatorTask, x: Term) -> Any:
    """Return the stored value of filled elements."""
    if t.name not in VALUED:
        return stored(x.value)
    place = len(t.operator.inputs) - 1
    value = t.x(place).value
    same = (value.scale, value.zero_point) == (x.value.scale, x.value.zero_point)
    t.require(same, "the value has another scale than the input, must have the same")
    return t.number(place, "value")


# ------------------------------------------------------------------------------------------------ moves that fill in


def _pad(_: Options, x: Array, paddings: Array) -> Any:
    return _padded(x, paddings.astype(np.int64).reshape(x.ndim, 2).tolist())


def _padded(x: Array, widths: Sequence[Sequence[int]]) -> Array:
    require_foldable(math.prod(size + sum(pair) for size, pair in zip(x.shape, widths, strict=True)) <= MOST_PLACES)
    return np.pad(x, widths, constant_values=NOWHERE)


def _diagonal(_: Options, x: Array) -> Any:
    size = x.shape[-1]
    require_foldable(x.size * size <= MOST_PLACES)
    return np.where(np.eye(size, dtype=bool), x[..., None], NOWHERE)


def _space_to_batch(_: Options, x: Array, block: Array, paddings: Array) -> Any:
    sides = numbers(block)
    widths = [(0, 0), *paddings.astype(np.int64).reshape(-1, 2).tolist()]
    padded = _padded(x, widths + [(0, 0)] * (x.ndim - len(widths)))
    rest = padded.shape[1 + len(sides) :]
    pairs = [part for n, side in zip(padded.shape[1:], sides, strict=False) for part in (n // side, side)]
    split = padded.reshape(padded.shape[0], *pairs, *rest)
    count = len(sides)
    order = [2 * i + 2 for i in range(count)] + [0] + [2 * i + 1 for i in range(count)]
    whole = split.transpose(*order, *range(2 * count + 1, split.ndim))
    return whole.reshape(-1, *(n // s for n, s in zip(padded.shape[1:], sides, strict=False)), *rest)


def _dilated(_: Options, x: Array, dilations: Array) -> Any:
    return dilate(x, numbers(dilations))


def dilate(x: Array, steps: Sequence[int]) -> Array:
    """Place elements `steps` apart in each dimension, with fill between."""
    require_foldable(len(steps) == x.ndim and min(steps, default=1) >= 1 and x.size)
    sizes = [(size - 1) * step + 1 for size, step in zip(x.shape, steps, strict=True)]
    require_foldable(math.prod(sizes) <= MOST_PLACES)
    result = np.full(sizes, NOWHERE, np.int64)
    result[tuple(slice(None, None, step) for step in steps)] = x
    return result


def _edged(o: Options, x: Array) -> Any:
    fields = o.read("StablehloPadOptions")
    low, high, inner = (fields.numbers(n) or () for n in ("EdgePaddingLow", "EdgePaddingHigh", "InteriorPadding"))
    return pad_edges(dilate(x, [n + 1 for n in inner]), list(zip(low, high, strict=True)))


def pad_edges(x: Array, widths: Sequence[tuple[int, int]]) -> Array:
    """Add elements before and after, or remove them for negative numbers."""
    require_foldable(len(widths) == x.ndim)
    x = _padded(x, [[max(n, 0) for n in pair] for pair in widths])
    cuts = [slice(max(-low, 0), size - max(-high, 0)) for size, (low, high) in zip(x.shape, widths, strict=True)]
    return x[tuple(cuts)]


FILLED: dict[str, Callable[..., Any]] = {
    "PAD": _pad,
    "PADV2": _pad,
    "MATRIX_DIAG": _diagonal,
    "SPACE_TO_BATCH_ND": _space_to_batch,
    "DILATE": _dilated,
    "STABLEHLO_PAD": _edged,
}
VALUED = ("PADV2", "DILATE", "STABLEHLO_PAD")  # their last input is the fill value
INDEXED = ("GATHER", "GATHER_ND")  # their arguments are as large as their outputs
JOINS = ("PACK", "CONCATENATION", "MATRIX_SET_DIAG")


class NumbersTask(OperatorTask):
    """A move that treats booleans as int32 0 and 1."""

    def x(self, place: int) -> Term:
        """Return input `place`, as numbers."""
        term = super().x(place)
        return self.ones(term) if term.value.type == B8 else term

    def out(self, number: int = 0) -> Value:
        """Return the type of output `number` before it becomes boolean again."""
        value = super().out(number)
        return Value(I32, None) if value.type == B8 else value

    def result(self, number: int, term: Term) -> None:
        """Set output `number`, converted to boolean again."""
        truth = self.declared(number).type == B8 and term.value.type == I32
        super().result(number, self.nonzero_mask(term) if truth else term)


# --------------------------------------------------------------------------------------- single elements, of any rank


class FlatTask(OperatorTask):
    """An elementwise operator whose inputs have as few dimensions as broadcasting requires."""

    def __init__(self, graph: ImportGraph, operator: Operator, *, reals: bool = False) -> None:
        super().__init__(graph, operator, reals=reals)
        terms = [super(FlatTask, self).raw(place) for place in range(len(operator.inputs))]
        self.whole = self.together(*map(self.known, terms))
        self._flat = dict(enumerate(self._flattened(terms)))

    def _flattened(self, terms: Sequence[Term]) -> list[Term]:
        shapes = merged([self.known(x) for x in terms], self.whole)
        if max(map(len, shapes)) > MOST_DIMENSIONS:
            terms = [broadcast(self, x, self.whole) for x in terms]
            shapes = merged([self.known(x) for x in terms], self.whole)
        return [self.reshaped(x, shape) for x, shape in zip(terms, shapes, strict=True)]

    def raw(self, place: int) -> Term:
        """Return input `place`, with fewer dimensions."""
        return self._flat[place]

    def result(self, number: int, term: Term) -> None:
        """Set output `number`, with its original dimensions."""
        super().result(number, term)
        self.results[number] = self.reshaped(self.results[number], self.whole or (1,))
