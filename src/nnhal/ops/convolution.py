"""CONV_2D, DEPTHWISE_CONV_2D, GROUPED_CONV_2D: a filter moves over height and width, and its products are summed up."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from nnhal.base.codes import Activation, Padding
from nnhal.base.levels import V1_2
from nnhal.base.operands import Array
from nnhal.ops.common import WINDOWED, narrow, nhwc, nonzero, product, windows
from nnhal.ops.ranges import among
from nnhal.ops.schema import BOOL, INT32, Arg, Bound, Form, Op, T, arg, args, example, out, register
from nnhal.ops.weighted import (
    BIAS,
    FILTER,
    TYPES,
    bias_of,
    bias_scale,
    channel_axis,
    filter_of,
    in_whole_lanes,
    output_scale,
    weighted,
    weighted_integers,
)

ROW = 64  # products of a window that are summed in float32
BLOCK = 1 << 20  # elements of the input, laid out for one matrix product

x = arg("input", T, "batch height width depth_in", layout=True, doc="the pictures")
pads = args("pad_left pad_right pad_top pad_bottom", INT32, at_least=0)
strides = args("stride_w stride_h", INT32, at_least=1)
activation = arg("activation", Activation)
TAIL = (
    activation,
    arg("nchw", BOOL, since=V1_2, default=False),
    arg("dilation_w", INT32, since=V1_2, default=1, at_least=1, drawn=among(1, 1, 2, 3)),
    arg("dilation_h", INT32, since=V1_2, default=1, at_least=1, paired=True, drawn=among(1, 1, 2, 3)),
)


def forms(filter_dims: str, *more: Arg, tail: Sequence[Arg] = TAIL) -> tuple[Form, ...]:
    """Return the signatures with explicit padding and with a padding scheme."""
    head = (
        x,
        arg("filter", FILTER, filter_dims, drawn=filter_of(filter_dims.split().index("depth_out"))),
        arg("bias", BIAS, "depth_out", drawn=bias_of()),
    )
    return tuple(Form(*head, *pad, *strides, *more, *tail) for pad in (pads, (arg("scheme", Padding),)))


def convolved(a: Bound, x: Array, weights: Array) -> Array:
    """Convolve by matrix products: each row holds the elements that the filter meets at one position."""
    view, matrix = windows(a, x), weights.reshape(len(weights), -1).T
    depth, units = matrix.shape
    result = np.empty((*view.shape[:3], units), x.dtype)
    rows = max(1, BLOCK // max(1, view.shape[2] * depth))
    for seen, made in zip(view, result, strict=True):
        for top in range(0, len(made), rows):
            block = made[top : top + rows].reshape(-1, units)
            product(seen[top : top + rows].reshape(-1, depth), matrix, block)
    return result


def depthwise(a: Bound, x: Array, weights: Array) -> Array:
    repeated = x if a.depth_multiplier == 1 else np.repeat(x, a.depth_multiplier, -1)
    long = x.dtype == np.float32 and weights[0, :, :, 0].size > ROW
    taken = np.float64 if long else x.dtype  # one product is added after another
    return np.einsum("nhwijc,ijc->nhwc", windows(a, repeated), weights[0], dtype=taken).astype(x.dtype, copy=False)


def grouped(a: Bound, x: Array, weights: Array) -> Array:
    pairs = zip(np.split(x, a.groups, -1), np.split(weights, a.groups), strict=True)
    return np.concatenate([convolved(a, *pair) for pair in pairs], -1)


def multiplied(a: Bound) -> None:
    """depth_out is depth_in * depth_multiplier."""
    depth = a.depth_in * a.depth_multiplier
    a.require(a.depth_out == depth, f"depth_out = {a.depth_out}, must be depth_in * depth_multiplier = {depth}")


def inputs_grouped(a: Bound) -> None:
    """depth_in is groups * depth_group."""
    depth = a.groups * a.depth_group
    a.require(a.depth_in == depth, f"depth_in = {a.depth_in}, must be groups * depth_group = {depth}")


def outputs_grouped(a: Bound) -> None:
    """depth_out is a multiple of groups."""
    a.require(a.depth_out % a.groups == 0, f"depth_out = {a.depth_out}, must be a multiple of groups = {a.groups}")


REACH = {f"filter_{axis}": among(1, 2, 3, 1, 2, 3, 1, 2, 3, 5, 7) for axis in "hw"}

convolution = partial(
    Op,
    types=TYPES,
    outputs=(out("output", T, "batch out_h out_w depth_out", layout=True),),
    where=WINDOWED,
    sums="products",
)
CHECKS = nonzero("height width depth_in depth_out filter_h filter_w"), narrow, bias_scale, channel_axis

register(
    convolution(
        "CONV_2D",
        forms=forms("depth_out filter_h filter_w depth_in"),
        checks=(*CHECKS, output_scale),
        kernel=nhwc(weighted(convolved)),
        integer=nhwc(weighted_integers(convolved)),
        sized=REACH,
        cost="convolution",
        doc="Convolution that mixes the channels.",
        example=example(
            [[[[15]]]], input=[[[[1], [2]], [[3], [4]]]], filter=[[[[1], [0]], [[0], [1]]]], bias=[10], padding="valid"
        ),
    ),
    convolution(
        "DEPTHWISE_CONV_2D",
        forms=forms("1 filter_h filter_w depth_out", arg("depth_multiplier", INT32, at_least=1)),
        checks=(*CHECKS, output_scale, multiplied),
        kernel=nhwc(weighted(depthwise)),
        integer=nhwc(weighted_integers(depthwise, halves_up=lambda a, signed: signed and in_whole_lanes(a))),
        sized=REACH | {"depth_out": lambda d: d.size("depth_in") * d["depth_multiplier"]},
        where=WINDOWED | {"depth_out": lambda a: a.depth_in * a.depth_multiplier},
        cost="depthwise",
        doc="Convolution of each channel alone, with one or more filters.",
        example=example(
            [[[[20, 301]]]],
            input=[[[[2, 3]]]],
            filter=[[[[10, 100]]]],
            bias=[0, 1],
            padding="valid",
            depth_multiplier=1,
        ),
    ),
    convolution(
        "GROUPED_CONV_2D",
        forms=forms(
            "depth_out filter_h filter_w depth_group",
            arg("groups", INT32, at_least=1),
            tail=(activation, arg("nchw", BOOL)),
        ),
        checks=(*CHECKS, inputs_grouped, outputs_grouped),
        kernel=nhwc(weighted(grouped)),
        integer=nhwc(weighted_integers(grouped, halves_up=lambda a, signed: a.groups == 1)),
        sized=REACH
        | {
            "depth_in": lambda d: d["groups"] * d.size("depth_group"),
            "depth_out": lambda d: d["groups"] * d.whole(1, 3),
        },
        cost="grouped",
        doc="Convolution of groups of channels, each with its own filters.",
        example=example(
            [[[[20, 301]]]],
            input=[[[[2, 3]]]],
            filter=[[[[10]]], [[[100]]]],
            bias=[0, 1],
            padding="valid",
            groups=2,
            nchw=False,
        ),
    ),
)
