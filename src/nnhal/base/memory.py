"""Memory pools, to which operands and requests refer by index, offset and length.

Kinds, by the HAL's names:

- `ashmem`: a memfd of fixed size.
- `mmap_fd`: a region of a file.
- `hardware_buffer_blob`: bytes that devices can import as a dma-buf, if the kernel has udmabuf.
- `hardware_buffer`: a buffer in a device-specific layout, which only its device can map.
- `host`: an array of this process. Other processes cannot use it.
"""

import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import stat
import struct
import weakref
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.answers import raise_application_error, safe_repr
from nnhal.base.descriptors import Owner
from nnhal.base.errors import BadFile, Closed, InvalidArgument, OutOfMemory, Unmappable
from nnhal.base.log import logger
from nnhal.base.native import Mapping
from nnhal.base.operands import Array
from nnhal.base.uncopied import NotCopyable
from nnhal.base.values import convert_integer

_log = logger("memory")
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
FUTURE_WRITE = 0x10  # F_SEAL_FUTURE_WRITE, Linux 5.1: no new writable mapping, no write; `fcntl` names it from 3.13 on
ALIGNMENT = 64  # bytes; the alignment of arguments and constants in a pool that holds several
BLOB = 0x21  # AHARDWAREBUFFER_FORMAT_BLOB
_UDMABUF = "/dev/udmabuf"
_UDMABUF_CREATE = 0x40187542  # _IOW('u', 0x42, struct udmabuf_create)
_UDMABUF_ARGUMENT = struct.Struct("IIQQ")  # memfd, flags, offset, size
_UDMABUF_CLOEXEC = 1


def aligned(size: int, step: int = ALIGNMENT) -> int:
    """Round the size up to a multiple of `step`."""
    return -(-size // step) * step


def seal(fd: int, *, one_way: bool) -> None:
    """Seal a memfd for good. one_way: also against new writers, if the kernel supports it."""
    if one_way:
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, FUTURE_WRITE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)


def seals(fd: int) -> int | None:
    """Return the seals (F_SEAL_*) of a descriptor; None if its kind has none."""
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return None


def is_ordinary_memfd(fd: int) -> bool:
    """Whether it is a memfd of ordinary pages. Huge pages are unsafe: a reader dies if the machine has none left."""
    return os.fstat(fd).st_dev == _memfds()


