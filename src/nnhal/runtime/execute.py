"""Executes a plan partition by partition. The execution owns the intermediates, and falls back by the contract."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnhal.base.answers import raise_application_error
from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import (
    BadState,
    Cancelled,
    InvalidRequest,
    LoopTimeout,
    MissedDeadline,
    NnhalError,
    OperationFailed,
    OutputInsufficientSize,
)
from nnhal.base.log import logger
from nnhal.base.names import short
from nnhal.base.once import OnceTable
from nnhal.base.operands import Array
from nnhal.base.records import replace
from nnhal.hal.background import asynchronous
from nnhal.hal.burst import Burst
from nnhal.hal.device import identity_of
from nnhal.hal.host import contents_within, fill_within, run_in_background
from nnhal.hal.memory import Buffer, check_use
from nnhal.hal.options_lock import LockTicket
from nnhal.hal.queue import NOT_BEGUN
from nnhal.hal.request import UNLIMITED, Control, Request, Run, Signature, Timing, checked_timing
from nnhal.hal.utilities import is_extension
from nnhal.model.graph import Model
from nnhal.model.parts import extract_part, live_operands, operations_reached
from nnhal.runtime import discovery
from nnhal.runtime.compilation import Plan, Preparation, PreparedPlans, Step, warn_of_fallback
from nnhal.runtime.job import Job, Profile, Report, StepTiming
from nnhal.runtime.placement import WHOLE
from nnhal.runtime.schedule import StepPlan

NEVER_RETRIED = (InvalidRequest, OutputInsufficientSize, MissedDeadline, Cancelled, BadState)
LARGE = 1 << 16  # bytes; intermediates of this size are worth reusing
_log = logger("execution")


class PartitionRunner:
    """A partition in execution: its arguments among the operands of the whole model, and its function that runs."""

    __slots__ = (
        "label",
        "lane",
        "launched",
        "open",
        "prepared",
        "reads",
        "run",
        "signature",
        "step",
        "timely",
        "writes",
    )

    def __init__(self, step: Step, label: str, run: Run | None = None) -> None:
        """label: the device's label."""
        self.label = label
        self.step, self.prepared, self.timely = step, step.prepared, step.prepared.timely
        self.launched = run is None and asynchronous()
        where = f"device {label}"
        self.signature = Signature.of(step.part.model, where, step.prepared)
        self.lane = step.lane
        self.run: Run = run or step.prepared.run
        if step.capture is not None:
            self.signature = step.capture.signature(self.signature, self._way())
        self.reads, self.writes = step.part.inputs, step.part.outputs
        self.open = any(argument.fixed is None for argument in self.signature.outputs)  # shapes are known after it ran

    def _way(self) -> str:
        """Return how the driver is called, for a capture."""
        in_burst = isinstance(getattr(self.run, "__self__", None), Burst)
        return "burst" if in_burst else "callback" if self.launched else "plain"

    def execute(self, request: Request, control: Control) -> Timing | None:
        """Execute on the driver, with its deadline and cancellation enforced."""
        run = self.run
        if request.input_buffers or request.output_buffers:
            check_use(self.prepared, request)
            if not self.timely:  # otherwise the driver's process enforces them
                run = run_in_background(run)
        if self.launched or (control.bounded and not self.timely):
            return self.lane.run(run, request, control, self.launched)
        return request.execute(run, control)

    def name_buffers(self, request: Request, buffers: Mapping[int, Buffer]) -> None:
        """Set the driver buffers among a request's arguments; `buffers` is by operand of the whole model."""
        if buffers:
            request.input_buffers = {n: buffers[i] for n, i in enumerate(self.reads) if i in buffers}
            request.output_buffers = {n: buffers[i] for n, i in enumerate(self.writes) if i in buffers}


def raise_missed_later(error: NnhalError, line: PartitionRunner) -> None:
    """Raise a missed deadline of a partition before which others of its execution ran. Return if it is another error."""
    if isinstance(error, MissedDeadline) and not isinstance(error, LoopTimeout):
        # Another process does not know how long the others took
        persistent = not line.timely and error.status == ErrorStatus.MISSED_DEADLINE_PERSISTENT
        text = str(error).replace(NOT_BEGUN, "other partitions of the execution have run")
        raise MissedDeadline(text, persistent=persistent) from None


