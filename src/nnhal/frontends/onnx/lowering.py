"""Converts a file's graph to NNAPI operations, node by node: computes known values, and lowers the rest."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnhal.base.errors import BadFile
from nnhal.base.operands import Array, Value
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.folding import require_foldable
from nnhal.frontends.common.lowering import Lower, OperatorImport, is_deep
from nnhal.frontends.common.terms import UNTYPED, Term
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
from nnhal.frontends.onnx.graph import PLAIN, TYPES, NodeGraph
from nnhal.frontends.onnx.node_order import inner_graphs
from nnhal.frontends.onnx.task import OPERATORS, FlatNode, NodeFacts, NodeTask, RowNode, lower_by_places
from nnhal.model.validate import MAX_DEPTH

SMALL = 4096  # elements whose cost is their number, not their bytes


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
        NodeImport(graph, node, version, depth).run()


class NodeImport(OperatorImport):
    """The import of one node. depth: that of functions and nodes that it replaces."""

    graph: NodeGraph
    operator: OnnxNode
    facts: NodeFacts
    unfit = (ValueError, IndexError, OverflowError, ZeroDivisionError)

    def __init__(self, graph: NodeGraph, node: OnnxNode, version: int, depth: int) -> None:
        self.graph, self.operator, self.version, self.depth = graph, node, version, depth
        self.task = partial(NodeTask, graph, node, version)
        self.name = f"{node.domain}.{node.op}" if node.domain else node.op
        self.facts, self.place, self.label = OPERATORS[self.name], node.place, f"{graph.file.label}: {node.label}"

    def run(self) -> None:
        """Import the node, or those of the function that it calls."""
        node = self.operator
        function = self.graph.file.functions.get((node.domain, node.op, node.overload))
        if function is not None:
            self._expand(function)
        elif not self._constant():
            super().run()

    def _expand(self, function: OnnxFunction) -> None:
        """Replace a call by the nodes of its function."""
        node = self.operator
        if self.depth >= MAX_DEPTH:
            raise BadFile(f"{self.label}: functions call one another deeper than {MAX_DEPTH}")
        if any(True for each in function.nodes for _ in inner_graphs(each)):
            self.give_up("is a function with inner graphs, which cannot be inlined")
            return
        self.graph.budget.spend(Cost.OPERATIONS, 1 + len(function.nodes), node.place)
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
        self._lower_in_place(made, function.opsets)

    def fold_from(self, terms: Sequence[Term]) -> None:
        """Compute the outputs from known inputs. Nodes that give the same results from constants share them."""
        outputs, context, key = self.operator.outputs, self.graph.context, self._key(terms)
        if self.name == "Identity":
            self.graph.terms[outputs[0]] = terms[0]
        elif key in context.derived:
            self.graph.terms.update(zip(outputs, context.derived[key], strict=True))
        else:
            super().fold_from(terms)
            if key is not None and all(outputs):
                context.derived[key] = [self.graph.terms[name] for name in outputs]
                context.kept += terms

    def _lower_in_place(self, nodes: Sequence[OnnxNode], opsets: Mapping[str, int]) -> None:
        """Lower nodes that replace this one."""
        self.graph.note_replaced(self.operator)
        self.graph.note_nodes(nodes)
        _lower_all(self.graph, tuple(nodes), opsets, self.depth + 1)

    def _constant(self) -> bool:
        """Whether it is a Constant, whose value is its output."""
        if self.name != "Constant" or len(self.operator.outputs) != 1:
            return False
        attributes = self.operator.attributes
        value = attributes.get("value")
        if isinstance(value, OnnxTensor):
            self.graph.terms[self.operator.outputs[0]] = self.graph.constant(value)
            return True
        kinds = {"value_float": "FLOAT", "value_floats": "FLOAT", "value_int": "INT64", "value_ints": "INT64"}
        for name, kind in kinds.items():
            if isinstance(attributes.get(name), int | float | tuple):
                task = self.task()
                task.known_result(np.array(attributes[name], DTYPES[kind]), kind=kind)
                task.commit()
                return True
        return False

    def _key(self, terms: Sequence[Term]) -> Any:
        """Return the key of nodes that give the same results from these constants; None if it is not simple."""
        node = self.operator
        attributes = sorted(node.attributes.items())
        plain = all(
            isinstance(n, int | float | str)
            for _, value in attributes
            for n in (value if isinstance(value, tuple) else (value,))
        )
        return (self.name, tuple(map(id, terms)), tuple(attributes), len(node.outputs)) if plain else None

    def results(self, function: Callable[..., Any], arrays: Sequence[Array]) -> Iterable[tuple[Any, str]]:
        """Pay for a function of known inputs; its results have the type of the first input, or that which it names."""
        size, label = sum(a.size for a in arrays), self.operator.label
        if size > SMALL:
            self.graph.budget.spend(Cost.MEMORY, 2 * sum(a.nbytes for a in arrays), label)
        self.graph.budget.spend(Cost.OPERATIONS, 1, label)
        self.graph.budget.spend(Cost.ELEMENTS, min(size, SMALL) + len(arrays) + 8, label)
        found = function(*(arrays[:1] if self.facts.moves_one else arrays))
        found, kind = found if isinstance(found, tuple) else (found, self.graph.terms[self.operator.inputs[0]].kind)
        made = found if isinstance(found, list) else [found]
        require_foldable(len(made) >= len(self.operator.outputs))
        return [(each, kind) for each, _ in zip(made, self.operator.outputs, strict=False)]

    def ways(self, lower: Lower, terms: Sequence[Term]) -> Iterator[tuple[Callable[[], NodeTask], Lower]]:
        """Yield the ways to lower the node."""
        facts, given, context = self.facts, (self.graph, self.operator, self.version), self.graph.context
        expand = lower if facts.task is ExpandedNode else facts.by_rank.get(self._rank())
        if expand is not None:
            yield self._expanded, expand
            return
        task = facts.task
        if facts.on_reals and any(term.reals is not None for term in terms):
            task = task or dynamic.NodeOnReals
        if task is not None:
            yield partial(task, *given), lower
            return
        if any(id(term) in context.stored for term in terms):
            if facts.quantised is not None:
                yield self.task, facts.quantised
            if facts.on_stored:
                yield partial(quantised.StoredNode, *given), lower
        if facts.single and any(id(term) in context.pictures for term in terms):
            yield partial(RowNode, *given), lower
        if not (facts.single and is_deep(terms)):
            yield self.task, lower
        if facts.single:
            yield partial(FlatNode, *given), lower
        if facts.moves is not None:
            yield self.task, lower_by_places

    def _expanded(self) -> ExpandedNode:
        """Return the task of a node that others replace, which are lowered in its place."""
        whole = ExpandedNode(self.graph, self.operator, self.version)
        whole.later.append(lambda: self._lower_in_place(whole.nodes, {"": VERSION}))
        return whole

    def _rank(self) -> int:
        """Return the number of dimensions of the first input; -1 if it is not known."""
        term = self.graph.terms.get(self.operator.inputs[0]) if self.operator.inputs else None
        return -1 if term is None or term.value.shape is None else len(term.value.shape)

    def unknown(self, output: str) -> Term:
        """Return an output of a refused node, with the file's type."""
        edge = self.graph.source.known.get(output)
        kind, sizes = (edge.kind, edge.shape or ()) if edge else ("", ())
        shape = tuple(d if isinstance(d, int) else None for d in sizes) or None
        value = Value(TYPES.get(kind, UNTYPED), shape, PLAIN.get(kind, 0.0), name=output)
        return Term(value, kind, doubtful=True)
