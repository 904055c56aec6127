"""A trace from its begin to its file, whatever happens meanwhile; and nothing of it where there is none."""

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base import trace as base
from nnhal.hal.device import Prepared
from nnhal.hal.request import Control, Request, Timing
from nnhal.hal.wrappers import Wrapper
from nnhal.runtime import discovery
from nnhal.runtime.caller import ModelCallable
from nnhal.runtime.compiled import Compiled
from nnhal.runtime.tracing import perfetto, session
from nnhal.runtime.tracing.perfetto import read
from nnhal.runtime.tracing.timeline import Timeline
from tests.execution import PROGRAM_LIMIT, run_python
from tests.interrupts import interrupted_at
from tests.models import doubling
from tests.trace.opened import ALWAYS, decoded, opened, wrong
from tests.waiting import Opened, until

X = np.arange(4, dtype=np.float32)


def seen(path: Path) -> Timeline:
    """A trace, judged by what holds of every one."""
    assert wrong(opened(decoded(path)), ALWAYS) == {}
    return read(path.read_bytes(), str(path))


def named(timeline: Timeline, name: str) -> list[Any]:
    return [span for span in timeline.spans if span.name == name]


class _ThatPrepared(Prepared):
    def __init__(self, inner: Prepared, first: Any) -> None:
        self._inner, self._first = inner, first

    def run(self, request: Request, control: Control) -> Timing | None:
        self._first()
        return self._inner.run(request, control)


class That(Wrapper):
    """The reference, after something else."""

    def __init__(self, first: Any) -> None:
        super().__init__(discovery.cpu())
        self.name, self._first = "that", first

    def prepare(self, model: Any, hints: Any) -> Prepared:
        return _ThatPrepared(self.inner.prepare(model, hints), self._first)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.pftrace"


# --------------------------------------------------------------------------------------------------------- at no cost


def plain(owner: type, name: str) -> bool:
    """Whether a class has the method that was written, and nothing around it."""
    return (
        not hasattr(vars(owner)[name], "__wrapped__") and vars(owner)[name].__qualname__ == f"{owner.__name__}.{name}"
    )


SEAMS = [(ModelCallable, "__call__"), (Request, "execute"), (Compiled, "submit"), (Compiled, "close")]


def test_where_nothing_is_traced_classes_have_the_methods_as_they_were_written(path: Path) -> None:
    assert all(plain(*seam) for seam in SEAMS)
    with nnhal.trace(path):
        assert not any(plain(*seam) for seam in SEAMS)
    assert all(plain(*seam) for seam in SEAMS)
    assert base.process.log is None and base.process.users == 0
    assert {(owner, name) for owner, name, *_ in base._seams} >= set(SEAMS)
    assert all(vars(owner)[name] is method for owner, name, method, _ in base._seams)


def test_methods_keep_their_names_and_signatures_while_they_are_traced(path: Path) -> None:
    import inspect

    before = {name: inspect.signature(getattr(owner, name)) for owner, name in SEAMS if owner is not Request}
    with nnhal.trace(path):
        assert before == {
            name: inspect.signature(getattr(owner, name)) for owner, name in SEAMS if owner is not Request
        }


# ------------------------------------------------------------------------------------------------------------- the file


