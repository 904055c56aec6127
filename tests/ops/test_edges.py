"""Rules and kernels at the very edge of what they take."""

import numpy as np
import pytest

from nnhal.base.errors import InvalidModel
from tests.ops.run import I32, Q8, Q8S, Q8SYMM, Q16S, bound, result, run, value


@pytest.mark.parametrize("name", ["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
def test_a_size_by_scale_is_a_product_in_float32(name):
    """0.7 in float32 is less than 0.7; 10 times it is 6.9999999, and 7 in float32."""
    x = np.zeros((1, 10, 10, 1), np.float32)
    assert run(name, [x, 0.7, 0.7, False])[0].shape == (1, 7, 7, 1)


def test_a_peak_that_nearly_is_a_ridge_stays_where_the_greatest_element_is():
    """Curvatures of -1000 and a twist of 999.9975: the determinant, 5, is less than 1e-5 of the curvatures' product."""
    heatmap = np.full((1, 5, 5, 1), -3000, np.float32)
    heatmap[0, 1:4, 1:4, 0] = [[-1, -500, -2000.995], [-501, 0, -499], [-2000.995, -500, -1]]
    score, place = run("HEATMAP_MAX_KEYPOINT", [heatmap, [[0.0, 0.0, 5.0, 5.0]], False], result(), result())
    assert place.tolist() == [[[2.5, 2.5]]] and score.tolist() == [[0]]


def test_a_box_without_size_at_the_far_edge_is_no_proposal():
    """Its centre is not left of the edge. Where sizes of 0 are let through: min_size is below 0."""
    scores, image = [[[[0.5, 0.4]]]], [[10.0, 10.0]]
    anchors = [[10.0, 2.0, 12.0, 4.0], [2.0, 2.0, 4.0, 4.0]]  # the first is clipped to x = 10, the edge
    deltas = np.zeros((1, 1, 1, 8), np.float32)
    arguments = [scores, deltas, anchors, image, 1.0, 1.0, 0, 0, 0.5, -1.0, False]
    found, boxes, _ = run("GENERATE_PROPOSALS", arguments, result(), result(), result(I32))
    assert found.tolist() == [np.float32(0.4)] and boxes.tolist() == [[2, 2, 4, 4]]


@pytest.mark.parametrize(("off", "fine"), [(1 + 5e-7, True), (1 - 5e-7, True), (1 + 1e-5, False), (1 - 1e-5, False)])
def test_a_bias_may_be_off_by_a_millionth_of_its_scale(off, fine):
    one = value(Q8, np.ones((1, 1, 1, 1)), 0.5)
    arguments = [one, one, value(I32, [1], 0.25 * off), 2, 1, 1, 0]
    if fine:
        bound("CONV_2D", arguments, result(Q8, None, 1.0))
    else:
        with pytest.raises(InvalidModel, match=r"must be 0\.25, that of the input times that of the weights"):
            bound("CONV_2D", arguments, result(Q8, None, 1.0))


@pytest.mark.parametrize("exponent", [-140, -100, -60, 0, 60, 99, 101, 112])
def test_sums_of_products_of_any_scale_are_what_they_stand_for(exponent):
    """4 * 255 * 255 = 260100 steps of the products' scale; the output's is 2**14 times that: 15.875."""
    half = 2.0 ** (exponent // 2), 2.0 ** (exponent - exponent // 2)
    x, w = (value(Q8, np.full((1, 4), 255), scale) for scale in half)
    bias = value(I32, [0], float(np.float32(2.0**exponent)))
    found = run("FULLY_CONNECTED", [x, w, bias, 0], result(Q8, None, 2.0 ** (exponent + 14)))[0]
    assert found.tolist() == [[16]]


def test_no_number_is_quantised_to_the_zero_point():
    found = run("QUANTIZE", [np.float32([np.nan, 1, -np.inf, np.inf])], result(Q8, None, 0.5, 7))[0]
    assert found.tolist() == [7, 9, 0, 255]


def half_open(scale, *, projection=(), clip=None):
    """One unit whose gates are half open; 16384 steps of cell state at most."""
    zero = [value(Q8SYMM, [[0]], 1.0) for _ in range(6)]
    bias = [value(I32, [0], 1.0 * 2.0**-12) for _ in range(3)]
    inputs = [value(Q8S, [[1]], 1.0), None, *zero[:3], None, *zero[3:], None, None, None, None, *bias]
    inputs += [*(projection or (None, None)), value(Q8S, [[0]], 2.0**-7), value(Q16S, [[8000]], scale)]
    inputs += [None, None, None, None, None, clip, 0.0, 0.0, 0.0, 0.0, 0, 2.0**-7]
    return inputs, [result(Q8S, None, 2.0**-7), result(Q16S, None, scale), result(Q8S, None, 2.0**-7)]


@pytest.mark.parametrize(("exponent", "fine"), [(-16, False), (-15, True), (-9, True), (-8, False)])
def test_the_cells_scale_is_a_power_of_two_within_its_bounds(exponent, fine):
    inputs, outputs = half_open(2.0**exponent)
    if fine:
        assert run("QUANTIZED_LSTM", inputs, *outputs)[1].tolist() == [[4000]]
    else:
        with pytest.raises(InvalidModel, match="must be a power of two from 2"):
            bound("QUANTIZED_LSTM", inputs, *outputs)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_projection_clip_is_counted_in_whole_steps(sign):
    """0.3 is 38.4 steps of 2**-7, and 0.308 is 39.4: rounded down. 0.3046875 + half a step is 39.5: 39 too."""
    inputs, outputs = half_open(2.0**-11, projection=(value(Q8SYMM, [[127 * sign]], 1.0), None), clip=39.6 / 128)
    _, _, found = run("QUANTIZED_LSTM", inputs, *outputs)
    assert found.tolist() == [[39 * sign]]
