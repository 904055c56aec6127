"""Imports one operator of a file, for both formats: computes it, lowers it, or records why it is refused."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.errors import BadFile, InvalidModel, NnhalError, bounded_text
from nnhal.base.names import short
from nnhal.base.operands import Array, Shape, Value
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.element_moves import broadcast, merged, moved, numbered
from nnhal.frontends.common.folding import FAILURES, CannotFold, as_stored
from nnhal.frontends.common.operators import OperatorFacts
from nnhal.frontends.common.terms import Term, UnsupportedOperator, WrittenGraph
from nnhal.frontends.common.writing import MOST_DIMENSIONS, ImportedGraph, OperationWriter, broadcast_shapes

LONGEST_REASON = 400  # characters; a longer one is cut


Lower = Callable[[Any], None]  # writes the operations of a task


class OperatorImport(ABC):
    """The import of one operator of a file: it is computed if its inputs are known; otherwise lowered, or refused."""

    graph: ImportedGraph  # gets its operations
    operator: Any  # its record in the file: `inputs` and `outputs` are keys of the graph's terms
    facts: OperatorFacts
    task: Callable[[], Any]  # returns the task that reads it as it is
    name: str  # for refusals, as its place is
    place: str
    label: str  # its place, for errors of the file
    unfit: tuple[type[Exception], ...] = ()  # errors of numpy about arrays of a malformed file

    @abstractmethod
    def ways(self, lower: Lower, terms: Sequence[Term]) -> Iterator[tuple[Callable[[], Any], Lower]]:
        """Yield the ways to lower it: what makes the task, and what lowers it. The first successful one counts.

        lower: the operator's own way. terms: its inputs.
        """

    @abstractmethod
    def results(self, function: Callable[..., Any], arrays: Sequence[Array]) -> Iterable[tuple[Any, str]]:
        """Pay for a function of known inputs, and return its results with their types in the file.

        Raises CannotFold for too large ones, and for others than the outputs.
        """

    @abstractmethod
    def unknown(self, output: Any) -> Term:
        """Return an output of a refused operator, with the file's type, so that the rest can be checked."""

    def run(self) -> None:
        """Import the operator."""
        if not self.fold():
            self.lower()

    def fold(self) -> bool:
        """Compute the outputs, if all inputs are known; return whether that is done."""
        try:
            terms = self.known_inputs()
            if terms:
                self.fold_from(terms)
        except (UnsupportedOperator, InvalidModel, CannotFold):
            return False
        return bool(terms)

    def known_inputs(self) -> list[Term]:
        """Return the inputs if all of them are given and known, otherwise none."""
        terms = [self.graph.term(key) for key in self.operator.inputs if key != self.graph.omitted]
        return terms if sum(term.data is not None for term in terms) == len(self.operator.inputs) else []

    def fold_from(self, terms: Sequence[Term]) -> None:
        """Compute the outputs from known inputs; raise CannotFold if they are left to execution."""
        task = self.task()
        for number, (data, kind) in enumerate(self.computed(task, [x.data for x in terms if x.data is not None])):
            task.known_result(data, number, kind)
        task.commit()

    def computed(self, task: Any, arrays: Sequence[Array]) -> list[tuple[Array, str]]:
        """Return the outputs for known inputs, and their types; raise CannotFold if they are left to execution."""
        function = self.facts.moves or self.facts.fold
        if function is None or (self.facts.moves is None and any(a.dtype == object for a in arrays)):
            raise CannotFold
        try:
            with np.errstate(all="ignore"):
                results = self.results(partial(function, task), arrays)
                return [(as_stored(np.asarray(x), np.dtype(self.graph.dtypes[kind])), kind) for x, kind in results]
        except NnhalError:
            raise
        except FAILURES as error:
            raise CannotFold from error

    def lower(self) -> None:
        """Write its operations, in the first way that succeeds."""
        if self.facts.lower is None:
            self.give_up(self.facts.refused)
            return
        self._check_counts()
        self.graph.budget.spend(Cost.OPERATIONS, 1, self.place)
        terms = [self.graph.terms[key] for key in self.operator.inputs if key in self.graph.terms]
        reasons = []
        for task, lower in self.ways(self.facts.lower, terms):
            why = self._attempt(task, lower)
            if why is None:
                return
            reasons.append(why)
        self.give_up(self.reason(reasons, terms))

    def _check_counts(self) -> None:
        """Raise BadFile for an operator with too few or too many inputs or outputs."""
        for what, (least, most) in (("inputs", self.facts.inputs), ("outputs", self.facts.outputs)):
            count = len(getattr(self.operator, what))
            if count < least or (most is not None and count > most):
                must = f"{least} or more" if most is None else f"{least} to {most}" if most > least else f"{least}"
                raise BadFile(f"{self.label}: has {count} {what}, must have {must}")

    def _attempt(self, task: Callable[[], Any], lower: Lower) -> str | None:
        """Lower it in one way. Return None for success, otherwise the reason; "" if that is another operator's."""
        try:
            made = task()
            lower(made)
            made.commit()
        except (UnsupportedOperator, InvalidModel) as error:
            return str(error)
        except NnhalError:
            raise
        except self.unfit as error:
            return f"its arguments do not fit one another: {bounded_text(str(error), 200)}"
        return None

    def reason(self, reasons: Sequence[str], terms: Sequence[Term]) -> str:
        """Return the reason of a refusal from those of all ways, and the inputs."""
        return next(filter(None, reasons), "")

    def give_up(self, reason: str) -> None:
        """Record a refusal. reason: "" if it follows from that of another operator."""
        self.graph.failed = True
        if reason:
            self.graph.problem(self.name, short(reason) if len(reason) > LONGEST_REASON else reason, self.place)
        self.graph.terms.update({key: self.unknown(key) for key in self.operator.outputs})


