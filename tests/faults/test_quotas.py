"""Quotas: who takes all that it can harms nobody else, is told what to let go, and has room again when it did."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.service.quota import Table
from tests.faults.greedy import WAYS
from tests.faults.support import LIMIT, back_to, client_of, held, undisturbed, usage, wait_until
from tests.ipc.support import CAPACITY

QUOTAS = ["clients", *Table(CAPACITY, shared=True).rows]


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
        with contextlib.suppress(ProcessLookupError):
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


@pytest.mark.parametrize("quota", QUOTAS)
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
