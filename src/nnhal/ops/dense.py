"""FULLY_CONNECTED, BATCH_MATMUL: products of matrices."""

import math

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.levels import FL6
from nnhal.base.operands import Array, Shape, Value
from nnhal.ops.common import centred, decode, encode, nonzero, product, single
from nnhal.ops.integer import quantised, rescaled, steps, stored
from nnhal.ops.ranges import Draw, divisors
from nnhal.ops.schema import BOOL, F16, F32, I32, Q8S, Bound, Form, Op, T, agree, arg, example, out, register, show
from nnhal.ops.weighted import BIAS, TYPES, bias_of, bias_scale, filter_of, output_scale, weighted, weighted_integers


def batch_size(a: Bound) -> int:
    """Shape rule: the number of rows of `input_size` among the input's elements."""
    dims, size = a.input.known, a.input_size
    count = math.prod(dims)
    a.require(
        count % size == 0,
        f"input 0 (input) has shape {show(dims)}, must have a multiple of input_size = {size} elements",
    )
    return count // int(size)


def fully_connected(a: Bound, x: Array, weights: Array) -> Array:
    rows, weights = rows_of(x), rows_of(weights)
    return product(rows.reshape(-1, weights.shape[1]), weights.T)


def rows_of(x: Array) -> Array:
    """Copy a tensor to row-major memory: a product of a transposed view would add up in another order."""
    return np.ascontiguousarray(x)


def same_batches(a: Bound) -> None:
    """Both tensors are equal in all dimensions before the last two."""
    x, y = a.x.dims, a.y.dims
    a.require(
        agree(x[:-2], y[:-2]),
        f"shapes {show(x)} and {show(y)} must be equal in all dimensions before the last two",
    )


def fitting(d: Draw) -> Value:
    """Range: matrices that can be multiplied by those of x."""
    *batches, rows, columns = d["x"].known
    inner, other = rows if d["adj_x"] else columns, d.whole(1, 5)
    return d.tensor(d.kind, (*batches, other, inner) if d["adj_y"] else (*batches, inner, other))


def product_shape(a: Bound) -> list[Shape]:
    """Shape rule: [..., rows of x, columns of y]; x has as many columns as y has rows."""
    x, y = a.x.dims, a.y.dims
    rows, inner = (x[-1], x[-2]) if a.adj_x else (x[-2], x[-1])
    other, columns = (y[-1], y[-2]) if a.adj_y else (y[-2], y[-1])
    a.require(
        agree((inner,), (other,)),
        f"shapes {show(x)} and {show(y)} have {inner} columns and {other} rows to multiply, must be equal",
    )
    batches = (n if m is None else m for m, n in zip(x[:-2], y[:-2], strict=True))
    return [(*batches, rows, columns)]


def batch_matmul(a: Bound, x: Array, y: Array) -> Array:
    """Add up quantised products exactly; 32-bit integers wrap around."""
    both = (rows_of(x), a.adj_x), (rows_of(y), a.adj_y)
    left, right = (m.swapaxes(-1, -2) if adjoint else m for m, adjoint in both)
    if a.T == Q8S:
        sums = centred(a.x, left, np.float64) @ centred(a.y, right, np.float64)
        return encode(a.out, sums * (a.x.scale * a.y.scale))
    return encode(a.out, product(decode(a.x, left), decode(a.y, right)))


def batch_integers(a: Bound, x: Array, y: Array) -> Array:
    """As `batch_matmul`, for exact numerics."""
    both = (rows_of(steps(a.x, x)), a.adj_x), (rows_of(steps(a.y, y)), a.adj_y)
    left, right = (m.swapaxes(-1, -2) if adjoint else m for m, adjoint in both)
    sums = (left.astype(np.float64) @ right.astype(np.float64)).astype(np.int64)
    return stored(a, rescaled(sums, single(a.x.scale * a.y.scale) / a.out.scale))


register(
    Op(
        "FULLY_CONNECTED",
        TYPES,
        (
            Form(
                arg("input", T, rank=(2, 4)),
                arg("weights", T, "num_units input_size", drawn=filter_of(0, "weights")),
                arg("bias", BIAS, "num_units", drawn=bias_of("weights")),
                arg("activation", Activation),
            ),
        ),
        (out("output", T, "batch_size num_units"),),
        weighted(fully_connected),
        (nonzero("num_units input_size"), bias_scale, output_scale),
        where={"batch_size": batch_size},
        flat=True,
        integer=weighted_integers(fully_connected, single=True),
        sized={"input_size": lambda d: d.pick(*divisors(math.prod(d["input"].known)))},
        sums="products",
        cost="fully_connected",
        doc="Multiplies each row of input_size elements by the transposed weights.",
        example=example([[21, 37]], input=[[1, 2]], weights=[[3, 4], [5, 6]], bias=[10, 20]),
    ),
    Op(
        "BATCH_MATMUL",
        {F32: FL6, F16: FL6, Q8S: FL6, I32: FL6},
        (
            Form(
                arg("x", T, rank=(2, 4)),
                arg("y", T, rank=(2, 4), drawn=fitting),
                arg("adj_x", BOOL, default=False, doc="transpose the matrices of x"),
                arg("adj_y", BOOL, default=False, doc="transpose the matrices of y"),
            ),
        ),
        (out("output", T),),
        batch_matmul,
        (same_batches,),
        product_shape,
        sums="products",
        integer=quantised(batch_integers, batch_matmul),
        cost="batch_matmul",
        doc="Products of the matrices in the last two dimensions.",
        example=example([[17], [39]], x=[[1, 2], [3, 4]], y=[[5], [6]]),
    ),
)
