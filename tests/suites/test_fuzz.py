"""The suite fuzz: every target runs on the reference, planted faults are caught with their inputs, and inputs repeat."""

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

import nnhal
from nnhal.conformance.device_under_test import ANY
from nnhal.conformance.suites.fuzz import SUITE
from nnhal.conformance.suites.fuzz.guide import Coverage
from nnhal.conformance.suites.fuzz.inputs import CORPUS, Choices, corpus_of
from nnhal.conformance.suites.fuzz.process import FuzzOrders, place_of_dump
from nnhal.conformance.suites.fuzz.supervisor import FuzzResult, FuzzSupervisor, _FuzzProcess
from nnhal.conformance.suites.fuzz.target import TARGETS
from nnhal.conformance.suites.run import repeat_command, run_suite
from nnhal.conformance.suites.suite import CaseFailed, CaseOutcome, SuiteRun
from tests.suites.faulty.application import DRIVER as FAULTY
from tests.suites.faulty.driver import VARIABLE

DRIVER = str(Path(__file__).with_name("planted_fuzz.py"))
SMALL = str(Path(__file__).parents[2] / "examples" / "my_driver.py")  # supports ADD, SUB, MUL of float32
# How some inputs of each target end: the parts of the program that they reach.
REACHED = {
    "wire": ("call: decoded", "reply: decoded", "callback: decoded", "packet: refused", "call: refused"),
    "queue": (
        "client.receive: received",
        "service.send: CORRUPT",
        "client.send: FULL",
        "TOO_LARGE",
        "client.send: CLOSED",
    ),
    "model": ("drawn: valid", "drawn: InvalidModel", "builder: InvalidModel", "file: valid", "file: BadFile"),
    "tflite": ("run: right", "load: BadFile"),
    "onnx": ("run: right", "load: BadFile"),
    "cache": ("hit", "miss"),
    "driver": ("request: InvalidRequest", "values: executed", "packet: refused", "model: refused", "cache: a miss"),
}


def outcomes(**how: object) -> list[CaseOutcome]:
    """Run cases of the suite."""
    return [outcome for some in run_suite("fuzz", SuiteRun(**how), 2) for outcome in some.outcomes]  # type: ignore[arg-type]


