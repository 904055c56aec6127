"""The onnxruntime device: what it refuses and why, what it does with memory, options and weights; silence."""

import threading
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import Cancelled, InvalidArgument, OperationFailed
from nnhal.base.memory import Memory
from nnhal.base.operands import dtype_of
from nnhal.drivers import onnxruntime
from nnhal.drivers.kit.onnx import TABLE, BuiltGraph, OnnxGraph, OnnxTask
from nnhal.drivers.kit.onnx.nodes import EXTERNAL
from nnhal.drivers.onnxruntime import session
from nnhal.drivers.reference import Reference
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints
from nnhal.hal.request import Control
from nnhal.model.graph import Model
from tests import requests
from tests.execution import run_python
from tests.models import doubling, make_model
from tests.requests import output

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def device() -> Device:
    return onnxruntime.device()


def reason(device: Device, model: Model) -> str:
    (verdict,) = device.supports(model)
    assert not verdict.ok
    return verdict.reason


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


# ----------------------------------------------------------------------------------------------------------- the engine


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_nothing_is_said_on_stderr(isolation: str) -> None:
    program = f"""
import os
os.environ["NNHAL_VLOG"] = "driver"
import numpy as np, nnhal
b = nnhal.Builder()
x = b.input((1,))
print(nnhal.compile(b.finish([x], [b.floor(x)]), devices=["onnxruntime"], isolation={isolation!r})(np.float32([1.5])))
"""
    done = run_python(program)
    assert done.stdout == "[1.]\n"
    assert "discovery" not in done.stderr and "\x1b" not in done.stderr


def test_telemetry_is_off_while_the_engine_is_imported_and_the_variable_is_as_before_afterwards() -> None:
    program = """
import os, sys
os.environ.pop("ORT_DISABLE_TELEMETRY", None)
from nnhal.drivers.onnxruntime import session
seen = set()
def hear(event, arguments):
    if event == "import" and arguments[0].startswith("onnxruntime"):
        seen.add(os.environ.get("ORT_DISABLE_TELEMETRY"))
sys.addaudithook(hear)
session.engine()
print(seen, os.environ.get("ORT_DISABLE_TELEMETRY"))
"""
    assert run_python(program).stdout == "{'1'} None\n"


# -------------------------------------------------------------------------------------------------------------- options


def test_an_unknown_provider_lists_those_that_there_are(device: Device) -> None:
    with pytest.raises(InvalidArgument, match=r"provider is 'CUDA', must be one of .*CPUExecutionProvider"):
        device.prepare(doubling(), Hints(options={"provider": "CUDA"}))
    with pytest.raises(InvalidArgument, match="option 'providers' is unknown, must be 'provider'"):
        device.consider(doubling(), Hints(options={"providers": "CUDA"}))


