"""Executions in the background: with a callback, or with fences.

These are the defaults of every driver. A driver whose engine has queues overrides the methods of `Prepared` that call
them.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from nnhal.base import trace
from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import (
    InvalidArgument,
    MissedDeadline,
    NnhalError,
    OperationFailed,
    ResourceExhausted,
    as_error,
    copy_of_error,
)
from nnhal.base.log import logger
from nnhal.base.native import Gate
from nnhal.base.stacks import without_frames
from nnhal.hal.fence import Fence, Signal, fence_pair
from nnhal.hal.host import run_resolved
from nnhal.hal.memory import check_use
from nnhal.hal.request import Control, Request, RequestExecutor, Run, Timing, checked_timing
from nnhal.ops.schema import show

_log = logger("execution")
Notify = Callable[[NnhalError | None, Timing | None], None]  # the error or None, and the measured times


class ExecutionInfo(NamedTuple):
    """The times of a fenced execution: since its launch, and since the last fence that it waited for was signalled."""

    launched: Timing
    fenced: Timing


class InfoUnavailable(MissedDeadline):
    """An isolated driver does not report the outcome of an ended execution in time. The caller may try again."""


class FencedExecution:
    """A launched fenced execution: its fence, and its outcome once that is signalled.

    Attributes:
        fence: Signalled at the end; None if the execution had ended before the call returned.
    """

    def __init__(self, fence: Fence | None) -> None:
        self.fence = fence
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._then: list[Callable[[], object]] = []
        self._error: NnhalError | None = None
        self._info = ExecutionInfo(Timing(), Timing())

    def get_execution_info(self) -> ExecutionInfo:
        """Return both times; raise the execution's error, or OperationFailed before its end."""
        if not self._done.is_set():
            raise OperationFailed("execution info: the execution has not ended, must be asked for after its fence")
        if self._error is not None:
            raise copy_of_error_once(self._error)
        return self._info

    def info_until(self, _: int | None) -> ExecutionInfo:
        """Like `get_execution_info`, with the monotonic time up to which to wait for another process's report.

        Untold if there is none by then; None for no limit.
        """
        return self.get_execution_info()

    @property
    def error(self) -> NnhalError | None:
        """Return the error that it ended with, if any. Do not raise this object."""
        return self._error

    @property
    def failed(self) -> bool:
        """Whether it has ended with an error."""
        return self._error is not None

    def finish(self, error: NnhalError | None, info: ExecutionInfo | None) -> None:
        """Set the outcome, before the executing side signals. The stored error refers to nothing of the execution."""
        self._error, self._info = error, info or self._info
        if error is not None:
            without_frames(error)
        with self._lock:
            self._done.set()
            left, self._then = self._then, []
        for call in left:
            try:
                call()
            except Exception:
                _log.exception("the callback after a fenced execution failed")

    def when_ended(self, call: Callable[[], object]) -> None:
        """Call this when the execution has ended, at once if it has."""
        with self._lock:
            if not self._done.is_set():
                self._then.append(call)
                return
        call()


def copy_of_error_once(error: NnhalError) -> NnhalError:
    """Return a copy of an error to raise once: a stored one would collect the frames of all that raise it."""
    try:
        raised = copy_of_error(error)
    except Exception:  # of a driver's class
        return error
    raised.__cause__, raised.__context__ = error.__cause__, error.__context__
    return raised.with_traceback(error.__traceback__)


def asynchronous() -> bool:
    """Whether every execution is launched and awaited with a callback (`NNHAL_SYNC_EXEC=0`)."""
    return os.environ.get("NNHAL_SYNC_EXEC", "1") == "0"


def run_in_background(prepared: RequestExecutor, request: Request, control: Control, notify: Notify) -> None:
    """Execute in another thread and notify exactly once."""
    notify_of(partial(run_resolved, prepared), request, control, notify)


def notify_of(run: Run, request: Request, control: Control, notify: Notify) -> None:
    """Like `run_in_background`, with any function that runs."""

    def work() -> None:
        error: NnhalError | None = None
        timing: Timing | None = None
        try:
            timing = request.execute(run, control)
        except BaseException as raised:
            error = as_error(raised, "execution")
        try:
            notify(error, timing)
        except Exception:
            _log.exception("the callback of an execution failed")
        del error  # its traceback holds this frame

    start(work)


Work = Callable[[], Gate | None]  # returns a gate to open when it is done


class _Worker:
    """A thread that does one piece of work after another, and ends after some idle time.

    given: its next work, if any. The thread that sets it, atomically, owns the worker; the worker's end is set there
    too. The list of idle workers is only a hint, because an interrupt may come after any call.
    """

    __slots__ = ("given", "wake")

    def __init__(self, work: Work) -> None:
        self.given: dict[str, object] = {"work": work}
        self.wake = Gate()
        threading.Thread(target=self._loop, name="nnhal-worker", daemon=True).start()

    def _loop(self) -> None:
        done: Gate | None = None
        looks = 0  # without work
        while True:
            work: Any = self.given.pop("work", None)
            if work is not None:  # there is none if a gate was opened twice
                try:
                    done = work()
                except BaseException:
                    _log.exception("work in the background failed")
                _idle.append(self)
                looks = 0
            del work
            # Periodic: the thread that gave the work may have been interrupted before it opened the gate.
            passed, done = self.wake.wait(_LOOK, done), None
            looks += not passed
            if looks >= _LOOKS and self.given.setdefault("work", _END) is _END:
                with suppress(ValueError):
                    _idle.remove(self)
                return


