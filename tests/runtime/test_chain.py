"""Steps launched at once on drivers with fences of their own: what each waits for, what is told of them, how it ends."""

import itertools
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base import time as base_time
from nnhal.base.errors import ContractBroken, DeadObject, InvalidArgument, OperationFailed
from nnhal.base.memory import Memory
from nnhal.hal import background
from nnhal.hal import request as request_module
from nnhal.hal.background import ExecutionInfo, FencedExecution
from nnhal.hal.device import YES, Device, Hints, Prepared, Verdict
from nnhal.hal.request import Control, Request, Timing
from nnhal.runtime import fenced as chains
from tests.hal.devices import OwnBuffer
from tests.models import make_model
from tests.runtime.devices import Fake, failing, for_nothing
from tests.runtime.graphs import FLOATS, SHAPE, sums
from tests.runtime.test_arguments import SIXTEEN, WIDE, N, formed
from tests.runtime.test_execution import add, relued, two_outputs, wait_until
from tests.waiting import Clock, pass_time

X, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
LONG = 60  # seconds after which something counts as hanging
CHAIN = "each partition behind its fence"
NOBODY = ExecutionInfo(Timing(), Timing())


class Launch:
    """One launch of one step, which the test ends."""

    def __init__(self, request: Request, control: Control, wait_for: Sequence[nnhal.Fence], after: int | None) -> None:
        self.request, self.control, self.wait_for, self.after = request, control, list(wait_for), after
        self.fence, self.signal = nnhal.fence_pair()
        self.execution = FencedExecution(self.fence)

    def give(self, *values: Any, info: ExecutionInfo = NOBODY) -> None:
        for place, value in enumerate(values):
            self.request.write(place, np.asarray(value, np.float32))
        self.execution.finish(None, info)
        self.signal.set()

    def fail(self, error: nnhal.NnhalError) -> None:
        self.execution.finish(error, None)
        self.signal.set(error.status)


class Launching(Device):
    """Takes operations by place; its launches are kept. on_launch: called before each, with its number, may raise."""

    def __init__(self, name: str = "launching", takes: Callable[[int], bool] = lambda n: True) -> None:
        self.name, self.takes, self.launches, self.closed = name, takes, list[Launch](), 0
        self.on_launch: Callable[[int], None] = lambda n: None
        self.changeable: tuple[str, ...] = ()

    def supports(self, model: nnhal.Model) -> list[Verdict]:
        return [YES if self.takes(n) else Verdict(False, "not this one") for n in range(len(model.main.operations))]

    def prepare(self, model: nnhal.Model, hints: Hints) -> Prepared:
        device = self

        class OwnBuffer(Prepared):
            changeable = device.changeable

            def run(self, request: Request, control: Control) -> None:
                add(request, control)

            def execute_fenced(self, request: Request, control: Control, wait_for: Any, after: Any = None) -> Any:
                device.on_launch(len(device.launches))
                device.launches.append(Launch(request, control, wait_for, after))
                return device.launches[-1].execution

            def close(self) -> None:
                device.closed += 1

        return OwnBuffer()


def two_steps(monkeypatch: pytest.MonkeyPatch) -> tuple[nnhal.Compiled, Launching, Launching]:
    """doubled = x + x on one device, squared = doubled · x on another."""
    for_nothing(monkeypatch)
    first, second = Launching("first", lambda n: n == 0), Launching("second", lambda n: n == 1)
    return nnhal.compile(two_outputs(), devices=[first, second]), first, second


def one_step() -> tuple[nnhal.Compiled, Launching]:
    device = Launching()
    return nnhal.compile(sums(), devices=[device]), device


# ----------------------------------------------------------------------------------------------------------- who waits


