"""A session that carries a model's states from call to call."""

from typing import Any, NamedTuple

from nnhal.base.errors import Closed, DeadObject
from nnhal.runtime.allocation import Allocation, Use, allocate_for
from nnhal.runtime.caller import Caller


class StatePlacement(NamedTuple):
    """Where a stream keeps one state. device: None for a shared pool, and then reason says why."""

    name: str
    device: str | None
    reason: str


class Stream:
    """A session: what the model keeps between calls starts at its initial value and is carried on. For one thread.

    Each state lies in two buffers of its device, or in shared pools where the driver grants none: one is read, one written.
    """

    def __init__(self, compiled: Caller) -> None:
        self._compiled, self._closed = compiled, False
        self._pairs: list[tuple[Allocation, Allocation]] = []
        self.reset()

    @property
    def state_placement(self) -> tuple[StatePlacement, ...]:
        """Where each state is kept, and why there."""
        self._check_open()
        main, states = self._compiled.plan.model.main, self._compiled.plan.model.states
        return tuple(
            StatePlacement(main.operands[main.inputs[s.input]].name or f"state {n}", pair[0].device, pair[0].reason)
            for n, (s, pair) in enumerate(zip(states, self._pairs, strict=True))
        )

    def reset(self) -> None:
        """Start again from the initial state; also the way on after DeadObject, which takes the state with it."""
        self._check_open()
        states = self._compiled.plan.model.states
        try:
            for state, (current, _) in zip(states, self._pairs or self._allocate(), strict=True):
                current.write(state.initial)
        except DeadObject:  # the process that held them is gone
            for state, (current, _) in zip(states, self._allocate(), strict=True):
                current.write(state.initial)

    def _allocate(self) -> list[tuple[Allocation, Allocation]]:
        self._give_back()
        compiled = self._compiled
        for state in compiled.plan.model.states:
            whole, plan = compiled.whole, compiled.plan
            uses = [Use(whole, plan, False, state.input), Use(whole, plan, True, state.output)]
            self._pairs.append((allocate_for(uses), allocate_for(uses)))
        return self._pairs

    def __call__(self, *inputs: Any) -> Any:
        """Run one step; inputs and outputs as of `Compiled.__call__`. A step that fails leaves the state as it was.

        After DeadObject from a driver that held the state, `reset` starts again.
        """
        self._check_open()
        compiled, states = self._compiled, self._compiled.plan.model.states
        job = compiled.edge.job(inputs, None)
        given: list[Any] = list(job.given)
        rooms: list[Any] = [None] * len(compiled.plan.model.main.outputs)
        for state, (current, following) in zip(states, self._pairs, strict=True):
            given[state.input], rooms[state.output] = current, following
        job.given, job.rooms = given, rooms
        results = compiled.execute(job)
        self._pairs = [(following, current) for current, following in self._pairs]
        return results

    def close(self) -> None:
        """Give the buffers of the state back; later uses raise Closed."""
        self._closed = True
        self._give_back()

    def _give_back(self) -> None:
        for pair in self._pairs:
            for allocation in pair:
                allocation.close()
        self._pairs = []

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("stream: used after close, open another")
        self._compiled.check_open()
