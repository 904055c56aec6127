"""What a driver's process says reaches the client as log lines and last words, and nothing of it reaches the terminal."""

import gc
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nnhal.base.errors import DeadObject, DeviceUnavailable
from nnhal.ipc.client.output import A_SECOND, KEPT, WORDS, DriverProcess
from nnhal.ipc.client.process import start
from tests.ipc.support import LIMIT, numbers, own_process, prepare, run, wait_until


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Descriptors and threads are what they were."""
    gc.collect()
    before, others = len(os.listdir("/proc/self/fd")), set(threading.enumerate())  # of drivers of other tests
    yield
    wait_until(lambda: gc.collect() >= 0 and len(os.listdir("/proc/self/fd")) <= before, "descriptors are closed")
    wait_until(lambda: not any(t.name == "nnhal-output" for t in set(threading.enumerate()) - others), "threads end")


def says(body: str, name: str = "speaker") -> DriverProcess:
    """A process that runs the code."""
    return DriverProcess(name, [sys.executable, "-c", "import os, sys, time\n" + body], ())


def words(body: str) -> str:
    """Its last words, right after its end."""
    process = says(body)
    process.wait(LIMIT)
    return process.output.last_words()


def logged(caplog: pytest.LogCaptureFixture, name: str = "speaker") -> list[tuple[int, str]]:
    return [(r.levelno, r.getMessage()) for r in caplog.records if r.name == f"nnhal.driver.{name}"]


def test_lines_are_logged_under_the_name_of_the_driver(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nnhal.driver")
    process = says("print('out', flush=True); print('first\\n\\nsecond', file=sys.stderr)", "/some/where/mine.py")
    process.wait(LIMIT)
    wait_until(lambda: len(logged(caplog, "mine")) == 3, "lines")
    assert set(logged(caplog, "mine")) == {(20, "out"), (30, "first"), (30, "second")}


def test_what_is_no_text_is_escaped(caplog: pytest.LogCaptureFixture) -> None:
    said = words("os.write(2, b'\\x1b[2Jwiped\\x07 \\xff \\xe2\\x80\\xae end\\r\\n')")
    assert said == r"\x1b[2Jwiped\x07 \xff \u202e end"
    assert [text for _, text in logged(caplog)] == [said]


def test_last_words_are_there_right_after_the_end() -> None:
    """Whoever asks takes them out of the pipe: it does not matter whether the thread was there first."""
    for _ in range(10):
        assert words("os.write(2, b'one\\ntwo\\nthree')") == "one | two | three"


def test_last_words_are_bounded() -> None:
    said = words(f"for n in range({KEPT * 3}): print('line', n, 'x' * 9000, file=sys.stderr)")
    assert len(said) == WORDS + 1 and said.startswith("…")
    assert f"line {KEPT * 3 - 1} xxx" in said
    assert words(f"for n in range({KEPT * 3}): print(n, file=sys.stderr)") == " | ".join(
        str(n) for n in range(KEPT * 2, KEPT * 3)
    )


def test_who_says_too_much_is_heard_in_part_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    body = "for n in range(30000): print(n, file=sys.stderr)\ntime.sleep(1.1); print('enough', file=sys.stderr)"
    assert words(body).endswith("29998 | 29999 | enough")
    wait_until(lambda: any("enough" in text for _, text in logged(caplog)), "the last line")
    texts = [text for _, text in logged(caplog)]
    assert len(texts) < A_SECOND * 10
    assert sum(int(t.split()[1]) if t.startswith("...") else 1 for t in texts) == 30001


def test_an_orphan_that_holds_the_pipes_holds_nobody_up() -> None:
    process = says("print('parent', file=sys.stderr)\nif os.fork() == 0: time.sleep(20)")
    process.wait(LIMIT)
    assert process.output.last_words() == "parent"


def test_a_forked_child_of_the_client_has_nothing_of_it() -> None:
    before = set(os.listdir("/proc/self/fd"))
    process = says("time.sleep(60)")
    own = set(os.listdir("/proc/self/fd")) - before
    assert len(own) == 3  # two pipes and the pidfd
    pid = os.fork()
    if pid == 0:
        os._exit(len(own & set(os.listdir("/proc/self/fd"))))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    process.kill()
    process.wait(LIMIT)


def test_a_process_that_cannot_be_started_leaves_nothing() -> None:
    with pytest.raises(FileNotFoundError):
        DriverProcess("none", ["/nonexistent/program"], ())


CRASHING = """
import ctypes, sys
from nnhal.drivers.reference import Reference
from nnhal.hal.device import Prepared
class Crashing(Prepared):
    def run(self, request, control):
        print("about to fall", file=sys.stderr)
        self.fall()
    def fall(self):
        ctypes.string_at(0)
class Device(Reference):
    name = "crashing"
    def prepare(self, model, hints):
        return Crashing()
def device():
    return Device()
"""


def test_the_death_of_a_driver_comes_with_its_stack(tmp_path: Path) -> None:
    file = tmp_path / "crashing.py"
    file.write_text(CRASHING)
    with own_process(str(file)) as device:
        prepared = prepare(device)
        with pytest.raises(DeadObject, match="killed by SIGSEGV; its last words: about to fall") as death:
            run(prepared, numbers())
    assert re.search(r"Fatal Python error: Segmentation fault .* in fall \| .* in run", str(death.value))


def test_a_driver_that_does_not_start_says_why(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("import os, sys\nprint('no such engine', file=sys.stderr, flush=True)\nos._exit(3)\n")
    with pytest.raises(DeviceUnavailable, match=r"did not start: .* exit status 3; its last words: no such engine"):
        start(str(file))


def test_a_warning_of_a_driver_is_seen_by_who_configures_no_logging() -> None:
    body = (
        "from nnhal.ipc.client.output import DriverProcess\nimport sys\n"
        "p = DriverProcess('x', [sys.executable, '-c', 'import sys; print(1); print(2, file=sys.stderr)'], ())\n"
        "p.wait(); p.output.last_words()\n"
    )
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=LIMIT, check=True)
    assert (done.stdout, done.stderr) == ("", "2\n")
