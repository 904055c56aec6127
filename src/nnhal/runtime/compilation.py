"""Compilation: ask the devices, partition, cut, prepare each partition on its device, and fall back by the contract."""

import os
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

from nnhal.base import trace
from nnhal.base.answers import raise_application_error
from nnhal.base.codes import OperationType, Preference, Priority
from nnhal.base.errors import (
    Closed,
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

T = TypeVar("T")
Fallback = Literal["allow", "warn", "forbid"]
Numerics = Literal["fast", "exact"]
CONTROL_FLOW = frozenset((OperationType.IF, OperationType.WHILE))
GONE = Closed, DeadObject, DeviceUnavailable, ResourceExhausted  # the driver could not be asked
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
    a capture runs. named: whether the application named the devices. left_out: a line about each default device that
    takes no part.
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
    interpreting: "Callable[[Compilation], list[Candidate]]" = lambda _: []
    numerics: Numerics = "fast"
    capture: CompilationCapture | None = None
    named: bool = True
    left_out: tuple[str, ...] = ()

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

    interprets: whether it is the runtime, which then has exclusive operations.
    """

    device: Device
    key: DeviceKey
    offer: Offer
    claims: SupportReport
    failed: NnhalError | None = None
    interprets: bool = False


class Failure(Record, frozen=True):
    """A partition that could not be prepared: its device's label, its operations, the reason."""

    label: str
    operations: tuple[int, ...]
    error: Exception


Tune = Callable[["Compilation", Sequence[Offer], Placer], Placer]  # returns a placer with measured times


class Compilation:
    """The compilation of one model: its devices' answers, and the way from there to a plan.

    Attributes:
        model: The model.
        settings: The checked arguments of `compile`.
        cache: The model's cache entries.
        candidates: The devices that may take part.
        events: The events of the compilation, one line each, for the placement.
        held: Releases the devices' reusable work.
    """

    candidates: Sequence[Candidate]

    def __init__(
        self, model: Model, settings: CompileOptions, within: "tuple[Compilation, int, str] | None" = None
    ) -> None:
        """within: for a subgraph, the compilation of the whole, and operation and name as in `InnerPlan`."""
        self.model, self.settings = model, settings
        if within is None:
            self.cache, self.events, self.held = _cache_of(model, settings.caching), [*settings.left_out], ExitStack()
        else:
            outer, operation, name = within
            self.cache, self.events, self.held = outer.cache.inside(model, operation, name), outer.events, outer.held
            self.ask((c.device, c.key, c.offer.device) for c in outer.candidates if c.failed is None)

    @trace.traced_method("runtime", "compilation", "compile", detail=lambda self: self.model.name)
    def compile(self, make: Callable[[Plan], T], tune: Tune | None = None) -> T:
        """Ask the chosen devices and the CPU, partition and prepare.

        make: returns what owns the plan. tune, and errors: as in `plan`.
        """
        with ExitStack() as undo:
            with self.held:
                validate(self.model)
                if running.session is not None:
                    capture = running.session.compiling(self.model, self.settings.caching.token)
                    self.settings = replace(self.settings, capture=capture)
                devices, cpu = list(self.settings.devices), discovery.cpu()
                if self.settings.fallback != "forbid" and not any(device is cpu for device in devices):
                    devices.append(cpu)
                keys = [key_of(device) for device in devices]
                self.ask(zip(devices, keys, labels(keys), strict=True))
                plan = self.plan(undo, tune)
            if self.settings.capture is not None:
                self.settings.capture.placed(plan.placement.to_dict(), [step.capture for step in plan.steps])
            made = make(plan)
            # It owns the plan from here on; an interrupt just before closes both, which is harmless
            undo.pop_all()
            return made

    def ask(self, named: Iterable[tuple[Device, DeviceKey, str]]) -> None:
        """Ask each device about the model, and the runtime about its control flow. named: devices, their keys, labels."""
        self.candidates = found = [self._ask(*each) for each in named]
        for n, candidate in enumerate(found):
            offer = candidate.offer
            if candidate.device is discovery.cpu() and all(d is not candidate.device for d in self.settings.devices):
                found[n] = replace(candidate, offer=_taking_over(self.model, offer))
            elif candidate.key.name == discovery.CPU and not self.settings.named:
                found[n] = replace(candidate, offer=replace(offer, fallback=True))
        if any(operation.type in CONTROL_FLOW for operation in self.model.main.operations):
            found += self.settings.interpreting(self)

    def _ask(self, device: Device, key: DeviceKey, label: str) -> Candidate:
        """Ask a device about the model. A driver that fails, or gives an invalid answer, supports nothing."""
        model, settings = self.model, self.settings
        stated: Capabilities | None = None

        def ask() -> SupportReport:
            nonlocal stated
            stated = driver_capabilities(device)
            if settings.numerics == EXACT and not can_be_exact(device):
                why = "numerics are exact, which the device does not declare"
                return SupportReport(model, [Verdict(False, why)] * len(model.main.operations))
            hints = settings.hints(device)
            claims = self.cache.considered(device, hints, key.isolation, lambda: consider_support(device, model, hints))
            self.held.callback(claims.release_work)
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
            self.note(f"{label} takes nothing: {why}")
            stated, claims = None, SupportReport(model, [Verdict(False, why)] * len(model.main.operations))
        own = identity_of(device)
        step = costs.STEP if key.isolation == "none" else costs.STEP_ELSEWHERE
        told_of = stated or Capabilities()
        laid = with_layout(model, layout) if (layout := layout_of(device)) else None
        offer = Offer(
            label, own.level, told_of, claims.verdicts, own.extensions, step=step, laid=laid, groups=claims.groups
        )
        return Candidate(device, key, offer, claims, failed)

    def note(self, text: str) -> None:
        """Record an event, and warn of it if that is wanted."""
        self.events.append(text)
        _log.info("%s", text)
        if self.settings.fallback == "warn":
            warn_of_fallback(text)

    def plan(self, undo: ExitStack, tune: Tune | None = None) -> Plan:
        """Partition and prepare, with fallbacks.

        Args:
            undo: Closes what was prepared if an error follows.
            tune: Measures placements before.

        Raises:
            UnsupportedModel: No device supports an operation.
            DeviceUnavailable: A device does not answer.
            MissedDeadline: The deadline passed.
            InvalidArgument: The driver rejects its options.
            NnhalError: The error of the last device.
        """
        offers, placer = self.placer(tune=tune is not None)
        try:
            if tune is not None:
                placer = tune(self, offers, placer)
                if placer.measured is None or not placer.measured.tuned:  # nothing could be measured
                    offers = self.placer()[0]
            plan = self.attempt(offers, placer, undo)
        except UnsupportedModel as refused:
            failures = [c.failed for c in self.candidates if c.failed is not None]
            for failed in failures:
                if isinstance(failed, GONE):  # the reason
                    raise failed from None
            if not failures:
                raise
            refused.stack = failures[0].stack
            raise refused from failures[0]
        return plan if isinstance(plan, Plan) else self._fall_back(plan, placer, undo)

    def _fall_back(self, failure: Failure, placer: Placer, undo: ExitStack) -> Plan:
        """Place the operations of a failed partition elsewhere, or else the whole model on the CPU."""
        if self.settings.fallback == "forbid":
            raise failure.error
        placer.failed(self.model, failure.label, failure.operations, "preparation", failure.error)
        where = f"operations {_span(failure.operations)}"
        self.note(f"{failure.label} failed to prepare {where}: {failure.error}; placing them elsewhere")
        lost, why = frozenset(failure.operations), f"failed to prepare: {failure.error}"
        again = [
            replace(o, excluded=o.excluded | lost, excluded_why=why) if o.device == failure.label else o
            for o in self.placer(lost)[0]
        ]
        try:
            plan = self.attempt(again, placer, undo)
        except UnsupportedModel as unplaced:
            plan = replace(failure, error=unplaced)
        if isinstance(plan, Plan):
            return plan
        self.note(f"{plan.label} failed to prepare as well: {plan.error}; the whole model goes to the CPU")
        cpu = _taking_over(self.model, next(c for c in self.candidates if c.device is discovery.cpu()).offer)
        anywhere = replace(placer, strategy=Strategy())  # the device of a manual placement failed
        whole = self.attempt([cpu], anywhere, undo)
        if isinstance(whole, Plan):
            return whole
        raise whole.error

    def placer(self, lost: Collection[int] = (), *, tune: bool = False) -> tuple[list[Offer], Placer]:
        """Return the devices' offers with what is known about them, and the placer.

        lost: operations that the runtime failed at. tune: whether placements are about to be measured.
        """
        settings, candidates = self.settings, self.candidates
        options = {identity_of(c.device).name: settings.hints(c.device).options for c in candidates}
        given = {name: each for name, each in options.items() if each}
        placement_key = PlacementKey(settings.preference, settings.threads, given)
        keys = {c.offer.device: c.key for c in candidates}
        forgive = settings.fallback == "forbid"

        def known(shared: Collection[int]) -> tuple[list[Offer], Placer]:
            offers = offers_of(candidates, {*lost, *shared})
            return with_measurements(
                self.model, offers, keys, settings.strategy, placement_key, forgive=forgive, tune=tune
            )

        shared = self._shared(tune)
        offers, placer = known(shared)
        if placer.measured is not None and placer.measured.tuned:
            then = self._shared(True)  # as they were when it was tuned
            if {*then} != {*shared}:
                return known(then)
        return offers, placer

    def _shared(self, tune: bool) -> Collection[int]:
        """Return the operations that both the runtime and others may run.

        They are to be measured, or the application placed them there.
        """
        runtime = next((c.offer for c in self.candidates if c.interprets), None)
        own = set() if runtime is None else _taken(runtime)
        if not own or runtime is None:
            return ()
        if tune:
            return own
        if self.settings.strategy.single:
            return () if own.issuperset(live_operands(self.model)) else own
        wanted = manual_placement(self.model, [c.offer for c in self.candidates], self.settings.strategy)
        return {n for n, (label, _) in wanted.items() if n in own and label != runtime.device}

    def attempt(self, offers: Sequence[Offer], placer: Placer, undo: ExitStack) -> Plan | Failure:
        """Partition and prepare every partition; if one fails, close the others."""
        model, settings = self.model, self.settings
        by_label = {c.offer.device: c for c in self.candidates}
        found, parts = self.partition(offers, placer)
        chosen = {choice.operation: choice.device for choice in found.choices if choice.device}
        log_ignored_rules(settings.strategy, model, {n: d for n, d in chosen.items() if not by_label[d].interprets})
        steps: list[Step] = []
        for planned, part in zip(found.steps, parts, strict=True):
            candidate = by_label[planned.device]
            hints = candidate.claims.hints(settings.hints(candidate.device), planned.operations)
            try:
                whole = part.model is model
                entry = self.cache.entry(candidate.key.isolation, None if whole else planned.operations)
                preparation = Preparation(candidate.device, part, settings, planned.device, hints)
                steps.append(preparation.step(entry, undo))
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
            Configured(n, s.device, s.prepared, settings.hints(s.device).options)
            for n, s in zip(used, steps, strict=True)
        ]
        configured += [each for step in steps for i in step.inside for each in i.plan.configuration.steps]
        return Plan(
            model,
            found,
            tuple(steps),
            settings,
            tuple(self.events),
            keys,
            ExecutionStats(used),
            Configuration(configured),
            placer,
        )

    @trace.traced_method("runtime", "preparation", "place operations")
    def partition(self, offers: Sequence[Offer], placer: Placer) -> tuple[Partition, list[Part]]:
        """Return the partitioning and its parts.

        In a device's preferred layout, a part differs from the whole model: the device is asked again, and what it then
        rejects is placed again.
        """
        by_label = {c.offer.device: c for c in self.candidates}
        for attempt in count():
            found = placer.partition(self.model, offers)
            parts = [extract_part(self.model, planned.operations) for planned in found.steps]
            refused: dict[str, dict[int, Verdict]] = {}
            for planned, part in zip(found.steps, parts, strict=True):
                device = by_label[planned.device].device
                if part.model is not self.model and layout_of(device) is not None:
                    reasons = self._ask_again(device, planned.device, part)
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

    def _ask_again(self, device: Device, label: str, part: Part) -> dict[int, str]:
        """Return why a device rejects operations of a part alone, by number. If it fails to answer, it rejects all of it."""

        def ask() -> SupportReport:
            return consider_support(device, part.model, self.settings.hints(device))

        try:
            what = f"compilation: device {label}: what it supports"
            claims = run_with_deadline(self.settings.deadline, what, ask, late=SupportReport.release_work)
            claims.release_work()
            return claims.refused()
        except Exception as error:
            raise_application_error(error)
            if self.settings.deadline is not None and isinstance(error, MissedDeadline):
                raise
            why = f"the driver failed to answer: {error_text(as_error(error, f'device {label}'))}"
            return dict.fromkeys(range(len(part.model.main.operations)), why)


