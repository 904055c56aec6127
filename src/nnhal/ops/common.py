"""Shared functions of kernels and rules: real and stored values, layouts, activations, windows, broadcasting."""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nnhal.base.codes import MAX_OPERAND_BYTES, Activation, OperandType, Padding
from nnhal.base.levels import V1_2
from nnhal.base.operands import Array, Shape, Value, dtype_of
from nnhal.ops.schema import Bound, show

ACTIVATION_RANGE = {
    Activation.NONE: (-np.inf, np.inf),
    Activation.RELU: (0.0, np.inf),
    Activation.RELU1: (-1.0, 1.0),
    Activation.RELU6: (0.0, 6.0),
}

INNER = 1024  # products in one float32 sum
IN_A_ROW = 512  # float32 terms that an engine may add one after another, all stages of a sum together

# The float before 1/2: added to a number just below a half, it does not round up to the next integer, as 1/2 would.
BELOW_HALF = {np.dtype(t): np.nextafter(t(0.5), t(0)) for t in (np.float32, np.float64)}

# The tolerances of the definition, absolute and relative: one number for both in half precision.
HALF = 5 * 2**-10
FLOAT = (1e-5, 5 * 2**-23)

# ------------------------------------------------------------------------------------------------ stored and real values


def rounded(x: Array) -> Array:
    """Return the nearest integers of a float32 or float64 array, halves away from zero."""
    whole: Array = np.trunc(x + np.copysign(BELOW_HALF[x.dtype], x))
    return whole


def single(number: float) -> float:
    """Return a number as float32; infinite beyond its range."""
    if not number:
        return 0.0
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(number))


def decode(value: Value, x: Array) -> Array:
    """Return the real values of a tensor: float16 widened, quantised elements as (q - zero_point) * scale, in float32."""
    if value.channel is not None:
        shape = [1] * x.ndim
        shape[value.channel.axis] = -1
        return x.astype(np.float32) * np.asarray(value.channel.scales, np.float32).reshape(shape)
    if value.quantised:
        return (x.astype(np.float32) - np.float32(value.zero_point)) * np.float32(value.scale)
    return x.astype(np.float32) if value.type == OperandType.TENSOR_FLOAT16 else x


def encode(value: Value, real: Array) -> Array:
    """Return real values as the tensor stores them: rounded half away from zero, saturated."""
    if not value.quantised:
        return real.astype(value.dtype, copy=False)
    limits = np.iinfo(value.dtype)
    with np.errstate(over="ignore"):  # infinity saturates
        steps = rounded(real / np.float32(value.scale))
    return np.clip(steps + value.zero_point, limits.min, limits.max).astype(value.dtype)


def centred(value: Value, x: Array, dtype: Any = np.float32) -> Array:
    """Return q - zero_point of a quantised tensor in a floating type, exact for 8 and 16 bits."""
    return np.subtract(x, value.zero_point, dtype=dtype)


def fused(a: Bound) -> Activation:
    """Return the fused activation, NONE if there is none; Unknown if it is known only at execution."""
    found: Activation = a.activation if a.form_has("activation") else Activation.NONE
    return found


def activate(a: Bound, x: Array) -> Array:
    """Apply the fused activation of `a`, if there is one, to real values."""
    low, high = ACTIVATION_RANGE[a.__dict__.get("activation", Activation.NONE)]
    return x if (low, high) == (-np.inf, np.inf) else np.clip(x, np.float32(low), np.float32(high))


