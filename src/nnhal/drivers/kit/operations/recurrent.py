"""Entries of recurrent operations: cells written as several operations, unrolled over time.

Plain LSTM and GRU sequences use the engine's own kernel if it has one.
"""

from collections.abc import Callable

import numpy as np

from nnhal.base.codes import RecurrentActivation as Kind
from nnhal.drivers.kit.gated import GatedSequence
from nnhal.drivers.kit.operations.primitives import Node
from nnhal.drivers.kit.operations.task import FLOATS, GraphTask, entry, whole_grus
from nnhal.ops.lstm import EPSILON, scratch_size
from nnhal.ops.recurrent import size

MOST_STEPS = 64  # each becomes separate nodes
GATES = ("forget", "input", "cell", "output")
BOUNDS = {Kind.RELU1: (-1.0, 1.0), Kind.RELU6: (0.0, 6.0)}
States = tuple[Node, ...]  # the output of the previous step first
Step = Callable[[States, Node], States]
Cell = Callable[[GraphTask, str, bool], tuple[Step, States]]


def with_activation(t: GraphTask, x: Node) -> Node:
    """Apply the operation's activation to a node."""
    kind = t.a.activation_kind
    if kind in BOUNDS:
        return t.o.clamp(x, *BOUNDS[kind])
    return x if kind == Kind.NONE else t.op(kind.name.lower(), x)


def times(t: GraphTask, x: Node, weights: Node) -> Node:
    """Multiply rows by transposed weights."""
    return t.o.matmul(x, weights, False, True)


def joined_weights(t: GraphTask, name: str, aux: str, crossed: bool) -> Node:
    """Return weights, followed by those of the auxiliary input if it is read too."""
    return t.o.concat([t.x(name), t.x(aux)], 1) if crossed else t.x(name)


def rnn_cell(t: GraphTask, way: str = "", crossed: bool = False) -> tuple[Step, States]:
    """Return one step of a fully connected cell, and its state."""
    own = joined_weights(t, f"{way}weights", f"{way}aux_weights", crossed)
    again, bias = t.x(f"{way}recurrent_weights"), t.x(f"{way}bias")

    def step(states: States, x: Node) -> States:
        total = t.op("add", t.op("add", times(t, x, own), times(t, states[0], again)), bias)
        return (with_activation(t, total),)

    return step, (t.x(f"{way}hidden_state"),)


def lstm_cell(t: GraphTask, way: str = "", crossed: bool = False) -> tuple[Step, States]:
    """Return one step of an LSTM cell with all its optional parts, and its states."""
    own = [gate for gate in GATES if t.places(f"{way}input_to_{gate}")]
    ahead = {g: joined_weights(t, f"{way}input_to_{g}", f"{way}aux_to_{g}", crossed) for g in own}
    again, bias = ({g: t.x(f"{way}{part}_{g}") for g in own} for part in ("state_to", "bias"))
    peep, norm = ({g: t.maybe(f"{way}{part}_{g}") for g in own} for part in ("peep", "norm"))
    projection, shift = t.maybe(f"{way}projection"), t.maybe(f"{way}projection_bias")
    output, units = size(t.a, f"{way}output_size"), size(t.a, f"{way}units")
    unlike = projection is None and None not in (output, units) and output != units
    t.require(not unlike, f"{way}projection may be omitted at execution, must be known when the model is prepared")

    def gate(name: str, x: Node, state: Node, memory: Node) -> Node:
        total = t.op("add", times(t, x, ahead[name]), times(t, state, again[name]))
        if peep[name] is not None:
            total = t.op("add", total, t.op("multiply", memory, peep[name]))
        if norm[name] is not None:
            centred = t.op("subtract", total, t.o.reduce("mean", total, [1], True))
            variance = t.o.reduce("mean", t.op("multiply", centred, centred), [1], True)
            root = t.op("sqrt", t.op("add", variance, t.f32(EPSILON)))
            total = t.op("multiply", t.op("divide", centred, root), norm[name])
        return t.op("add", total, bias[name])

    def step(states: States, x: Node) -> States:
        state, memory = states
        forget = t.op("sigmoid", gate("forget", x, state, memory))
        admit = (
            t.op("sigmoid", gate("input", x, state, memory)) if "input" in own else t.op("subtract", t.f32(1), forget)
        )
        new = t.op("multiply", admit, with_activation(t, gate("cell", x, state, memory)))
        memory = t.op("add", t.op("multiply", forget, memory), new)
        if t.a.cell_clip > 0:
            memory = t.o.clamp(memory, -t.a.cell_clip, t.a.cell_clip)
        output = t.op("multiply", t.op("sigmoid", gate("output", x, state, memory)), with_activation(t, memory))
        if projection is not None:
            output = times(t, output, projection)
            output = output if shift is None else t.op("add", output, shift)
            if t.a.projection_clip > 0:
                output = t.o.clamp(output, -t.a.projection_clip, t.a.projection_clip)
        return output, memory

    return step, (t.x(f"{way}state"), t.x(f"{way}cell_state"))


