"""Ctrl-C at random moments of every verb, as a terminal sends it: to the command and all that it started."""

import builtins
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from nnhal.drivers.litert.engine import engine
from tests.execution import PROGRAM_LIMIT, run_python
from tests.waiting import LIMIT, until

SECOND = 1.0
PATIENCE = 60
# One byte when the command begins: before, it is Python's start, which no program can mend. What starts these tests may
# ignore interrupts, as shells do in the background.
COMMAND = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from nnhal.cli import start; "
    "fd = int(sys.argv.pop(1)); os.write(fd, b'.'); start()"
)
VERBS = (
    "devices",
    "run tiny_conv --isolate",
    "show mobilenet_v1 --png picture.png",
    "test vectors --vectors VECTORS --isolate --jobs 2",
    "bench tiny_conv --duration 1",
    "bench mobilenet_v1 --vs litert --profile",
    "test vectors --vectors VECTORS",
    "test vectors --vectors VECTORS --isolate --operation add",
    "devices --json",
    "diff mobilenet_v1 --device litert",
    "doctor",
    "models",
    "models picture_person wake_alexa",
    "run mobilenet_v1 --input picture_person",
    "run mobilenet_v1 --input picture_person --isolate --output out.npz",
    "serve",
    "serve litert --name SERVICE",
    "show mobilenet_v1 --placement --isolate",
    "show mobilenet_v1 --svg picture.svg",
)


class Struck(NamedTuple):
    """spent: seconds from the strike to the end; None where the command had ended before."""

    spent: float | None
    code: int
    said: str
    left: list[str]


def strike(words: list[str], after: float, folder: Path) -> Struck:
    """Start a command, strike it and what it started so many seconds later, and see how it ends."""
    mark = f"STRUCK-{uuid.uuid4().hex}"
    environment = {**os.environ, "NNHAL_TEST_MARK": mark}
    started, tells = os.pipe()
    with (
        (folder / "stderr").open("w+b") as said,
        subprocess.Popen(
            [sys.executable, "-P", "-c", COMMAND, str(tells), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=environment,
            cwd=folder,
            pass_fds=[tells],
            start_new_session=True,
        ) as process,
    ):
        os.close(tells)
        os.read(started, 1)
        os.close(started)
        spent = None
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            begin = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()
            spent = time.monotonic() - begin
        said.seek(0)
        return Struck(spent, process.returncode, said.read().decode(), staying(mark))


def staying(mark: str) -> list[str]:
    """Processes of a command that are still there some seconds after its end: one that was just starting has to notice."""
    with contextlib.suppress(pytest.fail.Exception):
        until(lambda: not list(marked(mark)), "their end")
    return list(marked(mark))


def marked(mark: str) -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                yield (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()


def slack() -> float:
    """What to allow for a machine that is busy: ten starts of Python, 0.2 s where it is idle."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-I", "-c", ""], check=True)
    return 10 * (time.monotonic() - begin)


def check(words: str, times: int, folder: Path, request: pytest.FixtureRequest) -> None:
    """Strike a command at random so often. It has to end within a second."""
    places = {"SERVICE": f"struck-{uuid.uuid4().hex[:8]}"}
    if "VECTORS" in words:
        places["VECTORS"] = str(request.getfixturevalue("vectors"))
    arguments = [places.get(word, word) for word in words.split()]
    dice, longest, struck = random.Random(words), 6.0, 0
    for _ in range(times * 5):
        after = dice.uniform(0.01, longest)
        begin = time.monotonic()
        found = strike(arguments, after, folder)
        where = f"{words} struck after {after:.3f} s: {found}"
        assert not found.left and "Traceback" not in found.said, where
        if found.spent is None:
            assert found.code == 0, where
            longest = max(0.05, min(longest, time.monotonic() - begin))  # how long it takes by itself
            continue
        struck += 1
        assert found.spent < SECOND or found.spent < SECOND + slack(), where
        # What has done its work, and is struck while it ends, ends by the signal itself, as a service does, or just ends.
        assert found.code in (130, -signal.SIGINT) or (found.code == 0 and found.spent < SECOND / 10), where
        if struck == times:
            return
    pytest.fail(f"{words}: struck {struck} times of {times * 5}")


def test_an_interrupt_that_a_library_takes_for_an_error_of_its_own_ends_the_command_all_the_same(tmp_path):
    code = (
        "import os, signal, sys, time; from importlib.abc import MetaPathFinder\n"
        "class Swallowing(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'nnhal.cli.doctor':\n"
        "            try: os.kill(os.getpid(), signal.SIGINT); time.sleep(600)\n"
        "            except KeyboardInterrupt: time.sleep(600)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Swallowing()); from nnhal.cli import start; start()\n"
    )
    command = [sys.executable, "-c", code, "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_an_interrupt_in_a_finalizer_ends_the_command_without_a_trace():
    code = (
        "import os, signal, sys, time\n"
        "class Struck:\n"
        "    def __del__(self): os.kill(os.getpid(), signal.SIGINT); time.sleep(600)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler); from nnhal.cli import main, start\n"
        "main.main = lambda: Struck() and None; start()\n"
    )
    ends_as_interrupted(code)


def test_an_interrupt_while_the_interpreter_of_a_service_starts_ends_it_without_a_trace(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\nif 'nnhal.serve' in sys.orig_argv: os.kill(os.getpid(), signal.SIGINT)\n"
    )
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from nnhal.cli import start; start()"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "serve", "reference", "--name", f"struck-{uuid.uuid4().hex[:8]}"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PROGRAM_LIMIT,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def ends_as_interrupted(code):
    done = run_python(code, check=False)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_an_interrupt_that_was_swallowed_by_what_then_ended_is_one_all_the_same():
    code = (
        "import os, signal, sys, time\n"
        "def swallow():\n"
        "    try: os.kill(os.getpid(), signal.SIGINT); time.sleep(600)\n"
        "    except KeyboardInterrupt: sys.exit(0)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler); from nnhal.cli import main, start\n"
        "main.main = swallow; start()\n"
    )
    ends_as_interrupted(code)


def test_an_interrupt_that_comes_out_as_an_error_is_one_all_the_same():
    ends_as_interrupted(
        "import os, signal\n"
        "class Strikes:\n"
        "    def __set_name__(self, owner, name): os.kill(os.getpid(), signal.SIGINT)\n"
        "def makes():\n"
        "    class Made: at = Strikes()\n"  # RuntimeError, on Pythons before 3.12
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from nnhal.cli import main, start\n"
        "main.main = makes; start()\n"
    )


def test_an_interrupt_while_litert_is_initialised_is_none_of_its_failures(monkeypatch):
    def initialised(name, *rest):
        if name == "ai_edge_litert":
            raise ImportError("initialization failed") from KeyboardInterrupt()
        return importing(name, *rest)

    importing = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", initialised)
    with pytest.raises(KeyboardInterrupt):
        engine.__wrapped__()


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("words", VERBS)
def test_control_c_ends_every_verb_whenever_it_comes(words, tmp_path, request):
    check(words, 25, tmp_path, request)


@pytest.mark.nightly
def test_control_c_ends_a_download(tmp_path, monkeypatch):
    monkeypatch.delenv("NNHAL_MODELS")
    for after in (0.8, 1.0, 1.2, 1.5, 2.0):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"{after}"))
        found = strike(["models", "wake_alexa"], after, tmp_path)
        assert "Traceback" not in found.said and not found.left
        assert found.spent is None or (found.spent < SECOND + slack() and found.code in (130, -signal.SIGINT))
