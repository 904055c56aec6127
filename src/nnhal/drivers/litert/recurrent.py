"""Entries of recurrent operations.

LiteRT's kernels keep states in variable tensors of their own, NNAPI's states are inputs and outputs: such a tensor is
written from the input before every run, and read as the output after it (see `Lowering.state`).
"""

import numpy as np

from nnhal.base.codes import RecurrentActivation as Kind
from nnhal.drivers.litert.graph import FLOATS, Tensor
from nnhal.drivers.litert.task import Task, entry

ACTIVATIONS = {Kind.NONE: 0, Kind.RELU: 1, Kind.RELU1: 2, Kind.RELU6: 3, Kind.TANH: 4}
GATES = ("input", "forget", "cell", "output")


def activation(t: Task) -> int:
    """The activation as TFLite's ActivationFunctionType."""
    kind = t.a.activation_kind
    t.require(kind in ACTIVATIONS, f"TFLite's options cannot state the activation {kind.name}")
    return ACTIVATIONS[kind]


def state(t: Task, name: str, output: str) -> Tensor:
    """The variable tensor of a state argument, read back as the output of this name where the operation has it."""
    tensor = t.graph.state(t.place(name))
    names = [argument.name for argument in t.a.op.outputs]
    place = names.index(output) - (1 if t.a.form_has("merge_outputs") and t.a.merge_outputs else 0)
    if place < len(t.operation.outputs):
        t.graph.read_state(t.operation.outputs[place], tensor)
    return tensor


def cell_weights(t: Task, prefix: str = "") -> list[Tensor | None]:
    """The 17 weights of an LSTM cell; NNAPI has them in TFLite's order."""
    names = [f"{source}_to_{gate}" for source in ("input", "state") for gate in GATES]
    names += [f"peep_{gate}" for gate in ("input", "forget", "output")] + [f"bias_{gate}" for gate in GATES]
    return [t.maybe(prefix + name) for name in (*names, "projection", "projection_bias")]


def lstm_inputs(t: Task) -> list[Tensor | None]:
    """The inputs of both LSTM kernels."""
    states = [state(t, "state", "state_out"), state(t, "cell_state", "cell_state_out")]
    norms = [t.maybe(f"norm_{gate}") for gate in GATES]
    return [t.x("input"), *cell_weights(t), *states, *(norms if any(norms) else ())]


def settings(t: Task) -> dict[str, float]:
    """What both LSTM kernels' options share."""
    return {
        "fusedActivationFunction": activation(t),
        "cellClip": t.a.cell_clip,
        "projClip": t.a.projection_clip,
    }


@entry("LSTM", types=FLOATS)
def lstm(t: Task) -> None:
    """The scratch output's contents are undefined, so no tensor stands for it."""
    t.emit("LSTM", lstm_inputs(t), t.output(3), "LSTM", **settings(t))


@entry("UNIDIRECTIONAL_SEQUENCE_LSTM", types=FLOATS)
def sequence_lstm(t: Task) -> None:
    """One kernel for the whole sequence."""
    options = settings(t) | {"timeMajor": t.a.time_major}
    t.emit(t.name, lstm_inputs(t), t.out, "UnidirectionalSequenceLSTM", **options)


@entry("UNIDIRECTIONAL_SEQUENCE_RNN", types=FLOATS)
def sequence_rnn(t: Task) -> None:
    """One kernel for the whole sequence."""
    weights = [t.x(name) for name in ("input", "weights", "recurrent_weights", "bias")]
    hidden = state(t, "hidden_state", "hidden_state_out")
    options = {"timeMajor": bool(t.a.time_major), "fusedActivationFunction": activation(t)}
    t.emit(t.name, [*weights, hidden], t.out, "SequenceRNN", **options)


def parallel(t: Task, weight: str) -> bool:
    """Whether the backward cell reads the auxiliary input in place of the input; its size must be the same then."""
    found = t.maybe("aux_input") is not None and t.maybe(weight) is None
    t.require(not found or t.a.aux_size == t.a.input_size, "LiteRT's kernel wants both inputs of one size")
    return found


