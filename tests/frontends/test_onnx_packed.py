"""Weights of four and two bits in `.onnx` files, and scales for blocks of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import nnhal
from nnhal.base.operands import Array
from tests.frontends.cases import malformed, refused
from tests.frontends.flat import packed
from tests.frontends.onnx_models import by_nnhal, check, model, node, saved

RANDOM = np.random.default_rng(5)
LIMITS = {"INT4": (-8, 8), "UINT4": (0, 16), "INT2": (-2, 2), "UINT2": (0, 4), "INT8": (-128, 128), "UINT8": (0, 256)}


def drawn(kind: str, *shape: int) -> Array:
    """Integers of a type, its least and greatest among them."""
    low, high = LIMITS[kind]
    found = RANDOM.integers(low, high, shape)
    found.flat[:2] = low, high - 1
    return found


def tensor(name: str, kind: str, numbers: Array, *, raw: bool) -> Any:
    """A tensor with its bytes as `raw_data`, or as numbers of int32."""
    of = getattr(TensorProto, kind)
    if kind.endswith("8"):
        return helper.make_tensor(name, of, numbers.shape, numbers.astype(f"{kind[0].lower()}1").tobytes(), raw=True)
    data = packed(f"int{kind[-1]}", numbers)
    made = TensorProto(name=name, data_type=of, dims=numbers.shape)
    if raw:
        made.raw_data = data.tobytes()
    else:
        made.int32_data.extend(data.tolist())
    return made


def product(kind: str, stored: Array, scale: Array, zero: Array | None, *, raw: bool = True, **how: Any) -> Any:
    """A MatMul with dequantised weights."""
    names = "w s z" if zero is not None else "w s"
    nodes = [node("DequantizeLinear", names, "r", **how), node("MatMul", "x r")]
    made = model(nodes, {"x": np.zeros((2, stored.shape[0]), "f4")}, {"s": scale}, opset=25, infer=False)
    made.ir_version = 13
    made.graph.initializer.append(tensor("w", kind, stored, raw=raw))
    if zero is not None:
        made.graph.initializer.append(tensor("z", kind, zero, raw=raw))
    return made


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("kind", ["INT4", "UINT4", "INT2", "UINT2"])
@pytest.mark.parametrize("form", ["one", "channels", "blocks", "blocks of rows"])
def test_weights_of_few_bits_are_real_values(kind, form, raw):
    stored, x = drawn(kind, 6, 7), RANDOM.normal(size=(2, 6)).astype("f4")
    shape: tuple[int, ...] = {"one": (), "channels": (7,), "blocks": (2, 7), "blocks of rows": (6, 3)}[form]
    scale = np.asarray(RANDOM.uniform(0.1, 1, shape), "f4")
    zero = np.asarray(RANDOM.integers(*LIMITS[kind], shape))
    axis = 0 if form == "blocks" else 1
    how = {"axis": axis} | ({"block_size": 4 if axis == 0 else 3} if "blocks" in form else {})
    steps, first = scale, zero
    if "blocks" in form:
        steps, first = (np.repeat(each, how["block_size"], axis)[:6, :7] for each in (scale, zero))
    real = (stored - first) * steps.astype("f8")
    (found,) = by_nnhal(product(kind, stored, scale, zero, raw=raw, **how), {"x": x})
    np.testing.assert_allclose(found, x @ real, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["INT4", "UINT4", "INT8", "UINT8"])
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_are_those_of_onnxruntime(kind, zeros, axis):
    stored, shape = drawn(kind, 8, 6), (2, 6) if axis == 0 else (8, 2)
    scale = np.asarray(RANDOM.uniform(0.1, 1, shape), "f4")
    zero = RANDOM.integers(*LIMITS[kind], shape) if zeros else None
    made = product(kind, stored, scale, zero, axis=axis, block_size=4 if axis == 0 else 3)
    made.opset_import[0].version, made.ir_version = 21, 10
    check(made, {"x": RANDOM.normal(size=(2, 8)).astype("f4")})


def test_weights_of_4_bits_may_lie_beside_the_file(tmp_path: Path):
    stored, x = drawn("INT4", 64, 33), RANDOM.normal(size=(2, 64)).astype("f4")
    made = product("INT4", stored, np.array(0.5, "f4"), None)
    path = saved(made, tmp_path, save_as_external_data=True, size_threshold=64, location="weights.bin")
    assert (tmp_path / "weights.bin").stat().st_size >= 64 * 33 // 2
    found = nnhal.compile(nnhal.load(path), devices="reference")(x)
    np.testing.assert_allclose(found, x @ (stored * 0.5), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [16, 1 << 40, 1 << 62])
def test_a_block_may_be_longer_than_the_weights(size):
    stored, scale, x = drawn("INT4", 8, 6), np.full((1, 6), 0.5, "f4"), RANDOM.normal(size=(2, 8)).astype("f4")
    (found,) = by_nnhal(product("INT4", stored, scale, None, axis=0, block_size=size), {"x": x})
    np.testing.assert_allclose(found, x @ (stored * 0.5), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("constant", [True, False])
def test_no_values_are_stored_with_4_bits(constant, raw):
    """NNAPI's 8-bit types would not clamp them to 4 bits."""
    x = np.array([-100, 2.5, 100], "f4")
    nodes = [node("QuantizeLinear", "c s z" if constant else "x s z", "q"), node("DequantizeLinear", "q s z", "r")]
    made = model([*nodes, node("Add", "x r")], {"x": x}, {"s": np.array(0.5, "f4"), "c": x}, opset=21, infer=False)
    made.graph.initializer.append(tensor("z", "INT4", np.array(1), raw=raw))
    assert "QuantizeLinear #0: stores values as INT4, must be UINT8 or INT8" in refused(made)


def test_what_does_not_fit_together_is_refused():
    stored, scale = drawn("INT4", 8, 6), np.ones((2, 6), "f4")
    for size in (3, -4):
        told = f"block_size is {size} and the scales have shape [2, 6], must fit [8, 6]"
        assert told in refused(product("INT4", stored, scale, None, axis=0, block_size=size))
    made = product("INT4", stored, np.array(1, "f4"), None)
    made.graph.initializer[1].raw_data += b"\0"
    assert "raw_data has 25 bytes, must have 24 for INT4 [8, 6]" in malformed(made)
    made = product("INT4", stored, np.array(1, "f4"), None, raw=False)
    made.graph.initializer[1].int32_data[3] = 256
    assert "has a value that is not UINT8, must be 0 to 255" in malformed(made)
    computed = model(
        [node("DequantizeLinear", "x s", axis=0, block_size=4)], {"x": stored.astype("i1")}, {"s": scale}, opset=21
    )
    assert "has scales for blocks of computed values" in refused(computed)
