"""A report for a terminal or a pipe: the answer, a table, and failures by likely cause with a command each."""

from collections import Counter
from collections.abc import Iterator, Sequence

from nnhal.base.brief import duration
from nnhal.base.brief import with_count as many
from nnhal.base.columns import HEIGHT, columns, shortened
from nnhal.conformance.suites.report.groups import FailureGroup, grouped
from nnhal.conformance.suites.report.page import answer_of
from nnhal.conformance.suites.report.results import (
    EXPECTED,
    RESULTS,
    TestReport,
    counted,
    reasons,
    short_reason,
)
from nnhal.conformance.suites.run import repeat_command

SHOWN, NAMED = 10, 3  # groups of failures, unless verbose; operations, suites or areas of a group
_SHORT = {"failed": "FAIL", "crashed": "CRASH", "hung": "HANG"}


def as_lines(report: TestReport, page: str = "", *, verbose: bool = False, width: int = 0) -> list[str]:
    """Return the answer, the table and the groups of failures, in at most `HEIGHT` lines unless verbose.

    Args:
        report: the results.
        page: the path of the HTML page, "" if none is written.
        verbose: whether every failure is listed.
        width: the columns to which a line about a failure is cut; 0: lines are whole.
    """
    head = [f"{answer_of(report)}, {duration(report.seconds)}", "", *_table(report)]
    notes = [note for suite in report.suites for note in suite.notes]
    calls = sum((Counter(suite.calls) for suite in report.suites), Counter[str]())
    if calls:
        notes.append(f"methods called: {', '.join(f'{name} {number}' for name, number in sorted(calls.items()))}")
    head += ["", *notes] if notes else []
    tail = ["", f"report: {page}"] if page else []
    groups = grouped(report.results)
    if verbose:
        body = [line for group in groups for line in _whole_group(report, group)]
        for verdict in ("skipped", "unsupported"):
            body += [f"{verdict} {number:,}: {reason}" for reason, number in reasons(report.results, verdict)]
        return [*head, *["" for _ in body[:1]], *body, *tail]
    room = (HEIGHT - len(head) - len(tail) - 2) // 2  # an empty line before, and a line about the others
    shown = groups[: max(1, min(SHOWN, room))]
    body = [line for group in shown for line in _group(report, group, width)]
    if len(groups) > len(shown):
        body.append(f"… {many(len(groups) - len(shown), 'more group')} of failures: --verbose or --report DIR")
    return [*head, *["" for _ in body[:1]], *body, *tail]


def _table(report: TestReport) -> list[str]:
    whole = counted(report.results)
    shown = [verdict for verdict in RESULTS if verdict != EXPECTED or whole[EXPECTED]]
    rows = [(suite.name, counted(suite.results), suite.seconds) for suite in report.suites]
    if len(rows) > 1:
        rows.append(("all", whole, report.seconds))
    cells = [[name, *(f"{count[v]:,}" if count[v] else "" for v in shown), f"{took:.1f}"] for name, count, took in rows]
    return columns(["suite", *(f">{verdict}" for verdict in shown), ">time (s)"], cells)


def _group(report: TestReport, group: FailureGroup, width: int) -> list[str]:
    """Two lines: the cause, and the command that repeats the first case, which is always whole."""
    outcome = group.first.outcome
    where = _few(group.operations)
    where += f" ({outcome.place})" if outcome.place else ""
    if not where or any(len(each) > 1 for each in (group.areas, *group.areas.values())):
        where += f" in {_shown_in(group)}"
    hint = f" ({group.hint})" if group.hint else ""
    cause = f"{where.strip().removeprefix('in ')}: {short_reason(group.first.reason)}{hint}"
    line = f"{_SHORT[group.verdict]} {len(group.results):,}  {cause}"
    return [shortened(line, width) if width else line, f"    {repeat_command(report.run, outcome)}"]


def _shown_in(group: FailureGroup) -> str:
    """The suites of a group, or its suite with the areas."""
    ((suite, areas), *others) = group.areas.items()
    return _few(list(group.areas)) if others else f"{suite} ({_few(areas)})" if areas else suite


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _whole_group(report: TestReport, group: FailureGroup) -> Iterator[str]:
    hint = f" ({group.hint})" if group.hint else ""
    yield f"{_SHORT[group.verdict]} {len(group.results):,}{hint}"
    for result in group.results:
        outcome = result.outcome
        place = f"  {outcome.place}" if outcome.place else ""
        yield f"  {outcome.suite} {outcome.name}: {' '.join(result.reason.split())}{place}"
        yield f"    {repeat_command(report.run, outcome)}"
