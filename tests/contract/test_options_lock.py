"""Drivers that run one execution at a time: the runtime queues, in order of arrival; who waits may give up."""

import gc
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic_ns

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import Cancelled, ContractBroken, MissedDeadline, OperationFailed
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.options_lock import LockTicket, OptionsLock
from nnhal.hal.request import Control
from nnhal.ipc import names
from nnhal.ipc.client.process import ReconnectingDevice
from nnhal.runtime import discovery, isolation
from tests.models import doubling
from tests.waiting import LIMIT, jitter, together, until

DRIVER = Path(__file__).parent / "drivers" / "queued.py"


def full(number: float) -> np.ndarray:
    return np.full(4, number, np.float32)


@pytest.fixture(params=["none", "process"])
def way(request, monkeypatch):
    monkeypatch.setattr(discovery, "_registered", {})
    nnhal.load_driver(DRIVER)
    yield request.param
    isolation.close_all()


def compiled(way: str, **options) -> nnhal.Compiled:
    return nnhal.compile(doubling(), devices=["queued"], isolation=way, driver_options={"queued": options})


def at_once(calls) -> list[float]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [float(result[0]) for result in pool.map(lambda call: call(), calls)]


def test_no_two_run_at_once_whichever_way_they_come(way):
    one, two, three = compiled(way), compiled(way), compiled(way, executor=True)
    bursts = [one.burst(), two.burst(), three.burst()]
    calls = [lambda: one(full(1)), lambda: two(full(2)), lambda: one.submit(full(3)).result()]
    calls += [lambda: one.execute_fenced(full(4)).result(), lambda: two.run(full(5), deadline=20)[0]]
    calls += [lambda burst=burst: burst(full(6)) for burst in bursts]
    assert max(at_once(calls)) == 1
    for burst in bursts:
        burst.close()


def test_by_callback_too(way, monkeypatch):
    monkeypatch.setenv("NNHAL_SYNC_EXEC", "0")
    run = compiled(way)
    assert max(at_once([lambda: run(full(1))] * 6)) == 1


def test_who_comes_first_runs_first(way, tmp_path):
    if way == "process":
        pytest.skip("what runs in which order is looked at in process")
    run, device = compiled(way, gate=str(tmp_path / "open")), isolation.select(["queued"], way)[0]
    threads = []
    for number in range(6):
        threads.append(threading.Thread(target=run, args=(full(number),)))
        threads[-1].start()
        until(lambda number=number: device.order and device._device_state.queues["run"].waiting() == number, "it waits")
    (tmp_path / "open").touch()
    for thread in threads:
        thread.join()
    assert device.order == [0, 1, 2, 3, 4, 5]


def test_a_deadline_holds_in_the_queue_and_the_next_runs(way, tmp_path, said):
    run = compiled(way, gate=str(tmp_path / "open"))
    first = run.submit(full(1))
    until(lambda: said("inside: 1"), "the first is inside")
    last = run.submit(full(3))
    with pytest.raises(MissedDeadline):
        run.run(full(2), deadline=0.15)
    (tmp_path / "open").touch()
    assert first.result()[0] == last.result()[0] == 1
    assert not said("inside: 2")


def test_who_is_cancelled_leaves_the_queue_without_having_run(way, tmp_path, said):
    run = compiled(way, gate=str(tmp_path / "open"))
    first = run.submit(full(1))
    until(lambda: said("inside: 1"), "the first is inside")
    second, third = run.submit(full(2)), run.submit(full(3))
    second.cancel()
    with pytest.raises(Cancelled):
        second.result()
    (tmp_path / "open").touch()
    assert first.result()[0] == third.result()[0] == 1
    assert not said("inside: 2")


def test_a_run_that_fails_lets_the_next_in(way):
    run = compiled(way, fails=True)
    for _ in range(3):
        with pytest.raises(OperationFailed, match="as it was told to"):
            run(full(1))


class Mine(Device):
    name = "mine"

    def __init__(self, run, declared: object = False) -> None:
        self.run, self.declared = run, declared

    def supports(self, model):
        return [True] * len(model.main.operations)

    def prepare(self, model, hints):
        prepared = Ran()
        prepared.act, prepared.one_at_a_time = self.run, self.declared
        return prepared


class Ran(Prepared):
    def run(self, request, control):
        return self.act(request, control)


