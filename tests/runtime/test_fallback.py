"""What fails on a device and is tried on the CPU, what never is, and what is kept and told of it."""

import itertools
import threading
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import force_setattr

import nnhal
from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import BadState, InvalidRequest, MissedDeadline, OperationFailed
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.request import Control, Request, Timing
from nnhal.runtime import discovery, execute
from nnhal.runtime.execute import buffers_too_small
from nnhal.runtime.placement import WHOLE
from tests.models import make_model
from tests.runtime.devices import Fake, failing, for_nothing, refused
from tests.runtime.graphs import extended, sums
from tests.runtime.test_execution import LONG, Own, relued, two_outputs, wait_until
from tests.waiting import LIMIT

X, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
PAGE = 1 << 16


def broken() -> None:
    raise OperationFailed("broken")


def whole(on_run: Callable[[], None], **more: Any) -> nnhal.Compiled:
    return nnhal.compile(sums(), devices=[Fake(on_run=on_run)], **{"fallback": "allow", **more})


def of_two(on_run: Callable[[], None], at: int = 1, **more: Any) -> nnhal.Compiled:
    """x + 2 b, one of both additions on a device that may fail."""
    device = Fake(takes=lambda n: n == at, on_run=on_run)
    return nnhal.compile(sums(2), devices=[device, "reference"], **{"fallback": "allow", **more})


# ------------------------------------------------------------------------------------------------- the caller's values


def rows(on_run: Callable[[], None]) -> nnhal.Compiled:
    """Rows of an input by indices, on a device that may fail."""
    model = make_model(lambda b, x, ids: b.gather(x, 0, ids), (3, 2), ids=((2,), "TENSOR_INT32"))
    return nnhal.compile(model, devices=[Fake(on_run=on_run)], fallback="forbid")


WRONG = np.ones((3, 2), np.float32), np.int32([0, 3])
BESIDE = r"broken; the values of input ids break a rule, give others: GATHER #0: indices has 3, must be from 0 to 2$"


def test_a_failure_names_the_input_whose_values_break_a_rule_and_keeps_its_cause_and_stack():
    with pytest.raises(OperationFailed, match=BESIDE) as found:
        rows(broken)(*WRONG)
    assert type(found.value) is OperationFailed and "in broken" in found.value.stack


def test_a_failure_at_right_values_is_not_explained():
    with pytest.raises(OperationFailed, match=r"broken$"):
        rows(broken)(WRONG[0], np.int32([0, 2]))


@pytest.mark.parametrize("kind", [nnhal.DriverFailed, nnhal.ContractBroken])
def test_a_drivers_own_fault_stays_its_own_whatever_the_values_are(kind: type[nnhal.NnhalError]):
    error = KeyError("table") if kind is nnhal.DriverFailed else kind("two answers")
    with pytest.raises(kind) as found:
        rows(failing(error))(*WRONG)
    assert "ids" not in str(found.value) and (kind is not nnhal.DriverFailed or found.value.__cause__ is error)


# ----------------------------------------------------------------------------------------------------------- never


class Timely(Prepared):
    """A prepared model that keeps its deadline itself, as one in another process does, and misses it."""

    timely = True

    def __init__(self, error: MissedDeadline) -> None:
        self.error = error

    def run(self, request: Request, control: Control) -> Timing | None:
        raise self.error


class Late(Fake):
    name = "late"

    def __init__(self, at: int, error: MissedDeadline, *, timely: bool = True) -> None:
        super().__init__(takes=lambda n: n == at)
        self.error, self.timely_ones = error, timely

    def prepare(self, model: nnhal.Model, hints: Hints) -> Prepared:
        made = Timely(self.error)
        made.timely = self.timely_ones
        return made


@pytest.mark.parametrize(
    ("at", "timely", "error", "status"),
    [
        (0, True, MissedDeadline("late", persistent=True), ErrorStatus.MISSED_DEADLINE_PERSISTENT),
        (1, True, MissedDeadline("late", persistent=True), ErrorStatus.MISSED_DEADLINE_TRANSIENT),
        (1, True, MissedDeadline("late"), ErrorStatus.MISSED_DEADLINE_TRANSIENT),
        (1, False, MissedDeadline("late", persistent=True), ErrorStatus.MISSED_DEADLINE_PERSISTENT),
    ],
)
def test_a_deadline_missed_after_other_partitions_ran_is_transient_by_a_process_that_cannot_know_their_time(
    at, timely, error, status, monkeypatch
):
    for_nothing(monkeypatch)
    devices = [Late(at, error, timely=timely), "reference"]
    with nnhal.compile(sums(2), devices=devices, fallback="forbid") as compiled:
        with pytest.raises(MissedDeadline, match="late") as caught:
            compiled.run(X, B, deadline=LONG)
        assert (caught.value.status, type(caught.value)) == (status, MissedDeadline)


