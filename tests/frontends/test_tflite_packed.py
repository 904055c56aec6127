"""Weights of four and two bits in `.tflite` files: what LiteRT computes with them, or NumPy where it cannot."""

from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.operands import Array
from tests.frontends.cases import begin, malformed, refused, run
from tests.frontends.flat import Writer, litert, one_operator, schema, tensor

begin(__name__)

RANDOM = np.random.default_rng(4)
LIMITS = {"int4": (-8, 8), "int2": (-2, 2)}
KINDS = pytest.mark.parametrize("kind", LIMITS)


def drawn(kind: str, *shape: int) -> Array:
    """Integers of a type, its least and greatest among them."""
    low, high = LIMITS[kind]
    found = RANDOM.integers(low, high, shape)
    found.flat[:2] = low, high - 1
    return found


def layer(x: Array, shape: tuple[int, ...], weights: Any, **more: Any) -> bytes:
    """A FULLY_CONNECTED of floats."""
    w = Writer()
    given, filter = w.tensor(x.shape), w.tensor(shape, *weights, **more)
    y = w.tensor([len(x), shape[0]])
    w.operator("FULLY_CONNECTED", [given, filter], [y], "FullyConnected")
    return w.file([given], [y])


def blockwise(kind: str, stored: Array, parts: Array, size: int, **more: Any) -> bytes:
    """A FULLY_CONNECTED of floats, whose weights have a scale for each block. more: fields of the details."""
    return blocks(Writer(), kind, stored, parts, size, **more).bytes()


def blocks(w: Writer, kind: str, stored: Array, parts: Array, size: int, **more: Any) -> Writer:
    """Write it."""
    given, several = w.tensor([2, stored.shape[1]]), w.tensor(parts.shape, parts.dtype.str[1:], parts)
    filter, y = w.tensor(stored.shape, kind, stored), w.tensor([2, len(stored)])
    quant = w.graph.tensors[filter].quantization = schema.QuantizationParametersT()
    quant.detailsType, quant.details = schema.QuantizationDetails.BlockwiseQuantization, schema.BlockwiseQuantizationT()
    quant.details.scales, quant.details.zeroPoints, quant.details.blockSize = several, -1, size
    for name, value in more.items():
        setattr(quant.details, name, value)
    w.operator("FULLY_CONNECTED", [given, filter], [y], "FullyConnected")
    w.ends([given], [y])
    return w


@KINDS
@pytest.mark.parametrize("channels", [False, True])
def test_a_layer_of_floats_computes_with_the_real_weights(kind, channels):
    x, stored = RANDOM.normal(size=(2, 7)).astype("f4"), drawn(kind, 5, 7)
    scale = RANDOM.uniform(0.1, 1, 5 if channels else 1).astype("f4")
    found = run(layer(x, stored.shape, (kind, stored, scale)), [x])[0]
    np.testing.assert_allclose(found, x @ (stored * scale[:, None]).astype("f4").T, rtol=1e-5, atol=1e-5)


def test_the_real_values_are_those_of_litert():
    stored, scale = drawn("int4", 3, 5), [0.5, 0.25, 3.0]
    content = one_operator("DEQUANTIZE", [tensor([3, 5], "int4", stored, scale)], [tensor([3, 5])])
    assert run(content, [])[0].tolist() == litert(content)[0].tolist()


def test_a_layer_of_8_bits_gives_what_litert_gives():
    x, stored = RANDOM.integers(-128, 128, (1, 6, 6, 3)).astype("i1"), drawn("int4", 4, 3, 3, 3)
    w = Writer()
    given, scale = w.tensor(x.shape, "i1", None, 0.05, 3), np.array([0.1, 0.2, 0.05, 0.3], "f4")
    filter, y = w.tensor(stored.shape, "int4", stored, scale), w.tensor([1, 6, 6, 4], "i1", None, 0.2, -5)
    bias = w.tensor([4], "i4", [100, -50, 7, 0], scale * np.float32(0.05))
    w.operator("CONV_2D", [given, filter, bias], [y], "Conv2D", strideW=1, strideH=1)
    content = w.file([given], [y])
    distance = run(content, [x])[0].astype(int) - litert(content, x)[0].astype(int)
    assert np.abs(distance).max() <= 1


@pytest.mark.parametrize("kind", ["i1", "int4"])
@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 6), (6, 4)), ((2, 5, 3, 6), (6, 4)), ((2, 5, 3, 6), (2, 5, 6, 4)), ((2, 3, 6), (1, 1, 6, 4))],
)
def test_matrices_of_8_bits_may_have_a_scale_for_each_column(kind, turned, left, right):
    x, stored, scale = RANDOM.integers(-128, 128, left).astype("i1"), drawn("int4", *right), RANDOM.uniform(0.1, 1, 4)
    w = Writer()
    shape = (*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])
    given, y = w.tensor(left, "i1", None, 0.05, 3), w.tensor(shape, "i1", None, 0.4, -5)
    data = stored.swapaxes(-1, -2) if turned else stored
    more = {"axis": len(right) - (2 if turned else 1)}
    w.operator(
        "BATCH_MATMUL", [given, w.tensor(data.shape, kind, data, scale, **more)], [y], "BatchMatMul", adjY=turned
    )
    w.ends([given], [y])
    real = (x.astype("f8") - 3) * 0.05 @ (stored * scale.astype("f4"))
    wanted = np.clip(np.rint(real / np.float32(0.4)) - 5, -128, 127)
    found = run(w.bytes(), [x])[0]
    assert found.shape == wanted.shape
    distance = found.astype(int) - wanted
    assert np.abs(distance).max() <= 1


