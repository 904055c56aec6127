"""Idle models give memory back: never beside an execution, and nobody notices but by the memory."""

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base import pressure
from nnhal.base.errors import ContractBroken, DriverFailed, InvalidArgument, MissedDeadline
from nnhal.base.levels import V1_2
from nnhal.drivers.reference import Reference
from nnhal.hal import idle
from nnhal.hal.device import Hints, Prepared, executor_by, prepared_by, reconfigured_by
from nnhal.hal.request import Control, Request, Timing
from nnhal.hal.wrappers import AtLevel, PreparedWrapper
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.process import start
from tests.interrupts import interrupted_at
from tests.ipc.support import LIMIT, doubling, numbers, request_for, run, wait_until


class TrimmablePrepared(PreparedWrapper):
    """The reference's, that can be trimmed: notes what comes together with what."""

    def __init__(self, inner: Prepared, model: nnhal.Model, device: "Trimmable") -> None:
        super().__init__(inner, model)
        self.device, self.trimmable = device, True
        self.inside, self.trims, self.together, self.closed = 0, list[bool](), 0, 0
        self.lock = threading.Lock()

    def run(self, request: Request, control: Control) -> Timing | None:
        with self.lock:
            self.inside += 1
        try:
            if self.device.seconds:
                time.sleep(self.device.seconds)
            return super().run(request, control)
        finally:
            with self.lock:
                self.inside -= 1

    def trim(self, *, pressed: bool) -> None:
        self.together += self.inside
        self.device.during()
        self.together += self.inside
        self.trims.append(pressed)

    def close(self) -> None:
        self.closed += 1
        super().close()


class Trimmable(Reference):
    """seconds: that an execution takes. during: what is done while a model is trimmed."""

    name = "trimmable"
    seconds = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.during: Callable[[], object] = lambda: None

    def prepare(self, model: nnhal.Model, hints: Hints) -> Prepared:
        return TrimmablePrepared(super().prepare(model, hints), model, self)


@pytest.fixture
def device() -> Trimmable:
    return Trimmable()


