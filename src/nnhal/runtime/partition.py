"""Partitioning: a pure function from a model and what devices say to steps, with the reason for every choice.

Each operation goes to the device that states the best performance for it among those whose verdict is good; operations
that are ready together on one device become one step, so that a model crosses between devices as seldom as that allows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, NamedTuple

from nnhal.base.codes import OperandType, OperationType, Preference, operation_name
from nnhal.base.errors import InvalidArgument, UnsupportedModel
from nnhal.base.extensions import extension_name
from nnhal.base.levels import Level
from nnhal.hal.device import Capabilities, Performance, Verdict
from nnhal.model.graph import Model, Operation, operation_label
from nnhal.model.validate import validate

LIGHT = OperandType.INT32, OperandType.BOOL, OperandType.TENSOR_INT32  # types of arguments beside the data


@dataclass(frozen=True)
class Offer:
    """What one device says of one model: a verdict for each operation, its stated performance and its level.

    device: a label that no other offer has.
    """

    device: str
    level: Level
    capabilities: Capabilities
    verdicts: Sequence[Verdict]
    extensions: Sequence[str] = ()
    excluded: frozenset[int] = frozenset()  # operations taken from it after it failed to prepare them
    excluded_why: str = ""

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
    """Where one operation runs and why, and why not on each other device."""

    operation: int
    type: int  # the operation's
    device: str
    reason: str
    others: Mapping[str, str]

    @property
    def label(self) -> str:
        """The operation for messages."""
        return operation_label(self.type, self.operation)


@dataclass(frozen=True, slots=True)
class StepPlan:
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
    """Place every operation. UnsupportedModel lists all operations that no device takes, with each device's reason."""
    labels = [offer.device for offer in offers]
    if len(set(labels)) < len(labels):
        raise InvalidArgument(f"offers: devices are {', '.join(labels)}, must have labels that differ")
    choices = _choices(model, offers, preference)
    lost = [choice for choice in choices if not choice.device]
    if lost:
        listing = "; ".join(f"{c.label}: {', '.join(f'{d}: {why}' for d, why in c.others.items())}" for c in lost)
        raise UnsupportedModel(f"no device takes {len(lost)} of {len(choices)} operations: {listing}")
    devices = [choice.device for choice in choices]
    return Partition(_group(model, devices), tuple(choices), _transfers(model, devices))


def _choices(model: Model, offers: Sequence[Offer], preference: Preference) -> list[Choice]:
    """A choice for each operation. Those of which all devices say the same share what is made of it."""
    made: dict[tuple[Any, ...], tuple[str, str, Mapping[str, str]]] = {}
    bound = validate(model).subgraphs[0].operations
    choices = []
    for index, operation in enumerate(model.main.operations):
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
) -> tuple[str, str, Mapping[str, str]]:
    """The device that takes an operation, "" for none; why; and why not each of the others."""
    operation = model.main.operations[index]
    extension = extension_name(operation.type, model.extensions)
    refusals = {offer.device: offer.refusal(index, operation, extension, level) for offer in offers}
    others = {device: why for device, why in refusals.items() if why}
    power = preference == Preference.LOW_POWER
    costs: dict[str, float] = {}
    for offer in offers:
        if not refusals[offer.device]:
            stated = _stated(offer.capabilities, operation, type, model.relaxed)
            costs[offer.device] = math.inf if stated is None else stated.power_usage if power else stated.exec_time
    if not costs:
        return "", "", others
    best = min(costs, key=costs.__getitem__)  # the first named wins a tie
    unit = "of the CPU's power" if power else "of the CPU's time"
    others |= {device: f"states {cost:g} {unit}" for device, cost in costs.items() if device != best}
    if len(costs) > 1:
        return best, f"states {costs[best]:g} {unit}, the best", others
    return best, "the only device that takes it" if len(offers) > 1 else "the only device asked", others


def _stated(capabilities: Capabilities, operation: Operation, type: int, relaxed: bool) -> Performance | None:
    """Stated performance for an operation of that type; None where none is stated."""
    if operation.type == OperationType.IF:
        return capabilities.if_performance
    if operation.type == OperationType.WHILE:
        return capabilities.while_performance
    return capabilities.of(type, relaxed=relaxed)


def _group(model: Model, devices: Sequence[str]) -> tuple[StepPlan, ...]:
    """Steps: run all that is ready on one device before the next gets its turn."""
    operations = model.main.operations
    writer = {i: n for n, operation in enumerate(operations) for i in operation.outputs}
    readers: list[list[int]] = [[] for _ in operations]
    missing = [0] * len(operations)
    for n, operation in enumerate(operations):
        for m in {writer[i] for i in operation.inputs if i in writer}:
            readers[m].append(n)
            missing[n] += 1
    ready: dict[str, list[int]] = {}  # heaps: the least comes first
    for n, count in enumerate(missing):
        if not count:
            ready.setdefault(devices[n], []).append(n)
    steps = []
    while any(ready.values()):
        device = min((d for d in ready if ready[d]), key=lambda d: ready[d][0])
        queue, members = ready[device], []
        while queue:
            n = heappop(queue)
            members.append(n)
            for reader in readers[n]:
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
        for n, operation in enumerate(model.main.operations)
        for i in operation.inputs
        if i in writer and devices[writer[i]] != devices[n]
    }
    return len(crossing)
