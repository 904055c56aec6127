"""Entries of recurrent operators: their states are variable tensors in TFLite, inputs and outputs in NNAPI."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.base.operands import Value
from nnhal.base.records import replace
from nnhal.frontends.common.terms import UNTYPED, Term, bare, constant
from nnhal.frontends.tflite.quantised import quantised_sequence, quantised_step, quantised_svdf
from nnhal.frontends.tflite.reader import Fields
from nnhal.frontends.tflite.state import read_tensor, write_tensor
from nnhal.frontends.tflite.task import OperatorTask, operator
from nnhal.ops.schema import F32, Q8, Q8S

WEIGHTS = 17  # of an LSTM cell: 8 matrices, 3 peepholes, 4 biases, projection with bias
NORMS = 4
BASIC_GATES = ("input", "cell", "forget", "output")  # the order of rows in the basic kernel
GATES = ("input", "forget", "cell", "output")  # NNAPI's order
KINDS = {0: "NONE", 1: "RELU", 2: "RELU_N1_TO_1", 3: "RELU6", 4: "TANH"}  # their codes are NNAPI's too


def activation(t: OperatorTask, o: Fields) -> int:
    """Return the activation of a cell."""
    code = int(o("FusedActivationFunction"))
    t.require(code in KINDS, f"activation is {code}, must be one of {', '.join(map(str, KINDS))}")
    return code


def weights(t: OperatorTask, start: int, count: int) -> list[Term | None]:
    """Return weights; integers beside real inputs become real."""
    found = [t.maybe(place) for place in range(start, start + count)]
    return [None if term is None else t.real(term) for term in found]


def floating(t: OperatorTask) -> Term:
    """Return the input, of floats: NNAPI's quantised LSTMs differ from TFLite's."""
    x = t.x(0)
    t.require(x.value.type == F32, f"of {x.kind} has no operation in NNAPI, must be FLOAT32")
    return x


def stepped(
    t: OperatorTask, name: str, given: Sequence[Any], places: Sequence[int], outs: Sequence[int | None]
) -> None:
    """Write an operation. `places` are the inputs that are states.

    `outs` is the order of its outputs: the number of an output of the operator, or None for the next state.
    """
    keys = iter(places)
    values, targets = [], []
    for number in outs:
        place = None if number is not None else next(keys)
        targets.append((number, place))
        values.append(t.out(number or 0) if place is None else bare(read_tensor(t, place).value))
    for (number, place), term in zip(targets, t.run(name, *given, outs=values), strict=True):
        if place is not None:
            write_tensor(t, place, term)
        elif number is not None and number >= 0:
            t.result(number, term)


# ------------------------------------------------------------------------------------------------------------------ LSTM


def lstm_arguments(t: OperatorTask, o: Fields, *, time_major: bool | None) -> list[Any]:
    """Return the arguments of both LSTM operations."""
    x = floating(t)
    states = [read_tensor(t, place) for place in (18, 19)]
    norms = weights(t, 20, NORMS) if len(t.operator.inputs) > 20 else [None] * NORMS
    head = [x, *weights(t, 1, WEIGHTS), *states, activation(t, o), o("CellClip"), o("ProjClip")]
    sequence = [] if time_major is None else [time_major]
    return [*head, *sequence, *(norms if any(norms) or time_major is not None else [])]


@operator("LSTM", inputs=(5, 24), outputs=(1, 4),
          becomes="LSTM, of INT8 QUANTIZED_LSTM; of the basic kernel FULLY_CONNECTED, LOGISTIC and "
          "TANH, of UINT8 QUANTIZED_16BIT_LSTM",
          sixteen=True)  # fmt: skip
def lstm(t: OperatorTask) -> None:
    """Write one time step."""
    o = t.options("LSTMOptions")
    if o("KernelType") == 1:
        basic_lstm(t)
        return
    t.require(
        len(t.operator.inputs) >= 20, f"of the full kernel has {len(t.operator.inputs)} inputs, must have 20 or more"
    )
    if t.x(0).value.type == Q8S:
        quantised_step(t, o)
        return
    given = lstm_arguments(t, o, time_major=None)
    gates = 3 if given[1] is None else 4
    units = t.known(read_tensor(t, 19))
    scratch = Value(F32, (units[0], units[1] * gates) if len(units) == 2 else None)
    places = [read_tensor(t, 18), read_tensor(t, 19)]
    outs = [scratch, *(bare(each.value) for each in places), t.out()]
    _, state, cell, output = t.run("LSTM", *given, outs=outs)
    write_tensor(t, 18, state)
    write_tensor(t, 19, cell)
    t.result(0, output)


def basic_lstm(t: OperatorTask) -> None:
    """Write the kernel of five inputs: one matrix for the input and the last output, rows ordered as BASIC_GATES."""
    t.require(len(t.operator.inputs) == 5, f"of the basic kernel has {len(t.operator.inputs)} inputs, must have 5")
    count = len(t.operator.outputs)
    t.require(count == 4, f"of the basic kernel has {count} outputs, must have 4")
    t.require(not (t.reads(2) or t.reads(3)), "has readers of its scratch tensors, which NNAPI's operations lack")
    x = t.x(0)
    last, cell = (state_or_input(t, place) for place in (1, 4))
    output, kept = float_cell(t, x, last, cell) if x.value.type == F32 else quantised_cell(t, x, last, cell)
    for number, place, term in ((0, 1, output), (1, 4, kept)):
        t.result(number, term)
        if t.graph.source.tensors[t.operator.inputs[place]].variable:
            write_tensor(t, place, term)
    for number in (2, 3):
        t.same(Term(Value(UNTYPED)), number)


def state_or_input(t: OperatorTask, place: int) -> Term:
    """Return the value of a variable tensor, or an input."""
    variable = t.graph.source.tensors[t.operator.inputs[place]].variable
    return read_tensor(t, place) if variable else t.x(place)


def float_cell(t: OperatorTask, x: Term, last: Term, cell: Term) -> tuple[Term, Term]:
    """Return the output and the cell's state."""
    joined = t.make("CONCATENATION", x, last, 1)
    sums = t.make("FULLY_CONNECTED", joined, t.real(t.x(2)), t.x(3), like=x, activation=0)
    parts = dict(zip(BASIC_GATES, t.run("SPLIT", sums, 1, 4, outs=[bare(x.value)] * 4), strict=True))
    gates = {name: t.make("TANH" if name == "cell" else "LOGISTIC", part) for name, part in parts.items()}
    fresh = t.make("MUL", gates["input"], gates["cell"], activation=0)
    kept = t.make("ADD", t.make("MUL", gates["forget"], cell, activation=0), fresh, activation=0)
    return t.make("MUL", gates["output"], t.make("TANH", kept), activation=0), kept


