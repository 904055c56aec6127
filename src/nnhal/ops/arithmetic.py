"""ADD, SUB, MUL, DIV, POW, MAXIMUM, MINIMUM, PRELU: two tensors, elementwise, with broadcasting."""

from functools import partial
from typing import Any

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.levels import V1_0, V1_1, V1_2, V1_3
from nnhal.base.operands import Array
from nnhal.ops import integer
from nnhal.ops.common import broadcast_shape, elementwise, real, single
from nnhal.ops.order import each_element
from nnhal.ops.ranges import Draw
from nnhal.ops.schema import F16, F32, I32, Q8, Q8S, Bound, Form, Op, T, arg, args, example, out, register

WITH_ACTIVATION = (Form(*args("input1 input2", T, rank=(1, 4)), arg("activation", Activation)),)
PAIR = (Form(*args("input1 input2", T)),)
FLOAT = {F32: V1_2, F16: V1_2}
QUANT = {Q8: V1_2, Q8S: V1_3}


def integers_keep_their_range(a: Bound) -> None:
    """Integers have no activation."""
    activation = a.activation
    a.require(
        a.T != I32 or activation == Activation.NONE,
        f"activation = {int(activation)} ({activation.name}), must be 0 (NONE) for {I32.name}",
    )


def products_fit(a: Bound) -> None:
    """A quantised output's scale is greater than the product of the inputs'."""
    if a.out.quantised:
        least = single(a.input1.scale * a.input2.scale)
        a.require(
            single(a.out.scale) > least,
            f"output 0 (output) has scale {a.out.scale:g}, must be greater than {least:g}, the product of the inputs'",
        )


def div(a: Bound, x: Array, y: Array) -> Array:
    """Round quotients of integers towards minus infinity. Division by 0 is undefined; here it returns 0."""
    if a.T != I32:
        return x / y
    return np.where(y == 0, 0, x.astype(np.int64) // np.where(y == 0, 1, y))


def by_zero(a: Bound, x: Array, y: Array) -> Any:
    """Open: Integers divided by 0."""
    return (y == 0) & (a.T == I32)


def product(a: Bound, x: Array, y: Array) -> Array:
    """Multiply, in float64 if quantised.

    With extreme scales, real values leave float32's range before they are scaled back.
    """
    return np.multiply(x, y, dtype=np.float64 if a.out.quantised else x.dtype)


def power(base: Array, exponent: Array) -> Array:
    """Expand a single exponent of 0.5: for that, numpy uses the root, which is NaN at minus infinity."""
    every = np.broadcast_shapes(base.shape, exponent.shape)
    return np.power(base, np.array(np.broadcast_to(exponent, every)) if (exponent == 0.5).any() else exponent)


def prelu(x: Array, alpha: Array) -> Array:
    return np.where(x < 0, alpha * x, x)


def above_product(d: Draw) -> tuple[float, int]:
    """Range: an output scale slightly or much greater than the product of the inputs'."""
    product = d["input1"].scale * d["input2"].scale
    scale, zero = d.quantisation(d.kind)
    return float(np.float32(np.clip(max(product * 1.001, scale * product ** d.pick(0, 1)), 1e-44, 3e38))), zero


binary = partial(Op, cost="add", outputs=(out("output", T),), infer=broadcast_shape, reorder=each_element)
fused = partial(binary, forms=WITH_ACTIVATION, checks=(integers_keep_their_range,))

register(
    fused(
        "ADD",
        {F32: V1_0, F16: V1_2, Q8: V1_0, Q8S: V1_3, I32: V1_3},
        kernel=elementwise(np.add),
        integer=integer.quantised(integer.summed(np.add, cut=True), elementwise(np.add)),
        doc="Sum.",
        example=example([[11, 22], [13, 24]], input1=[[1, 2], [3, 4]], input2=[10, 20]),
    ),
    fused(
        "SUB",
        {F32: V1_1, F16: V1_2, Q8: V1_2, Q8S: V1_3, I32: V1_3},
        kernel=elementwise(np.subtract),
        integer=integer.quantised(integer.summed(np.subtract), elementwise(np.subtract)),
        doc="Difference.",
        example=example([3, 0], input1=[5, 7], input2=[2, 9], activation="relu"),
    ),
    fused(
        "MUL",
        {F32: V1_0, F16: V1_2, Q8: V1_0, Q8S: V1_3, I32: V1_3},
        kernel=real(product),
        integer=integer.quantised(integer.product, real(product)),
        checks=(integers_keep_their_range, products_fit),
        scaled={"output": above_product},
        doc="Product.",
        example=example([[10, 200], [30, 400]], input1=[[1, 2], [3, 4]], input2=[10, 100]),
    ),
    fused(
        "DIV",
        {F32: V1_1, F16: V1_2, I32: V1_3},
        kernel=real(div),
        leaves_open=by_zero,
        doc="Quotient; of integers, rounded down.",
        example=example([3.5, -1.5], input1=[7, -6], input2=[2, 4]),
    ),
    binary(
        "POW",
        FLOAT,
        (Form(*args("base exponent", T)),),
        kernel=elementwise(power),
        doc="The first tensor to the power of the second.",
        example=example([8, 9], base=[2, 3], exponent=[3, 2]),
    ),
    binary(
        "MAXIMUM",
        FLOAT | QUANT | {I32: V1_2},
        PAIR,
        kernel=elementwise(np.maximum),
        moves=True,
        doc="The greater element; NaN if either is NaN.",
        example=example([3, 5], input1=[1, 5], input2=[3, 3]),
    ),
    binary(
        "MINIMUM",
        FLOAT | QUANT | {I32: V1_2},
        PAIR,
        kernel=elementwise(np.minimum),
        moves=True,
        doc="The lesser element; NaN if either is NaN.",
        example=example([1, 3], input1=[1, 5], input2=[3, 3]),
    ),
    binary(
        "PRELU",
        FLOAT | QUANT,
        (Form(*args("input alpha", T)),),
        kernel=elementwise(prelu),
        integer=integer.quantised(integer.prelu, elementwise(prelu)),
        doc="Multiplies elements below 0 by alpha; others are unchanged.",
        example=example([-1, 3], input=[-2, 3], alpha=[0.5, 0.5]),
    ),
)
