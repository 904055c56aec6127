"""Executions with and without callbacks: the same results, deadlines that hold whatever the driver does, timings."""

import threading

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import OperationFailed
from nnhal.hal.request import Timing
from tests.models import make_model
from tests.runtime.devices import Fake, Wrapped, failing
from tests.runtime.graphs import counter, sums
from tests.waiting import until

X, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
LONG = 60  # seconds after which something counts as hanging


@pytest.fixture(params=["1", "0"], ids=["calls", "callbacks"], autouse=True)
def mode(request, monkeypatch) -> str:
    monkeypatch.setenv("NNHAL_SYNC_EXEC", request.param)
    return request.param


class Counting(Wrapped):
    """Counts how often each way is taken."""

    def __init__(self, inner, before) -> None:
        super().__init__(inner, before)
        self.launched = self.notified = 0

    def execute(self, request, control, notify) -> None:
        self.launched += 1

        def once(*result) -> None:
            self.notified += 1
            notify(*result)

        super().execute(request, control, once)


@pytest.fixture
def device(monkeypatch) -> Fake:
    monkeypatch.setattr("tests.runtime.devices.Wrapped", Counting)
    return Fake()


def test_the_switch_decides_which_way_every_execution_takes(device, mode):
    compiled = nnhal.compile(sums(), devices=[device])
    assert (compiled(X, B) == X + 1).all() and (compiled.run(X, B, measure=True)[0] == X + 1).all()
    used = device.prepared[0]
    assert used.launched == used.notified == (2 if mode == "0" else 0)


@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize("devices", ["reference", "litert", "mixed"])
def test_results_are_the_same(isolation, devices):
    chosen = [Fake(takes=lambda n: n == 1), "reference"] if devices == "mixed" else devices
    compiled = nnhal.compile(sums(3), devices=chosen, isolation=isolation)
    out = np.empty_like(X)
    for n in range(5):
        assert (compiled(X + n, B, out=out) == X + n + 3).all()
    assert (compiled.submit(X, B).result(LONG) == X + 3).all()
    assert (compiled.bind(X, B)() == X + 3).all()


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_unknown_shapes_and_memory_that_is_too_small_are_told(isolation):
    model = make_model(lambda b, x: b.relu(x, name="y"), name="open", x=(0,))
    compiled = nnhal.compile(model, devices="reference", isolation=isolation)
    assert compiled(-X).tolist() == [0, 0, 0, 0]
    with pytest.raises(nnhal.OutputInsufficientSize) as caught:
        compiled(X, out=np.empty(7, np.uint8))
    assert caught.value.shapes == ((4,),)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_stream_carries_its_state(isolation):
    stream = nnhal.compile(counter(), devices="reference", isolation=isolation).stream()
    assert [stream(B)[0] for _ in range(3)] == [2, 4, 6]


def test_an_error_comes_back_once_and_the_model_runs_on(device):
    compiled = nnhal.compile(sums(), devices=[device])
    device.prepared[0].before = failing(OperationFailed("broken"))
    with pytest.raises(OperationFailed, match="broken"):
        compiled(X, B)
    device.prepared[0].before = lambda: None
    assert (compiled(X, B) == X + 1).all()


def test_a_deadline_ends_the_wait_for_a_driver_that_does_not_look_at_it(device):
    gate = threading.Event()
    compiled = nnhal.compile(sums(), devices=[device])
    device.prepared[0].before = lambda: gate.wait(LONG)
    out = np.full(4, -1, np.float32)
    with pytest.raises(nnhal.MissedDeadline):
        compiled.run(X, B, out=out, deadline=0.1)
    compiled.close()
    assert not device.prepared[0].closed  # it is still in there
    gate.set()
    until(lambda: device.prepared[0].closed, "the close")
    assert (out == -1).all()


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_deadline_that_is_met_changes_nothing(isolation):
    compiled = nnhal.compile(sums(), devices="reference", isolation=isolation)
    assert (compiled.run(X, B, deadline=LONG)[0] == X + 1).all()


def test_a_binding_runs_once_at_a_time(device):
    gate, entered = threading.Event(), threading.Event()
    compiled = nnhal.compile(sums(), devices=[device])
    run = compiled.bind(X, B)
    device.prepared[0].before = lambda: (entered.set(), gate.wait(LONG))
    thread = threading.Thread(target=run)
    thread.start()
    assert entered.wait(LONG)
    with pytest.raises(nnhal.BadState, match="must be one at a time"):
        run()
    gate.set()
    thread.join(LONG)
    assert (run() == X + 1).all()


@pytest.mark.parametrize(
    ("said", "reported"),
    [
        (Timing(5, 10), Timing(5, 10)),
        (Timing(None, 10), Timing(None, 10)),
        (Timing(11, 10), None),
        (Timing(-1, 10), None),
        (None, None),
    ],
)
def test_a_time_on_the_device_above_that_in_the_driver_is_dropped(device, said, reported):
    compiled = nnhal.compile(sums(), devices=[device])
    inner = device.prepared[0].inner
    run = inner.run

    def measured(request, control):
        run(request, control)
        return said

    inner.run = measured
    assert compiled.run(X, B, measure=True)[1].steps[0].driver == reported


def test_nothing_is_measured_unasked(device):
    compiled = nnhal.compile(sums(), devices=[device])
    seen, run = [], device.prepared[0].inner.run

    def note(request, control):
        seen.append(control.measure)
        return run(request, control)

    device.prepared[0].inner.run = note
    compiled(X, B)
    compiled.run(X, B, measure=True)
    assert seen == [False, True]
