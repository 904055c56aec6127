"""Partitioning: a pure function from a model and what devices say to steps, with the reason for every choice.

Each operation goes to the device that states the best performance for it among those whose verdict is good, unless a step
of its own there would cost more than it saves (`costs`); operations that are ready together on one device become one step,
so that a model crosses between devices as seldom as that allows. Operations whose results nobody reads run nowhere.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Any, NamedTuple

from nnhal.base.codes import OperandType, OperationType, Preference, operation_name
from nnhal.base.errors import InvalidArgument, UnsupportedModel
from nnhal.base.extensions import extension_name
from nnhal.base.levels import Level
from nnhal.hal.device import Capabilities, Performance, Verdict
from nnhal.model.graph import Model, Operation, operation_label
from nnhal.model.layouts import LaidOut
from nnhal.model.parts import live
from nnhal.model.validate import validate
from nnhal.runtime import costs

UNREAD = "nobody reads what it gives, so it does not run"
LIGHT = OperandType.INT32, OperandType.BOOL, OperandType.TENSOR_INT32  # types of arguments beside the data


@dataclass(frozen=True)
class Offer:
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

    def refusal(self, index: int, operation: Operation, extension: str, level: Level | None) -> str:
        """Why the device does not take an operation of that extension and level, exclusions counted; "" where it does."""
        if index in self.excluded:
            return self.excluded_why or "is excluded"
        if extension and extension not in self.extensions:
            return f"does not support the extension {extension}"
        if level is not None and level > self.level:
            return f"needs level {level}, the device is at {self.level}"
        verdict = self.verdicts[index]
        return "" if verdict.ok else verdict.reason or f"does not support {operation_name(operation.type)}"


class Choice(NamedTuple):
    """Where one operation runs and why, and why not on each other device. device: "" where it does not run."""

    operation: int
    type: int  # the operation's
    device: str
    reason: str
    others: Mapping[str, str]
    costs: Mapping[str, float]  # stated, by those that take it

    @property
    def label(self) -> str:
        """The operation for messages."""
        return operation_label(self.type, self.operation)


class StepPlan(NamedTuple):
    """Operations that run together on one device."""

    device: str
    operations: tuple[int, ...]


@dataclass(frozen=True)
class Partition:
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
    choices = _choices(model, offers, preference)
    lost = [choice for choice in choices if not choice.device and choice.reason != UNREAD]
    if lost:
        listing = "; ".join(f"{c.label}: {', '.join(f'{d}: {why}' for d, why in c.others.items())}" for c in lost)
        raise UnsupportedModel(f"no device takes {len(lost)} of {len(choices)} operations: {listing}")
    group = partial(_group, _order(model))
    devices = [choice.device for choice in choices]
    steps = group(devices)
    transposed = any(offer.laid is not None and offer.laid.inserted for offer in offers)
    if (len(steps) > 1 or transposed) and preference != Preference.LOW_POWER:
        choices = _with_fewer_steps(model, offers, choices, group)
        devices = [choice.device for choice in choices]
        steps = group(devices)
    return Partition(steps, tuple(choices), _transfers(model, devices))


def _with_fewer_steps(
    model: Model, offers: Sequence[Offer], choices: Sequence[Choice], group: Callable[[Sequence[str]], costs.Groups]
) -> list[Choice]:
    """The choices at the lowest price that was found, steps and crossings counted. group: the steps of an assignment."""
    times = []
    laid = {offer.device: offer.laid for offer in offers if offer.laid is not None}
    more = {device: costs.transposing(each) for device, each in laid.items()}
    for choice, seconds in zip(choices, costs.seconds(model), strict=True):
        known = {device: cost for device, cost in choice.costs.items() if cost < math.inf}
        times.append(
            {
                device: cost * (seconds + more.get(device, {}).get(choice.operation, 0))
                for device, cost in (known or {choice.device: 1.0}).items()
            }
        )
    turned = {
        offer.device: {
            i: seconds * _rate(offer, model.main.operands[i].type)
            for i, seconds in costs.turning(model, offer.laid).items()
        }
        for offer in offers
        if offer.laid is not None
    }
    prices = costs.Prices(model, times, {o.device: o.step for o in offers}, group, turned)
    first = [choice.device for choice in choices]
    starts = [first, *([o.device if o.device in t else d for t, d in zip(times, first, strict=True)] for o in offers)]
    _, devices = min((prices.lowered(start) for start in starts), key=lambda found: found[0])
    return [_moved(choice, device) for choice, device in zip(choices, devices, strict=True)]


def _rate(offer: Offer, type: int) -> float:
    """Stated time for operands of a type against the CPU's; 1 where none is stated."""
    stated = offer.capabilities.of(type)
    return 1.0 if stated is None else stated.exec_time


