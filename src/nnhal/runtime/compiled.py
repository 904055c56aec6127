"""The compiled model that an application holds."""

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from nnhal.base import trace
from nnhal.base.errors import InvalidRequest
from nnhal.base.threads import members
from nnhal.base.time import nanoseconds
from nnhal.base.uncopied import NotCopyable
from nnhal.hal.fence import Fence, fence_list
from nnhal.runtime.arguments import ModelInterface, make_control
from nnhal.runtime.binding import Binding
from nnhal.runtime.bursts import CompiledBurst
from nnhal.runtime.cache.wanted import CacheOutcome
from nnhal.runtime.caller import Caller, InFlightTracker, ModelCallable
from nnhal.runtime.compilation import Plan
from nnhal.runtime.execute import ModelSignature, Runner
from nnhal.runtime.fenced import Fenced, launch
from nnhal.runtime.inflight import Execution, Queue
from nnhal.runtime.model_memory import ModelMemory, memory_of
from nnhal.runtime.placement import Placement
from nnhal.runtime.stream import Stream

FORKED = "it was compiled before this process was forked, and engines do not survive a fork"
WORKERS = 4  # the most submitted executions of one compiled model that run at once


class Compiled(
    ModelCallable,
    NotCopyable,
    instead="any thread may use the same one; another process, or another compilation, gets the model and compiles it there",
):
    """A model compiled for its devices. Call it with numpy arrays, from any number of threads at once.

    After `close`, and in a process forked from the one that compiled it, every use raises `Closed`. Garbage collection
    releases it as `close` does. It cannot be pickled: send the model or its file, and compile where you need it.

    Attributes:
        inputs: The arguments that a call takes, in order: name, shape and element type.
        outputs: The results that a call gives, likewise.
    """

    def __init__(self, plan: Plan, read: CacheOutcome | None = None) -> None:
        """read: the cache outcome of the import, if nnhal compiled a file with a cache."""
        edge, plan = ModelInterface(plan.model), plan.without_constants()
        whole = ModelSignature(plan.model)
        runner = Runner(plan, whole)
        use = InFlightTracker(runner.close)
        super().__init__(Caller(plan, edge, runner, whole, use))
        self.inputs, self.outputs = edge.inputs, edge.outputs
        self._read = () if read is None else (read,)
        self._queue = Queue(WORKERS)
        self._finalizer = weakref.finalize(self, use.end)
        self._finalizer.atexit = False
        self._bursts: weakref.WeakSet[CompiledBurst] = weakref.WeakSet()
        self._forked_away = False
        alive.add(self)

    def bind(self, *inputs: Any, out: Any = None) -> Binding:
        """Bind arguments once, for many executions.

        Every run reads the inputs' current contents and writes the same outputs.

        Args:
            inputs: In order: contiguous arrays of the input's type, views of an `nnhal.Memory`, or allocations.
            out: An array or allocation, or a sequence of them, for the outputs; as in `run`.

        Returns:
            The binding. It runs once at a time: a second run at the same time raises `BadState`.

        Raises:
            InvalidRequest: An argument does not fit the model or cannot be bound.
        """
        caller = self._caller
        caller.check_open()
        job = caller.edge.job(inputs, out)
        if job.named:
            raise InvalidRequest("inputs: are a mapping, must be given in order to be bound")
        for place, (given, at) in enumerate(zip(inputs, caller.edge.given, strict=True)):
            if given is not (job.taken[at].outer if at in job.taken else job.given[at]):
                raise InvalidRequest(f"input {place}: must be a contiguous numpy array of the input's type to be bound")
        return Binding(self, caller, job)

    @trace.traced_method("application", "execution", "submit", detail=lambda self: self._caller.plan.model.name)
    def submit(
        self, *inputs: Any, out: Any = None, deadline: float | None = None, loop_timeout: float | None = None
    ) -> Execution:
        """Run in the background. Do not change the arrays before the execution has ended.

        Args:
            inputs: As in `run`.
            out: As in `run`.
            deadline: Seconds from now.
            loop_timeout: Seconds for each `WHILE`, at most 15.

        Returns:
            The execution. Wait for it with `result`, `await` it, or `select` on it.

        Raises:
            InvalidRequest: An argument does not fit the model.
        """
        caller = self._caller
        job = caller.job(inputs, out)
        control = job.control = make_control(deadline, loop_timeout, False, cancelled=threading.Event())
        try:
            caller.use.calls.add(job)
            caller.check_open()
            configuration = caller.plan.configuration
            job.ticket = configuration.queue()

            def leave() -> None:
                configuration.leave(job.ticket)
                caller.use.leave(job)

            return self._queue.submit(job, lambda: self._caller.perform(job), leave, control)
        except BaseException:
            if not self._queue.has(job):  # it may have been interrupted after it was queued
                caller.plan.configuration.leave(job.ticket)
                caller.use.leave(job)
            raise

    @trace.traced_method("application", "execution", "launch", detail=lambda self: self._caller.plan.model.name)
    def execute_fenced(
        self,
        *inputs: Any,
        wait_for: Sequence[Fence] = (),
        out: Any = None,
        deadline: float | None = None,
        after: float | None = None,
        loop_timeout: float | None = None,
        measure: bool = False,
    ) -> Fenced:
        """Launch an execution that begins when all fences in `wait_for` are signalled, and return at once.

        All outputs need fully specified shapes. Do not change inputs or read outputs before the fence of the result is
        signalled. Arrays over an `nnhal.Memory` and allocations have their contents then; plain arrays have them after
        `Fenced.result`.

        Args:
            inputs: As in `run`.
            wait_for: The fences to wait for.
            out: As in `run`.
            deadline: Seconds from now.
            after: Seconds that the execution may take once the fences are signalled.
            loop_timeout: Seconds for each `WHILE`, at most 15.
            measure: Whether `Fenced.get_execution_info` reports times.

        Returns:
            The launched execution, with its fence.

        Raises:
            InvalidArgument: The shape of an output is unknown, or a fence is in error.
            InvalidRequest: An argument does not fit the model.
        """
        caller = self._caller
        job = caller.job(inputs, out)
        job.control = make_control(deadline, loop_timeout, measure)
        launched: list[None] = []  # has an entry as soon as something may run
        try:
            caller.use.behind.add(job)
            caller.check_open()
            job.ticket = caller.plan.configuration.queue()

            def ended() -> None:  # the closure keeps this object alive until the execution has ended
                self._caller.plan.configuration.leave(job.ticket)
                self._caller.use.leave(job)

            return launch(caller, job, fence_list(wait_for), nanoseconds(after, "after"), ended, launched)
        except BaseException:
            if not launched:
                caller.plan.configuration.leave(job.ticket)
                caller.use.leave(job)
            raise

    def burst(self) -> CompiledBurst:
        """Open a burst: a series of executions, one at a time, for which drivers keep their resources.

        Returns:
            A context manager that you call like the model.
        """
        self._caller.check_open()
        burst = CompiledBurst(self, self._caller)
        self._bursts.add(burst)
        return burst

    def stream(self) -> Stream:
        """Open a session that carries the model's states from call to call."""
        return Stream(self, self._caller)

    def configure(self, device: str, options: Mapping[str, Any], *, deadline: float | None = None) -> None:
        """Change options of a device between executions.

        Executions requested earlier, also submitted and fenced ones, run with the old options. `configure` waits for
        them and holds back later ones. A partition that falls back to the CPU has none of the device's options.

        Args:
            device: The label of the device in `placement`.
            options: The options that change; all others keep their values.
            deadline: Seconds to wait for earlier executions, including abandoned ones that a driver in this process has
                not ended.

        Raises:
            InvalidArgument: There is no such device or option; the message lists those that exist.
            MissedDeadline: Earlier executions did not end in time.
            NnhalError: The driver failed.

            After an error all options have their old values. If a driver cannot restore them, every later use raises
                `Closed`.
        """
        caller = self._caller
        with caller.inside():
            caller.plan.configuration.change(device, options, make_control(deadline, None, False))

    @property
    def memory(self) -> ModelMemory:
        """The memory that the compiled model holds, in bytes. Each access queries the drivers again.

        Raises:
            ContractBroken: A driver reports an impossible value.
            DriverFailed: A driver raised an exception.
        """
        with self._caller.inside():
            return memory_of(self._caller)

    # ------------------------------------------------------------------------------------------------------ the rest

    @property
    def cache(self) -> tuple[CacheOutcome, ...]:
        """The cache outcome of each partition: "hit", "miss: <reason>" or "off: <reason>".

        If nnhal compiled a file with a cache, the first outcome is that of the import, "model".
        """
        return (*self._read, *(each for step in self._caller.plan.steps for each in step.outcomes))

    @property
    def placement(self) -> Placement:
        """Where each operation runs, and why."""
        return self._caller.plan.placement

    @trace.traced_method("application", "termination", "close", detail=lambda self: self._caller.plan.model.name)
    def close(self) -> None:
        """Wait for running executions, then release all resources.

        Submitted executions run to their end. nnhal does not wait for fenced executions, because you may have to signal
        their fences: their resources are released when they end. Later uses raise `Closed`; a second `close` has no
        effect.
        """
        if self._forked_away:
            return
        caller = self._caller
        caller.closed = caller.closed or "the compiled model was closed"
        self._queue.wait_until_idle()
        for burst in members(self._bursts):
            burst._end(caller.closed)
        caller.use.end()
        self._finalizer()
        caller.use.wait()

    def __enter__(self) -> "Compiled":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forked(self) -> None:
        self._caller.closed = FORKED
        for burst in members(self._bursts):
            burst._forked()
        self._finalizer.detach()
        self._forked_away = True


alive: "weakref.WeakSet[Compiled]" = weakref.WeakSet()


def _after_fork() -> None:
    for compiled in list(alive):
        compiled._forked()


os.register_at_fork(after_in_child=_after_fork)
