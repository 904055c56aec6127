"""Checks of one execution: each output is written once, whole, with its type and shape, in time, and nothing else is."""

import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnhal.base.errors import NnhalError
from nnhal.base.operands import Array, typed
from nnhal.conformance.differential import arrays_of, model_of
from nnhal.conformance.place import place_in
from nnhal.conformance.validate.check import check
from nnhal.conformance.validate.trial import MakeRequest, RequirementNotMet, Trial, copies
from nnhal.hal.output_memory import GUARD, OutputMemory
from nnhal.hal.request import Request, Signature

SETTLE = 0.1  # seconds after an execution in which a driver may still write
# The messages of `hal.request` about a broken rule, by the check of that rule.
RULES = {
    "output-type": re.compile(r"is given (?!shape)|must be an array of"),
    "output-shape": re.compile(r"is (given|reported with) shape"),
    "output-once": re.compile(r"was not written|is written twice|is written, must be one of"),
    "output-filled": re.compile(r"must be filled wholly"),
    "past-end": re.compile(r"was written past its end"),
    "inputs-kept": re.compile(r"must only be read|read-only"),
}
RAN = ("runs",)
OTHERS = "all its executions failed"


def _by_rule(name: str, make: MakeRequest = Request) -> Callable[[Trial], int]:
    """Return a check whether executions break one rule; other checks report other rules. make: makes their requests."""

    def look(trial: Trial) -> int:
        seen = 0
        for call, model in trial.calls.samples():
            prepared = trial.prepare(model)
            try:
                trial.run(prepared, copies(arrays_of(call)), make=make)
            except NnhalError as error:
                if RULES[name].search(str(error)):
                    raise RequirementNotMet(str(error), place_in(error.stack) or trial.place()) from error
            else:
                seen += 1
        return seen

    return look


for _name, _promise in {
    "output-type": "The array for an output has the output's element type.",
    "output-shape": "The array for an output has the output's shape.",
    "output-once": "Each output is written exactly once before run returns.",
}.items():
    check(_name, _promise, RAN, unseen=OTHERS)(_by_rule(_name))


@check("runs", "An operation that supports() accepts runs, and raises nothing.", ("prepared-anew",))
def runs(trial: Trial) -> int:
    for call, _ in trial.calls.samples():
        prepared = trial.prepare(model_of(call))
        try:
            trial.run(prepared, copies(arrays_of(call)))
        except NnhalError as error:
            if not any(rule.search(str(error)) for rule in RULES.values()):
                text = f"run(): {type(error).__name__}: {error} ({call.cell})"
                raise RequirementNotMet(text, place_in(error.stack) or trial.place()) from error
    return len(trial.calls.samples())


# ---------------------------------------------------------------------------------------------------------------- writes


