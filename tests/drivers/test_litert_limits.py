"""What the litert device refuses or computes otherwise, so that LiteRT neither ends the process nor wraps around nor fills
the memory: scales, 32-bit sums, rooms between operators, and dimensions that turn out to be 0.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import OperandType
from nnhal.base.operands import ChannelQuant
from nnhal.drivers.litert import sums
from nnhal.frontends.python import Builder
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from tests import requests
from tests.models import make_model

litert = pytest.importorskip("nnhal.drivers.litert")

T = OperandType
F32, I32, Q8, Q8S, Q8PC = (
    T.TENSOR_FLOAT32,
    T.TENSOR_INT32,
    T.TENSOR_QUANT8_ASYMM,
    T.TENSOR_QUANT8_ASYMM_SIGNED,
    T.TENSOR_QUANT8_SYMM_PER_CHANNEL,
)
SUBNORMAL, LEAST, MOST = 1e-40, -(2**31), 2**31 - 1


@dataclass(frozen=True)
class X:
    """An argument: an input of the model, or a constant. A shape stands for zeros; `dims` is what the model says of it."""

    value: Any
    type: T = Q8
    scale: float = 0.0
    zero: int = 0
    constant: bool = False
    scales: tuple[float, ...] = ()
    dims: tuple[int, ...] | None = None

    @property
    def array(self) -> Any:
        kind = {F32: np.float32, I32: np.int32, Q8: np.uint8}.get(self.type, np.int8)
        return np.zeros(self.value, kind) if isinstance(self.value, tuple) else np.asarray(self.value, kind)


def build(op: str, **arguments: Any) -> tuple[Model, list[Any]]:
    """A model of one operation, and its inputs."""
    b = Builder()
    inputs, arrays = [], []

    def operand(x: Any) -> Any:
        if isinstance(x, list) and x and isinstance(x[0], X):
            return [operand(each) for each in x]
        if not isinstance(x, X):
            return x
        if x.constant:
            channel = ChannelQuant(x.scales, 0) if x.scales else None
            return b.constant(x.array, x.type, x.scale, x.zero, channel=channel)
        inputs.append(b.input(x.array.shape if x.dims is None else x.dims, x.type, x.scale, x.zero))
        arrays.append(x.array)
        return inputs[-1]

    made = b.operation(op, **{name: operand(x) for name, x in arguments.items()})
    return b.finish(inputs, [made]), arrays


def run(op: str, **arguments: Any) -> Any:
    """The result, of a model that is taken."""
    model, arrays = build(op, **arguments)
    device: Device = litert.device()
    assert device.supports(model)[0] == (True, "")
    return requests.run(checked_prepared(device, model, Hints(threads=1)), arrays).results[0]


def reason(op: str, **arguments: Any) -> str:
    """Why a model is refused, "" where it is not."""
    verdict = litert.device().supports(build(op, **arguments)[0])[0]
    return "" if verdict.ok else str(verdict.reason)


def exact_reason(op: str, **arguments: Any) -> str:
    """The same under exact numerics."""
    hints = Hints(options={"numerics": "exact"})
    verdict = litert.device().consider(build(op, **arguments)[0], hints).verdicts[0]
    return "" if verdict.ok else str(verdict.reason)


# --------------------------------------------------------------------------------------------------------------- scales


@pytest.mark.parametrize("scale", [1e-45, SUBNORMAL, 1.17e-38, 2.0**101, 3e38])
@pytest.mark.parametrize(
    "arguments",
    [
        lambda s: ("DEQUANTIZE", {"input": X((1, 4), scale=s)}),
        lambda s: ("QUANTIZE", {"input": X((1, 4), F32), "out_type": Q8, "scale": s, "zero_point": 0}),
        lambda s: ("RESHAPE", {"input": X((1, 4), Q8S, s), "shape": np.array([4, 1], np.int32)}),
        lambda s: (
            "MAXIMUM",
            {"input1": X((1, 4), scale=s), "input2": X((1, 4), scale=1.0), "scale": 1.0, "zero_point": 0},
        ),
        lambda s: ("CONCATENATION", {"parts": [X((1, 4), scale=s), X((1, 4), scale=1.0)], "axis": 0, "scale": 1.0}),
    ],
)
def test_a_scale_that_ends_the_engine_is_refused(scale: float, arguments: Callable[[float], Any]) -> None:
    op, given = arguments(scale)
    assert ", must be from 1.17549e-38 to 1.26765e+30" in reason(op, **given)


@pytest.mark.parametrize("scale", [2.0**-126, 2.0**100])
def test_the_first_and_the_last_scale_that_are_taken_compute(scale: float) -> None:
    y = run("DEQUANTIZE", input=X([[0, 1, 128, 255]], Q8, scale, 128))
    assert y.tolist() == [[-128 * scale, -127 * scale, 0, 127 * scale]]


def test_a_product_of_scales_that_is_no_normal_number_is_refused() -> None:
    layer = {"bias": X((1,), I32, SUBNORMAL), "scale": 1e-20, "zero_point": 0}
    assert "scale is 1e-40, must be" in reason(
        "FULLY_CONNECTED", input=X((1, 1), scale=1e-20), weights=X((1, 1), scale=1e-20), **layer
    )
    weights = X((2, 1, 1, 1), Q8PC, constant=True, scales=(1.0, 1e-20))
    bias = X((2,), I32, constant=True)
    why = reason("CONV_2D", input=X((1, 1, 1, 1), scale=1e-20), filter=weights, bias=bias, padding="valid", scale=1.0)
    assert "scale is 1e-40, must be" in why
    pair = {name: X((1, 4), scale=1e-20) for name in ("input1", "input2")}
    assert "scale is 1e-40, must be" in reason("MUL", **pair, scale=1e-19, zero_point=0)


def test_a_sum_is_refused_where_it_has_no_16_bits_for_its_steps() -> None:
    coarse, fine = X([253, 255], Q8, 1.0, 0), X([0, 0], Q8, 1e-6, 0)
    assert "output scale 0.00671141 is too fine" in reason(
        "ADD", input1=fine, input2=coarse, scale=1 / 149, zero_point=28
    )
    assert run("ADD", input1=fine, input2=coarse, scale=1 / 120, zero_point=28).tolist() == [255, 255]


def test_a_real_number_2_to_the_31_steps_away_saturates_in_every_rank() -> None:
    far = np.array([1e30, -1e30, 0.5, 0], np.float32)
    for rank in (1, 6, 7, 8):
        y = run("QUANTIZE", input=X(far.reshape((1,) * (rank - 1) + (4,)), F32), out_type=Q8, scale=0.25, zero_point=3)
        assert y.ravel().tolist() == [255, 0, 5, 3]


# ----------------------------------------------------------------------------------------------------- sums of products

Layer = dict[str, Any]
LAYERS: list[tuple[str, str, tuple[int, ...], tuple[int, ...], Layer]] = [
    ("CONV_2D", "filter", (1, 1, 1, 1), (1, 1, 1, 1), {"padding": "valid"}),
    ("DEPTHWISE_CONV_2D", "filter", (1, 1, 1, 1), (1, 1, 1, 1), {"padding": "valid", "depth_multiplier": 1}),
    ("GROUPED_CONV_2D", "filter", (1, 1, 1, 2), (2, 1, 1, 1), {"padding": "valid", "groups": 2, "nchw": False}),
    ("TRANSPOSE_CONV_2D", "filter", (1, 1, 1, 1), (1, 1, 1, 1), {"padding": ((0, 0), (0, 0)), "nchw": False}),
    ("FULLY_CONNECTED", "weights", (1, 1), (1, 1), {}),
]
each_layer = pytest.mark.parametrize(
    ("op", "name", "shape", "weights", "more"), LAYERS, ids=[case[0] for case in LAYERS]
)


def layer(
    name: str,
    shape: Any,
    weights: Any,
    more: Layer,
    bias: int,
    scale: float,
    constant: tuple[bool, bool] = (True, True),
) -> Layer:
    """A layer whose every sum is 255 * 255 + bias. constant: whether weights and bias are."""
    channels = weights[0]
    return {
        "input": X(np.full(shape, 255), Q8, 1.0),
        name: X(np.full(weights, 255), Q8, 1.0, constant=constant[0]),
        "bias": X(np.full(channels, bias), I32, 1.0, constant=constant[1]),
        "scale": scale,
        "zero_point": 0,
        **more,
    }


@each_layer
def test_a_constant_bias_takes_a_sum_to_the_last_of_32_bits_and_no_further(
    op: str, name: str, shape: Any, weights: Any, more: Layer
) -> None:
    last = MOST - 255 * 255
    y = run(op, **layer(name, shape, weights, more, last, 2.0**24))
    assert set(y.ravel().tolist()) == {128}  # (2**31 - 1) / 2**24
    for bias in (last + 1, MOST, LEAST):
        assert "exceed LiteRT's 32 bits" in reason(op, **layer(name, shape, weights, more, bias, 2.0**24))


@each_layer
@pytest.mark.parametrize("weights_constant", [True, False])
def test_a_bias_known_only_at_execution_saturates_as_the_definition_says(
    op: str, name: str, shape: Any, weights: Any, more: Layer, weights_constant: bool
) -> None:
    constant = weights_constant, False
    for scale in (2.0**20, 2.0**24):  # 2**31 / 2**24 are 128 steps: a clipped bias would be seen
        for bias in (LEAST, -65025, 0, 100 * 2**20, MOST - 65025, MOST):
            wanted = min(max(round((65025 + bias) / scale), 0), 255)
            y = run(op, **layer(name, shape, weights, more, bias, scale, constant))
            assert set(y.ravel().tolist()) == {wanted}, bias


def test_the_channel_with_the_coarsest_scale_decides() -> None:
    def convolution(bias: Any, constant: bool = True, fine: float = 2.0**-20) -> Layer:
        weights = X(np.full((2, 1, 1, 1), 127), Q8PC, constant=True, scales=(fine, 4.0))
        return {
            "input": X([[[[255]]]], Q8, 1.0),
            "filter": weights,
            "bias": X(bias, I32, constant=constant),
            "padding": "valid",
            "scale": 1.0,
            "zero_point": 0,
        }

    room = (2**31 - 1) // 8 - 255 * 127  # products of 4 steps are shifted by 3 bits
    assert run("CONV_2D", **convolution([MOST - 255 * 127, -room])).ravel().tolist() == [255, 0]
    assert "exceed LiteRT's 32 bits" in reason("CONV_2D", **convolution([0, -room - 1]))
    assert run("CONV_2D", **convolution([MOST, LEAST], constant=False)).ravel().tolist() == [255, 0]
    assert run("CONV_2D", **convolution([0, 0], constant=False, fine=2.0**-24)).ravel().tolist() == [0, 255]


def test_many_products_alone_may_exceed_32_bits() -> None:
    def dense(count: int, weight: int, constant: bool) -> Layer:
        return {
            "input": X(np.full((1, count), 255), Q8, 1.0),
            "weights": X(np.full((1, count), weight), Q8, 1.0, constant=constant),
            "bias": X([0], I32, 1.0, constant=True),
            "scale": 2.0**24,
            "zero_point": 0,
        }

    most = MOST // 255**2
    assert run("FULLY_CONNECTED", **dense(most, 255, False)).tolist() == [[128]]
    assert "exceed LiteRT's 32 bits" in reason("FULLY_CONNECTED", **dense(most + 1, 255, False))
    assert run("FULLY_CONNECTED", **dense(2 * most, 127, True)).tolist() == [[round(2 * most * 255 * 127 / 2**24)]]
    assert "exceed LiteRT's 32 bits" in reason("FULLY_CONNECTED", **dense(2 * most, 128, True))


@pytest.mark.parametrize("exponent", range(-16, 17))
@pytest.mark.parametrize("inner", [1, 40, 4000])
def test_a_matrix_product_of_any_ratio_of_scales_is_refused_or_right(inner: int, exponent: int) -> None:
    x = np.full((1, inner), 127)
    y = np.where(np.arange(2) == 0, -128, 127) * np.ones((inner, 1))
    arguments: Layer = {"x": X(x, Q8S, 1.0, -128), "y": X(y, Q8S, 1.0, 0), "adj_x": False, "adj_y": False}
    arguments |= {"scale": 2.0**-exponent, "zero_point": 5}
    shifted = inner * 255 * 128 * 2 ** max(0, exponent + 1)  # a ratio of 2**n takes n + 1 bits
    if exponent >= 8 or shifted > MOST:
        assert reason("BATCH_MATMUL", **arguments)
        return
    exact = (255 * -128 * inner * 2.0**exponent, 255 * 127 * inner * 2.0**exponent)
    wanted = [min(max(math.floor(z + 0.5) + 5, -128), 127) for z in exact]
    assert np.abs(run("BATCH_MATMUL", **arguments)[0].astype(int) - wanted).max() <= 1


# ----------------------------------------------------------------------------------------------- rooms between operators


def picture(size: int = 2, depth: int = 1) -> X:
    return X(np.ones((1, size, size, depth)), F32)


def spreading(stride: int, pad: int) -> Layer:
    weights, bias = X(np.ones((1, 3, 3, 1)), F32, constant=True), X(np.zeros(1), F32, constant=True)
    edges = ((0, pad), (0, pad))
    return {"input": picture(), "filter": weights, "bias": bias, "padding": edges, "stride": stride, "nchw": False}


@pytest.mark.parametrize("stride", [10_000, 46_000, 2**30])
def test_a_transposed_convolution_that_is_mostly_cut_off_is_refused(stride: int) -> None:
    size = 4 * (stride + 3) ** 2  # of all products; what is left of them has 4 * 4
    wanted = f"LiteRT would hold {size} bytes between its operators, must be at most 268435456"
    assert reason("TRANSPOSE_CONV_2D", **spreading(stride, stride - 1)) == wanted


def test_a_transposed_convolution_that_is_a_little_cut_off_is_taken() -> None:
    wanted = np.ones((4, 4)) * (np.arange(4) < 3) * (np.arange(4) < 3)[:, None]
    assert run("TRANSPOSE_CONV_2D", **spreading(10, 9))[0, :, :, 0].tolist() == wanted.tolist()


@pytest.mark.parametrize("kind", ["MAX_POOL_2D", "AVERAGE_POOL_2D", "L2_POOL_2D"])
@pytest.mark.parametrize(
    ("stride", "pad", "size"), [(20_000, 10_000, 20_001), (MOST, 2**30, 2**30 + 1), (MOST, MOST - 1, MOST)]
)
def test_a_window_far_beyond_the_picture_is_refused(kind: str, stride: int, pad: int, size: int) -> None:
    edges = ((pad, pad), (pad, pad))
    assert "bytes for the positions of its window" in reason(
        kind, input=picture(), padding=edges, stride=stride, filter_size=size
    )
    assert "bytes for the positions of its window" in reason(
        kind, input=picture(), padding="same", stride=1, filter_size=size
    )


def test_weights_known_only_at_execution_may_not_unfold_the_picture_many_times() -> None:
    def convolution(constant: bool) -> str:
        weights, bias = X((1, 9, 9, 64), F32, constant=constant), X((1,), F32, constant=constant)
        return reason("CONV_2D", input=X((1, 256, 256, 64), F32), filter=weights, bias=bias, padding="same")

    assert convolution(constant=True) == ""
    assert f"LiteRT would hold {256 * 256 * 9 * 9 * 64 * 4} bytes for the positions of its filter" in convolution(False)


@pytest.mark.parametrize(("constant", "held"), [(True, 1024 * 1024 * 9 * 9 * 8), (False, 1016 * 1016 * 9 * 9 * 4)])
def test_a_transposed_convolution_holds_a_pointer_or_a_sum_for_each_element_that_a_filter_meets(
    constant: bool, held: int
) -> None:
    """Of 1016 * 1016 elements to 1024 * 1024: XNNPACK, which wants weights constant, holds pointers of 8 bytes for each
    place of the output, LiteRT sums of 4 bytes for each of the input.
    """
    weights, bias = (X(shape, F32, constant=constant) for shape in ((1, 9, 9, 1), (1,)))
    found = reason(
        "TRANSPOSE_CONV_2D",
        input=X((1, 1016, 1016, 1), F32),
        filter=weights,
        bias=bias,
        padding=((0, 0), (0, 0)),
        stride=1,
        nchw=False,
    )
    assert found == f"LiteRT would hold {held} bytes for the positions of its filter, must be at most {2**28}"


@pytest.mark.parametrize("constant", [True, False])
def test_a_depthwise_convolution_holds_a_pointer_for_each_element_that_its_filter_meets(constant: bool) -> None:
    weights, bias = (X(shape, F32, constant=constant) for shape in ((1, 9, 9, 1), (1,)))
    found = reason(
        "DEPTHWISE_CONV_2D",
        input=X((1, 1024, 1024, 1), F32),
        filter=weights,
        bias=bias,
        padding="same",
        depth_multiplier=1,
    )
    held = 1024 * 1024 * 9 * 9 * 8
    assert found == f"LiteRT would hold {held} bytes for the positions of its filter, must be at most {2**28}"


def test_a_window_of_a_pooling_holds_a_pointer_for_each_element_that_it_meets() -> None:
    """Of 8200 rows of 16 elements, windows of 4096 by 2: rows are met by each window, columns that windows share once."""
    more = {"padding": "valid", "filter_size": (4096, 2), "stride": (1, 1)}
    found = reason("MAX_POOL_2D", input=X((1, 8200, 16, 1), F32), **more)
    held = (8200 - 4096 + 1) * 4096 * 16 * 8
    assert found == f"LiteRT would hold {held} bytes for the positions of its window, must be at most {2**28}"


# -------------------------------------------------------------------------------------------- dimensions that turn out 0


def open_run(op: str, *batches: int, **arguments: Any) -> list[Any]:
    """The results for several sizes of the open dimension, of one prepared model; the first input is all ones."""
    model, _ = build(op, **arguments)
    device: Device = litert.device()
    assert device.supports(model)[0].ok
    prepared = checked_prepared(device, model, Hints(threads=1))
    return [requests.run(prepared, [np.ones((batch, 2), np.float32)]).results[0] for batch in batches]


OPEN = X((1, 2), F32, dims=(0, 2))


def test_no_elements_in_give_none_out() -> None:
    weights, bias = X(np.ones((3, 2)), F32, constant=True), X(np.ones(3), F32, constant=True)
    for empty, full in (
        open_run("RELU", 0, 2, input=OPEN),
        open_run("FULLY_CONNECTED", 0, 2, input=OPEN, weights=weights, bias=bias),
    ):
        assert empty.shape == (0, *full.shape[1:]) and empty.dtype == full.dtype and full.shape[0] == 2
    before, empty, after = open_run("RELU", 1, 0, 1, input=OPEN)
    assert before.tolist() == after.tolist() == [[1, 1]] and empty.tolist() == []


def test_no_elements_in_may_give_some_out() -> None:
    other = X([[5, 6]], F32, constant=True)
    assert open_run("CONCATENATION", 0, 1, parts=[OPEN, other], axis=0)[0].tolist() == [[5, 6]]
    axes = np.array([0], np.int32)
    empty, full = open_run("REDUCE_SUM", 0, 3, input=OPEN, axes=axes, keep_dims=False)
    assert empty.tolist() == [0, 0] and full.tolist() == [3, 3]
    edges = np.array([[1, 0], [0, 1]], np.int32)
    empty, full = open_run("PAD", 0, 1, input=OPEN, paddings=edges)
    assert empty.tolist() == [[0, 0, 0]] and full.tolist() == [[0, 0, 0], [1, 1, 0]]


def test_a_bias_known_only_at_execution_needs_256_steps_to_saturate_where_sums_are_long() -> None:
    """2**31 are 181 steps of 2**23.5, which from a zero point of 0 are not all. float32 holds sums of 258 products."""
    for length, refused in ((258, False), (259, True)):
        why = reason("FULLY_CONNECTED", **layer("weights", (1, length), (1, length), {}, 0, 2.0**23.5, (True, False)))
        assert ("known only at execution" in why) is refused


@pytest.mark.parametrize(
    ("ratio", "wanted"), [(0.49, MOST), (0.99, MOST), (1 - 2.0**-22, MOST >> 1), (1.0, MOST >> 1), (1.99, MOST >> 1)]
)
def test_a_ratio_that_rounding_may_make_a_power_of_two_counts_as_one(ratio: float, wanted: int) -> None:
    assert sums.capacity(ratio) == wanted


def test_a_swish_that_its_own_kernel_has_no_16_bits_for_is_refused_under_exact_numerics() -> None:
    for scale, out, why in (
        (127.0, 127.0, ""),
        (128.0, 128.0, "input scale 128 is too coarse"),
        (1.0, 2 / 256 * 0.999, "is too fine for LiteRT here"),
        (1.0, 127.0, ""),
        (1.0, 129.0, "the quotient of scales exceeds 16 bits"),
        (2.0**-20, 1e-6, ""),
        (2.0**-21, 1e-6, "the quotient of scales exceeds 16 bits"),
    ):
        given = {"input": X((4,), scale=scale), "scale": out, "zero_point": 0}
        assert reason("HARD_SWISH", **given) == ""
        assert why in exact_reason("HARD_SWISH", **given)
        assert bool(why) is bool(exact_reason("HARD_SWISH", **given))


def test_products_that_overflow_16_bits_are_refused_under_exact_numerics() -> None:
    """LiteRT's own kernel gives 0 where the result is 255."""
    pair = {name: X((1, 4), scale=1.0, zero=255) for name in ("input1", "input2")}
    assert exact_reason("MUL", **pair, scale=2.0, zero_point=0) == ""
    assert "16 bits" in exact_reason("MUL", **pair, scale=1.9, zero_point=0)
    assert reason("MUL", **pair, scale=1.9, zero_point=0) == ""


