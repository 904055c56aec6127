"""Operators that keep something from call to call: variables and recurrent layers."""

import numpy as np

from nnhal.frontends.tflite.build import Importer, Refused
from nnhal.frontends.tflite.file import Operator
from nnhal.frontends.tflite.table import T, entry, has


@entry("UNIDIRECTIONAL_SEQUENCE_LSTM")
def sequence_lstm(g: Importer, o: Operator) -> None:
    x, y = g.x(o.inputs[0]), g.declare(o.outputs[0])
    kind = g.values[x].type
    if g.values[x].quantised or any(g.tensor(i).type != "float32" for i in o.inputs[1:] if i >= 0):
        raise Refused("quantised or of mixed types")
    if o.option("DiagonalRecurrentTensors", False):
        raise Refused("with diagonal recurrent weights")
    states = [g.x(o.inputs[i]) for i in (18, 19)]
    weights = [g.x(i) if i >= 0 else g.omitted(kind) for i in o.inputs[1:18]]
    norms = [g.x(o.inputs[i]) if has(o, i) else g.omitted(kind) for i in range(20, 24)]
    code = {0: 0, 1: 1, 3: 3, 4: 4}.get(o.option("FusedActivationFunction"))
    if code is None:
        raise Refused(f"with activation {o.option('FusedActivationFunction')}")
    clips = [g.literal(o.option(name), T.FLOAT32) for name in ("CellClip", "ProjClip")]
    finals = [g.like(s, g.known(s)) for s in states]
    inputs = [x, *weights, *states, g.int32(code), *clips, g.flag(o.option("TimeMajor")), *norms]
    g.emit("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y, *finals])
    for place, final in zip((18, 19), finals, strict=True):
        g.assign_variable(o.inputs[place], final)


@entry("SVDF")
def svdf(g: Importer, o: Operator) -> None:
    x, y = g.x(o.inputs[0]), g.declare(o.outputs[0])
    if any(i >= 0 and g.tensor(i).type != "float32" for i in o.inputs):
        raise Refused("quantised or of mixed types")
    weights = [g.x(i) for i in o.inputs[1:3]]
    bias = g.x(o.inputs[3]) if has(o, 3) else g.omitted(g.values[x].type)
    state = g.x(o.inputs[4])
    final = g.like(state, g.known(state))
    inputs = [x, *weights, bias, state, g.int32(o.option("Rank")), g.activation(o)]
    g.emit("SVDF", inputs, [final, y])
    g.assign_variable(o.inputs[4], final)


@entry("RNN")
def rnn(g: Importer, o: Operator) -> None:
    if any(g.tensor(i).type != "float32" for i in o.inputs):
        raise Refused("quantised or of mixed types")
    operands, y = [g.x(i) for i in o.inputs], g.declare(o.outputs[0])
    code = o.option("FusedActivationFunction")
    if code not in (0, 1, 2, 3, 4):
        raise Refused(f"with activation {code}")
    final = g.like(operands[4], g.known(operands[4]))
    g.emit("RNN", [*operands, g.int32(code)], [final, y])
    g.assign_variable(o.inputs[4], final)


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
