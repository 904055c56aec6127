"""How often what is drawn: elements of each class from end to end, scales, sizes, what is given and what is constant."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from nnhal.base.codes import OperandType
from nnhal.base.errors import InvalidModel
from nnhal.conformance import draw as drawing
from nnhal.conformance.draw import Cell, Drawn, cells, classes, contents, draw
from nnhal.ops import OPS

F32, F16, Q8, Q8S, Q16, Q16A, SYMM, PER_CHANNEL, I32, B8 = (
    OperandType[f"TENSOR_{name}"]
    for name in (
        *("FLOAT32", "FLOAT16", "QUANT8_ASYMM", "QUANT8_ASYMM_SIGNED", "QUANT16_SYMM", "QUANT16_ASYMM"),
        *("QUANT8_SYMM", "QUANT8_SYMM_PER_CHANNEL", "INT32", "BOOL8"),
    )
)
COUNT = 8000


def elements(kind, values):
    x = contents(np.random.default_rng(5), kind, (COUNT // 4, 4), values)
    assert x.shape == (COUNT // 4, 4)
    return x.ravel()


def about(share, wanted):
    return abs(share - wanted) < 0.03


# ------------------------------------------------------------------------------------------------------------- elements


def test_ordinary_numbers_are_up_to_10_a_quarter_whole_and_a_quarter_small():
    x = elements(F32, "ordinary")  # three elements of ten of the class, which are 1 or -1, among them
    assert x.dtype == np.float32
    special = np.abs(x) == 1
    assert about(special.mean(), 0.3 + 0.7 / 4 / 10)
    x = x[~special]
    assert 9.9 < x.max() <= 10 and -10 <= x.min() < -9.9
    assert about((x == np.rint(x)).mean(), 0.23)
    assert about((np.abs(x) < 0.1).mean(), 0.21)  # three quarters of the small ones, and some
    assert np.abs(x[x != 0]).min() < 1e-5
    assert about((x > 0).mean(), 0.5 - (x == 0).mean() / 2)


@pytest.mark.parametrize("kind", [F32, F16])
@pytest.mark.parametrize("values", ["large", "largest", "smallest", "subnormal"])
def test_three_of_ten_elements_of_a_class_are_of_its_range_of_both_signs_from_end_to_end(kind, values):
    facts = np.finfo(np.float32 if kind == F32 else np.float16)
    most, least, unit = (float(n) for n in (facts.max, facts.tiny, facts.smallest_subnormal))
    low, high = {
        "large": (most ** (1 / 3), most / 4),  # their squares may overflow, their sums do not
        "largest": (most / 4, most),
        "smallest": (least, 16 * least),
        "subnormal": (unit, least),
    }[values]
    x = elements(kind, values).astype(np.float64)
    assert np.isfinite(x).all()
    inside = (np.abs(x) >= low * 0.999) & (np.abs(x) <= high * 1.001)
    small = values in ("smallest", "subnormal") and kind == F16
    assert about(inside.mean(), 0.3) or (small and 0.27 < inside.mean() < 0.36)
    if values in ("large", "largest") and low > 10:
        assert (np.abs(x[~inside]) <= 10).all()
    size, near = np.abs(x[inside]), 1.2 if high / low < 1e6 else 3
    assert size.min() < low * near and size.max() > high / near
    assert about((x[inside] > 0).mean(), 0.5)


def test_ties_are_halves_from_end_to_end():
    x = elements(F32, "ties")
    halves = x[np.abs(x % 1) == 0.5]
    assert about(halves.size / x.size, 0.3)
    assert set(halves.tolist()) == {n + 0.5 for n in range(-20, 20)}


@pytest.mark.parametrize(("values", "number"), [("zeros", 0.0), ("infinite", np.inf)])
def test_three_of_ten_elements_are_the_number_of_their_class_of_both_signs(values, number):
    x = elements(F32, values)
    special = np.abs(x) == number
    assert about(special.mean(), 0.3 + (0.01 if values == "zeros" else 0))
    assert about(np.signbit(x[special]).mean(), 0.5)


def test_three_of_ten_elements_are_nan():
    assert about(np.isnan(elements(F32, "nan")).mean(), 0.3)


@pytest.mark.parametrize("kind", [Q8, Q8S, SYMM])
def test_quantised_elements_are_of_the_whole_type_and_a_tenth_or_three_at_its_ends(kind):
    for values, share in (("ordinary", 0.1), ("ends", 0.3)):
        x = elements(kind, values)
        limits = np.iinfo(x.dtype)
        assert len(set(x.tolist())) == 256
        for end in (limits.min, limits.max):
            assert about((x == end).mean(), share / 2 + 1 / 256)


@pytest.mark.parametrize("kind", [Q16, Q16A])
def test_wide_quantised_elements_are_of_the_whole_type(kind):
    x = elements(kind, "ordinary")
    limits = np.iinfo(x.dtype)
    assert x.min() == limits.min and x.max() == limits.max and about((x == limits.max).mean(), 0.05)
    assert about((x.astype(float) < (limits.min + limits.max) / 2).mean(), 0.5)


def test_ordinary_integers_have_two_digits_and_others_are_the_ends_and_their_neighbours():
    assert set(elements(I32, "ordinary").tolist()) == set(range(-99, 100))
    for values, odd in (("zeros", {0}), ("largest", {-(2**31), 2**31 - 1, 1 - 2**31, 2**31 - 2, 2**16, 2**30, -1})):
        x = elements(I32, values)
        assert x.dtype == np.int32 and odd <= set(x.tolist()) <= odd | set(range(-99, 100))
        assert about(np.isin(x, list(odd)).mean(), 0.3)


def test_truth_values_are_as_often_true_as_false():
    x = elements(B8, "ordinary")
    assert set(x.tolist()) == {0, 1} and about((x != 0).mean(), 0.5)


# ------------------------------------------------------------------------------------------------- scales, zero points


def call_of(name, kind, values="ordinary", seed=0, form=0, open=False):
    return Drawn(Cell(OPS[name], form, kind, values), np.random.default_rng(seed), open)


def test_scales_are_within_three_powers_of_two_of_1_and_of_what_is_coarser():
    made = call_of("ADD", Q8)
    for coarser in (0, 5, -4):
        exponents = np.log2([made.quantisation(Q8, coarser)[0] for _ in range(600)]) - coarser
        assert -3.001 < exponents.min() < -2.9 and 2.9 < exponents.max() < 3.001


def test_scales_of_ties_are_the_five_powers_of_two_about_1():
    made = call_of("ADD", Q8, "ties")
    for coarser in (0, 3):
        scales = {made.quantisation(Q8, coarser)[0] / 2.0**coarser for _ in range(200)}
        assert scales == {0.25, 0.5, 1, 2, 4}


def test_scales_far_from_1_are_about_one_of_six_and_float32():
    found = set()
    for seed in range(60):
        made = call_of("ADD", Q8, "far", seed)
        exponents = np.log2([made.quantisation(Q8)[0] for _ in range(20)])
        assert abs(exponents - made.near).max() <= 3.001 or made.near == -140
        found.add(made.near)
    assert found == {-140, -60, -30, 30, 60, 100}
    assert call_of("ADD", Q8).near == 0
    made = call_of("ADD", Q8)
    assert made.quantisation(Q8, 500)[0] == 2.0**126  # the greatest power of which sums are finite
    assert made.quantisation(Q8, -500)[0] == np.finfo(np.float32).smallest_subnormal


@pytest.mark.parametrize(("kind", "ends"), [(Q8, (0, 255)), (Q8S, (-128, 127)), (Q16A, (0, 65535))])
def test_a_quarter_each_of_zero_points_is_an_end_the_middle_and_any(kind, ends):
    made = call_of("ADD", Q8)
    zeros = [made.quantisation(kind)[1] for _ in range(COUNT // 4)]
    assert set(zeros) <= set(range(ends[0], ends[1] + 1)) and len(set(zeros)) > 100
    for special in (*ends, sum(ends) // 2 + 1):
        assert about(zeros.count(special) / len(zeros), 0.25)


def test_what_is_not_quantised_has_neither_and_symmetric_types_no_zero_point():
    made = call_of("ADD", Q8)
    assert made.quantisation(F32) == made.quantisation(I32) == (0.0, 0)
    assert {made.quantisation(Q16)[1] for _ in range(50)} == {0}


def test_a_tensor_by_channel_has_a_scale_for_each_and_no_least_number():
    made, axes = call_of("ADD", Q8), set()
    for _ in range(60):
        value = made.tensor(PER_CHANNEL, (2, 3, 4, 5))
        axes.add(value.channel.axis)
        assert len(value.channel.scales) == len(set(value.channel.scales)) == value.shape[value.channel.axis]
        assert value.array.dtype == np.int8 and (value.scale, value.zero_point) == (0, 0)
        assert value.array.min() >= -127
    assert axes == {0, 1, 2, 3}
    x = made.tensor(PER_CHANNEL, (40, 200)).array
    assert x.min() == -127 and x.max() == 127
    assert made.tensor(Q8, (3,), (0.5, 7)).scale == 0.5 and made.tensor(Q8, (3,), (0.5, 7)).zero_point == 7


@pytest.mark.parametrize(
    ("values", "low", "high"), [("ordinary", -1, 4), ("fine", -18, -4), ("coarse", 4, 18), ("ends", -1, 4)]
)
def test_outputs_are_so_many_powers_of_two_coarser_than_what_goes_in(values, low, high):
    ratios = []
    rng = np.random.default_rng(4)
    for _ in range(300):
        made = draw(Cell(OPS["ADD"], 0, Q8, values), rng)
        ratios.append(np.log2(made.outputs[0].scale / made.inputs[0].scale))
    assert low - 3.001 < min(ratios) < low - 1.5 and high + 1.5 < max(ratios) < high + 3.001


# ------------------------------------------------------------------------------------------------------- sizes, choices


def test_numbers_are_drawn_with_both_ends_and_not_where_there_is_none():
    made = call_of("ADD", F32)
    assert {int(made.whole(-2, 1)) for _ in range(60)} == {-2, -1, 0, 1}
    assert {int(made.whole(3, 3)) for _ in range(5)} == {3}
    with pytest.raises(InvalidModel, match="no value is between 3 and 2"):
        made.whole(3, 2)
    assert Counter(made.pick("a", "b", "c") for _ in range(300)).keys() == {"a", "b", "c"}


def sizes(open, count=600):
    """Ten dimensions of each of so many calls."""
    calls = (call_of("ADD", F32, seed=seed, open=open) for seed in range(count))
    return [[made.size(f"axis {n}") for n in range(10)] for made in calls]


def test_sizes_are_small_and_one_of_a_call_may_be_large():
    found = sizes(open=False)
    large = [[n for n in each if n > 5] for each in found]
    assert {n for each in found for n in each} == {1, 2, 3, 4, 5, 8, 16, 17, 31, 33, 65}
    assert max(map(len, large)) == 1
    assert abs(sum(map(len, large)) / len(found) - (1 - 0.95**10)) < 0.06


def test_a_tenth_of_the_sizes_that_a_model_does_not_say_is_0():
    found = [n for each in sizes(open=True) for n in each]
    assert about(found.count(0) / len(found), 0.1)
    assert set(found) == {0, 1, 2, 3, 4, 5, 8, 16, 17, 31, 33, 65}


def test_a_name_has_one_size_in_a_call():
    made = call_of("ADD", F32)
    assert {made.size("axis 0") for _ in range(20)} == {made.size("axis 0")}
    assert {made.once("key", 1, 2, 3, 4) for _ in range(20)} == {made.once("key", 5)}


def shares(name, kind, count=500, form=0):
    rng = np.random.default_rng(6)
    made = [draw(Cell(OPS[name], form, kind, "ordinary"), rng) for _ in range(count)]
    return [sum(place in each.given for each in made) / count for place in range(len(made[0].bound.form))]


def test_how_often_a_tensor_is_given_at_run_time():
    first, second, activation = shares("ADD", F32)
    assert about(first, 0.95) and 0.45 < second < 0.55 and activation == 0
    data, paddings = shares("PAD", F32)
    assert about(data, 0.95) and 0.2 < paddings < 0.3


def test_what_has_no_elements_is_given_at_run_time():
    rng, empty = np.random.default_rng(6), 0
    for _ in range(300):
        made = draw(Cell(OPS["ADD"], 0, F32, "ordinary"), rng, open=True)
        assert made.open
        for place, value in enumerate(made.inputs):
            if not value.array.size:
                empty += 1
                assert place in made.given
    assert empty > 20


def test_shapes_of_operations_without_a_pattern_have_every_rank_that_is_allowed():
    rng = np.random.default_rng(6)
    for name in ("FLOOR", "ADD"):
        made = [draw(Cell(OPS[name], 0, F32, "ordinary"), rng) for _ in range(300)]
        least, most = OPS[name].forms[0][0].rank
        ranks = Counter(max(v.rank for v in each.inputs if v.shape is not None) for each in made)
        assert set(ranks) == set(range(max(1, least), most + 1))


def test_a_broadcast_takes_1_for_three_of_ten_dimensions():
    rng = np.random.default_rng(6)
    made = [draw(Cell(OPS["ADD"], 0, F32, "ordinary"), rng) for _ in range(800)]
    lacking = sum(each.inputs[0].rank != each.inputs[1].rank for each in made) / len(made)
    assert 0.2 < lacking < 0.42  # either may, three times of ten, of which some lack none
    ones = [n == 1 for each in made for n in each.inputs[0].known]
    assert about(np.mean(ones), 0.3 + 0.7 / 5)


# ---------------------------------------------------------------------------------------------------------------- cells


def test_a_call_that_no_rule_allows_is_said_to_be_none_with_the_last_reason(monkeypatch):
    tries = []

    def call(self):
        tries.append(self)
        raise InvalidModel(f"no {len(tries)}")

    monkeypatch.setattr(drawing.Drawn, "call", call)
    monkeypatch.setattr(drawing, "TRIES", 7)
    cell = Cell(OPS["ADD"], 0, F32, "nan")
    with pytest.raises(AssertionError, match=r"^ADD/0/FLOAT32/nan: none of 7 calls was valid; the last: no 7$"):
        draw(cell, np.random.default_rng(0))


def test_cells_are_of_every_type_and_control_flow_and_extensions_have_none(monkeypatch):
    assert not list(cells(["IF"])) and not list(cells(["WHILE"]))
    assert {c.kind for c in cells(["RANDOM_MULTINOMIAL"])} == set(OPS["RANDOM_MULTINOMIAL"].types)
    add = OPS["ADD"]
    record = SimpleNamespace(name="com.vendor.add", code=add.code | 5 << 16, types=add.types, forms=add.forms)
    monkeypatch.setitem(OPS, "com.vendor.add", record)
    assert "com.vendor.add" not in {c.op.name for c in cells()}
    assert {c.op.name for c in cells(["com.vendor.add", "FLOOR"])} == {"com.vendor.add", "FLOOR"}
    assert [len(classes(kind)) for kind in (F32, Q8, I32, B8)] == [9, 6, 3, 1]


def test_outputs_of_scales_far_from_1_are_as_far_from_it_as_what_goes_in():
    rng, ratios = np.random.default_rng(4), []
    for _ in range(200):
        made = draw(Cell(OPS["ADD"], 0, Q8, "far"), rng)
        first, last = np.log2(made.inputs[0].scale), np.log2(made.outputs[0].scale)
        if abs(first) < 80:
            ratios.append(last - first)
    assert len(ratios) > 80 and min(ratios) > -4.001 and max(ratios) < 7.001


def test_trailing_arguments_that_are_left_out_are_not_there_and_one_in_the_middle_is_omitted():
    cell = Cell(OPS["SOFTMAX"], 0, F32, "ordinary")
    made = next(m for m in (Drawn(cell, np.random.default_rng(n)) for n in range(50)) if "axis" in m)
    names = [argument.name for argument in made.form]
    made["axis"]
    made._values["axis"] = None
    call = made.call()
    assert len(call.inputs) == len(names) - 1 and None not in call.inputs


def test_a_scalar_of_floats_is_drawn_up_to_2_from_its_least_or_a_little_above_0():
    made = Drawn(Cell(OPS["ADD"], 0, F32, "ordinary"), np.random.default_rng(3))
    for least, low in ((None, 0.0), (1.5, 1.5)):
        made._types["x"] = OperandType.FLOAT32
        argument = SimpleNamespace(name="x", enum=None, at_least=least, at_most=None)
        drawn = [made._scalar(argument) for _ in range(200)]
        assert low < min(drawn) < low + 0.2 and 1.9 < max(drawn) <= 2


def test_a_scalar_of_truth_is_drawn_either_way_and_one_of_integers_from_its_least_to_its_most():
    made = Drawn(Cell(OPS["ADD"], 0, F32, "ordinary"), np.random.default_rng(3))

    def scalars(kind, least=None, most=None):
        made._types["x"] = kind
        argument = SimpleNamespace(name="x", enum=None, at_least=least, at_most=most)
        return Counter(made._scalar(argument) for _ in range(300))

    assert set(scalars(OperandType.BOOL)) == {False, True} and min(scalars(OperandType.BOOL).values()) > 100
    assert set(scalars(OperandType.INT32)) == {-2, -1, 0, 1, 2, 3}
    assert set(scalars(OperandType.INT32, 1)) == {1, 2, 3} and set(scalars(OperandType.INT32, 4, 5)) == {4, 5}


def test_complex_elements_have_two_ordinary_parts(monkeypatch):
    monkeypatch.setattr(drawing, "dtype_of", lambda kind: np.dtype("c8"))
    found = contents(np.random.default_rng(3), 77, (500,), "ordinary")
    assert found.dtype == np.complex64
    for part in (found.real, found.imag):
        assert part.min() < -5 and part.max() > 5 and len(np.unique(part)) > 200 and np.abs(part).max() < 100