def unroll_cell(t: GraphTask, x: Node, cell: Cell, way: str = "", crossed: bool = False) -> tuple[Node, States]:
    """Run a cell over sequence `x`; return its outputs, in the layout of `x`, and the last states."""
    axis, back = (0 if t.a.time_major else 1), way == "bw_"
    count = t.a.input.known[axis]
    if cell is lstm_cell and not crossed and plain(t, way):
        made = fused(t, x, way, count)
        if made is not None:
            return made
    t.require(count <= MOST_STEPS, f"the sequence to unroll has {count} steps, must have at most {MOST_STEPS}")
    step, states = cell(t, way, crossed)
    outputs: list[Node] = [None] * count
    for n in range(count)[:: -1 if back else 1]:
        states = step(states, t.o.squeeze(t.part(x, axis, n, n + 1), axis))
        outputs[n] = t.o.unsqueeze(states[0], axis)
    return t.o.concat(outputs, axis), states


def plain(t: GraphTask, way: str) -> bool:
    """Whether an LSTM cell has none of the optional parts."""
    parts = [f"{way}{part}_{gate}" for part in ("peep", "norm") for gate in GATES] + [f"{way}projection"]
    simple = not any(t.places(part) for part in parts) and t.places(f"{way}input_to_input")
    return bool(simple and t.a.activation_kind == Kind.TANH and not t.a.cell_clip)


def fused(t: GraphTask, x: Node, way: str, count: int) -> tuple[Node, States] | None:
    """Run a plain LSTM over a sequence by the engine's own kernel; None if it has none."""
    weights = [t.o.concat([t.x(f"{way}{part}_{g}") for g in GATES], 0) for part in ("input_to", "state_to", "bias")]
    x = t.o.transpose(x, [1, 0, 2]) if t.a.time_major else x
    made = t.o.lstm(x, [t.x(f"{way}{name}") for name in ("state", "cell_state")], weights, count, way == "bw_")
    if made is None:
        return None
    y, *states = made
    return t.o.transpose(y, [1, 0, 2]) if t.a.time_major else y, tuple(states)


@whole_grus
def gru(t: GraphTask, s: GatedSequence) -> None:
    """Use the engine's own kernel if it has one."""
    (weights, bias), (again, more) = (zip(*layers, strict=True) for layers in (s.of_input, s.of_state))
    held = t.graph.held
    gates, candidate = (list(map(held, pair)) for pair in zip(bias, more, strict=True))
    biases = [t.op("add", *gates), *(candidate if s.reset_behind else [t.op("add", *candidate)])]
    joined = [t.o.concat(some, 0) for some in (list(map(held, weights)), list(map(held, again)), biases)]
    x = t.o.transpose(t.o.reshape(held(s.input), [s.steps, s.batch, s.size]), [1, 0, 2])
    made = t.o.gru(x, held(s.state), joined, s.steps, s.reset_behind)
    if made is not None:
        states, last = made
        t.graph.hold(s.last, last)
        if s.states is not None:
            t.graph.hold(s.states, t.o.transpose(states, [1, 0, 2]))


