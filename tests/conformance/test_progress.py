"""What the commands that judge a driver print while they run, without a terminal too, and what a Ctrl-C leaves of it."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

from nnhal.cli.judged import ProgressLines
from tests.conformance.test_interrupted import Command
from tests.ipc.support import LIMIT, wait_until

DRIVER = """
import os
import threading
from pathlib import Path
from nnhal.base.codes import OperationType
from nnhal.drivers.reference import Reference
from nnhal.hal.device import Prepared

class Waiting(Prepared):
    def run(self, request, control):
        Path(__file__).with_name(f"ran-{os.getpid()}").write_text("NEG")
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


def test_ctrl_c_leaves_a_partial_report_with_what_came(tmp_path: Path) -> None:
    driver = tmp_path / "waiting.py"
    driver.write_text(DRIVER)
    words = "test", "contract", "--driver", str(driver), "--filter", "^runs/(ABS|NEG)$", "--report", str(tmp_path / "r")
    command = Command(*words, "--jobs", "1", "--timeout", "600", stdout=subprocess.PIPE)
    try:
        wait_until(lambda: "NEG" in ran(tmp_path), "NEG waits")
        command.interrupt()
        shown, said = command.process.communicate(timeout=LIMIT)
    finally:
        command.process.kill()
        command.process.wait()
    assert command.process.returncode == 130 and "error: interrupted" in said and "Traceback" not in said
    assert "1 of 1 cases are bad (1 failed); interrupted, the report is partial" in shown
    found = json.loads((tmp_path / "r" / "results.json").read_text())
    assert found["partial"] and found["suites"][0]["left_out"] >= 1
    assert {case["name"]: case["verdict"] for case in found["suites"][0]["cases"]}["runs/ABS"] == "failed"


def ran(folder: Path) -> str:
    return "".join(file.read_text() for file in folder.glob("ran-*"))
