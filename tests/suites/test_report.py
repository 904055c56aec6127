"""Reports of `nnhal test`: the page by parsing it, JUnit XML and JSON by reading them, expected failures."""

import json
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from nnhal.base.errors import BadFile, InvalidArgument
from nnhal.base.records import replace
from nnhal.conformance.suites.report import expected
from nnhal.conformance.suites.report.documents import as_json, as_junit
from nnhal.conformance.suites.report.groups import grouped
from nnhal.conformance.suites.report.lines import as_lines
from nnhal.conformance.suites.report.page import CASES, GROUPS, LABELS, answer_of, as_page
from nnhal.conformance.suites.report.results import (
    RESULTS,
    CaseResult,
    ExpectedFailure,
    Rate,
    SuiteResult,
    TestReport,
    counted,
    rates,
    reasons,
)
from nnhal.conformance.suites.run import repeat_command
from nnhal.conformance.suites.suite import CaseOutcome, SuiteRun
from tests.cli.test_schemas import fits

HOSTILE = "<script>alert('1')</script> & \"x\" \x1b[31m\x00 \ud800 https://evil.example/x.js"
VOID = {"meta"}
ENTRY = ExpectedFailure("vts", "^known", "issue 3: <b>rounds</b> down", "expected.toml entry 1")


def outcome(
    name: str, verdict: str, reason: str = "", operation: str = "ADD", kind: str = "", **more: Any
) -> CaseOutcome:
    return CaseOutcome(more.pop("suite", "vts"), name, verdict, reason, operation, kind, 2_500_000, **more)


OUTCOMES = [
    outcome("good", "passed", kind="TENSOR_FLOAT32"),
    outcome("wrong/1", "failed", "output 0 is 3.5, must be 4", kind="TENSOR_FLOAT32", hint="rounds down?"),
    outcome("wrong/2", "failed", "output 0 is 12, must be 17.25", "MUL", "TENSOR_INT32", hint="rounds down?"),
    outcome(
        HOSTILE,
        "crashed",
        f"device mine: run(): killed; its last words: Fatal {HOSTILE} | File x",
        found={"a": HOSTILE},
    ),
    outcome("slow", "hung", "run() has not ended within 10 s", place="mine.py:20", alone="passed"),
    outcome("known/1", "failed", "output 0 is 1, must be 2"),
    outcome("known/2", "passed"),
    outcome("none", "skipped", "the device keeps no cache", ""),
    outcome("half", "unsupported", "the device rejects ABS of float16", "ABS", "TENSOR_FLOAT16"),
]
SEVERAL = outcome(
    *("several", "failed", "output 0 is 3.5, must be 4", "SUB", "TENSOR_INT32"),
    types={"TENSOR_FLOAT32": "passed", "TENSOR_INT32": "failed", "TENSOR_FLOAT16": "unsupported"},
)


def report(*outcomes: CaseOutcome, stopped: bool = False, **options: Any) -> TestReport:
    results, unmatched = expected.held_against("vts", outcomes or OUTCOMES, [ENTRY])
    left = 7 if stopped else 0
    suites = [SuiteResult("vts", results, 1.25, left=left, unmatched=unmatched)]
    return TestReport("mine", SuiteRun(device="mine", **options), suites, "0.1", stopped)


