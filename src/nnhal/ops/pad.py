"""PAD, PAD_V2, MIRROR_PAD: elements added around a tensor."""

import numpy as np

from nnhal.base.codes import MirrorPad
from nnhal.base.levels import FL7, V1_1, V1_2, V1_3
from nnhal.base.operands import Array, Shape
from nnhal.base.records import replace
from nnhal.ops.common import padded_with_zero
from nnhal.ops.order import each_dimension
from nnhal.ops.ranges import Draw, element, leading
from nnhal.ops.schema import (
    F16,
    F32,
    FLOAT16,
    FLOAT32,
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
    per,
    register,
)

OUT = (out("output", T, quant=SAME),)


def within_reach(d: Draw) -> list[list[int]]:
    """Range: at most as many elements as there are to mirror."""
    reach = 1 if d["mode"] == MirrorPad.REFLECT else 0
    return [d.whole(0, max(0, n - reach), 2).tolist() for n in d["input"].known]


SMALL = arg("input", T, rank=(1, 4))
PADDINGS = arg("paddings", I32, "_ 2", drawn=leading("input", 3), doc="elements before and after, for each dimension")
VALUE = per({F32: FLOAT32, F16: FLOAT16, Q8: INT32, Q8S: INT32})


def row_a_dimension(a: Bound) -> None:
    """The paddings have a row for each dimension."""
    rows, rank = a.paddings.dims[0], a.input.rank
    a.require(rows in (None, rank), f"paddings has {rows} rows, must have {rank}, one per dimension")


def widths(a: Bound) -> list[tuple[int, int]]:
    found = a.paddings.array.reshape(-1, 2).tolist()
    a.require(all(n >= 0 for row in found for n in row), f"paddings = {found}, must be at least 0")
    return [(int(m), int(n)) for m, n in found]


def padded(a: Bound) -> list[Shape]:
    """Shape rule: each dimension plus the elements before and after it."""
    return [tuple(None if d is None else d + sum(w) for d, w in zip(a.input.dims, widths(a), strict=True))]


def pad(a: Bound, x: Array, _: Array) -> Array:
    return np.pad(x, widths(a), constant_values=a.input.zero_point)


def pad_value(a: Bound, x: Array, _: Array) -> Array:
    return np.pad(x, widths(a), constant_values=np.asarray(a.value).astype(x.dtype))


def fits(a: Bound) -> None:
    """A quantised value lies in the range of its type."""
    if a.input.quantised:
        limits = np.iinfo(a.input.dtype)
        a.require(limits.min <= a.value <= limits.max, f"value = {a.value}, must be {limits.min} to {limits.max}")


def mirrored(a: Bound) -> None:
    """The padding is at most what can be mirrored: REFLECT does not repeat the edge."""
    reach = 1 if a.mode == MirrorPad.REFLECT else 0
    for d, w in zip(a.input.dims, widths(a), strict=True):
        if d is not None:
            a.require(max(w) <= d - reach, f"paddings has {w} for a dimension of {d}, must be at most {d - reach}")


def mirror(a: Bound, x: Array, _: Array) -> Array:
    return np.pad(x, widths(a), mode="reflect" if a.mode == MirrorPad.REFLECT else "symmetric")


register(
    Op(
        "PAD",
        {F32: V1_1, F16: V1_2, Q8: V1_1, Q8S: V1_3},
        (Form(SMALL, PADDINGS),),
        OUT,
        pad,
        (row_a_dimension, padded_with_zero),
        infer=padded,
        reorder=each_dimension("paddings"),
        cost="pad",
        moves=True,
        doc="Pads a tensor with zeros.",
        example=example([0, 1, 2, 0, 0], input=[1, 2], paddings=[[1, 2]]),
    ),
    Op(
        "PAD_V2",
        {F32: V1_2, F16: V1_2, Q8: V1_2, Q8S: V1_3},
        (Form(SMALL, PADDINGS, arg("value", VALUE, drawn=element, doc="as stored")),),
        OUT,
        pad_value,
        (row_a_dimension, fits),
        infer=padded,
        reorder=each_dimension("paddings"),
        cost="pad",
        moves=True,
        doc="Pads a tensor with a value.",
        example=example([9, 1, 2], input=[1, 2], paddings=[[1, 0]], value=9),
    ),
    Op(
        "MIRROR_PAD",
        dict.fromkeys((F32, F16, I32, Q8, Q8S), FL7),
        (Form(arg("input", T), replace(PADDINGS, drawn=within_reach), arg("mode", MirrorPad)),),
        OUT,
        mirror,
        (row_a_dimension, mirrored),
        infer=padded,
        reorder=each_dimension("paddings"),
        cost="pad",
        moves=True,
        doc="Pads a tensor with its mirror image.",
        example=example([3, 2, 1, 2, 3], input=[1, 2, 3], paddings=[[2, 0]], mode="reflect"),
    ),
)