class Runner:
    """Runs the jobs of a plan, for any number of threads at once."""

    def __init__(
        self,
        plan: Plan,
        whole: "ModelSignature",
        lines: Sequence[PartitionRunner] | None = None,
        fallbacks: "FallbackPartitions | None" = None,
    ) -> None:
        """lines, fallbacks: of another runner of the plan, with other functions that run."""
        self.plan = plan
        labels = [step.device for step in plan.partition.steps]
        self.lines = lines or [PartitionRunner(step, label) for step, label in zip(plan.steps, labels, strict=True)]
        self._live, self._ran, self._turns = plan.live, plan.live.ran, plan.configuration.turns
        self.fallbacks = fallbacks or FallbackPartitions(plan)
        main = plan.model.main
        self._known = [argument.fixed for argument in whole.signature.outputs]
        self._places = {operand: place for place, operand in enumerate(main.outputs)}
        only = self.lines[0] if len(self.lines) == 1 else None
        self._watched = any(line.launched or isinstance(line.prepared.inner, PreparedPlans) for line in self.lines)
        direct = only is not None and (only.reads, only.writes) == (main.inputs, main.outputs) and not self._watched
        self._only = only if direct else None
        self._large = {  # shapes and element types
            operand: (argument.fixed, argument.dtype)
            for line in self.lines
            for operand, argument in zip(line.writes, line.signature.outputs, strict=True)
            if operand not in self._places and argument.fixed is not None and (argument.nbytes or 0) >= LARGE
        }
        self._frames: deque[dict[int, Array]] = deque()  # buffers of intermediates, free for the next execution
        self._against: set[StepPlan] = set()  # partitions whose failure is already recorded

    def run(self, job: Job) -> None:
        """Execute once, and fill the job's results. After a driver's failure, the CPU runs if that is permitted."""
        if self._turns is None:
            self._run(job)
            return
        ticket = job.ticket or LockTicket(alone=False)
        try:
            if ticket is not job.ticket:
                self._turns.queue(ticket)
            self._turns.wait(ticket, job.control)
            self.plan.configuration.check()
            self._run(job)
        finally:
            if ticket is not job.ticket:
                self._turns.leave(ticket)

    def _run(self, job: Job) -> None:
        self._ran()
        try:
            only = self._only
            if only is not None and job.control is UNLIMITED:
                signature = only.signature
                request = signature.make(signature, job.given, job.rooms)
                if job.buffers:
                    only.name_buffers(request, job.buffers)
                    only.execute(request, UNLIMITED)
                else:
                    request.execute(only.run, UNLIMITED)
                job.results, job.shapes = request.results, request.shapes
                if request.small:
                    raise buffers_too_small(request.shapes, request.small)
            else:
                self._run_steps(job)
        except NEVER_RETRIED:
            raise
        except Exception as error:
            self._whole_on_cpu(job, error)

    def _run_steps(self, job: Job) -> None:
        main, control = self.plan.model.main, job.control
        arrays: dict[int, Any] = dict(zip(main.inputs, job.given, strict=True))
        shapes: list[Any] = list(self._known)
        frame = None
        watched = control.bounded or job.report is not None or bool(job.buffers) or self._watched
        if job.rooms is not None or self._large:
            try:
                frame = self._frames.pop()
            except IndexError:
                frame = {}
        for number, line in enumerate(self.lines):
            room = None if frame is None else self._room(line, job.rooms, frame)
            signature = line.signature
            reads = line.reads
            given = (arrays[reads[0]],) if len(reads) == 1 else [arrays[i] for i in reads]
            request = signature.make(signature, given, room)
            if watched:
                control.check()
                line.name_buffers(request, job.buffers)
                self._step(number, line, request, job)
            else:
                try:
                    request.execute(line.run, control)
                except NEVER_RETRIED:
                    raise
                except Exception as error:
                    self._step_on_cpu(number, line, request, job, error)
            for operand, result in zip(line.writes, request.results):  # noqa: B905 (as many)
                arrays[operand] = result  # noqa: PERF403 (update takes twice as long for one)
            if line.open or request.small:
                self._note_shapes(line, request, shapes)
        if frame is not None:
            self._frames.append(frame)
        job.results, job.shapes = [arrays.get(operand) for operand in main.outputs], shapes

    def _note_shapes(self, line: PartitionRunner, request: Request, shapes: list[Any]) -> None:
        """Note the shapes of the model's outputs; OutputInsufficientSize if a buffer is too small."""
        for operand, shape in zip(line.writes, request.shapes, strict=True):
            if operand in self._places:
                shapes[self._places[operand]] = shape
        if request.small:
            raise buffers_too_small(shapes, [self._places[line.writes[n]] for n in request.small])

    def _room(
        self, line: PartitionRunner, rooms: Sequence[Array | None] | None, frame: dict[int, Array]
    ) -> list[Array | None]:
        """Return the output arrays of a partition.

        They are the caller's. A large one that only other partitions read is a buffer of the frame, allocated once.
        """
        found: list[Array | None] = []
        for operand in line.writes:
            place = self._places.get(operand)
            if place is not None:
                found.append(None if rooms is None else rooms[place])
            elif operand not in self._large:
                found.append(None)
            else:
                if operand not in frame:
                    frame[operand] = np.empty(*self._large[operand])
                found.append(frame[operand])
        return found

    def _step(self, number: int, line: PartitionRunner, request: Request, job: Job) -> None:
        """Run one partition, on the CPU if it fails; fill the request and the report."""
        report, control, profile = job.report, job.control, None
        if control.measure:
            profile = Profile(line.step.laid.serves, f"device {line.label}")
            control = control._replace(profile=profile)
        start = time.monotonic_ns() if report is not None else 0
        device = line.label
        try:
            timing = line.execute(request, control)
            _add_fallbacks(report, profile)
        except NEVER_RETRIED as error:
            if number or job.begun:
                raise_missed_later(error, line)
            raise
        except Exception as error:
            _add_fallbacks(report, profile)
            profile = None
            device, timing = self._step_on_cpu(number, line, request, job, error)
        finally:
            if request.fell_back:
                self._fell_back_inside(job, number, request.fell_back)
        if report is not None:
            total = time.monotonic_ns() - start
            timing = checked_timing(timing, f"device {device}")
            each, inside = ({}, ()) if profile is None else (dict(profile.spent), profile.inside)
            count = len(line.step.part.model.main.operations)
            report.steps.append(StepTiming(device, count, total, timing, each, inside))

    def _step_on_cpu(
        self, number: int, line: PartitionRunner, request: Request, job: Job, error: Exception
    ) -> tuple[str, Timing | None]:
        """Run a failed partition on the CPU if permitted, else raise the error."""
        raise_application_error(error)
        if not self._may_fall_back([line.step]):
            raise error
        request.fell_back = ""  # it counts once
        step = self.plan.partition.steps[number]
        self._note(job, number, f"partition {number} failed on {line.label}: {error}; trying it on the CPU")
        spare = self.fallbacks.get(number)
        timing = _on_host(spare, request, job.control)
        self._keep_against(step, error)
        return identity_of(spare.device).name, timing

    def _keep_against(self, step: StepPlan, error: Exception) -> None:
        """Record a device's failure for later compilations, unless the CPU fails too or the device is not at fault."""
        if step not in self._against:
            self._against.add(step)
            self.plan.placer.failed(self.plan.model, step.device, step.operations, "execution", error)

    def _may_fall_back(self, steps: Sequence[Step]) -> bool:
        """Whether a fallback is permitted: not from the CPU, and never with operations of extensions."""
        cpu = discovery.cpu()
        if self.plan.settings.fallback == "forbid" or all(s.device is cpu for s in steps):
            return False
        parts = [step.part.model for step in steps]
        operations = ((model, o) for model in parts for o in model.main.operations)
        return not any(is_extension(each.type) for model, o in operations for each in operations_reached(model, o))

    def _whole_on_cpu(self, job: Job, error: Exception) -> None:
        """Run the whole model on the CPU, the last resort; raise `error` if that is impossible."""
        raise_application_error(error)
        if not self._may_fall_back(self.plan.steps):
            raise self._explained(job, error)
        device = self.lines[0].label if len(self.lines) == 1 else "a step"
        self._note(job, WHOLE, f"execution failed on {device}: {error}; trying the whole model on the CPU")
        main, buffers = self.plan.model.main, job.buffers
        read = {n: buffers[i] for n, i in enumerate(main.inputs) if i in buffers}
        written = {n: buffers[i] for n, i in enumerate(main.outputs) if i in buffers}
        try:
            spare = self.fallbacks.get(WHOLE)
            request = spare.prepared.request(job.given, job.rooms, input_buffers=read, output_buffers=written)
            _on_host(spare, request, job.control)
        except NnhalError as second:
            raise self._explained(job, second) from error
        if len(self.lines) == 1:
            self._keep_against(self.plan.partition.steps[0], error)
        if request.small:
            raise buffers_too_small(request.shapes, request.small)
        job.results, job.shapes = request.results, request.shapes

    def _explained(self, job: Job, error: Exception) -> Exception:
        """Return the failure of an operation with the inputs whose values break a rule, if any do.

        A driver's own exceptions and broken contracts stay as they are: values are no excuse for them.
        """
        model = self.plan.model
        if type(error) is not OperationFailed or model.emptied:
            return error
        try:
            from nnhal.model.value_rules import ValueRules  # few executions fail
        except OSError:  # no descriptor is free
            return error
        given = {n: x for n, x in enumerate(job.given) if isinstance(x, np.ndarray)}
        found = ValueRules.of(model).broken(given)
        if not found:
            return error
        broken = found[0]
        names = " and ".join(
            short(model.main.operands[model.main.inputs[n]].name or f"input {n}") for n in broken.inputs
        )
        if broken.why in str(error):
            text = f"{error}; this follows from the values of input {names}: give others"
        else:
            text = f"{error}; the values of input {names} break a rule, give others: {broken.why}"
        explained = OperationFailed(text)
        explained.stack, explained.__cause__ = error.stack, error.__cause__
        return explained.with_traceback(error.__traceback__)

    def _note(self, job: Job, step: int, text: str) -> None:
        _log.info("%s", text)
        self._live.fell_back(step, text)
        if job.report is not None:
            job.report.fallbacks.append(text)
        if self.plan.settings.fallback == "warn":
            warn_of_fallback(text)

    def _fell_back_inside(self, job: Job, step: int, text: str) -> None:
        """Count an execution of interpreted control flow, inside which a partition fell back."""
        self._live.fell_back(step, text)

    def kept(self) -> int:
        """Return the bytes of intermediates between partitions that are kept for the next execution."""
        inside = sum(each.kept() for step in self.plan.steps if isinstance(each := step.prepared.inner, PreparedPlans))
        return inside + sum(array.nbytes for frame in tuple(self._frames) for array in frame.values())

    def close(self) -> None:
        """Close every prepared model, after its running executions have returned."""
        for line in self.lines:
            line.lane.close()
        self.fallbacks.close()
        self._frames.clear()


