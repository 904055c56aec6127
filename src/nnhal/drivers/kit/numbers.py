"""The parameters of operations as the numbers that engines need, for every signature of an operation."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nnhal.ops.common import ACTIVATION_RANGE, dilation_of, encode, fused, padding
from nnhal.ops.schema import Bound

PARTS = 512  # of a quantisation step, of which 255 are less than a half
SAME = 2.0**-22  # relative: quotients of scales this close are equal in float32


class Window(NamedTuple):
    """A window along one axis.

    Attributes:
        size: The elements that it covers.
        dilation: The distance between these elements.
        stride: The distance between windows.
        before: Padding before the first element.
        after: Padding after the last element.
    """

    size: int
    dilation: int
    stride: int
    before: int
    after: int


def window(a: Bound, axis: str) -> Window:
    """Return the window of a convolution or pooling, with explicit padding or a padding scheme.

    Args:
        a: The operation. It must not be TRANSPOSE_CONV_2D, whose padding cuts off elements of the output.
        axis: "h" or "w".

    Raises:
        UnknownValue: A scheme pads an input whose size is known only at execution.
    """
    before, after = padding(a, axis)
    return Window(getattr(a, f"filter_{axis}"), dilation_of(a, axis), getattr(a, f"stride_{axis}"), before, after)


def bounds(a: Bound) -> tuple[float, float]:
    """Return the bounds of the real output values after the fused activation; infinite if it has no such bound.

    Args:
        a: The operation.

    Raises:
        UnknownValue: The activation is known only at execution.
    """
    return ACTIVATION_RANGE[fused(a)]


def stored_bounds(a: Bound) -> tuple[int, int]:
    """Return the bounds of a quantised output after the fused activation, as stored values within its type.

    Args:
        a: The operation.

    Raises:
        UnknownValue: The activation is known only at execution.
    """
    low, high = encode(a.out, np.array(bounds(a), np.float32)).tolist()
    return low, high


def has_many_ties(scales: Sequence[float], step: float) -> bool:
    """Whether many multiples of scales are exact halves of a quantisation step, which 8-bit kernels round in different ways.

    They are if the quotient of a scale and the step is a whole number of 512ths, but not an integer.
    """
    for scale in scales:
        parts = scale / step * PARTS
        whole = round(parts)
        if whole % PARTS and abs(parts - whole) <= whole * SAME:
            return True
    return False
