"""Faults of messages: lengths and descriptors past every limit, bytes that are none, peers that do not read (27, 28)."""

import contextlib
import fcntl
import itertools
import os
import random
import select
import socket
import struct
import threading

import pytest

from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import DeadObject, MissedDeadline, NnhalError, ResourceExhausted
from nnhal.base.levels import V1_3
from nnhal.ipc import names
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import model_to_wire
from nnhal.ipc.transport.channel import MARK
from tests.faults.support import (
    LIMIT,
    ONE,
    Hostile,
    attempt,
    back_to,
    client_of,
    held,
    most,
    service,
    undisturbed,
    wait_until,
    works,
)
from tests.ipc.support import lingering
from tests.models import doubling
from tests.waiting import pass_time

GIB = 1 << 30
MOST_DESCRIPTORS = 253  # that the kernel takes with one message
ADD_SEALS, ALL_SEALS = 1033, 15
QUERY = wire.encode(wire.GetVersionString())


def alive(hostile: Hostile) -> None:
    """The same connection answers still."""
    assert isinstance(hostile.call(QUERY), wire.TextReply)


def long_message(announced: int, size: int, *, seals: int = ALL_SEALS) -> tuple[bytes, int]:
    """The head of a message that comes by a memory, and the memory."""
    fd = os.memfd_create("hostile", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, ADD_SEALS, seals)
    return struct.pack("<BQ", MARK, announced), fd


# ------------------------------------------------------------------------------------------------------------- item 27


@pytest.mark.parametrize(
    ("announced", "size", "seals"),
    [
        (4 * GIB, 4 * GIB, ALL_SEALS),
        (4 * GIB, 64, ALL_SEALS),
        (2**64 - 1, 64, ALL_SEALS),
        (GIB + 1, GIB + 1, ALL_SEALS),
        (0, 0, ALL_SEALS),
        (64, 4 * GIB, ALL_SEALS),
        (128, 64, ALL_SEALS),
        (64, 64, 0),
    ],
)
def test_a_message_of_a_length_that_cannot_be_is_refused(shared: str, announced: int, size: int, seals: int) -> None:
    """27: 4 GiB, announced and there, or announced only: an error, no memory is taken, the connection goes on."""
    with undisturbed(shared), client_of(shared) as watcher, Hostile(shared) as hostile:
        before = held(watcher)
        head, fd = long_message(announced, size, seals=seals)
        for _ in range(3):
            reply = hostile.call(head, (fd,))
            assert isinstance(reply, wire.Failed) and "long message" in reply.message, reply
        os.close(fd)
        alive(hostile)
        back_to(before, watcher)
        assert held(watcher)["resident"] - before["resident"] < 64 << 20


@pytest.mark.parametrize("data", [bytes([MARK]), bytes([MARK]) * 9, struct.pack("<BQ", MARK, 64) + b"more"])
def test_a_long_message_without_its_memory_is_refused(shared: str, data: bytes) -> None:
    """27: the head alone."""
    with undisturbed(shared), Hostile(shared) as hostile:
        for _ in range(2):
            reply = hostile.call(data)
            assert isinstance(reply, wire.Failed) and "long message" in reply.message, reply
        alive(hostile)


def test_a_datagram_larger_than_messages_are_is_refused(shared: str) -> None:
    """27: what does not fit the receiver's buffer is no message, whatever its first bytes say."""
    with undisturbed(shared), Hostile(shared) as hostile:
        hostile.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        hostile.push(QUERY + bytes(wire.INLINE + 4096))
        reply = hostile.receive()
        assert isinstance(reply, wire.Failed) and "larger than the transport allows" in reply.message
        alive(hostile)


@pytest.mark.parametrize("count", [wire.MAX_DESCRIPTORS + 1, MOST_DESCRIPTORS])
def test_a_message_with_too_many_descriptors_is_refused_and_all_are_closed(shared: str, count: int) -> None:
    """27: the kernel takes 253 at most with one message; a thousand are four of them, again and again."""
    with undisturbed(shared), client_of(shared) as watcher, Hostile(shared) as hostile:
        before, fd = held(watcher), os.open("/dev/null", os.O_RDONLY)
        for _ in range(12):
            hostile.push(QUERY, [fd] * count)
            reply = hostile.receive()
            assert isinstance(reply, wire.Failed) and "too many descriptors" in reply.message, reply
        os.close(fd)
        alive(hostile)
        back_to(before, watcher)


