"""Operand types of the cases of contract, vts and cts: each type has its verdict, and a failure that of its type."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperandType, type_name
from nnhal.conformance.differential import model_of
from nnhal.conformance.draw import cells, draw
from nnhal.conformance.reduction import types_of
from nnhal.conformance.suites.cts import SUITE as CTS
from nnhal.conformance.suites.cts.area import AreaTrial, _refused
from nnhal.conformance.suites.cts.graphs import own_graph
from nnhal.conformance.suites.run import run_suite
from nnhal.conformance.suites.suite import CaseFailed, CaseOutcome, Context, NotSupported, SuiteRun
from nnhal.conformance.suites.vts import SUITE as VTS
from nnhal.conformance.suites.worker import outcome_of
from nnhal.conformance.validate.check import ContractCheck
from nnhal.conformance.validate.drawing import Drawing
from nnhal.conformance.validate.trial import NotAsked, RequirementNotMet, Trial, open_trial
from nnhal.conformance.validate.worker import outcome_of as outcome_of_check
from nnhal.conformance.verdict import TypeVerdicts, data_types, type_of_case
from nnhal.drivers.reference import Reference
from nnhal.hal.device import Device
from nnhal.runtime import discovery
from tests.conformance.test_validate import device as float32_alone
from tests.suites.faulty.driver.faults import made

F32, F16, I32 = "TENSOR_FLOAT32", "TENSOR_FLOAT16", "TENSOR_INT32"
Q8, Q8S = "TENSOR_QUANT8_ASYMM", "TENSOR_QUANT8_ASYMM_SIGNED"
RUN = SuiteRun(device="reference")
DRIVER = """
import os
from nnhal.base.codes import OperandType
from nnhal.drivers.reference import Reference

class Ends(Reference):
    name = "ends"

    def prepare(self, model, hints):
        if any(operand.type == OperandType.TENSOR_FLOAT32 for operand in model.main.operands):
            os._exit(3)
        return super().prepare(model, hints)

