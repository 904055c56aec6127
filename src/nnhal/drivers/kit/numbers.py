"""Arguments of operations as engines expect them, for every signature of the operation."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nnhal.ops.common import ACTIVATION_RANGE, dilation_of, encode, fused, padding
from nnhal.ops.schema import Bound

PARTS = 512  # of a step, of which 255 are less than a half
SAME = 2.0**-22  # relative: quotients of scales this near are equal in float32


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


def makes_halves(scales: Sequence[float], step: float) -> bool:
    """Whether many multiples of scales are exact halves of a step, which kernels of 8 bits round in their own ways.

    They are where the quotient of a scale and the step is a number of 512ths, and no integer.
    """
    for scale in scales:
        parts = scale / step * PARTS
        whole = round(parts)
        if whole % PARTS and abs(parts - whole) <= whole * SAME:
            return True
    return False
