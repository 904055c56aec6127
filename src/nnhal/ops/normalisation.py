"""SOFTMAX, LOG_SOFTMAX, L2_, LOCAL_RESPONSE_ and INSTANCE_NORMALIZATION: elements relative to those around them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.base.operands import Array
from nnhal.ops.common import axis_of, nhwc, real
from nnhal.ops.order import by_axis
from nnhal.ops.ranges import among, axis_range, between
from nnhal.ops.schema import (
    BOOL,
    F16,
    F32,
    FLOAT16,
    FLOAT32,
    INT32,
    Q8,
    Q8S,
    Bound,
    Form,
    Op,
    T,
    arg,
    args,
    example,
    fixed,
    out,
    per,
    register,
)

SCALAR = per({F32: FLOAT32, F16: FLOAT16, Q8: FLOAT32, Q8S: FLOAT32})
LATER_AXIS = arg("axis", INT32, since=V1_2, default=-1, drawn=axis_range())
BETA = among(1, 1, 0.25, 0.7, 2.5)
INPUT = arg("input", T, rank=(1, 4))


def axis_exists(a: Bound) -> None:
    """The axis is one of the input's; negative ones count from the end."""
    axis_of(a, "axis", a.input.rank)


def positive_beta(a: Bound) -> None:
    """beta is greater than 0."""
    a.require(a.beta > 0, f"beta = {a.beta:g}, must be greater than 0")


def bias_not_zero(a: Bound) -> None:
    """bias is not 0."""
    a.require(a.bias != 0, "bias = 0, must not be 0")


def first_ranks(*ranks: int) -> Callable[[Bound], None]:
    """Rule: before 1.2 the input had rank `ranks`."""

    def check(a: Bound) -> None:
        if a.input.rank not in ranks:
            a.since(V1_2, f"input 0 (input) may have rank {a.input.rank} since 1.2")

    return check


def below_peak(a: Bound, x: Array) -> Array:
    """Subtract the greatest exponent along the axis, which changes no quotient and avoids overflow."""
    return np.subtract(x, x.max(a.axis, keepdims=True, initial=-np.inf), dtype=np.float64) * a.beta


def open_beside_infinite(a: Bound, x: Array) -> Any:
    """Open: All elements along the axis of an infinite one, because the sum of powers is infinite too."""
    return False if a.input.quantised else (x == np.inf).any(a.axis, keepdims=True)


def softmax(a: Bound, x: Array) -> Array:
    powers = np.exp(below_peak(a, x))
    return powers / powers.sum(a.axis, keepdims=True)


def log_softmax(a: Bound, x: Array) -> Array:
    exponents = below_peak(a, x)
    return exponents - np.log(np.exp(exponents).sum(a.axis, keepdims=True))


def l2_normalization(a: Bound, x: Array) -> Array:
    """Zeros stay zeros. The squares of float32 need float64's range."""
    length = np.sqrt(np.square(x, dtype=np.float64).sum(a.axis, keepdims=True))
    return x / np.where(length == 0, 1, length)


def local_response_normalization(a: Bound, x: Array) -> Array:
    if not x.size:
        return x
    axis = a.axis % x.ndim
    radius = min(a.radius, x.shape[axis])
    around = [(radius, radius) if i == axis else (0, 0) for i in range(x.ndim)]
    squares = np.pad(np.square(x, dtype=np.float64), around)
    return x / (a.bias + a.alpha * sliding_window_view(squares, 2 * radius + 1, axis).sum(-1)) ** a.beta


def instance_normalization(a: Bound, x: Array) -> Array:
    count = x.shape[1] * x.shape[2]
    centred = x - x.sum((1, 2), keepdims=True, dtype=np.float64) / count
    variance = np.square(centred).sum((1, 2), keepdims=True) / count
    return centred * a.gamma / np.sqrt(variance + a.epsilon) + a.beta


register(
    Op(
        "SOFTMAX",
        {F32: V1_0, F16: V1_2, Q8: V1_0, Q8S: V1_3},
        (Form(INPUT, arg("beta", SCALAR, drawn=BETA), LATER_AXIS),),
        (out("output", T, quant=fixed({Q8: (1 / 256, 0), Q8S: (1 / 256, -128)})),),
        real(softmax),
        (axis_exists, positive_beta, first_ranks(2, 4)),
        reorder=by_axis("axis"),
        leaves_open=open_beside_infinite,
        cost="softmax",
        nonnegative=True,
        doc="exp(beta * x), divided by the sum of these along an axis.",
        example=example([[0.25, 0.75]], input=[[0, 1.098612]], beta=1),
    ),
    Op(
        "LOG_SOFTMAX",
        {F32: V1_2, F16: V1_2},
        (Form(arg("input", T, rank=(1, 8)), arg("beta", SCALAR, drawn=BETA), arg("axis", INT32, drawn=axis_range())),),
        (out("output", T),),
        real(log_softmax),
        (axis_exists, positive_beta),
        reorder=by_axis("axis"),
        leaves_open=open_beside_infinite,
        cost="softmax",
        doc="Logarithm of the softmax.",
        example=example([[-0.693147, -0.693147]], input=[[5, 5]], beta=1, axis=1),
    ),
    Op(
        "L2_NORMALIZATION",
        {F32: V1_0, F16: V1_2, Q8: V1_2, Q8S: V1_3},
        (Form(INPUT, LATER_AXIS),),
        (out("output", T, quant=fixed({Q8: (1 / 128, 128), Q8S: (1 / 128, 0)})),),
        real(l2_normalization),
        (axis_exists, first_ranks(4)),
        reorder=by_axis("axis"),
        cost="softmax",
        doc="The element, divided by the length of the vector along an axis.",
        example=example([[0.6, 0.8]], input=[[3, 4]]),
    ),
    Op(
        "LOCAL_RESPONSE_NORMALIZATION",
        {F32: V1_0, F16: V1_2},
        (
            Form(
                INPUT,
                arg("radius", INT32, at_least=0),
                *args("bias alpha beta", SCALAR, drawn=between(0.1, 2)),
                LATER_AXIS,
            ),
        ),
        (out("output", T),),
        real(local_response_normalization),
        (axis_exists, bias_not_zero, first_ranks(4)),
        reorder=by_axis("axis"),
        cost="softmax",
        doc="x / (bias + alpha * s) ** beta, where s sums the squares up to radius away along an axis.",
        example=example([[0.1, 0.2]], input=[[1, 2]], radius=1, bias=5, alpha=1, beta=1),
    ),
    Op(
        "INSTANCE_NORMALIZATION",
        {F32: V1_2, F16: V1_2},
        (
            Form(
                arg("input", T, "batch height width depth", layout=True),
                *args("gamma beta", SCALAR, drawn=between(-2, 2)),
                arg("epsilon", SCALAR, drawn=among(1e-3, 1e-5, 1)),
                arg("nchw", BOOL),
            ),
        ),
        (out("output", T, layout=True),),
        nhwc(real(instance_normalization)),
        sums="terms",
        cost="softmax",
        doc="(x - mean) * gamma / sqrt(variance + epsilon) + beta, over height and width.",
        example=example([[[[-5], [15]]]], input=[[[[1], [3]]]], gamma=10, beta=5, epsilon=0, nchw=False),
    ),
)
