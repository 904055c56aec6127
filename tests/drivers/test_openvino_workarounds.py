"""Graphs that OpenVINO would compile wrongly. Each model behind a fused kernel runs in a process that may crash."""

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("openvino")

import nnhal
from nnhal.bench.workloads import FAMILIES, chain
from nnhal.frontends.tensor import Tensor
from nnhal.model.graph import Model
from tests.execution import run_python
from tests.requests import compute

UNITS = 4


def connected(b: nnhal.Builder, x: Tensor) -> Tensor:
    rng = np.random.default_rng(x.index)
    weights, bias = (b.constant(rng.normal(size=size).astype(np.float32)) for size in ((UNITS, UNITS), (UNITS,)))
    return b.fully_connected(x, weights, bias, "none")


def sequence() -> Model:
    """A fused kernel of two layers has no register left for the product behind it."""
    b = nnhal.Builder()
    x, other = b.input((1, UNITS)), b.input((1, 1))
    found = connected(b, b.relu(connected(b, x)))
    return b.finish([x, other], [b.mul(found, b.add(other, other, "none"), "none")])


def read_twice() -> Model:
    """The sum is no part of the fused kernel, since something else reads the result of that."""
    b = nnhal.Builder()
    x, other = b.input((1, UNITS)), b.input((1, UNITS))
    found = connected(b, b.relu(connected(b, x)))
    return b.finish([x, other], [b.add(found, b.relu(other), "none"), found])


CASES: dict[str, Callable[[], Model]] = {each.__name__: each for each in (sequence, read_twice)}


def compare(case: str, threads: int) -> None:
    """Compare openvino with the reference."""
    model = CASES[case]()
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=model.main.operands[i].dimensions).astype(np.float32) for i in model.main.inputs]
    results = (compute(model, *inputs, devices=[device], threads=threads) for device in ("reference", "openvino"))
    for wanted, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_an_operation_beside_a_fused_kernel_compiles(case: str) -> None:
    code = f"from tests.drivers.test_openvino_workarounds import compare; compare({case!r}, 1)"
    done = run_python(code, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("links", [2, 17])
def test_quantised_operations_without_a_layer_between_compile(links: int) -> None:
    """OpenVINO's search for 8-bit kernels takes 2.6 times as long with each resize: 17 took hours."""
    (resize,) = (family for family in FAMILIES if family.name == "resize")
    model = chain(resize, "quant8_signed", 0, links)
    x = np.random.default_rng(links).integers(-128, 128, model.main.operands[model.main.inputs[0]].dimensions, np.int8)
    (wanted,) = compute(model, x, devices="reference")
    (found,) = compute(model, x, devices="openvino", driver_options={"openvino": {"forms": "fast"}})
    assert np.abs(wanted.astype(int) - found).max() <= 1
