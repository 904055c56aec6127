"""Partitioning: a pure function from a model and what devices say to steps, with the reason for every choice.

Each operation goes to the device that states the best performance for it among those whose verdict is good, unless a step
of its own there would cost more than it saves (`costs`); operations that are ready together on one device become one step,
so that a model crosses between devices as seldom as that allows (`schedule`). What a device takes in a group only, it gets
where enough of the group stand in one step. Operations whose results nobody reads run nowhere.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nnhal.base.codes import OperandType, OperationType, Preference, operation_name
from nnhal.base.errors import InvalidArgument, UnsupportedModel
from nnhal.base.extensions import extension_name
from nnhal.base.levels import Level
from nnhal.base.records import Record
from nnhal.hal.device import Capabilities, OperationGroup, Performance, Verdict
from nnhal.model.graph import Model, Operation, operation_label
from nnhal.model.layouts import LaidOut
from nnhal.model.parts import live
from nnhal.model.validate import level_needed
from nnhal.runtime import costs
from nnhal.runtime.schedule import Claimed, Schedule, StepPlan, Together

UNREAD = "nobody reads what it gives, so it does not run"
LIGHT = OperandType.INT32, OperandType.BOOL, OperandType.TENSOR_INT32  # types of arguments beside the data


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
    as_one: float = 0.0  # stated for those together

    @property
    def label(self) -> str:
        """The operation for messages."""
        return operation_label(self.type, self.operation)


class Partition(Record, frozen=True):
    """Steps in execution order, a choice for each operation, and the number of operands that cross between devices."""

    steps: tuple[StepPlan, ...]
    choices: tuple[Choice, ...]
    transfers: int


def partition(
    model: Model, offers: Sequence[Offer], preference: Preference = Preference.FAST_SINGLE_ANSWER
) -> Partition:
    """Place every operation that is `live`. UnsupportedModel lists all that no device takes, with each device's reason."""
    labels = [offer.device for offer in offers]
    if len(set(labels)) < len(labels):
        raise InvalidArgument(f"offers: devices are {', '.join(labels)}, must have labels that differ")
    claimed = _claimed(model, offers, preference)
    choices = _choices(model, offers, preference, claimed)
    grouped = {n for claims in claimed.values() for n in claims}
    _refuse([c for c in choices if not c.device and c.reason != UNREAD and c.operation not in grouped], len(choices))
    schedule = Schedule(model, claimed)
    devices = [choice.device for choice in choices]
    steps = schedule.steps(devices)
    transposed = any(offer.laid is not None and offer.laid.inserted for offer in offers)
    if grouped or ((len(steps) > 1 or transposed) and preference != Preference.LOW_POWER):
        devices = _search(model, offers, choices, schedule, lower=preference != Preference.LOW_POWER)
        steps = schedule.steps(devices)
        choices = _moved(choices, devices, schedule, steps, _unit(preference))
    return Partition(steps, tuple(_noted(choices, offers)), _transfers(model, devices))


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
        known = {device: cost for device, cost in choice.costs.items() if cost < math.inf}
        if not known and (choice.device or choice.reason == UNREAD):
            known = {choice.device: 1.0}
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
    first = [choice.device for choice in choices]
    packed = prices.packed(first) if schedule.claimed else first
    only = [choice for choice, times in zip(choices, alone, strict=True) if not times]  # only in groups
    starts = [packed] if only or packed == first else [packed, first]
    for offer in offers:
        claims = schedule.claimed.get(offer.device, {})
        takes = [offer.device in t or n in claims for n, t in enumerate(alone)]
        starts.append([offer.device if mine else d for mine, d in zip(takes, packed, strict=True)])
    if lower:
        price, devices = min((prices.lowered(start) for start in starts), key=lambda found: found[0])
    else:
        begun = next(filter(None, map(prices.settled, starts)), None)
        price, devices = (math.inf, first) if begun is None else (0.0, begun[0])
    if price == math.inf:
        _refuse(only, len(choices))
    return devices


def _rate(offer: Offer, type: int) -> float:
    """Stated time for operands of a type against the CPU's; 1 where none is stated."""
    stated = offer.capabilities.of(type)
    return 1.0 if stated is None else stated.exec_time


