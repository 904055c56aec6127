"""Reads an `.onnx` file into records without trusting it: BadFile names the malformed node and field.

Messages are read in the file's order, each once; tensors stay in place.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import numpy as np

from nnhal.base.codes import MAX_RANK
from nnhal.base.errors import BadFile
from nnhal.base.memory import Memory
from nnhal.base.names import short
from nnhal.base.operands import Array
from nnhal.frontends.common.budget import Budget, Cost
from nnhal.frontends.common.packed import packed_size, unpack
from nnhal.frontends.common.terms import Blob
from nnhal.frontends.onnx.external_data import ExternalDataFiles
from nnhal.frontends.onnx.file import (
    DTYPES,
    KINDS,
    OWN_DOMAINS,
    SMALL,
    AttributeReference,
    OnnxEdge,
    OnnxFile,
    OnnxFileGraph,
    OnnxFunction,
    OnnxNode,
    OnnxTensor,
)
from nnhal.frontends.onnx.node_order import arranged, inner_graphs
from nnhal.frontends.onnx.wire import BYTES, FIXED32, VARINT, fields, float_at, numbers, signed, varint
from nnhal.model.validate import MAX_DEPTH

MOST_DIM = 1 << 31
LONGEST = 300  # characters of a place in messages
LEAST_OPSET = 7  # since when binary operators broadcast as NumPy does
TYPED = {4: ("<f4", "FLOAT"), 10: ("<f8", "DOUBLE")}  # fields of values that are stored as plain bytes
PACKED = {5: ("INT32", "INT16", "INT8", "UINT16", "UINT8", "BOOL", "FLOAT16"), 7: ("INT64",), 11: ("UINT64", "UINT32")}


def read(memory: Memory, label: str, folder: str | None) -> OnnxFile:
    """Return the contents of a file. folder: the place of external files, None without one (bytes)."""
    return _OnnxReader(memory, label, folder).file()


def has_own_operators(source: OnnxFileGraph | OnnxFunction) -> bool:
    """Whether a graph, or one inside of it, has operators of the domain ai.onnx; files of trees alone have none."""
    return any(not node.domain or any(map(has_own_operators, inner_graphs(node))) for node in source.nodes)


class _OnnxReader:
    def __init__(self, memory: Memory, label: str, folder: str | None) -> None:
        array = memory.bytes()
        self.memory, self.array, self.data = memory, array, memoryview(array.data)
        self.label, self.budget = label, Budget(label, array.size)
        self.beside = ExternalDataFiles(label, folder, self.budget)
        self.depth = 0

    def malformed(self, place: str, what: str) -> NoReturn:
        """Raise the error for a malformed part of the file."""
        place = place if len(place) <= LONGEST else f"{place[: LONGEST // 2]} .. {place[-LONGEST // 2 :]}"
        raise BadFile(": ".join(filter(None, (self.label, place, what))))

    # ------------------------------------------------------------------------------------------------------ messages

    def message(self, at: tuple[int, int], place: str, takes: Mapping[int, Callable[[Any], None]]) -> None:
        """Pass each field of a message to its reader: a number, or the place of its bytes."""
        self.budget.spend(Cost.TABLES, 1, place)
        start, length = at
        try:
            for number, wire, value, size in fields(self.data, start, start + length):
                take = takes.get(number)
                if take is None:
                    continue
                if wire == VARINT:
                    take(value)
                elif wire == BYTES:
                    take((value, size))
                elif wire == FIXED32:
                    take(float_at(self.data, value))
                else:
                    take((value, size))
        except BadFile:
            raise
        except ValueError as error:
            self.malformed(place, str(error))
        except TypeError as error:
            raise BadFile(f"{self.label}: {place}: has a field of the wrong type") from error

    def text(self, at: tuple[int, int], place: str) -> str:
        """Return a string."""
        start, length = at
        self.budget.spend(Cost.ELEMENTS, 1 + length, place)
        try:
            return bytes(self.data[start : start + length]).decode()
        except UnicodeDecodeError:
            self.malformed(place, f"has a text at byte {start} that is not UTF-8")

    def integers(self, value: Any, into: list[int], place: str) -> None:
        """Append the integers of a repeated field, single or packed."""
        if isinstance(value, int):
            self.budget.spend(Cost.ELEMENTS, 1, place)
            into.append(signed(value))
            return
        start, length = value
        self.budget.spend(Cost.ELEMENTS, 8 * length, place)
        at, end = start, start + length
        while at < end:
            number, at = varint(self.data, at, end)
            into.append(signed(number))

    def floats(self, value: Any, into: list[float], place: str) -> None:
        """Append the 32-bit floats of a repeated field, single or packed."""
        if isinstance(value, float):
            self.budget.spend(Cost.ELEMENTS, 1, place)
            into.append(value)
            return
        start, length = value
        self.budget.spend(Cost.ELEMENTS, length, place)
        if length % 4:
            raise ValueError(f"has {length} bytes of numbers at byte {start}, must be a multiple of 4")
        into.extend(np.frombuffer(self.data[start : start + length], "<f4").tolist())

    # ---------------------------------------------------------------------------------------------------------- model

    def file(self) -> OnnxFile:
        """Read the ModelProto."""
        graphs: list[tuple[int, int]] = []
        functions: list[tuple[int, int]] = []
        opsets: dict[str, int] = {}
        properties: dict[str, str] = {}
        producer: list[str] = []
        versions: list[int] = []
        self.message(
            (0, len(self.data)),
            "",
            {
                1: versions.append,
                2: lambda at: producer.append(self.text(at, "producer_name")),
                7: graphs.append,
                8: lambda at: opsets.update([self.opset(at)]),
                14: lambda at: properties.update([self.pair(at, "metadata_props")]),
                25: functions.append,
            },
        )
        if len(graphs) != 1:
            self.malformed("", f"has {len(graphs)} graphs, must have one")
        found = dict(self.function(at, n, opsets) for n, at in enumerate(functions))
        graph = self.graph(graphs[0], "")
        version = max((opsets.get(domain, 0) for domain in OWN_DOMAINS), default=0)
        needed = version or (
            has_own_operators(graph) or any(map(has_own_operators, found.values()))
        )  # trees alone may have no version
        if needed and version < LEAST_OPSET:
            said = f"operators of version {version}" if version else "no version of its operators (opset_import)"
            self.malformed("", f"has {said}, must be {LEAST_OPSET} or later: onnx.version_converter makes one of it")
        memories = (self.memory, *self.beside.memories())
        name = producer[0] if producer else ""
        args = (self.label, graph, opsets, found, name, properties, memories, tuple(self.beside.names), self.budget)
        return OnnxFile(*args)

    def opset(self, at: tuple[int, int]) -> tuple[str, int]:
        """Read an OperatorSetIdProto."""
        domain, version = [""], [0]
        self.message(
            at,
            "opset_import",
            {1: lambda a: domain.append(self.text(a, "opset_import")), 2: lambda n: version.append(signed(n))},
        )
        return domain[-1], version[-1]

    def pair(self, at: tuple[int, int], place: str) -> tuple[str, str]:
        """Read a StringStringEntryProto."""
        key, value = [""], [""]
        take = {1: lambda a: key.append(self.text(a, place)), 2: lambda a: value.append(self.text(a, place))}
        self.message(at, place, take)
        return key[-1], value[-1]

    def function(
        self, at: tuple[int, int], number: int, opsets: Mapping[str, int]
    ) -> tuple[tuple[str, str, str], OnnxFunction]:
        """Read a FunctionProto."""
        place = f"function {number}"
        name, domain, overload = [""], [""], [""]
        inputs: list[str] = []
        outputs: list[str] = []
        nodes: list[tuple[int, int]] = []
        names: list[str] = []
        defaults: dict[str, Any] = {}
        own = dict(opsets)
        self.message(
            at,
            place,
            {
                1: lambda a: name.append(self.text(a, place)),
                4: lambda a: inputs.append(self.text(a, place)),
                5: lambda a: outputs.append(self.text(a, place)),
                6: lambda a: names.append(self.text(a, place)),
                7: nodes.append,
                9: lambda a: own.update([self.opset(a)]),
                10: lambda a: domain.append(self.text(a, place)),
                11: lambda a: defaults.update([self.attribute(a, place)]),
                13: lambda a: overload.append(self.text(a, place)),
            },
        )
        made = [self.node(a, n, f" of {short(name[-1])}") for n, a in enumerate(nodes)]
        placed = arranged(made, inputs, {}, outputs, (), self.where(place))
        key = domain[-1], name[-1], overload[-1]
        return key, OnnxFunction(tuple(inputs), tuple(outputs), tuple(placed), defaults, own)

    def where(self, place: str) -> str:
        """Return the file and a place in it."""
        return f"{self.label}: {place}" if place else self.label

    # ---------------------------------------------------------------------------------------------------------- graphs

    def graph(self, at: tuple[int, int], place: str) -> OnnxFileGraph:
        """Read a GraphProto. The nodes of inner graphs are sorted with those of the enclosing one."""
        if self.depth >= MAX_DEPTH:
            self.malformed(place, f"graphs are nested deeper than {MAX_DEPTH}")
        self.depth += 1
        name: list[str] = [""]
        nodes: list[OnnxNode] = []
        constants: dict[str, OnnxTensor] = {}
        edges: dict[int, list[OnnxEdge]] = {11: [], 12: [], 13: []}
        inside = f" of {place}" if place else ""

        def constant(a: tuple[int, int]) -> None:
            tensor = self.tensor(a, f"initializer {len(constants)}{inside}")
            if not tensor.name:
                self.malformed(place, f"initializer {len(constants)} has no name")
            if tensor.name in constants:
                self.malformed(place, f"initializer {short(tensor.name)!r} occurs twice, must occur once")
            constants[tensor.name] = tensor

        def edge(number: int, what: str) -> Callable[[tuple[int, int]], None]:
            into = edges[number]
            return lambda a: into.append(self.edge(a, f"{what} {len(into)}{inside}"))

        self.message(
            at,
            place,
            {
                1: lambda a: nodes.append(self.node(a, len(nodes), inside)),
                2: lambda a: name.append(self.text(a, place)),
                5: constant,
                11: edge(11, "input"),
                12: edge(12, "output"),
                13: edge(13, "value_info"),
                15: lambda _: self.malformed(place, "has a sparse initializer, must be a dense one"),
            },
        )
        self.depth -= 1
        inputs = [e for e in edges[11] if e.name not in constants]
        if not place:
            self._check_edges(edges[11], edges[12])
        names = [e.name for e in inputs]
        outputs = [e.name for e in edges[12]]
        placed = arranged(nodes, names, constants, outputs, (), self.where(place)) if not place else nodes
        known = {e.name: e for each in edges.values() for e in each}
        return OnnxFileGraph(name[-1], tuple(placed), constants, tuple(inputs), tuple(edges[12]), known)

    def _check_edges(self, inputs: Iterable[OnnxEdge], outputs: Iterable[OnnxEdge]) -> None:
        for what, edges in (("input", inputs), ("output", outputs)):
            for n, edge in enumerate(edges):
                if not edge.name:
                    self.malformed("", f"{what} {n} has no name")

    def edge(self, at: tuple[int, int], place: str) -> OnnxEdge:
        """Read a ValueInfoProto."""
        name: list[str] = [""]
        types: list[tuple[int, int]] = []
        self.message(at, place, {1: lambda a: name.append(self.text(a, place)), 2: types.append})
        kind, shape = ("", None) if not types else self.type(types[-1], place)
        return OnnxEdge(name[-1], kind, shape)

    def type(self, at: tuple[int, int], place: str) -> tuple[str, Any]:
        """Read a TypeProto: element type and shape of a tensor, or the name of another type."""
        tensors: list[tuple[int, int]] = []
        others: list[str] = []
        names = {4: "a sequence", 5: "a map", 8: "a sparse tensor", 9: "optional"}
        take: dict[int, Callable[[Any], None]] = {n: lambda _, w=what: others.append(w) for n, what in names.items()}  # type: ignore[misc]
        self.message(at, place, {**take, 1: tensors.append})
        if others or not tensors:
            return (others or [""])[-1], None
        kinds: list[int] = [0]
        shapes: list[tuple[int, int]] = []
        self.message(tensors[-1], place, {1: kinds.append, 2: shapes.append})
        kind = KINDS.get(kinds[-1]) or (f"type {kinds[-1]}" if kinds[-1] else "")
        if not shapes:
            return kind, None
        dims: list[Any] = []
        self.message(shapes[-1], place, {1: lambda a: dims.append(self.dim(a, place))})
        if len(dims) > MAX_RANK:
            self.malformed(place, f"has {len(dims)} dimensions, must have at most {MAX_RANK}")
        return kind, tuple(dims)

    def dim(self, at: tuple[int, int], place: str) -> int | str | None:
        """Read a dimension.

        A name without a letter, such as the `?` of some exporters or `-1`, is not a shared name.
        """
        found: list[int | str | None] = [None]

        def size(value: Any) -> None:
            number = signed(value)
            if number >= MOST_DIM:
                self.malformed(place, f"has a dimension of {number}, must be less than {MOST_DIM}")
            found.append(number if number >= 0 else None)

        def name(value: Any) -> None:
            text = self.text(value, place)
            found.append(text if any(map(str.isalpha, text)) else None)

        self.message(at, place, {1: size, 2: name})
        return found[-1]

    def node(self, at: tuple[int, int], number: int, inside: str) -> OnnxNode:
        """Read a NodeProto."""
        place = f"node {number}{inside}"
        texts: dict[int, str] = {}
        inputs: list[str] = []
        outputs: list[str] = []
        attributes: dict[str, Any] = {}

        def attribute(a: tuple[int, int]) -> None:
            name, value = self.attribute(a, called())
            if name in attributes:
                self.malformed(called(), f"attribute {short(name)!r} occurs twice, must occur once")
            attributes[name] = value

        def called() -> str:
            return f"{place} ({short(texts.get(4, '?'))})"

        def text(n: int) -> Callable[[tuple[int, int]], None]:
            return lambda a: texts.__setitem__(n, self.text(a, place))

        takes: dict[int, Callable[[Any], None]] = {n: text(n) for n in (3, 4, 7, 8)}
        takes |= {1: lambda a: inputs.append(self.text(a, place)), 2: lambda a: outputs.append(self.text(a, place))}
        self.message(at, place, {**takes, 5: attribute})
        if not texts.get(4):
            self.malformed(place, "has no op_type")
        domain = texts.get(7, "")
        return OnnxNode(
            f"#{number}{inside}",
            short(texts.get(3, "")),
            short(texts[4]),
            "" if domain in OWN_DOMAINS else short(domain),
            tuple(inputs),
            tuple(outputs),
            attributes,
            short(texts.get(8, "")),
        )

    def attribute(self, at: tuple[int, int], place: str) -> tuple[str, Any]:
        """Read an AttributeProto: its name and its value."""
        names: list[str] = [""]
        kinds: list[int] = [0]
        refers: list[str] = []
        single: dict[int, Any] = {}
        many: dict[int, list[Any]] = {n: [] for n in (7, 8, 9, 10, 11)}

        def one(n: int) -> Callable[[Any], None]:
            return lambda value: single.__setitem__(n, value)

        self.message(
            at,
            place,
            {
                1: lambda a: names.append(self.text(a, place)),
                **{n: one(n) for n in (2, 3, 4, 5, 6, 22)},
                7: lambda v: self.floats(v, many[7], place),
                8: lambda v: self.integers(v, many[8], place),
                9: lambda a: many[9].append(self.text(a, place)),
                10: many[10].append,
                11: many[11].append,
                20: kinds.append,
                21: lambda a: refers.append(self.text(a, place)),
            },
        )
        name = short(names[-1])
        where = f"{place} attribute {name}"
        if refers:
            return name, AttributeReference(refers[-1])
        kind = kinds[-1] or _implied(single, many)
        return name, self.value(kind, single, many, where)

    def value(self, kind: int, single: Mapping[int, Any], many: Mapping[int, list[Any]], place: str) -> Any:
        """Return the value of an attribute. kind: a number of AttributeProto.AttributeType."""
        try:
            if kind == 1:
                return float(single.get(2, 0.0))
            if kind == 2:
                return signed(int(single.get(3, 0)))
            if kind == 3:
                at = single.get(4)
                return "" if at is None else self.latin(at, place)
            if kind == 4:
                return self.tensor(single[5], place)
            if kind == 5:
                return self.graph(single[6], place)
        except (TypeError, KeyError):
            self.malformed(place, "has no value of its declared type")
        if kind in (6, 7, 8):
            return tuple(many[kind + 1])
        if kind == 9:
            return tuple(self.tensor(at, place) for at in many[10])
        if kind == 10:
            return tuple(self.graph(at, place) for at in many[11])
        return None  # sparse tensors and types: no supported operator has one

    def latin(self, at: tuple[int, int], place: str) -> str:
        """Return a string of arbitrary bytes."""
        start, length = at
        self.budget.spend(Cost.ELEMENTS, 1 + length, place)
        return bytes(self.data[start : start + length]).decode("utf-8", "backslashreplace")

    # --------------------------------------------------------------------------------------------------------- tensors

    def tensor(self, at: tuple[int, int], place: str) -> OnnxTensor:
        """Read a TensorProto."""
        name: list[str] = [""]
        dims: list[int] = []
        kinds: list[int] = [0]
        raw: list[tuple[int, int]] = []
        places: list[int] = [0]
        outside: dict[str, str] = {}
        texts: list[str] = []
        typed: dict[int, list[Any]] = {n: [] for n in (4, 5, 7, 10, 11)}
        self.message(
            at,
            place,
            {
                1: lambda v: self.integers(v, dims, place),
                2: kinds.append,
                3: lambda _: self.malformed(place, "is a segment of a tensor, must be a whole one"),
                **{n: into.append for n, into in typed.items()},
                6: lambda a: texts.append(self.latin(a, place)),
                8: lambda a: name.append(self.text(a, place)),
                9: raw.append,
                13: lambda a: outside.update([self.pair(a, place)]),
                14: places.append,
            },
        )
        where = f"{place} ({short(name[-1])})" if name[-1] else place
        kind = KINDS.get(kinds[-1])
        if kind is None:
            self.malformed(where, f"has data_type {kinds[-1]}, must be one of {', '.join(map(str, KINDS))}")
        if len(dims) > MAX_RANK:
            self.malformed(where, f"has {len(dims)} dimensions, must have at most {MAX_RANK}")
        for dim in dims:
            if not 0 <= dim < MOST_DIM:
                self.malformed(where, f"has a dimension of {dim}, must be 0 to {MOST_DIM - 1}")
        shape = tuple(dims)
        if kind == "STRING":
            self.counted(len(texts), math.prod(shape), where)
            return OnnxTensor(name[-1], kind, shape, texts=tuple(texts))
        packed = kind if kind in SMALL else ""
        kind = f"{packed[:-1]}8" if packed else kind
        if kind not in DTYPES:
            return OnnxTensor(name[-1], kind, shape)
        count = math.prod(shape)
        size = packed_size(SMALL[packed], count) if packed else count * np.dtype(DTYPES[kind]).itemsize
        if places[-1] == 1:
            return OnnxTensor(name[-1], kind, shape, self.beside.blob(outside, size, where), packed=packed)
        if raw:
            start, length = raw[-1]
            if length != size:
                of = f"{packed or kind} {list(shape)}"
                self.malformed(where, f"raw_data has {length} bytes, must have {size} for {of}")
            return OnnxTensor(name[-1], kind, shape, Blob(start, length), packed=packed)
        if packed:
            found = self.in_fields("", "UINT8", (size,), typed, where).values
            values = unpack(np.asarray(found), SMALL[packed], shape, signed=kind == "INT8")
            return OnnxTensor(name[-1], kind, shape, values=values, packed=packed)
        return self.in_fields(name[-1], kind, shape, typed, where)

    def in_fields(
        self, name: str, kind: str, shape: tuple[int, ...], typed: Mapping[int, list[Any]], place: str
    ) -> OnnxTensor:
        """Read a tensor whose values lie in a field of their type."""
        count, dtype = math.prod(shape), np.dtype(DTYPES[kind])
        for number, (stored, of) in TYPED.items():
            if kind == of:
                return self.of_floats(OnnxTensor(name, kind, shape), typed[number], np.dtype(stored), place)
        number = next(n for n, kinds in PACKED.items() if kind in kinds)
        found: list[Array] = []
        for part in typed[number]:
            if isinstance(part, tuple):
                self.budget.spend(Cost.MEMORY, 32 * part[1], place)
                try:
                    found.append(numbers(self.array[part[0] : sum(part)]))
                except ValueError as error:
                    self.malformed(place, str(error))
            else:
                self.budget.spend(Cost.ELEMENTS, 8, place)
                found.append(np.array([signed(int(part))], np.int64))
        values = np.concatenate(found) if found else np.zeros(0, np.int64)
        self.counted(values.size, count, place)
        if kind == "FLOAT16":
            values = values.astype(np.uint16).view(np.float16)
        elif kind != "UINT64":
            limits = (0, 1) if kind == "BOOL" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
            if values.size and not (limits[0] <= values.min() and values.max() <= limits[1]):
                self.malformed(place, f"has a value that is not {kind}, must be {limits[0]} to {limits[1]}")
        return OnnxTensor(
            name,
            kind,
            shape,
            values=values.view("<u8" if kind == "UINT64" else values.dtype).astype(dtype).reshape(shape),
        )

    def of_floats(self, tensor: OnnxTensor, parts: list[Any], dtype: np.dtype[Any], place: str) -> OnnxTensor:
        """Read a tensor of floats, in one block of bytes, several blocks, or single values."""
        count = math.prod(tensor.shape)
        if len(parts) == 1 and isinstance(parts[0], tuple):
            self.counted(parts[0][1] // dtype.itemsize, count, place)
            return tensor._replace(blob=Blob(parts[0][0], count * dtype.itemsize))
        single: list[float] = []
        for part in parts:
            self.budget.spend(Cost.ELEMENTS, 8 if isinstance(part, float) else 8 + part[1], place)
            if isinstance(part, float):
                single.append(part)
            else:
                single += np.frombuffer(self.data[part[0] : sum(part)], dtype).tolist()
        self.counted(len(single), count, place)
        return tensor._replace(values=np.array(single, dtype).reshape(tensor.shape))

    def counted(self, found: int, wanted: int, place: str) -> None:
        """Raise BadFile if the number of values does not match the tensor's shape."""
        if found != wanted:
            self.malformed(place, f"has {found} values, must have {wanted}")


def _implied(single: Mapping[int, Any], many: Mapping[int, list[Any]]) -> int:
    """Infer the type of an attribute without a declared type, as in old files."""
    for field, kind in ((2, 1), (3, 2), (4, 3), (5, 4), (6, 5)):
        if field in single:
            return kind
    return next((field - 1 for field, values in many.items() if values), 0)
