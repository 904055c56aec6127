"""The ONNX graph under construction: the tensor of each operand.

Inside the graph float16 is float32, and both asymmetric 8-bit types are uint8: the signed one has its sign bit
inverted, and a zero point that is greater by 128.
"""

from typing import Any, NamedTuple

import numpy as np

from nnhal.base.codes import Lifetime, OperandType, type_name
from nnhal.base.operands import Array, Value, fixed
from nnhal.drivers.kit import Refused
from nnhal.drivers.kit.onnx.nodes import EXTERNAL, NodeFacts
from nnhal.drivers.kit.onnx.primitives import OnnxPrimitives
from nnhal.model.dynamic_quantisation import DynamicQuantisation
from nnhal.model.graph import CONSTANTS, Model, describe
from nnhal.model.validate import validate
from nnhal.ops.schema import B8, F16, F32, I32, Q8, Q8PC, Q8S, Q8SYMM

OPSET, IR = 18, 9
SIGN = np.uint8(128)
NUMBERS = {"f4": 1, "u1": 2, "i1": 3, "i4": 6, "i8": 7, "b1": 9, "f2": 10, "f8": 11}  # ONNX's numbers of element types
HALVES = frozenset((F16, OperandType.FLOAT16))
KNOWN = HALVES | {F32, I32, Q8, Q8S, B8, Q8SYMM, Q8PC, OperandType.FLOAT32, OperandType.INT32, OperandType.BOOL}
FAR = (
    2.0**24
)  # the farthest from 1 that scales may be: beyond, products leave float32, and the engine loses an activation's bounds
AWAY = 1 + 2.0**-22  # factor for halves of a quantisation step: ONNX rounds them to even, the definition away from 0


class BuiltGraph(NamedTuple):
    """An ONNX model, and its relation to the NNAPI model.

    inputs: number, name, type and shape of those that are read. arrays: constants that the model only names.
    """

    model: bytes
    inputs: tuple[tuple[int, str, Any, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, Any, tuple[int, ...]], ...]
    arrays: dict[str, Array]


