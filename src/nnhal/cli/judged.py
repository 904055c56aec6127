"""Shared code of the verbs that check a driver: the time limit, and progress while outcomes come."""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from logging import CRITICAL
from typing import Any

import click

from nnhal.base.log import logger
from nnhal.cli import common
from nnhal.conformance.device_under_test import TIMEOUT
from nnhal.conformance.pool import TaskResult
from nnhal.conformance.verdict import BAD


def timeout_option(help: str) -> Callable[[Any], Any]:
    """Return the option for the time limit of a driver's calls."""
    return click.option("--timeout", default=TIMEOUT, show_default=True, metavar="SECONDS", help=help)


def run_with_progress(
    results: Generator[tuple[TaskResult, int, int], None, None], what: str, told_of: str, device: str, quiet: bool
) -> list[Any]:
    """Collects outcomes, with progress on stderr: a bar on a terminal, else a line every 10 seconds.

    Args:
        results: Outcomes, the number done and the total.
        what: The unit of the progress, such as "kernels".
        told_of: The text before the device's name, such as "kernels of".
        device: The device's name until a result has it.
        quiet: Whether no progress is printed.
    """
    outcomes: list[Any] = []
    counts: Counter[str] = Counter()
    with closing(results), reasons_alone(), shown_progress(what, quiet) as show:
        for some, done, total in results:
            outcomes += some.outcomes
            counts.update(outcome.verdict for outcome in some.outcomes if outcome.verdict in BAD)
            told = "".join(f", {number} {verdict}" for verdict, number in counts.items())
            show(done, total, f"{told_of} {some.device}", told)
    return outcomes


@contextmanager
def shown_progress(what: str, quiet: bool) -> Iterator[Callable[[int, int, str, str], None]]:
    """Show progress on stderr with an estimate of the remaining time: a bar on a terminal, else a line every 10 seconds.

    Args:
        what: The text before the first number.
        quiet: Whether nothing is shown.

    Yields:
        A function that gets the numbers done and in total, a text, and what follows both in a line.
    """
    lines, estimate = ProgressLines(common.status.print), TimeLeft()
    with common.progress(quiet) as bar:
        task = bar.add_task(what, total=None)

        def show(done: int, total: int, text: str, told: str) -> None:
            left = estimate.after(done, total)
            bar.update(task, completed=done, total=total, description=text + told, left=left)
            if not (quiet or common.status.is_terminal):
                lines.at(f"{text}: {done:,} of {total:,}{told}", left)

        yield show


class TimeLeft:
    """Estimates the remaining time from the mean time of the cases so far."""

    LEAST = 2.0  # seconds of a run before its mean time means something

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin = clock()

    def after(self, done: int, total: int) -> str:
        """The remaining time when so many are done, such as "about 40 s left"; "" if it cannot be estimated."""
        spent = self._clock() - self._begin
        if not done or done >= total or spent < self.LEAST:
            return ""
        seconds = spent * (total - done) / done
        unit, size = next(((unit, size) for unit, size in (("s", 1), ("min", 60)) if seconds < 90 * size), ("h", 3600))
        return f"about {max(1, round(seconds / size))} {unit} left"


class ProgressLines:
    """Progress without a terminal: a line at most every `SECONDS`."""

    SECONDS = 10.0

    def __init__(self, show: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self._clock = show, clock
        self._begin = self._last = clock()

    def at(self, text: str, left: str = "") -> None:
        """Shows a text, if the last line is `SECONDS` old. left: the estimate of the remaining time."""
        now = self._clock()
        if now - self._last >= self.SECONDS:
            self._last = now
            self._show(f"{text}, {now - self._begin:.0f} s{left and f', {left}'}")


@contextmanager
def reasons_alone() -> Iterator[None]:
    """Mutes the drivers' log unless the user configured it: the outcome's reason has a driver's last output."""
    log = logger("driver")
    level = log.level
    log.setLevel(level or CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
