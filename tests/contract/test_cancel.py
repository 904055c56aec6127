"""`control.on_cancel`: an engine that cannot poll is told once, from another thread, and never after its run returned."""

import os
import select
import signal
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import Cancelled, MissedDeadline
from nnhal.hal.cancel import OnCancel
from nnhal.hal.request import Control
from nnhal.runtime import discovery, isolation

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
                stopped = engine.stopped.wait(20)
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
    b = nnhal.Builder()
    x = b.input((4,))
    with nnhal.compile(b.finish([x], [b.add(x, x)]), devices=["waiting"], isolation=request.param) as compiled:
        yield compiled
    isolation.close_all()


class Pollable:
    """What is asked of a `Control`, but for `check`."""

    bounded = True

    def patience(self) -> float:
        return 0.001


def ended_in_time(run, began: float) -> None:
    """The engine was stopped: one execution at a time, and the next one runs."""
    assert run(AT_ONCE).tolist() == [0, 0, 0, 0]
    assert time.monotonic() - began < 5


def test_an_engine_is_stopped_when_its_execution_is_cancelled(run):
    began = time.monotonic()
    execution = run.submit(ENDLESS)
    time.sleep(0.2)
    execution.cancel()
    with pytest.raises(Cancelled):
        execution.result()
    ended_in_time(run, began)


def test_an_engine_is_stopped_at_the_deadline(run):
    began = time.monotonic()
    with pytest.raises(MissedDeadline):
        run.run(ENDLESS, deadline=0.2)
    ended_in_time(run, began)


def test_it_is_called_once_from_another_thread():
    calls, event = [], threading.Event()
    with Control(cancelled=event).on_cancel(lambda: calls.append(threading.current_thread())):
        event.set()
        time.sleep(0.2)
    assert len(calls) == 1 and calls[0] is not threading.current_thread()


def test_what_is_never_cancelled_calls_nothing_and_leaves_no_thread():
    def there():
        return sum(t.name != "nnhal-idle" for t in threading.enumerate())  # which models of other tests may have

    calls, before = [], there()
    for control in (Control(), Control(cancelled=threading.Event()), Control(deadline=time.monotonic_ns() + 10**10)):
        with control.on_cancel(lambda: calls.append(1)):
            time.sleep(0.05)
    end = time.monotonic() + 5
    while there() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert not calls and there() == before


def test_one_thread_looks_after_the_blocks_of_all_executions():
    begun = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda self, start=threading.Thread.start: begun.append(start(self)))
        for _ in range(50):
            control = Control(cancelled=threading.Event(), deadline=time.monotonic_ns() + 10**10)
            with control.on_cancel(print), control.on_cancel(print):
                time.sleep(0.001)
    assert len(begun) <= 1


def test_an_engine_that_takes_long_to_stop_keeps_no_other_waiting():
    event, stopped, freed = threading.Event(), threading.Event(), threading.Event()
    with Control(cancelled=event).on_cancel(lambda: freed.wait(20)), Control(cancelled=event).on_cancel(stopped.set):
        event.set()
        assert stopped.wait(5)
        freed.set()


def test_a_deadline_that_is_near_is_not_looked_at_late_for_the_sake_of_one_that_is_far():
    late, now = [], time.monotonic_ns
    with Control(deadline=now() + 10**10).on_cancel(print):
        for _ in range(20):
            time.sleep(0.003)
            told, until = threading.Event(), now() + 2_000_000
            with Control(deadline=until).on_cancel(told.set):
                assert told.wait(5)
            late.append(now() - until)
    assert sorted(late)[10] < 8_000_000  # a look each 20 ms would be 9 late on the average


def test_nothing_is_called_for_a_block_whose_beginning_was_interrupted():
    calls, event = [], threading.Event()
    with Control(cancelled=event).on_cancel(lambda: calls.append("inside")):
        Control(cancelled=event).on_cancel(lambda: calls.append("never begun")).__enter__()  # nobody holds it
        event.set()
        time.sleep(0.2)
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
    end = time.monotonic() + 2
    while time.monotonic() < end:
        try:
            armed.append(1)
            while True:
                with Control(deadline=time.monotonic_ns() + 1_000_000).on_cancel(int):
                    pass
        except Struck:
            armed.clear()
            struck += 1
    over.set()
    striking.join()
    signal.signal(signal.SIGUSR1, before)
    assert struck > 100
    told = threading.Event()
    with Control(deadline=time.monotonic_ns() + 1_000_000).on_cancel(told.set):
        assert told.wait(5)


def test_a_process_that_was_forked_has_a_thread_of_its_own():
    with Control(cancelled=threading.Event()).on_cancel(print):
        told = os.pipe()
        if not (pid := os.fork()):
            event = threading.Event()
            with Control(cancelled=event).on_cancel(partial(os.write, told[1], b".")):
                event.set()
                time.sleep(1)
            os._exit(0)
        assert select.select([told[0]], [], [], 10)[0], "nothing was called"
        assert os.waitpid(pid, 0)[1] == 0
    for end in told:
        os.close(end)


def test_the_block_ends_after_a_call_that_has_begun():
    seen, event = [], threading.Event()

    def slow() -> None:
        seen.append("begun")
        time.sleep(0.2)
        seen.append("ended")

    with Control(cancelled=event).on_cancel(slow):
        event.set()
        while not seen:
            time.sleep(0.001)
    assert seen == ["begun", "ended"]


def test_what_it_raises_is_told_in_the_log(caplog):
    event = threading.Event()
    with Control(cancelled=event).on_cancel(lambda: {}["engine"]):
        event.set()
        time.sleep(0.1)
    assert "on_cancel() raised KeyError: 'engine'" in caplog.text


def test_at_whatever_moment_it_is_called_once_at_most_and_not_after_the_end():
    random = np.random.default_rng(1)
    for _ in range(60):
        event, over, late, calls = threading.Event(), [], [], []

        def called(over=over, late=late, calls=calls) -> None:
            calls.append(1)
            time.sleep(0.0005)
            late.extend(over)

        threading.Timer(random.uniform(0, 0.05), event.set).start()
        with Control(cancelled=event).on_cancel(called):
            time.sleep(random.uniform(0, 0.05))
        over.append(1)
        time.sleep(0.002)
        assert len(calls) <= 1 and not late


def test_a_cancellation_that_is_seen_while_the_block_ends_calls_nothing():
    looked, ended, calls = threading.Event(), threading.Event(), []

    class Seen(Pollable):
        def check(self) -> None:
            looked.set()
            ended.wait(5)
            raise Cancelled("seen late")

    with OnCancel(Seen(), lambda: calls.append(1)):
        assert looked.wait(5)
    ended.set()
    time.sleep(0.1)
    assert not calls
