"""Where there is no C compiler: everything but processes of drivers works, and who asks for one is told what to do."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from nnhal.base.native import Gate, Mapping, Owner
from nnhal.base.plain import Gate as PlainGate
from nnhal.base.plain import Mapping as PlainMapping
from nnhal.base.plain import Owner as PlainOwner
from tests.execution import PROGRAM_LIMIT
from tests.waiting import LIMIT

SMOKE = Path(__file__).parents[1] / "smoke.py"
HIDE = """
import runpy, sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.startswith("nnhal.") and name.rpartition(".")[2] in ("_gate", "_mapping", "_owner", "_native")
        return None if hidden else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""


def hidden(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", HIDE + program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PROGRAM_LIMIT,
    )


def test_every_way_to_execute_works_without_extensions_and_isolation_is_refused():
    done = hidden(f"runpy.run_path({str(SMOKE)!r}, run_name='__main__')", "--without")
    assert done.returncode == 0, done.stderr
    said, devices = done.stdout.rstrip().split(": ")
    assert "nnhal without extensions" in said and {"litert", "reference"} <= set(devices.split(", "))


def test_doctor_says_what_is_missing_and_for_what():
    done = hidden("runpy.run_module('nnhal.cli.main', run_name='__main__')", "doctor", "--json")
    missing = {f["what"]: f["needed_for"] for f in json.loads(done.stdout) if f["what"].startswith("extension")}
    assert len(missing) == 4 and not any(f["there"] for f in json.loads(done.stdout) if f["what"] in missing)
    assert "C compiler" in missing["extension nnhal.ipc.transport._native"]


NEEDING = {
    "nnhal.cli.main": ("run", "add4", "--device", "reference", "--isolate"),
    "nnhal.serve": ("reference", "--name", "never-there"),
}


@pytest.mark.parametrize("module", NEEDING)
def test_what_needs_a_process_ends_with_the_remedy(module):
    done = hidden(f"runpy.run_module({module!r}, run_name='__main__')", *NEEDING[module])
    assert done.returncode == 4 and "install a C compiler" in done.stderr and "Traceback" not in done.stderr


@pytest.fixture(params=[Gate, PlainGate], ids=["C", "Python"])
def gate(request):
    return request.param


def test_a_gate_opened_twice_lets_one_wait_pass(gate):
    g = gate()
    g.open()
    g.open()
    assert g.wait() and not g.wait(0)


def test_a_gate_that_is_not_opened_is_waited_for_no_longer_than_asked(gate):
    start = time.monotonic()
    assert not gate().wait(0.05)
    assert time.monotonic() - start >= 0.05


def test_a_wait_without_a_limit_goes_on_until_the_gate_is_opened(gate):
    g = gate()
    threading.Timer(1.1, g.open).start()
    assert g.wait()


def test_a_wait_opens_the_other_gate_first(gate):
    mine, theirs = gate(), gate()
    threading.Thread(target=lambda: mine.open() if theirs.wait(LIMIT) else None).start()
    assert mine.wait(10, theirs)


def test_only_a_gate_can_be_opened_first(gate):
    with pytest.raises(TypeError, match="must be a Gate or None"):
        gate().wait(0, object())


@pytest.mark.parametrize("mapping", [Mapping, PlainMapping], ids=["C", "Python"])
def test_a_mapping_is_of_the_bytes_themselves_and_outlives_its_own_name(mapping, tmp_path):
    with open(tmp_path / "bytes", "w+b") as file:
        file.truncate(8192)
        mapped = mapping(file.fileno(), 4096, 4096, True)
        array = np.frombuffer(memoryview(mapped), np.uint8)
        assert len(mapped) == 4096
        del mapped
        array[:3] = 1, 2, 3
        file.seek(4096)
        assert file.read(4) == b"\x01\x02\x03\x00"
        assert memoryview(mapping(file.fileno(), 4096, 0, False)).readonly
        assert len(mapping(file.fileno(), 1, 0, False)) == 1
        for size, offset in ((0, 0), (1, -1)):
            with pytest.raises(ValueError, match="must be at least 1 at 0 or more"):
                mapping(file.fileno(), size, offset, False)


@pytest.mark.parametrize("owner", [Owner, PlainOwner], ids=["C", "Python"])
def test_an_owner_closes_what_it_owns_once_at_close_or_with_its_end(owner):
    owned = owner(*os.pipe())
    first, second = owned.fds
    owned.close()
    assert owned.fds == []
    for fd in (first, second):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    dropped = owner()
    dropped.fds.extend(map(os.dup, (2,)))
    (fd,) = dropped.fds
    del dropped
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
