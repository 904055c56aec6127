"""Faults of bursts: queues that are tampered with, packets that lie, peers that die while the other waits (22 to 26)."""

import contextlib
import ctypes
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import DeadObject, NnhalError
from nnhal.base.memory import Memory
from nnhal.frontends.python import Builder
from nnhal.hal.request import UNLIMITED, Control
from nnhal.ipc.client.burst import RemoteBurst
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.prepared import RemotePrepared
from nnhal.ipc.client.process import start
from nnhal.ipc.protocol import wire
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.packets import pack, unpack
from tests.faults.support import (
    LIMIT,
    WITNESS,
    X,
    attempt,
    back_to,
    client_of,
    held,
    numbers,
    prepared,
    request,
    run,
    undisturbed,
    wait_until,
    works,
)
from tests.ipc.support import made
from tests.waiting import jitter

# The shared memory of a burst: where each index lies, and what it must be.
REQUEST_WRITE, REQUEST_READ, RESULT_WRITE, RESULT_READ = 64, 128, 320, 384
REQUEST_EVENT, CLOSED = 192, 704  # the word that the service sleeps on, and the flag that the queues are closed
ELEMENTS, ELEMENT = 4096, 24
FUTEX = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
WAIT = int(LIMIT * 1e9)


def bound(model: RemotePrepared, memory: Memory) -> int:
    """The number of a binding: 64 floats of a memory in, the next 64 out."""
    with model.session.carrying([memory], UNLIMITED) as packing:
        given, taken = wire.WireArgument(0, 0, 256, (64,)), wire.WireArgument(0, 256, 256, (64,))
        request = wire.WireRequest((given,), (taken,), (wire.MemoryPool(packing.pool(memory)),))
        return made(model.session, wire.Bind, model.number, request, packing=packing)


class Raw:
    """A burst driven by hand: the client's queues, and their memory to tamper with."""

    def __init__(self, device: RemoteDevice, *, results: int = 1024, **options: Any) -> None:
        self.device, self.prepared = device, prepared(device, **options)
        assert isinstance(self.prepared, RemotePrepared)
        fd = _native.create_queues(1024, results)
        try:
            self.queues = _native.Queues(fd, _native.CLIENT)
            self.memory = mmap.mmap(fd, 0)
            self.number = made(device.session, wire.ConfigureExecutionBurst, self.prepared.number, fds=(fd,))
        finally:
            os.close(fd)
        self.pool = Memory.allocate(4096)
        self.pool.bytes()[:256] = X.view(np.uint8)
        self.binding = bound(self.prepared, self.pool)

    def good(self, **fields: int) -> bytes:
        """A packet that is right, but for fields that are given."""
        return pack(wire.encode(wire.ExecuteSynchronously(4, **{"binding": self.binding, **fields})))

    def exchange(self, packet: bytes) -> tuple[int, object]:
        """Status of the result of a packet, or of the queue, and the reply."""
        got = self.queues.exchange(packet, WAIT)
        if isinstance(got, int):
            return got, None
        reply = wire.decode_reply(unpack(got))
        return reply.status if isinstance(reply, wire.Failed) else ErrorStatus.NONE, reply

    def computes(self) -> bool:
        """Whether a good packet gives the right bytes."""
        self.pool.bytes()[256:512] = 0
        status, reply = self.exchange(self.good())
        sums = bytes(self.pool.bytes()[256:512]) == (X + X).tobytes()
        return status == ErrorStatus.NONE and reply == wire.Acknowledged() and sums

    def put(self, offset: int, value: int) -> None:
        """Write an index."""
        struct.pack_into("<Q", self.memory, offset, value % 2**64)

    def get(self, offset: int) -> int:
        """Read an index."""
        return int(struct.unpack_from("<Q", self.memory, offset)[0])

    def announce(self) -> None:
        """Wake the service to what was written, and wait until it has closed the queues."""
        word = ctypes.c_uint32.from_buffer(self.memory, REQUEST_EVENT)
        word.value += 1
        ctypes.CDLL(None).syscall(FUTEX, ctypes.byref(word), 1, 2**31 - 1, None, None, 0)
        del word
        wait_until(lambda: self.memory[CLOSED] != 0, "closed queues")

    def close(self) -> None:
        """End it."""
        self.queues.close()
        for number in (self.number, self.binding):
            self.device.session.endings.release(number)
        self.memory.close()
        del self.pool


