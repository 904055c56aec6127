"""Lowers one operator, for both formats: counts of inputs and outputs, attempts, and moves by element numbers."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.errors import BadFile, InvalidModel, NnhalError, bounded_text
from nnhal.base.operands import Array, Shape, Value
from nnhal.frontends.common.element_moves import broadcast, merged, moved, numbered
from nnhal.frontends.common.folding import FAILURES, CannotFold
from nnhal.frontends.common.operators import OperatorFacts
from nnhal.frontends.common.terms import Term, UnsupportedOperator, WrittenGraph
from nnhal.frontends.common.writing import MOST_DIMENSIONS, OperationWriter, broadcast_shapes


def check_counts(facts: OperatorFacts, inputs: int, outputs: int, place: str) -> None:
    """Raise BadFile for an operator with too few or too many inputs or outputs."""
    for kind, count, (least, most) in (("inputs", inputs, facts.inputs), ("outputs", outputs, facts.outputs)):
        if count < least or (most is not None and count > most):
            must = f"{least} or more" if most is None else f"{least} to {most}" if most > least else f"{least}"
            raise BadFile(f"{place}: has {count} {kind}, must have {must}")


def attempt(
    task: Callable[[], Any], lower: Callable[[Any], None], unfit: tuple[type[Exception], ...] = ()
) -> str | None:
    """Lower one operator.

    Args:
        task: Returns the task, whose `commit` adds the operations to the graph.
        lower: Writes them.
        unfit: Errors of numpy about arrays of a malformed file.

    Returns:
        None for success, otherwise the reason; "" if that is another operator's.
    """
    try:
        made = task()
        lower(made)
        made.commit()
    except (UnsupportedOperator, InvalidModel) as error:
        return str(error)
    except NnhalError:
        raise
    except unfit as error:
        return f"its arguments do not fit one another: {bounded_text(str(error), 200)}"
    return None


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
