"""Partitioning: a pure function from a model and the devices' verdicts to partitions, with the reason for every choice.

Each operation goes to the device with the best performance among those that support it, unless a separate partition would
cost more than it saves (`costs`). Performance is declared by the devices, or predicted from measurements on this machine
(`Measured`). An assignment that tuning measured counts before any prediction. Operations that are ready together on one
device become one partition, which keeps device transfers few (`schedule`). A device that supports an operation only in a
group gets it if enough of the group are in one partition. Operations whose results nobody reads do not run.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nnhal.base.brief import duration, with_count
from nnhal.base.codes import OperationType, Preference, operation_name
from nnhal.base.errors import InvalidArgument, UnsupportedModel
from nnhal.base.extensions import extension_name
from nnhal.base.levels import Level
from nnhal.base.records import Record, field, replace
from nnhal.hal.device import Capabilities, OperationGroup, Performance, Verdict
from nnhal.model.graph import Model, Operation, operation_label
from nnhal.model.layouts import ModelInLayout
from nnhal.model.parts import live_operands
from nnhal.model.validate import level_needed
from nnhal.runtime import costs
from nnhal.runtime.measured.families import Loop, loops_of, main_type
from nnhal.runtime.schedule import Claimed, FusionGroup, Schedule, StepPlan

# several partitions are preferred if their predicted latency is below WORTH times that of one, with BOUNDARY seconds added
# for each further partition
WORTH, BOUNDARY = 0.75, 100e-6
# times that the predictions of a fallback device count where another device supports the operation: the reference device
# uses NumPy's threads, whatever was asked for, and they are many times slower on cores that others use
FALLBACK = 2.0
ALIKE = 1.02  # times the shortest measured time, within the measurement error
IMPROVED, ENOUGH = 3, 0.01  # assignments that are improved, and the share of a price that is worth another pass
REFUSALS, REFUSED_LABELS = 8, 4  # most reasons in an error, and most operations of each
UNREAD = "does not run: its results are not used"
# kinds of reasons of a choice
FASTEST, ONLY, ASKED, NEIGHBOURS, FUSED, TUNED, BY_HAND, SINGLE, UNUSED = (
    *("fastest", "only", "asked", "neighbours", "fused", "tuned", "by hand", "single", "unused"),
)


class Offer(Record, frozen=True):
    """A device's answers for one model.

    Attributes:
        device: A label that no other offer has.
        level: The device's HAL version.
        capabilities: The performance that the device declares.
        verdicts: A verdict for each operation.
        extensions: The extensions that the device supports.
        predicted: By measurement, the seconds of each operation, or another quantity to minimise.
        excluded: Operations that the device failed to prepare.
        excluded_why: The reason for that.
        step: Seconds that a partition costs in addition to its operations.
        laid: The model in the layout that the device prefers.
        groups: The operations that the device fuses.
        interpreted: For control flow that the runtime interprets, by operation: the seconds of one execution as its
            subgraphs are placed, and those on the CPU alone.
    """

    device: str
    level: Level
    capabilities: Capabilities
    verdicts: Sequence[Verdict]
    extensions: Sequence[str] = ()
    predicted: Sequence[float] | None = None  # seconds, or what else is to be least, of each operation, by measurement
    excluded: frozenset[int] = frozenset()  # operations taken from it after it failed to prepare them
    excluded_why: str = ""
    step: float = costs.STEP
    laid: ModelInLayout | None = None
    groups: Sequence[OperationGroup] = ()
    interpreted: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    fallback: bool = False  # it is there for what no other device runs, and was not named

    def barred(self, index: int, extension: str, level: Level | None) -> str:
        """Returns why the device gets no such operation, whatever its verdict; "" if it may get it."""
        if index in self.excluded:
            return self.excluded_why or "is excluded"
        if extension and extension not in self.extensions:
            return f"does not support the extension {extension}"
        if level is not None and level > self.level:
            return f"needs level {level}, the device is at {self.level}"
        return ""

    def refusal(self, index: int, operation: Operation, extension: str, level: Level | None) -> str:
        """Returns why the device rejects an operation outside a group; "" if it supports it."""
        verdict = self.verdicts[index]
        said = "" if verdict.ok else verdict.reason or f"does not support {operation_name(operation.type)}"
        return self.barred(index, extension, level) or said

    def takes(self, model: Model, index: int) -> bool:
        """Returns whether the device may get an operation, outside a group."""
        return not self.refusal(index, model.main.operations[index], *_needs(model, index))


class Choice(NamedTuple):
    """The placement of one operation.

    Attributes:
        operation: The operation's index.
        type: The operation's type.
        device: The device; "" if the operation does not run.
        reason: The reason for the device.
        others: For each other device, the reason against it.
        costs: The declared cost on each device that supports the operation outside a group.
        together: The operations of the fused group, this one included.
        as_one: The declared cost of the fused group.
        kind: The kind of the reason: FASTEST and the like.
    """

    operation: int
    type: int
    device: str
    reason: str
    others: Mapping[str, str]
    costs: Mapping[str, float]
    together: tuple[int, ...] = ()
    as_one: float = 0.0
    kind: str = ""

    @property
    def label(self) -> str:
        """The operation for messages."""
        return operation_label(self.type, self.operation)


class Forecast(NamedTuple):
    """The expected latency of a partition in seconds; `known` if it was measured, else predicted."""

    seconds: float
    known: bool


class Expectation(NamedTuple):
    """The expected latency of an assignment.

    Attributes:
        seconds: The quantity to compare: `latency` with the margin for splits.
        devices: The device of each operation.
        forecasts: The expected latency of each partition.
        latency: Predicted or measured seconds of one execution.
        known: Whether tuning measured it.
    """

    seconds: float
    devices: tuple[str, ...]
    forecasts: tuple[Forecast, ...]
    latency: float = 0.0
    known: bool = False


class Partition(Record, frozen=True):
    """The partitions of a model.

    Attributes:
        steps: The partitions in execution order.
        choices: The placement of each operation.
        transfers: The number of operands that move between devices.
        forecasts: The expected latency of each partition, if devices were measured.
        expected: The assignments that were compared by measurement, the chosen one first.
        profiled: Whether a profile predicts a device; predictions are estimates from declared performance otherwise.
        loops: The iterations for which its loops are predicted.
    """

    steps: tuple[StepPlan, ...]
    choices: tuple[Choice, ...]
    transfers: int
    forecasts: tuple[Forecast, ...] = ()
    expected: tuple[Expectation, ...] = ()
    profiled: bool = False
    loops: tuple[Loop, ...] = ()


Steps = tuple[StepPlan, ...]


class Measured(Record, frozen=True):
    """Measurements, for placement by predicted latency (or by the quantity in `Offer.predicted`).

    Attributes:
        crossings: For each pair of devices, the seconds of a device transfer and of each byte of it.
        tuned: Seconds of the assignments that tuning measured for this model. While there is one that the devices still
            support, predictions do not count.
        cpu: The seconds of each operation on the CPU, for devices that declare performance relative to it. None to estimate
            them.
    """

    crossings: Mapping[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    tuned: Mapping[Steps, float] = field(default_factory=dict)
    cpu: Sequence[float] | None = None


def partition(
    model: Model,
    offers: Sequence[Offer],
    preference: Preference = Preference.FAST_SINGLE_ANSWER,
    measured: Measured | None = None,
) -> Partition:
    """Places every operation that is `live`.

    Args:
        model: The model.
        offers: The devices' answers for it.
        preference: The client's preference.
        measured: Measurements, or None to place by declared performance.

    Returns:
        The partitions, with a reason for each choice.

    Raises:
        UnsupportedModel: Lists the operations that no device supports, with each device's reason.
        InvalidArgument: Two offers have the same label.
    """
    labels = [offer.device for offer in offers]
    if len(set(labels)) < len(labels):
        raise InvalidArgument(f"offers: devices are {', '.join(labels)}, must have labels that differ")
    profiled = any(offer.predicted is not None for offer in offers)
    if measured is not None:
        offers = _all_predicted(model, offers, measured)
    terms = _Terms(preference, measured is not None)
    claimed = _claimed(model, offers, preference)
    choices = _choices(model, offers, terms, claimed)
    grouped = {n for claims in claimed.values() for n in claims}
    _refuse([c for c in choices if not c.device and c.reason != UNREAD and c.operation not in grouped], len(choices))
    schedule = Schedule(model, claimed)
    devices = [choice.device for choice in choices]
    steps = schedule.steps(devices)
    expected: tuple[Expectation, ...] = ()
    if measured is not None:
        expected = tuple(_expectations(model, offers, choices, schedule, measured))
        devices = list(expected[0].devices)
    elif grouped or ((len(steps) > 1 or _transposed(offers)) and not terms.power):
        devices = _search(model, offers, choices, schedule, lower=not terms.power)
    if measured is not None or devices != [choice.device for choice in choices] or grouped:
        steps = schedule.steps(devices)
        tuned = sum(each.known for each in expected)
        choices = _moved(choices, devices, schedule, steps, terms, tuned=tuned)
    forecasts = expected[0].forecasts if expected else ()
    noted, loops = tuple(_noted(choices, offers)), tuple(loops_of(model))
    return Partition(steps, noted, _transfers(model, devices), forecasts, expected, profiled, loops)


def _transposed(offers: Sequence[Offer]) -> bool:
    return any(offer.laid is not None and offer.laid.inserted for offer in offers)


def _all_predicted(model: Model, offers: Sequence[Offer], measured: Measured) -> list[Offer]:
    """Returns the offers with predictions; an offer without any gets the CPU's seconds times its declared performance."""
    if all(offer.predicted is not None for offer in offers):
        return list(offers)
    cpu = measured.cpu or costs.seconds(model)
    found = []
    for offer in offers:
        if offer.predicted is None:
            stated = [
                _stated(offer.capabilities, o, main_type(model, o), model.relaxed) or Performance()
                for o in model.main.operations
            ]
            own = [each * figures.exec_time for each, figures in zip(cpu, stated, strict=True)]
            for n, (seconds, _) in offer.interpreted.items():
                own[n] = seconds
            found.append(replace(offer, predicted=own))
        else:
            found.append(offer)
    return found


