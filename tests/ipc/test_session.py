"""Sessions with real service processes: parallel calls, notifications, deadlines, fences, driver memory, releases."""

import contextlib
import errno
import gc
import itertools
import os
import random
import signal
import socket
import struct
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import DeviceStatus, Priority
from nnhal.base.errors import (
    Cancelled,
    DeadObject,
    InvalidArgument,
    MissedDeadline,
    NnhalError,
    OperationFailed,
    ResourceExhausted,
)
from nnhal.base.memory import Memory
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.fence import fence_pair
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.request import UNLIMITED, Control, Timing
from nnhal.ipc.client.channels import KEPT_LANES, MAX_LANES
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.frames import Frames
from nnhal.ipc.client.prepared import RemotePrepared
from nnhal.ipc.client.process import start
from nnhal.ipc.client.session import Session
from nnhal.ipc.protocol import wire
from nnhal.ipc.service.connection import serve_one
from nnhal.ipc.transport.channel import Channel
from tests import requests
from tests.interrupts import Interrupts, interrupted_at
from tests.ipc.drivers.probe import Probe
from tests.ipc.support import (
    LIMIT,
    PROBE,
    Peer,
    a_table,
    inside,
    made,
    numbers,
    own_process,
    prepare,
    request_for,
    run,
    served_here,
    wait_until,
    wide,
    without_thread,
)
from tests.models import doubling
from tests.runtime.devices import failing
from tests.waiting import Opened, Started


@pytest.fixture(scope="module")
def device() -> Iterator[RemoteDevice]:
    """The probe driver in a process of its own; tests leave nothing behind in it."""
    with own_process() as device:
        yield device


# --------------------------------------------------------------------------------------------------------------- calls


@pytest.mark.parametrize("what", ["a thread", "a descriptor"])
def test_a_session_that_lacks_a_thread_or_a_descriptor_is_refused_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "a thread":
        without_thread(monkeypatch, "nnhal-session")
    else:
        monkeypatch.setattr(os, "eventfd", failing(OSError(errno.EMFILE, "Too many open files")))
    opened = Opened()
    with pytest.raises(ResourceExhausted, match=what.removeprefix("a ")):
        start(PROBE)
    opened.closed()


def test_a_session_ends_with_the_last_that_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt may come between the start of a session and its owner, and again as a finalizer begins."""

    def strike(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is weakref.finalize.__call__.__code__:
            raise KeyboardInterrupt

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    opened = Opened()
    service = threading.Thread(target=serve_one, args=(Probe(), theirs, {}, a_table()))
    service.start()
    prepared = prepare(RemoteDevice(Session(ours, "here")))
    gc.collect()
    assert np.array_equal(run(prepared, numbers()), 2 * numbers())
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    sys.setprofile(strike)
    try:
        del prepared
        gc.collect()
    finally:
        sys.setprofile(None)
    service.join(LIMIT)
    assert not service.is_alive()
    ours.close()
    opened.closed()


def test_after_an_interrupt_as_the_thread_of_a_session_starts_no_thread_uses_closed_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their numbers may be those of other files by then."""
    begin = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        begin(thread)
        if thread.name == "nnhal-session":
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    opened, started = Opened(), Started()
    with pytest.raises(KeyboardInterrupt):
        served_here(Probe()).__enter__()
    assert "nnhal-session" not in {thread.name for thread in started.threads()}
    started.ended()
    opened.closed()


def test_a_session_that_is_closed_during_an_execution_leaves_the_callers_memory_alone() -> None:
    pool = Memory.allocate(32)
    x, y = pool.view(0, 16, np.float32, (4,)), pool.view(16, 16, np.float32, (4,))
    with own_process() as device:
        prepared = prepare(device, sleep=LIMIT)
        process, alive = device.session.peer.process, []
        assert process is not None

        def execute() -> None:
            with pytest.raises(NnhalError):
                requests.run(prepared, [x], rooms=[y])
            alive.append(process.poll() is None)

        thread = threading.Thread(target=execute)
        thread.start()
        wait_until(lambda: device.session.calls.get("executeSynchronously_1_3", 0) == 1, "the call")
        wait_until(lambda: bool(device.session.channels.opened) and not device.session.channels.free, "its lane")
        device.session.close()
        thread.join(LIMIT)
    assert alive == [False]


