"""Entries that replace common ones, or that only ONNX Runtime has; each has its reason."""

import numpy as np

from nnhal.drivers.kit.gru import GatedSequence, gated_sequences
from nnhal.drivers.kit.onnx.graph import AWAY, SIGN, engine_dtype, require_known, zero_point
from nnhal.drivers.kit.onnx.primitives import moving
from nnhal.drivers.kit.onnx.task import FORMS, TABLE, OnnxTask, entry
from nnhal.drivers.kit.operations import layers
from nnhal.drivers.kit.operations.common import image, layout
from nnhal.drivers.kit.operations.task import FLOATS, NUMBERS, QUANTS
from nnhal.drivers.kit.sums import greatest_sum, require_32_bits
from nnhal.model.dynamic_quantisation import LARGEST, DynamicQuantisation, IntegerLayer, dynamic_composites
from nnhal.ops.schema import Q8, Q8PC, Q8S

WIDEST = 64  # the greatest radius of sums of shifted tensors


@entry("LOGISTIC")
def logistic(t: OnnxTask) -> None:
    """Write several operations for floats: ONNX Runtime's own is 0 below -18, whose logarithm is infinite.

    They take twice the time.
    """
    x = t.x("input")
    y = t.o.Sigmoid(x) if t.a.T in QUANTS else t.o.Div(1.0, t.o.Add(t.o.Exp(t.o.Neg(x)), 1.0))
    if t.a.T not in QUANTS:
        t.o.gates[y] = x
    t.give(y)


@entry("HASHTABLE_LOOKUP", types=NUMBERS)
def lookup(t: OnnxTask) -> None:
    """Compare every key with every lookup; rows without a hit are stored zeros."""
    same = t.o.convert(
        t.o.Equal(t.o.Unsqueeze(t.stored("lookups"), [1]), t.o.Unsqueeze(t.stored("keys"), [0])), np.int32
    )
    hits = t.o.ReduceMax(same, [1], keepdims=0)
    rows = t.o.Gather(t.stored("values"), t.o.ArgMax(same, axis=1, keepdims=0), axis=0)
    there = t.o.Unsqueeze(t.o.convert(hits, np.bool_), [*range(1, t.a.values.rank)])
    zero = np.array(SIGN if t.a.values.type == Q8S else 0, engine_dtype(t.a.values))
    t.hold(t.o.Where(there, rows, zero))
    t.hold(t.o.convert(hits, np.uint8), 1)


# ---------------------------------------------------------------------------------------------------- products of 8 bits


@entry("CONV_2D", "DEPTHWISE_CONV_2D", "GROUPED_CONV_2D", forms=FORMS)
def convolution(t: OnnxTask) -> None:
    """Convolve unsigned activations and weights, with kernels that add up in 32 bits."""
    a = t.a
    if t.form != "uint8" or a.bias.data is None:
        layers.convolution(t)
        return
    (order, groups), how = layers.filters(t), layers.sliding(t)
    require_32_bits(greatest_sum(a.input, a.filter, t.weights.axis, a.bias))
    (weights, zero), by_channel = as_uint8(t, "filter"), a.filter.channel is not None
    scales = np.array(a.filter.channel.scales if by_channel else a.filter.scale, np.float32)
    zeros = np.full(scales.shape, zero, np.uint8)
    x, x_zero = image(t, t.stored("input")), np.uint8(zero_point(a.input))
    out = require_known(a.out)
    ends = out.scale / AWAY, np.uint8(zero_point(out))
    weights, more = t.o.Transpose(weights, perm=order), {"dilations": how.dilations, "group": groups}
    y = t.o.QLinearConv(
        x, a.input.scale, x_zero, weights, scales, zeros, *ends, t.stored("bias"), **moving(how), **more
    )
    t.hold(t.clipped(layout(t, y)))


@entry("FULLY_CONNECTED", forms=FORMS)
def fully_connected(t: OnnxTask) -> None:
    """Multiply unsigned activations and weights, with kernels that add up in 32 bits."""
    if t.form != "uint8":
        layers.fully_connected(t)
        return
    a = t.a
    require_32_bits(greatest_sum(a.input, a.weights, 0))
    weights, zero = as_uint8(t, "weights")
    x, zeros = layers.rows(t, t.stored("input")), (np.uint8(zero_point(a.input)), np.uint8(zero))
    y = t.o.MatMulInteger(x, t.o.Transpose(weights, perm=(1, 0)), *zeros)
    t.give_sums(t.o.Add(t.o.convert(y, np.float32), t.bias_steps()), a.weights, image=False)


