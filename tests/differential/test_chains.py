"""Each operation of a random quantised graph is within a step of what the reference makes of that operation's own inputs.

No call of a single operation shows what operations make of each other: what shares a tensor, what is joined with what is
before it. The forms of one device, mixed: tests/drivers/test_openvino_forms.py.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

import nnhal
from nnhal.base.operands import Array
from nnhal.frontends.tensor import Tensor
from tests.differential import drawing
from tests.drivers.quantised_chains import chain, require_within_a_step
from tests.matrix.devices import ENGINES
from tests.requests import compute

LENGTH = 8


def run(device: str, model: nnhal.Model, inputs: Sequence[Array]) -> list[Array]:
    return compute(model, *inputs, devices=[device])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", ENGINES)
@pytest.mark.parametrize("seed", range(16))
def test_operations_of_a_chain_are_within_a_step_and_so_is_what_nobody_looks_at(device: str, seed: int) -> None:
    model, x = chain(seed, LENGTH)
    require_within_a_step(model, x, partial(run, device), partial(run, "reference"))


@pytest.mark.parametrize("device", ENGINES)
@pytest.mark.parametrize("scales", [(0.003, 0.06), (0.06, 0.003), (0.003, 0.06, 0.0035)])
def test_each_of_several_roundings_counts(device: str, scales: tuple[float, ...]) -> None:
    """ONNX Runtime's optimiser makes one of two, without the coarse one."""
    b, kind = nnhal.Builder(), "TENSOR_QUANT8_ASYMM"
    x = y = b.input((64,))
    for place, scale in enumerate(scales):
        y = b.dequantize(b.quantize(y, out_type=kind, scale=scale, zero_point=110 + 5 * place))
    model, data = b.finish([x], [y]), np.linspace(-0.4, 0.3, 64).astype(np.float32)
    np.testing.assert_allclose(
        run(device, model, [data])[0], run("reference", model, [data])[0], atol=max(scales) / 100
    )


# ------------------------------------------------------------------------------- where engines make one kernel of several

INT, BOOL = "TENSOR_INT32", "TENSOR_BOOL8"
WHOLE = [0, 1, -1, 7, 2**24, 2**24 + 1, -(2**24) - 1, 2**24 + 3, 2**31 - 1, -(2**31) + 1, 123456789, -123456789]
OF_TWO = ["add", "sub", "mul", "maximum", "minimum"]
COMPARED = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]


