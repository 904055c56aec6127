"""Bursts between processes: the same results as plain calls, hooks, executors, what a packet may carry, what ends them."""

import gc
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import BadState, DeadObject, OperationFailed, ResourceExhausted
from nnhal.base.memory import Memory
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints
from nnhal.hal.host import contents_of
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.request import UNLIMITED, Control, sufficient
from nnhal.ipc.client import burst as burst_of_a_client
from nnhal.ipc.client.process import ReconnectingDevice, start
from nnhal.ipc.client.session import SETTLE_NS
from nnhal.ipc.service.burst import ServiceBurst
from nnhal.ipc.transport import _native
from tests.interrupts import Interrupt, interrupted_at
from tests.ipc.drivers.probe import Probe
from tests.ipc.support import a_table, inside, prepare, served_here, wait_until
from tests.models import adding
from tests.waiting import Opened, until

BURSTING = str(Path(__file__).parent / "drivers" / "bursting.py")
ONES, TWOS = np.ones(4, np.float32), np.full(4, 2, np.float32)


@pytest.fixture(scope="module")
def reference():
    device = ReconnectingDevice("reference", lambda: start("reference"))
    yield device
    device.close()


@pytest.fixture(scope="module")
def bursting():
    device = ReconnectingDevice("bursting", lambda: start(BURSTING))
    yield device
    device.close()


def request(prepared, *inputs):
    return prepared.request(inputs or (ONES, TWOS), [np.empty(4, np.float32)])


def run(prepared, by, *inputs, control=UNLIMITED):
    """Execute by a burst of the model, or plainly; the output."""
    execution = request(prepared, *inputs)
    execution.execute(by.run, control)
    return execution.results[0]


def test_equal_requests_are_one_binding_whose_packet_repeats(reference):
    prepared = checked_prepared(reference, adding(), Hints())
    with prepared.burst() as burst:
        before = calls(prepared)
        for _ in range(20):
            run(prepared, burst)
        assert burst.stats()["packets"] == 20
        assert burst.stats()["memo_hits"] == 19
        assert calls(prepared) - before == Counter(Bind=1)


def calls(prepared):
    """How often each method was called."""
    return Counter(prepared.inner.remote.session.calls)


def test_a_plain_call_and_a_burst_share_a_binding(reference):
    prepared = checked_prepared(reference, adding(), Hints())
    with prepared.burst() as burst:
        run(prepared, burst)
        before = calls(prepared)
        for by in (prepared, burst, prepared):
            assert run(prepared, by, ONES * 3, TWOS).tolist() == [5] * 4
        assert calls(prepared) - before == Counter(executeSynchronously_1_3=2)


def test_results_that_fail_or_are_measured_change_nothing_for_the_next_one(bursting):
    prepared = checked_prepared(bursting, adding(), Hints())
    with prepared.burst() as burst:
        for _ in range(3):
            for inputs, control in (((ONES, TWOS), Control()), ((ONES, TWOS), Control(measure=True))):
                assert run(prepared, burst, *inputs, control=control).shape == (4,)
            with pytest.raises(OperationFailed, match="negative"):
                run(prepared, burst, -ONES, TWOS)


def test_a_driver_is_told_when_a_burst_opens_and_when_it_closes(bursting):
    prepared = checked_prepared(bursting, adding(), Hints())
    with prepared.burst() as first:
        seen = run(prepared, first)
        assert seen[:2].tolist() == [1, 0]
    counted(prepared, lambda seen: seen[:2] == [1, 1])


def counted(prepared, true):
    """Execute plainly until the counters are so; they."""
    seen = []

    def looked():
        seen[:] = run(prepared, prepared).tolist()
        return true(seen)

    until(looked, "the counters")
    return seen


