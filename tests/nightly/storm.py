"""A storm over drivers and services: signals at random on their processes while clients execute in every way.

    python -m tests.nightly.storm [--minutes 10] [--seed 7]

Processes of drivers and a shared service are stopped, continued, interrupted and killed; client threads execute plainly,
over bursts, behind fences, in streams and in the background, with deadlines, and cancel; further clients, processes of
their own, are interrupted and killed.
An answer belongs to its question; an error is one of nnhal's; nobody waits for ever; at the end nothing is owned by nobody.
The last line is JSON. Exit status 1 where any of it was not so.
"""

import argparse
import contextlib
import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import nnhal
from nnhal.base.errors import NnhalError
from nnhal.ipc import names
from nnhal.ipc.client.process import ReconnectingDevice, start
from tests.faults.support import attempt, serve
from tests.ipc.support import PROBE, wait_until
from tests.models import doubling
from tests.nightly.interrupted import SIZE, running_sum

THREADS = 4  # clients for each device
STUCK = 45.0  # seconds for one execution after which its client counts as waiting for ever
BLOWS = {signal.SIGSTOP: 5, signal.SIGKILL: 2, signal.SIGINT: 1}  # and how often; each stop is followed by a SIGCONT
STRANGER = """
import signal, sys, threading, time, numpy as np
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts this in the background has it ignored
from nnhal.ipc import names
from nnhal.ipc.client.device import RemoteDevice
from tests.ipc.support import prepare, run
from tests.models import doubling
device = RemoteDevice(names.connect(sys.argv[1]))
model = prepare(device, doubling(16), sleep=0.01)
def work():
    while True:
        run(model, np.ones(16, np.float32))
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
print("works", flush=True)
threading.Event().wait()
"""


class Client:
    """One thread that executes on a device in every way, each time with numbers of its own, and notes what comes."""

    def __init__(self, device: ReconnectingDevice, dice: random.Random) -> None:
        self._device, self._dice = device, dice
        self.right, self.errors, self.wrong = Counter[str](), Counter[str](), list[str]()
        self.since, self.doing = time.monotonic(), ""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="storm-client", daemon=True)
        self._thread.start()

    def end(self) -> bool:
        """Have it end; whether it did."""
        self._ending.set()
        self._thread.join(STUCK)
        return not self._thread.is_alive()

    @property
    def waits(self) -> float:
        """Seconds that it has been at the same execution."""
        return time.monotonic() - self.since

    def _work(self) -> None:
        while not self._ending.is_set():
            with contextlib.suppress(NnhalError), contextlib.ExitStack() as stack:
                self._device.health.deaths.clear()  # no pauses before the next start
                self._session(stack)
            self.since, self.doing = time.monotonic(), "compile"
            self._ending.wait(0.02)

    def _session(self, stack: contextlib.ExitStack) -> None:
        """Compile, and execute some hundred times."""
        options = {"probe": {"sleep": 0.002}} if self._dice.random() < 0.3 else {}
        compiled = stack.enter_context(
            nnhal.compile(doubling(SIZE), devices=self._device, fallback="forbid", driver_options=options)
        )
        sums = stack.enter_context(nnhal.compile(running_sum(), devices=self._device, fallback="forbid"))
        burst = stack.enter_context(compiled.burst())
        stream: Any = stack.enter_context(contextlib.closing(sums.stream()))
        pool = nnhal.Memory.allocate(8 * SIZE)
        shared = [pool.view(at, 4 * SIZE, np.float32, (SIZE,)) for at in (0, 4 * SIZE)]

        def into_pool(x: np.ndarray) -> Any:
            shared[0][:] = x
            return compiled(shared[0], out=[shared[1]])

        def cancelled(x: np.ndarray) -> Any:
            execution = compiled.submit(x)
            if self._dice.random() < 0.5:
                execution.cancel()
            return execution.result(STUCK)

        def in_a_stream(x: np.ndarray) -> Any:
            stream.reset()
            stream(x)
            return stream(x)

        ways: dict[str, Callable[[np.ndarray], Any]] = {
            "plain": compiled,
            "pool": into_pool,
            "deadline": lambda x: compiled.run(x, deadline=self._dice.uniform(0.001, 0.3))[0],
            "burst": burst,
            "fenced": lambda x: compiled.execute_fenced(x).result(),
            "fenced deadline": lambda x: compiled.execute_fenced(x, deadline=self._dice.uniform(0.005, 0.3)).result(),
            "submitted": cancelled,
            "stream": in_a_stream,
        }
        for _ in range(300):
            if self._ending.is_set():
                return
            name = self._dice.choice(list(ways))
            self._once(name, ways[name])

    def _once(self, name: str, way: Callable[[np.ndarray], Any]) -> None:
        number = self._dice.randrange(1 << 20)
        self.since, self.doing = time.monotonic(), name
        try:
            got = way(np.full(SIZE, number, np.float32))
        except NnhalError as error:
            self.errors[type(error).__name__] += 1
            if self._device.remote().session.peer.dead is not None:
                raise
        except BaseException as error:
            self.wrong.append(f"{name}: {type(error).__name__}: {error}")
        else:
            self.right[name] += 1
            if not (got == 2 * number).all():
                self.wrong.append(f"{name}: {got[:3]} must be {2 * number}")


