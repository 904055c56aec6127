"""The costs of assigning operations to devices, and the search for a cheap assignment.

A price is the sum of operations, a fixed cost for each partition, and device transfers. Without measurements, a device
declares its time relative to the reference, whose time is estimated from the work. The search begins with the best
device for each operation, and with everything on one device. It then moves whole partitions to neighbouring devices as
long as that lowers the price. A group has its price if enough of it is in one partition; operations that are supported
only in a group are never separated from it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nnhal.base.operands import Value, fixed
from nnhal.model.graph import Model
from nnhal.model.layouts import ModelInLayout
from nnhal.model.parts import live_operands
from nnhal.model.validate import validate, values_of
from nnhal.runtime.measured.families import width, work_of_operations
from nnhal.runtime.schedule import FusionGroup, Schedule, ScheduledGroup, StepPlan

OPERATION, ELEMENT, MAC = 50e-6, 1e-9, 0.2e-9  # seconds of the reference; only their ratios matter
# Seconds of a partition in addition to its operations, in this process and in another
STEP, STEP_ELSEWHERE = 20e-6, 80e-6
CROSSING, BYTE = 2e-6, 0.2e-9  # seconds of an operand that another device reads
RUN = 5e-6  # seconds that the runtime adds to each run of a subgraph of control flow
PASSES = 8


def seconds(model: Model) -> list[float]:
    """Estimate the reference's seconds for each operation of the main subgraph; unknown dimensions count as 1."""
    return [
        work.total(lambda each: OPERATION + ELEMENT * each.elements + MAC * each.macs)
        for work in work_of_operations(model)
    ]


def layout_transposition(laid: ModelInLayout) -> dict[int, float]:
    """Estimate the reference's seconds for the TRANSPOSEs of a layout, by the original operation that they serve."""
    found: dict[int, float] = {}
    made = [laid.model.main.operations[n].outputs[0] for n in laid.inserted]
    for n, value in zip(laid.inserted, values_of(laid.model, made), strict=True):
        served = laid.serves[n]
        found[served] = found.get(served, 0) + _transpose(value)
    return found


def operand_transposition(model: Model, laid: ModelInLayout) -> dict[int, float]:
    """Estimate the reference's seconds for transposing, by operand that has another order in the layout."""
    values = validate(model).subgraphs[0].values
    return {i: _transpose(values[i]) for i in laid.turned}


def _transpose(value: Value | None) -> float:
    return OPERATION + ELEMENT * 2 * math.prod(d or 1 for d in value.shape or ()) if value is not None else OPERATION


