"""Faults of shared memory: pools that shrink, lie about their size, change meanwhile, or are none (items 18 to 21)."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from nnhal.base.codes import OperandType, OperationType
from nnhal.base.errors import NnhalError
from nnhal.base.levels import V1_3
from nnhal.base.memory import Memory
from nnhal.hal.request import UNLIMITED
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.prepared import RemotePrepared
from nnhal.ipc.client.process import start
from nnhal.ipc.protocol import wire
from nnhal.model.builder import ModelBuilder
from tests import requests
from tests.faults.hostile_client import memfd
from tests.faults.support import (
    MFD_HUGETLB,
    WITNESS,
    Hostile,
    X,
    attempt,
    back_to,
    client_of,
    held,
    huge_pages,
    numbers,
    prepared,
    punch,
    service,
    undisturbed,
    works,
)
from tests.ipc.support import made
from tests.models import doubling

UNGUARDED = str(Path(__file__).parent / "drivers" / "unguarded.py")
F_ADD_SEALS, SEAL_SHRINK, SEAL_GROW, SEAL_WRITE = 1033, 2, 4, 8
ROOM = 4096
INPUT, OUTPUT = wire.WireArgument(0, 0, 256, (64,)), wire.WireArgument(0, 256, 256, (64,))


def pool(size: int = ROOM, offset: int = 0, *, readonly: bool = False) -> wire.Pool:
    """A pool whose descriptor comes along."""
    return wire.Pool("ashmem", size, offset, readonly)


class memfd_of_values:  # noqa: N801 (a context manager)
    """A memory whose first bytes are the input."""

    def __enter__(self) -> Memory:
        self.memory = Memory.allocate(ROOM)
        self.memory.bytes()[:256] = X.view(np.uint8)
        return self.memory

    def __exit__(self, *_: object) -> None:
        self.memory.close()


def refused(reply: object, *words: str) -> None:
    """The reply is an INVALID_ARGUMENT, or one of its kind, that holds the words."""
    assert isinstance(reply, wire.Failed), reply
    assert reply.kind in ("InvalidArgument", "InvalidRequest", "Unmappable"), reply
    for word in words:
        assert word in reply.message, reply.message


# ------------------------------------------------------------------------------------------------------------- item 18


@pytest.mark.parametrize("seals", [0, SEAL_GROW])
def test_a_pool_that_may_shrink_is_refused_and_its_shrinking_kills_nobody(shared: str, seals: int) -> None:
    """18: a seal is demanded, so no read of a page that is gone can end the service by SIGBUS."""
    with undisturbed(shared), client_of(shared) as watcher, Hostile(shared) as hostile:
        number, before = hostile.prepare(), held(watcher)
        fd = memfd(seals=seals)
        refused(hostile.execute(number, [pool()], INPUT, OUTPUT, fds=(fd,)), "pool", "not sealed against shrinking")
        os.ftruncate(fd, 0)
        refused(hostile.execute(number, [pool()], INPUT, OUTPUT, fds=(fd,)), "pool")
        os.close(fd)
        back_to(before, watcher)
        fd = memfd()
        assert isinstance(hostile.execute(number, [pool()], INPUT, OUTPUT, fds=(fd,)), wire.Acknowledged)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        os.close(fd)


def test_a_file_travels_to_a_shared_service_as_a_copy_that_truncation_does_not_touch(
    shared: str, tmp_path: Path
) -> None:
    """18: what cannot be sealed is copied: the file is cut to nothing between two executions that read it."""
    file = tmp_path / "values"
    file.write_bytes(X.tobytes())
    memory = Memory.from_file(file)
    with undisturbed(shared), client_of(shared) as device:
        model, out = prepared(device), np.empty_like(X)
        x = memory.view(0, 256, np.float32, (64,))
        requests.run(model, [x], rooms=[out])
        assert out.tobytes() == (X + X).tobytes()
        assert isinstance(model, RemotePrepared)
        with device.session.carrying([memory], UNLIMITED) as packing:
            sent = packing.pool(memory)
            number = made(device.session, wire.Hold, (sent,), packing=packing)
        os.truncate(file, 0)
        ahead, room = msgspec.structs.replace(sent, held=number), Memory.allocate(256)
        with device.session.carrying([room], UNLIMITED) as packing:
            pools = wire.MemoryPool(ahead), wire.MemoryPool(packing.pool(room))
            taken = wire.WireArgument(1, 0, 256, (64,))
            request = wire.WireRequest((INPUT,), (taken,), pools)
            binding = made(device.session, wire.Bind, model.number, request, packing=packing)
        device.session.call(wire.ExecuteSynchronously(4, binding), wire.Acknowledged, UNLIMITED)
        assert room.bytes().tobytes() == (X + X).tobytes()


def test_a_file_cut_short_kills_only_the_clients_own_driver(tmp_path: Path) -> None:
    """18: the own process of a client maps its files uncopied: cutting one ends that process, by name, and no other."""
    file = tmp_path / "weights"
    file.write_bytes(bytes(1 << 20))
    fd = os.open(file, os.O_RDWR)
    driver = RemoteDevice(start(WITNESS))
    try:
        hold = wire.encode(wire.Hold(driver.session.number(), (pool(1 << 20),)))
        refused(driver.session.answer_to("Hold", hold, UNLIMITED, (fd,))[0], "pool", "sealed")  # to be written: never
        assert works(driver)
    finally:
        os.close(fd)
        driver.close()


# ------------------------------------------------------------------------------------------------------------- item 19


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        (wire.WireArgument(0, ROOM - 255, 256, (64,)), f"bytes {ROOM - 255} to {ROOM + 1}"),
        (wire.WireArgument(0, 2**64 - 256, 256, (64,)), f"bytes {2**64 - 256} to {2**64}"),
        (wire.WireArgument(0, 0, 2**64 - 1, (64,)), "bytes 0 to"),
        (wire.WireArgument(1, 0, 256, (64,)), "pool is 1, must be below 1"),
        (wire.WireArgument(-2, 0, 256, (64,)), "pool is -2"),
    ],
)
def test_an_argument_past_the_end_of_its_pool_is_invalid(shared: str, argument: wire.WireArgument, words: str) -> None:
    """19: as input and as output, with the numbers in the message."""
    with undisturbed(shared), Hostile(shared) as hostile, memfd_of_values() as memory:
        number = hostile.prepare()
        refused(hostile.execute(number, [pool()], argument, OUTPUT, fds=(memory.fd,)), "input 0", words)
        refused(hostile.execute(number, [pool()], INPUT, argument, fds=(memory.fd,)), "output 0", words)
        assert isinstance(hostile.execute(number, [pool()], INPUT, OUTPUT, fds=(memory.fd,)), wire.Acknowledged)
        assert bytes(memory.bytes()[256:512]) == (X + X).tobytes()


MALFORMED = {
    "a pool that is not there": (wire.WireArgument(7, 0, 256, (64,)), OUTPUT),
    "an input past the end": (wire.WireArgument(0, ROOM - 128, 256, (64,)), OUTPUT),
    "an output past the end": (INPUT, wire.WireArgument(0, ROOM - 128, 256, (64,))),
    "an argument too few": (OUTPUT,),
    "an argument too many": (INPUT, INPUT, OUTPUT),
    "another rank": (wire.WireArgument(0, 0, 256, (8, 8)), OUTPUT),
    "another dimension": (wire.WireArgument(0, 0, 128, (32,)), OUTPUT),
    "fewer bytes than its dimensions need": (wire.WireArgument(0, 0, 128, (64,)), OUTPUT),
    "an output of another rank": (INPUT, wire.WireArgument(0, 256, 256, (8, 8))),
    "an output over the input": (INPUT, wire.WireArgument(0, 0, 256, (64,))),
}


def test_a_driver_of_the_hal_that_looks_at_nothing_is_never_shown_a_malformed_request(runtime_directory: Path) -> None:
    """19: all is refused before it; nothing is written, and the next good request is the next that it sees."""
    with service(UNGUARDED, "unguarded"), Hostile("unguarded") as hostile:
        number, fd = hostile.prepare(), memfd()
        os.pwrite(fd, X.tobytes(), 0)
        for seen, (what, arguments) in enumerate(MALFORMED.items(), 1):
            before = os.pread(fd, ROOM, 0)
            refused(hostile.bind(number, [pool()], *arguments, fds=(fd,)))
            assert os.pread(fd, ROOM, 0) == before, what
            assert isinstance(hostile.execute(number, [pool()], INPUT, OUTPUT, fds=(fd,)), wire.Acknowledged)
            first, *rest = np.frombuffer(os.pread(fd, 256, 256), np.float32)
            assert first == seen and rest == (2 * X)[1:].tolist(), what
        os.close(fd)


# ------------------------------------------------------------------------------------------------------------- item 20


def test_an_input_rewritten_during_executions_changes_only_its_owners_results(shared: str) -> None:
    """20: a thread writes over the input all the time; each output is twice what the input was at some time."""
    size = 1 << 16
    with undisturbed(shared), client_of(shared) as device:
        model = prepared(device, doubling(size))
        memory = Memory.allocate(4 * size)
        x, ending = memory.view(0, 4 * size, np.float32, (size,)), threading.Event()

        def rewrite() -> None:
            value = 0
            while not ending.is_set():
                value = (value + 1) % 1000
                x[:] = value

        thread = threading.Thread(target=rewrite)
        thread.start()
        seen: set[float] = set()
        try:
            out = np.empty(size, np.float32)
            for _ in range(100):
                requests.run(model, [x], rooms=[out])
                values = np.unique(out)
                assert set(values) <= set(range(0, 1998 + 1)), values
                seen |= set(values.tolist())
        finally:
            ending.set()
            thread.join()
        assert len(seen) > 1, "the input was not rewritten during the executions"
        x[:] = numbers(size)
        requests.run(model, [x], rooms=[out])
        assert out.tobytes() == (2 * numbers(size)).tobytes()


def test_constants_rewritten_after_validation_harm_nobody_else(shared: str) -> None:
    """20: indices that lie in the client's memory leave their range while executions read them."""
    memory = Memory.allocate(64)
    index, ending = memory.view(0, 64, np.int32, (16,)), threading.Event()
    b = ModelBuilder()
    x, y = b.operand(OperandType.TENSOR_FLOAT32, (64,)), b.operand(OperandType.TENSOR_FLOAT32, (16,))
    axis = b.constant(OperandType.INT32, 0)
    where = b.reference(OperandType.TENSOR_INT32, (16,), b.add_pool(memory), 0, 64)
    b.operation(OperationType.GATHER, [x, axis, where], [y])

    def rewrite() -> None:
        while not ending.is_set():
            index[:] = 5
            index[:] = 2**31 - 1

    with undisturbed(shared), client_of(shared) as device:
        model = prepared(device, b.finish([x], [y]))
        thread = threading.Thread(target=rewrite)
        thread.start()
        try:
            for _ in range(200):
                out = np.empty(16, np.float32)
                tried = attempt(lambda out=out: requests.run(model, [X], rooms=[out]))
                assert not isinstance(tried, Exception) or isinstance(tried, NnhalError), tried
                assert isinstance(tried, Exception) or set(out) == {5}
        finally:
            ending.set()
            thread.join()
        index[:] = np.arange(16)
        requests.run(model, [X], rooms=[out])
        assert out.tobytes() == X[:16].tobytes()


