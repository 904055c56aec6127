"""Compilation: ask the devices, partition, cut, prepare each partition on its device, and fall back by the contract."""

import os
import sys
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Literal

from nnhal.base import trace
from nnhal.base.answers import raise_application_error
from nnhal.base.codes import OperationType, Preference, Priority
from nnhal.base.errors import (
    DeadObject,
    DeviceUnavailable,
    InvalidArgument,
    InvalidModel,
    MissedDeadline,
    NnhalError,
    ResourceExhausted,
    UnsupportedModel,
    as_error,
    error_text,
)
from nnhal.base.log import logger
from nnhal.base.operands import Array, Shape
from nnhal.base.records import Record, field, replace
from nnhal.base.time import run_with_deadline
from nnhal.hal.answers import can_be_exact, driver_capabilities
from nnhal.hal.chain import PreparedChain, release_weights
from nnhal.hal.claims import SupportReport, consider_support
from nnhal.hal.device import EXACT, NUMERICS, Capabilities, Device, Hints, Prepared, Verdict, identity_of, layout_of
from nnhal.hal.request import Request, Signature
from nnhal.hal.utilities import is_extension
from nnhal.model.graph import Model
from nnhal.model.layouts import ModelInLayout, with_layout
from nnhal.model.parts import Part, extract_part, live_operands, operations_reached
from nnhal.model.validate import release_constants, validate
from nnhal.runtime import costs, discovery
from nnhal.runtime.cache.wanted import NOT_KEPT, CacheEntry, CacheOutcome, CacheSettings, CompilationCache, NoCache
from nnhal.runtime.captured import CompilationCapture, PreparationCapture, running
from nnhal.runtime.configuration import Configuration, Configured
from nnhal.runtime.deadline_executor import DeadlineExecutor
from nnhal.runtime.isolation import DeviceKey, key_of, labels
from nnhal.runtime.partition import Offer, Partition
from nnhal.runtime.placement import ExecutionStats, PlacedBranch, Placement, StepLayout
from nnhal.runtime.placer import PlacementKey, Placer, with_measurements
from nnhal.runtime.strategies import Strategy, log_ignored_rules, manual_placement

Fallback = Literal["allow", "warn", "forbid"]
Numerics = Literal["fast", "exact"]
CONTROL_FLOW = frozenset((OperationType.IF, OperationType.WHILE))
GONE = DeviceUnavailable, DeadObject, ResourceExhausted  # the driver could not be asked
ROUNDS = 4  # of new placements after single verdicts; then a refusal counts for its whole partition
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_log = logger("compilation")


class FallbackWarning(UserWarning):
    """A partition or an execution runs on another device than the chosen one."""


def warn_of_fallback(text: str) -> None:
    """Issue a FallbackWarning at the line outside this package that called into it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, FallbackWarning, stacklevel=level)


class CompileOptions(Record, frozen=True):
    """The checked arguments of `compile`.

    deadline: monotonic nanoseconds by which compilation has to end, None for no limit. driver_options: by device name;
    each name is that of exactly one of `devices`. interpreting: returns the runtime as a candidate for a model's
    control flow (`runtime.flow`). numerics: "exact" is an option for every driver. capture: records the compilation, if
    a capture runs.
    """

    devices: tuple[Device, ...]
    fallback: Fallback
    preference: Preference = Preference.FAST_SINGLE_ANSWER
    priority: Priority = Priority.MEDIUM
    threads: int = 0
    deadline: int | None = None
    driver_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    caching: CacheSettings = CacheSettings()
    strategy: Strategy = Strategy()
    interpreting: "Callable[..., list[Candidate]]" = lambda *_: []
    numerics: Numerics = "fast"
    capture: CompilationCapture | None = None

    def hints(self, device: Device) -> Hints:
        """Return the hints for a device's driver. The fallback device gets no options of the application."""
        chosen = any(each is device for each in self.devices)
        options = dict(self.driver_options.get(identity_of(device).name, {})) if chosen else {}
        if self.numerics == EXACT:
            options[NUMERICS] = EXACT
        return Hints(self.preference, self.priority, self.threads, self.deadline, options)


