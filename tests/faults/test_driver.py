"""Faults of drivers: that die, die again and again, hang, lie, write where they must not, leak, break out (29 to 37)."""

import os
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import DeviceStatus
from nnhal.base.errors import (
    ContractBroken,
    DeadObject,
    DeviceUnavailable,
    MissedDeadline,
    NnhalError,
    OperationFailed,
    ResourceExhausted,
    UnsupportedModel,
)
from nnhal.ipc.client import peer
from nnhal.ipc.client import session as client
from nnhal.ipc.client.process import ReconnectingDevice, start
from nnhal.runtime.compiled import Compiled
from tests.faults.support import LIMIT, WITNESS, X, asked_to_execute, attempt, undisturbed, wait_until
from tests.models import doubling, make_model

EXPECTED = (X + X).tobytes()
SECOND = 1_000_000_000


@pytest.fixture(autouse=True)
def _neighbour(shared: str) -> Iterator[None]:
    """Another client of another driver is served all the while."""
    with undisturbed(shared):
        yield


def faulty(fallback: Any = "forbid", deadline: float | None = None, **options: Any) -> Compiled:
    """The doubling model on the driver that fails on command, in a process of its own."""
    return nnhal.compile(
        doubling(64),
        devices=["faulty"],
        isolation="process",
        fallback=fallback,
        deadline=deadline,
        driver_options={"faulty": options},
    )


def device_of(compiled: Compiled) -> ReconnectingDevice:
    """Where the first step runs."""
    device = compiled._caller.plan.steps[0].device
    assert isinstance(device, ReconnectingDevice)
    return device


def computes(compiled: Callable[..., Any]) -> bool:
    """Whether it gives the right bytes."""
    return bool(compiled(X).tobytes() == EXPECTED)


# ------------------------------------------------------------------------------------------------------------- item 29


