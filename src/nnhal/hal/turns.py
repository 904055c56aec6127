"""Who may run beside whom: executions beside one another, and changes, which are alone, so that none sees half of one."""

import threading
import weakref
from collections import deque
from inspect import ismethod
from typing import Any, TypeVar

from nnhal.hal.request import Act, Control, standing_before

T = TypeVar("T")
_LOOK = 0.25  # seconds between looks whether whoever has the turn, or waits before, still exists


class Ticket:
    """A place in the queue. alone: nobody else is called with it. called: set when it is its turn."""

    __slots__ = ("__weakref__", "alone", "called")

    def __init__(self, alone: bool) -> None:
        self.alone, self.called = alone, threading.Event()


class Turns:
    """A queue in order of arrival: those in front who do not want to be alone have the turn together, else the first.

    Who waits is told by its control when it is time to give up, and leaves the queue. Tickets are held weakly: an interrupt
    may come after any call, and what it leaves behind is passed over.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[weakref.ref[Ticket]] = deque()

    def alone(self, run: Act[T]) -> Act[T]:
        """The same function, beside nobody else.

        A method is held weakly: what comes of it becomes an attribute of its own object.
        """
        return self._queued(run, True)

    def side_by_side(self, run: Act[T]) -> Act[T]:
        """As `alone`, for any number of callers at once, but beside nobody who is alone."""
        return self._queued(run, False)

    def _queued(self, run: Act[T], alone: bool) -> Act[T]:
        held = weakref.WeakMethod(run) if ismethod(run) else lambda: run

        def queued(what: Any, control: Control) -> T:
            call, ticket = held(), Ticket(alone)
            assert call is not None  # its owner is who calls
            try:
                self.queue(ticket)
                self.wait(ticket, control)
                return call(what, control)
            finally:
                self.leave(ticket)

        return standing_before(run, queued)

    def queue(self, ticket: Ticket) -> None:
        """Take a place at the end. To be left, whatever comes; it is left too where the ticket goes."""
        with self._lock:
            self._queue.append(weakref.ref(ticket))
            self._call()

    def wait(self, ticket: Ticket, control: Control) -> None:
        """Until it is the ticket's turn; raises what `control.check` does when it is time to give up."""
        while not ticket.called.is_set():
            patience = control.patience()
            ticket.called.wait(_LOOK if patience is None else min(patience, _LOOK))
            control.check()
            with self._lock:
                self._call()

    def leave(self, ticket: Ticket) -> None:
        """Leave the queue, from wherever in it; nothing happens where the ticket is in none."""
        with self._lock:
            for place in self._queue:
                if place() is ticket:
                    self._queue.remove(place)
                    break
            self._call()

    def _call(self) -> None:
        """Call those whose turn it is of those that are still there."""
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
