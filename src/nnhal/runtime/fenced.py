"""Fenced executions of a compiled model.

If every driver has fences (an isolated one always does), partitions are launched at once, each behind the fence of the
one before. Otherwise, the whole execution runs in the background behind the caller's fences.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import Any

from nnhal.base import trace
from nnhal.base.answers import may_be_application_error
from nnhal.base.brief import short_repr
from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import (
    DeadObject,
    DeviceUnavailable,
    InvalidArgument,
    MissedDeadline,
    NnhalError,
    OperationFailed,
    OutputInsufficientSize,
)
from nnhal.base.log import logger
from nnhal.base.memory import Memory, aligned
from nnhal.base.operands import Array
from nnhal.base.time import WORK_NS, limit, point_in_time, seconds_until
from nnhal.base.uncopied import NotCopyable
from nnhal.hal.answers import checked_info, fenced_by
from nnhal.hal.background import (
    ExecutionInfo,
    FencedExecution,
    InfoUnavailable,
    check_fenced,
    copy_of_error_once,
    run_after,
)
from nnhal.hal.fence import Fence
from nnhal.hal.host import HostBuffer
from nnhal.hal.request import UNLIMITED, Argument, Control, Request, Timing, summed
from nnhal.runtime.allocation import Allocation
from nnhal.runtime.caller import Caller
from nnhal.runtime.execute import NEVER_RETRIED, PartitionRunner
from nnhal.runtime.inflight import OwnerProcess
from nnhal.runtime.job import Job, Report

_GRACE = 0.1  # seconds
_LOOK = 1.0  # seconds between checks whether the drivers' processes have used up their time
_MOST_FENCES = 16  # the most fences that go with a call to another process; for more, a thread waits here
_log = logger("execution")


class Fenced(NotCopyable, instead="another process gets its `result()`"):
    """A launched fenced execution.

    Attributes:
        way: How the partitions run, and why if they do not run behind fences themselves.
        fence: Signalled at the end; None if the execution has ended already. Select on it, await it, or pass it to
            other executions in `wait_for`.
    """

    def __init__(
        self,
        infos: Sequence[Callable[[int | None], ExecutionInfo]],
        fence: Fence | None,
        finish: Callable[[bool], Any],
        way: str,
        span: int = 0,
        deadline: int | None = None,
        patience: Callable[[], object] = lambda: None,
    ) -> None:
        """infos: of the partitions, in order; each returns its times or raises its error.

        They receive the deadline of the wait, as in `FencedExecution.info_until`. finish: called once with whether all
        went well; returns the outputs. span: nanoseconds that launching took. deadline: monotonic nanoseconds at which
        waiting ends, whatever the drivers do. patience: called if there is no deadline; raises DeviceUnavailable when
        isolated drivers have used up their time.
        """
        self._deadline, self._patience = deadline, patience
        self._infos, self.fence, self._finish, self.way = list(infos), fence, finish, way
        self._span = span if len(self._infos) > 1 else 0
        self._lock, self._home = threading.Lock(), OwnerProcess()
        self._results: tuple[Any] | None = None
        self._failed: NnhalError | None = None

    def done(self) -> bool:
        """Whether it has ended, successfully or not."""
        self._home.check("fenced execution")
        return self.fence is None or self.fence.status() is not None

    def __repr__(self) -> str:
        return short_repr(f"Fenced, {self.fence or 'ended'}", [self.way])

    def get_execution_info(self) -> ExecutionInfo:
        """Return the times of the execution: since the launch, and since the last fence in `wait_for` was signalled.

        Device times are sums over the partitions.

        Returns:
            The times, in nanoseconds.

        Raises:
            OperationFailed: The execution has not ended.
            NnhalError: The execution failed.
        """
        self._home.check("fenced execution")
        return self._info_until(None)

    def _info_until(self, until: int | None) -> ExecutionInfo:
        infos = [info(until) for info in self._infos]
        last = infos[-1].launched.in_driver
        launched = None if last is None else last + self._span
        on_device, in_driver = summed(i.fenced.on_device for i in infos), summed(i.fenced.in_driver for i in infos)
        return ExecutionInfo(Timing(on_device, launched), Timing(on_device, in_driver))

    @trace.traced_method("application", "results", "wait for the result")
    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end and return the outputs.

        An isolated driver has at least one second to report the outcome of an ended execution. You may call `result`
        again after `MissedDeadline`. Further calls return the same arrays or raise the same error.

        Args:
            timeout: The most seconds to wait; None waits until the deadline.

        Returns:
            The outputs, as a call of the model returns them.

        Raises:
            MissedDeadline: The execution has not ended, or the driver has not reported its outcome in time.
            NnhalError: The execution failed.
        """
        self._home.check("fenced execution")
        timeout = limit(timeout, "timeout")
        until = point_in_time(timeout)
        if self.fence is not None:
            try:
                self._wait(self.fence, timeout)
            except NnhalError:
                if self.done():
                    try:
                        self._tell(until)
                    finally:
                        self._finish(False)
                raise
        with self._lock:
            if self._failed is not None:
                raise copy_of_error_once(self._failed)
            if self._results is None:
                try:
                    self._info_until(until)
                    self._results = (self._finish(True),)
                except InfoUnavailable as error:
                    raise MissedDeadline(str(error)) from None
                except NnhalError as error:
                    self._finish(False)
                    self._failed = copy_of_error_once(error).with_traceback(None)
                    raise
            return self._results[0]

    def _tell(self, until: int | None) -> None:
        """Raise the error of the first partition that failed."""
        for info in self._infos:
            with suppress(_NotEnded):  # a later one failed by itself
                info(until)

    def _wait(self, fence: Fence, timeout: float | None) -> None:
        """Wait as `Fence.wait` does, but not much longer than the deadline, at which drivers should end it."""
        if self._deadline is None:
            if timeout is None:
                try:
                    while not _signalled(fence, _LOOK):
                        self._patience()
                except DeviceUnavailable:
                    self._finish(False)
                    raise
            fence.wait(timeout)
            return
        left = seconds_until(self._deadline) + _GRACE
        try:
            fence.wait(left if timeout is None else min(left, timeout))
        except MissedDeadline:
            if not self.done() and (timeout is None or left <= timeout):
                self._finish(False)
                raise MissedDeadline("fenced execution: the deadline has passed") from None
            raise


