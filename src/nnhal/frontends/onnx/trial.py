"""Dimensions that are open at import, with sizes on trial: whether one is a multiple of another shows by numbers.

A number that comes of a stride or a window hardly changes where sizes are small beside those, so there are small sizes and
large ones. Large ones may make more elements than there may be, and small ones fewer than a window needs: those say nothing.
"""

from collections.abc import Callable, Sequence

from nnhal.base.errors import NnhalError
from nnhal.base.operands import Value, fixed
from nnhal.frontends.common.terms import Emitted, Term, shaped
from nnhal.ops import OPS
from nnhal.ops.schema import bind

TRIED = 7, 11, 85, 601, 1205, 10_001, 80_003  # from which sizes go up
ENOUGH = 2  # of these that have to say something
APART = 6  # so that no size is even, nor a multiple of 3
Giver = Callable[[Term], Emitted | None]


class TrialSizes:
    """Shapes where each open dimension of what no operation gives has a size of its own, from `first` on."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._sizes: dict[str, int] = {}
        self._named: dict[int, tuple[Term, Sequence[object]]] = {}
        self._same: dict[int, tuple[Term, Term]] = {}
        self._found: dict[int, tuple[Term, tuple[int, ...] | None]] = {}  # by id; the term, which keeps it

    def name(self, term: Term, dims: Sequence[object]) -> None:
        """Dimensions of an input; those of one name have one size."""
        self._named[id(term)] = term, dims

    def same(self, term: Term, other: Term) -> None:
        """Two terms have one shape: the second is of a graph around that of the first."""
        self._same[id(term)] = term, other

    def shape(self, term: Term, giver: Giver) -> tuple[int, ...] | None:
        """The shape of a term; None where it is known only at execution even then. giver: the operation that gives one."""
        waiting = [term]
        while waiting:
            made = giver(waiting[-1])
            needed = [] if id(waiting[-1]) in self._found else self._needed(waiting[-1], made)
            if needed:
                waiting += needed
            else:
                self._look(waiting.pop(), made)
        return self._found[id(term)][1]

    def _needed(self, term: Term, made: Emitted | None) -> list[Term]:
        """What has to be known before."""
        if fixed(term.value.shape) is not None:
            return []
        _, other = self._same.get(id(term), (None, None))
        terms = [x for x in made.inputs if isinstance(x, Term)] if made else [] if other is None else [other]
        return [x for x in terms if id(x) not in self._found and x.graph is None]

    def _look(self, term: Term, made: Emitted | None) -> None:
        known = fixed(term.value.shape)
        if id(term) in self._found:
            return
        if known is not None:
            self._found[id(term)] = term, known
        elif made is None:
            _, other = self._same.get(id(term), (None, None))
            self._found[id(term)] = term, self._given(term) if other is None else self._found[id(other)][1]
        else:
            for out, shape in zip(made.outputs, self._shapes(made), strict=True):
                self._found[id(out)] = out, shape

    def _shapes(self, made: Emitted) -> list[tuple[int, ...] | None]:
        inputs = [self._value(x) if isinstance(x, Term) else None for x in made.inputs]
        try:
            bound = bind(OPS[made.type], inputs, [shaped(out.value, None) for out in made.outputs])
        except NnhalError:  # of sizes that only others fit, as those of two inputs
            return [None] * len(made.outputs)
        return [fixed(shape) for shape in bound.shapes]

    def _value(self, x: Term) -> Value:
        _, shape = self._found.get(id(x), (x, None))
        return shaped(x.value, shape, x.value.data)

    def _given(self, term: Term) -> tuple[int, ...] | None:
        """Of what no operation gives."""
        if term.value.shape is None:
            return None
        _, names = self._named.get(id(term), (term, ()))
        return tuple(
            self._size(names[axis] if axis < len(names) else None) if size is None else size
            for axis, size in enumerate(term.value.shape)
        )

    def _size(self, name: object) -> int:
        """A size that no other dimension has, but those of its name."""
        size, self._next = self._next, self._next + APART
        return self._sizes.setdefault(name, size) if isinstance(name, str) else size
