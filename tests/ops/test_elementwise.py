"""Arithmetic, functions, activations, comparisons and conversions, element by element."""

import math

import numpy as np
import pytest

from nnhal.base.errors import InvalidModel
from nnhal.base.levels import FL7, V1_0, V1_1, V1_2, V1_3
from nnhal.base.operands import ChannelQuant, Value
from tests.ops.run import B8, F16, F32, I32, Q8, Q8PC, Q8S, Q8SYMM, Q16A, Q16S, Type, bound, result, run, value

NONE, RELU, RELU1, RELU6 = range(4)
LEAST, MOST = -(2**31), 2**31 - 1
NAN, INF = math.nan, math.inf


def ints(*numbers):
    return value(I32, numbers)


def same(actual, expected):
    np.testing.assert_array_equal(actual, np.asarray(expected))


# ----------------------------------------------------------------------------------------------------------- arithmetic


@pytest.mark.parametrize(
    ("name", "x", "y", "expected"),
    [
        ("ADD", MOST, 1, LEAST),
        ("SUB", LEAST, 1, MOST),
        ("MUL", 2**16, 2**16, 0),
        ("DIV", 5, 2, 2),
        ("DIV", -5, 2, -3),
        ("DIV", 5, -2, -3),
        ("DIV", 7, 0, 0),
        ("DIV", LEAST, -1, LEAST),
    ],
)
def test_integers_wrap_and_divide_downwards(name, x, y, expected):
    same(run(name, [ints(x), ints(y), NONE], result(I32))[0], [expected])


def test_float_division_by_zero_is_infinite():
    same(run("DIV", [[1.0, -1.0, 0.0], [0.0], NONE])[0], np.float32([INF, -INF, NAN]))


@pytest.mark.parametrize(
    ("activation", "expected"),
    [(NONE, [-7, -0.5, 0.5, 7]), (RELU, [0, 0, 0.5, 7]), (RELU1, [-1, -0.5, 0.5, 1]), (RELU6, [0, 0, 0.5, 6])],
)
def test_activation_is_fused(activation, expected):
    same(run("ADD", [[-8.0, -1.5, -0.5, 6.0], [1.0], activation])[0], np.float32(expected))


def test_fused_activation_of_integers_is_rejected():
    with pytest.raises(InvalidModel, match=r"ADD: activation = 1 \(RELU\), must be 0 \(NONE\) for TENSOR_INT32"):
        bound("ADD", [ints(1), ints(1), RELU], result(I32))


def test_quantised_sum_of_different_scales_is_rounded_once_and_saturated():
    x, y = value(Q8, [0, 128, 129, 255], 0.5, 128), value(Q8S, [0], 0.25, -1)
    with pytest.raises(InvalidModel, match=r"input 1 \(input2\) is TENSOR_QUANT8_ASYMM_SIGNED, must be TENSOR_QUANT8"):
        bound("ADD", [x, y, NONE], result(Q8, scale=1, zero=10))
    y = value(Q8, [1], 0.25, 0)  # -63.75, 0.25, 0.75, 63.75 in steps of 1 around 10
    same(run("ADD", [x, y, NONE], result(Q8, scale=1, zero=10))[0], np.uint8([0, 10, 11, 74]))


@pytest.mark.parametrize("scale", [0.125, 0.0625])
def test_scale_of_a_product_must_be_greater_than_that_of_the_factors(scale):
    x, y = value(Q8S, [-128, 127], 0.5, 0), value(Q8S, [-128], 0.25, 0)
    with pytest.raises(InvalidModel, match=f"has scale {scale:g}, must be greater than 0.125, the product of the"):
        bound("MUL", [x, y, NONE], result(Q8S, scale=scale))
    same(run("MUL", [x, y, NONE], result(Q8S, scale=32, zero=-1))[0], np.int8([63, -65]))  # 2048 and -2032


@pytest.mark.parametrize("exponents", [np.float32(0.5), np.float32([[0.5]]), np.full(3, 0.5, np.float32)])
def test_to_the_power_of_a_half_is_no_root(exponents):
    """C99 defines pow(-inf, 0.5) as inf, where sqrt(-inf) is NaN."""
    found = run("POW", [np.float32([-INF, -1, 4]), np.atleast_1d(exponents)])[0]
    same(found.ravel(), [INF, NAN, 2])


