"""In what order the checks of a driver come, what is skipped because of what, and what counts of two attempts."""

from collections import deque
from typing import Any

import pytest

from nnhal.base.errors import InvalidArgument
from nnhal.conformance.validate import run
from nnhal.conformance.validate.check import CHECKS, DRIVER, CheckOutcome
from nnhal.conformance.validate.run import CheckItem, Validation, _Checks, run_checks
from nnhal.conformance.validate.trial import AFTER, DRAWING

WHOLE = ["identity", "capabilities", "status", "extensions", "cache-files"]
OF_OPERATIONS = [name for name, each in CHECKS.items() if name not in WHOLE and not each.only]


def plan(*only: str) -> list[tuple[str, str]]:
    return [tuple(item) for bundle in _Checks(Validation(only=only)).bundles for item in bundle.items]


def played(verdicts: dict[str, Any], *only: str) -> tuple[list[CheckOutcome], list[tuple[str, ...]]]:
    """What comes of ADD where checks have these verdicts and all others pass: outcomes, and the bundles in their order."""
    work = _Checks(Validation(only=only or ("/ADD",)))
    left, outcomes, given = deque(work.bundles), [], []
    while left:
        of, items = left.popleft()
        if of == DRIVER:
            continue
        assert of == "ADD"
        given.append(tuple(item.check for item in items))
        for item in items:
            outcomes.append(CheckOutcome(*item, verdicts.get(item.check, "passed")))
            bundles, known = work.after(outcomes[-1])
            left.extendleft(reversed(bundles))
            outcomes += known
    return outcomes, given


def that_need(*broken: str) -> set[str]:
    """All checks that need one of these, or one that does."""
    found = set(broken)
    while more := {name for name in OF_OPERATIONS if found & set(CHECKS[name].needs)} - found:
        found |= more
    return found - set(broken)


def test_the_driver_comes_first_each_check_alone_and_then_what_needs_nothing_of_each_operation() -> None:
    whole, rest = plan()[:5], plan()[5:]
    assert whole == [(name, DRIVER) for name in WHOLE]
    assert {check for check, _ in rest} == {"verdicts"}
    operations = [operation for _, operation in rest]
    assert len(operations) == len(set(operations)) > 100 and {"ADD", "CONV_2D"} <= set(operations)
    bundles = list(_Checks(Validation()).bundles)
    assert [len(bundle.items) for bundle in bundles] == [1] * len(bundles)
    assert all(bundle.of == bundle.items[0].operation for bundle in bundles)


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        (("identity",), [("identity", ""), ("extensions", "")]),
        (("/add",), [("extensions", ""), ("verdicts", "ADD")]),
        (("growth/ADD", "close/ADD"), [("extensions", ""), ("close", "ADD"), ("growth", "ADD")]),
        (("growth/ADD", "close/MUL"), [("extensions", ""), ("growth", "ADD"), ("close", "MUL")]),
        (("extensions",), [("extensions", "")]),
    ],
)
def test_what_is_asked_for_is_planned_and_extensions_always_are(only: Any, wanted: Any) -> None:
    assert sorted(plan(*only)) == sorted(wanted)


def test_single_checks_are_told_of_nothing_that_follows() -> None:
    outcomes, _ = played({"runs": "failed"}, "runs/ADD", "growth/ADD")
    assert [(o.check, o.verdict) for o in outcomes] == [("runs", "failed"), ("growth", "passed")]


def test_many_checks_of_an_operation_are_given_out_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "APART", 3)
    chosen = Validation(only=tuple(f"{name}/ADD" for name in OF_OPERATIONS[:7]))
    sizes = [len(bundle.items) for bundle in _Checks(chosen).bundles if bundle.of == "ADD"]
    assert sizes == [3, 3, 1]
    _, given = played({})
    assert max(map(len, given)) == 3


def test_each_check_runs_once_behind_all_that_it_needs_where_all_pass() -> None:
    outcomes, given = played({})
    names = [o.check for o in outcomes]
    assert sorted(names) == sorted(OF_OPERATIONS) and {o.verdict for o in outcomes} == {"passed"}
    for place, name in enumerate(names):
        assert set(CHECKS[name].needs) <= set(names[:place])
    assert max(map(len, given)) == 6


