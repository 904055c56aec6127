"""Interprets IF and WHILE with separately compiled subgraphs: the condition, then a branch, or the body repeatedly.

A loop's values are not copied between iterations if possible. If all partitions that use a value are on one device that
grants driver memory, it stays there in two buffers: each iteration reads one and writes the other. Otherwise, large
values are in two arrays in the same way.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

import numpy as np

from nnhal.base.answers import close_quietly
from nnhal.base.codes import OperationType
from nnhal.base.errors import Closed, DeadObject, LoopTimeout, NnhalError, OperationFailed
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.hal.answers import allocated_by, checked_memory_use
from nnhal.hal.burst import Burst
from nnhal.hal.device import Device
from nnhal.hal.host import ExclusiveUse, HostBuffer, contents_within, fill_within
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole, MemoryUse, combined_use
from nnhal.hal.prepared import unwrapped
from nnhal.hal.request import Argument, Control, Request, Timing
from nnhal.model.graph import CONSTANTS, Model, operation_label
from nnhal.model.validate import validate
from nnhal.ops.schema import agree, show
from nnhal.runtime.bursts import open_bursts
from nnhal.runtime.compilation import InnerPlan, PreparedPlans
from nnhal.runtime.execute import LARGE, ModelSignature, PartitionRunner, Runner
from nnhal.runtime.job import BranchTiming, Job, Profile, Report, StepTiming

Values = list[Array | None]
_log = logger("execution")


class PreparedFlow(PreparedPlans):
    """Operations of control flow, one after another, for any number of executions at once.

    Every partition inside may fall back to the CPU. If that fails, the execution fails.
    """

    timely = True  # its partitions are

    def __init__(self, model: Model, inside: Sequence[InnerPlan]) -> None:
        """model: contains nothing but control flow. inside: two for each operation."""
        self.inside, self.model = tuple(inside), model
        self.weights_consumed = all(step.consumed for each in inside for step in each.plan.steps)
        self._branches = [_Branch(each) for each in inside]
        self._operations = [_operation(model, n, self._branches[2 * n : 2 * n + 2]) for n in range(len(inside) // 2)]
        main = model.main
        self._inputs, self._outputs = main.inputs, main.outputs
        read = {i for operation in main.operations for i in operation.inputs}
        self._constants = {i: model.constant(main.operands[i]) for i in read if main.operands[i].lifetime in CONSTANTS}

    def run(self, request: Request, control: Control) -> Timing | None:
        """Execute as `Prepared.run`; LoopTimeout if a WHILE takes too long."""
        return self.run_with(self._branches, request, control)

    def run_with(self, branches: "Sequence[_Branch]", request: Request, control: Control) -> Timing | None:
        """Execute with these functions for the subgraphs."""
        inner = control if control.profile is None else control._replace(profile=None)
        execution = _Execution(inner, _Spent(control.profile) if control.measure else None)
        try:
            self._run_all(branches, request, control, execution)
        except BaseException:
            execution.give_up()
            raise
        finally:
            request.fell_back = execution.fell_back
        execution.end()  # results were copied from memory that is reused
        return None if execution.spent is None else execution.spent.timing()

    def _run_all(
        self, branches: "Sequence[_Branch]", request: Request, control: Control, execution: "_Execution"
    ) -> None:
        values: dict[int, Any] = {**self._constants, **dict(zip(self._inputs, request.given, strict=True))}
        rooms = {i: request.room(n) for n, i in enumerate(self._outputs)}
        for n, operation in enumerate(self._operations):
            begin = time.monotonic_ns()
            course = _Course(branches[2 * n], branches[2 * n + 1], execution)
            given: Values = [values.get(i) for i in operation.inputs]
            results = operation.run(course, given, [rooms.get(i) for i in operation.outputs])
            values.update(zip(operation.outputs, operation.checked(results), strict=True))
            if control.profile is not None:
                control.profile(n, begin, time.monotonic_ns())
        for n, i in enumerate(self._outputs):
            result, room = values[i], rooms[i]
            if room is not None and result is room:
                request.filled(n, room.shape)
            else:
                request.write(n, result)

    def burst(self) -> Burst:
        """Open a burst, with a burst of its driver for each partition inside."""
        return _Bursts(self)

    def lines(self) -> Iterator[PartitionRunner]:
        """Yield the partitions inside."""
        for each in self._branches:
            yield from each.runner.lines

    def with_bursts(self, bursts: list[Burst], ways: list[str]) -> "list[_Branch]":
        """Return the same subgraphs, with each partition in a burst, which is added; those without a burst use plain calls.

        ways: receives how each partition runs.
        """
        found = []
        for each in self._branches:
            lines = []
            for line in each.runner.lines:
                other, way = open_bursts(line, bursts)
                lines.append(other)
                ways.append(way)
            found.append(_Branch(each.inside, lines, each.runner))
        return found

    def memory(self) -> MemoryUse:
        """Return the sum over all partitions inside."""
        return combined_use(checked_memory_use(line.prepared, line.signature.where) for line in self.lines())

    def kept(self) -> int:
        """As in `PreparedPlans`."""
        return sum(each.runner.kept() for each in self._branches) + sum(each.kept() for each in self._operations)

    def close(self) -> None:
        branches, self._branches = self._branches, []
        for each in branches:
            each.runner.close()
        for operation in self._operations:
            operation.close()


class _Spent:
    """The times of subgraphs' partitions in one execution."""

    def __init__(self, profile: Any) -> None:
        """profile: the requester of the times, who also gets each partition's."""
        self._runs: dict[tuple[int, str], int] = {}
        self._steps: dict[tuple[int, str], dict[tuple[int, str], StepTiming]] = {}
        self._timings: list[Timing | None] = []
        self._profile = profile if isinstance(profile, Profile) else None
        self._fallbacks: list[str] = [] if self._profile is None else self._profile.fallbacks

    def report(self) -> Report:
        """Return a report for one run of a subgraph; its fallbacks are recorded even if the run fails."""
        return Report(fallbacks=self._fallbacks)

    def add(self, inside: InnerPlan, report: Report) -> None:
        """Add one run of a subgraph."""
        which = inside.operation, inside.name
        self._runs[which] = self._runs.get(which, 0) + 1
        steps = self._steps.setdefault(which, {})
        for n, step in enumerate(report.steps):
            before = steps.get((n, step.device))
            steps[n, step.device] = step if before is None else _both(before, step)
            self._timings.append(step.driver)

    def timing(self) -> Timing:
        """Return the sum."""
        if self._profile is not None:
            self._profile.inside = tuple(
                BranchTiming(operation, name, runs, tuple(self._steps[operation, name].values()))
                for (operation, name), runs in self._runs.items()
            )
        return _sum(self._timings)


