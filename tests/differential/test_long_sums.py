"""Sums of thousands of equal numbers, of which one float32 after the other loses the last digits."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

import nnhal
from nnhal.frontends.tensor import Tensor
from nnhal.runtime import discovery
from tests.matrix.devices import DEVICES
from tests.models import make_model

NUMBERS = np.float32([0.1, 0.3, 0.7, 1.05, 1.37, 127.3])
ROOM = 64 * 2.0**-23  # of a sum of magnitudes, as `docs/contributing/numerics.md` has it
SIDE = 96


class Long(NamedTuple):
    """An operation on equal numbers, and how many of them, or of their means, its results are."""

    shape: tuple[int, ...]
    make: Callable[[nnhal.Builder, Tensor], Tensor]
    times: float = 1.0


def along(*axes: int) -> np.ndarray:
    return np.array(axes, np.int32)


LONG = {
    "MEAN of a picture": Long((1, SIDE, SIDE, 2), lambda b, x: b.mean(x, along(1, 2), True)),
    "MEAN of channels": Long((2, 2, SIDE, SIDE), lambda b, x: b.mean(x, along(2, 3), True)),
    "MEAN of all, a prime number": Long((10_007,), lambda b, x: b.mean(x, along(0), False)),
    "MEAN of columns": Long((10_007, 2), lambda b, x: b.mean(x, along(0), False)),
    "MEAN of rows": Long((2, 10_007), lambda b, x: b.mean(x, along(1), False)),
    "REDUCE_SUM of columns": Long((10_007, 2), lambda b, x: b.reduce_sum(x, along(0), False), 10_007),
    "REDUCE_SUM of two sides": Long((SIDE, 2, SIDE), lambda b, x: b.reduce_sum(x, along(0, 2), True), SIDE * SIDE),
    "AVERAGE_POOL_2D of a picture": Long(
        (1, SIDE, SIDE, 2), lambda b, x: b.average_pool_2d(x, padding="valid", filter_size=SIDE)
    ),
    "AVERAGE_POOL_2D of a small picture": Long(
        (1, 28, 28, 2), lambda b, x: b.average_pool_2d(x, padding="valid", filter_size=28)
    ),
    "AVERAGE_POOL_2D of a large picture": Long(
        (1, 300, 300, 2), lambda b, x: b.average_pool_2d(x, padding="valid", filter_size=300)
    ),
    "AVERAGE_POOL_2D of large windows": Long(
        (1, SIDE, SIDE, 2), lambda b, x: b.average_pool_2d(x, padding="same", filter_size=64, stride=16)
    ),
    "AVERAGE_POOL_2D of padded windows": Long(
        (1, SIDE, SIDE, 2),
        lambda b, x: b.average_pool_2d(x, padding=((9, 0), (0, 5)), filter_size=64, stride=(5, 16)),
    ),
    "L2_POOL_2D": Long((1, SIDE, SIDE, 2), lambda b, x: b.l2_pool_2d(x, padding="same", filter_size=64, stride=16)),
    "L2_NORMALIZATION of columns": Long(
        (10_000, 2), lambda b, x: b.mul(b.l2_normalization(x, axis=0), b.mul(x, np.float32([100])))
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", LONG)
def test_a_sum_of_many_equal_numbers_is_within_the_tolerance(device: str, name: str) -> None:
    shape, make, times = LONG[name]
    with nnhal.compile(make_model(make, shape), devices=[device], fallback="forbid") as compiled:
        for number in NUMBERS:
            found = np.asarray(compiled(np.full(shape, number)), np.float64)
            assert np.abs(found / (times * float(number)) - 1).max() < ROOM, (number, found)


@pytest.mark.parametrize("device", DEVICES)
def test_large_windows_move_and_meet_padding_as_small_ones(device: str) -> None:
    x = np.random.default_rng(0).integers(0, 9, (1, 40, 50, 2)).astype(np.float32)
    b = nnhal.Builder()
    given = b.input(x.shape)
    ways = {"padding": ((11, 3), (2, 8)), "filter_size": (25, 30), "stride": (3, 4)}
    outputs = [b.average_pool_2d(given, **ways), b.l2_pool_2d(given, **ways)]
    with nnhal.compile(b.finish([given], outputs), devices=[device], fallback="forbid") as compiled:
        mean, root = compiled(x)
    for row, column in np.ndindex(mean.shape[1:3]):
        top, left = 3 * row - 11, 4 * column - 2
        part = x[:, max(0, top) : top + 25, max(0, left) : left + 30].astype(np.float64)
        np.testing.assert_allclose(mean[:, row, column], part.mean((1, 2)), rtol=1e-5)
        np.testing.assert_allclose(root[:, row, column], np.sqrt((part**2).mean((1, 2))), rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("side", [11, SIDE])
def test_a_flat_picture_has_no_deviation_to_normalise(device: str, side: int) -> None:
    model = make_model(lambda b, x: b.instance_normalization(x, 1.0, 0.5, 1e-3, nchw=False), (1, side, side, 2))
    with nnhal.compile(model, devices=[device], fallback="forbid") as compiled:
        for number in NUMBERS:
            found = compiled(np.full((1, side, side, 2), number, np.float32))
            np.testing.assert_allclose(found, 0.5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_the_mean_of_many_equal_steps_is_that_step(device: str) -> None:
    b = nnhal.Builder()
    x = b.input((1, 1024, 1024, 1), "TENSOR_QUANT8_ASYMM", scale=0.37, zero_point=0)
    model = b.finish([x], [b.mean(x, along(1, 2), True)])
    with nnhal.compile(model, devices=[device], fallback="forbid") as compiled:
        for step in (50, 177):
            assert compiled(np.full(x.value.known, step, np.uint8)).item() == step


COUNT, WINDOW = 16_384, 128
ONES = {
    "FULLY_CONNECTED": lambda b: (
        x := b.input((2, COUNT)),
        b.fully_connected(x, np.ones((2, COUNT), np.float32), np.zeros(2, np.float32)),
    ),
    "BATCH_MATMUL": lambda b: (x := b.input((2, COUNT)), b.batch_matmul(x, np.ones((COUNT, 2), np.float32))),
    "CONV_2D": lambda b: (
        x := b.input((1, WINDOW, WINDOW, 1)),
        b.conv_2d(x, np.ones((2, WINDOW, WINDOW, 1), np.float32), np.zeros(2, np.float32), padding="valid"),
    ),
    "DEPTHWISE_CONV_2D": lambda b: (
        x := b.input((1, WINDOW, WINDOW, 2)),
        b.depthwise_conv_2d(
            x,
            np.ones((1, WINDOW, WINDOW, 2), np.float32),
            np.zeros(2, np.float32),
            padding="valid",
            depth_multiplier=1,
        ),
    ),
    "TRANSPOSE_CONV_2D": lambda b: (
        x := b.input((1, 1, 1, COUNT)),
        b.transpose_conv_2d(
            x,
            np.ones((1, 1, 1, COUNT), np.float32),
            np.zeros(1, np.float32),
            padding=((0, 0), (0, 0)),
            stride=1,
            nchw=False,
        ),
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ONES)
def test_many_products_lose_what_the_device_says_and_little_on_the_reference(device: str, name: str) -> None:
    (found,) = discovery.select([device])
    room = COUNT / 4 * 2.0**-24 if "long_sums" in found.relaxations else ROOM / 2
    b = nnhal.Builder()
    x, y = ONES[name](b)
    with nnhal.compile(b.finish([x], [y]), devices=[device], fallback="forbid") as compiled:
        for number in NUMBERS:
            result = np.asarray(compiled(np.full(x.value.known, number)), np.float64)
            assert np.abs(result / (COUNT * float(number)) - 1).max() <= room, (number, result)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape, axis", [((1, 1_000_000), 1), ((10_007, 3), 0), ((60_000, 2), 0)], ids=str)
@pytest.mark.parametrize("logarithm", [False, True])
def test_a_softmax_of_many_adds_up_its_exponentials_in_stages(
    device: str, shape: tuple[int, ...], axis: int, logarithm: bool
) -> None:
    """Beside a few 0s all are equal, so that each addition rounds to the same side."""
    x = np.full(shape, -0.3, np.float32)
    x.flat[:8] = 0
    b = nnhal.Builder()
    given = b.input(shape)
    make = b.log_softmax if logarithm else b.softmax
    exact = 1.3 * (x.astype(np.float64) - x.max(axis, keepdims=True))
    exact -= np.log(np.exp(exact).sum(axis, keepdims=True))
    with nnhal.compile(b.finish([given], [make(given, beta=1.3, axis=axis)]), devices=[device]) as compiled:
        found = np.asarray(compiled(x), np.float64)
    assert np.abs(found / (exact if logarithm else np.exp(exact)) - 1).max() <= ROOM
