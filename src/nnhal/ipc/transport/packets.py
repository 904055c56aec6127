"""Packets of a burst: the messages of a channel as elements of 24 bytes.

The first element has a 0, which the queue replaces by the number of the question, the number of elements and the number
of bytes; the message starts in it.
"""

import struct

ELEMENT = 24
_HEAD = struct.Struct("<III")


def pack(message: bytes) -> bytes:
    """Encode a message as a packet."""
    length = _HEAD.size + len(message)
    count = -(-length // ELEMENT)
    return _HEAD.pack(0, count, len(message)) + message + bytes(count * ELEMENT - length)


def unpack(packet: bytes) -> bytes:
    """Return the message in a packet; ValueError if its length does not fit."""
    kind, count, length = _HEAD.unpack_from(packet) if len(packet) >= ELEMENT else (0, 0, len(packet))
    if kind or count * ELEMENT != len(packet) or not 0 <= count * ELEMENT - _HEAD.size - length < ELEMENT:
        raise ValueError(f"burst packet: {length} bytes are announced, must fill its {count} elements")
    return packet[_HEAD.size : _HEAD.size + length]
