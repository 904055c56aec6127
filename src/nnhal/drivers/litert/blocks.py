"""Complete pieces of a flatbuffer: a table is followed by everything that it refers to.

The general builder writes from back to front and field by field, in Python. A model's tables are of few kinds, so this
module computes each layout once.
"""

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from nnhal.base.memory import aligned

TO = "*"  # the format of a field that refers to another block
_UNIT = 8  # every block begins at a multiple of it
_COUNT = struct.Struct("<I")


class Block(NamedTuple):
    """A table, vector or text: whole units of bytes, and the offset in them to which others refer."""

    data: bytes
    at: int


def table(fields: str, *values: Any) -> Block:
    """Make a table; missing fields have their defaults.

    fields: for each its number in the schema and a format of `struct`: `0i 4*`. values: one for each field, a block if
    the format is TO.
    """
    head, pack, size, places = _layout(fields)
    if not places:
        return Block(pack(head, len(head), *values), len(head))
    given, parts = list(values), [b""]
    for number, place in places:
        block: Block = given[number]
        given[number] = size + block.at - place
        parts.append(block.data)
        size += len(block.data)
    parts[0] = pack(head, len(head), *given)
    return Block(b"".join(parts), len(head))


@cache
def _layout(fields: str) -> tuple[bytes, Callable[..., bytes], int, tuple[tuple[int, int], ...]]:
    """Return a table's list of fields, which precedes it, the function that packs both, and their size.

    The last result lists the fields that refer to a block: the number of the value, and the position in the whole.
    """
    listed = [(int(field[:-1]), field[-1]) for field in fields.split()]
    most = max((number for number, _ in listed), default=-1)
    start = aligned(4 + 2 * (most + 1), 4)
    form, size, offsets, places = f"<{start}si", 4, [0] * (most + 1), []
    for place, (number, kind) in enumerate(listed):
        packed = "I" if kind == TO else kind
        at = aligned(start + size, struct.calcsize(packed)) - start
        form += f"{at - size}x{packed}"
        offsets[number], size = at, at + struct.calcsize(packed)
        if kind == TO:
            places.append((place, start + at))
    end = aligned(start + size, _UNIT)
    head = struct.pack(f"<HH{most + 1}H", 4 + 2 * (most + 1), size, *offsets)
    whole = struct.Struct(f"{form}{end - start - size}x")
    return head.ljust(start, b"\0"), whole.pack, end, tuple(places)


def vector(form: str, values: Sequence[Any]) -> Block:
    """Make a vector of numbers in a format of `struct`."""
    pack, at = _vectors(form, len(values))
    return Block(pack(len(values), *values), at)


@cache
def _vectors(form: str, count: int) -> tuple[Callable[..., bytes], int]:
    size = struct.calcsize(form)
    before = size - 4 if size > 4 else 0  # the first one lies at a multiple of its size
    return struct.Struct(f"<{before}xI{count}{form}{-(before + 4 + count * size) % _UNIT}x").pack, before


def text(value: str) -> Block:
    """Make a text."""
    data = value.encode()
    return Block(_padded(_COUNT.pack(len(data)) + data + b"\0"), 0)


def tables(blocks: Sequence[Block]) -> Block:
    """Make a vector of tables."""
    end, offsets = aligned(4 + 4 * len(blocks), _UNIT), []
    for number, (data, at) in enumerate(blocks):
        offsets.append(end + at - 4 - 4 * number)
        end += len(data)
    head = struct.pack(f"<I{len(blocks)}I", len(blocks), *offsets)
    return Block(b"".join([_padded(head), *[data for data, _ in blocks]]), 0)


def file(root: Block, identifier: bytes) -> bytes:
    """Return the whole flatbuffer."""
    return _COUNT.pack(_UNIT + root.at) + identifier + root.data


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _UNIT)
