"""How control flow that the runtime runs itself ends, what falls back, what it keeps on devices and in files."""

import os
import signal
import threading
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperandType, operation_name
from nnhal.base.errors import (
    BadState,
    Cancelled,
    DeadObject,
    DriverFailed,
    InvalidArgument,
    LoopTimeout,
    MissedDeadline,
    OperationFailed,
)
from nnhal.base.extensions import register_extension
from nnhal.base.levels import V1_1
from nnhal.drivers.samples.full import FullV1_3
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.hal.request import Control, Request, Timing
from nnhal.hal.utilities import is_extension
from nnhal.hal.wrappers import Limited, WithHalLevel
from nnhal.ipc.client.buffer import RemoteContents
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from nnhal.runtime import discovery, interpreter
from nnhal.runtime.allocate import allocate
from tests.models import counted_loop, make_model, make_subgraph
from tests.runtime.devices import failing, for_nothing, refused, to_be_killed
from tests.runtime.test_flow import (
    LONG,
    TIMES,
    Some,
    X,
    added_or_squared,
    branching,
    doubling,
    endless,
    growing,
    nested,
    times_of,
    two,
    where,
)
from tests.waiting import Clock, together

CONTROL = "IF", "WHILE"


@pytest.fixture(autouse=True)
def _crossings_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for_nothing(monkeypatch)


def adder(**on: Callable[[], None]) -> Some:
    return Some("adder", "ADD LESS", **on)


def nth(number: int, act: Callable[[], object]) -> Callable[[], None]:
    """Acts the number-th time that it is called."""
    calls = list[None]()

    def call() -> None:
        calls.append(None)
        if len(calls) == number:
            act()

    return call


class Whole(Limited):
    """A device that takes all but control flow."""

    def __init__(self, inner: Device) -> None:
        super().__init__(inner, lambda m, n: operation_name(m.main.operations[n].type) not in CONTROL)
        self.buffers: list[Buffer] = []

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        self.buffers.append(super().allocate(desc, roles))
        return self.buffers[-1]