@contextlib.contextmanager
def raw(device: RemoteDevice, *, results: int = 1024, **options: Any) -> Iterator[Raw]:
    """A burst driven by hand, that works at first."""
    burst = Raw(device, results=results, **options)
    try:
        yield burst
    finally:
        burst.close()


# ------------------------------------------------------------------------------------------------------------- item 22


CORRUPTIONS: dict[str, Callable[[Raw], None]] = {
    "write index of requests backwards": lambda r: r.put(REQUEST_WRITE, r.get(REQUEST_WRITE) - 1),
    "write index of requests huge": lambda r: r.put(REQUEST_WRITE, 2**63),
    "write index of requests at its end": lambda r: r.put(REQUEST_WRITE, -1),
    "write index of requests one too far": lambda r: r.put(REQUEST_WRITE, r.get(REQUEST_READ) + 1025),
    "write index over elements that were not written": lambda r: r.put(REQUEST_WRITE, r.get(REQUEST_WRITE) + 7),
    "read index of results ahead": lambda r: r.put(RESULT_READ, r.get(RESULT_READ) + 5),
    "read index of results backwards": lambda r: r.put(RESULT_READ, r.get(RESULT_READ) - 2000),
}


@pytest.mark.parametrize("what", CORRUPTIONS)
def test_corrupted_indices_end_the_burst_and_nothing_else(shared: str, what: str) -> None:
    """22: the service closes the queues; other bursts of the same client and other clients go on."""
    with undisturbed(shared), client_of(shared) as device, raw(device) as other:
        assert other.computes()
        before = held(device)
        with raw(device) as burst:
            assert burst.computes() and other.computes()
            CORRUPTIONS[what](burst)
            if "requests" in what or "elements" in what:  # else it is seen with the next result
                burst.announce()
            ends = [burst.exchange(burst.good())[0] for _ in range(2)]
            assert set(ends) <= {_native.CLOSED, _native.CORRUPT, _native.DEAD}, ends
            assert other.computes() and works(device)
        back_to(before, device, "threads", "mappings", "descriptors")
        assert other.computes()


def test_indices_written_at_random_never_harm_another(shared: str) -> None:
    """22: 40 bursts whose four indices and first elements are overwritten while they run."""
    dice = random.Random(22)
    with undisturbed(shared), client_of(shared) as device, raw(device) as other:
        assert other.computes()
        before = held(device)
        for _ in range(40):
            with raw(device) as burst:
                assert burst.computes()
                for _ in range(dice.randint(1, 4)):
                    where = dice.choice((REQUEST_WRITE, REQUEST_READ, RESULT_WRITE, RESULT_READ))
                    burst.put(where, dice.choice((dice.getrandbits(64), burst.get(where) + dice.randint(-9, 9))))
                    at = ELEMENTS + dice.randrange(64) * ELEMENT
                    burst.memory[at : at + ELEMENT] = dice.randbytes(ELEMENT)
                attempt(lambda burst=burst: burst.queues.exchange(burst.good(), 100_000_000))
            assert other.computes()
        back_to(before, device)


def test_queues_that_the_service_corrupts_are_a_dead_object_and_the_model_runs_on(shared: str) -> None:
    """22: the same from the other side: the result queue's write index jumps before a result is taken."""
    with undisturbed(shared), client_of(shared) as device:
        model = prepared(device)
        burst = model.burst()
        assert isinstance(burst, RemoteBurst)
        request(model).execute(burst.run, Control())
        with tampered(burst) as memory:
            struct.pack_into("<Q", memory, RESULT_WRITE, 2**62)
            with pytest.raises(DeadObject, match=r"service shared: .*tampered"):
                request(model).execute(burst.run, Control())
        with pytest.raises(NnhalError, match="after close"):
            request(model).execute(burst.run, Control())
        burst.close()
        assert works(device)
        with model.burst() as again:
            wanted = request(model)
            wanted.execute(again.run, Control())
        assert wanted.results[0].tobytes() == (X + X).tobytes()


