"""The state of waiting executions: clients, their lines in a queue, tickets, predicted times, and places to run."""

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from nnhal.base.codes import LOOP_TIMEOUT_MAXIMUM_NS, Priority
from nnhal.hal.request import Control, Request

FIRST = 3  # successful executions of a model before any of it is refused
PROBE = 8  # one of so many consecutive refusals runs nevertheless: the measurements may be outdated
RECENT = 8  # durations by which the next is predicted
SHORT_NS = 100_000  # shorter executions end before a thread wakes: the only client's take no place
SHORT_RUNS = 16  # of a model until one is measured again
MOST_SHAPES = 64  # sets of shapes of a model whose executions are predicted
LEVELS = (Priority.HIGH, Priority.MEDIUM, Priority.LOW)
GRACE_NS = 100_000_000  # an abandoned execution that runs longer than this no longer blocks others
LONG_NS, LONG_FACTOR = 2_000_000_000, 8  # nor does one that takes longer than this, and so many times its usual time
# Nor one that takes longer than this: a client determines how long its executions are
LONGEST_NS = LOOP_TIMEOUT_MAXIMUM_NS


class QueueClient:
    """A client in fair queueing: this process, or a client of a service."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"QueueClient {self.name}"


OWN = QueueClient("this process")
_processes: "weakref.WeakValueDictionary[int, QueueClient]" = weakref.WeakValueDictionary()
_processes_lock = threading.Lock()


def client_of(pid: int) -> QueueClient:
    """Return the client for a process, however many connections it has."""
    with _processes_lock:
        client = _processes.get(pid)
        if client is None:
            client = _processes[pid] = QueueClient(f"process {pid}")
        return client


class LatencyEstimator:
    """The times of similar successful executions of one prepared model, in nanoseconds: the last ones, and the shortest.

    short: whether the last measured one was shorter than waiting for a place costs, that is within `limit`. left: how
    many run unmeasured before the next measured one. by_values: whether the time depends on values, as that of an IF or
    WHILE does: fairness counts such times, and no execution is refused by them.
    """

    __slots__ = ("_inner", "best", "by_values", "left", "limit", "recent", "refused", "short")

    def __init__(self, inner: "LatencyEstimator | None" = None, *, by_values: bool = False) -> None:
        """inner: of the same model in the queue that its executions enter after this one."""
        self._inner, self.by_values = inner, by_values
        self.recent: deque[int] = deque(maxlen=RECENT)
        self.best = 1 << 62
        self.refused = self.left = 0
        self.limit = SHORT_NS
        self.short = False

    def add_time(self, spent: int) -> None:
        """Add a time. The wait in the inner queue does not count."""
        if self._inner is not None and self._inner.recent:
            spent = min(spent, self._inner.recent[-1])
        self.recent.append(spent)
        if spent < self.best:  # noqa: PLR1730 (min() takes three times as long)
            self.best = spent
        self.short = spent < self.limit
        self.left = SHORT_RUNS if self.short else 0

    @property
    def typical(self) -> int:
        """Return the predicted time: the median of the last ones; 0 if unknown."""
        recent = sorted(self.recent.copy())
        return recent[len(recent) // 2] if recent else 0

    @property
    def expected(self) -> int:
        """Return the time that refusals count with; 0 if unknown."""
        return 0 if self.by_values else self.typical

    @property
    def known(self) -> bool:
        """Whether there are enough measurements to refuse an execution."""
        return not self.by_values and len(self.recent) >= FIRST

    def should_probe(self) -> bool:
        """Note that one is about to be refused; return whether it runs nevertheless."""
        self.refused += 1
        return self.refused % PROBE == 0

    def around(self) -> "LatencyEstimator":
        """Return the times of the same executions in the queue that they enter before this one."""
        return LatencyEstimator(self, by_values=self.by_values)

    def forget(self) -> None:
        """Drop all measurements, because the model's options changed."""
        self.recent.clear()
        self.best = 1 << 62
        self.refused = self.left = 0
        self.short = False