@pytest.fixture(autouse=True)
def no_other(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A keeper of the test's own; nothing is trimmed but by the test, unless it says otherwise."""
    monkeypatch.setenv(idle.VARIABLE, "3600")
    monkeypatch.setattr(idle, "_keeper", idle._Keeper())
    yield
    idle._keeper.wake()


def prepared(device: Trimmable) -> Any:
    return prepared_by(device, doubling(), Hints())


def right(model: Prepared) -> bool:
    return np.array_equal(run(model, numbers()), 2 * numbers())


def keepers() -> int:
    """Threads of the test's own keeper."""
    alive = [thread for thread in threading.enumerate() if thread.is_alive()]  # Python lists what never began
    targets = [getattr(thread, "_target", None) for thread in alive]
    return sum(getattr(target, "__self__", None) is idle._keeper for target in targets)


# -------------------------------------------------------------------------------------------------------- side by side


def at_random(model: Prepared, call: Callable[[], object], seconds: float) -> int:
    """Call from four threads while trims come at random; how many there were."""
    stop, failed = time.monotonic() + seconds, list[BaseException]()

    def work() -> None:
        try:
            while time.monotonic() < stop:
                call()
                if random.random() < 0.2:
                    time.sleep(random.random() / 300)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    trims = 0
    while any(thread.is_alive() for thread in threads):
        trims += idle.trimmed(model, pressed=random.random() < 0.5)
        time.sleep(random.random() / 1000)
    assert not failed, failed
    return trims


def test_no_trim_runs_beside_an_execution_and_every_result_is_right(device: Trimmable) -> None:
    device.during = lambda: time.sleep(random.random() / 500)
    model = prepared(device)
    old, trims = sys.getswitchinterval(), 0
    sys.setswitchinterval(1e-5)
    try:
        trims = at_random(model, lambda: right(model) or pytest.fail("wrong"), 3)
    finally:
        sys.setswitchinterval(old)
    assert trims == len(model.trims) > 5 and model.together == 0


@pytest.mark.parametrize("name", ["litert", "onnxruntime", "openvino"])
def test_engines_that_are_trimmed_at_random_give_what_they_gave(name: str) -> None:
    b = nnhal.Builder()
    x = b.input((1, 12, 12, 3))
    weights = np.random.default_rng(1).standard_normal((8, 3, 3, 3)).astype(np.float32)
    y = b.conv_2d(x, weights, np.zeros(8, np.float32), padding="same", activation="relu")
    compiled = nnhal.compile(b.finish([x], [b.softmax(b.reshape(y, (1, -1)), 1.0)]), devices=[name])
    given = [np.random.default_rng(n).random((1, 12, 12, 3), np.float32) for n in range(4)]
    wanted = [compiled(x).copy() for x in given]

    def call() -> None:
        n = random.randrange(4)
        assert np.array_equal(compiled(given[n]), wanted[n])

    (line,) = compiled._caller.lines
    assert at_random(line.prepared, call, 3) > 3
    compiled.close()


def test_inputs_that_are_gone_are_not_read_when_a_session_is_trimmed() -> None:
    """ONNX Runtime reads large inputs where they lie."""
    b = nnhal.Builder()
    x = b.input((512, 512))
    compiled = nnhal.compile(b.finish([x], [b.add(x, x)]), devices=["onnxruntime"])
    for n in range(3):
        given = np.full((512, 512), n, np.float32)
        assert np.array_equal(compiled(given), given * 2)
        del given
        gc.collect()
        assert idle.trimmed(compiled._caller.lines[0].prepared, pressed=n == 1)
    compiled.close()


def test_models_of_open_shapes_are_trimmed_for_each_of_their_shapes() -> None:
    b = nnhal.Builder()
    x = b.input((None, 4))
    compiled = nnhal.compile(b.finish([x], [b.add(x, x)]), devices=["litert"])
    for rows in (1, 2, 3, 1, 2, 3):
        given = np.random.default_rng(rows).random((rows, 4), np.float32)
        assert np.array_equal(compiled(given), given * 2)
        if rows == 3:
            assert idle.trimmed(compiled._caller.lines[0].prepared, pressed=True)
    compiled.close()


def test_an_execution_that_is_inside_keeps_a_trim_from_beginning(device: Trimmable) -> None:
    device.seconds = 0.5
    model = prepared(device)
    thread = threading.Thread(target=right, args=(model,))
    thread.start()
    wait_until(lambda: model.inside == 1, "it runs")
    assert not idle.trimmed(model, pressed=True)
    thread.join()
    assert idle.trimmed(model, pressed=True) and model.trims == [True]


def test_a_burst_of_a_drivers_own_is_an_execution_too(device: Trimmable) -> None:
    from nnhal.hal.burst import BurstExecutor

    began, go = threading.Event(), threading.Event()

    class Own(BurstExecutor):
        def add(self, *_: object) -> None: ...

        def remove(self, *_: object) -> None: ...

        def execute(self, *_: object) -> None:
            began.set()
            go.wait(LIMIT)

    model = prepared(device)
    model.burst_executor = Own
    executor = executor_by(model, "driver")
    assert executor is not None
    thread = threading.Thread(target=executor.execute, args=(request_for(model, numbers()), (), Control()))
    thread.start()
    assert began.wait(LIMIT) and not idle.trimmed(model, pressed=True)
    go.set()
    thread.join()
    assert idle.trimmed(model, pressed=True)


def test_a_change_of_options_is_no_more_beside_a_trim_than_an_execution(device: Trimmable) -> None:
    made = Trimmable.prepare

    def changeable(model: nnhal.Model, hints: Hints) -> Prepared:
        found: Any = made(device, model, hints)
        found.changeable = ("gain",)
        found.reconfigure = lambda options: (began.set(), go.wait(LIMIT))
        return found  # type: ignore[no-any-return]

    began, go = threading.Event(), threading.Event()
    device.prepare = changeable  # type: ignore[method-assign]
    model = prepared(device)
    thread = threading.Thread(target=reconfigured_by, args=(model, "driver", {"gain": 2}))
    thread.start()
    assert began.wait(LIMIT) and not idle.trimmed(model, pressed=True)
    go.set()
    thread.join()
    assert idle.trimmed(model, pressed=True)


def test_what_has_nothing_to_give_has_no_guard() -> None:
    model = prepared_by(Reference(), doubling(), Hints())
    assert "_guard" not in vars(model)
    with pytest.raises(InvalidArgument, match="not trimmable"):
        idle.trimmed(model, pressed=False)


def test_a_wrapper_passes_trims_on(device: Trimmable) -> None:
    model: Any = prepared_by(AtLevel(device, V1_2), doubling(), Hints())
    assert right(model) and idle.trimmed(model, pressed=True) and model.inner.trims == [True]


def test_what_is_no_bool_is_the_drivers_fault() -> None:
    broken = Trimmable()
    broken.prepare = lambda model, hints: _odd(Trimmable.prepare(broken, model, hints))  # type: ignore[method-assign]
    with pytest.raises(ContractBroken, match="trimmable of a Prepared is 'yes', must be a bool"):
        prepared_by(broken, doubling(), Hints())


def _odd(model: Any) -> Any:
    model.trimmable = "yes"
    return model


# ---------------------------------------------------------------------------------------------------- drivers that fail


def test_a_model_that_was_restored_is_looked_after_too(device: Trimmable, tmp_path: Path) -> None:
    b = nnhal.Builder()
    x = b.input((4,))
    model = b.finish([x], [b.add(x, x)])
    for kept in ("miss", "hit"):
        with nnhal.compile(model, devices=["litert"], cache_dir=tmp_path / "kept") as compiled:
            assert str(compiled.cache[0]).startswith(kept)
            assert idle.trimmed(compiled._caller.lines[0].prepared, pressed=True)
            assert np.array_equal(compiled(numbers()), 2 * numbers())


def test_a_trim_that_raises_is_told_and_executions_go_on(device: Trimmable) -> None:
    def fail() -> None:
        raise KeyError("no")

    device.during = fail
    model = prepared(device)
    with pytest.raises(DriverFailed, match=r"device trimmable: trim\(\) raised KeyError"):
        idle.trimmed(model, pressed=False)
    assert right(model)


def test_a_trim_that_raised_is_not_tried_again(
    device: Trimmable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(idle.VARIABLE, "0.1")
    tried = []

    def fail() -> None:
        tried.append(None)
        raise KeyError("no")

    device.during = fail
    model = prepared(device)
    assert right(model)
    wait_until(lambda: bool(tried), "it was tried")
    wait_until(lambda: not keepers(), "nothing is left to look after")
    assert right(model) and len(tried) == 1
    assert "it is trimmed no more" in caplog.text


@contextlib.contextmanager
def hanging(device: Trimmable, model: Any) -> Iterator[threading.Event]:
    """A trim that does not come back until it is let go."""
    begun, go = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go.wait(LIMIT)

    device.during = hang
    thread = threading.Thread(target=idle.trimmed, args=(model,), kwargs={"pressed": False})
    thread.start()
    assert begun.wait(LIMIT)
    try:
        yield go
    finally:
        go.set()
        thread.join()


def test_a_trim_that_hangs_costs_executions_a_named_error_within_their_time_and_they_go_on_after_it(
    device: Trimmable,
) -> None:
    model, other = prepared(device), prepared(Trimmable())
    with hanging(device, model) as go:
        began = time.monotonic()
        with pytest.raises(MissedDeadline):
            run(model, numbers(), Control(time.monotonic_ns() + 100_000_000))
        assert time.monotonic() - began < idle.LONGEST
        with pytest.raises(ContractBroken, match=r"device trimmable: trim\(\) has not come back, must within 2 s"):
            run(model, numbers())
        began = time.monotonic()
        with pytest.raises(ContractBroken):  # nobody waits again
            run(model, numbers())
        assert time.monotonic() - began < idle.LONGEST
        assert right(other)
        go.set()
        wait_until(lambda: bool(model.trims), "it came back")
        assert right(model) and model.together == 0


def test_others_are_trimmed_while_one_hangs(device: Trimmable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(idle.VARIABLE, "0.1")
    monkeypatch.setattr(idle, "LONGEST", 0.2)
    begun, go = threading.Event(), threading.Event()
    device.during = lambda: (begun.set(), go.wait(LIMIT))
    model = prepared(device)
    try:
        assert right(model) and begun.wait(LIMIT)
        time.sleep(0.3)
        other = prepared(Trimmable())
        assert right(other)
        wait_until(lambda: bool(other.trims), "another thread has taken over")
    finally:
        go.set()
    wait_until(lambda: keepers() == 1, "the one that hung has ended")


def test_others_are_trimmed_also_where_nobody_waits_for_the_one_that_hangs(
    device: Trimmable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(idle.VARIABLE, "0.1")
    monkeypatch.setattr(idle, "LONGEST", 0.2)
    begun, go = threading.Event(), threading.Event()
    device.during = lambda: (begun.set(), go.wait(LIMIT))
    model, other = prepared(device), prepared(Trimmable())
    try:
        assert right(model) and begun.wait(LIMIT) and right(other)
        wait_until(lambda: bool(other.trims), "another thread has taken over")
    finally:
        go.set()
    wait_until(lambda: keepers() == 1, "the one that hung has ended")


def test_a_close_waits_for_a_trim(device: Trimmable) -> None:
    model = prepared(device)
    with hanging(device, model) as go:
        thread = threading.Thread(target=model.close)
        thread.start()
        time.sleep(0.1)
        assert thread.is_alive() and not model.closed
        go.set()
        thread.join()
        assert model.closed == 1 and not idle.trimmed(model, pressed=True)


def test_a_close_that_a_trim_holds_up_for_too_long_is_done_once_that_has_come_back(device: Trimmable) -> None:
    model = prepared(device)
    with hanging(device, model) as go:
        model.close()
        assert not model.closed
        go.set()
    assert model.closed == 1


# ------------------------------------------------------------------------------------------------------------- when


def test_a_model_is_trimmed_once_after_quiet_seconds_and_again_after_the_next_execution(
    device: Trimmable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(idle.VARIABLE, "0.2")
    model = prepared(device)
    time.sleep(0.6)
    assert model.trims == []  # it was never executed
    for times in (1, 2):
        assert right(model)
        wait_until(lambda times=times: len(model.trims) == times, "it was trimmed")  # type: ignore[misc]
        time.sleep(0.5)
        assert model.trims == [False] * times
    began = time.monotonic()
    while time.monotonic() < began + 0.8:  # never quiet for long enough
        assert right(model)
        time.sleep(0.01)
    assert len(model.trims) == 2


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 5.0), ("0", 0.0), ("2.5", 2.5), ("-1", 5.0), ("nan", 5.0), ("x", 5.0)]
)
def test_the_quiet_seconds_are_a_number(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(idle.VARIABLE, text)
    assert idle.quiet_seconds() == seconds


def test_zero_seconds_are_never(device: Trimmable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(idle.VARIABLE, "0")
    before = keepers()
    model = prepared(device)
    assert right(model) and keepers() == before


def test_what_is_looked_after_by_nobody_leaves_nothing_behind(
    device: Trimmable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(idle.VARIABLE, "0")
    for _ in range(20):
        model = prepared(device)
        model.close()
    assert idle._keeper._woken.empty() and not keepers()


def test_next_to_no_quiet_seconds_take_next_to_no_time(device: Trimmable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(idle.VARIABLE, "1e-9")
    model = prepared(device)
    assert right(model)
    wait_until(lambda: bool(model.trims), "it was trimmed")
    began = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - began < 0.1


def test_one_thread_looks_after_all_and_ends_with_the_last(device: Trimmable) -> None:
    wait_until(lambda: not keepers(), "those of other tests have ended")
    models = [prepared(device) for _ in range(3)]
    assert keepers() == 1
    for model in models:
        assert keepers() == 1
        model.close()
    wait_until(lambda: not keepers(), "it has ended")
    again = prepared(device)
    assert keepers() == 1 and right(again)
    again.close()
    wait_until(lambda: not keepers(), "it has ended again")


def test_an_interrupt_where_the_thread_begins_leaves_the_next_model_with_one(
    device: Trimmable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(idle.VARIABLE, "0.1")
    armed = False

    def hits(frame: Any, _: str) -> bool:
        return armed and frame.f_code.co_filename in (idle.__file__, threading.__file__)

    def prepare() -> None:
        nonlocal armed
        armed = False
        model = prepared(device)
        wait_until(lambda: keepers() == 1, "one thread looks after it")
        model.close()
        monkeypatch.setattr(idle, "_keeper", idle._Keeper())
        armed = True
        prepared(device)

    assert interrupted_at(hits, prepare) > 20


def test_a_model_that_nobody_closes_goes_with_its_last_reference(device: Trimmable) -> None:
    gc.disable()
    try:
        model = prepared(device)
        assert right(model)
        gone = weakref.ref(model)
        del model
        assert gone() is None
    finally:
        gc.enable()


def test_a_forked_child_has_a_thread_of_its_own_when_it_needs_one() -> None:
    body = """
import os, threading
from tests.hal.test_idle import *
device = Trimmable()
model = prepared(device)
assert keepers() == 1
pid = os.fork()
if not pid:
    assert not keepers()
    other = prepared(device)
    ok = right(other) and keepers() == 1
    wait_until(lambda: len(other.trims) == 1, "it was trimmed")
    os._exit(0 if ok and not model.trims else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print("done")
"""
    words = [sys.executable, "-W", "ignore", "-c", body]
    root, environment = Path(__file__).parents[2], {**os.environ, idle.VARIABLE: "0.2"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, cwd=root, env=environment, check=False)
    assert done.stdout == "done\n", done.stderr


def test_a_forked_child_closes_a_model_that_was_just_being_trimmed(device: Trimmable) -> None:
    model = prepared(device)
    with hanging(device, model), model._guard._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork, which this is about
        pid = os.fork()
        if not pid:
            signal.alarm(20)
            model.close()
            os._exit(0 if model.closed == 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_nothing_of_it_is_imported_before_something_can_be_trimmed() -> None:
    body = "import sys, nnhal; b = nnhal.Builder(); x = b.input((2,)); m = b.finish([x], [b.add(x, x)])\n"
    body += "nnhal.compile(m, devices=['reference']); print('nnhal.hal.idle' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=LIMIT, check=True)
    assert done.stdout == "False\n"


# -------------------------------------------------------------------------------------------------------------- pressure


@pytest.fixture
def kernel(tmp_path: Path) -> Callable[..., None]:
    """Files as a kernel with PSI has them; to be told how long somebody waited, of the machine and of the group."""
    files = {"machine": tmp_path / "proc/pressure/memory", "group": tmp_path / "sys/mine/memory.pressure"}
    for file in files.values():
        file.parent.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text("0::/mine\n")
    (tmp_path / "proc/self/mountinfo").write_text("1 1 0:1 / /sys rw - cgroup2 cgroup2 rw\n")

    def tell(**microseconds: int) -> None:
        for name, file in files.items():
            total = microseconds.get(name, 0)
            line = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\n".format
            file.write_text(line(total) + line(0).replace("some", "full"))

    tell()
    return tell


@pytest.mark.parametrize("ahead", [False, True])
def test_memory_is_short_where_somebody_waited_for_it_since_the_last_look(
    tmp_path: Path, kernel: Callable[..., None], ahead: bool
) -> None:
    told = pressure.Pressure(tmp_path, ahead=ahead)
    assert told.known and not told.short()
    for name in ("machine", "group"):
        kernel(**{name: 900_000})
        assert told.short()
        assert not told.short()
        kernel()
        told.short()
    time.sleep(0.5)
    kernel(machine=1000)  # of half a second: everybody waits for as much now and then
    assert not told.short()


def test_a_kernel_that_tells_nothing_has_no_pressure(tmp_path: Path) -> None:
    told = pressure.Pressure(tmp_path)
    assert not told.known and not told.short()


def test_pressure_trims_at_once_also_what_was_never_executed(
    device: Trimmable, tmp_path: Path, kernel: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "pressure", lambda: pressure.Pressure(tmp_path))
    models = [prepared(device), prepared(device)]
    assert right(models[0])
    time.sleep(0.1)
    kernel(group=10_000_000)
    wait_until(lambda: all(model.trims == [True] for model in models), "all are trimmed, long before the hour is over")
    kernel(group=20_000_000)
    time.sleep(1.5)
    assert all(model.trims == [True] for model in models)  # there is nothing more to give


def test_what_is_at_work_is_not_trimmed_again_and_again_while_memory_is_short(
    device: Trimmable, tmp_path: Path, kernel: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "pressure", lambda: pressure.Pressure(tmp_path))
    model, still = prepared(device), prepared(device)
    begin = time.monotonic()
    while time.monotonic() < begin + 3:
        kernel(machine=int(1e7 * (time.monotonic() - begin)))
        assert right(model)
        time.sleep(0.005)
    assert model.trims == [] and still.trims == [True]


# --------------------------------------------------------------------------------------------------------- processes


DRIVER = """
from tests.hal.test_idle import Trimmable, TrimmablePrepared
from nnhal.hal.device import Verdict
models = []
class Told(Trimmable):
    name = "told"
    def prepare(self, model, hints):
        models.append(super().prepare(model, hints))
        return models[-1]
    def supports(self, model):
        return [Verdict(True, str([len(m.trims) for m in models]) + str(sum(m.together for m in models)))]
def device():
    return Told()
"""


def test_in_a_process_of_its_own_a_model_is_trimmed_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(idle.VARIABLE, "0.2")
    root = str(Path(__file__).parents[2])
    file = tmp_path / "told.py"
    file.write_text(f"import sys; sys.path.insert(0, {root!r})\n{DRIVER}")
    device = RemoteDevice(start(str(file), options=["--read", root]))
    try:
        model = prepared_by(device, doubling(), Hints())
        assert right(model)
        wait_until(lambda: device.supports(doubling())[0].reason == "[1]0", "it was trimmed once")
        assert right(model)
        model.close()
    finally:
        device.close()
        assert device.session.process is not None
        device.session.process.wait(LIMIT)
