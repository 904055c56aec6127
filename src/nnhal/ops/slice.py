"""SLICE, STRIDED_SLICE, GATHER, TILE, REVERSE, TOPK_V2: elements picked by position or by size."""

import numpy as np

from nnhal.base.levels import FL7, V1_1, V1_2, V1_3
from nnhal.base.operands import Array, Shape
from nnhal.ops.common import axis_of, indices_within
from nnhal.ops.order import by_axis, each_dimension
from nnhal.ops.ranges import Draw, axis_range
from nnhal.ops.schema import F16, F32, I32, INT32, Q8, Q8S, SAME, Bound, Form, Op, T, arg, args, example, out, register

OUT = (out("output", T, quant=SAME),)
ANY, SMALL = arg("input", T), arg("input", T, rank=(1, 4))
MOST_PICKED = 300  # elements that a drawn TOPK_V2 returns
ANYWHERE = 0.1  # the share of drawn beginnings and ends that may be any
MOVED = {F32: V1_2, F16: V1_2, I32: V1_2, Q8: V1_2, Q8S: V1_3}


def begins(d: Draw) -> list[int]:
    """Range: beginnings of a slice."""
    return [int(d.whole(0, n)) for n in d["input"].known]


def lengths(d: Draw) -> list[int]:
    """Range: lengths of a slice; -1 for all remaining elements."""
    left = (n - b for n, b in zip(d["input"].known, d["begin"].array.tolist(), strict=True))
    return [d.pick(-1, n, int(d.whole(0, n))) for n in left]


def starts(d: Draw) -> list[int]:
    """Range: beginnings of a strided slice, counted from either end; some before or after the elements."""
    return [_place(d, int(d.whole(0, max(0, n - 1))), n) for n in d["input"].known]


def stops(d: Draw) -> list[int]:
    """Range: ends of a strided slice, mostly beyond its beginning: one element, or some; where it shrinks, one."""
    found = []
    for i, (n, start, step) in enumerate(
        zip(d["input"].known, *(d[each].array.tolist() for each in ("begin", "strides")), strict=True)
    ):
        first = range(*slice(start, None, step).indices(n))
        if not first:
            found.append(int(d.whole(-n - 1, n + 1)))
            continue
        count = 1 if d["shrink_mask"] >> i & 1 else int(d.whole(1, len(first)))
        end = first[count - 1] + (1 if step > 0 else -1)
        found.append(-n - 1 if end < 0 else _place(d, end, n))
    return found


def _place(d: Draw, place: int, size: int) -> int:
    """Return a place as it is, or counted from the end; few are any, also before or after the elements."""
    if d.rng.random() < ANYWHERE:
        return int(d.whole(-size - 1, size + 1))
    return int(d.pick(place, place - size)) if place < size else place


def steps(d: Draw) -> list[int]:
    """Range: strides in both directions."""
    return [d.pick(1, 2, 3, -1, -2) for _ in d["input"].known]


def mask(d: Draw) -> int:
    """Range: a bit for each dimension, mostly none."""
    return int(d.whole(0, 2 ** d["input"].rank - 1)) if d.rng.random() < 0.5 else 0


def indices(d: Draw) -> Array:
    """Range: indices along the axis, in a tensor of any rank."""
    size = d["input"].known[d["axis"]]
    shape = [int(n) for n in d.whole(1, 3, d.pick(1, 1, 2))]
    found: Array = d.whole(0, size - 1, shape) if size else np.zeros(0, np.int32)
    return found


def top_count(d: Draw) -> int:
    """Range: up to the last dimension, and few enough for engines that select one after another."""
    return int(d.whole(1, min(MOST_PICKED, max(1, d["input"].known[-1]))))


def sliced(a: Bound) -> list[Shape]:
    """Shape rule: size, which is within the input from begin on; -1 is all remaining elements."""
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


def block(a: Bound, x: Array, begin: Array, _: Array) -> Array:
    return x[tuple(slice(b, b + n) for b, n in zip(begin.tolist(), a.shape_of_output, strict=True))]


def strided(a: Bound) -> list[slice]:
    """Return the slice of each dimension by begin, end, strides and the masks."""
    rank = a.input.rank
    rows = [value.array.tolist() for value in (a.begin, a.end, a.strides)]
    a.require(all(len(row) == rank for row in rows), f"begin, end and strides must have {rank} elements each")
    found = []
    for i, (b, e, s) in enumerate(zip(*rows, strict=True)):
        a.require(s != 0, f"strides[{i}] = 0, must not be 0")
        found.append(slice(None if a.begin_mask >> i & 1 else b, None if a.end_mask >> i & 1 else e, s))
    return found


def strided_shape(a: Bound) -> list[Shape]:
    """Shape rule: the size of each slice; a dimension that shrinks has size 1 and is removed; if all are, [1]."""
    shape = []
    for i, (part, d) in enumerate(zip(strided(a), a.input.dims, strict=True)):
        count = None if d is None else len(range(*part.indices(d)))
        if a.shrink_mask >> i & 1:
            a.require(part.step > 0, f"strides[{i}] = {part.step}, must be above 0 if the dimension shrinks")
            a.require(count in (1, None), f"dimension {i} shrinks and has a slice of {count}, must have one of 1")
        else:
            shape.append(count)
    return [tuple(shape) or (1,)]


def stepped(a: Bound, x: Array, *_: Array) -> Array:
    return x[tuple(strided(a))].reshape(a.shape_of_output)


