"""Submitted executions: a few threads run them in order, and callers can wait for them in several ways."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any

from nnhal.base import trace
from nnhal.base.answers import raise_application_error
from nnhal.base.brief import short_repr
from nnhal.base.descriptors import Owner
from nnhal.base.errors import Cancelled, Closed, MissedDeadline, NnhalError, ResourceExhausted
from nnhal.base.log import logger
from nnhal.base.time import limit, wait_seconds
from nnhal.base.uncopied import NotCopyable
from nnhal.hal.background import start
from nnhal.hal.queue import MOST_WAITING
from nnhal.hal.request import Control

_GRACE = 1.0  # seconds after the deadline in which an execution ends by itself
_log = logger("execution")


class OwnerProcess:
    """The process that an execution belongs to. The threads that run it do not survive a fork."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def check(self, what: str) -> None:
        """Raise Closed in a forked child."""
        if os.getpid() != self._pid:
            raise Closed(f"{what}: was launched before this process was forked, and is the other's; execute it again")


class _Outcome:
    """The outcome of a future, for threads that a signal handler may interrupt at any point.

    A lock of the future that an interrupted thread keeps would stop the thread that ends the execution. So all threads
    but that one use this object, which has no lock. settled: the result or the error, and whether it was cancelled; once
    the future has ended.
    """

    def __init__(self, future: "Future[Any]") -> None:
        """future: no other thread may have it yet."""
        self.settled: list[tuple[Any, BaseException | None, bool]] = []
        self._then: deque[Callable[[], object]] = deque()
        future.add_done_callback(self._settle)

    def _settle(self, future: "Future[Any]") -> None:
        cancelled = future.cancelled()
        error = None if cancelled else future.exception()
        self.settled.append((None if cancelled or error is not None else future.result(), error, cancelled))
        self._tell()

    def then(self, call: Callable[[], object]) -> None:
        """Call this once it is settled, in the thread that settles it; now if it is."""
        self._then.append(call)
        if self.settled:
            self._tell()

    def _tell(self) -> None:
        while self._then:
            with suppress(IndexError):  # another thread took it
                self._then.popleft()()

    def wait(self, seconds: float | None) -> None:
        """Wait until it is settled; TimeoutError after these seconds."""
        gate = threading.Lock()
        gate.acquire()
        self.then(gate.release)
        try:
            left = -1 if seconds is None else min(max(seconds, 0.0), threading.TIMEOUT_MAX)
            if not gate.acquire(timeout=left) and not self.settled:
                raise TimeoutError
        finally:
            with suppress(ValueError):
                self._then.remove(gate.release)

    def result(self) -> Any:
        """Return the result of a settled one, or raise its error."""
        result, error, _ = self.settled[0]
        if error is not None:
            raise error
        return result


class Execution(NotCopyable, instead="another process gets its `result()`"):
    """An execution in flight: wait for it, await it, select on it (`fileno`), or cancel it."""

    def __init__(self, future: "Future[Any]", control: Control) -> None:
        self._own, self._control, self._home = future, control, OwnerProcess()
        self._outcome = _Outcome(future)
        self._event = Owner()
        self._overdue = False  # remains true once it is noted

    @property
    def _future(self) -> "Future[Any]":
        self._home.check("execution")
        return self._own

    @trace.traced_method("application", "results", "wait for the result")
    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end and return the outputs.

        Args:
            timeout: The most seconds to wait; None waits until the deadline, if there is one.

        Returns:
            The outputs, as a call of the model returns them.

        Raises:
            TimeoutError: The execution has not ended after `timeout` seconds; call again to wait longer.
            MissedDeadline: The deadline passed.
            Cancelled: `cancel` ended the execution.
            NnhalError: The execution failed.
        """
        if self._overdue:
            raise MissedDeadline("execution: the deadline has passed")
        left, most = self._left(), limit(timeout, "timeout")
        wait = left if most is None else most if left is None else min(most, left)
        self._home.check("execution")
        try:
            self._outcome.wait(wait)
        except TimeoutError as error:
            raise_application_error(error)
            if wait != left:
                raise TimeoutError(f"execution: not done after {timeout} s") from None
            raise self._missed() from None
        if self._outcome.settled[0][2]:
            raise Cancelled("execution: cancelled by its owner")
        return self._outcome.result()

    def _left(self) -> float | None:
        return wait_seconds(self._control.deadline)

    def _missed(self) -> MissedDeadline:
        self._overdue = True
        self.cancel()
        try:
            self._outcome.wait(_GRACE)  # it ends by itself, and writes nothing from then on
        except TimeoutError as error:
            raise_application_error(error)
        return MissedDeadline("execution: the deadline has passed")

    wait = result

    def done(self) -> bool:
        """Whether it has ended, successfully or not."""
        self._home.check("execution")
        return bool(self._outcome.settled)

    def cancel(self) -> None:
        """Request its end. It stops before its next operation at the latest, and `result` then raises `Cancelled`."""
        future = self._future
        if self._control.cancelled is not None:
            self._control.cancelled.set()
        future.cancel()

    def __repr__(self) -> str:
        if not self._outcome.settled:
            state = "deadline passed" if self._overdue else "in flight"
        else:
            _, error, cancelled = self._outcome.settled[0]
            state = "cancelled" if cancelled else "done" if error is None else f"failed, {type(error).__name__}"
        return short_repr(f"Execution, {state}")

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the execution has ended. It lives as long as this object."""
        self._home.check("execution")
        if not self._event.fds:
            event = Owner()
            try:
                event.fds.extend(map(os.eventfd, (0,), (os.EFD_CLOEXEC | os.EFD_NONBLOCK,)))
                signal = _Signal(event.fds[0])
            except OSError as error:
                raise ResourceExhausted(f"execution: no descriptor of its end: {error.strerror}") from error
            self._outcome.then(signal)
            self._event = event
        return self._event.fds[0]

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio

        future = asyncio.wrap_future(self._future)
        # Marks the outcome as retrieved: asyncio would log it otherwise
        future.add_done_callback(lambda f: f.cancelled() or f.exception())
        try:
            yield from asyncio.wait([future], timeout=self._left()).__await__()
        except asyncio.CancelledError:  # the awaiting task was cancelled
            self.cancel()
            raise
        if not self._outcome.settled:
            raise self._missed()
        return self.result(0)