@contextlib.contextmanager
def tampered(burst: RemoteBurst) -> Iterator[mmap.mmap]:
    """The memory of a burst's queues, found among the mappings of this process."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found = [line.split()[0] for line in maps if "memfd:nnhal-queues" in line]
    assert found, "the mapping of the queues has another name"
    fd = os.open(f"/proc/self/map_files/{found[-1]}", os.O_RDWR)
    try:
        memory = mmap.mmap(fd, 0)
    finally:
        os.close(fd)
    try:
        yield memory
    finally:
        memory.close()


# ------------------------------------------------------------------------------------------------------------- item 23


HEAD = 12  # bytes before the message: kind, elements, length


def _mutations(good: bytes) -> Iterator[tuple[str, bytes]]:
    """Each byte of message and padding changed to each value, and each announced length, in packets the queue carries."""
    for at in range(HEAD, len(good)):
        for value in range(256):
            if value != good[at]:
                yield f"byte {at - HEAD} = {value}", good[:at] + bytes([value]) + good[at + 1 :]
    for length in (*range(13), 14, 36, 2**31, 2**32 - 1):
        if struct.pack("<I", length) != good[8:12]:
            yield f"length {length}", good[:8] + struct.pack("<I", length) + good[HEAD:]
    for count in (2, 3, 700):
        yield f"{count} elements", struct.pack("<II", 0, count) + good[8:] + bytes((count - 1) * ELEMENT)


def test_a_packet_changed_in_any_byte_is_an_error_and_the_next_one_works(shared: str) -> None:
    """23: every byte in turn; the same burst gives the right result after each."""
    with undisturbed(shared), client_of(shared) as device, raw(device) as burst:
        assert burst.computes()
        before, good = held(device), burst.good()
        message = unpack(good)
        measure, form = message.index(0xC2), 1 + message.index(0x15)
        may = {f"byte {measure} = {0xC3}", f"byte {form} = 3"}  # measured, and the HAL's first form of the method
        may |= {f"byte {at} = {value}" for at in range(len(message), len(good) - HEAD) for value in range(256)}
        accepted = []
        for what, packet in _mutations(good):
            status, _ = burst.exchange(packet)
            if status == ErrorStatus.NONE:
                accepted.append(what)
            else:
                assert status == ErrorStatus.INVALID_ARGUMENT, (what, status)
            assert burst.computes(), what
        back_to(before, device)
        assert set(accepted) <= may, set(accepted) - may


def test_bindings_of_other_models_and_other_clients_are_refused(shared: str) -> None:
    """23: what is not the burst's own is none of its business."""
    with (
        undisturbed(shared),
        client_of(shared) as device,
        client_of(shared) as other,
        raw(device) as burst,
        raw(device) as foreign,
        raw(other) as strange,
    ):
        _, reply = burst.exchange(burst.good(binding=foreign.binding))
        assert (
            isinstance(reply, wire.Failed) and "belongs to another model, must belong to the burst's" in reply.message
        )
        for number in range(30):
            status, _ = burst.exchange(burst.good(binding=number))
            assert (status == ErrorStatus.NONE) == (number == burst.binding)
        assert burst.computes() and foreign.computes() and strange.computes()


# ------------------------------------------------------------------------------------------------------------- item 24


def test_an_execution_of_hundreds_of_arguments_goes_over_the_queues() -> None:
    """24: a packet has the number of a binding, however many arguments that has."""
    device = RemoteDevice(start("reference"))
    try:
        b = Builder()
        given = [b.input((1, 1, 1, 1)) for _ in range(300)]
        model = prepared(device, b.finish(given, [b.add(x, x) for x in given]))
        assert isinstance(model, RemotePrepared)
        with model.burst() as burst:
            for measure in (False, True, False):
                inputs = [np.full((1, 1, 1, 1), n, np.float32) for n in range(300)]
                wanted = model.request(inputs, [np.zeros_like(x) for x in inputs])
                wanted.execute(burst.run, Control(measure=measure))
                assert [float(np.ravel(y)[0]) for y in wanted.results] == [2.0 * n for n in range(300)]
            assert isinstance(burst, RemoteBurst) and burst.plain == {}
    finally:
        device.close()


# ------------------------------------------------------------------------------------------------------------- item 25


def test_padding_of_results_is_zero(shared: str) -> None:
    """25: what a result does not use of its elements is zero, also where longer packets lay in the ring before."""
    with undisturbed(shared), client_of(shared) as device, raw(device, results=16) as burst:
        for n in range(40):
            if n % 3 == 2:
                burst.exchange(burst.good(binding=7**7))  # an error, whose result is longer
            reply = burst.queues.exchange(burst.good(), WAIT)
            assert reply == struct.pack("<3I", 0, 1, 2) + wire.encode(wire.Acknowledged()) + bytes(10)


# ------------------------------------------------------------------------------------------------------------- item 26


