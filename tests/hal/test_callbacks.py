"""Executions with a callback: notified once, whatever happens."""

import threading

import numpy as np
import pytest

from nnhal.base.errors import MissedDeadline, NnhalError
from nnhal.hal.background import asynchronous
from nnhal.hal.device import Prepared
from nnhal.hal.request import Control, Timing
from tests.hal.devices import DEVICES, LIMIT, Own, X, adding, asked, device_of, late, nan, prepare
from tests.waiting import pass_time, together, until

PLAIN = Control()


@pytest.fixture(params=DEVICES)
def step(request: pytest.FixtureRequest) -> Prepared:
    return prepare(device_of(request.param), adding(1))


def test_a_callback_is_notified_once_of_success_and_of_failure(step: Prepared) -> None:
    for control, failed in ((PLAIN, False), (late(), True), (Control(measure=True), False)):
        told: list[tuple[NnhalError | None, Timing | None]] = []
        over = threading.Event()

        def notify(
            error: NnhalError | None,
            timing: Timing | None,
            told: list[tuple[NnhalError | None, Timing | None]] = told,
            over: threading.Event = over,
        ) -> None:
            told.append((error, timing))
            over.set()

        made = asked(step, X, nan())
        try:
            step.execute(made, control, notify)
        except MissedDeadline:  # over before it was launched: then nothing follows
            pass_time(0.05)
            assert failed and not told
            continue
        assert over.wait(LIMIT)
        pass_time(0.02)
        ((error, timing),) = told
        assert isinstance(error, MissedDeadline) == failed
        assert (timing is not None and timing.in_driver is not None) == control.measure
        if not failed:
            np.testing.assert_array_equal(made.results[0], X + 1)


def test_executions_with_callbacks_run_at_the_same_time() -> None:
    meeting = threading.Barrier(4)
    over = threading.Semaphore(0)

    def meet(*_: object) -> None:
        meeting.wait(LIMIT)

    prepared = Own(meet)
    for _ in range(4):
        prepared.execute(asked(prepared, X, nan()), PLAIN, lambda error, _: over.release() if error is None else None)
    together([lambda: None if over.acquire(timeout=LIMIT) else pytest.fail("not notified")] * 4)


def test_a_callback_that_fails_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Event()

    def notify(*_: object) -> None:
        called.set()
        raise ValueError("of the callback")

    step = prepare(device_of("reference"), adding(1))
    step.execute(asked(step, X, nan()), PLAIN, notify)
    assert called.wait(LIMIT)
    until(lambda: "the callback of an execution failed" in caplog.text, "it is told")


@pytest.mark.parametrize(("value", "means"), [(None, False), ("1", False), ("0", True)])
def test_one_variable_makes_every_execution_asynchronous(
    value: str | None, means: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NNHAL_SYNC_EXEC", raising=False)
    if value is not None:
        monkeypatch.setenv("NNHAL_SYNC_EXEC", value)
    assert asynchronous() is means
