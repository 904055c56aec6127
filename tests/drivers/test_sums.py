"""How great and how long sums become, worked out by hand, and what drivers refuse or cut because of them."""

from typing import Any

import numpy as np
import pytest

from nnhal.base.operands import Array, Value
from nnhal.drivers.kit.sums import IN_A_ROW, Stage, greatest_sum, padding_correction, require_32_bits, stages, summed
from nnhal.drivers.kit.variants import Refused
from nnhal.ops.schema import I32, Q8S

X = Value(Q8S, (2, 3), 0.5, 3)  # -128 is 131 steps from its zero point
WEIGHTS = Value(Q8S, (2, 3), 0.25, 1, data=np.array([[1, -2, 0], [3, 4, -5]], np.int8))  # less 1: 0 -3 -1, 2 3 -6


def bias(*steps: int) -> Value:
    return Value(I32, (len(steps),), 0.125, data=np.array(steps, np.int32))


@pytest.mark.parametrize(("axis", "greatest"), [(0, 131 * (2 + 3 + 6)), (1, 131 * (1 + 6))])
def test_the_greatest_sum_is_that_of_the_channel_with_the_greatest_weights(axis: int, greatest: int) -> None:
    assert greatest_sum(X, WEIGHTS, axis) == greatest


def test_weights_that_an_execution_gives_are_all_as_great_as_they_can_be() -> None:
    assert greatest_sum(X, Value(Q8S, (2, 3), 0.25, 1), 0) == 3 * 131 * 129


def test_the_greatest_magnitude_of_the_bias_is_part_of_the_greatest_sum() -> None:
    assert greatest_sum(X, WEIGHTS, 0, bias(700, -90_000)) == 131 * 11 + 90_000
    assert greatest_sum(X, WEIGHTS, 0, Value(I32, (2,), 0.125)) == 131 * 11 + 2**31


def test_sums_that_only_a_bias_takes_beyond_32_bits_are_refused() -> None:
    require_32_bits(greatest_sum(X, WEIGHTS, 0, bias(2**31 - 1 - 131 * 11, 0)))
    with pytest.raises(Refused, match="must fit in 32 bits"):
        require_32_bits(greatest_sum(X, WEIGHTS, 0, bias(0, 2**31 - 131 * 11)))


# ------------------------------------------------------------------------------------------------------- long sums


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((513, 2), {0}),
        ((2, 2049), {1}),
        ((1, 28, 28, 3), {1, 2}),
        ((2, 1024, 1024), {1, 2}),
        ((4_000_000,), {0}),
        ((1021, 3, 1021), {0, 2}),
        ((7, 30, 40, 50), {0, 1, 2, 3}),
        ((65_537,), {0}),
        ((2**31 - 1,), {0}),
    ],
    ids=str,
)
def test_a_long_sum_is_cut_into_blocks_that_cover_it_and_have_512_terms_in_a_row_together(
    shape: tuple[int, ...], axes: set[int]
) -> None:
    parts = stages(shape, axes)
    assert sum(stage.cut[stage.along] for stage in parts) <= IN_A_ROW
    left, kept = int(np.prod(shape)), int(np.prod([size for axis, size in enumerate(shape) if axis not in axes]))
    for stage in parts:
        assert np.prod(stage.shape) == left
        padded = list(stage.shape)
        padded[stage.axis] += stage.more
        assert np.prod(padded) == np.prod(stage.cut) and stage.more <= stage.shape[stage.axis] / 8
        left = int(np.prod(stage.cut)) // stage.cut[stage.along]
    assert left == kept


@pytest.mark.parametrize(
    ("shape", "axes"), [((512, 3), {0}), ((3, 2048), {1}), ((7, 7, 10_000), {0, 1}), ((10_000, 9), set()), ((), set())]
)
def test_a_short_sum_is_the_engines_own(shape: tuple[int, ...], axes: set[int]) -> None:
    assert stages(shape, axes) == []


@pytest.mark.parametrize(("shape", "axes"), [((1021, 3, 1021), (0, 2)), ((2, 600, 3), (1,)), ((1, 60, 60, 2), (1, 2))])
@pytest.mark.parametrize("kind", [np.sum, np.mean])
def test_a_sum_in_stages_is_the_sum(shape: tuple[int, ...], axes: tuple[int, ...], kind: Any) -> None:
    x = np.random.default_rng(0).integers(-9, 10, shape).astype(np.float64)
    parts = stages(shape, set(axes))

    def pad(x: Array, stage: Stage) -> Array:
        return np.pad(x, [(0, stage.more * (axis == stage.axis)) for axis in range(x.ndim)])

    found = summed(x, parts, np.reshape, pad, lambda x, stage: kind(x, stage.along))
    found = found * padding_correction(parts) if kind is np.mean else found
    np.testing.assert_allclose(found.ravel(), kind(x, axes).ravel(), rtol=1e-12, atol=1e-12)
