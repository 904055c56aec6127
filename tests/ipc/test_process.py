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

from nnhal.base.codes import DeviceStatus
from nnhal.base.errors import Cancelled, Closed, DeadObject, DeviceUnavailable, MissedDeadline
from nnhal.hal.request import Control
from nnhal.ipc.client.process import (
    DEATHS,
    FIRST_PAUSE_NS,
    LONGEST_PAUSE_NS,
    WINDOW_NS,
    ProcessHealth,
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


def test_a_process_that_loads_other_code_than_the_one_that_died_is_another_device(tmp_path: Path) -> None:
    driver = tmp_path / "mine.py"
    text = Path(PROBE).read_text(encoding="utf-8")
    driver.write_text(text, encoding="utf-8")
    device = ReconnectingDevice("mine", lambda: start(str(driver)))
    device.health.clock = Clock()
    prepared = prepare(device)
    kill(device)
    assert np.array_equal(run(prepared, numbers()), 2 * numbers())
    driver.write_text(text + "# changed\n", encoding="utf-8")
    kill(device)
    with pytest.raises(DeviceUnavailable, match="another device came back in its place: other code; compile again"):
        run(prepared, numbers())
    device.close()


def test_the_next_use_starts_the_process_again(device: ReconnectingDevice) -> None:
    first = device.pid
    kill(device)
    prepared = prepare(device)
    assert np.array_equal(run(prepared, numbers()), 2 * numbers())
    assert device.pid != first and device.restarts == 1
    assert "SIGKILL" in str(device.health) and "died 1 times, in use" in str(device.health)


def test_a_model_is_prepared_again_once_for_all_threads(
    device: ReconnectingDevice, caplog: pytest.LogCaptureFixture
) -> None:
    prepared = prepare(device, meet=8)
    kill(device)
    with caplog.at_level("INFO"), ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda n: run(prepared, numbers(start=n)), range(8)))
    assert all(np.array_equal(y, 2 * numbers(start=n)) for n, y in enumerate(outputs))
    assert prepared.prepared_again == 1 and device.restarts == 1  # type: ignore[attr-defined]
    assert inside(device)["prepared"] == 1


def test_being_prepared_again_is_traced(device: ReconnectingDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    from nnhal.ipc.client import process

    lines: list[str] = []
    monkeypatch.setattr(process._log, "info", lambda text, *values: lines.append(text % values))
    prepared = prepare(device)
    kill(device)
    run(prepared, numbers())
    assert any("started again" in line and "SIGKILL" in line for line in lines)
    assert any("was prepared again" in line for line in lines)


def test_who_waits_gets_dead_object_and_the_next_execution_succeeds(device: ReconnectingDevice) -> None:
    prepared = prepare(device, sleep=LIMIT)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            run(prepared, numbers())
        except DeadObject as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: inside(device)["inside"] == 4, "the runs are inside")
    kill(device)
    for thread in threads:
        thread.join(LIMIT)
    assert len(errors) == 4 and all("SIGKILL" in str(error) for error in errors)
    assert np.array_equal(run(prepare(device), numbers()), 2 * numbers())


def test_a_burst_opens_again_after_a_death(device: ReconnectingDevice) -> None:
    prepared = prepare(device)
    with prepared.burst() as burst:
        for round_ in range(2):
            for n in range(3):
                request = request_for(prepared, numbers(start=n))
                request.execute(burst.run, Control())
                assert np.array_equal(request.results[0], 2 * numbers(start=n))
            if round_ == 0:
                kill(device)


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


def test_options_of_the_first_preparation_hold_for_the_second(device: ReconnectingDevice) -> None:
    prepared = prepare(device, sleep=0.2)
    run(prepared, numbers())
    kill(device)
    thread = threading.Thread(target=lambda: run(prepared, numbers()))
    thread.start()
    wait_until(lambda: inside(device)["inside"] == 1, "the run of the second process is inside and sleeps")
    thread.join(LIMIT)


def test_a_closed_device_does_not_come_back(device: ReconnectingDevice) -> None:
    prepared = prepare(device)
    device.close()
    with pytest.raises(Closed):
        run(prepared, numbers())
    with pytest.raises(Closed):
        prepare(device)
    assert device.restarts == 0 and device.health.total == 0


def test_a_device_that_is_closed_while_it_starts_again_does_not_come_back() -> None:
    sessions: list[Session] = []
    starting, closed = threading.Event(), threading.Event()

    def connect() -> Session:
        if sessions:
            starting.set()
            assert closed.wait(LIMIT)
        sessions.append(start(PROBE))
        return sessions[-1]

    device = ReconnectingDevice("probe", connect)
    kill(device)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(device.status)
        assert starting.wait(LIMIT)
        device.close()
        closed.set()
        with pytest.raises(Closed):
            call.result(LIMIT)
    assert len(sessions) == 2 and all(session.peer.dead is not None for session in sessions)
    process = sessions[1].peer.process
    assert process is not None
    wait_until(lambda: process.poll() is not None, "the end of the process that was started last")


