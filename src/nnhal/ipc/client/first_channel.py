"""The first channel of a session: after the greeting, for messages without an answer, and to request new channels."""

import threading
import time
from collections.abc import Iterator, Sequence

from nnhal.base.errors import DeadObject, DeviceUnavailable, MissedDeadline, copy_of_error
from nnhal.ipc.client.peer import ServicePeer
from nnhal.ipc.protocol import wire
from nnhal.ipc.transport.channel import Channel, NoProtocol, end_of

ATTACH_NS = 5_000_000  # for one wait for a new channel


class FirstChannel:
    """Carries messages without an answer and requests for new channels, one thread at a time each.

    It stays open while a thread uses it. One request is open at a time; a channel that comes too late for the thread
    that requested it is for the next request. overdue: when the requested channel became overdue, if the requesting
    call had a deadline; else 0. group: of the channels' numbers, in a trace.
    """

    def __init__(self, channel: Channel, peer: ServicePeer, cpus: int, numbers: Iterator[int], group: int) -> None:
        """Take ownership of a channel. cpus: the service's affinity mask. numbers: for new channels."""
        self.channel, self._peer = channel, peer
        channel.lane.watch, channel.lane.peer_cpus = peer.watch, cpus
        self._numbers, self._group = numbers, group
        self.attaching, self._sending = threading.Lock(), threading.Lock()
        self._asked_for = 0  # the number of the last requested channel
        self.overdue = 0

    def send(self, message: wire.ClientCall, fds: Sequence[int] = ()) -> None:
        """Send a message without an answer."""
        with self._sending:
            self.channel.send(wire.encode(message), fds)

    def attach(self, wait: int, *, callbacks: bool = False) -> Channel | None:
        """Return a new channel if the service provides one within `wait` ns; a later one is for the next request."""
        channel, peer = self.channel, self._peer
        with self.attaching:  # held only briefly: other callers have deadlines
            if peer.dead is not None:
                raise copy_of_error(peer.dead)
            try:
                if not channel.in_doubt:
                    self._asked_for = next(self._numbers)
                    channel.ask(wire.encode(wire.AttachLane(self._asked_for, callbacks)))
                data, fds = channel.receive(wait)
                self.overdue = 0
                if data == wire.ENCODED_DONE:
                    new = Channel(end_of(fds), -1, channel.lane.peer_cpus, self._asked_for)
                    new.group = self._group
                    return new
                reply = wire.decode_reply(data)
            except MissedDeadline:
                return None
            except wire.WireError as error:
                raise peer.died(
                    NoProtocol(f"{peer.where}: answered AttachLane with an invalid message: {error}")
                ) from None
            except DeadObject as error:
                raise peer.died(error) from None
        if isinstance(reply, wire.Failed):
            raise peer.error(reply)
        raise peer.died(NoProtocol(f"{peer.where}: answered AttachLane with {type(reply).__name__}"))

    def attach_callbacks(self, deadline: int) -> Channel:
        """Return the channel for notifications; raise DeviceUnavailable after the deadline."""
        while (channel := self.attach(ATTACH_NS, callbacks=True)) is None:
            if time.monotonic_ns() > deadline:
                raise DeviceUnavailable(f"{self._peer.where}: provided no channel for notifications in time")
        return channel

    def close(self) -> None:
        """Close the channel when no thread uses it."""
        with self.attaching, self._sending:
            self.channel.close()

    def forked(self) -> None:
        """Reset a forked child."""
        self.attaching, self._sending = threading.Lock(), threading.Lock()
        self.channel.close()
