"""Finds quantisation with a scale that is computed at execution, and layers of its integers.

NNAPI has no such quantisation, so `frontends.onnx` holds the integers as reals. An engine may have them whole: 8-bit
products need a quarter of the weights' memory. Calibration measures them as one. Definition: ONNX's DynamicQuantizeLinear,
MatMulInteger, ConvInteger.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from nnhal.base.operands import Array
from nnhal.model.composites import CompositeSearch, optional_value, pattern
from nnhal.model.graph import Model
from nnhal.ops.schema import F32

LARGEST = 255  # of the integers, and of their distance from their zero point
LAYERS = "FULLY_CONNECTED", "CONV_2D", "GROUPED_CONV_2D", "DEPTHWISE_CONV_2D"
_ROUNDED = """
{0}_down = FLOOR {1}
{0}_rest = SUB {1} {0}_down
{0}_half = MUL {0}_down 0.5
{0}_pair = FLOOR {0}_half
{0}_even = MUL {0}_pair 2
{0}_middle = EQUAL {0}_rest 0.5
{0}_odd = NOT_EQUAL {0}_down {0}_even
{0}_tie = LOGICAL_AND {0}_middle {0}_odd
{0}_above = GREATER {0}_rest 0.5
{0}_up = LOGICAL_OR {0}_above {0}_tie
{0}_next = ADD {0}_down 1
{0} = SELECT {0}_up {0}_next {0}_down"""
QUANTISED = pattern(
    """
least = REDUCE_MIN x
low = MINIMUM least 0
most = REDUCE_MAX x
high = MAXIMUM most 0
extent = SUB high low
none = EQUAL extent 0
step = DIV extent 255
scale = SELECT none 1 step
distance = DIV low scale
offset = NEG distance
limited = MINIMUM offset 255"""
    + _ROUNDED.format("zero", "limited")
    + """
moved = DIV x scale
lowest = NEG zero
above = MAXIMUM moved lowest
highest = SUB 255 zero
within = MINIMUM above highest"""
    + _ROUNDED.format("steps", "within")
)


class DynamicQuantisation(NamedTuple):
    """A quantised tensor, by operands: x, scale [1], zero point [1]; steps: the integers minus the zero point, as reals."""

    x: int
    scale: int
    zero: int
    steps: int


class IntegerLayer(NamedTuple):
    """A layer of integers minus their zero point.

    quantised: the integers, which the layer may read in another shape. weights: minus their own zero point. zero: what
    to add to make weights from 0 to 255.
    """

    quantised: DynamicQuantisation
    weights: Array
    zero: int


def dynamic_operations(model: Model) -> tuple[Mapping[int, frozenset[int]], Collection[int]]:
    """Return the operations of each quantisation in the main subgraph, by the last of them, and the layers of integers."""
    search = _DynamicSearch(model)
    return search.members, search.layers()


def dynamic_composites(model: Model) -> dict[int, DynamicQuantisation | IntegerLayer]:
    """Return the quantisations and layers of integers in the main subgraph, by the operation that completes each."""
    search = _DynamicSearch(model)
    return {**search.quantisations, **search.layers()}


class _DynamicSearch(CompositeSearch):
    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.quantisations: dict[int, DynamicQuantisation] = {}
        self.members: dict[int, frozenset[int]] = {}  # the operations of each
        for n, a, operation in self.operations("SELECT") if any(self.operations("REDUCE_MIN")) else ():
            found: dict[str, int] = {}
            if a.T == F32 and self.matched(operation.outputs[0], QUANTISED, "steps", found) and self._whole(found):
                self.quantisations[n] = DynamicQuantisation(*(found[name] for name in DynamicQuantisation._fields))
                self.members[n] = frozenset(self.makers[found[name]] for name in QUANTISED)

    def _whole(self, found: Mapping[str, int]) -> bool:
        """Whether both reductions are of all elements."""
        for made in (self.maker(found["least"], "REDUCE_MIN"), self.maker(found["most"], "REDUCE_MAX")):
            axes = None if made is None else optional_value(made[0], "axes")
            rank = 0 if made is None else len(self.shape(made[1].inputs[0]))
            if axes is None or axes.data is None or not rank:
                return False
            if {*(np.asarray(axes.data) % rank).tolist()} != {*range(rank)}:
                return False
        return self.shape(found["scale"]) == self.shape(found["zero"]) == (1,)

    def layers(self) -> dict[int, IntegerLayer]:
        """Return the layers whose weights are whole numbers of 8 bits."""
        by_steps, found = {each.steps: each for each in self.quantisations.values()}, {}
        for n, a, operation in self.operations(*LAYERS) if by_steps else ():
            value, quantised = self.values[operation.inputs[1]], self._steps_read(operation.inputs[0], by_steps)
            data = None if value is None or a.T != F32 or quantised is None else value.data
            weights = None if data is None else whole_weights(np.asarray(data))
            if quantised is not None and weights is not None:
                found[n] = IntegerLayer(quantised, *weights)
        return found

    def _steps_read(self, operand: int, known: Mapping[int, DynamicQuantisation]) -> DynamicQuantisation | None:
        """Return whose steps an operand has, in any shape: themselves, or with the zero point added and subtracted."""
        operand = self.source(operand)
        if operand in known or (less := self.maker(operand, "SUB")) is None:
            return known.get(operand)
        integers, zero = less[1].inputs[:2]
        more = self.maker(self.source(integers), "ADD")
        found = None if more is None else known.get(more[1].inputs[0])
        return found if found is not None and more is not None and found.zero == zero == more[1].inputs[1] else None


def whole_weights(weights: Array) -> tuple[Array, int] | None:
    """Return weights as integers, and what to add to make them 0 to 255; None if they are other numbers."""
    least, most = float(weights.min(initial=0)), float(weights.max(initial=0))
    if not most - least <= LARGEST:  # also of NaN
        return None
    integers = weights.astype(np.int16)
    zero = int(np.clip(128, -least, LARGEST - most))
    return (integers, zero) if np.array_equal(integers, weights) else None
