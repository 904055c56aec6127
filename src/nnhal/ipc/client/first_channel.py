"""The first channel of a session: the greeting, then messages without an answer, and requests for new channels."""

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from nnhal.base import trace
from nnhal.base.errors import (
    DeadObject,
    DeviceUnavailable,
    MissedDeadline,
    NnhalError,
    ResourceExhausted,
    copy_of_error,
)
from nnhal.base.levels import Level
from nnhal.base.stacks import with_note
from nnhal.ipc.client.output import DriverProcess
from nnhal.ipc.client.peer import ServicePeer
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import error_from_wire
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.channel import Channel, NoProtocol, end_of

ATTACH_NS = 5_000_000  # for one wait for a new channel


class Greeting:
    """Greets the service at one place; every failure is the error of a device that is not available.

    process: the service's, if it belongs to this client alone.
    """

    def __init__(self, where: str, process: DriverProcess | None) -> None:
        self.where, self._process = where, process

    @trace.traced_method("ipc", "initialisation", "greet", detail=lambda self, *_: self.where)
    def exchange(self, channel: Channel, patience: int) -> wire.Welcome:
        """Greet, and return the answer, which comes within `patience` nanoseconds."""
        try:
            data, _ = channel.call(wire.encode(wire.Hello(wire.VERSION, _native.cpus())), (), patience)
            reply = wire.decode_reply(data)
        except (NoProtocol, wire.WireError) as error:
            raise self._unfit(f"is not a driver service: {error}") from None
        except (DeadObject, MissedDeadline) as error:
            how = "" if self._process is None else self._process.exit_description()
            fault = "" if self._process is None else self._process.exit_by_itself
            raise self._unfit(f"the driver process did not start: {how or error}", fault) from None
        if isinstance(reply, wire.Failed):
            raise self._refused(error_from_wire(reply))
        if not isinstance(reply, wire.Welcome) or reply.version != wire.VERSION:
            raise self._unfit(f"answered the greeting with {type(reply).__name__}, must be Welcome")
        if reply.level not in Level.__members__.values():
            raise self._unfit(f"has HAL version {reply.level}, must be 1 to {max(Level):d}")
        return reply

    def _unfit(self, why: str, fault: Any = "protocol") -> DeviceUnavailable:
        """Return the error of a failed greeting.

        fault: see `NnhalError.driver_fault`; used if the process belongs to this client.
        """
        error = DeviceUnavailable(f"{self.where}: {why}")
        error.driver_fault = "" if self._process is None else fault
        return error

    def _refused(self, error: NnhalError) -> NnhalError:
        """Return the error for a greeting that was answered by an error."""
        if isinstance(error, ResourceExhausted):
            return with_note(ResourceExhausted(f"{self.where}: {error}"), error.stack)
        what = "did not start" if self._process is not None else "refused the connection"
        unfit = self._unfit(f"the driver process {what}: {error}", "" if isinstance(error, MemoryError) else "exit")
        return with_note(unfit, error.stack)


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
