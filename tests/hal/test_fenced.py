"""Fenced executions and those with a callback: order, deadlines, failures, what is told of them and when."""

import gc
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from nnhal.base import time as base_time
from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import (
    Cancelled,
    Closed,
    InvalidArgument,
    InvalidRequest,
    MissedDeadline,
    NnhalError,
    OperationFailed,
    ResourceExhausted,
)
from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.hal import background, queue
from nnhal.hal import request as request_module
from nnhal.hal.answers import allocated_by
from nnhal.hal.background import FencedExecution
from nnhal.hal.device import Device, Prepared
from nnhal.hal.fence import Fence, fence_pair
from nnhal.hal.host import fill
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.request import Control, Request, Timing
from tests.hal.devices import (
    DEVICES,
    LIMIT,
    Own,
    X,
    adding,
    asked,
    device_of,
    late,
    nan,
    prepare,
)
from tests.models import doubling
from tests.waiting import Clock, Opened, until

NONE = ErrorStatus.NONE
PLAIN = Control()
ANY = BufferDesc()


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Device:
    return device_of(request.param)


@pytest.fixture
def step(device: Device) -> Prepared:
    return prepare(device, adding(1))


def shared(count: int) -> list[Array]:
    """Arrays of X's size in one shared memory: another process reads and writes them in place."""
    memory = Memory.allocate(count * 64)
    arrays = [memory.view(n * 64, 48, np.float32, (3, 4)) for n in range(count)]
    for array in arrays:
        array[:] = np.nan
    return arrays


def ended(execution: FencedExecution) -> ErrorStatus:
    """How it ended, NONE where it had by the time it was launched."""
    if execution.fence is None:
        return NONE
    with suppress(NnhalError):
        execution.fence.wait(LIMIT)
    status = execution.fence.status()
    assert status is not None, "the execution hangs"
    return status


# ------------------------------------------------------------------------------------------------------------- order


def test_a_fenced_execution_ends_with_its_fence_and_the_results(step: Prepared) -> None:
    made = asked(step, X, nan())
    execution = step.execute_fenced(made, PLAIN)
    assert ended(execution) == NONE
    execution.get_execution_info()
    np.testing.assert_array_equal(made.results[0], X + 1)


EARLY = {
    "deadline": ({"deadline": 2**62}, None),
    "limit": ({}, 2**61),
    "wish": ({"cancelled": threading.Event()}, None),
}


@pytest.mark.parametrize("way", EARLY)
def test_an_output_in_shared_memory_is_there_when_the_fence_is_signalled_also_where_it_may_have_to_end_early(
    step: Prepared, way: str
) -> None:
    (named, after), (first, second) = EARLY[way], shared(2)
    launched = step.execute_fenced(asked(step, X, first), Control(**named), after=after)
    behind = [] if launched.fence is None else [launched.fence]
    then = step.execute_fenced(asked(step, first, second), Control(**named), behind, after)
    assert ended(launched) == NONE
    np.testing.assert_array_equal(first, X + 1)
    del launched
    assert ended(then) == NONE
    np.testing.assert_array_equal(second, X + 2)


def test_whoever_asks_for_the_end_of_one_execution_at_the_same_moment_gets_it(step: Prepared) -> None:
    for n in range(100):
        x = np.full((3, 4), n, np.float32)
        made = asked(step, x, nan())
        execution, together = step.execute_fenced(made, PLAIN), threading.Barrier(4)
        assert ended(execution) == NONE

        def ask(execution: FencedExecution = execution, together: threading.Barrier = together) -> Array:
            together.wait()
            execution.get_execution_info()
            return made.results[0].copy()  # noqa: B023 (this round's)

        with ThreadPoolExecutor(4) as pool:
            for asking in [pool.submit(ask) for _ in range(4)]:
                np.testing.assert_array_equal(asking.result(LIMIT), x + 1)


