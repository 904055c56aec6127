"""Convolutions against their formulas, written as loops; exact integer sums; padding, layouts, scales, levels."""

import numpy as np
import pytest

from nnhal.base.codes import Padding
from nnhal.base.errors import InvalidModel, OperationFailed
from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.base.operands import ChannelQuant, Value
from tests.ops.run import F16, F32, I32, Q8, Q8PC, Q8S, Type, bound, result, run, value

RNG = np.random.default_rng(5)
NONE, RELU6, SAME, VALID = 0, 3, int(Padding.SAME), int(Padding.VALID)
CONV, DEPTHWISE, GROUPED, TRANSPOSE = (f"{n}CONV_2D" for n in ("", "DEPTHWISE_", "GROUPED_", "TRANSPOSE_"))


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def summed(x, weights, pads, strides, dilations=(1, 1), groups=1):
    """The definition: pads left, right, top, bottom; strides and dilations width first. Weights [out, h, w, in / groups]."""
    left, right, top, bottom = pads
    x = np.pad(x.astype(np.float64), ((0, 0), (top, bottom), (left, right), (0, 0)))
    units, fh, fw, depth = weights.shape
    out_w, out_h = (
        (size - (f - 1) * d - 1) // s + 1
        for size, f, d, s in zip(x.shape[2:0:-1], (fw, fh), dilations, strides, strict=True)
    )
    y = np.zeros((len(x), out_h, out_w, units))
    for b, i, j, c in np.ndindex(y.shape):
        group = c // (units // groups)
        for di, dj, k in np.ndindex(fh, fw, depth):
            at = strides[1] * i + di * dilations[1], strides[0] * j + dj * dilations[0]
            y[b, i, j, c] += x[b, *at, group * depth + k] * weights[c, di, dj, k]
    return y


