"""`control.on_cancel`: an engine that cannot poll is told once, from another thread, and never after its run returned."""

import os
import select
import signal
import threading
from pathlib import Path
from time import monotonic_ns
from types import SimpleNamespace

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import Cancelled, MissedDeadline
from nnhal.hal import cancel
from nnhal.hal.cancel import OnCancel
from nnhal.hal.request import Control
from nnhal.runtime import discovery, isolation
from tests.models import doubling
from tests.waiting import LIMIT, Started, jitter, until

DRIVER = '''
import threading
import numpy as np
from nnhal.base.errors import OperationFailed
from nnhal.hal.device import Device, Prepared

class Engine:
    """One that cannot poll: it waits until it is stopped."""

    def __init__(self):
        self.stopped, self.calls = threading.Event(), []

    def stop(self):
        self.calls.append(threading.current_thread())
        self.stopped.set()

class Run(Prepared):
    def run(self, request, control):
        engine, main = Engine(), threading.current_thread()
        with control.on_cancel(engine.stop):
            if request.inputs[0][0] > 0:
                print("it runs", flush=True)
                stopped = engine.stopped.wait(600)
                print("stopped", stopped, len(engine.calls), engine.calls[0] is not main, flush=True)
        control.check()
        request.write(0, request.inputs[0])

class Waiting(Device):
    name = "waiting"
    one_at_a_time = True
    def supports(self, model):
        return [True] * len(model.main.operations)
    def prepare(self, model, hints):
        return Run()

device = Waiting
'''
ENDLESS, AT_ONCE = np.ones(4, np.float32), np.zeros(4, np.float32)


