"""Converts a file's graph to NNAPI operations, node by node: computes known values, and lowers the rest."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from nnhal.base.errors import BadFile, InvalidModel, NnhalError, bounded_text
from nnhal.base.names import short
from nnhal.base.operands import Value
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.terms import UNTYPED, Term, UnsupportedOperator
from nnhal.frontends.common.writing import MOST_DIMENSIONS
from nnhal.frontends.onnx import (  # noqa: F401 (importing them fills the table)
    control,
    dynamic,
    elementwise,
    functions,
    indexing,
    layers,
    movement,
    products,
    quantised,
    recurrent,
    reduction,
    resize,
)
from nnhal.frontends.onnx.file import OWN_DOMAINS, AttributeReference, OnnxFunction, OnnxNode, OnnxTensor
from nnhal.frontends.onnx.fold import MOVES, folded
from nnhal.frontends.onnx.graph import TYPES, NodeGraph
from nnhal.frontends.onnx.node_order import inner_graphs
from nnhal.frontends.onnx.positions import lower_by_places
from nnhal.frontends.onnx.refusals import why_refused
from nnhal.frontends.onnx.task import NODES, FlatNode, NodeEntry, NodeTask, RowNode
from nnhal.model.validate import MAX_DEPTH

UNFIT = (ValueError, IndexError, OverflowError, ZeroDivisionError)


def lower(graph: NodeGraph) -> None:
    """Lower every node of a graph; record those that cannot be lowered in its context."""
    _lower_all(graph, graph.source.nodes, graph.file.opsets, 0)
    graph.finish([e.name for e in graph.source.outputs], [e.kind for e in graph.source.outputs])
    graph.prune()


def lower_open(graph: NodeGraph) -> None:
    """Lower every node of a graph that is written inline into the enclosing one."""
    _lower_all(graph, graph.source.nodes, graph.file.opsets, 0)


def _lower_all(graph: NodeGraph, nodes: tuple[OnnxNode, ...], opsets: Mapping[str, int], depth: int) -> None:
    version = max((opsets.get(domain, 0) for domain in OWN_DOMAINS), default=0)
    for node in nodes:
        graph.file.budget.spend(Cost.ELEMENTS, len(node.inputs) + len(node.outputs), node.place)
        function = graph.file.functions.get((node.domain, node.op, node.overload))
        if function is not None:
            _expand(graph, node, function, depth)
        elif not _constant(graph, node) and not _folded(graph, node, version):
            _lower(graph, node, version)


# -------------------------------------------------------------------------------------------------------------- functions


def _expand(graph: NodeGraph, node: OnnxNode, function: OnnxFunction, depth: int) -> None:
    """Replace a call by the nodes of its function."""
    if depth >= MAX_DEPTH:
        raise BadFile(f"{graph.file.label}: {node.label}: functions call one another deeper than {MAX_DEPTH}")
    if any(True for each in function.nodes for _ in inner_graphs(each)):
        _give_up(graph, node, "is a function with inner graphs, which cannot be inlined", report=True)
        return
    graph.file.budget.spend(Cost.OPERATIONS, 1 + len(function.nodes), node.place)
    names = dict(zip(function.inputs, node.inputs, strict=False))
    names |= dict.fromkeys(function.inputs[len(node.inputs) :], "")
    names |= {inner: outer for inner, outer in zip(function.outputs, node.outputs, strict=False) if outer}

    def renamed(name: str) -> str:
        return names.setdefault(name, f"{node.place}/{name}") if name else ""

    made = []
    for each in function.nodes:
        found: dict[str, Any] = {}
        for key, given in each.attributes.items():
            value = given
            if isinstance(given, AttributeReference):
                value = node.attributes.get(given.name, function.defaults.get(given.name))
            if value is not None:
                found[key] = value
        inputs, outputs = tuple(map(renamed, each.inputs)), tuple(map(renamed, each.outputs))
        place = f"{node.place}/{each.place.split(' ')[0]}"
        made.append(OnnxNode(place, each.name, each.op, each.domain, inputs, outputs, found, each.overload))
        graph.uses.update(filter(None, inputs))
        graph.written.update(outputs)
    _lower_all(graph, tuple(made), function.opsets, depth + 1)


# -------------------------------------------------------------------------------------------------------- constants, folds


def _constant(graph: NodeGraph, node: OnnxNode) -> bool:
    """Whether it is a Constant, whose value is its output."""
    if node.op != "Constant" or node.domain or len(node.outputs) != 1:
        return False
    task = NodeTask(graph, node, 0)
    value = node.attributes.get("value")
    if isinstance(value, OnnxTensor):
        graph.terms[node.outputs[0]] = graph.constant(value)
        return True
    import numpy as np

    for name, dtype, kind in (
        ("value_float", np.float32, "FLOAT"),
        ("value_floats", np.float32, "FLOAT"),
        ("value_int", np.int64, "INT64"),
        ("value_ints", np.int64, "INT64"),
    ):
        given = node.attributes.get(name)
        if isinstance(given, int | float | tuple):
            task.known_result(np.array(given, dtype), kind=kind)
            task.commit()
            return True
    return False


def _folded(graph: NodeGraph, node: OnnxNode, version: int) -> bool:
    if node.domain or not node.inputs:
        return False
    try:
        terms = [graph.term(name) for name in node.inputs if name]
        data = [term.data for term in terms if term.data is not None]
        if len(data) != len(node.inputs):
            return False
        if node.op == "Identity":
            graph.terms[node.outputs[0]] = terms[0]
            return True
        context, key = graph.context, _same(node, terms)
        if key in context.derived:
            graph.terms.update(zip(node.outputs, context.derived[key], strict=True))
            return True
        task = NodeTask(graph, node, version)
        results = folded(task, data, [term.kind for term in terms])
        if results is None or len(results) < len(node.outputs):
            return False
        for number, (array, kind) in enumerate(results[: len(node.outputs)]):
            task.known_result(array, number, kind)
        task.commit()
    except (UnsupportedOperator, InvalidModel):
        return False
    if key is not None and all(node.outputs):
        context.derived[key] = [graph.terms[name] for name in node.outputs]
        context.kept += terms
    return True


def _same(node: OnnxNode, terms: list[Term]) -> Any:
    """Return the key of nodes that give the same results from these constants; None if it is not simple."""
    attributes = sorted(node.attributes.items())
    plain = all(
        isinstance(n, int | float | str)
        for _, value in attributes
        for n in (value if isinstance(value, tuple) else (value,))
    )
    return (node.op, tuple(map(id, terms)), tuple(attributes), len(node.outputs)) if plain else None


# ---------------------------------------------------------------------------------------------------------------- entries


def _lower(graph: NodeGraph, node: OnnxNode, version: int) -> None:
    name = f"{node.domain}.{node.op}" if node.domain else node.op
    entry = NODES.get(name)
    if entry is None:
        _give_up(graph, node, why_refused(name), report=True)
        return
    _check_counts(graph, node, entry)
    graph.file.budget.spend(Cost.OPERATIONS, 1, node.place)
    found = None
    for task, lowered in _ways(graph, node, entry, version):
        why = _attempt(task, lowered)
        if why is None:
            return
        found = found or why
    _give_up(graph, node, found or "", report=bool(found))


Task = Callable[[], NodeTask]


def _ways(
    graph: NodeGraph, node: OnnxNode, entry: NodeEntry, version: int
) -> Iterator[tuple[Task, Callable[[NodeTask], None]]]:
    """Yield the ways to lower a node. The first successful one counts; on failure, the first reason is reported."""
    if node.op in dynamic.CENTRED and not node.domain:
        yield partial(dynamic.CentredNode, graph, node, version), entry.lower
        return
    if node.op in dynamic.HELD and not node.domain and any(_held(graph, name) for name in node.inputs):
        yield partial(dynamic.NodeOnReals, graph, node, version), entry.lower
        return
    plain = partial(NodeTask, graph, node, version)
    if not node.domain and any(id(graph.terms.get(name)) in graph.context.stored for name in node.inputs):
        if node.op in quantised.QUANTISED:
            yield plain, quantised.lower_stored
        if node.op in quantised.MOVED:
            yield partial(quantised.StoredNode, graph, node, version), entry.lower
    if entry.single and any(id(graph.terms.get(name)) in graph.context.pictures for name in node.inputs):
        yield partial(RowNode, graph, node, version), entry.lower
    if not (entry.single and _deep(graph, node)):
        yield plain, entry.lower
    if entry.single:
        yield partial(FlatNode, graph, node, version), entry.lower
    if node.op in MOVES and not node.domain:
        yield plain, lower_by_places


def _attempt(task: Task, lowered: Callable[[NodeTask], None]) -> str | None:
    """Lower one node. Returns None for success, otherwise the reason; "" if that is another node's."""
    try:
        made = task()
        lowered(made)
        made.commit()
    except (UnsupportedOperator, InvalidModel) as error:
        return str(error)
    except NnhalError:
        raise
    except UNFIT as error:  # of numpy, about arrays of a malformed file
        return f"its arguments do not fit one another: {bounded_text(str(error), 200)}"
    return None


