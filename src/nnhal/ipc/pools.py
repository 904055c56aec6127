"""Memories that cross a connection: as their descriptors on the client's side, mapped on the service's.

A descriptor travels with the message that needs it: a model, a binding, a copy. What the service makes of it lives as long
as something there uses it, and one memory is mapped once however often it comes. A memory that another process may shrink
would kill its reader, so what is shared is sealed against shrinking, or copied first. The one exception is a regular file
that a client's own driver process maps: it kills nobody else.
"""

import os
import stat
import threading
import weakref
from collections.abc import Callable, Sequence
from fcntl import F_SEAL_SHRINK

from nnhal.base.errors import InvalidArgument, ResourceExhausted, Unmappable
from nnhal.base.memory import Memory, seals
from nnhal.ipc import wire
from nnhal.ipc.channel import Descriptors

MAX_POOLS = 16_384  # mapped at once for one connection
MAX_POOL_BYTES = 1 << 40  # address space, not memory
_IMPORTED = "hardware_buffer_blob", "hardware_buffer"  # whose descriptors drivers may want
_Identity = tuple[int, int, int, int, bool]  # device and inode, offset, size, for reading only


class ServicePools:
    """The memories of one client that are in use, mapped once each. held: gives those of a `Hold`, by its number."""

    def __init__(self, held: Callable[[int], Sequence[Memory]], *, shared: bool) -> None:
        self._held, self._shared = held, shared
        self._mapped: weakref.WeakValueDictionary[_Identity, Memory] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def accept(self, pool: wire.Pool, fds: Descriptors, *, written: bool = True) -> Memory:
        """The memory that a message refers to. written: whether it is for writing, as far as the client lets it be.

        InvalidArgument where its descriptor did not come along or may not be mapped, ResourceExhausted past the limits of a
        connection.
        """
        if pool.held:
            memories = self._held(pool.held)
            if pool.place >= len(memories):
                raise InvalidArgument(f"pool: {pool.place} is its place, must be below {len(memories)}")
            return memories[pool.place]
        fd = fds.take()
        if fd < 0:
            raise InvalidArgument("pool: its descriptor did not come along, must be sent")
        try:
            found = os.fstat(fd)
            readonly = pool.readonly or not written
            key = found.st_dev, found.st_ino, pool.offset, pool.size, readonly
            with self._lock:
                known = self._mapped.get(key)
                if known is None:
                    known = self._mapped[key] = self._map(pool, fd, found.st_mode, readonly)
                return known
        finally:
            os.close(fd)

    def _map(self, pool: wire.Pool, fd: int, mode: int, readonly: bool) -> Memory:
        there = list(self._mapped.values())
        if len(there) >= MAX_POOLS or sum(m.size for m in there) + pool.size > MAX_POOL_BYTES:
            raise ResourceExhausted(f"pool: {len(there)} memories are in use, must be at most {MAX_POOLS}; let some go")
        sealed = seals(fd)
        if sealed is None:
            if not stat.S_ISREG(mode):
                raise Unmappable("pool: its descriptor is of no kind that can be mapped, must be a memfd or file")
            if self._shared or not pool.readonly:
                raise InvalidArgument("pool: a file cannot be sealed, must be a sealed memfd for this service")
        elif not sealed & F_SEAL_SHRINK:
            raise InvalidArgument("pool: is not sealed against shrinking, must be")
        memory = Memory.from_fd(fd, pool.size, pool.offset, readonly=readonly, kept=pool.kind in _IMPORTED)
        memory.kind = pool.kind
        return memory

    def __len__(self) -> int:
        return len(self._mapped)


class ClientPools:
    """The memories of this process in a form that one service may map."""

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._copies: weakref.WeakKeyDictionary[Memory, Memory] = weakref.WeakKeyDictionary()

    def shareable(self, memory: Memory) -> Memory:
        """The memory itself where the service may map it, else a sealed copy, made once."""
        if memory.fd >= 0:
            found = seals(memory.fd)
            if (found or 0) & F_SEAL_SHRINK or (found is None and memory.readonly and not self._shared):
                return memory
        copy = self._copies.get(memory)
        if copy is None:
            copy = self._copies[memory] = Memory.from_array(memory.bytes())
        return copy


class Packing:
    """The memories of one message, which live until it was answered. fds: what to send along. held: sent ahead already."""

    def __init__(self, pools: ClientPools, held: "dict[Memory, tuple[int, int]] | None" = None) -> None:
        self._pools, self._held = pools, held or {}
        self._keep: list[Memory] = []
        self.fds: list[int] = []

    def pool(self, memory: Memory) -> wire.Pool:
        """The wire form of a memory; its descriptor joins the message."""
        memory = self._pools.shareable(memory)
        self._keep.append(memory)
        held = self._held.get(memory)
        if held is None:
            self.fds.append(memory.fd)
        readonly = memory.readonly or memory.one_way
        return wire.Pool(memory.kind, memory.size, memory.offset, readonly, *(held or ()))