@functools.cache
def _memfds() -> int:
    """Return the device number of all memfds with ordinary pages."""
    fd = os.memfd_create("nnhal-look", os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def first_bytes(fd: int, length: int) -> bytes:
    """Return the first bytes of another process's memory, or fewer if it is shorter.

    The memory is read and not mapped, so that its owner cannot crash the reader.
    """
    data = os.pread(fd, length, 0)
    while len(data) < length and (more := os.pread(fd, length - len(data), len(data))):
        data += more
    return data


class Layout(NamedTuple):
    """The layout of a hardware buffer. format: a number of AHardwareBuffer_Format."""

    width: int
    height: int = 1
    layers: int = 1
    format: int = BLOB


class Origin(NamedTuple):
    """The file that a memory was read from, and its state then: the same identity means the same bytes."""

    device: int
    inode: int
    size: int
    start: int  # the offset of the first byte that was read
    modified_ns: int
    changed_ns: int


class Memory(NotCopyable, instead="`copy_to` copies its bytes, and its descriptor (`fd`) can be sent over a socket"):
    """A region of bytes that processes can share.

    Attributes:
        kind: "ashmem", "mmap_fd", "hardware_buffer_blob", "hardware_buffer" or "host".
        size: The number of bytes.
        fd: The descriptor of the region; -1 for "host".
        layout: The layout of a hardware buffer; None for other kinds.
        dma_buf: A descriptor of the same bytes for devices that import dma-bufs; -1 if there is none.
        one_way: Whether only this process can write to it.
        origin: The file that a sealed copy was made from; None for other memories.
    """

    __slots__ = (
        "__weakref__",
        "_closed",
        "_owner",
        "_root",
        "_source",
        "dma_buf",
        "fd",
        "kind",
        "layout",
        "offset",
        "one_way",
        "origin",
        "readonly",
        "size",
    )

    def __init__(
        self,
        kind: str,
        size: int,
        owner: Owner,
        offset: int,
        source: Mapping | Array | None,
        readonly: bool,
        layout: Layout | None = None,
    ) -> None:
        """Take over descriptors (of the region, and a dma-buf) and a mapping, which begins at a page.

        source: None if no process can map it.
        """
        self.fd, self.dma_buf = (*owner.fds, -1, -1)[:2]
        self.kind, self.size, self.offset, self.readonly = kind, size, offset, readonly
        self.layout, self.one_way = layout, False
        self.origin: Origin | None = None
        self._source, self._closed = source, False
        self._root: weakref.ref[Array] | None = None
        self._owner: Owner | None = owner

    @classmethod
    def allocate(cls, size: int, name: str = "nnhal", *, one_way: bool = False) -> "Memory":
        """Allocate a zeroed ashmem pool, sealed against shrinking and growing.

        Args:
            size: The number of bytes.
            name: The name that Linux shows in /proc.
            one_way: Whether only this process can write to it, even if others receive its descriptor (Linux 5.1 and
                later).

        Returns:
            The memory.

        Raises:
            InvalidArgument: The size is not a positive number.
            OutOfMemory: There is not enough memory.
            ResourceExhausted: There is no free descriptor.
        """
        owner, mapping = _memfd(size, size, name, one_way=one_way)
        memory = cls("ashmem", size, owner, 0, mapping, readonly=False)
        memory.one_way = one_way
        return memory

    @classmethod
    def from_array(cls, array: Array) -> "Memory":
        """Allocate an ashmem pool with a copy of the array's bytes in row-major order.

        Args:
            array: Any array.
        """
        source = _bytes_of(array)
        memory = cls.allocate(max(1, source.size))
        memory.bytes()[: source.size] = source
        return memory

    @classmethod
    def hardware_buffer_blob(cls, size: int) -> "Memory":
        """Allocate a zeroed hardware buffer of format BLOB: a sealed memfd, with a dma-buf if the kernel allows.

        Args:
            size: The number of bytes.
        """
        owner, mapping = _memfd(size, aligned(convert_integer(size, "memory: size"), mmap.PAGESIZE), "nnhal-blob")
        _add_udmabuf(owner, size)
        return cls("hardware_buffer_blob", size, owner, 0, mapping, False, Layout(size))

    @classmethod
    def hardware_buffer(cls, size: int, layout: Layout, fd: int = -1) -> "Memory":
        """Wrap a hardware buffer whose layout only its device knows. Executions can use it; nothing can map it.

        Args:
            size: The number of bytes of its contents without gaps.
            layout: Its declared layout.
            fd: Its descriptor, which is duplicated; -1 for none.
        """
        if layout.format == BLOB:
            raise InvalidArgument("hardware buffer: format is BLOB, must be another; use hardware_buffer_blob")
        if size < 1:
            raise InvalidArgument(f"hardware buffer: size is {size}, must be at least 1 byte")
        owner = Owner()
        if fd >= 0:
            owner.fds.extend(map(os.dup, (fd,)))
        return cls("hardware_buffer", size, owner, 0, None, False, layout)

    @classmethod
    def from_fd(cls, fd: int, size: int, offset: int = 0, *, readonly: bool = True, kept: bool = True) -> "Memory":
        """Map a region of a file, memfd or dma-buf. The caller keeps its own descriptor.

        Args:
            fd: The descriptor.
            size: The number of bytes.
            offset: The first byte.
            readonly: Whether to map for reading only.
            kept: Whether to duplicate the descriptor, so that other processes can receive the memory.

        Raises:
            Unmappable: The descriptor is of another kind.
            InvalidArgument: It is closed, not open for this access, or too small.
        """
        fd, size, offset = (
            convert_integer(n, f"memory: {what}") for n, what in ((fd, "fd"), (size, "size"), (offset, "offset"))
        )
        length = _mappable_length(fd, readonly)
        if size < 1 or offset < 0 or offset + size > length:
            raise InvalidArgument(f"memory: bytes {offset} to {offset + size} must lie inside the file's {length}")
        start, owner = offset - offset % mmap.ALLOCATIONGRANULARITY, Owner()
        try:
            region = Mapping(fd, offset + size - start, start, not readonly)
            if kept:
                owner.fds.extend(map(fcntl.fcntl, (fd,), (fcntl.F_DUPFD_CLOEXEC,), (0,)))
        except (OSError, ValueError) as error:
            raise Unmappable(f"memory: descriptor {fd} cannot be mapped: {error}") from error
        _log.debug("%d bytes at %d of descriptor %d mapped", size, offset, fd)
        return cls("mmap_fd", size, owner, offset, region, readonly)

    @classmethod
    def from_file(cls, path: "str | os.PathLike[str]") -> "Memory":
        """Map a whole file for reading. Bytes are read when they are first used.

        Later changes of the file change the contents, and a process that reads a truncated file crashes. `base.sealed`
        copies a file safely.

        Args:
            path: The file.
        """
        if not isinstance(path, str | os.PathLike):
            raise InvalidArgument(f"memory: path is {safe_repr(path)}, must be that of a file")
        opened = Owner()
        try:
            opened.fds.extend(map(os.open, (path,), (os.O_RDONLY | os.O_CLOEXEC,)))
        except (OSError, ValueError) as error:
            raise BadFile(f"{os.fspath(path)}: cannot be read: {error}; must be a file") from None
        try:
            return cls.from_fd(opened.fds[0], os.fstat(opened.fds[0]).st_size)
        finally:
            opened.close()

    @classmethod
    def wrap(cls, array: Array) -> "Memory":
        """Wrap an array as a host pool, without a copy.

        Args:
            array: A contiguous array.
        """
        if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
            raise InvalidArgument(f"memory: wraps {safe_repr(array)}, must be an array, row-major without gaps")
        return cls("host", array.nbytes, Owner(), 0, _bytes_of(array), not array.flags.writeable)

    @staticmethod
    def of(array: Array) -> "tuple[Memory, int] | None":
        """Return the pool that an array is a view of, and the offset of its first byte there.

        Args:
            array: Any array.

        Returns:
            None if the array is not a view of a pool with a descriptor.
        """
        root: Any = array
        while isinstance(base := root.base.obj if isinstance(root.base, memoryview) else root.base, np.ndarray):
            root = base
        known = _by_root.get(id(root))
        if known is None or known[0]._closed:
            return None
        offset = address(array) - known[1]
        return (known[0], offset) if offset >= 0 else None

    @property
    def sealed(self) -> bool:
        """Whether it cannot shrink (F_SEAL_SHRINK) and has ordinary pages, so that another process may map it."""
        return self.fd >= 0 and bool((seals(self.fd) or 0) & fcntl.F_SEAL_SHRINK) and is_ordinary_memfd(self.fd)

    def copy_to(self, other: "Memory") -> None:
        """Copy all bytes to a memory of the same size.

        Args:
            other: The memory to write to.
        """
        if not isinstance(other, Memory):
            raise InvalidArgument(f"memory: is copied to {safe_repr(other)}, must be to a memory")
        source, target = self.bytes(), other.writable()
        if other.size != self.size:
            raise InvalidArgument(f"memory: the target is {other.size} bytes, must be {self.size}")
        np.copyto(target, source)

    def bytes(self) -> Array:
        """All bytes, as an array over the pool itself."""
        root = None if self._root is None else self._root()
        if root is not None and not self._closed:
            return root
        if self._closed:
            raise Closed("memory: used after close")
        if self._source is None:
            raise Unmappable(f"memory: a {self.kind} cannot be mapped here, must be ashmem, mmap_fd or a blob")
        if not isinstance(self._source, Mapping):
            return self._source
        root = np.frombuffer(memoryview(self._source), np.uint8, self.size, self.offset % mmap.ALLOCATIONGRANULARITY)
        key = id(root)
        self._root = weakref.ref(root)
        # A callback written in C ends the entry. An interrupt in a Python callback would be lost, and the entry would
        # stay for ever.
        _by_root[key] = self, address(root), weakref.ref(root, functools.partial(_by_root.pop, key))
        return root

    def writable(self) -> Array:
        """All bytes, as an array to write to; InvalidArgument if the memory is read-only."""
        if self.readonly:
            raise InvalidArgument("memory: is for reading only, must be writable")
        return self.bytes()

    def view(self, offset: int, length: int, dtype: Any = np.uint8, shape: tuple[int, ...] | None = None) -> Array:
        """View a region as an array over the pool itself.

        Args:
            offset: The first byte.
            length: The number of bytes.
            dtype: The element type.
            shape: The shape; one dimension by default.

        Raises:
            InvalidArgument: The region leaves the pool, or does not make an array of this type and shape.
        """
        data = self.bytes()
        try:
            if 0 <= offset <= offset + length <= self.size:
                flat = data[offset : offset + length].view(dtype)
                return flat if shape is None else flat.reshape(shape)
        except (TypeError, ValueError, OverflowError) as error:
            what = f"{safe_repr(length)} bytes at {safe_repr(offset)} as {safe_repr(dtype)} of shape {safe_repr(shape)}"
            raise InvalidArgument(f"memory: {what} are no array: {error}") from None
        raise InvalidArgument(f"memory: bytes {offset} to {offset + length} must lie inside the pool's {self.size}")

    @property
    def mappable(self) -> bool:
        """Whether this process can map it."""
        return self._source is not None

    def close(self) -> None:
        """Close the descriptors. The mapping goes with the last array over it."""
        self._source = None
        self._closed = True
        self.close_descriptors()

    def owner(self) -> Owner:
        """The owner of its descriptors, `fd` first. They stay open while it is held, also after `close`."""
        if self._owner is None:
            raise Closed("memory: used after close")
        return self._owner

    def close_descriptors(self) -> None:
        """Close the descriptors and keep the mapping: no other process can receive the memory any more."""
        self.fd = self.dma_buf = -1
        self._owner = None

    def __repr__(self) -> str:
        return f"Memory({self.kind}, {self.size} bytes)"


# By id of the array over all bytes, while the array or a view of it lives: the memory, which lives as long, and its
# address.
_by_root: "dict[int, tuple[Memory, int, weakref.ref[Array]]]" = {}
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_DATA = 40  # the offset of the data pointer in numpy's PyArrayInterface


def address(array: Array) -> int:
    """Return the address of the first byte, through the C struct of numpy's array interface.

    `__array_interface__` takes 0.6 µs longer: 2 of the 12 µs of a burst whose three arguments lie in pools.
    """
    capsule = array.__array_struct__  # its struct goes with it
    at: int = _capsule_pointer(capsule, None)
    return ctypes.c_void_p.from_address(at + _DATA).value or 0


def _bytes_of(array: Any) -> Array:
    """Return the array's bytes in row-major order, without a copy if possible."""
    try:
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    except Exception as error:  # from an object that pretends to be an array
        raise_application_error(error)
        raise InvalidArgument(f"memory: is of {safe_repr(array)}, must be of an array of numbers") from error


def _memfd(size: int, length: int, name: str, *, one_way: bool = False) -> tuple[Owner, Mapping]:
    """Create a sealed memfd of `length` zeroed bytes, and map the first `size` of them for writing."""
    if convert_integer(size, "memory: size") < 1:
        raise InvalidArgument(f"memory: size is {size}, must be at least 1 byte")
    owner = Owner()
    try:
        owner.fds.extend(map(os.memfd_create, (name,), (os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING,)))
    except OSError as error:
        raise OutOfMemory(f"memory: no descriptor for {size} bytes: {error.strerror}") from error
    fd = owner.fds[0]
    try:
        os.ftruncate(fd, length)
        mapping = Mapping(fd, size, 0, True)
        seal(fd, one_way=one_way)
    except (OSError, OverflowError) as error:
        owner.close()
        raise OutOfMemory(f"memory: {size} bytes could not be allocated: {error}") from error
    _log.debug("memfd of %d bytes, descriptor %d", size, fd)
    return owner, mapping


def _add_udmabuf(owner: Owner, size: int) -> None:
    """Add a dma-buf over the pages of a sealed memfd to its owner, if the kernel and its permissions allow."""
    fd, length = owner.fds[0], aligned(size, mmap.PAGESIZE)
    device = Owner()
    try:
        device.fds.extend(map(os.open, (_UDMABUF,), (os.O_RDWR | os.O_CLOEXEC,)))
        argument = bytearray(_UDMABUF_ARGUMENT.pack(fd, _UDMABUF_CLOEXEC, 0, length))
        owner.fds.extend(map(fcntl.ioctl, device.fds, (_UDMABUF_CREATE,), (argument,)))  # the result of the call itself
    except OSError as error:
        _log.debug("no dma-buf over descriptor %d: %s", fd, error.strerror)


def _mappable_length(fd: int, readonly: bool) -> int:
    """Return the number of bytes that a descriptor refers to, after a check whether it may be mapped."""
    try:
        mode = os.fstat(fd).st_mode
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    except (OSError, ValueError, OverflowError):
        raise InvalidArgument(f"memory: descriptor {fd} is not open") from None
    if flags & os.O_PATH:
        raise Unmappable(f"memory: descriptor {fd} is opened as a path only, must be opened for reading")
    if not stat.S_ISREG(mode) and not _is_dma_buf(fd):
        kind = next((name for test, name in _KINDS if test(mode)), "of no kind that has bytes")
        raise Unmappable(f"memory: descriptor {fd} is {kind}, must be a regular file, memfd or dma-buf")
    access = flags & os.O_ACCMODE
    if access == os.O_WRONLY or (access == os.O_RDONLY and not readonly):
        needed = "reading" if readonly else "reading and writing"
        raise InvalidArgument(f"memory: descriptor {fd} is not open for {needed}, must be")
    return os.fstat(fd).st_size if stat.S_ISREG(mode) else os.lseek(fd, 0, os.SEEK_END)


_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def _is_dma_buf(fd: int) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}").startswith("/dmabuf:")
    with (
        contextlib.suppress(OSError),
        open(f"/proc/self/fdinfo/{fd}", "rb") as file,
    ):  # a sandboxed process may not read links
        return b"\nexp_name:" in file.read()
    return False
