"""Reads a capture. The file is not trusted: lengths, digests and references are checked."""

import os
import re
import zlib
from collections.abc import Iterator
from math import prod
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec
import numpy as np

from nnhal.base.descriptors import Owner
from nnhal.base.errors import BadFile
from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.base.records import Record, Struct, field, replace
from nnhal.base.sealed import sealed
from nnhal.model.file import model_of
from nnhal.model.graph import Model
from nnhal.runtime.capturing.records import (
    BLOB,
    DIGEST,
    FRAME,
    LONGEST_RECORD,
    MAGIC,
    RECORD,
    VERSION,
    CapturedArray,
    CapturedCompilation,
    CapturedModel,
    CapturedPlacement,
    CapturedPreparation,
    CapturedRequest,
    CaptureEnd,
    CaptureHead,
    CaptureNote,
    CaptureRecord,
    PreparationEnd,
    RequestEnd,
    decode,
    digest_of,
)

_NUMBERS = re.compile(r"[<|=][biufc]\d{1,2}")  # types of elements


class BlobPlace(Record, frozen=True):
    """Where the bytes of a blob lie."""

    offset: int
    length: int


class ExecutedRequest(Struct):
    """A request and its end; None if the application ended before."""

    given: CapturedRequest
    end: RequestEnd | None = None


class PreparedPart(Struct):
    """A model that a device was given to prepare, the end of its preparation, and its requests in order."""

    given: CapturedPreparation
    end: PreparationEnd | None = None
    requests: list[ExecutedRequest] = field(default_factory=list)


