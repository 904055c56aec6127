"""Interrupts wherever they come: nothing is lost, every later result is right, and programs end."""

import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.ipc.support import LIMIT, wait_until
from tests.nightly.interrupted import storm
from tests.waiting import jitter


def test_two_hundred_interrupts_in_every_way_to_execute_lose_nothing_and_make_no_result_wrong():
    found = storm(200, seed=6)
    assert min(found["strikes"].values()) > 10 and len(found["strikes"]) == 8


@pytest.mark.parametrize("words", [["--isolate"], []], ids=["isolated", "in process"])
def test_control_c_ends_a_run_of_vectors_and_its_drivers(words, vectors, tmp_path):
    program = [sys.executable, "-c", "from nnhal.cli.main import main; main()"]
    command = [*program, "test", "vectors", *words, "--vectors", str(vectors)]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
    least = 2 if "--isolate" in words else 1  # workers, and the drivers' processes
    wait_until(lambda: len(_below(process.pid)) >= least or process.poll() is not None, "workers and drivers")
    jitter(random.Random(1), 1)
    below = _below(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    try:
        assert process.wait(LIMIT) in (1, 130, -signal.SIGINT)
        wait_until(lambda: not below & _alive().keys(), "the end of all its processes")
    finally:
        for pid in below & _alive().keys():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _below(pid: int) -> set[int]:
    """The processes that a process has started, and those that they have."""
    parents, found = _alive(), {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def _alive() -> dict[int, int]:
    """Processes that have not ended, and their parents."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent, *_ = (entry / "stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            if state not in "ZX":
                found[int(entry.name)] = int(parent)
    return found
