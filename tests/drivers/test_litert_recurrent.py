"""Recurrent operations on the litert device: their equations written out, and what is refused because LiteRT differs."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import OperandType
from nnhal.frontends.python import Builder
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints
from nnhal.model.graph import Model
from tests import requests

litert = pytest.importorskip("nnhal.drivers.litert")

F32, F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16
GATES = ("input", "forget", "cell", "output")
WAYS = ("fw_", "bw_")
Named = dict[str, Any]
Array = Any


@pytest.fixture(scope="module")
def device() -> Device:
    return litert.device()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


class Case:
    """One operation; arguments in `runtime` are inputs of the model, all others are constants."""

    def __init__(self, op: str, runtime: Named, type: OperandType = F32, **constants: Any) -> None:
        b = Builder()
        self.arrays = [np.asarray(x, np.float16 if type == F16 else np.float32) for x in runtime.values()]
        inputs = [b.input(x.shape, type) for x in self.arrays]
        fixed = {
            name: b.constant(x.astype(self.arrays[0].dtype), type) if isinstance(x, np.ndarray) else x
            for name, x in constants.items()
        }
        found = b.operation(op, **dict(zip(runtime, inputs, strict=True)), **fixed)
        self.builder, self.inputs = b, inputs
        self.results = list(found) if isinstance(found, tuple) else [found]

    @cached_property
    def model(self) -> Model:
        return self.builder.finish(self.inputs, self.results)

    def run(self, device: Device) -> list[Array]:
        assert [verdict.reason for verdict in device.supports(self.model)] == [""]
        return requests.run(checked_prepared(device, self.model, Hints()), self.arrays).results


def reason(device: Device, op: str, runtime: Named, **constants: Any) -> str:
    return device.supports(Case(op, runtime, **constants).model)[0].reason


def close(actual: Array, wanted: Array, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(actual, np.float64), wanted, rtol=tolerance, atol=tolerance)


def array(*values: Any) -> Array:
    return np.array(values, np.float32)


# --------------------------------------------------------------------------------------------------- equations in float64


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def lstm_weights(
    rng: np.random.Generator, size: int, units: int, batch: int, way: str = "", *, output: int = 0, cifg: bool = False,
    peep: bool = False, norm: bool = False, aux: int = 0,
) -> Named:  # fmt: skip
    """Weights and states of one cell by the names of their arguments; `output` where it is projected."""
    gates = GATES[1:] if cifg else GATES
    shapes: dict[str, tuple[int, ...]] = {}
    for gate in gates:
        shapes[f"input_to_{gate}"], shapes[f"state_to_{gate}"] = (units, size), (units, output or units)
        shapes[f"bias_{gate}"] = (units,)
        if aux:
            shapes[f"aux_to_{gate}"] = units, aux
        if peep and gate != "cell":
            shapes[f"peep_{gate}"] = (units,)
        if norm:
            shapes[f"norm_{gate}"] = (units,)
    if output:
        shapes |= {"projection": (output, units), "projection_bias": (output,)}
    shapes |= {"state": (batch, output or units), "cell_state": (batch, units)}
    return {way + name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def lstm(
    weights: Named, x: Array, aux: Array | None = None, way: str = "", act: Callable[[Array], Array] = np.tanh,
    cell_clip: float = 0, projection_clip: float = 0,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Outputs [time, batch, size] of a cell over x [time, batch, size], and its last states."""
    w = {name.removeprefix(way): np.asarray(v, np.float64) for name, v in weights.items() if name.startswith(way)}
    h, c, outputs = w["state"], w["cell_state"], []

    def gate(name: str, step: int) -> Array:
        z = x[step] @ w[f"input_to_{name}"].T + h @ w[f"state_to_{name}"].T + c * w.get(f"peep_{name}", 0)
        z = z if aux is None else z + aux[step] @ w[f"aux_to_{name}"].T
        if f"norm_{name}" in w:
            z = (z - z.mean(-1, keepdims=True)) / z.std(-1, keepdims=True) * w[f"norm_{name}"]
        return z + w[f"bias_{name}"]

    for step in range(len(x)):
        forget = sigmoid(gate("forget", step))
        admit = sigmoid(gate("input", step)) if "input_to_input" in w else 1 - forget
        c = forget * c + admit * act(gate("cell", step))
        c = np.clip(c, -cell_clip, cell_clip) if cell_clip else c
        h = sigmoid(gate("output", step)) * act(c)
        if "projection" in w:
            h = h @ w["projection"].T + w["projection_bias"]
            h = np.clip(h, -projection_clip, projection_clip) if projection_clip else h
        outputs.append(h)
    return np.array(outputs), h, c


