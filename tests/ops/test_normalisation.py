"""Softmaxes and normalisations."""

import math

import numpy as np
import pytest

from nnhal.base.errors import InvalidModel
from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.base.operands import Value
from tests.ops.run import F16, F32, Q8, Q8S, Type, bound, result, run, value

RNG = np.random.default_rng(7)
SOFTMAX, LOG_SOFTMAX, L2 = "SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION"
LRN, INSTANCE = "LOCAL_RESPONSE_NORMALIZATION", "INSTANCE_NORMALIZATION"


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def half(number):
    return value(Type.FLOAT16, number)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_softmax_and_its_logarithm_go_along_an_axis(axis):
    x = normal(2, 3, 4)
    powers = np.exp(x.astype(float) * 0.7)
    expected = powers / powers.sum(axis, keepdims=True)
    np.testing.assert_allclose(run(SOFTMAX, [x, 0.7, axis])[0], expected, 1e-5)
    np.testing.assert_allclose(run(LOG_SOFTMAX, [x, 0.7, axis])[0], np.log(expected), 1e-5)


def test_greatest_exponents_do_not_overflow():
    x = np.float32([[3e38, -3e38, 3e38]])
    assert run(SOFTMAX, [x, 1.0])[0].tolist() == [[0.5, 0, 0.5]]
    expected = [[-math.log(2), -6e8 - math.log(2), -math.log(2)]]
    np.testing.assert_allclose(run(LOG_SOFTMAX, [x, 1e-30, -1])[0], expected, 1e-6)


def test_softmax_of_quantised_values():
    x = value(Q8S, [[-128, 127, 127, 0]], 1.0, 5)
    assert run(SOFTMAX, [x, 1.0], result(Q8S, None, 1 / 256, -128))[0].tolist() == [[-128, 0, 0, -128]]
    ones = value(Q8, [[7]], 1.0, 5)
    assert run(SOFTMAX, [ones, 1.0], result(Q8, None, 1 / 256))[0].tolist() == [[255]]
    with pytest.raises(InvalidModel, match=r"has scale 0\.5 and zero point 0, must be 0\.00390625 and 0"):
        bound(SOFTMAX, [ones, 1.0], result(Q8, None, 0.5))


def test_beta_and_axis_are_checked():
    x = normal(2, 3)
    for beta in (0.0, -1.0, math.nan):
        for name in (SOFTMAX, LOG_SOFTMAX):
            with pytest.raises(InvalidModel, match=rf"beta = {beta:g}, must be greater than 0"):
                bound(name, [x, beta, 0])
    for axis in (2, -3, -(2**31)):
        for name, given in ((SOFTMAX, [1.0]), (LOG_SOFTMAX, [1.0]), (L2, []), (LRN, [1, 1.0, 1.0, 1.0])):
            with pytest.raises(InvalidModel, match=rf"axis = {axis}, must be from -2 to 1"):
                bound(name, [x, *given, axis])
    with pytest.raises(InvalidModel, match=r"input 1 \(beta\) is FLOAT32, must be one of: FLOAT16"):
        bound(SOFTMAX, [value(F16, [[1]]), 1.0], result(F16))
    assert run(LOG_SOFTMAX, [value(F16, [[3]]), half(1), 1], result(F16))[0].tolist() == [[0]]


def test_empty_tensors_stay_empty():
    for shape in ((0, 3), (2, 0)):
        x = np.zeros(shape, np.float32)
        for name, given in ((SOFTMAX, [1.0]), (LOG_SOFTMAX, [1.0, -1]), (L2, []), (LRN, [1, 1.0, 1.0, 1.0])):
            assert run(name, [x, *given])[0].shape == shape


def test_shape_is_that_of_the_input_as_far_as_known():
    for name, given in ((SOFTMAX, [1.0]), (L2, []), (INSTANCE, [1.0, 0.0, 0.1, False])):
        assert bound(name, [Value(F32, (None, 2, 3, None)), *given]).shapes == [(None, 2, 3, None)]
        assert bound(name, [Value(F32, None), *given]).shapes == [None]