def quantised_cell(t: OperatorTask, x: Term, last: Term, cell: Term) -> tuple[Term, Term]:
    """Return both with 8 bits, and 16 for the cell's state: NNAPI has a matrix for each gate."""
    t.require(x.value.type == Q8, f"of {x.kind} is not in TFLite, must be UINT8 or FLOAT32")
    w, b = t.x(2), t.x(3)
    whole, biases = t.data(2, "weights"), t.data(3, "biases")
    units = len(whole) // 4
    rows = {name: slice(n * units, (n + 1) * units) for n, name in enumerate(BASIC_GATES)}
    sides = slice(units, None), slice(None, units)  # NNAPI joins them in the other order than input and state
    scale = float(np.float32(x.value.scale) * np.float32(w.value.scale))
    matrices = [constant(w.value, np.ascontiguousarray(whole[rows[n], side])) for side in sides for n in GATES]
    offsets = [constant(replace(b.value, scale=scale), np.ascontiguousarray(biases[rows[n]])) for n in GATES]
    outs = [bare(cell.value), bare(last.value)]
    kept, output = t.run("QUANTIZED_16BIT_LSTM", x, *matrices, *offsets, cell, last, outs=outs)
    return output, kept


@operator("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs=(20, 24),
          becomes="UNIDIRECTIONAL_SEQUENCE_LSTM; of INT8 a QUANTIZED_LSTM for each time step",
          sixteen=True)  # fmt: skip
