"""Fenced executions of a compiled model: steps launched at once, each behind the fence of the one before."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import DeadObject, InvalidArgument, NnhalError
from nnhal.base.log import logger
from nnhal.base.memory import Memory, aligned
from nnhal.base.operands import Array
from nnhal.hal.fence import Fence
from nnhal.hal.fenced import ExecutionInfo, FencedExecution, check_fenced, run_after
from nnhal.hal.request import Control, Request, Timing, summed
from nnhal.runtime.caller import Caller
from nnhal.runtime.compilation import Step
from nnhal.runtime.domains import Allocation
from nnhal.runtime.execution import NEVER_RETRIED, by_operand, request_on

_log = logger("execution")


class Fenced:
    """A fenced execution that was launched. way: how its steps run, and why where they do not run behind fences themselves.

    fence: of its end, None where it has ended already; select on it, await it, give it to other executions to wait for.
    """

    def __init__(
        self,
        steps: Sequence[FencedExecution],
        outputs: list[Any],
        finish: Callable[[list[Any]], Any],
        kept: Mapping[int, Array],
        memory: Memory | None,
        span: int,
        way: str,
    ) -> None:
        """kept: outputs that a later step reads, as arrays of the execution's own memory. span: ns that launching took."""
        self._steps, self._outputs, self._finish, self._kept, self.way = list(steps), outputs, finish, kept, way
        self._memory, self._span = memory, span if len(self._steps) > 1 else 0
        self.fence = self._steps[-1].fence

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.fence is None or self.fence.status() is not None

    def get_execution_info(self) -> ExecutionInfo:
        """Timings since the launch and since the last fence waited for, device times summed over steps.

        OperationFailed before the end; what the execution raised where it failed.
        """
        infos = [step.get_execution_info() for step in self._steps]
        last = infos[-1].launched.in_driver
        launched = None if last is None else last + self._span
        on_device, in_driver = summed(i.fenced.on_device for i in infos), summed(i.fenced.in_driver for i in infos)
        return ExecutionInfo(Timing(on_device, launched), Timing(on_device, in_driver))

    def result(self, timeout: float | None = None) -> Any:
        """Wait at most `timeout` seconds; the outputs as of `Compiled.__call__`, or what the execution raised."""
        if self.fence is not None:
            try:
                self.fence.wait(timeout)
            except NnhalError:
                if self.done():
                    self._settle(False)
                    self.get_execution_info()  # raises the reason itself, of the first step that failed
                raise
        self.get_execution_info()
        for n, array in self._kept.items():
            self._outputs[n][...] = array
        return self._finish(self._outputs)

    def _settle(self, success: bool) -> None:
        for output in self._outputs:
            if isinstance(output, Allocation):
                output.wrote(success)


def launch(
    caller: Caller, inputs: Sequence[Any], out: Any, control: Control, wait_for: Sequence[Fence], after: int | None
) -> Fenced:
    """Launch all steps; where a driver cannot, or one limit spans several, the whole runs on a thread of the runtime's."""
    edge, main = caller.edge, caller.plan.model.main
    given, outputs, named = edge.take(inputs, out)
    read, written = caller.buffers_in(given, outputs)
    request = Request(
        [None if isinstance(x, Allocation) else x for x in given],
        [None if isinstance(x, Allocation) else x for x in outputs],
        input_buffers=read,
        output_buffers=written,
    )
    check_fenced(request, wait_for)
    for output in outputs:
        if isinstance(output, Allocation):
            output.wrote(True)  # as far as the runtime knows: from now on the driver keeps its state
    finish = partial(edge.results, named=named)
    launched: list[FencedExecution] = []
    steps = caller.plan.steps
    if len(steps) > 1 and after is not None:
        why = "one limit for several steps"
    elif any(fresh is None for step in steps[:-1] for fresh in step.fresh):
        why = "shapes between steps are not known before"
    else:
        try:
            began = time.monotonic_ns()
            memory, between = _chain(caller, request, control, wait_for, after, launched)
            kept = {main.outputs.index(operand): view for operand, view in between.items() if operand in main.outputs}
            span = time.monotonic_ns() - began
            return Fenced(launched, outputs, finish, kept, memory, span, "each step behind its fence")
        except (*NEVER_RETRIED, InvalidArgument, DeadObject):
            raise
        except NnhalError as error:
            why = str(error)
    _log.info("%s: fenced execution on a thread: %s", caller.plan.model.name or "model", why)

    def run(request: Request, control: Control) -> Timing | None:
        for execution in launched:  # may write to the same memory
            with suppress(NnhalError):
                _wait(execution.fence)
        return caller.whole.run(request, control)

    execution = run_after(run, request, control, wait_for, after)
    return Fenced([execution], outputs, finish, {}, None, 0, f"on a thread of the runtime's: {why}")


def _wait(fence: Fence | None) -> None:
    if fence is not None:
        fence.wait()


def _chain(
    caller: Caller,
    request: Request,
    control: Control,
    wait_for: Sequence[Fence],
    after: int | None,
    launched: list[FencedExecution],
) -> tuple[Memory | None, dict[int, Array]]:
    """Launch each step behind the one before; returns the memory between steps, and the arrays in it by operand."""
    main, steps = caller.plan.model.main, caller.plan.steps
    buffers = by_operand(caller.plan.model, request.input_buffers, request.output_buffers)
    arrays: dict[int, Array | None] = dict(zip(main.inputs, request.inputs, strict=True))
    arrays.update(zip(main.outputs, request.outputs, strict=True))
    memory, between = _between(steps, set(buffers))
    arrays.update(between)
    for step in steps:
        room = [arrays[i] for i in step.part.outputs]
        whole = request_on(step.part.inputs, step.part.outputs, [arrays[i] for i in step.part.inputs], room, buffers)
        try:
            launched.append(step.prepared.execute_fenced(whole, control, wait_for, after))
        except InvalidArgument:
            if launched and any(fence.status() not in (None, ErrorStatus.NONE) for fence in wait_for):
                break  # the step before has failed meanwhile, and is what `result` tells of
            raise
        fence = launched[-1].fence
        wait_for = [] if fence is None else [fence]
    return memory, between


def _between(steps: Sequence[Step], held: Collection[int]) -> tuple[Memory | None, dict[int, Array]]:
    """A shared memory, and arrays in it for what one step writes and a later one reads: drivers take them by reference."""
    read = {i for step in steps for i in step.part.inputs}
    found = [
        (operand, math.prod(fresh[0]) * np.dtype(fresh[1]).itemsize, *fresh)
        for step in steps
        for operand, fresh in zip(step.part.outputs, step.fresh, strict=True)
        if operand in read and operand not in held and fresh is not None
    ]
    ends = list(accumulate(aligned(max(1, size)) for _, size, _, _ in found))
    if not ends:
        return None, {}
    memory = Memory.allocate(ends[-1], "nnhal-between")
    return memory, {
        operand: memory.view(start, size, dtype, shape)
        for start, (operand, size, shape, dtype) in zip([0, *ends], found, strict=False)
    }