@pytest.mark.parametrize(
    ("op", "names", "coarsest"),
    [
        ("SUB", ("input1", "input2"), 1 / 1024 / 256),
        ("ADD", ("input1", "input2"), 2 / 127),
    ],
)
def test_an_output_of_too_fine_steps_is_refused_from_its_bound_on(op: str, names: Any, coarsest: float) -> None:
    """coarsest: of the output's scales that are refused, where inputs have a scale of 1."""
    given = {name: X((4,), scale=1.0) for name in names}
    assert reason(op, **given, scale=coarsest * 1.001, zero_point=0) == ""
    assert "is too fine for LiteRT here" in reason(op, **given, scale=coarsest * 0.999, zero_point=0)


@pytest.mark.parametrize("activation", ["relu1", "relu6"])
def test_a_bound_that_is_no_32_bit_integer_is_refused(activation: str) -> None:
    def made(scale: float) -> str:
        given = {name: X((4,), scale=scale) for name in ("input1", "input2")}
        return reason("ADD", **given, activation=activation, scale=scale, zero_point=0)

    first = np.float32(1e-8)  # a little less
    assert made(float(np.nextafter(first, np.float32(1)))) == ""
    assert made(float(first)) == "output scale 1e-08 is too fine for a bound of 6"


def test_weights_that_fill_whole_registers_may_not_grow_many_times() -> None:
    """Each group's one channel takes 16: 2**19 groups of 3 * 3 elements, 72 bytes at 8 each, become 16 * 2**19 * 9 * 4."""

    def grouped(groups: int) -> str:
        shape = (groups, 3, 3, 1)
        layer = {"bias": X((groups,), F32, constant=True), "padding": "same", "groups": groups, "nchw": False}
        return reason("GROUPED_CONV_2D", input=X((1, 3, 3, groups), F32), filter=X(shape, F32, constant=True), **layer)

    at_most = 2**28 // (16 * 9 * 4)  # groups
    assert grouped(at_most) == ""
    wanted = f"LiteRT would hold {(at_most + 1) * 16 * 9 * 4} bytes for its weights, must be at most 268435456"
    assert grouped(at_most + 1) == wanted


