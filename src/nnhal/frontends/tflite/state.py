"""Resource variables: read, assigned, and given their first values by CALL_ONCE."""

import numpy as np

from nnhal.frontends.tflite.build import Importer, Refused
from nnhal.frontends.tflite.file import Operator
from nnhal.frontends.tflite.table import entry


@entry("CALL_ONCE")
def call_once(g: Importer, o: Operator) -> None:
    number = o.option("InitSubgraphIndex")
    graph = g.file.graphs[number]
    inner = Importer(g.file, graph, g.builder, g.pool, number)
    for each in graph.operators:
        if each.name == "VAR_HANDLE":
            handle(inner, each)
        elif each.name == "ASSIGN_VARIABLE":
            value = inner.constant(each.inputs[1])
            if value is None:
                raise Refused("a variable starts with what is not constant")
            g.initial[inner.handles[each.inputs[0]]] = np.array(value)
        else:
            raise Refused(f"its subgraph has {each.name}")


@entry("VAR_HANDLE")
def handle(g: Importer, o: Operator) -> None:
    name, container = o.option("SharedName") or b"", o.option("Container") or b""
    g.handles[o.outputs[0]] = f"{container.decode()}/{name.decode()}"


@entry("READ_VARIABLE")
def read_variable(g: Importer, o: Operator) -> None:
    key = g.handles[o.inputs[0]]
    if key not in g.variables:
        operand = g.declare(o.outputs[0], g.tensor(o.outputs[0]).shape, key.lstrip("/"))
        g.state_inputs[key] = g.variables[key] = operand
        zero = g.values[operand].zero_point
        g.initial.setdefault(key, np.full(g.known(operand), zero, g.values[operand].dtype))
        g.initial[key] = g.initial[key].reshape(g.known(operand))
    g.operands[o.outputs[0]] = g.variables[key]


@entry("ASSIGN_VARIABLE")
def assign_variable(g: Importer, o: Operator) -> None:
    g.variables[g.handles[o.inputs[0]]] = g.x(o.inputs[1])