class LatencyByShape:
    """The times of a model with open input shapes, for each set of shapes.

    limit, by_values: as in `LatencyEstimator`.
    """

    def __init__(self, inner: "LatencyByShape | None" = None, *, by_values: bool = False) -> None:
        """inner: as in `LatencyEstimator`."""
        self._inner, self.by_values = inner, by_values
        self._known: dict[tuple[object, ...], LatencyEstimator] = {}
        self.limit = SHORT_NS

    def of(self, request: Request) -> LatencyEstimator:
        """Return the times of executions with these input shapes. The oldest set is dropped if there are too many."""
        given, buffers = request.given, request.input_buffers
        shapes = tuple(
            x.shape if x is not None else buffers[n].facts.dimensions if n in buffers else None
            for n, x in enumerate(given)
        )
        found = self._known.get(shapes)
        if found is None:
            inner = None if self._inner is None else self._inner.of(request)
            found = LatencyEstimator(inner, by_values=self.by_values)
            found.limit = self.limit
            found = self._known.setdefault(shapes, found)
            while len(self._known) > MOST_SHAPES:
                with suppress(StopIteration, RuntimeError):  # another thread dropped it
                    self._known.pop(next(iter(self._known)), None)
        return found

    def around(self) -> "LatencyByShape":
        """As in `LatencyEstimator`."""
        return LatencyByShape(self, by_values=self.by_values)

    def forget(self) -> None:
        """As in `LatencyEstimator`."""
        self._known.clear()


class Slot:
    """A place to run. It is given back, or the next check finds it lost and replaces it.

    there: False once it is replaced. The other attributes describe its execution: since when, its request, its client's
    line and predicted time, its thread, and further places that it takes.
    """

    __slots__ = ("__weakref__", "begun", "control", "line", "others", "overdue", "pace", "there", "thread")

    def __init__(self) -> None:
        self.control: Control | None = None
        self.pace: LatencyEstimator | None = None
        self.line: ClientLine | None = None
        self.begun = self.overdue = self.thread = 0
        self.others: tuple[Slot, ...] = ()
        self.there = True


class QueueTicket:
    """A waiting execution. slot: its place, once it may run. look: its next check in monotonic nanoseconds, 0 for none.

    predicted: nanoseconds of places that its client was charged. probe: it runs although it will probably be late.
    """

    __slots__ = ("__weakref__", "control", "gate", "line", "look", "pace", "predicted", "probe", "slot", "units")

    def __init__(self, line: "ClientLine", pace: LatencyEstimator, units: int, control: Control) -> None:
        self.line, self.pace, self.units, self.control = line, pace, units, control
        self.slot: Slot | None = None
        self.look = self.predicted = 0
        self.probe = False
        self.gate = threading.Lock()
        self.gate.acquire()

    @property
    def takes(self) -> int:
        """The predicted nanoseconds of places; 0 if unknown."""
        return self.pace.typical * self.units

    @property
    def expected(self) -> int:
        """The nanoseconds of places that refusals count with; 0 if unknown."""
        return self.pace.expected * self.units

    def wake(self) -> None:
        """Wake the thread for a check."""
        if self.gate.locked():
            self.gate.release()


class ClientLine:
    """A client in one queue. clock: the nanoseconds of places that it has used, as far as they count.

    waiting: by priority, in order of arrival. left: when its last execution ended. gap: its recent time between
    executions.
    """

    __slots__ = ("__weakref__", "client", "clock", "gap", "left", "waiting")

    def __init__(self, client: QueueClient) -> None:
        self.client = client
        self.clock = self.gap = 0
        self.left: int | None = None
        self.waiting: tuple[deque[weakref.ref[QueueTicket]], ...] = tuple(deque() for _ in LEVELS)

    def first(self) -> QueueTicket | None:
        """Return this client's next ticket; abandoned ones are skipped."""
        for level in self.waiting:
            while level:
                ticket = level[0]()
                if ticket is not None and ticket.slot is None:
                    return ticket
                level.popleft()
        return None

    def ahead(self, level: int) -> Iterator[QueueTicket]:
        """Yield the tickets that run before a new one of this priority."""
        for each in self.waiting[: level + 1]:
            for place in tuple(each):
                ticket = place()
                if ticket is not None and ticket.slot is None:
                    yield ticket


