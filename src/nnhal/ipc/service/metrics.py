"""Counters of a service's clients and their executions: plain numbers, until a reader asks.

Each client process has a `ExecutionTally` while it is connected. Afterwards its counts go to one tally of all ended
clients, so
there are never more tallies than clients, and no sum ever falls. One lock guards all, so a `Reading` is consistent:
executions by outcome add up to those in the histogram. Counting holds the lock for some 100 ns.
"""

import threading
import time
import weakref
from bisect import bisect_left
from collections import Counter
from typing import NamedTuple

from nnhal.base.errors import DriverFailed, NnhalError
from nnhal.hal.queue import RunQueue

ENDED = "ended"  # represents all ended client processes
OK = "ok"
# Upper bounds in seconds, of an execution and of a preparation.
EXECUTION = (
    *(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
PREPARATION = 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60


def outcome_of(error: BaseException) -> str:
    """Return an error's class in the tree of `base.errors`; DriverFailed for other errors of a driver."""
    kinds = type(error).__mro__ if isinstance(error, NnhalError) else ()
    return next((kind.__name__ for kind in kinds if kind.__module__ == NnhalError.__module__), DriverFailed.__name__)


class Times:
    """Durations in nanoseconds: number, histogram, sum. Use it under a lock."""

    __slots__ = ("bounds", "buckets", "total")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        """bounds: the greatest duration of each bucket except the last, which has no bound."""
        self.bounds, self.buckets, self.total = bounds, [0] * (len(bounds) + 1), 0

    def add(self, took: int) -> None:
        self.buckets[bisect_left(self.bounds, took)] += 1
        self.total += took

    def join(self, other: "Times") -> None:
        """Add the durations of another one with the same bounds."""
        self.buckets = [a + b for a, b in zip(self.buckets, other.buckets, strict=True)]
        self.total += other.total

    def copy(self) -> "Times":
        same = Times(self.bounds)
        same.join(self)
        return same


def _nanoseconds(bounds: tuple[float, ...]) -> tuple[int, ...]:
    return tuple(round(bound * 1e9) for bound in bounds)


_EXECUTION, _PREPARATION = _nanoseconds(EXECUTION), _nanoseconds(PREPARATION)


class ExecutionTally:
    """Executions of one client process. connections: their number."""

    __slots__ = ("_heir", "_lock", "connections", "inside", "metrics", "outcomes", "times")

    def __init__(self, metrics: "Metrics", lock: threading.Lock) -> None:
        self.metrics = metrics
        self._lock, self._heir = lock, self
        self.connections = self.inside = 0
        self.outcomes: dict[str, int] = {}
        self.times = Times(_EXECUTION)

    def begin(self) -> int:
        """Count the start of an execution, and return its time in monotonic nanoseconds; call `end` in any case."""
        with self._lock:
            self._heir.inside += 1
        return time.monotonic_ns()

    def end(self, began: int, outcome: str) -> None:
        """Count the end of an execution; the client may be gone."""
        took = time.monotonic_ns() - began
        with self._lock:
            to = self._heir
            to.inside -= 1
            to.outcomes[outcome] = to.outcomes.get(outcome, 0) + 1
            to.times.add(took)

    def transfer_to(self, heir: "ExecutionTally") -> None:
        """Pass all counts, also future ones, to another tally; under the lock."""
        self._heir = heir
        heir.inside += self.inside
        heir.times.join(self.times)
        for outcome, count in self.outcomes.items():
            heir.outcomes[outcome] = heir.outcomes.get(outcome, 0) + count


class Executions(NamedTuple):
    """The executions of one client (its number as text, or `ENDED`): by outcome, durations, number in progress."""

    client: str
    outcomes: dict[str, int]
    times: Times
    inside: int


class Depth(NamedTuple):
    """The executions in progress in the service: those that run and those that wait."""

    running: int
    waiting: int


class Reading(NamedTuple):
    """All counters at one moment.

    preparations: by source (`model` or `cache`) and outcome. cache: by result (`Metrics.kept`). connections: those that
    ended or were refused, by cause.
    """

    executions: list[Executions]
    preparations: dict[tuple[str, str], int]
    preparing: dict[str, Times]
    cache: dict[str, int]
    connections: dict[str, int]


class Metrics:
    """The counters of a service."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = ExecutionTally(self, self._lock)
        self._tallies: dict[int, ExecutionTally] = {}  # by process
        self._preparations: Counter[tuple[str, str]] = Counter()
        self._preparing = {source: Times(_PREPARATION) for source in ("model", "cache")}
        self._cache = dict.fromkeys(("hit", "unusable", "absent"), 0)
        self._connections = dict.fromkeys(("closed", "process ended", "not greeted", "refused"), 0)
        self._queues: weakref.WeakSet[RunQueue] = weakref.WeakSet()

    def connect(self, pid: int) -> ExecutionTally:
        """Return the tally of a process that connects; call `left` at its end."""
        with self._lock:
            tally = self._tallies.setdefault(pid, ExecutionTally(self, self._lock))
            tally.connections += 1
            return tally

    def left(self, pid: int, how: str) -> None:
        """Count the end of a connection; the last one of a process ends its tally."""
        with self._lock:
            self._connections[how] += 1
            tally = self._tallies[pid]
            tally.connections -= 1
            if not tally.connections:
                self._tallies.pop(pid).transfer_to(self._ended)

    def refused(self) -> None:
        """Count a refused connection."""
        with self._lock:
            self._connections["refused"] += 1

    def prepared(self, source: str, outcome: str, took: int, *, kept: bool) -> None:
        """Count a preparation from a `model` or the `cache`, which took `took` nanoseconds.

        kept: whether the client provided files for it; those were empty if the source is `model`.
        """
        with self._lock:
            self._preparations[source, outcome] += 1
            self._preparing[source].add(took)
            if source == "cache":
                self._cache["hit" if outcome == OK else "unusable"] += 1
            elif kept:
                self._cache["absent"] += 1

    def watch(self, queue: RunQueue) -> None:
        """Count the waiting executions of a queue while it exists."""
        with self._lock:
            self._queues.add(queue)

    def depth(self) -> Depth:
        """Count running and waiting executions.

        A queue with better knowledge than those of `watch` must be queried here.
        """
        with self._lock:
            inside = self._ended.inside + sum(tally.inside for tally in self._tallies.values())
            queues = list(self._queues)
        waiting = min(inside, sum(queue.waiting() for queue in queues))
        return Depth(inside - waiting, waiting)

    def read(self) -> Reading:
        """Read all counters."""
        with self._lock:
            tallies = [*((str(pid), tally) for pid, tally in self._tallies.items()), (ENDED, self._ended)]
            return Reading(
                [Executions(name, dict(t.outcomes), t.times.copy(), t.inside) for name, t in tallies],
                dict(self._preparations),
                {source: times.copy() for source, times in self._preparing.items()},
                dict(self._cache),
                dict(self._connections),
            )
