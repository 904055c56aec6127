"""FILL: a tensor of one value."""

import numpy as np

from nnhal.base.codes import type_name
from nnhal.base.levels import V1_3
from nnhal.base.operands import Array, Shape
from nnhal.ops.ranges import element
from nnhal.ops.schema import F16, F32, FLOAT16, FLOAT32, I32, INT32, Bound, Form, Op, arg, example, out, register

TENSOR_OF = {FLOAT32: F32, FLOAT16: F16, INT32: I32}


def stated(a: Bound) -> list[Shape]:
    """Shape rule: the elements of shape, none of them negative."""
    shape = [int(n) for n in a.shape.array]
    a.require(shape and min(shape) >= 0, f"shape = {shape}, must hold a size for each dimension, none below 0")
    return [tuple(shape)]


def matching(a: Bound) -> None:
    """The output is the tensor type of the value's scalar type."""
    (kind,) = next(argument.spec for argument in a.form if argument.name == "value")  # type: ignore[misc]
    wanted = TENSOR_OF[kind]
    a.require(
        a.out.type == wanted, f"output 0 is {type_name(a.out.type)}, must be {wanted.name} for a {kind.name} value"
    )


def filled(a: Bound, _: Array) -> Array:
    return np.full(a.shape_of_output, a.value, a.out.dtype)


register(
    Op(
        "FILL",
        {},
        tuple(
            Form(
                arg("shape", I32, "_", drawn=lambda d: d.whole(0, 4, d.whole(1, 4))), arg("value", kind, drawn=element)
            )
            for kind in TENSOR_OF
        ),
        (out("output", dict.fromkeys(TENSOR_OF.values(), V1_3)),),
        filled,
        (matching,),
        infer=stated,
        cost="pad",
        moves=True,
        doc="Fills a tensor of the given shape with the given value.",
        example=example([7, 7], shape=[2], value=7.0),
    ),
)