def test_the_first_step_waits_for_the_callers_fences_and_each_other_for_the_one_before(monkeypatch):
    compiled, first, second = two_steps(monkeypatch)
    pending, _keep = nnhal.fence_pair()
    fenced = compiled.execute_fenced(X, wait_for=[pending], loop_timeout=3)
    (a,), (b,) = first.launches, second.launches
    assert fenced.way == CHAIN and a.wait_for == [pending] and b.wait_for == [a.fence] and fenced.fence is b.fence
    assert (a.after, b.after) == (None, None) and a.control.loop_timeout == b.control.loop_timeout == 3_000_000_000
    assert not fenced.done()
    a.give(2 * X)
    assert not fenced.done()
    assert b.request.inputs[0].tolist() == [0, 2, 4, 6]  # the step before wrote it there
    b.give(2 * X * X)
    assert fenced.done()
    doubled, squared = fenced.result(LONG)
    assert doubled.tolist() == [0, 2, 4, 6] and squared.tolist() == [0, 2, 8, 18]
    assert compiled.placement.live.executions == 1


def test_a_step_that_had_ended_when_its_launch_came_back_is_waited_for_by_nobody(monkeypatch):
    compiled, _, second = two_steps(monkeypatch)

    class Ended(Launch):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.execution = FencedExecution(None)
            x = self.request.inputs
            self.give(x[0] + x[0] if len(x) == 1 else x[0] * x[1])

    monkeypatch.setattr(f"{__name__}.Launch", Ended)
    fenced = compiled.execute_fenced(X)
    assert second.launches[0].wait_for == [] and fenced.fence is None and fenced.done()
    assert repr(fenced) == "<Fenced, ended: each partition behind its fence>"
    assert [r.tolist() for r in fenced.result()] == [[0, 2, 4, 6], [0, 2, 8, 18]]
    assert fenced.get_execution_info() == NOBODY


def test_what_one_step_writes_for_another_lies_side_by_side_in_one_sealed_memory(monkeypatch):
    for_nothing(monkeypatch)
    model = make_model(lambda b, x: b.sub(b.add(x, x), b.mul(x, x)), (3,))
    first, second = Launching("first", lambda n: n < 2), Launching("second", lambda n: n == 2)
    compiled = nnhal.compile(model, devices=[first, second])
    given = np.float32([1, 2, 4])
    fenced = compiled.execute_fenced(given)
    (one,), (two,) = first.launches, second.launches
    at = [Memory.of(room) for room in one.request.rooms]
    assert at[0][0] is at[1][0] and at[0][0].sealed and [start for _, start in at] == [0, 64]
    one.give(2 * given, given * given)
    assert [i.tolist() for i in two.request.inputs] == [[2, 4, 8], [1, 4, 16]]
    two.give(2 * given - given * given)
    assert fenced.result(LONG).tolist() == [1, 0, -8]


def test_what_only_an_operation_reads_that_does_not_run_has_room_all_the_same():
    b = nnhal.Builder()
    x = b.input(SHAPE)
    doubled = b.add(x, x)
    b.relu(doubled)  # nobody reads what it gives
    device = Launching()
    compiled = nnhal.compile(b.finish([x], [b.mul(doubled, doubled)]), devices=[device])
    fenced = compiled.execute_fenced(X)
    (launch,) = device.launches
    assert fenced.way == CHAIN and len(launch.request.signature.outputs) == 2
    launch.give(2 * X, 4 * X * X)
    assert fenced.result(LONG).tolist() == [0, 4, 16, 36]


def test_a_model_whose_steps_share_nothing_needs_no_memory_between_them(monkeypatch):
    made = []
    monkeypatch.setattr(chains.Memory, "allocate", lambda *a: made.append(a))
    compiled, device = one_step()
    fenced = compiled.execute_fenced(X, B)
    device.launches[0].give(X + 1)
    assert fenced.result(LONG).tolist() == [1, 2, 3, 4] and made == []


# --------------------------------------------------------------------------------------------------------------- times


