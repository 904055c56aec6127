"""Slower Python replacements for C extensions of `base` that are not built, with the same contracts (in their .pyi).

An interrupt in `Owner.close` may leave descriptors open. Handing over between threads does not spin. Until Python 3.13,
each mapping keeps a duplicate of the descriptor.
"""

import mmap
import os
import sys
import threading
from contextlib import suppress


class Gate:
    """A gate that one thread waits at and another opens, any number of times. It begins shut."""

    __slots__ = ("_shut",)

    def __init__(self) -> None:
        self._shut = threading.Lock()
        self._shut.acquire()

    def open(self) -> None:
        """Let one wait pass, the current or the next one."""
        with suppress(RuntimeError):  # it is open
            self._shut.release()

    def wait(self, seconds: float = -1, first: "Gate | None" = None, /) -> bool:
        """Wait until it is open, at most `seconds` (below 0: no limit), then shut it. first: a gate to open before."""
        if first is not None:
            if not isinstance(first, Gate):
                raise TypeError("wait: what is to be opened first must be a Gate or None")
            first.open()
        return self._shut.acquire(timeout=seconds if 0 <= seconds <= threading.TIMEOUT_MAX else -1)


class Mapping(mmap.mmap):
    """A shared mapping of a file, memfd or dma-buf. It is unmapped with its last view."""

    def __new__(cls, fd: int, size: int, offset: int, writable: bool) -> "Mapping":
        """Map `size` bytes at `offset`, a multiple of the page size; OSError if the kernel refuses."""
        if size < 1 or offset < 0:
            raise ValueError(f"Mapping: {size} bytes at {offset}, must be at least 1 at 0 or more")
        kept = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return super().__new__(cls, fd, size, mmap.MAP_SHARED, access, offset=offset, **kept)


class Owner:
    """Descriptors that stay open as long as this object is referenced."""

    __slots__ = ("__weakref__", "fds")

    def __init__(self, *fds: int) -> None:
        """Take over open descriptors."""
        self.fds = list(fds)

    def close(self) -> None:
        """Close and forget all descriptors; each is forgotten first."""
        with suppress(IndexError):  # none is left
            while True:
                with suppress(OSError):
                    os.close(self.fds.pop())

    __del__ = close