def test_a_device_that_is_dropped_ends_its_process_and_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    device = ReconnectingDevice("probe", lambda: start(PROBE))
    session, waits = device.remote().session, []
    monkeypatch.setattr(session._thread, "join", waits.append)
    process = session.peer.process
    assert process is not None
    del device
    gc.collect()
    wait_until(lambda: process.poll() is not None, "the end of the process")
    assert session.peer.dead is not None and not waits


def test_a_device_that_comes_back_as_another_version_is_refused(tmp_path: os.PathLike[str]) -> None:
    file = os.path.join(tmp_path, "changing.py")

    def write(version: str) -> None:
        with open(file, "w") as out:
            out.write(
                "from nnhal.drivers.reference import Reference\n"
                f"class Changing(Reference):\n    name, version = 'changing', '{version}'\n"
                "device = Changing\n"
            )

    write("1")
    device = ReconnectingDevice("changing", lambda: start(file))
    try:
        kill(device)
        write("2")
        with pytest.raises(DeviceUnavailable, match=r"another device came back in its place: version is '2', was '1'"):
            prepare(device)
    finally:
        device.close()


def test_a_process_that_does_not_start_says_why(tmp_path: os.PathLike[str]) -> None:
    file = os.path.join(tmp_path, "broken.py")
    with open(file, "w") as out:
        out.write("raise RuntimeError('no such accelerator')\n")
    with pytest.raises(DeviceUnavailable, match=r"did not start: .*no such accelerator"):
        start(file)
    with pytest.raises(DeviceUnavailable, match="did not start"):
        start("no-such-driver")


# ---------------------------------------------------------------------------------------------------------- quarantine


def test_pauses_double_from_death_to_death() -> None:
    clock = Clock()
    health = ProcessHealth("x", clock)
    assert health.pause_ns() == 0
    pauses = []
    for _ in range(2):
        health.died("killed")
        pauses.append(health.pause_ns())
        clock.ns += SECOND
    assert pauses == [20_000_000, 40_000_000]
    assert pauses[0] == FIRST_PAUSE_NS and max(pauses) <= LONGEST_PAUSE_NS
    assert health.pause_ns() == 0  # the pause has passed


def test_three_deaths_within_a_minute_are_quarantine_and_a_quiet_minute_ends_it() -> None:
    clock = Clock(1000 * SECOND)
    health = ProcessHealth("npu", clock)
    for at in (0, 10, 20):
        clock.ns = (1000 + at) * SECOND
        health.check()
        health.died(f"killed at {at}")
    with pytest.raises(
        DeviceUnavailable,
        match=r"npu: is quarantined for 60 s more: its process died 3 times within 20\.0 s, the last time: killed at 20",
    ):
        health.check()
    assert "quarantined for 60 s" in str(health)
    clock.ns += 59 * SECOND
    assert health.quarantined_ns == SECOND
    clock.ns += SECOND
    health.check()
    assert health.quarantined_ns == 0 and health.pause_ns() == 0
    assert str(health).startswith("died 3 times, in use")
    health.died("once more")
    health.check()  # forgiven: it takes three again


def test_deaths_that_lie_far_apart_are_no_quarantine() -> None:
    clock = Clock()
    health = ProcessHealth("x", clock)
    for _ in range(10):
        health.died("killed")
        clock.ns += WINDOW_NS // 2 + SECOND
        health.check()
    assert health.total == 10 and DEATHS == 3


def test_a_device_in_quarantine_is_offline_and_not_started_until_forgiven(device: ReconnectingDevice) -> None:
    clock = device.health.clock
    assert isinstance(clock, Clock)
    prepared = prepare(device)
    for death in range(DEATHS):
        run(prepared, numbers())
        kill(device, signal.SIGABRT)
        clock.ns += SECOND
        assert device.restarts == death
    pid = device.pid
    with pytest.raises(DeviceUnavailable, match=r"device probe: is quarantined for 59 s more.*SIGABRT"):
        run(prepared, numbers())
    assert device.status() == DeviceStatus.OFFLINE and device.pid == pid
    clock.ns += WINDOW_NS
    assert np.array_equal(run(prepared, numbers()), 2 * numbers())
    assert device.status() == DeviceStatus.AVAILABLE and device.pid != pid


def test_a_process_that_others_kill_is_started_again_each_time(device: ReconnectingDevice) -> None:
    clock, prepared = device.health.clock, prepare(device)
    assert isinstance(clock, Clock)
    for death in range(DEATHS + 1):
        assert np.array_equal(run(prepared, numbers()), 2 * numbers()) and device.restarts == death
        kill(device)
        clock.ns += SECOND
    assert device.status() == DeviceStatus.AVAILABLE and not device.health.quarantined_ns


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
