"""nnhal's own transport: executions of a model in a driver's process, and the ring of the native extension by itself.

The model adds an input of four floats to itself. Each round trip makes a request over numpy arrays, as the runtime does.
"""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from nnhal.frontends.python import Builder
from nnhal.hal.burst import Burst
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.request import UNLIMITED, Run
from nnhal.ipc.client.burst import RemoteBurst
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.session import Session
from nnhal.ipc.protocol import wire
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.packets import pack, unpack
from nnhal.model.graph import Model
from nnhal.runtime import discovery
from transport_peers.peer import FOLDER, Peer, Placement, PythonPeer, Server, ready, serve

SIZE = 4  # floats of the input
ELEMENTS = 1024  # of each queue
CALL, REPLY = wire.ExecuteSynchronously(4, 1), wire.Acknowledged()  # as those of an execution
ENGINE_THREADS = 1


def doubling() -> Model:
    """y = x + x on four floats."""
    b = Builder()
    x = b.input((SIZE,))
    return b.finish([x], [b.add(x, x)])


def connect(driver: str, placement: Placement) -> Session:
    """A session with a driver's process that was started where the placement says; both sides know each other's place."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-P", "-m", "nnhal.serve", driver, "--fd", str(theirs.fileno())]
    own = os.sched_getaffinity(0)
    with theirs:
        try:
            if placement.server is not None:
                os.sched_setaffinity(0, placement.server)  # children start where their parent is
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
        finally:
            os.sched_setaffinity(0, own)
    return Session(ours, f"device {driver}", process)


class Execution(PythonPeer):
    """Executions of `doubling` by one driver, in a process of its own or in this one."""

    def __init__(self, name: str, waiting: str, driver: str, *, burst: bool, own_process: bool = True) -> None:
        self.name, self.waiting, self._driver = name, waiting, driver
        self._in_burst, self._own_process = burst, own_process
        self._computes = not driver.endswith(".py")  # a driver's name, where the file is that of the null driver
        if driver == "litert":
            self.module, self.package = "ai_edge_litert", "'nnhal[litert]'"
        self._device: Device | None = None
        self._prepared: Prepared | None = None
        self._burst: Burst | None = None
        self._input = np.arange(SIZE, dtype=np.float32)

    def start(self, placement: Placement) -> None:
        if self._own_process:
            self._device = RemoteDevice(connect(self._driver, placement))
        else:
            self._device = discovery.load_one(self._driver)
        self._prepared = checked_prepared(self._device, doubling(), Hints(threads=ENGINE_THREADS))
        if self._in_burst:
            self._burst = self._prepared.burst()
        self._run: Run = (self._burst or self._prepared).run
        answer = self.round_trip()  # opens the lane
        if self._computes and not np.array_equal(answer, 2 * self._input):
            raise RuntimeError(f"{self.label}: the answer is {answer}, must be {2 * self._input}")
        if self.waiting == "block":
            for waiter in self._waiters():
                waiter.spin = False

    def _waiters(self) -> list[Any]:
        """What the client waits with."""
        if isinstance(self._burst, RemoteBurst):
            return [self._burst._queues]
        if isinstance(self._device, RemoteDevice):
            return [channel.lane for channel in self._device.session.channels.opened]
        return []

    def round_trip(self) -> np.ndarray:
        """An execution; its output."""
        assert self._prepared is not None
        output = np.empty(SIZE, np.float32)
        self._prepared.request([self._input], [output]).execute(self._run, UNLIMITED)
        return output

    def facts(self) -> dict[str, object]:
        """The client's counters, and the engine's threads where there is an engine."""
        found: dict[str, object] = {}
        for waiter in self._waiters():
            found |= waiter.stats()
        if isinstance(self._burst, RemoteBurst) and self._burst.plain:
            found["plain calls"] = self._burst.plain
        return found | ({"engine threads": ENGINE_THREADS} if self._computes else {})

    def stop(self) -> None:
        if self._burst is not None:
            self._burst.close()
        if self._prepared is not None:
            self._prepared.close()
        if self._device is not None:
            self._device.close()


class Ring(PythonPeer):
    """The queues alone. codec: every packet is encoded and decoded anew on both sides; else they carry the same bytes."""

    def __init__(self, waiting: str, *, codec: bool) -> None:
        self.name = "nnhal bare ring and codec" if codec else "nnhal bare ring"
        self.waiting, self._codec = waiting, codec
        self._server: Server | None = None
        self._packet = pack(wire.encode(CALL))

    def start(self, placement: Placement) -> None:
        fd = _native.create_queues(ELEMENTS, ELEMENTS)
        try:
            self._queues = _native.Queues(fd, _native.CLIENT)
            self._queues.spin = self.waiting == "spin"
            mode = "codec" if self._codec else "plain"
            self._server = Server("nnhal_peer", placement, str(fd), self.waiting, mode, keep=(fd,))
        finally:
            os.close(fd)

    def round_trip(self) -> None:
        if self._codec:
            reply = self._queues.exchange(pack(wire.encode(CALL)))
            assert isinstance(reply, bytes) and wire.decode_reply(unpack(reply)) == REPLY
        else:
            assert isinstance(self._queues.exchange(self._packet), bytes)

    def facts(self) -> dict[str, object]:
        """The client's counters."""
        return dict(self._queues.stats())

    def stop(self) -> None:
        if self._server is not None:
            self._queues.close()
            self._server.stop()


def run(_: Path, arguments: list[str]) -> None:
    """Answer every packet of one client, until it closes the queues."""
    fd, waiting, mode = arguments
    queues = _native.Queues(int(fd), _native.SERVICE)
    queues.spin = waiting == "spin"
    queues.hold()
    ready()
    result = pack(wire.encode(REPLY))
    while isinstance(packet := queues.receive(), bytes):
        if mode == "codec":
            wire.decode_call(unpack(packet))
            result = pack(wire.encode(REPLY))
        if queues.send(result) < 0:
            break
    signal.pause()  # the parent ends this process


def null_driver(waiting: str) -> str:
    """The file of the driver that does nothing."""
    if waiting == "block":
        return str(FOLDER / "blocking_null.py")
    spec = importlib.util.find_spec("nnhal.drivers.null")
    assert spec and spec.origin
    return spec.origin


def peers() -> list[Peer]:
    """Plain calls, bursts and the ring in both waiting modes; one ADD of a real engine in process and isolated."""
    found: list[Peer] = []
    for waiting in ("block", "spin"):
        null = null_driver(waiting)
        found.append(Execution("nnhal plain call", waiting, null, burst=False))
        found.append(Execution("nnhal burst", waiting, null, burst=True))
        found.append(Ring(waiting, codec=True))
        found.append(Ring(waiting, codec=False))
    for driver in ("litert", "reference"):
        found.append(Execution(f"ADD on {driver}, in process", "no wait", driver, burst=True, own_process=False))
        found.append(Execution(f"ADD on {driver}, isolated burst", "spin", driver, burst=True))
    return found


if __name__ == "__main__":
    serve(run)
