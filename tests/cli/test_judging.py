"""What `nnhal conformance` and `nnhal validate` make of what came: exit codes, text and JSON, without any driver."""

import json
import logging
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from nnhal.cli.conformance import count

from nnhal.cli import conformance, validate
from nnhal.cli.judged import run_with_progress
from nnhal.conformance.pool import TaskResult
from nnhal.conformance.suite import Outcome
from nnhal.conformance.validate.check import CHECKS, CheckOutcome
from tests.cli.test_run import called

LONG = "wrong " * 100


def entry(primary: str, *flags: str) -> Any:
    return {"primary": primary, "flags": list(flags)}


class Ran:
    """Stands for the running of vectors or checks: gives outcomes, keeps what was asked for."""

    def __init__(self, outcomes: list[Any], calls: dict[str, int] | None = None) -> None:
        self.outcomes, self.calls = outcomes, Counter(calls or {})
        self.asked: list[Any] = []

    def __call__(self, asked: Any, jobs: int) -> Any:
        self.asked.append((asked, jobs))
        yield TaskResult(self.outcomes, self.calls, "toy"), len(self.outcomes), len(self.outcomes)


def vectors(monkeypatch: pytest.MonkeyPatch, outcomes: list[Outcome], calls: dict[str, int] | None = None) -> Ran:
    ran = Ran(outcomes, calls)
    monkeypatch.setattr(conformance, "run_vectors", ran)
    monkeypatch.setattr(conformance, "index", lambda _: {"a": entry("ADD", "relaxed"), "m": entry("MUL"), "n": {}})
    return ran


PASSED = Outcome("add_1", "passed", primary="ADD", nanoseconds=5_000_000)
FAILED = [
    Outcome("mul_2", "failed", "off by 1", primary="MUL", hint="look here", nanoseconds=7_000_000),
    Outcome("mul_1", "failed", "off by 2", "signed", "MUL", hint="look here"),
    Outcome("add_2", "crashed", LONG, primary="ADD"),
]
REFUSED = [Outcome(f"abs_{n}", "unsupported", "no", primary="ABS") for n in range(3)]


def test_what_failed_is_exit_code_1_in_groups_with_the_command_that_repeats_one(monkeypatch, capsys, tmp_path):
    vectors(monkeypatch, [PASSED, *FAILED, *REFUSED], {"run": 2, "prepare": 1})
    out, _ = called(capsys, "conformance", tmp_path, "--device", "toy", code=1)
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[:6] == [
        "device toy",
        "operation  passed  failed  crashed  hung  unsupported",
        "ABS                                                 3",
        "ADD             1                1",
        "MUL                     2",
        "all             1       2        1     0            3",
    ]
    again = f"    nnhal conformance {tmp_path} --device toy"
    assert lines[6:10] == [
        f"CRASHED 1 ADD: {LONG[:400]} ...",
        f"{again} --published-only --filter '^add_2$'",
        "FAILED 2 MUL: off by 2 (look here)",
        f"{again} --filter '^mul_1$'",
    ]
    assert lines[10:] == ["unsupported 3: no", "slowest: mul_2, 7 ms", "methods called: prepare 1, run 2"]


def test_all_failures_are_listed_where_asked_for(monkeypatch, capsys, tmp_path):
    vectors(monkeypatch, [PASSED, *FAILED])
    lines = called(capsys, "conformance", tmp_path, "--all-failures", code=1)[0].splitlines()
    (at,) = [n for n, line in enumerate(lines) if line.startswith("FAILED 2 MUL")]
    assert lines[at + 1 : at + 3] == ["    mul_1 (signed): off by 2", "    mul_2: off by 1"]
    assert not any("methods called" in line for line in lines)


@pytest.mark.parametrize(("groups", "more"), [(20, None), (21, "... and 1 more such groups: --all-failures")])
def test_the_first_20_groups_are_shown(monkeypatch, capsys, tmp_path, groups, more):
    vectors(monkeypatch, [Outcome(f"v{n}", "hung", f"at {'x' * n}", primary="ADD") for n in range(1, groups + 1)])
    out = called(capsys, "conformance", tmp_path, code=1)[0]
    assert out.count("HUNG 1 ADD") == 20 and (("such groups" in out) == (more is not None))
    assert more is None or more in out
    assert called(capsys, "conformance", tmp_path, "--all-failures", code=1)[0].count("HUNG 1 ADD") == groups


def test_where_nothing_failed_the_exit_code_is_0_and_the_document_says_so(monkeypatch, capsys, tmp_path):
    vectors(monkeypatch, [PASSED, *REFUSED])
    found = json.loads(called(capsys, "conformance", tmp_path, "--json")[0])
    assert found == {
        "device": "toy",
        "totals": {"passed": 1, "failed": 0, "crashed": 0, "hung": 0, "unsupported": 3},
        "operations": {
            "ABS": {"passed": 0, "failed": 0, "crashed": 0, "hung": 0, "unsupported": 3},
            "ADD": {"passed": 1, "failed": 0, "crashed": 0, "hung": 0, "unsupported": 0},
        },
        "failures": [],
        "groups": [],
        "calls": {},
        "slowest": {"id": "add_1", "time_ns": 5_000_000},
    }


