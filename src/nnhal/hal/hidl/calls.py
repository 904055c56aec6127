"""Calls of a HAL driver's methods, and the callbacks that it receives: all answers are verified."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from nnhal.base.answers import safe_repr
from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import (
    Cancelled,
    InvalidArgument,
    MissedDeadline,
    NnhalError,
    OperationFailed,
    error_of,
    error_text,
)
from nnhal.base.levels import Level
from nnhal.base.log import logger
from nnhal.base.time import wait_seconds
from nnhal.hal.hidl.interfaces import newest_method

LIMIT = "NNHAL_NOTIFIED_WITHIN"  # seconds within which a driver has to notify the end of a launched operation
SECONDS = 300.0
Trace = Callable[[str], None]
_log = logger("driver")


class Calls:
    """Calls the methods of one driver: traces them, converts exceptions to NnhalErrors, and verifies the answers."""

    def __init__(self, device: str, level: Level, trace: Trace | None) -> None:
        self.device, self.level, self._trace = device, level, trace

    def call(self, owner: object, method: str, *arguments: Any) -> Any:
        """Call the newest version of a method, with the arguments of that version."""
        found = newest_method(owner, method, self.level)
        if found is None:
            raise OperationFailed(f"driver {self.device}: has no {method} at level {self.level}, must have one")
        return self.exactly(found[0], found[1], *arguments)

    def exactly(self, name: str, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call this version of a method."""
        _log.debug("%s: %s", self.device, name)
        if self._trace is not None:
            self._trace(name)
        try:
            return method(*arguments)
        except NnhalError:
            raise
        except Exception as error:
            raise OperationFailed(f"driver {self.device}: {name} raised {error_text(error)}") from error

    def answer(self, owner: object, method: str, count: int, *arguments: Any) -> Sequence[Any]:
        """Call a method, and return the `count` values beside a status of NONE; raise the error of another status."""
        result = self.call(owner, method, *arguments)
        if not isinstance(result, tuple) or len(result) != 1 + count:
            raise OperationFailed(
                f"driver {self.device}: {method} gave {type(result).__name__}, must give a status and {count} values"
            )
        self.expect(result[0], method)
        return result[1:]

    def expect(self, status: Any, method: str) -> None:
        """Raise the error of a status, unless it is NONE."""
        found = self.status(status, method)
        if found != ErrorStatus.NONE:
            raise error_of(found, f"driver {self.device}: {method} failed with {found.name}")

    def status(self, status: Any, method: str) -> ErrorStatus:
        """Return the status; OperationFailed if it is not one."""
        if status is ErrorStatus.NONE:
            return ErrorStatus.NONE
        if isinstance(status, bool) or status not in ErrorStatus.__members__.values():
            raise OperationFailed(
                f"driver {self.device}: {method} gave status {safe_repr(status)}, must be an ErrorStatus"
            )
        return ErrorStatus(status)


def wait_for_callback() -> float:
    """Return the seconds within which a driver has to notify; InvalidArgument if the variable is not a number."""
    text = os.environ.get(LIMIT, "")
    try:
        seconds = float(text or SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise InvalidArgument(f"{LIMIT} is {text!r}, must be a number of seconds above 0 and below 1e9")
    return seconds


class Callback:
    """The callback that a driver receives: accepts one notification, and logs and ignores all others."""

    def __init__(self, what: str) -> None:
        self._what, self._lock, self._done = what, threading.Lock(), threading.Event()
        self._closed = False
        self.result: tuple[Any, ...] = ()

    def notify(self, *result: Any) -> None:
        """Notify the end, with a status first."""
        with self._lock:
            late = self._closed or self._done.is_set()
            if not late:
                self.result = result
                self._done.set()
        if late:
            _log.warning("%s: notified again or too late with %s, ignored", self._what, result[:1])

    notify_1_2 = notify_1_3 = notify

    def close(self) -> bool:
        """Accept no notification any more; return whether there was one."""
        with self._lock:
            self._closed = True
            return self._done.is_set()

    def wait(self, deadline: int | None, cancelled: threading.Event | None = None) -> tuple[Any, ...]:
        """Return the notification. Raises MissedDeadline by `deadline` (monotonic nanoseconds), or Cancelled.

        Raises OperationFailed if none came within `wait_for_callback`.
        """
        seconds = wait_for_callback()
        end = time.monotonic_ns() + int(seconds * 1e9)
        while True:
            if self._done.wait(wait_seconds(min(end, deadline or end), cancelled is not None)):
                return self.result
            if cancelled is not None and cancelled.is_set() and not self.close():
                raise Cancelled(f"{self._what}: cancelled by its owner")
            if deadline is not None and time.monotonic_ns() >= deadline and not self.close():
                raise MissedDeadline(f"{self._what}: the driver notified nothing by the deadline")
            if time.monotonic_ns() >= end and not self.close():
                raise OperationFailed(
                    f"{self._what}: the driver notified nothing within {seconds:g} s, must, once ({LIMIT} sets the limit)"
                )
