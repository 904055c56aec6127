"""Execution of a plan: step by step, intermediates owned by the execution, fallback by the contract."""

import threading
import time
import warnings
from collections import deque
from collections.abc import Sequence
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
from nnhal.hal.request import Control, Request, Timing
from nnhal.hal.utilities import is_extension
from nnhal.model.parts import cut
from nnhal.runtime import discovery
from nnhal.runtime.compilation import FallbackWarning, Plan, Step, as_nnhal, prepare

NEVER_RETRIED = (InvalidRequest, OutputInsufficientSize, MissedDeadline, Cancelled, BadState)
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
    """What one execution did: timing of each step, in order, and what fell back."""

    steps: list[StepTiming] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)


class Runner:
    """Runs a plan; may be used by many threads at once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._spare: dict[int, Step] = {}  # steps prepared again on the CPU, by number; -1 is the whole model
        self._lock = threading.Lock()
        self._single = plan.steps[0].prepared.run if len(plan.steps) == 1 else None
        self._places = {operand: place for place, operand in enumerate(plan.model.main.outputs)}
        self._frames: deque[dict[int, Array]] = deque()  # buffers of intermediates, free for the next execution

    def run(
        self,
        inputs: Sequence[Array | None],
        outputs: list[Array | None],
        control: Control,
        report: Report | None = None,
    ) -> list[Array | None]:
        """Execute once. `outputs` as in `hal.request.Request`; returns them filled."""
        try:
            if self._single is not None and report is None:
                request = Request(inputs, outputs)
                self._single(request, control)
                if request.shapes and not all(request.sufficient):
                    raise too_small(request)
                return outputs
            return self._run_steps(inputs, outputs, control, report)
        except NEVER_RETRIED:
            raise
        except Exception as error:
            return self._whole_on_cpu(inputs, outputs, control, report, error)

    def _run_steps(
        self, inputs: Sequence[Array | None], outputs: list[Array | None], control: Control, report: Report | None
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
            request, timing, total, device = self._step(number, step, given, room, control, report)
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
        self,
        number: int,
        step: Step,
        given: list[Array | None],
        room: list[Array | None],
        control: Control,
        report: Report | None,
    ) -> tuple[Request, Timing | None, int, str]:
        start = time.monotonic_ns()
        request = Request(given, list(room))
        device = step.device.name
        try:
            timing = step.prepared.run(request, control)
        except NEVER_RETRIED:
            raise
        except Exception as error:
            if not self._may_fall_back([step]):
                raise as_nnhal(error, f"device {device}") from error
            self._note(report, f"step {number} failed on {device}: {error}; trying it on the CPU")
            spare = self._prepared_on_cpu(number)
            request = Request(given, list(room))
            timing = spare.prepared.run(request, control)
            device = spare.device.name
        return request, timing, time.monotonic_ns() - start, device

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
        error: Exception,
    ) -> list[Array | None]:
        """The last resort of a failed execution; raises `error` where there is none."""
        device = self.plan.steps[0].device.name if self._single is not None else "a step"
        if not self._may_fall_back(self.plan.steps):
            raise as_nnhal(error, f"device {device}") from error
        self._note(report, f"execution failed on {device}: {error}; trying the whole model on the CPU")
        request = Request(inputs, outputs)
        try:
            self._prepared_on_cpu(-1).prepared.run(request, control)
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
        for step in (*self.plan.steps, *self._spare.values()):
            step.prepared.close()
        self._frames.clear()


def too_small(request: Request) -> OutputInsufficientSize:
    """The error for outputs whose room is too small, with every shape as far as known."""
    small = [i for i, enough in enumerate(request.sufficient) if not enough]
    what = ", ".join(f"output {i} needs shape {list(request.shapes[i] or ())}" for i in small)
    return OutputInsufficientSize(f"execution: {what}; the memory given is smaller", request.shapes)
