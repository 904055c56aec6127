"""What operations take by themselves: as drivers tell it, else of the whole step."""

from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import OperationFailed
from nnhal.bench.operations import TimeSpent, each_operation
from nnhal.hal.request import Control, Request
from nnhal.runtime.execute import Runner
from tests.runtime.devices import Fake
from tests.runtime.graphs import sums
from tests.runtime.test_execution import Own

X, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)


def telling(*runs: list[tuple[int, int, int]]) -> nnhal.Compiled:
    """Two ADDs on a device that tells this of its operations, run by run."""
    told = iter(runs)

    def run(request: Request, control: Control) -> None:
        assert control.profile is not None
        for entry in next(told):
            control.profile(*entry)
        request.write(0, request.inputs[0] + 2 * request.inputs[1])  # type: ignore[operator]

    return nnhal.compile(sums(2), devices=[Own(run)])


def test_what_an_operation_takes_is_the_median_of_the_runs():
    compiled = telling([(0, 0, 10), (1, 0, 1)], [(0, 0, 90), (1, 0, 2)], [(0, 5, 25), (1, 0, 7)])
    assert each_operation(compiled, [X, B], 3) == [
        TimeSpent((0,), "ADD #0", "own", 20.0, False),
        TimeSpent((1,), "ADD #1", "own", 2.0, False),
    ]


def test_operations_have_the_numbers_and_devices_of_the_whole_model():
    compiled = nnhal.compile(sums(5), devices=[Fake(takes=lambda n: n == 2), "reference"])
    shares = each_operation(compiled, [X, B], 3)
    assert [(s.operations, s.label, s.device, s.whole_step) for s in shares] == [
        ((n,), f"ADD #{n}", "fake" if n == 2 else "reference", False) for n in range(5)
    ]


@pytest.mark.parametrize(
    ("devices", "isolation", "count"),
    [("litert", "none", 3), ("litert", "process", 2), ("litert", "process", 1)],
)
def test_of_what_does_not_tell_the_whole_step_is_shown(devices, isolation, count):
    compiled = nnhal.compile(sums(count), devices=devices, isolation=isolation)
    (share,) = each_operation(compiled, [X, B], 3)
    label = {1: "ADD #0", 2: "ADD #0 and 1 more", 3: "ADD #0 and 2 more"}[count]
    assert (share.operations, share.label, share.whole_step) == (tuple(range(count)), label, True)
    assert share.device == devices and share.spent > 0


def test_of_runs_that_fell_back_as_a_whole_there_are_the_steps_before(monkeypatch):
    compiled = nnhal.compile(sums(2), devices=[Fake(takes=lambda n: n == 1), "reference"], fallback="allow")
    fails: Any = compiled._caller.lines[1].step.prepared.inner

    def broken(*_: object) -> object:
        raise OperationFailed("on the CPU too")

    fails.before = broken
    monkeypatch.setattr(Runner, "_step_on_cpu", broken)
    (share,) = each_operation(compiled, [X, B], 2)
    assert (share.operations, share.device) == ((0,), "reference")


def test_a_driver_in_another_process_tells_of_its_operations_as_well():
    compiled = nnhal.compile(sums(5), devices="reference", isolation="process")
    shares = each_operation(compiled, [X, B], 3)
    where = [(s.operations, s.label, s.device, s.whole_step) for s in shares]
    assert where == [((n,), f"ADD #{n}", "reference", False) for n in range(5)]
    assert all(0 < s.spent < 1e9 for s in shares)


def test_while_a_trace_is_running_the_whole_step_of_another_process_is_shown(tmp_path):
    compiled = nnhal.compile(sums(2), devices="reference", isolation="process")
    with nnhal.trace(tmp_path / "trace"):
        (share,) = each_operation(compiled, [X, B], 3)
    assert share.whole_step and share.operations == (0, 1)
