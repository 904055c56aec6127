"""Execution of a plan: step by step, intermediates owned by the execution, fallback by the contract."""

import threading
import time
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nnhal.base.errors import (
    BadState,
    Cancelled,
    InvalidRequest,
    MissedDeadline,
    NnhalError,
    OutputInsufficientSize,
)
from nnhal.base.log import logger
from nnhal.base.operands import Array
from nnhal.hal.buffers import Buffer, Run, contents_of, fill, run_resolved
from nnhal.hal.device import Prepared
from nnhal.hal.fenced import as_error, asynchronous
from nnhal.hal.request import Control, Request, Timing, plausible, summed
from nnhal.hal.utilities import is_extension
from nnhal.model.graph import Model
from nnhal.model.parts import cut
from nnhal.runtime import discovery
from nnhal.runtime.background import Background
from nnhal.runtime.compilation import FallbackWarning, Plan, Step, prepare

NEVER_RETRIED = (InvalidRequest, OutputInsufficientSize, MissedDeadline, Cancelled, BadState)
NO_BUFFERS: Mapping[int, Buffer] = {}
_log = logger("execution")


@dataclass(frozen=True)
class StepTiming:
    """How long one step took: the runtime's own measure, and what the driver says, in nanoseconds."""

    device: str
    operations: int
    total: int
    driver: Timing | None


@dataclass
class Report:
    """What one execution did: timing of each step, in order, what fell back, why it took another way than asked for."""

    steps: list[StepTiming] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Runner:
    """Runs a plan; may be used by many threads at once.

    runs: how each step is executed; by default `Prepared.run`, where NNHAL_SYNC_EXEC=0 `Prepared.execute` with a callback.
    """

    def __init__(self, plan: Plan, runs: Sequence[Run] | None = None) -> None:
        self.plan = plan
        self._background = [Background(step.prepared, step.device.name) for step in plan.steps]
        if runs is None:
            runs = [b.run for b in self._background] if asynchronous() else [s.prepared.run for s in plan.steps]
        self._runs = runs
        timely = [step.prepared.timely for step in plan.steps]
        self._bounded = [a if t else b.run for a, b, t in zip(runs, self._background, timely, strict=True)]
        self._spare: dict[int, Step] = {}  # steps prepared again on the CPU, by number; -1 is the whole model
        self._lock = threading.Lock()
        self._single = runs[0] if len(runs) == 1 else None
        self._places = {operand: place for place, operand in enumerate(plan.model.main.outputs)}
        self._frames: deque[dict[int, Array]] = deque()  # buffers of intermediates, free for the next execution

    def run(
        self,
        inputs: Sequence[Array | None],
        outputs: list[Array | None],
        control: Control,
        report: Report | None = None,
        buffers: Mapping[int, Buffer] = NO_BUFFERS,
    ) -> list[Array | None]:
        """Execute once. `outputs` as in `hal.request.Request`; returns them filled.

        buffers: inputs and outputs that lie in driver buffers, by operand of the main subgraph; their arrays are None.
        """
        try:
            if self._single is not None and report is None and control.deadline is None and not buffers:
                request = Request(inputs, outputs)
                self._single(request, control)
                if request.shapes and not all(request.sufficient):
                    raise too_small(request)
                return outputs
            return self._run_steps(inputs, outputs, control, report, buffers)
        except NEVER_RETRIED:
            raise
        except Exception as error:
            return self._whole_on_cpu(inputs, outputs, control, report, buffers, error)

    def _run_steps(
        self,
        inputs: Sequence[Array | None],
        outputs: list[Array | None],
        control: Control,
        report: Report | None,
        buffers: Mapping[int, Buffer],
    ) -> list[Array | None]:
        main = self.plan.model.main
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = {}
        arrays: dict[int, Array | None] = dict(zip(main.inputs, inputs, strict=True))
        arrays.update(zip(main.outputs, outputs, strict=True))
        for number, step in enumerate(self.plan.steps):
            control.check()
            given = [arrays[i] for i in step.part.inputs]
            room = self._room(step, arrays, frame)
            request = request_on(step.part.inputs, step.part.outputs, given, room, buffers)
            timing, total, device = self._step(number, step, request, control, report)
            if not all(request.sufficient):
                raise too_small(request)
            for operand, array in zip(step.part.outputs, request.outputs, strict=True):
                arrays[operand] = array
                if operand in self._places:
                    outputs[self._places[operand]] = array
            if report is not None:
                report.steps.append(StepTiming(device, len(step.part.model.main.operations), total, timing))
        self._frames.append(frame)
        return outputs

    def _room(self, step: Step, arrays: dict[int, Array | None], frame: dict[int, Array]) -> list[Array | None]:
        """Where a step's outputs go: the caller's arrays, or the frame's buffers, made once."""
        room: list[Array | None] = []
        for operand, fresh in zip(step.part.outputs, step.fresh, strict=True):
            if operand in self._places:
                room.append(arrays[operand])
            elif fresh is None:
                room.append(None)
            else:
                if operand not in frame:
                    frame[operand] = np.empty(*fresh)
                room.append(frame[operand])
        return room

    def _step(
        self, number: int, step: Step, request: Request, control: Control, report: Report | None
    ) -> tuple[Timing | None, int, str]:
        """Run one step, on the CPU where it fails; fills the request. Returns the driver's timing, the total, the device."""
        start = time.monotonic_ns()
        room, device = list(request.outputs), step.device.name
        try:
            timing = self._call(number, step, request, control)
        except NEVER_RETRIED:
            raise
        except Exception as error:
            if not self._may_fall_back([step]):
                raise as_error(error, f"device {device}") from error
            self._note(report, f"step {number} failed on {device}: {error}; trying it on the CPU")
            spare = self._prepared_on_cpu(number)
            request.outputs[:], request.shapes[:], request.sufficient[:] = room, [], []
            timing = _run_on_host(spare.prepared.run, request, control)
            device = spare.device.name
        total = time.monotonic_ns() - start
        return plausible(timing, f"device {device}") if control.measure else None, total, device

    def _call(self, number: int, step: Step, request: Request, control: Control) -> Timing | None:
        """A deadline holds whatever the driver does; driver buffers are given to the driver they are of."""
        run = self._runs[number] if control.deadline is None else self._bounded[number]
        if request.input_buffers or request.output_buffers:
            return run_resolved(step.prepared, request, control, run)
        return run(request, control)

    def _may_fall_back(self, steps: Sequence[Step]) -> bool:
        """Not where it is forbidden, not from the CPU to itself, and never with operations of extensions."""
        if self.plan.wishes.fallback == "forbid" or all(s.device.name == discovery.CPU for s in steps):
            return False
        return not any(is_extension(o.type) for s in steps for o in s.part.model.main.operations)

    def _prepared_on_cpu(self, number: int) -> Step:
        with self._lock:
            if number not in self._spare:
                model = self.plan.model
                part = self.plan.steps[number].part if number >= 0 else cut(model, range(len(model.main.operations)))
                wishes = replace(self.plan.wishes, deadline=None)
                self._spare[number] = prepare(discovery.cpu(), part, wishes)
            return self._spare[number]

    def _whole_on_cpu(
        self,
        inputs: Sequence[Array | None],
        outputs: list[Array | None],
        control: Control,
        report: Report | None,
        buffers: Mapping[int, Buffer],
        error: Exception,
    ) -> list[Array | None]:
        """The last resort of a failed execution; raises `error` where there is none."""
        device = self.plan.steps[0].device.name if self._single is not None else "a step"
        if not self._may_fall_back(self.plan.steps):
            raise as_error(error, f"device {device}") from error
        self._note(report, f"execution failed on {device}: {error}; trying the whole model on the CPU")
        main = self.plan.model.main
        request = request_on(main.inputs, main.outputs, inputs, outputs, buffers)
        try:
            _run_on_host(self._prepared_on_cpu(-1).prepared.run, request, control)
        except NnhalError as second:
            raise second from error
        if not all(request.sufficient):
            raise too_small(request)
        return request.outputs

    def _note(self, report: Report | None, text: str) -> None:
        _log.info("%s", text)
        if report is not None:
            report.fallbacks.append(text)
        if self.plan.wishes.fallback == "warn":
            warnings.warn(text, FallbackWarning, stacklevel=4)

    def close(self) -> None:
        """Close every prepared model."""
        for background in self._background:
            background.close()
        for step in self._spare.values():
            step.prepared.close()
        self._frames.clear()