class QueueSlots:
    """A number of places to run. Executions take and return free ones without a lock; the rest needs the queue's lock.

    A place is held weakly, because an interrupt may come after any call: one that was lost is replaced, and one that was
    replaced is dropped when it returns. strict: whether the number is a hard limit; otherwise a place is also replaced
    if its execution should have ended. relieved: when that was checked last.
    """

    def __init__(self, width: int, *, strict: bool) -> None:
        self.width, self.strict = width, strict
        self.free: deque[Slot] = deque()
        self.relieved = 0
        self._all: list[weakref.ref[Slot]] = []
        self.settle()

    def reset(self) -> None:
        """Replace all places in a forked child: the execution that forked returns to none either."""
        for ref in self._all:
            slot = ref()
            if slot is not None:
                slot.there = False
        self.free.clear()
        self.settle()

    def add(self) -> None:
        """Add a free place."""
        slot = Slot()
        self._all.append(weakref.ref(slot))
        self.free.append(slot)

    def settle(self) -> None:
        """Replace lost places."""
        self._all = [ref for ref in self._all if (slot := ref()) is not None and slot.there]
        while len(self._all) < self.width:
            self.add()

    def busy(self) -> Iterator[Slot]:
        """Yield the places that executions have."""
        for ref in self._all:
            slot = ref()
            if slot is not None and slot.control is not None and slot.there:
                yield slot

    def held_by(self, thread: int) -> Slot | None:
        """Return the place of the execution that a thread runs, if any."""
        return next((slot for slot in self.busy() if slot.thread == thread), None)

    def relieve(self, now: int) -> None:
        """Replace places that were lost, or whose execution should have ended."""
        self.relieved = now
        if not self.strict:
            for slot in list(self.busy()):
                if self.counts_until(slot, now) <= now:
                    for each in (slot, *slot.others):
                        each.there = False
        self.settle()

    def counts_until(self, slot: Slot, now: int) -> int:
        """Return when an execution that keeps running no longer blocks others."""
        control, pace = slot.control, slot.pace
        if control is None:  # it has ended meanwhile, which needs no lock
            return now + LONG_NS
        usual = 0 if pace is None else pace.typical
        until = slot.begun + max(LONG_NS, min(LONG_FACTOR * usual, LONGEST_NS))
        if control.cancelled is not None and control.cancelled.is_set():
            if slot.overdue < slot.begun:  # of another execution
                slot.overdue = now
            until = min(until, slot.overdue + GRACE_NS)
        if control.deadline is not None:
            until = min(until, control.deadline + GRACE_NS)
        return until

    def several(self, units: int) -> Slot:
        """Take free places as one; IndexError if there are too few."""
        taken: list[Slot] = []
        try:
            while len(taken) < units:
                taken.append(self.free.pop())
        except IndexError:
            self.free.extend(taken)
            raise
        taken[0].others = tuple(taken[1:])
        return taken[0]

    def give_back(self, slot: Slot) -> None:
        """Return the place of an execution, and those that it took with it."""
        slot.control = slot.line = None
        others, slot.others = slot.others, ()
        if slot.there:
            self.free.extend((slot, *others))

    def drop_replaced(self) -> None:
        """Drop returned places that were already replaced."""
        for slot in list(self.free):
            if not slot.there:
                with suppress(ValueError):  # taken meanwhile, and dropped there
                    self.free.remove(slot)