@pytest.fixture
def no_loop_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is: by default a loop has two seconds."""
    Clock().play(monkeypatch, interpreter)


# ---------------------------------------------------------------------------------------------------------- how it ends


@pytest.mark.parametrize("fallback", ["allow", "warn", "forbid"])
def test_a_loop_that_takes_too_long_ends_and_never_falls_back(fallback):
    compiled = nnhal.compile(endless(), devices=[adder()], fallback=fallback)
    assert where(compiled) == "runtime"
    with pytest.raises(LoopTimeout, match=r"WHILE #0: has run for .*loop time-out of 30 ms"):
        compiled.run(times_of(0), loop_timeout=0.03)
    assert compiled.placement.live.total == 0


@pytest.mark.parametrize("how", ["deadline", "cancelled"])
def test_who_gives_up_is_not_kept_and_gets_nothing_afterwards(how):
    held, begun, ended = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        held.wait(LONG)
        ended.set()

    device = adder(on_run=nth(4, hold))
    compiled = nnhal.compile(doubling(), devices=[device])
    out = np.full(4, -1, np.float32)
    if how == "deadline":
        with pytest.raises(MissedDeadline):
            compiled.run(X, times_of(8), out=out, deadline=0.2)
    else:
        execution = compiled.submit(X, times_of(8), out=out)
        begun.wait(LONG)
        execution.cancel()
        with pytest.raises(Cancelled):
            execution.result(LONG)
    assert not ended.is_set()
    held.set()
    assert ended.wait(LONG)
    assert compiled(X, times_of(2)).tolist() == [0, 4, 8, 12]
    assert (out == -1).all()
    compiled.close()
    assert all(prepared.closed for prepared in device.prepared)


def test_a_model_is_closed_with_all_that_is_inside():
    devices = two()
    compiled = nnhal.compile(nested(), devices=devices)
    prepared = [each for device in devices if isinstance(device, Some) for each in device.prepared]
    assert len(prepared) == 6 and not any(each.closed for each in prepared)
    compiled.close()
    assert all(each.closed for each in prepared)
    with pytest.raises(nnhal.Closed):
        compiled(X, times_of(1))


# ------------------------------------------------------------------------------------------------------- what falls back


def test_a_step_inside_that_fails_is_run_on_the_cpu_and_the_others_are_not():
    compiled = nnhal.compile(
        doubling(), devices=[adder(on_run=nth(5, failing(OperationFailed("worn out"))))], fallback="allow"
    )
    y, report = compiled.run(X, times_of(4), measure=True)
    assert y.tolist() == (X * 16).tolist()
    (text,) = report.fallbacks
    assert text.startswith("condition of operation #0: partition 0 failed on adder: device adder: worn out")
    (fell,) = compiled.placement.live
    assert (fell.step, fell.device, fell.count) == (0, "runtime", 1) and "worn out" in fell.why
    inside = compiled.placement.inside[0].placement.live
    assert [(each.step, each.device) for each in inside] == [(0, "adder")]


@pytest.mark.parametrize("how", ["call", "burst", "callback"])
@pytest.mark.parametrize("model", [doubling, nested])
def test_an_execution_of_which_several_turns_fell_back_counts_once(model, how, monkeypatch):
    if how == "callback":
        monkeypatch.setenv("NNHAL_SYNC_EXEC", "0")
    on = failing(OperationFailed("worn out"))
    compiled = nnhal.compile(model(), devices=[adder(on_run=on), Some("multiplier", "MUL")], fallback="allow")
    run = compiled.burst() if how == "burst" else compiled
    for _ in range(3):
        _, report = run.run(X, times_of(3), measure=True)
        assert len(report.fallbacks) > 3  # each of them
    told = compiled.placement.live.to_dict()
    assert (told["executions"], told["fell_back"]) == (3, 3)
    for branch in compiled.placement.inside:
        told = branch.placement.live.to_dict()
        assert 0 < told["fell_back"] <= told["executions"] * len(branch.placement.steps)


def test_a_step_that_fails_after_something_inside_fell_back_counts_once(monkeypatch):
    compiled = nnhal.compile(
        branching(), devices=[Some("adder", "ADD", on_run=failing(OperationFailed("worn out")))], fallback="allow"
    )
    compiled(np.array([True]), X)
    fallbacks = compiled._caller.lines[0].prepared.inner._branches[0].runner.fallbacks  # type: ignore[attr-defined]
    monkeypatch.setattr(fallbacks.get(0).prepared, "_run", failing(OperationFailed("of the CPU")))
    compiled(np.array([True]), X)
    told = compiled.placement.live.to_dict()
    assert (told["executions"], told["fell_back"]) == (2, 2)


def test_an_execution_that_ends_early_after_something_inside_fell_back_counts_once():
    on = failing(OperationFailed("worn out"))
    compiled = nnhal.compile(endless(), devices=[adder(on_run=on)], fallback="allow")
    with pytest.raises(LoopTimeout):
        compiled.run(times_of(0), loop_timeout=0.05)
    told = compiled.placement.live.to_dict()
    assert (told["executions"], told["fell_back"]) == (1, 1)


def test_what_fails_on_the_cpu_too_fails_with_its_own_reason():
    on = failing(OperationFailed("worn out"))
    with pytest.raises(OperationFailed, match="worn out"):
        nnhal.compile(doubling(), devices=[adder(on_run=on)])(X, times_of(2))


def test_a_subgraph_that_does_not_prepare_is_placed_elsewhere_by_itself():
    device = adder(on_prepare=nth(2, failing(OperationFailed("out of order"))))  # the body
    compiled = nnhal.compile(doubling(), devices=[device], fallback="allow")
    condition, body = compiled.placement.inside
    assert (condition.placement.devices(), body.placement.devices()) == ({"adder": 1}, {"reference": 2})
    (event,) = compiled.placement.events
    assert event == ("adder failed to prepare operations #0 to #1: device adder: out of order; placing them elsewhere")
    assert compiled(X, times_of(2)).tolist() == [0, 4, 8, 12]


def test_where_the_runtime_cannot_prepare_what_is_inside_the_cpu_has_it_whole(monkeypatch):
    cpu = discovery.cpu()
    prepare = type(cpu).prepare

    def whole_only(self: Any, model: Model, hints: Hints) -> Prepared:
        if not model.referenced:
            raise OperationFailed("of parts it has had enough")
        return prepare(self, model, hints)

    device = adder(on_prepare=failing(OperationFailed("out of order")))
    compiled = nnhal.compile(doubling(), devices=[device, Some("multiplier", "MUL")], fallback="allow")
    assert [step.device for step in compiled.placement.steps] == ["runtime"]
    assert compiled.placement.inside[0].placement.devices() == {"reference": 1}
    monkeypatch.setattr(type(cpu), "prepare", whole_only)
    compiled = nnhal.compile(doubling(), devices=[device, Some("multiplier", "MUL")], fallback="allow")
    assert where(compiled) == "reference" and compiled.placement.inside == ()
    *_, last = compiled.placement.events
    assert last.startswith("runtime failed to prepare operations #0") and last.endswith("placing them elsewhere")
    assert compiled(X, times_of(2)).tolist() == [0, 4, 8, 12]


def test_what_fails_everywhere_is_tried_where_it_was_on_the_cpu_alone_and_as_a_whole(monkeypatch):
    compiled = nnhal.compile(
        branching(), devices=[Some("adder", "ADD", on_run=failing(OperationFailed("worn out")))], fallback="allow"
    )
    assert compiled(np.array([True]), X).tolist() == [0, 2, 4, 6]
    (fell,) = compiled.placement.live
    assert fell.why.startswith("then of operation #0: partition 0 failed on adder")
    fallbacks = compiled._caller.lines[0].prepared.inner._branches[0].runner.fallbacks  # type: ignore[attr-defined]
    monkeypatch.setattr(fallbacks.get(0).prepared, "_run", failing(OperationFailed("of the CPU")))
    _, report = compiled.run(np.array([True]), X, measure=True)
    inside, whole = report.fallbacks
    assert inside.startswith("then of operation #0: partition 0 failed on adder") and "worn out" in inside
    assert whole.startswith("partition 0 failed on runtime") and "of the CPU" in whole


def test_what_was_prepared_inside_is_closed_where_the_rest_does_not_prepare():
    device = adder(on_prepare=nth(2, failing(OperationFailed("out of order"))))
    with pytest.raises(OperationFailed, match="out of order"):
        nnhal.compile(doubling(), devices=[device])
    assert [each.closed for each in device.prepared] == [True]


@pytest.mark.usefixtures("no_loop_times_out")
@pytest.mark.parametrize("fallback", ["allow", "forbid"])
def test_when_a_process_dies_with_what_a_loop_keeps_there_it_is_run_again_elsewhere_or_told(fallback, monkeypatch):
    monkeypatch.setattr(interpreter, "LARGE", 1)
    resilient = to_be_killed()
    device = Whole(resilient)
    killer = Some("killer", "LESS", on_run=nth(3, lambda: os.kill(resilient.pid, signal.SIGKILL)))
    model = doubling(more=lambda b, x: b.add(x, b.abs(x)))
    device.takes = lambda m, n: operation_name(m.main.operations[n].type) in ("ADD", "ABS")
    compiled = nnhal.compile(model, devices=[killer, device], fallback=fallback)
    assert where(compiled) == "runtime"
    if fallback == "forbid":
        with pytest.raises(DeadObject):
            compiled(X, times_of(5))
    else:
        assert compiled(X, times_of(5)).tolist() == (X * 32).tolist()
        assert any("the driver process" in each.why for each in compiled.placement.live)
    assert len(device.buffers) > 0
    assert compiled(X, times_of(3)).tolist() == (X * 8).tolist()  # the process has come back
    compiled.close()
    resilient.close()


# ------------------------------------------------------------------------------------------------------------ how it runs


@pytest.mark.usefixtures("no_loop_times_out")
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_every_way_to_execute_gives_the_same(isolation):
    devices: list[Any] = two() if isolation == "none" else [Whole(to_be_killed())]
    for model, x, expected in (
        (doubling(), (X, times_of(3)), X * 8),
        (branching(), (np.array([False]), X), X * X),
    ):
        compiled = nnhal.compile(model, devices=devices)
        with compiled.burst() as burst:
            assert [burst(*x).tolist() for _ in range(3)] == [expected.tolist()] * 3
        fenced = compiled.execute_fenced(*x)
        assert fenced.result(LONG).tolist() == expected.tolist() and "in the background" in fenced.way
        assert compiled.submit(*x).result(LONG).tolist() == expected.tolist()
        bound = compiled.bind(*x)
        assert (bound().tolist(), bound().tolist()) == (expected.tolist(), expected.tolist())
        compiled.close()


def test_a_step_beside_control_flow_is_launched_with_it_in_the_background():
    resilient = to_be_killed()
    b = nnhal.Builder()
    condition, x = b.input((1,), "TENSOR_BOOL8"), b.input((4,))
    y = b.if_(condition, *added_or_squared(b), [b.add(x, [1.0])], out_type="TENSOR_FLOAT32")
    compiled = nnhal.compile(b.finish([condition, x], [y]), devices=[Whole(resilient)])
    fenced = compiled.execute_fenced(np.array([True]), X)
    assert fenced.result(LONG).tolist() == [2, 4, 6, 8]
    assert fenced.way == "in the background: the runtime runs control flow itself"
    compiled.close()
    resilient.close()


def test_executions_with_callbacks_give_the_same_and_end_in_time(monkeypatch):
    monkeypatch.setenv("NNHAL_SYNC_EXEC", "0")
    compiled = nnhal.compile(nested(), devices=two())
    assert compiled(X, times_of(3)).tolist() == (X * 64).tolist()
    with pytest.raises(LoopTimeout):
        nnhal.compile(endless(), devices=[adder()]).run(times_of(0), loop_timeout=0.02)


@pytest.mark.parametrize(
    ("number", "text"), [(1, "was not begun"), *((n, "other partitions of the execution have run") for n in (2, 3, 4))]
)
def test_a_refusal_inside_a_loop_says_that_the_execution_was_not_begun_only_before_its_first_partition(number, text):
    """The partitions are the condition, the body, and so on."""
    compiled = nnhal.compile(doubling(), devices=[adder(on_run=nth(number, refused))], fallback="forbid")
    with pytest.raises(MissedDeadline, match=f"{text}$"):
        compiled.run(X, times_of(2), deadline=LONG)


def test_a_burst_is_one_at_a_time_and_of_no_use_once_it_is_closed():
    inside: list[BaseException] = []

    def again() -> None:
        try:
            burst(X, times_of(1))
        except BadState as error:
            inside.append(error)

    compiled = nnhal.compile(doubling(), devices=[adder(on_run=nth(2, again))])
    with compiled.burst() as burst:
        assert burst(X, times_of(2)).tolist() == [0, 4, 8, 12] and len(inside) == 1
    with pytest.raises(nnhal.Closed):
        burst(X, times_of(2))
    assert compiled(X, times_of(2)).tolist() == [0, 4, 8, 12]


@pytest.mark.usefixtures("no_loop_times_out")
def test_a_burst_takes_another_while_one_that_was_given_up_is_still_inside():
    slow = threading.Event()
    compiled = nnhal.compile(doubling(), devices=[adder(on_run=nth(2, partial(slow.wait, 5)))])
    with compiled.burst() as burst:
        with pytest.raises(MissedDeadline):
            burst.run(X, times_of(2), deadline=0.05)
        assert burst(X, times_of(2)).tolist() == [0, 4, 8, 12]
        slow.set()
        assert burst(X, times_of(3)).tolist() == [0, 8, 16, 24]


def test_a_burst_says_what_steps_inside_are_run_by():
    with nnhal.compile(nested(), devices=two()).burst() as burst:
        assert burst.ways == ("partition 0 on runtime: burst",)
    old = WithHalLevel(Some("old", "ADD MUL LESS"), V1_1)
    with nnhal.compile(branching(), devices=[old]).burst() as burst:
        (way,) = burst.ways
        assert way.startswith("partition 0 on runtime: plain calls: ")
        assert burst(np.array([False]), X).tolist() == (X * X).tolist()


def test_a_report_says_how_often_each_subgraph_ran_and_what_its_steps_took():
    compiled = nnhal.compile(doubling(), devices=two())
    _, report = compiled.run(X, times_of(3), measure=True)
    (step,) = report.steps
    assert (step.device, step.operations) == ("runtime", 1)
    _, body = step.inside
    assert [(b.name, b.operation, b.runs) for b in step.inside] == [("condition", 0, 4), ("body", 0, 3)]
    assert [(s.device, s.operations) for s in body.steps] == [("adder", 2)]
    times = [s.driver.on_device for b in step.inside for s in b.steps]
    assert step.driver.on_device == report.on_device().on_device == sum(times)
    assert sum(s.total for b in step.inside for s in b.steps) <= step.total
    assert 0 < step.each[0] <= step.total


def test_times_of_loops_within_loops_are_added_up():
    compiled = nnhal.compile(nested(), devices=two())
    _, report = compiled.run(X, times_of(2), measure=True)
    body = report.steps[0].inside[1]
    branches = {b.name: b for step in body.steps for b in step.inside}
    assert body.runs == 3 and (branches["then"].runs, branches["else"].runs) == (2, 1)
    (loop,) = branches["then"].steps
    assert {b.name: b.runs for b in loop.inside} == {"condition": 6, "body": 4}


def test_memory_of_all_that_is_inside_counts():
    compiled = nnhal.compile(doubling(), devices=[Whole(discovery.cpu())])
    (step,) = compiled.memory.steps
    assert step.device == "runtime" and step.use.weights_in_place == 12  # 1 for the counter, two activations


def test_arrays_that_a_loop_keeps_count_as_what_is_kept_between_steps(monkeypatch):
    monkeypatch.setattr(interpreter, "LARGE", 5)
    compiled = nnhal.compile(doubling(), devices=two())
    assert compiled.memory.between == 0
    compiled(X, times_of(3))
    compiled(X, times_of(3))
    assert compiled.memory.between == 2 * X.nbytes


@pytest.mark.parametrize("count", [0, 3])
def test_a_loop_lets_go_of_what_it_was_given_when_it_has_ended(count):
    compiled = nnhal.compile(doubling(), devices=two())
    x, times = X.copy(), times_of(count)
    held = [weakref.ref(x), weakref.ref(times)]
    compiled(x, times)
    del x, times
    assert [ref() for ref in held] == [None, None]


def test_a_loop_lets_go_of_values_whose_shape_turned_out():
    compiled = nnhal.compile(doubling(stated=(None,), shape=(None,)), devices=two())
    x = np.zeros(1 << 20, np.float32)
    compiled(x, times_of(2))
    tracemalloc.start()
    try:
        compiled(x, times_of(2))
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < x.nbytes / 4 < x.nbytes <= most


def extended() -> tuple[Model, str]:
    """OP of an extension in one branch, NEG in the other."""
    extension = register_extension("com.example.inside", [], ["OP"])
    b = ModelBuilder("extended")
    condition, x = b.operand(OperandType.TENSOR_BOOL8, (1,)), b.operand(OperandType.TENSOR_FLOAT32, (4,))
    graphs = []
    for kind in (extension.operation("OP"), "NEG"):
        sub = b.subgraph()
        u, v = sub.operand(OperandType.TENSOR_FLOAT32, (4,)), sub.operand(OperandType.TENSOR_FLOAT32, (4,))
        sub.operation(kind, [u], [v])
        graphs.append(b.subgraph_operand(OperandType.SUBGRAPH, sub.finish_subgraph([u], [v])))
    y = b.operand(OperandType.TENSOR_FLOAT32, (4,))
    b.operation("IF", [condition, *graphs, x], [y])
    return b.finish([condition, x], [y], extensions=[(extension.name, extension.prefix)]), extension.name


class Extended(Device):
    """Takes the extension's operation, alone or within a branch; it always fails."""

    name, takes_whole = "extended", False

    def supports(self, model: Model) -> list[bool]:  # type: ignore[override]
        flow = [operation_name(o.type) in CONTROL for o in model.main.operations]
        return [
            self.takes_whole if each else is_extension(o.type)
            for each, o in zip(flow, model.main.operations, strict=True)
        ]

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        class Failing(Prepared):
            def run(self, request: Request, control: Control) -> None:
                raise OperationFailed("worn out")

        return Failing()