class _Terms(Record, frozen=True):
    """The quantity by which devices are compared, and its texts."""

    preference: Preference
    measured: bool

    @property
    def power(self) -> bool:
        """Whether it is declared power."""
        return self.preference == Preference.LOW_POWER and not self.measured

    def declared(self, cost: float) -> str:
        """A declared cost, relative to the reference device."""
        return f"declared {cost:g}x reference {'power' if self.preference == Preference.LOW_POWER else 'time'}"

    def said(self, cost: float) -> str:
        """A cost."""
        return f"predicted {duration(cost)}" if self.measured else self.declared(cost)

    def best(self, cost: float) -> str:
        """That of the best device."""
        return f"{self.said(cost)}, the {'lowest' if self.power else 'fastest'}"

    def of(self, offer: Offer, index: int, operation: Operation, type: int, relaxed: bool) -> float:
        """Returns the cost of an operation on a device that supports it."""
        if self.measured and offer.predicted is not None:
            return offer.predicted[index]
        figures = _stated(offer.capabilities, operation, type, relaxed)
        if figures is None:
            return math.inf
        return figures.power_usage if self.power else figures.exec_time


def _noted(choices: Sequence[Choice], offers: Sequence[Offer]) -> Iterator[Choice]:
    """Yields the choices, with the chosen device's remark on the operation if it has one."""
    said = {offer.device: offer.verdicts for offer in offers}
    for choice in choices:
        verdict = said[choice.device][choice.operation] if choice.device else None
        if verdict is None or not verdict.ok or not verdict.reason:
            yield choice
        else:
            yield choice._replace(reason=f"{choice.reason}; {verdict.reason}")


