"""Quotas: who takes all that it can harms nobody else, is told what to let go, and has room again when it did."""

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnhal.base.errors import MissedDeadline, ResourceExhausted
from nnhal.base.levels import V1_3
from nnhal.base.memory import Memory
from nnhal.hal.request import UNLIMITED, Control
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import model_to_wire
from nnhal.ipc.service.quota import QuotaTable
from tests import requests
from tests.faults.greedy import WAYS
from tests.faults.support import (
    LIMIT,
    WITNESS,
    Hostile,
    RefusedError,
    X,
    attempt,
    back_to,
    client_of,
    held,
    limited,
    most,
    prepared,
    run,
    serve,
    service,
    taken,
    undisturbed,
    usage,
    wait_until,
)
from tests.ipc.support import CAPACITY, over, wide
from tests.models import doubling
from tests.waiting import NS

STAYS = str(Path(__file__).parent / "drivers" / "stays.py")
LARGE = {"bindings", "memories", "mappings", "objects"}  # thousands of calls reach the limit
QUOTAS = ["clients", *QuotaTable(CAPACITY, shared=True).rows]


class Greedy:
    """A greedy client in a process of its own."""

    def __init__(self, service: str, quota: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.greedy", service, quota],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the greedy client failed"
        return json.loads(line)

    def __call__(self, order: str) -> Any:
        """Have it do something; what came of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        return self._answer()

    def kill(self) -> None:
        """Kill it and its children, without a word to the service."""
        if self._process.returncode is not None:  # its number may be another's by now
            return
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(LIMIT)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


@contextlib.contextmanager
def greedy_for(service: str, quota: str) -> Iterator[Greedy]:
    greedy = Greedy(service, quota)
    try:
        yield greedy
    finally:
        greedy.kill()


def totals(device: RemoteDevice) -> dict[str, int]:
    """What all clients hold together."""
    now = usage(device)
    return {row.name: sum(client.used[n] for client in now.clients) for n, row in enumerate(now.quotas)}


def test_every_quota_has_a_way_to_reach_its_limit() -> None:
    assert set(WAYS) == set(QUOTAS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "quota", [pytest.param(name, marks=[pytest.mark.nightly] * (name in LARGE)) for name in QUOTAS]
)
def test_a_client_that_takes_all_it_can_is_refused_more_by_name_and_harms_nobody(shared: str, quota: str) -> None:
    with client_of(shared) as watcher, undisturbed(shared) as neighbour:
        neighbour.still_served()
        clean, before = totals(watcher), held(watcher)
        with greedy_for(shared, quota) as greedy:
            full = greedy("fill")
            where = "service" if quota == "clients" else quota
            assert full["kind"] == "ResourceExhausted" and full["message"].startswith(f"{where}: "), full
            assert "must be at most" in full["message"] and full["taken"] > 0, full
            now = usage(watcher)
            for n, row in enumerate(now.quotas):
                used = [client.used[n] for client in now.clients]
                assert max(used) <= row.most, row
                assert not row.own or sum(max(0, u - row.own) for u in used) <= row.common, row
                if row.name == quota and not row.own and quota != "connections":
                    assert max(used) == row.most, row  # the very last of it was had
            neighbour.still_served()
            assert greedy("work") is True
            greedy("free")
            wait_until(lambda: greedy("fill")["taken"] > 0, "room again")  # what is let go ends in a moment
            neighbour.still_served()
            greedy.kill()
            neighbour.still_served()
        wait_until(lambda: totals(watcher) == clean, f"all is given back: {clean}")
        back_to(before, watcher)


# --------------------------------------------------------------------------------------------------------- honest use


def test_a_model_and_a_request_of_a_thousand_memories_run_on_a_shared_service(shared: str) -> None:
    with undisturbed(shared), client_of(shared) as device:
        before = held(device)
        model = prepared(device, over(1000))
        assert run(model, np.float32([5])).tolist() == [5 + 999 * 1000 / 2]
        summing = prepared(device, wide(1000))
        memories = [Memory.from_array(np.float32([n])) for n in range(1000)]
        given = [memory.view(0, 4, np.float32, (1,)) for memory in memories]
        done = requests.run(summing, given, rooms=[np.zeros(1, np.float32)])
        assert done.results[0].tolist() == [999 * 1000 / 2]
        now = usage(device)
        place = [row.name for row in now.quotas].index("memories")
        assert max(client.used[place] for client in now.clients) >= 2000
        del model, summing, memories, given, done
        gc.collect()
        back_to(before, device, "mappings")


def test_an_execution_of_many_memories_on_a_stopped_service_ends_at_its_deadline() -> None:
    """Seventy descriptors exceed one message: some go ahead in calls that have to end by the same deadline."""

    def summed(control: Control) -> float:
        views = [Memory.from_array(np.float32([n])).view(0, 4, np.float32, (1,)) for n in range(70)]
        return float(requests.run(summing, views, control, [np.zeros(1, np.float32)]).results[0][0])

    with service(WITNESS, "stopped") as process, client_of("stopped") as device, ThreadPoolExecutor(1) as pool:
        summing, calls = prepared(device, wide(70)), device.session.calls
        assert summed(UNLIMITED) == 69 * 70 / 2
        sent = calls["Hold"]
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        try:
            with pytest.raises(MissedDeadline):
                pool.submit(summed, Control(time.monotonic_ns() + NS // 5)).result(LIMIT)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        assert calls["Hold"] == sent + 1 and device.session.peer.dead is None
        assert summed(UNLIMITED) == 69 * 70 / 2


def test_a_client_whose_lanes_are_refused_gets_errors_by_name_and_its_session_goes_on() -> None:
    """More threads than a service of few descriptors has lanes for, several times: results are right, or say why not."""
    process = serve(WITNESS, "narrow", through=limited("RLIMIT_NOFILE", 1024))
    try:
        with client_of("narrow") as device, ThreadPoolExecutor(24) as pool:
            model = prepared(device, sleep=0.2)
            assert most(device, "lanes") < 24
            for _ in range(3):
                came = list(pool.map(lambda _: attempt(lambda: run(model, X)), range(24)))
                right = [y for y in came if isinstance(y, np.ndarray) and y.tobytes() == (X + X).tobytes()]
                refused = [y for y in came if isinstance(y, ResourceExhausted) and "lanes: this client has" in str(y)]
                assert len(right) + len(refused) == 24 and right and refused, came
                assert device.session.peer.dead is None
            assert run(model, X).tobytes() == (X + X).tobytes()
    finally:
        process.kill()
        process.wait(LIMIT)


# ----------------------------------------------------------------------------------------------------------- what ends


def test_what_waits_behind_a_close_that_hangs_counts_for_its_client_and_no_other() -> None:
    with service(STAYS, "stays"), client_of("stays") as watcher, undisturbed("stays"):
        limit = most(watcher, "prepared")
        with Hostile("stays") as hostile, pytest.raises(RefusedError, match="prepared: this client has") as refused:
            for _ in range(limit + 1):
                hostile.send(wire.Release((hostile.prepare(how="close"),)))
        assert f"must be at most {limit}" in str(refused.value)
        alive = usage(watcher)
        wait_until(lambda: usage(watcher).clients != alive.clients, "the end of its lanes")
        place = [row.name for row in alive.quotas].index("prepared")
        assert max(client.used[place] for client in usage(watcher).clients) == limit  # it hangs still


# ------------------------------------------------------------------------------------------------------------- threads


def test_a_hint_of_many_threads_starts_no_more_than_the_machine_has_cpus(shared: str) -> None:
    with undisturbed(shared), Hostile(shared) as hostile:
        whole = model_to_wire(doubling(64), lambda _: wire.Pool("ashmem", 1, 0, True))
        told = json.dumps({"tell": 1}).encode()
        taken(hostile.call(wire.PrepareModel(1, V1_3, whole, threads=1_000, options=told)))
        assert hostile.callbacks is not None
        note = wire.decode_callback(hostile.callbacks.receive(int(LIMIT * 1e9))[0])
        assert isinstance(note.result, wire.Failed)
        assert note.result.message.endswith(f"threads {len(os.sched_getaffinity(0))}")
