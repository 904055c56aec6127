"""Defaults for drivers: buffers in ordinary memory, and bursts that call `run`."""

import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nnhal.base.answers import close_quietly
from nnhal.base.errors import (
    BadState,
    Cancelled,
    Closed,
    InvalidArgument,
    InvalidRequest,
    MissedDeadline,
    OperationFailed,
    OutOfMemory,
)
from nnhal.base.memory import Memory
from nnhal.base.operands import Array, dtype_of
from nnhal.base.time import QUERY_NS
from nnhal.hal.binding import flat_bytes
from nnhal.hal.burst import Burst, Bursts
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole, both, check_use
from nnhal.hal.request import UNLIMITED, Control, Request, RequestExecutor, Run, Signature, Timing
from nnhal.ops.schema import agree, show

_LOOK = 0.002  # seconds between looks at whether a late writer has ended


class HostBuffer(Buffer):
    """A buffer in ordinary memory. Any number of readers; of several writers the one that began last gives the contents."""

    def __init__(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> None:
        super().__init__(desc, roles)
        self.dtype = dtype_of(self.facts.type)
        self._lock = threading.Lock()
        self._closed = False
        self._contents: Array | None = None
        self._writing: BufferWrite | None = None
        self._fixed = self.facts.fixed
        self._wanted = None if self.facts.dimensions is None else tuple(d or None for d in self.facts.dimensions)
        self._room = None if self._fixed is None else self.make(self._fixed)

    def make(self, shape: tuple[int, ...]) -> Array:
        """An array for contents of this shape; OutOfMemory where there is none."""
        try:
            return np.empty(shape, self.dtype)
        except (MemoryError, ValueError):  # NumPy limits the size too
            size = math.prod(shape) * self.dtype.itemsize
            raise OutOfMemory(f"buffer: {size} bytes could not be allocated") from None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of the contents, None while there are none."""
        contents = self._contents
        return None if contents is None else contents.shape

    def array(self) -> Array:
        """The contents; OperationFailed while there are none."""
        contents = self._contents
        if contents is None:
            if self._closed:
                raise Closed(f"buffer {self.token}: used after close")
            raise OperationFailed(f"buffer {self.token} has no contents, must be written or copied to first")
        return contents

    def begin(self, control: Control = UNLIMITED, request: Request | None = None) -> "BufferWrite":
        """Begins to write, for an execution or a copy: drops the contents, and ignores writers that began earlier.

        An execution whose `control` was cancelled or whose `request` was abandoned does not begin. This is checked under
        the lock, so it never begins after the client's next one.
        """
        with self._lock:
            control.check_wanted()
            if request is not None:
                request.require_wanted()
            if self._closed:
                raise Closed(f"buffer {self.token}: used after close")
            if self._writing is not None and self._room is not None:  # the earlier writer may still write to it
                self._room = self.make(self._room.shape)
            self._contents = None
            self._writing = BufferWrite(self, self._room)
            return self._writing

    def end(self, writing: "BufferWrite", array: Array | None) -> None:
        """As `BufferWrite.end`."""
        try:
            if array is not None:
                self.check(array)
        except InvalidRequest:
            array = None
            raise
        finally:
            with self._lock:
                if self._writing is writing:
                    self._writing, self._contents = None, array

    def check(self, array: Array) -> None:
        """InvalidRequest where the buffer cannot have contents of this shape."""
        if self._wanted is not None and not agree(array.shape, self._wanted):
            raise InvalidRequest(
                f"buffer {self.token} was given shape {show(array.shape)}, must be {show(self._wanted)}"
            )

    def copy_to(self, memory: Memory) -> None:
        """Copy the contents out."""
        contents = self.array()
        target = memory.writable()
        if memory.size != max(1, contents.nbytes):  # no memory is empty
            raise InvalidArgument(f"memory has {memory.size} bytes, must be the {contents.nbytes} of the contents")
        target[: contents.nbytes] = flat_bytes(contents)

    def copy_from(self, memory: Memory, dimensions: tuple[int, ...] = (), control: Control = UNLIMITED) -> None:
        """Copy contents in."""
        self.begin(control).end(None)
        shape = self.shape_of_copy(dimensions)
        size = math.prod(shape) * self.dtype.itemsize
        source = memory.bytes()
        if memory.size != max(1, size):
            raise InvalidArgument(f"memory has {memory.size} bytes, must be the {size} of shape {show(shape)}")
        self.put(source[:size].view(self.dtype).reshape(shape), control)

    def put(self, array: Array, control: Control = UNLIMITED) -> None:
        """Give it contents: those of an array of its type; InvalidArgument where the shape is not the buffer's."""
        writing = self.begin(control)
        if array.shape != self._fixed:
            shape = self.shape_of_copy(array.shape)
            if shape != array.shape:
                raise InvalidArgument(f"buffer {self.token} is given shape {show(array.shape)}, must be {show(shape)}")
        room = self.make(array.shape) if writing.room is None else writing.room
        room[...] = array
        writing.end(room)

    def shape_of_copy(self, dimensions: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of contents for the dimensions that a client gave; () means the buffer's dimensions."""
        shape = both(self.facts.dimensions, dimensions or None, "the contents")
        if shape is None or (0 in shape and shape != dimensions):
            raise InvalidArgument(f"buffer {self.token}: dimensions {show(shape)} of the contents must all be given")
        return shape

    def close(self) -> None:
        """Drop the array."""
        with self._lock:
            self._closed = True
            self._contents = self._room = self._writing = None


class BufferWrite(NamedTuple):
    """One writing of a buffer, by an execution or a copy. room: where to; None where the shape may change."""

    buffer: HostBuffer
    room: Array | None

    def end(self, array: Array | None) -> None:
        """Ends the writing. It has no effect if another writer has begun since, or if the buffer was closed.

        Args:
            array: The contents, or None if the writer failed.

        Raises:
            InvalidRequest: The shape is not the buffer's.
        """
        self.buffer.end(self, array)


class HostArguments:
    """The arguments of a request that lie in host buffers, which become arrays, and those in buffers of other classes.

    Found once, for any number of executions.
    """

    def __init__(self, input_buffers: Mapping[int, Buffer], output_buffers: Mapping[int, Buffer]) -> None:
        self._read = [(n, b) for n, b in input_buffers.items() if isinstance(b, HostBuffer)]
        self._written = [(n, b) for n, b in output_buffers.items() if isinstance(b, HostBuffer)]
        self._others = (
            {n: b for n, b in input_buffers.items() if not isinstance(b, HostBuffer)},
            {n: b for n, b in output_buffers.items() if not isinstance(b, HostBuffer)},
        )

    def __bool__(self) -> bool:
        return bool(self._read or self._written)

    def execute(
        self,
        signature: Signature,
        given: Sequence[Array | None],
        rooms: Sequence[Array | None] | None,
        run: Run,
        control: Control,
        outer: Request | None = None,
    ) -> tuple[Request, Timing | None]:
        """Execute once, with arrays for the host buffers. outer: the request that this is the execution of, if there is one.

        Keeps their state by the contract: what was to be written by an execution that failed has no contents.
        """
        writings: list[tuple[int, BufferWrite]] = []
        if self._written:
            rooms = [None] * signature.count if rooms is None else list(rooms)
            for index, buffer in self._written:
                writing = buffer.begin(control, outer)
                writings.append((index, writing))
                rooms[index] = writing.room
        if self._read:
            given = list(given)
            for index, buffer in self._read:
                given[index] = buffer.array()
        request = signature.make(signature, given, rooms, *self._others)
        if outer is not None:
            outer.contain(request)
        timing = request.execute(run_in_background(run) if any(self._others) else run, control)
        control.check()
        if outer is not None:
            outer.require_wanted()
        if not request.small:
            for index, writing in writings:  # all of them before any has contents
                writing.buffer.check(request.results[index])
            for index, writing in writings:
                writing.end(request.results[index])
        return request, timing


def run_in_background(run: Run) -> Run:
    """Wraps `run` for requests with buffers of a driver's class.

    The wrapper waits until no abandoned execution may still write to one of the buffers. If one does not end, it raises
    OperationFailed after `QUERY_NS`; MissedDeadline or Cancelled come first if the request's budget ends before.
    """

    def beside(request: Request, control: Control) -> Timing | None:
        written = tuple(request.output_buffers.values())
        with _using((*request.input_buffers.values(), *written), written, request, control):
            return run(request, control)

    return beside


@contextlib.contextmanager
def _using(used: Sequence[Buffer], written: Sequence[Buffer], writer: object, control: Control) -> Iterator[None]:
    """Uses buffers of a driver's class, when no abandoned writer may still write to one of them.

    Args:
        used: All of them.
        written: Those that `writer` writes.
        writer: A request, or anything that stands for a copy.
        control: The budget of the writer.

    Raises:
        OperationFailed: An abandoned writer has not ended within `QUERY_NS`.
        Cancelled: The writer itself was abandoned before it began.
    """
    end = time.monotonic_ns() + QUERY_NS
    while any(_abandoned(*each) for buffer in used for each in list(buffer.writers.items())):
        control.check()
        if time.monotonic_ns() > end:
            raise OperationFailed("buffer: an abandoned execution does not end, and may still write to it")
        time.sleep(_LOOK)
    try:
        for buffer in written:
            buffer.writers[writer] = control
        control.check_wanted()  # now: the next writer either sees this one or comes after its refusal
        yield
    finally:
        for buffer in written:
            buffer.writers.pop(writer, None)


def _abandoned(writer: object, control: Control) -> bool:
    """Whether nobody waits any more for a writer."""
    try:
        control.check()
    except (Cancelled, MissedDeadline):
        return True
    return isinstance(writer, Request) and writer.ended


def copy_in(buffer: Buffer, memory: Memory, dimensions: tuple[int, ...], control: Control) -> None:
    """As `Buffer.copy_from`, for a caller that may abandon the copy: it does not begin after that."""
    if isinstance(buffer, HostBuffer):
        buffer.copy_from(memory, dimensions, control)
    else:
        with _using((buffer,), (buffer,), object(), control):
            buffer.copy_from(memory, dimensions)


def copy_out(buffer: Buffer, memory: Memory, control: Control) -> None:
    """As `Buffer.copy_to`, when no abandoned writer may still write to the buffer."""
    if isinstance(buffer, HostBuffer):
        buffer.copy_to(memory)
    else:
        with _using((buffer,), (), buffer, control):
            buffer.copy_to(memory)


def run_resolved(
    prepared: RequestExecutor, request: Request, control: Control, run: Run | None = None
) -> Timing | None:
    """`prepared.run` (or another `run` of the same model) with host buffers as arrays.

    Checks the use of each buffer, InvalidRequest, before anything happens.
    """
    run = run or prepared.run
    if not request.input_buffers and not request.output_buffers:
        return run(request, control)
    check_use(prepared, request)
    hosted = HostArguments(request.input_buffers, request.output_buffers)
    if not hosted:
        return run_in_background(run)(request, control)
    inner, timing = hosted.execute(request.signature, request.given, request.rooms, run, control, request)
    request.adopt(inner)
    return timing


def contents_of(buffer: Buffer) -> Array:
    """A copy of what any buffer holds, as an array; OperationFailed while there is nothing."""
    return contents_within(UNLIMITED, buffer)


def contents_within(control: Control, buffer: Buffer) -> Array:
    """As `contents_of`, for an execution: within its budget."""
    if isinstance(buffer, HostBuffer):
        return buffer.array().copy()
    held = buffer.within(control)
    shape = held.shape
    if shape is None:
        raise OperationFailed(f"buffer {buffer.token} has no contents, must be written or copied to first")
    dtype = dtype_of(buffer.facts.type)
    size = math.prod(shape) * dtype.itemsize
    memory = Memory.allocate(max(1, size), "nnhal-copy")
    held.copy_to(memory)
    return memory.view(0, size, dtype, shape)


def fill(buffer: Buffer, array: Array) -> None:
    """Give any buffer contents."""
    fill_within(UNLIMITED, buffer, array)


def fill_within(control: Control, buffer: Buffer, array: Array) -> None:
    """As `fill`, for an execution: within its budget."""
    if isinstance(buffer, HostBuffer):
        buffer.put(array, control)
    else:
        buffer.within(control).copy_from(Memory.from_array(array), array.shape)


class LocalBurst(Burst):
    """A burst in the driver's own process."""

    def __init__(self, prepared: Bursts) -> None:
        self._prepared = self._outer = prepared
        self._run: Run = prepared.run
        self._plain: Run = prepared.run  # beside another execution of the burst
        self._turn = ExclusiveUse()
        self._end: Callable[[], object] | None = None
        self._closed, self._told = False, True  # the driver gets no end before it got the begin
        prepared.burst_opened()
        self._told = False

    def run(self, request: Request, control: Control) -> Timing | None:
        """As `Prepared.run`."""
        try:
            run = self._run if self._turn.acquire_in_burst(request) else self._plain
            if self._closed:
                raise Closed("burst: used after close")
            if request.input_buffers or request.output_buffers:
                return run_resolved(self._outer, request, control, run)
            return run(request, control)
        finally:
            self._turn.give_back(request)
            if self._closed:
                self._tell()

    def runs_by(self, run: Run, end: Callable[[], object]) -> None:
        """Replaces the driver's `run` for all executions of the burst.

        Args:
            run: Called in place of `run`.
            end: Called when the burst ends.
        """
        self._run, self._end = run, end

    def run_within(self, outer: Bursts, around: Callable[[Run], Run]) -> None:
        """Makes its executions those of a wrapper of its prepared model.

        Args:
            outer: The wrapper. The begin and end of the burst stay with the prepared model.
            around: Wraps a function that executes, as the wrapper's `run` is wrapped.
        """
        self._outer = outer
        self._run, self._plain = around(self._run), around(self._plain)

    def close(self) -> None:
        """Ends the burst. The driver is notified at once, or when the burst's execution has ended."""
        self._closed = True
        self._tell()

    def _tell(self) -> None:
        if self._turn.taken or self._told:
            return
        self._told = True
        close_quietly("driver", "burst_closed()", self._prepared.burst_closed)
        if self._end is not None:
            self._end()

    def __del__(self) -> None:
        if hasattr(self, "_told"):
            self.close()


class ExclusiveUse:
    """A lock with one holder, free again when the holder returns it or no longer exists.

    An interrupt may come after any call, so a holder may never return it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: weakref.ref[object] | None = None

    def take(self, who: object) -> bool:
        """Takes the lock for `who`; returns whether it was free."""
        with self._lock:
            free = not self.taken
            if free:
                self._holder = weakref.ref(who)
            return free

    def acquire_in_burst(self, request: Request) -> bool:
        """Takes the lock for an execution in a burst.

        Returns:
            Whether it was free. If not, an abandoned execution still has it, and this one needs a plain call.

        Raises:
            BadState: Another execution is running.
        """
        if self.take(request):
            return True
        holder = self._holder
        running = None if holder is None else holder()
        if isinstance(running, Request) and not running.ended:
            raise BadState("burst: an execution is running, must be one at a time; open one burst a thread")
        return False

    def give_back(self, who: object) -> None:
        """Returns the lock if `who` holds it."""
        holder = self._holder
        if holder is not None and holder() is who:
            self._holder = None

    @property
    def taken(self) -> bool:
        """Whether the lock has a holder."""
        holder = self._holder
        return holder is not None and holder() is not None