def test_an_executor_of_the_drivers_own_gets_each_memory_once_and_is_told_when_it_goes(bursting):
    prepared = checked_prepared(bursting, adding(), Hints(options={"executor": True}))
    pool = Memory.allocate(64)
    x = pool.view(0, 16, np.float32)
    x[:] = 1
    with prepared.burst() as burst:
        added = {tuple(run(prepared, burst, x, TWOS)[2:].tolist()) for _ in range(3)}
        assert added == {(3, 0)}  # the pool, and the frame's own two, which hold the rest
        burst.free_memory(pool)

        def removed(seen):
            run(prepared, burst)  # slots that were freed go before the next packet
            return seen[3] == 3

        counted(prepared, removed)
        assert run(prepared, burst, x, TWOS)[2:].tolist() == [8, 3]


@pytest.mark.parametrize(
    ("limited", "why"),
    [
        (lambda: Control(deadline=time.monotonic_ns() + 10**12), "it has a deadline"),
        (lambda: Control(loop_timeout=10**9), "it has a loop timeout"),
        (lambda: Control(cancelled=threading.Event()), "it may be cancelled"),
    ],
)
def test_what_a_packet_cannot_carry_takes_the_plain_call_and_says_why(reference, limited, why):
    control = limited()
    prepared = checked_prepared(reference, adding(), Hints()).inner.remote
    with prepared.burst() as burst:
        wanted = run(prepared, burst, control=control)
        assert wanted.tolist() == [3, 3, 3, 3]
        assert burst.plain == {why: 1}
        assert burst.stats()["packets"] == 0


@pytest.mark.parametrize("output", [False, True])
def test_driver_buffers_take_the_plain_call(output):
    with served_here(Probe()) as device:
        prepared = checked_prepared(device, adding(), Hints())
        buffer = device.allocate(BufferDesc((4,)), [BufferRole(prepared.inner, 0, output=output)])
        if output:
            wanted = prepared.request((ONES, TWOS), [None], output_buffers={0: buffer})
        else:
            buffer.copy_from(Memory.from_array(ONES), (4,))
            wanted = prepared.request((None, TWOS), [np.empty(4, np.float32)], input_buffers={0: buffer})
        with prepared.burst() as burst:
            wanted.execute(burst.run, UNLIMITED)
            assert burst.plain == {"it uses driver buffers": 1} and burst.stats()["packets"] == 0
        assert (contents_of(buffer) if output else wanted.results[0]).tolist() == [3, 3, 3, 3]


def test_a_burst_that_nobody_holds_any_more_is_closed():
    with served_here(Probe()) as device:
        prepared = prepare(device)
        burst = prepared.burst()
        assert inside(device)["bursts"] == 1
        del burst
        wait_until(lambda: inside(device)["bursts"] == 0, "its end")


@pytest.mark.parametrize(("size", "plain"), [(4, {}), (0, {"the driver provides memory for an output": 1})])
def test_an_output_without_memory_takes_the_plain_call_where_its_shape_is_not_known(reference, size, plain):
    prepared = checked_prepared(reference, adding(size), Hints()).inner.remote
    with prepared.burst() as burst:
        wanted = prepared.request((ONES, TWOS))
        wanted.execute(burst.run, Control())
        assert wanted.results[0].tolist() == [3, 3, 3, 3]
        assert burst.plain == plain


def test_an_output_whose_shape_is_not_known_lies_in_the_room_that_is_given(reference):
    prepared = checked_prepared(reference, adding(0), Hints()).inner.remote
    with prepared.burst() as burst:
        for room, shapes in ((np.zeros(9, np.float32), [(4,)]), (np.zeros(15, np.uint8), [(4,)])):
            wanted = prepared.request((ONES, TWOS), [room])
            wanted.execute(burst.run, Control())
            assert (wanted.shapes, sufficient(wanted)) == (shapes, [room.nbytes >= 16])
            assert room.any() == sufficient(wanted)[0]
        assert burst.plain == {}


@pytest.mark.parametrize("control", [UNLIMITED, Control(deadline=2**62)], ids=["by a packet", "plainly"])
def test_a_second_execution_at_the_same_time_is_bad_state(reference, control):
    prepared = checked_prepared(reference, adding(), Hints()).inner.remote
    with prepared.burst() as burst:
        assert burst._busy.acquire(blocking=False)
        with pytest.raises(BadState, match="one at a time"):
            run(prepared, burst, control=control)
        burst._busy.release()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(4))
