"""Recurrent operators with 8-bit activations, which use the integers of LiteRT's kernels."""

from collections.abc import Mapping, Sequence

import numpy as np

from nnhal.base.operands import Value
from nnhal.base.records import replace
from nnhal.frontends.common.functions import RealArithmetic
from nnhal.frontends.common.terms import Term, bare, constant
from nnhal.frontends.tflite.file import TensorQuant
from nnhal.frontends.tflite.reader import Fields
from nnhal.frontends.tflite.state import read_tensor, variable_of, write_tensor
from nnhal.frontends.tflite.task import TANH, OperatorTask
from nnhal.ops.schema import F32, I32, Q8SYMM, Q16S

GATES = 4
STATE, CELL, NORMS = 18, 19, 20  # places of inputs
MATRICES, PEEPHOLES, BIASES, PROJECTION = range(1, 9), range(9, 12), range(12, 16), (16, 17)
LIMITS = np.iinfo(np.int16)
HIDDEN = 4  # of the intermediates, after those of the gates


class QuantisedCell:
    """A cell of INT8 with a state of INT16: NNAPI's QUANTIZED_LSTM computes one time step of it."""

    def __init__(self, t: OperatorTask, o: Fields) -> None:
        self.t = t
        scales = [t.graph.source.tensors[index].quant for index in t.operator.intermediates]
        t.require(
            len(scales) == GATES + 1,
            f"of INT8 has {len(scales)} intermediate tensors, NNAPI's is the one of {GATES + 1}",
        )
        t.require(o("FusedActivationFunction") == TANH, "of INT8 has another activation than TANH")
        hidden = self._quant(scales[HIDDEN], "its hidden state")
        norms = [self._fixed(NORMS + n, Q16S) for n in range(GATES)] if len(t.operator.inputs) > NORMS else [None] * 4
        normed = any(norm is not None for norm in norms)
        gates = [self._quant(s, "a gate").scales[0] if normed else 0.0 for s in scales[:HIDDEN]]
        self._before = [
            *(self._fixed(place, Q8SYMM) for place in MATRICES),
            *(self._fixed(place, Q16S) for place in PEEPHOLES),
            *(self._fixed(place, I32) for place in BIASES),
            self._fixed(PROJECTION[0], Q8SYMM),
            self._fixed(PROJECTION[1], I32),
        ]
        clips = [o("CellClip"), o("ProjClip")]
        zero = read_tensor(t, STATE).value.zero_point
        t.require(clips[1] <= 0 or not zero, f"of INT8 clips a projection with zero point {zero}, must be 0 for NNAPI")
        units, width = (t.known(read_tensor(t, place))[-1] for place in (CELL, STATE))
        t.require(
            units == width or not any(t.given(place) for place in PEEPHOLES),
            f"of INT8 has peepholes and a projection from {units} to {width}, for which LiteRT multiplies other elements "
            "than the cell's",
        )
        middle = hidden.zero_points[0]
        if t.given(PROJECTION[0]):  # LiteRT subtracts it before it saturates the projection, and adds it again
            middle = -middle
            t.require(middle < 128, f"of INT8 has zero point {-middle} before its projection, must be at least -127")
        self._behind = [*norms, *clips, *gates, middle, hidden.scales[0]]

    def step(self, x: Term, states: Sequence[Term]) -> list[Term]:
        """Return the output's state, the cell's, and the output."""
        outs = [bare(s.value) for s in (*states, states[0])]
        return self.t.run("QUANTIZED_LSTM", x, *self._before, *states, *self._behind, outs=outs)

    def _quant(self, quant: TensorQuant | None, what: str) -> TensorQuant:
        if quant is None:
            self.t.refuse(f"of INT8 has no scale for {what}")
        return quant

    def _fixed(self, place: int, kind: int) -> Term | None:
        """Return a constant as an operand of a type without zero point."""
        t = self.t
        if not t.given(place):
            return None
        term = t.raw(place)
        data = t.data(place, f"input {place}")
        t.require(not term.value.zero_point, f"input {place} has zero point {term.value.zero_point}, must be 0")
        value = Value(kind, None, 0.0 if kind == I32 else term.value.scale)
        t.require(data.dtype == value.dtype, f"input {place} is {term.kind}, which does not fit INT8")
        return constant(value, data, blob=term.blob)


