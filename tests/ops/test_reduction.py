"""Reductions along axes, and positions of extremes."""

import math

import numpy as np
import pytest

from nnhal.base.errors import InvalidModel
from nnhal.base.levels import V1_1, V1_2, V1_3
from nnhal.base.operands import Value
from tests.ops.run import B8, F16, F32, I32, Q8, Q8S, bound, result, run, value

INF, NAN = math.inf, math.nan
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 11
MEAN, SUM = "MEAN", "REDUCE_SUM"


def axes(*numbers):
    return value(I32, numbers)


@pytest.mark.parametrize(
    ("over", "expected", "kept"),
    [
        ((0,), (3, 4), (1, 3, 4)),
        ((-1,), (2, 3), (2, 3, 1)),
        ((0, 2), (3,), (1, 3, 1)),
        ((1, -2, 1), (2, 4), (2, 1, 4)),
        ((0, 1, 2), (1,), (1, 1, 1)),
        ((), (2, 3, 4), (2, 3, 4)),
    ],
)
def test_axes_are_removed_or_kept_with_length_1(over, expected, kept):
    distinct = tuple({axis % 3 for axis in over})
    for name, function in ((SUM, np.sum), ("REDUCE_MAX", np.max), ("REDUCE_MIN", np.min), (MEAN, np.mean)):
        yes, no = (1, 0) if name == MEAN else (True, False)
        np.testing.assert_allclose(run(name, [X, axes(*over), yes])[0], function(X, distinct).reshape(kept), 1e-6)
        assert run(name, [X, axes(*over), no])[0].shape == expected
        assert bound(name, [Value(F32, X.shape), axes(*over), no]).shapes == [expected]


def test_unknown_dimensions_stay_unknown_alone():
    assert bound(SUM, [Value(F32, (None, 3, 4)), axes(1), True]).shapes == [(None, 1, 4)]
    assert bound(SUM, [Value(F32, (None, 3, 4)), axes(0), False]).shapes == [(3, 4)]
    assert bound(SUM, [Value(F32, (2, 3)), Value(I32, (1,)), False]).shapes == [None]


@pytest.mark.parametrize("axis", [3, -4])
def test_axes_outside_the_rank_are_rejected(axis):
    with pytest.raises(InvalidModel, match=rf"input 1 \(axes\) holds {axis}, must be from -3 to 2"):
        bound(SUM, [X, axes(0, axis), True])
    with pytest.raises(InvalidModel, match=rf"axis = {axis}, must be from -3 to 2"):
        bound("ARGMAX", [X, axis], result(I32))


def test_reductions_of_nothing():
    nothing = np.zeros((2, 0), np.float32)
    for name, expected in ((SUM, 0), ("REDUCE_PROD", 1)):
        np.testing.assert_array_equal(run(name, [nothing, axes(1), False])[0], np.float32([expected] * 2))
        assert run(name, [nothing, axes(0), False])[0].shape == (0,)
    for name, keep in ((MEAN, 0), ("REDUCE_MAX", False), ("REDUCE_MIN", False)):
        assert run(name, [nothing, axes(0), keep])[0].shape == (0,)
        with pytest.raises(
            InvalidModel, match=r"input 0 \(input\) has shape \[2, 0\], must have elements along axis 1"
        ):
            bound(name, [nothing, axes(1), keep])
    with pytest.raises(InvalidModel, match=r"input 0 \(input\) has shape \[2, 0\], must have elements"):
        bound("ARGMIN", [nothing, 0], result(I32))


