"""Ctrl-C while vectors run, as a terminal sends it to all of its processes: the command ends, and nothing is left."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.ipc.support import LIMIT, wait_until
from tests.waiting import jitter

STUCK = """
import time
from nnhal.drivers.reference import Reference
from nnhal.hal.device import Prepared

class StuckPrepared(Prepared):
    def run(self, request, control):
        time.sleep(3600)

class Stuck(Reference):
    name, version = "stuck", "1"
    def prepare(self, model, hints):
        return StuckPrepared()

def device():
    return Stuck()
"""


class Command:
    """A command in a process group of its own, with all that it started: they have a mark in their environment."""

    def __init__(self, *words: str, stdout: int = subprocess.DEVNULL) -> None:
        self._mark = f"NNHAL_TEST_MARK={uuid.uuid4()}"
        name, value = self._mark.split("=")
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from nnhal.cli.main import main; main()", *words],
            env={**os.environ, name: value},
            stdout=stdout,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def processes(self) -> list[str]:
        """Command lines of all that live."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self._mark.encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:  # ended meanwhile, or another user's
                continue
        return found

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)


def started(command: Command, what: str) -> bool:
    return any(what in line for line in command.processes())


WORKER, DRIVER = "nnhal.conformance.worker", "nnhal.serve"
# What is to be there, seconds after that at most, and how many interrupts come.
MOMENTS = {
    "a worker starts": (WORKER, 0.0, 1),
    "a driver's process starts": (DRIVER, 0.0, 1),
    "the driver executes": (DRIVER, 2.0, 1),
    "it ends": (DRIVER, 2.0, 3),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupted_run_ends_and_leaves_no_process(moment: str, jobs: str, vectors: Path, tmp_path: Path) -> None:
    what, later, times = MOMENTS[moment]
    driver = tmp_path / "stuck.py"
    driver.write_text(STUCK)
    command = Command(
        "test", "vectors", "--vectors", str(vectors), "--driver", str(driver), "--isolate", "--jobs", jobs
    )
    try:
        wait_until(lambda: started(command, what), moment)
        jitter(dice := random.Random(1), later)
        for _ in range(times):
            command.interrupt()
            jitter(dice, 0.04)
        _, said = command.process.communicate(timeout=LIMIT)
        if times == 1:  # a later one may reach Python while it ends, which then says where
            assert command.process.returncode == 130 and "error: interrupted" in said and "Traceback" not in said
        wait_until(lambda: not command.processes(), "the end of all that it started")
    finally:
        command.process.kill()
        command.process.wait()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_is_killed_leaves_no_process(end: signal.Signals, vectors: Path, tmp_path: Path) -> None:
    driver = tmp_path / "stuck.py"
    driver.write_text(STUCK)
    command = Command("test", "vectors", "--vectors", str(vectors), "--driver", str(driver), "--isolate", "--jobs", "2")
    try:
        wait_until(lambda: started(command, DRIVER), "a driver's process")
        command.process.send_signal(end)
        command.process.wait(LIMIT)
        wait_until(lambda: not command.processes(), "the end of all that it started")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.process.pid, signal.SIGKILL)
        command.process.communicate()
