"""Bursts: the same results as plain calls, one execution at a time, hooks, and how they end."""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

from nnhal.base.errors import BadState, Closed, DeadObject, InvalidRequest, NnhalError, OperationFailed
from nnhal.base.memory import Memory
from nnhal.hal.answers import allocated_by
from nnhal.hal.device import Device, Prepared
from nnhal.hal.host import HostBuffer, LocalBurst, contents_of, fill
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.request import Control, Request, Timing
from tests.hal.devices import DEVICES, LIMIT, X, adding, asked, device_of, late, nan, prepare
from tests.ipc.support import own_process
from tests.models import doubling
from tests.waiting import together

PLAIN = Control()
PROBE = str(Path(__file__).parents[1] / "ipc" / "drivers" / "probe.py")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Device:
    return device_of(request.param)


class Slow(Prepared):
    """A prepared model of the reference that runs when it is let, and counts."""

    def __init__(self) -> None:
        self.inner = prepare(device_of("reference"), adding(1))
        self.model = self.inner.model
        self.inside, self.go = threading.Event(), threading.Event()
        self.hooks: list[str] = []

    def run(self, request: Request, control: Control) -> Timing | None:
        self.inside.set()
        assert self.go.wait(LIMIT)
        self.hooks.append("run")
        return self.inner.run(request, control)

    def burst_opened(self) -> None:
        self.hooks.append("opened")

    def burst_closed(self) -> None:
        self.hooks.append("closed")


# ----------------------------------------------------------------------------------------------------------- results


def test_a_burst_gives_bit_for_bit_what_plain_calls_give(device: Device) -> None:
    step = prepare(device, adding(0.1, (64, 64)))
    random = np.random.default_rng(2)
    with step.burst() as burst:
        for _ in range(20):
            x = random.normal(size=(64, 64)).astype(np.float32)
            plain, fast = asked(step, x, nan(x.shape)), asked(step, x, nan(x.shape))
            plain.execute(step.run, PLAIN)
            fast.execute(burst.run, PLAIN)
            assert fast.results[0].tobytes() == plain.results[0].tobytes() == (x + np.float32(0.1)).tobytes()


def test_shapes_and_memories_may_change_from_one_execution_to_the_next(device: Device) -> None:
    step = prepare(device, doubling(0, 4))
    pool = Memory.allocate(4096)
    with step.burst() as burst:
        for n, rows in enumerate((3, 1, 3, 7, 1, 3)):
            x = pool.view(64 * n, rows * 16, np.float32, (rows, 4)) if n % 2 else nan((rows, 4))
            x[:] = n
            made = asked(step, x, nan((rows, 4)) if n % 3 else None)
            made.execute(burst.run, PLAIN)
            np.testing.assert_array_equal(made.results[0], np.full((rows, 4), 2 * n))
    assert burst.ended is False


def test_driver_memory_can_be_used_in_a_burst(device: Device) -> None:
    step = prepare(device, adding(1))
    roles = [BufferRole(step, 0), BufferRole(step, 0, True)]
    source, target = allocated_by(device, BufferDesc(), roles), allocated_by(device, BufferDesc(), roles)
    other = allocated_by(device, BufferDesc(), [BufferRole(step, 0)])
    fill(source, X)
    with step.burst() as burst:
        asked(step, source, target).execute(burst.run, PLAIN)
        np.testing.assert_array_equal(contents_of(target), X + 1)
        with pytest.raises(InvalidRequest, match="must be one of its roles"):
            asked(step, source, other).execute(burst.run, PLAIN)
        with pytest.raises(NnhalError):
            asked(step, source, target).execute(burst.run, late())
        assert target.shape is None


@pytest.mark.parametrize("which", ["input", "output", "both", "neither"])
def test_a_burst_takes_driver_memory_for_any_argument(which: str) -> None:
    step = prepare(device_of("reference"), adding(1))
    source, target = (HostBuffer(BufferDesc(), [BufferRole(step, 0, output)]) for output in (False, True))
    fill(source, X + 5)
    x, y = source if which in ("input", "both") else X, target if which in ("output", "both") else nan()
    with step.burst() as burst:
        made = asked(step, x, y)
        made.execute(burst.run, PLAIN)
    found = contents_of(target) if y is target else made.results[0]
    np.testing.assert_array_equal(found, X + 6 if x is source else X + 1)


def test_memory_that_was_freed_may_be_used_again(device: Device) -> None:
    step = prepare(device, adding(1))
    pool = Memory.allocate(48)
    x = pool.view(0, 48, np.float32, (3, 4))
    with step.burst() as burst:
        burst.free_memory(pool)  # never used: nothing to forget
        for n in range(4):
            x[:] = X + n
            made = asked(step, x, nan())
            made.execute(burst.run, PLAIN)
            np.testing.assert_array_equal(made.results[0], X + n + 1)
            burst.free_memory(pool)
            burst.free_memory(pool)


def test_an_execution_that_fails_does_not_end_the_burst(device: Device) -> None:
    step = prepare(device, adding(1))
    with step.burst() as burst:
        for _ in range(3):
            with pytest.raises(NnhalError):
                asked(step, X, nan()).execute(burst.run, late())
            made = asked(step, X, nan())
            made.execute(burst.run, PLAIN)
            np.testing.assert_array_equal(made.results[0], X + 1)
        assert not burst.ended


