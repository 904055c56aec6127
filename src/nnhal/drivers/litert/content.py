"""The bytes of a TFLite model, whose weights may be the pages of the pools that hold them.

LiteRT reads a model as one file or as one `bytes` object. Copied weights would be in memory twice: in the pool (the
mapped file, the builder's memory) of the NNAPI model, and in the TFLite model. So a mapping of the pool replaces pages
of the object's memory: it reads as any other `bytes`, and the kernel holds the weights once.
"""

import ctypes
import mmap
import os
import stat
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.errors import OutOfMemory
from nnhal.base.memory import Memory, aligned
from nnhal.base.operands import Array
from nnhal.base.records import Struct

ALIGNMENT_MAPPED = 16  # of constants that stay in place: the TFLite schema requires it in a file
LEAST_MAPPED = 1 << 20  # the least bytes of constants in one pool for which it is mapped
PAGE = mmap.PAGESIZE
_FIXED = 0x10  # MAP_FIXED, which Python's mmap module does not define
_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_FAILED = ctypes.c_void_p(-1).value
_unwritten = ctypes.pythonapi.PyBytes_FromStringAndSize  # without a string, it returns unwritten memory
_unwritten.restype = ctypes.py_object
_unwritten.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)


class MappedContent(NamedTuple):
    """Bytes of a pool's descriptor that are mapped into a content: their start, their length, their offset there."""

    pool: "weakref.ref[Memory]"
    start: int
    length: int
    at: int


class Content:
    """The bytes of a TFLite model, written before anyone reads them; `bytes(content)` is a copy.

    zeros: how many bytes begin as zeros, by default all. The later ones must be mapped, written or cleared: if an
    allocator reuses memory, it would clear bytes that are mapped anyway. in_place: bytes of constants that were not
    copied. room: bytes of the flatbuffer proper. copied: these and the copied constants. windows: the mappings after
    them. moves: positions in the flatbuffer that hold the offset of a mapped constant, and the number of its window.
    """

    in_place = room = 0

    def __init__(self, size: int, zeros: int | None = None) -> None:
        self.copied = size
        self.windows: list[MappedContent] = []
        self.moves: list[tuple[int, int]] = []
        self._data: bytes = bytes(size) if zeros is None else _unwritten(None, size)
        self._address: int = np.frombuffer(self._data, np.uint8).ctypes.data
        if zeros is not None:
            self.clear(0, zeros)
        self._mapped: list[tuple[int, int]] = []  # addresses and lengths
        # The data stays until its original pages are restored; at the interpreter's end nothing needs them to be.
        weakref.finalize(self, _give_back, self._mapped, self._data).atexit = False

    def __len__(self) -> int:
        return len(self._data)

    def __bytes__(self) -> bytes:
        return bytes(bytearray(self._data))

    def pass_to(self, make: Callable[..., Any], **settings: Any) -> Any:
        """Call `make` with the bytes as its argument `model_content`; its result keeps them.

        The bytes are valid while this content lives.
        """
        made = make(model_content=self._data, **settings)
        made.nnhal_content = self
        return made

    def write(self, offset: int, data: "bytes | Array") -> None:
        """Write bytes, or those of a contiguous array."""
        source = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        self._require(offset, source.nbytes)
        ctypes.memmove(self._address + offset, source.ctypes.data, source.nbytes)

    def clear(self, start: int, end: int) -> None:
        """Set bytes to zero."""
        self._require(start, end - start)
        ctypes.memset(self._address + start, 0, end - start)

    def page(self, offset: int) -> int:
        """Return the first offset, from `offset` on, at which a page of memory begins."""
        return offset + -(self._address + offset) % PAGE

    def map(self, offset: int, pool: Memory, start: int, length: int) -> None:
        """Map bytes of a pool's descriptor, from `start` on, to `offset`: whole pages on both sides."""
        self._require(offset, length)
        self.windows.append(MappedContent(weakref.ref(pool), start, length, offset))
        self._mapped.append((self._address + offset, length))
        _replace(self._address + offset, length, 0, pool.fd, start)

    def map_or_copy(self, offset: int, pool: Memory, start: int, length: int) -> None:
        """Map bytes; if the pool has no descriptor, copy them."""
        if is_file(pool.fd):
            self.map(offset, pool, start, length)
            return
        first = start - pool.offset  # in the pool, which may begin within its first page and end within its last
        self.write(offset + max(0, -first), pool.bytes()[max(0, first) : max(0, first + length)])

    def head(self) -> memoryview:
        """Return the bytes that are not mapped."""
        return memoryview(self._data)[: self.copied]

    def _require(self, offset: int, length: int) -> None:
        if offset < 0 or offset + length > len(self):
            raise IndexError(f"content: bytes {offset} to {offset + length} must lie inside its {len(self)}")