def _both(one: StepTiming, other: StepTiming) -> StepTiming:
    each = {n: one.each.get(n, 0) + other.each.get(n, 0) for n in {*one.each, *other.each}}
    inside = {(b.operation, b.name): b for b in one.inside}
    for b in other.inside:
        a = inside.get((b.operation, b.name))
        if a is not None and len(a.steps) == len(b.steps):
            steps = tuple(map(_both, a.steps, b.steps))
            b = BranchTiming(b.operation, b.name, a.runs + b.runs, steps)  # noqa: PLW2901
        inside[b.operation, b.name] = b
    total = one.total + other.total
    return StepTiming(one.device, one.operations, total, _sum([one.driver, other.driver]), each, tuple(inside.values()))


def _sum(timings: Sequence[Timing | None]) -> Timing:
    """Return the sum; a time that one of them lacks is missing."""
    device, driver = 0, 0
    for timing in timings:
        if timing is None or timing.on_device is None or timing.in_driver is None:
            return Timing()
        device, driver = device + timing.on_device, driver + timing.in_driver
    return Timing(device, driver)


# ------------------------------------------------------------------------------------------------------------ subgraphs


class _Inner(Runner):
    """Runs a plan inside an execution of another, which handles option changes and the fallback as a whole."""

    def __init__(
        self, inside: InnerPlan, whole: ModelSignature, lines: Sequence[PartitionRunner] | None, fallbacks: Any
    ) -> None:
        super().__init__(inside.plan, whole, lines, fallbacks)
        self._turns = self._only = None
        self._what = f"{inside.name} of operation #{inside.operation}"

    def _whole_on_cpu(self, job: Job, error: Exception) -> None:
        raise error

    def _note(self, job: Job, step: int, text: str) -> None:
        job.fell_back = f"{self._what}: {text}"
        super()._note(job, step, job.fell_back)

    def _fell_back_inside(self, job: Job, step: int, text: str) -> None:
        super()._fell_back_inside(job, step, text)
        job.fell_back = f"{self._what}: {text}"


