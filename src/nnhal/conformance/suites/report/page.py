"""A report for people: one HTML page without scripts and without other files, light or dark as the reader prefers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from nnhal.base.brief import duration
from nnhal.base.brief import with_count as many
from nnhal.base.names import printable
from nnhal.conformance.suites.report.groups import FailureGroup, grouped
from nnhal.conformance.suites.report.results import (
    EXPECTED,
    RESULTS,
    CaseResult,
    Rate,
    SuiteResult,
    TestReport,
    counted,
    last_words,
    rates,
    reasons,
    short_reason,
)
from nnhal.conformance.suites.run import repeat_command

LABELS = {
    "passed": "SUCCESS",
    "failed": "FAILURE",
    "crashed": "CRASH",
    "hung": "HANG",
    EXPECTED: "expected failure",
    "skipped": "skipped",
    "unsupported": "unsupported",
}
MEANINGS = {
    "passed": "the case held",
    "failed": "the driver broke a rule, or its result is wrong",
    "crashed": "the driver ended its process",
    "hung": "a call of the driver did not return in time",
    EXPECTED: "a bad case that the file of expected failures lists",
    "skipped": "the case cannot be judged on this device or machine",
    "unsupported": "the device does not support what the case needs",
}
GROUPS = 200  # groups of failures that the page lists
STYLE = Path(__file__).with_name("page.css")
CASES = 100  # cases of a group that the page lists; results.json has all
REASONS = 30  # reasons of a verdict that the page lists


def as_page(report: TestReport) -> str:
    """Return the report as an HTML page."""
    groups = grouped(report.results)
    title = f"nnhal test: {report.device}"
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{_text(title)}</title>\n<style>\n{STYLE.read_text('utf-8')}</style>\n</head>\n<body>\n<main>",
        *_answer(report, groups),
        *_suites(report),
        *_failures(report, groups),
        *_heat(report.results),
        *_expected(report),
        *_others(report.results),
        *_legend(),
        "</main>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def answer_of(report: TestReport) -> str:
    """Return the answer in one sentence: how many cases are bad, of how many that were judged."""
    count = counted(report.results)
    bad = {verdict: count[verdict] for verdict in ("failed", "crashed", "hung") if count[verdict]}
    judged = sum(bad.values()) + count["passed"] + count[EXPECTED]
    if bad:
        what = ", ".join(f"{number:,} {verdict}" for verdict, number in bad.items())
        text = f"{report.device}: {sum(bad.values()):,} of {judged:,} cases are bad ({what})"
    elif judged:
        listed = f", {many(count[EXPECTED], 'expected failure')}" if count[EXPECTED] else ""
        text = f"{report.device}: {count['passed']:,} of {judged:,} cases passed{listed}"
    else:
        text = f"{report.device}: no case was judged"
    broken = [suite for suite in report.suites if suite.error]
    idle = [suite.name for suite in broken if not suite.is_judged]
    partly = [suite.name for suite in broken if suite.is_judged]
    text += f"; {', '.join(idle)} tested nothing" if idle and judged else ""
    text += f"; {', '.join(partly)} left cases out" if partly else ""
    return f"{text}; interrupted, the report is partial" if report.stopped else text


def _answer(report: TestReport, groups: Sequence[FailureGroup]) -> Iterator[str]:
    run, state = report.run, "bad" if report.is_bad else "partial" if report.stopped else "good"
    yield f'<header class="{state}">\n<h1>{_text(answer_of(report))}</h1>'
    causes = f"{many(len(groups), 'likely cause')}; " if groups else ""
    took = duration(report.seconds)
    facts = {
        "drivers": ", ".join(run.drivers),
        "isolation": "process" if run.isolate else "none",
        "HAL version": run.level,
        "seed": run.seed,
        "sample": f"{run.sample:g}",
        "scale": f"{run.scale:g}",
        "filter": run.pattern,
        "nnhal": report.version,
    }
    listed = ", ".join(f"{name} {value}" for name, value in facts.items() if value != "")
    yield f"<p>{_text(f'{causes}{took}; {listed}')}</p>\n</header>"


def _suites(report: TestReport) -> Iterator[str]:
    yield '<section>\n<h2>Suites</h2>\n<div class="wide"><table class="suites">'
    shown = [v for v in RESULTS if v != EXPECTED or counted(report.results)[EXPECTED]]
    heads = "".join(f'<th scope="col" class="number">{_text(LABELS[v])}</th>' for v in shown)
    yield f'<thead><tr><th scope="col">Suite</th><th scope="col">Share</th>{heads}<th scope="col" class="number">'
    yield "Time (s)</th></tr></thead>\n<tbody>"
    for suite in report.suites:
        count = counted(suite.results)
        cells = "".join(f'<td class="number {v if count[v] else "zero"}">{count[v]:,}</td>' for v in shown)
        yield f'<tr><th scope="row">{_text(suite.name)}</th><td>{_bar(count)}</td>{cells}'
        yield f'<td class="number">{suite.seconds:,.1f}</td></tr>'
        for note in _notes(suite):
            yield f'<tr class="note"><td></td><td colspan="{len(shown) + 2}">{_text(note)}</td></tr>'
    yield "</tbody></table></div>\n</section>"


def _notes(suite: SuiteResult) -> Iterator[str]:
    yield from suite.notes
    if suite.error:
        yield f"error: {suite.error}"
    if suite.left:
        yield f"interrupted: at least {suite.left:,} cases left out"
    for each in suite.unmatched:
        yield f"{each.where}: no case matches {each.name!r} ({each.reason})"


def _bar(count: dict[str, int]) -> str:
    whole = sum(count.values())
    parts = "".join(
        f'<i class="{verdict}" style="flex-grow:{number}" title="{_text(LABELS[verdict])}: {number:,}"></i>'
        for verdict, number in count.items()
        if number
    )
    return f'<span class="bar">{parts}</span>' if whole else ""


def _failures(report: TestReport, groups: Sequence[FailureGroup]) -> Iterator[str]:
    if not groups:
        return
    yield "<section>\n<h2>Failures by likely cause</h2>"
    for group in groups[:GROUPS]:
        first = group.first.outcome
        yield f'<article>\n<h3><b class="tag {group.verdict}">{_text(LABELS[group.verdict])}</b> '
        where = ", ".join(group.operations) or first.suite
        yield f"{_text(many(len(group.results), 'case'))} <span>{_text(where)}</span></h3>"
        yield from _reason(group.first)
        if sum(max(1, len(areas)) for areas in group.areas.values()) > 1:
            shown = (f"{suite} ({', '.join(areas)})" if areas else suite for suite, areas in group.areas.items())
            yield f"<p>Shows in {_text('; '.join(shown))}</p>"
        if group.types:
            yield f"<p>Fails with {_text(', '.join(kind.removeprefix('TENSOR_') for kind in group.types))}</p>"
        if group.hint:
            yield f"<p>Likely cause: {_text(group.hint)}</p>"
        yield from _facts(group.first)
        yield f'<p class="label">Repeat {_text(first.name)} alone:</p>'
        yield f"<pre>{_text(repeat_command(report.run, first))}</pre>"
        if len(group.results) > 1:
            yield from _cases(report, group)
        yield "</article>"
    if len(groups) > GROUPS:
        yield f"<p>{len(groups) - GROUPS:,} more groups: results.json</p>"
    yield "</section>"


def _reason(result: CaseResult) -> Iterator[str]:
    words = last_words(result.reason)
    yield f'<p class="reason">{_text(short_reason(result.reason) if words else result.reason)}</p>'
    if words:
        listed = "\n".join(words)
        yield f"<details><summary>Last output of the driver's process</summary><pre>{_text(listed)}</pre></details>"


def _cases(report: TestReport, group: FailureGroup) -> Iterator[str]:
    yield f"<details><summary>All {len(group.results):,} cases</summary>\n<dl>"
    for result in group.results[:CASES]:
        name = f"{result.outcome.suite} {result.outcome.name}"
        yield f"<dt>{_text(name)}</dt><dd>"
        yield from _reason(result)
        yield f"<pre>{_text(repeat_command(report.run, result.outcome))}</pre></dd>"
    left = len(group.results) - CASES
    yield "</dl>"
    if left > 0:
        yield f"<p>{left:,} more: results.json</p>"
    yield "</details>"


def _facts(result: CaseResult) -> Iterator[str]:
    """Where the driver failed, how the case behaved alone, and what the suite measured or wrote."""
    outcome = result.outcome
    facts: dict[str, Any] = {"driver line": outcome.place, "alone in a new process": outcome.alone, **outcome.found}
    listed = [
        f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts.items() if value not in ("", ())
    ]
    if listed:
        yield f'<dl class="facts">{"".join(listed)}</dl>'


def _heat(results: Sequence[CaseResult]) -> Iterator[str]:
    found = rates(results)
    if not found:
        return
    kinds = sorted({kind for row in found.values() for kind in row}, key=lambda kind: (not kind, kind))
    yield "<section>\n<h2>Pass rate by operation and type</h2>"
    yield "<p>Passed cases of those that were judged, in percent. A case that tries several types counts for each. "
    yield "Operations with failures come first.</p>"
    heads = "".join(f'<th scope="col">{_text(kind or "no operand type")}</th>' for kind in kinds)
    yield f'<div class="wide"><table class="heat"><thead><tr><th scope="col">Operation</th>{heads}</tr></thead><tbody>'
    for name, row in _rows(found):
        cells = "".join(_cell(row.get(kind)) for kind in kinds)
        yield f'<tr><th scope="row">{_text(name)}</th>{cells}</tr>'
    yield "</tbody></table></div>\n</section>"


def _rows(found: Mapping[str, Mapping[str, Rate]]) -> Iterator[tuple[str, Mapping[str, Rate]]]:
    """Yield operations, then cases of several operations, then queries and others that have no operand type either."""
    named = [(operation, row) for operation, row in found.items() if operation]
    yield from sorted(named, key=lambda row: (not _has_bad(row[1].values()), row[0]))
    others = found.get("", {})
    typed = {kind: rate for kind, rate in others.items() if kind}
    if typed:
        yield "no single operation", typed
    if "" in others:
        yield "neither operation nor type", {"": others[""]}


def _has_bad(row: Iterable[Rate]) -> bool:
    return any(rate.passed < rate.judged for rate in row)


def _cell(rate: Rate | None) -> str:
    if rate is None:
        return "<td></td>"
    if not rate.judged:
        return f'<td class="none" title="{many(rate.others, "case")} skipped or unsupported">&ndash;</td>'
    share = 100 * rate.passed // rate.judged  # rounded down: 100 means all
    title = f"{rate.passed:,} of {rate.judged:,} passed"
    title += f", {rate.others:,} skipped or unsupported" if rate.others else ""
    kind = "all" if rate.passed == rate.judged else "some"
    return f'<td class="{kind}" style="--share:{share}%" title="{title}">{share}</td>'


def _expected(report: TestReport) -> Iterator[str]:
    listed = [each for each in report.results if each.verdict == EXPECTED]
    if not listed:
        return
    yield f"<section>\n<h2>Expected failures</h2>\n<details><summary>{many(len(listed), 'case')}</summary>\n<dl>"
    for each in listed[:CASES]:
        reason = each.expectation.reason if each.expectation is not None else ""
        yield f"<dt>{_text(f'{each.outcome.suite} {each.outcome.name}')}: {_text(reason)}</dt>"
        yield f'<dd><p class="reason">{_text(f"{LABELS[each.outcome.verdict]}: {each.reason}")}</p></dd>'
    left = len(listed) - CASES
    yield "</dl>"
    if left > 0:
        yield f"<p>{left:,} more: results.json</p>"
    yield "</details>\n</section>"


def _others(results: Sequence[CaseResult]) -> Iterator[str]:
    for verdict in ("skipped", "unsupported"):
        found = reasons(results, verdict)
        if not found:
            continue
        count = sum(number for _, number in found)
        yield f"<section>\n<h2>{verdict.capitalize()}</h2>"
        yield f"<details><summary>{many(count, 'case')}, {many(len(found), 'reason')}</summary>"
        rows = "".join(
            f'<tr><td class="number">{number:,}</td><td>{_text(reason)}</td></tr>' for reason, number in found[:REASONS]
        )
        yield f'<div class="wide"><table>{rows}</table></div>'
        left = len(found) - REASONS
        if left > 0:
            yield f"<p>{left:,} more reasons: results.json</p>"
        yield "</details>\n</section>"


def _legend() -> Iterator[str]:
    yield '<section>\n<h2>Outcomes</h2>\n<dl class="legend">'
    for verdict, label in LABELS.items():
        yield f'<dt><b class="tag {verdict}">{_text(label)}</b></dt><dd>{_text(MEANINGS[verdict])}</dd>'
    yield "</dl>\n</section>"


def _text(value: Any) -> str:
    """Text in HTML: names and reasons come from drivers and files, so they are escaped."""
    return escape(printable(str(value), keep="\n"))
