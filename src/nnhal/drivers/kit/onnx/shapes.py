"""Entries of operations that move, pick, repeat, pad or reduce elements."""

from collections.abc import Sequence

import numpy as np

from nnhal.base.operands import Shape
from nnhal.drivers.kit.movement import FAR, block_move, mirror_indices, strided_slices
from nnhal.drivers.kit.onnx.graph import FLOATS, MOVED, SIGN, OnnxTask, engine_dtype, entry, zero_point
from nnhal.drivers.kit.sums import Stage, padding_correction, stages, summed
from nnhal.ops.schema import B8, Q8S


@entry("RESHAPE", "EXPAND_DIMS", "SQUEEZE", types=MOVED, exact=True)
def reshape(t: OnnxTask) -> None:
    if t.a.shapes[0] is None or None in t.a.shapes[0]:
        t.array("shape" if t.name == "RESHAPE" else "input")
    t.put(t.reshaped(t.x("input"), t.shape()))


@entry("TRANSPOSE", types=MOVED, exact=True)
def transpose(t: OnnxTask) -> None:
    order = t.array("permutation").tolist() if t.places("permutation") else range(t.a.input.rank)[::-1]
    t.put(t.o.Transpose(t.x("input"), perm=list(order)))


@entry("CONCATENATION", types=MOVED, exact=True)
def concatenation(t: OnnxTask) -> None:
    """Join inputs of other scales by their real values."""
    t.require_alike()
    same = all((v.scale, v.zero_point) == (t.a.out.scale, t.a.out.zero_point) for v in t.a.parts)
    if same:
        t.put(t.o.Concat(*map(t.graph.operand, t.places("parts")), axis=t.a.axis))
    else:
        t.give(t.o.Concat(*t.reals(), axis=t.a.axis))


@entry("PACK", types=MOVED, exact=True)
def pack(t: OnnxTask) -> None:
    parts = [t.o.Unsqueeze(t.graph.operand(place), [t.a.axis]) for place in t.places("parts")]
    t.put(t.o.Concat(*parts, axis=t.a.axis))


