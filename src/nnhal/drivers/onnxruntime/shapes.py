"""Entries of operations that move elements, pick them, repeat them or put others around them."""

import numpy as np

from nnhal.base.codes import MirrorPad
from nnhal.base.operands import Value
from nnhal.drivers.onnxruntime.graph import (
    BOOL,
    DOUBLE,
    FLOATS,
    INT32,
    INT64,
    ONNX_TYPES,
    QUANTS,
    SIGN,
    OnnxTask,
    engine_dtype,
    entry,
    zero_point,
)
from nnhal.ops.schema import B8, I32, Q8S, Q8SYMM
from nnhal.ops.slice import strided

MOVED = FLOATS | QUANTS | {I32}
ALL = 2**62  # as an end: to the last


@entry("RESHAPE", "EXPAND_DIMS", "SQUEEZE", types=MOVED)
def reshape(t: OnnxTask) -> None:
    """The output's shape says it."""
    if t.a.shapes[0] is None or None in t.a.shapes[0]:
        t.array("shape" if t.name == "RESHAPE" else "input")
    t.put(t.reshaped(t.x("input"), t.made().dims))


@entry("TRANSPOSE", types=MOVED)
def transpose(t: OnnxTask) -> None:
    """The dimensions in reverse where no order is given."""
    order = t.array("permutation").tolist() if t.places("permutation") else range(t.a.input.rank)[::-1]
    t.put(t.node("Transpose", t.x("input"), perm=[int(i) for i in order]))


def alike(t: OnnxTask, name: str) -> list[str] | None:
    """The tensors of a variadic argument as they are stored; None where their scales differ from the output's."""
    given: tuple[Value, ...] = getattr(t.a, name)
    same = all((v.scale, v.zero_point) == (t.a.out.scale, t.a.out.zero_point) for v in given)
    return [t.graph.operand(place) for place in t.places(name)] if same else None


@entry("CONCATENATION", types=MOVED)
def concatenation(t: OnnxTask) -> None:
    """Parts of other scales by their real values."""
    parts = alike(t, "parts")
    if parts is not None:
        t.put(t.node("Concat", *parts, axis=t.a.axis))
        return
    places = zip(t.places("parts"), t.a.parts, strict=True)
    t.give(t.node("Concat", *[t.graph.real(t.graph.operand(i), v, v.scale) for i, v in places], axis=t.a.axis))


@entry("PACK", types=MOVED)
def pack(t: OnnxTask) -> None:
    """Each part with a new dimension."""
    places = zip(t.places("parts"), t.a.parts, strict=True)
    axis = t.ints(t.a.axis)
    t.put(t.node("Concat", *[t.node("Unsqueeze", t.graph.operand(i), axis) for i, _ in places], axis=t.a.axis))


@entry("SPLIT", types=MOVED)
def split(t: OnnxTask) -> None:
    """Into equal pieces."""
    pieces = t.a.pieces
    size = t.a.input.known[t.a.axis] // pieces
    outputs = t.graph.nodes_of("Split", [t.x("input"), t.ints(*[size] * pieces)], pieces, axis=t.a.axis)
    for number, y in enumerate(outputs):
        t.put(y, number)


@entry("SLICE", types=MOVED)
def block(t: OnnxTask) -> None:
    """From begin on, as many as size says."""
    begin, size = t.array("begin").astype(np.int64), t.array("size").astype(np.int64)
    ends = np.where(size < 0, ALL, begin + size)
    t.put(t.node("Slice", t.x("input"), t.ints(*begin), t.ints(*ends)))


@entry("STRIDED_SLICE", types=MOVED)
def steps(t: OnnxTask) -> None:
    """In either direction; what ends before the first element is said to end far before it, what begins there is empty."""
    for name in ("begin", "end", "strides"):
        t.array(name)
    sizes = t.a.input.known
    found = [part.indices(size) for part, size in zip(strided(t.a), sizes, strict=True)]
    begins = [max(0, begin) for begin, _, _ in found]
    ends = [0 if begin < 0 else -ALL if end < 0 else end for begin, end, _ in found]
    y = t.node("Slice", t.x("input"), t.ints(*begins), t.ints(*ends), t.ints(*range(len(ends))),
               t.ints(*[step for *_, step in found]))  # fmt: skip
    t.put(t.reshaped(y, t.a.shapes[0]) if t.a.shrink_mask else y)


@entry("REVERSE", types=MOVED)
def reverse(t: OnnxTask) -> None:
    """From the last element to the first."""
    t.put(reversed_along(t, t.x("input"), int(t.array("axis")[0])))


def reversed_along(t: OnnxTask, x: str, axis: int) -> str:
    """A tensor turned round along an axis."""
    return t.node("Slice", x, t.ints(-1), t.ints(-ALL), t.ints(axis), t.ints(-1))


