"""Oracles of the recurrent operations: cells for one batch and one time step at a time, run over sequences by loops."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import special

from nnhal.base.operands import Array
from tests.differential.oracle import STEPS, Unknown, oracle

Cell = Callable[..., tuple[Array, ...]]  # cell(x, aux, *states) -> states, the output first

FUNCTIONS = {
    "NONE": lambda x: x,
    "RELU": lambda x: np.where(x < 0, 0, x),
    "RELU1": lambda x: np.where(x < -1, -1, np.where(x > 1, 1, x)),
    "RELU6": lambda x: np.where(x < 0, 0, np.where(x > 6, 6, x)),
    "TANH": np.tanh,
    "SIGMOID": special.expit,
}
GATES = ("input", "forget", "cell", "output")


def of(c: SimpleNamespace, prefix: str = "") -> Callable[[str], Any]:
    """The arguments with a prefix, by the rest of their names; None for what the form does not have."""
    return lambda name: getattr(c, prefix + name, None)


def clipped(x: Array, limit: float | None) -> Array:
    """Within a limit, if there is one."""
    return np.clip(x, -limit, limit) if limit else x


# ---------------------------------------------------------------------------------------------------------------- cells


def rnn_cell(c: SimpleNamespace, prefix: str = "") -> Cell:
    w, function = of(c, prefix), FUNCTIONS[c.activation_kind.name]

    def cell(x: Array, aux: Array | None, h: Array) -> tuple[Array]:
        z = w("weights") @ x + w("recurrent_weights") @ h + w("bias")
        return (function(z if aux is None else z + w("aux_weights") @ aux),)

    return cell


def gate(w: Callable[[str], Any], name: str, x: Array, aux: Array | None, h: Array, c: Array) -> Array:
    """What a gate makes of everything it reads, before its function."""
    z = w(f"input_to_{name}") @ x + w(f"state_to_{name}") @ h
    if aux is not None:
        z = z + w(f"aux_to_{name}") @ aux
    if w(f"peep_{name}") is not None:
        z = z + w(f"peep_{name}") * c
    if w(f"norm_{name}") is not None:
        z = (z - z.mean()) / np.sqrt(z.var() + 1e-8) * w(f"norm_{name}")
    return z + w(f"bias_{name}")


def lstm_cell(c: SimpleNamespace, prefix: str = "", function: Callable[[Array], Array] | None = None) -> Cell:
    """Hochreiter and Schmidhuber's cell with peepholes, projection and layer normalisation."""
    w, g = of(c, prefix), function or FUNCTIONS[c.activation_kind.name]

    def cell(x: Array, aux: Array | None, h: Array, memory: Array) -> tuple[Array, Array]:
        forget = special.expit(gate(w, "forget", x, aux, h, memory))
        coupled = w("input_to_input") is None
        admit = 1 - forget if coupled else special.expit(gate(w, "input", x, aux, h, memory))
        memory = clipped(forget * memory + admit * g(gate(w, "cell", x, aux, h, memory)), c.cell_clip)
        h = special.expit(gate(w, "output", x, aux, h, memory)) * g(memory)
        if w("projection") is not None:
            h = w("projection") @ h
            h = clipped(h if w("projection_bias") is None else h + w("projection_bias"), c.projection_clip)
        return h, memory

    return cell


# ------------------------------------------------------------------------------------------------------------ sequences


def batches(c: SimpleNamespace, x: Array) -> Array:
    """A sequence as [batch, time, size], or one back in the call's layout."""
    return x.swapaxes(0, 1) if c.time_major else x


def one_step(cell: Cell, x: Array, *states: Array) -> tuple[Array, ...]:
    """The new states of all batches."""
    rows = [cell(x[n], None, *(s[n] for s in states)) for n in range(len(x))]
    return tuple(np.array(part) for part in zip(*rows, strict=True))


def over_time(cell: Cell, x: Array, aux: Array | None, *states: Array) -> tuple[Array, ...]:
    """The outputs [batch, time, size] of a cell, and its last states."""
    outputs, last = [], []
    for n in range(len(x)):
        now, row = tuple(s[n] for s in states), []
        for t in range(x.shape[1]):
            now = cell(x[n, t], None if aux is None else aux[n, t], *now)
            row.append(now[0])
        outputs.append(row)
        last.append(now)
    return np.array(outputs), *(np.array(part) for part in zip(*last, strict=True))


