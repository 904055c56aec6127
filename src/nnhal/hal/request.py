"""One execution: what a driver reads and gives, how long it may take, and the contract that both sides are held to.

A `Request` is made for one execution and ends with it. The driver reads `inputs`, which nobody can write to through them,
and gives each output with `write`, or fills `outputs[i]` in place. The request takes what it is given after a look at type,
shape and size, into memory of the caller's: nothing that a driver holds is handed on, and nothing is taken after the end.
The same class serves in process, in a driver's own process and in the client of one.
"""

import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from nnhal.base import trace
from nnhal.base.answers import raise_application_error, safe_repr, with_driver_name
from nnhal.base.codes import LOOP_TIMEOUT_DEFAULT_NS, operation_name
from nnhal.base.errors import (
    Cancelled,
    Closed,
    ContractBroken,
    InvalidRequest,
    LoopTimeout,
    MissedDeadline,
    NnhalError,
    as_error,
    error_text,
)
from nnhal.base.extensions import canonical
from nnhal.base.log import logger
from nnhal.base.operands import Array, Shape, dtype_of, fixed, typed
from nnhal.base.stacks import store_stack
from nnhal.base.time import wait_seconds
from nnhal.hal.cancel import OnCancel
from nnhal.hal.output_memory import CheckedOutputMemory, OutputMemory, overwritten
from nnhal.model.graph import Model, Operation
from nnhal.model.validate import shape_of, validate
from nnhal.ops.schema import agree, show

CHECK = "NNHAL_CHECK"  # 1: look at everything that costs too much to be looked at always
_log = logger("driver")


class Timing(NamedTuple):
    """Durations in nanoseconds; None where not measured. Time on the device is part of the time in the driver."""

    on_device: int | None = None
    in_driver: int | None = None


def summed(figures: Iterable[int | None]) -> int | None:
    """Durations or sizes together; None where any is not known."""
    known = list(figures)
    return None if None in known else sum(n for n in known if n is not None)


def checked_timing(timing: Any, where: str) -> Timing | None:
    """Returns the durations that a driver measured; logs impossible ones and returns None."""
    if timing is None:
        return None
    whole = issubclass(type(timing), tuple) and len(timing) == 2 and all(t is None or type(t) is int for t in timing)
    if whole:
        device, driver = timing
        if (device or 0) >= 0 and (driver or 0) >= 0 and (device is None or driver is None or device <= driver):
            return Timing(device, driver)
    _log.warning("%s: reports the duration %s, must be a Timing with on_device <= in_driver", where, safe_repr(timing))
    return None


class Control(NamedTuple):
    """The limits of an execution, and what to measure.

    Attributes:
        deadline: A time of the monotonic clock in nanoseconds, or None for no limit.
        loop_timeout: The limit of each WHILE in nanoseconds.
        measure: Whether the driver shall measure durations.
        cancelled: Is set when the client cancels the execution.
        profile: A driver that measures operations calls it after each operation of the main subgraph, with the operation's
            index and the monotonic clock before and after. None if the client does not profile.
        asked: The time of the request in nanoseconds, if that was before it reached the device.
    """

    deadline: int | None = None
    loop_timeout: int = LOOP_TIMEOUT_DEFAULT_NS
    measure: bool = False
    cancelled: threading.Event | None = None
    profile: Callable[[int, int, int], None] | None = None
    asked: int | None = None

    @property
    def bounded(self) -> bool:
        """Whether it may have to end before it has a result."""
        return self.deadline is not None or self.cancelled is not None

    def patience(self) -> float | None:
        """Seconds that a wait may last before `check` has to be asked again; None for no limit."""
        return wait_seconds(self.deadline, self.cancelled is not None)

    def check(self) -> None:
        """Raise Cancelled or MissedDeadline where the execution should end; drivers call it between operations."""
        self.check_wanted()
        if self.deadline is not None and time.monotonic_ns() > self.deadline:
            raise MissedDeadline("execution: the deadline has passed")

    def check_wanted(self) -> None:
        """Raise Cancelled where its owner cancelled the execution, or abandoned it; whatever its deadline is."""
        if self.cancelled is not None and self.cancelled.is_set():
            raise Cancelled("execution: cancelled by its owner")

    def on_cancel(self, call: Callable[[], object]) -> OnCancel:
        """For engines that cannot poll: `with control.on_cancel(engine.stop): engine.run()`.

        Inside the block `call` is called when `check` would raise: at most once, from another thread, some 20 ms late, and
        never after the block has ended. `check` is still to be asked afterwards.
        """
        return OnCancel(self, call)


