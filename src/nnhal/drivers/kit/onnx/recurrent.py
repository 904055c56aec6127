"""Entries of recurrent operations: ONNX Runtime's LSTM, GRU and RNN if they mean the same, otherwise unrolled time steps."""

from typing import Any

import numpy as np

from nnhal.base.codes import RecurrentActivation as Kind
from nnhal.drivers.kit.gated import GatedSequence
from nnhal.drivers.kit.onnx.task import TABLE, OnnxTask, entry
from nnhal.drivers.kit.operations.task import FLOATS
from nnhal.ops.lstm import EPSILON

MOST_STEPS = 64  # the most that are unrolled
FUSED = {Kind.RELU: "Relu", Kind.TANH: "Tanh", Kind.SIGMOID: "Sigmoid"}
GATES = ("input", "output", "forget", "cell")  # in ONNX's order
LIMITS = {Kind.RELU1: (-1.0, 1.0), Kind.RELU6: (0.0, 6.0)}
Direction = tuple[str, list[str]]  # a sequence [steps, batch, size], and the last states


def activated(t: OnnxTask, x: str) -> str:
    kind = t.a.activation_kind
    if kind in LIMITS:
        return t.o.Clip(x, *LIMITS[kind])
    return x if kind == Kind.NONE else t.graph.node(FUSED[kind], x)


def turned(t: OnnxTask, weights: str) -> str:
    return t.o.Transpose(weights, perm=(1, 0))


def first_of_one(t: OnnxTask, names: list[str]) -> list[str]:
    """Add a dimension for the directions, of which there is one."""
    return [t.o.Unsqueeze(name, [0]) for name in names]


def in_steps(t: OnnxTask, x: str, steps: int, *, back: bool) -> list[str]:
    """Split a sequence into its steps, in the order of execution."""
    t.require(
        steps <= MOST_STEPS,
        f"the sequence has {steps} steps, must have at most {MOST_STEPS}: ONNX Runtime has no kernel for this cell",
    )
    parts = t.nodes("Split", [x, [1] * steps], steps, axis=0)
    return [t.o.Squeeze(part, [0]) for part in (reversed(parts) if back else parts)]


def in_order(t: OnnxTask, outputs: list[str], *, back: bool) -> str:
    """Join the outputs of the steps to a sequence."""
    return t.o.Concat(*first_of_one(t, outputs[::-1] if back else outputs), axis=0)


def fused(t: OnnxTask, kind: str, inputs: list[str], units: int, activations: list[str], *, back: bool) -> Direction:
    """Write ONNX's own operator."""
    way, count = "reverse" if back else "forward", 3 if kind == "LSTM" else 2
    how = {"hidden_size": units, "activations": activations, "direction": way}
    y, *last = t.nodes(kind, inputs, count, **how)
    return t.o.Squeeze(y, [1]), [t.o.Squeeze(name, [0]) for name in last]


# ------------------------------------------------------------------------------------------------------------------ LSTM


def gates(t: OnnxTask, way: str, stem: str) -> dict[int, str]:
    """Return the tensor of each gate for a name.

    A coupled input gate has the negated one of the forget gate, because 1 - sigmoid(x) = sigmoid(-x).
    """
    found = [t.maybe(f"{way}{stem}{gate}") for gate in GATES]
    if found[0] is None and t.maybe(f"{way}input_to_input") is None and found[2] is not None:
        found[0] = t.o.Neg(found[2])
    return {number: name for number, name in enumerate(found) if name is not None}


def lstm(t: OnnxTask, x: str, steps: int, way: str, *, crossed: bool = False, back: bool = False) -> Direction:
    """Write one direction of an LSTM."""
    a, units = t.a, getattr(t.a, f"{way}units")
    inputs, biases, peepholes = gates(t, way, "input_to_"), gates(t, way, "bias_"), gates(t, way, "peep_")
    if crossed:
        aux = gates(t, way, "aux_to_")
        inputs = {number: t.o.Concat(name, aux[number], axis=1) for number, name in inputs.items()}
    weights = t.o.Concat(*inputs.values(), axis=0)
    recurrent = t.o.Concat(*gates(t, way, "state_to_").values(), axis=0)
    state, memory = t.stored(f"{way}state"), t.stored(f"{way}cell_state")
    plain = t.maybe(f"{way}projection") is None and t.maybe(f"{way}norm_cell") is None and a.cell_clip == 0
    if plain and a.activation_kind in FUSED:
        both = t.o.Concat(*biases.values(), np.zeros(4 * units, np.float32), axis=0)
        peeps = [t.o.Concat(*peepholes.values(), axis=0)] if peepholes else []
        given = first_of_one(t, [weights, recurrent, both, state, memory, *peeps])
        kinds = ["Sigmoid", *[FUSED[a.activation_kind]] * 2]
        return fused(t, "LSTM", [x, *given[:3], "", *given[3:]], units, kinds, back=back)
    norms, outputs, recurrent = gates(t, way, "norm_"), [], turned(t, recurrent)
    for part in in_steps(t, t.o.MatMul(x, turned(t, weights)), steps, back=back):
        total = t.o.Add(part, t.o.MatMul(state, recurrent))
        values = t.nodes("Split", [total, [units] * 4], 4, axis=1)
        state, memory = cell(t, way, values, memory, (peepholes, norms, biases))
        outputs.append(state)
    return in_order(t, outputs, back=back), [state, memory]