class Whole(Prepared):
    """A compiled model as one prepared model: what stands for it in the roles of buffers, and behind fences."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self.model = runner, runner.plan.model

    def run(self, request: Request, control: Control) -> Timing | None:
        """Run all steps."""
        buffers = by_operand(self.model, request.input_buffers, request.output_buffers)
        report = Report() if control.measure else None
        request.outputs[:] = self._runner.run(request.inputs, request.outputs, control, report, buffers)
        if report is None:
            return None
        return Timing(summed(None if s.driver is None else s.driver.on_device for s in report.steps))


def by_operand(model: Model, read: Mapping[int, Buffer], written: Mapping[int, Buffer]) -> dict[int, Buffer]:
    """Driver buffers by operand of the main subgraph, out of those by place among its inputs and outputs."""
    main = model.main
    return {main.inputs[n]: b for n, b in read.items()} | {main.outputs[n]: b for n, b in written.items()}


def request_on(
    reads: Sequence[int],
    writes: Sequence[int],
    given: Sequence[Array | None],
    room: list[Array | None],
    buffers: Mapping[int, Buffer],
) -> Request:
    """A request on operands of the whole, with the driver buffers among them."""
    if not buffers:
        return Request(given, room)
    return Request(
        given,
        room,
        input_buffers={n: buffers[i] for n, i in enumerate(reads) if i in buffers},
        output_buffers={n: buffers[i] for n, i in enumerate(writes) if i in buffers},
    )


def _run_on_host(run: Run, request: Request, control: Control) -> Timing | None:
    """Run what knows no driver buffers: their contents are copied out before, and in afterwards."""
    inputs = list(request.inputs)
    for index, buffer in request.input_buffers.items():
        inputs[index] = contents_of(buffer)
    inner = Request(inputs, list(request.outputs))
    timing = run(inner, control)
    request.shapes[:], request.sufficient[:] = inner.shapes, inner.sufficient
    for index, array in enumerate(inner.outputs):
        written = request.output_buffers.get(index)
        if written is None:
            request.outputs[index] = array
        elif array is not None:
            fill(written, array)
    return timing


def too_small(request: Request) -> OutputInsufficientSize:
    """The error for outputs whose room is too small, with every shape as far as known."""
    small = [i for i, enough in enumerate(request.sufficient) if not enough]
    what = ", ".join(f"output {i} needs shape {list(request.shapes[i] or ())}" for i in small)
    return OutputInsufficientSize(f"execution: {what}; the memory given is smaller", request.shapes)
