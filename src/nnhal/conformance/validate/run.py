"""Runs the checks on a driver, in processes that it may end, each check after those that it needs."""

import re
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple

from nnhal.base.errors import InvalidArgument
from nnhal.base.names import suggestion
from nnhal.base.records import replace
from nnhal.conformance.control import CONTROL
from nnhal.conformance.device_under_test import Bundle, Subject
from nnhal.conformance.draw import cells
from nnhal.conformance.place import place_first
from nnhal.conformance.pool import TaskResult, Work, run_all
from nnhal.conformance.selection import is_sampled, require_share
from nnhal.conformance.validate.check import CHECKS, DRIVER, CheckOutcome
from nnhal.conformance.validate.table import of_operation, of_the_driver
from nnhal.conformance.validate.trial import AFTER, DRAWING

DRAWS = 2  # of each cell
LATELY = 3  # checks before a crash that are named
APART = 6  # checks in one bundle


class Validation(Subject, frozen=True):
    """The checks to run. draws: of each cell. sample: the share of the checks of operations, by a hash of both names.

    only: CHECK, CHECK/OPERATION, or /OPERATION; empty for all. `cache` selects all whose names begin with `cache-`.
    names: a regular expression, only checks whose CHECK/OPERATION it finds, or CHECK for the driver as a whole.
    """

    only: tuple[str, ...] = ()
    seed: int = 0
    draws: int = DRAWS
    sample: float = 1.0
    names: str = ""

    def __post_init__(self) -> None:
        """Raise InvalidArgument for an unknown check or an impossible number."""
        super().__post_init__()
        for check, _ in self.wanted:
            if check and check not in CHECKS:
                like = suggestion(check, CHECKS) or f", must be one of {', '.join(CHECKS)}"
                raise InvalidArgument(f"only: check {check!r} is unknown{like}")
        if self.draws < 1:
            raise InvalidArgument(f"draws is {self.draws}, must be at least 1")
        require_share("sample", self.sample)

    @property
    def wanted(self) -> list[tuple[str, str]]:
        """The pairs of check and operation, "" for any."""
        pairs = []
        for each in self.only:
            check, _, operation = each.partition("/")
            family = [] if check in CHECKS or not check else [name for name in CHECKS if name.startswith(f"{check}-")]
            pairs += [(name, operation.upper()) for name in family or [check]]
        return pairs

    def takes(self, check: str, operation: str) -> bool:
        """Whether a check of an operation is selected, and in the sample."""
        asked = not self.only or any(c in ("", check) and o in ("", operation.upper()) for c, o in self.wanted)
        name = f"{check}/{operation}" if operation else check
        sampled = not operation or self.sample == 1 or is_sampled(name, self.sample)
        return asked and sampled and bool(re.search(self.names, name))

    def needs(self, check: str, operation: str) -> set[str]:
        """Return the checks of the operation that run before this one: those that it needs and that are selected."""
        found: set[str] = set()
        for need in CHECKS[check].needs:
            found |= {need} if self.takes(need, operation) else self.needs(need, operation)
        return found

    @property
    def chooses(self) -> bool:
        """Whether single checks are named: these run whatever others find."""
        return any(check and not CHECKS[check].whole for check, _ in self.wanted)


class CheckItem(NamedTuple):
    """One check of one operation."""

    check: str
    operation: str


