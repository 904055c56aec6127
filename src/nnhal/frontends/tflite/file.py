"""Reads a `.tflite` file into plain records, trusting nothing in it: every count, index and offset is checked."""

import math
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnhal.base.errors import BadFile
from nnhal.base.memory import Memory
from nnhal.base.operands import Array

IDENTIFIER = b"TFL3"
MAX_RANK = 8
TYPES = {
    0: "float32", 1: "float16", 2: "int32", 3: "uint8", 4: "int64", 5: "string", 6: "bool", 7: "int16", 8: "complex64",
    9: "int8", 10: "float64", 11: "complex128", 12: "uint64", 13: "resource", 14: "variant", 15: "uint32", 16: "uint16",
    17: "int4",
}  # fmt: skip
NUMPY = frozenset(
    ("float32", "float16", "int32", "uint8", "int64", "bool", "int16", "int8", "float64", "uint32", "uint16")
)
WRONG = (struct.error, IndexError, ValueError, TypeError, OverflowError, UnicodeDecodeError, KeyError, AttributeError)


@dataclass(frozen=True)
class Tensor:
    """One tensor. shape: as the file has it; signature: the same with -1 for dimensions that may change."""

    name: str
    type: str
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    region: tuple[int, int] | None  # offset and bytes of a constant in the file
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int
    variable: bool
    sparsity: Any


@dataclass(frozen=True)
class Operator:
    """One operator: its name, custom code, tensors (-1: omitted), and how to read an option."""

    place: int
    name: str
    custom: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any

    def option(self, name: str, default: Any = None) -> Any:
        """An option by its schema name, `default` where the operator has none."""
        return default if self.options is None else getattr(self.options, name)()


@dataclass(frozen=True)
class Graph:
    """One subgraph."""

    name: str
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Signature:
    """An entry point: names for inputs and outputs of a subgraph, as tensor indices."""

    key: str
    graph: int
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class File:
    """A whole file and the memory that holds it."""

    label: str
    memory: Memory
    graphs: tuple[Graph, ...]
    signatures: tuple[Signature, ...]

    def constant(self, tensor: Tensor) -> Array:
        """The value of a constant tensor over the file's own memory."""
        assert tensor.region is not None
        offset, length = tensor.region
        return self.memory.view(offset, length, np.dtype(tensor.type)).reshape(tensor.shape)


