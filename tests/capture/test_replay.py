"""A captured session passes on a right device; a wrong one fails, with the model and the request named."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import nnhal
from nnhal.base.errors import InvalidArgument, OperationFailed
from nnhal.cli.main import cli
from nnhal.conformance.evaluation import evaluate
from nnhal.conformance.replay import VERDICTS, ReplayedPart, ReplayOptions, replay
from nnhal.conformance.replay_judge import NothingToCompare, ResultJudge
from nnhal.runtime.capturing.reader import CaptureReader
from tests.capture.test_session import B, X, relu, use
from tests.execution import run_nnhal
from tests.models import make_model
from tests.runtime.devices import Fake, failing
from tests.runtime.graphs import sums

WRONG = str(Path(__file__).parent / "wrong.py")


def session(path: Path, **more: Any) -> Path:
    """Two models in process and isolated: plain calls, a burst, a fence, memory that is too small."""
    with nnhal.capture(path, **more):
        for isolation in ("none", "process"):
            compiled = nnhal.compile(sums(2), devices="reference", isolation=isolation)  # type: ignore[arg-type]
            use(compiled, X, B)
            compiled(X + 7, B)
            other = nnhal.compile(relu(), devices="reference", isolation=isolation)  # type: ignore[arg-type]
            with pytest.raises(nnhal.OutputInsufficientSize):
                other(X, out=np.zeros(4, np.uint8))
            other(X, out=np.zeros(16, np.uint8))
    return path


@pytest.fixture(scope="module")
def capture(tmp_path_factory: Any) -> Path:
    return session(tmp_path_factory.mktemp("replay") / "session.nnhalcap")


def replayed(path: Path, **options: Any) -> list[ReplayedPart]:
    return list(replay(CaptureReader(path), ReplayOptions(**options)))


def nnhal_replay(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli, ["replay", *words], standalone_mode=False)
    assert done.exception is None and (done.return_value or 0) == code, done.output
    return done.output


def refused(*words: str) -> str:
    done = CliRunner().invoke(cli, ["replay", *words], standalone_mode=False)
    assert done.exception is not None
    return f"{type(done.exception).__name__}: {done.exception}"


@pytest.mark.parametrize("options", [{}, {"device": "reference", "isolate": True}, {"device": "litert"}], ids=str)
def test_a_session_passes_on_devices_that_are_right(capture: Path, options: Any) -> None:
    found = replayed(capture, **options)
    assert [(part.verdict, part.reason) for part in found] == [("passed", "")] * 4
    assert [len(part.requests) for part in found] == [4, 2, 4, 2] and all(part.worst == 0 for part in found)
    assert [r.way for r in found[2].requests] == ["plain", "burst", "fenced", "plain"]
    assert all(r.captured_ns and r.nanoseconds for part in found for r in part.requests)


def test_a_wrong_result_fails_and_names_model_and_request(capture: Path) -> None:
    output = nnhal_replay(str(capture), "--driver", WRONG, code=1)
    assert output.count("FAILED") == 2 and output.count("PASSED") == 2
    assert "0 sums on wrong, request 3 (plain): output 0 differs in 4 of 4, the first at [0]: 10, must be 9" in output
    assert "the reference agrees with the capture" in output
    found = json.loads(nnhal_replay(str(capture), "--driver", WRONG, "--json", code=1))
    failed = [r["number"] for m in found["models"] for r in m["requests"] if r["verdict"] == "failed"]
    assert len(failed) == 2 and found["totals"] == {**dict.fromkeys(VERDICTS, 0), "passed": 2, "failed": 2}
    assert [m["worst"] for m in found["models"]] == [1, 0, 1, 0]
    nnhal_replay(str(capture), "--driver", WRONG, "--atol", "1.5")
    nnhal_replay(str(capture), "--driver", WRONG, "--filter", "^1 open")


def test_a_model_that_the_device_does_not_support_is_refused(capture: Path) -> None:
    output = nnhal_replay(str(capture), "--device", "sample-quant", code=1)
    assert output.count("REFUSED") == 4 and "the first #0" in output


def test_a_capture_without_data_has_its_models_prepared(tmp_path: Path) -> None:
    with nnhal.capture(tmp_path / "a", data=False):
        nnhal.compile(sums(), devices="reference")(X, B)
    output = nnhal_replay(str(tmp_path / "a"), code=1)
    assert "PREPARED" in output and "no result was compared (1 model: 1 prepared): capture " in output
    assert "the capture has no data" in output


def test_a_capture_without_requests_compares_nothing_and_says_so(tmp_path: Path) -> None:
    with nnhal.capture(tmp_path / "a"):
        nnhal.compile(sums(), devices="reference")
    output = nnhal_replay(str(tmp_path / "a"), code=1)
    assert "no result was compared (1 model: 1 prepared): the capture has no request of a model" in output


def test_a_request_that_failed_then_is_compared_with_the_reference(tmp_path: Path) -> None:
    with nnhal.capture(tmp_path / "a"):
        compiled = nnhal.compile(sums(), devices=[Fake(on_run=failing(OperationFailed("no")))])
        for x in (X, X + 7):
            with pytest.raises(OperationFailed):
                compiled(x, B)
    assert [r.verdict for r in replayed(tmp_path / "a", device="reference")[0].requests] == ["passed", "passed"]
    assert "DeviceUnavailable: device 'fake' is not known" in refused(str(tmp_path / "a"))
    output = nnhal_replay(str(tmp_path / "a"), "--driver", WRONG, code=1)
    assert "request 1 (plain)" in output and "the captured request failed: by the reference" in output


def test_a_driver_that_dies_in_a_request_fails_that_one_alone(tmp_path: Path) -> None:
    with nnhal.capture(tmp_path / "a"):
        compiled = nnhal.compile(sums(), devices="reference")
        for first in (1, 11, 2):
            compiled(X + first, B)
    (found,) = json.loads(nnhal_replay(str(tmp_path / "a"), "--driver", WRONG, "--isolate", "--json", code=1))["models"]
    assert [r["verdict"] for r in found["requests"]] == ["passed", "failed", "passed"]
    assert found["reason"].startswith("request 1: DEAD_OBJECT")


def faults(path: Path, *firsts: int) -> Path:
    """Capture requests of a model whose inputs begin with these, and one of another model."""
    with nnhal.capture(path):
        compiled = nnhal.compile(sums(), devices="reference")
        for first in firsts:
            compiled(X + first, B)
        nnhal.compile(relu(), devices="reference")(X)
    return path


@pytest.mark.sampled(2)
@pytest.mark.parametrize("isolate", [[], ["--isolate"]], ids=["in-process", "isolated"])
def test_a_request_that_hangs_is_named_and_the_others_run(tmp_path: Path, isolate: list[str]) -> None:
    capture = faults(tmp_path / "a", 1, 13, 2)
    words = str(capture), "--driver", WRONG, "--timeout", "3", *isolate
    first, second = json.loads(nnhal_replay(*words, "--json", code=1))["models"]
    assert [r["verdict"] for r in first["requests"]] == ["passed", "hung", "passed"]
    assert (first["verdict"], second["verdict"]) == ("hung", "passed")
    number = first["requests"][1]["number"]
    assert (
        first["reason"].startswith(f"request {number}: run() has not ended within 3 s, at File")
        and WRONG in first["reason"]
    )


def test_a_model_whose_requests_hang_is_left_after_a_few(tmp_path: Path) -> None:
    capture = faults(tmp_path / "a", 13, 13, 13, 13, 1)
    output = nnhal_replay(str(capture), "--driver", WRONG, "--timeout", "1", code=1)
    assert "HANG" in output and output.count("run() has not ended within 1 s") == 3
    first, second = replayed(capture, drivers=(WRONG,), timeout=1.0)
    assert [r.verdict for r in first.requests] == ["hung"] * 3 + ["skipped"] * 2
    assert first.requests[4].reason == "3 requests of the model have hung" and second.verdict == "passed"


def test_a_preparation_that_hangs_is_named_and_the_next_model_runs(tmp_path: Path) -> None:
    hanging = tmp_path / "hanging.py"
    hanging.write_text(Path(WRONG).read_text())
    first, second = replayed(faults(tmp_path / "a", 1), drivers=(str(hanging),), timeout=3.0)
    assert (first.verdict, first.requests, second.verdict) == ("hung", [], "passed")
    assert first.reason.startswith("preparation: prepare() has not ended within 3 s, at File")


def test_a_driver_that_ends_the_process_with_status_0_has_failed(tmp_path: Path) -> None:
    output = nnhal_replay(str(faults(tmp_path / "a", 1, 17, 2)), "--driver", WRONG, code=1)
    assert "0 sums" in output and "FAILED" in output and "1 open  wrong" in output and "PASSED" in output
    assert "request 1 (plain): run(): the driver process ended with exit status 0" in output


def test_a_model_of_an_extension_is_replayed_where_the_extension_is_loaded(tmp_path: Path) -> None:
    example, capture = str(Path(__file__).parents[2] / "examples" / "my_extension.py"), str(tmp_path / "a")

    def command(*words: str) -> str:  # in another process: the extension stays registered
        words = sys.executable, "-m", "nnhal.cli.main", *words
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    command("capture", "-o", capture, "--", sys.executable, example)
    assert "PASSED" in command("replay", capture, "--extension", example, "--device", "reference")


@pytest.mark.parametrize(("status", "code"), [(0, 1), (3, 3)])
def test_a_command_that_compiles_no_model_fails_with_its_own_status_or_1(
    tmp_path: Path, status: int, code: int
) -> None:
    command = "capture", "-o", str(tmp_path / "a"), "--", "sh", "-c", f"exit {status}"
    done = run_nnhal(*command)
    assert done.returncode == code and "nothing was captured" in done.stderr


def test_a_model_is_extracted_and_listed(capture: Path, tmp_path: Path) -> None:
    nnhal_replay(str(capture), "--model", "0", "--output", str(tmp_path / "m.nnhal"))
    assert nnhal.load(tmp_path / "m.nnhal") == sums(2)
    assert "has no model 9, must be one of 0 to 1" in refused(str(capture), "--model", "9", "-o", str(tmp_path / "m"))
    assert refused(str(capture), "--model", "0").startswith("UsageError")
    output = nnhal_replay(str(capture), "--list", "--verbose")
    assert "2 plain, 1 burst, 1 fenced" in output and "1 OUTPUT_INSUFFICIENT_SIZE" in output
    assert "ADD #0 on reference: the only device asked" in output


def test_a_filter_that_matches_nothing_or_is_wrong_is_an_error(capture: Path) -> None:
    assert "must match one of 0 sums on reference" in refused(str(capture), "--filter", "nosuch")
    with pytest.raises(InvalidArgument, match="must be a regular expression"):
        ReplayOptions(pattern="(")


@pytest.mark.parametrize("option", ["--rtol", "--atol"])
@pytest.mark.parametrize("value", ["inf", "nan", "-1"])
def test_a_tolerance_that_accepts_everything_or_nothing_is_refused(capture: Path, option: str, value: str) -> None:
    error = f"InvalidArgument: {option[2:]} is {float(value)}, must be 0 or above, and finite"
    assert refused(str(capture), option, value) == error


# -------------------------------------------------------------------------------------------------------------- judging


def judge(model: nnhal.Model, **tolerance: float) -> ResultJudge:
    return ResultJudge(model, tolerance.get("rtol"), tolerance.get("atol"), in_a_row=False)


def compared(model: nnhal.Model, inputs: list[Any], wanted: Any, actual: Any, **tolerance: float) -> str:
    wanted = None if wanted is None else [wanted]
    return judge(model, **tolerance).compared(inputs, wanted, [actual], [bytes([n]) for n in range(len(inputs))])[0]


def test_results_may_differ_by_twice_the_operations_tolerance() -> None:
    b = nnhal.Builder()
    x = b.input((4, 64), name="x")
    model = b.finish([x], [b.fully_connected(x, np.ones((8, 64), np.float32), np.zeros(8, np.float32))])
    given = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    exact = evaluate(model, [given])
    room = exact.rooms[0].max()
    wanted = exact.outputs[0]
    assert room > 0
    low, high = (wanted - exact.rooms[0] * 0.9).astype("f4"), (wanted + exact.rooms[0] * 0.9).astype("f4")
    assert compared(model, [given], low, high) == ""
    off = (wanted + 5 * exact.rooms[0]).astype("f4")
    assert "the reference agrees with the capture" in compared(model, [given], wanted, off)
    assert "the reference agrees with the replay" in compared(model, [given], off, wanted)
    assert compared(model, [given], wanted, off, atol=float(10 * room)) == ""


def test_a_result_that_only_moves_elements_must_be_equal() -> None:
    model = make_model(lambda b, x: b.reshape(x, [2, 2]), x=(4,))
    given = np.ones(4, np.float32)
    wanted = given.reshape(2, 2)
    near = np.nextafter(wanted, np.float32(2))
    assert compared(model, [given], wanted, wanted.copy()) == ""
    assert "differs in 4 of 4" in compared(model, [given], wanted, near)
    assert compared(model, [given], None, wanted) == "" and compared(model, [given], None, near) != ""


def test_without_a_reference_there_is_a_tolerance_for_all_operations() -> None:
    model = make_model(lambda b, x: b.sqrt(x), x=(4,))
    wanted = np.ones(4, np.float32)
    assert "an input is omitted" in compared(model, [None], wanted, wanted + 1)
    with pytest.raises(NothingToCompare, match="an input is omitted"):
        compared(model, [None], None, wanted)
