"""REDUCE_ALL, _ANY, _MAX, _MIN, _PROD, _SUM, MEAN along some axes; ARGMAX, ARGMIN along one."""

from functools import partial
from typing import Any

import numpy as np

from nnhal.base.levels import V1_1, V1_2, V1_3
from nnhal.base.operands import Array, Shape
from nnhal.ops import integer
from nnhal.ops.common import axis_of, centred, real, rounded
from nnhal.ops.order import by_axes
from nnhal.ops.ranges import among, axis_range, some_axes
from nnhal.ops.schema import (
    B8,
    BOOL,
    F16,
    F32,
    I32,
    INT32,
    Q8,
    Q8S,
    SAME,
    Bound,
    Form,
    Kernel,
    Op,
    T,
    arg,
    example,
    out,
    register,
)

OVER = arg("input", T, rank=(1, 4)), arg("axes", I32, "axis_count", drawn=some_axes)
OUTPUT = (out("output", T, quant=SAME),)
FLOAT = {F32: V1_2, F16: V1_2}
QUANT = {Q8: V1_2, Q8S: V1_3}


def axes_exist(a: Bound) -> None:
    """The axes are the input's; negative ones count from the end."""
    rank = a.input.rank
    for axis in a.axes.array.tolist():
        a.require(-rank <= axis < rank, f"input 1 (axes) holds {axis}, must be from {-rank} to {rank - 1}")


def elements_along(a: Bound) -> None:
    """There are elements along the axes."""
    dims = a.input.known
    for axis in a.axes.array.tolist():
        a.require(dims[axis] > 0, f"input 0 (input) has shape {list(dims)}, must have elements along axis {axis}")


def reduced_shape(a: Bound) -> list[Shape]:
    """An axis named twice counts once; if no dimension is left, the shape is [1]."""
    dims = a.input.dims
    axes = {axis % len(dims) for axis in a.axes.array.tolist()}
    if a.keep_dims > 0:
        return [tuple(1 if i in axes else size for i, size in enumerate(dims))]
    return [tuple(size for i, size in enumerate(dims) if i not in axes) or (1,)]


def along(function: Kernel, **more: Any) -> Kernel:
    """Make a kernel: a reduction by `function(x, axes)`."""

    def kernel(a: Bound, x: Array, axes: Array) -> Array:
        return function(x, dimensions(x, axes), **more).reshape(a.shapes[0])

    return real(kernel)


def mean(a: Bound, x: Array, axes: Array) -> Array:
    """Average; if quantised, the distances from the zero point, whose halves are exact, rounded away from it."""
    if not a.input.quantised:
        return np.asarray(real_mean(a, x, axes))
    steps = rounded(np.mean(centred(a.input, x, np.float64), dimensions(x, axes)))
    shape: Any = a.shapes[0]
    return (steps + a.out.zero_point).astype(a.out.dtype).reshape(shape)


def dimensions(x: Array, axes: Array) -> tuple[int, ...]:
    return tuple({axis % x.ndim for axis in axes.tolist()})


real_mean = along(np.mean, dtype=np.float64)


def sums_overflow(a: Bound, x: Array, axes: Array) -> Any:
    """Open: Sums whose terms' magnitudes add up to more than the type holds, unless a NaN is among them."""
    if x.dtype.kind != "f":
        return False
    over = dimensions(x, axes)
    total = np.where(np.isfinite(x), np.abs(x), 0).sum(over, np.float64)
    return ((total > np.finfo(x.dtype).max) & ~np.isnan(x).any(over)).reshape(a.shapes[0])


def products_leave_range(a: Bound, x: Array, axes: Array) -> Any:
    """Open: Products of which a part, multiplied in some order, leaves the range of normal float32 numbers, unless a
    NaN is among them. A part that is too small does not count if there is a 0.
    """
    over, facts = dimensions(x, axes), np.finfo(np.float32)
    sizes = np.log2(np.where(np.isfinite(x) & (x != 0), np.abs(x), 1), dtype=np.float64)
    above = np.maximum(sizes, 0).sum(over) > np.log2(float(facts.max))
    below = (np.minimum(sizes, 0).sum(over) < facts.minexp) & (x != 0).all(over)
    return ((above | below) & ~np.isnan(x).any(over)).reshape(a.shapes[0])


def product(x: Array, axes: tuple[int, ...]) -> Array:
    """Multiply in float64.

    A factor of 0 among finite ones makes the product 0, even if it overflows before it meets the 0.
    """
    zero = (x == 0).any(axes) & np.isfinite(x).all(axes)
    return np.where(zero, 0, np.multiply.reduce(x, axes, np.float64))


