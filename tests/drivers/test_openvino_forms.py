"""The forms of quantised operations on OpenVINO: which kernels run, what they make of each other, what a proof refuses."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

import nnhal
from nnhal.base.operands import Array, ChannelQuant
from nnhal.conformance.proving.run import variants_to_prove
from nnhal.drivers import reference
from nnhal.drivers.kit.variants import Forms
from nnhal.drivers.openvino.device import OpenVINO
from nnhal.drivers.openvino.engine import OpenVINOModel, version
from nnhal.frontends.tensor import Tensor
from nnhal.hal.cache.files import CacheContent, CacheFiles
from nnhal.hal.chain import checked_prepared
from nnhal.hal.choices import Proved
from nnhal.hal.device import Hints
from nnhal.model.graph import Model
from nnhal.zoo import maker
from tests import requests
from tests.drivers.quantised_chains import KINDS, chain, require_within_a_step, steps

FAST, EXACT = Forms(forced="fast"), Forms(forced="exact")
CHOICES = [(choice.operation, choice.type) for choice in variants_to_prove(OpenVINO())]
U8, I8 = KINDS
SATURATING = platform.machine() == "x86_64" and "vnni" not in Path("/proc/cpuinfo").read_text("ascii", "replace")


def device(forms: Forms) -> OpenVINO:
    made = OpenVINO()
    made.forms = forms
    return made


def forms_of(chosen: Callable[[str], object]) -> Forms:
    """The fast form of these operations, as if that alone had been found right."""
    return Forms({(name, kind): Proved("int8") for name, kind in CHOICES if chosen(name)})


def run(forms: Forms, model: Model, inputs: Sequence[Array]) -> list[Array]:
    return list(requests.run(checked_prepared(device(forms), model, Hints(threads=1)), inputs).results)


def expected(model: Model, inputs: Sequence[Array]) -> list[Array]:
    return list(requests.run(checked_prepared(reference.device(), model, Hints()), inputs).results)


def openvino_model(forms: Forms, model: Model) -> OpenVINOModel:
    """A model prepared for one thread, without what lays it out."""
    prepared: Any = checked_prepared(device(forms), model, Hints(threads=1)).inner
    while not isinstance(prepared, OpenVINOModel):
        prepared = next(inner for inner in vars(prepared).values() if hasattr(inner, "run"))
    return prepared


def kinds_of(prepared: OpenVINOModel) -> list[str]:
    """The kernels of layers that multiply, as OpenVINO runs them."""
    found = [node.get_rt_info() for node in prepared.compiled.get_runtime_model().get_ops()]
    multiply = ("Convolution", "FullyConnected", "MatMul")
    return [info["primitiveType"].astype(str) for info in found if info["layerType"].astype(str) in multiply]


def layers(forms: Forms, model: Model) -> list[str]:
    """Those of a model."""
    return kinds_of(openvino_model(forms, model))


def in_integers(how: str) -> bool:
    return how.lower().endswith("_i8")


# ------------------------------------------------------------------------------------------------------- which kernels run


@pytest.mark.sampled(3)
@pytest.mark.models
@pytest.mark.parametrize("name", ["mobilenet_v1_int8", "mobilenet_v2_uint8", "tiny_conv_int8"])
def test_every_layer_of_a_quantised_model_is_a_kernel_of_8_bits_in_the_fast_form_and_none_in_the_exact_one(
    name: str,
) -> None:
    model = nnhal.load(maker.path(name))
    fast, exact = layers(FAST, model), layers(EXACT, model)
    assert fast and [how for how in fast if not in_integers(how)] == []
    assert exact and [how for how in exact if in_integers(how)] == []


@pytest.mark.sampled(4)
@pytest.mark.models
@pytest.mark.parametrize("name", ["mobilenet_v1_int8", "mobilenet_v1_uint8", "mobilenet_v2_int8", "mobilenet_v2_uint8"])
def test_a_whole_model_stays_within_the_drift_of_its_operations(name: str) -> None:
    model, rng = nnhal.load(maker.path(name)), np.random.default_rng(0)
    (index,) = model.main.inputs
    operand = model.main.operands[index]
    dtype = np.int8 if name.endswith("_int8") else np.uint8
    x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, tuple(operand.dimensions)).astype(dtype)
    for form in (EXACT, *([] if SATURATING else [FAST])):
        assert steps(run(form, model, [x])[0], expected(model, [x])[0]) <= 4


def test_without_a_proof_the_exact_form_runs_on_openvino() -> None:
    model, _ = layer(I8, "conv_2d")
    assert not [how for how in layers(Forms(), model) if in_integers(how)]
    assert [how for how in layers(FAST, model) if in_integers(how)]


def layer(kind: str, how: str, weights: Sequence[int] | None = None, zero: int = 0) -> tuple[Model, Array]:
    """A layer whose weights are at the ends of their type, or these; with a scale for each channel where it has that."""
    b, rng, size = nnhal.Builder(), np.random.default_rng(1), 32
    limits, dense = np.iinfo(KINDS[kind]), how == "fully_connected"
    given = (3, size) if dense else (1, 5, 5, size)
    x = b.input(given, kind, 0.02, int(limits.min) + 3)
    shape = (size, size) if dense else (size, 3, 3, size)
    if dense or weights is not None:
        middle = (int(limits.min) + int(limits.max) + 1) // 2
        stored = rng.choice([middle - 127, middle + 127] if weights is None else list(weights), shape)
        w = b.constant(stored.astype(KINDS[kind]), kind, 0.01, middle if weights is None else zero)
        bias_scale = float(np.float32(np.float32(0.02) * np.float32(0.01)))
    else:
        quant = ChannelQuant(tuple(np.linspace(0.005, 0.01, size).tolist()), 0)
        w = b.constant(rng.choice([-127, 127], shape).astype(np.int8), "TENSOR_QUANT8_SYMM_PER_CHANNEL", channel=quant)
        bias_scale = 0.0
    bias = b.constant(np.full(size, 77, np.int32), "TENSOR_INT32", bias_scale)
    more: dict[str, Any] = {} if dense else {"padding": "same"}
    y = getattr(b, how)(x, w, bias, activation="relu6", **more, scale=0.05, zero_point=int(limits.min) + 5)
    return b.finish([x], [y]), rng.choice([limits.min, limits.max], given).astype(KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["conv_2d", "fully_connected"])
def test_the_ends_of_the_types_neither_saturate_nor_wrap_around_in_kernels_that_are_proved(kind: str, how: str) -> None:
    model, x = layer(kind, how)
    if not SATURATING:
        assert steps(run(FAST, model, [x])[0], expected(model, [x])[0]) <= 1


@pytest.mark.parametrize(("ends", "halves"), [((0, 128, 254), 2), ((1, 255), 2), ((0, 255), 0), ((100, 130), 1)])
def test_filters_whose_steps_need_9_bits_are_two_of_8_and_those_that_need_more_stay_float(
    ends: tuple[int, ...], halves: int
) -> None:
    """Zero points of 0, 254, 0 and 128: steps of up to 254, -253, 255 and 28."""
    zero = 254 if ends == (1, 255) else 128 if ends == (100, 130) else 0
    model, x = layer(U8, "conv_2d", ends, zero)
    assert len([how for how in layers(FAST, model) if in_integers(how)]) == halves
    assert SATURATING or steps(run(FAST, model, [x])[0], expected(model, [x])[0]) <= 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", [3, 4, 7])
@pytest.mark.parametrize(("channels", "times"), [(2, 2), (3, 3), (2, 4), (3, 1), (1, 3)])
def test_groups_of_one_channel_that_give_several_each_stay_float(
    kind: str, side: int, channels: int, times: int
) -> None:
    """OpenVINO's kernel for those where pictures are small gives the bias alone, or worse."""
    b, rng, low = nnhal.Builder(), np.random.default_rng(side), int(np.iinfo(KINDS[kind]).min)
    x = b.input((1, side, side, channels), kind, 0.5, low)
    filters = (rng.integers(0, 41, (1, 2, 2, channels * times)) + low).astype(KINDS[kind])
    w = b.constant(filters, kind, 0.01, low)
    bias = b.constant(rng.integers(-200, 200, channels * times).astype(np.int32), "TENSOR_INT32", 0.005)
    y = b.depthwise_conv_2d(x, w, bias, padding="valid", depth_multiplier=times, scale=0.1, zero_point=low)
    model, data = b.finish([x], [y]), (rng.integers(0, 256, (1, side, side, channels)) + low).astype(KINDS[kind])
    assert all(map(in_integers, layers(FAST, model))) == (channels == 1 or times == 1)
    if not SATURATING:
        assert steps(run(FAST, model, [data])[0], expected(model, [data])[0]) <= 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ["relu1", "relu6"])
