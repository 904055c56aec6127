"""Options that change between executions: those asked for before see the old ones, those after the new, in every way."""

import contextlib
import threading
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import Cancelled, InvalidArgument, MissedDeadline, OperationFailed
from nnhal.hal.chain import checked_prepared, checked_reconfigure
from nnhal.hal.device import Hints
from nnhal.hal.fence import fence_pair
from nnhal.hal.wrappers import WithOptions
from nnhal.ipc.client.process import ReconnectingDevice, start
from nnhal.runtime import discovery
from tests.contract.drivers import tunable
from tests.runtime.devices import for_nothing
from tests.waiting import LIMIT, until

DRIVER = Path(tunable.__file__)
X, W = np.arange(4, dtype=np.float32), np.float32([5, 6, 7, 8])
KINDS = "none", "process"


@pytest.fixture(autouse=True)
def tunable_is_known(monkeypatch):
    nnhal.load_driver(DRIVER)
    for_nothing(monkeypatch)  # so that it gets its operations also where they are few


def model(layers: int = 1) -> nnhal.Model:
    """gain * (x + w), over and over, with an operation of another device between."""
    b = nnhal.Builder()
    x = y = b.input((4,))
    for layer in range(layers):
        y = b.add(b.neg(y) if layer else y, W)
    return b.finish([x], [y])


def compiled_for(kind: str, layers: int = 1, **options: object) -> nnhal.Compiled:
    names = ["tunable", "reference"] if layers > 1 else "tunable"
    return nnhal.compile(model(layers), devices=names, isolation=kind, driver_options={"tunable": options})


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_to_execute_sees_the_change(kind):
    compiled = compiled_for(kind, gain=1)
    bound = compiled.bind(X, out=np.empty(4, np.float32))
    with compiled.burst() as burst:
        for gain in (1, 2, 0.5):
            if gain != 1:
                compiled.configure("tunable", {"gain": gain})
            expected = np.float32(gain) * (X + W)
            for way in (
                lambda: compiled(X),
                lambda: burst(X),
                bound,
                lambda: compiled.submit(X).result(),
                lambda: compiled.execute_fenced(X).result(),
                lambda: compiled.run(X, deadline=20)[0],
            ):
                assert np.array_equal(way(), expected)
    assert compiled.memory.steps[0].use.working == 0  # of executions that a change met at work


@pytest.mark.parametrize("kind", KINDS)
def test_an_execution_asked_for_before_sees_the_old_options_and_one_after_the_new(kind):
    compiled = compiled_for(kind, gain=1, slow=0.2)
    compiled(X)
    before = [compiled.submit(X) for _ in range(6)]
    compiled.configure("tunable", {"gain": 3})
    after = [compiled.submit(X) for _ in range(2)]
    assert all(np.array_equal(each.result(), X + W) for each in before)
    assert all(np.array_equal(each.result(), 3 * (X + W)) for each in after)
    assert compiled.memory.steps[0].use.working == 0


@pytest.mark.parametrize("kind", KINDS)
def test_no_execution_sees_half_of_a_change_whatever_its_steps(kind):
    compiled = compiled_for(kind, layers=2, gain=1, slow=0.01)
    assert len(compiled.placement.steps) == 3

    def by(gain: float) -> np.ndarray:
        return gain * (-(gain * (X + W)) + W)

    over, wrong = threading.Event(), []

    def calls() -> None:
        while not over.is_set():
            y = compiled(X)
            if not any(np.array_equal(y, by(gain)) for gain in (1, 2)):
                wrong.append(y)

    threads = [threading.Thread(target=calls) for _ in range(3)]
    for thread in threads:
        thread.start()
    for change in range(20):
        compiled.configure("tunable", {"gain": 1 + change % 2})
    over.set()
    for thread in threads:
        thread.join(LIMIT)
    assert not wrong and not any(step.use.working for step in compiled.memory.steps if step.device == "tunable")


