"""Entries of recurrent nodes.

NNAPI has sequences of LSTM and RNN cells. A GRU, and an LSTM that quantises its state, become products for each time
step.
"""

from collections.abc import Callable, Sequence

import numpy as np

from nnhal.base.operands import Array, Value
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.element_moves import part_of
from nnhal.frontends.common.functions import RealArithmetic
from nnhal.frontends.common.terms import Blob, Term, constant
from nnhal.frontends.onnx.dynamic import in_steps
from nnhal.frontends.onnx.elementwise import in_own_type, single_floats
from nnhal.frontends.onnx.indexing import reversed_along
from nnhal.frontends.onnx.movement import equal_parts, rows
from nnhal.frontends.onnx.task import NodeTask, operator
from nnhal.ops.schema import F32

MOST_STEPS = 1024  # of a GRU, whose time steps are written one after the other
ACTIVATIONS = {"Relu": 1, "Tanh": 4, "Sigmoid": 6}
IOFC = ("input", "output", "forget", "cell")  # the order of ONNX's gates
NNAPI = ("input", "forget", "cell", "output")
# For DynamicQuantizeLSTM: the input with the scale of the weights; their zero point follows
WEIGHT_SCALES = {1: 8, 2: 10}


class Sequences:
    """The common part of the three recurrent nodes: shapes, directions, states and outputs."""

    def __init__(self, t: NodeTask, gates: int) -> None:
        self.t, self.gates = t, gates
        x = single_floats(t)
        self.batch_first = bool(t.attr("layout", 0))
        if self.batch_first:
            x = t.make("TRANSPOSE", x, t.integers([1, 0, 2]))
        shape = t.known(x)
        t.require(len(shape) == 3, f"input has shape {list(shape)}, must have three dimensions")
        self.whole, self.batch, self.size = shape
        self.steps = self.length()
        self.x = x if self.steps == self.whole else part_of(t, x, 0, 0, self.steps)
        self.weights, self.recurrent = (self.matrices(n) for n in (1, 2))
        ok = self.weights.ndim == self.recurrent.ndim == 3
        t.require(ok, "weights must have three dimensions")
        self.units = self.recurrent.shape[2]
        direction = t.attr("direction", "forward")
        known = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
        t.require(direction in known, f"direction is {direction}, must be one of {', '.join(known)}")
        self.backward = known[direction]
        rows, count = gates * self.units, len(self.backward)
        shapes = self.weights.shape == (count, rows, self.size) and self.recurrent.shape == (count, rows, self.units)
        t.require(shapes, f"weights have shapes {self.weights.shape} and {self.recurrent.shape}, which do not fit")
        self.bias = self.floats(3, "bias") if t.given(3) else np.zeros((count, 2 * rows), np.float32)
        t.require(
            self.bias.shape == (count, 2 * rows), f"bias has shape {self.bias.shape}, must be {(count, 2 * rows)}"
        )
        t.require("clip" not in t.node.attributes, "clips its gates, which NNAPI does not support")

    def length(self) -> int:
        """Return the number of time steps of all sequences."""
        lengths = set(self.t.ints(4, "sequence_lens")) if self.t.given(4) else {self.whole}
        self.t.require(len(lengths) == 1, "has sequences of different lengths, which NNAPI does not support")
        (length,) = lengths
        self.t.require(0 < length <= self.whole, f"sequence_lens is {length}, must be from 1 to {self.whole}")
        return length

    def floats(self, place: int, what: str) -> Array:
        """Return constants, FLOAT16 as FLOAT."""
        data = np.asarray(self.t.data(place, what))
        return data.astype(np.float32) if data.dtype == np.float16 else data

    def matrices(self, place: int) -> Array:
        """Return the weights of an input, [directions, rows, columns]."""
        return self.floats(place, "weights")

    def activations(self, default: Sequence[str]) -> list[list[str]]:
        """Return the names for each direction."""
        given = list(self.t.attr("activations", ())) or list(default) * len(self.backward)
        count = len(default)
        self.t.require(
            len(given) == count * len(self.backward), f"activations is {given}, must have {count} for each direction"
        )
        plain = not self.t.attr("activation_alpha", ()) and not self.t.attr("activation_beta", ())
        self.t.require(plain, "has activations with parameters, which NNAPI does not support")
        return [given[n : n + count] for n in range(0, len(given), count)]

    def state(self, place: int, direction: int) -> Term:
        """Return the initial state of a direction."""
        t = self.t
        if not t.given(place):
            t.budget.spend(Cost.MEMORY, 4 * self.batch * self.units, t.label)
            return constant(Value(F32), np.zeros((self.batch, self.units), np.float32))
        given, (steps, rest) = t.real(t.x(place)), (len(self.backward), (self.batch, self.units))
        if self.batch_first:
            given = t.make("TRANSPOSE", given, t.integers([1, 0, 2]))
        t.require(
            t.known(given) == (steps, *rest), f"a state has shape {list(t.known(given))}, must be {[steps, *rest]}"
        )
        if given.data is not None:
            return constant(Value(F32), np.ascontiguousarray(np.asarray(given.value.data)[direction]))
        return t.reshaped(part_of(t, given, 0, direction, 1), rest)

    def rows(self, place: int, array: Array, direction: int, gate: int) -> Term:
        """Return the rows of one gate: the file's bytes if they are contiguous there."""
        raw = self.t.raw(place)
        part = array[direction, gate * self.units : (gate + 1) * self.units]
        blob = None
        if raw.blob is not None and raw.data is array and array.flags.c_contiguous:
            start = (direction * self.gates + gate) * self.units * array.shape[2] * array.itemsize
            blob = Blob(raw.blob.offset + start, part.nbytes, raw.blob.file)
        return constant(Value(F32), part, "FLOAT", blob)

    def summed_bias(self, direction: int, gate: int) -> Term:
        """Return the sum of both biases of one gate."""
        whole, n = self.bias[direction], self.gates * self.units
        both = whole[gate * self.units :][: self.units] + whole[n + gate * self.units :][: self.units]
        return constant(Value(F32), both)

    def over(self, direction: int) -> Term:
        """Return the input in the order of a direction."""
        return reversed_along(self.t, self.x, 0) if self.backward[direction] else self.x

    def stacked(self, states: Sequence[Term]) -> Term:
        """Return states as one tensor, with a new first dimension."""
        rows = [self.t.reshaped(state, (1, self.batch, self.units)) for state in states]
        return rows[0] if len(rows) == 1 else self.t.make("CONCATENATION", *rows, 0, like=rows[0])

    def finish(self, outputs: Sequence[Term], *states: Sequence[Term]) -> None:
        """Set the node's outputs: the sequence of each direction, then the last states."""
        t = self.t
        if t.is_output_used(0):
            parts = []
            for n, made in enumerate(outputs):
                there = reversed_along(t, made, 0) if self.backward[n] else made
                parts.append(t.reshaped(there, (self.steps, 1, self.batch, self.units)))
            whole = parts[0] if len(parts) == 1 else t.make("CONCATENATION", *parts, 1, like=parts[0])
            if self.steps < self.whole:
                whole = t.make("PAD", whole, rows(t, [(0, self.whole - self.steps), (0, 0), (0, 0), (0, 0)]))
            if self.batch_first:
                whole = t.make("TRANSPOSE", whole, t.integers([2, 0, 1, 3]))
            t.result(0, in_own_type(t, whole))
        for number, each in enumerate(states, 1):
            if t.is_output_used(number):
                whole = self.stacked(each)
                if self.batch_first:
                    whole = t.make("TRANSPOSE", whole, t.integers([1, 0, 2]))
                t.result(number, in_own_type(t, whole))