def test_what_is_held_may_be_8_times_the_largest_operand() -> None:
    """A picture of 2**26 bytes: 8 times that are 2**29, where 2**28 are always allowed; 9 pointers an element are more."""

    def convolution(filter_h: int) -> str:
        shape = (1, filter_h, 1, 1)
        layer = {"bias": X((1,), F32, constant=True), "padding": "same"}
        return reason("CONV_2D", input=X((1, 4096, 4096, 1), F32), filter=X(shape, F32, constant=True), **layer)

    size = 4096 * 4096
    assert convolution(4) == ""  # 8 bytes a pointer: 4 * 8 = 32 bytes an element, 8 times 4
    assert convolution(5) == (
        f"LiteRT would hold {size * 5 * 8} bytes for the positions of its filter, must be at most {size * 4 * 8}"
    )


def test_exponents_that_are_infinite_in_float32_are_refused() -> None:
    assert reason("SOFTMAX", input=X((1, 4), scale=2.0**60), beta=2.0**40) == ""
    assert "beta times the scale is 2.5353e+30" in reason("SOFTMAX", input=X((1, 4), scale=2.0**60), beta=2.0**41)


def test_sums_of_shifted_squares_are_made_up_to_a_radius() -> None:
    def local(radius: int) -> str:
        more = {"radius": radius, "bias": 1.0, "alpha": 1.0, "beta": 0.5, "axis": -1}
        return reason("LOCAL_RESPONSE_NORMALIZATION", input=X((1, 200), F32), **more)

    assert local(64) == ""
    assert local(65) == "radius is 65, must be at most 64"


