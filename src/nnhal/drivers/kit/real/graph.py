"""A main subgraph under conversion to an engine's graph: the node of each operand.

Between operations all real values are float32. A quantised operand is held as its stored values: in its own type if it
is given so, in float32 if an operation computes it. In both cases its elements are integers.
"""

from typing import Any, Generic, TypeVar

import numpy as np

from nnhal.base.operands import Array, Value, fixed
from nnhal.drivers.kit.operations.primitives import Node, RealPrimitives
from nnhal.drivers.kit.variants import Refused
from nnhal.model.graph import CONSTANTS, Model
from nnhal.model.validate import validate
from nnhal.ops.common import decode, encode, type_range
from nnhal.ops.schema import F16, show

FAR = 2.0**60  # scales are from 1 / FAR to FAR: products of two, and their factors, stay within float32
E = TypeVar("E", bound=RealPrimitives)


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
