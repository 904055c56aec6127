"""ADD, SUB, MUL, DIV, POW, MAXIMUM, MINIMUM, PRELU: two tensors, element by element, broadcast against each other."""

from functools import partial

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.levels import V1_0, V1_1, V1_2, V1_3
from nnhal.base.operands import Array
from nnhal.ops.common import broadcast_shape, elementwise, real
from nnhal.ops.schema import F16, F32, I32, Q8, Q8S, Bound, Form, Op, T, arg, args, out, register

WITH_ACTIVATION = (Form(*args("input1 input2", T, rank=(1, 4)), arg("activation", Activation)),)
PAIR = (Form(*args("input1 input2", T)),)
FLOAT = {F32: V1_2, F16: V1_2}
QUANT = {Q8: V1_2, Q8S: V1_3}


def integers_keep_their_range(a: Bound) -> None:
    activation = a.activation
    a.require(
        a.T != I32 or activation == Activation.NONE,
        f"activation = {int(activation)} ({activation.name}), must be 0 (NONE) for {I32.name}",
    )


def products_fit(a: Bound) -> None:
    if a.out.quantised:
        least = np.float32(a.input1.scale) * np.float32(a.input2.scale)
        a.require(
            np.float32(a.out.scale) > least,
            f"output 0 (output) has scale {a.out.scale:g}, must be greater than {least:g}, the product of the inputs'",
        )


def div(a: Bound, x: Array, y: Array) -> Array:
    """Integers are divided towards minus infinity; by 0 is undefined by the definition: here it gives 0."""
    if a.T != I32:
        return x / y
    return np.where(y == 0, 0, x.astype(np.int64) // np.where(y == 0, 1, y))


def prelu(x: Array, alpha: Array) -> Array:
    return np.where(x < 0, alpha * x, x)


binary = partial(Op, outputs=(out("output", T),), infer=broadcast_shape)
fused = partial(binary, forms=WITH_ACTIVATION, checks=(integers_keep_their_range,))

register(
    fused("ADD", {F32: V1_0, F16: V1_2, Q8: V1_0, Q8S: V1_3, I32: V1_3}, kernel=elementwise(np.add), doc="Sum."),
    fused(
        "SUB",
        {F32: V1_1, F16: V1_2, Q8: V1_2, Q8S: V1_3, I32: V1_3},
        kernel=elementwise(np.subtract),
        doc="Difference.",
    ),
    fused(
        "MUL",
        {F32: V1_0, F16: V1_2, Q8: V1_0, Q8S: V1_3, I32: V1_3},
        kernel=elementwise(np.multiply),
        checks=(integers_keep_their_range, products_fit),
        doc="Product.",
    ),
    fused("DIV", {F32: V1_1, F16: V1_2, I32: V1_3}, kernel=real(div), doc="Quotient; of integers, rounded down."),
    binary(
        "POW",
        FLOAT,
        (Form(*args("base exponent", T)),),
        kernel=elementwise(np.power),
        doc="The first tensor to the power of the second.",
    ),
    binary("MAXIMUM", FLOAT | QUANT | {I32: V1_2}, PAIR, kernel=elementwise(np.maximum), doc="The greater element."),
    binary("MINIMUM", FLOAT | QUANT | {I32: V1_2}, PAIR, kernel=elementwise(np.minimum), doc="The lesser element."),
    binary(
        "PRELU",
        FLOAT | QUANT,
        (Form(*args("input alpha", T)),),
        kernel=elementwise(prelu),
        doc="What is below 0 times alpha, the rest as it is.",
    ),
)