def as_uint8(t: OnnxTask, name: str) -> tuple[str, int]:
    """Return 8-bit weights as uint8, and their zero point."""
    value = getattr(t.a, name)
    if value.type != Q8PC:
        return t.stored(name), zero_point(value)
    if value.data is not None:
        return t.constant(np.asarray(value.data).view(np.uint8) ^ SIGN), int(SIGN)
    return t.o.BitwiseXor(t.o.convert(t.stored(name), np.uint8), SIGN), int(SIGN)


# ------------------------------------------------------------------------------------------------------- sums of squares
# ONNX Runtime has float64, in which no square overflows: the common entries, for float32, scale numbers down first.


def to_float64(t: OnnxTask, name: str) -> str:
    return t.o.convert(t.x(name), np.float64)


@entry("L2_NORMALIZATION")
def l2_normalisation(t: OnnxTask) -> None:
    """Zeros stay zeros."""
    x = to_float64(t, "input")
    length = t.o.Sqrt(t.o.ReduceSum(t.o.Mul(x, x), [t.a.axis % t.a.input.rank]))
    t.give(t.o.convert(t.o.Div(x, t.o.Max(length, np.float64(1e-300))), np.float32))


@entry("LOCAL_RESPONSE_NORMALIZATION", types=FLOATS)
def local_response(t: OnnxTask) -> None:
    """Add up shifted squares."""
    a, axis, x = t.a, t.a.axis % t.a.input.rank, to_float64(t, "input")
    size = a.input.known[axis]
    radius = min(a.radius, size)
    t.require(radius <= WIDEST, f"radius is {radius}, must be at most {WIDEST}")
    rows = [[radius * (n == axis)] * 2 for n in range(a.input.rank)]
    squares = t.o.pad(t.o.Mul(x, x), [n for n, _ in rows], [n for _, n in rows], np.float64(0))
    parts = [t.o.Slice(squares, [n], [n + size], [axis]) for n in range(2 * radius + 1)]
    total = t.o.Add(t.o.Mul(t.o.Sum(*parts), np.float64(a.alpha)), np.float64(a.bias))
    t.give(t.o.convert(t.o.Div(x, t.o.Pow(total, np.float64(a.beta))), np.float32))


@entry("INSTANCE_NORMALIZATION", types=FLOATS)
def instance_normalisation(t: OnnxTask) -> None:
    """Compute (x - mean) * gamma / sqrt(variance + epsilon) + beta."""
    a, x, axes = t.a, to_float64(t, "input"), [2, 3] if t.a.nchw else [1, 2]
    centred = t.o.Sub(x, t.o.ReduceMean(x, axes))
    variance = t.o.ReduceMean(t.o.Mul(centred, centred), axes)
    deviation = t.o.Sqrt(t.o.Add(variance, np.float64(a.epsilon)))
    y = t.o.Div(t.o.Mul(centred, np.float64(a.gamma)), deviation)
    t.give(t.o.convert(t.o.Add(y, np.float64(a.beta)), np.float32))


# ------------------------------------------------------------------------------------------------------------------ GRU


@TABLE.composite("GRU", gated_sequences)
def gru(t: OnnxTask, s: GatedSequence) -> None:
    """Write ONNX's own operator for steps that the model spells out."""
    (weights, bias), (again, more) = (zip(*layers, strict=True) for layers in (s.of_input, s.of_state))
    joined = [t.o.Concat(*map(t.graph.held, some), axis=0) for some in (weights, again, (*bias, *more))]
    x, state = (
        t.o.reshape(t.graph.held(i), (steps, s.batch, size))
        for i, steps, size in ((s.input, s.steps, s.size), (s.state, 1, s.units))
    )
    how = {"hidden_size": s.units, "linear_before_reset": int(s.reset_behind)}
    (y,) = t.nodes("GRU", [x, *(t.o.Unsqueeze(name, [0]) for name in joined), "", state], 1, **how)
    if s.steps == 1:
        t.graph.hold(s.last, t.o.reshape(t.o.Add(y, nan_mask(t, x, state, s)), (s.batch, s.units)))
        return
    y = t.o.Add(t.o.Squeeze(y, [1]), nan_mask(t, x, state, s))
    t.graph.hold(s.last, t.o.Gather(y, np.array(s.steps - 1, np.int64), axis=0))
    if s.states is not None:
        t.graph.hold(s.states, y)


