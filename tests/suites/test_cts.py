"""Suite `cts`: the reference passes a share of it, and each fault is caught by the area that looks at it."""

import re

import numpy as np
import pytest

import nnhal
from nnhal.conformance.suites.cts import SUITE
from nnhal.conformance.suites.cts.area import AreaTrial, listed
from nnhal.conformance.suites.cts.graphs import own_graph
from nnhal.conformance.suites.cts.neighbours import PREPARING, RUNNING, FailsToRun, faulty
from nnhal.conformance.suites.run import run_suite
from nnhal.conformance.suites.suite import CaseFailed, Context, NotApplicable, NotSupported, SuiteRun
from nnhal.driver import Device
from nnhal.drivers.reference import Reference
from nnhal.runtime import discovery
from tests.models import doubling
from tests.suites.faulty.driver.faults import made

RUN = SuiteRun()
CASES = {case.name: case for case in SUITE.cases(RUN)}


def outcome(name: str, device: Device) -> str:
    """The reason why a case fails on a device; "" if it passes, "-" if it cannot be judged."""
    try:
        SUITE.run(CASES[name], Context(device, RUN, lambda stage: None))
    except (NotSupported, NotApplicable):
        return "-"
    except (CaseFailed, nnhal.NnhalError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


CAUGHT = [
    ("arena-shared", "threads/graph", "beside 3 others"),
    ("arena-early", "graph/whole", "differs"),
    ("same-operand", "graph/whole", "differs"),
    ("wide-vector", "graph/whole", "differs"),
    ("unaligned", "memory/unaligned/ADD", "inputs at offset"),
    ("while-in-place", "flow/exchanged", "variables after 1 iterations are"),
    ("shape-kept", "shapes/changing/ADD", "shape of the output|is float32|must be"),
    ("third-wrong", "selection/only/ADD/TENSOR_FLOAT32", "with the first inputs again"),
    ("run-raises", "partition/beside-faulty/run-fails/0", "fell back"),
    ("run-raises", "partition/beside-faulty/run-raises/0", "fell back"),
    ("fenced-inputs-early", "fence/wait/RELU", "after the fence"),
    ("address-kept", "memory/bound/ADD", "changed contents"),
    ("times-in-picoseconds", "measure/times/ADD", "must be at most"),
    ("yes-and-no", "selection/only/MUL/TENSOR_FLOAT32", "on the list"),
    ("capabilities-change", "introspection/performance", "after a compilation|performance is"),
    ("verdicts-change", "introspection/verdicts/ADD", "changes its verdict"),
    ("cache-never-restores", "cache/hit/ADD", "must be a hit"),
    ("cache-restores-last", "cache/other-token/MUL", "other token|first token"),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("fault", "name", "text"), CAUGHT)
def test_a_fault_is_caught_and_the_same_case_passes_without_it(fault: str, name: str, text: str) -> None:
    names = [
        each for each in CASES if each == name or each.rpartition("/")[0] == name
    ]  # one of several graphs shows it
    caught = next((each for each in names if re.search(text, outcome(each, made(fault)))), "")
    assert caught and outcome(caught, made("")) in ("", "-")


def test_the_reference_passes_a_share_of_all_areas() -> None:
    areas = {case.arguments[0] for case in CASES.values()}
    some = {case.arguments[0]: name for name, case in CASES.items() if "/ADD" in name or name.endswith(("/0", "/1"))}
    left = areas - some.keys()
    some |= {CASES[name].arguments[0]: name for name in CASES if CASES[name].arguments[0] in left}
    assert some.keys() == areas
    reasons = {name: outcome(name, discovery.cpu()) for name in some.values()}
    assert set(reasons.values()) <= {"", "-"}, reasons
    assert len([reason for reason in reasons.values() if reason == ""]) > len(areas) * 3 // 4


def test_the_processes_run_the_suite_and_end_with_the_device() -> None:
    run = SuiteRun(pattern="^memory/.*/RELU$|^introspection/identity$")
    found = [outcome for progress in run_suite("cts", run, 1) for outcome in progress.outcomes]
    assert len(found) == 12 and {each.verdict for each in found} == {"passed"}
    assert {each.operation for each in found} == {"", "RELU"}


def test_names_are_unique_and_the_same_for_the_same_run() -> None:
    first, second = (list(SUITE.cases(RUN)) for _ in range(2))
    assert first == second and len(CASES) == len(first)
    assert len(list(SUITE.cases(SuiteRun(scale=2)))) > len(first)


def test_the_reference_compiles_a_model_once_for_all_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, compile = list[nnhal.Model](), nnhal.compile
    monkeypatch.setattr(nnhal, "compile", lambda model, **more: compiled.append(model) or compile(model, **more))
    trial = AreaTrial(CASES["memory/unaligned/ADD"], Context(discovery.cpu(), RUN, lambda _: None))
    one, other = doubling(2, 3), doubling(4)
    with trial.held:
        for number in (1, 2):
            for model, shape in ((one, (2, 3)), (one, (2, 3)), (other, (4,))):
                (result,) = trial.expected(model, [np.full(shape, number, np.float32)])
                assert result.shape == shape and (result == 2 * number).all()
    assert compiled == [one, other, one, other]


def test_a_wrong_result_of_a_graph_is_found() -> None:
    trial = AreaTrial(CASES["graph/whole/0"], Context(discovery.cpu(), RUN, lambda _: None))
    with trial.held:
        graph, compiled = own_graph(trial, 12)
        results = listed(compiled(*graph.inputs()))
    graph.check(graph.inputs(), results, "as it is")
    wrong = [[y + y.dtype.type(3) if n == 0 else y for n, y in enumerate(results)], [*results, results[0]]]
    for given in wrong:
        with pytest.raises(CaseFailed, match=r"here: .*; graph: "):
            graph.check(graph.inputs(), given, "here")


@pytest.mark.parametrize("fault", [*PREPARING, *RUNNING])
def test_a_faulty_neighbour_fails_an_application_that_forbids_fallback(fault: str) -> None:
    model = doubling(2, 3)
    data = np.ones((2, 3), np.float32)

    def twice() -> None:
        with nnhal.compile(model, devices=faulty(discovery.cpu(), "faulty", fault), fallback="forbid") as compiled:
            assert (compiled(data) == 2).all() and (compiled(data) == 2).all()

    if fault == "returns-another-type":
        twice()
        return
    with pytest.raises(nnhal.NnhalError, match="faulty"):
        twice()


def test_a_case_says_which_error_a_call_must_raise() -> None:
    late = FailsToRun(discovery.cpu(), "other", "run-fails")  # never looks at a deadline that has passed
    assert "the engine fails" in outcome("deadline/execution/ADD", late)


def test_a_driver_derived_from_the_reference_runs_every_registered_extension_too() -> None:
    class Derived(Reference):
        name = "derived"

    assert outcome("extension/rejected", Derived()) == "-"
