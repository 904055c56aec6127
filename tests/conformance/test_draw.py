"""What is drawn: all that the records say may be there, and nothing else."""

import collections
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import OperandType
from nnhal.base.operands import quantised
from nnhal.conformance.differential import model_of
from nnhal.conformance.draw import FLOATS, STEPS, Cell, Drawn, cells, classes, draw
from nnhal.model.validate import validate
from nnhal.ops import OPS
from nnhal.ops.schema import REQUIRED

F32, Q8, I32 = (OperandType[f"TENSOR_{name}"] for name in ("FLOAT32", "QUANT8_ASYMM", "INT32"))
CONTROL_FLOW = {"IF", "WHILE"}
NAMES = list(dict.fromkeys(cell.op.name for cell in cells()))


def drawn(name: str, count: int) -> list[Any]:
    rng = np.random.default_rng(7)
    some = [cell for cell in cells([name]) if cell.values == "ordinary"]
    return [draw(cell, rng) for cell in some for _ in range(count)]


def test_every_operation_but_control_flow_is_drawn():
    from nnhal.base.codes import OperationType

    assert {name for name in OPS if name in OperationType.__members__} - set(NAMES) == CONTROL_FLOW


def test_every_form_type_and_class_has_a_cell():
    found = {(c.form, c.kind, c.values) for c in cells(["CONV_2D"])}
    types = OPS["CONV_2D"].types
    assert found == {(form, t, v) for form in (0, 1) for t in types for v in (STEPS if quantised(t) else FLOATS)}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMES)
def test_every_argument_is_drawn_in_all_its_ways(name):
    """Optional ones given and left out, trailing ones there and not, every member of an enum, truth values both ways."""
    seen: dict[str, set[Any]] = collections.defaultdict(set)
    calls = drawn(name, 60)
    for call in calls:
        for argument, start, end in call.bound.form.slots(len(call.inputs)):
            value = call.inputs[start] if end > start else None
            seen[argument.name].add("there" if value is not None else "not there")
            if value is not None and argument.scalar:
                seen[argument.name].add(value.array.item())
    for form in OPS[name].forms:
        for argument in form:
            ways: set[Any] = {"there"}
            if argument.optional or argument.default is not REQUIRED:
                ways.add("not there")
            if argument.enum is not None and argument.name != "activation":
                ways |= {int(m) for m in argument.enum} - REFUSED.get((name, argument.name), set())
            assert ways <= seen[argument.name], f"{argument.name}: {ways - seen[argument.name]} never drawn"


REFUSED: dict[tuple[str, str], set[int]] = {  # members that the operation does not take
    **{(name, "activation_kind"): {2, 5} for name in NAMES if "LSTM" in name},
    **{(name, "activation_kind"): {5} for name in NAMES if "RNN" in name or name == "SVDF"},
}


@pytest.mark.parametrize("name", NAMES)
def test_drawn_calls_make_valid_models(name):
    for call in drawn(name, 3):
        validate(model_of(call))


@pytest.mark.parametrize("name", ["RANK", "DEQUANTIZE"])
def test_channels_of_a_drawn_tensor_are_one_at_least_where_shapes_are_open(name):
    rng = np.random.default_rng(7)
    for cell in [cell for cell in cells([name]) if cell.kind == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL]:
        for _ in range(40):
            validate(model_of(draw(cell, rng, open=True)))


def test_a_cell_draws_the_same_of_the_same_seed():
    cell = Cell(OPS["CONV_2D"], 0, F32, "nan")
    one, other = (draw(cell, np.random.default_rng(3)) for _ in range(2))
    assert one.given == other.given
    for x, y in zip(one.inputs, other.inputs, strict=True):
        np.testing.assert_array_equal(x.array, y.array)


def calls(name, kind, values, count=60):
    rng = np.random.default_rng(9)
    return [draw(Cell(OPS[name], 0, kind, values), rng) for _ in range(count)]


def test_outputs_of_numbers_without_a_scale_have_one_about_1():
    found = [np.log2(call.outputs[0].scale) for call in calls("QUANTIZE", F32, "ordinary")]
    assert -5 < min(found) < max(found) < 8 and len(set(found)) > 30


def test_scales_of_results_that_lie_between_steps_do_not_depend_on_those_of_what_goes_in():
    found = [np.log2(call.outputs[0].scale) for call in calls("ADD", Q8, "ties", 200)]
    assert (min(found), max(found)) == (-3, 6)


def test_classes_are_these():
    """Written out: what is dropped from the tuples would be drawn no more, and no test would miss it."""

    floats = "ordinary zeros ties large largest smallest subnormal infinite nan"
    assert classes(F32) == classes(OperandType.TENSOR_FLOAT16) == tuple(floats.split())
    steps = ("ordinary", "ends", "ties", "fine", "coarse", "far")
    for name in ("QUANT8_ASYMM", "QUANT8_ASYMM_SIGNED", "QUANT16_ASYMM", "QUANT8_SYMM"):
        assert classes(OperandType[f"TENSOR_{name}"]) == steps
    assert classes(I32) == ("ordinary", "zeros", "largest")
    assert classes(OperandType.TENSOR_BOOL8) == ("ordinary",)


def numbers(name, argument, kind=F32):
    """Every number that is drawn for an argument."""
    found = []
    for call in calls(name, kind, "ordinary", 80):
        for a, start, end in call.bound.form.slots(len(call.inputs)):
            if a.name == argument and end > start and call.inputs[start] is not None:
                found += call.inputs[start].array.ravel().tolist()
    return found


@pytest.mark.parametrize(
    ("name", "argument", "low", "high"),
    [
        ("SOFTMAX", "axis", -3, 2),
        ("ARGMAX", "axis", -3, 2),
        ("GATHER", "axis", -3, 2),
        ("REDUCE_SUM", "axes", -3, 2),
        ("EXPAND_DIMS", "axis", -3, 2),
        ("PAD", "paddings", 0, 3),
        ("PAD_V2", "paddings", 0, 3),
        ("SPACE_TO_BATCH_ND", "paddings", 0, 3),
        ("RESHAPE", "shape", -1, 5),
        ("STRIDED_SLICE", "begin", -4, 4),
        ("STRIDED_SLICE", "end", -4, 4),
        ("STRIDED_SLICE", "strides", -2, 3),
        ("SLICE", "size", -1, 3),
        ("TRANSPOSE_CONV_2D", "pad_right", -2, 2),
        ("HASHTABLE_LOOKUP", "lookups", -3, 9),
    ],
)
def test_numbers_are_drawn_from_one_end_to_the_other(name, argument, low, high):
    found = numbers(name, argument)
    assert min(found) <= low and max(found) >= high, (min(found), max(found))


def test_a_range_is_told_shapes_in_the_order_of_the_layout():
    orders = {False: ("batch", "height", "width", "depth_in"), True: ("batch", "depth_in", "height", "width")}
    seen = set()
    for seed in range(40):
        made = Drawn(Cell(OPS["CONV_2D"], 0, F32, "ordinary"), np.random.default_rng(seed))
        nchw = bool(made["nchw"])
        assert made.shape_of("input") == tuple(made.size(name) for name in orders[nchw])
        seen.add((nchw, len({made.size(name) for name in orders[nchw]}) == 4))
    assert {(True, True), (False, True)} <= seen  # of unlike sizes in both


def test_a_dimension_without_a_name_is_of_1_to_5_each_time():
    made = Drawn(Cell(OPS["FILL"], 0, F32, "ordinary"), np.random.default_rng(1))
    assert {made.shape_of("shape") for _ in range(200)} == {(size,) for size in (1, 2, 3, 4, 5)}
