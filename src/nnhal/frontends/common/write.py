"""Writes graphs into a model builder: terms become operands; constants in the file stay there."""

from collections.abc import Sequence

import numpy as np

from nnhal.base.codes import MAX_COPIED_CONSTANT, OperandType
from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.frontends.common.budget import Budget, Cost
from nnhal.frontends.common.terms import Term, WrittenGraph
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import EdgeForm, Model, State
from nnhal.model.metadata import Metadata
from nnhal.ops import OPS


class ModelWriter:
    """Writes one model over the memories of its files."""

    def __init__(self, memories: Sequence[Memory], budget: Budget, name: str) -> None:
        self.memories, self.budget, self.builder = memories, budget, ModelBuilder(name)
        self._pools: dict[int, int] = {}
        self._subgraphs: dict[int, int] = {}

    def model(
        self,
        graph: WrittenGraph,
        states: Sequence[tuple[Term, Term, Array]],
        metadata: Metadata | None,
        notes: Sequence[str],
        alike: Sequence[tuple[str, tuple[tuple[int, int], ...]]] = (),
    ) -> Model:
        """Return the model; states come after the ordinary inputs and outputs."""
        inputs = [*graph.inputs, *(source for source, _, _ in states)]
        outputs = [*graph.outputs, *(last for _, last, _ in states)]
        places = self._body(self.builder, graph, inputs)
        counts = len(graph.inputs), len(graph.outputs)
        carried = [State(counts[0] + n, counts[1] + n, first) for n, (_, _, first) in enumerate(states)]
        return self.builder.finish(
            [places[id(term)] for term in inputs],
            [places[id(term)] for term in outputs],
            states=carried,
            extensions=self.builder.extensions(),
            edge={places[id(t)]: form for t, form in graph.edge if form != EdgeForm()},
            metadata=metadata,
            notes=notes,
            alike=alike,
        )

    def _body(self, builder: ModelBuilder, graph: WrittenGraph, inputs: Sequence[Term]) -> dict[int, int]:
        """Write the operations of a graph; return the operand of each term."""
        places: dict[int, int] = {}
        shared: dict[bytes, int] = {}

        def place(each: Term | int) -> int:
            if isinstance(each, int):
                return builder.no_value(each)
            if id(each) not in places:
                key = _key(each)
                found = shared.get(key) if key else None
                places[id(each)] = self._operand(builder, each) if found is None else found
                if key:
                    shared[key] = places[id(each)]
            return places[id(each)]

        for term in inputs:
            place(term)
        for operation in graph.operations:
            given = [place(each) for each in operation.inputs]
            written = [place(each) for each in operation.outputs]
            builder.operation(OPS[operation.type].code, given, written, operation.label, bound=operation.bound)
        return places

    def _operand(self, builder: ModelBuilder, term: Term) -> int:
        value, blob = term.value, term.blob
        if term.graph is not None:
            return builder.subgraph_operand(OperandType.SUBGRAPH, self._subgraph(term.graph))
        if value.data is None:
            dims = [d or 0 for d in value.shape or ()]
            return builder.operand(
                value.type, dims, value.scale, value.zero_point, channel=value.channel, name=value.name
            )
        data = np.asarray(value.data)
        if blob is None or data.nbytes <= MAX_COPIED_CONSTANT or not data.flags.aligned:
            if blob is not None:  # otherwise it was charged when it was made
                self.budget.spend(Cost.MEMORY, data.nbytes, value.name)
            return builder.constant(
                value.type, data, value.scale, value.zero_point, channel=value.channel, name=value.name
            )
        if blob.file not in self._pools:
            self._pools[blob.file] = builder.add_pool(self.memories[blob.file])
        at = self._pools[blob.file], blob.offset, blob.length
        return builder.reference(
            value.type, data.shape, *at, value.scale, value.zero_point, channel=value.channel, name=value.name
        )

    def _subgraph(self, graph: WrittenGraph) -> int:
        if id(graph) not in self._subgraphs:
            builder = self.builder.subgraph()
            places = self._body(builder, graph, graph.inputs)
            inputs, outputs = ([places[id(term)] for term in terms] for terms in (graph.inputs, graph.outputs))
            self._subgraphs[id(graph)] = builder.finish_subgraph(inputs, outputs)
        return self._subgraphs[id(graph)]


def _key(term: Term) -> bytes:
    """Return the key by which unnamed small constants share an operand; b"" for all others."""
    value = term.value
    plain = isinstance(value.data, np.ndarray) and not (value.name or value.quantised or value.scale)
    if not plain or value.data.nbytes > MAX_COPIED_CONSTANT:
        return b""
    return repr((value.type, value.shape)).encode() + value.data.tobytes()
