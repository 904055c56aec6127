"""Drivers with a fault each: what an application gets over them, and what the suites say of some of them.

`python -m tests.suites.faulty` has every suite over every one.
"""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from nnhal.conformance.suites.run import CONTRACT, VECTORS
from nnhal.hal.device import Device
from nnhal.hal.hidl.adapters import adapt
from nnhal.ipc.client import session as client_session
from tests.conformance.test_validate import in_a_thread, looked
from tests.suites.faulty import application
from tests.suites.faulty.driver import memory
from tests.suites.faulty.driver.faults import BY_MODEL, CTS, Fault, healthy, made, table
from tests.suites.faulty.page import PAGE, misled
from tests.suites.faulty.suites import report_of, results_of

FAULTS = list(table().values())
HEALTHY = healthy()
STARTS = 1_000_000_000  # nanoseconds that a driver may take to start which never does
JUDGED = [
    each
    for each in FAULTS
    if CONTRACT in each.seen_by and not (each.alone or each.hangs or each.check.startswith("cache-"))
]


def named(fault: Fault) -> str:
    return fault.name


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What the runtime logs of faulty drivers is no news here."""
    caplog.set_level(logging.CRITICAL, "nnhal")


def test_the_family_is_as_large_as_it_is_said_to_be() -> None:
    assert len(FAULTS) >= 100 and sum(not each.numbers for each in FAULTS) >= 80


@pytest.mark.sampled(8)
@pytest.mark.parametrize("fault", [*HEALTHY, *(each for each in FAULTS if each.survives)], ids=named)
def test_an_application_over_a_fault_in_its_process_gets_right_results_or_a_named_error(fault: Fault) -> None:
    assert list(misled(fault, application.in_process(fault))) == []


@pytest.fixture(scope="module")
def shared() -> Iterator[Device]:
    """A device in a process of its own that has the fault that a model is named after."""
    device = application.start_alone(BY_MODEL)
    yield device
    device.close()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("fault", [*HEALTHY, *(each for each in FAULTS if not each.alone)], ids=named)
def test_an_application_over_an_isolated_fault_gets_right_results_or_a_named_error(
    fault: Fault, shared: Device
) -> None:
    assert list(misled(fault, application.application(shared, fault))) == []


@pytest.mark.sampled(8)
@pytest.mark.parametrize("fault", [each for each in FAULTS if each.alone], ids=named)
def test_an_application_over_an_isolated_fault_that_ends_or_keeps_its_process_gets_right_results_or_a_named_error(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault.hangs and not fault.operation:
        monkeypatch.setattr(client_session, "GREETING_NS", STARTS)
        monkeypatch.setattr(client_session, "QUERY_NS", STARTS)
    assert list(misled(fault, application.isolated(fault))) == []


def test_a_healthy_model_beside_the_faulty_ones_is_right_to_the_end(shared: Device) -> None:
    came = application.application(shared, HEALTHY[0])
    assert (came.right, came.wrong, came.errors) == (application.RUNS, 0, ())


# ------------------------------------------------------------------------------------------------------------ the suites


@pytest.mark.sampled(8)
@pytest.mark.parametrize("fault", JUDGED, ids=named)
def test_the_contract_names_the_check_that_a_fault_breaks(fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "nnhal")  # the check of callbacks reads the log
    device = made(fault.name)
    device = device if isinstance(device, Device) else adapt(device, device.name)
    try:
        verdict, reason, _ = in_a_thread(lambda: looked(device, fault.check, fault.operation))
    finally:
        memory.release()
    assert verdict == "failed" and reason


def test_the_contract_sees_a_close_that_ends_the_drivers_own_process(vectors: Path) -> None:
    seen = results_of([CONTRACT], table()["close-segfaults"], vectors, isolate=True)
    assert seen[CONTRACT].named.keys() == {"close"}


def test_vectors_and_contract_name_the_operation_of_wrong_numbers(vectors: Path) -> None:
    seen = results_of([VECTORS, CONTRACT], table()["activation-ignored"], vectors)
    assert [(each.caught, each.operations) for each in seen.values()] == [(True, ("MUL",))] * 2


def test_a_defect_that_several_suites_find_in_several_ways_is_one_group_that_names_its_operation(vectors: Path) -> None:
    fault = table()["activation-ignored"]
    pattern = "^V1_0/mul_relu/|^values/MUL$|^(deadline/execution|fence/wait|threads/one-compilation)/MUL$"
    (group,) = report_of([VECTORS, CONTRACT, CTS], fault, vectors, pattern)[0]["groups"]
    assert {case["suite"] for case in group["cases"]} == {VECTORS, CONTRACT, CTS} and group["count"] >= 5
    assert (group["operations"], group["hint"]) == (["MUL"], "all outside [0, inf]: activation?")


def test_the_page_has_a_row_for_each_driver_as_it_is_now() -> None:
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [(each.name, each.what) for each in (*HEALTHY, *FAULTS)], "python -m tests.suites.faulty --write"
