"""Entries of recurrent operations.

LiteRT's kernels keep states in variable tensors, but NNAPI's states are inputs and outputs. Such a tensor is written
from the input before every run, and read as the output after it (see `Graph.state`).

An operation of two directions becomes two kernels of one direction. LiteRT's own kernels for both directions have three
faults. They write beyond their states if merged outputs are batch-major, they step through an auxiliary input as if it
had the size of the input, and they need equal cells.
"""

from collections.abc import Callable, Sequence

import numpy as np

from nnhal.base.codes import RecurrentActivation as Kind
from nnhal.drivers.litert.graph import FLOATS, EngineTensor
from nnhal.drivers.litert.task import Task, entry
from nnhal.ops.lstm import scratch_size
from nnhal.ops.recurrent import size

MOST_STEPS = 128  # of a sequence whose steps are written one by one
ACTIVATIONS = {Kind.NONE: 0, Kind.RELU: 1, Kind.RELU1: 2, Kind.RELU6: 3, Kind.TANH: 4}
GATES = ("input", "forget", "cell", "output")


def activation(t: Task) -> int:
    """Return the activation as TFLite's ActivationFunctionType."""
    kind = t.a.activation_kind
    t.require(kind in ACTIVATIONS, f"TFLite's options have no activation {kind.name}")
    return ACTIVATIONS[kind]


def state(t: Task, name: str) -> EngineTensor:
    """Return the variable tensor of a state argument, read back as the output of its name if the operation has it."""
    tensor = t.graph.state(t.place(name))
    names = [argument.name for argument in t.a.op.outputs]
    place = names.index(f"{name}_out") - (1 if t.a.form_has("merge_outputs") and t.a.merge_outputs else 0)
    if place < len(t.operation.outputs):
        t.graph.read_state(t.operation.outputs[place], tensor)
    return tensor


# ------------------------------------------------------------------------------------------------------------- sequences


def joined(t: Task, *names: str) -> EngineTensor:
    """Join arguments along the last dimension; constant if they are."""
    values = [getattr(t.a, name) for name in names]
    if all(value.data is not None for value in values):
        return t.constant(np.concatenate([value.data for value in values], -1), value=values[0])
    return concatenated(t, [t.x(name) for name in names])


def concatenated(t: Task, parts: Sequence[EngineTensor], y: EngineTensor | None = None) -> EngineTensor:
    """Write tensors joined along the last dimension to `y`, by default a new tensor."""
    first, sizes = parts[0].value, [part.value.dims[-1] for part in parts]
    total = None if None in sizes else sum(n for n in sizes if n)
    y = y or t.temporary(first, shape=(*first.dims[:-1], total))
    t.emit("CONCATENATION", parts, y, "Concatenation", axis=first.rank - 1)
    return y


def reversed_in_time(t: Task, x: EngineTensor, y: EngineTensor | None = None) -> EngineTensor:
    """Write a sequence in reverse order to `y`, by default a new tensor."""
    y = y or t.temporary(x.value)
    t.emit("REVERSE_V2", [x, t.constant([0 if t.a.time_major else 1])], y, "ReverseV2")
    return y


Kernel = Callable[[Task, EngineTensor, EngineTensor, str, bool], None]  # see `lstm_kernel`


def two_ways(t: Task, kernel: Kernel, features: str, aux_weights: str) -> None:
    """Write a kernel for each direction, the backward one on sequences that are reversed in time.

    features: the name of the size of an output, without its direction. aux_weights: weights that cross linking has.
    """
    crossed = t.maybe(aux_weights) is not None
    ahead = joined(t, "input", "aux_input") if crossed else t.x("input")
    back = ahead if crossed else t.maybe("aux_input") or ahead  # parallel linking: its own input

    def part(way: str) -> EngineTensor:
        return t.temporary(ahead.value, shape=(*ahead.value.dims[:2], size(t.a, way + features)))

    forwards, backwards = (part("fw_"), part("bw_")) if t.a.merge_outputs else (t.output(0), t.output(1))
    kernel(t, ahead, forwards, "fw_", crossed)
    last_first = part("bw_")
    kernel(t, reversed_in_time(t, back), last_first, "bw_", crossed)
    reversed_in_time(t, last_first, backwards)
    if t.a.merge_outputs:
        concatenated(t, (forwards, backwards), t.out)