@pytest.mark.parametrize("sizes", [(1,), (2, 1)])
def test_a_layer_of_a_single_weight_is_arithmetic_with_a_constant_which_stays_float(
    kind: str, activation: str, sizes: tuple[int, ...]
) -> None:
    """Fast, its bounds were applied elsewhere, 22 steps off; float behind a fast one, it read what that had not bounded."""
    rng, limits = np.random.default_rng(0), np.iinfo(KINDS[kind])
    zero = (int(limits.min) + int(limits.max) + 1) // 2
    for _ in range(12):
        b = nnhal.Builder()
        y = x = b.input((256, sizes[0]), kind, 0.2 / len(sizes) ** 2, int(rng.integers(limits.min, limits.max)))
        for size in sizes:
            w = b.constant(rng.integers(limits.min, limits.max, (1, size)).astype(KINDS[kind]), kind, 0.008, zero)
            scale = float(np.float32(np.float32(y.value.scale) * np.float32(0.008)))
            bias = b.constant(rng.integers(-3000, 3000, 1).astype(np.int32), "TENSOR_INT32", scale)
            made = {"scale": 0.02, "zero_point": int(rng.integers(limits.min, limits.max))}
            y = b.fully_connected(y, w, bias, activation=activation, **made)
        stored = np.arange(limits.min, limits.max + 1).astype(KINDS[kind])
        if not SATURATING:
            assert judged(b.finish([x], [y]), np.stack([stored] * sizes[0], 1)) <= 1


