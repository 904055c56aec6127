"""Small models for tests of the runtime, with what they compute written out by numpy."""

import numpy as np

import nnhal
from nnhal.base.codes import OperandType
from nnhal.base.extensions import register_extension
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import State
from tests.models import operation_chain

SHAPE = (4,)
FLOATS = OperandType.TENSOR_FLOAT32


def sums(count: int = 1, shape: tuple[int, ...] = SHAPE) -> nnhal.Model:
    """y = x + count · b, one ADD each."""
    b = nnhal.Builder("sums")
    x = y = b.input(shape, name="x")
    step = b.input(tuple(d or 1 for d in shape), name="b")
    for n in range(count):
        y = b.add(y, step, name="y" if n == count - 1 else f"t{n}")
    return b.finish([x, step], [y])


def multiples(count: int = 1) -> nnhal.Model:
    """y = (1 + count) · x, one ADD each."""
    b = nnhal.Builder("sums")
    x = y = b.input(SHAPE)
    for _ in range(count):
        y = b.add(y, x)
    return b.finish([x], [y])


def extended(extension: str) -> nnhal.Model:
    """An operation of an extension that is registered for it, and a RELU."""
    named = register_extension(extension, [], ["OP"])
    return operation_chain((FLOATS, SHAPE), named.operation("OP"), "RELU", extensions=[(named.name, named.prefix)])


def svdf(*, also_added: bool = False) -> nnhal.Model:
    """Its bias may be left out, unless something else needs it."""
    b = nnhal.Builder("svdf")
    x, features, times = (b.input(s, name=n) for s, n in (((1, 2), "x"), ((2, 2), "features"), ((2, 1), "times")))
    bias, state = b.input((2,), name="bias"), b.input((1, 2), name="state")
    _, y = b.svdf(x, features, times, bias, state, 1, "none")
    return b.finish([x, features, times, bias, state], [y, b.relu(bias)] if also_added else [y])


def counter() -> nnhal.Model:
    """total' = total + x, carried from call to call; y = total' + total'."""
    b = ModelBuilder("counter")
    x, total = (b.operand(FLOATS, SHAPE, name=name) for name in ("x", "total"))
    following, y = (b.operand(FLOATS, SHAPE, name=name) for name in ("total_out", "y"))
    none = b.constant(OperandType.INT32, 0)
    b.operation("ADD", [x, total, none], [following])
    b.operation("ADD", [following, following, none], [y])
    return b.finish([x, total], [y, following], states=[State(1, 1, np.zeros(SHAPE, np.float32))])
