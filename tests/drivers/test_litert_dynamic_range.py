"""Files of integer weights and float activations: exact by default, LiteRT's own approximation where it is asked for."""

from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter  # noqa: TID251

import nnhal
from nnhal.cli.main import main
from nnhal.frontends.tflite import load
from tests.frontends.flat import Writer

ASKED = {"litert": {"dynamic_range": True}}
WINDOW = {"strideW": 1, "strideH": 2, "padding": 0, "dilationWFactor": 1, "dilationHFactor": 1}


def file_of(name: str, *, per_channel: bool = True, activation: int = 0, copies: int = 1) -> tuple[bytes, Any]:
    random = np.random.default_rng(1)
    shapes = {
        "FULLY_CONNECTED": ((3, 64), (16, 64), 0),
        "CONV_2D": ((2, 7, 6, 8), (16, 3, 3, 8), 0),
        "DEPTHWISE_CONV_2D": ((2, 7, 6, 8), (1, 3, 3, 16), 3),
    }
    given, weights, axis = shapes[name]
    w, units = Writer(), weights[axis]
    x = w.tensor(given)
    scale = random.uniform(0.005, 0.02, units if per_channel else 1).tolist()
    f = w.tensor(weights, "i1", random.integers(-127, 128, weights), scale=scale, axis=axis if per_channel else 0)
    b = w.tensor([units], "f4", random.normal(size=units))
    y = w.tensor([3, units] if axis == 0 and len(given) == 2 else [2, 4, 6, units])
    how: dict[str, Any] = {"fusedActivationFunction": activation}
    if name == "FULLY_CONNECTED":
        w.operator(name, [x, f, b], [y], "FullyConnected", asymmetricQuantizeInputs=True, version=9, **how)
    elif name == "CONV_2D":
        w.operator(name, [x, f, b], [y], "Conv2D", version=5, **how, **WINDOW)
    else:
        more = WINDOW | {"strideW": 2}
        w.graph.tensors[y].shape = [2, 4, 3, units]
        w.operator(name, [x, f, b], [y], "DepthwiseConv2D", version=6, depthMultiplier=2, **how, **more)
    return w.file([x], [y]), random.uniform(-1, 3, given).astype("f4")


def alone(content: bytes, x: Any, calls: int = 1) -> Any:
    """What LiteRT gives when it is called as most applications do."""
    engine = Interpreter(model_content=content)
    engine.allocate_tensors()
    for _ in range(calls):
        engine.set_tensor(engine.get_input_details()[0]["index"], x)
        engine.invoke()
    return engine.get_tensor(engine.get_output_details()[0]["index"])


CASES = [
    ("FULLY_CONNECTED", True, 0),
    ("FULLY_CONNECTED", False, 3),
    ("CONV_2D", True, 1),
    ("CONV_2D", False, 0),
    ("DEPTHWISE_CONV_2D", True, 3),
]


@pytest.mark.parametrize(("name", "per_channel", "activation"), CASES)
def test_litert_computes_such_a_layer_as_on_the_file_where_it_is_asked_to(name, per_channel, activation):
    content, x = file_of(name, per_channel=per_channel, activation=activation)
    expected = alone(content, x)
    found = nnhal.compile(load(content), devices="litert", driver_options=ASKED)(x)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("name", "per_channel", "activation"), CASES)
def test_nobody_approximates_unasked(name, per_channel, activation):
    content, x = file_of(name, per_channel=per_channel, activation=activation)
    right = nnhal.compile(load(content), devices="reference")(x)
    exact = nnhal.compile(load(content), devices="litert")(x)
    np.testing.assert_allclose(exact, right, atol=1e-4)
    assert np.abs(alone(content, x) - right).max() > 1e-3  # so the test would see it


@pytest.mark.parametrize("projection", [0, 4])
@pytest.mark.parametrize("peepholes", [False, True])
@pytest.mark.parametrize("sequence", [False, True])
def test_an_lstm_is_computed_as_on_the_file(projection, peepholes, sequence):
    random, w, (time, size, units) = np.random.default_rng(2), Writer(), (3, 5, 8)
    width = projection or units

    def integers(*shape: int) -> int:
        return w.tensor(shape, "i1", random.integers(-127, 128, shape), scale=float(random.uniform(0.002, 0.009)))

    lead = (time, 2) if sequence else (2,)
    x, y = w.tensor([*lead, size]), w.tensor([*lead, width])
    inputs = [x, *(integers(units, size) for _ in range(4)), *(integers(units, width) for _ in range(4))]
    inputs += [integers(units) if peepholes else -1 for _ in range(3)]
    inputs += [w.tensor([units], "f4", random.normal(size=units)) for _ in range(4)]
    inputs += [integers(width, units) if projection else -1, -1]
    inputs += [w.tensor([2, n], isVariable=True) for n in (width, units)]
    how: dict[str, Any] = {"fusedActivationFunction": 4, "asymmetricQuantizeInputs": True}
    if sequence:
        w.operator("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y], "UnidirectionalSequenceLSTM", timeMajor=True, **how)
    else:
        w.operator("LSTM", inputs, [y], "LSTM", **how)
    w.ends([x], [y])
    given = random.uniform(-1, 2, (*lead, size)).astype("f4")
    stream = nnhal.compile(load(w.bytes()), devices="litert", driver_options=ASKED).stream()
    exact = nnhal.compile(load(w.bytes()), devices="litert").stream()
    for calls in (1, 2, 3):
        expected = alone(w.bytes(), given, calls)
        assert stream(given).tobytes() == expected.tobytes()
        assert 1e-5 < np.abs(exact(given) - expected).max() < 0.2


@pytest.mark.parametrize("read", [False, True])
def test_whoever_else_reads_the_weights_gets_their_real_values(read):
    random, b = np.random.default_rng(3), nnhal.Builder()
    steps = random.integers(-127, 128, (4, 6)).astype("i1")
    x = b.input((2, 6))
    real = b.dequantize(b.constant(steps, "TENSOR_QUANT8_ASYMM_SIGNED", scale=0.01))
    y = b.fully_connected(x, real, np.zeros(4, "f4"))
    model = b.finish([x], [y, b.mul(real, np.full((1, 1), 2, "f4")) if read else real])
    given = random.uniform(-1, 1, (2, 6)).astype("f4")
    _, found = nnhal.compile(model, devices="litert", driver_options=ASKED)(given)
    np.testing.assert_allclose(found, steps * (0.02 if read else 0.01), atol=1e-6)


def test_the_command_line_asks_for_it_too(tmp_path, capsys):
    content, x = file_of("FULLY_CONNECTED")
    model, given, result = tmp_path / "m.tflite", tmp_path / "x.npy", tmp_path / "y.npz"
    model.write_bytes(content)
    np.save(given, x)
    words = ["run", str(model), "--device", "litert", "--input", str(given), "--output", str(result), "--option"]
    with pytest.raises(SystemExit, match="0"):
        main([*words, "litert:dynamic_range=true"])
    (found,) = np.load(result).values()
    assert found.tobytes() == alone(content, x).tobytes()
    with pytest.raises(SystemExit, match="2"):
        main([*words, "dynamic_range"])
    assert "must be [DEVICE:]KEY=VALUE" in capsys.readouterr().err