def test_sums_and_products_are_rounded_once():
    many = np.full((1, 10**5), 0.1, np.float32)
    np.testing.assert_allclose(run(SUM, [many, axes(1), False])[0], 1e5 * float(np.float32(0.1)), 1e-7)
    half = value(F16, [60000, 60000, -60000])
    np.testing.assert_array_equal(run(SUM, [half, axes(0), False], result(F16))[0], np.float16([60000]))
    np.testing.assert_array_equal(run("REDUCE_PROD", [[1e30, 1e30, 1e-30], axes(0), False])[0], np.float32([1e30]))


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        ([NAN, 0.0], NAN),
        ([0.0, NAN], NAN),
        ([INF, 0.0], NAN),
        ([0.0, -INF, 2.0], NAN),
        ([3e38] * 20 + [0.0], 0),  # overflows on the way even in float64
        ([0.0, 5.0], 0),
        ([INF, -2.0], -INF),
    ],
)
def test_a_factor_of_0_swallows_what_is_finite_only(elements, expected):
    np.testing.assert_array_equal(run("REDUCE_PROD", [elements, axes(0), False])[0], np.float32([expected]))
    rows = [[*elements], [1.0] * len(elements)]  # of each row by itself
    np.testing.assert_array_equal(run("REDUCE_PROD", [rows, axes(1), False])[0], np.float32([expected, 1]))


def test_quantised_reductions_keep_the_scale():
    x = value(Q8S, [[-128, -127], [126, 127]], 0.5, 3)
    same = result(Q8S, None, 0.5, 3)
    np.testing.assert_array_equal(run("REDUCE_MAX", [x, axes(0), False], same)[0], np.int8([126, 127]))
    np.testing.assert_array_equal(run("REDUCE_MIN", [x, axes(1), False], same)[0], np.int8([-128, 126]))
    assert np.abs(run(MEAN, [x, axes(1), 0], same)[0] - [-127.5, 126.5]).max() <= 1
    with pytest.raises(InvalidModel, match=r"must be those of the input, 0.5 and 3"):
        bound(MEAN, [x, axes(1), 0], result(Q8S, None, 0.5, 4))


def test_truth_of_all_and_any():
    x = value(B8, [[0, 0], [0, 1], [1, 1]])
    np.testing.assert_array_equal(run("REDUCE_ALL", [x, axes(1), False], result(B8))[0], [False, False, True])
    np.testing.assert_array_equal(run("REDUCE_ANY", [x, axes(1), False], result(B8))[0], [False, True, True])


@pytest.mark.parametrize(
    ("name", "type", "level"),
    [
        (MEAN, F32, V1_1),
        (MEAN, Q8, V1_1),
        (MEAN, F16, V1_2),
        (MEAN, Q8S, V1_3),
        (SUM, F32, V1_2),
        ("REDUCE_MAX", Q8S, V1_3),
    ],
)
def test_level_follows_the_type(name, type, level):
    scale = 0.5 if type in (Q8, Q8S) else 0
    keep = 1 if name == MEAN else True
    assert bound(name, [Value(type, (2, 2), scale), axes(0), keep], result(type, None, scale)).level == level


def test_rank_five_is_too_much():
    with pytest.raises(InvalidModel, match="must have rank 1 to 4"):
        bound(SUM, [Value(F32, (1, 1, 1, 1, 1)), axes(0), True])


def test_position_is_the_first_of_equals():
    for x in (
        [[1.0, 3.0, 3.0], [5.0, -1.0, -1.0]],
        value(I32, [[1, 3, 3], [5, -1, -1]]),
        value(F16, [[1, 3, 3], [5, -1, -1]]),
    ):
        np.testing.assert_array_equal(run("ARGMAX", [x, -1], result(I32))[0], np.int32([1, 0]))
        np.testing.assert_array_equal(run("ARGMIN", [x, 1], result(I32))[0], np.int32([0, 1]))
        np.testing.assert_array_equal(run("ARGMIN", [x, 0], result(I32))[0], np.int32([0, 1, 1]))
    np.testing.assert_array_equal(run("ARGMAX", [value(Q8S, [-128, 127], 1, 0), 0], result(I32))[0], np.int32([1]))


def test_shape_of_positions_lacks_the_axis():
    assert bound("ARGMAX", [Value(F32, (None, 3, 4)), 1], result(I32)).shapes == [(None, 4)]
    assert bound("ARGMAX", [Value(F32, (7,)), -1], result(I32)).shapes == [(1,)]
    assert bound("ARGMAX", [Value(F32, None), -1], result(I32)).shapes == [None]
