"""Control flow: IF and WHILE with the subgraphs that they call."""

from collections.abc import Sequence

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.errors import BadFile
from nnhal.base.operands import SubgraphFacts, Value
from nnhal.frontends.tflite.build import Importer, Refused
from nnhal.frontends.tflite.file import Operator
from nnhal.frontends.tflite.table import TABLE, entry

DEEPEST = 32  # of subgraphs within subgraphs


def called(g: Importer, number: int) -> int:
    """A subgraph of the file as a SUBGRAPH operand."""
    if not 0 <= number < len(g.file.graphs):
        raise BadFile(f"{g.where()}: calls subgraph {number}, must be 0 to {len(g.file.graphs) - 1}")
    if g.depth >= DEEPEST:
        raise BadFile(f"{g.where()}: subgraphs are nested deeper than {DEEPEST}, or call themselves")
    graph = g.file.graphs[number]
    builder = g.builder.subgraph()
    inner = Importer(g.file, graph, builder, g.pool, number, g.depth + 1)
    inputs = [inner.declare(i) for i in graph.inputs]
    inner.convert(TABLE)
    if inner.state_inputs:
        raise Refused("a subgraph that it calls keeps variables")
    outputs: list[int] = []
    for index in graph.outputs:
        operand = inner.x(index)
        outputs.append(inner.identity(operand) if operand in outputs or operand not in inner.written else operand)
    facts = inner.facts(0, inputs, outputs)
    index = builder.finish_subgraph(inputs, outputs)
    operand = g.builder.subgraph_operand(OperandType.SUBGRAPH, index)
    g.values[operand] = Value(OperandType.SUBGRAPH, data=SubgraphFacts(index, facts.inputs, facts.outputs))
    return operand


def declared(g: Importer, indices: Sequence[int]) -> list[int]:
    """Outputs of control flow, whose shapes follow from the subgraphs."""
    return [g.declare(i) for i in indices]


@entry("IF")
def if_(g: Importer, o: Operator) -> None:
    branches = [called(g, o.option(name)) for name in ("ThenSubgraphIndex", "ElseSubgraphIndex")]
    condition, *inputs = (g.x(i) for i in o.inputs)
    g.emit("IF", [condition, *branches, *inputs], declared(g, o.outputs))


@entry("WHILE")
def while_(g: Importer, o: Operator) -> None:
    parts = [called(g, o.option(name)) for name in ("CondSubgraphIndex", "BodySubgraphIndex")]
    g.emit("WHILE", [*parts, *(g.x(i) for i in o.inputs)], declared(g, o.outputs))


@entry("RANK")
def rank(g: Importer, o: Operator) -> None:
    g.folded[o.outputs[0]] = np.array([len(g.tensor(o.inputs[0]).shape)], np.int32)


@entry("FILL")
def fill(g: Importer, o: Operator) -> None:
    value = g.constant(o.inputs[1])
    if value is None or value.dtype.kind not in "if":
        raise Refused("its value is not a constant number")
    kind = OperandType.FLOAT32 if value.dtype.kind == "f" else OperandType.INT32
    g.emit("FILL", [g.x(o.inputs[0]), g.literal(value.reshape(-1)[0], kind)], [g.declare(o.outputs[0])])


@entry("EMBEDDING_LOOKUP")
def embedding_lookup(g: Importer, o: Operator) -> None:
    g.emit("EMBEDDING_LOOKUP", [g.x(i) for i in o.inputs], [g.declare(o.outputs[0])])


@entry("HASHTABLE_LOOKUP")
def hashtable_lookup(g: Importer, o: Operator) -> None:
    g.emit("HASHTABLE_LOOKUP", [g.x(i) for i in o.inputs], [g.declare(i) for i in o.outputs])