def test_the_provider_that_is_there_is_taken(device: Device) -> None:
    prepared = checked_prepared(device, doubling(), Hints(options={"provider": "CPUExecutionProvider"}))
    assert output(prepared, floats(1, 2, 3, 4)).tolist() == [2, 4, 6, 8]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_session_has_the_threads_of_the_hints(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    asked: list[int] = []
    made = session.session

    def noted(built: BuiltGraph, count: int, provider: str) -> Any:
        asked.append(count)
        return made(built, count, provider)

    monkeypatch.setattr(session, "session", noted)
    checked_prepared(onnxruntime.device(), doubling(), Hints(threads=threads))
    assert asked == [threads]


def test_threads_stop_spinning_after_a_run_and_the_optimiser_makes_no_integer_kernels() -> None:
    options, _ = session.options(lowered(doubling()), 2)
    for name in ("session.force_spinning_stop", "session.disable_quant_qdq"):
        assert options.get_session_config_entry(name) == "1"


# ------------------------------------------------------------------------------------------------------------- refusals


def test_loops_boxes_and_hashes_are_refused_with_the_reason() -> None:
    b = nnhal.Builder()
    x = b.input((1, 4))
    seeds = b.constant(np.array([1, 2], np.int32))
    y = b.operation("RANDOM_MULTINOMIAL", input=x, sample_count=3, seeds=seeds, out_type=["TENSOR_INT32"])
    found = reason(onnxruntime.device(), b.finish([x], [y]))
    assert found == "ONNX has no such random numbers, hashes or integer cells"


def test_an_integer_divisor_has_to_be_constant_and_neither_0_nor_minus_1(device: Device) -> None:
    model = make_model(lambda b, x: b.div(x, b.constant(np.array([2, -1], np.int32))), ((2,), "TENSOR_INT32"))
    assert "does not define an integer division by 0" in reason(device, model)


def test_scales_that_float32_cannot_multiply_are_refused(device: Device) -> None:
    model = make_model(lambda b, x: b.relu(x), ((2,), "TENSOR_QUANT8_ASYMM", 2.0**-30, 0))
    assert "scales are 9.31323e-10" in reason(device, model)


def test_a_sequence_of_a_cell_without_a_kernel_is_written_up_to_64_steps(device: Device) -> None:
    def sequence(steps: int, activation: str) -> Model:
        b = nnhal.Builder()
        x = b.input((1, steps, 1))
        one, zero = b.constant(np.ones((1, 1), np.float32)), b.constant(np.zeros(1, np.float32))
        state = b.constant(np.zeros((1, 1), np.float32))
        names = {"weights": one, "recurrent_weights": one, "bias": zero, "hidden_state": state}
        y = b.operation(
            "UNIDIRECTIONAL_SEQUENCE_RNN",
            input=x,
            **names,
            activation_kind=activation,
            time_major=0,
            out_type=["TENSOR_FLOAT32"],
        )
        return b.finish([x], [y])

    summed = output(checked_prepared(device, sequence(64, "none"), Hints()), np.ones((1, 64, 1), np.float32))
    assert summed.ravel().tolist() == [*range(1, 65)]
    assert "the sequence has 65 steps, must have at most 64" in reason(device, sequence(65, "none"))
    long = output(checked_prepared(device, sequence(200, "relu"), Hints()), np.ones((1, 200, 1), np.float32))
    assert long.ravel().tolist() == [*range(1, 201)]


def test_what_nnapi_fails_on_does_not_count_from_the_end(device: Device) -> None:
    model = make_model(lambda b, x, index: b.gather(x, 0, index), (3,), ((1,), "TENSOR_INT32"))
    prepared = checked_prepared(device, model, Hints())
    assert output(prepared, floats(1, 2, 3), np.array([2], np.int32)).tolist() == [3]
    with pytest.raises(OperationFailed, match=r"onnxruntime: .*out of data bounds"):
        output(prepared, floats(1, 2, 3), np.array([-1], np.int32))


# --------------------------------------------------------------------------------------------------------------- memory


def lowered(model: Model) -> Any:
    graph = OnnxGraph(model)
    TABLE.lower(model, lambda a, operation: OnnxTask(graph, a, operation))
    return graph.finish()


def test_large_constants_stay_where_they_lie() -> None:
    weights = np.arange(EXTERNAL, dtype=np.float32).reshape(2, -1)
    b = nnhal.Builder()
    x = b.input((1, weights.shape[1]))
    model = b.finish([x], [b.fully_connected(x, b.constant(weights), b.constant(np.zeros(2, np.float32)))])
    built = lowered(model)
    (held,) = built.arrays.values()
    found = Memory.of(held)
    assert found is not None and found[0] in model.pools
    assert len(built.model) < weights.nbytes


def test_what_no_output_needs_is_not_in_the_graph() -> None:
    b = nnhal.Builder()
    x = b.input((4,))
    b.add(x, b.constant(np.ones(EXTERNAL, np.float32)[:4]))
    built = lowered(b.finish([x], [b.floor(x)]))
    assert b"Floor" in built.model and b"Add" not in built.model


@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("activation", ["none", "relu6"])
def test_what_is_multiplied_by_its_own_share_takes_the_engines_kernel_and_no_other_reader_does(
    device: Device, gate_first: bool, activation: str
) -> None:
    b = nnhal.Builder()
    x, other = b.input((1, 400)), b.input((1, 400))
    share = b.logistic(x)
    gated = b.mul(*((share, x) if gate_first else (x, share)), activation=activation)
    model = b.finish([x, other], [gated, b.mul(share, other), b.log(share)])
    assert kinds(model).count("Sigmoid") == 1
    values = np.concatenate([np.linspace(-80, 80, 396), [0.0, np.inf, -np.inf, np.nan]]).astype(np.float32)[None]
    given = values, np.full_like(values, 1e10)
    with nnhal.compile(model, devices=device) as compiled, nnhal.compile(model, devices="reference") as reference:
        (own, product, logarithm), wanted = compiled(*given), reference(*given)
    np.testing.assert_allclose(own, wanted[0], rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(product, wanted[1], rtol=1e-5)  # digits are kept
    np.testing.assert_allclose(logarithm, wanted[2], rtol=1e-5, atol=1e-6)


def test_a_constant_is_its_own_whatever_lay_in_its_place_before() -> None:
    graph, numbers = OnnxGraph(doubling()), EXTERNAL // 8
    names = [graph.constant([n] * numbers) for n in range(50)]  # lists that are gone when the next one is made
    assert len(set(names)) == 50


@pytest.mark.parametrize("kind", ["TENSOR_FLOAT32", "TENSOR_QUANT8_ASYMM", "TENSOR_QUANT8_ASYMM_SIGNED"])
@pytest.mark.parametrize(
    ("height", "width", "corners", "node"),
    [(6, 15, False, "Resize"), (3, 5, False, "Resize"), (7, 15, False, "Gather"), (6, 15, True, "Gather")],
)
def test_pixels_that_are_repeated_as_often_are_resized_by_the_engine(
    height: int, width: int, corners: bool, node: str, kind: str, device: Device
) -> None:
    b = nnhal.Builder()
    scale = {} if kind == "TENSOR_FLOAT32" else {"scale": 0.5, "zero_point": 3}
    x = b.input((2, 4, 3, 5), kind, **scale)
    y = b.resize_nearest_neighbor(x, out_w=width, out_h=height, nchw=True, align_corners=corners)
    model = b.finish([x], [y])
    assert node in kinds(model)
    given = np.arange(120).reshape(2, 4, 3, 5).astype(model_dtype(model))
    expected = output(checked_prepared(Reference(), model, Hints()), given)
    np.testing.assert_array_equal(output(checked_prepared(device, model, Hints()), given), expected)


def model_dtype(model: Model) -> Any:
    return dtype_of(model.main.operands[model.main.inputs[0]].type)


def kinds(model: Model) -> list[str]:
    """Those of the nodes of a model's graph."""
    import onnx

    return [node.op_type for node in onnx.load_from_string(lowered(model).model).graph.node]


@pytest.mark.parametrize("first", ["relu", "relu1", "relu6"])
@pytest.mark.parametrize("second", ["relu", "relu1", "relu6"])
def test_bounds_within_bounds_are_one_node(first: str, second: str) -> None:
    limits = {"relu": (0, np.inf), "relu1": (-1, 1), "relu6": (0, 6)}
    b = nnhal.Builder()
    x = b.input((6,))
    y = b.operation(second.upper(), input=b.add(x, x, activation=first))
    model = b.finish([x], [y])
    assert len(kinds(model)) == 3
    given = np.float32([-2, -0.25, 0.25, 0.75, 4, np.nan])
    wanted = np.clip(np.clip(2 * given, *limits[first]), *limits[second])
    np.testing.assert_array_equal(output(checked_prepared(onnxruntime.device(), model, Hints()), given), wanted)


def chosen(one: float, other: float, shape: tuple[int, ...] = (2, 3)) -> Model:
    """`one` where the first input is more than the second, `other` elsewhere."""
    b = nnhal.Builder()
    x, y = b.input(shape), b.input(shape)
    sizes = np.array(shape, np.int32)
    return b.finish([x, y], [b.select(b.greater(x, y), b.fill(sizes, one), b.fill(sizes, other))])


def test_a_tensor_of_one_value_takes_no_room_where_another_has_the_shape() -> None:
    b = nnhal.Builder()
    x = b.input((2, 3))
    filled = b.fill(np.array([2, 3], np.int32), 0.5)
    assert kinds(b.finish([x], [b.mul(b.maximum(filled, x), filled)])) == ["Max", "Mul", "Identity"]
    assert kinds(chosen(2, 0)) == ["Greater", "Where", "Identity"]
    model = make_model(lambda b, x: b.add(x, b.fill(np.array([2, 3], np.int32), 0.5)), (1, 3))
    assert kinds(model) == ["Expand", "Add", "Identity"]  # it makes the shape


@pytest.mark.parametrize("values", [(1, 0), (1, -0.0), (0, 1), (2, 0), (1, 1), (np.nan, 0)])
def test_a_choice_between_values_is_that_between_tensors(device: Device, values: tuple[float, float]) -> None:
    model = chosen(*values)
    assert ("Cast" in kinds(model)) == (str(values) == "(1, 0)")
    x, y = np.array([[1, 2, np.nan], [0, 5, -1]], np.float32), np.array([[0, 2, 1], [1, 4, -2]], np.float32)
    found = output(checked_prepared(device, model, Hints()), x, y)
    expected = np.where(x > y, np.float32(values[0]), np.float32(values[1]))
    assert found.tobytes() == expected.tobytes()


def test_what_is_reshaped_twice_is_reshaped_once() -> None:
    b = nnhal.Builder()
    x = b.input((2, 3))
    y = b.reshape(b.reshape(x, np.array([6], np.int32)), np.array([3, 2], np.int32))
    assert kinds(b.finish([x], [b.exp(y)])) == ["Reshape", "Exp", "Identity"]


def test_an_execution_that_is_cancelled_ends_between_operations(device: Device) -> None:
    b = nnhal.Builder()
    y = x = b.input((1, 256, 256, 32))
    weights, bias = b.constant(np.zeros((32, 3, 3, 32), np.float32)), b.constant(np.zeros(32, np.float32))
    for _ in range(60):
        y = b.conv_2d(y, weights, bias, padding="same")
    prepared, cancelled = checked_prepared(device, b.finish([x], [y]), Hints(threads=1)), threading.Event()
    threading.Timer(0.05, cancelled.set).start()
    with pytest.raises(Cancelled):
        requests.run(prepared, [np.zeros((1, 256, 256, 32), np.float32)], Control(cancelled=cancelled))


def test_a_model_with_an_open_batch_is_prepared_for_each_size() -> None:
    b = nnhal.Builder()
    x = b.input((None, 2))
    weights, bias = b.constant(np.array([[1, 2], [3, 4]], np.float32)), b.constant(floats(10, 20))
    compiled = nnhal.compile(
        b.finish([x], [b.fully_connected(x, weights, bias)]), devices=["onnxruntime"], fallback="forbid"
    )
    assert compiled(floats(1, 1).reshape(1, 2)).tolist() == [[13, 27]]
    assert compiled(np.eye(2, dtype=np.float32)).tolist() == [[11, 23], [12, 24]]


def test_what_the_optimiser_cannot_is_prepared_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that cannot be prepared either, the first reason is told."""
    ort, levels = session.engine(), []
    made = ort.InferenceSession

    def failing(model: bytes, how: Any, providers: list[str]) -> Any:
        levels.append(how.graph_optimization_level)
        if levels[-1] != ort.GraphOptimizationLevel.ORT_DISABLE_ALL or broken:
            raise RuntimeError(f"attempt {len(levels)}")
        return made(model, how, providers)

    monkeypatch.setattr(ort, "InferenceSession", failing)
    broken = False
    assert output(checked_prepared(onnxruntime.device(), doubling(2), Hints()), floats(1, 2)).tolist() == [2, 4]
    levels.clear()
    broken = True
    with pytest.raises(OperationFailed, match="the model cannot be prepared: attempt 1"):
        checked_prepared(onnxruntime.device(), doubling(), Hints())
