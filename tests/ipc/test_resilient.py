"""A device that comes back after a death, with services in this process: health, pauses, models and bursts made again."""

import errno
import gc
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import DeviceStatus, DeviceType
from nnhal.base.errors import Closed, DeadObject, DeviceUnavailable, NnhalError, ResourceExhausted
from nnhal.base.levels import FL8, V1_0, V1_2
from nnhal.base.memory import Memory
from nnhal.hal.cache.files import CacheFiles
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Capabilities, Hints
from nnhal.hal.memory import BufferDesc, BufferRole, MemoryUse
from nnhal.hal.request import UNLIMITED, Control
from nnhal.ipc.client import process as subject
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.process import ProcessHealth, ReconnectingDevice, ReconnectingModel, start
from nnhal.ipc.client.session import Session
from nnhal.ipc.service.connection import Loaded, serve_one
from nnhal.ipc.transport.channel import NoProtocol
from tests.ipc.alone import Watched
from tests.ipc.support import LIMIT, a_table, numbers, request_for, run, wait_until
from tests.models import doubling
from tests.runtime.devices import failing
from tests.waiting import Clock

SECOND = 1_000_000_000
MINUTE = 60 * SECOND


# -------------------------------------------------------------------------------------------------------------- health


def deaths(*seconds: float) -> tuple[ProcessHealth, Clock]:
    """The health of a process that died so many seconds after the start, now at the last of them."""
    clock = Clock()
    health, begin = ProcessHealth("x", clock), clock.ns
    for n, after in enumerate(seconds):
        clock.ns = begin + int(after * SECOND)
        health.died(f"death {n}")
    return health, clock


def test_three_deaths_within_a_minute_are_a_quarantine_of_a_minute() -> None:
    """docs/contributing/ipc.md says so, to the nanosecond."""
    for span, quarantined in ((0, True), (60, True), (60 + 1e-9, False), (90, False)):
        health, clock = deaths(0, span / 2, span)
        assert health.quarantined_ns == (MINUTE if quarantined else 0)
        clock.ns += MINUTE - 1
        assert health.quarantined_ns == (1 if quarantined else 0)
        clock.ns += 1
        assert health.quarantined_ns == 0
        clock.ns += 1
        assert health.quarantined_ns == 0
        health.check()
    assert deaths(0, 1)[0].quarantined_ns == 0
    health, _ = deaths(0, 61, 62, 63)  # the last three count
    assert health.quarantined_ns == MINUTE
    with pytest.raises(
        DeviceUnavailable,
        match=r"device x: is quarantined for 60 s more: its process died 3 times within 2\.0 s, the last time: death 3",
    ):
        health.check()


