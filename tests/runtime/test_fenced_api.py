"""Fenced executions at the API: chains of steps and of executions, outputs, timings, failures, the end."""

import os
import signal
import threading
import time

import numpy as np
import pytest

import nnhal
from nnhal.base import time as base_time
from nnhal.base.errors import DeviceUnavailable, OperationFailed
from nnhal.hal import background
from nnhal.hal import request as request_module
from nnhal.hal.background import ExecutionInfo, InfoUnavailable
from nnhal.hal.request import Timing
from nnhal.hal.wrappers import Limited, WithHalLevel
from nnhal.runtime import discovery
from nnhal.runtime import fenced as fenced_
from nnhal.runtime.fenced import Fenced
from nnhal.runtime.isolation import isolated
from tests.runtime.devices import Fake, failing, for_nothing, to_be_killed
from tests.runtime.graphs import counter, sums
from tests.runtime.test_execution import relued, two_outputs
from tests.waiting import Clock, until

X, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
WAYS = pytest.mark.parametrize("isolation", ["none", "process"])
LONG = 60  # seconds after which something counts as hanging
WAY = {"none": "in the background: no driver supports fences", "process": "each partition behind its fence"}


@WAYS
def test_an_execution_begins_when_its_fence_is_signalled(isolation):
    compiled = nnhal.compile(sums(), devices="reference", isolation=isolation)
    ready, signal_ = nnhal.fence_pair()
    x = nnhal.Memory.from_array(X)
    fenced = compiled.execute_fenced(x.view(0, 16, np.float32), B, wait_for=[ready])
    assert not fenced.done()
    x.view(0, 16, np.float32)[:] = 7  # what was written before the signal is what counts
    signal_.set()
    assert (fenced.result(LONG) == 8).all() and fenced.done()
    assert fenced.way == WAY[isolation]


@WAYS
def test_the_steps_of_a_model_wait_for_one_another(isolation, monkeypatch):
    for_nothing(monkeypatch)
    compiled = nnhal.compile(sums(3), devices=[Fake(takes=lambda n: n == 1), "reference"], isolation=isolation)
    assert len(compiled._caller.plan.steps) == 3
    fenced = compiled.execute_fenced(X, B, measure=True)
    assert (fenced.result(LONG) == X + 3).all()
    assert fenced.way == WAY[isolation]
    info = fenced.get_execution_info()
    assert info.launched.in_driver >= info.fenced.in_driver > 0


def test_an_output_that_a_later_step_reads_is_the_callers_as_well():
    b = nnhal.Builder("two outputs")
    x = b.input((4,), name="x")
    first = b.add(x, x, name="first")
    model = b.finish([x], [first, b.mul(first, x, name="second")])
    compiled = nnhal.compile(model, devices=[Fake(takes=lambda n: n == 1), "reference"])
    own = np.empty(4, np.float32)
    doubled, squared = compiled.execute_fenced(X, out=[own, None]).result(LONG)
    assert doubled is own and (own == 2 * X).all() and (squared == 2 * X * X).all()


SHARED = {
    "as it is": (lambda memory: memory.view(0, 16, np.float32), WAY["process"]),
    "in bytes": (lambda memory: memory.view(0, 16), "in the background: a later partition reads an output"),
    "unaligned": (lambda memory: memory.view(3, 16, np.float32), "in the background: an argument lies in memory"),
}


def chained() -> nnhal.Compiled:
    """doubled = x + x, squared = doubled · x, each step in a process of its own; the second reads the first output."""
    add, multiply = (
        Limited(isolated(d), lambda _, n, own=own: n == own) for own, d in enumerate(("litert", "reference"))
    )
    compiled = nnhal.compile(two_outputs(), devices=[add, multiply])
    assert len(compiled._caller.plan.steps) == 2
    return compiled


def test_steps_that_may_have_to_end_early_read_what_the_ones_before_wrote():
    compiled = chained()
    for n in range(20):
        doubled, squared = compiled.execute_fenced(X + n, deadline=LONG).result(LONG)
        assert (doubled == 2 * (X + n)).all() and (squared == 2 * (X + n) ** 2).all()


