"""Programs and commands that tests run, each in a process that ends before the call returns."""

import os
import subprocess
import sys

PROGRAM_LIMIT = 280.0  # seconds, for a busy machine; pytest ends a test after 300


def run_python(
    program: str, *arguments: str, check: bool = True, timeout: float = PROGRAM_LIMIT, env: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a Python program with its arguments.

    Args:
        program: The source.
        arguments: Its arguments.
        check: Whether an exit status that is not 0 raises CalledProcessError.
        timeout: The time after which the program counts as hanging, in seconds.
        env: The variables that the program has beside those of the test.
    """
    return _run([sys.executable, "-c", program, *arguments], check, timeout, env)


def run_nnhal(
    *words: str, timeout: float = PROGRAM_LIMIT, env: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command of `nnhal`. env: the variables that it has beside those of the test."""
    return _run([sys.executable, "-m", "nnhal.cli.main", *words], False, timeout, env)


def _run(
    command: list[str], check: bool, timeout: float, env: dict[str, str] | None
) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | (env or {})
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=timeout, env=environment)
