"""A report for programs: JSON, and JUnit XML for continuous integration."""

from typing import Any
from xml.etree import ElementTree

from nnhal.base.names import printable
from nnhal.conformance.suites.report.groups import grouped
from nnhal.conformance.suites.report.results import EXPECTED, CaseResult, SuiteResult, TestReport, counted
from nnhal.conformance.suites.run import repeat_command

NS = 1e9


def as_json(report: TestReport) -> dict[str, Any]:
    """Return the report as `docs/schemas.json` describes it under `test`."""
    run = report.run
    return {
        "device": report.device,
        "version": report.version,
        "partial": report.stopped,
        "failed": report.is_bad,
        "options": {
            "drivers": list(run.drivers),
            "isolate": run.isolate,
            "level": run.level,
            "seed": run.seed,
            "sample": run.sample,
            "scale": run.scale,
            "filter": run.pattern,
            "operations": sorted(run.operations),
            "execution_path": run.execution_path,
            "flag": run.flag,
            "published_only": run.published_only,
            "timeout": run.timeout,
        },
        "totals": counted(report.results),
        "time_ns": int(report.seconds * NS),
        "suites": [
            {
                "suite": suite.name,
                "totals": counted(suite.results),
                "time_ns": int(suite.seconds * NS),
                "error": suite.error,
                "left_out": suite.left,
                "unmatched": [{"name": each.name, "reason": each.reason} for each in suite.unmatched],
                "calls": dict(suite.calls),
                "cases": [_case(report, result) for result in suite.results],
            }
            for suite in report.suites
        ],
        "groups": [
            {
                "verdict": group.verdict,
                "reason": group.first.reason,
                "hint": group.hint,
                "operations": group.operations,
                "count": len(group.results),
                "cases": [{"suite": r.outcome.suite, "name": r.outcome.name} for r in group.results],
                "repeat": repeat_command(run, group.first.outcome),
            }
            for group in grouped(report.results)
        ],
    }


def _case(report: TestReport, result: CaseResult) -> dict[str, Any]:
    outcome = result.outcome
    case: dict[str, Any] = {
        "name": outcome.name,
        "operation": outcome.operation,
        "type": outcome.type,
        "verdict": result.verdict,
        "time_ns": outcome.nanoseconds,
    }
    more = {
        "reason": result.reason,
        "types": dict(outcome.types),
        "hint": outcome.hint,
        "place": outcome.place,
        "alone": outcome.alone,
        "expected": result.expectation.reason if result.expectation is not None else "",
        "found": dict(outcome.found),
        "repeat": repeat_command(report.run, outcome) if result.is_bad or result.verdict == EXPECTED else "",
    }
    return case | {key: value for key, value in more.items() if value}


def as_junit(report: TestReport) -> bytes:
    """Return the report as JUnit XML.

    A failed case is a `failure`, a crashed or hung one an `error`. Skipped and unsupported cases and expected failures
    are `skipped`. A suite that tested nothing is an `error`.
    """
    root = ElementTree.Element("testsuites", {"name": f"nnhal test {report.device}", "time": _seconds(report.seconds)})
    for suite in report.suites:
        root.append(_suite(report, suite))
    ElementTree.indent(root)
    found: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return found


def _suite(report: TestReport, suite: SuiteResult) -> ElementTree.Element:
    count = counted(suite.results)
    element = ElementTree.Element(
        "testsuite",
        {
            "name": suite.name,
            "tests": str(len(suite.results) + bool(suite.error)),
            "failures": str(count["failed"]),
            "errors": str(count["crashed"] + count["hung"] + bool(suite.error)),
            "skipped": str(count[EXPECTED] + count["skipped"] + count["unsupported"]),
            "time": _seconds(suite.seconds),
        },
    )
    properties = ElementTree.SubElement(element, "properties")
    said = {"device": report.device, "seed": report.run.seed, "partial": str(report.stopped).lower()}
    for name, value in said.items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": _text(str(value))})
    if suite.error:
        case = ElementTree.SubElement(element, "testcase", {"classname": suite.name, "name": suite.name, "time": "0"})
        ElementTree.SubElement(case, "error", {"type": "error", "message": _text(suite.error)})
    for result in suite.results:
        _testcase(element, report, result)
    return element


def _testcase(parent: ElementTree.Element, report: TestReport, result: CaseResult) -> None:
    outcome, verdict = result.outcome, result.verdict
    where = ".".join(filter(None, (outcome.suite, outcome.operation)))
    attributes = {"classname": _text(where), "name": _text(outcome.name), "time": _seconds(outcome.nanoseconds / NS)}
    case = ElementTree.SubElement(parent, "testcase", attributes)
    if result.is_bad:
        kind = "failure" if verdict == "failed" else "error"
        said = ElementTree.SubElement(case, kind, {"type": verdict, "message": _text(result.reason)})
        kind = f"type: {outcome.type}" if outcome.type else ""
        lines = result.reason, kind, outcome.hint, outcome.place, f"repeat: {repeat_command(report.run, outcome)}"
        said.text = _text("\n".join(filter(None, lines)))
    elif verdict != "passed":
        reason = result.reason
        if result.expectation is not None and verdict == EXPECTED:
            reason = f"{outcome.verdict} as expected ({result.expectation.reason}): {reason}"
        ElementTree.SubElement(case, "skipped", {"type": verdict, "message": _text(reason)})


def _text(text: str) -> str:
    """Text with what XML allows: control characters are escaped."""
    return printable(text, keep="\n\t")


def _seconds(seconds: float) -> str:
    return f"{seconds:.6f}"