def test_measured_executions_tell_times_that_contain_each_other(device: Device) -> None:
    step = prepare(device, adding(1))
    with step.burst() as burst:
        timing = asked(step, X, nan()).execute(burst.run, Control(measure=True))
        assert timing is not None and timing.on_device is not None and timing.in_driver is not None
        assert 0 <= timing.on_device <= timing.in_driver
        assert asked(step, X, nan()).execute(burst.run, PLAIN) in (None, Timing())


# ------------------------------------------------------------------------------------------------------ one at a time


def test_a_second_execution_at_the_same_time_is_bad_state() -> None:
    prepared = Slow()
    with prepared.burst() as burst:
        first = asked(prepared, X, nan())
        running = threading.Thread(target=first.execute, args=(burst.run, PLAIN))
        running.start()
        assert prepared.inside.wait(LIMIT)
        with pytest.raises(BadState, match="must be one at a time; open one burst a thread"):
            asked(prepared, X, nan()).execute(burst.run, PLAIN)
        prepared.go.set()
        running.join(LIMIT)
        np.testing.assert_array_equal(first.results[0], X + 1)
        asked(prepared, X, nan()).execute(burst.run, PLAIN)


def test_an_execution_that_was_given_up_keeps_no_other_out_of_its_burst() -> None:
    """As the deadline of its own was missed: the next one is as welcome as it is in another process."""

    def given_up() -> None:
        with pytest.raises(Closed):
            first.execute(burst.run, PLAIN)

    prepared = Slow()
    with prepared.burst() as burst:
        first = asked(prepared, X, nan())
        running = threading.Thread(target=given_up)
        running.start()
        assert prepared.inside.wait(LIMIT)
        first.abandon()
        second = asked(prepared, X + 1, nan())
        threading.Timer(0.1, prepared.go.set).start()
        second.execute(burst.run, PLAIN)
        np.testing.assert_array_equal(second.results[0], X + 2)
        running.join(LIMIT)
        third = asked(prepared, X + 2, nan())
        third.execute(burst.run, PLAIN)
        np.testing.assert_array_equal(third.results[0], X + 3)
    assert prepared.hooks == ["opened", "run", "run", "run", "closed"]


def test_bursts_of_one_model_run_on_threads_of_their_own(device: Device) -> None:
    step = prepare(device, adding(1))

    def work() -> None:
        with step.burst() as burst:
            for n in range(30):
                made = asked(step, X + n, nan())
                made.execute(burst.run, PLAIN)
                np.testing.assert_array_equal(made.results[0], X + n + 1)

    together([work] * 4)


# --------------------------------------------------------------------------------------------------------------- ends


def test_after_close_a_burst_says_so(device: Device) -> None:
    step = prepare(device, adding(1))
    burst = step.burst()
    asked(step, X, nan()).execute(burst.run, PLAIN)
    burst.close()
    burst.close()
    for control in (PLAIN, Control(deadline=2**62)):
        with pytest.raises(Closed):
            asked(step, X, nan()).execute(burst.run, control)


def test_the_driver_is_told_once_when_a_burst_opens_and_once_when_it_closes() -> None:
    prepared = Slow()
    prepared.go.set()
    with prepared.burst() as burst:
        asked(prepared, X, nan()).execute(burst.run, PLAIN)
    burst.close()
    del burst
    gc.collect()
    assert prepared.hooks == ["opened", "run", "closed"]
    forgotten = prepared.burst()
    del forgotten
    gc.collect()
    assert prepared.hooks == ["opened", "run", "closed", "opened", "closed"]


def test_the_driver_is_told_of_the_end_when_the_execution_in_the_burst_has_ended() -> None:
    prepared = Slow()
    burst = prepared.burst()
    running = threading.Thread(target=asked(prepared, X, nan()).execute, args=(burst.run, PLAIN))
    running.start()
    assert prepared.inside.wait(LIMIT)
    burst.close()
    assert prepared.hooks == ["opened"]
    with pytest.raises((BadState, Closed)):
        asked(prepared, X, nan()).execute(burst.run, PLAIN)
    prepared.go.set()
    running.join(LIMIT)
    assert prepared.hooks == ["opened", "run", "closed"]


def test_a_hook_that_fails_at_the_end_of_a_burst_fails_nothing_else() -> None:
    class Failing(Slow):
        def burst_closed(self) -> None:
            raise ValueError("of its own")

    prepared = Failing()
    prepared.go.set()
    with prepared.burst() as burst:
        asked(prepared, X, nan()).execute(burst.run, PLAIN)


def test_a_burst_that_the_driver_refuses_is_none() -> None:
    class Refusing(Slow):
        def burst_opened(self) -> None:
            raise OperationFailed("driver: no burst today")

    prepared = Refusing()
    with pytest.raises(OperationFailed, match="no burst today"):
        LocalBurst(prepared)
    gc.collect()
    assert prepared.hooks == []


def test_a_burst_over_the_wire_that_lost_its_process_has_ended() -> None:
    with own_process(PROBE) as device:
        step = prepare(device, adding(1))
        burst = step.burst()
        assert not burst.ended
        assert device.session.peer.process is not None
        device.session.peer.process.kill()
        for _ in range(2):
            with pytest.raises((DeadObject, Closed)):
                asked(step, X, nan()).execute(burst.run, PLAIN)
        assert burst.ended
