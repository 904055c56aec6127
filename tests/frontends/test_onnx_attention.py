"""Attention and rotation by positions, of operator set 23, as ONNX Runtime computes them."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.frontends.cases import refused
from tests.frontends.onnx_models import by_nnhal, by_onnxruntime, check, model, node

RNG = np.random.default_rng(3)
DEVICES = "reference", "litert", "onnxruntime", "openvino"


def real(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


Q, K, V = real(2, 4, 5, 8), real(2, 4, 7, 8), real(2, 4, 7, 6)
SOME = RNG.integers(0, 2, (5, 7)) > 0
SOME[1] = False  # a query that reads nothing
FLOATS = np.where(SOME, 0, -np.inf).astype(np.float32)
LEAST = np.where(SOME, 0, np.finfo(np.float32).min)
PAST = {"pk": real(2, 4, 3, 8), "pv": real(2, 4, 3, 6)}
THREE = {"q": real(2, 5, 32), "k": real(2, 7, 32), "v": real(2, 7, 24)}
CASES = {
    "plain": ({}, {}),
    "scale": ({"scale": 0.3}, {}),
    "causal": ({"is_causal": 1}, {}),
    "softcap": ({"softcap": 0.7}, {}),
    "mask": ({}, {"m": real(5, 7)}),
    "mask of batches": ({}, {"m": real(2, 1, 5, 7)}),
    "mask, softcap": ({"softcap": 0.5}, {"m": real(2, 4, 5, 7)}),
    "mask, causal": ({"is_causal": 1}, {"m": real(5, 7)}),
    "mask of booleans": ({}, {"m": SOME}),
    "mask of booleans, causal": ({"is_causal": 1}, {"m": SOME}),
    "mask of infinities": ({}, {"m": FLOATS}),
    "softcap below 0": ({"softcap": -1.0}, {}),
    "of three dimensions": ({"q_num_heads": 4, "kv_num_heads": 4}, THREE),
    "shared keys": ({}, {"k": K[:, :2], "v": V[:, :2]}),
    "shared keys of three dimensions": (
        {"q_num_heads": 4, "kv_num_heads": 2},
        {"q": THREE["q"], "k": THREE["k"][..., :16], "v": THREE["v"][..., :12]},
    ),
    "past": ({}, PAST),
    "past, causal": ({"is_causal": 1}, PAST),
}


def attention(attributes, inputs, outputs="y", opset=23):
    names = "q k v"
    if "m" in inputs or "pk" in inputs or "s" in outputs:
        names += " m" if "m" in inputs else " -"
    names += " pk pv" if "pk" in inputs else ""
    return model([node("Attention", names, outputs, **attributes)], inputs, {}, outputs, opset)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_onnx_runtime(name, device):
    attributes, given = CASES[name]
    inputs = {"q": Q, "k": K, "v": V} | given
    made = attention(attributes, inputs, "y a b" if "pk" in given else "y")
    for found, wanted in zip(by_nnhal(made, inputs, device), by_onnxruntime(made, inputs), strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-6)


LEFT, RIGHT = {"left_window_size": 1}, {"right_window_size": 2}
SPECIFIED = {
    "mask of the least number, causal": (23, {"is_causal": 1}, {"m": LEAST}),
    "left": (25, LEFT, {}),
    "right": (25, RIGHT, {}),
    "left and right": (25, LEFT | RIGHT, {}),
    "left, causal": (25, LEFT | {"is_causal": 1}, {}),
    "left and right, past": (25, LEFT | RIGHT, PAST),
    "queries behind all keys": (25, LEFT, {"k": K[:, :, :2], "v": V[:, :, :2]}),
    "short mask": (24, {}, {"m": real(5, 4)}),
    "short mask of booleans": (24, {}, {"m": SOME[:, :4]}),
    "mask of the first key": (24, {}, {"m": real(5, 1)}),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SPECIFIED)
def test_attention_is_that_of_the_specification(name, device):
    """ONNX Runtime lacks these, or reads later positions if those before have the least number."""
    opset, attributes, given = SPECIFIED[name]
    inputs = {"q": Q, "k": K, "v": V} | given
    made = attention(attributes, inputs, "y a b" if "pk" in given else "y", opset)
    wanted = ReferenceEvaluator(made).run(None, inputs)
    for found, expected in zip(by_nnhal(made, inputs, device), wanted, strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("mode", range(4))
def test_the_products_of_queries_and_keys_are_an_output(mode):
    inputs = {"q": Q, "k": K, "v": V, "m": real(5, 7)}
    names = "q k v m"
    how = {"qk_matmul_output_mode": mode, "softcap": 0.9}
    nodes = [node("Attention", names, "y a b s", **how)]
    check(model(nodes, inputs, {}, "y s", opset=23), inputs)


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"q": real(2, 3, 5, 8), "k": K[:, :2], "v": V[:, :2]}, "has 3 heads of queries, must be a multiple of the 2"),
        ({"q": Q, "k": K, "v": V, "m": real(5, 4)}, "has a mask of 4 positions, must be of 7"),
    ],
)
def test_attention_that_does_not_fit_is_refused_by_name(inputs, why):

    made = attention({}, {"q": Q, "k": K, "v": V, "m": real(5, 7)} if "m" in inputs else {"q": Q, "k": K, "v": V})
    for each in made.graph.input:
        dims = inputs[each.name].shape
        for dim, size in zip(each.type.tensor_type.shape.dim, dims, strict=True):
            dim.dim_value = size
    refused(made, f"Attention #0: {why}")


X = {4: real(2, 4, 5, 8), 3: real(2, 5, 32)}
PLACES = np.array([[0, 3, 2, 9, 1], [4, 5, 6, 7, 15]])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("turned", [0, 4])
@pytest.mark.parametrize("places", [True, False])
@pytest.mark.parametrize("rank", [3, 4])
def test_rotation_by_positions_is_that_of_onnx_runtime(rank, places, turned, interleaved, device):
    half = (turned or 8) // 2
    how = {"interleaved": interleaved, "rotary_embedding_dim": turned, "num_heads": 4}
    angles = {name: real(16, half) if places else real(2, 5, half) for name in "cs"}
    inputs = {"x": X[rank], **angles} | ({"p": PLACES} if places else {})
    made = model([node("RotaryEmbedding", " ".join(inputs), **how)], inputs, opset=23)
    np.testing.assert_allclose(by_nnhal(made, inputs, device)[0], by_onnxruntime(made, inputs)[0], atol=2e-6)
