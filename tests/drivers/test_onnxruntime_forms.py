"""The forms of quantised operations on ONNX Runtime: right at the extremes, and the graph that runs is the one written."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.operands import ChannelQuant
from nnhal.drivers import onnxruntime as driver
from nnhal.drivers import reference
from nnhal.drivers.kit import Forms
from nnhal.drivers.kit.onnx import TABLE, BuiltGraph, OnnxGraph, OnnxTask
from nnhal.drivers.onnxruntime import session
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints
from nnhal.model.graph import Model
from tests import requests

pytest.importorskip("onnxruntime")
FORMS = Forms(forced="fast"), Forms(forced="exact")
KINDS = {"TENSOR_QUANT8_ASYMM": np.uint8, "TENSOR_QUANT8_ASYMM_SIGNED": np.int8}


@cache
def made(way: str) -> Device:
    device: Any = driver.device()
    device.forms = Forms(forced=way)
    return device


def ends(kind: str, shape: tuple[int, ...], seed: int) -> Any:
    """Least and greatest values of a type."""
    limits = np.iinfo(KINDS[kind])
    return np.random.default_rng(seed).choice(np.array([limits.min, limits.max], KINDS[kind]), shape)


def layer(kind: str, how: str, *, by_channel: bool = False) -> tuple[Model, Any]:
    """A quantised layer with weights at the ends of their type, and an input that is too; the output's scale is fine."""
    b, size = nnhal.Builder(), 64 if how != "depthwise_conv_2d" else 8
    dense, depthwise = how == "fully_connected", how == "depthwise_conv_2d"
    given = (3, size) if dense else (1, 5, 5, size)
    x = b.input(given, kind, 0.02, 3)
    shape = (size, size) if dense else (1, 3, 3, size) if depthwise else (size, 3, 3, size)
    bias = b.constant(np.full(size, 77, np.int32), "TENSOR_INT32", 0.0 if by_channel else 0.02 * 0.01)
    if by_channel:
        quant = ChannelQuant(tuple(np.linspace(0.005, 0.01, size).tolist()), 3 if depthwise else 0)
        stored = np.random.default_rng(1).choice(np.array([-127, 127], np.int8), shape)
        weights = b.constant(stored, "TENSOR_QUANT8_SYMM_PER_CHANNEL", channel=quant)
    else:
        weights = b.constant(ends(kind, shape, 1), kind, 0.01, 100)
    more: dict[str, Any] = {} if dense else {"padding": "same"}
    more |= {"depth_multiplier": 1} if depthwise else {}
    y = getattr(b, how)(x, weights, bias, activation="relu6", **more, out_type=kind, scale=0.05, zero_point=5)
    return b.finish([x], [y]), ends(kind, given, 2)


CASES = [(kind, how, False) for kind in KINDS for how in ("conv_2d", "depthwise_conv_2d", "fully_connected")]
CASES += [(kind, how, True) for kind in KINDS for how in ("conv_2d", "depthwise_conv_2d")]


@pytest.mark.parametrize("way", ["fast", "exact"])
@pytest.mark.parametrize(("kind", "how", "by_channel"), CASES)
def test_a_layer_is_within_a_step_at_the_ends_of_its_types(kind: str, how: str, by_channel: bool, way: str) -> None:
    model, x = layer(kind, how, by_channel=by_channel)
    expected = requests.run(checked_prepared(reference.device(), model, Hints()), [x]).results[0]
    found = requests.run(checked_prepared(made(way), model, Hints()), [x]).results[0]
    assert np.abs(found.astype(int) - expected).max() <= 1
    assert len(np.unique(expected)) > 2


def lowered(model: Model, forms: Forms) -> BuiltGraph:
    graph = OnnxGraph(model)
    TABLE.lower(model, lambda a, operation: OnnxTask(graph, a, operation), forms)
    return graph.finish()


def executed(built: BuiltGraph, path: Path) -> list[str]:
    """The operators that the engine makes of a graph."""
    import onnx

    options, _ = session.options(built, 1)
    options.optimized_model_filepath = str(path)
    session.engine().InferenceSession(built.model, options, [session.CPU])
    return [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]


@pytest.mark.parametrize(("kind", "how", "by_channel"), CASES)
def test_the_engine_makes_no_integer_kernel_of_the_exact_form(
    tmp_path: Path, kind: str, how: str, by_channel: bool
) -> None:
    model, _ = layer(kind, how, by_channel=by_channel)
    kinds = executed(lowered(model, FORMS[1]), tmp_path / "optimised.onnx")
    assert {"Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul"} & set(kinds)
    assert not [kind for kind in kinds if "Integer" in kind or kind.startswith(("QLinear", "QGemm"))]


def test_without_a_proof_the_exact_form_runs() -> None:
    model, _ = layer("TENSOR_QUANT8_ASYMM", "conv_2d")
    for forms, kind in ((Forms(), b"Conv"), (FORMS[0], b"QLinearConv")):
        written = lowered(model, forms).model
        assert kind in written and (b"QLinear" in written) == (kind == b"QLinearConv")


def test_sums_that_float32_does_not_hold_are_refused_in_the_exact_form_alone() -> None:
    b, size = nnhal.Builder(), 4000
    x = b.input((1, size), "TENSOR_QUANT8_ASYMM", 1.0, 0)
    weights = b.constant(np.full((1, size), 255, np.uint8), "TENSOR_QUANT8_ASYMM", 1.0, 0)
    bias = b.constant(np.zeros(1, np.int32), "TENSOR_INT32", 1.0)
    y = b.fully_connected(x, weights, bias, scale=2.0, zero_point=0)
    model = b.finish([x], [y])
    (fast,), (exact,) = made("fast").supports(model), made("exact").supports(model)
    assert fast.ok
    assert exact.reason == "sums of up to 2.601e+08 are not exact in float32"
