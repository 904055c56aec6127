"""One execution of a compiled model, for all kinds of calls: plain, bound, submitted, fenced, burst and stream."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnhal.base.answers import safe_repr
from nnhal.base.errors import ContractBroken
from nnhal.base.operands import Array, typed
from nnhal.base.records import Record, Struct, field
from nnhal.hal.host import BufferWrite
from nnhal.hal.memory import Buffer
from nnhal.hal.options_lock import LockTicket
from nnhal.hal.request import UNLIMITED, Control, Timing, summed
from nnhal.model.graph import EdgeForm
from nnhal.runtime.allocation import Allocation


class StepTiming(Record, frozen=True):
    """How long one partition took in one execution, in nanoseconds.

    Attributes:
        device: The label of the device.
        operations: The number of operations.
        total: The time that the runtime measured.
        driver: The times that the driver reports, if it reports any.
        each: The times of its operations, by index in the partition, as far as the driver reports them.
        inside: For control flow that the runtime interprets: the times of each subgraph's partitions.
    """

    device: str
    operations: int
    total: int
    driver: Timing | None
    each: Mapping[int, int] = field(default_factory=dict)
    inside: "tuple[BranchTiming, ...]" = ()


class BranchTiming(Record, frozen=True):
    """How often a subgraph ran in one execution, and the total times of its partitions.

    Attributes:
        operation: The index of the IF or WHILE in the whole model.
        name: The role of the subgraph: "then", "else", "condition" or "body".
        runs: How often it ran.
        steps: The times of its partitions, summed over the runs.
    """

    operation: int
    name: str
    runs: int
    steps: tuple[StepTiming, ...]


class Profile:
    """Receives the operation times that a driver reports for one partition; rejects impossible ones."""

    def __init__(self, serves: Sequence[int], where: str) -> None:
        """serves: for each operation that the driver received, the index of the operation whose time it counts for."""
        self._serves, self._where = serves, where
        self.spent: dict[int, int] = {}
        self.inside: tuple[BranchTiming, ...] = ()
        self.fallbacks: list[str] = []  # of partitions inside control flow

    def __call__(self, operation: int, begin_ns: int, end_ns: int) -> None:
        """Add the time between two points of the monotonic clock to operation `operation`."""
        if any(type(value) is not int for value in (operation, begin_ns, end_ns)):
            what = f"{safe_repr(operation)}, {safe_repr(begin_ns)}, {safe_repr(end_ns)}"
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
    """The record of one execution.

    Attributes:
        steps: The times of each partition, in order.
        fallbacks: The partitions that ran on the CPU instead, with the reason.
        notes: Why the execution ran in another way than requested.
    """

    steps: list[StepTiming] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def on_device(self) -> Timing:
        """The device time of all partitions together; empty if a device did not measure it."""
        return Timing(summed(None if s.driver is None else s.driver.on_device for s in self.steps))


class EdgeConversion:
    """Converts an argument of the application, outer, from or to the model's array, inner, which has another type."""

    def __init__(self, form: EdgeForm, outer: Array, where: str) -> None:
        self.form, self.outer, self._where = form, outer, where
        self.inner = outer.reshape(1) if form.scalar and not outer.shape else outer
        if form.converts and outer.dtype == np.uint8:  # a size in bytes
            self.inner = np.empty(outer.size * 2 if form.scale else outer.size // 2, np.uint8)
        elif form.converts:
            self.inner = np.empty(self.inner.shape, form.operand_dtype(outer.dtype))

    def enter(self) -> None:
        """Copy outer to inner, before each run."""
        if self.form.converts:
            self.inner[...] = self.form.inside(self.outer, self._where)

    def leave(self, result: Array) -> None:
        """Copy a result to outer, after each run."""
        if self.form.converts:
            self.result(result)[...] = self.form.outside(result)

    def result(self, result: Array) -> Array:
        """Return the application's result for one in inner: an array over outer."""
        shape = () if self.form.scalar else result.shape
        return typed(self.outer, self.form.dtype(result.dtype), shape)


class Job:
    """The arguments of one execution in the model's order, its limits and its outcome.

    given: an array for each input, None if it is omitted or lies in a buffer. rooms: the output arrays, as in
    `Request`; None if all are open. read, written: allocations used as inputs and outputs, by place. writing: those
    written to in ordinary memory. buffers: driver buffers, by operand of the main subgraph. plain: whether all
    arguments are arrays that fit, in order. taken, left: inputs and outputs that need conversion, by place. named:
    inputs came by name, so outputs are returned by name. ticket: its place before a change of options, if it was
    reserved before the run. results, shapes: of every output, after `Runner.run`. begun: whether other partitions
    of the execution of a job inside another job have run. fell_back: the fallbacks of such a job.
    """

    control: Control = UNLIMITED
    report: Report | None = None
    buffers: Mapping[int, Buffer] = {}
    read: Mapping[int, Allocation] = {}
    written: Mapping[int, Allocation] = {}
    writing: Mapping[int, BufferWrite] = {}
    taken: Mapping[int, EdgeConversion] = {}
    left: Mapping[int, EdgeConversion] = {}
    named = False
    ticket: LockTicket | None = None
    begun = False
    fell_back = ""
    writer: object = None  # identifies it as the writer of allocations
    shapes: Sequence[Any] = ()
    results: Sequence[Any] = ()

    def __init__(
        self, given: Sequence[Array | None], rooms: Sequence[Array | None] | None = None, plain: bool = False
    ) -> None:
        self.given, self.rooms, self.plain = given, rooms, plain

    def begin(self, written: Mapping[int, Allocation]) -> None:
        """Inform the allocations that it writes that it begins."""
        self.writer = object()
        for allocation in written.values():
            allocation._begin(self.writer)

    def check(self) -> None:
        """Raise InvalidRequest if a result's shape is not that of its allocation, before any has contents."""
        for place, writing in self.writing.items():
            writing.buffer.check(self.results[place])

    def settle(self, success: bool) -> None:
        """Inform the allocations that it writes of the outcome."""
        for allocation in self.written.values():
            allocation._wrote(self.writer, success)
        for place, writing in self.writing.items():
            writing.end(self.results[place] if success else None)


def resolve(job: Job, read: Mapping[int, Allocation], written: Mapping[int, Allocation], main: Any) -> None:
    """Insert allocations: those in ordinary memory as arrays, the others as driver buffers."""
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
