"""Moves by constant indices, if NNAPI's operation lacks the type or rank: a GATHER of elements.

`fold` knows each node's effect on an array. Applied to element numbers, it gives the source of each element of the
result.
"""

import math

import numpy as np

from nnhal.frontends.common.element_moves import moved
from nnhal.frontends.common.terms import UnsupportedOperator
from nnhal.frontends.onnx.fold import FAILURES, MOVES, CannotFoldNode
from nnhal.frontends.onnx.task import NodeTask


def lower_by_places(t: NodeTask) -> None:
    """Lower a node of `fold.MOVES` as source indices of elements."""
    count = len(t.node.inputs) if t.name == "Concat" else 1
    terms = [t.x(place) for place in range(count)]
    starts, numbered = 0, []
    t.check_count(sum(math.prod(t.known(term)) for term in terms))
    for term in terms:
        shape = t.known(term)[: t.rank(term)]
        numbered.append((np.arange(math.prod(shape), dtype=np.int64) + starts).reshape(shape))
        starts += numbered[-1].size
    given = [t.data(n, f"input {n}") for n in range(count, len(t.node.inputs)) if t.given(n)]
    try:
        found = MOVES[t.name](t, *numbered, *given)
    except (*FAILURES, CannotFoldNode) as error:
        raise UnsupportedOperator(f"its arguments do not fit a tensor of shape {list(numbered[0].shape)}") from error
    for number, places in enumerate(found if isinstance(found, list) else [found]):
        array = np.asarray(places).astype(np.int64)
        t.result(number, moved(t, terms, array), terms[0].kind, scalar=array.ndim == 0)
