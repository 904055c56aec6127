"""Entries of recurrent operations: an engine's own kernel if it means the same, otherwise unrolled time steps."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from nnhal.base.codes import RecurrentActivation as Kind
from nnhal.drivers.kit.gru import GatedSequence, gated_sequences
from nnhal.drivers.kit.operations.common import part
from nnhal.drivers.kit.operations.primitives import GATES, LstmLayer, Node, RnnLayer
from nnhal.drivers.kit.operations.task import FLOATS, GraphTask, composite, entry
from nnhal.ops.lstm import EPSILON, scratch_size
from nnhal.ops.recurrent import size

MOST_STEPS = 64  # each becomes separate nodes
BOUNDS = {Kind.RELU1: (-1.0, 1.0), Kind.RELU6: (0.0, 6.0)}
States = tuple[Node, ...]  # the output of the previous step first


class RecurrentCell(NamedTuple):
    """A cell. `step` makes its next states of its states and of the products of a step's input, with `bias`."""

    weights: Node
    bias: Node | None
    states: States
    step: Callable[[States, Node], States]

    def products(self, t: GraphTask, x: Node) -> Node:
        """Return the products of one input or of a sequence."""
        y = t.o.matmul(x, self.weights, False, True)
        return y if self.bias is None else t.op("add", y, self.bias)


def with_activation(t: GraphTask, x: Node) -> Node:
    """Apply the operation's activation to a node."""
    kind = t.a.activation_kind
    if kind in BOUNDS:
        return t.o.clamp(x, *BOUNDS[kind])
    return x if kind == Kind.NONE else t.op(kind.name.lower(), x)


def joined(t: GraphTask, name: str, aux: str, crossed: bool) -> Node:
    """Return weights, followed by those of the auxiliary input if it is read too."""
    return t.o.concat([t.x(name), t.x(aux)], 1) if crossed else t.x(name)


def units_of(t: GraphTask, way: str) -> int:
    """Return the units; 1 for a verdict about unknown sizes."""
    if t.o.unknown_sizes:
        return size(t.a, f"{way}units") or 1
    units: int = getattr(t.a, f"{way}units")
    return units


def gates(t: GraphTask, stem: str, own: Sequence[str]) -> dict[str, Node]:
    """Return the tensors of some gates. One of unknown sizes may look omitted, which only some engines accept."""
    places = {gate: f"{stem}_{gate}" for gate in own}
    return {gate: t.x(name) for gate, name in places.items() if t.o.needs_elements or t.places(name)}


def rnn_cell(t: GraphTask, way: str = "", crossed: bool = False) -> RecurrentCell:
    """Return a fully connected cell."""
    again = t.x(f"{way}recurrent_weights")

    def step(states: States, products: Node) -> States:
        return (with_activation(t, t.op("add", products, t.o.matmul(states[0], again, False, True))),)

    weights = joined(t, f"{way}weights", f"{way}aux_weights", crossed)
    return RecurrentCell(weights, t.x(f"{way}bias"), (t.x(f"{way}hidden_state"),), step)


def lstm_cell(t: GraphTask, way: str = "", crossed: bool = False) -> RecurrentCell:
    """Return an LSTM cell with all its optional parts."""
    own = [gate for gate in GATES if t.places(f"{way}input_to_{gate}")]
    ahead = [joined(t, f"{way}input_to_{gate}", f"{way}aux_to_{gate}", crossed) for gate in own]
    again, bias = gates(t, f"{way}state_to", own), gates(t, f"{way}bias", own)
    peep, norm = ({gate: t.maybe(f"{way}{part}_{gate}") for gate in own} for part in ("peep", "norm"))
    recurrent, plain = t.o.concat([*again.values()], 0), all(weight is None for weight in norm.values())
    projection, shift = t.maybe(f"{way}projection"), t.maybe(f"{way}projection_bias")
    units = units_of(t, way)

    def clipped(x: Node, most: float) -> Node:
        return t.o.clamp(x, -float(most), float(most)) if most > 0 else x

    def step(states: States, products: Node) -> States:
        state, memory = states
        total = t.op("add", products, t.o.matmul(state, recurrent, False, True))
        values = dict(zip(own, t.o.split(total, 1, units, len(own)), strict=True))

        def gate(name: str, memory: Node) -> Node:
            y = values[name]
            if peep[name] is not None:
                y = t.op("add", y, t.op("multiply", memory, peep[name]))
            y = y if norm[name] is None else t.op("multiply", normalised(t, y), norm[name])
            return y if plain or name not in bias else t.op("add", y, bias[name])

        forget = t.op("sigmoid", gate("forget", memory))
        admit = t.op("sigmoid", gate("input", memory)) if "input" in own else t.op("subtract", t.f32(1), forget)
        new = t.op("multiply", admit, with_activation(t, gate("cell", memory)))
        memory = clipped(t.op("add", t.op("multiply", forget, memory), new), t.a.cell_clip)
        output = t.op("multiply", t.op("sigmoid", gate("output", memory)), with_activation(t, memory))
        if projection is not None:
            output = t.o.matmul(output, projection, False, True)
            output = clipped(output if shift is None else t.op("add", output, shift), t.a.projection_clip)
        return output, memory

    added = t.o.concat([*bias.values()], 0) if plain else None
    return RecurrentCell(t.o.concat(ahead, 0), added, (t.x(f"{way}state"), t.x(f"{way}cell_state")), step)


