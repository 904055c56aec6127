"""What the tests of isolation share: small models, requests, and a view of what happens inside a service."""

import contextlib
import json
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import OperandType
from nnhal.base.errors import DeadObject
from nnhal.base.levels import V1_3
from nnhal.base.memory import Memory
from nnhal.frontends.python import Builder
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.request import UNLIMITED, Control, Request
from nnhal.ipc import names
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.pools import Packing
from nnhal.ipc.client.process import start
from nnhal.ipc.client.session import Session
from nnhal.ipc.protocol import wire
from nnhal.ipc.service.connection import serve_one
from nnhal.ipc.service.quota import Capacity, ClientShare, Quotas, QuotaTable
from nnhal.ipc.transport.channel import Channel
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from tests import requests
from tests.models import doubling, make_model
from tests.waiting import LIMIT
from tests.waiting import until as wait_until

__all__ = ["LIMIT", "wait_until"]
PROBE = str(Path(__file__).parent / "drivers" / "probe.py")


CAPACITY = Capacity(descriptors=32_640, threads=1024, mappings=32_765, addresses=1 << 46, memory=4 << 30)


def a_table(*, shared: bool = False, **most: int) -> QuotaTable:
    """Quotas of a service, with less of some things where they are named."""
    table = QuotaTable(CAPACITY, shared=shared)
    for name, limit in most.items():
        table.rows[name] = replace(table.rows[name], most=limit)
    return table


def a_share(*, shared: bool = False, **less: int) -> ClientShare:
    """The share of a client of a service, with less of some resources where they are named."""
    return Quotas(QuotaTable(CAPACITY._replace(**less), shared=shared)).connect(1)


def shifting(size: int, by: float) -> Model:
    """y = x + by."""
    return make_model(lambda b, x: b.add(x, np.full(size, by, np.float32)), (size,))


def wide(count: int) -> Model:
    """The sum of all inputs, of a float each."""
    b = Builder()
    given = [b.input((1,)) for _ in range(count)]
    total = given[0]
    for x in given[1:]:
        total = b.add(total, x)
    return b.finish(given, [total])


def over(count: int) -> Model:
    """y = x + 0 + 1 + ..., each constant in a memory of its own."""
    b = ModelBuilder()
    kind = OperandType.TENSOR_FLOAT32
    x = total = b.operand(kind, (1,))
    none = b.constant(OperandType.INT32, 0)
    for n in range(count):
        constant = b.reference(kind, (1,), b.add_pool(Memory.from_array(np.float32([n]))), 0, 4)
        sum_ = b.operand(kind, (1,))
        b.operation("ADD", [total, constant, none], [sum_])
        total = sum_
    return b.finish([x], [total])


def numbers(size: int = 4, start: float = 0.0) -> np.ndarray:
    """start, start + 1, ..."""
    return np.arange(size, dtype=np.float32) + np.float32(start)


def request_for(prepared: Prepared, x: np.ndarray) -> Request:
    """A request of one input, and room for one output of its shape."""
    return prepared.request([x], [np.full_like(x, np.nan)])


def run(prepared: Prepared, x: np.ndarray, control: Control | None = None) -> np.ndarray:
    """Execute plainly; the output."""
    output: np.ndarray = requests.run(prepared, [x], control or Control(), [np.full_like(x, np.nan)]).results[0]
    return output


def prepare(device: Device, model: Model | None = None, **options: Any) -> Prepared:
    """Prepare a model, `doubling` where none is given, with options of the driver."""
    return checked_prepared(device, model or doubling(), Hints(options=options)).inner


def inside(device: Device) -> Counter[str]:
    """The probe driver's counters; what has not happened yet is 0."""
    return Counter(json.loads(device.supports(doubling())[0].reason))


def made(
    session: Session, kind: type[wire.MakingCall], *fields: Any, packing: Packing | None = None, fds: Sequence[int] = ()
) -> int:
    """The number of what a call has made. fields: of the message, after its number."""
    number = session.number()
    session.call(kind(number, *fields), wire.Acknowledged, UNLIMITED, packing, fds=fds)
    return number


@contextlib.contextmanager
def served_here(driver: Device, table: QuotaTable | None = None) -> Iterator[RemoteDevice]:
    """A device whose service is a thread of this process, so that a test can get at it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    service = threading.Thread(target=serve_one, args=(driver, theirs, {}, table or a_table()))
    service.start()
    device = RemoteDevice(Session(ours, "here"))
    try:
        yield device
    finally:
        device.close()
        service.join(LIMIT)
        assert not service.is_alive()


@contextlib.contextmanager
def own_process(driver: str = PROBE, **named: Any) -> Iterator[RemoteDevice]:
    """A device in a process of its own, ended afterwards."""
    device = RemoteDevice(start(driver, **named))
    try:
        yield device
    finally:
        device.close()
        assert device.session.peer.process is not None
        device.session.peer.process.wait(LIMIT)


@contextlib.contextmanager
def connected(name: str = "probe") -> Iterator[RemoteDevice]:
    """A client of a service, disconnected afterwards."""
    device = RemoteDevice(names.connect(name))
    try:
        yield device
    finally:
        device.close()


def without_thread(patched: pytest.MonkeyPatch, name: str) -> None:
    """Threads of that name cannot be started."""
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            raise RuntimeError("can't start new thread")
        begin(thread)

    patched.setattr(threading.Thread, "start", start)


def lingering(seconds: int) -> tuple[socket.socket, socket.socket]:
    """A socket whose last close takes so long, as its sender wished, and its peer, which does not read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(bytes(1 << 16))
    sock.setblocking(True)
    return sock, peer


class Peer:
    """A service of a test's own making: `answer` is given a lane and a call, all but greetings and lanes.

    level: that it says it is at. callbacks: the lane for notifications, once it was attached.
    """

    def __init__(self, answer: Callable[[Channel, wire.ClientCall], None], level: int = int(V1_3)) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._answer, self._level = answer, level
        self._lanes, self._threads = [Channel(theirs)], list[threading.Thread]()
        self.callbacks: Channel | None = None
        self._start(self._lanes[0])
        try:
            self.session = Session(ours, "peer")
        except BaseException:
            self._end()
            raise

    def _start(self, lane: Channel) -> None:
        self._threads.append(threading.Thread(target=self._serve, args=(lane,)))
        self._threads[-1].start()

    def _serve(self, channel: Channel) -> None:
        with contextlib.suppress(DeadObject, OSError):
            while True:
                data, _ = channel.receive()
                call = wire.decode_call(data)
                if isinstance(call, wire.Hello):
                    welcome = wire.Welcome(wire.VERSION, self._level, "peer", os.getpid(), 0, True, {})
                    channel.answer(wire.encode(welcome))
                elif isinstance(call, wire.AttachLane):
                    self._attach(channel, call)
                else:
                    self._answer(channel, call)

    def _attach(self, channel: Channel, call: wire.AttachLane) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lane = Channel(ours)
        self._lanes.append(lane)
        if call.callbacks:
            self.callbacks = lane
        else:
            self._start(lane)
        with theirs:
            channel.answer(wire.ENCODED_DONE, (theirs.fileno(),))

    def __enter__(self) -> Session:
        return self.session

    def __exit__(self, *_: object) -> None:
        self.session.close()
        self._end()

    def _end(self) -> None:
        for lane in self._lanes:
            with contextlib.suppress(OSError):
                lane.socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LIMIT)
        for lane in self._lanes:
            lane.close()
