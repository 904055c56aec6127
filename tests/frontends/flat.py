"""Writes small `.tflite` files for tests, with the published schema's object interface."""

from collections.abc import Callable
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema  # noqa: TID251

KINDS = {"f4": "FLOAT32", "f2": "FLOAT16", "i4": "INT32", "i8": "INT64", "u1": "UINT8", "i1": "INT8", "b1": "BOOL"}


class Writer:
    """One subgraph; tensors and operators are added, `bytes` packs them."""

    def __init__(self) -> None:
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.buffers = [self._buffer(None)]
        self.model.operatorCodes = []
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.operators = [], []
        self.model.subgraphs = [self.graph]

    def _buffer(self, data: bytes | None) -> Any:
        buffer = schema.BufferT()
        buffer.data = None if data is None else np.frombuffer(data, np.uint8)
        return buffer

    def tensor(
        self, shape: list[int], kind: str = "f4", data: Any = None, scale: Any = None, zero: Any = 0, **more: Any
    ) -> int:
        """A tensor; constant where `data` is given. scale: a number, or a list for per-channel (along `axis`)."""
        tensor = schema.TensorT()
        tensor.name, tensor.shape = f"t{len(self.graph.tensors)}", shape
        tensor.type = getattr(schema.TensorType, KINDS[kind])
        tensor.buffer = 0
        if data is not None:
            self.model.buffers.append(self._buffer(np.asarray(data, np.dtype(kind)).tobytes()))
            tensor.buffer = len(self.model.buffers) - 1
        if scale is not None:
            quant = schema.QuantizationParametersT()
            quant.scale = np.atleast_1d(np.asarray(scale, np.float32))
            quant.zeroPoint = np.broadcast_to(np.asarray(zero, np.int64), quant.scale.shape).copy()
            quant.quantizedDimension = more.pop("axis", 0)
            tensor.quantization = quant
        for name, value in more.items():
            setattr(tensor, name, value)
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def operator(self, name: str, inputs: list[int], outputs: list[int], options: str = "", **fields: Any) -> None:
        """An operator; `fields` are its options' fields. A name that is no builtin is a custom operation."""
        code = schema.OperatorCodeT()
        builtin = getattr(schema.BuiltinOperator, name, None)
        code.builtinCode = schema.BuiltinOperator.CUSTOM if builtin is None else builtin
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.customCode = name if builtin is None else None
        self.model.operatorCodes.append(code)
        operator = schema.OperatorT()
        operator.opcodeIndex = len(self.model.operatorCodes) - 1
        operator.inputs, operator.outputs = inputs, outputs
        if options:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, f"{options}Options")
            operator.builtinOptions = getattr(schema, f"{options}OptionsT")()
            for field, value in fields.items():
                setattr(operator.builtinOptions, field, value)
        self.graph.operators.append(operator)

    def subgraph(self) -> "Writer":
        """A writer for another subgraph of the same file; end it with `close`."""
        other = Writer.__new__(Writer)
        other.model, other.graph = self.model, schema.SubGraphT()
        other.graph.tensors, other.graph.operators = [], []
        self.model.subgraphs.append(other.graph)
        return other

    def close(self, inputs: list[int], outputs: list[int]) -> int:
        """End a subgraph; its number."""
        self.graph.inputs, self.graph.outputs = inputs, outputs
        return next(n for n, graph in enumerate(self.model.subgraphs) if graph is self.graph)

    def signature(self, key: str, inputs: dict[str, int], outputs: dict[str, int], graph: int = 0) -> None:
        """An entry point."""
        found = schema.SignatureDefT()
        found.signatureKey, found.subgraphIndex = key, graph
        found.inputs, found.outputs = ([self._map(n, t) for n, t in names.items()] for names in (inputs, outputs))
        self.model.signatureDefs = [*(self.model.signatureDefs or []), found]

    @staticmethod
    def _map(name: str, tensor: int) -> Any:
        entry = schema.TensorMapT()
        entry.name, entry.tensorIndex = name, tensor
        return entry

    def bytes(self, inputs: list[int], outputs: list[int], change: Callable[[Any], None] = lambda model: None) -> bytes:
        """The file; `change` may spoil the model before it is packed."""
        self.graph.inputs, self.graph.outputs = inputs, outputs
        change(self.model)
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())
