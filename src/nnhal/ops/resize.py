"""RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR: pictures resized to another height and width."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.base.operands import Array
from nnhal.ops.common import FLOAT, HALF, interpolate, nhwc, nonzero, real
from nnhal.ops.ranges import between, whole
from nnhal.ops.schema import (
    BOOL,
    F16,
    F32,
    FLOAT16,
    FLOAT32,
    INT32,
    Q8,
    Q8S,
    SAME,
    Bound,
    Form,
    Op,
    T,
    arg,
    args,
    example,
    out,
    per,
    register,
)

x = arg("input", T, "batch height width depth", layout=True, doc="the pictures")
by_shape = args("out_w out_h", INT32, at_least=1, drawn=whole(1, 9))
by_scale = args(
    "scale_w scale_h", per({F32: FLOAT32, F16: FLOAT16, Q8: FLOAT32, Q8S: FLOAT32}), since=V1_2, drawn=between(0.3, 3)
)
GRID = (
    arg("align_corners", BOOL, since=V1_3, default=False),
    arg(
        "half_pixel_centers",
        BOOL,
        since=V1_3,
        default=False,
        drawn=lambda d: not d["align_corners"] and d.pick(True, False),
    ),
)


def new_size(axis: str) -> Callable[[Bound], int]:
    """Shape rule: the given size, or scale times the input's size, rounded down."""

    def rule(a: Bound) -> int:
        if a.form_has(f"out_{axis}"):
            return int(getattr(a, f"out_{axis}"))
        size, scale = a.height if axis == "h" else a.width, getattr(a, f"scale_{axis}")
        product = float(np.float32(size) * np.float32(scale))
        a.require(1 <= product < 2**31, f"scale_{axis} = {scale:g} makes {product:g} of {size}, must be at least 1")
        return int(product)

    return rule


def one_grid(a: Bound) -> None:
    """Corners are aligned, or pixels have their centres at halves, or neither."""
    a.require(
        not (a.align_corners and a.half_pixel_centers), "half_pixel_centers is true, must be false with align_corners"
    )


def positions(a: Bound, size: int, new: int) -> Array:
    """Return the positions of the output's elements in the input, along one axis.

    They are float32, whose rounding decides neighbours.
    """
    between = a.align_corners and new > 1
    step = np.float32(size - 1) / np.float32(new - 1) if between else np.float32(size) / np.float32(new)
    at = np.arange(new, dtype=np.float32)
    return (at + np.float32(0.5)) * step if a.half_pixel_centers else at * step


def nearest(a: Bound, x: Array) -> Array:
    """Round to the nearest element with aligned corners, else down."""
    for axis, name in ((1, "h"), (2, "w")):
        x = x.take(nearest_elements(a, x.shape[axis], new_size(name)(a)), axis)
    return x


def nearest_elements(a: Bound, size: int, new: int) -> Array:
    """Return the numbers of the elements that RESIZE_NEAREST_NEIGHBOR takes, along one axis."""
    index = np.floor(positions(a, size, new).astype(np.float64) + (0.5 if a.align_corners else 0)).astype(np.int64)
    return np.clip(index, 0, size - 1)


def places(a: Bound, x: Array, axis: int) -> Array:
    """Return the position along an axis at which each output element is interpolated."""
    size, new = x.shape[axis], new_size("h" if axis == 1 else "w")(a)
    return np.clip(positions(a, size, new) - np.float32(0.5 * a.half_pixel_centers), 0, size - 1)


def bilinear(a: Bound, x: Array) -> Array:
    """Interpolate the two nearest elements along each axis, by distance."""
    for axis in (1, 2):
        x = interpolate(x, places(a, x, axis), axis)
    return x


def overflowing(a: Bound, x: Array) -> Any:
    """Open: channels of a picture with elements that are not finite or beyond half the type's range, because their
    shares may be 0 and their differences may overflow; and elements that change by more than the tolerance if their
    position changes in its last digit.
    """
    if a.input.quantised:
        return np.zeros((1, 1, 1, 1), bool)
    wide = ~(np.abs(x) <= np.finfo(x.dtype).max / 2).all((1, 2), keepdims=True)
    least = greatest = np.where(np.isfinite(x), x, 0).astype(np.float64)
    for axis in (1, 2):
        at, last = places(a, x, axis), x.shape[axis] - 1
        near = [np.clip(np.floor(at) + n, 0, last).astype(np.int64) for n in (-1, 0, 1, 2)]
        least = np.min([least.take(n, axis) for n in near], 0)
        greatest = np.max([greatest.take(n, axis) for n in near], 0)
    moved = (greatest - least) * np.spacing(np.float32(max(x.shape[1:3])))
    return wide | (moved > (HALF if x.dtype == np.float16 else FLOAT[0]) * (1 + np.abs(bilinear(a, np.nan_to_num(x)))))


resize = partial(
    Op,
    cost="resize",
    outputs=(out("output", T, "batch new_h new_w depth", layout=True, quant=SAME),),
    checks=(nonzero("height width depth"), one_grid),
    where={"new_h": new_size("h"), "new_w": new_size("w")},
)

register(
    resize(
        "RESIZE_BILINEAR",
        {F32: V1_0, F16: V1_2, Q8: V1_2, Q8S: V1_3},
        tuple(Form(x, *size, arg("nchw", BOOL, since=V1_2, default=False), *GRID) for size in (by_shape, by_scale)),
        kernel=nhwc(real(bilinear)),
        sums="terms",
        leaves_open=nhwc(overflowing),
        doc="Resizes pictures; each element is interpolated between four.",
        example=example([[[[0], [5], [10], [10]]]], input=[[[[0], [10]]]], out_w=4, out_h=1),
    ),
    resize(
        "RESIZE_NEAREST_NEIGHBOR",
        {F32: V1_2, F16: V1_2, Q8: V1_2, Q8S: V1_3},
        tuple(Form(x, *size, arg("nchw", BOOL), *GRID) for size in (by_shape, by_scale)),
        kernel=nhwc(nearest),
        doc="Resizes pictures; each element is the nearest one.",
        example=example([[[[0], [0], [10], [10]]]], input=[[[[0], [10]]]], out_w=4, out_h=1, nchw=False),
    ),
)
