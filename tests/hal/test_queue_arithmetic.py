"""The sums of the run queue, each worked out by hand from a state that no thread changes.

Durations are in milliseconds here. The clock stands at NOW, or moves where a test moves it.
"""

from collections.abc import Sequence
from threading import Event
from weakref import ref

import pytest

from nnhal.base.codes import Priority
from nnhal.base.errors import MissedDeadline
from nnhal.hal import queue as module
from nnhal.hal.queue import RunQueue
from nnhal.hal.request import UNLIMITED, Control
from nnhal.hal.waiting import FIRST, GRACE_NS, LEVELS, OWN, LatencyEstimator, QueueClient, QueueTicket, Slot
from tests.waiting import Clock

MS = 1_000_000
NOW = 1_000_000 * MS
MEDIUM = LEVELS.index(Priority.MEDIUM)
ANOTHER, THIRD = QueueClient("another"), QueueClient("a third")


def pace(ms: int) -> LatencyEstimator:
    """The pace of a model whose executions always took so long."""
    made = LatencyEstimator()
    for _ in range(FIRST):
        made.add_time(ms * MS)
    return made


class State:
    """A queue with executions that run and that wait, put there without threads."""

    def __init__(self, width: int) -> None:
        self.queue = RunQueue("device mine", width, strict=False)
        self.held: list[object] = []  # lines and tickets, which the queue holds weakly

    def ticket(self, client: QueueClient, ms: int, units: int = 1, control: Control = UNLIMITED) -> QueueTicket:
        """An execution that comes now."""
        line = self.queue.line(client)
        made = QueueTicket(line, pace(ms), units, control)
        self.held += [line, made]
        return made

    def runs(self, client: QueueClient, ms: int, since: int, units: int = 1, control: Control = UNLIMITED) -> Slot:
        """An execution that began `since` milliseconds ago."""
        ticket = self.ticket(client, ms, units, control)
        ticket.line.waiting[MEDIUM].append(ref(ticket))
        assert self.queue._grant(ticket.line, ticket, NOW - since * MS) and ticket.slot is not None
        return ticket.slot

    def waits(self, client: QueueClient, ms: int, units: int = 1) -> QueueTicket:
        """An execution that waits."""
        ticket = self.ticket(client, ms, units)
        ticket.line.waiting[MEDIUM].append(ref(ticket))
        return ticket

    def predicted(self, ms: int = 10, units: int = 1) -> float:
        """How long an execution of this process, which takes `ms`, would wait."""
        return self.queue._predicted_wait(self.ticket(OWN, ms, units), MEDIUM, NOW) / MS


def test_the_wait_is_the_time_of_those_before_it_over_all_places() -> None:
    state = State(2)
    state.runs(OWN, 100, since=0)
    state.runs(OWN, 100, since=40)  # 60 are left
    state.waits(OWN, 20)
    assert state.predicted() == (100 + 60 + 20) / 2


def test_an_execution_that_runs_longer_than_it_usually_does_adds_nothing_to_the_wait() -> None:
    state = State(2)
    state.runs(OWN, 100, since=250)
    state.runs(OWN, 100, since=0)
    assert state.predicted() == (0 + 100) / 2


def test_an_execution_with_several_places_counts_once_for_each_of_them() -> None:
    state = State(3)
    state.runs(OWN, 100, since=40, units=2)
    state.runs(OWN, 30, since=0)
    state.waits(OWN, 20, units=3)
    assert state.predicted() == (2 * 60 + 30 + 3 * 20) / 3


def test_an_execution_that_takes_as_long_as_its_values_say_adds_nothing_to_the_wait() -> None:
    state = State(2)
    for ticket in (state.runs(OWN, 100, since=0), state.waits(OWN, 20), state.waits(ANOTHER, 5)):
        assert ticket.pace is not None
        ticket.pace.by_values = True
    state.runs(OWN, 100, since=40)
    assert state.predicted() == 60 / 2


@pytest.mark.parametrize(("theirs", "counted"), [(5, 5), (40, 10 + 15), (25, 25)])
def test_another_client_is_before_it_for_as_long_as_its_own_client_has_by_then(theirs: int, counted: int) -> None:
    state = State(1)
    state.runs(OWN, 100, since=0)
    state.waits(OWN, 10)
    state.waits(ANOTHER, theirs)
    state.waits(THIRD, 3)
    assert state.predicted(15) == 100 + 10 + counted + 3


def test_the_wait_decides_whether_an_execution_is_in_time() -> None:
    state = State(2)
    state.runs(OWN, 100, since=0)
    state.runs(OWN, 100, since=0)
    for left, refused in ((115, False), (105, True)):  # it waits 100 and takes 10
        control = Control(NOW + left * MS)
        ticket = state.ticket(OWN, 10, control=control)
        if refused:
            with pytest.raises(MissedDeadline, match=r"after a wait of 100\.000 ms"):
                state.queue._admit(ticket, MEDIUM, control, NOW + left * MS, NOW)
        else:
            state.queue._admit(ticket, MEDIUM, control, NOW + left * MS, NOW)


# ------------------------------------------------------------------------------------- executions that do not end in time


def test_all_places_of_an_execution_that_does_not_end_are_there_again() -> None:
    state = State(3)
    late = Control(NOW - GRACE_NS)
    state.runs(OWN, 10, since=1000, units=2, control=late)
    assert len(state.queue.slots.free) == 1
    state.queue.slots.relieve(NOW)
    assert len(state.queue.slots.free) == 3


def test_a_cancelled_execution_counts_from_the_first_look_at_it_however_often_it_is_looked_at() -> None:
    cancelled = Event()
    state = State(1)
    slot = state.runs(OWN, 10, since=0, control=Control(cancelled=cancelled))
    cancelled.set()
    for later in (0, GRACE_NS // 2, GRACE_NS - 1):
        assert state.queue.slots.counts_until(slot, NOW + later) == NOW + GRACE_NS


def test_a_cancelled_execution_has_its_own_grace_after_another_in_the_same_place_was_cancelled() -> None:
    cancelled, state = Event(), State(1)
    cancelled.set()
    slot = state.runs(OWN, 10, since=0, control=Control(cancelled=cancelled))
    slot.overdue = NOW - 1  # of the execution before
    assert state.queue.slots.counts_until(slot, NOW + 5) == NOW + 5 + GRACE_NS


# ----------------------------------------------------------------------------------------- clients that come back quickly


def turns(queue: RunQueue, clock: Clock, gaps: Sequence[int]) -> list[int]:
    """Run executions of 4 ms, each a gap after the one before; the gap that the queue has noted when each runs."""
    line, known = queue.line(OWN), []

    def act(*_: object) -> None:
        known.append(line.gap // MS)
        clock.ns += 4 * MS

    run = queue.queued(act, OWN, Priority.MEDIUM)
    for gap in gaps:
        clock.ns += gap * MS
        run(None, Control(1 << 62))  # with a deadline, or it would not pass through the queue
    return known


def test_how_quickly_a_client_comes_back_is_the_time_since_its_last_execution_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(NOW)
    monkeypatch.setattr(module, "_now", clock)
    assert turns(RunQueue("device mine", 1, strict=True), clock, [0, 3, 1, 0, 7]) == [0, 3, 1, 0, 7]
