"""Bursts of compiled models: the results of plain calls, one execution at a time, the reason where a call is plain."""

import contextlib
import os
import signal
import threading

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import OperationFailed
from nnhal.hal.wrappers import AtLevel
from nnhal.runtime import discovery
from tests.runtime.devices import Fake, failing, to_be_killed
from tests.runtime.graphs import counter, sums

X, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
WAYS = pytest.mark.parametrize("isolation", ["none", "process"])


@WAYS
@pytest.mark.parametrize("devices", ["reference", "litert", "mixed"])
def test_a_burst_computes_what_calls_compute(isolation, devices):
    several = [Fake(takes=lambda n: n == 1), "reference"]
    compiled = nnhal.compile(sums(3), devices=several if devices == "mixed" else devices, isolation=isolation)
    with compiled.burst() as run:
        assert all(way.endswith(": burst") for way in run.ways) and len(run.ways) == len(compiled._caller.plan.steps)
        for n in range(20):
            assert (run(X + n, B) == compiled(X + n, B)).all()
        assert list(run({"x": X, "b": B})) == ["y2" if "y2" in run({"x": X, "b": B}) else "y"]
        out = np.empty_like(X)
        assert run(X, B, out=out) is out and (out == X + 3).all()
    assert (compiled(X, B) == X + 3).all()


@WAYS
def test_what_a_packet_cannot_carry_is_a_plain_call_with_the_reason(isolation):
    compiled = nnhal.compile(sums(), devices="reference", isolation=isolation)
    a = nnhal.allocate([(compiled, "input", 0)])
    a.write(X)
    with compiled.burst() as run:
        notes = [
            run.run(X, B, measure=True)[1].notes,
            run.run(X, B, measure=True, deadline=10)[1].notes,
            run.run(X, B, measure=True, loop_timeout=1)[1].notes,
            run.run(a, B, measure=True)[1].notes,
        ]
    if isolation == "none":
        assert notes == [[], [], [], []]
    else:
        assert notes[0] == [] and [len(n) for n in notes[1:]] == [1, 1, 1]
        assert "deadline" in notes[1][0] and "loop" in notes[2][0] and "driver buffers" in notes[3][0]


@WAYS
def test_a_burst_runs_one_execution_at_a_time(isolation):
    b = nnhal.Builder("large")
    x = y = b.input((1024, 1024), name="x")
    for _ in range(20):
        y = b.add(y, x)
    compiled = nnhal.compile(b.finish([x], [y]), devices="reference", isolation=isolation)
    array, refused = np.ones((1024, 1024), np.float32), []
    with compiled.burst() as run:

        def again():
            for _ in range(5):
                try:
                    run(array)
                except nnhal.BadState as error:
                    refused.append(str(error))

        threads = [threading.Thread(target=again) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert refused and all("must be one at a time" in text for text in refused)
        assert (run(array) == 21).all()


def test_a_closed_burst_and_a_burst_of_a_closed_model_are_refused():
    compiled = nnhal.compile(sums(), devices="reference")
    run, other = compiled.burst(), compiled.burst()
    run.close()
    run.close()
    with pytest.raises(nnhal.Closed, match="the burst was closed; open another"):
        run(X, B)
    assert (other(X, B) == X + 1).all()
    compiled.close()
    with pytest.raises(nnhal.Closed, match="the compiled model was closed"):
        other(X, B)
    with pytest.raises(nnhal.Closed):
        compiled.burst()
    other.close()


def test_a_driver_of_a_level_without_bursts_gets_plain_calls():
    compiled = nnhal.compile(sums(), devices=[AtLevel(discovery.cpu(), nnhal.Level.parse("1.1"))])
    with compiled.burst() as run:
        assert "plain calls: configureExecutionBurst needs level 1.2" in run.ways[0]
        assert (run(X, B) == X + 1).all()


def test_a_step_that_fails_in_a_burst_falls_back_like_any_other():
    device = Fake()
    compiled = nnhal.compile(sums(), devices=[device], fallback="allow")
    with compiled.burst() as run:
        device.prepared[0].before = failing(OperationFailed("broken"))
        assert (run(X, B) == X + 1).all()


def test_a_burst_goes_on_after_the_driver_died():
    compiled = nnhal.compile(sums(), devices=[to_be_killed()])
    with compiled.burst() as run:
        assert (run(X, B) == X + 1).all()
        os.kill(compiled._caller.plan.steps[0].device.pid, signal.SIGKILL)
        with contextlib.suppress(nnhal.DeadObject):  # unless the death was noticed before
            run(X, B)
        assert (run(X, B) == X + 1).all()
        assert compiled._caller.plan.steps[0].device.restarts == 1


def test_memories_of_a_burst_can_be_freed():
    compiled = nnhal.compile(sums(), devices="reference", isolation="process")
    memory = nnhal.Memory.from_array(X)
    view = memory.view(0, X.nbytes, np.float32)
    with compiled.burst() as run:
        assert (run(view, B) == X + 1).all()
        run.free_memory(memory)
        view[:] = 5
        assert (run(view, B) == 6).all()


def test_states_start_at_their_initial_value_in_every_execution():
    compiled = nnhal.compile(counter(), devices="reference")
    with compiled.burst() as run:
        assert [run(B)[0] for _ in range(2)] == [2, 2]
