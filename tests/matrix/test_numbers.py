"""Cases x devices x isolation: each device gives what the definition says of a case, or refuses it for a known reason."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import nnhal
from tests.matrix.cases import CASES, Case
from tests.matrix.devices import DEVICES, ENGINES, ISOLATION


def check(case: Case, device: str, isolation: str) -> None:
    """Compute the case twice: an engine may spoil what the next execution reads."""
    model = case.model()
    how: Any = {"devices": [device], "isolation": isolation, "fallback": "forbid", "threads": case.threads}
    if device in case.refused:
        with pytest.raises(nnhal.UnsupportedModel, match=case.refused[device]):
            nnhal.compile(model, **how)
        return
    with nnhal.compile(model, **how) as compiled:
        for _ in range(2):
            found = compiled(*case.arrays())
            found, (relative, absolute) = found if isinstance(found, tuple) else (found,), case.close
            for number, (actual, wanted) in enumerate(zip(found, case.outputs(), strict=True)):
                if wanted is not None:
                    assert actual.shape == np.shape(wanted), f"output {number}"
                    np.testing.assert_allclose(actual, wanted, relative, absolute, err_msg=f"output {number}")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "device"), [(name, device) for name, case in CASES.items() for device in case.found.split()]
)
def test_the_device_that_a_case_was_found_on_gives_what_the_definition_says(name: str, device: str) -> None:
    if device not in ENGINES:
        pytest.skip(f"{device} is not installed")
    check(CASES[name], device, "none")


def everywhere() -> Iterator[Any]:
    """Each case on each device; what a case lists as a failure has to fail."""
    for name, case in CASES.items():
        for device in DEVICES:
            why = case.fails.get(device)
            yield pytest.param(name, device, marks=[pytest.mark.xfail(strict=True, reason=why)] if why else [])


@pytest.mark.sampled(10)
@pytest.mark.parametrize("isolation", ISOLATION)
@pytest.mark.parametrize(("name", "device"), list(everywhere()))
def test_every_device_gives_what_the_definition_says_in_process_and_isolated(
    name: str, device: str, isolation: str
) -> None:
    check(CASES[name], device, isolation)