def _moved(
    choices: Sequence[Choice], devices: Sequence[str], schedule: Schedule, steps: Sequence[StepPlan], unit: str
) -> list[Choice]:
    """The choices for other devices than the best for each operation by itself, with the reasons."""
    standing, found = schedule.standing(steps), []
    for choice, device in zip(choices, devices, strict=True):
        best, there = choice.device, choice.costs.get(choice.device)
        others = {other: text for other, text in choice.others.items() if other != device}
        if choice.operation in standing:
            together, members = standing[choice.operation]
            why = f"one of {len(members)} that {device} runs as one, at {together.cost:g} {unit}"
            if best and best != device:
                others[best] = f"states {there:g} {unit}"
            found.append(
                choice._replace(device=device, reason=why, others=others, together=members, as_one=together.cost)
            )
        elif device != best:
            why = f"a step of its own on {best}, which states {there:g}, would cost more than it saves"
            others[best] = f"states {there:g} {unit}, which a step of its own would not be worth"
            why = f"states {choice.costs[device]:g} {unit}; {why}"
            found.append(choice._replace(device=device, reason=why, others=others))
        else:
            found.append(choice)
    return found


def _needs(model: Model, index: int) -> tuple[str, Level | None]:
    """What of an operation decides who may have it: its extension or "", its level where it has one."""
    return extension_name(model.main.operations[index].type, model.extensions), level_needed(model, index)


def _choices(model: Model, offers: Sequence[Offer], preference: Preference, claimed: Claimed) -> list[Choice]:
    """A choice for each operation by itself. Those of which all devices say the same share what is made of it."""
    made: dict[tuple[Any, ...], tuple[str, str, Mapping[str, str], Mapping[str, float]]] = {}
    wanted, choices = set(live(model)), []
    for index, operation in enumerate(model.main.operations):
        if index not in wanted:
            choices.append(Choice(index, operation.type, "", UNREAD, {}, {}))
            continue
        type = _type(model, operation)
        said = [None if index in offer.excluded else offer.verdicts[index] for offer in offers]
        together = [claims.get(index) for claims in claimed.values()]
        needs = _needs(model, index)
        what = (operation.type, type, *needs, *said, *together)
        if what not in made:
            made[what] = _best(model, offers, index, type, needs, preference, together)
        choices.append(Choice(index, operation.type, *made[what]))
    return choices


def _type(model: Model, operation: Operation) -> int:
    """The type of the operation's first operand of a type that carries weight, or of its first."""
    operands = model.main.operands
    places = (*operation.inputs, *operation.outputs)
    for place in places:
        if operands[place].type not in LIGHT:
            return operands[place].type
    return operands[places[0]].type


def _best(
    model: Model,
    offers: Sequence[Offer],
    index: int,
    type: int,
    needs: tuple[str, Level | None],
    preference: Preference,
    groups: Sequence[Together | None],
) -> tuple[str, str, Mapping[str, str], Mapping[str, float]]:
    """The device that takes an operation by itself, "" for none; why; why not each of the others; what is stated by those
    that do. groups: that it is in.
    """
    operation = model.main.operations[index]
    refusals = {offer.device: offer.refusal(index, operation, *needs) for offer in offers}
    unit, power = _unit(preference), preference == Preference.LOW_POWER
    others = {device: why for device, why in refusals.items() if why}
    stated_by: dict[str, float] = {}
    for offer in offers:
        if not refusals[offer.device]:
            figures = _stated(offer.capabilities, operation, type, model.relaxed)
            stated_by[offer.device] = (
                math.inf if figures is None else figures.power_usage if power else figures.exec_time
            )
    best = min(stated_by, key=stated_by.__getitem__, default="")  # the first named wins a tie
    others |= {device: f"states {cost:g} {unit}" for device, cost in stated_by.items() if device != best}
    for group in groups:
        if group is not None and group.device != best:
            said = f"{others[group.device]}, and {group.cost:g}" if group.device in stated_by else "takes it only"
            others[group.device] = f"{said} as one of {group.at_least} or more"
    if not stated_by:
        return "", "", others, stated_by
    if len(stated_by) > 1:
        return best, f"states {stated_by[best]:g} {unit}, the best", others, stated_by
    return best, "the only device that takes it" if len(offers) > 1 else "the only device asked", others, stated_by


def _unit(preference: Preference) -> str:
    """What stated performance is compared with."""
    return "of the CPU's power" if preference == Preference.LOW_POWER else "of the CPU's time"


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