# ------------------------------------------------------------------------------------------------------------- item 21


def test_a_pool_for_reading_is_refused_as_output(shared: str) -> None:
    """21: by the argument and the pool; the bytes stay what they were."""
    with undisturbed(shared), Hostile(shared) as hostile, memfd_of_values() as memory:
        number = hostile.prepare()
        reply = hostile.execute(number, [pool(readonly=True)], INPUT, OUTPUT, fds=(memory.fd,))
        refused(reply, "output 0", "pool 0 is for reading only, must be writable")
        assert not memory.bytes()[256:512].any()


def test_a_descriptor_for_reading_announced_as_writable_is_refused(shared: str) -> None:
    """21: what the message says does not open what the descriptor does not."""
    with undisturbed(shared), client_of(shared) as watcher, Hostile(shared) as hostile:
        number, before, fd = hostile.prepare(), held(watcher), memfd()
        reading = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        refused(hostile.execute(number, [pool()], INPUT, OUTPUT, fds=(reading,)), "descriptor")
        os.close(reading)
        os.close(fd)
        back_to(before, watcher)


def _socket() -> int:
    one, other = socket.socketpair()
    other.close()
    return one.detach()


def _pipe() -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


KINDS: dict[str, Callable[[], int]] = {
    "a pipe": _pipe,
    "a directory": lambda: os.open("/", os.O_RDONLY),
    "/dev/zero": lambda: os.open("/dev/zero", os.O_RDWR),
    "/dev/null": lambda: os.open("/dev/null", os.O_RDWR),
    "an O_PATH descriptor": lambda: os.open(__file__, os.O_PATH),
    "a socket": _socket,
    "an eventfd": lambda: os.eventfd(0),
    "a file": lambda: os.open(__file__, os.O_RDONLY),
    "a memory sealed against writing": lambda: memfd(seals=SEAL_SHRINK | SEAL_WRITE),
}


