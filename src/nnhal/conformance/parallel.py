"""Runs a selection of test vectors in several processes."""

from collections.abc import Generator, Sequence

from nnhal.base.records import replace
from nnhal.conformance.place import place_first
from nnhal.conformance.pool import TaskResult, Work, run_all
from nnhal.conformance.selection import Item, Selection, name_of, planned
from nnhal.conformance.suite import BUILDING, Outcome


class _VectorWork(Work):
    """Test vectors."""

    module = "nnhal.conformance.worker"
    idle = BUILDING

    def __init__(self, selection: Selection) -> None:
        super().__init__(selection, planned(selection))

    def lost(self, item: Item, verdict: str, reason: str, nanoseconds: int, stack: str, type: str) -> Outcome:
        return Outcome(item.id, verdict, reason, item.variant, item.primary, nanoseconds, place=place_first(stack))

    def late(self, first: Outcome, second: Outcome, before: Sequence[Item]) -> Outcome:
        reason = f"{first.verdict} late, {second.verdict} alone in a new process: {first.reason}"
        ran = tuple(name_of(item.id, item.variant) for item in before)
        return replace(first, reason=reason, alone=second.verdict, before=ran)


def run_vectors(selection: Selection, jobs: int) -> Generator[tuple[TaskResult, int, int], None, None]:
    """Run the selected vectors, as `pool.run_all`."""
    return run_all(_VectorWork(selection), jobs)