def _refuse(lost: Sequence[Choice], count: int) -> None:
    """UnsupportedModel where there are such operations: those that are refused for the same reasons together."""
    if lost:
        refused: dict[str, list[str]] = {}
        for choice in lost:
            why = ", ".join(f"{device}: {reason}" for device, reason in choice.others.items())
            refused.setdefault(why, []).append(choice.label)
        groups = [f"{_first_labels(labels)}: {why}" for why, labels in refused.items()]
        left = [f"{with_count(len(groups) - REFUSALS, 'other reason')} for other operations"] * (len(groups) > REFUSALS)
        listing = "; ".join([*groups[:REFUSALS], *left])
        raise UnsupportedModel(f"no device supports {len(lost)} of {count} operations: {listing}")


def _first_labels(labels: Sequence[str]) -> str:
    """`CONV_2D #0, RELU #1, ADD #2 and 7 more`."""
    if len(labels) <= REFUSED_LABELS + 1:
        return ", ".join(labels)
    return f"{', '.join(labels[:REFUSED_LABELS])} and {len(labels) - REFUSED_LABELS} more"


def _claimed(model: Model, offers: Sequence[Offer], preference: Preference) -> Claimed:
    """Returns the groups that each device fuses, without operations that it may not get and groups that become too small."""
    found: dict[str, dict[int, FusionGroup]] = {}
    if any(offer.groups for offer in offers):
        wanted = set(live_operands(model))
        for offer in offers:
            for group in offer.groups:
                members = tuple(
                    n for n in sorted(group.operations) if n in wanted and not offer.barred(n, *_needs(model, n))
                )
                least = group.at_least or len(group.operations)
                if len(members) >= least:
                    figures = group.performance
                    cost = figures.power_usage if preference == Preference.LOW_POWER else figures.exec_time
                    together = FusionGroup(offer.device, members, least, cost)
                    found.setdefault(offer.device, {}).update(dict.fromkeys(members, together))
    return found