@pytest.mark.skipif(not huge_pages(), reason="this kernel has no huge pages")
def test_a_memory_of_huge_pages_is_refused_as_a_pool_and_as_queues(shared: str) -> None:
    """18: sealed against shrinking, and yet a read of a page that is punched out of it ends the reader by SIGBUS."""
    with undisturbed(shared), client_of(shared) as watcher, Hostile(shared) as hostile:
        number, before, fd = hostile.prepare(), held(watcher), memfd(huge_pages(), flags=MFD_HUGETLB)
        refused(hostile.execute(number, [pool()], INPUT, OUTPUT, fds=(fd,)), "pool: has huge pages")
        refused(hostile.make(wire.ConfigureExecutionBurst, number, fds=(fd,)), "not in a memfd of ordinary pages")
        os.close(fd)
        back_to(before, watcher)


def test_holes_that_a_client_punches_into_its_memory_are_zeros_and_kill_nobody(shared: str) -> None:
    """18: the seal against shrinking does not stop it, at no time."""
    with undisturbed(shared), Hostile(shared) as hostile, memfd_of_values() as memory:
        number = hostile.prepare()
        hostile.bind(number, [pool()], INPUT, OUTPUT, fds=(memory.fd,))
        results = memory.view(256, 256, np.float32)
        call = wire.ExecuteSynchronously(V1_3, hostile.made)
        assert isinstance(hostile.call(call), wire.Acknowledged) and (results == X + X).all()
        punch(memory.fd, ROOM)
        assert isinstance(hostile.call(call), wire.Acknowledged) and not results.any()
        ending = threading.Event()
        puncher = threading.Thread(target=lambda: [punch(memory.fd, ROOM) for _ in iter(ending.is_set, True)])
        puncher.start()
        try:
            for _ in range(300):
                memory.bytes()[:256] = X.view(np.uint8)
                assert isinstance(hostile.call(call), wire.Acknowledged)
        finally:
            ending.set()
            puncher.join()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_memory_is_refused_as_a_pool(shared: str, kind: str) -> None:
    """21: the descriptor is closed, the same connection goes on."""
    with undisturbed(shared), client_of(shared) as watcher, Hostile(shared) as hostile:
        number, before, fd = hostile.prepare(), held(watcher), KINDS[kind]()
        for _ in range(3):
            reply = hostile.execute(number, [pool(16)], INPUT, OUTPUT, fds=(fd,))
            refused(reply)
            assert "pool" in reply.message or "descriptor" in reply.message, reply
        os.close(fd)
        back_to(before, watcher)
        with memfd_of_values() as memory:
            assert isinstance(hostile.execute(number, [pool()], INPUT, OUTPUT, fds=(memory.fd,)), wire.Acknowledged)