def test_places_that_windows_share_are_held_once() -> None:
    """Windows of 8192 at 8193 places, a step apart: they meet 16384 elements, not 8193 * 8192."""
    more = {"padding": "valid", "filter_size": (1, 8192)}
    assert reason("MAX_POOL_2D", input=X((1, 1, 16384, 1), F32), stride=(1, 1), **more) == ""


def test_an_alpha_of_an_open_dimension_may_be_larger_than_the_input() -> None:
    x = X((2, 4, 3), F32, dims=(0, 4, 3))
    assert reason("PRELU", input=x, alpha=X((1, 1, 3), F32)) == ""
    wanted = "LiteRT broadcasts only alpha, but the input is smaller"
    assert reason("PRELU", input=x, alpha=X((2, 1, 3), F32, dims=(0, 1, 3))) == wanted


@pytest.mark.parametrize(
    ("dims", "told"),
    [
        ((3, 2), ""),
        ((0, 2), "shape is computed at execution, must be constant"),
        ((), "needs a shape when the model is prepared, but it is known only at execution"),
    ],
)
def test_a_computed_shape_is_refused_where_the_output_does_not_say_it(dims: tuple[int, ...], told: str) -> None:
    m = ModelBuilder()
    x, shape, y = m.operand(F32, (2, 3)), m.operand(I32, (2,)), m.operand(F32, dims)
    m.operation("RESHAPE", [x, shape], [y])
    assert litert.device().supports(m.finish([x, shape], [y])) == [(told == "", told)]


