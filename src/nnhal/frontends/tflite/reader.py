"""Reads a `.tflite` file into records. Nothing in it is trusted: what lies is a BadFile that names the place.

The `tflite` package, generated from the published schema, knows where fields stand; it checks nothing. Here every count is
checked against the size of the file before it is used, and all records together against it too, so that vectors which
share their bytes cannot make a small file large.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from nnhal.base.codes import MAX_OPERAND_BYTES, MAX_RANK
from nnhal.base.errors import BadFile
from nnhal.base.operands import Array
from nnhal.frontends.tflite.budget import Budget, Cost
from nnhal.frontends.tflite.file import (
    DTYPES,
    OMITTED,
    Blob,
    File,
    FileSubgraph,
    FileTensor,
    Operator,
    SignatureDef,
    TensorQuant,
)
from nnhal.frontends.tflite.sparse import SparseLevel, Sparsity

IDENTIFIER, METADATA = b"TFL3", "TFLITE_METADATA"
VERSION = 3
WORD = 4  # bytes of the least thing that a vector of tables holds
QUANTISED = {"INT8": (-128, 127), "UINT8": (0, 255), "INT16": (-32768, 32767)}  # range of the stored values
DAMAGE = (struct.error, IndexError, KeyError, ValueError, TypeError, OverflowError, AttributeError)  # of the parser
EMPTY_TABLE = b"\x04\x00\x04\x00\x04\x00\x00\x00"  # a table without fields, at 4: all its fields have their defaults
NAME_SLOT = {
    "Tensor": 10,
    "OperatorCode": 6,
    "SignatureDef": 8,
    "TensorMap": 4,
    "Metadata": 4,
}  # where a table's vtable has its name
CONTAINER_SLOT, SHARED_NAME_SLOT = 4, 6  # of VarHandleOptions


class Table:
    """The options of one operator in the file."""

    def __init__(self, reader: "Reader", place: str, kind: str, table: Any) -> None:
        self._reader, self._place, self._kind, self._table = reader, place, kind, table

    def read(self, kind: str) -> "Fields":
        """The fields of `kind`, such as Conv2DOptions; the schema's defaults where the operator has no options."""
        if self._kind not in ("NONE", kind):
            raise BadFile(f"{self._reader.label}: {self._place}: has {self._kind}, must be {kind}")
        table = getattr(_schema(), kind)()
        with self._reader.at(f"{self._place} {kind}"):
            if self._kind == kind and self._table is not None:
                table.Init(self._table.Bytes, self._table.Pos)
            else:
                table.Init(EMPTY_TABLE, WORD)
        return Fields(self._reader, f"{self._place} {kind}", table)


class Fields:
    """A table of options."""

    def __init__(self, reader: "Reader", place: str, table: Any) -> None:
        self._reader, self._place, self._table = reader, place, table

    def __call__(self, name: str) -> Any:
        """A number by its schema name: `fields("StrideW")`."""
        with self._reader.at(self._place):
            return getattr(self._table, name)()

    def text(self, slot: int) -> str:
        """A string by the place of its field."""
        with self._reader.at(self._place):
            return self._reader.text(self._table, slot)

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """A vector of integers, None where the file has none."""
        with self._reader.at(self._place):
            if getattr(self._table, f"{name}IsNone")():
                return None
            return tuple(self._reader.vector(self._table, name).tolist())


@cache
def _schema() -> Any:
    import tflite

    return tflite


@cache
def _names(enum: str) -> dict[int, str]:
    members = vars(getattr(_schema(), enum))
    return {number: name for name, number in members.items() if not name.startswith("_")}


def read(data: Array, label: str) -> File:
    """The records of a file's bytes; BadFile names what is wrong and where."""
    return Reader(data, label).file()