def judged(model: Model, *data: Array) -> int:
    return max(steps(y, e) for y, e in zip(run(FAST, model, data), expected(model, data), strict=True))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("zero", [0, 100, 128, 255])
@pytest.mark.parametrize("name", ["add", "sub"])
def test_arithmetic_with_a_constant_behind_a_layer_keeps_its_signs(name: str, zero: int) -> None:
    """It became part of the layer's kernel, which gave the magnitudes."""
    b, rng, kind = nnhal.Builder(), np.random.default_rng(0), "TENSOR_QUANT8_ASYMM"
    x = b.input((2, 8), kind, 1.0, 128)
    w = b.constant(rng.integers(127, 130, (4, 8)).astype(np.uint8), kind, 1.0, 128)
    y = b.fully_connected(x, w, b.constant(np.zeros(4, np.int32), "TENSOR_INT32", 1.0), scale=1.0, zero_point=zero)
    c = b.constant(np.full(1, 125, np.uint8), kind, 1.0, 128)
    z = getattr(b, name)(y, c, activation="none", scale=1.0, zero_point=128)
    assert judged(b.finish([x], [z]), rng.integers(120, 136, (2, 8)).astype(np.uint8)) <= 1


def test_arithmetic_with_a_constant_beside_a_kernel_of_8_bits_saturates() -> None:
    b, kind = nnhal.Builder(), "TENSOR_QUANT8_ASYMM_SIGNED"
    x = b.input((1, 2, 2, 64), kind, 0.887, 0)
    c = b.constant(np.zeros((1, 1, 1, 1), np.int8), kind, 0.912, 127)
    model = b.finish([x], [b.add(x, c, activation="none", scale=0.5, zero_point=0), b.relu(x)])
    assert judged(model, np.arange(-128, 128).astype(np.int8).reshape(1, 2, 2, 64)) <= 1


@pytest.mark.parametrize("name", ["reduce_min", "reduce_max"])
def test_extremes_before_a_kernel_of_8_bits_keep_their_signs(name: str) -> None:
    """What was less than the zero point was kept in 8 bits without a sign."""
    b, same = nnhal.Builder(), {"scale": 0.108, "zero_point": 255}
    x = b.input((1, 1, 5, 33), "TENSOR_QUANT8_ASYMM", **same)
    y = b.mean(getattr(b, name)(x, np.array([2], np.int32), True), np.array([0], np.int32), False, **same)
    assert judged(b.finish([x], [y]), np.random.default_rng(0).integers(0, 256, (1, 1, 5, 33)).astype(np.uint8)) <= 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["reduce_min", "reduce_max"])
