"""Pooling, convolutions, dense layers, normalisation and resizing against LiteRT's builtin kernels.

LiteRT knows one layout and padding by scheme: NCHW calls are transposed for it, and padded ones of convolutions and of
MAX_POOL_2D get their padding before, with an element that changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnhal.base.operands import Array, ChannelQuant, Value, dtype_of
from tests.ops.run import F16, F32, I32, Q8, Q8PC, Q8S, Q8SYMM, Type, result, value
from tests.oracles.litert import ask
from tests.oracles.strategies import STABLE, Example, Source, assert_agrees, quantised, shapes

FLOAT, QUANT = (F32, F16), (Q8, Q8S)
ALL = (*FLOAT, *QUANT)
POINTS = (0.0, 1.0, -1.0, 0.5)
SAME, VALID = 1, 2  # NNAPI's codes; LiteRT's are 0 and 1
BIAS = {F32: F32, F16: F16, Q8: I32, Q8S: I32}
SQUASHED = {Q8: (1 / 256, 0), Q8S: (1 / 256, -128)}


@dataclass(frozen=True)
class Call(Example):
    """A call with what LiteRT is asked instead."""

    builtin: str = ""
    operands: tuple[Value, ...] = ()
    const: tuple[int, ...] = ()
    options: Any = None
    nchw: bool = False

    def expected(self) -> Array:
        y = ask(self.builtin, self.operands, self.output, const=self.const, **self.options)
        return np.moveaxis(y, -1, 1) if self.nchw else y


def laid_out(x: Value, nchw: bool) -> Value:
    """NHWC contents as the call's layout wants them."""
    moved = np.ascontiguousarray(np.moveaxis(x.array, -1, 1)) if nchw else x.array
    return replace(x, data=moved, shape=moved.shape)


@st.composite
def windows(draw: Any, size: tuple[int, ...], most: int = 4) -> dict[str, int]:
    """Filter and strides over a height and width that the filter fits into."""
    return {
        "filter_h": draw(st.integers(1, min(most, size[1]))),
        "filter_w": draw(st.integers(1, min(most, size[2]))),
        "stride_h": draw(st.integers(1, 3)),
        "stride_w": draw(st.integers(1, 3)),
    }


def padded(x: Value, fill: float, pads: tuple[int, int, int, int]) -> Value:
    left, right, top, bottom = pads
    data = np.pad(x.array, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=fill)
    return replace(x, data=data, shape=data.shape)


@st.composite
def padding(draw: Any, x: Value, w: dict[str, int], fill: float | None) -> tuple[tuple[int, ...], int, Value]:
    """A scheme or (where `fill` is given) explicit numbers: for the call, LiteRT's scheme, LiteRT's input."""
    if fill is None or draw(st.booleans()):
        scheme = draw(st.sampled_from((SAME, VALID)))
        return (scheme,), scheme - 1, x
    pads = tuple(draw(st.integers(0, w[f"filter_{axis}"] - 1)) for axis in "wwhh")
    return pads, VALID - 1, padded(x, fill, pads)


@st.composite
def pooled(draw: Any, kind: int, builtin: str, explicit: bool = False) -> Call:
    source, size = Source(draw), draw(shapes((4, 4)))
    q = source.quant(kind)
    x = source.tensor(kind, size, q, points=POINTS)
    w, nchw, activation = draw(windows(size)), draw(st.booleans()), draw(st.integers(0, 3))
    lowest = np.iinfo(x.dtype).min if quantised(kind) else -60000.0
    pads, scheme, seen = draw(padding(x, w, lowest if explicit else None))
    options = {
        "table": "Pool2D",
        "padding": scheme,
        "strideW": w["stride_w"],
        "strideH": w["stride_h"],
        "filterWidth": w["filter_w"],
        "filterHeight": w["filter_h"],
        "fusedActivationFunction": activation,
    }
    numbers = (w["stride_w"], w["stride_h"], w["filter_w"], w["filter_h"], activation, nchw)
    inputs = (laid_out(x, nchw), *pads, *numbers)
    return Call(inputs, result(kind, None, *q), builtin, (seen,), (), options, nchw)


def shifted(v: Value, kind: int) -> Value:
    """The same real values in the other 8-bit type."""
    if v.type == kind or not quantised(v.type):
        return v
    by = 128 if kind == Q8 else -128
    data = (v.array.astype(np.int16) + by).astype(dtype_of(kind))
    return replace(v, type=kind, data=data, zero_point=v.zero_point + by)