def info(launched: int | None, on_device: int | None, in_driver: int | None) -> ExecutionInfo:
    return ExecutionInfo(Timing(on_device, launched), Timing(on_device, in_driver))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((info(100, 5, 10), info(300, 7, 20)), info(300 + 50, 12, 30)),  # the last is launched 50 after the first
        ((info(None, 5, 10), info(300, None, 20)), info(350, None, 30)),
        ((info(100, 5, None), info(300, 7, 20)), info(350, 12, None)),
        ((info(100, 5, 10), info(None, 7, 20)), info(None, 12, 30)),
        ((info(0, 0, 0), info(0, 0, 0)), info(50, 0, 0)),
    ],
)
def test_times_of_steps_are_summed_where_all_are_known(steps, expected, monkeypatch):
    clock = itertools.count(1000, 50)
    compiled, first, second = two_steps(monkeypatch)
    monkeypatch.setattr(chains, "time", SimpleNamespace(monotonic_ns=lambda: next(clock)))
    fenced = compiled.execute_fenced(X, measure=True)
    first.launches[0].give(2 * X, info=steps[0])
    second.launches[0].give(2 * X * X, info=steps[1])
    fenced.result(LONG)
    assert fenced.get_execution_info() == expected


def test_times_of_one_step_are_its_own(monkeypatch):
    clock = itertools.count(1000, 50)
    compiled, device = one_step()
    monkeypatch.setattr(chains, "time", SimpleNamespace(monotonic_ns=lambda: next(clock)))
    fenced = compiled.execute_fenced(X, B, measure=True)
    assert device.launches[0].control.measure
    device.launches[0].give(X, info=info(100, 5, 10))
    assert fenced.get_execution_info() == info(100, 5, 10)


# ------------------------------------------------------------------------------------------------------------ failures


def test_information_before_the_end_names_the_step_that_goes_on(monkeypatch):
    compiled, first, second = two_steps(monkeypatch)
    fenced = compiled.execute_fenced(X)
    first.launches[0].give(2 * X)
    with pytest.raises(OperationFailed, match=r"^device second: execution info: the execution has not ended$"):
        fenced.get_execution_info()
    second.launches[0].give(2 * X * X)
    fenced.get_execution_info()


def test_after_a_failure_requests_take_nothing_and_outputs_have_no_contents(monkeypatch):
    compiled, first, second = two_steps(monkeypatch)
    room = np.full(4, -7, np.float32)
    fenced = compiled.execute_fenced(X, out=[None, room])
    first.launches[0].fail(OperationFailed("mine"))
    second.launches[0].fail(OperationFailed("after it"))
    for _ in range(2):
        with pytest.raises(OperationFailed, match="mine"):
            fenced.result(LONG)
    for launch in (*first.launches, *second.launches):
        assert launch.request.ended
        with pytest.raises(nnhal.Closed):
            launch.request.write(0, X)
    assert (room == -7).all()


def with_buffers() -> tuple[nnhal.Compiled, Launching]:
    device = Launching()
    device.allocate = OwnBuffer  # type: ignore[assignment]
    return nnhal.compile(sums(), devices=[device]), device


@pytest.mark.parametrize("well", [True, False])
def test_a_buffer_of_the_drivers_own_has_contents_where_it_went_well(well):
    compiled, device = with_buffers()
    given, taken = nnhal.allocate([(compiled, "input", 0)]), nnhal.allocate([(compiled, "output", 0)])
    given.write(X)
    taken.write(X)
    fenced = compiled.execute_fenced(given, B, out=taken)
    (launch,) = device.launches
    assert fenced.way == CHAIN and list(launch.request.input_buffers) == list(launch.request.output_buffers) == [0]
    assert launch.request.inputs[0] is None and launch.request.input_buffers[0].contents.tolist() == [0, 1, 2, 3]
    if well:
        launch.request.output_buffers[0].contents = X + 1
        launch.request.filled(0, SHAPE)
        launch.give()
        assert fenced.result(LONG) is taken and taken.read().tolist() == [1, 2, 3, 4]
        return
    launch.fail(OperationFailed("mine"))
    with pytest.raises(OperationFailed, match="mine"):
        fenced.result(LONG)
    with pytest.raises(OperationFailed, match="has no contents"):
        taken.read()


def test_a_buffer_that_was_not_filled_has_no_contents_though_the_driver_says_it_went_well():
    compiled, device = with_buffers()
    taken = nnhal.allocate([(compiled, "output", 0)])
    taken.write(X)
    fenced = compiled.execute_fenced(X, B, out=taken)
    device.launches[0].give()
    for _ in range(2):
        with pytest.raises(ContractBroken, match="was not written"):
            fenced.result(LONG)
    with pytest.raises(OperationFailed, match="has no contents"):
        taken.read()


