"""A client's connection to a service: lanes for calls, notifications, releases, and the news that the service died.

A call takes a lane that is free, or opens one, so any number of threads may call at once. A lane whose call was given up, by
its deadline or an interrupt, is never used again: it is hung up and watched until the service has seen the end of that call.
After the greeting the first lane carries what wants no answer, and asks for new lanes, one thread at a time. One thread a
session keeps house: it takes notifications, sends releases in batches, watches the process and the lanes that were given up.

Longer than other files: what callers, that thread and a death do to one another has to be read together.
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
    again,
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
from nnhal.ipc.transport.fate import DYING_MS, ended, pidfd

GREETING_NS = 30_000_000_000  # a driver may import a large engine first
SETTLE_NS = 2_000_000_000  # after an interrupt, for a driver that writes to memory of the caller's to see it
HUNG_NS = 2_000_000_000  # past a deadline without an answer: the process hangs
HUNG_BESIDE_OTHERS_NS = LOOP_TIMEOUT_MAXIMUM_NS  # the same where its end would take something from others
MAX_LANES = 32  # for calls at once; as many may be given up and not have ended
KEPT_LANES = 4  # of them, that executions of each lower priority leave to those of higher ones
_PLACED = 60  # descriptors that go along with a message
_BATCH_SECONDS = 0.002
_WANT = 0.005  # seconds between looks for a lane
_LANE_NS = 5_000_000  # at a stretch, for the service to give a new one
NotifiedCall = wire.PrepareModel | wire.PrepareConsidered | wire.PrepareModelFromCache | wire.Execute
_WISH_MS = 20  # between looks at whether what goes on is still wanted
_log = logger("driver")
T = TypeVar("T", bound=wire.Reply)


def _by_its_name(answer_to: Any) -> Any:
    """`Session.answer_to` where something is traced: a span of the method's name."""

    def traced(session: "Session", name: str, *args: Any, **kwargs: Any) -> Any:
        with trace.span("ipc", wire.phase_of(name), name, session.where):
            return answer_to(session, name, *args, **kwargs)

    return traced


class OpenBurst(Protocol):
    """What a session needs of a burst."""

    @property
    def busy(self) -> bool:
        """Whether an execution waits for its result."""

    def session_died(self) -> None:
        """Wake whoever waits."""


class _GivenUp(NamedTuple):
    """A lane whose call was given up, and when. late: for a missed deadline. made: what the call was to make, or 0."""

    channel: Channel
    since: int
    late: bool
    made: int


