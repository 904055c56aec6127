"""Entries of recurrent operations: ONNX Runtime's LSTM and RNN where they mean the same, else steps written one by one."""

import numpy as np

from nnhal.base.codes import RecurrentActivation as Kind
from nnhal.drivers.onnxruntime.graph import FLOATS, OnnxTask, entry
from nnhal.ops.lstm import EPSILON

MOST_STEPS = 64  # that are written one by one
FUSED = {Kind.RELU: "Relu", Kind.TANH: "Tanh", Kind.SIGMOID: "Sigmoid"}
GATES = ("input", "output", "forget", "cell")  # in ONNX's order
LIMITS = {Kind.RELU1: (-1, 1), Kind.RELU6: (0, 6)}
Direction = tuple[str, list[str]]  # a sequence [steps, batch, size], and the last states


def activated(t: OnnxTask, x: str) -> str:
    """After the activation."""
    kind = t.a.activation_kind
    if kind in LIMITS:
        return t.node("Clip", x, *map(t.constant, LIMITS[kind]))
    return x if kind == Kind.NONE else t.node(FUSED[kind], x)


def step_by_step(t: OnnxTask, x: str) -> list[str]:
    """The parts of a sequence along its first dimension."""
    steps = t.steps_of
    t.require(steps <= MOST_STEPS, f"ONNX Runtime has no kernel of this cell, and {steps} steps are too many to write")
    if steps == 1:
        return [t.node("Squeeze", x, t.ints(0))]
    parts = t.graph.nodes_of("Split", [x, t.ints(*[1] * steps)], steps, axis=0)
    return [t.node("Squeeze", part, t.ints(0)) for part in parts]


def stacked(t: OnnxTask, parts: list[str]) -> str:
    """A sequence of them."""
    return t.node("Concat", *[t.node("Unsqueeze", part, t.ints(0)) for part in parts], axis=0)


def turned(t: OnnxTask, weights: str) -> str:
    """A matrix with its dimensions changed."""
    return t.node("Transpose", weights, perm=(1, 0))


# ------------------------------------------------------------------------------------------------------------------ LSTM


def gates(t: OnnxTask, way: str, stem: str) -> dict[int, str]:
    """What each gate has of the name; that of a coupled input gate is the forget gate's with another sign, as
    1 - sigmoid(x) = sigmoid(-x).
    """
    found = [t.maybe(f"{way}{stem}{gate}") for gate in GATES]
    if found[0] is None and t.maybe(f"{way}input_to_input") is None and found[2] is not None:
        found[0] = t.node("Neg", found[2])
    return {number: name for number, name in enumerate(found) if name is not None}


def lstm(t: OnnxTask, x: str, way: str, crossed: bool, *, back: bool = False) -> Direction:
    """One direction of an LSTM."""
    a = t.a
    inputs, states = gates(t, way, "input_to_"), gates(t, way, "state_to_")
    if crossed:
        aux = gates(t, way, "aux_to_")
        inputs = {number: t.node("Concat", name, aux[number], axis=1) for number, name in inputs.items()}
    biases, peepholes = gates(t, way, "bias_"), gates(t, way, "peep_")
    state, memory = t.x(f"{way}state"), t.x(f"{way}cell_state")
    weights, recurrent = (t.node("Concat", *group.values(), axis=0) for group in (inputs, states))
    plain = t.maybe(f"{way}projection") is None and t.maybe(f"{way}norm_cell") is None
    if plain and a.cell_clip == 0 and a.activation_kind in FUSED:
        both = t.node("Concat", *biases.values(), t.constant(np.zeros(4 * getattr(a, f"{way}units"))), axis=0)
        first = [t.node("Unsqueeze", name, t.ints(0)) for name in (weights, recurrent, both, state, memory)]
        if peepholes:
            first.append(t.node("Unsqueeze", t.node("Concat", *peepholes.values(), axis=0), t.ints(0)))
        kinds = ["Sigmoid", *[FUSED[a.activation_kind]] * 2]
        y, *last = t.graph.nodes_of(
            "LSTM", [x, *first[:3], "", *first[3:]], 3, hidden_size=getattr(a, f"{way}units"), activations=kinds,
            direction="reverse" if back else "forward",
        )  # fmt: skip
        return t.node("Squeeze", y, t.ints(1)), [t.node("Squeeze", name, t.ints(0)) for name in last]
    norms, outputs, recurrent = gates(t, way, "norm_"), [], turned(t, recurrent)
    parts = step_by_step(t, t.node("MatMul", x, turned(t, weights)))
    for part in reversed(parts) if back else parts:
        total = t.node("Add", part, t.node("MatMul", state, recurrent))
        values = t.graph.nodes_of("Split", [total, t.ints(*[getattr(a, f"{way}units")] * 4)], 4, axis=1)
        made = cell_step(t, way, values, memory, (peepholes, norms, biases))
        state, memory = made
        outputs.append(state)
    return stacked(t, outputs[::-1] if back else outputs), [state, memory]