class Step(Record, frozen=True):
    """One prepared partition. lane: executes it with deadlines, and closes it once.

    laid: the partition in the device's layout. cached: the outcome of its cache entry. consumed: its constants are not
    needed any more, and `part` has none. inside: the plans of interpreted control flow. capture: records its
    executions, if a capture runs.
    """

    device: Device
    part: Part
    prepared: PreparedChain
    nanoseconds: int  # of its preparation
    lane: DeadlineExecutor
    laid: ModelInLayout
    consumed: bool = False
    cached: CacheOutcome = CacheOutcome("", "off")
    inside: "tuple[InnerPlan, ...]" = ()
    capture: PreparationCapture | None = None

    def request(self, given: Sequence[Array | None], rooms: Sequence[Array | None] | None) -> Request:
        """Return a request for one execution outside of a `Runner`'s lines."""
        if self.capture is None:
            return self.prepared.request(given, rooms)
        signature = self.capture.signature(Signature.of(self.part.model, self.lane.where, self.prepared), "plain")
        return signature.make(signature, given, rooms)

    @property
    def outcomes(self) -> tuple[CacheOutcome, ...]:
        """The cache outcomes of this partition, or of all plans inside it."""
        return tuple(each for i in self.inside for s in i.plan.steps for each in s.outcomes) or (self.cached,)


class InnerPlan(Record, frozen=True):
    """A subgraph with its own plan. operation: the number, in the whole model, of the operation that refers to it.

    name: its role: "then", "else", "condition" or "body". reads: the subgraph's inputs that the plan has, by place.
    shapes: of all its inputs.
    """

    operation: int
    name: str
    plan: "Plan"
    reads: tuple[int, ...]
    shapes: tuple[Shape | None, ...]


class Interpreting(Device):
    """The runtime itself in the role of a device: it has no driver."""


class PreparedPlans(Prepared):
    """A prepared model that consists of plans. inside: the plans, in the order in which operations refer to them.

    After an execution, the request has the fallbacks inside it.
    """

    inside: tuple[InnerPlan, ...] = ()

    def kept(self) -> int:
        """The bytes of intermediates that are kept for the next execution."""
        return 0


class Plan(Record, frozen=True):
    """A compiled model: its partitions in execution order, its placement, and its fallbacks.

    keys: the devices, by their labels. live: counts executions that fall back. configuration: the current options.
    placer: made the placement, and records execution times.
    """

    model: Model
    partition: Partition
    steps: tuple[Step, ...]
    settings: CompileOptions
    events: tuple[str, ...]
    keys: Mapping[str, DeviceKey]
    live: ExecutionStats
    configuration: Configuration
    placer: Placer

    def without_constants(self) -> "Plan":
        """Return the plan for executions: if a partition has consumed its constants, the whole model has none either.

        Each partition that needs constants has them in its part.
        """
        if not any(step.consumed for step in self.steps):
            return self
        model = self.model.again()
        release_constants(model, f"{model.name or 'model'}: its constants were released when it was compiled")
        return replace(self, model=model)

    @property
    def placement(self) -> Placement:
        """Where each operation runs, and why."""
        layouts = layouts_of(self.partition, self.steps)
        inside = [PlacedBranch(i.operation, i.name, i.plan.placement) for step in self.steps for i in step.inside]
        return Placement(self.partition, self.events, self.keys, self.live, layouts, inside)


class Candidate(Record, frozen=True):
    """A device that may take part, and its answer about the model. failed: why it has none.

    interprets: whether it is the runtime, which then has exclusive operations. prices: for each of these, the cost of
    one run of its subgraphs as placed, and of one on the CPU.
    """

    device: Device
    key: DeviceKey
    offer: Offer
    claims: SupportReport
    failed: NnhalError | None = None
    interprets: bool = False
    prices: Mapping[int, tuple[float, float]] = field(default_factory=dict)


