"""What a connection owns on the service's side, and how it comes to its end: wishes to stop, and the closing of objects."""

import contextlib
import os
import select
import threading
from collections.abc import Callable
from queue import SimpleQueue

from nnhal.base.errors import InvalidArgument
from nnhal.base.log import logger

_log = logger("driver")


class Wanted:
    """Tells who works for a client that nobody waits any more: its lane was hung up, its call cancelled, the client is gone.

    One thread a connection, which a hang-up wakes and nothing else does.
    """

    def __init__(self) -> None:
        self.gone = threading.Event()  # the client is
        self._poll, self._wake = select.epoll(), os.eventfd(0, os.EFD_CLOEXEC)
        self._poll.register(self._wake, select.EPOLLIN)
        self._lanes: dict[int, threading.Event] = {}
        self._calls: dict[int, threading.Event] = {}  # that go on after their answer
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def of(self, lane: int) -> threading.Event:
        """Set when the peer of a socket hangs up. The socket is to be closed after `forget`."""
        with self._lock:
            event = self._lanes[lane] = threading.Event()
            if self.gone.is_set():
                event.set()
                return event
            self._poll.register(lane, select.EPOLLRDHUP | select.EPOLLONESHOT)
            if self._thread is None:
                thread = threading.Thread(target=self._watch, name="nnhal-wanted", daemon=True)
                with contextlib.suppress(RuntimeError):  # the next lane tries again
                    thread.start()
                    self._thread = thread
            return event

    def begin(self, call: int) -> threading.Event:
        """Set when a call is cancelled that goes on after its answer. InvalidArgument where one goes on under its number."""
        with self._lock:
            if call in self._calls:
                raise InvalidArgument(f"execution {call} goes on already, must be a new number")
            event = self._calls[call] = threading.Event()
            if self.gone.is_set():
                event.set()
        return event

    def cancel(self, call: int) -> None:
        """Nobody waits for its end; nothing happens where it has ended."""
        event = self._calls.get(call)
        if event is not None:
            event.set()

    def ended(self, call: int) -> None:
        """A call that was begun has ended."""
        self._calls.pop(call, None)

    def forget(self, lane: int) -> None:
        """The lane has ended."""
        with self._lock:
            if self._lanes.pop(lane, None) is not None and not self.gone.is_set():
                self._poll.unregister(lane)

    def _watch(self) -> None:
        while not self.gone.is_set():
            for lane, _ in self._poll.poll():
                self._tell(lane)
        with self._lock:  # `end` may be about to wake this thread
            self._close()

    def _tell(self, lane: int) -> None:
        with self._lock:
            event = self._lanes.get(lane)
            if event is not None and _hung_up(lane):  # else it is a later lane, under the same number
                event.set()

    def _close(self) -> None:
        self._poll.close()
        os.close(self._wake)

    def end(self) -> None:
        """The client is gone: nothing is wanted any more."""
        with self._lock:
            self.gone.set()
            events = [*self._lanes.values(), *self._calls.values()]
            self._lanes.clear()
            if self._thread is None:
                self._close()
            else:
                os.eventfd_write(self._wake, 1)
        for event in events:
            event.set()


def _hung_up(lane: int) -> bool:
    look = select.poll()
    look.register(lane, select.POLLRDHUP)
    return bool(look.poll(0))


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