device = Ends
"""


def test_a_type_has_its_own_verdict_or_that_of_the_case_which_is_bad_for_the_current_type_alone() -> None:
    told: list[str] = []
    types = TypeVerdicts(told.append)
    assert not types.tries_any and types.of_case("failed") == {}
    types.begin("A")
    types.end("passed")
    types.begin("B")
    types.drop()
    types.begin("C", "D")
    types.begin("E")
    assert told == ["A", "", "B", "", "", "E"] and types.now == "E" and types.tries_any
    assert types.of_case("failed") == {"A": "passed", "E": "failed"}
    whole = TypeVerdicts()
    whole.begin("C", "D")
    assert whole.of_case("passed") == {"C": "passed", "D": "passed"}


def test_of_several_verdicts_of_a_type_the_worst_stays_and_one_that_was_judged() -> None:
    for several, worst in ((("passed", "failed"), "failed"), (("unsupported", "passed", "skipped"), "passed")):
        types = TypeVerdicts()
        for verdict in several:
            types.begin("A")
            types.end(verdict)
        assert types.of_case("passed") == {"A": worst}


def test_the_type_of_a_case_is_the_first_that_is_bad_or_its_only_one() -> None:
    assert type_of_case({"A": "passed", "B": "hung", "C": "failed"}) == "B"
    assert (type_of_case({"A": "skipped"}), type_of_case({"A": "passed", "B": "passed"}), type_of_case({})) == (
        "A",
        "",
        "",
    )


def test_data_is_of_the_types_of_tensors_that_are_no_indices_or_masks_if_there_are_any() -> None:
    assert data_types([I32, "INT32", Q8, F32, Q8]) == [Q8, F32]
    assert data_types(["BOOL", I32, "TENSOR_BOOL8"]) == [I32, "TENSOR_BOOL8"] and data_types(["INT32"]) == []


# --------------------------------------------------------------------------------------------------------------- contract


def checked(look: Callable[[Trial], int], device: Device | None = None) -> tuple[str, str, dict[str, str]]:
    """Verdict, reason and types of a check of ADD."""
    check = ContractCheck("name", "A rule.", look, "saw nothing", (), False, False, ())
    with open_trial(
        Trial(device or discovery.cpu(), Drawing("ADD", 0, 1), lambda stage: None, isolated=False)
    ) as trial:
        verdict, reason, _ = outcome_of_check(check, trial)
        return verdict, reason, dict(trial.types.of_case(verdict))


def test_a_check_goes_on_with_the_next_type_after_one_that_fails_and_looks_at_calls_of_one_alone() -> None:
    kinds: list[set[int]] = []

    def look(trial: Trial) -> int:
        kinds.append({call.cell.kind for call, _ in (*trial.calls.drawn(), *trial.calls.taken())})
        if trial.calls.kind in (OperandType.TENSOR_FLOAT16, OperandType.TENSOR_INT32):
            raise RequirementNotMet(f"wrong for {trial.calls.kind}")
        return 1

    verdict, reason, types = checked(look)
    assert all(len(each) == 1 for each in kinds) and len(kinds) == 5
    assert types == {F32: "passed", F16: "failed", I32: "failed", Q8: "passed", Q8S: "passed"}
    first = next(kind for (kind,) in kinds if kind in (OperandType.TENSOR_FLOAT16, OperandType.TENSOR_INT32))
    assert (verdict, reason) == ("failed", f"wrong for {first}")


def test_a_check_ends_with_the_first_type_that_it_looked_at_one_call_of() -> None:
    looks: list[Any] = []

    def look(trial: Trial) -> int:
        looks.append(trial.calls.first()[0].cell.kind)
        return int(len(looks) > 1)  # it saw nothing of the first type

    verdict, _, types = checked(look)
    assert verdict == "passed" and list(types.values()) == ["skipped", "passed"] and len(looks) == 2


def test_a_type_without_a_supported_call_is_unsupported_and_one_without_samples_is_left_out() -> None:
    verdict, _, types = checked(lambda trial: len(trial.calls.samples()), float32_alone())
    unsupported = dict.fromkeys((F16, I32, Q8, Q8S), "unsupported")
    assert verdict == "passed" and types == {F32: "passed"} | unsupported
    _, _, types = checked(lambda trial: len(trial.calls.samples()))
    assert 3 <= len(types) < 5 and set(types.values()) == {"passed"}  # as many types as there are samples


def test_a_check_that_no_type_can_be_judged_by_is_skipped_with_the_reason() -> None:
    def look(trial: Trial) -> int:
        trial.calls.taken()
        raise NotAsked("no such thing")

    verdict, reason, types = checked(look, float32_alone())
    assert (verdict, reason, types[F32], types[F16]) == ("skipped", "no such thing", "skipped", "unsupported")
    assert checked(lambda trial: 0 * len(trial.calls.taken()), float32_alone())[:2] == ("skipped", "saw nothing")


def test_a_query_that_fails_is_of_the_type_that_was_asked_about() -> None:
    class Raises(Reference):
        def supports(self, model: Any) -> Any:
            if any(operand.type == OperandType.TENSOR_INT32 for operand in model.main.operands):
                raise KeyError("int32")
            return super().supports(model)

    verdict, _, types = checked(lambda trial: 1, Raises())
    assert (verdict, types) == ("failed", {I32: "failed"})


@pytest.mark.parametrize("isolate", [False, True])
def test_a_crash_is_of_the_type_whose_call_crashed(tmp_path: Path, isolate: bool) -> None:
    (tmp_path / "ends.py").write_text(DRIVER)
    run = SuiteRun(drivers=(str(tmp_path / "ends.py"),), isolate=isolate, pattern="^prepares/ADD$", scale=0.5)
    (outcome,) = (each for some in run_suite("contract", run, 1) for each in some.outcomes)
    assert (outcome.verdict, outcome.type, outcome.by_type[F32]) == ("crashed", F32, "crashed"), outcome


# ------------------------------------------------------------------------------------------------------------- vts and cts


def looked(suite: Any, name: str, device: Device, run: SuiteRun = RUN) -> tuple[str, dict[str, str]]:
    """Verdict and types of a case, looked at in this process."""
    case = next(case for case in suite.cases(run) if case.name == name)
    context = Context(device, run, lambda stage: None)
    verdict = outcome_of(suite, case, context, ["suite"]).verdict
    return verdict, dict(context.types.of_case(verdict))


def test_a_promise_of_operations_names_the_types_that_it_is_looked_at_with() -> None:
    verdict, types = looked(VTS, "process/ADD", made(""))
    assert verdict == "passed" and {kind for kind, each in types.items() if each == "passed"} == {F32, Q8, Q8S}
    verdict, types = looked(VTS, "fences/none", made(""))
    assert verdict == "passed" and 1 <= len(types) <= 2  # one of each of two operations


def test_a_promise_of_the_driver_names_the_types_of_its_models_and_a_query_has_none() -> None:
    assert looked(VTS, "queries/threads", made("")) == ("passed", {})
    verdict, types = looked(VTS, "files/number", made("cache-trusts"))
    assert verdict == "failed" and list(types.values()) == ["failed"] and set(types) <= {F32, Q8, Q8S}


def test_a_case_of_cts_names_the_type_that_it_draws_and_those_that_the_device_rejects() -> None:
    found = [looked(CTS, f"selection/{name}/ADD", made("half-precision"))[1] for name in ("with-fallback", "settings")]
    assert all(types.get(F32) in (None, "failed") for types in found)
    assert all(each == "unsupported" for types in found for kind, each in types.items() if kind in (F16, I32))
    cases = {case.name: case for case in CTS.cases(RUN)}
    rejecting = float32_alone()
    for known in (False, True):
        assert (rejecting in _refused) is known
        context = Context(rejecting, RUN, lambda stage: None)
        trial = AreaTrial(cases["selection/only/ADD/TENSOR_INT32"], context)
        with trial.held, pytest.raises(NotSupported):
            trial.sample()
        assert context.types.of_case("unsupported") == {I32: "unsupported"}


def test_a_graph_has_the_types_of_its_operations_and_fails_for_that_of_the_wrong_output() -> None:
    cases = {case.name: case for case in CTS.cases(RUN)}
    context = Context(discovery.cpu(), RUN, lambda stage: None)
    trial = AreaTrial(cases["graph/whole/0"], context)
    with trial.held:
        graph, compiled = own_graph(trial, 12)
        results = compiled(*graph.inputs())
    listed = list(results) if isinstance(results, tuple | list) else [results]
    wanted = {"float32": F32, "float16": F16, "int32": I32, "uint8": Q8, "int8": Q8S, "bool": "TENSOR_BOOL8"}
    assert set(context.types.of_case("passed")) == set(types_of(graph.model))
    number = len(listed) - 1
    wrong = [~y if y.dtype == bool else y + y.dtype.type(7) if n == number else y for n, y in enumerate(listed)]
    context.types.at("")
    with pytest.raises(CaseFailed):
        graph.check(graph.inputs(), wrong, "here")
    assert wanted[str(wrong[number].dtype)] == context.types.now


def test_the_types_of_a_model_are_those_of_the_first_data_of_each_operation() -> None:
    b = nnhal.Builder()
    x = b.input([2, 3])
    model = b.finish([x], [b.argmax(b.add(x, np.float32(1)), axis=1)])
    assert types_of(model) == [F32]
    several = next(each for each in cells(["HEATMAP_MAX_KEYPOINT"]) if each.kind == OperandType.TENSOR_QUANT8_ASYMM)
    drawn = model_of(draw(several, np.random.default_rng(0)))  # its boxes are of another type
    assert types_of(drawn) == [Q8] and "TENSOR_QUANT16_ASYMM" in {type_name(each.type) for each in drawn.main.operands}


def test_an_outcome_with_a_type_in_its_name_has_its_verdict() -> None:
    assert CaseOutcome("cts", "a", "failed", type=F32).by_type == {F32: "failed"}
    assert CaseOutcome("cts", "a", "passed").by_type == {"": "passed"}
    assert CaseOutcome("cts", "a", "failed", type=F32, types={F32: "failed", I32: "passed"}).by_type[I32] == "passed"
