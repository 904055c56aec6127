"""A client's memories as its service maps them: each once, while the service uses it.

A descriptor comes with the message that needs it: a model, a binding, a copy. If another process shrinks a memory, its
reader is killed. So a memory must be sealed against shrinking, and have ordinary pages: holes punched into it read as
zeros. The exception is a regular file that a client's own driver process maps: it kills only that process.
"""

import mmap
import os
import stat
import threading
import weakref
from collections.abc import Callable, Sequence
from fcntl import F_SEAL_SHRINK

from nnhal.base.errors import InvalidArgument, Unmappable
from nnhal.base.memory import Memory, aligned, is_ordinary_memfd, seals
from nnhal.ipc.protocol import wire
from nnhal.ipc.service.quota import ClientShare
from nnhal.ipc.transport.channel import Descriptors

_IMPORTED = "hardware_buffer_blob", "hardware_buffer"  # drivers may need their descriptors
_Identity = tuple[int, int, int, int, bool, bool]  # device and inode, offset, size, read-only, kept


class ServicePools:
    """The memories of one client that are in use, each mapped once.

    held: returns those of a `wire.Hold`, by its number. share: the client's; a memory counts while it is mapped.
    """

    def __init__(self, held: Callable[[int], Sequence[Memory]], share: ClientShare, *, shared: bool) -> None:
        self._held, self._share, self._shared = held, share, shared
        self._mapped: weakref.WeakValueDictionary[_Identity, Memory] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def accept(self, pool: wire.Pool, fds: Descriptors, *, written: bool = True, kept: bool = False) -> Memory:
        """Return the memory that a message refers to. written: whether it is for writing, if the client allows that.

        kept: with a separate descriptor, for a driver that maps it again.

        Raises InvalidArgument if its descriptor is missing or must not be mapped, ResourceExhausted past the client's
        limits.
        """
        if pool.held:
            memories = self._held(pool.held)
            if pool.place >= len(memories):
                raise InvalidArgument(f"pool: place is {pool.place}, must be below {len(memories)}")
            return memories[pool.place]
        if not fds:
            raise InvalidArgument("pool: its descriptor is missing, must be sent")
        fd = fds.take()
        try:
            found = os.fstat(fd)
            readonly = pool.readonly or not written
            kept = kept or pool.kind in _IMPORTED
            key = found.st_dev, found.st_ino, pool.offset, pool.size, readonly, kept
            with self._lock:
                known = self._mapped.get(key)
                if known is None:
                    known = self._mapped[key] = self._map(pool, fd, found.st_mode, readonly, kept)
                return known
        finally:
            os.close(fd)

    def _map(self, pool: wire.Pool, fd: int, mode: int, readonly: bool, kept: bool) -> Memory:
        sealed = seals(fd)
        if sealed is None:
            if not stat.S_ISREG(mode):
                raise Unmappable("pool: its descriptor cannot be mapped, must be a memfd or file")
            if self._shared or not pool.readonly:
                raise InvalidArgument(
                    "pool: is a file, which cannot be sealed, must be a sealed memfd for this service"
                )
        elif not sealed & F_SEAL_SHRINK:
            raise InvalidArgument("pool: is not sealed against shrinking, must be")
        elif not is_ordinary_memfd(fd):
            raise InvalidArgument("pool: has huge pages, which may run out, must have ordinary pages")
        pages = aligned(pool.size + pool.offset % mmap.PAGESIZE, mmap.PAGESIZE)
        with self._share.take(memories=1, addresses=pages, descriptors=kept) as claim:
            memory = Memory.from_fd(fd, pool.size, pool.offset, readonly=readonly, kept=kept)
            memory.kind = pool.kind
            weakref.finalize(memory, claim.moved_to().give).atexit = False
            return memory

    def __len__(self) -> int:
        return len(self._mapped)
