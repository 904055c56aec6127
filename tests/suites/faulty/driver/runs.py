"""Executions that break the contract: outputs, inputs, state, time, background ways, bursts."""

import contextlib
import ctypes
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nnhal.base import errors
from nnhal.base.memory import address
from nnhal.base.operands import Array
from nnhal.hal.background import run_fenced
from nnhal.hal.request import Control, Request, Timing

from .faults import CONTRACT, CTS, VTS, fault
from .healthy import Engine, Healthy

LATE = 0.02  # seconds after the end
SLOW = 1.5  # seconds
PAST, BEFORE = 16, 4  # bytes

# ------------------------------------------------------------------------------------------------ state that is kept


@fault(
    "stale-output", "every execution but the first gives what the first gave", "stale-output", (CONTRACT,), numbers=True
)
class StaleOutput(Engine):
    first: list[Array] | None = None

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        if self.first is None:
            self.first = super().computed(inputs, control)
        return self.first


@fault("stale-input", "the first input is read at the first execution only", "stale-output", (CONTRACT,), numbers=True)
class StaleInput(Engine):
    kept: Array | None = None

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        if inputs and inputs[0] is not None:
            if self.kept is None:
                self.kept = inputs[0].copy()
            if self.kept.shape == inputs[0].shape:
                inputs = [self.kept, *inputs[1:]]
        return super().computed(inputs, control)


@fault("one-late", "each execution gives the results of the one before", "stale-output", (CONTRACT,), numbers=True)
class OneLate(Engine):
    before: list[Array] | None = None

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        now = super().computed(inputs, control)
        given, self.before = self.before or now, now
        return given


@fault("third-wrong", "every third execution is off by one", "stale-output", (CONTRACT,), numbers=True)
class ThirdWrong(Engine):
    runs = 0

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        self.runs += 1
        return [y + y.dtype.type(self.runs % 3 == 0) for y in super().computed(inputs, control)]


@fault(
    "shared-scratch",
    "threads share the scratch memory of a prepared model",
    "threads",
    (CONTRACT,),
    numbers=True,
)
class SharedScratch(Engine):
    scratch: list[Array] = []

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        self.scratch = [np.array(y) for y in super().computed(inputs, control)]
        time.sleep(0.001)
        return self.scratch


@fault(
    "shared-weights",
    "models have the weights of the last that was prepared",
    "interleaved",
    (CONTRACT,),
    numbers=True,
    operation="CONV_2D",
)
class SharedWeights(Engine):
    weights: dict[tuple[Any, ...], Array] = {}

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.weights.update({self.key(i, data): data for i, data in self.constants.items() if data.ndim})

    def key(self, index: int, data: Array) -> tuple[Any, ...]:
        return index, data.shape, data.dtype

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        self.constants = {i: self.weights.get(self.key(i, data), data) for i, data in self.constants.items()}
        return super().computed(inputs, control)


# ------------------------------------------------------------------------------------------------------- outputs


@fault("nothing-written", "returns without having written anything", "output-once")
class NothingWritten(Engine):
    def give(self, request: Request, results: Sequence[Array]) -> None:
        pass


@fault("left-unfilled", "takes memory for its output and does not fill it", "output-filled")
class LeftUnfilled(Engine):
    def give(self, request: Request, results: Sequence[Array]) -> None:
        for place, result in enumerate(results):
            if request.outputs[place] is None:
                request.write(place, result)