DEATHS = {
    "segv": "killed by SIGSEGV",
    "kill": "killed by SIGKILL",
    "kill:15": "killed by SIGTERM",
    "abort": "killed by SIG(ABRT|SEGV)",
    "exit": "exit status 3",
    "exit:0": "exit status 0",
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("death", DEATHS)
def test_a_driver_that_dies_in_execute_is_a_dead_object_and_is_started_again(death: str) -> None:
    """29: without fallback the error says how the process ended; the next execution finds a fresh process."""
    with faulty(run=death, after=2) as compiled:
        device = device_of(compiled)
        first = device.pid
        assert computes(compiled) and computes(compiled)
        with pytest.raises(DeadObject, match=f"device faulty: .*{DEATHS[death]}"):
            compiled(X)
        assert computes(compiled)
        assert device.pid != first and device.restarts == device.health.total == 1
        assert re.search(DEATHS[death], str(device.health))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("death", DEATHS)
def test_the_cpu_takes_over_from_a_driver_that_dies_where_fallback_is_allowed(death: str) -> None:
    """29: the result is right, the report has the reason, the caller never notices otherwise."""
    with faulty("allow", run=death) as compiled:
        out, report = compiled.run(X, measure=True)
        assert out.tobytes() == EXPECTED
        assert report is not None and re.search(f"faulty: .*{DEATHS[death]}.*CPU", report.fallbacks[0])


def test_fallback_from_a_dead_driver_warns_where_that_was_asked_for() -> None:
    """29: policy "warn": a right result, and a FallbackWarning with the reason."""
    with faulty("warn", run="segv") as compiled, pytest.warns(nnhal.FallbackWarning, match="SIGSEGV"):
        assert computes(compiled)


@pytest.mark.parametrize("way", ["call", "burst", "submit"])
def test_a_death_reaches_whoever_waits_whichever_way_it_was_called(way: str) -> None:
    """29: plain calls, bursts and background executions all end in DEAD_OBJECT."""
    with faulty(run="segv", after=1) as compiled, compiled.burst() as burst:
        ways: dict[str, Callable[[], Any]] = {
            "call": lambda: compiled(X),
            "burst": lambda: burst(X),
            "submit": lambda: compiled.submit(X).result(),
        }
        assert computes(compiled)
        with pytest.raises(DeadObject):
            ways[way]()
        assert ways[way]().tobytes() == EXPECTED
        assert device_of(compiled).health.total == 1


def test_a_fence_tells_of_the_death_of_the_driver_behind_it() -> None:
    """29: whoever waits for it wakes with DEAD_OBJECT, and what is launched behind it fails as well."""
    with faulty(run="sleep:30", after=1) as compiled:
        device = device_of(compiled)
        assert computes(compiled)
        first = compiled.execute_fenced(X)
        assert first.fence is not None
        os.kill(device.pid, signal.SIGKILL)
        with pytest.raises(DeadObject):
            first.fence.wait(LIMIT)
        with pytest.raises(DeadObject):
            first.result(LIMIT)
        assert compiled.execute_fenced(X).result(LIMIT).tobytes() == EXPECTED
        assert device.health.total == 1


def test_a_driver_that_dies_while_it_prepares_is_a_dead_object_or_the_cpus_work() -> None:
    """29: the same in compilation."""
    with pytest.raises(DeadObject, match=r"device faulty: .*SIGSEGV"):
        faulty(prepare="segv")
    with faulty("allow", prepare="segv") as compiled:
        assert computes(compiled)
        assert "SIGSEGV" in str(compiled._caller.plan.events)


# ------------------------------------------------------------------------------------------------------------- item 30


def test_one_death_under_many_waiting_threads_is_counted_once() -> None:
    """30: eight threads see the death, health counts one, and one fresh process serves them all."""
    with faulty(run="sleep:30", after=8) as compiled, ThreadPoolExecutor(8) as pool:
        device = device_of(compiled)
        assert all(pool.map(lambda _: computes(compiled), range(8)))
        session = device.remote().session
        before = asked_to_execute(session)
        waits = [pool.submit(compiled, X) for _ in range(8)]
        wait_until(lambda: asked_to_execute(session) == before + 8, "all wait")
        os.kill(device.pid, signal.SIGKILL)
        for wait in waits:
            with pytest.raises(DeadObject, match="SIGKILL"):
                wait.result(LIMIT)
        assert all(pool.map(lambda _: computes(compiled), range(8)))
        assert device.health.total == 1 and device.restarts == 1


def test_three_deaths_in_a_short_time_are_quarantine_with_a_reason_until_forgiven() -> None:
    """30: real deaths; health says so; the clock is put forward a minute, and the device is back."""
    with faulty() as compiled:
        device = device_of(compiled)
        for number in range(3):
            assert computes(compiled)
            session = device.remote().session
            os.kill(device.pid, signal.SIGABRT)
            wait_until(lambda s=session: s.peer.dead is not None, "news of the death")
            wait_until(lambda n=number: device.health.total == n + 1, "its count")
        for _ in range(2):
            with pytest.raises(DeviceUnavailable, match=r"faulty: is quarantined .* died 3 times .*SIGABRT"):
                compiled(X)
        assert device.status() == DeviceStatus.OFFLINE
        assert "died 3 times, quarantined" in str(device.health)
        with pytest.raises(DeviceUnavailable, match="is quarantined"):
            faulty()
        device.health.clock = lambda: time.monotonic_ns() + 61 * SECOND
        assert computes(compiled) and device.status() == DeviceStatus.AVAILABLE
        assert "in use" in str(device.health)


def test_a_quarantined_device_leaves_its_work_to_the_cpu_where_that_is_allowed() -> None:
    """30: every execution is right: those that died, those of the quarantine, and new compilations."""
    with faulty("allow", run="exit") as compiled:
        for _ in range(6):
            assert computes(compiled)
        health = device_of(compiled).health
        assert health.total == 3 and health.quarantined_ns > 0
        with faulty("allow") as another:
            assert computes(another)
            assert "quarantined" in str(another.placement.to_dict())


# ------------------------------------------------------------------------------------------------------------- item 31


HANGS = ["hang", "spin", "freeze"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("hang", HANGS)
def test_a_hang_in_execute_ends_at_the_deadline_and_the_device_is_usable_again(hang: str) -> None:
    """31: MISSED_DEADLINE, though the driver never answers; its process is killed, a fresh one takes the next call."""
    with faulty(run=hang, after=1) as compiled:
        device = device_of(compiled)
        first = device.pid
        assert computes(compiled)
        with pytest.raises(MissedDeadline):
            compiled.run(X, deadline=0.2)
        wait_until(lambda: device.health.total == 1, "the end of the process that hangs")
        assert computes(compiled) and device.pid != first
        assert "hangs and was killed" in str(device.health)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("hang", HANGS)
def test_a_hang_in_prepare_ends_at_the_deadline(hang: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """31: MISSED_DEADLINE, also where fallback is allowed, as no time is left; the device is usable again."""
    monkeypatch.setattr(peer, "HUNG_BESIDE_OTHERS_NS", peer.HUNG_NS)  # the second compilation waits for the process
    for fallback in ("forbid", "allow"):
        with pytest.raises(MissedDeadline, match="deadline"):
            faulty(fallback, 0.3, prepare=hang)
    device = nnhal.runtime.isolation.isolated("faulty")
    wait_until(lambda: device.health.total >= 1, "the end of the process that hangs")
    with faulty() as compiled:
        assert device_of(compiled) is device and computes(compiled)


def test_a_missed_deadline_of_an_execution_that_ends_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """31: a driver that is late is none that hangs: the same process serves on, the late result touches nobody."""
    monkeypatch.setattr(peer, "HUNG_NS", int(LIMIT * SECOND))  # however slow the machine is
    with faulty(run="sleep:0.5") as compiled:
        device = device_of(compiled)
        first, out = device.pid, np.full_like(X, -1)
        with pytest.raises(MissedDeadline):
            compiled.run(X, out=out, deadline=0.1)
        assert computes(compiled)
        assert device.pid == first and device.health.total == 0
        assert (out == -1).all(), "a result was written after its execution had failed"


def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "QUERY_NS", SECOND)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("hang", HANGS)
def test_a_hang_in_a_query_drops_the_device_with_the_reason(hang: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """31: `supports`: the operations go to the CPU, or the device is unavailable, and both say why."""
    _small_limit(monkeypatch)
    monkeypatch.setenv("NNHAL_FAULTY", f"supports={hang}")
    with pytest.raises(DeviceUnavailable, match="did not answer getSupportedOperations_1_3 within 1 s; it is dropped"):
        faulty()
    with faulty("allow") as compiled:
        assert computes(compiled)
        assert "did not answer" in str(compiled.placement.to_dict())
        assert [step.device.name for step in compiled._caller.plan.steps] == ["reference"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stage", ["capabilities", "make"])
def test_a_driver_that_hangs_at_its_start_is_unavailable(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """31: while it is made, or in the first questions; its process is gone afterwards."""
    with monkeypatch.context() as patch:
        _small_limit(patch)
        patch.setattr("nnhal.ipc.client.session.GREETING_NS", SECOND)
        patch.setenv("NNHAL_FAULTY", f"{stage}=hang")
        with pytest.raises(DeviceUnavailable, match=r"device faulty: (did not answer getCap|the driver process)"):
            faulty()
    with faulty() as compiled:
        assert computes(compiled)


# ------------------------------------------------------------------------------------------------------------- item 32


def test_a_part_that_fails_to_prepare_goes_to_the_cpu_and_the_reason_is_kept() -> None:
    """32: in a process of its own as in this one."""
    with pytest.raises(OperationFailed, match="failed on command"):
        faulty(prepare="fail")
    with faulty("allow", prepare="fail") as compiled:
        assert computes(compiled)
        assert "failed on command" in str(compiled.placement)


# ------------------------------------------------------------------------------------------------------------- item 33


@pytest.mark.parametrize("lie", ["nan", "negative"])
def test_a_driver_with_impossible_capabilities_is_rejected(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """33: its process refuses to serve it, names the number, and ends; the device is unavailable."""
    monkeypatch.setenv("NNHAL_FAULTY", f"capabilities={lie}")
    number = "nan" if lie == "nan" else "-1"
    with pytest.raises(DeviceUnavailable, match=f"device faulty: the driver process did not start: .* is {number}"):
        faulty()


@pytest.mark.parametrize("lie", ["short", "long", "nothing"])
def test_a_driver_with_verdicts_of_wrong_length_gets_no_operation(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """33: the reason names the counts; the CPU takes over where it may."""
    monkeypatch.setenv("NNHAL_FAULTY", f"supports={lie}")
    with pytest.raises(UnsupportedModel, match="faulty"):
        faulty()
    with faulty("allow") as compiled:
        assert computes(compiled)
        assert [step.device.name for step in compiled._caller.plan.steps] == ["reference"]
        assert "the driver failed to answer" in str(compiled.placement.to_dict())


# ------------------------------------------------------------------------------------------------------------- item 34


def witness(fallback: Any = "forbid", **options: Any) -> Compiled:
    """The doubling model on the witness; its device is closed by `own_witness`."""
    return nnhal.compile(
        doubling(64),
        devices=[ReconnectingDevice("witness", lambda: start(WITNESS))],
        isolation="process",
        fallback=fallback,
        driver_options={"witness": options},
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("beyond", [1, 8, 64])
@pytest.mark.parametrize("way", ["call", "burst", "deadline"])
def test_a_driver_that_writes_past_its_output_is_found_out_and_the_result_dropped(beyond: int, way: str) -> None:
    """34: the bytes behind each output are guarded; the caller's array is not touched."""
    with witness(beyond=beyond) as compiled, compiled.burst() as burst:
        ways: dict[str, Callable[..., Any]] = {
            "call": lambda out: compiled(X, out=out),
            "burst": lambda out: burst(X, out=out),
            "deadline": lambda out: compiled.run(X, out=out, deadline=LIMIT),
        }
        for _ in range(2):
            out = np.full_like(X, -1)
            with pytest.raises(
                OperationFailed, match="device witness: wrote past the end of output 0, must stay within it"
            ):
                ways[way](out)
            assert (out == -1).all()
        device = device_of(compiled)
        assert device.health.total == 0
    device.close()


def test_the_cpu_repeats_what_a_driver_wrote_past_its_output() -> None:
    """34: with fallback the result is right."""
    with witness("allow", beyond=8) as compiled:
        out, report = compiled.run(X, measure=True)
        assert out.tobytes() == EXPECTED
        assert report is not None and "wrote past the end" in report.fallbacks[0]
        device = device_of(compiled)
    device.close()


def test_a_driver_that_writes_far_past_its_output_harms_no_other_process() -> None:
    """34: past the mapping there is no guard but the process: an error by name, and the client's memory as it was."""
    with witness(beyond=1 << 26) as compiled:
        with pytest.raises((DeadObject, OperationFailed), match=r"SIGSEGV|wrote past the end"):
            compiled(X)
        device = device_of(compiled)
    device.close()


def test_an_output_of_a_shape_that_cannot_be_is_refused() -> None:
    """34: the model says (64), the driver gives (7, 7, 7)."""
    with faulty(run="wrong-shape") as compiled:
        rule = r"output 0 is given shape \[7, 7, 7\], must be \[64\]"
        with pytest.raises(ContractBroken, match=rule):
            compiled(X)
        with compiled.burst() as burst, pytest.raises(ContractBroken, match=rule):
            burst(X)
    with faulty("allow", run="wrong-shape") as compiled:
        assert computes(compiled)


# ------------------------------------------------------------------------------------------------------------- item 35


def _data_of(pid: int) -> int:
    """Private writable bytes of a process."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmData:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.parametrize("leak", ["leak-memory:32", "leak-descriptors:25", "allocate:1024"])
def test_a_driver_that_leaks_reaches_its_cap_and_is_replaced(leak: str) -> None:
    """35: RESOURCE_EXHAUSTED in the driver's process, not in this one; a fresh process takes the next execution."""
    with faulty(run=leak) as compiled:
        device = device_of(compiled)
        first = device.pid
        resource.prlimit(first, resource.RLIMIT_DATA, (_data_of(first) + (160 << 20),) * 2)
        resource.prlimit(first, resource.RLIMIT_NOFILE, (100, 100))
        errors = []
        for _ in range(8):
            error = attempt(lambda: compiled(X))
            if isinstance(error, Exception):
                errors.append(error)
                break
        assert len(errors) == 1 and isinstance(errors[0], ResourceExhausted), errors
        if not leak.startswith("allocate"):  # which is too much for the limits of the fresh process too
            assert computes(compiled)
            assert device.pid != first
            wait_until(lambda: not Path(f"/proc/{first}").exists(), "the end of the leaky process")


def test_the_cap_of_a_drivers_memory_is_part_of_the_report() -> None:
    """35: what is limited, and how far."""
    with faulty() as compiled:
        said = device_of(compiled).confinement["rlimits"]
        assert re.match(r"applied: data \d+, descriptors \d+, file \d+, core 0", said), said


# ------------------------------------------------------------------------------------------------------------- item 36


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("deed", "guard"),
    [("read-file", "landlock"), ("write-file", "landlock"), ("socket", "seccomp"), ("exec", "seccomp")],
)
@pytest.mark.parametrize("stage", ["run", "prepare", "supports"])
def test_a_driver_that_breaks_out_is_denied_or_the_report_says_why_not(
    deed: str, guard: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """36: files, sockets and programs, in each call; the error is the operating system's, and the process lives."""
    if stage == "supports":
        monkeypatch.setenv("NNHAL_FAULTY", f"supports={deed}")
    options = {} if stage == "supports" else {stage: deed}
    what = attempt(lambda: faulty(**options))
    said = nnhal.runtime.isolation.isolated("faulty").confinement[guard]
    if stage == "run":
        assert isinstance(what, Compiled), what
        what = attempt(lambda compiled=what: compiled(X))
    if said.startswith("applied"):
        assert isinstance(what, NnhalError) and re.search(r"not permitted|denied|No usable temporary", str(what)), what
    else:
        assert said.startswith("not applied: ") and len(said) > len("not applied: ")
    assert nnhal.runtime.isolation.isolated("faulty").health.total == 0


# ------------------------------------------------------------------------------------------------------------- item 37


def test_a_driver_upgraded_under_a_live_client_fails_cleanly(tmp_path: Path) -> None:
    """37: the process comes back as another version: what was compiled for the old one says so, a new one works."""
    file = tmp_path / "upgraded.py"
    text = (
        "from nnhal.drivers.reference import Reference\n"
        "class Upgraded(Reference):\n    name = 'upgraded'\n    version = '1'\n"
        "def device():\n    return Upgraded()\n"
    )
    file.write_text(text, encoding="utf-8")
    device = ReconnectingDevice("upgraded", lambda: start(str(file)))
    with nnhal.compile(doubling(64), devices=[device], isolation="process") as compiled:
        assert computes(compiled)
        file.write_text(text.replace("'1'", "'2'"), encoding="utf-8")
        os.kill(device.pid, signal.SIGKILL)
        wait_until(lambda: device.health.total == 1, "news of the death")
        for _ in range(2):
            with pytest.raises(
                DeviceUnavailable, match=r"upgraded: another .* version is .2., was .1.; other code; compile again"
            ):
                compiled(X)
    device.close()
    fresh = ReconnectingDevice("upgraded", lambda: start(str(file)))
    with nnhal.compile(doubling(64), devices=[fresh], isolation="process") as compiled:
        assert computes(compiled) and fresh.version == "2"
    fresh.close()


def test_what_an_older_version_of_a_driver_kept_is_not_used_by_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """37: the file of a driver is replaced while its process lives, which is no client of the new version."""
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path / "state"))
    file = tmp_path / "kept.py"
    text = (
        "from nnhal.drivers.samples.full import FullV1_3\n"
        "class Kept(FullV1_3):\n    name = 'kept'\n    version = '1'\n"
        "def device():\n    return Kept()\n"
    )
    model = make_model(lambda b, x: b.mul(x, b.constant(np.full(64, 2, np.float32))), (64,))

    def outcome(device: ReconnectingDevice) -> str:
        with nnhal.compile(model, devices=[device], isolation="process", cache_dir=tmp_path / "cache") as compiled:
            assert computes(compiled)
            return str(compiled.cache[-1])

    file.write_text(text, encoding="utf-8")
    old = ReconnectingDevice("kept", lambda: start(str(file)))
    assert [outcome(old)[:4] for _ in range(2)] == ["miss", "hit"]
    file.write_text(text.replace("'1'", "'2'"), encoding="utf-8")
    new = ReconnectingDevice("kept", lambda: start(str(file)))
    assert [outcome(new)[:4] for _ in range(2)] == ["miss", "hit"]
    old.close()
    new.close()
