"""The ONNX graph in the making: which tensor stands for which operand, and what an entry of the table works with.

Between the model's ends float16 is float32, and both asymmetric 8-bit types are uint8: the signed one has its sign bit
turned round, and a zero point that is greater by 128.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.codes import Activation, Lifetime, OperandType, type_name
from nnhal.base.operands import Array, Shape, Value, fixed
from nnhal.drivers.kit import LoweringTable, LoweringTask, Refused, bounds
from nnhal.model.graph import CONSTANTS, Model, Operation, describe
from nnhal.model.validate import validate
from nnhal.ops.common import ACTIVATION_RANGE
from nnhal.ops.schema import B8, F16, F32, I32, Q8, Q8PC, Q8S, Q8SYMM, Bound

SIGN = 128
OPSET, IR = 18, 9
FLOAT, UINT8, INT8, INT32, INT64, BOOL, HALF, DOUBLE = 1, 2, 3, 6, 7, 9, 10, 11  # as ONNX numbers them
ONNX_TYPES = {"f4": FLOAT, "u1": UINT8, "i1": INT8, "i4": INT32, "i8": INT64, "b1": BOOL, "f2": HALF, "f8": DOUBLE}
FLOATS, QUANTS = frozenset((F32, F16)), frozenset((Q8, Q8S))
HALVES = (F16, OperandType.FLOAT16)
SCALARS = {OperandType.FLOAT32, OperandType.FLOAT16, OperandType.INT32, OperandType.BOOL}
KNOWN = FLOATS | QUANTS | SCALARS | {I32, B8, Q8SYMM, Q8PC}
FAR = 2.0**50  # how far from 1 scales may be: products of two are within float32
EXTERNAL = 512  # bytes from which a constant stays where it is


class Built(NamedTuple):
    """An ONNX model and how it meets the NNAPI model. inputs: number and name of those that are read; arrays: constants."""

    model: bytes
    inputs: tuple[tuple[int, str, Any, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, Any, tuple[int, ...]], ...]
    arrays: dict[str, Array]


class OnnxGraph:
    """The main subgraph of a model on its way to ONNX."""

    def __init__(self, model: Model) -> None:
        self.model, self.values = model, validate(model).subgraphs[0].values
        self.nodes: list[tuple[str, Sequence[str], list[str], dict[str, Any]]] = []
        self.arrays: dict[str, Array] = {}
        self._names: dict[int, str] = {}
        self._same: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._real: dict[tuple[str, float], str] = {}
        self._inputs: dict[int, str] = {}

    def nodes_of(self, kind: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        """A node; the names of its outputs."""
        outputs = [f"{kind} {len(self.nodes)}.{n}" for n in range(count)]
        self.nodes.append((kind, inputs, outputs, attributes))
        return outputs

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node of one output; its name."""
        return self.nodes_of(kind, inputs, 1, **attributes)[0]

    def constant(self, data: Any, dtype: Any = np.float32) -> str:
        """A constant tensor; equal small ones are one. dtype: None for that of the data."""
        array = np.asarray(data, dtype)
        key = (array.dtype.str, array.shape, array.tobytes()) if array.nbytes < EXTERNAL else None
        name = self._same.get(key) if key else None
        if name is None:
            name = f"constant {len(self.arrays)}"
            self.arrays[name] = array
            if key:
                self._same[key] = name
        return name

    def operand(self, index: int) -> str:
        """The tensor of an operand, in the engine's type."""
        if index not in self._names:
            self._names[index] = self._given(index)
        return self._names[index]

    def put(self, index: int, name: str) -> None:
        """This tensor stands for the operand."""
        value = self.values[index]
        if value is not None:
            require_known(value)
        self._names[index] = name

    def _given(self, index: int) -> str:
        value, operand = self.values[index], self.model.main.operands[index]
        if value is None:
            raise Refused("a value is omitted")
        require_known(value)
        if operand.lifetime in CONSTANTS:
            return self.constant(engine_data(value, self.model.constant(operand)), None)
        if operand.lifetime != Lifetime.SUBGRAPH_INPUT:
            return f"refused {index}"  # what gives it was refused: nobody finishes this graph
        name = self._inputs[index] = f"in {index}"
        return self._edge(value, name, FLOAT)

    def _edge(self, value: Value, name: str, half_to: int) -> str:
        """A tensor as the other side of the model's edge has it."""
        if value.type in HALVES:
            return self.node("Cast", name, to=half_to)
        if value.type == Q8S:
            return self.node("BitwiseXor", name, self.constant(SIGN, np.uint8))
        return name

    def real(self, name: str, value: Value, unit: float) -> str:
        """A tensor's elements in float32: times `unit` and less the zero point where they are quantised."""
        if not value.quantised:
            return name
        if (name, unit) not in self._real:
            scale = self.constant(np.asarray(value.channel.scales) / value.scale if value.channel and unit != 1 else unit)
            zero = self.constant(zero_point(value), engine_dtype(value))
            self._real[name, unit] = self.node("DequantizeLinear", name, scale, zero)
        return self._real[name, unit]

    def finish(self) -> Built:
        """The model, of which all shapes are known by now."""
        from onnx import helper  # noqa: TID251

        main, ends = self.model.main, []
        for number, index in enumerate(main.outputs):
            value, name = self.values[index], self.operand(index)
            shape = None if value is None else fixed(value.shape)
            if value is None or shape is None:
                what = describe(self.model, main, index)
                raise Refused(f"the shape of output {what} is known only at execution, must be before")
            self.nodes.append(("Identity", [self._edge(value, name, HALF)], [f"out {number}"], {}))
            ends.append((f"out {number}", edge_dtype(value), shape))
        starts = []
        for index, name in self._inputs.items():
            value = self.values[index]
            assert value is not None
            starts.append((main.inputs.index(index), name, edge_dtype(value), value.known))

        def infos(some: Any) -> list[Any]:
            return [helper.make_tensor_value_info(name, onnx_type(dtype), shape) for *_, name, dtype, shape in some]

        nodes = [helper.make_node(kind, ins, outs, **how) for kind, ins, outs, how in self.nodes]
        weights = [tensor_proto(name, array) for name, array in self.arrays.items()]
        graph = helper.make_graph(nodes, "nnhal", infos(starts), infos(ends), weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
        large = {name: array for name, array in self.arrays.items() if array.nbytes >= EXTERNAL}
        return Built(model.SerializeToString(), tuple(starts), tuple(ends), large)


def tensor_proto(name: str, array: Array) -> Any:
    """A constant; a large one is said to lie elsewhere, and is given to the session."""
    import onnx  # noqa: TID251

    proto = onnx.TensorProto(name=name, data_type=onnx_type(array.dtype), dims=array.shape)
    if array.nbytes < EXTERNAL:
        proto.raw_data = array.tobytes()
    else:
        proto.data_location = onnx.TensorProto.EXTERNAL
        for key, text in (("location", "memory"), ("offset", "0"), ("length", str(array.nbytes))):
            proto.external_data.add(key=key, value=text)
    return proto


def require_known(value: Value) -> None:
    """Refuse types that have no tensor here, and scales that float32 cannot multiply."""
    if value.type not in KNOWN:
        raise Refused(f"ONNX Runtime's graph has no tensors of {type_name(value.type)}")
    scales = np.array(value.channel.scales if value.channel else value.scale if value.quantised else 1.0)
    if scales.min(initial=1) < 1 / FAR or scales.max(initial=1) > FAR:
        raise Refused(f"has scales of {scales.min():g} to {scales.max():g}, must be from {1 / FAR:g} to {FAR:g}")


def engine_data(value: Value, data: Array) -> Array:
    """Stored elements in the engine's type."""
    if value.type in HALVES:
        return data.astype(np.float32)
    return data.view(np.uint8) ^ np.uint8(SIGN) if value.type == Q8S else data


def engine_dtype(value: Value) -> Any:
    """The element type of a tensor between the model's ends."""
    return np.dtype(np.float32) if value.type in HALVES else edge_dtype(value)


def edge_dtype(value: Value) -> Any:
    """The element type at the model's ends."""
    return np.dtype(np.uint8) if value.type == Q8S else value.dtype


def zero_point(value: Value) -> int:
    """The zero point in the engine's type."""
    return value.zero_point + SIGN * (value.type == Q8S)


def onnx_type(dtype: Any) -> int:
    """ONNX's number of an element type."""
    return ONNX_TYPES[np.dtype(dtype).str[1:]]


class OnnxTask(LoweringTask):
    """One operation to lower: its tensors by the arguments' names, and nodes to write."""

    def __init__(self, graph: OnnxGraph, a: Bound, operation: Operation) -> None:
        super().__init__(a, operation)
        self.graph, self.node, self.constant = graph, graph.node, graph.constant
        self.steps_of = 1  # in time

    def x(self, name: str) -> str:
        """The tensor of an argument as it is stored."""
        return self.graph.operand(self.place(name))

    def maybe(self, name: str) -> str | None:
        """The same; None where it is omitted."""
        return self.x(name) if self.a.form_has(name) and self.places(name) else None

    def real(self, name: str) -> str:
        """The real values of an argument, in float32."""
        value = getattr(self.a, name)
        return self.graph.real(self.x(name), value, value.scale)

    def steps(self, name: str) -> str:
        """Steps from the zero point, in float32; real values of what is not quantised."""
        return self.graph.real(self.x(name), getattr(self.a, name), 1.0)

    def shape(self, sizes: Sequence[int | None]) -> str:
        """A shape, of which one dimension may be open."""
        open_ones = [-1 if n is None else n for n in sizes]
        if open_ones.count(-1) > 1:
            self.require_known_sizes(sizes)
        return self.constant(open_ones, np.int64)

    def require_known_sizes(self, sizes: Shape | Sequence[int | None]) -> None:
        """Unknown where a dimension is open."""
        _ = Value(F32, tuple(sizes)).known

    def reshaped(self, x: str, sizes: Sequence[int | None]) -> str:
        """A tensor in another shape."""
        return self.node("Reshape", x, self.shape(sizes))

    def made(self, number: int = 0) -> Value:
        """An output with the shape that it turns out to have."""
        return replace(self.a.outs[number], shape=self.a.shapes[number])

    def ints(self, *numbers: int) -> str:
        """Whole numbers as nodes take them."""
        return self.constant(numbers, np.int64)

    def put(self, y: str, number: int = 0) -> None:
        """An output as it is stored."""
        self.graph.put(self.operation.outputs[number], y)

    def give(self, y: str, within: tuple[float, float] | None = None, number: int = 0) -> None:
        """An output by its real values, after its activation."""
        low, high = within or bounds(self.a)
        if (low, high) == ACTIVATION_RANGE[Activation.RELU]:
            y = self.node("Relu", y)
        elif (low, high) != ACTIVATION_RANGE[Activation.NONE]:
            y = self.node("Clip", y, self.constant(low), self.constant(high))
        value = self.a.outs[number]
        if value.quantised:
            require_known(value)
            zero = self.constant(zero_point(value), np.uint8)
            y = self.node("QuantizeLinear", y, self.constant(value.scale), zero)
        self.put(y, number)

    def image(self, x: str) -> str:
        """A picture with its channels first."""
        return x if self.a.nchw else self.node("Transpose", x, perm=(0, 3, 1, 2))

    def as_given(self, y: str) -> str:
        """The same as the operation's layout has it."""
        return y if self.a.nchw else self.node("Transpose", y, perm=(0, 2, 3, 1))


TABLE: LoweringTable[OnnxTask] = LoweringTable(
    "ONNX Runtime",
    FLOATS | QUANTS,
    {"IF": "branches stay with the runtime", "WHILE": "ONNX Runtime cannot end a loop at its time-out"},
)
entry = TABLE.entry