UNLIMITED = Control()


class Argument(NamedTuple):
    """One input or output of a model.

    Attributes:
        name: The name for messages.
        dtype: The NumPy type.
        shape: The shape, with None for an unknown dimension. None if the rank is unknown.
    """

    name: str
    dtype: np.dtype[Any]
    shape: Shape | None

    @property
    def fixed(self) -> tuple[int, ...] | None:
        """The shape where it is known before the execution."""
        return fixed(self.shape)

    @property
    def nbytes(self) -> int | None:
        """How many bytes it has, where that is known before the execution."""
        shape = self.fixed
        return None if shape is None else math.prod(shape) * self.dtype.itemsize

    def specified_by(self, room: Array) -> bool:
        """Whether an output array fixes the shape: it has this argument's type, and dimensions that it may have."""
        return room.dtype == self.dtype and (bool(room.shape) if self.shape is None else agree(room.shape, self.shape))


class Signature:
    """The arguments of a model, and facts about its executions for messages and traces; made once for all executions."""

    __slots__ = ("__weakref__", "closed", "count", "inputs", "make", "outputs", "profiled", "timely", "where")

    def __init__(
        self,
        inputs: Sequence[Argument],
        outputs: Sequence[Argument],
        where: str = "driver",
        *,
        timely: bool = False,
        profiled: Sequence[Operation] | None = None,
    ) -> None:
        """Describe a model.

        Args:
            inputs: The inputs.
            outputs: The outputs.
            where: The device that executes it, as in "device litert".
            timely: Whether another process executes it, which traces the driver itself.
            profiled: The operations whose times the driver reports; None if it reports none.
        """
        self.inputs, self.outputs, self.where = tuple(inputs), tuple(outputs), where
        self.timely, self.profiled = timely, profiled
        self.count = len(self.outputs)
        self.closed = all(argument.fixed is not None for argument in self.outputs)  # all shapes are known before
        self.make: type[Request] = CheckedRequest if os.environ.get(CHECK, "0") == "1" else Request

    @classmethod
    def of(cls, model: Model, where: str = "driver", prepared: "ProfiledExecutor | None" = None) -> "Signature":
        """That of a model's main subgraph. prepared: executes it."""
        main = model.main
        inputs = [argument_of(model, i, f"input {n}") for n, i in enumerate(main.inputs)]
        outputs = [argument_of(model, i, f"output {n}") for n, i in enumerate(main.outputs)]
        if prepared is None:
            return cls(inputs, outputs, where)
        profiled = prepared.model.main.operations if prepared.profiles is True else None
        return cls(inputs, outputs, where, timely=prepared.timely is True, profiled=profiled)


def argument_of(model: Model, index: int, label: str) -> Argument:
    """Main operand `index` as an argument. label: what it is called in messages, with its name where it has one."""
    operand = model.main.operands[index]
    value = validate(model).subgraphs[0].values[index]
    name = f"{label} ({operand.name})" if operand.name else label
    shape = shape_of(operand) if value is None else value.shape
    return Argument(name, dtype_of(canonical(operand.type, model.extensions)), shape)


class BelongsToModel(Protocol):
    """An object of one model."""

    model: Model


class RequestExecutor(BelongsToModel, Protocol):
    """An object that executes requests of one model."""

    def run(self, request: "Request", control: Control) -> Timing | None:
        """As `Prepared.run`."""


class ProfiledExecutor(BelongsToModel, Protocol):
    """A prepared model, as a trace sees it."""

    timely: bool
    profiles: bool


Run = Callable[["Request", Control], Timing | None]
_COPYING: Any = "being copied"  # in place of a shape


T = TypeVar("T")
Act = Callable[[Any, Control], T]  # an execution, or a change of options
_STEP = trace.LAYER["runtime"], trace.PHASE["execution"], "step"
_RUN = trace.LAYER["driver"], trace.PHASE["execution"]


