"""Reads a `.tflite` file into records without trusting it: BadFile names the malformed place.

Every count is checked against the size of the file before it is used. So is the total of all records: vectors that
share their bytes cannot make a small file large. Fields have the numbers of the published schema; names, and the fields
of operators' options, are in `base.tflite_schema`.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from nnhal.base.codes import MAX_OPERAND_BYTES, MAX_RANK
from nnhal.base.errors import BadFile
from nnhal.base.operands import Array
from nnhal.base.tflite_schema import OPERATORS, OPTIONS, OPTIONS_2, TYPES, fields_of
from nnhal.frontends.common.budget import Budget, Cost
from nnhal.frontends.common.packed import packed_size, unpack
from nnhal.frontends.common.terms import Blob
from nnhal.frontends.tflite.file import (
    DTYPES,
    OMITTED,
    File,
    FileSubgraph,
    FileTensor,
    Operator,
    SignatureDef,
    TensorQuant,
)
from nnhal.frontends.tflite.flat import WORD, FlatTable, target
from nnhal.frontends.tflite.packed import BITS, PACKED, BlockQuant
from nnhal.frontends.tflite.sparse import SparseLevel, Sparsity

IDENTIFIER, METADATA = b"TFL3", "TFLITE_METADATA"
VERSION = 3
BLOCKWISE = 2  # the type of details that have scales for blocks
BIASES = ("INT32", "INT64")  # types of biases beside stored values
QUANTISED = {"INT8": (-128, 127), "UINT8": (0, 255), "INT16": (-32768, 32767)}  # range of the stored values
DAMAGE = (struct.error, IndexError, KeyError, ValueError, TypeError, OverflowError, AttributeError)  # of the parser
ITEM_BYTES = {kind: np.dtype(name).itemsize for kind, name in DTYPES.items()}
SPARSE_FORMS = {1: "i", 2: "H", 3: "B"}  # of a SparseIndexVector


class OperatorOptions:
    """The options of one operator in the file."""

    def __init__(self, reader: "Reader", place: str, kind: str, at: int) -> None:
        self._reader, self._place, self.kind, self._at = reader, place, kind, at

    def read(self, kind: str) -> "Fields":
        """Return the fields of `kind`, such as Conv2DOptions; the schema's defaults if the operator has no options."""
        if self.kind not in ("NONE", kind):
            raise BadFile(f"{self._reader.label}: {self._place}: has {self.kind}, must be {kind}")
        return Fields(self._reader, f"{self._place} {kind}", kind, self._at if self.kind == kind else 0)


class Fields:
    """A table of options at a place in the file, 0 for all defaults."""

    def __init__(self, reader: "Reader", place: str, kind: str, at: int) -> None:
        self._reader, self._place, self._fields, self._table = reader, place, fields_of(kind), None
        if at:
            try:
                self._table = FlatTable(reader.view, at)
            except DAMAGE as error:
                reader.damaged(error, place)

    def __call__(self, name: str) -> Any:
        """Return a number by its schema name: `fields("StrideW")`."""
        number, form, default = self._fields[name]
        if self._table is None:
            return default
        try:
            return self._table.number(number, form, default)
        except DAMAGE as error:
            self._reader.damaged(error, self._place)

    def text(self, name: str) -> str:
        """Return a string by its schema name."""
        if self._table is None:
            return ""
        with self._reader.at(self._place):
            return self._reader.text(self._table, self._fields[name][0])

    def numbers(self, name: str) -> tuple[Any, ...] | None:
        """Return a vector of numbers, None if the file has none."""
        number, form, _ = self._fields[name]
        if self._table is None or not self._table.place(number):
            return None
        with self._reader.at(self._place):
            start, count = self._table.vector(number)
            self._reader.spend(count, name)
            found = np.frombuffer(self._reader.view, f"<{form[1:]}", count, start)
            self._reader.spend(found.nbytes, name)
            return tuple(found.tolist())


@lru_cache(maxsize=256)
def _layout(form: str, count: int) -> struct.Struct:
    return struct.Struct(f"<{count}{form}")


def _named(names: Sequence[str], number: int, what: str) -> str:
    """Return a member of an enum, or a description of an unknown one."""
    return names[number] if 0 <= number < len(names) else f"{what} {number}"