def there(c: SimpleNamespace, *outputs: Array) -> tuple[Array, ...]:
    """As many outputs as the call has."""
    return outputs[: len(c.outs)]


def both_ways(c: SimpleNamespace, cell: Callable[..., Cell], crossed: bool, *states: str) -> tuple[Array, ...]:
    """The backward cell reads everything from its end; in parallel linking it reads the auxiliary input alone."""
    x, aux = batches(c, c.input), None if c.aux_input is None else batches(c, c.aux_input)
    parallel = aux is not None and not crossed
    second = aux if parallel else x
    extra = None if parallel or aux is None else aux
    fw = over_time(cell(c, "fw_"), x, extra, *(getattr(c, f"fw_{s}") for s in states))
    backwards = None if extra is None else extra[:, ::-1]
    bw = over_time(cell(c, "bw_"), second[:, ::-1], backwards, *(getattr(c, f"bw_{s}") for s in states))
    sequences = fw[0], bw[0][:, ::-1]
    if c.merge_outputs:
        sequences = (np.concatenate(sequences, -1),)
    return there(c, *(batches(c, s) for s in sequences), *fw[1:], *bw[1:])


@oracle("RNN")
def rnn(c: SimpleNamespace) -> tuple[Array, ...]:
    return one_step(rnn_cell(c), c.input, c.hidden_state) * 2


@oracle("UNIDIRECTIONAL_SEQUENCE_RNN")
def rnn_sequence(c: SimpleNamespace) -> tuple[Array, ...]:
    outputs, last = over_time(rnn_cell(c), batches(c, c.input), None, c.hidden_state)
    return there(c, batches(c, outputs), last)


@oracle("BIDIRECTIONAL_SEQUENCE_RNN")
def rnn_both_ways(c: SimpleNamespace) -> tuple[Array, ...]:
    return both_ways(c, rnn_cell, c.fw_aux_weights is not None, "hidden_state")


@oracle("LSTM")
def lstm(c: SimpleNamespace) -> tuple[Array | None, ...]:
    h, memory = one_step(lstm_cell(c), c.input, c.state, c.cell_state)
    return None, h, memory, h


@oracle("UNIDIRECTIONAL_SEQUENCE_LSTM")
def lstm_sequence(c: SimpleNamespace) -> tuple[Array, ...]:
    outputs, *last = over_time(lstm_cell(c), batches(c, c.input), None, c.state, c.cell_state)
    return there(c, batches(c, outputs), *last)


@oracle("BIDIRECTIONAL_SEQUENCE_LSTM")
def lstm_both_ways(c: SimpleNamespace) -> tuple[Array, ...]:
    return both_ways(c, lstm_cell, c.fw_aux_to_forget is not None, "state", "cell_state")


