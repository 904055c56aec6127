"""The end of a connection on the service's side: cancellation of its work, and closing of its objects."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from queue import Empty, PriorityQueue, SimpleQueue
from typing import Protocol

from nnhal.base import trace
from nnhal.base.codes import Priority
from nnhal.base.errors import DeadObject, InvalidArgument, ResourceExhausted
from nnhal.base.log import logger
from nnhal.ipc.protocol import wire
from nnhal.ipc.service.metrics import ExecutionTally
from nnhal.ipc.service.quota import Claim, ClientShare

KEPT = 2  # background threads that long work leaves to other work
_log = logger("driver")

Work = Callable[[], tuple[wire.ServiceCall, Sequence[int]]]


class CallScope:
    """Informs work for a client that it is abandoned: its call was cancelled, or the client is gone."""

    def __init__(self) -> None:
        self.gone = threading.Event()  # set when the client is gone
        self._events: dict[int, threading.Event] = {}
        self._lock = threading.Lock()

    def begin(self, number: int) -> threading.Event:
        """Return an event that is set when the work of this number, the client's choice, is cancelled; until `ended`.

        Raises InvalidArgument if the number is in use.
        """
        with self._lock:
            if number in self._events:
                raise InvalidArgument(f"{number} is the number of work in progress, must be a new one")
            event = self._events[number] = threading.Event()
            if self.gone.is_set():
                event.set()
        return event

    def cancel(self, number: int) -> None:
        """Cancel the work of a number; ignored if it has ended."""
        event = self._events.get(number)
        if event is not None:
            event.set()

    def ended(self, number: int) -> None:
        """Remove a number whose work has ended."""
        self._events.pop(number, None)

    def end(self) -> None:
        """Cancel everything: the client is gone."""
        with self._lock:
            self.gone.set()
            events = list(self._events.values())
        for event in events:
            event.set()


class ObjectCloser:
    """Ends objects in a separate thread, one after the other, so that a driver's `close` blocks no other thread.

    claim: the quota of the thread, until it has ended.
    """

    def __init__(self, claim: Claim) -> None:
        self._claim = claim.moved_to()
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._finished = False

    def __call__(self, end: Callable[[], object]) -> None:
        """Run `end` soon, or now if the thread has ended or cannot start; errors are logged."""
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
        """End the thread after its queue is empty; return whether that took at most `seconds`."""
        with self._lock:
            self._finished = True
        if self._thread is None:
            self._claim.give()
            return True
        self._queue.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (end := self._queue.get()) is not None:
            _do(end)
            del end  # it holds the object
        self._claim.give()


class Client(Protocol):
    """The interface of the connection that calls use. It owns their handler and outlives each of them.

    watch: a pidfd of the client's process, or -1. wanted: reports abandoned calls. ends: runs an object's end,
    elsewhere. share: what the client holds. tally: counts its executions, None without metrics. scope: where spans of
    its calls go.
    """

    watch: int
    wanted: CallScope
    ends: ObjectCloser
    share: ClientShare
    tally: ExecutionTally | None
    scope: trace.Scope

    def in_background(self, work: Work, priority: Priority, *, takes_long: bool = False) -> None:
        """Do work in another thread and send its notification, exactly once; the highest priority runs first.

        takes_long: whether other work must not wait for it.
        """


def _do(end: Callable[[], object]) -> None:
    try:
        end()
    except BaseException:
        _log.exception("work for a client failed")


_Entry = tuple[int, int, Callable[[], object] | None]  # the least first: priority, number, work


class Workers:
    """Threads for a connection's background work: one more is started if all are busy and the quota allows it.

    Of `most`, long work leaves `KEPT` to other work. room: takes the quota of a thread; ResourceExhausted if it is
    exceeded.
    """

    def __init__(self, most: int, room: Callable[[], Claim]) -> None:
        self._most, self._room = most, room
        self._queue: PriorityQueue[_Entry] = PriorityQueue()
        self._held: list[_Entry] = []  # long work that waits for other long work, a heap
        self._numbers = count()
        self._lock = threading.Lock()
        self._threads = self._unfinished = 0
        self._most_long, self._long = max(1, most - KEPT), 0
        self._ended = False

    def submit(
        self, work: Callable[[], object], priority: Priority = Priority.MEDIUM, *, takes_long: bool = False
    ) -> None:
        """Run work in a thread; the highest priority first, then in order.

        Raises ResourceExhausted if not even one thread can start, DeadObject after the end.
        """
        with self._lock:
            if self._ended:
                raise DeadObject("connection: is ending")
            if takes_long:
                work = partial(self._do_long, work)
            entry = -priority, next(self._numbers), work
            if takes_long and self._long >= self._most_long:
                heappush(self._held, entry)
                return
            if self._unfinished >= self._threads < self._most:
                self._start()
            self._long += takes_long
            self._put(entry)

    def _put(self, entry: _Entry) -> None:
        self._unfinished += 1
        self._queue.put(entry)

    def _start(self) -> None:
        try:
            claim = self._room()
            try:
                threading.Thread(target=self._work, args=(claim,), name="nnhal-background", daemon=True).start()
            except RuntimeError as error:
                claim.give()
                raise ResourceExhausted(
                    f"connection: no thread for background work: {error} (too many, or no memory for one)"
                ) from None
        except ResourceExhausted:
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _do_long(self, work: Callable[[], object]) -> None:
        try:
            work()
        finally:
            with self._lock:
                if self._held:  # it replaces this one, whose thread is free
                    self._put(heappop(self._held))
                else:
                    self._long -= 1

    def _work(self, claim: Claim) -> None:
        while (work := self._queue.get()[-1]) is not None:
            _do(work)
            del work
            with self._lock:
                self._unfinished -= 1
        claim.give()

    def end(self) -> None:
        """Start no more work; drop waiting work, and end the threads after their current work."""
        with self._lock:
            self._ended = True
            self._held.clear()
            try:
                while True:
                    self._queue.get_nowait()
            except Empty:
                pass
            for _ in range(self._threads):
                self._queue.put((1, next(self._numbers), None))
