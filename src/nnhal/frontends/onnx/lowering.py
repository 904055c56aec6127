"""Converts a file's graph to NNAPI operations, node by node: computes known values, and lowers the rest."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnhal.base.errors import BadFile, InvalidModel
from nnhal.base.names import short
from nnhal.base.operands import Array, Value
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.folding import FAILURES, CannotFold, as_stored
from nnhal.frontends.common.lowering import attempt, check_counts, is_deep
from nnhal.frontends.common.terms import UNTYPED, Term, UnsupportedOperator
from nnhal.frontends.onnx import (  # noqa: F401 (importing them fills the table)
    attention,
    control,
    dynamic,
    elementwise,
    estimators,
    features,
    functions,
    fused,
    fused_attention,
    indexing,
    layers,
    movement,
    products,
    quantised,
    recurrent,
    reduction,
    resize,
    sampling,
    shapes,
    spectra,
    trees,
)
from nnhal.frontends.onnx.expanded import VERSION, ExpandedNode
from nnhal.frontends.onnx.file import DTYPES, OWN_DOMAINS, AttributeReference, OnnxFunction, OnnxNode, OnnxTensor
from nnhal.frontends.onnx.graph import TYPES, NodeGraph
from nnhal.frontends.onnx.movement import COUNTED
from nnhal.frontends.onnx.node_order import inner_graphs
from nnhal.frontends.onnx.task import OPERATORS, FlatNode, NodeFacts, NodeTask, RowNode, lower_by_places
from nnhal.model.validate import MAX_DEPTH

SMALL = 4096  # elements whose cost is their number, not their bytes
UNFIT = (ValueError, IndexError, OverflowError, ZeroDivisionError)

NOTHING = "has no operation in NNAPI"
REFUSED = {
    name: reason
    for names, reason in (
        ("StringConcat StringNormalizer StringSplit RegexFullMatch TfIdfVectorizer",
         "works on texts or lists of them, for which NNAPI has no type"),
        ("SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap "
         "SplitToSequence ConcatFromSequence Optional OptionalGetElement OptionalHasElement",
         "works on sequences, maps or optional values, for which NNAPI has no type"),
        ("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
         "draws random numbers from another generator than NNAPI's only random operation"),
        ("Adagrad Adam Momentum Gradient NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
         "is for training, which NNAPI does not support"),
        ("Unique Compress", f"of values that are computed at execution {COUNTED}"),
        ("NonMaxSuppression", f"{COUNTED}: export the detector without it, and select boxes from the model's outputs"),
        ("BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BitCast",
         "works on the bits of integers, for which NNAPI has no operation"),
        ("ImageDecoder", "decodes picture files, which no operation of NNAPI does"),
    )
    for name in names.split()
}  # fmt: skip


def why_refused(name: str) -> str:
    """Return why a node without an entry is refused."""
    if "." in name:
        domain = name.rpartition(".")[0]
        return f"is an operator of {domain}, not of ONNX: NNAPI has no operation for it"
    return REFUSED.get(name, NOTHING)


def lower(graph: NodeGraph) -> None:
    """Lower every node of a graph; record those that cannot be lowered in its context."""
    lower_open(graph)
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
            _lower(graph, node, version, depth)


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
    _lower_in_place(graph, made, function.opsets, depth)


def _lower_in_place(graph: NodeGraph, nodes: Sequence[OnnxNode], opsets: Mapping[str, int], depth: int) -> None:
    """Lower nodes that replace one of the file."""
    for node in nodes:
        graph.uses.update(filter(None, node.inputs))
        graph.written.update(node.outputs)
    _lower_all(graph, tuple(nodes), opsets, depth + 1)


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
    if not node.inputs:
        return False
    try:
        terms = [graph.term(name) for name in node.inputs if name]
        data = [term.data for term in terms if term.data is not None]
        if len(data) != len(node.inputs):
            return False
        if node.op == "Identity" and not node.domain:
            graph.terms[node.outputs[0]] = terms[0]
            return True
        context, key = graph.context, _same(node, terms)
        if key in context.derived:
            graph.terms.update(zip(node.outputs, context.derived[key], strict=True))
            return True
        task = NodeTask(graph, node, version)
        results = _computed(task, data, terms[0].kind)
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


def _computed(t: NodeTask, arrays: Sequence[Array], kind: str) -> list[tuple[Array, str]] | None:
    """Return the outputs of a node and their types, None if it is not computed at import. kind: of the first input."""
    function = t.facts.moves or t.facts.fold
    if function is None or (t.facts.moves is None and any(a.dtype == object for a in arrays)):
        return None
    size = sum(a.size for a in arrays)
    if size > SMALL:
        t.budget.spend(Cost.MEMORY, 2 * sum(a.nbytes for a in arrays), t.label)
    t.budget.spend(Cost.OPERATIONS, 1, t.label)
    t.budget.spend(Cost.ELEMENTS, min(size, SMALL) + len(arrays) + 8, t.label)
    try:
        with np.errstate(all="ignore"):
            moving = arrays if t.facts.moves is None or t.facts.joins else arrays[:1]
            results = function(t, *moving)
            if isinstance(results, tuple):
                results, kind = results
            results = results if isinstance(results, list) else [results]
            return [(as_stored(np.asarray(each), np.dtype(DTYPES[kind])), kind) for each in results]
    except (*FAILURES, CannotFold):
        return None


def _same(node: OnnxNode, terms: list[Term]) -> Any:
    """Return the key of nodes that give the same results from these constants; None if it is not simple."""
    attributes = sorted(node.attributes.items())
    plain = all(
        isinstance(n, int | float | str)
        for _, value in attributes
        for n in (value if isinstance(value, tuple) else (value,))
    )
    return (node.domain, node.op, tuple(map(id, terms)), tuple(attributes), len(node.outputs)) if plain else None


# ---------------------------------------------------------------------------------------------------------------- entries


def _lower(graph: NodeGraph, node: OnnxNode, version: int, depth: int) -> None:
    name = f"{node.domain}.{node.op}" if node.domain else node.op
    facts = OPERATORS.get(name)
    if facts is None or facts.lower is None:
        _give_up(graph, node, why_refused(name) if facts is None else facts.refused, report=True)
        return
    check_counts(facts, len(node.inputs), len(node.outputs), f"{graph.file.label}: {node.label}")
    graph.file.budget.spend(Cost.OPERATIONS, 1, node.place)
    expand = facts.lower if facts.task is ExpandedNode else facts.by_rank.get(_rank(graph, node))
    if expand is not None:
        whole = ExpandedNode(graph, node, version)
        why = attempt(lambda: whole, expand, UNFIT)
        if why is None:
            _lower_in_place(graph, whole.nodes, {"": VERSION}, depth)
        else:
            _give_up(graph, node, why, report=bool(why))
        return
    found = None
    for task, lower in _ways(graph, node, facts, facts.lower, version):
        why = attempt(task, lower, UNFIT)
        if why is None:
            return
        found = found or why
    _give_up(graph, node, found or "", report=bool(found))


def _rank(graph: NodeGraph, node: OnnxNode) -> int:
    """Return the number of dimensions of the first input; -1 if it is not known."""
    term = graph.terms.get(node.inputs[0]) if node.inputs else None
    return -1 if term is None or term.value.shape is None else len(term.value.shape)


Lower = Callable[[NodeTask], None]


def _ways(
    graph: NodeGraph, node: OnnxNode, facts: NodeFacts, lower: Lower, version: int
) -> Iterator[tuple[Callable[[], NodeTask], Lower]]:
    """Yield the ways to lower a node. The first successful one counts; on failure, the first reason is reported."""
    terms = [graph.terms[name] for name in node.inputs if name in graph.terms]
    task = facts.task or (dynamic.NodeOnReals if facts.on_reals and any(x.reals is not None for x in terms) else None)
    if task is not None:
        yield partial(task, graph, node, version), lower
        return
    plain = partial(NodeTask, graph, node, version)
    if any(id(term) in graph.context.stored for term in terms):
        if facts.quantised is not None:
            yield plain, facts.quantised
        if facts.on_stored:
            yield partial(quantised.StoredNode, graph, node, version), lower
    if facts.single and any(id(term) in graph.context.pictures for term in terms):
        yield partial(RowNode, graph, node, version), lower
    if not (facts.single and is_deep(terms)):
        yield plain, lower
    if facts.single:
        yield partial(FlatNode, graph, node, version), lower
    if facts.moves is not None:
        yield plain, lower_by_places


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
