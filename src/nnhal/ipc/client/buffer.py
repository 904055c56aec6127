"""A driver buffer in another process."""

from collections.abc import Sequence
from typing import Any

from nnhal.base import trace
from nnhal.base.errors import Closed, ContractBroken, InvalidArgument, again
from nnhal.base.memory import Memory
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.ipc.client.session import Session
from nnhal.ipc.protocol import wire
from nnhal.ops.schema import agree, show


class RemoteBuffer(Buffer):
    """A buffer in the driver's process."""

    def __init__(self, session: Session, desc: BufferDesc, roles: Sequence[BufferRole]) -> None:
        super().__init__(desc, roles)
        self._session = session
        inner = []
        for role in roles:
            prepared: Any = getattr(role.prepared, "remote", role.prepared)  # behind what prepares again after a death
            if getattr(prepared, "session", None) is not session:
                raise InvalidArgument(f"buffer: {role} is of a model that another device prepared, must be this one's")
            inner.append((prepared.number, role.index, role.output, role.frequency))
        self._number = session.number()
        session.call(wire.Allocate(self._number, desc.dimensions, tuple(inner)), wire.Acknowledged)
        session.holders.add(self)

    def of(self, session: Session) -> int:
        """Its number in a session; InvalidArgument where it lives in another, Closed after `close`."""
        if self._number < 0:
            raise Closed(f"buffer {self.token}: used after close")
        if session is not self._session:
            if self._session.dead is not None:
                raise again(self._session.dead)
            raise InvalidArgument(f"buffer {self.token} is none of this device")
        return self._number

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Asked of the driver; ContractBroken for one that the buffer cannot have."""
        shape = self._session.call(wire.GetShape(self.of(self._session)), wire.Shape)[0].shape
        declared = self.facts.dimensions
        if shape is not None and declared is not None and not agree(shape, tuple(d or None for d in declared)):
            where = self._session.where
            raise ContractBroken(f"{where}: says that a buffer has shape {show(shape)}, must be {show(declared)}")
        return shape

    @trace.seam("ipc", "transfers", "copy out of a buffer")
    def copy_to(self, memory: Memory) -> None:
        """Copy the contents to a memory."""
        packing = self._session.packing()
        shared = self._session.pools.shareable(memory)
        self._session.call(wire.CopyTo(self.of(self._session), packing.pool(shared)), wire.Shape, packing)
        if shared is not memory:
            memory.writable()[:] = shared.bytes()[: memory.size]

    @trace.seam("ipc", "transfers", "copy into a buffer")
    def copy_from(self, memory: Memory, dimensions: tuple[int, ...] = ()) -> None:
        """Copy contents in."""
        packing = self._session.packing()
        if not memory.sealed:  # a copy made once would miss what it holds now
            memory = Memory.from_array(memory.bytes())
        message = wire.CopyFrom(self.of(self._session), packing.pool(memory), dimensions)
        self._session.call(message, wire.Acknowledged, packing)

    def close(self) -> None:
        """Let go of it."""
        number, self._number = self._number, -1
        if number >= 0:
            self._session.holders.discard(self)
            self._session.release(number)

    def __del__(self) -> None:
        if hasattr(self, "_number"):
            self.close()
