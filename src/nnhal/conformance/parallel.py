"""Runs a selection of vectors over several processes."""

from collections.abc import Generator

from nnhal.conformance.pool import TaskResult, Work, run_all
from nnhal.conformance.selection import Item, Selection, planned
from nnhal.conformance.suite import Outcome


class _VectorWork(Work):
    """Published vectors."""

    module = "nnhal.conformance.worker"

    def __init__(self, selection: Selection) -> None:
        super().__init__(selection, planned(selection))

    def lost(self, item: Item, verdict: str, reason: str, nanoseconds: int, stack: str) -> Outcome:
        return Outcome(item.id, verdict, reason, item.variant, item.primary, nanoseconds)


def run_vectors(selection: Selection, jobs: int) -> Generator[tuple[TaskResult, int, int], None, None]:
    """As `pool.run_all`, of the vectors that are selected."""
    return run_all(_VectorWork(selection), jobs)
