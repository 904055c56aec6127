"""Idle models give memory back: never beside an execution, and nobody notices but by the memory."""

import contextlib
import gc
import os
import queue as queues
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base import pressure
from nnhal.base import time as base_time
from nnhal.base.errors import ContractBroken, DriverFailed, InvalidArgument, MissedDeadline
from nnhal.base.levels import V1_2
from nnhal.drivers.reference import Reference
from nnhal.hal import idle, queue
from nnhal.hal import request as request_module
from nnhal.hal.chain import checked_executor, checked_prepared, checked_reconfigure
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.prepared import PreparedWrapper
from nnhal.hal.request import Control, Request, Timing
from nnhal.hal.wrappers import WithHalLevel
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.process import start
from tests.execution import run_python
from tests.interrupts import interrupted_at
from tests.ipc.support import LIMIT, numbers, request_for, run, wait_until
from tests.models import doubling
from tests.waiting import Clock, jitter


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
            self.device.gate.wait(LIMIT)
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
    """gate: executions wait for it. during: what is done while a model is trimmed."""

    name = "trimmable"

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
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
    return checked_prepared(device, doubling(), Hints())


def right(model: Prepared) -> bool:
    return np.array_equal(run(model, numbers()), 2 * numbers())


def keepers() -> int:
    """Threads of the test's own keeper."""
    alive = [thread for thread in threading.enumerate() if thread.is_alive()]  # Python lists what never began
    targets = [getattr(thread, "_target", None) for thread in alive]
    return sum(getattr(target, "__self__", None) is idle._keeper for target in targets)


# -------------------------------------------------------------------------------------------------------- side by side