class Session:
    """One connection; close it to have the service end what it held for it.

    dead: why nothing works any more, None while it does. calls: how often each HAL method was called.
    """

    def __init__(
        self, sock: socket.socket, where: str, process: DriverProcess | None = None, greeting: int | None = None
    ) -> None:
        """Take over a connected socket and greet. process: the service's, where it is this client's own.

        greeting: nanoseconds that it may take to answer the greeting, None for `GREETING_NS`.
        """
        self.where, self.process = where, process
        self._patience = GREETING_NS if greeting is None else greeting
        self.dead: NnhalError | None = None
        self.calls: dict[str, int] = {}
        self._control = Channel(sock)
        self._death_lock = threading.Lock()
        # Of the first lane, which stays open meanwhile: for who asks for a new one, for who sends what wants no answer.
        self._attaching, self._sending = threading.Lock(), threading.Lock()
        self._asked_for = 0  # the number of the lane that was asked for last
        self._overdue = 0  # since when it is, where whoever asked for it had a deadline
        self._free: deque[Channel] = deque()
        # All but those given up; one that nobody holds is closed.
        self._lanes: weakref.WeakSet[Channel] = weakref.WeakSet()
        self._in_want: deque[threading.Event] = deque()  # of those who wait for a lane
        self._given_up: dict[int, _GivenUp] = {}  # by the number of the lane, until the service has ended the call
        self._numbers = itertools.count(1)
        self._pending: dict[int, Pending] = {}  # by the number it will be about; also one that nobody waits for
        self.bursts: weakref.WeakValueDictionary[int, OpenBurst] = weakref.WeakValueDictionary()
        # What only the service holds: contents of buffers, results behind fences. They keep a slow process from being ended.
        self.holders: weakref.WeakSet[object] = weakref.WeakSet()
        self._tidied = False  # what the thread that keeps house leaves behind is closed by whoever comes
        self._late: deque[tuple[Pending, int]] = deque()  # that missed their deadline, and since when
        self._released: deque[int] = deque()
        self._cancelled: deque[int] = deque()
        self._wishes: dict[int, threading.Event] = {}  # of calls that go on; set where they are not wanted any more
        self._on_death: list[Callable[[NnhalError], None]] = []
        self.watch = self._wake = -1
        self._own = Owner()  # of both: whoever holds the session may use them
        self.group = next(trace.groups)
        self._followed: trace.Recording | None = None
        self._log = 0  # the number of what the service writes a trace to
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
        """Greet, attach the callback lane, start the thread."""
        self.welcome = self._greet()
        if self.process is not None:  # it was started by a path, perhaps
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
        """Leave nothing of a session that did not come about: no descriptor, no process."""
        self._control.close()
        if hasattr(self, "_callbacks"):
            self._callbacks.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._own.close()

    @trace.seam("ipc", "initialisation", "greet", detail=lambda self: self.where)
    def _greet(self) -> wire.Welcome:
        try:
            data, _ = self._control.call(wire.encode(wire.Hello(wire.VERSION, _native.cpus())), (), self._patience)
            reply = wire.decode_reply(data)
        except (NoProtocol, wire.WireError) as error:
            raise self._unfit(f"is no driver service: {error}") from None
        except (DeadObject, MissedDeadline) as error:
            how = self._fate()
            fault = "" if self.process is None else self.process.own_end
            raise self._unfit(f"the driver process did not start: {how or error}", fault) from None
        if isinstance(reply, wire.Failed):
            raise self._refused(error_from_wire(reply))
        if not isinstance(reply, wire.Welcome) or reply.version != wire.VERSION:
            raise self._unfit(f"answered the greeting with {type(reply).__name__}, must be Welcome")
        if reply.level not in Level.__members__.values():
            raise self._unfit(f"is at level {reply.level}, must be 1 to {max(Level):d}")
        return reply

    def _unfit(self, why: str, fault: Any = "protocol") -> DeviceUnavailable:
        """Why nobody is served. fault: as of `NnhalError.driver_fault`, where the process is this client's own."""
        error = DeviceUnavailable(f"{self.where}: {why}")
        error.driver_fault = "" if self.process is None else fault
        return error

    def _refused(self, error: NnhalError) -> NnhalError:
        """What a greeting that was answered by an error raises."""
        if isinstance(error, ResourceExhausted):
            return with_note(ResourceExhausted(f"{self.where}: {error}"), error.stack)
        what = "did not start" if self.process is not None else "refused the connection"
        unfit = self._unfit(f"the driver process {what}: {error}", "" if isinstance(error, MemoryError) else "exit")
        return with_note(unfit, error.stack)

    # --------------------------------------------------------------------------------------------------------- calls

    def number(self) -> int:
        """A number for what ends by itself. What has an owner, who exists before the call, has a `lease`."""
        return next(self._numbers)

    def lease(self) -> _native.Lease:
        """A number that is given back with what holds the lease, whatever a signal handler does meanwhile."""
        return _native.Lease(self.number(), self._released.append, self._own)

    def packing(self, held: "dict[Memory, tuple[int, int]] | None" = None) -> Packing:
        """For the memories of one message. held: those that were sent ahead, by object and place."""
        return Packing(self.pools, held)

    @contextlib.contextmanager
    def carrying(self, memories: Sequence[Memory], control: Control) -> Iterator[Packing]:
        """For a message with these memories; where they are more than go with one message, they are sent ahead."""
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
        """Call and wait, as long as `control` allows; the reply and its descriptors.

        Args:
            message: The call.
            expect: The kind of its reply.
            control: The budget of what the call is a part of. Without a deadline, the process has `QUERY_NS` to answer.
            packing: The memories that the message names.
            fds: Descriptors that go along.
            work: Whether the driver may be at work before it answers: then it has `WORK_NS`.

        Raises:
            NnhalError: What the service reports.
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
        """As `call`, with a reply of any kind, which may be that it failed."""
        given = (*fds, *packing.fds) if packing is not None else tuple(fds)
        made = message.object if isinstance(message, wire.MakingCall) else 0
        return self.answer_to(wire.hal_name(message), wire.encode(message), control, given, made=made, work=work)

    def expected(self, message: wire.ClientCall, reply: wire.Reply, expect: type[T]) -> T:
        """The reply to a call, of the kind that it must be; raises what the service reports."""
        if isinstance(reply, wire.Failed):
            raise self.error(reply)
        if not isinstance(reply, expect):
            raise self._died(NoProtocol(f"{self.where}: answered {wire.hal_name(message)} with {type(reply).__name__}"))
        return reply

    @trace.instead(_by_its_name)
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
        """As `call`, with a call that is encoded already, and with an answer of any kind.

        name: the HAL's, of the method. direct: the driver writes to memory of the caller's, and must not after the end.
        made: the number of what the call makes. lanes: it waits while so many calls are at it.
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
            raise self._died(NoProtocol(f"{self.where}: answered {name} with what is no message: {error}")) from None

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
        """Send bytes on a lane of this call's own and wait for the answer."""
        if self.dead is not None:
            raise again(self.dead)
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

    @trace.seam(
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
        """As `Channel.call`, until the deadline, or for as long as the process may be silent, and while it is wanted."""
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
        """The error for a process that did not answer in time a call without a deadline; the session ends."""
        seconds = (WORK_NS if work else QUERY_NS) // 10**9
        text = f"device {self.welcome.name}: did not answer {name} within {seconds} s; it is dropped"
        self.give_up(text)
        return DeviceUnavailable(text)

    @trace.seam(
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
        """A call, and what its notification says: what the service does may begin before it has answered the call.

        late: of the MissedDeadline where that does not come in time.
        """
        pending = None
        try:
            pending = self._notified(message, control, packing)
            return self._outcome(pending, control)
        except MissedDeadline:
            if not late or (pending is not None and pending.came):  # an answer
                raise
            raise MissedDeadline(late) from None

    @trace.seam("ipc", "", "launch", detail=lambda self: self.where)
    def notified(self, message: NotifiedCall, control: Control) -> Pending:
        """A call and the notification that is to follow. MissedDeadline where not even the call is taken."""
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
        if self.dead is not None and not pending.came:  # it may have died between
            pending.set(self.dead)
        return pending

    @trace.seam(
        *("ipc", "", "wait for the notification"),
        detail=lambda self: self.where,
        key=lambda self, pending, *_: (self.group, pending.number),
        direction=trace.OUT,
    )
    def outcome(self, pending: Pending, control: Control) -> tuple[Any, Descriptors]:
        """Wait for a notification; where that is given up, the service is told."""
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

    def confirm_abandoned(self, control: Control) -> None:
        """Come back when the service knows every call that this client abandoned: none begins to write a buffer any more.

        An execution that uses driver buffers comes after that. The thread that keeps house sends the same without an
        answer, so the service may still begin an abandoned call when the next one has ended.
        """
        lanes = list(self._given_up.values())
        numbers = {lane.channel.number for lane in lanes} | {lane.made for lane in lanes if lane.made}
        numbers |= {number for number, pending in list(self._pending.items()) if pending.given_up}
        if numbers:
            self.call(wire.Cancel(tuple(numbers)), wire.Acknowledged, control)

    def watch_wish(self, number: int, cancelled: threading.Event | None) -> None:
        """Tell the service when nobody wants any more what a call began; until `forget_wish`."""
        if cancelled is not None:
            self._wishes[number] = cancelled
            self._rouse()

    def forget_wish(self, number: int) -> None:
        """What a call began has ended."""
        self._wishes.pop(number, None)

    def error(self, failed: wire.Failed) -> NnhalError:
        """The error that the service reported; a process that asks to be replaced is."""
        error = error_from_wire(failed)
        if failed.recycle and self.process is not None:
            self._died(DeadObject(f"{self.where}: the process is replaced: {error}"), fate=False)
        return error

    def _lane(self, control: Control, most: int) -> Channel:
        """A lane when fewer calls are at it: one that is free, or a new one up to the limit.

        MissedDeadline, Cancelled, and ResourceExhausted where none will be. A process that has not given a new lane within
        `QUERY_NS` is silent, which is a MissedDeadline too.
        """
        deadline, cancelled = control.deadline, control.cancelled
        asked = 0  # since when
        while True:
            if self.dead is not None:
                raise again(self.dead)
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
                    raise MissedDeadline(f"{self.where}: gave no lane in time")
            else:
                self._await_lane()
            if deadline is not None and time.monotonic_ns() > deadline + GRACE_NS:
                if not few:
                    raise MissedDeadline(f"{self.where}: no lane was free by the deadline")
                self._overdue = self._overdue or time.monotonic_ns()
                self._rouse()
                raise MissedDeadline(f"{self.where}: the deadline has passed without an answer")
            if cancelled is not None and cancelled.is_set():
                raise Cancelled("execution: cancelled by its owner")

    def _check_given_up(self) -> None:
        """Refuse one more lane where as many as there may be have calls that were given up and do not end."""
        if len(self._given_up) >= MAX_LANES:
            if self.process is not None:
                raise self._died(
                    DeadObject(f"{self.where}: {MAX_LANES} calls were given up and do not end; it is replaced")
                )
            raise ResourceExhausted(f"{self.where}: {MAX_LANES} calls were given up and have not ended, must be fewer")

    def _attach(self, deadline: int) -> Channel:
        """The lane for notifications, by a deadline; DeviceUnavailable after it."""
        while (channel := self._asked(_LANE_NS, callbacks=True)) is None:
            if time.monotonic_ns() > deadline:
                raise DeviceUnavailable(f"{self.where}: gave no lane for notifications in time")
        return channel

    def _asked(self, wait: int, *, callbacks: bool = False) -> Channel | None:
        """A new lane, where the service gives one within so many nanoseconds; one that comes later is for who asks next."""
        control = self._control
        with self._attaching:  # never for longer than a moment: others have deadlines
            if self.dead is not None:
                raise again(self.dead)
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
                raise self._died(NoProtocol(f"{self.where}: answered AttachLane with no message: {error}")) from None
            except DeadObject as error:
                raise self._died(error) from None
        if isinstance(reply, wire.Failed):
            raise self.error(reply)
        raise self._died(NoProtocol(f"{self.where}: answered AttachLane with {type(reply).__name__}"))

    def _await_lane(self) -> None:
        """Until a lane is free, as far as this thread is first of those that wait for one; a moment at most."""
        gate = threading.Event()
        self._in_want.append(gate)
        if not gate.wait(_WANT):
            with contextlib.suppress(ValueError):
                self._in_want.remove(gate)

    def _keep(self, channel: Channel) -> None:
        """For the next call."""
        self._free.append(channel)
        self._call_in()
        self._close_late_lanes()

    def _call_in(self) -> None:
        """Have whoever waits for a lane first look again."""
        if self._in_want:
            with contextlib.suppress(IndexError):
                self._in_want.popleft().set()

    def _give_up(self, lane: _GivenUp) -> None:
        """Nobody waits for the answer on this lane any more."""
        self._lanes.discard(lane.channel)
        if self.dead is None:  # else all lanes end, and who waited is not kept from hearing of it
            lane.channel.hang_up()
        self._cancelled.append(lane.channel.number)
        pending = self._pending.get(lane.made)
        if pending is not None:
            pending.given_up = True
        self._given_up[lane.channel.number] = lane
        self._rouse()
        self._close_late_lanes()

    def _close_late_lanes(self) -> None:
        """Those that came after the thread that keeps house."""
        if self._tidied:
            self._close_lanes()

    def _close_lanes(self) -> None:
        """Those that nobody uses."""
        while self._free:
            with contextlib.suppress(IndexError):
                self._free.pop().close()
        while self._given_up:
            with contextlib.suppress(KeyError):
                self._given_up.popitem()[1].channel.close()

    # ---------------------------------------------------------------------------------------------------- house-keeping

    def release(self, number: int) -> None:
        """Give back an object; sent with others in a moment. Safe in finalizers."""
        self._released.append(number)
        self._rouse()

    def end_object(self, number: int) -> None:
        """Give back an object at once, and wait until the driver has ended it."""
        release = wire.encode(wire.Release((number,)))
        try:
            self._transact(release, (), UNLIMITED, False, 0, MAX_LANES, QUERY_NS)
        except MissedDeadline:
            raise self.silent("Release", work=False) from None

    def _settle(self, channel: Channel) -> None:
        """Wait until the service has ended a call that was given up: the driver may be writing to memory of the caller's.

        A process of this client's own that takes too long is ended.
        """
        end = time.monotonic_ns() + SETTLE_NS
        while self.dead is None and channel.socket.fileno() >= 0:
            if time.monotonic_ns() > end:
                if self.process is not None:
                    self._died(DeadObject(f"{self.where}: a call that was interrupted does not end; it is replaced"))
                return
            time.sleep(0.002)
            self._rouse()
        if self.dead is not None and self.process is not None:
            self._thread.join(5)  # it ends the process

    def _rouse(self) -> None:
        if self.dead is None:
            os.eventfd_write(self._wake, 1)

    def on_death(self, call: Callable[[NnhalError], None]) -> None:
        """Call this, held weakly where it is a method, when the service dies."""
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
            raise NoProtocol(f"{self.where}: called back with what is no message: {error}") from None
        pending, came = self._pending.get(message.object), type(message).__name__
        if pending is None:
            raise NoProtocol(
                f"{self.where}: notified by {came} of {message.object}, must be of what was asked for, once"
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
                self.forget_wish(number)
                self._cancelled.append(number)
                self._rouse()

    def _send_endings(self) -> None:
        """What nobody waits for at once, what nobody holds in batches."""
        if self._cancelled:
            self._control.send(wire.encode(wire.Cancel(_some(self._cancelled))))
        if self._released:
            time.sleep(_BATCH_SECONDS)
            self._control.send(wire.encode(wire.Release(_some(self._released))))
        if self._released or self._cancelled:
            self._rouse()

    def _is_late(self) -> bool:
        """Whether anything that was given up has not ended, as far as is known."""
        return bool(self._given_up or self._late or self._overdue)

    def _look_at_late(self) -> None:
        """What was given up: it ends when the service has seen to it; a process that never does hangs."""
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
                self._given_up.pop(number, None)  # it may have been closed by another thread: the session has died
                lane.channel.close()
                if lane.made:  # the service has made it by now, and did not know it when its owner went
                    self._cancelled.append(lane.made)
                    self.release(lane.made)
                continue
            if lane.late:
                self._look_whether_hangs(now - lane.since)

    def _take_overdue(self, now: int) -> None:
        """The lane that nobody waited for, where it is there by now; a process that never gives it hangs."""
        since = self._overdue
        with contextlib.suppress(ResourceExhausted):
            channel = self._asked(0)
            if channel is not None:
                self._lanes.add(channel)
                self._keep(channel)
            elif since:
                self._look_whether_hangs(now - since)

    def _has_ended(self, lane: _GivenUp) -> bool:
        """Whether the service has ended a lane that was given up; what it still says is nobody's.

        What was refused is not notified of.
        """
        while True:
            try:
                if _refuses(lane.channel.receive(0)):
                    self._pending.pop(lane.made, None)
            except MissedDeadline:
                return False
            except DeadObject:
                return True
            except NnhalError:  # an answer that is refused
                continue

    def _look_whether_hangs(self, late: int) -> None:
        """End an own process where a call is so many nanoseconds past its deadline without an answer.

        It may be slow: while it has something of others, it has longer.
        """
        if self.process is not None and late > HUNG_NS and (late > HUNG_BESIDE_OTHERS_NS or not self._has_others()):
            self._died(DeadObject(f"{self.where}: the driver process hangs and was killed"))

    def _has_others(self) -> bool:
        """Whether somebody waits for the process, or would lose what only it holds."""
        calls = len(self._lanes) > len(self._free) or any(not each.given_up for each in list(self._pending.values()))
        return calls or bool(self.holders) or any(burst.busy for burst in list(self.bursts.values()))

    def confirm_death(self, text: str) -> NnhalError:
        """The error for a lane or queue that ended by itself: the process's death where that is why."""
        if self.dead is None and self.watch >= 0 and not ended(self.watch, DYING_MS):
            return DeadObject(text)
        return self._died(DeadObject(text))

    def give_up(self, why: str) -> None:
        """End a session whose service does not answer; its own process is killed."""
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
            self._log = number  # also of what is interrupted on its way
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
        """Wait for the service to take it up, never longer, whatever that is at."""
        memory = next((remote.memory for remote in recording.remotes if remote.group == self.group), None)
        while memory is not None and not trace.taken(memory):
            if time.monotonic() > until or self.dead is not None:
                recording.notes.append(f"{self.where}: did not take the trace up in time, spans are missing")
                return
            time.sleep(0.0005)

    def unfollow(self) -> None:
        """The service need not write any more."""
        self._followed = None
        if self._log:
            self.release(self._log)
            self._log = 0

    # ------------------------------------------------------------------------------------------------------------- end

    def _fate(self) -> str:
        """How this client's own process ended, "" where it did not, or is not known."""
        if self.process is None:
            return ""
        return self.process.fate()

    def _died(self, error: NnhalError, *, fate: bool = True) -> NnhalError:
        """Note that nothing works any more, wake every waiter; returns the error to raise.

        fate: whether the message says how the process ended. The driver is at fault where its process broke the protocol, or
        ended itself before this client ended it.
        """
        with self._death_lock:
            if self.dead is not None:
                return again(self.dead)
            text, own_end = str(error), ""
            if self.process is not None:
                if not ended(self.watch) and self.process.poll() is None:
                    self.process.kill()
                how = self._fate() if fate else ""
                if how and how not in text:
                    text = f"{self.where}: {how}: {text.removeprefix(f'{self.where}: ')}"
                own_end = self.process.own_end
            fault: Any = "protocol" if isinstance(error, NoProtocol) else own_end
            error = again(error) if isinstance(error, Closed) else DeadObject(text)
            error.driver_fault = fault
            self.dead = error
        _log.debug("%s", error)
        while self._pending:
            self._pending.popitem()[1].set(error)
        for burst in list(self.bursts.values()):
            burst.session_died()
        for call in self._on_death:
            call(error)
        if self._wake >= 0 and (self.process is None or self.watch < 0):  # else the end of the process wakes it
            os.eventfd_write(self._wake, 1)
        return again(error)

    def end(self) -> None:
        """End the connection, and with it an own process, without a wait: safe in finalizers."""
        if self.dead is None:
            self.dead = Closed(f"{self.where}: the connection was closed")
            os.eventfd_write(self._wake, 1)

    @trace.seam("ipc", "termination", "end the connection", detail=lambda self: self.where)
    def close(self) -> None:
        """As `end`, and wait for it."""
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
        """In a forked child: the connection is the parent's."""
        self.dead = Closed(f"{self.where}: belongs to the process that this one was forked from; compile again here")
        self._death_lock, self._attaching, self._sending = threading.Lock(), threading.Lock(), threading.Lock()
        for channel in (self._control, self._callbacks, *list(self._lanes)):
            channel.close()
        self._own.close()
        self.watch = -1


def _some(numbers: deque[int]) -> tuple[int, ...]:
    """As many numbers as go with one message."""
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
