"""Executions in flight: submitted, run in order by a few threads at most, waited for in any way."""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future
from typing import Any

from nnhal.base.errors import Cancelled, MissedDeadline
from nnhal.hal.background import start
from nnhal.hal.request import Control


class Execution:
    """An execution in flight: wait for it, await it, select on it (`fileno`), cancel it."""

    def __init__(self, future: "Future[Any]", control: Control) -> None:
        self._future, self._control = future, control
        self._event = -1

    def result(self, timeout: float | None = None) -> Any:
        """Wait at most `timeout` seconds, and not past the deadline; the outputs, or the error raised."""
        left = self._left()
        wait = left if timeout is None else timeout if left is None else min(timeout, left)
        try:
            self._future.exception(wait)
        except CancelledError:
            raise Cancelled("execution: cancelled by its owner") from None
        except TimeoutError:
            if wait != left:
                raise TimeoutError(f"execution: not done after {timeout} s") from None
            raise self._missed() from None
        return self._future.result()

    def _left(self) -> float | None:
        """Seconds until the deadline."""
        limit = self._control.deadline
        return None if limit is None else max(0.0, (limit - time.monotonic_ns()) / 1e9)

    def _missed(self) -> MissedDeadline:
        self.cancel()
        return MissedDeadline("execution: the deadline has passed")

    wait = result

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._future.done()

    def cancel(self) -> None:
        """Ask it to end; it stops before its next operation at the latest, and `result` then raises Cancelled."""
        if self._control.cancelled is not None:
            self._control.cancelled.set()
        self._future.cancel()

    def fileno(self) -> int:
        """A descriptor that becomes readable when the execution has ended; lives as long as this object."""
        if self._event < 0:
            self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            weakref.finalize(self, os.close, self._event)
            event = os.dup(self._event)
            self._future.add_done_callback(_signal(event))
        return self._event

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


def _signal(event: int) -> Callable[["Future[Any]"], None]:
    def done(_: "Future[Any]") -> None:
        os.eventfd_write(event, 1)
        os.close(event)

    return done


class Queue:
    """Runs what is submitted, in order, a few at once."""

    def __init__(self, most: int) -> None:
        self._most, self._active = most, 0
        self._waiting: deque[tuple[Future[Any], Callable[[], Any], Callable[[], object]]] = deque()
        self._changed = threading.Condition()

    def submit(self, work: Callable[[], Any], leave: Callable[[], object], control: Control) -> Execution:
        """Have `work` done; `leave` is called when it has ended, or will never begin."""
        future: Future[Any] = Future()
        with self._changed:
            self._waiting.append((future, work, leave))
            more = self._active < self._most
            self._active += more
        if more:
            try:
                start(self._run)
            except BaseException:
                with self._changed:
                    self._active -= 1
                    self._waiting.remove((future, work, leave))
                raise
        return Execution(future, control)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._active -= 1
                    self._changed.notify_all()
                    return
                future, work, leave = self._waiting.popleft()
            try:
                if future.set_running_or_notify_cancel():
                    try:
                        result = work()
                    except BaseException as error:
                        future.set_exception(error)
                    else:
                        future.set_result(result)
            finally:
                del future, work
                leave()

    def drain(self) -> None:
        """Wait until all that was submitted has ended."""
        with self._changed:
            while self._active or self._waiting:
                self._changed.wait()
