"""Whoever began something ends it: drivers' processes with their clients, executions with those who wait for them."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.ipc.client import session as sessions
from nnhal.ipc.client.channels import MAX_LANES
from nnhal.ipc.client.process import ReconnectingDevice, start
from tests.ipc.support import wait_until
from tests.models import make_model
from tests.waiting import LIMIT

pytestmark = pytest.mark.faults

DRIVER = str(Path(__file__).parent / "drivers" / "stays.py")
CLIENT = """
import logging, signal, sys, threading, numpy as np, nnhal
from nnhal.ipc.client.process import ReconnectingDevice, start
device = ReconnectingDevice("stays", lambda: start({driver!r}))

class Heard(logging.Handler):
    def emit(self, record):
        print(device.pid, flush=True)

logging.getLogger("nnhal.driver.stays").addHandler(Heard())
b = nnhal.Builder(); x = b.input((4,)); model = b.finish([x], [b.relu(x)])
c = nnhal.compile(model, devices=device, driver_options={{"stays": {{"how": {how!r}}}}})
if {how!r} == "close":
    c(np.ones(4, np.float32)); c.close()
else:
    threading.Thread(target=c, args=(np.ones(4, np.float32),), daemon=True).start()
signal.pause()
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] not in "ZX"
    except OSError:
        return False


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ["close", "held", "deaf"])
def test_a_drivers_process_ends_with_its_client_whatever_the_driver_does(how):
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT.format(driver=DRIVER, how=how)], stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    pid = int(client.stdout.readline())
    assert alive(pid)
    client.kill()
    client.wait()
    client.stdout.close()
    wait_until(lambda: not alive(pid), "the end of the driver's process")


@contextlib.contextmanager
def staying() -> Iterator[ReconnectingDevice]:
    """The device; no fixture, as those outlive the look at what is left."""
    device = ReconnectingDevice("stays", lambda: start(DRIVER))
    try:
        yield device
    finally:
        device.close()


def compiled(device: ReconnectingDevice, how: str) -> nnhal.Compiled:
    model = make_model(lambda b, x: b.relu(x), (4,))
    return nnhal.compile(model, devices=device, driver_options={"stays": {"how": how}}, fallback="forbid")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["call", "burst"])
@pytest.mark.parametrize("how", ["polite", "deaf"])
def test_after_an_interrupt_nothing_is_written_to_the_callers_memory(interrupts, monkeypatch, how, way):
    monkeypatch.setattr(sessions, "SETTLE_NS", 300_000_000)
    monkeypatch.setattr("nnhal.ipc.client.burst.SETTLE_NS", 300_000_000)
    memory = nnhal.Memory.allocate(16)
    room = memory.view(0, 16, np.float32, (4,))
    with staying() as device, compiled(device, how) as c:
        run = c if way == "call" else c.burst()
        while not interrupts.during(lambda: run(np.ones(4, np.float32), out=[room]), 0.2):
            pass
        room[...] = 7
        session = device.remote().session
        wait_until(lambda: session.peer.dead is not None or not session.channels.abandoned, "the late answer")
        assert room.tolist() == [7, 7, 7, 7]


def test_what_nobody_waits_for_is_told_to_the_driver():
    x = np.ones(4, np.float32)
    with staying() as device, compiled(device, "polite") as c:
        for _ in range(3 * MAX_LANES):  # each would hold a lane for ever
            with pytest.raises(nnhal.MissedDeadline):
                c.run(x, deadline=0.005)
        session = device.remote().session
        wait_until(lambda: not session.channels.abandoned, "the end of all abandoned calls")
        assert session.peer.dead is None and device.restarts == 0


def test_a_close_that_hangs_delays_nobody_else():
    x = np.ones(4, np.float32)
    with staying() as device, compiled(device, "") as sound:
        hanging = compiled(device, "close")
        hanging(x)
        hanging.close()
        done = threading.Event()

        def use() -> None:
            for _ in range(20):
                assert sound(x).tolist() == [2, 2, 2, 2]
                with compiled(device, "") as other:
                    other(x)
            done.set()

        threading.Thread(target=use, daemon=True).start()
        assert done.wait(LIMIT)
        assert device.restarts == 0
