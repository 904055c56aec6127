"""An execution in flight."""

import os
import time
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future
from typing import Any

from nnhal.base.errors import Cancelled, MissedDeadline
from nnhal.hal.request import Control


class Execution:
    """An execution in flight: wait for it, await it, select on it (`fileno`), cancel it."""

    def __init__(self, future: "Future[Any]", control: Control) -> None:
        self._future, self._control = future, control
        self._event = -1

    def result(self, timeout: float | None = None) -> Any:
        """Wait at most `timeout` seconds, and not past the deadline; the outputs, or the error raised."""
        limit = self._control.deadline
        left = None if limit is None else max(0.0, (limit - time.monotonic_ns()) / 1e9)
        wait = left if timeout is None else timeout if left is None else min(timeout, left)
        try:
            return self._future.result(wait)
        except TimeoutError as error:
            if isinstance(error, MissedDeadline):
                raise
            if left is not None and wait == left:
                self.cancel()
                raise MissedDeadline("execution: the deadline has passed") from None
            raise TimeoutError(f"execution: not done after {timeout} s") from None
        except CancelledError:
            raise Cancelled("execution: cancelled by its owner") from None

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

        yield from asyncio.wrap_future(self._future).__await__()
        return self.result(0)


def _signal(event: int) -> Callable[["Future[Any]"], None]:
    def done(_: "Future[Any]") -> None:
        os.eventfd_write(event, 1)
        os.close(event)

    return done