def nan_mask(t: OnnxTask, x: str, state: str, s: GatedSequence) -> str:
    """Return what ONNX Runtime's gates forget: NaN for each step from the first NaN on, else 0, as [steps, batch, 1]."""

    def zeros(name: str) -> str:
        return t.o.Mul(t.o.ReduceSum(t.o.Tanh(name), [2]), 0.0)

    known = t.graph.known(s.state)
    fixed = known is not None and np.isfinite(known).all()
    if s.steps == 1:
        return zeros(x if fixed else t.o.Concat(x, state, axis=2))
    found = t.o.CumSum(zeros(x), np.array(0, np.int64))
    return found if fixed else t.o.Add(found, zeros(state))


# --------------------------------------------------------------------------------- quantisation with a computed scale

# nnhal verifies the fast variant of FULLY_CONNECTED, which multiplies 8-bit integers by the same kernels.
VERIFIED = "FULLY_CONNECTED", int(Q8)


@TABLE.composite("dynamic quantisation", dynamic_composites, VERIFIED)
def dynamic_composite(t: OnnxTask, found: DynamicQuantisation | IntegerLayer) -> None:
    """Write a quantisation or a layer of its integers: one search finds both."""
    if isinstance(found, IntegerLayer):
        integer_layer(t, found)
    else:
        dynamically_quantised(t, found)


def dynamically_quantised(t: OnnxTask, found: DynamicQuantisation) -> None:
    """Write ONNX's own operator; NaN, which it forgets, becomes the scale. A sum of squares is NaN for nothing else."""
    x = t.graph.held(found.x)
    integers, scale, zero = t.nodes("DynamicQuantizeLinear", [x], 3)
    t.graph.dynamic[found] = integers, zero
    missing = t.o.reshape(t.o.IsNaN(t.o.ReduceSumSquare(x)), [1])
    t.graph.hold(found.scale, t.o.Where(missing, np.float32(np.nan), t.o.reshape(scale, [1])))
    t.graph.hold(found.zero, t.o.reshape(t.o.convert(zero, np.float32), [1]))
    steps = t.o.Sub(t.o.convert(integers, np.float32), t.graph.held(found.zero))
    t.graph.hold(found.steps, t.o.reshape(steps, t.graph.value(found.steps).known))


def integer_layer(t: OnnxTask, found: IntegerLayer) -> None:
    """Multiply unsigned integers, with kernels that add up in 32 bits."""
    magnitudes = np.abs(np.moveaxis(found.weights, t.weights.axis, 0)).reshape(found.weights.shape[t.weights.axis], -1)
    require_32_bits(LARGEST * float(magnitudes.sum(1, dtype=np.int64).max(initial=0)))
    t.require(found.quantised in t.graph.dynamic, "the integers are not held in 8 bits")
    x, x_zero = t.graph.dynamic[found.quantised]
    weights, zero = (found.weights + found.zero).astype(np.uint8), np.uint8(found.zero)
    if t.name == "FULLY_CONNECTED":
        x = t.o.reshape(x, [-1, weights.shape[1]])
        y = t.o.MatMulInteger(x, np.ascontiguousarray(weights.T), x_zero, zero)
    else:
        (order, groups), how = layers.filters(t), layers.sliding(t)
        x = image(t, t.o.reshape(x, t.a.input.known))
        filters = np.ascontiguousarray(weights.transpose(order))
        y = t.o.ConvInteger(x, filters, x_zero, zero, **moving(how), dilations=how.dilations, group=groups)
    y, bias = t.o.convert(y, np.float32), t.graph.known(t.place("bias"))
    if bias is None or bias.any():
        shape = [-1] if t.name == "FULLY_CONNECTED" else [1, -1, 1, 1]
        y = t.o.Add(y, t.o.reshape(t.x("bias"), shape))
    t.give(y if t.name == "FULLY_CONNECTED" else layout(t, y))