def test_failures_in_json_are_by_id_and_written_out_where_asked_for(monkeypatch, capsys, tmp_path):
    ran, written = vectors(monkeypatch, [PASSED, *FAILED]), []
    monkeypatch.setattr(
        conformance, "write_repro", lambda *given: written.append(given) or Path(f"folder {len(written)}")
    )
    found = json.loads(called(capsys, "conformance", tmp_path, "--json", "--repro", tmp_path / "r", code=1)[0])
    assert [(f["id"], f["variant"]) for f in found["failures"]] == [("add_2", ""), ("mul_1", "signed"), ("mul_2", "")]
    assert [(g["operation"], g["count"], g["repro"]) for g in found["groups"]] == [
        ("ADD", 1, "folder 1"),
        ("MUL", 2, "folder 2"),
    ]
    assert [where for where, _, _ in written] == [tmp_path / "r"] * 2 and ran.asked[0][0].outputs
    assert [first.id for _, _, first in written] == ["add_2", "mul_1"]
    lines = called(capsys, "conformance", tmp_path, "--repro", tmp_path / "r", code=1)[0].splitlines()
    assert [line for line in lines if "folder" in line] == ["    folder 3", "    folder 4"]
    assert "repro" not in json.loads(called(capsys, "conformance", tmp_path, "--json", code=1)[0])["groups"][0]
    assert not ran.asked[-1][0].outputs


def test_what_is_asked_for_is_what_is_selected(monkeypatch, capsys, tmp_path):
    ran = vectors(monkeypatch, [PASSED])
    words = (
        "-d toy --operation add --filter x --published-only --execution-path burst --isolate --level 1.2 --sample 0.5"
    )
    more = "--flag relaxed --timeout 3 --jobs 2 --option k=1"
    called(capsys, "conformance", tmp_path, *words.split(), *more.split())
    chosen, jobs = ran.asked[0]
    assert (chosen.path, chosen.device, chosen.pattern, chosen.operations) == (tmp_path, "toy", "x", {"ADD"})
    assert (chosen.rerun, chosen.way, chosen.isolate, str(chosen.level)) == (False, "burst", True, "1.2")
    assert (chosen.share, chosen.flag, chosen.timeout, jobs) == (0.5, "relaxed", 3, 2)
    assert chosen.options == {"toy": {"k": 1}}
    called(capsys, "conformance", tmp_path)
    chosen, jobs = ran.asked[1]
    assert (chosen.rerun, chosen.way, chosen.isolate, chosen.share, chosen.outputs) == (True, "plain", False, 1, False)


def test_a_name_that_no_vector_has_is_wrong_usage(monkeypatch, capsys, tmp_path):
    vectors(monkeypatch, [])
    said = " ".join(called(capsys, "conformance", tmp_path, "--operation", "zzz", code=2)[1].split())
    assert "operation 'ZZZ': the index has no vector of it, must be one of ADD, MUL" in said
    said = " ".join(called(capsys, "conformance", tmp_path, "--flag", "zzz", code=2)[1].split())
    assert "flag 'zzz': the index has no vector of it, must be one of relaxed" in said
    said = " ".join(called(capsys, "conformance", tmp_path, code=2)[1].split())
    assert "no vector under" in said


def test_verdicts_are_counted_by_operation_in_their_order():
    assert list(count([*FAILED, *REFUSED])) == ["ABS", "ADD", "MUL"]
    assert count(FAILED)["MUL"] == {"failed": 2}


# --------------------------------------------------------------------------------------------------------------- validate


FIRST, SECOND = list(CHECKS)[:2]


def checks(monkeypatch: pytest.MonkeyPatch, outcomes: list[CheckOutcome]) -> Ran:
    ran = Ran(outcomes)
    monkeypatch.setattr(validate, "run_checks", ran)
    return ran


GOOD = CheckOutcome(FIRST, "ADD", "passed")
BAD = [
    CheckOutcome(SECOND, "ADD", "failed", LONG),
    CheckOutcome(FIRST, "ADD", "crashed", "it broke; its last words: Fatal", "mine.py:3"),
    CheckOutcome(FIRST, "ABS", "hung", "in\n  run; its last words: none"),
]
OTHERS = [
    CheckOutcome(SECOND, "MUL", "skipped", "for want of"),
    CheckOutcome(SECOND, "ABS", "skipped", "for want of"),
    CheckOutcome("", "SUB", "unsupported", "not mine"),
    CheckOutcome(FIRST, "", "passed"),
]


def test_what_a_driver_breaks_is_exit_code_1_by_operation_and_check(monkeypatch, capsys):
    checks(monkeypatch, [GOOD, *BAD, *OTHERS])
    lines = called(capsys, "validate", "toy", code=1)[0].splitlines()
    starts = [line.partition("  nnhal validate")[0] for line in lines]
    assert (
        starts[:3]
        == [  # as they come
            f"FAIL  {SECOND}  ADD  {' '.join(LONG[:400].split())} ...",
            f"CRASH  {FIRST}  ADD  it broke  mine.py:3",
            f"HANG  {FIRST}  ABS  in run; its last words: none",
        ]
    )
    assert lines[3] == "skipped 2: for want of"
    told, _, seconds = lines[4].rpartition(", ")
    assert told == "device toy: 2 passed, 1 failed, 1 crashed, 1 hung, 2 skipped; 3 operations"
    assert seconds == "0.0 s" and len(lines) == 5
    assert all("  nnhal validate toy" in line for line in lines[:3])


