"""What `./check` does with a test that fails in the run: it is repeated alone, and named where it then passes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unstable import EvenShares

PASSES_LATER = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_passes_the_second_time(number):
    seen = Path({folder!r}, str(number))
    before = seen.exists()
    seen.touch()
    assert before
"""


def run(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    Path(folder, "test_it.py").write_text(source)
    program = [sys.executable, "-m", "pytest", "-p", "tests.unstable", "-p", "no:cacheprovider", *options]
    environment = {"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": ""}
    return subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [(), ("--numprocesses", "2", "--dist", "loadfile")], ids=["here", "workers"])
@pytest.mark.parametrize(("count", "passes"), [(2, True), (3, False)])
def test_two_unstable_tests_are_named_and_three_fail_the_run(
    tmp_path: Path, count: int, passes: bool, workers: tuple[str, ...]
) -> None:
    done = run(tmp_path, PASSES_LATER.format(count=count, folder=str(tmp_path)), "--unstable", "2", *workers)
    assert (done.returncode == 0) is passes, done.stdout
    for number in range(count):
        assert f"UNSTABLE test_it.py::test_passes_the_second_time[{number}]" in done.stdout


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_it():\n    assert 0, 'broken'\n", "--unstable", "2")
    assert done.returncode == 1
    assert "failed again, alone: test_it.py::test_it" in done.stdout
    assert "UNSTABLE" not in done.stdout


def test_only_long_files_are_split_over_workers() -> None:
    split = EvenShares._split_scope
    assert split(None, "tests/hal/test_queue.py::test_a[x::y]") == "tests/hal/test_queue.py"
    assert (
        split(None, "tests/differential/test_devices.py::test_a[x]") == "tests/differential/test_devices.py::test_a[x]"
    )
