"""Spectra, their windows and Col2Im in `.onnx` files: what ONNX Runtime computes, or onnx's reference evaluator."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

import nnhal
from nnhal.base.operands import Array
from tests.frontends.onnx_models import by_nnhal, check, model, node

RANDOM = np.random.default_rng(6)


def real(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype("f4")


DFTS: list[tuple[int, tuple[int, ...], dict[str, int], int | None, int | None]] = [
    (17, (2, 12, 1), {}, None, None),
    (17, (2, 12, 2), {}, None, None),
    (17, (2, 12, 1), {"onesided": 1}, None, None),
    (17, (2, 11, 1), {"onesided": 1}, None, None),
    (17, (2, 12, 2), {"inverse": 1}, None, None),
    (17, (2, 5, 7, 1), {"axis": 2}, None, None),
    (17, (2, 5, 7, 2), {"axis": 1}, 8, None),
    (17, (2, 12, 1), {"onesided": 1}, 8, None),
    (17, (2, 12, 2), {"inverse": 1}, 16, None),
    (20, (2, 5, 7, 1), {}, None, None),
    (20, (2, 5, 7, 2), {"inverse": 1}, None, 1),
    (20, (2, 5, 7, 1), {"onesided": 1}, 6, -2),
    (20, (3, 2, 5, 1), {}, None, 0),
]


@pytest.mark.parametrize(("opset", "shape", "how", "length", "axis"), DFTS)
def test_a_transform_is_that_of_numpy(opset, shape, how, length, axis):
    x, names, constants = real(*shape), ["x"], dict[str, Array]()
    for name, value in (("n", length), ("a", axis)):
        names.append(name if value is not None else "-")
        constants |= {name: np.array(value, np.int64)} if value is not None else {}
    while names[-1] == "-":
        names.pop()
    made = model([node("DFT", " ".join(names), **how)], {"x": x}, constants, opset=opset)
    (found,) = by_nnhal(made, {"x": x})
    along = how.get("axis", 1) if opset < 20 else -2 if axis is None else axis
    pairs = (x[..., 0] + (1j * x[..., 1] if shape[-1] == 2 else 0)).astype(np.complex128)
    along = along if along >= 0 else along + 1  # of the array without the parts
    function = np.fft.ifft if how.get("inverse") else np.fft.fft
    wanted = function(pairs, length, along)
    if how.get("onesided"):
        wanted = wanted.take(range(wanted.shape[along] // 2 + 1), along)
    assert found.shape == (*wanted.shape, 2)
    np.testing.assert_allclose(found, np.stack([wanted.real, wanted.imag], -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [17, 20])
def test_a_transform_is_that_of_onnxruntime(opset):
    check(model([node("DFT", "x", onesided=1)], {"x": (x := real(2, 16, 1))}, opset=opset), {"x": x})


@pytest.mark.parametrize(("window", "length"), [(True, None), (True, 8), (False, 8)])
@pytest.mark.parametrize(("shape", "sided"), [((2, 40), 1), ((2, 40, 1), 1), ((2, 40, 1), 0), ((1, 33, 2), 0)])
def test_short_time_transforms_are_those_of_onnxruntime(shape, sided, window, length):
    x, constants = real(*shape), {"s": np.array(3), "w": np.hanning(8).astype("f4"), "n": np.array(8)}
    names = f"x s {'w' if window else '-'} {'n' if length else ''}"
    made = model([node("STFT", names, onesided=sided)], {"x": x}, constants)
    if shape[-1] != 2 and len(shape) == 3:  # of others ONNX Runtime gives other shapes, or nothing
        check(made, {"x": x})
    (found,) = by_nnhal(made, {"x": x})
    whole = x.reshape(*shape[:2], -1).astype("f8")
    signal = whole[..., 0] + (1j * whole[..., 1] if shape[-1] == 2 else 0)
    frames = np.lib.stride_tricks.sliding_window_view(signal, 8, 1)[:, ::3] * (constants["w"] if window else 1)
    wanted = np.fft.fft(frames)[..., : 5 if sided else 8]
    np.testing.assert_allclose(found, np.stack([wanted.real, wanted.imag], -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("image", "block", "how"),
    [
        ((5, 5), (1, 5), {}),
        ((6, 6), (2, 2), {"strides": [2, 2]}),
        ((7, 9), (3, 2), {"strides": [2, 1], "pads": [1, 0, 1, 1]}),
        ((8, 7), (2, 3), {"dilations": [2, 1]}),
        ((8, 8), (3, 3), {"strides": [2, 2]}),
    ],
)
def test_columns_are_added_up_as_by_onnx(image, block, how):
    pads, strides, dilations = how.get("pads", [0] * 4), how.get("strides", [1, 1]), how.get("dilations", [1, 1])
    count = int(
        np.prod(
            [(image[n] + pads[n] + pads[n + 2] - (block[n] - 1) * dilations[n] - 1) // strides[n] + 1 for n in (0, 1)]
        )
    )
    x, constants = real(2, 3 * block[0] * block[1], count), {"i": np.array(image), "b": np.array(block)}
    made = model([node("Col2Im", "x i b", **how)], {"x": x}, constants, opset=18)
    (wanted,) = ReferenceEvaluator(made).run(None, {"x": x})
    (found,) = by_nnhal(made, {"x": x})
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_are_those_of_onnxruntime(op, periodic):
    nodes, x = [node(op, "n", "w", periodic=periodic), node("Mul", "x w")], {"x": real(2, 10)}
    check(model(nodes, x, {"n": np.array(10)}), x)


def refused(nodes: Any, inputs: Any, constants: Any, opset: int = 17) -> str:
    with pytest.raises(nnhal.UnsupportedModel) as caught:
        nnhal.load(model([nodes], inputs, constants, opset=opset, otherwise=TensorProto.FLOAT).SerializeToString())
    return str(caught.value)


def test_what_has_no_meaning_is_refused():
    assert "is inverse and of one side" in refused(node("DFT", "x", onesided=1, inverse=1), {"x": real(2, 8, 1)}, {})
    assert "must be of 1 or 2 parts" in refused(node("DFT", "x"), {"x": real(2, 8, 3)}, {})
    assert "axis is 3 of an input of 3 dimensions" in refused(node("DFT", "x", axis=3), {"x": real(2, 8, 1)}, {})
    steps = {"s": np.array(2), "w": np.ones(9, "f4"), "n": np.array(8)}
    assert "has a window of 9, must be 8" in refused(node("STFT", "x s w n"), {"x": real(1, 20, 1)}, steps)
    assert "has frames of 9 and steps of 2 in a signal of 5" in refused(
        node("STFT", "x s w"), {"x": real(1, 5, 1)}, steps
    )
    places = {"i": np.array([4, 4]), "b": np.array([2, 2])}
    told = refused(node("Col2Im", "x i b"), {"x": real(1, 8, 10)}, places, 18)
    assert "has 10 columns, must have 9" in told


def test_a_block_of_columns_needs_no_more_memory_than_an_import_may():
    places = {"i": np.array([300, 300]), "b": np.array([300, 300])}
    made = model([node("Col2Im", "x i b")], {"x": real(1, 90_000, 1)}, places, opset=18)
    with pytest.raises(nnhal.BadFile, match=r"Col2Im #0: needs more than .* bytes of constants"):
        nnhal.load(made.SerializeToString())
