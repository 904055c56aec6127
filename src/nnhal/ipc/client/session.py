"""A client's session with a service: its calls, and the thread that keeps house.

Each session has one housekeeping thread: it receives notifications, sends releases in batches, and watches the process
and the abandoned channels. It ends with the session, and cleans up. A session that nobody refers to ends by itself.
"""

import contextlib
import itertools
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from nnhal.base import trace
from nnhal.base.errors import (
    Cancelled,
    DeadObject,
    MissedDeadline,
    NnhalError,
    ResourceExhausted,
    copy_of_error,
)
from nnhal.base.levels import V1_3, Level
from nnhal.base.memory import Memory
from nnhal.base.names import printable
from nnhal.base.time import QUERY_NS, WORK_NS
from nnhal.hal.request import UNLIMITED, Control
from nnhal.ipc.client.channels import MAX_LANES, Abandoned, Channels
from nnhal.ipc.client.endings import Endings
from nnhal.ipc.client.first_channel import FirstChannel, Greeting
from nnhal.ipc.client.housekeeper import Housekeeper
from nnhal.ipc.client.output import DriverProcess
from nnhal.ipc.client.peer import ServicePeer
from nnhal.ipc.client.pending import CANCEL_SLICE_NS, GRACE_NS, Notifications, NotifiedCall, Pending
from nnhal.ipc.client.pools import ClientPools, Packing
from nnhal.ipc.client.trace_follower import TraceFollower
from nnhal.ipc.protocol import wire
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.channel import Channel, Descriptors, Message, NoProtocol

GREETING_NS = 30_000_000_000  # a driver may import a large engine first
SETTLE_NS = 2_000_000_000  # after an interrupt, for a driver that writes to the caller's memory to notice it
_PLACED = 60  # descriptors of one message
T = TypeVar("T", bound=wire.Reply)


def _by_its_name(answer_to: Any) -> Any:
    """Wrap `Session.answer_to` during a trace, in a span with the method's name."""

    def traced(session: "Session", name: str, *args: Any, **kwargs: Any) -> Any:
        with trace.span("ipc", wire.phase_of(name), name, session.where):
            return answer_to(session, name, *args, **kwargs)

    return traced


