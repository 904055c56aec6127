"""Numbers of DOUBLE in `.onnx` files: computed in float32, given and returned in float64. The oracle computes in 64 bits."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import nnhal
from tests.frontends.onnx_models import by_nnhal, by_onnxruntime, check, check_nodes, model, node
from tests.frontends.test_onnx_nodes import CASES

LEAST_COMPARED = 200
X = np.array([[0.5, -1.25, 3.0], [2.0, 0.1, -7.5]])


def in_64_bits(arrays: Any) -> dict[str, np.ndarray]:
    return {
        name: np.asarray(x, np.float64 if np.asarray(x).dtype == np.float32 else None) for name, x in arrays.items()
    }


def test_nodes_of_double_give_what_onnx_runtime_gives():
    compared, lacking = 0, 0
    for case in CASES:
        nodes, inputs, constants, outputs, opset = case.values
        given, known = in_64_bits(inputs), in_64_bits(constants or {})
        if not any(x.dtype == np.float64 for x in (*given.values(), *known.values())):
            continue
        made = model(nodes, given, known, outputs, opset)
        try:
            by_onnxruntime(made, given)
        except Exception as error:  # ONNX Runtime has no kernel of DOUBLE for the node
            assert type(error).__module__.startswith("onnxruntime")
            lacking += 1
            continue
        check(made, given)
        compared += 1
    assert compared >= LEAST_COMPARED, (compared, lacking)


@pytest.mark.parametrize("device", ["reference", "litert", "onnxruntime", "openvino"])
def test_a_model_of_double_takes_and_returns_float64(device: str) -> None:
    constants = {"w": np.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.1]]), "b": np.array([0.25, -0.5])}
    made = model([node("MatMul", "x w", "m"), node("Add", "m b", "s"), node("Tanh", "s")], {"x": X}, constants)
    check(made, {"x": X}, device=device)


def test_the_model_says_that_it_computes_in_float32():
    made = model([node("Neg", "x")], {"x": X})
    assert nnhal.load(made.SerializeToString()).notes == (
        "numbers of DOUBLE are computed in float32: NNAPI has no 64-bit floats",
    )
    known = model([node("Mul", "x c")], {"x": X.astype(np.float32)}, {"c": np.ones(3, np.float32), "unread": X})
    assert nnhal.load(known.SerializeToString()).notes == ()
    unread = [node("Cast", "x", "d", to=TensorProto.DOUBLE), node("Exp", "d", "e"), node("Neg", "x")]
    assert nnhal.load(model(unread, {"x": X.astype(np.float32)}).SerializeToString()).notes == ()


def test_an_open_batch_fences_and_a_scalar():
    made = model([node("Mul", "x k")], {"x": X, "k": np.array(2.5)}, shapes={"x": ["rows", 3]})
    compiled = nnhal.compile(nnhal.load(made.SerializeToString(), shapes={"x": (0, 3)}), devices="reference")
    for rows in (1, 4):
        x = np.arange(3.0 * rows).reshape(rows, 3)
        assert compiled(x, np.array(2.5)).tolist() == (x * 2.5).tolist()
    fixed = nnhal.compile(nnhal.load(made.SerializeToString(), shapes={"x": (2, 3)}), devices="reference")
    assert fixed.execute_fenced(X, np.array(2.5)).result().tolist() == (X * 2.5).astype(np.float32).tolist()
    out = np.empty((2, 3))
    assert fixed(X, np.array(2.5), out=out) is out and out.tolist() == (X * 2.5).astype(np.float32).tolist()


def test_a_number_beyond_float32_is_refused():
    compiled = nnhal.compile(
        nnhal.load(model([node("Neg", "x")], {"x": np.zeros(2)}).SerializeToString()), devices="reference"
    )
    assert compiled(np.array([np.inf, np.nan]))[0] == -np.inf
    with pytest.raises(nnhal.InvalidRequest, match=r"input 0 \(x\).* 1e\+300, must be"):
        compiled(np.array([0, 1e300]))
    with pytest.raises(nnhal.InvalidRequest, match="is float32, must be float64"):
        compiled(np.zeros(2, np.float32))
    assert repr(compiled.inputs) == "(<Spec: 'x' FLOAT64[2]>,)"


def test_constants_stay_finite_and_other_than_zero():
    limits = np.finfo(np.float64)
    constants = {"most": np.array(limits.max), "least": np.array(-limits.max), "tiny": np.array(limits.tiny)}
    made = model([node("Mul", "x least", "m"), node("Max", "m tiny", "t"), node("Min", "t most")], {"x": X}, constants)
    found = nnhal.compile(nnhal.load(made.SerializeToString()), devices="reference")(np.array([[0.0, 1, 2]] * 2))
    tiny = float(np.finfo(np.float32).tiny)
    assert found.tolist() == [[tiny, tiny, tiny]] * 2


def test_a_signalling_nan_is_nan():
    nan = np.array([0x7FF0000000000001], np.uint64).view(np.float64)
    made = model([node("Add", "x c")], {"x": X}, {"c": nan})
    assert np.isnan(nnhal.compile(nnhal.load(made.SerializeToString()), devices="reference")(X)).all()


def test_constants_are_computed_in_64_bits():
    constants = {"a": np.array([2.0**40 + 1]), "b": np.array([2.0**40])}
    check_nodes([node("Sub", "a b", "c"), node("Mul", "x c")], {"x": X}, constants)


@pytest.mark.parametrize("truth", [True, False])
def test_branches_of_double(truth: bool) -> None:
    def branch(op: str) -> Any:
        made = node(op, "x", f"out_{op}")
        return helper.make_graph([made], op, [], [helper.make_tensor_value_info(f"out_{op}", TensorProto.DOUBLE, None)])

    chosen = node("If", "c", "y", then_branch=branch("Neg"), else_branch=branch("Abs"))
    inputs = {"x": X, "c": np.array([truth])}
    check(model([chosen], inputs, otherwise=TensorProto.DOUBLE), inputs)


def test_conversions():
    nodes = [node("Cast", "x", "d", to=TensorProto.DOUBLE), node("Exp", "d", "e"), node("Cast", "e", to=1)]
    check(model(nodes, {"x": X.astype(np.float32)}), {"x": X.astype(np.float32)})
    whole = np.array([[1, -5, 7]], np.int64)
    nodes = [node("Cast", "x", "d", to=TensorProto.DOUBLE), node("Div", "d k"), node("Cast", "d", "i", to=7)]
    check(model(nodes, {"x": whole}, {"k": np.array(3.0)}, "y i"), {"x": whole})


@pytest.mark.parametrize("exponent", [2.0, 0.5, [1.0, 2.0, 3.0]])
@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("kinds", [(np.float32, np.float64), (np.float64, np.float32)])
def test_a_power_has_the_type_of_its_base(exponent: Any, computed: bool, kinds: tuple[type[Any], type[Any]]) -> None:
    base, power = np.abs(X).astype(kinds[0]), {"p": np.array(exponent, kinds[1])}
    check_nodes(node("Pow", "x p"), {"x": base} | (power if computed else {}), {} if computed else power)


@pytest.mark.parametrize("device", ["reference", "litert", "onnxruntime", "openvino"])
def test_padding_beyond_float32_is_finite(device: str) -> None:
    """Such a limit stands for the least number, as a mask does."""
    constants = {"pads": np.array([0, 1, 0, 0]), "least": np.array(-1.7e308)}
    nodes = [node("Pad", "x pads least", "padded"), node("ReduceMax", "padded", "y", axes=[1])]
    check(model(nodes, {"x": X}, constants), {"x": X}, device=device)
    found = by_nnhal(model(nodes[:1], {"x": X}, constants, outputs="padded"), {"x": X}, device)[0]
    assert found[:, 0].tolist() == [-float(np.finfo(np.float32).max)] * 2
