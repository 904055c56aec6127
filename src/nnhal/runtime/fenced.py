"""Fenced executions of a compiled model.

Where a driver has fences of its own (one in another process has), steps are launched at once, each behind the fence of the
one before. Elsewhere all of it runs as one piece in the background, behind the fences that the caller gave.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import Any

from nnhal.base import trace
from nnhal.base.answers import may_be_own
from nnhal.base.brief import brief
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
from nnhal.base.uncopied import Uncopied
from nnhal.hal.background import ExecutionInfo, FencedExecution, Untold, another, check_fenced, run_after
from nnhal.hal.device import Prepared, fenced_by, info_by
from nnhal.hal.fence import Fence
from nnhal.hal.host import HostBuffer
from nnhal.hal.request import UNLIMITED, Argument, Control, Request, Timing, summed
from nnhal.runtime.allocation import Allocation
from nnhal.runtime.caller import Caller
from nnhal.runtime.execute import NEVER_RETRIED, Line
from nnhal.runtime.inflight import Home
from nnhal.runtime.job import Job, Report

_GRACE = 0.1  # seconds
_LOOK = 1.0  # seconds between looks at whether the drivers' processes have had their time
_MOST_FENCES = 16  # to wait for that go along with a call to another process; for more a thread waits here
_log = logger("execution")


class Fenced(Uncopied, instead="another process gets its `result()`"):
    """A fenced execution that was launched. way: how its steps run, and why where they do not run behind fences themselves.

    fence: of its end, None where it has ended already; select on it, await it, give it to other executions to wait for.
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
        """infos: of the steps, in order; one that failed raises its error; given how long it is waited for, as of
        `FencedExecution.info_until`. finish: told once whether it went well, gives the outputs. span: nanoseconds that
        launching took.

        deadline: monotonic nanoseconds at which whoever waits gives up, whatever the drivers do. patience: called where
        there is none; raises DeviceUnavailable when drivers in other processes have had their time.
        """
        self._deadline, self._patience = deadline, patience
        self._infos, self.fence, self._finish, self.way = list(infos), fence, finish, way
        self._span = span if len(self._infos) > 1 else 0
        self._lock, self._home = threading.Lock(), Home()
        self._results: tuple[Any] | None = None
        self._failed: NnhalError | None = None

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        self._home.check("fenced execution")
        return self.fence is None or self.fence.status() is not None

    def __repr__(self) -> str:
        return brief(f"Fenced, {self.fence or 'ended'}", [self.way])

    def get_execution_info(self) -> ExecutionInfo:
        """Timings since the launch and since the last fence waited for, device times summed over steps.

        OperationFailed before the end; what the execution raised where it failed.
        """
        self._home.check("fenced execution")
        return self._info_until(None)

    def _info_until(self, until: int | None) -> ExecutionInfo:
        infos = [info(until) for info in self._infos]
        last = infos[-1].launched.in_driver
        launched = None if last is None else last + self._span
        on_device, in_driver = summed(i.fenced.on_device for i in infos), summed(i.fenced.in_driver for i in infos)
        return ExecutionInfo(Timing(on_device, launched), Timing(on_device, in_driver))

    @trace.seam("application", "results", "wait for the result")
    def result(self, timeout: float | None = None) -> Any:
        """Wait at most `timeout` seconds; the outputs as of `Compiled.__call__`, or what the execution raised.

        A driver's process has a second at least to tell what an execution that has ended came to; MissedDeadline where it
        does not, and then it may be asked again. Asked again, it gives the same arrays as they are by then, or raises the
        same.
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
                raise another(self._failed)
            if self._results is None:
                try:
                    self._info_until(until)
                    self._results = (self._finish(True),)
                except Untold as error:
                    raise MissedDeadline(str(error)) from None
                except NnhalError as error:
                    self._finish(False)
                    self._failed = another(error).with_traceback(None)
                    raise
            return self._results[0]

    def _tell(self, until: int | None) -> None:
        """Raise why it failed: the reason of the first step that did."""
        for info in self._infos:
            with suppress(_NotEnded):  # a later one failed by itself
                info(until)

    def _wait(self, fence: Fence, timeout: float | None) -> None:
        """As `Fence.wait`, and no longer than some time after the deadline, at which drivers should have ended it."""
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
    """Launch all of it. after: nanoseconds once the fences are signalled.

    leave: called when nothing runs here any more. begun: gets an entry before anything may run.
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
    job.begin(written)  # as far as the runtime knows: from now on the contents are what is executed next
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
        if begun and isinstance(error, Exception) and not may_be_own(error):  # an interrupt may have come anywhere
            _when_all_ended(chain.local, leave)
        raise