def sequence_lstm(t: OperatorTask) -> None:
    o = t.options("UnidirectionalSequenceLSTMOptions")
    t.require(not o("DiagonalRecurrentTensors"), "has diagonal recurrent weights, which NNAPI does not support")
    if t.x(0).value.type == Q8S:
        quantised_sequence(t, o)
        return
    stepped(t, t.name, lstm_arguments(t, o, time_major=bool(o("TimeMajor"))), (18, 19), (0, None, None))


@operator("BIDIRECTIONAL_SEQUENCE_LSTM", inputs=48, outputs=(1, 2))
def two_way_lstm(t: OperatorTask) -> None:
    """Write a sequence in both directions; NNAPI has settings after the weights, without layer normalisation."""
    o, places = t.options("BidirectionalSequenceLSTMOptions"), (35, 36, 37, 38)
    given = [floating(t), *weights(t, 1, 2 * WEIGHTS), *(read_tensor(t, place) for place in places), *weights(t, 39, 9)]
    merged = bool(o("MergeOutputs"))
    settings = [activation(t, o), o("CellClip"), o("ProjClip"), merged, bool(o("TimeMajor"))]
    outs = range(1 if merged else 2)
    stepped(t, t.name, [*given, *settings, *[None] * (2 * NORMS)], places, (*outs, *[None] * 4))


# ------------------------------------------------------------------------------------------------------------ RNN and SVDF


@operator("RNN", inputs=5)
def rnn(t: OperatorTask) -> None:
    """Write one time step; NNAPI returns the state first."""
    given = [floating(t), *weights(t, 1, 3), read_tensor(t, 4), activation(t, t.options("RNNOptions"))]
    stepped(t, t.name, given, (4,), (None, 0))


@operator("UNIDIRECTIONAL_SEQUENCE_RNN", inputs=5)
def sequence_rnn(t: OperatorTask) -> None:
    o = t.options("SequenceRNNOptions")
    given = [floating(t), *weights(t, 1, 3), read_tensor(t, 4), activation(t, o), bool(o("TimeMajor"))]
    stepped(t, t.name, given, (4,), (0, None))


@operator("BIDIRECTIONAL_SEQUENCE_RNN", inputs=12, outputs=(1, 2))
def two_way_rnn(t: OperatorTask) -> None:
    o = t.options("BidirectionalSequenceRNNOptions")
    merged = bool(o("MergeOutputs"))
    cells = [*weights(t, 1, 3), read_tensor(t, 4), *weights(t, 5, 3), read_tensor(t, 8)]
    given = [floating(t), *cells, *weights(t, 9, 3), activation(t, o), bool(o("TimeMajor")), merged]
    stepped(t, t.name, given, (4, 8), (*range(1 if merged else 2), None, None))


@operator("SVDF", inputs=5, sixteen=True,
          becomes="SVDF; of INT8 FULLY_CONNECTED, MUL, REDUCE_SUM of real values, the state at its scale")  # fmt: skip
def svdf(t: OperatorTask) -> None:
    """Write SVDF; both states start at zero, so the place of the newest entry does not matter."""
    o = t.options("SVDFOptions")
    if t.x(0).value.type == Q8S:
        quantised_svdf(t, o)
        return
    given = [floating(t), *weights(t, 1, 3), read_tensor(t, 4), o("Rank"), activation(t, o)]
    stepped(t, t.name, given, (4,), (None, 0))