def _stepwise(execute: Any) -> Any:
    """Adds a trace span for `Request.execute` and one for the driver, with the driver's operations if it profiles.

    In an isolated driver's process the client writes the first span.
    """

    def traced(request: "Request", run: Run, control: Control) -> Timing | None:
        log = trace.current()
        if log is None:
            timing: Timing | None = execute(request, run, control)
            return timing
        inner = run if request.signature.timely else _driven(log, run)  # else another process does it
        if trace.is_serving():
            timing = execute(request, inner, control)
            return timing
        at = log.begin(*_STEP, request.signature.where)
        try:
            timing = execute(request, inner, control)
            return timing
        except BaseException as error:
            log.fail(at, error)
            raise
        finally:
            log.end(at)

    return traced


def _driven(log: trace.Log, run: Run) -> Run:
    """A driver's way to run, with a span."""

    def driven(request: Request, control: Control) -> Timing | None:
        profiled = request.signature.profiled
        at = log.begin(*_RUN, "run", request.signature.where)
        try:
            return run(request, control if profiled is None else _telling(log, control, profiled))
        except BaseException as error:
            log.fail(at, error)
            raise
        finally:
            log.end(at)

    return driven


def _telling(log: trace.Log, control: Control, operations: Sequence[Operation]) -> Control:
    """Returns the control with a profile that writes a span for each operation, and calls the client's profile."""
    asked, since = control.profile, time.monotonic_ns()

    def profile(operation: int, begin_ns: int, end_ns: int) -> None:
        if asked is not None:
            asked(operation, begin_ns, end_ns)
        if not since <= begin_ns <= end_ns <= time.monotonic_ns():
            return
        known = 0 <= operation < len(operations)
        name = operation_name(operations[operation].type) if known else f"operation {operation}"
        log.add(*_RUN, name, begin_ns, end_ns, operation)

    return control._replace(profile=profile)


