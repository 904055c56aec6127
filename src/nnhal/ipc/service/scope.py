"""What a connection owns on the service's side, and how it comes to its end: wishes to stop, and the closing of objects."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from nnhal.base.errors import InvalidArgument
from nnhal.base.log import logger

_log = logger("driver")


class Wanted:
    """Tells who works for a client that nobody waits any more: its call was cancelled, or the client is gone."""

    def __init__(self) -> None:
        self.gone = threading.Event()  # the client is
        self._events: dict[int, threading.Event] = {}
        self._lock = threading.Lock()

    def begin(self, number: int) -> threading.Event:
        """Set when what goes on under this number, of the client's choice, is cancelled; until `ended`.

        InvalidArgument where something goes on under it already.
        """
        with self._lock:
            if number in self._events:
                raise InvalidArgument(f"{number} is the number of what goes on already, must be a new one")
            event = self._events[number] = threading.Event()
            if self.gone.is_set():
                event.set()
        return event

    def cancel(self, number: int) -> None:
        """Nobody waits for its end; nothing happens where it has ended."""
        event = self._events.get(number)
        if event is not None:
            event.set()

    def ended(self, number: int) -> None:
        """What was begun under a number has ended."""
        self._events.pop(number, None)

    def end(self) -> None:
        """The client is gone: nothing is wanted any more."""
        with self._lock:
            self.gone.set()
            events = list(self._events.values())
        for event in events:
            event.set()


class Ends:
    """Ends objects on a thread of its own, one after the other, so that nobody waits for a driver's `close`."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._finished = False

    def __call__(self, end: Callable[[], object]) -> None:
        """Have this done in a moment, or now where the thread has ended or none is to be had; what it raises is logged."""
        if not self._handed_over(end):
            _do(end)

    def _handed_over(self, end: Callable[[], object]) -> bool:
        with self._lock:
            if self._finished:
                return False
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="nnhal-ends", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return False
                self._thread = thread
            self._queue.put(end)
            return True

    def finish(self, seconds: float) -> bool:
        """End the thread after what is to be done; whether that took no longer."""
        with self._lock:
            self._finished = True
        if self._thread is None:
            return True
        self._queue.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (end := self._queue.get()) is not None:
            _do(end)
            del end  # it holds the object


def _do(end: Callable[[], object]) -> None:
    try:
        end()
    except BaseException:
        _log.exception("an object of a client failed to end")