class OnnxGraph:
    """The main subgraph of a model under conversion to ONNX."""

    def __init__(self, model: Model) -> None:
        self.model, self.values = model, list(validate(model).subgraphs[0].values)
        self.engine = OnnxPrimitives()
        self.constant = self.engine.constant
        self._names: dict[int, str] = {}
        self._inputs: dict[int, str] = {}
        self._folded: dict[int, Array] = {}
        # tensors, by name: the tensor and the bounds of which each is the clipped one
        self.within: dict[str, tuple[str, float, float]] = {}
        # dynamically quantised tensors: the integers and the zero point, as uint8
        self.dynamic: dict[DynamicQuantisation, tuple[str, str]] = {}

    def value(self, index: int) -> Value:
        return require_known(self.values[index])

    def held(self, index: int) -> str:
        """Return the tensor of an operand, in the engine's type."""
        if index not in self._names:
            self._names[index] = self._given(index)
        return self._names[index]

    def hold(self, index: int, name: str) -> None:
        """Let this tensor represent the operand."""
        require_known(self.values[index])
        self._names[index] = name

    def fold(self, index: int, data: Array) -> None:
        """Give the operand known real values."""
        self._folded[index] = data
        self.hold(index, self.constant(data))

    def known(self, index: int) -> Array | None:
        """Return the stored elements of an operand, float16 as float32; None if they are known only at execution."""
        value = self.values[index]
        if value is None or value.data is None:
            return self._folded.get(index)
        return np.asarray(value.data, np.float32 if value.type in HALVES else None)

    def _given(self, index: int) -> str:
        value, operand = require_known(self.values[index]), self.model.main.operands[index]
        if operand.lifetime in CONSTANTS:
            return self.constant(engine_data(value, self.model.constant(operand)))
        if operand.lifetime != Lifetime.SUBGRAPH_INPUT:
            return f"refused {index}"  # its maker was refused, so this graph is never finished
        self._inputs[index] = f"in {index}"
        self.engine.dtypes[f"in {index}"] = edge_dtype(value)
        return self._crossing(value, self._inputs[index], np.float32)

    def _crossing(self, value: Value, name: str, half_to: Any) -> str:
        """Convert a tensor between the types inside the graph and those of its ends."""
        if value.type in HALVES:
            return self.engine.node("Cast", name, to=np.dtype(half_to))
        return self.engine.node("BitwiseXor", name, SIGN) if value.type == Q8S else name

    def real(self, index: int, unit: float | None = None) -> str:
        """Return the real values of an operand, in float32; a quantised one may have another unit than its scale."""
        value, name = require_known(self.values[index]), self.held(index)
        if not value.quantised:
            return name
        zero, how = np.array(zero_point(value), engine_dtype(value)), {}
        if value.channel is None or unit is not None:
            scale = np.array(value.scale if unit is None else unit, np.float32)
        else:
            scale, how = np.array(value.channel.scales, np.float32), {"axis": value.channel.axis}
            zero = np.full(scale.shape, zero)
        shared = self.engine.shared  # operands of one tensor may differ in scale and zero point
        key = ("real", name, scale.tobytes(), zero.tobytes(), *how.values())
        if key not in shared:
            shared[key] = self.engine.node("DequantizeLinear", name, scale, zero, **how)
            if unit is None and value.data is not None:
                self.engine.decoded[shared[key]] = value
        return shared[key]

    def steps(self, index: int) -> str:
        """Return the distance from the zero point, in float32; real values if the operand is not quantised."""
        return self.real(index, 1.0)

    def finish(self) -> BuiltGraph:
        """Return the model, all of whose shapes are known by now."""
        from onnx import helper

        main = self.model.main
        ends: list[tuple[str, Any, tuple[int, ...]]] = []
        for number, index in enumerate(main.outputs):
            value, name = require_known(self.values[index]), self.held(index)
            shape = fixed(value.shape)
            if shape is None:
                what = describe(self.model, main, index)
                raise Refused(f"the shape of output {what} is known only at execution, must be before")
            self.engine.written.append(("Identity", [self._crossing(value, name, np.float16)], [f"out {number}"], {}))
            ends.append((f"out {number}", edge_dtype(value), shape))
        nodes, needed = self._needed([name for name, *_ in ends])
        read = [(index, name) for index, name in self._inputs.items() if name in needed]
        given = [(index, name, require_known(self.values[index])) for index, name in read]
        starts = [(main.inputs.index(index), name, edge_dtype(value), value.known) for index, name, value in given]
        infos = [
            [helper.make_tensor_value_info(name, number_of(dtype), shape) for *_, name, dtype, shape in some]
            for some in (starts, ends)
        ]
        protos = [helper.make_node(kind, ins, outs, **as_attributes(how)) for kind, ins, outs, how in nodes]
        arrays = {name: array for name, array in self.engine.arrays.items() if name in needed}
        weights = [tensor_proto(name, array) for name, array in arrays.items()]
        graph = helper.make_graph(protos, "nnhal", *infos, weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
        large = {name: array for name, array in arrays.items() if external(array)}
        return BuiltGraph(model.SerializeToString(), tuple(starts), tuple(ends), large)

    def _needed(self, ends: list[str]) -> tuple[list[NodeFacts], set[str]]:
        """Return the nodes that the ends need, and the names of all their tensors."""
        needed, nodes = set(ends), []
        for node in reversed(self.engine.written):
            if not needed.isdisjoint(node[2]):
                needed.update(node[1], node[2])
                nodes.append(node)
        return self._alone(nodes[::-1]), needed

    def _alone(self, nodes: list[NodeFacts]) -> list[NodeFacts]:
        """Give each reader of real values its own DequantizeLinear.

        If several readers share one, and ONNX Runtime moves a Transpose for one of them, it forgets the others.
        """
        decoding = {n[2][0]: n for n in nodes if n[0] == "DequantizeLinear" and n[1][0] not in self.engine.arrays}
        read: set[str] = set()
        found: list[NodeFacts] = []
        for kind, inputs, outputs, how in nodes:
            names = list(inputs)
            for place, name in enumerate(inputs):
                if name in read and name in decoding:
                    names[place] = f"{name} for {outputs[0]} {place}"
                    found.append((*decoding[name][:2], [names[place]], decoding[name][3]))
                read.add(name)
            found.append((kind, names, outputs, how))
        return found


def as_attributes(how: dict[str, Any]) -> dict[str, Any]:
    """Return attributes as ONNX has them: a type of elements is a number."""
    return {name: number_of(value) if name == "to" else value for name, value in how.items()}


def external(array: Array) -> bool:
    """Whether a constant stays in its memory; shape inference must see sizes and indices."""
    return array.nbytes >= EXTERNAL and array.dtype != np.int64


def tensor_proto(name: str, array: Array) -> Any:
    """Return a constant; a large one is declared external, and is passed to the session."""
    from onnx import TensorProto

    proto = TensorProto(name=name, data_type=number_of(array.dtype), dims=array.shape)
    if not external(array):
        proto.raw_data = array.tobytes()
    else:
        proto.data_location = TensorProto.EXTERNAL
        for key, text in (("location", "memory"), ("offset", "0"), ("length", str(array.nbytes))):
            proto.external_data.add(key=key, value=text)
    return proto


def require_known(value: Value | None) -> Value:
    """Refuse operands without a value, types without a tensor in ONNX Runtime, and scales that float32 cannot multiply."""
    if value is None:
        raise Refused("an operand has no value")
    if value.type not in KNOWN:
        raise Refused(f"ONNX Runtime's graph has no tensors of {type_name(value.type)}")
    scales = np.array(value.channel.scales if value.channel else value.scale if value.quantised else 1.0)
    if not scales.min(initial=1) >= 1 / FAR or not scales.max(initial=1) <= FAR:
        raise Refused(f"scales are {scales.min():g} to {scales.max():g}, must be from {1 / FAR:g} to {FAR:g}")
    return value


def engine_data(value: Value, data: Array) -> Array:
    """Return stored elements in the engine's type."""
    return data.view(np.uint8) ^ SIGN if value.type == Q8S else data.astype(engine_dtype(value), copy=False)


def engine_dtype(value: Value) -> Any:
    """Return the element type of a tensor inside the graph."""
    return np.dtype(np.float32) if value.type in HALVES else edge_dtype(value)


def edge_dtype(value: Value) -> Any:
    """Return the element type at the model's ends."""
    return np.dtype(np.uint8) if value.type == Q8S else value.dtype


def zero_point(value: Value) -> int:
    """Return the zero point in the engine's type."""
    return value.zero_point + int(SIGN) * (value.type == Q8S)


def number_of(dtype: Any) -> int:
    """Return ONNX's number of an element type."""
    return NUMBERS[np.dtype(dtype).str[1:]]
