"""Partitioning: a pure function from a model and what devices say to steps, with the reason for every choice.

Each operation goes to the device with the best performance for it among those whose verdict is good, unless a step of its
own there would cost more than it saves (`costs`). Performance is what devices state, or what is predicted of what was
measured on this machine (`Measured`), where what whole assignments took is believed before any prediction. Operations that
are ready together on one device become one step, so that a model crosses between devices as seldom as that allows
(`schedule`). What a device takes in a group only, it gets where enough of the group stand in one step. Operations whose
results nobody reads run nowhere.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nnhal.base.brief import duration
from nnhal.base.codes import OperationType, Preference, operation_name
from nnhal.base.errors import InvalidArgument, UnsupportedModel
from nnhal.base.extensions import extension_name
from nnhal.base.levels import Level
from nnhal.base.records import Record, field, replace
from nnhal.hal.device import Capabilities, OperationGroup, Performance, Verdict
from nnhal.model.graph import Model, Operation, operation_label
from nnhal.model.layouts import LaidOut
from nnhal.model.parts import live
from nnhal.model.validate import level_needed
from nnhal.runtime import costs
from nnhal.runtime.measured.families import weighing
from nnhal.runtime.schedule import Claimed, Schedule, StepPlan, Together

# what several steps may be predicted to take of one, to be preferred; seconds for each more
WORTH, BOUNDARY = 0.75, 100e-6
# of what one step is predicted to take that nobody has tried, or took when it was tried once, counts beside what another
# took: it may be faster
TRIED = 0.8
MOST = 0.5  # of a model's operations, which a step must have to say something of its device
IMPROVED, ENOUGH = 3, 0.01  # assignments that are improved step by step, and the share of a price that is worth a pass
UNREAD = "does not run: its results are not used"
# kinds of reasons of a choice
FASTEST, ONLY, ASKED, NEIGHBOURS, FUSED, BY_HAND, UNUSED = (
    *("fastest", "only", "asked", "neighbours", "fused", "by hand", "unused"),
)


class Offer(Record, frozen=True):
    """What one device says of one model: a verdict for each operation, its stated performance and its level.

    device: a label that no other offer has. step: seconds that a step costs there beside its operations. laid: the model as
    the device was asked about it, where it prefers a layout.
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
    laid: LaidOut | None = None
    groups: Sequence[OperationGroup] = ()

    def barred(self, index: int, extension: str, level: Level | None) -> str:
        """Why the device gets no operation of that extension and level, whatever it says of it; "" where it may."""
        if index in self.excluded:
            return self.excluded_why or "is excluded"
        if extension and extension not in self.extensions:
            return f"does not support the extension {extension}"
        if level is not None and level > self.level:
            return f"needs level {level}, the device is at {self.level}"
        return ""

    def refusal(self, index: int, operation: Operation, extension: str, level: Level | None) -> str:
        """Why the device does not take an operation by itself; "" where it does."""
        verdict = self.verdicts[index]
        said = "" if verdict.ok else verdict.reason or f"does not support {operation_name(operation.type)}"
        return self.barred(index, extension, level) or said


class Choice(NamedTuple):
    """Where one operation runs and why, and why not on each other device. device: "" where it does not run."""

    operation: int
    type: int  # the operation's
    device: str
    reason: str
    others: Mapping[str, str]
    costs: Mapping[str, float]  # stated, by those that take it by itself
    together: tuple[int, ...] = ()  # those that it runs as one with, itself among them
    as_one: float = 0.0  # declared for those together
    kind: str = ""  # of the reason: FASTEST and the like

    @property
    def label(self) -> str:
        """The operation for messages."""
        return operation_label(self.type, self.operation)


class Forecast(NamedTuple):
    """What a step is thought to take, in seconds. known: it took that before, else it is predicted."""

    seconds: float
    known: bool


class Expectation(NamedTuple):
    """What an assignment is expected to take.

    seconds: what assignments are compared by: `latency` with the margins for splits and trials. devices: by operation.
    latency: predicted or measured seconds of one execution. known: whether earlier executions were measured. trial: whether
    it is preferred so that it gets measured.
    """

    seconds: float
    devices: tuple[str, ...]
    forecasts: tuple[Forecast, ...]
    latency: float = 0.0
    known: bool = False
    trial: bool = False


class Partition(Record, frozen=True):
    """Steps in execution order, a choice for each operation, and the number of operands that cross between devices.

    forecasts: of each step, where devices were measured. expected: the assignments that were compared then, the chosen
    one first.
    """

    steps: tuple[StepPlan, ...]
    choices: tuple[Choice, ...]
    transfers: int
    forecasts: tuple[Forecast, ...] = ()
    expected: tuple[Expectation, ...] = ()


Steps = tuple[StepPlan, ...]