def test_more_dimensions_than_xnnpack_splits_are_refused() -> None:
    def split(rank: int) -> str:
        model = make_model(lambda b, x: list(b.split(x, 0, 2, outputs=2)), (2,) * rank)
        verdict = litert.device().supports(model)[0]
        return "" if verdict.ok else verdict.reason

    assert split(6) == ""
    assert split(7) == "the rank is 7, must be at most 6 for XNNPACK"


def test_a_type_that_the_engines_kernel_lacks_is_refused_by_name() -> None:
    pair = {"x": X((2, 2), I32), "y": X((2, 2), I32)}
    assert (
        reason("BATCH_MATMUL", **pair, adj_x=False, adj_y=False)
        == "LiteRT's BATCH_MATMUL does not support TENSOR_INT32"
    )


def test_values_brought_to_a_256th_of_their_scale_are_refused() -> None:
    def greater(scale: float) -> str:
        return reason("MAXIMUM", input1=X((4,), scale=1.0), input2=X((4,), scale=scale), scale=scale, zero_point=0)

    assert greater(1 / 255) == ""
    assert "is too fine for LiteRT here, must exceed 0.00390625" in greater(1 / 256)


def dense(scale: float, out: float) -> str:
    """A layer of one product of `scale`, with an output of scale `out`."""
    layer = {"bias": X([0], I32, scale, constant=True), "scale": out, "zero_point": 0}
    return reason("FULLY_CONNECTED", input=X((1, 1), scale=scale), weights=X((1, 1), scale=1.0, constant=True), **layer)


