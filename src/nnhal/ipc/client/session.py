"""A client's session with a service: channels for calls, notifications, releases, and detection of its death.

A call uses a free channel or opens one, so any number of threads may call at once. A channel whose call was abandoned
(deadline, interrupt) is never used again: the client hangs it up, and watches it until the service has ended that call.
After the greeting, the first channel carries messages without an answer and requests for new channels, one thread at a
time. Each session has one housekeeping thread: it receives notifications, sends releases in batches, and watches the
process and the abandoned channels.

This file is longer than others: the interactions of callers, that thread and a death have to be read together.
"""

import contextlib
import itertools
import os
import select
import socket
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from nnhal.base import trace
from nnhal.base.codes import LOOP_TIMEOUT_MAXIMUM_NS
from nnhal.base.descriptors import Owner
from nnhal.base.errors import (
    Cancelled,
    Closed,
    DeadObject,
    DeviceUnavailable,
    MissedDeadline,
    NnhalError,
    ResourceExhausted,
    copy_of_error,
)
from nnhal.base.levels import V1_3, Level
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.base.names import printable
from nnhal.base.stacks import with_note
from nnhal.base.time import QUERY_NS, WORK_NS
from nnhal.hal.request import UNLIMITED, Control
from nnhal.ipc.client.output import DriverProcess
from nnhal.ipc.client.pending import CANCEL_SLICE_NS, GRACE_NS, Pending
from nnhal.ipc.client.pools import ClientPools, Packing
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import error_from_wire
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.channel import Channel, Descriptors, Message, NoProtocol, end_of
from nnhal.ipc.transport.peer_end import DYING_MS, ended, pidfd

GREETING_NS = 30_000_000_000  # a driver may import a large engine first
SETTLE_NS = 2_000_000_000  # after an interrupt, for a driver that writes to the caller's memory to notice it
HUNG_NS = 2_000_000_000  # past a deadline without an answer: the process hangs
HUNG_BESIDE_OTHERS_NS = LOOP_TIMEOUT_MAXIMUM_NS  # the same if its end would also cost other calls
MAX_LANES = 32  # for calls at once; as many may be abandoned and not have ended
KEPT_LANES = 4  # of them, the number that each lower priority leaves to higher ones
_PLACED = 60  # descriptors of one message
_BATCH_SECONDS = 0.002
_WANT = 0.005  # seconds between checks for a channel
_LANE_NS = 5_000_000  # for one wait for a new channel
NotifiedCall = wire.PrepareModel | wire.PrepareConsidered | wire.PrepareModelFromCache | wire.Execute
_WISH_MS = 20  # between checks whether a call is still wanted
_log = logger("driver")
T = TypeVar("T", bound=wire.Reply)


def _by_its_name(answer_to: Any) -> Any:
    """Wrap `Session.answer_to` during a trace, in a span with the method's name."""

    def traced(session: "Session", name: str, *args: Any, **kwargs: Any) -> Any:
        with trace.span("ipc", wire.phase_of(name), name, session.where):
            return answer_to(session, name, *args, **kwargs)

    return traced


class OpenBurst(Protocol):
    """The interface that a session uses of a burst."""

    @property
    def busy(self) -> bool:
        """Whether an execution waits for its result."""

    def session_died(self) -> None:
        """Wake the waiting thread."""


class _GivenUp(NamedTuple):
    """A channel with an abandoned call, and when. late: by a missed deadline. made: the number of its result, or 0."""

    channel: Channel
    since: int
    late: bool
    made: int