def test_a_chain_of_three_runs_in_order(step: Prepared) -> None:
    arrays = shared(4)
    gate, signal = fence_pair()
    fences, executions = [gate], []
    for source, target in pairwise(arrays):
        executions.append(step.execute_fenced(asked(step, source, target), PLAIN, fences))
        assert executions[-1].fence is not None
        fences = [executions[-1].fence]
    arrays[0][:] = X  # what is in the memory when the fence is signalled counts
    assert all(execution.fence is not None and execution.fence.status() is None for execution in executions)
    signal.set()
    assert [ended(execution) for execution in executions] == [NONE] * 3
    for n, array in enumerate(arrays):
        np.testing.assert_array_equal(array, X + n)


def test_all_fences_have_to_be_signalled(step: Prepared) -> None:
    pairs = [fence_pair() for _ in range(3)]
    execution = step.execute_fenced(asked(step, X, nan()), PLAIN, [fence for fence, _ in pairs])
    for fence, signal in reversed(pairs):
        assert execution.fence is not None and execution.fence.status() is None
        signal.set()
        fence.close()  # the execution has descriptors of its own
    assert ended(execution) == NONE


def test_many_executions_wait_for_one_fence(step: Prepared) -> None:
    gate, signal = fence_pair()
    requests = [asked(step, X + n, nan()) for n in range(8)]
    executions = [step.execute_fenced(made, PLAIN, [gate]) for made in requests]
    signal.set()
    for n, (made, execution) in enumerate(zip(requests, executions, strict=True)):
        assert ended(execution) == NONE
        execution.get_execution_info()
        np.testing.assert_array_equal(made.results[0], X + n + 1)


def test_an_execution_of_which_nobody_keeps_the_fence_goes_on() -> None:
    gate, signal = fence_pair()
    y, over = nan(), threading.Event()
    step = prepare(device_of("reference"), adding(1))
    execution = step.execute_fenced(asked(step, X, y), PLAIN, [gate])
    execution.when_ended(over.set)
    assert execution.fence is not None
    execution.fence.close()
    del execution
    signal.set()
    assert over.wait(LIMIT)
    np.testing.assert_array_equal(y, X + 1)


def test_driver_memory_is_written_behind_a_fence(device: Device, step: Prepared) -> None:
    buffer = allocated_by(device, ANY, [BufferRole(step, 0), BufferRole(step, 0, True)])
    gate, signal = fence_pair()
    first = step.execute_fenced(asked(step, X, buffer), PLAIN, [gate])
    assert first.fence is not None
    made = asked(step, buffer, nan())
    second = step.execute_fenced(made, PLAIN, [first.fence])
    signal.set()
    assert ended(second) == NONE
    second.get_execution_info()
    np.testing.assert_array_equal(made.results[0], X + 2)


# -------------------------------------------------------------------------------------------------- what is refused


def test_a_fence_that_is_in_error_already_is_an_invalid_argument(step: Prepared) -> None:
    good, bad = fence_pair(), fence_pair()
    for _, signal in (good, bad):
        signal.set(NONE if signal is good[1] else ErrorStatus.GENERAL_FAILURE)
    with pytest.raises(InvalidArgument, match="fence 1 to wait for is in error already") as caught:
        step.execute_fenced(asked(step, X, nan()), PLAIN, [good[0], bad[0]])
    assert caught.value.status == ErrorStatus.INVALID_ARGUMENT


def test_a_fence_of_which_the_other_side_is_gone_is_in_error(step: Prepared) -> None:
    fence, signal = fence_pair()
    del signal
    with pytest.raises(InvalidArgument, match="fence 0 to wait for is in error already"):
        step.execute_fenced(asked(step, X, nan()), PLAIN, [fence])


def test_a_closed_fence_is_not_waited_for(step: Prepared) -> None:
    fence, _ = fence_pair()
    fence.close()
    with pytest.raises(Closed):
        step.execute_fenced(asked(step, X, nan()), PLAIN, [fence])


