"""Where each operation of a compiled model runs, and why."""

from collections.abc import Iterator
from typing import Any

from nnhal.runtime.partition import Choice, Partition


class Placement:
    """Where each operation runs, and why; `str()` is a table for people."""

    def __init__(self, partition: Partition, events: tuple[str, ...] = ()) -> None:
        self.steps = partition.steps
        self.choices = partition.choices
        self.transfers = partition.transfers
        self.events = events

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.choices)

    def devices(self) -> dict[str, int]:
        """Number of operations on each device."""
        counts: dict[str, int] = {}
        for choice in self.choices:
            counts[choice.device] = counts.get(choice.device, 0) + 1
        return counts

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON form."""
        return {
            "steps": [{"device": s.device, "operations": list(s.operations)} for s in self.steps],
            "operations": [_choice(c) for c in self.choices],
            "transfers": self.transfers,
            "events": list(self.events),
        }

    def __str__(self) -> str:
        lines = [f"{c.label:32} {c.device:12} {c.reason}" for c in self.choices]
        lines.append(f"{len(self.steps)} steps, {self.transfers} transfers between devices")
        return "\n".join([*lines, *self.events])


def _choice(choice: Choice) -> dict[str, Any]:
    others = dict(choice.others)
    return {"operation": choice.label, "device": choice.device, "reason": choice.reason, "others": others}
