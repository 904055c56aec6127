"""Quantisation with a computed scale, by parts: ONNX Runtime runs it and its layers whole, where that was verified."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperationType
from nnhal.base.operands import Array
from nnhal.base.records import replace
from nnhal.drivers.kit.variants import UNPROVED, Forms
from nnhal.model.dynamic_quantisation import IntegerLayer, dynamic_composites, whole_weights
from nnhal.model.graph import Model

onnx = pytest.importorskip("onnx")

from nnhal.drivers.kit.onnx import TABLE, OnnxGraph, OnnxTask  # noqa: E402
from tests.frontends.onnx_models import model, node  # noqa: E402

FAST = Forms(forced="fast")
RNG = np.random.default_rng(5)


class Layer(NamedTuple):
    """A layer: the operator, its input, weights with their zero point, and attributes."""

    op: str
    x: Array
    weights: Array
    zero: int
    how: dict[str, Any]


def numbers(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def integers(*shape: int, least: int = 0, most: int = 255) -> Array:
    return RNG.integers(least, most, shape, np.uint8 if least >= 0 else np.int8, endpoint=True)


LAYERS = {
    "a matrix": Layer("MatMulInteger", numbers(3, 8), integers(8, 5), 131, {}),
    "one row": Layer("MatMulInteger", numbers(1, 8), integers(8, 5, least=-128, most=127), 0, {}),
    "a batch of matrices": Layer("MatMulInteger", numbers(2, 3, 8), integers(8, 5), 0, {}),
    "pictures": Layer("ConvInteger", numbers(2, 4, 7, 6), integers(5, 4, 3, 3), 128, {"pads": [1, 1, 1, 1]}),
    "pictures in strides": Layer("ConvInteger", numbers(1, 4, 9, 9), integers(5, 4, 3, 2), 9, {"strides": [2, 1]}),
    "groups": Layer("ConvInteger", numbers(1, 4, 6, 6), integers(6, 2, 3, 3), 120, {"group": 2}),
    "channels": Layer(
        "ConvInteger", numbers(1, 4, 6, 6), integers(4, 1, 3, 3), 120, {"group": 4, "pads": [1, 0, 0, 1]}
    ),
}


def file(layer: Layer, x: Array | None = None) -> Model:
    """The layer in a file as ONNX Runtime's quantiser writes it, loaded."""
    x = layer.x if x is None else x
    nodes = [
        node("DynamicQuantizeLinear", "x", "q scale zero"),
        node(layer.op, "q w zero wz", "sums", **layer.how),
        node("Cast", "sums", "reals", to=1),
        node("Mul", "scale ws", "factor"),
        node("Mul", "reals factor", "y"),
    ]
    constants = {"w": layer.weights, "wz": np.array(layer.zero, layer.weights.dtype), "ws": np.float32(0.02)}
    found = nnhal.load(model(nodes, {"x": x}, constants).SerializeToString())
    assert isinstance(found, Model)
    return found


def by_definition(layer: Layer, x: Array) -> Array:
    """The numbers by ONNX's definition; integers and their sums are exact."""
    low, high = np.float32(min(0, x.min())), np.float32(max(0, x.max()))
    scale = np.float32((high - low) / np.float32(255)) if high > low else np.float32(1)
    zero = np.rint(np.clip(-low / scale, 0, 255))
    steps = np.clip(np.rint(x / scale) + zero, 0, 255) - zero
    sums = layer.weights.astype(np.int64) - layer.zero
    if layer.op == "MatMulInteger":
        return np.asarray((steps @ sums).astype(np.float32) * (scale * np.float32(0.02)))
    top, left, bottom, right = layer.how.get("pads", [0] * 4)
    steps = np.pad(steps, [(0, 0), (0, 0), (top, bottom), (left, right)])
    (down, across), groups = layer.how.get("strides", [1, 1]), layer.how.get("group", 1)
    windows = np.lib.stride_tricks.sliding_window_view(steps, sums.shape[2:], (2, 3))[:, :, ::down, ::across]
    parts = [
        np.einsum("nchwij,ocij->nohw", seen, filters)
        for seen, filters in zip(np.split(windows, groups, 1), np.split(sums, groups, 0), strict=True)
    ]
    return np.asarray(np.concatenate(parts, 1).astype(np.float32) * (scale * np.float32(0.02)))


def ran(found: Model, device: str, x: Array) -> Array:
    options = {device: {"forms": "fast"}} if device == "onnxruntime" else None
    with nnhal.compile(found, devices=[device], fallback="forbid", driver_options=options) as compiled:
        return np.asarray(compiled(x))


def kinds(found: Model, forms: Forms = FAST) -> set[str]:
    """The operators of the graph that ONNX Runtime is given."""
    graph = OnnxGraph(found)
    TABLE.lower(found, lambda a, operation: OnnxTask(graph, a, operation), forms)
    return {each.op_type for each in onnx.load_from_string(graph.finish().model).graph.node}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("device", ["reference", "litert", "onnxruntime", "openvino"])
