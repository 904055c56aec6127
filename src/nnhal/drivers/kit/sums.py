"""How great sums of products of steps become, for engines that have float32 or 32 bits for them."""

import math

import numpy as np

from nnhal.base.operands import Value
from nnhal.drivers.kit.forms import Refused
from nnhal.ops.common import type_range

EXACT = 2**24  # integers up to here are float32
SLIGHT = 2.0**-4  # of a step of the output, by which sums may be off for each of them that is rounded


def reach(value: Value) -> int:
    """The greatest distance of an element from the zero point."""
    return max(abs(limit - value.zero_point) for limit in type_range(value.type))


def greatest_sum(x: Value, weights: Value, axis: int, bias: Value | None = None) -> float:
    """The greatest magnitude of a sum of products of steps, whatever `x` holds.

    axis: of the weights, along which the sums lie. bias: in the scale of the products, added to them.
    """
    if weights.data is None:
        found = reach(x) * reach(weights) * math.prod(weights.known) / max(1, weights.known[axis])
    else:
        steps = np.abs(np.moveaxis(np.asarray(weights.data), axis, 0).astype(np.float32) - weights.zero_point)
        found = float(reach(x) * steps.reshape(len(steps), -1).sum(1, dtype=np.float64).max(initial=0))
    return found if bias is None else found + greatest_of(bias)


def greatest_of(bias: Value) -> float:
    """The greatest magnitude in a bias, of any where it is given at execution."""
    return 2.0**31 if bias.data is None else float(np.abs(np.asarray(bias.data, np.float64)).max(initial=0))


def require_exact(greatest: float, ratio: float) -> None:
    """Refuse sums that float32 may get wrong by a step of the output. ratio: of the products' scale to the output's."""
    if greatest > EXACT and greatest / EXACT * ratio > SLIGHT:
        raise Refused(f"sums of up to {greatest:g} steps are not exact in float32")


def require_32_bits(greatest: float) -> None:
    """Refuse sums that wrap around."""
    if greatest >= 2**31:
        raise Refused(f"sums of up to {greatest:g} steps leave 32 bits")