class _Branch:
    def __init__(
        self,
        inside: InnerPlan,
        lines: Sequence[PartitionRunner] | None = None,
        of: "_Inner | None" = None,
    ) -> None:
        """lines, of: other functions for the partitions of another runner."""
        self.inside = inside
        self.whole = ModelSignature(inside.plan.model)
        self.runner = _Inner(inside, self.whole, lines, None if of is None else of.fallbacks)

    def operand(self, n: int) -> int | None:
        """Return the operand of its model that is value `n` of its inputs; None if it does not read that."""
        reads = self.inside.reads
        return self.whole.model.main.inputs[reads.index(n)] if n in reads else None

    def __call__(
        self,
        values: Sequence[Array | None],
        execution: "_Execution",
        rooms: Sequence[Array | None] | None = None,
        buffers: Mapping[int, Buffer] | None = None,
    ) -> Sequence[Any]:
        """Run the subgraph.

        values: those that fit its declared shapes. rooms: None for outputs that need none. buffers: by operand, for
        values in device memory, which are None among `values`.
        """
        for place, (shape, x) in enumerate(zip(self.inside.shapes, values, strict=True)):
            if x is not None and shape is not None and x.shape != shape and not agree(shape, x.shape):
                what = f"input {place} of its {self.inside.name} is given {show(x.shape)}"
                raise OperationFailed(f"operation #{self.inside.operation}: {what}, must be {show(shape)}")
        job = Job([values[place] for place in self.inside.reads], rooms)
        job.control, spent, job.begun = execution.control, execution.spent, execution.begun
        if buffers:
            job.buffers = buffers
        if spent is not None:
            job.report = spent.report()
        try:
            self.runner.run(job)
        finally:
            execution.begun, execution.fell_back = True, job.fell_back or execution.fell_back
        if spent is not None and job.report is not None:
            spent.add(self.inside, job.report)
        return job.results


class _Execution:
    """One execution of all operations. begun: whether a subgraph has run. fell_back: the last fallback inside, or ""."""

    def __init__(self, control: Control, spent: _Spent | None) -> None:
        self.control, self.spent, self.begun, self.fell_back = control, spent, False, ""
        self._loops: list[tuple[_Carrying, _State]] = []

    def keep(self, carrying: "_Carrying", state: "_State") -> None:
        """Note the end of a loop: its memory stays in use until all operations have ended."""
        self._loops.append((carrying, state))

    def end(self) -> None:
        """Note success: the next execution may use the loops' memory."""
        for carrying, state in self._loops:
            carrying.end(state)

    def give_up(self) -> None:
        """Release the memory."""
        for _, state in self._loops:
            state.close()


class _Course(NamedTuple):
    """The parts of one execution of an operation: both subgraphs, with the functions that run them."""

    first: _Branch
    second: _Branch
    execution: _Execution


# ----------------------------------------------------------------------------------------------------------- operations