def weights(source: Source, x: Value, size: tuple[int, ...], axis: int, per_channel: bool) -> tuple[Value, Value]:
    """Filter and bias: of the input's type, or with a scale for each channel along `axis`."""
    depth, kind = size[axis], x.type
    if per_channel:
        scales = tuple(source.quant(Q8SYMM, -6, 1)[0] for _ in range(depth))
        data = np.maximum(source.contents(Q8PC, size), -127)
        w = value(Q8PC, data, channel=ChannelQuant(scales, axis))
    else:
        w = source.tensor(kind, size, source.quant(kind, -6, 2), span=1.0, points=POINTS)
    if not quantised(kind):
        return w, source.tensor(kind, (depth,), span=1.0, points=POINTS)
    scale = 0.0 if per_channel else float(np.float32(x.scale) * np.float32(w.scale))
    return w, value(I32, source.rng.integers(-3000, 3000, depth), scale)


def for_litert(x: Value, w: Value, bias: Value, output: Value) -> tuple[list[Value], Value]:
    """Asymmetric filters it has for unsigned inputs only, filters with a scale for each channel for signed ones only."""
    if not quantised(x.type):
        return [x, w, bias], output
    kind = Q8S if w.channel else Q8
    if w.channel:
        scales = tuple(float(np.float32(x.scale) * np.float32(s)) for s in w.channel.scales)
        bias = replace(bias, channel=ChannelQuant(scales, 0))
        shifted_w = w
    else:
        shifted_w = shifted(w, Q8)
    by = {(Q8, Q8S): -128, (Q8S, Q8): 128}.get((x.type, kind), 0)
    return [shifted(x, kind), shifted_w, bias], replace(output, type=kind, zero_point=output.zero_point + by)


@dataclass(frozen=True)
class Weighted(Call):
    """Asked in the 8-bit type that LiteRT has the filter for, and shifted back."""

    asked: Value | None = None

    def expected(self) -> Array:
        y = ask(self.builtin, self.operands, self.asked, const=self.const, **self.options)
        by = {(Q8S, Q8): -128, (Q8, Q8S): 128}.get((self.output.type, self.asked.type), 0)
        y = (y.astype(np.int16) + by).astype(dtype_of(self.output.type)) if by else y
        return np.moveaxis(y, -1, 1) if self.nchw else y


@st.composite
def convolved(draw: Any, kind: int, depthwise: bool = False, per_channel: bool = False) -> Call:
    source, size = Source(draw), draw(shapes((4, 4)))
    x = source.tensor(kind, size, source.quant(kind, -4, 2), span=1.0, points=POINTS)
    w, nchw, activation = draw(windows(size, 3)), draw(st.booleans()), draw(st.integers(0, 3))
    number = draw(st.integers(1, 3))  # of filters
    depth = number * size[3] if depthwise else number
    dims = (1 if depthwise else depth, w["filter_h"], w["filter_w"], depth if depthwise else size[3])
    kernel, bias = weights(source, x, dims, 3 if depthwise else 0, per_channel)
    pads, scheme, seen = draw(padding(x, w, x.zero_point))
    dilation = [draw(st.integers(1, 2)) if (size[i] - 1) >= 2 * (dims[i] - 1) else 1 for i in (2, 1)]
    output = result(kind, None, *source.quant(kind, -4, 2))
    operands, asked = for_litert(seen, kernel, bias, output)
    multiplier = {"depthMultiplier": number} if depthwise else {}
    options = {
        "table": "DepthwiseConv2D" if depthwise else "Conv2D",
        "padding": scheme,
        "strideW": w["stride_w"],
        "strideH": w["stride_h"],
        "dilationWFactor": dilation[0],
        "dilationHFactor": dilation[1],
        "fusedActivationFunction": activation,
        **multiplier,
    }
    more = (number,) if depthwise else ()
    inputs = (laid_out(x, nchw), kernel, bias, *pads, w["stride_w"], w["stride_h"], *more, activation, nchw, *dilation)
    name = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
    return Weighted(inputs, output, name, tuple(operands), (1, 2), options, nchw, asked)


@st.composite
def dense(draw: Any, kind: int) -> Call:
    source, (rows, units, depth) = Source(draw), draw(shapes((3, 3)))
    x = source.tensor(kind, (rows, depth), source.quant(kind, -4, 2), span=1.0, points=POINTS)
    kernel, bias = weights(source, x, (units, depth), 0, False)
    output, activation = result(kind, None, *source.quant(kind, -4, 2)), draw(st.integers(0, 3))
    operands, asked = for_litert(x, kernel, bias, output)
    options = {"table": "FullyConnected", "fusedActivationFunction": activation}
    inputs = (x, kernel, bias, activation)
    return Weighted(inputs, output, "FULLY_CONNECTED", tuple(operands), (1, 2), options, False, asked)