def is_deep(terms: Sequence[Term]) -> bool:
    """Whether a term has more dimensions than many NNAPI operations support."""
    return any(len(term.value.shape or ()) > MOST_DIMENSIONS for term in terms)


def moved_by(
    t: OperationWriter, terms: Sequence[Term], move: Callable[..., Any], fill: Callable[[], Any] = int
) -> Iterator[tuple[Array, Term]]:
    """Yield the results of an operator that moves elements, and their source indices, as a GATHER of elements.

    The effect of the operator on arrays, applied to element numbers, gives the source of each element of the result.

    Args:
        t: The operator.
        terms: The inputs whose elements move.
        move: The effect on arrays.
        fill: Returns the stored value of elements that are filled in.
    """
    arrays = numbered(t, terms)
    try:
        found = move(*arrays)
    except (*FAILURES, CannotFold) as error:
        raise UnsupportedOperator(f"its arguments do not fit a tensor of shape {list(arrays[0].shape)}") from error
    for each in found if isinstance(found, list) else [found]:
        places = np.asarray(each).astype(np.int64)
        yield places, moved(t, terms, places, fill())


def flattened(t: OperationWriter, terms: Sequence[Term]) -> tuple[tuple[int, ...], list[Term]]:
    """Return the shape that terms broadcast to, and the terms with as few dimensions as broadcasting requires."""
    whole = broadcast_shapes(*map(t.known, terms))
    shapes = merged([t.known(x) for x in terms], whole)
    if max(map(len, shapes)) > MOST_DIMENSIONS:
        terms = [broadcast(t, x, whole) for x in terms]
        shapes = merged([t.known(x) for x in terms], whole)
    return whole, [t.reshaped(x, shape) for x, shape in zip(terms, shapes, strict=True)]


def reference(graph: WrittenGraph) -> Term:
    """Return a graph as an operand."""
    return Term(Value(OperandType.SUBGRAPH, data=graph.facts), graph=graph)


def common_shape(before: Shape | None, after: Shape | None) -> Shape | None:
    """Return the known part of a shape that may be either."""
    if before is None or after is None or len(before) != len(after):
        return None
    return tuple(m if m == n else None for m, n in zip(before, after, strict=True))