class _Operation:
    """An operation: the operands of its part that it reads and writes."""

    def __init__(self, model: Model, number: int, skipped: int) -> None:
        """skipped: inputs that select what to run."""
        operation = model.main.operations[number]
        self.label = operation_label(operation.type, number, operation.name)
        self.inputs, self.outputs = (*operation.inputs[: skipped - 2], *operation.inputs[skipped:]), operation.outputs
        values = validate(model).subgraphs[0].values
        self._shapes = [None if (v := values[i]) is None else v.shape for i in self.outputs]

    def run(self, course: _Course, given: Values, rooms: Sequence[Array | None]) -> Sequence[Any]:
        """Return the outputs."""
        raise NotImplementedError

    def checked(self, results: Sequence[Any]) -> Sequence[Any]:
        """Return the outputs; OperationFailed if one has another shape than declared."""
        for place, (shape, result) in enumerate(zip(self._shapes, results, strict=True)):
            if shape is not None and not agree(shape, result.shape):
                raise OperationFailed(
                    f"{self.label}: made output {place} of {show(result.shape)}, must be {show(shape)}"
                )
        return results

    def kept(self) -> int:
        """The bytes that it keeps for the next execution."""
        return 0

    def close(self) -> None:
        """Release the memory kept between executions."""


class _If(_Operation):
    def __init__(self, model: Model, number: int) -> None:
        super().__init__(model, number, 3)

    def run(self, course: _Course, given: Values, rooms: Sequence[Array | None]) -> Sequence[Any]:
        """Run a branch. Outputs are written to their target directly if that fits."""
        condition = given[0]
        assert condition is not None
        chosen = course.first if condition[0] else course.second
        places: list[Array | None] = [None] * len(rooms)
        # Otherwise the call may be abandoned, after which nothing may be written
        if not course.execution.control.bounded:
            for n, (room, argument) in enumerate(zip(rooms, chosen.whole.signature.outputs, strict=True)):
                if room is not None and room.shape == argument.fixed and room.dtype == argument.dtype:
                    places[n] = room
        wanted = places if any(place is not None for place in places) else None
        return chosen(given[1:], course.execution, wanted)


class _While(_Operation):
    def __init__(self, model: Model, number: int, branches: Sequence[_Branch]) -> None:
        super().__init__(model, number, 2)
        self._carrying = _Carrying(*branches)

    def run(self, course: _Course, given: Values, rooms: Sequence[Array | None]) -> Sequence[Any]:
        """Return the body's first outputs in the last iteration; without one, the inputs."""
        control, start = course.execution.control, time.monotonic_ns()
        state = self._carrying.begin(control, given)
        try:
            while self._goes_on(course, state):
                control.check()
                spent, limit = time.monotonic_ns() - start, control.loop_timeout
                if spent > limit:
                    raise LoopTimeout(
                        f"{self.label}: has run for {spent / 1e6:.1f} ms, must end within its loop time-out of "
                        f"{limit / 1e6:g} ms"
                    )
                state.turned(course.second(state.values, course.execution, state.rooms(), state.buffers(course.second)))
            results = state.results(control, len(self.outputs))
        except BaseException:
            state.close()  # an abandoned partition may still write to its values
            raise
        course.execution.keep(self._carrying, state)
        return results

    def _goes_on(self, course: _Course, state: "_State") -> bool:
        (goes_on,) = course.first(state.values, course.execution, None, state.buffers(course.first))
        return bool(goes_on[0])

    def kept(self) -> int:
        return self._carrying.kept()

    def close(self) -> None:
        self._carrying.close()


def _operation(model: Model, number: int, branches: Sequence[_Branch]) -> _Operation:
    if model.main.operations[number].type == OperationType.IF:
        return _If(model, number)
    return _While(model, number, branches)


# ------------------------------------------------------------------------------------------------- what a loop carries


class _Held(NamedTuple):
    """A loop's value that may stay on a device. roles: all its uses. twice: whether iterations change it."""

    device: Device
    roles: tuple[BufferRole, ...]
    twice: bool


