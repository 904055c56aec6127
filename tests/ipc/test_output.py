"""What a driver's process says reaches the client as log lines and last words, and nothing of it reaches the terminal."""

import gc
import logging
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from nnhal.base.errors import DeadObject, DeviceUnavailable
from nnhal.ipc.client import output as subject
from nnhal.ipc.client.output import A_SECOND, KEPT, LINE, WORDS, DriverProcess, Output
from nnhal.ipc.client.process import start
from tests.execution import run_python
from tests.ipc.support import LIMIT, numbers, own_process, prepare, run, wait_until
from tests.runtime.devices import failing
from tests.waiting import Opened, pass_time


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Descriptors and threads are what they were."""
    gc.collect()
    opened, others = Opened(), set(threading.enumerate())  # of drivers of other tests
    yield
    opened.closed()
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


def test_who_says_too_much_is_heard_in_part_and_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(subject, "time", SimpleNamespace(monotonic=lambda: now, sleep=time.sleep))
    process = says(
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "for n in range(30000): print(n, file=sys.stderr)\n"
        "signal.sigwait([signal.SIGUSR1]); print('enough', file=sys.stderr)"
    )
    wait_until(lambda: process.output.last_words().endswith("29998 | 29999"), "all of them")
    assert [text for _, text in logged(caplog)] == [str(n) for n in range(A_SECOND)]
    now += 1.1
    process.send_signal(signal.SIGUSR1)
    process.wait(LIMIT)
    assert process.output.last_words().endswith("29998 | 29999 | enough")
    wait_until(lambda: any("enough" in text for _, text in logged(caplog)), "the last line")
    assert [text for _, text in logged(caplog)][A_SECOND:] == [f"... {30000 - A_SECOND} lines left out", "enough"]


def test_an_orphan_that_holds_the_pipes_holds_nobody_up() -> None:
    process = says("print('parent', file=sys.stderr)\nif os.fork() == 0: time.sleep(600)")
    try:
        process.wait(LIMIT)
        assert process.output.last_words() == "parent"
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_a_forked_child_of_the_client_has_nothing_of_it() -> None:
    before = set(os.listdir("/proc/self/fd"))
    process = says("time.sleep(600)")
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


@pytest.mark.parametrize(
    ("body", "how", "end"),
    [
        ("pass", "ended with exit status 0", "exit"),
        ("os._exit(3)", "ended with exit status 3", "exit"),
        ("os.write(2, b'oh'); os.kill(os.getpid(), 9)", "was killed by SIGKILL; its last words: oh", ""),
        ("os.kill(os.getpid(), 15)", "was killed by SIGTERM", ""),
        ("os.kill(os.getpid(), 11)", "was killed by SIGSEGV", "crash"),
        ("os.abort()", "was killed by SIGABRT", "crash"),
    ],
)
def test_how_a_process_ended_is_told_with_its_last_words(body: str, how: str, end: str) -> None:
    """Signals that anybody may send, or the kernel where memory is short, are no evidence against it."""
    process = says(body)
    process.wait(LIMIT)
    assert process.exit_description() == f"the driver process {how}"
    assert process.exit_by_itself == end


def test_the_fate_of_who_has_ended_is_told_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    process = says("os._exit(3)")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    monkeypatch.setattr(process, "wait", lambda _: pytest.fail("waits"))
    assert process.exit_description() == "the driver process ended with exit status 3"


@pytest.mark.parametrize("by", ["wait", "SIGCHLD"])
def test_of_an_exit_status_that_the_program_took_itself_nothing_is_known(by: str) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN if by == "SIGCHLD" else signal.SIG_DFL)
    try:
        process = says("time.sleep(600)")
        assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        if by == "wait":
            os.waitpid(process.pid, 0)
        process.wait(LIMIT)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert "ended with an unknown status" in process.exit_description() and process.exit_by_itself == ""


def test_of_a_process_that_goes_on_there_is_no_fate_to_tell() -> None:
    process = says("time.sleep(600)")
    assert process.exit_description() == "" and process.returncode is None and process.exit_by_itself == ""
    process.kill()
    process.wait(LIMIT)


def test_a_process_leads_a_session_of_its_own() -> None:
    assert words("os.write(2, str(os.getsid(0) == os.getpid() != os.getppid()).encode())") == "True"


# ------------------------------------------------------------------------------------------------- pipes, without a process


class Pipes(Output):
    """Two pipes that the test writes to. drains: how often somebody looked."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        super().__init__(logging.getLogger("nnhal.driver.speaker"))
        self.caplog, self.drains = caplog, 0
        self.out, self.err = map(os.dup, self.ends)

    def _drain(self) -> list[int]:
        self.drains += 1
        return super()._drain()

    def says(self, data: bytes) -> list[bytes]:
        """What is logged of what comes on the errors' pipe, in this thread."""
        before = len(self.lines)
        os.write(self.err, data)
        self.last_words()
        return self.lines[before:]

    @property
    def lines(self) -> list[bytes]:
        return [text.encode() for _, text in logged(self.caplog)]

    def end(self) -> None:
        for fd in (self.out, self.err):
            os.close(fd)
        self.close()


@pytest.fixture
def pipes(caplog: pytest.LogCaptureFixture) -> Iterator[Pipes]:
    caplog.set_level(logging.INFO, "nnhal.driver")
    made = Pipes(caplog)
    yield made
    made.end()


