"""Tries sizes for dimensions that are open at import: numbers show whether one dimension is a multiple of another.

The effect of a stride or window is too small to notice if sizes are small beside it, so there are small and large
sizes. Large ones may exceed the element limit, and small ones may not fit a window: those give no result.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from nnhal.base.errors import NnhalError
from nnhal.base.operands import Value, fixed
from nnhal.frontends.common.terms import EmittedOperation, OpenDimension, Term, shaped
from nnhal.ops import OPS
from nnhal.ops.schema import bind

TRIED = 7, 11, 85, 601, 1205, 10_001, 80_003  # start sizes of the trials
ENOUGH = 2  # of these that must give a result
APART = 6  # so that no size is even or a multiple of 3
Giver = Callable[[Term], EmittedOperation | None]


class Trials:
    """The known facts of open dimensions of a file.

    names: for an input's dimensions, where a name implies one size. outer: for terms, the term of the enclosing graph
    with the same shape. Both by id, of terms that the import keeps.
    """

    def __init__(self) -> None:
        self.names: dict[int, Sequence[object]] = {}
        self.outer: dict[int, Term] = {}
        self._each = [TrialSizes(self, first) for first in TRIED]

    def quotient(self, x: Term, over: Sequence[OpenDimension], giver: Giver) -> Fraction | None:
        """Return the number of elements of x over open dimensions if it is the same for all sizes; otherwise None.

        giver: returns the operation that produces a term.
        """
        if (own := _own(x, over)) is not None:
            return Fraction(own)
        found: list[Fraction] = []
        for sizes in self._each:
            each = sizes.quotient(x, over, giver)
            found += [] if each is None else [each]
            if len({*found}) > 1:
                return None
        return found[0] if len(found) >= ENOUGH else None


def _own(x: Term, over: Sequence[OpenDimension]) -> int | None:
    """Return the product of the other dimensions if only these are open in x, and they belong to x; otherwise None."""
    axes = [dimension.axis for dimension in over if dimension.term is x]
    others = [size for axis, size in enumerate(x.value.shape or ()) if axis not in axes]
    if len({*axes}) < len(over) or None in others:
        return None
    return math.prod(size for size in others if size is not None)


class TrialSizes:
    """Shapes in which each open dimension without a producing operation has a distinct size, from `first` on."""

    def __init__(self, trials: Trials, first: int) -> None:
        self._trials, self._next = trials, first
        self._sizes: dict[str, int] = {}
        self._found: dict[int, tuple[Term, tuple[int, ...] | None]] = {}  # by id; the term, which keeps it

    def quotient(self, x: Term, over: Sequence[OpenDimension], giver: Giver) -> Fraction | None:
        """Return the number of elements of x over dimensions; None if these sizes give no result."""
        shape, product = self.shape(x, giver), 1
        for dimension in over:
            found = self.shape(dimension.term, giver)
            product *= 0 if found is None else found[dimension.axis]
        return None if shape is None or not product else Fraction(math.prod(shape), product)

    def shape(self, term: Term, giver: Giver) -> tuple[int, ...] | None:
        """Return the shape of a term; None if it is known only at execution even with these sizes."""
        waiting = [term]
        while waiting:
            made = giver(waiting[-1])
            needed = self._needed(waiting[-1], made)
            if needed:
                waiting += needed
            else:
                self._look(waiting.pop(), made)
        return self._found[id(term)][1]

    def _needed(self, term: Term, made: EmittedOperation | None) -> list[Term]:
        """Return the terms that must be known first."""
        if id(term) in self._found or fixed(term.value.shape) is not None:
            return []
        outer = self._trials.outer.get(id(term))
        terms = [x for x in made.inputs if isinstance(x, Term)] if made else [] if outer is None else [outer]
        return [x for x in terms if id(x) not in self._found and x.graph is None]

    def _look(self, term: Term, made: EmittedOperation | None) -> None:
        if id(term) in self._found:
            return
        known, outer = fixed(term.value.shape), self._trials.outer.get(id(term))
        if known is not None:
            self._found[id(term)] = term, known
        elif made is None:
            self._found[id(term)] = term, self._given(term) if outer is None else self._found[id(outer)][1]
        else:
            for out, shape in zip(made.outputs, self._shapes(made), strict=True):
                self._found[id(out)] = out, shape

    def _shapes(self, made: EmittedOperation) -> list[tuple[int, ...] | None]:
        inputs = [self._value(x) if isinstance(x, Term) else None for x in made.inputs]
        try:
            bound = bind(OPS[made.type], inputs, [shaped(out.value, None) for out in made.outputs])
        except NnhalError:  # of sizes that exclude each other, such as those of two inputs
            return [None] * len(made.outputs)
        return [fixed(shape) for shape in bound.shapes]

    def _value(self, x: Term) -> Value:
        _, shape = self._found.get(id(x), (x, None))
        return shaped(x.value, shape, x.value.data)

    def _given(self, term: Term) -> tuple[int, ...] | None:
        """Return the shape of a term that no operation produces."""
        if term.value.shape is None:
            return None
        names = self._trials.names.get(id(term), ())
        return tuple(
            self._size(names[axis] if axis < len(names) else None) if size is None else size
            for axis, size in enumerate(term.value.shape)
        )

    def _size(self, name: object) -> int:
        """Return a size that no dimension with another name has."""
        size, self._next = self._next, self._next + APART
        return self._sizes.setdefault(name, size) if isinstance(name, str) else size
