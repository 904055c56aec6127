"""Random inputs that a model accepts, and failures that name the input whose values cause them."""

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import InvalidRequest
from nnhal.runtime.random_inputs import random_input, random_inputs
from tests.models import make_model

DEVICES = "reference", "litert", "onnxruntime", "openvino"
WHOLE, BOOLEAN, REAL = "TENSOR_INT32", "TENSOR_BOOL8", "TENSOR_FLOAT32"


def table(rows):
    return np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)


def rows_of(rows, name="", *shape):
    """A model that gathers rows by its only input."""
    return make_model(lambda b, i: b.gather(table(rows), 0, i, name=name), ids=(shape or (500,), WHOLE))


def lengths(b, ones, rows):
    """The row of a table whose number is the sum of a mask of floats."""
    count = b.reduce_sum(ones, [1], False)
    return b.gather(table(rows), 0, b.cast(count, out_type=WHOLE))


def drawn(model, given=None, seed=0):
    found = random_inputs(model, np.random.default_rng(seed), given)
    nnhal.compile(model, devices="reference", cache_dir=False)(*found)  # it raises for values that it rejects
    return found


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_indices_are_drawn_from_all_rows_of_a_table(rows):
    (found,) = drawn(rows_of(rows))
    assert set(found.tolist()) == set(range(rows))


def test_indices_of_a_long_table_are_what_integers_are_elsewhere():
    model = rows_of(40)
    (found,) = drawn(model)
    spec = nnhal.compile(model, devices="reference", cache_dir=False).inputs[0]
    assert found.tolist() == random_input(spec, np.random.default_rng(0)).tolist() and found.max() == 9


def test_numbers_that_are_computed_with_before_are_drawn_so_that_the_results_are_rows():
    model = make_model(lambda b, i: b.gather(table(5), 0, b.sub(b.mul(i, [3]), [6])), ids=((300,), WHOLE))
    assert set(drawn(model)[0].tolist()) == {2, 3}  # 0 and 3


@pytest.mark.parametrize(("rows", "wanted"), [(7, 1), (4, 0)])  # six elements of 1 are row 6
def test_a_mask_that_is_summed_to_a_row_is_ones_if_the_model_accepts_them(rows, wanted):
    model = make_model(lambda b, m: lengths(b, b.cast(m, out_type=REAL), rows), mask=((1, 6), WHOLE))
    assert drawn(model)[0].tolist() == [[wanted] * 6]


def test_a_mask_of_booleans_is_true():
    one, zero = np.ones((1, 6), np.float32), np.zeros((1, 6), np.float32)
    model = make_model(lambda b, m: lengths(b, b.select(m, one, zero), 7), mask=((1, 6), BOOLEAN))
    assert drawn(model)[0].tolist() == [[True] * 6]


LOWEST = np.full((3, 5), np.finfo(np.float32).min)


def penalty(b, mask, least):
    """What encoders add to scores: 0 where the mask is 1, a large negative number where it is 0."""
    return b.mul(b.sub(np.ones((1, 5), np.float32), b.cast(mask, out_type=REAL)), np.float32([least]))


@pytest.mark.parametrize(
    ("hides", "kind", "wanted"),
    [
        (lambda b, m, x: b.add(x, penalty(b, m, -1e4)), WHOLE, 1),
        (lambda b, m, x: b.add(penalty(b, m, -3e38), x), WHOLE, 1),
        (lambda b, m, x: b.select(b.not_equal(m, np.zeros((3, 5), np.int32)), x, LOWEST), WHOLE, 1),
        (lambda b, m, x: b.select(m, x, -np.inf * LOWEST.clip(1, 1)), BOOLEAN, 1),
        (lambda b, m, x: b.select(m, LOWEST, x), BOOLEAN, 0),
        (lambda b, m, x: b.add(x, penalty(b, m, -10)), WHOLE, None),
        (lambda b, m, x: b.select(m, -LOWEST, x), BOOLEAN, None),
        (lambda b, m, x: b.add(b.mul(x, np.float32([-1e4])), b.cast(m, out_type=REAL)), WHOLE, None),
        (
            lambda b, m, x: b.add(x, b.mul(b.add(penalty(b, m, -1e4), penalty(b, m, 0)), np.float32([1e-6]))),
            WHOLE,
            None,
        ),
        (lambda b, m, x: [b.add(x, penalty(b, m, -1e4)), b.gather(table(7), 0, m)], WHOLE, None),
    ],
    ids=["added", "added to", "condition", "infinity", "inverse", "small", "greatest", "of others", "scaled", "index"],
)
def test_a_mask_hides_nothing(hides, kind, wanted):
    model = make_model(hides, mask=((3, 5), kind), scores=(3, 5))
    mask, _ = drawn(model)
    values = set(mask.reshape(-1).tolist())
    assert values == {wanted} if wanted is not None else len(values) > 1


