"""Two operations that read one tensor: engines lay tensors over each other, and what one reads another may have changed.

No call of a single operation can show that. Numbers are whole and small, so all of it is exact.
"""

from collections.abc import Callable

import numpy as np
import pytest

import nnhal
from nnhal.base.operands import Array
from nnhal.frontends.tensor import Tensor
from nnhal.runtime import discovery

DEVICES = [
    found.name for found in discovery.found_with_engines() if found.device is not None and found.name != "reference"
]
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


@pytest.mark.parametrize("device", DEVICES)
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
