"""Who waits to run, and what is known of that: clients, their lines in a queue, tickets and places, the pace of models."""

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from nnhal.base.codes import Priority
from nnhal.hal.request import Control, Request

FIRST = 3  # executions of a model that have to have ended well before any of it is refused
PROBE = 8  # of so many that should be refused in a row, one runs all the same: what was measured may not hold any more
RECENT = 8  # durations by which the next is predicted
SHORT_NS = 100_000  # what takes less is over sooner than a thread wakes: of a client that is alone it takes no place
SHORT_RUNS = 16  # of a model until one is measured again
MOST_SHAPES = 64  # sets of shapes of a model whose executions are predicted
LEVELS = (Priority.HIGH, Priority.MEDIUM, Priority.LOW)


class QueueClient:
    """Somebody between whom and others there is fairness: this process, or one that a service serves."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"QueueClient {self.name}"


OWN = QueueClient("this process")
_processes: "weakref.WeakValueDictionary[int, QueueClient]" = weakref.WeakValueDictionary()
_processes_lock = threading.Lock()


def client_of(pid: int) -> QueueClient:
    """The client that a process is, however many connections it has."""
    with _processes_lock:
        client = _processes.get(pid)
        if client is None:
            client = _processes[pid] = QueueClient(f"process {pid}")
        return client


class Pace:
    """What alike executions of one prepared model took that ended well, in nanoseconds: the last ones, and the shortest.

    short: whether the last one that was measured was over sooner than it pays to wait for a place, that is within `limit`.
    left: how many run like that before one is measured again.
    """

    __slots__ = ("_inner", "best", "left", "limit", "recent", "refused", "short")

    def __init__(self, inner: "Pace | None" = None) -> None:
        """inner: of the same model in a queue that its executions stand in once it is their turn here."""
        self._inner = inner
        self.recent: deque[int] = deque(maxlen=RECENT)
        self.best = 1 << 62
        self.refused = self.left = 0
        self.limit = SHORT_NS
        self.short = False

    def took(self, spent: int) -> None:
        """One more. What it waited for in the inner queue is none of what it takes."""
        if self._inner is not None and self._inner.recent:
            spent = min(spent, self._inner.recent[-1])
        self.recent.append(spent)
        if spent < self.best:  # noqa: PLR1730 (min() takes three times as long)
            self.best = spent
        self.short = spent < self.limit
        self.left = SHORT_RUNS if self.short else 0

    @property
    def typical(self) -> int:
        """What the next one will take: the median of the last ones, so that no single one counts; 0 where nobody knows."""
        recent = sorted(self.recent.copy())
        return recent[len(recent) // 2] if recent else 0

    @property
    def known(self) -> bool:
        """Whether anything may be refused by it."""
        return len(self.recent) >= FIRST

    def doubt(self) -> bool:
        """One is about to be refused; whether it is to run all the same."""
        self.refused += 1
        return self.refused % PROBE == 0

    def around(self) -> "Pace":
        """The pace of the same executions in a queue that they stand in before."""
        return Pace(self)

    def forget(self) -> None:
        """What was measured holds no more: the options of the model changed."""
        self.recent.clear()
        self.best = 1 << 62
        self.refused = self.left = 0
        self.short = False


class ShapedPaces:
    """The pace of a model whose inputs have open shapes, for each set of shapes: of others nothing is known.

    limit: as of `Pace`.
    """

    def __init__(self, inner: "ShapedPaces | None" = None) -> None:
        """inner: as of `Pace`."""
        self._inner = inner
        self._known: dict[tuple[object, ...], Pace] = {}
        self.limit = SHORT_NS

    def of(self, request: Request) -> Pace:
        """The pace of executions with inputs of these shapes. The set that came first is forgotten for one too many."""
        given, buffers = request.given, request.input_buffers
        shapes = tuple(
            x.shape if x is not None else buffers[n].facts.dimensions if n in buffers else None
            for n, x in enumerate(given)
        )
        found = self._known.get(shapes)
        if found is None:
            found = Pace(None if self._inner is None else self._inner.of(request))
            found.limit = self.limit
            found = self._known.setdefault(shapes, found)
            while len(self._known) > MOST_SHAPES:
                with suppress(StopIteration, RuntimeError):  # another thread drops it
                    self._known.pop(next(iter(self._known)), None)
        return found

    def around(self) -> "ShapedPaces":
        """As of `Pace`."""
        return ShapedPaces(self)

    def forget(self) -> None:
        """As of `Pace`."""
        self._known.clear()


class Slot:
    """A place to run: it is given back, or there again in the next count where it was lost. there: False once another
    stands in for it.

    What it is at: since when, for which execution, of whose line and pace, on which thread; others that it takes along.
    """

    __slots__ = ("__weakref__", "begun", "control", "line", "others", "overdue", "pace", "there", "thread")

    def __init__(self) -> None:
        self.control: Control | None = None
        self.pace: Pace | None = None
        self.line: ClientLine | None = None
        self.begun = self.overdue = self.thread = 0
        self.others: tuple[Slot, ...] = ()
        self.there = True


class QueueTicket:
    """Who waits. slot: its place to run, once it is its turn. look: when to look again (monotonic nanoseconds), 0 for never.

    predicted: nanoseconds of places that its client has been charged for. probe: it runs though it should not be in time.
    """

    __slots__ = ("__weakref__", "control", "gate", "line", "look", "pace", "predicted", "probe", "slot", "units")

    def __init__(self, line: "ClientLine", pace: Pace, units: int, control: Control) -> None:
        self.line, self.pace, self.units, self.control = line, pace, units, control
        self.slot: Slot | None = None
        self.look = self.predicted = 0
        self.probe = False
        self.gate = threading.Lock()
        self.gate.acquire()

    @property
    def takes(self) -> int:
        """Nanoseconds of places that it will take, as far as anybody knows."""
        return self.pace.typical * self.units

    def wake(self) -> None:
        """Have it look."""
        if self.gate.locked():
            self.gate.release()


class ClientLine:
    """A client in one queue. clock: nanoseconds of places that it has had, as far as that counts.

    waiting: by priority, in order of arrival. left: when its last execution ended. gap: how long it took lately to come
    back after one.
    """

    __slots__ = ("__weakref__", "client", "clock", "gap", "left", "waiting")

    def __init__(self, client: QueueClient) -> None:
        self.client = client
        self.clock = self.gap = 0
        self.left: int | None = None
        self.waiting: tuple[deque[weakref.ref[QueueTicket]], ...] = tuple(deque() for _ in LEVELS)

    def first(self) -> QueueTicket | None:
        """Whoever is next of this client's; those that went are passed over."""
        for level in self.waiting:
            while level:
                ticket = level[0]()
                if ticket is not None and ticket.slot is None:
                    return ticket
                level.popleft()
        return None

    def ahead(self, level: int) -> Iterator[QueueTicket]:
        """Those whose turn is before somebody's who comes now."""
        for each in self.waiting[: level + 1]:
            for place in tuple(each):
                ticket = place()
                if ticket is not None and ticket.slot is None:
                    yield ticket
