"""Traces over the border: processes that die, fail, hang or write nonsense, and services that others use as well."""

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.base import trace as base
from nnhal.ipc.client.process import ReconnectingDevice, start
from nnhal.ipc.client.trace_follower import TraceFollower
from nnhal.ipc.names import connect
from nnhal.runtime.tracing.summary import summary
from nnhal.runtime.tracing.timeline import Timeline
from tests.faults.support import service
from tests.ipc.support import PROBE
from tests.models import doubling
from tests.trace.test_session import named, seen

X = np.arange(4, dtype=np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.pftrace"


def test_what_a_driver_did_before_it_died_is_in_the_trace(path: Path) -> None:
    with nnhal.trace(path):
        device = ReconnectingDevice("faulty", lambda: start("faulty"))
        try:
            options = {"faulty": {"run": "segv", "after": 2}}
            with nnhal.compile(doubling(), devices=device, fallback="forbid", driver_options=options) as compiled:
                compiled(X)
                compiled(X)
                with pytest.raises(nnhal.DeadObject):
                    compiled(X)
        finally:
            device.close()
    found = seen(path)
    (pid,) = [pid for pid, name in found.processes.items() if name == "faulty"]
    runs = [span for span in named(found, "run") if span.pid == pid]
    assert [run.ended for run in runs] == [True, True, False]
    assert runs[2].parent.caller is not None and runs[2].parent.caller.error.startswith("DeadObject")
    (death,) = [instant for instant in found.instants if instant.name == "the process of faulty died"]
    assert "SIGSEGV" in death.detail and death.at >= runs[2].begin
    assert [value for _, value in found.counters[os.getpid(), "deaths of faulty"]] == [1]
    assert summary(found).deaths == 1 and summary(found).unfinished >= 1


def test_an_execution_that_fails_in_another_process_has_its_error_on_both_sides(path: Path) -> None:
    device = ReconnectingDevice("probe", lambda: start(PROBE))
    try:
        with (
            nnhal.compile(doubling(), devices=device, driver_options={"probe": {"fail": 1}}) as compiled,
            nnhal.trace(path),
            pytest.raises(nnhal.OperationFailed),
        ):
            compiled(X)
    finally:
        device.close()
    found = seen(path)
    (run,), (step,) = named(found, "run"), named(found, "step")
    assert run.pid != step.pid and "probe: failed on command" in run.error and "probe: failed on command" in step.error


def test_a_process_that_runs_already_takes_part_and_one_that_hangs_is_not_waited_for(path: Path) -> None:
    device = ReconnectingDevice("probe", lambda: start(PROBE))
    try:
        with nnhal.compile(doubling(), devices=device) as compiled:
            compiled(X)
            with nnhal.trace(path):
                compiled(X)
            os.kill(device.pid, signal.SIGSTOP)
            try:
                with nnhal.trace(path.with_name("b")):
                    pass
            finally:
                os.kill(device.pid, signal.SIGCONT)
            assert (compiled(X) == X + X).all() and device.health.total == 0
    finally:
        device.close()
    (run,) = named(seen(path), "run")
    assert run.pid != os.getpid()
    assert any("did not start to trace in time" in note for note in seen(path.with_name("b")).notes)


def test_processes_that_hang_are_waited_for_together(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    until, wait = [], TraceFollower.await_follow
    monkeypatch.setattr(
        TraceFollower, "await_follow", lambda self, *which: (until.append((self, which[1])), wait(self, *which))[1]
    )
    devices = [ReconnectingDevice("reference", lambda: start("reference")) for _ in range(4)]
    try:
        for device in devices:
            nnhal.compile(doubling(), devices=device).close()
            os.kill(device.pid, signal.SIGSTOP)
        own = [device.remote().session._follower for device in devices]
        with nnhal.trace(path):
            pass
    finally:
        for device in devices:
            os.kill(device.pid, signal.SIGCONT)
            device.close()
    points = [point for follower, point in until if follower in own]  # this process may have sessions of other tests
    assert len(points) == 4 and len(set(points)) == 1  # to one point in time
    assert sum("did not start to trace in time" in note for note in seen(path).notes) == 4


def test_a_driver_that_writes_nonsense_to_its_log_spoils_nothing(path: Path) -> None:
    device = ReconnectingDevice("reference", lambda: start("reference"))
    draw = np.random.default_rng(0)
    try:
        with nnhal.compile(doubling(), devices=device) as compiled, nnhal.trace(path):
            for _ in range(10):
                compiled(X)
            assert base.process.recording is not None
            mine = [remote for remote in base.process.recording.remotes if remote.pid == device.pid]
            for remote in mine:
                memory = memoryview(remote.memory).cast("B")
                memory[base._FIRST :] = draw.integers(0, 256, len(memory) - base._FIRST, np.uint8)
            assert (compiled(X) == X + X).all()
    finally:
        device.close()
    found = seen(path)
    assert len(named(found, "call")) == 11 and any("dropped" in note for note in found.notes)


def test_after_a_trace_its_processes_write_no_more_and_have_the_plain_methods(path: Path) -> None:
    device = ReconnectingDevice("reference", lambda: start("reference"))
    try:
        with nnhal.compile(doubling(), devices=device) as compiled:
            with nnhal.trace(path):
                compiled(X)
                assert base.process.recording is not None
                remotes = [each for each in base.process.recording.remotes if each.pid == device.pid]
            session = compiled._caller.lines[0].prepared.inner.remote.session  # type: ignore[attr-defined]
            session.end_object(session.number())  # comes back when what was released before has ended
            compiled(X)
            before = [bytes(remote.memory) for remote in remotes]
            for _ in range(10):
                compiled(X)
            assert len(before) == 1 and before == [bytes(remote.memory) for remote in remotes]
    finally:
        device.close()


def test_a_client_of_a_service_sees_nothing_of_what_others_have_done(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with service("reference"):
        mine, other = (ReconnectingDevice("shared", lambda: connect("shared")) for _ in range(2))
        stop = threading.Event()
        with nnhal.compile(doubling(), devices=mine) as compiled, nnhal.compile(doubling(8), devices=other) as others:
            base.followers.discard(other._remote.session._follower)  # as if it were another process's

            def work() -> None:
                while not stop.is_set():
                    others(np.ones(8, np.float32))

            thread = threading.Thread(target=work)
            thread.start()
            try:
                with nnhal.trace(path):
                    for _ in range(20):
                        compiled(X)
            finally:
                stop.set()
                thread.join()
        mine.close()
        other.close()
    found = seen(path)
    away = [span for span in named(found, "run") if span.pid != os.getpid()]
    assert len(away) == 20 and all(run.parent.caller is not None for run in away)


def done_for(timeline: Timeline, name: str) -> list[str]:
    """By the calls of the application, for which each of the outermost spans of this name in a driver's process was done."""
    away = [span for span in named(timeline, name) if span.pid != os.getpid() and span.parent is None]
    return [span.origin.name for span in away if span.origin.layer == "application"] + [
        "nobody" for span in away if span.origin.layer != "application"
    ]


def test_a_preparation_that_begins_before_its_call_is_answered_is_done_for_who_compiles(path: Path) -> None:
    device = ReconnectingDevice("reference", lambda: start("reference"))
    try:
        nnhal.compile(doubling(3), devices=device).close()
        with nnhal.trace(path):
            for size in range(4, 24):
                nnhal.compile(doubling(size), devices=device).close()
    finally:
        device.close()
    assert done_for(seen(path), "prepare") == ["compile"] * 20


def test_an_execution_in_the_background_of_a_process_is_done_for_who_called(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NNHAL_SYNC_EXEC", "0")
    device = ReconnectingDevice("reference", lambda: start("reference"))
    try:
        with nnhal.compile(doubling(), devices=device) as compiled, nnhal.trace(path):
            for _ in range(40):
                assert (compiled(X) == X + X).all()
    finally:
        device.close()
    assert done_for(seen(path), "execute") == ["call"] * 40