class _Signal:
    """Makes an eventfd readable. It duplicates the descriptor, because the execution may be gone by then."""

    def __init__(self, event: int) -> None:
        self._own = Owner()
        self._own.fds.extend(map(os.dup, (event,)))

    def __call__(self) -> None:
        os.eventfd_write(self._own.fds[0], 1)
        self._own.close()


class Queue:
    """Runs submitted work in order, a few at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[_Item] = deque()
        self._at_work: set[object] = set()  # the owners of running work
        self._threads: set[int] = set()  # the threads of this queue; each adds itself
        self._lock = threading.Lock()  # acquired directly: an interrupt may come in the middle of a condition's methods
        self._changed = threading.Condition(self._lock)

    def submit(self, who: object, work: Callable[[], Any], leave: Callable[[], object], control: Control) -> Execution:
        """Queue `work` for `who`. `leave` is called when it has ended, or will never begin."""
        item = _Item(who, trace.with_span(work, "submitted"), leave)
        execution = Execution(item.future, control)
        with self._lock:
            if len(self._waiting) >= MOST_WAITING:
                raise ResourceExhausted(
                    f"execution: {len(self._waiting)} that were submitted wait already, must be fewer than {MOST_WAITING}; "
                    "wait for some to end"
                )
            self._waiting.append(item)
            more = len(self._threads) < self._most
        trace.counter("queue depth", len(self._waiting))
        if more:
            try:
                start(self._run)
            except NnhalError:
                with self._lock:
                    # Otherwise the running threads will run it, or have done so
                    alone = not self._threads and item in self._waiting
                    if alone:
                        self._waiting.remove(item)
                if alone:
                    raise
        return execution

    def has(self, who: object) -> bool:
        """Whether work for `who` has not ended yet."""
        with self._lock:
            return who in self._at_work or any(item.who is who for item in self._waiting)

    def _run(self) -> None:
        me = threading.get_ident()
        with self._lock:
            if len(self._threads) >= self._most:
                return
            self._threads.add(me)
        while self._one(me):
            pass

    def _one(self, me: int) -> bool:
        """Run the next item; return False if there is none."""
        with self._lock:
            if not self._waiting:
                self._threads.discard(me)  # under this lock: the next `submit` starts another thread
                self._changed.notify_all()
                return False
            item = self._waiting.popleft()
            self._at_work.add(item.who)
        trace.counter("queue depth", len(self._waiting))
        for step in (item.run, partial(self._left, item.who), item.leave):
            try:
                step()
            except BaseException as error:  # no item should raise; the next one must run nevertheless
                _log.exception("submitted work ended with an unexpected error")
                item.fail(error)
        return True

    def _left(self, who: object) -> None:
        with self._lock:
            self._at_work.discard(who)

    def wait_until_idle(self) -> None:
        """Wait until all submitted work has ended."""
        while True:
            with self._lock:
                if self._threads:  # a running thread takes the waiting items
                    self._changed.wait(0.5)
                    continue
                if not self._waiting:
                    return
            start(self._run)  # an interrupted `submit` may have queued an item without a thread
            time.sleep(0.001)


class _Item:
    def __init__(self, who: object, work: Callable[[], Any], leave: Callable[[], object]) -> None:
        self.who, self._work, self.leave = who, work, leave
        self.future: Future[Any] = Future()

    def run(self) -> None:
        """Run the work, unless it was cancelled."""
        work, self._work = self._work, lambda: None  # the work holds the compiled model
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Set the error as the outcome, if there is no outcome yet."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)
