"""Movement of data: reshaping, joining, padding, slicing, blocks."""

from collections.abc import Sequence

import numpy as np

from nnhal.base.codes import MirrorPad
from nnhal.base.levels import FL6, FL7, V1_0, V1_1, V1_2, V1_3
from nnhal.base.operands import Array, Shape
from nnhal.ops.common import axis_of, nhwc
from nnhal.ops.schema import (
    BOOL,
    F16,
    F32,
    FLOAT16,
    FLOAT32,
    I32,
    INT32,
    OPS,
    Q8,
    Q8S,
    SAME,
    Bound,
    Form,
    Op,
    T,
    arg,
    args,
    out,
    per,
    register,
)

MOVED = {F32: V1_0, F16: V1_2, Q8: V1_0, Q8S: V1_3}
MOVED_1 = {F32: V1_1, F16: V1_2, Q8: V1_1, Q8S: V1_3}
MOVED_2 = {F32: V1_2, F16: V1_2, I32: V1_2, Q8: V1_2, Q8S: V1_3}
OUT = (out("output", T, quant=SAME),)
x = arg("input", T)
x4 = arg("input", T, rank=(1, 4))


def count(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


# ---- reshape


def reshaped(a: Bound) -> list[Shape]:
    wanted = [int(n) for n in a.shape.array]
    a.require(wanted.count(-1) <= 1 and min(wanted, default=0) >= -1, f"shape = {wanted}, must have at most one -1")
    if -1 in wanted:
        rest = count([n for n in wanted if n != -1])
        total = count(a.input.known)
        a.require(rest > 0 and total % rest == 0, f"shape = {wanted} cannot hold {total} elements")
        wanted[wanted.index(-1)] = total // rest
    if None not in a.input.dims:
        total = count(a.input.known)
        a.require(count(wanted) == total, f"shape = {wanted} holds {count(wanted)} elements, must hold {total}")
    return [tuple(wanted)]


def reshape(a: Bound, x: Array, _: Array) -> Array:
    return np.reshape(x, a.shapes[0])


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
    axes = squeezed_axes(a)
    return [tuple(d for i, d in enumerate(a.input.dims) if i not in axes) or (1,)]


def squeeze(a: Bound, x: Array, _: Array | None) -> Array:
    return np.reshape(x, a.shapes[0])


def expanded(a: Bound) -> list[Shape]:
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
    return [tuple(a.input.dims[i] for i in permutation_of(a))]


# ---- join and split


def joined(a: Bound) -> list[Shape]:
    rank = a.inputs_[0].rank
    axis = axis_of(a, "axis", rank)
    dims: list[int | None] = list(a.inputs_[0].dims)
    sizes: list[int | None] = []
    for n, value in enumerate(a.inputs_):
        a.require(value.rank == rank, f"input {n} has rank {value.rank}, must be {rank} like the first")
        for i, d in enumerate(value.dims):
            if i != axis and d is not None:
                a.require(dims[i] in (None, d), f"input {n} has dimension {i} = {d}, must be {dims[i]}")
                dims[i] = d
        sizes.append(value.dims[axis])
    dims[axis] = None if None in sizes else sum(s for s in sizes if s is not None)
    return [tuple(dims)]


def same_scales(a: Bound) -> None:
    if a.out.quantised and any((v.scale, v.zero_point) != (a.out.scale, a.out.zero_point) for v in a.inputs_):
        a.since(V1_2, "inputs of other scales than the output's may be concatenated since 1.2")


def concatenate(a: Bound, xs: list[Array]) -> Array:
    from nnhal.ops.common import decode, encode

    scaled = [
        x
        if not v.quantised or (v.scale, v.zero_point) == (a.out.scale, a.out.zero_point)
        else encode(a.out, decode(v, x))
        for v, x in zip(a.inputs_, xs, strict=True)
    ]
    return np.concatenate(scaled, a.axis)


def packed(a: Bound) -> list[Shape]:
    axis = axis_of(a, "axis", a.values[0].rank + 1)
    dims = a.values[0].dims
    for n, value in enumerate(a.values):
        a.require(len(value.dims) == len(dims), f"value {n} has rank {value.rank}, must be {len(dims)}")
    return [(*dims[:axis], len(a.values), *dims[axis:])]


def split_shapes(a: Bound) -> list[Shape]:
    axis = axis_of(a, "axis", a.input.rank)
    a.require(len(a.outs) == a.pieces, f"gives {len(a.outs)} outputs, must give pieces = {a.pieces}")
    size = a.input.dims[axis]
    a.require(
        size is None or size % a.pieces == 0, f"dimension {axis} = {size}, must be a multiple of pieces = {a.pieces}"
    )
    dims: list[int | None] = list(a.input.dims)
    dims[axis] = None if size is None else size // a.pieces
    return [tuple(dims)] * a.pieces


# ---- pad


def widths(a: Bound) -> list[tuple[int, int]]:
    found = a.paddings.array.reshape(-1, 2).tolist()
    a.require(len(found) == a.input.rank, f"paddings has {len(found)} rows, must have {a.input.rank}, one a dimension")
    a.require(min((n for row in found for n in row), default=0) >= 0, f"paddings = {found}, must be at least 0")
    return [(int(m), int(n)) for m, n in found]


def padded(a: Bound) -> list[Shape]:
    return [tuple(None if d is None else d + sum(w) for d, w in zip(a.input.dims, widths(a), strict=True))]


def pad(a: Bound, x: Array, _: Array) -> Array:
    return np.pad(x, widths(a), constant_values=a.input.zero_point)


def zero_is_zero(a: Bound) -> None:
    if a.T == Q8 and a.input.zero_point:
        a.since(V1_2, "quantised inputs whose zero point is not 0 may be padded since 1.2")


def pad_value(a: Bound, x: Array, _: Array) -> Array:
    return np.pad(x, widths(a), constant_values=np.asarray(a.value).astype(x.dtype))


def mirrored(a: Bound) -> None:
    reach = 1 if a.mode == MirrorPad.REFLECT else 0
    for d, w in zip(a.input.known, widths(a), strict=True):
        a.require(max(w) <= d - reach, f"paddings has {w} for a dimension of {d}, must be at most {d - reach}")


def mirror(a: Bound, x: Array, _: Array) -> Array:
    return np.pad(x, widths(a), mode="reflect" if a.mode == MirrorPad.REFLECT else "symmetric")


PADDINGS = arg("paddings", I32, "_ 2")

# ---- slices


def sliced(a: Bound) -> list[Shape]:
    begin, size, dims = a.begin.array.tolist(), a.size.array.tolist(), a.input.dims
    a.require(
        len(begin) == len(size) == len(dims), f"begin and size have {len(begin)} and {len(size)}, must have {len(dims)}"
    )
    shape: list[int | None] = []
    for i, (b, s, d) in enumerate(zip(begin, size, dims, strict=True)):
        a.require(s >= -1, f"size[{i}] = {s}, must be at least -1")
        if d is None:
            shape.append(None if s == -1 else s)
            continue
        a.require(0 <= b <= d, f"begin[{i}] = {b}, must be from 0 to {d}")
        a.require(s == -1 or b + s <= d, f"begin[{i}] + size[{i}] = {b + s}, must be at most {d}")
        shape.append(d - b if s == -1 else s)
    return [tuple(shape)]


def slice_(a: Bound, x: Array, begin: Array, _: Array) -> Array:
    return x[tuple(slice(b, b + n) for b, n in zip(begin.tolist(), a.shapes[0], strict=True))]


def strided(a: Bound) -> list[tuple[slice | int, int]]:
    """For each dimension its index, and the size that results."""
    dims = a.input.known
    rows = [value.array.tolist() for value in (a.begin, a.end, a.strides)]
    a.require(all(len(r) == len(dims) for r in rows), f"begin, end and strides must have {len(dims)} elements each")
    found: list[tuple[slice | int, int]] = []
    for i, (d, b, e, s) in enumerate(zip(dims, *rows, strict=True)):
        a.require(s != 0, f"strides[{i}] = 0, must not be 0")
        if a.shrink_mask >> i & 1:
            at = 0 if a.begin_mask >> i & 1 else b
            a.require(-d <= at < d, f"begin[{i}] = {b}, must be from {-d} to {d - 1}")
            a.require(s > 0, f"strides[{i}] = {s}, must be above 0 where the dimension shrinks")
            found.append((at % d, 1))
            continue
        part = slice(None if a.begin_mask >> i & 1 else b, None if a.end_mask >> i & 1 else e, s)
        found.append((part, len(range(*part.indices(d)))))
    return found


def strided_shape(a: Bound) -> list[Shape]:
    """Where all dimensions shrink the shape is [1]."""
    return [tuple(n for part, n in strided(a) if isinstance(part, slice)) or (1,)]


def gathered(a: Bound) -> list[Shape]:
    axis = axis_of(a, "axis", a.input.rank)
    return [(*a.input.dims[:axis], *a.indices.dims, *a.input.dims[axis + 1 :])]


def within(a: Bound) -> None:
    size = a.input.known[axis_of(a, "axis", a.input.rank)]
    bad = a.indices.array[(a.indices.array < 0) | (a.indices.array >= size)]
    a.require(not bad.size, f"indices has {bad[0] if bad.size else 0}, must be from 0 to {size - 1}")


def tiled(a: Bound) -> list[Shape]:
    times = a.multiples.array.tolist()
    a.require(len(times) == a.input.rank, f"multiples has {len(times)} elements, must have {a.input.rank}")
    a.require(min(times, default=1) >= 1, f"multiples = {times}, must be at least 1")
    return [tuple(None if d is None else d * n for d, n in zip(a.input.dims, times, strict=True))]


# ---- blocks


def to_space(a: Bound, x: Array) -> Array:
    n, h, w, c = x.shape
    b = a.block
    return x.reshape(n, h, w, b, b, c // b**2).transpose(0, 1, 3, 2, 4, 5).reshape(n, h * b, w * b, c // b**2)


def to_depth(a: Bound, x: Array) -> Array:
    n, h, w, c = x.shape
    b = a.block
    return x.reshape(n, h // b, b, w // b, b, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, h // b, w // b, c * b**2)


def depth_divides(a: Bound) -> None:
    a.require(a.depth % a.block**2 == 0, f"depth = {a.depth}, must be a multiple of block squared, {a.block**2}")


def size_divides(a: Bound) -> None:
    for name in ("height", "width"):
        size = getattr(a, name)
        a.require(size % a.block == 0, f"{name} = {size}, must be a multiple of block = {a.block}")


BLOCKS = (
    arg("input", T, "batch height width depth", layout=True),
    arg("block", INT32, at_least=1),
    arg("nchw", BOOL, since=V1_2, default=False),
)
BLOCKED = (out("output", T, "batch out_h out_w out_d", layout=True, quant=SAME),)
TO_SPACE = {
    "out_h": lambda a: a.height * a.block,
    "out_w": lambda a: a.width * a.block,
    "out_d": lambda a: a.depth // a.block**2,
}
TO_DEPTH = {
    "out_h": lambda a: a.height // a.block,
    "out_w": lambda a: a.width // a.block,
    "out_d": lambda a: a.depth * a.block**2,
}
MASKS = args("begin_mask end_mask shrink_mask", INT32)
VALUE = per({F32: FLOAT32, F16: FLOAT16, Q8: INT32, Q8S: INT32})

RECORDS = (
    Op(
        "RESHAPE",
        {**MOVED, I32: FL6},
        (Form(x, arg("shape", I32, "_")),),
        OUT,
        reshape,
        infer=reshaped,
        doc="Another shape.",
    ),
    Op(
        "SQUEEZE",
        MOVED_1,
        (Form(x4, arg("axes", I32, "_", optional=True)),),
        OUT,
        squeeze,
        infer=squeezed,
        doc="Drops ones.",
    ),
    Op(
        "EXPAND_DIMS",
        MOVED_2,
        (Form(x, arg("axis", INT32)),),
        OUT,
        lambda a, x: np.reshape(x, a.shapes[0]),
        infer=expanded,
        doc="Adds a one.",
    ),
    Op(
        "TRANSPOSE",
        MOVED_1,
        (Form(x4, arg("permutation", I32, "_", optional=True)),),
        OUT,
        lambda a, x, p: x.transpose(permutation_of(a)),
        infer=transposed,
        doc="Permutes dimensions.",
    ),
    Op(
        "CONCATENATION",
        MOVED,
        (Form(arg("inputs_", T, rank=(1, 4), many=1), arg("axis", INT32)),),
        (out("output", T),),
        concatenate,
        (same_scales,),
        infer=joined,
        doc="Joins along an axis.",
    ),
    Op(
        "PACK",
        {**MOVED_2, F32: FL6, F16: FL6, I32: FL6, Q8: FL6, Q8S: FL6},
        (Form(arg("axis", INT32), arg("values", T, many=1)),),
        OUT,
        lambda a, xs: np.stack(xs, a.axis),
        infer=packed,
        doc="Stacks along a new axis.",
    ),
    Op(
        "SPLIT",
        MOVED_2,
        (Form(x, arg("axis", INT32), arg("pieces", INT32, at_least=1)),),
        (out("outputs", T, quant=SAME, many=1),),
        lambda a, x: tuple(np.split(x, a.pieces, a.axis)),
        infer=split_shapes,
        doc="Cuts into equal pieces.",
    ),
    Op("PAD", MOVED_1, (Form(x4, PADDINGS),), OUT, pad, (zero_is_zero,), infer=padded, doc="Pads with zero."),
    Op(
        "PAD_V2",
        {**MOVED_2},
        (Form(x4, PADDINGS, arg("value", VALUE)),),
        OUT,
        pad_value,
        infer=padded,
        doc="Pads with a value.",
    ),
    Op(
        "MIRROR_PAD",
        dict.fromkeys(MOVED_2, FL7),
        (Form(x, PADDINGS, arg("mode", MirrorPad)),),
        OUT,
        mirror,
        (mirrored,),
        infer=padded,
        doc="Pads with a mirror image.",
    ),
    Op(
        "SLICE",
        MOVED_2,
        (Form(x, arg("begin", I32, "_"), arg("size", I32, "_")),),
        OUT,
        slice_,
        infer=sliced,
        doc="A block.",
    ),
    Op(
        "STRIDED_SLICE",
        MOVED_1,
        (Form(x4, *args("begin end strides", I32, "_"), *MASKS),),
        OUT,
        lambda a, x, *_: x[tuple(part for part, _ in strided(a))].reshape(a.shapes[0]),
        infer=strided_shape,
        doc="A block in steps.",
    ),
    Op(
        "GATHER",
        MOVED_2,
        (Form(x, arg("axis", INT32), arg("indices", I32)),),
        OUT,
        lambda a, x, i: x.take(i, a.axis),
        (within,),
        infer=gathered,
        doc="Picks by index.",
    ),
    Op(
        "TILE",
        MOVED_2,
        (Form(x, arg("multiples", I32, "_")),),
        OUT,
        lambda a, x, m: np.tile(x, m),
        infer=tiled,
        doc="Repeats.",
    ),
    Op(
        "DEPTH_TO_SPACE",
        MOVED,
        (Form(*BLOCKS),),
        BLOCKED,
        nhwc(to_space),
        (depth_divides,),
        where=TO_SPACE,
        doc="Depth to blocks.",
    ),
    Op(
        "SPACE_TO_DEPTH",
        MOVED,
        (Form(*BLOCKS),),
        BLOCKED,
        nhwc(to_depth),
        (size_divides,),
        where=TO_DEPTH,
        doc="Blocks to depth.",
    ),
)

register(*[record for record in RECORDS if record.name not in OPS])
