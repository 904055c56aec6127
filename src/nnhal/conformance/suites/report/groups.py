"""Groups of bad results by likely cause: one defect shows in several suites, execution paths, shapes and types.

The cause of a result is its verdict and the kind of its deviation, which is read off the reason without what differs
between cases: numbers, types, the call, the path of execution. Wrong numbers have one kind, so their operation belongs
to the cause as well.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from nnhal.base.errors import ContractBroken
from nnhal.base.records import Record
from nnhal.conformance.suites.report.results import UNEXPECTED_PASS, CaseResult, short_reason
from nnhal.conformance.suites.run import VECTORS
from nnhal.conformance.verdict import BAD, REDUCED_TO, kind_of
from nnhal.ops import OPS

WRONG_NUMBERS = "wrong numbers"
BROKEN = ContractBroken.__name__
MOST_BLAMED = 2  # operations of a graph that was reduced to what fails; more were not reduced
_WRONG = re.compile(r"\boutput \d+\b.*? differs? in |\belements (?:of output \d+ )?differ\b|\belements are too ")
_CONDITION = re.compile(r"\bthread|\brestored\b|\bdriver memory\b|\bfence\b")  # without which numbers may be right
_NAME = r"[A-Z][A-Z0-9_]+"  # of an operation or type
_CALL = re.compile(
    rf"\bdrawn: | ?\(?\b{_NAME}/\d+/{_NAME}/\w+\b\)?:?"  # such as ADD/0/FLOAT32/ordinary
    rf"| \({_NAME}(?:, {_NAME})*\)|(?<=\boutput \d) \(\w+\)"  # an operand's name
)
_NUMBER = re.compile(r"-\d+-of-\d+$")  # of a case among equal ones
_TYPE = re.compile(rf"\b(?:u?int|float)\d+\b|\b{_NAME}(?=\[)")
# Classes of errors in a row, the driver's own one last, such as "DriverFailed: supports() raised KeyError: ".
_ERRORS = re.compile(r"(?:(?:\w+\(\) raised )?\b(?:[A-Z][a-z0-9]+){2,}: ?)+")


class FailureGroup(Record, frozen=True):
    """Bad results with one likely cause; the first represents all. hint: the likely cause, as the suites suggest it."""

    verdict: str
    hint: str
    results: Sequence[CaseResult]

    @property
    def first(self) -> CaseResult:
        """The result that is shown."""
        return self.results[0]

    @property
    def operations(self) -> list[str]:
        """The operations of the cases, else those that all their graphs have, in alphabetical order."""
        named = {name for each in self.results for name in _blamed(each)}
        return sorted(named or frozenset.intersection(*(_suspected(each) for each in self.results)))

    @property
    def types(self) -> list[str]:
        """The operand types for which the cases are bad, in alphabetical order."""
        several = (each.outcome.by_type.items() for each in self.results)
        return sorted({kind for types in several for kind, verdict in types if kind and verdict in BAD})

    @property
    def areas(self) -> Mapping[str, Sequence[str]]:
        """The areas of the cases by suite: their names without operation, type and number. `vectors` has none."""
        found: dict[str, dict[str, None]] = {}
        for each in self.results:
            found.setdefault(each.outcome.suite, {})[_area(each)] = None
        return {suite: [area for area in areas if area] for suite, areas in found.items()}


class _Cause(NamedTuple):
    """The properties that all results of a group share.

    kind: of the deviation. condition: under which numbers are wrong. operations: to which wrong numbers belong.
    """

    verdict: str
    kind: str
    condition: str = ""
    operations: frozenset[str] = frozenset()


def grouped(results: Iterable[CaseResult]) -> list[FailureGroup]:
    """Group bad results by likely cause. The largest group comes first.

    - Exceptions of one class from one line of the driver are one cause, whatever their texts.
    - Wrong numbers of one operation are one cause. Those of several operations are one if the suites suggest the same.
    - Wrong numbers under a condition, such as in several threads, are another cause if they are right without it.
    - Wrong numbers of a graph are those of an operation in it that is wrong elsewhere, the one with most results.
    """
    bad = [each for each in results if each.is_bad]
    lines = {(each.verdict, _kind(each)): _line(each) for each in bad if _line(each)}
    found: dict[_Cause, list[CaseResult]] = defaultdict(list)
    for each in bad:
        kind = _kind(each)
        if kind == WRONG_NUMBERS:
            condition = _CONDITION.search(each.reason)
            cause = _Cause(each.verdict, kind, condition[0] if condition is not None else "", _blamed(each))
        else:
            cause = _Cause(each.verdict, _line(each) or lines.get((each.verdict, kind), kind))
        found[cause].append(each)
    place = {id(each): n for n, each in enumerate(bad)}
    groups = [_group(sorted(several, key=lambda each: place[id(each)])) for several in _joined(found)]
    return sorted(groups, key=lambda group: (-len(group.results), group.first.outcome.suite, group.first.outcome.name))


def _joined(found: Mapping[_Cause, Sequence[CaseResult]]) -> Iterable[list[CaseResult]]:
    """Join causes of wrong numbers that are likely one."""
    plain = {cause: cause._replace(condition="") for cause, several in found.items() if not _hint(several)}
    likeliest = {cause: plain[cause] if plain.get(cause) in found else cause for cause in found}
    by_operations: dict[_Cause, list[CaseResult]] = defaultdict(list)
    for cause, several in found.items():
        for each in several:
            is_graph = cause.kind == WRONG_NUMBERS and not cause.operations
            by_operations[likeliest[_of_graph(cause, _suspected(each), found) if is_graph else cause]].append(each)
    by_hint: dict[tuple[str, ...] | _Cause, list[CaseResult]] = defaultdict(list)
    for cause, several in by_operations.items():
        hint = kind_of(_hint(several)) if cause.operations else ""
        by_hint[(*cause[:3], hint) if hint else cause] += several
    return by_hint.values()


def _of_graph(cause: _Cause, suspected: frozenset[str], found: Mapping[_Cause, Sequence[CaseResult]]) -> _Cause:
    """Return the cause of an operation in a graph, under the same condition or none, that has most results."""
    several = [each for each in found if each[:2] == cause[:2] and each.operations and each.operations <= suspected]
    fitting = [each for each in several if each.condition in ("", cause.condition)]
    return max(fitting, key=lambda each: (each.condition == cause.condition, len(found[each])), default=cause)


def _group(results: Sequence[CaseResult]) -> FailureGroup:
    """Make a group that is represented by a result with its hint, of an operation alone, and without a condition."""
    hint = _hint(results)

    def rank(each: CaseResult) -> tuple[bool, bool, bool]:
        return each.outcome.hint != hint, not _blamed(each), bool(_CONDITION.search(each.reason))

    first = min(results, key=rank)
    return FailureGroup(first.verdict, hint, [first, *(each for each in results if each is not first)])


def _hint(results: Sequence[CaseResult]) -> str:
    """Return the hint whose kind at least half of the results of one suite have, "" without such a one."""
    of_suite = Counter(each.outcome.suite for each in results)
    hints = [(each.outcome.suite, each.outcome.hint) for each in results if each.outcome.hint]
    kinds = Counter((suite, kind_of(hint)) for suite, hint in hints)
    likely = next((key for key, count in kinds.most_common() if 2 * count >= of_suite[key[0]]), None)
    return next((hint for suite, hint in hints if (suite, kind_of(hint)) == likely), "")


def _kind(result: CaseResult) -> str:
    """Return the kind of a deviation: `WRONG_NUMBERS`, else the reason without what differs between cases."""
    if result.passes_unexpectedly:
        return UNEXPECTED_PASS
    reason = _CALL.sub("", short_reason(result.reason).partition(REDUCED_TO)[0])
    errors = _ERRORS.search(reason)
    if errors is None and _WRONG.search(reason):
        return WRONG_NUMBERS
    if errors is not None:  # a broken rule is the same whether an error or a suite names it
        reason = ("" if _error(result) == BROKEN else f"{_error(result)}: ") + reason[errors.end() :]
    reason = re.sub(r"\boutput \d+", "output #", reason).replace("execute()", "run()")  # one call of two suites
    return kind_of(_TYPE.sub("TYPE", reason))


def _error(result: CaseResult) -> str:
    """Return the class of the error that a reason names, "" without one."""
    errors = _ERRORS.search(_CALL.sub("", short_reason(result.reason)))
    return errors[0].rstrip(": ").split()[-1] if errors is not None else ""


def _line(result: CaseResult) -> str:
    """Return the driver's line and the class of the error that it raised, "" without one."""
    error = _error(result)
    is_own = result.outcome.place and error not in ("", BROKEN) and not result.passes_unexpectedly
    return f"{error} at {result.outcome.place}" if is_own else ""


def _blamed(result: CaseResult) -> frozenset[str]:
    """Return the operations of the smallest graph that still fails, else that of the case."""
    reduced = _operations(result.reason.partition(REDUCED_TO)[2])
    return reduced if 0 < len(reduced) <= MOST_BLAMED else frozenset(filter(None, [result.outcome.operation]))


def _suspected(result: CaseResult) -> frozenset[str]:
    """Return the operations of the graph that a case runs."""
    return _operations(result.reason)


def _operations(text: str) -> frozenset[str]:
    return frozenset(name for name in re.findall(_NAME, text) if name in OPS)


def _area(result: CaseResult) -> str:
    """Return the name of a case without operation, type and number; "" for a test vector."""
    outcome = result.outcome
    parts = [] if outcome.suite == VECTORS else outcome.name.split("/")
    return "/".join(_NUMBER.sub("", part) for part in parts if not re.fullmatch(rf"\d+|{_NAME}", part))
