"""RESHAPE, SQUEEZE, EXPAND_DIMS, TRANSPOSE, RANK: the same elements in another shape, and the number of dimensions."""

import math

import numpy as np

from nnhal.base.codes import LIMIT_RANK
from nnhal.base.levels import FL6, FL8, V1_0, V1_1, V1_2, V1_3
from nnhal.base.operands import TENSOR_TYPES, Array, Shape
from nnhal.ops.common import axis_of
from nnhal.ops.order import removes_axes, reshapes_to
from nnhal.ops.ranges import Draw, axis_range, factors, sometimes
from nnhal.ops.schema import (
    F16,
    F32,
    I32,
    INT32,
    Q8,
    Q8S,
    SAME,
    Bound,
    Form,
    Op,
    T,
    arg,
    example,
    out,
    register,
)

OUT = (out("output", T, quant=SAME),)


def of_size_one(d: Draw) -> list[int] | None:
    """Range: some of the dimensions of size 1, counted from either end; or nothing."""
    dims = d["input"].known
    found = [i - d.pick(0, len(dims)) for i, n in enumerate(dims) if n == 1 and d.rng.random() < 0.7]
    return found or None


order = sometimes(lambda d: d.rng.permutation(d["input"].rank))
ANY, SMALL = arg("input", T), arg("input", T, rank=(1, 4))
FIRST = {F32: V1_0, F16: V1_2, Q8: V1_0, Q8S: V1_3}
SECOND = {F32: V1_1, F16: V1_2, Q8: V1_1, Q8S: V1_3}
THIRD = {F32: V1_2, F16: V1_2, I32: V1_2, Q8: V1_2, Q8S: V1_3}
MOST_DIMENSIONS = 4
RANKED = [t for t in TENSOR_TYPES if t < 10000]  # all but the OEM's


def reshaped(a: Bound) -> list[Shape]:
    """Shape rule: the elements of shape; one may be -1, which keeps the number of elements and is unknown if that is."""
    rank = a.shape.array.size
    a.require(rank <= LIMIT_RANK, f"shape has {rank} elements, must have at most {LIMIT_RANK}")
    wanted = [int(n) for n in a.shape.array]
    a.require(wanted.count(-1) <= 1 and all(n >= -1 for n in wanted), f"shape = {wanted}, must have at most one -1")
    if a.input.shape is None or None in a.input.dims:
        return [tuple(None if n == -1 else n for n in wanted)]
    total = math.prod(a.input.known)
    if -1 in wanted:
        rest = math.prod([n for n in wanted if n != -1])
        a.require(rest > 0 and total % rest == 0, f"shape = {wanted} cannot hold {total} elements")
        wanted[wanted.index(-1)] = total // rest
    a.require(math.prod(wanted) == total, f"shape = {wanted} holds {math.prod(wanted)} elements, must hold {total}")
    return [tuple(wanted)]


def few_dimensions(a: Bound) -> None:
    """NNAPI has up to four dimensions; more, which imported models have, need feature level 8."""
    if max(a.input.rank, *a.shape.known) > MOST_DIMENSIONS:
        a.since(FL8, f"more than {MOST_DIMENSIONS} dimensions need a driver of {FL8}")


def shaped(a: Bound, x: Array, _: Array | None = None) -> Array:
    return x.reshape(a.shape_of_output)


def squeezed_axes(a: Bound) -> list[int]:
    dims = a.input.dims
    if a.axes is None:
        return [i for i, d in enumerate(a.input.known) if d == 1]
    axes = []
    for axis in (int(n) for n in a.axes.array):
        a.require(-len(dims) <= axis < len(dims), f"axes has {axis}, must be from {-len(dims)} to {len(dims) - 1}")
        size = dims[axis]
        a.require(size in (1, None), f"axes has {axis} of size {size}, must be of size 1")
        axes.append(axis % len(dims))
    return axes


def squeezed(a: Bound) -> list[Shape]:
    """Shape rule: the input's shape without the axes, which have size 1; if no dimension is left, [1]."""
    axes = squeezed_axes(a)
    return [tuple(d for i, d in enumerate(a.input.dims) if i not in axes) or (1,)]


def expanded(a: Bound) -> list[Shape]:
    """Shape rule: the input's shape with a 1 inserted at the axis."""
    axis = axis_of(a, "axis", a.input.rank + 1)
    dims = a.input.dims
    return [(*dims[:axis], 1, *dims[axis:])]


def permutation_of(a: Bound) -> list[int]:
    rank = a.input.rank
    if a.permutation is None:
        return list(range(rank))[::-1]
    found = [int(n) for n in a.permutation.array]
    a.require(sorted(found) == list(range(rank)), f"permutation = {found}, must hold each of 0 to {rank - 1} once")
    return found


def transposed(a: Bound) -> list[Shape]:
    """Shape rule: the dimensions of the input in the order of the permutation."""
    return [tuple(a.input.dims[i] for i in permutation_of(a))]


def rank(a: Bound, x: Array) -> Array:
    return np.array(x.ndim, np.int32)


def scalar(a: Bound) -> list[Shape]:
    """Shape rule: a scalar."""
    return [()]


register(
    Op(
        "RESHAPE",
        {**FIRST, I32: FL6},
        (Form(ANY, arg("shape", I32, "_", drawn=factors, doc="one -1 is computed from the number of elements")),),
        OUT,
        shaped,
        (few_dimensions,),
        infer=reshaped,
        reorder=reshapes_to("shape"),
        flat=True,
        cost="reshape",
        moves=True,
        doc="Returns the same elements in another shape.",
        example=example([[1, 2], [3, 4]], input=[1, 2, 3, 4], shape=[2, -1]),
    ),
    Op(
        "SQUEEZE",
        SECOND,
        (Form(SMALL, arg("axes", I32, "_", optional=True, drawn=of_size_one, doc="all of size 1 if omitted")),),
        OUT,
        shaped,
        infer=squeezed,
        reorder=removes_axes(squeezed_axes),
        cost="reshape",
        moves=True,
        doc="Removes dimensions of size 1.",
        example=example([1, 2], input=[[[1], [2]]], axes=[0, 2]),
    ),
    Op(
        "EXPAND_DIMS",
        THIRD,
        (Form(ANY, arg("axis", INT32, drawn=axis_range(beyond=1))),),
        OUT,
        shaped,
        infer=expanded,
        cost="reshape",
        moves=True,
        doc="Inserts a dimension of size 1.",
        example=example([[1, 2]], input=[1, 2], axis=0),
    ),
    Op(
        "TRANSPOSE",
        SECOND,
        (
            Form(
                SMALL,
                arg("permutation", I32, "_", optional=True, drawn=order, doc="the dimensions in reverse if omitted"),
            ),
        ),
        OUT,
        lambda a, x, _: x.transpose(permutation_of(a)),
        infer=transposed,
        cost="transpose",
        moves=True,
        doc="Permutes the dimensions.",
        example=example([[1, 3], [2, 4]], input=[[1, 2], [3, 4]], permutation=[1, 0]),
    ),
    Op(
        "RANK",
        dict.fromkeys(RANKED, V1_3),
        (Form(ANY),),
        (out("output", INT32),),
        rank,
        infer=scalar,
        cost="reshape",
        doc="The number of dimensions.",
        example=example(2, input=[[1, 2]]),
    ),
)