class Measured(Record, frozen=True):
    """Least time by measurement, or least of what `Offer.predicted` says.

    crossings: seconds of an operand and of each byte of it, from one device to another. learnt: what whole assignments
    took, of one step or several. tried: assignments of which nothing more is to be found out; None where nothing is tried.
    cpu: what each operation takes the CPU, for devices that state their time against it; guessed where nobody measured that.
    """

    crossings: Mapping[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    learnt: Mapping[Steps, float] = field(default_factory=dict)
    tried: frozenset[Steps] | None = None
    cpu: Sequence[float] | None = None

    def is_trial(self, steps: Steps) -> bool:
        """Whether it is worth something to know what all on this device takes, or to know it better: what it takes elsewhere
        is known."""
        open = len(steps) == 1 and self.tried is not None and steps not in self.tried
        return open and any(other != steps for other in self.learnt)


def partition(
    model: Model,
    offers: Sequence[Offer],
    preference: Preference = Preference.FAST_SINGLE_ANSWER,
    measured: Measured | None = None,
) -> Partition:
    """Place every operation that is `live`. UnsupportedModel lists all that no device takes, with each device's reason.

    measured: None for what devices state.
    """
    labels = [offer.device for offer in offers]
    if len(set(labels)) < len(labels):
        raise InvalidArgument(f"offers: devices are {', '.join(labels)}, must have labels that differ")
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
        choices = _moved(choices, devices, schedule, steps, terms, trial=bool(expected) and expected[0].trial)
    forecasts = expected[0].forecasts if expected else ()
    return Partition(steps, tuple(_noted(choices, offers)), _transfers(model, devices), forecasts, expected)


def _transposed(offers: Sequence[Offer]) -> bool:
    return any(offer.laid is not None and offer.laid.inserted for offer in offers)


def _all_predicted(model: Model, offers: Sequence[Offer], measured: Measured) -> list[Offer]:
    """The offers, each with predictions: where there are none, the CPU's seconds times what the device states."""
    if all(offer.predicted is not None for offer in offers):
        return list(offers)
    cpu = measured.cpu or costs.seconds(model)
    found = []
    for offer in offers:
        if offer.predicted is None:
            stated = [
                _stated(offer.capabilities, o, weighing(model, o), model.relaxed) or Performance()
                for o in model.main.operations
            ]
            own = [each * figures.exec_time for each, figures in zip(cpu, stated, strict=True)]
            found.append(replace(offer, predicted=own))
        else:
            found.append(offer)
    return found


class _Terms(Record, frozen=True):
    """What devices are compared by, in words."""

    preference: Preference
    measured: bool

    @property
    def power(self) -> bool:
        """Whether it is power, as stated."""
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
        """The cost of an operation on a device that takes it."""
        if self.measured and offer.predicted is not None:
            return offer.predicted[index]
        figures = _stated(offer.capabilities, operation, type, relaxed)
        if figures is None:
            return math.inf
        return figures.power_usage if self.power else figures.exec_time


def _noted(choices: Sequence[Choice], offers: Sequence[Offer]) -> Iterator[Choice]:
    """The choices, with what the chosen device says of an operation that it takes."""
    said = {offer.device: offer.verdicts for offer in offers}
    for choice in choices:
        verdict = said[choice.device][choice.operation] if choice.device else None
        if verdict is None or not verdict.ok or not verdict.reason:
            yield choice
        else:
            yield choice._replace(reason=f"{choice.reason}; {verdict.reason}")


def _refuse(lost: Sequence[Choice], count: int) -> None:
    """UnsupportedModel where there are such operations."""
    if lost:
        listing = "; ".join(f"{c.label}: {', '.join(f'{d}: {why}' for d, why in c.others.items())}" for c in lost)
        raise UnsupportedModel(f"no device takes {len(lost)} of {count} operations: {listing}")


def _claimed(model: Model, offers: Sequence[Offer], preference: Preference) -> Claimed:
    """What each device runs as one, of operations that it may have; groups of which it may have too few are left out."""
    found: dict[str, dict[int, Together]] = {}
    if any(offer.groups for offer in offers):
        wanted = set(live(model))
        for offer in offers:
            for group in offer.groups:
                members = tuple(
                    n for n in sorted(group.operations) if n in wanted and not offer.barred(n, *_needs(model, n))
                )
                least = group.at_least or len(group.operations)
                if len(members) >= least:
                    figures = group.performance
                    cost = figures.power_usage if preference == Preference.LOW_POWER else figures.exec_time
                    together = Together(offer.device, members, least, cost)
                    found.setdefault(offer.device, {}).update(dict.fromkeys(members, together))
    return found


def _search(
    model: Model, offers: Sequence[Offer], choices: Sequence[Choice], schedule: Schedule, *, lower: bool
) -> list[str]:
    """The devices at the lowest price that was found, steps and crossings counted. lower: go on from where it begins.

    UnsupportedModel where operations that are only taken together never are.
    """
    seconds, alone = costs.seconds(model), list[Mapping[str, float]]()
    more = {o.device: costs.transposing(o.laid) for o in offers if o.laid is not None}
    for choice, each in zip(choices, seconds, strict=True):
        known = _costs(choice)
        alone.append({d: cost * (each + more.get(d, {}).get(choice.operation, 0)) for d, cost in known.items()})
    turned = {
        offer.device: {
            i: taken * _rate(offer, model.main.operands[i].type)
            for i, taken in costs.turning(model, offer.laid).items()
        }
        for offer in offers
        if offer.laid is not None
    }
    prices = costs.Prices(model, seconds, alone, {o.device: o.step for o in offers}, schedule, turned)
    starts = _starts(offers, choices, alone, schedule, prices)
    if lower:
        price, devices = min((prices.lowered(start) for start in starts), key=lambda found: found[0])
    else:
        begun = next(filter(None, map(prices.settled, starts)), None)
        price, devices = (math.inf, starts[0]) if begun is None else (0.0, begun[0])
    if price == math.inf:
        _refuse([choice for choice, times in zip(choices, alone, strict=True) if not times], len(choices))
    return devices


def _costs(choice: Choice) -> dict[str, float]:
    """What an operation costs on each device that takes it by itself; one that nobody states anything of has one."""
    known = {device: cost for device, cost in choice.costs.items() if cost < math.inf}
    if not known and (choice.device or choice.reason == UNREAD):
        known = {choice.device: 1.0}
    return known


def _starts(
    offers: Sequence[Offer],
    choices: Sequence[Choice],
    alone: Sequence[Mapping[str, float]],
    schedule: Schedule,
    prices: costs.Prices,
) -> list[list[str]]:
    """Where the search begins: the best device for each operation, and all that any one device takes, on that device."""
    first = [choice.device for choice in choices]
    packed = prices.packed(first) if schedule.claimed else first
    only = not all(alone)  # in groups
    starts = [packed] if only or packed == first else [packed, first]
    for offer in offers:
        claims = schedule.claimed.get(offer.device, {})
        takes = [offer.device in t or n in claims for n, t in enumerate(alone)]
        starts.append([offer.device if mine else d for mine, d in zip(takes, packed, strict=True)])
    return starts


def expectations(
    model: Model, offers: Sequence[Offer], preference: Preference, measured: Measured
) -> list[Expectation]:
    """The assignments that a search by measurement comes upon, the best first: among them all that each device takes.

    Raises what `partition` does.
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
    """What whole steps took when they were measured corrects what is predicted of their devices' operations.

    An assignment of several steps has to be better by a margin than the best of one, unless it was measured: what engines
    fuse across operations they cannot fuse across steps, and no sum knows of that. One of one step that was never tried may
    be worse by a margin than what is known, or the first choice would be the last one too; so may one that one compilation
    alone measured, beside which something else may have run.
    """
    predicted = {offer.device: list(offer.predicted or ()) for offer in offers}
    starting = {offer.device: offer.step for offer in offers}

    def priced(factors: Mapping[str, float]) -> tuple[list[dict[str, float]], costs.Prices]:
        alone = [{d: cost * factors.get(d, 1.0) for d, cost in _costs(choice).items()} for choice in choices]
        grouped = {d: [each * factors[d] for each in taken] for d, taken in predicted.items()}
        return alone, costs.Prices(model, (), alone, starting, schedule, None, grouped, measured.crossings)

    factors = dict.fromkeys(predicted, 1.0)
    alone, prices = priced(factors)
    corrected = _corrections(prices, measured.learnt, factors)
    if corrected != factors:
        alone, prices = priced(corrected)
    starts = _starts(offers, choices, alone, schedule, prices)
    if (chain := prices.chained()) is not None:
        starts.append(chain)
    tried: dict[tuple[str, ...], Steps] = {}
    begun = []
    for start in starts:
        settled = prices.settled(start)
        if settled is not None and tuple(settled[0]) not in tried:
            tried[tuple(settled[0])] = settled[1]
            begun.append((prices.of(*settled), *settled))
    for each in sorted(begun, key=lambda found: found[0])[:IMPROVED]:
        _, devices, steps = prices.improved(*each, enough=ENOUGH)
        tried[tuple(devices)] = steps
    if not tried:
        _refuse([choice for choice, times in zip(choices, alone, strict=True) if not times], len(choices))
    found = []
    for placed, steps in tried.items():
        forecasts = tuple(_forecast(prices, measured.learnt, step) for step in steps)
        whole = measured.learnt.get(steps)
        latency = sum(f.seconds for f in forecasts) + prices.of_crossings(placed) if whole is None else whole
        total, trial = latency, measured.is_trial(steps)
        if whole is None and len(steps) > 1:
            total = total / WORTH + BOUNDARY * (len(steps) - 1)
        if trial:
            total *= TRIED
        found.append(Expectation(total, placed, forecasts, latency, whole is not None, trial))
    return sorted(found, key=lambda each: each.seconds)


def _forecast(prices: costs.Prices, learnt: Mapping[Steps, float], step: StepPlan) -> Forecast:
    took = learnt.get((step,))
    return Forecast(prices.of_step(step), False) if took is None else Forecast(took, True)


def _corrections(prices: costs.Prices, learnt: Mapping[Steps, float], before: Mapping[str, float]) -> dict[str, float]:
    """What steps took over what is predicted of them, by device: the largest step of each that is most of the model.

    What a few operations took between those of others says nothing of what a device makes of all of them.
    """
    found, largest = dict(before), dict.fromkeys(before, prices.operations * MOST)
    for steps, took in learnt.items():
        step = steps[0]
        known = len(steps) == 1 and step.device in largest
        if known and len(step.operations) > largest[step.device] and prices.can_price(step):
            running = prices.of_step(step, starting=False)
            largest[step.device] = len(step.operations)
            if running > 0:
                found[step.device] = before[step.device] * max(took - prices.starting(step.device), took / 2) / running
    return found


def _rate(offer: Offer, type: int) -> float:
    """Stated time for operands of a type against the CPU's; 1 where none is stated."""
    stated = offer.capabilities.of(type)
    return 1.0 if stated is None else stated.exec_time


def _moved(
    choices: Sequence[Choice],
    devices: Sequence[str],
    schedule: Schedule,
    steps: Sequence[StepPlan],
    terms: _Terms,
    *,
    trial: bool,
) -> list[Choice]:
    """The choices for other devices than the best for each operation by itself, with the reasons.

    trial: whether all operations are on one device so that it gets measured.
    """
    standing, found = schedule.standing(steps), []
    for choice, device in zip(choices, devices, strict=True):
        best, there = choice.device, choice.costs.get(choice.device, math.inf)
        others = {other: text for other, text in choice.others.items() if other != device}
        if choice.operation in standing:
            together, members = standing[choice.operation]
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
            if trial:
                others[best] = terms.said(there)
                why = f"trial: {device} gets measured on this model"
            found.append(
                choice._replace(
                    device=device, reason=f"{terms.said(choice.costs[device])}; {why}", others=others, kind=NEIGHBOURS
                )
            )
        else:
            found.append(choice)
    return found


def _needs(model: Model, index: int) -> tuple[str, Level | None]:
    """What of an operation decides who may have it: its extension or "", its level where it has one."""
    return extension_name(model.main.operations[index].type, model.extensions), level_needed(model, index)


def _choices(model: Model, offers: Sequence[Offer], terms: _Terms, claimed: Claimed) -> list[Choice]:
    """A choice for each operation by itself. Those of which all devices say the same share what is made of it."""
    made: dict[tuple[Any, ...], tuple[str, str, Mapping[str, str], Mapping[str, float], str]] = {}
    wanted, choices = set(live(model)), []
    for index, operation in enumerate(model.main.operations):
        if index not in wanted:
            choices.append(Choice(index, operation.type, "", UNREAD, {}, {}, kind=UNUSED))
            continue
        type = weighing(model, operation)
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
    groups: Sequence[Together | None],
) -> tuple[str, str, Mapping[str, str], Mapping[str, float], str]:
    """The device that takes an operation by itself, "" for none; why; why not each of the others; what it costs on those
    that do; the kind of reason. groups: that it is in.
    """
    operation = model.main.operations[index]
    refusals = {offer.device: offer.refusal(index, operation, *needs) for offer in offers}
    others = {device: why for device, why in refusals.items() if why}
    costs_by = {
        offer.device: terms.of(offer, index, operation, type, model.relaxed)
        for offer in offers
        if not refusals[offer.device]
    }
    best = min(costs_by, key=costs_by.__getitem__, default="")  # the first named wins a tie
    others |= {device: terms.said(cost) for device, cost in costs_by.items() if device != best}
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
    """Stated performance for an operation of that type; None where none is stated."""
    if operation.type == OperationType.IF:
        return capabilities.if_performance
    if operation.type == OperationType.WHILE:
        return capabilities.while_performance
    return capabilities.of(type, relaxed=relaxed)


def _transfers(model: Model, devices: Sequence[str]) -> int:
    """How many (operand, reading device) pairs cross from the device that wrote the operand."""
    writer = {i: n for n, operation in enumerate(model.main.operations) for i in operation.outputs}
    crossing = {
        (i, devices[n])
        for n in live(model)
        for i in model.main.operations[n].inputs
        if i in writer and devices[writer[i]] != devices[n]
    }
    return len(crossing)
