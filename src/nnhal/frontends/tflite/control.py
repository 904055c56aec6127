"""Entries of operators that call subgraphs."""

from collections.abc import Sequence

from nnhal.base.operands import Value
from nnhal.base.records import replace
from nnhal.frontends.common.integer_ranges import unlimited
from nnhal.frontends.common.lowering import common_shape, reference
from nnhal.frontends.common.terms import Term, UnsupportedOperator
from nnhal.frontends.tflite.graph import ImportGraph
from nnhal.frontends.tflite.task import OperatorTask, operator


def called(t: OperatorTask, number: int, given: Sequence[Value]) -> ImportGraph:
    """Import a subgraph for these inputs; refuse without a reason if its own operators were refused."""
    check_types(t, number, [t.raw(len(t.operator.inputs) - len(given) + place) for place in range(len(given))])
    graph = t.graph.context.import_subgraph(number, given, t.label)
    if graph.failed:
        raise UnsupportedOperator
    return graph


def check_types(t: OperatorTask, number: int, given: Sequence[Term]) -> None:
    """Refuse a call of a subgraph with other types."""
    if 0 <= number < len(t.graph.file.subgraphs):
        source = t.graph.file.subgraphs[number]
        takes = len(source.inputs)
        t.require(takes == len(given), f"gives subgraph {number} {len(given)} inputs, must be {takes}")
        for place, (index, term) in enumerate(zip(source.inputs, given, strict=True)):
            kind = source.tensors[index].type
            t.require(kind == term.kind, f"input {place} of subgraph {number} is {kind}, must be {term.kind}")


def as_condition(t: OperatorTask, term: Term) -> Term:
    """Return a condition of shape [1]."""
    t.require(term.value.shape == (1,), f"the condition has shape {term.value.shape}, must be one element")
    return term


@operator("IF", inputs=(1, None), outputs=(1, None), span=unlimited)
def branch(t: OperatorTask) -> None:
    """Write IF; both branches have the same operands."""
    o, condition = t.options("IfOptions"), as_condition(t, t.x(0))
    operands = t.xs(1)
    values = [replace(term.value, data=None) for term in operands]
    graphs = [called(t, o(name), values) for name in ("ThenSubgraphIndex", "ElseSubgraphIndex")]
    t.give("IF", condition, *map(reference, graphs), *operands)


@operator("WHILE", inputs=(1, None), outputs=(1, None), span=unlimited)
def loop(t: OperatorTask) -> None:
    """Write WHILE; a dimension that the body changes is unknown from the start."""
    o, operands = t.options("WhileOptions"), t.xs()
    t.require(len(operands) == len(t.operator.outputs), "must have as many outputs as inputs")
    values = [replace(term.value, data=None) for term in operands]
    while True:
        body = called(t, o("BodySubgraphIndex"), values)
        t.require(
            len(body.outputs) == len(values), f"the body has {len(body.outputs)} outputs, must have {len(values)}"
        )
        shapes = [common_shape(v.shape, r.value.shape) for v, r in zip(values, body.outputs, strict=True)]
        if shapes == [v.shape for v in values]:
            break
        values = [replace(v, shape=shape) for v, shape in zip(values, shapes, strict=True)]
    condition = called(t, o("CondSubgraphIndex"), values)
    t.give("WHILE", reference(condition), reference(body), *operands)


@operator("STABLEHLO_COMPOSITE", span=unlimited, inputs=(0, None), outputs=(1, None),
          becomes="the operations of its subgraph")  # fmt: skip
def composite(t: OperatorTask) -> None:
    """Replace a named operator by the operators of its subgraph."""
    number = t.options("StableHLOCompositeOptions")("DecompositionSubgraphIndex")
    given = [t.raw(place) for place in range(len(t.operator.inputs))]
    check_types(t, number, given)
    graph = t.graph.context.expand(number, given, t.graph, t.label)
    if graph.failed:
        raise UnsupportedOperator
    made, wanted = len(graph.outputs), len(t.operator.outputs)
    t.require(made == wanted, f"subgraph {number} has {made} outputs, must have {wanted}")
    t.emitted += graph.operations
    for place, term in enumerate(graph.outputs):
        t.same(term, place)
