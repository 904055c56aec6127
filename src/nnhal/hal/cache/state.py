"""Files in the user's state folder to which many processes append records.

    0   8  magic          8  32  key of the hashes          40  records

A record is one write to the end, so processes need no lock, and a sandboxed process has none. A process holds a shared
lock of each file that it has open. A process that opens a file which is too large, and which no other process has open,
replaces it by one with the newer records. Otherwise the file stays: a sandboxed process could not open the new one.
"""

import errno
import fcntl
import os
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nnhal.base.descriptors import Owner
from nnhal.base.digests import blake2b
from nnhal.base.private import absolute_path, append, file_lock, private_file, private_folder, replace_file, try_lock

KEY = 32  # bytes
HEAD = struct.Struct(f"<8s{KEY}s")
LOG_SUFFIXES = ".tokens", ".blobs"

_opened_here: set[str] = set()  # names of files that this process may have open, and must not remove as unused


def state_folder() -> Path:
    """Return the folder of the user's persistent state: NNHAL_STATE_DIR, or `nnhal` below XDG_STATE_HOME.

    OSError if there is no such folder.
    """
    given = os.environ.get("NNHAL_STATE_DIR")
    if given:
        return Path(given).absolute()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return absolute_path(base) / "nnhal"


def state_file(driver: str, kind: str) -> str:
    """Return the name of a driver's file there, which no other driver's file has."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", driver)[:64]
    return f"{name}-{blake2b(driver.encode(), digest_size=8).hexdigest()}.{kind}"


class StateFile:
    """A state file, open as long as this object lives. Every method may raise OSError."""

    def __init__(self, owner: Owner) -> None:
        """owner: of the descriptor."""
        self._owner, self._fd = owner, owner.fds[0]
        self.key = os.pread(self._fd, HEAD.size, 0)[-KEY:]

    @classmethod
    def open(cls, name: str, magic: bytes, most: int, newer: Callable[[bytes], bytes]) -> "StateFile":
        """Open a file, and create it if it is missing or invalid. It may be read-only, as its disk may be.

        most: bytes. newer: returns the records to keep of a larger file, given its last bytes.
        """
        folder = Owner()
        try:
            private_folder(state_folder(), folder)
            fd = folder.fds[0]
            _opened_here.add(name)
            with suppress(FileNotFoundError):
                owner = _opened(fd, name)
                if _whole(owner.fds[0], magic) and os.fstat(owner.fds[0]).st_size <= most:
                    return cls(owner)
                owner.close()
            with file_lock(fd):
                return cls(_replaced(fd, name, magic, most, newer))
        finally:
            folder.close()

    @classmethod
    def to_read(cls, name: str) -> "StateFile | None":
        """Open a file for reading; None if it is missing. It creates no folder."""
        folder, owner = Owner(), Owner()
        if not (state_folder() / name).exists():
            return None
        try:
            private_file(private_folder(state_folder(), folder), name, os.O_RDONLY, owner)
            return cls(owner)
        except FileNotFoundError:
            return None
        finally:
            folder.close()

    @property
    def fd(self) -> int:
        """Its descriptor, open as long as this object lives."""
        return self._fd

    @property
    def gone(self) -> bool:
        """Whether the file was removed or truncated: no process would read an appended record."""
        return os.fstat(self._fd).st_nlink == 0 or os.pread(self._fd, HEAD.size, 0)[-KEY:] != self.key

    @property
    def size(self) -> int:
        """The bytes of the whole file."""
        return os.fstat(self._fd).st_size

    def append(self, record: bytes) -> None:
        """Append a record. OSError if it is not completely written, or no process would read it."""
        if fcntl.fcntl(self._fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        append(self._fd, record)
        if self.gone:
            raise OSError(errno.ESTALE, "the file was removed or cut off")

    def last(self, most: int) -> bytes:
        """Return the last bytes of the records, at most so many."""
        return _last(self._fd, most)


def _last(fd: int, most: int) -> bytes:
    start, size = HEAD.size, os.fstat(fd).st_size
    start = max(start, size - most)
    data = b""
    while start + len(data) < size and (more := os.pread(fd, size - start - len(data), start + len(data))):
        data += more
    return data


def _opened(folder: int, name: str) -> Owner:
    """Open the file to append, or else to read, with a lock against replacement."""
    while True:
        owner = Owner()
        try:
            private_file(folder, name, os.O_RDWR | os.O_APPEND, owner)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise
            owner = Owner()
            private_file(folder, name, os.O_RDONLY, owner)
        with suppress(OSError):  # without locks, a sandboxed process may lose its records
            try_lock(owner.fds[0], shared=True)
        if os.fstat(owner.fds[0]).st_nlink:
            return owner


def _whole(fd: int, magic: bytes) -> bool:
    head = os.pread(fd, HEAD.size, 0)
    return len(head) == HEAD.size and head.startswith(magic)


def _replaced(folder: int, name: str, magic: bytes, most: int, newer: Callable[[bytes], bytes]) -> Owner:
    """Create or replace the file while no other process does."""
    key, records, there = os.urandom(KEY), b"", False
    with suppress(FileNotFoundError):
        owner = _opened(folder, name)
        fd = owner.fds[0]
        there = _whole(fd, magic)
        if there:
            if os.fstat(fd).st_size <= most or not _nobody_elses(fd):
                return owner
            key, records = os.pread(fd, HEAD.size, 0)[-KEY:], newer(_last(fd, 2 * most))
        owner.close()
    _remove_unused(folder)
    try:
        os.close(replace_file(folder, name, HEAD.pack(magic, key) + records))
    except OSError:
        if not there:
            raise
    return _opened(folder, name)


def _nobody_elses(fd: int) -> bool:
    try:
        return try_lock(fd)
    except OSError:
        return False


def _remove_unused(folder: int) -> None:
    """Remove files that have no record and are not open anywhere, such as those of removed drivers."""
    for name in os.listdir(folder):
        if name in _opened_here or not name.endswith(LOG_SUFFIXES):
            continue
        owner = Owner()
        with suppress(OSError):
            fd = private_file(folder, name, os.O_RDWR, owner)
            if os.fstat(fd).st_size <= HEAD.size and try_lock(fd):
                os.unlink(name, dir_fd=folder)
        owner.close()