def not_empty(a: Bound) -> None:
    """There are elements."""
    dims = a.input.known
    a.require(0 not in dims, f"input 0 (input) has shape {list(dims)}, must have elements")


def without_axis(a: Bound) -> list[Shape]:
    """Shape rule: the input's shape without the axis; if no dimension is left, [1]."""
    dims = a.input.dims
    axis = axis_of(a, "axis", len(dims))
    return [dims[:axis] + dims[axis + 1 :] or (1,)]


def position(function: Kernel, nan: float) -> Kernel:
    """Make a kernel: the index of the element of `function` along the axis, the first among equals.

    nan: the number that NaN counts as.
    """
    return lambda a, x: function(np.where(np.isnan(x), nan, x), a.axis).astype(np.int32).reshape(a.shapes[0])


reduction = partial(
    Op,
    cost="mean",
    forms=(Form(*OVER, arg("keep_dims", BOOL)),),
    outputs=OUTPUT,
    checks=(axes_exist,),
    infer=reduced_shape,
    reorder=by_axes("axes"),
)
arg_of = partial(
    Op,
    cost="mean",
    types=FLOAT | QUANT | {I32: V1_2},
    forms=(Form(arg("input", T), arg("axis", INT32, drawn=axis_range())),),
    outputs=(out("output", I32),),
    checks=(not_empty,),
    infer=without_axis,
    reorder=by_axes("axis"),
)

register(
    reduction(
        "REDUCE_ALL",
        {B8: V1_2},
        kernel=along(np.all),
        doc="Whether all elements are true.",
        example=example([False, True], input=[[True, False], [True, True]], axes=[1], keep_dims=False),
    ),
    reduction(
        "REDUCE_ANY",
        {B8: V1_2},
        kernel=along(np.any),
        doc="Whether any element is true.",
        example=example([True, False], input=[[True, False], [False, False]], axes=[1], keep_dims=False),
    ),
    reduction(
        "REDUCE_MAX",
        FLOAT | QUANT,
        kernel=along(np.max),
        checks=(axes_exist, elements_along),
        moves=True,
        doc="The greatest element; NaN if there is one.",
        example=example([5, 4], input=[[1, 5], [4, 3]], axes=[1], keep_dims=False),
    ),
    reduction(
        "REDUCE_MIN",
        FLOAT | QUANT,
        kernel=along(np.min),
        checks=(axes_exist, elements_along),
        moves=True,
        doc="The least element; NaN if there is one.",
        example=example([1, 3], input=[[1, 5], [4, 3]], axes=[1], keep_dims=False),
    ),
    reduction(
        "REDUCE_PROD",
        FLOAT,
        kernel=along(product),
        leaves_open=products_leave_range,
        doc="The product of the elements. NaN among them, or 0 among infinite ones, makes it NaN.",
        example=example([5, 12], input=[[1, 5], [4, 3]], axes=[1], keep_dims=False),
    ),
    reduction(
        "REDUCE_SUM",
        FLOAT,
        kernel=along(np.sum, dtype=np.float64),
        sums="terms",
        leaves_open=sums_overflow,
        doc="The sum of the elements.",
        example=example([6, 7], input=[[1, 5], [4, 3]], axes=[1], keep_dims=False),
    ),
    Op(
        "MEAN",
        {F32: V1_1, F16: V1_2, Q8: V1_1, Q8S: V1_3},
        (Form(*OVER, arg("keep_dims", INT32, drawn=among(0, 1))),),
        OUTPUT,
        mean,
        integer=integer.quantised(integer.mean, mean),
        checks=(axes_exist, elements_along),
        infer=reduced_shape,
        reorder=by_axes("axes"),
        sums="terms",
        leaves_open=sums_overflow,
        cost="mean",
        doc="The mean of the elements.",
        example=example([[3], [3.5]], input=[[1, 5], [4, 3]], axes=[1], keep_dims=1),
    ),
    arg_of(
        "ARGMAX",
        kernel=position(np.argmax, -np.inf),
        doc="Index of the greatest element along an axis, the first among equals; NaN counts as minus infinity.",
        example=example([1, 0], input=[[1, 5], [4, 3]], axis=1),
    ),
    arg_of(
        "ARGMIN",
        kernel=position(np.argmin, np.inf),
        doc="Index of the least element along an axis, the first among equals; NaN counts as infinity.",
        example=example([0, 1], input=[[1, 5], [4, 3]], axis=1),
    ),
)