class Prices:
    """Prices of assignments of one model, in seconds.

    seconds: of each operation on the reference. alone: of an operation on each device that supports it alone. starting:
    of a partition on each device. turned: by device, the operands that it handles in another order of dimensions, with
    the seconds to transpose one that is transferred. grouped: by device, the seconds of operations in a group, if
    better known than by the declared performance. crossings: from one device to another, seconds of an operand and of
    each byte. operations: how many run.
    """

    def __init__(
        self,
        model: Model,
        seconds: Sequence[float],
        alone: Sequence[Mapping[str, float]],
        starting: Mapping[str, float],
        schedule: Schedule,
        turned: Mapping[str, Mapping[int, float]] | None = None,
        grouped: Mapping[str, Sequence[float]] | None = None,
        crossings: Mapping[tuple[str, str], tuple[float, float]] | None = None,
    ) -> None:
        self._grouped, self._between = grouped or {}, crossings or {}
        self._seconds, self.alone, self._starting, self._schedule = seconds, alone, starting, schedule
        self.claimed, self._turned = schedule.claimed, turned or {}
        operations, values = (
            {n: model.main.operations[n] for n in live_operands(model)},
            validate(model).subgraphs[0].values,
        )
        self._writer = {i: n for n, operation in operations.items() for i in operation.outputs}
        self._readers: dict[int, list[int]] = {i: [] for i in self._writer}
        self.operations = len(operations)
        self._touched: dict[int, list[int]] = {}  # the operands of each operation that others write or read
        for n, operation in operations.items():
            read = [i for i in dict.fromkeys(operation.inputs) if i in self._writer]
            for i in read:
                self._readers[i].append(n)
            self._touched[n] = [*read, *operation.outputs]
        self._bytes = {}
        for i in self._writer:
            value = values[i]
            known = fixed(value.shape) if value is not None else None
            self._bytes[i] = 0 if value is None or known is None else math.prod(known) * width(value.type)

    # ------------------------------------------------------------------------------------------------ where to begin

    def packed(self, devices: Sequence[str]) -> list[str]:
        """Move groups that are cheaper as one to their device. "": operations that no device supports alone.

        Groups with such operations come first, then those that save most.
        """
        found, free = list(devices), set(self._touched)
        groups = dict.fromkeys(together for claims in self.claimed.values() for together in claims.values())
        for together in sorted(groups, key=lambda each: (-self._saved(each, each.operations), each.cost)):
            members = [n for n in together.operations if n in free]
            if len(members) >= together.at_least and self._saved(together, members) > 0:
                free.difference_update(members)
                for n in members:
                    found[n] = together.device
        for n in free:
            if not found[n]:
                found[n] = next(device for device, claims in self.claimed.items() if n in claims)
        return found

    def _saved(self, together: FusionGroup, members: Sequence[int]) -> float:
        """Return the seconds that a group saves, compared with each operation alone on its best device."""
        least = sum(min(self.alone[n].values(), default=math.inf) for n in members)
        return least - sum(self._in_group(together, n) for n in members)

    def _in_group(self, together: FusionGroup, n: int) -> float:
        known = self._grouped.get(together.device)
        return together.cost * self._seconds[n] if known is None else known[n]

    def settled(self, devices: Sequence[str]) -> tuple[list[str], tuple[StepPlan, ...]] | None:
        """Return a valid assignment near the given one, and its partitions; None if there is none.

        An operation that is supported only in a group, and lacks it, moves to where it is best alone. If no device
        supports it alone, the group's other operations move to it.
        """
        found, joined = list(devices), set[FusionGroup]()
        for _ in range(PASSES):
            steps = self._schedule.steps(found)
            strays = self._strays(steps)
            if not strays:
                return found, steps
            for n in strays:
                if self.alone[n]:
                    found[n] = min(self.alone[n], key=self.alone[n].__getitem__)
                    continue
                together = self.claimed[found[n]][n]
                if together in joined:
                    return None
                joined.add(together)
                for other in together.operations:
                    found[other] = together.device
        return None

    def _strays(self, steps: Sequence[StepPlan]) -> list[int]:
        """Return operations that are placed without the group that they need there."""
        scheduled = self._schedule.scheduled(steps)
        return [
            n
            for device, operations in steps
            if device in self.claimed
            for n in operations
            if n not in scheduled and device not in self.alone[n]
        ]

    # -------------------------------------------------------------------------------------------------------- prices

    def partition_cost(self, step: StepPlan, *, starting: bool = True) -> float:
        """Return the price of one valid partition, without transfers, and on request without its fixed cost."""
        scheduled = self._schedule.scheduled([step]) if step.device in self.claimed else {}
        running = self._running(((n, step.device) for n in step.operations), scheduled)
        return running + (self._starting[step.device] if starting else 0.0)

    def is_supported(self, step: StepPlan) -> bool:
        """Whether the device, as it is now, supports all of a partition."""
        return step.device in self._starting and self._may_go(step.operations, step.device)

    def transfer_cost(self, devices: Sequence[str]) -> float:
        """Return the price of all device transfers."""
        return self._crossings(self._writer, devices)

    def of(self, devices: Sequence[str], steps: Sequence[StepPlan]) -> float:
        """Return the price of a valid assignment."""
        starting = sum(self._starting[device] for device, _ in steps) + self._crossings(self._writer, devices)
        return starting + self._running(enumerate(devices), self._schedule.scheduled(steps))

    def _running(self, placed: Iterable[tuple[int, str]], scheduled: Mapping[int, ScheduledGroup]) -> float:
        """Return the price of the operations on their devices, groups as one."""
        if not scheduled:
            return sum(self.alone[n][device] for n, device in placed)
        return sum(
            self._in_group(scheduled[n].together, n) if n in scheduled else self.alone[n][device]
            for n, device in placed
        )

    def _crossings(self, operands: Iterable[int], devices: Sequence[str]) -> float:
        price, writer, readers, device_of = 0.0, self._writer, self._readers, devices.__getitem__
        for i in operands:
            here = devices[writer[i]]
            elsewhere = dict.fromkeys(map(device_of, readers[i]))  # in order: sums of floats depend on it
            elsewhere.pop(here, None)
            for there in elsewhere:
                fixed, byte = self._between.get((here, there), (CROSSING, BYTE))
                price += fixed + byte * self._bytes[i]
            if elsewhere and self._turned:
                price += sum(self._turned.get(device, {}).get(i, 0) for device in (here, *elsewhere))
        return price

    # ---------------------------------------------------------------------------------------------------- the search

    def lowered(self, devices: Sequence[str]) -> tuple[float, list[str]]:
        """Return an assignment with a price that is not higher, after moving whole partitions; infinite if none is valid."""
        begun = self.settled(devices)
        if begun is None:
            return math.inf, list(devices)
        price, found, _ = self.improved(self.of(*begun), *begun)
        return price, found

    def improved(
        self, price: float, devices: Sequence[str], steps: tuple[StepPlan, ...], *, enough: float = 0.0
    ) -> tuple[float, list[str], tuple[StepPlan, ...]]:
        """Like `lowered`, from a valid assignment. enough: the share of a price that is worth another pass."""
        best = list(devices)
        for _ in range(PASSES):
            tried = self._pass(best, steps)
            if tried == best:
                break
            after = self._schedule.steps(tried)
            if self._strays(after) or (now := self.of(tried, after)) >= price:
                break
            gained = price - now
            best, steps, price = tried, after, now
            if gained < enough * price:
                break
        return price, best, steps

    def _pass(self, devices: Sequence[str], steps: Sequence[StepPlan]) -> list[str]:
        """Visit every partition once, the smallest first: move it to a neighbour's device if that seems cheaper."""
        found = list(devices)
        step_of = {n: number for number, (_, members) in enumerate(steps) for n in members}
        for number in sorted(range(len(steps)), key=lambda g: (len(steps[g].operations), g)):
            members = steps[number].operations
            operands = {i for n in members for i in self._touched[n]}
            beside = {n for i in operands for n in (self._writer[i], *self._readers[i]) if step_of[n] != number}
            now = found[members[0]]
            before = self._price(members, now, operands, found)
            best = (0.0, now)
            for device in sorted({found[n] for n in beside} - {now}):
                if self._may_go(members, device):
                    merged = {step_of[n] for n in beside if found[n] == device}
                    for n in members:
                        found[n] = device
                    gone = self._starting[now] + (len(merged) - 1) * self._starting[device]
                    best = min(best, (self._price(members, device, operands, found) - before - gone, device))
            for n in members:
                found[n] = best[1]
        return found

    def _may_go(self, members: Sequence[int], device: str) -> bool:
        """Whether a device supports operations that move together, alone or in a complete enough group."""
        missing = {n for n in members if device not in self.alone[n]}
        return not missing or missing <= self._as_one(members, device).keys()

    def _as_one(self, members: Sequence[int], device: str) -> dict[int, ScheduledGroup]:
        return self._schedule.scheduled([StepPlan(device, tuple(members))]) if device in self.claimed else {}

    def _price(self, members: Sequence[int], device: str, operands: Iterable[int], devices: Sequence[str]) -> float:
        """Return the price of a partition's operations on a device, and of the operands transferred."""
        running = self._running(((n, device) for n in members), self._as_one(members, device))
        return self._crossings(operands, devices) + running

    # --------------------------------------------------------------------------------------------------------- chains

    def cheapest_chain(self) -> list[str] | None:
        """Return the cheapest assignment that changes devices only where a single operand is transferred.

        Exact if each block reads only what the block before wrote: an earlier operand counts as coming from the device
        of the block before. Groups are ignored. None if no device supports some block.
        """
        blocks = list(self._blocks())
        if len(blocks) < 2:
            return None
        # The least price so far by the last device, and the choice that led to it
        least, ways = {"": 0.0}, list[dict[str, str]]()
        for operand, members in blocks:
            after, way = dict[str, float](), dict[str, str]()
            for device in sorted(set.intersection(*(set(self.alone[n]) for n in members))):
                price, way[device] = min(
                    (price + (0.0 if before == device else self._change(operand, before, device)), before)
                    for before, price in least.items()
                )
                after[device] = price + sum(self.alone[n][device] for n in members)
            if not after:
                return None
            least = after
            ways.append(way)
        device = min(least, key=least.__getitem__)
        found = [next(iter(times), "") for times in self.alone]
        for (_, members), way in zip(reversed(blocks), reversed(ways), strict=True):
            for n in members:
                found[n] = device
            device = way[device]
        return found

    def _change(self, operand: int, before: str, device: str) -> float:
        """Return the price of a new partition with the operand that it reads; 0 for the first one."""
        if not before:
            return self._starting[device]
        fixed, byte = self._between.get((before, device), (CROSSING, BYTE))
        turned = sum(self._turned.get(each, {}).get(operand, 0) for each in (before, device))
        return self._starting[device] + fixed + byte * self._bytes[operand] + turned

    def _blocks(self) -> Iterator[tuple[int, list[int]]]:
        """Yield blocks of operations, and the only operand that is transferred to each; -1 for the first block."""
        order = sorted(self._touched)
        place = {n: k for k, n in enumerate(order)}
        until = {i: max((place[r] for r in readers), default=-1) for i, readers in self._readers.items()}
        last: dict[int, list[int]] = {}  # by place: operands that nothing reads later
        for i, k in until.items():
            last.setdefault(k, []).append(i)
        open_: set[int] = set()
        operand, members = -1, list[int]()
        for k, n in enumerate(order):
            open_.difference_update(last.get(k - 1, ()))
            if members and len(open_) == 1:
                yield operand, members
                (operand,), members = open_, []
            members.append(n)
            open_.update(i for i in self._touched[n] if self._writer.get(i) == n and until[i] > k)
        if members:
            yield operand, members
