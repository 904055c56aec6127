"""Serialises executions and changes: executions run side by side, a change runs alone, so none sees half of it."""

import threading
import weakref
from collections import deque
from typing import Any, TypeVar

from nnhal.hal.request import Act, Control

T = TypeVar("T")
_LOOK = 0.25  # seconds between checks whether the threads ahead still exist


class LockTicket:
    """A place in the queue. alone: excludes all others. called: set when it may run."""

    __slots__ = ("__weakref__", "alone", "called")

    def __init__(self, alone: bool) -> None:
        self.alone, self.called = alone, threading.Event()


class OptionsLock:
    """A queue in order of arrival: the first tickets that are not `alone` run together, or else the first one alone.

    `control.check` ends a wait, and the ticket leaves the queue. Tickets are held weakly: an interrupt may come after
    any call, and the queue skips the tickets that it leaves behind.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[weakref.ref[LockTicket]] = deque()

    def alone(self, run: Act[T]) -> Act[T]:
        """Wrap a function so that it runs alone."""
        return self._queued(run, True)

    def side_by_side(self, run: Act[T]) -> Act[T]:
        """Like `alone`, for any number of callers at once, but never beside one that is alone."""
        return self._queued(run, False)

    def _queued(self, run: Act[T], alone: bool) -> Act[T]:
        def queued(what: Any, control: Control) -> T:
            ticket = LockTicket(alone)
            try:
                self.queue(ticket)
                self.wait(ticket, control)
                return run(what, control)
            finally:
                self.leave(ticket)

        return queued

    def queue(self, ticket: LockTicket) -> None:
        """Take a place at the end. Call `leave` in any case; garbage collection of the ticket leaves too."""
        with self._lock:
            self._queue.append(weakref.ref(ticket))
            self._call()

    def wait(self, ticket: LockTicket, control: Control) -> None:
        """Wait until the ticket may run, or until `control.check` raises."""
        while not ticket.called.is_set():
            patience = control.patience()
            ticket.called.wait(_LOOK if patience is None else min(patience, _LOOK))
            control.check()
            with self._lock:
                self._call()

    def leave(self, ticket: LockTicket) -> None:
        """Leave the queue from any place; no effect if the ticket is not in it."""
        with self._lock:
            for place in self._queue:
                if place() is ticket:
                    self._queue.remove(place)
                    break
            self._call()

    def _call(self) -> None:
        """Call the tickets that may run, of those that still exist."""
        while self._queue and self._queue[0]() is None:
            self._queue.popleft()
        beside = False
        for place in self._queue:
            ticket = place()
            if ticket is None:
                continue
            if ticket.alone:
                if not beside:
                    ticket.called.set()
                return
            ticket.called.set()
            beside = True