_LOOK, _LOOKS = 0.25, 20  # seconds between checks of an idle worker, and after how many it ends
_END = object()  # in place of work
_idle: "deque[_Worker]" = deque()


def hand_over(work: Work) -> Gate | None:
    """Run work in another thread, preferably an idle one, as soon as the returned gate is opened.

    None if it has begun already. ResourceExhausted without a free thread.
    """
    work = trace.with_span(work, "in the background")
    try:
        while (worker := _idle.pop()).given.setdefault("work", work) is not work:
            pass
        return worker.wake
    except IndexError:
        pass
    try:
        _Worker(work)
    except RuntimeError as error:
        raise ResourceExhausted(f"execution: no thread for it: {error}") from None
    return None


def start(work: Work) -> None:
    """Run work in another thread; ResourceExhausted without a free one."""
    gate = hand_over(work)
    if gate is not None:
        gate.open()


os.register_at_fork(after_in_child=_idle.clear)


def check_fenced(request: Request, wait_for: Sequence[Fence]) -> None:
    """Raise InvalidArgument if a fence is in error, or an output's shape is not fully specified."""
    for place, fence in enumerate(wait_for):
        if fence.status() not in (None, ErrorStatus.NONE):
            raise InvalidArgument(f"fence {place} to wait for is in error already, must be pending or signalled")
    for place, argument in enumerate(request.signature.outputs):
        room, buffer = request.room(place), request.output_buffers.get(place)
        if buffer is not None:
            if buffer.facts.fixed is None:
                raise InvalidArgument(
                    f"output {place} is a buffer of shape {show(buffer.facts.dimensions)}, must have one that is fully "
                    "specified in a fenced execution"
                )
        elif argument.fixed is None and not (room is not None and argument.specified_by(room)):
            what = (
                "nothing"
                if room is None
                else "only a size in bytes"
                if room.dtype != argument.dtype
                else f"a buffer of shape {show(room.shape)}"
            )
            raise InvalidArgument(
                f"output {place} has shape {show(argument.shape)} and {what}, must have one that is fully specified in a "
                "fenced execution"
            )


def signal_after(fences: Sequence[Fence], then: Callable[[], object]) -> Fence:
    """Return a fence that is signalled once all these are signalled and `then` has run; in error if any of it failed.

    `then` is not called if no holder of the returned fence is left.
    """
    joined, signal = fence_pair()
    own = [fence.duplicate() for fence in fences]

    def work() -> None:
        try:
            if signal.wait_for_fences(own):
                then()
                signal.set()
        except BaseException as error:
            signal.set(as_error(error, "fence").status)

    start(work)
    return joined


def run_fenced(
    prepared: RequestExecutor, request: Request, control: Control, wait_for: Sequence[Fence], after: int | None
) -> FencedExecution:
    """Run in the background once all fences are signalled, then signal."""
    check_use(prepared, request)
    return run_after(partial(run_resolved, prepared), request, control, wait_for, after)


def run_after(
    run: Run,
    request: Request,
    control: Control,
    wait_for: Sequence[Fence],
    after: int | None,
    ended: Callable[[bool], object] = lambda _: None,
) -> FencedExecution:
    """Like `run_fenced`, with any function that runs. ended: called at the end with whether it failed."""
    check_fenced(request, wait_for)
    fence, signal = fence_pair()
    execution = FencedExecution(fence)
    launched = time.monotonic_ns()
    own = [f.duplicate() for f in wait_for]
    execution.when_ended(lambda: ended(execution.failed))
    start(_Work(run, request, control, own, after, execution, signal, launched).run)
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
        error, info = self._outcome()
        self.execution.finish(error, info)
        self.signal.set(ErrorStatus.NONE if error is None else error.status)
        del self, error  # the frames of a traceback refer to this one, their caller

    def _outcome(self) -> tuple[NnhalError | None, ExecutionInfo | None]:
        try:
            return None, self._run()
        except BaseException as raised:
            return as_error(raised, "fenced execution"), None

    def _wait(self, fence: Fence) -> None:
        """Wait for a fence's success, as long as the execution is wanted."""
        while fence.status() is None:
            self.control.check()
            with suppress(MissedDeadline):
                fence.wait(self.control.patience())
        fence.wait(0)

    def _run(self) -> ExecutionInfo:
        for fence in self.wait_for:
            self._wait(fence)
        ready = time.monotonic_ns()
        control = self.control
        if self.after is not None:
            limit = ready + self.after
            control = control._replace(deadline=limit if control.deadline is None else min(limit, control.deadline))
        timing = self.request.execute(self.call, control)
        if self.request.small:
            raise InvalidArgument("fenced execution: an output is larger than its memory")
        end = time.monotonic_ns()
        if not self.request.output_buffers:  # buffers were checked before they had contents
            control.check()
        if not self.control.measure:
            return ExecutionInfo(Timing(), Timing())
        timing = checked_timing(timing, self.request.signature.where)
        device = None if timing is None else timing.on_device
        fenced = checked_timing(Timing(device, end - ready), "fenced execution") or Timing(None, end - ready)
        return ExecutionInfo(Timing(fenced.on_device, end - self.launched), fenced)
