"""Executions in the background: with a callback, or with fences to wait for and one to tell the end.

These are the defaults that every driver has; a driver whose engine queues work by itself overrides the methods of
`Prepared` that call them.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import InvalidArgument, MissedDeadline, NnhalError, OperationFailed, ResourceExhausted
from nnhal.base.log import logger
from nnhal.base.operands import dtype_of
from nnhal.hal.buffers import HostBuffer, Run, check_use, run_resolved
from nnhal.hal.fence import Fence, Signal, fence_pair
from nnhal.hal.request import Control, Request, Timing, plausible
from nnhal.model.validate import shape_of, validate
from nnhal.ops.schema import show

if TYPE_CHECKING:
    from nnhal.hal.device import Prepared

_SLICE = 0.02  # seconds between looks at whether an execution that waits is still wanted
_log = logger("execution")
Notify = Callable[[NnhalError | None, Timing | None], None]  # the error or None, and what was measured


class ExecutionInfo(NamedTuple):
    """Timing of a fenced execution: since it was launched, and since the last fence that it waited for was signalled."""

    launched: Timing
    fenced: Timing


class FencedExecution:
    """A fenced execution: its fence, and, once that is signalled, what became of it.

    fence: None where the execution had ended before the call returned.
    """

    def __init__(self, fence: Fence | None) -> None:
        self.fence = fence
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._then: list[Callable[[], object]] = []
        self._error: NnhalError | None = None
        self._info = ExecutionInfo(Timing(), Timing())

    def get_execution_info(self) -> ExecutionInfo:
        """Timings of both kinds; raises what the execution raised, and OperationFailed before it has ended."""
        if not self._done.is_set():
            raise OperationFailed("execution info: the execution has not ended, must be asked for after its fence")
        if self._error is not None:
            raise self._error
        return self._info

    def finish(self, error: NnhalError | None, info: ExecutionInfo | None) -> None:
        """What the executing side says at the end, before it signals."""
        self._error, self._info = error, info or self._info
        with self._lock:
            self._done.set()
            left, self._then = self._then, []
        for call in left:
            try:
                call()
            except Exception:
                _log.exception("what should follow a fenced execution failed")

    def when_ended(self, call: Callable[[], object]) -> None:
        """Call this when the execution has ended, at once where it has."""
        with self._lock:
            if not self._done.is_set():
                self._then.append(call)
                return
        call()


def asynchronous() -> bool:
    """Whether every execution is launched and waited for with a callback (`NNHAL_SYNC_EXEC=0`)."""
    return os.environ.get("NNHAL_SYNC_EXEC", "1") == "0"


def as_error(error: BaseException, where: str) -> NnhalError:
    """An error of a driver as one of nnhal's own."""
    return error if isinstance(error, NnhalError) else OperationFailed(f"{where}: {type(error).__name__}: {error}")


def run_in_background(prepared: "Prepared", request: Request, control: Control, notify: Notify) -> None:
    """Run on a thread of its own and notify exactly once."""

    def work() -> None:
        error: NnhalError | None = None
        timing: Timing | None = None
        try:
            timing = run_resolved(prepared, request, control)
        except BaseException as raised:
            error = as_error(raised, "execution")
        try:
            notify(error, timing)
        except Exception:
            _log.exception("the callback of an execution failed")

    start(work, "nnhal-execute")


def start(work: Callable[[], None], name: str) -> None:
    """Do work on a thread of its own; ResourceExhausted where there is none to be had."""
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError as error:
        raise ResourceExhausted(f"execution: no thread for it: {error}") from None


def check_fenced(request: Request, wait_for: Sequence[Fence]) -> None:
    """InvalidArgument where a fence is in error already, or an output's shape is not fully specified."""
    for place, fence in enumerate(wait_for):
        if fence.status() not in (None, ErrorStatus.NONE):
            raise InvalidArgument(f"fence {place} to wait for is in error already, must be pending or signalled")
    for place, array in enumerate(request.outputs):
        if array is None and place not in request.output_buffers:
            raise InvalidArgument(f"output {place} has no fully specified shape, must have one in a fenced execution")
    for place, buffer in request.output_buffers.items():
        if buffer.facts.fixed is None:
            raise InvalidArgument(
                f"output {place} is a buffer of shape {show(buffer.facts.dimensions)}, must have one that is fully "
                "specified in a fenced execution"
            )


