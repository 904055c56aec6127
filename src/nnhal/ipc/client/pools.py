"""The memories that a client sends: a descriptor of a memory that the service may map, otherwise of a sealed copy."""

import weakref
from collections.abc import Iterable

from nnhal.base.descriptors import Owner
from nnhal.base.memory import Memory, seals
from nnhal.ipc.protocol import wire


class ClientPools:
    """The memories of this process, made mappable for one service."""

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._copies: weakref.WeakKeyDictionary[Memory, Memory] = weakref.WeakKeyDictionary()

    def shareable(self, memory: Memory) -> Memory:
        """Return the memory itself if the service may map it, otherwise a sealed copy, made once."""
        if memory.sealed or (memory.readonly and not self._shared and memory.fd >= 0 and seals(memory.fd) is None):
            return memory
        copy = self._copies.get(memory)
        if copy is None:
            copy = self._copies[memory] = Memory.from_array(memory.bytes())
        return copy

    def forget(self, memories: Iterable[Memory]) -> None:
        """Drop the copies of memories that the service no longer needs. A later request makes them again."""
        for memory in memories:
            self._copies.pop(memory, None)


class Packing:
    """The memories of one message, kept until its answer. fds: the descriptors to send. held: memories sent ahead."""

    def __init__(self, pools: ClientPools, held: "dict[Memory, tuple[int, int]] | None" = None) -> None:
        self._pools, self._held = pools, held or {}
        self._keep: list[tuple[Memory, Owner]] = []
        self.fds: list[int] = []

    def pool(self, memory: Memory) -> wire.Pool:
        """Return the wire message of a memory; its descriptor joins the message."""
        memory = self._pools.shareable(memory)
        owner = memory.owner()
        self._keep.append((memory, owner))
        held = self._held.get(memory)
        if held is None:
            self.fds.append(owner.fds[0])
        readonly = memory.readonly or memory.one_way
        return wire.Pool(memory.kind, memory.size, memory.offset, readonly, *(held or ()))