@pytest.mark.parametrize("room", SHARED)
def test_shared_memory_holds_an_output_that_a_later_step_reads_when_the_fence_is_signalled(room):
    compiled, (over, way) = chained(), SHARED[room]
    memory = nnhal.Memory.allocate(32)
    fenced = compiled.execute_fenced(X, out=[over(memory), None])
    then = nnhal.compile(sums(), devices="reference", isolation="process")
    start = 3 if room == "unaligned" else 0
    following = then.execute_fenced(memory.view(start, 16, np.float32), B, wait_for=[fenced.fence])
    fenced.fence.wait(LONG)
    assert (memory.view(start, 16, np.float32) == 2 * X).all() and fenced.way.startswith(way)
    assert (following.result(LONG) == 2 * X + 1).all()
    assert (fenced.result(LONG)[1] == 2 * X * X).all()


def test_memory_that_may_shrink_is_written_and_read_when_the_fence_is_signalled(tmp_path):
    path = tmp_path / "bytes"
    path.write_bytes(bytes(16))
    with path.open("r+b") as file:
        memory = nnhal.Memory.from_fd(file.fileno(), 16, readonly=False)
    view, (ready, signal_) = memory.view(0, 16, np.float32), nnhal.fence_pair()
    compiled = nnhal.compile(sums(), devices="reference", isolation="process")
    reads = compiled.execute_fenced(view, B, wait_for=[ready])
    view[:] = X
    signal_.set()
    assert (reads.result(LONG) == X + 1).all()
    fenced = compiled.execute_fenced(X, B, out=view)
    fenced.fence.wait(LONG)
    assert (view == X + 1).all()


@pytest.mark.parametrize("size", [16, 20])
def test_room_in_bytes_holds_an_output_that_a_later_step_reads(size):
    room = np.zeros(size, np.uint8)
    doubled, squared = chained().execute_fenced(X, out=[room, None]).result(LONG)
    assert doubled.dtype == np.float32 and np.shares_memory(doubled, room)
    assert (doubled == 2 * X).all() and (squared == 2 * X * X).all()


def test_room_that_is_too_small_for_an_output_that_a_later_step_reads_is_refused():
    with pytest.raises(nnhal.InvalidArgument, match="larger than its memory"):
        chained().execute_fenced(X, out=[np.zeros(15, np.uint8), None]).result(LONG)


@WAYS
def test_an_output_of_unknown_shape_goes_where_its_room_says(isolation):
    compiled = nnhal.compile(relued(None), devices="reference", isolation=isolation)
    room = np.zeros(4, np.float32)
    assert compiled.execute_fenced(X, out=room).result(LONG) is room and (room == X).all()
    for open_ in (None, np.zeros(16, np.uint8)):
        with pytest.raises(nnhal.InvalidArgument, match="must have one that is fully specified"):
            compiled.execute_fenced(X, out=open_)


@WAYS
def test_allocations_are_arguments_of_fenced_executions(isolation):
    compiled = nnhal.compile(sums(), devices="reference", isolation=isolation)
    a, y = (nnhal.allocate([(compiled, "input", 0), (compiled, "output", 0)]) for _ in range(2))
    a.write(X)
    first = compiled.execute_fenced(a, B, out=y)
    second = compiled.execute_fenced(y, B, out=a, wait_for=[f for f in [first.fence] if f])
    assert second.result(LONG) is a
    assert (a.read() == X + 2).all()


def test_a_driver_of_a_level_without_fences_runs_on_a_thread_and_says_so():
    compiled = nnhal.compile(sums(), devices=[WithHalLevel(discovery.cpu(), nnhal.Level.parse("1.2"))])
    fenced = compiled.execute_fenced(X, B)
    assert (fenced.result(LONG) == X + 1).all()
    assert "executeFenced needs level 1.3" in fenced.way


def test_one_limit_over_several_steps_holds_for_their_sum(monkeypatch):
    clock = Clock().play(monkeypatch, fenced_, background, request_module, base_time)
    slow = Fake(takes=lambda n: n == 1, on_run=lambda: clock.advance(0.4))
    compiled = nnhal.compile(sums(2), devices=[slow, "reference"])
    with pytest.raises(nnhal.MissedDeadline):
        compiled.execute_fenced(X, B, after=0.1).result(LONG)
    assert (compiled.execute_fenced(X, B, after=LONG).result(LONG) == X + 2).all()


