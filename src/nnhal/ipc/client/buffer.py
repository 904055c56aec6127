"""A driver buffer in another process."""

from collections.abc import Sequence
from typing import Any

from nnhal.base import trace
from nnhal.base.errors import Closed, ContractBroken, InvalidArgument, OperationFailed, copy_of_error
from nnhal.base.memory import Memory
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.hal.request import UNLIMITED, Control
from nnhal.ipc.client.session import Session
from nnhal.ipc.protocol import wire
from nnhal.ops.schema import agree, show


class RemoteBuffer(Buffer):
    """A buffer in the driver's process.

    The service knows whether it has contents. If a writer begins and receives no answer, the buffer has no contents,
    whatever the service does: `begin` and `answered` record that here.
    """

    def __init__(self, session: Session, desc: BufferDesc, roles: Sequence[BufferRole]) -> None:
        super().__init__(desc, roles)
        self._session = session
        self._writer: object = None  # the last writer that began, until the service has answered
        inner = []
        for role in roles:
            # Inside the wrapper that prepares again after a death
            prepared: Any = getattr(role.prepared, "remote", role.prepared)
            if getattr(prepared, "session", None) is not session:
                raise InvalidArgument(
                    f"buffer: {role} refers to a model of another device, must be one that this device prepared"
                )
            inner.append((prepared.number, role.index, role.output, role.frequency))
        self._lease = session.lease()
        self._number = self._lease.number
        session.call(wire.Allocate(self._number, desc.dimensions, tuple(inner)), wire.Acknowledged, UNLIMITED)
        session.peer.holders.add(self)

    def of(self, session: Session) -> int:
        """Return its number in a session.

        Raises InvalidArgument if it belongs to another session, Closed after `close`.
        """
        if self._number < 0:
            raise Closed(f"buffer {self.token}: used after close")
        if session is not self._session:
            if self._session.peer.dead is not None:
                raise copy_of_error(self._session.peer.dead)
            raise InvalidArgument(f"buffer {self.token}: belongs to another device, must be allocated by this one")
        return self._number

    def begin(self, writer: object) -> None:
        """Record that an execution or a copy begins to write: there are no contents until `answered`."""
        self._writer = writer

    def answered(self, writer: object) -> None:
        """Record that the service has answered a writer, and so knows the contents.

        Ignored if another writer began since.
        """
        if self._writer is writer:
            self._writer = None

    @property
    def lost(self) -> bool:
        """As in `Buffer`."""
        return self._session.peer.dead is not None

    @property
    def in_doubt(self) -> bool:
        """Whether the last writer has no answer from a live service: then the buffer has no contents."""
        return self._writer is not None and not self.lost

    def require_contents(self) -> None:
        """Raise OperationFailed if this process already knows that it has no contents."""
        if self.in_doubt:
            raise OperationFailed(f"buffer {self.token} has no contents, must be written or copied to first")

    def within(self, control: Control) -> "RemoteContents":
        """Return its contents, for calls within a budget."""
        return RemoteContents(self, self._session, control)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Ask the driver; ContractBroken for a shape that the buffer cannot have."""
        return self.within(UNLIMITED).shape

    def copy_to(self, memory: Memory) -> None:
        self.within(UNLIMITED).copy_to(memory)

    def copy_from(self, memory: Memory, dimensions: tuple[int, ...] = ()) -> None:
        self.within(UNLIMITED).copy_from(memory, dimensions)

    def close(self) -> None:
        self._number = -1
        self._lease.release()
        self._session.peer.holders.discard(self)


class RemoteContents:
    """The contents of a buffer, for calls within one budget."""

    def __init__(self, buffer: RemoteBuffer, session: Session, control: Control) -> None:
        self.buffer, self.session, self.control = buffer, session, control

    @property
    def shape(self) -> tuple[int, ...] | None:
        buffer, session = self.buffer, self.session
        number = buffer.of(session)
        if buffer.in_doubt:
            return None
        shape = session.call(wire.GetShape(number), wire.Shape, self.control)[0].shape
        declared = buffer.facts.dimensions
        if shape is not None and declared is not None and not agree(shape, tuple(d or None for d in declared)):
            raise ContractBroken(
                f"{session.where}: reports that a buffer has shape {show(shape)}, must be {show(declared)}"
            )
        return shape

    @trace.traced_method("ipc", "transfers", "copy out of a buffer")
    def copy_to(self, memory: Memory) -> None:
        session, number = self.session, self.buffer.of(self.session)
        self.buffer.require_contents()
        session.wait_for_abandoned(self.control)
        packing, shared = session.packing(), session.pools.shareable(memory)
        session.call(wire.CopyTo(number, packing.pool(shared)), wire.Shape, self.control, packing)
        if shared is not memory:
            memory.writable()[:] = shared.bytes()[: memory.size]

    @trace.traced_method("ipc", "transfers", "copy into a buffer")
    def copy_from(self, memory: Memory, dimensions: tuple[int, ...] = ()) -> None:
        session, number, writer = self.session, self.buffer.of(self.session), object()
        packing = session.packing()
        if not memory.sealed:  # a cached copy would miss the current contents
            memory = Memory.from_array(memory.bytes())
        message = wire.CopyFrom(number, packing.pool(memory), dimensions)
        session.wait_for_abandoned(self.control)
        self.buffer.begin(writer)
        reply, _ = session.ask(message, self.control, packing)
        self.buffer.answered(writer)
        session.expected(message, reply, wire.Acknowledged)
