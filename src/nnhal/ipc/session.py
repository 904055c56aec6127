"""A client's connection to a service: lanes for calls, notifications, releases, and the news that the service died.

A call takes a lane that is free, or opens one, so any number of threads may call at once. One thread a session keeps house:
it takes notifications, answers the service's questions, sends releases in batches, watches the process.

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
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import (
    Cancelled,
    Closed,
    DeadObject,
    DeviceUnavailable,
    InvalidArgument,
    MissedDeadline,
    NnhalError,
    ResourceExhausted,
)
from nnhal.base.levels import V1_3, Level
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.ipc import _native, wire
from nnhal.ipc.channel import Channel, close_all
from nnhal.ipc.convert import error_from_wire
from nnhal.ipc.fate import DYING_MS, ended, fate_of, pidfd
from nnhal.ipc.pending import CANCEL_SLICE_NS, GRACE_NS, Pending, again
from nnhal.ipc.pools import ClientPools, Packing

GREETING_NS = 30_000_000_000  # a driver may import a large engine first
HUNG_NS = 2_000_000_000  # past a deadline without an answer: the process hangs
MAX_LANES = 32
_BATCH_SECONDS = 0.002
_log = logger("driver")
T = TypeVar("T", bound=wire.Reply)


class OpenBurst(Protocol):
    """What a session needs of a burst."""

    def memory_of(self, slot: int) -> Memory | None:
        """The memory that a slot stands for."""

    def session_died(self) -> None:
        """Wake whoever waits."""


class Session:
    """One connection; close it to have the service end what it held for it.

    dead: why nothing works any more, None while it does. calls: how often each HAL method was called.
    """

    def __init__(self, sock: socket.socket, where: str, process: "subprocess.Popen[bytes] | None" = None) -> None:
        """Take over a connected socket and greet. process: the service's, where it is this client's own."""
        self.where, self.process = where, process
        self.dead: NnhalError | None = None
        self.calls: dict[str, int] = {}
        self._control = Channel(sock)
        self._control_lock, self._death_lock = threading.Lock(), threading.Lock()
        self._free: deque[Channel] = deque()
        self._lanes: list[Channel] = []
        self._stuck: deque[tuple[Channel, int, bool]] = deque()
        self._numbers = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self.bursts: weakref.WeakValueDictionary[int, OpenBurst] = weakref.WeakValueDictionary()
        self._late: deque[tuple[Pending, int]] = deque()
        self._released: deque[tuple[bool, int]] = deque()
        self._on_death: list[Callable[[NnhalError], None]] = []
        self.watch = self._wake = -1
        try:
            self._start()
        except BaseException:
            self._abandon()
            raise
        _sessions.add(self)

    def _start(self) -> None:
        """Greet, attach the callback lane, start the thread."""
        self.welcome = self._greet()
        self.level = Level(self.welcome.level)
        self.methods = min(self.level, V1_3)
        self.pools = ClientPools(
            shared=self.welcome.shared, limit=self.welcome.max_pools - 16, release=self.release_pool
        )
        self.watch = pidfd(self.welcome.pid)
        self._control.lane.watch = self.watch
        self._control.lane.peer_cpus = self.welcome.cpus
        self._callbacks = self._attach(True)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # releases and failed calls come from any thread, to the last
        weakref.finalize(self, _close_left, self._wake, self._free).atexit = False
        self._thread = threading.Thread(target=self._keep_house, name="nnhal-session", daemon=True)
        self._thread.start()

    def _abandon(self) -> None:
        """Leave nothing of a session that did not come about: no descriptor, no process."""
        self._control.close()
        if hasattr(self, "_callbacks"):
            self._callbacks.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        if self.watch >= 0:
            os.close(self.watch)
            self.watch = -1

    def _greet(self) -> wire.Welcome:
        try:
            data, fds = self._control.call(wire.encode(wire.Hello(wire.VERSION, _native.cpus())), (), GREETING_NS)
            close_all(fds)
            reply = wire.decode_reply(data)
        except (DeadObject, MissedDeadline) as error:
            raise DeviceUnavailable(
                f"{self.where}: the driver process did not start: {self._fate() or error}"
            ) from None
        except wire.WireError as error:
            raise DeviceUnavailable(f"{self.where}: is no driver service: {error}") from None
        if isinstance(reply, wire.Failed):
            raise DeviceUnavailable(f"{self.where}: the driver process did not start: {error_from_wire(reply)}")
        if not isinstance(reply, wire.Welcome) or reply.version != wire.VERSION:
            raise DeviceUnavailable(f"{self.where}: answered the greeting with {type(reply).__name__}, must be Welcome")
        return reply

    # --------------------------------------------------------------------------------------------------------- calls

    def packing(self) -> Packing:
        """For the memories of one message."""
        return Packing(self.pools)

    def call(
        self,
        message: wire.ClientCall,
        expect: type[T],
        packing: Packing | None = None,
        *,
        fds: Sequence[int] = (),
        deadline: int | None = None,
        cancelled: threading.Event | None = None,
    ) -> tuple[T, tuple[int, ...]]:
        """Call and wait; the reply and its descriptors. Raises what the service reports, DeadObject, MissedDeadline."""
        name = wire.hal_name(message)
        self.calls[name] = self.calls.get(name, 0) + 1
        given = (*fds, *packing.fds) if packing is not None else tuple(fds)
        data, received = self.transact(wire.encode(message), given, deadline, cancelled)
        try:
            reply = wire.decode_reply(data)
            if isinstance(reply, wire.Failed):
                raise self.error(reply)
            if not isinstance(reply, expect):
                raise self._died(DeadObject(f"{self.where}: answered {name} with {type(reply).__name__}"))
        except wire.WireError as error:
            close_all(received)
            raise self._died(DeadObject(f"{self.where}: answered {name} with what is no message: {error}")) from None
        except NnhalError:
            close_all(received)
            raise
        if packing is not None:
            packing.delivered()
        return reply, received

    def transact(
        self,
        data: bytes,
        fds: Sequence[int] = (),
        deadline: int | None = None,
        cancelled: threading.Event | None = None,
    ) -> tuple[bytes, tuple[int, ...]]:
        """Send bytes on a lane of this call's own and wait for the answer."""
        if self.dead is not None:
            raise again(self.dead)
        try:
            channel = self._free.pop()
        except IndexError:
            channel = self._lane(deadline)
        try:
            if deadline is None and cancelled is None:
                got = channel.call(data, fds) if fds else channel.quick_call(data)
            else:
                got = self._patient_call(channel, data, fds, deadline, cancelled)
        except (MissedDeadline, Cancelled) as error:
            self._stuck.append((channel, time.monotonic_ns(), isinstance(error, MissedDeadline)))
            self._rouse()
            raise
        except DeadObject as error:
            self._free.append(channel)  # for the end of the session to close
            raise self._died(error) from None
        except (NnhalError, OSError):  # it could not be sent, or the answer not be taken: the lane is sound
            self._free.append(channel)
            raise
        except BaseException:  # interrupted: the answer is still to come
            self._stuck.append((channel, time.monotonic_ns(), False))
            self._rouse()
            raise
        self._free.append(channel)
        return got

    def _patient_call(
        self,
        channel: Channel,
        data: bytes,
        fds: Sequence[int],
        deadline: int | None,
        cancelled: threading.Event | None,
    ) -> tuple[bytes, tuple[int, ...]]:
        channel.send(data, fds)
        while True:
            left = -1 if deadline is None else max(0, deadline + GRACE_NS - time.monotonic_ns())
            slice_ = left if cancelled is None else CANCEL_SLICE_NS if left < 0 else min(left, CANCEL_SLICE_NS)
            try:
                return channel.receive(slice_)
            except MissedDeadline:
                if cancelled is not None and cancelled.is_set():
                    raise Cancelled("execution: cancelled by its owner") from None
                if deadline is not None and time.monotonic_ns() >= deadline + GRACE_NS:
                    raise MissedDeadline(f"{self.where}: the deadline has passed without an answer") from None

    def notified(
        self, message: Callable[[int], wire.ClientCall], packing: Packing | None = None, deadline: int | None = None
    ) -> tuple[int, Pending]:
        """Call with a number for the notification that is to follow. MissedDeadline where not even the call is taken."""
        number = next(self._numbers)
        pending = self._pending[number] = Pending()
        try:
            self.call(message(number), wire.Acknowledged, packing, deadline=deadline)
        except BaseException:
            self._pending.pop(number, None)
            raise
        if self.dead is not None and not pending.came:  # it may have died between
            pending.set(self.dead)
        return number, pending

    def error(self, failed: wire.Failed) -> NnhalError:
        """The error that the service reported; a process that asks to be replaced is."""
        error = error_from_wire(failed)
        if failed.recycle and self.process is not None:
            self._died(DeadObject(f"{self.where}: the process is replaced: {error}"), blame=False)
        return error

    def _lane(self, deadline: int | None) -> Channel:
        """A new lane; past the limit, the next that is free. MissedDeadline, and ResourceExhausted where none will be."""
        if len(self._lanes) >= MAX_LANES:
            while self.dead is None:
                try:
                    return self._free.pop()
                except IndexError:
                    time.sleep(0.0005)
                if len(self._stuck) >= MAX_LANES:
                    raise ResourceExhausted(f"{self.where}: all {MAX_LANES} lanes wait for calls that were given up")
                if deadline is not None and time.monotonic_ns() > deadline + GRACE_NS:
                    raise MissedDeadline(f"{self.where}: no lane was free by the deadline")
            raise again(self.dead)
        channel = self._attach(False)
        self._lanes.append(channel)
        return channel

    def _attach(self, callbacks: bool) -> Channel:
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise ResourceExhausted(f"{self.where}: no lane can be opened: {error.strerror}") from None
        with theirs, self._control_lock:
            if self.dead is not None:
                ours.close()
                raise again(self.dead)
            try:
                data, fds = self._control.call(wire.encode(wire.AttachLane(callbacks)), (theirs.fileno(),), GREETING_NS)
                close_all(fds)
            except NnhalError as error:
                ours.close()
                raise self._died(error) from None
        try:
            reply = wire.decode_reply(data)
        except wire.WireError as error:
            ours.close()
            raise self._died(
                DeadObject(f"{self.where}: answered AttachLane with what is no message: {error}")
            ) from None
        if isinstance(reply, wire.Failed):
            ours.close()
            raise error_from_wire(reply)
        return Channel(ours, -1, self.welcome.cpus)

    # ---------------------------------------------------------------------------------------------------- house-keeping

    def release(self, number: int) -> None:
        """Give back an object; sent with others in a moment. Safe in finalizers."""
        self._released.append((False, number))
        self._rouse()

    def release_pool(self, number: int) -> None:
        """Have the service forget a memory."""
        self._released.append((True, number))
        self._rouse()

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
                ready = dict(poll.poll(250 if self._stuck or self._late else None))
                if self._callbacks.socket.fileno() in ready:
                    self._take_callback()
                if self._wake in ready:
                    os.eventfd_read(self._wake)
                    if self._released:
                        time.sleep(_BATCH_SECONDS)
                        self._send_releases()
                if self._stuck or self._late:
                    self._look_at_stuck()
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
            close_all(fds)
            raise DeadObject(f"{self.where}: called back with what is no message: {error}") from None
        if isinstance(message, wire.GetMemories):
            close_all(fds)
            self._tell_memories(message)
            return
        pending = self._pending.pop(message.call, None)
        if pending is None:  # nobody waits any more, or it came twice
            close_all(fds)
            if isinstance(message, wire.NotifyPrepared) and isinstance(message.result, wire.Object):
                self.release(message.result.object)
            return
        if isinstance(message.result, wire.Failed):
            pending.set(self.error(message.result))
        else:
            pending.set(message.result, fds)

    def _tell_memories(self, message: wire.GetMemories) -> None:
        packing = self.packing()
        source = self.bursts.get(message.burst)
        memories: list[Memory | None] = [None if source is None else source.memory_of(s) for s in message.slots]
        if any(m is None for m in memories):
            reply: wire.Reply = wire.Failed(
                ErrorStatus.INVALID_ARGUMENT, "InvalidArgument", f"burst {message.burst}: a slot is not known"
            )
            self._callbacks.send(wire.encode(reply))
            return
        reply = wire.Memories(tuple(packing.pool(m) for m in memories if m is not None))
        self._callbacks.send(wire.encode(reply), packing.fds)
        packing.delivered()

    def _send_releases(self) -> None:
        objects: dict[int, int] = {}
        pools: list[int] = []
        while self._released and len(objects) + len(pools) < 1 << 15:
            pool, number = self._released.popleft()
            if pool:
                pools.append(number)
            else:
                objects[number] = objects.get(number, 0) + 1
        with self._control_lock:
            self._control.send(wire.encode(wire.Release(tuple(objects.items()), tuple(pools))))

    def _look_at_stuck(self) -> None:
        """Lanes whose caller did not wait for the answer: free again when it comes; a process that never answers hangs."""
        now = time.monotonic_ns()
        for _ in range(len(self._late)):
            pending, since = self._late.popleft()
            if pending.came:
                self._give_back(pending)
                continue
            if self.process is not None and now - since > HUNG_NS:
                self._died(DeadObject(f"{self.where}: the driver process hangs and was killed"))
            self._late.append((pending, since))
        for _ in range(len(self._stuck)):
            channel, since, blamed = self._stuck.popleft()
            try:
                close_all(channel.receive(0)[1])
                self._free.append(channel)
            except (InvalidArgument, ResourceExhausted):  # an answer that is refused
                self._free.append(channel)
            except DeadObject:
                channel.close()
                raise
            except MissedDeadline:
                if blamed and self.process is not None and now - since > HUNG_NS:
                    self._died(DeadObject(f"{self.where}: the driver process hangs and was killed"))
                self._stuck.append((channel, since, blamed))

    def _give_back(self, pending: Pending) -> None:
        """What came for a call that was given up."""
        with contextlib.suppress(NnhalError):
            result, fds = pending.wait(None)
            close_all(fds)
            if isinstance(result, wire.Object):
                self.release(result.object)

    def suspect(self, pending: Pending) -> None:
        """A notification did not come by its deadline: where it never comes, the process hangs."""
        self._late.append((pending, time.monotonic_ns()))
        self._rouse()

    def confirm_death(self, text: str) -> NnhalError:
        """The error for a lane or queue that ended by itself: the process's death where that is why."""
        if self.dead is None and self.watch >= 0 and not ended(self.watch, DYING_MS):
            return DeadObject(text)
        return self._died(DeadObject(text))

    def give_up(self, why: str) -> None:
        """End a session whose service does not answer; its own process is killed."""
        self._died(DeadObject(why))

    # ------------------------------------------------------------------------------------------------------------- end

    def _fate(self) -> str:
        """How this client's own process ended, "" where it did not, or is not known."""
        if self.process is None:
            return ""
        return fate_of(self.process)

    def _died(self, error: NnhalError, *, blame: bool = True) -> NnhalError:
        """Note that nothing works any more, wake every waiter; returns the error to raise."""
        with self._death_lock:
            if self.dead is not None:
                return again(self.dead)
            if not isinstance(error, DeadObject | Closed):
                error = DeadObject(str(error))
            if self.process is not None and not ended(self.watch) and self.process.poll() is None:
                self.process.kill()
            fate = self._fate() if blame else ""
            if fate and fate not in str(error):
                error = DeadObject(f"{self.where}: {fate}: {str(error).removeprefix(f'{self.where}: ')}")
            self.dead = error = again(error)
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

    def close(self) -> None:
        """End the connection. An own process ends with it."""
        if self.dead is None:
            self.dead = Closed(f"{self.where}: the connection was closed")
            os.eventfd_write(self._wake, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join(5)

    def _tidy(self) -> None:
        for channel in (self._control, self._callbacks, *self._lanes):
            with contextlib.suppress(OSError):
                channel.socket.shutdown(socket.SHUT_RDWR)
        while self._free:
            self._free.pop().close()
        while self._stuck:
            self._stuck.pop()[0].close()
        while self._pending:
            self._pending.popitem()[1].set(self.dead)
        with self._control_lock:
            self._control.close()
        self._callbacks.close()
        if self.process is not None:
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.watch >= 0:
            os.close(self.watch)
            self.watch = -1

    def _forked(self) -> None:
        """In a forked child: the connection is the parent's."""
        self.dead = Closed(f"{self.where}: belongs to the process that this one was forked from; compile again here")
        self._control_lock, self._death_lock = threading.Lock(), threading.Lock()
        for channel in (self._control, self._callbacks, *self._lanes):
            channel.close()
        if self.watch >= 0:
            os.close(self.watch)
            self.watch = -1


def _close_left(wake: int, lanes: deque[Channel]) -> None:
    """What a session leaves when nobody holds it any more."""
    os.close(wake)
    for channel in lanes:
        channel.close()


_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()


def _after_fork() -> None:
    for session in list(_sessions):
        session._forked()


os.register_at_fork(after_in_child=_after_fork)
