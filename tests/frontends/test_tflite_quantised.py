"""Recurrent operators on 8-bit tensors beside LiteRT's own integer kernels."""

from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.frontends.tflite import load
from tests.frontends.cases import refused
from tests.frontends.flat import Writer, litert, one_operator, tensor

INPUT, OUTPUT, HIDDEN = {"scale": 1 / 64, "zero": 5}, {"scale": 1 / 90, "zero": -7}, {"scale": 1 / 127, "zero": 3}


class Cell:
    """Writes an LSTM's constants; each with a scale of its own."""

    def __init__(self, seed: int) -> None:
        self.w, self.random = Writer(), np.random.default_rng(seed)

    def matrix(self, *shape: int) -> int:
        scale = float(self.random.uniform(0.004, 0.01))
        return self.w.tensor(shape, "i1", self.random.integers(-127, 128, shape), scale=scale)

    def vector(self, size: int, scale: float, most: int = 9000) -> int:
        return self.w.tensor([size], "i2", self.random.integers(-most, most, size), scale=scale)

    def bias(self, size: int) -> int:
        return self.w.tensor([size], "i4", self.random.integers(-3000, 3000, size), scale=1e-4)


def lstm(
    name: str,
    shape: tuple[int, ...],
    *,
    cifg: bool,
    peepholes: bool,
    projection: int,
    norms: bool,
    unsaid: int | None = None,
    **options: Any,
) -> bytes:
    """unsaid: the intermediate tensor that has no scale."""
    c, units, size = Cell(11), 6, shape[-1]
    w, width = c.w, projection or units
    batch = shape[1] if options.get("timeMajor") else shape[0]
    state = OUTPUT if projection else HIDDEN
    x = w.tensor(shape, "i1", **INPUT)
    gates = [not (cifg and n == 0) for n in range(4)]
    inputs = [x, *(c.matrix(units, size) if there else -1 for there in gates)]
    inputs += [c.matrix(units, width) if there else -1 for there in gates]
    inputs += [c.vector(units, 2e-5) if peepholes and not (cifg and n == 0) else -1 for n in range(3)]
    inputs += [c.bias(units) if there else -1 for there in gates]
    inputs += [c.matrix(width, units), c.bias(width)] if projection else [-1, -1]
    inputs += [w.tensor([batch, width], "i1", isVariable=True, **state)]
    inputs += [w.tensor([batch, units], "i2", scale=2**-11, isVariable=True)]
    if norms:
        inputs += [c.vector(units, 3e-5, 32000) if there else -1 for there in gates]
    inner = [w.tensor([0], "i2", scale=float(c.random.uniform(5e-4, 2e-3))) for _ in range(4)]
    inner.append(w.tensor([0], "i1", **HIDDEN))
    if unsaid is not None:
        w.graph.tensors[inner[unsaid]].quantization = None
    y = w.tensor([*shape[:-1], width], "i1", **state)
    kind = "LSTM" if name == "LSTM" else "UnidirectionalSequenceLSTM"
    w.operator(name, inputs, [y], kind, fusedActivationFunction=4, cellClip=0.0, projClip=0.0, **options)
    w.graph.operators[-1].intermediates = inner
    return w.file([x], [y])


def off(content: bytes, *shape: int, calls: int = 3) -> float:
    """By how many steps a result is off at most, over several calls on the same input."""
    x = np.random.default_rng(2).integers(-128, 128, shape).astype("i1")
    stream, worst = nnhal.compile(load(content), devices="reference").stream(), 0.0
    for count in range(1, calls + 1):
        (expected,) = litert(content, x, calls=count)
        assert np.ptp(expected.astype("i4")) > 20
        worst = max(worst, np.abs(stream(x).astype("i4") - expected).max())
    return worst


@pytest.mark.sampled(4)
@pytest.mark.parametrize("cifg", [False, True])
@pytest.mark.parametrize("peepholes", [False, True])
@pytest.mark.parametrize("projection", [0, 4, 6])
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("major", [False, True])
def test_a_sequence_of_eight_bits_has_the_very_numbers_of_litert(cifg, peepholes, projection, norms, major):
    parts = {"cifg": cifg, "peepholes": peepholes, "projection": projection, "norms": norms}
    content = lstm("UNIDIRECTIONAL_SEQUENCE_LSTM", (4, 3, 5), timeMajor=major, **parts)
    if peepholes and projection == 4:
        refused(content, "peepholes and a projection from 6 to 4")
        return
    assert off(content, 4, 3, 5) == 0