class Reader:
    """Reads one file; `place` is where it is, for messages."""

    def __init__(self, label: str, memory: Memory) -> None:
        self.label, self.memory, self.place = label, memory, "header"
        self.data = memory.bytes()
        self.size = memory.size

    def fail(self, message: str) -> BadFile:
        """The error for what was found at the present place."""
        return BadFile(f"{self.label}: {self.place}: {message}")

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Name the place; what goes wrong in it is an error of the file."""
        before, self.place = self.place, place
        try:
            yield
        except BadFile:
            raise
        except WRONG as error:
            raise self.fail(
                f"cannot be read ({error}), must follow the TFLite schema within {self.size} bytes"
            ) from error
        self.place = before

    def count(self, length: int, what: str) -> range:
        """The indices of a vector, whose length the file states."""
        if not 0 <= length * 4 <= self.size:
            raise self.fail(f"has {length} {what}, must fit the file's {self.size} bytes")
        return range(length)

    def read(self) -> File:
        """The whole file."""
        import tflite

        if self.size < 8:
            raise self.fail(f"has {self.size} bytes, must have at least 8")
        root = int.from_bytes(self.data[:4].tobytes(), "little")
        if root + 4 > self.size:
            raise self.fail(f"root offset is {root}, must lie within the file's {self.size} bytes")
        if self.data[4:8].tobytes() != IDENTIFIER:
            raise self.fail(f"identifier is {self.data[4:8].tobytes()!r}, must be {IDENTIFIER!r}")
        with self.at("model"):
            model = tflite.Model.GetRootAs(self.data, 0)
            codes = [
                self._code(model.OperatorCodes(i)) for i in self.count(model.OperatorCodesLength(), "operator codes")
            ]
            buffers = [self._buffer(model, i) for i in self.count(model.BuffersLength(), "buffers")]
            numbers = self.count(model.SubgraphsLength(), "subgraphs")
        if not numbers:
            raise self.fail("has no subgraphs, must have at least one")
        graphs = tuple(self._graph(model, i, codes, buffers) for i in numbers)
        with self.at("signatures"):
            signatures = [
                self._signature(model.SignatureDefs(i), graphs)
                for i in self.count(model.SignatureDefsLength(), "signatures")
            ]
        return File(self.label, self.memory, graphs, tuple(signatures))

    def _code(self, code: Any) -> tuple[str, str]:
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        custom = (code.CustomCode() or b"").decode(errors="replace")
        return _operator_names().get(number, f"operator {number}"), custom

    def _buffer(self, model: Any, index: int) -> tuple[int, int] | None:
        with self.at(f"buffer {index}"):
            buffer = model.Buffers(index)
            field = buffer._tab.Offset(4)
            start, length = (buffer._tab.Vector(field), buffer.DataLength()) if field else (0, 0)
            if getattr(buffer, "Offset", lambda: 0)() > 1:
                start, length = buffer.Offset(), buffer.Size()
            if start + length > self.size:
                raise self.fail(f"lies at bytes {start} to {start + length}, must lie within the file's {self.size}")
        return (start, length) if length else None

    def _graph(self, model: Any, index: int, codes: list[tuple[str, str]], buffers: list[Any]) -> Graph:
        label = f"subgraph {index}"
        with self.at(label):
            graph = model.Subgraphs(index)
            tensors = []
            for i in self.count(graph.TensorsLength(), "tensors"):
                with self.at(f"{label} tensor {i}"):
                    tensors.append(self._tensor(graph.Tensors(i), buffers))
            operators = []
            for i in self.count(graph.OperatorsLength(), "operators"):
                with self.at(f"{label} operator {i}"):
                    operators.append(self._operator(graph.Operators(i), i, codes, len(tensors)))
            inputs = self._indices(graph.Inputs, graph.InputsLength(), len(tensors), "input")
            outputs = self._indices(graph.Outputs, graph.OutputsLength(), len(tensors), "output")
            name = (graph.Name() or b"").decode(errors="replace")
        return Graph(name, tuple(tensors), tuple(operators), inputs, outputs)

    def _indices(
        self, get: Callable[[int], int], length: int, limit: int, what: str, least: int = 0
    ) -> tuple[int, ...]:
        found = tuple(int(get(i)) for i in self.count(length, f"{what}s"))
        for place, index in enumerate(found):
            if not least <= index < limit:
                raise self.fail(f"{what} {place} is tensor {index}, must be {least} to {limit - 1}")
        return found

    def _operator(self, operator: Any, place: int, codes: list[tuple[str, str]], tensors: int) -> Operator:
        import tflite

        if not 0 <= operator.OpcodeIndex() < len(codes):
            raise self.fail(f"operator code is {operator.OpcodeIndex()}, must be 0 to {len(codes) - 1}")
        name, custom = codes[operator.OpcodeIndex()]
        inputs = self._indices(operator.Inputs, operator.InputsLength(), tensors, "input", -1)
        outputs = self._indices(operator.Outputs, operator.OutputsLength(), tensors, "output")
        options, kind, table = None, operator.BuiltinOptionsType(), operator.BuiltinOptions()
        if table is not None and kind:
            names = {v: k for k, v in vars(tflite.BuiltinOptions).items() if isinstance(v, int)}
            if kind not in names:
                raise self.fail(f"options are of kind {kind}, must be one that the schema has")
            options = getattr(tflite, names[kind])()
            options.Init(table.Bytes, table.Pos)
        return Operator(place, name, custom, inputs, outputs, options)

    def _tensor(self, tensor: Any, buffers: list[Any]) -> Tensor:
        if tensor.Type() not in TYPES:
            raise self.fail(f"type is {tensor.Type()}, must be 0 to {max(TYPES)}")
        kind = TYPES[tensor.Type()]
        shape = tuple(int(tensor.Shape(i)) for i in self.count(tensor.ShapeLength(), "dimensions"))
        signature = tuple(
            int(tensor.ShapeSignature(i)) for i in self.count(tensor.ShapeSignatureLength(), "dimensions")
        )
        if len(shape) > MAX_RANK:
            raise self.fail(f"has rank {len(shape)}, must be at most {MAX_RANK}")
        if any(d < 0 for d in shape):
            raise self.fail(f"has shape {list(shape)}, must have no negative dimension")
        size = np.dtype(kind).itemsize if kind in NUMPY else 1
        if math.prod(shape) * size >= 2**32:
            raise self.fail(f"has shape {list(shape)} of {math.prod(shape) * size} bytes, must be less than 2**32")
        if not 0 <= tensor.Buffer() < len(buffers):
            raise self.fail(f"buffer is {tensor.Buffer()}, must be 0 to {len(buffers) - 1}")
        region, sparsity = buffers[tensor.Buffer()], tensor.Sparsity()
        if region is not None and kind in NUMPY and sparsity is None and region[1] != math.prod(shape) * size:
            raise self.fail(f"has a buffer of {region[1]} bytes, must have {math.prod(shape) * size}")
        scales, zeros, axis = self._quantisation(tensor.Quantization(), shape)
        name = (tensor.Name() or b"").decode(errors="replace")
        return Tensor(
            name, kind, shape, signature or shape, region, scales, zeros, axis, bool(tensor.IsVariable()), sparsity
        )

    def _quantisation(self, quant: Any, shape: tuple[int, ...]) -> tuple[tuple[float, ...], tuple[int, ...], int]:
        if quant is None or not quant.ScaleLength():
            return (), (), 0
        scales = tuple(float(quant.Scale(i)) for i in self.count(quant.ScaleLength(), "scales"))
        zeros = tuple(int(quant.ZeroPoint(i)) for i in self.count(quant.ZeroPointLength(), "zero points"))
        zeros = zeros or (0,) * len(scales)
        axis = quant.QuantizedDimension()
        bad = next((s for s in scales if not (math.isfinite(s) and s > 0)), None)
        if bad is not None:
            raise self.fail(f"scale is {bad}, must be finite and greater than 0")
        if len(zeros) != len(scales):
            raise self.fail(f"has {len(zeros)} zero points, must have {len(scales)}, one a scale")
        if len(scales) > 1 and not (0 <= axis < len(shape) and shape[axis] == len(scales)):
            raise self.fail(
                f"has {len(scales)} scales along dimension {axis} of {list(shape)}, must have one a channel"
            )
        return scales, zeros, axis

    def _signature(self, signature: Any, graphs: tuple[Graph, ...]) -> Signature:
        number = signature.SubgraphIndex()
        if not 0 <= number < len(graphs):
            raise self.fail(f"subgraph is {number}, must be 0 to {len(graphs) - 1}")
        limit = len(graphs[number].tensors)

        def maps(get: Callable[[int], Any], length: int) -> tuple[tuple[str, int], ...]:
            found = []
            for i in self.count(length, "names"):
                entry = get(i)
                if not 0 <= entry.TensorIndex() < limit:
                    raise self.fail(f"names tensor {entry.TensorIndex()}, must be 0 to {limit - 1}")
                found.append(((entry.Name() or b"").decode(errors="replace"), entry.TensorIndex()))
            return tuple(found)

        key = (signature.SignatureKey() or b"").decode(errors="replace")
        inputs = maps(signature.Inputs, signature.InputsLength())
        return Signature(key, number, inputs, maps(signature.Outputs, signature.OutputsLength()))


def _operator_names() -> dict[int, str]:
    import tflite

    return {v: k for k, v in vars(tflite.BuiltinOperator).items() if isinstance(v, int)}
