"""Interrupts at any point of an execution: what was begun ends, what was taken is given back, and the next call works."""

import gc
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.hal.background import _idle, start
from nnhal.hal.wrappers import Limited
from nnhal.runtime.placer import Placer
from tests.interrupts import interrupted_at, interrupted_in
from tests.ipc.support import served_here
from tests.runtime.graphs import sums
from tests.runtime.test_execution import LONG, Own, add, wait_until
from tests.waiting import Opened, pass_time

X, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)


WAYS: dict[str, Callable[[nnhal.Compiled], Callable[[], Any]]] = {
    "call": lambda c: lambda: c(X, B),
    "deadline": lambda c: lambda: c.run(X, B, deadline=LONG)[0],
    "bind": lambda c: c.bind(X, B),
    "burst": lambda c: partial(c.burst(), X, B),
    "fenced": lambda c: lambda: c.execute_fenced(X, B).result(),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
def test_after_an_interrupt_the_same_call_works_and_everything_is_closed(way, interrupts):
    generator = random.Random(7)
    for _ in range(40):
        device = Own(add)
        compiled = nnhal.compile(sums(), devices=[device])
        call = WAYS[way](compiled)
        with suppress(KeyboardInterrupt):
            interrupts.after(generator.uniform(0.0002, 0.003))
            while True:
                call()
        assert (call() == X + 1).all()
        compiled.close()
        del compiled, call
        wait_until(lambda device=device: device.closed == 1 or gc.collect() < 0)


def test_the_result_of_a_fenced_execution_can_be_asked_for_again_after_an_interrupt_anywhere_in_it():
    compiled = nnhal.compile(sums(), devices="reference", isolation="process")
    (prepared,) = (step.prepared.inner.remote for step in compiled._caller.plan.steps)
    struck = list[nnhal.Fenced]()

    def ask() -> None:
        struck.append(compiled.execute_fenced(X + len(struck), B))
        struck[-1].fence.wait(LONG)
        struck[-1].result(LONG)

    places = interrupted_at(lambda frame, event: frame.f_code.co_name in TAKING_OVER, ask)
    assert places > 20
    for n, fenced in enumerate(struck):
        assert (fenced.result(LONG) == X + n + 1).all()
    frames = [frame for free in prepared.frames._free.values() for frame in free]
    assert len(frames) == len({id(frame) for frame in frames})


TAKING_OVER = {"get_execution_info", "_ask", "_collect", "taken", "collect", "write_all", "write", "execute", "reopen"}


def test_a_close_that_is_interrupted_can_be_called_again(interrupts):
    gate = threading.Event()
    device = Own(lambda request, control: (gate.wait(LONG), add(request, control))[1])
    compiled = nnhal.compile(sums(), devices=[device])
    execution = compiled.submit(X, B)
    with interrupts.expected(0.1):
        compiled.close()
    assert device.closed == 0
    threading.Timer(0.1, gate.set).start()
    compiled.close()
    assert device.closed == 1 and (execution.result(LONG) == X + 1).all()


def test_a_gate_that_is_opened_twice_does_not_make_two_of_a_worker():
    done = threading.Event()
    start(done.set)  # type: ignore[arg-type, return-value]
    assert done.wait(LONG)
    wait_until(lambda: len(_idle) > 0)
    for worker in list(_idle):
        worker.wake.open()
        worker.wake.open()
    pass_time(0.1)
    assert len(set(_idle)) == len(_idle)


@pytest.mark.parametrize("name", ["compile", "plan", "attempt", "step", "__init__"])
def test_a_compilation_that_is_interrupted_closes_what_was_prepared_once(name):
    device, part = Own(add), sums(2)
    devices = [Limited(device, lambda _, n: n == 0), Limited(device, lambda _, n: n == 1)]

    def points(frame: Any, event: str) -> bool:
        here = "nnhal/runtime" in frame.f_code.co_filename or frame.f_code.co_filename.endswith("api.py")
        return here and device.prepared > device.closed and event in ("call", "return", "c_call", "c_return")

    found = interrupted_in(name, points, lambda: nnhal.compile(part, devices=devices).close())
    assert found > 0
    gc.collect()
    assert device.prepared == device.closed > 0


def test_a_worker_that_was_taken_by_what_was_interrupted_ends(monkeypatch):
    monkeypatch.setattr("nnhal.hal.background._LOOK", 0.01)
    wait_until(lambda: not _idle)
    stuck = workers()  # in what other tests have hang
    compiled = nnhal.compile(sums(), devices="reference")
    compiled.run(X, B, deadline=LONG)  # leaves a worker that is idle
    found = interrupted_in("hand_over", lambda *_: True, lambda: compiled.run(X, B, deadline=LONG))
    assert found > 2
    compiled.close()
    wait_until(lambda: workers() <= stuck)


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "nnhal-worker"}


