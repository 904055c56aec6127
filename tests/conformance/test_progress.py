"""What the commands that judge a driver print while they run, without a terminal too, and what a Ctrl-C leaves of it."""

import io
import re
import subprocess
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nnhal.cli.validate import _print_bad

from nnhal.cli import common
from nnhal.cli.judged import ProgressLines, run_with_progress
from nnhal.conformance.pool import TaskResult
from nnhal.conformance.validate.check import CheckOutcome
from nnhal.conformance.validate.run import Validation
from tests.conformance.test_interrupted import Command
from tests.ipc.support import LIMIT

DRIVER = """
import threading
from nnhal.base.codes import OperationType
from nnhal.drivers.reference import Reference
from nnhal.hal.device import Prepared

class Waiting(Prepared):
    def run(self, request, control):
        threading.Event().wait()

class device(Reference):
    name = "waiting"
    def prepare(self, model, hints):
        if model.main.operations[0].type == OperationType.ABS:
            raise KeyError("no")
        return Waiting()
"""


def test_progress_without_a_terminal_is_a_line_after_ten_seconds_and_no_more_than_one_in_ten() -> None:
    clock, said = SimpleNamespace(now=5.0), list[str]()
    lines = ProgressLines(said.append, lambda: clock.now)
    for now in (6, 14.9, 15, 24, 25.5, 30):
        clock.now = now
        lines.at(f"at {now}")
    assert said == ["at 15, 10 s", "at 25.5, 20 s"]


def outcomes_until_ctrl_c() -> Generator[tuple[TaskResult, int, int], None, None]:
    outcomes = [SimpleNamespace(verdict=verdict) for verdict in ("passed", "failed")]
    yield TaskResult(outcomes, Counter(run=1), "mine"), 2, 5
    raise KeyboardInterrupt


def test_ctrl_c_leaves_what_came_where_what_is_bad_is_printed_and_ends_the_rest() -> None:
    seen: list[Any] = []
    ran = run_with_progress(outcomes_until_ctrl_c(), "checks", "checks of", "", quiet=True, bad=seen.append)
    assert [o.verdict for o in ran.outcomes] == ["passed", "failed"] and seen == ran.outcomes[1:]
    assert (ran.calls, ran.device, ran.interrupted) == (Counter(run=1), "mine", 3)
    with pytest.raises(KeyboardInterrupt):
        run_with_progress(outcomes_until_ctrl_c(), "checks", "checks of", "", quiet=True)


class Interrupted(io.StringIO):
    """Output whose first flush a Ctrl-C ends once the text is written."""

    flushed = False

    def flush(self) -> None:
        if not self.flushed:
            self.flushed = True
            raise KeyboardInterrupt


def test_a_failure_that_ctrl_c_interrupts_as_it_is_printed_is_printed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Interrupted()
    monkeypatch.setattr("sys.stdout", output)
    with pytest.raises(KeyboardInterrupt):
        _print_bad(Validation(draws=1), CheckOutcome("runs", "ABS", "failed", "why"))
    common.console.print("report")
    assert [line.split()[0] for line in output.getvalue().splitlines()] == ["FAIL", "report"]


def test_validate_prints_a_failure_when_it_comes_and_a_partial_report_after_ctrl_c(tmp_path: Path) -> None:
    driver = tmp_path / "waiting.py"
    driver.write_text(DRIVER)
    only = ("--only", "runs/ABS", "--only", "runs/NEG")
    command = Command("validate", str(driver), *only, "--samples", "1", "--timeout", "600", stdout=subprocess.PIPE)
    try:
        assert command.process.stdout is not None
        line = command.process.stdout.readline()  # while NEG waits
        assert line.startswith("FAIL  runs  ABS  ") and command.process.poll() is None
        command.interrupt()
        rest, said = command.process.communicate(timeout=LIMIT)
    finally:
        command.process.kill()
        command.process.wait()
    assert command.process.returncode == 130 and "error: interrupted" in said and "Traceback" not in said
    assert rest.startswith("device waiting: ") and "1 failed; 1 operation" in rest
    assert re.search(r"interrupted, at least [12] checks left out", rest)  # 2 where a process had both