class _Carrying:
    """The memory of one loop's values between iterations, and the part of it that is free for the next execution."""

    def __init__(self, condition: _Branch, body: _Branch) -> None:
        self.condition, self.body = condition, body
        outputs = body.whole.signature.outputs
        self.changed = len(outputs)
        self.arrays = {  # shapes and types of large ones with two arrays
            n: (argument.fixed, argument.dtype)
            for n, argument in enumerate(outputs)
            if argument.fixed is not None and (argument.nbytes or 0) >= LARGE
        }
        read: dict[int, Argument] = {}
        for each in (condition, body):
            read |= dict(zip(each.inside.reads, each.whole.signature.inputs, strict=True))
        large = [n for n, argument in read.items() if (argument.nbytes or 0) >= LARGE]
        same = [n for n in large if n >= self.changed or outputs[n].fixed == read[n].fixed]
        self._held = {n: held for n in same if (held := self._where(n)) is not None}
        self._free: deque[_State] = deque()

    def _where(self, n: int) -> _Held | None:
        """Return the only device of all partitions that use value `n`; None if there are several."""
        roles: list[BufferRole] = []
        devices: list[Device] = []
        for each in (self.condition, self.body):
            plan = each.inside.plan
            main = plan.model.main
            read = each.operand(n)
            written = main.outputs[n] if each is self.body and n < self.changed else None
            for step in plan.steps:
                part = step.part
                uses = (part.inputs, read, False), (part.inputs, written, False), (part.outputs, written, True)
                for places, operand, output in uses:
                    if operand is not None and operand in places:
                        roles.append(BufferRole(step.prepared, places.index(operand), output))
                        devices.append(step.device)
        if not roles or any(device is not devices[0] for device in devices):
            return None
        if isinstance(unwrapped(roles[0].prepared), PreparedPlans):
            return None
        return _Held(devices[0], tuple(roles), n < self.changed)

    def begin(self, control: Control, given: Sequence[Array | None]) -> "_State":
        """Return the values before the first iteration, in free or new memory."""
        try:
            state = self._free.pop()
        except IndexError:
            return self._begun(control, given)
        try:
            state.begin(control, given)
        except DeadObject:  # the process that held it has died
            state.close()
            return self._begun(control, given)
        except BaseException:
            state.close()
            raise
        return state

    def _begun(self, control: Control, given: Sequence[Array | None]) -> "_State":
        state = _State(self, self._allocated())
        try:
            state.begin(control, given)
        except BaseException:
            state.close()
            raise
        return state

    def _allocated(self) -> dict[int, tuple[Buffer, ...]]:
        """Allocate buffers for the values that may stay on a device, if it grants device memory."""
        found: dict[int, tuple[Buffer, ...]] = {}
        for n, held in list(self._held.items()):
            made: list[Buffer] = []
            try:
                for _ in range(2 if held.twice else 1):
                    made.append(allocated_by(held.device, BufferDesc(), held.roles))
                    if isinstance(made[-1], HostBuffer):  # an array is as good
                        raise OperationFailed("its memory is that of this process")
                found[n] = tuple(made)
            except NnhalError as error:
                _log.info("value %d of a loop is carried in ordinary memory: %s", n, error)
                if not isinstance(error, DeadObject):
                    self._held.pop(n, None)
                for buffer in made:
                    _close(buffer)
        return found

    def end(self, state: "_State") -> None:
        """Note success: the next execution may use the memory."""
        state.values = []  # they belong to the caller, or have execution-dependent sizes
        self._free.append(state)

    def kept(self) -> int:
        """The bytes of free arrays."""
        return sum(state.size for state in tuple(self._free))

    def close(self) -> None:
        """Release the free memory."""
        with suppress(IndexError):
            while True:
                self._free.pop().close()


