"""Operators that move data: shapes, joins, slices, blocks."""

import math

import numpy as np

from nnhal.frontends.tflite.build import Importer, Refused
from nnhal.frontends.tflite.file import Operator
from nnhal.frontends.tflite.table import T, entry, has, reshape


@entry("RESHAPE")
def reshaping(g: Importer, o: Operator) -> None:
    x, y = g.x(o.inputs[0]), g.declare(o.outputs[0])
    if has(o, 1):
        value = g.constant(o.inputs[1])
        shape = g.x(o.inputs[1]) if value is None else g.ints([int(n) for n in value.reshape(-1)] or [1])
    else:
        shape = g.ints(g.tensor(o.outputs[0]).shape or [1])
    g.emit("RESHAPE", [x, shape], [y])


@entry("EXPAND_DIMS")
def expand_dims(g: Importer, o: Operator) -> None:
    (axis,) = g.numbers(o.inputs[1], "axis")
    g.emit("EXPAND_DIMS", [g.x(o.inputs[0]), g.int32(axis)], [g.declare(o.outputs[0])])


@entry("SQUEEZE")
def squeeze(g: Importer, o: Operator) -> None:
    x, y = g.x(o.inputs[0]), g.declare(o.outputs[0])
    axes = (
        [int(n) for n in o.options.SqueezeDimsAsNumpy()]
        if o.options is not None and o.options.SqueezeDimsLength()
        else []
    )
    axes = axes or [i for i, d in enumerate(g.known(x)) if d == 1]
    if axes:
        g.emit("SQUEEZE", [x, g.ints(axes)], [y])
    else:
        g.emit("RESHAPE", [x, g.ints(g.known(x))], [y])


@entry("TRANSPOSE")
def transpose(g: Importer, o: Operator) -> None:
    x, y = g.x(o.inputs[0]), g.declare(o.outputs[0])
    if len(g.shape(x)) > 4:
        wide_transpose(g, x, g.numbers(o.inputs[1], "permutation"), y)
    else:
        g.emit("TRANSPOSE", [x, g.ints(g.numbers(o.inputs[1], "permutation"))], [y])


def wide_transpose(g: Importer, x: int, order: list[int], y: int) -> None:
    """A transposition of more than four dimensions: those that stay together are one, and ones do not count."""
    shape = g.known(x)
    kept = [i for i in order if shape[i] != 1]
    groups: list[list[int]] = []
    for i in kept:
        before = [j for j in range(i) if shape[j] != 1]
        if groups and before and groups[-1][-1] == before[-1]:
            groups[-1].append(i)
        else:
            groups.append([i])
    if len(groups) > 4:
        raise Refused(f"permutation {order} of {list(shape)} needs {len(groups)} dimensions, NNAPI has 4")
    inside = sorted(groups)
    sizes = [math.prod(shape[i] for i in group) for group in inside]
    small = reshape(g, x, sizes or [1])
    moved = g.like(x, [math.prod(shape[i] for i in group) for group in groups] or [1])
    g.emit("TRANSPOSE", [small, g.ints([inside.index(group) for group in groups] or [0])], [moved])
    g.emit("RESHAPE", [moved, g.ints([shape[i] for i in order])], [y])


@entry("CONCATENATION")
def concatenation(g: Importer, o: Operator) -> None:
    if o.option("FusedActivationFunction", 0):
        raise Refused("with a fused activation")
    xs, y = [g.x(i) for i in o.inputs], g.declare(o.outputs[0])
    g.emit("CONCATENATION", [*xs, g.int32(o.option("Axis") % len(g.shape(xs[0])))], [y])


@entry("PACK")
def pack(g: Importer, o: Operator) -> None:
    xs, y = [g.x(i) for i in o.inputs], g.declare(o.outputs[0])
    rank = len(g.tensor(o.inputs[0]).shape)
    if rank == 0:  # scalars are tensors of one element here
        column = g.like(y, (len(xs), 1))
        g.emit("PACK", [g.int32(0), *xs], [column])
        g.emit("RESHAPE", [column, g.ints([len(xs)])], [y])
    else:
        g.emit("PACK", [g.int32(o.option("Axis") % (rank + 1)), *xs], [y])


@entry("UNPACK")
def unpack(g: Importer, o: Operator) -> None:
    x = g.x(o.inputs[0])
    shape, axis = g.known(x), o.option("Axis") % len(g.shape(x))
    parts = [g.like(x, [1 if i == axis else d for i, d in enumerate(shape)]) for _ in o.outputs]
    g.emit("SPLIT", [x, g.int32(axis), g.int32(len(parts))], parts)
    for part, index in zip(parts, o.outputs, strict=True):
        g.emit("RESHAPE", [part, g.ints([d for i, d in enumerate(shape) if i != axis] or [1])], [g.declare(index)])


@entry("SPLIT")
def split(g: Importer, o: Operator) -> None:
    (axis,) = g.numbers(o.inputs[0], "axis")
    g.emit("SPLIT", [g.x(o.inputs[1]), g.int32(axis), g.int32(len(o.outputs))], [g.declare(i) for i in o.outputs])


@entry("SPLIT_V")
def split_v(g: Importer, o: Operator) -> None:
    x, sizes, (axis,) = g.x(o.inputs[0]), g.numbers(o.inputs[1], "sizes"), g.numbers(o.inputs[2], "axis")
    shape = g.known(x)
    axis %= len(shape)
    sizes = [shape[axis] - sum(n for n in sizes if n >= 0) if n < 0 else n for n in sizes]
    start = 0
    for index, size in zip(o.outputs, sizes, strict=True):
        begin = [start if i == axis else 0 for i in range(len(shape))]
        extent = [size if i == axis else d for i, d in enumerate(shape)]
        g.emit("SLICE", [x, g.ints(begin), g.ints(extent)], [g.declare(index)])
        start += size


