"""Isolation from the command line, as a user meets it."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nnhal.ipc import names
from nnhal.ipc.client.device import RemoteDevice
from nnhal.zoo import maker
from tests.execution import PROGRAM_LIMIT
from tests.ipc.support import LIMIT, PROBE, numbers, prepare, run, wait_until

NNHAL = [sys.executable, "-m", "nnhal.cli.main"]


def nnhal(*arguments: str, code: int = 0) -> str:
    done = subprocess.run([*NNHAL, *arguments], capture_output=True, text=True, timeout=PROGRAM_LIMIT, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if not code else done.stdout + done.stderr


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "nnhal"


@pytest.fixture(scope="module")
def tiny() -> str:
    return str(maker.path("tiny_conv"))


@pytest.fixture
def served() -> Iterator[subprocess.Popen[str]]:
    """`nnhal serve reference --name bench`, as a user starts it."""
    words = [*NNHAL, "serve", "reference", "--name", "bench"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: process.poll() is not None or names.running() == ["bench"], "the service listens")
    yield process
    process.terminate()
    process.wait(LIMIT)
    assert process.stderr is not None
    process.stderr.close()


def outputs(text: str) -> object:
    return json.loads(text)["outputs"]


# --------------------------------------------------------------------------------------------------------------- serve


def test_a_served_driver_is_a_device_for_other_processes(served: subprocess.Popen[str], tiny: str) -> None:
    there = outputs(nnhal("run", tiny, "--json", "-d", "bench"))
    assert there == outputs(nnhal("run", tiny, "--json", "-d", "reference"))
    assert there == outputs(nnhal("run", tiny, "--json", "-d", "bench", "--isolate"))


def test_devices_lists_the_services_that_run(served: subprocess.Popen[str]) -> None:
    assert "bench" in nnhal("devices")
    assert "bench" in json.dumps(json.loads(nnhal("devices", "--json")))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_service_ends_with_control_c_and_with_sigterm(served: subprocess.Popen[str], number: int) -> None:
    assert served.stderr is not None
    assert "stop with Ctrl-C" in served.stderr.readline()
    served.send_signal(number)
    assert served.wait(LIMIT) in (0, -number, 128 + number)
    assert names.running() == []
    assert "Traceback" not in served.stderr.read()


def test_a_file_is_served_under_its_name() -> None:
    process = subprocess.Popen([*NNHAL, "serve", PROBE, "--level", "1.2"], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or names.running() == ["probe"], "the service listens")
        device = RemoteDevice(names.connect("probe"))
        assert str(device.level) == "1.2"
        device.close()
    finally:
        process.terminate()
        process.wait(LIMIT)


def test_a_service_under_a_name_that_is_taken_says_so_and_not_that_it_serves(served: subprocess.Popen[str]) -> None:
    second = subprocess.run(
        [*NNHAL, "serve", "reference", "--name", "bench"], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert second.returncode == 4 and "bench" in second.stderr
    assert "serving" not in second.stderr and "Traceback" not in second.stderr


def test_a_service_announces_itself_in_one_line_of_json() -> None:
    words = [*NNHAL, "serve", "reference", "--name", "bench", "--level", "1.2", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            facts = json.loads(process.stdout.readline())
            assert (facts["name"], facts["level"]) == ("bench", "1.2")
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.connect(facts["socket"])
            assert facts["confinement"].keys() == {"stdio", "no_new_privs", "rlimits", "landlock", "seccomp"}
        finally:
            process.terminate()
        assert process.stdout.read() == ""


def test_a_driver_that_needs_a_device_is_served_confined(tmp_path: Path) -> None:
    driver = tmp_path / "accelerated.py"
    driver.write_text(
        "from nnhal.drivers.reference import Reference\ndef device():\n open('/dev/full', 'r+b', 0)\n return Reference()\n"
    )
    words = [*NNHAL, "serve", str(driver), "--json"]
    with subprocess.Popen([*words, "--device", "/dev/full"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            report = json.loads(process.stdout.readline())["confinement"]
            assert "/dev/full to write" in report["landlock"] and "for devices ioctl" in report["seccomp"]
        finally:
            process.terminate()
    assert "/dev/full" in nnhal(*words[len(NNHAL) :], code=4)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", [[], ["--json"], ["--systemd", "."]])
def test_a_service_is_not_named_as_a_driver_whose_clients_would_get_that_in_their_own_process(
    options: list[str],
) -> None:
    assert "must be no driver's" in nnhal("serve", "reference", "--name", "litert", *options, code=3)
    assert "must be up to 64 letters" in nnhal("serve", "reference", "--name", "x%y", *options, code=3)


def test_a_service_without_a_name_is_named_after_its_driver_and_clients_reach_it() -> None:
    with subprocess.Popen([*NNHAL, "serve", "reference", "--json"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline())["name"] == "reference-service"
            device = RemoteDevice(names.connect("reference-service"))
            assert run(prepare(device), numbers()) is not None
            device.close()
        finally:
            process.terminate()


def test_what_cannot_be_served_is_json_where_that_is_asked_for() -> None:
    error = json.loads(nnhal("serve", "reference", "--allow", "nosuchcall", "--json", code=3))["error"]
    assert error["type"] == "InvalidArgument" and "nosuchcall" in error["message"]


# --------------------------------------------------------------------------------------------------------------- usage


def test_who_holds_what_of_a_service_is_shown_by_process(served: subprocess.Popen[str]) -> None:
    device = RemoteDevice(names.connect("bench"))
    try:
        keep = prepare(device)
        run(keep, numbers())
        (found,) = json.loads(nnhal("serve", "--json"))
        assert found["name"] == "bench" and found["most_clients"] >= 2
        (client,) = found["clients"]  # without the one that asks
        assert client["pid"] == os.getpid() and client["used"].keys() == found["quotas"].keys()
        assert [client["used"][name] for name in ("connections", "prepared", "bindings", "memories")] == [1, 1, 1, 2]
        assert all(client["used"][name] <= quota["most"] for name, quota in found["quotas"].items())
        table = nnhal("serve", "--name", "bench")
        assert re.search(rf"bench: 1 clients, at most {found['most_clients']}", table)
        assert re.search(rf"quota +at most +reserved for each +process {os.getpid()}", table)
        assert re.search(r"prepared +1024 +1\n", table) and re.search(r"memory +\d+ [MG]iB", table)
    finally:
        device.close()


# ------------------------------------------------------------------------------------------------------------- systemd


def test_a_unit_has_the_metrics_where_they_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nnhal("serve", "reference", "--name", "npu", "--metrics", "unix:told", "--systemd", "units")
    assert f"--metrics unix:{tmp_path}/told" in (tmp_path / "units" / "nnhal-npu.service").read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine to ask")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    nnhal("serve", "reference", "--systemd", str(tmp_path))
    units = [str(tmp_path / f"nnhal-reference-service.{suffix}") for suffix in ("socket", "service")]
    words = ["systemd-analyze", "verify", "--user", *units]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False, env=environment)
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if "nnhal-reference-service" in line]
    assert not complaints


# ------------------------------------------------------------------------------------------------------------- isolate


def test_run_isolated_gives_what_run_gives(tiny: str) -> None:
    for device in ("reference", "litert"):
        plain = outputs(nnhal("run", tiny, "--json", "-d", device))
        assert outputs(nnhal("run", tiny, "--json", "-d", device, "--isolate")) == plain


def test_a_driver_under_development_runs_isolated(tiny: str) -> None:
    plain = outputs(nnhal("run", tiny, "--json", "-d", "reference"))
    assert outputs(nnhal("run", tiny, "--json", "--driver", PROBE, "--isolate")) == plain


def test_a_driver_that_crashes_does_not_take_the_command_with_it(tiny: str, tmp_path: Path) -> None:
    file = tmp_path / "crashing.py"
    file.write_text(
        "import os, signal\n"
        "from nnhal.drivers.reference import Reference\n"
        "class Crashing(Reference):\n"
        "    name = 'crashing'\n"
        "    def prepare(self, model, hints):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "device = Crashing\n"
    )
    said = nnhal("run", tiny, "--driver", str(file), "--isolate", code=4)
    assert "SIGKILL" in said and "Traceback" not in said


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", ["1.0", "1.2"])
def test_vectors_isolated_at_a_level_calls_only_its_methods(vectors: Path, level: str) -> None:
    share = {"1.0": "0.05", "1.2": "0.01"}[level]
    arguments = ("--device", "reference", "--isolate", "--level", level, "--sample", share, "--jobs", "1", "--json")
    found = json.loads(nnhal("test", "vectors", "--vectors", str(vectors), "--published-only", *arguments))
    assert found["totals"]["passed"] > 20 and found["totals"]["failed"] == 0
    late = {"1.0": r"_1_[123]|ynchronously|Burst|getType|Version", "1.2": r"_1_3|Fenced|allocate"}[level]
    calls = found["suites"][0]["calls"]
    assert calls["execute" if level == "1.0" else "executeSynchronously"] > 20
    assert not [name for name in calls if re.search(late, name)]
