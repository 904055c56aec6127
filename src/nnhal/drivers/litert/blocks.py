"""Pieces of a flatbuffer, each whole in itself: what a table refers to lies behind it.

The general builder writes back to front and field by field, in Python; a model's tables are few kinds, so their layouts are
worked out once each.
"""

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from nnhal.base.memory import aligned
from nnhal.base.operands import Array

TO = "I"  # the form of a field that refers to another block
_UNIT = 8  # every block begins at a multiple of it
_TO, _SIZES = struct.Struct("<I"), {"b": 1, "B": 1, "?": 1, "i": 4, "f": 4, TO: 4, "q": 8, "Q": 8}


class Block(NamedTuple):
    """A table, vector or text, and where in its bytes that begins which others refer to."""

    data: bytes
    at: int


Field = tuple[int, str, Any]  # its number in the schema, a form of `struct`, a value: a block where the form is TO


def table(*fields: Field) -> Block:
    """A table of these fields; the others have their defaults."""
    head, body, places = _layout(tuple([(number, form) for number, form, _ in fields]))
    values, parts = [], []
    end = aligned(len(head) + body.size, _UNIT)
    for (_, _, value), place in zip(fields, places, strict=True):
        if isinstance(value, Block):
            values.append(end + value.at - place)
            parts.append(_padded(value.data))
            end += len(parts[-1])
        else:
            values.append(value)
    return Block(b"".join([_padded(head + body.pack(len(head), *values)), *parts]), len(head))


@cache
def _layout(fields: tuple[tuple[int, str], ...]) -> tuple[bytes, struct.Struct, tuple[int, ...]]:
    """The list of its fields, which lies before a table, the form of the table, and the place of each field in the block."""
    most = max((number for number, _ in fields), default=-1)
    start = aligned(4 + 2 * (most + 1), 4)
    form, size, offsets, places = "<i", 4, [0] * (most + 1), []
    for number, kind in fields:
        at = aligned(start + size, _SIZES[kind]) - start
        form += f"{at - size}x{kind}"
        offsets[number], size = at, at + _SIZES[kind]
        places.append(start + at)
    head = struct.pack(f"<HH{most + 1}H", 4 + 2 * (most + 1), size, *offsets)
    return head + bytes(start - len(head)), struct.Struct(form), tuple(places)


def integers(values: Sequence[int]) -> Block:
    """A vector of 32-bit integers."""
    return Block(struct.pack(f"<I{len(values)}i", len(values), *values), 0)


def numbers(array: Array) -> Block:
    """A vector of any numbers."""
    before = bytes(4) if array.itemsize == _UNIT else b""  # the first lies at a multiple of its size
    return Block(before + _TO.pack(array.size) + array.tobytes(), len(before))


def text(value: str) -> Block:
    """A text."""
    data = value.encode()
    return Block(_TO.pack(len(data)) + data + b"\0", 0)


def tables(blocks: Sequence[Block]) -> Block:
    """A vector of tables."""
    end, offsets = aligned(4 + 4 * len(blocks), _UNIT), []
    parts = [_padded(block.data) for block in blocks]
    for number, (block, part) in enumerate(zip(blocks, parts, strict=True)):
        offsets.append(end + block.at - 4 - 4 * number)
        end += len(part)
    head = struct.pack(f"<I{len(blocks)}I", len(blocks), *offsets)
    return Block(b"".join([_padded(head), *parts]), 0)


def file(root: Block, identifier: bytes) -> bytes:
    """The whole flatbuffer."""
    return _TO.pack(_UNIT + root.at) + identifier + root.data


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _UNIT)
