"""Memory for outputs that a driver fills in place, and whether it filled them and nothing past them."""

import math
from typing import Any

import numpy as np

from nnhal.base.operands import Array, typed

GUARD = np.arange(0xA0, 0xE0, dtype=np.uint8)
# By bytes of an element: as a float, a NaN that no computation gives, and that no memory happens to hold.
POISON = {n: np.dtype(f"u{n}").type(v) for n, v in ((1, 0xA5), (2, 0xFE5B), (4, 0xFFA5C3D2), (8, 0xFFF5A5C3D2E1B497))}


class OutputMemory:
    """Makes memory with a guard behind it. Nothing of another execution is in it; floats are poisoned."""

    def blank(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return memory for an output."""
        size = math.prod(shape) * dtype.itemsize
        data = np.empty(size + len(GUARD), np.uint8)
        poison = POISON[dtype.itemsize]
        data[:size].view(poison.dtype)[...] = poison if self.poisons(dtype) else 0
        data[size:] = GUARD
        return typed(data, dtype, shape)

    def poisons(self, dtype: np.dtype[Any]) -> bool:
        """Whether memory of this type is poisoned."""
        return dtype.kind == "f"

    def left_out(self, array: Array) -> bool:
        """Whether it can be seen that a driver did not fill memory that it took; both ends are looked at."""
        if array.dtype.kind != "f":
            return False
        poison = POISON[array.dtype.itemsize]
        return bool((array.ravel().view(poison.dtype)[[0, -1]] == poison).any())


class CheckedOutputMemory(OutputMemory):
    """Memory that is poisoned for every type, and checked as a whole."""

    def poisons(self, dtype: np.dtype[Any]) -> bool:
        """Returns True: memory of every type is poisoned."""
        return True

    def left_out(self, array: Array) -> bool:
        """Whether poison is left: anywhere in floats, everywhere in other types, where one element may be that by right."""
        poison = POISON[array.dtype.itemsize]
        left = array.ravel().view(poison.dtype) == poison
        return bool(left.any()) if array.dtype.kind == "f" else bool(left.all()) and array.nbytes >= 16


def overwritten(array: Array) -> bool:
    """Whether the guard behind memory that `blank` made is no longer what it was."""
    data = array
    while isinstance(data.base, np.ndarray):
        data = data.base
    return bool((data[-len(GUARD) :] != GUARD).any())
