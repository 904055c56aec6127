"""Fuzz what a hostile peer can send through the queues of a burst: packets, and everything in the shared memory.

    python tests/ipc/fuzz_queue.py --inputs 10000000 --seed 1

Half of the inputs are mutated packets for the decoders. What a decoder accepts must encode to the same bytes again, what
it refuses must be a ValueError. The other half are calls of two well-behaved sides in whose shared memory somebody writes:
whatever a side then returns must be a packet within the queue or a known status, and it must return. Outcomes are counted
by class, so that one sees that all were reached; a crash, a hang, or any other outcome ends the run with a failure.
"""

import argparse
import faulthandler
import mmap
import os
import random
import re
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator

from nnhal.ipc import _native

HANG_SECONDS = 60
_BATCH = 1000
_ELEMENT = 24
_CAPACITY = 16
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
}
_REASON = re.compile(r"\d+|\([^()]*\)")


def request(rng: random.Random) -> bytes:
    """A valid request packet."""
    pools = rng.randint(1, 3)

    def operand() -> tuple[int, int, int, tuple[int, ...]] | None:
        if rng.random() < 0.2:
            return None
        dims = tuple(rng.randint(0, 300) for _ in range(rng.randint(0, 4)))
        return rng.randrange(pools), rng.randint(0, 2**32 - 1), rng.randint(0, 4096), dims

    inputs, outputs = ([operand() for _ in range(rng.randint(0, 3))] for _ in "io")
    slots = [rng.randint(-(2**31), 2**31 - 1) for _ in range(pools)]
    return _native.encode_request(inputs, outputs, slots, rng.random() < 0.5)


def result(rng: random.Random) -> bytes:
    """A valid result packet."""
    outputs = [(rng.random() < 0.9, tuple(range(rng.randint(0, 4)))) for _ in range(rng.randint(0, 3))]
    on_device = rng.choice((None, rng.randint(0, 2**40)))
    in_driver = rng.choice((None, (on_device or 0) + rng.randint(0, 2**40)))
    return _native.encode_result(rng.randint(0, 8), outputs, on_device, in_driver)


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


def reason(error: ValueError) -> str:
    """The class of a message: its words without the numbers."""
    return re.sub(r"\s+", " ", _REASON.sub("", str(error))).replace(" ,", ",").strip()


def fuzz_codec(rng: random.Random, count: int, seen: Counter[str]) -> None:
    """Decode `count` mutated packets."""
    decoders: tuple[tuple[str, Callable[[bytes], tuple[object, ...]], Callable[..., bytes]], ...] = (
        ("request", _native.decode_request, _native.encode_request),
        ("result", _native.decode_result, _native.encode_result),
    )
    seeds = ([request(rng) for _ in range(50)], [result(rng) for _ in range(50)])
    for i in range(count):
        which = i % 2
        name, decode, encode = decoders[which]
        packet = mutated(rng, rng.choice(seeds[which]))
        try:
            parts = decode(packet)
        except ValueError as error:
            seen[f"codec: {reason(error)}"] += 1
            continue
        seen[f"codec: {name} accepted"] += 1
        if encode(*parts) != packet:
            raise AssertionError(f"{name}: {packet.hex()} was accepted as {parts}, which is another packet")


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


def fuzz(inputs: int, seed: int, progress: Callable[[int], None] = lambda _: None) -> Counter[str]:
    """Run at least `inputs` inputs, half on each target; counts by outcome. AssertionError where an invariant breaks."""
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    while (done := seen.total()) < inputs:
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        batch = min(_BATCH, (inputs - done + 1) // 2)
        fuzz_codec(rng, batch, seen)
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
