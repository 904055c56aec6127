"""Memories as arguments and as constants: shared where they can be mapped, refused with the reason where they cannot."""

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperandType
from nnhal.base.memory import Layout
from nnhal.hal.device import Hints
from nnhal.model.builder import ModelBuilder
from nnhal.runtime import discovery
from nnhal.runtime.isolation import isolated
from tests.runtime.graphs import FLOATS, SHAPE, sums

X, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
RGBA = 1  # AHARDWAREBUFFER_FORMAT_R8G8B8A8_UNORM
WAYS = pytest.mark.parametrize("isolation", ["none", "process"])


def opaque(size: int = 16) -> nnhal.Memory:
    return nnhal.Memory.hardware_buffer(size, Layout(2, 2, 1, RGBA))


@WAYS
def test_memories_are_arguments_by_themselves_and_in_views(isolation):
    compiled = nnhal.compile(sums(), devices="reference", isolation=isolation)
    given, taken = nnhal.Memory.from_array(X), nnhal.Memory.allocate(64)
    assert (compiled(given, B) == X + 1).all()
    out = taken.view(32, 16, np.float32, SHAPE)
    assert compiled(given, B, out=out) is out
    assert (np.frombuffer(taken.bytes().tobytes(), np.float32)[8:12] == X + 1).all()


@WAYS
def test_an_opaque_buffer_fails_the_execution_that_it_is_an_argument_of(isolation):
    compiled = nnhal.compile(sums(), devices="reference", isolation=isolation)
    with pytest.raises(nnhal.Unmappable, match="a hardware_buffer cannot be mapped here"):
        compiled(opaque(), B)
    with pytest.raises(nnhal.Unmappable):
        compiled(X, B, out=opaque())
    assert (compiled(X, B) == X + 1).all()


def test_a_memory_of_another_size_is_refused():
    compiled = nnhal.compile(sums(), devices="reference")
    with pytest.raises(
        nnhal.InvalidRequest, match=r"input 0 \(x\) is a memory of 64 bytes, must have 16, or be a view"
    ):
        compiled(nnhal.Memory.allocate(64), B)


def with_hidden_constant() -> nnhal.Model:
    b = ModelBuilder("hidden")
    x, y, z = (b.operand(FLOATS, SHAPE, name=name) for name in "xyz")
    pool = b.add_pool(opaque())
    hidden, none = b.reference(FLOATS, SHAPE, pool, 0, 16), b.constant(OperandType.INT32, 0)
    b.operation("ADD", [x, x, none], [y])
    b.operation("ADD", [y, hidden, none], [z])
    return b.finish([x], [z])


@pytest.mark.parametrize("name", ["reference", "litert"])
def test_operations_with_an_opaque_constant_are_unsupported_and_fail_to_prepare(name):
    (device,) = discovery.select([name])
    assert [v.ok for v in device.supports(with_hidden_constant())] == [True, False]
    assert "lies in a hardware_buffer, which cannot be mapped here" in device.supports(with_hidden_constant())[1].reason
    with pytest.raises(nnhal.Unmappable) as caught:
        device.prepare(with_hidden_constant(), Hints())
    assert caught.value.status == nnhal.ErrorStatus.GENERAL_FAILURE


def test_a_model_with_an_opaque_constant_is_not_given_to_another_process():
    verdicts = isolated("reference").supports(with_hidden_constant())
    assert not any(v.ok for v in verdicts) and "another process cannot map" in verdicts[0].reason


def test_the_error_of_compilation_names_memory_and_operation():
    with pytest.raises(nnhal.UnsupportedModel, match=r"ADD #1.*reference: constant %3 lies in a hardware_buffer"):
        nnhal.compile(with_hidden_constant(), devices=["litert", "reference"])
