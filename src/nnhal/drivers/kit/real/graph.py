"""A main subgraph under conversion to an engine's graph: the node of each operand, and the task of an entry.

Between operations all real values are float32. A quantised operand is held as its stored values: in its own type if it
is given so, in float32 if an operation computes it. In both cases its elements are integers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from nnhal.base.lazy import cached_property
from nnhal.base.operands import Array, Value, fixed
from nnhal.drivers.kit.gru import GatedSequence
from nnhal.drivers.kit.lowering import LoweringTable, LoweringTask
from nnhal.drivers.kit.numbers import bounds, has_many_ties
from nnhal.drivers.kit.real.engine import Node, Primitives, WindowAttributes
from nnhal.drivers.kit.sums import Stage, mean_windows, padding_correction, stages, summed
from nnhal.drivers.kit.variants import Refused
from nnhal.model.graph import CONSTANTS, Model, Operation
from nnhal.model.validate import validate
from nnhal.ops.common import decode, encode, type_range
from nnhal.ops.schema import F16, F32, I32, Q8, Q8S, Bound, show

FAR = 2.0**60  # scales are from 1 / FAR to FAR: products of two, and their factors, stay within float32
FLOATS = frozenset((F32, F16))
QUANTS = frozenset((Q8, Q8S))
FINE = (
    2.0**12
)  # the most that an input's scale may be, relative to the output's: its stored values are real ones in float32 then
NEAR = 2.0**16  # scales are from 1 / NEAR to NEAR: an engine treats far smaller ones as 0
FAST = "int8"  # the variant for the engine's 8-bit kernels, which may saturate, and round sums in another way
FORMS: dict[int, tuple[str, ...]] = dict.fromkeys(QUANTS, (FAST, "float"))
NUMBERS = FLOATS | QUANTS | {I32}
E = TypeVar("E", bound=Primitives)


def scales_of(value: Value) -> Array:
    """Return the scale, or one for each channel, shaped to be multiplied with the tensor."""
    scales = np.array(value.channel.scales if value.channel else value.scale, np.float32)
    if not scales.min(initial=1) >= 1 / FAR or not scales.max(initial=1) <= FAR:
        raise Refused(
            f"scales are {scales.min():g} to {scales.max():g}, must be from {1 / FAR:g} to {FAR:g} to compute in float32"
        )
    if value.channel is None:
        return scales
    return scales.reshape([-1 if n == value.channel.axis else 1 for n in range(value.rank)])


class RealGraph(Generic[E]):
    """The engine's graph, and the nodes of the operands.

    inputs: the model's, in order; None for those without a value. checks: truth values, any of which fails the
    execution.
    """

    def __init__(self, model: Model, engine: E) -> None:
        self.model, self.engine = model, engine
        self._values = list(validate(model).subgraphs[0].values)
        self._held: dict[int, Node] = {}
        self.checks: list[Node] = []
        self._given = {index: self._parameter(index) for index in model.main.inputs}
        self.inputs = [self._given[index] for index in model.main.inputs]

    def outputs(self) -> list[Node]:
        """Return the model's outputs, in their own types; then the checks."""
        main = self.model.main.outputs
        return [*(self.engine.convert(self.held(index), self.value(index).dtype) for index in main), *self.checks]

    def value(self, index: int) -> Value:
        """Return the facts about an operand; Refused if it has no value."""
        value = self._values[index]
        if value is None:
            raise Refused("an operand has no value")
        return value

    def _parameter(self, index: int) -> Node:
        value = self._values[index]
        return None if value is None else self.engine.parameter(value.dtype, value.shape)

    def constant(self, data: Any, dtype: Any = None) -> Node:
        """Write a constant of numbers."""
        array = np.asarray(data, dtype)
        return self.engine.constant(array if array.flags.c_contiguous else array.copy())

    def held(self, index: int) -> Node:
        """Return an operand as it is held: float32, int32, truth values, or stored values."""
        if index not in self._held:
            value, operand = self.value(index), self.model.main.operands[index]
            self._require_elements(value)
            if operand.lifetime in CONSTANTS:
                data = self.model.constant(operand)
                node = self.constant(data, np.float32 if data.dtype == np.float16 else None)
            else:  # a model input, or the result of a refused operation
                node = self._given.get(index) or self._parameter(index)
                node = self.engine.convert(node, np.float32) if value.type == F16 else node
            self._held[index] = node
        return self._held[index]

    def hold(self, index: int, node: Node) -> None:
        """Let a node represent an operand; it has the elements of the operand's shape."""
        value, found = self.value(index), self.engine.shape(node)
        self._require_elements(value)
        shape = fixed(value.shape)
        self._held[index] = node if shape in (None, found) else self.engine.reshape(node, shape)

    def _require_elements(self, value: Value) -> None:
        if 0 in (value.shape or ()):
            raise Refused(f"{self.engine.name} needs elements, but a tensor of shape {show(value.dims)} has none")

    def steps(self, index: int) -> Node:
        """Return q - zero_point of a quantised operand, in float32."""
        value = self.value(index)
        if value.data is not None:
            return self.constant(np.subtract(value.data, value.zero_point, dtype=np.float32))
        node = self.converted(self.held(index), np.float32)
        return (
            self.engine.op("subtract", node, self.constant(value.zero_point, np.float32)) if value.zero_point else node
        )

    def converted(self, node: Node, dtype: Any) -> Node:
        """Convert a node's values to another type."""
        return node if self.engine.dtype(node) == dtype else self.engine.convert(node, dtype)

    def real(self, index: int) -> Node:
        """Return the real values of an operand; integers and truth values unchanged."""
        value = self.value(index)
        if not value.quantised:
            return self.held(index)
        scales = scales_of(value)
        if value.data is not None:
            return self.constant(decode(value, value.array))
        return self.engine.op("multiply", self.apart(self.steps(index)), self.constant(scales))

    def apart(self, steps: Node) -> Node:
        """Guard integers against an engine's rewriting of them and a subsequent factor.

        The rewriting multiplies the zero point by the factor alone, rounding twice, or skips a rounding, or uses 8-bit
        products.
        """
        return self.engine.op("maximum", steps, self.constant(-FAR, np.float32))

    def levels(self, index: int) -> Node:
        """Return the real values of an operand, in the variant for 8-bit kernels."""
        value = self.value(index)
        if not value.quantised or value.data is not None:
            return self.real(index)
        stored = type_range(value.type)
        return self.engine.levels(self.converted(self.held(index), np.float32), stored, real_bounds(value))

    def hold_levels(self, index: int, node: Node, within: tuple[float, float]) -> None:
        """Let an operand represent real values within bounds, in the variant for 8-bit kernels.

        The bounds are stored values, as the definition rounds them. 8-bit kernels would cut off their decimals.
        """
        value = self.value(index)
        stored = self.engine.levels(node, real_bounds(value), type_range(value.type))
        low, high = encode(value, np.array(within, np.float32)).tolist()
        if [low, high] != [*type_range(value.type)]:
            stored = self.engine.clamp(stored, float(low), float(high))
        self.hold(index, self.engine.convert(stored, value.dtype))


