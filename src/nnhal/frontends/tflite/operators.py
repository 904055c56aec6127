"""One entry an operator: how NNAPI expresses it. `Refused` says why it cannot."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.frontends.tflite.build import Importer, Refused
from nnhal.frontends.tflite.file import Operator

T = OperandType
Entry = Callable[[Importer, Operator], None]
TABLE: dict[str, Entry] = {}
PADDING = {0: 1, 1: 2}  # SAME, VALID


def entry(*names: str) -> Callable[[Entry], Entry]:
    """Put a function into the table under the names of operators."""

    def put(function: Entry) -> Entry:
        TABLE.update(dict.fromkeys(names, function))
        return function

    return put


def has(o: Operator, place: int) -> bool:
    """Whether an optional input is given."""
    return place < len(o.inputs) and o.inputs[place] >= 0


def same(name: str, count: int) -> Entry:
    """An operation with the same tensors and nothing else."""

    def convert(g: Importer, o: Operator) -> None:
        g.emit(name, [g.x(i) for i in o.inputs[:count]], [g.declare(o.outputs[0])])

    return convert


ALIKE = "LOGISTIC TANH ABS NEG EXP LOG SQRT RSQRT SIN FLOOR LOGICAL_NOT HARD_SWISH RELU RELU6"
ALIKE_PAIRS = "MAXIMUM MINIMUM POW PRELU EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL LOGICAL_AND LOGICAL_OR"
TABLE |= {name: same(name, 1) for name in ALIKE.split()} | {name: same(name, 2) for name in ALIKE_PAIRS.split()}
TABLE["RELU_N1_TO_1"] = same("RELU1", 1)


@entry("ADD", "SUB", "MUL", "DIV")
def arithmetic(g: Importer, o: Operator) -> None:
    g.emit(o.name, [g.x(o.inputs[0]), g.x(o.inputs[1]), g.activation(o)], [g.declare(o.outputs[0])])


@entry("SQUARE")
def square(g: Importer, o: Operator) -> None:
    x = g.x(o.inputs[0])
    g.emit("MUL", [x, x, g.int32(0)], [g.declare(o.outputs[0])])


@entry("SQUARED_DIFFERENCE")
def squared_difference(g: Importer, o: Operator) -> None:
    y = g.declare(o.outputs[0])
    if g.values[y].quantised:
        raise Refused("quantised: the difference would be rounded twice")
    between = g.like(y, g.tensor(o.outputs[0]).shape if not g.reshaped else (0,) * len(g.tensor(o.outputs[0]).shape))
    g.emit("SUB", [g.x(o.inputs[0]), g.x(o.inputs[1]), g.int32(0)], [between])
    g.emit("MUL", [between, between, g.int32(0)], [y])


@entry("LEAKY_RELU")
def leaky_relu(g: Importer, o: Operator) -> None:
    x, y = g.x(o.inputs[0]), g.declare(o.outputs[0])
    if g.values[x].quantised:
        raise Refused("quantised: NNAPI has no type for its slope")
    slope = g.literal([o.option("Alpha")], T.TENSOR_FLOAT32)
    g.emit("PRELU", [x, slope], [y])


@entry("ELU")
def elu(g: Importer, o: Operator) -> None:
    g.emit("ELU", [g.x(o.inputs[0]), g.literal(1.0, T.FLOAT32)], [g.declare(o.outputs[0])])


@entry("CAST")
def cast(g: Importer, o: Operator) -> None:
    g.emit("CAST", [g.x(o.inputs[0])], [g.declare(o.outputs[0])])


@entry("QUANTIZE")
def quantize(g: Importer, o: Operator) -> None:
    x, y = g.x(o.inputs[0]), g.declare(o.outputs[0])
    if g.values[x].quantised:  # from one quantisation to another: through the real values
        real = g.new(T.TENSOR_FLOAT32, g.shape(x))
        g.emit("DEQUANTIZE", [x], [real])
        x = real
    g.emit("QUANTIZE", [x], [y])


@entry("DEQUANTIZE")
def dequantize(g: Importer, o: Operator) -> None:
    x = g.x(o.inputs[0])
    half = g.values[x].type == T.TENSOR_FLOAT16
    g.emit("CAST" if half else "DEQUANTIZE", [x], [g.declare(o.outputs[0])])


@entry("DENSIFY")
def densify(g: Importer, o: Operator) -> None:
    value = g.constant(o.inputs[0])
    if value is None:
        raise Refused("its input is not constant")
    g.folded[o.outputs[0]] = value


@entry("CONV_2D")
def conv(g: Importer, o: Operator) -> None:
    weighted(g, o, "CONV_2D", 0, [])


@entry("DEPTHWISE_CONV_2D")
def depthwise(g: Importer, o: Operator) -> None:
    depth = g.tensor(o.inputs[0]).shape[-1]
    channels = g.tensor(o.inputs[1]).shape[-1]
    if not depth or channels % depth:
        raise Refused(f"filter has {channels} channels, the input {depth}")
    weighted(g, o, "DEPTHWISE_CONV_2D", 3, [channels // depth])


def weighted(g: Importer, o: Operator, name: str, axis: int, multiplier: Sequence[int]) -> None:
    """A convolution: input, filter, bias, scheme, strides, activation, layout, dilations."""
    x, filter = g.x(o.inputs[0]), g.x(o.inputs[1])
    bias = g.x(o.inputs[2], bias=scales(g, x, filter)) if has(o, 2) else zero_bias(g, x, filter, g.shape(filter)[axis])
    channel = g.values[filter].channel
    if channel is not None and channel.axis != axis:
        raise Refused(f"filter has scales along dimension {channel.axis}, must be {axis}")
    numbers = [PADDING[o.option("Padding")], o.option("StrideW"), o.option("StrideH"), *multiplier]
    dilations = o.option("DilationWFactor"), o.option("DilationHFactor")
    tail = [] if dilations == (1, 1) else [g.flag(False), *map(g.int32, dilations)]
    inputs = [x, filter, bias, *map(g.int32, numbers), g.activation(o), *tail]
    g.emit(name, inputs, [g.declare(o.outputs[0])])


def scales(g: Importer, x: int, filter: int) -> list[float]:
    """What the bias' scale is made of: one product, or none where the filter's scales are per channel."""
    if g.values[filter].channel is not None:
        return []
    return [float(np.float32(g.values[x].scale) * np.float32(g.values[filter].scale))]


def zero_bias(g: Importer, x: int, filter: int, size: int | None) -> int:
    """A bias of zeros, which NNAPI wants where TFLite has none."""
    value, product = g.values[x], scales(g, x, filter)
    kind = T.TENSOR_INT32 if value.quantised else OperandType(value.type)
    scale = product[0] if value.quantised and product else 0.0
    return g.fresh(np.zeros(size or 1, "i4" if value.quantised else value.dtype), kind, scale)


@entry("TRANSPOSE_CONV")
def transpose_conv(g: Importer, o: Operator) -> None:
    filter, x = g.x(o.inputs[1]), g.x(o.inputs[2])
    bias = g.x(o.inputs[3], bias=scales(g, x, filter)) if has(o, 3) else zero_bias(g, x, filter, g.shape(filter)[0])
    numbers = [PADDING[o.option("Padding")], o.option("StrideW"), o.option("StrideH")]
    inputs = [x, filter, bias, g.x(o.inputs[0]), *map(g.int32, numbers), g.activation(o), g.flag(False)]
    g.emit("TRANSPOSE_CONV_2D", inputs, [g.declare(o.outputs[0])])


@entry("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")
def pool(g: Importer, o: Operator) -> None:
    names = ("StrideW", "StrideH", "FilterWidth", "FilterHeight")
    numbers = [PADDING[o.option("Padding")], *(o.option(name) for name in names)]
    g.emit(o.name, [g.x(o.inputs[0]), *map(g.int32, numbers), g.activation(o)], [g.declare(o.outputs[0])])


@entry("FULLY_CONNECTED")
def fully_connected(g: Importer, o: Operator) -> None:
    x, weights, y = g.x(o.inputs[0]), g.x(o.inputs[1]), g.declare(o.outputs[0])
    if o.option("WeightsFormat", 0):
        raise Refused("weights are shuffled")
    if g.values[weights].channel is not None:
        raise Refused("per-channel weights")
    units, size = g.known(weights)
    bias = g.x(o.inputs[2], bias=scales(g, x, weights)) if has(o, 2) else zero_bias(g, x, weights, units)
    shape = g.shape(x)
    if len(shape) == 1 or len(shape) > 4:
        x, shape = reshape(g, x, (math.prod(g.known(x)) // size, size)), (0, size)
    flat = y if len(g.values[y].dims) == 2 else g.like(y, (None, units))
    g.emit("FULLY_CONNECTED", [x, weights, bias, g.activation(o)], [flat])
    if flat != y:
        target = (*g.known(x)[:-1], units) if o.option("KeepNumDims", False) else g.values[y].known
        g.emit("RESHAPE", [flat, g.ints(target)], [y])


def reshape(g: Importer, x: int, shape: Sequence[int]) -> int:
    """The operand in another shape."""
    y = g.like(x, shape)
    g.emit("RESHAPE", [x, g.ints(shape)], [y])
    return y


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
            rows[0][i] = begin = 0 if masks[0] >> i & 1 else rows[0][i]
            rows[1][i], rows[2][i] = begin + 1, 1
            masks = [masks[0] & ~(1 << i), masks[1] | (1 << i) if begin == -1 else masks[1] & ~(1 << i), masks[2]]
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


@entry("TOPK_V2")
def topk(g: Importer, o: Operator) -> None:
    (k,) = g.numbers(o.inputs[1], "k")
    g.emit("TOPK_V2", [g.x(o.inputs[0]), g.int32(k)], [g.declare(i) for i in o.outputs])


@entry("ARG_MAX", "ARG_MIN")
def arg(g: Importer, o: Operator) -> None:
    (axis,) = g.numbers(o.inputs[1], "axis")
    g.emit(o.name.replace("_", ""), [g.x(o.inputs[0]), g.int32(axis)], [g.declare(o.outputs[0])])


REDUCTIONS = {"SUM": "REDUCE_SUM", "REDUCE_PROD": "REDUCE_PROD", "REDUCE_MAX": "REDUCE_MAX", "REDUCE_MIN": "REDUCE_MIN"}
REDUCTIONS |= {"REDUCE_ANY": "REDUCE_ANY", "REDUCE_ALL": "REDUCE_ALL", "MEAN": "MEAN"}


@entry(*REDUCTIONS)
def reduction(g: Importer, o: Operator) -> None:
    axes, keep = g.ints(g.numbers(o.inputs[1], "axes")), o.option("KeepDims", False)
    x, y = g.x(o.inputs[0]), g.declare(o.outputs[0])
    flag = g.int32(int(keep)) if o.name == "MEAN" else g.flag(keep)
    g.emit(REDUCTIONS[o.name], [x, axes, flag], [y])


@entry("SOFTMAX")
def softmax(g: Importer, o: Operator) -> None:
    g.emit("SOFTMAX", [g.x(o.inputs[0]), g.literal(o.option("Beta", 1.0), T.FLOAT32)], [g.declare(o.outputs[0])])


@entry("LOG_SOFTMAX")
def log_softmax(g: Importer, o: Operator) -> None:
    g.emit("LOG_SOFTMAX", [g.x(o.inputs[0]), g.literal(1.0, T.FLOAT32), g.int32(-1)], [g.declare(o.outputs[0])])


@entry("L2_NORMALIZATION")
def l2_normalization(g: Importer, o: Operator) -> None:
    g.emit("L2_NORMALIZATION", [g.x(o.inputs[0])], [g.declare(o.outputs[0])])


@entry("LOCAL_RESPONSE_NORMALIZATION")
def lrn(g: Importer, o: Operator) -> None:
    numbers = [g.literal(o.option(name), T.FLOAT32) for name in ("Bias", "Alpha", "Beta")]
    inputs = [g.x(o.inputs[0]), g.int32(o.option("Radius")), *numbers]
    g.emit("LOCAL_RESPONSE_NORMALIZATION", inputs, [g.declare(o.outputs[0])])


@entry("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def resize(g: Importer, o: Operator) -> None:
    height, width = g.numbers(o.inputs[1], "size")
    align, half = o.option("AlignCorners", False), o.option("HalfPixelCenters", False)
    tail = [g.flag(False)] if o.name == "RESIZE_NEAREST_NEIGHBOR" and not (align or half) else []
    tail = [g.flag(False), g.flag(align), g.flag(half)] if align or half else tail
    g.emit(o.name, [g.x(o.inputs[0]), g.int32(width), g.int32(height), *tail], [g.declare(o.outputs[0])])


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


@entry("SELECT", "SELECT_V2")
def select(g: Importer, o: Operator) -> None:
    operands, y = [g.x(i) for i in o.inputs[:3]], g.declare(o.outputs[0])
    shapes = [g.known(x) for x in operands]
    wanted = np.broadcast_shapes(*shapes)
    g.emit("SELECT", [stretch(g, x, wanted) for x in operands], [y])


def stretch(g: Importer, x: int, wanted: Sequence[int]) -> int:
    """The operand repeated to a shape that it broadcasts to."""
    shape = g.known(x)
    if tuple(shape) == tuple(wanted):
        return x
    full = (1,) * (len(wanted) - len(shape)) + tuple(shape)
    if full != tuple(shape):
        x = reshape(g, x, full)
    y = g.like(x, wanted)
    if g.values[x].type == T.TENSOR_BOOL8:  # TILE does not take booleans, but LOGICAL_OR broadcasts them
        g.emit("LOGICAL_OR", [x, g.fresh(np.zeros(wanted, bool), T.TENSOR_BOOL8)], [y])
        return y
    g.emit("TILE", [x, g.ints([w // d for w, d in zip(wanted, full, strict=True)])], [y])
    return y


@entry("SHAPE")
def shape(g: Importer, o: Operator) -> None:
    tensor = g.tensor(o.inputs[0])
    known = g.known(g.x(o.inputs[0])) if tensor.shape else ()
    g.folded[o.outputs[0]] = np.array(known, np.int32)


@entry("BATCH_MATMUL")
def batch_matmul(g: Importer, o: Operator) -> None:
    flags = g.flag(o.option("AdjX", False)), g.flag(o.option("AdjY", False))
    g.emit("BATCH_MATMUL", [g.x(o.inputs[0]), g.x(o.inputs[1]), *flags], [g.declare(o.outputs[0])])


@entry("REVERSE_V2")
def reverse(g: Importer, o: Operator) -> None:
    g.emit("REVERSE", [g.x(o.inputs[0]), g.ints(g.numbers(o.inputs[1], "axis"))], [g.declare(o.outputs[0])])


@entry("UNIDIRECTIONAL_SEQUENCE_LSTM")
def sequence_lstm(g: Importer, o: Operator) -> None:
    x, y = g.x(o.inputs[0]), g.declare(o.outputs[0])
    kind = g.values[x].type
    if g.values[x].quantised or any(g.tensor(i).type != "float32" for i in o.inputs[1:] if i >= 0):
        raise Refused("quantised or of mixed types")
    if o.option("DiagonalRecurrentTensors", False):
        raise Refused("with diagonal recurrent weights")
    states = [g.x(o.inputs[i]) for i in (18, 19)]
    weights = [g.x(i) if i >= 0 else g.omitted(kind) for i in o.inputs[1:18]]
    norms = [g.x(o.inputs[i]) if has(o, i) else g.omitted(kind) for i in range(20, 24)]
    code = {0: 0, 1: 1, 3: 3, 4: 4}.get(o.option("FusedActivationFunction"))
    if code is None:
        raise Refused(f"with activation {o.option('FusedActivationFunction')}")
    clips = [g.literal(o.option(name), T.FLOAT32) for name in ("CellClip", "ProjClip")]
    finals = [g.like(s, g.known(s)) for s in states]
    inputs = [x, *weights, *states, g.int32(code), *clips, g.flag(o.option("TimeMajor")), *norms]
    g.emit("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y, *finals])
    for place, final in zip((18, 19), finals, strict=True):
        g.assign_variable(o.inputs[place], final)


@entry("CALL_ONCE")
def call_once(g: Importer, o: Operator) -> None:
    number = o.option("InitSubgraphIndex")
    graph = g.file.graphs[number]
    inner = Importer(g.file, graph, g.builder, g.pool, number)
    for each in graph.operators:
        if each.name == "VAR_HANDLE":
            handle(inner, each)
        elif each.name == "ASSIGN_VARIABLE":
            value = inner.constant(each.inputs[1])
            if value is None:
                raise Refused("a variable starts with what is not constant")
            g.initial[inner.handles[each.inputs[0]]] = np.array(value)
        else:
            raise Refused(f"its subgraph has {each.name}")


@entry("VAR_HANDLE")
def handle(g: Importer, o: Operator) -> None:
    name, container = o.option("SharedName") or b"", o.option("Container") or b""
    g.handles[o.outputs[0]] = f"{container.decode()}/{name.decode()}"


@entry("READ_VARIABLE")
def read_variable(g: Importer, o: Operator) -> None:
    key = g.handles[o.inputs[0]]
    if key not in g.variables:
        operand = g.declare(o.outputs[0], g.tensor(o.outputs[0]).shape, key.lstrip("/"))
        g.state_inputs[key] = g.variables[key] = operand
        zero = g.values[operand].zero_point
        g.initial.setdefault(key, np.full(g.known(operand), zero, g.values[operand].dtype))
        g.initial[key] = g.initial[key].reshape(g.known(operand))
    g.operands[o.outputs[0]] = g.variables[key]


@entry("ASSIGN_VARIABLE")
def assign_variable(g: Importer, o: Operator) -> None:
    g.variables[g.handles[o.inputs[0]]] = g.x(o.inputs[1])
