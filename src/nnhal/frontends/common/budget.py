"""Limits on the cost of importing one file.

Each allowance grows with the file's bytes, so that a small file stays cheap.

An operation costs about half a millisecond, an element of shape arithmetic about a tenth of a microsecond. So the
minimum allowance costs less than a second, and 128 MiB. docs/how-to/models/run-onnx.md has the figures.
"""

from enum import Enum
from typing import NamedTuple

from nnhal.base.errors import BadFile


class FileLimit(NamedTuple):
    """An allowance of `least` units of `what` for any file, plus `share` for each byte, at most `most`."""

    what: str
    least: int
    share: float
    most: int

    def of(self, size: int) -> int:
        """Return the allowance of a file of `size` bytes."""
        return min(self.least + int(self.share * size), self.most)


class Cost(Enum):
    """The kinds of cost."""

    __hash__ = object.__hash__  # each member exists once, and Enum's own hash is a call in Python

    RECORDS = FileLimit("bytes of records, of which some may overlap", 1024, 4, 1 << 32)
    TABLES = FileLimit("tables", 1000, 1 / 8, 1 << 20)  # the smallest table and its place in a vector
    OPERATIONS = FileLimit("operations", 2000, 1 / 32, 100_000)
    MEMORY = FileLimit("bytes of constants that are not in the file as they are", 128 << 20, 16, 1 << 32)
    ELEMENTS = FileLimit("elements of shapes, indices and lists", 4_000_000, 16, 1 << 32)


class Budget:
    """The remaining allowances of one file. label: for messages."""

    def __init__(self, label: str, size: int) -> None:
        self.label, self.size = label, size
        self.left = {cost: cost.value.of(size) for cost in Cost}

    def spend(self, cost: Cost, count: int, place: str = "") -> None:
        """Spend from an allowance before the work is done. Raises BadFile if it is exhausted."""
        self.left[cost] = left = self.left[cost] - count
        if left < 0:
            most = cost.value.of(self.size)
            what = f"needs more than {most} {cost.value.what} to import, the most for a file of {self.size} bytes"
            raise BadFile(": ".join(filter(None, (self.label, place, what))))