class Page(HTMLParser):
    """A page as a browser reads it: tags, attributes, texts, rows of tables. Every tag must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.open = list[str](), list[tuple[str, str]](), list[str]()
        self.text, self.style, self.rows = "", "", list[list[str]]()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.open += [tag] * (tag not in VOID)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.text += data
            if "td" in self.open or "th" in self.open:
                self.rows[-1][-1] += data


def test_the_page_shows_every_outcome_and_what_a_driver_says_is_text_alone():
    page = Page(as_page(report()))
    assert not {"script", "link", "img", "iframe", "object", "a", "base", "form"} & set(page.tags)
    assert {name for name, _ in page.attributes} <= {
        *("class", "style", "title", "scope", "colspan", "lang", "charset", "name", "content"),
    }
    assert "url(" not in page.style and "@import" not in page.style and "http" not in page.style
    assert "<script>alert('1')</script> & \"x\" \\x1b[31m\\x00 \\ud800 https://evil.example/x.js" in page.text
    assert all(LABELS[verdict] in page.text for verdict in RESULTS)
    (row,) = [row for row in page.rows if row[:1] == ["vts"]]
    assert row[2:] == ["1", "3", "1", "1", "1", "1", "1", "1.2"]
    bad = [each.outcome for each in report().results if each.is_bad and each.outcome.name != HOSTILE]
    assert len(bad) == 4 and all(repeat_command(report().run, each) in page.text for each in bad)
    assert "mine.py:20" in page.text and "Likely cause: rounds down?" in page.text and "Fatal <script>" in page.text
    assert "issue 3: <b>rounds</b> down" in page.text


def test_the_page_follows_the_colours_that_a_reader_prefers():
    text = as_page(report())
    light, dark = (set(re.findall(r"(--[\w-]+):", part)) for part in re.findall(r":root\{(.*?)\}", text, re.DOTALL))
    assert "@media (prefers-color-scheme:dark){:root{" in text and light == dark
    assert set(re.findall(r"var\((--[\w-]+)\)", text)) - {"--share"} <= light


def test_the_answer_comes_first():
    cases = [
        (report(), "mine: 5 of 7 cases are bad (3 failed, 1 crashed, 1 hung)"),
        (report(OUTCOMES[0]), "mine: 1 of 1 cases passed"),
        (report(OUTCOMES[0], OUTCOMES[5]), "mine: 1 of 2 cases passed, 1 expected failure"),
        (report(OUTCOMES[7]), "mine: no case was judged"),
        (report(OUTCOMES[0], stopped=True), "mine: 1 of 1 cases passed; interrupted, the report is partial"),
    ]
    for found, text in cases:
        body = Page(as_page(found)).text.partition("nnhal test: mine")[2]
        assert answer_of(found) == text and body.strip().startswith(text)
    assert "at least 7 cases left out" in Page(as_page(report(stopped=True))).text


def test_pass_rates_are_by_operation_and_type_and_100_means_all():
    many = [CaseResult(outcome(f"{n}", "passed", kind="TENSOR_FLOAT32")) for n in range(299)]
    found = rates([*many, *report().results])
    assert found["ADD"]["FLOAT32"] == Rate(300, 301, 0) and found["ABS"]["FLOAT16"] == Rate(0, 0, 1)
    assert found["ADD"][""] == Rate(1, 4, 0)  # an expected failure has not passed; an unexpected pass has
    suite = SuiteResult("vts", [*many, *report().results])
    page = Page(as_page(TestReport("mine", SuiteRun(), [suite])))
    (heads,) = [row for row in page.rows if row[0] == "Operation"]
    assert heads == ["Operation", "FLOAT16", "FLOAT32", "INT32", "no operand type"]
    rows = {row[0]: row[1:] for row in page.rows[page.rows.index(heads) + 1 :] if len(row) == len(heads)}
    assert list(rows) == ["ADD", "MUL", "ABS", "neither operation nor type"]
    assert rows["ADD"] == ["", "99", "", "25"] and rows["MUL"] == ["", "", "0", ""] and rows["ABS"][0] == "\u2013"


def test_a_case_of_several_types_counts_for_each_and_fails_for_the_one_that_is_bad():
    assert rates([CaseResult(SEVERAL)]) == {
        "SUB": {"FLOAT32": Rate(1, 1, 0), "INT32": Rate(0, 1, 0), "FLOAT16": Rate(0, 0, 1)}
    }
    page = Page(as_page(report(SEVERAL)))
    assert ["Operation", "FLOAT16", "FLOAT32", "INT32"] in page.rows and ["SUB", "\u2013", "100", "0"] in page.rows
    assert "Fails with INT32" in page.text
    document = json.loads(json.dumps(as_json(report(SEVERAL))))
    fits(document, "test")
    (case,) = document["suites"][0]["cases"]
    assert case["type"] == "TENSOR_INT32" and case["types"] == dict(SEVERAL.types)
    (told,) = ElementTree.fromstring(as_junit(report(SEVERAL))).iter("failure")
    assert "type: TENSOR_INT32" in (told.text or "").split("\n")


def test_cases_without_an_operation_are_apart_from_those_that_have_no_type_either():
    graph = outcome("graph/0", "passed", "", "", types={"TENSOR_FLOAT32": "passed", "TENSOR_INT32": "passed"})
    page = Page(as_page(report(graph, outcome("queries/status", "passed", "", ""))))
    assert ["no single operation", "100", "100", ""] in page.rows
    assert ["neither operation nor type", "", "", "100"] in page.rows


def test_failures_that_differ_in_numbers_have_one_cause_and_the_largest_group_comes_first():
    groups = grouped(report().results)
    assert [(g.verdict, len(g.results)) for g in groups][:1] == [("failed", 2)] and len(groups) == 4
    assert groups[0].operations == ["ADD", "MUL"] and groups[0].hint == "rounds down?"
    told = [outcome(f"{n}", "crashed", f"device {n}: run(): killed; its last words: {n}") for n in "ab"]
    assert len(grouped(map(CaseResult, told))) == 1
    assert reasons(report().results, "skipped") == [("the device keeps no cache", 1)]


def test_a_page_of_many_failures_stays_small():
    many = [outcome(f"{n}", "failed", f"reason {chr(65 + n % 26)}{chr(65 + n // 26)}") for n in range(GROUPS + 3)]
    page = Page(as_page(report(*many)))
    assert page.tags.count("article") == GROUPS and "3 more groups: results.json" in page.text
    page = Page(as_page(report(*(outcome(f"{n}", "failed", "one") for n in range(CASES + 2)))))
    assert page.tags.count("dd") < CASES + 20 and "2 more: results.json" in page.text


def test_an_expected_failure_is_not_bad_and_an_unexpected_pass_is():
    found = {result.outcome.name: result for result in report().results}
    assert found["known/1"].verdict == "expected" and not found["known/1"].is_bad
    assert found["known/2"].verdict == "failed" and found["known/2"].is_bad
    assert found["known/2"].reason == (
        "unexpected pass: expected.toml entry 1 expects a failure (issue 3: <b>rounds</b> down), must be removed"
    )
    assert not report(OUTCOMES[0], OUTCOMES[5]).is_bad and report(OUTCOMES[0], OUTCOMES[6]).is_bad
    assert counted(report().results)["expected"] == 1


def test_an_entry_is_for_its_suite_and_one_that_matches_nothing_is_named():
    other = ExpectedFailure("cts", "good", "why", "expected.toml entry 2")
    unused = ExpectedFailure("vts", "^d$", "why", "expected.toml entry 3")
    results, unmatched = expected.held_against("vts", OUTCOMES, [other, unused, ENTRY])
    assert unmatched == [unused] and results[0].verdict == "passed"
    suite = SuiteResult("vts", results, unmatched=unmatched)
    assert "entry 3: no case matches '^d$' (why)" in Page(as_page(TestReport("mine", SuiteRun(), [suite]))).text


def test_a_file_of_expected_failures_is_read(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text("[[expected]]\nsuite = 'vts'\nname = '^a$'\nreason = 'why'\n")
    assert expected.read(file) == [ExpectedFailure("vts", "^a$", "why", f"{file} entry 1")]


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("[[expected", BadFile, "is not TOML"),
        ("more = 1", InvalidArgument, "more: must be [[expected]] tables only"),
        ("[expected]\na = 1", InvalidArgument, "must be [[expected]] tables only"),
        (
            "[[expected]]\nsuite = 'vts'\nname = 'a'",
            InvalidArgument,
            "has suite, name, must have suite, name, reason",
        ),
        (
            "[[expected]]\nsuite = 'vts'\nname = 'a'\nreason = ' '",
            InvalidArgument,
            "reason is ' ', must be text and not",
        ),
        ("[[expected]]\nsuite = 'vtz'\nname = 'a'\nreason = 'b'", InvalidArgument, "'vtz' is unknown; did you mean"),
        ("[[expected]]\nsuite = 'vts'\nname = '('\nreason = 'b'", InvalidArgument, "must be a regular expression"),
    ],
)
def test_a_file_of_expected_failures_that_is_wrong_is_an_error_with_its_place(tmp_path, text, error, told):
    file = tmp_path / "e.toml"
    file.write_text(text)
    with pytest.raises(error, match=re.escape(told)):
        expected.read(file)


def test_a_file_of_expected_failures_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(BadFile, match="cannot be read"):
        expected.read(tmp_path / "none.toml")


def test_junit_has_failures_errors_and_skipped_cases_with_the_command_that_repeats_them():
    root = ElementTree.fromstring(as_junit(report(seed=3)))
    (suite,) = root
    names = "tests", "failures", "errors", "skipped"
    assert [suite.get(name) for name in names] == ["9", "3", "2", "3"] and suite.get("time") == "1.250000"
    assert {p.get("name"): p.get("value") for p in suite.iter("property")} == {
        "device": "mine",
        "seed": "3",
        "partial": "false",
    }
    found = {case.get("name"): [(each.tag, each.get("type")) for each in case] for case in suite.iter("testcase")}
    assert found["good"] == [] and found["wrong/1"] == [("failure", "failed")] and found["slow"] == [("error", "hung")]
    assert found["known/1"] == [("skipped", "expected")] and found["known/2"] == [("failure", "failed")]
    assert found["none"] == [("skipped", "skipped")] and found["half"] == [("skipped", "unsupported")]
    (hostile,) = [case for case in suite.iter("testcase") if "script" in (case.get("name") or "")]
    assert hostile[0].tag == "error" and hostile.get("classname") == "vts.ADD" and hostile.get("time") == "0.002500"
    told = next(case for case in suite.iter("testcase") if case.get("name") == "slow")[0].text or ""
    assert "mine.py:20" in told and "nnhal test vts --device mine --seed 3 --filter '^slow$'" in told


def test_a_suite_that_tested_nothing_is_an_error_everywhere():
    broken = TestReport("mine", SuiteRun(), [SuiteResult("cts", error="nothing was tested")])
    (suite,) = ElementTree.fromstring(as_junit(broken))
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1") and broken.is_bad
    assert "nothing was tested" in Page(as_page(broken)).text
    assert as_json(broken)["failed"] and as_json(broken)["suites"][0]["error"] == "nothing was tested"


def test_the_document_is_as_its_schema_says():
    document = json.loads(json.dumps(as_json(report(stopped=True))))
    fits(document, "test")
    assert document["partial"] and document["failed"] and document["suites"][0]["left_out"] == 7
    cases = {case["name"]: case for case in document["suites"][0]["cases"]}
    assert set(cases["good"]) == {"name", "operation", "type", "verdict", "time_ns"}
    assert cases["slow"] | {"time_ns": 0} == {
        "name": "slow",
        "operation": "ADD",
        "type": "",
        "verdict": "hung",
        "time_ns": 0,
        "reason": "run() has not ended within 10 s",
        "place": "mine.py:20",
        "alone": "passed",
        "repeat": "nnhal test vts --device mine --filter '^slow$'",
    }
    assert cases["known/1"]["expected"] == "issue 3: <b>rounds</b> down" and cases["known/1"]["repeat"]
    assert document["groups"][0]["count"] == 2 and document["groups"][0]["operations"] == ["ADD", "MUL"]


def test_the_command_that_repeats_a_case_has_all_that_it_depends_on():
    run = SuiteRun(
        drivers=("a b.py",), isolate=True, level="1.2", seed=12345678, scale=0.25, timeout=3.0, sample=0.1, pattern="x",
        specs="specs", vectors="temporary", model="m.tflite", execution_path="burst",
    )  # fmt: skip
    text = (
        "nnhal test {} --driver 'a b.py' --level 1.2 --isolate {} --seed 12345678 --scale 0.25 --timeout 3 --filter {}"
    )
    assert repeat_command(run, outcome("V1_0/a/b (signed)", "failed", suite="vectors")) == text.format(
        "vectors", "--specs specs --execution-path burst", r"'^V1_0/a/b\ \(signed\)$'"
    )
    assert repeat_command(run, outcome("a.b", "failed", suite="mlts")) == text.format(
        "mlts", "--model m.tflite", r"'^a\.b$'"
    )


def test_a_case_that_fails_only_after_others_is_repeated_after_them():
    names = tuple(f"{n}." for n in range(30))
    said = repeat_command(SuiteRun(vectors="v"), outcome("last", "crashed", suite="vectors", before=names))
    wanted = "|".join([*(rf"{n}\." for n in range(10, 30)), "last"])
    assert said == f"nnhal test vectors --vectors v --jobs 1 --filter '^({wanted})$'"


def test_exceptions_of_one_class_from_one_line_are_one_cause():
    raised = [
        f"DriverFailed: supports() raised {kind}: {text}" for kind, text in (("KeyError", "a"), ("KeyError", "b"))
    ]
    several = [outcome(f"verdicts/{n}", "failed", why, place="mine.py:3") for n, why in enumerate(raised)]
    several += [
        outcome("verdicts/3", "failed", raised[0].replace("KeyError", "ValueError"), place="mine.py:3"),
        outcome("verdicts/4", "failed", raised[0], place="mine.py:4"),
    ]
    assert [len(group.results) for group in grouped(CaseResult(each) for each in several)] == [2, 1, 1]


def groups_of(*outcomes: CaseOutcome) -> list[tuple[int, list[str], list[str]]]:
    """The number of results, the operations and the suites of each group."""
    found = grouped(CaseResult(each) for each in outcomes)
    return [(len(each.results), each.operations, list(each.areas)) for each in found]


DIFFERS = "output 0 differs in 2 of 4, the first at [0, 1]: 3.5, must be 4"


def wrong_in_every_way(name: str) -> list[CaseOutcome]:
    """What suites report of an operation that computes wrong numbers."""
    graph = f"; graph: RELU, {name}, SUB"
    reduced = "; still fails with 1 operation: " + name
    several = [
        ("vectors", "V1_0/mul/mul", name, "output 0: 2 of 4 elements differ, the first at [1]: 3, must be 4"),
        ("contract", f"values/{name}", name, f"79 of 142 calls: {DIFFERS} ({name}/0/FLOAT32/ties)"),
        ("contract", f"steps/{name}", name, "output 0 (TENSOR_INT8): 69 of 147 elements are too low, 0 too high"),
        ("cts", f"threads/one/{name}", name, f"thread 3, execution 0, beside 3 others: {DIFFERS}"),
        ("cts", f"fence/wait/{name}", name, f"after the fence: {DIFFERS}"),
        ("cts", "graph/ways/burst/0", "", f"burst: {DIFFERS}{graph}"),
        ("random", f"single/{name}/INT8/0", name, f"{DIFFERS}{reduced} on INT8[1]"),
        ("random", "graph/2/1", "", f"{DIFFERS}{reduced} on FLOAT32[2]"),
    ]
    return [outcome(case, "failed", text, operation, suite=suite) for suite, case, operation, text in several]


def test_wrong_numbers_of_an_operation_are_one_group_in_all_suites_ways_and_shapes():
    wrong = wrong_in_every_way("MUL")
    assert groups_of(*wrong) == [(8, ["MUL"], ["vectors", "contract", "cts", "random"])]
    (group,) = grouped(map(CaseResult, wrong))
    assert group.areas == {
        "vectors": [],
        "contract": ["values", "steps"],
        "cts": ["threads/one", "fence/wait", "graph/ways/burst"],
        "random": ["single", "graph"],
    }
    lines = as_lines(TestReport("mine", SuiteRun(), [SuiteResult("all", list(map(CaseResult, wrong)))]))
    assert any(line.startswith("FAIL 8  MUL in vectors, contract, cts and 1 more: output 0: 2 of") for line in lines)
    page = Page(as_page(TestReport("mine", SuiteRun(), [SuiteResult("all", list(map(CaseResult, wrong)))])))
    assert "Shows in vectors; contract (values, steps); cts (threads/one, fence/wait, graph/ways/burst)" in page.text


def test_crashes_in_two_calls_an_exception_and_wrong_numbers_of_one_operation_are_four_groups():
    several = [
        *wrong_in_every_way("MUL"),
        outcome("close/MUL", "crashed", "close(): the driver process was killed by SIGSEGV", "MUL", suite="contract"),
        outcome("runs/MUL", "crashed", "run(): the driver process was killed by SIGSEGV", "MUL", suite="contract"),
        outcome("whole", "crashed", "device m: execute(): the driver process was killed by SIGSEGV", "", suite="cts"),
        outcome("runs/MUL", "failed", "run(): DriverFailed: KeyError: 'w' (MUL/0/INT8/ties)", "MUL", suite="contract"),
    ]
    assert [count for count, *_ in groups_of(*several)] == [8, 2, 1, 1]


def test_wrong_numbers_of_two_operations_are_two_groups_unless_the_suites_suggest_one_cause():
    two = [outcome(f"values/{name}", "failed", DIFFERS, name, suite="contract") for name in ("ADD", "MUL")]
    assert [operations for _, operations, _ in groups_of(*two)] == [["ADD"], ["MUL"]]
    alike = [replace(each, hint=f"all {n} steps high: zero point?") for n, each in enumerate(two, 2)]
    assert groups_of(*alike) == [(2, ["ADD", "MUL"], ["contract"])]
    some = [replace(two[0], hint="only at the edges: padding?"), two[0], two[0], two[1]]
    assert [group.hint for group in grouped(map(CaseResult, some))] == ["", ""]


def test_wrong_numbers_in_threads_alone_are_another_cause_than_those_of_single_executions():
    graphs = [
        outcome(f"graph/2/{n}", "failed", f"under 4 threads: {DIFFERS}; still fails with 1 operation: {name} on INT8[1]", "",
                suite="random", hint="executions share memory")
        for n, name in enumerate(("ADD", "RELU"))
    ]  # fmt: skip
    in_threads = [
        outcome("threads/ADD", "failed", f"3 runs of 4 threads are wrong: {DIFFERS}", suite="contract"),
        *graphs,
    ]
    assert groups_of(*in_threads) == [(3, ["ADD", "RELU"], ["random", "contract"])]
    both = groups_of(*in_threads, *wrong_in_every_way("ADD"))
    assert both == [
        (7, ["ADD"], ["vectors", "contract", "cts", "random"]),
        (4, ["ADD", "RELU"], ["random", "contract", "cts"]),
    ]


def test_a_graph_of_operations_that_are_right_elsewhere_is_a_group_of_those_that_all_such_graphs_have():
    reasons = f"call: {DIFFERS}; graph: RELU, ADD", f"execution 0: {DIFFERS}; graph: SUB, ADD"
    graphs = [outcome(f"graph/whole/{n}", "failed", text, "", suite="cts") for n, text in enumerate(reasons)]
    assert groups_of(*graphs) == [(2, ["ADD"], ["cts"])]
    assert [count for count, *_ in groups_of(*graphs, *wrong_in_every_way("DIV")[:1])] == [2, 1]


def test_a_pair_of_operations_that_fails_only_together_is_another_cause_than_each_alone():
    pair = outcome(
        "fused/ADD/0", "failed", f"{DIFFERS}; still fails with 2 operations: ADD RELU on INT8[1]", suite="random"
    )
    assert len(groups_of(pair, *wrong_in_every_way("ADD"))) == 2


def test_an_exception_is_one_cause_where_its_line_is_known_and_where_it_is_not():
    reasons = (
        "run(): DriverFailed: KeyError: 'w' (ADD/0/INT8/ordinary)",
        "DriverFailed: device mine: KeyError: 'w'",
        "DriverFailed: drawn: device mine: KeyError: 'w'",
        "DriverFailed: device mine: KeyError: 'w'; still fails with 1 operation: RELU on FLOAT32[1]",
    )
    several = [outcome(f"{n}", "failed", text, place="mine.py:3" if n < 2 else "") for n, text in enumerate(reasons)]
    assert groups_of(*several) == [(4, ["ADD", "RELU"], ["vts"])]
    other = outcome("5", "failed", "DriverFailed: device mine: ValueError: 'w'", place="mine.py:3")
    assert [count for count, *_ in groups_of(*several, other)] == [4, 1]


def test_a_broken_rule_is_one_cause_of_all_types_whether_an_error_or_a_suite_names_it():
    reasons = (
        "output 0 is given int32, must be uint8",
        "ContractBroken: device mine: output 0 (op3) is given float64, must be float32",
        "ContractBroken: ADD/0/INT8/ordinary: device mine: output 2 is given int32, must be int8",
    )
    assert [count for count, *_ in groups_of(*(outcome(f"{n}", "failed", text) for n, text in enumerate(reasons)))] == [
        3
    ]