class Failure(Record, frozen=True):
    """A partition that could not be prepared: its device's label, its operations, the reason."""

    label: str
    operations: tuple[int, ...]
    error: Exception


Attempt = Callable[[Placer, ExitStack], "Plan | Failure"]  # prepares a partition made by that placer
Tune = Callable[
    [Model, Sequence[Offer], Placer, Attempt, int | None], Placer
]  # measures until a deadline; returns a placer with the measured times


@trace.traced_function("runtime", "compilation", "compile", lambda model: model.name)
def compile_plan(model: Model, settings: CompileOptions, undo: ExitStack, tune: Tune | None = None) -> Plan:
    """Partition and prepare. undo: closes what was prepared if an error follows. tune: measures placements before.

    Raises UnsupportedModel, DeviceUnavailable, MissedDeadline, InvalidArgument if the driver rejects its options, or
    the error of the last device.
    """
    validate(model)
    events: list[str] = []
    kept = _kept(model, settings.caching)
    if running.session is not None:
        settings = replace(settings, capture=running.session.compiling(model, settings.caching.token))
    with ExitStack() as held:
        candidates = _candidates(model, settings, events, kept, held)
        plan = compiled_on(candidates, model, settings, events, kept, undo, tune)
    if settings.capture is not None:
        settings.capture.placed(plan.placement.to_dict(), [step.capture for step in plan.steps])
    return plan


def compiled_on(
    candidates: Sequence[Candidate],
    model: Model,
    settings: CompileOptions,
    events: list[str],
    kept: CompilationCache,
    undo: ExitStack,
    tune: Tune | None = None,
) -> Plan:
    """Partition and prepare, with fallbacks. Raises as `compile_plan` does."""
    offers, placer = placer_of(candidates, model, settings, tune=tune is not None)
    try:
        if tune is not None:

            def attempt(placer: Placer, undo: ExitStack) -> Plan | Failure:
                return _attempt(model, settings, candidates, offers, placer, events, kept, undo)

            placer = tune(model, offers, placer, attempt, settings.deadline)
            if placer.measured is None or not placer.measured.tuned:  # nothing could be measured
                offers = placer_of(candidates, model, settings)[0]
        plan = _attempt(model, settings, candidates, offers, placer, events, kept, undo)
    except UnsupportedModel as refused:
        failures = [c.failed for c in candidates if c.failed is not None]
        for failed in failures:
            if isinstance(failed, GONE):  # the reason
                raise failed from None
        if not failures:
            raise
        refused.stack = failures[0].stack
        raise refused from failures[0]
    if isinstance(plan, Plan):
        return plan
    if settings.fallback == "forbid":
        raise plan.error
    placer.failed(model, plan.label, plan.operations, "preparation", plan.error)
    where = f"operations {_span(plan.operations)}"
    _note(settings, events, f"{plan.label} failed to prepare {where}: {plan.error}; placing them elsewhere")
    lost, why = frozenset(plan.operations), f"failed to prepare: {plan.error}"
    again = [
        replace(o, excluded=o.excluded | lost, excluded_why=why) if o.device == plan.label else o
        for o in placer_of(candidates, model, settings, lost)[0]
    ]
    culprit = plan
    try:
        plan = _attempt(model, settings, candidates, again, placer, events, kept, undo)
    except UnsupportedModel as unplaced:
        plan = replace(culprit, error=unplaced)
    if isinstance(plan, Plan):
        return plan
    _note(settings, events, f"{plan.label} failed to prepare as well: {plan.error}; the whole model goes to the CPU")
    cpu = _taking_over(model, next(c for c in candidates if c.device is discovery.cpu()).offer)
    anywhere = replace(placer, strategy=Strategy())  # the device of a manual placement failed
    whole = _attempt(model, settings, candidates, [cpu], anywhere, events, kept, undo)
    if isinstance(whole, Plan):
        return whole
    raise whole.error