def _with_values(graph: FileSubgraph) -> frozenset[int]:
    """Return the tensors that have values once a subgraph has run."""
    known = {n for n, tensor in enumerate(graph.tensors) if tensor.blob is not None}
    return frozenset({*graph.inputs, *known, *(n for operator in graph.operators for n in operator.outputs)})


def read(data: Array, label: str) -> File:
    """Return the records of a file's bytes; BadFile names the fault and its place."""
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
        """Convert any error of the parser within to BadFile at this place."""
        before, self.place = self.place, place
        try:
            yield
        except DAMAGE as error:
            self.damaged(error, place)
        self.place = before

    def damaged(self, error: Exception, place: str) -> NoReturn:
        """Raise BadFile for an error of the parser at a place."""
        if isinstance(error, BadFile):
            raise error
        self.place = place
        self.bad(f"cannot be read: {error}; its parts must lie within the file's {self.size} bytes")

    def bad(self, what: str) -> NoReturn:
        """Raise BadFile for the current place."""
        raise BadFile(": ".join(part for part in (self.label, self.place, what) if part))

    def must(self, condition: Any, what: str) -> None:
        """Raise BadFile unless the condition holds."""
        if not condition:
            self.bad(what)

    def spend(self, count: int, what: str) -> None:
        """Refuse `count` more bytes of records if the file is too small for them."""
        if count > self.size:
            self.bad(f"{what} would need {count} bytes, must need at most the file's {self.size}")
        self.budget.spend(Cost.RECORDS, count, self.place)

    def tables(self, table: FlatTable, field: int, what: str) -> Iterator[FlatTable]:
        """Yield the tables of a vector. what: their name for messages."""
        start, count = table.vector(field)
        self.spend(count * WORD, f"{count} {what}")
        self.budget.spend(Cost.TABLES, count, self.place)
        return (FlatTable(self.view, target(self.view, start + n * WORD)) for n in range(count))

    def vector(self, table: FlatTable, field: int, form: str, what: str) -> Array:
        """Return a vector of numbers in a `struct` format, empty if the file has none."""
        start, count = table.vector(field)
        dtype = np.dtype(f"<{form}")
        self.spend(count * dtype.itemsize, what)
        return np.frombuffer(self.view, dtype, count, start) if count else np.zeros(0, dtype)

    def numbers(self, table: FlatTable, field: int, form: str, what: str) -> tuple[Any, ...]:
        """Return a short vector of numbers."""
        start, count = table.vector(field)
        if not count:
            return ()
        layout = _layout(form, count)
        self.spend(layout.size, what)
        return layout.unpack_from(self.view, start)

    def text(self, table: FlatTable, field: int) -> str:
        """Return a string, "" for none."""
        start, length = table.vector(field)
        if not length:
            return ""
        self.must(start + length < self.size, f"a text ends at byte {start + length}, must end within {self.size}")
        self.spend(length, "a text")
        return bytes(self.view[start : start + length]).decode(errors="replace")

    # ------------------------------------------------------------------------------------------------------- records

    def file(self) -> File:
        """Read the complete file."""
        self.must(self.size >= 8, f"has {self.size} bytes, must have at least 8")
        start, identifier = struct.unpack_from("<I4s", self.view)
        self.must(identifier == IDENTIFIER, f"identifier is {identifier!r}, must be {IDENTIFIER!r}")
        self.must(start + WORD <= self.size, f"root offset is {start}, must lie within the file's {self.size} bytes")
        with self.at("model"):
            model = FlatTable(self.view, start)
            version = model.number(0, "I")
            self.must(version == VERSION, f"version is {version}, must be {VERSION}")
            codes = [self._code(c, i) for i, c in enumerate(self.tables(model, 1, "operator codes"))]
            blobs = [self._blob(b, i) for i, b in enumerate(self.tables(model, 4, "buffers"))]
            graphs = tuple(self._subgraph(g, i, codes, blobs) for i, g in enumerate(self.tables(model, 2, "subgraphs")))
            self.must(graphs, "has no subgraphs, must have at least one")
            edges = [(frozenset(g.inputs), _with_values(g)) for g in graphs]
            defs = enumerate(self.tables(model, 7, "signatures"))
            signatures = tuple(self._signature(s, i, graphs, edges) for i, s in defs)
            entries = [(self.text(m, 0), m.number(1, "I")) for m in self.tables(model, 6, "metadata")]
            numbers = [number for name, number in entries if name == METADATA and number < len(blobs)]
        keys = [s.key for s in signatures]
        self.must(len(set(keys)) == len(keys), f"signatures are {', '.join(keys)}, must have one name each")
        metadata = blobs[numbers[0]] if numbers else None
        return File(self.label, self.data, graphs, signatures, self.budget, metadata)

    def _code(self, code: FlatTable, index: int) -> tuple[str, bool]:
        with self.at(f"operator code {index}"):
            number = max(code.number(3), code.number(0, "b"))
            name = _named(OPERATORS, number, "builtin operator")
            if name == "CUSTOM":
                return f"custom operation {self.text(code, 1) or '(unnamed)'}", False
        return name, True

    def _blob(self, buffer: FlatTable, index: int) -> Blob | None:
        """Return the place of a buffer's bytes: its vector, or any place in the file for files above 2 GiB."""
        self.place = f"buffer {index}"
        start, length = buffer.vector(0)
        if not length and (offset := buffer.number(1, "Q")) > 1:
            start, length = offset, buffer.number(2, "Q")
        end = start + length
        self.must(end <= self.size, f"lies at bytes {start} to {end}, must lie within the file's {self.size}")
        return Blob(start, length) if length else None

    def _subgraph(
        self, graph: FlatTable, index: int, codes: Sequence[Any], blobs: Sequence[Blob | None]
    ) -> FileSubgraph:
        place = f"subgraph {index}"
        with self.at(place):
            tensors = []
            for i, tensor in enumerate(self.tables(graph, 0, "tensors")):
                self.place = f"{place} tensor {i}"
                tensors.append(self._tensor(tensor, blobs))
            operators = []
            self.place = place
            for i, operator in enumerate(self.tables(graph, 3, "operators")):
                self.place = f"{place} operator {i}"
                operators.append(self._operator(operator, i, codes, len(tensors)))
            self.place = place
            inputs = self._indices(graph, 1, "input", len(tensors))
            outputs = self._indices(graph, 2, "output", len(tensors))
            self.must(len(set(inputs)) == len(inputs), f"inputs are {list(inputs)}, must be different tensors")
            found = FileSubgraph(index, tuple(tensors), tuple(operators), inputs, outputs)
            self._check_order(found, place)
        return found

    def _indices(self, table: FlatTable, field: int, kind: str, count: int, least: int = 0) -> tuple[int, ...]:
        found = self.numbers(table, field, "i", f"{kind}s")
        for place, index in enumerate(found):
            if not least <= index < count:
                self.bad(f"{kind} {place} is tensor {index}, must be {least} to {count - 1}")
        return found

    def _tensor(self, tensor: FlatTable, blobs: Sequence[Blob | None]) -> FileTensor:
        code, number = tensor.number(1, "b"), tensor.number(2, "I")
        if not 0 <= code < len(TYPES):
            self.bad(f"type is {code}, must be 0 to {len(TYPES) - 1}")
        kind = TYPES[code]
        shape = self.numbers(tensor, 0, "i", "a shape")
        signature = self.numbers(tensor, 7, "i", "a shape signature")
        count = math.prod(shape)
        size = packed_size(BITS[kind], count) if kind in PACKED else count * ITEM_BYTES.get(kind, 1)
        if len(shape) > MAX_RANK:
            self.bad(f"has rank {len(shape)}, must be at most {MAX_RANK}")
        if min(shape, default=0) < 0:
            self.bad(f"has shape {list(shape)}, must have no negative dimension")
        if min(signature, default=0) < -1:
            self.bad(f"has shape signature {list(signature)}, must be at least -1")
        if size > MAX_OPERAND_BYTES:
            self.bad(f"has shape {list(shape)}, must have at most {MAX_OPERAND_BYTES} bytes")
        if number >= max(1, len(blobs)):
            self.bad(f"buffer is {number}, must be 0 to {max(0, len(blobs) - 1)}")
        blob, sparse = (
            blobs[number] if blobs else None,
            tensor.child(6),
        )  # buffer 0 means no data, even if there are no buffers
        if blob and not sparse and (kind in DTYPES or kind in PACKED) and blob.length != size:
            self.bad(f"has {blob.length} bytes in buffer {number}, must have {size}")
        table, stored = tensor.child(4), ""
        blocks = self._blocks(table, kind, shape) if table and blob else None
        self.must(not (blocks and sparse), "is sparse and has scales for blocks, must be one of both")
        if blob and not sparse and (kind in PACKED or blocks):
            kind, stored = "FLOAT32" if blocks else "INT8", kind
        return FileTensor(
            self.text(tensor, 3),
            kind,
            shape,
            frozenset(i for i, d in enumerate(signature) if d == -1) if len(signature) == len(shape) else frozenset(),
            self._quant(table, kind, shape, blob if not sparse else None, stored) if table else None,
            bool(tensor.number(5, "b")),
            blob,
            self._sparsity(sparse) if sparse else None,
            stored=stored,
            blocks=blocks,
        )

    def _blocks(self, table: FlatTable, kind: str, shape: tuple[int, ...]) -> BlockQuant | None:
        """Return the scales of blocks of elements; None if the quantisation has none."""
        details = table.child(5) if table.number(4, "B") == BLOCKWISE else None
        if details is None:
            return None
        self.must(kind in BITS, f"of {kind} has scales for blocks, must be {', '.join(BITS)}")
        found, zeros = BlockQuant(details.number(0), details.number(2)), details.number(1)
        self.must(zeros <= 0, "has zero points for blocks, must have none")  # 0 is the default of the schema
        self.must(
            shape and found.size > 0 and shape[-1] % found.size == 0,
            f"has blocks of {found.size} elements, must divide the last dimension of {list(shape)}",
        )
        return found

    def _quant(
        self, table: FlatTable, kind: str, shape: tuple[int, ...], blob: Blob | None, stored: str
    ) -> TensorQuant | None:
        """Return a quantisation. blob, stored: of a constant, as in `FileTensor`."""
        scales, axis = self.numbers(table, 2, "f", "scales"), table.number(6)
        zeros = self.numbers(table, 3, "q", "zero points") or (0,) * len(scales)
        if not scales or kind not in (*QUANTISED, *BIASES):
            return None
        if not (min(scales) >= 0 and math.isfinite(math.fsum(scales))):
            wrong = next((s for s in scales if not (math.isfinite(s) and s >= 0)), None)
            self.must(wrong is None, f"has scale {wrong}, must be a finite number greater than 0")
        if kind in BIASES:  # for a bias, it follows from those of input and weights
            return TensorQuant(scales, (0,) * len(scales), 0)
        low, high = QUANTISED[kind]
        if len(zeros) == 1:
            zeros = zeros * len(scales)
        self.must(len(zeros) == len(scales), f"has {len(zeros)} zero points, must be {len(scales)}, one for each scale")
        if not low <= min(zeros) <= max(zeros) <= high:
            wrong = next(zero for zero in zeros if not low <= zero <= high)
            self.bad(f"has zero point {wrong}, must be {low} to {high}")
        if len(scales) > 1:
            self.must(0 <= axis < len(shape), f"has scales along dimension {axis}, must be 0 to {len(shape) - 1}")
            self.must(
                len(scales) == shape[axis], f"has {len(scales)} scales, must be {shape[axis]}, one for each channel"
            )
        if 0 in scales:
            self._check_zeros(scales, axis, kind, shape, blob, stored)
            zeros = tuple(zero if scale else 0 for scale, zero in zip(scales, zeros, strict=True))
            scales = tuple(scale or 1.0 for scale in scales)
        return TensorQuant(scales, zeros, axis)

    def _check_zeros(
        self, scales: tuple[float, ...], axis: int, kind: str, shape: tuple[int, ...], blob: Blob | None, stored: str
    ) -> None:
        """Check that only channels whose weights are all 0 have scale 0, as some tools write it."""
        if len(scales) > 1 and blob is not None:
            data = self.data[blob.offset : blob.offset + blob.length]
            weights = unpack(data, BITS[stored], shape, signed=True) if stored else data.view(DTYPES[kind])
            channels = [n for n, scale in enumerate(scales) if scale == 0]
            if not weights.reshape(shape).take(channels, axis).any():
                return
        self.bad("has scale 0, must be a finite number greater than 0")

    def _sparsity(self, table: FlatTable) -> Sparsity:
        order, blocks = self.numbers(table, 0, "i", "a traversal order"), self.numbers(table, 1, "i", "a block map")
        levels = []
        for level in self.tables(table, 2, "sparse dimensions"):
            parts = self._sparse_vector(level, 2, "segments"), self._sparse_vector(level, 4, "indices")
            levels.append(SparseLevel(level.number(0, "b") == 0, level.number(1), *parts))
        return Sparsity(order, blocks, tuple(levels))

    def _sparse_vector(self, level: FlatTable, field: int, what: str) -> Array:
        """Return one of three types of vectors; its type is in `field`, its table in the next."""
        kind, table = level.number(field, "B"), level.child(field + 1)
        if not kind or table is None:
            return np.zeros(0, np.int64)
        self.must(kind in SPARSE_FORMS, f"{what} are of type {kind}, must be 0 to {max(SPARSE_FORMS)}")
        return self.vector(table, 0, SPARSE_FORMS[kind], what).astype(np.int64)

    def _operator(self, operator: FlatTable, index: int, codes: Sequence[Any], count: int) -> Operator:
        code, kind = operator.number(0, "I"), operator.number(3, "B")
        self.must(code < len(codes), f"operator code is {code}, must be 0 to {len(codes) - 1}")
        name, builtin = codes[code]
        inputs, outputs = (
            self._indices(operator, 1, "input", count, OMITTED),
            self._indices(operator, 2, "output", count),
        )
        known, table = _named(OPTIONS, kind, "options of type"), operator.target(4)
        if not kind and (kind := operator.number(11, "B")):  # for newer operators
            known, table = _named(OPTIONS_2, kind, "options of type"), operator.target(12)
        options = OperatorOptions(self, f"{self.place} ({name})", known, table)
        custom = b"" if builtin else self.vector(operator, 5, "B", "custom options").tobytes()
        inner = self._indices(operator, 8, "intermediate", count)
        return Operator(index, name, builtin, inputs, outputs, options, custom, inner)

    def _check_order(self, graph: FileSubgraph, place: str) -> None:
        """Check that each tensor has one writer, before its readers, except work buffers of custom operations."""
        ready = [t.blob is not None or t.variable or 0 in t.shape for t in graph.tensors]
        given = {i for i, t in enumerate(graph.tensors) if t.blob is not None} | set(graph.inputs)
        written: set[int] = set()
        for index in graph.inputs:
            ready[index] = True
        for operator in graph.operators:
            self.place = f"{place} operator {operator.index} ({operator.name})"
            for number, index in enumerate(operator.inputs):
                if operator.builtin and not (index == OMITTED or ready[index]):
                    self.bad(f"reads tensor {index} as input {number}, must be written by an operator before it")
            for index in operator.outputs:
                if index in given:
                    self.bad(f"writes tensor {index}, must not be an input or constant")
                if index in written:
                    self.bad(f"writes tensor {index}, must not be written by an operator before it")
                ready[index] = True
                written.add(index)
        self.place = place
        for index in graph.outputs:
            self.must(ready[index], f"output tensor {index} has no value, must be written by an operator")

    def _signature(
        self,
        table: FlatTable,
        index: int,
        graphs: Sequence[FileSubgraph],
        edges: Sequence[tuple[frozenset[int], frozenset[int]]],
    ) -> SignatureDef:
        """Read an entry point. edges: the inputs of each subgraph, and its tensors with values.

        Some tools leave the outputs of the signature where the subgraph has others, which they added behind them.
        """
        with self.at(f"signature {index}"):
            number = table.number(4, "I")
            self.must(number < len(graphs), f"subgraph is {number}, must be 0 to {len(graphs) - 1}")
            inputs, outputs = (self._entries(table, n, f) for n, f in enumerate(("inputs", "outputs")))
            for kind, entries, among in zip(("input", "output"), (inputs, outputs), edges[number], strict=True):
                for name, tensor in entries:
                    if tensor not in among:
                        there = graphs[number].inputs if kind == "input" else graphs[number].outputs
                        must = f"must be an {kind} of subgraph {number}: {', '.join(map(str, sorted(set(there))))}"
                        self.bad(f"{kind} {name!r} is tensor {tensor}, {must}")
            return SignatureDef(self.text(table, 2), number, inputs, outputs)

    def _entries(self, table: FlatTable, field: int, what: str) -> tuple[tuple[str, int], ...]:
        entries = self.tables(table, field, what)
        return tuple((self.text(e, 0), e.number(1, "I")) for e in entries)
