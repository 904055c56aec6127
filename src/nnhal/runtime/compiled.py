"""What an application holds: a compiled model."""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

from nnhal.base.errors import BadState, InvalidRequest, NnhalError
from nnhal.hal.fence import Fence
from nnhal.runtime.caller import Caller
from nnhal.runtime.compilation import Plan
from nnhal.runtime.execution import Runner, Whole
from nnhal.runtime.fences import Fenced, launch
from nnhal.runtime.inflight import Execution
from nnhal.runtime.placement import Placement
from nnhal.runtime.sessions import Binding, CompiledBurst, Stream
from nnhal.runtime.specs import Edge, make_control

WORKERS = 4  # threads that run submitted executions of one compiled model


class Compiled(Caller):
    """A model compiled for its devices. Call it with numpy arrays; any number of threads may do so at once.

    After `close`, and in a process forked from the one that compiled it, every use raises Closed. It cannot be pickled:
    send the model's file and compile where it is needed.
    """

    def __init__(self, plan: Plan) -> None:
        runner, edge = Runner(plan), Edge(plan.model)
        super().__init__(plan, edge, runner, Whole(runner), deque())
        self.inputs, self.outputs = edge.inputs, edge.outputs
        self._fences: list[Fence] = []  # of fenced executions that may still be in flight
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        _alive.add(self)

    def bind(self, *inputs: Any, out: Any = None) -> Binding:
        """A reusable execution: arrays, views of memories and allocations, bound once, to be run many times.

        Every run reads what the inputs hold then and writes the same outputs. One run at a time: BadState otherwise.
        """
        arrays, outputs, named = self.edge.take(inputs, out)
        if named:
            raise InvalidRequest("inputs: are a mapping, must be given in order to be bound")
        for place, (given, taken) in enumerate(zip(inputs, [arrays[i] for i in self.edge.given], strict=True)):
            if given is not taken:
                raise InvalidRequest(f"input {place}: must be a contiguous numpy array of the input's type to be bound")
        return Binding(self, arrays, outputs)

    def submit(
        self, *inputs: Any, out: Any = None, deadline: float | None = None, loop_timeout: float | None = None
    ) -> Execution:
        """Run in the background; the arrays must stay untouched until it is done. Parameters as of `run`."""
        control = replace(make_control(deadline, loop_timeout, False), cancelled=threading.Event())
        with self._lock:
            if self._closed:
                self._refuse()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(WORKERS, "nnhal-submit")
            future = self._pool.submit(self._run, inputs, out, control, None)
        return Execution(future, control)

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
        control = make_control(deadline, loop_timeout, measure)
        self._running.append(None)
        try:
            if self._closed:
                self._refuse()
            fenced = launch(self, inputs, out, control, wait_for, None if after is None else int(after * 1e9))
            with self._lock:
                self._fences = [f for f in self._fences if f.status() is None]
                if fenced.fence is not None:
                    self._fences.append(fenced.fence.duplicate())
        finally:
            self._running.pop()
        return fenced

    def burst(self) -> CompiledBurst:
        """A series of executions, one at a time, in which drivers keep what they need; a context manager, called alike."""
        if self._closed:
            self._refuse()
        return CompiledBurst(self, self._running)

    def stream(self) -> Stream:
        """A session that carries the model's states from call to call."""
        return Stream(self)

    # ------------------------------------------------------------------------------------------------------ the rest

    @property
    def placement(self) -> Placement:
        """Where each operation runs, and why."""
        return self.plan.placement

    def close(self) -> None:
        """Wait for executions in flight, then give everything back. Later uses raise Closed; closing twice does nothing.

        Fenced executions are not waited for, their fences may be the caller's to signal: what they use goes when they end.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = "the compiled model was closed"
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        while self._running:
            time.sleep(0.0005)
        if any(f.status() is None for f in self._fences):
            threading.Thread(target=self._close_behind_fences, name="nnhal-close", daemon=True).start()
        else:
            self._runner.close()

    def _close_behind_fences(self) -> None:
        for fence in self._fences:
            with suppress(NnhalError):  # whatever became of it
                fence.wait()
        self._runner.close()

    def __enter__(self) -> "Compiled":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forked(self) -> None:
        self._closed = "it was compiled before this process was forked, and engines do not survive a fork"
        self._lock = threading.Lock()

    def __reduce__(self) -> NoReturn:
        raise BadState("a compiled model cannot be pickled; send the model's file and compile it in the other process")


_alive: "weakref.WeakSet[Compiled]" = weakref.WeakSet()


def _after_fork() -> None:
    for compiled in list(_alive):
        compiled._forked()


os.register_at_fork(after_in_child=_after_fork)
