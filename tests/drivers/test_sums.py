"""How great sums of products become, worked out by hand, and what drivers refuse because of them."""

import numpy as np
import pytest

from nnhal.base.operands import Value
from nnhal.drivers.kit.forms import Refused
from nnhal.drivers.kit.sums import greatest_sum, require_32_bits
from nnhal.ops.schema import I32, Q8S

X = Value(Q8S, (2, 3), 0.5, 3)  # -128 is 131 steps from its zero point
WEIGHTS = Value(Q8S, (2, 3), 0.25, 1, data=np.array([[1, -2, 0], [3, 4, -5]], np.int8))  # less 1: 0 -3 -1, 2 3 -6


def bias(*steps: int) -> Value:
    return Value(I32, (len(steps),), 0.125, data=np.array(steps, np.int32))


@pytest.mark.parametrize(("axis", "greatest"), [(0, 131 * (2 + 3 + 6)), (1, 131 * (1 + 6))])
def test_the_greatest_sum_is_that_of_the_channel_with_the_greatest_weights(axis: int, greatest: int) -> None:
    assert greatest_sum(X, WEIGHTS, axis) == greatest


def test_weights_that_an_execution_gives_are_all_as_great_as_they_can_be() -> None:
    assert greatest_sum(X, Value(Q8S, (2, 3), 0.25, 1), 0) == 3 * 131 * 129


def test_the_greatest_magnitude_of_the_bias_is_part_of_the_greatest_sum() -> None:
    assert greatest_sum(X, WEIGHTS, 0, bias(700, -90_000)) == 131 * 11 + 90_000
    assert greatest_sum(X, WEIGHTS, 0, Value(I32, (2,), 0.125)) == 131 * 11 + 2**31


def test_sums_that_only_a_bias_takes_beyond_32_bits_are_refused() -> None:
    require_32_bits(greatest_sum(X, WEIGHTS, 0, bias(2**31 - 1 - 131 * 11, 0)))
    with pytest.raises(Refused, match="leave 32 bits"):
        require_32_bits(greatest_sum(X, WEIGHTS, 0, bias(0, 2**31 - 131 * 11)))
