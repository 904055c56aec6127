"""RELU, RELU1, RELU6, TANH, LOGISTIC, ELU, HARD_SWISH: activations as separate operations."""

from functools import partial

import numpy as np

from nnhal.base.codes import Activation
from nnhal.base.levels import V1_0, V1_2, V1_3
from nnhal.base.operands import Array
from nnhal.ops import integer
from nnhal.ops.common import ACTIVATION_RANGE, elementwise, real
from nnhal.ops.order import each_element
from nnhal.ops.ranges import among
from nnhal.ops.schema import (
    F16,
    F32,
    FLOAT16,
    FLOAT32,
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
    fixed,
    out,
    per,
    register,
)

ONE = (Form(arg("input", T, rank=(1, 4))),)
FLOAT, QUANT = {F32: V1_0, F16: V1_2}, {Q8: V1_0, Q8S: V1_3}


def clip(activation: Activation) -> Kernel:
    """Make the kernel of the fused activation of the same name."""
    low, high = map(np.float32, ACTIVATION_RANGE[activation])
    return elementwise(lambda x: np.clip(x, low, high))


def logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def elu(a: Bound, x: Array) -> Array:
    """Use fmin, because an alpha of 0 times an infinite exp is NaN."""
    return np.maximum(x, 0) + np.fmin(a.alpha * np.expm1(x), 0)


def hard_swish(x: Array) -> Array:
    return x * (np.clip(x + 3, 0, 6) / 6)


limited = partial(
    Op, cost="relu", types=FLOAT | QUANT, forms=ONE, outputs=(out("output", T, quant=SAME),), reorder=each_element
)

register(
    limited(
        "RELU",
        kernel=clip(Activation.RELU),
        moves=True,
        nonnegative=True,
        doc="The element, at least 0.",
        example=example([0, 0.5, 7], input=[-2, 0.5, 7]),
    ),
    limited(
        "RELU1",
        kernel=clip(Activation.RELU1),
        moves=True,
        doc="The element, at least -1 and at most 1.",
        example=example([-1, 0.5, 1], input=[-2, 0.5, 7]),
    ),
    limited(
        "RELU6",
        kernel=clip(Activation.RELU6),
        moves=True,
        nonnegative=True,
        doc="The element, at least 0 and at most 6.",
        example=example([0, 0.5, 6], input=[-2, 0.5, 7]),
    ),
    Op(
        "TANH",
        FLOAT | {Q8: V1_2, Q8S: V1_3},
        ONE,
        (out("output", T, quant=fixed({Q8: (1 / 128, 128), Q8S: (1 / 128, 0)})),),
        elementwise(np.tanh),
        reorder=each_element,
        cost="logistic",
        doc="Hyperbolic tangent.",
        example=example([0, 0.5, 1], input=[0, 0.549306, 20]),
    ),
    Op(
        "LOGISTIC",
        FLOAT | QUANT,
        ONE,
        (out("output", T, quant=fixed({Q8: (1 / 256, 0), Q8S: (1 / 256, -128)})),),
        elementwise(logistic),
        reorder=each_element,
        cost="logistic",
        nonnegative=True,
        doc="Sigmoid: 1 / (1 + exp(-x)).",
        example=example([0.5, 0.75], input=[0, 1.098612]),
    ),
    Op(
        "ELU",
        {F32: V1_3, F16: V1_3},
        (Form(arg("input", T), arg("alpha", per({F32: FLOAT32, F16: FLOAT16}), drawn=among(1, 0, 0.5, 2))),),
        (out("output", T),),
        real(elu),
        reorder=each_element,
        cost="logistic",
        doc="max(0, x) + min(0, alpha * (exp(x) - 1)).",
        example=example([-1, 3], input=[-0.693147, 3], alpha=2),
    ),
    Op(
        "HARD_SWISH",
        {F32: V1_3, F16: V1_3, Q8: V1_3, Q8S: V1_3},
        (Form(arg("input", T)),),
        (out("output", T),),
        elementwise(hard_swish),
        integer=integer.quantised(integer.hard_swish, elementwise(hard_swish)),
        reorder=each_element,
        cost="relu",
        doc="x * max(0, min(6, x + 3)) / 6.",
        example=example([0, 0, 1.125, 4], input=[-4, 0, 1.5, 4]),
    ),
)