def test_a_line_is_logged_when_it_is_whole_or_too_long_to_wait_for(pipes: Pipes) -> None:
    assert pipes.says(b"beg") == [] and pipes.says(b"un\nnext") == [b"begun"]
    assert pipes.last_words() == "begun | next"
    assert pipes.says(b" one\n\n \n") == [b"next one"]  # nothing of empty lines
    assert pipes.says(b"x" * LINE) == [] and pipes.says(b"y") == [b"x" * LINE]
    assert pipes.says(b"z" * (LINE + 1)) == [b"z" * LINE] and pipes.says(b"a\n") == [b"a"]
    assert pipes.last_words() == f"begun | next one | {'x' * LINE} | {'z' * LINE} | a"


def test_what_is_said_last_is_logged_though_its_line_has_no_end(pipes: Pipes) -> None:
    assert pipes.says(b"the end") == []
    pipes.follow(os.getpid())
    os.close(pipes.err)
    wait_until(lambda: pipes.lines == [b"the end"], "the last line")
    pipes.err = os.dup(pipes.out)
    assert pipes.last_words() == "the end"


def test_what_is_said_after_a_look_and_before_the_end_is_logged(pipes: Pipes, monkeypatch: pytest.MonkeyPatch) -> None:
    pipes._watch = os.eventfd(1)

    class Poll:
        def register(self, fd: int, events: int) -> None:
            pass

        def poll(self) -> list[tuple[int, int]]:  # the pipes had nothing when they were looked at, before the end was
            os.write(pipes.err, b"last words\n")
            return [(pipes._watch, select.POLLIN)]

    monkeypatch.setattr(subject, "select", SimpleNamespace(poll=Poll, POLLIN=select.POLLIN))
    pipes._read()
    assert pipes.lines == [b"last words"]


def test_so_many_lines_are_logged_in_a_second_and_the_others_counted(
    pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(subject, "time", SimpleNamespace(monotonic=lambda: now))
    some = b"".join(b"%d\n" % n for n in range(A_SECOND - 1))
    assert len(pipes.says(some)) == A_SECOND - 1
    assert pipes.says(b"one\ntwo\nthree\n") == [b"one"]
    now = 101.0
    assert pipes.says(b"four\n") == []
    now = 101.1
    assert pipes.says(b"five\n") == [b"... 3 lines left out", b"five"]
    assert len(pipes.says(some)) == A_SECOND - 1 and pipes.says(b"six\n") == []
    assert pipes.last_words().endswith(f"| {A_SECOND - 2} | six")
    now = 103.0
    assert pipes.says(b"seven\n")[0] == b"... 1 lines left out"


def test_who_says_too_much_is_read_slowly_and_others_at_once(pipes: Pipes, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        if threading.current_thread().name == "nnhal-output":
            slept.append(seconds)
        else:  # someone waits for the end of another test's process
            pass_time(seconds)

    monkeypatch.setattr(subject, "time", SimpleNamespace(monotonic=lambda: 100.0, sleep=sleep))
    pipes.follow(os.getpid())
    os.write(pipes.err, b"x\n" * A_SECOND)
    wait_until(lambda: len(pipes.lines) == A_SECOND, "lines")
    assert slept == []
    os.write(pipes.err, b"y\n")
    wait_until(lambda: len(slept) == 1, "a pause")
    assert 0 < slept[0] < 0.1


def test_a_pipe_that_has_ended_is_not_looked_at_any_more(pipes: Pipes) -> None:
    pipes.follow(os.getpid())
    os.close(pipes.out)
    wait_until(lambda: len(pipes._levels) == 1, "its end")
    looks = pipes.drains
    threading.Event().wait(0.05)
    assert pipes.drains <= looks + 1
    os.write(pipes.err, b"still here\n")
    wait_until(lambda: pipes.lines == [b"still here"], "the other pipe")
    pipes.out = os.dup(pipes.err)


def test_without_a_thread_the_pipes_are_closed_and_the_process_hears_of_it(
    pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", failing(RuntimeError("can't start new thread")))
        pipes.follow(os.getpid())
    with pytest.raises(BrokenPipeError):
        os.write(pipes.err, b"anyone?")
    pipes.close()  # nothing is closed twice


def test_pipes_that_were_never_followed_are_closed_once() -> None:
    made = Output(logging.getLogger("nnhal.driver.speaker"))
    fds = [*made._levels, *made.ends]
    made.close()
    again = [os.dup(0) for _ in fds]
    made.close()
    for fd in again:
        os.close(fd)  # they are still the test's


def test_any_descriptor_may_be_the_one_that_tells_the_end(caplog: pytest.LogCaptureFixture) -> None:
    made, child = Pipes(caplog), subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    keyboard = os.dup(0)
    os.close(0)
    try:
        made.follow(child.pid)
        assert made._watch == 0
        child.communicate(b"\n")
        wait_until(lambda: not Path("/proc/self/fd/0").exists(), "its end")  # the test still holds the pipes
    finally:
        os.dup2(keyboard, 0)
        os.close(keyboard)
        made.end()


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
    done = run_python(body, timeout=LIMIT)
    assert (done.stdout, done.stderr) == ("", "2\n")