def test_sums_of_256_steps_of_the_output_are_refused() -> None:
    assert dense(1.0, 1 / 255) == ""
    assert dense(1.0, 1 / 256) == "output scale 0.00390625 is too fine for LiteRT here, must exceed 0.00390625"


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("CONCATENATION", lambda: {"parts": [X((1, 4), scale=0.5), X((1, 4), scale=1.0)], "axis": 0}),
        ("SELECT", lambda: {
            "condition": X((1, 4), T.TENSOR_BOOL8),
            "input1": X((1, 4), scale=0.5),
            "input2": X((1, 4), scale=1.0),
        }),
    ],
)  # fmt: skip
def test_the_coarsest_of_what_goes_in_decides_how_fine_an_output_may_be(
    op: str, arguments: Callable[[float], Any]
) -> None:
    given = arguments()
    assert reason(op, **given, scale=1 / 255, zero_point=0) == ""
    assert "is too fine for LiteRT here, must exceed 0.00390625" in reason(op, **given, scale=1 / 256, zero_point=0)


@pytest.mark.parametrize(("epsilon", "told"), [(1e-12, ""), (9e-13, "epsilon is 9e-13, must be at least")])
def test_an_epsilon_may_be_as_small_as_squares_that_count(epsilon: float, told: str) -> None:
    more = {"gamma": 1.0, "beta": 0.0, "nchw": False}
    found = reason("INSTANCE_NORMALIZATION", input=X((1, 2, 2, 1), F32), epsilon=epsilon, **more)
    assert found.startswith(told) and bool(found) == bool(told)


@pytest.mark.parametrize(
    ("numbers", "told"), [([1, 2], ""), ([-2, 3], ""), ([0, 1], "division by 0"), ([1, -1], "least integer by -1")]
)
def test_integers_are_divided_by_what_cannot_end_the_process(numbers: list[int], told: str) -> None:
    found = reason("DIV", input1=X((2,), I32), input2=X(numbers, I32, constant=True))
    assert told in found and bool(found) == bool(told)


@pytest.mark.parametrize(
    ("bits", "told"), [(32, ""), (33, "the signatures have 33 bits, must have at most 32 for LiteRT")]
)
def test_signatures_have_up_to_32_bits(bits: int, told: str) -> None:
    hashes = X(np.zeros((2, bits)), F32, constant=True)
    assert reason("LSH_PROJECTION", hashes=hashes, input=X((2, 3), F32), weight=X((2,), F32), kind="dense") == told