def _garbage(dice: random.Random) -> bytes:
    good = [
        wire.encode(wire.Hello(wire.VERSION, 3)),
        wire.encode(wire.AttachLane(5, True)),
        wire.encode(wire.Release((1, 2, 3))),
        wire.encode(wire.GetCapabilities(4)),
        wire.encode(wire.Allocate(3, (4, 4), ((1, 0, True, 0.5),))),
        wire.encode(wire.Bind(2, 1, wire.WireRequest((None,), (wire.WireArgument(0, 1, 2, (3,)),), ()))),
        wire.encode(wire.Hold(4, (wire.Pool("ashmem", 4, 0, True, 1, 2),))),
        wire.encode(wire.ExecuteSynchronously(4, 1)),
        wire.encode(wire.CopyFrom(1, wire.Pool("ashmem", 4, 0, True), (2,))),
    ]
    data = bytearray(dice.choice(good))
    kind = dice.randrange(4)
    if kind == 0:
        return dice.randbytes(dice.randint(1, 200))
    if kind == 1:
        return bytes(data[: dice.randint(1, len(data) - 1)])
    if kind == 2:
        return bytes([0x91]) * dice.randint(1, 60000)  # arrays in arrays
    for _ in range(dice.randint(1, 4)):
        data[dice.randrange(len(data))] = dice.choice((0, 0x7F, 0x80, 0xC0, 0xC6, 0xCF, 0xDB, 0xDD, 0xFF))
    return bytes(data)


def test_bytes_that_are_no_message_are_answered_with_an_error(shared: str) -> None:
    """27: 2,000 random, cut, nested and mutated messages; each is answered once, or not at all without a number."""
    dice = random.Random(27)
    with undisturbed(shared), client_of(shared) as watcher:
        before = held(watcher)
        with Hostile(shared) as hostile:
            for n in range(2000):
                data = _garbage(dice)
                if data[0] == MARK:
                    continue
                if n % 2:
                    hostile.send(data)
                else:
                    hostile.call(data)
                alive(hostile)
            assert isinstance(attempt(lambda: hostile.channel.receive(20_000_000)), MissedDeadline)
        back_to(before, watcher)
        assert works(watcher)


@pytest.mark.parametrize("length", range(9))
@pytest.mark.parametrize("descriptors", [0, 3])
def test_a_message_shorter_than_its_number_ends_its_connection_and_no_other(
    shared: str, length: int, descriptors: int
) -> None:
    """27: there is nothing that an answer could be to."""
    with undisturbed(shared), client_of(shared) as watcher:
        before = held(watcher)
        for _ in range(3):
            with Hostile(shared) as hostile:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("3i", 0, 1, 2))] if descriptors else []
                hostile.socket.sendmsg([ONE[:length]], rights)
                assert isinstance(attempt(hostile.receive), DeadObject)
        back_to(before, watcher)


@pytest.mark.parametrize("last", [1, 7, 2**64 - 1])
def test_numbers_of_calls_grow_and_their_answers_bear_them_or_their_lane_ends(shared: str, last: int) -> None:
    """27: so an answer that is sent back to the service is answered by nobody."""
    with undisturbed(shared), Hostile(shared) as hostile:
        answer, lane = wire.encode(wire.TextReply("1")), hostile.lane()
        for number in (1, 7, 2**32, 2**64 - 1):
            head = struct.pack("<Q", number)
            lane.socket.send(head + QUERY)
            assert lane.socket.recv(1 << 16) == head + answer
        lane.socket.send(struct.pack("<Q", last) + QUERY)
        with contextlib.suppress(ConnectionResetError):
            assert lane.socket.recv(1 << 16) == b""
        alive(hostile)


def test_a_lane_that_breaks_the_protocol_ends_and_leaves_the_connections_others(shared: str) -> None:
    """27: lanes fail one by one."""
    with undisturbed(shared), client_of(shared) as watcher, Hostile(shared) as hostile:
        lanes = [hostile.lane() for _ in range(4)]
        before = held(watcher)
        lanes[1].socket.send(b"short")
        assert isinstance(attempt(lanes[1].receive), DeadObject)
        for lane in (lanes[0], lanes[2], lanes[3]):
            assert wire.decode_reply(lane.call(QUERY)[0]) == wire.TextReply("1")
        alive(hostile)
        wait_until(lambda: held(watcher)["threads"] < before["threads"], "the end of its thread")
        for lane in lanes:
            lane.close()
        wait_until(lambda: held(watcher)["threads"] <= before["threads"] - 4, "the end of their threads")


@pytest.mark.parametrize(
    "first", [QUERY, b"\x00", b"GET / HTTP/1.1\r\n\r\n", wire.encode(wire.Hello(99, 0)), bytes([MARK]) * 9]
)
def test_a_connection_that_does_not_greet_is_ended(shared: str, first: bytes) -> None:
    """27: with an error where the peer may understand it, else by a hang-up."""
    with undisturbed(shared), client_of(shared) as watcher:
        before = held(watcher)
        for _ in range(3):
            with Hostile(shared, greet=False) as hostile:
                reply = attempt(lambda hostile=hostile: hostile.call(first))
                assert isinstance(reply, wire.Failed | DeadObject), reply
                assert isinstance(attempt(hostile.receive), DeadObject)
        back_to(before, watcher)


# ------------------------------------------------------------------------------------------------------------- item 28


def _fill(sock: socket.socket) -> int:
    """Send until the peer has taken none for a second; how many it took."""
    for count in range(100_000):
        if not select.select([], [sock], [], 1.0)[1] or isinstance(
            attempt(lambda: sock.send(ONE + QUERY)), BrokenPipeError
        ):
            return count
    raise AssertionError("100,000 messages were taken, though no answer was read")


