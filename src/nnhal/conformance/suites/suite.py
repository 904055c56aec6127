"""Suites and cases. A case runs in a process that the driver may end."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nnhal.base.errors import InvalidArgument
from nnhal.base.records import Record, field
from nnhal.conformance.device_under_test import Subject
from nnhal.conformance.selection import require_share
from nnhal.conformance.verdict import TypeVerdicts
from nnhal.hal.device import Device

VERDICTS = "passed", "failed", "crashed", "hung", "skipped", "unsupported"
# The stage of a case in which the suite itself works: a driver is not blamed for its time.
PREPARING = "suite"


class SuiteRun(Subject, frozen=True):
    """The device under test, and what the suites run on it.

    seed: of all random choices. sample: the share of the cases, chosen by a hash of their names. scale: factor of the
    number of drawn cases and of durations. pattern: a regular expression, only cases whose name it finds. operations:
    only cases of these, empty for all. report: the folder for what suites keep of failures; "" for none.
    vectors: the folder of test vectors. specs: AOSP's specifications that they were built from, if any. execution_path:
    one of `WAYS`. flag: only vectors with this flag. published_only: no variants. model, data, labels: a user's own
    model, inputs and classes for `mlts`; data: also saved inputs for `fuzz`. scratch: the folder for temporary files of
    processes; `run_suite` makes and removes it.
    """

    seed: int = 0
    sample: float = 1.0
    scale: float = 1.0
    pattern: str = ""
    operations: frozenset[str] = frozenset()
    vectors: str = ""
    specs: str = ""
    execution_path: str = "plain"
    flag: str = ""
    published_only: bool = False
    model: str = ""
    data: str = ""
    labels: str = ""
    report: str = ""
    scratch: str = ""

    def __post_init__(self) -> None:
        """Raise InvalidArgument for an impossible share or scale."""
        super().__post_init__()
        require_share("sample", self.sample)
        if not 0 < self.scale < float("inf"):
            raise InvalidArgument(f"scale is {self.scale}, must be above 0 and finite")


class Case(NamedTuple):
    """One test.

    name: unique in its suite; it repeats the test alone. operation, type: as the HAL names them, "" without one, or with
    several. arguments: what the suite needs to run it.
    """

    suite: str
    name: str
    operation: str = ""
    type: str = ""
    arguments: tuple[Any, ...] = ()


class CaseOutcome(Record, frozen=True):
    """The outcome of a case: one of `VERDICTS`, and why.

    operation, type: those that it has, or for which it is bad; "" without one, or with several. hint: the likely cause.
    place: FILE:LINE of the driver, "" if unknown. alone: the verdict alone in a new process, if it ended only a process
    in which others had run. before: the names of those others, in order. found: measurements and files, by name. types:
    the verdict of each operand type that it tried; empty for one that only has `type`.
    """

    suite: str
    name: str
    verdict: str
    reason: str = ""
    operation: str = ""
    type: str = ""
    nanoseconds: int = 0
    hint: str = ""
    place: str = ""
    alone: str = ""
    before: tuple[str, ...] = ()
    found: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def by_type(self) -> Mapping[str, str]:
        """The verdict of each operand type, "" for a case without one."""
        return self.types or {self.type: self.verdict}


class CaseFailed(Exception):
    """The driver broke the promise that a case looks at.

    hint: the likely cause. found: measurements and files. verdict: another one of a process that the case started.
    operation, type: those that are wrong alone, "" if they are those of the case.
    """

    def __init__(
        self,
        reason: str,
        hint: str = "",
        found: Mapping[str, Any] | None = None,
        verdict: str = "failed",
        operation: str = "",
        type: str = "",
    ) -> None:
        super().__init__(reason)
        self.hint, self.found, self.verdict = hint, dict(found or {}), verdict
        self.operation, self.type = operation, type


class NotSupported(Exception):
    """The device does not support something that the case needs."""


class NotApplicable(Exception):
    """The case cannot be judged on this device or machine; the text is the reason."""


class Context:
    """A case's surroundings: the loaded device under test, the run, and the driver's calls as they begin.

    types: the operand types that the case tries, if its name has none. tries: is called with each.
    """

    def __init__(
        self, device: Device, run: SuiteRun, at: Callable[[str], None], tries: Callable[[str], None] = lambda type: None
    ) -> None:
        self.device, self.run, self._at = device, run, at
        self.types = TypeVerdicts(tries)

    def at(self, stage: str) -> None:
        """Announce the driver's next call, such as "prepare": a hang or crash is charged to it. `PREPARING`: none."""
        self._at(stage)


class Suite(ABC):
    """A suite. Instances are made in the parent and in each process, and hold no state of a case.

    serial: whether its cases run one after another, because they measure time.
    bundle: the number of cases that share a process's loop; 1 for long ones.
    """

    name: str
    serial = False
    bundle = 8

    @abstractmethod
    def cases(self, run: SuiteRun) -> Iterable[Case]:
        """Yield all cases, always the same for the same run. Sample and pattern are applied by the caller."""

    @abstractmethod
    def run(self, case: Case, context: Context) -> Mapping[str, Any] | None:
        """Run a case, and return measurements.

        Raises:
            CaseFailed: the driver is at fault.
            NotSupported: the device does not support what the case needs.
            NotApplicable: the case cannot be judged here.
        """

    def seconds(self, case: Case, run: SuiteRun) -> float:
        """Return how long one call of the driver, or one part of the case, may take."""
        return run.timeout

    def more(self, outcome: CaseOutcome) -> Sequence[CaseOutcome]:
        """Return outcomes that a case found beside its own."""
        return ()

    def notes(self, outcomes: Sequence[CaseOutcome]) -> Sequence[str]:
        """Return lines with measurements, for people."""
        return ()

    def finish(self, run: SuiteRun, outcomes: Sequence[CaseOutcome]) -> None:
        """Write what the suite reports beyond its outcomes into `run.report`; also after an interrupted run."""
