"""Drivers written against the HAL's own methods for tests, and models for them."""
# ruff: noqa: N802 - the methods have the HAL's names

import time

import numpy as np

import nnhal
from nnhal.base.codes import ErrorStatus
from nnhal.base.codes import OperandType as Type
from nnhal.base.codes import OperationType as Op
from nnhal.drivers.samples import full
from nnhal.hal.device import Hints
from nnhal.hal.hidl.adapters import adapt
from nnhal.hal.request import Control
from nnhal.model.builder import ModelBuilder
from tests.models import doubling

NONE, FAILED = ErrorStatus.NONE, ErrorStatus.GENERAL_FAILURE
X = np.arange(12, dtype=np.float32).reshape(3, 4)


def reshaped(inner: bool) -> nnhal.Model:
    """The shape of the RESHAPE's result is an input: unknown, at the end of the model or inside it."""
    b = ModelBuilder()
    kind, ints = Type.TENSOR_FLOAT32, Type.TENSOR_INT32
    x, shape = b.operand(kind, (3, 4)), b.operand(ints, (2,))
    y = b.operand(kind, (0, 0))
    b.operation(Op.RESHAPE, [x, shape], [y])
    if not inner:
        return b.finish([x, shape], [y])
    z, other = b.operand(kind, (2, 6)), b.operand(kind, (2, 6))
    none = b.constant(Type.INT32, np.int32(0))
    b.operation(Op.ADD, [y, other, none], [z])
    return b.finish([x, shape, other], [z])


def tiled() -> nnhal.Model:
    """How often a TILE repeats is an input, so that its result may be of any size."""
    b = ModelBuilder()
    kind, ints = Type.TENSOR_FLOAT32, Type.TENSOR_INT32
    x, times, y = b.operand(kind, (3, 4)), b.operand(ints, (2,)), b.operand(kind, (0, 0))
    b.operation(Op.TILE, [x, times], [y])
    return b.finish([x, times], [y])


def prepared(driver, model=None, **hints):
    return adapt(driver).prepare(model or doubling(3, 4), Hints(**hints))


def run(driver, control=None):
    """The output of ADD(X, X) and the timing."""
    model = prepared(driver)
    request = model.request([X])
    timing = request.execute(model.run, control or Control())
    return request.results[0], timing


def soon(seconds: float = 0.2) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


class Plain(full.FullV1_0):
    """A driver of 1.0 for tests to change."""

    name = "plain"


def preparing(act):
    """A driver whose prepareModel is `act(callback, prepared model)`."""

    class Driver(Plain):
        def prepareModel(self, model, callback):
            return act(callback, full.PreparedV1_0(model))

    return Driver()


def executing(act, kind=full.FullV1_0):
    """A driver whose prepared model, of 1.0, does `act(request, callback, real)`; `real` is the sample's."""

    class Prepared:
        def __init__(self, model):
            self.real = full.PreparedV1_2(model)

        def execute(self, request, callback):
            return act(request, callback, self.real)

    class Driver(kind):
        name = "plain"

        def notified(self, notify, _, model):
            return super().notified(notify, Prepared, model)

    return Driver()


def answering(result):
    """A driver of 1.2 whose executions give `result(real answer)`."""

    class Prepared(full.PreparedV1_2):
        def executeSynchronously(self, request, measure):
            return result(*super().executeSynchronously(request, measure))

    class Driver(full.FullV1_2):
        def notified(self, notify, _, model):
            return super().notified(notify, Prepared, model)

    return Driver()
