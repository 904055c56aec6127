"""The OpenVINO model under construction: which node stands for which operand, and what an entry works with.

Between operations all real values are float32. A quantised operand is held as what it stores: in its own type where it is
given so, in float32 where an operation computes it; either way its elements are integers.
"""

import ctypes
from typing import Any

import numpy as np

from nnhal.base.operands import Array, Value, fixed
from nnhal.drivers.kit import LoweringTable, LoweringTask, Refused, bounds
from nnhal.drivers.openvino.engine import opset, ov
from nnhal.model.graph import CONSTANTS, Model
from nnhal.model.validate import validate
from nnhal.ops.common import decode, type_range
from nnhal.ops.schema import F16, F32, I32, Q8, Q8S, Bound, show

FAR = 2.0**60  # scales from 1 / FAR to FAR: products of two, and what they are of, stay within float32
FLOATS = frozenset((F32, F16))
QUANTS = frozenset((Q8, Q8S))
NUMBERS = FLOATS | QUANTS | {I32}
Node = Any


def scales_of(value: Value) -> Array:
    """The scale, or one for each channel, shaped to be multiplied with the tensor."""
    scales = np.array(value.channel.scales if value.channel else value.scale, np.float32)
    if not 1 / FAR <= scales.min(initial=1) or not scales.max(initial=1) <= FAR:
        raise Refused(f"scales of {scales.min():g} to {scales.max():g} leave float32 between OpenVINO's operations")
    if value.channel is None:
        return scales
    return scales.reshape([-1 if n == value.channel.axis else 1 for n in range(value.rank)])


def shared(array: Array) -> Array:
    """An array over the same memory that says it may be written to, as OpenVINO wants it; the memory has to stay."""
    memory = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
    return np.frombuffer(memory, array.dtype).reshape(array.shape)


def shape_of(node: Node) -> Any:
    """The shape of a node, or of one of its outputs, as far as it is known."""
    return node.get_partial_shape() if hasattr(node, "get_partial_shape") else node.get_output_partial_shape(0)


class Graph:
    """A main subgraph on its way to an `ov.Model`. kept: what constants lie in, for as long as the model lives."""

    def __init__(self, model: Model) -> None:
        self.model, self.values = model, list(validate(model).subgraphs[0].values)
        self.o, self.ov, self.kept = opset(), ov(), list[Array]()
        self._held: dict[int, Node] = {}
        self.parameters = {index: self._parameter(index) for index in model.main.inputs}

    def _parameter(self, index: int) -> Node:
        value = self.values[index]
        if value is None:
            return None
        shape = self.ov.PartialShape.dynamic() if value.shape is None else [-1 if n is None else n for n in value.shape]
        return self.o.parameter(shape, self.ov.Type(value.dtype))

    def constant(self, data: Any, dtype: Any = None) -> Node:
        """A constant over the memory of an array, which is kept, or over a copy of other numbers."""
        array = np.ascontiguousarray(data, dtype).reshape(np.shape(data))
        if not array.nbytes:
            return self.ov.op.Constant(array)
        self.kept.append(array)
        return self.ov.op.Constant(shared(array), shared_memory=True)

    def value(self, index: int) -> Value:
        """What is known of an operand."""
        value = self.values[index]
        if value is None:
            raise Refused("an operand has no value")
        return value

    def held(self, index: int) -> Node:
        """An operand as it is held: float32, int32, truth values, or stored values."""
        if index not in self._held:
            value, operand = self.value(index), self.model.main.operands[index]
            if 0 in (value.shape or ()):
                raise Refused(f"OpenVINO needs elements, and a tensor of shape {show(value.dims)} has none")
            if operand.lifetime in CONSTANTS:
                data = self.model.constant(operand)
                node = self.constant(data, np.float32 if data.dtype == np.float16 else None)
            else:  # given, or computed by what was refused
                node = self.parameters.get(index) or self._parameter(index)
                node = self.o.convert(node, "f32") if value.type == F16 else node
            self._held[index] = node
        return self._held[index]

    def hold(self, index: int, node: Node) -> None:
        """Let an operand be what a node gives, of a shape that has the elements of the operand's."""
        value = self.value(index)
        shape, found = fixed(value.shape), shape_of(node)
        if shape is not None and found != self.ov.PartialShape(list(shape)):
            node = self.o.reshape(node, self.constant(shape, np.int64), special_zero=False)
        if 0 in (value.shape or ()) or (found.is_static and 0 in found.to_shape()):
            raise Refused("OpenVINO needs elements, and an output has none")
        self._held[index] = node

    def steps(self, index: int) -> Node:
        """q - zero_point of a quantised operand, in float32."""
        value, node = self.value(index), self.held(index)
        if value.data is not None:
            return self.constant(np.subtract(value.data, value.zero_point, dtype=np.float32))
        node = self.converted(node, "f32")
        return self.o.subtract(node, np.float32(value.zero_point)) if value.zero_point else node

    def converted(self, node: Node, kind: str) -> Node:
        """A node's values in another type."""
        return node if node.get_element_type() == getattr(self.ov.Type, kind) else self.o.convert(node, kind)

    def real(self, index: int) -> Node:
        """The real values of an operand; integers and truth values as they are."""
        value = self.value(index)
        if not value.quantised:
            return self.held(index)
        scales = scales_of(value)
        if value.data is not None:
            return self.constant(decode(value, value.array))
        return self.o.multiply(self.steps(index), self.constant(scales))

    def finish(self) -> Any:
        """The whole model."""
        main, results = self.model.main, []
        for index in main.outputs:
            value, node = self.value(index), self.held(index)
            results.append(self.o.result(self.o.convert(node, self.ov.Type(value.dtype))))
        return self.ov.Model(results, [p for p in self.parameters.values() if p is not None])


