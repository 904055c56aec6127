"""Parses protocol buffers by field numbers: the contents of a message and the places of its bytes. Nothing is trusted.

A malformed message raises ValueError with the byte; a reader adds the name of the message. Bytes stay in place.
"""

import struct
from collections.abc import Iterator

import numpy as np

from nnhal.base.operands import Array

Bytes = memoryview
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types; no ONNX file has 3 and 4, groups
MOST_BITS = 64
_FLOAT = struct.Struct("<f")


def varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return an unsigned number of up to 64 bits, and its end."""
    value, shift = 0, 0
    while True:
        if at >= end:
            raise ValueError(f"ends within a number, at byte {at}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift >= MOST_BITS + 6:
            raise ValueError(f"has a number of more than {MOST_BITS} bits at byte {at}")


def signed(value: int) -> int:
    """Convert a number of 64 bits to int64."""
    return value - (1 << MOST_BITS) if value >> (MOST_BITS - 1) else value


def fields(data: Bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message: number, wire type, then a number's value and 0, or start and length of bytes."""
    at = start
    while at < end:
        key, at = varint(data, at, end)
        number, wire = key >> 3, key & 7
        if not number:
            raise ValueError(f"has a field of number 0 at byte {at}")
        if wire == VARINT:
            value, at = varint(data, at, end)
            yield number, wire, value, 0
            continue
        if wire == BYTES:
            length, at = varint(data, at, end)
        elif wire in (FIXED32, FIXED64):
            length = 4 if wire == FIXED32 else 8
        else:
            raise ValueError(f"has a field of wire type {wire} at byte {at}, must be 0, 1, 2 or 5")
        if length > end - at:
            raise ValueError(
                f"has a field of {length} bytes at byte {at}, must have at most the {end - at} that are left"
            )
        yield number, wire, at, length
        at += length


def float_at(data: Bytes, at: int) -> float:
    """Return a 32-bit float."""
    return float(_FLOAT.unpack_from(data, at)[0])


def numbers(data: Array) -> Array:
    """Convert packed varints to int64, all bytes of the file at once."""
    if not data.size:
        return np.zeros(0, np.int64)
    last = data < 0x80
    if not last[-1]:
        raise ValueError("ends within a number")
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > 10:
        raise ValueError(f"has a number of more than {MOST_BITS} bits")
    values = np.zeros(ends.size, np.uint64)
    for place in range(int(lengths.max())):
        more = lengths > place
        part = data[starts[more] + place].astype(np.uint64) & np.uint64(0x7F)
        values[more] |= part << np.uint64(7 * place)
    return values.view(np.int64)
