"""Memories for constants: written once, then sealed and immutable for all processes."""

import os
from typing import Protocol

import numpy as np

from nnhal.base.descriptors import Owner
from nnhal.base.errors import BadFile, OutOfMemory
from nnhal.base.memory import Memory, Origin, aligned, seal
from nnhal.base.operands import Array

_AT_ONCE = 1 << 20  # bytes requested from a stream at once


class Readable(Protocol):
    """An object that can be read like an open binary file: a buffer, a member of an archive, a response."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, at most `size`; none at the end."""


class Store:
    """A memfd that grows until `seal` makes a memory of it."""

    def __init__(self, name: str) -> None:
        self._owner = Owner()
        try:
            self._owner.fds.extend(map(os.memfd_create, (name,), (os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING,)))
        except OSError as error:
            raise OutOfMemory(f"memory: no descriptor for {name}: {error.strerror}") from error
        (self._fd,) = self._owner.fds
        self.size = 0
        self._origin: Origin | None = None

    def add(self, array: Array) -> int:
        """Write a copy of the array's bytes in row-major order, and return their offset."""
        offset = aligned(self.size)
        self._write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, offset)
        return offset

    def _write(self, left: memoryview, offset: int) -> None:
        self._origin = None
        self.size = offset + len(left)
        while left:
            try:
                left = left[os.pwrite(self._fd, left, self.size - len(left)) :]
            except OSError as error:
                raise OutOfMemory(f"memory: {self.size} bytes could not be written: {error.strerror}") from error

    def add_stream(self, stream: Readable) -> None:
        """Write the rest of a stream. TypeError if it does not give bytes, and any error that it raises."""
        while len(data := memoryview(stream.read(_AT_ONCE)).cast("B")):
            self._write(data, self.size)

    def add_file(self, path: "str | os.PathLike[str]", fd: int | None = None, start: int = 0) -> None:
        """Write a copy of a file. BadFile if it changes meanwhile; OSError if it cannot be read.

        fd: the open file, whose position does not change; the path is then used in messages only. start: the first byte
        to copy.
        """
        with open(path if fd is None else fd, "rb", buffering=0, closefd=fd is None) as file:
            before, begin = os.fstat(file.fileno()), self.size
            os.lseek(self._fd, begin, os.SEEK_SET)
            while count := os.sendfile(self._fd, file.fileno(), start + self.size - begin, 1 << 30):
                self.size += count
            after = os.fstat(file.fileno())
        self._origin = None
        if not begin:
            facts = after.st_dev, after.st_ino, after.st_size, start, after.st_mtime_ns, after.st_ctime_ns
            self._origin = Origin(*facts)
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise BadFile(f"{os.fspath(path)}: was written to while it was read, must stay as it is until it is loaded")

    def seal(self) -> Memory:
        """Return the read-only memory: no process can change it any more."""
        if not self.size:
            return Memory.wrap(np.frombuffer(b"", np.uint8))
        seal(self._fd, one_way=True)
        memory = Memory.from_fd(self._fd, self.size)
        memory.kind, memory.origin = "ashmem", self._origin
        return memory


def sealed(data: "bytes | Array") -> Memory:
    """Return a copy of bytes as an immutable memory."""
    store = Store("nnhal-constants")
    store.add(np.frombuffer(data, np.uint8))
    return store.seal()