class _State:
    """The values of a loop in one execution."""

    def __init__(self, carrying: _Carrying, held: Mapping[int, tuple[Buffer, ...]]) -> None:
        self._carrying, self._made, self._held = carrying, held, held
        self._arrays: dict[tuple[int, int], Array] = {}
        self._now = 0  # which of the two is read
        self.values: Values = []

    @property
    def size(self) -> int:
        """The bytes of its arrays."""
        return sum(array.nbytes for array in self._arrays.values())

    def begin(self, control: Control, given: Sequence[Array | None]) -> None:
        """Set the values before the first iteration."""
        self.values, self._now = list(given), 0
        self._held = {n: buffers for n, buffers in self._made.items() if given[n] is not None}
        for n, (first, *_) in self._held.items():
            fill_within(control, first, cast("Array", given[n]))
            self.values[n] = None

    def rooms(self) -> list[Array | None] | None:
        """Return the arrays for the body's large outputs, none of which it reads."""
        rooms: list[Array | None] = [None] * self._carrying.changed
        for n, known in self._carrying.arrays.items():
            if n not in self._held:
                which = n, 1 - self._now
                if which not in self._arrays:
                    self._arrays[which] = np.empty(*known)
                rooms[n] = self._arrays[which]
        return rooms if self._arrays else None

    def buffers(self, branch: _Branch) -> dict[int, Buffer]:
        """Return the buffers that a subgraph reads and writes, by operand."""
        if not self._held:
            return {}
        main = branch.inside.plan.model.main
        found = {
            operand: two[self._now % len(two)]
            for n, two in self._held.items()
            if (operand := branch.operand(n)) is not None
        }
        if branch.inside.name == "body":
            written = {n: two for n, two in self._held.items() if len(two) > 1}
            found |= {main.outputs[n]: two[1 - self._now] for n, two in written.items()}
        return found

    def turned(self, results: Sequence[Any]) -> None:
        """Finish an iteration: the body's outputs become the next inputs."""
        self.values[: len(results)] = results
        self._now = 1 - self._now

    def results(self, control: Control, count: int) -> list[Any]:
        """Return the first values, from wherever they are."""
        return [
            self.values[n] if n not in self._held else contents_within(control, self._read(n)) for n in range(count)
        ]

    def _read(self, n: int) -> Buffer:
        return self._held[n][self._now % len(self._held[n])]

    def close(self) -> None:
        """Release the buffers."""
        for two in self._made.values():
            for buffer in two:
                _close(buffer)


def _close(buffer: Buffer) -> None:
    close_quietly("driver", "close() of a buffer", buffer.close)


# --------------------------------------------------------------------------------------------------------------- bursts


class _Bursts(Burst):
    """A burst, with a burst of its driver for each partition inside."""

    def __init__(self, interpreter: PreparedFlow) -> None:
        self._interpreter, self._turn, self._closed = interpreter, ExclusiveUse(), False
        self._bursts: list[Burst] = []
        ways: list[str] = []
        try:
            self._branches = interpreter.with_bursts(self._bursts, ways)
        except BaseException:
            self.close()
            raise
        self.way = ", ".join(dict.fromkeys(ways))

    @property
    def ended(self) -> bool:  # type: ignore[override]
        """Whether one inside has ended."""
        return any(burst.ended for burst in self._bursts)

    @property
    def plain(self) -> Mapping[str, int]:  # type: ignore[override]
        """The plain calls of all inside."""
        found: dict[str, int] = {}
        for burst in self._bursts:
            for why, count in burst.plain.items():
                found[why] = found.get(why, 0) + count
        return found

    def run(self, request: Request, control: Control) -> Timing | None:
        """Execute as `Prepared.run`."""
        try:
            mine = self._turn.acquire_in_burst(request)
            if self._closed:
                raise Closed("burst: used after close")
            if not mine:
                return self._interpreter.run(request, control)
            return self._interpreter.run_with(self._branches, request, control)
        finally:
            self._turn.give_back(request)

    def free_memory(self, memory: Memory) -> None:
        """As in `Burst`."""
        for burst in self._bursts:
            burst.free_memory(memory)

    def close(self) -> None:
        self._closed = True
        for burst in self._bursts:
            close_quietly("driver", "close() of a burst", burst.close)