def cell(t: OnnxTask, way: str, values: list[str], memory: str, extras: tuple[dict[int, str], ...]) -> tuple[str, str]:
    """Write one step of a cell with all its parts; return its output and its new memory.

    values: of the gates, before their biases.
    """
    a, (peepholes, norms, biases) = t.a, extras

    def gate(number: int, memory: str | None = None) -> str:
        total = values[number]
        if number in peepholes and memory is not None:
            total = t.o.Add(total, t.o.Mul(memory, peepholes[number]))
        if number in norms:
            total = normalised(t, total, norms[number])
        return t.o.Add(total, biases[number]) if number in biases else total

    forget = t.o.Sigmoid(gate(2, memory))
    # a norm also negates the sign that the negated weights have
    coupled = norms and t.maybe(f"{way}input_to_input") is None
    admit = t.o.Sub(1.0, forget) if coupled else t.o.Sigmoid(gate(0, memory))
    memory = t.o.Add(t.o.Mul(forget, memory), t.o.Mul(admit, activated(t, gate(3))))
    memory = clipped(t, memory, a.cell_clip)
    y = t.o.Mul(t.o.Sigmoid(gate(1, memory)), activated(t, memory))
    projection, bias = t.maybe(f"{way}projection"), t.maybe(f"{way}projection_bias")
    if projection is not None:
        y = t.o.MatMul(y, turned(t, projection))
        y = clipped(t, y if bias is None else t.o.Add(y, bias), a.projection_clip)
    return y, memory


def clipped(t: OnnxTask, x: str, most: float) -> str:
    return t.o.Clip(x, -float(most), float(most)) if most > 0 else x


def normalised(t: OnnxTask, x: str, weight: str) -> str:
    """Normalise to a mean of 0 and a deviation of 1, and multiply by weights."""
    centred = t.o.Sub(x, t.o.ReduceMean(x, [1]))
    variance = t.o.ReduceMean(t.o.Mul(centred, centred), [1])
    return t.o.Mul(t.o.Div(centred, t.o.Sqrt(t.o.Add(variance, EPSILON))), weight)


@entry("LSTM", types=FLOATS)
def lstm_step(t: OnnxTask) -> None:
    """Write a sequence of one step; the content of the scratch output is undefined."""
    y, states = lstm(t, t.o.Unsqueeze(t.stored("input"), [0]), 1, "")
    scratch = t.o.Concat(*[t.stored("cell_state")] * (4 if t.maybe("input_to_input") else 3), axis=1)
    set_outputs(t, [scratch, *states, t.o.Squeeze(y, [0])])


# ------------------------------------------------------------------------------------------------------------------- GRU


def gru(t: OnnxTask, s: GatedSequence) -> None:
    """Write ONNX's own operator for steps that the model spells out."""
    (weights, bias), (again, more) = (zip(*layers, strict=True) for layers in (s.of_input, s.of_state))
    joined = [t.o.Concat(*map(t.graph.held, some), axis=0) for some in (weights, again, (*bias, *more))]
    x, state = (
        t.o.reshape(t.graph.held(i), (steps, s.batch, size))
        for i, steps, size in ((s.input, s.steps, s.size), (s.state, 1, s.units))
    )
    how = {"hidden_size": s.units, "linear_before_reset": int(s.reset_behind)}
    (y,) = t.nodes("GRU", [x, *first_of_one(t, joined), "", state], 1, **how)
    if s.steps == 1:
        t.graph.hold(s.last, t.o.reshape(t.o.Add(y, nan_mask(t, x, state, s)), (s.batch, s.units)))
        return
    y = t.o.Add(t.o.Squeeze(y, [1]), nan_mask(t, x, state, s))
    t.graph.hold(s.last, t.o.Gather(y, np.array(s.steps - 1, np.int64), axis=0))
    if s.states is not None:
        t.graph.hold(s.states, y)


def nan_mask(t: OnnxTask, x: str, state: str, s: GatedSequence) -> str:
    """Return what ONNX Runtime's gates forget: NaN for each step from the first NaN on, else 0, as [steps, batch, 1]."""

    def zeros(name: str) -> str:
        return t.o.Mul(t.o.ReduceSum(t.o.Tanh(name), [2]), 0.0)

    known = t.graph.known(s.state)
    fixed = known is not None and np.isfinite(known).all()
    if s.steps == 1:
        return zeros(x if fixed else t.o.Concat(x, state, axis=2))
    found = t.o.CumSum(zeros(x), np.array(0, np.int64))
    return found if fixed else t.o.Add(found, zeros(state))


