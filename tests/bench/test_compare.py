"""How far two devices are apart: by each intermediate, and by each operation alone."""

import math

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperandType
from nnhal.bench.compare import (
    FLOAT_TOLERANCE,
    Difference,
    compare,
    difference,
    drifts,
    each_operation,
    execute,
    intermediates,
)
from nnhal.model.graph import Model
from nnhal.runtime import discovery
from tests.models import make_model
from tests.runtime.devices import Fake

X = np.float32([1, -2, 3, -4])
NAN, INF = np.nan, np.inf


def model() -> Model:
    """doubled = x + x, positive = relu(doubled), y = positive + x."""
    return make_model(lambda b, x: b.add(b.relu(b.add(x, x, name="doubled"), name="positive"), x, name="y"), x=(4,))


def quantised_model() -> Model:
    return make_model(lambda b, x: b.relu(x), ((4,), "TENSOR_QUANT8_ASYMM", 0.5, 128))


def off(actual, expected, of: Model | None = None) -> Difference:
    """Of the last operation's output."""
    of = of or model()
    last = len(of.main.operations) - 1
    dtype = np.uint8 if of.main.operands[0].type == OperandType.TENSOR_QUANT8_ASYMM else np.float32
    (index,) = of.main.operations[last].outputs
    return difference(of, last, index, np.array(actual, dtype), np.array(expected, dtype))


# ----------------------------------------------------------------------------------------------------- one operand


@pytest.mark.parametrize(
    ("actual", "expected", "worst", "differing"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 0, 0),
        ([1, 2, 3, 5], [1, 2, 3, 4], 1 / 4, 1),  # of the greatest magnitude
        ([1, 2, 3, -5], [1, 2, 2, -4], 1 / 4, 2),
        ([0.125, 0.5], [0.25, 0.5], 1 / 4, 1),
        ([0, 0], [0, 0], 0, 0),
        ([], [], 0, 0),
        ([NAN, 2], [NAN, 2], 0, 0),
        ([NAN, 2], [1, 2], INF, 1),
        ([1, 2], [NAN, 2], INF, 1),
        ([INF, -INF, 4], [INF, -INF, 4], 0, 0),
        ([INF, 4], [4, 4], INF, 1),
        ([4, 4], [-INF, 4], INF, 1),
        ([INF, 3], [INF, 4], 1 / 4, 1),  # an infinity hides no other
        ([1, 2], [1, 2, 3], INF, 3),
        ([[1, 2]], [1, 2], INF, 2),
        (2, 4, 1 / 2, 1),
    ],
)
def test_floats_differ_by_a_part_of_the_greatest_magnitude(actual, expected, worst, differing):
    found = off(actual, expected)
    assert (found.worst, found.differing, found.size) == (worst, differing, np.array(expected).size)


def test_quantised_values_differ_by_steps():
    found = off([10, 200, 7, 7], [10, 197, 8, 7], quantised_model())
    assert (found.worst, found.differing, found.size, found.spread) == (3, 2, 4, 4)
    assert off([0, 0, 0, 0], [5, 5, 5, 5], quantised_model()).spread == 1


def test_what_differs_is_named():
    of = model()
    found = off([1, 1, 1, 1], [1, 1, 2, 2])
    assert (found.operation, found.label, found.name) == (2, "ADD #2", "y")
    assert found.operand == of.main.outputs[0] and found.type is OperandType.TENSOR_FLOAT32 and found.spread == 2


@pytest.mark.parametrize(
    ("type", "worst", "good"),
    [
        (OperandType.TENSOR_FLOAT32, 0.25, True),
        (OperandType.TENSOR_FLOAT32, 0.250001, False),
        (OperandType.TENSOR_QUANT8_ASYMM, 2, True),
        (OperandType.TENSOR_QUANT8_ASYMM, 3, False),
        (OperandType.TENSOR_FLOAT32, INF, False),
    ],
)
def test_the_tolerance_is_that_of_its_kind_and_counts_as_within(type, worst, good):
    assert Difference(0, "", 0, "", type, worst, 1, 4, 4).within(0.25, 2) is good


def test_floats_of_whole_models_may_be_off_by_one_of_two_thousand():
    assert FLOAT_TOLERANCE == 1 / 2000


# ---------------------------------------------------------------------------------------------------- whole models


