"""Who runs an execution, and until when: the one place where deadlines and cancellation act."""

import threading
import time

from nnhal.base._gate import Gate
from nnhal.base.errors import Cancelled, MissedDeadline, NnhalError, as_error
from nnhal.base.log import logger
from nnhal.hal.background import hand_over
from nnhal.hal.device import Prepared
from nnhal.hal.request import Control, Request, Run, Timing

_SLICE = 0.02  # seconds between looks at whether an execution is still wanted
_log = logger("execution")


class _Bounded:
    """One execution that somebody waits for no longer than it may take. done: opened when there is an outcome."""

    __slots__ = ("_came_back", "_control", "_lane", "_request", "_run", "done", "outcome")

    def __init__(self, lane: "Lane", run: Run, request: Request, control: Control) -> None:
        self._lane, self._run, self._request, self._control = lane, run, request, control
        self.outcome: tuple[NnhalError | None, Timing | None] | None = None
        self.done, self._came_back = Gate(), threading.Lock()

    def work(self) -> Gate:
        """Execute, on another thread."""
        try:
            self.outcome = None, self._request.execute(self._run, self._control)
        except BaseException as raised:
            self.outcome = as_error(raised, self._lane.where), None
        self._lane.left()
        return self.done

    def notify(self, error: NnhalError | None, timing: Timing | None) -> None:
        """The end, as a driver tells it that executes in the background itself."""
        if not self.leave():
            _log.warning("%s: notified again, ignored", self._lane.where)
            return
        self.outcome = error, timing
        self.done.open()

    def leave(self) -> bool:
        """It has come back; False the second time."""
        first = self._came_back.acquire(blocking=False)
        if first:
            self._lane.left()
        return first


class Lane:
    """Executions of one step that are waited for, by whatever of its ways they run.

    A driver may go on past the end of an execution: then its request takes nothing any more, and its prepared model is
    closed when it has come back.
    """

    def __init__(self, prepared: Prepared, where: str) -> None:
        self._prepared, self.where = prepared, where
        self._lock, self._running, self._closing = threading.Lock(), 0, False

    def run(self, run: Run, request: Request, control: Control, launched: bool = False) -> Timing | None:
        """Execute; MissedDeadline and Cancelled when it is time, whatever the driver does.

        launched: by the driver's own `execute`, with a callback.
        """
        control.check()
        bounded = _Bounded(self, run, request, control)
        with self._lock:
            self._running += 1
        try:
            begin = None
            if launched:
                self._prepared.execute(request, control, bounded.notify)
            else:
                begin = hand_over(bounded.work)
        except BaseException:
            request.abandon()
            bounded.leave()
            raise
        try:
            ended = _wait(bounded.done, control, begin)
        except BaseException:
            request.abandon()
            if begin is not None:  # it may not have been opened yet: the thread has to come back
                begin.open()
            raise
        if ended is not None and bounded.outcome is None:
            request.abandon()
            raise ended
        error, timing = bounded.outcome or (None, None)
        if error is not None:
            raise error
        if not request.ended:  # by a driver that executes in the background in a way of its own
            request.execute(lambda *_: None, control)
        return timing

    def left(self) -> None:
        """An execution has come back."""
        with self._lock:
            self._running -= 1
            last = self._closing and not self._running
        if last:
            _log.info("%s: came back after the end of an execution; its model is closed now", self.where)
            self._prepared.close()

    def close(self) -> None:
        """Close the prepared model, at once or when what still runs in it has come back."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            if self._running:
                return
        self._prepared.close()


def _wait(done: Gate, control: Control, begin: Gate | None) -> NnhalError | None:
    """Open `begin` and wait until it is done; why it has to end before, None where it is done."""
    while True:
        left = -1.0 if control.deadline is None else max(0.0, (control.deadline - time.monotonic_ns()) / 1e9)
        if control.cancelled is None:
            if done.wait(left, begin):
                return None
        elif done.wait(_SLICE if left < 0 else min(_SLICE, left), begin):
            return None
        elif control.cancelled.is_set():
            return Cancelled("execution: cancelled by its owner")
        begin = None
        if control.deadline is not None and time.monotonic_ns() >= control.deadline:
            return MissedDeadline("execution: the deadline has passed")