def test_shapes_that_change_in_a_burst_leave_nothing_behind(reference, seed):
    """500 of 2,000 executions over 300 shapes, plain ones among them; every result is compared."""
    dice = random.Random(seed)
    prepared = checked_prepared(reference, adding(0), Hints()).inner.remote
    pid = prepared.session.welcome.pid

    def executions(burst, count):
        for _ in range(count):
            size = dice.randint(1, 300)
            x, y = np.arange(size, dtype=np.float32) + dice.randint(0, 99), np.empty(size, np.float32)
            by = burst if dice.random() < 0.9 else prepared
            prepared.request((x, x), [y]).execute(by.run, Control())
            assert np.array_equal(y, x + x)

    with prepared.burst() as burst:
        executions(burst, 100)
        before, opened = held(pid), Opened()
        executions(burst, 500)
        assert burst.plain == {}
        opened.closed(but=SLACK)
        until(lambda: all(now <= then + SLACK for now, then in zip(held(pid), before, strict=True)), "what is held")
    assert len(prepared.frames._free) <= 16


SLACK = 8  # what of two moments may differ: a frame is made, another not yet released


def held(pid):
    """Descriptors of the driver's process, shared memories of both."""
    gc.collect()
    both = ("self", str(pid))
    frames = [Path(f"/proc/{p}/maps").read_text().count("memfd:nnhal-frame") for p in both]
    return [len(os.listdir(f"/proc/{pid}/fd")), *frames]


def test_queues_that_end_under_a_burst_end_it():
    with served_here(Probe()) as device:
        prepared = prepare(device)
        burst = prepared.burst()
        burst._queues.close()
        with pytest.raises(DeadObject, match="the driver process died or ended the burst"):
            run(prepared, burst, ONES)
        assert burst.ended and device.session.peer.dead is None
        assert run(prepared, prepared, ONES).tolist() == [2, 2, 2, 2]


def test_an_interrupted_execution_ends_the_burst_and_the_next_one_opens_it_again(reference, interrupts):
    prepared = checked_prepared(reference, adding(), Hints())
    with prepared.burst() as burst:
        run(prepared, burst)
        inner = burst._inner
        os.kill(reference.pid, signal.SIGSTOP)
        try:
            with interrupts.expected(0.3):
                while True:  # the stop takes a moment
                    run(prepared, burst)
        finally:
            os.kill(reference.pid, signal.SIGCONT)
        assert inner.ended
        wanted = run(prepared, burst, ONES * 5, TWOS)
        assert wanted.tolist() == [7, 7, 7, 7]
    assert reference.restarts == 0


class Struck:
    """Queues in whose waits an interrupt comes, each time."""

    awaiting = True

    def __init__(self, queues):
        self.close = queues.close

    def exchange(self, *_):
        raise Interrupt

    receive = exchange


class StruckAtTheEdge:
    """Queues whose exchange is interrupted before it sends anything, or after it received the answer."""

    def __init__(self, queues, answered):
        self._queues, self._answered, self.waited = queues, answered, False

    def __getattr__(self, name):
        return getattr(self._queues, name)

    def receive(self, *given):
        self.waited = True
        return self._queues.receive(*given)

    def exchange(self, *given):
        if self._answered:
            self._queues.exchange(*given)
        raise Interrupt


def test_an_interrupt_at_any_point_of_an_execution_leaves_no_burst_busy(reference):
    """One right after its lock was taken left it taken for good."""
    with nnhal.compile(adding(), devices=reference, fallback="forbid").burst() as burst:

        def hits(frame, event):
            here = frame.f_code.co_filename.endswith("client/burst.py") and frame.f_code.co_name in ("run", "_run")
            return here and event == "c_return"  # Python looks for signals after calls

        assert interrupted_at(hits, lambda: burst(ONES, TWOS)) > 4
        np.testing.assert_array_equal(burst(ONES, TWOS), 3 * ONES)