@pytest.mark.parametrize("dilations", [(1, 1), (2, 1), (1, 3)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_sums_are_those_of_the_formula(strides, dilations):
    x, weights, bias, pads = normal(2, 7, 8, 3), normal(4, 2, 3, 3), normal(4), (1, 2, 0, 1)
    expected = summed(x, weights, pads, strides, dilations) + bias
    actual = run(CONV, [x, weights, bias, *pads, *strides, NONE, False, *dilations])[0]
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    moved = run(CONV, [np.moveaxis(x, -1, 1), weights, bias, *pads, *strides, NONE, True, *dilations])[0]
    np.testing.assert_array_equal(moved, np.moveaxis(actual, -1, 1))
    single = normal(1, 2, 3, 6)
    apart = single[0].transpose(2, 0, 1)[..., None]  # two filters of depth 1 for each of three channels
    expected = summed(x, apart, pads, strides, dilations, groups=3) + 1
    ones = np.ones(6, np.float32)
    actual = run(DEPTHWISE, [x, single, ones, *pads, *strides, 2, NONE, False, *dilations])[0]
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_groups_do_not_mix():
    x, weights, bias = normal(1, 4, 5, 6), normal(4, 3, 2, 3), normal(4)
    expected = np.clip(summed(x, weights, (0, 1, 1, 1), (1, 2), groups=2) + bias, 0, 6)
    actual = run(GROUPED, [x, weights, bias, 0, 1, 1, 1, 1, 2, 2, RELU6, False])[0]
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_same_puts_the_odd_padding_behind():
    x, weights, bias = normal(1, 6, 6, 1), normal(1, 4, 4, 1), normal(1)
    actual = run(CONV, [x, weights, bias, SAME, 1, 1, NONE])[0]
    np.testing.assert_allclose(actual, summed(x, weights, (1, 2, 1, 2), (1, 1)) + bias, atol=1e-5)


def test_integer_sums_are_exact_beyond_float32():
    x = value(Q8, np.full((1, 1, 1, 512), 255), 0.5, 0)
    weights = np.full((1, 1, 1, 512), 255)
    weights[..., -1] = 254
    total = 255 * (511 * 255 + 254)  # odd and above 2**24
    bias = value(I32, [7 - total], 0.25)
    made = run(CONV, [x, value(Q8, weights, 0.5, 0), bias, VALID, 1, 1, NONE], result(Q8, None, 0.25, 1))[0]
    assert made.tolist() == [[[[8]]]]


@pytest.mark.parametrize("kind", [Q8, Q8S])
def test_quantised_results_are_rounded_once(kind):
    info = np.iinfo(np.uint8 if kind == Q8 else np.int8)
    x, weights = (RNG.integers(info.min, info.max + 1, shape) for shape in ((1, 5, 4, 3), (2, 3, 3, 3)))
    bias, pads = np.array([1000, -70000]), (1, 1, 1, 1)
    zero, other = info.min + 100, info.max - 100
    real = (summed(x - zero, weights - other, pads, (1, 1)) + bias) * 0.5 * 0.25
    expected = np.clip(np.rint(real / 40) + info.min + 128, info.min, info.max)
    given = value(kind, x, 0.5, zero), value(kind, weights, 0.25, other), value(I32, bias, 0.125)
    made = run(CONV, [*given, *pads, 1, 1, NONE], result(kind, None, 40, info.min + 128))[0]
    np.testing.assert_allclose(made.astype(float), expected, atol=0 if kind == Q8 else 1)


def test_channels_have_scales_of_their_own():
    x, weights, bias = (
        RNG.integers(0, 256, (1, 4, 4, 2)),
        RNG.integers(-127, 128, (1, 2, 2, 4)),
        np.array([9, 8, -7, 6]),
    )
    scales = (0.5, 0.25, 2.0, 1.0)
    apart = weights[0].transpose(2, 0, 1)[..., None]
    expected = (summed(x - 128, apart, (0, 0, 0, 0), (1, 1), groups=2) + bias) * 0.5 * np.array(scales) / 1000
    filters = value(Q8PC, weights, channel=ChannelQuant(scales, 3))
    given = [value(Q8, x, 0.5, 128), filters, value(I32, bias), VALID, 1, 1, 2, NONE]
    made = run(DEPTHWISE, given, result(Q8, None, 1000, 128))[0]
    np.testing.assert_allclose(made, np.clip(np.rint(expected) + 128, 0, 255), atol=1)
    with pytest.raises(InvalidModel, match=r"\(filter\) has its scales along dimension 2, must be 3"):
        wrong = value(Q8PC, weights, channel=ChannelQuant((0.5, 0.5), 2))
        bound(DEPTHWISE, [given[0], wrong, *given[2:]], result(Q8, None, 1000, 128))


@pytest.mark.parametrize(
    ("scale", "filters"), [(0.24, value(Q8, np.ones((1, 1, 1, 1)), 0.5)), (0.25, Value(Q8PC, (1, 1, 1, 1), 0.0, 0))]
)
def test_bias_has_the_scale_of_the_products(scale, filters):
    x = value(Q8, np.ones((1, 1, 1, 1)), 0.5)
    wanted = "0.25" if filters.type == Q8 else "0"
    with pytest.raises(InvalidModel, match=rf"input 2 \(bias\) has scale {scale}, must be {wanted}, that of the input"):
        bound(CONV, [x, filters, value(I32, [1], scale), VALID, 1, 1, NONE], result(Q8, None, 1.0))


# ------------------------------------------------------------------------------------------------------------ transposed


def spread(x, weights, pads, strides, size):
    """The definition: every product is added to the output that the gradient of CONV_2D would add it to."""
    y = np.zeros((len(x), *size, len(weights)))
    for b, i, j in np.ndindex(x.shape[:3]):
        for c, di, dj in np.ndindex(weights.shape[:3]):
            at = i * strides[1] + di - pads[2], j * strides[0] + dj - pads[0]
            if 0 <= at[0] < size[0] and 0 <= at[1] < size[1]:
                y[b, *at, c] += x[b, i, j].astype(float) @ weights[c, di, dj]
    return y


@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 0, 2), (0, -2, 1, -1), (3, -3, 0, 0)])
def test_products_are_spread_over_the_output(pads):
    x, weights, bias, (stride_w, stride_h) = normal(2, 3, 2, 3), normal(4, 2, 3, 3), normal(4), (3, 2)
    size = (3 - 1) * stride_h + 2 - pads[2] - pads[3], (2 - 1) * stride_w + 3 - pads[0] - pads[1]
    expected = spread(x, weights, pads, (stride_w, stride_h), size) + bias
    actual = run(TRANSPOSE, [x, weights, bias, *pads, stride_w, stride_h, NONE, False])[0]
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    moved = run(TRANSPOSE, [np.moveaxis(x, -1, 1), weights, bias, *pads, stride_w, stride_h, NONE, True])[0]
    np.testing.assert_array_equal(moved, np.moveaxis(actual, -1, 1))


