"""What the pattern of differences says: a hint where there is one, none where there is not."""

from types import SimpleNamespace

import numpy as np
import pytest

from nnhal.base.codes import OperandType as Type
from nnhal.conformance.compare import compare, compare_all, compare_frequencies, hint, tolerance
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
    "only at the edges: padding?": (changed(RAMP, (0, 0, 1, 0), (0, 3, 2, 0)), real(RAMP)),
    "the right elements in another order: layout or axis?": (RAMP.swapaxes(1, 2), real(RAMP)),
    "every element is 0: is the output written?": (RAMP * 0, real(RAMP)),
    "every element is NaN": (RAMP * np.nan, real(RAMP)),
    "": (changed(RAMP, (0, 0, 1, 0), (0, 2, 2, 0)), real(RAMP)),  # one of them in the middle
    " ": (np.uint8([123, 124, 133, 132, 124, 132]), quantised([125, 125, 131, 131, 125, 131], 0.05)),  # 2 differ
}


@pytest.mark.parametrize("wanted", HINTS)
def test_a_pattern_gives_its_hint(wanted):
    actual, expected = HINTS[wanted]
    assert found(actual, expected) == wanted.strip()


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


@pytest.mark.parametrize(
    ("wanted", "moves", "allowed"),
    [
        (Expected(np.int32([10, 20]), (2,), Type.TENSOR_INT32, False), False, 0),
        (quantised([10, 20]), True, 0),
        (quantised([10, 20]), False, 1),
        (real([10, 20]), True, 0),
    ],
)
def test_integers_and_moved_elements_are_exact_in_vectors(wanted, moves, allowed):
    vector = SimpleNamespace(id="by hand", half_precision=False, moves=moves)
    for off in (0, 1, 2):
        problem, _ = compare_all(vector, [wanted.data + np.asarray(off, wanted.data.dtype)], [wanted])
        assert bool(problem) == (off > allowed)


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


def test_four_elements_may_have_a_pattern_and_three_have_none():
    assert found([4, 7, 5, 12], real([1, 4, 2, 9])) == "all 3 too high: bias?"
    assert found([4, 7, 5], real([1, 4, 2])) == ""


def pair(e, a):
    return np.float32(a), real(e)


RISING = np.float32([1, 2, 3, 4, 5, 6])
NEARLY_2 = np.float32([1.9995, 2.0005] * 3)
IN_CHANNELS = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4) + 1
NEAR_MISSES = {  # what is nearly the pattern of a hint, by what is to be said of it
    "some off by 3, some by 4": ("", RAMP + 3 + np.indices(RAMP.shape).sum(0) % 2, real(RAMP)),
    "one element alike, another not": ("all 3 too high: bias?", *pair([5, 5, 5, 5], [8, 8, 8, 8])),
    "off by half": ("all 0.5 too high: bias?", *pair([1, 9, 4, 7], [1.5, 9.5, 4.5, 7.5])),
    "off by less than 1, low": ("all 0.5 too low: bias?", *pair([1, 9, 4, 7], [0.5, 8.5, 3.5, 6.5])),
    "off by two steps": ("all 2 steps high: zero point?", np.uint8([12, 32, 22, 42]), quantised([10, 30, 20, 40])),
    "to a thousandth of the first": ("all 3 too high: bias?", *pair([1, 2, 5, 4], [4, 5.002, 7.998, 7.001])),
    "to a two-hundredth of the first": ("", *pair([1, 2, 5, 4], [4, 5.015, 7.985, 7.001])),
    "small numbers doubled": ("all 2 times what they must be: scale?", RAMP / 50, real(RAMP / 100)),
    "doubled, one but nearly": ("all 2 times what they must be: scale?", *pair([0, 1, 5, 3], [1.5e-5, 2, 10, 6])),
    "doubled, to a thousandth": ("all 2 times what they must be: scale?", *pair(RISING, RISING * NEARLY_2)),
    "doubled, but for one": ("", *pair([1, 5, 3, 9], [2, 10, 6, 19])),
    "a tenth about the zero point": ("all 0.1 times what they must be: scale?",
                                     np.uint8([118, 133, 138, 130, 124]), quantised([28, 178, 228, 148, 88])),
    "infinite, all of them": ("", *pair([1, 2, 4, 3], [np.inf] * 4)),
    "NaN, not all of them": ("", *pair([1, 2, 4, 3], [1, 2, np.nan, 3])),
    "the first element of the middle": ("", changed(RAMP, (0, 1, 1, 0)), real(RAMP)),
    "the last element of the middle": ("", changed(RAMP, (0, 2, 2, 0)), real(RAMP)),
    "columns at the edge of two channels": (
        "only at the edges: padding?", changed(IN_CHANNELS, (0, 0, 1, 0), (0, 1, 2, 3)), real(IN_CHANNELS)
    ),
    "one in the middle of two channels": ("", changed(IN_CHANNELS, (0, 0, 1, 2)), real(IN_CHANNELS)),
}  # fmt: skip