def test_outputs_of_unknown_shape_are_refused(device: Device) -> None:
    prepared = prepare(device, doubling(0, 4))
    with pytest.raises(
        InvalidArgument, match=r"output 0 has shape \[\?, 4\] and nothing, must have one that is fully spec"
    ):
        prepared.execute_fenced(asked(prepared, X, None), PLAIN)
    with pytest.raises(InvalidArgument, match="and only a size in bytes, must have one that is fully specified"):
        prepared.execute_fenced(asked(prepared, X, np.empty(48, np.uint8)), PLAIN)
    buffer = allocated_by(device, ANY, [BufferRole(prepared, 0, True)])
    with pytest.raises(InvalidArgument, match="output 0 is a buffer of shape"):
        prepared.execute_fenced(asked(prepared, X, buffer), PLAIN)
    fixed = allocated_by(device, BufferDesc((3, 4)), [BufferRole(prepared, 0, True)])
    assert ended(prepared.execute_fenced(asked(prepared, X, fixed), PLAIN)) == NONE
    assert fixed.shape == (3, 4)


def test_an_output_of_known_shape_needs_no_room(step: Prepared) -> None:
    made = asked(step, X, None)
    launched = step.execute_fenced(made, PLAIN)
    assert ended(launched) == NONE
    launched.get_execution_info()  # takes what lies in another process
    np.testing.assert_array_equal(made.results[0], X + 1)


def test_a_buffer_in_a_role_that_is_not_its_own_is_refused_at_the_launch(device: Device, step: Prepared) -> None:
    buffer = allocated_by(device, ANY, [BufferRole(step, 0)])
    with pytest.raises(InvalidRequest, match="must be one of its roles"):
        step.execute_fenced(asked(step, X, buffer), PLAIN)


# ---------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("status", [ErrorStatus.GENERAL_FAILURE, ErrorStatus.DEVICE_UNAVAILABLE])
def test_a_fence_that_fails_later_fails_the_execution_and_all_behind_it(step: Prepared, status: ErrorStatus) -> None:
    arrays = shared(3)
    gate, signal = fence_pair()
    first = step.execute_fenced(asked(step, arrays[0], arrays[1]), PLAIN, [gate])
    assert first.fence is not None
    second = step.execute_fenced(asked(step, arrays[1], arrays[2]), PLAIN, [first.fence])
    signal.set(status)
    for execution in (first, second):
        assert ended(execution) == status
        with pytest.raises(NnhalError) as caught:
            execution.get_execution_info()
        assert caught.value.status == status
    assert all(np.isnan(array).all() for array in arrays)


def test_info_is_a_general_failure_before_the_end(step: Prepared) -> None:
    gate, signal = fence_pair()
    execution = step.execute_fenced(asked(step, X, nan()), PLAIN, [gate])
    with pytest.raises(OperationFailed, match="has not ended") as caught:
        execution.get_execution_info()
    assert caught.value.status == ErrorStatus.GENERAL_FAILURE
    signal.set()
    assert ended(execution) == NONE
    execution.get_execution_info()


def test_a_failed_execution_leaves_its_buffer_without_contents(device: Device, step: Prepared) -> None:
    buffer = allocated_by(device, ANY, [BufferRole(step, 0, True)])
    fill(buffer, X)
    gate, signal = fence_pair()
    execution = step.execute_fenced(asked(step, X, buffer), PLAIN, [gate], after=1)
    signal.set()
    assert ended(execution).name.startswith("MISSED_DEADLINE")
    assert buffer.shape is None


