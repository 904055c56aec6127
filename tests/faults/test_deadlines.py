"""Quality of service through the whole of nnhal, on a device that is slowed on purpose. Item 51 of the faults, and what a
client leaves in a queue when it dies. What `deadlines` measures, in real time, is for the nightly run."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base import time as base_time
from nnhal.base.errors import MissedDeadline, NnhalError
from nnhal.base.levels import Level
from nnhal.hal import queue, request
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints
from nnhal.hal.queue import sustained
from nnhal.hal.request import UNLIMITED, Control
from nnhal.runtime import discovery, isolation
from tests.faults import deadlines as measure
from tests.faults.deadlines import DRIVER, SERVICE, X, compiled, device
from tests.faults.drivers.slowed import Slowed, device_of
from tests.faults.support import service
from tests.ipc.support import LIMIT, run, served_here, wait_until
from tests.models import doubling
from tests.waiting import Clock, together


@pytest.fixture
def slowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """It, in this process."""
    monkeypatch.setattr(discovery, "_registered", {})
    with device("none") as how:
        yield how


def the_device() -> Any:
    return isolation.select(["slowed"], "none")[0]


@pytest.mark.nightly
@pytest.mark.parametrize("way", measure.WAYS)
def test_executions_with_deadlines_give_a_result_or_say_in_time_that_they_missed_it(way: str) -> None:
    with device(way) as how:
        found = measure.deadlines(how, 200)
    assert found["results"] + found["transient"] + found["persistent"] == 200 and not found["wrong"]
    assert found["results"] > 20 and found["refused_at_once"] > 5
    assert found["p99_late_ms"] < 500


@pytest.mark.nightly
@pytest.mark.parametrize("way", measure.WAYS)
def test_an_execution_of_high_waits_for_one_of_a_flood_of_low_and_not_for_all(way: str) -> None:
    with device(way) as how:
        found = measure.priority(how, 15, ms=10, flood=40)
    assert found["median"] < 6  # in order of arrival it would be 41


@pytest.mark.nightly
def test_two_client_processes_have_equal_shares_though_executions_of_one_take_ten_times_as_long() -> None:
    assert all(0.3 < share < 0.7 for share in measure.shares([(20, 2), (2, 2)], 2))


@pytest.mark.nightly
def test_one_thread_keeps_its_share_beside_sixty_four_of_another_process() -> None:
    assert all(0.3 < share < 0.7 for share in measure.shares([(10, 1), (10, 64)], 2))


@pytest.mark.nightly
def test_who_floods_with_low_is_overtaken_by_its_own_high_and_takes_nothing_of_anothers_share() -> None:
    """51: in a shared service; the other client is a process that executes all the time."""
    command = [sys.executable, "-m", "tests.faults.deadlines", "--client", SERVICE, "10", "2", "2"]
    with (
        service(str(DRIVER), SERVICE),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
    ):
        assert other.stdout is not None
        how = {"devices": [SERVICE]}
        try:
            assert other.stdout.readline() == "ready\n"
            spent: list[dict[str, Any]] = []
            mine = threading.Thread(target=lambda: spent.append(measure.priority(how, 30, ms=10, flood=40)))
            mine.start()
            had = json.loads(other.communicate("go\n", timeout=LIMIT)[0])
            mine.join(LIMIT)
            assert 60 < had < 140  # of 200 that there is room for
            assert spent[0]["median"] < 8  # half of what it has alone
        finally:
            other.kill()
            isolation.close_all()


@pytest.mark.nightly
@pytest.mark.parametrize("how_it_ends", ["killed", "hung up"])
def test_a_client_that_dies_leaves_nothing_in_the_queue(how_it_ends: str) -> None:
    """With one execution inside and sixty that wait: the next client does not wait for them."""
    command = [sys.executable, "-m", "tests.faults.deadlines", "--client", SERVICE, "50", "60", "60"]
    with service(str(DRIVER), SERVICE):
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None and client.stdin is not None
            assert client.stdout.readline() == "ready\n"
            client.stdin.write("go\n")
            client.stdin.flush()
            time.sleep(0.5)
            client.send_signal(signal.SIGKILL if how_it_ends == "killed" else signal.SIGTERM)
            client.wait(LIMIT)
        model = compiled({"devices": [SERVICE]}, 1)
        began = time.monotonic()
        assert np.array_equal(model(X), X + X)
        assert time.monotonic() - began < 1  # sixty would take three seconds
        model.close()
        isolation.close_all()


def test_every_way_to_execute_stands_in_the_same_queue(slowed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of HIGH that come last by any way run before those of LOW that came before them by any way."""
    low, high, made = compiled(slowed, 0, "low"), compiled(slowed, 0, "high"), the_device()
    ways: list[Callable[[nnhal.Compiled, np.ndarray], Any]] = [
        lambda model, x: model(x),
        lambda model, x: model.run(x, deadline=LIMIT),
        lambda model, x: model.submit(x).result(),
        lambda model, x: model.execute_fenced(x).result(),
        _in_a_burst,
        lambda model, x: model.stream()(x),
    ]
    made.gate.clear()
    first = threading.Thread(target=low, args=(X,))
    first.start()
    wait_until(lambda: made.inside == 1, "the first to run")
    threads = []
    for number, (model, way) in enumerate([(low, w) for w in ways] + [(high, w) for w in ways], 1):
        given = np.full(4, number, np.float32)
        threads.append(threading.Thread(target=way, args=(model, given)))
        threads[-1].start()
    wait_until(lambda: made._device_state.queues["run"].waiting() == len(threads), "all wait")
    made.gate.set()
    for thread in (first, *threads):
        thread.join(LIMIT)
    order = [int(x) for x in made.order]
    assert sorted(order[1:]) == list(range(1, 2 * len(ways) + 1))
    assert min(order[1 : len(ways) + 1]) > len(ways)
    assert made.most == 1


