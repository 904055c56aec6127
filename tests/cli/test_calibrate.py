"""`nnhal calibrate`: shown, exported, imported and held to, forgotten."""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from nnhal import api
from nnhal.base.errors import OperationFailed
from nnhal.cli import calibrate, verify
from nnhal.runtime import discovery, isolation, placer
from nnhal.runtime.measured import record
from nnhal.runtime.measured.profile import MachineProfile
from tests.cli.test_cli import nnhal
from tests.cli.test_run import called
from tests.execution import run_python
from tests.runtime.test_record import mine


@pytest.fixture
def known() -> None:
    record.keep_profile(mine())


def test_without_a_profile_it_says_what_makes_one() -> None:
    assert "nnhal calibrate measures one" in nnhal("calibrate", "--show", code=3)


@pytest.mark.usefixtures("known")
def test_a_profile_is_shown_and_as_json() -> None:
    text = nnhal("calibrate", "--show")
    assert "add" in text and "float32" in text and "a > b" in text
    found = json.loads(nnhal("calibrate", "--show", "--json"))
    assert found["devices"]["a"]["steps"] == {"none": pytest.approx(5e-6)} and found["made"] == 1


@pytest.mark.parametrize(
    ("drivers", "named", "asked"),
    [
        ((), (), [[]]),
        ((), ("openvino", "reference"), [["openvino", "reference"]]),
        (("my.py",), ("mine",), [["my.py"]]),
        (("my.py",), (), [[], ["my.py"]]),
    ],
)
def test_what_is_going_to_be_measured_is_proved(
    monkeypatch: pytest.MonkeyPatch, drivers: tuple[str, ...], named: tuple[str, ...], asked: list[list[str]]
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        commands.append(command)
        return subprocess.CompletedProcess(command, len(commands) - 1)

    monkeypatch.setattr(calibrate.subprocess, "run", run)
    calibrate._prove(drivers, named, True)
    assert [command[-len(words) or len(command) :] for command, words in zip(commands, asked, strict=True)] == asked
    assert all(command[3:6] == ["verify", "--only-new", "--json"] for command in commands)
    commands[:] = [[]] * 2
    with pytest.raises(click.exceptions.Exit) as left:
        calibrate._prove(drivers, named, False)
    assert left.value.exit_code == 2


# Measures two of the tasks: all would take minutes.
CALIBRATE = """
import sys
from nnhal.bench.calibrate import Calibration
from nnhal.cli.main import main
tasks = Calibration.tasks
Calibration.tasks = lambda self: tasks(self)[:2]
main(sys.argv[1:])
"""


@pytest.mark.nightly
def test_what_was_not_proved_is_proved_before_it_is_measured() -> None:
    """Else the exact forms are measured, and others run once somebody proves."""
    path = Path(__file__).parents[1] / "drivers" / "forms_driver.py"
    driver = discovery.load_driver(path)
    words = "calibrate", "--busy", "--quick", "--driver", str(path), "--device", driver.name
    run_python(CALIBRATE, *words)
    found = record.profile()
    assert found is not None and found.devices["forms"].version != driver.version == "1.0"
    assert found.devices["forms"].version == discovery.load_driver(path).version
    (said,) = json.loads(nnhal("verify", str(path), "--only-new", "--json")) or [{"operations": []}]
    assert said["operations"] == []


@pytest.mark.usefixtures("known")
def test_what_is_exported_is_imported_and_held_to(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    exported = json.loads(nnhal("calibrate", "--export", str(file), "--json"))
    assert "--forget leaves none" in nnhal("calibrate", "--forget", "--json", code=2)
    nnhal("calibrate", "--forget")
    assert record.profile() is None
    imported = json.loads(nnhal("calibrate", "--import", str(file), "--json"))
    assert imported == exported | {"pinned": True}
    found = record.profile()
    assert found is not None and found.pinned and found.devices == mine().devices


def test_what_is_no_profile_is_not_imported(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text("{}")
    assert "is not a profile" in nnhal("calibrate", "--import", str(file), code=3)
    assert "No such file" in nnhal("calibrate", "--import", str(tmp_path / "none"), code=3)
    assert record.profile() is None


def test_a_pipe_is_no_profile_and_no_trace(tmp_path: Path) -> None:
    """It might never end."""
    os.mkfifo(pipe := tmp_path / "pipe")
    assert "must be an ordinary file" in nnhal("calibrate", "--import", str(pipe), code=3)
    assert "must be an ordinary file" in nnhal("trace", "summary", str(pipe), code=3)


def test_names_of_devices_are_shown_without_what_controls_a_terminal(tmp_path: Path) -> None:
    known = mine()
    record.keep_profile(MachineProfile(known.processor, known.made, {"a\x1b[31m": known.devices["a"]}))
    assert "\x1b" not in nnhal("calibrate", "--show")


@pytest.mark.usefixtures("known")
def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    assert "No such file" in nnhal("calibrate", "--export", str(tmp_path / "none" / "profile.json"), code=3)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("made", [-1, 10**17])
def test_a_time_that_no_calendar_has_is_not_imported(tmp_path: Path, made: int) -> None:
    file = tmp_path / "profile.json"
    nnhal("calibrate", "--export", str(file))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"made": made}))
    assert f"made = {made}, must be seconds since 1970" in nnhal("calibrate", "--import", str(file), code=3)


