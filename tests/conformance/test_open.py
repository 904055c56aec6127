"""What the records leave to the driver: those elements that they say, and no others."""

import numpy as np
import pytest

from nnhal.base.codes import OperandType
from nnhal.base.operands import Value
from nnhal.conformance.differential import open_masks
from nnhal.ops.schema import OPS
from tests.conformance.test_differential import F32, I32, call, scalar, tensor

INF, NAN, MOST = np.inf, np.nan, float(np.finfo(np.float32).max)


def number(x: float) -> Value:
    return Value(OperandType.FLOAT32, data=np.float32(x))


def truth(x: bool) -> Value:
    return Value(OperandType.BOOL, data=np.bool_(x))


def opened(name, *inputs, out=F32, more=()):
    """The open elements of the first output, whole."""
    one = call(name, *inputs, out=Value(out, None)) if not more else called(name, inputs, (Value(out, None), *more))
    (mask, *_) = open_masks(one, len(one.outputs))
    shape = one.outputs[0].shape
    return np.broadcast_to(mask, shape).tolist()


def called(name, inputs, outs):
    """As `call`, of several outputs."""
    from dataclasses import replace

    from nnhal.conformance.draw import Call, Cell
    from nnhal.ops.schema import bind

    a = bind(OPS[name], inputs, outs)
    made = tuple(replace(v, shape=s) for v, s in zip(outs, a.shapes, strict=True))
    given = tuple(n for n, v in enumerate(inputs) if v is not None and v.shape)
    return Call(Cell(OPS[name], OPS[name].forms.index(a.form), int(a.T or 0), "ordinary"), inputs, made, given, a)


def test_only_integers_divided_by_0_are_open():
    assert opened("DIV", tensor([1, 0, 4]), tensor([0, 0, 2]), scalar(0)) == [False, False, False]
    assert opened("DIV", tensor([1, 4], I32), tensor([0, 2], I32), scalar(0), out=I32) == [True, False]


@pytest.mark.parametrize("name", ["SOFTMAX", "LOG_SOFTMAX"])
def test_only_rows_with_infinity_are_open_in_a_softmax(name):
    x = tensor([[1, INF], [1, 2], [-INF, 3], [NAN, 1], [MOST, 1]])
    rest = (scalar(1),) if name == "LOG_SOFTMAX" else ()
    found = opened(name, x, number(1), *rest)
    assert [row[0] for row in found] == [True, False, False, False, False]


@pytest.mark.parametrize("name", ["REDUCE_SUM", "MEAN"])
def test_only_sums_that_may_overflow_are_open(name):
    x = tensor([[3e38, 1e38], [3e38, -3e38], [3e38, 0], [1, 2], [INF, 1], [3e38, NAN]])
    keep = scalar(0) if name == "MEAN" else truth(False)
    assert opened(name, x, tensor([1], I32), keep) == [True, True, False, False, False, False]


def test_only_products_of_which_a_part_leaves_the_range_are_open():
    x = tensor([[3e38, 3, 1e-3], [1e-30, 1e-30, 1], [1e-30, 1e-30, 0], [2, 3, 4], [3e38, 3, NAN], [3e38, 3, 0]])
    assert opened("REDUCE_PROD", x, tensor([1], I32), truth(False)) == [True, True, False, False, False, True]


def pooled(name, *row):
    """Windows of two elements of a row."""
    x = tensor([[[[n] for n in row]]])
    found = opened(name, x, scalar(2), *map(scalar, (2, 1, 2, 1)), scalar(0))
    return [n[0] for n in found[0][0]]


def test_only_windows_with_a_nan_are_open_in_a_maximum():
    assert pooled("MAX_POOL_2D", NAN, 1, 2, 3, INF, 1) == [True, False, False]


def test_only_means_whose_sum_overflows_or_that_are_nan_are_open():
    assert pooled("AVERAGE_POOL_2D", 3e38, 3e38, 1, 2, NAN, 1, INF, 1, INF, -INF, 3e38, 0) == [
        *(True, False, True, False, True, False)
    ]


def test_only_channels_beyond_half_the_range_are_open_when_resized():
    x = tensor([[[[1, 2e38, INF, NAN, 1.7e38], [1, 1, 1, 1, 1.7e38]]]])
    found = opened("RESIZE_BILINEAR", x, scalar(3), scalar(1))
    assert found[0][0] == [[False, True, True, True, False]] * 3


def test_elements_between_far_neighbours_are_open_where_a_last_digit_of_their_place_decides():
    found = opened("RESIZE_BILINEAR", tensor([[[[1], [1], [1], [1e30]]]]), scalar(8), scalar(1))
    assert np.ravel(found).tolist() == [False, False, True, True, True, False, False, False]


def test_only_elements_in_which_rows_of_a_key_differ_are_open():
    values = tensor([[5, 6], [5, 7], [8, 9]])
    hits = Value(OperandType.TENSOR_QUANT8_ASYMM, None, 1.0, 0)
    found = opened("HASHTABLE_LOOKUP", tensor([1, 2, 3], I32), tensor([1, 1, 2], I32), values, more=(hits,))
    assert found == [[False, True], [False, False], [False, False]]


def test_only_heatmaps_with_two_peaks_or_great_elements_are_open():
    maps = np.float32(
        [[[1, 0], [0, 0]], [[1, 0], [0, 1]], [[2e19, 0], [0, 0]], [[NAN, 0], [0, 0]], [[2e18, 0], [0, 0]]]
    )
    boxes = tensor([[0, 0, 4, 4]] * 5)
    places = Value(F32, None)
    found = opened("HEATMAP_MAX_KEYPOINT", tensor(maps[..., None]), boxes, truth(False), more=(places,))
    assert found == [[False], [True], [True], [True], [False]]


@pytest.mark.parametrize(
    ("x", "is_open"),
    [
        ([2, 3], False),
        ([0.4, -0.3], False),
        ([2000, 0], False),
        ([2000, -1999], True),  # a change of a last digit is more than the tolerance
        ([3e37, 0], False),
        ([3e38, 3e38], True),
        ([INF, 1], True),
        ([NAN, 1], True),
    ],
)
def test_only_what_cancels_or_overflows_is_open_in_a_recurrent_cell(x, is_open):
    zero = tensor([[0]])
    arguments = tensor([x]), tensor([[1, 1]]), zero, tensor([0]), zero, scalar(0)
    assert opened("RNN", *arguments, more=(Value(F32, None),)) == [[is_open]]
