"""The picture in the documentation is of a trace as they are today."""

import subprocess
import sys
from pathlib import Path

from tests.execution import PROGRAM_LIMIT

DOCS = Path(__file__).parents[2] / "docs"


def test_the_picture_of_a_trace_has_the_spans_that_one_of_today_has() -> None:
    command = [sys.executable, str(DOCS / "generate_trace_picture.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
