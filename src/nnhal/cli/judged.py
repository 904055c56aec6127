"""What the verbs that judge a driver share: outcomes as they come, with progress, and how many there are of each verdict."""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from logging import CRITICAL
from typing import Any, NamedTuple

from rich.progress import Progress

from nnhal.base.log import logger
from nnhal.cli import common
from nnhal.conformance.pool import TaskResult
from nnhal.conformance.suite import BAD


class RunResult(NamedTuple):
    """What came of a run. interrupted: how many outcomes a Ctrl-C left out; 0 where all came."""

    outcomes: list[Any]
    calls: Counter[str]
    device: str
    interrupted: int


def followed(
    results: Generator[tuple[TaskResult, int, int], None, None],
    what: str,
    told_of: str,
    device: str,
    quiet: bool,
    bad: Callable[[Any], object] | None = None,
) -> RunResult:
    """All that came, as one, with the progress on stderr: a bar on a terminal, else a line now and then.

    Args:
        results: what comes, how many have come, and how many there are.
        what: what is run.
        told_of: the same before the device's name.
        device: the name where nothing names one.
        quiet: whether no progress is printed.
        bad: called with each bad outcome as it comes. If it is given, a Ctrl-C ends the run, and what came is returned.

    Raises:
        KeyboardInterrupt: a Ctrl-C, if `bad` is not given.
    """
    outcomes: list[Any] = []
    calls: Counter[str] = Counter()
    lost = 0
    counts: Counter[str] = Counter()
    lines, estimate = ProgressLines(common.status.print), TimeLeft()
    with closing(results), _reasons_alone(), common.progress(quiet) as bar:
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
    """Progress where there is no terminal: a line at most every `SECONDS`, the first one after as long."""

    SECONDS = 10.0

    def __init__(self, show: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self._clock = show, clock
        self._begin = self._last = clock()

    def at(self, text: str, left: str = "") -> None:
        """How far it is; shown where the last line is old enough. left: the estimate of the remaining time."""
        now = self._clock()
        if now - self._last >= self.SECONDS:
            self._last = now
            self._show(f"{text}, {now - self._begin:.0f} s{left and f', {left}'}")


@contextmanager
def _aside(bar: Progress) -> Iterator[None]:
    """What is printed inside does not mix with a bar on the same terminal."""
    shown = bar.live.is_started
    if shown:
        bar.stop()
    try:
        yield
    finally:
        if shown:
            bar.start()


@contextmanager
def _reasons_alone() -> Iterator[None]:
    """What a driver says before it crashes is in the reason, and not logged too, unless somebody asked for that."""
    log = logger("driver")
    level = log.level
    log.setLevel(level or CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def totals(outcomes: Iterable[Any], verdicts: Sequence[str]) -> dict[str, int]:
    """How many outcomes there are of each verdict."""
    found = Counter(outcome.verdict for outcome in outcomes)
    return {verdict: found[verdict] for verdict in verdicts}