@pytest.mark.parametrize("name", ["ADD", "MAXIMUM", "PRELU", "POW", "LESS"])
def test_shapes_broadcast_from_the_last_dimension(name):
    more = [NONE] if name == "ADD" else []
    output = result(B8) if name == "LESS" else result()
    x, y = np.ones((4, 1, 2), np.float32), np.ones((5, 4, 3, 1), np.float32)
    assert run(name, [x, y, *more], output)[0].shape == (5, 4, 3, 2)
    assert run(name, [x, np.ones((0, 1), np.float32), *more], output)[0].shape == (4, 0, 2)
    unknown = bound(name, [Value(F32, (4, None, None)), Value(F32, (None, 1, 3)), *more], output)
    assert unknown.shapes == [(4, None, 3)] and unknown.deferred
    assert bound(name, [Value(F32, None), x, *more], output).shapes == [None]
    with pytest.raises(InvalidModel, match=r"shapes \[4, 1, 2\] and \[3, 1, 2\] must be equal or 1 in every dimension"):
        bound(name, [x, np.ones((3, 1, 2), np.float32), *more], output)


def test_rank_five_is_too_much_for_some_and_not_for_others():
    x = Value(F32, (1, 1, 1, 1, 2))
    assert bound("MAXIMUM", [x, x]).shapes == [(1, 1, 1, 1, 2)]
    with pytest.raises(InvalidModel, match=r"has shape \[1, 1, 1, 1, 2\], must have rank 1 to 4"):
        bound("ADD", [x, x, NONE])


def test_extremes_of_quantised_tensors_are_compared_as_real_values():
    x, y = value(Q8, [100, 120, 140], 0.5, 120), value(Q8, [60], 0.25, 60)  # -10, 0, 10 against 0
    same(run("MAXIMUM", [x, y], result(Q8, scale=1, zero=20))[0], np.uint8([20, 20, 30]))
    same(run("MINIMUM", [x, y], result(Q8, scale=1, zero=20))[0], np.uint8([10, 20, 20]))


def test_prelu_multiplies_what_is_below_0():
    same(run("PRELU", [[-2.0, -0.5, 0.0, 0.5, 3.0], [0.5]])[0], np.float32([-1, -0.25, 0, 0.5, 3]))
    x, alpha = value(Q8S, [-128, -1, 0, 127], 1, 0), value(Q8S, [64], 1 / 128, 0)
    same(run("PRELU", [x, alpha], result(Q8S, scale=0.5, zero=0))[0], np.int8([-128, -1, 0, 127]))


# --------------------------------------------------------------------------------------------------------------- levels


@pytest.mark.parametrize(
    ("name", "type", "more", "level"),
    [
        ("ADD", Q8, [NONE], V1_0),
        ("SUB", F32, [NONE], V1_1),
        ("SUB", Q8, [NONE], V1_2),
        ("DIV", I32, [NONE], V1_3),
        ("MUL", F16, [NONE], V1_2),
        ("POW", F16, [], V1_2),
        ("MINIMUM", I32, [], V1_2),
        ("PRELU", Q8S, [], V1_3),
    ],
)
def test_level_of_two_tensors_follows_the_type(name, type, more, level):
    x = Value(type, (2,), 0.5 if type in (Q8, Q8S) else 0)
    assert bound(name, [x, x, *more], result(type, scale=x.scale)).level == level


@pytest.mark.parametrize(
    ("name", "type", "level"),
    [
        ("ABS", F32, V1_2),
        ("ABS", I32, V1_3),
        ("NEG", I32, V1_2),
        ("RSQRT", F32, V1_2),
        ("RSQRT", Q8, FL7),
        ("RSQRT", Q8S, FL7),
        ("FLOOR", F32, V1_0),
        ("FLOOR", F16, V1_2),
        ("RELU6", Q8S, V1_3),
        ("LOGISTIC", F32, V1_0),
        ("TANH", F16, V1_2),
        ("HARD_SWISH", Q8, V1_3),
        ("LOGICAL_NOT", B8, V1_2),
    ],
)
def test_level_of_one_tensor_follows_the_type(name, type, level):
    scale, zero = (1 / 256, 0 if type == Q8 else -128) if type in (Q8, Q8S) else (0, 0)
    assert bound(name, [Value(type, (2,), scale, zero)], result(type, None, scale, zero)).level == level