def _search(
    model: Model, offers: Sequence[Offer], choices: Sequence[Choice], schedule: Schedule, *, lower: bool
) -> list[str]:
    """Searches the assignment with the lowest price, partitions and device transfers included.

    Args:
        lower: Whether to improve the assignments that the search starts from.

    Raises:
        UnsupportedModel: Operations that devices support only in a group cannot be placed as one.
    """
    prices = _declared_prices(model, offers, choices, schedule)
    starts = _starts(offers, choices, prices)
    if lower:
        price, devices = min((prices.lowered(start) for start in starts), key=lambda found: found[0])
    else:
        begun = next(filter(None, map(prices.settled, starts)), None)
        price, devices = (math.inf, starts[0]) if begun is None else (0.0, begun[0])
    if price == math.inf:
        _refuse([choice for choice, times in zip(choices, prices.alone, strict=True) if not times], len(choices))
    return devices


def _declared_prices(
    model: Model, offers: Sequence[Offer], choices: Sequence[Choice], schedule: Schedule
) -> costs.Prices:
    """Returns the prices by declared performance."""
    seconds, alone = costs.seconds(model), list[Mapping[str, float]]()
    more = {o.device: costs.layout_transposition(o.laid) for o in offers if o.laid is not None}
    for choice, each in zip(choices, seconds, strict=True):
        known = _costs(choice)
        alone.append({d: cost * (each + more.get(d, {}).get(choice.operation, 0)) for d, cost in known.items()})
    for offer in offers:
        for n, (taken, _) in offer.interpreted.items():
            alone[n] = {**alone[n], offer.device: taken} if offer.device in alone[n] else alone[n]
    turned = {
        offer.device: {
            i: taken * _rate(offer, model.main.operands[i].type)
            for i, taken in costs.operand_transposition(model, offer.laid).items()
        }
        for offer in offers
        if offer.laid is not None
    }
    return costs.Prices(model, seconds, alone, {o.device: o.step for o in offers}, schedule, turned)