@oracle("SVDF")
def svdf(c: SimpleNamespace) -> tuple[Array, Array]:
    """Each filter keeps what its features were; a unit adds up `rank` filters over time."""
    filters, memory = c.weights_time.shape
    kept = c.state.reshape(len(c.input), filters, -1)
    states, outputs = np.zeros(kept.shape), np.zeros((len(c.input), filters // c.rank))
    for n, x in enumerate(c.input):
        for f in range(filters):
            times = [*kept[n, f, : memory - 1], c.weights_feature[f] @ x]
            outputs[n, f // c.rank] += c.weights_time[f] @ np.array(times)
            states[n, f, : memory - 1] = times[1:]
    bias = 0 if c.bias is None else c.bias
    return states.reshape(c.state.shape), FUNCTIONS[c.activation_kind.name](outputs + bias)


# ------------------------------------------------------------------------------------------------------------ quantised

# Both round all that they compute: sums to 2**-12, functions to 2**-15, of which their tanh misses up to 12, the cell state
# to its scale. So many steps that makes of the outputs, with weights and states of the sizes that are drawn: of 15,000 draws
# five were off by more than 4, 60, 4 and none by more than 5, 75, 5; of 900 the others by up to 7, 1.
STEPS["QUANTIZED_LSTM"] = (8, 120, 8)
STEPS["QUANTIZED_16BIT_LSTM"] = (10, 1)
SPREAD = (
    16  # the least steps of a standard deviation that is divided by: rounding to whole steps changes smaller ones much
)
EIGHT = 8.0  # sums of gates are held below it: 16 bits with three integer bits


def saturated(x: Array, limit: float) -> Array:
    """What 16 bits hold of numbers up to a limit."""
    return np.minimum(np.maximum(x, -limit), limit * (1 - 2.0**-15))


def q_gate(c: SimpleNamespace, name: str, x: Array, h: Array, memory: Array) -> Array:
    """A gate's sum; what is normalised afterwards is held in steps of a scale of its own, and has its bias added last."""
    w, norm = of(c), of(c)(f"norm_{name}")
    weights = c.values[f"input_to_{name}"].scale, c.values["input"].scale
    bias = w(f"bias_{name}") * (np.prod(weights) if norm is None else c.values[f"norm_{name}"].scale / 1024)
    step = 2.0**-12 if norm is None else w(f"{name}_intermediate_scale")
    z = saturated(w(f"input_to_{name}") @ x + (bias if norm is None else 0), 2**15 * step)
    z = saturated(z + w(f"state_to_{name}") @ h, 2**15 * step)
    if w(f"peep_{name}") is not None:
        z = saturated(z + w(f"peep_{name}") * memory, 2**15 * step)
    if norm is not None:
        if 0 < z.std() < SPREAD * step:
            raise Unknown
        z = (z - z.mean()) / max(z.std(), step) * norm + bias
    return saturated(z, EIGHT)


def q_cell(c: SimpleNamespace) -> Cell:
    """As `lstm_cell`; between its function and the projection the output is held in the hidden state's 8 bits."""
    zero, scale = c.hidden_state_zero_point, c.hidden_state_scale
    state = c.values["state"]

    def cell(x: Array, aux: None, h: Array, memory: Array) -> tuple[Array, Array]:
        forget = special.expit(q_gate(c, "forget", x, h, memory))
        admit = 1 - forget if c.input_to_input is None else special.expit(q_gate(c, "input", x, h, memory))
        memory = forget * memory + admit * np.tanh(q_gate(c, "cell", x, h, memory))
        memory = clipped(saturated(memory, 2**15 * c.values["cell_state"].scale), c.cell_clip)
        hidden = special.expit(q_gate(c, "output", x, h, memory)) * np.tanh(memory)
        stored = np.clip(hidden / scale + zero, -128, 127)
        if c.projection is None:  # the output is the hidden state as it is stored
            return (stored - state.zero_point) * state.scale, memory
        bias = 0 if c.projection_bias is None else c.projection_bias * c.values["projection"].scale * scale
        return clipped(c.projection @ ((stored - zero) * scale) + bias, c.projection_clip), memory

    return cell


@oracle("QUANTIZED_LSTM")
def quantised_lstm(c: SimpleNamespace) -> tuple[Array, ...]:
    h, memory = one_step(q_cell(c), c.input, c.state, c.cell_state)
    return h, memory, h


@oracle("QUANTIZED_16BIT_LSTM")
def quantised_16bit_lstm(c: SimpleNamespace) -> tuple[Array, Array]:
    """Input and state are joined in this order, the weights of both in the other, whatever their sizes are."""
    unit = c.values["input_to_input"].scale / 128

    def cell(x: Array, aux: None, h: Array, memory: Array) -> tuple[Array, Array]:
        read = np.concatenate([x, h])
        joined = {g: np.concatenate([of(c)(f"state_to_{g}"), of(c)(f"input_to_{g}")], 1) for g in GATES}
        z = {g: saturated(joined[g] @ read + of(c)(f"bias_{g}") * unit, EIGHT) for g in GATES}
        admit, forget, emit = (special.expit(z[g]) for g in ("input", "forget", "output"))
        memory = saturated(forget * memory + admit * np.tanh(z["cell"]), 16)
        return memory, emit * np.tanh(saturated(memory, EIGHT))

    rows = [cell(x, None, h, memory) for x, h, memory in zip(c.input, c.state, c.cell_state, strict=True)]
    memories, outputs = zip(*rows, strict=True)
    return np.array(memories), np.array(outputs)