def _held(graph: NodeGraph, name: str) -> bool:
    term = graph.terms.get(name)
    return term is not None and term.reals is not None


def _deep(graph: NodeGraph, node: OnnxNode) -> bool:
    terms = [graph.terms[name] for name in node.inputs if name in graph.terms]
    return any(len(term.value.shape or ()) > MOST_DIMENSIONS for term in terms)


def _check_counts(graph: NodeGraph, node: OnnxNode, entry: NodeEntry) -> None:
    for kind, count, (least, most) in (
        ("inputs", len(node.inputs), entry.inputs),
        ("outputs", len(node.outputs), entry.outputs),
    ):
        if count < least or (most is not None and count > most):
            must = f"{least} or more" if most is None else f"{least} to {most}" if most > least else f"{least}"
            raise BadFile(f"{graph.file.label}: {node.label}: has {count} {kind}, must have {must}")


def _give_up(graph: NodeGraph, node: OnnxNode, reason: str, *, report: bool) -> None:
    """Record a refused node; its outputs get the file's types, so that the rest can be checked."""
    graph.failed = True
    if report:
        graph.problem(
            f"{node.domain}.{node.op}" if node.domain else node.op,
            short(reason) if len(reason) > 400 else reason,
            node.place,
        )
    for name in node.outputs:
        edge = graph.source.known.get(name)
        kind = TYPES.get(edge.kind, UNTYPED) if edge else UNTYPED
        shape = (
            None if edge is None or edge.shape is None else tuple(d if isinstance(d, int) else None for d in edge.shape)
        )
        value = Value(kind, shape or None, 1.0 if kind in (TYPES["UINT8"], TYPES["INT8"]) else 0.0, name=name)
        graph.terms[name] = Term(value, edge.kind if edge else "", doubtful=True)
