"""Drivers that are objects with the HAL's own methods: which of them the suites call, and what they say of the others."""

from pathlib import Path

import pytest

from nnhal.conformance.parallel import run_vectors
from nnhal.conformance.selection import Selection
from nnhal.conformance.suite import Outcome
from nnhal.conformance.validate.check import CheckOutcome
from nnhal.conformance.validate.run import Validation, run_checks

DRIVER = """
from nnhal.base.codes import ErrorStatus
from nnhal.drivers.samples.full import FullV1_2, HalTiming, PreparedV1_2

class ByCallback(PreparedV1_2):
    def executeSynchronously(self, *given):
        return ErrorStatus.GENERAL_FAILURE, (), HalTiming()

    def execute_1_2(self, request, measure, callback):
        answer = super().executeSynchronously(request, measure)
        for _ in range({notifications}):
            callback.notify_1_2(*answer)
        return answer[0]

class device(FullV1_2):
    name = "by-callback"

    def notified(self, notify, kind, model):
        return super().notified(notify, ByCallback, model)
"""
AS_1_3 = """
    def prepareModel_1_3(self, model, preference, priority, deadline, *others):
        return self.prepareModel_1_2(model, preference, *others)
"""


def written(folder: Path, *, notifications: int = 1, more: str = "") -> str:
    """The path of a driver that executes with callbacks alone."""
    driver = folder / "by_callback.py"
    driver.write_text(DRIVER.format(notifications=notifications) + more)
    return str(driver)


def vectors_of(folder: Path, driver: str, way: str, isolate: bool = False) -> list[Outcome]:
    """Outcomes of the vectors of FLOOR in a way to execute."""
    chosen = Selection(
        folder, drivers=(driver,), operations=frozenset(["FLOOR"]), way=way, isolate=isolate, rerun=False
    )
    return [o for some, _, _ in run_vectors(chosen, 1) for o in some.outcomes]


@pytest.mark.parametrize("isolate", [False, True], ids=["in process", "isolated"])
def test_the_way_callback_calls_the_drivers_own_callback_form(isolate: bool, tmp_path: Path, vectors: Path) -> None:
    driver = written(tmp_path)
    outcomes = vectors_of(vectors, driver, "callback", isolate)
    assert "passed" in {o.verdict for o in outcomes} <= {"passed", "unsupported"}


def test_the_way_callback_fails_a_driver_that_notifies_twice(tmp_path: Path, vectors: Path) -> None:
    driver = written(tmp_path, notifications=2)
    found = {(o.verdict, "notified again" in o.reason) for o in vectors_of(vectors, driver, "callback")}
    assert ("failed", True) in found <= {("failed", True), ("unsupported", False)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("isolate", [False, True], ids=["in process", "isolated"])
@pytest.mark.parametrize(("way", "method"), [("fenced", "executeFenced"), ("memory", "allocate")])
def test_ways_that_use_nothing_of_the_driver_are_no_success(
    way: str, method: str, isolate: bool, tmp_path: Path, vectors: Path
) -> None:
    driver = written(tmp_path, more=AS_1_3)
    said = f"way {way}: nnhal does not call {method} of HAL objects: it does that itself"
    assert {(o.verdict, o.reason) for o in vectors_of(vectors, driver, way, isolate)} == {("unsupported", said)}


@pytest.mark.parametrize("isolate", [False, True], ids=["in process", "isolated"])
def test_checks_of_what_a_hal_object_is_not_asked_for_are_skipped(isolate: bool, tmp_path: Path) -> None:
    driver = written(tmp_path, more=AS_1_3)
    only = ("fenced/ADD", "allocation/ADD", "allocation-roles/ADD")
    chosen = Validation(drivers=(driver,), only=only, isolate=isolate, draws=1)
    outcomes: list[CheckOutcome] = [o for some, _, _ in run_checks(chosen, 1) for o in some.outcomes if o.operation]
    assert {o.check: (o.verdict, o.reason.partition(" of HAL objects")[0]) for o in outcomes} == {
        "fenced": ("skipped", "nnhal does not call executeFenced"),
        "allocation": ("skipped", "nnhal does not call allocate"),
        "allocation-roles": ("skipped", "nnhal does not call allocate"),
    }