def rnn(weights: Named, x: Array, aux: Array | None = None, way: str = "") -> tuple[Array, Array]:
    """Outputs [time, batch, units] of a cell with tanh over x [time, batch, size], and its last state."""
    w = {name.removeprefix(way): np.asarray(v, np.float64) for name, v in weights.items() if name.startswith(way)}
    h, outputs = w["hidden_state"], []
    for step in range(len(x)):
        extra = 0 if aux is None else aux[step] @ w["aux_weights"].T
        h = np.tanh(x[step] @ w["weights"].T + h @ w["recurrent_weights"].T + w["bias"] + extra)
        outputs.append(h)
    return np.array(outputs), h


def rnn_weights(rng: np.random.Generator, size: int, units: int, batch: int, way: str = "", aux: int = 0) -> Named:
    shapes = {"weights": (units, size), "recurrent_weights": (units, units), "bias": (units,)}
    shapes |= {"hidden_state": (batch, units)} | ({"aux_weights": (units, aux)} if aux else {})
    return {way + name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


Cell = Callable[..., tuple[Array, ...]]


def both(cell: Cell, weights: Named, x: Array, back: Array | None = None, aux: Array | None = None) -> list[Array]:
    """Both directions over x, the backward one over `back`, all [time, batch, size]: outputs, then the last states."""
    ahead, *fw = cell(weights, x, aux, "fw_")
    behind, *bw = cell(weights, (x if back is None else back)[::-1], None if aux is None else aux[::-1], "bw_")
    return [ahead, behind[::-1], *fw, *bw]


def swapped(x: Array, time_major: bool) -> Array:
    """A sequence [time, batch, size] in the layout of the operation, or back."""
    return x if time_major else x.swapaxes(0, 1)


PLAIN: Named = {"activation_kind": "tanh", "cell_clip": 0.0, "projection_clip": 0.0}
LAYOUTS = pytest.mark.parametrize("time_major", [True, False], ids=["time_major", "batch_major"])
MERGES = pytest.mark.parametrize("merged", [True, False], ids=["merged", "apart"])


def expect(found: list[Array], wanted: list[Array], *, time_major: bool, merged: bool, tolerance: float = 1e-5) -> None:
    """Compare the outputs of an operation of two directions with what `both` says."""
    sequences = [np.concatenate(wanted[:2], -1)] if merged else wanted[:2]
    full = [swapped(y, time_major) for y in sequences] + wanted[2:]
    assert [y.shape for y in found] == [y.shape for y in full]
    for actual, y in zip(found, full, strict=True):
        close(actual, y, tolerance)


# ------------------------------------------------------------------------------------------------------ two directions


@LAYOUTS
@MERGES
@pytest.mark.parametrize("batch", [1, 3])
def test_directions_of_an_lstm_keep_their_states_and_may_differ_in_size_and_parts(
    device: Device, rng: np.random.Generator, batch: int, time_major: bool, merged: bool
) -> None:
    x = rng.normal(size=(4, batch, 3))
    weights = lstm_weights(rng, 3, 4, batch, "fw_", output=2, peep=True)
    weights |= lstm_weights(rng, 3, 5, batch, "bw_", cifg=True)
    layout = {"time_major": time_major, "merge_outputs": merged, "outputs": 6 - merged}
    case = Case("BIDIRECTIONAL_SEQUENCE_LSTM", {"input": swapped(x, time_major)}, **weights, **PLAIN, **layout)
    expect(case.run(device), both(lstm, weights, x), time_major=time_major, merged=merged)


def test_directions_of_an_lstm_may_be_layer_normalised(device: Device, rng: np.random.Generator) -> None:
    x = rng.normal(size=(3, 2, 3))
    weights = lstm_weights(rng, 3, 4, 2, "fw_", norm=True) | lstm_weights(rng, 3, 6, 2, "bw_", norm=True, cifg=True)
    layout = {"time_major": True, "merge_outputs": False, "outputs": 6}
    case = Case("BIDIRECTIONAL_SEQUENCE_LSTM", {"input": x}, **weights, **PLAIN, **layout)
    expect(case.run(device), both(lstm, weights, x), time_major=True, merged=False)


@LAYOUTS
@MERGES
@pytest.mark.parametrize("at_run_time", [True, False], ids=["weights_at_run_time", "constant_weights"])
def test_cross_linked_lstm_cells_read_both_inputs_which_may_differ_in_size(
    device: Device, rng: np.random.Generator, time_major: bool, merged: bool, at_run_time: bool
) -> None:
    x, aux = rng.normal(size=(4, 2, 3)), rng.normal(size=(4, 2, 5))
    weights = lstm_weights(rng, 3, 4, 2, "fw_", aux=5) | lstm_weights(rng, 3, 2, 2, "bw_", aux=5, cifg=True)
    inputs = {"input": swapped(x, time_major), "aux_input": swapped(aux, time_major)}
    layout = {"time_major": time_major, "merge_outputs": merged, "outputs": 6 - merged}
    given, constant = (inputs | weights, {}) if at_run_time else (inputs, weights)
    case = Case("BIDIRECTIONAL_SEQUENCE_LSTM", given, **constant, **PLAIN, **layout)
    expect(case.run(device), both(lstm, weights, x, aux=aux), time_major=time_major, merged=merged)


@LAYOUTS
def test_linked_in_parallel_the_backward_lstm_cell_reads_an_input_of_its_own_size(
    device: Device, rng: np.random.Generator, time_major: bool
) -> None:
    x, aux = rng.normal(size=(4, 2, 3)), rng.normal(size=(4, 2, 5))
    weights = lstm_weights(rng, 3, 4, 2, "fw_") | lstm_weights(rng, 5, 2, 2, "bw_")
    inputs = {"input": swapped(x, time_major), "aux_input": swapped(aux, time_major)}
    layout = {"time_major": time_major, "merge_outputs": True, "outputs": 5}
    case = Case("BIDIRECTIONAL_SEQUENCE_LSTM", inputs, **weights, **PLAIN, **layout)
    expect(case.run(device), both(lstm, weights, x, back=aux), time_major=time_major, merged=True)


def test_directions_of_an_lstm_in_half_precision(device: Device, rng: np.random.Generator) -> None:
    x = rng.normal(size=(3, 2, 3)).astype(np.float16)
    weights = lstm_weights(rng, 3, 4, 2, "fw_", aux=1) | lstm_weights(rng, 3, 6, 2, "bw_", aux=1)
    weights = {name: w.astype(np.float16) for name, w in weights.items()}
    aux = rng.normal(size=(3, 2, 1)).astype(np.float16)
    layout = {"time_major": True, "merge_outputs": True, "outputs": 5}
    case = Case("BIDIRECTIONAL_SEQUENCE_LSTM", {"input": x, "aux_input": aux}, F16, **weights, **PLAIN, **layout)
    wanted = both(lstm, weights, x.astype(float), aux=aux.astype(float))
    expect(case.run(device), wanted, time_major=True, merged=True, tolerance=5 * 2**-10)


def test_a_step_of_an_auxiliary_input_has_its_own_size(device: Device) -> None:
    """By hand: x + 10 a + 100 b for x = 1, 2, 3 and (a, b) = (1, 2), (3, 4), (5, 6)."""
    cell = {"weights": array([1]), "recurrent_weights": array([0]), "bias": array(0), "hidden_state": array([0])}
    weights = {way + name: value for way in WAYS for name, value in cell.items()}
    weights |= {f"{way}aux_weights": array([10, 100]) for way in WAYS}
    inputs = {"input": [[[1]], [[2]], [[3]]], "aux_input": [[[1, 2]], [[3, 4]], [[5, 6]]]}
    layout = {"activation_kind": "none", "time_major": True, "merge_outputs": False, "outputs": 2}
    for y in Case("BIDIRECTIONAL_SEQUENCE_RNN", inputs, **weights, **layout).run(device):
        assert y.tolist() == [[[211]], [[432]], [[653]]]


@LAYOUTS
@MERGES
@pytest.mark.parametrize("linking", ["none", "cross", "parallel"])
def test_directions_of_an_rnn(
    device: Device, rng: np.random.Generator, linking: str, time_major: bool, merged: bool
) -> None:
    x, other = rng.normal(size=(4, 2, 3)), rng.normal(size=(4, 2, 5))
    aux = 5 if linking == "cross" else 0
    weights = rnn_weights(rng, 3, 4, 2, "fw_", aux)
    weights |= rnn_weights(rng, 5 if linking == "parallel" else 3, 2, 2, "bw_", aux)
    inputs = {"input": swapped(x, time_major)}
    inputs |= {} if linking == "none" else {"aux_input": swapped(other, time_major)}
    layout = {"activation_kind": "tanh", "time_major": time_major, "merge_outputs": merged, "outputs": 4 - merged}
    case = Case("BIDIRECTIONAL_SEQUENCE_RNN", inputs, **weights, **layout)
    wanted = both(rnn, weights, x, other if linking == "parallel" else None, other if linking == "cross" else None)
    expect(case.run(device), wanted, time_major=time_major, merged=merged)


# ----------------------------------------------------------------------------------------------------------------- LSTM


@LAYOUTS
@pytest.mark.parametrize(
    "parts",
    [{}, {"cifg": True, "peep": True}, {"output": 4, "peep": True}, {"output": 2, "norm": True, "cifg": True}],
    ids=["plain", "coupled with peepholes", "projected to as many", "coupled, projected, layer normalised"],
)
def test_an_lstm_over_a_sequence_with_its_optional_parts(
    device: Device, rng: np.random.Generator, parts: Named, time_major: bool
) -> None:
    x, clips = rng.normal(size=(5, 3, 2)), {"cell_clip": 0.7, "projection_clip": 0.3}
    weights = lstm_weights(rng, 2, 4, 3, **parts)
    settings = {"activation_kind": "relu6", **clips, "time_major": time_major, "outputs": 3}
    case = Case("UNIDIRECTIONAL_SEQUENCE_LSTM", {"input": swapped(x, time_major)}, **weights, **settings)
    wanted, *states = lstm(weights, x, act=lambda z: np.clip(z, 0, 6), **clips)
    for actual, y in zip(case.run(device), [swapped(wanted, time_major), *states], strict=True):
        close(actual, y)


@pytest.mark.parametrize(("cifg", "gates"), [(False, 4), (True, 3)], ids=["own input gate", "coupled"])
def test_a_scratch_output_of_open_shape_has_room_for_the_gates(
    device: Device, rng: np.random.Generator, cifg: bool, gates: int
) -> None:
    """Whether weights that are inputs are left out is known only at execution, and so is the size."""
    x, weights = rng.normal(size=(1, 2, 3)), lstm_weights(rng, 3, 5, 2, cifg=cifg)
    case = Case("LSTM", {"input": x[0]} | weights, **PLAIN)
    scratch, state, cell, y = case.run(device)
    assert scratch.shape == (2, gates * 5) and scratch.dtype == np.float32
    for actual, wanted in zip((y, state, cell), (lstm(weights, x)[0][0], *lstm(weights, x)[1:]), strict=True):
        close(actual, wanted)


def test_a_scratch_output_that_something_reads_is_refused(device: Device, rng: np.random.Generator) -> None:
    case = Case("LSTM", {"input": rng.normal(size=(2, 3))}, **lstm_weights(rng, 3, 5, 2), **PLAIN)
    case.results[0] = case.builder.operation("FLOOR", case.results[0])
    wanted = "the scratch output is read within the model, but its contents are undefined"
    assert device.supports(case.model)[0].reason == wanted


SEQUENCES = pytest.mark.parametrize(
    ("op", "ways", "layout"),
    [
        ("LSTM", ("",), {}),
        ("UNIDIRECTIONAL_SEQUENCE_LSTM", ("",), {"time_major": True}),
        ("BIDIRECTIONAL_SEQUENCE_LSTM", WAYS, {"time_major": True, "merge_outputs": True, "outputs": 1}),
    ],
)


@SEQUENCES
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("none", "LiteRT's kernel without activation returns the cell's input instead of the cell"),
        ("sigmoid", "TFLite's options have no activation SIGMOID"),
    ],
)
def test_an_lstm_with_an_activation_that_litert_lacks_is_refused(
    device: Device, rng: np.random.Generator, op: str, ways: tuple[str, ...], layout: Named, kind: str, why: str
) -> None:
    x = rng.normal(size=(2, 3) if op == "LSTM" else (1, 2, 3))
    weights = {name: w for way in ways for name, w in lstm_weights(rng, 3, 4, 2, way).items()}
    assert reason(device, op, {"input": x}, **weights, **PLAIN | {"activation_kind": kind}, **layout) == why