def quantised_step(t: OperatorTask, o: Fields) -> None:
    """Write one time step of an LSTM."""
    last, cell, output = QuantisedCell(t, o).step(t.x(0), [read_tensor(t, place) for place in (STATE, CELL)])
    keep(t, {STATE: last, CELL: cell})
    t.result(0, output)


def quantised_sequence(t: OperatorTask, o: Fields) -> None:
    """Write a sequence, one time step after the other."""
    x, cell = t.x(0), QuantisedCell(t, o)
    sizes = t.known(x)
    t.require(len(sizes) == 3, f"has an input of shape {list(sizes)}, must have three dimensions")
    first, second, width = sizes
    times, batch = (first, second) if o("TimeMajor") else (second, first)
    t.require(times and batch, f"has an input of shape {list(sizes)}, must have elements")
    whole, axis = ((times * batch, width), 0) if o("TimeMajor") else ((batch, times * width), 1)
    steps = t.run("SPLIT", t.reshaped(x, whole), axis, times, outs=[replace(x.value, shape=None, name="")] * times)
    states, outputs = [read_tensor(t, place) for place in (STATE, CELL)], []
    for each in steps:
        *states, output = cell.step(each, states)
        outputs.append(output)
    keep(t, dict(zip((STATE, CELL), states, strict=True)))
    joined = t.make("CONCATENATION", *outputs, axis) if times > 1 else outputs[0]
    t.reshaped(joined, (first, second, t.known(outputs[0])[1]), out=True)


def keep(t: OperatorTask, states: Mapping[int, Term]) -> None:
    """Set the next values of variable tensors."""
    for place, term in states.items():
        write_tensor(t, place, term)


def quantised_svdf(t: OperatorTask, o: Fields) -> None:
    """Write an SVDF whose state is held as floats: NNAPI has no arithmetic on 16 bits.

    LiteRT applies no activation here.
    """
    x, weights, r = t.x(0), t.raw(2), RealArithmetic(t)
    kind = t.graph.declared(t.operator.inputs[4])
    both = weights.value.type, kind.type
    t.require(both == (Q16S, Q16S), "of INT8 must have a state and weights in time of INT16")
    variable = variable_of(t, 4)
    variable.value = Value(F32, (variable.value or kind).shape)
    state = read_tensor(t, 4)
    batch, rank, step = t.known(x)[0], o("Rank"), float(np.float32(kind.scale) * np.float32(weights.value.scale))
    times = t.data(2, "weights in time").astype(np.float32) * np.float32(step)
    filters, memory = t.known(weights)
    t.require(rank >= 1 and not filters % rank, f"has {filters} filters, must have a multiple of the rank {rank}")
    t.require(t.known(state) == (batch, filters * memory), f"must have a state of shape {[batch, filters * memory]}")

    none = constant(Value(F32), np.zeros(filters, np.float32))
    sums = t.make("FULLY_CONNECTED", t.real(x), t.real(t.x(1)), none, like=Value(F32), activation=0)
    rounded = t.make("FLOOR", r("ADD", r("MUL", sums, 1 / kind.scale), 0.5))
    newest = r("MINIMUM", r("MAXIMUM", rounded, LIMITS.min), LIMITS.max)
    whole = t.reshaped(newest, (batch, filters, 1))
    if memory > 1:
        kept = t.reshaped(state, (batch, filters, memory))
        rest = t.make("SLICE", kept, t.integers((0, 0, 1)), t.integers((batch, filters, memory - 1)))
        whole = t.make("CONCATENATION", rest, whole, 2)
    keep(t, {4: t.reshaped(whole, (batch, filters * memory))})

    products = r("MUL", whole, constant(Value(F32), times.reshape(1, filters, memory)))
    rows = t.reshaped(products, (batch, filters // rank, rank * memory))
    total = t.make("REDUCE_SUM", rows, t.integers([2]), False)
    if t.given(3):
        offsets = t.data(3, "bias").astype(np.float32) * np.float32(step)
        total = r("ADD", total, constant(Value(F32), offsets))
    (output,) = t.run("QUANTIZE", total, outs=[t.declared()])
    t.result(0, output)
