"""Shared code of the verbs that check a driver: collects outcomes with progress, and counts verdicts."""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from logging import CRITICAL
from typing import Any, NamedTuple

import click
from rich.progress import Progress

from nnhal.base.log import logger
from nnhal.cli import common
from nnhal.conformance.pool import TaskResult
from nnhal.conformance.subject import TIMEOUT
from nnhal.conformance.suite import BAD


def timeout_option(help: str) -> Callable[[Any], Any]:
    """Return the option for the time limit of a driver's calls."""
    return click.option("--timeout", default=TIMEOUT, show_default=True, metavar="SECONDS", help=help)


class RunResult(NamedTuple):
    """The outcomes of a run.

    Attributes:
        outcomes: The outcomes.
        calls: The number of calls of each driver method.
        device: The device's name.
        interrupted: The number of outcomes that are missing after Ctrl-C; 0 if the run is complete.
    """

    outcomes: list[Any]
    calls: Counter[str]
    device: str
    interrupted: int


def run_with_progress(
    results: Generator[tuple[TaskResult, int, int], None, None],
    what: str,
    told_of: str,
    device: str,
    quiet: bool,
    bad: Callable[[Any], object] | None = None,
) -> RunResult:
    """Collects outcomes, with progress on stderr: a bar on a terminal, else a line every 10 seconds.

    Args:
        results: Outcomes, the number done and the total.
        what: The unit of the progress, such as "checks".
        told_of: The text before the device's name, such as "checks of".
        device: The device's name until a result has it.
        quiet: Whether no progress is printed.
        bad: Called with each bad outcome. If it is given, Ctrl-C ends the run, and the outcomes so far are returned.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C, and `bad` is not given.
    """
    outcomes: list[Any] = []
    calls: Counter[str] = Counter()
    lost = 0
    counts: Counter[str] = Counter()
    lines, estimate = ProgressLines(common.status.print), TimeLeft()
    with closing(results), reasons_alone(), common.progress(quiet) as bar:
        task = bar.add_task(what, total=None)
        done, total = 0, 1
        try:
            for some, done, total in results:
                outcomes += some.outcomes
                calls += some.calls
                device = some.device
                found = [outcome for outcome in some.outcomes if outcome.verdict in BAD]
                counts.update(outcome.verdict for outcome in found)
                told = "".join(f", {number} {verdict}" for verdict, number in counts.items())
                left = estimate.after(done, total)
                bar.update(task, completed=done, total=total, description=f"{told_of} {device}{told}", left=left)
                if bad is not None and found:
                    with _aside(bar):
                        for outcome in found:
                            bad(outcome)
                if not (quiet or common.status.is_terminal):
                    lines.at(f"{told_of} {device}: {done:,} of {total:,}{told}", left)
        except KeyboardInterrupt:
            if bad is None:
                raise
            lost = max(1, total - done)
    return RunResult(outcomes, calls, device, lost)


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
def _aside(bar: Progress) -> Iterator[None]:
    """Hides a bar while other output goes to the same terminal."""
    shown = bar.live.is_started
    if shown:
        bar.stop()
    try:
        yield
    finally:
        if shown:
            bar.start()


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


def count_verdicts(outcomes: Iterable[Any], verdicts: Sequence[str]) -> dict[str, int]:
    """Counts the outcomes of each verdict."""
    found = Counter(outcome.verdict for outcome in outcomes)
    return {verdict: found[verdict] for verdict in verdicts}
