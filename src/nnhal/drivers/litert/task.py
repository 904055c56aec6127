"""The task of an entry of the lowering table: one operation's arguments and tensors, and operators to write."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.operands import Value
from nnhal.base.records import replace
from nnhal.drivers.kit.lowering import LoweringTable, LoweringTask
from nnhal.drivers.kit.variants import Refused
from nnhal.drivers.litert.graph import FLOATS, QUANTS, EngineTensor, Graph
from nnhal.drivers.litert.limits import MemoryLimit, require_32_bits
from nnhal.model.graph import Operation
from nnhal.ops.common import ACTIVATION_RANGE, encode, type_range
from nnhal.ops.schema import B8, F32, I32, Bound

WITHIN_1 = 2  # TFLite's ActivationFunctionType of RELU1
BOUNDED = {WITHIN_1: Activation.RELU1, 3: Activation.RELU6}
NEAR_HALF = 2.0**-12  # of a quantisation step: float32 may round this to a half beside a zero point


class Task(LoweringTask):
    """One operation to lower to LiteRT: its decoded arguments `a`, and its tensors by the arguments' names."""

    def __init__(self, graph: Graph, a: Bound, operation: Operation) -> None:
        super().__init__(a, operation)
        self.graph, self.room = graph, MemoryLimit(graph, operation)
        self._after: list[Callable[[], None]] = []

    def later(self, step: Callable[[], None]) -> None:
        """Write something after the operation; the last registered is first."""
        self._after.append(step)

    def shared(self, name: str) -> bool:
        """Whether another operation also reads the argument, or this one reads it twice."""
        return self.graph.readers[self.place(name)] > 1

    def finish(self) -> None:
        """Write what `later` registered."""
        for step in reversed(self._after):
            step()

    # ---------------------------------------------------------------------------------------------------- arguments

    def x(self, name: str) -> EngineTensor:
        """Return the tensor of an argument that must be there."""
        tensor = self.maybe(name)
        if tensor is None:
            raise Refused(f"{name} is omitted, must be given")
        return tensor

    def maybe(self, name: str) -> EngineTensor | None:
        """Return the tensor of an argument, None if it is omitted (also for an optional input of the model)."""
        places = self.places(name)
        return self.graph.operand(places[0]) if places else None

    def integers(self, name: str) -> EngineTensor | None:
        """Return the 8-bit constant whose real values an argument has, if the application requests such layers."""
        places = self.places(name)
        return self.graph.integers.get(places[0]) if places else None

    def many(self, name: str) -> list[EngineTensor]:
        """Return the tensors of a variadic argument."""
        tensors = [self.graph.operand(index) for index in self.places(name)]
        return [tensor for tensor in tensors if tensor is not None]

    @property
    def out(self) -> EngineTensor:
        """The first output."""
        return self.output(0)

    def output(self, number: int) -> EngineTensor:
        """Return the tensor of an output."""
        tensor = self.graph.operand(self.operation.outputs[number])
        if tensor is None:
            raise Refused(f"output {number} is omitted, must be given")
        return tensor

    @property
    def outs(self) -> list[EngineTensor]:
        """The tensors of all outputs."""
        return [self.output(number) for number in range(len(self.operation.outputs))]

    # ------------------------------------------------------------------------------------------------------ writing

    def constant(self, array: Any, dtype: Any = np.int32, value: Value | None = None) -> EngineTensor:
        """Write a constant tensor; int32 unless `dtype` or a Value that describes it is given."""
        kind = value.dtype if value else np.dtype(dtype)
        if value is None and kind == np.int32:
            require_32_bits(np.asarray(array))
        data = np.asarray(array, kind)
        kinds = {"i": I32, "f": F32, "b": B8}
        value = replace(value or Value(kinds[data.dtype.kind]), shape=data.shape, data=data, name="")
        return self.graph.add(value, data)

    def temporary(self, value: Value, **changes: Any) -> EngineTensor:
        """Return a tensor between two operators, described by `value` with changes (`shape=`, `type=`, ...)."""
        value = replace(value, **changes, data=None, name="")
        if value.shape is not None:
            self.room.require(value.shape, value.dtype.itemsize, "between its operators")
        return self.graph.add(value)

    def along(self, value: Value, axes: Sequence[int]) -> EngineTensor:
        """Return a tensor between two operators, with the shape that results from reducing some axes, which stay as 1."""
        rank = value.rank
        gone = {axis % rank for axis in axes}
        return self.temporary(value, shape=tuple(1 if i in gone else size for i, size in enumerate(value.dims)))

    def emit(
        self,
        kind: str,
        inputs: Sequence[EngineTensor | None],
        outputs: EngineTensor | Sequence[EngineTensor],
        options: str = "",
        **fields: Any,
    ) -> None:
        """Write an operator; see `FlatbufferWriter.operator`.

        XNNPACK rounds the bounds of a fused activation to even, the definition away from 0. If a bound is a half of a
        quantisation step, the activation becomes separate operators.
        """
        results = [outputs] if isinstance(outputs, EngineTensor) else outputs
        fused = BOUNDED.get(fields.get("fusedActivationFunction", 0))
        if fused is not None and not self.exact and bound_is_near_tie(results[0].value, fused):
            y = self.temporary(results[0].value)
            self.emit(kind, inputs, y, options, **fields | {"fusedActivationFunction": 0})
            self.bounded(y, fused, results[0])
            return
        given = [-1 if tensor is None else tensor.index for tensor in inputs]
        self.graph.writer.operator(kind, given, [tensor.index for tensor in results], options, **fields)
        self.graph.derived(kind, inputs, results[0])
        if kind == "DEQUANTIZE" and inputs[0] is not None and inputs[0].value.data is not None:
            self.graph.folded.add(results[0].index)

    def bounded(self, x: EngineTensor, kind: Activation, y: EngineTensor) -> None:
        """Write a quantised tensor clipped to the bounds of an activation."""
        low, high = encode(y.value, np.array(ACTIVATION_RANGE[kind], np.float32))
        clipped = self.temporary(y.value)
        self.emit("MAXIMUM", [x, self.constant(low, value=y.value)], clipped)
        self.emit("MINIMUM", [clipped, self.constant(high, value=y.value)], y)

    def alias(self, number: int, tensor: EngineTensor) -> None:
        """Let output `number` be exactly this tensor."""
        self.graph.alias(self.operation.outputs[number], tensor)

    def reshape(self, x: EngineTensor, y: EngineTensor) -> None:
        """Write the elements of `x` in the shape of `y`, of which one dimension may be known only at execution."""
        shape = list(y.value.dims)
        if shape.count(None) == 1 and 0 not in shape:
            shape[shape.index(None)] = -1
        else:
            shape = list(y.value.known)
        self.emit("RESHAPE", [x, self.constant(shape)], y, "Reshape", newShape=np.array(shape, np.int32))

    def slice(self, x: EngineTensor, begin: Sequence[int], y: EngineTensor) -> None:
        """Write the slice of `x` that begins at `begin` and has the shape of `y`; an open dimension ends with `x`."""
        sizes = [-1 if size is None else size for size in y.value.dims]
        self.emit("SLICE", [x, self.constant(begin), self.constant(sizes)], y)

    def transposed(self, x: EngineTensor, order: Sequence[int]) -> EngineTensor:
        """Return a tensor with its dimensions reordered."""
        shape = None if x.value.shape is None else tuple(x.value.shape[i] for i in order)
        y = self.temporary(x.value, shape=shape)
        self.emit("TRANSPOSE", [x, self.constant(order)], y)
        return y

    def transposed_out(self, order: Sequence[int], number: int = 0) -> EngineTensor:
        """Return a tensor that, reordered, is output `number`; the reordering is written after the operation."""
        out = self.output(number)
        inverse = [int(i) for i in np.argsort(order)]
        shape = None if out.value.shape is None else tuple(out.value.shape[i] for i in inverse)
        y = self.temporary(out.value, shape=shape)
        self._after.append(lambda: self.emit("TRANSPOSE", [y, self.constant(order)], out))
        return y

    def copy(self, x: EngineTensor, number: int) -> None:
        """Give output `number` the elements of `x`: it becomes the same tensor, unless that is an input of the model."""
        if self.graph.given(x):
            self.reshape(x, self.output(number))
        else:
            self.alias(number, x)

    def leaves(self, number: int) -> bool:
        """Whether output `number` is an output of the model and nothing else."""
        return not self.graph.readers[self.operation.outputs[number]]


TABLE: LoweringTable[Task] = LoweringTable(
    "LiteRT",
    FLOATS | QUANTS,
    {"IF": "the runtime itself runs branches", "WHILE": "LiteRT cannot end a loop at its timeout"},
)
entry = TABLE.entry


def bound_is_near_tie(value: Value, kind: Activation) -> bool:
    """Whether a bound of an activation lies at, or next to, a half of a tensor's quantisation step."""
    if not value.quantised:
        return False
    steps = np.array(ACTIVATION_RANGE[kind]) / value.scale
    return bool((abs(steps - np.floor(steps) - 0.5) < NEAR_HALF).any())


def reach(value: Value) -> int:
    """Return the greatest |q - zero_point| of a quantised tensor's elements."""
    return max(abs(limit - value.zero_point) for limit in type_range(value.type))
