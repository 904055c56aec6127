"""EQUAL, NOT_EQUAL, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL, LOGICAL_AND, LOGICAL_OR, LOGICAL_NOT, SELECT: truth values."""

from functools import partial

import numpy as np

from nnhal.base.levels import V1_2, V1_3
from nnhal.base.operands import Shape, Value
from nnhal.ops.common import broadcast_shape, elementwise
from nnhal.ops.order import each_element
from nnhal.ops.ranges import Draw, range_of
from nnhal.ops.schema import (
    B8,
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    Bound,
    Form,
    Op,
    T,
    agree,
    arg,
    args,
    example,
    out,
    register,
    show,
)

NUMBERS = {F32: V1_2, F16: V1_2, I32: V1_2, Q8: V1_2, Q8S: V1_3}
TRUTH = {B8: V1_2}
PAIR = (Form(*args("input1 input2", T)),)
OUTPUT = (out("output", TRUTH),)


def alike(a: Bound) -> list[Shape]:
    """Shape rule: the three tensors have one shape; a dimension known from one holds for all."""
    shapes = [v.dims for _, v in a.inputs if isinstance(v, Value)]
    known = shapes[0]
    for shape in shapes[1:]:
        a.require(agree(known, shape), f"shapes {', '.join(map(show, shapes))} must be equal")
        known = tuple(n if m is None else m for m, n in zip(known, shape, strict=True))
    return [known]


def condition(d: Draw) -> Value:
    """Range: one truth value for each element."""
    return d.tensor(B8, d["input1"].known)


compare = partial(
    Op, cost="add", types=NUMBERS | TRUTH, forms=PAIR, outputs=OUTPUT, infer=broadcast_shape, reorder=each_element
)
logical = partial(Op, cost="add", types=TRUTH, outputs=OUTPUT, infer=broadcast_shape, reorder=each_element)

register(
    compare(
        "EQUAL",
        kernel=elementwise(np.equal),
        doc="Whether the elements are equal.",
        example=example([False, True, False], input1=[1, 2, 3], input2=[2]),
    ),
    compare(
        "NOT_EQUAL",
        kernel=elementwise(np.not_equal),
        doc="Whether the elements differ.",
        example=example([True, False, True], input1=[1, 2, 3], input2=[2]),
    ),
    compare(
        "LESS",
        kernel=elementwise(np.less),
        doc="Whether the first element is less.",
        example=example([True, False, False], input1=[1, 2, 3], input2=[2]),
    ),
    compare(
        "LESS_EQUAL",
        kernel=elementwise(np.less_equal),
        doc="Whether the first element is not greater.",
        example=example([True, True, False], input1=[1, 2, 3], input2=[2]),
    ),
    compare(
        "GREATER",
        kernel=elementwise(np.greater),
        doc="Whether the first element is greater.",
        example=example([False, False, True], input1=[1, 2, 3], input2=[2]),
    ),
    compare(
        "GREATER_EQUAL",
        kernel=elementwise(np.greater_equal),
        doc="Whether the first element is not less.",
        example=example([False, True, True], input1=[1, 2, 3], input2=[2]),
    ),
    logical(
        "LOGICAL_AND",
        forms=PAIR,
        kernel=elementwise(np.logical_and),
        doc="Whether both are true.",
        example=example([True, False, False], input1=[True, True, False], input2=[True, False, False]),
    ),
    logical(
        "LOGICAL_OR",
        forms=PAIR,
        kernel=elementwise(np.logical_or),
        doc="Whether at least one is true.",
        example=example([True, True, False], input1=[True, True, False], input2=[True, False, False]),
    ),
    logical(
        "LOGICAL_NOT",
        forms=(Form(arg("input", T)),),
        kernel=elementwise(np.logical_not),
        cost="relu",
        doc="Whether it is false.",
        example=example([False, True], input=[True, False]),
    ),
    Op(
        "SELECT",
        NUMBERS,
        (Form(arg("condition", TRUTH, drawn=condition), arg("input1", T), arg("input2", T, drawn=range_of("input1"))),),
        (out("output", T),),
        elementwise(np.where),
        infer=alike,
        cost="add",
        moves=True,
        doc="The element of the first tensor if the condition is true, else of the second.",
        example=example([1, 4], condition=[True, False], input1=[1, 2], input2=[3, 4]),
    ),
)