@pytest.mark.parametrize("whole", [False, True])
def test_operations_of_extensions_inside_never_fall_back(whole):
    model, name = extended()
    device = Extended()
    device.extensions, device.takes_whole = (name,), whole
    compiled = nnhal.compile(model, devices=[device], fallback="allow")
    assert where(compiled) == ("extended" if whole else "runtime")
    if not whole:
        assert compiled(np.array([False]), X).tolist() == (-X).tolist()
    for run in (compiled, lambda *x: compiled.run(*x, measure=True)):
        with pytest.raises(OperationFailed, match="worn out"):
            run(np.array([True]), X)
    assert compiled.placement.live.total == 0
    assert "no reference kernel" in discovery.cpu().supports(model)[0].reason


class Consuming(Some):
    """Says that it needs constants no more."""

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        prepared = super().prepare(model, hints)
        prepared.weights_consumed = True
        return prepared


def test_where_all_inside_needs_constants_no_more_the_model_has_none():
    compiled = nnhal.compile(doubling(), devices=[Consuming("adder", "ADD LESS")])
    (step,) = compiled._caller.plan.steps
    assert step.consumed and compiled._caller.plan.model.emptied
    assert all(inside.plan.model.emptied for inside in step.inside)
    assert compiled(X, times_of(2)).tolist() == [0, 4, 8, 12]
    mixed = nnhal.compile(nested(), devices=[Consuming("adder", "ADD LESS"), Some("multiplier", "MUL")])
    assert not mixed._caller.plan.model.emptied


