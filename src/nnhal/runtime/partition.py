"""Partitioning: a pure function from a model and what devices say to steps, with the reason for every choice.

Each operation goes to the device that states the best performance for it among those whose verdict is good; operations
that are ready together on one device become one step, so that a model crosses between devices as seldom as that allows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from nnhal.base.codes import OperandType, OperationType, Preference, operation_name
from nnhal.base.errors import InvalidArgument, UnsupportedModel
from nnhal.base.extensions import extension_name
from nnhal.base.levels import Level
from nnhal.hal.device import Capabilities, Verdict
from nnhal.model.graph import Model, operation_label
from nnhal.model.validate import validate


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

    def verdict(self, model: Model, index: int) -> Verdict:
        """The device's verdict on an operation, levels and exclusions counted."""
        if index in self.excluded:
            return Verdict(False, self.excluded_why)
        extension = extension_name(model.main.operations[index].type, model.extensions)
        if extension and extension not in self.extensions:
            return Verdict(False, f"does not support the extension {extension}")
        bound = validate(model).subgraphs[0].operations[index]
        if bound is not None and bound.level > self.level:
            return Verdict(False, f"needs level {bound.level}, the device is at {self.level}")
        return self.verdicts[index]


@dataclass(frozen=True)
class Choice:
    """Where one operation runs and why, and why not on each other device."""

    operation: int
    label: str
    device: str
    reason: str
    others: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
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
    choices = [_choose(model, offers, index, preference) for index in range(len(model.main.operations))]
    lost = [choice for choice in choices if not choice.device]
    if lost:
        listing = "; ".join(f"{c.label}: {', '.join(f'{d}: {why}' for d, why in c.others.items())}" for c in lost)
        raise UnsupportedModel(f"no device takes {len(lost)} of {len(choices)} operations: {listing}")
    steps = _group(model, [c.device for c in choices])
    return Partition(steps, tuple(choices), _transfers(model, [c.device for c in choices]))


def _choose(model: Model, offers: Sequence[Offer], index: int, preference: Preference) -> Choice:
    operation = model.main.operations[index]
    label = operation_label(operation, index)
    costs: dict[str, float] = {}
    others: dict[str, str] = {}
    for offer in offers:
        verdict = offer.verdict(model, index)
        if verdict.ok:
            costs[offer.device] = _cost(model, offer.capabilities, index, preference)
        else:
            others[offer.device] = verdict.reason or f"does not support {operation_name(operation.type)}"
    if not costs:
        return Choice(index, label, "", "", others)
    best = min(costs, key=costs.__getitem__)  # the first named wins a tie
    unit = "power" if preference == Preference.LOW_POWER else "time"
    for device, cost in costs.items():
        if device != best:
            others[device] = f"states {cost:g} of the CPU's {unit}"
    why = f"states {costs[best]:g} of the CPU's {unit}, the best" if len(costs) > 1 else "the only device that takes it"
    return Choice(index, label, best, why, others)


def _cost(model: Model, capabilities: Capabilities, index: int, preference: Preference) -> float:
    """Stated performance for the type of the operation's first tensor of a type that carries weight."""
    operation = model.main.operations[index]
    if operation.type == OperationType.IF:
        performance = capabilities.if_performance
    elif operation.type == OperationType.WHILE:
        performance = capabilities.while_performance
    else:
        types = [model.main.operands[i].type for i in (*operation.inputs, *operation.outputs)]
        weighty = [t for t in types if t not in (OperandType.INT32, OperandType.BOOL, OperandType.TENSOR_INT32)]
        stated = capabilities.of(weighty[0] if weighty else types[0], relaxed=model.relaxed)
        if stated is None:
            return float("inf")
        performance = stated
    return performance.power_usage if preference == Preference.LOW_POWER else performance.exec_time


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