@pytest.mark.parametrize("where", ["none/a", "folder", "fifo"])
def test_a_file_that_cannot_be_written_is_an_error_at_once(tmp_path: Path, where: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(nnhal.InvalidArgument, match=f"trace .*{where}: "), nnhal.trace(tmp_path / where):
        pytest.fail("it began")
    assert base.process.recording is None and base.process.users == 0


@pytest.mark.parametrize("given", [None, 3, b"a", ""])
def test_what_is_no_path_is_refused(given: Any) -> None:
    with pytest.raises(nnhal.InvalidArgument), nnhal.trace(given):
        pass


@pytest.mark.parametrize("spans", [0, -1, 1.5, True, 1 << 40])
def test_a_number_of_spans_that_cannot_be_is_refused(path: Path, spans: Any) -> None:
    with pytest.raises(nnhal.InvalidArgument, match="spans"):
        nnhal.trace(path, spans=spans)
    assert not path.exists()


def test_two_traces_at_once_are_refused_and_the_first_goes_on(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with nnhal.trace(path):
        with (
            pytest.raises(nnhal.BadState, match="another one is running in this process, must be ended first"),
            nnhal.trace(other),
        ):
            pytest.fail("it began")
        nnhal.compile(doubling(), devices="reference").close()
    assert not other.exists() and named(seen(path), "prepare step")


def test_one_trace_after_the_other_has_its_own_spans_only(path: Path, tmp_path: Path) -> None:
    with nnhal.compile(doubling(), devices="reference") as compiled:
        with nnhal.trace(path):
            compiled(X)
        compiled(X)
        with nnhal.trace(tmp_path / "b"):
            compiled(X)
            compiled(X)
    assert len(named(seen(path), "call")) == 1 and len(named(seen(tmp_path / "b"), "call")) == 2


def test_a_file_keeps_what_is_in_it_until_the_trace_ends(path: Path) -> None:
    path.write_bytes(b"before" * 10_000)
    with nnhal.trace(path):
        assert path.read_bytes() == b"before" * 10_000
    assert seen(path).processes


def test_a_lack_of_descriptors_is_no_fault_of_the_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lacking)
        with pytest.raises(nnhal.ResourceExhausted, match="cannot be written: Too many open files"):
            nnhal.trace(path).__enter__()
    with nnhal.trace(path):
        pass


def test_a_device_without_room_is_told_of_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(nnhal.ResourceExhausted, match="trace /dev/full: cannot be written: No space"):  # noqa: SIM117
        with nnhal.trace("/dev/full"):
            pass
    with pytest.raises(KeyError) as raised, nnhal.trace("/dev/full"):
        raise KeyError("the application's")
    assert "cannot be written" in raised.value.__notes__[0]


def test_a_trace_that_is_full_says_what_it_dropped(path: Path) -> None:
    with nnhal.compile(doubling(), devices="reference") as compiled, nnhal.trace(path, spans=50):
        for _ in range(100):
            compiled(X)
    found = seen(path)
    assert len(found.spans) <= 50 and len(found.notes) == 1 and "spans were dropped" in found.notes[0]


# ---------------------------------------------------------------------------------------------------- what goes wrong


def test_an_execution_that_fails_has_its_error_in_each_span(path: Path) -> None:
    def fail() -> None:
        raise ValueError("no such luck")

    with (
        nnhal.trace(path),
        nnhal.compile(doubling(), devices=That(fail)) as compiled,
        pytest.raises(nnhal.OperationFailed),
    ):
        compiled(X)
    found = seen(path)
    (run,), (step,), (call,) = named(found, "run"), named(found, "step"), named(found, "call")
    assert run.error == "ValueError: no such luck"
    for span in (step, call):
        assert span.error.startswith("DriverFailed: ") and "no such luck" in span.error and span.ended


def test_an_error_of_the_application_ends_the_trace_and_is_passed_on(path: Path) -> None:
    with pytest.raises(KeyError), nnhal.trace(path), nnhal.compile(doubling(), devices="reference") as compiled:
        compiled(X)
        raise KeyError
    assert named(seen(path), "call") and base.process.log is None


def test_an_interrupt_in_a_span_is_passed_on_and_ends_it(path: Path) -> None:
    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    device = That(interrupt)
    with nnhal.trace(path), nnhal.compile(doubling(), devices=device) as compiled, pytest.raises(KeyboardInterrupt):
        compiled(X)
    found = seen(path)
    assert {span.error for span in (*named(found, "run"), *named(found, "call"))} == {"KeyboardInterrupt: "}
    assert all(span.ended for span in found.spans)


def in_finalizer(frame: Any) -> bool:
    """Where Python loses interrupts."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.nightly)])
def test_an_interrupt_anywhere_leaves_nothing_traced_and_the_next_trace_is_whole(path: Path, every: int) -> None:
    whole = 0
    files = base.__file__, session.__file__, perfetto.__file__

    def hits(frame: Any, _: str) -> bool:
        return frame.f_code.co_filename in files and not in_finalizer(frame)

    with nnhal.compile(doubling(), devices="reference") as compiled:
        compiled(X)
        opened = Opened()

        def left() -> None:
            nonlocal whole
            opened.closed()  # a last look at memory may go on
            assert base.process.recording is None and base.process.users == 0 and all(plain(*seam) for seam in SEAMS)
            if path.exists() and path.stat().st_size:
                whole += 1
                seen(path)
                path.unlink()

        def traced() -> None:
            with nnhal.trace(path, spans=50):
                compiled(X)

        places = interrupted_at(hits, traced, before=left, every=every)
    assert places > 300 and whole > 200 / every
    assert len(named(seen(path), "call")) == 1


def test_a_trace_whose_begin_nobody_has_ends_with_it(path: Path) -> None:
    trace = nnhal.trace(path).start()
    nnhal.compile(doubling(), devices="reference").close()
    with pytest.raises(nnhal.BadState):
        trace.start()
    del trace
    assert base.process.recording is None and len(named(seen(path), "prepare step")) == 1


def test_a_thread_that_was_traced_keeps_nothing_of_it(path: Path) -> None:
    go, done, logs = threading.Semaphore(0), threading.Semaphore(0), []

    def work() -> None:
        with nnhal.compile(doubling(), devices="reference") as compiled:
            while go.acquire(timeout=60) and base.process.recording is not None:
                logs.append(weakref.ref(base.process.recording.log))
                compiled(X)
                done.release()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    with nnhal.trace(path):
        for _ in threads:
            go.release()
            assert done.acquire(timeout=60)
    try:
        gc.collect()
        assert len(logs) == 2 and not any(log() for log in logs)
    finally:
        go.release(2)
        for thread in threads:
            thread.join()


def test_what_still_runs_when_the_trace_ends_ends_with_it(path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert go_on.wait(30)

    with nnhal.compile(doubling(), devices=That(wait)) as compiled:
        with nnhal.trace(path):
            execution = compiled.submit(X)
            assert inside.wait(30)
        go_on.set()
        assert (execution.result() == X + X).all()
    found = seen(path)
    (run,) = named(found, "run")
    assert not run.ended and run.end == run.parent.end and not run.error
    assert path.read_bytes() == path.read_bytes()


def test_a_result_of_many_threads_is_the_same_and_each_has_its_track(path: Path) -> None:
    wrong_results = []
    with nnhal.trace(path), nnhal.compile(doubling(), devices="reference") as compiled:

        def work() -> None:
            wrong_results.extend(n for n in range(20) if not (compiled(X + n) == 2 * (X + n)).all())

        threads = [threading.Thread(target=work, name=f"caller {n}") for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = seen(path)
    assert not wrong_results and len(named(found, "call")) == 80
    assert {f"caller {n}" for n in range(4)} <= set(found.threads.values())


def test_traces_that_begin_and_end_among_executions_change_no_result(tmp_path: Path) -> None:
    stop, errors, rounds = threading.Event(), [], [0] * 3
    with nnhal.compile(doubling(), devices="reference") as compiled:

        def work(n: int) -> None:
            while not stop.is_set():
                try:
                    assert (compiled(X) == X + X).all() and (compiled.submit(X).result() == X + X).all()
                    rounds[n] += 1
                except BaseException as error:
                    errors.append(error)
                    return

        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for n in range(15):
            with nnhal.trace(tmp_path / str(n), spans=5000):
                goal = sum(rounds) + 3
                until(lambda goal=goal: sum(rounds) >= goal or errors, "executions")
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors
    for n in range(15):
        seen(tmp_path / str(n))
    assert base.process.users == 0


def test_a_forked_child_is_not_traced_and_writes_no_file(path: Path) -> None:
    with nnhal.trace(path) as running:
        child = os.fork()
        if not child:
            code = 1
            try:
                nnhal.compile(doubling(), devices="reference").close()
                untraced = base.process.log is None and base.process.users == 0 and all(plain(*seam) for seam in SEAMS)
                running.stop()
                code = 0 if untraced and path.stat().st_size == 0 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        nnhal.compile(doubling(), devices="reference").close()
    assert len(named(seen(path), "prepare step")) == 1


def test_a_child_that_was_forked_while_a_trace_began_can_begin_one_of_its_own(path: Path) -> None:
    go, inside = threading.Event(), threading.Event()

    class Slow:
        def follow(self, _: base.Recording) -> None:
            inside.set()
            go.wait(60)

        def await_follow(self, _: base.Recording, __: float) -> None:
            pass

        def unfollow(self) -> None:
            pass

    slow = Slow()
    base.followers.add(slow)

    def trace() -> None:
        with nnhal.trace(path):
            pass

    thread = threading.Thread(target=trace)
    thread.start()
    assert inside.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork among threads
        child = os.fork()
    if not child:
        signal.alarm(20)
        base.followers.clear()
        with nnhal.trace(path.with_name("b")):
            nnhal.compile(doubling(), devices="reference").close()
        os._exit(0)
    go.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert named(seen(path.with_name("b")), "prepare step") and not seen(path).spans


def test_who_waits_for_a_turn_is_counted_and_seen_to_wait(path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert go_on.wait(30)

    class Alone(That):
        def __init__(self) -> None:
            super().__init__(wait)
            self.one_at_a_time = True

    with nnhal.trace(path), nnhal.compile(doubling(), devices=Alone()) as compiled:
        executions = [compiled.submit(X), compiled.submit(X)]
        assert inside.wait(30)
        until(lambda: base.process.recording and named_now("wait for its turn"), "the second waits")
        go_on.set()
        for execution in executions:
            assert (execution.result() == X + X).all()
    found = seen(path)
    waits = named(found, "wait for its turn")
    assert len(waits) == 1 and all(span.ended for span in waits)
    turns = [value for _, value in found.counters[os.getpid(), "waiting"]]
    assert max(turns) == 1 and turns[-1] == 0


def named_now(name: str) -> list[Any]:
    """Entries of the trace that is running."""
    recording = base.process.recording
    assert recording is not None
    held = base.contents(recording.log.memory, recording.log.slots, recording.since, time.monotonic_ns())
    return [entry for entry in held.entries if entry.name == name]


class _Telling(_ThatPrepared):
    profiles = True

    def run(self, request: Request, control: Control) -> Timing | None:
        assert control.profile is not None
        now = time.monotonic_ns()
        for begin, end in ((0, now), (now, now + 10**12), (now, 0), (-5, -1), (1 << 70, 1 << 71)):
            control.profile(0, begin, end)
        control.profile(7, now, now)
        return super().run(request, control._replace(profile=None))


def test_times_of_operations_that_cannot_be_are_left_out(path: Path) -> None:
    class Tells(That):
        def prepare(self, model: Any, hints: Any) -> Prepared:
            return _Telling(self.inner.prepare(model, hints), lambda: None)

    with nnhal.trace(path), nnhal.compile(doubling(), devices=Tells(None)) as compiled:
        assert (compiled(X) == X + X).all()
    found = seen(path)
    (run,) = named(found, "run")
    assert [span.name for span in found.spans if span.parent is run] == ["operation 7"]


def test_a_driver_that_does_not_tell_gets_no_profile_for_the_sake_of_a_trace(path: Path) -> None:
    controls = []

    class Watching(_ThatPrepared):
        def run(self, request: Request, control: Control) -> Timing | None:
            controls.append(control)
            return super().run(request, control)

    class Watched(That):
        def prepare(self, model: Any, hints: Any) -> Prepared:
            return Watching(self.inner.prepare(model, hints), lambda: None)

    with nnhal.compile(doubling(), devices=Watched(None)) as compiled:
        compiled(X)
        with nnhal.trace(path):
            compiled(X)
    assert controls[0] is controls[1]


# ---------------------------------------------------------------------------------------------------- the environment


PROGRAM = """
import numpy as np, nnhal
b = nnhal.Builder()
x = b.input((4,))
compiled = nnhal.compile(b.finish([x], [b.add(x, x)]), devices="reference", isolation="process")
compiled(np.ones(4, np.float32))
"""


def test_a_program_is_traced_to_its_end_by_the_environment_and_its_drivers_with_it(tmp_path: Path) -> None:
    done = run_python(PROGRAM, check=False, env={"NNHAL_TRACE": str(tmp_path / "%p.pftrace")})
    assert done.returncode == 0 and not done.stderr, done.stderr
    (file,) = tmp_path.iterdir()
    found = seen(file)
    assert named(found, "call") and found.processes[int(file.stem)] == "application" and len(found.processes) == 2


WORKERS = """
import multiprocessing, sys
def work():
    import numpy as np, nnhal
    b = nnhal.Builder()
    x = b.input((4,))
    nnhal.compile(b.finish([x], [b.add(x, x)]), devices="reference")(np.ones(4, np.float32))
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    children = [context.Process(target=work) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
"""


@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn"])
def test_each_child_of_multiprocessing_writes_a_trace_of_its_own(how: str, tmp_path: Path) -> None:
    program, traces = tmp_path / "program.py", tmp_path / "traces"
    program.write_text(WORKERS)
    traces.mkdir()
    environment = os.environ | {"NNHAL_TRACE": str(traces / "%p")}
    subprocess.run([sys.executable, program, how], env=environment, check=True, timeout=PROGRAM_LIMIT)
    files = list(traces.iterdir())
    assert len(files) == 2
    for file in files:
        found = seen(file)
        assert found.processes == {int(file.name): "application"} and len(named(found, "call")) == 1


def test_a_driver_that_uses_nnhal_itself_writes_no_file_of_its_own(tmp_path: Path) -> None:
    driver = tmp_path / "mine.py"
    driver.write_text("import nnhal.api\nfrom nnhal.drivers.reference import device as device\n")
    program = PROGRAM.replace("compiled = ", f"nnhal.load_driver({str(driver)!r}); compiled = ")
    traces = tmp_path / "traces"
    traces.mkdir()
    done = run_python(program, check=False, env={"NNHAL_TRACE": str(traces / "%p")})
    assert done.returncode == 0, done.stderr
    (file,) = traces.iterdir()
    assert named(seen(file), "call")


def test_a_service_has_no_trace_of_its_own(tmp_path: Path) -> None:
    driver = tmp_path / "mine.py"
    driver.write_text("import nnhal.api\nfrom nnhal.drivers.reference import device as device\n")
    command = [sys.executable, "-m", "nnhal.serve", str(driver), "--name", "mine", "--json"]
    environment = os.environ | {"NNHAL_TRACE": str(tmp_path / "file"), "XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as service:
        assert service.stdout is not None and '"name": "mine"' in service.stdout.readline()
        service.send_signal(signal.SIGINT)
    assert not (tmp_path / "file").exists()


def test_a_program_that_fails_is_traced_as_well(tmp_path: Path) -> None:
    done = run_python(PROGRAM + "compiled(5)", check=False, env={"NNHAL_TRACE": str(tmp_path / "a")})
    assert done.returncode == 1 and "InvalidRequest" in done.stderr
    assert any("InvalidRequest" in span.error for span in named(seen(tmp_path / "a"), "call"))


def test_a_file_of_the_environment_that_cannot_be_written_is_an_error_at_the_first_call() -> None:
    done = run_python(PROGRAM, check=False, env={"NNHAL_TRACE": "/none/a"})
    assert done.returncode == 1 and "InvalidArgument: trace /none/a: cannot be written" in done.stderr
    assert run_python("import nnhal", check=False, env={"NNHAL_TRACE": "/none/a"}).returncode == 0
