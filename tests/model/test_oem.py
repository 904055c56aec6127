"""OEM operands and operations are carried, not validated; devices without them say so."""

import pytest

import nnhal
from nnhal.base.codes import OperandType, OperationType
from nnhal.model.builder import ModelBuilder


def oem() -> nnhal.Model:
    builder = ModelBuilder("oem")
    x, y = (builder.operand(OperandType.TENSOR_OEM_BYTE, (4,), name=n) for n in "xy")
    builder.operation(OperationType.OEM_OPERATION, [x], [y])
    return builder.finish([x], [y])


def test_an_oem_operation_is_valid_whatever_it_is():
    assert nnhal.validate(oem()).subgraphs[0].operations == (None,)


def test_a_device_without_it_refuses_it():
    with pytest.raises(
        nnhal.UnsupportedModel, match="OEM_OPERATION #0: reference: no reference kernel for OEM_OPERATION"
    ):
        nnhal.compile(oem(), devices="reference")