def _in_a_burst(model: nnhal.Compiled, x: np.ndarray) -> Any:
    with model.burst() as burst:
        return burst(x)


def test_what_is_prepared_waits_in_a_queue_of_its_own_high_first_and_until_its_deadline(slowed: dict[str, Any]) -> None:
    running, made = compiled(slowed, 0), the_device()
    width, waiting = made._device_state.queues["prepare"].width, made._device_state.queues["prepare"].waiting
    made.gate.clear()
    busy = threading.Thread(target=running, args=(X,))
    busy.start()  # executions are in another queue
    wait_until(lambda: made.inside == 1, "it runs")
    may_end = threading.Semaphore(0)
    made.prepare_gate = SimpleNamespace(wait=may_end.acquire)  # type: ignore[assignment]

    def prepare(priority: str, **wanted: Any) -> None:
        nnhal.compile(doubling(), **slowed, priority=priority, **wanted).close()

    threads = []
    for priority, count in (("low", width + 3), ("high", 2)):
        threads += [threading.Thread(target=prepare, args=(priority,)) for _ in range(count)]
        for thread in threads[-count:]:
            thread.start()
        wait_until(lambda threads=threads: waiting() == len(threads) - width, "all but some wait")
    with pytest.raises(MissedDeadline):
        prepare("low", deadline=0.2)
    may_end.release(2)
    wait_until(lambda: len(made.prepared) == 1 + width + 2, "the next two")
    assert made.prepared[1:] == ["LOW"] * width + ["HIGH"] * 2
    may_end.release(len(threads))
    for thread in threads:
        thread.join(LIMIT)
    made.gate.set()
    busy.join(LIMIT)


def test_executions_of_a_device_that_only_notifies_do_not_wait_for_what_their_client_prepares_either() -> None:
    """Below 1.2 each execution is launched and notified, as what is prepared is."""

    class Old(Slowed):
        level = Level.V1_1

    with served_here(made := Old()) as device:
        model = checked_prepared(device, doubling(), Hints(options={"ms": 0}))
        made.prepare_gate.clear()
        threads = [threading.Thread(target=checked_prepared, args=(device, doubling(), Hints())) for _ in range(12)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(made.prepared) > made._device_state.queues["prepare"].width, "some are prepared")
        assert np.array_equal(run(model, X), X + X)
        made.prepare_gate.set()
        for thread in threads:
            thread.join(LIMIT)


