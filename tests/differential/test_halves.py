"""Exact halves of a quantisation step are rounded as the definition says on every device, in every form.

A step is within the tolerance. A device that rounds all halves another way drifts, and a classifier behind it gives other
classes.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.operands import Array
from nnhal.frontends.tensor import Tensor
from tests.matrix.devices import ENGINES, INSTALLED

WAYS = [
    (name, forms) for name in ENGINES for forms in (("exact", "fast") if INSTALLED[name].proofs is not None else ("",))
]
KINDS = {"TENSOR_QUANT8_ASYMM": np.uint8, "TENSOR_QUANT8_ASYMM_SIGNED": np.int8}


def windows(dtype: type, size: int) -> Iterator[Array]:
    """Windows of so many elements around every stored value, of which half the sums are halves of their number."""
    limits = np.iinfo(dtype)
    for least in range(int(limits.min), int(limits.max)):
        yield np.arange(size) % 2 + least  # the mean is a half above the least
    for least in range(int(limits.min), int(limits.max)):
        yield (np.arange(size) > 0) + least  # and next to a whole number


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "forms"), WAYS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [(2, 1), (2, 2), (2, 3), (4, 7), (8, 8)])
def test_halves_of_means_are_rounded_away_from_a_stored_0(
    name: str, forms: str, kind: str, window: tuple[int, int]
) -> None:
    size, dtype, zero = window[0] * window[1], KINDS[kind], int(np.iinfo(KINDS[kind]).min) + 100
    x = np.stack(list(windows(dtype, size)), -1).reshape(1, *window, -1).astype(dtype)
    b = nnhal.Builder()
    given = b.input(x.shape, kind, 0.1, zero)
    y = b.average_pool_2d(given, padding="valid", filter_w=window[1], filter_h=window[0], stride_w=1, stride_h=1)
    options = {name: {"forms": forms}} if forms else None
    model = b.finish([given], [y])
    sums = x.astype(np.int64).sum((1, 2)).ravel()
    wanted = (2 * abs(sums) + size) // (2 * size) * np.sign(sums)
    with nnhal.compile(model, devices=[name], fallback="forbid", driver_options=options) as compiled:
        assert np.asarray(compiled(x)).ravel().tolist() == wanted.tolist()


@pytest.mark.parametrize(("name", "forms"), WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_halves_of_means_beside_padding_that_is_no_schemes_are_rounded_so_too(name: str, forms: str, kind: str) -> None:
    """One row of padding above two rows: the first mean is of one element."""
    dtype, zero = KINDS[kind], int(np.iinfo(KINDS[kind]).min) + 100
    x = np.stack(list(windows(dtype, 2)), -1).reshape(1, 2, 1, -1).astype(dtype)
    b = nnhal.Builder()
    given = b.input(x.shape, kind, 0.1, zero)
    pads = {"pad_left": 0, "pad_right": 0, "pad_top": 1, "pad_bottom": 0}
    y = b.average_pool_2d(given, **pads, filter_w=1, filter_h=2, stride_w=1, stride_h=1)
    options = {name: {"forms": forms}} if forms else None
    model = b.finish([given], [y])
    sums = x.astype(np.int64).sum(1)[0, 0]
    wanted = [x[0, 0, 0].tolist(), ((abs(sums) + 1) // 2 * np.sign(sums)).tolist()]
    with nnhal.compile(model, devices=[name], fallback="forbid", driver_options=options) as compiled:
        assert np.asarray(compiled(x))[0, :, 0].tolist() == wanted


MEANS = [  # litert adds up real values, and 64 of them come to next to a half
    (name, forms, window)
    for name, forms in [*WAYS, ("reference", "")]
    for window in [(2, 1), (2, 3), (8, 8)]
    if (name, window) != ("litert", (8, 8))
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "forms", "window"), MEANS)
@pytest.mark.parametrize("kind", KINDS)
def test_halves_of_a_mean_are_rounded_away_from_the_zero_point(
    name: str, forms: str, kind: str, window: tuple[int, int]
) -> None:
    size, dtype, zero = window[0] * window[1], KINDS[kind], int(np.iinfo(KINDS[kind]).min) + 100
    x = np.stack(list(windows(dtype, size)), -1).reshape(1, *window, -1).astype(dtype)
    for scale in (0.1, 0.3, 1 / 3):  # half a step of which float32 has no exact number
        b = nnhal.Builder()
        given = b.input(x.shape, kind, scale, zero)
        model = b.finish([given], [b.mean(given, [1, 2], keep_dims=False)])
        sums = (x.astype(np.int64) - zero).sum((1, 2)).ravel()
        wanted = (2 * abs(sums) + size) // (2 * size) * np.sign(sums) + zero
        options = {name: {"forms": forms}} if forms else None
        with nnhal.compile(model, devices=[name], fallback="forbid", driver_options=options) as compiled:
            assert np.asarray(compiled(x)).ravel().tolist() == wanted.tolist()


Make = Callable[[nnhal.Builder, Tensor, Tensor, dict[str, Any]], Tensor]
OPERATIONS: dict[
    str, tuple[Make, Callable[[Array, Array], Array]]
] = {  # of inputs in quarters with a zero point of 3, to an output in halves
    "ADD": (lambda b, x, y, out: b.add(x, y, "none", **out), lambda x, y: x / 4 + y / 4),
    "SUB": (lambda b, x, y, out: b.sub(x, y, "none", **out), lambda x, y: x / 4 - y / 4),
    "MUL": (lambda b, x, y, out: b.mul(x, y, "none", **out), lambda x, y: x / 4 * y / 4),
    "CONCATENATION": (
        lambda b, x, y, out: b.concatenation([x, y], 1, **out),
        lambda x, y: np.concatenate([x, y], 1) / 4,
    ),
    "QUANTIZE": (lambda b, x, y, out: b.quantize(b.dequantize(x), **out), lambda x, y: x / 4),
    "HARD_SWISH": (lambda b, x, y, out: b.hard_swish(x, **out), lambda x, y: x / 4 * np.clip(x / 4 + 3, 0, 6) / 6),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "forms"), WAYS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_halves_of_arithmetic_are_rounded_away_from_0(name: str, forms: str, kind: str, operation: str) -> None:
    make, real = OPERATIONS[operation]
    low, zero = int(np.iinfo(KINDS[kind]).min), int(np.iinfo(KINDS[kind]).min) + 120
    x = np.tile(np.arange(low, low + 256).astype(KINDS[kind]), (2, 1))
    y = np.roll(x, 5, 1) if operation != "MUL" else np.full_like(x, zero + 6)
    b = nnhal.Builder()
    inputs = [x] if operation in ("QUANTIZE", "HARD_SWISH") else [x, y]
    given = [b.input(x.shape, kind, 0.25, zero) for _ in inputs]
    model = b.finish(given, [make(b, given[0], given[-1], {"out_type": kind, "scale": 0.5, "zero_point": zero})])
    steps = real(*(each.astype(np.float64) - zero for each in (x, y))) / 0.5
    wanted = np.clip(np.trunc(steps + np.copysign(0.5, steps)) + zero, low, low + 255)
    with nnhal.compile(model, devices=[name], fallback="forbid", driver_options={name: {"forms": forms}}) as compiled:
        np.testing.assert_array_equal(compiled(*inputs), wanted)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "forms"), WAYS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("activation", "scale", "steps"), [("relu1", 2.0, (-1, 1)), ("relu6", 4.0, (0, 2))])
def test_bounds_of_fused_activations_at_halves_are_rounded_away_from_0(
    name: str, forms: str, kind: str, activation: str, scale: float, steps: tuple[int, int]
) -> None:
    """At an even and an odd zero point: rounded to even beside one of them, a bound of half a step is the zero point."""
    low = int(np.iinfo(KINDS[kind]).min)
    x = np.arange(low, low + 256).astype(KINDS[kind]).reshape(1, 16, 16, 1)
    for zero in (low + 100, low + 101):
        b = nnhal.Builder()
        given, quant = b.input(x.shape, kind, scale, zero), {"out_type": kind, "scale": scale, "zero_point": zero}
        window = {"filter_w": 1, "filter_h": 1, "stride_w": 1, "stride_h": 1}
        pooled = b.max_pool_2d(given, padding="valid", **window, activation=activation)
        added = b.add(given, b.constant(np.full((1, 1, 1, 1), zero, x.dtype), kind, scale, zero), activation, **quant)
        wanted = np.clip(x, zero + steps[0], zero + steps[1])
        options = {name: {"forms": forms}} if forms else None
        model = b.finish([given], [pooled, added])
        with nnhal.compile(model, devices=[name], fallback="forbid", driver_options=options) as compiled:
            for result in compiled(x):
                np.testing.assert_array_equal(result, wanted)