@pytest.mark.parametrize("reader", ["max_pool_2d", "add", "fully_connected"])
def test_extremes_that_a_kernel_of_8_bits_reads_keep_their_zero_point(kind: str, name: str, reader: str) -> None:
    limits = np.iinfo(KINDS[kind])
    for above in (0, 5, 128, 255):
        b, zero = nnhal.Builder(), int(limits.min) + above
        x = b.input((1, 2, 3, 4), kind, 0.5, zero)
        y = getattr(b, name)(x, np.array([1], np.int32), True)
        if reader == "add":
            z = b.add(y, y, scale=1.0, zero_point=zero)
        elif reader == "max_pool_2d":
            z = b.max_pool_2d(y, padding="valid", filter_size=1)
        else:
            w = b.constant(np.arange(8).reshape(2, 4).astype(KINDS[kind]), kind, 0.25, 0)
            z = b.fully_connected(
                y, w, b.constant(np.zeros(2, np.int32), "TENSOR_INT32", 0.125), scale=2.0, zero_point=zero
            )
        data = np.random.default_rng(0).integers(limits.min, limits.max + 1, (1, 2, 3, 4)).astype(KINDS[kind])
        if not SATURATING:
            assert judged(b.finish([x], [z]), data) <= 1


@pytest.mark.parametrize(
    ("bias", "ratio"), [(900_000_001, 1 / 32), (5_592_405, 8.0), (44_739_243, 100.0), (2731, 60_000.0)]
)
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_bias_of_millions_of_steps_saturates_also_beside_a_kernel_of_8_bits(
    bias: int, ratio: float, sign: int
) -> None:
    """Which has OpenVINO move the bounds of float layers, too."""
    b, kind = nnhal.Builder(), "TENSOR_QUANT8_ASYMM_SIGNED"
    x, other = b.input((1, 4), kind, ratio, 0), b.input((3,), kind, 0.5, 1)
    w = b.constant(np.array([[1, 2, -3, 1], [7, 5, -1, 3]], np.int8), kind, 1.0, 0)
    y = b.fully_connected(
        x, w, b.constant(np.full(2, sign * bias, np.int32), "TENSOR_INT32", ratio), scale=1.0, zero_point=5
    )
    model = b.finish([x, other], [y, b.tanh(other)])
    assert judged(model, np.array([[1, 2, 3, 4]], np.int8), np.zeros(3, np.int8)) <= 1


@pytest.mark.parametrize("scale", [2e3, 3e4, 6.5e4])
@pytest.mark.parametrize("name", ["sub", "concatenation"])
def test_what_is_coarse_beside_a_fine_output_is_no_more_than_a_step_off(name: str, scale: float) -> None:
    """A stored zero is not 0 where the ends of the type are given in float32."""
    b, kind = nnhal.Builder(), "TENSOR_QUANT8_ASYMM_SIGNED"
    x, y = b.input((1, 256), kind, 0.01, 0), b.input((1, 256), kind, scale, 127)
    made = {"scale": 0.01, "zero_point": 0}
    z = b.concatenation([x, y], 1, **made) if name == "concatenation" else b.sub(x, y, activation="none", **made)
    data = np.arange(-128, 128).astype(np.int8)[None]
    assert judged(b.finish([x, y], [z]), data, np.full((1, 256), 127, np.int8)) <= 1


# ---------------------------------------------------------------------------------------------------- operations in graphs


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(24))
def test_each_operation_of_a_chain_is_within_a_step_of_what_it_makes_of_its_own_inputs(seed: int) -> None:
    """All of them fast, or some; what the chain gives hardly depends on whether somebody looks at what lies between."""
    if SATURATING:
        forms = forms_of(lambda name: "CONV" not in name and name != "FULLY_CONNECTED")
    else:
        some = np.random.default_rng(seed).random(64)
        forms = FAST if seed % 2 else forms_of(lambda name: some[len(name)] < 0.6)
    model, x = chain(seed, 6)
    require_within_a_step(model, x, partial(run, forms), expected)


