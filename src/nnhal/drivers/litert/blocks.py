"""Pieces of a flatbuffer, each whole in itself: what a table refers to lies behind it.

The general builder writes back to front and field by field, in Python; a model's tables are few kinds, so their layouts are
worked out once each.
"""

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from nnhal.base.memory import aligned

TO = "*"  # the form of a field that refers to another block
_UNIT = 8  # every block begins at a multiple of it
_COUNT = struct.Struct("<I")


class Block(NamedTuple):
    """A table, vector or text: whole units of bytes, and where in them that begins which others refer to."""

    data: bytes
    at: int


def table(fields: str, *values: Any) -> Block:
    """A table; fields that it lacks have their defaults.

    fields: of each its number in the schema and a form of `struct`: `0i 4*`. values: theirs, a block where the form is TO.
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
    """The list of its fields, which lies before a table; what packs both, and how large they are.

    Last, of the fields that refer to a block, which of the values it is and where in the whole it stands.
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
    """A vector of numbers in a form of `struct`."""
    pack, at = _vectors(form, len(values))
    return Block(pack(len(values), *values), at)


@cache
def _vectors(form: str, count: int) -> tuple[Callable[..., bytes], int]:
    size = struct.calcsize(form)
    before = size - 4 if size > 4 else 0  # the first lies at a multiple of its size
    return struct.Struct(f"<{before}xI{count}{form}{-(before + 4 + count * size) % _UNIT}x").pack, before


def text(value: str) -> Block:
    """A text."""
    data = value.encode()
    return Block(_padded(_COUNT.pack(len(data)) + data + b"\0"), 0)


def tables(blocks: Sequence[Block]) -> Block:
    """A vector of tables."""
    end, offsets = aligned(4 + 4 * len(blocks), _UNIT), []
    for number, (data, at) in enumerate(blocks):
        offsets.append(end + at - 4 - 4 * number)
        end += len(data)
    head = struct.pack(f"<I{len(blocks)}I", len(blocks), *offsets)
    return Block(b"".join([_padded(head), *[data for data, _ in blocks]]), 0)


def file(root: Block, identifier: bytes) -> bytes:
    """The whole flatbuffer."""
    return _COUNT.pack(_UNIT + root.at) + identifier + root.data


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _UNIT)
