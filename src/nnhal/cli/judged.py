"""What the verbs that judge a driver share: outcomes as they come, with progress, and how many there are of each verdict."""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from logging import CRITICAL
from typing import Any

from nnhal.base.log import logger
from nnhal.cli import common
from nnhal.conformance.pool import TaskResult
from nnhal.conformance.suite import BAD


def followed(
    results: Generator[tuple[TaskResult, int, int], None, None], what: str, told_of: str, device: str, quiet: bool
) -> TaskResult:
    """All that came, as one. what: is run; told_of: the same before the device's name. device: where nothing names one."""
    outcomes: list[Any] = []
    calls: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    with closing(results), _reasons_alone(), common.progress(quiet) as bar:
        task = bar.add_task(what, total=None)
        for some, done, total in results:
            outcomes += some.outcomes
            calls += some.calls
            device = some.device
            bad.update(outcome.verdict for outcome in some.outcomes if outcome.verdict in BAD)
            told = "".join(f", {number} {verdict}" for verdict, number in bad.items())
            bar.update(task, completed=done, total=total, description=f"{told_of} {device}{told}")
    return TaskResult(outcomes, calls, device)


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
