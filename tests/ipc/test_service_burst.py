"""The service's end of a burst, with a client's queues in the same thread: answers, what is decoded, slots, the end."""

import gc
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from nnhal.base.errors import InvalidArgument, OperationFailed, ResourceExhausted
from nnhal.base.levels import FL8, V1_2, V1_3, Level
from nnhal.base.memory import Memory
from nnhal.hal.burst import BurstExecutor
from nnhal.hal.request import Control, Request, Timing
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import timing_to_wire
from nnhal.ipc.service import burst as subject
from nnhal.ipc.service.burst import ServiceBurst
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.packets import pack, unpack
from tests.ipc.alone import Service, Watched, WatchedPrepared, came
from tests.ipc.support import LIMIT, numbers, wait_until
from tests.runtime.devices import failing

PATIENCE = int(LIMIT * 1e9)
EXECUTE = wire.ExecuteSynchronously(V1_3, 2)


class Opened:
    """A burst of the model 1, and the client's queues. asked: numbers of bindings that it asked for."""

    def __init__(self, service: Service, *, level: Level = V1_3, length: int = 64) -> None:
        self.service, self.asked = service, list[int]()
        fd = _native.create_queues(length, length)
        self.queues = _native.Queues(fd, _native.CLIENT)
        entry, claim = service.handler._exports.prepared(1), service.client.share.take(bursts=1)
        self.burst = ServiceBurst(entry, fd, self._binding, level, -1, claim)
        os.close(fd)
        self.burst.start()

    def _binding(self, number: int) -> Any:
        self.asked.append(number)
        return self.service.handler._executions.binding(number)

    def packet(self, packet: bytes) -> Any:
        answer = self.queues.exchange(packet, PATIENCE)
        assert not isinstance(answer, int), answer
        return wire.decode_reply(unpack(answer))

    def ask(self, call: wire.ClientCall) -> Any:
        return self.packet(pack(wire.encode(call)))

    def close(self) -> None:
        self.queues.close()
        ended()


def ended() -> None:
    """All listeners have ended."""
    for thread in threading.enumerate():
        if thread.name == "nnhal-burst":
            thread.join(LIMIT)


@pytest.fixture
def service() -> Iterator[Service]:
    """One with a prepared model, 1, and a binding, 2."""
    made = Service()
    made.prepared()
    made.memory = made.bound()  # type: ignore[attr-defined]
    yield made
    made.handler.close()
    ended()


@pytest.fixture
def opened(service: Service) -> Iterator[Opened]:
    opened = Opened(service)
    yield opened
    opened.close()


def test_what_is_executed_is_acknowledged_told_or_an_error_and_the_next_one_is_right(
    service: Service, opened: Opened
) -> None:
    memory = service.memory  # type: ignore[attr-defined]
    for n in range(3):
        memory.bytes()[:16] = numbers(start=n).view(np.uint8)
        assert opened.ask(EXECUTE) == wire.DONE
        assert np.array_equal(memory.view(16, 16, np.float32), 2 * numbers(start=n))
        measured = opened.ask(wire.ExecuteSynchronously(V1_3, 2, True))
        assert measured == wire.ExecutedReply(((4,),), (True,), timing_to_wire(Timing(10, 20)))
        service.driver.fails = OperationFailed("no")
        failed = opened.ask(EXECUTE)
        assert (failed.kind, failed.message) == ("OperationFailed", "device watched: no")
        service.driver.fails = None
    plain, measured = service.driver.controls[:2]
    assert (plain.measure, measured.measure) == (False, True)
    assert (plain.deadline, plain.loop_timeout) == (None, 2_000_000_000)


def test_a_packet_that_comes_again_is_not_decoded_again_and_one_that_was_refused_is(opened: Opened) -> None:
    other = wire.ExecuteSynchronously(V1_3, 2, True)
    for call in (EXECUTE, EXECUTE, EXECUTE, other, other, EXECUTE):
        assert not isinstance(opened.ask(call), wire.Failed)
    assert opened.asked == [2, 2, 2]
    for _ in range(2):
        assert "binding 9 is not held" in opened.ask(wire.ExecuteSynchronously(V1_3, 9)).message
    assert opened.asked[3:] == [9, 9]