def at_random(model: Prepared, call: Callable[[random.Random], object], trims: int) -> None:
    """Call from four threads while so many trims come at random."""
    over, failed = threading.Event(), list[BaseException]()

    def work(dice: random.Random) -> None:
        try:
            while not over.is_set():
                call(dice)
                if dice.random() < 0.2:
                    jitter(dice, 1 / 300)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(random.Random(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    dice = random.Random(4)
    while trims and not failed:
        trims -= model.trim_now(pressed=dice.random() < 0.5)
        jitter(dice, 1 / 1000)
    over.set()
    for thread in threads:
        thread.join(LIMIT)
    assert not failed, failed


def test_no_trim_runs_beside_an_execution_and_every_result_is_right(device: Trimmable) -> None:
    device.during = partial(jitter, random.Random(5), 1 / 500)
    model = prepared(device)
    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        at_random(model, lambda _: right(model) or pytest.fail("wrong"), 12)
    finally:
        sys.setswitchinterval(old)
    assert len(model.inner.trims) == 12 and model.inner.together == 0


@pytest.mark.parametrize("name", ["litert", "onnxruntime", "openvino"])
def test_engines_that_are_trimmed_at_random_give_what_they_gave(name: str) -> None:
    b = nnhal.Builder()
    x = b.input((1, 12, 12, 3))
    weights = np.random.default_rng(1).standard_normal((8, 3, 3, 3)).astype(np.float32)
    y = b.conv_2d(x, weights, np.zeros(8, np.float32), padding="same", activation="relu")
    compiled = nnhal.compile(b.finish([x], [b.softmax(b.reshape(y, (1, -1)), 1.0)]), devices=[name])
    given = [np.random.default_rng(n).random((1, 12, 12, 3), np.float32) for n in range(4)]
    wanted = [compiled(x).copy() for x in given]

    def call(dice: random.Random) -> None:
        n = dice.randrange(4)
        assert np.array_equal(compiled(given[n]), wanted[n])

    (line,) = compiled._caller.lines
    at_random(line.prepared, call, 8)
    compiled.close()


def test_inputs_that_are_gone_are_not_read_when_a_session_is_trimmed() -> None:
    """ONNX Runtime reads large inputs where they lie."""
    compiled = nnhal.compile(doubling(512, 512), devices=["onnxruntime"])
    for n in range(3):
        given = np.full((512, 512), n, np.float32)
        assert np.array_equal(compiled(given), given * 2)
        del given
        gc.collect()
        assert compiled._caller.lines[0].prepared.trim_now(pressed=n == 1)
    compiled.close()


def test_models_of_open_shapes_are_trimmed_for_each_of_their_shapes() -> None:
    compiled = nnhal.compile(doubling(None, 4), devices=["litert"])
    for rows in (1, 2, 3, 1, 2, 3):
        given = np.random.default_rng(rows).random((rows, 4), np.float32)
        assert np.array_equal(compiled(given), given * 2)
        if rows == 3:
            assert compiled._caller.lines[0].prepared.trim_now(pressed=True)
    compiled.close()


def test_an_execution_that_is_inside_keeps_a_trim_from_beginning(device: Trimmable) -> None:
    device.gate.clear()
    model = prepared(device)
    thread = threading.Thread(target=right, args=(model,))
    thread.start()
    wait_until(lambda: model.inner.inside == 1, "it runs")
    assert not model.trim_now(pressed=True)
    device.gate.set()
    thread.join()
    assert model.trim_now(pressed=True) and model.inner.trims == [True]


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
    executor = checked_executor(model, "driver")
    assert executor is not None
    thread = threading.Thread(target=executor.execute, args=(request_for(model, numbers()), (), Control()))
    thread.start()
    assert began.wait(LIMIT) and not model.trim_now(pressed=True)
    go.set()
    thread.join()
    assert model.trim_now(pressed=True)


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
    thread = threading.Thread(target=checked_reconfigure, args=(model, "driver", {"gain": 2}))
    thread.start()
    assert began.wait(LIMIT) and not model.trim_now(pressed=True)
    go.set()
    thread.join()
    assert model.trim_now(pressed=True)


def test_what_has_nothing_to_give_has_noguard() -> None:
    model = checked_prepared(Reference(), doubling(), Hints())
    assert model.guard is None
    with pytest.raises(InvalidArgument, match="not trimmable"):
        model.trim_now(pressed=False)


def test_a_wrapper_passes_trims_on(device: Trimmable) -> None:
    model: Any = checked_prepared(WithHalLevel(device, V1_2), doubling(), Hints())
    assert right(model) and model.trim_now(pressed=True) and model.inner.inner.trims == [True]


def test_what_is_no_bool_is_the_drivers_fault() -> None:
    broken = Trimmable()
    broken.prepare = lambda model, hints: _odd(Trimmable.prepare(broken, model, hints))  # type: ignore[method-assign]
    with pytest.raises(ContractBroken, match="trimmable of a Prepared is 'yes', must be a bool"):
        checked_prepared(broken, doubling(), Hints())


def _odd(model: Any) -> Any:
    model.trimmable = "yes"
    return model


# ---------------------------------------------------------------------------------------------------- drivers that fail


def test_a_model_that_was_restored_is_looked_after_too(device: Trimmable, tmp_path: Path) -> None:
    model = doubling(4)
    for kept in ("miss", "hit"):
        with nnhal.compile(model, devices=["litert"], cache_dir=tmp_path / "kept") as compiled:
            assert str(compiled.cache[0]).startswith(kept)
            assert compiled._caller.lines[0].prepared.trim_now(pressed=True)
            assert np.array_equal(compiled(numbers()), 2 * numbers())


def test_a_trim_that_raises_is_told_and_executions_go_on(device: Trimmable) -> None:
    def fail() -> None:
        raise KeyError("no")

    device.during = fail
    model = prepared(device)
    with pytest.raises(DriverFailed, match=r"device trimmable: trim\(\) raised KeyError"):
        model.trim_now(pressed=False)
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
    thread = threading.Thread(target=model.trim_now, kwargs={"pressed": False})
    thread.start()
    assert begun.wait(LIMIT)
    try:
        yield go
    finally:
        go.set()
        thread.join()


def test_a_trim_that_hangs_costs_executions_a_named_error_within_their_time_and_they_go_on_after_it(
    device: Trimmable, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = prepared(device), prepared(Trimmable())
    clock = Clock().play(monkeypatch, idle, queue, request_module, base_time)

    def error_of(control: Control, step: float) -> BaseException | None:
        """What comes of an execution as time passes."""
        with ThreadPoolExecutor(1) as pool:
            outcome = pool.submit(run, model, numbers(), control)
            wait_until(lambda: clock.advance(step) or outcome.done(), "it has ended")
            return outcome.exception()

    with hanging(device, model) as go:
        assert isinstance(error_of(clock.within(0.1), 0.02), MissedDeadline)
        error = error_of(Control(), 0.5)
        assert isinstance(error, ContractBroken)
        assert "device trimmable: trim() has not come back, must within 2 s" in str(error)
        with pytest.raises(ContractBroken):  # nobody waits again: no time passes
            run(model, numbers())
        assert right(other)
        go.set()
        wait_until(lambda: bool(model.inner.trims), "it came back")
        assert right(model) and model.inner.together == 0


def test_others_are_trimmed_while_one_hangs(device: Trimmable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(idle.VARIABLE, "0.1")
    monkeypatch.setattr(idle, "LONGEST", 0.2)
    begun, go = threading.Event(), threading.Event()
    device.during = lambda: (begun.set(), go.wait(LIMIT))
    model = prepared(device)
    try:
        assert right(model) and begun.wait(LIMIT)
        wait_until(lambda: not 0 <= time.monotonic() - idle._keeper._trimming_since <= 0.2, "it takes too long")
        other = prepared(Trimmable())
        assert right(other)
        wait_until(lambda: bool(other.inner.trims), "another thread has taken over")
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
        wait_until(lambda: bool(other.inner.trims), "another thread has taken over")
    finally:
        go.set()
    wait_until(lambda: keepers() == 1, "the one that hung has ended")


def test_a_close_waits_for_a_trim(device: Trimmable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "LONGEST", LIMIT)
    model = prepared(device)
    with hanging(device, model) as go:
        thread = threading.Thread(target=model.close)
        thread.start()
        wait_until(lambda: model.guard.over, "it waits")
        assert thread.is_alive() and not model.inner.closed
        go.set()
        thread.join()
        assert model.inner.closed == 1 and not model.trim_now(pressed=True)


def test_a_close_that_a_trim_holds_up_for_too_long_is_done_once_that_has_come_back(device: Trimmable) -> None:
    model = prepared(device)
    with hanging(device, model) as go:
        model.close()
        assert not model.inner.closed
        go.set()
    assert model.inner.closed == 1


# ------------------------------------------------------------------------------------------------------------- when


class Looks:
    """Memory is never short; how often the thread has looked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(idle, "pressure", lambda: self)
        monkeypatch.setattr(idle, "_LOOK", 0.02)

    def short(self) -> bool:
        self.count += 1
        return False

    def two(self) -> None:
        """Wait until it has looked at everything once more, and begun again."""
        seen = self.count
        wait_until(lambda: self.count >= seen + 2, "it has looked")


def test_a_model_is_trimmed_once_after_quiet_seconds_and_again_after_the_next_execution(
    device: Trimmable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(idle.VARIABLE, "10")
    clock, looks = Clock().play(monkeypatch, idle), Looks(monkeypatch)
    model = prepared(device)
    clock.advance(100)
    looks.two()
    assert model.inner.trims == []  # it was never executed
    for times in range(2):
        assert right(model)
        looks.two()
        clock.advance(9.9)
        looks.two()
        assert len(model.inner.trims) == times  # not quiet for long enough
        clock.advance(0.2)
        wait_until(lambda times=times: len(model.inner.trims) > times, "it was trimmed")  # type: ignore[misc]
        clock.advance(100)
        looks.two()
        assert model.inner.trims == [False] * (times + 1)


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
    between: list[float] = []

    class Woken(queues.SimpleQueue[None]):
        def get(self, block: bool = True, timeout: float | None = None) -> None:
            between.append(timeout or 0)
            super().get(block, timeout)

    idle._keeper._woken = Woken()
    model = prepared(device)
    assert right(model)
    wait_until(lambda: bool(model.inner.trims) and len(between) > 3, "it was trimmed, and looked after")
    assert set(between) == {0.02}


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
    wait_until(lambda: len(other.inner.trims) == 1, "it was trimmed")
    os._exit(0 if ok and not model.inner.trims else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print("done")
"""
    words = [sys.executable, "-W", "ignore", "-c", body]
    root, environment = Path(__file__).parents[2], {**os.environ, idle.VARIABLE: "0.2"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, cwd=root, env=environment, check=False)
    assert done.stdout == "done\n", done.stderr


def test_a_forked_child_closes_a_model_that_was_just_being_trimmed(device: Trimmable) -> None:
    model = prepared(device)
    with hanging(device, model), model.guard._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork, which this is about
        pid = os.fork()
        if not pid:
            signal.alarm(20)
            model.close()
            os._exit(0 if model.inner.closed == 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_nothing_of_it_is_imported_before_something_can_be_trimmed() -> None:
    body = "import sys, nnhal; b = nnhal.Builder(); x = b.input((2,)); m = b.finish([x], [b.add(x, x)])\n"
    body += "nnhal.compile(m, devices=['reference']); print('nnhal.hal.idle' in sys.modules)"
    done = run_python(body, timeout=LIMIT)
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
    tmp_path: Path, kernel: Callable[..., None], ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock().play(monkeypatch, pressure)
    told = pressure.Pressure(tmp_path, ahead=ahead)
    assert told.known and not told.short()
    for name in ("machine", "group"):
        clock.advance(1)
        kernel(**{name: 51_000})
        assert told.short()
        assert not told.short()
        kernel()
        told.short()
    clock.advance(1)
    kernel(machine=49_000)  # of a second: everybody waits for as much now and then
    assert not told.short()


def test_a_kernel_that_tells_nothing_has_no_pressure(tmp_path: Path) -> None:
    told = pressure.Pressure(tmp_path)
    assert not told.known and not told.short()


def test_pressure_trims_at_once_also_what_was_never_executed(
    device: Trimmable, tmp_path: Path, kernel: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, told = Looks(monkeypatch), list[pressure.Pressure]()

    def made() -> pressure.Pressure:
        told.append(pressure.Pressure(tmp_path))
        monkeypatch.setattr(told[0], "short", lambda short=told[0].short: (looks.short(), short())[1])
        return told[0]

    Clock().play(monkeypatch, pressure)
    monkeypatch.setattr(idle, "pressure", made)
    models = [prepared(device), prepared(device)]
    assert right(models[0])
    wait_until(lambda: looks.count > 0, "the first look")
    kernel(group=10_000_000)
    wait_until(
        lambda: all(model.inner.trims == [True] for model in models), "all are trimmed, long before the hour is over"
    )
    kernel(group=20_000_000)
    looks.two()
    assert all(model.inner.trims == [True] for model in models)  # there is nothing more to give


def test_what_is_at_work_is_not_trimmed_again_and_again_while_memory_is_short(device: Trimmable) -> None:
    model, still = prepared(device), prepared(device)
    for _ in range(10):
        assert right(model)
        idle._keeper._look_at([model.guard, still.guard], idle._keeper._turn, 3600, pressed=True)
    assert model.inner.trims == [] and still.inner.trims == [True]


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
        model = checked_prepared(device, doubling(), Hints())
        assert right(model)
        wait_until(lambda: device.supports(doubling())[0].reason == "[1]0", "it was trimmed once")
        assert right(model)
        model.close()
    finally:
        device.close()
        assert device.session.peer.process is not None
        device.session.peer.process.wait(LIMIT)
