"""Reads the metadata of a `.tflite` file: a flatbuffer in one of its buffers, and a zip file behind it.

Fields have the numbers of the published schema, `metadata_schema.fbs`. Nothing is trusted, and nothing here prevents
loading a model: `Metadata.problem` reports unreadable metadata.
"""

import math
import struct
from collections.abc import Mapping

from nnhal.base.errors import BadFile
from nnhal.frontends.source import TrailingArchive
from nnhal.frontends.tflite.file import File
from nnhal.frontends.tflite.flat import WORD, FlatTable, length, target
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
    """Return the metadata of a subgraph of the file, None if there is none."""
    if file.metadata is None:
        return None
    data = file.bytes_of(file.metadata)
    if len(data) > MOST_BYTES:
        return Metadata(problem=f"metadata has {len(data)} bytes, must have at most {MOST_BYTES}")
    try:
        return _Reader(data.tobytes()).metadata(subgraph, TrailingArchive(file.data, file.label))
    except (struct.error, IndexError, ValueError, OverflowError, BadFile) as error:
        return Metadata(problem=f"metadata cannot be read: {error}")


class _Reader:
    """Reads the tables of a flatbuffer, up to a total limit."""

    def __init__(self, data: bytes) -> None:
        self.data, self.records, self.text = data, MOST_RECORDS, MOST_TEXT
        if data[4:8] != IDENTIFIER:
            raise ValueError(f"identifier is {data[4:8]!r}, must be {IDENTIFIER!r}")

    def spend(self, count: int) -> None:
        self.records -= count
        if self.records < 0:
            raise ValueError(f"has more than {MOST_RECORDS} records")

    def string(self, table: FlatTable, field: int) -> str:
        at = table.target(field)
        return self._string(at) if at else ""

    def _string(self, start: int) -> str:
        self.spend(1)
        size = length(self.data, start)
        self.text -= size
        if start + WORD + size > len(self.data) or self.text < 0:
            raise ValueError(f"has a text of {size} bytes, must lie within its {len(self.data)} and be shorter in all")
        raw = self.data[start + WORD : start + WORD + size].decode(errors="replace")
        return "".join(c for c in raw if c.isprintable() or c == "\n")

    def places(self, table: FlatTable, field: int) -> list[int]:
        """Return the places that a vector of references refers to."""
        start, count = table.vector(field)
        self.spend(1 + count)
        return [target(self.data, start + WORD * n) for n in range(count)]

    def tables(self, table: FlatTable, field: int) -> list[FlatTable]:
        return [FlatTable(self.data, place) for place in self.places(table, field)]

    def strings(self, table: FlatTable, field: int) -> tuple[str, ...]:
        return tuple(map(self._string, self.places(table, field)))

    def floats(self, table: FlatTable, field: int) -> tuple[float, ...]:
        start, count = table.vector(field)
        self.spend(1 + count // 16)
        if count > MOST_NUMBERS:
            raise ValueError(f"has {count} numbers in a row, must have at most {MOST_NUMBERS}")
        return struct.unpack_from(f"<{count}f", self.data, start) if count else ()

    # ------------------------------------------------------------------------------------------------------ the schema

    def metadata(self, subgraph: int, contents: Mapping[str, bytes]) -> Metadata:
        """Return the metadata, with those of one subgraph."""
        root = FlatTable(self.data, target(self.data, 0))
        graphs, files = self.tables(root, 3), self.files(root, 6)
        inputs: tuple[TensorMetadata, ...] = ()
        outputs: tuple[TensorMetadata, ...] = ()
        if subgraph < len(graphs):
            graph = graphs[subgraph]
            inputs, outputs = (tuple(map(self.tensor, self.tables(graph, n))) for n in (2, 3))
            files += self.files(graph, 4)
        name, description, version, author, licence = (self.string(root, n) for n in (NAME, DESCRIPTION, 2, 4, 5))
        return Metadata(name, description, version, author, licence, inputs, outputs, files, contents)

    def files(self, table: FlatTable, field: int) -> tuple[AssociatedFile, ...]:
        return tuple(
            AssociatedFile(
                self.string(f, NAME), self.string(f, DESCRIPTION), KINDS.get(f.number(2, "B"), ""), self.string(f, 3)
            )
            for f in self.tables(table, field)
        )

    def tensor(self, table: FlatTable) -> TensorMetadata:
        """Return one input or output, without an invalid normalisation."""
        content, stats = table.child(3), table.child(5)
        kind = CONTENTS.get(content.number(0, "B"), "") if content else ""
        image = content.child(1) if content and kind == "image" else None
        mean: tuple[float, ...] = ()
        std: tuple[float, ...] = ()
        threshold = None
        for unit in self.tables(table, 4):
            what, options = unit.number(0, "B"), unit.child(1)
            if what == NORMALISATION and options:
                mean, std = self.floats(options, 0), self.floats(options, 1)
            elif what == THRESHOLD and options:
                threshold = float(options.number(0, "f"))
        if not (mean and len(mean) == len(std) and all(map(math.isfinite, mean + std)) and all(std)):
            mean, std = (), ()
        return TensorMetadata(
            self.string(table, NAME),
            self.string(table, DESCRIPTION),
            self.strings(table, 2),
            kind,
            COLOURS.get(image.number(0, "B"), "") if image else "",
            mean,
            std,
            self.floats(stats, 1) if stats else (),
            self.floats(stats, 0) if stats else (),
            threshold,
            self.files(table, 6),
        )
