"""What becomes of a file after it was loaded: nothing that happens to it reaches the model."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.frontends.flat import one_operator, tensor

WEIGHTS = np.arange(5000, dtype=np.float32)  # of more than a page

SCRIPT = """
import json, os, sys
import numpy as np
import nnhal

path, device, isolation = sys.argv[1:]
content = open(path, "rb").read()
other = content.replace(np.arange(5000, dtype="f4").tobytes(), np.full(5000, 7, "f4").tobytes())
assert other != content

def rewritten():
    with open(path, "r+b") as file:
        file.write(other)

def truncated():
    os.truncate(path, 0)

def replaced():
    with open(path + ".new", "wb") as file:
        file.write(other)
    os.replace(path + ".new", path)

results = {}
for change in (rewritten, truncated, replaced):
    for stage in ("before compile", "after compile", "after an execution"):
        open(path, "wb").write(content)
        model = nnhal.load(path)
        if stage == "before compile":
            change()
        with nnhal.compile(model, devices=[device], isolation=isolation) as compiled:
            x = np.ones(5000, "f4")
            if stage == "after an execution":
                compiled(x)
            if stage != "before compile":
                change()
            results[change.__name__ + " " + stage] = compiled(x).tolist()
print(json.dumps(results))
"""


def with_weights(path: Path) -> Path:
    """A file that adds the weights to its input."""
    content = one_operator("ADD", [tensor([5000]), tensor([5000], "f4", WEIGHTS)], [tensor([5000])], "Add")
    path.write_bytes(content)
    return path


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("device", "isolation"),
    [("reference", "none"), ("litert", "none"), ("reference", "process"), ("litert", "process")],
)
def test_rewriting_truncating_or_replacing_the_file_changes_no_result(
    tmp_path: Path, device: str, isolation: str
) -> None:
    path = with_weights(tmp_path / "m.tflite")
    command = [sys.executable, "-c", SCRIPT, path, device, isolation]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    results = json.loads(ended.stdout)
    assert len(results) == 9
    for way, result in results.items():
        assert result == (WEIGHTS + 1).tolist(), way


CHANGING = """
import os, sys
path = sys.argv[1]
content = open(path, "rb").read()
print("begun", flush=True)
while True:
    with open(path, "r+b") as file:
        os.truncate(path, 1000)
        file.write(content[:9000])
        file.write(content[9000:])
    os.truncate(path, len(content) // 2)
    os.truncate(path, 0)
    open(path, "wb").write(content)
"""

LOADING = """
import sys, time
import nnhal

ends = {"loaded": 0, "refused": 0}
until = time.monotonic() + 3
while time.monotonic() < until:
    try:
        nnhal.load(sys.argv[1])
        ends["loaded"] += 1
    except nnhal.BadFile:
        ends["refused"] += 1
print(ends["loaded"], ends["refused"])
"""


def test_a_file_that_is_rewritten_and_truncated_while_it_is_loaded_is_a_model_or_a_clear_error(tmp_path: Path) -> None:
    path = with_weights(tmp_path / "m.tflite")
    with subprocess.Popen([sys.executable, "-c", CHANGING, path], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"begun\n"
            ended = subprocess.run(
                [sys.executable, "-c", LOADING, path], check=False, capture_output=True, text=True, timeout=60
            )
        finally:
            other.kill()
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout.split()[1]) > 0