def test_every_value_that_an_operation_writes_is_an_intermediate():
    of = model()
    found = intermediates(of, discovery.cpu(), [X])
    names = {of.main.operands[i].name: list(array) for i, array in found.items()}
    assert names == {"doubled": [2, -4, 6, -8], "positive": [2, 0, 6, 0], "y": [3, -2, 9, -4]}
    with pytest.raises(ValueError, match="shorter"):
        intermediates(of, discovery.cpu(), [])


def test_what_was_prepared_to_run_once_is_closed():
    device = Fake()
    assert execute(model(), device, [X])[0].tolist() == [3, -2, 9, -4]
    assert [each.closed for each in device.prepared] == [True]

    def fail() -> None:
        raise RuntimeError("broken")

    device.on_run = fail
    with pytest.raises(nnhal.NnhalError, match="broken"):
        execute(model(), device, [X])
    assert [each.closed for each in device.prepared] == [True, True]


def test_operands_that_both_have_are_compared_in_the_order_of_the_operations():
    of = model()
    expected = intermediates(of, discovery.cpu(), [X])
    actual = {i: array + (of.main.operands[i].name == "positive") for i, array in reversed(expected.items())}
    assert [(d.name, d.differing) for d in compare(of, actual, expected)] == [("doubled", 0), ("positive", 4), ("y", 0)]
    first, *rest = expected
    assert [d.operand for d in compare(of, {first: expected[first]}, expected)] == [first]
    assert [d.operand for d in compare(of, expected, {i: expected[i] for i in rest})] == rest


def test_an_operation_alone_is_fed_with_the_other_devices_values():
    of = model()
    values = dict(intermediates(of, discovery.cpu(), [X]))
    doubled = of.main.operations[0].outputs[0]
    values[doubled] = np.float32([-5, 5, 5, 5])  # what the other device had, right or wrong
    found = list(each_operation(of, Fake(), [X], values, [0, 1, 2]))
    assert [d.label for d in found] == ["ADD #0", "RELU #1", "ADD #2"]
    assert [d.differing for d in found] == [4, 4, 0]
    assert math.isclose(found[0].worst, 13 / 5) and [
        d.differing for d in each_operation(of, Fake(), [X], values, [2])
    ] == [0]
    with pytest.raises(ValueError, match="shorter"):
        list(each_operation(of, Fake(), [], values, [1]))


def scores(*rows: list[float]) -> list[np.ndarray]:
    return [np.array([row], np.uint8) for row in rows]


def test_outputs_of_whole_models_drift_by_elements_side_and_greatest():
    made = make_model(lambda b, x: b.relu(x), ((1, 3), "TENSOR_QUANT8_ASYMM", 0.5, 128))
    right = scores([10, 20, 5], [10, 20, 20], [7, 3, 1])
    found = scores([11, 20, 5], [10, 19, 20], [7, 8, 1])
    (drift,) = drifts(made, [([f], [e]) for f, e in zip(found, right, strict=True)], ["y"])
    assert (drift.differing, drift.size, drift.worst, drift.lean) == (3, 9, 5, pytest.approx(5 / 3))
    assert (drift.rows, drift.changed) == (3, 1), "of two that are the greatest either may be"


def test_drift_of_floats_is_relative_and_infinite_where_a_number_is_missing():
    found = [np.float32([1, 2.5, -4])], [np.float32([NAN, 2, 3])]
    right = [np.float32([1, 2, -4])], [np.float32([1, 2, 3])]
    one, other = ([(f, e)] for f, e in zip(found, right, strict=True))
    made = make_model(lambda b, x: b.relu(x), (3,))
    (drift,) = drifts(made, one, ["y"])
    assert (drift.worst, drift.lean, drift.differing, drift.changed) == (0.125, 0.125, 1, 0)
    (drift,) = drifts(made, other, ["y"])
    assert drift.worst == INF and drift.differing == 1


def test_drift_of_infinite_numbers_that_are_the_same_is_none():
    made = make_model(lambda b, x: b.relu(x), (3,))
    same = np.float32([INF, -INF, NAN])
    (drift,) = drifts(made, [([same], [same.copy()])], ["y"])
    assert (drift.worst, drift.lean, drift.differing, drift.changed) == (0, 0, 0, 0)