def _candidates(
    model: Model, settings: CompileOptions, events: list[str], kept: CompilationCache, held: ExitStack
) -> list[Candidate]:
    """Ask the chosen devices, and the fallback CPU. held: releases their reusable work."""
    devices, cpu = list(settings.devices), discovery.cpu()
    chosen = any(device is cpu for device in devices)
    if settings.fallback != "forbid" and not chosen:
        devices.append(cpu)
    keys = [key_of(device) for device in devices]
    named = list(zip(devices, keys, labels(keys), strict=True))
    return query_devices(named, model, settings, events, kept, held)


def query_devices(
    named: Sequence[tuple[Device, DeviceKey, str]],
    model: Model,
    settings: CompileOptions,
    events: list[str],
    kept: CompilationCache,
    held: ExitStack,
) -> list[Candidate]:
    """Ask each device about a model, and the runtime about its control flow. named: devices, their keys, labels."""
    found = [_asked(*each, model, settings, events, kept, held) for each in named]
    for n, candidate in enumerate(found):
        if candidate.device is discovery.cpu() and not any(each is candidate.device for each in settings.devices):
            found[n] = replace(candidate, offer=_taking_over(model, candidate.offer))
    if any(operation.type in CONTROL_FLOW for operation in model.main.operations):
        found += settings.interpreting(model, settings, found, events, kept, held)
    return found


def placer_of(
    candidates: Sequence[Candidate],
    model: Model,
    settings: CompileOptions,
    lost: Collection[int] = (),
    *,
    tune: bool = False,
) -> tuple[list[Offer], Placer]:
    """Return the devices' offers with what is known about them, and the placer. lost: operations that the runtime failed at.

    tune: whether placements are about to be measured.
    """
    options = {identity_of(c.device).name: settings.hints(c.device).options for c in candidates}
    given = {name: each for name, each in options.items() if each}
    placement_key = PlacementKey(settings.preference, settings.threads, given)
    keys = {c.offer.device: c.key for c in candidates}
    forgive = settings.fallback == "forbid"

    def known(shared: Collection[int]) -> tuple[list[Offer], Placer]:
        offers = offers_of(candidates, {*lost, *shared})
        return with_measurements(model, offers, keys, settings.strategy, placement_key, forgive=forgive, tune=tune)

    shared = _shared(candidates, model, settings.strategy, tune)
    offers, placer = known(shared)
    if placer.measured is not None and placer.measured.tuned:
        then = _shared(candidates, model, settings.strategy, True)  # as they were when it was tuned
        if {*then} != {*shared}:
            return known(then)
    return offers, placer


def _shared(candidates: Sequence[Candidate], model: Model, strategy: Strategy, tune: bool) -> Collection[int]:
    """Return the operations that both the runtime and others may run: to be measured, or placed there by the application."""
    runtime = next((c.offer for c in candidates if c.interprets), None)
    own = set() if runtime is None else _taken(runtime)
    if not own or runtime is None:
        return ()
    if tune:
        return own
    if strategy.single:
        return () if own.issuperset(live_operands(model)) else own
    wanted = manual_placement(model, [c.offer for c in candidates], strategy)
    return {n for n, (label, _) in wanted.items() if n in own and label != runtime.device}


def _taken(offer: Offer) -> set[int]:
    return {n for n, verdict in enumerate(offer.verdicts) if verdict.ok}


def offers_of(candidates: Sequence[Candidate], shared: Collection[int] = ()) -> list[Offer]:
    """Return the devices' offers, without the runtime's exclusive operations. shared: operations that are not exclusive."""
    own = {n for c in candidates if c.interprets for n in _taken(c.offer)}.difference(shared)
    refused = dict.fromkeys(own, Verdict(False, "the runtime interprets it and places its branches separately"))
    return [
        c.offer if c.interprets else _without(c.offer, {n: v for n, v in refused.items() if c.offer.verdicts[n].ok})
        for c in candidates
    ]


