"""Entries of layers: convolutions, matrix products, pooling, normalisations, resizing, look-ups."""

import math

import numpy as np

from nnhal.base.codes import Padding
from nnhal.base.operands import ChannelQuant, Value
from nnhal.base.records import replace
from nnhal.frontends.common.element_moves import broadcast
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.writing import ASYMMETRIC, broadcast_shapes, reshaped_constant
from nnhal.frontends.tflite.reader import Fields
from nnhal.frontends.tflite.task import OperatorTask, operator
from nnhal.ops.schema import F32, I32, Q8PC

SCHEMES = {0: Padding.SAME, 1: Padding.VALID}
# The difference that TFLite allows between the scales of a bias and of the products, in output quantisation steps
BIAS_SLACK = 0.02
MOST_UNITS = 1 << 20  # with a bias of zeros if the file has none
LSH_TYPES = {1: 3, 2: 2}  # sparse with offsets, and dense; NNAPI's 1 has no offsets


def scheme(t: OperatorTask, o: Fields) -> Padding:
    """Return the padding scheme of a layer."""
    code = o("Padding")
    t.require(code in SCHEMES, f"padding is {code}, must be 0 (SAME) or 1 (VALID)")
    return SCHEMES[code]


def weights_of(t: OperatorTask, place: int, x: Term) -> Term:
    """Return weights for an input. Integers beside a float input (dynamic-range quantisation) become real.

    Such a file requests the layer on real values; TFLite's own kernels approximate it.
    """
    weights = t.x(place)
    return t.real(weights) if x.value.type == F32 else weights


def bias_of(t: OperatorTask, place: int, x: Term, weights: Term, units: int) -> Term:
    """Return the bias, zeros if the file has none; an int32 one with the scale that NNAPI requires."""
    t.require(
        units <= MOST_UNITS or t.given(place), f"has {units} units without a bias, must have at most {MOST_UNITS}"
    )
    if x.value.type not in ASYMMETRIC:
        given = t.maybe(place)
        bias = constant(x.value, np.zeros(units, x.value.dtype)) if given is None else t.real(given)
        return t.reshaped(bias, (units,))
    scale = 0.0
    if weights.value.channel is None:
        scale = float(np.float32(x.value.scale) * np.float32(weights.value.scale))
    if not t.given(place):
        return constant(Value(I32, None, scale), np.zeros(units, np.int32))
    bias = t.x(place)
    quant = t.graph.source.tensors[t.operator.inputs[place]].quant
    if quant is not None and scale and t.declared().scale:
        distance = abs(quant.scales[0] - scale) / t.declared().scale
        t.require(
            distance <= BIAS_SLACK, f"the bias has scale {quant.scales[0]:g}, must be {scale:g}, that of the products"
        )
    if bias.value.data is None:  # TFLite stores no scale for computed int32 values
        bias.value = replace(bias.value, scale=scale)
        return t.reshaped(bias, (units,))
    shape = (units,) if bias.value.data.size == units else bias.value.data.shape
    flat = reshaped_constant(bias, shape)
    flat.value = replace(flat.value, scale=scale)
    return flat