def normalised(t: GraphTask, x: Node) -> Node:
    """Normalise rows to a mean of 0 and a deviation of 1."""
    centred = t.op("subtract", x, t.o.reduce("mean", x, [1], True))
    variance = t.o.reduce("mean", t.op("multiply", centred, centred), [1], True)
    return t.op("divide", centred, t.op("sqrt", t.op("add", variance, t.f32(EPSILON))))


def require_output_size(t: GraphTask, way: str) -> None:
    """Refuse an LSTM whose projection may be omitted at execution, but only if sizes are right with it."""
    output, units = size(t.a, f"{way}output_size"), size(t.a, f"{way}units")
    unlike = t.maybe(f"{way}projection") is None and None not in (output, units) and output != units
    t.require(
        not (unlike and t.o.needs_elements),
        f"{way}projection may be omitted at execution, must be known when the model is prepared",
    )


def rnn_layer(t: GraphTask, way: str, crossed: bool) -> RnnLayer:
    """Return a fully connected layer as an engine's own kernel has it."""
    weights = joined(t, f"{way}weights", f"{way}aux_weights", crossed)
    again, bias, state = (t.x(f"{way}{name}") for name in ("recurrent_weights", "bias", "hidden_state"))
    return RnnLayer(weights, again, bias, state, t.a.activation_kind, units_of(t, way))


def lstm_layer(t: GraphTask, way: str = "", crossed: bool = False) -> LstmLayer | None:
    """Return an LSTM as an engine's own kernel has it; None if it has a part that no engine's has."""
    if t.places(f"{way}projection") or t.places(f"{way}norm_cell") or t.a.cell_clip:
        return None
    own = [gate for gate in GATES if t.places(f"{way}input_to_{gate}")]
    weights = {gate: joined(t, f"{way}input_to_{gate}", f"{way}aux_to_{gate}", crossed) for gate in own}
    recurrent, bias = gates(t, f"{way}state_to", own), gates(t, f"{way}bias", own)
    peepholes = {gate: t.x(f"{way}peep_{gate}") for gate in own if t.maybe(f"{way}peep_{gate}") is not None}
    states, units = (t.x(f"{way}state"), t.x(f"{way}cell_state")), units_of(t, way)
    return LstmLayer(weights, recurrent, bias, peepholes, *states, t.a.activation_kind, units)


def once(t: GraphTask, cell: RecurrentCell) -> States:
    """Run a cell for one step."""
    return cell.step(cell.states, cell.products(t, t.x("input")))


def run(t: GraphTask, x: Node, way: str = "", crossed: bool = False) -> tuple[Node, States]:
    """Run a cell over sequence `x`; return its outputs, in the layout of `x`, and the last states."""
    axis, back = (0 if t.a.time_major else 1), way == "bw_"
    count, lstm = t.a.input.known[axis], "LSTM" in t.name
    if lstm:
        require_output_size(t, way)
    layer = (lstm_layer if lstm else rnn_layer)(t, way, crossed)
    made = None if layer is None else t.o.recurrent(x, layer, count, back, axis)
    if made is not None:
        y, *last = made
        return y, tuple(last)
    t.require(
        count <= MOST_STEPS,
        f"the sequence has {count} steps, must have at most {MOST_STEPS}: {t.o.name} has no kernel for this cell",
    )
    cell = (lstm_cell if lstm else rnn_cell)(t, way, crossed)
    states = cell.states
    outputs: list[Node] = [None] * count
    parts = [t.o.squeeze(part, axis) for part in t.o.split(cell.products(t, x), axis, 1, count)]
    for n in range(count)[:: -1 if back else 1]:
        states = cell.step(states, parts[n])
        outputs[n] = t.o.unsqueeze(states[0], axis)
    return t.o.concat(outputs, axis), states