class SurroundedMemory(OutputMemory):
    """Output memory with a guard in front of it too. fronts: the guards of all outputs that were made."""

    def __init__(self) -> None:
        self.fronts: list[Array] = []

    def blank(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return memory between two guards."""
        size = math.prod(shape) * dtype.itemsize
        data = np.zeros(len(GUARD) + size + len(GUARD), np.uint8)
        self.fronts.append(data[: len(GUARD)])
        self.fronts[-1][:] = data[-len(GUARD) :] = GUARD
        return typed(data[len(GUARD) :], dtype, shape)


@check("past-end", "Nothing is written before the start or past the end of an output.", RAN, unseen=OTHERS)
def past_end(trial: Trial) -> int:
    memory = SurroundedMemory()

    def make(signature: Signature, arrays: Sequence[Array]) -> Request:
        request = Request(signature, arrays)
        request.memory = memory
        return request

    seen = _by_rule("past-end", make)(trial)
    if any((front != GUARD).any() for front in memory.fronts):
        trial.unmet("memory before the start of an output was written to, must not be")
    return seen


class PrefilledMemory(OutputMemory):
    """Output memory that initially holds a pattern, whatever the type. pattern: a byte."""

    def __init__(self, pattern: int) -> None:
        self._pattern = pattern

    def blank(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return memory that is filled with the pattern."""
        array = super().blank(shape, dtype)
        array.reshape(-1).view(np.uint8)[:] = self._pattern
        return array

    def left_out(self, array: Array) -> bool:
        """Two patterns reveal unwritten elements."""
        return False


def _filled(pattern: int) -> Callable[[Signature, Sequence[Array]], Request]:
    def make(signature: Signature, arrays: Sequence[Array]) -> Request:
        rooms = [_room(a.fixed, a.dtype, pattern) for a in signature.outputs] if signature.closed else None
        request = Request(signature, arrays, rooms)
        request.memory = PrefilledMemory(pattern)
        return request

    return make


def _room(shape: Any, dtype: np.dtype[Any], pattern: int) -> Array:
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[:] = pattern
    return array


@check("output-filled", "Every element of an output is written by each execution.", RAN, unseen=OTHERS)
def output_filled(trial: Trial) -> int:
    seen = 0
    for call, model in trial.calls.samples():
        prepared = trial.prepare(model)
        try:
            trial.run(prepared, copies(arrays_of(call)))
            one, other = (trial.run(prepared, copies(arrays_of(call)), make=_filled(p)) for p in (0x5A, 0xA5))
        except NnhalError as error:
            if RULES["output-filled"].search(str(error)):
                raise RequirementNotMet(str(error), trial.place()) from error
            continue
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            if a is not None and b is not None and a.shape == b.shape:
                seen += 1
                left = _has(a, 0x5A) & _has(b, 0xA5)
                if left.any():
                    trial.unmet(f"output {number}: {int(left.sum())} of {left.size} elements are unchanged")
    return seen


def _has(array: Array, pattern: int) -> Array:
    """Return which elements consist only of a pattern."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, array.dtype.itemsize)
    return np.asarray((data == pattern).all(1))


class RecordedMemory(OutputMemory):
    """Output memory that is recorded in `lent`."""

    def __init__(self) -> None:
        self.lent: list[Array] = []

    def blank(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return memory, and record it."""
        self.lent.append(super().blank(shape, dtype))
        return self.lent[-1]


class WatchedRequest(Request):
    """A request that records writes after its end."""

    late: list[str]
    memory: RecordedMemory

    def write(self, index: int, value: Array) -> None:
        """Write as `Request` does, and record it."""
        if self.ended:
            self.late.append(self.signature.outputs[index].name)
        super().write(index, value)


@check("late-write", "Nothing is written to an output after its execution has ended.", inside=True)
def late_write(trial: Trial) -> int:
    watched: list[WatchedRequest] = []

    def make(signature: Signature, arrays: Sequence[Array]) -> Request:
        request = WatchedRequest(signature, arrays)
        request.late, request.memory = [], RecordedMemory()
        watched.append(request)
        return request

    for call, model in trial.calls.samples():
        trial.run(trial.prepare(model), copies(arrays_of(call)), make=make)
    before = [[_whole(array) for array in request.memory.lent] for request in watched]
    with trial.stages.enter("wait"):
        time.sleep(SETTLE)
    for request, data in zip(watched, before, strict=True):
        if request.late:
            trial.unmet(f"{request.late[0]} is written after the execution ended, must be before")
        if data != [_whole(array) for array in request.memory.lent]:
            trial.unmet("memory for an output is written to after the execution ended, must be before")
    return len(watched)


def _whole(array: Array) -> bytes:
    """Return the contents of memory that `blank` made, with the guard after it."""
    data = array
    while isinstance(data.base, np.ndarray):
        data = data.base
    return data.tobytes()


# ----------------------------------------------------------------------------------------------------- read-only memory


@check(
    "inputs-kept",
    "Inputs are only read, by their arrays and by their addresses.",
    RAN,
    unseen="no execution with an input succeeded",
)
def inputs_kept(trial: Trial) -> int:
    seen = 0
    for call, model in trial.calls.samples():
        prepared = trial.prepare(model)
        arrays = copies(arrays_of(call))
        try:
            trial.run(prepared, arrays)
        except NnhalError as error:
            if RULES["inputs-kept"].search(str(error)):
                raise RequirementNotMet(
                    f"writes to an input or a constant: {error}", place_in(error.stack) or trial.place()
                ) from error
            continue
        for number, (array, given) in enumerate(zip(arrays, arrays_of(call), strict=True)):
            if array.tobytes() != given.tobytes():
                trial.unmet(f"input {number} was written to, must only be read")
            seen += 1
    return seen


@check(
    "constants-kept",
    "Constants are only read, by their arrays and by their addresses.",
    unseen="none of the supported calls has a constant",
    inside=True,
)
def constants_kept(trial: Trial) -> int:
    seen = 0
    for call, _ in trial.calls.samples():
        before, model = model_of(call).values, model_of(call)  # unwritten
        prepared = trial.prepare(model)
        trial.run(prepared, copies(arrays_of(call)))
        trial.close(prepared)
        if model.values != before:
            trial.unmet("a constant of the model was written to, must only be read")
        seen += bool(before)
    return seen