@pytest.mark.parametrize("scheme", [SAME, VALID])
@pytest.mark.parametrize("height", [5, 6])
def test_output_shape_is_what_the_convolution_starts_from(scheme, height):
    """The sum of y * transpose(x) is that of convolution(y) * x, for every y: one is the transpose of the other."""
    size = (1, height + (2 if scheme == VALID else 0), 4, 2)
    y, weights, strides = normal(*size), normal(3, 4, 2, 2), (1, 2)
    swapped = np.ascontiguousarray(weights.transpose(3, 1, 2, 0))
    there = run(CONV, [y, weights, np.zeros(3, np.float32), scheme, *strides, NONE])[0]
    x = normal(*there.shape)
    asked = value(I32, size)
    back = run(TRANSPOSE, [x, swapped, np.zeros(2, np.float32), asked, scheme, *strides, NONE, False])[0]
    assert back.shape == size
    np.testing.assert_allclose((y * back).sum(), (there * x).sum(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((1, 7, 4, 2), "output_shape holds out_h = 7, must be 5 to 6"),
        ((2, 5, 4, 2), r"output_shape \[2, 5, 4, 2\] holds batch = 2, must be 1"),
        ((1, 5, 4, 3), r"output_shape \[1, 5, 4, 3\] holds depth_out = 3, must be 2"),
        ((1, 5, -4, 2), r"output_shape \[1, 5, -4, 2\] makes out_w = -4, must be at least 1"),
    ],
)
def test_impossible_output_shapes_are_rejected(asked, message):
    given = [normal(1, 3, 2, 1), normal(2, 3, 3, 1), normal(2), value(I32, asked), SAME, 2, 2, NONE, False]
    with pytest.raises(InvalidModel, match=message):
        bound(TRANSPOSE, given)


def test_padding_that_leaves_nothing_is_rejected():
    given = [normal(1, 2, 2, 1), normal(1, 2, 2, 1), normal(1), 1, 2, 0, 0, 1, 1, NONE, False]
    with pytest.raises(InvalidModel, match=r"padding \(1, 2\) makes out_w = 0, must be at least 1"):
        bound(TRANSPOSE, given)


# ---------------------------------------------------------------------------------------------- shapes, levels and errors


def test_shapes_follow_as_far_as_they_are_known():
    weights, bias = Value(F32, (4, 3, 3, 2)), Value(F32, (4,))
    x = Value(F32, (None, 8, None, 2))
    assert bound(CONV, [x, weights, bias, SAME, 2, 2, NONE]).shapes == [(None, 4, None, 4)]
    assert bound(CONV, [Value(F32, None), weights, bias, SAME, 2, 2, NONE]).shapes == [(None, None, None, 4)]
    unknown = Value(F32, None)
    assert bound(DEPTHWISE, [x, unknown, unknown, VALID, 1, 1, 3, NONE]).shapes == [(None, None, None, 6)]
    assert bound(CONV, [x, weights, bias, SAME, 2, 2, NONE, Value(Type.BOOL, ())]).shapes == [None]
    assert bound(TRANSPOSE, [x, weights, bias, 0, 0, 1, 0, 2, 2, NONE, False]).shapes == [(None, 16, None, 4)]


@pytest.mark.parametrize("name", [CONV, DEPTHWISE, TRANSPOSE, GROUPED])
def test_no_batches_make_no_batches(name):
    tail = {CONV: [NONE], DEPTHWISE: [1, NONE], TRANSPOSE: [NONE, False], GROUPED: [1, NONE, False]}[name]
    x, weights, bias = np.zeros((0, 4, 4, 1), np.float32), normal(1, 3, 3, 1), normal(1)
    assert run(name, [x, weights, bias, 0, 0, 0, 0, 1, 1, *tail])[0].size == 0
    nothing = np.zeros((1, 0, 4, 1), np.float32)
    with pytest.raises(InvalidModel, match="height = 0, must be at least 1: only batches may be 0"):
        run(name, [nothing, weights, bias, 0, 0, 0, 0, 1, 1, *tail])