def _asked(
    device: Device,
    key: DeviceKey,
    label: str,
    model: Model,
    settings: CompileOptions,
    events: list[str],
    kept: CompilationCache,
    held: ExitStack,
) -> Candidate:
    """Ask a device about the model. A driver that fails, or gives an invalid answer, supports nothing."""

    stated: Capabilities | None = None

    def ask() -> SupportReport:
        nonlocal stated
        stated = driver_capabilities(device)
        if settings.numerics == EXACT and not can_be_exact(device):
            why = "numerics are exact, which the device does not declare"
            return SupportReport(model, [Verdict(False, why)] * len(model.main.operations))
        hints = settings.hints(device)
        claims = kept.considered(device, hints, key.isolation, lambda: consider_support(device, model, hints))
        held.callback(claims.release_work)
        return claims

    failed = None
    try:
        what = f"compilation: device {label}: what it supports"
        claims = run_with_deadline(settings.deadline, what, ask, late=SupportReport.release_work)
    except Exception as error:
        raise_application_error(error)
        if (settings.deadline is not None and isinstance(error, MissedDeadline)) or (
            stated and is_argument_error(error)
        ):
            raise
        failed = as_error(error, f"device {key.name}")
        gone = isinstance(error, GONE)
        why = (
            str(error)
            if gone
            else f"the driver failed to answer: {error_text(error).removeprefix(f'device {key.name}: ')}"
        )
        _note(settings, events, f"{label} takes nothing: {why}")
        stated, claims = None, SupportReport(model, [Verdict(False, why)] * len(model.main.operations))
    own = identity_of(device)
    step = costs.STEP if key.isolation == "none" else costs.STEP_ELSEWHERE
    told_of = stated or Capabilities()
    laid = with_layout(model, layout) if (layout := layout_of(device)) else None
    offer = Offer(
        label, own.level, told_of, claims.verdicts, own.extensions, step=step, laid=laid, groups=claims.groups
    )
    return Candidate(device, key, offer, claims, failed)


def _taking_over(model: Model, offer: Offer) -> Offer:
    """Return the fallback offer of the CPU: all operations but those of extensions, and control flow with such inside."""
    operations = enumerate(model.main.operations)
    own = frozenset(n for n, o in operations if any(is_extension(each.type) for each in operations_reached(model, o)))
    return replace(offer, excluded=own, excluded_why="operations of extensions never fall back")


def _note(settings: CompileOptions, events: list[str], text: str) -> None:
    events.append(text)
    _log.info("%s", text)
    if settings.fallback == "warn":
        warn_of_fallback(text)


def layouts_of(found: Partition, steps: Sequence[Step]) -> tuple[StepLayout, ...]:
    """Return the layouts of the partitions whose devices prefer one."""
    layouts = []
    for number, (planned, step) in enumerate(zip(found.steps, steps, strict=True)):
        layout = layout_of(step.device)
        if layout is not None:
            left = {planned.operations[n]: why for n, why in step.laid.left.items()}
            layouts.append(StepLayout(number, planned.device, layout, step.laid.transposes, left))
    return tuple(layouts)


def _span(operations: Sequence[int]) -> str:
    return f"#{operations[0]}" if len(operations) == 1 else f"#{min(operations)} to #{max(operations)}"


