"""What is opened on a compiled model: bound arguments, a stream that carries its state, a burst."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from nnhal.base.errors import BadState, Closed, DeadObject, OperationFailed
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.hal.buffers import Buffer, Run
from nnhal.hal.burst import Burst
from nnhal.hal.request import UNLIMITED, Control
from nnhal.runtime.caller import Caller
from nnhal.runtime.compilation import Step
from nnhal.runtime.domains import Allocation, allocate_for
from nnhal.runtime.execution import NO_BUFFERS, Report, Runner

if TYPE_CHECKING:
    from nnhal.runtime.compiled import Compiled

_log = logger("execution")


class Binding:
    """A reusable execution: arguments bound to a compiled model; call it to run."""

    def __init__(self, compiled: "Compiled", inputs: list[Any], outputs: list[Any]) -> None:
        self._compiled, self._inputs, self._room = compiled, inputs, outputs
        self._busy = threading.Lock()
        self.outputs = [outputs[i] for i in compiled.edge.kept]

    def __call__(self) -> Any:
        """Run once; returns the bound outputs, filled (new arrays where the shape was not known).

        BadState while another run of this binding is in flight.
        """
        if not self._busy.acquire(blocking=False):
            raise BadState("binding: a run is in flight, must be one at a time; bind once for each thread")
        try:
            outputs = list(self._room)
            self._compiled.execute(self._inputs, outputs, UNLIMITED, None)
        finally:
            self._busy.release()
        self.outputs = [outputs[i] for i in self._compiled.edge.kept]
        return self.outputs[0] if len(self.outputs) == 1 else tuple(self.outputs)


class StatePlacement(NamedTuple):
    """Where a stream keeps one state. device: None for a shared pool, and then reason says why."""

    name: str
    device: str | None
    reason: str


class Stream:
    """A session: what the model keeps between calls starts at its initial value and is carried on. For one thread.

    Each state lies in two buffers of its device, or in shared pools where the driver grants none: one is read, one written.
    """

    def __init__(self, compiled: "Compiled") -> None:
        self._compiled = compiled
        self._pairs: list[tuple[Allocation, Allocation]] = []
        self.reset()

    @property
    def state_placement(self) -> tuple[StatePlacement, ...]:
        """Where each state is kept, and why there."""
        main, states = self._compiled.plan.model.main, self._compiled.plan.model.states
        return tuple(
            StatePlacement(main.operands[main.inputs[s.input]].name or f"state {n}", pair[0].device, pair[0].reason)
            for n, (s, pair) in enumerate(zip(states, self._pairs, strict=True))
        )

    def reset(self) -> None:
        """Start again from the initial state; also the way on after DeadObject, which takes the state with it."""
        states = self._compiled.plan.model.states
        try:
            for state, (current, _) in zip(states, self._pairs or self._allocate(), strict=True):
                current.write(state.initial)
        except DeadObject:  # the process that held them is gone
            for state, (current, _) in zip(states, self._allocate(), strict=True):
                current.write(state.initial)

    def _allocate(self) -> list[tuple[Allocation, Allocation]]:
        self.close()
        compiled = self._compiled
        for state in compiled.plan.model.states:
            uses = [(compiled, False, state.input, 1.0), (compiled, True, state.output, 1.0)]
            self._pairs.append((allocate_for(uses), allocate_for(uses)))
        return self._pairs

    def __call__(self, *inputs: Any) -> Any:
        """Run one step; inputs and outputs as of `Compiled.__call__`. A step that fails leaves the state as it was.

        After DeadObject from a driver that held the state, `reset` starts again.
        """
        compiled, states = self._compiled, self._compiled.plan.model.states
        arrays, outputs, named = compiled.edge.take(inputs, None)
        for state, (current, following) in zip(states, self._pairs, strict=True):
            arrays[state.input], outputs[state.output] = current, following
        compiled.execute(arrays, outputs, UNLIMITED, None)
        self._pairs = [(following, current) for current, following in self._pairs]
        return compiled.edge.results(outputs, named)

    def close(self) -> None:
        """Give the buffers of the state back."""
        for pair in self._pairs:
            for allocation in pair:
                allocation.close()
        self._pairs = []


class CompiledBurst(Caller):
    """A burst of a compiled model, called like the model: each step runs in a burst of its driver. A context manager.

    One execution at a time: BadState otherwise. ways: how each step is run, and why where that is by plain calls.
    """

    def __init__(self, compiled: "Compiled", running: "deque[None]") -> None:
        self._compiled = compiled
        self._bursts: list[Burst] = []
        ways, runs = [], []
        for number, step in enumerate(compiled.plan.steps):
            run, way = self._open(step)
            runs.append(run)
            ways.append(f"step {number} on {step.device.name}: {way}")
        self.ways = tuple(ways)
        runner = _OneByOne(compiled, runs, self._bursts)
        super().__init__(compiled.plan, compiled.edge, runner, compiled.whole, running)

    def _open(self, step: Step) -> tuple[Run, str]:
        try:
            burst = step.prepared.burst()
        except OperationFailed as error:  # of a level that has none
            _log.info("device %s: no burst, plain calls instead: %s", step.device.name, error)
            return step.prepared.run, f"plain calls: {error}"
        except BaseException:
            self.close()
            raise
        self._bursts.append(burst)
        return burst.run, "burst"

    def free_memory(self, memory: Memory) -> None:
        """This memory will not be used in the burst again: what drivers cache of it can go."""
        for burst in self._bursts:
            burst.free_memory(memory)

    def close(self) -> None:
        """End the burst; later calls raise Closed. The compiled model goes on."""
        self._closed = "the burst was closed"
        for burst in self._bursts:
            burst.close()

    def _refuse(self) -> NoReturn:
        raise Closed(f"{self.plan.model.name or 'model'}: {self._closed}; open another")

    def __enter__(self) -> "CompiledBurst":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _OneByOne(Runner):
    """Runs a plan by the bursts of its steps."""

    def __init__(self, compiled: "Compiled", runs: Sequence[Run], bursts: Sequence[Burst]) -> None:
        super().__init__(compiled.plan, runs)
        self._compiled, self._bursts, self._busy = compiled, bursts, threading.Lock()

    def run(
        self,
        inputs: Sequence[Array | None],
        outputs: list[Array | None],
        control: Control,
        report: Report | None = None,
        buffers: Mapping[int, Buffer] = NO_BUFFERS,
    ) -> list[Array | None]:
        """As `Runner.run`; the report notes why executions took plain calls."""
        if not self._busy.acquire(blocking=False):
            raise BadState("burst: an execution is in flight, must be one at a time; open one burst a thread")
        try:
            self._compiled.check_open()
            if report is None:
                return super().run(inputs, outputs, control, report, buffers)
            before = [dict(burst.plain) for burst in self._bursts]
            found = super().run(inputs, outputs, control, report, buffers)
            for burst, counts in zip(self._bursts, before, strict=True):
                report.notes += [f"plain call: {why}" for why, n in burst.plain.items() if n != counts.get(why, 0)]
            return found
        finally:
            self._busy.release()
