"""Of the cases of a test marked `sampled`, the same share runs each time, and all where they are asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = """
import pytest

@pytest.mark.sampled(4)
@pytest.mark.parametrize("n", range(10))
def test_many(n):
    pass

@pytest.mark.sampled(4)
def test_one():
    pass

@pytest.mark.parametrize("n", range(3))
def test_unmarked(n):
    pass
"""


@pytest.fixture
def collected(tmp_path):
    """The names that pytest collects from TEXT with some arguments."""
    (tmp_path / "test_it.py").write_text(TEXT)

    def collect(*arguments: str) -> list[str]:
        options = ["-p", "tests.sampling", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--override-ini=addopts=", *options]
        done = subprocess.run(
            [*command, *(arguments or ["test_it.py"])],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT)},
        )
        return [line.split("::")[1] for line in done.stdout.splitlines() if "::" in line]

    return collect


def test_one_case_in_n_runs_and_at_least_one_and_always_the_same(collected):
    names = collected()
    assert [sum(name.startswith(each) for name in names) for each in ("test_many", "test_one", "test_unmarked")] == [
        3,
        1,
        3,
    ]
    assert collected() == names


def test_all_cases_run_where_that_is_asked_for(collected):
    assert len(collected("--whole", "test_it.py")) == 10 + 1 + 3


def test_a_case_that_is_named_runs(collected):
    sample = collected()
    left_out = next(name for name in (f"test_many[{n}]" for n in range(10)) if name not in sample)
    assert collected(f"test_it.py::{left_out}") == [left_out]