def _why_not_a_chain(caller: Caller, job: Job, whole: Request, wait_for: Sequence[Fence], after: int | None) -> str:
    """Why not every step is launched behind the one before, "" where it is."""
    steps = caller.plan.steps
    if any(crossing.form.wide for crossing in (*job.taken.values(), *job.left.values())):
        return "64-bit integers are converted before and after it"
    if all(type(step.prepared).execute_fenced is Prepared.execute_fenced for step in steps):
        return "no driver has fences of its own"
    if any(step.inside for step in steps):
        return "the runtime runs control flow itself"
    if caller.plan.configuration.turns is not None:
        return "options may change between executions, and the steps of one are to have the same"
    if after is not None:  # drivers may not come back in time, and nobody but this process sees to it
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
            return "a later step reads an output that lies in bytes of the caller's memory"
    return ""


def _where(array: Array | None) -> str:
    """Where an argument lies: "plain" is an array of this process, "shared" a memory that a step reads and writes in place.

    Of any other memory a driver in another process writes to a copy, which is taken over after the fence.
    """
    at = None if array is None or array.base is None else Memory.of(array)
    if at is None or array is None:
        return "plain"
    return "shared" if at[0].sealed and array.flags.aligned and array.flags.c_contiguous else "elsewhere"


def _holds(room: Array, argument: Argument) -> bool:
    """Whether room is an array of the output's type and shape, which a later step can read."""
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
    """All steps as one piece of work in the background."""
    read, written = allocations
    _log.debug("%s: fenced execution in the background: %s", caller.plan.model.name or "model", why)

    patience = _Patience(wait_for, len(launched))

    def run(request: Request, control: Control) -> Timing | None:
        for execution in launched:  # may write to the same memory
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
        if failed:  # where it did not come to run, too
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
    """Steps launched at once, each behind the fence of the one before."""

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
        ] = {}  # outputs that later steps read in memory of the execution's own, and their places
        self.launched: list[FencedExecution] = []
        self.local: list[FencedExecution] = []  # those of them that may go on in this process
        self._requests: list[tuple[Line, Request]] = []

    def launch(self, leave: Callable[[], object], begun: list[None]) -> Fenced:
        """Launch each; `leave` is called when those in this process have ended."""
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
        written = {operand for line in lines for operand in line.writes}  # what nobody reads that runs, too
        arrays.update(_between(lines, (read | written) - held))
        wait_for = self._wait_for
        for line in lines:
            given, rooms = [arrays[i] for i in line.reads], [arrays[i] for i in line.writes]
            request = line.signature.make(line.signature, given, rooms)
            line.name_buffers(request, buffers)
            try:
                execution = fenced_by(line.prepared, line.signature.where, request, self._job.control, wait_for)
            except InvalidArgument:
                if self.launched and any(fence.status() not in (None, ErrorStatus.NONE) for fence in wait_for):
                    break  # the step before has failed meanwhile, and is what `result` tells of
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
        way, patience = "each step behind its fence", _Patience(self._wait_for, len(infos))
        return Fenced(infos, fence, self._finish, way, span, deadline, (lambda: None) if self.local else patience.check)

    def _finish(self, well: bool) -> Any:
        """The outputs, once every step has ended well."""
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
            if not request.ended:  # by a driver with a way of its own
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
    """A step was asked too early."""


class _Patience:
    """How long steps in other processes may take that have no deadline, once the fences to wait for are signalled."""

    def __init__(self, wait_for: Sequence[Fence], steps: int) -> None:
        self._wait_for, self._length = list(wait_for), steps * WORK_NS
        self._since: int | None = None

    def check(self) -> None:
        """DeviceUnavailable where they have had that time."""
        now = time.monotonic_ns()
        self._wait_for = [fence for fence in self._wait_for if not _signalled(fence, 0)]
        if self._since is None and not self._wait_for:
            self._since = now
        if self._since is not None and now - self._since > self._length:
            seconds = self._length // 10**9
            raise DeviceUnavailable(f"fenced execution: its driver's process did not end it within {seconds} s")


def _signalled(fence: Fence, seconds: float) -> bool:
    """Whether it is, after so long at most, or its owner has closed it."""
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
    return info_by(execution, where, until)


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


def _between(lines: Sequence[Line], operands: Collection[int]) -> dict[int, Array]:
    """Arrays in a shared memory for what steps write, and later ones read: drivers take them by reference."""
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
