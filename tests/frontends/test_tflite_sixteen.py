"""Activations of INT16 in `.tflite` files: computed in float32, given and returned as int16. LiteRT has integer kernels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.frontends.tflite import load
from nnhal.model.file import write_model
from nnhal.model.stored import pack_model, unpack_model
from tests.frontends.cases import RANDOM, Case, X, b, begin, c, channels, f, file_of, malformed, out, q, refused
from tests.frontends.flat import Writer, litert, tensor
from tests.frontends.test_tflite_quantised import Cell

begin(__name__)

DEVICES = ["reference", "litert", "onnxruntime", "openvino"]
UNIT = 2.0**-15  # the scale of results of TANH, LOGISTIC and SOFTMAX
ROUNDED = 6  # steps that LiteRT may be off, since it rounds between the layers of `network`
NOTE = "numbers of INT16 are computed in float32: NNAPI has no layers for them"


def s(*shape: int, scale: float = 1e-4, constant: bool = False) -> X:
    return X(RANDOM.integers(-30000, 30001, shape).astype("i2"), "i2", scale, 0, constant)


def o(*shape: int, scale: float = 1e-4) -> X:
    return out(*shape, kind="i2", scale=scale)


def weights(*shape: int, axis: int = 0) -> X:
    return channels(shape, axis)


def bias(x: X, w: X, units: int, kind: str = "i8") -> X:
    scale = np.float32(x.scale) * np.asarray(w.scale, "f4")
    return X(RANDOM.integers(-20000, 20001, units).astype(kind), kind, scale, 0, True)


PICTURE, FILTERS, ROWS = s(1, 6, 7, 4), weights(5, 3, 3, 4), weights(3, 8)
DEEP, TURNED, LINES = weights(1, 3, 3, 8, axis=3), weights(3, 3, 3, 4), s(4, 8)
ADDED = bias(PICTURE, FILTERS, 5)
WHOLE = X(RANDOM.integers(-127, 128, (3, 8)).astype("i1"), "i1", 0.01, 0, True)
MOVE = {"padding": 0, "strideW": 2, "strideH": 1}
CASES: dict[str, Case] = {
    "CONV_2D": ("CONV_2D", [PICTURE, FILTERS, ADDED], [o(1, 6, 4, 5, scale=4e-4)], "Conv2D",
                {**MOVE, "fusedActivationFunction": 1}),
    "DEPTHWISE_CONV_2D": ("DEPTHWISE_CONV_2D", [PICTURE, DEEP, bias(PICTURE, DEEP, 8)], [o(1, 6, 4, 8, scale=3e-4)],
                          "DepthwiseConv2D", {**MOVE, "depthMultiplier": 2}),
    "TRANSPOSE_CONV": ("TRANSPOSE_CONV", [c([1, 6, 14, 3]), TURNED, PICTURE, bias(PICTURE, TURNED, 3)],
                       [o(1, 6, 14, 3, scale=4e-4)], "TransposeConv", MOVE),
    "FULLY_CONNECTED without a bias": ("FULLY_CONNECTED", [LINES, ROWS, None], [o(4, 3, scale=4e-4)], "FullyConnected"),
    "FULLY_CONNECTED": ("FULLY_CONNECTED", [LINES, ROWS, bias(LINES, ROWS, 3)], [o(4, 3, scale=4e-4)], "FullyConnected"),
    "FULLY_CONNECTED with INT32": ("FULLY_CONNECTED", [LINES, WHOLE, bias(LINES, WHOLE, 3, "i4")], [o(4, 3, scale=4e-4)],
                                   "FullyConnected"),
    "ADD": ("ADD", [s(2, 5), s(5, scale=2e-4)], [o(2, 5, scale=3e-4)], "Add", {"fusedActivationFunction": 1}),
    "SUB": ("SUB", [s(2, 5), s(2, 5, scale=2e-4, constant=True)], [o(2, 5, scale=3e-4)], "Sub"),
    "MUL": ("MUL", [s(2, 5), s(2, 1)], [o(2, 5, scale=3e-4)], "Mul", {"fusedActivationFunction": 3}),
    "TANH": ("TANH", [s(3, 4)], [o(3, 4, scale=UNIT)]),
    "LOGISTIC": ("LOGISTIC", [s(3, 4)], [o(3, 4, scale=UNIT)]),
    "SOFTMAX": ("SOFTMAX", [s(3, 9)], [o(3, 9, scale=UNIT)], "Softmax", {"beta": 1.0}),
    "ABS": ("ABS", [s(3, 4)], [o(3, 4)], "Abs"),
    "LEAKY_RELU": ("LEAKY_RELU", [s(3, 4)], [o(3, 4)], "LeakyRelu", {"alpha": 0.25}),
    "RELU": ("RELU", [s(3, 4)], [o(3, 4)]),
    "MEAN": ("MEAN", [PICTURE, c([1, 2])], [o(1, 4)], "Reducer"),
    "SUM": ("SUM", [LINES, c([1])], [o(4, scale=8e-4)], "Reducer"),
    "REDUCE_MAX": ("REDUCE_MAX", [PICTURE, c([2])], [o(1, 6, 4)], "Reducer"),
    "AVERAGE_POOL_2D": ("AVERAGE_POOL_2D", [PICTURE], [o(1, 6, 4, 4)], "Pool2D",
                        {**MOVE, "filterWidth": 2, "filterHeight": 2}),
    "MAX_POOL_2D": ("MAX_POOL_2D", [PICTURE], [o(1, 6, 4, 4)], "Pool2D", {**MOVE, "filterWidth": 2, "filterHeight": 2}),
    "RESIZE_NEAREST_NEIGHBOR": ("RESIZE_NEAREST_NEIGHBOR", [PICTURE, c([9, 5])], [o(1, 9, 5, 4)],
                                "ResizeNearestNeighbor"),
    "BATCH_MATMUL": ("BATCH_MATMUL", [s(2, 3, 4), s(2, 4, 5)], [o(2, 3, 5, scale=1e-3)], "BatchMatMul"),
    "CONCATENATION": ("CONCATENATION", [s(2, 3), s(2, 4)], [o(2, 7)], "Concatenation", {"axis": 1}),
    "PAD": ("PAD", [s(2, 3), c([[1, 0], [2, 1]])], [o(3, 6)]),
    "RESHAPE": ("RESHAPE", [s(2, 3), c([3, 2])], [o(3, 2)]),
    "TRANSPOSE": ("TRANSPOSE", [s(2, 3), c([1, 0])], [o(3, 2)]),
    "SPLIT": ("SPLIT", [c(1), s(2, 6)], [o(2, 3), o(2, 3)], "Split", {"numSplits": 2}),
    "GATHER": ("GATHER", [s(5, 3, constant=True), X(np.array([4, 0], "i4"), "i4")], [o(2, 3)], "Gather"),
    "SELECT_V2": ("SELECT_V2", [b(2, 3), s(2, 3), s(2, 3)], [o(2, 3)]),
    "GREATER": ("GREATER", [s(4, 5), s(4, 5)], [out(4, 5, kind="b1")]),
    "QUANTIZE of floats": ("QUANTIZE", [f(3, 4, low=-5, high=5)], [o(3, 4)]),
    "QUANTIZE of five dimensions": ("QUANTIZE", [f(2, 1, 3, 1, 2, low=-5, high=5)], [o(2, 1, 3, 1, 2)]),
    "QUANTIZE of 16 bits": ("QUANTIZE", [s(3, 4)], [o(3, 4, scale=5e-5)]),
    "QUANTIZE of 8 bits": ("QUANTIZE", [q(3, 4)], [o(3, 4)]),
    "QUANTIZE to 8 bits": ("QUANTIZE", [s(3, 4)], [out(3, 4, kind="i1", scale=0.02, zero=-5)]),
    "DEQUANTIZE": ("DEQUANTIZE", [s(3, 4)], [out(3, 4)]),
}  # fmt: skip


def off(content: bytes, fed: Sequence[Any], device: str = "reference", **options: Any) -> float:
    """By how many quantisation steps a result differs from LiteRT's at most; floats are counted in 1e-4."""
    found = nnhal.compile(load(content), devices=list(dict.fromkeys((device, "reference"))), **options)(*fed)
    worst = 0.0
    for mine, theirs in zip(found if isinstance(found, tuple) else (found,), litert(content, *fed), strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        assert theirs.size and np.ptp(theirs.astype("f8")) > 0
        distance = np.abs(mine.astype("f8") - theirs.astype("f8")).max()
        worst = max(worst, distance / 1e-4 if theirs.dtype == np.float32 else distance)
    return worst


@pytest.mark.parametrize("name", CASES)
def test_operators_give_what_the_integer_kernels_of_litert_give(name: str) -> None:
    assert off(*file_of(*CASES[name])) <= (0 if CASES[name][0] in ("GREATER", "RESHAPE") else 2)


def network(given: str = "i2", taken: str = "i2") -> Writer:
    """A convolution, a mean, a layer and a softmax. given, taken: the types at its edges."""
    w = Writer()
    x = inner = w.tensor([1, 6, 7, 4], given, scale=1e-4 if given == "i2" else None)
    if given == "f4":
        inner = w.tensor([1, 6, 7, 4], "i2", scale=1e-4)
        w.operator("QUANTIZE", [x], [inner])
    filters = w.tensor(FILTERS.data.shape, "i1", FILTERS.data, FILTERS.scale)
    mean, rows = w.tensor([1, 5], "i2", scale=5e-4), w.tensor([3, 5], "i1", ROWS.data[:, :5], 0.01)
    logits, soft = w.tensor([1, 3], "i2", scale=1e-3), w.tensor([1, 3], "i2", scale=UNIT)
    picture = w.tensor([1, 6, 4, 5], "i2", scale=3e-3)  # wide enough for every sum
    added = w.tensor([5], "i8", ADDED.data, ADDED.scale)
    w.operator("CONV_2D", [inner, filters, added], [picture], "Conv2D", **MOVE)
    w.operator("MEAN", [picture, w.tensor([2], "i4", [1, 2])], [mean], "Reducer")
    w.operator("FULLY_CONNECTED", [mean, rows, -1], [logits], "FullyConnected")
    w.operator("SOFTMAX", [logits], [soft], "Softmax", beta=1.0)
    y = soft
    if taken == "f4":
        y = w.tensor([1, 3])
        w.operator("DEQUANTIZE", [soft], [y])
    w.ends([x], [y])
    return w


@pytest.mark.sampled(2)
@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_network_runs_on_every_device(device: str, isolation: str) -> None:
    assert off(network().bytes(), [PICTURE.data], device, isolation=isolation) <= ROUNDED
    real = (PICTURE.data * np.float32(1e-4)).astype("f4")
    assert off(network("f4", "f4").bytes(), [real], device, isolation=isolation) <= ROUNDED


def test_the_model_says_that_it_computes_in_float32_and_has_the_scale_of_the_file():
    model = load(network().bytes())
    assert model.notes == (NOTE,)
    compiled = nnhal.compile(model, devices="reference")
    assert [str(spec) for spec in (*compiled.inputs, *compiled.outputs)] == [
        "t0: TENSOR_QUANT16_SYMM[1, 6, 7, 4] scale 0.0001 zero point 0",
        "t5: TENSOR_QUANT16_SYMM[1, 3] scale 3.05176e-05 zero point 0",
    ]
    assert load(network("f4", "f4").bytes()).notes == (NOTE,)
    assert load(file_of("RELU", [f(3)], [out(3)])[0]).notes == ()


def test_every_way_to_run_gives_the_same_16_bits(tmp_path: Path) -> None:
    model = load(network().bytes())
    write_model(model, tmp_path / "model.nnhal")
    compiled, x = nnhal.compile(model, devices="reference"), PICTURE.data
    wanted, room = compiled(x), np.empty((1, 3), np.int16)
    assert compiled(x, out=room) is room and room.tolist() == wanted.tolist()
    raw = np.zeros(6, np.uint8)
    compiled(x, out=raw)
    assert raw.view(np.int16).tolist() == wanted[0].tolist()
    bound = compiled.bind(x, out=[room])
    room[:] = 0
    bound()
    assert room.tolist() == wanted.tolist()
    assert compiled.execute_fenced(x).result(20).tolist() == wanted.tolist()
    with compiled.burst() as burst:
        assert burst(x).tolist() == wanted.tolist()
    assert unpack_model(pack_model(model), model.pools, {}).edge == model.edge
    kept = nnhal.compile(nnhal.load(tmp_path / "model.nnhal"), devices="reference")
    assert kept(x).dtype == np.int16 and kept(x).tolist() == wanted.tolist()
    assert kept.inputs == compiled.inputs and kept.outputs == compiled.outputs
    with pytest.raises(nnhal.InvalidRequest, match="is float32, must be int16"):
        compiled(x.astype(np.float32))


def test_floats_are_cut_where_the_range_of_16_bits_ends():
    w = Writer()
    x, inner, total, y = w.tensor([4]), *(w.tensor([4], "i2", scale=2.0**-14) for _ in range(2)), w.tensor([4])
    w.operator("QUANTIZE", [x], [inner])
    half = w.tensor([1], "i2", [2**13], scale=2.0**-14)
    w.operator("ADD", [inner, half], [total], "Add", potScaleInt16=False)
    w.operator("DEQUANTIZE", [total], [y])
    w.ends([x], [y])
    given = np.array([-9, -1.5, 0.25, 1.75], np.float32)
    expected = litert(w.bytes(), given)[0]
    assert expected.tolist() == [-1.5, -1, 0.75, 32767 / 2**14]
    assert nnhal.compile(load(w.bytes()), devices="reference")(given).tolist() == expected.tolist()


def test_no_number_is_cut_in_between():
    """LiteRT does: the file has those ranges for the inputs that it was calibrated with."""
    w = Writer()
    x, large, back = (w.tensor([2], "i2", scale=2.0**-14) for _ in range(3))
    half = w.tensor([1], "i2", [2**13], scale=2.0**-14)
    w.operator("ADD", [x, x], [large], "Add")
    w.operator("MUL", [large, half], [back], "Mul")
    w.ends([x], [back])
    stored = np.array([30000, -20000], np.int16)
    assert nnhal.compile(load(w.bytes()), devices="reference")(stored).tolist() == stored.tolist()


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("kind", ["i4", "i8"])
def test_a_recurrent_layer_is_that_of_the_real_values(kind: str, norms: bool) -> None:
    """LiteRT has no such kernel, but one of floats."""

    def lstm(*, real: bool) -> bytes:
        cell, units, shape = Cell(11), 6, [4, 3, 5]
        w = cell.w
        tensor = w.tensor

        def written(shape: Sequence[int], kind: str, data: Any = None, scale: float = UNIT, **more: Any) -> int:
            if not real:
                return tensor(shape, kind, data, scale=scale, **more)
            return tensor(shape, "f4", None if data is None else np.asarray(data) * np.float32(scale), **more)

        cell.w.tensor = written  # type: ignore[method-assign]
        x = written(shape, "i2")
        inputs = [x, *(cell.matrix(units, 5) for _ in range(4)), *(cell.matrix(units, units) for _ in range(4))]
        inputs += [-1] * 3
        inputs += [written([units], kind, cell.random.integers(-3000, 3000, units), 1e-4) for _ in range(4)]
        inputs += [-1, -1, written([3, units], "i2", isVariable=True), written([3, units], "i2", isVariable=True)]
        inputs += [cell.vector(units, 3e-5, 32000) for _ in range(4 * norms)]
        y = written([4, 3, units], "i2")
        options = {"fusedActivationFunction": 4, "cellClip": 0.0, "projClip": 0.0, "timeMajor": True}
        w.operator("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y], "UnidirectionalSequenceLSTM", **options)
        return w.file([x], [y])

    x = np.random.default_rng(2).integers(-30000, 30000, (4, 3, 5)).astype(np.int16)
    stream = nnhal.compile(load(lstm(real=False)), devices="reference").stream()
    for calls in (1, 2):
        found, (wanted,) = stream(x), litert(lstm(real=True), x * np.float32(UNIT), calls=calls)
        assert found.dtype == np.int16 and np.ptp(found.astype(int)) > 1000
        assert np.abs(found - wanted / UNIT).max() <= 1


@pytest.mark.parametrize(
    ("name", "kind", "scale", "options"),
    [("BITWISE_XOR", "i2", 0.5, ""), ("FLOOR_DIV", "i2", 0.5, "FloorDiv"), ("CAST", "f4", None, "Cast")],
)
def test_operators_on_the_stored_integers_are_refused(name: str, kind: str, scale: float | None, options: str) -> None:
    inputs: list[X | None] = [s(3, scale=0.5)] * (1 if name == "CAST" else 2)
    content, _ = file_of(name, inputs, [out(3, kind=kind, scale=scale)], options)
    refused(content, f"{name} #0: is of INT16, which NNAPI supports only for states")


def test_integers_of_16_bits_without_a_scale_are_refused():
    content, _ = file_of("ABS", [X(np.zeros(3, "i2"), "i2")], [out(3, kind="i2")], "Abs")
    refused(content, "ABS #0: is of INT16, which NNAPI supports only for states")


@pytest.mark.parametrize(("scale", "kind"), [(0.0, "i4"), ([0.1, 0.1], "i8"), (None, "i8")])
def test_a_bias_without_its_scale_is_refused(scale: Any, kind: str) -> None:
    added = X(np.array([1, 2, 3], kind), kind, scale, 0, True)
    refused(file_of("FULLY_CONNECTED", [LINES, WHOLE, added], [o(4, 3)], "FullyConnected")[0], "FULLY_CONNECTED #0")


def test_real_values_of_constants_are_paid_for_even_if_their_operators_are_refused():
    w, many = Writer(), np.zeros(1 << 20, "i2")
    for _ in range(60):  # over the same bytes
        constant = w.tensor(many.shape, "i2", many if not w.graph.operators else None, scale=1e-4)
        w.graph.tensors[constant].buffer = 1
        y = w.tensor(many.shape, "i2", scale=1e-4)
        w.operator("BITCAST", [constant], [y])
    malformed(w.file([], [y]), r"needs more than \d+ bytes of constants")


def test_a_constant_beyond_float32_stays_finite():
    content, fed = file_of("MINIMUM", [s(2), X(np.array([32767, -1], "i2"), "i2", 1e37, 0, True)], [o(2)])
    assert nnhal.compile(load(content), devices="reference")(*fed).tolist() == [fed[0][0], -32768]


@pytest.mark.parametrize("truth", [True, False])
def test_branches_have_16_bits(truth: bool) -> None:
    w, numbers = Writer(), tensor([4], "i2", scale=1e-4)
    w.only("IF", [tensor([1], "b1"), numbers], [numbers], "If", thenSubgraphIndex=1, elseSubgraphIndex=2)
    for name in ("ABS", "RELU"):
        w.subgraph()
        w.only(name, [numbers], [numbers], "Abs" if name == "ABS" else "")
    assert off(w.bytes(), [np.array([truth]), np.array([-5, 7, -32767, 1], "i2")]) == 0


def test_a_variable_has_16_bits():
    """It begins with a constant, and the application gives what is added at each call."""
    w = Writer()
    w.operator("CALL_ONCE", [], [], "CallOnce", initSubgraphIndex=1)
    x, total = (w.tensor([3], "i2", scale=1e-4) for _ in range(2))
    variable = w.variable()
    w.operator("ADD", [x, w.read(variable, [3], "i2", scale=1e-4)], [total], "Add")
    w.assign(variable, total)
    w.ends([x], [total])
    w.subgraph()
    w.assign(w.variable(), w.tensor([3], "i2", [100, -200, 300], scale=1e-4))
    stream, given = nnhal.compile(load(w.file([], [])), devices="reference").stream(), np.array([1, 2, -3], "i2")
    assert stream(given).tolist() == [101, -198, 297] and stream(given).tolist() == [102, -196, 294]


def test_an_input_may_become_a_constant():
    content, fed = file_of("MUL", [s(2, 5), s(2, 1)], [o(2, 5, scale=3e-4)], "Mul")
    known = nnhal.compile(load(content, values={"t1": fed[1]}), devices="reference")
    assert known(fed[0]).tolist() == nnhal.compile(load(content), devices="reference")(*fed).tolist()
