"""A TFLite model made in memory: tensors, operators, and constants that lie behind the flatbuffer proper.

Constants never pass through the flatbuffer builder: a buffer states where its bytes lie from the start of the model
(`Buffer.offset` and `size` of the TFLite schema). Where many lie in one pool they are not copied at all, see `content`.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from nnhal.base.errors import DeviceUnavailable
from nnhal.base.memory import aligned
from nnhal.base.operands import Array, Shape
from nnhal.drivers.litert.content import Content, joined

IDENTIFIER = b"TFL3"
VERSION = 3
_ROOM = 4096  # for the flatbuffer proper: at least, for each tensor, scale and operator
_ROOM_TENSOR, _ROOM_SCALE, _ROOM_OPERATOR = 256, 12, 256


@cache
def schema() -> Any:
    """The generated classes of the TFLite schema; DeviceUnavailable where LiteRT is not installed."""
    try:
        from ai_edge_litert import schema_py_generated  # noqa: TID251
    except ImportError as error:
        raise unavailable(error) from error
    return schema_py_generated


def unavailable(error: ImportError) -> DeviceUnavailable:
    """The error for an engine that cannot be imported."""
    return DeviceUnavailable(
        f"litert: ai_edge_litert is not there ({error}), install it with: pip install 'nnhal[litert]'"
    )


class FlatbufferWriter:
    """One model with one subgraph, written tensor by tensor and operator by operator."""

    def __init__(self) -> None:
        self._schema = schema()
        self._tensors: list[Any] = []
        self._operators: list[Any] = []
        self._codes: dict[str, int] = {}
        self._data: list[Array] = []
        self._room = _ROOM  # bytes that the flatbuffer proper will hardly exceed

    def tensor(
        self,
        kind: str,
        shape: Shape | None,
        scales: Sequence[float] = (),
        zero_point: int = 0,
        axis: int = 0,
        *,
        data: Array | None = None,
        variable: bool = False,
        name: str = "",
    ) -> int:
        """Add a tensor; returns its index.

        kind: a name of TensorType. scales: one, or one for each entry of dimension `axis`; none where not quantised.
        data: its bytes where it is constant; they are read when the model is finished, and not kept.
        """
        tensor = self._schema.TensorT()
        tensor.type = getattr(self._schema.TensorType, kind)
        tensor.shape = np.array([d or 0 for d in shape or ()], np.int32)
        tensor.name = name or None
        tensor.isVariable = variable
        self._room += _ROOM_TENSOR + len(name) + _ROOM_SCALE * len(scales)
        if len(scales):
            tensor.quantization = self._schema.QuantizationParametersT()
            tensor.quantization.scale = np.asarray(scales, np.float32)
            tensor.quantization.zeroPoint = np.full(len(scales), zero_point, np.int64)
            tensor.quantization.quantizedDimension = axis
        if data is not None:
            self._data.append(np.ascontiguousarray(data).reshape(-1).view(np.uint8))
            tensor.buffer = len(self._data)  # buffer 0 is the empty one
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def operator(
        self, kind: str, inputs: Sequence[int], outputs: Sequence[int], options: str = "", **fields: Any
    ) -> None:
        """Add an operator. kind: a name of BuiltinOperator; an input of -1 is omitted.

        options: the name of its options table without `Options`; fields: what is set in it, by the schema's names.
        """
        operator = self._schema.OperatorT()
        operator.opcodeIndex = self._codes.setdefault(kind, len(self._codes))
        operator.inputs = np.array(inputs, np.int32)
        operator.outputs = np.array(outputs, np.int32)
        if options:
            operator.builtinOptionsType = getattr(self._schema.BuiltinOptions, f"{options}Options")
            operator.builtinOptions = table = getattr(self._schema, f"{options}OptionsT")()
            for field, value in fields.items():
                if not hasattr(table, field):
                    raise AttributeError(f"{options}Options has no field {field}")
                setattr(table, field, value)
        self._room += _ROOM_OPERATOR
        self._operators.append(operator)

    def finish(self, inputs: Sequence[int], outputs: Sequence[int]) -> Content:
        """The whole model. Constants lie behind the flatbuffer; where they begin has to be known to write it."""
        room = aligned(self._room)
        while True:
            content, offsets = joined(room, self._data)
            head = self._pack(inputs, outputs, offsets)
            if len(head) <= room:
                content.write(0, head)
                return content
            room = aligned(len(head))

    def _pack(self, inputs: Sequence[int], outputs: Sequence[int], offsets: Sequence[int]) -> bytes:
        from flatbuffers import Builder

        s = self._schema
        graph = s.SubGraphT()
        graph.tensors, graph.operators = self._tensors, self._operators
        graph.inputs, graph.outputs = np.array(inputs, np.int32), np.array(outputs, np.int32)
        model = s.ModelT()
        model.version, model.subgraphs = VERSION, [graph]
        model.operatorCodes = [self._code(kind) for kind in self._codes]
        model.buffers = [s.BufferT()]
        for data, offset in zip(self._data, offsets, strict=True):
            buffer = s.BufferT()
            buffer.offset, buffer.size = offset, data.nbytes
            model.buffers.append(buffer)
        builder = Builder(_ROOM)
        builder.Finish(model.Pack(builder), IDENTIFIER)
        return bytes(builder.Output())

    def _code(self, kind: str) -> Any:
        code = self._schema.OperatorCodeT()
        code.builtinCode = getattr(self._schema.BuiltinOperator, kind)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version = 1
        return code
