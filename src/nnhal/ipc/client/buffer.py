"""A driver buffer in another process."""

from collections.abc import Sequence
from typing import Any

from nnhal.base import trace
from nnhal.base.errors import Closed, ContractBroken, InvalidArgument, OperationFailed, again
from nnhal.base.memory import Memory
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.hal.request import UNLIMITED, Control
from nnhal.ipc.client.session import Session
from nnhal.ipc.protocol import wire
from nnhal.ops.schema import agree, show


class RemoteBuffer(Buffer):
    """A buffer in the driver's process.

    The service knows whether it has contents. Who begins to write it and hears no answer leaves it without, whatever the
    service does: `begin` and `answered` note that here.
    """

    def __init__(self, session: Session, desc: BufferDesc, roles: Sequence[BufferRole]) -> None:
        super().__init__(desc, roles)
        self._session = session
        self._writer: object = None  # who began last to write it, until the service has answered
        inner = []
        for role in roles:
            prepared: Any = getattr(role.prepared, "remote", role.prepared)  # behind what prepares again after a death
            if getattr(prepared, "session", None) is not session:
                raise InvalidArgument(f"buffer: {role} is of a model that another device prepared, must be this one's")
            inner.append((prepared.number, role.index, role.output, role.frequency))
        self._lease = session.lease()
        self._number = self._lease.number
        session.call(wire.Allocate(self._number, desc.dimensions, tuple(inner)), wire.Acknowledged, UNLIMITED)
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

    def begin(self, writer: object) -> None:
        """An execution or a copy begins to write it: it has no contents until `answered`."""
        self._writer = writer

    def answered(self, writer: object) -> None:
        """The service has answered who began to write, and knows the rest; nothing where another has begun since."""
        if self._writer is writer:
            self._writer = None

    @property
    def in_doubt(self) -> bool:
        """Whether the last writer has no answer from a service that lives: then the buffer has no contents."""
        return self._writer is not None and self._session.dead is None

    def require_contents(self) -> None:
        """OperationFailed where it is known here already that it has none."""
        if self.in_doubt:
            raise OperationFailed(f"buffer {self.token} has no contents, must be written or copied to first")

    def within(self, control: Control) -> "RemoteContents":
        """Its contents, asked for within a budget."""
        return RemoteContents(self, self._session, control)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Asked of the driver; ContractBroken for one that the buffer cannot have."""
        return self.within(UNLIMITED).shape

    def copy_to(self, memory: Memory) -> None:
        """Copy the contents to a memory."""
        self.within(UNLIMITED).copy_to(memory)

    def copy_from(self, memory: Memory, dimensions: tuple[int, ...] = ()) -> None:
        """Copy contents in."""
        self.within(UNLIMITED).copy_from(memory, dimensions)

    def close(self) -> None:
        """Let go of it."""
        self._number = -1
        self._lease.release()
        self._session.holders.discard(self)


class RemoteContents:
    """What a buffer holds, for calls within one budget."""

    def __init__(self, buffer: RemoteBuffer, session: Session, control: Control) -> None:
        self.buffer, self.session, self.control = buffer, session, control

    @property
    def shape(self) -> tuple[int, ...] | None:
        """As of `RemoteBuffer`."""
        buffer, session = self.buffer, self.session
        number = buffer.of(session)
        if buffer.in_doubt:
            return None
        shape = session.call(wire.GetShape(number), wire.Shape, self.control)[0].shape
        declared = buffer.facts.dimensions
        if shape is not None and declared is not None and not agree(shape, tuple(d or None for d in declared)):
            raise ContractBroken(
                f"{session.where}: says that a buffer has shape {show(shape)}, must be {show(declared)}"
            )
        return shape

    @trace.seam("ipc", "transfers", "copy out of a buffer")
    def copy_to(self, memory: Memory) -> None:
        """As of `RemoteBuffer`."""
        session, number = self.session, self.buffer.of(self.session)
        self.buffer.require_contents()
        session.confirm_abandoned(self.control)
        packing, shared = session.packing(), session.pools.shareable(memory)
        session.call(wire.CopyTo(number, packing.pool(shared)), wire.Shape, self.control, packing)
        if shared is not memory:
            memory.writable()[:] = shared.bytes()[: memory.size]

    @trace.seam("ipc", "transfers", "copy into a buffer")
    def copy_from(self, memory: Memory, dimensions: tuple[int, ...] = ()) -> None:
        """As of `RemoteBuffer`."""
        session, number, writer = self.session, self.buffer.of(self.session), object()
        packing = session.packing()
        if not memory.sealed:  # a copy made once would miss what it holds now
            memory = Memory.from_array(memory.bytes())
        message = wire.CopyFrom(number, packing.pool(memory), dimensions)
        session.confirm_abandoned(self.control)
        self.buffer.begin(writer)
        reply, _ = session.ask(message, self.control, packing)
        self.buffer.answered(writer)
        session.expected(message, reply, wire.Acknowledged)