def _attempt(
    model: Model,
    settings: CompileOptions,
    candidates: Sequence[Candidate],
    offers: Sequence[Offer],
    placer: Placer,
    events: list[str],
    kept: CompilationCache,
    undo: ExitStack,
) -> Plan | Failure:
    """Partition and prepare every partition; if one fails, close the others."""
    by_label = {c.offer.device: c for c in candidates}
    found, parts = partition_model(model, settings, by_label, offers, placer)
    chosen = {choice.operation: choice.device for choice in found.choices if choice.device}
    log_ignored_rules(settings.strategy, model, {n: d for n, d in chosen.items() if not by_label[d].interprets})
    steps: list[Step] = []
    for planned, part in zip(found.steps, parts, strict=True):
        candidate = by_label[planned.device]
        hints = candidate.claims.hints(settings.hints(candidate.device), planned.operations)
        try:
            whole = part.model is model
            entry = kept.entry(candidate.key.isolation, None if whole else planned.operations)
            steps.append(prepare(candidate.device, part, settings, planned.device, undo, hints, entry))
        except MissedDeadline:
            raise
        except Exception as error:
            raise_application_error(error)
            if is_argument_error(error):
                raise
            undo.close()
            return Failure(planned.device, planned.operations, as_error(error, f"device {planned.device}"))
    used = [step.device for step in found.steps]
    keys = {label: c.key for label, c in by_label.items() if not c.interprets or label in used}
    configured = [
        Configured(n, s.device, s.prepared, settings.hints(s.device).options) for n, s in zip(used, steps, strict=True)
    ]
    configured += [each for step in steps for i in step.inside for each in i.plan.configuration.steps]
    return Plan(
        model,
        found,
        tuple(steps),
        settings,
        tuple(events),
        keys,
        ExecutionStats(used),
        Configuration(configured),
        placer,
    )


def _kept(model: Model, caching: CacheSettings) -> CompilationCache:
    if caching.folder is None:
        return NoCache(caching.why)
    from nnhal.runtime.cache.partitions import ModelCache

    return ModelCache(caching, model)


@trace.traced_function("runtime", "preparation", "place operations")
def partition_model(
    model: Model, settings: CompileOptions, by_label: Mapping[str, Candidate], offers: Sequence[Offer], placer: Placer
) -> tuple[Partition, list[Part]]:
    """Return the partitioning and its parts.

    In a device's preferred layout, a part differs from the whole model: the device is asked again, and what it then
    rejects is placed again.
    """
    for attempt in count():
        found = placer.partition(model, offers)
        parts = [extract_part(model, planned.operations) for planned in found.steps]
        refused: dict[str, dict[int, Verdict]] = {}
        for planned, part in zip(found.steps, parts, strict=True):
            device = by_label[planned.device].device
            if part.model is not model and layout_of(device) is not None:
                reasons = _asked_again(device, planned.device, part, settings)
                if attempt >= ROUNDS and reasons:
                    others = dict.fromkeys(range(len(planned.operations)), "others of its part were refused")
                    reasons = others | reasons
                again = {planned.operations[n]: Verdict(False, why) for n, why in reasons.items()}
                refused.setdefault(planned.device, {}).update(again)
        if not any(refused.values()):
            own = [label for label, candidate in by_label.items() if candidate.interprets]
            return (_silent_on_others(found, own[0]) if own else found), parts
        offers = [_without(offer, refused.get(offer.device, {})) for offer in offers]
    raise AssertionError("count() ends")


def _silent_on_others(found: Partition, runtime: str) -> Partition:
    """Remove the runtime's reasons for operations other than control flow, for which it is not a device."""
    choices = [
        choice
        if choice.type in CONTROL_FLOW
        else choice._replace(others={label: why for label, why in choice.others.items() if label != runtime})
        for choice in found.choices
    ]
    return replace(found, choices=tuple(choices))


def _asked_again(device: Device, label: str, part: Part, settings: CompileOptions) -> dict[int, str]:
    """Return why a device rejects operations of a part alone, by number. If it fails to answer, it rejects all of it."""

    def ask() -> SupportReport:
        return consider_support(device, part.model, settings.hints(device))

    try:
        what = f"compilation: device {label}: what it supports"
        claims = run_with_deadline(settings.deadline, what, ask, late=SupportReport.release_work)
        claims.release_work()
        return claims.refused()
    except Exception as error:
        raise_application_error(error)
        if settings.deadline is not None and isinstance(error, MissedDeadline):
            raise
        why = f"the driver failed to answer: {error_text(as_error(error, f'device {label}'))}"
        return dict.fromkeys(range(len(part.model.main.operations)), why)