def test_it_waits_for_fenced_executions_until_its_deadline():
    compiled = compiled_for("none", gain=1)
    waited, signal = fence_pair()
    fenced = compiled.execute_fenced(X, wait_for=[waited])
    assert "options may change" in fenced.way or "no driver supports fences" in fenced.way
    with pytest.raises(MissedDeadline):
        compiled.configure("tunable", {"gain": 2}, deadline=0.05)
    signal.set()
    assert np.array_equal(fenced.result(), X + W)
    assert np.array_equal(compiled(X), X + W)
    compiled.configure("tunable", {"gain": 2}, deadline=LIMIT)
    assert np.array_equal(compiled(X), 2 * (X + W))


def test_what_was_given_up_is_over_before_the_driver_is_told():
    """Neither waits for the other's end: the execution by its deadline, the change by the queue of the driver."""
    compiled = compiled_for("none", gain=1, slow=0.4)
    with pytest.raises(MissedDeadline):
        compiled.run(X, deadline=0.05)
    compiled.configure("tunable", {"slow": 0})
    assert np.array_equal(compiled(X), X + W)
    assert compiled.memory.steps[0].use.working == 0


def test_its_deadline_holds_for_what_was_given_up_too(tmp_path):
    over = tmp_path / "begun" / "over"
    compiled = compiled_for("none", gain=1, until=str(over))
    execution = compiled.submit(X)
    until(over.parent.exists, "it begins")
    execution.cancel()
    with pytest.raises(Cancelled):
        execution.result(LIMIT)
    with pytest.raises(MissedDeadline):
        compiled.configure("tunable", {"gain": 3}, deadline=0.05)
    over.touch()
    assert np.array_equal(compiled(X), X + W)
    compiled.configure("tunable", {"gain": 3}, deadline=LIMIT)
    assert np.array_equal(compiled(X), 3 * (X + W))


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_that_fails_changes_nothing(kind):
    compiled = compiled_for(kind, layers=2, gain=1, fails=[7])
    expected = compiled(X)
    with pytest.raises(OperationFailed, match="device tunable: told to"):
        compiled.configure("tunable", {"gain": 7})
    assert np.array_equal(compiled(X), expected)


def test_a_closed_model_cannot_be_configured():
    compiled = compiled_for("none")
    compiled.close()
    with pytest.raises(nnhal.Closed):
        compiled.configure("tunable", {"gain": 1})


def test_at_the_seam_a_driver_that_has_no_such_option_is_not_asked():
    prepared = checked_prepared(discovery.cpu(), model(), Hints())
    with pytest.raises(InvalidArgument, match="device reference: no option of it may change"):
        checked_reconfigure(prepared, "device reference", {"gain": 1})


def test_a_process_that_is_started_again_has_the_options_in_force():
    device = ReconnectingDevice("tunable", lambda: start(str(DRIVER)))
    compiled = nnhal.compile(model(), devices=[device], driver_options={"tunable": {"slow": 0, "gain": 1}})
    compiled.configure("tunable", {"gain": 4})
    device._remote.session.peer.process.kill()

    def started_again() -> bool:
        with contextlib.suppress(nnhal.DeadObject):
            compiled(X)
        return device.restarts > 0

    until(started_again, "another process")
    assert np.array_equal(compiled(X), 4 * (X + W))
    compiled.close()
    device.close()


def test_options_of_the_device_itself_stay():
    device = WithOptions(discovery.load_one("tunable"), {"gain": 10})
    compiled = nnhal.compile(model(), devices=[device])
    compiled.configure("tunable", {"slow": 0.001})
    assert np.array_equal(compiled(X), 10 * (X + W))


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_fell_back_is_the_cpus(kind):
    """It is the CPU's result, which the device's options do not change."""
    compiled = nnhal.compile(
        model(),
        devices="tunable",
        fallback="allow",
        isolation=kind,
        driver_options={"tunable": {"gain": 2, "late": "?"}},
    )
    compiled.configure("tunable", {"gain": 3})
    y, report = compiled.run(X, measure=True)
    assert np.array_equal(y, X + W) and report.fallbacks
    assert [(step.step, step.device) for step in compiled.memory.steps] == [(0, "tunable"), (0, "reference")]
