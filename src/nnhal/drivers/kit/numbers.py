"""Arguments of operations as engines expect them, for every signature of the operation."""

from typing import NamedTuple

import numpy as np

from nnhal.ops.common import ACTIVATION_RANGE, dilation_of, encode, fused, padding
from nnhal.ops.schema import Bound


class Window(NamedTuple):
    """A window along one axis.

    Attributes:
        size: The elements that it covers.
        dilation: The distance between them.
        stride: How far it moves.
        before: The padding at the begin.
        after: The padding at the end.
    """

    size: int
    dilation: int
    stride: int
    before: int
    after: int


def window(a: Bound, axis: str) -> Window:
    """Return the window of a convolution or pooling, with explicit padding.

    Not for TRANSPOSE_CONV_2D, whose padding crops.

    Args:
        a: The operation.
        axis: "h" or "w".

    Raises:
        Unknown: An implicit padding depends on a size that is only known at execution.
    """
    before, after = padding(a, axis)
    return Window(getattr(a, f"filter_{axis}"), dilation_of(a, axis), getattr(a, f"stride_{axis}"), before, after)


def bounds(a: Bound) -> tuple[float, float]:
    """Return the real values between which the fused activation keeps the output; infinite for none.

    Args:
        a: The operation.

    Raises:
        Unknown: The activation is only known at execution.
    """
    return ACTIVATION_RANGE[fused(a)]


def stored_bounds(a: Bound) -> tuple[int, int]:
    """Return the same in stored values of a quantised output, within its type.

    Args:
        a: The operation.
    """
    low, high = encode(a.out, np.array(bounds(a), np.float32)).tolist()
    return low, high