WAYS = {
    "run": lambda compiled: compiled.run(X, B, deadline=LONG),
    "burst": lambda compiled: compiled.burst().run(X, B, deadline=LONG),
    "fenced": lambda compiled: compiled.execute_fenced(X, B, deadline=LONG).result(LIMIT),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("at", "text"), [(0, "the execution was not begun"), (1, "other partitions of the execution have run")]
)
def test_a_refusal_says_that_the_execution_was_not_begun_only_where_no_partition_ran(way, at, text, monkeypatch):
    for_nothing(monkeypatch)
    with of_two(refused, at) as compiled, pytest.raises(MissedDeadline, match=f"until the deadline; {text}$") as caught:
        WAYS[way](compiled)
    assert caught.value.status == ErrorStatus.MISSED_DEADLINE_PERSISTENT


def test_a_loop_that_ran_too_long_after_other_partitions_is_still_a_loop_timeout(monkeypatch):
    for_nothing(monkeypatch)
    devices = [Late(1, nnhal.LoopTimeout("late")), "reference"]
    compiled = nnhal.compile(sums(2), devices=devices, fallback="forbid")
    with compiled, pytest.raises(nnhal.LoopTimeout, match="late"):
        compiled.run(X, B, deadline=LONG)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("mine"),
        nnhal.OutputInsufficientSize("mine", [None]),
        BadState("mine"),
        nnhal.LoopTimeout("mine"),
    ],
)
@pytest.mark.parametrize("compiled", [whole, of_two])
def test_what_is_the_callers_to_hear_is_never_tried_again(compiled, error, monkeypatch):
    for_nothing(monkeypatch)
    model = compiled(failing(error))
    for run in (lambda: model(X, B), lambda: model.run(X, B, measure=True), lambda: model.run(X, B, deadline=LONG)):
        with pytest.raises(type(error), match="mine"):
            run()
    assert model.placement.live.total == 0


@pytest.mark.parametrize("compiled", [whole, of_two])
def test_a_deadline_that_passes_in_a_driver_is_missed_and_nothing_is_tried_again(compiled, monkeypatch):
    for_nothing(monkeypatch)
    gate = threading.Event()
    model = compiled(lambda: gate.wait(LIMIT))
    with pytest.raises(nnhal.MissedDeadline):
        model.run(X, B, deadline=0.05)
    gate.set()
    assert model.placement.live.total == 0


@pytest.mark.parametrize("timely", [False, True])
def test_a_step_does_not_begin_after_a_cancellation(timely, monkeypatch):
    """Nor where the driver ends in time by itself."""
    for_nothing(monkeypatch)
    began = []
    first = Fake(takes=lambda n: n == 0)
    second = Fake(takes=lambda n: n == 1, on_run=lambda: began.append(1))
    second.name = "second"
    compiled = nnhal.compile(sums(2), devices=[first, second])
    (prepared,) = first.prepared
    for line in compiled._caller.lines:
        line.timely = timely
    execution: list[nnhal.Execution] = []
    ready = threading.Event()
    run = prepared.inner.run

    def cancelled_at_its_end(request: Request, control: Control) -> None:
        run(request, control)
        assert ready.wait(LONG)
        execution[0].cancel()

    prepared.inner.run = cancelled_at_its_end  # type: ignore[method-assign]
    execution.append(compiled.submit(X, B))
    ready.set()
    with pytest.raises(nnhal.Cancelled):
        execution[0].result(LONG)
    compiled.close()
    assert began == []


@pytest.mark.parametrize("compiled", [whole, of_two])
def test_without_fallback_the_drivers_error_is_raised(compiled, monkeypatch):
    for_nothing(monkeypatch)
    model = compiled(broken, fallback="forbid")
    for run in (lambda: model(X, B), lambda: model.run(X, B, measure=True)):
        with pytest.raises(OperationFailed, match=r"broken$"):
            run()
    assert model.placement.live.total == 0