def test_the_step_that_failed_is_the_one_that_is_named():
    device = Fake(takes=lambda n: n == 0)
    compiled = nnhal.compile(sums(2), devices=[device, "reference"])
    device.prepared[0].before = failing(OperationFailed("the first step broke"))
    with pytest.raises(OperationFailed, match="the first step broke"):
        compiled.execute_fenced(X, B).result(LONG)


def test_why_a_later_step_in_another_process_failed_is_what_the_result_tells():
    first, second = (
        Limited(isolated("reference"), lambda _, n: n == 0),
        Limited(isolated("faulty"), lambda _, n: n == 1),
    )
    failing_later = {"faulty": {"run": "raise"}}
    compiled = nnhal.compile(two_outputs(), devices=[first, second], fallback="forbid", driver_options=failing_later)
    fenced = compiled.execute_fenced(X)
    for _ in range(2):
        with pytest.raises(OperationFailed, match="faulty") as told:
            fenced.result(LONG)
        assert "written after" not in str(told.value)
    assert fenced.way == WAY["process"]


def test_a_driver_killed_behind_a_fence_is_a_dead_object():
    compiled = nnhal.compile(sums(), devices=[to_be_killed()])
    ready, signal_ = nnhal.fence_pair()
    fenced = compiled.execute_fenced(X, B, wait_for=[ready])
    os.kill(compiled._caller.plan.steps[0].device.pid, signal.SIGKILL)
    with pytest.raises(nnhal.DeadObject):
        fenced.result(LONG)
    signal_.set()
    assert (compiled.execute_fenced(X, B).result(LONG) == X + 1).all()


def test_states_start_at_their_initial_value():
    compiled = nnhal.compile(counter(), devices="reference")
    assert (compiled.execute_fenced(B).result(LONG) == 2).all()


def test_closing_does_not_wait_for_fences_that_the_caller_has_to_signal():
    device = Fake()
    compiled = nnhal.compile(sums(), devices=[device])
    ready, signal_ = nnhal.fence_pair()
    fenced = compiled.execute_fenced(X, B, wait_for=[ready])
    closer = threading.Thread(target=compiled.close)
    closer.start()
    closer.join(LONG)
    assert not closer.is_alive() and not device.prepared[0].closed
    signal_.set()
    assert (fenced.result(LONG) == X + 1).all()
    until(lambda: device.prepared[0].closed, "the close")
    with pytest.raises(nnhal.Closed):
        compiled.execute_fenced(X, B)


def test_a_process_that_does_not_tell_in_time_what_an_execution_came_to_may_be_asked_again():
    asked, ready = [], []

    def info(until):
        asked.append(until)
        if not ready:
            raise InfoUnavailable("it does not tell")
        return ExecutionInfo(Timing(), Timing())

    ended = Fenced([info], None, lambda well: "outputs" if well else None, "way")
    before = time.monotonic_ns()
    with pytest.raises(nnhal.MissedDeadline, match="it does not tell") as missed:
        ended.result(LONG)
    assert type(missed.value) is nnhal.MissedDeadline
    assert before + LONG * 10**9 <= asked[0] <= time.monotonic_ns() + LONG * 10**9
    ready.append(True)
    assert ended.result() == "outputs"
    assert asked[1:] == [None]


def test_steps_without_a_deadline_have_their_time_from_the_fences_on_and_then_nobody_waits(monkeypatch):
    monkeypatch.setattr(fenced_, "WORK_NS", 0)
    monkeypatch.setattr(fenced_, "_LOOK", 0.001)
    (before, signal_), (fence, _signal), ended = nnhal.fence_pair(), nnhal.fence_pair(), []
    patience = fenced_._Patience([before], 1)
    for _ in range(3):  # however often: it waits for the fence
        patience.check()
    signal_.set()
    launched = Fenced([], fence, ended.append, "way", patience=patience.check)
    with pytest.raises(DeviceUnavailable, match="fenced execution: its driver's process did not end it within 0 s"):
        launched.result()
    assert ended == [False]
