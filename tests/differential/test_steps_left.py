"""8-bit results that are a step off lie to both sides: on every device the mean error against real values is 0.

A device may round halves of a step in its own way. One that rounds them all upwards shifts what many layers add up.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.operands import Array
from nnhal.conformance.draw import cells
from nnhal.frontends.tensor import Tensor
from nnhal.ops.schema import Q8S
from tests.conformance.test_steps import HalvesUp, ToEven
from tests.differential.steps_left import measured
from tests.differential.test_halves import KINDS, WAYS
from tests.suites.faulty.driver.healthy import Arithmetic, Healthy
from tests.suites.faulty.driver.numbers import RequantisedDown

DEVIATIONS = 5  # of a mean from 0, where each error is half a step to either side
SCALE = 0.25  # of inputs and weights; that of products is a sixteenth
CHANNELS = 8
HOW = {"padding": "valid", "stride_w": 1, "stride_h": 1, "activation": "none"}

Make = Callable[[nnhal.Builder, Tensor, Tensor, dict[str, Any]], Tensor]


def zeros(b: nnhal.Builder) -> Tensor:
    return b.constant(np.zeros(CHANNELS, np.int32), "TENSOR_INT32", SCALE * SCALE, 0)


def windows(x: Array, y: Array) -> Array:
    """The sums of a depthwise filter of 2 by 2."""
    high, wide = x.shape[1] - 1, x.shape[2] - 1
    return sum(x[:, i : i + high, j : j + wide] * y[:, i, j] for i in (0, 1) for j in (0, 1))


PICTURE, ROWS = (1, 33, 33, CHANNELS), (1024, CHANNELS)
# of each operation: the shapes of an input and of a second one, or of constant weights; the scale of the output
OPERATIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], float, Make, Callable[[Array, Array], Array]]] = {
    "ADD": (ROWS, ROWS, 0.5, lambda b, x, y, out: b.add(x, y, "none", **out), np.add),
    "SUB": (ROWS, ROWS, 0.5, lambda b, x, y, out: b.sub(x, y, "none", **out), np.subtract),
    "MUL": (ROWS, ROWS, 0.125, lambda b, x, y, out: b.mul(x, y, "none", **out), np.multiply),
    "MEAN": (
        (1024, 4, CHANNELS),
        (1,),
        SCALE,
        lambda b, x, y, out: b.mean(x, b.constant(np.array([1], np.int32)), False, **out),
        lambda x, y: x.mean(1),
    ),
    "CONV_2D": (
        PICTURE,
        (CHANNELS, 1, 1, CHANNELS),
        0.125,
        lambda b, x, y, out: b.conv_2d(x, y, zeros(b), **HOW, **out),
        lambda x, y: x @ y[:, 0, 0].T,
    ),
    "DEPTHWISE_CONV_2D": (
        PICTURE,
        (1, 2, 2, CHANNELS),
        0.125,
        lambda b, x, y, out: b.depthwise_conv_2d(x, y, zeros(b), **HOW, depth_multiplier=1, **out),
        windows,
    ),
    "FULLY_CONNECTED": (
        ROWS,
        (CHANNELS, CHANNELS),
        0.125,
        lambda b, x, y, out: b.fully_connected(x, y, zeros(b), "none", **out),
        lambda x, y: x @ y.T,
    ),
    "BATCH_MATMUL": (
        (1, *ROWS),
        (1, CHANNELS, CHANNELS),
        0.125,
        lambda b, x, y, out: b.batch_matmul(x, y, False, False, **out),
        np.matmul,
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "forms"), WAYS)
def test_errors_of_8_bits_have_the_mean_0(name: str, forms: str, kind: str, operation: str) -> None:
    """Inputs are as often below the zero point as above it, and many results are halves of a step."""
    if operation == "BATCH_MATMUL" and kind == "TENSOR_QUANT8_ASYMM":
        pytest.skip("NNAPI has none")
    first, second, scale, make, real = OPERATIONS[operation]
    dtype, zero = KINDS[kind], int(np.iinfo(KINDS[kind]).min) + 133
    rng = np.random.default_rng(31)
    x, y = (rng.integers(-7, 8, shape) for shape in (first, second))
    weights = operation in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
    inputs = [(each + zero).astype(dtype) for each in ((x,) if weights or operation == "MEAN" else (x, y))]
    b = nnhal.Builder()
    given = [b.input(each.shape, kind, SCALE, zero) for each in inputs]
    other = b.constant((y + zero).astype(dtype), kind, SCALE, zero) if weights else given[-1]
    model = b.finish(given, [make(b, given[0], other, {"out_type": kind, "scale": scale, "zero_point": zero})])
    steps = real(x * SCALE, y * SCALE) / scale
    with nnhal.compile(model, devices=[name], fallback="forbid", driver_options={name: {"forms": forms}}) as compiled:
        errors = np.asarray(compiled(*inputs)).astype(np.int64) - zero - steps
    halves = np.count_nonzero(steps % 1 == 0.5)
    assert halves > 500 and abs(errors).max() <= 1
    assert abs(errors.sum()) <= DEVIATIONS * 0.5 * np.sqrt(errors.size)


@pytest.mark.parametrize(("arithmetic", "leans"), [(ToEven, False), (HalvesUp, True), (RequantisedDown, True)])
def test_the_count_of_steps_finds_a_device_that_rounds_to_one_side(arithmetic: type[Arithmetic], leans: bool) -> None:
    device = type("Rounding", (Healthy,), {"arithmetic": arithmetic()})()
    ties = [cell for cell in cells(["ADD"]) if cell.kind == Q8S and cell.values == "ties"]
    found = measured(device, ties, 300, options={})
    assert found.differing and found.leans == leans