def test_one_thing_at_a_time() -> None:
    for words in (("--show", "--forget"), ("--show", "--quick"), ("--forget", "--device", "litert")):
        assert "one of --show" in nnhal("calibrate", *words, code=2)


def test_placement_is_by_rule_by_strategy_or_tuned() -> None:
    def devices(*words: str) -> list[str]:
        found = json.loads(nnhal("run", "tiny_conv", "--json", "--no-cache", *words))
        return [each["device"] for each in found["placement"]["operations"]]

    both = "--device", "litert", "--device", "reference"
    assert devices(*both, "--rule", "CONV_2D=reference") == ["reference", "litert", "litert"]
    assert (
        devices(*both, "--rule", "name:nothing=litert", "--rule", "type:TENSOR_FLOAT32=reference") == ["reference"] * 3
    )
    assert devices(*both, "--strategy", "single") == ["litert"] * 3
    assert len(set(devices(*both, "--tune", "0.2"))) == 1
    for wrong in ("CONV_2D", "=litert", "kind:a=litert", "CONV_2D="):
        assert "must be OPERATION=DEVICE" in nnhal("run", "tiny_conv", "--rule", wrong, code=2)
    assert "must be one of litert" in nnhal("run", "tiny_conv", *both, "--rule", "ADD=gpu", code=3)
    assert "must be one of the two" in nnhal("run", "tiny_conv", "--rule", "ADD=litert", "--strategy", "stated", code=2)


def test_a_tuned_model_is_placed_as_it_was_measured_until_it_is_forgotten() -> None:
    both = "--device", "litert", "--device", "reference"
    found = json.loads(nnhal("tune", "tiny_conv", *both, "--duration", "10", "--json"))
    fastest = {tuple(each["devices"]): each["seconds"] for each in found["measured"]}
    assert set(fastest) >= {("litert",), ("reference",)} and found["measured"][0]["devices"] == ["litert"]
    assert "(tuned)" in nnhal("show", "tiny_conv", "--placement", *both)
    assert "(tuned)" in nnhal("show", "tiny_conv", "--placement", "--device", "litert")
    assert "(tuned)" not in nnhal("show", "tiny_conv", "--placement", *both, "--threads", "1")
    nnhal("calibrate", "--forget")
    assert "(tuned)" not in nnhal("show", "tiny_conv", "--placement", *both)


def test_tune_reports_a_device_that_it_could_not_measure(tmp_path: Path) -> None:
    (tmp_path / "liar.py").write_text(
        "from nnhal.driver import Device, Verdict\n\n\n"
        "class device(Device):\n    name = 'liar'\n\n"
        "    def supports(self, model):\n        return [Verdict(True)] * len(model.main.operations)\n\n"
        "    def prepare(self, model, hints):\n        raise RuntimeError('no tile')\n"
    )
    asked = "tune", "add4", "--driver", str(tmp_path / "liar.py"), "-d", "liar", "-d", "litert", "--duration", "10"
    told = "tuning did not measure liar: device liar: prepare() raised RuntimeError: no tile"
    assert told in nnhal(*asked)
    found = json.loads(nnhal(*asked, "--json"))
    assert found["events"] == [told] and [each["devices"] for each in found["measured"]] == [["litert"]]


def test_tuning_measures_nothing_if_it_cannot_be_recorded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "compile", lambda *args, **settings: pytest.fail("measured"))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path / "open"))
    _, text = called(capsys, "tune", "tiny_conv", "--duration", "0.05", code=4)
    assert "no measured time can be recorded" in text and "has mode 0755, must be this user's alone" in text


def test_verify_runs_no_kernel_if_it_cannot_record_results(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "run_proofs", lambda *_: pytest.fail("verified"))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path / "open"))
    _, text = called(capsys, "verify", "litert", "--operation", "ADD", "--all-operations", code=4)
    assert "cannot record verification results" in text and "has mode 0755, must be this user's alone" in text