@SEQUENCES
def test_a_projection_to_more_elements_than_cells_is_refused(
    device: Device, rng: np.random.Generator, op: str, ways: tuple[str, ...], layout: Named
) -> None:
    """LiteRT's kernel writes beyond its working memory, which ends the process."""
    x = rng.normal(size=(2, 3) if op == "LSTM" else (1, 2, 3))
    for last, why in ((4, ""), (5, "the projection of 4 cells has size 5, must be at most 4 for LiteRT's kernel")):
        sizes = dict.fromkeys(ways, 4) | {ways[-1]: last}
        weights = {n: w for way in ways for n, w in lstm_weights(rng, 3, 4, 2, way, output=sizes[way]).items()}
        assert reason(device, op, {"input": x}, **weights, **PLAIN, **layout) == why


# -------------------------------------------------------------------------------------------------------- RNN and SVDF


def test_a_sequence_rnn_with_a_sigmoid_is_refused(device: Device, rng: np.random.Generator) -> None:
    settings = {"activation_kind": "sigmoid", "time_major": 1}
    found = reason(
        device,
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        {"input": rng.normal(size=(1, 2, 3))},
        **rnn_weights(rng, 3, 4, 2),
        **settings,
    )
    assert found == "TFLite's options have no activation SIGMOID"


