"""Messages and packets of the IPC protocol: any bytes are a message that encodes to itself again, or an error."""

import random
import struct
from collections.abc import Callable

from nnhal.base.errors import InvalidModel
from nnhal.base.memory import Memory
from nnhal.conformance.suites.fuzz.inputs import NUMBERS, changed
from nnhal.conformance.suites.fuzz.target import FuzzTarget, WrongAnswer
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import error_from_wire, model_from_wire
from nnhal.ipc.transport.packets import ELEMENT, pack, unpack

_DECODERS: tuple[tuple[str, Callable[[bytes], object]], ...] = (
    ("call", wire.decode_call),
    ("reply", wire.decode_reply),
    ("callback", wire.decode_callback),
)
_PACKED = 4  # added to the number of a decoder: the bytes are a packet of a queue


class WireTarget(FuzzTarget):
    """The first byte chooses the decoder, and whether a packet of a burst holds the message."""

    name = "wire"
    guided = "nnhal.ipc.protocol", "nnhal.ipc.transport.packets", "msgspec"

    def mutate(self, rng: random.Random, data: bytes, other: bytes) -> bytes:
        """Change bytes of a message, or elements of a packet."""
        if data and data[0] & _PACKED and rng.random() < 0.7:
            return data[:1] + changed_packet(rng, data[1:])
        return changed(rng, data, other)

    def run(self, data: bytes) -> str:
        """Decode, and encode again."""
        chosen = data[0] if data else 0
        name, decode = _DECODERS[chosen % _PACKED % len(_DECODERS)]
        message = data[1:]
        if chosen & _PACKED:
            packet = message
            if not is_carried(packet):
                return "packet: not one that queues carry"
            try:
                message = unpack(packet)
            except ValueError:
                return "packet: refused"
            (announced,) = struct.unpack_from("<I", packet, 8)
            if message != packet[12 : 12 + announced] or len(message) != announced:
                raise WrongAnswer(f"packet {packet.hex()} is taken for {message.hex()}")
        try:
            found = decode(message)
        except wire.WireError:
            return f"{name}: refused"
        made = wire.encode(found)
        if wire.encode(decode(made)) != made or unpack(pack(made)) != made:
            raise WrongAnswer(f"{name} {message.hex()} does not encode to itself")
        _converted(found)
        return f"{name}: decoded"


def _converted(message: object) -> None:
    """Convert a message's parts to what they stand for, as its reader does."""
    if isinstance(message, wire.Failed):
        error_from_wire(message)
    model = getattr(message, "model", None)
    if isinstance(model, wire.WireModel):
        try:
            model_from_wire(model, _memory)
        except InvalidModel:
            return


def _memory(pool: wire.Pool) -> Memory:
    """Return a memory in the place of a pool's."""
    return Memory.allocate(64, "nnhal-fuzz")


def is_carried(packet: bytes) -> bool:
    """Whether the queues carry a packet: whole elements, of which the first one has the right number."""
    size = len(packet)
    return bool(size) and not size % ELEMENT and struct.unpack_from("<2I", packet) == (0, size // ELEMENT)


def changed_packet(rng: random.Random, packet: bytes) -> bytes:
    """Return a packet with up to three changes: words, bits, elements left out, doubled or moved, or its end cut off."""
    data = bytearray(packet)
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(8)
        size = len(data) // ELEMENT
        if kind < 4 and len(data) >= 4:
            struct.pack_into("<I", data, 4 * rng.randrange(len(data) // 4), rng.choice(NUMBERS))
        elif kind == 4 and data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif kind == 5 and size:
            at = rng.randrange(size)
            del data[ELEMENT * at : ELEMENT * (at + 1)]
            _correct_size(rng, data)
        elif kind == 6 and size:
            at, to = ELEMENT * rng.randrange(size), ELEMENT * rng.randrange(size + 1)
            data[to:to] = data[at : at + ELEMENT]
            _correct_size(rng, data)
        elif kind == 7:
            del data[rng.randint(0, len(data)) :]
    return bytes(data)


def _correct_size(rng: random.Random, data: bytearray) -> None:
    if len(data) >= 8 and rng.random() < 0.8:
        struct.pack_into("<I", data, 4, len(data) // ELEMENT)
