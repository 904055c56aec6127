"""The time of each operation of a compiled model, or of the whole partition if its driver does not report operations."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from nnhal.base.records import Record
from nnhal.base.trace import process
from nnhal.runtime.compiled import Compiled
from nnhal.runtime.tracing.session import in_memory
from nnhal.runtime.tracing.timeline import Timeline


class TimeSpent(Record, frozen=True):
    """The median time of one operation, or of several that are timed together.

    Attributes:
        operations: The operations.
        label: The operations for messages.
        device: The device that ran them.
        spent: The median over runs, in nanoseconds.
        whole_step: Whether this is the time of a whole partition.
    """

    operations: tuple[int, ...]
    label: str
    device: str
    spent: float
    whole_step: bool


def each_operation(compiled: Compiled, inputs: Sequence[Any], runs: int) -> list[TimeSpent]:
    """Measures the operations of a compiled model.

    Times of drivers in other processes come from a trace; they are missing if a trace is running already.

    Args:
        compiled: The compiled model.
        inputs: Its inputs.
        runs: The number of inferences, one at a time.

    Returns:
        The times, in the order of execution.
    """
    found: dict[tuple[int, str, tuple[int, ...], bool], list[int]] = defaultdict(list)
    plans, lines = compiled.placement.steps, compiled._caller.lines
    elsewhere = any(line.timely for line in lines) and process.recording is None
    reports, told = [], dict[tuple[int, int], dict[int, int]]()
    with in_memory() if elsewhere else nullcontext(lambda: None) as gather:
        for _ in range(runs):
            _, report = compiled.run(*inputs, measure=True)
            assert report is not None
            reports.append(report)
        timeline = gather()
    if timeline is not None:
        told = _told_elsewhere(timeline, [line.step.laid.serves for line in lines])
    for run, report in enumerate(reports):
        for number, (plan, step) in enumerate(zip(plans, report.steps, strict=False)):  # fewer where all fell back
            each = step.each or told.get((run, number), {})
            for place, nanoseconds in each.items():
                found[number, step.device, (plan.operations[place],), False].append(nanoseconds)
            if not each:
                found[number, step.device, plan.operations, True].append(step.total)
    labels = {choice.operation: choice.label for choice in compiled.placement.choices}
    shares = []
    for (_, device, chosen, whole), spent in found.items():
        label = labels[chosen[0]]
        if len(chosen) > 1:
            label += f" and {len(chosen) - 1} more"
        shares.append(TimeSpent(chosen, label, device, float(np.median(spent)), whole))
    return shares


def _told_elsewhere(timeline: Timeline, serves: Sequence[Sequence[int]]) -> dict[tuple[int, int], dict[int, int]]:
    """Returns the nanoseconds of operations in other processes, by run and partition, then by place in the partition.

    Args:
        timeline: The trace.
        serves: For each partition, the operation that each operation of its driver's model belongs to.
    """
    runs = {
        id(span): n for n, span in enumerate(s for s in timeline.spans if (s.layer, s.name) == ("application", "run"))
    }
    steps: dict[int, tuple[int, int]] = {}  # by the partition's span
    count: dict[int, int] = defaultdict(int)
    for span in timeline.spans:
        if span.name == "step" and id(span.origin) in runs:
            run = runs[id(span.origin)]
            steps[id(span)] = run, count[run]
            count[run] += 1
    found: dict[tuple[int, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for span in timeline.spans:
        around = span.root.caller if span.operation >= 0 else None
        while around is not None and id(around) not in steps:
            around = around.parent
        if around is None:
            continue
        key = steps[id(around)]
        known = serves[key[1]] if key[1] < len(serves) else ()
        if span.operation < len(known):
            found[key][known[span.operation]] += span.end - span.begin
    return found
