"""A model as bytes."""

from dataclasses import replace

import numpy as np
import pytest

from nnhal.base.codes import EXTENSION_SHIFT, OperandType
from nnhal.base.errors import InvalidModel
from nnhal.base.extensions import register_extension
from nnhal.base.memory import Memory
from nnhal.base.operands import ChannelQuant
from nnhal.frontends.python import Builder
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from nnhal.model.stored import pack_device_view, pack_model, unpack_device_view
from nnhal.model.validate import validate

pytestmark = pytest.mark.cache

CHANNELS = ChannelQuant((0.5, 0.25), 0)


def models() -> dict[str, Model]:
    b = Builder("with channels")
    x = b.input((1, 4, 4, 2), OperandType.TENSOR_QUANT8_ASYMM, 0.5, 3)
    w = b.constant(np.ones((2, 1, 1, 2), np.int8), OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL, channel=CHANNELS)
    y = b.conv_2d(
        x, w, b.constant(np.zeros(2, np.int32), OperandType.TENSOR_INT32), padding="same", scale=1.0, zero_point=3
    )
    found = {"channels": b.finish([x], [y])}
    m = ModelBuilder()
    kind = OperandType.TENSOR_FLOAT32
    x, out = m.operand(kind, (0,)), m.operand(kind, (0,))
    c = m.reference(kind, (1,), m.add_pool(Memory.from_array(np.float32([2]))), 0, 4)
    m.operation("MUL", [x, c, m.constant(OperandType.INT32, 0)], [out])
    found["pool"] = m.finish([x], [out])
    return found


@pytest.mark.parametrize("name", ["channels", "pool"])
def test_a_model_that_was_stored_is_the_same(name):
    model = models()[name]
    again = unpack_device_view(pack_device_view(model), model.pools)
    assert again == model and again.name == model.name
    assert validate(again).level == validate(model).level
    assert [o.lifetime for o in again.main.operands] == [o.lifetime for o in model.main.operands]
    assert type(again.main.operands[0].lifetime) is type(model.main.operands[0].lifetime)


def test_one_model_is_always_the_same_bytes():
    assert pack_device_view(models()["channels"]) == pack_device_view(models()["channels"])


@pytest.mark.parametrize(("how", "parts"), [(pack_device_view, 6), (pack_model, 7)])
def test_a_stored_model_does_not_name_its_parts(how, parts):
    """In MessagePack 0x90 + n begins an array of n: no map, whose names would come with every operand."""
    assert how(models()["channels"])[0] == 0x90 + parts


def test_what_is_no_model_and_other_pools_are_refused():
    with pytest.raises(InvalidModel, match="stored model: cannot be read"):
        unpack_device_view(b"\x90", ())
    with pytest.raises(InvalidModel, match="stored model: 0 pools are given, must be 1"):
        unpack_device_view(pack_device_view(models()["pool"]), ())


def test_operations_of_extensions_have_the_codes_of_this_process():
    extension = register_extension("com.example.stored", (), ["TWICE"])
    code, bits = extension.operation("TWICE"), 7 << EXTENSION_SHIFT
    b = Builder()
    x = b.input((1,))
    y = b.relu(x)
    relu = b.finish([x], [y])
    (operation,) = relu.main.operations
    named = (("com.example.stored", extension.prefix + 7),)  # where other extensions were registered before
    there = replace(relu, main=replace(relu.main, operations=(replace(operation, type=code + bits),)), extensions=named)
    again = unpack_device_view(pack_device_view(there), there.pools)
    assert again.main.operations[0].type == code
    assert again.extensions == (("com.example.stored", extension.prefix),)