def test_the_lane_that_carries_new_lanes_is_not_closed_under_who_sends_on_it() -> None:
    with own_process() as device, device.session._first.attaching:
        device.session.end()
        device.session._thread.join(0.2)
        assert device.session._first.channel.socket.fileno() >= 0


def test_lanes_are_used_again() -> None:
    with own_process() as device:
        prepared = prepare(device, meet=8)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: run(prepared, numbers(start=n)), range(8)))
            lanes = inside(device)["lanes"]
            list(pool.map(lambda n: run(prepared, numbers(start=n)), range(80)))
        for n in range(200):
            run(prepare(device), numbers(start=n))
        assert inside(device)["lanes"] == lanes > 0


def test_however_many_of_low_are_at_it_one_of_high_finds_a_lane() -> None:
    with own_process() as device:
        urgent, over = checked_prepared(device, doubling(), Hints(priority=Priority.HIGH)), threading.Event()
        others = checked_prepared(device, doubling(), Hints(priority=Priority.LOW, options={"sleep": 10 * LIMIT}))
        with ThreadPoolExecutor(40) as pool:
            flood = [pool.submit(run, others, numbers(start=n), Control(cancelled=over)) for n in range(40)]
            wait_until(lambda: inside(device)["inside"] == MAX_LANES - 2 * KEPT_LANES, "all lanes that LOW may have")
            assert np.array_equal(run(urgent, numbers(start=7)), 2 * numbers(start=7))
            assert not any(each.done() for each in flood)
            assert inside(device)["inside"] == MAX_LANES - 2 * KEPT_LANES
            over.set()
            assert all(isinstance(each.exception(LIMIT), Cancelled) for each in flood)


# ------------------------------------------------------------------------------------------------------------ bindings


def test_frames_and_their_bindings_go_with_the_callers_pool() -> None:
    with own_process() as device:
        prepared = prepare(device)
        run(prepared, numbers())
        clean = inside(device)["memories"]
        pools = [Memory.from_array(numbers(start=n)) for n in range(40)]
        for pool in pools:
            requests.run(prepared, [pool.view(0, 16, np.float32, (4,))], rooms=[np.zeros(4, np.float32)])
        assert inside(device)["memories"] > clean
        del pool, pools
        wait_until(lambda: gc.collect() >= 0 and inside(device)["memories"] <= clean, "memories of the service")


def test_a_request_over_a_thousand_memories_is_bound_and_leaves_none_behind() -> None:
    with own_process() as device:
        count = 1000
        prepared = prepare(device, wide(count))
        opened, clean = Opened(), inside(device)["memories"]
        memories = [Memory.from_array(np.float32([n])) for n in range(count)]
        given = [memory.view(0, 4, np.float32, (1,)) for memory in memories]
        for extra in range(2):
            given[0][0] = extra
            done = requests.run(prepared, given, rooms=[np.zeros(1, np.float32)])
            assert done.results[0].tolist() == [extra + count * (count - 1) / 2]
        assert device.session.calls["Hold"] == 17  # 60 at a time
        assert device.session.calls["Bind"] == 1
        del memories, given, done
        wait_until(lambda: gc.collect() >= 0 and inside(device)["memories"] <= clean, "memories of the service")
        opened.closed()


# ------------------------------------------------------------------------------------------------------- notifications


def test_notifications_come_exactly_once(device: RemoteDevice) -> None:
    prepared, failing = prepare(device), prepare(device, fail=1)
    came: Counter[int] = Counter()
    errors: dict[int, NnhalError | None] = {}
    each = [failing if n % 5 == 4 else prepared for n in range(100)]
    launched = [request_for(p, numbers(start=n)) for n, p in enumerate(each)]
    for n, request in enumerate(launched):

        def notify(error: NnhalError | None, _: object, n: int = n) -> None:
            came[n] += 1
            errors[n] = error

        each[n].execute(request, Control(), notify)
    wait_until(lambda: len(came) == 100, "notifications")
    inside(device)  # a second notification of one would have come before this answer
    assert set(came.values()) == {1}
    for n, request in enumerate(launched):
        if n % 5 == 4:
            assert isinstance(errors[n], OperationFailed)
        else:
            assert errors[n] is None and np.array_equal(request.results[0], 2 * numbers(start=n))


