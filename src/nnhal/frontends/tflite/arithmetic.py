"""Operators on elements: arithmetic, activations, types, reductions, choices."""

from collections.abc import Sequence

import numpy as np

from nnhal.frontends.tflite.build import Importer, Refused
from nnhal.frontends.tflite.file import Operator
from nnhal.frontends.tflite.table import TABLE, T, entry, reshape, same

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


@entry("ADD_N")
def add_n(g: Importer, o: Operator) -> None:
    xs, y = [g.x(i) for i in o.inputs], g.declare(o.outputs[0])
    total = xs[0]
    for n, x in enumerate(xs[1:], 2):
        target = y if n == len(xs) else g.like(y, g.shape(xs[0]))
        g.emit("ADD", [total, x, g.int32(0)], [target])
        total = target


@entry("CEIL")
def ceil(g: Importer, o: Operator) -> None:
    x, y = g.x(o.inputs[0]), g.declare(o.outputs[0])
    less, floor = (g.like(x, g.shape(x)) for _ in range(2))
    g.emit("NEG", [x], [less])
    g.emit("FLOOR", [less], [floor])
    g.emit("NEG", [floor], [y])


@entry("BROADCAST_TO")
def broadcast_to(g: Importer, o: Operator) -> None:
    wanted = g.numbers(o.inputs[1], "shape")
    x = stretch(g, g.x(o.inputs[0]), wanted)
    g.emit("RESHAPE", [x, g.ints(wanted)], [g.declare(o.outputs[0])])


@entry("ZEROS_LIKE")
def zeros_like(g: Importer, o: Operator) -> None:
    tensor = g.tensor(o.outputs[0])
    shape = g.known(g.x(o.inputs[0]))
    g.folded[o.outputs[0]] = np.zeros(shape, np.dtype(tensor.type))


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
