"""Two operations that read one tensor: engines lay tensors over each other, and what one reads another may have changed.

No call of a single operation can show that. Numbers are whole and small, so all of it is exact.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

import nnhal
from nnhal.base.operands import Array
from nnhal.frontends.tensor import Tensor
from tests.matrix.devices import ENGINES

SHAPE = (2, 7, 5, 4)
SLOPES = np.float32([2, -1, 3, -4])
Read = Callable[[nnhal.Builder, Tensor], Tensor]


def weights(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).integers(-1, 2, shape).astype(np.float32)


READERS: dict[str, Read] = {
    "convolved": lambda b, x: b.conv_2d(x, weights(3, 3, 2, 4), weights(3), padding="valid"),
    "padded and convolved": lambda b, x: b.conv_2d(
        b.pad(x, [[0, 0], [1, 0], [0, 1], [0, 0]]), weights(3, 3, 2, 4), weights(3), padding="same", stride=2
    ),
    "convolved by channel": lambda b, x: b.depthwise_conv_2d(
        x, weights(1, 3, 3, 4), weights(4), padding="same", depth_multiplier=1
    ),
    "spread": lambda b, x: b.transpose_conv_2d(
        x, weights(2, 2, 2, 4), weights(2), padding=((0, 0), (0, 0)), stride=2, nchw=False
    ),
    "pooled": lambda b, x: b.max_pool_2d(x, padding="valid", filter_size=2),
    "a layer": lambda b, x: b.fully_connected(x, weights(3, 20), weights(3)),
    "flat": lambda b, x: b.reshape(x, [-1]),
    "joined before": lambda b, x: b.concatenation([x, b.neg(x)], 0),
    "joined behind": lambda b, x: b.concatenation([x, x], 3),
    "a part": lambda b, x: b.slice(x, [1, 0, 0, 0], [1, -1, -1, -1]),
    "turned": lambda b, x: b.transpose(x, [0, 3, 1, 2]),
    "tiled": lambda b, x: b.tile(x, [1, 2, 1, 2]),
    "summed up": lambda b, x: b.reduce_sum(x, [1, 2], True),
    "magnitudes of a row": lambda b, x: b.abs(b.concatenation([b.reshape(x, [-1]), b.reshape(x, [-1])], 0)),
    "greatest": lambda b, x: b.topk_v2(b.slice(x, [0] * 4, [1, -1, -1, -1]), 2)[0],
    "bent": lambda b, x: b.relu6(x),
    "bent below 0": lambda b, x: b.prelu(x, SLOPES),
    "convolved and bent below 0": lambda b, x: b.prelu(
        b.conv_2d(x, weights(4, 3, 2, 4), weights(4), padding="valid"), SLOPES
    ),
    "pooled and bent below 0": lambda b, x: b.prelu(b.max_pool_2d(x, padding="valid", filter_size=2), SLOPES),
}


def pair(first: Read, second: Read) -> nnhal.Model:
    b = nnhal.Builder()
    x = b.input(SHAPE)
    y = b.sub(x, np.ones(1, np.float32))
    return b.finish([x], [first(b, y), second(b, y)])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("device", ENGINES)
@pytest.mark.parametrize("name", READERS)
def test_readers_of_one_tensor_do_not_disturb_each_other(device: str, name: str) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-9, 10, SHAPE).astype(np.float32) for _ in range(2)]
    for other in list(READERS)[list(READERS).index(name) :]:
        model = pair(READERS[name], READERS[other])
        here, there = nnhal.compile(model, devices=["reference"]), nnhal.compile(model, devices=[device])
        for given in inputs:
            for part, (wanted, found) in enumerate(zip(here(given), there(given), strict=True)):
                assert np.array_equal(wanted, found), f"{(name, other)[part]}, beside {(name, other)[1 - part]}"


# ------------------------------------------------------------------------- both factors of a product are one tensor

SIDE = 3


class Factors(NamedTuple):
    """How both factors are made of one tensor, and whether each then has its last two dimensions swapped."""

    make: Callable[[nnhal.Builder, Tensor], tuple[Tensor, Tensor]]
    swapped: tuple[bool, bool]


def swap(b: nnhal.Builder, t: Tensor) -> Tensor:
    *order, row, column = range(t.value.rank)
    return b.transpose(t, [*order, column, row])


FACTORS = {
    "the same": Factors(lambda _, t: (t, t), (False, False)),
    "swapped": Factors(lambda b, t: (t, swap(b, t)), (False, True)),
    "swapped first": Factors(lambda b, t: (swap(b, t), t), (True, False)),
    "both swapped": Factors(lambda b, t: (swap(b, t),) * 2, (True, True)),
    "swapped twice": Factors(lambda b, t: (t, swap(b, swap(b, t))), (False, False)),
    "copied": Factors(lambda b, t: (t, b.transpose(t, list(range(t.value.rank)))), (False, False)),
    "reshaped and swapped": Factors(lambda b, t: (t, swap(b, b.reshape(t, list(t.value.known)))), (False, True)),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", ["TENSOR_FLOAT32", "TENSOR_QUANT8_ASYMM_SIGNED"])
@pytest.mark.parametrize("factors", FACTORS)
@pytest.mark.parametrize("device", ENGINES)
def test_a_product_of_one_transposed_tensor_with_itself_transposes_each_factor_as_asked(
    device: str, factors: str, kind: str
) -> None:
    facts = {} if kind == "TENSOR_FLOAT32" else {"scale": 1.0, "zero_point": 0}
    for order in ([0, 1], [1, 0], [0, 1, 2], [1, 0, 2], [2, 0, 1], [0, 2, 1]):
        shape = (SIDE,) * len(order)
        x = np.random.default_rng(len(order)).integers(-3, 4, shape).astype(np.int8 if facts else np.float32)
        for adjoint in itertools.product((False, True), repeat=2):
            b = nnhal.Builder()
            given = b.input(shape, kind, **facts)
            left, right = FACTORS[factors].make(b, b.transpose(given, order))
            model = b.finish([given], [b.batch_matmul(left, right, *adjoint, **facts)])
            try:
                with nnhal.compile(model, devices=[device], fallback="forbid") as compiled:
                    found = compiled(x)
            except nnhal.UnsupportedModel:
                continue
            t = x.transpose(order).astype(np.int64)
            swaps = np.array(adjoint) ^ FACTORS[factors].swapped
            wanted = np.matmul(*(np.swapaxes(t, -1, -2) if swapped else t for swapped in swaps))
            np.testing.assert_array_equal(found, wanted, f"{order}, {adjoint}")


@pytest.mark.parametrize("device", ENGINES)
def test_a_product_behind_layers_of_pictures_with_channels_first_takes_each_factor_as_it_is(device: str) -> None:
    x = np.random.default_rng(0).integers(-3, 4, (1, 2, 3, 3)).astype(np.float32)
    b = nnhal.Builder()
    given = b.input(x.shape)
    pooled = b.max_pool_2d(given, padding="valid", filter_size=1, nchw=True)
    with nnhal.compile(b.finish([given], [b.batch_matmul(pooled, pooled)]), devices=[device]) as compiled:
        np.testing.assert_array_equal(compiled(x), x @ x)


@pytest.mark.parametrize("device", ENGINES)
def test_a_product_of_a_transposed_constant_with_itself_takes_each_factor_as_it_is(device: str) -> None:
    known = np.arange(9, dtype=np.float32).reshape(1, 3, 3)
    b = nnhal.Builder()
    given = b.input(known.shape)
    t = b.transpose(b.constant(known), [0, 1, 2])
    model = b.finish([given], [b.add(b.batch_matmul(t, t), given)])
    with nnhal.compile(model, devices=[device], fallback="forbid") as compiled:
        np.testing.assert_array_equal(compiled(known), known @ known + known)
