"""Fuzz what a hostile peer can send: packets of a burst, everything in the memory of its queues, messages of a lane.

    python tests/ipc/fuzz_queue.py --inputs 10000000 --seed 1

A third of the inputs are mutated packets. What is taken for a message must be the bytes that the packet announces, what the
decoder makes of those must encode and decode to the same again, and what is refused must be a ValueError or WireError. A
third are calls of two well-behaved sides in whose shared memory somebody writes: whatever a side then returns must be a
packet within the queue or a known status, and it must return. A third are datagrams on the socket of a lane, of any number,
length and count of descriptors: the lane gives the message or the status that its contract says, and no descriptor stays
open. Outcomes are counted by class, so that one sees that all were reached; a crash, a hang, or any other outcome ends the
run with a failure.
"""

import argparse
import array
import faulthandler
import mmap
import os
import random
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator

from nnhal.ipc.protocol import wire
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.packets import pack, unpack

HANG_SECONDS = 60
_BATCH = 1000
_ELEMENT = 24
_CAPACITY = 16
_LONGEST, _MOST = 64 * 1024 + 4 * 1024, 64  # bytes and descriptors of a message on a lane
# Shared memory: words of 8 and of 4 bytes that the peer can write, then the elements of both queues.
_INDICES = (64, 128, 320, 384)
_WORDS = (192, 256, 448, 512, 576, 640, 704, 768, 832)
_RINGS = (4096, 8192)
_NASTY = (0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 255, 4096, 4097, 65535, 2**31 - 1, 2**31, 2**32 - 1)
_STATUS = {
    _native.TIMEOUT: "TIMEOUT",
    _native.DEAD: "DEAD",
    _native.CLOSED: "CLOSED",
    _native.CORRUPT: "CORRUPT",
    _native.FULL: "FULL",
    _native.TOO_LARGE: "TOO_LARGE",
}
_REASON = re.compile(r"\d+|\([^()]*\)")


def request(rng: random.Random) -> bytes:
    """The packet of a call."""
    form, binding = rng.choice((3, 4)), rng.choice((0, 1, 127, 128, 2**32, 2**64 - 1))
    limits = (rng.getrandbits(64), rng.getrandbits(34)) if rng.random() < 0.3 else (0, 0)
    return pack(wire.encode(wire.ExecuteSynchronously(form, binding, rng.random() < 0.5, *limits)))


def result(rng: random.Random) -> bytes:
    """The packet of a reply."""
    shapes = tuple(tuple(rng.randint(0, 300) for _ in range(rng.randint(0, 4))) for _ in range(rng.randint(0, 3)))
    timing = wire.WireTiming(rng.getrandbits(40), wire.NOT_MEASURED)
    replies = (
        wire.Acknowledged(),
        wire.Failed(rng.randint(0, 9), "InvalidArgument", "x" * rng.randint(0, 60), shapes),
        wire.ExecutedReply(shapes, tuple(rng.random() < 0.9 for _ in shapes), timing),
    )
    return pack(wire.encode(rng.choice(replies)))


