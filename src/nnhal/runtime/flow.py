"""Interpreted control flow: which IF and WHILE the runtime interprets, and the compilation of their subgraphs.

A device that supports an IF or WHILE with its subgraphs runs it as one operation. If only the CPU does, and devices
support operations of the subgraphs at a better price, the runtime interprets it: each subgraph is a model that is
partitioned and compiled separately, recursively. For partitioning, the runtime is a device that supports nothing else.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from nnhal.base.codes import DeviceType, Lifetime, OperationType, Preference
from nnhal.base.errors import InvalidModel, OperationFailed, UnsupportedModel
from nnhal.base.operands import Shape
from nnhal.base.records import Record, replace
from nnhal.base.version import __version__
from nnhal.hal.claims import SupportReport
from nnhal.hal.device import Capabilities, Hints, Prepared, Verdict
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.model.graph import Model, Operation, Subgraph
from nnhal.model.parts import Part, branch, live_operands
from nnhal.model.validate import level_needed, validate
from nnhal.runtime import costs, discovery
from nnhal.runtime.compilation import (
    CONTROL_FLOW,
    Candidate,
    Compilation,
    CompileOptions,
    InnerPlan,
    Interpreting,
)
from nnhal.runtime.interpreter import PreparedFlow
from nnhal.runtime.isolation import RUNTIME, DeviceKey, labels
from nnhal.runtime.partition import Choice, Offer, Partition

NAMES = {OperationType.IF: ("then", "else"), OperationType.WHILE: ("condition", "body")}
# Subgraphs that are compiled for one operation, including nested ones; one with several references counts for each
MOST = 256
_NO = Verdict(False, "runs nothing but control flow")


class Branch(Record, frozen=True):
    """A subgraph that may be compiled separately, and its compilation. reads, shapes: as in `InnerPlan`."""

    name: str
    reads: tuple[int, ...]
    shapes: tuple[Shape | None, ...]
    compilation: Compilation


Branches = Mapping[int, tuple[Branch, Branch]]  # by the operation that refers to them


class ControlFlow(Interpreting):
    """The runtime as a device that runs control flow, for one compilation."""

    name, version, type = "runtime", __version__, DeviceType.OTHER
    timely = True

    def supports(self, model: Model) -> list[Verdict]:
        """Reject everything: `with_interpreter` decides, by the answers of other devices."""
        return [_NO] * len(model.main.operations)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        """Compile the subgraphs of all operations of a part."""
        known = hints.worked_out
        branches: Branches = {} if known is None else known.given
        inside = []
        with ExitStack() as undo:
            for n in () if known is None else known.operations:
                for each in branches[n]:
                    own = undo.enter_context(ExitStack())
                    plan = each.compilation.plan(own)
                    inside.append(InnerPlan(n, each.name, plan.without_constants(), each.reads, each.shapes))
            prepared = PreparedFlow(model, inside)
            undo.pop_all()
        return prepared

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        """Raise OperationFailed: the runtime has no device memory."""
        raise OperationFailed("it interprets control flow and has no device memory")


def with_interpreter(compilation: Compilation) -> list[Candidate]:
    """Return the runtime as a candidate for control flow of a model, if it supports some."""
    model, candidates, settings = compilation.model, compilation.candidates, compilation.settings
    settings = replace(settings, strategy=replace(settings.strategy, inside=True))
    device, verdicts = ControlFlow(), [_NO] * len(model.main.operations)
    found: dict[int, tuple[Branch, Branch]] = {}
    prices: dict[int, tuple[float, float]] = {}
    said = False
    for n in live_operands(model):
        if model.main.operations[n].type not in CONTROL_FLOW:
            continue
        whole = [c for c in candidates if _takes(model, c.offer, n)]
        other = next((c for c in whole if not _is_reference(c)), None)
        if other is not None:
            verdicts[n] = Verdict(False, f"{other.offer.device} takes it whole")
            continue
        if all(map(_is_reference, candidates)):
            continue
        said, many = True, _many(model, n)
        if many > MOST:
            verdicts[n] = Verdict(False, f"there are {many} subgraphs inside, must be at most {MOST}")
            continue
        parts = parts_of(model, n)
        first, second = (_asked(compilation, n, each, settings) for each in parts)
        verdicts[n], prices[n] = _verdict((first, second), settings, whole)
        if verdicts[n].ok:
            found[n] = first, second
    if not said:
        return []
    claims = SupportReport(model, verdicts, (), found)
    compilation.held.callback(claims.release_work)
    key = DeviceKey(device.name, device.version, RUNTIME, "none")
    label = labels([*(c.key for c in candidates), key])[-1]
    offer = Offer(label, device.level, Capabilities.uniform(1.0), verdicts, step=0.0)
    return [Candidate(device, key, offer, claims, interprets=True, prices=prices)]


def _takes(model: Model, offer: Offer, n: int) -> bool:
    """Whether a device supports an operation of control flow as one, alone or in a group."""
    if not offer.verdicts[n].ok and not any(n in group.operations for group in offer.groups):
        return False
    return not offer.barred(n, "", level_needed(model, n))


def _is_reference(candidate: Candidate) -> bool:
    """Whether a candidate is the reference, isolated or not."""
    alone = candidate.key.isolation == "process" and candidate.key.origin == discovery.origin_of(discovery.CPU)
    return candidate.device is discovery.cpu() or alone


def _many(model: Model, n: int) -> int:
    """Count the subgraphs inside an operation; one with several references counts for each."""
    known: dict[int, int] = {}

    def of(subgraph: Subgraph, operation: Operation) -> int:
        inside = [
            o.location.offset for i in operation.inputs if (o := subgraph.operands[i]).lifetime == Lifetime.SUBGRAPH
        ]
        for number in inside:
            if number not in known:
                inner = model.referenced[number]
                known[number] = 1 + sum(of(inner, each) for each in inner.operations)
        return sum(known[number] for number in inside)

    return of(model.main, model.main.operations[n])


class NamedPart(Record, frozen=True):
    """A subgraph as a model. name: its role for the operation. number: its number in the whole model."""

    name: str
    number: int
    part: Part


def parts_of(model: Model, n: int) -> tuple[NamedPart, NamedPart]:
    """Return both subgraphs of an operation of control flow, with the known shapes of their inputs.

    A loop's value has the same shape in each iteration if the body returns the shape that it receives.
    """
    main, operation, values = model.main, model.main.operations[n], validate(model).subgraphs[0].values
    loop = operation.type == OperationType.WHILE
    (one, other), given = (operation.inputs[:2], operation.inputs[2:]) if loop else (
        operation.inputs[1:3], operation.inputs[3:],
    )  # fmt: skip
    numbers = [main.operands[i].location.offset for i in (one, other)]
    known = [None if (v := values[i]) is None else v.shape for i in given]
    for attempt in (_carried(model, numbers[1], known) if loop else known, [None] * len(known)):
        parts = [branch(model, number, attempt) for number in numbers]
        try:
            for part in parts:
                validate(part.model)
        except InvalidModel:  # apparently one that never runs
            continue
        first, second = map(NamedPart, NAMES[OperationType(operation.type)], numbers, parts)
        return first, second
    raise AssertionError("the subgraphs' declarations were valid")


def _carried(model: Model, body: int, known: Sequence[Shape | None]) -> list[Shape | None]:
    """Return the constant shapes of a loop's values, as far as they are known."""
    found = list(known)
    changed = len(model.referenced[body].outputs)
    while True:
        part = branch(model, body, found)
        try:
            values = validate(part.model).subgraphs[0].values
        except InvalidModel:
            return [None] * changed + found[changed:]
        place = dict(zip(part.inputs, part.model.main.inputs, strict=True))
        moved = []
        for n, (i, made) in enumerate(zip(model.referenced[body].inputs, part.model.main.outputs, strict=False)):
            end = values[made]
            start = values[place[i]] if i in place else None
            stays = found[n] if start is None else start.shape
            if found[n] is not None and (end is None or end.shape != stays):
                moved.append(n)
        if not moved:
            return found
        for n in moved:
            found[n] = None


