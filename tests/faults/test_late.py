"""What comes late: an answer, a notification, a write. It is never another execution's, and harms nobody's memory."""

import random
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import Cancelled, ContractBroken, MissedDeadline, NnhalError
from nnhal.hal.request import Control
from nnhal.ipc.client.process import ReconnectingDevice, start
from tests.faults.support import WITNESS, numbers, prepared, run
from tests.interrupts import Interrupts
from tests.ipc.support import own_process, wait_until
from tests.models import doubling, make_model

STAYS = str(Path(__file__).parent / "drivers" / "stays.py")
SLOW = 0.02  # seconds that an execution takes


class Untimely(Exception):
    """An application's own."""


def _burst(model: Any, x: np.ndarray) -> np.ndarray:
    with model.burst() as burst:
        request = model.request([x], [np.full_like(x, np.nan)])
        request.execute(burst.run, Control())
        output: np.ndarray = request.results[0]
        return output


def _fenced(model: Any, x: np.ndarray) -> np.ndarray:
    request = model.request([x], [np.full_like(x, np.nan)])
    execution = model.execute_fenced(request, Control())
    if execution.fence is not None:
        execution.fence.wait()
    execution.get_execution_info()
    output: np.ndarray = request.results[0]
    return output


WAYS: dict[str, Callable[[Any, np.ndarray], np.ndarray]] = {"call": run, "burst": _burst, "fenced": _fenced}


def ends_early(interrupts: Interrupts, block: Callable[[], object], seconds: float) -> bool:
    """Whether the block was struck, also where somebody takes the strike for an error of the system's or the driver's."""
    try:
        return interrupts.during(block, seconds)
    except NnhalError:
        return True


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [TimeoutError, ConnectionResetError, OSError, ValueError, Untimely])
def test_whatever_a_signal_handler_raises_later_answers_are_those_of_their_questions(kind, way):
    """An alarm whose handler raises TimeoutError is the usual time-out of a program; that is an OSError, too."""
    dice, struck = random.Random(30), 0
    with Interrupts(kind) as interrupts, own_process(WITNESS) as device:
        model = prepared(device, doubling(64), sleep=SLOW)
        for n in count():
            if n >= 12 and struck > 3:
                break
            struck += ends_early(interrupts, lambda n=n: WAYS[way](model, numbers(64, -n)), dice.uniform(0, SLOW))
            for k in range(2):
                x = numbers(64, 100 * n + k)
                assert np.array_equal(WAYS[way](model, x), x + x)
        session = device.session
        wait_until(lambda: not session.channels.abandoned, "the end of abandoned calls")
        assert session.peer.dead is None


def test_a_notification_that_comes_late_is_not_that_of_the_next_execution():
    """At 1.1 an execution ends with a notification: the client's thread waits for it no longer than its deadline."""
    with own_process(WITNESS, level="1.1") as device:
        slow, quick = prepared(device, waits=1), prepared(device)
        for n in range(4):
            late = Control(deadline=time.monotonic_ns() + 20_000_000)
            with pytest.raises(MissedDeadline):
                run(slow, numbers(64, -n - 1), late)
            for k in range(10):
                x = numbers(64, 100 * n + k)
                assert np.array_equal(run(quick, x), x + x)
        assert device.session.peer.dead is None


# ----------------------------------------------------------------------------------------------------------- late writes


def _deadline(compiled: nnhal.Compiled, x: np.ndarray, out: np.ndarray) -> None:
    with pytest.raises(MissedDeadline):
        compiled.run(x, out=[out], deadline=0.1)


def _cancelled(compiled: nnhal.Compiled, x: np.ndarray, out: np.ndarray) -> None:
    execution = compiled.submit(x, out=[out])
    threading.Timer(0.1, execution.cancel).start()
    with pytest.raises(Cancelled):
        execution.result()


def _burst_deadline(compiled: nnhal.Compiled, x: np.ndarray, out: np.ndarray) -> None:
    with compiled.burst() as burst, pytest.raises(MissedDeadline):
        burst.run(x, out=[out], deadline=0.1)


def _fenced_deadline(compiled: nnhal.Compiled, x: np.ndarray, out: np.ndarray) -> None:
    with pytest.raises(MissedDeadline):
        compiled.execute_fenced(x, out=[out], deadline=0.1).result()


def _fenced_after(compiled: nnhal.Compiled, x: np.ndarray, out: np.ndarray) -> None:
    with pytest.raises(MissedDeadline):
        compiled.execute_fenced(x, out=[out], after=0.1).result()


GIVEN_UP = [_deadline, _cancelled, _burst_deadline, _fenced_deadline, _fenced_after]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("give_up", GIVEN_UP, ids=lambda way: way.__name__.strip("_"))
def test_an_execution_that_was_given_up_never_writes_to_the_callers_memory(give_up, tmp_path):
    """Its driver hears nothing and writes 99 later; meanwhile another execution has its result there."""
    memory = nnhal.Memory.allocate(16)
    out = memory.view(0, 16, np.float32, (4,))
    model = make_model(lambda b, x: b.relu(x), (4,))
    device = ReconnectingDevice("stays", lambda: start(STAYS))

    def compiled(how: str) -> nnhal.Compiled:
        options = {"stays": {"how": how, "gate": str(tmp_path / "open")}}
        return nnhal.compile(model, devices=device, driver_options=options, fallback="forbid")

    try:
        with compiled("deaf") as deaf, compiled("") as sound:
            give_up(deaf, np.ones(4, np.float32), out)
            sound(np.full(4, 3, np.float32), out=[out])
            (tmp_path / "open").touch()
            session = device.remote().session
            wait_until(lambda: not session.channels.abandoned, "the late answer")
            assert out.tolist() == [6, 6, 6, 6]
            assert device.restarts == 0, "the process was replaced, so nothing was late"
    finally:
        device.close()


def test_a_fenced_execution_that_failed_fails_however_often_its_result_is_asked_for():
    device = ReconnectingDevice("witness", lambda: start(WITNESS))
    options = {"witness": {"beyond": 8}}
    try:
        with nnhal.compile(doubling(64), devices=device, driver_options=options, fallback="forbid") as compiled:
            out = np.full(64, -7, np.float32)
            fenced = compiled.execute_fenced(numbers(64), out=[out])
            for _ in range(3):
                with pytest.raises(ContractBroken, match="wrote past the end of output 0"):
                    fenced.result()
                with pytest.raises(NnhalError):
                    fenced.get_execution_info()
            assert (out == -7).all()
    finally:
        device.close()