def two_sums(b: nnhal.Builder, kind: str, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """An input, and two tensors of 8 bits that are made of it in the fast form."""
    x = b.input((1, size, size), kind, 0.5, 0)
    return x, b.relu(b.add(x, x, scale=1.0, zero_point=0)), b.relu(x)


@pytest.mark.parametrize("kind", KINDS)
def test_products_of_dequantised_values_are_of_float32_beside_operations_of_8_bits(kind: str) -> None:
    """OpenVINO would make them in kernels of 8 bits too, which nobody has proved for them."""
    b, limits = nnhal.Builder(), np.iinfo(KINDS[kind])
    x, first, second = two_sums(b, kind, 64)
    model = b.finish([x], [b.batch_matmul(b.dequantize(first), b.dequantize(second), False, False)])
    assert [how for how in layers(FAST, model) if in_integers(how)] == []
    data = np.random.default_rng(0).choice([limits.min, limits.max], (1, 64, 64)).astype(KINDS[kind])
    np.testing.assert_allclose(run(FAST, model, [data])[0], expected(model, [data])[0], rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("how", ["batch_matmul", "fully_connected"])
def test_exact_products_stay_exact_beside_operations_of_8_bits(how: str) -> None:
    b = nnhal.Builder()
    x, first, second = two_sums(b, I8, 32)
    if how == "batch_matmul":
        y = b.batch_matmul(first, second, False, False, scale=64.0, zero_point=0)
    else:
        bias = b.constant(np.zeros(32, np.int32), "TENSOR_INT32", 0.5)
        y = b.fully_connected(first, b.reshape(second, np.array([32, 32], np.int32)), bias, scale=64.0, zero_point=0)
    model = b.finish([x], [y])
    forms = forms_of(lambda name: name in ("ADD", "RELU"))
    assert [how for how in layers(forms, model) if in_integers(how)] == []
    data = np.random.default_rng(0).integers(-128, 128, (1, 32, 32)).astype(np.int8)
    assert steps(run(forms, model, [data])[0], expected(model, [data])[0]) <= 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 4])
def test_layers_that_read_the_same_are_right_where_openvino_makes_one_of_them(kind: str, count: int) -> None:
    b, rng, middle = nnhal.Builder(), np.random.default_rng(count), 128 if kind == U8 else 0
    x = b.input((4, 16), kind, 0.02, middle + 3)
    outs = []
    for number in range(count):
        stored = rng.integers(middle - 60, middle + 60, (8, 16)).astype(KINDS[kind])
        w = b.constant(stored, kind, 0.01 * (number + 1), middle)
        scale = float(np.float32(np.float32(0.02) * np.float32(w.value.scale)))
        bias = b.constant(rng.integers(-1000, 1000, 8).astype(np.int32), "TENSOR_INT32", scale)
        outs.append(b.fully_connected(x, w, bias, scale=0.1, zero_point=middle))
    model = b.finish([x], outs)
    data = rng.integers(middle - 128, middle + 128, (4, 16)).astype(KINDS[kind])
    assert max(map(steps, run(FAST, model, [data]), expected(model, [data]))) <= 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("picture", "filter", "dilation", "integers"),
    [
        ((4, 1), (3, 2), (1, 2), False),  # no column of the filter meets the picture
        ((4, 2), (3, 2), (1, 3), False),
        ((1, 4), (2, 3), (2, 1), False),
        ((4, 1), (3, 3), (1, 2), False),  # one does
        ((4, 3), (3, 2), (1, 2), True),
        ((4, 4), (3, 3), (1, 1), True),
    ],
)
def test_a_filter_that_meets_padding_alone_is_none_for_kernels_of_8_bits(
    kind: str, picture: tuple[int, int], filter: tuple[int, int], dilation: tuple[int, int], integers: bool
) -> None:
    b, rng, middle = nnhal.Builder(), np.random.default_rng(0), 128 if kind == U8 else 0
    x = b.input((1, *picture, 16), kind, 0.02, middle)
    scales = nnhal.ChannelQuant((0.001,) * 16, 0)
    weights = rng.integers(-20, 20, (16, *filter, 16)).astype(np.int8)
    w = b.constant(weights, "TENSOR_QUANT8_SYMM_PER_CHANNEL", channel=scales)
    bias = b.constant(np.zeros(16, np.int32))
    y = b.conv_2d(x, w, bias, padding="same", dilation=dilation, scale=0.02, zero_point=middle)
    model = b.finish([x], [y])
    assert all(in_integers(how) == integers for how in layers(FAST, model))
    data = rng.integers(middle - 60, middle + 60, (1, *picture, 16)).astype(KINDS[kind])
    assert steps(run(FAST, model, [data])[0], expected(model, [data])[0]) <= 1


