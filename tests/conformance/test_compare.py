"""What the pattern of differences says: a hint where there is one, none where there is not."""

import numpy as np
import pytest

from nnhal.base.codes import OperandType as Type
from nnhal.conformance.compare import compare, hint, tolerance
from nnhal.conformance.vectors import Expected

RAMP = np.arange(-8, 8, dtype=np.float32).reshape(1, 4, 4, 1)


def real(data):
    data = np.asarray(data, np.float32)
    return Expected(data, data.shape, Type.TENSOR_FLOAT32, False)


def quantised(data, scale=0.5, zero_point=128):
    data = np.asarray(data, np.uint8)
    return Expected(data, data.shape, Type.TENSOR_QUANT8_ASYMM, False, scale, zero_point)


def found(actual, wanted):
    actual, limits = np.asarray(actual, wanted.data.dtype), tolerance(wanted.type, False)
    assert compare(actual, wanted, limits)
    return hint(actual, wanted, limits)


def changed(data, *places):
    data = data.copy()
    for place in places:
        data[place] += 3
    return data


STEPS = np.uint8([100, 128, 140, 150, 131])
HINTS = {
    "all 2 steps high: zero point?": (STEPS + 2, quantised(STEPS)),
    "all 3 steps low: zero point?": (STEPS - 3, quantised(STEPS)),
    "all 3 too high: bias?": (RAMP + 3, real(RAMP)),
    "all 2 times what they must be: scale?": (RAMP * 2, real(RAMP)),
    "all outside [0, 6]: activation?": (RAMP, real(np.clip(RAMP, 0, 6))),
    "all outside [-1, 1]: activation?": (RAMP, real(np.clip(RAMP, -1, 1))),
    "all outside [0, inf]: activation?": (RAMP, real(np.maximum(RAMP, 0))),
    "cut to [0, 6], must not be: activation?": (np.clip(RAMP, 0, 6), real(RAMP)),
    "border only: padding?": (changed(RAMP, (0, 0, 1, 0), (0, 3, 2, 0)), real(RAMP)),
    "the right elements in another order: layout or axis?": (RAMP.swapaxes(1, 2), real(RAMP)),
    "every element is 0: is the output written?": (RAMP * 0, real(RAMP)),
    "every element is NaN": (RAMP * np.nan, real(RAMP)),
    "": (changed(RAMP, (0, 0, 1, 0), (0, 2, 2, 0)), real(RAMP)),  # one of them in the middle
}


@pytest.mark.parametrize("wanted", HINTS)
def test_a_pattern_gives_its_hint(wanted):
    actual, expected = HINTS[wanted]
    assert found(actual, expected) == wanted


def test_bounds_of_activations_are_those_of_the_quantised_numbers():
    steps = np.uint8([100, 128, 134, 150, 141, 120])
    assert found(steps, quantised(np.clip(steps, 128, 140))) == "all outside [0, 6]: activation?"
    assert found(steps, quantised(np.clip(steps, 126, 130))) == "all outside [-1, 1]: activation?"


def test_few_elements_and_other_shapes_give_no_hint():
    assert found([4, 5], real([1, 2])) == ""
    assert hint(np.zeros((2, 2)), real([1, 2, 3, 4]), (0, 0)) == "" == hint(None, real([1, 2, 3, 4]), (0, 0))


@pytest.mark.parametrize("kind", [Type.TENSOR_INT32, Type.TENSOR_QUANT8_ASYMM_SIGNED, Type.TENSOR_QUANT16_SYMM])
def test_integers_may_be_off_by_one_and_not_by_two(kind):
    data = np.int32([10, 20])
    wanted = Expected(data, data.shape, kind, False)
    assert compare(data + 1, wanted, tolerance(kind, False)) == "" == compare(data - 1, wanted, tolerance(kind, False))
    for off in (2, -2):
        found = compare(data + np.int32([0, off]), wanted, tolerance(kind, False))
        assert found == f"1 of 2 elements differ, the first at [1]: {20 + off}, must be 20"


def test_a_float_differs_by_more_than_the_sum_of_both_tolerances():
    limit = 1e-5 + 5 * 2**-23 * 1000
    wanted = real([1000])
    for off, fits in ((0.9, True), (1.2, False), (-0.9, True), (-1.2, False)):
        actual = np.float64([1000 + off * limit])
        assert (compare(actual, wanted, tolerance(wanted.type, False)) == "") is fits, off


def test_infinities_and_nan_are_equal_to_themselves_or_to_nothing():
    limits = tolerance(Type.TENSOR_FLOAT32, False)
    inf, nan = np.float32([np.inf]), np.float32([np.nan])
    assert compare(inf, real(inf), limits) == ""
    assert compare(-inf, real(inf), limits) and compare(np.float32([1]), real(inf), limits)
    assert compare(nan, real([1]), limits) and compare(nan, real(nan), limits)


def test_an_output_without_elements_must_have_its_shape_alone():
    wanted = Expected(None, (0, 4), Type.TENSOR_FLOAT32, False)
    assert compare(np.zeros((0, 4)), wanted, (0, 0)) == ""
    assert compare(np.zeros((1, 4)), wanted, (0, 0)) == "has shape [1, 4], must be [0, 4]"


def test_the_relative_tolerance_is_of_what_is_expected():
    wanted, limits = real([1000]), tolerance(Type.TENSOR_FLOAT32, True)  # 4.888 of 1000, 4.911 of what came
    assert compare(np.float32([1004.88]), wanted, limits) == "" != compare(np.float32([1004.9]), wanted, limits)