def real_bounds(value: Value) -> tuple[float, float]:
    """Return the real values of the least and the greatest element of a quantised type."""
    scale = float(scales_of(value))
    low, high = type_range(value.type)
    return (low - value.zero_point) * scale, (high - value.zero_point) * scale


class RealTask(LoweringTask):
    """One operation, and the graph that it is written to."""

    def __init__(self, graph: RealGraph[Any], a: Bound, operation: Operation) -> None:
        super().__init__(a, operation)
        self.graph, self.constant = graph, graph.constant
        self.o: Primitives = graph.engine
        self.op = graph.engine.op

    @cached_property
    def eight(self) -> bool:
        """Whether it is written for 8-bit kernels: in that variant, if their numbers hold its scales."""
        arguments = [value for _, value in self.a.inputs if isinstance(value, Value)]
        inputs, outputs = (
            [value.scale for value in values if value.quantised and value.channel is None]
            for values in (arguments, map(self.graph.value, self.operation.outputs))
        )
        near = all(1 / NEAR <= scale <= NEAR for scale in (*inputs, *outputs))
        fine = max(inputs, default=0.0) <= FINE * min(outputs, default=1.0)
        return self.form == FAST and near and fine

    def halves(self) -> bool:
        """Whether many results are exact halves of the output's quantisation step, which 8-bit kernels round to even."""
        places = [place for argument, _ in self.a.inputs for place in self.places(argument.name)]
        scales = [self.graph.value(place).scale for place in places]
        return has_many_ties([math.prod(scales)] if self.name == "MUL" else scales, self.value().scale or 1.0)

    def x(self, name: str) -> Node:
        """Return the real values of an argument; integers and truth values unchanged."""
        return self.real(self.place(name))

    def xs(self) -> list[Node]:
        """Return the real values of all tensor arguments."""
        return [self.real(place) for argument, _ in self.a.inputs for place in self.places(argument.name)]

    def real(self, place: int) -> Node:
        """Return the real values of an operand, in this variant."""
        return self.graph.levels(place) if self.eight else self.graph.real(place)

    def maybe(self, name: str) -> Node:
        """As `x`; None if it is omitted."""
        return self.x(name) if self.places(name) else None

    def stored(self, name: str) -> Node:
        """Return an argument as it is held."""
        return self.graph.held(self.place(name))

    def f32(self, number: float) -> Node:
        """Write a constant."""
        return self.constant(number, np.float32)

    def value(self, number: int = 0) -> Value:
        """Return the facts about an output."""
        return self.graph.value(self.operation.outputs[number])

    def hold(self, node: Node, number: int = 0) -> None:
        """Give an output as it is to be held."""
        self.graph.hold(self.operation.outputs[number], node)

    def give(self, node: Node, number: int = 0, within: tuple[float, float] | None = None) -> None:
        """Give an output by its real values, which are kept within the activation's bounds."""
        low, high = bounds(self.a) if within is None else within
        value = self.value(number)
        if self.eight:
            self.graph.hold_levels(self.operation.outputs[number], node, (low, high))
            return
        if high < np.inf:
            node = self.o.clamp(node, low, high)
        elif low == 0:
            node = self.op("relu", node)
        if value.quantised:
            self.give_steps(self.op("divide", node, self.f32(float(scales_of(value)))), number)
        else:
            self.hold(node, number)

    def give_steps(self, node: Node, number: int = 0, within: tuple[int, int] | None = None) -> None:
        """Give a quantised output by its distance from the zero point, which is rounded and saturated."""
        value = self.value(number)
        low, high = within or type_range(value.type)
        zero = value.zero_point
        node = self.op("round", self.o.clamp(node, float(low - zero), float(high - zero)))
        self.hold(self.op("add", node, self.f32(zero)) if zero else node, number)

    def image(self, node: Node) -> Node:
        """Return a picture with channels first."""
        return node if self.a.nchw else self.o.transpose(node, [0, 3, 1, 2])

    def layout(self, node: Node) -> Node:
        """Return a picture with channels first in the operation's layout."""
        return node if self.a.nchw else self.o.transpose(node, [0, 2, 3, 1])

    def missing(self, x: Node) -> Node:
        """Return whether each element is NaN."""
        return self.op("not_equal", x, x)

    def spoilt(self, found: Node, x: Node, axes: Sequence[int], keep: bool = True) -> Node:
        """Return `found`, NaN if there is a NaN along the axes: engines forget it in maxima."""
        if self.a.T not in FLOATS:
            return found
        return self.op("select", self.o.reduce("logical_or", self.missing(x), axes, keep), self.f32(np.nan), found)

    def add_up(self, kind: str, x: Node, axes: Sequence[int], keep: bool = True) -> Node:
        """Return the "sum" or "mean" of real numbers along axes, in stages if it is long."""
        shape = self.o.shape(x)
        parts = stages(shape, axes)
        if not parts:
            return self.o.reduce(kind, x, axes, keep)

        def pad(y: Node, stage: Stage) -> Node:
            after = [stage.more * (axis == stage.axis) for axis in range(len(stage.shape))]
            return self.o.pad(y, [0] * len(after), after, "constant", self.f32(0))

        def reduce(y: Node, stage: Stage) -> Node:
            return self.o.reduce(kind, y, [stage.along], False)

        y, share = summed(x, parts, self.o.reshape, pad, reduce), padding_correction(parts)
        y = self.op("multiply", y, self.f32(share)) if kind == "mean" and share != 1 else y
        sizes = enumerate(fixed(shape) or ())
        return self.o.reshape(y, [1 if axis in axes else n for axis, n in sizes if keep or axis not in axes])

    def mean_pool(self, x: Node, how: WindowAttributes) -> Node:
        """Return the means of windows of a picture with channels first, in stages if they are long."""
        windows = mean_windows(self.a)
        if not windows:
            return self.add_up("mean", x, [2, 3])
        if windows == [how.size]:
            return self.o.mean_pool(x, how)
        (down, across), (top, left), (bottom, right) = how.strides, how.before, how.after
        x = self.o.mean_pool(x, how._replace(strides=(1, across), before=(0, left), after=(0, right), size=windows[0]))
        return self.o.mean_pool(x, how._replace(strides=(down, 1), before=(top, 0), after=(bottom, 0), size=windows[1]))

    def truncated(self, x: Node) -> Node:
        """Truncate numbers towards 0."""
        return self.op("select", self.op("less", x, self.f32(0)), self.op("ceiling", x), self.op("floor", x))

    def part(self, x: Node, axis: int, start: int, end: int, step: int = 1) -> Node:
        """Slice one dimension; an end of -1 with a negative step is before the first element."""
        return self.o.slice(x, [start], [end if end >= 0 else -(2**31)], [step], [axis])