class Session:
    """One session; close it to have the service release everything it holds for it.

    dead: the error of every further call, None while it lives. calls: how often each HAL method was called.
    """

    def __init__(
        self, sock: socket.socket, where: str, process: DriverProcess | None = None, greeting: int | None = None
    ) -> None:
        """Greet over a connected socket, which the session then owns.

        process: the service's, if it belongs to this client alone.

        greeting: the nanoseconds that it may take to answer the greeting, None for `GREETING_NS`.
        """
        self.where, self.process = where, process
        self._patience = GREETING_NS if greeting is None else greeting
        self.dead: NnhalError | None = None
        self.calls: dict[str, int] = {}
        self._control = Channel(sock)
        self._death_lock = threading.Lock()
        # Locks of the first channel, which stays open meanwhile: for requests of new ones, and for messages without an
        # answer.
        self._attaching, self._sending = threading.Lock(), threading.Lock()
        self._asked_for = 0  # the number of the last requested channel
        self._overdue = 0  # when it became overdue, if the requesting call had a deadline
        self._free: deque[Channel] = deque()
        # All but the abandoned ones; an unreferenced one is closed.
        self._lanes: weakref.WeakSet[Channel] = weakref.WeakSet()
        self._in_want: deque[threading.Event] = deque()  # of the threads that wait for a channel
        self._given_up: dict[int, _GivenUp] = {}  # by the channel's number, until the service has ended the call
        self._numbers = itertools.count(1)
        self._pending: dict[int, Pending] = {}  # by the number it will be about; including abandoned ones
        self.bursts: weakref.WeakValueDictionary[int, OpenBurst] = weakref.WeakValueDictionary()
        # Objects that only the service holds: contents of buffers, results behind fences. They delay the end of a slow
        # process.
        self.holders: weakref.WeakSet[object] = weakref.WeakSet()
        self._tidied = False  # then every caller closes what the housekeeping thread left behind
        self._late: deque[tuple[Pending, int]] = deque()  # those that missed their deadline, and when
        self._released: deque[int] = deque()
        self._cancelled: deque[int] = deque()
        self._wishes: dict[int, threading.Event] = {}  # of running calls; set when they are no longer wanted
        self._on_death: list[Callable[[NnhalError], None]] = []
        self.watch = self._wake = -1
        self._own = Owner()  # of both: holders of the session may use them
        self.group = next(trace.groups)
        self._followed: trace.Recording | None = None
        self._log = 0  # the number of the service's trace log
        try:
            self._start()
        except BaseException:
            self._abandon()
            raise
        _sessions.add(self)
        trace.followers.add(self)
        recording = trace.process.recording
        if recording is not None:
            self.follow(recording)
            self.await_follow(recording, time.monotonic() + trace.TAKEN_UP_SECONDS)

    def _start(self) -> None:
        """Greet, attach the callback channel, start the thread."""
        self.welcome = self._greet()
        if self.process is not None:  # it may have been started by a path
            self.where = f"device {printable(self.welcome.name)}"
        self.level = Level(self.welcome.level)
        self.methods = min(self.level, V1_3)
        self.pools = ClientPools(shared=self.welcome.shared)
        self.watch = pidfd(self.welcome.pid if self.process is None else self.process.pid)
        self._own.fds.extend([self.watch] * (self.watch >= 0))
        self._control.lane.watch = self.watch
        self._control.lane.peer_cpus = self.welcome.cpus
        self._callbacks = self._attach(time.monotonic_ns() + self._patience)
        try:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError as error:
            raise ResourceExhausted(f"{self.where}: no descriptor for its connection: {error.strerror}") from None
        self._own.fds.append(self._wake)
        self._thread = threading.Thread(target=self._keep_house, name="nnhal-session", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            raise ResourceExhausted(f"{self.where}: no thread to keep its connection") from None

    def _abandon(self) -> None:
        """Clean up a session that failed to start: no descriptor and no process remain."""
        self._control.close()
        if hasattr(self, "_callbacks"):
            self._callbacks.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._own.close()

    @trace.traced_method("ipc", "initialisation", "greet", detail=lambda self: self.where)
    def _greet(self) -> wire.Welcome:
        try:
            data, _ = self._control.call(wire.encode(wire.Hello(wire.VERSION, _native.cpus())), (), self._patience)
            reply = wire.decode_reply(data)
        except (NoProtocol, wire.WireError) as error:
            raise self._unfit(f"is not a driver service: {error}") from None
        except (DeadObject, MissedDeadline) as error:
            how = self._fate()
            fault = "" if self.process is None else self.process.exit_by_itself
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
        error.driver_fault = "" if self.process is None else fault
        return error

    def _refused(self, error: NnhalError) -> NnhalError:
        """Return the error for a greeting that was answered by an error."""
        if isinstance(error, ResourceExhausted):
            return with_note(ResourceExhausted(f"{self.where}: {error}"), error.stack)
        what = "did not start" if self.process is not None else "refused the connection"
        unfit = self._unfit(f"the driver process {what}: {error}", "" if isinstance(error, MemoryError) else "exit")
        return with_note(unfit, error.stack)

    # --------------------------------------------------------------------------------------------------------- calls

    def number(self) -> int:
        """Return a number for an object that ends by itself.

        An object whose owner exists before the call has a `lease`.
        """
        return next(self._numbers)

    def lease(self) -> _native.Lease:
        """Return a number that is released with the holder of the lease, whatever a signal handler does."""
        return _native.Lease(self.number(), self._released.append, self._own)

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
            raise self.error(reply)
        if not isinstance(reply, expect):
            raise self._died(NoProtocol(f"{self.where}: answered {wire.hal_name(message)} with {type(reply).__name__}"))
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
            answer, received = self._transact(data, fds, control, direct, made, lanes, WORK_NS if work else QUERY_NS)
        except MissedDeadline:
            if control.deadline is None:
                raise self.silent(name, work=work) from None
            raise
        if answer == wire.ENCODED_DONE:
            return wire.DONE, received
        try:
            return wire.decode_reply(answer), received
        except wire.WireError as error:
            raise self._died(NoProtocol(f"{self.where}: answered {name} with an invalid message: {error}")) from None

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
        if self.dead is not None:
            raise copy_of_error(self.dead)
        try:
            few = lanes == MAX_LANES or len(self._lanes) <= lanes
            channel = self._free.pop() if few else self._lane(control, lanes)
        except IndexError:
            channel = self._lane(control, lanes)
        late = False
        try:
            if control.deadline is None and control.cancelled is None:
                return channel.call(data, fds, patience)
            return self._patient_call(channel, data, fds, control, patience)
        except MissedDeadline:
            late = True
            raise
        except DeadObject as error:
            raise self._died(error) from None
        finally:
            if channel.in_doubt:
                self._give_up(_GivenUp(channel, time.monotonic_ns(), late, made))
                if direct:
                    self._settle(channel)
            else:
                self._keep(channel)

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

    def silent(self, name: str, *, work: bool) -> NnhalError:
        """Return the error for a process that did not answer a call without a deadline in time; the session ends."""
        seconds = (WORK_NS if work else QUERY_NS) // 10**9
        text = f"device {self.welcome.name}: did not answer {name} within {seconds} s; it is dropped"
        self.give_up(text)
        return DeviceUnavailable(text)

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
            return self._outcome(pending, control)
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
        kind = wire.NotifyExecuted if isinstance(message, wire.Execute) else wire.NotifyPrepared
        pending = self._pending[message.object] = Pending(message.object, kind)
        try:
            self.call(message, wire.Acknowledged, control, packing)
        except NnhalError:
            if not pending.given_up:
                self._pending.pop(message.object, None)
            raise
        except BaseException:  # interrupted
            pending.given_up = True
            raise
        if self.dead is not None and not pending.came:  # it may have died in between
            pending.set(self.dead)
        return pending

    @trace.traced_method(
        *("ipc", "", "wait for the notification"),
        detail=lambda self: self.where,
        key=lambda self, pending, *_: (self.group, pending.number),
        direction=trace.OUT,
    )
    def outcome(self, pending: Pending, control: Control) -> tuple[Any, Descriptors]:
        """Wait for a notification; if that is abandoned, inform the service."""
        return self._outcome(pending, control)

    def _outcome(self, pending: Pending, control: Control) -> tuple[Any, Descriptors]:
        deadline = control.deadline
        try:
            return pending.wait(
                time.monotonic_ns() + WORK_NS if deadline is None else deadline, control.cancelled, self.watch
            )
        except DeadObject as error:
            raise (error if pending.came else self._died(error)) from None
        except BaseException as error:
            if not pending.came:
                pending.given_up = True
                if isinstance(error, MissedDeadline):
                    if deadline is None:
                        raise self.silent(pending.method, work=True) from None
                    self._late.append((pending, time.monotonic_ns()))
                self._cancelled.append(pending.number)
                self._rouse()
            raise

    def wait_for_abandoned(self, control: Control) -> None:
        """Return when the service knows every abandoned call of this client: none begins to write a buffer after that.

        An execution that uses driver buffers must come after this. The housekeeping thread sends the same message
        without an answer, so without this the service might still begin an abandoned call after the next one has ended.
        """
        if not self._given_up and not self._pending:
            return
        lanes = list(self._given_up.values())
        numbers = {lane.channel.number for lane in lanes} | {lane.made for lane in lanes if lane.made}
        numbers |= {number for number, pending in list(self._pending.items()) if pending.given_up}
        if numbers:
            self.call(wire.Cancel(tuple(numbers)), wire.Acknowledged, control)

    def watch_cancellation(self, number: int, cancelled: threading.Event | None) -> None:
        """Until `unwatch_cancellation`, inform the service when a call's result is no longer wanted."""
        if cancelled is not None:
            self._wishes[number] = cancelled
            self._rouse()

    def unwatch_cancellation(self, number: int) -> None:
        """Stop watching: the call's work has ended."""
        self._wishes.pop(number, None)

    def error(self, failed: wire.Failed) -> NnhalError:
        """Return the error that the service reported; a process that requests replacement is replaced."""
        error = error_from_wire(failed)
        if failed.recycle and self.process is not None:
            self._died(DeadObject(f"{self.where}: the process is replaced: {error}"), fate=False)
        return error

    def _lane(self, control: Control, most: int) -> Channel:
        """Return a channel when few enough calls are running: a free one, or a new one up to the limit.

        Raises MissedDeadline, Cancelled, or ResourceExhausted if there will not be one. A process that has not provided
        a new channel within `QUERY_NS` is silent, which is a MissedDeadline too.
        """
        deadline, cancelled = control.deadline, control.cancelled
        asked = 0  # the time of the first request
        while True:
            if self.dead is not None:
                raise copy_of_error(self.dead)
            few = False
            if len(self._lanes) - len(self._free) < most:
                try:
                    return self._free.pop()
                except IndexError:
                    few = len(self._lanes) < MAX_LANES
            if few and not self._attaching.locked():
                self._check_given_up()
                left = _LANE_NS if deadline is None else deadline + GRACE_NS - time.monotonic_ns()
                channel = self._asked(min(_LANE_NS, max(0, left)))
                if channel is not None:
                    self._lanes.add(channel)
                    self._call_in()
                    return channel
                asked = asked or time.monotonic_ns()
                if deadline is None and time.monotonic_ns() - asked > QUERY_NS:
                    raise MissedDeadline(f"{self.where}: provided no channel in time")
            else:
                self._await_lane()
            if deadline is not None and time.monotonic_ns() > deadline + GRACE_NS:
                if not few:
                    raise MissedDeadline(f"{self.where}: no channel was free by the deadline")
                self._overdue = self._overdue or time.monotonic_ns()
                self._rouse()
                raise MissedDeadline(f"{self.where}: the deadline has passed without an answer")
            if cancelled is not None and cancelled.is_set():
                raise Cancelled("execution: cancelled by its owner")

    def _check_given_up(self) -> None:
        """Refuse one more channel if the most allowed have abandoned calls that do not end."""
        if len(self._given_up) >= MAX_LANES:
            if self.process is not None:
                raise self._died(DeadObject(f"{self.where}: {MAX_LANES} abandoned calls do not end; it is replaced"))
            raise ResourceExhausted(f"{self.where}: {MAX_LANES} abandoned calls have not ended, must be fewer")

    def _attach(self, deadline: int) -> Channel:
        """Return the channel for notifications; raise DeviceUnavailable after the deadline."""
        while (channel := self._asked(_LANE_NS, callbacks=True)) is None:
            if time.monotonic_ns() > deadline:
                raise DeviceUnavailable(f"{self.where}: provided no channel for notifications in time")
        return channel

    def _asked(self, wait: int, *, callbacks: bool = False) -> Channel | None:
        """Return a new channel if the service provides one within `wait` ns; a later one is for the next request."""
        control = self._control
        with self._attaching:  # held only briefly: other callers have deadlines
            if self.dead is not None:
                raise copy_of_error(self.dead)
            try:
                if not control.in_doubt:
                    self._asked_for = self.number()
                    control.ask(wire.encode(wire.AttachLane(self._asked_for, callbacks)))
                data, fds = control.receive(wait)
                self._overdue = 0
                if data == wire.ENCODED_DONE:
                    channel = Channel(end_of(fds), -1, self.welcome.cpus, self._asked_for)
                    channel.group = self.group
                    return channel
                reply = wire.decode_reply(data)
            except MissedDeadline:
                return None
            except wire.WireError as error:
                raise self._died(
                    NoProtocol(f"{self.where}: answered AttachLane with an invalid message: {error}")
                ) from None
            except DeadObject as error:
                raise self._died(error) from None
        if isinstance(reply, wire.Failed):
            raise self.error(reply)
        raise self._died(NoProtocol(f"{self.where}: answered AttachLane with {type(reply).__name__}"))

    def _await_lane(self) -> None:
        """Wait briefly for a free channel, while this thread is first in line."""
        gate = threading.Event()
        self._in_want.append(gate)
        if not gate.wait(_WANT):
            with contextlib.suppress(ValueError):
                self._in_want.remove(gate)

    def _keep(self, channel: Channel) -> None:
        """Return a channel for the next call."""
        self._free.append(channel)
        self._call_in()
        self._close_late_lanes()

    def _call_in(self) -> None:
        """Wake the first thread that waits for a channel."""
        if self._in_want:
            with contextlib.suppress(IndexError):
                self._in_want.popleft().set()

    def _give_up(self, lane: _GivenUp) -> None:
        """Abandon a channel: no thread waits for the answer."""
        self._lanes.discard(lane.channel)
        if self.dead is None:  # otherwise all channels end, and waiting threads must still hear of it
            lane.channel.hang_up()
        self._cancelled.append(lane.channel.number)
        pending = self._pending.get(lane.made)
        if pending is not None:
            pending.given_up = True
        self._given_up[lane.channel.number] = lane
        self._rouse()
        self._close_late_lanes()

    def _close_late_lanes(self) -> None:
        """Close the channels that came after the end of the housekeeping thread."""
        if self._tidied:
            self._close_lanes()

    def _close_lanes(self) -> None:
        """Close unused channels."""
        while self._free:
            with contextlib.suppress(IndexError):
                self._free.pop().close()
        while self._given_up:
            with contextlib.suppress(KeyError):
                self._given_up.popitem()[1].channel.close()

    # ---------------------------------------------------------------------------------------------------- house-keeping

    def release(self, number: int) -> None:
        """Release an object, in a batch with others. Safe in finalizers."""
        self._released.append(number)
        self._rouse()

    def end_object(self, number: int) -> None:
        """Release an object immediately, and wait until the driver has ended it."""
        release = wire.encode(wire.Release((number,)))
        try:
            self._transact(release, (), UNLIMITED, False, 0, MAX_LANES, QUERY_NS)
        except MissedDeadline:
            raise self.silent("Release", work=False) from None

    def _settle(self, channel: Channel) -> None:
        """Wait until the service has ended an abandoned call: the driver may be writing to the caller's memory.

        A process of this client alone that takes too long is ended.
        """
        end = time.monotonic_ns() + SETTLE_NS
        while self.dead is None and channel.socket.fileno() >= 0:
            if time.monotonic_ns() > end:
                if self.process is not None:
                    self._died(DeadObject(f"{self.where}: an interrupted call does not end; it is replaced"))
                return
            time.sleep(0.002)
            self._rouse()
        if self.dead is not None and self.process is not None:
            self._thread.join(5)  # it ends the process

    def _rouse(self) -> None:
        if self.dead is None:
            os.eventfd_write(self._wake, 1)

    def on_death(self, call: Callable[[NnhalError], None]) -> None:
        """Register a callback for the service's death; a method is held weakly."""
        with self._death_lock:
            if self.dead is None:
                self._on_death.append(call)
                return
        call(self.dead)

    def _keep_house(self) -> None:
        poll = select.poll()
        for fd in (self._callbacks.socket.fileno(), self._wake, self.watch):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        try:
            while self.dead is None:
                ready = dict(poll.poll(_WISH_MS if self._wishes else 250 if self._is_late() else None))
                if self._callbacks.socket.fileno() in ready:
                    self._take_callback()
                if self._wake in ready:
                    os.eventfd_read(self._wake)
                    if self._released or self._cancelled:
                        self._send_endings()
                if self._wishes:
                    self._look_at_wishes()
                if self._is_late():
                    self._look_at_late()
                if self.watch in ready:
                    self._died(DeadObject(f"{self.where}: {self._fate() or 'the driver process died'}"))
        except NnhalError as error:
            self._died(error)
        except OSError as error:
            self._died(DeadObject(f"{self.where}: {error}"))
        finally:
            self._tidy()

    def _take_callback(self) -> None:
        data, fds = self._callbacks.receive(0)
        try:
            message = wire.decode_callback(data)
        except wire.WireError as error:
            raise NoProtocol(f"{self.where}: called back with an invalid message: {error}") from None
        pending, came = self._pending.get(message.object), type(message).__name__
        if pending is None:
            raise NoProtocol(
                f"{self.where}: notified by {came} of {message.object}, must be of a requested object, once"
            )
        if type(message) is not pending.kind:
            raise NoProtocol(
                f"{self.where}: notified by {came} of {message.object}, must be by {pending.kind.__name__}"
            )
        self._pending.pop(message.object, None)
        if isinstance(message.result, wire.Failed):
            pending.set(self.error(message.result))
        else:
            pending.set(message.result, fds)

    def _look_at_wishes(self) -> None:
        for number, cancelled in list(self._wishes.items()):
            if cancelled.is_set():
                self.unwatch_cancellation(number)
                self._cancelled.append(number)
                self._rouse()

    def _send_endings(self) -> None:
        """Send cancellations immediately, and releases in batches."""
        if self._cancelled:
            self._control.send(wire.encode(wire.Cancel(_some(self._cancelled))))
        if self._released:
            time.sleep(_BATCH_SECONDS)
            self._control.send(wire.encode(wire.Release(_some(self._released))))
        if self._released or self._cancelled:
            self._rouse()

    def _is_late(self) -> bool:
        """Whether anything abandoned has not ended, as far as is known."""
        return bool(self._given_up or self._late or self._overdue)

    def _look_at_late(self) -> None:
        """Check abandoned calls: they end when the service has handled them. A process that never does hangs."""
        now = time.monotonic_ns()
        if self._overdue:
            self._take_overdue(now)
        for _ in range(len(self._late)):
            pending, since = self._late.popleft()
            if not pending.came:
                self._look_whether_hangs(now - since)
                self._late.append((pending, since))
        for number, lane in list(self._given_up.items()):
            if self._has_ended(lane):
                self._given_up.pop(number, None)  # another thread may have closed it: the session has died
                lane.channel.close()
                if lane.made:  # the service has made it by now, and did not know it when its owner was released
                    self._cancelled.append(lane.made)
                    self.release(lane.made)
                continue
            if lane.late:
                self._look_whether_hangs(now - lane.since)

    def _take_overdue(self, now: int) -> None:
        """Receive the channel that no thread waits for, if it is there; a process that never provides it hangs."""
        since = self._overdue
        with contextlib.suppress(ResourceExhausted):
            channel = self._asked(0)
            if channel is not None:
                self._lanes.add(channel)
                self._keep(channel)
            elif since:
                self._look_whether_hangs(now - since)

    def _has_ended(self, lane: _GivenUp) -> bool:
        """Whether the service has ended an abandoned channel; further answers on it are ignored.

        A refused call has no notification.
        """
        while True:
            try:
                if _refuses(lane.channel.receive(0)):
                    self._pending.pop(lane.made, None)
            except MissedDeadline:
                return False
            except DeadObject:
                return True
            except NnhalError:  # an invalid answer
                continue

    def _look_whether_hangs(self, late: int) -> None:
        """End this client's own process if a call is `late` nanoseconds past its deadline without an answer.

        It may be slow: while other calls depend on it, it has longer.
        """
        if self.process is not None and late > HUNG_NS and (late > HUNG_BESIDE_OTHERS_NS or not self._has_others()):
            self._died(DeadObject(f"{self.where}: the driver process hangs and was killed"))

    def _has_others(self) -> bool:
        """Whether another call waits for the process, or would lose data that only it holds."""
        calls = len(self._lanes) > len(self._free) or any(not each.given_up for each in list(self._pending.values()))
        return calls or bool(self.holders) or any(burst.busy for burst in list(self.bursts.values()))

    def confirm_death(self, text: str) -> NnhalError:
        """Return the error for a channel or queue that ended by itself: the process's death if that is the cause."""
        if self.dead is None and self.watch >= 0 and not ended(self.watch, DYING_MS):
            return DeadObject(text)
        return self._died(DeadObject(text))

    def give_up(self, why: str) -> None:
        """End a session whose service does not answer, and kill a process of this client alone."""
        self._died(DeadObject(why))

    # ---------------------------------------------------------------------------------------------------------- traces

    def follow(self, recording: trace.Recording) -> None:
        """Have the service write to a log of this recording, without a wait."""
        if self.dead is not None or self._followed is recording:
            return
        self._followed = recording
        slots = trace.SLOTS_OF_DRIVERS
        try:
            memory = Memory.allocate(trace.size_of(slots), "nnhal-trace")
            number, packing = self.number(), self.packing()
            self._log = number  # also the number of an interrupted request
            message = wire.WriteTrace(number, packing.pool(memory), recording.since)
            with self._sending:
                self._control.send(wire.encode(message), packing.fds)
        except NnhalError as error:
            recording.notes.append(f"{self.where}: its process is not traced: {error}")
            self._log = 0
            return
        recording.remotes.append(
            trace.Remote(self.where.removeprefix("device "), self.welcome.pid, self.group, memory.bytes(), slots)
        )
        recording.look()

    def await_follow(self, recording: trace.Recording, until: float) -> None:
        """Wait until the service has started to record, but not past `until`."""
        memory = next((remote.memory for remote in recording.remotes if remote.group == self.group), None)
        while memory is not None and not trace.has_writer(memory):
            if time.monotonic() > until or self.dead is not None:
                recording.notes.append(f"{self.where}: did not start to trace in time; spans are missing")
                return
            time.sleep(0.0005)

    def unfollow(self) -> None:
        """Stop the service from recording."""
        self._followed = None
        if self._log:
            self.release(self._log)
            self._log = 0

    # ------------------------------------------------------------------------------------------------------------- end

    def _fate(self) -> str:
        """Describe how this client's own process ended; "" if it did not, or that is not known."""
        if self.process is None:
            return ""
        return self.process.exit_description()

    def _died(self, error: NnhalError, *, fate: bool = True) -> NnhalError:
        """End the session and wake every waiting thread; return the error to raise.

        fate: whether the message describes how the process ended. The driver is at fault if its process broke the
        protocol, or ended itself before this client ended it.
        """
        with self._death_lock:
            if self.dead is not None:
                return copy_of_error(self.dead)
            text, own_end = str(error), ""
            if self.process is not None:
                if not ended(self.watch) and self.process.poll() is None:
                    self.process.kill()
                how = self._fate() if fate else ""
                if how and how not in text:
                    text = f"{self.where}: {how}: {text.removeprefix(f'{self.where}: ')}"
                own_end = self.process.exit_by_itself
            fault: Any = "protocol" if isinstance(error, NoProtocol) else own_end
            error = copy_of_error(error) if isinstance(error, Closed) else DeadObject(text)
            error.driver_fault = fault
            self.dead = error
        _log.debug("%s", error)
        while self._pending:
            self._pending.popitem()[1].set(error)
        for burst in list(self.bursts.values()):
            burst.session_died()
        for call in self._on_death:
            call(error)
        if self._wake >= 0 and (self.process is None or self.watch < 0):  # otherwise the end of the process wakes it
            os.eventfd_write(self._wake, 1)
        return copy_of_error(error)

    def end(self) -> None:
        """End the session, and with it an own process, without a wait: safe in finalizers."""
        if self.dead is None:
            self.dead = Closed(f"{self.where}: the connection was closed")
            os.eventfd_write(self._wake, 1)

    @trace.traced_method("ipc", "termination", "end the connection", detail=lambda self: self.where)
    def close(self) -> None:
        """Like `end`, and wait for it."""
        self.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(5)

    def _tidy(self) -> None:
        for channel in (self._control, self._callbacks, *list(self._lanes)):
            with contextlib.suppress(OSError):
                channel.socket.shutdown(socket.SHUT_RDWR)
        self._tidied = True
        self._close_lanes()
        for burst in list(self.bursts.values()):
            burst.session_died()
        while self._pending:
            self._pending.popitem()[1].set(self.dead)
        with self._attaching, self._sending:
            self._control.close()
        self._callbacks.close()
        if self.process is not None:
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _forked(self) -> None:
        """Reset a forked child: the session is the parent's."""
        self.dead = Closed(f"{self.where}: belongs to the process that this one was forked from; compile again here")
        self._death_lock, self._attaching, self._sending = threading.Lock(), threading.Lock(), threading.Lock()
        for channel in (self._control, self._callbacks, *list(self._lanes)):
            channel.close()
        self._own.close()
        self.watch = -1


def _some(numbers: deque[int]) -> tuple[int, ...]:
    """Remove and return as many numbers as fit one message."""
    return tuple(numbers.popleft() for _ in range(min(len(numbers), 1 << 15)))


def _refuses(answer: Message) -> bool:
    """Whether an answer is an error."""
    try:
        return answer[0] != wire.ENCODED_DONE and isinstance(wire.decode_reply(answer[0]), wire.Failed)
    except wire.WireError:
        return False


_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()


def _after_fork() -> None:
    for session in list(_sessions):
        session._forked()


os.register_at_fork(after_in_child=_after_fork)