@pytest.mark.parametrize("kind", ["i1", *LIMITS])
@pytest.mark.parametrize("form", ["f2", "f4"])
def test_blocks_of_weights_have_their_scales(kind, form):
    x, stored = RANDOM.normal(size=(2, 12)).astype("f4"), drawn(kind if kind in LIMITS else "int4", 3, 12)
    scales = RANDOM.uniform(0.1, 1, (3, 3)).astype(form)
    real = (stored.reshape(3, 3, 4) * scales[..., None].astype("f8")).reshape(3, 12)
    found = run(blockwise(kind, stored, scales, 4), [x])[0]
    np.testing.assert_allclose(found, x @ real.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["i1", "int4"])
def test_a_channel_of_zeros_may_have_scale_0(kind):
    """As tools write it that scale each channel by its greatest weight."""
    x, stored, scale = RANDOM.normal(size=(1, 6)).astype("f4"), drawn("int4", 3, 6), np.array([0.5, 0, 0.25], "f4")
    stored[1] = 0
    found = run(layer(x, stored.shape, (kind, stored, scale)), [x])[0]
    np.testing.assert_allclose(found, x @ (stored * scale[:, None]).T, rtol=1e-5, atol=1e-6)
    stored[1, 2] = 1
    with pytest.raises(nnhal.BadFile, match="tensor 1: has scale 0, must be a finite number greater than 0"):
        nnhal.load(layer(x, stored.shape, (kind, stored, scale)))


@pytest.mark.parametrize("kind", ["i1", "u1", "i2"])
def test_scale_0_makes_weights_0_whatever_their_zero_point(kind):
    """LiteRT dequantises no INT16 with several scales."""
    stored, scale, zero = np.array([[1, 2, 3, 4], [0, 0, 0, 0]]), [0.5, 0], [0, 0] if kind == "i2" else [3, 7]
    for order in ([0, 1], [1, 0]):
        for turned in (order, order[::-1]):  # the scale 0 is that of the zeros, or of the others
            w = Writer()
            x = w.tensor([2, 4], kind, stored[order], np.array(scale)[turned], np.array(zero)[turned])
            y = w.tensor([2, 4])
            w.operator("DEQUANTIZE", [x], [y])
            w.ends([], [y])
            if turned != order:
                assert "has scale 0, must be a finite number greater than 0" in malformed(w.bytes())
                continue
            real = (stored - np.array(zero)[:, None]) * np.array(scale)[:, None]
            assert np.array_equal(run(w.bytes(), [])[0], real[order])
            assert kind == "i2" or np.array_equal(litert(w.bytes())[0], real[order])


def test_what_does_not_fit_together_is_refused():
    stored, scales = drawn("int4", 3, 12), np.ones((3, 3), "f4")
    assert "has blocks of 5 elements, must divide the last dimension of [3, 12]" in malformed(
        blockwise("int4", stored, scales, 5)
    )
    assert "has blocks of 0 elements" in malformed(blockwise("int4", stored, scales, 0))
    assert "has zero points for blocks, must have none" in malformed(blockwise("int4", stored, scales, 4, zeroPoints=1))
    for number in (-1, 0, 2, 99):  # 2 are the weights themselves
        told = f"scales of its blocks are tensor {number}, must be a constant of 9 floats from 0"
        assert told in malformed(blockwise("int4", stored, scales, 4, scales=number))
    assert "must be a constant of 18 floats from 0" in malformed(blockwise("int4", stored, scales, 2))
    for wrong in (-1, np.inf, np.nan):
        assert "must be a constant of 9 floats from 0" in malformed(blockwise("int4", stored, scales * wrong, 4))
    assert "of FLOAT32 has scales for blocks, must be INT8, INT4, INT2" in malformed(blockwise("f4", stored, scales, 4))

    def sparse(model: Any) -> None:
        model.subgraphs[0].tensors[2].sparsity = schema.SparsityParametersT()

    w = blocks(Writer(), "i1", stored, scales, 4)
    assert "is sparse and has scales for blocks, must be one of both" in malformed(w.bytes(sparse))
    content = one_operator("DEQUANTIZE", [tensor([3], "int4", [1, 2], 0.5)], [tensor([3])])
    assert "has 1 bytes in buffer 1, must have 2" in malformed(content)


def test_inputs_of_4_bits_are_refused():
    content = one_operator("DEQUANTIZE", [tensor([3], "int4", None, 0.5)], [tensor([3])])
    assert "is INT4, which NNAPI has no type for" in refused(content)