NEEDED = ["verdicts", "runs", "output-filled", "prepared-twice", "stale-output", "growth"]


@pytest.mark.parametrize("name", NEEDED)
def test_a_check_that_saw_nothing_to_judge_keeps_none_from_running(name: str) -> None:
    outcomes, _ = played({name: "skipped"})
    assert {o.check: o.verdict for o in outcomes} == dict.fromkeys(OF_OPERATIONS, "passed") | {name: "skipped"}


@pytest.mark.parametrize("verdict", ["failed", "crashed", "hung"])
@pytest.mark.parametrize("broken", NEEDED)
def test_what_needs_a_check_that_does_not_pass_is_skipped_with_that_for_a_reason_and_the_rest_runs(
    broken: str, verdict: str
) -> None:
    outcomes, _ = played({broken: verdict})
    found = {o.check: (o.verdict, o.reason) for o in outcomes}
    assert len(found) == len(outcomes) == len(OF_OPERATIONS)
    skipped = that_need(broken)
    for name, came in found.items():
        if name == broken:
            assert came == (verdict, "")
        elif name in skipped:
            assert came == ("skipped", f"{broken}/ADD {verdict} before")
        else:
            assert came == ("passed", "")
    assert all(o.nanoseconds == 0 and o.operation == "ADD" for o in outcomes)


def test_of_two_that_do_not_pass_one_is_the_reason() -> None:
    outcomes, _ = played({"output-type": "failed", "past-end": "crashed"})
    reasons = {o.reason for o in outcomes if o.verdict == "skipped"}
    assert reasons <= {"output-type/ADD failed before", "past-end/ADD crashed before"} and reasons
    assert {o.check for o in outcomes if o.verdict == "skipped"} == that_need("output-type", "past-end")


def test_of_an_operation_that_is_not_taken_nothing_more_is_asked() -> None:
    outcomes, _ = played({"verdicts": "unsupported"})
    assert [o.check for o in outcomes] == ["verdicts"]


def test_a_check_of_some_operations_is_asked_of_those_alone() -> None:
    assert CHECKS["loop-timeout"].only == ("WHILE",)
    assert plan("loop-timeout") == [("extensions", ""), ("loop-timeout", "WHILE")]


def test_operations_of_extensions_are_checked_when_they_are_found_and_the_driver_stops_nothing() -> None:
    work = _Checks(Validation())
    bundles, known = work.after(CheckOutcome("extensions", DRIVER, "passed", found=("com.x.A", "com.x.B")))
    assert [bundle.items for bundle in bundles] == [(CheckItem("verdicts", f"com.x.{n}"),) for n in "AB"] and not known
    assert work.after(CheckOutcome("identity", DRIVER, "failed")) == ([], [])


def test_a_verdict_alone_counts_for_what_follows() -> None:
    work = _Checks(Validation(only=("/ADD",)))
    bundles, known = work.after(CheckOutcome("verdicts", "ADD", "crashed", alone="passed"))
    assert [item.check for bundle in bundles for item in bundle.items] == ["prepares"] and known == []


def test_a_lost_check_has_its_reason_without_the_device_and_the_place_of_its_stack() -> None:
    stack = 'File "/a/driver.py", line 3, in inner < File "/a/driver.py", line 9, in run'
    lost = _Checks(Validation()).lost(CheckItem("runs", "ADD"), "hung", "device x: run() has: not ended", 7, stack, "A")
    assert lost == CheckOutcome("runs", "ADD", "hung", "run() has: not ended", "driver.py:3", 7, types={"A": "hung"})


def test_a_check_behind_one_that_failed_is_skipped_for_all_its_types_that_are_supported() -> None:
    work = _Checks(Validation(only=("/ADD",)))
    types = {"A": "failed", "B": "passed", "C": "unsupported"}
    _, skipped = work.after(CheckOutcome("verdicts", "ADD", "failed", types=types))
    assert len(skipped) > 20
    assert all(each.types == {"A": "skipped", "B": "skipped", "C": "unsupported"} for each in skipped)


