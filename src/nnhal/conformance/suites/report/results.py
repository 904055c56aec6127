"""Results of suites as reports show them: outcomes next to the expected failures, and counts of them."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from nnhal.base.records import Record, field
from nnhal.conformance.suites.suite import CaseOutcome, SuiteRun
from nnhal.conformance.verdict import BAD, LAST_WORDS, kind_of

_DEVICE = re.compile(r"\bdevice [^\s:]+: ")
# Verdicts of a report: a case that is bad as expected is `expected`; one that passes in spite of that is `failed`.
EXPECTED = "expected"
RESULTS = "passed", "failed", "crashed", "hung", EXPECTED, "skipped", "unsupported"
UNEXPECTED_PASS = "unexpected pass"


class ExpectedFailure(Record, frozen=True):
    """An entry of a file of expected failures. name: a regular expression. where: the file and the entry's number."""

    suite: str
    name: str
    reason: str
    where: str = ""


class CaseResult(Record, frozen=True):
    """An outcome, and the entry that expects it to be bad.

    Attributes:
        outcome: the outcome of the case.
        expectation: the first entry for this case, None without one.
    """

    outcome: CaseOutcome
    expectation: ExpectedFailure | None = None

    @property
    def passes_unexpectedly(self) -> bool:
        """Whether the case passed although an entry expects it to fail."""
        return self.expectation is not None and self.outcome.verdict == "passed"

    @property
    def verdict(self) -> str:
        """One of `RESULTS`."""
        if self.passes_unexpectedly:
            return "failed"
        return EXPECTED if self.expectation is not None and self.outcome.verdict in BAD else self.outcome.verdict

    @property
    def is_bad(self) -> bool:
        """Whether the run fails because of this case."""
        return self.verdict in BAD

    @property
    def reason(self) -> str:
        """The reason of the verdict."""
        if self.expectation is not None and self.passes_unexpectedly:
            expected = self.expectation
            return f"{UNEXPECTED_PASS}: {expected.where} expects a failure ({expected.reason}), must be removed"
        return self.outcome.reason


class SuiteResult(Record, frozen=True):
    """The results of a suite.

    Attributes:
        name: of the suite.
        results: of its cases.
        seconds: its duration.
        error: why the suite could not run, left out cases, or tested nothing; "" otherwise.
        left: the number of cases that an interrupt left out, at least; 0 without one.
        unmatched: entries of the file of expected failures that no case matched.
        notes: lines with measurements.
        calls: how often methods of an isolated driver were called.
    """

    name: str
    results: Sequence[CaseResult] = ()
    seconds: float = 0.0
    error: str = ""
    left: int = 0
    unmatched: Sequence[ExpectedFailure] = ()
    notes: Sequence[str] = ()
    calls: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_bad(self) -> bool:
        """Whether a case is bad, or the suite tested nothing."""
        return bool(self.error) or any(each.is_bad for each in self.results)

    @property
    def is_judged(self) -> bool:
        """Whether any case was judged."""
        return any(each.verdict not in ("skipped", "unsupported") for each in self.results)


class TestReport(Record, frozen=True):
    """The results of `nnhal test`.

    Attributes:
        device: the name of the device under test.
        run: what was asked for.
        suites: their results, in the order in which they ran.
        version: of nnhal.
        stopped: whether an interrupt ended the run: the report is partial.
    """

    __test__ = False  # pytest: not a class of tests

    device: str
    run: SuiteRun
    suites: Sequence[SuiteResult]
    version: str = ""
    stopped: bool = False

    @property
    def seconds(self) -> float:
        """The duration of all suites."""
        return sum(suite.seconds for suite in self.suites)

    @property
    def results(self) -> list[CaseResult]:
        """The results of all suites."""
        return [result for suite in self.suites for result in suite.results]

    @property
    def is_bad(self) -> bool:
        """Whether a suite is bad."""
        return any(suite.is_bad for suite in self.suites)


class Rate(Record, frozen=True):
    """How many cases of an operation and type passed, of those that were judged; the others were not.

    A case with several types counts once for each, with the verdict of that type.
    """

    passed: int = 0
    judged: int = 0
    others: int = 0


def counted(results: Iterable[CaseResult]) -> dict[str, int]:
    """Return the number of results of each verdict."""
    found = Counter(each.verdict for each in results)
    return {verdict: found[verdict] for verdict in RESULTS}


def short_reason(reason: str) -> str:
    """Return a reason in one line, without the device's name and the last output of its process."""
    return " ".join(_DEVICE.sub("", reason.split(LAST_WORDS, maxsplit=1)[0]).split())


def last_words(reason: str) -> list[str]:
    """Return the last lines that the driver's process printed before it ended, as a reason quotes them."""
    return [line.rstrip() for line in reason.partition(LAST_WORDS)[2].split(" | ") if line.strip()]


def reasons(results: Iterable[CaseResult], verdict: str) -> list[tuple[str, int]]:
    """Return the reasons of a verdict with their number of cases, the most frequent first."""
    found = Counter(kind_of(each.reason) for each in results if each.verdict == verdict)
    return sorted(found.items(), key=lambda each: (-each[1], each[0]))


def rates(results: Iterable[CaseResult]) -> Mapping[str, Mapping[str, Rate]]:
    """Return the pass rates by operation and type, "" for cases that have none, whatever is expected."""
    counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for each in results:
        for kind, verdict in each.outcome.by_type.items():
            what = "passed" if verdict == "passed" else "bad" if verdict in BAD else "other"
            counts[each.outcome.operation][kind.removeprefix("TENSOR_")][what] += 1
    return {
        operation: {kind: Rate(n["passed"], n["passed"] + n["bad"], n["other"]) for kind, n in sorted(types.items())}
        for operation, types in sorted(counts.items())
    }