def _replace(address: int, length: int, flags: int, fd: int, start: int) -> None:
    """Map a private and writable page, like the memory before: an allocator writes to it when it frees it at the end."""
    flags |= mmap.MAP_PRIVATE | _FIXED
    if _mmap(address, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, start) == _FAILED:
        why = os.strerror(ctypes.get_errno())
        raise OutOfMemory(f"litert: cannot map {length} bytes of constants: {why}")


def _give_back(mapped: Iterable[tuple[int, int]], data: bytes) -> None:
    """Restore the anonymous memory of the allocator; only then may `data` be freed."""
    for address, length in mapped:
        _replace(address, length, mmap.MAP_ANONYMOUS, -1, 0)


class _Window(Struct):
    """The mapped part of a pool: whole pages from byte `start` of its descriptor to `end`, at offset `at`."""

    start: int
    end: int
    size: int = 0  # bytes of constants in it
    at: int = 0


def joined(room: int, arrays: Sequence[Array], places: Sequence[int]) -> tuple[Content, list[int]]:
    """Return `room` bytes followed by contiguous arrays, each copied or mapped with its pool; and the arrays' offsets.

    places: the position of each offset in the first bytes.
    """
    homes = [_home(array) for array in arrays]
    windows = _windows(arrays, homes)
    homes = [home if home and home[0] in windows else None for home in homes]
    end = room + sum(aligned(array.nbytes) for array, home in zip(arrays, homes, strict=True) if home is None)
    content = Content(end + sum(PAGE + window.end - window.start for window in windows.values()), end)
    content.room, content.copied = room, end
    content.in_place = sum(window.size for window in windows.values())
    for pool, window in windows.items():
        window.at, length = content.page(end), window.end - window.start
        content.clear(end, window.at)
        content.map(window.at, pool, window.start, length)
        end = window.at + length
    content.clear(end, len(content))
    offsets, end = [], room
    numbers = {pool: number for number, pool in enumerate(windows)}
    for array, home, place in zip(arrays, homes, places, strict=True):
        if home is None:
            content.write(end, array)
            offsets.append(end)
            end += aligned(array.nbytes)
        else:
            window = windows[home[0]]
            content.moves.append((place, numbers[home[0]]))
            offsets.append(window.at + home[1] - window.start)
    return content, offsets


def _home(array: Array) -> tuple[Memory, int] | None:
    """Return the pool with which an array can be mapped, and the array's start in the pool's descriptor."""
    found = Memory.of(array)
    start = found[0].offset + found[1] if found else 0
    return (found[0], start) if found and start % ALIGNMENT_MAPPED == 0 else None


def _windows(arrays: Sequence[Array], homes: Sequence[tuple[Memory, int] | None]) -> dict[Memory, _Window]:
    """Return the pools to map, by the arrays in them."""
    windows: dict[Memory, _Window] = {}
    for array, home in zip(arrays, homes, strict=True):
        if home is not None:
            pool, start = home
            first, end = start - start % PAGE, aligned(start + array.nbytes, PAGE)
            window = windows.setdefault(pool, _Window(first, end))
            window.start, window.end = min(window.start, first), max(window.end, end)
            window.size += array.nbytes
    return {pool: window for pool, window in windows.items() if window.size >= LEAST_MAPPED and is_file(pool.fd)}


def is_file(fd: int) -> bool:
    """Whether it is a file or memfd: a dma-buf has no private mappings, and a pool may be mapped without a descriptor."""
    return fd >= 0 and stat.S_ISREG(os.fstat(fd).st_mode)