def _moved(choice: Choice, device: str) -> Choice:
    if device == choice.device:
        return choice
    stated, there = choice.costs[device], choice.costs[choice.device]
    why = f"a step of its own on {choice.device}, which states {there:g}, would cost more than it saves"
    others = {other: text for other, text in choice.others.items() if other != device}
    others[choice.device] = f"states {there:g} of the CPU's time, which a step of its own would not be worth"
    return choice._replace(device=device, reason=f"states {stated:g} of the CPU's time; {why}", others=others)


def _choices(model: Model, offers: Sequence[Offer], preference: Preference) -> list[Choice]:
    """A choice for each operation. Those of which all devices say the same share what is made of it."""
    made: dict[tuple[Any, ...], tuple[str, str, Mapping[str, str], Mapping[str, float]]] = {}
    bound, wanted = validate(model).subgraphs[0].operations, set(live(model))
    choices = []
    for index, operation in enumerate(model.main.operations):
        if index not in wanted:
            choices.append(Choice(index, operation.type, "", UNREAD, {}, {}))
            continue
        known, type = bound[index], _type(model, operation)
        level = None if known is None else known.level
        said = [None if index in offer.excluded else offer.verdicts[index] for offer in offers]
        what = (operation.type, type, level, *said)
        if what not in made:
            made[what] = _best(model, offers, index, type, level, preference)
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
    model: Model, offers: Sequence[Offer], index: int, type: int, level: Level | None, preference: Preference
) -> tuple[str, str, Mapping[str, str], Mapping[str, float]]:
    """The device that takes an operation, "" for none; why; why not each of the others; what is stated by those that do."""
    operation = model.main.operations[index]
    extension = extension_name(operation.type, model.extensions)
    refusals = {offer.device: offer.refusal(index, operation, extension, level) for offer in offers}
    others = {device: why for device, why in refusals.items() if why}
    power = preference == Preference.LOW_POWER
    stated_by: dict[str, float] = {}
    for offer in offers:
        if not refusals[offer.device]:
            figures = _stated(offer.capabilities, operation, type, model.relaxed)
            stated_by[offer.device] = (
                math.inf if figures is None else figures.power_usage if power else figures.exec_time
            )
    if not stated_by:
        return "", "", others, stated_by
    best = min(stated_by, key=stated_by.__getitem__)  # the first named wins a tie
    unit = "of the CPU's power" if power else "of the CPU's time"
    others |= {device: f"states {cost:g} {unit}" for device, cost in stated_by.items() if device != best}
    if len(stated_by) > 1:
        return best, f"states {stated_by[best]:g} {unit}, the best", others, stated_by
    return best, "the only device that takes it" if len(offers) > 1 else "the only device asked", others, stated_by


def _stated(capabilities: Capabilities, operation: Operation, type: int, relaxed: bool) -> Performance | None:
    """Stated performance for an operation of that type; None where none is stated."""
    if operation.type == OperationType.IF:
        return capabilities.if_performance
    if operation.type == OperationType.WHILE:
        return capabilities.while_performance
    return capabilities.of(type, relaxed=relaxed)


class Order(NamedTuple):
    """What has to run before what. readers: by operation, those that read what it gives; before: how many it waits for."""

    readers: Mapping[int, Sequence[int]]
    before: Mapping[int, int]


def _order(model: Model) -> Order:
    operations = {n: model.main.operations[n] for n in live(model)}
    writer = {i: n for n, operation in operations.items() for i in operation.outputs}
    readers: dict[int, list[int]] = {n: [] for n in operations}
    before = dict.fromkeys(operations, 0)
    for n, operation in operations.items():
        for m in {writer[i] for i in operation.inputs if i in writer}:
            readers[m].append(n)
            before[n] += 1
    return Order(readers, before)


def _group(order: Order, devices: Sequence[str]) -> tuple[StepPlan, ...]:
    """Steps: run all that is ready on one device before the next gets its turn."""
    missing = dict(order.before)
    ready: dict[str, list[int]] = {}  # heaps: the least comes first
    for n, count in missing.items():
        if not count:
            ready.setdefault(devices[n], []).append(n)
    steps = []
    while any(ready.values()):
        device = min((d for d in ready if ready[d]), key=lambda d: ready[d][0])
        queue, members = ready[device], []
        while queue:
            n = heappop(queue)
            members.append(n)
            for reader in order.readers[n]:
                missing[reader] -= 1
                if not missing[reader]:
                    heappush(ready.setdefault(devices[reader], []), reader)
        steps.append(StepPlan(device, tuple(sorted(members))))
    return tuple(steps)


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
