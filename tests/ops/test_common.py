"""What kernels share: quantising real values."""

from fractions import Fraction

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import Activation
from nnhal.base.operands import UnknownValue, Value
from nnhal.model.validate import validate
from nnhal.ops.common import encode, fused, rounded
from tests.ops.run import Q8, Q8S, Q16A, Q16S


def nearest(number: float) -> int:
    """The nearest integer, halves away from zero, exactly."""
    exact = abs(Fraction(number)) + Fraction(1, 2)
    return int(exact) if number >= 0 else -int(exact)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_halves_and_their_neighbours_are_rounded_exactly(dtype: type) -> None:
    halves = np.array([0.5, 1.5, 2.5, 126.5, 127.5, 254.5, 32766.5, 2**21 + 0.5, 2**22 + 0.5], dtype)
    around = [np.nextafter(halves, dtype(0)), halves, np.nextafter(halves, dtype(2**30))]
    whole = np.array([0, 1, 2**23 - 1, 2**23 + 1, 2**24, 2**30], dtype)
    numbers = np.concatenate([*around, whole, np.nextafter(dtype(0), dtype([1]))])
    for x in (numbers, -numbers):
        assert rounded(x).tolist() == [nearest(n) for n in x.tolist()]


def test_quantising_what_lies_just_below_half_a_step_gives_no_step() -> None:
    below = np.nextafter(np.float32(0.5), np.float32(0))
    assert encode(Value(Q8, scale=1.0, zero_point=3), np.float32([below, -below, 0.5, -0.5])).tolist() == [3, 3, 4, 2]
    assert encode(Value(Q8S, scale=1.0), np.array([np.nextafter(0.5, 0), -0.5])).tolist() == [0, -1]


@pytest.mark.parametrize(
    ("kind", "least", "most"), [(Q8, 0, 255), (Q8S, -128, 127), (Q16A, 0, 65535), (Q16S, -32768, 32767)]
)
def test_quantising_saturates(kind: int, least: int, most: int) -> None:
    assert encode(Value(kind, scale=0.5), np.float32([-1e9, 1e9, -np.inf, np.inf])).tolist() == [least, most] * 2


def test_an_activation_is_the_operations_own_or_none_or_not_known_yet() -> None:
    b = nnhal.Builder()
    x, given = b.input((2,)), b.input((), "INT32")
    outputs = [b.add(x, x, "relu6"), b.add(x, x), b.abs(x), b.add(x, x, given)]
    *known, later = validate(b.finish([x, given], outputs)).subgraphs[0].operations
    assert [fused(a) for a in known] == [Activation.RELU6, Activation.NONE, Activation.NONE]
    with pytest.raises(UnknownValue):
        fused(later)