def cell_step(
    t: OnnxTask, way: str, values: list[str], memory: str, extras: tuple[dict[int, str], ...]
) -> tuple[str, str]:
    """One step of a cell with all its parts: its output and its new memory. values: of the gates, before their biases."""
    a, (peepholes, norms, biases) = t.a, extras

    def gate(number: int, memory: str | None = None) -> str:
        total = values[number]
        if number in peepholes and memory is not None:
            total = t.node("Add", total, t.node("Mul", memory, peepholes[number]))
        if number in norms:
            total = normalised(t, total, norms[number])
        return t.node("Add", total, biases[number]) if number in biases else total

    if norms and t.maybe(f"{way}input_to_input") is None:  # the norm's sign is changed with the weights'
        forget = t.node("Sigmoid", gate(2, memory))
        admit = t.node("Sub", t.constant(1), forget)
    else:
        forget, admit = (t.node("Sigmoid", gate(number, memory)) for number in (2, 0))
    new = t.node("Mul", admit, activated(t, gate(3)))
    memory = t.node("Add", t.node("Mul", forget, memory), new)
    if a.cell_clip > 0:
        memory = t.node("Clip", memory, t.constant(-a.cell_clip), t.constant(a.cell_clip))
    y = t.node("Mul", t.node("Sigmoid", gate(1, memory)), activated(t, memory))
    projection, bias = t.maybe(f"{way}projection"), t.maybe(f"{way}projection_bias")
    if projection is not None:
        y = t.node("MatMul", y, turned(t, projection))
        y = y if bias is None else t.node("Add", y, bias)
        if a.projection_clip > 0:
            y = t.node("Clip", y, t.constant(-a.projection_clip), t.constant(a.projection_clip))
    return y, memory


def normalised(t: OnnxTask, x: str, weight: str) -> str:
    """With a mean of 0 and a deviation of 1, times weights."""
    centred = t.node("Sub", x, t.node("ReduceMean", x, t.ints(1)))
    variance = t.node("ReduceMean", t.node("Mul", centred, centred), t.ints(1))
    deviation = t.node("Sqrt", t.node("Add", variance, t.constant(EPSILON)))
    return t.node("Mul", t.node("Div", centred, deviation), weight)


@entry("LSTM", types=FLOATS)
def lstm_step(t: OnnxTask) -> None:
    """A sequence of one step; what the scratch output holds is undefined."""
    t.steps_of = 1
    y, states = lstm(t, t.node("Unsqueeze", t.x("input"), t.ints(0)), "", False)
    t.put(t.constant(np.zeros(t.made().known)))
    for number, name in enumerate((*states, t.node("Squeeze", y, t.ints(0)))):
        t.put(name, number + 1)


# ------------------------------------------------------------------------------------------------------------------- RNN


def rnn(t: OnnxTask, x: str, way: str, crossed: bool, *, back: bool = False) -> Direction:
    """One direction of a simple cell."""
    names = ("weights", "recurrent_weights", "bias", "hidden_state")
    weights, recurrent, bias, state = (t.x(way + name) for name in names)
    if crossed:
        weights = t.node("Concat", weights, t.x(f"{way}aux_weights"), axis=1)
    kind = FUSED.get(t.a.activation_kind)
    if kind is not None and t.steps_of > 1:
        units = getattr(t.a, f"{way}units")
        both = t.node("Concat", bias, t.constant(np.zeros(units)), axis=0)
        first = [t.node("Unsqueeze", name, t.ints(0)) for name in (weights, recurrent, both, state)]
        y, last = t.graph.nodes_of(
            "RNN", [x, *first[:3], "", first[3]], 2, hidden_size=units, activations=[kind],
            direction="reverse" if back else "forward",
        )  # fmt: skip
        return t.node("Squeeze", y, t.ints(1)), [t.node("Squeeze", last, t.ints(0))]
    outputs, recurrent = [], turned(t, recurrent)
    parts = step_by_step(t, t.node("Add", t.node("MatMul", x, turned(t, weights)), bias))
    for part in reversed(parts) if back else parts:
        state = activated(t, t.node("Add", part, t.node("MatMul", state, recurrent)))
        outputs.append(state)
    return stacked(t, outputs[::-1] if back else outputs), [state]