def test_devices_says_what_was_measured_and_what_failed() -> None:
    key = isolation.key_of(discovery.load_one("litert"))
    identity = placer.identity_of(key, {})
    record.record_failure(record.StoredFailure(identity, "m", (1, 2), "preparation", "no room", "litert"))
    other = placer.identity_of(key, {"threads": 3})
    record.record_failure(record.StoredFailure(other, "m", (0,), "execution", "no threads", "litert"))
    assert "Measure the devices: nnhal calibrate" in nnhal("devices", "--no-isolation")
    devices = {name: mine().devices["a"] for name in ("litert", "reference", "openvino")}
    record.keep_profile(MachineProfile(record.processor(), 1, devices))
    text = nnhal("devices", "--no-isolation")
    assert "Failed before, and left out there: litert" in text and "Measure the devices" not in text
    assert re.search(r"^openvino .* outdated ", text, re.M) and "openvino is left out: " in text
    (row,) = [line for line in text.splitlines() if line.startswith("litert ")]
    assert "1x (m)" in row
    text = " ".join(nnhal("devices", "litert", "--no-isolation").split())
    assert (
        "preparation of 2 operations: no room; excluded until the driver changes, or nnhal calibrate --forget" in text
    )
    assert (
        "execution of an operation: no threads; excluded until the same options, version and CPU are back" not in text
    )
    assert "execution of an operation: no threads; excluded with those driver options" in text
    assert "measured time float32 1x" in text
    found = {each["name"]: each for each in json.loads(nnhal("devices", "--no-isolation", "--json"))}
    assert found["litert"]["measured"] == {"float32": {"exec_time": 1.0, "power_usage": 1.0}}
    with_options, failure = sorted(found["litert"]["failures"], key=lambda each: each["current"])
    assert failure["current"] and not with_options["current"] and with_options["why"] == "no threads"
    assert failure["why"] == "no room" and failure["operations"] == [1, 2] and not found["reference"]["failures"]
    assert "openvino" in found and "onnxruntime" not in found  # an engine that was measured is a candidate


class Measured:
    """A calibration that has measured."""

    disturbed = 0.0
    failed: Mapping[str, list[str]] = {}

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def tasks(self) -> list[object]:
        return []

    def result(self, *_: object) -> MachineProfile:
        return mine()


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "probed", lambda: 0.0)
    monkeypatch.setattr(calibrate, "_prove", lambda *_: None)
    monkeypatch.setattr(calibrate, "Calibration", Measured)
    monkeypatch.setattr(Measured, "disturbed", 0.0)


@pytest.mark.usefixtures("calm")
def test_a_machine_that_has_other_work_is_not_measured(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(calibrate, "probed", lambda: 0.42)
    said = "".join(called(capsys, "calibrate", code=4))
    assert (
        "the machine is busy: nnhal waits for a core 42% of the time; must have nothing else to do, or --busy" in said
    )
    assert record.profile() is None
    called(capsys, "calibrate", "--busy")
    assert record.profile() == mine()


@pytest.mark.usefixtures("calm")
def test_a_device_that_fails_while_it_is_measured_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(Measured, "failed", {"npu": ["add of float32: no tile", "relu of float32: no tile"]})
    said = "".join(called(capsys, "calibrate"))
    assert "warning: device npu failed at 2 measurements; the first was add of float32: no tile" in said


@pytest.mark.usefixtures("calm")
def test_devices_that_another_process_measures_at_the_same_time_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    kept = list[MachineProfile | None]()

    class Two(Measured):
        def tasks(self) -> list[object]:
            return [("another process ends", lambda: record.keep_profile(mine()))]

        def result(self, _: int, before: MachineProfile | None = None) -> MachineProfile:
            kept.append(before)
            return mine()

    monkeypatch.setattr(calibrate, "Calibration", Two)
    called(capsys, "calibrate", "-d", "litert")
    assert kept == [mine()]


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("why", ["busy", "unwritable"])
def test_what_was_measured_is_never_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any, why: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def refuses(profile: MachineProfile) -> None:
        raise OperationFailed("the profile is not kept: no room")

    if why == "busy":
        monkeypatch.setattr(Measured, "disturbed", 0.5)
    else:
        monkeypatch.setattr(record, "keep_profile", refuses)
    said = "".join(called(capsys, "calibrate", code=4))
    (file,) = tmp_path.glob("nnhal-profile-*.json")
    assert f"the new profile is in {file}: nnhal calibrate --import {file} imports it" in said
    assert ("50% of the measurements had to wait for a core" in said) == (why == "busy") and record.profile() is None
    monkeypatch.undo()
    called(capsys, "calibrate", "--import", str(file))
    assert record.profile() is not None