@operator("LSTM", inputs=(3, 8), outputs=(0, 3),
          becomes="UNIDIRECTIONAL_SEQUENCE_LSTM for each direction; GATHER backwards")  # fmt: skip
def lstm(t: NodeTask) -> None:
    """Lower an LSTM; the gates' weights stay in the file."""
    s = Sequences(t, 4)
    t.require(not t.attr("input_forget", 0), "couples its gates (input_forget), which NNAPI's operation lacks")
    made = []
    for n, names in enumerate(s.activations(("Sigmoid", "Tanh", "Tanh"))):
        t.require(names[0] == "Sigmoid", f"has {names[0]} for its gates, must be Sigmoid for NNAPI")
        t.require(
            names[1] == names[2] and names[1] in ACTIVATIONS, f"has {names[1]} and {names[2]}, must be one of NNAPI's"
        )
        peep: list[Term | None] = [None] * 3
        if t.given(7):
            whole = s.floats(7, "peepholes")
            t.require(whole.shape == (len(s.backward), 3 * s.units), f"peepholes have shape {whole.shape}")
            if whole.any():
                by = {name: whole[n, k * s.units :][: s.units] for k, name in enumerate(("input", "output", "forget"))}
                peep = [constant(Value(F32), by[name].copy()) for name in ("input", "forget", "output")]
        gates = [IOFC.index(name) for name in NNAPI]
        given: list[Term | None] = [
            s.over(n),
            *(s.rows(1, s.weights, n, g) for g in gates),
            *(s.rows(2, s.recurrent, n, g) for g in gates),
        ]
        given += [*peep, *(s.summed_bias(n, g) for g in gates), None, None]
        more = [s.state(5, n), s.state(6, n), ACTIVATIONS[names[1]], 0.0, 0.0, True, None, None, None, None]
        like = Value(F32, None)
        made.append(t.run("UNIDIRECTIONAL_SEQUENCE_LSTM", *given, *more, outs=[like] * 3))
    s.finish(*zip(*made, strict=True))


