"""RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR on their three grids."""

import math

import numpy as np
import pytest

from nnhal.base.errors import InvalidModel
from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.base.operands import Value
from tests.ops.run import F16, F32, Q8, Q8S, Type, bound, result, run, value

BILINEAR, NEAREST = "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"
PLAIN, ALIGNED, CENTRED = (False, False), (True, False), (False, True)


def row(*numbers):
    return np.float32(numbers).reshape(1, 1, -1, 1)


@pytest.mark.parametrize(
    ("grid", "size", "expected"),
    [
        (PLAIN, 4, [0, 1.5, 3, 3]),
        (ALIGNED, 4, [0, 1, 2, 3]),
        (CENTRED, 4, [0, 0.75, 2.25, 3]),
        (ALIGNED, 1, [0]),
        (CENTRED, 1, [1.5]),
    ],
)
def test_elements_between_two_are_interpolated(grid, size, expected):
    x = row(0, 3)
    np.testing.assert_allclose(run(BILINEAR, [x, size, 1, False, *grid])[0].ravel(), expected)
    column = x.reshape(1, 2, 1, 1)
    np.testing.assert_allclose(run(BILINEAR, [column, 1, size, False, *grid])[0].ravel(), expected)


@pytest.mark.parametrize(
    ("grid", "x", "size", "expected"),
    [
        (PLAIN, (0, 1, 2), 5, [0, 0, 1, 1, 2]),  # floor of i * 3 / 5
        (ALIGNED, (0, 1, 2), 5, [0, 1, 1, 2, 2]),  # i / 2, halves rounded up
        (CENTRED, (0, 1, 2), 5, [0, 0, 1, 2, 2]),  # floor of (i + 1/2) * 3 / 5
        (CENTRED, (0, 1, 2, 3), 2, [1, 3]),
        (PLAIN, (0, 1, 2, 3), 2, [0, 2]),
        (ALIGNED, (0, 1, 2, 3), 2, [0, 3]),
    ],
)
def test_the_nearest_element_is_taken(grid, x, size, expected):
    assert run(NEAREST, [row(*x), size, 1, False, *grid])[0].ravel().tolist() == expected


@pytest.mark.parametrize("name", [BILINEAR, NEAREST])
@pytest.mark.parametrize("grid", [PLAIN, ALIGNED, CENTRED])
def test_same_size_and_other_layout_change_nothing(name, grid):
    x = np.random.default_rng(8).standard_normal((2, 3, 4, 2)).astype(np.float32)
    np.testing.assert_array_equal(run(name, [x, 4, 3, False, *grid])[0], x)
    made = run(name, [x, 7, 2, False, *grid])[0]
    moved = run(name, [np.moveaxis(x, -1, 1), 7, 2, True, *grid])[0]
    np.testing.assert_array_equal(moved, np.moveaxis(made, -1, 1))


def test_quantised_elements_are_rounded_and_keep_their_scale():
    x = value(Q8, row(0, 255), 0.5, 100)
    made = run(BILINEAR, [x, 4, 1, False, *CENTRED], result(Q8, None, 0.5, 100))[0]
    assert made.ravel().tolist() == [0, 64, 191, 255]
    with pytest.raises(InvalidModel, match=r"must be those of the input, 0\.5 and 100"):
        bound(NEAREST, [x, 4, 1, False], result(Q8, None, 0.5, 99))


def test_scales_are_floored():
    x = Value(F32, (2, 5, 7, 3))
    assert bound(BILINEAR, [x, 1.5, 0.5]).shapes == [(2, 2, 10, 3)]
    assert bound(NEAREST, [x, 0.4, 2.0, True]).shapes == [(2, 5, 14, 1)]
    half = value(Type.FLOAT16, 1.1)  # a little less than 1.1
    assert bound(BILINEAR, [Value(F16, (1, 10, 10, 1)), half, half], result(F16)).shapes == [(1, 10, 10, 1)]
    with pytest.raises(InvalidModel, match=r"input 2 \(scale_h\) is FLOAT32, must be one of: FLOAT16"):
        bound(BILINEAR, [Value(F16, (1, 10, 10, 1)), half, 1.1], result(F16))


@pytest.mark.parametrize("scale", [0.1, 0.0, -1.0, math.nan, math.inf, 1e30])
def test_scales_that_leave_no_picture_are_rejected(scale):
    with pytest.raises(InvalidModel, match=rf"scale_h = {scale:g}".replace("+", r"\+")):
        bound(BILINEAR, [row(1, 2), 1.0, scale])