def seconds_as_placed(model: Model, offers: Sequence[Offer], found: Partition, preference: Preference) -> float:
    """Returns the predicted seconds of one execution, or what else the preference minimises."""
    if found.expected:
        return found.expected[0].latency
    prices = _declared_prices(model, offers, found.choices, Schedule(model, _claimed(model, offers, preference)))
    power = preference == Preference.LOW_POWER
    running = sum(prices.partition_cost(step, starting=not power) for step in found.steps)
    return running if power else running + prices.transfer_cost([choice.device for choice in found.choices])


def _costs(choice: Choice) -> dict[str, float]:
    """Returns the cost of an operation on each device that supports it outside a group; 1 if no device declares one."""
    known = {device: cost for device, cost in choice.costs.items() if cost < math.inf}
    if not known and (choice.device or choice.reason == UNREAD):
        known = {choice.device: 1.0}
    return known


def _starts(offers: Sequence[Offer], choices: Sequence[Choice], prices: costs.Prices) -> list[list[str]]:
    """Returns the first assignments: the best device for each operation, and for each device as much as it supports."""
    first = [choice.device for choice in choices]
    packed = prices.packed(first) if prices.claimed else first
    only = not all(prices.alone)  # in groups
    starts = [packed] if only or packed == first else [packed, first]
    for offer in offers:
        claims = prices.claimed.get(offer.device, {})
        takes = [offer.device in t or n in claims for n, t in enumerate(prices.alone)]
        starts.append([offer.device if mine else d for mine, d in zip(takes, packed, strict=True)])
    return starts


def expectations(
    model: Model, offers: Sequence[Offer], preference: Preference, measured: Measured
) -> list[Expectation]:
    """Returns the assignments that a search by measurement finds, the best first.

    For each device they include the assignment that gives it every operation it supports. Raises the errors of `partition`.
    """
    offers = _all_predicted(model, offers, measured)
    claimed = _claimed(model, offers, preference)
    choices = _choices(model, offers, _Terms(preference, True), claimed)
    grouped = {n for claims in claimed.values() for n in claims}
    _refuse([c for c in choices if not c.device and c.reason != UNREAD and c.operation not in grouped], len(choices))
    return _expectations(model, offers, choices, Schedule(model, claimed), measured)


def _expectations(
    model: Model, offers: Sequence[Offer], choices: Sequence[Choice], schedule: Schedule, measured: Measured
) -> list[Expectation]:
    """Returns the assignments, the best first: those that tuning measured before those that are predicted.

    A predicted assignment of several partitions must be better by a margin than the best of one: engines cannot fuse
    operations across partitions, and no sum of operations shows that.
    """
    grouped = {offer.device: list(offer.predicted or ()) for offer in offers}
    starting = {offer.device: offer.step for offer in offers}
    alone = [_costs(choice) for choice in choices]
    prices = costs.Prices(model, (), alone, starting, schedule, None, grouped, measured.crossings)
    starts = _starts(offers, choices, prices)
    if (chain := prices.cheapest_chain()) is not None:
        starts.append(chain)
    assignments: dict[tuple[str, ...], Steps] = {}
    begun = []
    for start in starts:
        settled = prices.settled(start)
        if settled is not None and tuple(settled[0]) not in assignments:
            assignments[tuple(settled[0])] = settled[1]
            begun.append((prices.of(*settled), *settled))
    for each in sorted(begun, key=lambda found: found[0])[:IMPROVED]:
        _, devices, steps = prices.improved(*each, enough=ENOUGH)
        assignments[tuple(devices)] = steps
    for known in measured.tuned:
        whole = _devices_of(known, choices)
        # Other partitions than these devices have now were measured by another version, or the record is damaged
        if whole is not None and schedule.steps(whole) == known and all(map(prices.is_supported, known)):
            assignments[whole] = known
    if not assignments:
        _refuse([choice for choice, times in zip(choices, alone, strict=True) if not times], len(choices))
    found = []
    for placed, steps in assignments.items():
        forecasts = tuple(_forecast(prices, measured.tuned, step) for step in steps)
        took = measured.tuned.get(steps)
        latency = sum(f.seconds for f in forecasts) + prices.transfer_cost(placed) if took is None else took
        margin = took is None and len(steps) > 1
        total = latency / WORTH + BOUNDARY * (len(steps) - 1) if margin else latency
        found.append(Expectation(total, placed, forecasts, latency, took is not None))
    found.sort(key=lambda each: (not each.known, each.seconds))
    if found[0].known:
        equal = [each for each in found if each.known and each.seconds <= ALIKE * found[0].seconds]
        found.insert(0, found.pop(found.index(min(equal, key=lambda each: len(each.forecasts)))))
    return found


