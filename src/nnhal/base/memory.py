"""Memory pools: what operands and requests refer to by index, offset and length.

Kinds, by the HAL's names: `ashmem` (a memfd that grows and shrinks for nobody), `mmap_fd` (a region of a file).
`host` pools wrap an array of this process; they cannot travel and serve calls that stay in it.
"""

import fcntl
import mmap
import os
import weakref
from typing import Any

import numpy as np

from nnhal.base.errors import Closed, InvalidArgument, OutOfMemory, Unmappable
from nnhal.base.log import logger
from nnhal.base.operands import Array

_log = logger("memory")
SEALS = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_F_ADD_SEALS, _F_GET_SEALS, _SEAL_SHRINK = 1033, 1034, 0x0002


class Memory:
    """A region of bytes that can be shared.

    kind: "ashmem", "mmap_fd" or "host". size: bytes. fd: descriptor of the region, -1 for "host".
    """

    __slots__ = ("__weakref__", "_bytes", "_finalizer", "fd", "kind", "offset", "readonly", "size")

    def __init__(self, kind: str, size: int, fd: int, offset: int, data: Array, readonly: bool) -> None:
        self.kind, self.size, self.fd, self.offset, self.readonly = kind, size, fd, offset, readonly
        self._bytes: Array | None = data
        self._finalizer = weakref.finalize(self, os.close, fd) if fd >= 0 else None
        root = data.base if isinstance(data.base, np.ndarray) else data
        _by_root[id(root)] = self

    @classmethod
    def allocate(cls, size: int, name: str = "nnhal") -> "Memory":
        """A new zeroed ashmem pool of `size` bytes, sealed against shrinking and growing."""
        if size < 1:
            raise InvalidArgument(f"memory: size is {size}, must be at least 1 byte")
        try:
            fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise OutOfMemory(f"memory: no descriptor for {size} bytes: {error.strerror}") from error
        try:
            os.ftruncate(fd, size)
            _seal(fd)
            data = np.frombuffer(mmap.mmap(fd, size), np.uint8)
        except OSError as error:
            os.close(fd)
            raise OutOfMemory(f"memory: {size} bytes could not be allocated: {error.strerror}") from error
        _log.debug("ashmem of %d bytes, descriptor %d", size, fd)
        return cls("ashmem", size, fd, 0, data, readonly=False)

    @classmethod
    def from_array(cls, array: Array) -> "Memory":
        """A new ashmem pool holding a copy of the array's bytes in row-major order."""
        source = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        memory = cls.allocate(max(1, source.size))
        memory.bytes()[: source.size] = source
        return memory

    @classmethod
    def from_fd(cls, fd: int, size: int, offset: int = 0, *, readonly: bool = True) -> "Memory":
        """Map `size` bytes at `offset` of a file. The descriptor is duplicated; the caller keeps its own."""
        try:
            length = os.fstat(fd).st_size
        except OSError as error:
            raise InvalidArgument(f"memory: descriptor {fd} is not open") from error
        if size < 1 or offset < 0 or offset + size > length:
            raise InvalidArgument(f"memory: bytes {offset} to {offset + size} must lie inside the file's {length}")
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        access = mmap.ACCESS_READ if readonly else mmap.ACCESS_WRITE
        try:
            region = mmap.mmap(fd, offset + size - start, access=access, offset=start)
        except (OSError, ValueError) as error:
            raise Unmappable(f"memory: descriptor {fd} cannot be mapped: {error}") from error
        data = np.frombuffer(region, np.uint8)[offset - start :]
        _log.debug("%d bytes at %d of descriptor %d mapped", size, offset, fd)
        return cls("mmap_fd", size, os.dup(fd), offset, data, readonly)

    @classmethod
    def from_file(cls, path: "str | os.PathLike[str]") -> "Memory":
        """Map a whole file for reading; its bytes are read only where they are touched."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return cls.from_fd(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)

    @classmethod
    def wrap(cls, array: Array) -> "Memory":
        """A host pool over the array's own bytes, which must be contiguous; nothing is copied."""
        if not array.flags.c_contiguous:
            raise InvalidArgument("memory: the array is not contiguous, must be row-major without gaps")
        return cls("host", array.nbytes, -1, 0, array.view(np.uint8).reshape(-1), not array.flags.writeable)

    @staticmethod
    def of(array: Array) -> "tuple[Memory, int] | None":
        """The pool that an array is a view of, and the offset of its first byte there; None for any other array."""
        root: Any = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        memory = _by_root.get(id(root))
        if memory is None or memory._bytes is None or (memory._bytes is not root and memory._bytes.base is not root):
            return None
        return memory, _address(array) - _address(memory._bytes)

    @property
    def sealed(self) -> bool:
        """Whether nobody can shrink it any more, so that another process may map it."""
        if self.fd < 0:
            return False
        try:
            return bool(fcntl.fcntl(self.fd, _F_GET_SEALS) & _SEAL_SHRINK)
        except OSError:  # of a kind that has no seals
            return False

    def bytes(self) -> Array:
        """All bytes as an array over the pool itself."""
        if self._bytes is None:
            raise Closed("memory: used after close")
        return self._bytes

    def writable(self) -> Array:
        """All bytes, to write to; InvalidArgument where the memory is for reading only."""
        if self.readonly:
            raise InvalidArgument("memory: is for reading only, must be writable")
        return self.bytes()

    def view(self, offset: int, length: int, dtype: Any = np.uint8, shape: tuple[int, ...] | None = None) -> Array:
        """`length` bytes at `offset` as an array over the pool itself; InvalidArgument where they leave the pool."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise InvalidArgument(f"memory: bytes {offset} to {offset + length} must lie inside the pool's {self.size}")
        flat = self.bytes()[offset : offset + length].view(dtype)
        return flat if shape is None else flat.reshape(shape)

    def close(self) -> None:
        """Give the descriptor back; the mapping goes when the last array over it does."""
        self._bytes = None
        if self._finalizer is not None:
            self._finalizer()
            self.fd = -1

    def __repr__(self) -> str:
        return f"Memory({self.kind}, {self.size} bytes)"


_by_root: "weakref.WeakValueDictionary[int, Memory]" = (
    weakref.WeakValueDictionary()
)  # by id of the array over all bytes


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _seal(fd: int) -> None:
    fcntl.fcntl(fd, _F_ADD_SEALS, SEALS)
