"""What operations come to in the numbers that engines ask for, whatever the form in which they were called."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nnhal.ops.common import ACTIVATION_RANGE, dilation_of, encode, fused, padding
from nnhal.ops.schema import Bound

PARTS = 512  # of a step, of which 255 are less than a half
SAME = 2.0**-22  # relative: quotients of scales this near are equal in float32


class Window(NamedTuple):
    """A window along one axis: elements that it covers, with steps between them; how far it moves; padding at both ends."""

    size: int
    dilation: int
    stride: int
    before: int
    after: int


def window(a: Bound, axis: str) -> Window:
    """The window of a convolution or pooling along "h" or "w", its padding stated or by a scheme.

    Unknown where a scheme pads an input whose size is only known at execution. Not for TRANSPOSE_CONV_2D: its padding cuts.
    """
    before, after = padding(a, axis)
    return Window(getattr(a, f"filter_{axis}"), dilation_of(a, axis), getattr(a, f"stride_{axis}"), before, after)


def bounds(a: Bound) -> tuple[float, float]:
    """Between which real values the fused activation keeps the output; infinite where it does not. Unknown where the
    execution gives the activation.
    """
    return ACTIVATION_RANGE[fused(a)]


def stored_bounds(a: Bound) -> tuple[int, int]:
    """The same in stored values of a quantised output, which are within its type."""
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