class QuantisedSequences(Sequences):
    """A DynamicQuantizeLSTM: its weights are 8-bit integers, whose columns are the rows of an LSTM's."""

    def length(self) -> int:
        """Return the number of time steps; the input is quantised over all of them."""
        length = super().length()
        self.t.require(length == self.whole, f"sequence_lens is {length}, must be {self.whole}, as many as time steps")
        return length

    def matrices(self, place: int) -> Array:
        """Return the weights minus their zero points, in an LSTM's order; their scales are `self.scales[place]`."""
        t = self.t
        whole = np.asarray(t.data(place, "weights"))
        t.require(whole.dtype.kind in "iu" and whole.itemsize == 1, f"has weights of {whole.dtype}, must be of 8 bits")
        t.require(whole.ndim == 3, "weights must have three dimensions")
        t.budget.spend(Cost.MEMORY, 4 * whole.size, t.label)
        scale = np.asarray(t.data(WEIGHT_SCALES[place], "the scale of weights"))
        zero = np.asarray(t.data(WEIGHT_SCALES[place] + 1, "the zero point of weights"))
        for each in (scale, zero):
            fits = each.shape in ((whole.shape[0],), (whole.shape[0], whole.shape[2]))
            t.require(
                fits, f"has scales or zero points of shape {each.shape}, must be one for each direction or column"
            )
        self.scales = {**getattr(self, "scales", {}), place: scale.reshape(whole.shape[0], -1)}
        centred = whole.astype(np.float32) - zero.reshape(whole.shape[0], 1, -1).astype(np.float32)
        return centred.transpose(0, 2, 1)

    def layer(self, place: int, direction: int) -> Callable[[Term], Term]:
        """Return a function that multiplies a matrix by rows, quantised over their range at each call."""
        t, r = self.t, RealArithmetic(self.t)
        weights = (self.weights, self.recurrent)[place - 1][direction]
        held = constant(Value(F32), np.ascontiguousarray(weights))
        none = constant(Value(F32), np.zeros(len(weights), np.float32))
        by = constant(Value(F32), np.ascontiguousarray(self.scales[place][direction]))

        def sums(x: Term) -> Term:
            steps, scale, _ = in_steps(t, x)
            return r("MUL", t.make("FULLY_CONNECTED", steps, held, none, like=x, activation=0), r("MUL", scale, by))

        return sums


@operator("com.microsoft.DynamicQuantizeLSTM", inputs=12, outputs=(0, 3),
          becomes="input and state quantised as DynamicQuantizeLinear; FULLY_CONNECTED, LOGISTIC, TANH, "
          "MUL, for each time step")  # fmt: skip
def dynamically_quantised_lstm(t: NodeTask) -> None:
    """Lower the node; the input is quantised once for all time steps, the state at each."""
    s = QuantisedSequences(t, 4)
    t.require(s.steps <= MOST_STEPS, f"has {s.steps} time steps, must have at most {MOST_STEPS}")
    t.require(not t.attr("input_forget", 0), "couples its gates (input_forget), which NNAPI's operation lacks")
    outputs, lasts, cells = [], [], []
    for n, names in enumerate(s.activations(("Sigmoid", "Tanh", "Tanh"))):
        t.require(names == ["Sigmoid", "Tanh", "Tanh"], f"has activations {names}, must be Sigmoid, Tanh, Tanh")
        made, cell = quantised_lstm_steps(t, s, n)
        outputs.append(s.stacked(made))
        lasts.append(made[-1])
        cells.append(cell)
    s.finish(outputs, lasts, cells)


