"""What the definitions leave to the driver: the masks of `leaves_open`, element by element."""

import math
from typing import Any

import numpy as np
import pytest

from nnhal.base.operands import Array, Value
from nnhal.ops.recurrent import overflows
from tests.ops.run import F16, F32, I32, Q8, Operand, bound, known, result, value

INF, NAN = math.inf, math.nan
MOST, LEAST = float(np.finfo(np.float32).max), 2.0**-126  # of normal float32 numbers
NONE, SAME, VALID = 0, 1, 2


def left_open(name: str, inputs: list[Operand], *outputs: Value) -> Any:
    """What the record says of the inputs' values."""
    values = [known(x) for x in inputs]
    a = bound(name, inputs, *outputs)
    assert a.op.leaves_open is not None
    arrays = [None if v is None or not isinstance(v.data, np.ndarray) else v.data for v in values]
    with np.errstate(all="ignore"):
        return a.op.leaves_open(a, *a.form.tensors(arrays))


def same(found: Any, wanted: Any) -> None:
    assert np.asarray(found).tolist() == np.asarray(wanted, bool).tolist()


def axes(*numbers: int) -> Value:
    return value(I32, numbers)


# -------------------------------------------------------------------------------------------------------- one by one


def test_integers_divided_by_0_are_open_floats_are_not() -> None:
    same(left_open("DIV", [value(I32, [1, 0, 5]), value(I32, [0, 0, 2]), NONE], result(I32)), [1, 1, 0])
    same(left_open("DIV", [[1.0, 0.0, 5.0], [0.0, 0.0, 2.0], NONE]), [0, 0, 0])


def test_which_row_a_key_gives_that_stands_twice_is_open_where_its_rows_differ() -> None:
    keys, values = value(I32, [1, 1, 2]), [[1.0, 2.0], [1.0, 3.0], [5.0, 6.0]]
    found = left_open("HASHTABLE_LOOKUP", [value(I32, [1, 2, 9]), keys, values], result(), result(Q8, None, 1.0))
    same(found, [[0, 1], [0, 0], [0, 0]])


# ----------------------------------------------------------------------------------------------------------- pooling


def pooled(name: str, rows: list[list[float]], width: int, scheme: int = VALID) -> Array:
    """The mask of each row of one channel, a window of one row after another."""
    picture = np.float32(rows)[:, None, :, None]
    found = np.asarray(left_open(name, [picture, scheme, 1, 1, width, 1, NONE]))
    assert found.shape[1:2] == (1,) and found.shape[3:] == (1,)
    return found[:, 0, :, 0]


@pytest.mark.parametrize(
    ("window", "open"),
    [
        ([1.0, 2.0], False),
        ([MOST, 0.0], False),
        ([MOST / 2, MOST / 2], False),
        ([MOST, MOST / 2], True),
        ([MOST, -MOST], True),  # though their sum is 0: another order of more terms may overflow
        ([INF, 1.0], False),
        ([-INF, MOST], False),
        ([INF, -INF], True),
        ([NAN, 1.0], True),
    ],
)
def test_means_are_open_where_a_sum_may_overflow_or_is_no_number(window: list[float], open: bool) -> None:
    same(pooled("AVERAGE_POOL_2D", [window, [1.0, 1.0]], 2), [[open], [False]])


def test_padding_is_not_among_the_terms_of_a_mean() -> None:
    same(pooled("AVERAGE_POOL_2D", [[0.0, MOST], [MOST, MOST]], 2, SAME), [[0, 0], [1, 0]])


def test_every_channel_and_row_of_a_mean_counts_by_itself() -> None:
    picture = np.zeros((1, 2, 3, 2), np.float32)
    picture[0, 1, 1:, 1] = MOST
    found = left_open("AVERAGE_POOL_2D", [picture, VALID, 1, 1, 2, 1, NONE])
    same(found, [[[[0, 0], [0, 0]], [[0, 0], [0, 1]]]])


def test_means_of_quantised_elements_are_never_open() -> None:
    picture = value(Q8, np.full((1, 1, 2, 1), 255), 1e38)
    same(left_open("AVERAGE_POOL_2D", [picture, VALID, 1, 1, 1, 1, NONE], result(Q8, None, 1e38)), [[[[0], [0]]]])


def test_the_greatest_of_a_window_with_a_nan_is_open() -> None:
    rows = [[NAN, 1.0, INF, -INF], [1.0, 1.0, 2.0, NAN]]
    same(pooled("MAX_POOL_2D", rows, 2), [[1, 0, 0], [0, 0, 1]])


# -------------------------------------------------------------------------------------------------------- reductions