@entry("TILE", types=MOVED)
def tile(t: OnnxTask) -> None:
    """Repeated along each axis."""
    t.put(t.node("Tile", t.x("input"), t.ints(*t.array("multiples"))))


@entry("GATHER", "EMBEDDING_LOOKUP", types=MOVED)
def gather(t: OnnxTask) -> None:
    """What NNAPI fails on, ONNX counts from the end: indices below 0 become some that ONNX Runtime fails on."""
    source, name = ("input", "indices") if t.name == "GATHER" else ("values", "lookups")
    index = t.x(name)
    if getattr(t.a, name).data is None:
        index = t.node("Where", t.node("Less", index, t.constant(0, np.int32)), t.constant(2**31 - 1, np.int32), index)
    t.put(t.node("Gather", t.x(source), index, axis=t.a.axis if t.name == "GATHER" else 0))


@entry("HASHTABLE_LOOKUP", types=MOVED)
def lookup(t: OnnxTask) -> None:
    """Every key compared with every one that is looked up; rows without a hit are zeros as they are stored."""
    wanted, keys = t.node("Unsqueeze", t.x("lookups"), t.ints(1)), t.node("Unsqueeze", t.x("keys"), t.ints(0))
    same = t.node("Cast", t.node("Equal", wanted, keys), to=INT32)
    hits = t.node("ReduceMax", same, t.ints(1), keepdims=0)
    rows = t.node("Gather", t.x("values"), t.node("ArgMax", same, axis=1, keepdims=0), axis=0)
    there = t.node("Unsqueeze", t.node("Cast", hits, to=BOOL), t.ints(*range(1, t.a.values.rank)))
    nothing = t.constant(SIGN if t.a.values.type == Q8S else 0, engine_dtype(t.a.values))
    t.put(t.node("Where", there, rows, nothing))
    t.put(t.node("Cast", hits, to=ONNX_TYPES["u1"]), 1)


@entry("TOPK_V2", types=MOVED)
def top(t: OnnxTask) -> None:
    """Of equals the last comes first, and ONNX's the first: so it sees them turned round. NaN counts as minus infinity."""
    x, size = t.x("input"), t.a.input.known[-1]
    ranked = without_nan(t, x, -np.inf) if t.a.T in FLOATS else t.node("Cast", x, to=INT32)
    turned = reversed_along(t, ranked, t.a.input.rank - 1)
    _, place = t.graph.nodes_of("TopK", [turned, t.ints(t.a.k)], 2)
    place = t.node("Sub", t.ints(size - 1), place)
    t.put(t.node("GatherElements", x, place, axis=t.a.input.rank - 1))
    t.put(t.node("Cast", place, to=INT32), 1)


def without_nan(t: OnnxTask, x: str, instead: float) -> str:
    """Real numbers with another for NaN."""
    return t.node("Where", t.node("IsNaN", x), t.constant(instead), x)


@entry("ARGMAX", "ARGMIN", types=MOVED)
def extreme(t: OnnxTask) -> None:
    """The first among equals; NaN never wins."""
    x, kind = t.x("input"), "ArgMax" if t.name == "ARGMAX" else "ArgMin"
    if t.a.T in FLOATS:
        x = without_nan(t, x, -np.inf if t.name == "ARGMAX" else np.inf)
    y = t.node("Cast", t.node(kind, x, axis=t.a.axis, keepdims=0), to=INT32)
    t.put(t.reshaped(y, t.a.shapes[0]))


@entry("PAD", "PAD_V2", types=MOVED)
def pad(t: OnnxTask) -> None:
    """With zeros, or a value as it is stored."""
    value, kind = t.a.input, engine_dtype(t.a.input)
    fill = t.constant(zero_point(value), kind)
    if t.name == "PAD_V2":
        stored = np.asarray(t.a.value)
        fill = t.constant(stored + SIGN * (value.type == Q8S), kind)
    t.put(padded(t, t.x("input"), t.array("paddings"), fill))


def padded(t: OnnxTask, x: str, pads: np.ndarray, fill: str) -> str:
    """A tensor with as many elements before and after as the rows of `pads` say."""
    return t.node("Pad", x, t.ints(*np.asarray(pads).T.ravel()), fill)


@entry("MIRROR_PAD", types=MOVED)
def mirror(t: OnnxTask) -> None:
    """Elements are picked along each axis that grows."""
    y, mode = t.x("input"), "reflect" if t.a.mode == MirrorPad.REFLECT else "symmetric"
    for axis, (size, widths) in enumerate(zip(t.a.input.known, t.array("paddings").reshape(-1, 2), strict=True)):
        if widths.any():
            y = t.node("Gather", y, t.constant(np.pad(np.arange(size), widths, mode=mode), np.int64), axis=axis)
    t.put(y)