def _asked(compilation: Compilation, n: int, subgraph: NamedPart, settings: CompileOptions) -> Branch:
    """Begin the compilation of a subgraph."""
    model, part = compilation.model, subgraph.part
    whole = model.referenced[subgraph.number]
    reads = tuple(whole.inputs.index(i) for i in part.inputs)
    values = validate(model).subgraphs[subgraph.number + 1].values
    shapes = tuple(None if (v := values[i]) is None else v.shape for i in whole.inputs)
    return Branch(subgraph.name, reads, shapes, Compilation(part.model, settings, (compilation, n, subgraph.name)))


def _prices(branch: Branch, found: Partition, preference: Preference, cpu: str) -> tuple[float, float]:
    """Return the cost of one run of a subgraph as placed, with the fixed cost of each partition, and of one on the CPU."""
    candidates, model = branch.compilation.candidates, branch.compilation.model
    starting = {c.offer.device: c.offer.step for c in candidates}
    inside = {c.offer.device: c.prices for c in candidates if c.interprets}
    # Otherwise relative to the CPU
    seconds = [1.0] * len(found.choices) if found.forecasts else costs.seconds(model)
    own = whole = 0.0
    for choice in found.choices:
        if choice.device in inside:
            there, cost = inside[choice.device][choice.operation]
            own, whole = own + there, whole + cost
        elif choice.device:
            own += seconds[choice.operation] * _cost(choice, choice.device)
            whole += seconds[choice.operation] * _cost(choice, cpu)
    if preference != Preference.LOW_POWER:
        own += sum(starting[step.device] for step in found.steps) + found.transfers * costs.CROSSING
    return own, whole