@pytest.mark.parametrize("name", ["REDUCE_SUM", "MEAN"])
@pytest.mark.parametrize(
    ("terms", "open"),
    [
        ([1.0, -2.0], False),
        ([MOST, 0.0], False),
        ([MOST / 2, MOST / 2], False),
        ([MOST, 1e32], True),
        ([MOST, -MOST], True),
        ([INF, MOST], False),
        ([-INF, INF], False),
        ([NAN, MOST, MOST], False),
        ([INF, MOST, MOST], True),
    ],
)
def test_sums_are_open_where_their_terms_may_overflow(name: str, terms: list[float], open: bool) -> None:
    rows = [terms, [1.0] * len(terms)]
    for keep, wanted in ((False, [open, False]), (True, [[open], [False]])):
        same(left_open(name, [rows, axes(1), int(keep) if name == "MEAN" else keep]), wanted)


def test_how_much_a_sum_may_hold_is_a_matter_of_its_type() -> None:
    half = value(F16, [[60000, 5000], [60000, 6000]])
    same(left_open("REDUCE_SUM", [half, axes(1), False], result(F16)), [0, 1])
    assert left_open("MEAN", [value(Q8, [[255, 255]], 3e38), axes(1), 0], result(Q8, None, 3e38)) is False


@pytest.mark.parametrize(
    ("factors", "open"),
    [
        ([2.0, -3.0], False),
        ([1e30, -1e8], False),
        ([1e30, 1e9], True),
        ([1e30, 1e-30, 1e30], True),  # a part of them leaves the range
        ([MOST, 1.0], False),
        ([LEAST, 1.0], False),
        ([LEAST, 0.5], True),
        ([LEAST, -0.5, 0.0], False),  # too small does not count where there is a 0
        ([1e30, 1e30, 0.0], True),
        ([NAN, 1e30, 1e30], False),
        ([INF, 2.0], False),
        ([INF, 1e30, 1e30], True),
        ([LEAST, INF, 0.5], True),
    ],
)
def test_products_are_open_where_a_part_of_them_leaves_the_range(factors: list[float], open: bool) -> None:
    rows = [factors, [1.0] * len(factors)]
    same(left_open("REDUCE_PROD", [rows, axes(1), False]), [open, False])
    same(left_open("REDUCE_PROD", [rows, axes(-1), True]), [[open], [False]])


@pytest.mark.parametrize(("name", "more"), [("SOFTMAX", [1.0]), ("LOG_SOFTMAX", [1.0])])
def test_a_softmax_is_open_all_along_an_axis_with_an_infinity(name: str, more: list[Operand]) -> None:
    rows = [[1.0, INF], [-INF, 2.0], [NAN, 3.0]]
    same(left_open(name, [rows, *more, -1]), [[1], [0], [0]])
    same(left_open(name, [rows, *more, 0]), [[0, 1]])


def test_a_softmax_of_quantised_values_is_never_open() -> None:
    assert left_open("SOFTMAX", [value(Q8, [[255, 0]], 1e38), 1.0], result(Q8, None, 1 / 256)) is False


# ------------------------------------------------------------------------------------------------- pictures and maps


def resized(rows: Any, out_w: int, out_h: int, kind: int = F32) -> list[Any]:
    """The mask of a picture of one channel, broadcast to the output."""
    picture = value(kind, np.array(rows)[None, ..., None])
    found = left_open("RESIZE_BILINEAR", [picture, out_w, out_h], result(kind))
    return list(np.broadcast_to(found, (1, out_h, out_w, 1))[0, ..., 0].astype(int).tolist())


@pytest.mark.parametrize("wrong", [INF, -INF, NAN, MOST / 1.9, -MOST / 1.9])
def test_a_channel_is_open_whose_elements_or_their_differences_may_overflow(wrong: float) -> None:
    picture = np.full((1, 2, 2, 2), MOST / 2, np.float32)  # just what is fine
    picture[0, 1, 0, 1] = wrong
    found = np.broadcast_to(left_open("RESIZE_BILINEAR", [picture, 2, 2]), (1, 2, 2, 2))
    assert found[..., 1].all() and not found[..., 0].any()


@pytest.mark.parametrize(
    ("row", "open"),  # a place of up to 4 is off by 2**-21 at most
    [
        ([0, 0, 0, 25], [0, 1, 1, 0]),  # 25 * 2**-21 is more than 1e-5, and less than 1e-5 * (1 + 25)
        ([25, 0, 0, 0], [0, 1, 0, 0]),
        ([0, 0, 0, -25], [0, 1, 1, 0]),
        ([0, 0, 0, 20], [0, 0, 0, 0]),
    ],
)
def test_elements_are_open_that_change_with_the_last_digit_of_their_place(row: list[float], open: list[int]) -> None:
    assert resized([row], 4, 1) == [open]
    assert resized([[x] for x in row], 1, 4) == [[x] for x in open]
    assert resized([row, row], 4, 2) == [open, open]


def test_the_longer_side_says_how_far_a_place_may_be_off() -> None:
    assert resized([[0, 30]], 2, 1) == [[0, 0]]  # 30 * 2**-22
    assert resized([[0, 30]] * 4, 2, 4) == [[1, 0]] * 4  # 30 * 2**-21