HUGE = array([1e30, -1e30, 3e38, -3e38, 0, 2])


def test_the_sigmoid_of_what_is_huge_is_0_or_1(device: Device) -> None:
    wanted = [[1, 0, 1, 0, 0.5, 1 / (1 + np.exp(-2))]]
    zeros = np.zeros((1, 6), np.float32)
    weights = {"weights": np.eye(6, dtype=np.float32), "recurrent_weights": np.zeros((6, 6), np.float32)}
    case = Case("RNN", {"input": HUGE}, **weights, bias=zeros[0], hidden_state=zeros, activation_kind="sigmoid")
    for y in case.run(device):
        close(y, wanted)
    features = {"weights_feature": np.eye(6, dtype=np.float32), "weights_time": np.ones((6, 1), np.float32)}
    case = Case("SVDF", {"input": HUGE}, **features, state=zeros, rank=1, activation_kind="sigmoid")
    close(case.run(device)[1], wanted)


@pytest.mark.parametrize(("state", "pushed"), [([[5, 6]], [[6, 6]]), ([[5, 6, 0]], [[6, 6, 0]])])
def test_a_memory_of_an_svdf_may_lack_the_place_for_the_newest(device: Device, state: Any, pushed: Any) -> None:
    """By hand: 3 becomes 6 and is pushed behind 5 and 6, which gives 5 + 10 * 6 + 100 * 6."""
    weights = {"weights_feature": array([2]), "weights_time": array([1, 10, 100])}
    case = Case("SVDF", {"input": [[3]], "state": state}, **weights, rank=1, activation_kind="none")
    found, output = case.run(device)
    assert output.tolist() == [[665]] and found.tolist() == pushed


