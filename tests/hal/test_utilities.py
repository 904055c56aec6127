"""The utilities for drivers, each against the words of its definition."""

import math
import warnings

import pytest

from nnhal.base.codes import OperandType as Type
from nnhal.base.codes import Preference, Priority
from nnhal.base.errors import InvalidArgument, InvalidModel
from nnhal.base.levels import V1_0, V1_1, V1_2, V1_3
from nnhal.frontends.python import Builder
from nnhal.hal import utilities as u
from nnhal.hal.device import Capabilities, Performance
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


def test_a_size_past_32_bits_is_an_error():
    with pytest.raises(InvalidArgument, match=r"must be less than 2\*\*32"):
        u.size_of_data(Type.TENSOR_FLOAT32, (65536, 65536))


def test_a_type_of_an_extension_has_no_size():
    with pytest.raises(InvalidArgument, match="must be a type of NNAPI"):
        u.size_of_data(0x7FFF << 16)


def test_performance_is_looked_up():
    assert u.lookup(Capabilities({Type.INT32: Performance(2.0, 2.0)}), Type.INT32).exec_time == 2.0
    assert math.isinf(u.lookup(Capabilities(), Type.INT32).exec_time)


def test_capabilities_of_1_0_survive_the_way_up_and_down():
    old = u.OldCapabilities(Performance(0.5, 0.6), Performance(0.2, 0.3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", u.LossWarning)
        assert u.convert_capabilities(u.upgrade(old), V1_0) == old


@pytest.mark.parametrize(
    ("level", "what"), [(V1_0, "relaxed float32"), (V1_1, "other operand types"), (V1_2, "IF and WHILE")]
)
def test_what_a_level_cannot_hold_is_warned_of(level, what):
    operands = Capabilities.uniform(0.5).operands | {Type.TENSOR_BOOL8: Performance(3.0, 3.0)}
    stated = Capabilities(operands, Performance(0.1), Performance(0.1), Performance(0.2), Performance(0.2))
    with pytest.warns(u.LossWarning) as caught:
        u.convert_capabilities(stated, level)
    assert any(what in str(w.message) for w in caught)


def test_converting_down_checks_and_says_what_is_lost():
    with pytest.warns(u.LossWarning, match="relaxed float32 is lost at level 1.0"):
        assert not u.convert_to(pooled(relaxed=True), V1_0).relaxed
    with pytest.raises(InvalidModel, match=r"needs level 1.2, must be at most 1.1: TENSOR_FLOAT16 exists since 1.2"):
        u.convert_to(pooled("TENSOR_FLOAT16"), V1_1)
    assert u.convert_to(pooled(), V1_3) == pooled()


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
