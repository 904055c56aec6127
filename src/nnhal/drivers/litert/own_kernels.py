"""Whether LiteRT's own kernels round on this processor as the reference's integers do; checked once in a process."""

from functools import cache

import numpy as np

from nnhal.base.codes import Activation, OperandType, OperationType, Padding
from nnhal.base.errors import NnhalError
from nnhal.base.operands import Array, ChannelQuant
from nnhal.drivers.kit.variants import Forms
from nnhal.drivers.litert.engine import LitertModel
from nnhal.drivers.litert.lowering import recipe_of
from nnhal.drivers.litert.recipe import Settings
from nnhal.drivers.reference import Interpreter
from nnhal.hal.device import Prepared
from nnhal.hal.request import UNLIMITED
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from nnhal.ops.schema import F32, I32, Q8PC, Q8S

CHANNELS = 19  # two times eight that are computed at once, and a rest
SIDE = 12


@cache
def kernel_difference() -> str:
    """Return why exact numerics cannot use the kernels; "" if their results are the reference's."""
    rng = np.random.default_rng(7)
    for name, model in (("layers", _layers(rng)), ("QUANTIZE", _quantised())):
        given = [_numbers(rng, model)]
        try:
            own = _run(LitertModel(recipe_of(model, Settings(), Forms(exact=True))), model, given)
            wanted = _run(Interpreter(model, exact=True), model, given)
        except NnhalError as error:
            return f"LiteRT's own kernels fail: {error}"
        if any((x != y).any() for x, y in zip(own, wanted, strict=True)):
            rule = "must equal the reference for exact numerics"
            return f"LiteRT's own kernels of {name} round differently on this processor, {rule}"
    return ""


def _layers(rng: np.random.Generator) -> Model:
    """Return layers and a sum of one picture. Scales are powers of two, so that many sums are exact halves."""
    b, none = ModelBuilder("exact"), int(Activation.NONE)
    x = b.operand(Q8S, (1, SIDE, SIDE, CHANNELS), 0.5, 3)
    one, no = b.constant(OperandType.INT32, 1), b.constant(OperandType.INT32, none)
    valid, channels_last = b.constant(OperandType.INT32, int(Padding.VALID)), b.constant(OperandType.BOOL, False)
    bias = b.constant(I32, rng.integers(-50, 50, CHANNELS).astype(np.int32))
    rows = b.constant(I32, rng.integers(-50, 50, CHANNELS).astype(np.int32), 2.0**-9)
    scales = tuple(2.0 ** -(8 + n % 2) for n in range(CHANNELS))
    moving = valid, one, one

    def weights(axis: int, *shape: int) -> int:
        stored = rng.integers(-1, 2, shape).astype(np.int8)
        return b.constant(Q8PC, stored, channel=ChannelQuant(scales, axis))

    shapes = (1, SIDE, SIDE, CHANNELS), (1, SIDE - 1, SIDE - 1, CHANNELS), (SIDE * SIDE, CHANNELS)
    outputs = [b.operand(Q8S, shapes[0], 2.0, -5), *(b.operand(Q8S, shape, 2.0**-7, -5) for shape in shapes)]
    filters = weights(0, CHANNELS, 1, 1, CHANNELS), weights(3, 1, 2, 2, CHANNELS)
    matrix = b.constant(Q8S, rng.integers(-1, 2, (CHANNELS, CHANNELS)).astype(np.int8), 2.0**-8)
    b.operation(OperationType.ADD, [x, x, no], [outputs[0]])
    b.operation(OperationType.CONV_2D, [x, filters[0], bias, *moving, no, channels_last], [outputs[1]])
    b.operation(OperationType.DEPTHWISE_CONV_2D, [x, filters[1], bias, *moving, one, no, channels_last], [outputs[2]])
    b.operation(OperationType.FULLY_CONNECTED, [x, matrix, rows, no], [outputs[3]])
    return b.finish([x], outputs)


def _quantised() -> Model:
    b = ModelBuilder("exact")
    x, y = b.operand(F32, (SIDE * SIDE + 3,)), b.operand(Q8S, (SIDE * SIDE + 3,), 0.5, 3)
    b.operation(OperationType.QUANTIZE, [x], [y])
    return b.finish([x], [y])


def _numbers(rng: np.random.Generator, model: Model) -> Array:
    (index,) = model.main.inputs
    operand = model.main.operands[index]
    stored = rng.integers(-128, 128, operand.dimensions)
    return stored.astype(np.int8) if operand.type == Q8S else (stored / 4).astype(np.float32)


def _run(prepared: Prepared, model: Model, given: list[Array]) -> list[Array]:
    prepared.model = model
    request = prepared.request(given)
    request.execute(prepared.run, UNLIMITED)
    return [result for result in request.results if result is not None]