@pytest.mark.parametrize(
    ("name", "given", "first"), [(SOFTMAX, [1.0], {2, 4}), (L2, [], {4}), (LRN, [1, 1.0, 1.0, 1.0], {4})]
)
def test_ranks_that_came_later_raise_the_level(name, given, first):
    for rank in range(1, 5):
        x = Value(F32, (2,) * rank)
        assert bound(name, [x, *given]).level == (V1_0 if rank in first else V1_2)
        assert bound(name, [x, *given, 0]).level == V1_2
    with pytest.raises(InvalidModel, match=r"has shape \[2, 2, 2, 2, 2\], must have rank 1 to 4"):
        bound(name, [Value(F32, (2,) * 5), *given])
    assert bound(LOG_SOFTMAX, [Value(F32, (2,) * 5), 1.0, 4]).level == V1_2


@pytest.mark.parametrize("axis", [0, 2, -2])
def test_l2_norm_of_every_vector_is_1(axis):
    made = run(L2, [x := normal(2, 3, 4), axis])[0]
    np.testing.assert_allclose(made, x / np.sqrt((x.astype(float) ** 2).sum(axis, keepdims=True)), 1e-6)


def test_l2_norm_of_zeros_and_of_extremes():
    x = np.float32([[0, 0], [3e30, 4e30], [3e-30, -4e-30]])
    np.testing.assert_allclose(run(L2, [x])[0], [[0, 0], [0.6, 0.8], [0.6, -0.8]], 1e-6)
    x = value(Q8S, [[-3, -3], [127, -3], [-3, -128]], 0.5, -3)
    a = bound(L2, [x], result(Q8S, None, 1 / 128))
    assert a.level == V1_3
    assert run(L2, [x], result(Q8S, None, 1 / 128))[0].tolist() == [[0, 0], [127, 0], [0, -128]]


@pytest.mark.parametrize("radius", [0, 1, 2, 100, 2**31 - 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_local_response_is_relative_to_the_neighbours(radius, axis):
    x = normal(5, 4, 3)
    squares = np.moveaxis(x.astype(float) ** 2, axis, 0)
    windows = [squares[max(0, i - radius) : i + radius + 1].sum(0) for i in range(len(squares))]
    expected = x / (2 + 0.5 * np.moveaxis(np.array(windows), 0, axis)) ** 0.75
    np.testing.assert_allclose(run(LRN, [x, radius, 2.0, 0.5, 0.75, axis])[0], expected, 1e-5)


def test_local_response_arguments_are_checked():
    with pytest.raises(InvalidModel, match=r"input 1 \(radius\) = -1, must be at least 0"):
        bound(LRN, [normal(2, 2), -1, 1.0, 1.0, 1.0])
    with pytest.raises(InvalidModel, match="bias = 0, must not be 0"):
        bound(LRN, [normal(2, 2), 1, 0.0, 1.0, 1.0])


def test_instances_are_normalised_over_height_and_width():
    x = normal(2, 3, 4, 5) + 7
    wide = x.astype(float)
    mean, variance = wide.mean((1, 2), keepdims=True), wide.var((1, 2), keepdims=True)
    expected = (wide - mean) * 1.5 / np.sqrt(variance + 0.01) - 2
    made = run(INSTANCE, [x, 1.5, -2.0, 0.01, False])[0]
    np.testing.assert_allclose(made, expected, 1e-5, 1e-5)
    moved = run(INSTANCE, [np.moveaxis(x, -1, 1), 1.5, -2.0, 0.01, True])[0]
    np.testing.assert_allclose(moved, np.moveaxis(made, -1, 1), 1e-6)


def test_instance_normalisation_of_float16_is_rounded_once():
    x = value(F16, RNG.standard_normal((1, 20, 20, 1)) + 100)
    given = [x, half(1), half(0), half(1e-4), False]
    wide = x.array.astype(float)
    expected = (wide - wide.mean()) / np.sqrt(wide.var() + float(np.float16(1e-4)))
    np.testing.assert_array_equal(run(INSTANCE, given, result(F16))[0], expected.astype(np.float16))