# ------------------------------------------------------------------------------------------------------- time and will


def given_back(device: RemoteDevice) -> None:
    """Wait until the driver has prepared all that it began, and nobody has any of it."""

    def done() -> bool:
        gc.collect()
        now = inside(device)
        return now["begun"] == now["came"] and now["prepared"] == 0

    wait_until(done, "what comes too late is given back")


def test_a_deadline_ends_a_preparation(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with own_process() as device:
        with pytest.raises(MissedDeadline, match="by the deadline"):
            device.prepare(doubling(), Hints(options={"gate": str(gate)}, deadline=time.monotonic_ns() + 50_000_000))
        gate.touch()
        given_back(device)
        assert np.array_equal(run(prepare(device), numbers()), 2 * numbers())


def background(prepared: Prepared, control: Control) -> None:
    outcome: Future[None] = Future()

    def notify(error: NnhalError | None, timing: Timing | None) -> None:
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)

    prepared.execute(request_for(prepared, numbers()), control, notify)
    outcome.result(LIMIT)


def fenced(prepared: Prepared, control: Control) -> None:
    execution = prepared.execute_fenced(request_for(prepared, numbers()), control)
    assert execution.fence is not None
    execution.fence.wait(LIMIT)


WAYS: dict[str, Callable[[Prepared, Control], object]] = {
    "plain": lambda prepared, control: run(prepared, numbers(), control),
    "background": background,
    "fenced": fenced,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("way", "level"), [("plain", "1.3"), ("plain", "1.0"), ("background", "1.0"), ("fenced", "1.3")]
)
def test_what_its_owner_cancels_ends_in_the_driver(way: str, level: str) -> None:
    with own_process(level=level) as device:
        prepared, cancelled = prepare(device, sleep=2 * LIMIT), threading.Event()
        threading.Timer(0.1, cancelled.set).start()
        with contextlib.suppress(NnhalError):
            WAYS[way](prepared, Control(cancelled=cancelled))
        assert cancelled.is_set()
        wait_until(lambda: inside(device)["inside"] == 0, "the execution ends in the driver")
        assert device.session.peer.dead is None


def test_an_interrupted_wait_for_a_notification_ends_the_execution_in_the_driver(interrupts: Interrupts) -> None:
    with own_process(level="1.0") as device:
        prepared = prepare(device, sleep=2 * LIMIT)
        with interrupts.expected(0.2):
            run(prepared, numbers())
        wait_until(lambda: inside(device)["inside"] == 0, "the execution ends in the driver")
        assert np.array_equal(run(prepare(device), numbers()), 2 * numbers())


