"""The litert device: what it runs is what LiteRT and NNAPI's definition say, and it keeps the contract of a driver."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import OperandType, OperationType
from nnhal.base.errors import (
    InvalidArgument,
    OperationFailed,
    UnsupportedModel,
)
from nnhal.drivers.litert.device import Litert, _settings
from nnhal.frontends import tflite
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints
from nnhal.hal.request import UNLIMITED, Control
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from nnhal.zoo import maker
from tests import requests
from tests.execution import run_python
from tests.models import make_model, one_operation
from tests.requests import outputs

litert = pytest.importorskip("nnhal.drivers.litert")

T = OperandType
F32, F16, I32, Q8 = T.TENSOR_FLOAT32, T.TENSOR_FLOAT16, T.TENSOR_INT32, T.TENSOR_QUANT8_ASYMM
NONE = 0  # the fused activation


@pytest.fixture(scope="module")
def device() -> Device:
    return litert.device()


def model(op: str, inputs: Sequence[Any], *outputs: tuple[Any, ...]) -> Model:
    """One operation. inputs: (type, shape, scale, zero point) of an input of the model, or an operand type and a value."""
    b = ModelBuilder()
    given, operands = [], []
    for item in inputs:
        if isinstance(item[1], tuple):
            operands.append(b.operand(item[0], *item[1:]))
            given.append(operands[-1])
        else:
            operands.append(b.constant(*item))
    results = [b.operand(kind, (), *quant) for kind, *quant in outputs]
    b.operation(op, operands, results)
    return b.finish(given, results)


def add(shape: tuple[int, ...] = (4,), kind: T = F32) -> Model:
    return model("ADD", [(kind, shape), (kind, [1, 2, 3, 4]), (T.INT32, NONE)], (kind,))


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


# ----------------------------------------------------------------------------------------------------------- the engine


def test_a_file_is_read_and_a_model_written_without_classes_generated_from_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "add4.tflite"
    path.write_bytes(maker.make("add4"))
    code = f"""
