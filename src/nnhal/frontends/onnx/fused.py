"""Entries of the nodes that ONNX Runtime's optimiser writes in place of several: they are expanded into these again."""

from functools import partial
from typing import Any

import numpy as np

from nnhal.base.operands import Array
from nnhal.frontends.common.budget import Cost
from nnhal.frontends.onnx.expanded import ExpandedNode
from nnhal.frontends.onnx.task import operator

FLOAT = 1  # of TensorProto


def activated(t: ExpandedNode, x: str, name: str, values: tuple[float, ...]) -> None:
    """Write the activation of a fused layer, which gives output 0. values: its parameters, in the order of ONNX."""
    alpha, beta = (*values, None, None)[:2]
    if name == "Clip":
        t.write("Clip", x, t.constant(float(alpha or 0.0)), t.constant(float(beta or 0.0)), gives=0)
    else:
        t.require(name in ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid"), f"has the activation {name}")
        t.write(name, x, gives=0, alpha=alpha, beta=beta)


fused = partial(operator, task=ExpandedNode)


# ----------------------------------------------------------------------------------------------------------------- layers


@fused("com.microsoft.FusedConv", inputs=(2, 4), becomes="Conv, Add, and the activation")
def convolution(t: ExpandedNode) -> None:
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    given = [t.input(n) for n in range(3)]
    made = t.write("Conv", *given[: 2 + bool(given[2])], **{name: t.attr(name) for name in names})
    made = t.write("Add", made, t.input(3)) if t.given(3) else made
    activated(t, made, t.attr("activation", "Relu"), t.attr("activation_params", ()))


@fused("com.microsoft.FusedGemm", inputs=(2, 3), becomes="Gemm and the activation")
def gemm(t: ExpandedNode) -> None:
    given = [t.input(n) for n in range(2 + t.given(2))]
    made = t.write("Gemm", *given, **{name: t.attr(name) for name in ("alpha", "beta", "transA", "transB")})
    values = [t.attr(f"activation_{name}") for name in ("alpha", "beta")]
    activated(t, made, t.attr("activation", "Relu"), tuple(n for n in values if n is not None))


@fused("com.microsoft.FusedMatMul", inputs=2, becomes="Transpose, MatMul, Mul")
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


@fused("com.microsoft.MatMulNBits", inputs=(3, 6), becomes="MatMul with weights as reals")
def matmul_of_few_bits(t: ExpandedNode) -> None:
    """Dequantise constant weights of 4 or 8 bits in blocks. Zero points have as many bits as the weights, or are floats."""
    size, units, bits, block = (t.attr(name, 0) for name in ("K", "N", "bits", "block_size"))
    t.require(bits in (4, 8), f"bits is {bits}, must be 4 or 8")
    t.require(min(size, units) > 0 and block > 0, f"has {units} units of {size} in blocks of {block}")
    t.require(not t.given(4), "has an order of groups, must have none")
    count = -(-size // block)
    scales = np.asarray(t.data(2, "scales"), np.float32).reshape(units, count, 1)
    t.budget.spend(Cost.MEMORY, 8 * units * count * block, t.label)
    weights = unpacked(t.data(1, "B"), bits).reshape(units, count, block)
    zeros: Array = np.full(1, 1 << (bits - 1), np.float32)
    if t.given(3):
        zeros = np.asarray(t.data(3, "zero_points"))
        zeros = unpacked(zeros.reshape(units, -1), bits)[:, :count] if zeros.dtype == np.uint8 else zeros
        zeros = zeros.astype(np.float32).reshape(units, count, 1)
    found = ((weights.astype(np.float32) - zeros) * scales).reshape(units, count * block)[:, :size]
    made = t.write("MatMul", t.input(0), t.constant(found.T), gives=None if t.given(5) else 0)
    if t.given(5):
        t.write("Add", made, t.input(5), gives=0)


def unpacked(data: Array, bits: int) -> Array:
    """Return numbers of 4 bits, of which each byte holds two, the lower first; others as they are."""
    return np.stack([data & 15, data >> 4], -1).reshape(*data.shape[:-1], -1) if bits == 4 else data


@fused(
    "com.microsoft.DynamicQuantizeMatMul", inputs=(3, 5), becomes="DynamicQuantizeLinear, MatMulInteger, Cast, Mul, Add"
)
def dynamically_quantised_matmul(t: ExpandedNode) -> None:
    x, scale, zero = t.write("DynamicQuantizeLinear", t.input(0), parts=3)
    scaled_product(t, (x, t.input(1), zero, t.input(3)), (scale, t.input(2)), t.input(4))


@fused("com.microsoft.MatMulIntegerToFloat", inputs=(4, 7), becomes="MatMulInteger, Cast, Mul, Add")
def integer_matmul(t: ExpandedNode) -> None:
    scaled_product(t, (t.input(0), t.input(1), t.input(4), t.input(5)), (t.input(2), t.input(3)), t.input(6))


def scaled_product(t: ExpandedNode, given: tuple[str, ...], scales: tuple[str, str], bias: str) -> None:
    """Write a product of integers in reals."""
    made = t.write("Cast", t.write("MatMulInteger", *given), to=FLOAT)
    made = t.write("Mul", made, t.write("Mul", *scales), gives=None if bias else 0)
    if bias:
        t.write("Add", made, bias, gives=0)


# ------------------------------------------------------------------------------------------------------------ activations


@fused("com.microsoft.Gelu", becomes="Gelu")
def gelu(t: ExpandedNode) -> None:
    t.write("Gelu", t.input(0), gives=0)


@fused("com.microsoft.BiasGelu", inputs=2, becomes="Add, Gelu")
def gelu_of_sum(t: ExpandedNode) -> None:
    t.write("Gelu", t.write("Add", t.input(0), t.input(1)), gives=0)


@fused("com.microsoft.FastGelu", inputs=(1, 2), becomes="Add, Gelu by TANH")
def fast_gelu(t: ExpandedNode) -> None:
    x = t.write("Add", t.input(0), t.input(1)) if t.given(1) else t.input(0)
    t.write("Gelu", x, gives=0, approximate="tanh")


@fused("com.microsoft.QuickGelu", becomes="Sigmoid, Mul")
def quick_gelu(t: ExpandedNode) -> None:
    t.write("Swish", t.input(0), gives=0, alpha=t.attr("alpha", 1.702))


# ---------------------------------------------------------------------------------------------------------- normalisation


@fused("com.microsoft.SkipLayerNormalization", inputs=(3, 5), outputs=(1, 4), becomes="Add, LayerNormalization")
def layer_normalisation_of_sum(t: ExpandedNode) -> None:
    made = sum_of(t, [t.input(0), t.input(1), t.input(4)], 3)
    others = [t.input(n) for n in (2, 3) if t.given(n)]
    t.write("LayerNormalization", made, *others, gives=0, epsilon=t.attr("epsilon", 1e-12))


@fused("com.microsoft.SkipSimplifiedLayerNormalization", inputs=(3, 4), outputs=(1, 4), becomes="Add, RMSNormalization")
def root_mean_square_of_sum(t: ExpandedNode) -> None:
    made = sum_of(t, [t.input(0), t.input(1), t.input(3)], 3)
    t.write("RMSNormalization", made, t.input(2), gives=0, epsilon=t.attr("epsilon", 1e-12))


@operator(
    "SimplifiedLayerNormalization", inputs=2, outputs=(1, 2), task=ExpandedNode, apart=True, becomes="RMSNormalization"
)
def root_mean_square(t: ExpandedNode) -> None:
    how = {"axis": t.attr("axis", -1), "epsilon": t.attr("epsilon", 1e-5)}
    t.write("RMSNormalization", t.input(0), t.input(1), gives=0, **how)


def sum_of(t: ExpandedNode, names: list[str], gives: int) -> str:
    """Write the sum of the given tensors, which is an output too."""
    first, *others = filter(None, names)
    for n, name in enumerate(others, 1):
        first = t.write("Add", first, name, gives=gives if n == len(others) else None)
    return first


@fused(
    "com.microsoft.EmbedLayerNormalization", inputs=(7, 9), outputs=(1, 3), becomes="Gather, Add, LayerNormalization"
)
def embedding(t: ExpandedNode) -> None:
    """Normalise the sum of the embeddings of words, positions and segments. Positions count from 0 if they are left out."""
    length = t.known(t.x(0))[1]
    places = t.input(8) or t.constant(np.arange(length, dtype=np.int64)[None])
    found = [t.write("Gather", t.input(2), t.input(0)), t.write("Gather", t.input(3), places)]
    if t.given(1):
        found.append(t.write("Gather", t.input(4), t.input(1)))
    made = sum_of(t, found, 2)
    t.write("LayerNormalization", made, t.input(5), t.input(6), gives=0, epsilon=t.attr("epsilon", 1e-12))


# -------------------------------------------------------------------------------------------------------------- attention


@fused("com.microsoft.Attention", inputs=(2, 7), outputs=(1, 2), becomes="MatMul, Add, Split, Attention")
def attention(t: ExpandedNode) -> None:
    """Project the input to queries, keys and values in one product."""
    t.require(not t.given(4) and not t.attr("do_rotary", 0), "has a past or rotates, must do neither")
    heads, sizes = t.attr("num_heads", 0), t.attr.ints("qkv_hidden_sizes") or [t.known(t.x(1))[1] // 3] * 3
    made = t.write("MatMul", t.input(0), t.input(1))
    made = t.write("Add", made, t.input(2)) if t.given(2) else made
    parts = t.write("Split", made, t.constant(np.array(sizes)), parts=3, axis=-1)
    attended(t, parts, heads, mask_of(t, 3, 5), causal=t.attr("unidirectional", 0))


@fused("com.microsoft.MultiHeadAttention", inputs=(1, 8), becomes="Add, Attention")
def multi_head_attention(t: ExpandedNode) -> None:
    """Attend to separate queries, keys and values of three dimensions."""
    t.require(not t.given(6) and not t.given(7), "has a past, must have none")
    t.require(t.given(1) and t.given(2), "has packed keys and values, must have separate ones")
    parts = [t.input(n) for n in range(3)]
    for place in range(3):
        t.require(t.rank(t.x(place)) == 3, f"input {place} is of rank {t.rank(t.x(place))}, must be of 3")
    if t.given(3):
        sizes = [t.known(t.x(n))[2] for n in range(3)]
        biases = t.write("Split", t.input(3), t.constant(np.array(sizes)), parts=3, axis=0)
        parts = [t.write("Add", *pair) for pair in zip(parts, biases, strict=True)]
    attended(t, parts, t.attr("num_heads", 0), mask_of(t, 4, 5), causal=t.attr("unidirectional", 0))


def attended(t: ExpandedNode, parts: list[str], heads: int, mask: str, *, causal: int) -> None:
    """Write the attention of projected inputs."""
    how: dict[str, Any] = {
        "q_num_heads": heads,
        "kv_num_heads": heads,
        "is_causal": causal,
        "scale": t.attr("scale", 0.0) or None,
    }
    t.write("Attention", *parts, *[mask] * bool(mask), gives=0, **how)


def mask_of(t: ExpandedNode, keys: int, scores: int) -> str:
    """Return what is added to products of queries and keys, "" if nothing is.

    Args:
        keys: The input with a 1 for each key that counts: of batches and keys, and queries between them.
        scores: The input that is added.
    """
    if not t.given(keys):
        return t.input(scores)
    shape = t.known(t.x(keys))
    t.require(len(shape) in (2, 3), f"has a mask of {len(shape)} dimensions, must be of 2 or 3")
    shape = (shape[0], 1, *shape[1:]) if len(shape) == 3 else (shape[0], 1, 1, shape[1])
    counts = t.write("Greater", t.write("Reshape", t.input(keys), t.constant(np.array(shape))), t.constant(0))
    added = t.constant(t.attr("mask_filter_value", -10000.0))
    made = t.write("Where", counts, t.constant(0.0), added)
    return str(t.write("Add", made, t.input(scores))) if t.given(scores) else str(made)


@fused("com.microsoft.RotaryEmbedding", inputs=4, becomes="RotaryEmbedding")
def rotary_embedding(t: ExpandedNode) -> None:
    """Rotate by given positions."""
    t.require(t.rank(t.x(1)) == 2, "counts positions from one number, must have them for each element")
    t.require(t.attr("scale", 1.0) == 1, f"scale is {t.attr('scale', 1.0)}, must be 1")
    how: dict[str, Any] = {name: t.attr(name) for name in ("interleaved", "num_heads", "rotary_embedding_dim")}
    if t.rank(t.x(0)) == 3 and not how["num_heads"]:
        how["num_heads"] = t.known(t.x(0))[2] // (2 * t.known(t.x(2))[1])
    t.write("RotaryEmbedding", t.input(0), t.input(2), t.input(3), t.input(1), gives=0, **how)


# ------------------------------------------------------------------------------------------------------------- quantised


@fused("com.microsoft.QLinearSoftmax", inputs=5, becomes="Softmax of real values")
def quantised_softmax(t: ExpandedNode) -> None:
    on_reals(t, "Softmax", axis=t.attr("axis", -1))


@fused("com.microsoft.QLinearAveragePool", inputs=5, becomes="AveragePool of real values")
def quantised_average(t: ExpandedNode) -> None:
    t.require(not t.attr("channels_last", 0), "has channels last, must have them first")
    names = "auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"
    on_reals(t, "AveragePool", **{name: t.attr(name) for name in names})


def on_reals(t: ExpandedNode, op: str, **attributes: Any) -> None:
    """Write an operator between DequantizeLinear and QuantizeLinear."""
    x = t.write("DequantizeLinear", t.input(0), t.input(1), t.input(2))
    t.write("QuantizeLinear", t.write(op, x, **attributes), t.input(3), t.input(4), gives=0)