def test_what_follows_is_called_once_whatever_another_does(caplog: pytest.LogCaptureFixture) -> None:
    gate, signal = fence_pair()
    calls: list[int] = []
    step = prepare(device_of("reference"), adding(1))
    execution = step.execute_fenced(asked(step, X, nan()), PLAIN, [gate])
    execution.when_ended(lambda: calls.append(1))
    execution.when_ended(lambda: 1 // 0)
    execution.when_ended(lambda: calls.append(2))
    signal.set()
    assert ended(execution) == NONE
    execution.when_ended(lambda: calls.append(3))
    assert calls == [1, 2, 3]
    assert "ZeroDivisionError" in caplog.text


# ------------------------------------------------------------------------------------------------------------- time


@pytest.mark.sampled(3)
def test_the_deadline_holds_while_fences_are_waited_for(step: Prepared) -> None:
    gate, _signal = fence_pair()
    execution = step.execute_fenced(
        asked(step, X, nan()), Control(deadline=time.monotonic_ns() + 1_500_000_000), [gate]
    )
    assert ended(execution).name.startswith("MISSED_DEADLINE")
    with pytest.raises(MissedDeadline):
        execution.get_execution_info()


@pytest.mark.parametrize("deadline", [None, 2**62])
def test_a_deadline_far_away_is_none(step: Prepared, deadline: int | None) -> None:
    gate, signal = fence_pair()
    execution = step.execute_fenced(asked(step, X, nan()), Control(deadline=deadline), [gate], after=2**61)
    threading.Timer(0.05, signal.set).start()
    assert ended(execution) == NONE


def test_a_deadline_that_has_passed_fails_the_execution(step: Prepared) -> None:
    try:
        status = ended(step.execute_fenced(asked(step, X, nan()), late()))
    except MissedDeadline as error:
        status = error.status
    assert status.name.startswith("MISSED_DEADLINE")


@pytest.mark.parametrize("how", ["fenced", "with a callback"])
def test_an_execution_that_failed_holds_nothing_until_a_garbage_collection(how: str) -> None:
    step = prepare(device_of("reference"), adding())
    gc.collect()
    gc.disable()
    try:
        request, there = asked(step, X, nan()), threading.Event()
        alive = weakref.ref(request)
        if how == "fenced":
            execution = step.execute_fenced(request, Control(deadline=1))
            assert execution.fence is not None
            for _ in range(2):
                with pytest.raises(MissedDeadline):
                    execution.fence.wait(LIMIT)
                with pytest.raises(MissedDeadline):
                    execution.get_execution_info()
            del execution
        else:
            step.execute(request, Control(deadline=1), lambda *_: there.set())
            assert there.wait(LIMIT)
        del request
        until(lambda: alive() is None, "it is gone")
    finally:
        gc.enable()


def test_time_spent_waiting_is_no_part_of_the_limit_after_the_fences(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, signal = fence_pair()
    clock, limit = Clock().play(monkeypatch, background, queue, request_module, base_time), 1.0
    step = prepare(device_of("reference"), adding(1))
    execution = step.execute_fenced(asked(step, X, nan()), PLAIN, [gate], after=int(limit * 1e9))
    clock.advance(limit * 1.1)
    signal.set()
    assert ended(execution) == NONE


def stays(_: Request, control: Control) -> None:
    """Until the deadline has passed."""
    until(lambda: time.monotonic_ns() > (control.deadline or 0), "the deadline")


def test_a_driver_that_ends_late_has_missed_the_deadline() -> None:
    prepared = Own(stays)
    buffer = allocated_by(device_of("reference"), ANY, [BufferRole(prepared, 0, True)])
    execution = prepared.execute_fenced(asked(prepared, X, buffer), PLAIN, after=10_000_000)
    assert ended(execution).name.startswith("MISSED_DEADLINE")
    assert buffer.shape is None


def test_a_driver_that_ends_late_has_missed_the_deadline_where_it_wrote_to_arrays_too() -> None:
    prepared = Own(stays)
    execution = prepared.execute_fenced(asked(prepared, X, nan()), PLAIN, after=10_000_000)
    assert ended(execution).name.startswith("MISSED_DEADLINE")


HOUR = 3600 * 10**9


@pytest.mark.parametrize(
    ("after", "deadline", "which"),
    [
        (None, None, None),
        (None, HOUR, "deadline"),
        (HOUR, None, "after"),
        (HOUR, 2 * HOUR, "after"),
        (2 * HOUR, HOUR, "deadline"),
    ],
)
def test_a_driver_is_told_of_the_nearer_of_two_limits(
    after: int | None, deadline: int | None, which: str | None
) -> None:
    told: list[Control] = []
    prepared = Own(lambda _, control: told.append(control))  # type: ignore[func-returns-value]
    begun = time.monotonic_ns()
    control = Control(None if deadline is None else begun + deadline, 1234)
    assert ended(prepared.execute_fenced(asked(prepared, X, nan()), control, after=after)) == NONE
    (found,) = told
    assert found.loop_timeout == 1234
    if which == "after":
        assert after is not None and found.deadline is not None
        assert begun + after <= found.deadline <= time.monotonic_ns() + after
    else:
        assert found.deadline == control.deadline


def test_an_output_that_turns_out_larger_than_its_memory_is_an_invalid_argument() -> None:
    step = prepare(device_of("reference"), adding(1))
    execution = step.execute_fenced(asked(step, X, np.empty(44, np.uint8)), PLAIN)
    assert ended(execution) == ErrorStatus.INVALID_ARGUMENT
    with pytest.raises(InvalidArgument, match="fenced execution: an output is larger than its memory"):
        execution.get_execution_info()
    assert ended(step.execute_fenced(asked(step, X, np.empty(48, np.uint8)), PLAIN)) == NONE


def test_who_waits_for_a_fence_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, looked = [0], Fence.status

    def status(fence: Fence) -> ErrorStatus | None:
        looks[0] += 1
        return looked(fence)

    step = prepare(device_of("reference"), adding(1))
    gate, signal = fence_pair()
    monkeypatch.setattr(Fence, "status", status)
    execution = step.execute_fenced(asked(step, X, nan()), PLAIN, [gate])
    threading.Event().wait(0.05)
    assert looks[0] < 20
    signal.set()
    assert ended(execution) == NONE


@pytest.mark.parametrize("fails", [False, True])
def test_whoever_launched_it_his_own_way_is_told_once_whether_it_failed(fails: bool) -> None:
    step = prepare(device_of("reference"), adding(1))
    told, over = list[bool](), threading.Event()

    def tell(failed: bool) -> None:
        told.append(failed)
        over.set()

    control = Control(deadline=1 if fails else None)
    execution = background.run_after(step.run, asked(step, X, nan()), control, [], None, tell)
    assert over.wait(LIMIT) and (ended(execution) != NONE) == fails and told == [fails]


def test_the_error_of_an_execution_is_told_with_its_cause_to_each_who_asks() -> None:
    class Odd(OperationFailed):
        def __copy__(self) -> "Odd":
            raise TypeError("of a driver's own making")

    cause, context = KeyError("weights"), ValueError("before")
    for error, same in ((OperationFailed("no"), False), (Odd("no"), True)):
        error.__cause__, error.__context__ = cause, context
        execution = background.FencedExecution(None)
        execution.finish(error, None)
        for _ in range(2):
            with pytest.raises(OperationFailed, match="no") as caught:
                execution.get_execution_info()
            assert (caught.value is error) == same
            assert caught.value.__cause__ is cause and caught.value.__context__ is context


def test_what_a_driver_measured_unasked_is_not_told_and_what_it_did_not_measure_is_none() -> None:
    for timing, measure in ((Timing(1, 2), False), (None, True)):
        prepared = Own(lambda *_, timing=timing: timing)  # type: ignore[misc]
        execution = prepared.execute_fenced(asked(prepared, X, nan()), Control(measure=measure))
        assert ended(execution) == NONE
        info = execution.get_execution_info()
        assert info.launched.on_device is info.fenced.on_device is None
        assert all((each.in_driver is not None) == measure for each in info)


def test_an_execution_that_waits_can_be_cancelled() -> None:
    gate, _signal = fence_pair()
    cancelled = threading.Event()
    step = prepare(device_of("reference"), adding(1))
    execution = step.execute_fenced(asked(step, X, nan()), Control(cancelled=cancelled), [gate])
    assert execution.fence is not None and execution.fence.status() is None
    cancelled.set()
    assert ended(execution) == ErrorStatus.GENERAL_FAILURE
    with pytest.raises(Cancelled):
        execution.get_execution_info()


def test_times_contain_each_other(step: Prepared) -> None:
    gate, signal = fence_pair()
    begin = time.monotonic_ns()
    execution = step.execute_fenced(asked(step, X, nan()), Control(measure=True), [gate])
    begun = time.monotonic_ns()
    until(lambda: time.monotonic_ns() > begun + 50_000_000, "some time has passed")
    signal.set()
    assert ended(execution) == NONE
    info = execution.get_execution_info()
    launched, fenced, device = info.launched.in_driver, info.fenced.in_driver, info.fenced.on_device
    assert launched is not None and fenced is not None and device is not None
    assert time.monotonic_ns() - begin >= launched >= fenced >= device >= 0
    assert launched - fenced >= 45_000_000  # what was spent waiting
    assert info.launched.on_device == device


def test_nothing_is_measured_unless_asked(step: Prepared) -> None:
    execution = step.execute_fenced(asked(step, X, nan()), PLAIN)
    assert ended(execution) == NONE
    assert {*execution.get_execution_info().launched, *execution.get_execution_info().fenced} == {None}


@pytest.mark.parametrize("device_time", [-1, 10**18])
def test_times_that_cannot_be_true_are_dropped_with_a_line_in_the_log(
    device_time: int, caplog: pytest.LogCaptureFixture
) -> None:
    prepared = Own(lambda *_: Timing(device_time, 10**18))
    with caplog.at_level(logging.WARNING, "nnhal.driver"):
        execution = prepared.execute_fenced(asked(prepared, X, nan()), Control(measure=True))
        assert ended(execution) == NONE
    info = execution.get_execution_info()
    assert info.fenced.on_device is info.launched.on_device is None
    assert info.launched.in_driver is not None and info.fenced.in_driver is not None
    assert f"reports the duration Timing(on_device={device_time}," in caplog.text


# -------------------------------------------------------------------------------------------------------- resources


class Engaged(deque[Any]):
    """Workers of which none can be had."""

    def pop(self) -> Any:
        raise IndexError


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads cannot be had: no worker is idle, and nobody has room for a stack of this size for another."""
    idle, engaged = background._idle, Engaged()
    monkeypatch.setattr(background, "_idle", engaged)
    before = threading.stack_size(2**46)
    yield
    threading.stack_size(before)
    monkeypatch.undo()
    idle.extend(engaged)


@pytest.mark.usefixtures("no_threads")
def test_without_threads_launching_is_resource_exhausted_and_nothing_is_left() -> None:
    step = prepare(device_of("reference"), adding(1))
    gate, _signal = fence_pair()
    gc.collect()
    opened = Opened()
    for _ in range(3):
        with pytest.raises(ResourceExhausted, match="no thread for it"):
            step.execute_fenced(asked(step, X, nan()), PLAIN, [gate])
        with pytest.raises(ResourceExhausted, match="no thread for it"):
            step.execute(asked(step, X, nan()), PLAIN, lambda *_: pytest.fail("notified"))
    gc.collect()
    opened.closed()


def test_many_executions_leave_no_descriptors(step: Prepared) -> None:
    def some(count: int) -> None:
        fence: Fence | None = None
        for _ in range(count):
            execution = step.execute_fenced(asked(step, X, nan()), PLAIN, [] if fence is None else [fence])
            fence = execution.fence
            assert ended(execution) == NONE
            execution.get_execution_info()

    some(20)
    opened = Opened()
    some(200)
    opened.closed(but=5)  # frames that are kept
