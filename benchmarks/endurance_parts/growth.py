"""Whether client and service grow over many executions and many connections."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from endurance_parts.usage import Usage, usage
from nnhal.frontends.python import Builder
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints
from nnhal.hal.request import UNLIMITED
from nnhal.ipc import names
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.process import start
from nnhal.model.graph import Model

WARM_UP = 0.1  # of the rounds: caches fill, allocators take their arenas
DESCRIPTORS, MAPPINGS, THREADS = 0, 8, 0  # that may be more at the end than after the warm-up
PRIVATE = 1 << 20  # bytes that may be more at the end than half-way: what leaks, leaks in both halves
RULE = (
    f"no growth: after the warm-up at most {DESCRIPTORS} more descriptors, {MAPPINGS} more mappings and {THREADS} more "
    f"threads; in the second half at most {PRIVATE >> 10} KiB more private memory"
)


class Growth(NamedTuple):
    """Usage of one process after the warm-up, half-way and at the end."""

    what: str
    rounds: int
    process: str
    warm: Usage
    half: Usage
    end: Usage

    @property
    def ok(self) -> bool:
        """By `RULE`."""
        return (
            self.end.descriptors - self.warm.descriptors <= DESCRIPTORS
            and self.end.mappings - self.warm.mappings <= MAPPINGS
            and self.end.threads - self.warm.threads <= THREADS
            and self.end.private - self.half.private <= PRIVATE
        )


def doubling() -> Model:
    b = Builder()
    x = b.input((16,))
    return b.finish([x], [b.add(x, x)])


def watched(
    what: str, rounds: int, work: Callable[[], None], service: int, progress: Callable[[], None]
) -> list[Growth]:
    """Do the work so many times; what the client, this process, and the service hold at the three points."""
    points: list[tuple[Usage, Usage]] = []
    marks = {int(rounds * WARM_UP), int(rounds * (1 + WARM_UP) / 2), rounds - 1}
    for n in range(rounds):
        work()
        progress()
        if n in marks:
            gc.collect()
            time.sleep(0.5)  # for releases to arrive and threads to end
            points.append((usage(os.getpid()), usage(service)))
    return [
        Growth(what, rounds, process, *(point[place] for point in points))
        for place, process in enumerate(("client", "service"))
    ]


def executions(count: int, progress: Callable[[], None]) -> list[Growth]:
    """Executions in one burst, every hundredth with inputs and outputs in shared memory of their own."""
    from nnhal.base.memory import Memory

    device = RemoteDevice(start("reference", options=["--unconfined"]))
    try:
        prepared = checked_prepared(device, doubling(), Hints())
        x, y = np.arange(16, dtype=np.float32), np.empty(16, np.float32)
        number = 0
        with prepared.burst() as burst:

            def work() -> None:
                nonlocal number
                number += 1
                x[0] = number
                if number % 100 != 50:
                    prepared.request([x], [y]).execute(burst.run, UNLIMITED)
                    assert y[0] == 2 * number
                    return
                memory = Memory.allocate(128)
                given, taken = memory.view(0, 64, np.float32), memory.view(64, 64, np.float32)
                given[:] = x
                prepared.request([given], [taken]).execute(burst.run, UNLIMITED)
                assert taken[0] == 2 * number
                burst.free_memory(memory)

            return watched("burst executions", count, work, device.session.welcome.pid, progress)
    finally:
        device.close()


def shapes(count: int, different: int, progress: Callable[[], None]) -> list[Growth]:
    """Executions in one burst over so many shapes in turn, in random order; every result is looked at."""
    b = Builder()
    given = b.input((0,))
    model = b.finish([given], [b.add(given, given)])
    order = np.random.default_rng(4).integers(1, different + 1, count)
    device = RemoteDevice(start("reference", options=["--unconfined"]))
    try:
        prepared = checked_prepared(device, model, Hints())
        left = iter(order.tolist())
        with prepared.burst() as burst:

            def work() -> None:
                size = next(left)
                x, y = np.full(size, size, np.float32), np.empty(size, np.float32)
                prepared.request([x], [y]).execute(burst.run, UNLIMITED)
                assert (y == 2 * size).all()

            found = watched(f"{different} shapes", count, work, device.session.welcome.pid, progress)
            assert not burst.plain, burst.plain
            return found
    finally:
        device.close()


@contextlib.contextmanager
def service() -> Iterator[tuple[str, int]]:
    """A shared service of the reference driver: its name and process."""
    # A child of the service, which removes its socket, may end after it.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        before, os.environ["XDG_RUNTIME_DIR"] = os.environ.get("XDG_RUNTIME_DIR"), directory
        words = [sys.executable, "-P", "-m", "nnhal.serve", "reference", "--name", "endurance", "--unconfined"]
        process = subprocess.Popen(words)
        try:
            end = time.monotonic() + 60
            while "endurance" not in names.running():
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError("the service did not start")
                time.sleep(0.05)
            yield "endurance", process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
            if before is None:
                del os.environ["XDG_RUNTIME_DIR"]
            else:
                os.environ["XDG_RUNTIME_DIR"] = before


def connections(count: int, progress: Callable[[], None]) -> list[Growth]:
    """Connect, prepare, execute in each way, disconnect: to one service."""
    model, x = doubling(), np.arange(16, dtype=np.float32)

    def work() -> None:
        device = RemoteDevice(names.connect(name))
        try:
            prepared = checked_prepared(device, model, Hints())
            for run in (prepared.run, prepared.burst().run):
                request = prepared.request([x], [np.empty(16, np.float32)])
                request.execute(run, UNLIMITED)
                assert request.results[0][3] == 6
        finally:
            device.close()

    with service() as (name, pid):
        return watched("connections", count, work, pid, progress)
