"""What an application holds: a compiled model."""

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from nnhal.base import trace
from nnhal.base.errors import InvalidRequest
from nnhal.base.time import nanoseconds
from nnhal.base.uncopied import Uncopied
from nnhal.hal.fence import Fence, listed
from nnhal.runtime.arguments import Edge, make_control
from nnhal.runtime.binding import Binding
from nnhal.runtime.bursts import CompiledBurst
from nnhal.runtime.cache.wanted import CacheOutcome
from nnhal.runtime.caller import Caller, InUse, ModelCallable
from nnhal.runtime.compilation import Plan
from nnhal.runtime.execute import Runner, Whole
from nnhal.runtime.fenced import Fenced, launch
from nnhal.runtime.inflight import Execution, Queue
from nnhal.runtime.learning import learn_from
from nnhal.runtime.model_memory import ModelMemory, memory_of
from nnhal.runtime.placement import Placement
from nnhal.runtime.stream import Stream

FORKED = "it was compiled before this process was forked, and engines do not survive a fork"
WORKERS = 4  # submitted executions of one compiled model that run at once


class Compiled(
    ModelCallable,
    Uncopied,
    instead="any thread may use the same one; another process, or another compilation, gets the model and compiles it there",
):
    """A model compiled for its devices. Call it with numpy arrays; any number of threads may do so at once.

    After `close`, and in a process forked from the one that compiled it, every use raises Closed. One that is dropped gives
    everything back too. It cannot be pickled: send the model, or its file, and compile where it is needed.
    """

    def __init__(self, plan: Plan, read: CacheOutcome | None = None) -> None:
        """read: what became of the file's model in the cache, where it was compiled out of one."""
        edge, plan = Edge(plan.model), plan.without_constants()
        whole = Whole(plan.model)
        runner = Runner(plan, whole)
        learn_from(runner)
        use = InUse(runner.close)
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
        """A reusable execution: arrays, views of memories and allocations, bound once, to be run many times.

        Every run reads what the inputs hold then and writes the same outputs. One run at a time: BadState otherwise.
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

    @trace.seam("application", "execution", "submit", detail=lambda self: self._caller.plan.model.name)
    def submit(
        self, *inputs: Any, out: Any = None, deadline: float | None = None, loop_timeout: float | None = None
    ) -> Execution:
        """Run in the background; the arrays must stay untouched until it is done. Parameters as of `run`."""
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

    @trace.seam("application", "execution", "launch", detail=lambda self: self._caller.plan.model.name)
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
        """Launch an execution that begins when every fence in `wait_for` is signalled, and do not wait for its end.

        deadline: seconds from now. after: seconds that it may take once the fences are signalled. All outputs need fully
        specified shapes. Inputs must stay untouched and outputs unread until the fence of the result is signalled; plain
        arrays are written by `result()`, arrays over an `nnhal.Memory` and allocations by then. Raises InvalidArgument for
        an output of unknown shape and for a fence in error.
        """
        caller = self._caller
        job = caller.job(inputs, out)
        job.control = make_control(deadline, loop_timeout, measure)
        launched: list[None] = []  # an entry as soon as something may run
        try:
            caller.use.behind.add(job)
            caller.check_open()
            job.ticket = caller.plan.configuration.queue()

            def ended() -> None:  # as long as it may be called this object stays
                self._caller.plan.configuration.leave(job.ticket)
                self._caller.use.leave(job)

            return launch(caller, job, listed(wait_for), nanoseconds(after, "after"), ended, launched)
        except BaseException:
            if not launched:
                caller.plan.configuration.leave(job.ticket)
                caller.use.leave(job)
            raise

    def burst(self) -> CompiledBurst:
        """A series of executions, one at a time, in which drivers keep what they need; a context manager, called alike."""
        self._caller.check_open()
        burst = CompiledBurst(self, self._caller)
        self._bursts.add(burst)
        return burst

    def stream(self) -> Stream:
        """A session that carries the model's states from call to call."""
        return Stream(self, self._caller)

    def configure(self, device: str, options: Mapping[str, Any], *, deadline: float | None = None) -> None:
        """Change options of a device between executions: those asked for before see the old ones, those after the new.

        device: as `placement` names it. options: those that change; the others stay as they are. It waits for executions
        that were asked for before, fenced ones and those that were submitted among them, and holds back those that come
        meanwhile. deadline: seconds to wait for them, and for those that a driver in this process has not ended though they
        were given up. A step that falls back to the CPU is the CPU's then, which has none of the device's options.

        Raises InvalidArgument for a device or option that cannot be, with those that can; MissedDeadline; what the driver
        raised. Then all options are as before; where a driver cannot put them back, every later use raises Closed.
        """
        caller = self._caller
        with caller.inside():
            caller.plan.configuration.change(device, options, make_control(deadline, None, False))

    @property
    def memory(self) -> ModelMemory:
        """What the compiled model holds, in bytes, as far as the drivers know; asked anew each time.

        Raises ContractBroken or DriverFailed, with the device, where a driver says what cannot be.
        """
        with self._caller.inside():
            return memory_of(self._caller)

    # ------------------------------------------------------------------------------------------------------ the rest

    @property
    def cache(self) -> tuple[CacheOutcome, ...]:
        """What became of each step in the cache: "hit", "miss: why", "off: why".

        Before them that of "model", its import, where a file was compiled and a folder given.
        """
        return (*self._read, *(each for step in self._caller.plan.steps for each in step.outcomes))

    @property
    def placement(self) -> Placement:
        """Where each operation runs, and why."""
        return self._caller.plan.placement

    @trace.seam("application", "termination", "close", detail=lambda self: self._caller.plan.model.name)
    def close(self) -> None:
        """Wait for executions in flight, then give everything back. Later uses raise Closed; closing twice does nothing.

        What was submitted is run to its end. Fenced executions are not waited for, their fences may be the caller's to
        signal: what they use goes when they end.
        """
        if self._forked_away:
            return
        caller = self._caller
        caller.closed = caller.closed or "the compiled model was closed"
        self._queue.drain()
        for burst in list(self._bursts):
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
        self._finalizer.detach()
        self._forked_away = True


alive: "weakref.WeakSet[Compiled]" = weakref.WeakSet()


def _after_fork() -> None:
    for compiled in list(alive):
        compiled._forked()


os.register_at_fork(after_in_child=_after_fork)