@pytest.mark.parametrize("kind", ["a pipe", "a file", "an eventfd"])
def test_what_is_no_fence_is_refused_as_a_fence_and_what_are_no_queues_as_queues(shared: str, kind: str) -> None:
    """21: the same for the other descriptors that messages carry; none stays open."""
    with undisturbed(shared), client_of(shared) as watcher, Hostile(shared) as hostile:
        number, before, fd = hostile.prepare(), held(watcher), KINDS[kind]()
        for _ in range(5):
            if kind != "a pipe":  # the read end of a pipe is what a fence is made of
                refused(hostile.make(wire.ExecuteFenced, number, 1, fds=(fd,)), "fence")
            refused(hostile.make(wire.ConfigureExecutionBurst, number, fds=(fd,)), "burst")
            refused(hostile.make(wire.ExecuteFenced, number, 4, fds=(fd,)))
        os.close(fd)
        back_to(before, watcher)


def test_a_memory_that_comes_a_thousand_times_is_mapped_once(shared: str) -> None:
    """21: by whichever descriptor, for whichever binding, and until the last of them is released."""
    with undisturbed(shared), client_of(shared) as watcher, Hostile(shared) as hostile, memfd_of_values() as memory:
        number = hostile.prepare()
        before = held(watcher)
        bindings = []
        for _ in range(1000):
            reply = hostile.bind(number, [pool()], INPUT, OUTPUT, fds=(memory.fd,))
            assert isinstance(reply, wire.Acknowledged), reply
            bindings.append(hostile.made)
        now = held(watcher)
        assert now["mappings"] <= before["mappings"] + 1 and now["descriptors"] <= before["descriptors"] + 1
        for binding in (bindings[0], bindings[-1]):
            assert isinstance(hostile.call(wire.ExecuteSynchronously(4, binding)), wire.Acknowledged)
        hostile.send(wire.Release(tuple(bindings)))
        back_to(before, watcher)