class FallbackPartitions:
    """Failed partitions prepared again on the CPU, by number, and the `WHOLE` model."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._steps: OnceTable[int, Step] = OnceTable(lambda number: f"partition {number} on the CPU")

    def get(self, number: int) -> Step:
        """Return the partition; prepare it on first use."""
        return self._steps.get(number, lambda: self._made(number))

    def made(self) -> dict[int, Step]:
        """Return those that were prepared, by number."""
        return self._steps.values()

    def _made(self, number: int) -> Step:
        model = self._plan.model
        part = extract_part(model, live_operands(model)) if number == WHOLE else self._plan.steps[number].part
        return Preparation(discovery.cpu(), part, replace(self._plan.settings, deadline=None)).step()

    def close(self) -> None:
        for step in self._steps.forget():
            step.lane.close()


class ModelSignature:
    """A compiled model in the role of one prepared model: for the roles of buffers, and for requests behind fences."""

    def __init__(self, model: Model) -> None:
        self.model, self.signature = model, Signature.of(model, model.name or "model")


def _add_fallbacks(report: Report | None, profile: Profile | None) -> None:
    """Add the fallbacks inside a partition to the report, if there is one."""
    if report is not None and profile is not None:
        report.fallbacks += profile.fallbacks


def _on_host(spare: Step, request: Request, control: Control) -> Timing | None:
    """Run a driver without buffers: copy their contents out before, and in afterwards."""
    given = list(request.given)
    for index, buffer in request.input_buffers.items():
        given[index] = contents_within(control, buffer)
    inner = spare.request(given, request.rooms)
    timing = inner.execute(spare.prepared.run, control)
    if not inner.small:
        for index, written in request.output_buffers.items():
            fill_within(control, written, inner.results[index])
    request.adopt(inner)
    return timing


def buffers_too_small(shapes: Sequence[Any], small: Sequence[int]) -> OutputInsufficientSize:
    """Return the error for outputs whose buffers are too small, with every known shape."""
    what = ", ".join(f"output {i} needs shape {list(shapes[i] or ())}" for i in small)
    return OutputInsufficientSize(f"execution: {what}; the memory given is smaller", shapes)
