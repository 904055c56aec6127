"""A session that carries a model's states from call to call."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nnhal.base import trace
from nnhal.base.brief import short_repr, with_count
from nnhal.base.errors import Closed, DeadObject
from nnhal.base.uncopied import NotCopyable
from nnhal.hal.memory import Buffer
from nnhal.model.graph import Model
from nnhal.runtime.allocation import Allocation, Use, allocate_for
from nnhal.runtime.caller import Caller
from nnhal.runtime.job import Job


class StatePlacement(NamedTuple):
    """The place of one state of a stream.

    Attributes:
        device: The label of the device; None for a shared pool.
        reason: Why it is a shared pool, or "".
    """

    name: str
    device: str | None
    reason: str


class Stream(NotCopyable, instead="another process gets the model and compiles it there"):
    """A session that carries the model's states from call to call, from their initial values on. For one thread.

    Each state lies in two buffers of its device, or in shared pools if the driver grants none: a call reads one buffer
    and writes the other.
    """

    def __init__(self, owner: object, compiled: Caller) -> None:
        """owner: kept alive as long as this object."""
        self._owner, self._compiled, self._closed = owner, compiled, False
        self._turns: tuple[_Turn, ...] = ()  # of this call and of the next one
        self.reset()

    @property
    def state_placement(self) -> tuple[StatePlacement, ...]:
        """Where each state lies, and why."""
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
        """Set the states to their initial values. Also recovers after `DeadObject`, which loses the states."""
        self._check_open()
        try:
            self._write_initial(self._turns or self._allocate())
        except DeadObject:  # the process that held them has died
            self._write_initial(self._allocate())

    def _write_initial(self, turns: "tuple[_Turn, ...]") -> None:
        for state in self._compiled.plan.model.states:
            for turn in turns:  # both buffers: either may have died with its process
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

    @trace.traced_method(
        "application", "execution", "call of a stream", detail=lambda self: self._compiled.plan.model.name
    )
    def __call__(self, *inputs: Any) -> Any:
        """Run the model once on the current states.

        A call that fails leaves the states as they were. After `DeadObject` from a driver that held a state, call
        `reset`.

        Args:
            inputs: The inputs other than the states, as in a call of the model.

        Returns:
            The outputs other than the states, as a call of the model returns them.

        Raises:
            InvalidRequest: An argument does not fit the model.
            NnhalError: The execution failed.
        """
        self._check_open()
        turn, following = self._turns
        job = self._compiled.edge.job(inputs, None)
        turn.place(job)
        results = self._compiled.execute(job)
        self._turns = following, turn
        return results

    def __repr__(self) -> str:
        states = with_count(len(self._compiled.plan.model.states), "state")
        return short_repr(f"Stream of {self._compiled.label}, {states}, {'closed' if self._closed else 'open'}")

    def close(self) -> None:
        """Release the buffers of the states. Later uses raise `Closed`."""
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
    """Which of the two buffers of each state one call reads and which it writes, by place among inputs and outputs.

    buffers: all of them by operand if all are driver buffers, else empty. outputs: their number.
    """

    read: Mapping[int, Allocation]
    written: Mapping[int, Allocation]
    buffers: Mapping[int, Buffer]
    outputs: int

    @classmethod
    def of(cls, model: Model, current: Sequence[Allocation], following: Sequence[Allocation]) -> "_Turn":
        main = model.main
        read = {state.input: allocation for state, allocation in zip(model.states, current, strict=True)}
        written = {state.output: allocation for state, allocation in zip(model.states, following, strict=True)}
        buffers: dict[int, Buffer] = {}
        if all(allocation._host is None for allocation in (*current, *following)):
            buffers |= {main.inputs[place]: allocation._open() for place, allocation in read.items()}
            buffers |= {main.outputs[place]: allocation._open() for place, allocation in written.items()}
        return cls(read, written, buffers, len(main.outputs))

    def place(self, job: Job) -> None:
        """Insert the buffers. No check is left if all inputs of the caller are arrays."""
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