def _devices_of(steps: Steps, choices: Sequence[Choice]) -> tuple[str, ...] | None:
    """Returns the device of each operation; None unless the partitions have all operations that run, and no others."""
    found = {n: step.device for step in steps for n in step.operations}
    ran = {choice.operation for choice in choices if choice.reason != UNREAD}
    return tuple(found.get(n, "") for n in range(len(choices))) if found.keys() == ran else None


def _forecast(prices: costs.Prices, tuned: Mapping[Steps, float], step: StepPlan) -> Forecast:
    took = tuned.get((step,))
    return Forecast(prices.partition_cost(step), False) if took is None else Forecast(took, True)


def _rate(offer: Offer, type: int) -> float:
    """Returns the declared time for operands of a type relative to the CPU; 1 if the device declares none."""
    stated = offer.capabilities.of(type)
    return 1.0 if stated is None else stated.exec_time


def _moved(
    choices: Sequence[Choice],
    devices: Sequence[str],
    schedule: Schedule,
    steps: Sequence[StepPlan],
    terms: _Terms,
    *,
    tuned: int,
) -> list[Choice]:
    """Returns the choices after the search moved operations from their best device, with the reasons.

    Args:
        tuned: How many measured placements the chosen one is the fastest of; 0 if it is predicted.
    """
    scheduled, found = schedule.scheduled(steps), []
    for choice, device in zip(choices, devices, strict=True):
        best, there = choice.device, choice.costs.get(choice.device, math.inf)
        others = {other: text for other, text in choice.others.items() if other != device}
        if choice.operation in scheduled:
            together, members = scheduled[choice.operation]
            why = f"fused: {device} runs {len(members)} operations as one"
            why += "" if terms.measured else f", {terms.declared(together.cost)}"
            if best and best != device:
                others[best] = terms.said(there)
            found.append(
                choice._replace(
                    device=device, reason=why, others=others, together=members, as_one=together.cost, kind=FUSED
                )
            )
        elif device != best:
            alone = "faster" if there < choice.costs[device] else "as fast"
            others[best] = f"{terms.said(there)}: {alone} alone, but a separate partition would cost more than it saves"
            why = f"a separate partition on {best} ({terms.said(there)}) would cost more than it saves"
            kind = NEIGHBOURS
            if tuned:
                others[best] = terms.said(there)
                why = f"the fastest of {with_count(tuned, 'measured placement')} has it on {device}"
                kind = TUNED
            found.append(
                choice._replace(
                    device=device, reason=f"{terms.said(choice.costs[device])}; {why}", others=others, kind=kind
                )
            )
        else:
            found.append(choice)
    return found


def _needs(model: Model, index: int) -> tuple[str, Level | None]:
    """Returns what a device must support for an operation: its extension or "", its HAL version if it has one."""
    return extension_name(model.main.operations[index].type, model.extensions), level_needed(model, index)