@st.composite
def softmax(draw: Any, kind: int) -> Call:
    """Along the last axis, the only one that LiteRT has; another one is moved there."""
    source, size = Source(draw), draw(shapes())
    x = source.tensor(kind, size, source.quant(kind, -3, 3), points=POINTS)
    beta = np.dtype(np.float16).type(source.rng.uniform(0.25, 2))
    axis = draw(st.integers(-len(size), len(size) - 1))
    scalar = value(Type.FLOAT16 if kind == F16 else Type.FLOAT32, beta)
    data = np.ascontiguousarray(np.moveaxis(x.array, axis, -1))
    operand = replace(x, data=data, shape=data.shape)
    output = result(kind, None, *SQUASHED.get(kind, (0.0, 0)))
    return Moved(
        (x, scalar, axis), output, "SOFTMAX", (operand,), (), {"table": "Softmax", "beta": float(beta)}, False, axis
    )


@dataclass(frozen=True)
class Moved(Call):
    """Asked with `axis` last."""

    axis: int = -1

    def expected(self) -> Array:
        return np.moveaxis(super().expected(), -1, self.axis)


@st.composite
def normalised(draw: Any, kind: int) -> Call:
    """No vector near zero: the definition leaves its direction open, and LiteRT takes 1e-6 for the least length."""
    source, size = Source(draw), draw(shapes((2, 4)))
    x = source.tensor(kind, size, source.quant(kind, 0, 3), points=(1.0, -1.0, 0.5))
    first, away = x.array[..., 0], 1 if x.zero_point <= 0 else -1
    first[np.abs(first - np.float32(x.zero_point)) < 0.01] = x.zero_point + away
    output = result(kind, None, *{Q8: (1 / 128, 128), Q8S: (1 / 128, 0)}.get(kind, (0.0, 0)))
    return Call((x,), output, "L2_NORMALIZATION", (x,), (), {"table": "L2Norm"})


@st.composite
def local(draw: Any, kind: int) -> Call:
    source, size = Source(draw), draw(shapes((4, 4)))
    x = source.tensor(kind, size, points=POINTS)
    radius, bias, alpha, beta = draw(st.integers(0, 4)), 1.5, draw(st.sampled_from((0.25, 1.0))), 0.5
    scalars = (value(Type.FLOAT16 if kind == F16 else Type.FLOAT32, s) for s in (bias, alpha, beta))
    options = {"table": "LocalResponseNormalization", "radius": radius, "bias": bias, "alpha": alpha, "beta": beta}
    name = "LOCAL_RESPONSE_NORMALIZATION"
    return Call((x, radius, *scalars), result(kind), name, (x,), (), options)


@st.composite
def resized(draw: Any, kind: int, name: str) -> Call:
    source, size = Source(draw), draw(shapes((4, 4)))
    q = source.quant(kind)
    x = source.tensor(kind, size, q, points=POINTS)
    height, width, nchw = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.booleans())
    corners, centers = draw(st.sampled_from(((False, False), (True, False), (False, True))))
    options = {
        "table": "ResizeBilinear" if name == "RESIZE_BILINEAR" else "ResizeNearestNeighbor",
        "alignCorners": corners,
        "halfPixelCenters": centers,
    }
    operands = x, value(I32, [height, width])
    inputs = (laid_out(x, nchw), width, height, nchw, corners, centers)
    return Call(inputs, result(kind, None, *q), name, operands, (1,), options, nchw)


LAYERS: list[tuple[str, tuple[int, ...], Callable[[int], st.SearchStrategy[Call]]]] = [
    ("AVERAGE_POOL_2D", ALL, partial(pooled, builtin="AVERAGE_POOL_2D")),
    ("MAX_POOL_2D", ALL, partial(pooled, builtin="MAX_POOL_2D", explicit=True)),
    ("L2_POOL_2D", FLOAT, partial(pooled, builtin="L2_POOL_2D")),
    ("CONV_2D", ALL, convolved),
    ("CONV_2D", QUANT, partial(convolved, per_channel=True)),
    ("DEPTHWISE_CONV_2D", ALL, partial(convolved, depthwise=True)),
    ("DEPTHWISE_CONV_2D", QUANT, partial(convolved, depthwise=True, per_channel=True)),
    ("FULLY_CONNECTED", ALL, dense),
    ("SOFTMAX", ALL, softmax),
    ("L2_NORMALIZATION", ALL, normalised),
    ("LOCAL_RESPONSE_NORMALIZATION", FLOAT, local),
    ("RESIZE_BILINEAR", ALL, partial(resized, name="RESIZE_BILINEAR")),
    ("RESIZE_NEAREST_NEIGHBOR", ALL, partial(resized, name="RESIZE_NEAREST_NEIGHBOR")),
]


@pytest.mark.parametrize(
    ("name", "kind", "draw"),
    [pytest.param(name, kind, draw, id=f"{name}-{Type(kind).name}") for name, types, draw in LAYERS for kind in types],
)
@STABLE
@given(data=st.data())
def test_layer_agrees_with_litert(name: str, kind: int, draw: Any, data: st.DataObject) -> None:
    call = data.draw(draw(kind))
    assert_agrees(name, call, call.expected())