@composite("GRU", gated_sequences)
def gru(t: GraphTask, s: GatedSequence) -> None:
    """Use the engine's own kernel if it has one."""
    (weights, bias), (again, more) = (zip(*layers, strict=True) for layers in (s.of_input, s.of_state))
    held = t.graph.held
    gates, candidate = (list(map(held, pair)) for pair in zip(bias, more, strict=True))
    biases = [t.op("add", *gates), *(candidate if s.reset_behind else [t.op("add", *candidate)])]
    whole = [t.o.concat(some, 0) for some in (list(map(held, weights)), list(map(held, again)), biases)]
    x = t.o.transpose(t.o.reshape(held(s.input), [s.steps, s.batch, s.size]), [1, 0, 2])
    made = t.o.gru(x, held(s.state), whole, s.steps, s.reset_behind)
    if made is not None:
        states, last = made
        t.graph.hold(s.last, last)
        if s.states is not None:
            t.graph.hold(s.states, t.o.transpose(states, [1, 0, 2]))


@entry("RNN", types=FLOATS)
def rnn(t: GraphTask) -> None:
    """Write one step."""
    (state,) = once(t, rnn_cell(t))
    t.hold_all(state, state)


@entry("LSTM", types=FLOATS)
def lstm(t: GraphTask) -> None:
    """Write one step; the content of the scratch output is undefined."""
    require_output_size(t, "")
    layer = lstm_layer(t)
    made = None if layer is None else t.o.recurrent_step(t.x("input"), layer)
    state, memory = once(t, lstm_cell(t)) if made is None else made
    units, batch, four = size(t.a, "units"), size(t.a, "batch"), bool(t.places("input_to_input"))
    known = units is not None and batch is not None
    t.require(known or not t.o.needs_elements, "the size of the scratch output is known only at execution")
    if known:
        scratch = t.constant(np.zeros((batch or 0, scratch_size(t.a, four)), np.float32))
    else:
        scratch = t.o.concat([t.x("cell_state")] * (3 + four), 1)
    t.hold_all(scratch, state, memory, state)


@entry("UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN", types=FLOATS)
def sequence(t: GraphTask) -> None:
    """Run forwards."""
    y, states = run(t, t.x("input"))
    t.hold_all(y, *states)


@entry("BIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_RNN", types=FLOATS)
def two_ways(t: GraphTask) -> None:
    """Run forwards and backwards.

    If linked crosswise, both cells also read the auxiliary input; in parallel, the backward cell reads only the
    auxiliary input.
    """
    crossed = bool(t.places("fw_aux_to_forget" if t.name.endswith("LSTM") else "fw_aux_weights"))
    ahead, aux = t.x("input"), t.x("aux_input") if crossed else t.maybe("aux_input")
    ahead = t.o.concat([ahead, aux], 2) if crossed else ahead
    back = ahead if crossed or aux is None else aux
    forwards, fw = run(t, ahead, "fw_", crossed)
    backwards, bw = run(t, back, "bw_", crossed)
    sequences = [t.o.concat([forwards, backwards], 2)] if t.a.merge_outputs else [forwards, backwards]
    t.hold_all(*sequences, *fw, *bw)


@entry("SVDF", types=FLOATS)
def svdf(t: GraphTask) -> None:
    """Filter the features, push the result into a memory, and filter that over time."""
    a = t.a
    batch, filters, memory = a.batch, a.filters, a.memory_size
    places = a.state_size // max(1, filters)  # as many as the memory has, or one less: without the newest
    feature = t.o.matmul(t.x("input"), t.x("weights_feature"), False, True)
    window = t.o.reshape(feature, [batch, filters, 1])
    if memory > 1:
        state = t.o.reshape(t.x("state"), [batch, filters, places])
        window = t.o.concat([part(t, state, 2, 0, memory - 1), window], 2)
    products = t.op("multiply", window, t.x("weights_time"))
    sums = t.o.reduce("sum", t.o.reshape(products, [batch, filters // a.rank, a.rank * memory]), [2], False)
    bias = t.maybe("bias")
    t.hold(with_activation(t, sums if bias is None else t.op("add", sums, bias)), 1)
    few = not places or memory == 1
    t.require(not few or not t.o.needs_elements, "the memory holds only the newest value, must hold older ones")
    kept = [part(t, window, 2, 1, memory)] if memory > 1 else []
    if places >= memory or few:
        kept.append(t.constant(np.zeros((batch, filters, max(0, places - memory + 1)), np.float32)))
    t.hold(t.o.reshape(t.o.concat(kept, 2) if len(kept) > 1 else kept[0], [batch, filters * places]), 0)