@entry("RNN", types=FLOATS)
def rnn(t: GraphTask) -> None:
    """Write one step."""
    step, states = rnn_cell(t)
    (state,) = step(states, t.x("input"))
    t.hold(state, 0)
    t.hold(state, 1)


@entry("LSTM", types=FLOATS)
def lstm(t: GraphTask) -> None:
    """Write one step; the content of the scratch output is undefined."""
    step, states = lstm_cell(t)
    state, memory = step(states, t.x("input"))
    for number, node in enumerate((state, memory, state), 1):
        t.hold(node, number)
    units, batch = size(t.a, "units"), size(t.a, "batch")
    t.require(units is not None and batch is not None, "the size of the scratch output is known only at execution")
    t.hold(t.constant(np.zeros((batch or 0, scratch_size(t.a, bool(t.places("input_to_input")))), np.float32)), 0)


@entry("UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN", types=FLOATS)
def sequence(t: GraphTask) -> None:
    """Run forwards."""
    y, states = unroll_cell(t, t.x("input"), lstm_cell if t.name.endswith("LSTM") else rnn_cell)
    t.hold_all(y, *states)


@entry("BIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_RNN", types=FLOATS)
def two_ways(t: GraphTask) -> None:
    """Run forwards and backwards.

    If linked crosswise, both cells also read the auxiliary input; in parallel, the backward cell reads only the
    auxiliary input.
    """
    cell, aux_weights = (lstm_cell, "fw_aux_to_forget") if t.name.endswith("LSTM") else (rnn_cell, "fw_aux_weights")
    crossed, ahead = bool(t.places(aux_weights)), t.x("input")
    aux = t.x("aux_input") if crossed else t.maybe("aux_input")
    ahead = t.o.concat([ahead, aux], 2) if crossed else ahead
    back = ahead if crossed or aux is None else aux
    forwards, fw = unroll_cell(t, ahead, cell, "fw_", crossed)
    backwards, bw = unroll_cell(t, back, cell, "bw_", crossed)
    sequences = [t.o.concat([forwards, backwards], 2)] if t.a.merge_outputs else [forwards, backwards]
    t.hold_all(*sequences, *fw, *bw)


@entry("SVDF", types=FLOATS)
def svdf(t: GraphTask) -> None:
    """Filter the features, push the result into a memory, and filter that over time."""
    a = t.a
    batch, filters, memory = a.batch, a.filters, a.memory_size
    places = a.state_size // filters  # as many as the memory has, or one less: then there is none for the newest
    newest = t.o.reshape(times(t, t.x("input"), t.x("weights_feature")), [batch, filters, 1])
    state = t.o.reshape(t.x("state"), [batch, filters, places]) if places else None
    window = newest
    if memory > 1:
        window = t.o.concat([t.part(state, 2, 0, memory - 1), newest], 2)
    products = t.o.reshape(t.op("multiply", window, t.x("weights_time")), [batch, filters // a.rank, -1])
    sums, bias = t.o.reduce("sum", products, [2], False), t.maybe("bias")
    t.hold(with_activation(t, sums if bias is None else t.op("add", sums, bias)), 1)
    t.require(places and memory > 1, "the memory holds only the newest value, must hold older ones")
    older, more = t.part(window, 2, 1, memory), places - memory + 1
    zeros = t.constant(np.zeros((batch, filters, more), np.float32)) if more else None
    t.hold(t.o.reshape(t.o.concat([older, zeros], 2) if more else older, [batch, filters * places]), 0)