@entry("BIDIRECTIONAL_SEQUENCE_RNN", types=FLOATS)
def two_way_rnn(t: Task) -> None:
    """One kernel for both directions."""
    inputs: list[Tensor | None] = [t.x("input")]
    for prefix in ("fw_", "bw_"):
        inputs += [t.x(prefix + name) for name in ("weights", "recurrent_weights", "bias")]
        inputs.append(state(t, f"{prefix}hidden_state", f"{prefix}hidden_state_out"))
    reads_other = parallel(t, "fw_aux_weights")
    t.require(not reads_other or t.a.time_major, "LiteRT's kernel misreads an auxiliary input that is batch-major")
    inputs += [t.maybe(name) for name in ("aux_input", "fw_aux_weights", "bw_aux_weights")]
    options = {"timeMajor": t.a.time_major, "mergeOutputs": t.a.merge_outputs, "fusedActivationFunction": activation(t)}
    t.emit(t.name, inputs, t.outs[: 1 if t.a.merge_outputs else 2], "BidirectionalSequenceRNN", **options)


@entry("BIDIRECTIONAL_SEQUENCE_LSTM", types=FLOATS)
def two_way_lstm(t: Task) -> None:
    """One kernel for both directions."""
    ways = ("fw_", "bw_")
    norms = any(t.maybe(f"{way}norm_{gate}") for way in ways for gate in GATES)
    t.require(not norms, "LiteRT's kernel has no layer normalisation")
    parallel(t, "fw_aux_to_forget")
    inputs = [t.x("input"), *cell_weights(t, "fw_"), *cell_weights(t, "bw_")]
    inputs += [state(t, way + name, f"{way}{name}_out") for way in ways for name in ("state", "cell_state")]
    inputs += [t.maybe("aux_input"), *(t.maybe(f"{way}aux_to_{gate}") for way in ways for gate in GATES)]
    options = settings(t) | {"timeMajor": t.a.time_major, "mergeOutputs": t.a.merge_outputs}
    t.emit(t.name, inputs, t.outs[: 1 if t.a.merge_outputs else 2], "BidirectionalSequenceLSTM", **options)


@entry("RNN", types=FLOATS)
def rnn(t: Task) -> None:
    """Two fully connected layers and a sum: no variable tensor, and XNNPACK takes them."""
    shape = t.output(1).value
    ahead, again = t.temporary(shape), t.temporary(shape)
    t.emit("FULLY_CONNECTED", [t.x("input"), t.x("weights"), t.x("bias")], ahead, "FullyConnected")
    t.emit("FULLY_CONNECTED", [t.x("hidden_state"), t.x("recurrent_weights"), None], again, "FullyConnected")
    add_activated(t, ahead, again, t.output(1))
    t.alias(0, t.output(1))


@entry("SVDF", types=FLOATS)
def svdf(t: Task) -> None:
    """By parts: LiteRT's kernel keeps its memory shifted by one place against NNAPI's."""
    a, x = t.a, t.x("input").value
    batch, filters, memory = a.batch, a.filters, a.memory_size
    t.require(a.state_size == filters * memory, "the state has no place for the newest entry")

    def part(*shape: int) -> Tensor:
        return t.temporary(x, shape=shape)

    newest, column, state, window = part(batch, filters), part(batch, filters, 1), part(batch, filters, memory), None
    t.emit("FULLY_CONNECTED", [t.x("input"), t.x("weights_feature"), None], newest, "FullyConnected")
    t.reshape(newest, column)
    t.reshape(t.x("state"), state)
    kept, window, products = (
        part(batch, filters, memory - 1),
        part(batch, filters, memory),
        part(batch, filters, memory),
    )
    t.slice(state, (0, 0, 0), kept)
    t.emit("CONCATENATION", [kept, column], window, "Concatenation", axis=2)
    t.emit("MUL", [window, t.x("weights_time")], products, "Mul")
    by_unit, sums = part(batch, filters // a.rank, a.rank * memory), part(batch, filters // a.rank)
    t.reshape(products, by_unit)
    t.emit("SUM", [by_unit, t.constant([2])], sums, "Reducer", keepDims=False)
    bias = t.maybe("bias") or t.constant([0.0], np.float32)
    add_activated(t, sums, bias, t.output(1))
    older, pushed = part(batch, filters, memory - 1), part(batch, filters, memory)
    t.slice(window, (0, 0, 1), older)
    t.emit("PAD", [older, t.constant([[0, 0], [0, 0], [0, 1]])], pushed)
    t.reshape(pushed, t.output(0))


def add_activated(t: Task, x: Tensor, y: Tensor, out: Tensor) -> None:
    """The sum of two tensors under the operation's activation."""
    kind = t.a.activation_kind
    after = {Kind.TANH: "TANH", Kind.SIGMOID: "LOGISTIC"}.get(kind)
    total = t.temporary(out.value) if after else out
    t.emit("ADD", [x, y], total, "Add", fusedActivationFunction=0 if after else ACTIVATIONS[kind])
    if after:
        t.emit(after, [total], out)
