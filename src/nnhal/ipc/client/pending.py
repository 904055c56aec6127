"""Expected notifications, each exactly once."""

import os
import select
import threading
import time
from typing import Any

from nnhal.base.descriptors import Owner
from nnhal.base.errors import Cancelled, DeadObject, MissedDeadline, NnhalError, again
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import error_from_wire
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.channel import Descriptors

GRACE_NS = 2_000_000  # past a deadline, for the service to report it itself
CANCEL_SLICE_NS = 20_000_000  # between checks whether an execution is still wanted
_LONGEST_NS = 10**15  # 11 days: poll takes no more than 24


class Pending:
    """An expected notification. number: of its object. kind: its class.

    given_up: the notification, or the answer to its call, was abandoned and may still come.
    """

    def __init__(self, number: int, kind: type[wire.ServiceCall]) -> None:
        self.number, self.kind = number, kind
        self.given_up = False
        self._answer: list[tuple[Any, Descriptors]] = []  # empty until it has come
        self._wake: Owner | None = None  # an eventfd, while a caller waits

    def set(self, result: Any, fds: Descriptors = _native.NONE) -> None:
        """Set the notification: a reply, or the error that replaces it."""
        self._answer.append((result, fds))
        wake = self._wake
        if wake is not None and wake.fds:
            os.eventfd_write(wake.fds[0], 1)

    @property
    def method(self) -> str:
        """The method whose end it reports, for messages."""
        return "a preparation" if self.kind is wire.NotifyPrepared else "an execution"

    @property
    def came(self) -> bool:
        """Whether it has come."""
        return bool(self._answer)

    def wait(
        self, deadline: int | None, cancelled: threading.Event | None = None, watch: int = -1
    ) -> tuple[Any, Descriptors]:
        """Wait for it; raise MissedDeadline, Cancelled, or the service's error.

        watch: a pidfd of the service; DeadObject if that ends. The caller watches it itself, because the thread that
        would report a death would need the interpreter first.
        """
        try:
            if not self._answer:
                self._wait(deadline, cancelled, watch)
        finally:
            self._wake = None
        result, fds = self._answer[0]
        if isinstance(result, NnhalError):
            raise again(result)
        if isinstance(result, wire.Failed):
            raise error_from_wire(result)
        return result, fds

    def _wait(self, deadline: int | None, cancelled: threading.Event | None, watch: int) -> None:
        poll, wake, most = select.poll(), Owner(), None
        try:
            wake.fds.extend(map(os.eventfd, (0,), (os.EFD_CLOEXEC | os.EFD_NONBLOCK,)))
        except OSError:  # no descriptor: poll
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
    """Return how long to wait at once, at most so many nanoseconds; None for no limit."""
    if deadline is None:
        return None if most is None else most / 1e6
    left = max(0, deadline + GRACE_NS - time.monotonic_ns())
    return min(left, _LONGEST_NS if most is None else most) / 1e6
