"""From a bound NNAPI model to a TFLite model, operation by operation.

An entry of the table lowers one operation, or refuses it with a reason. Verdicts and preparation run the same entries, so
a good verdict is one that was lowered. Entries see every shape once the inputs' shapes are known; an entry that has to
know a dimension or value which is not there at the verdict refuses.
"""

from nnhal.base.codes import operation_name, type_name
from nnhal.base.errors import Unmappable
from nnhal.base.operands import Unknown
from nnhal.drivers.litert import elementwise, layers, recurrent, reductions, shapes
from nnhal.drivers.litert.graph import Graph, Lowered, Refused
from nnhal.drivers.litert.task import ENTRIES, Task
from nnhal.hal.device import YES, Verdict, hidden_constant
from nnhal.model.graph import Model, Operation
from nnhal.model.validate import validate
from nnhal.ops.schema import Bound

FAMILIES = (elementwise, layers, recurrent, reductions, shapes)  # importing them fills the table


ELSEWHERE = {
    "IF": "branches stay with the runtime",
    "WHILE": "LiteRT cannot end a loop at its time-out",
}


def verdicts(model: Model) -> list[Verdict]:
    """One verdict for each operation of the main subgraph."""
    return [Verdict(False, why) if why else YES for why in _run(Graph(model))]


def lower(model: Model) -> Lowered:
    """The whole model as TFLite; Refused, or Unmappable, with the first operation that cannot be lowered."""
    graph = Graph(model)
    for number, (why, operation) in enumerate(zip(_run(graph), model.main.operations, strict=True)):
        if why and why == hidden_constant(model, operation):
            raise Unmappable(f"{operation_name(operation.type)} #{number}: {why}")
        if why:
            raise Refused(f"{operation_name(operation.type)} #{number}: {why}")
    return graph.finish()


def _run(graph: Graph) -> list[str]:
    """Lower every operation; for each the reason why it is refused, "" for none."""
    bounds = validate(graph.model).subgraphs[0].operations
    return [_attempt(graph, a, op) for a, op in zip(bounds, graph.model.main.operations, strict=True)]


def _attempt(graph: Graph, a: Bound | None, operation: Operation) -> str:
    if a is None or a.op.name not in ENTRIES:
        name = operation_name(operation.type)
        return ELSEWHERE.get(name, f"this driver does not lower {name}")
    hidden = hidden_constant(graph.model, operation)
    if hidden:
        return hidden
    chosen = ENTRIES[a.op.name]
    if a.T is not None and a.T not in chosen.types:
        return f"LiteRT's {a.op.name} does not take {type_name(a.T)}"
    try:
        task = Task(graph, a, operation)
        chosen.lower(task)
        task.finish()
    except Refused as error:
        return str(error)
    except Unknown as error:
        return f"needs {str(error) or 'a shape'} when the model is prepared, and it is only known at execution"
    return ""