def test_the_cpu_does_not_take_over_from_itself(monkeypatch):
    compiled, calls = nnhal.compile(sums(), devices="reference", fallback="allow"), []

    def fail(*_: object) -> None:
        calls.append(1)
        raise OperationFailed("of the CPU")

    monkeypatch.setattr(compiled._caller.lines[0], "run", fail)
    for run in (lambda: compiled(X, B), lambda: compiled.run(X, B, measure=True)):
        with pytest.raises(OperationFailed, match="of the CPU"):
            run()
    assert len(calls) == 2 and compiled.placement.live.total == 0


def test_operations_of_extensions_never_fall_back():
    device = Own(lambda request, control: broken())
    device.extensions = ("com.example.falls",)
    device.supports = lambda model: [True, False]  # type: ignore[assignment, method-assign]
    compiled = nnhal.compile(extended("com.example.falls"), devices=[device, "reference"], fallback="allow")
    assert compiled.placement.devices() == {"own": 1, "reference": 1}
    for run in (lambda: compiled(X), lambda: compiled.run(X, measure=True)):
        with pytest.raises(OperationFailed, match="broken"):
            run()
    assert compiled.placement.live.total == 0


# ------------------------------------------------------------------------------------------------------------- once


@pytest.mark.parametrize("measure", [False, True])
@pytest.mark.parametrize("at", [0, 1])
def test_a_step_that_fails_is_that_step_on_the_cpu(at, measure, monkeypatch):
    for_nothing(monkeypatch)
    compiled = of_two(broken, at)
    result, report = compiled.run(X, B, measure=measure)
    assert result.tolist() == [2, 3, 4, 5]
    (fell,) = compiled.placement.live
    assert (fell.step, fell.device, fell.count) == (at, "fake", 1)
    assert fell.why.startswith(f"partition {at} failed on fake: ") and fell.why.endswith("broken; trying it on the CPU")
    if measure:
        assert report.fallbacks == [fell.why] and report.notes == []
        assert [(s.device, s.operations) for s in report.steps] == [("reference", 1)] * 2
    else:
        assert report is None


def test_what_fails_as_a_whole_says_so():
    compiled = whole(broken)
    assert compiled(X, B).tolist() == [1, 2, 3, 4]
    (fell,) = compiled.placement.live
    assert fell.step == WHOLE and fell.why.startswith("execution failed on fake: ")
    assert fell.why.endswith("broken; trying the whole model on the CPU")


def test_a_step_that_fails_on_the_cpu_too_is_tried_with_the_whole_model(monkeypatch):
    for_nothing(monkeypatch)
    compiled = of_two(broken)
    monkeypatch.setattr(compiled._caller.fallbacks, "get", once_failing(compiled._caller.fallbacks.get))
    result, report = compiled.run(X, B, measure=True, out=(out := np.empty(4, np.float32)))
    assert result is out and out.tolist() == [2, 3, 4, 5]
    assert [f.step for f in compiled.placement.live] == [WHOLE, 1] and compiled.placement.live.total == 2
    assert [text.split(":")[0] for text in report.fallbacks] == [
        "partition 1 failed on fake",
        "execution failed on a step",
    ]


def once_failing(get: Callable[[int], Any]) -> Callable[[int], Any]:
    def fail(number: int) -> Any:
        if number != WHOLE:
            raise OperationFailed("on the CPU too")
        return get(number)

    return fail


def test_where_the_cpu_fails_as_well_its_error_has_the_first_as_its_cause(monkeypatch):
    compiled = whole(broken)

    monkeypatch.setattr(compiled._caller.fallbacks, "get", failing(OperationFailed("no room")))
    with pytest.raises(OperationFailed, match="no room") as caught:
        compiled(X, B)
    assert "broken" in str(caught.value.__cause__)


def test_room_that_is_too_small_is_told_by_the_cpu_as_well():
    compiled = whole(broken)
    with pytest.raises(
        nnhal.OutputInsufficientSize, match=r"^execution: output 0 needs shape \[4\]; the memory"
    ) as caught:
        compiled(X, B, out=np.empty(15, np.uint8))
    assert caught.value.shapes == ((4,),)
    room = np.zeros(20, np.uint8)
    assert np.shares_memory(compiled(X, B, out=room), room) and room.view(np.float32)[:4].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("compiled", [whole, of_two])
