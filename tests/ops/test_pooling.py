"""Pooling against its definition, window by window; how the mean of quantised elements is rounded."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import Padding
from nnhal.base.errors import InvalidModel
from nnhal.base.operands import Array
from tests.ops.run import Q8, Q8S, bound, result, run, value

NONE, RELU, RELU1, RELU6 = range(4)


def pieces(
    x: Array, pads: Sequence[int], strides: Sequence[int], size: Sequence[int]
) -> Iterator[tuple[int, int, Array]]:
    """What a window meets of a picture: pads left, right, top, bottom; strides and size width first."""
    height, width = x.shape[1:3]
    left, right, top, bottom = pads
    for i in range((height + top + bottom - size[1]) // strides[1] + 1):
        for j in range((width + left + right - size[0]) // strides[0] + 1):
            y, z = i * strides[1] - top, j * strides[0] - left
            yield i, j, x[:, max(y, 0) : max(y + size[1], 0), max(z, 0) : max(z + size[0], 0)]


REDUCED = {
    "AVERAGE_POOL_2D": lambda x: x.mean((1, 2)),
    "MAX_POOL_2D": lambda x: x.max((1, 2)),
    "L2_POOL_2D": lambda x: np.sqrt((x * x).mean((1, 2))),
}


@pytest.mark.parametrize("name", REDUCED)
@pytest.mark.parametrize(
    ("pads", "strides", "size"),
    [
        ((0, 0, 0, 0), (1, 1), (2, 3)),
        ((1, 0, 2, 1), (2, 1), (3, 4)),
        ((0, 2, 0, 0), (1, 3), (3, 1)),
        ((1, 1, 1, 1), (3, 2), (2, 2)),
    ],
)
def test_windows_are_reduced_by_the_definition(name: str, pads: Any, strides: Any, size: Any) -> None:
    x = np.random.default_rng(3).normal(size=(2, 6, 7, 3)).astype(np.float32) - 2  # so that a 0 is no greatest
    made = run(name, [x, *pads, *strides, *size, NONE])[0]
    found = list(pieces(x.astype(float), pads, strides, size))
    assert made.shape == (2, found[-1][0] + 1, found[-1][1] + 1, 3)
    for i, j, piece in found:
        np.testing.assert_allclose(made[:, i, j], REDUCED[name](piece), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", REDUCED)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_the_scheme_same_puts_the_odd_padding_behind(name: str, stride: int) -> None:
    x = np.random.default_rng(4).normal(size=(1, 5, 6, 2)).astype(np.float32)
    pads = []
    for size in (6, 5):
        total = max(0, (-(-size // stride) - 1) * stride + 2 + (size == 5) - size)
        pads += [total // 2, total - total // 2]
    made = run(name, [x, int(Padding.SAME), stride, stride, 2, 3, NONE])[0]
    assert made.shape == (1, -(-5 // stride), -(-6 // stride), 2)
    for i, j, piece in pieces(x.astype(float), pads, (stride, stride), (2, 3)):
        np.testing.assert_allclose(made[:, i, j], REDUCED[name](piece), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("activation", "low", "high"), [(NONE, -99, 99), (RELU, 0, 99), (RELU1, -1, 1), (RELU6, 0, 6)])
def test_the_activation_clips_real_values(activation: int, low: float, high: float) -> None:
    x = np.float32([-8, -0.5, 0.5, 7]).reshape(1, 1, 4, 1)
    for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
        made = run(name, [x, 2, 1, 1, 1, 1, activation])[0]
        np.testing.assert_array_equal(made, np.clip(x, low, high))
    q = value(Q8, np.array([0, 100, 116, 255]).reshape(1, 1, 4, 1), 0.125, 104)  # -13, -0.5, 1.5, 18.875
    made = run("MAX_POOL_2D", [q, 2, 1, 1, 1, 1, activation], result(Q8, None, 0.125, 104))[0]
    real = np.clip([-13, -0.5, 1.5, 18.875], low, high)
    assert made.ravel().tolist() == np.rint(real / 0.125 + 104).tolist()


@pytest.mark.parametrize("kind", [Q8, Q8S])
def test_the_greatest_stored_element_is_found_in_every_window(kind: int) -> None:
    low = -128 if kind == Q8S else 0
    x = np.random.default_rng(5).integers(low, low + 256, (1, 5, 5, 2))
    made = run(
        "MAX_POOL_2D", [value(kind, x, 0.5, low + 7), 1, 1, 1, 1, 2, 2, 3, 3, NONE], result(kind, None, 0.5, low + 7)
    )[0]
    for i, j, piece in pieces(x, (1, 1, 1, 1), (2, 2), (3, 3)):
        assert made[:, i, j].tolist() == piece.max((1, 2)).tolist()


def test_squares_beyond_float32_have_a_root_within() -> None:
    x = np.full((1, 1, 2, 1), 3e30, np.float32)
    np.testing.assert_allclose(run("L2_POOL_2D", [x, 2, 1, 1, 2, 1, NONE])[0], [[[[3e30]]]], rtol=1e-6)


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


@pytest.mark.parametrize("name", ["AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((1, 0, 5, 2), "height"), ((1, 4, 0, 2), "width"), ((1, 4, 5, 0), "depth")]
)
def test_a_window_has_something_to_take(name: str, shape: tuple[int, ...], axis: str) -> None:
    with pytest.raises(InvalidModel, match=f"{axis} = 0, must be at least 1: only batches may be 0"):
        bound(name, [np.zeros(shape, np.float32), 3, 3, 3, 3, 1, 1, 4, 4, NONE])
    assert run(name, [np.zeros((0, 4, 5, 2), np.float32), 3, 3, 3, 3, 1, 1, 4, 4, NONE])[0].shape == (0, 7, 8, 2)
