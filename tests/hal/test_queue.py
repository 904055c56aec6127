"""Who runs next on a device: priority, fairness between clients, deadlines, limits, and places that are lost."""

import os
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import pytest

from nnhal.base import time as base_time
from nnhal.base.codes import ErrorStatus, Priority
from nnhal.base.errors import BadState, Cancelled, MissedDeadline, ResourceExhausted
from nnhal.hal import queue as module
from nnhal.hal import request as request_module
from nnhal.hal import waiting as waiting_module
from nnhal.hal.queue import RunQueue, places, units_of
from nnhal.hal.request import UNLIMITED, Control
from nnhal.hal.waiting import FIRST, OWN, PROBE, LatencyEstimator, QueueClient, QueueTicket, Slot, client_of
from tests.interrupts import interrupted_at
from tests.waiting import LIMIT, Clock, jitter, until

HIGH, MEDIUM, LOW = Priority.HIGH, Priority.MEDIUM, Priority.LOW
MS = 1_000_000
T = TypeVar("T")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of queues and deadlines."""
    return Clock().play(monkeypatch, module, request_module, base_time)


def within(ms: float) -> Control:
    """A control with a deadline so far away, of real time."""
    return Control(time.monotonic_ns() + int(ms * MS))


def in_turn(queue: RunQueue, act: Callable[[Control], T], *how: Any, **more: Any) -> Callable[[Control], T]:
    """What is done in its turn, of a control alone."""
    queued = queue.queued(lambda _, control: act(control), *how, **more)
    return lambda control: queued(None, control)


def waiting(queue: RunQueue) -> int:
    return sum(len(level) for line in queue._lines.values() for level in line.waiting)


def _waits(queue: RunQueue, count: int) -> bool:
    return waiting(queue) == count


def begun(run: Callable[[Control], T], control: Control) -> Future[T]:
    """What comes of it on a thread of its own."""
    outcome: Future[T] = Future()

    def call() -> None:
        try:
            outcome.set_result(run(control))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return outcome


def too_late(queue: RunQueue, run: Callable[[Control], Any], clock: Clock) -> None:
    """It waits for a place until its deadline passes, and misses it."""
    there = waiting(queue)
    outcome = begun(run, clock.within(0.02))
    until(lambda: waiting(queue) == there + 1, "it waits")
    clock.advance(0.021)
    assert isinstance(outcome.exception(LIMIT), MissedDeadline)


class Played:
    """Executions of threads that never rest, on a clock that moves when all of them run or wait: then the one whose time
    has come first ends."""

    def __init__(self, queue: RunQueue, clock: Clock) -> None:
        self.queue, self.clock = queue, clock
        self.inside: dict[threading.Event, tuple[int, int, Any]] = {}  # when each ends, in which order they began, what
        self.over = False
        self._threads: list[threading.Thread] = []
        self._count = 0

    def act(self, ms: float, what: Any) -> None:
        """What an execution does: it takes so long."""
        ends = threading.Event()
        self._count += 1
        self.inside[ends] = self.clock.ns + int(ms * MS), self._count, what
        assert ends.wait(LIMIT)

    def start(self, run: Callable[[Control], Any], ran: Callable[[], object]) -> None:
        """A thread that runs it again and again; `ran` is called after each time."""

        def loop() -> None:
            while not self.over:
                run(UNLIMITED)
                ran()

        self._threads.append(threading.Thread(target=loop, daemon=True))
        self._threads[-1].start()
        self.settled()

    def settled(self) -> None:
        """Wait until each thread runs, waits or has ended."""
        until(lambda: len(self.inside) + waiting(self.queue) == sum(t.is_alive() for t in self._threads), "all wait")

    def step(self) -> None:
        """The next one ends, and its thread comes back."""
        if self.inside:
            ends = min(self.inside, key=lambda each: self.inside[each][:2])
            self.clock.ns = max(self.clock.ns, self.inside[ends][0])
            del self.inside[ends]
            ends.set()
            self.settled()
        else:  # a place is kept free for somebody who does not come back
            self.clock.advance(0.003)
            until(lambda: self.inside or not waiting(self.queue), "the place is given to another")

    def end(self) -> None:
        """All threads end."""
        self.over = True
        while any(thread.is_alive() for thread in self._threads):
            self.step()


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


def lined_up(
    queue: RunQueue, who: list[tuple[QueueClient, Priority]], clock: Clock | None = None, seconds: float = 0.0
) -> list[int]:
    """Have these come one after the other while the queue is held; the order in which they run, by place.

    seconds: how long each takes on the clock.
    """
    order: list[int] = []
    threads = []
    keep = []
    with held(queue):
        for number, (client, priority) in enumerate(who):

            def act(_: Control, number: int = number) -> None:
                order.append(number)
                if clock is not None:
                    clock.advance(seconds)

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


def test_the_priority_of_one_client_is_nothing_to_another(clock: Clock) -> None:
    mine, yours = QueueClient("a"), QueueClient("b")
    order = lined_up(one(), [(mine, LOW), (mine, LOW), (yours, HIGH), (yours, HIGH)], clock, 0.01)
    assert sorted(order[:2]) in ([0, 2],) and sorted(order[2:]) == [1, 3]


@pytest.mark.parametrize("each", [1, 2])
def test_who_has_long_executions_has_no_more_of_a_device_than_who_has_short_ones(each: int, clock: Clock) -> None:
    """Ten milliseconds against one, of threads that never rest: of one alone none waits when its execution has ended."""
    queue, had = one(), {10: 0, 1: 0}
    played = Played(queue, clock)
    for ms in had:

        def ran(ms: int = ms) -> None:
            had[ms] += ms

        for _ in range(each):
            played.start(in_turn(queue, lambda _, ms=ms: played.act(ms, ms), QueueClient(str(ms)), MEDIUM), ran)
    while sum(had.values()) < 400:
        played.step()
    assert 0.4 < had[10] / (had[10] + had[1]) < 0.6
    played.end()


def test_who_has_two_places_for_each_execution_has_no_more_of_them_than_who_has_one(clock: Clock) -> None:
    queue, had = RunQueue("device mine", 4, strict=False), {2: 0, 1: 0}
    played = Played(queue, clock)
    for units in had:
        run = in_turn(queue, lambda _, units=units: played.act(5, units), QueueClient(str(units)), MEDIUM, units)

        def ran(units: int = units) -> None:
            had[units] += units

        for _ in range(6):
            played.start(run, ran)
    while sum(had.values()) < 400:
        played.step()
    assert 0.42 < had[2] / (had[2] + had[1]) < 0.58  # two thirds where only time counts
    played.end()


def test_a_client_that_rested_has_no_credit_from_that(clock: Clock) -> None:
    queue, busy, rested = one(), QueueClient("busy"), QueueClient("rested")
    keep = in_turn(queue, lambda _: None, rested, MEDIUM)
    keep(UNLIMITED)
    run = in_turn(queue, lambda _: clock.advance(0.002), busy, MEDIUM)
    for _ in range(50):
        run(UNLIMITED)
    order = lined_up(queue, [(busy, MEDIUM), (busy, MEDIUM)] + [(rested, MEDIUM)] * 6, clock, 0.002)
    assert order.index(1) < 6  # credit of 100 ms would let all six by


def test_a_client_that_was_not_there_has_no_credit_from_one_long_execution_that_has_ended(clock: Clock) -> None:
    """Such as the first one of a model whose engine makes itself ready then."""
    queue, busy, rested = one(), QueueClient("busy"), QueueClient("rested")
    keep = [in_turn(queue, lambda _: None, rested, MEDIUM), in_turn(queue, lambda _: clock.advance(0.5), busy, MEDIUM)]
    keep[1](UNLIMITED)
    clock.advance(0.01)
    keep[0](UNLIMITED)
    order = lined_up(queue, [(busy, MEDIUM)] * 4 + [(rested, MEDIUM)] * 20, clock, 0.002)
    assert max(order.index(n) for n in range(4)) < 16  # of half a second all twenty would be before


def test_clocks_of_clients_that_wait_stay_within_an_execution_of_each_other(clock: Clock) -> None:
    queue = one()
    played = Played(queue, clock)
    clients = [QueueClient(str(n)) for n in range(3)]
    for ms, client in enumerate(clients, 1):
        run = in_turn(queue, lambda _, ms=ms: played.act(ms, ms), client, MEDIUM)
        for _ in range(3):
            played.start(run, lambda: None)
    for _ in range(100):
        played.step()
        with queue._lock:
            clocks = [line.clock for line in queue._lines.values() if any(line.waiting)]
        assert max(clocks) - min(clocks) <= 3 * MS
    played.end()


# ------------------------------------------------------------------------------------------------------------- places


@pytest.mark.parametrize("width", [1, 2, 5])
def test_never_more_run_than_there_are_places(width: int, clock: Clock) -> None:
    queue = RunQueue("device mine", width, strict=False)
    played = Played(queue, clock)
    run = in_turn(queue, lambda _: played.act(2, None), OWN, MEDIUM)
    for count in range(1, 13):
        played.start(run, lambda: None)
        assert len(played.inside) == min(count, width)
    for _ in range(60):
        played.step()
        assert len(played.inside) == width
    played.end()
    assert len(queue.slots.free) == width


def test_an_execution_with_threads_of_its_own_takes_as_many_places(clock: Clock) -> None:
    queue, used = RunQueue("device mine", 4, strict=False), []
    played = Played(queue, clock)
    for units in (1, 2, 3, 4):
        run = in_turn(queue, lambda _, units=units: played.act(units, units), OWN, MEDIUM, units)
        for _ in range(2):
            played.start(run, lambda: None)
    for _ in range(60):
        played.step()
        used.append(sum(units for _, _, units in played.inside.values()))
    played.end()
    assert max(used) == 4 and len(queue.slots.free) == 4


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
    assert len(soft.slots.free) == 1
    strict = one()
    inner = in_turn(strict, lambda _: "inner", OWN, MEDIUM)
    with pytest.raises(BadState, match="device mine: an execution asks for another of the same device"):
        in_turn(strict, inner, OWN, MEDIUM)(UNLIMITED)
    assert inner(UNLIMITED) == "inner"


@pytest.mark.parametrize("why", ["cancelled", "late", "long"])
def test_what_does_not_end_when_it_should_keeps_nobody_from_running_unless_it_must(
    why: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_module, "LONG_NS", 200 * MS if why == "long" else 1 << 60)
    for strict in (False, True):
        queue, over, inside = RunQueue("device mine", 1, strict=strict), threading.Event(), threading.Event()

        def hang(_: Control, inside: threading.Event = inside, over: threading.Event = over) -> None:
            inside.set()
            over.wait(LIMIT)

        event = threading.Event()
        control = {"cancelled": Control(cancelled=event), "late": clock.within(0.05), "long": UNLIMITED}[why]
        hung = begun(in_turn(queue, hang, OWN, MEDIUM), control)
        assert inside.wait(LIMIT)
        event.set()
        run = in_turn(queue, lambda _: "ran", OWN, MEDIUM)
        outcome = begun(run, clock.within(1))
        until(lambda queue=queue: waiting(queue) == 1, "another waits")
        clock.advance(0.3)
        if strict:
            with queue._lock:
                queue._look(clock.ns)
            assert waiting(queue) == 1
            clock.advance(0.8)
            assert isinstance(outcome.exception(LIMIT), MissedDeadline)
        else:
            assert outcome.result(LIMIT) == "ran"
        over.set()
        hung.exception(LIMIT)
        assert run(UNLIMITED) == "ran"
        with held(queue):
            too_late(queue, run, clock)  # one place, not two


def test_a_client_whose_executions_are_long_by_habit_keeps_another_out_for_so_long_and_no_longer(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_module, "LONG_NS", 50 * MS)
    monkeypatch.setattr(waiting_module, "LONGEST_NS", 300 * MS)
    queue, over, pace = RunQueue("device mine", 1, strict=False), threading.Event(), LatencyEstimator()
    pace.add_time(1000 * MS)  # eight times as long is eight seconds
    hang = queue.queued(lambda *_: over.wait(LIMIT), OWN, MEDIUM, pace=pace)
    hung = begun(partial(hang, None), UNLIMITED)
    until(lambda: list(queue.slots.busy()), "it hangs")
    another = begun(in_turn(queue, lambda _: "ran", QueueClient("another"), MEDIUM), clock.within(5))
    until(lambda: waiting(queue) == 1, "another waits")
    clock.advance(0.299)
    with queue._lock:
        queue._look(clock.ns)
    assert waiting(queue) == 1
    clock.advance(0.002)
    assert another.result(LIMIT) == "ran"
    over.set()
    hung.result(LIMIT)


@pytest.mark.parametrize("waits", [False, True])
def test_what_was_given_up_a_tenth_of_a_second_ago_is_in_nobodys_way_however_little_time_that_has(
    waits: bool, clock: Clock
) -> None:
    queue, over = RunQueue("device mine", 2, strict=False), threading.Event()
    hang = in_turn(queue, lambda _: over.wait(LIMIT), OWN, MEDIUM)
    hung = [begun(hang, clock.within(0.1)) for _ in range(2)]
    until(lambda: sum(1 for _ in queue.slots.busy()) == 2, "both hang")
    run = in_turn(queue, lambda _: "ran", OWN, MEDIUM)
    if waits:
        outcome = begun(run, clock.within(0.3))
        until(lambda: waiting(queue) == 1, "another waits")
        clock.advance(0.201)
        assert outcome.result(LIMIT) == "ran"
    else:
        clock.advance(0.25)
        assert run(clock.within(0.15)) == "ran"
    over.set()
    for outcome in hung:
        outcome.exception(LIMIT)


def test_what_ends_while_somebody_looks_at_it_is_nothing_to_who_looks() -> None:
    queue, over, inside = RunQueue("device mine", 2, strict=False), threading.Event(), threading.Semaphore(0)

    class LookedAt(threading.Event):
        """The other one ends while this is asked."""

        def is_set(self) -> bool:
            if not over.is_set():
                over.set()
                until(lambda: sum(1 for _ in queue.slots.busy()) < 2)
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


def paced(
    queue: RunQueue, clock: Clock, ms: float, count: int = FIRST, priority: Priority = MEDIUM
) -> Callable[[Control], Any]:
    """What takes so long, and is known to."""
    run = in_turn(queue, lambda _: clock.advance(ms / 1e3), OWN, priority)
    for _ in range(count):
        run(UNLIMITED)
    return run


def refused(run: Callable[[Control], Any], control: Control) -> ErrorStatus:
    """The status of a deadline that is missed at once: no time passes meanwhile, so whoever waited would for ever."""
    error = begun(run, control).exception(LIMIT)
    assert isinstance(error, MissedDeadline)
    return error.status


@contextmanager
def long_held(queue: RunQueue, ms: float, waiters: int, priority: Priority = MEDIUM, units: int = 1) -> Iterator[None]:
    """All places are taken and others wait, each known to take so long; all of them end at once."""
    over, pace = threading.Event(), LatencyEstimator()
    for _ in range(FIRST):
        pace.add_time(int(ms * MS))
    act = queue.queued(lambda *_: over.wait(LIMIT), OWN, priority, units, pace)
    outcomes = [begun(partial(act, None), UNLIMITED) for _ in range(waiters + queue.width // units)]
    until(lambda: waiting(queue) == waiters, "some wait")
    try:
        yield
    finally:
        over.set()
        for outcome in outcomes:
            outcome.result(LIMIT)


def test_what_no_idle_device_does_in_time_is_refused_at_once_as_persistent(clock: Clock) -> None:
    run = paced(one(), clock, 300)
    assert refused(run, clock.within(0.2)) == ErrorStatus.MISSED_DEADLINE_PERSISTENT


def test_what_only_the_queue_makes_late_is_refused_at_once_as_transient(clock: Clock) -> None:
    queue = one()
    run = paced(queue, clock, 300)
    with long_held(queue, 300, 3):  # it would be its turn after 1200
        assert refused(run, clock.within(1.3)) == ErrorStatus.MISSED_DEADLINE_TRANSIENT
    run(clock.within(1.3))  # now it is in time


def test_what_waits_is_before_others_for_as_long_as_all_its_places_take(clock: Clock) -> None:
    """Four places: two executions of 300 ms run on them, two more of two places each wait, and are over after 600 ms."""
    queue = RunQueue("device mine", 4, strict=False)
    run = in_turn(queue, lambda _: clock.advance(0.3), OWN, MEDIUM, 2)
    for _ in range(FIRST):
        run(UNLIMITED)
    with long_held(queue, 300, 2, units=2):
        assert refused(run, clock.within(0.7)) == ErrorStatus.MISSED_DEADLINE_TRANSIENT  # it would end after 900


def test_high_is_not_refused_for_what_it_overtakes(clock: Clock) -> None:
    queue = one()
    low, high = paced(queue, clock, 100, priority=LOW), paced(queue, clock, 100, priority=HIGH)
    with long_held(queue, 100, 7, LOW):
        assert refused(low, clock.within(0.7)) == ErrorStatus.MISSED_DEADLINE_TRANSIENT
        outcome = begun(high, clock.within(0.7))
        until(lambda: waiting(queue) == 8, "it waits")
    outcome.result(LIMIT)


def test_the_first_executions_are_never_refused_nor_is_one_without_a_deadline(clock: Clock) -> None:
    queue, ran = one(), []

    def act(control: Control) -> None:
        ran.append(1)
        clock.advance(0.03)
        control.check()

    run = in_turn(queue, act, OWN, MEDIUM)
    for _ in range(FIRST * 3):  # none ends well, so nothing is known
        with pytest.raises(MissedDeadline):
            run(clock.within(0.01))
    assert len(ran) == FIRST * 3
    paced(queue, clock, 30, count=10)(UNLIMITED)


def test_an_estimate_that_does_not_hold_any_more_heals_though_all_have_deadlines(clock: Clock) -> None:
    queue, seconds = one(), [0.2]
    run = in_turn(queue, lambda _: clock.advance(seconds[0]), OWN, MEDIUM)
    for _ in range(FIRST):
        run(UNLIMITED)
    seconds[0] = 0.001
    outcomes = []
    for _ in range(PROBE * 2):
        try:
            run(clock.within(0.05))
            outcomes.append("ran")
        except MissedDeadline:
            outcomes.append("refused")
    assert outcomes == ["refused"] * (PROBE - 1) + ["ran"] * (PROBE + 1)


def test_one_slow_run_refuses_nothing(clock: Clock) -> None:
    queue, seconds = one(), [0.005]
    run = in_turn(queue, lambda _: clock.advance(seconds[0]), OWN, MEDIUM)
    for each in (0.005, 0.005, 0.3, 0.005):
        seconds[0] = each
        run(UNLIMITED)
    seconds[0] = 0.005
    with held(queue):
        outcome = begun(run, clock.within(0.2))
        until(lambda: waiting(queue) == 1, "it waits")
    outcome.result(LIMIT)


def test_whoever_waited_too_long_to_be_in_time_does_not_begin(clock: Clock) -> None:
    queue, ran = one(), []

    def act(_: Control) -> None:
        ran.append(1)
        clock.advance(0.1)

    run = in_turn(queue, act, OWN, MEDIUM)
    for _ in range(FIRST):
        run(UNLIMITED)
    with held(queue):  # of which nothing is known
        outcome = begun(run, clock.within(0.25))
        until(lambda: waiting(queue) == 1, "it waits")
        clock.advance(0.2)
    error = outcome.exception(LIMIT)
    assert isinstance(error, MissedDeadline) and error.status == ErrorStatus.MISSED_DEADLINE_TRANSIENT
    assert len(ran) == FIRST


def test_time_before_it_came_to_the_device_is_no_reason_to_call_it_persistent(clock: Clock) -> None:
    run = paced(one(), clock, 100)
    asked = Control(clock.ns + 50 * MS, asked=clock.ns - 200 * MS)
    assert refused(run, asked) == ErrorStatus.MISSED_DEADLINE_TRANSIENT
    assert refused(run, clock.within(0.05)) == ErrorStatus.MISSED_DEADLINE_PERSISTENT


def test_the_next_is_predicted_by_the_median_of_the_last_ones() -> None:
    pace = LatencyEstimator()
    assert pace.typical == 0 and not pace.known
    for spent in (100, 5, 5, 5, 900, 7, 7, 7, 7):
        pace.add_time(spent)
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


def test_a_place_that_was_lost_is_there_again(clock: Clock) -> None:
    queue = one()
    lost = queue.slots.free.pop()
    run = in_turn(queue, lambda _: "ran", OWN, MEDIUM)
    too_late(queue, run, clock)
    del lost
    assert run(UNLIMITED) == "ran" and len(queue.slots.free) == 1


@pytest.mark.parametrize("units", [1, 2])
def test_a_place_that_comes_as_an_execution_gives_up_is_there_again(
    units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, ends, cancelled = RunQueue("d", units, strict=True), threading.Event(), threading.Event()
    first = begun(in_turn(queue, lambda _: ends.wait(LIMIT), OWN, MEDIUM, units), UNLIMITED)
    until(lambda: list(queue.slots.busy()), "the first one runs")
    leave = RunQueue._leave

    def granted_before(self: RunQueue, ticket: QueueTicket, *how: Any) -> None:
        if ticket.control.cancelled is cancelled:
            ends.set()
            assert first.result(LIMIT) and ticket.slot is not None
        leave(self, ticket, *how)

    monkeypatch.setattr(RunQueue, "_leave", granted_before)
    second = begun(in_turn(queue, lambda _: None, OWN, MEDIUM, units), Control(cancelled=cancelled))
    until(lambda: waiting(queue) == 1, "the second one waits")
    cancelled.set()
    kept = second.exception(LIMIT)  # its traceback holds the ticket, and that the place
    assert isinstance(kept, Cancelled)
    assert begun(in_turn(queue, lambda _: "ran", OWN, MEDIUM, units), UNLIMITED).result(LIMIT) == "ran"


def test_a_ticket_that_was_lost_is_passed_over() -> None:
    queue = one()
    line = queue.line(OWN)
    tickets = [QueueTicket(line, LatencyEstimator(), 1, UNLIMITED) for _ in range(2)]
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
def test_a_place_that_comes_back_when_another_stands_in_for_it_is_none(first: bool, clock: Clock) -> None:
    queue = one()
    slot = queue.slots.free.pop()
    assert isinstance(slot, Slot)
    slot.there = False
    queue.slots.add()
    (queue.slots.free.append if first else queue.slots.free.appendleft)(slot)
    del slot
    with held(queue):
        too_late(queue, in_turn(queue, lambda _: None, OWN, MEDIUM), clock)


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
    queue.slots.free = TakenElsewhere(queue.slots.free, 3 - units)  # who takes one tries before it looks
    monkeypatch.setattr(queue, "_wait", lambda *_: pytest.fail("waits beside a free place"))
    assert in_turn(queue, lambda _: "ran", OWN, MEDIUM, units)(UNLIMITED) == "ran"
    assert len(queue.slots.free) == 2


def test_where_too_few_places_are_left_those_that_were_taken_are_there_again() -> None:
    queue = RunQueue("device mine", 3, strict=True)
    with held(queue):
        with pytest.raises(IndexError):
            queue.slots.several(3)
        assert len(queue.slots.free) == 2
    assert len(queue.slots.several(3).others) == 2


def test_a_client_is_a_process_however_many_connections_it_has() -> None:
    first = client_of(4_000_001)
    assert client_of(4_000_001) is first and client_of(4_000_002) is not first


def test_in_a_forked_child_nobody_holds_a_place() -> None:
    queue = RunQueue("device mine", 2, strict=True)
    run = in_turn(queue, lambda _: "ran", OWN, MEDIUM)
    with held(queue):  # one of the two
        pid = os.fork()
        if pid == 0:
            os._exit(0 if run(within(LIMIT * 1000)) == "ran" and len(queue.slots.free) == 2 else 1)
        assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("strict", [False, True])
def test_in_a_child_that_an_execution_has_forked_there_are_no_more_places_once_it_has_ended(strict: bool) -> None:
    queue = RunQueue("device mine", 1, strict=strict)
    pid = in_turn(queue, lambda _: os.fork(), OWN, MEDIUM)(UNLIMITED)
    if pid == 0:
        os._exit(len(queue.slots.free))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1 == len(queue.slots.free)


@pytest.mark.parametrize("seed", range(6))
def test_any_interleaving_keeps_within_the_places_lets_everybody_leave_and_loses_no_wake_up(seed: int) -> None:
    """Threads of several clients and priorities that run, fail, are cancelled, are late, or are lost with their ticket."""
    chosen = random.Random(seed)
    width = chosen.choice([1, 1, 2, 3])
    queue = RunQueue("device mine", width, strict=True)
    lock, inside, most, outcomes = threading.Lock(), [0], [0], list[str]()
    clients = [QueueClient(str(n)) for n in range(chosen.choice([1, 2, 4]))]

    def act(what: tuple[int, bool], _: Control) -> None:
        _, fails = what
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        jitter(chosen, 0.003)
        with lock:
            inside[0] -= 1
        if fails:
            raise OSError("told to")

    runs = [(c, p, queue.queued(act, c, p)) for c in clients for p in Priority]

    def come(number: int, plan: random.Random) -> None:
        for _ in range(6):
            jitter(plan, 0.004)
            _, _, run = plan.choice(runs)
            kind, event = plan.choice(["runs", "runs", "fails", "cancelled", "late"]), threading.Event()
            control = within(plan.uniform(0, 8)) if kind == "late" else Control(cancelled=event)
            if kind == "cancelled":
                threading.Timer(plan.uniform(0, 0.01), event.set).start()
            try:
                run((number, kind == "fails"), control)
                outcomes.append("ran")
            except (Cancelled, MissedDeadline, OSError) as error:
                outcomes.append(type(error).__name__)

    def lose() -> None:
        """As an interrupt does anywhere: a ticket, a place."""
        for _ in range(5):
            jitter(chosen, 0.005)
            with queue._lock:
                line = next(iter(queue._lines.values()))
                line.waiting[chosen.randrange(3)].append(
                    weakref.ref(QueueTicket(line, LatencyEstimator(), 1, UNLIMITED))
                )
            with suppress(IndexError):
                queue.slots.free.pop()

    threads = [threading.Thread(target=come, args=(n, random.Random(f"{seed} {n}"))) for n in range(10)]
    threads.append(threading.Thread(target=lose))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not any(thread.is_alive() for thread in threads)
    assert most[0] <= width and len(outcomes) == 60
    assert runs[0][2]((0, False), UNLIMITED) is None
    with queue._lock:
        queue.slots.settle()
    assert not waiting(queue) and len(queue.slots.free) == width


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("how", ["free", "waits", "passes on", "late"])
def test_interrupted_at_any_point_who_runs_or_waits_is_in_nobodys_way(
    how: str, strict: bool, shared: bool, clock: Clock
) -> None:
    queue = RunQueue("device mine", 1, strict=strict)
    other = in_turn(queue, lambda _: "ran", QueueClient("another"), MEDIUM) if shared else None

    def hold(_: Control) -> str:
        inside.set()
        jitter(dice, 0.003)
        clock.advance(0.003)
        return "ran"

    run, inside, dice = in_turn(queue, hold, OWN, MEDIUM), threading.Event(), random.Random(1)
    for _ in range(FIRST):
        run(UNLIMITED)

    def elsewhere(control: Control, into: list[str]) -> None:
        into.append(run(control))

    def call() -> None:
        found: list[str] = []
        before = threading.Thread(target=elsewhere, args=(clock.within(LIMIT), found))
        inside.clear()
        if how != "free":
            before.start()
            assert inside.wait(LIMIT)
        if how == "passes on":
            before.join(LIMIT)
            before = threading.Thread(target=elsewhere, args=(clock.within(LIMIT), found))
            queued.append(before)
        try:
            with suppress(MissedDeadline):
                run(clock.within(0.001) if how == "late" else UNLIMITED)
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
        queue.slots.settle()
        queue._dispatch(time.monotonic_ns())
    assert not waiting(queue) and len(queue.slots.free) == 1
    assert other is None or other(UNLIMITED) == "ran"
