"""Reads what a `.tflite` file says about itself: a flatbuffer in one of its buffers, and a zip file behind it.

Places of fields are those of the published schema, `metadata_schema.fbs`. Nothing is trusted, and nothing here keeps a model
from being loaded: what cannot be read is said in `Metadata.problem`.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from nnhal.base.errors import BadFile
from nnhal.base.operands import Array
from nnhal.frontends.tflite.archive import Archive
from nnhal.frontends.tflite.file import File
from nnhal.model.metadata import AssociatedFile, Metadata, TensorMetadata

IDENTIFIER = b"M001"
MOST_BYTES = 1 << 24
MOST_RECORDS, MOST_TEXT, MOST_NUMBERS = 5000, 1 << 20, 1 << 12
CONTENTS = {1: "feature", 2: "image", 3: "bounding boxes", 4: "audio"}
COLOURS = {1: "RGB", 2: "grayscale"}
KINDS = {1: "descriptions", 2: "axis labels", 3: "value labels", 4: "score calibration", 5: "vocabulary", 6: "index"}
NORMALISATION, THRESHOLD = 1, 3  # of the kinds of process units
NAME, DESCRIPTION = 0, 1  # fields of most tables


def metadata_of(file: File, subgraph: int) -> Metadata | None:
    """What is said of a subgraph of the file, None where nothing is."""
    if file.metadata is None:
        return None
    data = file.bytes_of(file.metadata)
    if len(data) > MOST_BYTES:
        return Metadata(problem=f"metadata has {len(data)} bytes, must have {MOST_BYTES} at most")
    try:
        return _Reader(data.tobytes()).metadata(subgraph, _Behind(file.data, file.label))
    except (struct.error, IndexError, ValueError, OverflowError, BadFile) as error:
        return Metadata(problem=f"metadata cannot be read: {error}")


class _Behind(Mapping[str, bytes]):
    """The zip file behind a model, opened when it is first looked into; none is an empty one."""

    def __init__(self, data: Array, label: str) -> None:
        self._data, self._label = data, label
        self._archive: Mapping[str, bytes] | None = None

    def _opened(self) -> Mapping[str, bytes]:
        if self._archive is None:
            there = b"PK\x05\x06" in self._data[-(1 << 16) - 22 :].tobytes()
            self._archive = Archive(self._data, self._label) if there else {}
        return self._archive

    def __getitem__(self, name: str) -> bytes:
        return self._opened()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._opened()

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened())

    def __len__(self) -> int:
        return len(self._opened())


class _Reader:
    """A flatbuffer: tables are places of their first byte. All that is read together is bounded."""

    def __init__(self, data: bytes) -> None:
        self.data, self.records, self.text = data, MOST_RECORDS, MOST_TEXT
        if data[4:8] != IDENTIFIER:
            raise ValueError(f"identifier is {data[4:8]!r}, must be {IDENTIFIER!r}")

    def number(self, form: str, at: int) -> Any:
        if at < 0:
            raise ValueError(f"refers to byte {at}")
        return struct.unpack_from("<" + form, self.data, at)[0]

    def field(self, table: int, place: int) -> int:
        """Where field `place` of a table lies, 0 where it has none."""
        self.records -= 1
        if self.records < 0:
            raise ValueError(f"has more than {MOST_RECORDS} records")
        vtable = table - self.number("i", table)
        if 4 + 2 * place >= self.number("H", vtable):
            return 0
        offset = self.number("H", vtable + 4 + 2 * place)
        return table + offset if offset else 0

    def reference(self, at: int) -> int:
        return at + int(self.number("I", at))

    def child(self, table: int, place: int) -> int:
        """A table in a table, 0 for none."""
        at = self.field(table, place)
        return self.reference(at) if at else 0

    def string(self, table: int, place: int) -> str:
        at = self.field(table, place)
        return self._string(self.reference(at)) if at else ""

    def _string(self, start: int) -> str:
        size = self.number("I", start)
        self.text -= size
        if start + 4 + size > len(self.data) or self.text < 0:
            raise ValueError(f"has a text of {size} bytes, must lie within its {len(self.data)} and be shorter in all")
        raw = self.data[start + 4 : start + 4 + size].decode(errors="replace")
        return "".join(c for c in raw if c.isprintable() or c == "\n")

    def places(self, table: int, place: int) -> list[int]:
        """Places of the elements of a vector of references."""
        at = self.field(table, place)
        if not at:
            return []
        start = self.reference(at)
        count = self.number("I", start)
        self.records -= count
        if self.records < 0:
            raise ValueError(f"has more than {MOST_RECORDS} records")
        return [self.reference(start + 4 + 4 * n) for n in range(count)]

    def strings(self, table: int, place: int) -> tuple[str, ...]:
        return tuple(map(self._string, self.places(table, place)))

    def floats(self, table: int, place: int) -> tuple[float, ...]:
        at = self.field(table, place)
        if not at:
            return ()
        start = self.reference(at)
        count = self.number("I", start)
        self.records -= count // 16
        if count > MOST_NUMBERS or self.records < 0:
            raise ValueError(f"has {count} numbers in a row, must have {MOST_NUMBERS} at most")
        return struct.unpack_from(f"<{count}f", self.data, start + 4)

    def byte(self, table: int, place: int) -> int:
        at = self.field(table, place)
        return int(self.number("B", at)) if at else 0

    # ------------------------------------------------------------------------------------------------------ the schema

    def metadata(self, subgraph: int, contents: Mapping[str, bytes]) -> Metadata:
        """The whole, with what is said of one subgraph."""
        root = self.reference(0)
        graphs = self.places(root, 3)
        graphs, files = self.places(root, 3), self.files(root, 6)
        inputs: tuple[TensorMetadata, ...] = ()
        outputs: tuple[TensorMetadata, ...] = ()
        if subgraph < len(graphs):
            graph = graphs[subgraph]
            inputs, outputs = (tuple(map(self.tensor, self.places(graph, n))) for n in (2, 3))
            files += self.files(graph, 4)
        name, description, version, author, licence = (self.string(root, n) for n in (NAME, DESCRIPTION, 2, 4, 5))
        return Metadata(name, description, version, author, licence, inputs, outputs, files, contents)

    def files(self, table: int, place: int) -> tuple[AssociatedFile, ...]:
        return tuple(
            AssociatedFile(
                self.string(f, NAME), self.string(f, DESCRIPTION), KINDS.get(self.byte(f, 2), ""), self.string(f, 3)
            )
            for f in self.places(table, place)
        )

    def tensor(self, table: int) -> TensorMetadata:
        """One input or output; a normalisation that is none is left out."""
        content, stats = self.child(table, 3), self.child(table, 5)
        kind = CONTENTS.get(self.byte(content, 0), "") if content else ""
        image = self.child(content, 1) if kind == "image" else 0
        mean: tuple[float, ...] = ()
        std: tuple[float, ...] = ()
        threshold = None
        for unit in self.places(table, 4):
            what, options = self.byte(unit, 0), self.child(unit, 1)
            if what == NORMALISATION and options:
                mean, std = self.floats(options, 0), self.floats(options, 1)
            elif what == THRESHOLD and options:
                at = self.field(options, 0)
                threshold = self.number("f", at) if at else 0.0
        if not (mean and len(mean) == len(std) and all(map(math.isfinite, mean + std)) and all(std)):
            mean, std = (), ()
        return TensorMetadata(
            self.string(table, NAME),
            self.string(table, DESCRIPTION),
            self.strings(table, 2),
            kind,
            COLOURS.get(self.byte(image, 0), "") if image else "",
            mean,
            std,
            self.floats(stats, 1) if stats else (),
            self.floats(stats, 0) if stats else (),
            threshold,
            self.files(table, 6),
        )
