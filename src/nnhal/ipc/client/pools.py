"""The memories that a client sends: as descriptors of what the service may map, else of a sealed copy."""

import weakref
from collections.abc import Iterable

from nnhal.base.descriptors import Owner
from nnhal.base.memory import Memory, seals
from nnhal.ipc.protocol import wire


class ClientPools:
    """The memories of this process in a form that one service may map."""

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._copies: weakref.WeakKeyDictionary[Memory, Memory] = weakref.WeakKeyDictionary()

    def shareable(self, memory: Memory) -> Memory:
        """The memory itself where the service may map it, else a sealed copy, made once."""
        if memory.sealed or (memory.readonly and not self._shared and memory.fd >= 0 and seals(memory.fd) is None):
            return memory
        copy = self._copies.get(memory)
        if copy is None:
            copy = self._copies[memory] = Memory.from_array(memory.bytes())
        return copy

    def forget(self, memories: Iterable[Memory]) -> None:
        """The service needs these no more: copies of them can go. Where one is asked for again, it is made again."""
        for memory in memories:
            self._copies.pop(memory, None)


class Packing:
    """The memories of one message, which live until it was answered. fds: what to send along. held: sent ahead already."""

    def __init__(self, pools: ClientPools, held: "dict[Memory, tuple[int, int]] | None" = None) -> None:
        self._pools, self._held = pools, held or {}
        self._keep: list[tuple[Memory, Owner]] = []
        self.fds: list[int] = []

    def pool(self, memory: Memory) -> wire.Pool:
        """The wire form of a memory; its descriptor joins the message."""
        memory = self._pools.shareable(memory)
        owner = memory.owner()
        self._keep.append((memory, owner))
        held = self._held.get(memory)
        if held is None:
            self.fds.append(owner.fds[0])
        readonly = memory.readonly or memory.one_way
        return wire.Pool(memory.kind, memory.size, memory.offset, readonly, *(held or ()))
