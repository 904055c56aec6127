"""Executions in flight: submitted, run in order by a few threads at most, waited for in any way."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any

from nnhal.base import trace
from nnhal.base.answers import raise_own
from nnhal.base.brief import brief
from nnhal.base.descriptors import Owner
from nnhal.base.errors import Cancelled, Closed, MissedDeadline, NnhalError, ResourceExhausted
from nnhal.base.log import logger
from nnhal.base.time import limit, patience
from nnhal.base.uncopied import Uncopied
from nnhal.hal.background import start
from nnhal.hal.queue import MOST_WAITING
from nnhal.hal.request import Control

_GRACE = 1.0  # seconds after the deadline in which an execution gives itself up
_log = logger("execution")


class Home:
    """The process that something in flight belongs to: what runs it does not survive a fork."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def check(self, what: str) -> None:
        """Closed in a process that was forked from it."""
        if os.getpid() != self._pid:
            raise Closed(f"{what}: was launched before this process was forked, and is the other's; execute it again")


class Execution(Uncopied, instead="another process gets its `result()`"):
    """An execution in flight: wait for it, await it, select on it (`fileno`), cancel it."""

    def __init__(self, future: "Future[Any]", control: Control) -> None:
        self._own, self._control, self._home = future, control, Home()
        self._event = Owner()
        self._overdue = False  # it was told so, and stays so

    @property
    def _future(self) -> "Future[Any]":
        self._home.check("execution")
        return self._own

    @trace.seam("application", "results", "wait for the result")
    def result(self, timeout: float | None = None) -> Any:
        """Wait at most `timeout` seconds, and not past the deadline; the outputs, or the error raised."""
        if self._overdue:
            raise MissedDeadline("execution: the deadline has passed")
        left, most = self._left(), limit(timeout, "timeout")
        wait = left if most is None else most if left is None else min(most, left)
        try:
            self._wait(wait)
        except CancelledError:
            raise Cancelled("execution: cancelled by its owner") from None
        except TimeoutError as error:
            raise_own(error)
            if wait != left:
                raise TimeoutError(f"execution: not done after {timeout} s") from None
            raise self._missed() from None
        return self._future.result()

    def _wait(self, seconds: float | None) -> None:
        """Until it has ended.

        A signal handler may raise just when the future's condition has let go of its lock: then the condition fails to
        release it, and what the handler raised is below that.
        """
        try:
            self._future.exception(seconds)
        except RuntimeError as error:
            if error.__context__ is None or str(error) != "cannot release un-acquired lock":
                raise
            raise error.__context__ from None

    def _left(self) -> float | None:
        """Seconds until the deadline."""
        return patience(self._control.deadline)

    def _missed(self) -> MissedDeadline:
        self._overdue = True
        self.cancel()
        try:
            self._wait(_GRACE)  # it gives itself up: from then on it writes nothing
        except CancelledError:
            pass
        except TimeoutError as error:
            raise_own(error)
        return MissedDeadline("execution: the deadline has passed")

    wait = result

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._future.done()

    def cancel(self) -> None:
        """Ask it to end; it stops before its next operation at the latest, and `result` then raises Cancelled."""
        future = self._future
        if self._control.cancelled is not None:
            self._control.cancelled.set()
        future.cancel()

    def __repr__(self) -> str:
        future = self._own
        if not future.done():
            state = "deadline passed" if self._overdue else "in flight"
        elif future.cancelled():
            state = "cancelled"
        else:
            error = future.exception()
            state = "done" if error is None else f"failed, {type(error).__name__}"
        return brief(f"Execution, {state}")

    def fileno(self) -> int:
        """A descriptor that becomes readable when the execution has ended; lives as long as this object."""
        future = self._future
        if not self._event.fds:
            event = Owner()
            try:
                event.fds.extend(map(os.eventfd, (0,), (os.EFD_CLOEXEC | os.EFD_NONBLOCK,)))
                signal = _Signal(event.fds[0])
            except OSError as error:
                raise ResourceExhausted(f"execution: no descriptor of its end: {error.strerror}") from error
            future.add_done_callback(signal)
            self._event = event
        return self._event.fds[0]

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio

        future = asyncio.wrap_future(self._future)
        future.add_done_callback(lambda f: f.cancelled() or f.exception())  # looked at here, not by asyncio
        try:
            yield from asyncio.wait([future], timeout=self._left()).__await__()
        except asyncio.CancelledError:  # the task that awaits
            self.cancel()
            raise
        if not self._future.done():
            raise self._missed()
        return self.result(0)


class _Signal:
    """Makes an eventfd readable; with a descriptor of its own, as the execution may be gone by then."""

    def __init__(self, event: int) -> None:
        self._own = Owner()
        self._own.fds.extend(map(os.dup, (event,)))

    def __call__(self, _: "Future[Any]") -> None:
        os.eventfd_write(self._own.fds[0], 1)
        self._own.close()


class Queue:
    """Runs what is submitted, in order, a few at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[_Item] = deque()
        self._at_work: set[object] = set()  # who submitted what is being run
        self._threads: set[int] = set()  # of this queue's; each puts itself in
        self._lock = threading.Lock()  # taken as it is: the methods of a condition may be interrupted half way
        self._changed = threading.Condition(self._lock)

    def submit(self, who: object, work: Callable[[], Any], leave: Callable[[], object], control: Control) -> Execution:
        """Have `work` done for `who`; `leave` is called when it has ended, or will never begin."""
        item = _Item(who, trace.carried(work, "submitted"), leave)
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
                    alone = not self._threads and item in self._waiting  # else those at work come to it, or have
                    if alone:
                        self._waiting.remove(item)
                if alone:
                    raise
        return Execution(item.future, control)

    def has(self, who: object) -> bool:
        """Whether something submitted for `who` has not ended yet."""
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
        """Run the next; False where there is none."""
        with self._lock:
            if not self._waiting:
                self._threads.discard(me)  # under this lock: who submits now starts another
                self._changed.notify_all()
                return False
            item = self._waiting.popleft()
            self._at_work.add(item.who)
        trace.counter("queue depth", len(self._waiting))
        for step in (item.run, partial(self._left, item.who), item.leave):
            try:
                step()
            except BaseException as error:  # none of them should; the next in line is to be run all the same
                _log.exception("what was submitted did not end as it should")
                item.fail(error)
        return True

    def _left(self, who: object) -> None:
        with self._lock:
            self._at_work.discard(who)

    def drain(self) -> None:
        """Wait until all that was submitted has ended."""
        while True:
            with self._lock:
                if self._threads:  # whoever is at work has one
                    self._changed.wait(0.5)
                    continue
                if not self._waiting:
                    return
            start(self._run)  # submitting what waits may have been interrupted before this
            time.sleep(0.001)


class _Item:
    """Something that was submitted."""

    def __init__(self, who: object, work: Callable[[], Any], leave: Callable[[], object]) -> None:
        self.who, self._work, self.leave = who, work, leave
        self.future: Future[Any] = Future()

    def run(self) -> None:
        """Unless it was cancelled."""
        work, self._work = self._work, lambda: None  # which holds the compiled model
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Where it has no outcome yet, this is it."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)
