"""From SIGKILL of a driver's process to the error of whoever waits for it."""

import os
import select
import signal
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nnhal.base.errors import DeadObject, NnhalError
from nnhal.frontends.python import Builder
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.request import UNLIMITED, Request
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.process import start
from nnhal.model.graph import Model

DRIVER = str(Path(__file__).parent / "waiting.py")
FOREVER = 600.0  # seconds that the driver keeps its client waiting
SETTLE = 0.06  # seconds until a waiter waits
HANGS = 30.0  # seconds after which a waiter that got no error counts as hanging
FLOOR = "pidfd alone"  # a bare wait for the end of the process: the kernel's and the machine's own part
KINDS = FLOOR, "plain call", "burst", "fence", "prepare", "callback", "next call"
CLIENTS = "idle", "busy", "idle, forked child"
OVER = 5.0  # milliseconds that a waiter may take longer than the floor of the same client, by their p99
# Milliseconds of a client's floor by p99: above, other work on the machine takes the cores. A busy client waits longer.
QUIET = {"idle": 15.0, "busy": 40.0, "idle, forked child": 15.0}
IN_TIME = (
    f"always DEAD_OBJECT; p99 at most {OVER:g} ms over that of the same client's {FLOOR}; "
    f"not judged where this is over {QUIET['idle']:g} ms (of a busy client {QUIET['busy']:g} ms): the machine is busy"
)


@dataclass
class Delays:
    """Milliseconds from kill to error; wrong: what came instead of DEAD_OBJECT.

    floor: the bare wait of the same client, None for that itself.
    """

    kind: str
    client: str
    floor: "Delays | None"
    ms: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def at(self, share: float) -> float:
        """The quantile, infinite where nothing was measured."""
        return float(np.quantile(self.ms, share)) if self.ms else float("inf")

    @property
    def over(self) -> float:
        """Milliseconds of p99 over the floor's, 0 for that itself."""
        return 0.0 if self.floor is None else self.at(0.99) - self.floor.at(0.99)

    @property
    def disturbed(self) -> bool:
        """Whether other work makes the times mean nothing."""
        return self.floor is not None and self.floor.at(0.99) > QUIET[self.client]

    @property
    def ok(self) -> bool:
        """By `IN_TIME`."""
        return not self.wrong and (self.disturbed or self.over <= OVER)

    @property
    def verdict(self) -> str:
        """For people."""
        if self.wrong:
            return self.wrong[0]
        return "" if self.floor is None else "busy machine" if self.disturbed else "ok" if self.ok else "SLOW"


def small() -> Model:
    b = Builder()
    x = b.input((4,))
    return b.finish([x], [b.add(x, x)])


def request(prepared: Prepared) -> Request:
    return prepared.request([np.ones(4, np.float32)], [np.empty(4, np.float32)])


def waiter(
    kind: str, device: RemoteDevice, prepared: Prepared, ended: Callable[[object], None]
) -> Callable[[], object]:
    """What to do to wait: raises, or has `ended` called."""
    if kind == FLOOR:
        return lambda: _ended(device)
    if kind == "burst":
        return lambda: request(prepared).execute(prepared.burst().run, UNLIMITED)
    if kind == "fence":
        return lambda: _fence(prepared)
    if kind == "prepare":
        return lambda: device.prepare(small(), Hints(options={"prepare": FOREVER}))
    if kind == "callback":
        return lambda: prepared.execute(request(prepared), UNLIMITED, lambda error, _: ended(error))
    return lambda: request(prepared).execute(prepared.run, UNLIMITED)


def _ended(device: RemoteDevice) -> None:
    watch = os.pidfd_open(device.session.welcome.pid)
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    poll.poll()
    weakref.finalize(device, os.close, watch)  # later: it gives the interpreter up
    raise DeadObject("the process ended")


def _fence(prepared: Prepared) -> None:
    execution = prepared.execute_fenced(request(prepared), UNLIMITED)
    assert execution.fence is not None
    execution.fence.wait()


def kill_once(kind: str, client: str) -> float | str:
    """Milliseconds, or what went wrong."""
    device = RemoteDevice(start(DRIVER, options=["--allow", "clone"] if "fork" in client else []))
    came: list[tuple[int, object]] = []
    done = threading.Event()

    def ended(error: object) -> None:
        came.append((time.monotonic_ns(), error))
        done.set()

    try:
        options = {"run": 0 if kind == "next call" else FOREVER, "fork": "fork" in client}
        prepared = checked_prepared(device, small(), Hints(options=options))
        wait = waiter(kind, device, prepared, ended)

        def work() -> None:
            try:
                wait()
            except NnhalError as error:
                ended(error)

        if kind == "next call":
            wait()
            killed = _kill(device)
            work()
        else:
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            time.sleep(SETTLE)
            if came:
                return f"did not wait: {came[0][1]}"
            killed = _kill(device)
        if not done.wait(HANGS):
            return f"still waits after {HANGS:.0f} s"
        at, error = came[0]
        return (at - killed) / 1e6 if isinstance(error, DeadObject) else f"{type(error).__name__}: {error}"
    finally:
        device.close()


def _kill(device: RemoteDevice) -> int:
    killed = time.monotonic_ns()
    os.kill(device.session.welcome.pid, signal.SIGKILL)
    return killed


def deaths(count: int, progress: Callable[[], None]) -> list[Delays]:
    """So many kills for each kind of waiter and client; kinds take turns."""
    floors = {client: Delays(FLOOR, client, None) for client in CLIENTS}
    others = KINDS[1:]
    found = [d for c, floor in floors.items() for d in (floor, *(Delays(kind, c, floor) for kind in others))]
    for _ in range(count):
        for delays in found:
            stop = threading.Event()
            if delays.client == "busy":
                threading.Thread(target=_compute, args=(stop,), daemon=True).start()
            got = kill_once(delays.kind, delays.client)
            stop.set()
            if isinstance(got, str):
                delays.wrong.append(got)
            else:
                delays.ms.append(got)
            progress()
    return found


def _compute(stop: threading.Event) -> None:
    """Keep the interpreter busy."""
    total = 0
    while not stop.is_set():
        for n in range(1000):
            total += n * n % 7