@pytest.mark.parametrize("error", [InvalidArgument("mine"), DeadObject("mine"), nnhal.MissedDeadline("mine")])
def test_a_launch_that_the_caller_is_to_hear_of_raises_and_leaves_outputs_without_contents(error):
    compiled, device = with_buffers()
    taken = nnhal.allocate([(compiled, "output", 0)])
    taken.write(X)

    device.on_launch = failing(error)
    with pytest.raises(type(error), match="mine"):
        compiled.execute_fenced(X, B, out=taken)
    with pytest.raises(OperationFailed, match="has no contents"):
        taken.read()
    compiled.close()
    assert device.closed == 1  # nothing is in flight


def test_where_a_driver_cannot_launch_all_runs_in_the_background_after_what_was_launched(monkeypatch):
    compiled, first, second = two_steps(monkeypatch)
    ran, real = [], chains.Caller.carry_out
    monkeypatch.setattr(chains.Caller, "carry_out", lambda *a: (ran.append(1), real(*a))[1])

    second.on_launch = failing(OperationFailed("not today"))
    fenced = compiled.execute_fenced(X)
    assert fenced.way == "in the background: device second: not today"
    (launched,) = first.launches
    pass_time(0.05)
    assert not fenced.done() and ran == []  # it might write to the same memory
    launched.fail(OperationFailed("whatever came of it"))
    with pytest.raises(nnhal.NnhalError):  # `add` of one input is none
        fenced.result(LONG)
    assert ran == [1]


def test_a_step_refused_as_the_one_before_has_failed_meanwhile_is_told_of_as_that(monkeypatch):
    compiled, first, second = two_steps(monkeypatch)

    def refuse(_: int) -> None:
        first.launches[0].fail(OperationFailed("mine"))
        raise InvalidArgument("fence 0 to wait for is in error already")

    second.on_launch = refuse
    fenced = compiled.execute_fenced(X)
    assert fenced.way == CHAIN and second.launches == []
    with pytest.raises(OperationFailed, match="mine"):
        fenced.result(LONG)


@pytest.mark.parametrize("status", ["pending", "signalled"])
def test_a_step_refused_for_another_reason_is_refused(status, monkeypatch):
    compiled, first, second = two_steps(monkeypatch)

    def refuse(_: int) -> None:
        if status == "signalled":
            first.launches[0].give(2 * X)
        raise InvalidArgument("no such thing")

    second.on_launch = refuse
    with pytest.raises(InvalidArgument, match="no such thing"):
        compiled.execute_fenced(X)


# ------------------------------------------------------------------------------------------------------------- waiting


def test_a_timeout_leaves_it_running_and_results_can_be_had_later():
    compiled, device = one_step()
    fenced = compiled.execute_fenced(X, B)
    for timeout in (0, 0.01):
        with pytest.raises(nnhal.MissedDeadline, match="not signalled after"):
            fenced.result(timeout)
    assert not device.launches[0].request.ended
    device.launches[0].give(X + 1)
    first = fenced.result(LONG)
    assert first.tolist() == [1, 2, 3, 4] and fenced.result(0) is first


def test_the_deadline_ends_the_wait_some_time_after_and_then_nothing_is_taken(monkeypatch):
    monkeypatch.setattr(chains, "_GRACE", 0.05)
    clock = Clock().play(monkeypatch, chains, request_module, base_time)
    for timeout in (None, LONG):
        compiled, device = one_step()
        fenced = compiled.execute_fenced(X, B, deadline=0.05)
        assert fenced.way == CHAIN and device.launches[0].control.deadline is not None
        clock.advance(1)
        with pytest.raises(nnhal.MissedDeadline, match=r"^fenced execution: the deadline has passed$"):
            fenced.result(timeout)
        assert device.launches[0].request.ended