def test_a_layer_gives_what_onnx_defines(device: str, name: str) -> None:
    layer = LAYERS[name]
    found = file(layer)
    for x in (layer.x, np.abs(layer.x), -np.abs(layer.x) * 1e3, np.zeros_like(layer.x)):
        np.testing.assert_allclose(ran(found, device, x), by_definition(layer, x), rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("name", LAYERS)
def test_onnx_runtime_is_given_the_whole_and_none_of_its_parts(name: str) -> None:
    given = kinds(file(LAYERS[name]))
    assert {"DynamicQuantizeLinear", LAYERS[name].op} <= given
    assert given.isdisjoint({"Gemm", "MatMul", "Conv", "ReduceMax", "ReduceMin", "Floor", "Div"})


@pytest.mark.parametrize(
    "forms", [UNPROVED, Forms(forced="exact"), Forms(exact=True)], ids=["unknown", "exact", "numerics"]
)
def test_kernels_that_were_not_verified_do_not_run(forms: Forms) -> None:
    assert kinds(file(LAYERS["a matrix"]), forms).isdisjoint({"DynamicQuantizeLinear", "MatMulInteger"})


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_missing_or_infinite_leaves_no_finite_sum(number: float) -> None:
    layer, x = LAYERS["pictures"], LAYERS["pictures"].x.copy()
    x[0, 1, 2, 3] = number
    wanted, given = (ran(file(layer), device, x) for device in ("reference", "onnxruntime"))
    assert not np.isfinite([wanted, given]).any()
    assert np.isnan(given).all() or not np.isnan(number)


def test_integers_that_something_else_reads_are_the_same() -> None:
    nodes = [
        node("DynamicQuantizeLinear", "x", "q scale zero"),
        node("MatMulInteger", "q w zero", "sums"),
        node("Cast", "sums", "reals", to=1),
        node("Cast", "q", "y", to=1),
        node("Add", "reals scale", "z"),
    ]
    x, w = numbers(4, 6), integers(6, 3)
    found = nnhal.load(model(nodes, {"x": x}, {"w": w}, "y z").SerializeToString())
    assert isinstance(found, Model)
    assert "MatMulInteger" in kinds(found)
    results = []
    for device in ("reference", "onnxruntime"):
        with nnhal.compile(
            found, devices=[device], fallback="forbid", driver_options={device: FORMS[device]}
        ) as compiled:
            results.append([np.asarray(each) for each in compiled(x)])
    for wanted, given in zip(*results, strict=True):
        np.testing.assert_array_equal(given, wanted)


FORMS: dict[str, dict[str, Any]] = {"reference": {}, "onnxruntime": {"forms": "fast"}}
OTHERS = [
    ("ADD", "SUB"), ("MUL", "DIV"), ("MINIMUM", "MAXIMUM"), ("REDUCE_MIN", "REDUCE_MAX"), ("EQUAL", "NOT_EQUAL"),
    ("LOGICAL_AND", "LOGICAL_OR"), ("GREATER", "LESS"), ("FLOOR", "NEG"),
]  # fmt: skip
SIBLINGS = {OperationType[a]: OperationType[b] for one, other in OTHERS for a, b in ((one, other), (other, one))}


def layers_of(found: Model) -> list[int]:
    """The operations that are layers of integers."""
    return [n for n, each in dynamic_composites(found).items() if isinstance(each, IntegerLayer)]


def changed(found: Model) -> Iterator[tuple[int, Model]]:
    """The model with each operation up to the layer replaced by its sibling, or with two inputs in the other order."""
    for n, operation in enumerate(found.main.operations[: min(layers_of(found))]):
        more = [replace(operation, type=SIBLINGS[operation.type])] if operation.type in SIBLINGS else []
        if operation.type not in (OperationType.RESHAPE, OperationType.FLOOR, OperationType.NEG):
            first, second, *rest = operation.inputs
            swapped = (first, *rest, second) if operation.type == OperationType.SELECT else (second, first, *rest)
            more += [replace(operation, inputs=swapped)] if operation.type not in REDUCTIONS else []
        for other in more:
            operations = (*found.main.operations[:n], other, *found.main.operations[n + 1 :])
            yield n, replace(found, main=replace(found.main, operations=operations))


REDUCTIONS = OperationType.REDUCE_MIN, OperationType.REDUCE_MAX


def test_what_is_not_this_quantisation_stays_by_parts() -> None:
    found = file(LAYERS["a matrix"])
    assert len(layers_of(found)) == 1 and len(dynamic_composites(found)) == 2
    changes = list(changed(found))
    assert len(changes) > 60
    assert [n for n, other in changes if layers_of(other)] == []


@pytest.mark.parametrize(
    ("weights", "zero"),
    [([0, 255], 0), ([-128, 127], 128), ([-255, 0], 255), ([-3, 4], 128), ([-130, 20], 130), ([0, 200], 55)],
)
def test_weights_that_fit_8_bits_have_a_zero_point(weights: list[int], zero: int) -> None:
    found = whole_weights(np.array(weights, np.float32))
    assert found is not None
    assert found[1] == zero
    np.testing.assert_array_equal(found[0], weights)


@pytest.mark.parametrize("weights", [[-1, 255], [0.5], [np.nan], [np.inf], [300], [-256]])
def test_other_weights_are_real_numbers(weights: list[float]) -> None:
    assert whole_weights(np.array(weights, np.float32)) is None


def test_sums_beyond_32_bits_stay_real() -> None:
    x, weights = np.ones((1, 34_000), np.float32), np.full((34_000, 1), 255, np.uint8)
    layer = Layer("MatMulInteger", x, weights, 0, {})
    assert "MatMulInteger" not in kinds(file(layer))
    np.testing.assert_allclose(ran(file(layer), "onnxruntime", x), by_definition(layer, x), rtol=1e-6)