def _without(offer: Offer, refused: Mapping[int, Verdict]) -> Offer:
    """Return the offer without some operations, and without the groups that contain them."""
    verdicts = [refused.get(n, verdict) for n, verdict in enumerate(offer.verdicts)]
    return replace(offer, verdicts=verdicts, groups=[g for g in offer.groups if not refused.keys() & set(g.operations)])


def is_argument_error(error: Exception) -> bool:
    """Whether a driver's error is about the application's arguments, and so never a reason to fall back.

    InvalidArgument is, unless it is about the model, which the driver had accepted.
    """
    return isinstance(error, InvalidArgument) and not isinstance(error, InvalidModel)


@trace.traced_function("runtime", "compilation", "prepare step", lambda device: f"device {identity_of(device).name}")
def prepare(
    device: Device,
    part: Part,
    settings: CompileOptions,
    label: str = "",
    undo: ExitStack | None = None,
    hints: Hints | None = None,
    entry: CacheEntry = NOT_KEPT,
) -> Step:
    """Prepare one part on one device. If an in-process driver finishes too late, its result is closed.

    label: the device's label. undo: closes it. hints: those of the settings by default. entry: in the cache. Without a
    fallback, a partition whose driver has consumed the constants keeps none.
    """
    laid = with_layout(part.model, layout_of(device))
    if settings.fallback == "forbid":
        own = part.model.again()
        laid = replace(laid, model=own if laid.model is part.model else laid.model.again())
        part = replace(part, model=own)
    name = identity_of(device).name
    what = f"compilation: device {name}: preparing its part"
    given = hints or settings.hints(device)
    start = time.monotonic_ns()
    if settings.deadline is not None and start > settings.deadline:
        raise MissedDeadline(f"{what}: the deadline passed before")

    lane = DeadlineExecutor(f"device {label or name}")
    if undo is not None:
        undo.callback(lane.close)

    outcomes: list[CacheOutcome] = []

    def work() -> None:
        outcomes.append(entry.prepare_in(lane, device, laid.model, given, label or name))

    capture = (
        None if settings.capture is None else _captured(settings.capture, device, laid.model, given, label or name)
    )
    try:
        run_with_deadline(None if device.timely else settings.deadline, what, work, late=lambda _: lane.close())
    except BaseException as error:
        if capture is not None:
            capture.failed(error, time.monotonic_ns() - start)
        raise
    spent = time.monotonic_ns() - start
    if capture is not None:
        capture.prepared(lane.prepared, spent, str(outcomes[0]))
    _log.debug("%s prepared %d operations in %.1f ms", name, len(part.model.main.operations), spent / 1e6)
    if layout := layout_of(device):
        _log.info("%s has its part in %s, with %d transposes inserted", label or name, layout, laid.transposes)
    consumed = settings.fallback == "forbid" and release_weights(lane.prepared, laid.model, lane.where)
    if consumed and laid.model is not part.model:
        release_weights(lane.prepared, part.model, lane.where)
    inside = lane.prepared.inner.inside if isinstance(lane.prepared.inner, PreparedPlans) else ()
    return Step(device, part, lane.prepared, spent, lane, laid, consumed, outcomes[0], inside, capture)


def _captured(
    capture: CompilationCapture, device: Device, model: Model, hints: Hints, label: str
) -> PreparationCapture | None:
    """Record that a device is given a model; None for the runtime itself, which has no driver."""
    if isinstance(device, Interpreting):
        return None
    key = key_of(device)
    return capture.handed(device, model, hints, {"label": label, "origin": key.origin, "isolation": key.isolation})