@pytest.mark.parametrize(
    ("verdict", "stage", "again"),
    [
        ("crashed", "run", True),
        ("crashed", DRAWING, True),
        ("skipped", DRAWING, True),
        ("skipped", AFTER + "run", True),
        ("hung", "run", False),
    ],
)
def test_a_crash_and_a_hang_at_nothing_are_tried_again(verdict: str, stage: str, again: bool) -> None:
    assert _Checks(Validation()).tries_again(verdict, stage) is again


@pytest.mark.parametrize(("stage", "own"), [(DRAWING, True), (AFTER + "run", True), ("run", False), ("", False)])
def test_the_suite_is_at_work_before_and_after_what_it_asks_the_driver(stage: str, own: bool) -> None:
    assert _Checks(Validation()).is_own(stage) is own


def test_work_of_the_suite_that_stands_still_only_behind_other_checks_is_a_hang() -> None:
    first, second = (
        CheckOutcome("runs", "ADD", verdict, "why", types={"A": verdict}) for verdict in ("skipped", "passed")
    )
    late = _Checks(Validation()).late(first, second, [CheckItem("close", "ADD")])
    assert (late.verdict, late.alone, late.types) == ("hung", "passed", {"A": "hung"})


@pytest.mark.parametrize("verdict", ["passed", "skipped", "unsupported"])
def test_what_passes_in_a_fresh_process_is_told_with_what_ran_before(verdict: str) -> None:
    first = CheckOutcome("runs", "ADD", "crashed", "gone", "a.py:1", 5)
    second = CheckOutcome("runs", "ADD", verdict, "why", "b.py:2", 7, ("found",))
    for before, told in (([], ""), (["close", "runs", "values", "close"], ", such as close, values")):
        late = _Checks(Validation()).late(first, second, [CheckItem(name, "ADD") for name in before])
        reason = f"gone (not in a new process: an earlier check may be the cause{told})"
        assert late == CheckOutcome("runs", "ADD", "crashed", reason, "a.py:1", 5, ("found",), verdict)


def test_checks_are_the_work_of_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_all", lambda work, jobs: (work, jobs))
    chosen = Validation(only=("status",))
    work, jobs = run_checks(chosen, 3)  # type: ignore[misc]
    assert isinstance(work, _Checks) and jobs == 3
    assert work.subject is chosen and work.module == "nnhal.conformance.validate.worker"


def test_a_sample_is_the_same_always_and_part_of_a_larger_one_and_has_all_checks_of_the_driver() -> None:
    names = [(check, operation) for check in CHECKS for operation in ("ADD", "MUL", "CONV_2D", "LSTM")]
    quarter, half = (
        {pair for pair in names if Validation(sample=share).takes(*pair) and not CHECKS[pair[0]].whole}
        for share in (0.25, 0.5)
    )
    assert quarter < half and 0.15 < len(quarter) / len(names) < 0.35 < len(half) / len(names) < 0.65
    assert all(Validation(sample=0.01).takes(check.name, DRIVER) for check in CHECKS.values() if check.whole)
    for share in (0, 1.1, float("nan")):
        with pytest.raises(InvalidArgument, match="must be above 0 and at most 1"):
            Validation(sample=share)


def test_a_check_of_a_sample_waits_for_the_needs_of_a_need_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = Validation(only=("/ADD",), sample=0.5)
    monkeypatch.setattr(Validation, "takes", lambda self, check, operation: check in ("prepares", "stale-output"))
    assert chosen.needs("stale-output", "ADD") == {"prepares"} and chosen.needs("prepares", "ADD") == set()
    work = _Checks(chosen)
    assert [item.check for item in work._first("ADD")[0].items] == ["prepares"]
    bundles, skipped = work.after(CheckOutcome("prepares", "ADD", "passed"))
    assert [item.check for bundle in bundles for item in bundle.items] == ["stale-output"] and not skipped
    bundles, skipped = _Checks(chosen).after(CheckOutcome("prepares", "ADD", "failed"))
    assert not bundles and [(o.check, o.reason) for o in skipped] == [("stale-output", "prepares/ADD failed before")]