def test_falling_back_warns_only_where_it_was_asked_to(compiled, monkeypatch):
    for_nothing(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(broken)(X, B)
    warned = compiled(broken, fallback="warn")
    with pytest.warns(nnhal.FallbackWarning, match="broken; trying") as found:
        warned(X, B)
    assert [each.filename for each in found] == [__file__] * len(found) and len(found) == 1


def test_a_step_is_prepared_for_the_cpu_once_and_closed_with_the_model(monkeypatch):
    closed, cpu = [], discovery.cpu()
    real = type(cpu).prepare

    def prepare(self: Any, *given: Any) -> Any:
        prepared = real(self, *given)
        prepared.close = lambda: closed.append(1)
        return prepared

    compiled = whole(broken)
    monkeypatch.setattr(type(cpu), "prepare", prepare)
    for _ in range(3):
        compiled(X, B)
    assert list(compiled._caller.fallbacks.made()) == [WHOLE]
    compiled.close()
    assert closed == [1]


def test_what_takes_over_is_prepared_though_the_deadline_of_the_compilation_has_passed():
    compiled = whole(broken, deadline=LONG)
    force_setattr(compiled._caller.plan.settings, "deadline", 1)
    assert compiled(X, B).tolist() == [1, 2, 3, 4]


# ------------------------------------------------------------------------------------------ shapes that turn out late


def test_every_output_that_is_too_small_is_named_with_all_shapes():
    compiled = nnhal.compile(two_outputs(), devices="reference")
    with pytest.raises(nnhal.OutputInsufficientSize) as caught:
        compiled(X, out=[np.empty(1, np.uint8), np.empty(2, np.uint8)])
    assert str(caught.value) == (
        "execution: output 0 needs shape [4], output 1 needs shape [4]; the memory given is smaller"
    )
    assert (
        str(buffers_too_small([None, (2, 3)], [0])) == "execution: output 0 needs shape []; the memory given is smaller"
    )


def test_a_later_step_is_not_run_for_room_that_is_too_small(monkeypatch):
    for_nothing(monkeypatch)
    ran = []
    device = Fake(takes=lambda n: n == 1, on_run=lambda: ran.append(1))
    compiled = nnhal.compile(two_outputs(), devices=[device, "reference"])
    with pytest.raises(nnhal.OutputInsufficientSize, match=r"output 0 needs shape \[4\]") as caught:
        compiled(X, out=[np.empty(1, np.uint8), None])
    assert caught.value.shapes == ((4,), (4,)) and ran == []


def test_shapes_of_outputs_of_several_steps_turn_out_one_after_the_other(monkeypatch):
    for_nothing(monkeypatch)
    b = nnhal.Builder("open")
    x = b.input((None,), name="x")
    first = b.relu(x)
    model = b.finish([x], [b.add(first, first), first])
    compiled = nnhal.compile(model, devices=[Fake(takes=lambda n: n == 1), "reference"])
    assert [r.tolist() for r in compiled(X)] == [[0, 2, 4, 6], [0, 1, 2, 3]]
    with pytest.raises(nnhal.OutputInsufficientSize, match=r"output 1 needs shape \[4\]") as caught:
        compiled(X, out=[None, np.empty(3, np.uint8)])
    assert caught.value.shapes[1] == (4,)
    with pytest.raises(nnhal.OutputInsufficientSize, match=r"output 0 needs shape \[4\]") as caught:
        compiled(X, out=[np.empty(3, np.uint8), None])
    assert caught.value.shapes == ((4,), (4,))


# ---------------------------------------------------------------------------------------------------- intermediates


def kept(bytes_each: int, monkeypatch: pytest.MonkeyPatch) -> tuple[nnhal.Compiled, int]:
    for_nothing(monkeypatch)
    size = bytes_each // 4
    model = sums(3, (size,))
    seen = []

    def run(request: Request, control: Control) -> None:
        seen.append(None if request.rooms is None else request.rooms[0])
        request.write(0, request.inputs[0] + request.inputs[1])  # type: ignore[operator]

    device = Own(run)
    real = device.supports
    device.supports = lambda model: [n == 1 for n, _ in enumerate(real(model))]  # type: ignore[assignment, method-assign]
    compiled = nnhal.compile(model, devices=[device, "reference"])
    x = np.ones(size, np.float32)
    for _ in range(3):
        assert (compiled(x, x) == 4).all()
    return compiled, len({id(room) for room in seen if room is not None})


def test_intermediates_of_64_kib_and_more_keep_their_memory_for_the_next_execution(monkeypatch):
    compiled, rooms = kept(PAGE, monkeypatch)
    assert rooms == 1 and compiled.memory.between == 2 * PAGE
    compiled.close()
    assert compiled._caller.kept() == 0
    compiled, rooms = kept(PAGE - 4, monkeypatch)
    assert rooms == 0 and compiled.memory.between == 0


def test_executions_at_once_have_intermediates_of_their_own(monkeypatch):
    for_nothing(monkeypatch)
    meet = threading.Barrier(2, timeout=LONG)
    device = Fake(takes=lambda n: n == 1, on_run=meet.wait)
    compiled = nnhal.compile(sums(3, (PAGE // 4,)), devices=[device, "reference"])
    x = np.ones(PAGE // 4, np.float32)
    executions = [compiled.submit(x * n, x) for n in (1, 5)]
    assert [float(e.result(LONG)[0]) for e in executions] == [4, 8]
    wait_until(lambda: compiled.memory.between == 4 * PAGE)


# ------------------------------------------------------------------------------------------------------------ report


def test_a_report_has_what_each_step_took_and_only_what_was_measured(monkeypatch):
    for_nothing(monkeypatch)
    clock = itertools.count(1000, 70)
    compiled = nnhal.compile(sums(4), devices=[Fake(takes=lambda n: n in (1, 2)), "reference"])
    (prepared,) = compiled._caller.plan.steps[1].device.prepared
    real = prepared.inner.run
    prepared.inner.run = lambda request, control: (real(request, control), Timing(3, 5))[1]
    monkeypatch.setattr(execute, "time", SimpleNamespace(monotonic_ns=lambda: next(clock)))
    _, report = compiled.run(X, B, measure=True)
    assert [(s.device, s.operations, s.total) for s in report.steps] == [
        ("reference", 1, 70), ("fake", 2, 70), ("reference", 1, 70),
    ]  # fmt: skip
    assert report.steps[1].driver == Timing(3, 5) and report.fallbacks == report.notes == []


def test_time_on_devices_is_that_of_all_steps_or_of_none(monkeypatch):
    for_nothing(monkeypatch)
    compiled = nnhal.compile(sums(2), devices=[Fake(takes=lambda n: n == 1), "reference"])
    _, report = compiled.run(X, B, measure=True)
    assert report.on_device().on_device == sum(s.driver.on_device for s in report.steps) > 0
    report.steps[0] = report.steps[0].__class__("device", 1, 5, None)
    assert report.on_device() == Timing()


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        ({}, (None, 2_000_000_000, False)),
        ({"loop_timeout": 3}, (None, 3_000_000_000, False)),
        ({"measure": True}, (None, 2_000_000_000, True)),
        ({"deadline": LONG}, (True, 2_000_000_000, False)),
    ],
)
@pytest.mark.parametrize("steps", [1, 2])
def test_whatever_is_asked_for_reaches_every_driver(steps, asked, seen, monkeypatch):
    for_nothing(monkeypatch)
    controls: list[Control] = []

    def run(request: Request, control: Control) -> None:
        controls.append(control)
        request.write(0, request.inputs[0] + request.inputs[1])  # type: ignore[operator]

    devices = [Own(run), Own(run)][:steps]
    for n, device in enumerate(devices):
        device.name = f"own{n}"
        if steps > 1:
            device.supports = lambda model, n=n: [place == n for place in range(2)]  # type: ignore[assignment, method-assign]
    compiled = nnhal.compile(sums(steps), devices=devices)
    _, report = compiled.run(X, B, **asked)
    assert len(controls) == steps and (report is not None) == bool(asked.get("measure"))
    for control in controls:
        assert ((control.deadline is not None) or None, control.loop_timeout, control.measure) == seen


def test_a_buffer_of_another_shape_than_the_rooms_is_refused_where_it_is_used():
    compiled = nnhal.compile(relued(None), devices="reference")
    a = nnhal.allocate([(compiled, "output", 0)], shape=[3])
    with pytest.raises(nnhal.OutputInsufficientSize, match=r"output 0 needs shape \[4\]"):
        compiled(X, out=a)
    assert compiled(X[:3], out=a) is a and a.read().tolist() == [0, 1, 2]
