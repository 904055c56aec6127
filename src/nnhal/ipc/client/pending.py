"""What a client waits for beside the replies of its calls: notifications, each exactly once."""

import threading
import time
from typing import Any

from nnhal.base.errors import Cancelled, MissedDeadline, NnhalError, again
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import error_from_wire
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.channel import Descriptors

GRACE_NS = 5_000_000  # past a deadline, for the service to say so itself
CANCEL_SLICE_NS = 20_000_000  # between looks at whether an execution is still wanted


class Pending:
    """A notification to come: exactly one. number: of what it will be about. kind: that it must be of.

    given_up: nobody waited for the answer to its call, so it may still come.
    """

    def __init__(self, number: int, kind: type[wire.ServiceCall]) -> None:
        self.number, self.kind = number, kind
        self.given_up = False
        self._event = threading.Event()
        self._result: Any = None
        self._fds = _native.NONE

    def set(self, result: Any, fds: Descriptors = _native.NONE) -> None:
        """It came; result: a reply, or the error why it never will."""
        self._result, self._fds = result, fds
        self._event.set()

    @property
    def came(self) -> bool:
        """Whether it came."""
        return self._event.is_set()

    def wait(self, deadline: int | None, cancelled: threading.Event | None = None) -> tuple[Any, Descriptors]:
        """Wait for it; MissedDeadline, Cancelled, or what the service answered."""
        while not self._event.wait(_left(deadline, cancelled)):
            if cancelled is not None and cancelled.is_set():
                raise Cancelled("execution: cancelled by its owner")
            if deadline is not None and time.monotonic_ns() > deadline + GRACE_NS:
                raise MissedDeadline("driver process: no answer by the deadline")
        if isinstance(self._result, NnhalError):
            raise again(self._result)
        if isinstance(self._result, wire.Failed):
            raise error_from_wire(self._result)
        return self._result, self._fds


def _left(deadline: int | None, cancelled: threading.Event | None) -> float | None:
    left = None if deadline is None else max(0.0, (deadline + GRACE_NS - time.monotonic_ns()) / 1e9)
    slice_ = None if cancelled is None else CANCEL_SLICE_NS / 1e9
    return slice_ if left is None else left if slice_ is None else min(left, slice_)
