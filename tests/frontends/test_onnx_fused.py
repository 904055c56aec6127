"""Nodes that ONNX Runtime's optimiser writes in place of several, one by one, and whole optimised models."""

import numpy as np
import pytest
from onnx import TensorProto

from tests.frontends.cases import refused
from tests.frontends.onnx_models import by_nnhal, by_onnxruntime, check, model, node, optimised, quantised

RNG = np.random.default_rng(3)
DEVICES = "reference", "litert", "onnxruntime", "openvino"
CASES = {}


def real(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def fused(op, names, outputs="y", **attributes):
    return node(op, names, outputs, "com.microsoft", **attributes)


def case(name, made, inputs, constants=None, outputs="y"):
    CASES[name] = made, inputs, constants or {}, outputs


X, W = {"x": real(1, 4, 6, 6)}, {"w": real(5, 4, 3, 3), "b": real(5)}
SAME = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
for activation, values in {
    "Relu": None,
    "Tanh": None,
    "Sigmoid": None,
    "LeakyRelu": [0.2],
    "Clip": [-0.5, 3.0],
    "HardSigmoid": [0.3, 0.4],
    "HardSwish": None,
}.items():
    how = {"activation": activation, "activation_params": values, **SAME}
    case(f"FusedConv {activation}", fused("FusedConv", "x w b", **how), X, W)
case("FusedConv of a sum", fused("FusedConv", "x w b z", activation="Relu", **SAME), X | {"z": real(1, 5, 6, 6)}, W)
case("FusedConv without bias", fused("FusedConv", "x w", activation="Relu", kernel_shape=[3, 3]), X, {"w": W["w"]})
case("FusedConv without activation", fused("FusedConv", "x w b", **SAME), X, W)
for activation, values in {
    "Celu": {"alpha": 0.7},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "Selu": {"alpha": 1.0, "gamma": 1.3},
    "Softplus": {},
    "Softsign": {},
    "ThresholdedRelu": {"alpha": 0.3},
}.items():
    how = {f"activation_{name}": value for name, value in values.items()}
    layer = fused("FusedGemm", "x w b", activation=activation, **how)
    case(f"FusedGemm {activation}", layer, {"x": real(3, 4)}, {"w": real(4, 5), "b": real(5)})
gemm = fused("FusedGemm", "x w b", activation="LeakyRelu", activation_alpha=0.3, transB=1, alpha=0.5)
case("FusedGemm", gemm, {"x": real(3, 4)}, {"w": real(5, 4), "b": real(5)})
for a in (0, 1):
    for b in (0, 1):
        sides = {"x": real(2, 4, 3) if a else real(2, 3, 4), "z": real(2, 5, 4) if b else real(2, 4, 5)}
        case(f"FusedMatMul {a} {b}", fused("FusedMatMul", "x z", transA=a, transB=b, alpha=0.7), sides)
for bits in (2, 4, 8):
    packed = {"b": RNG.integers(0, 256, (6, 4, 2 * bits), np.uint8), "s": np.abs(real(6, 4))}
    how = {"K": 50, "N": 6, "bits": bits, "block_size": 16}
    rows = {"x": real(2, 3, 50)}
    case(f"MatMulNBits {bits}", fused("MatMulNBits", "x b s", **how), rows, packed)
    case(f"MatMulNBits {bits}, bias", fused("MatMulNBits", "x b s - - c", **how), rows, packed | {"c": real(6)})
    zeros = packed | {"z": RNG.integers(0, 256, 6 * bits // 2, np.uint8), "s": packed["s"].reshape(-1)}
    case(f"MatMulNBits {bits}, zero points", fused("MatMulNBits", "x b s z", **how), rows, zeros)
packed = {"b": RNG.integers(0, 256, (6, 4, 8), np.uint8), "s": np.abs(real(6, 4))}
case("MatMulNBits", fused("MatMulNBits", "x b s", K=50, N=6, block_size=16), {"x": real(2, 3, 50)}, packed)
signed = {"b": RNG.integers(-128, 127, (8, 5)).astype(np.int8), "s": np.float32([0.01]), "z": np.int8([0])}
case("DynamicQuantizeMatMul", fused("DynamicQuantizeMatMul", "x b s z c"), {"x": real(3, 8)}, signed | {"c": real(5)})
unsigned = {"b": RNG.integers(0, 255, (8, 5)).astype(np.uint8), "s": np.float32([0.01]), "z": np.uint8([120])}
case("DynamicQuantizeMatMul, unsigned", fused("DynamicQuantizeMatMul", "x b s z"), {"x": real(3, 8)}, unsigned)
for op, how in (("Gelu", {}), ("FastGelu", {}), ("QuickGelu", {"alpha": 1.5}), ("QuickGelu", {})):
    case(f"{op} {how}", fused(op, "x", **how), {"x": real(3, 8)})
for op in ("FastGelu", "BiasGelu"):
    case(f"{op} of a sum", fused(op, "x c"), {"x": real(3, 8)}, {"c": real(8)})
two, eight = {"x": real(2, 3, 8), "k": real(2, 3, 8)}, {"g": real(8), "b": real(8), "c": real(8)}
skip = fused("SkipLayerNormalization", "x k g b c", "y a d s", epsilon=1e-5)
case("SkipLayerNormalization", skip, two, eight, "y s")
case("SkipLayerNormalization of two", fused("SkipLayerNormalization", "x k g"), two, {"g": real(8)})
skip = fused("SkipSimplifiedLayerNormalization", "x k g", "y a d s")
case("SkipSimplifiedLayerNormalization", skip, two, {"g": real(8)}, "y s")
simple = node("SimplifiedLayerNormalization", "x g", epsilon=1e-5, axis=-1)
case("SimplifiedLayerNormalization", simple, {"x": real(2, 3, 8)}, {"g": real(8)})
words = {"i": np.int32([[1, 2, 3], [4, 5, 6]]), "j": np.int32([[0, 0, 1], [1, 0, 1]])}
tables = {"w": real(10, 8), "p": real(7, 8), "q": real(2, 8), "g": real(8), "b": real(8)}
case("EmbedLayerNormalization", fused("EmbedLayerNormalization", "i j w p q g b", "y m"), words, tables)
at = {"i": words["i"], "n": np.int32([[2, 1, 0], [3, 4, 5]])}
tables = {name: table for name, table in tables.items() if name != "q"}
case("EmbedLayerNormalization at positions", fused("EmbedLayerNormalization", "i - w p - g b - n", "y m"), at, tables)
sizes = {"w": (10, 8), "p": (7, 8), "q": (2, 8), "g": 8, "b": 8}
few = {name: RNG.integers(0, 256, size, np.uint8) for name, size in sizes.items()}
few |= {f"s{n}": np.float32(0.01 * (n + 1)) for n in range(5)} | {f"z{n}": np.uint8(100 + n) for n in range(5)}
scales, zeros = (" ".join(f"{name}{n}" for n in range(5)) for name in "sz")
case(
    "QEmbedLayerNormalization",
    fused("QEmbedLayerNormalization", f"i j w p q g b k {scales} {zeros}", "y m"),
    words | {"k": words["j"]},
    few,
)
row, packed = {"x": real(2, 3, 8)}, {"w": real(8, 24), "b": real(24)}
case("Attention", fused("Attention", "x w b", num_heads=2), row, packed)
masks = np.int32([[1, 1, 0], [1, 1, 1]]), RNG.integers(0, 2, (2, 3, 3)).astype(np.int32)
for mask in masks:
    case(f"Attention, mask of {mask.ndim}", fused("Attention", "x w b m", num_heads=2), row | {"m": mask}, packed)
for ends in ([2, 3], [2, 3, 1, 0]):  # then where they begin
    masked = row | {"m": np.int32(ends)}
    case(f"Attention, keys to {ends}", fused("Attention", "x w b m", num_heads=2), masked, packed)
case("Attention, added", fused("Attention", "x w b - - a", num_heads=2), row | {"a": real(2, 2, 3, 3)}, packed)
case("Attention, causal", fused("Attention", "x w b", num_heads=2, unidirectional=1), row, packed)
sizes = fused("Attention", "x w b", num_heads=2, qkv_hidden_sizes=[8, 8, 6])
case("Attention, sizes", sizes, row, {"w": real(8, 22), "b": real(22)})
three, keys = {"q": real(2, 3, 8), "k": real(2, 5, 8), "v": real(2, 5, 6)}, np.int32([[1, 1, 0, 1, 0], [1] * 5])
case("MultiHeadAttention", fused("MultiHeadAttention", "q k v", num_heads=2), three)
case("MultiHeadAttention, bias", fused("MultiHeadAttention", "q k v b", num_heads=2), three, {"b": real(22)})
case("MultiHeadAttention, mask", fused("MultiHeadAttention", "q k v - m", num_heads=2), three | {"m": keys})
lengths = three | {"m": np.int32([2, 5])}
case("MultiHeadAttention, lengths", fused("MultiHeadAttention", "q k v - m", num_heads=2), lengths)
case("MultiHeadAttention, present", fused("MultiHeadAttention", "q k v", "y p r", num_heads=2), three)
square = {"q": real(2, 3, 8), "k": real(2, 3, 8), "v": real(2, 3, 8)}
case("MultiHeadAttention, causal", fused("MultiHeadAttention", "q k v", num_heads=2, unidirectional=1), square)
both = fused("MultiHeadAttention", "q k v - m a", num_heads=2, scale=0.4)
case("MultiHeadAttention, mask, added", both, three | {"m": keys, "a": real(1, 2, 3, 5)})
places = np.array([[0, 3, 2], [4, 5, 7]])
for turned in (0, 1):
    rotate = fused("RotaryEmbedding", "x i c s", interleaved=turned)
    case(f"RotaryEmbedding {turned}", rotate, row | {"i": places}, {"c": real(9, 2), "s": real(9, 2)})
    case(f"RotaryEmbedding {turned} from 5 on", rotate, row | {"i": np.array([5])}, {"c": real(9, 2), "s": real(9, 2)})
    heads = {"x": real(2, 2, 3, 8), "i": places}
    case(f"RotaryEmbedding {turned} of heads", rotate, heads, {"c": real(9, 4), "s": real(9, 4)})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_a_fused_node_is_computed_as_by_onnx_runtime(name, device):
    fused_node, inputs, constants, outputs = CASES[name]
    check(model([fused_node], inputs, constants, outputs), inputs, device=device)


def test_the_lengths_of_a_mask_are_an_output_of_embeddings():
    """Of each row of the mask, the ones are counted, and nothing else."""
    inputs = words | {"k": np.int32([[1, 1, 0], [2, 1, 0]])}
    constants = {"w": real(10, 8), "p": real(7, 8), "q": real(2, 8), "g": real(8), "b": real(8)}
    embed = fused("EmbedLayerNormalization", "i j w p q g b k", "e m")
    check(model([embed], inputs, constants, "m", otherwise=TensorProto.INT32), inputs)
    attend = fused("Attention", "e v - m", num_heads=2)
    check(model([embed, attend], inputs, constants | {"v": real(8, 24)}), inputs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("per_channel", [True, False])
def test_a_layer_of_an_encoder_that_is_quantised_runs_as_in_onnx_runtime(per_channel, device, tmp_path):
    inputs = words | {"k": np.int32([[1, 1, 1], [1, 1, 0]])}
    constants = {"w": real(10, 8), "p": real(7, 8), "q": real(2, 8), "g": real(8), "b": real(8)}
    constants |= {"v": real(8, 24), "c": real(24)}
    nodes = [fused("EmbedLayerNormalization", "i j w p q g b k", "e m"), fused("Attention", "e v c m", num_heads=2)]
    made = quantised(model(nodes, inputs, constants), tmp_path, per_channel=per_channel)
    assert {"QEmbedLayerNormalization", "QAttention"} <= {each.op_type for each in made.graph.node}
    check(made, inputs, device=device)


HALF = {"x": real(2, 3, 8).astype(np.float16)}
FEW = {"b": RNG.integers(0, 256, (6, 1, 8), np.uint8), "w": real(6, 1)}


@pytest.mark.parametrize(
    ("made", "inputs", "constants"),
    [
        (fused("FusedMatMul", "x w", alpha=0.5), HALF, {"w": real(8, 5)}),
        (fused("Attention", "x w - m", num_heads=2), HALF | {"m": masks[0]}, {"w": real(8, 24)}),
        (fused("MatMulNBits", "x b w", K=8, N=6, block_size=16), HALF, FEW),
    ],
)
def test_a_fused_node_of_float16_is_computed_as_by_onnx_runtime(made, inputs, constants):
    halves = {name: data.astype(np.float16) if name == "w" else data for name, data in constants.items()}
    check(model([made], inputs, halves, otherwise=TensorProto.FLOAT16), inputs)


@pytest.mark.parametrize(
    ("size", "more", "told"),
    [
        (3, {}, "block_size is 3, must be a power of 2 from 16"),
        (8, {}, "block_size is 8, must be a power of 2 from 16"),
        (48, {}, "block_size is 48, must be a power of 2 from 16"),
        (16, {"b": np.zeros((6, 1, 8), np.int32)}, "B has 192 bytes, must have 48"),
        (16, {"z": np.zeros((6, 1), np.int8)}, "zero_points must be UINT8 or floats"),
    ],
)
def test_weights_in_blocks_that_onnx_runtime_has_no_form_for_are_refused(size, more, told):
    weights = FEW | {"z": np.zeros(6, np.uint8)} | more
    refused(model([fused("MatMulNBits", "x b w z", K=8, N=6, block_size=size)], {"x": real(2, 8)}, weights), told)


BYTES = {"x": RNG.integers(0, 255, (1, 3, 6, 6)).astype(np.uint8)}


@pytest.mark.parametrize(
    ("op", "how"),
    [
        ("QLinearAveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("QLinearAveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        ("QLinearAveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "count_include_pad": 1}),
        ("QLinearSoftmax", {"axis": -1, "opset": 13}),
        ("QLinearSoftmax", {"axis": 1, "opset": 13}),
        ("QLinearSoftmax", {"axis": 1, "opset": 12}),
    ],
)
def test_a_quantised_node_is_one_step_off_at_most(op, how):
    steps = {"a": np.float32(0.02), "b": np.uint8(120), "c": np.float32(1 / 128), "d": np.uint8(100)}
    made = model([fused(op, "x a b c d", **how)], BYTES, steps, otherwise=TensorProto.UINT8)
    check(made, BYTES, steps=1)


@pytest.mark.parametrize("op", ["QLinearSigmoid", "QLinearLeakyRelu"])
def test_a_result_without_a_zero_point_is_of_the_type_of_the_input(op):
    inputs = {"x": RNG.integers(-128, 127, (3, 8)).astype(np.int8)}
    steps = {"a": np.float32(0.02), "c": np.float32(1 / 64)}
    check(model([fused(op, "x a - c -")], inputs, steps, otherwise=TensorProto.INT8), inputs, steps=1)


@pytest.mark.parametrize(
    ("made", "inputs", "why"),
    [
        (fused("FusedConv", "x w b", activation="Elu", **SAME), X, "FusedConv #0: activation is 'Elu', must be one of"),
        (
            fused("FusedConv", "x w b", activation="Clip", **SAME),
            X,
            "FusedConv #0: activation_params has 0 numbers, must be min and max of Clip",
        ),
        (
            fused("FusedConv", "x w b", activation="LeakyRelu", activation_params=[0.1, 0.2], **SAME),
            X,
            "FusedConv #0: activation_params has 2 numbers, must be alpha of LeakyRelu",
        ),
        (fused("FusedGemm", "x x"), {"x": real(4, 4)}, "FusedGemm #0: activation is '', must be one of Relu"),
        (
            fused("FusedGemm", "x x", activation="LeakyRelu"),
            {"x": real(4, 4)},
            "FusedGemm #0: has no activation_alpha, must have that of LeakyRelu",
        ),
        (fused("FusedMatMul", "x x", transBatchA=1), X, "FusedMatMul #0: transBatchA is 1, must be 0"),
        (
            fused("MatMulNBits", "x w w", K=4, N=5, bits=3, block_size=16),
            X,
            "MatMulNBits #0: bits is 3, must be 2, 4 or 8",
        ),
        (fused("SkipLayerNormalization", "x x w", "y m"), X, "SkipLayerNormalization #0: output 1 is read"),
    ],
)
def test_what_a_fused_node_has_beyond_others_is_refused_by_name(made, inputs, why):
    outputs = " ".join(made.output)
    refused(model([made], inputs, W, outputs, infer=False), why)


def test_an_optimised_model_is_what_it_was(tmp_path):
    """The optimiser of ONNX Runtime fuses these nodes itself."""
    names = ["g", "b", "h", "k"]
    constants = {"w": real(8, 16), "v": real(16, 8), **{name: real(8) for name in names}, "c": real(16)}
    nodes = [
        node("LayerNormalization", "x g b", "n", epsilon=1e-5),
        node("MatMul", "n w", "m"),
        node("Add", "m c", "s"),
        node("Sigmoid", "s", "e"),
        node("Mul", "s e", "q"),
        node("MatMul", "q v", "o"),
        node("Add", "o x", "r"),
        node("LayerNormalization", "r h k", epsilon=1e-5),
    ]
    inputs = {"x": real(2, 3, 8)}
    made = model(nodes, inputs, constants)
    found = optimised(made, tmp_path / "optimised.onnx")
    assert {each.op_type for each in found.graph.node if each.domain} == {"QuickGelu", "SkipLayerNormalization"}
    np.testing.assert_allclose(by_nnhal(found, inputs)[0], by_onnxruntime(made, inputs)[0], atol=1e-5)
