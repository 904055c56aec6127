"""Writes a capture: appends whole frames, up to a limit, and never fails the application."""

import os
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nnhal.base.descriptors import Owner
from nnhal.base.errors import InvalidArgument
from nnhal.base.log import logger
from nnhal.runtime.capturing.records import (
    BLOB,
    MAGIC,
    RECORD,
    CaptureEnd,
    CaptureNote,
    CaptureRecord,
    digest_of,
    encode,
    frame,
)

TAIL = 1024  # bytes that stay free for the last records
CHUNK = 1 << 30  # bytes that one call writes
_log = logger("execution")


class CaptureFile:
    """An open capture. problem: why it cannot grow any more; "" while it can."""

    def __init__(self, path: Path, limit: int, *, replaces: bool) -> None:
        """Create the file. replaces: whether an existing file is replaced; another name is found otherwise.

        Raises:
            InvalidArgument: No file can be created there.
        """
        self._limit, self._lock = limit, threading.RLock()
        self._known: set[bytes] = set()
        self._owner = Owner()
        self.problem, self.full, self.dropped, self._size = "", "", 0, 0
        self.path = self._create(path, replaces)
        self._append([MAGIC])

    def _create(self, path: Path, replaces: bool) -> Path:
        how = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if replaces else os.O_EXCL)
        names = [
            path,
            *(
                path.with_name(f"{path.stem}.{os.getpid()}{n}{path.suffix}")
                for n in ("", *map(".{}".format, range(2, 100)))
            ),
        ]
        for name in names:
            try:
                self._owner.fds.extend(map(os.open, (name,), (how,), (0o600,)))
                if stat.S_ISREG(os.fstat(self._owner.fds[0]).st_mode):
                    os.fchmod(self._owner.fds[0], 0o600)  # one that was there before may be readable to others
                return name
            except FileExistsError:
                continue
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                raise InvalidArgument(f"capture {path}: cannot be written: {why}") from None
        raise InvalidArgument(f"capture {path}: {len(names)} files of this name exist, must be another name")

    def add(self, record: CaptureRecord) -> bool:
        """Append a record, unless the file is at its limit. Return whether it was appended."""
        payload = encode(record)
        with self._lock:
            if self._size + len(payload) + TAIL > self._limit:
                self._note_full()
                self.dropped += 1
                return False
            return self._append([frame(RECORD, payload)])

    def store(self, data: bytes | memoryview) -> bytes:
        """Append bytes, unless the file has them. Return their digest, or b"" if they do not fit; `full` has the reason."""
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else memoryview(b"")  # an empty array has no format to cast
        digest = digest_of(view)
        with self._lock:
            if digest in self._known:
                return digest
            if self._size + len(view) + TAIL + min(self._limit // 8, 1 << 20) > self._limit:
                self._note_full()
                return b""
            if not self._append([frame(BLOB, digest, len(view)), view]):
                return b""
            self._known.add(digest)
            return digest

    def _note_full(self) -> None:
        if not self.full:
            self.full = f"the capture reached its limit of {self._limit} bytes"
            text = f"{self.full}: it lacks data from here on"
            self._append([frame(RECORD, encode(CaptureNote(text)))])
            _log.warning("capture %s: %s", self.path, text)

    def _append(self, parts: Sequence[bytes | memoryview]) -> bool:
        """Append bytes as a whole, or nothing."""
        if self.problem or not self._owner.fds:
            self.problem = self.problem or "the capture was closed"
            return False
        (fd,) = self._owner.fds
        left = [memoryview(part) for part in parts]
        try:
            while left:
                count = os.writev(fd, [each[:CHUNK] for each in left[:2]])
                while left and count >= len(left[0]):
                    count -= len(left.pop(0))
                if left:
                    left[0] = left[0][count:]
        except OSError as error:
            self.problem = self.full = f"the capture could not be written: {error.strerror}"
            _log.warning("capture %s: %s; it ends here", self.path, self.problem)
            with suppress(OSError):
                os.ftruncate(fd, self._size)
            return False
        self._size += sum(len(part) for part in parts)
        return True

    def close(self) -> None:
        """Append the last record and close the file; a second call has no effect."""
        with self._lock:
            if self._owner.fds and not self.problem:
                self._append([frame(RECORD, encode(CaptureEnd(self.dropped)))])
            self.abandon()

    def abandon(self) -> None:
        """Close the descriptor alone: in a forked child, whose parent goes on."""
        self.problem = self.problem or "the capture was closed"
        self._owner.close()
