"""AVERAGE_POOL_2D, MAX_POOL_2D, L2_POOL_2D: reduce a window that moves over height and width."""

from functools import partial, reduce

import numpy as np

from nnhal.base.codes import Activation, Padding
from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.base.operands import Array
from nnhal.ops.common import WINDOWED, activate, decode, encode, lowest, narrow, nhwc, nonzero, real, rounded, taps
from nnhal.ops.schema import BOOL, F16, F32, INT32, Q8, Q8S, SAME, Bound, Form, Op, T, arg, args, example, out, register

x = arg("input", T, "batch height width depth", layout=True, doc="the pictures")
pads = args("pad_left pad_right pad_top pad_bottom", INT32, at_least=0)
window = args("stride_w stride_h filter_w filter_h", INT32, at_least=1)
tail = arg("activation", Activation), arg("nchw", BOOL, since=V1_2, default=False)
FORMS = Form(x, *pads, *window, *tail), Form(x, arg("scheme", Padding), *window, *tail)
OUTPUT = (out("output", T, "batch out_h out_w depth", layout=True, quant=SAME),)
FLOAT, QUANT = {F32: V1_0, F16: V1_2}, {Q8: V1_0, Q8S: V1_3}


def mean(a: Bound, x: Array) -> Array:
    """Average the real elements without padding, in float64, whose range no sum exceeds."""
    x, ones = x.astype(np.float64), np.ones((1, *x.shape[1:3], 1))
    total, count = (reduce(np.add, (t for _, _, t in taps(a, values))) for values in (x, ones))
    return total / count


def average(a: Bound, x: Array) -> Array:
    """Average; if quantised, the stored values, halves rounded away from a stored 0, then the activation."""
    if not a.input.quantised:
        return np.asarray(real(mean)(a, x))
    return encode(a.out, activate(a, decode(a.out, rounded(mean(a, x)))))


def peak(a: Bound, x: Array) -> Array:
    return reduce(np.maximum, (t for _, _, t in taps(a, x, lowest(x))))


def l2(a: Bound, x: Array) -> Array:
    return np.sqrt(mean(a, np.square(x, dtype=np.float64)))


def open_overflow(a: Bound, x: Array) -> Array:
    """Open: Means whose sum of magnitudes exceeds float32's range, or that are NaN."""
    real_mean = mean(a, decode(a.input, x))
    count = reduce(np.add, (t for _, _, t in taps(a, np.ones((1, *x.shape[1:3], 1)))))
    total = mean(a, np.abs(decode(a.input, x))) * count
    return np.asarray(np.isnan(real_mean) | (np.isfinite(real_mean) & (total > np.finfo(np.float32).max)))


def nan_windows(a: Bound, x: Array) -> Array:
    """Open: Windows with a NaN: any of their elements, or a NaN."""
    return reduce(np.logical_or, (t for _, _, t in taps(a, np.isnan(x))))


pool = partial(
    Op, cost="pool", forms=FORMS, outputs=OUTPUT, checks=(nonzero("height width depth"), narrow), where=WINDOWED
)

register(
    pool(
        "AVERAGE_POOL_2D",
        FLOAT | QUANT,
        kernel=nhwc(average),
        sums="terms",
        leaves_open=nhwc(open_overflow),
        doc="Mean of each window; of stored values if quantised, halves rounded away from a stored 0.",
        example=example([[[[3]]]], input=[[[[1], [2]], [[3], [6]]]], filter_size=2, padding="valid"),
    ),
    pool(
        "MAX_POOL_2D",
        FLOAT | QUANT,
        kernel=nhwc(real(peak)),
        leaves_open=nhwc(nan_windows),
        moves=True,
        doc="Greatest element of each window.",
        example=example([[[[6]]]], input=[[[[1], [2]], [[3], [6]]]], filter_size=2, padding="valid"),
    ),
    pool(
        "L2_POOL_2D",
        FLOAT,
        kernel=nhwc(real(l2)),
        nonnegative=True,
        doc="Root of the mean of squares of each window.",
        example=example([[[[5]]]], input=[[[[1], [1]], [[7], [7]]]], filter_size=2, padding="valid"),
    ),
)