class _Checks(Work):
    """Checks of a driver. A check of an operation runs after those that it needs, if none of them failed."""

    module = "nnhal.conformance.validate.worker"
    idle = DRAWING

    def __init__(self, chosen: Validation) -> None:
        self._chosen = chosen
        # By operation and check: its verdict, or the failed check that it needs. A check that saw nothing does not keep
        # others from running.
        self._came: dict[str, dict[str, str]] = defaultdict(dict)
        self._types: dict[str, dict[str, Mapping[str, str]]] = defaultdict(dict)  # by operation and check
        self._waiting: dict[str, set[str]] = {}  # by operation: the checks that run, or are skipped, after others
        self._later: dict[str, int] = {}  # by operation: the number of those, before any outcome
        self._left_out: dict[str, int] = {}  # by operation with an outcome: the number of those that never run
        whole = [CheckItem(each.name, DRIVER) for each in of_the_driver()]
        wanted = [item for item in whole if chosen.takes(item.check, DRIVER) or item.check == "extensions"]
        names = dict.fromkeys([*(cell.op.name for cell in cells()), *CONTROL])
        first = [bundle for name in names for bundle in self._first(name)]
        super().__init__(chosen, [*(Bundle(DRIVER, (item,)) for item in wanted), *first])

    def _first(self, operation: str) -> list[Bundle]:
        """Return an operation's first bundles."""
        wanted = [each for each in of_operation(operation) if self._chosen.takes(each.name, operation)]
        if not self._chosen.chooses:
            first = [each for each in wanted if not self._chosen.needs(each.name, operation)]
            self._waiting[operation] = {each.name for each in wanted} - {each.name for each in first}
            self._later[operation] = len(self._waiting[operation])
            wanted = first
        parts = [tuple(wanted[start : start + APART]) for start in range(0, len(wanted), APART)]
        return [Bundle(operation, tuple(CheckItem(each.name, operation) for each in part)) for part in parts]

    def is_own(self, stage: str) -> bool:
        return stage == self.idle or stage.startswith(AFTER)

    def lost(self, item: CheckItem, verdict: str, reason: str, nanoseconds: int, stack: str, type: str) -> CheckOutcome:
        reason = reason.partition(": ")[2]  # without the device's name
        types = {type: verdict} if type else {}
        return CheckOutcome(item.check, item.operation, verdict, reason, place_first(stack), nanoseconds, types=types)

    def late(self, first: CheckOutcome, second: CheckOutcome, before: Sequence[CheckItem]) -> CheckOutcome:
        ran = list(dict.fromkeys(item.check for item in before if item.check != first.check))
        told = f", such as {', '.join(ran[-LATELY:])}" if ran else ""
        alone = f"not in a new process: an earlier check may be the cause{told}"
        verdict = "hung" if first.verdict == "skipped" else first.verdict  # the suite's own work did not finish
        reason = f"{first.reason} ({alone})"
        types = dict.fromkeys(first.types, verdict)
        return replace(first, verdict=verdict, reason=reason, alone=second.verdict, found=second.found, types=types)

    def after(self, outcome: CheckOutcome) -> tuple[list[Bundle], list[CheckOutcome]]:
        """Return bundles for new operations of extensions and for waiting checks, and the skipped checks."""
        came, types = self._came[outcome.operation], self._types[outcome.operation]
        types[outcome.check] = outcome.types
        verdict = came[outcome.check] = outcome.alone or outcome.verdict
        if outcome.check == "extensions":
            return [bundle for operation in outcome.found for bundle in self._first(operation)], []
        if self._chosen.chooses or not outcome.operation:
            return [], []
        waiting = self._waiting[outcome.operation]
        self._left_out.setdefault(outcome.operation, 0)
        if verdict == "unsupported":
            lost = self._behind(outcome.operation, outcome.check)
            self._left_out[outcome.operation] += len(lost)
            waiting -= lost
            return [], []
        ready: list[CheckItem] = []
        skipped: list[CheckOutcome] = []
        news = [outcome.check]
        while news:
            done = news.pop()
            for each in of_operation(outcome.operation):
                if each.name in came or not self._chosen.takes(each.name, outcome.operation):
                    continue
                needs = self._chosen.needs(each.name, outcome.operation)
                if done not in needs or not needs <= came.keys():
                    continue
                failed = next(
                    (need for need in CHECKS if need in needs and came[need] not in ("passed", "skipped")), ""
                )
                if not failed:
                    ready.append(CheckItem(each.name, outcome.operation))
                    continue
                came[each.name] = (
                    came[failed] if "/" in came[failed] else f"{failed}/{outcome.operation} {came[failed]}"
                )
                types[each.name] = {
                    kind: found if found == "unsupported" else "skipped" for kind, found in types[failed].items()
                }
                skipped.append(
                    CheckOutcome(
                        *(each.name, outcome.operation, "skipped", f"{came[each.name]} before"),
                        types=types[each.name],
                    )
                )
                news.append(each.name)
        waiting -= {item.check for item in ready} | {each.check for each in skipped}
        parts = [tuple(ready[start : start + APART]) for start in range(0, len(ready), APART)]
        return [Bundle(outcome.operation, part) for part in parts], skipped

    def _behind(self, operation: str, check: str) -> set[str]:
        """Return the waiting checks that need this one."""
        found, left, fresh = set[str](), set(self._waiting[operation]), {check}
        while fresh:
            fresh = {name for name in left if self._chosen.needs(name, operation) & fresh}
            found, left = found | fresh, left - fresh
        return found

    def expected(self) -> int:
        """Return the number of waiting checks; those of operations without an outcome, by the share of the others."""
        begun = self._left_out
        known = sum(len(self._waiting[operation]) for operation in begun)
        most = max(self._later.values(), default=0)  # at first, as if an operation had been supported
        behind = sum(self._later[operation] for operation in begun) + most
        share = 1 - sum(begun.values()) / behind if behind else 0.0
        return known + round(share * (sum(map(len, self._waiting.values())) - known))


def run_checks(chosen: Validation, jobs: int) -> Generator[tuple[TaskResult, int, int], None, None]:
    """Run the selected checks, as `pool.run_all`."""
    return run_all(_Checks(chosen), jobs)
