"""Interrupts wherever they come: nothing is lost, every later result is right, and programs end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.interrupted import storm
from tests.ipc.support import LIMIT, wait_until


def test_two_hundred_interrupts_in_every_way_to_execute_lose_nothing_and_make_no_result_wrong():
    found = storm(200, seed=6)
    assert min(found["strikes"].values()) > 10 and len(found["strikes"]) == 7


@pytest.mark.parametrize("words", [["conformance", "--isolate"], ["conformance"]], ids=["isolated", "in process"])
def test_control_c_ends_a_run_of_vectors_and_its_drivers(words, vectors, tmp_path):
    command = [sys.executable, "-c", "from nnhal.cli.main import main; main()", *words, str(vectors)]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
    group = process.pid
    wait_until(lambda: len(_members(group)) > 1 or process.poll() is not None or "--isolate" not in words, "drivers")
    time.sleep(1)
    os.killpg(group, signal.SIGINT)  # as a terminal does
    try:
        assert process.wait(LIMIT) in (1, 130, -signal.SIGINT)
        wait_until(lambda: not _members(group), "the end of all its processes")
    finally:
        for pid in _members(group):
            os.kill(pid, signal.SIGKILL)


def _members(group: int) -> list[int]:
    """Processes of a group that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, its, *_ = (entry / "stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            if int(its) == group and state not in "ZX":
                found.append(int(entry.name))
    return found