# ------------------------------------------------------------------------------------------------------------------ LSTM


def lstm_inputs(t: Task, x: EngineTensor, way: str = "", crossed: bool = False) -> list[EngineTensor | None]:
    """Return the inputs of both LSTM kernels; NNAPI has the 17 weights in TFLite's order.

    way: the prefix of the cell's arguments. crossed: whether `x` is followed by the auxiliary input, and its weights by
    the auxiliary ones.
    """
    output, units = (int(getattr(t.a, way + name)) for name in ("output_size", "units"))
    t.require(
        output <= units,
        f"the projection of {units} cells has size {output}, must be at most {units} for LiteRT's kernel",
    )
    names = [f"input_to_{gate}" for gate in GATES] + [f"state_to_{gate}" for gate in GATES]
    names += [f"peep_{gate}" for gate in ("input", "forget", "output")]
    names += [f"bias_{gate}" for gate in GATES] + ["projection", "projection_bias"]
    weights = [t.maybe(way + name) for name in names] if way else cell_weights(t, names)
    if crossed:
        for place, gate in enumerate(GATES):
            weights[place] = weights[place] and joined(t, f"{way}input_to_{gate}", f"{way}aux_to_{gate}")
    states = [state(t, f"{way}state"), state(t, f"{way}cell_state")]
    norms = [t.maybe(f"{way}norm_{gate}") for gate in GATES]
    return [x, *weights, *states, *(norms if any(norms) else ())]


def cell_weights(t: Task, names: Sequence[str]) -> list[EngineTensor | None]:
    """Return weights; LiteRT needs 8 bits in all of them except biases, or in none."""
    integers = {name: t.integers(name) for name in names if "bias" not in name and getattr(t.a, name) is not None}
    kept = all(found is not None and found.value.channel is None for found in integers.values())
    return [integers.get(name) if kept and name in integers else t.maybe(name) for name in names]


def settings(t: Task) -> dict[str, float]:
    """Return the common options of both LSTM kernels."""
    t.require(
        t.a.activation_kind != Kind.NONE,
        "LiteRT's kernel without activation returns the cell's input instead of the cell",
    )
    return {
        "fusedActivationFunction": activation(t),
        "cellClip": t.a.cell_clip,
        "projClip": t.a.projection_clip,
        "asymmetricQuantizeInputs": True,  # of integer weights, as converters write it
    }


@entry("LSTM", types=FLOATS)
def lstm(t: Task) -> None:
    """The scratch output's contents are undefined, so it has no tensor."""
    t.require(t.leaves(0), "the scratch output is read within the model, but its contents are undefined")
    t.emit("LSTM", lstm_inputs(t, t.x("input")), t.output(3), "LSTM", **settings(t))
    units = size(t.a, "units")
    width = None if units is None else scratch_size(t.a, t.maybe("input_to_input") is not None)
    t.graph.undefined(t.operation.outputs[0], (size(t.a, "batch"), width))