import sys, numpy as np, nnhal
add = nnhal.compile(nnhal.load({str(path)!r}), devices=["litert"])
x = np.float32([1, 2, 3, 4])
print(add(x, x), [m for m in sys.modules if m.startswith(("tflite", "flatbuffers")) or m.endswith("schema_py_generated")])
"""
    done = run_python(code, check=False)
    assert done.stdout == "[2. 4. 6. 8.] []\n", done.stderr


def test_an_unknown_option_lists_the_known_ones(device: Device) -> None:
    with pytest.raises(InvalidArgument, match="option 'xnpack' is unknown, must be one of xnnpack"):
        device.prepare(add(), Hints(options={"xnpack": True}))
    with pytest.raises(InvalidArgument, match="option xnnpack is 'no', must be true or false"):
        device.prepare(add(), Hints(options={"xnnpack": "no"}))


@pytest.mark.parametrize("xnnpack", [True, False])
def test_results_do_not_depend_on_who_computes_them(device: Device, xnnpack: bool) -> None:
    prepared = checked_prepared(device, add(), Hints(options={"xnnpack": xnnpack}))
    assert outputs(prepared, floats(1, 2, 3, 4))[0].tolist() == [2, 4, 6, 8]


# ------------------------------------------------------------------------------------------------------------ executions


def test_time_is_measured_when_asked_and_the_device_is_part_of_the_driver(device: Device) -> None:
    prepared = checked_prepared(device, add(), Hints())
    x = floats(1, 2, 3, 4)
    timing = prepared.request([x]).execute(prepared.run, Control(measure=True))
    assert timing is not None and timing.on_device is not None and timing.in_driver is not None
    assert 0 < timing.on_device <= timing.in_driver
    assert prepared.request([x]).execute(prepared.run, UNLIMITED) is None


# --------------------------------------------------------------------------------- agreement with LiteRT on a real file


@pytest.mark.parametrize("name", ["add4", "tiny_conv", "tiny_conv_int8", "tiny_conv_uint8", "tiny_lstm"])
def test_a_file_gives_the_very_bits_that_litert_gives_when_it_reads_it(device: Device, name: str) -> None:
    agree(device, name)


@pytest.mark.nightly
@pytest.mark.parametrize("suffix", ["", "_int8", "_uint8"])
@pytest.mark.parametrize("name", ["mobilenet_v1", "mobilenet_v2"])
def test_a_mobilenet_gives_the_very_bits_that_litert_gives_when_it_reads_it(
    device: Device, name: str, suffix: str
) -> None:
    agree(device, name + suffix)


def agree(device: Device, name: str) -> None:
    from ai_edge_litert.interpreter import Interpreter  # noqa: TID251

    content = maker.make(name)
    direct = Interpreter(model_content=content, num_threads=1)
    direct.allocate_tensors()
    rng, inputs = np.random.default_rng(0), []
    for detail in direct.get_input_details():
        x = rng.normal(0, 1, detail["shape"])
        if detail["dtype"] != np.float32:
            limits = np.iinfo(detail["dtype"])
            x = rng.integers(limits.min, limits.max, detail["shape"], endpoint=True)
        inputs.append(x.astype(detail["dtype"]))
        direct.set_tensor(detail["index"], inputs[-1])
    direct.invoke()
    imported = tflite.load(content)
    states = {s.input: s.initial for s in imported.states}
    given = iter(inputs)
    feed = [states[i] if i in states else next(given) for i in range(len(imported.main.inputs))]
    request = requests.run(checked_prepared(device, imported, Hints(threads=1)), feed)
    kept = {s.output for s in imported.states}
    results = [x for i, x in enumerate(request.results) if i not in kept]
    for detail, actual in zip(direct.get_output_details(), results, strict=True):
        np.testing.assert_array_equal(actual, direct.get_tensor(detail["index"]))


# --------------------------------------------------------------------------------------------------------- the lowering


def test_a_state_is_read_from_its_input_and_given_as_an_output(device: Device) -> None:
    """An LSTM with all weights 0: gates are 0.5 and what enters the cell is 0, so the cell halves."""
    units = 2
    b = ModelBuilder()
    x, cell = b.operand(F32, (1, 3)), b.operand(F32, (1, units))
    zeros = [b.constant(F32, np.zeros(s)) for s in ((units, 3), (units, units), (units,), (1, units))]
    omitted = b.no_value(F32)
    weights = [zeros[0]] * 4 + [zeros[1]] * 4 + [omitted] * 3 + [zeros[2]] * 4 + [omitted] * 2
    settings = [b.constant(T.INT32, 4), b.constant(T.FLOAT32, 0.0), b.constant(T.FLOAT32, 0.0)]
    outs = [b.operand(F32, s) for s in ((1, 4 * units), (1, units), (1, units), (1, units))]
    b.operation("LSTM", [x, *weights, zeros[3], cell, *settings], outs)
    prepared = checked_prepared(device, b.finish([x, cell], outs), Hints())
    for _ in range(2):  # the second run starts from the same state
        _, state, halved, y = outputs(prepared, np.ones((1, 3), np.float32), np.array([[4, -8]], np.float32))
        np.testing.assert_allclose(halved, [[2, -4]], rtol=1e-6)
        np.testing.assert_allclose(y, 0.5 * np.tanh([[2, -4]]), rtol=1e-6)
        assert state.tolist() == y.tolist()


def test_a_refusal_has_its_reason_and_names_the_operation(device: Device) -> None:
    elu = model("ELU", [(F32, (4,)), (T.FLOAT32, 0.5)], (F32,))
    assert device.supports(elu)[0] == (False, "alpha is 0.5, must be 1 for LiteRT's kernel")
    with pytest.raises(UnsupportedModel, match=r"ELU #0: alpha is 0\.5"):
        device.prepare(elu, Hints())


def test_integer_division_is_taken_only_where_it_cannot_end_the_process(device: Device) -> None:
    def divide(by: int) -> Model:
        return model("DIV", [(I32, (2,)), (I32, [by, by]), (T.INT32, NONE)], (I32,))

    assert [device.supports(divide(by))[0].ok for by in (2, 0, -1)] == [True, False, False]


def test_constants_are_written_once_and_aligned() -> None:
    from nnhal.drivers.litert.lowering import lower

    weights = np.random.default_rng(0).normal(size=(256, 1000)).astype(np.float32)
    content = bytes(lower(model("ADD", [(F32, (256, 1000)), (F32, weights), (T.INT32, NONE)], (F32,))).content)
    assert content.count(weights.tobytes()) == 1
    assert content.index(weights.tobytes()) % 64 == 0
    assert len(content) < weights.nbytes + 8192


def test_a_value_known_only_at_execution_is_refused_with_its_name(device: Device) -> None:
    mean = model("MEAN", [(F32, (2, 3)), (I32, (1,)), (T.INT32, 0)], (F32,))
    assert "axes is computed at execution" in device.supports(mean)[0].reason


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (3, 3), (4, 4), (64, 4)])
def test_threads_are_those_of_the_process_4_at_most_unless_a_number_is_stated(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert _settings(Hints()).threads == threads
    assert _settings(Hints(threads=7)).threads == 7


def test_a_failure_has_the_errors_of_its_own_execution() -> None:
    """An interpreter repeats those of the executions before."""
    gather = make_model(lambda b, x, rows: b.gather(x, 0, rows), (3,), ((2,), "TENSOR_INT32"))
    prepared = checked_prepared(Litert(), gather, Hints(threads=1))
    x = np.ones(3, np.float32)
    for _ in range(2):
        with pytest.raises(
            OperationFailed, match=r"litert: gather index out of bounds; node number 0 .{1,30}invoke\.$"
        ):
            outputs(prepared, x, np.int32([0, 3]))
        assert outputs(prepared, x, np.int32([0, 2]))[0].tolist() == [1, 1]


def test_a_scalar_where_the_rank_was_left_open_is_computed_all_the_same() -> None:
    """LiteRT takes a tensor without dimensions for one of unknown rank: the reference computes it."""
    model = one_operation(OperationType.ABS, (OperandType.TENSOR_FLOAT32, []), output=(OperandType.TENSOR_FLOAT32, []))
    prepared = checked_prepared(Litert(), model, Hints(threads=1))
    for given in (np.float32([-1, 2]), np.array(-3.0, np.float32), np.float32([[-1]])):
        (result,) = outputs(prepared, given)
        np.testing.assert_array_equal(result, np.abs(given))
        assert result.shape == given.shape


def test_an_activation_that_the_execution_gives_is_refused(device: Device) -> None:
    (verdict,) = device.supports(make_model(lambda b, x, activation: b.add(x, x, activation), (2,), ((), "INT32")))
    assert not verdict.ok and "activation" in verdict.reason
