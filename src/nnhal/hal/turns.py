"""Executions one at a time, for drivers that say so: the runtime queues, so that a driver need not be concurrent."""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from inspect import ismethod
from typing import Any, TypeVar

from nnhal.hal.request import Control

T = TypeVar("T")
_LOOK = 0.25  # seconds between looks whether whoever has the turn, or waits before, still exists


class _Ticket:
    """A place in the queue. called: set when it is its turn."""

    __slots__ = ("__weakref__", "called")

    def __init__(self) -> None:
        self.called = threading.Event()


class Turns:
    """A queue in order of arrival. Who waits is told by its control when it is time to give up, and leaves the queue.

    Tickets are held weakly: an interrupt may come after any call, and what it leaves behind is passed over.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[weakref.ref[_Ticket]] = deque()  # the first has the turn

    def one_at_a_time(self, run: Callable[..., T]) -> Callable[..., T]:
        """The same function, of a request or more and a control at the end, for one caller at a time.

        A method is held weakly: what comes of it becomes an attribute of its own object.
        """
        held = weakref.WeakMethod(run) if ismethod(run) else lambda: run

        def queued(*arguments: Any) -> T:
            call, ticket = held(), _Ticket()
            assert call is not None  # its owner is who calls
            try:
                self._wait(ticket, arguments[-1])
                return call(*arguments)
            finally:
                self._leave(ticket)

        return queued

    def _wait(self, ticket: _Ticket, control: Control) -> None:
        with self._lock:
            self._queue.append(weakref.ref(ticket))
            self._call()
        while not ticket.called.is_set():
            patience = control.patience()
            ticket.called.wait(_LOOK if patience is None else min(patience, _LOOK))
            control.check()
            with self._lock:
                self._call()

    def _leave(self, ticket: _Ticket) -> None:
        with self._lock:
            for place in self._queue:
                if place() is ticket:
                    self._queue.remove(place)
                    break
            self._call()

    def _call(self) -> None:
        """Call the first that is still there."""
        while self._queue:
            first = self._queue[0]()
            if first is not None:
                first.called.set()
                return
            self._queue.popleft()