def launch(
    caller: Caller,
    job: Job,
    wait_for: Sequence[Fence],
    after: int | None,
    leave: Callable[[], object],
    begun: list[None],
) -> Fenced:
    """Launch an execution.

    after: nanoseconds that it may take once the fences are signalled. leave: called when nothing runs here any more.
    begun: gets an entry before anything may run.
    """
    read, written = caller.allocations(job)
    buffers = {n: x._open() for n, x in read.items()}, {n: x._open() for n, x in written.items()}
    given = [None if isinstance(x, Allocation) else x for x in job.given]
    rooms = [
        None if isinstance(x, Allocation) else x for x in job.rooms or [None] * len(caller.plan.model.main.outputs)
    ]
    signature = caller.whole.signature
    whole = signature.make(signature, given, rooms, *buffers)
    check_fenced(whole, wait_for)
    why = _why_not_a_chain(caller, job, whole, wait_for, after)
    job.begin(written)  # from now on the contents are those of the next execution
    chain = _Chain(caller, job, whole, wait_for, written)
    try:
        if not why:
            try:
                return chain.launch(leave, begun)
            except (*NEVER_RETRIED, InvalidArgument, DeadObject):
                raise
            except NnhalError as error:
                why = str(error)
        return _in_background(caller, job, (read, written), whole, chain.launched, wait_for, after, why, leave, begun)
    except BaseException as error:
        job.written = written
        job.settle(False)
        if (
            begun and isinstance(error, Exception) and not may_be_application_error(error)
        ):  # an interrupt may have come anywhere
            _when_all_ended(chain.local, leave)
        raise


def _why_not_a_chain(caller: Caller, job: Job, whole: Request, wait_for: Sequence[Fence], after: int | None) -> str:
    """Return why partitions are not launched one behind the other, or "" if they are."""
    steps = caller.plan.steps
    if any(crossing.form.converts for crossing in (*job.taken.values(), *job.left.values())):
        return "numbers of 16 or 64 bits are converted before and after it"
    if not any(step.prepared.fenced_by_driver for step in steps):
        return "no driver supports fences"
    if any(step.inside for step in steps):
        return "the runtime runs control flow itself"
    if caller.plan.configuration.turns is not None:
        return "options may change between executions, and all partitions of one need the same"
    if after is not None:  # drivers may not report in time, and only this process can notice
        return "a limit from its fences on"
    if len(wait_for) > _MOST_FENCES:
        return f"more than {_MOST_FENCES} fences to wait for"
    if any(line.open for line in caller.lines):
        return "shapes are not known before"
    if any(
        isinstance(buffer, HostBuffer) for buffer in (*whole.input_buffers.values(), *whole.output_buffers.values())
    ):
        return "an argument lies in memory of the runtime's"
    if job.control.bounded and (len(steps) > 1 or any(_where(x) == "shared" for x in whole.rooms or ())):
        return "it may have to end early, and others read what drivers would go on to write"
    if any(_where(x) == "elsewhere" for x in (*whole.given, *(whole.rooms or ()))):
        return "an argument lies in memory that drivers cannot share as it is"
    read = {operand for line in caller.lines for operand in line.reads}
    for place, (operand, argument) in enumerate(
        zip(caller.plan.model.main.outputs, whole.signature.outputs, strict=True)
    ):
        room = whole.room(place)
        if operand in read and room is not None and _where(room) == "shared" and not _holds(room, argument):
            return "a later partition reads an output that lies in bytes of the caller's memory"
    return ""