def test_an_interrupted_preparation_is_given_back(interrupts: Interrupts, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with own_process() as device:
        with interrupts.expected(0.1):
            device.prepare(doubling(), Hints(options={"gate": str(gate)}))
        gate.touch()
        given_back(device)
        assert np.array_equal(run(prepare(device), numbers()), 2 * numbers())


def test_a_number_that_is_held_already_is_refused(device: RemoteDevice) -> None:
    number = made(device.session, wire.Hold, ())
    with pytest.raises(InvalidArgument, match=f"object {number} is held already, must be a new number"):
        device.session.call(wire.Hold(number, ()), wire.Acknowledged, UNLIMITED)
    device.session.endings.release(number)


MAKING: dict[str, Callable[[RemoteDevice, Prepared], object]] = {
    "prepare": lambda device, prepared: prepare(device),
    "run": lambda device, prepared: run(prepare(device), numbers()),
    "allocate": lambda device, prepared: device.allocate(BufferDesc((4,)), [BufferRole(prepared, 0, False, 1.0)]),
    "burst": lambda device, prepared: prepared.burst(),
    "fenced": lambda device, prepared: fenced(prepared, Control()),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("what", MAKING)
def test_wherever_the_interrupt_comes_nothing_is_left_in_the_service(what: str) -> None:
    with own_process() as device:
        prepared = prepare(device)
        before = inside(device)

        def points(frame: Any, event: str) -> bool:
            return "nnhal/ipc/client" in frame.f_code.co_filename and not finalizing(frame)

        def settles() -> bool:
            gc.collect()
            now = inside(device)
            return all(
                now.get(kind, 0) <= before.get(kind, 0) for kind in ("prepared", "buffers", "bursts", "executions")
            )

        def make() -> None:
            MAKING[what](device, prepared)
            wait_until(lambda: len(device.session.channels.abandoned) < 16, "the end of abandoned calls")

        assert interrupted_at(points, make) > 20
        wait_until(settles, f"all that was made goes: {before}")
        assert np.array_equal(run(prepare(device), numbers()), 2 * numbers())
        assert device.session.peer.dead is None


def executed(device: RemoteDevice, prepared: RemotePrepared) -> object:
    """The frames of an execution, which have its binding and its memories."""
    run(prepared, numbers())
    frames, prepared.frames = prepared.frames, Frames()
    return frames


def launched(prepared: RemotePrepared) -> object:
    execution = prepared.execute_fenced(request_for(prepared, numbers()), UNLIMITED)
    execution.get_execution_info()
    return execution


DROPPED: dict[str, Callable[[RemoteDevice, RemotePrepared], object]] = {
    "considered": lambda device, prepared: device.consider(doubling(), Hints()),
    "prepared": lambda device, prepared: device.prepare(doubling(), Hints()),
    "binding": executed,
    "buffer": lambda device, prepared: device.allocate(BufferDesc((4,)), [BufferRole(prepared, 0, False, 1.0)]),
    "burst": lambda device, prepared: prepared.burst(),
    "fenced": lambda device, prepared: launched(prepared),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", DROPPED)
def test_what_is_dropped_while_a_signal_handler_raises_is_given_back(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python looks for signals as it begins a finalizer, and loses what its handler raises there, and the finalizer."""

    def strike(frame: Any, event: str, argument: Any) -> None:
        if frame.f_code.co_name == "__del__":
            raise KeyboardInterrupt

    def held() -> dict[str, int]:
        usage = device.session.call(wire.GetUsage(), wire.Usage, UNLIMITED)[0]
        used = {quota.name: used for quota, used in zip(usage.quotas, usage.clients[0].used, strict=True)}
        return {name: used[name] for name in ("considered", "prepared", "bindings", "buffers", "bursts", "memories")}

    with own_process() as device:
        prepared = device.prepare(doubling(), Hints())
        assert isinstance(prepared, RemotePrepared)
        before = held()
        made = [DROPPED[what](device, prepared)]
        prepared.frames.close()
        monkeypatch.setattr(sys, "unraisablehook", lambda what: None)
        sys.setprofile(strike)
        try:
            made.clear()
        finally:
            sys.setprofile(None)
        monkeypatch.undo()
        wait_until(lambda: gc.collect() >= 0 and held() == before, "it is given back")


def finalizing(frame: Any) -> bool:
    """Whether a frame runs for a finalizer, where Python loses what is raised."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def test_lanes_after_sixty_interrupted_calls_are_usable_and_every_later_result_is_right(
    interrupts: Interrupts,
) -> None:
    with own_process() as device:
        prepared, slow = prepare(device), prepare(device, sleep=0.02)
        for model in (prepared, slow):
            run(model, numbers())
        before, dice = inside(device), random.Random(1)
        count, opened = 0, Opened()
        for n in itertools.count():
            if count == 60:
                break
            count += interrupts.during(lambda n=n: run(slow, numbers(start=1000 + n)), dice.uniform(0.0005, 0.02))
            for _ in range(3):
                assert np.array_equal(run(prepared, numbers(start=n)), 2 * numbers(start=n))
        session = device.session
        assert session.peer.dead is None and not any(channel.in_doubt for channel in session.channels.free)
        wait_until(lambda: not session.channels.abandoned, "the end of abandoned calls")
        with ThreadPoolExecutor(8) as pool:
            outputs = list(pool.map(lambda n: run(prepared, numbers(start=n)), range(80)))
        assert all(np.array_equal(y, 2 * numbers(start=n)) for n, y in enumerate(outputs))
        wait_until(lambda: inside(device)["inside"] == 0, "the executions end")
        settled(device, before, lanes=8)
        opened.closed(but=16)


def settled(device: RemoteDevice, before: dict[str, int], lanes: int = 1) -> None:
    """Memories of the service are what they were, but for a frame or two; threads are its lanes'."""
    wait_until(lambda: gc.collect() >= 0 and inside(device)["memories"] <= before["memories"] + 4 * lanes, "memories")
    wait_until(lambda: inside(device)["threads"] <= before["threads"] + lanes, "threads")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", ["call", "burst"])
def test_results_that_come_after_an_interrupt_are_never_those_of_another_execution(
    what: str, interrupts: Interrupts
) -> None:
    with own_process() as device:
        prepared, dice = prepare(device), random.Random(2)
        for n in range(300):
            by = prepared if what == "call" else prepared.burst()

            def hundred(n: int = n, by: Any = by) -> None:
                for k in range(100):
                    x = numbers(start=n + k)
                    wanted = request_for(prepared, x)
                    wanted.execute(by.run, Control())
                    assert np.array_equal(wanted.results[0], 2 * x)

            interrupts.during(hundred, dice.uniform(0.00005, 0.001))
            x = numbers(start=-n)
            assert np.array_equal(run(prepared, x), 2 * x)
        assert device.session.peer.dead is None


@contextlib.contextmanager
def stopped(device: RemoteDevice) -> Iterator[None]:
    """The service's process does nothing for as long as the block."""
    pid = device.session.welcome.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "the stop")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_late_answer_is_not_taken_for_the_next_questions() -> None:
    with own_process() as device:
        session = device.session
        for _ in range(3):
            with stopped(device), pytest.raises(MissedDeadline):
                session.call(wire.GetVersionString(), wire.TextReply, Control(time.monotonic_ns()))
            assert session.call(wire.GetType(), wire.TextReply, UNLIMITED)[0].value == int(device.type)
            assert session.call(wire.GetVersionString(), wire.TextReply, UNLIMITED)[0].value == device.version
        wait_until(lambda: not session.channels.abandoned, "the end of abandoned calls")


def test_a_lane_whose_call_was_given_up_is_hung_up_watched_closed_and_never_used_again() -> None:
    with own_process() as device:
        session = device.session
        threads = inside(device)["threads"]
        (lane,) = session.channels.free
        with stopped(device):
            with pytest.raises(MissedDeadline):
                session.call(wire.GetVersionString(), wire.TextReply, Control(time.monotonic_ns()))
            assert [given_up for given_up, *_ in session.channels.abandoned.values()] == [lane] and lane.in_doubt
            with pytest.raises(DeadObject):
                lane.send(b"more")
        assert session.call(wire.GetType(), wire.TextReply, UNLIMITED) and lane not in session.channels.free
        wait_until(lambda: not session.channels.abandoned and lane.socket.fileno() == -1, "its end")
        wait_until(lambda: inside(device)["threads"] <= threads, "its thread in the service")


def test_what_a_call_that_was_given_up_brings_is_given_back() -> None:
    with own_process() as device:
        prepared = prepare(device)
        run(prepared, numbers())
        before = inside(device)["memories"]
        for n in range(5):
            with stopped(device), pytest.raises(MissedDeadline):
                fresh = Memory.from_array(numbers(start=n))
                view = fresh.view(0, 16, np.float32, (4,))
                late = Control(deadline=time.monotonic_ns())
                requests.run(prepared, [view], late, [np.zeros(4, np.float32)])
            del fresh, view
        assert np.array_equal(run(prepared, numbers()), 2 * numbers())
        wait_until(lambda: not device.session.channels.abandoned, "the end of abandoned calls")
        settled(device, {**inside(device), "memories": before})


# -------------------------------------------------------------------------------------------------------------- fences


def test_an_interrupt_as_the_result_behind_a_fence_is_asked_for_leaves_it_to_who_asks_next(
    device: RemoteDevice,
) -> None:
    prepared = prepare(device)
    request = request_for(prepared, numbers())
    execution = prepared.execute_fenced(request, Control())
    if execution.fence is not None:
        execution.fence.wait(LIMIT)
    asks = "info_until", "held_lock"
    interrupted_at(
        lambda frame, event: event == "c_return" and frame.f_code.co_name in asks, lambda: execution.info_until(0)
    )
    assert np.array_equal(request.results[0], 2 * numbers())


def test_a_fence_tells_that_its_execution_failed(device: RemoteDevice) -> None:
    failing = prepare(device, fail=1)
    execution = failing.execute_fenced(request_for(failing, numbers()), Control())
    assert execution.fence is not None
    with pytest.raises(OperationFailed):
        execution.fence.wait(LIMIT)
    with pytest.raises(OperationFailed, match="probe: failed on command"):
        execution.get_execution_info()


def test_timings_of_a_fenced_execution_are_of_launch_and_of_fences(device: RemoteDevice) -> None:
    ready, signal = fence_pair()
    prepared = prepare(device)
    execution = prepared.execute_fenced(request_for(prepared, numbers()), Control(measure=True), [ready])
    begun = time.monotonic_ns()
    wait_until(lambda: time.monotonic_ns() > begun + 100_000_000, "some time has passed")
    signal.set()
    assert execution.fence is not None
    execution.fence.wait(LIMIT)
    launched, fenced = execution.get_execution_info()
    assert launched.in_driver is not None and fenced.in_driver is not None
    assert launched.in_driver - fenced.in_driver > 50_000_000


# ------------------------------------------------------------------------------------------------------- driver memory


# ------------------------------------------------------------------------------------------------------------ releases


def test_what_the_client_drops_is_closed_in_the_service() -> None:
    with own_process() as device:
        clean = inside(device)
        keep = [prepare(device) for _ in range(20)]
        buffers = [device.allocate(BufferDesc(), [BufferRole(p, 0)]) for p in keep]
        memory = [Memory.from_array(numbers(start=n)) for n in range(20)]
        for p, m in zip(keep, memory, strict=True):
            requests.run(p, [m.view(0, 16, np.float32, (4,))], rooms=[np.zeros(4, np.float32)])
        executions = [p.execute_fenced(request_for(p, numbers()), Control()) for p in keep]
        held = inside(device)
        assert (held["prepared"], held["buffers"], held["executions"]) == (20, 20, 20)
        assert held["memories"] >= clean["memories"] + 40
        for execution in executions:
            assert execution.fence is not None
            execution.fence.wait(LIMIT)
        del execution, executions, p, keep, buffers, m, memory
        gc.collect()

        def empty() -> bool:
            now = inside(device)
            return (now["prepared"], now["buffers"], now["executions"], now["memories"]) == (0, 0, 0, clean["memories"])

        wait_until(empty, "the export table is empty")


def test_releases_travel_in_batches(device: RemoteDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[wire.Release] = []
    send = Channel.send

    def watched(self: Channel, data: bytes, fds: tuple[int, ...] = ()) -> None:
        message = wire.decode_call(data)
        if isinstance(message, wire.Release):
            sent.append(message)
        send(self, data, fds)

    many = [prepare(device) for _ in range(200)]
    before = inside(device)["prepared"]
    monkeypatch.setattr(Channel, "send", watched)
    for p in many:
        p.close()
    wait_until(lambda: inside(device)["prepared"] <= before - 200, "releases")
    assert sum(len(message.objects) for message in sent) >= 200
    assert len(sent) <= 20


def test_a_model_that_is_dropped_while_it_runs_is_closed_after_the_run() -> None:
    with own_process() as device:
        prepared, outputs = prepare(device, waits=1), list[np.ndarray]()
        x = Memory.allocate(16).view(0, 16, np.float32, (4,))
        x[:] = -1
        thread = threading.Thread(target=lambda: outputs.append(run(prepared, x)))
        thread.start()
        wait_until(lambda: inside(device)["inside"] == 1, "the run has begun")
        prepared.close()
        x[:] = numbers()
        thread.join(LIMIT)
        assert np.array_equal(outputs[0], 2 * numbers())
        wait_until(lambda: inside(device)["prepared"] == 0, "the model is closed")
        assert inside(device)["closed while running"] == 0


def test_a_message_without_a_number_is_never_answered(device: RemoteDevice) -> None:
    lane = device.session._first.attach(int(LIMIT * 1e9))
    assert lane is not None
    good, bad = wire.encode(wire.GetVersionString()), b"\xc0"
    for data in (good, bad, wire.encode(wire.Release((10**6,))), wire.encode(wire.GetShape(999)), bytes(1 << 17)):
        lane.send(data)
    assert wire.decode_reply(lane.call(good)[0]) == wire.TextReply("1")
    with pytest.raises(MissedDeadline):
        lane.receive(50_000_000)


def test_descriptors_that_come_with_an_answer_and_that_nobody_wants_are_closed() -> None:
    answers = {
        wire.GetVersionString: wire.TextReply("1"),
        wire.GetStatus: wire.Failed(3, "InvalidArgument", "no"),
        wire.GetType: wire.Acknowledged(),
    }
    with Peer(lambda lane, call: lane.answer(wire.encode(answers[type(call)]), (0, 1, 2))) as session:
        assert session.call(wire.GetVersionString(), wire.TextReply, UNLIMITED)[0].value == "1"
        opened = Opened()
        for _ in range(50):
            assert session.call(wire.GetVersionString(), wire.TextReply, UNLIMITED)[0].value == "1"
            with pytest.raises(InvalidArgument, match="no"):
                session.call(wire.GetStatus(), wire.TextReply, UNLIMITED)
        opened.closed()
        with pytest.raises(DeadObject, match="answered getType with Acknowledged"):
            session.call(wire.GetType(), wire.TextReply, UNLIMITED)


def test_an_answer_that_comes_twice_is_never_the_next_questions() -> None:
    def answer(lane: Channel, call: wire.ClientCall) -> None:
        whole = struct.pack("<Q", lane.lane.asked) + wire.encode(wire.TextReply(wire.hal_name(call)))
        for _ in range(2):
            lane.socket.sendall(whole)

    with Peer(answer) as session:
        assert session.call(wire.GetVersionString(), wire.TextReply, UNLIMITED)[0].value == "getVersionString"
        with pytest.raises(DeadObject):
            session.call(wire.GetType(), wire.TextReply, UNLIMITED)


# ------------------------------------------------------------------------------------------------------- notifications


def notified(*notes: Callable[[int], wire.ServiceCall]) -> Peer:
    """A service that acknowledges each call, and notifies of its number so."""

    def answer(lane: Channel, call: wire.ClientCall) -> None:
        lane.answer(wire.ENCODED_DONE)
        for note in notes if isinstance(call, wire.MakingCall) else ():
            assert peer.callbacks is not None
            peer.callbacks.send(wire.encode(note(call.object)))

    peer = Peer(answer)
    return peer


@pytest.mark.parametrize("off", [1, -1, 2**40])
def test_a_notification_of_what_was_not_asked_for_ends_the_session_and_nobody_waits_for_ever(off: int) -> None:
    peer = notified(lambda number: wire.NotifyExecuted(number + off, wire.ExecutedReply()))
    with peer as session:
        pending = session.notified(wire.Execute(session.number(), 4, 1), UNLIMITED)
        with pytest.raises(DeadObject, match=r"NotifyExecuted of \d+, must be of a requested object, once"):
            session.outcome(pending, UNLIMITED)
        assert session.peer.dead is not None


def test_a_notification_that_comes_twice_ends_the_session() -> None:
    with notified(*[lambda number: wire.NotifyExecuted(number, wire.ExecutedReply())] * 2) as session:
        pending = session.notified(wire.Execute(session.number(), 4, 1), UNLIMITED)
        with contextlib.suppress(DeadObject):
            assert session.outcome(pending, UNLIMITED)[0] == wire.ExecutedReply()
        wait_until(lambda: session.peer.dead is not None, "the end of the session")


def test_an_interrupt_before_a_call_is_sent_leaves_no_notification_to_be_expected() -> None:
    received: set[int] = set()

    def answer(lane: Channel, call: wire.ClientCall) -> None:
        if isinstance(call, wire.Execute):
            received.add(call.object)
        lane.answer(wire.ENCODED_DONE)

    sends = "ask", "answer_to"
    with Peer(answer) as session:
        points = interrupted_at(
            lambda frame, event: event == "c_return" and frame.f_code.co_name in sends,
            lambda: session.notified(wire.Execute(session.number(), 4, 1), UNLIMITED),
        )
        assert points and len(received) == 1
        assert set(session.notifications.pending) == received


@pytest.mark.parametrize("refused", [False, True])
def test_a_notification_of_a_call_that_was_given_up_may_come_and_is_kept_account_of_until_then(refused: bool) -> None:
    given_up = threading.Event()

    def answer(lane: Channel, call: wire.ClientCall) -> None:
        if not isinstance(call, wire.Execute):
            return lane.answer(wire.encode(wire.TextReply("1")))
        assert given_up.wait(LIMIT)
        no = wire.Failed(5, "InvalidArgument", "no")
        lane.answer(wire.encode(no) if refused else wire.ENCODED_DONE)
        if not refused:
            assert peer.callbacks is not None
            peer.callbacks.send(wire.encode(wire.NotifyExecuted(call.object, wire.ExecutedReply())))
        lane.socket.shutdown(socket.SHUT_RDWR)
        return None

    peer = Peer(answer)
    with peer as session:
        for _ in range(3):
            given_up.clear()
            with pytest.raises(MissedDeadline):
                session.notified(wire.Execute(session.number(), 4, 1), Control(time.monotonic_ns()))
            given_up.set()
            wait_until(
                lambda: not session.notifications.pending and not session.channels.abandoned, "the end of the call"
            )
            assert session.call(wire.GetVersionString(), wire.TextReply, UNLIMITED)[0].value == "1"
        assert session.peer.dead is None


# ------------------------------------------------------------------------------------------------------- refused lanes


def test_a_lane_that_the_service_does_not_take_is_an_error_with_the_limit_and_the_session_lives_on() -> None:
    table, driver = a_table(lanes=2), Probe()
    with served_here(driver, table) as device, ThreadPoolExecutor(2) as pool:
        both = prepare(device, meet=3)  # a run ends when three are inside
        x = numbers()
        lone = [pool.submit(run, both, x) for _ in range(2)]
        wait_until(lambda: driver._counters.counts["inside"] == 2, "both lanes are in use")  # for no binding any more
        for _ in range(50):
            with pytest.raises(ResourceExhausted, match="lanes: this client has 2, must be at most 2"):
                run(both, x)
        assert len(device.session.channels.opened) == 2
        table.rows["lanes"] = replace(table.rows["lanes"], most=3)
        assert np.array_equal(run(both, x), 2 * x)
        assert all(np.array_equal(each.result(LIMIT), 2 * x) for each in lone)
        assert device.session.peer.dead is None


def test_a_first_call_that_fails_is_an_error_of_its_own_and_the_next_one_works(device: RemoteDevice) -> None:
    for _ in range(3):
        while device.session.channels.free:
            device.session.channels.free.pop().close()
        with pytest.raises(InvalidArgument, match="is not held"):
            made(device.session, wire.Bind, 999, wire.WireRequest((), (), ()))
    assert device.status() == DeviceStatus.AVAILABLE


def test_a_channel_that_ended_is_not_waited_for_nor_is_a_session_that_lives() -> None:
    ended: Any = SimpleNamespace(socket=SimpleNamespace(fileno=lambda: -1))
    waited: list[float] = []
    thread = SimpleNamespace(join=waited.append)
    for dead, process in ((None, "own"), (DeadObject("gone"), None), (DeadObject("gone"), "own")):
        session: Any = SimpleNamespace(peer=SimpleNamespace(dead=dead, process=process), _thread=thread)
        Session._settle(session, ended)
    assert waited == [5]  # once: its own process is ended by the thread