def _cache_of(model: Model, caching: CacheSettings) -> CompilationCache:
    if caching.folder is None:
        return NoCache(caching.why)
    from nnhal.runtime.cache.partitions import ModelCache

    return ModelCache(caching, model)


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


def _taking_over(model: Model, offer: Offer) -> Offer:
    """Return the fallback offer of the CPU: all operations but those of extensions, and control flow with such inside."""
    operations = enumerate(model.main.operations)
    own = frozenset(n for n, o in operations if any(is_extension(each.type) for each in operations_reached(model, o)))
    return replace(offer, excluded=own, excluded_why="operations of extensions never fall back", fallback=True)


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


def _silent_on_others(found: Partition, runtime: str) -> Partition:
    """Remove the runtime's reasons for operations other than control flow, for which it is not a device."""
    choices = [
        choice
        if choice.type in CONTROL_FLOW
        else choice._replace(others={label: why for label, why in choice.others.items() if label != runtime})
        for choice in found.choices
    ]
    return replace(found, choices=tuple(choices))


def _without(offer: Offer, refused: Mapping[int, Verdict]) -> Offer:
    """Return the offer without some operations, and without the groups that contain them."""
    verdicts = [refused.get(n, verdict) for n, verdict in enumerate(offer.verdicts)]
    return replace(offer, verdicts=verdicts, groups=[g for g in offer.groups if not refused.keys() & set(g.operations)])