def mutated(rng: random.Random, packet: bytes) -> bytes:
    """A packet with up to three faults: words overwritten, bits flipped, elements dropped, doubled or swapped, bytes cut."""
    data = bytearray(packet)
    for _ in range(rng.randint(0, 3)):
        kind = rng.randrange(8)
        size = len(data) // _ELEMENT
        if kind < 4 and len(data) >= 4:
            struct.pack_into("<I", data, 4 * rng.randrange(len(data) // 4), rng.choice(_NASTY))
        elif kind == 4 and data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif kind == 5 and size:
            del data[_ELEMENT * (at := rng.randrange(size)) : _ELEMENT * (at + 1)]
            _correct_size(rng, data)
        elif kind == 6 and size:
            at, to = _ELEMENT * rng.randrange(size), _ELEMENT * rng.randrange(size + 1)
            data[to:to] = data[at : at + _ELEMENT]
            _correct_size(rng, data)
        elif kind == 7:
            del data[rng.randint(0, len(data)) :]
    return bytes(data)


def _correct_size(rng: random.Random, data: bytearray) -> None:
    if len(data) >= 8 and rng.random() < 0.8:
        struct.pack_into("<I", data, 4, len(data) // _ELEMENT)


def reason(error: Exception) -> str:
    """The class of a message: its words without the numbers and paths."""
    text = "text is not UTF-8" if "codec" in str(error) else str(error).split(" - at ")[0]
    return re.sub(r"\s+", " ", _REASON.sub("", text)).replace(" ,", ",").strip()


def fuzz_packets(rng: random.Random, count: int, seen: Counter[str]) -> None:
    """Unpack and decode `count` mutated packets that the queues would carry."""
    decoders: tuple[tuple[str, Callable[[bytes], object]], ...] = (
        ("call", wire.decode_call),
        ("reply", wire.decode_reply),
    )
    seeds = ([request(rng) for _ in range(50)], [result(rng) for _ in range(50)])
    for i in range(count):
        name, decode = decoders[i % 2]
        packet = mutated(rng, rng.choice(seeds[i % 2]))
        if not packet or len(packet) % _ELEMENT or struct.unpack_from("<2I", packet) != (0, len(packet) // _ELEMENT):
            seen["packets: none that the queues carry"] += 1
            continue
        try:
            message = unpack(packet)
        except ValueError as error:
            seen[f"packets: {reason(error)}"] += 1
            continue
        (announced,) = struct.unpack_from("<I", packet, 8)
        if message != packet[12 : 12 + announced] or len(message) != announced:
            raise AssertionError(f"packets: {packet.hex()} was taken for {message.hex()}")
        try:
            made = wire.encode(decode(message))
        except wire.WireError as error:
            seen[f"packets: {name}: {reason(error)}"] += 1
            continue
        seen[f"packets: {name} accepted"] += 1
        if wire.encode(decode(made)) != made or unpack(pack(made)) != made:
            raise AssertionError(f"packets: {name} {message.hex()} does not come back as it was")


def _spoil(rng: random.Random, memory: mmap.mmap) -> None:
    """Write a lie somewhere in the shared memory."""
    kind = rng.randrange(4)
    if kind == 0:
        place = rng.choice(_INDICES)
        (now,) = struct.unpack_from("<Q", memory, place)
        lie = rng.choice((now + rng.randint(-20, 20), rng.getrandbits(64), now + 2**32, 0, 2**63, 2**64 - 1))
        struct.pack_into("<Q", memory, place, lie % 2**64)
    elif kind == 1:
        struct.pack_into("<I", memory, rng.choice(_WORDS), rng.choice((*_NASTY, rng.getrandbits(32))))
    elif kind == 2:
        place = rng.choice(_RINGS) + 4 * rng.randrange(_CAPACITY * _ELEMENT // 4)
        struct.pack_into("<I", memory, place, rng.choice(_NASTY))
    else:
        struct.pack_into("<I", memory, 4 * rng.randrange(len(memory) // 4), rng.getrandbits(32))


def _outcome(got: bytes | int) -> str:
    if isinstance(got, int):
        return "written" if got == 0 else _STATUS[got]
    count = len(got) // _ELEMENT
    if not 1 <= count <= _CAPACITY or struct.unpack_from("<2I", got) != (0, count):
        raise AssertionError(f"queues: received {got.hex()}, which is no packet of the queue")
    return "received"


class Ring:
    """Two sides of a burst, and a third party that writes into their memory."""

    def __init__(self) -> None:
        fd = _native.create_queues(_CAPACITY, _CAPACITY)
        try:
            self.client, self.service = _native.Queues(fd, _native.CLIENT), _native.Queues(fd, _native.SERVICE)
            self.memory = mmap.mmap(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)
        self.client.spin = self.service.spin = False

    def steps(self, rng: random.Random) -> Iterator[str]:
        """What both sides return for a few calls, with lies in between."""
        for _ in range(rng.randint(1, 8)):
            if rng.random() < 0.5:
                _spoil(rng, self.memory)
            name, side = rng.choice((("client", self.client), ("service", self.service)))
            size = rng.randint(1, _CAPACITY)
            packet = struct.pack("<6I", 0, size, 0, 0, 0, 0).ljust(size * _ELEMENT, b"\1")
            call = rng.randrange(8)
            if call < 4:
                yield f"{name}.send: {_outcome(side.send(packet))}"
            elif call < 7:
                yield f"{name}.receive: {_outcome(side.receive(0))}"
            else:
                yield f"{name}.exchange: {_outcome(side.exchange(packet, rng.choice((0, 1000))))}"


def fuzz_ring(rng: random.Random, count: int, seen: Counter[str]) -> None:
    """Make `count` calls on queues in whose memory somebody writes."""
    done = 0
    while done < count:
        ring = Ring()
        for _ in range(4):
            for outcome in ring.steps(rng):
                seen[f"queues: {outcome}"] += 1
                done += 1
        ring.memory.close()


class Socket:
    """A lane, and a peer that sends what it likes."""

    def __init__(self) -> None:
        self._ours, self.peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.lane = _native.Lane(self._ours.fileno())
        self._heard = 0

    def close(self) -> None:
        """End it."""
        self._ours.close()
        self.peer.close()

    def step(self, rng: random.Random) -> str:
        """What the lane makes of one datagram, which must be what its contract says."""
        if rng.random() < 0.5 and self.lane.awaited == 0 and self.lane.ask(b"question") == 0:
            self.peer.recv(64)
        awaited = self.lane.awaited
        number = rng.choice((awaited, awaited, awaited + 1, 0, 1, rng.getrandbits(64)))
        body = rng.randbytes(rng.choice((0, 1, 2, 200))) + bytes(rng.choice((0, 0, 0, _LONGEST - 1, _LONGEST)))
        datagram = struct.pack("<Q", number)[: 8 if body else rng.randint(0, 8)] + body
        count = rng.choice((0, 0, 0, 1, 3, 64, 65, 253))
        if not datagram and not count:
            return "nothing sent"  # which is what a hang-up looks like
        fds = array.array("i", [self.peer.fileno()] * count)
        self.peer.sendmsg([datagram], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if count else [])
        got = self.lane.receive(0)
        lost = len(body) > _LONGEST or count > _MOST
        stale = not awaited and 0 < number <= self._heard
        if len(datagram) <= 8 or (awaited and number != awaited) or stale:
            wanted: object = _native.CORRUPT
        else:
            wanted = _native.TOO_LARGE if lost else (body, count)
        found = got if isinstance(got, int) else (got[0], len(got[1]))
        asked = 0 if awaited or len(datagram) <= 8 or stale else number
        self._heard = max(self._heard, asked)
        if found != wanted or self.lane.asked != asked or (self.lane.awaited and found != _native.CORRUPT):
            raise AssertionError(f"lane: number {number}, {len(datagram)} bytes, {count} descriptors gave {found}")
        if isinstance(got, int):
            return _STATUS[got]
        for _ in range(rng.randint(0, count)):
            os.close(got[1].take())
        return f"{'answer' if awaited else 'call' if number else 'message'} with {'descriptors' if count else 'none'}"


def fuzz_lanes(rng: random.Random, count: int, seen: Counter[str]) -> None:
    """Send `count` datagrams to lanes."""
    done, before = 0, len(os.listdir("/proc/self/fd"))
    while done < count:
        pair = Socket()
        for _ in range(rng.randint(1, 50)):
            seen[f"lanes: {pair.step(rng)}"] += 1
            done += 1
        pair.close()
    if (after := len(os.listdir("/proc/self/fd"))) != before:
        raise AssertionError(f"lanes: {after} descriptors are open, must be {before}")


def fuzz(inputs: int, seed: int, progress: Callable[[int], None] = lambda _: None) -> Counter[str]:
    """Run at least `inputs` inputs, a third on each target; counts by outcome. AssertionError where an invariant breaks."""
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    while (done := seen.total()) < inputs:
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        batch = min(_BATCH, -(-(inputs - done) // 3))
        fuzz_packets(rng, batch, seen)
        fuzz_lanes(rng, batch, seen)
        fuzz_ring(rng, batch, seen)
        progress(seen.total())
    faulthandler.cancel_dump_traceback_later()
    return seen


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    start, shown = time.monotonic(), 0.0

    def progress(done: int) -> None:
        nonlocal shown
        if (passed := time.monotonic() - start) - shown >= 10:
            shown = passed
            print(f"{done:>12,} of {options.inputs:,} inputs, {done / passed:,.0f} a second", flush=True)

    seen = fuzz(options.inputs, options.seed, progress)
    for outcome, count in sorted(seen.items(), key=lambda item: (item[0].split(":")[0], -item[1])):
        print(f"{count:>12,}  {outcome}")
    print(f"{seen.total():>12,}  inputs in {time.monotonic() - start:.0f} s, seed {options.seed}: no crash, no hang")


if __name__ == "__main__":
    main()
