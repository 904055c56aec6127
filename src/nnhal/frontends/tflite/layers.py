"""Operators with weights and windows: convolutions, dense layers, pooling, normalisation, resizing."""

import math
from collections.abc import Sequence

from nnhal.frontends.tflite.build import Importer, Refused
from nnhal.frontends.tflite.file import Operator
from nnhal.frontends.tflite.table import PADDING, T, entry, has, reshape, scales, zero_bias


@entry("CONV_2D")
def conv(g: Importer, o: Operator) -> None:
    weighted(g, o, "CONV_2D", 0, [])


@entry("DEPTHWISE_CONV_2D")
def depthwise(g: Importer, o: Operator) -> None:
    depth = g.tensor(o.inputs[0]).shape[-1]
    channels = g.tensor(o.inputs[1]).shape[-1]
    if not depth or channels % depth:
        raise Refused(f"filter has {channels} channels, the input {depth}")
    weighted(g, o, "DEPTHWISE_CONV_2D", 3, [channels // depth])


def weighted(g: Importer, o: Operator, name: str, axis: int, multiplier: Sequence[int]) -> None:
    """A convolution: input, filter, bias, scheme, strides, activation, layout, dilations."""
    x, filter = g.x(o.inputs[0]), g.x(o.inputs[1])
    bias = g.x(o.inputs[2], bias=scales(g, x, filter)) if has(o, 2) else zero_bias(g, x, filter, g.shape(filter)[axis])
    channel = g.values[filter].channel
    if channel is not None and channel.axis != axis:
        raise Refused(f"filter has scales along dimension {channel.axis}, must be {axis}")
    numbers = [PADDING[o.option("Padding")], o.option("StrideW"), o.option("StrideH"), *multiplier]
    dilations = o.option("DilationWFactor"), o.option("DilationHFactor")
    tail = [] if dilations == (1, 1) else [g.flag(False), *map(g.int32, dilations)]
    inputs = [x, filter, bias, *map(g.int32, numbers), g.activation(o), *tail]
    g.emit(name, inputs, [g.declare(o.outputs[0])])


@entry("TRANSPOSE_CONV")
def transpose_conv(g: Importer, o: Operator) -> None:
    filter, x = g.x(o.inputs[1]), g.x(o.inputs[2])
    bias = g.x(o.inputs[3], bias=scales(g, x, filter)) if has(o, 3) else zero_bias(g, x, filter, g.shape(filter)[0])
    numbers = [PADDING[o.option("Padding")], o.option("StrideW"), o.option("StrideH")]
    inputs = [x, filter, bias, g.x(o.inputs[0]), *map(g.int32, numbers), g.activation(o), g.flag(False)]
    g.emit("TRANSPOSE_CONV_2D", inputs, [g.declare(o.outputs[0])])


@entry("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")
def pool(g: Importer, o: Operator) -> None:
    names = ("StrideW", "StrideH", "FilterWidth", "FilterHeight")
    numbers = [PADDING[o.option("Padding")], *(o.option(name) for name in names)]
    g.emit(o.name, [g.x(o.inputs[0]), *map(g.int32, numbers), g.activation(o)], [g.declare(o.outputs[0])])


def dense_per_channel(g: Importer, o: Operator, x: int, y: int) -> None:
    """Weights with a scale for each unit, which FULLY_CONNECTED lacks and CONV_2D has: a 1x1 convolution of 1x1 pictures."""
    units, size = g.tensor(o.inputs[1]).shape
    filter = g.reshaped_constant(o.inputs[1], (units, 1, 1, size))
    bias = g.x(o.inputs[2], bias=[]) if has(o, 2) else zero_bias(g, x, filter, units)
    rows = math.prod(g.known(x)) // size
    cells, wide = reshape(g, x, (rows, 1, 1, size)), g.like(y, (rows, 1, 1, units))
    g.emit("CONV_2D", [cells, filter, bias, *map(g.int32, (2, 1, 1)), g.activation(o)], [wide])
    g.emit("RESHAPE", [wide, g.ints(g.values[y].known)], [y])


@entry("FULLY_CONNECTED")
def fully_connected(g: Importer, o: Operator) -> None:
    x, weights, y = g.x(o.inputs[0]), g.x(o.inputs[1]), g.declare(o.outputs[0])
    if o.option("WeightsFormat", 0):
        raise Refused("weights are shuffled")
    if g.values[weights].channel is not None:
        dense_per_channel(g, o, x, y)
        return
    units, size = g.known(weights)
    bias = g.x(o.inputs[2], bias=scales(g, x, weights)) if has(o, 2) else zero_bias(g, x, weights, units)
    shape = g.shape(x)
    if len(shape) == 1 or len(shape) > 4:
        x, shape = reshape(g, x, (math.prod(g.known(x)) // size, size)), (0, size)
    flat = y if len(g.values[y].dims) == 2 else g.like(y, (None, units))
    g.emit("FULLY_CONNECTED", [x, weights, bias, g.activation(o)], [flat])
    if flat != y:
        target = (*g.known(x)[:-1], units) if o.option("KeepNumDims", False) else g.values[y].known
        g.emit("RESHAPE", [flat, g.ints(target)], [y])


@entry("SOFTMAX")
def softmax(g: Importer, o: Operator) -> None:
    g.emit("SOFTMAX", [g.x(o.inputs[0]), g.literal(o.option("Beta", 1.0), T.FLOAT32)], [g.declare(o.outputs[0])])


@entry("LOG_SOFTMAX")
def log_softmax(g: Importer, o: Operator) -> None:
    g.emit("LOG_SOFTMAX", [g.x(o.inputs[0]), g.literal(1.0, T.FLOAT32), g.int32(-1)], [g.declare(o.outputs[0])])


@entry("L2_NORMALIZATION")
def l2_normalization(g: Importer, o: Operator) -> None:
    g.emit("L2_NORMALIZATION", [g.x(o.inputs[0])], [g.declare(o.outputs[0])])


@entry("LOCAL_RESPONSE_NORMALIZATION")
def lrn(g: Importer, o: Operator) -> None:
    numbers = [g.literal(o.option(name), T.FLOAT32) for name in ("Bias", "Alpha", "Beta")]
    inputs = [g.x(o.inputs[0]), g.int32(o.option("Radius")), *numbers]
    g.emit("LOCAL_RESPONSE_NORMALIZATION", inputs, [g.declare(o.outputs[0])])


@entry("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def resize(g: Importer, o: Operator) -> None:
    height, width = g.numbers(o.inputs[1], "size")
    align, half = o.option("AlignCorners", False), o.option("HalfPixelCenters", False)
    tail = [g.flag(False)] if o.name == "RESIZE_NEAREST_NEIGHBOR" and not (align or half) else []
    tail = [g.flag(False), g.flag(align), g.flag(half)] if align or half else tail
    g.emit(o.name, [g.x(o.inputs[0]), g.int32(width), g.int32(height), *tail], [g.declare(o.outputs[0])])


@entry("BATCH_MATMUL")
def batch_matmul(g: Importer, o: Operator) -> None:
    flags = g.flag(o.option("AdjX", False)), g.flag(o.option("AdjY", False))
    g.emit("BATCH_MATMUL", [g.x(o.inputs[0]), g.x(o.inputs[1]), *flags], [g.declare(o.outputs[0])])