def test_a_prepared_model_may_say_so_for_itself():
    inside, most, dice = [], [], np.random.default_rng(1)

    def act(request, control):
        inside.append(request)
        most.append(len(inside))
        jitter(dice, 0.02)
        inside.remove(request)
        request.write(0, full(1))

    queued = nnhal.compile(doubling(), devices=[Mine(act, True)])
    at_once([lambda: queued(full(1))] * 5)
    assert set(most) == {1}
    both = threading.Barrier(2)

    def meet(request, control):
        both.wait(LIMIT)
        request.write(0, full(1))

    free = nnhal.compile(doubling(), devices=[Mine(meet)])
    at_once([lambda: free(full(1))] * 2)


@pytest.mark.parametrize("declared", [1, "yes", None])
def test_what_is_no_boolean_is_the_drivers_fault_and_what_it_prepared_is_closed(declared):
    with pytest.raises(ContractBroken, match=r"one_at_a_time of a Prepared is .*, must be a bool"):
        checked_prepared(Mine(lambda *_: None, declared), doubling(), Hints())


@pytest.mark.parametrize(
    ("what", "value"), [("at_once", -1), ("one_at_a_time", 1), ("weights_consumed", 1), ("trimmable", "yes")]
)
def test_what_a_driver_says_that_cannot_be_is_no_error_of_the_applications_and_leaves_nothing_prepared(what, value):
    closed, device = [], Mine(lambda *_: None, False)
    prepare = device.prepare

    def prepared(*given):
        made = prepare(*given)
        made.close = lambda: closed.append(made)
        if what in ("weights_consumed", "trimmable"):
            setattr(made, what, value)
        return made

    device.prepare = prepared
    if what in ("at_once", "one_at_a_time"):
        setattr(device, what, value)
    with pytest.raises(ContractBroken, match=f"device mine: {what}.* is {value!r}, must be"):
        checked_prepared(device, doubling(), Hints())
    assert len(closed) == 1


def test_a_prepared_model_goes_with_its_last_reference():
    prepared = checked_prepared(Mine(lambda *_: None, True), doubling(), Hints())
    there = weakref.ref(prepared)
    gc.disable()
    try:
        del prepared
        assert there() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("seed", range(20))
def test_any_interleaving_keeps_one_inside_and_leaves_nobody_waiting(seed):
    """Each of eight threads runs, fails, is cancelled or late, at random moments."""
    random, turns = np.random.default_rng(seed), OptionsLock()
    inside, most, done = [], [], []

    def act(kind, control):
        inside.append(kind)
        most.append(len(inside))
        jitter(random, 0.002)
        inside.pop()
        if kind == "fails":
            raise OperationFailed("told to")
        done.append(kind)

    run = turns.alone(act)
    gone = []

    def one(kind, pause):
        jitter(random, 0.01)
        event = threading.Event()
        if kind == "cancelled":
            threading.Timer(pause, event.set).start()
        control = Control(monotonic_ns() + 2_000_000) if kind == "late" else Control(cancelled=event)
        try:
            run(kind, control)
        except (Cancelled, MissedDeadline, OperationFailed):
            gone.append(kind)

    kinds = [str(kind) for kind in random.choice(["runs", "fails", "cancelled", "late"], 24)]
    together([partial(one, kind, random.uniform(0, 0.01)) for kind in kinds])
    assert set(most) <= {1} and len(done) + len(gone) == len(kinds) and not turns._queue
    assert done.count("runs") == kinds.count("runs") and gone.count("fails") == kinds.count("fails")


@pytest.mark.parametrize("seed", range(10))
def test_who_is_alone_is_beside_nobody_and_waits_for_those_alone_who_came_before(seed):
    """Executions and changes at random moments, some of which are given up: what is begun after a change sees it."""
    random, turns, inside, wrong = np.random.default_rng(seed), OptionsLock(), [], []

    def act(kind, control):
        inside.append(kind)
        if "change" in inside and len(inside) > 1:
            wrong.append(list(inside))
        jitter(random, 0.003)
        inside.remove(kind)

    runs = {"run": turns.side_by_side(act), "change": turns.alone(act)}
    done = []

    def one(kind, late):
        jitter(random, 0.02)
        try:
            runs[kind](kind, Control(monotonic_ns() + (1_000_000 if late else 20_000_000_000)))
        except MissedDeadline:
            done.append("late")
        else:
            done.append(kind)

    kinds = [str(kind) for kind in random.choice(["run", "run", "run", "change"], 30)]
    together([partial(one, kind, random.random() < 0.2) for kind in kinds])
    assert not wrong and len(done) == len(kinds) and not turns._queue