def test_where_all_is_kept_the_exit_code_is_0(monkeypatch, capsys):
    checks(monkeypatch, [GOOD])
    assert called(capsys, "validate", "toy")[0].startswith("device toy: 1 passed; 1 operation, ")


def test_what_was_checked_in_json(monkeypatch, capsys):
    checks(monkeypatch, [GOOD, *BAD, *OTHERS])
    found = json.loads(called(capsys, "validate", "toy", "--json", "--seed", "3", code=1)[0])
    assert (found["device"], found["seed"], found["time_ns"] > 0) == ("toy", 3, True)
    assert found["totals"] == {"passed": 2, "failed": 1, "crashed": 1, "hung": 1, "skipped": 2, "unsupported": 1}
    none = dict.fromkeys(("passed", "failed", "crashed", "hung", "skipped"), 0)
    assert found["operations"] == {
        "ABS": none | {"hung": 1, "skipped": 1},
        "ADD": none | {"passed": 1, "failed": 1, "crashed": 1},
        "MUL": none | {"skipped": 1},
    }
    assert [(f["operation"], f["check"], f["verdict"], f["place"]) for f in found["failures"]] == [
        ("ABS", FIRST, "hung", ""),
        ("ADD", FIRST, "crashed", "mine.py:3"),
        ("ADD", SECOND, "failed", ""),
    ]
    assert [s["operation"] for s in found["skipped"]] == ["MUL", "ABS"] and found["unsupported"] == {"SUB": "not mine"}


@pytest.mark.parametrize(
    ("outcomes", "only", "told"),
    [
        ([], [], "nothing was checked by all checks, must name an operation there is"),
        ([], ["/ADD"], "nothing was checked by /ADD, must name an operation there is"),
        (OTHERS[:3], [], "nothing was checked by all checks: for want of"),
        ([GOOD], ["/MUL"], "nothing was checked by /MUL, must name an operation there is"),
    ],
)
def test_where_nothing_was_checked_it_is_wrong_usage(monkeypatch, capsys, outcomes, only, told):
    checks(monkeypatch, outcomes)
    words = [word for each in only for word in ("--only", each)]
    assert told in " ".join(called(capsys, "validate", "toy", *words, code=2)[1].split())


def test_a_driver_is_a_file_or_a_name(monkeypatch, capsys, tmp_path):
    ran = checks(monkeypatch, [GOOD])
    (tmp_path / "toy.py").write_text("")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for words, device, drivers in (
        (["toy"], "toy", ()),
        (["toy", "--device", "other"], "other", ()),
        ([str(tmp_path / "toy.py")], "", (str(tmp_path / "toy.py"),)),
        (["toy.py", "--device", "other"], "other", ("toy.py",)),
        (["folder"], "", ("folder",)),
    ):
        called(capsys, "validate", *words)
        chosen = ran.asked[-1][0]
        assert (chosen.device, chosen.drivers) == (device, drivers)
    words = "toy --isolate --level 1.1 --samples 5 --seed 7 --timeout 2 --jobs 3 --option k=v --only /ADD"
    called(capsys, "validate", *words.split())
    chosen, jobs = ran.asked[-1]
    assert (chosen.isolate, str(chosen.level), chosen.draws, chosen.seed) == (True, "1.1", 5, 7)
    assert (chosen.timeout, jobs, chosen.only, list(chosen.options.values())) == (2, 3, ("/ADD",), [{"k": "v"}])
    assert "DRIVER is missing" in called(capsys, "validate", code=2)[1]


def test_checks_are_listed_with_what_they_promise_and_need(capsys):
    found = json.loads(called(capsys, "validate", "--list", "--json")[0])
    assert [f["check"] for f in found] == list(CHECKS) and all(f["promise"] for f in found)
    assert {need for f in found for need in f["needs"]} <= set(CHECKS)
    lines = called(capsys, "validate", "--list")[0].splitlines()
    assert lines[0].split() == ["check", "promise"] and len(lines) > len(CHECKS)


@pytest.mark.parametrize("level", [logging.NOTSET, logging.DEBUG])
def test_what_a_driver_logs_is_left_out_while_it_is_judged_and_heard_again_afterwards(level: int) -> None:
    log, heard = logging.getLogger("nnhal.driver"), []

    def results() -> Generator[tuple[TaskResult, int, int], None, None]:
        heard.append(log.isEnabledFor(logging.ERROR))
        yield TaskResult([], Counter(), "d"), 1, 1

    before = log.level
    log.setLevel(level)
    try:
        run_with_progress(results(), "vectors", "vectors on", "", True)
        assert (heard, log.level) == ([level == logging.DEBUG], level)
    finally:
        log.setLevel(before)