def test_half_precision_leaves_more_room() -> None:
    assert resized([[0, 0, 0, 10000]], 4, 1, F16) == [[0, 0, 0, 0]]  # 10000 * 2**-21 is less than 5 * 2**-10
    assert resized([[0, 0, 0, 11000]], 4, 1, F16) == [[0, 1, 1, 0]]


def test_quantised_pictures_are_never_open() -> None:
    picture = value(Q8, np.array([0, 255]).reshape(1, 1, 2, 1), 1e38)
    found = left_open("RESIZE_BILINEAR", [picture, 1, 1], result(Q8, None, 1e38))
    same(np.broadcast_to(found, (1, 1, 1, 1)), [[[[0]]]])


@pytest.mark.parametrize(
    ("elements", "open"),
    [
        ([1, 2, 3, 4], False),
        ([4, 2, 3, 4], True),
        ([1, 1, 1, 4], False),
        ([0, 0, 0, 2.3e18], False),  # its square is less than a 64th of the greatest number
        ([0, 0, 0, 2.4e18], True),
        ([-2.4e18, 0, 1, 2], True),
        ([NAN, 0, 1, 2], True),
    ],
)
def test_keypoints_are_open_with_two_peaks_or_products_beyond_float32(elements: list[float], open: bool) -> None:
    maps = np.zeros((1, 2, 2, 2), np.float32)
    maps[0, ..., 0] = np.reshape(elements, (2, 2))
    maps[0, 0, 0, 1] = 1
    score, place = left_open("HEATMAP_MAX_KEYPOINT", [maps, [[0.0, 0.0, 1.0, 1.0]], False], result(), result())
    same(score, [[open, False]])
    same(place, [[[open], [False]]])


# --------------------------------------------------------------------------------------------------------- recurrent


@pytest.mark.parametrize(
    ("tensors", "too_far"),
    [
        ([[9e18], [9e18]], False),  # 4 * 9e18 * 9e18 is 3.24e38
        ([[1e19], [1e19]], True),
        ([[9e18, 0], [9e18]], True),  # twice as many terms
        ([[-1e19], [-1e19], [0.0]], True),
        ([[8e37]], False),  # with a 1
        ([[9e37]], True),
        ([[INF], [1.0], None, []], False),
        ([[INF, 1e38], [1.0]], True),
        ([], False),
    ],
)
def test_sums_of_products_of_the_two_greatest_numbers_may_overflow(tensors: list[Any], too_far: bool) -> None:
    with np.errstate(over="ignore"):
        assert overflows([None if x is None else np.float32(x) for x in tensors]) is too_far


def unsteady(rows: Any, weights: Any, kind: int = F32, activation: int = NONE) -> Array:
    """The mask of an RNN's output: rows of two elements times their weights."""
    zero = [value(kind, x) for x in ([[0.0]], [0.0])]
    state = value(kind, np.zeros((len(rows), 1)))
    inputs = [value(kind, rows), value(kind, [weights]), *zero, state, activation]
    masks = left_open("RNN", inputs, result(kind), result(kind))
    assert [m.shape for m in masks] == [(len(rows), 1)] * 2
    same(*masks)
    return np.asarray(masks[0][:, 0])


def test_what_follows_from_no_finite_number_is_open() -> None:
    same(unsteady([[INF, 1], [1, 1], [NAN, 1], [-INF, 0]], [1, 2]), [1, 0, 1, 1])


def test_everything_is_open_where_sums_may_overflow() -> None:
    same(unsteady([[1, 1], [1e20, 0]], [1e20, 1]), [1, 1])


def test_what_changes_with_the_last_digits_by_more_than_the_tolerance_is_open() -> None:
    """Of 20 - 20 each product is off by up to 2 * 2**-22: 4 * 20 * 2**-22 is twice 1e-5, and is met now and then."""
    rows = np.tile(np.float32([[20, 20]]), (60, 1))
    assert unsteady(rows, [1, -1]).mean() > 0.5
    assert not unsteady(rows / 2.1, [1, -1]).any()
    assert unsteady(rows * 10, [1, -1]).mean() > 0.9
    assert not unsteady(rows * 1e4, [1, 0]).any()  # one product alone is off by less than 5 * 2**-23 of itself
    assert not unsteady(rows * 10, [1, -1], F16).any()  # 5 * 2**-10
    assert unsteady(rows * 3000, [1, -1], F16).any()


def test_a_gate_may_swallow_what_is_unsteady() -> None:
    rows = np.tile(np.float32([[-500, 499]]), (20, 1))
    relu = 1
    assert unsteady(rows, [1, 1]).any() and not unsteady(rows, [1, 1], activation=relu).any()


def test_a_product_of_three_numbers_may_be_off_by_more_than_the_tolerance() -> None:
    """By 3 * 2**-22 of itself, which is more than 5 * 2**-23; of powers of two, so that nothing is rounded."""
    size = np.float32([[2**10]])
    inputs = [np.tile(size, (20, 1)), size, size, None, np.zeros((20, 1), np.float32), 1, NONE]
    state, output = left_open("SVDF", inputs, result(), result())
    assert output.any() and not state.any()
