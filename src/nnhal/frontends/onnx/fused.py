"""Entries of the nodes that ONNX Runtime's optimiser writes in place of several: they are expanded into these again."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from nnhal.base.operands import Array
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.common.packed import packed_size, unpack
from nnhal.frontends.onnx.expanded import ExpandedNode, expanded
from nnhal.frontends.onnx.layers import rounded_up
from nnhal.frontends.onnx.volumes import flat_pads
from nnhal.frontends.onnx.windows import window

FLOAT, INT32 = 1, 6  # of TensorProto
BOTH = {"Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
OF_CONV: dict[str, tuple[str, ...]] = BOTH | {"Clip": ("min", "max"), "HardSwish": (), "Identity": ()}
OF_GEMM: dict[str, tuple[str, ...]] = BOTH | {
    "Celu": ("alpha",), "Elu": ("alpha",), "Selu": ("alpha", "gamma"), "Softplus": (), "Softsign": (),
    "ThresholdedRelu": ("alpha",),
}  # the activations of fused layers, and their parameters  # fmt: skip


def activation_of(t: ExpandedNode, known: Mapping[str, tuple[str, ...]], default: str) -> tuple[str, tuple[str, ...]]:
    """Return the activation of a fused layer, and the names of its parameters."""
    name = t.attr("activation", default)
    t.require(name in known, f"activation is {name!r}, must be one of {', '.join(known)}")
    return name, known[name]


# ----------------------------------------------------------------------------------------------------------------- layers


@expanded("com.microsoft.FusedConv", inputs=(2, 4), becomes="Conv, Add, and the activation")
def convolution(t: ExpandedNode) -> None:
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    given = [t.input(n) for n in range(3)]
    made = t.write("Conv", *given[: 2 + bool(given[2])], **{name: t.attr(name) for name in names})
    made = t.write("Add", made, t.input(3)) if t.given(3) else made
    activation, needed = activation_of(t, OF_CONV, "Identity")
    values = t.attr.floats("activation_params").tolist() if needed else []
    t.require(
        len(values) == len(needed),
        f"activation_params has {len(values)} numbers, must be {' and '.join(needed)} of {activation}",
    )
    if activation == "Clip":
        t.write("Clip", made, *(t.constant(n) for n in values), gives=0)
    else:
        t.write(activation, made, gives=0, **dict(zip(needed, values, strict=True)))


@expanded("com.microsoft.FusedGemm", inputs=(2, 3), becomes="Gemm and the activation")
def gemm(t: ExpandedNode) -> None:
    given = [t.input(n) for n in range(2 + t.given(2))]
    made = t.write("Gemm", *given, **{name: t.attr(name) for name in ("alpha", "beta", "transA", "transB")})
    activation, needed = activation_of(t, OF_GEMM, "")
    values = {name: t.attr(f"activation_{name}") for name in needed}
    for name, value in values.items():
        t.require(value is not None, f"has no activation_{name}, must have that of {activation}")
    t.write(activation, made, gives=0, **values)


@expanded("com.microsoft.FusedMatMul", inputs=2, becomes="Transpose, MatMul, Mul")
def matmul(t: ExpandedNode) -> None:
    sides = []
    for place, side in enumerate("AB"):
        name, rank = t.input(place), t.rank(t.x(place))
        t.require(not t.attr(f"transBatch{side}", 0), f"transBatch{side} is 1, must be 0")
        if t.attr(f"trans{side}", 0) and rank > 1:
            name = t.write("Transpose", name, perm=(*range(rank - 2), rank - 1, rank - 2))
        sides.append(name)
    alpha = t.attr("alpha", 1.0)
    made = t.write("MatMul", *sides, gives=0 if alpha == 1 else None)
    if alpha != 1:
        t.write("Mul", made, t.constant(alpha), gives=0)


@expanded("com.microsoft.MatMulNBits", inputs=(3, 6), becomes="MatMul with weights as reals")
def matmul_of_few_bits(t: ExpandedNode) -> None:
    """Dequantise constant weights in blocks. Zero points have as many bits as the weights, or are floats."""
    size, units, block, bits = *(t.attr(name, 0) for name in ("K", "N", "block_size")), t.attr("bits", 4)
    t.require(bits in (2, 4, 8), f"bits is {bits}, must be 2, 4 or 8")
    t.require(min(size, units) > 0, f"has {units} units of {size}")
    t.require(block >= 16 and block.bit_count() == 1, f"block_size is {block}, must be a power of 2 from 16")
    t.require(not t.given(4), "has an order of groups, must have none")
    count = -(-size // block)
    scales = np.asarray(t.data(2, "scales"), np.float32).reshape(units, count, 1)
    t.budget.spend(Cost.MEMORY, 8 * units * count * block, t.label)
    stored, row = t.data(1, "B"), packed_size(bits, count)
    wanted = units * count * packed_size(bits, block)
    t.require(stored.nbytes == wanted, f"B has {stored.nbytes} bytes, must have {wanted}")
    weights = unpack(stored, bits, (units, count, block), signed=False)
    zeros: Array = np.full(1, 1 << (bits - 1), np.float32)
    if t.given(3):
        zeros = np.asarray(t.data(3, "zero_points"))
        if zeros.dtype == np.uint8:
            t.require(zeros.size == units * row, f"zero_points has {zeros.size} bytes, must have {units * row}")
            zeros = unpack(zeros, bits, (units, row * 8 // bits), signed=False)[:, :count]
        else:
            t.require(zeros.dtype.kind == "f", "zero_points must be UINT8 or floats")
        zeros = zeros.astype(np.float32).reshape(units, count, 1)
    found = ((weights.astype(np.float32) - zeros) * scales).reshape(units, count * block)[:, :size]
    made = t.write("MatMul", t.input(0), t.constant(found.T), gives=None if t.given(5) else 0)
    if t.given(5):
        t.write("Add", made, t.input(5), gives=0)


@expanded(
    "com.microsoft.DynamicQuantizeMatMul", inputs=(3, 5), becomes="DynamicQuantizeLinear, MatMulInteger, Cast, Mul, Add"
)
def dynamically_quantised_matmul(t: ExpandedNode) -> None:
    x, scale, zero = t.write("DynamicQuantizeLinear", t.input(0), parts=3)
    scaled_product(t, (x, t.input(1), zero, t.input(3)), (scale, t.input(2)), t.input(4), gives=0)


@expanded("com.microsoft.MatMulIntegerToFloat", inputs=(4, 7), becomes="MatMulInteger, Cast, Mul, Add")
def integer_matmul(t: ExpandedNode) -> None:
    given = t.input(0), t.input(1), t.input(4), t.input(5)
    scaled_product(t, given, (t.input(2), t.input(3)), t.input(6), gives=0)


def scaled_product(
    t: ExpandedNode, given: tuple[str, ...], scales: tuple[str, str], bias: str, *, gives: int | None = None
) -> str:
    """Write a product of integers in reals."""
    made = t.write("Cast", t.write("MatMulInteger", *given), to=FLOAT)
    made = t.write("Mul", made, t.write("Mul", *scales), gives=None if bias else gives)
    return str(t.write("Add", made, bias, gives=gives) if bias else made)


# ------------------------------------------------------------------------------------------------------------ activations


@expanded("com.microsoft.Gelu", becomes="Gelu")
def gelu(t: ExpandedNode) -> None:
    t.write("Gelu", t.input(0), gives=0)


@expanded("com.microsoft.BiasGelu", inputs=2, becomes="Add, Gelu")
def gelu_of_sum(t: ExpandedNode) -> None:
    t.write("Gelu", t.write("Add", t.input(0), t.input(1)), gives=0)


@expanded("com.microsoft.FastGelu", inputs=(1, 2), becomes="Add, Gelu by TANH")
def fast_gelu(t: ExpandedNode) -> None:
    x = t.write("Add", t.input(0), t.input(1)) if t.given(1) else t.input(0)
    t.write("Gelu", x, gives=0, approximate="tanh")


@expanded("com.microsoft.QuickGelu", becomes="Sigmoid, Mul")
def quick_gelu(t: ExpandedNode) -> None:
    t.write("Swish", t.input(0), gives=0, alpha=t.attr("alpha", 1.702))


# ---------------------------------------------------------------------------------------------------------- normalisation


@expanded("com.microsoft.SkipLayerNormalization", inputs=(3, 5), outputs=(1, 4), becomes="Add, LayerNormalization")
def layer_normalisation_of_sum(t: ExpandedNode) -> None:
    made = sum_of(t, [t.input(0), t.input(1), t.input(4)], 3)
    others = [t.input(n) for n in (2, 3) if t.given(n)]
    t.write("LayerNormalization", made, *others, gives=0, epsilon=t.attr("epsilon", 1e-12))


@expanded(
    "com.microsoft.SkipSimplifiedLayerNormalization", inputs=(3, 4), outputs=(1, 4), becomes="Add, RMSNormalization"
)
def root_mean_square_of_sum(t: ExpandedNode) -> None:
    made = sum_of(t, [t.input(0), t.input(1), t.input(3)], 3)
    t.write("RMSNormalization", made, t.input(2), gives=0, epsilon=t.attr("epsilon", 1e-12))


@expanded("SimplifiedLayerNormalization", inputs=2, outputs=(1, 2), apart=True, becomes="RMSNormalization")
def root_mean_square(t: ExpandedNode) -> None:
    how = {"axis": t.attr("axis", -1), "epsilon": t.attr("epsilon", 1e-5)}
    t.write("RMSNormalization", t.input(0), t.input(1), gives=0, **how)


def sum_of(t: ExpandedNode, names: list[str], gives: int) -> str:
    """Write the sum of the given tensors, which is an output too."""
    first, *others = filter(None, names)
    for n, name in enumerate(others, 1):
        first = t.write("Add", first, name, gives=gives if n == len(others) else None)
    return first


@expanded(
    "com.microsoft.EmbedLayerNormalization", inputs=(7, 9), outputs=(1, 3), becomes="Gather, Add, LayerNormalization"
)
def embedding(t: ExpandedNode) -> None:
    """Normalise the sum of the embeddings of words, positions and segments. Positions count from 0 if they are left out.

    Output 1 is the number of ones in each row of the mask.
    """
    embedded(t, lambda table, ids: t.write("Gather", t.input(table), ids), [t.input(5), t.input(6)], t.input(8))


@expanded(
    "com.microsoft.QEmbedLayerNormalization", inputs=(13, 18), outputs=(1, 2),
    becomes="Gather, DequantizeLinear, Add, LayerNormalization",
)  # fmt: skip
def quantised_embedding(t: ExpandedNode) -> None:
    """Normalise the sum of embeddings that are quantised, each table with its scale and zero point."""

    def real(place: int, integers: str) -> str:
        return str(t.write("DequantizeLinear", integers, t.input(place + 6), t.input(place + 11)))

    def rows(place: int, ids: str) -> str:
        return real(place, t.write("Gather", t.input(place), ids))

    embedded(t, rows, [real(place, t.input(place)) for place in (5, 6)], "")


def embedded(t: ExpandedNode, rows: Callable[[int, str], str], norm: list[str], places: str) -> None:
    """Normalise the sum of rows of tables. rows: gathers those of an input. norm: factors and offsets."""
    length = t.known(t.x(0))[1]
    found = [rows(2, t.input(0)), rows(3, places or t.constant(np.arange(length, dtype=np.int64)[None]))]
    if t.given(1):
        found.append(rows(4, t.input(1)))
    if t.given(7) and t.is_output_used(1):
        ones = t.write("Cast", t.write("Equal", t.input(7), t.constant(1)), to=INT32)
        t.write("ReduceSum", ones, t.constant([1]), gives=1, keepdims=0)
    made = sum_of(t, found, 2)
    t.write("LayerNormalization", made, *norm, gives=0, epsilon=t.attr("epsilon", 1e-12))


# ------------------------------------------------------------------------------------------------------------- quantised


@expanded("com.microsoft.QLinearSoftmax", inputs=5, becomes="Softmax of real values")
def quantised_softmax(t: ExpandedNode) -> None:
    """Write a softmax; of before operator set 13, of all dimensions from the axis on as one."""
    axis, shape = t.attr("axis", -1), t.known(t.x(0))
    x = t.write("DequantizeLinear", t.input(0), t.input(1), t.input(2))
    if t.attr("opset", 13) >= 13:
        made = t.write("Softmax", x, axis=axis)
    else:
        axis = t.axis(axis, len(shape))
        rows = t.write("Reshape", x, t.constant([math.prod(shape[:axis]), math.prod(shape[axis:])]))
        made = t.write("Reshape", t.write("Softmax", rows, axis=1), t.constant(shape))
    t.write("QuantizeLinear", made, t.input(3), t.input(4), gives=0)


@expanded("com.microsoft.QLinearAveragePool", inputs=5, becomes="AveragePool of real values")
def quantised_average(t: ExpandedNode) -> None:
    """Write a mean. Padding that counts does so beyond the given pads too, if sizes are rounded up."""
    t.require(not t.attr("channels_last", 0), "has channels last, must have them first")
    names = "auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"
    how = {name: t.attr(name) for name in names}
    if how["ceil_mode"] and how["count_include_pad"] and not t.attr("auto_pad", "NOTSET").startswith("SAME"):
        sizes, kernel = t.known(t.x(0))[2:], t.attr.ints("kernel_shape")
        sides = rounded_up(t, window(t, kernel, sizes), (1, *sizes)[-max(2, len(sizes)) :]).pads[-len(sizes) :]
        how |= {"pads": flat_pads(sides), "auto_pad": None, "ceil_mode": None}
    x = t.write("DequantizeLinear", t.input(0), t.input(1), t.input(2))
    t.write("QuantizeLinear", t.write("AveragePool", x, **how), t.input(3), t.input(4), gives=0)
