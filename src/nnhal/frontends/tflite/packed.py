"""Weights of four and two bits, which NNAPI has no types for.

They become INT8, with the scales of the file. Those with several scales for each channel, one for each block of
elements, become real values in FLOAT32.
"""

from typing import NamedTuple

import numpy as np

from nnhal.base.operands import Array

BITS = {"INT8": 8, "INT4": 4, "INT2": 2}  # of the types that may have scales for blocks
PACKED = "INT4", "INT2"  # those that share bytes


class BlockQuant(NamedTuple):
    """Scales of blocks along the last dimension. scales: the number of their tensor. size: the elements of a block."""

    scales: int
    size: int

    def real(self, stored: Array, scales: Array) -> Array:
        """Return the real values of stored ones, as float32."""
        blocks = stored.reshape(-1, self.size).astype(np.float32)
        return (blocks * scales.reshape(-1, 1).astype(np.float32)).reshape(stored.shape)