def test_shapes_follow_as_far_as_they_are_known():
    x = Value(F32, (None, 4, None, 3))
    assert bound(NEAREST, [x, 5, 6, False]).shapes == [(None, 6, 5, 3)]
    assert bound(NEAREST, [x, 0.5, 0.5, False]).shapes == [(None, 2, None, 3)]
    assert bound(BILINEAR, [Value(F32, None), 5, 6]).shapes == [(None, 6, 5, None)]


def test_levels_follow_types_arguments_and_scales():
    x = row(1, 2)
    for tail, level in ((), V1_0), ((False,), V1_0), ((True,), V1_2), ((False, True), V1_3), ((False, False), V1_0):
        assert bound(BILINEAR, [x, 2, 2, *tail]).level == level
    assert bound(BILINEAR, [x, 2.0, 2.0]).level == V1_2
    assert bound(NEAREST, [x, 2, 2, False]).level == V1_2
    assert bound(NEAREST, [x, 2, 2, False, False, True]).level == V1_3
    assert bound(NEAREST, [value(Q8S, x, 1.0), 2, 2, False], result(Q8S, None, 1.0)).level == V1_3


def test_grids_exclude_each_other_and_sizes_are_positive():
    with pytest.raises(InvalidModel, match="half_pixel_centers is true, must be false with align_corners"):
        bound(BILINEAR, [row(1, 2), 2, 2, False, True, True])
    with pytest.raises(InvalidModel, match=r"input 2 \(out_h\) = 0, must be at least 1"):
        bound(BILINEAR, [row(1, 2), 2, 0])
    with pytest.raises(InvalidModel, match="has 3 inputs, must have 4 or 5 or 6"):
        bound(NEAREST, [row(1, 2), 2, 2])
    with pytest.raises(InvalidModel, match="width = 0, must be at least 1: only batches may be 0"):
        run(BILINEAR, [np.zeros((1, 2, 0, 1), np.float32), 2, 2])


def test_no_batches_make_no_pictures():
    for name in (BILINEAR, NEAREST):
        assert run(name, [np.zeros((0, 2, 2, 1), np.float32), 3, 4, False])[0].shape == (0, 4, 3, 1)


def test_pictures_beyond_any_tensor_are_an_error():
    with pytest.raises(InvalidModel, match=r"would have shape \[1, 2147483647, 5, 1\], must have at most 4294967295"):
        run(NEAREST, [row(1, 2), 5, 2**31 - 1, False])


def test_what_lies_beyond_the_last_element_is_that_element_to_the_bit():
    x = np.random.default_rng(4).standard_normal((1, 3, 3, 200)).astype(np.float32)
    for grid in (PLAIN, CENTRED):
        made = run(BILINEAR, [x, 8, 7, False, *grid])[0]
        np.testing.assert_array_equal(made[:, -1, -1], x[:, -1, -1])
    np.testing.assert_array_equal(run(BILINEAR, [x, 8, 7, False, *CENTRED])[0][:, 0, 0], x[:, 0, 0])


def test_a_place_that_is_rounded_beyond_the_last_element_is_that_element():
    """In float32 the last of 6,000,001 places in 3 elements is 3."""
    x = value(Q8, np.array([1, 2, 3]).reshape(1, 1, 3, 1), 0.5)
    made = run(NEAREST, [x, 6_000_001, 1, False, *CENTRED], result(Q8, None, 0.5))[0]
    assert made.shape == (1, 1, 6_000_001, 1) and made[0, 0, -1, 0] == 3 and made[0, 0, 0, 0] == 1


@pytest.mark.parametrize(("scale", "fine"), [(0.5, True), (0.49, False), (2.0**30 - 64, True), (2.0**30, False)])
def test_a_scale_makes_one_element_to_as_many_as_numbers_count(scale, fine):
    x = Value(Q8, (0, 1, 2, 1), 0.5, 3)
    if fine:
        assert bound(NEAREST, [x, scale, 1.0, False], result(Q8, None, 0.5, 3)).shapes == [(0, 1, int(2 * scale), 1)]
    else:
        with pytest.raises(InvalidModel, match=r"scale_w = .* makes .* of 2, must be at least 1"):
            bound(NEAREST, [x, scale, 1.0, False], result(Q8, None, 0.5, 3))
