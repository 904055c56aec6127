"""What happens after a driver's process died: a new one, models prepared again, pauses, quarantine, forgiveness."""

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from nnhal.base.errors import Cancelled, MissedDeadline
from nnhal.hal.request import Control
from nnhal.ipc.client import process
from nnhal.ipc.client.process import (
    ReconnectingDevice,
    start,
)
from nnhal.ipc.client.session import Session
from tests.execution import run_python
from tests.ipc.support import LIMIT, PROBE, inside, numbers, prepare, request_for, run, wait_until
from tests.waiting import Clock

SECOND = 1_000_000_000


@pytest.fixture
def device() -> Iterator[ReconnectingDevice]:
    device = ReconnectingDevice("probe", lambda: start(PROBE))
    device.health.clock = Clock()
    yield device
    device.close()


def kill(device: ReconnectingDevice, how: signal.Signals = signal.SIGKILL) -> None:
    """Kill the process and wait until the client knows. how: SIGABRT looks as if it did that itself."""
    deaths = device.health.total
    os.kill(device.pid, how)
    wait_until(lambda: device.health.total > deaths, "the death is noticed")


# --------------------------------------------------------------------------------------------------------------- start

WITHOUT_STDIO = """
import os, sys
os.closerange(0, 3)
from nnhal.base.errors import NnhalError
from nnhal.ipc.client.process import start
try:
    start(sys.argv[1]).close()
    said = "started"
except NnhalError as error:
    said = str(error)
with open(sys.argv[2], "w") as file:
    file.write(said)
"""


def test_a_program_without_input_output_and_errors_starts_a_process(tmp_path: Path) -> None:
    said = tmp_path / "said"
    run_python(WITHOUT_STDIO, PROBE, str(said), timeout=LIMIT)
    assert said.read_text() == "started"


# ------------------------------------------------------------------------------------------------------------- restart


def test_a_model_is_prepared_again_once_for_all_threads_and_that_is_traced(
    device: ReconnectingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(process._log, "info", lambda text, *values: lines.append(text % values))
    prepared = prepare(device, meet=8)
    kill(device)
    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda n: run(prepared, numbers(start=n)), range(8)))
    assert all(np.array_equal(y, 2 * numbers(start=n)) for n, y in enumerate(outputs))
    assert prepared.prepared_again == 1 and device.restarts == 1  # type: ignore[attr-defined]
    assert inside(device)["prepared"] == 1
    assert any("started again" in line and "SIGKILL" in line for line in lines)
    assert any("was prepared again" in line for line in lines)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "way, end",
    [
        ("run", "cancelled"),
        ("run", "deadline"),
        ("burst", "deadline"),
        ("fenced", "deadline"),
        ("background", "deadline"),
    ],
)
def test_an_execution_does_not_outlast_its_limits_for_a_process_that_comes_back_slowly(way: str, end: str) -> None:
    """It goes on starting, and is there for whoever comes later."""
    may_start = threading.Event()
    may_start.set()

    def connect() -> Session:
        assert may_start.wait(LIMIT)
        return start(PROBE)

    device = ReconnectingDevice("probe", connect)
    try:
        prepared = prepare(device)
        burst = prepared.burst()
        ways = {
            "run": lambda r, c: r.execute(prepared.run, c),
            "burst": lambda r, c: r.execute(burst.run, c),
            "fenced": prepared.execute_fenced,
            "background": lambda r, c: prepared.execute(r, c, lambda *_: None),
        }
        kill(device)
        may_start.clear()
        stop = threading.Event()
        threading.Timer(0.05, stop.set).start()
        control = Control(time.monotonic_ns() + SECOND // 20) if end == "deadline" else Control(cancelled=stop)
        with pytest.raises(MissedDeadline if end == "deadline" else Cancelled):
            ways[way](request_for(prepared, numbers()), control)
        assert device.restarts == 0
        may_start.set()
        assert np.array_equal(run(prepared, numbers()), 2 * numbers())
        assert device.restarts == 1
        burst.close()
    finally:
        may_start.set()
        device.close()


# ---------------------------------------------------------------------------------------------------------- quarantine


def test_a_device_that_nobody_holds_is_ended_and_not_waited_for(monkeypatch):
    """The finalizer runs wherever the garbage collector does; its driver may take as long as it likes."""
    device = ReconnectingDevice("probe", lambda: start(PROBE))
    session, gate = device.remote().session, threading.Event()
    tidy = session._housekeeper._tidy
    waited: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(session._housekeeper, "_tidy", lambda: (gate.wait(LIMIT), tidy()))
        patch.setattr(session._thread, "join", waited.append)
        del device
        gc.collect()
    assert session.peer.dead is not None and session._thread.is_alive() and not waited
    gate.set()
    session._thread.join(LIMIT)
    assert session.peer.process is not None and session.peer.process.poll() is not None