def is_argument_error(error: Exception) -> bool:
    """Whether a driver's error is about the application's arguments, and so never a reason to fall back.

    InvalidArgument is, unless it is about the model, which the driver had accepted.
    """
    return isinstance(error, InvalidArgument) and not isinstance(error, InvalidModel)


class Preparation:
    """The preparation of one part on one device.

    Without a fallback, a partition whose driver has consumed the constants keeps none.
    """

    def __init__(
        self, device: Device, part: Part, settings: CompileOptions, label: str = "", hints: Hints | None = None
    ) -> None:
        """label: the device's label, by default its name. hints: those of the settings by default."""
        laid = with_layout(part.model, layout_of(device))
        if settings.fallback == "forbid":
            own = part.model.again()
            laid = replace(laid, model=own if laid.model is part.model else laid.model.again())
            part = replace(part, model=own)
        self.device, self.part, self.laid, self.settings = device, part, laid, settings
        self.label = label or identity_of(device).name
        self.hints = hints or settings.hints(device)
        self.lane = DeadlineExecutor(f"device {self.label}")

    @trace.traced_method(
        "runtime", "compilation", "prepare step", detail=lambda self: f"device {identity_of(self.device).name}"
    )
    def step(self, entry: CacheEntry = NOT_KEPT, undo: ExitStack | None = None) -> Step:
        """Prepare it. If an in-process driver finishes too late, its result is closed.

        entry: in the cache. undo: closes it.
        """
        device, laid, settings, lane = self.device, self.laid, self.settings, self.lane
        name = identity_of(device).name
        what = f"compilation: device {name}: preparing its part"
        start = time.monotonic_ns()
        if settings.deadline is not None and start > settings.deadline:
            raise MissedDeadline(f"{what}: the deadline passed before")
        if undo is not None:
            undo.callback(lane.close)
        capture = self._capture()
        try:
            if settings.deadline is None or device.timely:
                outcome = entry.prepare_in(lane, device, laid.model, self.hints, self.label)
            else:
                work = partial(entry.prepare_in, lane, device, laid.model, self.hints, self.label)
                outcome = run_with_deadline(settings.deadline, what, work, late=lambda _: lane.close())
        except BaseException as error:
            if capture is not None:
                capture.failed(error, time.monotonic_ns() - start)
            raise
        spent = time.monotonic_ns() - start
        if capture is not None:
            capture.prepared(lane.prepared, spent, str(outcome))
        _log.debug("%s prepared %d operations in %.1f ms", name, len(self.part.model.main.operations), spent / 1e6)
        if layout := layout_of(device):
            _log.info("%s has its part in %s, with %d transposes inserted", self.label, layout, laid.transposes)
        consumed = settings.fallback == "forbid" and release_weights(lane.prepared, laid.model, lane.where)
        if consumed and laid.model is not self.part.model:
            release_weights(lane.prepared, self.part.model, lane.where)
        inside = lane.prepared.inner.inside if isinstance(lane.prepared.inner, PreparedPlans) else ()
        return Step(device, self.part, lane.prepared, spent, lane, laid, consumed, outcome, inside, capture)

    def _capture(self) -> PreparationCapture | None:
        """Record that a device is given a model; None for the runtime itself, which has no driver."""
        capture = self.settings.capture
        if capture is None or isinstance(self.device, Interpreting):
            return None
        key = key_of(self.device)
        where = {"label": self.label, "origin": key.origin, "isolation": key.isolation}
        return capture.handed(self.device, self.laid.model, self.hints, where)