@pytest.fixture(params=["none", "process"])
def run(request, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(discovery, "_registered", {})
    (tmp_path / "waiting.py").write_text(DRIVER)
    nnhal.load_driver(tmp_path / "waiting.py")
    model = doubling(4)
    with nnhal.compile(model, devices=["waiting"], isolation=request.param) as compiled:
        yield compiled
    isolation.close_all()


class Pollable:
    """What is asked of a `Control`, but for `check`."""

    bounded = True

    def patience(self) -> float:
        return 0.001


def runs_again(run) -> None:
    """The engine was stopped: one execution at a time, and the next one runs."""
    assert run(AT_ONCE).tolist() == [0, 0, 0, 0]


def test_an_engine_is_stopped_when_its_execution_is_cancelled(run, said):
    execution = run.submit(ENDLESS)
    until(lambda: said("it runs"), "the engine runs")
    execution.cancel()
    with pytest.raises(Cancelled):
        execution.result()
    runs_again(run)


def test_an_engine_is_stopped_at_the_deadline(run):
    with pytest.raises(MissedDeadline):
        run.run(ENDLESS, deadline=0.2)
    runs_again(run)


def test_it_is_called_once_from_another_thread():
    calls, event = [], threading.Event()
    with Control(cancelled=event).on_cancel(lambda: calls.append(threading.current_thread())):
        event.set()
        until(lambda: calls, "the call")
        looked_at()
    assert len(calls) == 1 and calls[0] is not threading.current_thread()


def looked_at() -> None:
    """Wait until whoever looks after blocks has looked at all that have begun, and called."""
    event, called = threading.Event(), threading.Event()
    event.set()
    with Control(cancelled=event).on_cancel(called.set):
        assert called.wait(LIMIT)


def test_what_is_never_cancelled_calls_nothing_and_leaves_no_thread():
    calls, started = [], Started()
    for control in (Control(), Control(cancelled=threading.Event()), Control(deadline=monotonic_ns() + 10**12)):
        with control.on_cancel(lambda: calls.append(1)):
            looked_at()
    started.ended()
    assert not calls


def test_one_thread_looks_after_the_blocks_of_all_executions():
    begun = []

    class Thread(threading.Thread):
        def start(self) -> None:
            begun.append(self)
            super().start()

    with pytest.MonkeyPatch.context() as patch, Control(cancelled=threading.Event()).on_cancel(print):
        patch.setattr(cancel, "threading", SimpleNamespace(Thread=Thread, Lock=threading.Lock))
        for _ in range(50):
            control = Control(cancelled=threading.Event(), deadline=monotonic_ns() + 10**12)
            with control.on_cancel(print), control.on_cancel(print):
                pass
    assert not begun


def test_an_engine_that_takes_long_to_stop_keeps_no_other_waiting():
    event, stopped, freed = threading.Event(), threading.Event(), threading.Event()
    with Control(cancelled=event).on_cancel(lambda: freed.wait(LIMIT)), Control(cancelled=event).on_cancel(stopped.set):
        event.set()
        assert stopped.wait(LIMIT)
        freed.set()


def test_a_deadline_that_is_near_is_not_looked_at_late_for_the_sake_of_one_that_is_far(monkeypatch):
    monkeypatch.setattr(cancel, "SLICE", 600.0)  # so long until the next look, unless one is due
    with Control(deadline=monotonic_ns() + 10**12).on_cancel(print):
        for _ in range(20):
            told = threading.Event()
            with Control(deadline=monotonic_ns() + 2_000_000).on_cancel(told.set):
                assert told.wait(LIMIT)


def test_nothing_is_called_for_a_block_whose_beginning_was_interrupted():
    calls, event = [], threading.Event()
    with Control(cancelled=event).on_cancel(lambda: calls.append("inside")):
        Control(cancelled=event).on_cancel(lambda: calls.append("never begun")).__enter__()  # nobody holds it
        event.set()
        looked_at()
        until(lambda: calls, "the call")
    assert calls == ["inside"]


def test_no_block_is_taken_for_one_that_ended():
    """The thread looks up all blocks and asks them then: one that has begun meanwhile, in the place in memory of one that
    ended, is not taken away with it."""
    control = Control(cancelled=threading.Event())
    assert len({control.on_cancel(print).number for _ in range(1000)}) == 1000


def test_interrupts_at_any_moment_leave_a_thread_that_looks():
    class Struck(Exception):
        pass

    def strike(*_: object) -> None:
        if armed:
            raise Struck

    def keep_striking() -> None:
        while not over.wait(random.uniform(1e-5, 4e-4)):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    random, armed, over, struck = np.random.default_rng(1), [], threading.Event(), 0
    before = signal.signal(signal.SIGUSR1, strike)
    striking = threading.Thread(target=keep_striking, daemon=True)
    striking.start()
    while struck < 300:
        try:
            armed.append(1)
            while True:
                with Control(deadline=monotonic_ns() + 1_000_000).on_cancel(int):
                    pass
        except Struck:
            armed.clear()
            struck += 1
    over.set()
    striking.join()
    signal.signal(signal.SIGUSR1, before)
    told = threading.Event()
    with Control(deadline=monotonic_ns() + 1_000_000).on_cancel(told.set):
        assert told.wait(LIMIT)


def test_a_process_that_was_forked_has_a_thread_of_its_own():
    with Control(cancelled=threading.Event()).on_cancel(print):
        told = os.pipe()
        if not (pid := os.fork()):
            event, called = threading.Event(), threading.Event()
            with Control(cancelled=event).on_cancel(called.set):
                event.set()
                if called.wait(LIMIT):
                    os.write(told[1], b".")
            os._exit(0)
        assert select.select([told[0]], [], [], LIMIT)[0], "nothing was called"
        assert os.waitpid(pid, 0)[1] == 0
    for end in told:
        os.close(end)


def test_the_block_ends_after_a_call_that_has_begun():
    seen, event, leaves, dice = [], threading.Event(), threading.Event(), np.random.default_rng(1)

    def slow() -> None:
        seen.append("begun")
        assert leaves.wait(LIMIT)
        jitter(dice, 0.2)
        seen.append("ended")

    with Control(cancelled=event).on_cancel(slow):
        event.set()
        until(lambda: seen, "the call")
        leaves.set()
    assert seen == ["begun", "ended"]


def test_what_it_raises_is_told_in_the_log(caplog):
    event = threading.Event()
    with Control(cancelled=event).on_cancel(lambda: {}["engine"]):
        event.set()
        until(lambda: caplog.text, "it is told")
    assert "on_cancel() raised KeyError: 'engine'" in caplog.text


def test_at_whatever_moment_it_is_called_once_at_most_and_not_after_the_end():
    random = np.random.default_rng(1)
    for _ in range(60):
        event, over, late, calls = threading.Event(), [], [], []

        def called(over=over, late=late, calls=calls) -> None:
            calls.append(1)
            jitter(random, 0.001)
            late.extend(over)

        threading.Timer(random.uniform(0, 0.05), event.set).start()
        with Control(cancelled=event).on_cancel(called):
            jitter(random, 0.05)
        over.append(1)
        looked_at()
        assert len(calls) <= 1 and not late


def test_a_cancellation_that_is_seen_while_the_block_ends_calls_nothing():
    looked, ended, calls = threading.Event(), threading.Event(), []

    class Seen(Pollable):
        def check(self) -> None:
            looked.set()
            ended.wait(LIMIT)
            raise Cancelled("seen late")

    with OnCancel(Seen(), lambda: calls.append(1)):
        assert looked.wait(LIMIT)
    ended.set()
    looked_at()
    assert not calls
