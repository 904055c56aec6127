"""What makes two models the same."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import OperandType
from nnhal.base.levels import V1_0
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import EdgeForm, Location, State
from nnhal.model.metadata import Metadata
from nnhal.model.validate import stored_validation, validate
from tests.models import doubling


@pytest.mark.parametrize(
    "told",
    [
        {"name": "other"},
        {"notes": ("taken upon itself",)},
        {"edge": {0: EdgeForm(scalar=True)}},
        {"states": (State(0, 0, np.zeros((2, 3), np.float32)),)},
        {"metadata": Metadata(name="other")},
    ],
    ids=lambda told: next(iter(told)),
)
def test_models_that_compute_the_same_are_equal_whatever_is_said_of_them(told: dict[str, Any]) -> None:
    assert replace(doubling(2, 3), **told) == doubling(2, 3)


def test_what_is_known_of_a_model_is_not_known_of_one_that_was_made_of_it() -> None:
    model = doubling(2, 3)
    assert validate(model).level == V1_0
    assert replace(model, main=replace(model.main, operations=()))._memo == {}
    assert doubling(2, 3) == model


def test_files_that_belong_to_a_model_are_neither_compared_nor_shown() -> None:
    found = Metadata(name="cats", contents={"labels.txt": b"tabby"})
    assert found == Metadata(name="cats") != Metadata() and "labels.txt" not in repr(found)


def test_known_of_a_model_are_the_shapes_that_its_operands_do_not_have() -> None:
    m = ModelBuilder()
    kind = OperandType.TENSOR_FLOAT32
    x, sizes = m.operand(kind, (2, 3)), m.operand(OperandType.TENSOR_INT32, (2,))
    y, z, open_ = (m.operand(kind, dims) for dims in ((), (0, 3), ()))
    for source, target in ((x, y), (y, z)):
        m.operation("RELU", [source], [target])
    m.operation("RESHAPE", [z, sizes], [open_])
    model = m.finish([x, sizes], [z, open_])
    assert stored_validation(model).shapes == (((y, (2, 3)), (z, (2, 3))),)


def test_labels_of_operands_and_operations_are_no_part_of_a_model() -> None:
    main = doubling(2, 3).main
    operands = tuple(replace(operand, name="other") for operand in main.operands)
    operations = tuple(replace(operation, name="other") for operation in main.operations)
    assert replace(main, operands=operands, operations=operations) == main


@pytest.mark.parametrize("other", [{"relaxed": True}, {"values": b"\1"}, {"extensions": (("com.example.x", 1),)}])
def test_models_that_may_compute_something_else_are_not_equal(other: dict[str, Any]) -> None:
    assert replace(doubling(2, 3), **other) != doubling(2, 3)


def test_states_are_equal_whatever_they_start_with() -> None:
    assert State(0, 1, np.zeros(3)) == State(0, 1, np.ones(3)) != State(1, 1, np.zeros(3))


def test_what_is_not_said_of_a_place_or_of_a_form_is_nothing() -> None:
    assert Location() == Location(0, 0, 0) and EdgeForm() == EdgeForm(False, False)