def _choices(model: Model, offers: Sequence[Offer], terms: _Terms, claimed: Claimed) -> list[Choice]:
    """Returns a choice for each operation alone. Operations with equal verdicts share the texts."""
    made: dict[tuple[Any, ...], tuple[str, str, Mapping[str, str], Mapping[str, float], str]] = {}
    wanted, choices = set(live_operands(model)), []
    for index, operation in enumerate(model.main.operations):
        if index not in wanted:
            choices.append(Choice(index, operation.type, "", UNREAD, {}, {}, kind=UNUSED))
            continue
        type = main_type(model, operation)
        said = [None if index in offer.excluded else offer.verdicts[index] for offer in offers]
        together = [claims.get(index) for claims in claimed.values()]
        needs = _needs(model, index)
        predicted = [offer.predicted[index] for offer in offers if offer.predicted is not None] * terms.measured
        what = (operation.type, type, *needs, *said, *together, *predicted)
        if what not in made:
            made[what] = _best(model, offers, index, type, needs, terms, together)
        device, reason, others, costs_by, kind = made[what]
        choices.append(Choice(index, operation.type, device, reason, others, costs_by, kind=kind))
    return choices


def _best(
    model: Model,
    offers: Sequence[Offer],
    index: int,
    type: int,
    needs: tuple[str, Level | None],
    terms: _Terms,
    groups: Sequence[FusionGroup | None],
) -> tuple[str, str, Mapping[str, str], Mapping[str, float], str]:
    """Returns the best device for an operation outside a group.

    Args:
        groups: The groups that the operation is in.

    Returns:
        The device or "", the reason, the reason against each other device, the costs, and the kind of the reason.
    """
    operation = model.main.operations[index]
    refusals = {offer.device: offer.refusal(index, operation, *needs) for offer in offers}
    others = {device: why for device, why in refusals.items() if why}
    costs_by = {
        offer.device: terms.of(offer, index, operation, type, model.relaxed)
        for offer in offers
        if not refusals[offer.device]
    }
    counted = {o.device for o in offers if o.fallback and terms.measured and len(costs_by) > 1} & costs_by.keys()
    costs_by |= {device: FALLBACK * costs_by[device] for device in counted}
    best = min(costs_by, key=costs_by.__getitem__, default="")  # the first named wins a tie
    note = f" ({FALLBACK:g} times its prediction, as the fallback)"
    others |= {d: f"{terms.said(cost)}{note * (d in counted)}" for d, cost in costs_by.items() if d != best}
    for group in groups:
        if group is not None and group.device != best:
            said = f"{others[group.device]}, and {group.cost:g}x" if group.device in costs_by else "supports it only"
            others[group.device] = f"{said} fused in a group of {group.at_least} or more"
    if not costs_by:
        return "", "", others, costs_by, ""
    if len(costs_by) > 1:
        return best, terms.best(costs_by[best]), others, costs_by, FASTEST
    if len(offers) > 1:
        return best, "the only device that supports it", others, costs_by, ONLY
    return best, "the only device asked", others, costs_by, ASKED


def _stated(capabilities: Capabilities, operation: Operation, type: int, relaxed: bool) -> Performance | None:
    """Returns the declared performance for an operation of that type; None if the device declares none."""
    if operation.type == OperationType.IF:
        return capabilities.if_performance
    if operation.type == OperationType.WHILE:
        return capabilities.while_performance
    return capabilities.of(type, relaxed=relaxed)


def _transfers(model: Model, devices: Sequence[str]) -> int:
    """Returns the number of (operand, reading device) pairs whose operand another device wrote."""
    writer = {i: n for n, operation in enumerate(model.main.operations) for i in operation.outputs}
    crossing = {
        (i, devices[n])
        for n in live_operands(model)
        for i in model.main.operations[n].inputs
        if i in writer and devices[writer[i]] != devices[n]
    }
    return len(crossing)