def quantised_lstm_steps(t: NodeTask, s: QuantisedSequences, n: int) -> tuple[list[Term], Term]:
    """Return the states after each time step of a direction, and the last cell state."""
    r = RealArithmetic(t)
    flat = t.reshaped(s.over(n), (s.steps * s.batch, s.size))
    bias = np.split(s.bias[n], 2)
    given = r("ADD", s.layer(1, n)(flat), constant(Value(F32), bias[0] + bias[1]))
    of_state = s.layer(2, n)
    peep = np.asarray(t.data(7, "peepholes"))[n].reshape(3, s.units) if t.given(7) else np.zeros((3, 1), np.float32)

    def gate(sums: Term, peephole: int, cell: Term) -> Term:
        seen = constant(Value(F32), peep[peephole].copy())
        return t.make("LOGISTIC", r("ADD", sums, r("MUL", cell, seen)) if peep[peephole].any() else sums)

    h, c, made = s.state(5, n), s.state(6, n), []
    for own in equal_parts(t, given, 0, s.steps):
        i, o, f, g = equal_parts(t, r("ADD", own, of_state(h)), 1, 4)
        c = r("ADD", r("MUL", gate(f, 2, c), c), r("MUL", gate(i, 0, c), t.make("TANH", g)))
        h = r("MUL", gate(o, 1, c), t.make("TANH", c))
        made.append(h)
    return made, c


@operator("RNN", inputs=(3, 6), outputs=(0, 2),
          becomes="UNIDIRECTIONAL_SEQUENCE_RNN for each direction; GATHER backwards")  # fmt: skip
def rnn(t: NodeTask) -> None:
    """Lower an RNN with Tanh, Relu or Sigmoid."""
    s = Sequences(t, 1)
    made = []
    for n, names in enumerate(s.activations(("Tanh",))):
        t.require(names[0] in ACTIVATIONS, f"has activation {names[0]}, must be one of {', '.join(ACTIVATIONS)}")
        given = [
            s.over(n),
            s.rows(1, s.weights, n, 0),
            s.rows(2, s.recurrent, n, 0),
            s.summed_bias(n, 0),
            s.state(5, n),
        ]
        like = Value(F32, None)
        made.append(t.run("UNIDIRECTIONAL_SEQUENCE_RNN", *given, ACTIVATIONS[names[0]], 1, outs=[like] * 2))
    s.finish(*zip(*made, strict=True))


@operator("GRU", inputs=(3, 6), outputs=(0, 2),
          becomes="FULLY_CONNECTED, SPLIT, LOGISTIC, TANH, MUL, ADD, SUB, for each time step")  # fmt: skip
def gru(t: NodeTask) -> None:
    """Lower a GRU: one product of the input for all time steps; those of the state for each."""
    s = Sequences(t, 3)
    t.require(s.steps <= MOST_STEPS, f"has {s.steps} time steps, must have at most {MOST_STEPS}")
    outputs, lasts = [], []
    for n, names in enumerate(s.activations(("Sigmoid", "Tanh"))):
        t.require(names == ["Sigmoid", "Tanh"], f"has activations {names}, must be Sigmoid and Tanh")
        made = gru_steps(t, s, n)
        lasts.append(made[-1])
        outputs.append(s.stacked(made))
    s.finish(outputs, lasts)


def gru_steps(t: NodeTask, s: Sequences, n: int) -> list[Term]:
    """Return the states after each time step of a direction. Gates are update, reset, hidden."""
    r, units, after = RealArithmetic(t), s.units, bool(t.attr("linear_before_reset", 0))
    both = slice(2 * units)
    hidden = slice(2 * units, None)
    own, other = np.split(s.bias[n], 2)
    given = own + other
    if after:
        given[hidden] = own[hidden]
    flat = t.reshaped(s.over(n), (s.steps * s.batch, s.size))

    def layer(weights: Array, bias: Array) -> Callable[[Term], Term]:
        held = [constant(Value(F32), np.ascontiguousarray(each)) for each in (weights, bias)]
        return lambda x: t.make("FULLY_CONNECTED", x, *held, like=x, activation=0)

    of_gates, of_hidden = (
        equal_parts(t, layer(s.weights[n][rows], given[rows])(flat), 0, s.steps) for rows in (both, hidden)
    )
    gates = layer(s.recurrent[n][both], np.zeros(2 * units, np.float32))
    candidate = layer(s.recurrent[n][hidden], other[hidden] if after else np.zeros(units, np.float32))
    h, made = s.state(5, n), []
    for to_gates, to_candidate in zip(of_gates, of_hidden, strict=True):
        sums = gates(h)
        update, reset = equal_parts(t, t.make("LOGISTIC", r("ADD", sums, to_gates)), 1, 2)
        seen = r("MUL", reset, candidate(h)) if after else candidate(r("MUL", reset, h))
        fresh = t.make("TANH", r("ADD", to_candidate, seen))
        h = r("ADD", r("MUL", update, r("SUB", h, fresh)), fresh)
        made.append(h)
    return made
