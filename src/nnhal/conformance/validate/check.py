"""What a check of a driver is: a name, the promise that it looks at, and how it looks."""

from collections.abc import Callable

from nnhal.base.records import Record
from nnhal.conformance.validate.trial import Trial

VERDICTS = "passed", "failed", "crashed", "hung", "skipped", "unsupported"
DRIVER = ""  # in place of an operation: of the driver as a whole
Look = Callable[[Trial], int]
UNSEEN = "nothing that it judges happened"
# What single executions have to hold to before two are looked at, and then whatever else there is.
SINGLE = "output-type", "output-shape", "output-once", "output-filled", "past-end", "inputs-kept"
BASIC = ("prepared-twice",)


class ContractCheck(Record, frozen=True):
    """A promise of a driver's, in one sentence, and how it is looked at.

    look: gives how often it saw happen what it judges, and kept to the promise; raises Unmet where the promise is broken,
    NotAsked where it cannot be looked at. Without evidence there is no verdict: a check that saw nothing is skipped.
    unseen: why there may be nothing to see, the reason then.
    needs: checks of the same operation that must not have failed before. inside: needs the driver in this process.
    whole: looks at the driver once, not at each operation. only: the operations that it looks at, all where none is named.
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
    """Add a check to the table, in which those that others need come first."""

    def add(look: Look) -> Look:
        CHECKS[name] = ContractCheck(name, promise, look, unseen, () if whole else needs, inside, whole, only)
        return look

    return add


class CheckOutcome(Record, frozen=True):
    """What became of one check of one operation: one of `VERDICTS`, and why. place: FILE:LINE of the driver, "" if unknown.

    found: names that the check found: of operations of extensions. alone: of a check that cost a process in which others ran
    before it, and no fresh one: its verdict there.
    """

    check: str
    operation: str
    verdict: str
    reason: str = ""
    place: str = ""
    nanoseconds: int = 0
    found: tuple[str, ...] = ()
    alone: str = ""