WAYS: dict[str, Callable[[RemotePrepared], Callable[[], object]]] = {
    "a call": lambda p: partial(request(p).execute, p.run, Control()),
    "a call with a deadline": lambda p: partial(
        request(p).execute, p.run, Control(deadline=time.monotonic_ns() + WAIT)
    ),
    "a burst": lambda p: partial(request(p).execute, p.burst().run, Control()),
    "a notification": lambda p: lambda: notified(p),
    "a bare notification": lambda p: partial(pending, p),
}


def pending(p: RemotePrepared) -> None:
    """Execute in the background, by hand, and wait for the notification itself."""
    number = bound(p, Memory.allocate(512))
    p.session.notified(wire.Execute(p.session.number(), 4, number), UNLIMITED).wait(None)


def notified(p: RemotePrepared) -> None:
    """Execute in the background, wait, raise what was notified."""
    came: list[NnhalError | None] = []
    there = threading.Event()

    def notify(error: NnhalError | None, _: object) -> None:
        came.append(error)
        there.set()

    p.execute(request(p), Control(), notify)
    assert there.wait(LIMIT)
    jitter(random.Random(1), 0.05)
    assert len(came) == 1, "exactly one notification"
    if came[0] is not None:
        raise came[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "beside a busy thread"])
def test_a_driver_killed_while_its_client_waits_wakes_it(way: str, busy: bool) -> None:
    """26: by the death watch, whatever the client waits in; every waiter gets DEAD_OBJECT, once."""
    device = RemoteDevice(start(WITNESS))
    ending = threading.Event()
    spinner = threading.Thread(target=lambda: [None for _ in iter(ending.is_set, True)])
    try:
        model = prepared(device, sleep=LIMIT)
        assert isinstance(model, RemotePrepared)
        if busy:
            spinner.start()
        with ThreadPoolExecutor(4) as pool:
            waits = [pool.submit(WAYS[way](model)) for _ in range(3)]
            wait_until(lambda: held(device)["inside"] >= 2, "executions")
            os.kill(device.session.welcome.pid, signal.SIGKILL)
            for wait in waits:
                with pytest.raises(DeadObject, match="killed by SIGKILL"):
                    wait.result(LIMIT)
    finally:
        ending.set()
        if busy:
            spinner.join()
        device.close()


@pytest.mark.parametrize("way", ["a call", "a burst", "a notification"])
def test_a_driver_whose_child_keeps_the_sockets_open_is_seen_dying(way: str) -> None:
    """26: there is no hang-up then, so only the process itself tells."""
    device = RemoteDevice(start(WITNESS, options=["--allow", "clone"]))  # or it would have no child
    try:
        model = prepared(device, orphan=1)
        assert isinstance(model, RemotePrepared)
        with ThreadPoolExecutor(1) as pool:
            error = pool.submit(WAYS[way](model)).exception(LIMIT)  # the child lives for longer
        assert isinstance(error, DeadObject) and "exit status 7" in str(error)
    finally:
        device.close()


CLIENT = """
import sys, os, threading, numpy as np
from nnhal.hal.request import UNLIMITED, Control
from nnhal.ipc import names
from nnhal.ipc.client.device import RemoteDevice
from tests.faults.support import prepared, request
device = RemoteDevice(names.connect("shared"))
model = prepared(device, sleep=float(sys.argv[1]))
bursts = [model.burst() for _ in range(3)]
for b in bursts:
    threading.Thread(target=request(model).execute, args=(b.run, Control()), daemon=True).start()
print("waiting", flush=True)
request(model).execute(model.run, Control())
"""


@pytest.mark.parametrize("sleep", [0.0, 0.5], ids=["idle", "in the middle of executions"])
def test_a_client_killed_with_bursts_open_leaves_nothing_in_the_service(shared: str, sleep: float) -> None:
    """26: its listeners end, also those that wait for the next packet, and all that it held is given back."""
    with undisturbed(shared), client_of(shared) as watcher:
        before = held(watcher)
        client = subprocess.Popen([sys.executable, "-c", CLIENT, str(sleep)], stdout=subprocess.PIPE)
        assert client.stdout is not None
        with client, client.stdout:
            assert client.stdout.readline() == b"waiting\n"
            wait_until(lambda: held(watcher)["threads"] > before["threads"] + 3, "listeners")
            client.kill()
        back_to(before, watcher)
        assert run(prepared(watcher), numbers(64)).tobytes() == (X + X).tobytes()
