"""Where each operation of a compiled model runs, why, and which executions fell back at run time."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

from nnhal.base.brief import quoted_name, short_repr, with_count
from nnhal.base.columns import HEIGHT, fitted, fixed, section
from nnhal.base.records import Record, as_dict
from nnhal.runtime import placement_text as words
from nnhal.runtime.isolation import DeviceKey
from nnhal.runtime.partition import Choice, Partition

WHOLE = -1  # stands for the whole model in place of a partition's number


class FallbackCount(Record, frozen=True):
    """Executions of one partition, or of the whole model, that ran on the CPU instead.

    Attributes:
        step: The number of the partition; `WHOLE` for the whole model.
        device: The device that was chosen.
        count: How many executions fell back.
        why: The reason of the last one.
    """

    step: int
    device: str
    count: int
    why: str

    def __str__(self) -> str:
        what = "the whole model" if self.step == WHOLE else f"partition {self.step} on {self.device}"
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"{what} fell back {times}, last: {self.why}"


class StepLayout(Record, frozen=True):
    """The layout of a partition on a device that prefers one.

    Attributes:
        step: The number of the partition.
        device: The label of the device.
        layout: "nhwc" or "nchw".
        transposes: How many TRANSPOSEs were inserted.
        left: The operations that stay in the other layout, by number, and why.
    """

    step: int
    device: str
    layout: str
    transposes: int
    left: Mapping[int, str]

    def __str__(self) -> str:
        left = "".join(f"; #{n} keeps its layout: {why}" for n, why in self.left.items())
        inserted = f"layout {self.layout.upper()}, {with_count(self.transposes, 'transpose')} inserted"
        return f"partition {self.step} on {self.device}: {inserted}{left}"


class PlacedBranch(Record, frozen=True):
    """Where the operations of a subgraph run, if the runtime interprets its control flow.

    Attributes:
        operation: The number of the IF or WHILE.
        name: The role of the subgraph: "then", "else", "condition" or "body".
    """

    operation: int
    name: str
    placement: "Placement"


class FusedOperations(Record, frozen=True):
    """Operations that a device runs as one: enough operations of an `OperationGroup` are in one partition.

    Attributes:
        operations: The numbers of these operations.
        stated: The performance that the device declares for them together, relative to the CPU reference.
    """

    device: str
    operations: tuple[int, ...]
    stated: float


class ExecutionStats:
    """Counts executions and fallbacks.

    ran: called for each execution. Any number of threads may count and read. devices: the label of each partition's
    device.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = tuple(devices)
        self._lock = threading.Lock()
        self._fell: dict[int, FallbackCount] = {}
        self._runs = count()
        self.ran = partial(next, self._runs)  # the only cost that every execution pays

    def __reduce__(self) -> tuple[Any, ...]:
        return _counted, (self._devices, list(self), self.executions)

    def fell_back(self, step: int, why: str) -> None:
        """Count one execution of a partition, or of the `WHOLE` model, that fell back."""
        device = ", ".join(dict.fromkeys(self._devices)) if step == WHOLE else self._devices[step]
        with self._lock:
            before = self._fell.get(step)
            self._fell[step] = FallbackCount(step, device, 1 + (before.count if before else 0), why)

    def __iter__(self) -> Iterator[FallbackCount]:
        with self._lock:
            return iter([self._fell[step] for step in sorted(self._fell)])

    @property
    def executions(self) -> int:
        """How many executions have begun."""
        return int(repr(self._runs).removeprefix("count(").removesuffix(")"))  # `next` would count

    @property
    def total(self) -> int:
        """How many fell back. An execution that fell back for a partition and then as a whole counts twice."""
        return sum(
            each.count for each in list(self._fell.values())
        )  # without the lock, which a fork may have left held

    def to_dict(self) -> dict[str, Any]:
        """Return the placement as documented JSON."""
        return {"executions": self.executions, "fell_back": self.total, "steps": [as_dict(each) for each in self]}


def _counted(devices: Sequence[str], fell: Sequence[FallbackCount], executions: int) -> ExecutionStats:
    """Continue from the counts of another process or a copy."""
    live = ExecutionStats(devices)
    live._fell = {each.step: each for each in fell}
    live._runs = count(executions)
    live.ran = partial(next, live._runs)
    return live


