"""Devices that take part beside the device under test: partial ones, and ones that fail or lie.

Each computes as the reference does, except for its fault.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnhal.base.codes import DeviceType
from nnhal.base.errors import DeadObject, OperationFailed, OutOfMemory, ResourceExhausted
from nnhal.hal.device import Considered, Device, Hints, Prepared, Verdict
from nnhal.hal.prepared import PreparedWrapper
from nnhal.hal.request import Control, Request, Timing
from nnhal.hal.wrappers import Wrapper
from nnhal.model.graph import Model


class Partial(Wrapper):
    """A device that supports some operations of a model. takes: by the operation's number."""

    def __init__(self, inner: Device, name: str, takes: Callable[[int], bool] = lambda n: True) -> None:
        super().__init__(inner)
        self.name, self.takes, self.type = name, takes, DeviceType.ACCELERATOR

    def consider(self, model: Model, hints: Hints) -> Considered:
        """Return the device's verdicts for those that it takes."""
        found = self.inner.consider(model, Hints()).verdicts
        return Considered([v if self.takes(n) else Verdict(False, "not taken here") for n, v in enumerate(found)])

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return self.inner.prepare(model, Hints())


class FailsToPrepare(Partial):
    """A device whose `prepare` raises, or returns something else than a prepared model."""

    def __init__(self, inner: Device, name: str, fault: str) -> None:
        super().__init__(inner, name)
        self.fault = fault

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return PREPARING[self.fault]()


class FailsToRun(Partial):
    """A device whose executions fail in one way."""

    def __init__(self, inner: Device, name: str, fault: str) -> None:
        super().__init__(inner, name)
        self.fault = fault

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return _Failing(self.inner.prepare(model, Hints()), model, RUNNING[self.fault])


class _Failing(PreparedWrapper):
    def __init__(self, inner: Prepared, model: Model, fault: "Fault") -> None:
        super().__init__(inner, model)
        self._fault, self.number = fault, itertools.count()

    def run(self, request: Request, control: Control) -> Timing | None:
        return self._fault(self, request, control)


Fault = Callable[[_Failing, Request, Control], Timing | None]


def _raises(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise type(error)(*error.args)

    return fail


def _later(failing: _Failing, request: Request, control: Control) -> Timing | None:
    """Fail after all outputs are written."""
    failing.inner.run(request, control)
    raise OperationFailed("fails after it has written")


def _now_and_then(failing: _Failing, request: Request, control: Control) -> Timing | None:
    if next(failing.number) % 2:
        raise OperationFailed("fails at every second execution")
    return failing.inner.run(request, control)


def _nothing(failing: _Failing, request: Request, control: Control) -> Timing | None:
    return None


def _other_shape(failing: _Failing, request: Request, control: Control) -> Timing | None:
    for place, (_, dtype, shape) in enumerate(request.signature.outputs):
        request.write(place, np.zeros([*(d or 1 for d in shape or (1,)), 3], dtype))
    return None


def _other_type(failing: _Failing, request: Request, control: Control) -> Timing | None:
    for place, (_, _, shape) in enumerate(request.signature.outputs):
        request.write(place, np.zeros([d or 1 for d in shape or (1,)], np.uint64))
    return None


def _twice(failing: _Failing, request: Request, control: Control) -> Timing | None:
    failing.inner.run(request, control)
    for place, (_, dtype, shape) in enumerate(request.signature.outputs):
        request.write(place, np.zeros([d or 1 for d in shape or (1,)], dtype))
    return None


def _past_the_last(failing: _Failing, request: Request, control: Control) -> Timing | None:
    failing.inner.run(request, control)
    request.write(len(request.signature.outputs), np.zeros(1, np.float32))
    return None


def _other_answer(failing: _Failing, request: Request, control: Control) -> Timing | None:
    failing.inner.run(request, control)
    answer: Any = "done"
    return answer


def _no_model() -> Any:
    return None


PREPARING: Mapping[str, Callable[[], Any]] = {
    "prepare-fails": _raises(OperationFailed("the compiler fails")),
    "prepare-raises": _raises(ValueError("an error of Python")),
    "prepare-out-of-memory": _raises(OutOfMemory("no memory to compile")),
    "prepare-dies": _raises(DeadObject("the compiler died")),
    "prepare-returns-nothing": _no_model,
}
RUNNING: Mapping[str, Fault] = {
    "run-fails": _raises(OperationFailed("the engine fails")),
    "run-raises": _raises(ValueError("an error of Python")),
    "run-out-of-memory": _raises(OutOfMemory("no memory to run")),
    "run-exhausted": _raises(ResourceExhausted("no queue is free")),
    "run-dies": _raises(DeadObject("the engine died")),
    "run-fails-after-writing": _later,
    "run-fails-now-and-then": _now_and_then,
    "writes-nothing": _nothing,
    "writes-another-shape": _other_shape,
    "writes-another-type": _other_type,
    "writes-twice": _twice,
    "writes-past-the-last": _past_the_last,
    "returns-another-type": _other_answer,
}
# Faults that cost no execution: the runtime ignores times that cannot be
HARMLESS = frozenset(("returns-another-type",))


def faulty(inner: Device, name: str, fault: str) -> Device:
    """Return a device with one of the faults."""
    return FailsToPrepare(inner, name, fault) if fault in PREPARING else FailsToRun(inner, name, fault)
