"""At the ends of every quantised type every device is within one step, whichever form it runs an operation in. At the bounds
of activations it is exact.

Every device runs hard calls in the form that it takes by itself: the exact one, where nothing is proved. One that knows
several forms is proved first, in a process of its own; then it runs what was found right on calls that no proof has seen.
"""

from collections import Counter
from functools import cache
from itertools import islice

import pytest

from nnhal.base.codes import type_name
from nnhal.base.operands import quantised
from nnhal.conformance.device_under_test import Subject
from nnhal.conformance.proving.hard import BOUNDED, FAMILIES
from nnhal.conformance.proving.run import found_by, run_proofs, variants_to_prove
from nnhal.hal.choices import Proved
from nnhal.hal.device import Device
from nnhal.ops import OPS
from nnhal.runtime import discovery
from tests.differential.drawing import WHOLE
from tests.differential.ends import NOT_PROVED, off
from tests.matrix.devices import ENGINES

CELLS = [(name, kind) for name in FAMILIES | BOUNDED for kind in OPS[name].types if quantised(kind)]
EVERY = {"openvino": 7}  # `./check` runs every seventh hard call there, every third elsewhere; a whole run all
LEAST = 5 if WHOLE else 2  # calls of an operation and type that a device that claims it at all has to run

_found: dict[str, dict[tuple[str, int], Proved]] = {}


def proved(device: Device) -> dict[tuple[str, int], Proved]:
    """What a proof finds on this processor, of the operations that are looked at here."""
    if device.name not in _found:
        choices = [c for c in variants_to_prove(device) if (c.operation, c.type) in CELLS]
        results = run_proofs(Subject(device=device.name, timeout=60), choices, jobs=1) if choices else ()
        _found[device.name] = found_by([o for some, _, _ in results for o in some.outcomes], choices)
    return _found[device.name]


def every(name: str) -> int:
    return 1 if WHOLE else EVERY.get(name, 3)


@cache
def as_it_is(name: str, operation: str, kind: int) -> tuple[str, Counter[str]]:
    """As `off`, of a device in the forms that it takes by itself."""
    return off(discovery.load_one(name), operation, kind, every=every(name))


def faster(device: Device, operation: str, kind: int) -> tuple[str, Device] | None:
    """The form that a proof finds, if that is another than runs without."""
    for choice in variants_to_prove(device):
        if (choice.operation, choice.type) == (operation, kind):
            assert device.proofs is not None
            right = proved(device).get((operation, kind))
            if right is not None and right.form not in (None, choice.known[-1]):
                return right.form, device.proofs.with_variant(operation, kind, right.form)
    return None


EACH_CELL = pytest.mark.parametrize(
    ("operation", "kind"), CELLS, ids=[f"{n}-{type_name(k).removeprefix('TENSOR_')}" for n, k in CELLS]
)


def require_within_a_step(form: str, found: tuple[str, Counter[str]]) -> None:
    problem, came = found
    assert not problem, f"{form}: {problem}"
    assert came["run"] >= LEAST or came["run"] == 0, f"{form}: {came}"


@pytest.mark.sampled(8)
@EACH_CELL
@pytest.mark.parametrize("name", ENGINES)
def test_the_form_that_runs_unproved_is_within_one_step_at_the_ends_of_the_type(
    name: str, operation: str, kind: int
) -> None:
    require_within_a_step("as it is", as_it_is(name, operation, kind))


@pytest.mark.nightly
@pytest.mark.timeout(1800)  # the first test of a device verifies all its kernels
@EACH_CELL
@pytest.mark.parametrize("name", ENGINES)
def test_the_form_that_a_proof_finds_is_within_one_step_at_the_ends_of_the_type(
    name: str, operation: str, kind: int
) -> None:
    if found := faster(discovery.load_one(name), operation, kind):
        form, device = found
        require_within_a_step(form, off(device, operation, kind, (NOT_PROVED,), every(name)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in ENGINES if name in ("litert", "openvino", "onnxruntime")])
def test_engines_take_what_is_looked_at_here(name: str) -> None:
    """A device that refused all it is asked would be within one step, too."""
    taken = (cell for cell in CELLS[:8] if as_it_is(name, *cell)[1]["run"] > 0)
    assert len(list(islice(taken, 4))) == 4
