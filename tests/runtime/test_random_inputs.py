"""Random inputs that a model accepts, and failures that name the input whose values cause them."""

import inspect
import sys

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import InvalidRequest
from nnhal.model import value_rules
from nnhal.model.value_rules import ValueRules
from nnhal.runtime.random_inputs import MOST_OPERATIONS, random_input, random_inputs
from tests.models import make_model
from tests.runtime.devices import failing

DEVICES = "reference", "litert", "onnxruntime", "openvino"
FILES = value_rules.__file__, inspect.getsourcefile(random_inputs)
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


@pytest.mark.parametrize("kind", ["TENSOR_QUANT8_ASYMM", "TENSOR_QUANT8_ASYMM_SIGNED"])
@pytest.mark.parametrize(("scale", "zero"), [(1.0, 0), (0.5, 0), (1.0, 3)])
def test_bytes_that_decide_no_index_are_drawn_over_their_type(kind, scale, zero):
    (found,) = drawn(make_model(lambda b, x: b.reshape(x, [-1]), ((20, 100), kind, scale, zero)))
    assert int(found.max()) - int(found.min()) == 255


@pytest.mark.parametrize("kind", ["TENSOR_QUANT8_ASYMM", "TENSOR_QUANT8_ASYMM_SIGNED"])
def test_indices_of_bytes_are_rows(kind):
    def model(less):
        def build(b, i):
            return b.gather(table(3), 0, b.sub(b.cast(b.dequantize(i), out_type=WHOLE), [less]))

        return make_model(build, ids=((90,), kind, 1.0, 0))

    assert set(drawn(model(0))[0].tolist()) == {0, 1, 2}
    with pytest.raises(InvalidRequest, match="input ids: no values"):
        random_inputs(model(300), np.random.default_rng(0))  # after it tried the greatest byte


def test_numbers_that_are_computed_with_before_are_drawn_so_that_the_results_are_rows():
    model = make_model(lambda b, i: b.gather(table(5), 0, b.sub(b.mul(i, [3]), [6])), ids=((300,), WHOLE))
    assert set(drawn(model)[0].tolist()) == {2, 3}  # 0 and 3


def adjacent(b, ones):
    """The number of ones up to each element and its neighbour, as cumulative sums are computed."""
    shifted = b.gather(ones, 1, np.int32([0, 0, 1, 2, 3, 4]))
    inside = np.tile(np.arange(6) > 0, (2, 1))
    return b.add(ones, b.select(inside, shifted, np.zeros((2, 6), np.int32)))


def counted(axis):
    """Sums along an axis as indices."""
    return lambda b, m: b.cast(b.reduce_sum(b.cast(m, out_type=REAL), [axis], False), out_type=WHOLE)


@pytest.mark.parametrize(
    ("shape", "numbers"),
    [
        ((2, 8), counted(1)),
        ((2, 8), lambda b, m: b.sub(counted(1)(b, m), [1])),
        ((4, 3), counted(1)),
        ((6, 2), counted(0)),
        ((2, 6), adjacent),
    ],
    ids=["rows", "one less", "odd", "columns", "cumulative"],
)
def test_a_mask_that_is_summed_by_row_or_column_is_ones(shape, numbers):
    model = make_model(lambda b, m: b.gather(table(9), 0, numbers(b, m)), mask=(shape, WHOLE))
    assert np.all(drawn(model)[0] == 1)


def test_indices_of_several_rows_are_not_taken_for_masks():
    (found,) = drawn(rows_of(7, "", 30, 4))
    assert set(found.reshape(-1).tolist()) == set(range(7))


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


def computed(b):
    """A large negative number for all elements of scores, that the model computes from constants."""
    return b.reshape(b.gather(np.float32([-1e9]), 0, np.zeros(15, np.int32)), [3, 5])