def planted(target: str, count: int, inputs: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch) -> FuzzResult:
    """Run inputs of a target of this folder."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return FuzzSupervisor(FuzzOrders(target, SuiteRun(), "planted/0", 0, count, inputs), lambda: None).run()


def test_every_target_runs_without_a_failure_and_reaches_what_it_is_for() -> None:
    found = {o.name: o for o in outcomes(device="sample-full-1.3", scale=0.1)}
    assert {name: o.reason for name, o in found.items() if o.verdict != "passed"} == {}
    assert set(found) == {f"{target}/0" for target in TARGETS}
    for target, ends in REACHED.items():
        assert set(ends) <= set(found[f"{target}/0"].found["ends"]), (target, found[f"{target}/0"].found)
    notes = SUITE.notes(list(found.values()))
    assert [note.partition(":")[0] for note in notes] == list(TARGETS)
    assert "wire: 20,000 executions" in notes[0] and "0 causes of failures" in notes[0]


def test_a_driver_of_three_operations_is_tested_with_them() -> None:
    how = {"pattern": "^(cache|tflite|onnx|driver)/", "scale": 0.1}
    found = {o.name: o for o in outcomes(drivers=(SMALL,), **how)}
    assert {name: (o.verdict, o.reason) for name, o in found.items() if o.verdict != "passed"} == {
        "cache/0": ("unsupported", "device mine: its compilations are not cached")
    }
    assert {"values: executed", "request: InvalidRequest"} <= set(found["driver/0"].found["ends"])


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3, 6))  # 3: changed models that the driver rejects, but would prepare
def test_a_right_driver_of_three_operations_passes_with_other_seeds(seed: int) -> None:
    assert [(o.verdict, o.reason) for o in outcomes(drivers=(SMALL,), pattern="^driver/", seed=seed)] == [
        ("passed", "")
    ]


def test_a_request_without_dimensions_for_one_element_is_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "whole-healthy")  # RNN on inputs of shape [1, 1] is one of its calls
    found = outcomes(drivers=(str(FAULTY),), pattern="^driver/0$")
    assert [(o.verdict, o.reason) for o in found] == [("passed", "")]


def test_a_driver_that_rejects_everything_is_not_at_fault(tmp_path: Path) -> None:
    driver = tmp_path / "rejecting.py"
    driver.write_text(Path(SMALL).read_text().replace("Verdict(plain and", "Verdict(False and"))
    found = outcomes(drivers=(str(driver),), pattern="^(cache|tflite|onnx|driver)/")
    assert [o.verdict for o in found] == ["unsupported"] * 4, found
    reasons = {o.name: o.reason for o in found}
    assert "supports none of the drawn calls" in reasons["driver/0"] and "rejects all" in reasons["onnx/0"]
    assert "rejects FULLY_CONNECTED, ADD, MUL" in reasons["cache/0"]


def test_the_device_is_known_when_it_is_loaded() -> None:
    with closing(run_suite("fuzz", SuiteRun(drivers=(SMALL,), pattern="^model/0$", scale=0.01), 1)) as progress:
        first = next(progress)
    assert (first.outcomes, first.device) == ([], "mine")


def test_temporary_files_lie_in_one_folder_that_an_interrupt_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with closing(run_suite("fuzz", SuiteRun(pattern="^model/0$", scale=0.01), 1)) as progress:
        next(progress)
        (scratch,) = tmp_path.iterdir()
    assert scratch.name.startswith("nnhal-fuzz-") and not scratch.exists()
    orders = FuzzOrders("model", SuiteRun(scratch=str(tmp_path)), "", 0, 1, (b"",))
    process = _FuzzProcess(orders)
    assert [path.name[:11] for path in tmp_path.iterdir()] == ["nnhal-fuzz-"]
    process.end()
    assert list(tmp_path.iterdir()) == []


def test_the_place_of_a_hang_is_the_drivers_line() -> None:
    own = str(Path(nnhal.__file__).parent / "ipc" / "client" / "session.py")
    words = f'Thread 0x1 (most recent call first): |  File "{own}", line 706 in call |'
    assert place_of_dump(words) == "session.py:706"
    assert (
        place_of_dump(f'{words}Thread 0x2 (most recent call first): |  File "/d/mine.py", line 9 in run') == "mine.py:9"
    )


def test_crashes_hangs_exceptions_and_memory_are_caught_and_the_next_input_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = b"right", b"crash", b"wrong", b"exit", b"memory", b"loop", b"spent", b"some raise more", b"right"
    result = planted("tests.suites.planted_fuzz:PlantedTarget", len(inputs), inputs, monkeypatch)
    assert result.executions == len(inputs) and result.ends["right"] and result.ends["spent"] == 1
    found = {failure.data: (failure.verdict, failure.reason) for failure in result.failures}
    expected = {
        b"crash": ("crashed", "SIGABRT"),
        b"wrong": ("failed", "2 is 3"),
        b"exit": ("crashed", "exit status 3"),
        b"memory": ("failed", "MemoryError"),
        b"loop": ("hung", "s of processor time"),
    }
    for data, (verdict, reason) in expected.items():
        assert found[data][0] == verdict and reason in found[data][1], (data, found)
    assert found[b"some raise more"][0] == "failed" and "KeyError" in found[b"some raise more"][1]
    assert len(found) == len(expected) + 1


def test_an_input_that_waits_for_ever_has_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    result = planted("tests.suites.planted_fuzz:SleepingTarget", 1, (b"sleep",), monkeypatch)
    (failure,) = result.failures
    assert (failure.verdict, failure.data) == ("hung", b"sleep") and "has not ended within 1 s" in failure.reason
    assert failure.place.startswith("planted_fuzz.py:")


@pytest.mark.nightly
def test_a_bug_of_an_importer_is_found_by_changed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 4 * len(corpus_of("tflite"))  # libFuzzer runs the corpus first
    result = planted("tests.suites.planted_fuzz:BuggyImporter", count, (), monkeypatch)
    (failure,) = result.failures
    assert "KeyError: 'a rare size'" in failure.reason and failure.data not in corpus_of("tflite")


def test_a_target_that_executes_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        CaseFailed, match="its process ended before an input began: the process ended with exit status 0"
    ):
        planted("tests.suites.planted_fuzz:IdleTarget", 10, (), monkeypatch)


@pytest.mark.parametrize(
    ("fault", "verdict", "reason"),
    [
        ("crash", "crashed", "a changed values: the driver process was killed by SIGABRT"),
        ("raise", "failed", "a valid request: DriverFailed: device planted-fuzz: KeyError: 'a NaN', must be executed"),
        pytest.param("refuse", "failed", "NaN is not supported, must be executed", marks=pytest.mark.nightly),
        pytest.param("hang", "hung", "has not ended within 5 s, at planted_fuzz.py:", marks=pytest.mark.nightly),
        pytest.param("unchecked", "failed", "restored from changed cache files", marks=pytest.mark.nightly),
    ],
)
def test_a_fault_of_the_driver_is_caught_saved_and_repeated(
    fault: str, verdict: str, reason: str, tmp_path: Path
) -> None:
    how: dict[str, object] = {"drivers": (DRIVER,), "options": {ANY: {"fault": fault}}, "timeout": 5.0}
    how["seed"] = 1 if fault == "unchecked" else 0  # few changes of cache files are hits
    first, *bad = outcomes(
        scale=0.3 if fault in ("crash", "raise") else 0.7, report=str(tmp_path), pattern="^driver/", **how
    )
    assert first.verdict == "passed" and first.found["executions"] > 0
    found, *_ = [o for o in bad if o.verdict == verdict and reason in o.reason]
    assert found.place.startswith("planted_fuzz.py:") == (fault in ("raise", "refuse", "hang"))
    assert not found.alone and Path(found.found["input"]).parent == tmp_path / "fuzz" / "driver"
    assert f"--data {found.found['input']}" in repeat_command(SuiteRun(**how), found)  # type: ignore[arg-type]
    if fault != "hang":
        (again,) = outcomes(**how, data=found.found["input"])
        assert again.name == found.name and again.verdict == verdict and reason in again.reason


@pytest.mark.nightly  # whether few executions meet it depends on their traces
def test_a_wrong_result_of_a_changed_cache_entry_is_caught() -> None:
    how = {"drivers": (DRIVER,), "options": {ANY: {"fault": "unchecked"}}, "pattern": "^cache/", "scale": 0.2}
    first, *bad = outcomes(**how)
    assert first.found["ends"]["hit"] and any("with changed files" in o.reason for o in bad), (first, bad)


@pytest.mark.parametrize("target", ["tflite", "onnx"])
def test_the_files_of_the_corpus_run(target: str) -> None:
    files = corpus_of(target)[::4]
    result = FuzzSupervisor(FuzzOrders(target, SuiteRun(), "", 0, len(files), files), lambda: None).run()
    assert result.failures == () and result.ends["run: right"] > 0.85 * len(
        files
    )  # some inputs are not for random numbers


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.iterdir()) < 300_000


def test_coverage_sees_new_code_once() -> None:
    def sign(number: int) -> None:
        if number < 0:
            assert number

    coverage = Coverage(["tests.suites.test_fuzz"])
    assert [coverage.of(partial(sign, number)) for number in (1, 2, -1, -2, 3)] == [True, False, True, False, False]
    assert not Coverage(["nnhal"]).of(partial(sign, 1))


def test_equal_bytes_make_equal_choices_and_a_change_changes_one() -> None:
    def made(data: bytes) -> list[int]:
        choices = Choices(data)
        return [choices.randrange(200) for _ in range(5)]

    assert made(b"abcde") == made(b"abcde") and made(b"abcde") != made(b"abxde")
    assert [one == other for one, other in zip(made(b"abcde"), made(b"abxde"), strict=True)].count(False) == 1
    assert made(b"") == [0] * 5