def test_those_beside_one_another_do_not_overtake_who_waits_to_be_alone():
    turns, order = OptionsLock(), []
    first, alone, second = LockTicket(alone=False), LockTicket(alone=True), LockTicket(alone=False)
    for ticket in (first, alone, second):
        turns.queue(ticket)
        order.append([each.called.is_set() for each in (first, alone, second)])
    turns.leave(first)
    order.append([each.called.is_set() for each in (alone, second)])
    turns.leave(alone)
    order.append([second.called.is_set()])
    assert order == [[True, False, False], [True, False, False], [True, False, False], [True, False], [True]]
    turns.leave(alone)  # who is in no queue leaves none
    turns.leave(second)
    assert not turns._queue


@pytest.mark.parametrize(
    "control", [Control(), Control(deadline=2**62), Control(cancelled=threading.Event())], ids=["none", "far", "event"]
)
def test_whoever_is_lost_with_a_ticket_is_passed_over_whatever_limit_there_is(control):
    turns, lost = OptionsLock(), []
    ticket = LockTicket(alone=True)
    turns.queue(ticket)
    thread = threading.Thread(target=lambda: turns.alone(lambda *_: lost.append(1))(None, control))
    thread.start()
    until(lambda: len(turns._queue) == 2, "it waits")
    assert not lost
    del ticket
    thread.join(LIMIT)
    assert lost == [1]


def test_a_lost_ticket_in_the_middle_holds_up_nobody_behind_it():
    turns, first, lost, last = OptionsLock(), LockTicket(alone=False), LockTicket(alone=False), LockTicket(alone=False)
    turns.queue(first)
    turns.queue(lost)
    del lost
    turns.queue(last)
    assert first.called.is_set() and last.called.is_set()


@pytest.mark.parametrize("kind", [MissedDeadline, Cancelled])
def test_who_gives_up_does_so_while_another_is_still_inside(kind):
    turns, inside, over, ran = OptionsLock(), threading.Event(), threading.Event(), []

    def holding(*_):
        inside.set()
        assert over.wait(LIMIT)

    holder = threading.Thread(target=turns.alone(holding), args=(None, Control()))
    holder.start()
    assert inside.wait(LIMIT)
    event = threading.Event()
    control = Control(monotonic_ns() + 100_000_000) if kind is MissedDeadline else Control(cancelled=event)
    cancelling = threading.Thread(target=lambda: (until(lambda: len(turns._queue) == 2), event.set()))
    cancelling.start()
    try:
        with pytest.raises(kind):
            turns.alone(lambda *_: ran.append(1))(None, control)
        assert holder.is_alive() and not ran
    finally:
        over.set()
        holder.join(LIMIT)
        cancelling.join(LIMIT)


def test_clients_of_one_service_stand_in_one_queue(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    command = [sys.executable, "-P", "-m", "nnhal.serve", str(DRIVER), "--name", "queued-service", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as service:
        try:
            assert service.stdout.readline()
            clients = [ReconnectingDevice("queued-service", lambda: names.connect("queued-service")) for _ in range(3)]
            runs = [nnhal.compile(doubling(), devices=[client]) for client in clients]
            assert max(at_once([lambda run=run: run(full(1)) for run in runs * 3])) == 1
            for client in clients:
                client.close()
        finally:
            service.terminate()


def test_who_leaves_takes_nobody_else_out_of_the_queue() -> None:
    turns, tickets = OptionsLock(), [LockTicket(alone=True) for _ in range(4)]
    first, second, third, last = tickets
    for ticket in tickets:
        turns.queue(ticket)
    turns.leave(second)
    assert [ticket.called.is_set() for ticket in tickets] == [True, False, False, False]
    turns.leave(first)
    assert third.called.is_set() and not last.called.is_set()
    turns.leave(second)  # which is in none
    assert not last.called.is_set()
    turns.leave(third)
    assert last.called.is_set()