# ------------------------------------------------------------------------------------------ what is left to the exact form


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [2.0**-40, 2.0**-28, 2.0**-16, 2.0**16, 2.0**40])
def test_scales_that_openvino_would_take_for_0_are_computed_exactly(kind: str, scale: float) -> None:
    b, limits, rng = nnhal.Builder(), np.iinfo(KINDS[kind]), np.random.default_rng(0)
    x = b.input((1, 4, 4, 8), kind, scale, int(limits.min) + 9)
    y = b.add(b.relu6(x), x, scale=scale * 1.5, zero_point=int(limits.max) - 90)
    model = b.finish([x], [y])
    data = rng.integers(limits.min, limits.max + 1, (1, 4, 4, 8)).astype(KINDS[kind])
    assert steps(run(FAST, model, [data])[0], expected(model, [data])[0]) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_difference_of_equal_numbers_is_0_beside_kernels_of_8_bits(kind: str) -> None:
    """Converters write the logarithm of a sum of exponentials so: the output that is always 0 has a scale of 1e-8."""
    b, q, rng = nnhal.Builder(), {"scale": 0.0102, "zero_point": 45}, np.random.default_rng(0)
    x, most = b.input((1, 5, 4, 1), kind, **q), b.input((1, 1, 4, 1), kind, **q)
    nothing = b.sub(most, most, scale=7.8e-9, zero_point=0)
    zero = b.constant(np.zeros(1, KINDS[kind]), kind, scale=3.9e-9, zero_point=0)
    other = b.constant(np.full((1, 1, 4, 1), 45, KINDS[kind]), kind, **q)
    chosen = b.select(b.equal(nothing, zero), most, other, **q)
    model = b.finish([x, most], [b.sub(x, chosen, scale=0.0156, zero_point=120), nothing])
    data = [rng.integers(0, 256, (1, n, 4, 1)).astype(np.uint8).view(KINDS[kind]) for n in (5, 1)]
    for found, wanted in zip(run(FAST, model, data), expected(model, data), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_a_constant_of_one_element_is_not_made_one_with_the_rounding_before_it(name: str) -> None:
    """OpenVINO makes 174 of 130 of such products."""
    b = nnhal.Builder()
    x = b.input((1,), U8, 7.579, 255)
    constant = b.constant(np.array([123], np.uint8), U8, 0.1519, 223)
    model = b.finish([x], [getattr(b, name)(x, constant, "relu6", scale=2.5245, zero_point=128)])
    prepared = checked_prepared(device(FAST), model, Hints(threads=1))
    for stored in range(0, 256, 5):
        data = np.array([stored], np.uint8)
        assert steps(requests.run(prepared, [data]).results[0], expected(model, [data])[0]) <= 1


def test_what_a_bias_leaves_of_a_great_sum_is_exact_where_the_output_is_finer_than_that() -> None:
    """3 of 18 million, 60 steps of the output: float32 has steps of 2 there, if all is integers."""
    b, total = nnhal.Builder(), 255 * 127 * 9 * 64
    x = b.input((1, 3, 3, 64), U8, 0.797, 0)
    quant = ChannelQuant((float(np.float32(0.918)),), 0)
    w = b.constant(np.full((1, 3, 3, 64), 127, np.int8), "TENSOR_QUANT8_SYMM_PER_CHANNEL", channel=quant)
    bias = b.constant(np.array([3 - total], np.int32), "TENSOR_INT32", 0.0)
    y = b.conv_2d(x, w, bias, padding="valid", scale=0.797 * 0.918 / 20, zero_point=3)
    model, data = b.finish([x], [y]), np.full((1, 3, 3, 64), 255, np.uint8)
    assert abs(int(run(FAST, model, [data])[0].item()) - 63) <= 1


# ------------------------------------------------------------------------------------------------------------- the proof


@pytest.mark.skipif(platform.machine() != "x86_64", reason="it has no kernels that saturate")
@pytest.mark.nightly  # 40 s of CPU time
@pytest.mark.parametrize("layer", ["FULLY_CONNECTED", "CONV_2D"])
def test_a_proof_refuses_kernels_that_add_up_two_products_in_16_bits_and_takes_what_has_no_products(
    tmp_path: Path, layer: str
) -> None:
    """OpenVINO is told to do with the kernels that it has for AVX2."""
    command = [sys.executable, "-m", "nnhal.cli.main", "verify", "openvino", "--json"]
    names = [word for name in (layer, "ADD") for word in ("--operation", name)]
    told = {"NNHAL_STATE_DIR": str(tmp_path / "state"), "ONEDNN_MAX_CPU_ISA": "AVX2"}
    more: Any = {"env": {**os.environ, **told}, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([*command, *names], check=False, **more)
    assert done.returncode == 0, done.stderr
    found = {(row["operation"], row["type"]): row for row in json.loads(done.stdout)[0]["operations"]}
    for kind in KINDS:
        assert found["ADD", kind]["form"] == "int8"
        assert found[layer, kind]["form"] == "float" and "is off by" in found[layer, kind]["why"]


def test_what_is_proved_of_some_kernels_is_not_taken_for_proved_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)
    of_all = OpenVINO()
    assert of_all.proofs is not None
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        with monkeypatch.context() as limited:
            limited.setenv(name, "AVX2")
            proofs = OpenVINO().proofs
            assert version() != of_all.version and proofs is not None and proofs.identity != of_all.proofs.identity


def test_a_compilation_with_kernels_of_8_bits_is_kept_with_them() -> None:
    model, x = layer(I8, "conv_2d")
    made = openvino_model(FAST, model)
    made._seconds = 1e3  # however long it took
    files = CacheContent.empty(CacheFiles(model=1))
    assert made.save(files)
    again = device(FAST).restore(files, b"", Hints(threads=1))
    again.model = made.model = model
    assert isinstance(again, OpenVINOModel) and kinds_of(again) == kinds_of(made)
    found = [requests.run(each, [x]).results[0] for each in (made, again)]
    assert np.array_equal(*found)


def test_quantised_operations_are_stated_as_fast_as_floats_where_a_fast_form_was_found() -> None:
    kind = CHOICES[0][1]
    stated = [device(forms).capabilities().operands[kind] for forms in (Forms(), forms_of(lambda name: name == "ADD"))]
    assert stated[1].exec_time < stated[0].exec_time


# ---------------------------------------------------------------------------------------------------------------- bounds


def bounded(kind: str, how: str, activation: str, scale: float) -> Model:
    """Every stored value within bounds that are no stored values, before a layer that makes 8 steps of one."""
    b, limits = nnhal.Builder(), np.iinfo(KINDS[kind])
    zero = int(limits.min) + 128
    x = b.input((1, 16, 16, 1), kind, scale, zero)
    if how == "alone":
        y = getattr(b, activation)(x)
    elif how == "max_pool_2d":
        y = b.max_pool_2d(x, padding="valid", filter_size=1, activation=activation)
    elif how == "add":
        y = b.add(x, x, activation, scale=scale, zero_point=zero)
    else:
        y = unit_layer(b, x, activation, scale, zero)
    return b.finish([x], [unit_layer(b, y, "none", scale / 8, zero)])


def unit_layer(b: nnhal.Builder, x: Tensor, activation: str, scale: float, zero: int) -> Tensor:
    """The same real numbers."""
    one = b.constant(
        np.full((1, 1, 1, 1), 100, np.int8), "TENSOR_QUANT8_SYMM_PER_CHANNEL", channel=ChannelQuant((0.01,), 0)
    )
    bias = b.constant(np.zeros(1, np.int32))
    return b.conv_2d(x, one, bias, padding="valid", activation=activation, scale=scale, zero_point=zero)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ["relu1", "relu6"])
@pytest.mark.parametrize("how", ["alone", "max_pool_2d", "add", "conv_2d"])
def test_bounds_of_activations_are_the_stored_values_of_the_definition(how: str, activation: str, kind: str) -> None:
    limits = np.iinfo(KINDS[kind])
    x = np.arange(limits.min, limits.max + 1).astype(KINDS[kind]).reshape(1, 16, 16, 1)
    for scale in (1.3, 0.7, 0.27):
        model = bounded(kind, how, activation, scale)
        assert layers(FAST, model) and all(map(in_integers, layers(FAST, model)))
        np.testing.assert_array_equal(run(FAST, model, [x])[0], expected(model, [x])[0])
