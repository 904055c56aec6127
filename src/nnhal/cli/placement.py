"""Placement for people: neighbours with the same device and reasons in one line."""

from collections import Counter
from collections.abc import Iterator

from nnhal.runtime.partition import Choice
from nnhal.runtime.placement import Placement


def placement_lines(placement: Placement) -> Iterator[str]:
    """Lines that say for every operation where it runs and why, and why not elsewhere."""
    group: list[Choice] = []
    for choice in [*placement.choices, None]:
        if group and (choice is None or _why(choice) != _why(group[0])):
            yield from _lines(group)
            group = []
        if choice is not None:
            group.append(choice)
    for branch in placement.inside:
        yield f"       {branch.name} of #{branch.operation}:"
        yield from (f"  {line}" for line in placement_lines(branch.placement))
    plural = "" if len(placement.steps) == 1 else "s"
    yield f"       {len(placement.steps)} step{plural}, {placement.transfers} tensors cross between devices"
    yield from (f"       {line}" for line in placement.forecast_lines())
    yield from (f"       {layout}" for layout in placement.layouts)
    yield from (f"       {event}" for event in placement.events)
    yield from (f"       {step}" for step in placement.live)


def _why(choice: Choice) -> tuple[str, str, tuple[int, ...], tuple[tuple[str, str], ...]]:
    return choice.device, choice.reason, choice.together, tuple(choice.others.items())


def _lines(group: list[Choice]) -> Iterator[str]:
    first, last = group[0], group[-1]
    span = f"#{first.operation}" if first is last else f"#{first.operation} to #{last.operation}"
    kinds = Counter(choice.label.split(" #")[0] for choice in group)
    what = ", ".join(f"{n} {kind}" if n > 1 else kind for kind, n in kinds.most_common())
    where = f"on {first.device}" if first.device else "nowhere"
    yield f"where  {span} {where}: {first.reason} ({what})"
    for device, why in first.others.items():
        yield f"       not {device}: {why}"
