"""A check of the driver contract: its name, its rule, and the function that checks it, for each operand type."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from nnhal.base.records import Record, field
from nnhal.conformance.validate.trial import NoSample, NotAccepted, NotAsked, ProcessDied, Trial

DRIVER = ""  # in place of an operation: for the driver as a whole
Look = Callable[[Trial], int]
Trying = TypeVar("Trying", bound=Trial)
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
    alone: the verdict of a check alone in a new process, if it ended only a process in which others had run. types: the
    verdict of each operand type.
    """

    check: str
    operation: str
    verdict: str
    reason: str = ""
    place: str = ""
    nanoseconds: int = 0
    found: tuple[str, ...] = ()
    alone: str = ""
    types: Mapping[str, str] = field(default_factory=dict)


def look_by_type(trial: Trying, look: Callable[[Trying], int]) -> int:
    """Look at the calls of one operand type after another, and note the verdict of each in `trial.types`.

    A look that needs one call ends with the first type that has it. A type without samples is left out.

    Returns:
        How often the rule was kept, for any type.

    Raises:
        Exception: the first error of a type. NotAsked and NotAccepted, in this order, if no type kept the rule.
    """
    kept, unseen, ended = 0, False, list[Exception]()
    for kind in trial.calls.kinds():
        trial.calls.restrict(kind)
        try:
            seen = look(trial)
        except NoSample as why:
            ended.append(why)
            verdict = ""
        except NotAsked as why:
            ended.append(why)
            verdict = "unsupported" if isinstance(why, NotAccepted) else "skipped"
        except ProcessDied:  # of the current type
            raise
        except Exception as error:
            ended.append(error)
            verdict = "failed"
        else:
            kept, unseen, verdict = kept + seen, unseen or not seen, "passed" if seen else "skipped"
        trial.end()
        trial.types.end(verdict) if verdict else trial.types.drop()
        if trial.calls.has_one and verdict in ("passed", "failed"):
            break
    trial.calls.restrict(None)
    worst = max(ended, key=_rank, default=None)
    least = NotAsked if kept else NoSample if unseen else None  # an error up to this one is not that of the case
    if worst is not None and (least is None or _rank(worst) > _ERRORS.index(least)):
        raise worst
    return kept


def _rank(error: Exception) -> int:
    return next(n for n, kind in enumerate(_ERRORS) if isinstance(error, kind))


_ERRORS: tuple[type[Exception], ...] = NotAccepted, NoSample, NotAsked, Exception  # the worst last
