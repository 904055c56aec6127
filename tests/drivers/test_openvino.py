"""The `openvino` device: what it computes where the engine by itself would be wrong, what it refuses, what it keeps."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

import nnhal
from nnhal.base.codes import Preference
from nnhal.base.errors import MissedDeadline, OperationFailed
from nnhal.base.operands import Array
from nnhal.drivers.kit.operations import WindowAttributes
from nnhal.drivers.kit.real import RealGraph, RealTask
from nnhal.drivers.kit.variants import Refused
from nnhal.drivers.openvino import engine
from nnhal.drivers.openvino.device import TABLE, OpenVINO
from nnhal.drivers.openvino.maths import MathOperations
from nnhal.drivers.reference import Reference
from nnhal.frontends.tensor import Tensor
from nnhal.hal.cache.files import CacheContent, CacheFiles
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints
from nnhal.hal.request import Control
from nnhal.model.graph import Model
from tests import requests
from tests.models import make_model

ONES = WindowAttributes((1, 1), (0, 0), (0, 0))


def run(model: Model, *inputs: Array, threads: int = 0) -> list[Array]:
    return requests.outputs(checked_prepared(OpenVINO(), model, Hints(threads=threads)), *inputs)


def compiled(inputs: Sequence[Any], outputs: Sequence[Any], maths: MathOperations) -> Any:
    """Nodes, for one thread."""
    return engine.compiled(inputs, outputs, maths.constants, engine.settings(1, throughput=False))[0]


def layers(model: Model) -> dict[str, list[str]]:
    """The kinds of layers that run for a model, and the precisions of each."""
    graph = RealGraph(model, MathOperations())
    TABLE.lower(model, partial(RealTask, graph))
    found: dict[str, list[str]] = {}
    for node in compiled(graph.inputs, graph.outputs(), graph.engine).get_runtime_model().get_ops():
        kind, precision = (node.get_rt_info()[name].astype(str) for name in ("layerType", "runtimePrecision"))
        found.setdefault(str(kind), []).append(str(precision))
    return found


def verdict(model: Model) -> str:
    (found,) = OpenVINO().consider(model, Hints()).verdicts
    return "" if found.ok else found.reason


def unary(name: str, shape: tuple[int, ...], kind: str = "TENSOR_FLOAT32", **more: object) -> Model:
    return make_model(lambda b, x: b.operation(name, input=x, **more), (shape, kind))


def binary(name: str, x: Array, constant: Array | None = None) -> Model:
    b = nnhal.Builder()
    kind = {"f": "TENSOR_FLOAT32", "i": "TENSOR_INT32"}[x.dtype.kind]
    first = b.input(x.shape, kind)
    second = b.input(x.shape, kind) if constant is None else b.constant(constant)
    more = {"activation": "none"} if name in ("DIV", "ADD") else {}
    y = b.operation(name, input1=first, input2=second, **more)
    return b.finish([first] if constant is not None else [first, second], [y])


# ---------------------------------------------------------------------------------------------------------- exact numbers


PIXELS = np.float32([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e38, -1e38, 1e-37, -1e-37, 3.4e38, -3.4e38, 5, -5, 0.5])


@pytest.mark.parametrize("kind", ["CONV_2D", "DEPTHWISE_CONV_2D", "alone"])
@pytest.mark.parametrize("odd", [None, 0.0, np.inf, np.nan, "at run time", "one for a column"])
def test_slopes_behind_a_layer_or_alone_are_right_whatever_they_are_and_times_what(
    kind: str, odd: float | str | None
) -> None:
    """As the definition has it, also of what is no number; layers multiply each pixel by 1."""
    slopes = np.float32([0.25, -2, 1, 1e30, 1e-30, 3, 0.1])
    if isinstance(odd, float):
        slopes[3] = odd
    count = len(slopes)
    b = nnhal.Builder()
    given = x = b.input((1, 1, PIXELS.size, count if kind == "DEPTHWISE_CONV_2D" else 1))
    if kind == "CONV_2D":
        ones, none = b.constant(np.ones((count, 1, 1, 1), np.float32)), b.constant(np.zeros(count, np.float32))
        x = b.conv_2d(x, ones, none, padding="valid")
    elif kind == "DEPTHWISE_CONV_2D":
        ones, none = b.constant(np.ones((1, 1, 1, count), np.float32)), b.constant(np.zeros(count, np.float32))
        x = b.depthwise_conv_2d(x, ones, none, padding="valid", depth_multiplier=1)
    else:
        x = b.tile(x, multiples=np.int32([1, 1, 1, count]))
    if odd == "one for a column":
        slopes = np.linspace(-1, 2, PIXELS.size, dtype=np.float32)[:, None]
    alpha = b.input(slopes.shape) if odd == "at run time" else b.constant(slopes)
    model = b.finish([given, alpha] if odd == "at run time" else [given], [b.prelu(x, alpha)])
    picture = PIXELS.reshape(1, 1, -1, 1).repeat(count if kind == "DEPTHWISE_CONV_2D" else 1, 3)
    (found,) = run(model, *([picture, slopes] if odd == "at run time" else [picture]), threads=1)
    numbers = PIXELS[:, None].astype(np.float64)
    with np.errstate(all="ignore"):
        wanted = np.where(numbers < 0, numbers * slopes, numbers).astype(np.float32)
    np.testing.assert_allclose(found[0, 0], np.broadcast_to(wanted, found[0, 0].shape), rtol=1e-6, atol=1.2e-38)


def test_a_layer_with_slopes_is_one_kernel() -> None:
    b = nnhal.Builder()
    x = b.input((1, 16, 8, 8))
    weights, bias = b.constant(np.ones((16, 3, 3, 16), np.float32)), b.constant(np.zeros(16, np.float32))
    slopes = b.constant(np.linspace(0.1, 0.9, 16, dtype=np.float32).reshape(16, 1, 1))
    y = b.prelu(b.conv_2d(x, weights, bias, padding="same", nchw=True), slopes)
    kinds = layers(b.finish([x], [y])).keys()
    assert "Convolution" in kinds and kinds <= {"Input", "Const", "Convolution", "Reorder", "Output"}


@pytest.mark.parametrize(
    ("kind", "low", "high"), [("TENSOR_QUANT8_ASYMM", 0, 255), ("TENSOR_QUANT8_ASYMM_SIGNED", -128, 127)]
)
def test_sums_of_extreme_products_neither_saturate_nor_round(kind: str, low: int, high: int) -> None:
    """4,500 products of 255 * 255 are 2**28 and more; an output step is 4,500 * 255 of them, less some."""
    size, zero = 4500, low
    dtype = np.uint8 if low == 0 else np.int8
    x, w = np.full((1, size), high, dtype), np.full((2, size), high, dtype)
    w[1, ::3] = low
    b = nnhal.Builder()
    given = b.input(x.shape, kind, scale=1.0, zero_point=zero)
    weights = b.constant(w, kind, scale=1.0, zero_point=zero)
    bias = b.constant(np.array([-300, 7], np.int32), "TENSOR_INT32", scale=1.0)
    step = 2.0**21
    y = b.fully_connected(given, weights, bias, scale=step, zero_point=zero)
    found = run(b.finish([given], [y]), x)[0]
    exact = (x.astype(int) - zero) @ (w.astype(int) - zero).T + [-300, 7]
    wanted = np.clip(np.floor(exact / step + 0.5) + zero, low, high)
    assert exact.max() > 2**28 and found.tolist() == wanted.tolist()


SPECIAL = [0.0, -0.0, 1.0, -3.0, 7.0, 41.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 1.2e-38, 3e38, -3e38]
NUMBERS = np.concatenate([SPECIAL, np.arange(1, 100) * 0.36159506, np.arange(1, 100) * 41]).astype(np.float32)


def dividing(how: str, before: str, x: Array, y: Array) -> tuple[Model, list[Array]]:
    """x / y, of which one may be a constant; what is computed comes from an operation that OpenVINO may divide in."""
    b = nnhal.Builder()
    given = [
        b.input(values.shape) for values in (x, y) if values is (x if how == "by a constant" else y) or how == "both"
    ]
    ready = [behind(b, before, t) for t in given]
    pairs = {"both": ready, "by a constant": [*ready, y], "of a constant": [x, *ready]}
    inputs = {"both": [x, y], "by a constant": [x], "of a constant": [y]}
    return b.finish(given, [b.div(*pairs[how], "none")]), inputs[how]


def behind(b: nnhal.Builder, before: str, x: Tensor) -> Tensor:
    """The same numbers, computed by an operation."""
    if before == "FULLY_CONNECTED":
        return b.fully_connected(x, np.eye(1, dtype=np.float32), np.zeros(1, np.float32))
    if before == "CONV_2D":
        pixels = b.reshape(x, [1, -1, 1, 1])
        y = b.conv_2d(pixels, np.ones((1, 1, 1, 1), np.float32), np.zeros(1, np.float32), padding="valid")
        return b.reshape(y, [-1, 1])
    return b.mean(x, [1], 1) if before == "MEAN" else x


@pytest.mark.parametrize("how", ["both", "by a constant", "of a constant"])
@pytest.mark.parametrize("before", ["", "FULLY_CONNECTED", "CONV_2D", "MEAN"])
def test_a_quotient_is_rounded_once(how: str, before: str) -> None:
    """Also of subnormal numbers, zeros and infinities."""
    x, y = (each.reshape(-1, 1) for each in np.meshgrid(NUMBERS[:60], NUMBERS[::3]))
    model, inputs = dividing(how, before, np.ascontiguousarray(x), np.ascontiguousarray(y))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run(model, *inputs)[0], x / y)


@pytest.mark.parametrize("scalar", [7.0, 1e-40, -1e-40])
def test_a_quotient_by_one_number_is_rounded_once(scalar: float) -> None:
    x, one = NUMBERS.reshape(-1, 1) + np.float32(0), np.full((1, 1), scalar, np.float32)  # a layer has no -0
    for how, pair in (("by a constant", (x, one)), ("of a constant", (one, x))):
        model, inputs = dividing(how, "CONV_2D", *pair)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(run(model, *inputs)[0], pair[0] / pair[1])


def test_no_layer_of_a_quantised_model_runs_in_8_bits_behind_ones_back() -> None:
    b = nnhal.Builder()
    x = b.input((1, 8, 8, 16), "TENSOR_QUANT8_ASYMM_SIGNED", scale=0.5, zero_point=3)
    w = np.random.default_rng(0).integers(-127, 127, (8, 3, 3, 16)).astype(np.int8)
    weights = b.constant(w, "TENSOR_QUANT8_ASYMM_SIGNED", scale=0.25, zero_point=0)
    bias = b.constant(np.zeros(8, np.int32), "TENSOR_INT32", scale=0.125)
    model = b.finish([x], [b.conv_2d(x, weights, bias, padding="same", scale=64.0, zero_point=0)])
    assert layers(model)["Convolution"] == ["f32"]


# -------------------------------------------------------------------------------------------------------------- refusals


def recurrent(name: str, outputs: int, **arguments: Any) -> str:
    """The verdict on a model of constants, inputs (tuples) and scalars."""
    b, inputs = nnhal.Builder(), []
    for key, value in arguments.items():
        if isinstance(value, tuple):
            inputs.append(b.input(value))
            arguments[key] = inputs[-1]
        elif isinstance(value, np.ndarray):
            arguments[key] = b.constant(value.astype(np.float32))
    made = b.operation(name, **arguments, outputs=outputs)
    return verdict(b.finish(inputs, list(made) if isinstance(made, tuple) else [made]))


def test_a_projection_that_may_be_omitted_is_not_taken_for_omitted_where_sizes_need_it() -> None:
    gates = ("forget", "cell", "output")
    weights: dict[str, Array] = {f"{p}_to_{g}": np.ones((5, n)) for p, n in (("input", 3), ("state", 4)) for g in gates}
    weights |= {f"bias_{g}": np.ones(5) for g in gates}
    states = {"state": np.ones((2, 4)), "cell_state": np.ones((2, 5))}
    how = {"activation_kind": "tanh", "cell_clip": 0.0, "projection_clip": 0.0}
    why = recurrent("LSTM", 4, input=(2, 3), **weights, projection=(None, None), **states, **how)
    assert why == "projection may be omitted at execution, must be known when the model is prepared"


def test_cells_linked_crosswise_need_the_auxiliary_input_that_may_be_omitted() -> None:
    weights: dict[str, Array] = {
        f"{way}_{part}": np.ones((4, n))
        for way in ("fw", "bw")
        for part, n in (("weights", 3), ("recurrent_weights", 4), ("aux_weights", 2))
    }
    more: dict[str, Array] = {f"{way}_bias": np.ones(4) for way in ("fw", "bw")}
    more |= {f"{way}_hidden_state": np.ones((2, 4)) for way in ("fw", "bw")}
    how = {"activation_kind": "tanh", "time_major": False, "merge_outputs": True}
    cells = {"input": (2, 5, 3), "aux_input": (None, None, None)}
    why = recurrent("BIDIRECTIONAL_SEQUENCE_RNN", 1, **cells, **weights, **more, **how)
    assert why == "aux_input is omitted, must be given"


def test_what_the_engine_computes_of_constants_alone_is_refused() -> None:
    """OpenVINO computes it once, and adds the bias of each execution to what the one before left."""
    b = nnhal.Builder()
    bias = b.input((1,))
    x, w = b.constant(np.ones((1, 4, 4, 1), np.float32)), b.constant(np.ones((1, 2, 2, 1), np.float32))
    model = b.finish([bias], [b.conv_2d(x, w, bias, padding="valid")])
    assert verdict(model) == "OpenVINO's convolution of only constants is wrong from the second execution on"


@pytest.mark.parametrize("kind", ["convolution", "elu", "gather_elements", "softmax", "tanh"])
def test_constants_are_folded_or_refused(kind: str) -> None:
    """Whatever the engine may compute of constants, executions give the same for the same input."""
    maths, rng = MathOperations(), np.random.default_rng(0)
    x = maths.constant(rng.random((2, 3, 4, 4), np.float32))
    made: dict[str, Callable[[], Any]] = {
        "convolution": lambda: maths.convolution(x, maths.constant(np.ones((3, 3, 1, 1), np.float32)), 1, ONES),
        "elu": lambda: maths.elu(x, 1.0),
        "gather_elements": lambda: maths.gather_each(x, maths.constant(np.zeros((2, 3, 4, 4), np.int32)), 1),
        "softmax": lambda: maths.softmax(x, 1, logarithm=False),
        "tanh": lambda: maths.op("tanh", x),
    }
    try:
        node = made[kind]()
    except Refused:
        return
    given = maths.parameter(np.dtype(np.float32), (2, 3, 4, 4))
    request = compiled([given], [maths.op("add", node, given)], maths).create_infer_request()
    found = [request.infer([np.full((2, 3, 4, 4), n, np.float32)])[0].copy() for n in (1, 2, 1)]
    assert (found[0] == found[2]).all()


def test_what_the_engine_raises_of_a_node_is_the_reason_that_it_is_refused() -> None:
    maths = MathOperations()
    x, y = (maths.parameter(np.dtype(np.float32), shape) for shape in ((3, 2), (5, 4)))
    with pytest.raises(Refused, match="matmul rejects the operands: Incompatible MatMul matrix dimension"):
        maths.matmul(x, y)
    with pytest.raises(Refused, match="add rejects the operands"):
        maths.op("add", x, None)


def test_what_the_engine_lacks_is_named() -> None:
    model = make_model(lambda far, x: far.relu(x), ((2,), "TENSOR_QUANT8_ASYMM", 1e30, 0))
    assert "to compute in float32" in verdict(model)
    y = np.ones(3, np.int32)
    assert verdict(binary("DIV", y)) == "OpenVINO's DIV does not support TENSOR_INT32"
    tiny = np.array([1e-40, 1, 1], np.float32)
    assert "treats a subnormal constant as 0" in verdict(binary("LESS", tiny, tiny))


def test_its_import_tells_nobody(tmp_path: Path) -> None:
    program = (
        "import sys; from nnhal.drivers.openvino import device; device(); print('openvino_telemetry' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"HOME": str(tmp_path)}
    )
    assert (done.stdout, done.stderr, list(tmp_path.iterdir())) == ("False\n", "", [])


# ------------------------------------------------------------------------------------------------------------ executions


def test_an_index_outside_ends_the_execution() -> None:
    model = make_model(lambda b, x, indices: b.gather(x, 0, indices), (4, 2), ((3,), "TENSOR_INT32"))
    given = np.arange(8, dtype=np.float32).reshape(4, 2)
    assert run(model, given, np.array([3, 0, 3], np.int32))[0].tolist() == given[[3, 0, 3]].tolist()
    for index in (-1, 4, 2**31 - 1, -(2**31)):
        with pytest.raises(OperationFailed, match="an index is outside"):
            run(model, given, np.array([0, index, 0], np.int32))


def test_what_is_prepared_holds_each_constant_once_in_the_order_that_the_engine_has_it() -> None:
    weights = np.random.default_rng(0).standard_normal((8, 3, 3, 16)).astype(np.float16)
    b = nnhal.Builder()
    x = b.input((1, 5, 5, 16))
    halved = b.cast(b.constant(weights), out_type="TENSOR_FLOAT32")
    y = b.conv_2d(x, halved, b.constant(np.zeros(8, np.float32)), padding="same", stride=1)
    z = b.transpose(b.constant(np.ones((1, 8, 5, 5), np.float32)), np.array([0, 2, 3, 1], np.int32))
    model = b.finish([x], [b.add(y, z)])
    prepared: Any = checked_prepared(OpenVINO(), model, Hints()).inner
    held = [array for array in prepared._kept if array.size > 8]
    assert sorted(array.shape for array in held) == [(1, 5, 5, 8), (8, 16, 3, 3)]
    assert sum(array.nbytes for array in held) == 4 * (weights.size + 200)


@pytest.mark.parametrize(
    ("preference", "hint"),
    [("FAST_SINGLE_ANSWER", "LATENCY"), ("SUSTAINED_SPEED", "THROUGHPUT"), ("LOW_POWER", "LATENCY")],
)
def test_many_executions_at_once_are_for_sustained_speed(preference: str, hint: str) -> None:
    hints = Hints(preference=Preference[preference])
    prepared: Any = checked_prepared(OpenVINO(), binary("ADD", np.ones(2, np.float32)), hints).inner
    assert prepared.compiled.get_property("PERFORMANCE_HINT") == hint


def test_large_arguments_are_used_in_place_whatever_their_memory() -> None:
    x = np.arange(2 * engine.IN_PLACE, dtype=np.float32).reshape(2, -1)
    model = unary("RELU", (engine.IN_PLACE, 2))
    assert (run(model, x.T)[0] == x.T).all()
    assert (run(model, np.ascontiguousarray(x.T))[0] == x.T).all()


def slow() -> Model:
    b = nnhal.Builder()
    x = y = b.input((1, 128, 128, 64))
    rng = np.random.default_rng(0)
    for _ in range(40):
        w = b.constant(rng.standard_normal((64, 3, 3, 64), np.float32))
        y = b.conv_2d(y, w, b.constant(np.zeros(64, np.float32)), padding="same")
    return b.finish([x], [y])


@pytest.mark.nightly
def test_a_deadline_ends_an_execution_between_layers() -> None:
    prepared = checked_prepared(OpenVINO(), slow(), Hints(threads=1))
    x = np.zeros((1, 128, 128, 64), np.float32)
    whole = time.monotonic()
    request = prepared.request([x])
    request.execute(prepared.run, Control())
    whole = time.monotonic() - whole
    begin = time.monotonic()
    request = prepared.request([x])
    with pytest.raises(MissedDeadline):
        request.execute(prepared.run, Control(deadline=time.monotonic_ns() + int(whole * 0.1e9)))
    assert time.monotonic() - begin < whole * 0.7
    request = prepared.request([x])
    request.execute(prepared.run, Control())  # and the next is whole


def test_a_plain_lstm_has_any_number_of_steps_and_one_with_peepholes_64() -> None:
    def model(steps: int, *, peep: bool) -> Model:
        b = nnhal.Builder()
        x = b.input((1, steps, 2))
        w = {
            f"{p}_to_{g}": b.constant(np.full((3, n), 0.1, np.float32))
            for g in ("input", "forget", "cell", "output")
            for p, n in (("input", 2), ("state", 3))
        }
        w |= {f"bias_{g}": b.constant(np.zeros(3, np.float32)) for g in ("input", "forget", "cell", "output")}
        w |= {f"peep_{g}": b.constant(np.ones(3, np.float32)) for g in ("input", "forget", "output")} if peep else {}
        zeros = {n: b.constant(np.zeros((1, 3), np.float32)) for n in ("state", "cell_state")}
        settings = {"activation_kind": "tanh", "cell_clip": 0.0, "projection_clip": 0.0, "time_major": False}
        return b.finish(
            [x], [b.operation("UNIDIRECTIONAL_SEQUENCE_LSTM", input=x, **w, **zeros, **settings, outputs=1)]
        )

    assert verdict(model(100, peep=False)) == "" and verdict(model(64, peep=True)) == ""
    assert "the sequence has 65 steps, must have at most 64" in verdict(model(65, peep=True))


# ----------------------------------------------------------------------------------------------------- shared constants


READERS: dict[str, Callable[[nnhal.Builder, Tensor, Tensor], Tensor]] = {
    "FULLY_CONNECTED": lambda b, x, w: b.fully_connected(x, w, np.zeros(4, np.float32)),
    "BATCH_MATMUL": lambda b, x, w: b.batch_matmul(x, w),
    "BATCH_MATMUL of the transpose": lambda b, x, w: b.batch_matmul(x, w, adj_y=True),
    "BATCH_MATMUL of a batch": lambda b, x, w: b.batch_matmul(b.reshape(x, [1, 2, 4]), b.reshape(w, [1, 4, 4])),
    "CONV_2D": lambda b, x, w: b.conv_2d(
        b.reshape(x, [1, 2, 1, 4]), b.reshape(w, [4, 1, 1, 4]), np.zeros(4, np.float32), padding="valid"
    ),
    "TRANSPOSE_CONV_2D": lambda b, x, w: b.transpose_conv_2d(
        b.reshape(x, [1, 2, 1, 4]),
        b.reshape(w, [4, 1, 1, 4]),
        np.zeros(4, np.float32),
        np.array([1, 2, 1, 4], np.int32),
        scheme="valid",
        stride_w=1,
        stride_h=1,
        nchw=False,
    ),
    "GATHER": lambda b, x, w: b.gather(w, 0, np.array([2, 1], np.int32)),
    "RESHAPE, BATCH_MATMUL": lambda b, x, w: b.batch_matmul(b.reshape(x, [4, 2]), b.reshape(w, [2, 8])),
}
SOURCES: dict[str, Callable[[nnhal.Builder, Tensor], Tensor]] = {
    "a constant": lambda b, w: w,
    "computed of constants": lambda b, w: b.neg(w),
    "a transpose of what is computed": lambda b, w: b.transpose(b.neg(w), [1, 0]),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("first", READERS)
def test_each_reader_of_a_square_constant_has_its_layout(first: str, source: str) -> None:
    """OpenVINO would pack it once, as its first reader needs it."""
    b, rng = nnhal.Builder(), np.random.default_rng(0)
    x, w = b.input((2, 4)), b.constant(rng.standard_normal((4, 4), np.float32))
    read = SOURCES[source](b, w)
    outputs = [READERS[name](b, x, again) for again in (read, w) for name in (first, *READERS)]
    model, given = b.finish([x], outputs), rng.standard_normal((2, 4), np.float32)
    wanted = requests.run(checked_prepared(Reference(), model, Hints()), [given]).results
    for actual, expected in zip(run(model, given), wanted, strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_readers_of_a_constant_in_one_layout_share_one_copy() -> None:
    b = nnhal.Builder()
    x, w = b.input((2, 4)), b.constant(np.arange(16, dtype=np.float32).reshape(4, 4))
    outputs = [b.batch_matmul(x, w), b.batch_matmul(b.neg(x), w), b.batch_matmul(x, w, adj_y=True)]
    graph = RealGraph(b.finish([x], outputs), MathOperations())
    TABLE.lower(graph.model, partial(RealTask, graph))
    _, kept = engine.compiled(
        graph.inputs, graph.outputs(), graph.engine.constants, engine.settings(1, throughput=False)
    )
    assert [array.shape for array in kept] == [(4, 4)] * 2


# ----------------------------------------------------------------------------------------------------------------- cache


@pytest.mark.cache
def test_what_is_restored_computes_the_same_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path / "state"))
    b = nnhal.Builder()
    x = b.input((1, 16, 16, 8))
    rng = np.random.default_rng(1)
    w = b.constant(rng.standard_normal((32, 3, 3, 8), np.float32))
    model = b.finish([x], [b.conv_2d(x, w, b.constant(np.ones(32, np.float32)), padding="same", activation="relu")])
    given, results = rng.standard_normal((1, 16, 16, 8), np.float32), []
    for wanted in ("miss: there is no entry", "hit"):
        with nnhal.compile(model, devices="openvino", cache_dir=tmp_path / "cache") as compiled:
            assert str(compiled.cache[0]) == wanted
            results.append([compiled(given) for _ in range(2)])
    assert all((y == results[0][0]).all() for pair in results for y in pair)


@pytest.mark.parametrize(("seconds", "kept"), [(0.001, True), (0.0001, False)])
def test_what_takes_longer_to_read_than_to_compile_is_not_kept(seconds: float, kept: bool) -> None:
    """100 KB of constants, of which 200 MB are restored in a second."""
    x = np.ones(25_000, np.float32)
    prepared: Any = checked_prepared(OpenVINO(), binary("ADD", x, x), Hints()).inner
    prepared._seconds = seconds
    files = CacheContent.empty(CacheFiles(model=1))
    assert prepared.save(files) is kept and bool(files.model[0]) is kept


def _flat(b: nnhal.Builder, x: Tensor) -> Tensor:
    return b.reshape(x, [-1])


def _joined(b: nnhal.Builder, x: Tensor) -> Tensor:
    return b.softmax(b.concatenation([x, b.sin(x)], 0), 1.0)


def _layer(b: nnhal.Builder, x: Tensor) -> Tensor:
    return b.fully_connected(x, np.ones((3, 20), np.float32), np.zeros(3, np.float32))


def _joined_whole(b: nnhal.Builder, x: Tensor) -> Tensor:
    return b.concatenation([x, b.slice(x, [0, 0, 0, 0], [-1, -1, -1, -1])], 0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["TENSOR_FLOAT32", "TENSOR_FLOAT16"])
@pytest.mark.parametrize("twice", [False, True], ids=["once", "computed twice"])
@pytest.mark.parametrize("other", [_flat, _joined, _layer, _joined_whole])
@pytest.mark.parametrize("same", [False, True], ids=["itself", "by a slice of all"])
def test_a_convolution_reads_what_another_operation_holds_in_place(
    kind: str, twice: bool, other: Callable[[nnhal.Builder, Tensor], Tensor], same: bool
) -> None:
    """OpenVINO by itself read memory that nobody had written."""
    b = nnhal.Builder()
    x = b.input((2, 7, 5, 4), kind)
    y = b.abs(b.cast(x, out_type="TENSOR_FLOAT32"))
    again = b.abs(b.cast(x, out_type="TENSOR_FLOAT32")) if twice else y
    ones = np.ones((1, 1, 1, 4), np.float32)
    z = b.conv_2d(b.slice(y, [0] * 4, [-1] * 4) if same else y, ones, np.zeros(1, np.float32), padding="valid")
    model = b.finish([x], [z, other(b, again)])
    prepared = checked_prepared(OpenVINO(), model, Hints())
    rng = np.random.default_rng(1)
    for _ in range(3):
        given = rng.integers(-9, 10, (2, 7, 5, 4)).astype("float16" if kind == "TENSOR_FLOAT16" else "float32")
        request = prepared.request([given])
        request.execute(prepared.run, Control())
        sums = request.results[0]
        assert sums is not None
        assert (sums == np.abs(given.astype(np.float32)).sum(3, keepdims=True)).all()


def test_an_lstm_behind_operations_that_the_engine_makes_one_compiles() -> None:
    """OpenVINO takes the shape of the product for that of the greatest, and refuses to compile."""
    b, half = nnhal.Builder(), "TENSOR_FLOAT16"
    s, x, z = b.input((3, 1, 1), half), b.input((3, 3, 2), half), b.input((3, 1, 1), half)
    gates = ("input", "forget", "cell", "output")
    w: dict[str, Array] = {}
    w |= {f"{p}_to_{g}": np.full((3, n), 0.25, np.float16) for g in gates for p, n in (("input", 2), ("state", 3))}
    w |= {f"bias_{g}": np.zeros(3, np.float16) for g in gates}
    w |= dict.fromkeys(("state", "cell_state"), np.zeros((3, 3), np.float16))
    how: dict[str, Any] = {"activation_kind": "tanh", "cell_clip": 0.0, "projection_clip": 0.0, "time_major": False}
    y = b.operation("UNIDIRECTIONAL_SEQUENCE_LSTM", input=b.maximum(s, x), **w, **how, outputs=1)
    model = b.finish([s, x, z], [b.mul(s, z), y])
    two, ones = np.full((3, 1, 1), 2, np.float16), np.ones((3, 3, 2), np.float16)
    product, found = run(model, two, ones, two)
    cell = state = 0.0
    for step in range(3):  # all of a gate's inputs are the same, and so are all units
        total = 0.25 * (2 * 2 + 3 * state)
        gate = 1 / (1 + np.exp(-total))
        cell = gate * cell + gate * np.tanh(total)
        state = gate * np.tanh(cell)
        assert found[:, step] == pytest.approx(state, abs=2e-3)
    assert (product == 4).all()


def test_a_convolution_reads_what_is_reshaped_by_another_order_of_dimensions() -> None:
    """Where only dimensions of 1 element move, OpenVINO makes another shape of it."""
    b = nnhal.Builder()
    x = b.input((1, 3, 6, 4))
    y = b.abs(x)
    z = b.transpose_conv_2d(
        y, np.ones((1, 1, 1, 4), np.float32), np.zeros(1, np.float32), padding=((0, 0), (0, 0)), stride=1, nchw=False
    )
    model = b.finish([x], [b.transpose(y, [1, 0, 2, 3]), z])
    prepared = checked_prepared(OpenVINO(), model, Hints())
    for seed in range(3):
        given = np.random.default_rng(seed).integers(-9, 10, (1, 3, 6, 4)).astype(np.float32)
        request = prepared.request([given])
        request.execute(prepared.run, Control())
        sums = request.results[1]
        assert sums is not None
        assert (sums == np.abs(given).sum(3, keepdims=True)).all()


@pytest.mark.parametrize("kind", ["TENSOR_FLOAT32", "TENSOR_QUANT8_ASYMM", "TENSOR_QUANT8_ASYMM_SIGNED"])
@pytest.mark.parametrize(("height", "width", "layer"), [(6, 8, "Interpolate"), (9, 4, "Interpolate"), (4, 8, "Gather")])
def test_pixels_that_are_repeated_as_often_are_so_by_openvino_and_others_are_picked(
    kind: str, height: int, width: int, layer: str
) -> None:
    b = nnhal.Builder()
    more: dict[str, Any] = {} if kind == "TENSOR_FLOAT32" else {"scale": 1.0, "zero_point": 3}
    x = b.input((1, 2, 3, 4), kind, **more)
    model = b.finish([x], [b.resize_nearest_neighbor(x, out_w=width, out_h=height, nchw=True)])
    assert layer in layers(model)
    dtype = {"TENSOR_FLOAT32": np.float32, "TENSOR_QUANT8_ASYMM": np.uint8}.get(kind, np.int8)
    given = np.random.default_rng(0).integers(0, 120, (1, 2, 3, 4)).astype(dtype)
    rows, columns = np.arange(height) * 3 // height, np.arange(width) * 4 // width
    assert run(model, given)[0].tolist() == given[:, :, rows][..., columns].tolist()


# ------------------------------------------------------------------------------------------------ behind layers and maxima


@pytest.mark.parametrize("layer", ["conv_2d", "depthwise_conv_2d"])
@pytest.mark.parametrize("curve", ["abs", "hard_swish", "parts of hard_swish", "logistic", "tanh", "neg"])
def test_a_function_of_a_maximum_of_a_layer_is_not_computed_in_the_layer(layer: str, curve: str) -> None:
    b, rng = nnhal.Builder(), np.random.default_rng(0)
    data = (rng.standard_normal((1, 6, 6, 4)) * 4 - 3).astype(np.float32)
    x, filters = b.input(data.shape), rng.standard_normal((4, 1, 1, 4)).astype(np.float32)
    if layer == "conv_2d":
        y = b.conv_2d(x, filters, np.zeros(4, np.float32), padding="valid")
    else:
        y = b.depthwise_conv_2d(
            x, filters.reshape(1, 2, 2, 4), np.zeros(4, np.float32), padding="valid", depth_multiplier=1
        )
    y = b.max_pool_2d(y, padding="valid", filter_size=2)
    z = b.mul(y, b.relu6(b.add(y, np.full(1, 3, np.float32)))) if " " in curve else getattr(b, curve)(y)
    with nnhal.compile(b.finish([x], [z]), devices="reference") as reference:
        np.testing.assert_allclose(run(b.finish([x], [z]), data)[0], reference(data), 1e-5, 1e-5)
