"""The task of an entry of the lowering table: one operation's arguments and tensors, and operators to write."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import Activation, OperandType
from nnhal.base.operands import Array, Shape, Value
from nnhal.base.records import replace
from nnhal.drivers.kit.lowering import LoweringTable, LoweringTask
from nnhal.drivers.kit.variants import Refused
from nnhal.drivers.litert.graph import FLOATS, MOST, QUANTS, SIGN, EngineTensor, Graph, require_scales
from nnhal.model.graph import Operation
from nnhal.ops.common import ACTIVATION_RANGE, decode, encode, type_range
from nnhal.ops.schema import B8, F32, I32, Q8S, Bound

ROOM = 2**28  # bytes that an operation may always hold in addition to its operands
PROPORTION = 8  # how many times its largest operand it may hold
BEYOND_XNNPACK = 6  # the most dimensions of its tensors
AWAY = 1 + 2.0**-22  # factor for halves of a quantisation step, which XNNPACK rounds to even
WITHIN_1 = 2  # TFLite's ActivationFunctionType of RELU1
BOUNDED = {WITHIN_1: Activation.RELU1, 3: Activation.RELU6}
NEAR_HALF = 2.0**-12  # of a quantisation step: float32 may round this to a half beside a zero point
STEEPEST = 256  # from here on XNNPACK refuses a quotient of scales, and LiteRT's own integers overflow


class Task(LoweringTask):
    """One operation to lower to LiteRT: its decoded arguments `a`, and its tensors by the arguments' names."""

    def __init__(self, graph: Graph, a: Bound, operation: Operation) -> None:
        super().__init__(a, operation)
        self.graph = graph
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
            self.require_room(value.shape, value.dtype.itemsize, "between its operators")
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

    def undefined(self, number: int, shape: Shape) -> None:
        """Give output `number` this shape unless it is known, and undefined contents."""
        self.graph.undefined(self.operation.outputs[number], shape)

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
        if self.enters(x):
            self.reshape(x, self.output(number))
        else:
            self.alias(number, x)

    def enters(self, x: EngineTensor) -> bool:
        """Whether a tensor is an input of the model, or constant."""
        return self.graph.given(x)

    def leaves(self, number: int) -> bool:
        """Whether output `number` is an output of the model and nothing else."""
        return not self.graph.readers[self.operation.outputs[number]]

    def require_scale(self, coarsest: float, out: Value, steepest: int = STEEPEST) -> None:
        """Refuse a quantised output whose scale is too fine for values of scale `coarsest`."""
        enough = not out.quantised or coarsest < steepest * out.scale
        self.require(
            enough, f"output scale {out.scale:g} is too fine for LiteRT here, must exceed {coarsest / steepest:g}"
        )

    def product(self, x: float, y: float) -> float:
        """Return the product of two scales, which LiteRT computes in float32; refused if it is beyond that."""
        require_scales(x * y, x * y)
        return x * y

    def require_shape_of_input(self, name: str) -> None:
        """Refuse an output whose shape is open because an argument is computed.

        A shape that follows from the input is known later.
        """
        if None in self.out.value.dims:
            self.array(name)

    def require_sum(self, count: int, greatest: int = 255) -> None:
        """Refuse sums of so many integers, of 8 bits or of another range, that they wrap around in LiteRT's 32 bits."""
        self.require(
            count * greatest <= MOST, f"a sum has {count} integers of up to {greatest}, must fit in LiteRT's 32 bits"
        )

    def require_room(self, shape: Shape, size: int, what: str) -> None:
        """Refuse an operation that needs much more memory inside the engine than its operands.

        shape: the shape of the held elements of `size` bytes; nothing is required while it is unknown.
        """
        known = [count for count in shape if count is not None]
        if len(known) == len(shape):
            needed, room = math.prod(known) * size, ROOM
            if needed > room:
                room = max(room, PROPORTION * self._largest())
            self.require(needed <= room, f"LiteRT would hold {needed} bytes {what}, must be at most {room}")

    def _largest(self) -> int:
        """Return the bytes of the largest operand."""
        values = [self.graph.values[i] for i in (*self.operation.inputs, *self.operation.outputs)]
        known = [v for v in values if v is not None and v.shape is not None and None not in v.shape]
        return max((math.prod(v.known) * v.dtype.itemsize for v in known), default=0)

    def requantised(self, x: EngineTensor, like: Value) -> EngineTensor:
        """Convert a quantised tensor to the scale and zero point of another; others are unchanged.

        The conversion uses real values: XNNPACK's direct one has 8 bits for the quotient of scales, and is off by up to
        0.73 LSB.
        """
        if not x.value.quantised or (x.value.scale, x.value.zero_point) == (like.scale, like.zero_point):
            return x
        self.require_alike()
        self.require_scale(x.value.scale, like)
        value = replace(x.value, scale=like.scale, zero_point=like.zero_point)
        if x.value.data is not None:
            return self.constant(encode(value, decode(x.value, x.value.array)), value=value)
        y = self.temporary(value)
        self.quantise(self.dequantised(x), y)
        return y

    def dequantised(self, x: EngineTensor) -> EngineTensor:
        """Return the real values of a quantised tensor; others are unchanged."""
        if not x.value.quantised:
            return x
        if x.value.data is not None and x.value.zero_point:  # XNNPACK folds it with one more rounding
            return self.constant(decode(x.value, x.value.array), np.float32)
        y = self.temporary(x.value, type=F32, scale=0.0, zero_point=0)
        self.emit("DEQUANTIZE", [x], y)
        return y

    def dequantised_out(self, out: EngineTensor) -> EngineTensor:
        """Return a tensor of real values that is quantised to `out` after the operation; others are unchanged."""
        if not out.value.quantised:
            return out
        y = self.temporary(out.value, type=F32, scale=0.0, zero_point=0)
        self._after.append(lambda: self.quantise(y, out))
        return y

    def quantise(self, x: EngineTensor, out: EngineTensor) -> None:
        """Write real values as the quantised `out`, flat if they have too many dimensions for XNNPACK.

        LiteRT's own kernel does not saturate values 2**31 LSB away, so they are clipped before it. XNNPACK rounds
        halves to even, the definition away from 0, so elsewhere they are moved past the half.
        """
        if self.exact:
            x = self.clipped(x, 2.0 ** math.ceil(math.log2(256 * out.value.scale)))
        else:
            y = self.temporary(x.value)
            self.emit("MUL", [x, self.constant(AWAY, np.float32)], y, "Mul")
            x = y
        if len(x.value.shape or ()) <= BEYOND_XNNPACK:
            self.emit("QUANTIZE", [x], out)
            return
        shape = (math.prod(x.value.known),)
        flat, steps = self.temporary(x.value, shape=shape), self.temporary(out.value, shape=shape)
        self.reshape(x, flat)
        self.emit("QUANTIZE", [flat], steps)
        self.reshape(steps, out)

    def clipped(self, x: EngineTensor, bound: float) -> EngineTensor:
        """Clip real values at a power of two and its negative; NaN stays.

        No digit changes, unless the value is far below.
        """
        scaled, back = self.temporary(x.value), self.temporary(x.value)
        down, up = self.constant(1 / bound, np.float32), self.constant(bound, np.float32)
        self.emit("MUL", [x, down], scaled, "Mul", fusedActivationFunction=WITHIN_1)
        self.emit("MUL", [scaled, up], back, "Mul")
        return back

    def cast(self, x: EngineTensor, type: OperandType) -> EngineTensor:
        """Convert a tensor's stored values to another type."""
        y = self.temporary(x.value, type=type, scale=0.0, zero_point=0)
        self.emit("CAST", [x], y)
        return y

    def out_of_rank(self, rank: int) -> EngineTensor:
        """Return the first output, with a rank of 0 if TFLite has that; NNAPI's shape is [1] then."""
        if rank:
            return self.out
        y = self.temporary(self.out.value, shape=())
        self._after.append(lambda: self.reshape(y, self.out))
        return y

    def image(self, name: str) -> EngineTensor:
        """Return a picture argument as NHWC."""
        return self.transposed(self.x(name), (0, 2, 3, 1)) if self.a.nchw else self.x(name)

    def image_out(self) -> EngineTensor:
        """Return the first output, to be written as NHWC."""
        return self.transposed_out((0, 3, 1, 2)) if self.a.nchw else self.out

    def recast(self, x: EngineTensor, type: OperandType) -> EngineTensor:
        """Convert an 8-bit tensor to the other asymmetric type, with the same real values, unless it has that type."""
        if x.value.type == type:
            return x
        value = with_other_signedness(x.value, type)
        if x.value.data is not None:
            data = (np.asarray(x.value.data).view(np.uint8) ^ SIGN).view(value.dtype)
            return self.constant(data, value=value)
        y = self.temporary(value)
        self.emit("QUANTIZE", [x], y)
        return y

    def recast_out(self, out: EngineTensor, type: OperandType) -> EngineTensor:
        """Return a tensor of the given 8-bit type that is converted to `out`, of the other one, after the operation."""
        if out.value.type == type:
            return out
        y = self.temporary(with_other_signedness(out.value, type))
        self._after.append(lambda: self.emit("QUANTIZE", [y], out))
        return y


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


def require_32_bits(numbers: Array) -> None:
    """Refuse integers that do not fit LiteRT's fields."""
    low, high = numbers.min(initial=0), numbers.max(initial=0)
    if low < -MOST - 1 or high > MOST:
        raise Refused(f"{high if high > MOST else low} exceeds LiteRT's 32 bits")


def with_other_signedness(value: Value, type: OperandType) -> Value:
    """Return the same real values in the other asymmetric 8-bit type."""
    shift = -SIGN if type == Q8S else SIGN
    return replace(value, type=type, zero_point=value.zero_point + shift, data=None)


def reach(value: Value) -> int:
    """Return the greatest |q - zero_point| of a quantised tensor's elements."""
    return max(abs(limit - value.zero_point) for limit in type_range(value.type))
