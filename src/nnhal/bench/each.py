"""What each operation of a compiled model takes, as far as its drivers tell; of the others the whole step."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.base.records import Record
from nnhal.runtime.compiled import Compiled


class TimeSpent(Record, frozen=True):
    """The median over runs, in nanoseconds, of one operation, or of several that run together and are timed together."""

    operations: tuple[int, ...]
    label: str
    device: str
    spent: float
    whole_step: bool


def each_operation(compiled: Compiled, inputs: Sequence[Any], runs: int) -> list[TimeSpent]:
    """Run so often, one at a time, and measure; in the order of execution."""
    found: dict[tuple[int, str, tuple[int, ...], bool], list[int]] = defaultdict(list)
    plans = compiled.placement.steps
    for _ in range(runs):
        _, report = compiled.run(*inputs, measure=True)
        assert report is not None
        for number, (plan, step) in enumerate(zip(plans, report.steps, strict=False)):  # fewer where all fell back
            for place, nanoseconds in step.each.items():
                found[number, step.device, (plan.operations[place],), False].append(nanoseconds)
            if not step.each:
                found[number, step.device, plan.operations, True].append(step.total)
    labels = {choice.operation: choice.label for choice in compiled.placement.choices}
    shares = []
    for (_, device, chosen, whole), spent in found.items():
        label = labels[chosen[0]]
        if len(chosen) > 1:
            label += f" and {len(chosen) - 1} more"
        shares.append(TimeSpent(chosen, label, device, float(np.median(spent)), whole))
    return shares
