"""Converts a file's subgraph to NNAPI operations: computes known values, and lowers the other operators."""

from collections.abc import Callable, Iterator
from functools import partial

from nnhal.base.errors import BadFile, InvalidModel
from nnhal.base.operands import Value
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.terms import UNTYPED, Term, UnsupportedOperator
from nnhal.frontends.common.writing import ASYMMETRIC, MOST_DIMENSIONS
from nnhal.frontends.tflite import (  # noqa: F401 (importing them fills the table)
    control,
    custom,
    elementwise,
    functions,
    gather,
    integers,
    layers,
    movement,
    recurrent,
    reduction,
    scatter,
    stablehlo,
    state,
    suppression,
    transforms,
)
from nnhal.frontends.tflite.file import Operator
from nnhal.frontends.tflite.fold import MOVES, fold
from nnhal.frontends.tflite.graph import ImportGraph
from nnhal.frontends.tflite.positions import FILLED, FlatTask, NumbersTask, lower_by_places
from nnhal.frontends.tflite.refusals import SIXTEEN, TAKE_SIXTEEN, why_refused
from nnhal.frontends.tflite.task import ENTRIES, OperatorEntry, OperatorTask
from nnhal.frontends.tflite.transforms import lower_in_parts
from nnhal.ops.schema import Q16S


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


def _lower(graph: ImportGraph, operator: Operator) -> None:
    entry = custom.registered(operator) or ENTRIES.get(operator.name)
    if entry is None:
        reason = why_refused(operator.name) if operator.builtin else custom.reason_of(operator)
        _give_up(graph, operator, reason, report=True)
        return
    _check_counts(graph, operator, entry)
    graph.file.budget.spend(Cost.OPERATIONS, 1, graph.place(operator.index))
    found = None
    for task, lowered in _ways(graph, operator, entry):
        why = _attempt(task, lowered)
        if why is None:
            return
        found = why.removeprefix(f"{operator.name}: ") if found is None else found
    if found and operator.name not in TAKE_SIXTEEN and any(value.type == Q16S for value in _values(graph, operator)):
        found = SIXTEEN
    _give_up(graph, operator, found or "", report=bool(found))


Task = Callable[[], OperatorTask]


def _ways(
    graph: ImportGraph, operator: Operator, entry: OperatorEntry
) -> Iterator[tuple[Task, Callable[[OperatorTask], None]]]:
    """Yield the ways to lower an operator.

    The first successful one counts; on failure, the first reason is reported.
    """
    if operator.name in (*MOVES, "CAST") and _complex(graph, operator):
        yield partial(OperatorTask, graph, operator), lower_in_parts
        return
    if not operator.builtin:
        yield partial(custom.CustomTask, graph, operator), entry.lower
        return
    real = entry.real and _quantised(graph, operator)
    for reals in (False, True)[: 1 + real]:
        yield partial(OperatorTask, graph, operator, reals=reals), entry.lower
    if entry.single and _deep(graph, operator):
        for reals in (False, True)[: 1 + real]:
            yield partial(FlatTask, graph, operator, reals=reals), entry.lower
    if operator.name in MOVES or operator.name in FILLED:
        yield partial(OperatorTask, graph, operator), lower_by_places
        yield partial(NumbersTask, graph, operator), entry.lower


def _attempt(task: Task, lowered: Callable[[OperatorTask], None]) -> str | None:
    """Lower one operator. Returns None for success, otherwise the reason; "" if that is another operator's."""
    try:
        made = task()
        lowered(made)
        made.commit()
    except (UnsupportedOperator, InvalidModel) as error:
        return str(error)
    return None


def _complex(graph: ImportGraph, operator: Operator) -> bool:
    return any(index in graph.terms and graph.terms[index].parts is not None for index in operator.inputs)


def _deep(graph: ImportGraph, operator: Operator) -> bool:
    terms = [graph.terms[index] for index in operator.inputs if index in graph.terms]
    return any(len(term.value.shape or ()) > MOST_DIMENSIONS for term in terms)


def _quantised(graph: ImportGraph, operator: Operator) -> bool:
    return any(value.type in ASYMMETRIC for value in _values(graph, operator))


def _values(graph: ImportGraph, operator: Operator) -> list[Value]:
    return [graph.terms[index].value for index in operator.inputs if index in graph.terms]


def _check_counts(graph: ImportGraph, operator: Operator, entry: OperatorEntry) -> None:
    for kind, count, (least, most) in (
        ("inputs", len(operator.inputs), entry.inputs),
        ("outputs", len(operator.outputs), entry.outputs),
    ):
        if count < least or (most is not None and count > most):
            must = f"{least} or more" if most is None else f"{least} to {most}" if most > least else f"{least}"
            place = f"{graph.file.label}: subgraph {graph.source.index} operator {operator.index} ({operator.name})"
            raise BadFile(f"{place}: has {count} {kind}, must have {must}")


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
