"""The examples are what the documentation says."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_example_driver_is_short():
    code = (EXAMPLES / "my_driver.py").read_text().splitlines()
    assert len(code) <= 40


@pytest.mark.models
def test_the_face_detector_finds_the_face(tmp_path):
    program = [sys.executable, str(EXAMPLES / "find_faces.py"), "--output", str(tmp_path / "faces.png")]
    text = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert "found   1 face\n" in text and "where" in text
    assert (tmp_path / "faces.png").stat().st_size > 10_000
