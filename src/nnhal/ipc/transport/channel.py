"""One channel of a connection: messages with their descriptors, long ones in a sealed memfd, statuses as errors."""

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeAlias, cast

from nnhal.base import trace
from nnhal.base.descriptors import Owner
from nnhal.base.errors import DeadObject, InvalidArgument, MissedDeadline, NnhalError, ResourceExhausted
from nnhal.base.memory import SEALS, first_bytes, seals
from nnhal.ipc.protocol.wire import INLINE, MAX_MESSAGE
from nnhal.ipc.transport import _native

Descriptors: TypeAlias = _native.Descriptors
Message: TypeAlias = tuple[bytes, Descriptors]

_SPILLED = struct.Struct("<BQ")  # a byte that MessagePack never starts with, the length
MARK = 0xC1
_SEALS = SEALS | fcntl.F_SEAL_WRITE


class NoProtocol(DeadObject):
    """The peer sent something that the protocol does not allow there."""


class Channel:
    """A channel over one end of a SEQPACKET socket, which it owns. For one thread at a time."""

    def __init__(self, sock: socket.socket, watch: int = -1, peer_cpus: int = 0, number: int = 0) -> None:
        """Take ownership of a socket. peer_cpus: the peer's affinity mask. number: the channel's, 0 for the first one.

        watch: a pidfd of the peer, which remains the caller's; -1 if another channel or thread watches, and shuts this
        one down.
        """
        self.socket, self.number = sock, number
        self.group = 0  # of its number, in a trace
        self.lane = _native.Lane(sock.fileno(), watch)
        self.lane.peer_cpus = peer_cpus
        self.admit: Callable[[int], object] | None = None  # receives the length of a long message before it is read

    @property
    def in_doubt(self) -> bool:
        """Whether the answer to an abandoned call is still to come: the channel cannot be used for another call."""
        return self.lane.awaited != 0

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send one message without an answer. Raises DeadObject if the peer is gone or no longer reads."""
        _send(self.lane.send, data, fds)

    def ask(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send a call; `receive` returns its answer."""
        _send(self.lane.ask, data, fds)

    def answer(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Answer the last received message if it was a call."""
        if self.lane.asked:
            _send(self.lane.answer, data, fds)

    def receive(self, timeout_ns: int = -1) -> Message:
        """Return the next message and the owner of its descriptors."""
        return whole(self.lane.receive(timeout_ns), self.admit)

    @trace.traced_method(
        "ipc", "", "wait for the answer", key=lambda lane, *_: (lane.group, lane.number), direction=trace.OUT
    )
    def call(self, data: bytes, fds: Sequence[int] = (), timeout_ns: int = -1) -> Message:
        """Send and wait for the reply."""
        if len(data) <= INLINE:
            return whole(self.lane.call(data, tuple(fds), timeout_ns), self.admit)
        self.ask(data, fds)
        return self.receive(timeout_ns)

    def hang_up(self) -> None:
        """End the sending direction; what the peer still sends can be received."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket; the peer sees a hang-up."""
        self.socket.close()

    def __del__(self) -> None:
        if hasattr(self, "socket"):  # otherwise an interrupt came before it was set
            self.socket.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a new channel; ResourceExhausted if no descriptors are left."""
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise ResourceExhausted(f"channel: cannot be opened: {error.strerror}") from None


def end_of(fds: Descriptors) -> socket.socket:
    """Return the end of a channel that is attached to a message; NoProtocol if none is.

    An interrupt comes before it is taken or after: each action that owns a descriptor is one call into C.
    """
    came = Owner()
    came.fds.extend(islice(iter(fds.take, -1), 1))
    if came.fds and stat.S_ISSOCK(os.fstat(came.fds[0]).st_mode):
        try:
            (sock,) = cast(Iterable[socket.socket], map(socket.SocketType, (-1,), (-1,), (-1,), map(os.dup, came.fds)))
        except OSError as error:
            raise ResourceExhausted(f"channel: no descriptor: {error.strerror}") from None
        if (sock.family, sock.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET):
            return sock
        sock.close()
    raise NoProtocol("driver process: it sent no end of a channel, must be a SEQPACKET socket of the Unix family")


def _send(how: Callable[[bytes, Sequence[int]], int], data: bytes, fds: Sequence[int]) -> None:
    """Send one message, a long one in a memory."""
    if len(data) > INLINE:
        memory = Owner()
        try:
            _spill(data, memory.fds)
            status = how(_SPILLED.pack(MARK, len(data)), (*memory.fds, *fds))
        finally:
            memory.close()
    else:
        status = how(data, tuple(fds))
    if status < 0:
        raise failure(status)


def whole(got: Message | int, admit: Callable[[int], object] | None = None) -> Message:
    """Return a message with its complete data; raise the error of a status. admit: see `Channel`."""
    if isinstance(got, int):
        raise failure(got)
    return got if got[0][0] != MARK else (_unspill(*got, admit), got[1])


def failure(status: int) -> NnhalError:
    """Return the error of a status of the native channel."""
    if status == _native.TIMEOUT:
        return MissedDeadline("driver process: no answer by the deadline")
    if status == _native.TOO_LARGE:
        if _no_descriptors():
            return ResourceExhausted("message: its descriptors were lost: this process may open no more; close some")
        return InvalidArgument("message is larger than the transport allows, or carries too many descriptors")
    if status == _native.CORRUPT:
        return NoProtocol("driver process: it broke the protocol")
    return DeadObject("driver process: it died or closed the connection")


def _no_descriptors() -> bool:
    """Whether this process can open no more descriptors: then the kernel drops those of a message."""
    try:
        os.close(os.eventfd(0, os.EFD_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False


def _spill(data: bytes, into: list[int]) -> None:
    """Write the message to a sealed memfd."""
    if len(data) > MAX_MESSAGE:
        raise InvalidArgument(f"message has {len(data)} bytes, must be at most {MAX_MESSAGE}")
    try:
        into.extend(map(os.memfd_create, ("nnhal-message",), (os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING,)))
    except OSError as error:
        raise ResourceExhausted(f"message: no descriptor: {error.strerror}") from error
    try:
        done = 0
        while done < len(data):
            done += os.write(into[0], memoryview(data)[done:])
        fcntl.fcntl(into[0], fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        raise ResourceExhausted(f"message: {len(data)} bytes: {error.strerror}") from error


def _unspill(head: bytes, fds: Descriptors, admit: Callable[[int], object] | None) -> bytes:
    """Read a message from a memfd. Raises InvalidArgument if it is not sealed, or not as long as announced."""
    if len(head) != _SPILLED.size or not fds:
        raise InvalidArgument("long message: has no memory or length, must have both")
    length = _SPILLED.unpack(head)[1]
    memory = fds.take()
    try:
        if (seals(memory) or 0) & _SEALS != _SEALS:
            raise InvalidArgument("long message: its memory is not sealed against writing and shrinking, must be")
        if not 0 < length <= MAX_MESSAGE or os.fstat(memory).st_size != length:
            raise InvalidArgument(
                f"long message: {length} bytes are announced, must be its memory's size, at most 1 GiB"
            )
        if admit is not None:
            admit(length)
        return first_bytes(memory, length)
    finally:
        os.close(memory)
