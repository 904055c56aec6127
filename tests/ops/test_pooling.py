"""Pooling: how the mean of quantised elements is rounded."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from tests.ops.run import Q8, Q8S, result, run, value

NONE, RELU = 0, 1


def rounded(number: Fraction) -> int:
    """The nearest integer, halves away from 0."""
    return int(number + Fraction(1, 2)) if number >= 0 else -int(-number + Fraction(1, 2))


def averages(kind: int, rows: list[list[int]], zero: int, activation: int = NONE) -> list[int]:
    """The mean of each row."""
    x = value(kind, np.array(rows)[:, None, :, None], 0.5, zero)
    width = len(rows[0])
    made = run("AVERAGE_POOL_2D", [x, 0, 0, 0, 0, 1, 1, width, 1, activation], result(kind, None, 0.5, zero))[0]
    assert made.shape == (len(rows), 1, 1, 1)
    return [int(n) for n in made.ravel()]


@pytest.mark.parametrize("zero", [-128, -3, 0, 3, 127])
def test_signed_ties_are_rounded_away_from_a_stored_0_on_either_side_of_the_zero_point(zero: int) -> None:
    rows = [[-5, -4], [-3, -2], [-1, 0], [0, 1], [2, 3], [4, 5], [-128, -127], [126, 127]]
    assert averages(Q8S, rows, zero) == [-5, -3, -1, 1, 3, 5, -128, 127]


@pytest.mark.parametrize("zero", [0, 4, 128, 255])
def test_unsigned_ties_are_rounded_up_on_either_side_of_the_zero_point(zero: int) -> None:
    rows = [[0, 1], [2, 3], [4, 5], [127, 128], [254, 255]]
    assert averages(Q8, rows, zero) == [1, 3, 5, 128, 255]


@pytest.mark.parametrize("width", [2, 3, 4, 6, 7])
def test_every_mean_is_the_nearest_integer(width: int) -> None:
    sums = range(-128 * width, 127 * width + 1)
    rows = [[total // width + (n < total % width) for n in range(width)] for total in sums]
    assert averages(Q8S, rows, 11) == [rounded(Fraction(total, width)) for total in sums]


def test_a_window_of_many_elements_is_summed_exactly() -> None:
    side = 300  # 90,000 elements, whose sum float32 does not hold
    x = np.full((1, side, side, 1), 255)
    x[0, : side // 2] = 254  # the mean is 254.5
    for change, mean in ((0, 255), (-1, 254)):
        x[0, 0, 0, 0] = 254 + change
        q = value(Q8, x, 0.5, 7)
        made = run("AVERAGE_POOL_2D", [q, 2, 1, 1, side, side, NONE], result(Q8, None, 0.5, 7))[0]
        assert made.ravel().tolist() == [mean]


def test_explicit_padding_does_not_count() -> None:
    x = np.array([[-5, -4], [-4, -4]]).reshape(1, 2, 2, 1)
    made = run("AVERAGE_POOL_2D", [value(Q8S, x, 0.5, -9), 1, 0, 0, 1, 1, 1, 2, 2, NONE], result(Q8S, None, 0.5, -9))[0]
    windows = product([[0, 1], [1]], [[0], [0, 1]])  # rows and columns that each place meets
    wanted = [
        rounded(Fraction(int(x[0, rows][:, columns].sum()), len(rows) * len(columns))) for rows, columns in windows
    ]
    assert wanted == [-5, -4, -4, -4]  # -4.5, -17/4, -4, -4
    assert made.ravel().tolist() == wanted


def test_the_activation_follows_the_rounding() -> None:
    assert averages(Q8S, [[-5, -4], [-4, -3], [-3, -2]], -4, RELU) == [-4, -4, -3]