class Session:
    """One session; close it to have the service release everything it holds for it.

    A session has these parts: `peer` decides that it is dead; `channels` carry the calls; `notifications` answer some of
    them later; `endings` are sent by the housekeeping thread. calls: how often each HAL method was called.
    """

    def __init__(
        self, sock: socket.socket, where: str, process: DriverProcess | None = None, greeting: int | None = None
    ) -> None:
        """Greet over a connected socket, which the session then owns.

        process: the service's, if it belongs to this client alone.

        greeting: the nanoseconds that it may take to answer the greeting, None for `GREETING_NS`.
        """
        self.calls: dict[str, int] = {}
        self.group = next(trace.groups)
        self._numbers = itertools.count(1)
        channel = Channel(sock)
        try:
            self._start(channel, where, process, GREETING_NS if greeting is None else greeting)
        except BaseException:
            self._abandon(channel, process)
            raise
        _sessions.add(self)
        trace.followers.add(self._follower)
        recording = trace.process.recording
        if recording is not None:
            self._follower.follow(recording)
            self._follower.await_follow(recording, time.monotonic() + trace.TAKEN_UP_SECONDS)

    def _start(self, channel: Channel, where: str, process: DriverProcess | None, patience: int) -> None:
        """Greet, attach the callback channel, start the thread."""
        self.welcome = welcome = Greeting(where, process).exchange(channel, patience)
        if process is not None:  # it may have been started by a path
            where = f"device {printable(welcome.name)}"
        self.where, self.level = where, Level(welcome.level)
        self.methods = min(self.level, V1_3)
        self.pools = ClientPools(shared=welcome.shared)
        self.peer = peer = ServicePeer(where, welcome, process)
        self._first = first = FirstChannel(channel, peer, welcome.cpus, self._numbers, self.group)
        self._callbacks = first.attach_callbacks(time.monotonic_ns() + patience)
        self.endings = Endings(peer)
        self.notifications = Notifications(peer, self.endings)
        self.channels = Channels(first, peer, self.endings, self.notifications)
        self._follower = TraceFollower(peer, first, self.endings, self.pools, self._numbers, welcome.pid, self.group)
        parts = self._first, self._callbacks, self.channels, self.endings, self.notifications
        self._housekeeper = housekeeper = Housekeeper(peer, *parts)
        self._use = _native.Lease(0, self.endings.unused.append, self.endings.own)  # as long as this object lives
        self._thread = threading.Thread(target=housekeeper.run, name="nnhal-session", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            raise ResourceExhausted(f"{where}: no thread to keep its connection") from None

    def _abandon(self, channel: Channel, process: DriverProcess | None) -> None:
        """Clean up a session that failed to start: no thread, no descriptor and no process remain."""
        if hasattr(self, "_thread"):
            self.end()
            if self._thread.is_alive():  # an interrupt came after its start
                self._thread.join(5)
        channel.close()
        if hasattr(self, "_callbacks"):
            self._callbacks.close()
        if process is not None:
            process.kill()
            process.wait()
        if hasattr(self, "peer"):
            self.peer.close_descriptor()
        if hasattr(self, "endings"):
            self.endings.own.close()

    # --------------------------------------------------------------------------------------------------------- calls

    def number(self) -> int:
        """Return a number for an object that ends by itself.

        An object whose owner exists before the call has a `lease`.
        """
        return next(self._numbers)

    def lease(self) -> _native.Lease:
        """Return a number that is released with the holder of the lease, whatever a signal handler does."""
        return _native.Lease(self.number(), self.endings.released.append, self.endings.own)

    def packing(self, held: "dict[Memory, tuple[int, int]] | None" = None) -> Packing:
        """Collect the memories of one message. held: those that were sent ahead, by object and place."""
        return Packing(self.pools, held)

    @contextlib.contextmanager
    def carrying(self, memories: Sequence[Memory], control: Control) -> Iterator[Packing]:
        """Collect the memories of a message; if they exceed one message's descriptors, they are sent ahead."""
        held: dict[Memory, tuple[int, int]] = {}
        leases: list[_native.Lease] = []
        try:
            if len(memories) > _PLACED:
                apart = list(dict.fromkeys(map(self.pools.shareable, memories)))
                for start in range(0, len(apart), _PLACED):
                    some, packing = apart[start : start + _PLACED], self.packing()
                    leases.append(self.lease())
                    number = leases[-1].number
                    message = wire.Hold(number, tuple(packing.pool(memory) for memory in some))
                    self.call(message, wire.Acknowledged, control, packing)
                    held.update({memory: (number, place) for place, memory in enumerate(some)})
            yield self.packing(held)
        finally:
            for lease in leases:
                lease.release()

    def call(
        self,
        message: wire.ClientCall,
        expect: type[T],
        control: Control,
        packing: Packing | None = None,
        *,
        fds: Sequence[int] = (),
        work: bool = False,
    ) -> tuple[T, Descriptors]:
        """Call and wait within `control`; return the reply and its descriptors.

        Args:
            message: The call.
            expect: The kind of its reply.
            control: The budget of the operation that the call belongs to. Without a deadline, the process has `QUERY_NS` to
                answer.
            packing: The memories that the message names.
            fds: Descriptors to send with the message.
            work: Whether the driver may execute before it answers: then it has `WORK_NS`.

        Raises:
            NnhalError: The error that the service reports.
            MissedDeadline: The deadline has passed.
            Cancelled: Its owner cancelled it.
            DeviceUnavailable: There is no deadline, and the process stays silent; the session has ended.
            DeadObject: The session has ended.
        """
        reply, received = self.ask(message, control, packing, fds=fds, work=work)
        return self.expected(message, reply, expect), received

    def ask(
        self,
        message: wire.ClientCall,
        control: Control,
        packing: Packing | None = None,
        *,
        fds: Sequence[int] = (),
        work: bool = False,
    ) -> tuple[wire.Reply, Descriptors]:
        """Like `call`, with a reply of any kind, including an error."""
        given = (*fds, *packing.fds) if packing is not None else tuple(fds)
        made = message.object if isinstance(message, wire.MakingCall) else 0
        return self.answer_to(wire.hal_name(message), wire.encode(message), control, given, made=made, work=work)

    def expected(self, message: wire.ClientCall, reply: wire.Reply, expect: type[T]) -> T:
        """Return the reply to a call if it has the required kind; raise the error that the service reports."""
        if isinstance(reply, wire.Failed):
            raise self.peer.error(reply)
        if not isinstance(reply, expect):
            raise self.peer.died(
                NoProtocol(f"{self.where}: answered {wire.hal_name(message)} with {type(reply).__name__}")
            )
        return reply

    @trace.replaced_while_tracing(_by_its_name)
    def answer_to(
        self,
        name: str,
        data: bytes,
        control: Control,
        fds: Sequence[int] = (),
        direct: bool = False,
        made: int = 0,
        lanes: int = MAX_LANES,
        work: bool = False,
    ) -> tuple[wire.Reply, Descriptors]:
        """Like `call`, for an encoded call, and with an answer of any kind.

        name: the HAL method's. direct: whether the driver writes to the caller's memory, which it must not do after the
        end. made: the number of the call's result. lanes: the call waits while this many calls are running.
        """
        self.calls[name] = self.calls.get(name, 0) + 1
        try:
            patience = WORK_NS if work else QUERY_NS
            answer, received = self._transact(data, fds, control, direct, made, lanes, patience)
        except MissedDeadline:
            if control.deadline is None:
                raise self.peer.silent(name, patience) from None
            raise
        if answer == wire.ENCODED_DONE:
            return wire.DONE, received
        try:
            return wire.decode_reply(answer), received
        except wire.WireError as error:
            raise self.peer.died(
                NoProtocol(f"{self.where}: answered {name} with an invalid message: {error}")
            ) from None

    def _transact(
        self,
        data: bytes,
        fds: Sequence[int],
        control: Control,
        direct: bool,
        made: int,
        lanes: int,
        patience: int,
    ) -> Message:
        """Send bytes on a channel reserved for this call and wait for the answer."""
        peer, channels = self.peer, self.channels
        if peer.dead is not None:
            raise copy_of_error(peer.dead)
        channel = channels.reserve(control, lanes)
        late = False
        try:
            if made:
                self.notifications.sending(made)
            if control.deadline is None and control.cancelled is None:
                return channel.call(data, fds, patience)
            return self._patient_call(channel, data, fds, control, patience)
        except MissedDeadline:
            late = True
            raise
        except DeadObject as error:
            raise peer.died(error) from None
        finally:
            if channel.in_doubt:
                channels.abandon(Abandoned(channel, time.monotonic_ns(), late, made))
                if direct:
                    self._settle(channel)
            else:
                channels.give_back(channel)

    @trace.traced_method(
        "ipc", "", "wait for the answer", key=lambda _, lane, *__: (lane.group, lane.number), direction=trace.OUT
    )
    def _patient_call(
        self,
        channel: Channel,
        data: bytes,
        fds: Sequence[int],
        control: Control,
        patience: int,
    ) -> Message:
        """Like `Channel.call`, until the deadline or the end of `patience`, and while the call is wanted."""
        channel.ask(data, fds)
        deadline, cancelled = control.deadline, control.cancelled
        end = time.monotonic_ns() + patience if deadline is None else deadline + GRACE_NS
        while True:
            left = max(0, end - time.monotonic_ns())
            try:
                return channel.receive(left if cancelled is None else min(left, CANCEL_SLICE_NS))
            except MissedDeadline:
                if cancelled is not None and cancelled.is_set():
                    raise Cancelled("execution: cancelled by its owner") from None
                if time.monotonic_ns() >= end:
                    raise MissedDeadline(f"{self.where}: the deadline has passed without an answer") from None

    @trace.traced_method(
        *("ipc", "", "wait for the notification"),
        detail=lambda self: self.where,
        key=lambda self, message, *_, **__: (self.group, message.object),
        direction=trace.OUT,
    )
    def outcome_of(
        self,
        message: NotifiedCall,
        control: Control,
        packing: Packing | None = None,
        late: str = "",
    ) -> tuple[Any, Descriptors]:
        """Call, and return the content of its notification. The service may begin before it has answered the call.

        late: the message of MissedDeadline if the notification does not come in time.
        """
        pending = None
        try:
            pending = self._notified(message, control, packing)
            return self.notifications.wait(pending, control)
        except MissedDeadline:
            if not late or (pending is not None and pending.came):  # an answer
                raise
            raise MissedDeadline(late) from None

    @trace.traced_method("ipc", "", "launch", detail=lambda self: self.where)
    def notified(self, message: NotifiedCall, control: Control) -> Pending:
        """Call, and return the expected notification. Raises MissedDeadline if not even the call was received."""
        trace.hand_over((self.group, message.object))
        return self._notified(message, control, None)

    def _notified(self, message: NotifiedCall, control: Control, packing: Packing | None) -> Pending:
        pending = self.notifications.expect(message)
        try:
            self.call(message, wire.Acknowledged, control, packing)
        except NnhalError:
            if not pending.given_up:
                self.notifications.pending.pop(message.object, None)
            raise
        except BaseException:  # interrupted
            pending.given_up = True
            if not pending.sent:
                self.notifications.pending.pop(message.object, None)
            raise
        if self.peer.dead is not None and not pending.came:  # it may have died in between
            pending.set(self.peer.dead)
        return pending

    @trace.traced_method(
        *("ipc", "", "wait for the notification"),
        detail=lambda self: self.where,
        key=lambda self, pending, *_: (self.group, pending.number),
        direction=trace.OUT,
    )
    def outcome(self, pending: Pending, control: Control) -> tuple[Any, Descriptors]:
        """Wait for a notification; if that is abandoned, inform the service."""
        return self.notifications.wait(pending, control)

    def wait_for_abandoned(self, control: Control) -> None:
        """Return when the service knows every abandoned call of this client: none begins to write a buffer after that.

        An execution that uses driver buffers must come after this. The housekeeping thread sends the same message
        without an answer, so without this the service might still begin an abandoned call after the next one has ended.
        """
        if not self.channels.abandoned and not self.notifications.pending:
            return
        lanes = list(self.channels.abandoned.values())
        numbers = {lane.channel.number for lane in lanes} | {lane.made for lane in lanes if lane.made}
        numbers |= {number for number, pending in list(self.notifications.pending.items()) if pending.given_up}
        if numbers:
            self.call(wire.Cancel(tuple(numbers)), wire.Acknowledged, control)

    # ---------------------------------------------------------------------------------------------------- house-keeping

    def end_object(self, number: int) -> None:
        """Release an object immediately, and wait until the driver has ended it."""
        release = wire.encode(wire.Release((number,)))
        try:
            self._transact(release, (), UNLIMITED, False, 0, MAX_LANES, QUERY_NS)
        except MissedDeadline:
            raise self.peer.silent("Release", QUERY_NS) from None

    def _settle(self, channel: Channel) -> None:
        """Wait until the service has ended an abandoned call: the driver may be writing to the caller's memory.

        A process of this client alone that takes too long is ended.
        """
        peer, end = self.peer, time.monotonic_ns() + SETTLE_NS
        while peer.dead is None and channel.socket.fileno() >= 0:
            if time.monotonic_ns() > end:
                if peer.process is not None:
                    peer.died(DeadObject(f"{self.where}: an interrupted call does not end; it is replaced"))
                return
            time.sleep(0.002)
            self.endings.rouse()
        if peer.dead is not None and peer.process is not None:
            self._thread.join(5)  # it ends the process

    def end(self) -> None:
        """End the session, and with it an own process, without a wait: safe in finalizers."""
        self._housekeeper.end()

    @trace.traced_method("ipc", "termination", "end the connection", detail=lambda self: self.where)
    def close(self) -> None:
        """Like `end`, and wait for it."""
        self.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(5)

    def _forked(self) -> None:
        """Reset a forked child: the session is the parent's."""
        self.peer.forked()
        self._first.forked()
        self._callbacks.close()
        self.channels.forked()
        self.endings.own.close()


_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()


def _after_fork() -> None:
    for session in list(_sessions):
        session._forked()


os.register_at_fork(after_in_child=_after_fork)