def test_a_timeout_before_the_deadline_is_a_timeout(monkeypatch):
    compiled, device = one_step()
    fenced = compiled.execute_fenced(X, B, deadline=LONG)
    with pytest.raises(nnhal.MissedDeadline, match="not signalled after"):
        fenced.result(0.01)
    assert not device.launches[0].request.ended
    device.launches[0].give(X + 1)
    assert fenced.result(LONG).tolist() == [1, 2, 3, 4]


def test_what_comes_just_after_the_deadline_counts(monkeypatch):
    """Drivers end it then, and say so themselves."""
    monkeypatch.setattr(chains, "_GRACE", LONG)
    clock = Clock().play(monkeypatch, chains, request_module, base_time)
    compiled, device = one_step()
    fenced = compiled.execute_fenced(X, B, deadline=0.01)
    clock.advance(0.05)
    threading.Timer(0.1, device.launches[0].fail, (nnhal.MissedDeadline("by the driver"),)).start()
    with pytest.raises(nnhal.MissedDeadline, match="by the driver"):
        fenced.result()


def test_an_output_that_was_not_written_is_the_drivers_fault_each_time_it_is_asked_for():
    compiled, device = one_step()
    fenced = compiled.execute_fenced(X, B)
    device.launches[0].give()
    for _ in range(3):
        with pytest.raises(ContractBroken, match=r"^device launching: output 0 \(y\) was not written, must be$"):
            fenced.result(LONG)


# --------------------------------------------------------------------------------------- what is in use until they end


def test_what_was_launched_here_holds_the_model_until_the_last_step_has_ended(monkeypatch):
    compiled, first, second = two_steps(monkeypatch)
    fenced = compiled.execute_fenced(X)
    compiled.close()
    assert (first.closed, second.closed) == (0, 0)
    second.launches[0].give(2 * X * X)
    assert (first.closed, second.closed) == (0, 0)
    first.launches[0].give(2 * X)
    wait_until(lambda: (first.closed, second.closed) == (1, 1))
    assert fenced.done()


# ----------------------------------------------------------------------------------------------- why it is not a chain


def way(compiled: nnhal.Compiled, *inputs: Any, **more: Any) -> str:
    """How it runs, not how it ends."""
    return compiled.execute_fenced(*inputs, **more).way


def test_as_many_fences_as_a_call_carries_go_along_with_it():
    compiled, device = one_step()
    fences = [nnhal.fence_pair() for _ in range(17)]
    assert way(compiled, X, B, wait_for=[fence for fence, _ in fences[:16]]) == CHAIN
    assert len(device.launches[0].wait_for) == 16
    assert way(compiled, X, B, wait_for=[fence for fence, _ in fences]) == (
        "in the background: more than 16 fences to wait for"
    )
    assert len(device.launches) == 1


def test_a_limit_from_its_fences_on_is_kept_here():
    compiled, device = one_step()
    assert way(compiled, X, B, after=LONG) == "in the background: a limit from its fences on" and not device.launches


def test_shapes_that_are_not_known_before_are_found_here():
    device = Launching()
    compiled = nnhal.compile(relued(None), devices=[device])
    assert way(compiled, X, out=np.empty(4, np.float32)) == "in the background: shapes are not known before"


def test_memory_of_the_runtimes_is_used_here():
    compiled, _ = one_step()
    a = nnhal.allocate([(compiled, "input", 0)])
    a.write(X)
    assert way(compiled, a, B) == "in the background: an argument lies in memory of the runtime's"
    y = nnhal.allocate([(compiled, "output", 0)])
    assert way(compiled, X, B, out=y) == "in the background: an argument lies in memory of the runtime's"


EARLY = "in the background: it may have to end early, and others read what drivers would go on to write"


def test_what_others_read_is_not_left_to_drivers_where_it_may_have_to_end_early(monkeypatch):
    compiled, _ = one_step()
    shared = Memory.allocate(32).view(0, 16, np.float32)
    assert way(compiled, X, B, deadline=LONG) == CHAIN
    assert way(compiled, X, B, out=np.empty(4, np.float32), deadline=LONG) == CHAIN
    assert way(compiled, X, B, out=shared) == CHAIN
    assert way(compiled, shared, B, deadline=LONG) == CHAIN  # is only read
    assert way(compiled, X, B, out=shared, deadline=LONG) == EARLY
    both, *_ = two_steps(monkeypatch)
    assert way(both, X) == CHAIN and way(both, X, deadline=LONG) == EARLY