@fault("half-filled", "fills the first half of its output in place", "output-filled")
class HalfFilled(Engine):
    def give(self, request: Request, results: Sequence[Array]) -> None:
        for place, result in enumerate(results):
            room = request.outputs[place]
            if room is None or result.size < 2:
                request.write(place, result)
            else:
                room.reshape(-1)[: result.size // 2] = result.reshape(-1)[: result.size // 2]


@fault("written-twice", "writes its output twice", "output-once")
class WrittenTwice(Engine):
    def give(self, request: Request, results: Sequence[Array]) -> None:
        super().give(request, results)
        super().give(request, results)


@fault("wrong-type", "gives float64 for float32, int32 for 8 bits", "output-type")
class WrongType(Engine):
    def give(self, request: Request, results: Sequence[Array]) -> None:
        super().give(request, [y.astype(np.float64 if y.dtype.kind == "f" else np.int32) for y in results])


@fault("bits-of-another-type", "gives int32 of the same bits for float32", "output-type")
class BitsOfAnotherType(Engine):
    def give(self, request: Request, results: Sequence[Array]) -> None:
        super().give(request, [y.view(np.int32) if y.dtype.itemsize == 4 else y.view(np.bool_) for y in results])


@fault("wrong-shape", "gives a flat array", "output-shape")
class WrongShape(Engine):
    def give(self, request: Request, results: Sequence[Array]) -> None:
        super().give(request, [y.reshape(1, *y.shape, 1) for y in results])


def filled(request: Request, results: Sequence[Array]) -> Iterator[Array]:
    """The outputs that were filled in place, one after the other; others are written."""
    for place, result in enumerate(results):
        room = request.outputs[place]
        if room is None:
            request.write(place, result)
        else:
            room[...] = result
            yield room


@fault("past-the-end", "writes 16 bytes past its output's memory", "past-end")
class PastTheEnd(Engine):
    def give(self, request: Request, results: Sequence[Array]) -> None:
        for room in filled(request, results):
            ctypes.memset(room.ctypes.data + room.nbytes, 0x11, PAST)


@fault("before-the-start", "writes 4 bytes before its output's memory", "past-end", (CONTRACT,), survives=False)
class BeforeTheStart(Engine):
    def give(self, request: Request, results: Sequence[Array]) -> None:
        for room in filled(request, results):
            ctypes.memset(room.ctypes.data - BEFORE, 0x11, BEFORE)


def later(work: Any) -> None:
    def run() -> None:
        time.sleep(LATE)
        with contextlib.suppress(Exception):
            work()

    threading.Thread(target=run, daemon=True).start()


@fault("late-write", "fills its output in place, and writes to it once more after the end", "late-write", (CONTRACT,))
class LateWrite(Engine):
    def give(self, request: Request, results: Sequence[Array]) -> None:
        for room in filled(request, results):
            later(lambda room=room: room.fill(77))


@fault("late-only", "returns before anything is written; a thread does that after the end", "output-once")
class LateOnly(Engine):
    def give(self, request: Request, results: Sequence[Array]) -> None:
        later(lambda: Engine.give(self, request, results))


# ----------------------------------------------------------------------------------------------- inputs and constants


@fault("writes-input", "writes over its first input", "inputs-kept")
class WritesInput(Engine):
    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        results = super().computed(inputs, control)
        inputs[0][...] = 7
        return results


@fault("writes-input-by-pointer", "writes over its first input by its address", "inputs-kept", survives=False)
class WritesInputByPointer(Engine):
    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        results = super().computed(inputs, control)
        ctypes.memset(inputs[0].ctypes.data, 7, inputs[0].nbytes)
        return results


@fault("writes-constant", "writes over its constants", "inputs-kept")
class WritesConstant(Engine):
    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        results = super().computed(inputs, control)
        for data in self.constants.values():
            data[...] = 7
        return results


@fault(
    "writes-constant-by-pointer",
    "writes over its constants by their addresses",
    "runs",
    (CONTRACT,),
    operation="CONV_2D",
    survives=False,
    numbers=True,
)
class WritesConstantByPointer(Engine):
    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        results = super().computed(inputs, control)
        for data in self.constants.values():
            ctypes.memset(data.ctypes.data, 7, data.nbytes)
        return results


# --------------------------------------------------------------------------------------------- time, and what is raised


class Deaf(Engine):
    """Takes its time and never looks whether it is still wanted."""

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        time.sleep(SLOW if control.bounded else 0)
        return super().computed(inputs, Control())


@fault("deadline-ignored", "goes on past its deadline", "deadline", (CONTRACT,), alone=True)
class DeadlineIgnored(Deaf):
    pass


@fault("cancellation-ignored", "goes on when it was cancelled", "cancellation", (CONTRACT,), alone=True)
class CancellationIgnored(Deaf):
    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        if control.deadline is not None:
            return Engine.computed(self, inputs, control)
        return super().computed(inputs, control)


class Raising(Engine):
    error: Any = None

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        raise self.error


@fault("run-raises", "run raises KeyError", "runs")
class RunRaises(Raising):
    error = KeyError("weights")


@fault("run-exits", "run raises SystemExit", "runs")
class RunExits(Raising):
    error = SystemExit(3)


@fault("status-of-the-caller", "raises InvalidRequest for a valid request", "runs")
class StatusOfTheCaller(Raising):
    error = errors.InvalidRequest("the request is not to my liking")


@fault("status-cancelled", "reports a cancelled execution that nobody cancelled", "runs")
class StatusCancelled(Raising):
    error = errors.Cancelled("by nobody")


@fault("status-missed-deadline", "reports a missed deadline without a deadline", "runs")
class StatusMissedDeadline(Raising):
    error = errors.MissedDeadline("of no clock")


@fault("status-too-small", "reports that a large enough output buffer is too small", "runs")
class StatusTooSmall(Raising):
    error = errors.OutputInsufficientSize("it is never enough", [(99,)])


@fault("status-none", "fails without reporting the error", "output-once")
class StatusNone(Engine):
    def run(self, request: Request, control: Control) -> Timing | None:
        with contextlib.suppress(RuntimeError):
            raise RuntimeError("the engine is in disorder")
        return None


@fault("impossible-timing", "reports a longer time on the device than in the driver", "timing", (CONTRACT,))
class ImpossibleTiming(Engine):
    def run(self, request: Request, control: Control) -> Timing | None:
        super().run(request, control)
        return Timing(2_000_000_000, 1_000)


# ------------------------------------------------------------------------------------------------------ other ways


@fault(
    "notifies-twice",
    "notifies the end of a background execution twice",
    "callback",
    way="callback",
)
class NotifiesTwice(Engine):
    def execute(self, request: Request, control: Control, notify: Any) -> None:
        def twice(*result: Any) -> None:
            notify(*result)
            notify(*result)

        super().execute(request, control, twice)


@fault(
    "never-notifies",
    "never notifies the end of an execution",
    "callback",
    way="callback",
    survives=False,
)
class NeverNotifies(Engine):
    def execute(self, request: Request, control: Control, notify: Any) -> None:
        super().execute(request, control, lambda *_: None)


@fault(
    "burst-stale",
    "in a burst, every execution gives what the first one gave",
    "burst",
    (CONTRACT,),
    way="burst",
    numbers=True,
)
class BurstStale(Engine):
    first: list[Array] | None = None
    opened = False

    def burst_opened(self) -> None:
        self.first, self.opened = None, True

    def burst_closed(self) -> None:
        self.opened = False

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        results = self.first if self.opened and self.first is not None else super().computed(inputs, control)
        self.first = results
        return results


@fault(
    "burst-slots",
    "in a burst, memory is read once for each address",
    "burst",
    (CONTRACT,),
    way="burst",
    numbers=True,
)
class BurstSlots(Engine):
    slots: dict[tuple[Any, ...], Array] | None = None

    def burst_opened(self) -> None:
        self.slots = {}

    def burst_closed(self) -> None:
        self.slots = None

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        if self.slots is not None:
            kept = self.slots
            inputs = [x if x is None else kept.setdefault((address(x), x.shape), x.copy()) for x in inputs]
        return super().computed(inputs, control)


class InBurst(Engine):
    """Knows whether a burst is open."""

    opened = False

    def burst_opened(self) -> None:
        self.opened = True

    def burst_closed(self) -> None:
        self.opened = False


@fault("burst-times", "in a burst, reports that executions take no time", "", (VTS,), way="burst")
class BurstTimes(InBurst):
    def run(self, request: Request, control: Control) -> Timing | None:
        super().run(request, control)
        return Timing(0, 0) if self.opened and control.measure else None


@fault("burst-small", "in a burst, fails where a buffer is too small", "", (VTS,), way="burst")
class BurstSmall(InBurst):
    def give(self, request: Request, results: Sequence[Array]) -> None:
        super().give(request, results)
        if self.opened and request.small:
            raise errors.OperationFailed("a buffer is too small")


@fault("burst-raises", "fails when a burst begins", "burst", way="burst")
class BurstRaises(Engine):
    def burst_opened(self) -> None:
        raise RuntimeError("no more power states")


@fault("burst-second-fails", "the second execution of a burst fails", "burst", way="burst")
class BurstSecondFails(Engine):
    runs: int | None = None

    def burst_opened(self) -> None:
        self.runs = 0

    def burst_closed(self) -> None:
        self.runs = None

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        if self.runs is not None:
            self.runs += 1
            if self.runs > 1:
                raise IndexError("slot")
        return super().computed(inputs, control)


@fault("fenced-nothing", "gives None for a fenced execution", "fenced", way="fenced")
class FencedNothing(Engine):
    def execute_fenced(self, *_: Any) -> Any:
        return None


@fault(
    "fences-ignored", "does not wait for the fences of an execution", "fenced", (CONTRACT,), way="fenced", numbers=True
)
class FencesIgnored(Engine):
    def execute_fenced(self, request: Request, control: Control, wait_for: Any = (), after: int | None = None) -> Any:
        return super().execute_fenced(request, control, (), after)


@fault(
    "fenced-inputs-early",
    "a fenced execution reads its inputs when it is launched",
    "",
    (CTS,),
    way="fenced",
    numbers=True,
)
class FencedInputsEarly(Engine):
    def execute_fenced(self, request: Request, control: Control, wait_for: Any = (), after: int | None = None) -> Any:
        early = Reading(self, [None if x is None else x.copy() for x in request.inputs])
        return run_fenced(early, request, control, wait_for, after)


class Reading:
    """Executes with the inputs that it has read before."""

    def __init__(self, engine: Engine, inputs: Sequence[Array | None]) -> None:
        self.engine, self.inputs, self.model = engine, inputs, engine.model

    def run(self, request: Request, control: Control) -> Timing | None:
        self.engine.give(request, self.engine.computed(self.inputs, control))
        return None


# ------------------------------------------------------------------------------------------------------ allocations


@fault("buffer-for-others", "allocates for other roles than it was asked for", "allocation", way="memory")
class BufferForOthers(Healthy):
    def allocate(self, desc: Any, roles: Any) -> Any:
        from dataclasses import replace

        return super().allocate(desc, [replace(roles[0], output=not roles[0].output)])


@fault("buffer-twice", "gives the same buffer for every allocation", "allocation", way="memory")
class BufferTwice(Healthy):
    kept: Any = None

    def allocate(self, desc: Any, roles: Any) -> Any:
        self.kept = self.kept or super().allocate(desc, roles)
        return self.kept


@fault("buffer-nothing", "gives None for an allocation", "allocation", way="memory")
class BufferNothing(Healthy):
    def allocate(self, desc: Any, roles: Any) -> Any:
        return None
