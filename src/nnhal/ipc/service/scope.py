"""What a connection owns on the service's side, and how it comes to its end: wishes to stop, and the closing of objects."""

import os
import select
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from nnhal.base.errors import DeadObject, ResourceExhausted
from nnhal.base.log import logger
from nnhal.ipc.service.quota import Claim

_log = logger("driver")


class Wanted:
    """Tells who works for a lane that nobody waits for the answer any more: the client hung it up, or is gone.

    One thread a connection, which a hang-up wakes and nothing else does.
    """

    def __init__(self) -> None:
        self.gone = threading.Event()  # the client is
        self._poll, self._wake = select.epoll(), os.eventfd(0, os.EFD_CLOEXEC)
        self._poll.register(self._wake, select.EPOLLIN)
        self._lanes: dict[int, threading.Event] = {}
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
                self._thread = threading.Thread(target=self._watch, name="nnhal-wanted", daemon=True)
                self._thread.start()
            return event

    def forget(self, lane: int) -> None:
        """The lane has ended."""
        with self._lock:
            if self._lanes.pop(lane, None) is not None and not self.gone.is_set():
                self._poll.unregister(lane)

    def _watch(self) -> None:
        while not self.gone.is_set():
            for lane, _ in self._poll.poll():
                self._tell(lane)
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
            lanes, self._lanes = self._lanes, {}
            if self._thread is None:
                self._close()
            else:
                os.eventfd_write(self._wake, 1)
        for event in lanes.values():
            event.set()


def _hung_up(lane: int) -> bool:
    look = select.poll()
    look.register(lane, select.POLLRDHUP)
    return bool(look.poll(0))


class Ends:
    """Ends objects on a thread of its own, one after the other, so that nobody waits for a driver's `close`.

    claim: what the thread counts for, until it has ended.
    """

    def __init__(self, claim: Claim) -> None:
        self._claim = claim.passed()
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def __call__(self, end: Callable[[], object]) -> None:
        """Have this done in a moment; what it raises is logged."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="nnhal-ends", daemon=True)
                self._thread.start()
        self._queue.put(end)

    def finish(self, seconds: float) -> bool:
        """End the thread after what is to be done; whether that took no longer."""
        if self._thread is None:
            self._claim.give()
            return True
        self._queue.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (end := self._queue.get()) is not None:
            try:
                end()
            except BaseException:
                _log.exception("an object of a client failed to end")
            del end  # it holds the object
        self._claim.give()


class Workers:
    """Threads for a connection's work in the background: one more where all are busy, as far as there is room.

    room: takes what one counts for; ResourceExhausted where there is none.
    """

    def __init__(self, most: int, room: Callable[[], Claim]) -> None:
        self._most, self._room = most, room
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._unfinished = 0
        self._ended = False

    def submit(self, work: Callable[[], object]) -> None:
        """Have this done. ResourceExhausted where not even one thread is to be had, DeadObject after the end."""
        with self._lock:
            if self._ended:
                raise DeadObject("connection: is ending")
            if self._unfinished >= self._threads < self._most:
                self._start()
            self._unfinished += 1
            self._queue.put(work)

    def _start(self) -> None:
        try:
            claim = self._room()
            try:
                threading.Thread(target=self._work, args=(claim,), name="nnhal-background", daemon=True).start()
            except RuntimeError as error:
                claim.give()
                raise ResourceExhausted(f"connection: no thread for work in the background: {error}") from None
        except ResourceExhausted:
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _work(self, claim: Claim) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except BaseException:
                _log.exception("work in the background failed")
            del work
            with self._lock:
                self._unfinished -= 1
        claim.give()

    def end(self) -> None:
        """Begin nothing more; what waits is dropped, and the threads end when they have done what they are at."""
        with self._lock:
            self._ended = True
            try:
                while True:
                    self._queue.get_nowait()
            except Empty:
                pass
            for _ in range(self._threads):
                self._queue.put(None)
