"""Converts a file's subgraph to NNAPI operations: computes known values, and lowers the other operators."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.folding import require_foldable
from nnhal.frontends.common.lowering import Lower, OperatorImport, is_deep
from nnhal.frontends.common.terms import UNTYPED, Term, UnsupportedOperator
from nnhal.frontends.common.writing import ASYMMETRIC
from nnhal.frontends.tflite import (  # noqa: F401 (importing them fills the table)
    control,
    custom,
    elementwise,
    functions,
    indexing,
    layers,
    movement,
    padding,
    recurrent,
    reduction,
    shapes,
    stablehlo,
    state,
    suppression,
    transforms,
)
from nnhal.frontends.tflite.file import Operator
from nnhal.frontends.tflite.graph import QUANTISED, ImportGraph
from nnhal.frontends.tflite.task import (
    MOST_FOLDED,
    OPERATORS,
    FlatTask,
    NumbersTask,
    OperatorTask,
    TfliteFacts,
    lower_by_places,
)
from nnhal.frontends.tflite.transforms import lower_in_parts
from nnhal.ops.schema import Q16S

FOLDED = frozenset(("INT32", "INT64", "BOOL", "FLOAT32"))  # types of outputs that are computed at import
SIXTEEN = "is of INT16, which NNAPI supports only for states and weights of its quantised LSTMs, without conversions"


def lower(graph: ImportGraph) -> None:
    """Lower every operator of a subgraph; record those that cannot be lowered in its context."""
    for operator in graph.source.operators:
        TfliteImport(graph, operator).run()
    graph.finish()


class TfliteImport(OperatorImport):
    """The import of one operator of a `.tflite` file."""

    graph: ImportGraph
    operator: Operator
    facts: TfliteFacts

    def __init__(self, graph: ImportGraph, operator: Operator) -> None:
        self.graph, self.operator, self.name = graph, operator, operator.name
        self.facts = custom.registered(operator) or OPERATORS[operator.name]
        self.task, self.place = partial(OperatorTask, graph, operator), graph.place(operator.index)
        self.label = f"{graph.file.label}: subgraph {graph.source.index} operator {operator.index} ({operator.name})"

    def known_inputs(self) -> list[Term]:
        """Return the inputs if all of them are known and not quantised, otherwise none."""
        terms = super().known_inputs() if self.operator.builtin else []
        return [] if any(term.kind in QUANTISED for term in terms) else terms

    def results(self, function: Callable[..., Any], arrays: Sequence[Array]) -> Iterable[tuple[Any, str]]:
        """Pay for a function of known inputs, and for its results, which have the types in the file."""
        kinds = [self.graph.source.tensors[index].type for index in self.operator.outputs]
        size = sum(a.size for a in arrays)
        require_foldable(set(kinds) <= FOLDED and size <= MOST_FOLDED)
        self.graph.budget.spend(Cost.OPERATIONS, 1)
        self.graph.budget.spend(Cost.ELEMENTS, size + len(arrays) + len(kinds))
        found = function(*arrays)
        made = [np.asarray(each) for each in (found if isinstance(found, list) else [found])]
        require_foldable(len(made) == len(kinds) and all(each.size <= MOST_FOLDED for each in made))
        self.graph.budget.spend(Cost.ELEMENTS, sum(each.size for each in made))
        return zip(made, kinds, strict=True)

    def ways(self, lower: Lower, terms: Sequence[Term]) -> Iterator[tuple[Callable[[], OperatorTask], Lower]]:
        """Yield the ways to lower the operator."""
        facts, given = self.facts, (self.graph, self.operator)
        if facts.moves is not None and any(term.parts is not None for term in terms):
            yield self.task, lower_in_parts
            return
        if not self.operator.builtin:
            yield partial(custom.CustomTask, *given), lower
            return
        real = facts.real and any(term.value.type in ASYMMETRIC for term in terms)
        for task in (OperatorTask, FlatTask)[: 1 + (facts.single and is_deep(terms))]:
            for reals in (False, True)[: 1 + real]:
                yield partial(task, *given, reals=reals), lower
        if facts.moves is not None or facts.fills is not None:
            yield self.task, lower_by_places
            yield partial(NumbersTask, *given), lower

    def reason(self, reasons: Sequence[str], terms: Sequence[Term]) -> str:
        """Return the reason of a refusal: that of the first way."""
        first = reasons[0].removeprefix(f"{self.name}: ")
        sixteen = not self.facts.sixteen and any(term.value.type == Q16S for term in terms)
        return SIXTEEN if first and sixteen else first

    def unknown(self, output: int) -> Term:
        """Return an output of a refused operator, with the file's type."""
        tensor = self.graph.source.tensors[output]
        try:
            value = self.graph.declared(output)
        except UnsupportedOperator:
            value = Value(UNTYPED)
        sizes = tuple(None if n in tensor.open else d for n, d in enumerate(tensor.shape))
        shape = sizes if sizes and not self.graph.context.reshaped else None
        doubtful = value.type == UNTYPED or shape is None or bool(tensor.open) or tensor.type == "INT64"
        value = Value(value.type, shape, value.scale, value.zero_point, value.channel, None, tensor.name)
        return Term(value, tensor.type, doubtful=doubtful)
