"""`nnhal test`: exit codes, the table, expected failures, reports and interrupts, over suites that stand for real ones; and
two real ones."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from nnhal.base.errors import DeviceUnavailable, InvalidArgument
from nnhal.cli import test as verb
from nnhal.cli.judged import ProgressLines, TimeLeft
from nnhal.conformance.suites import run as running
from nnhal.conformance.suites.run import SUITES, Progress
from nnhal.conformance.suites.suite import CaseOutcome
from nnhal.conformance.validate.check import CHECKS
from tests.cli.test_run import called
from tests.cli.test_schemas import SPECS, fits
from tests.suites.faulty.application import DRIVER
from tests.suites.faulty.driver import VARIABLE


def outcome(suite: str, name: str, verdict: str = "passed", reason: str = "", operation: str = "ADD") -> CaseOutcome:
    return CaseOutcome(suite, name, verdict, reason, operation)


class Suites:
    """Stands for the running of suites: gives their outcomes, or raises an error, and keeps what was asked for."""

    def __init__(self, given: dict[str, list[CaseOutcome] | Exception], then: Callable[[], None] | None = None) -> None:
        self.given, self.then = given, then
        self.asked: list[Any] = []
        self.closed: list[str] = []

    def __call__(self, name: str, run: Any, jobs: int) -> Iterator[Progress]:
        self.asked.append((name, run, jobs))
        given = self.given[name]
        if isinstance(given, Exception):
            raise given
        try:
            yield Progress(given, len(given), len(given) + 5 * (self.then is not None), "toy")
            if self.then is not None:
                self.then()
        finally:
            self.closed.append(name)


@pytest.fixture
def suites(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Suites]:
    def use(then: Callable[[], None] | None = None, **given: Any) -> Suites:
        stand_in = Suites(given, then)
        monkeypatch.setattr(verb, "run_suite", stand_in)
        return stand_in

    return use


VTS = [
    outcome("vts", "a"),
    outcome("vts", "b", "failed", "output 0 is 3, must be 4"),
    outcome("vts", "c", "failed", "output 0 is 8, must be 9", "MUL"),
    outcome("vts", "d", "crashed", "device toy: run(): it was killed; its last words: Fatal"),
    outcome("vts", "e", "hung", "run() has not ended within 10 s"),
    outcome("vts", "f", "skipped", "no cache"),
    outcome("vts", "g", "unsupported", "not mine"),
]
CTS = [outcome("cts", "a"), outcome("cts", "b")]


def test_the_answer_comes_first_then_a_table_then_failures_with_their_commands(suites, capsys):
    suites(vts=VTS, cts=CTS)
    lines = called(capsys, "test", "vts", "cts", "--device", "toy", code=1)[0].splitlines()
    assert lines[0].startswith("toy: 4 of 7 cases are bad (2 failed, 1 crashed, 1 hung), ")
    assert lines[2] == "suite  passed  failed  crashed  hung  skipped  unsupported  time (s)"
    assert [line.split() for line in lines[3:6]] == [
        ["vts", "1", "2", "1", "1", "1", "1", "0.0"],
        ["cts", "2", "0.0"],
        ["all", "3", "2", "1", "1", "1", "1", "0.0"],
    ]
    assert lines[7:] == [
        "FAIL 2  ADD, MUL in vts (b, c): output 0 is 3, must be 4",
        "    nnhal test vts --device toy --filter '^b$'",
        "CRASH 1  ADD: run(): it was killed",
        "    nnhal test vts --device toy --filter '^d$'",
        "HANG 1  ADD: run() has not ended within 10 s",
        "    nnhal test vts --device toy --filter '^e$'",
    ]


def test_everything_is_printed_if_asked_for(suites, capsys):
    suites(vts=VTS)
    lines = called(capsys, "test", "vts", "--verbose", code=1)[0].splitlines()
    assert "  vts c: output 0 is 8, must be 9" in lines and "    nnhal test vts --filter '^c$'" in lines
    assert lines[-2:] == ["skipped 1: no cache", "unsupported 1: not mine"]


@pytest.mark.parametrize(("count", "groups"), [(1, 8), (9, 3)])
def test_the_output_fits_a_terminal_however_much_fails(suites, capsys, tmp_path, monkeypatch, count, groups):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    names = list(SUITES)[:count]
    failed = [outcome("vts", f"n{x}", "failed", f"{'long ' * 40}{x * 3}") for x in "abcdefghijklmn"]
    suites(**{name: failed if name == "vts" else CTS for name in names})
    words = [*names, "--report", tmp_path, *(["--vectors", tmp_path] if "vectors" in names else [])]
    lines = called(capsys, "test", *words, code=1)[0].splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 100
    assert sum(line.startswith("FAIL") for line in lines) == groups
    assert f"… {14 - groups} more groups of failures: --verbose or --report DIR" in lines
    assert lines[-1] == f"report: {tmp_path / 'index.html'}"


def test_in_a_pipe_lines_are_whole_and_a_group_names_its_place_and_at_most_three_operations(suites, capsys):
    failed = [
        CaseOutcome("vts", f"n/{name}", "failed", "wrong " * 40, name, place="mine.py:3")
        for name in ("ADD", "MUL", "DIV", "SUB")
    ]
    suites(vts=failed)
    line = called(capsys, "test", "vts", code=1)[0].splitlines()[5]
    assert line == f"FAIL 4  ADD, DIV, MUL and 1 more (mine.py:3): {('wrong ' * 40).strip()}"


def test_where_all_pass_the_exit_code_is_0_and_what_was_asked_for_is_what_ran(suites, capsys, tmp_path):
    ran = suites(vts=CTS, mlts=CTS, vectors=CTS)
    words = "vts mlts vectors vts -d toy --isolate --version 1.2 --sample 0.5 --filter a --seed 7 --scale 2 --timeout 3"
    more = ["--jobs", "2"]
    more += ["--option", "k=1", "--model", "m", "--data", "d", "--labels", "l", "--report", tmp_path / "new" / "r"]
    more += ["--vectors", tmp_path, "--execution-path", "burst", "--flag", "relaxed", "--published-only"]
    more += ["--operation", "add", "--operation", "MUL"]
    out, err = called(capsys, "test", *words.split(), *more)
    assert out.startswith("toy: 6 of 6 cases passed, ") and "error" not in err
    assert [(name, jobs) for name, _, jobs in ran.asked] == [("vts", 2), ("mlts", 2), ("vectors", 2)]
    assert ran.closed == ["vts", "mlts", "vectors"]
    run = ran.asked[0][1]
    assert (run.device, run.isolate, run.level, run.sample, run.pattern) == ("toy", True, "1.2", 0.5, "a")
    assert (run.seed, run.scale, run.timeout, run.options) == (7, 2.0, 3.0, {"toy": {"k": 1}})
    assert (run.operations, run.execution_path) == ({"ADD", "MUL"}, "burst")
    assert (run.vectors, run.flag, run.published_only) == (str(tmp_path), "relaxed", True)
    assert (run.model, run.data, run.labels, run.report) == ("m", "d", "l", str(tmp_path / "new" / "r"))


def test_a_suite_that_tested_nothing_fails(suites, capsys):
    suites(vts=[], cts=CTS)
    assert "nothing was tested: it has no case" in called(capsys, "test", "vts", code=2)[1]
    text = called(capsys, "test", "vts", "--filter", "zz", "--sample", "0.5", code=2)[1]
    assert "suite vts: nothing was tested: no case is selected by --filter 'zz' and --sample 0.5" in " ".join(
        text.split()
    )
    text = called(capsys, "test", "vts", "--operation", "ADDD", "--filter", "a", code=2)[1]
    assert text.count("no case is selected by --operation ADDD and --filter 'a'") == 1 and "did you mean ADD?" in text
    out, err = called(capsys, "test", "vts", "cts", code=1)
    assert "error: suite vts: nothing was tested" in err and "; vts tested nothing" in out


@pytest.mark.parametrize("verdict", ["skipped", "unsupported"])
def test_so_does_one_that_could_judge_no_case(suites, capsys, verdict):
    suites(
        vts=[
            outcome("vts", name, verdict, reason) for name, reason in (("a", "x"), ("b", "no cache"), ("c", "no cache"))
        ]
    )
    assert "nothing was tested, 2 of 3 cases: no cache" in called(capsys, "test", "vts", code=2)[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "SUITE is missing, must be one or more of vts, cts"),
        (["vtz"], "suite 'vtz' is unknown"),
        (["vectors"], "give --vectors DIR or --specs DIR"),
        (["vectors", "--vectors", ".", "--specs", "."], "give --vectors DIR or --specs DIR"),
        (["vts", "--filter", "("], "--filter '(': must be a regular expression"),
        (["vts", "--flag", "relaxed"], "--flag applies to the suite vectors, must be given with it"),
        (["vts", "--execution-path", "burst"], "--execution-path applies to the suite vectors"),
        (["vts", "cts", "--data", "x"], "--data applies to the suite mlts and fuzz"),
        (["vectors", "--list", "--specs", "."], "--list lists the vectors of a folder"),
    ],
)
def test_what_cannot_be_run_is_wrong_usage(suites, capsys, words, told):
    ran = suites()
    assert told in called(capsys, "test", *words, code=2)[1] and ran.asked == []


def test_a_report_that_cannot_be_written_is_an_error_before_anything_runs(suites, capsys, tmp_path):
    ran = suites(vts=CTS)
    (tmp_path / "file").write_text("")
    assert "cannot be made" in called(capsys, "test", "vts", "--report", tmp_path / "file" / "x", code=3)[1]
    assert "sample is 2" in called(capsys, "test", "vts", "--sample", "2", code=3)[1] and ran.asked == []


def test_a_device_that_does_not_load_is_an_error_and_one_suite_that_cannot_run_does_not_stop_the_others(suites, capsys):
    suites(vts=DeviceUnavailable("device toy: does not load"))
    assert "does not load" in called(capsys, "test", "vts", code=4)[1]
    ran = suites(mlts=InvalidArgument("model is '', must be a file"), cts=CTS)
    out, err = called(capsys, "test", "mlts", "cts", code=1)
    assert "error: suite mlts: model is '', must be a file" in err and [name for name, *_ in ran.asked] == [
        "mlts",
        "cts",
    ]
    assert "cts         2" in out


def expected(folder: Path, *entries: tuple[str, str]) -> Path:
    file = folder / "expected.toml"
    file.write_text("".join(f"[[expected]]\nsuite = '{s}'\nname = '{n}'\nreason = 'issue 3'\n" for s, n in entries))
    return file


def test_expected_failures_do_not_fail_the_run(suites, capsys, tmp_path):
    suites(vts=VTS)
    out, err = called(capsys, "test", "vts", "--expected", expected(tmp_path, ("vts", "^[bcde]$"), ("cts", "a")))
    assert "toy: 1 of 5 cases passed, 4 expected failures" in out and "FAIL" not in out and err == ""
    assert out.splitlines()[2].split()[5] == "expected" and out.splitlines()[3].split()[:3] == ["vts", "1", "4"]


def test_a_case_that_passes_unexpectedly_does(suites, capsys, tmp_path):
    suites(vts=VTS)
    file = expected(tmp_path, ("vts", "^[abcde]$"))
    out, _ = called(capsys, "test", "vts", "--expected", file, code=1)
    assert f"FAIL 1  ADD: unexpected pass: {file} entry 1 expects a failure (issue 3)"[:95] in out


def test_an_entry_that_matches_no_case_is_reported_unless_cases_were_left_out(suites, capsys, tmp_path):
    suites(cts=CTS)
    file = expected(tmp_path, ("cts", "^z$"))
    assert "entry 1: no case of cts matches '^z$'" in called(capsys, "test", "cts", "--expected", file)[1]
    for more in (["--filter", "a"], ["--sample", "0.5"]):
        assert "entry 1" not in called(capsys, "test", "cts", "--expected", file, *more)[1]


def test_control_c_leaves_a_partial_report(suites, capsys, tmp_path):
    ran = suites(lambda: os.kill(os.getpid(), signal.SIGINT), vts=VTS, cts=CTS)
    before = signal.getsignal(signal.SIGINT)
    out, err = called(capsys, "test", "vts", "cts", "--report", tmp_path, code=130)
    assert "interrupted, the report is partial" in out and "error: interrupted" in err
    assert [name for name, *_ in ran.asked] == ["vts"] == ran.closed and signal.getsignal(signal.SIGINT) is before
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["partial"] and [len(suite["cases"]) for suite in found["suites"]] == [len(VTS), 0]
    assert [suite["left_out"] for suite in found["suites"]] == [5, 0]
    assert found["suites"][1]["error"] == "interrupted before it began"
    assert "the report is partial" in (tmp_path / "index.html").read_text()
    assert "partial" in (tmp_path / "junit.xml").read_text()


def test_a_second_control_c_ends_the_command_as_ever(suites, capsys, monkeypatch):
    handlers = []

    def twice() -> None:
        before = signal.getsignal(signal.SIGINT)
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            handlers.append((before, signal.getsignal(signal.SIGINT)))

    suites(twice, vts=VTS)
    called(capsys, "test", "vts", code=130)
    (first, second), *_ = handlers
    assert second is signal.getsignal(signal.SIGINT) and first is not second


def test_reports_say_the_same_in_three_ways(suites, capsys, tmp_path):
    suites(vts=VTS, cts=CTS)
    printed = json.loads(called(capsys, "test", "vts", "cts", "--json", "--report", tmp_path, code=1)[0])
    fits(printed, "test")
    assert json.loads((tmp_path / "results.json").read_text()) == printed
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert [suite.get("tests") for suite in root] == ["7", "2"]
    assert "<title>nnhal test: toy</title>" in (tmp_path / "index.html").read_text()


def test_suites_are_listed_without_importing_any(capsys, monkeypatch):
    monkeypatch.setattr(running, "import_module", lambda name: pytest.fail(f"imports {name}"))
    lines = called(capsys, "test", "--list")[0].splitlines()
    assert [line.split()[0] for line in lines] == ["suite", *SUITES]
    found = json.loads(called(capsys, "test", "--list", "--json")[0])
    fits(found, "test --list")
    assert {each["suite"]: each["tests"] for each in found} == SUITES


def test_the_checks_of_a_suite_and_its_cases_are_listed(capsys, vectors):
    words = "test", "contract", "vts", "vectors", "--vectors", vectors, "--operation", "add", "--list"
    found = json.loads(called(capsys, *words, "--json")[0])
    fits(found, "test --list")
    listed = {suite: [each for each in found if each["suite"] == suite] for suite in ("contract", "vts", "vectors")}
    assert {each["case"]: each["tests"] for each in listed["contract"]} == {c.name: c.promise for c in CHECKS.values()}
    assert {each["tests"] for each in listed["vectors"] + listed["vts"]} == {"ADD"}
    assert "V1_0/add_quant8/add_quant8 (signed)" in [each["case"] for each in listed["vectors"]]
    lines = called(capsys, "test", "cache", "--list")[0].splitlines()
    assert lines[0].split() == ["suite", "case", "tests"] and all("  cache-" in line for line in lines[1:])


def former(capsys: Any, *words: Any, code: int = 0) -> tuple[str, str]:
    out, err = called(capsys, *words, code=code)
    now = {"conformance": "test vectors", "validate": "test contract"}[words[0]]
    assert f"warning: nnhal {words[0]} is now nnhal {now}; the next release has no {words[0]}" in err
    return out, err


def test_conformance_is_the_suite_vectors_with_its_former_options(suites, capsys, tmp_path):
    ran = suites(vectors=CTS)
    words = (
        "--operation add --filter x --way burst --isolate --level 1.2 --share 0.5 --flag f --published-only --jobs 2"
    )
    former(capsys, "conformance", tmp_path, *words.split(), "--repro", tmp_path / "r", "--all-failures", "--json")
    ((name, run, jobs),) = ran.asked
    assert (name, run.vectors, run.operations, run.pattern, jobs) == ("vectors", str(tmp_path), {"ADD"}, "x", 2)
    assert (run.execution_path, run.isolate, run.level, run.sample) == ("burst", True, "1.2", 0.5)
    assert (run.flag, run.published_only, run.report) == ("f", True, str(tmp_path / "r"))
    suites(vectors=[outcome("vectors", "a", "failed")])
    former(capsys, "conformance", tmp_path, code=1)
    assert "give --vectors DIR or --specs DIR" in former(capsys, "conformance", code=2)[1]


def test_validate_is_the_suite_contract_with_its_former_options(suites, capsys, tmp_path, monkeypatch):
    ran = suites(contract=CTS)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for words, device, drivers in (
        (["toy"], "toy", ()),
        (["toy", "--device", "other"], "other", ()),
        (["toy.py", "--device", "other"], "other", ("toy.py",)),
        (["folder"], "", ("folder",)),
    ):
        former(capsys, "validate", *words)
        assert (ran.asked[-1][1].device, ran.asked[-1][1].drivers) == (device, drivers)
    former(capsys, "validate", "toy", "--samples", "5", "--only", "values/add", "--only", "cache", "--only", "/MUL")
    name, run, _ = ran.asked[-1]
    names = ["values/ADD", "values/MUL", "cache-token/NEG", "values/NEG", "identity"]
    assert (name, run.scale) == ("contract", 2.5)
    assert [bool(re.search(run.pattern, each)) for each in names] == [True, True, True, False, False]
    assert "DRIVER is missing" in former(capsys, "validate", code=2)[1]
    assert "stale-output" in former(capsys, "validate", "--list")[0]


def test_the_remaining_time_is_estimated_from_the_mean_time_of_the_cases():
    now = [0.0]
    left = TimeLeft(lambda: now[0])
    found = []
    for seconds, done, total in ((1, 1, 10), (10, 0, 10), (10, 5, 15), (10, 1, 31), (10, 1, 3601), (10, 10, 10)):
        now[0] = seconds
        found.append(left.after(done, total))
    assert found == ["", "", "about 20 s left", "about 5 min left", "about 10 h left", ""]


def test_progress_without_a_terminal_names_the_remaining_time():
    now, shown = [0.0], list[str]()
    lines = ProgressLines(shown.append, lambda: now[0])
    for seconds in (9.0, 10.0, 21.0):
        now[0] = seconds
        lines.at(f"at {seconds:.0f}", "about 5 s left" if seconds < 20 else "")
    assert shown == ["at 10, 10 s, about 5 s left", "at 21, 21 s"]


# ------------------------------------------------------------------------------------------------------------ real suites


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "nnhal.cli.main", *words]
    return subprocess.run(
        line, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=120
    )


def test_the_command_of_a_failure_repeats_that_case_alone():
    fault = {VARIABLE: "activation-ignored"}
    words = ["test", "contract", "--driver", str(DRIVER), "--jobs", "1", "--json"]
    ran = command(*words, "--filter", "^(prepared-twice|values)/ADD$", **fault)
    (group,) = json.loads(ran.stdout)["groups"]
    assert ran.returncode == 1 and group["count"] == 1
    again = command(*shlex.split(group["repeat"])[1:], "--jobs", "1", "--json", **fault)
    (suite,) = json.loads(again.stdout)["suites"]
    assert [(case["name"], case["verdict"]) for case in suite["cases"]] == [(group["cases"][0]["name"], "failed")]


def test_a_vector_and_a_variant_of_it_run_alone(vectors, capsys):
    words = ["test", "vectors", "--vectors", vectors, "--jobs", "1", "--json", "--filter"]
    for name, kind in (
        ("add_quant8", "TENSOR_QUANT8_ASYMM"),
        (r"add_quant8\ \(signed\)", "TENSOR_QUANT8_ASYMM_SIGNED"),
    ):
        (suite,) = json.loads(called(capsys, *words, f"^V1_0/add_quant8/{name}$")[0])["suites"]
        (case,) = suite["cases"]
        assert (case["operation"], case["type"], case["verdict"]) == ("ADD", kind, "passed")


def test_specifications_run_without_a_folder_of_vectors_and_failures_are_repeated_by_them(capsys):
    found = json.loads(called(capsys, "test", "vectors", "--specs", SPECS, "--jobs", "1", "--json", code=1)[0])
    (suite,) = found["suites"]  # of which some are wrong on purpose
    assert suite["totals"]["passed"] > 20 and suite["totals"]["failed"] > 10 and suite["error"] == ""
    assert all(f"nnhal test vectors --specs {SPECS}/" in group["repeat"] for group in found["groups"])


def test_a_specification_without_an_example_is_listed_as_skipped_and_fails_only_a_run_without_any(tmp_path, capsys):
    folder = tmp_path / "V1_2"
    folder.mkdir()
    tensors = 'x, y = Input("x", ("TENSOR_INT32", [2])), Output("y", ("TENSOR_FLOAT32", [2]))\n'
    words = ["test", "vectors", "--specs", str(tmp_path), "--jobs", "1"]
    (folder / "none.mod.py").write_text(tensors)
    for more in ([], ["--filter", "^V1_2/none$"]):
        _, err = called(capsys, *words, *more, code=2)
        said = "".join(err.split())  # a terminal's lines break anywhere in a long path
        for wanted in (
            "none.mod.py: not tested: has no Example that becomes a test",
            "nothing was tested, 1 of 1 cases: has no Example that becomes a test",
        ):
            assert wanted.replace(" ", "") in said
    for more in (["--filter", "^V1_0/"], ["--operation", "CAST"]):
        assert "no case is selected" in called(capsys, *words, *more, code=2)[1]
    model = 'Model().Operation("CAST", x).To(y)\nExample({x: [1, 2], y: [1, 2]})\n'
    (folder / "right.mod.py").write_text(tensors + model)
    (suite,) = json.loads(called(capsys, *words, "--json")[0])["suites"]
    found = {case["name"]: (case["verdict"], case.get("reason", "")) for case in suite["cases"]}
    assert found.pop("V1_2/none") == ("skipped", "has no Example that becomes a test")
    assert set(found.values()) == {("passed", "")} and suite["error"] == ""


def test_a_specification_that_cannot_be_read_is_an_error_beside_the_cases_of_the_others(tmp_path, capsys):
    folder = tmp_path / "V1_2"
    folder.mkdir()
    relu = (
        'x, y = Input("x", ("TENSOR_INT32", [2])), Output("y", ("TENSOR_FLOAT32", [2]))\n'
        'Model().Operation("CAST", x).To(y)\nExample({x: [1, 2], y: [1, 2]})\n'
    )
    (folder / "right.mod.py").write_text(relu)
    (folder / "wrong.mod.py").write_text("x = (")
    out, err = called(capsys, "test", "vectors", "--specs", str(tmp_path), "--jobs", "1", code=1)
    assert "2 of 2 cases passed; vectors left cases out" in out
    assert "1 specification cannot be read:" in " ".join(err.split()) and "wrong.mod.py:1" in "".join(err.split())
