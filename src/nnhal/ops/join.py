"""CONCATENATION, PACK, SPLIT: tensors joined along an axis, or divided."""

import numpy as np

from nnhal.base.levels import FL6, V1_0, V1_2, V1_3
from nnhal.base.operands import Array, Shape, Value
from nnhal.ops.common import axis_of, decode, encode
from nnhal.ops.order import by_axis
from nnhal.ops.ranges import Draw, axis_range, parts_of_axis
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
    agree,
    arg,
    example,
    out,
    register,
    show,
)

FEW = 0.85  # the share of drawn calls with few parts


def joined(a: Bound) -> list[Shape]:
    """Shape rule: the shape of the parts, which differ only along the axis; the sum of their sizes there."""
    count = a.parts[0].rank
    axis = axis_of(a, "axis", count)
    dims: list[int | None] = list(a.parts[0].dims)
    sizes: list[int | None] = []
    for n, value in enumerate(a.parts):
        a.require(value.rank == count, f"input {n} has rank {value.rank}, must be {count} like the first")
        for i, d in enumerate(value.dims):
            if i != axis and d is not None:
                a.require(dims[i] in (None, d), f"input {n} has dimension {i} = {d}, must be {dims[i]}")
                dims[i] = d
        sizes.append(value.dims[axis])
    dims[axis] = None if None in sizes else sum(s for s in sizes if s is not None)
    return [tuple(dims)]


def same_scales(a: Bound) -> None:
    """Before 1.2 all inputs have the output's scale and zero point."""
    if a.out.quantised and any((v.scale, v.zero_point) != (a.out.scale, a.out.zero_point) for v in a.parts):
        a.since(V1_2, "inputs of other scales than the output's may be concatenated since 1.2")


def concatenate(a: Bound, xs: list[Array]) -> Array:
    own = a.out.scale, a.out.zero_point
    kept = [not v.quantised or (v.scale, v.zero_point) == own for v in a.parts]
    return np.concatenate(
        [x if k else encode(a.out, decode(v, x)) for k, v, x in zip(kept, a.parts, xs, strict=True)], a.axis
    )


def rank(d: Draw) -> int:
    """Range: the number of dimensions of a call's parts."""
    return int(d.once("rank", 1, 2, 3, 4))


def along_axis(d: Draw) -> list[Value]:
    """Range: parts that differ along the axis, with one quantisation or one for each."""
    at, shape, own = d["axis"], d.whole(1, 4, rank(d)), d.quantisation(d.kind)
    return [
        d.tensor(
            d.kind,
            [d.whole(1, 4) if i == at else n for i, n in enumerate(shape)],
            own if d.once("one", True, False) else None,
        )
        for _ in range(count_of_parts(d))
    ]


def count_of_parts(d: Draw) -> int:
    """Range: mostly a few parts, sometimes more than a table or one kernel of an engine may hold."""
    return int(d.pick(1, 2, 3, 4) if d.rng.random() < FEW else d.pick(5, 6, 9, 17, 33))


def of_parts(d: Draw) -> tuple[float, int]:
    """Range: the scale of the first part, or a finer or coarser one."""
    first = d["parts"][0]
    if d.pick(True, False):
        return first.scale, first.zero_point
    return float(np.float32(np.clip(first.scale * 2.0 ** d.whole(-12, 12), 1e-45, 1e38))), d.quantisation(d.kind)[1]


def alike(d: Draw) -> list[Value]:
    """Range: parts of one shape and quantisation."""
    first = d.tensor(d.kind, d.whole(1, 4, d.whole(1, 3)))
    own = first.scale, first.zero_point
    return [first, *(d.tensor(d.kind, first.known, own) for _ in range(count_of_parts(d) - 1))]


def packed(a: Bound) -> list[Shape]:
    """Shape rule: the one shape of the parts, with their number inserted at the axis."""
    first = a.parts[0].dims
    axis = axis_of(a, "axis", len(first) + 1)
    for n, value in enumerate(a.parts):
        a.require(agree(value.dims, first), f"part {n} has shape {show(value.dims)}, must be {show(first)}")
        first = tuple(d if f is None else f for f, d in zip(first, value.dims, strict=True))
    return [(*first[:axis], len(a.parts), *first[axis:])]


def same_quantisation(a: Bound) -> None:
    """All inputs have the scale and zero point of the output."""
    own = a.out.scale, a.out.zero_point
    for n, value in enumerate(a.parts):
        a.require(
            not value.quantised or (value.scale, value.zero_point) == own,
            f"part {n} has scale {value.scale:g} and zero point {value.zero_point}, "
            f"must be those of the output, {own[0]:g} and {own[1]}",
        )


def cut_shapes(a: Bound) -> list[Shape]:
    """Shape rule: the size along the axis, a multiple of pieces, is divided by it; there are as many outputs."""
    axis = axis_of(a, "axis", a.input.rank)
    a.require(len(a.outs) == a.pieces, f"has {len(a.outs)} outputs, must have pieces = {a.pieces}")
    size = a.input.dims[axis]
    a.require(
        size is None or size % a.pieces == 0, f"dimension {axis} = {size}, must be a multiple of pieces = {a.pieces}"
    )
    dims: list[int | None] = list(a.input.dims)
    dims[axis] = None if size is None else size // a.pieces
    return [tuple(dims)] * a.pieces


MOVED = {F32: V1_2, F16: V1_2, I32: V1_2, Q8: V1_2, Q8S: V1_3}

register(
    Op(
        "CONCATENATION",
        {F32: V1_0, F16: V1_2, Q8: V1_0, Q8S: V1_3},
        (
            Form(
                arg("parts", T, rank=(1, 4), many=1, drawn=along_axis),
                arg("axis", INT32, at_least=0, drawn=lambda d: d.once("axis", *range(rank(d)))),
            ),
        ),
        (out("output", T),),
        concatenate,
        (same_scales,),
        infer=joined,
        scaled={"output": of_parts},
        reorder=by_axis("axis", "parts"),
        cost="pad",
        moves=True,
        doc="Concatenates tensors along an axis.",
        example=example([1, 2, 3], parts=[[1], [2, 3]], axis=0),
    ),
    Op(
        "PACK",
        dict.fromkeys(MOVED, FL6),
        (
            Form(
                arg("axis", INT32, at_least=0, drawn=lambda d: d.whole(0, d["parts"][0].rank)),
                arg("parts", T, many=1, drawn=alike),
            ),
        ),
        (out("output", T, quant=SAME),),
        lambda a, xs: np.stack(xs, a.axis),
        (same_quantisation,),
        infer=packed,
        cost="pad",
        moves=True,
        doc="Stacks tensors of one shape along a new axis.",
        example=example([[1, 3], [2, 4]], axis=1, parts=[[1, 2], [3, 4]]),
    ),
    Op(
        "SPLIT",
        MOVED,
        (
            Form(
                arg("input", T),
                arg("axis", INT32, drawn=axis_range()),
                arg("pieces", INT32, at_least=1, drawn=parts_of_axis),
            ),
        ),
        (out("parts", T, quant=SAME, many=1),),
        lambda a, x: tuple(np.split(x, a.pieces, a.axis)),
        infer=cut_shapes,
        counted=lambda d: d["pieces"],
        reorder=by_axis("axis"),
        cost="pad",
        moves=True,
        doc="Splits a tensor into equal pieces along an axis.",
        example=example(([1, 2], [3, 4]), input=[1, 2, 3, 4], axis=0, pieces=2, outputs=2),
    ),
)