@entry("FILL")
def fill(t: OnnxTask) -> None:
    """One value everywhere."""
    t.put(t.node("Expand", t.x("value"), t.ints(*t.array("shape"))))


@entry("RANK", types=MOVED | {B8})
def rank(t: OnnxTask) -> None:
    """Known before."""
    t.put(t.constant(t.a.input.rank, np.int32))


# --------------------------------------------------------------------------------------------------------------- blocks


def regrouped(t: OnnxTask, x: str, cut: list[int], order: tuple[int, ...], whole: list[int]) -> str:
    """Dimensions cut into smaller ones, those put in another order and joined again."""
    return t.reshaped(t.node("Transpose", t.reshaped(x, cut), perm=order), whole)


@entry("DEPTH_TO_SPACE", "SPACE_TO_DEPTH")
def blocks_of_depth(t: OnnxTask) -> None:
    """Of pictures with their channels first."""
    a, b, x = t.a, t.a.block, t.image(t.x("input"))
    n, h, w, c = a.batch, a.height, a.width, a.depth
    if t.name == "DEPTH_TO_SPACE":
        y = regrouped(t, x, [n, b, b, c // b**2, h, w], (0, 3, 4, 1, 5, 2), [n, c // b**2, h * b, w * b])
    else:
        y = regrouped(t, x, [n, c, h // b, b, w // b, b], (0, 3, 5, 1, 2, 4), [n, c * b**2, h // b, w // b])
    t.put(t.as_given(y))


@entry("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND")
def blocks_of_batch(t: OnnxTask) -> None:
    """Of pictures with their channels first."""
    a, x, (bh, bw) = t.a, t.image(t.x("input")), t.array("blocks").tolist()
    n, h, w, c = a.batch, a.height, a.width, a.depth
    if t.name == "BATCH_TO_SPACE_ND":
        n = n // (bh * bw)
        y = regrouped(t, x, [bh, bw, n, c, h, w], (2, 3, 4, 0, 5, 1), [n, c, h * bh, w * bw])
    else:
        pads = np.concatenate([np.zeros((2, 2), np.int64), t.array("paddings")])
        x = padded(t, x, pads, t.constant(zero_point(a.input), engine_dtype(a.input)))
        h, w = (h + pads[2].sum()) // bh, (w + pads[3].sum()) // bw
        y = regrouped(t, x, [n, c, h, bh, w, bw], (3, 5, 0, 1, 2, 4), [n * bh * bw, c, h, w])
    t.put(t.as_given(y))


@entry("CHANNEL_SHUFFLE")
def shuffle(t: OnnxTask) -> None:
    """Groups and their members change places."""
    sizes, groups = t.a.input.known, t.a.groups
    axis = t.a.axis % len(sizes)
    cut = [*sizes[:axis], groups, sizes[axis] // groups, *sizes[axis + 1 :]]
    order = [*range(axis), axis + 1, axis, *range(axis + 2, len(cut))]
    t.put(regrouped(t, t.x("input"), cut, tuple(order), list(sizes)))


# ----------------------------------------------------------------------------------------------------------- reductions

REDUCED = {"REDUCE_SUM": "ReduceSum", "REDUCE_PROD": "ReduceProd", "MEAN": "ReduceMean"}
REDUCED |= {"REDUCE_MAX": "ReduceMax", "REDUCE_MIN": "ReduceMin"}


@entry(*REDUCED)
def reduce(t: OnnxTask) -> None:
    """Of real values. The greatest and least of a NaN are NaN."""
    x, axes = t.real("input"), over(t)
    y = t.node(REDUCED[t.name], x, axes, noop_with_empty_axes=1)
    if t.a.T in FLOATS and t.name in ("REDUCE_MAX", "REDUCE_MIN"):
        lost = t.node("Cast", t.node("IsNaN", x), to=INT32)
        lost = t.node("Cast", t.node("ReduceMax", lost, axes, noop_with_empty_axes=1), to=BOOL)
        y = t.node("Where", lost, t.constant(np.nan), y)
    t.give(t.reshaped(y, t.a.shapes[0]))


@entry("REDUCE_ANY", "REDUCE_ALL", types=frozenset((B8,)))
def reduce_truth(t: OnnxTask) -> None:
    """As numbers."""
    x = t.node("Cast", t.x("input"), to=INT32)
    y = t.node("ReduceMax" if t.name == "REDUCE_ANY" else "ReduceMin", x, over(t), noop_with_empty_axes=1)
    t.put(t.reshaped(t.node("Cast", y, to=BOOL), t.a.shapes[0]))


def over(t: OnnxTask) -> str:
    """The axes that are reduced."""
    return t.ints(*sorted({int(axis) % t.a.input.rank for axis in t.array("axes")}))


_ = DOUBLE, INT64, Q8SYMM