@pytest.mark.parametrize("zero", [HIDDEN["zero"], -90, 100], ids=["near", "far below", "far above"])
@pytest.mark.parametrize("projection", [0, 4])
def test_a_step_and_a_sequence_of_eight_bits_have_the_very_numbers_of_litert(zero, projection, monkeypatch):
    monkeypatch.setitem(HIDDEN, "zero", zero)
    parts = {"cifg": False, "peepholes": False, "projection": projection, "norms": False}
    assert off(lstm("LSTM", (3, 5), **parts), 3, 5) == 0
    assert off(lstm("UNIDIRECTIONAL_SEQUENCE_LSTM", (4, 3, 5), **parts), 4, 3, 5) == 0


@pytest.mark.parametrize(("number", "what"), [*((n, "a gate") for n in range(4)), (4, "its hidden state")])
def test_a_step_of_eight_bits_has_to_say_the_scale_of_what_it_normalises_and_of_what_it_projects(number, what):
    content = lstm("LSTM", (2, 3), cifg=False, peepholes=False, projection=4, norms=True, unsaid=number)
    refused(content, f"LSTM #0: of INT8 has no scale for {what}")


def test_a_sequence_of_eight_bits_is_paid_for_step_by_step():
    parts = {"cifg": False, "peepholes": False, "projection": 0, "norms": False}
    with pytest.raises(nnhal.BadFile, match=r"needs more than \d+ operations"):
        load(lstm("UNIDIRECTIONAL_SEQUENCE_LSTM", (5000, 1, 5), timeMajor=True, **parts))


@pytest.mark.parametrize("memory", [1, 7])
@pytest.mark.parametrize("biased", [False, True])
def test_an_svdf_of_eight_bits_is_within_a_step_of_litert(memory, biased):
    c, units, rank, size, batch = Cell(4), 5, 2, 9, 2
    w, filters = c.w, units * rank
    x, y = w.tensor([batch, size], "i1", **INPUT), w.tensor([batch, units], "i1", scale=1 / 12, zero=-20)
    times = w.tensor([filters, memory], "i2", c.random.integers(-32000, 32000, (filters, memory)), scale=2e-5)
    state = w.tensor([batch, filters * memory], "i2", scale=2**-12, isVariable=True)
    inputs = [x, c.matrix(filters, size), times, c.bias(units) if biased else -1, state]
    w.operator("SVDF", inputs, [y], "SVDF", rank=rank, fusedActivationFunction=1)
    assert off(w.file([x], [y]), batch, size, calls=9) <= 1


def test_constants_with_zero_points_per_channel_are_made_real_at_import():
    """NNAPI has scales per channel, without zero points."""
    w, rng = Writer(), np.random.default_rng(2)
    steps = rng.integers(-128, 128, (4, 3)).astype("i1")
    x, y = w.tensor([2, 3]), w.tensor([2, 4])
    stored = w.tensor([4, 3], "i1", steps, [0.1, 0.02, 0.3, 0.05], [3, -7, 0, 100])
    real = w.tensor([4, 3])
    w.operator("DEQUANTIZE", [stored], [real], "Dequantize")
    w.operator("FULLY_CONNECTED", [x, real, -1], [y], "FullyConnected")
    w.ends([x], [y])
    given = rng.normal(size=(2, 3)).astype("f4")
    weights = (steps - np.array([[3], [-7], [0], [100]])) * np.array([[0.1], [0.02], [0.3], [0.05]])
    found = nnhal.compile(load(w.bytes()), devices="reference")(given)
    np.testing.assert_allclose(found, given @ weights.T, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(found, litert(w.bytes(), given)[0], rtol=1e-5, atol=1e-4)


def test_an_axis_of_a_tensor_without_dimensions_is_said_to_be_that():
    with pytest.raises(nnhal.UnsupportedModel, match="axis is 1 for a tensor without dimensions, must not be set"):
        load(one_operator("SQUEEZE", [tensor([])], [tensor([])], "Squeeze", squeezeDims=[1]))