class Task(LoweringTask):
    """One operation, the graph that it is written to, and OpenVINO's operations in `o`."""

    def __init__(self, graph: Graph, a: Bound, operation: Any) -> None:
        super().__init__(a, operation)
        self.graph, self.o, self.constant = graph, graph.o, graph.constant

    def x(self, name: str) -> Node:
        """The real values of an argument; integers and truth values as they are."""
        return self.graph.real(self.place(name))

    def maybe(self, name: str) -> Node:
        """The same; None where it is omitted."""
        return self.x(name) if self.places(name) else None

    def stored(self, name: str) -> Node:
        """An argument as it is held."""
        return self.graph.held(self.place(name))

    def f32(self, number: float) -> Node:
        """A constant."""
        return self.constant(number, np.float32)

    def value(self, number: int = 0) -> Value:
        """What is known of an output."""
        return self.graph.value(self.operation.outputs[number])

    def hold(self, node: Node, number: int = 0) -> None:
        """Give an output as it is to be held."""
        self.graph.hold(self.operation.outputs[number], node)

    def give(self, node: Node, number: int = 0, within: tuple[float, float] | None = None) -> None:
        """Give an output by its real values, which are kept within the activation's bounds."""
        low, high = bounds(self.a) if within is None else within
        value = self.value(number)
        if (low, high) != (-np.inf, np.inf):
            node = self.o.clamp(node, max(low, -FAR * FAR), high) if high < np.inf else self.o.relu(node)
        if value.quantised:
            self.give_steps(self.o.divide(node, self.f32(float(scales_of(value)))), number)
        else:
            self.hold(node, number)

    def give_steps(self, node: Node, number: int = 0, within: tuple[int, int] | None = None) -> None:
        """Give a quantised output by its distance from the zero point, which is rounded and saturated."""
        value = self.value(number)
        low, high = within or type_range(value.type)
        node = self.o.clamp(node, float(low - value.zero_point - 1), float(high - value.zero_point + 1))
        node = self.o.round(node, "half_away_from_zero")
        if value.zero_point:
            node = self.o.add(node, self.f32(value.zero_point))
        self.hold(self.o.clamp(node, float(low), float(high)), number)

    def image(self, node: Node) -> Node:
        """A picture as OpenVINO has it: channels first."""
        return node if self.a.nchw else self.o.transpose(node, self.constant([0, 3, 1, 2], np.int64))

    def layout(self, node: Node) -> Node:
        """A picture as the operation has it."""
        return node if self.a.nchw else self.o.transpose(node, self.constant([0, 2, 3, 1], np.int64))

    def where(self, condition: Node, x: Node, y: Node) -> Node:
        """Elements of the one or the other."""
        return self.o.select(condition, x, y)

    def missing(self, x: Node) -> Node:
        """Where the elements are NaN."""
        return self.o.not_equal(x, x)


TABLE: LoweringTable[Task] = LoweringTable(
    "OpenVINO",
    FLOATS | QUANTS,
    {
        "IF": "branches stay with the runtime",
        "WHILE": "OpenVINO cannot end a loop at its time-out",
    },
)
entry = TABLE.entry