@entry("SPLIT", types=MOVED, exact=True)
def split(t: OnnxTask) -> None:
    size, count = t.a.input.known[t.a.axis], t.a.pieces
    for number, y in enumerate(t.nodes("Split", [t.x("input"), [size // count] * count], count, axis=t.a.axis)):
        t.put(y, number)


@entry("SLICE", types=MOVED, exact=True)
def block(t: OnnxTask) -> None:
    begins, sizes = t.array("begin").tolist(), t.array("size").tolist()
    ends = [FAR if size < 0 else begin + size for begin, size in zip(begins, sizes, strict=True)]
    t.put(t.o.Slice(t.x("input"), begins, ends))


@entry("STRIDED_SLICE", types=MOVED, exact=True)
def strided(t: OnnxTask) -> None:
    for name in ("begin", "end", "strides"):
        t.array(name)
    begins, ends, steps = strided_slices(t.a)
    y = t.o.Slice(t.x("input"), begins, ends, [*range(len(ends))], steps)
    t.put(t.reshaped(y, t.shape()) if t.a.shrink_mask else y)


def backwards(t: OnnxTask, x: str, axis: int) -> str:
    """Reverse a tensor along an axis."""
    return t.o.Slice(x, [-1], [-FAR], [axis], [-1])


@entry("REVERSE", types=MOVED, exact=True)
def reverse(t: OnnxTask) -> None:
    t.put(backwards(t, t.x("input"), int(t.array("axis")[0])))


@entry("TILE", types=MOVED, exact=True)
def tile(t: OnnxTask) -> None:
    t.put(t.o.Tile(t.x("input"), t.array("multiples").tolist()))


@entry("GATHER", "EMBEDDING_LOOKUP", types=MOVED, exact=True)
def gather(t: OnnxTask) -> None:
    """Map indices below 0 to some on which ONNX Runtime fails, as NNAPI does: ONNX would count from the end."""
    source, name, axis = ("input", "indices", t.a.axis) if t.name == "GATHER" else ("values", "lookups", 0)
    index = t.x(name)
    if getattr(t.a, name).data is None:
        index = t.o.Where(t.o.Less(index, np.int32(0)), np.int32(2**31 - 1), index)
    t.put(t.o.Gather(t.x(source), index, axis=axis))


@entry("HASHTABLE_LOOKUP", types=MOVED)
def lookup(t: OnnxTask) -> None:
    """Compare every key with every lookup; rows without a hit are stored zeros."""
    same = t.cast(t.o.Equal(t.o.Unsqueeze(t.x("lookups"), [1]), t.o.Unsqueeze(t.x("keys"), [0])), np.int32)
    hits = t.o.ReduceMax(same, [1], keepdims=0)
    rows = t.o.Gather(t.x("values"), t.o.ArgMax(same, axis=1, keepdims=0), axis=0)
    there = t.o.Unsqueeze(t.cast(hits, np.bool_), [*range(1, t.a.values.rank)])
    zero = np.array(SIGN if t.a.values.type == Q8S else 0, engine_dtype(t.a.values))
    t.put(t.o.Where(there, rows, zero))
    t.put(t.cast(hits, np.uint8), 1)


def without_nan(t: OnnxTask, x: str, instead: float) -> str:
    return t.o.Where(t.o.IsNaN(x), instead, x) if t.a.T in FLOATS else t.cast(x, np.int32)


@entry("TOPK_V2", types=MOVED, exact=True)
def top(t: OnnxTask) -> None:
    """Reverse the input: of equals NNAPI returns the last first, ONNX the first. NaN counts as minus infinity."""
    x, last = t.x("input"), t.a.input.rank - 1
    turned = backwards(t, without_nan(t, x, -np.inf), last)
    _, place = t.nodes("TopK", [turned, [t.a.k]], 2)
    place = t.o.Sub([t.a.input.known[-1] - 1], place)
    t.put(t.o.GatherElements(x, place, axis=last))
    t.put(t.cast(place, np.int32), 1)


@entry("ARGMAX", "ARGMIN", types=MOVED, exact=True)
def extreme(t: OnnxTask) -> None:
    """Return the first among equals; NaN never wins."""
    kind, worst = ("ArgMax", -np.inf) if t.name == "ARGMAX" else ("ArgMin", np.inf)
    y = t.graph.node(kind, without_nan(t, t.x("input"), worst), axis=t.a.axis, keepdims=0)
    t.put(t.reshaped(t.cast(y, np.int32), t.shape()))


@entry("PAD", "PAD_V2", types=MOVED, exact=True)
def pad(t: OnnxTask) -> None:
    fill = zero_point(t.a.input)
    if t.name == "PAD_V2":
        fill = np.asarray(t.a.value) + SIGN * np.int64(1) if t.a.T == Q8S else t.a.value
    t.put(padded(t, t.x("input"), t.array("paddings"), np.array(fill, engine_dtype(t.a.input))))


def padded(t: OnnxTask, x: str, rows: object, fill: object) -> str:
    """Pad each dimension at both ends by the numbers in `rows`."""
    return t.o.Pad(x, np.asarray(rows, np.int64).T.ravel().tolist(), fill)


@entry("MIRROR_PAD", types=MOVED, exact=True)
def mirror(t: OnnxTask) -> None:
    y = t.x("input")
    t.array("paddings")
    for axis, places in mirror_indices(t.a).items():
        y = t.o.Gather(y, places.tolist(), axis=axis)
    t.put(y)


@entry("FILL")
def fill(t: OnnxTask) -> None:
    value = t.x("value")
    whole = t.o.Expand(value, t.array("shape").tolist())
    t.graph.filled[whole] = value, t.known("value")
    t.put(whole)


@entry("RANK", types=MOVED | {B8}, exact=True)
def rank(t: OnnxTask) -> None:
    t.put(t.graph.constant(np.int32(t.a.input.rank)))


@entry("DEPTH_TO_SPACE", "SPACE_TO_DEPTH", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND", "CHANNEL_SHUFFLE", exact=True)
def blocks(t: OnnxTask) -> None:
    """Pictures have their channels first."""
    picture, x = t.name != "CHANNEL_SHUFFLE", t.x("input")
    if t.a.form_has("blocks"):
        t.array("blocks")
    x = t.image(x) if picture else x
    if t.a.form_has("paddings"):
        rows = [[0, 0], [0, 0], *t.array("paddings").tolist()]
        x = padded(t, x, rows, np.array(zero_point(t.a.input), engine_dtype(t.a.input)))
    cut, order, whole = block_move(t.a)
    y = t.reshaped(t.o.Transpose(t.reshaped(x, cut), perm=order), whole)
    t.put(t.as_given(y) if picture else y)


REDUCED = {"REDUCE_SUM": "ReduceSum", "REDUCE_PROD": "ReduceProd", "REDUCE_MAX": "ReduceMax", "REDUCE_MIN": "ReduceMin"}
REDUCED |= {"MEAN": "ReduceMean", "REDUCE_ANY": "ReduceMax", "REDUCE_ALL": "ReduceMin"}


@entry("MEAN", types=MOVED)
@entry(*(name for name in REDUCED if name != "MEAN"), types=MOVED | {B8}, exact=True)
def reduce(t: OnnxTask) -> None:
    """Reduce truth values as numbers. The maximum and minimum of a NaN are NaN.

    A quantised mean is one of quantisation steps, because their halves are exact.
    """
    of_steps = t.name == "MEAN" and t.a.input.quantised
    x = t.steps("input") if of_steps else t.real("input")
    axes = sorted({int(axis) % t.a.input.rank for axis in t.array("axes")})

    def reduced(kind: str, x: str) -> str:
        return t.graph.node(kind, x, axes, noop_with_empty_axes=1)

    if t.name in ("MEAN", "REDUCE_SUM"):
        y = add_up(t, REDUCED[t.name], x, t.a.input.shape, axes)
    else:
        y = reduced(REDUCED[t.name], t.cast(x, np.int32) if t.a.T == B8 else x)
    if t.a.T in FLOATS and t.name in ("REDUCE_MAX", "REDUCE_MIN"):
        lost = reduced("ReduceMax", t.cast(t.o.IsNaN(x), np.int32))
        y = t.o.Where(t.cast(lost, np.bool_), np.float32(np.nan), y)
    y = t.reshaped(y, t.shape())
    if t.a.T == B8:
        t.put(t.cast(y, np.bool_))
    elif of_steps:
        t.put(t.quantised(y, 1.0))
    else:
        t.give(y)


def add_up(t: OnnxTask, kind: str, x: str, shape: Shape | None, axes: Sequence[int]) -> str:
    """Write the ReduceSum or ReduceMean of real numbers, in stages if it is long.

    Return its elements, to be reshaped by the caller.
    """
    parts = stages(shape, axes)
    if not parts:
        return t.graph.node(kind, x, axes, noop_with_empty_axes=1)

    def pad(y: str, stage: Stage) -> str:
        return padded(t, y, [[0, stage.more * (axis == stage.axis)] for axis in range(len(stage.shape))], 0.0)

    def reduce(y: str, stage: Stage) -> str:
        return t.graph.node(kind, y, [stage.along], keepdims=0)

    y, share = summed(x, parts, t.reshaped, pad, reduce), padding_correction(parts)
    return t.o.Mul(y, share) if kind == "ReduceMean" and share != 1 else y
