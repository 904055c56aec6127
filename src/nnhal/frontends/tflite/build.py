"""Turns the graph of a file into a model: tensors become operands, constants stay in the file, variables become states."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nnhal.base.codes import MAX_COPIED_CONSTANT, OperandType
from nnhal.base.errors import BadFile, InvalidModel, UnsupportedModel
from nnhal.base.operands import Array, ChannelQuant, Shape, SubgraphFacts, Value, dtype_of
from nnhal.frontends.tflite.file import File, Graph, Operator, Tensor
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import State
from nnhal.ops import OPS
from nnhal.ops.schema import bind

T = OperandType
PLAIN = {"float32": T.TENSOR_FLOAT32, "float16": T.TENSOR_FLOAT16, "int32": T.TENSOR_INT32, "bool": T.TENSOR_BOOL8}
QUANTISED = {"uint8": T.TENSOR_QUANT8_ASYMM, "int8": T.TENSOR_QUANT8_ASYMM_SIGNED, "int16": T.TENSOR_QUANT16_SYMM}
ACTIVATIONS = {0: "NONE", 1: "RELU", 2: "RELU1", 3: "RELU6"}
UNREADABLE = (IndexError, TypeError, KeyError, AttributeError, OverflowError, ValueError, struct.error)
FOLDED = (T.TENSOR_INT32, T.TENSOR_BOOL8)


class Refused(Exception):
    """Why an operator cannot be expressed in NNAPI."""


class Importer:
    """One subgraph on its way into a model builder."""

    def __init__(
        self, file: File, graph: Graph, builder: ModelBuilder, pool: int, number: int = 0, depth: int = 0
    ) -> None:
        self.file, self.graph, self.builder, self.pool = file, graph, builder, pool
        self.number, self.depth = number, depth
        self.operands: dict[int, int] = {}  # operand of each tensor
        self.values: dict[int, Value] = {}  # what is known of each operand
        self.folded: dict[int, Array] = {}  # tensors whose value is known at import
        self.handles: dict[int, str] = {}  # resource tensors: the variable they stand for
        self.variables: dict[str, int] = {}  # variables: operand that holds the present value
        self.state_inputs: dict[str, int] = {}
        self.initial: dict[str, Array] = {}
        self.written: set[int] = set()  # operands that an operation writes
        self.reshaped = False
        self.operator: Operator | None = None

    # ------------------------------------------------------------------------------------------------------- tensors

    def tensor(self, index: int) -> Tensor:
        """The file's record of a tensor."""
        return self.graph.tensors[index]

    def constant(self, index: int) -> Array | None:
        """The value of a tensor that is known at import, else None."""
        if index < 0:
            return None
        if index in self.folded:
            return self.folded[index]
        tensor = self.tensor(index)
        if tensor.region is None or tensor.variable:
            return None
        if tensor.sparsity is not None:
            from nnhal.frontends.tflite.sparse import densify

            self.folded[index] = densify(self.file, tensor)
            return self.folded[index]
        value = self.file.constant(tensor)
        if tensor.type in ("int64", "float64"):
            value = self.folded[index] = narrowed(value, tensor)
        return value

    def numbers(self, index: int, what: str) -> list[int]:
        """A constant of integers, which NNAPI wants as a number or list."""
        value = self.constant(index)
        if value is None:
            raise Refused(f"{what} is not constant")
        return [int(n) for n in value.reshape(-1)]

    def kind(self, tensor: Tensor, *, weights: bool = False) -> OperandType:
        """The operand type of a tensor."""
        if tensor.type in QUANTISED and tensor.scales:
            if len(tensor.scales) > 1:
                if tensor.type != "int8" or any(tensor.zero_points):
                    raise Refused(f"{tensor.name} has per-channel {tensor.type} with zero points")
                return T.TENSOR_QUANT8_SYMM_PER_CHANNEL
            if tensor.type == "int16" and tensor.zero_points[0]:
                raise Refused(f"{tensor.name} is int16 with a zero point of {tensor.zero_points[0]}, must be 0")
            return QUANTISED[tensor.type]
        if tensor.type in PLAIN:
            return PLAIN[tensor.type]
        raise Refused(
            f"{tensor.name} is {tensor.type}{'' if tensor.scales else ' without scale'}, which NNAPI does not have"
        )

    def x(self, index: int, *, bias: Sequence[float] | None = None) -> int:
        """The operand of an input tensor. bias: the scale that NNAPI asks of a convolution's int32 bias, [] for none."""
        if index in self.operands:
            return self.operands[index]
        tensor, value = self.tensor(index), self.constant(index)
        if value is None:
            if tensor.variable:
                return self._variable(index)
            raise BadFile(f"{self.where()}: reads tensor {index} ({tensor.name}), which nothing has written")
        if (index in self.folded and value.dtype != np.int8) or not tensor.scales:
            kind = {np.dtype(k): v for k, v in PLAIN.items()}.get(value.dtype) or self.kind(tensor)
        else:
            kind = self.kind(tensor)
        scale, zero, channel = self._quant(tensor, kind)
        if bias is not None and kind == T.TENSOR_INT32:
            scale = bias_scale(tensor, bias)
        shape = value.shape or (1,)
        operand = self._place(tensor, index, kind, value.reshape(shape), scale, zero, channel)
        self.values[operand] = Value(kind, shape, scale, zero, channel, value.reshape(shape), tensor.name)
        if bias is None:
            self.operands[index] = operand
        return operand

    def reshaped_constant(self, index: int, shape: tuple[int, ...]) -> int:
        """A constant of the file under another shape, its channels still along dimension 0."""
        tensor = self.tensor(index)
        value = self.constant(index)
        if value is None or tensor.axis:
            raise Refused("weights are not constant, or have scales along another dimension than their first")
        kind = self.kind(tensor)
        scale, zero, channel = self._quant(tensor, kind)
        operand = self._place(tensor, index, kind, value.reshape(shape), scale, zero, channel)
        self.values[operand] = Value(kind, shape, scale, zero, channel, value.reshape(shape), tensor.name)
        return operand

    def _place(self, tensor: Tensor, index: int, kind: int, value: Array, scale: float, zero: int, channel: Any) -> int:
        if not value.size:
            raise Refused(f"constant {tensor.name} has no elements")
        if index not in self.folded and tensor.region is not None and value.nbytes > MAX_COPIED_CONSTANT:
            place = self.pool, *tensor.region
            return self.builder.reference(kind, value.shape, *place, scale, zero, channel=channel, name=tensor.name)
        return self.builder.constant(kind, value, scale, zero, channel=channel, name=tensor.name)

    def _quant(self, tensor: Tensor, kind: int) -> tuple[float, int, ChannelQuant | None]:
        if kind == T.TENSOR_QUANT8_SYMM_PER_CHANNEL:
            return 0.0, 0, ChannelQuant(tensor.scales, tensor.axis)
        if kind in QUANTISED.values():
            zero = tensor.zero_points[0]
            return tensor.scales[0], zero, None
        return 0.0, 0, None

    def declare(self, index: int, shape: Shape | None = None, name: str = "") -> int:
        """A new operand for a tensor that is no constant: an input, or what an operator writes."""
        tensor = self.tensor(index)
        if index in self.operands:
            raise BadFile(f"{self.where()}: writes tensor {index} ({tensor.name}), which is already written")
        kind = self.kind(tensor)
        scale, zero, _ = self._quant(tensor, kind)
        dims = shape if shape is not None else (tensor.shape or (1,))
        if shape is None and self.reshaped:
            dims = (0,) * len(dims)
        operand = self.new(kind, dims, scale, zero, name or tensor.name)
        self.operands[index] = operand
        return operand

    def new(self, kind: int, shape: Sequence[int | None], scale: float = 0.0, zero: int = 0, name: str = "") -> int:
        """A new operand."""
        operand = self.builder.operand(kind, [d or 0 for d in shape], scale, zero, name=name)
        known = tuple(d or None for d in shape) or None
        self.values[operand] = Value(kind, known, float(np.float32(scale)), zero, None, None, name)
        return operand

    def like(self, operand: int, shape: Sequence[int | None]) -> int:
        """A new operand of the same type and quantisation."""
        value = self.values[operand]
        return self.new(value.type, shape, value.scale, value.zero_point)

    def shape(self, operand: int) -> Shape:
        """The shape of an operand as far as it is known."""
        shape = self.values[operand].shape
        if shape is None:
            raise Refused("the rank of an input is not known")
        return shape

    def known(self, operand: int) -> tuple[int, ...]:
        """The shape of an operand, every dimension of which must be known."""
        shape = self.shape(operand)
        if None in shape:
            raise Refused("a dimension of an input is not known")
        return shape  # type: ignore[return-value]

    def literal(self, value: Any, kind: OperandType) -> int:
        """A constant operand that is not in the file."""
        return self.fresh(np.asarray(value, dtype_of(kind)), kind)

    def fresh(self, array: Array, kind: int, scale: float = 0.0) -> int:
        """A constant operand of any type that is not in the file."""
        operand = self.builder.constant(kind, array, scale)
        self.values[operand] = Value(kind, array.shape, float(np.float32(scale)), data=array)
        return operand

    def int32(self, value: int) -> int:
        """A scalar INT32."""
        return self.literal(int(value), T.INT32)

    def flag(self, value: Any) -> int:
        """A scalar BOOL."""
        return self.literal(bool(value), T.BOOL)

    def ints(self, values: Sequence[int]) -> int:
        """A tensor of integers."""
        return self.literal(list(values), T.TENSOR_INT32)

    def omitted(self, kind: int) -> int:
        """An optional argument that is left out."""
        return self.builder.no_value(kind)

    def activation(self, operator: Operator) -> int:
        """The fused activation as a scalar."""
        code = operator.option("FusedActivationFunction", 0)
        if code not in ACTIVATIONS:
            raise Refused(f"fused activation {code} (TANH or SIGN_BIT) is not in NNAPI")
        return self.int32(code)

    # ----------------------------------------------------------------------------------------------------- operations

    def where(self) -> str:
        """The place in the file, for messages."""
        at = "" if self.operator is None else f" operator {self.operator.place} ({self.operator.name})"
        return f"{self.file.label}: subgraph {self.number}{at}"

    def emit(self, type: str, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Add an operation and learn the shapes of what it writes."""
        record = OPS[type]
        given = [self.values.get(i) for i in inputs]
        bound = bind(record, given, [self.values[i] for i in outputs], f"{type} for {self.where()}")
        for operand, shape in zip(outputs, bound.shapes, strict=True):
            if shape is not None:
                self.values[operand] = replace(self.values[operand], shape=shape)
            self.written.add(operand)
        self.builder.operation(type, inputs, outputs)
        constants = [v.data for v in given if v is not None]
        if (
            all(c is not None for c in constants)
            and all(self.values[o].type in FOLDED for o in outputs)
            and not record.context
        ):
            self._fold(bound, given, outputs)

    def _fold(self, bound: Any, given: Sequence[Value | None], outputs: Sequence[int]) -> None:
        """Arithmetic on constant shapes: the value is known at import, so that later arguments can be constants."""
        tensors: list[Any] = []
        for argument, start, end in bound.form.slots(len(given)):
            arrays = [None if v is None else v.data for v in given[start:end]]
            if argument.many is not None:
                tensors.append(arrays)
            elif not argument.scalar:
                tensors.append(arrays[0] if arrays else None)
        results = bound.op.kernel(bound, *tensors)
        for operand, array in zip(outputs, results if isinstance(results, tuple) else (results,), strict=False):
            self.values[operand] = replace(self.values[operand], data=np.ascontiguousarray(array))
            index = next((t for t, o in self.operands.items() if o == operand), None)
            if index is not None:
                self.folded[index] = self.values[operand].data
                del self.operands[index]

    def identity(self, operand: int, name: str = "") -> int:
        """A copy of an operand, where the same value has to be another operand."""
        value = self.values[operand]
        shape = self.known(operand)
        other = self.new(value.type, shape, value.scale, value.zero_point, name)
        self.emit("RESHAPE", [operand, self.ints(shape)], [other])
        return other

    def _variable(self, index: int) -> int:
        """A variable tensor: a state of the model."""
        tensor = self.tensor(index)
        key = f"tensor {index}"
        if key not in self.state_inputs:
            operand = self.new(
                self.kind(tensor), tensor.shape, *self._quant(tensor, self.kind(tensor))[:2], tensor.name
            )
            self.state_inputs[key] = self.variables[key] = operand
            zero = tensor.zero_points[0] if tensor.zero_points else 0
            self.initial[key] = np.full(tensor.shape, zero, np.dtype(tensor.type))
        return self.variables[key]

    def assign_variable(self, index: int, operand: int) -> None:
        """A variable tensor has another value from now on."""
        self.variables[f"tensor {index}"] = operand

    def convert(self, table: Mapping[str, Any]) -> None:
        """Convert every operator; UnsupportedModel lists all that cannot be."""
        problems: dict[str, list[int]] = {}
        for operator in self.graph.operators:
            self.operator = operator
            label = f"custom operation {operator.custom}" if operator.name == "CUSTOM" else operator.name
            try:
                if operator.name not in table:
                    raise Refused("" if operator.name == "CUSTOM" else "NNAPI has no operation for it")
                table[operator.name](self, operator)
            except Refused as error:
                problems.setdefault(f"{label}: {error}" if str(error) else label, []).append(operator.place)
                self._give_up(operator)
            except BadFile:
                raise
            except InvalidModel:
                if not problems:
                    raise
                self._give_up(operator)  # follows from what was refused before
            except UNREADABLE as error:
                raise BadFile(f"{self.where()}: cannot be read: {error}") from error
        self.operator = None
        if problems:
            listing = "; ".join(f"{what} (operator {', '.join(map(str, at))})" for what, at in problems.items())
            raise UnsupportedModel(
                f"{self.file.label}: NNAPI cannot express {len(problems)} kinds of operation: {listing}"
            )

    def _give_up(self, operator: Operator) -> None:
        """Give the outputs of an operator that is refused operands, so that the rest can be looked at."""
        for index in operator.outputs:
            tensor = self.tensor(index)
            kind = PLAIN.get(tensor.type) or QUANTISED.get(tensor.type, T.TENSOR_FLOAT32)
            scale = (tensor.scales or (1.0,))[0] if kind in QUANTISED.values() else 0.0
            zero = (tensor.zero_points or (0,))[0] if kind in QUANTISED.values() else 0
            self.operands[index] = self.new(kind, tensor.shape or (1,), scale, zero)

    def states(self, inputs: int, outputs: Sequence[int]) -> tuple[list[int], list[int], list[State]]:
        """State inputs, state outputs and the states, for variables that are read and then assigned."""
        ins: list[int] = []
        outs: list[int] = []
        states: list[State] = []
        for key, operand in self.state_inputs.items():
            final = self.variables[key]
            if final == operand or final in outputs or final in outs or final not in self.written:
                final = self.identity(final)
            states.append(State(inputs + len(ins), len(outputs) + len(outs), self.initial[key]))
            ins.append(operand)
            outs.append(final)
        return ins, outs, states

    def facts(self, index: int, inputs: Sequence[int], outputs: Sequence[int]) -> SubgraphFacts:
        """What control flow may know of this subgraph."""
        return SubgraphFacts(index, tuple(self.values[i] for i in inputs), tuple(self.values[i] for i in outputs))


def bias_scale(tensor: Tensor, scales: Sequence[float]) -> float:
    """The scale of a bias in NNAPI: input scale * filter scale, 0 where the filter's is per channel."""
    if len(scales) != 1:
        return 0.0
    wanted = float(np.float32(scales[0]))
    if tensor.scales and abs(tensor.scales[0] - wanted) > 1e-5 * wanted:
        raise Refused(
            f"bias {tensor.name} has scale {tensor.scales[0]:g}, must be input scale * filter scale = {wanted:g}"
        )
    return wanted


def narrowed(value: Array, tensor: Tensor) -> Array:
    """64-bit constants as 32-bit ones, where nothing is lost."""
    target = np.int32 if value.dtype.kind == "i" else np.float32
    with np.errstate(all="ignore"):
        result = value.astype(target)
    if not (result.astype(value.dtype) == value).all():
        raise Refused(f"constant {tensor.name} is {tensor.type} and does not fit 32 bits")
    return result