REFUSED = {
    "deadline": (wire.ExecuteSynchronously(V1_3, 2, False, 5), "must be an execution without limits"),
    "loop": (wire.ExecuteSynchronously(V1_3, 2, False, 0, 5), "must be an execution without limits"),
    "query": (wire.GetStatus(), "burst packet: is GetStatus, must be an execution without limits"),
    "form": (wire.ExecuteSynchronously(2, 2), "burst packet: executeSynchronously: HAL version is 2, must be one of"),
    "model": (wire.ExecuteSynchronously(V1_3, 5), "binding 5 belongs to another model, must belong to the burst's"),
    "provides": (wire.ExecuteSynchronously(V1_3, 6), "an output has no memory, must have one; use a plain execution"),
    "object": (wire.ExecuteSynchronously(V1_3, 1), "binding 1 is not held"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_packet_may_not_carry_is_refused_and_the_burst_goes_on(
    service: Service, opened: Opened, what: str
) -> None:
    service.prepared(4)
    kept = [service.bound(5, prepared=4), service.bound(6, provided=True)]
    call, says = REFUSED[what]
    for _ in range(2):
        reply = opened.ask(call)
        assert isinstance(reply, wire.Failed) and reply.kind == "InvalidArgument" and says in reply.message
        assert opened.ask(EXECUTE) == wire.DONE
    garbage = pack(b"\xc0")
    assert opened.packet(garbage).kind == "InvalidArgument" and len(kept) == 2
    whole = pack(wire.encode(EXECUTE))
    cut = whole[:8] + (2**31).to_bytes(4, "little") + whole[12:]
    assert "bytes are announced" in opened.packet(cut).message
    assert opened.ask(EXECUTE) == wire.DONE


def test_forms_after_the_services_level_are_refused(service: Service) -> None:
    opened = Opened(service, level=V1_2)
    assert "executeSynchronously_1_3 requires HAL version 1.3, the service has 1.2" in opened.ask(EXECUTE).message
    assert opened.ask(wire.ExecuteSynchronously(V1_2, 2)) == wire.DONE
    opened.close()


def test_a_burst_of_a_released_model_refuses_also_where_its_packet_came_just_before(
    service: Service, opened: Opened
) -> None:
    assert opened.ask(EXECUTE) == wire.DONE
    service.call(wire.Release((1,)))
    for _ in range(2):
        assert opened.ask(EXECUTE).message == "prepared model: was released"
    assert service.driver.closed == 0  # the burst holds it
    opened.close()
    assert service.driver.closed == 1


def test_a_result_that_the_queue_has_no_room_for_is_an_error_that_says_so(service: Service) -> None:
    opened = Opened(service, length=8)
    service.driver.fails = OperationFailed("x" * 1000)
    for _ in range(2):
        assert opened.ask(EXECUTE).message == "burst: the result does not fit the queue"
    service.driver.fails = None
    assert opened.ask(EXECUTE) == wire.DONE
    opened.close()


def test_a_burst_that_is_closed_ends_what_runs_and_gives_all_back(service: Service) -> None:
    service.mark()
    opened, inside, seen = Opened(service), threading.Event(), list[bool]()
    assert service.more() == service.cost(bursts=1)

    def run(_: WatchedPrepared, request: Request, control: Control) -> Timing | None:
        inside.set()
        assert control.cancelled is not None
        seen.append(control.cancelled.wait(LIMIT))
        return None

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(opened.burst, "_run", lambda request, control: run(None, request, control))  # type: ignore[arg-type]
        assert opened.queues.send(pack(wire.encode(EXECUTE))) == 0
        assert inside.wait(LIMIT)
        opened.burst.close()
        ended()
    assert seen == [True] and service.more() == {}
    assert opened.queues.receive(PATIENCE) == _native.CLOSED


def test_queues_that_are_tampered_with_or_closed_end_the_burst(service: Service) -> None:
    service.mark()
    for _ in range(2):
        opened = Opened(service)
        assert opened.ask(EXECUTE) == wire.DONE
        opened.queues.close()
        ended()
        assert service.more() == {}


def test_what_is_no_memory_of_queues_is_refused(service: Service) -> None:
    entry = service.handler._exports.prepared(1)
    fd = os.memfd_create("test")
    with pytest.raises(InvalidArgument, match="burst: "):
        ServiceBurst(entry, fd, service.handler._executions.binding, V1_3, -1, service.client.share.take(bursts=1))
    os.close(fd)
    assert not entry._users


def test_a_driver_that_does_not_open_a_burst_has_none(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = service.handler._exports.prepared(1)

    monkeypatch.setattr(WatchedPrepared, "burst_opened", failing(OperationFailed("no bursts today")))
    fd = _native.create_queues(16, 16)
    with pytest.raises(OperationFailed, match="no bursts today"):
        ServiceBurst(entry, fd, service.handler._executions.binding, V1_3, -1, service.client.share.take(bursts=1))
    os.close(fd)
    assert not entry._users


@pytest.mark.parametrize(("level", "says"), [(V1_2, "requires HAL version 1.3, the service has 1.2"), (FL8, "")])
def test_a_burst_takes_the_forms_of_its_device(level: Level, says: str) -> None:
    driver = Watched()
    driver.level = level
    service = Service(driver)
    service.prepared()
    service.bound()
    fd = _native.create_queues(64, 64)
    queues = _native.Queues(fd, _native.CLIENT)
    assert service.call(wire.ConfigureExecutionBurst(3, 1), came(fd)) is wire.DONE
    answer = queues.exchange(pack(wire.encode(EXECUTE)), PATIENCE)
    assert isinstance(answer, bytes)
    reply = wire.decode_reply(unpack(answer))
    assert says in reply.message if isinstance(reply, wire.Failed) else not says and reply == wire.DONE
    service.handler.close()
    ended()


class Noted:
    """Queues that note what is called of them."""

    def __init__(self, queues: _native.Queues) -> None:
        self._queues, self.called = queues, list[str]()

    def __getattr__(self, name: str) -> Any:
        self.called.append(name)
        return getattr(self._queues, name)


def test_a_listener_holds_its_side_until_it_has_closed_it(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the client hears of its end however that comes."""
    noted: list[Noted] = []
    start = ServiceBurst.start

    def started(burst: ServiceBurst) -> None:
        noted.append(Noted(burst._queues))
        burst._queues = noted[0]  # type: ignore[assignment]
        start(burst)
        assert "hold" in noted[0].called  # before anybody is told that there is a burst

    monkeypatch.setattr(ServiceBurst, "start", started)
    opened = Opened(service)
    assert opened.ask(EXECUTE) == wire.DONE
    opened.close()
    assert noted[0].called == ["hold", "receive", "send", "receive", "close", "drop"]


def test_a_listener_that_is_slow_to_begin_is_waited_for_and_one_that_does_not_is_not(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = threading.Semaphore(0)

    class Looked(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            looks.release()
            return super().wait(timeout)

    listen = ServiceBurst._listen

    def slow(burst: ServiceBurst) -> None:
        for _ in range(3):
            assert looks.acquire(timeout=LIMIT)
        listen(burst)

    start = ServiceBurst.start

    def started(burst: ServiceBurst) -> None:
        burst._held = Looked()
        start(burst)

    monkeypatch.setattr(subject, "_LOOK", 0.001)
    monkeypatch.setattr(ServiceBurst, "start", started)
    with monkeypatch.context() as patched:
        patched.setattr(ServiceBurst, "_listen", slow)
        opened = Opened(service)
        assert opened.ask(EXECUTE) == wire.DONE
        opened.close()
    monkeypatch.setattr(ServiceBurst, "_listen", lambda _: None)  # as a thread without memory ends
    service.mark()
    with pytest.raises(ResourceExhausted, match="burst: no thread is available; close some bursts"):
        Opened(service)
    assert service.more() == {}


# --------------------------------------------------------------------------------------------------------------- slots


class Own(BurstExecutor):
    """Notes what it is told. ran: the slots of each execution."""

    def __init__(self, run: Callable[[Request, Control], Timing | None]) -> None:
        self._run = run
        self.memories: dict[int, Memory] = {}
        self.told: list[tuple[str, int]] = []
        self.ran: list[tuple[int, ...]] = []

    def add(self, slot: int, memory: Memory) -> None:
        self.told.append(("add", slot))
        self.memories[slot] = memory

    def remove(self, slot: int) -> None:
        self.told.append(("remove", slot))
        del self.memories[slot]

    def execute(self, request: Request, slots: Sequence[int], control: Control) -> Timing | None:
        self.ran.append(tuple(slots))
        return self._run(request, control)


def test_memories_have_slots_from_their_first_use_to_the_end_of_the_last_binding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Own] = []

    def executor(self: WatchedPrepared) -> Own:
        made.append(Own(self.run))
        return made[-1]

    monkeypatch.setattr(WatchedPrepared, "burst_executor", executor, raising=False)
    service = Service(Watched())
    service.prepared()
    one, two = Memory.allocate(32), Memory.allocate(32)
    for number, memory in ((2, one), (3, one), (4, two)):
        service.bound(number, memory)
    opened = Opened(service)
    (own,) = made
    for number in (2, 3, 4, 2, 4):
        one.bytes()[:16] = two.bytes()[:16] = numbers(start=number).view(np.uint8)
        assert opened.ask(wire.ExecuteSynchronously(V1_3, number)) == wire.DONE
        assert np.array_equal((two if number == 4 else one).view(16, 16, np.float32), 2 * numbers(start=number))
    assert own.ran == [(1,), (1,), (2,), (1,), (2,)] and own.told == [("add", 1), ("add", 2)]
    assert [bytes(own.memories[slot].bytes()) for slot in (1, 2)] == [bytes(m.bytes()) for m in (one, two)]
    for number, removed in ((2, []), (3, [("remove", 1)])):
        service.call(wire.Release((number,)))
        gc.collect()
        assert opened.ask(wire.ExecuteSynchronously(V1_3, 4)) == wire.DONE
        assert own.told[2:] == removed
    service.bound(5, Memory.allocate(32))
    assert opened.ask(wire.ExecuteSynchronously(V1_3, 5)) == wire.DONE
    assert own.told[3:] == [("add", 3)] and own.ran[-1] == (3,)
    opened.close()
    assert sorted(own.told[4:]) == [("remove", 2), ("remove", 3)] and not own.memories
    service.handler.close()
    wait_until(lambda: service.used() == service.first, "all is given back")