def _where(array: Array | None) -> str:
    """Classify the memory of an argument.

    "plain" is an array of this process; "shared" is a memory that a partition reads and writes in place. An isolated
    driver writes any other memory to a copy, which is read back after the fence.
    """
    at = None if array is None or array.base is None else Memory.of(array)
    if at is None or array is None:
        return "plain"
    return "shared" if at[0].sealed and array.flags.aligned and array.flags.c_contiguous else "elsewhere"


def _holds(room: Array, argument: Argument) -> bool:
    """Whether this is an array of the output's type and shape, which a later partition can read."""
    return room.dtype == argument.dtype and room.shape == argument.fixed


def _in_background(
    caller: Caller,
    job: Job,
    allocations: tuple[Mapping[int, Allocation], Mapping[int, Allocation]],
    whole: Request,
    launched: Sequence[FencedExecution],
    wait_for: Sequence[Fence],
    after: int | None,
    why: str,
    leave: Callable[[], object],
    begun: list[None],
) -> Fenced:
    """Run all partitions as one piece of work in the background."""
    read, written = allocations
    _log.debug("%s: fenced execution in the background: %s", caller.plan.model.name or "model", why)

    patience = _Patience(wait_for, len(launched))

    def run(request: Request, control: Control) -> Timing | None:
        for execution in launched:  # they may write to the same memory
            while execution.fence is not None and not _signalled(execution.fence, _LOOK):
                control.check()
                patience.check()
        job.control, job.report = control, Report() if control.measure else None
        try:
            caller.carry_out(job, read, written)
        except OutputInsufficientSize as error:
            raise InvalidArgument(f"fenced {error}") from None
        request.results, request.shapes = list(job.results), list(job.shapes)
        return None if job.report is None else job.report.on_device()

    def ended(failed: bool) -> None:
        if failed:  # also if it never ran
            for allocation in written.values():
                allocation._wrote(job.writer, False)
        leave()

    begun.append(None)
    execution = run_after(run, whole, job.control, wait_for, after, ended)
    return Fenced(
        [execution.info_until],
        execution.fence,
        lambda well: caller.edge.results(job) if well else None,
        f"in the background: {why}",
    )