@operator("CONV_2D", inputs=(2, 3))
def convolution(t: OperatorTask) -> None:
    """Convolve; the depth of the filter implies groups."""
    o, x = t.options("Conv2DOptions"), t.x(0)
    w = weights_of(t, 1, x)
    units, _, _, depth = four(t, t.known(w), "filter")
    inputs = t.shape(x)[-1]
    more = dilation(o)
    if inputs is not None and depth and inputs != depth and inputs % depth == 0:
        t.require(not more, "in groups has no dilation in NNAPI")
        more = {"groups": inputs // depth, "nchw": False}
        name = "GROUPED_CONV_2D"
    else:
        name = "CONV_2D"
    bias = bias_of(t, 2, x, w, units)
    how = {"scheme": scheme(t, o), "stride_w": o("StrideW"), "stride_h": o("StrideH")}
    t.fused(o("FusedActivationFunction"), name, x, w, bias, **how, **more)


@operator("DEPTHWISE_CONV_2D", inputs=(2, 3))
def depthwise(t: OperatorTask) -> None:
    """Convolve depthwise; the multiplier follows from the shapes, as in TFLite's kernels."""
    o, x = t.options("DepthwiseConv2DOptions"), t.x(0)
    w = weights_of(t, 1, x)
    units, depth = four(t, t.known(w), "filter")[3], t.shape(x)[-1]
    multiplier = o("DepthMultiplier") if depth in (None, 0) else units // (depth or 1)
    how = {"scheme": scheme(t, o), "stride_w": o("StrideW"), "stride_h": o("StrideH"), "depth_multiplier": multiplier}
    bias = bias_of(t, 2, x, w, units)
    t.fused(o("FusedActivationFunction"), t.name, x, w, bias, **how, **dilation(o))


def dilation(o: Fields) -> dict[str, int | bool]:
    """Return dilation as named arguments, none if it is 1."""
    width, height = o("DilationWFactor"), o("DilationHFactor")
    return {} if (width, height) == (1, 1) else {"dilation_w": width, "dilation_h": height}


def four(t: OperatorTask, shape: tuple[int, ...], what: str) -> tuple[int, int, int, int]:
    """Return a shape of four dimensions."""
    t.require(len(shape) == 4, f"{what} has shape {list(shape)}, must have four dimensions")
    return shape[0], shape[1], shape[2], shape[3]


@operator("TRANSPOSE_CONV", inputs=(3, 4))
def transposed_convolution(t: OperatorTask) -> None:
    """Convolve transposed; NNAPI has the shape after the bias."""
    o, x = t.options("TransposeConvOptions"), t.x(2)
    w = weights_of(t, 1, x)
    units = four(t, t.known(w), "filter")[0]
    bias, shape = bias_of(t, 3, x, w, units), t.index(0, "output_shape")
    how = {"scheme": scheme(t, o), "stride_w": o("StrideW"), "stride_h": o("StrideH"), "nchw": False}
    t.fused(o("FusedActivationFunction"), "TRANSPOSE_CONV_2D", x, w, bias, shape, **how)


@operator("FULLY_CONNECTED", inputs=(2, 3), outputs=(1, 2))
def fully_connected(t: OperatorTask) -> None:
    """Multiply rows of `input_size` elements by the weights, for inputs of any rank."""
    o, x = t.options("FullyConnectedOptions"), t.x(0)
    t.require(
        o("WeightsFormat") == 0 and len(t.operator.outputs) == 1, "weights are shuffled, which NNAPI does not support"
    )
    w = weights_of(t, 1, x)
    shape = t.known(w)
    t.require(len(shape) == 2, f"weights have shape {list(shape)}, must have two dimensions")
    units, size = shape
    sizes = t.shape(x)
    if not 2 <= len(sizes) <= 4:
        t.require(size > 0, "weights have no elements")
        x = t.reshaped(x, (None if None in sizes else math.prod(t.known(x)) // size, size))
    code, keep = o("FusedActivationFunction"), o("KeepNumDims") and len(sizes) != 2
    bias = bias_of(t, 2, x, w, units)
    if keep or w.value.type == Q8PC:
        rows = rows_of(t, x, bias, w, code)
        lead = sizes[:-1] if keep else t.shape(rows)[:1]
        t.reshaped(rows, (*lead, units), out=True)
    else:
        t.fused(code, "FULLY_CONNECTED", x, w, bias)


def rows_of(t: OperatorTask, x: Term, bias: Term, w: Term, code: int) -> Term:
    """Write a fully connected layer for another operation; with scales per channel, as a convolution."""
    t.require(code < 4, "has an activation that NNAPI does not fuse")
    if w.value.type != Q8PC:
        return t.make("FULLY_CONNECTED", x, w, bias, like=t.out(), activation=code)
    channel = w.value.channel
    units, size = t.known(w)
    if channel is None or channel.axis != 0 or w.value.data is None:
        t.refuse("has scales along another dimension than the units")
    filter = reshaped_constant(w, (units, 1, 1, size))
    filter.value = replace(filter.value, channel=ChannelQuant(channel.scales, 0))
    shape = t.shape(x)
    pixels = t.reshaped(x, (None if None in shape else math.prod(t.known(x)) // max(1, size), 1, 1, size))
    how = {"scheme": Padding.VALID, "stride_w": 1, "stride_h": 1}
    return t.make("CONV_2D", pixels, filter, bias, like=t.out(), activation=code, **how)


@operator("BATCH_MATMUL", inputs=2)
def batch_matmul(t: OperatorTask) -> None:
    """Multiply matrices; NNAPI requires equal batches, so they are repeated. A single matrix multiplies all rows."""
    o, x = t.options("BatchMatMulOptions"), t.x(0)
    adjoint = {"adj_x": o("AdjX"), "adj_y": o("AdjY")}
    y = weights_of(t, 1, x)
    left, right = t.shape(x), t.shape(y)
    t.require(min(len(left), len(right)) > 1, f"has ranks {len(left)} and {len(right)}, must have a matrix")
    if y.value.channel is not None:
        product_by_channels(t, x, y, y.value.channel, turned=bool(o("AdjY")))
        return
    if left[:-2] == right[:-2] and len(left) <= 4:
        t.give("BATCH_MATMUL", x, y, **adjoint)
        return
    left, right = t.known(x), t.known(y)
    batch: tuple[int, ...] = left[:-2]
    if left[:-2] == right[:-2]:
        batches = math.prod(left[:-2])
        x, y = t.reshaped(x, (batches, *left[-2:])), t.reshaped(y, (batches, *right[-2:]))
    else:
        batch = broadcast_shapes(left[:-2], right[:-2])
        if math.prod(right[:-2]) == 1 and not o("AdjX"):  # one matrix for all rows
            x, y = t.reshaped(x, (math.prod(left[:-1]), left[-1])), t.reshaped(y, right[-2:])
        else:
            count = math.prod(batch)
            x = t.reshaped(broadcast(t, x, (*batch, *left[-2:])), (count, *left[-2:]))
            y = t.reshaped(broadcast(t, y, (*batch, *right[-2:])), (count, *right[-2:]))
    product = t.make("BATCH_MATMUL", x, y, like=t.out(), **adjoint)
    rows, columns = left[-1 if o("AdjX") else -2], right[-2 if o("AdjY") else -1]
    t.reshaped(product, (*batch, rows, columns), out=True)


def product_by_channels(t: OperatorTask, x: Term, y: Term, channel: ChannelQuant, *, turned: bool) -> None:
    """Multiply 8-bit matrices by constant ones with a scale for each column, as a convolution of one group for each.

    turned: whether the constant ones are transposed.
    """
    left, shape, data = t.known(x), t.known(y), y.value.data
    if data is None or t.options("BatchMatMulOptions")("AdjX") or channel.axis != len(shape) - (2 if turned else 1):
        t.refuse("has scales for channels of a matrix that is computed, or not those of its columns")
    data = data if turned else data.swapaxes(-1, -2)
    (units, size), count = data.shape[-2:], math.prod(shape[:-2])
    t.require(
        count == 1 or left[:-2] == shape[:-2], f"multiplies {list(left)} by {list(shape)} with scales for channels"
    )
    value = Value(Q8PC, None, channel=ChannelQuant(channel.scales * count, 0))
    matrix = constant(value, np.ascontiguousarray(data).reshape(count * units, size))
    bias = constant(Value(I32), np.zeros(count * units, np.int32))
    rows = math.prod(left[:-1]) // count
    if count == 1:
        made = rows_of(t, x, bias, matrix, 0)
    else:
        how = {"scheme": Padding.VALID, "stride_w": 1, "stride_h": 1, "activation": 0}
        filter = reshaped_constant(matrix, (count * units, 1, 1, size))
        moved = t.make("TRANSPOSE", t.reshaped(x, (count, rows, size)), t.integers([1, 0, 2]))
        pixels = t.reshaped(moved, (rows, 1, 1, count * size))
        made = t.make("GROUPED_CONV_2D", pixels, filter, bias, like=t.out(), groups=count, nchw=False, **how)
        made = t.make("TRANSPOSE", t.reshaped(made, (rows, count, units)), t.integers([1, 0, 2]))
    outer = (1,) * (len(shape) - len(left))  # with more dimensions, there is one matrix
    t.reshaped(made, (*outer, *left[:-1], units), out=True)


# ------------------------------------------------------------------------------------------------ pooling, normalisation


@operator("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D", real=True)
def pool(t: OperatorTask) -> None:
    """Pool; padding does not count in TFLite's means either."""
    o = t.options("Pool2DOptions")
    how = {"scheme": scheme(t, o), "stride_w": o("StrideW"), "stride_h": o("StrideH")}
    window = {"filter_w": o("FilterWidth"), "filter_h": o("FilterHeight")}
    t.fused(o("FusedActivationFunction"), t.name, t.x(0), **how, **window)


@operator("SOFTMAX", real=True)
def softmax(t: OperatorTask) -> None:
    t.flattened("SOFTMAX", t.x(0), t.options("SoftmaxOptions")("Beta"))


@operator("LOG_SOFTMAX", real=True)
def log_softmax(t: OperatorTask) -> None:
    """Write LOG_SOFTMAX along the last dimension, without beta."""
    t.give("LOG_SOFTMAX", t.x(0), 1.0, -1)


@operator("L2_NORMALIZATION", real=True)
def l2_normalisation(t: OperatorTask) -> None:
    code = t.options("L2NormOptions")("FusedActivationFunction")
    if code:
        t.activated(code, t.make("L2_NORMALIZATION", t.x(0), like=t.out()))
    else:
        t.give("L2_NORMALIZATION", t.x(0))


@operator("LOCAL_RESPONSE_NORMALIZATION")
def local_response(t: OperatorTask) -> None:
    o = t.options("LocalResponseNormalizationOptions")
    t.give(t.name, t.x(0), o("Radius"), o("Bias"), o("Alpha"), o("Beta"))


# ------------------------------------------------------------------------------------------------- resizing and look-ups


@operator("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", inputs=2, real=True)
def resize(t: OperatorTask) -> None:
    """Resize to a constant size."""
    bilinear = t.name == "RESIZE_BILINEAR"
    o = t.options("ResizeBilinearOptions" if bilinear else "ResizeNearestNeighborOptions")
    size = t.ints(1, "size")
    t.require(len(size) == 2, f"size is {size}, must be height and width")
    grid = {"align_corners": o("AlignCorners"), "half_pixel_centers": o("HalfPixelCenters")}
    more = {name: True for name, there in grid.items() if there} | ({} if bilinear else {"nchw": False})
    t.give(t.name, t.x(0), out_w=size[1], out_h=size[0], **more)


@operator("EMBEDDING_LOOKUP", inputs=2)
def embedding(t: OperatorTask) -> None:
    """Look up rows by number."""
    values = t.real(t.x(1)) if t.out().type == F32 else t.x(1)
    t.give(t.name, t.index(0, "lookups"), values)


@operator("HASHTABLE_LOOKUP", inputs=3, outputs=2)
def hashtable(t: OperatorTask) -> None:
    """Look up rows by key; hits are bytes with a scale of 1."""
    values, hits = t.run(t.name, t.index(0, "lookups"), t.index(1, "keys"), t.x(2), outs=[t.out(0), t.out(1)])
    t.result(0, values)
    t.result(1, hits)


@operator("LSH_PROJECTION", inputs=(2, 3))
def lsh(t: OperatorTask) -> None:
    """Write LSH_PROJECTION; NNAPI's sparse projection has offsets since 1.2, as TFLite's."""
    code = t.options("LSHProjectionOptions")("Type")
    t.require(code in LSH_TYPES, f"type is {code}, must be 1 (SPARSE) or 2 (DENSE)")
    t.give(t.name, t.x(0), t.x(1), t.maybe(2), LSH_TYPES[code])