def test_a_memory_sent_ahead_goes_with_its_object_and_the_bindings_that_use_it(shared: str) -> None:
    """21: released before, a binding over it is a named error; released after, the binding goes on."""
    with undisturbed(shared), client_of(shared) as watcher, Hostile(shared) as hostile, memfd_of_values() as memory:
        number, before = hostile.prepare(), held(watcher)
        hostile.make(wire.Hold, (pool(),), fds=(memory.fd,))
        ahead = hostile.made
        there = msgspec.structs.replace(pool(), held=ahead)
        hostile.bind(number, [there], INPUT, OUTPUT)
        binding = hostile.made
        refused(hostile.bind(number, [msgspec.structs.replace(there, place=1)], INPUT, OUTPUT), "place", "below 1")
        hostile.send(wire.Release((ahead,)))
        refused(hostile.bind(number, [there], INPUT, OUTPUT), f"Hold {ahead} is not held by this connection")
        assert isinstance(hostile.call(wire.ExecuteSynchronously(4, binding)), wire.Acknowledged)
        assert bytes(memory.bytes()[256:512]) == (X + X).tobytes()
        hostile.send(wire.Release((binding,)))
        back_to(before, watcher)


def test_an_input_that_only_the_client_writes_cannot_be_written_by_its_driver(shared: str) -> None:
    """21: the memory of the inputs of a frame is mapped for reading, on whatever the service is told."""
    with undisturbed(shared), Hostile(shared) as hostile:
        number = hostile.prepare()
        given, taken = Memory.allocate(256, one_way=True), Memory.allocate(256)
        given.bytes()[:] = X.view(np.uint8)
        out, fds = wire.WireArgument(1, 0, 256, (64,)), (given.fd, taken.fd)
        assert isinstance(hostile.execute(number, [pool(256), pool(256)], INPUT, out, fds=fds), wire.Acknowledged)
        assert taken.bytes().tobytes() == (X + X).tobytes()
        into = wire.WireArgument(0, 0, 256, (64,))
        refused(hostile.execute(number, [pool(256), pool(256)], INPUT, into, fds=fds))
        given.close()
        taken.close()
