"""Memories on both sides of a connection: what the service has mapped, by number, and what the client sent.

A descriptor travels once; after that a memory is its number. A memory that another process may shrink would kill its
reader, so what is shared is sealed against shrinking, or copied first. The one exception is a regular file that a client's
own driver process maps: it kills nobody else.
"""

import os
import stat
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from fcntl import F_SEAL_SHRINK
from typing import Protocol

from nnhal.base.errors import InvalidArgument, ResourceExhausted, Unmappable
from nnhal.base.memory import Memory, seals
from nnhal.ipc import wire

MAX_POOLS = 1024  # mapped at once for one connection
MAX_POOL_BYTES = 1 << 40  # address space, not memory


class ServicePools:
    """The memories that one client has sent, mapped once each."""

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._known: dict[int, Memory] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def accept(self, pool: wire.Pool, fds: Iterator[int]) -> Memory:
        """The memory that a message refers to; takes its descriptor where it came along.

        InvalidArgument for a number that is not known and for a descriptor that may not be mapped, ResourceExhausted past
        the limits of a connection.
        """
        with self._lock:
            known = self._known.get(pool.id)
            if pool.sent:
                fd = next(fds, -1)
                if fd < 0:
                    raise InvalidArgument(f"pool {pool.id}: its descriptor did not come along, must be sent")
                try:
                    if known is None:
                        known = self._map(pool, fd)
                finally:
                    os.close(fd)
            if known is None:
                raise InvalidArgument(f"pool {pool.id} is not known here, must be sent first")
            return known

    def _map(self, pool: wire.Pool, fd: int) -> Memory:
        if len(self._known) >= MAX_POOLS or self._bytes + pool.size > MAX_POOL_BYTES:
            raise ResourceExhausted(
                f"pool {pool.id}: {len(self._known)} pools are mapped, must be no more; release some"
            )
        sealed = seals(fd)
        if sealed is None:
            regular = stat.S_ISREG(os.fstat(fd).st_mode)
            if not regular:
                raise Unmappable(
                    f"pool {pool.id}: its descriptor is of no kind that can be mapped, must be a memfd or file"
                )
            if self._shared or not pool.readonly:
                raise InvalidArgument(
                    f"pool {pool.id}: a file cannot be sealed, must be a sealed memfd for this service"
                )
        elif not sealed & F_SEAL_SHRINK:
            raise InvalidArgument(f"pool {pool.id}: is not sealed against shrinking, must be")
        memory = Memory.from_fd(fd, pool.size, pool.offset, readonly=pool.readonly)
        memory.kind = pool.kind
        self._known[pool.id] = memory
        self._bytes += pool.size
        return memory

    def release(self, number: int) -> None:
        """Forget a memory; what still uses its mapping keeps it."""
        with self._lock:
            memory = self._known.pop(number, None)
            if memory is not None:
                self._bytes -= memory.size

    def close(self) -> None:
        """Forget all."""
        with self._lock:
            self._known.clear()
            self._bytes = 0

    def __len__(self) -> int:
        return len(self._known)


class Releases(Protocol):
    """Where numbers go that the client needs no longer."""

    def __call__(self, number: int) -> None:
        """Have the service forget the memory."""


class ClientPools:
    """The memories of this process as one service knows them."""

    def __init__(self, *, shared: bool, limit: int, release: Releases) -> None:
        self._shared, self._limit, self._release = shared, limit, release
        self._numbers: weakref.WeakKeyDictionary[Memory, int] = weakref.WeakKeyDictionary()
        self._copies: weakref.WeakKeyDictionary[Memory, Memory] = weakref.WeakKeyDictionary()
        self._delivered: OrderedDict[int, None] = OrderedDict()  # in order of use
        self._next = 1
        self.evictions = 0  # a message that was encoded before one may refer to what is gone
        self._lock = threading.Lock()

    def number(self, memory: Memory) -> int:
        """The number that stands for a memory in this connection."""
        number = self._numbers.get(memory)
        if number is None:
            number, self._next = self._next, self._next + 1
            self._numbers[memory] = number
            weakref.finalize(memory, _gone, weakref.ref(self), number).atexit = False
        return number

    def gone(self, number: int) -> None:
        """There is no such memory any more."""
        self._delivered.pop(number, None)
        self._release(number)  # the service may have it without having said so: a call that failed or was given up

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

    def deliver(self, number: int) -> None:
        """The service has it now; past the limit, the one not used for longest is released."""
        with self._lock:
            self._delivered[number] = None
            self._delivered.move_to_end(number)
            while len(self._delivered) > self._limit:
                oldest, _ = self._delivered.popitem(last=False)
                self.evictions += 1
                self._release(oldest)

    def known(self, number: int) -> bool:
        """Whether the service has it."""
        return number in self._delivered


def _gone(pools: "weakref.ref[ClientPools]", number: int) -> None:
    """A memory may outlive many connections, and must not keep them."""
    there = pools()
    if there is not None:
        there.gone(number)


class Packing:
    """The memories of one message: descriptors to send, and what is known once it was answered."""

    def __init__(self, pools: ClientPools) -> None:
        self._pools = pools
        self._sent: dict[int, None] = {}
        self._keep: list[Memory] = []
        self.fds: list[int] = []

    def pool(self, memory: Memory) -> wire.Pool:
        """The wire form of a memory; its descriptor joins the message where the service has it not yet."""
        memory = self._pools.shareable(memory)
        number = self._pools.number(memory)
        self._keep.append(memory)
        send = not self._pools.known(number) and number not in self._sent
        if send:
            self.fds.append(memory.fd)
        self._sent[number] = None
        return wire.Pool(number, memory.kind, memory.size, memory.offset, memory.readonly, send)

    def delivered(self) -> None:
        """The message was answered: the service has all its memories."""
        for number in self._sent:
            self._pools.deliver(number)
