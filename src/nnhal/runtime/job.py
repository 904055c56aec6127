"""One execution of a compiled model, whichever way it was asked for: call, binding, submit, fences, burst, stream."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnhal.base.answers import shown
from nnhal.base.errors import ContractBroken
from nnhal.base.operands import Array, typed
from nnhal.base.records import Record, Struct, field
from nnhal.hal.host import Writing
from nnhal.hal.memory import Buffer
from nnhal.hal.request import UNLIMITED, Control, Timing, summed
from nnhal.hal.turns import Ticket
from nnhal.model.graph import EdgeForm
from nnhal.runtime.allocation import Allocation


class StepTiming(Record, frozen=True):
    """How long one step took: the runtime's own measure, and what the driver says, in nanoseconds.

    each: of its operations, by place in the step, as far as the driver tells. inside: of a step of control flow that the
    runtime runs itself, what each subgraph's steps took.
    """

    device: str
    operations: int
    total: int
    driver: Timing | None
    each: Mapping[int, int] = field(default_factory=dict)
    inside: "tuple[BranchTiming, ...]" = ()


class BranchTiming(Record, frozen=True):
    """How often a subgraph ran in one execution, and how long its steps took in all of these together.

    operation: of the whole model, that refers to it. name: what it is to that: "then", "else", "condition" or "body".
    """

    operation: int
    name: str
    runs: int
    steps: tuple[StepTiming, ...]


class Profile:
    """Takes what a driver tells of the operations of one step; what cannot be is ContractBroken, in the driver's call."""

    def __init__(self, serves: Sequence[int], where: str) -> None:
        """serves: for each operation that the driver has, the one of the step that its time counts for."""
        self._serves, self._where = serves, where
        self.spent: dict[int, int] = {}
        self.inside: tuple[BranchTiming, ...] = ()
        self.fallbacks: list[str] = []  # of steps inside

    def __call__(self, operation: int, begin_ns: int, end_ns: int) -> None:
        """Operation `operation` took the time between two points of the monotonic clock; what comes twice adds up."""
        if any(type(value) is not int for value in (operation, begin_ns, end_ns)):
            what = f"{shown(operation)}, {shown(begin_ns)}, {shown(end_ns)}"
            raise ContractBroken(f"{self._where}: profile({what}), must be integers")
        if not 0 <= operation < len(self._serves):
            raise ContractBroken(
                f"{self._where}: profile of operation {operation}, must be 0 to {len(self._serves) - 1}"
            )
        if not begin_ns <= end_ns:
            raise ContractBroken(f"{self._where}: profile of operation {operation} ends before it begins")
        served = self._serves[operation]
        self.spent[served] = self.spent.get(served, 0) + end_ns - begin_ns


class Report(Struct):
    """What one execution did: timing of each step, in order, what fell back, why it took another way than asked for."""

    steps: list[StepTiming] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def on_device(self) -> Timing:
        """The time on devices of all steps together; nothing where one was not measured."""
        return Timing(summed(None if s.driver is None else s.driver.on_device for s in self.steps))


class Crossing:
    """An array of the application's, outer, and the one that stands for it in the model, inner, which has another form."""

    def __init__(self, form: EdgeForm, outer: Array, where: str) -> None:
        self.form, self.outer, self._where = form, outer, where
        self.inner = outer.reshape(1) if form.scalar and not outer.shape else outer
        if form.wide and outer.dtype == np.int64:
            self.inner = np.empty(self.inner.shape, np.int32)
        elif form.wide:  # room in bytes
            self.inner = np.empty(outer.size // 2, np.uint8)

    def enter(self) -> None:
        """Before each run: inner is what outer holds by then."""
        if self.form.wide:
            self.inner[...] = self.form.inside(self.outer, self._where)

    def leave(self, result: Array) -> None:
        """After each run, which wrote inner: outer is what it gave."""
        if self.form.wide:
            self.result(result)[...] = result

    def result(self, result: Array) -> Array:
        """What the application gets for a result in inner: an array over outer."""
        shape = () if self.form.scalar else result.shape
        return typed(self.outer, np.dtype(np.int64) if self.form.wide else result.dtype, shape)


class Job:
    """Arguments in the model's order, how long it may take, and what came of it.

    given: an array an input, None where it is omitted or lies in a buffer. rooms: where outputs go, as of `Request`; None
    where all are left open. read, written: allocations that stand for inputs and outputs, by place; writing: to those in
    ordinary memory. buffers: those of a class of their driver's, by operand of the main subgraph. plain: all are arrays
    that fit, and given in order. taken, left: inputs and outputs that cross into another form, by place. named: inputs
    came by name, and so go the outputs. ticket: its place before a change of options, where it takes that ahead of its run.
    results, shapes: of every output, after `Runner.run`. fell_back: what did, of one that runs inside another.
    """

    control: Control = UNLIMITED
    report: Report | None = None
    buffers: Mapping[int, Buffer] = {}
    read: Mapping[int, Allocation] = {}
    written: Mapping[int, Allocation] = {}
    writing: Mapping[int, Writing] = {}
    taken: Mapping[int, Crossing] = {}
    left: Mapping[int, Crossing] = {}
    named = False
    ticket: Ticket | None = None
    fell_back = ""
    writer: object = None  # what stands for it where it writes allocations
    shapes: Sequence[Any] = ()
    results: Sequence[Any] = ()

    def __init__(
        self, given: Sequence[Array | None], rooms: Sequence[Array | None] | None = None, plain: bool = False
    ) -> None:
        self.given, self.rooms, self.plain = given, rooms, plain

    def begin(self, written: Mapping[int, Allocation]) -> None:
        """Tell the allocations that it will write that it begins."""
        self.writer = object()
        for allocation in written.values():
            allocation._begin(self.writer)

    def check(self) -> None:
        """InvalidRequest where a result is not of the shape of the allocation that it is for, before any has contents."""
        for place, writing in self.writing.items():
            writing.buffer.check(self.results[place])

    def settle(self, success: bool) -> None:
        """Tell the allocations that it was to write what became of it."""
        for allocation in self.written.values():
            allocation._wrote(self.writer, success)
        for place, writing in self.writing.items():
            writing.end(self.results[place] if success else None)


def resolve(job: Job, read: Mapping[int, Allocation], written: Mapping[int, Allocation], main: Any) -> None:
    """Put allocations in their places: those in ordinary memory as arrays, the others as buffers of their driver."""
    buffers: dict[int, Buffer] = {}
    if read:
        given = list(job.given)
        for place, allocation in read.items():
            host = allocation._host
            if host is not None:
                given[place] = host.array()
            else:
                given[place], buffers[main.inputs[place]] = None, allocation._open()
        job.given = given
    if written:
        rooms, writing = list(job.rooms or [None] * len(main.outputs)), {}
        for place, allocation in written.items():
            host = allocation._host
            if host is not None:
                writing[place] = host.begin()
                rooms[place] = writing[place].room
            else:
                rooms[place], buffers[main.outputs[place]] = None, allocation._open()
        job.rooms, job.writing = rooms, writing
    job.buffers, job.read, job.written = buffers, read, written
