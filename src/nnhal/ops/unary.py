"""ABS, NEG, EXP, LOG, SQRT, RSQRT, SIN, FLOOR: elementwise functions of one tensor."""

from functools import partial

import numpy as np

from nnhal.base.levels import FL7, V1_0, V1_2, V1_3
from nnhal.base.operands import Array
from nnhal.ops.common import elementwise, real
from nnhal.ops.order import each_element
from nnhal.ops.schema import F16, F32, I32, Q8, Q8S, Bound, Form, Op, T, arg, example, out, register

FLOAT = {F32: V1_2, F16: V1_2}


def rsqrt(a: Bound, x: Array) -> Array:
    """Return the greatest value below 0, as for 0: no quantised value represents NaN."""
    return 1 / np.sqrt(np.maximum(x, 0) if a.input.quantised else x)


unary = partial(Op, cost="logistic", forms=(Form(arg("input", T)),), outputs=(out("output", T),), reorder=each_element)

register(
    unary(
        "ABS",
        FLOAT | {I32: V1_3},
        kernel=elementwise(np.absolute),
        cost="relu",
        moves=True,
        nonnegative=True,
        doc="Absolute value.",
        example=example([1, 2], input=[-1, 2]),
    ),
    unary(
        "NEG",
        FLOAT | {I32: V1_2},
        kernel=elementwise(np.negative),
        cost="relu",
        moves=True,
        doc="Negative value.",
        example=example([1, -2], input=[-1, 2]),
    ),
    unary(
        "EXP",
        FLOAT,
        kernel=elementwise(np.exp),
        nonnegative=True,
        doc="e to the power of the element.",
        example=example([1, 2.718282], input=[0, 1]),
    ),
    unary(
        "LOG", FLOAT, kernel=elementwise(np.log), doc="Natural logarithm.", example=example([0, 1], input=[1, 2.718282])
    ),
    unary(
        "SQRT",
        FLOAT,
        kernel=elementwise(np.sqrt),
        nonnegative=True,
        doc="Square root.",
        example=example([2, 3], input=[4, 9]),
    ),
    unary(
        "RSQRT",
        FLOAT | {Q8: FL7, Q8S: FL7},
        kernel=real(rsqrt),
        doc="Reciprocal of the square root.",
        example=example([0.5, 2], input=[4, 0.25]),
    ),
    unary(
        "SIN",
        FLOAT,
        kernel=elementwise(np.sin),
        doc="Sine of an angle in radians.",
        example=example([0, 1], input=[0, 1.570796]),
    ),
    unary(
        "FLOOR",
        {F32: V1_0, F16: V1_2},
        forms=(Form(arg("input", T, rank=(1, 4))),),
        kernel=elementwise(np.floor),
        cost="relu",
        jumps=True,
        doc="The greatest integer that is not greater.",
        example=example([-2, 2], input=[-1.5, 2.7]),
    ),
)