def _cost(choice: Choice, device: str) -> float:
    """Return the cost of an operation, or its group, on a device; that of the CPU if it declares none."""
    stated = choice.as_one if choice.together and device == choice.device else choice.costs.get(device, 1.0)
    return stated if stated < math.inf else 1.0


def _verdict(
    branches: tuple[Branch, Branch], settings: CompileOptions, whole: Sequence[Candidate]
) -> tuple[Verdict, tuple[float, float]]:
    """Return whether the runtime interprets an operation, and the sums of `_prices` over its subgraphs.

    whole: the CPU, if it supports the operation with its subgraphs.
    """
    used: dict[str, list[str]] = {}
    alone: set[str | None] = set()  # None for the runtime
    own = elsewhere = 0.0
    for each in branches:
        by_label = {c.offer.device: c for c in each.compilation.candidates}
        try:
            found, _ = each.compilation.partition(*each.compilation.placer())
        except UnsupportedModel as error:
            return Verdict(False, f"{each.name}: {error}"), (0.0, 0.0)
        used[each.name] = list(dict.fromkeys(step.device for step in found.steps))
        alone.update(None if by_label[device].interprets else device for device in used[each.name])
        if whole:
            price, other = _prices(each, found, settings.preference, whole[0].offer.device)
            own, elsewhere = own + price, elsewhere + other
    if whole and settings.strategy.single and (len(alone) > 1 or None in alone):
        return Verdict(False, f"{whole[0].offer.device} takes it whole, and all is to be on one device"), (
            own,
            elsewhere,
        )
    if whole and own >= elsewhere:
        return Verdict(False, f"{whole[0].offer.device} takes it whole, at the best price for all inside"), (
            own,
            elsewhere,
        )
    why = f"only {whole[0].offer.device} supports it as one" if whole else "no device supports it as one"
    where = ", ".join(f"{name} on {' and '.join(devices)}" for name, devices in used.items())
    return Verdict(True, f"{why}; {where}"), (own, elsewhere)
