"""Who runs an execution, and until when: the one place where deadlines and cancellation act."""

import threading
from typing import Any

from nnhal.base import trace
from nnhal.base.answers import answering, let_go, shown
from nnhal.base.errors import Closed, ContractBroken, NnhalError, as_error
from nnhal.base.log import logger
from nnhal.base.native import Gate
from nnhal.hal.background import hand_over
from nnhal.hal.device import Prepared
from nnhal.hal.request import Control, Request, Run, Timing

_log = logger("execution")


class _Bounded:
    """One execution that somebody waits for no longer than it may take. done: opened when there is an outcome."""

    __slots__ = ("_control", "_lane", "_notified", "_request", "_run", "done", "outcome")

    def __init__(self, lane: "Lane", run: Run, request: Request, control: Control) -> None:
        self._lane, self._run, self._request, self._control = lane, run, request, control
        self.outcome: tuple[NnhalError | None, Timing | None] | None = None
        self.done, self._notified = Gate(), threading.Lock()

    def work(self) -> Gate:
        """Execute, on another thread."""
        try:
            self._lane.enter(self)
            self.outcome = None, self._request.execute(self._run, self._control)
        except BaseException as raised:
            self.outcome = as_error(raised, self._lane.where), None
        self._lane.leave(self)
        return self.done

    def wait(self, begin: Gate | None) -> bool:
        """Open `begin` and wait until it is done; False where it is time to look whether it is still wanted."""
        left = self._control.patience()
        return self.done.wait(-1 if left is None else left, begin)

    def notify(self, error: Any, timing: Timing | None) -> None:
        """The end, as a driver tells it that executes in the background itself."""
        if not self._notified.acquire(blocking=False):
            _log.warning("%s: notified again, ignored", self._lane.where)
            return
        try:
            with answering(self._lane.where, "execute()"):
                if isinstance(error, BaseException):
                    raise error
                if error is not None:
                    raise ContractBroken(f"notified {shown(error)}, must be an NnhalError or None")
            self.outcome = None, timing
        except NnhalError as raised:
            self.outcome = raised, None
        self._lane.leave(self)
        self.done.open()


class Lane:
    """Executions of one step that are waited for, by whatever of its ways they run. prepared: what runs them, once it is.

    A driver may go on past the end of an execution: then its request takes nothing any more, and its prepared model is
    closed when it has come back.
    """

    prepared: Prepared

    def __init__(self, where: str) -> None:
        self.where = where
        self._lock, self._closing, self._closed = threading.Lock(), False, False
        self._inside: set[_Bounded] = set()

    def run(self, run: Run, request: Request, control: Control, launched: bool = False) -> Timing | None:
        """Execute; MissedDeadline and Cancelled when it is time, whatever the driver does.

        launched: by the driver's own `execute`, with a callback.
        """
        control.check()
        bounded = _Bounded(self, run, request, control)
        begin = None
        try:
            if launched:
                self._launch(bounded, request, control)
            else:
                begin = hand_over(bounded.work)
            while not bounded.wait(begin):
                begin = None
                if bounded.outcome is None:
                    control.check()
        except BaseException:
            request.abandon()
            if begin is not None:  # it may not have been opened yet: the thread has to come back
                begin.open()
            raise
        error, timing = bounded.outcome or (None, None)
        if error is not None:
            request.abandon()
            bounded.outcome = None  # its traceback holds the frame that holds this
            try:
                raise error
            finally:
                del error  # and holds this frame
        if not request.ended:  # by a driver that executes in the background in a way of its own
            request.execute(lambda *_: None, control)
        return timing

    def _launch(self, bounded: _Bounded, request: Request, control: Control) -> None:
        try:
            self.enter(bounded)
            with answering(self.where, "execute()"):
                self.prepared.execute(request, control, bounded.notify)
        except BaseException:
            self.leave(bounded)
            raise

    def enter(self, bounded: _Bounded) -> None:
        """An execution goes in; Closed where the model was closed."""
        with self._lock:
            if self._closing:
                raise Closed(f"{self.where}: its prepared model was closed")
            self._inside.add(bounded)

    def leave(self, bounded: _Bounded) -> None:
        """It has come back."""
        with self._lock:
            self._inside.discard(bounded)
        if self._closing:
            self.close()

    def close(self) -> None:
        """Close the prepared model, once: now, or when what still runs in it has come back."""
        with self._lock:
            self._closing = True
            if self._inside or self._closed or not hasattr(self, "prepared"):
                return
            self._closed = True
        layer = "runtime" if getattr(self.prepared, "timely", False) is True else "driver"
        with trace.span(layer, "termination", "close", self.where):
            let_go(self.where, "close() of a prepared model", self.prepared.close)
