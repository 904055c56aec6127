"""A session that carries a model's states from call to call."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nnhal.base import trace
from nnhal.base.brief import brief, counted
from nnhal.base.errors import Closed, DeadObject
from nnhal.base.uncopied import Uncopied
from nnhal.hal.memory import Buffer
from nnhal.model.graph import Model
from nnhal.runtime.allocation import Allocation, Use, allocate_for
from nnhal.runtime.caller import Caller
from nnhal.runtime.job import Job


class StatePlacement(NamedTuple):
    """Where a stream keeps one state. device: None for a shared pool, and then reason says why."""

    name: str
    device: str | None
    reason: str


class Stream(Uncopied, instead="another process gets the model and compiles it there"):
    """A session: what the model keeps between calls starts at its initial value and is carried on. For one thread.

    Each state lies in two buffers of its device, or in shared pools where the driver grants none: one is read, one written.
    """

    def __init__(self, owner: object, compiled: Caller) -> None:
        """owner: what is not to go before it."""
        self._owner, self._compiled, self._closed = owner, compiled, False
        self._turns: tuple[_Turn, ...] = ()  # this step's and the next one's
        self.reset()

    @property
    def state_placement(self) -> tuple[StatePlacement, ...]:
        """Where each state is kept, and why there."""
        self._check_open()
        main, states = self._compiled.plan.model.main, self._compiled.plan.model.states
        current = self._turns[0].read
        return tuple(
            StatePlacement(
                main.operands[main.inputs[s.input]].name or f"state {n}",
                current[s.input].device,
                current[s.input].reason,
            )
            for n, s in enumerate(states)
        )

    def reset(self) -> None:
        """Start again from the initial state; also the way on after DeadObject, which takes the state with it."""
        self._check_open()
        try:
            self._write_initial(self._turns or self._allocate())
        except DeadObject:  # the process that held them is gone
            self._write_initial(self._allocate())

    def _write_initial(self, turns: "tuple[_Turn, ...]") -> None:
        for state in self._compiled.plan.model.states:
            for turn in turns:  # both buffers: DeadObject tells of whichever has gone
                turn.read[state.input].write(state.initial)

    def _allocate(self) -> "tuple[_Turn, ...]":
        whole, plan = self._compiled.whole, self._compiled.plan
        made: list[Allocation] = []
        try:
            for state in plan.model.states:
                uses = [Use(whole, plan, False, state.input), Use(whole, plan, True, state.output)]
                for _ in range(2):
                    made.append(allocate_for(uses))  # noqa: PERF401 (those before are to be closed)
        except BaseException:
            for allocation in made:
                allocation.close()
            raise
        before = self._turns
        self._turns = _Turn.of(plan.model, made[::2], made[1::2]), _Turn.of(plan.model, made[1::2], made[::2])
        _close(before)
        return self._turns

    @trace.seam("application", "execution", "step of a stream", detail=lambda self: self._compiled.plan.model.name)
    def __call__(self, *inputs: Any) -> Any:
        """Run one step; inputs and outputs as of `Compiled.__call__`. A step that fails leaves the state as it was.

        After DeadObject from a driver that held the state, `reset` starts again.
        """
        self._check_open()
        turn, following = self._turns
        job = self._compiled.edge.job(inputs, None)
        turn.place(job)
        results = self._compiled.execute(job)
        self._turns = following, turn
        return results

    def __repr__(self) -> str:
        states = counted(len(self._compiled.plan.model.states), "state")
        return brief(f"Stream of {self._compiled.label}, {states}, {'closed' if self._closed else 'open'}")

    def close(self) -> None:
        """Give the buffers of the state back; later uses raise Closed."""
        self._closed = True
        self._give_back()

    def _give_back(self) -> None:
        _close(self._turns)
        self._turns = ()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("stream: used after close, open another")
        self._compiled.check_open()


def _close(turns: "tuple[_Turn, ...]") -> None:
    for turn in turns:
        for allocation in turn.read.values():
            allocation.close()


class _Turn(NamedTuple):
    """Which of the two buffers of each state a step reads and which it writes, by place among inputs and outputs.

    buffers: all of them by operand where all are of their driver's own class; else empty. outputs: how many there are.
    """

    read: Mapping[int, Allocation]
    written: Mapping[int, Allocation]
    buffers: Mapping[int, Buffer]
    outputs: int

    @classmethod
    def of(cls, model: Model, current: Sequence[Allocation], following: Sequence[Allocation]) -> "_Turn":
        """Of the states of a model in order."""
        main = model.main
        read = {state.input: allocation for state, allocation in zip(model.states, current, strict=True)}
        written = {state.output: allocation for state, allocation in zip(model.states, following, strict=True)}
        buffers: dict[int, Buffer] = {}
        if all(allocation._host is None for allocation in (*current, *following)):
            buffers |= {main.inputs[place]: allocation._open() for place, allocation in read.items()}
            buffers |= {main.outputs[place]: allocation._open() for place, allocation in written.items()}
        return cls(read, written, buffers, len(main.outputs))

    def place(self, job: Job) -> None:
        """Put the buffers in their places; nothing is left to look at where all inputs of the caller's are arrays."""
        given: list[Any] = list(job.given)
        if self.buffers and not any(isinstance(x, Allocation) for x in given):
            for place, allocation in self.read.items():
                allocation._check_contents()
                given[place] = None
            job.given, job.buffers, job.read, job.written = given, self.buffers, self.read, self.written
            return
        rooms: list[Any] = [None] * self.outputs
        for place, allocation in self.read.items():
            given[place] = allocation
        for place, allocation in self.written.items():
            rooms[place] = allocation
        job.given, job.rooms = given, rooms
