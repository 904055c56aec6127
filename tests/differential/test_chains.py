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
from nnhal.runtime import discovery
from tests.drivers.quantised_chains import chain, require_within_a_step

DEVICES = [
    found.name for found in discovery.found_with_engines() if found.device is not None and found.name != "reference"
]
LENGTH = 8


def run(device: str, model: nnhal.Model, inputs: Sequence[Array]) -> list[Array]:
    with nnhal.compile(model, devices=[device], fallback="forbid") as compiled:
        found = compiled(*inputs)
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(16))
def test_operations_of_a_chain_are_within_a_step_and_so_is_what_nobody_looks_at(device: str, seed: int) -> None:
    model, x = chain(seed, LENGTH)
    require_within_a_step(model, x, partial(run, device), partial(run, "reference"))


@pytest.mark.parametrize("device", DEVICES)
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