@pytest.mark.parametrize("what", NEAR_MISSES)
def test_a_hint_is_for_its_pattern_and_for_no_other(what):
    wanted, actual, expected = NEAR_MISSES[what]
    assert found(actual, expected) == wanted


def test_an_output_of_which_no_elements_are_stated_may_have_any():
    assert compare(np.float32([1, 2]), Expected(None, (2,), Type.TENSOR_FLOAT32, False), (0, 0)) == ""
    nothing = np.zeros((0, 4), np.float32)
    assert compare(nothing, Expected(nothing, (0, 4), Type.TENSOR_FLOAT32, False), (0, 0)) == ""


def test_every_output_has_something_expected_of_it():
    vector = SimpleNamespace(id="by hand", half_precision=False, moves=False)
    with pytest.raises(ValueError, match=r"is (longer|shorter)"):
        compare_all(vector, [np.float32([1])] * 2, [real([1])])


def of_classes(logits, samples, within=0.1):
    return compare_frequencies(SimpleNamespace(multinomial=within), [np.float32(logits)], [np.int32(samples)])


def test_what_has_no_value_has_no_frequencies():
    vector = SimpleNamespace(multinomial=0.1)
    for logits, samples in ((np.float32([[0, 0]]), None), (None, np.int32([[0, 1]]))):
        assert compare_frequencies(vector, [logits], [samples]) == ("has no value", "")


def test_samples_have_a_row_for_each_row_of_logits():
    wrong = "has shape {}, must have 1 rows"
    assert of_classes([[0, 0]], [0]) == (wrong.format([1]), "")
    assert of_classes([[0, 0]], [[0, 1], [0, 1]]) == (wrong.format([2, 2]), "")
    assert of_classes([[0, 0]], [[[0, 1]]]) == (wrong.format([1, 1, 2]), "")


def test_samples_are_of_classes_that_there_are():
    wrong = "has classes from {} to {}, must be from 0 to 1"
    assert of_classes([[0, 0]], [[0, 2]]) == (wrong.format(0, 2), "")
    assert of_classes([[0, 0]], [[-1, 1]]) == (wrong.format(-1, 1), "")


def test_frequencies_are_of_each_row_by_itself_whatever_the_size_of_its_logits():
    logits = [[1000, 1000], [np.log(3), 0], [-1000, 0]]
    assert of_classes(logits, [[0, 1, 0, 1], [0, 0, 1, 0], [1, 1, 1, 1]], 1e-6) == ("", "")
    assert of_classes(logits, [[0, 1, 0, 1], [0, 0, 1, 0], [1, 1, 1, 0]], 0.2)[0].startswith(
        "class frequencies are off"
    )


def test_frequencies_may_be_off_by_the_tolerance_and_no_more():
    assert of_classes([[0, 0]], [[1, 1, 1, 0]], 0.25) == ("", "")
    wrong = "class frequencies are off by 0.250, must be within 0.24"
    assert of_classes([[0, 0]], [[1, 1, 1, 0]], 0.24) == (wrong, "")
