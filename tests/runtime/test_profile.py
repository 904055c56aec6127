"""What a driver tells of single operations, and what cannot be true of it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import ContractBroken
from nnhal.hal.request import Control, Request
from tests.runtime.devices import Fake
from tests.runtime.graphs import sums
from tests.runtime.test_execution import Own
from tests.waiting import pass_time

X, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)


def telling(*told: tuple[Any, Any, Any]) -> Callable[[Request, Control], None]:
    """Adds, and tells this of its operations."""

    def run(request: Request, control: Control) -> None:
        for entry in told:
            assert control.profile is not None
            control.profile(*entry)
        request.write(0, request.inputs[0] + 2 * request.inputs[1])  # type: ignore[operator]

    return run


def test_what_a_driver_tells_twice_of_an_operation_adds_up():
    compiled = nnhal.compile(sums(2), devices=[Own(telling((1, 5, 8), (0, 100, 350), (1, 20, 24)))])
    _, report = compiled.run(X, B, measure=True)
    assert report.steps[0].each == {0: 250, 1: 7}


@pytest.mark.parametrize(
    ("told", "rule"),
    [
        ((2, 0, 1), "profile of operation 2, must be 0 to 1"),
        ((-1, 0, 1), "profile of operation -1, must be 0 to 1"),
        ((0, 9, 8), "profile of operation 0 ends before it begins"),
        ((0, 0.5, 8), "must be integers"),
    ],
)
def test_what_cannot_be_is_the_drivers_fault(told, rule):
    with pytest.raises(ContractBroken, match=f"device own: .*{rule}"):
        nnhal.compile(sums(2), devices=[Own(telling(told))]).run(X, B, measure=True)


def test_nobody_is_told_where_nobody_asks():
    def run(request: Request, control: Control) -> None:
        assert control.profile is None
        request.write(0, X)

    compiled = nnhal.compile(sums(), devices=[Own(run)])
    compiled(X, B)
    compiled.run(X, B, deadline=9)


def test_the_reference_tells_each_operation_and_no_more_than_all_took():
    def slow() -> None:
        pass_time(0.01)

    compiled = nnhal.compile(sums(5), devices=[Fake(takes=lambda n: n == 2, on_run=slow), "reference"])
    _, report = compiled.run(X, B, measure=True)
    assert [sorted(step.each) for step in report.steps] == [[0, 1], [0], [0, 1]]
    for step in report.steps:
        assert all(spent > 0 for spent in step.each.values()) and sum(step.each.values()) <= step.total
    assert report.steps[1].total - report.steps[1].each[0] >= 10_000_000  # what is beside the operation is not its time


def test_what_a_driver_told_before_it_failed_is_not_told_of_the_cpu():
    def run(request: Request, control: Control) -> None:
        assert control.profile is not None
        control.profile(0, 0, 10**9)
        raise nnhal.NnhalError("broken")

    compiled = nnhal.compile(sums(), devices=[Own(run)], fallback="allow")
    _, report = compiled.run(X, B, measure=True)
    assert report.steps[0].device == "reference" and report.steps[0].each == {}
