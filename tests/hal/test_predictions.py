"""What executions are predicted to take, and are refused by: of the same model, with inputs of the same shapes, as it is."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import ErrorStatus, Preference
from nnhal.base.errors import MissedDeadline
from nnhal.drivers.reference import Reference
from nnhal.frontends.python import Builder
from nnhal.hal import queue as module
from nnhal.hal import waiting
from nnhal.hal.burst import BurstExecutor
from nnhal.hal.chain import checked_executor, checked_prepared, checked_reconfigure
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.host import HostBuffer
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.request import Control, Request, Timing
from nnhal.hal.waiting import LatencyByShape
from nnhal.model.graph import Model
from tests.models import doubling, make_model, make_subgraph

MS = 1_000_000
LONG, SHORT = 300, 2  # elements, and milliseconds


class Clock:
    """The clock of the queue. It is ahead of the machine's, so no deadline passes but by what executions take."""

    def __init__(self) -> None:
        self.now = time.monotonic_ns()

    def __call__(self) -> int:
        self.now = max(self.now, time.monotonic_ns())
        return self.now


class Sized(Reference):
    """Takes so many milliseconds for each element, or as many as the largest one says, by an option and its clock."""

    name = "sized"

    def __init__(self, clock: Clock, *, alone: bool) -> None:
        super().__init__()
        self.clock, self.one_at_a_time = clock, alone

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return SizedPrepared(super().prepare(model, hints), self.clock)


class SizedPrepared(Prepared):
    changeable = ("each",)

    def __init__(self, inner: Prepared, clock: Clock) -> None:
        self.inner, self.clock, self.each = inner, clock, 1.0

    def run(self, request: Request, control: Control) -> Timing | None:
        return self.work(request, control)

    def work(self, request: Request, control: Control) -> Timing | None:
        """What `run` does, but not in its turn."""
        (x,) = request.inputs
        assert x is not None
        self.clock.now += int(max(x.size, x.max()) * self.each * MS)
        return self.inner.run(request, control)

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        self.each = options["each"]

    def burst_executor(self) -> BurstExecutor:
        return Executor(self)


class Executor(BurstExecutor):
    def __init__(self, prepared: SizedPrepared) -> None:
        self.prepared = prepared

    def add(self, slot: int, memory: Any) -> None: ...

    def remove(self, slot: int) -> None: ...

    def execute(self, request: Request, slots: Any, control: Control) -> Timing | None:
        return self.prepared.work(request, control)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "_now", clock)
    return clock


WAYS = {
    "one at a time": (True, Preference.FAST_SINGLE_ANSWER),
    "several": (False, Preference.FAST_SINGLE_ANSWER),
    "two queues": (True, Preference.SUSTAINED_SPEED),
}


@pytest.fixture(params=WAYS)
def prepared(clock: Clock, request: pytest.FixtureRequest) -> Prepared:
    alone, preference = WAYS[request.param]
    return checked_prepared(Sized(clock, alone=alone), doubling(0), Hints(preference=preference))


def execute(prepared: Prepared, size: int, within_ms: float | None = None, count: int = 1, value: float = 0) -> None:
    """Execute so often, with a deadline on the clock of the queue."""
    for _ in range(count):
        deadline = None if within_ms is None else module._now() + int(within_ms * MS)
        prepared.request([np.full(size, value, np.float32)]).execute(prepared.run, Control(deadline))


def refused(prepared: Prepared, size: int, within_ms: float) -> ErrorStatus:
    with pytest.raises(MissedDeadline, match="the execution was not begun") as missed:
        execute(prepared, size, within_ms)
    return missed.value.status


def test_what_long_inputs_took_refuses_no_short_one(prepared: Prepared) -> None:
    execute(prepared, LONG, count=8)
    assert refused(prepared, LONG, 100) == ErrorStatus.MISSED_DEADLINE_PERSISTENT
    execute(prepared, SHORT, 100, count=8)
    assert refused(prepared, LONG, 100) == ErrorStatus.MISSED_DEADLINE_PERSISTENT


