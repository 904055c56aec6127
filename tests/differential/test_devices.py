"""Every installed device against the reference, for every operation, form, type and class of values."""

import collections
from hashlib import sha256

import numpy as np
import pytest

from nnhal.conformance.draw import Cell, cells
from nnhal.runtime import discovery
from tests.comparing import Result, as_code, compare_device
from tests.differential.drawing import DRAWS, WHOLE, seeds
from tests.matrix.devices import ENGINES

EVERY = 30  # of the cells of an operation that `./check` runs
SHARE = {"openvino": 0.5}  # of the draws: it compiles each for 20 ms and more


def draws(device: str, of: int = DRAWS) -> int:
    return max(1, int(of * SHARE.get(device, 1)))


def smallest(found: list[Result]) -> Result:
    return min(found, key=lambda r: sum(v.array.size for v in r.call.inputs if v is not None))


def problem(device: str, cell: Cell) -> str:
    rng = np.random.default_rng(seeds(cell))
    results = list(compare_device(discovery.select([device])[0], discovery.cpu(), cell, rng, draws(device)))
    assert len(results) == draws(device)
    differing = [r for r in results if r.outcome == "differs"]
    if not differing:
        return ""
    least = smallest(differing)
    return f"{cell}: {len(differing)} of {len(results)}: {least.reason}\n{as_code(least.call)}"


def chosen(device: str, name: str) -> list[Cell]:
    """One in `EVERY` cells of an operation, by a hash, and at least one; all in a whole run."""
    found = sorted(cells([name]), key=lambda cell: sha256(f"{device} {cell}".encode()).digest())
    return found[: len(found) if WHOLE else -(-len(found) // EVERY)]


@pytest.mark.parametrize("device", ENGINES)
@pytest.mark.parametrize("name", dict.fromkeys(cell.op.name for cell in cells()))
def test_device_agrees_with_the_reference(device: str, name: str) -> None:
    problems = [found for cell in chosen(device, name) if (found := problem(device, cell))]
    assert not problems, "\n\n".join(problems)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("device", ENGINES)
def test_most_draws_are_compared_not_refused(device: str) -> None:
    """A device that refused all it is asked would agree too."""
    outcomes: collections.Counter[str] = collections.Counter()
    for cell in cells(["ADD", "CONV_2D", "RESHAPE", "SOFTMAX"]):
        rng = np.random.default_rng(seeds(cell))
        found = compare_device(discovery.select([device])[0], discovery.cpu(), cell, rng, draws(device))
        outcomes.update(r.outcome for r in found)
    assert outcomes["agrees"] > outcomes["refused"]
