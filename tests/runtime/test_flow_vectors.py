"""Published vectors with control flow, over two devices neither of which takes any of it whole."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import LoopTimeout, NnhalError
from nnhal.base.operands import dtype_of
from nnhal.conformance.compare import compare_all
from nnhal.conformance.vectors import Vector, members, read_member
from nnhal.hal.device import Device
from nnhal.hal.wrappers import Limited
from nnhal.model.graph import Model
from nnhal.runtime import discovery
from nnhal.runtime.compilation import CONTROL_FLOW
from tests.runtime.devices import for_nothing, to_be_killed

DEADLINE = 60.0  # seconds: none misses it
LOOP = 15.0  # seconds, the most that a loop may have: on a busy machine the ordinary 2 are too few


class Alternating(Limited):
    """Takes every other operation, and no control flow. places: which of two."""

    def __init__(self, name: str, places: int, inner: Device | None = None) -> None:
        super().__init__(inner or discovery.cpu(), self._mine)
        self.name, self._places = name, places

    def _mine(self, model: Model, n: int) -> bool:
        return n % 2 == self._places and model.main.operations[n].type not in CONTROL_FLOW


def controlled(path: Path) -> Iterator[Vector]:
    for archive, name in members(path):
        if "if" in name or "while" in name:
            for vector in read_member(archive, name):
                if vector.operations & {"IF", "WHILE"}:
                    yield vector


def outcome(vector: Vector, devices: list[Device], dynamic: bool, bounded: bool) -> str:
    """Why it is not what it has to be, "" where it is."""
    inside: Counter[str] = Counter()
    try:
        compiled = nnhal.compile(vector.model(dynamic=dynamic), devices=devices)
        inside.update(compiled.placement.devices())
        expected = vector.expected()
        rooms = None if dynamic else [np.empty(e.shape, dtype_of(e.type)) for e in expected]
        timeout = 0.001 if vector.expect_failure else LOOP
        deadline = DEADLINE if bounded else None
        results, _ = compiled.run(*vector.inputs(), out=rooms, deadline=deadline, loop_timeout=timeout)
    except NnhalError as error:
        if vector.expect_failure and isinstance(error, LoopTimeout) == ("while_infinite_loop" in vector.id):
            return ""
        return f"{type(error).__name__}: {error}"
    if vector.expect_failure:
        return "ran, must end in an error"
    if "runtime" not in inside or not inside.keys() <= {"runtime", "even", "odd"}:
        return f"ran on {dict(inside)}, must run on both and the runtime"
    several = list(results) if isinstance(results, tuple) else [results]
    return compare_all(vector, several, expected)[0]


@pytest.mark.parametrize("every", [16, pytest.param(1, marks=pytest.mark.nightly)], ids=["a sixteenth", "all"])
@pytest.mark.parametrize("isolated", [False, True], ids=["here", "isolated"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
def test_published_control_flow_runs_over_devices_that_do_not_take_it(
    vectors: Path, dynamic: bool, isolated: bool, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for_nothing(monkeypatch)
    elsewhere = to_be_killed() if isolated else None
    devices: list[Device] = [Alternating("even", 0), Alternating("odd", 1, elsewhere)]
    wrong, several = {}, list(controlled(vectors))
    assert len(several) > 500
    offset = (isolated + 2 * dynamic) % every
    for n, vector in enumerate(several[offset::every]):
        why = outcome(vector, devices, dynamic and not vector.expect_failure, n % 2 == 0)
        if why:
            wrong[vector.id] = why
    if elsewhere is not None:
        elsewhere.close()
    assert not wrong