def test_levels_count_only_what_says_something():
    x, weights, bias = normal(1, 4, 4, 1), normal(1, 3, 3, 1), normal(1)
    for tail, level in (((), V1_0), ((False, 1, 1), V1_0), ((True,), V1_2), ((False, 2, 1), V1_2)):
        pictures = np.moveaxis(x, -1, 1) if tail == (True,) else x
        assert bound(CONV, [pictures, weights, bias, SAME, 1, 1, NONE, *tail]).level == level
    assert bound(CONV, [x, weights, bias, SAME, 1, 1, NONE, False, 2, 1]).needed == 10  # both dilations or none
    for scale, level in ((0.2500001, V1_0), (0.25, V1_2)):
        given = value(Q8, x * 0, 0.5), value(Q8, weights * 0, 0.5), value(I32, [0], 0.25)
        assert bound(CONV, [*given, SAME, 1, 1, NONE], result(Q8, None, scale)).level == level
    half = value(F16, x), value(F16, weights), value(F16, bias)
    assert bound(CONV, [*half, SAME, 1, 1, NONE], result(F16)).level == V1_2
    signed = value(Q8S, x * 0, 0.5), value(Q8S, weights * 0, 0.5), value(I32, [0], 0.25)
    assert bound(GROUPED, [*signed, SAME, 1, 1, 1, NONE, False], result(Q8S, None, 1.0)).level == V1_3


@pytest.mark.parametrize(
    ("name", "tail", "message"),
    [
        (CONV, [SAME, 1, 1, NONE, False, 1], "has 9 inputs, must have 7 or 8 or 10 or 11 or 13"),
        (CONV, [2, 0, 0, 3, 1, 1, NONE], r"padding \(0, 3\) must be smaller than filter_h = 3"),
        (CONV, [2, 0, 0, 0, 0, 1, NONE], r"input 7 \(stride_w\) = 0, must be at least 1"),
        (CONV, [VALID, 1, 1, NONE, False, 1, 2], "filter_h reaches over 5, must be at most the padded input's 4"),
        (CONV, [VALID, 1, 1, NONE, False, 0, 1], r"input 8 \(dilation_w\) = 0, must be at least 1"),
        (DEPTHWISE, [VALID, 1, 1, 2, NONE], r"depth_out = 1, must be depth_in \* depth_multiplier = 2"),
        (GROUPED, [VALID, 1, 1, 2, NONE, False], r"depth_in = 1, must be groups \* depth_group = 2"),
        (TRANSPOSE, [-1, 0, 0, 0, 1, 1, NONE, False], r"input 3 \(pad_left\) = -1, must be at least 0"),
    ],
)
def test_wrong_arguments_are_named(name, tail, message):
    with pytest.raises(InvalidModel, match=message):
        bound(name, [normal(1, 4, 4, 1), normal(1, 3, 3, 1), normal(1), *tail])


def test_padding_beyond_any_tensor_is_an_error():
    far = 2**31 - 1
    given = [normal(1, 1, 1, 1), normal(1, 1, 2, 1), normal(1), far, 0, 0, 0, 1, 1, NONE, False, far, 1]
    with pytest.raises(OperationFailed, match="must be at most 4294967295"):
        run(CONV, given)


def test_padding_takes_what_the_padded_picture_holds(monkeypatch):
    """Of two pictures 3 x 4 with 5 channels, padded to 6 x 9."""
    inputs = [normal(2, 3, 4, 5), normal(1, 4, 6, 5), normal(1), 3, 2, 2, 1, 1, 1, NONE]
    size = 2 * (3 + 3) * (4 + 5) * 5 * 4
    monkeypatch.setattr("nnhal.ops.common.MAX_OPERAND_BYTES", size)
    assert run(CONV, inputs)[0].shape == (2, 3, 4, 1)
    monkeypatch.setattr("nnhal.ops.common.MAX_OPERAND_BYTES", size - 1)
    with pytest.raises(OperationFailed, match=f"makes {size} bytes, must be at most {size - 1}"):
        run(CONV, inputs)


def test_a_filter_that_is_not_known_yet_is_checked_later_though_the_shape_is_known():
    x, bias = Value(F32, (1, 8, 8, 2)), Value(F32, (4,))
    for filters, late in (((4, 3, 3, None), True), ((4, 3, 3, 2), False)):
        a = bound(CONV, [x, Value(F32, filters), bias, SAME, 1, 1, NONE])
        assert a.shapes == [(1, 8, 8, 4)] and a.deferred is late