OPENS: dict[str, Callable[[nnhal.Fence, nnhal.Execution], Any]] = {
    "fence_pair": lambda fence, execution: nnhal.fence_pair(),
    "duplicate": lambda fence, execution: fence.duplicate(),
    "fileno": lambda fence, execution: (fence.fileno(), execution.fileno()),
}


@pytest.mark.parametrize("name", OPENS)
def test_what_was_opened_is_closed_wherever_the_interrupt_comes(name):
    compiled = nnhal.compile(sums(), devices="reference")
    (fence, _), opened = nnhal.fence_pair(), Opened()

    def points(frame: Any, event: str) -> bool:
        return "nnhal" in frame.f_code.co_filename

    found = interrupted_in(name, points, lambda: OPENS[name](fence, compiled.submit(X, B)))
    assert found > 1
    compiled.close()
    opened.closed()


class Alarm(TimeoutError):
    """What a signal handler of the application raises, as a program bounds its own waits."""


@pytest.fixture
def alarm() -> Iterator[Callable[[], None]]:
    """Runs the application's signal handler in the main thread, whatever that is at."""

    raised = threading.Event()

    def handler(*_: object) -> None:
        if not raised.is_set():
            raised.set()
            raise Alarm

    main, before = threading.main_thread().ident, signal.signal(signal.SIGUSR2, handler)
    assert main is not None

    def strike() -> None:
        """Again and again: a signal that comes right before a wait does not end it."""
        while not raised.is_set():
            signal.pthread_kill(main, signal.SIGUSR2)
            raised.wait(0.01)

    yield strike
    signal.signal(signal.SIGUSR2, before)


class Struck(Own):
    """A device during whose `at` the signal comes, once. wraps: its driver makes an error of its own of what it sees."""

    def __init__(self, strike: Callable[[], None], at: str, wraps: bool = False) -> None:
        super().__init__(lambda request, control: (self.stand("run"), add(request, control)))
        self.strike, self.at, self.wraps = strike, at, wraps

    def stand(self, at: str) -> None:
        if at != self.at:
            return
        self.at = ""
        try:
            self.strike()
            threading.Event().wait(LONG)  # until the handler has run
        except Alarm:
            if self.wraps:
                raise RuntimeError("the engine was stopped")  # noqa: B904 (a driver need not)
            raise

    def supports(self, model: nnhal.Model) -> Any:
        self.stand("supports")
        return super().supports(model)

    def prepare(self, model: nnhal.Model, hints: Any) -> Any:
        self.stand("prepare")
        return super().prepare(model, hints)


@pytest.fixture
def blamed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is kept against devices."""
    found: list[Any] = []
    monkeypatch.setattr(Placer, "failed", lambda *given: found.append(given))
    return found


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("fallback", ["forbid", "allow"])
@pytest.mark.parametrize("at", ["supports", "prepare", "run"])
def test_what_a_signal_handler_raises_in_a_driver_reaches_the_application(alarm, blamed, at, fallback, wraps):
    device = Struck(alarm, at, wraps)

    def use() -> np.ndarray:
        with nnhal.compile(sums(), devices=[device], fallback=fallback) as compiled:
            if at == "run":
                with pytest.raises(Alarm):
                    compiled(X, B)
            return compiled(X, B)

    if at != "run":
        with pytest.raises(Alarm):
            use()
    assert (use() == X + 1).all() and device.prepared and not blamed


@pytest.mark.parametrize("fallback", ["forbid", "allow"])
def test_what_a_signal_handler_raises_while_a_driver_elsewhere_executes_reaches_the_application(
    alarm, blamed, fallback
):
    ended = threading.Event()

    def run(request: Any, control: Any) -> None:
        if not ended.is_set():
            alarm()
            assert ended.wait(LONG)
        add(request, control)

    with (
        served_here(Own(run)) as device,
        nnhal.compile(sums(), devices=[device], fallback=fallback) as compiled,
    ):
        with pytest.raises(Alarm):
            compiled(X, B)
        ended.set()
        assert (compiled(X, B) == X + 1).all() and not blamed


WAITS: dict[str, Callable[[nnhal.Compiled], Any]] = {
    "for a deadline": lambda c: c.run(X, B, deadline=LONG),
    "for what was submitted": lambda c: c.submit(X, B).result(),
    "for what was submitted, so long": lambda c: c.submit(X, B).result(LONG),
    "for a fence": lambda c: c.execute_fenced(X, B).fence.wait(LONG),
    "for what is behind a fence": lambda c: c.execute_fenced(X, B).result(LONG),
}


@pytest.mark.parametrize("what", WAITS)
def test_what_a_signal_handler_raises_while_the_application_waits_reaches_it(alarm, blamed, what):
    ended = threading.Event()
    device = Own(lambda request, control: (alarm(), ended.wait(LONG), add(request, control)))
    with nnhal.compile(sums(), devices=[device], fallback="allow") as compiled:
        with pytest.raises(Alarm):
            WAITS[what](compiled)
        ended.set()
    assert not blamed
