"""Tables of a flatbuffer by the numbers of their fields in the published schemas.

Nothing is trusted: an offset outside the bytes raises ValueError or struct.error, to which a reader adds the place.
"""

import struct
from typing import Any

Bytes = memoryview | bytes
MOST_FIELDS = 24  # the most fields that a reader uses; a table may claim to have 32,765
WORD = 4  # bytes of an offset, and of the length before a vector
_OFFSET, _SIGNED, _SHORT = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<H")
_FIELDS = tuple(struct.Struct(f"<{count}H") for count in range(MOST_FIELDS + 1))
_NUMBERS = {form: struct.Struct(f"<{form}") for form in "?bBiIqQf"}


class FlatTable:
    """One table. A missing field has its default; a missing vector is empty."""

    __slots__ = ("_data", "_fields", "at")

    def __init__(self, data: Bytes, at: int) -> None:
        self._data, self.at = data, at
        fields = at - _SIGNED.unpack_from(data, at)[0]
        if fields < 0:
            raise ValueError(f"refers to byte {fields}")
        count = (_SHORT.unpack_from(data, fields)[0] >> 1) - 2
        self._fields: tuple[int, ...] = _FIELDS[min(max(count, 0), MOST_FIELDS)].unpack_from(data, fields + WORD)

    def place(self, field: int) -> int:
        """Return the place of a field, 0 if the table lacks it."""
        fields = self._fields
        offset = fields[field] if field < len(fields) else 0
        return self.at + offset if offset else 0

    def number(self, field: int, form: str = "i", default: Any = 0) -> Any:
        """Return a number in a `struct` format."""
        fields = self._fields
        offset = fields[field] if field < len(fields) else 0
        return _NUMBERS[form].unpack_from(self._data, self.at + offset)[0] if offset else default

    def target(self, field: int) -> int:
        """Return the place that a field refers to, 0 for nothing."""
        at = self.place(field)
        return target(self._data, at) if at else 0

    def child(self, field: int) -> "FlatTable | None":
        """Return a nested table."""
        at = self.target(field)
        return FlatTable(self._data, at) if at else None

    def vector(self, field: int) -> tuple[int, int]:
        """Return the place of a vector's first element or a string's first byte, and the length."""
        fields = self._fields
        offset = fields[field] if field < len(fields) else 0
        if not offset:
            return 0, 0
        at = self.at + offset
        at += _OFFSET.unpack_from(self._data, at)[0]
        return at + WORD, _OFFSET.unpack_from(self._data, at)[0]


def target(data: Bytes, at: int) -> int:
    """Return the place that the offset at `at` refers to."""
    return at + int(_OFFSET.unpack_from(data, at)[0])


def length(data: Bytes, at: int) -> int:
    """Return the length of the vector at `at`."""
    return int(_OFFSET.unpack_from(data, at)[0])