TABLE.gated = gru


# ------------------------------------------------------------------------------------------------------------------- RNN


def rnn(t: OnnxTask, x: str, steps: int, way: str, *, crossed: bool = False, back: bool = False) -> Direction:
    """Write one direction of a simple cell."""
    names = ("weights", "recurrent_weights", "bias", "hidden_state")
    weights, recurrent, bias, state = (t.stored(way + name) for name in names)
    if crossed:
        weights = t.o.Concat(weights, t.stored(f"{way}aux_weights"), axis=1)
    kind, units = FUSED.get(t.a.activation_kind), getattr(t.a, f"{way}units")
    if kind is not None and steps > 1:
        both = t.o.Concat(bias, np.zeros(units, np.float32), axis=0)
        given = first_of_one(t, [weights, recurrent, both, state])
        return fused(t, "RNN", [x, *given[:3], "", given[3]], units, [kind], back=back)
    outputs, recurrent = [], turned(t, recurrent)
    for part in in_steps(t, t.o.Add(t.o.MatMul(x, turned(t, weights)), bias), steps, back=back):
        state = activated(t, t.o.Add(part, t.o.MatMul(state, recurrent)))
        outputs.append(state)
    return in_order(t, outputs, back=back), [state]


@entry("RNN", types=FLOATS)
def rnn_step(t: OnnxTask) -> None:
    _, states = rnn(t, t.o.Unsqueeze(t.stored("input"), [0]), 1, "")
    set_outputs(t, states * 2)


# ------------------------------------------------------------------------------------------------------------- sequences


def time_first(t: OnnxTask, x: str) -> str:
    """Swap batch and time."""
    return x if t.a.time_major else t.o.Transpose(x, perm=(1, 0, 2))


@entry("UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN", types=FLOATS)
def one_way(t: OnnxTask) -> None:
    steps, kernel = t.a.input.known[not t.a.time_major], lstm if t.name.endswith("LSTM") else rnn
    y, states = kernel(t, time_first(t, t.stored("input")), steps, "")
    set_outputs(t, [time_first(t, y), *states])


@entry("BIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_RNN", types=FLOATS)
def two_ways(t: OnnxTask) -> None:
    """Run forwards and backwards. Both read the auxiliary input in addition to the input, or the second reads only it."""
    kernel, aux_weights = (lstm, "aux_to_forget") if t.name.endswith("LSTM") else (rnn, "aux_weights")
    crossed, aux = t.maybe(f"fw_{aux_weights}") is not None, t.maybe("aux_input")
    ahead = behind = time_first(t, t.stored("input"))
    if crossed:
        ahead = behind = t.o.Concat(ahead, time_first(t, t.stored("aux_input")), axis=2)
    elif aux is not None:
        behind = time_first(t, aux)
    how: dict[str, Any] = {"crossed": crossed}
    steps = t.a.input.known[not t.a.time_major]
    forwards, states = kernel(t, ahead, steps, "fw_", **how)
    backwards, more = kernel(t, behind, steps, "bw_", back=True, **how)
    merged = [t.o.Concat(forwards, backwards, axis=2)] if t.a.merge_outputs else [forwards, backwards]
    set_outputs(t, [*[time_first(t, y) for y in merged], *states, *more])


def set_outputs(t: OnnxTask, outputs: list[str]) -> None:
    """Give as many outputs as the operation has."""
    for number, y in enumerate(outputs[: len(t.operation.outputs)]):
        t.hold(y, number)


@entry("SVDF", types=FLOATS)
def svdf(t: OnnxTask) -> None:
    """Push the newest value of each filter into its memory, and apply the time filter to that memory."""
    a = t.a
    filters, memory, places = a.filters, a.memory_size, a.state_size // max(1, a.filters)
    kept = t.o.Slice(t.o.reshape(t.stored("state"), [a.batch, filters, places]), [0], [memory - 1], [2])
    feature = t.o.MatMul(t.stored("input"), turned(t, t.stored("weights_feature")))
    window = t.o.Concat(kept, t.o.Unsqueeze(feature, [2]), axis=2)
    products = t.o.reshape(t.o.Mul(window, t.stored("weights_time")), [a.batch, filters // a.rank, a.rank * memory])
    y = t.o.ReduceSum(products, [2], keepdims=0)
    pushed = t.o.Slice(window, [1], [memory], [2])
    pushed = t.o.Pad(pushed, [0, 0, 0, 0, 0, 1], 0.0) if places == memory else pushed
    t.hold(t.o.reshape(pushed, [a.batch, a.state_size]))
    t.hold(activated(t, t.o.Add(y, t.stored("bias")) if t.places("bias") else y), 1)
