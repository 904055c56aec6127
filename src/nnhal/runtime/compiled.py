"""What an application holds: a compiled model, arrays bound to it, a stream that carries its state."""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from nnhal.base.errors import BadState, Closed, InvalidRequest
from nnhal.base.operands import Array
from nnhal.hal.request import UNLIMITED, Control
from nnhal.runtime.compilation import Plan
from nnhal.runtime.execution import Report, Runner
from nnhal.runtime.inflight import Execution
from nnhal.runtime.placement import Placement
from nnhal.runtime.specs import Spec, accept, make_control, no_overlap, spec_of, writable

WORKERS = 4  # threads that run submitted executions of one compiled model


class Compiled:
    """A model compiled for its devices. Call it with numpy arrays; any number of threads may do so at once.

    After `close`, and in a process forked from the one that compiled it, every use raises Closed. It cannot be pickled:
    send the model's file and compile where it is needed.
    """

    def __init__(self, plan: Plan) -> None:
        model, self.plan = plan.model, plan
        self._runner = Runner(plan)
        carried = {s.input for s in model.states}, {s.output for s in model.states}
        specs = [spec_of(model, i) for i in model.main.inputs]
        results = [spec_of(model, i) for i in model.main.outputs]
        self.inputs = tuple(s for i, s in enumerate(specs) if i not in carried[0])
        self.outputs = tuple(s for i, s in enumerate(results) if i not in carried[1])
        self._all_outputs = tuple(results)
        self._given = [i for i in range(len(specs)) if i not in carried[0]]
        self._kept = [i for i in range(len(results)) if i not in carried[1]]
        self._fresh: list[Any] = [None if s.shape is None or None in s.shape else (s.shape, s.dtype) for s in results]
        self._plain = self._plain_specs(specs)
        self._running: deque[None] = deque()  # one entry an execution in flight; its appends and pops are atomic
        self._closed = ""
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        _alive.add(self)

    def _plain_specs(self, specs: list[Spec]) -> list[tuple[Any, Any]] | None:
        """Element type and shape of each input, for the short way through `__call__`; None where it is not that plain."""
        if self.plan.model.states or None in self._fresh or any(s.shape is None or None in s.shape for s in specs):
            return None
        return [(s.dtype, s.shape) for s in specs]

    # ------------------------------------------------------------------------------------------------------- running

    def __call__(self, *inputs: Any, out: Any = None) -> Any:
        """Run once and wait.

        inputs: arrays in order, or one mapping from input names to arrays. Returns the output array, a tuple of them where
        the model has several, or, for a mapping, a dict. out: an array (or a sequence of them, None for a fresh one) that
        results are written to. Raises InvalidRequest, OutputInsufficientSize, or what the execution raised.
        """
        if out is None and self._plain is not None and len(inputs) == len(self._plain):
            for x, (dtype, shape) in zip(inputs, self._plain):  # noqa: B905 (as many, see above)
                if type(x) is not np.ndarray or x.dtype != dtype or x.shape != shape or not x.flags.c_contiguous:
                    break
            else:
                outputs: list[Any] = [np.empty(shape, dtype) for shape, dtype in self._fresh]
                self._running.append(None)
                try:
                    if self._closed:
                        self._refuse()
                    self._runner.run(inputs, outputs, UNLIMITED)
                finally:
                    self._running.pop()
                return outputs[0] if len(outputs) == 1 else tuple(outputs)
        return self.run(*inputs, out=out)[0]

    def run(
        self,
        *inputs: Any,
        out: Any = None,
        deadline: float | None = None,
        loop_timeout: float | None = None,
        measure: bool = False,
    ) -> tuple[Any, Report | None]:
        """Run once and wait, with everything that can be asked for.

        deadline: seconds from now. loop_timeout: seconds for each WHILE, 15 at most. measure: return a Report as well.
        Returns the outputs as `__call__` does, and the report or None.
        """
        control = make_control(deadline, loop_timeout, measure)
        report = Report() if measure else None
        return self._run(inputs, out, control, report), report

    def _run(self, inputs: Sequence[Any], out: Any, control: Control, report: Report | None) -> Any:
        named = len(inputs) == 1 and isinstance(inputs[0], Mapping)
        arrays = self._accept(inputs[0] if named else inputs)
        outputs = self._place(out)
        for state in self.plan.model.states:
            arrays[state.input] = state.initial
        no_overlap(arrays, outputs)
        self._execute(arrays, outputs, control, report)
        return self._results(outputs, named)

    def _execute(
        self, arrays: list[Array | None], outputs: list[Array | None], control: Control, report: Report | None
    ) -> list[Array | None]:
        self._running.append(None)
        try:
            if self._closed:
                self._refuse()
            return self._runner.run(arrays, outputs, control, report)
        finally:
            self._running.pop()

    def _results(self, outputs: list[Array | None], named: bool) -> Any:
        kept = [outputs[i] for i in self._kept]
        if named:
            return {spec.name: array for spec, array in zip(self.outputs, kept, strict=True)}
        return kept[0] if len(kept) == 1 else tuple(kept)

    def _accept(self, inputs: Mapping[str, Any] | Sequence[Any]) -> list[Array | None]:
        """The caller's inputs as arrays in the model's order, state inputs left open."""
        if isinstance(inputs, Mapping):
            names = [spec.name for spec in self.inputs]
            wrong = [repr(k) for k in inputs if k not in names] + [f"no {n!r}" for n in names if n not in inputs]
            if wrong:
                raise InvalidRequest(f"inputs: {', '.join(wrong)}, must be exactly {', '.join(map(repr, names))}")
            inputs = [inputs[name] for name in names]
        if len(inputs) != len(self.inputs):
            wanted = ", ".join(str(spec) for spec in self.inputs)
            raise InvalidRequest(f"inputs: got {len(inputs)}, must be {len(self.inputs)}: {wanted}")
        arrays: list[Array | None] = [None] * len(self.plan.model.main.inputs)
        for place, (at, spec) in enumerate(zip(self._given, self.inputs, strict=True)):
            arrays[at] = accept(inputs[place], spec, f"input {place}")
        return arrays

    def _place(self, out: Any) -> list[Array | None]:
        """Where outputs go: fresh arrays where the shape is known, the caller's where given."""
        room: list[Array | None] = [None if f is None else np.empty(*f) for f in self._fresh]
        if out is None:
            return room
        given = [out] if isinstance(out, np.ndarray) else list(out)
        if len(given) != len(self._kept):
            raise InvalidRequest(f"out: got {len(given)} arrays, must be {len(self._kept)}")
        for place, (at, array) in enumerate(zip(self._kept, given, strict=True)):
            if array is not None:
                room[at] = writable(array, self._all_outputs[at], f"out {place}")
        return room

    def bind(self, *inputs: Array, out: Any = None) -> "Binding":
        """Bind arrays once and run many times without copies at this interface.

        Every run reads what the input arrays hold then and writes the same output arrays. A binding is for one thread.
        """
        arrays = self._accept(inputs)
        for place, (given, taken) in enumerate(zip(inputs, [arrays[i] for i in self._given], strict=True)):
            if given is not taken:
                raise InvalidRequest(f"input {place}: must be a contiguous numpy array of the input's type to be bound")
        for state in self.plan.model.states:
            arrays[state.input] = state.initial
        outputs = self._place(out)
        no_overlap(arrays, outputs)
        return Binding(self, arrays, outputs)

    def submit(
        self, *inputs: Any, out: Any = None, deadline: float | None = None, loop_timeout: float | None = None
    ) -> "Execution":
        """Run in the background; the arrays must stay untouched until it is done. Parameters as of `run`."""
        control = replace(make_control(deadline, loop_timeout, False), cancelled=threading.Event())
        with self._lock:
            if self._closed:
                self._refuse()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(WORKERS, "nnhal-submit")
            future = self._pool.submit(self._run, inputs, out, control, None)
        return Execution(future, control)

    def stream(self) -> "Stream":
        """A session that carries the model's states from call to call."""
        return Stream(self)

    # ------------------------------------------------------------------------------------------------------ the rest

    @property
    def placement(self) -> "Placement":
        """Where each operation runs, and why."""
        return Placement(self.plan.partition, self.plan.events)

    def close(self) -> None:
        """Wait for executions in flight, then give everything back. Later uses raise Closed; closing twice does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = "the compiled model was closed"
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        while self._running:
            time.sleep(0.0005)
        self._runner.close()

    def __enter__(self) -> "Compiled":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse(self) -> NoReturn:
        raise Closed(f"{self.plan.model.name or 'model'}: {self._closed}; compile it again")

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


class Binding:
    """Arrays bound to a compiled model; call it to run."""

    def __init__(self, compiled: Compiled, inputs: list[Array | None], outputs: list[Array | None]) -> None:
        self._compiled, self._inputs, self._room = compiled, inputs, outputs
        self.outputs = [outputs[i] for i in compiled._kept]

    def __call__(self) -> Any:
        """Run once; returns the bound output arrays, filled (new ones where the shape was not known)."""
        outputs = list(self._room)
        self._compiled._execute(self._inputs, outputs, UNLIMITED, None)
        self.outputs = [outputs[i] for i in self._compiled._kept]
        return self.outputs[0] if len(self.outputs) == 1 else tuple(self.outputs)


class Stream:
    """A session: what the model keeps between calls starts at its initial value and is carried on. For one thread."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self.reset()

    def reset(self) -> None:
        """Start again from the initial state."""
        self._states: list[Array] = [state.initial for state in self._compiled.plan.model.states]

    def __call__(self, *inputs: Any) -> Any:
        """Run one step; inputs and outputs as of `Compiled.__call__`. A step that fails leaves the state as it was."""
        compiled, states = self._compiled, self._compiled.plan.model.states
        named = len(inputs) == 1 and isinstance(inputs[0], Mapping)
        arrays, outputs = compiled._accept(inputs[0] if named else inputs), compiled._place(None)
        for state, current in zip(states, self._states, strict=True):
            arrays[state.input] = current
        compiled._execute(arrays, outputs, UNLIMITED, None)
        self._states = [x for state in states if (x := outputs[state.output]) is not None]
        return compiled._results(outputs, named)
