"""Partitions: which operations run together on one device, and in which order, for an assignment to devices.

All ready operations of one device run before another device is next. Operations of a group (`FusionGroup`) wait for each
other, so that they are in one partition, except if operations elsewhere depend on some and are needed by others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from nnhal.base.records import Record
from nnhal.model.graph import Model
from nnhal.model.parts import live_operands

ATTEMPTS = 4  # after which all groups that block each other are split


class StepPlan(NamedTuple):
    """Operations that run together on one device."""

    device: str
    operations: tuple[int, ...]


class FusionGroup(Record, frozen=True, eq=False):
    """Operations that a device may run as one, in order. at_least: how many of them must be in one partition.

    cost: declared for them as one, relative to the CPU.
    """

    device: str
    operations: tuple[int, ...]
    at_least: int
    cost: float


class ScheduledGroup(NamedTuple):
    """An operation's group in a partition: those of `together` that are there, including itself."""

    together: FusionGroup
    members: tuple[int, ...]


Claimed = Mapping[str, Mapping[int, FusionGroup]]  # by device, then by operation


class Schedule:
    """The partitions of any assignment of one model's operations to devices; "" for operations that do not run."""

    def __init__(self, model: Model, claimed: Claimed) -> None:
        self.claimed = claimed
        operations = {n: model.main.operations[n] for n in live_operands(model)}
        writer = {i: n for n, operation in operations.items() for i in operation.outputs}
        self._readers: dict[int, list[int]] = {n: [] for n in operations}
        self._before = dict.fromkeys(operations, 0)  # how many others each waits for
        for n, operation in operations.items():
            for m in {writer[i] for i in operation.inputs if i in writer}:
                self._readers[m].append(n)
                self._before[n] += 1

    def steps(self, devices: Sequence[str]) -> tuple[StepPlan, ...]:
        """Return the partitions in execution order."""
        units = self._units(devices)
        for attempt in range(ATTEMPTS):
            steps, waiting = self._run(devices, units)
            if not waiting:
                return steps
            self._take_apart(units, waiting, every=attempt == ATTEMPTS - 1)
        return self._run(devices, units)[0]

    def scheduled(self, steps: Sequence[StepPlan]) -> dict[int, ScheduledGroup]:
        """Return the operations that run in a group."""
        return {
            n: each
            for device, operations in steps
            if device in self.claimed
            for together, members in _by_group(self.claimed[device], operations).items()
            if len(members) >= together.at_least
            for each in [ScheduledGroup(together, tuple(members))]
            for n in members
        }

    def _units(self, devices: Sequence[str]) -> dict[int, list[int]]:
        """Return for each waiting operation all that wait for each other, including itself."""
        return {
            n: members
            for device, claims in self.claimed.items()
            for together, members in _by_group(claims, [n for n in claims if devices[n] == device]).items()
            if len(members) >= max(2, together.at_least)
            for n in members
        }

    def _run(
        self, devices: Sequence[str], units: Mapping[int, list[int]]
    ) -> tuple[tuple[StepPlan, ...], Mapping[int, int]]:
        """Return the partitions, each unit in one, and the units in a deadlock, with the number of units each waits for.

        The first operation of a unit identifies it.
        """
        missing = self._waits(units) if units else dict(self._before)
        ready: dict[str, list[int]] = {}  # heaps: the least comes first
        for n, count in missing.items():
            if not count:
                ready.setdefault(devices[n], []).append(n)
        steps = []
        while any(ready.values()):
            device = min((d for d in ready if ready[d]), key=lambda d: ready[d][0])
            queue, done = ready[device], list[int]()
            while queue:
                first = heappop(queue)
                del missing[first]
                if not units:
                    done.append(first)
                    for name in self._readers[first]:
                        missing[name] -= 1
                        if not missing[name]:
                            heappush(ready.setdefault(devices[name], []), name)
                    continue
                members = units.get(first, (first,))
                done += members
                for n in members:
                    for reader in self._readers[n]:
                        name = units[reader][0] if reader in units else reader
                        if name == first:
                            continue
                        missing[name] -= 1
                        if not missing[name]:
                            heappush(ready.setdefault(devices[name], []), name)
            steps.append(StepPlan(device, tuple(sorted(done))))
        return tuple(steps), missing

    def _waits(self, units: Mapping[int, list[int]]) -> dict[int, int]:
        """Return how many reads each unit, and each single operation, waits for."""
        missing = {n: 0 for n in self._before if n not in units or units[n][0] == n}
        for n, readers in self._readers.items():
            own = units[n][0] if n in units else n
            for reader in readers:
                name = units[reader][0] if reader in units else reader
                if name != own:
                    missing[name] += 1
        return missing

    def _take_apart(self, units: dict[int, list[int]], waiting: Mapping[int, int], *, every: bool) -> None:
        """Split the largest unit of each cycle, or all of them."""
        for ring in list(self._rings(units, waiting)):
            found = sorted((units[n] for n in ring if n in units), key=lambda unit: (-len(unit), unit[0]))
            for unit in found if every else found[:1]:
                for n in unit:
                    del units[n]

    def _rings(self, units: Mapping[int, list[int]], waiting: Mapping[int, int]) -> Iterator[list[int]]:
        """Yield sets of units that wait for each other: strongly connected components, by Tarjan."""

        def after(name: int) -> Iterator[int]:
            for n in units.get(name, (name,)):
                for reader in self._readers[n]:
                    found = units[reader][0] if reader in units else reader
                    if found != name and found in waiting:
                        yield found

        place: dict[int, int] = {}  # in the order in which they were found
        low: dict[int, int] = {}  # the least place reachable from each
        path: list[tuple[int, Iterator[int]]] = []
        open_: dict[int, None] = {}  # found, and not yet part of a cycle

        def enter(name: int) -> None:
            place[name] = low[name] = len(place)
            open_[name] = None
            path.append((name, after(name)))

        for start in waiting:
            if start not in place:
                enter(start)
            while path:
                name, rest = path[-1]
                for other in rest:
                    if other not in place:
                        enter(other)
                        break
                    if other in open_:
                        low[name] = min(low[name], place[other])
                else:
                    path.pop()
                    if path:
                        low[path[-1][0]] = min(low[path[-1][0]], low[name])
                    if low[name] == place[name]:
                        ring = [open_.popitem()[0]]
                        while ring[-1] != name:
                            ring.append(open_.popitem()[0])
                        if len(ring) > 1:
                            yield ring


def _by_group(claims: Mapping[int, FusionGroup], operations: Iterable[int]) -> dict[FusionGroup, list[int]]:
    """Return the operations that a device may run in a group, by group."""
    found: dict[FusionGroup, list[int]] = {}
    for n in operations:
        if n in claims:
            found.setdefault(claims[n], []).append(n)
    return found
