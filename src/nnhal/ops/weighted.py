"""Shared functions of operations with weights and a bias: types, rules of scales, exact sums of products."""

from collections.abc import Callable
from typing import Any

import numpy as np

from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.base.operands import Array, ChannelQuant, Value
from nnhal.ops.common import activate, centred, decode, encode, single, type_range
from nnhal.ops.integer import in_lanes, quantised, rescaled, stored
from nnhal.ops.ranges import Draw, Range
from nnhal.ops.schema import F16, F32, I32, Q8, Q8PC, Q8S, Bound, Kernel, per

TYPES = {F32: V1_0, F16: V1_2, Q8: V1_0, Q8S: V1_3}
FILTER = per({F32: F32, F16: F16, Q8: (Q8, Q8PC), Q8S: (Q8S, Q8PC)})
BIAS = per({F32: F32, F16: F16, Q8: I32, Q8S: I32})


def filter_of(axis: int, name: str = "filter") -> Range:
    """Range: weights of about a 32nd of the values' quantisation steps, or with a scale for each channel along a
    dimension.
    """

    def draw(d: Draw) -> Value:
        kind, shape = d.type_of(name), d.shape_of(name)
        if kind != Q8PC:
            return d.tensor(kind, shape)
        scales = tuple(float(np.float32(2.0 ** d.rng.uniform(-9, -3))) for _ in range(shape[axis]))
        stored = d.whole(-127, 127, shape).astype(np.int8)
        return Value(kind, shape, channel=ChannelQuant(scales, axis), data=stored)

    return draw


def bias_of(weights: str = "filter") -> Range:
    """Range: a bias with the scale of the products."""

    def draw(d: Draw) -> Value:
        kind, shape, w = d.type_of("bias"), d.shape_of("bias"), d[weights]
        if kind != I32:
            return d.tensor(kind, shape)
        scale = single(d["input"].scale * w.scale)
        reach = d.pick(100, 5000, 5000, 2**20, 2**31 - 1)
        return Value(kind, shape, 0.0 if w.channel else scale, data=d.whole(-reach, reach, shape).astype(np.int32))

    return draw


EXACT = 2**24  # float32 holds every integer up to here
FAR = 2.0**100  # scales up to here, and their reciprocals, times such an integer stay in float32's normal range
SLACK = 1e-6  # the relative tolerance of a scale that was computed as a product


def operands(a: Bound) -> tuple[Value, Value, Value]:
    """Return the known facts of the input, the weights and the bias."""
    values = [v for _, v in a.inputs[:3] if isinstance(v, Value)]
    return values[0], values[1], values[2]


def product_scales(x: Value, weights: Value) -> Array:
    """Return the scales of the products of a quantised input and weights.

    Args:
        x: The input.
        weights: The weights.

    Returns:
        float64: one scale, or one for each channel of the weights.
    """
    return np.multiply(x.scale, weights.channel.scales if weights.channel else (weights.scale,))


def product_scale(a: Bound) -> float:
    """Return the scale of the products of input and weights; 0 if the weights have a scale for each channel."""
    x, weights, _ = operands(a)
    return single(x.scale * weights.scale)


def bias_scale(a: Bound) -> None:
    """The bias has the scale of the products; 0 if that differs from channel to channel."""
    bias, wanted = operands(a)[2].scale, product_scale(a)
    a.require(
        abs(bias - wanted) <= SLACK * min(bias, wanted),
        f"input 2 (bias) has scale {bias:g}, must be {wanted:g}, that of the input times that of the weights",
    )


def output_scale(a: Bound) -> None:
    """Before 1.2 the output of TENSOR_QUANT8_ASYMM had to have the greater scale."""
    if a.T == Q8 and not single(a.out.scale) > product_scale(a):
        a.since(V1_2, f"output scale {a.out.scale:g} need not be greater than input scale * filter scale since 1.2")


def channel_axis(a: Bound) -> None:
    """Scales per channel lie along depth_out of the filter."""
    channel, axis = operands(a)[1].channel, axis_of_channels(a)
    if channel is not None:
        a.require(
            channel.axis == axis, f"input 1 (filter) has its scales along dimension {channel.axis}, must be {axis}"
        )


def axis_of_channels(a: Bound) -> int:
    """Return the dimension of the weights that holds the output channels."""
    assert a.op.weights is not None, f"{a.op.name} has no weights"
    return a.op.weights.axis


def weighted(sums: Callable[[Bound, Array, Array], Array]) -> Kernel:
    """Make a kernel from `sums(a, x, weights)`, which returns a new array whose last dimension is the channels.

    Quantised values are summed up as integers: in float32 if no sum can leave its exact range and scales are not far
    from 1, else in float64. The result is rounded once, at the end.
    """

    def kernel(a: Bound, x: Array, weights: Array, bias: Array, *_: Array) -> Array:
        values = operands(a)
        if not a.out.quantised:
            x, weights, bias = (decode(v, y) for v, y in zip(values, (x, weights, bias), strict=True))
            total = sums(a, x, weights)
            total += bias
            return encode(a.out, activate(a, total))
        factors = centred(values[1], weights)
        scales = product_scales(values[0], values[1])
        near = scales.min() > 1 / FAR and scales.max() < FAR
        dtype = np.float32 if near and _greatest_sum(a, factors, bias) < EXACT else np.float64
        total = sums(a, centred(values[0], x, dtype), factors.astype(dtype, copy=False))
        total += bias.astype(dtype)
        total *= scales.astype(dtype)
        return encode(a.out, activate(a, total))

    return kernel


def weighted_integers(
    sums: Callable[[Bound, Array, Array], Array],
    *,
    single: bool = False,
    halves_up: Callable[[Bound, bool], Any] = lambda a, signed: True,
) -> Kernel:
    """Make the kernel of `weighted` for exact numerics.

    single: whether one scale for all channels is multiplied by the input's in float32, as it is for unsigned weights.
    halves_up: whether the second rounding is half upwards, for all channels or each, depending on whether weights are
    signed.
    """

    def kernel(a: Bound, x: Array, weights: Array, bias: Array, *_: Array) -> Array:
        values = operands(a)
        factors = centred(values[1], weights)
        dtype = np.float32 if _greatest_sum(a, factors, bias) < EXACT else np.float64
        total = sums(a, centred(values[0], x, dtype), factors.astype(dtype, copy=False)).astype(np.int64) + bias
        scales, signed = product_scales(values[0], values[1]), signed_weights(values[1])
        if values[1].channel is None and (single or not signed):
            scales = scales.astype(np.float32).astype(np.float64)
        return stored(a, rescaled(total, scales / a.out.scale, halves_up(a, signed)))

    return quantised(kernel, weighted(sums))


def in_whole_lanes(a: Bound) -> Array:
    """Return the channels that are computed eight at a time, which rounds upwards; the rest is rounded away from zero."""
    return in_lanes(a.depth_out)


def signed_weights(weights: Value) -> bool:
    """Whether a layer with these weights is computed in int8: weights with zero points only have uint8."""
    return weights.channel is not None or (weights.type == Q8S and weights.zero_point == 0)


def _greatest_sum(a: Bound, factors: Array, bias: Array) -> float:
    """Return the greatest intermediate value of any sum of products and bias, for any input."""
    x = operands(a)[0]
    reach = max(abs(limit - x.zero_point) for limit in type_range(x.type))
    others = tuple(i for i in range(factors.ndim) if i != axis_of_channels(a))
    sums = np.abs(factors).sum(others, dtype=np.float64) * reach + np.abs(bias.astype(np.float64))
    return float(sums.max(initial=0))