def lstm_kernel(t: Task, x: EngineTensor, y: EngineTensor, way: str = "", crossed: bool = False) -> None:
    """Run a cell over sequence `x`, to `y`; `way` and `crossed` as of `lstm_inputs`."""
    options = settings(t) | {"timeMajor": t.a.time_major}
    inputs = lstm_inputs(t, x, way, crossed)
    t.emit("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, y, "UnidirectionalSequenceLSTM", **options)


@entry("UNIDIRECTIONAL_SEQUENCE_LSTM", types=FLOATS)
def sequence_lstm(t: Task) -> None:
    """Write one kernel for the whole sequence, or each step if the model itself computes or reads a state."""
    places = [t.place(name) for name in ("state", "cell_state")]
    if all(map(t.graph.holds_state, places)) and all(t.leaves(n) for n in range(1, len(t.operation.outputs))):
        lstm_kernel(t, t.x("input"), t.out)
    else:
        lstm_steps(t)


def lstm_steps(t: Task) -> None:
    """Write the operators of a plain cell for each step; the products of all inputs are one operator."""
    within = "a state is computed or used within the model"
    rare = [name for name in ("peep_forget", "projection", "norm_forget") if t.maybe(name) is not None]
    plain = (
        not rare and not t.a.cell_clip and t.a.activation_kind == Kind.TANH and t.maybe("input_to_input") is not None
    )
    t.require(plain, f"{within}, and the cell is not one of four gates and TANH without clip")
    x, order = t.x("input"), ("input", "forget", "output", "cell")
    one, two, width = x.value.known
    steps, batch, axis = (one, two, 0) if t.a.time_major else (two, one, 1)
    step_of = (1, batch) if t.a.time_major else (batch, 1)  # the first dimensions of one step
    t.require(steps <= MOST_STEPS, f"{within}, and it has {steps} steps, must have at most {MOST_STEPS}")
    parts = [[getattr(t.a, f"{stem}_{gate}") for gate in order] for stem in ("input_to", "state_to", "bias")]
    known = all(value.data is not None for values in parts for value in values)
    t.require(known, f"{within}, and its weights are computed, must be constant")
    weights, again, bias = (t.constant(np.concatenate([v.data for v in values]), value=values[0]) for values in parts)
    units = t.a.units

    def part(*shape: int) -> EngineTensor:
        return t.temporary(t.out.value, shape=shape)

    flat, products, gates = part(one * two, width), part(one * two, 4 * units), part(one, two, 4 * units)
    t.reshape(x, flat)
    t.emit("FULLY_CONNECTED", [flat, weights, bias], products, "FullyConnected")
    t.reshape(products, gates)
    state, cell, results = t.x("state"), t.x("cell_state"), []
    outs = [t.output(n) for n in range(1, len(t.operation.outputs))]
    for step in range(steps):
        last = step == steps - 1
        new, row, turned, total = part(*step_of, 4 * units), *(part(batch, 4 * units) for _ in range(3))
        t.slice(gates, (step, 0, 0) if axis == 0 else (0, step, 0), new)
        t.reshape(new, row)
        t.emit("FULLY_CONNECTED", [state, again, None], turned, "FullyConnected")
        t.emit("ADD", [row, turned], total, "Add")
        opened, shares = part(batch, 3 * units), part(batch, 3 * units)
        t.slice(total, (0, 0), opened)
        sigmoid(t, opened, shares)
        more, kept, shown, bent, candidate, added, left = (part(batch, units) for _ in range(7))
        for n, gate in enumerate((more, kept, shown)):
            t.slice(shares, (0, n * units), gate)
        t.slice(total, (0, 3 * units), bent)
        t.emit("TANH", [bent], candidate)
        t.emit("MUL", [more, candidate], added, "Mul")
        t.emit("MUL", [kept, cell], left, "Mul")
        cell = outs[1] if last and len(outs) > 1 else part(batch, units)
        t.emit("ADD", [left, added], cell, "Add")
        wide = part(batch, units)
        t.emit("TANH", [cell], wide)
        state = outs[0] if last and outs else part(batch, units)
        t.emit("MUL", [shown, wide], state, "Mul")
        result = part(*step_of, units)
        t.reshape(state, result)
        results.append(result)
    t.emit("CONCATENATION", results, t.out, "Concatenation", axis=axis)


@entry("BIDIRECTIONAL_SEQUENCE_LSTM", types=FLOATS)
def two_way_lstm(t: Task) -> None:
    """Write one kernel for each direction."""
    two_ways(t, lstm_kernel, "output_size", "fw_aux_to_forget")


# ------------------------------------------------------------------------------------------------------------------- RNN


def rnn_kernel(t: Task, x: EngineTensor, y: EngineTensor, way: str = "", crossed: bool = False) -> None:
    """Run a cell over sequence `x`, to `y`; `way` and `crossed` as of `lstm_inputs`."""
    own, aux = f"{way}weights", f"{way}aux_weights"
    weights = joined(t, own, aux) if crossed else t.x(own)
    inputs = [x, weights, t.x(f"{way}recurrent_weights"), t.x(f"{way}bias"), state(t, f"{way}hidden_state")]
    options = {"timeMajor": bool(t.a.time_major), "fusedActivationFunction": activation(t)}
    t.emit("UNIDIRECTIONAL_SEQUENCE_RNN", inputs, y, "SequenceRNN", **options)


@entry("UNIDIRECTIONAL_SEQUENCE_RNN", types=FLOATS)
def sequence_rnn(t: Task) -> None:
    """Write one kernel for the whole sequence."""
    rnn_kernel(t, t.x("input"), t.out)


@entry("BIDIRECTIONAL_SEQUENCE_RNN", types=FLOATS)
def two_way_rnn(t: Task) -> None:
    """Write one kernel for each direction."""
    two_ways(t, rnn_kernel, "units", "fw_aux_weights")


@entry("RNN", types=FLOATS)
def rnn(t: Task) -> None:
    """Write two fully connected layers and a sum: there is no variable tensor, and XNNPACK supports them."""
    shape = t.output(1).value
    ahead, again = t.temporary(shape), t.temporary(shape)
    t.emit("FULLY_CONNECTED", [t.x("input"), t.x("weights"), t.x("bias")], ahead, "FullyConnected")
    t.emit("FULLY_CONNECTED", [t.x("hidden_state"), t.x("recurrent_weights"), None], again, "FullyConnected")
    add_activated(t, ahead, again, t.output(1))
    t.alias(0, t.output(1))


def add_activated(t: Task, x: EngineTensor, y: EngineTensor, out: EngineTensor) -> None:
    """Write the sum of two tensors with the operation's activation."""
    kind = t.a.activation_kind
    if kind not in (Kind.TANH, Kind.SIGMOID):
        t.emit("ADD", [x, y], out, "Add", fusedActivationFunction=ACTIVATIONS[kind])
        return
    total = t.temporary(out.value)
    t.emit("ADD", [x, y], total, "Add")
    if kind == Kind.TANH:
        t.emit("TANH", [total], out)
    else:
        sigmoid(t, total, out)


def sigmoid(t: Task, x: EngineTensor, out: EngineTensor) -> None:
    """Use the hyperbolic tangent: XNNPACK's LOGISTIC returns NaN beyond 1e26."""
    half = t.constant([0.5], np.float32)
    less, bent, most = (t.temporary(out.value) for _ in range(3))
    t.emit("MUL", [x, half], less, "Mul")
    t.emit("TANH", [less], bent)
    t.emit("MUL", [bent, half], most, "Mul")
    t.emit("ADD", [most, half], out, "Add")


# ------------------------------------------------------------------------------------------------------------------ SVDF


@entry("SVDF", types=FLOATS)
def svdf(t: Task) -> None:
    """Write several operators: LiteRT's kernel keeps its memory shifted by one position relative to NNAPI's."""
    a, x = t.a, t.x("input").value
    batch, filters, memory = a.batch, a.filters, a.memory_size
    places = a.state_size // filters  # as many as the memory has, or one less: then there is none for the newest

    def part(*shape: int) -> EngineTensor:
        return t.temporary(x, shape=shape)

    newest, column, state = part(batch, filters), part(batch, filters, 1), part(batch, filters, places)
    t.emit("FULLY_CONNECTED", [t.x("input"), t.x("weights_feature"), None], newest, "FullyConnected")
    t.reshape(newest, column)
    t.reshape(t.x("state"), state)
    kept, window, products = (part(batch, filters, n) for n in (memory - 1, memory, memory))
    t.slice(state, (0, 0, 0), kept)
    t.emit("CONCATENATION", [kept, column], window, "Concatenation", axis=2)
    t.emit("MUL", [window, t.x("weights_time")], products, "Mul")
    by_unit, sums = part(batch, filters // a.rank, a.rank * memory), part(batch, filters // a.rank)
    t.reshape(products, by_unit)
    t.emit("SUM", [by_unit, t.constant([2])], sums, "Reducer", keepDims=False)
    bias = t.maybe("bias") or t.constant([0.0], np.float32)
    add_activated(t, sums, bias, t.output(1))
    older, pushed = part(batch, filters, memory - 1), part(batch, filters, places)
    t.slice(window, (0, 0, 1), older)
    t.emit("PAD", [older, t.constant([[0, 0], [0, 0], [0, places - memory + 1]])], pushed)
    t.reshape(pushed, t.output(0))
