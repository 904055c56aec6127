"""Integers of four and two bits, several to a byte: NNAPI has no types for them, so they become 8-bit ones."""

import math
from collections.abc import Sequence

import numpy as np

from nnhal.base.operands import Array


def packed_size(bits: int, count: int) -> int:
    """Return the bytes of so many integers."""
    return -(-count * bits // 8)


def unpack(data: Array, bits: int, shape: Sequence[int], *, signed: bool) -> Array:
    """Return integers as int8, or as uint8 if they are not signed.

    Args:
        data: Their bytes. The first integer of a byte is in its lowest bits.
        bits: The bits of an integer: 2, 4 or 8.
        shape: Their shape.
        signed: Whether the highest bit of each is its sign.
    """
    kind, count = np.int8 if signed else np.uint8, math.prod(shape)
    rest, places = np.uint8(8 - bits), np.arange(0, 8, bits, dtype=np.uint8)
    high = (data.view(np.uint8).reshape(-1, 1) >> places) << rest  # the highest bit of each in that of a byte
    return (high.view(kind) >> rest.astype(kind)).reshape(-1)[:count].reshape(shape)