def test_deaths_that_the_process_did_not_cause_delay_its_start_and_are_no_quarantine() -> None:
    clock = Clock()
    health = ProcessHealth("x", clock)
    pauses = []
    for number in range(8):
        health.died(f"death {number}", fault=number in (3, 5))
        pauses.append(health.pause_ns() // 1_000_000)
        health.check()
    assert pauses == [20, 40, 80, 160, 320, 640, 1000, 1000] and health.total == 8
    health.died("death 8")
    health.died("death 9", fault=False)
    with pytest.raises(DeviceUnavailable, match=r"died 3 times within 0\.0 s, the last time: death 8"):
        health.check()


def test_pauses_are_20_ms_and_double_up_to_a_second_and_are_counted_from_the_death() -> None:
    milliseconds = 1_000_000
    assert ProcessHealth("x", Clock()).pause_ns() == 0
    for count, pause in ((1, 20), (2, 40), (3, 80)):
        health, clock = deaths(*[n / 10 for n in range(count)])
        assert health.pause_ns() == pause * milliseconds
        clock.ns += 5 * milliseconds
        assert health.pause_ns() == (pause - 5) * milliseconds
        clock.ns += pause * milliseconds
        assert health.pause_ns() == 0
    many, clock = deaths(0)
    many.deaths = many.deaths.__class__([(clock.ns, "")] * 9, maxlen=9)
    assert many.pause_ns() == 1000 * milliseconds
    health, clock = deaths(0, 30)
    clock.ns += 30 * SECOND - 1
    assert len(health.deaths) == 2 and health.pause_ns() == 0
    health, clock = deaths(0, 60)  # a minute is no longer recent
    assert health.pause_ns() == 20 * milliseconds
    clock.ns += MINUTE
    assert health.pause_ns() == 0 and not health.deaths and health.total == 2


def test_health_is_told_in_words() -> None:
    health, clock = deaths()
    assert str(health) == "never died"
    health, clock = deaths(0)
    assert str(health) == "died 1 times, in use; last: death 0"
    health, clock = deaths(0, 1, 2)
    assert str(health) == "died 3 times, quarantined for 60 s; last: death 2"
    clock.ns += 2 * MINUTE
    health.pause_ns()
    assert str(health) == "died 3 times, in use; last: some time ago"


# --------------------------------------------------------------------------------------------------------------- start


def test_a_process_is_started_as_a_module_with_its_socket_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def process(driver: str, command: list[str], pass_fds: tuple[int, ...], environment: dict[str, str] | None) -> Any:
        seen.append((driver, command, pass_fds))
        given.append(environment)
        raise OSError("no more processes")

    given: list[dict[str, str] | None] = []
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("ANOTHER", "1")
    monkeypatch.setenv("NNHAL_ENVIRONMENT", "ANOTHER,NONE")

    monkeypatch.setattr(subject, "DriverProcess", process)
    for named, words in (
        ({}, []),
        ({"level": "1.1", "options": ["--threads", "2"]}, ["--threads", "2", "--level", "1.1"]),
        ({"options": ["--unconfined"]}, ["--unconfined"]),
    ):
        with pytest.raises(DeviceUnavailable, match="device mine: cannot start its process: no more processes"):
            start("mine", **named)  # type: ignore[arg-type]
        driver, command, (fd,) = seen.pop()
        assert driver == "mine"
        assert command == [sys.executable, "-P", "-m", "nnhal.serve", "mine", "--fd", str(fd), *words]
    confined, _, unconfined = given
    assert confined is not None and unconfined is None
    assert confined == {name: os.environ[name] for name in confined} and "SECRET_TOKEN" not in confined
    assert {"PATH", "ANOTHER", "NNHAL_ENVIRONMENT"} <= confined.keys()


@pytest.mark.parametrize("lacks", ["socket.socketpair", "os.pipe2"])
def test_a_client_without_descriptors_says_that_it_lacks_them(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the client lacks is no fact about the device."""

    monkeypatch.setattr(lacks, failing(OSError(errno.EMFILE, "Too many open files")))
    with pytest.raises(ResourceExhausted, match="device mine: cannot start its process: Too many open files"):
        start("mine")


# -------------------------------------------------------------------------------------------------------------- device


class Connect:
    """Connects to a driver that is served here. sessions: all that there were. refuses: what the next ones raise."""

    def __init__(self, driver: Any = None) -> None:
        self.driver: Any = driver or Watched()
        self.sessions: list[Session] = []
        self.threads: list[threading.Thread] = []
        self.refuses: NnhalError | None = None
        self.loaded = Loaded("/here/npu.py", b"1")

    def __call__(self) -> Session:
        if self.refuses is not None:
            raise self.refuses
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = self.driver, theirs, {"seccomp": "applied"}, a_table(), self.loaded
        self.threads.append(threading.Thread(target=serve_one, args=given))
        self.threads[-1].start()
        self.sessions.append(Session(ours, f"here {len(self.sessions)}"))
        return self.sessions[-1]

    def kill(self) -> None:
        """The service dies, and nobody knows why."""
        self.sessions[-1].peer.give_up("killed")

    def break_the_protocol(self) -> None:
        """The service answers with what is no answer, which ends it."""
        self.sessions[-1].peer.died(NoProtocol("killed"))

    def end(self) -> None:
        for session in self.sessions:
            session.close()
        for thread in self.threads:
            thread.join(LIMIT)
            assert not thread.is_alive()


@pytest.fixture
def connect() -> Iterator[Connect]:
    connect = Connect()
    yield connect
    connect.end()


@pytest.fixture
def device(connect: Connect) -> Iterator[ReconnectingDevice]:
    device = ReconnectingDevice("mine", connect)
    device.health.clock = Clock()
    yield device
    device.close()


def ready(device: ReconnectingDevice) -> None:
    """The pause after a death has passed."""
    assert isinstance(device.health.clock, Clock)
    device.health.clock.ns += SECOND


def dies(device: ReconnectingDevice, connect: Connect) -> None:
    """The service dies, and the pause after its death has passed."""
    connect.kill()
    ready(device)


def test_a_device_is_what_its_driver_says(device: ReconnectingDevice, connect: Connect) -> None:
    driver = connect.driver
    assert (device.name, device.version, device.type, device.level) == ("mine", "7", DeviceType.ACCELERATOR, FL8)
    assert (tuple(device.extensions), tuple(device.relaxations)) == (
        tuple(driver.extensions),
        tuple(driver.relaxations),
    )
    assert device.preferred_layout == "nchw" and device.confinement == {"seccomp": "applied"}
    assert device.isolated is False and device.is_unusable is False and device.restarts == 0
    assert device.pid == connect.sessions[0].welcome.pid and device.calls is connect.sessions[0].calls
    assert device.status() == DeviceStatus.BUSY and device.capabilities() == driver.capabilities()
    assert [v.reason for v in device.supports(doubling())] == ["said"]
    assert consider_support(device, doubling(), Hints()).hints(Hints()).worked_out is not None
    assert device.remote() is device.remote()


def test_after_a_death_the_next_use_connects_again_and_waits_for_the_pause(
    device: ReconnectingDevice, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(subject.time, "sleep", slept.append)
    connect.kill()
    assert device.health.total == 1 and "killed" in str(device.health)
    assert device.status() == DeviceStatus.BUSY
    assert device.restarts == 1 and len(connect.sessions) == 2 and slept == [0.02]
    assert device.remote().session is connect.sessions[1]
    assert device.capabilities() is not None and len(connect.sessions) == 2


def test_two_who_come_after_a_death_connect_once(device: ReconnectingDevice, connect: Connect) -> None:
    dies(device, connect)
    with ThreadPoolExecutor(4) as pool:
        found = [f.result(LIMIT) for f in [pool.submit(device.remote) for _ in range(4)]]
    assert len({id(each) for each in found}) == 1 and device.restarts == 1 and len(connect.sessions) == 2


def test_a_closed_connection_is_no_death(device: ReconnectingDevice, connect: Connect) -> None:
    connect.sessions[0].end()
    assert device.health.total == 0


@pytest.mark.parametrize("fault", ["exit", ""])
def test_a_process_that_ends_before_it_serves_has_died_once_more_and_a_client_that_starts_none_has_not(
    connect: Connect, fault: Any
) -> None:
    connect.refuses = DeviceUnavailable("no such accelerator")
    connect.refuses.driver_fault = fault
    with pytest.raises(DeviceUnavailable, match="no such accelerator"):
        ReconnectingDevice("mine", connect)
    connect.refuses = None
    device = ReconnectingDevice("mine", connect)
    device.health.clock = Clock()
    dies(device, connect)
    connect.refuses = DeviceUnavailable("no such accelerator")
    connect.refuses.driver_fault = fault
    with pytest.raises(DeviceUnavailable, match="no such accelerator"):
        device.status()
    assert device.health.total == (2 if fault else 1)
    connect.refuses = None
    ready(device)
    assert device.status() == DeviceStatus.BUSY and device.restarts == 1
    device.close()


def test_a_driver_that_answers_nonsense_leaves_no_session(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteDevice, "__init__", failing(ValueError("nonsense")))
    with pytest.raises(ValueError, match="nonsense"):
        ReconnectingDevice("mine", connect)
    assert isinstance(connect.sessions[0].peer.dead, Closed)


@pytest.mark.parametrize(
    ("what", "other", "says"),
    [
        ("name", "null", "name is 'null', was 'watched'"),
        ("version", "8", "version is '8', was '7'"),
        ("type", DeviceType.CPU, "type is CPU, was ACCELERATOR"),
        ("level", V1_2, f"level is 1.2, was {FL8}"),
        ("extensions", ("com.other",), r"extensions is \['com.other'\], was "),
        ("relaxations", ("float16",), r"relaxations is \['float16'\], was \[\]"),
        ("preferred_layout", "nhwc", "preferred layout is 'nhwc', was 'nchw'"),
        ("capabilities", lambda _: Capabilities.uniform(0.5), "other capabilities"),
        ("number_of_cache_files", lambda _: CacheFiles(2, 1), r"its cache files are \(2, 1\), were \(0, 0\)"),
        ("origin", "/elsewhere/npu.py", "origin is '/elsewhere/npu.py', was '/here/npu.py'"),
        ("code", b"2", "other code"),
    ],
)
def test_another_device_in_the_place_of_one_that_died_is_refused_for_good(
    device: ReconnectingDevice, connect: Connect, what: str, other: Any, says: str
) -> None:
    """Whatever it says otherwise; a model that was prepared before is not prepared on it."""
    prepared = checked_prepared(device, doubling(), Hints()).inner
    assert device.number_of_cache_files() == CacheFiles()
    if what in Loaded._fields:
        connect.loaded = connect.loaded._replace(**{what: other})
    connect.driver = type("Other", (Watched,), {what: other})()
    dies(device, connect)
    refusal = f"device mine: another device came back in its place: {says}.*; compile again"
    with pytest.raises(DeviceUnavailable, match=refusal):
        run(prepared, numbers())
    assert connect.sessions[1].peer.dead is not None and device.restarts == 0 and not connect.driver.models
    assert device.is_unusable  # who asks for it by its name gets a new one
    with pytest.raises(DeviceUnavailable, match=refusal):
        device.status()
    assert len(connect.sessions) == 2 and device.health.total == 1


def test_a_device_whose_names_come_back_in_another_order_is_the_same() -> None:
    connect = Connect(Watched())
    connect.driver.relaxations = ("float16", "infinities")
    device = ReconnectingDevice("mine", connect)
    connect.driver = Watched()
    connect.driver.relaxations = ("infinities", "float16")
    connect.kill()
    assert device.status() == DeviceStatus.BUSY and device.restarts == 1
    device.close()
    connect.end()


def test_a_closed_device_is_closed_and_does_not_come_back(device: ReconnectingDevice, connect: Connect) -> None:
    device.close()
    assert device.is_unusable and isinstance(connect.sessions[0].peer.dead, Closed)
    with pytest.raises(Closed, match="device mine: was closed"):
        device.status()
    assert len(connect.sessions) == 1 and device.health.total == 0


def test_a_device_that_is_closed_while_it_connects_again_is_closed(
    device: ReconnectingDevice, connect: Connect
) -> None:
    dies(device, connect)
    fresh = device._connect

    def closing() -> Session:
        session = fresh()
        device._closed = True
        return session

    device._connect = closing
    with pytest.raises(Closed, match="device mine: was closed"):
        device.status()
    assert isinstance(connect.sessions[1].peer.dead, Closed) and device.restarts == 0


def test_a_device_of_the_process_that_this_one_was_forked_from_does_not_connect(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "_resilient", weakref.WeakSet())  # those of other tests are not forked
    device = ReconnectingDevice("mine", connect)
    connect.kill()
    lock = device._lock
    subject._after_fork()
    assert device.is_unusable and device._lock is not lock
    with pytest.raises(DeadObject, match="killed"):
        device.status()
    assert len(connect.sessions) == 1
    device.close()


def test_a_device_in_quarantine_is_offline(device: ReconnectingDevice, connect: Connect) -> None:
    for _ in range(3):
        assert device.status() == DeviceStatus.BUSY
        dies(device, connect)
        assert device.status() == DeviceStatus.BUSY
        connect.break_the_protocol()
        ready(device)
    assert device.status() == DeviceStatus.OFFLINE and len(connect.sessions) == 6
    with pytest.raises(DeviceUnavailable, match="device mine: is quarantined for 59 s more"):
        device.supports(doubling())
    assert isinstance(device.health.clock, Clock)
    device.health.clock.ns += MINUTE
    assert device.status() == DeviceStatus.BUSY and len(connect.sessions) == 7


def test_a_device_that_nobody_holds_ends_its_last_connection(connect: Connect) -> None:
    device = ReconnectingDevice("mine", connect)
    connect.kill()
    assert device.status() == DeviceStatus.BUSY
    weak = weakref.ref(device)
    del device
    gc.collect()
    assert weak() is None and isinstance(connect.sessions[1].peer.dead, Closed)


# -------------------------------------------------------------------------------------------------------------- models


def test_a_model_is_prepared_again_once_without_the_deadline_and_what_was_worked_out(
    device: ReconnectingDevice, connect: Connect
) -> None:
    model, deadline = doubling(), time.monotonic_ns() + int(LIMIT * SECOND)
    claims = consider_support(device, model, Hints(deadline=deadline, options={"a": 1}))
    hints = claims.hints(Hints(deadline=deadline, options={"a": 1}))
    prepared = device.prepare(model, hints)
    assert isinstance(prepared, ReconnectingModel) and prepared.timely and prepared.prepared_again == 0
    assert connect.driver.hints[-1].worked_out is not None
    first = prepared.remote
    assert prepared.alive and prepared.remote is first and prepared.model is model
    dies(device, connect)
    assert not prepared.alive
    assert np.array_equal(run(prepared, numbers()), 2 * numbers())
    assert prepared.prepared_again == 1 and prepared.alive and prepared.remote is not first
    again = connect.driver.hints[-1]
    assert (again.deadline, again.worked_out, again.options) == (None, None, {"a": 1})
    assert np.array_equal(run(prepared, numbers()), 2 * numbers()) and prepared.prepared_again == 1


def test_options_that_changed_hold_for_the_model_that_takes_its_place(
    device: ReconnectingDevice, connect: Connect
) -> None:
    connect.driver.changes = ("speed",)
    prepared = checked_prepared(device, doubling(), Hints(options={"speed": 1}))
    assert prepared.changeable == ("speed",) and prepared.memory() == MemoryUse(1, 2, 3, 4)
    prepared.reconfigure({"speed": 2})
    assert connect.driver.options == [{"speed": 2}]
    dies(device, connect)
    assert prepared.memory() == MemoryUse(1, 2, 3, 4)
    assert connect.driver.hints[-1].options == {"speed": 2}


@pytest.mark.parametrize("way", ["run", "execute", "fenced"])
def test_each_way_to_execute_finds_the_living_process(device: ReconnectingDevice, connect: Connect, way: str) -> None:
    prepared = checked_prepared(device, doubling(), Hints()).inner
    for round_ in range(2):
        request = request_for(prepared, numbers())
        if way == "run":
            request.execute(prepared.run, UNLIMITED)
        elif way == "execute":
            done = threading.Event()
            prepared.execute(request, UNLIMITED, lambda error, _, done=done: done.set())  # type: ignore[misc]
            assert done.wait(LIMIT)
        else:
            execution = prepared.execute_fenced(request, UNLIMITED)
            if execution.fence is not None:
                execution.fence.wait(LIMIT)
            execution.get_execution_info()
        assert np.array_equal(request.results[0], 2 * numbers())
        if not round_:
            dies(device, connect)
    assert device.restarts == 1


def test_a_model_is_let_go_of_in_its_process(device: ReconnectingDevice, connect: Connect) -> None:
    first, second = (device.prepare(doubling(), Hints()) for _ in range(2))
    first.close()
    wait_until(lambda: connect.driver.closed == 1, "it is closed")
    second.end()
    assert connect.driver.closed == 2


def test_a_buffer_lives_in_the_process_that_made_it(device: ReconnectingDevice, connect: Connect) -> None:
    prepared = checked_prepared(device, doubling(), Hints()).inner
    buffer = device.allocate(BufferDesc((4,)), [BufferRole(prepared, 0)])
    buffer.copy_from(Memory.from_array(numbers().view(np.uint8)), (4,))
    assert buffer.shape == (4,)
    dies(device, connect)
    with pytest.raises(DeadObject, match="killed"):
        _ = buffer.shape
    buffer.close()


def test_buffers_and_results_behind_fences_are_what_a_slow_process_is_kept_for(
    device: ReconnectingDevice, connect: Connect
) -> None:
    prepared, session = checked_prepared(device, doubling(), Hints()).inner, connect.sessions[0]
    run(prepared, numbers())
    assert not session.peer._has_others()
    buffer = device.allocate(BufferDesc((4,)), [BufferRole(prepared, 0)])
    assert session.peer._has_others()
    buffer.close()
    assert not session.peer._has_others()
    request = request_for(prepared, numbers())
    execution = prepared.execute_fenced(request, UNLIMITED)
    assert execution.fence is not None
    execution.fence.wait(LIMIT)
    assert session.peer._has_others()
    execution.get_execution_info()
    assert not session.peer._has_others() and np.array_equal(request.results[0], 2 * numbers())


# -------------------------------------------------------------------------------------------------------------- bursts


def by(burst: Any, prepared: Any, control: Control = UNLIMITED) -> bool:
    """Execute by a burst; whether the result is right."""
    request = request_for(prepared, numbers())
    request.execute(burst.run, control)
    return bool(np.array_equal(request.results[0], 2 * numbers()))


def test_a_burst_is_opened_again_after_a_death_or_the_end_of_its_queues(
    device: ReconnectingDevice, connect: Connect
) -> None:
    prepared = checked_prepared(device, doubling(), Hints()).inner
    burst = prepared.burst()
    first = burst._inner  # type: ignore[attr-defined]
    assert by(burst, prepared) and by(burst, prepared) and burst._inner is first  # type: ignore[attr-defined]
    assert burst.stats()["packets"] == 2 and not burst.plain  # type: ignore[attr-defined]
    assert by(burst, prepared, Control(deadline=time.monotonic_ns() + int(LIMIT * SECOND)))
    assert dict(burst.plain) == {"it has a deadline": 1}  # type: ignore[attr-defined]
    first.session_died()
    assert by(burst, prepared) and burst._inner is not first and first._closed  # type: ignore[attr-defined]
    dies(device, connect)
    assert by(burst, prepared) and device.restarts == 1
    assert burst._target is prepared.remote  # type: ignore[attr-defined]
    burst.free_memory(Memory.allocate(8))
    burst.close()
    assert burst._inner._closed  # type: ignore[attr-defined]
    with pytest.raises(Closed, match="burst: used after close"):
        by(burst, prepared)
    connect.kill()
    with pytest.raises((Closed, DeadObject)):
        by(burst, prepared)
    assert device.restarts == 1


def test_before_1_2_a_burst_has_no_queues(connect: Connect) -> None:
    connect.driver.level = V1_0
    device = ReconnectingDevice("mine", connect)
    prepared = checked_prepared(device, doubling(), Hints()).inner
    with prepared.burst() as burst:
        assert by(burst, prepared) and burst.stats() == {}  # type: ignore[attr-defined]
    device.close()
    assert device.level == V1_0
