"""Zip files with models, or at the end of a model file. Nothing in them is trusted or extracted to disk."""

import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping

from nnhal.base.errors import BadFile
from nnhal.base.names import short
from nnhal.base.operands import Array
from nnhal.frontends.zipped import END, END_64, END_64_BYTES, END_BYTES, MOST_BEHIND

MOST_MEMBERS, MOST_DIRECTORY = 1000, 1 << 20
MOST_GROWTH = 100  # the most bytes of a member, as a multiple of the archive's
MOST_BYTES = 1 << 31  # of a member
LEAST_LIMIT = 1 << 20  # bytes that a member of the smallest archive may have
DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, ValueError, IndexError,
    NotImplementedError, RuntimeError, UnicodeError, OverflowError,
)  # fmt: skip


class Archive(Mapping[str, bytes]):
    """The members of an archive by name, read on demand; BadFile for damaged or too large ones."""

    def __init__(self, data: Array, label: str) -> None:
        self._label, self._size = label, len(data)
        self._check(data)
        try:
            self._zip = zipfile.ZipFile(io.BufferedReader(_Seekable(data)))
            self._members = {info.filename: info for info in self._zip.infolist() if not info.is_dir()}
        except DAMAGE as error:
            raise BadFile(f"{label}: is an unreadable zip file: {error}") from None

    def _check(self, data: Array) -> None:
        """Check the end record before any entry is read: it has the number and size of the entries."""
        tail = data[-MOST_BEHIND:].tobytes()
        at = tail.rfind(END)
        if at < 0 or at + END_BYTES > len(tail):
            raise BadFile(f"{self._label}: is a zip file without its end, must be complete")
        count, size = struct.unpack_from("<HI", tail, at + 10)
        if END_64 in tail[max(0, at - END_64_BYTES) : at] or count > MOST_MEMBERS or size > MOST_DIRECTORY:
            raise BadFile(
                f"{self._label}: is a zip file of {count} members or more and a directory of {size} bytes, must have "
                f"at most {MOST_MEMBERS} and {MOST_DIRECTORY}"
            )

    def size_of(self, name: str) -> int:
        """Return the bytes of a member, as recorded in the archive."""
        return self._members[name].file_size

    def __getitem__(self, name: str) -> bytes:
        info = self._members[name]
        limit = min(MOST_BYTES, max(LEAST_LIMIT, MOST_GROWTH * self._size))
        where = f"{self._label}: member {short(name)}"
        if info.file_size > limit:
            must = f"must have at most {limit}, {MOST_GROWTH} times the file's size"
            raise BadFile(f"{where} has {info.file_size} bytes, {must}")
        try:
            return self._zip.read(info)
        except DAMAGE as error:
            raise BadFile(f"{where} cannot be read: {short(str(error))}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


class _Seekable(io.RawIOBase):
    """An array of bytes as a file, without a copy."""

    def __init__(self, data: Array) -> None:
        self._view, self._at = memoryview(data), 0  # type: ignore[arg-type]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, len(self._view))[whence])
        return self._at

    def readinto(self, room: "memoryview") -> int:  # type: ignore[override]
        part = self._view[self._at : self._at + len(room)]
        room[: len(part)] = part
        self._at += len(part)
        return len(part)