@entry("RNN", types=FLOATS)
def rnn_step(t: OnnxTask) -> None:
    """The new state is the output."""
    t.steps_of = 1
    _, (state,) = rnn(t, t.node("Unsqueeze", t.x("input"), t.ints(0)), "", False)
    t.put(state, 0)
    t.put(state, 1)


# ------------------------------------------------------------------------------------------------------------- sequences


def time_first(t: OnnxTask, x: str) -> str:
    """A sequence whose steps come first; or back again."""
    return x if t.a.time_major else t.node("Transpose", x, perm=(1, 0, 2))


@entry("UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN", types=FLOATS)
def one_way(t: OnnxTask) -> None:
    """Forwards."""
    t.steps_of = t.a.input.known[0 if t.a.time_major else 1]
    y, states = (lstm if t.name.endswith("LSTM") else rnn)(t, time_first(t, t.x("input")), "", False)
    give_all(t, [time_first(t, y), *states])


@entry("BIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_RNN", types=FLOATS)
def two_ways(t: OnnxTask) -> None:
    """Forwards and backwards. Both read the auxiliary input beside the input, or the second reads it instead."""
    t.steps_of = t.a.input.known[0 if t.a.time_major else 1]
    kernel, weights = (lstm, "fw_aux_to_forget") if t.name.endswith("LSTM") else (rnn, "fw_aux_weights")
    crossed, aux = t.maybe(weights) is not None, t.maybe("aux_input")
    ahead = behind = time_first(t, t.x("input"))
    if crossed:
        ahead = behind = t.node("Concat", ahead, time_first(t, t.x("aux_input")), axis=2)
    elif aux is not None:
        behind = time_first(t, aux)
    forwards, states = kernel(t, ahead, "fw_", crossed)
    backwards, more = kernel(t, behind, "bw_", crossed, back=True)
    outputs = [forwards, backwards]
    if t.a.merge_outputs:
        outputs = [t.node("Concat", *outputs, axis=2)]
    give_all(t, [*[time_first(t, y) for y in outputs], *states, *more])


def give_all(t: OnnxTask, outputs: list[str]) -> None:
    """As many as the operation has."""
    for number, y in enumerate(outputs[: len(t.operation.outputs)]):
        t.put(y, number)


@entry("SVDF", types=FLOATS)
def svdf(t: OnnxTask) -> None:
    """The newest value of each filter is pushed into its memory, over which its time filter runs."""
    a = t.a
    batch, filters, memory, places = a.batch, a.filters, a.memory_size, a.state_size // max(1, a.filters)
    kept = t.reshaped(t.x("state"), [batch, filters, places])
    kept = t.node("Slice", kept, t.ints(0), t.ints(memory - 1), t.ints(2))
    feature = t.node("MatMul", t.x("input"), turned(t, t.x("weights_feature")))
    window = t.node("Concat", kept, t.node("Unsqueeze", feature, t.ints(2)), axis=2)
    products = t.node("Mul", window, t.x("weights_time"))
    y = t.node("ReduceSum", t.reshaped(products, [batch, filters // a.rank, a.rank * memory]), t.ints(2), keepdims=0)
    if t.places("bias"):
        y = t.node("Add", y, t.x("bias"))
    pushed = t.node("Slice", window, t.ints(1), t.ints(memory), t.ints(2))
    if places == memory:
        pushed = t.node("Pad", pushed, t.ints(0, 0, 0, 0, 0, 1), t.constant(0))
    t.put(t.reshaped(pushed, [batch, a.state_size]))
    t.put(activated(t, y), 1)