def real(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a kernel on real values: it decodes tensors first; activation and encoding follow."""

    @wraps(function)
    def kernel(a: Bound, *tensors: Any) -> Any:
        results = function(a, *[_each(decode, v, x) for (_, v), x in zip(a.inputs, tensors, strict=True)])
        if isinstance(results, tuple):
            return tuple(encode(v, activate(a, y)) for v, y in zip(a.outs, results, strict=False))
        return encode(a.out, activate(a, results))

    return kernel


def elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a kernel on real values from a function of only these: `elementwise(np.exp)`."""
    return real(lambda a, *tensors: function(*tensors))


def _each(convert: Callable[[Value, Array], Array], value: Any, x: Any) -> Any:
    if x is None:
        return None
    return [convert(v, y) for v, y in zip(value, x, strict=True)] if isinstance(value, tuple) else convert(value, x)


def lowest(x: Array) -> Any:
    """Return the least value of an array's type."""
    return x.dtype.type(-np.inf) if x.dtype.kind == "f" else np.iinfo(x.dtype).min


# ------------------------------------------------------------------------------------------------------------- layouts


def nhwc(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a kernel from one for NHWC: arguments and outputs marked `layout` are permuted if `nchw` is true.

    It gets contiguous arrays: numpy adds up in the order of memory, and results must not depend on the origin of a
    tensor.
    """

    @wraps(function)
    def kernel(a: Bound, *tensors: Any) -> Any:
        moved = [
            np.ascontiguousarray(np.moveaxis(x, 1, -1) if a.nchw else x) if argument.layout and x is not None else x
            for (argument, _), x in zip(a.inputs, tensors, strict=True)
        ]
        result = function(a, *moved)
        return np.moveaxis(result, -1, 1) if a.nchw and a.op.outputs[0].layout else result

    return kernel


# ------------------------------------------------------------------------------------------------- windows that slide


def padding(a: Bound, axis: str) -> tuple[int, int]:
    """Return the padding before and after `axis` ("h" or "w"), from the scheme or explicit."""
    if not a.form_has("scheme"):
        return (a.pad_top, a.pad_bottom) if axis == "h" else (a.pad_left, a.pad_right)
    return (0, 0) if a.scheme == Padding.VALID else same_padding(a, axis)


def same_padding(a: Bound, axis: str) -> tuple[int, int]:
    """Return the padding before and after `axis` for the scheme SAME, whatever scheme the operation has."""
    size, stride = _size(a, axis), getattr(a, f"stride_{axis}")
    total = max(0, (-(-size // stride) - 1) * stride + _reach(a, axis) - size)
    return total // 2, total - total // 2


def _size(a: Bound, axis: str) -> int:
    size: int = a.height if axis == "h" else a.width
    return size


def dilation_of(a: Bound, axis: str) -> int:
    """Return the distance of the elements that a filter meets along `axis`; 1 if the operation has no dilation."""
    name = f"dilation_{axis}"
    return int(getattr(a, name)) if a.form_has(name) else 1


def _reach(a: Bound, axis: str) -> int:
    """Return the extent of a filter over the input, with its dilation."""
    return (int(getattr(a, f"filter_{axis}")) - 1) * dilation_of(a, axis) + 1


def out_size(axis: str) -> Callable[[Bound], int]:
    """Shape rule: the number of positions of a window along `axis`."""

    def rule(a: Bound) -> int:
        size = _size(a, axis) + sum(padding(a, axis))
        reach = _reach(a, axis)
        a.require(size >= reach, f"filter_{axis} reaches over {reach}, must be at most the padded input's {size}")
        return (size - reach) // int(getattr(a, f"stride_{axis}")) + 1

    return rule


WINDOWED = {"out_h": out_size("h"), "out_w": out_size("w")}


def narrow(a: Bound) -> None:
    """Rule: the padding is smaller than the dilated filter."""
    for axis in "wh":
        pads, reach = padding(a, axis), _reach(a, axis)
        a.require(max(pads) < reach, f"padding {pads} must be smaller than filter_{axis} = {reach}")


def pad_spatial(a: Bound, x: Array, fill: float = 0.0) -> Array:
    """Return an NHWC array with the padding of `a` around height and width."""
    pads = padding(a, "h"), padding(a, "w")
    if pads == ((0, 0), (0, 0)):
        return x
    size = x.itemsize * x.shape[0] * x.shape[3] * (x.shape[1] + sum(pads[0])) * (x.shape[2] + sum(pads[1]))
    a.require(size <= MAX_OPERAND_BYTES, f"padding {pads} makes {size} bytes, must be at most {MAX_OPERAND_BYTES}")
    return np.pad(x, ((0, 0), *pads, (0, 0)), constant_values=fill)


def taps(a: Bound, x: Array, fill: float = 0.0) -> Iterator[tuple[int, int, Array]]:
    """Yield for each position (i, j) of the filter the padded NHWC input that it meets: an array [n, out_h, out_w, c]."""
    out_h, out_w = out_size("h")(a), out_size("w")(a)
    padded = pad_spatial(a, x, fill)
    for i in range(a.filter_h):
        rows = slice(top := i * dilation_of(a, "h"), top + (out_h - 1) * a.stride_h + 1, a.stride_h)
        for j in range(a.filter_w):
            columns = slice(left := j * dilation_of(a, "w"), left + (out_w - 1) * a.stride_w + 1, a.stride_w)
            yield i, j, padded[:, rows, columns, :]


def windows(a: Bound, x: Array) -> Array:
    """Return the input of the filter at each position: a view [n, out_h, out_w, filter_h, filter_w, c] of padded NHWC."""
    view = sliding_window_view(pad_spatial(a, x), (_reach(a, "h"), _reach(a, "w")), (1, 2))
    steps = (slice(None, None, n) for n in (a.stride_h, a.stride_w, 1, dilation_of(a, "h"), dilation_of(a, "w")))
    return np.moveaxis(view[:, *steps], 3, -1)


def product(x: Array, y: Array, out: Array | None = None) -> Array:
    """Multiply matrices.

    A long float32 product is the float64 sum of shorter ones, whose float32 sums are accurate enough.
    """
    many = x.shape[-1]
    if x.dtype != np.float32 or many <= INNER:
        return np.matmul(x, y, out=out)
    parts = (slice(start, start + INNER) for start in range(0, many, INNER))
    total: Array = sum(np.matmul(x[..., part], y[..., part, :]).astype(np.float64) for part in parts)
    if out is None:
        return total.astype(np.float32)
    out[...] = total
    return out


def interpolate(x: Array, at: Array, axis: int) -> Array:
    """Interpolate at positions between 0 and the last along `axis`: from the two nearest elements, by distance."""
    before = at.astype(np.int64)
    after = np.minimum(before + 1, x.shape[axis] - 1)
    share = (at - before).astype(np.float32).reshape(-1, *[1] * (x.ndim - axis - 1))
    return x.take(before, axis) * (1 - share) + x.take(after, axis) * share


# ------------------------------------------------------------------------------------------------ shapes and attributes


def nonzero(names: str, but: str = "batches") -> Callable[[Bound], None]:
    """Rule: `names` are not 0; only `but` may be."""

    def check(a: Bound) -> None:
        for name in names.split():
            a.require(getattr(a, name) > 0, f"{name} = 0, must be at least 1: only {but} may be 0")

    return check


def padded_with_zero(a: Bound) -> None:
    """Since 1.2, a quantised input is padded with its zero point, also if that is not 0; before, such padding is
    undefined.
    """
    if a.T == OperandType.TENSOR_QUANT8_ASYMM and a.input.zero_point:
        a.since(V1_2, "quantised inputs whose zero point is not 0 may be padded since 1.2")


def indices_within(a: Bound, name: str, size: int) -> None:
    """Rule: every element of the tensor argument `name` is an index into `size` elements."""
    indices = getattr(a, name).array
    bad = indices[(indices < 0) | (indices >= size)]
    a.require(not bad.size, f"{name} has {bad[0] if bad.size else 0}, must be from 0 to {size - 1}")


def broadcast(a: Bound, *values: Value) -> Shape:
    """Return the shape that results from broadcasting, if every dimension is equal, 1 or unknown."""
    shapes = [v.dims for v in values]
    rank = max(map(len, shapes))
    result: list[int | None] = []
    for sizes in zip(*[(1,) * (rank - len(s)) + s for s in shapes], strict=True):
        known = {s for s in sizes if s not in (1, None)}
        if len(known) > 1:
            a.fail(f"shapes {' and '.join(map(show, shapes))} must be equal or 1 in every dimension from the last")
        result.append(known.pop() if known else None if None in sizes else 1)
    return tuple(result)


def broadcast_shape(a: Bound) -> Sequence[Shape | None]:
    """Shape rule: the output has the shape that the tensors broadcast to."""
    return [broadcast(a, *[v for _, v in a.inputs if isinstance(v, Value)])]


def axis_of(a: Bound, name: str, rank: int) -> int:
    """Return the scalar argument `name` as an axis of 0 to rank - 1; negative ones count from the end."""
    axis: int = getattr(a, name)
    a.require(-rank <= axis < rank, f"{name} = {axis}, must be from {-rank} to {rank - 1}")
    return axis % rank


def type_range(code: int) -> tuple[int, int]:
    """Return the least and greatest stored value of an integer type."""
    limits = np.iinfo(dtype_of(code))
    return int(limits.min), int(limits.max)