# -------------------------------------------------------------------------------------------- states within the model


def cell(rng: np.random.Generator, size: int, units: int) -> Named:
    """The weights of a plain LSTM."""
    weights: Named = {f"input_to_{gate}": rng.standard_normal((units, size)) for gate in GATES}
    weights |= {f"state_to_{gate}": rng.standard_normal((units, units)) for gate in GATES}
    return weights | {f"bias_{gate}": rng.standard_normal(units) for gate in GATES}


def by_equations(x: Array, h: Array, c: Array, w: Named) -> tuple[Array, Array, Array]:
    """The results for a sequence [time, batch, size]: all outputs and the last states."""

    def gate(name: str, step: Array) -> Array:
        return step @ w[f"input_to_{name}"].T + h @ w[f"state_to_{name}"].T + w[f"bias_{name}"]

    def share(values: Array) -> Array:
        return 1 / (1 + np.exp(-values))

    found = []
    for step in x.astype(np.float64):
        opened, kept, shown = (share(gate(name, step)) for name in ("input", "forget", "output"))
        new = np.tanh(gate("cell", step))
        c = kept * c + opened * new
        h = shown * np.tanh(c)
        found.append(h)
    return np.stack(found), h, c


@pytest.mark.parametrize("kind", [F32, F16])
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("time_major", [True, False])
@pytest.mark.parametrize("outputs", [1, 3])
def test_a_state_may_be_computed_and_used_within_the_model(device, rng, steps, time_major, outputs, kind):
    b, weights = Builder(), cell(rng, 3, 4)
    dtype = np.float16 if kind == F16 else np.float32
    x, h, c = (rng.standard_normal(shape).astype(dtype) for shape in ((steps, 2, 3), (2, 4), (2, 4)))
    weights = {name: value.astype(dtype) for name, value in weights.items()}
    given = x if time_major else x.transpose(1, 0, 2)
    inputs = [b.input(each.shape, kind) for each in (given, h, c)]
    states = [b.neg(inputs[1]), b.neg(inputs[2])]
    fixed = {name: b.constant(value, kind) for name, value in weights.items()}
    found = b.operation(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        input=inputs[0],
        state=states[0],
        cell_state=states[1],
        activation_kind="tanh",
        cell_clip=0.0,
        projection_clip=0.0,
        time_major=time_major,
        outputs=outputs,
        **fixed,
    )
    results = list(found) if isinstance(found, tuple) else [found]
    model = b.finish(inputs, [results[0], *(b.neg(each) for each in results[1:])])
    assert [verdict.reason for verdict in device.supports(model) if verdict.reason] == []
    made = requests.run(checked_prepared(device, model, Hints()), [given, h, c]).results
    wanted = by_equations(x, -h.astype(np.float64), -c.astype(np.float64), weights)
    first = wanted[0] if time_major else wanted[0].transpose(1, 0, 2)
    for mine, theirs in zip(made, [first, -wanted[1], -wanted[2]], strict=False):
        np.testing.assert_allclose(mine, theirs, atol=2e-6 if kind == F32 else 2e-3)


@pytest.mark.parametrize(
    ("more", "steps", "why"),
    [
        ({"cell_clip": 1.0}, 2, "and the cell is not one of four gates and TANH without clip"),
        ({"activation_kind": "relu"}, 2, "and the cell is not one of four gates and TANH without clip"),
        ({}, 129, "and it has 129 steps, must have at most 128"),
    ],
)
def test_other_cells_are_left_to_others_where_a_state_is_computed(device, rng, more, steps, why):
    b, weights = Builder(), cell(rng, 3, 4)
    x, h, c = b.input((steps, 2, 3)), b.input((2, 4)), b.input((2, 4))
    fixed = {name: b.constant(value.astype(np.float32)) for name, value in weights.items()}
    how = {"activation_kind": "tanh", "cell_clip": 0.0, "projection_clip": 0.0, "time_major": True, "outputs": 1} | more
    y = b.operation("UNIDIRECTIONAL_SEQUENCE_LSTM", input=x, state=b.neg(h), cell_state=c, **how, **fixed)
    model = b.finish([x, h, c], [y])
    assert [verdict.reason for verdict in device.supports(model)][
        1
    ] == f"a state is computed or used within the model, {why}"
