"""The utilities for drivers, each against the words of its definition."""

import pytest

from nnhal.base.codes import OperandType as Type
from nnhal.base.codes import Preference, Priority
from nnhal.base.errors import InvalidArgument
from nnhal.base.levels import V1_0
from nnhal.frontends.python import Builder
from nnhal.hal import utilities as u
from nnhal.model.graph import Model
from nnhal.model.validate import validate
from tests.models import make_model


def pooled(type: str = "TENSOR_FLOAT32", *, relaxed: bool = False) -> Model:
    b = Builder()
    x = b.input((1, 8, 8, 3), type)
    return b.finish([x], [b.max_pool_2d(x, padding="same", filter_size=2)], relaxed=relaxed)


def test_extension_types_have_a_prefix():
    assert u.is_extension(1 << 16) and not u.is_extension(Type.TENSOR_OEM_BYTE)


@pytest.mark.parametrize(
    ("type", "dims", "size"),
    [
        (Type.INT32, (), 4),
        (Type.TENSOR_FLOAT16, (2, 3), 12),
        (Type.TENSOR_QUANT8_ASYMM, (5, 0), 0),
        (Type.TENSOR_INT32, (), 0),
    ],
)
def test_size_of_data(type, dims, size):
    assert u.size_of_data(type, dims) == size


def test_a_type_of_an_extension_has_no_size():
    with pytest.raises(InvalidArgument, match="must be a type of NNAPI"):
        u.size_of_data(0x7FFF << 16)


def test_converting_down_leaves_out_arguments_that_hold_their_defaults():
    model = make_model(lambda b, x: b.max_pool_2d(x, padding="same", filter_size=2, nchw=False), (1, 8, 8, 3))
    assert validate(model).level == V1_0
    (operation,) = u.convert_to(model, V1_0).main.operations
    assert len(operation.inputs) == len(model.main.operations[0].inputs) - 1
    assert u.convert_to(model, V1_0).main == pooled().main


def test_preference_and_priority():
    assert u.validate_preference("low_power") == Preference.LOW_POWER
    assert u.validate_priority(2) == Priority.HIGH
    with pytest.raises(InvalidArgument, match="priority is 3, must be one of low, medium, high"):
        u.validate_priority(3)
