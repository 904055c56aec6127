"""Interpreted control flow: which IF and WHILE the runtime interprets, and the compilation of their subgraphs.

A device that supports an IF or WHILE with its subgraphs runs it as one operation. If only the CPU does, and devices
support operations of the subgraphs at a better price, the runtime interprets it: each subgraph is a model that is
partitioned and compiled separately, recursively. For partitioning, the runtime is a device that supports nothing else.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from nnhal.base.codes import DeviceType
from nnhal.base.errors import OperationFailed, UnsupportedModel
from nnhal.base.operands import Shape
from nnhal.base.records import Record, replace
from nnhal.base.version import __version__
from nnhal.hal.claims import SupportReport
from nnhal.hal.device import Capabilities, Hints, Prepared, Verdict
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.model.control import MOST, NamedPart, parts_of, subgraphs_inside
from nnhal.model.graph import Model
from nnhal.model.parts import live_operands
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
from nnhal.runtime.measured.families import OperationWork, work_of_operations
from nnhal.runtime.partition import Offer, Partition, seconds_as_placed

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
    predicted: dict[int, tuple[float, float]] = {}
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
        said, many = True, subgraphs_inside(model, n)
        if many > MOST:
            verdicts[n] = Verdict(False, f"there are {many} subgraphs inside, must be at most {MOST}")
            continue
        parts = parts_of(model, n)
        first, second = (_asked(compilation, n, each, settings) for each in parts)
        verdicts[n], predicted[n] = _verdict((first, second), work_of_operations(model)[n], settings, whole)
        if verdicts[n].ok:
            found[n] = first, second
    if not said:
        return []
    claims = SupportReport(model, verdicts, (), found)
    compilation.held.callback(claims.release_work)
    key = DeviceKey(device.name, device.version, RUNTIME, "none")
    label = labels([*(c.key for c in candidates), key])[-1]
    offer = Offer(label, device.level, Capabilities.uniform(1.0), verdicts, step=costs.STEP, interpreted=predicted)
    return [Candidate(device, key, offer, claims, interprets=True)]


def _takes(model: Model, offer: Offer, n: int) -> bool:
    """Whether a device supports an operation of control flow as one, alone or in a group."""
    if not offer.verdicts[n].ok and not any(n in group.operations for group in offer.groups):
        return False
    return not offer.barred(n, "", level_needed(model, n))


def _is_reference(candidate: Candidate) -> bool:
    """Whether a candidate is the reference, isolated or not."""
    alone = candidate.key.isolation == "process" and candidate.key.origin == discovery.origin_of(discovery.CPU)
    return candidate.device is discovery.cpu() or alone


def _asked(compilation: Compilation, n: int, subgraph: NamedPart, settings: CompileOptions) -> Branch:
    """Begin the compilation of a subgraph."""
    model, part = compilation.model, subgraph.part
    whole = model.referenced[subgraph.number]
    reads = tuple(whole.inputs.index(i) for i in part.inputs)
    values = validate(model).subgraphs[subgraph.number + 1].values
    shapes = tuple(None if (v := values[i]) is None else v.shape for i in whole.inputs)
    return Branch(subgraph.name, reads, shapes, Compilation(part.model, settings, (compilation, n, subgraph.name)))


def _prices(branch: Branch, offers: Sequence[Offer], found: Partition, cpu: str) -> tuple[float, float]:
    """Return the predicted seconds of one run of a subgraph as placed, and of one on the CPU."""
    model, preference = branch.compilation.model, branch.compilation.settings.preference
    interpreted = {o.device: o.interpreted for o in offers if o.interpreted}
    # Otherwise relative to the CPU
    seconds = [1.0] * len(found.choices) if found.expected else costs.seconds(model)
    whole = sum(
        interpreted[choice.device][n][1] if choice.device in interpreted else seconds[n] * choice.costs.get(cpu, 1.0)
        for n, choice in enumerate(found.choices)
        if choice.device
    )
    return costs.RUN + seconds_as_placed(model, offers, found, preference), whole


def _verdict(
    branches: tuple[Branch, Branch], work: OperationWork, settings: CompileOptions, whole: Sequence[Candidate]
) -> tuple[Verdict, tuple[float, float]]:
    """Return whether the runtime interprets an operation, and its predicted seconds, as in `Offer.interpreted`.

    whole: the CPU, if it supports the operation with its subgraphs.
    """
    used: dict[str, list[str]] = {}
    alone: set[str | None] = set()  # None for the runtime
    own = elsewhere = 0.0
    cpu = whole[0].offer.device if whole else ""
    for each, (runs, _) in zip(branches, work.inside, strict=True):
        by_label = {c.offer.device: c for c in each.compilation.candidates}
        offers, placer = each.compilation.placer()
        try:
            found, _ = each.compilation.partition(offers, placer)
        except UnsupportedModel as error:
            return Verdict(False, f"{each.name}: {error}"), (0.0, 0.0)
        used[each.name] = list(dict.fromkeys(step.device for step in found.steps))
        alone.update(None if by_label[device].interprets else device for device in used[each.name])
        price, other = _prices(each, offers, found, cpu)
        own, elsewhere = own + runs * price, elsewhere + runs * other
    predicted = own, elsewhere
    if whole and settings.strategy.single and (len(alone) > 1 or None in alone):
        return Verdict(False, f"{cpu} takes it whole, and all is to be on one device"), predicted
    if whole and own >= elsewhere:
        return Verdict(False, f"{cpu} takes it whole, at the best price for all inside"), predicted
    why = f"only {cpu} supports it as one" if whole else "no device supports it as one"
    where = ", ".join(f"{name} on {' and '.join(devices)}" for name, devices in used.items())
    return Verdict(True, f"{why}; {where}"), predicted