Lower = Callable[[RealTask], None]
Whole = Callable[[RealTask, GatedSequence], None]
_entries: list[tuple[tuple[str, ...], frozenset[int], Mapping[int, tuple[str, ...]], bool, Lower]] = []


def entry(
    *names: str,
    types: frozenset[int] = FLOATS | QUANTS,
    forms: Mapping[int, tuple[str, ...]] | None = None,
    exact: bool = False,
) -> Callable[[Lower], Lower]:
    """Make a function the entry of operations, in all tables that are made of these. exact: as of `Entry`."""

    def add(function: Lower) -> Lower:
        _entries.append((names, types, forms or {}, exact, function))
        return function

    return add


_gated: list[Whole] = []


def whole_grus(function: Whole) -> Whole:
    """Make a function write each GRU whole, in all tables that are made of these."""
    _gated.append(function)
    return function


def table_for(
    engine: str, elsewhere: Mapping[str, str], without: Sequence[str] = (), *, eight_bits: bool = False
) -> LoweringTable[RealTask]:
    """Make a table of all entries.

    elsewhere: reasons for operations that have no entry. without: operations left to the driver. eight_bits: whether
    there are variants for 8-bit kernels, for an engine that has `levels` and `scaled`.
    """
    table: LoweringTable[RealTask] = LoweringTable(engine, FLOATS | QUANTS, elsewhere)
    for names, types, forms, exact, function in _entries:
        known = forms if eight_bits else {}
        table.entry(*(name for name in names if name not in without), types=types, forms=known, exact=exact)(function)
    (table.gated,) = _gated
    return table