class Placement:
    """Where each operation of a compiled model runs, and why. `str()` is a table of partitions, of at most 24 lines.

    Devices appear under labels: their names, made unique if several have the same.

    Attributes:
        keys: By label: name, version, origin and isolation of the device.
        live: The executions and fallbacks so far.
        layouts: The partitions on devices that prefer a layout.
        loops: The iterations for which its loops are predicted.
        inside: The subgraphs of control flow that the runtime interprets.
    """

    def __init__(
        self,
        partition: Partition,
        events: tuple[str, ...] = (),
        keys: Mapping[str, DeviceKey] | None = None,
        live: ExecutionStats | None = None,
        layouts: Sequence[StepLayout] = (),
        inside: Sequence[PlacedBranch] = (),
    ) -> None:
        self.steps = partition.steps
        self.choices = partition.choices
        self.transfers = partition.transfers
        self.forecasts = partition.forecasts
        self.expected = partition.expected
        self.profiled = partition.profiled
        self.loops = partition.loops
        self.events = events
        self.keys = keys or {}
        self.live = live or ExecutionStats([step.device for step in partition.steps])
        self.layouts, self.inside = tuple(layouts), tuple(inside)

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.choices)

    @property
    def transposes(self) -> int:
        """How many TRANSPOSEs were inserted for preferred layouts."""
        return sum(each.transposes for each in self.layouts)

    @property
    def groups(self) -> tuple[FusedOperations, ...]:
        """The groups that devices run as one, in the order of their first operations."""
        found = (FusedOperations(c.device, c.together, c.as_one) for c in self.choices if c.together)
        return tuple(dict.fromkeys(found))

    def devices(self) -> dict[str, int]:
        """The number of operations on each device, by label, including those of interpreted subgraphs."""
        counts: dict[str, int] = {}
        for choice in self.choices:
            if choice.device:
                counts[choice.device] = counts.get(choice.device, 0) + 1
        for branch in self.inside:
            for device, several in branch.placement.devices().items():
                counts[device] = counts.get(device, 0) + several
        return counts

    @property
    def source(self) -> str:
        """The basis: "only device", "by hand", "single device", "tuned", "calibrated" or "declared"."""
        return words.source(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the placement as JSON data, in the documented schema."""
        return {
            "source": self.source,
            "steps": [
                {"device": s.device, "operations": list(s.operations), **self._times(number)}
                for number, s in enumerate(self.steps)
            ],
            "operations": [_choice(c) for c in self.choices],
            "groups": [_group(each) for each in self.groups],
            "transfers": self.transfers,
            "events": list(self.events),
            "devices": {label: as_dict(key) for label, key in self.keys.items()},
            "live": self.live.to_dict(),
            "layouts": [_layout(each) for each in self.layouts],
            "loops": [each._asdict() for each in self.loops],
            "inside": [_branch(each) for each in self.inside],
            "alternatives": [_alternative(each) for each in self.alternatives],
        }

    @property
    def alternatives(self) -> list[words.Alternative]:
        """All operations on each other device, and the best split that was compared, with why they were not chosen."""
        return words.alternatives(self)

    def _times(self, number: int) -> dict[str, float | None]:
        """Return the predicted and the measured seconds of a partition; None if not known."""
        if number >= len(self.forecasts):
            return {"predicted": None, "took": None}
        seconds, measured = self.forecasts[number]
        return {"predicted": seconds, "took": seconds if measured else None}

    def summary(self) -> str:
        """Return one line: `2 partitions, 3 on reference, 160 on litert`."""
        devices = ", ".join(f"{count} on {quoted_name(label)[1:-1]}" for label, count in self.devices().items())
        return f"{with_count(len(self.steps), 'partition')}, {devices}"

    def why(self, operation: int) -> str:
        """Return in a few lines where one operation runs, and why not on each other device.

        Args:
            operation: The number of the operation in the model.

        Raises:
            IndexError: The model has no such operation.
        """
        return "\n".join(words.why_lines(self, self.choices[operation]))

    def __repr__(self) -> str:
        fell = self.live.total
        late = [with_count(len(self.events), "event")] * bool(self.events) + [
            f"{with_count(fell, 'execution')} fell back"
        ] * bool(fell)
        words = [with_count(len(self.choices), "operation"), with_count(self.transfers, "transfer"), *late]
        return short_repr(f"Placement of {', '.join(words)}", [self.summary()])

    def __str__(self) -> str:
        title = f"{words.headline(self)}{'' if self.expected else words.basis(self)}"
        notes = list(words.partition_notes(self, layouts=True))
        parts = [
            words.partition_section(self, title=[title], top=True),
            words.alternative_section(self),
            section([], notes, "notes", "placement.events, .layouts, .loops, .inside, .live") if notes else fixed(),
        ]
        return "\n".join(fitted(parts, HEIGHT))

    def _repr_html_(self) -> str:
        """Return the same for notebooks."""
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def _alternative(each: words.Alternative) -> dict[str, Any]:
    took = each.latency if each.known else None
    return {"name": each.name, "predicted": each.latency, "took": took, "supported": each.supported, "why": each.why}


def _branch(branch: PlacedBranch) -> dict[str, Any]:
    placed = branch.placement.to_dict()
    kept = "steps", "operations", "transfers", "inside"
    return {"operation": branch.operation, "branch": branch.name, **{name: placed[name] for name in kept}}


def _group(group: FusedOperations) -> dict[str, Any]:
    return {**as_dict(group), "operations": list(group.operations)}


def _layout(layout: StepLayout) -> dict[str, Any]:
    return {**as_dict(layout), "left": {str(n): why for n, why in layout.left.items()}}


def _choice(choice: Choice) -> dict[str, Any]:
    others = dict(choice.others)
    return {"operation": choice.label, "device": choice.device, "reason": choice.reason, "others": others}