@pytest.mark.parametrize(
    ("name", "type"), [("EXP", I32), ("SQRT", Q8), ("ABS", Q8), ("SIN", B8), ("ELU", Q8), ("FLOOR", I32)]
)
def test_types_not_of_the_definition_are_rejected(name, type):
    x = Value(type, (2,), 0.5 if type == Q8 else 0)
    with pytest.raises(InvalidModel, match=rf"input 0 \(input\) is {type.name}, must be one of: TENSOR_FLOAT32 since"):
        bound(name, [x, *([1.0] if name == "ELU" else [])], result(type))


# ------------------------------------------------------------------------------------------------------------ functions


@pytest.mark.parametrize(
    ("name", "function", "numbers"),
    [
        ("ABS", abs, [-1.5, 0, 2]),
        ("NEG", lambda x: -x, [-1.5, 0, 2]),
        ("EXP", math.exp, [-30, 0, 1, 10]),
        ("LOG", math.log, [1e-30, 0.5, 1, 1e30]),
        ("SQRT", math.sqrt, [0, 2, 1e30]),
        ("RSQRT", lambda x: 1 / math.sqrt(x), [1e-30, 2, 16]),
        ("SIN", math.sin, [-10, 0, 0.5, 100]),
        ("FLOOR", math.floor, [-1.5, -1, -0.25, 0.75, 3]),
        ("TANH", math.tanh, [-50, -0.5, 0, 2, 50]),
        ("LOGISTIC", lambda x: 1 / (1 + math.exp(-x)), [-80, -0.5, 0, 2, 80]),
        ("HARD_SWISH", lambda x: x * max(0, min(6, x + 3)) / 6, [-4, -3, -1, 0, 1, 3, 4]),
        ("RELU1", lambda x: min(1, max(-1, x)), [-4, -0.5, 0.5, 4]),
    ],
)
def test_functions_of_one_element(name, function, numbers):
    expected = [function(x) for x in numbers]
    np.testing.assert_allclose(run(name, [np.float32(numbers)])[0], expected, 5e-7)
    half = np.float16([x for x in numbers if x == 0 or 0.01 < abs(x) < 100])
    actual = run(name, [half], result(F16))[0]
    assert actual.dtype == np.float16
    np.testing.assert_allclose(actual, np.float16([function(float(x)) for x in half]), 2**-10)


def test_functions_outside_their_domain_give_no_number_or_infinity():
    same(run("LOG", [[0.0, -1.0]])[0], np.float32([-INF, NAN]))
    same(run("RSQRT", [[0.0, -1.0, INF]])[0], np.float32([INF, NAN, 0]))
    same(run("SQRT", [[-1.0]])[0], np.float32([NAN]))


def test_least_integer_has_no_positive_counterpart():
    same(run("ABS", [ints(LEAST, -3)], result(I32))[0], np.int32([LEAST, 3]))
    same(run("NEG", [ints(LEAST, -3)], result(I32))[0], np.int32([LEAST, 3]))


def test_quantised_rsqrt_saturates_from_0_downwards():
    x = value(Q8, [0, 4, 5, 8, 20, 255], 0.25, 4)  # -1, 0, 0.25, 1, 4, 62.75
    expected = [255, 255, 2 / 0.0625, 1 / 0.0625, 0.5 / 0.0625, round(62.75**-0.5 / 0.0625)]
    same(run("RSQRT", [x], result(Q8, scale=0.0625))[0], np.uint8(expected))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, -1.0])
def test_elu_follows_its_formula_also_where_exp_overflows(alpha):
    numbers = [-100.0, -1.0, -1e-4, 0.0, 2.0, 80.0]
    expected = [max(0, x) + min(0, alpha * math.expm1(x)) for x in numbers]
    np.testing.assert_allclose(run("ELU", [numbers, alpha])[0], np.float32(expected), 1e-6)
    assert run("ELU", [[1000.0], abs(alpha)])[0] == [1000]


def test_alpha_of_elu_has_the_precision_of_its_tensor():
    half = value(Type.FLOAT16, 0.5)
    same(run("ELU", [value(F16, [-INF, 4]), half], result(F16))[0], np.float16([-0.5, 4]))
    with pytest.raises(InvalidModel, match=r"input 1 \(alpha\) is FLOAT16, must be one of: FLOAT32"):
        bound("ELU", [[1.0], half])