class Request:
    """One execution. Drivers use `inputs`, `write`, `outputs`, and buffers of the driver's class.

    Attributes:
        input_buffers: The inputs in buffers of the driver's class, by index; they have no arrays.
        output_buffers: The outputs in buffers of the driver's class, by index; they have no arrays.
        given: The client's input arrays, for code that forwards the request.
        rooms: The client's output buffers, for code that forwards the request: an array of the output's type, an array of
            bytes, or None if the client left it open.
        results: An array for each output, after the end.
        shapes: The shape of each output, after the end.
        small: The outputs whose buffer was too small, after the end.
        fell_back: The reason why a partition fell back to another device; "" if none did.
        memory: Makes the memory of the outputs that a driver fills in place.
    """

    rooms: Sequence[Array | None] | None = None
    input_buffers: Mapping[int, Any] = {}
    output_buffers: Mapping[int, Any] = {}
    small: tuple[int, ...] = ()
    fell_back = ""
    memory = OutputMemory()
    _ended = _given_up = False
    _views: list[Array | None] | None = None
    _own: dict[int, Array] | None = None
    _fault: NnhalError | None = None
    _contained: "Request | None" = None

    def __init__(
        self,
        signature: Signature,
        given: Sequence[Array | None],
        rooms: Sequence[Array | None] | None = None,
        input_buffers: Mapping[int, Any] | None = None,
        output_buffers: Mapping[int, Any] | None = None,
    ) -> None:
        """rooms: None where the caller left all of them open."""
        self.signature, self.given = signature, given
        if rooms is not None:
            self.rooms = rooms
        if input_buffers or output_buffers:
            self.input_buffers, self.output_buffers = input_buffers or {}, output_buffers or {}
        count = signature.count
        self.results: list[Any] = [None] * count
        self.shapes: list[Any] = [None] * count

    # ---------------------------------------------------------------------------------------------------- for drivers

    @property
    def inputs(self) -> Sequence[Array | None]:
        """One array an input, with the operand's element type and its shape of this execution; None for an omitted one."""
        views = self._views
        if views is None:
            views = self._views = []
            for x in self.given:
                if x is not None:
                    x = x.view()  # noqa: PLW2901
                    x.setflags(False)  # type: ignore[call-arg]  # by name it takes half as long again
                views.append(x)
        return views

    @property
    def outputs(self) -> "InPlaceOutputs":
        """Arrays to fill in place, one an output; None where the shape is not known before, or it lies in a buffer."""
        return InPlaceOutputs(self)

    def write(self, index: int, value: Array) -> None:
        """Copies the value of output `index`. If the output buffer is too small, only the shape is kept.

        Raises:
            ContractBroken: The value has a wrong type or shape, or is the second one.
            Closed: The execution has ended.
        """
        try:
            _, dtype, shape = self.signature.outputs[index if index >= 0 else 1 << 30]
        except (IndexError, TypeError):
            raise self._refused(index) from None
        if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
            why = _unfit(value, dtype, shape)
            if why:
                raise self._broken(index, why)
            value = np.asarray(value)
        shapes = self.shapes
        if shapes[index] is not None or index in self.output_buffers:
            raise self._refused(index)
        room = None if self.rooms is None else self.rooms[index]
        if room is None:
            self.results[index] = value.copy() if type(value) is np.ndarray else np.array(value)
            if self._ended:
                raise self._late(index)
            shapes[index] = value.shape
            return
        shapes[index] = _COPYING
        try:
            if self._ended:
                raise self._late(index)
            if room.shape == value.shape and (room.dtype is dtype or room.dtype == dtype):
                room[...] = value
                self.results[index] = room
            else:
                self._fit(index, room, value)
        except BaseException:
            shapes[index] = None
            raise
        shapes[index] = value.shape

    def write_all(self, values: Sequence[Array], known: Sequence[tuple[int, ...]]) -> None:
        """As `write` of each, for values that have the type and shape of their output, which is `known` before.

        It counts by hand, which takes half as long as `zip` and `enumerate`.
        """
        rooms, results = self.rooms, self.results
        if rooms is None:
            if self._ended:
                raise self._late(0)
            index = 0
            for value in values:
                results[index] = value.copy()
                index += 1  # noqa: SIM113 (by hand)
            self.shapes = [*known]
            return
        before, self.shapes = self.shapes, [_COPYING] * len(values)
        try:
            if self._ended:
                raise self._late(0)
            index = 0
            for value in values:
                room = rooms[index]
                if room is None:
                    results[index] = value.copy()
                elif room.shape == known[index] and room.dtype is value.dtype:
                    room[...] = value
                    results[index] = room
                else:
                    self._fit(index, room, value)
                index += 1  # noqa: SIM113 (by hand)
        except BaseException:
            self.shapes = before
            raise
        self.shapes = [*known]

    def _refused(self, index: Any) -> NnhalError:
        """Return the error of a write that no output takes."""
        if index not in range(len(self.shapes)):
            rule = f"must be one of 0 to {len(self.shapes) - 1}"
            return self._blamed(ContractBroken(f"{self.signature.where}: output {index!r} is written, {rule}"))
        if index in self.output_buffers:
            return self._broken(index, "is written, must be filled in its buffer and reported with `filled`")
        return self._broken(index, "is written twice, must be once")

    def _fit(self, index: int, room: Array, value: Array) -> None:
        """Writes into an output buffer of another shape, or of bytes, if it is large enough."""
        if room.nbytes < value.nbytes:
            self.small += (index,)
            return
        if not room.flags.c_contiguous:
            name, shapes = self.signature.outputs[index].name, f"{show(room.shape)}, the output {show(value.shape)}"
            raise InvalidRequest(
                f"{name}: its output buffer has gaps and shape {shapes}, must have the same or no gaps"
            )
        into = typed(room, value.dtype, value.shape)
        into[...] = value
        self.results[index] = into

    # ------------------------------------------------------------------------- for who carries the request elsewhere

    def filled(self, index: int, shape: tuple[int, ...]) -> None:
        """Reports that output `index` is in place: in a buffer of the driver's class, or in shared memory."""
        room, (_, dtype, declared) = self.room(index), self.signature.outputs[index]
        if index in self.output_buffers:
            if self._ended:
                raise self._late(index)
            self.shapes[index] = shape
            return
        if declared is not None and not agree(shape, declared):
            raise self._broken(index, f"is reported with shape {show(shape)}, must be {show(declared)}")
        if room is None or room.nbytes < math.prod(shape) * dtype.itemsize:
            raise self._broken(index, f"is reported with shape {show(shape)}, which its memory does not hold")
        if self._ended:
            raise self._late(index)
        self.results[index], self.shapes[index] = typed(room, dtype, shape), shape

    def lacks(self, shapes: Sequence[tuple[int, ...]], enough: Sequence[bool]) -> None:
        """Reports that no output was written because some output buffers are too small.

        Args:
            shapes: The shape of each output, with 0 for an unknown dimension.
            enough: For each output, whether its buffer is large enough.

        Raises:
            ContractBroken: The numbers of outputs differ, all are large enough, or a shape is not the declared one.
        """
        if not len(shapes) == len(enough) == len(self.shapes) or all(enough):
            raise self._blamed(
                ContractBroken(
                    f"{self.signature.where}: sufficient is {list(enough)}, must have {len(self.shapes)} entries, one of "
                    "them false, and a shape for each"
                )
            )
        for index, shape in enumerate(shapes):
            declared = self.signature.outputs[index].shape
            if declared is not None and shape and not agree(tuple(d or None for d in shape), declared):
                raise self._broken(index, f"is reported with shape {show(shape)}, must be {show(declared)}")
        self.shapes, self.small = list(shapes), tuple(n for n, fits in enumerate(enough) if not fits)

    def room(self, index: int) -> Array | None:
        """Where the caller wants output `index`; None where it left that open."""
        return None if self.rooms is None else self.rooms[index]

    def inside(self, given: Sequence[Array | None], rooms: Sequence[Array | None] | None, **buffers: Any) -> "Request":
        """Another request of the same signature, for the same execution done with other memory."""
        return self.contain(self.signature.make(self.signature, given, rooms, **buffers))

    def contain(self, inner: "Request") -> "Request":
        """Links a request for the same execution: when this one is abandoned, that one writes nothing either."""
        self._contained = inner
        if self._given_up:  # before that one could be seen
            inner.abandon()
        return inner

    def adopt(self, inner: "Request") -> None:
        """Takes over the results of a request that this one contains."""
        self.results, self.shapes, self.small = inner.results, inner.shapes, inner.small

    # ------------------------------------------------------------------------------------------- from begin to end

    @trace.replaced_while_tracing(_stepwise)
    def execute(self, run: Run, control: Control) -> Timing | None:
        """Executes the request and ends it. Afterwards `small` has the outputs whose buffer was too small.

        Raises:
            NnhalError: The driver raised it.
            DriverFailed: The driver raised another exception.
            ContractBroken: An output is missing, or has a wrong type or shape.
        """
        try:
            timing = run(self, control)
            if self._own is not None and not self._ended:
                self._take_own()
        except BaseException as error:
            self._stop()
            raise_application_error(error)
            failed = _blamed_error(error, self.signature.where, control)
            store_stack(failed)
            try:
                if failed is error:
                    raise
                raise failed from error
            finally:
                del failed  # its traceback holds this frame
        if self._ended:
            self.require_wanted()
        self._ended = True
        shapes = self.shapes
        if None in shapes or self._fault is not None or (self.rooms is not None and _COPYING in shapes):
            self._look()
        return timing

    def abandon(self) -> None:
        """The end, without a result: from here on nothing is written to the caller's memory."""
        self._given_up = True
        self._stop()
        if self._contained is not None:
            self._contained.abandon()

    def require_wanted(self) -> None:
        """Raises Closed if the execution was abandoned."""
        if self._ended:
            raise Closed(f"{self.signature.where}: the execution was abandoned before it ended")

    def reopen(self) -> None:
        """Allows another `execute` after an interrupt while outputs were taken over, unless it was abandoned."""
        self._fault, self.small = None, ()
        self.results, self.shapes = [None] * self.signature.count, [None] * self.signature.count
        self._ended = False
        self._ended = self._given_up  # another thread may abandon it at any moment

    def _stop(self) -> None:
        self._ended = True
        while _COPYING in self.shapes:  # by another thread of the driver's, and soon done
            time.sleep(0)

    @trace.traced_method("runtime", "results", "take outputs")
    def _take_own(self) -> None:
        """Takes the outputs that the driver filled in place, as if they had been written."""
        own, self._own = self._own or {}, None
        for index, array in own.items():
            if self.shapes[index] is None:
                self.take(index, array)

    def take(self, index: int, array: Array) -> None:
        """Output `index` in memory that `memory` made: as `write`, where a driver filled it and wrote nothing past it."""
        if overwritten(array):
            raise self._broken(index, "was written past its end, must not be")
        if array.size and self.memory.left_out(array):
            raise self._broken(index, "was taken to be filled in place and was not, must be filled wholly")
        self.write(index, array)

    def _look(self) -> None:
        """After the end: raise what is wrong with it."""
        self._stop()
        if self._fault is not None:
            raise self._fault
        if None in self.shapes:
            raise self._broken(self.shapes.index(None), "was not written, must be")

    def _broken(self, index: int, rule: str) -> NnhalError:
        return self._blamed(ContractBroken(f"{self.signature.where}: {self.signature.outputs[index].name} {rule}"))

    def _blamed(self, error: NnhalError) -> NnhalError:
        """Note the first thing that was wrong: a driver may catch the error and go on."""
        if self._fault is None:
            self._fault = error
        return error

    def _late(self, index: int) -> NnhalError:
        name = self.signature.outputs[index].name
        error = Closed(f"{self.signature.where}: {name} is written after the execution ended, must be before")
        (_log.debug if self._given_up else _log.warning)("%s", error)  # a driver that was abandoned may not know it yet
        return error

    @property
    def ended(self) -> bool:
        """Whether nothing is taken any more."""
        return self._ended


