"""Who runs next on a device: priority, fairness between clients, deadlines, limits, and places that are lost."""

import os
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import pytest

from nnhal.base.codes import ErrorStatus, Priority
from nnhal.base.errors import BadState, Cancelled, MissedDeadline, ResourceExhausted
from nnhal.hal import queue as module
from nnhal.hal import waiting as waiting_module
from nnhal.hal.queue import RunQueue, places, units_of
from nnhal.hal.request import UNLIMITED, Control
from nnhal.hal.waiting import FIRST, OWN, PROBE, Pace, QueueClient, QueueTicket, Slot, client_of
from tests.interrupts import interrupted_at

HIGH, MEDIUM, LOW = Priority.HIGH, Priority.MEDIUM, Priority.LOW
LIMIT = 20  # seconds
MS = 1_000_000
T = TypeVar("T")


def within(ms: float) -> Control:
    """A control with a deadline so far away."""
    return Control(time.monotonic_ns() + int(ms * MS))


def in_turn(queue: RunQueue, act: Callable[[Control], T], *how: Any, **more: Any) -> Callable[[Control], T]:
    """What is done in its turn, of a control alone."""
    queued = queue.queued(lambda _, control: act(control), *how, **more)
    return lambda control: queued(None, control)


def waiting(queue: RunQueue) -> int:
    return sum(len(level) for line in queue._lines.values() for level in line.waiting)


def _waits(queue: RunQueue, count: int) -> bool:
    return waiting(queue) == count


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


@contextmanager
def held(queue: RunQueue, client: QueueClient = OWN, count: int = 1) -> Iterator[None]:
    """All places taken meanwhile."""
    over, inside = threading.Event(), threading.Semaphore(0)

    def hold(_: Control) -> None:
        inside.release()
        assert over.wait(LIMIT)

    run = in_turn(queue, hold, client, MEDIUM)
    threads = [threading.Thread(target=run, args=(UNLIMITED,)) for _ in range(count)]
    for thread in threads:
        thread.start()
        assert inside.acquire(timeout=LIMIT)
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(LIMIT)


def lined_up(queue: RunQueue, who: list[tuple[QueueClient, Priority]], seconds: float = 0.0) -> list[int]:
    """Have these come one after the other while the queue is held; the order in which they run, by place."""
    order: list[int] = []
    threads = []
    keep = []
    with held(queue):
        for number, (client, priority) in enumerate(who):

            def act(_: Control, number: int = number) -> None:
                order.append(number)
                time.sleep(seconds)

            run = in_turn(queue, act, client, priority)
            keep.append(run)
            threads.append(threading.Thread(target=run, args=(UNLIMITED,)))
            threads[-1].start()
            until(partial(_waits, queue, number + 1))
    for thread in threads:
        thread.join(LIMIT)
    assert not waiting(queue)
    return order


def one() -> RunQueue:
    return RunQueue("device mine", 1, strict=True)


# ------------------------------------------------------------------------------------------------------------- order


def test_of_one_client_the_higher_priority_goes_first_and_then_whoever_came_first() -> None:
    came = [LOW, MEDIUM, LOW, HIGH, MEDIUM, HIGH]
    assert lined_up(one(), [(OWN, priority) for priority in came]) == [3, 5, 1, 4, 0, 2]


def test_the_priority_of_one_client_is_nothing_to_another() -> None:
    mine, yours = QueueClient("a"), QueueClient("b")
    order = lined_up(one(), [(mine, LOW), (mine, LOW), (yours, HIGH), (yours, HIGH)], seconds=0.01)
    assert sorted(order[:2]) in ([0, 2],) and sorted(order[2:]) == [1, 3]


@pytest.mark.parametrize("each", [1, 2])
def test_who_has_long_executions_has_no_more_of_a_device_than_who_has_short_ones(each: int) -> None:
    """Ten milliseconds against one, of threads that never rest: of one alone none waits when its execution has ended."""
    queue, had, over = one(), {10: 0, 1: 0}, threading.Event()

    def loop(ms: int, run: Callable[..., Any]) -> None:
        while not over.is_set():
            run(UNLIMITED)
            had[ms] += ms

    threads = []
    for ms in had:
        run = in_turn(queue, lambda _, ms=ms: time.sleep(ms / 1e3), QueueClient(str(ms)), MEDIUM)
        threads += [threading.Thread(target=loop, args=(ms, run)) for _ in range(each)]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    over.set()
    for thread in threads:
        thread.join(LIMIT)
    assert 0.25 < had[10] / (had[10] + had[1]) < 0.75