def test_a_client_that_does_not_read_its_answers_is_dropped(shared: str) -> None:
    """28: the socket's buffer bounds what waits; the service gives the client up after some seconds, and keeps nothing."""
    with undisturbed(shared) as neighbour, client_of(shared) as watcher:
        before = held(watcher)
        hostile = Hostile(shared)
        hostile.socket.setblocking(False)
        assert _fill(hostile.socket) < 10_000
        neighbour.still_served()
        back_to(before, watcher)  # while the hostile client is still there
        hostile.close()
        assert works(watcher)


def test_a_client_that_does_not_read_its_notifications_is_refused_more_and_dropped(shared: str) -> None:
    """28: calls that wait to be notified are bounded; then the service gives the client up."""
    with undisturbed(shared) as neighbour, client_of(shared) as watcher:
        before = held(watcher)
        hostile = Hostile(shared)
        model = model_to_wire(doubling(64), lambda _: wire.Pool("ashmem", 1, 0, True))
        refused = []
        # each is answered at once and notified of later, which this client never reads
        for n in itertools.count():
            reply = attempt(lambda n=n: hostile.call(wire.PrepareModel(n + 1, V1_3, model)))
            if isinstance(reply, DeadObject):
                break
            if isinstance(reply, wire.Failed):
                refused.append(ErrorStatus(reply.status))
                pass_time(0.05)  # as long as it is refused, it tries again
        assert isinstance(reply, DeadObject), "the service never gave the client up"
        assert refused and set(refused) == {ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT}
        neighbour.still_served()
        hostile.close()
        back_to(before, watcher)


@pytest.mark.nightly
def test_connections_that_never_greet_are_ended_and_make_room_for_others(shared: str) -> None:
    """28: as many as one process may have: who is connected is served on, and told why where it has too many."""
    with undisturbed(shared) as neighbour, client_of(shared) as watcher:
        before, silent = held(watcher), []
        for _ in range(most(watcher, "connections")):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.connect(str(names.path_of(shared)))
            silent.append(sock)
        neighbour.still_served()
        late = attempt(lambda: RemoteDevice(names.connect(shared)))
        assert isinstance(late, ResourceExhausted) and "connections: process" in str(late), late
        wait_until(lambda: _served(shared), "room for a client")
        for sock in silent:
            sock.settimeout(60)
            assert sock.recv(64) == b""  # ended by the service
            sock.close()
        back_to(before, watcher)


def _served(name: str) -> bool:
    device = attempt(lambda: RemoteDevice(names.connect(name)))
    if isinstance(device, RemoteDevice):
        device.close()
        return True
    assert isinstance(device, NnhalError), device
    return False


def test_messages_without_bytes_leave_no_descriptor_however_many_come(shared: str) -> None:
    """27: sixteen of 64 would be all that the service may open; before the greeting, after it, and on a lane."""
    with undisturbed(shared), client_of(shared) as watcher:
        before = held(watcher)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("64i", *[0] * 64))]
        for n in range(24):
            with Hostile(shared, greet=n % 3 > 0, callbacks=False) as hostile:
                lane = hostile.lane() if n % 3 > 1 else hostile.channel
                lane.socket.sendmsg([], rights)
                assert isinstance(attempt(lane.receive), DeadObject)
                lane.close()
        back_to(before, watcher)


@pytest.mark.parametrize("size", [0, wire.INLINE + 8192])
def test_a_socket_that_takes_its_time_to_close_holds_nobody_up(shared: str, size: int) -> None:
    """27: it comes with a message that is refused; its last close waits for a peer that does not read."""
    with undisturbed(shared) as neighbour, client_of(shared) as watcher, Hostile(shared) as hostile:
        before = held(watcher)
        hostile.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        rounds, kept = neighbour.rounds, []
        for _ in range(3):
            sender, peer = lingering(int(LIMIT))
            kept.append(peer)
            hostile.push(b"\xc0" + bytes(size), [sender.fileno()])
            threading.Thread(target=sender.close).start()  # where it is the last close, it waits
        wait_until(lambda: neighbour.rounds > rounds + 20, "rounds of another client while it closes")
        for peer in kept:
            peer.close()
        back_to(before, watcher)


@pytest.mark.parametrize("threads", [2**16, 2**31 - 1, 2**32 - 1])
def test_an_engine_is_not_told_to_use_more_threads_than_a_process_can_have(threads: int) -> None:
    """27: the number of threads is the client's word."""
    with service("litert", "engine"), undisturbed("engine"), Hostile("engine") as hostile:
        whole = model_to_wire(doubling(64), lambda _: wire.Pool("ashmem", 1, 0, True))
        reply = attempt(lambda: hostile.call(wire.PrepareModel(1, V1_3, whole, threads=threads)))
        assert isinstance(reply, wire.Failed) and "threads" in reply.message, reply