def sufficient(request: Request) -> list[bool]:
    """Return whether the buffer of each output was large enough."""
    return [index not in request.small for index in range(len(request.shapes))]


def _unfit(value: Any, dtype: np.dtype[Any], shape: Shape | None) -> str:
    """Return why an output of this type and shape may not have a value; "" where it may."""
    if not isinstance(value, np.ndarray | np.generic):
        return f"is given {type(value).__name__}, must be an array of {dtype}"
    if value.dtype != dtype:
        return f"is given {value.dtype}, must be {dtype}"
    if shape is not None and not agree(value.shape, shape):
        return f"is given shape {show(value.shape)}, must be {show(shape)}"
    return ""


def _blamed_error(error: BaseException, where: str, control: Control) -> NnhalError:
    """Returns a driver's exception as the execution's error, which names the driver unless the client set the limit."""
    if isinstance(error, Cancelled):
        if control.cancelled is not None and control.cancelled.is_set():
            return error
        return ContractBroken(f"{where}: reports a cancelled execution, but nobody cancelled it: {error_text(error)}")
    if isinstance(error, MissedDeadline):
        if isinstance(error, LoopTimeout) or (control.deadline or math.inf) <= time.monotonic_ns():
            return error
        if control.deadline is None:
            return ContractBroken(f"{where}: reports a missed deadline, but there is no deadline: {error_text(error)}")
    return with_driver_name(as_error(error, where), where, "run()")