# ---------------------------------------------------------------------------------------------------------- activations


def test_limits_of_quantised_activations():
    x = value(Q8, [0, 112, 120, 128, 136, 144, 255], 0.125, 128)  # -16, -2, -1, 0, 1, 2, 15.875
    same(run("RELU", [x], result(Q8, None, 0.125, 128))[0], np.uint8([128, 128, 128, 128, 136, 144, 255]))
    same(run("RELU1", [x], result(Q8, None, 0.125, 128))[0], np.uint8([120, 120, 120, 128, 136, 136, 136]))
    same(run("RELU6", [x], result(Q8, None, 0.125, 128))[0], np.uint8([128, 128, 128, 128, 136, 144, 176]))
    with pytest.raises(InvalidModel, match=r"has scale 0.25 and zero point 128, must be those of the input, 0.125"):
        bound("RELU", [x], result(Q8, None, 0.25, 128))


@pytest.mark.parametrize(
    ("name", "type", "scale", "zero"),
    [
        ("TANH", Q8, 1 / 128, 128),
        ("TANH", Q8S, 1 / 128, 0),
        ("LOGISTIC", Q8, 1 / 256, 0),
        ("LOGISTIC", Q8S, 1 / 256, -128),
    ],
)
def test_outputs_of_tanh_and_logistic_have_a_fixed_scale(name, type, scale, zero):
    x = value(type, [0, 50, 100, 127], 0.1, 50)
    function = math.tanh if name == "TANH" else lambda r: 1 / (1 + math.exp(-r))
    expected = [round(function(0.1 * (q - 50)) / scale) + zero for q in (0, 50, 100, 127)]
    limits = np.iinfo(np.uint8 if type == Q8 else np.int8)
    same(run(name, [x], result(type, None, scale, zero))[0], np.clip(expected, limits.min, limits.max))
    with pytest.raises(InvalidModel, match=f"has scale {scale:g} and zero point 1, must be {scale:g} and {zero}"):
        bound(name, [x], result(type, None, scale, 1))


def test_activations_take_nothing():
    for name in ("RELU", "TANH", "LOGISTIC", "HARD_SWISH"):
        assert run(name, [np.zeros((0, 3), np.float32)])[0].shape == (0, 3)


# ---------------------------------------------------------------------------------------------------------- comparisons


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("EQUAL", [0, 1, 0]),
        ("NOT_EQUAL", [1, 0, 1]),
        ("LESS", [1, 0, 0]),
        ("LESS_EQUAL", [1, 1, 0]),
        ("GREATER", [0, 0, 1]),
        ("GREATER_EQUAL", [0, 1, 1]),
    ],
)
def test_comparisons(name, expected):
    for x, y in (
        ([1.0, 2.0, 3.0], [2.0]),
        (ints(-1, 0, 1), ints(0)),
        (value(Q8, [1, 3, 5], 0.1, 0), value(Q8, [129], 0.3, 128)),  # 0.1, 0.3, 0.5 against 0.3
        (value(Q8S, [-128, -1, 127], 1, 0), value(Q8S, [0], 1, 1)),
    ):
        same(run(name, [x, y], result(B8))[0], np.bool_(expected))
    same(run(name, [value(B8, [0, 1]), value(B8, [1])], result(B8))[0], np.bool_(expected[:2]))


def test_no_number_equals_nothing():
    same(run("EQUAL", [[NAN], [NAN]], result(B8))[0], [False])
    same(run("NOT_EQUAL", [[NAN], [NAN]], result(B8))[0], [True])


def test_truth_tables():
    x, y = value(B8, [[0], [1]]), value(B8, [0, 1])
    same(run("LOGICAL_AND", [x, y], result(B8))[0], [[False, False], [False, True]])
    same(run("LOGICAL_OR", [x, y], result(B8))[0], [[False, True], [True, True]])
    same(run("LOGICAL_NOT", [y], result(B8))[0], [True, False])
    with pytest.raises(InvalidModel, match=r"is TENSOR_INT32, must be one of: TENSOR_BOOL8 since 1.2"):
        bound("LOGICAL_AND", [ints(1), ints(1)], result(B8))


def test_select_requantises_both_sides():
    x, y = value(Q8, [2, 4, 6], 0.5, 0), value(Q8, [1, 2, 3], 2, 0)
    same(run("SELECT", [value(B8, [1, 0, 1]), x, y], result(Q8, scale=1, zero=5))[0], np.uint8([6, 9, 8]))