def test_numbers_that_fit_alone_and_not_together_are_replaced():
    model = make_model(lambda b, i, j: b.gather(table(12), 0, b.add(i, j)), i=((50,), WHOLE), j=((50,), WHOLE))
    one, other = drawn(model)
    assert (one + other).max() < 12


def test_several_inputs_may_have_one_possible_value_only():
    model = make_model(
        lambda b, i, j: [b.gather(table(1), 0, i), b.gather(table(1), 0, j)], i=((9,), WHOLE), j=((9,), WHOLE)
    )
    assert not np.any(drawn(model))


def test_numbers_fit_those_that_are_given():
    model = make_model(lambda b, i, j: b.gather(table(12), 0, b.add(i, j)), i=((50,), WHOLE), j=((50,), WHOLE))
    given = np.full(50, 9, np.int32)
    one, other = drawn(model, {1: given})
    assert set(one.tolist()) == {0, 1, 2} and other is given


def test_numbers_that_decide_no_index_stay_as_they_are_drawn():
    def build(b, i, j, x):
        return [b.gather(table(3), 0, i), b.mul(j, [2]), b.add(x, x)]

    model = make_model(build, i=((40,), WHOLE), j=((40,), WHOLE), x=(40,))
    specs = nnhal.compile(model, devices="reference", cache_dir=False).inputs
    generator = np.random.default_rng(3)
    plain = [random_input(spec, generator) for spec in specs]
    found = drawn(model, seed=3)
    assert found[0].max() == 2 < plain[0].max()
    assert [x.tolist() for x in found[1:]] == [x.tolist() for x in plain[1:]]


def test_indices_that_reals_decide_are_left_to_the_execution():
    def build(b, i, x):
        return b.gather(table(3), 0, b.add(i, b.cast(x, out_type=WHOLE)))

    model = make_model(build, i=((40,), WHOLE), x=(40,))
    found = random_inputs(model, np.random.default_rng(0))
    assert found[0].max() == 9


def test_indices_that_chance_decides_are_left_to_the_execution():
    def build(b, i):
        chances = np.zeros((1, 3), np.float32)
        return b.gather(table(3), 0, b.add(i, b.random_multinomial(chances, 40, [1, 2])))

    found = random_inputs(make_model(build, i=((1, 40), WHOLE)), np.random.default_rng(0))
    assert found[0].max() == 9


def test_an_input_without_possible_values_is_named_with_the_way_to_give_it():
    model = make_model(
        lambda b, i, j: [b.gather(table(5), 0, b.add(i, [100_000])), b.gather(table(5), 0, j)],
        far=((4,), WHOLE), near=((4,), WHOLE),
    )  # fmt: skip
    why = r"input far: no values .* must be given: --input NAME=FILE.*GATHER #1: indices has 1\d+, must be from 0 to 4$"
    with pytest.raises(InvalidRequest, match=why):
        random_inputs(model, np.random.default_rng(0))
    drawn(model, {0: np.full(4, -99_999, np.int32)})


def test_given_values_that_are_impossible_are_left_to_the_execution():
    model = make_model(
        lambda b, i, j: [b.gather(table(5), 0, i), b.gather(table(5), 0, j)], i=((4,), WHOLE), j=((90,), WHOLE)
    )
    found = random_inputs(model, np.random.default_rng(0), {0: np.full(4, 7, np.int32)})
    assert set(found[1].tolist()) == set(range(5))


@pytest.mark.parametrize("device", DEVICES)
def test_a_failure_names_the_operation_and_the_input_on_each_device(device):
    model = rows_of(5, "Gather #3 (embed)", 4)
    compiled = nnhal.compile(model, devices=device, fallback="forbid", cache_dir=False)
    wanted = (
        r'GATHER #0 "Gather #3 \(embed\)": indices has 5, must be from 0 to 4; this follows from .* input ids: give'
    )
    with pytest.raises(nnhal.OperationFailed, match=wanted) as failed:
        compiled(np.int32([0, 5, 4, 2]))
    assert str(failed.value).count("indices has") == 1
    assert str(failed.value).startswith(f"device {device}: ")