class InPlaceOutputs(Sequence[Array | None]):
    """Outputs to be filled in place. Taking an array out of it is a promise to fill it: it counts as written."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def __len__(self) -> int:
        return len(self._request.signature.outputs)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        request, argument = self._request, self._request.signature.outputs[index]
        index = range(len(self))[index]
        shape = argument.fixed
        if shape is None or index in request.output_buffers:
            return None
        if request._own is None:
            request._own = {}
        if index not in request._own:
            request._own[index] = request.memory.blank(shape, argument.dtype)
        return request._own[index]


class CheckedRequest(Request):
    """A request under `NNHAL_CHECK=1`, with checks that are too slow for each execution.

    Inputs are compared before and after. If a driver writes to memory of an output after the end, the next execution
    reports it.
    """

    memory = CheckedOutputMemory()

    def execute(self, run: Run, control: Control) -> Timing | None:
        """As of `Request`; ContractBroken where inputs changed, or a driver wrote after an earlier end."""
        self._look_back()
        before = [None if x is None else x.tobytes() for x in self.given]
        timing = super().execute(run, control)
        for argument, array, data in zip(self.signature.inputs, self.given, before, strict=True):
            if array is not None and array.tobytes() != data:
                raise ContractBroken(f"{self.signature.where}: {argument.name} was written to, must only be read")
        return timing

    def take(self, index: int, array: Array) -> None:
        """As of `Request`; the memory is watched from now on."""
        name = self.signature.outputs[index].name
        seen = _watched.setdefault(self.signature, deque(maxlen=_KEPT))
        seen.append((name, array, array.tobytes()))
        super().take(index, array)

    def _look_back(self) -> None:
        seen = _watched.get(self.signature, ())
        late = [name for name, array, data in seen if array.tobytes() != data]
        if late:
            _watched.pop(self.signature)
            raise ContractBroken(
                f"{self.signature.where}: {late[0]} of an earlier execution was written to after its end, must be before"
            )


_KEPT = 8  # ended executions of a model whose memory is watched
_watched: "weakref.WeakKeyDictionary[Signature, deque[tuple[str, Array, bytes]]]" = weakref.WeakKeyDictionary()