def test_memory_that_cannot_be_shared_as_it_is_is_used_here():
    compiled, _ = one_step()
    unaligned = Memory.allocate(32).view(1, 16, np.float32)
    elsewhere = "in the background: an argument lies in memory that drivers cannot share as it is"
    assert way(compiled, unaligned, B) == elsewhere
    assert way(compiled, X, B, out=unaligned) == elsewhere
    assert way(compiled, X[::1], B) == CHAIN  # of this process


def test_bytes_in_which_a_later_step_reads_an_output_are_filled_here(monkeypatch):
    compiled, *_ = two_steps(monkeypatch)
    memory = Memory.allocate(64)
    later = "in the background: a later partition reads an output that lies in bytes of the caller's memory"
    assert way(compiled, X, out=[memory.view(0, 16), None]) == later
    assert way(compiled, X, out=[memory.view(0, 16, np.float32), None]) == CHAIN
    assert way(compiled, X, out=[None, memory.view(0, 16)]) == CHAIN  # nobody reads that
    assert way(compiled, X, out=[np.empty(16, np.uint8), None]) == CHAIN


def test_integers_of_other_sizes_are_converted_here():
    compiled = formed(WIDE)
    assert (
        compiled.execute_fenced(N).way
        == "in the background: numbers of 16 or 64 bits are converted before and after it"
    )
    out = [np.zeros(3, np.int64), None]
    assert compiled.execute_fenced(N, out=out).way.endswith("converted before and after it")
    assert formed(SIXTEEN, kind=FLOATS).execute_fenced(N.astype(np.int16)).way.endswith("converted before and after it")


def test_one_driver_with_fences_is_enough(monkeypatch):
    for_nothing(monkeypatch)
    device = Launching(takes=lambda n: n == 0)
    compiled = nnhal.compile(two_outputs(), devices=[device, "reference"])
    fenced = compiled.execute_fenced(X)
    assert fenced.way == CHAIN
    device.launches[0].give(2 * X)
    assert fenced.result(LONG)[1].tolist() == [0, 2, 8, 18]
    assert nnhal.compile(sums(), devices=[Fake()]).execute_fenced(X, B).way == (
        "in the background: no driver supports fences"
    )


def test_options_that_may_change_are_the_same_for_all_steps_where_they_run_here():
    device = Launching()
    device.changeable = ("gain",)
    assert way(nnhal.compile(sums(), devices=[device]), X, B) == (
        "in the background: options may change between executions, and all partitions of one need the same"
    )


# ------------------------------------------------------------------------------------------------------ in the background


def test_several_steps_have_one_limit_from_the_fences_on(monkeypatch):
    """Each alone would keep it."""
    for_nothing(monkeypatch)
    clock = Clock().play(monkeypatch, chains, background, request_module, base_time)
    slow = [Fake(takes=lambda n, own=own: n == own, on_run=lambda: clock.advance(0.3)) for own in (0, 1)]
    compiled = nnhal.compile(sums(2), devices=slow)
    assert len(compiled.placement.steps) == 2
    with pytest.raises(nnhal.MissedDeadline):
        compiled.execute_fenced(X, B, after=0.5).result(LONG)
    assert compiled.execute_fenced(X, B, after=LONG).result(LONG).tolist() == [2, 3, 4, 5]


def test_room_that_turns_out_too_small_is_the_callers_mistake():
    compiled = nnhal.compile(sums(), devices="reference")
    fenced = compiled.execute_fenced(X, B, out=np.empty(15, np.uint8))
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=r"fenced execution: output 0 needs shape \[4\]"):
            fenced.result(LONG)


def test_in_the_background_time_is_measured_where_asked_for():
    compiled = nnhal.compile(sums(), devices=[Fake()])
    for measure in (True, False):
        fenced = compiled.execute_fenced(X, B, measure=measure)
        fenced.result(LONG)
        found = fenced.get_execution_info()
        assert all((figure is not None) == measure for timing in found for figure in timing)