def test_who_is_interrupted_while_a_burst_opens_leaves_no_queues(reference):
    """At every return of what is written in C, which is where Python runs signal handlers."""
    prepared = checked_prepared(reference, adding(), Hints())
    prepared.burst().close()
    opened = Opened()

    def hits(frame, event):
        here = frame.f_code.co_filename == burst_of_a_client.__file__ and frame.f_code.co_name == "__init__"
        return here and event == "c_return"

    assert interrupted_at(hits, lambda: prepared.burst().close()) > 2
    opened.closed()
    prepared.close()


@pytest.mark.parametrize("answered", [False, True])
def test_who_is_interrupted_at_the_edge_of_an_execution_waits_for_nothing_and_keeps_the_driver(reference, answered):
    prepared = checked_prepared(reference, adding(), Hints())
    pool = Memory.allocate(16)
    with prepared.burst() as burst:
        inner = burst._inner
        inner._queues = StruckAtTheEdge(inner._queues, answered)
        with pytest.raises(Interrupt):
            prepared.request([ONES, TWOS], [pool.view(0, 16, np.float32, (4,))]).execute(burst.run, UNLIMITED)
        assert inner.ended and not inner._queues.waited
        assert run(prepared, burst, ONES * 5, TWOS).tolist() == [7, 7, 7, 7]
    assert reference.restarts == 0


def test_a_burst_that_is_interrupted_while_it_waits_for_the_end_has_ended_too(reference):
    prepared = checked_prepared(reference, adding(), Hints())
    pool = Memory.allocate(16)
    with prepared.burst() as burst:
        inner = burst._inner
        inner._queues = Struck(inner._queues)
        with pytest.raises(Interrupt):
            prepared.request([ONES, TWOS], [pool.view(0, 16, np.float32, (4,))]).execute(burst.run, UNLIMITED)
        assert inner.ended
        assert run(prepared, burst, ONES * 5, TWOS).tolist() == [7, 7, 7, 7]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_who_is_interrupted_waits_for_a_driver_that_writes_to_memory_of_the_callers(direct, late, monkeypatch):
    waited, given_up = [], []
    with served_here(Probe()) as device:
        prepared = prepare(device)
        monkeypatch.setattr(device.session.peer, "give_up", given_up.append)
        with prepared.burst() as burst:
            struck = burst._queues = Struck(burst._queues)
            struck.receive = lambda limit: waited.append(limit) or (_native.TIMEOUT if late else b"")
            room = Memory.allocate(16).view(0, 16, np.float32, (4,)) if direct else np.empty(4, np.float32)
            with pytest.raises(Interrupt):
                prepared.request([ONES], [room]).execute(burst.run, UNLIMITED)
            assert burst.ended
    assert waited == [SETTLE_NS] * direct
    assert len(given_up) == (direct and late)


def test_bursts_that_come_and_go_leave_nothing_behind(reference):
    prepared = checked_prepared(reference, adding(), Hints())

    def mappings():
        return Path("/proc/self/maps").read_text().count("memfd:nnhal")

    def round_trip():
        with prepared.burst() as burst:
            run(prepared, burst)

    for _ in range(20):
        round_trip()
    opened, before = Opened(), mappings()
    for _ in range(200):
        round_trip()
    opened.closed()
    until(lambda: mappings() <= before, "mappings")


def test_a_burst_whose_listener_does_not_begin_is_refused_and_the_driver_told(monkeypatch):
    monkeypatch.setattr(ServiceBurst, "_listen", lambda self: None)  # as a thread without memory ends
    with served_here(Probe()) as device:
        prepared = prepare(device)
        with pytest.raises(ResourceExhausted, match="burst: no thread is available"):
            prepared.burst()
        assert inside(device)["bursts"] == 0
        assert run(prepared, prepared, ONES).tolist() == TWOS.tolist()


def test_a_burst_past_the_limit_of_objects_leaves_no_listener_and_the_driver_is_told():
    with served_here(Probe(), a_table(objects=1)) as device:
        prepared = prepare(device)
        with pytest.raises(ResourceExhausted, match="objects: this client has 1, must be at most 1"):
            prepared.burst()
        wait_until(lambda: inside(device)["bursts"] == 0, "the end of the burst")
        wait_until(lambda: "nnhal-burst" not in {t.name for t in threading.enumerate()}, "the end of its listener")
