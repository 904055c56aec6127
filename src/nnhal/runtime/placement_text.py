"""A placement for people: a table of its partitions, its alternatives, and why one operation runs where it does."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from nnhal.base.brief import duration, with_count
from nnhal.base.codes import operation_name
from nnhal.base.columns import Section, columns, fixed, section, wrap_text
from nnhal.base.stacks import without_process_log
from nnhal.runtime.measured.families import Loop
from nnhal.runtime.partition import (
    ASKED,
    BY_HAND,
    FASTEST,
    ONLY,
    SINGLE,
    UNUSED,
    Choice,
    Expectation,
    Forecast,
)
from nnhal.runtime.schedule import StepPlan

ROWS = 8  # partitions that are shown by default
_TOP = 3  # kinds of operations of a partition
_ALIKE = 1e-9


class BranchView(Protocol):
    """A subgraph of control flow that the runtime runs, as of `PlacedBranch`."""

    @property
    def operation(self) -> int:
        """The operation that refers to it."""

    @property
    def name(self) -> str:
        """Its role in that operation."""

    @property
    def placement(self) -> "PlacementView":
        """The placement of its operations."""


class PlacementView(Protocol):
    """The part of a `Placement` that is printed."""

    steps: tuple[StepPlan, ...]
    choices: tuple[Choice, ...]
    transfers: int
    forecasts: tuple[Forecast, ...]
    expected: tuple[Expectation, ...]
    profiled: bool
    loops: tuple[Loop, ...]
    events: tuple[str, ...]

    @property
    def layouts(self) -> Iterable[object]:
        """The layouts of partitions on devices that prefer one."""

    @property
    def live(self) -> Iterable[object]:
        """The fallbacks."""

    @property
    def inside(self) -> Iterable[BranchView]:
        """The subgraphs that the runtime runs."""

    def devices(self) -> dict[str, int]:
        """Number of operations on each device."""


class Alternative(NamedTuple):
    """Another assignment of a model's operations, and why it was not chosen.

    latency: seconds, None where nothing was measured. known: whether tuning measured them; else they are predicted.
    supported: how many of the operations its devices support.
    """

    name: str
    latency: float | None
    known: bool
    declared: str
    supported: int
    why: str


def counted_partitions(placement: PlacementView) -> str:
    """`2 partitions, 5 device transfers`."""
    partitions = with_count(len(placement.steps), "partition")
    return f"{partitions}, {with_count(placement.transfers, 'device transfer')}"


def headline(placement: PlacementView, profile: str = "measured profile") -> str:
    """`164 ops -> 1 partition, 0 device transfers, predicted 531 µs (measured profile)`. profile: what predicts it."""
    ops = with_count(len(placement.choices), "op")
    text = f"{ops} -> {counted_partitions(placement)}"
    if placement.expected:
        best = placement.expected[0]
        source = "tuned" if best.known else profile if placement.profiled else "declared performance"
        text += f", {'measured' if best.known else 'predicted'} {duration(best.latency)} ({source})"
    return text


def basis(placement: PlacementView) -> str:
    """Returns the basis of the placement in brackets; "" if only one device was asked."""
    return {
        "only device": "",
        "by hand": " (placed by hand)",
        "single device": " (on a single device)",
        "tuned": " (tuned)",
        "calibrated": " (measured profile)",
        "declared": " (declared performance)",
    }[source(placement)]


def source(placement: PlacementView) -> str:
    """Returns the basis of the placement: "only device", "by hand", "single device", "tuned", "calibrated" or
    "declared".
    """
    kinds = {choice.kind for choice in placement.choices} - {UNUSED}
    if kinds <= {ASKED}:
        return "only device"
    if kinds <= {BY_HAND, ASKED}:
        return "by hand"
    if kinds <= {SINGLE, ASKED}:
        return "single device"
    if placement.expected and placement.expected[0].known:
        return "tuned"
    return "calibrated" if placement.expected and placement.profiled else "declared"


# ------------------------------------------------------------------------------------------------------- its partitions


def partition_section(
    placement: PlacementView, took: Sequence[float] | None = None, *, top: bool = False, title: Sequence[str] = ()
) -> Section:
    """The table of partitions: the slowest where not all are drawn.

    Args:
        placement: of a compiled model.
        took: seconds of each partition, where it ran. By default: what is predicted or declared.
        top: whether the operations that are predicted to take most are named.
        title: lines before the table.
    """
    times, head = _times(placement, took)
    explained = [_why(placement, step) for step in placement.steps]
    explains = len(placement.steps) > 1 or any(why and not why.startswith(FASTEST) for why in explained)
    heads = [">#", "device", "ops", *([head] if head else []), *(["top ops"] if top else [])]
    heads += ["reason"] if explains else []
    cells = [
        [number, step.device, _span(placement, step.operations), *([shown] if head else [])]
        + ([_top(placement, step)] if top else [])
        + ([why] if explains else [])
        for number, (step, (_, shown), why) in enumerate(zip(placement.steps, times, explained, strict=True))
    ]

    def draw(most: int) -> list[str]:
        most = len(cells) if most == len(cells) - 1 else most
        slowest = {*sorted(range(len(cells)), key=lambda n: (-times[n][0], n))[:most]}
        lines = columns(heads, [cells[n] for n in sorted(slowest)], indent=2)
        left = [n for n in range(len(cells)) if n not in slowest]
        if left:
            count = Counter(placement.steps[n].device for n in left)
            where = ", ".join(f"{many} on {device}" for device, many in count.items())
            rest = sum(times[n][0] for n in left)
            spent = f", {duration(rest)}" if head in ("latency", "predicted") else ""
            lines.append(f"  … {len(left)} faster partitions ({where}{spent}): --verbose")
        return [*title, *lines] if cells else list(title)

    return Section(len(cells), draw)


def _times(placement: PlacementView, took: Sequence[float] | None) -> tuple[list[tuple[float, str]], str]:
    """Returns the cost of each partition as number and text, and the head of the column."""
    if took is not None and len(took) == len(placement.steps):
        return [(each, duration(each)) for each in took], "latency"
    if placement.forecasts:
        found = [(f.seconds, duration(f.seconds)) for f in placement.forecasts]
        return found, "measured" if all(f.known for f in placement.forecasts) else "predicted"
    declared = [_declared(placement, step.device, step.operations) for step in placement.steps]
    return [(len(s.operations), text) for s, text in zip(placement.steps, declared, strict=True)], (
        "declared" if any(declared) else ""
    )


def _declared(placement: PlacementView, device: str, operations: Sequence[int]) -> str:
    """`0.05x`, or `0.05x-1x`: what a device declares for operations, relative to the reference."""
    found = [placement.choices[n].costs.get(device) for n in operations]
    known = sorted({each for each in found if each is not None})
    if placement.expected or not known:
        return ""
    return f"{known[0]:g}x" if len(known) == 1 else f"{known[0]:g}x-{known[-1]:g}x"


def _span(placement: PlacementView, operations: Sequence[int]) -> str:
    count = len(operations)
    if count == len(placement.choices):
        return f"{count} (all)"
    first, last = min(operations), max(operations)
    return f"{count} (#{first})" if count == 1 else f"{count} (#{first}-#{last})"


def _top(placement: PlacementView, step: StepPlan) -> str:
    """The kinds of operations that take most of a partition, by prediction, else by how many there are."""
    choices = [placement.choices[n] for n in step.operations]
    count, cost = Counter(operation_name(c.type) for c in choices), dict[str, float]()
    for choice in choices if placement.expected else ():
        name = operation_name(choice.type)
        cost[name] = cost.get(name, 0.0) + choice.costs.get(step.device, 0.0)
    total = sum(cost.values())
    if total <= 0:
        return _kinds(count)
    slowest = sorted(cost.items(), key=lambda each: -each[1])[:_TOP]
    return ", ".join(f"{count[name]} {name} {share / total:.0%}" for name, share in slowest)


def _kinds(count: Counter[str], most: int = _TOP) -> str:
    shown = [f"{many} {name}" if many > 1 else name for name, many in count.most_common(most)]
    return ", ".join([*shown, *(["…"] if len(count) > most else [])])


def _why(placement: PlacementView, step: StepPlan) -> str:
    """Why a partition runs on its device."""
    choices = [placement.choices[n] for n in step.operations]
    kinds = {choice.kind for choice in choices}
    if kinds <= {ASKED, ""}:
        return ""
    if kinds & {BY_HAND, SINGLE}:
        placed = [c for c in choices if c.kind in (BY_HAND, SINGLE)]
        some = f" ({len(placed)} of {len(choices)} ops)" if len(placed) < len(choices) else ""
        return f"{placed[0].reason}{some}"
    if kinds == {ONLY}:
        return _rejections(placement, step.device, choices) or "only device that supports it"
    tuned = placement.expected and placement.expected[0].known
    return f"{FASTEST} {'measured' if tuned else 'predicted' if placement.expected else 'declared'}"


def _rejections(placement: PlacementView, device: str, choices: Sequence[Choice]) -> str:
    """`litert rejects 2 LSTM: why`, of the device that has most of the other operations."""
    devices = sorted(placement.devices().items(), key=lambda each: -each[1])
    names = [name for name, _ in devices if name != device] or list(choices[0].others)
    for name in names:
        count = Counter(operation_name(c.type) for c in choices if name in c.others)
        if count:
            return f"{name} rejects {_kinds(count, 2)}: {next(c.others[name] for c in choices if name in c.others)}"
    return ""


def partition_notes(placement: PlacementView, *, layouts: bool = False, most: int = 2) -> Iterator[str]:
    """Lines below the table: layouts, iterations of loops, subgraphs that the runtime runs, what failed and fell back."""
    for each in placement.layouts if layouts else ():
        yield from wrap_text(f"  {each}", most=most, indent="    ")
    for loop in placement.loops:
        yield f"  {loop}"
    for branch in placement.inside:
        inner = branch.placement
        where = ", ".join(f"{device} {with_count(count, 'op')}" for device, count in inner.devices().items())
        yield f"  {branch.name} of #{branch.operation}: {counted_partitions(inner)}: {where}"
    for event in placement.events:
        yield from wrap_text(f"  {without_process_log(event)[0]}", most=most, indent="    ")
    for fell in placement.live:
        yield from wrap_text(f"  {without_process_log(str(fell))[0]}", most=most, indent="    ")


# ----------------------------------------------------------------------------------------------------- its alternatives


def alternatives(placement: PlacementView) -> list[Alternative]:
    """All on each other device, and the best split that was compared, with why they were not chosen.

    Nothing where operations were placed by hand: the other devices were not asked for those.
    """
    if any(c.kind in (BY_HAND, SINGLE) for c in placement.choices):
        return []
    ran = [c for c in placement.choices if c.device]
    names = dict.fromkeys(name for c in ran for name in (*c.costs, *c.others))
    chosen = tuple(c.device for c in placement.choices)
    found = []
    for name in names:
        if all(c.device == name for c in ran):
            continue
        rejected = [c for c in ran if name not in c.costs and c.device != name]
        whole = tuple(name if c.device else "" for c in placement.choices)
        expectation = next((e for e in placement.expected if e.devices == whole), None)
        declared = _declared(placement, name, [c.operation for c in ran if name in c.costs])
        why = _rejected(name, rejected) if rejected else _slower(placement, expectation, name)
        compared = expectation if not rejected else None
        latency, known = (None, False) if compared is None else (compared.latency, compared.known)
        found.append(Alternative(f"all on {name}", latency, known, declared, len(ran) - len(rejected), why))
    splits = [e for e in placement.expected if len(e.forecasts) > 1 and e.devices != chosen]
    for each in sorted(splits, key=lambda e: e.latency)[:1]:
        name = f"split {' + '.join(sorted(set(filter(None, each.devices))))}"
        found.append(Alternative(name, each.latency, each.known, "", len(ran), _slower(placement, each)))
    return found


def _rejected(name: str, rejected: Sequence[Choice]) -> str:
    count = Counter(operation_name(c.type) for c in rejected)
    reason = next(filter(None, (choice.others.get(name) for choice in rejected)), "")
    return f"rejects {_kinds(count)}{': ' if reason else ''}{reason}"


def _slower(placement: PlacementView, other: Expectation | None, name: str = "") -> str:
    """Why an assignment that is possible was not chosen."""
    if not placement.expected:
        mine = {c.device for c in placement.choices if c.device}
        higher = all(c.costs.get(name, 0) > c.costs.get(c.device, 0) for c in placement.choices if c.device != name)
        return "slower (declared)" if higher and name not in mine else "not faster as a whole"
    best = placement.expected[0]
    if other is None:
        return "slower"
    several = len(other.forecasts) > 1
    if other.latency > best.latency:
        cost = f"{with_count(len(other.forecasts), 'partition')}: transfers cost more than they save"
        return cost if several else "slower"
    if best.known:
        return "equal" if other.known else "predicted only; tuning did not measure it"
    return "gain too small for a split that was not measured" if several else "equal"


def alternative_section(placement: PlacementView) -> Section:
    """The table of alternatives."""
    found = alternatives(placement)
    ran = sum(bool(c.device) for c in placement.choices)
    known = {each.known for each in found if each.latency is not None}
    head = "latency" if len(known) > 1 else "measured" if known == {True} else "predicted"

    def cost(each: Alternative) -> str:
        if not placement.expected:
            return each.declared or "-"
        if each.latency is None:
            return "-"
        return f"{duration(each.latency)}{' predicted' if head == 'latency' and not each.known else ''}"

    heads = ["Alternatives", head if placement.expected else "declared", "supported", "not chosen because"]
    rows = columns(heads, [[f"  {each.name}", cost(each), f"{each.supported}/{ran}", each.why] for each in found])

    return section(rows[:1], rows[1:], "alternatives") if found else fixed()


# ------------------------------------------------------------------------------------------------------- one operation


def why_lines(placement: PlacementView, choice: Choice) -> Iterator[str]:
    """Yields the device of one operation, and the reason against each other device."""
    measured = bool(placement.expected)

    def cost(device: str) -> str:
        known = choice.costs.get(device)
        return "" if known is None else duration(known) if measured else f"{known:g}x"

    where: Mapping[int, int] = {n: k for k, step in enumerate(placement.steps) for n in step.operations}
    if not choice.device:
        yield f"{choice.label}: {choice.reason}"
        return
    head = f"{choice.label} -> {choice.device} (partition {where[choice.operation]}): {choice.reason}"
    yield from wrap_text(head, most=5, indent="  ")
    mine = choice.costs.get(choice.device)
    rows = []
    for device, why in choice.others.items():
        known = choice.costs.get(device)
        if known is None:
            text = why if choice.kind in (BY_HAND, SINGLE) else f"rejects it: {why}"
        elif ": " in why:
            text = why.split(": ", 1)[1]
        elif mine is None or abs(known - mine) <= _ALIKE:
            text = "equal"
        else:
            text = "slower" if known > mine else "faster alone"
        rows.append([device, cost(device), text])
    for line in columns(["", ">", ""], rows, indent=2, width=1 << 30):
        yield from wrap_text(line, most=5, indent=" " * 6)
