"""Packets of a burst: messages as elements of 24 bytes.

The first element has a 0 (for the queue's own use), the number of elements, the number of bytes, and the beginning of
the message.
"""

import struct

ELEMENT = 24
_HEAD = struct.Struct("<III")


def pack(message: bytes) -> bytes:
    """Return a message as a packet."""
    length = _HEAD.size + len(message)
    count = -(-length // ELEMENT)
    return _HEAD.pack(0, count, len(message)) + message + bytes(count * ELEMENT - length)


def unpack(packet: bytes) -> bytes:
    """Return the message in a packet; ValueError for an invalid length."""
    kind, count, length = _HEAD.unpack_from(packet) if len(packet) >= ELEMENT else (0, 0, len(packet))
    if kind or count * ELEMENT != len(packet) or not 0 <= count * ELEMENT - _HEAD.size - length < ELEMENT:
        raise ValueError(f"burst packet: {length} bytes are announced, must fill its {count} elements")
    return packet[_HEAD.size : _HEAD.size + length]
