"""A check of the driver contract: its name, its rule, and the function that checks it."""

from collections.abc import Callable

from nnhal.base.records import Record
from nnhal.conformance.validate.trial import Trial

DRIVER = ""  # in place of an operation: for the driver as a whole
Look = Callable[[Trial], int]
UNSEEN = "the check saw nothing to judge"
# Single executions must satisfy these before checks compare two executions.
SINGLE = "output-type", "output-shape", "output-once", "output-filled", "past-end", "inputs-kept"
BASIC = ("prepared-twice",)


class ContractCheck(Record, frozen=True):
    """A rule of the driver contract, in one sentence, and its check.

    look: returns how often it saw the rule kept; RequirementNotMet if the rule is broken, NotAsked if it cannot be checked.
    A check that saw nothing is skipped. unseen: the reason then. needs: checks of the same operation that must not have
    failed before. inside: whether it needs the driver in this process. whole: whether it checks the driver once, not
    each operation. only: the operations that it checks, empty for all.
    """

    name: str
    promise: str
    look: Look
    unseen: str
    needs: tuple[str, ...]
    inside: bool
    whole: bool
    only: tuple[str, ...]


CHECKS: dict[str, ContractCheck] = {}


def check(
    name: str,
    promise: str,
    needs: tuple[str, ...] = BASIC,
    *,
    unseen: str = UNSEEN,
    inside: bool = False,
    whole: bool = False,
    only: tuple[str, ...] = (),
) -> Callable[[Look], Look]:
    """Add a check to the table; the checks that it needs must be there already."""

    def add(look: Look) -> Look:
        CHECKS[name] = ContractCheck(name, promise, look, unseen, () if whole else needs, inside, whole, only)
        return look

    return add


class CheckOutcome(Record, frozen=True):
    """The outcome of one check of one operation: a verdict of `suites.suite`, and why.

    place: FILE:LINE of the driver, "" if unknown. found: names that the check found, of operations of extensions.
    alone: the verdict of a check alone in a new process, if it ended only a process in which others had run.
    """

    check: str
    operation: str
    verdict: str
    reason: str = ""
    place: str = ""
    nanoseconds: int = 0
    found: tuple[str, ...] = ()
    alone: str = ""