def test_select_does_not_broadcast_but_pools_what_is_known():
    shapes = [Value(B8, (2, None)), Value(F32, (None, 3)), Value(F32, (None, None))]
    assert bound("SELECT", shapes).shapes == [(2, 3)]
    with pytest.raises(InvalidModel, match=r"SELECT: shapes \[1\], \[2\], \[2\] must be equal"):
        bound("SELECT", [value(B8, [1]), [1.0, 2.0], [3.0, 4.0]])


# ---------------------------------------------------------------------------------------------------------- conversions


@pytest.mark.parametrize(
    ("x", "type", "expected"),
    [
        (value(F32, [-1.75, 1.75, 300, NAN]), Q8, [0, 1, 255, 0]),
        (value(F32, [-1.75, 1.75, 3e9, -INF, NAN]), I32, [-1, 1, MOST, LEAST, 0]),
        (value(F16, [-1.5, 255.5, INF]), Q8, [0, 255, 255]),
        (value(I32, [-1, 256, 7]), Q8, [0, 255, 7]),
        (value(I32, [2**24 + 1, -5]), F32, [2**24, -5]),
        (value(F32, [1e6, 0.1]), F16, [INF, np.float16(0.1)]),
        (value(Q8, [0, 255], 0.5, 100), F32, [0, 255]),
    ],
)
def test_cast_truncates_and_saturates_stored_values(x, type, expected):
    actual = run("CAST", [x], result(type, scale=1.0 if type == Q8 else 0))[0]
    same(actual, np.asarray(expected, actual.dtype))


@pytest.mark.parametrize(
    ("type", "level"),
    [(F32, V1_2), (Q8, V1_2), (B8, V1_3), (Q8S, V1_3), (Q8SYMM, V1_3), (Q16A, V1_3), (Q16S, V1_3)],
)
def test_cast_to_the_same_type(type, level):
    x = value(type, [0, 1], 0.0 if type in (F32, B8) else 0.5)
    output = result(type, None, 2 * x.scale)
    assert bound("CAST", [x], output).level == level
    same(run("CAST", [x], output)[0], x.data)


def test_some_types_cast_to_themselves_only():
    with pytest.raises(
        InvalidModel, match=r"output 0 \(output\) is TENSOR_FLOAT32, must be one of: TENSOR_BOOL8 since 1.3"
    ):
        bound("CAST", [value(B8, [1])], result(F32))
    with pytest.raises(InvalidModel, match=r"is TENSOR_QUANT8_ASYMM_SIGNED, must be one of: TENSOR_FLOAT32 since 1.2"):
        bound("CAST", [[1.0]], result(Q8S, scale=1))


def test_quantise_rounds_half_away_from_0_and_saturates():
    numbers = [-1000.0, -0.75, -0.25, 0.0, 0.2, 0.25, 1000.0]
    same(run("QUANTIZE", [numbers], result(Q8, scale=0.5, zero=3))[0], np.uint8([0, 1, 2, 3, 3, 4, 255]))
    same(run("QUANTIZE", [numbers], result(Q8S, scale=0.5, zero=-3))[0], np.int8([-128, -5, -4, -3, -3, -2, 127]))
    assert bound("QUANTIZE", [value(F16, [1])], result(Q8, scale=1)).level == V1_2


@pytest.mark.parametrize(
    ("x", "expected", "level"),
    [
        (value(Q8, [0, 128, 255], 0.5, 128), [-64, 0, 63.5], V1_0),
        (value(Q8S, [-128, 127], 0.5, -128), [0, 127.5], V1_3),
        (value(Q8SYMM, [-128, 127], 0.5), [-64, 63.5], V1_2),
        (value(Q8PC, [[2, 4], [2, 4]], 0, 0, ChannelQuant((0.5, 2.0), 1)), [[1, 8], [1, 8]], V1_2),
    ],
)
def test_dequantise_gives_real_values(x, expected, level):
    same(run("DEQUANTIZE", [x])[0], np.float32(expected))
    same(run("DEQUANTIZE", [x], result(F16))[0], np.float16(expected))
    assert (bound("DEQUANTIZE", [x]).level, bound("DEQUANTIZE", [x], result(F16)).level) == (level, max(level, V1_2))