class CaptureReader:
    """The contents of a capture.

    Attributes:
        path: The file.
        head: Its first record.
        models: By number.
        compilations: By number.
        parts: The preparations, by number.
        placements: In order.
        notes: Missing contents, with the reasons.
        complete: Whether the capture ended in order.
    """

    head: CaptureHead

    def __init__(self, path: Path) -> None:
        """Read all records.

        Raises:
            BadFile: It is not a capture, has a newer format, or is damaged at its beginning.
        """
        self.path = path
        self.models: dict[int, CapturedModel] = {}
        self.compilations: dict[int, CapturedCompilation] = {}
        self.parts: dict[int, PreparedPart] = {}
        self.placements: list[CapturedPlacement] = []
        self.notes: list[str] = []
        self.complete = False
        self._requests: dict[int, ExecutedRequest] = {}
        self._blobs: dict[bytes, BlobPlace] = {}
        self._pools: WeakValueDictionary[bytes, Memory] = WeakValueDictionary()
        self._owner = Owner()
        try:
            self._owner.fds.extend(map(os.open, (path,), (os.O_RDONLY | os.O_CLOEXEC,)))
            if not path.is_file():
                raise BadFile(f"capture {path}: is not an ordinary file, must be a file of nnhal capture")
            self._size = os.fstat(self._owner.fds[0]).st_size
        except OSError as error:
            raise BadFile(f"capture {path}: cannot be read: {error.strerror}") from None
        self._check_magic()
        records = self._records()
        first = next(records, None)
        if not isinstance(first, CaptureHead):
            raise BadFile(f"capture {path}: has no first record, must have one: it was cut, or is damaged")
        self.head = first
        for record in records:
            self._take(record)
        if not self.complete:
            self.notes.append("the capture did not end in order: the application was killed, crashed or still runs")

    def _check_magic(self) -> None:
        found = self._bytes(0, len(MAGIC))
        if found[:-1] != MAGIC[:-1]:
            raise BadFile(f"capture {self.path}: is not a capture, must be a file of nnhal capture")
        if found != MAGIC:
            raise BadFile(
                f"capture {self.path}: has format version {found[-1]}, must be {VERSION}: replay it with the nnhal that"
                " wrote it"
            )

    def _bytes(self, at: int, count: int) -> bytes:
        data = os.pread(self._owner.fds[0], count, at)
        if len(data) != count:
            raise BadFile(f"capture {self.path}: has {at + len(data)} bytes, must have {at + count}")
        return data

    def _records(self) -> Iterator[CaptureRecord]:
        """Yield the records up to the end, or to the first damaged frame, which a note names."""
        at = len(MAGIC)
        while at < self._size:
            if self._size - at < FRAME.size:
                self.notes.append(f"its last record is cut: {self._size - at} bytes are left out")
                return
            mark, crc, length = FRAME.unpack(self._bytes(at, FRAME.size))
            start = at + FRAME.size
            if mark not in (RECORD, BLOB) or (mark == RECORD and length > LONGEST_RECORD):
                self.notes.append(f"it is damaged at byte {at}: the rest is left out")
                return
            if length > self._size - start:
                self.notes.append(f"its last record is cut: {self._size - at} bytes are left out")
                return
            checked = self._bytes(start, length if mark == RECORD else min(length, DIGEST))
            if zlib.crc32(checked) != crc or (mark == BLOB and length < DIGEST):
                self.notes.append(f"it is damaged at byte {at}: the rest is left out")
                return
            at = start + length
            if mark == BLOB:
                self._blobs.setdefault(checked, BlobPlace(start + DIGEST, length - DIGEST))
                continue
            try:
                record = decode(checked)
            except msgspec.DecodeError as error:
                self.notes.append(f"it is damaged at byte {start}: {error}; the rest is left out")
                return
            yield record

    def _take(self, record: CaptureRecord) -> None:
        """Add a record. One that refers to nothing in the file is left out."""
        match record:
            case CapturedModel():
                self.models[record.number] = record
            case CapturedCompilation() if record.model in self.models:
                self.compilations[record.number] = record
            case CapturedPreparation() if record.model in self.models and record.compilation in self.compilations:
                self.parts[record.number] = PreparedPart(record)
            case PreparationEnd() if record.number in self.parts:
                self.parts[record.number].end = record
            case CapturedPlacement() if record.compilation in self.compilations:
                self.placements.append(record)
            case CapturedRequest() if record.preparation in self.parts:
                request = self._requests[record.number] = ExecutedRequest(record)
                self.parts[record.preparation].requests.append(request)
            case RequestEnd() if record.number in self._requests:
                self._requests[record.number].end = record
            case CaptureNote():
                self.notes.append(record.text)
            case CaptureEnd():
                self.complete = True
                if record.dropped:
                    self.notes.append(f"{record.dropped} records are missing: they were beyond its limit")
            case _:
                self.notes.append(f"a record {type(record).__name__} refers to nothing: it is left out")

    def _blob(self, digest: bytes, what: str) -> Array:
        """Return the bytes of a blob, verified; BadFile if the file does not have them."""
        place = self._blobs.get(digest)
        if place is None:
            raise BadFile(f"capture {self.path}: lacks {what}")
        found = np.empty(place.length, np.uint8)
        view, done = found.data, 0
        while done < place.length:
            count = os.preadv(self._owner.fds[0], [view[done:]], place.offset + done)
            if not count:
                raise BadFile(f"capture {self.path}: ended inside {what}, must not change while it is read")
            done += count
        if digest_of(view) != digest:
            raise BadFile(f"capture {self.path}: {what} is damaged at byte {place.offset}")
        return found

    def model(self, number: int) -> Model:
        """Return a model.

        Raises:
            BadFile: There is no such model, or the file lacks some of it; the message has the reason.
            InvalidModel: It breaks a rule.
        """
        found = self.models.get(number)
        if found is None:
            raise BadFile(f"capture {self.path}: has no model {number}, must be one of 0 to {len(self.models) - 1}")
        what = f"model {number} of {self.path}"
        if found.lacks:
            raise BadFile(f"{what}: is not whole: {found.lacks}")

        def pool(place: int, size: int) -> Memory:
            if place >= len(found.pools):
                raise BadFile(f"{what}: has {len(found.pools)} pools, must have {place + 1}")
            return self._pool(found.pools[place], size, f"pool {place} of model {number}")

        def whole(model: Model) -> Model:
            return replace(model, values=self._blob(found.values, f"the constants of model {number}").tobytes())

        return model_of(what, found.head, pool, whole)

    def _pool(self, digest: bytes, size: int, what: str) -> Memory:
        memory = self._pools.get(digest)
        if memory is None:
            data = self._blob(digest, what)
            memory = self._pools[digest] = sealed(data)
        if memory.size != size:
            raise BadFile(f"capture {self.path}: {what} has {memory.size} bytes, must have {size}")
        return memory

    def array(self, given: CapturedArray) -> Array:
        """Return an input or output.

        Raises:
            BadFile: The file lacks it, or its size does not fit.
        """
        if given.lacks or not given.contents:
            raise BadFile(f"capture {self.path}: lacks an array: {given.lacks or 'it has no contents'}")
        if not _NUMBERS.fullmatch(given.dtype):
            raise BadFile(f"capture {self.path}: an array is of {given.dtype!r}, must be of numbers")
        dtype, data = np.dtype(given.dtype), self._blob(given.contents, "an array")
        if prod(given.shape) * dtype.itemsize != data.size:
            raise BadFile(
                f"capture {self.path}: an array of {given.dtype}{list(given.shape)} has {data.size} bytes, must have"
                f" {prod(given.shape) * dtype.itemsize}"
            )
        return data.view(dtype).reshape(given.shape)

    def close(self) -> None:
        """Close the file."""
        self._owner.close()