@entry("PAD", "PADV2")
def pad(g: Importer, o: Operator) -> None:
    x, y = g.x(o.inputs[0]), g.declare(o.outputs[0])
    paddings = g.constant(o.inputs[1])
    table = g.x(o.inputs[1]) if paddings is None else g.literal(paddings.astype(np.int32), T.TENSOR_INT32)
    if not has(o, 2):
        g.emit("PAD", [x, table], [y])
        return
    value = g.constant(o.inputs[2])
    if value is None:
        raise Refused("its value is not constant")
    scalar = value.reshape(-1)[0]
    kind = T.FLOAT32 if value.dtype == np.float32 else T.INT32
    g.emit("PAD_V2", [x, table, g.literal(scalar, kind)], [y])


@entry("MIRROR_PAD")
def mirror_pad(g: Importer, o: Operator) -> None:
    paddings = g.constant(o.inputs[1])
    if paddings is None:
        raise Refused("its paddings are not constant")
    table = g.literal(paddings.astype(np.int32), T.TENSOR_INT32)
    g.emit("MIRROR_PAD", [g.x(o.inputs[0]), table, g.int32(o.option("Mode"))], [g.declare(o.outputs[0])])


@entry("SLICE")
def slice_(g: Importer, o: Operator) -> None:
    begin, size = (g.ints(g.numbers(i, what)) for i, what in zip(o.inputs[1:3], ("begin", "size"), strict=True))
    g.emit("SLICE", [g.x(o.inputs[0]), begin, size], [g.declare(o.outputs[0])])


@entry("STRIDED_SLICE")
def strided_slice(g: Importer, o: Operator) -> None:
    if o.option("EllipsisMask") or o.option("NewAxisMask"):
        raise Refused("with an ellipsis or a new axis")
    x, y = g.x(o.inputs[0]), g.declare(o.outputs[0])
    rank = len(g.shape(x))
    rows = [g.numbers(i, what) for i, what in zip(o.inputs[1:4], ("begin", "end", "strides"), strict=True)]
    masks = [o.option("BeginMask"), o.option("EndMask"), o.option("ShrinkAxisMask")]
    missing = rank - len(rows[0])
    rows = [row + [fill] * missing for row, fill in zip(rows, (0, 0, 1), strict=True)]
    rest = sum(1 << i for i in range(rank - missing, rank))
    masks = [masks[0] | rest, masks[1] | rest, masks[2]]
    if masks[2] == (1 << rank) - 1:  # a scalar is a tensor of one element here
        part = g.like(x, [1] * rank)
        begin = [0 if masks[0] >> i & 1 else n for i, n in enumerate(rows[0])]
        begin = [n + d if n < 0 else n for n, d in zip(begin, g.known(x), strict=True)]
        g.emit("SLICE", [x, g.ints(begin), g.ints([1] * rank)], [part])
        g.emit("RESHAPE", [part, g.ints([1])], [y])
        return
    for i in range(rank):  # NNAPI wants the end that follows from the begin of an axis that shrinks
        if masks[2] >> i & 1:
            rows[0][i] = first = 0 if masks[0] >> i & 1 else rows[0][i]
            rows[1][i], rows[2][i] = first + 1, 1
            masks = [masks[0] & ~(1 << i), masks[1] | (1 << i) if first == -1 else masks[1] & ~(1 << i), masks[2]]
    g.emit("STRIDED_SLICE", [x, *map(g.ints, rows), *map(g.int32, masks)], [y])


@entry("GATHER")
def gather(g: Importer, o: Operator) -> None:
    if o.option("BatchDims", 0):
        raise Refused("with batch dimensions")
    axis = o.option("Axis", 0)
    g.emit("GATHER", [g.x(o.inputs[0]), g.int32(axis), g.x(o.inputs[1])], [g.declare(o.outputs[0])])


@entry("TILE")
def tile(g: Importer, o: Operator) -> None:
    g.emit("TILE", [g.x(o.inputs[0]), g.x(o.inputs[1])], [g.declare(o.outputs[0])])


@entry("DEPTH_TO_SPACE", "SPACE_TO_DEPTH")
def blocks(g: Importer, o: Operator) -> None:
    g.emit(o.name, [g.x(o.inputs[0]), g.int32(o.option("BlockSize"))], [g.declare(o.outputs[0])])


@entry("BATCH_TO_SPACE_ND")
def batch_to_space(g: Importer, o: Operator) -> None:
    if any(g.numbers(o.inputs[2], "crops")):
        raise Refused("with crops")
    g.emit(o.name, [g.x(o.inputs[0]), g.x(o.inputs[1])], [g.declare(o.outputs[0])])


@entry("SPACE_TO_BATCH_ND")
def space_to_batch(g: Importer, o: Operator) -> None:
    g.emit(o.name, [g.x(i) for i in o.inputs[:3]], [g.declare(o.outputs[0])])


@entry("SHAPE")
def shape(g: Importer, o: Operator) -> None:
    tensor = g.tensor(o.inputs[0])
    known = g.known(g.x(o.inputs[0])) if tensor.shape else ()
    g.folded[o.outputs[0]] = np.array(known, np.int32)


@entry("REVERSE_V2")
def reverse(g: Importer, o: Operator) -> None:
    g.emit("REVERSE", [g.x(o.inputs[0]), g.ints(g.numbers(o.inputs[1], "axis"))], [g.declare(o.outputs[0])])