@pytest.mark.parametrize("threads", [0, 1])
def test_executions_for_sustained_speed_use_no_more_threads_than_there_are_cores(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all devices together, on two cores: one with as many threads as the engine likes, or two with one each."""
    monkeypatch.setattr("nnhal.hal.queue.usable_cores", lambda: 2)
    monkeypatch.setattr("nnhal.hal.chain.usable_cores", lambda: 2)
    monkeypatch.setattr("nnhal.hal.queue._sustained", {})
    lock, inside, most, met = threading.Lock(), [0], [0], threading.Event()

    class Counted(Slowed):
        def prepare(self, model: nnhal.Model, hints: Hints) -> Any:
            prepared = super().prepare(model, hints)
            run = prepared.run

            def counted(request: Any, control: Any) -> Any:
                with lock:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                if inside[0] == 2:
                    met.set()
                assert threads == 0 or met.wait(LIMIT)
                try:
                    return run(request, control)
                finally:
                    with lock:
                        inside[0] -= 1

            prepared.run = counted  # type: ignore[method-assign]
            return prepared

    devices = [Counted(), Counted()]
    for each in devices:
        each.one_at_a_time, each.at_once = False, 8
    hints = Hints(preference=nnhal.Preference.SUSTAINED_SPEED, threads=threads)
    models = [checked_prepared(each, doubling(), hints) for each in devices]

    def execute(prepared: Any) -> None:
        for _ in range(5):
            request = prepared.request([X])
            request.execute(prepared.run, nnhal.hal.request.Control())

    together([lambda m=m: execute(m) for m in models for _ in range(3)])  # type: ignore[misc]
    assert most[0] == (1 if threads == 0 else 2)
    assert len(sustained().slots.free) == 2


@pytest.mark.parametrize("also", ["one at a time", "sustained speed"])
def test_what_a_model_waits_for_in_a_second_queue_is_no_time_that_an_idle_device_would_take(
    also: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another had all of the device, or of the cores, whenever it was executed: its deadline can be made all the same."""
    monkeypatch.setattr("nnhal.hal.queue._sustained", {})
    clock = Clock().play(monkeypatch, queue, request, base_time)
    sustained_speed = also == "sustained speed"
    preference = nnhal.Preference.SUSTAINED_SPEED if sustained_speed else nnhal.Preference.FAST_SINGLE_ANSWER
    devices = [device_of(1), device_of(1)]
    for each in devices:
        each.spend = clock.advance
    owner = devices[sustained_speed]
    busy = checked_prepared(owner, doubling(), Hints(preference, options={"ms": 300}))
    monkeypatch.setattr("tests.faults.drivers.slowed.Slow.one_at_a_time", not sustained_speed)
    model = checked_prepared(devices[0], doubling(), Hints(preference, options={"ms": 1}))

    def execute(prepared: Any, control: Control = UNLIMITED) -> None:
        prepared.request([X]).execute(prepared.run, control)

    def waits() -> bool:
        return sum(each.waiting() for each in list(queue._queues)) == 1

    for _ in range(3):
        owner.gate.clear()
        other = threading.Thread(target=execute, args=(busy,))
        other.start()
        wait_until(lambda: owner.inside == 1, "the other to run")
        mine = threading.Thread(target=execute, args=(model,))
        mine.start()
        wait_until(waits, "it waits")
        owner.gate.set()
        other.join(LIMIT)
        mine.join(LIMIT)
    execute(model, clock.within(0.2))


def test_a_device_says_how_many_run_at_once() -> None:
    for number in (3, 12):
        device = device_of(number)
        model = nnhal.compile(doubling(), devices=[device])
        device.gate.clear()
        threads = [threading.Thread(target=model, args=(X,)) for _ in range(24)]
        for thread in threads:
            thread.start()
        wait_until(
            lambda device=device, n=number: device._device_state.queues["run"].waiting() == 24 - n, "the others wait"
        )
        device.gate.set()
        for thread in threads:
            thread.join(LIMIT)
        assert device.most == number
    device.at_once = -1
    with pytest.raises(NnhalError, match="at_once is -1, must be an int of 0 to 4096"):
        nnhal.compile(doubling(), devices=[device])
