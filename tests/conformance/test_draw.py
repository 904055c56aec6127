"""What is drawn: all that the records say may be there, and nothing else."""

import collections
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import OperandType
from nnhal.base.operands import quantised
from nnhal.conformance.differential import model_of
from nnhal.conformance.draw import FLOATS, STEPS, Cell, cells, classes, contents, draw
from nnhal.model.validate import validate
from nnhal.ops import OPS
from nnhal.ops.schema import REQUIRED

F32, Q8 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM
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


def test_a_cell_draws_the_same_of_the_same_seed():
    cell = Cell(OPS["CONV_2D"], 0, F32, "nan")
    one, other = (draw(cell, np.random.default_rng(3)) for _ in range(2))
    assert one.given == other.given
    for x, y in zip(one.inputs, other.inputs, strict=True):
        np.testing.assert_array_equal(x.array, y.array)


@pytest.mark.parametrize(
    ("values", "has"),
    [
        ("zeros", lambda x: ((x == 0) & np.signbit(x)).any() and ((x == 0) & ~np.signbit(x)).any()),
        ("ties", lambda x: (np.abs(x % 1) == 0.5).sum() > x.size / 10),
        ("large", lambda x: np.isinf(np.square(x)).any() and np.isfinite(x).all()),
        ("largest", lambda x: np.abs(x).max() > 1e38 and np.isfinite(x).all()),
        ("smallest", lambda x: ((x != 0) & (np.abs(x) < 1e-36) & (np.abs(x) >= np.finfo("f4").tiny)).any()),
        ("subnormal", lambda x: ((x != 0) & (np.abs(x) < np.finfo("f4").tiny)).any()),
        ("infinite", lambda x: (x == np.inf).any() and (x == -np.inf).any()),
        ("nan", lambda x: np.isnan(x).any() and not np.isnan(x).all()),
        ("ordinary", lambda x: np.isfinite(x).all() and np.abs(x).max() <= 40),
    ],
)
def test_a_class_has_the_values_of_its_name(values, has):
    with np.errstate(over="ignore"):
        assert has(contents(np.random.default_rng(1), F32, (400,), values))


def test_ends_of_a_quantised_type_are_drawn():
    x = contents(np.random.default_rng(1), Q8, (400,), "ends")
    assert (x == 0).sum() > 20 and (x == 255).sum() > 20


def test_scales_far_from_one_and_subnormal_ones_are_drawn():
    rng = np.random.default_rng(1)
    scales = [draw(Cell(OPS["CONCATENATION"], 0, Q8, "far"), rng).inputs[0].scale for _ in range(200)]
    assert min(scales) < np.finfo("f4").tiny and max(scales) > 1e20
    assert "far" in classes(Q8)