@pytest.mark.parametrize(
    ("hides", "kind", "wanted"),
    [
        (lambda b, m, x: b.add(x, penalty(b, m, -1e4)), WHOLE, 1),
        (lambda b, m, x: b.add(penalty(b, m, -3e38), x), WHOLE, 1),
        (lambda b, m, x: b.select(b.not_equal(m, np.zeros((3, 5), np.int32)), x, LOWEST), WHOLE, 1),
        (lambda b, m, x: b.select(m, x, -np.inf * LOWEST.clip(1, 1)), BOOLEAN, 1),
        (lambda b, m, x: b.select(m, LOWEST, x), BOOLEAN, 0),
        (lambda b, m, x: b.select(m, computed(b), x), BOOLEAN, 0),
        (lambda b, m, x: b.select(b.equal(m, np.zeros((3, 5), np.int32)), computed(b), x), WHOLE, 1),
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
    ids=[
        "added",
        "added to",
        "condition",
        "infinity",
        "inverse",
        "computed",
        "computed condition",
        "small",
        "greatest",
        "of others",
        "scaled",
        "index",
    ],
)
def test_a_mask_hides_nothing(hides, kind, wanted):
    model = make_model(hides, mask=((3, 5), kind), scores=(3, 5))
    mask, _ = drawn(model)
    values = set(mask.reshape(-1).tolist())
    assert values == {wanted} if wanted is not None else len(values) > 1


@pytest.mark.parametrize(
    ("hides", "wanted"),
    [
        (lambda b, m, n, x: b.select(b.logical_and(m, n), x, LOWEST), {1}),
        (lambda b, m, n, x: b.select(b.logical_or(m, n), LOWEST, x), {0}),
        (lambda b, m, n, x: b.select(b.logical_and(m, b.logical_not(n)), x, LOWEST), {0, 1}),
    ],
    ids=["both", "either", "one without the other"],
)
def test_two_masks_that_hide_together_hide_nothing(hides, wanted):
    model = make_model(hides, m=((3, 5), BOOLEAN), n=((3, 5), BOOLEAN), scores=(3, 5))
    assert [set(mask.reshape(-1).tolist()) for mask in drawn(model)[:2]] == [wanted, wanted]


def test_an_operation_that_cannot_be_evaluated_has_no_rule(monkeypatch):
    monkeypatch.setattr(value_rules, "results_of", failing(AttributeError("a defect")))

    def build(b, i, j, m, x):
        rows = b.gather(table(3), 0, b.add(i, i)), b.gather(table(3), 0, j)
        return [*rows, b.add(x, penalty(b, m, -1e4))]

    model = make_model(build, i=((40,), WHOLE), j=((40,), WHOLE), mask=((1, 5), WHOLE), x=(3, 5))
    i, j, mask, _ = random_inputs(model, np.random.default_rng(0))
    assert i.max() == 9 and j.max() == 2 and mask.max() > 1


def test_numbers_that_fit_alone_and_not_together_are_replaced():
    model = make_model(lambda b, i, j: b.gather(table(12), 0, b.add(i, j)), i=((50,), WHOLE), j=((50,), WHOLE))
    one, other = drawn(model)
    assert (one + other).max() < 12


def test_several_inputs_may_have_one_possible_value_only():
    model = make_model(
        lambda b, i, j: [b.gather(table(1), 0, i), b.gather(table(1), 0, j)], i=((9,), WHOLE), j=((9,), WHOLE)
    )
    assert not np.any(drawn(model))


def test_inputs_that_share_no_rule_are_searched_for_apart():
    """One must be from 2 to 4, another from 3 to 5, two others 0 and 0: no value fits all."""

    def build(b, i, j, k, m):
        here, there = b.gather(table(3), 0, b.sub(i, [2])), b.gather(table(3), 0, b.sub(j, [3]))
        return [here, there, b.gather(table(1), 0, b.add(k, m))]

    model = make_model(build, **dict.fromkeys("ijkm", ((40,), WHOLE)))
    assert [set(x.tolist()) for x in drawn(model)] == [{2, 3, 4}, {3, 4, 5}, {0}, {0}]


def lines_of(model):
    """The number of lines of code that the search executes."""
    found = [0]

    def trace(frame, event, _):
        if event == "call":
            return trace if frame.f_code.co_filename in FILES else None
        found[0] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        random_inputs(model, np.random.default_rng(0))
    finally:
        sys.settrace(before)
    return found[0]


def test_the_search_is_linear_in_the_number_of_inputs():
    def build(b, *inputs):
        return [b.gather(table(3), 0, b.mul(each, [1])) for each in inputs]

    few, many = (make_model(build, *[((4,), WHOLE)] * count) for count in (20, 80))
    for model in (few, many):
        ValueRules.of(model)
    assert lines_of(many) < 4.5 * lines_of(few)


def test_a_search_for_inputs_that_share_one_rule_is_linear_beyond_its_bound():
    def build(b, first, *others):
        for each in others:
            first = b.add(first, each)
        return b.gather(table(1200), 0, first)

    few, many = (make_model(build, *[((4,), WHOLE)] * count) for count in (200, 600))
    for model in (few, many):
        ValueRules.of(model)
    assert lines_of(many) < 3 * lines_of(few)


def evaluated(monkeypatch, model):
    """The number of operations that the search evaluates; negative if it finds no values."""
    calls = []
    plain = value_rules.results_of
    monkeypatch.setattr(value_rules, "results_of", lambda *given: [calls.append(1), plain(*given)][1])
    try:
        random_inputs(model, np.random.default_rng(0))
    except InvalidRequest:
        return -len(calls)
    return len(calls)


@pytest.mark.parametrize("add", [0, 100_000])  # values are found, or none
def test_a_search_for_inputs_that_share_one_rule_ends(monkeypatch, add):
    def build(b, first, *others):
        for each in others:
            first = b.add(first, each)
        return b.gather(table(201), 0, b.add(first, [add]))

    calls = evaluated(monkeypatch, make_model(build, *[((4,), WHOLE)] * 200))
    assert (calls < 0) == bool(add) and 0 < abs(calls) <= MOST_OPERATIONS + 1000


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


def test_only_inputs_of_the_rule_that_no_value_satisfies_are_named():
    def build(b, zero, far, one):
        rows = b.gather(table(1), 0, zero), b.gather(table(3), 0, b.sub(b.add(far, zero), [100]))
        return [*rows, b.gather(table(2), 0, b.mul(one, far))]

    model = make_model(build, zero=((4,), WHOLE), far=((4,), WHOLE), one=((4,), WHOLE))
    with pytest.raises(InvalidRequest, match=r"^input zero and far: no values .* GATHER #3: indices has -98") as failed:
        random_inputs(model, np.random.default_rng(0))
    assert "--value" not in str(failed.value)  # it is for inputs of one element


def test_rules_that_exclude_each_other_are_blamed_on_all_their_inputs():
    def build(b, i, j, other):
        rows = b.gather(table(3), 0, b.sub(b.add(i, j), [10])), b.gather(table(1), 0, b.mul(j, [3]))
        return [*rows, b.gather(table(2), 0, b.mul(i, [8])), b.gather(table(1), 0, other)]

    model = make_model(build, i=((4,), WHOLE), j=((4,), WHOLE), other=((4,), WHOLE))
    with pytest.raises(InvalidRequest, match=r"^input i and j: no values"):
        random_inputs(model, np.random.default_rng(0))


def test_values_that_are_given_and_fit_no_others_are_the_cause():
    model = make_model(lambda b, i, j: b.gather(table(3), 0, b.add(i, j)), ids=((6,), WHOLE), offset=((1,), WHOLE))
    given = np.full(6, 50, np.int32)
    found = random_inputs(model, np.random.default_rng(0), {0: given})
    compiled = nnhal.compile(model, devices="reference", cache_dir=False)
    why = r"indices has 50, must be from 0 to 2; this follows from the values of input ids and offset"
    with pytest.raises(nnhal.OperationFailed, match=why):
        compiled(*found)


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
    wanted = r'GATHER #0 "Gather #3 \(embed\)": indices has 5, must be from 0 to 4'
    if device == "reference":
        wanted += r"; this follows from the values of input ids: give others$"
    else:  # engines have other words, or none
        wanted = rf"; the values of input ids break a rule, give others: {wanted}$"
    with pytest.raises(nnhal.OperationFailed, match=wanted) as failed:
        compiled(np.int32([0, 5, 4, 2]))
    assert str(failed.value).count("indices has") == 1
    assert str(failed.value).startswith(f"device {device}: ")