def test_who_has_two_places_for_each_execution_has_no_more_of_them_than_who_has_one() -> None:
    queue, had, over = RunQueue("device mine", 4, strict=False), {2: 0, 1: 0}, threading.Event()

    def loop(units: int, run: Callable[..., Any]) -> None:
        while not over.is_set():
            run(UNLIMITED)
            had[units] += units

    threads = []
    for units in had:
        run = in_turn(queue, lambda _: time.sleep(0.005), QueueClient(str(units)), MEDIUM, units)
        threads += [threading.Thread(target=loop, args=(units, run)) for _ in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    over.set()
    for thread in threads:
        thread.join(LIMIT)
    assert 0.42 < had[2] / (had[2] + had[1]) < 0.58  # two thirds where only time counts


def test_what_waits_is_before_others_for_as_long_as_all_its_places_take() -> None:
    """Four places: two executions of 300 ms run on them, two more of two places each wait, and are over after 600 ms."""
    queue = RunQueue("device mine", 4, strict=False)
    act = queue.queued(lambda *_: time.sleep(0.3), OWN, MEDIUM, 2)
    for _ in range(FIRST):
        act(None, UNLIMITED)
    threads = [threading.Thread(target=act, args=(None, UNLIMITED)) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: waiting(queue) == 2)
    status, ms = missed(lambda control: act(None, control), within(700))  # it would end after 900
    assert status == ErrorStatus.MISSED_DEADLINE_TRANSIENT and ms < 250
    for thread in threads:
        thread.join(LIMIT)


def test_a_client_that_rested_has_no_credit_from_that() -> None:
    queue, busy, rested = one(), QueueClient("busy"), QueueClient("rested")
    keep = in_turn(queue, lambda _: None, rested, MEDIUM)
    keep(UNLIMITED)
    run = in_turn(queue, lambda _: time.sleep(0.002), busy, MEDIUM)
    for _ in range(50):
        run(UNLIMITED)
    order = lined_up(queue, [(busy, MEDIUM), (busy, MEDIUM)] + [(rested, MEDIUM)] * 6, seconds=0.002)
    assert order.index(1) < 6  # credit of 100 ms would let all six by


def test_a_client_that_was_not_there_has_no_credit_from_one_long_execution_that_has_ended() -> None:
    """Such as the first one of a model whose engine makes itself ready then."""
    queue, busy, rested = one(), QueueClient("busy"), QueueClient("rested")
    keep = [in_turn(queue, lambda _: None, rested, MEDIUM), in_turn(queue, lambda _: time.sleep(0.5), busy, MEDIUM)]
    keep[1](UNLIMITED)
    time.sleep(0.01)
    keep[0](UNLIMITED)
    order = lined_up(queue, [(busy, MEDIUM)] * 4 + [(rested, MEDIUM)] * 20, seconds=0.002)
    assert max(order.index(n) for n in range(4)) < 16  # of half a second all twenty would be before


def test_clocks_of_clients_that_wait_stay_within_an_execution_of_each_other() -> None:
    queue, over, apart, took = one(), threading.Event(), list[int](), list[int]()
    clients = [QueueClient(str(n)) for n in range(3)]

    def loop(run: Callable[..., Any]) -> None:
        while not over.is_set():
            run(UNLIMITED)
            with queue._lock:
                clocks = [line.clock for line in queue._lines.values() if any(line.waiting)]
            apart.append(max(clocks, default=0) - min(clocks, default=0))

    def act(ms: int, _: Control) -> None:
        began = time.monotonic_ns()
        time.sleep(ms / 1e3)
        took.append(time.monotonic_ns() - began)

    runs = [in_turn(queue, partial(act, n), client, MEDIUM) for n, client in enumerate(clients, 1)]
    threads = [threading.Thread(target=loop, args=(run,)) for run in runs for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.7)
    over.set()
    for thread in threads:
        thread.join(LIMIT)
    assert len(apart) > 20 and max(apart) < 4 * max(took)


# ------------------------------------------------------------------------------------------------------------- places


@pytest.mark.parametrize("width", [1, 2, 5])
def test_never_more_run_than_there_are_places(width: int) -> None:
    queue, lock, inside, most = RunQueue("device mine", width, strict=False), threading.Lock(), [0], [0]

    def act(_: Control) -> None:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(0.002)
        with lock:
            inside[0] -= 1

    run = in_turn(queue, act, OWN, MEDIUM)
    threads = [threading.Thread(target=lambda: [run(UNLIMITED) for _ in range(20)]) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert most[0] == width and len(queue._free) == width


def test_an_execution_with_threads_of_its_own_takes_as_many_places() -> None:
    queue, lock, used, most = RunQueue("device mine", 4, strict=False), threading.Lock(), [0], []

    def act(units: int) -> Callable[[Control], None]:
        def run(_: Control) -> None:
            with lock:
                used[0] += units
                most.append(used[0])
            time.sleep(0.002)
            with lock:
                used[0] -= units

        return run

    runs = [in_turn(queue, act(units), OWN, MEDIUM, units) for units in (1, 2, 3, 4)]
    threads = [threading.Thread(target=lambda r=r: [r(UNLIMITED) for _ in range(10)]) for r in runs for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert max(most) == 4 and len(queue._free) == 4


def test_places_are_as_many_as_cores_and_two_at_least_unless_the_device_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, width in ((1, 2), (2, 2), (8, 8)):
        monkeypatch.setattr(module, "usable_cores", lambda cores=cores: cores)
        assert places(0) == width and places(16) == 16
    assert [units_of(threads, 8) for threads in (0, 1, 2, 4, 8, 64)] == [1, 1, 2, 4, 4, 4]


def test_short_executions_of_the_only_client_take_no_place() -> None:
    queue, ran = RunQueue("device mine", 1, strict=False), []
    run = in_turn(queue, lambda _: ran.append(1), OWN, MEDIUM)
    run(UNLIMITED)
    with held(queue):
        run(UNLIMITED)
    assert len(ran) == 2
    other = in_turn(queue, lambda _: None, QueueClient("another"), MEDIUM)
    thread = threading.Thread(target=run, args=(UNLIMITED,))
    with held(queue):
        thread.start()
        until(lambda: waiting(queue) == 1)
    thread.join(LIMIT)
    other(UNLIMITED)


def test_where_one_runs_at_a_time_short_ones_wait_too() -> None:
    queue = one()
    run = in_turn(queue, lambda _: None, OWN, MEDIUM)
    for _ in range(5):
        run(UNLIMITED)
    with held(queue):
        thread = threading.Thread(target=run, args=(UNLIMITED,))
        thread.start()
        until(lambda: waiting(queue) == 1)
    thread.join(LIMIT)


def test_an_execution_that_asks_for_another_on_its_thread_runs_that_beside_itself_or_is_told() -> None:
    soft = RunQueue("device mine", 1, strict=False)
    inner = in_turn(soft, lambda _: "inner", OWN, MEDIUM)
    assert in_turn(soft, inner, OWN, MEDIUM)(UNLIMITED) == "inner"
    assert len(soft._free) == 1
    strict = one()
    inner = in_turn(strict, lambda _: "inner", OWN, MEDIUM)
    with pytest.raises(BadState, match="device mine: an execution asks for another of the same device"):
        in_turn(strict, inner, OWN, MEDIUM)(UNLIMITED)
    assert inner(UNLIMITED) == "inner"


@pytest.mark.parametrize("why", ["cancelled", "late", "long"])
def test_what_does_not_end_when_it_should_keeps_nobody_from_running_unless_it_must(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONG_NS", 200 * MS if why == "long" else 1 << 60)
    for strict in (False, True):
        queue, over, inside = RunQueue("device mine", 1, strict=strict), threading.Event(), threading.Event()

        def hang(_: Control, inside: threading.Event = inside, over: threading.Event = over) -> None:
            inside.set()
            over.wait(LIMIT)

        event = threading.Event()
        control = {"cancelled": Control(cancelled=event), "late": within(50), "long": UNLIMITED}[why]
        hung = threading.Thread(target=in_turn(queue, hang, OWN, MEDIUM), args=(control,))
        hung.start()
        assert inside.wait(LIMIT)
        event.set()
        run = in_turn(queue, lambda _: "ran", OWN, MEDIUM)
        try:
            if strict:
                with pytest.raises(MissedDeadline):
                    run(within(1000))
            else:
                assert run(within(LIMIT * 1000)) == "ran"
        finally:
            over.set()
            hung.join(LIMIT)
        assert run(UNLIMITED) == "ran"
        with held(queue), pytest.raises(MissedDeadline):  # one place, not two
            run(within(20))


def test_a_client_whose_executions_are_long_by_habit_keeps_another_out_for_so_long_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LONG_NS", 50 * MS)
    monkeypatch.setattr(module, "LONGEST_NS", 300 * MS)
    queue, over, pace = RunQueue("device mine", 1, strict=False), threading.Event(), Pace()
    pace.took(1000 * MS)  # eight times as long is eight seconds
    hang = queue.queued(lambda *_: over.wait(LIMIT), OWN, MEDIUM, pace=pace)
    hung = threading.Thread(target=hang, args=(None, UNLIMITED))
    begun = time.monotonic()
    hung.start()
    until(lambda: not queue._free)
    try:
        assert in_turn(queue, lambda _: "ran", QueueClient("another"), MEDIUM)(within(5000)) == "ran"
        assert time.monotonic() - begun > 0.3
    finally:
        over.set()
        hung.join(LIMIT)


@pytest.mark.parametrize("waits", [False, True])
def test_what_was_given_up_a_tenth_of_a_second_ago_is_in_nobodys_way_however_little_time_that_has(waits: bool) -> None:
    queue, over = RunQueue("device mine", 2, strict=False), threading.Event()
    hang = in_turn(queue, lambda _: over.wait(LIMIT), OWN, MEDIUM)
    hung = [threading.Thread(target=hang, args=(within(100),)) for _ in range(2)]
    for thread in hung:
        thread.start()
    until(lambda: not queue._free)
    try:
        time.sleep(0.0 if waits else 0.25)
        assert in_turn(queue, lambda _: "ran", OWN, MEDIUM)(within(300 if waits else 150)) == "ran"
    finally:
        over.set()
        for thread in hung:
            thread.join(LIMIT)


def test_what_ends_while_somebody_looks_at_it_is_nothing_to_who_looks() -> None:
    queue, over, inside = RunQueue("device mine", 2, strict=False), threading.Event(), threading.Semaphore(0)

    class LookedAt(threading.Event):
        """The other one ends while this is asked."""

        def is_set(self) -> bool:
            if not over.is_set():
                over.set()
                until(lambda: sum(1 for _ in queue._busy()) < 2)
            return False

    def hold(_: Control) -> None:
        inside.release()
        assert over.wait(LIMIT)

    run = in_turn(queue, hold, OWN, MEDIUM)
    threads = [threading.Thread(target=run, args=(each,)) for each in (UNLIMITED, Control(cancelled=LookedAt()))]
    for thread in threads:
        thread.start()
        assert inside.acquire(timeout=LIMIT)
    assert in_turn(queue, lambda _: "ran", OWN, MEDIUM)(UNLIMITED) == "ran"
    for thread in threads:
        thread.join(LIMIT)


# ---------------------------------------------------------------------------------------------------------- deadlines


def paced(queue: RunQueue, ms: float, count: int = FIRST, priority: Priority = MEDIUM) -> Callable[[Control], Any]:
    """What takes so long, and is known to."""
    run = in_turn(queue, lambda _: time.sleep(ms / 1e3), OWN, priority)
    for _ in range(count):
        run(UNLIMITED)
    return run


def missed(run: Callable[[Control], Any], control: Control) -> tuple[ErrorStatus, float]:
    """The status of a missed deadline, and after how many milliseconds it was known."""
    began = time.monotonic()
    with pytest.raises(MissedDeadline) as caught:
        run(control)
    return caught.value.status, 1e3 * (time.monotonic() - began)


def test_what_no_idle_device_does_in_time_is_refused_at_once_as_persistent() -> None:
    status, ms = missed(paced(one(), 300), within(200))
    assert status == ErrorStatus.MISSED_DEADLINE_PERSISTENT and ms < 100


def test_what_only_the_queue_makes_late_is_refused_at_once_as_transient() -> None:
    queue = one()
    run = paced(queue, 300)
    threads = [threading.Thread(target=run, args=(UNLIMITED,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: waiting(queue) == 3)
    status, ms = missed(run, within(1300))  # it would be its turn after 1200
    assert status == ErrorStatus.MISSED_DEADLINE_TRANSIENT and ms < 600
    for thread in threads:
        thread.join(LIMIT)
    run(within(1300))  # now it is in time


def test_high_is_not_refused_for_what_it_overtakes() -> None:
    queue = one()
    low, high = paced(queue, 100, priority=LOW), paced(queue, 100, priority=HIGH)
    threads = [threading.Thread(target=low, args=(UNLIMITED,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: waiting(queue) == 7)
    assert missed(low, within(700))[1] < 100
    high(within(700))
    for thread in threads:
        thread.join(LIMIT)


def test_the_first_executions_are_never_refused_nor_is_one_without_a_deadline() -> None:
    queue, begun = one(), []

    def act(control: Control) -> None:
        begun.append(1)
        time.sleep(0.03)
        control.check()

    run = in_turn(queue, act, OWN, MEDIUM)
    for _ in range(FIRST * 3):  # none ends well, so nothing is known
        with pytest.raises(MissedDeadline):
            run(within(10))
    assert len(begun) == FIRST * 3
    paced(queue, 30, count=10)(UNLIMITED)


def test_an_estimate_that_does_not_hold_any_more_heals_though_all_have_deadlines() -> None:
    queue, seconds = one(), [0.2]
    run = in_turn(queue, lambda _: time.sleep(seconds[0]), OWN, MEDIUM)
    for _ in range(FIRST):
        run(UNLIMITED)
    seconds[0] = 0.001
    outcomes = []
    for _ in range(PROBE * 2):
        try:
            run(within(50))
            outcomes.append("ran")
        except MissedDeadline:
            outcomes.append("refused")
    assert outcomes == ["refused"] * (PROBE - 1) + ["ran"] * (PROBE + 1)


def test_one_slow_run_refuses_nothing() -> None:
    queue, seconds = one(), [0.005]
    run = in_turn(queue, lambda _: time.sleep(seconds[0]), OWN, MEDIUM)
    for each in (0.005, 0.005, 0.3, 0.005):
        seconds[0] = each
        run(UNLIMITED)
    seconds[0] = 0.005
    with held(queue):
        thread = threading.Thread(target=run, args=(within(200),))
        thread.start()
        until(lambda: waiting(queue) == 1)
    thread.join(LIMIT)


def test_whoever_waited_too_long_to_be_in_time_does_not_begin() -> None:
    queue, begun = one(), []

    def act(_: Control) -> None:
        begun.append(1)
        time.sleep(0.1)

    run = in_turn(queue, act, OWN, MEDIUM)
    for _ in range(FIRST):
        run(UNLIMITED)
    found: list[ErrorStatus] = []
    with held(queue):  # of which nothing is known
        thread = threading.Thread(target=lambda: found.append(missed(run, within(250))[0]))
        thread.start()
        until(lambda: waiting(queue) == 1)
        time.sleep(0.2)
    thread.join(LIMIT)
    assert found == [ErrorStatus.MISSED_DEADLINE_TRANSIENT] and len(begun) == FIRST


def test_time_before_it_came_to_the_device_is_no_reason_to_call_it_persistent() -> None:
    run = paced(one(), 100)
    now = time.monotonic_ns()
    assert missed(run, Control(now + 50 * MS, asked=now - 200 * MS))[0] == ErrorStatus.MISSED_DEADLINE_TRANSIENT
    assert missed(run, Control(time.monotonic_ns() + 50 * MS))[0] == ErrorStatus.MISSED_DEADLINE_PERSISTENT


def test_the_next_is_predicted_by_the_median_of_the_last_ones() -> None:
    pace = Pace()
    assert pace.typical == 0 and not pace.known
    for spent in (100, 5, 5, 5, 900, 7, 7, 7, 7):
        pace.took(spent)
    assert (pace.typical, pace.best, pace.known) == (7, 5, True)


# ------------------------------------------------------------------------------------------------ limits, and the lost


def test_more_than_may_wait_are_refused_and_other_clients_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 3)
    queue = one()
    run, other = (in_turn(queue, lambda _: None, client, MEDIUM) for client in (OWN, QueueClient("another")))
    threads = [threading.Thread(target=run, args=(UNLIMITED,)) for _ in range(3)]
    with held(queue):
        for thread in threads:
            thread.start()
        until(lambda: waiting(queue) == 3)
        with pytest.raises(
            ResourceExhausted, match="3 executions of this process wait already, must be fewer than 3"
        ) as c:
            run(UNLIMITED)
        assert c.value.status == ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
        threads.append(threading.Thread(target=other, args=(UNLIMITED,)))
        threads[-1].start()
        until(lambda: waiting(queue) == 4)
    for thread in threads:
        thread.join(LIMIT)
    run(UNLIMITED)


def test_a_place_that_was_lost_is_there_again() -> None:
    queue = one()
    lost = queue._free.pop()
    run = in_turn(queue, lambda _: "ran", OWN, MEDIUM)
    with pytest.raises(MissedDeadline):
        run(within(20))
    del lost
    assert run(UNLIMITED) == "ran" and len(queue._free) == 1


def test_a_ticket_that_was_lost_is_passed_over() -> None:
    queue = one()
    line = queue.line(OWN)
    tickets = [QueueTicket(line, Pace(), 1, UNLIMITED) for _ in range(2)]
    with held(queue):
        for ticket in tickets:
            line.waiting[0].append(weakref.ref(ticket))
        with queue._lock:
            queue._dispatch(time.monotonic_ns())
        del tickets[0], ticket
    until(lambda: tickets[0].slot is not None)
    del tickets[:]
    assert in_turn(queue, lambda _: "ran", OWN, MEDIUM)(UNLIMITED) == "ran"


@pytest.mark.parametrize("first", [True, False])
def test_a_place_that_comes_back_when_another_stands_in_for_it_is_none(first: bool) -> None:
    queue = one()
    slot = queue._free.pop()
    assert isinstance(slot, Slot)
    slot.there = False
    queue._add()
    (queue._free.append if first else queue._free.appendleft)(slot)
    del slot
    with held(queue), pytest.raises(MissedDeadline):
        in_turn(queue, lambda _: None, OWN, MEDIUM)(within(20))


class TakenElsewhere(deque[Slot]):
    """Free places, of which the last is gone for the first ones who take it, as by a thread that need not wait."""

    def __init__(self, slots: Iterable[Slot], times: int) -> None:
        super().__init__(slots)
        self.times = times

    def pop(self) -> Slot:  # type: ignore[override]
        self.times -= 1
        if self.times >= 0:
            raise IndexError("pop from an empty deque")
        return super().pop()


@pytest.mark.parametrize("units", [1, 2])
def test_a_place_that_another_takes_between_look_and_grant_and_gives_back_is_there_at_once(
    units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = RunQueue("device mine", 2, strict=True)
    queue._free = TakenElsewhere(queue._free, 3 - units)  # who takes one tries before it looks
    monkeypatch.setattr(queue, "_wait", lambda *_: pytest.fail("waits beside a free place"))
    assert in_turn(queue, lambda _: "ran", OWN, MEDIUM, units)(UNLIMITED) == "ran"
    assert len(queue._free) == 2


def test_where_too_few_places_are_left_those_that_were_taken_are_there_again() -> None:
    queue = RunQueue("device mine", 3, strict=True)
    with held(queue):
        with pytest.raises(IndexError):
            queue._several(3)
        assert len(queue._free) == 2
    assert len(queue._several(3).others) == 2


def test_a_client_is_a_process_however_many_connections_it_has() -> None:
    first = client_of(4_000_001)
    assert client_of(4_000_001) is first and client_of(4_000_002) is not first


def test_in_a_forked_child_nobody_holds_a_place() -> None:
    queue = RunQueue("device mine", 2, strict=True)
    run = in_turn(queue, lambda _: "ran", OWN, MEDIUM)
    with held(queue):  # one of the two
        pid = os.fork()
        if pid == 0:
            os._exit(0 if run(within(5000)) == "ran" and len(queue._free) == 2 else 1)
        assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("strict", [False, True])
def test_in_a_child_that_an_execution_has_forked_there_are_no_more_places_once_it_has_ended(strict: bool) -> None:
    queue = RunQueue("device mine", 1, strict=strict)
    pid = in_turn(queue, lambda _: os.fork(), OWN, MEDIUM)(UNLIMITED)
    if pid == 0:
        os._exit(len(queue._free))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1 == len(queue._free)


@pytest.mark.parametrize("seed", range(6))
def test_any_interleaving_keeps_within_the_places_lets_everybody_leave_and_loses_no_wake_up(seed: int) -> None:
    """Threads of several clients and priorities that run, fail, are cancelled, are late, or are lost with their ticket."""
    chosen = random.Random(seed)
    width = chosen.choice([1, 1, 2, 3])
    queue = RunQueue("device mine", width, strict=True)
    lock, inside, most, begun, outcomes = threading.Lock(), [0], [0], list[int](), list[str]()
    clients = [QueueClient(str(n)) for n in range(chosen.choice([1, 2, 4]))]

    def act(what: tuple[int, float, bool], _: Control) -> None:
        number, seconds, fails = what
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            begun.append(number)
        time.sleep(seconds)
        with lock:
            inside[0] -= 1
        if fails:
            raise OSError("told to")

    runs = [(c, p, queue.queued(act, c, p)) for c in clients for p in Priority]

    def come(number: int, plan: random.Random) -> None:
        for _ in range(6):
            time.sleep(plan.uniform(0, 0.004))
            _, _, run = plan.choice(runs)
            kind, event = plan.choice(["runs", "runs", "fails", "cancelled", "late"]), threading.Event()
            control = within(plan.uniform(0, 8)) if kind == "late" else Control(cancelled=event)
            if kind == "cancelled":
                threading.Timer(plan.uniform(0, 0.01), event.set).start()
            try:
                run((number, plan.uniform(0, 0.003), kind == "fails"), control)
                outcomes.append("ran")
            except (Cancelled, MissedDeadline, OSError) as error:
                outcomes.append(type(error).__name__)

    def lose() -> None:
        """As an interrupt does anywhere: a ticket, a place."""
        for _ in range(5):
            time.sleep(chosen.uniform(0, 0.005))
            with queue._lock:
                line = next(iter(queue._lines.values()))
                line.waiting[chosen.randrange(3)].append(weakref.ref(QueueTicket(line, Pace(), 1, UNLIMITED)))
            with suppress(IndexError):
                queue._free.pop()

    threads = [threading.Thread(target=come, args=(n, random.Random(f"{seed} {n}"))) for n in range(10)]
    threads.append(threading.Thread(target=lose))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not any(thread.is_alive() for thread in threads)
    assert most[0] <= width and len(outcomes) == 60
    assert runs[0][2]((0, 0.0, False), UNLIMITED) is None
    with queue._lock:
        queue._settle()
    assert not waiting(queue) and len(queue._free) == width


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("how", ["free", "waits", "passes on", "late"])
def test_interrupted_at_any_point_who_runs_or_waits_is_in_nobodys_way(how: str, strict: bool, shared: bool) -> None:
    queue = RunQueue("device mine", 1, strict=strict)
    other = in_turn(queue, lambda _: "ran", QueueClient("another"), MEDIUM) if shared else None

    def hold(_: Control) -> str:
        inside.set()
        time.sleep(0.003)
        return "ran"

    run, inside = in_turn(queue, hold, OWN, MEDIUM), threading.Event()
    for _ in range(FIRST):
        run(UNLIMITED)

    def elsewhere(control: Control, into: list[str]) -> None:
        into.append(run(control))

    def call() -> None:
        found: list[str] = []
        before = threading.Thread(target=elsewhere, args=(within(LIMIT * 1000), found))
        inside.clear()
        if how != "free":
            before.start()
            assert inside.wait(LIMIT)
        if how == "passes on":
            before.join(LIMIT)
            before = threading.Thread(target=elsewhere, args=(within(LIMIT * 1000), found))
            queued.append(before)
        try:
            with suppress(MissedDeadline):
                run(within(1) if how == "late" else UNLIMITED)
        finally:
            if how == "free":
                before.start()
            if how != "passes on":
                before.join(LIMIT)
                assert found == ["ran"]

    queued: list[threading.Thread] = []
    files = module.__file__, waiting_module.__file__

    def hits(frame: Any, event: str) -> bool:
        if how == "passes on" and queued and inside.is_set() and frame.f_code.co_name == "queued":
            queued.pop().start()  # it comes while this one runs, so this one lets it in
        return event != "c_call" and frame.f_code.co_filename in files

    assert interrupted_at(hits, call) > 5
    thread = threading.Thread(target=run, args=(UNLIMITED,))
    thread.start()
    thread.join(LIMIT)
    assert not thread.is_alive()
    with queue._lock:
        queue._settle()
        queue._dispatch(time.monotonic_ns())
    assert not waiting(queue) and len(queue._free) == 1
    assert other is None or other(UNLIMITED) == "ran"