def gathered(a: Bound) -> list[Shape]:
    """Shape rule: the input's shape, with the shape of the indices instead of the axis."""
    axis = axis_of(a, "axis", a.input.rank)
    return [(*a.input.dims[:axis], *a.indices.dims, *a.input.dims[axis + 1 :])]


def require_indices_within(a: Bound) -> None:
    """Indices lie within the axis."""
    indices_within(a, "indices", a.input.known[axis_of(a, "axis", a.input.rank)])


def tiled(a: Bound) -> list[Shape]:
    """Shape rule: each dimension times its multiple, at least 1; the rank does not change."""
    if a.multiples.data is None:
        return [(None,) * a.input.rank]
    times = a.multiples.array.tolist()
    a.require(len(times) == a.input.rank, f"multiples has {len(times)} elements, must have {a.input.rank}")
    a.require(all(n >= 1 for n in times), f"multiples = {times}, must be at least 1")
    return [tuple(None if d is None else d * n for d, n in zip(a.input.dims, times, strict=True))]


def axis_to_reverse(a: Bound) -> None:
    """The axis is a dimension, counted from the front."""
    (axis,) = a.axis.array.tolist()
    a.require(0 <= axis < a.input.rank, f"axis = {axis}, must be from 0 to {a.input.rank - 1}")


def top_shapes(a: Bound) -> list[Shape]:
    """Shape rule: the input's shape with k instead of the last dimension, at most as large."""
    dims = a.input.dims
    size = dims[-1]
    a.require(size is None or a.k <= size, f"k = {a.k}, must be at most the last dimension, {size}")
    best = (*dims[:-1], a.k)
    return [best, best]


def top(a: Bound, x: Array) -> tuple[Array, Array]:
    """Of equal values the one with the larger index is first; NaN counts as minus infinity."""
    order = np.argsort(np.where(np.isnan(x), -np.inf, x), -1, kind="stable")[..., ::-1][..., : a.k]
    return np.take_along_axis(x, order, -1), order.astype(np.int32)


register(
    Op(
        "SLICE",
        MOVED,
        (
            Form(
                ANY,
                arg("begin", I32, "_", drawn=begins),
                arg("size", I32, "_", drawn=lengths, doc="-1: all remaining elements"),
            ),
        ),
        OUT,
        block,
        infer=sliced,
        reorder=each_dimension("begin", "size"),
        cost="pad",
        moves=True,
        doc="Picks a block of a tensor.",
        example=example([2, 3], input=[1, 2, 3], begin=[1], size=[-1]),
    ),
    Op(
        "STRIDED_SLICE",
        {F32: V1_1, F16: V1_2, Q8: V1_1, Q8S: V1_3},
        (
            Form(
                SMALL,
                arg("begin", I32, "_", drawn=starts),
                arg("end", I32, "_", drawn=stops),
                arg("strides", I32, "_", drawn=steps),
                *args("begin_mask end_mask shrink_mask", INT32, drawn=mask),
            ),
        ),
        OUT,
        stepped,
        infer=strided_shape,
        reorder=each_dimension(
            "begin", "end", "strides", masks=("begin_mask", "end_mask", "shrink_mask"), shrinking="shrink_mask"
        ),
        cost="pad",
        moves=True,
        doc="Picks a block of a tensor with strides; bits of the masks select ignored begins and ends, and removed axes.",
        example=example(
            [3, 1], input=[1, 2, 3], begin=[-1], end=[0], strides=[-2], begin_mask=0, end_mask=1, shrink_mask=0
        ),
    ),
    Op(
        "GATHER",
        MOVED,
        (Form(ANY, arg("axis", INT32, drawn=axis_range()), arg("indices", I32, drawn=indices)),),
        OUT,
        lambda a, x, i: x.take(i, a.axis),
        (require_indices_within,),
        infer=gathered,
        cost="pad",
        moves=True,
        doc="Picks slices by index along an axis.",
        example=example([30, 10], input=[10, 20, 30], axis=0, indices=[2, 0]),
    ),
    Op(
        "TILE",
        MOVED,
        (Form(ANY, arg("multiples", I32, "_", drawn=lambda d: d.whole(1, 3, d["input"].rank))),),
        OUT,
        lambda a, x, m: np.tile(x, m),
        infer=tiled,
        reorder=each_dimension("multiples"),
        cost="pad",
        moves=True,
        doc="Repeats a tensor along its axes.",
        example=example([1, 2, 1, 2], input=[1, 2], multiples=[2]),
    ),
    Op(
        "REVERSE",
        dict.fromkeys((F32, F16, I32, Q8, Q8S), FL7),
        (
            Form(
                arg("input", T, rank=(1, 8)), arg("axis", I32, "1", drawn=lambda d: [axis_range(counted_back=False)(d)])
            ),
        ),
        OUT,
        lambda a, x, axis: np.flip(x, int(axis[0])),
        (axis_to_reverse,),
        reorder=by_axis("axis"),
        cost="transpose",
        moves=True,
        doc="Reverses the order along an axis.",
        example=example([3, 2, 1], input=[1, 2, 3], axis=[0]),
    ),
    Op(
        "TOPK_V2",
        MOVED,
        (Form(ANY, arg("k", INT32, at_least=1, drawn=top_count)),),
        (out("values", T, quant=SAME), out("indices", {I32: V1_2})),
        top,
        infer=top_shapes,
        moves=True,
        cost="topk",
        doc="Returns the k greatest elements along the last axis, and their indices; of equal ones the last is first, and "
        "NaN counts as minus infinity.",
        example=example(([30, 20], [1, 2]), input=[10, 30, 20], k=2),
    ),
)
