"""FULLY_CONNECTED and BATCH_MATMUL."""

import numpy as np
import pytest

from nnhal.base.errors import InvalidModel
from nnhal.base.levels import FL6, V1_0, V1_2
from nnhal.base.operands import Value
from tests.ops.run import F16, F32, I32, Q8, Q8S, bound, result, run, value

RNG = np.random.default_rng(6)
DENSE, MATMUL = "FULLY_CONNECTED", "BATCH_MATMUL"
NONE, RELU = 0, 1


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 4), (2, 1, 3, 4)])
def test_the_input_is_cut_into_rows_of_input_size(shape):
    x, weights, bias = normal(*shape), normal(5, 6), normal(5)
    expected = np.maximum(x.reshape(4, 6).astype(float) @ weights.T + bias, 0)
    np.testing.assert_allclose(run(DENSE, [x, weights, bias, RELU])[0], expected, atol=1e-5)


def test_quantised_layers_are_exact_and_saturate():
    x, weights = value(Q8, [[0, 255, 10], [255, 255, 255]], 0.5, 10), value(Q8, [[3, 200, 1], [4, 4, 4]], 2.0, 4)
    bias = value(I32, [-40000, 1], 1.0)  # (-10, 245, 0) * (-1, 196, -3), then 3 * 245 * (-1, 196, -3)
    expected = [[8030, 1], [245 * 192 - 40000, 1]]
    made = run(DENSE, [x, weights, bias, NONE], result(Q8, None, 100.0, 5))[0]
    np.testing.assert_array_equal(made, [[80 + 5, 5], [(expected[1][0] + 50) // 100 + 5, 5]])
    assert run(DENSE, [x, weights, bias, NONE], result(Q8, None, 1.0, 5))[0].tolist() == [[255, 6], [255, 6]]


def test_levels_follow_types_and_scales():
    ones = value(Q8, [[1, 1]], 0.5), value(Q8, [[1, 1]], 0.5), value(I32, [1], 0.25), NONE
    assert bound(DENSE, ones, result(Q8, None, 0.5)).level == V1_0
    assert bound(DENSE, ones, result(Q8, None, 0.25)).level == V1_2
    half = value(F16, [[1, 1]]), value(F16, [[1, 1]]), value(F16, [1]), NONE
    assert bound(DENSE, half, result(F16)).level == V1_2
    assert bound(MATMUL, [normal(1, 1), normal(1, 1), False, False]).level == FL6


def test_shapes_follow_as_far_as_they_are_known():
    weights, bias = Value(F32, (5, 6)), Value(F32, (5,))
    assert bound(DENSE, [Value(F32, (2, 3, 4)), weights, bias, NONE]).shapes == [(4, 5)]
    assert bound(DENSE, [Value(F32, (2, None)), weights, bias, NONE]).shapes == [(None, 5)]
    assert bound(DENSE, [Value(F32, None), Value(F32, None), bias, NONE]).shapes == [(None, 5)]
    x, y = Value(F32, (None, 3, 4)), Value(F32, (2, None, None))
    assert bound(MATMUL, [x, y, False, False]).shapes == [(2, 3, None)]
    assert bound(MATMUL, [x, Value(F32, (2, 5, None)), True, True]).shapes == [(2, 4, 5)]
    assert bound(MATMUL, [x, Value(F32, None), True, True]).shapes == [None]


def test_no_batches_make_no_rows():
    assert run(DENSE, [np.zeros((0, 6), np.float32), normal(5, 6), normal(5), NONE])[0].shape == (0, 5)
    assert run(MATMUL, [np.zeros((0, 2, 3), np.float32), np.zeros((0, 3, 4), np.float32), False, False])[0].size == 0


@pytest.mark.parametrize("shape", [(5,), (1, 1, 1, 1, 6), (4, 5), ()])
def test_inputs_that_make_no_rows_are_rejected(shape):
    with pytest.raises(InvalidModel, match=r"input 0 \(input\) has shape .*, must have"):
        run(DENSE, [normal(*shape), normal(5, 6), normal(5), NONE])


def test_the_input_size_must_not_be_0():
    with pytest.raises(InvalidModel, match="input_size = 0, must be at least 1"):
        run(DENSE, [np.zeros((2, 0), np.float32), np.zeros((5, 0), np.float32), normal(5), NONE])


@pytest.mark.parametrize("adjoint", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_matrices_are_multiplied_batch_by_batch(batch, adjoint):
    x, y = normal(*batch, 3, 4), normal(*batch, 4, 5)
    expected = np.einsum("...ij,...jk->...ik", x, y)
    given = [m.swapaxes(-1, -2) if turned else m for m, turned in zip((x, y), adjoint, strict=True)]
    np.testing.assert_allclose(run(MATMUL, [*given, *adjoint])[0], expected, atol=1e-5)


def test_flags_of_matmul_may_be_left_out():
    x = np.eye(2, dtype=np.float32)
    np.testing.assert_array_equal(run(MATMUL, [x, x])[0], x)


def test_matmul_of_integers_is_exact_and_wraps():
    x = value(I32, [[2**30 + 1, 4]])
    assert run(MATMUL, [x, value(I32, [[1], [3]]), False, False], result(I32))[0].tolist() == [[2**30 + 13]]
    assert run(MATMUL, [x, value(I32, [[4], [0]]), False, False], result(I32))[0].tolist() == [[4]]


def test_matmul_of_quantised_values_has_both_zero_points():
    x, y = value(Q8S, [[-128, 127]], 0.5, -128), value(Q8S, [[127], [-128]], 0.25, 27)
    made = run(MATMUL, [x, y, False, False], result(Q8S, None, 50.0, 3))[0]
    real = (0 * 100 + 255 * -155) * 0.125
    assert made.tolist() == [[round(real / 50) + 3]]
    most = value(Q8S, np.full((1, 300), 127), 1.0, -128), value(Q8S, np.full((300, 1), -128), 1.0, 127)
    assert run(MATMUL, [*most, False, False], result(Q8S, None, 255.0 * 255 * 3, 0))[0].tolist() == [[-100]]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ((2, 3), (4, 5), r"shapes \[2, 3\] and \[4, 5\] have 3 columns and 4 rows to multiply, must be equal"),
        (
            (2, 2, 3),
            (1, 3, 4),
            r"shapes \[2, 2, 3\] and \[1, 3, 4\] must be equal in all dimensions before the last two",
        ),
        ((2, 3), (1, 3, 4), r"shapes \[2, 3\] and \[1, 3, 4\] must be equal in all dimensions before the last two"),
        ((3,), (3, 4), r"input 0 \(x\) has shape \[3\], must have rank 2 to 4"),
    ],
)
def test_matrices_that_do_not_fit_are_rejected(x, y, message):
    with pytest.raises(InvalidModel, match=message):
        bound(MATMUL, [normal(*x), normal(*y), False, False])