class IntegerChain:
    """A model in the making, of whole numbers that float32 does not hold, and of comparisons of them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.b, self.inputs, self.values = nnhal.Builder(), list[Tensor](), list[Array]()
        self.shape = tuple(int(n) for n in self.rng.integers(1, 4, self.rng.integers(1, 4)))
        self.tensors = {INT: [self.new(INT)], BOOL: list[Tensor]()}

    def new(self, kind: str, constant: bool = False) -> Tensor:
        rng, shape = self.rng, self.shape
        value = rng.integers(0, 2, shape).astype(bool) if kind == BOOL else rng.choice(WHOLE, shape).astype(np.int32)
        if constant:
            return self.b.constant(value, kind)
        self.values.append(value)
        self.inputs.append(self.b.input(shape, kind))
        return self.inputs[-1]

    def some(self, kind: str) -> Tensor:
        """What was made last, mostly."""
        made = self.tensors[kind]
        if not made or self.rng.random() < 0.25:
            return self.new(kind, bool(self.rng.random() < 0.5))
        return made[-1] if self.rng.random() < 0.7 else made[int(self.rng.integers(len(made)))]

    def add(self) -> Tensor:
        name = str(self.rng.choice([*OF_TWO, *COMPARED, *["select"] * 4, "neg", "abs", "logical_and", "logical_not"]))
        kind, operation = BOOL if name in COMPARED or name.startswith("logical") else INT, getattr(self.b, name)
        if name == "select":
            made = operation(self.some(BOOL), self.some(INT), self.some(INT))
        else:
            source = BOOL if name.startswith("logical") else INT
            count = 1 if name in ("neg", "abs", "logical_not") else 2
            made = operation(*[self.some(source) for _ in range(count)])
        self.tensors[kind].append(made)
        return made


@pytest.mark.parametrize("device", ENGINES)
def test_whole_numbers_that_float32_does_not_hold_stay_what_they_are(device: str) -> None:
    ran, seeds = 0, range(100 if drawing.WHOLE else 25)
    for seed in seeds:
        chain = IntegerChain(seed)
        for _ in range(2 + seed % 4):
            last = chain.add()
        model = chain.b.finish(chain.inputs, [last])
        try:
            (found,) = run(device, model, chain.values)
        except nnhal.UnsupportedModel:
            continue
        ran += 1
        np.testing.assert_array_equal(found, run("reference", model, chain.values)[0], f"seed {seed}")
    assert ran in (0, len(seeds))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["TENSOR_QUANT8_ASYMM", "TENSOR_QUANT8_ASYMM_SIGNED"])
@pytest.mark.parametrize("device", ENGINES)
def test_stored_values_are_compared_with_a_constant_as_with_an_input(device: str, kind: str) -> None:
    stored = np.arange(256).astype(np.uint8).view(np.uint8 if kind == "TENSOR_QUANT8_ASYMM" else np.int8)
    other = stored[np.arange(256) // 3 * 3]
    for scale, zero_point in ((0.1, 100), (0.0375, 7), (0.0173, 127), (0.3, 0)):
        facts = {"scale": scale, "zero_point": zero_point}
        for name in COMPARED:
            b = nnhal.Builder()
            x = b.input((256,), kind, **facts)
            model = b.finish([x], [getattr(b, name)(x, b.constant(other, kind, **facts))])
            try:
                (found,) = run(device, model, [stored])
            except nnhal.UnsupportedModel:
                continue
            np.testing.assert_array_equal(found, getattr(np, name)(stored, other), f"{name}, {facts}")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 4), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("device", ENGINES)
def test_a_constant_behind_a_reduction_is_that_of_its_own_row(device: str, shape: tuple[int, ...], kept: bool) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal(shape).astype(np.float32)
    for axis in range(len(shape)):
        wanted = x.mean(axis, keepdims=kept)
        for along in range(wanted.ndim):
            rows = np.arange(wanted.shape[along], dtype=np.float32).reshape(
                [-1 if n == along else 1 for n in range(wanted.ndim)]
            )
            b = nnhal.Builder()
            given = b.input(shape)
            model = b.finish([given], [b.sub(b.mean(given, np.array([axis], np.int32), kept), b.constant(rows))])
            np.testing.assert_allclose(run(device, model, [x])[0], wanted - rows, atol=1e-5, err_msg=f"{axis} {along}")


@pytest.mark.parametrize("ratio", [1.0, 1.3, 5.0])
@pytest.mark.parametrize(
    ("operation", "by_channel"),
    [("CONV_2D", False), ("CONV_2D", True), ("FULLY_CONNECTED", False), ("TRANSPOSE_CONV_2D", False)],
)
@pytest.mark.parametrize("device", ENGINES)
def test_what_is_left_of_great_sums_that_a_bias_nearly_cancels(
    device: str, operation: str, ratio: float, by_channel: bool
) -> None:
    """500 products of 255 and 127, which float32 holds as whole numbers only."""
    count, left, kind = 500, np.array([3, -4, 10, 0]), "TENSOR_QUANT8_ASYMM_SIGNED"
    scale, scales = np.float32(0.02), np.array([0.01, 0.02, 0.005, 0.01] if by_channel else [0.01] * 4, np.float32)
    weights, bias = np.full((4, count), 127, np.int8), (left - count * 255 * 127).astype(np.int32)
    b = nnhal.Builder()
    flat = operation == "FULLY_CONNECTED"
    x = b.input((1, count) if flat else (1, 1, 1, count), kind, scale=float(scale), zero_point=-128)
    if by_channel:
        facts = {"channel": nnhal.ChannelQuant(tuple(map(float, scales)), 0)}
        w = b.constant(weights.reshape(4, 1, 1, count), "TENSOR_QUANT8_SYMM_PER_CHANNEL", **facts)
        added = b.constant(bias)
    else:
        w = b.constant(weights if flat else weights.reshape(4, 1, 1, count), kind, scale=0.01, zero_point=0)
        added = b.constant(bias, INT, scale=float(scale * scales[0]))
    to = float(scale * np.float32(0.01) * np.float32(ratio))
    given = {"out_type": kind, "scale": to, "zero_point": 1}
    if flat:
        y = b.fully_connected(x, w, added, **given)
    else:
        same = getattr(b, operation.lower())
        size = {"output_shape": np.array([1, 1, 1, 4], np.int32), "nchw": False} if "TRANSPOSE" in operation else {}
        y = same(x, w, added, **size, scheme=2, stride_w=1, stride_h=1, activation=0, **given)
    model = b.finish([x], [y])
    try:
        (found,) = run(device, model, [np.full(x.value.known, 127, np.int8)])
    except nnhal.UnsupportedModel:
        return
    wanted = np.round(left * (scale * scales).astype(np.float64) / to) + 1
    assert np.abs(found.ravel() - np.clip(wanted, -128, 127)).max() <= 1, (found.ravel(), wanted)
