"""Converts a file's subgraph to NNAPI operations: computes known values, and lowers the other operators."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.common.budget import Budget, Cost
from nnhal.frontends.common.folding import FAILURES, CannotFold, as_stored, require_foldable
from nnhal.frontends.common.lowering import attempt, check_counts, is_deep
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
from nnhal.frontends.tflite.file import DTYPES, Operator, Options
from nnhal.frontends.tflite.graph import ImportGraph
from nnhal.frontends.tflite.task import (
    MOST_FOLDED,
    OPERATORS,
    UNKNOWN,
    FlatTask,
    NumbersTask,
    OperatorTask,
    TfliteFacts,
    lower_by_places,
)
from nnhal.frontends.tflite.transforms import lower_in_parts
from nnhal.ops.schema import Q16S

FOLDED = frozenset(("INT32", "INT64", "BOOL", "FLOAT32"))  # types of outputs that are computed at import

UNRUN = "has no kernel in LiteRT, which does not run files with it either"
STRINGS = "works on strings or tables of them, for which NNAPI has no type"
SIXTEEN = "is of INT16, which NNAPI supports only for states and weights of its quantised LSTMs, without conversions"
DRAWS = "draws random numbers from LiteRT's generator, which NNAPI's only random operation lacks"
DELEGATED = "belongs to another engine's delegate, which only that engine can read"
COUNTED = "has an output whose size depends on values, which NNAPI does not support"

REFUSED = {
    "BITCAST": "reads the bits of a number as another type, which no operation of NNAPI does",
    "CALL": UNRUN,
    "CONCAT_EMBEDDINGS": UNRUN,
    "CUSTOM": "is defined by its author: NNAPI has no operation of that name",
    "DELEGATE": DELEGATED,
    "HASHTABLE": STRINGS,
    "HASHTABLE_FIND": STRINGS,
    "HASHTABLE_IMPORT": STRINGS,
    "HASHTABLE_SIZE": STRINGS,
    "MULTINOMIAL": DRAWS,
    "PLACEHOLDER_FOR_GREATER_OP_CODES": "is not an operator: files use it if the number of one does not fit a byte",
    "RANDOM_STANDARD_NORMAL": DRAWS,
    "RANDOM_UNIFORM": DRAWS,
    "SKIP_GRAM": STRINGS,
    "STABLEHLO_CUSTOM_CALL": "is defined by its author: NNAPI has no operation of that name",
    "STABLEHLO_RNG_BIT_GENERATOR": DRAWS,
    "UNIQUE": COUNTED,
}


def why_refused(name: str) -> str:
    """Return why an operator of the schema without an entry is refused."""
    return REFUSED.get(name, UNRUN)


def lower(graph: ImportGraph) -> None:
    """Lower every operator of a subgraph; record those that cannot be lowered in its context."""
    for operator in graph.source.operators:
        if not _folded(graph, operator):
            _lower(graph, operator)
    graph.finish()


def _folded(graph: ImportGraph, operator: Operator) -> bool:
    if not operator.builtin:
        return False
    terms = [graph.term(index) for index in operator.inputs if index >= 0]
    data = [term.data for term in terms if term.data is not None and term.kind not in ("INT8", "UINT8", "INT16")]
    if len(data) != len(operator.inputs) or not data:
        return False
    kinds = [graph.source.tensors[index].type for index in operator.outputs]
    results = fold(operator.name, operator.options, data, kinds, graph.file.budget)
    if results is None:
        return False
    task = OperatorTask(graph, operator)
    for number, array in enumerate(results):
        task.known_result(array, number)
    task.commit()
    return True


def fold(
    name: str, options: Options, arrays: Sequence[Array], kinds: Sequence[str], budget: Budget
) -> list[Array] | None:
    """Return the outputs of an operator, of the types `kinds`; None if it is not computed at import."""
    facts = OPERATORS.get(name, UNKNOWN)
    function = facts.moves or facts.fold
    if function is None or not set(kinds) <= FOLDED or sum(a.size for a in arrays) > MOST_FOLDED:
        return None
    if facts.moves is None and any(a.dtype == object for a in arrays):
        return None
    budget.spend(Cost.OPERATIONS, 1)
    budget.spend(Cost.ELEMENTS, sum(a.size for a in arrays) + len(arrays) + len(kinds))
    try:
        with np.errstate(all="ignore"):
            results = function(kinds[0] if name == "CAST" else options, *arrays)
            results = [np.asarray(r) for r in (results if isinstance(results, list) else [results])]
            require_foldable(len(results) == len(kinds) and all(r.size <= MOST_FOLDED for r in results))
            stored = [as_stored(r, np.dtype(DTYPES[kind])) for r, kind in zip(results, kinds, strict=True)]
    except (*FAILURES, CannotFold):
        return None
    budget.spend(Cost.ELEMENTS, sum(r.size for r in stored))
    return stored


def _lower(graph: ImportGraph, operator: Operator) -> None:
    facts = custom.registered(operator) or OPERATORS.get(operator.name, UNKNOWN)
    if facts.lower is None:
        reason = facts.refused or (why_refused(operator.name) if operator.builtin else custom.reason_of(operator))
        _give_up(graph, operator, reason, report=True)
        return
    place = f"{graph.file.label}: subgraph {graph.source.index} operator {operator.index} ({operator.name})"
    check_counts(facts, len(operator.inputs), len(operator.outputs), place)
    graph.file.budget.spend(Cost.OPERATIONS, 1, graph.place(operator.index))
    terms = [graph.terms[index] for index in operator.inputs if index in graph.terms]
    found = None
    for task, lower in _ways(graph, operator, facts, facts.lower, terms):
        why = attempt(task, lower)
        if why is None:
            return
        found = why.removeprefix(f"{operator.name}: ") if found is None else found
    if found and not facts.sixteen and any(term.value.type == Q16S for term in terms):
        found = SIXTEEN
    _give_up(graph, operator, found or "", report=bool(found))


Lower = Callable[[OperatorTask], None]


def _ways(
    graph: ImportGraph, operator: Operator, facts: TfliteFacts, lower: Lower, terms: Sequence[Term]
) -> Iterator[tuple[Callable[[], OperatorTask], Lower]]:
    """Yield the ways to lower an operator.

    The first successful one counts; on failure, the first reason is reported.
    """
    plain = partial(OperatorTask, graph, operator)
    if (facts.moves is not None or operator.name == "CAST") and any(term.parts is not None for term in terms):
        yield plain, lower_in_parts
        return
    if not operator.builtin:
        yield partial(custom.CustomTask, graph, operator), lower
        return
    real = facts.real and any(term.value.type in ASYMMETRIC for term in terms)
    for task in (OperatorTask, FlatTask)[: 1 + (facts.single and is_deep(terms))]:
        for reals in (False, True)[: 1 + real]:
            yield partial(task, graph, operator, reals=reals), lower
    if facts.moves is not None or facts.fills is not None:
        yield plain, lower_by_places
        yield partial(NumbersTask, graph, operator), lower


def _give_up(graph: ImportGraph, operator: Operator, reason: str, *, report: bool) -> None:
    """Record a refused operator; its outputs get the file's types, so that the rest can be checked."""
    graph.failed = True
    if report:
        graph.problem(operator.name, reason, graph.place(operator.index))
    for index in operator.outputs:
        tensor = graph.source.tensors[index]
        try:
            value = graph.declared(index)
        except UnsupportedOperator:
            value = Value(UNTYPED)
        sizes = tuple(None if n in tensor.open else d for n, d in enumerate(tensor.shape))
        shape = sizes if sizes and not graph.context.reshaped else None
        doubtful = value.type == UNTYPED or shape is None or bool(tensor.open) or tensor.type == "INT64"
        value = Value(value.type, shape, value.scale, value.zero_point, value.channel, None, tensor.name)
        graph.terms[index] = Term(value, tensor.type, doubtful=doubtful)
