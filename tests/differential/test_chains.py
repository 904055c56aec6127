"""Each operation of a random quantised graph is within a step of what the reference makes of that operation's own inputs.

No call of a single operation shows what operations make of each other: what shares a tensor, what is joined with what is
before it. The forms of one device, mixed: tests/drivers/test_openvino_forms.py.
"""

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import operation_name
from nnhal.base.operands import Array
from nnhal.model.parts import cut, live
from nnhal.runtime import discovery
from tests.drivers.quantised_chains import chain

DEVICES = [
    found.name for found in discovery.found_with_engines() if found.device is not None and found.name != "reference"
]
LENGTH = 8
HALVES = 2  # steps that halves, rounded up here and down there, may add up to in a chain


def run(model: nnhal.Model, device: str, inputs: list[Array]) -> list[Array]:
    with nnhal.compile(model, devices=[device], fallback="forbid") as compiled:
        found = compiled(*inputs)
    return list(found) if isinstance(found, tuple) else [found]


def steps(found: Array, wanted: Array) -> int:
    return int(np.abs(found.astype(int) - wanted).max())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(16))
def test_operations_of_a_chain_are_within_a_step_and_so_is_what_nobody_looks_at(device: str, seed: int) -> None:
    model, x = chain(seed, LENGTH)
    operations = live(model)
    whole = cut(model, operations, also=[i for n in operations for i in model.main.operations[n].outputs])
    known = {model.main.inputs[0]: x, **dict(zip(whole.outputs, run(whole.model, device, [x]), strict=True))}
    for number in operations:
        one = cut(model, [number])
        for place, wanted in zip(one.outputs, run(one.model, "reference", [known[i] for i in one.inputs]), strict=True):
            assert steps(known[place], wanted) <= 1, (number, operation_name(model.main.operations[number].type))
    assert steps(run(model, device, [x])[0], known[model.main.outputs[0]]) <= HALVES


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
        run(model, device, [data])[0], run(model, "reference", [data])[0], atol=max(scales) / 100
    )