def run_fenced(
    prepared: "Prepared", request: Request, control: Control, wait_for: Sequence[Fence], after: int | None
) -> FencedExecution:
    """Run on a thread of its own once all fences are signalled, then signal."""
    check_use(prepared, request)
    _check_rooms(prepared, request)
    return run_after(partial(run_resolved, prepared), request, control, wait_for, after)


def _check_rooms(prepared: "Prepared", request: Request) -> None:
    """InvalidArgument where an output has room in bytes only, and the model does not say its shape either."""
    main, values = prepared.model.main, validate(prepared.model).subgraphs[0].values
    for place, array in enumerate(request.outputs):
        index = main.outputs[place]
        value = values[index]
        shape = shape_of(main.operands[index]) if value is None else value.shape
        raw = array is not None and array.dtype == np.uint8 != dtype_of(main.operands[index].type)
        if raw and (shape is None or None in shape):
            raise InvalidArgument(f"output {place} has shape {show(shape)}, must be fully specified, not room in bytes")


def run_after(
    run: Run, request: Request, control: Control, wait_for: Sequence[Fence], after: int | None
) -> FencedExecution:
    """As `run_fenced`, with any way to run that takes buffers."""
    check_fenced(request, wait_for)
    fence, signal = fence_pair()
    execution = FencedExecution(fence)
    launched = time.monotonic_ns()
    own = [f.duplicate() for f in wait_for]
    work = _Work(run, request, control, own, after, execution, signal, launched)
    start(work.run, "nnhal-fenced")
    return execution


class _Work(NamedTuple):
    call: Run
    request: Request
    control: Control
    wait_for: list[Fence]
    after: int | None
    execution: FencedExecution
    signal: Signal
    launched: int

    def run(self) -> None:
        error: NnhalError | None = None
        info: ExecutionInfo | None = None
        try:
            info = self._run()
        except BaseException as raised:
            error = as_error(raised, "fenced execution")
        for fence in self.wait_for:
            fence.close()
        self.execution.finish(error, info)
        self.signal.set(ErrorStatus.NONE if error is None else error.status)

    def _wait(self, fence: Fence) -> None:
        """Wait for a success of the fence, for as long as the execution is wanted."""
        control = self.control
        while fence.status() is None:
            control.check()
            left = None if control.deadline is None else max(0.0, (control.deadline - time.monotonic_ns()) / 1e9)
            if control.cancelled is not None:
                left = _SLICE if left is None else min(_SLICE, left)
            with suppress(MissedDeadline):
                fence.wait(left)
        fence.wait(0)

    def _run(self) -> ExecutionInfo:
        for fence in self.wait_for:
            self._wait(fence)
        ready = time.monotonic_ns()
        control = self.control
        if self.after is not None:
            limit = ready + self.after
            control = replace(control, deadline=limit if control.deadline is None else min(limit, control.deadline))
        timing = self.call(self.request, control)
        if not all(self.request.sufficient):
            raise InvalidArgument("fenced execution: an output is larger than its memory")
        end = time.monotonic_ns()
        if control.deadline is not None and end > control.deadline:
            for buffer in self.request.output_buffers.values():
                if isinstance(buffer, HostBuffer):
                    buffer.discard()
            raise MissedDeadline("fenced execution: the deadline has passed")
        if not self.control.measure:
            return ExecutionInfo(Timing(), Timing())
        device = None if timing is None else timing.on_device
        fenced = plausible(Timing(device, end - ready), "fenced execution") or Timing(None, end - ready)
        return ExecutionInfo(Timing(fenced.on_device, end - self.launched), fenced)
