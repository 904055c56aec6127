"""Notifications that a client waits for, in addition to replies; each comes exactly once."""

import os
import select
import threading
import time
from collections import deque
from typing import Any

from nnhal.base.descriptors import Owner
from nnhal.base.errors import Cancelled, DeadObject, MissedDeadline, NnhalError, copy_of_error
from nnhal.base.time import WORK_NS
from nnhal.hal.request import Control
from nnhal.ipc.client.endings import Endings
from nnhal.ipc.client.peer import ServicePeer
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import error_from_wire
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.channel import Descriptors, Message, NoProtocol

NotifiedCall = wire.PrepareModel | wire.PrepareConsidered | wire.PrepareModelFromCache | wire.Execute
GRACE_NS = 2_000_000  # past a deadline, for the service to report the miss itself
CANCEL_SLICE_NS = 20_000_000  # between checks whether an execution is still wanted
_LONGEST_NS = 10**15  # 11 days: poll accepts at most 24


class Pending:
    """A notification to come, exactly once. number: of the object it will be about. kind: its required type.

    given_up: abandoned: nothing waits for it or for the answer to its call, but it may still come. sent: whether its call
    may have reached the service; before, none will come.
    """

    def __init__(self, number: int, kind: type[wire.ServiceCall]) -> None:
        self.number, self.kind = number, kind
        self.given_up = self.sent = False
        self._answer: list[tuple[Any, Descriptors]] = []  # one, once it came
        self._wake: Owner | None = None  # an eventfd while a thread waits

    def set(self, result: Any, fds: Descriptors = _native.NONE) -> None:
        """Store the notification and wake the waiting thread. result: a reply, or the error why it will never come."""
        self._answer.append((result, fds))
        wake = self._wake
        if wake is not None and wake.fds:
            os.eventfd_write(wake.fds[0], 1)

    @property
    def method(self) -> str:
        """The name of the call whose end it reports, for messages."""
        return "a preparation" if self.kind is wire.NotifyPrepared else "an execution"

    @property
    def came(self) -> bool:
        return bool(self._answer)

    def wait(
        self, deadline: int | None, cancelled: threading.Event | None = None, watch: int = -1
    ) -> tuple[Any, Descriptors]:
        """Wait for it. Raises MissedDeadline, Cancelled, or the error that the service answered.

        watch: a pidfd of the service. Raises DeadObject if that process has ended. The waiting thread checks this
        itself, because another thread would need the interpreter first.
        """
        try:
            if not self._answer:
                self._wait(deadline, cancelled, watch)
        finally:
            self._wake = None
        result, fds = self._answer[0]
        if isinstance(result, NnhalError):
            raise copy_of_error(result)
        if isinstance(result, wire.Failed):
            raise error_from_wire(result)
        return result, fds

    def _wait(self, deadline: int | None, cancelled: threading.Event | None, watch: int) -> None:
        poll, wake, most = select.poll(), Owner(), None
        try:
            wake.fds.extend(map(os.eventfd, (0,), (os.EFD_CLOEXEC | os.EFD_NONBLOCK,)))
        except OSError:  # no free descriptor: check periodically
            most = CANCEL_SLICE_NS
        self._wake = wake
        for fd in (*wake.fds, watch):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while not self._answer:
            ready = poll.poll(_milliseconds(deadline, CANCEL_SLICE_NS if cancelled is not None else most))
            if self._answer:
                return
            if any(fd == watch for fd, _ in ready):
                raise DeadObject("driver process: it died")
            if cancelled is not None and cancelled.is_set():
                raise Cancelled("execution: cancelled by its owner")
            if deadline is not None and time.monotonic_ns() > deadline + GRACE_NS:
                raise MissedDeadline("driver process: no answer by the deadline")


def _milliseconds(deadline: int | None, most: int | None) -> float | None:
    """Return the longest single wait, at most `most` nanoseconds; None for no limit."""
    if deadline is None:
        return None if most is None else most / 1e6
    left = max(0, deadline + GRACE_NS - time.monotonic_ns())
    return min(left, _LONGEST_NS if most is None else most) / 1e6


class Notifications:
    """Awaits the notifications of one session. Each is expected before its call is sent, and comes at most once.

    pending: by the number of the object that it will be about, including abandoned ones. late: those that missed their
    deadline, and when; until they come.
    """

    def __init__(self, peer: ServicePeer, endings: Endings) -> None:
        self._peer, self._endings = peer, endings
        self.pending: dict[int, Pending] = {}
        self.late: deque[tuple[Pending, int]] = deque()
        peer.add_recipient(self)

    def expect(self, message: NotifiedCall) -> Pending:
        """Return the notification that a call will have; expect it before the call."""
        kind = wire.NotifyExecuted if isinstance(message, wire.Execute) else wire.NotifyPrepared
        pending = self.pending[message.object] = Pending(message.object, kind)
        return pending

    def sending(self, number: int) -> None:
        """Mark the call that a notification of this number belongs to, if one is expected, as sent."""
        pending = self.pending.get(number)
        if pending is not None:
            pending.sent = True

    def abandon(self, number: int) -> None:
        """Mark a notification as abandoned, if one of this number is expected: its call was abandoned."""
        pending = self.pending.get(number)
        if pending is not None:
            pending.given_up = True

    def take(self, message: Message) -> None:
        """Store a notification of the service. Raises NoProtocol if it is not expected."""
        (data, fds), where = message, self._peer.where
        try:
            notice = wire.decode_callback(data)
        except wire.WireError as error:
            raise NoProtocol(f"{where}: called back with an invalid message: {error}") from None
        pending, told = self.pending.get(notice.object), f"{type(notice).__name__} of {notice.object}"
        if pending is None:
            raise NoProtocol(f"{where}: notified by {told}, must be of a requested object, once")
        if type(notice) is not pending.kind:
            raise NoProtocol(f"{where}: notified by {told}, must be by {pending.kind.__name__}")
        self.pending.pop(notice.object, None)
        if isinstance(notice.result, wire.Failed):
            pending.set(self._peer.error(notice.result))
        else:
            pending.set(notice.result, fds)

    def wait(self, pending: Pending, control: Control) -> tuple[Any, Descriptors]:
        """Wait for a notification; if that is abandoned, inform the service."""
        deadline, peer = control.deadline, self._peer
        try:
            return pending.wait(
                time.monotonic_ns() + WORK_NS if deadline is None else deadline, control.cancelled, peer.watch
            )
        except DeadObject as error:
            raise (error if pending.came else peer.died(error)) from None
        except BaseException as error:
            if not pending.came:
                pending.given_up = True
                if isinstance(error, MissedDeadline):
                    if deadline is None:
                        raise peer.silent(pending.method, WORK_NS) from None
                    self.late.append((pending, time.monotonic_ns()))
                self._endings.cancel(pending.number)
            raise

    def look(self, now: int) -> None:
        """Check those that missed their deadline. A process that never sends one hangs."""
        for _ in range(len(self.late)):
            pending, since = self.late.popleft()
            if not pending.came:
                self._peer.look_whether_hangs(now - since)
                self.late.append((pending, since))

    @property
    def busy(self) -> bool:
        """Whether a thread waits for a notification, or will."""
        return any(not pending.given_up for pending in list(self.pending.values()))

    def session_died(self) -> None:
        """Wake every waiting thread with the error of the session."""
        for number in list(self.pending):
            pending = self.pending.pop(number, None)  # None: another thread reports the same death
            if pending is not None:
                pending.set(self._peer.dead)
