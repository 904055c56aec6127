"""ABS, NEG, EXP, LOG, SQRT, RSQRT, SIN, FLOOR: functions of one tensor, element by element."""

from functools import partial

import numpy as np

from nnhal.base.levels import FL7, V1_0, V1_2, V1_3
from nnhal.base.operands import Array
from nnhal.ops.common import elementwise, real
from nnhal.ops.schema import F16, F32, I32, Q8, Q8S, Bound, Form, Op, T, arg, out, register

FLOAT = {F32: V1_2, F16: V1_2}


def rsqrt(a: Bound, x: Array) -> Array:
    """No quantised value stands for NaN: what is below 0 gives the greatest value, as 0 does."""
    return 1 / np.sqrt(np.maximum(x, 0) if a.input.quantised else x)


unary = partial(Op, forms=(Form(arg("input", T)),), outputs=(out("output", T),))

register(
    unary("ABS", FLOAT | {I32: V1_3}, kernel=elementwise(np.absolute), doc="Absolute value."),
    unary("NEG", FLOAT | {I32: V1_2}, kernel=elementwise(np.negative), doc="Negative value."),
    unary("EXP", FLOAT, kernel=elementwise(np.exp), doc="e to the power of the element."),
    unary("LOG", FLOAT, kernel=elementwise(np.log), doc="Natural logarithm."),
    unary("SQRT", FLOAT, kernel=elementwise(np.sqrt), doc="Square root."),
    unary("RSQRT", FLOAT | {Q8: FL7, Q8S: FL7}, kernel=real(rsqrt), doc="Reciprocal of the square root."),
    unary("SIN", FLOAT, kernel=elementwise(np.sin), doc="Sine of an angle in radians."),
    unary(
        "FLOOR",
        {F32: V1_0, F16: V1_2},
        forms=(Form(arg("input", T, rank=(1, 4))),),
        kernel=elementwise(np.floor),
        doc="The greatest integer that is not greater.",
    ),
)