class Reader:
    """Reads the records of one file."""

    def __init__(self, data: Array, label: str) -> None:
        self.data, self.label = data, label
        self.view, self.size = memoryview(data), len(data)  # type: ignore[arg-type]
        self.budget = Budget(label, self.size)
        self.place = ""

    # ---------------------------------------------------------------------------------------------------- the parser

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Whatever the generated parser trips over within is a BadFile at this place."""
        before, self.place = self.place, place
        try:
            yield
        except DAMAGE as error:
            if isinstance(error, BadFile):
                raise
            self.bad(f"cannot be read: {error}; its parts must lie within the file's {self.size} bytes")
        self.place = before

    def bad(self, what: str) -> None:
        """Raise BadFile for the present place."""
        raise BadFile(": ".join(part for part in (self.label, self.place, what) if part))

    def must(self, condition: Any, what: str) -> None:
        """Raise BadFile unless the condition holds."""
        if not condition:
            self.bad(what)

    def spend(self, count: int, what: str) -> None:
        """Refuse `count` more bytes of records when the file is too small for all of them."""
        self.must(count <= self.size, f"{what} would take {count} bytes, must be at most the file's {self.size}")
        self.budget.spend(Cost.RECORDS, count, self.place)

    def tables(self, table: Any, field: str) -> Iterator[Any]:
        """The tables of a vector."""
        count = getattr(table, f"{field}Length")()
        self.spend(count * WORD, f"{count} {field}")
        self.budget.spend(Cost.TABLES, count, self.place)
        get = getattr(table, field)
        return (get(index) for index in range(count))

    def vector(self, table: Any, field: str) -> Array:
        """A vector of numbers, empty where the file has none."""
        if getattr(table, f"{field}IsNone")():
            return np.zeros(0, np.int32)
        self.spend(getattr(table, f"{field}Length")(), field)
        found: Array = getattr(table, f"{field}AsNumpy")()
        self.spend(found.nbytes, field)
        return found

    def text(self, table: Any, slot: int) -> str:
        """A string; the generated accessor cuts off silently what lies behind the end of the file."""
        raw = table._tab
        field = raw.Offset(slot)
        if not field:
            return ""
        start, length = raw.Vector(field), raw.VectorLen(field)
        self.must(start + length < self.size, f"a text ends at byte {start + length}, must end within {self.size}")
        self.spend(length, "a text")
        return bytes(self.view[start : start + length]).decode(errors="replace")

    # ------------------------------------------------------------------------------------------------------- records

    def file(self) -> File:
        """The whole file."""
        self.must(self.size >= 8, f"has {self.size} bytes, must have at least 8")
        root, identifier = struct.unpack_from("<I4s", self.view)
        self.must(identifier == IDENTIFIER, f"identifier is {identifier!r}, must be {IDENTIFIER!r}")
        self.must(root + WORD <= self.size, f"root offset is {root}, must lie within the file's {self.size} bytes")
        with self.at("model"):
            model = _schema().Model.GetRootAs(self.view, 0)
            self.must(model.Version() == VERSION, f"version is {model.Version()}, must be {VERSION}")
            codes = [self._code(c, i) for i, c in enumerate(self.tables(model, "OperatorCodes"))]
            blobs = [self._blob(b, i) for i, b in enumerate(self.tables(model, "Buffers"))]
            graphs = tuple(self._subgraph(g, i, codes, blobs) for i, g in enumerate(self.tables(model, "Subgraphs")))
            self.must(graphs, "has no subgraphs, must have at least one")
            defs = enumerate(self.tables(model, "SignatureDefs"))
            edges = [(frozenset(g.inputs), frozenset(g.outputs)) for g in graphs]
            signatures = tuple(self._signature(s, i, graphs, edges) for i, s in defs)
            entries = [(self.text(m, NAME_SLOT["Metadata"]), m.Buffer()) for m in self.tables(model, "Metadata")]
            numbers = [number for name, number in entries if name == METADATA and number < len(blobs)]
        keys = [s.key for s in signatures]
        self.must(len(set(keys)) == len(keys), f"signatures are {', '.join(keys)}, must have one name each")
        metadata = blobs[numbers[0]] if numbers else None
        return File(self.label, self.data, graphs, signatures, self.budget, metadata)

    def _code(self, code: Any, index: int) -> tuple[str, bool]:
        with self.at(f"operator code {index}"):
            number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
            name = _names("BuiltinOperator").get(number, f"builtin operator {number}")
            if name == "CUSTOM":
                return f"custom operation {self.text(code, NAME_SLOT['OperatorCode']) or '(unnamed)'}", False
        return name, True

    def _blob(self, buffer: Any, index: int) -> Blob | None:
        """Where the bytes of a buffer lie: in its vector, or anywhere in the file for files of over 2 GiB."""
        with self.at(f"buffer {index}"):
            length, start = buffer.DataLength(), 0
            if length:
                start = buffer._tab.Vector(buffer._tab.Offset(WORD))
            elif buffer.Offset() > 1:
                start, length = buffer.Offset(), buffer.Size()
            end = start + length
            self.must(end <= self.size, f"lies at bytes {start} to {end}, must lie within the file's {self.size}")
        return Blob(start, length) if length else None

    def _subgraph(self, graph: Any, index: int, codes: Sequence[Any], blobs: Sequence[Blob | None]) -> FileSubgraph:
        place = f"subgraph {index}"
        with self.at(place):
            tensors = []
            for i, tensor in enumerate(self.tables(graph, "Tensors")):
                with self.at(f"{place} tensor {i}"):
                    tensors.append(self._tensor(tensor, blobs))
            operators = []
            for i, operator in enumerate(self.tables(graph, "Operators")):
                with self.at(f"{place} operator {i}"):
                    operators.append(self._operator(operator, i, codes, len(tensors)))
            inputs = self._indices(graph, "Inputs", len(tensors))
            outputs = self._indices(graph, "Outputs", len(tensors))
            self.must(len(set(inputs)) == len(inputs), f"inputs are {list(inputs)}, must be different tensors")
            found = FileSubgraph(index, tuple(tensors), tuple(operators), inputs, outputs)
            self._check_order(found, place)
        return found

    def _indices(self, table: Any, field: str, count: int, least: int = 0) -> tuple[int, ...]:
        found = tuple(self.vector(table, field).tolist())
        for place, index in enumerate(found):
            kind = field.lower()[:-1]
            self.must(least <= index < count, f"{kind} {place} is tensor {index}, must be {least} to {count - 1}")
        return found

    def _tensor(self, tensor: Any, blobs: Sequence[Blob | None]) -> FileTensor:
        code, number = tensor.Type(), tensor.Buffer()
        kinds = _names("TensorType")
        self.must(code in kinds, f"type is {code}, must be 0 to {max(kinds)}")
        kind = kinds[code]
        shape = tuple(self.vector(tensor, "Shape").tolist())
        signature = tuple(self.vector(tensor, "ShapeSignature").tolist())
        self.must(len(shape) <= MAX_RANK, f"has rank {len(shape)}, must be at most {MAX_RANK}")
        self.must(min(shape, default=0) >= 0, f"has shape {list(shape)}, must have no negative dimension")
        self.must(min(signature, default=0) >= -1, f"has shape signature {list(signature)}, must be at least -1")
        size = math.prod(shape) * np.dtype(DTYPES.get(kind, "u1")).itemsize
        self.must(size <= MAX_OPERAND_BYTES, f"has shape {list(shape)}, must have at most {MAX_OPERAND_BYTES} bytes")
        self.must(number < len(blobs), f"buffer is {number}, must be 0 to {len(blobs) - 1}")
        blob, sparse = blobs[number], tensor.Sparsity()
        if blob and not sparse and kind in DTYPES:
            self.must(blob.length == size, f"has {blob.length} bytes in buffer {number}, must have {size}")
        table = tensor.Quantization()
        return FileTensor(
            self.text(tensor, NAME_SLOT["Tensor"]),
            kind,
            shape,
            frozenset(i for i, d in enumerate(signature) if d == -1) if len(signature) == len(shape) else frozenset(),
            self._quant(table, kind, shape) if table else None,
            tensor.IsVariable(),
            blob,
            self._sparsity(sparse) if sparse else None,
        )

    def _quant(self, table: Any, kind: str, shape: tuple[int, ...]) -> TensorQuant | None:
        scales, axis = tuple(self.vector(table, "Scale").tolist()), table.QuantizedDimension()
        zeros = tuple(self.vector(table, "ZeroPoint").tolist()) or (0,) * len(scales)
        if not scales or kind not in (*QUANTISED, "INT32"):
            return None
        wrong = next((s for s in scales if not (math.isfinite(s) and s >= 0)), None)
        self.must(wrong is None, f"has scale {wrong}, must be a finite number greater than 0")
        if kind == "INT32":  # of a bias: follows from those of input and weights
            return TensorQuant(scales, (0,) * len(scales), 0)
        self.must(min(scales) > 0, "has scale 0, must be a finite number greater than 0")
        low, high = QUANTISED[kind]
        if len(zeros) == 1:
            zeros = zeros * len(scales)
        self.must(len(zeros) == len(scales), f"has {len(zeros)} zero points, must be {len(scales)}, one for each scale")
        for zero in zeros:
            self.must(low <= zero <= high, f"has zero point {zero}, must be {low} to {high}")
        if len(scales) > 1:
            self.must(0 <= axis < len(shape), f"has scales along dimension {axis}, must be 0 to {len(shape) - 1}")
            self.must(
                len(scales) == shape[axis], f"has {len(scales)} scales, must be {shape[axis]}, one for each channel"
            )
        return TensorQuant(scales, zeros, axis)

    def _sparsity(self, table: Any) -> Sparsity:
        order, blocks = (tuple(self.vector(table, f).tolist()) for f in ("TraversalOrder", "BlockMap"))
        levels = []
        for level in self.tables(table, "DimMetadata"):
            parts = (self._sparse_vector(level, f) for f in ("ArraySegments", "ArrayIndices"))
            levels.append(SparseLevel(level.Format() == 0, level.DenseSize(), *parts))
        return Sparsity(order, blocks, tuple(levels))

    def _sparse_vector(self, level: Any, field: str) -> Array:
        kind, table = getattr(level, f"{field}Type")(), getattr(level, field)()
        if not kind or table is None:
            return np.zeros(0, np.int64)
        self.must(kind in _names("SparseIndexVector"), f"{field} are of type {kind}, must be 0 to 3")
        vector = getattr(_schema(), _names("SparseIndexVector")[kind])()
        vector.Init(table.Bytes, table.Pos)
        return self.vector(vector, "Values").astype(np.int64)

    def _operator(self, operator: Any, index: int, codes: Sequence[Any], count: int) -> Operator:
        code, kind = operator.OpcodeIndex(), operator.BuiltinOptionsType()
        self.must(0 <= code < len(codes), f"operator code is {code}, must be 0 to {len(codes) - 1}")
        name, builtin = codes[code]
        inputs, outputs = self._indices(operator, "Inputs", count, OMITTED), self._indices(operator, "Outputs", count)
        known = _names("BuiltinOptions").get(kind, f"options of type {kind}")
        options = Table(self, f"{self.place} ({name})", known, operator.BuiltinOptions())
        custom = b"" if builtin else self.vector(operator, "CustomOptions").astype(np.uint8).tobytes()
        return Operator(index, name, builtin, inputs, outputs, options, custom)

    def _check_order(self, graph: FileSubgraph, place: str) -> None:
        """Every tensor has one writer, and stands written before it is read."""
        ready = [t.blob is not None or t.variable or 0 in t.shape for t in graph.tensors]
        given = {i for i, t in enumerate(graph.tensors) if t.blob is not None} | set(graph.inputs)
        written: set[int] = set()
        for index in graph.inputs:
            ready[index] = True
        for operator in graph.operators:
            self.place = f"{place} operator {operator.index} ({operator.name})"
            for number, index in enumerate(operator.inputs):
                there = index == OMITTED or ready[index]
                self.must(there, f"reads tensor {index} as input {number}, must be written by an operator before it")
            for index in operator.outputs:
                self.must(index not in given, f"writes tensor {index}, must be no input or constant")
                self.must(index not in written, f"writes tensor {index}, must be written by no operator before it")
                ready[index] = True
                written.add(index)
        self.place = place
        for index in graph.outputs:
            self.must(ready[index], f"output tensor {index} has no value, must be written by an operator")

    def _signature(
        self,
        table: Any,
        index: int,
        graphs: Sequence[FileSubgraph],
        edges: Sequence[tuple[frozenset[int], frozenset[int]]],
    ) -> SignatureDef:
        """An entry point. edges: the inputs and outputs of each subgraph."""
        with self.at(f"signature {index}"):
            number = table.SubgraphIndex()
            self.must(number < len(graphs), f"subgraph is {number}, must be 0 to {len(graphs) - 1}")
            inputs, outputs = (self._entries(table, f) for f in ("Inputs", "Outputs"))
            for kind, entries, among in zip(("input", "output"), (inputs, outputs), edges[number], strict=True):
                for name, tensor in entries:
                    if tensor not in among:
                        there = ", ".join(map(str, sorted(among)))
                        self.bad(f"{kind} {name!r} is tensor {tensor}, must be an {kind} of subgraph {number}: {there}")
            return SignatureDef(self.text(table, NAME_SLOT["SignatureDef"]), number, inputs, outputs)

    def _entries(self, table: Any, field: str) -> tuple[tuple[str, int], ...]:
        entries = self.tables(table, field)
        return tuple((self.text(e, NAME_SLOT["TensorMap"]), e.TensorIndex()) for e in entries)