def test_an_argument_of_control_flow_lies_in_a_shared_pool():
    compiled = nnhal.compile(doubling(), devices=two())
    given, taken = allocate([(compiled, "input", "x")]), allocate([(compiled, "output", 0)])
    assert given.device is None and "control flow" in given.reason
    given.write(X)
    assert compiled(given, times_of(3), out=taken) is taken
    assert taken.read().tolist() == (X * 8).tolist()


# ---------------------------------------------------------------------------------------------- what stays on a device


def counting(counts: Counter[str], name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*given: Any) -> Any:
        counts[name] += 1
        return method(*given)

    return counted


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often contents went into buffers of another process, and out of them."""
    counts = Counter[str]()
    for name in ("copy_from", "copy_to"):
        monkeypatch.setattr(RemoteContents, name, counting(counts, name, getattr(RemoteContents, name)))
    monkeypatch.setattr(interpreter, "LARGE", 1 << 12)
    return counts


@pytest.fixture
def device() -> Iterator[Whole]:
    resilient = to_be_killed()
    yield Whole(resilient)
    resilient.close()


def test_what_a_loop_carries_stays_on_the_device_that_reads_and_writes_it(device, copies):
    x = np.arange(2048, dtype=np.float32)
    compiled = nnhal.compile(doubling(x.shape), devices=[device])
    assert compiled(x, times_of(6)).tolist() == (x * 64).tolist()
    assert copies == {"copy_from": 1, "copy_to": 1} and len(device.buffers) == 2
    assert compiled(x + 1, times_of(1)).tolist() == (x * 2 + 2).tolist()
    assert compiled(x, times_of(0)).tolist() == x.tolist()
    assert copies == {"copy_from": 3, "copy_to": 3} and len(device.buffers) == 2  # the same again
    compiled.close()
    for buffer in device.buffers:
        with pytest.raises(nnhal.Closed):
            _ = buffer.shape


def test_what_a_loop_only_reads_goes_to_the_device_once(device, copies):
    x = np.arange(2048, dtype=np.float32)
    b = nnhal.Builder()
    y, step = b.input(x.shape), b.input(x.shape)
    kinds = TIMES, x.shape, x.shape
    first = make_subgraph(b, lambda s, n, *_: s.less(n, [5]), *kinds)
    second = make_subgraph(b, lambda s, n, z, more: [s.add(n, [1]), s.add(z, more)], *kinds)
    found = b.while_(
        first, second, [b.constant(times_of(0)), y, step], out_type=["TENSOR_INT32", "TENSOR_FLOAT32"], outputs=2
    )
    compiled = nnhal.compile(b.finish([y, step], [found[1]]), devices=[device])
    assert compiled(x, x * 2).tolist() == (x * 11).tolist()
    assert copies == {"copy_from": 2, "copy_to": 1} and len(device.buffers) == 3
    compiled.close()


def test_an_execution_that_ends_early_leaves_no_buffer_for_the_next(device, copies):
    x = np.arange(2048, dtype=np.float32)
    model = doubling(x.shape)
    compiled = nnhal.compile(model, devices=[device])
    with pytest.raises(LoopTimeout):
        compiled.run(x, times_of(1 << 30), loop_timeout=0.05)
    assert compiled(x, times_of(2)).tolist() == (x * 4).tolist()
    assert len(device.buffers) == 4
    with pytest.raises(nnhal.Closed):
        _ = device.buffers[0].shape
    compiled.close()


class Ticking(Clock):
    """A clock that goes on by 10 ms whenever it is read."""

    def monotonic_ns(self) -> int:
        self.advance(0.01)
        return self.ns


def test_where_a_later_loop_fails_an_earlier_one_gives_its_buffers_back(device, copies, monkeypatch):
    Ticking().play(monkeypatch, interpreter)
    x = np.arange(2048, dtype=np.float32)

    def loops(b: nnhal.Builder, found: Any, *times: Any) -> Any:
        for most in times:
            found = counted_loop(b, found, most, lambda s, y, *_: s.add(y, y), x.shape)
        return found

    compiled = nnhal.compile(make_model(loops, x.shape, TIMES, TIMES), devices=[device])
    assert len(compiled.placement.steps) == 1
    with pytest.raises(LoopTimeout):
        compiled.run(x, times_of(2), times_of(1 << 30), loop_timeout=0.2)
    assert len(device.buffers) == 4
    for buffer in device.buffers:
        with pytest.raises(nnhal.Closed):
            _ = buffer.shape
    assert compiled(x, times_of(2), times_of(1)).tolist() == (x * 8).tolist()
    compiled.close()


def test_what_lies_on_two_devices_or_changes_its_shape_is_carried_in_arrays(device, copies, monkeypatch):
    monkeypatch.setattr(interpreter, "LARGE", 1)
    other = Some("multiplier", "LESS MUL NEG")
    device.takes = lambda m, n: operation_name(m.main.operations[n].type) in ("ADD", "CONCATENATION")
    x = np.arange(8, dtype=np.float32)
    model = doubling(x.shape, more=lambda b, y: b.neg(b.add(y, y)))
    with nnhal.compile(model, devices=[device, other]) as compiled:
        assert compiled(x, times_of(3)).tolist() == (x * -8).tolist()
    with nnhal.compile(growing(), devices=[device, other]) as compiled:
        assert compiled(x[:2], times_of(3)).tolist() == [0, 2, 0, 0, 0]
    assert not copies


def test_after_a_death_between_executions_what_a_loop_carries_stays_on_the_device_again(device, copies):
    x = np.arange(2048, dtype=np.float32)
    compiled = nnhal.compile(doubling(x.shape), devices=[device])

    def run(times: int) -> list[float]:
        found, _ = compiled.run(x, times_of(times), loop_timeout=15)  # a restart counts, and may be slow
        return found.tolist()

    assert run(2) == (x * 4).tolist()
    os.kill(device.inner.pid, signal.SIGKILL)
    assert run(3) == (x * 8).tolist()
    copies.clear()
    assert run(4) == (x * 16).tolist()
    assert copies == {"copy_from": 1, "copy_to": 1} and device.inner.restarts == 1
    compiled.close()


def test_a_value_that_may_change_its_shape_is_not_carried_in_a_buffer(device, copies, monkeypatch):
    monkeypatch.setattr(interpreter, "LARGE", 1)

    def tiled(b: Any, y: Any) -> Any:
        numbers = b.cast(b.slice(y, [1], [1]), out_type="TENSOR_INT32")
        return b.tile(y, b.minimum(b.maximum(numbers, [1]), [2]))

    compiled = nnhal.compile(doubling(more=tiled), devices=[device])
    assert compiled(X, times_of(3)).tolist() == X.tolist()
    with pytest.raises(OperationFailed, match=r"is given \[8\], must be \[4\]"):
        compiled(X + 1, times_of(3))
    assert [buffer.facts.dimensions for buffer in device.buffers] == [(1,)] * len(device.buffers)  # numbers of turns


def test_threads_have_buffers_of_their_own(device, copies):
    x = np.arange(2048, dtype=np.float32)
    compiled = nnhal.compile(doubling(x.shape), devices=[device])
    wrong = []

    def work(number: int) -> None:
        for count in range(8):
            y = compiled(x + number, times_of(count))
            if not (y == (x + number) * 2**count).all():
                wrong.append((number, count))

    together([partial(work, n) for n in range(4)])
    assert not wrong and 2 <= len(device.buffers) <= 8
    compiled.close()


# ------------------------------------------------------------------------------------------------- options, kept files


class Told(Prepared):
    """Passes on, and takes the option `gain`."""

    changeable: Collection[str] = ("gain",)

    def __init__(self, inner: Prepared, options: list[Any]) -> None:
        self.inner, self.options = inner, options

    def run(self, request: Request, control: Control) -> Timing | None:
        return self.inner.run(request, control)

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        if options.get("gain") == "too much":
            raise InvalidArgument("gain is too much")
        self.options.append(dict(options))


class Adjustable(Some):
    def __init__(self) -> None:
        super().__init__("adder", "ADD LESS")
        self.options: list[Any] = []

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return Told(super().prepare(model, hints), self.options)


def test_a_change_of_options_reaches_every_step_inside_or_none():
    device = Adjustable()
    compiled = nnhal.compile(doubling(), devices=[device])
    compiled.configure("adder", {"gain": 2})
    assert device.options == [{"gain": 2}] * 2
    assert compiled(X, times_of(2)).tolist() == [0, 4, 8, 12]
    with pytest.raises(InvalidArgument, match="too much"):
        compiled.configure("adder", {"gain": "too much"})
    assert compiled(X, times_of(2)).tolist() == [0, 4, 8, 12]


class Kept(Limited):
    """Keeps compilations; takes all but control flow."""

    def __init__(self) -> None:
        super().__init__(FullV1_3(), lambda m, n: operation_name(m.main.operations[n].type) not in CONTROL)
        self.asked_again = False


@pytest.mark.cache
def test_what_is_compiled_inside_is_kept_by_what_it_is_and_where_it_stands(tmp_path, monkeypatch):
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path / "state"))

    def outcomes(model: Model, expected: Any, **settings: Any) -> list[str]:
        with nnhal.compile(model, devices=[Kept()], cache_dir=tmp_path / "cache", **settings) as compiled:
            assert compiled(X, times_of(3)).tolist() == expected.tolist()
            return [each.state for each in compiled.cache]

    assert outcomes(doubling(), X * 8) == ["miss", "miss"]
    assert outcomes(doubling(), X * 8) == ["hit", "hit"]
    tripled = doubling(more=lambda b, x: b.mul(x, [3.0]))
    assert outcomes(tripled, X * 27) == ["miss", "miss"]
    assert outcomes(doubling(more=lambda b, x: b.mul(x, [2.0])), X * 8) == ["miss", "miss"]
    assert outcomes(tripled, X * 27) == ["hit", "hit"]
    assert outcomes(nested(), X * 64) == ["miss"] * 5
    assert outcomes(nested(), X * 64) == ["hit"] * 5
    for _ in range(2):
        with nnhal.compile(branching(), devices=[Kept()], cache_dir=tmp_path / "cache") as compiled:
            assert compiled(np.array([True]), X).tolist() == (X + X).tolist()
            assert compiled(np.array([False]), X).tolist() == (X * X).tolist()
    assert [each.state for each in compiled.cache] == ["hit", "hit"]
    token = bytes(32)
    assert outcomes(doubling(), X * 8, token=token) == ["miss", "miss"]
    assert outcomes(doubling(), X * 8, token=token) == ["hit", "hit"]


def test_a_driver_that_raises_what_is_none_of_nnhals_errors_inside_is_named():
    device = adder(on_run=failing(ZeroDivisionError("oh")))
    with pytest.raises(DriverFailed, match=r"device adder: .*ZeroDivisionError: oh"):
        nnhal.compile(doubling(), devices=[device])(X, times_of(1))
