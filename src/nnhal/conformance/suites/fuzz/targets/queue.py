"""Fast message queues in whose shared memory a peer writes, and connections whose peer sends any datagram.

A side that reads or writes must return a packet within its queue or a known status. A connection must give the message,
or the status of its contract, and no descriptor may stay open.
"""

import array
import mmap
import os
import random
import socket
import struct
from collections.abc import Sequence

from nnhal.base.errors import NnhalError
from nnhal.conformance.suites.fuzz.inputs import NUMBERS, Choices
from nnhal.conformance.suites.fuzz.target import FuzzTarget, WrongAnswer
from nnhal.conformance.suites.suite import NotApplicable, SuiteRun
from nnhal.ipc import transport
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.packets import ELEMENT

_CAPACITY = 16
_LONGEST, _MOST = 64 * 1024 + 4 * 1024, 64  # bytes and descriptors of a message
# Shared memory: words of 8 and of 4 bytes that the peer can write, then the elements of both queues.
_INDICES = (64, 128, 320, 384)
_WORDS = (192, 256, 448, 512, 576, 640, 704, 768, 832)
_RINGS = (4096, 8192)
_STATUS = {
    _native.TIMEOUT: "TIMEOUT",
    _native.DEAD: "DEAD",
    _native.CLOSED: "CLOSED",
    _native.CORRUPT: "CORRUPT",
    _native.FULL: "FULL",
    _native.TOO_LARGE: "TOO_LARGE",
}
_CALLS = 8
_LISTED = 256  # inputs between two looks at the open descriptors


class QueueTarget(FuzzTarget):
    """Bytes choose the calls of both sides and of the peer that writes in between."""

    name = "queue"

    def __init__(self, run: SuiteRun) -> None:
        try:
            transport.require()
        except NnhalError as error:
            raise NotApplicable(str(error)) from None
        self._until_look, self._open = 0, -1

    def seeds(self) -> Sequence[bytes]:
        """Return random choices."""
        rng = random.Random(0)
        return [rng.randbytes(96) for _ in range(16)]

    def mutate(self, rng: random.Random, data: bytes, other: bytes) -> bytes:
        """Choose other calls, or change some: there is no coverage of the native code to keep inputs for."""
        return rng.randbytes(rng.choice((24, 96))) if rng.random() < 0.5 else super().mutate(rng, data, other)

    def run(self, data: bytes) -> str:
        """Make the calls."""
        choices = Choices(data)
        ended = _datagrams(choices) if choices.random() < 0.3 else _shared_memory(choices)
        self._until_look -= 1
        if self._until_look < 0:
            self._until_look = _LISTED
            now = len(os.listdir("/proc/self/fd"))
            if self._open >= 0 and now > self._open:
                raise WrongAnswer(f"{now} descriptors are open, must be {self._open}")
            self._open = now
        return ended


def _shared_memory(choices: Choices) -> str:
    """Call both sides of a burst's queues, and write into their memory in between."""
    fd = _native.create_queues(_CAPACITY, _CAPACITY)
    try:
        client, service = _native.Queues(fd, _native.CLIENT), _native.Queues(fd, _native.SERVICE)
        memory = mmap.mmap(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)
    client.spin = service.spin = False
    with memory:
        for _ in range(choices.randint(1, _CALLS)):
            if choices.random() < 0.5:
                _write(choices, memory)
            name, side = choices.choice((("client", client), ("service", service)))
            size = choices.randint(1, _CAPACITY)
            packet = struct.pack("<6I", 0, size, 0, 0, 0, 0).ljust(size * ELEMENT, b"\1")
            call = choices.randrange(8)
            if call < 4:
                ended = f"{name}.send: {_outcome(side.send(packet))}"
            elif call < 7:
                ended = f"{name}.receive: {_outcome(side.receive(0))}"
            else:
                ended = f"{name}.exchange: {_outcome(side.exchange(packet, choices.choice((0, 1000))))}"
    return ended


def _write(choices: Choices, memory: mmap.mmap) -> None:
    """Write another value somewhere in the shared memory."""
    kind = choices.randrange(4)
    if kind == 0:
        place = choices.choice(_INDICES)
        (now,) = struct.unpack_from("<Q", memory, place)
        value = choices.choice(
            (now + choices.randint(-20, 20), choices.getrandbits(64), now + 2**32, 0, 2**63, 2**64 - 1)
        )
        struct.pack_into("<Q", memory, place, value % 2**64)
    elif kind == 1:
        struct.pack_into("<I", memory, choices.choice(_WORDS), choices.choice((*NUMBERS, choices.getrandbits(32))))
    elif kind == 2:
        place = choices.choice(_RINGS) + 4 * choices.randrange(_CAPACITY * ELEMENT // 4)
        struct.pack_into("<I", memory, place, choices.choice(NUMBERS))
    else:
        struct.pack_into("<I", memory, 4 * choices.randrange(len(memory) // 4), choices.getrandbits(32))


def _outcome(got: bytes | int) -> str:
    if isinstance(got, int):
        return "written" if got == 0 else _STATUS[got]
    count = len(got) // ELEMENT
    if not 1 <= count <= _CAPACITY or struct.unpack_from("<2I", got) != (0, count):
        raise WrongAnswer(f"a queue gives {got.hex()}, must be a packet")
    return "received"


def _datagrams(choices: Choices) -> str:
    """Send datagrams to a connection."""
    ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, peer:
        lane, heard = _native.Lane(ours.fileno()), 0
        for _ in range(choices.randint(1, _CALLS)):
            ended, heard = _datagram(choices, lane, peer, heard)
    return ended


def _datagram(choices: Choices, lane: _native.Lane, peer: socket.socket, heard: int) -> tuple[str, int]:
    """Send one datagram; return the connection's answer and the last number that it heard."""
    if choices.random() < 0.5 and lane.awaited == 0 and lane.ask(b"question") == 0:
        peer.recv(64)
    awaited = lane.awaited
    number = choices.choice((awaited, awaited, awaited + 1, 0, 1, choices.getrandbits(64)))
    body = choices.randbytes(choices.choice((0, 1, 2, 200))) + bytes(choices.choice((0, 0, 0, _LONGEST - 1, _LONGEST)))
    datagram = struct.pack("<Q", number)[: 8 if body else choices.randint(0, 8)] + body
    count = choices.choice((0, 0, 0, 1, 3, 64, 65, 253))
    if not datagram and not count:
        return "nothing sent", heard  # it would look like the end of the connection
    fds = array.array("i", [peer.fileno()] * count)
    peer.sendmsg([datagram], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if count else [])
    got = lane.receive(0)
    lost = len(body) > _LONGEST or count > _MOST
    stale = not awaited and 0 < number <= heard
    if len(datagram) <= 8 or (awaited and number != awaited) or stale:
        wanted: object = _native.CORRUPT
    else:
        wanted = _native.TOO_LARGE if lost else (body, count)
    found = got if isinstance(got, int) else (got[0], len(got[1]))
    asked = 0 if awaited or len(datagram) <= 8 or stale else number
    if found != wanted or lane.asked != asked or (lane.awaited and found != _native.CORRUPT):
        raise WrongAnswer(f"connection: number {number}, {len(datagram)} bytes and {count} descriptors give {found}")
    heard = max(heard, asked)
    if isinstance(got, int):
        return _STATUS[got], heard
    for _ in range(choices.randint(0, count)):
        os.close(got[1].take())
    return (
        f"{'answer' if awaited else 'call' if number else 'message'} with {'descriptors' if count else 'none'}",
        heard,
    )
