"""Runs executions with a deadline: the only place where deadlines and cancellation take effect."""

import threading
from typing import Any

from nnhal.base import trace
from nnhal.base.answers import close_quietly, driver_call, safe_repr
from nnhal.base.errors import Closed, ContractBroken, NnhalError, as_error
from nnhal.base.log import logger
from nnhal.base.native import Gate
from nnhal.hal.background import hand_over
from nnhal.hal.chain import PreparedChain
from nnhal.hal.request import Control, Request, Run, Timing

_log = logger("execution")


class _Bounded:
    """One execution with a limited wait. done: opened when there is an outcome."""

    __slots__ = ("_control", "_lane", "_notified", "_request", "_run", "done", "outcome")

    def __init__(self, lane: "DeadlineExecutor", run: Run, request: Request, control: Control) -> None:
        self._lane, self._run, self._request, self._control = lane, run, request, control
        self.outcome: tuple[NnhalError | None, Timing | None] | None = None
        self.done, self._notified = Gate(), threading.Lock()

    def work(self) -> Gate:
        """Execute, in another thread."""
        try:
            self._lane.enter(self)
            self.outcome = None, self._request.execute(self._run, self._control)
        except BaseException as raised:
            self.outcome = as_error(raised, self._lane.where), None
        self._lane.leave(self)
        return self.done

    def wait(self, begin: Gate | None) -> bool:
        """Open `begin` and wait until it is done; return False if it is time to check whether it is still wanted."""
        left = self._control.patience()
        return self.done.wait(-1 if left is None else left, begin)

    def notify(self, error: Any, timing: Timing | None) -> None:
        """Receive the end from a driver that executes in the background itself."""
        if not self._notified.acquire(blocking=False):
            _log.warning("%s: notified again, ignored", self._lane.where)
            return
        try:
            with driver_call(self._lane.where, "execute()"):
                if isinstance(error, BaseException):
                    raise error
                if error is not None:
                    raise ContractBroken(f"notified {safe_repr(error)}, must be an NnhalError or None")
            self.outcome = None, timing
        except NnhalError as raised:
            self.outcome = raised, None
        self._lane.leave(self)
        self.done.open()


class DeadlineExecutor:
    """Runs executions of one partition with deadlines. prepared: the model, once it is prepared.

    A driver may continue after an execution was abandoned: its request then ignores all writes, and its prepared model
    is closed after it has returned.
    """

    prepared: PreparedChain

    def __init__(self, where: str) -> None:
        self.where = where
        self._lock, self._closing, self._closed = threading.Lock(), False, False
        self._inside: set[_Bounded] = set()

    def run(self, run: Run, request: Request, control: Control, launched: bool = False) -> Timing | None:
        """Execute; MissedDeadline or Cancelled in time, whatever the driver does.

        launched: whether to use the driver's `execute`, with a callback.
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
            if begin is not None:  # it may not have been opened yet, and the thread has to end
                begin.open()
            raise
        error, timing = bounded.outcome or (None, None)
        if error is not None:
            request.abandon()
            bounded.outcome = None  # its traceback refers to the frame that refers to this
            try:
                raise error
            finally:
                del error  # refers to this frame
        if not request.ended:  # a driver with its own background execution may not have ended it
            request.execute(lambda *_: None, control)
        return timing

    def _launch(self, bounded: _Bounded, request: Request, control: Control) -> None:
        try:
            self.enter(bounded)
            with driver_call(self.where, "execute()"):
                self.prepared.execute(request, control, bounded.notify)
        except BaseException:
            self.leave(bounded)
            raise

    def enter(self, bounded: _Bounded) -> None:
        """Note that an execution begins; Closed if the model was closed."""
        with self._lock:
            if self._closing:
                raise Closed(f"{self.where}: its prepared model was closed")
            self._inside.add(bounded)

    def leave(self, bounded: _Bounded) -> None:
        """Note that it has returned."""
        with self._lock:
            self._inside.discard(bounded)
        if self._closing:
            self.close()

    def close(self) -> None:
        """Close the prepared model, once: now, or when the running executions have returned."""
        with self._lock:
            self._closing = True
            if self._inside or self._closed or not hasattr(self, "prepared"):
                return
            self._closed = True
        layer = "runtime" if getattr(self.prepared, "timely", False) is True else "driver"
        with trace.span(layer, "termination", "close", self.where):
            close_quietly(self.where, "close() of a prepared model", self.prepared.close)