def test_what_short_inputs_took_lets_no_long_one_in(prepared: Prepared) -> None:
    execute(prepared, SHORT, count=8)
    execute(prepared, LONG, 400, count=3)  # of which nothing was known
    assert refused(prepared, LONG, 100) == ErrorStatus.MISSED_DEADLINE_PERSISTENT


def test_what_a_model_took_under_other_options_refuses_nothing(prepared: Prepared) -> None:
    execute(prepared, LONG, count=8)
    checked_reconfigure(prepared, "device sized", {"each": 0.01})
    execute(prepared, LONG, 100, count=8)
    checked_reconfigure(prepared, "device sized", {"each": 1.0})
    execute(prepared, LONG, 400, count=3)
    assert refused(prepared, LONG, 100) == ErrorStatus.MISSED_DEADLINE_PERSISTENT


def test_a_model_of_fixed_shapes_is_predicted_as_one_until_its_options_change(clock: Clock) -> None:
    prepared = checked_prepared(Sized(clock, alone=True), doubling(LONG), Hints())
    execute(prepared, LONG, count=3)
    assert refused(prepared, LONG, 100) == ErrorStatus.MISSED_DEADLINE_PERSISTENT
    checked_reconfigure(prepared, "device sized", {"each": 0.01})
    execute(prepared, LONG, 100, count=3)


def chosen(b: Builder, x: Any) -> Any:
    """Return x, or 2 x if x is negative."""
    same, double = (make_subgraph(b, each, (1,)) for each in (lambda s, y: s.abs(y), lambda s, y: s.add(y, y)))
    return b.if_(b.less(b.reduce_min(x, [0], keep_dims=True), [0.0]), double, same, [x])


def repeated(b: Builder, x: Any) -> Any:
    """Add 1 to x while it is negative."""
    goes_on = make_subgraph(b, lambda s, y: s.less(y, [0.0]), (1,))
    return b.while_(goes_on, make_subgraph(b, lambda s, y: s.add(y, [1.0]), (1,)), [x])


@pytest.mark.parametrize("shape", [1, 0], ids=["fixed", "open"])
@pytest.mark.parametrize("operation", [chosen, repeated])
@pytest.mark.parametrize("way", WAYS)
def test_what_an_if_or_while_took_with_other_values_refuses_nothing(clock, way, operation, shape) -> None:
    alone, preference = WAYS[way]
    model = make_model(lambda b, x: b.mul(operation(b, x), [1.0]), (shape,))
    prepared = checked_prepared(Sized(clock, alone=alone), model, Hints(preference=preference))
    execute(prepared, 1, value=LONG, count=8)
    execute(prepared, 1, within_ms=100, value=SHORT, count=3)


def test_an_executor_for_bursts_is_predicted_by_shapes_like_the_model(prepared: Prepared) -> None:
    executor = checked_executor(prepared, "device sized")
    assert executor is not None

    def execute_there(size: int) -> None:
        request = prepared.request([np.zeros(size, np.float32)])
        deadline = Control(module._now() + 100 * MS)
        request.execute(lambda request, control: executor.execute(request, (), control), deadline)

    execute(prepared, LONG, count=8)
    with pytest.raises(MissedDeadline, match="the execution was not begun"):
        execute_there(LONG)
    execute_there(SHORT)


def test_shapes_of_so_many_sets_are_remembered_and_of_buffers_their_declared_ones(clock: Clock) -> None:
    prepared, paces = checked_prepared(Sized(clock, alone=True), doubling(0), Hints()), LatencyByShape()

    def pace(size: int) -> Any:
        return paces.of(prepared.request([np.zeros(size, np.float32)]))

    first, second = pace(1), pace(2)
    assert pace(1) is first and second is not first
    for size in range(3, waiting.MOST_SHAPES + 2):
        pace(size)
    assert pace(2) is second

    def of_buffer(size: int) -> Any:
        buffer = HostBuffer(BufferDesc((size,)), [BufferRole(prepared, 0, False)])
        return paces.of(prepared.request([None], input_buffers={0: buffer}))

    assert of_buffer(2) is second and of_buffer(3) is pace(3)
    assert pace(1) is not first