class Weather:
    """Blows at processes, at random."""

    def __init__(self, targets: Callable[[], list[int]], dice: random.Random) -> None:
        self._targets, self._dice = targets, dice
        self.blows = Counter[str]()

    def blow(self) -> None:
        """One signal to one process."""
        targets = self._targets()
        kind = self._dice.choices(list(BLOWS), list(BLOWS.values()))[0]
        if not targets:
            return
        pid = self._dice.choice(targets)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, kind)
            self.blows[kind.name] += 1
            if kind == signal.SIGSTOP:
                time.sleep(self._dice.uniform(0.001, 0.4))
                os.kill(pid, signal.SIGCONT)


class Service:
    """A shared service that is started again whenever it ended."""

    def __init__(self) -> None:
        self.process, self.starts = serve(PROBE, "stormy"), 1

    def keep(self) -> None:
        """Start it again where it is needed."""
        if self.process.poll() is not None:
            self.process, self.starts = serve(PROBE, "stormy"), self.starts + 1

    def end(self) -> None:
        """For good."""
        self.process.kill()
        self.process.wait()


def held() -> dict[str, int]:
    """What this process has open, and who else there is on its account."""
    gc.collect()
    links = [attempt(lambda fd=fd: os.readlink(f"/proc/self/fd/{fd}")) for fd in os.listdir("/proc/self/fd")]
    return {
        "descriptors": len(links),
        "memfds": sum("memfd:" in str(link) for link in links),
        "mapped": Path("/proc/self/maps").read_text().count("memfd:nnhal"),
        "threads": sum(t.name.startswith("nnhal") for t in threading.enumerate()),
        "children": len(_children()),
    }


def _children() -> list[str]:
    tasks = Path("/proc/self/task").glob("*/children")
    return [pid for task in tasks for pid in str(attempt(task.read_text)).split() if pid.isdigit()]


@contextlib.contextmanager
def _directory() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as directory:
        before, os.environ["XDG_RUNTIME_DIR"] = os.environ.get("XDG_RUNTIME_DIR"), directory
        try:
            yield
        finally:
            if before is None:
                del os.environ["XDG_RUNTIME_DIR"]
            else:
                os.environ["XDG_RUNTIME_DIR"] = before


def storm(seconds: float, seed: int) -> dict[str, Any]:
    """For so long; what was seen."""
    with _directory():
        base = held()
        seen = _while_it_blows(seconds, random.Random(seed))
        after = _settled(base)
    seen["wrong"] += [f"{what}: {n} are left, must be {base[what]}" for what, n in after.items() if n > base[what]]
    return {"ok": not seen["wrong"], "seed": seed, **seen, "held": {"before": base, "after": after}}


def _while_it_blows(seconds: float, dice: random.Random) -> dict[str, Any]:
    wrong, service = list[str](), Service()
    devices = [
        *(ReconnectingDevice("probe", lambda: start(PROBE)) for _ in range(2)),
        ReconnectingDevice("probe", lambda: names.connect("stormy")),
    ]
    clients = [Client(device, random.Random(dice.random())) for device in devices for _ in range(THREADS)]
    weather = Weather(lambda: [pid for device in devices if (pid := _alive(device))], dice)
    strangers, longest, end = 0, 0.0, time.monotonic() + seconds
    try:
        while time.monotonic() < end and not wrong:
            time.sleep(dice.uniform(0.0, 0.3))
            weather.blow()
            service.keep()
            if dice.random() < 0.03:
                strangers += _stranger(dice)
            longest = max(longest, *(client.waits for client in clients))
            wrong += [f"{c.doing}: has waited for {c.waits:.0f} s" for c in clients if c.waits > STUCK]
        wrong += [f"{client.doing}: does not end" for client in clients if not client.end()]
    finally:
        for device in devices:
            device.close()
        service.end()
    return {
        "wrong": [*wrong, *(what for client in clients for what in client.wrong)],
        "right": dict(sum((client.right for client in clients), Counter[str]())),
        "errors": dict(sum((client.errors for client in clients), Counter[str]())),
        "blows": dict(weather.blows),
        "restarts": [device.restarts for device in devices],
        "starts of the service": service.starts,
        "clients killed": strangers,
        "longest wait": round(longest, 1),
    }


def _alive(device: ReconnectingDevice) -> int:
    session = device._remote.session
    return session.welcome.pid if session.peer.dead is None else 0


def _stranger(dice: random.Random) -> int:
    """A client in a process of its own, ended at work."""
    words = [sys.executable, "-c", STRANGER, "stormy"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with process, process.stdout:
        process.stdout.readline()
        time.sleep(dice.uniform(0, 0.2))
        process.send_signal(dice.choice([signal.SIGKILL, signal.SIGINT]))
    return 1


def _settled(base: dict[str, int]) -> dict[str, int]:
    """What is held once all that ends has ended."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: all(n <= base[what] for what, n in held().items()), "the end of all")
    return held()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    found = storm(60 * given.minutes, given.seed)
    print(json.dumps(found))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