class _Chain:
    """Partitions launched at once, each behind the fence of the one before."""

    def __init__(
        self,
        caller: Caller,
        job: Job,
        whole: Request,
        wait_for: Sequence[Fence],
        written: Mapping[int, Allocation],
    ) -> None:
        self._caller, self._job, self._whole, self._wait_for = caller, job, whole, wait_for
        self._written = written
        self._apart: dict[
            int, int
        ] = {}  # by partition: outputs that later partitions read, in this execution's memory, and their places
        self.launched: list[FencedExecution] = []
        self.local: list[FencedExecution] = []  # the ones that may still run in this process
        self._requests: list[tuple[PartitionRunner, Request]] = []

    def launch(self, leave: Callable[[], object], begun: list[None]) -> Fenced:
        """Launch each partition. `leave` is called when those in this process have ended."""
        begun.append(None)
        self._caller.plan.live.ran()
        began = time.monotonic_ns()
        main, lines, whole = self._caller.plan.model.main, self._caller.lines, self._whole
        buffers = {main.inputs[n]: b for n, b in whole.input_buffers.items()}
        buffers |= {main.outputs[n]: b for n, b in whole.output_buffers.items()}
        arrays: dict[int, Array | None] = dict(zip(main.inputs, whole.given, strict=True))
        arrays.update(zip(main.outputs, whole.rooms or (), strict=True))
        read = {operand for line in lines for operand in line.reads}
        self._apart = {
            operand: place
            for place, operand in enumerate(main.outputs)
            if operand in read and operand not in buffers and _where(arrays[operand]) == "plain"
        }
        held = {operand for operand in main.outputs if operand not in self._apart}
        written = {operand for line in lines for operand in line.writes}  # also outputs that no partition reads
        arrays.update(_between(lines, (read | written) - held))
        wait_for = self._wait_for
        for line in lines:
            given, rooms = [arrays[i] for i in line.reads], [arrays[i] for i in line.writes]
            request = line.signature.make(line.signature, given, rooms)
            line.name_buffers(request, buffers)
            if line.step.capture is not None:
                wait_for = line.step.capture.fenced(request, self._job.control, wait_for)
            try:
                execution = fenced_by(line.prepared, line.signature.where, request, self._job.control, wait_for)
            except InvalidArgument:
                if self.launched and any(fence.status() not in (None, ErrorStatus.NONE) for fence in wait_for):
                    break  # the partition before has failed meanwhile; `result` raises its error
                raise
            self.launched.append(execution)
            self._requests.append((line, request))
            if not line.timely:
                self.local.append(execution)
            wait_for = [] if execution.fence is None else [execution.fence]
        span = time.monotonic_ns() - began
        _when_all_ended(self.local, leave)
        infos = [partial(_info_of, e, line.signature.where) for e, line in zip(self.launched, lines, strict=False)]
        fence, deadline = self.launched[-1].fence, self._job.control.deadline
        way, patience = "each partition behind its fence", _Patience(self._wait_for, len(infos))
        return Fenced(infos, fence, self._finish, way, span, deadline, (lambda: None) if self.local else patience.check)

    def _finish(self, well: bool) -> Any:
        """Return the outputs, once every partition has ended well."""
        job = self._job
        job.written = self._written
        if not well:
            for _, request in self._requests:
                request.abandon()
            job.settle(False)
            return None
        main, whole = self._caller.plan.model.main, self._whole
        results: dict[int, Any] = {}
        for line, request in self._requests:
            if not request.ended:  # a driver that overrides `execute_fenced` may not have ended it
                request.execute(lambda *_: None, UNLIMITED)
            results.update(zip(line.writes, request.results, strict=True))
        for operand, place in self._apart.items():
            whole.write(place, results[operand])
            results[operand] = whole.results[place]
        if whole.small or any(request.small for _, request in self._requests):
            raise InvalidArgument("fenced execution: an output is larger than its memory")
        job.results = [results[operand] for operand in main.outputs]
        return self._caller.edge.results(job)


class _NotEnded(OperationFailed):
    """A partition was queried before its end."""


class _Patience:
    """Limits how long isolated partitions without a deadline may take, once the fences to wait for are signalled."""

    def __init__(self, wait_for: Sequence[Fence], steps: int) -> None:
        self._wait_for, self._length = list(wait_for), steps * WORK_NS
        self._since: int | None = None

    def check(self) -> None:
        """Raise DeviceUnavailable if they have had that time."""
        now = time.monotonic_ns()
        self._wait_for = [fence for fence in self._wait_for if not _signalled(fence, 0)]
        if self._since is None and not self._wait_for:
            self._since = now
        if self._since is not None and now - self._since > self._length:
            seconds = self._length // 10**9
            raise DeviceUnavailable(f"fenced execution: its driver's process did not end it within {seconds} s")


def _signalled(fence: Fence, seconds: float) -> bool:
    """Whether it is signalled or closed within this time."""
    try:
        fence.wait(seconds)
    except MissedDeadline:
        return fence.status() is not None
    except NnhalError:
        return True
    return True


def _info_of(execution: FencedExecution, where: str, until: int | None) -> ExecutionInfo:
    if execution.fence is not None and execution.fence.status() is None:
        raise _NotEnded(f"{where}: execution info: the execution has not ended")
    return checked_info(execution, where, until)


def _when_all_ended(executions: Sequence[FencedExecution], call: Callable[[], object]) -> None:
    left = [None] * len(executions)

    def one() -> None:
        left.pop()
        if not left:
            call()

    for execution in executions:
        execution.when_ended(one)
    if not executions:
        call()


def _between(lines: Sequence[PartitionRunner], operands: Collection[int]) -> dict[int, Array]:
    """Allocate shared memory for what partitions write and later ones read: drivers receive it by reference."""
    found = [
        (operand, argument.nbytes, argument)
        for line in lines
        for operand, argument in zip(line.writes, line.signature.outputs, strict=True)
        if operand in operands and argument.nbytes is not None
    ]
    ends = list(accumulate(aligned(max(1, size)) for _, size, _ in found))
    if not ends:
        return {}
    memory = Memory.allocate(ends[-1], "nnhal-between")
    return {
        operand: memory.view(start, size, argument.dtype, argument.fixed)
        for start, (operand, size, argument) in zip([0, *ends], found, strict=False)
    }
