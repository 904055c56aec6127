"""The suite `random`: the reference passes a sample, faults of running graphs are caught and reduced."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperandType, OperationType, operation_name
from nnhal.base.errors import OperationFailed
from nnhal.base.records import replace
from nnhal.conformance.evaluation import Evaluation, evaluate, moved
from nnhal.conformance.reduction import Reduction, ReductionCandidate, names_of, python_of, sizes_of
from nnhal.conformance.suites.random import SUITE as RANDOM
from nnhal.conformance.suites.random.trials import Subjects, failure
from nnhal.conformance.suites.run import run_suite
from nnhal.conformance.suites.suite import CaseOutcome, Context, SuiteRun
from nnhal.conformance.suites.worker import outcome_of
from nnhal.model.builder import ModelBuilder
from nnhal.model.file import write_model
from nnhal.model.graph import Model, State
from nnhal.ops.schema import B8, F32, I32, INT32, Q8, Bound
from nnhal.runtime import discovery
from tests.suites.faulty.application import DRIVER
from tests.suites.faulty.driver import VARIABLE
from tests.suites.faulty.driver.flow import PassedLost
from tests.suites.faulty.driver.operations import Every, Kernels

# Cases that have what the fault needs, and part of the reason; the whole suite has more.
CASES = {
    "arena-shared": ("graph/(3|5)/0", "under 4 threads"),
    "arena-early": ("graph/5/0", "differs in"),
    "same-operand": ("single/ADD/FLOAT32/.", "ADD on FLOAT32"),
    "wide-vector": ("single/ADD/FLOAT32/.", "1 operation"),
    "broadcast-left": ("broadcast/ADD/FLOAT32/0", "1 operation"),
    "unaligned": ("single/ADD/FLOAT32/.", "with unaligned memory"),
    "view-in-place": ("views/FLOAT32/0", "RESHAPE RELU on FLOAT32"),
    "deep-sums": ("wide/FULLY_CONNECTED/(FLOAT32|QUANT8_ASYMM)/0", "FULLY_CONNECTED/0/FLOAT32/wide"),
    "wide-channels": ("wide/CONV_2D/QUANT8_ASYMM_SIGNED/0", "CONV_2D/1/QUANT8_ASYMM_SIGNED/wide"),
    "rows-of-1024": ("wide/FULLY_CONNECTED/(FLOAT32|QUANT8_ASYMM)/0", "at [1024, 0]"),
    "fused-second-reader": ("fused/ADD/FLOAT32/0", "ADD RELU"),
    "shared-results": ("fused/AVERAGE_POOL_2D/FLOAT32/0", "AVERAGE_POOL_2D AVERAGE_POOL_2D on"),
    "first-unread": ("fused/SPLIT/FLOAT32/0", "1 operation: SPLIT on"),
    "inputs-sorted": ("graph/3/[1-3]", "faulty-inputs-sorted"),
    "outputs-sorted": ("graph/3/[1-3]", "ContractBroken: "),
    "unread-input": ("graph/2/[0-3]", "AssertionError"),
    "half-precision": ("hard/ADD/FLOAT32/0", "ADD/0/FLOAT32/hard"),
    "joined-constants": ("constants/1", "after MUL 5.42857, ADD 5.03316e+07, ADD -5.03316e+07"),
}


# Of control flow, on a driver of all operations.
FLOWS = {
    "while-in-place": ("flow/fibonacci/FLOAT32/.", "1 operation: WHILE on"),
    "while-copies-late": ("flow/rotated/FLOAT32/.", "1 operation: WHILE on"),
    "while-passed-lost": ("flow/passed/FLOAT32/.", "1 operation: WHILE on"),
    "while-result-once": ("flow/(twice|while)/FLOAT32/.", "1 operation: WHILE on"),
    "while-size-kept": ("flow/growing/FLOAT32/.", "1 operation: WHILE on"),
    "while-operands-overwritten": ("flow/drawn/FLOAT32/.", "WHILE on"),
    "while-constants-overwritten": ("flow/drawn/FLOAT32/.", "1 operation: WHILE on"),
    "while-condition-of-one": ("flow/passed/FLOAT32/.", "1 operation: WHILE on"),
    "while-none-unwritten": ("flow/(fibonacci|rotated)/FLOAT32/0", "1 operation: WHILE on"),
    "while-inside-continues": ("flow/while/FLOAT32/.", "1 operation: WHILE on"),
    "if-inside-first": ("flow/if/FLOAT32/.", "1 operation: WHILE on"),
    "if-operands-returned": ("flow/exchanged/FLOAT32/.", "1 operation: IF on"),
}


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Sequence[CaseOutcome]]:
    """Run the cases whose whole names fit. fault: of the faulty driver; None for the reference."""

    def run(pattern: str, fault: str | None = None, **how: Any) -> Sequence[CaseOutcome]:
        monkeypatch.setenv(VARIABLE, fault or "")
        drivers = (os.path.relpath(DRIVER),) if fault is not None else ()
        suite = SuiteRun(drivers=drivers, pattern=f"^({pattern})$", timeout=60.0, **how)
        return [outcome for some in run_suite("random", suite, 1) for outcome in some.outcomes]

    return run


def test_the_reference_passes_a_sample(outcomes: Any) -> None:
    found = outcomes(
        "graph/(2|5|13)/0|single/(CONV_2D|ADD|LSTM|IF|WHILE|RANDOM_MULTINOMIAL)/FLOAT32/0|hard/AVERAGE_POOL_2D/QUANT8_ASYMM/0"
    )
    assert len(found) == 10 and {o.verdict: o.reason for o in found} == {"passed": ""}


LONG = {"while-result-once"}  # its reduction takes 20 s
FAULTS = [pytest.param(each, marks=[pytest.mark.nightly] * (each in LONG)) for each in (*CASES, *FLOWS)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_running_graphs_is_caught(fault: str, outcomes: Any) -> None:
    pattern, reason = (CASES | FLOWS)[fault]
    found = outcomes(pattern, fault, scale=3.0)
    assert any(o.verdict == "failed" and reason in o.reason for o in found), found


def test_the_driver_without_a_fault_passes_the_same_cases(outcomes: Any) -> None:
    found = outcomes("|".join(dict.fromkeys(pattern for pattern, _ in CASES.values())), "whole-healthy", scale=3.0)
    assert len(found) == 25 and {o.verdict: o.reason for o in found} == {"passed": ""}


def test_the_reference_passes_control_flow_as_a_whole_and_by_the_runtime(outcomes: Any) -> None:
    found = outcomes("flow/[a-z]+/FLOAT32/0")
    assert len(found) == 13 and {o.verdict: o.reason for o in found} == {"passed": ""}
    assert {tuple(o.found["ways"]) for o in found} == {("whole", "unaligned", "interpreted")}


def test_control_flow_that_a_device_refuses_runs_around_what_it_supports(outcomes: Any) -> None:
    """The device supports ADD."""
    found = outcomes("flow/twice/FLOAT32/.", "healthy", scale=3.0)
    assert [(o.verdict, o.reason, o.found["ways"]) for o in found] == [("passed", "", ["interpreted"])] * 3
    found = outcomes("flow/twice/FLOAT32/.", "half-precision", scale=3.0)
    assert any("with control flow by the runtime, 100% on the device" in o.reason for o in found)


class LesserOne(Kernels):
    operation = "MAXIMUM"

    def kernel(self, a: Bound, kernel: Any, *arguments: Any) -> Any:
        return np.minimum(*arguments)


@pytest.mark.parametrize(
    ("engine", "case", "operation"),
    [
        (LesserOne, "flow/drawn/FLOAT32/0", "MAXIMUM"),
        (LesserOne, "flow/exchanged/FLOAT32/0", "MAXIMUM"),
        (PassedLost, "flow/loop/FLOAT32/0", "WHILE"),
    ],
)
def test_a_failure_is_that_of_the_operation_that_fails_alone(engine: type[Kernels], case: str, operation: str) -> None:
    """The one in a loop or branch, not the loop or the IF around it."""
    (chosen,) = (each for each in RANDOM.cases(SuiteRun(device="reference", scale=3.0)) if each.name == case)
    device = type("Faulty", (Every,), {"engine": engine})()
    outcome = outcome_of(RANDOM, chosen, Context(device, SuiteRun(device="reference"), lambda stage: None), ["suite"])
    assert outcome.verdict == "failed", outcome
    assert (outcome.operation, outcome.type) == (operation, "TENSOR_FLOAT32"), outcome


def test_a_failure_is_kept_as_a_model_that_loads_and_a_program_that_runs(outcomes: Any, tmp_path: Path) -> None:
    (failed,) = outcomes("graph/8/0", "unaligned", report=str(tmp_path))
    folder = Path(failed.found["files"])
    model = nnhal.load(folder / "reduced.nnhal")
    assert len(model.main.operations) == failed.found["operations"] < 8
    assert len(nnhal.load(folder / "model.nnhal").main.operations) == 8
    compile(program := (folder / "repro.py").read_text(), "repro.py", "exec")
    assert repr(str(DRIVER.absolute())) in program  # the program runs in any folder
    assert (folder / "model.svg").read_text().startswith("<svg") and len(np.load(folder / "inputs.npz")) == len(
        model.main.inputs
    )


def test_a_case_that_passes_keeps_nothing(outcomes: Any, tmp_path: Path) -> None:
    outcomes("graph/2/0", report=str(tmp_path))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


# ---------------------------------------------------------------------------------------------------- estimated errors


def chain(names: Sequence[str], size: int = 6) -> Model:
    """A chain of operations with one input, ADD with itself."""
    b = ModelBuilder("chain")
    first = at = b.operand(F32, (size,))
    for name in names:
        made = b.operand(F32, (size,))
        b.operation(name, [at, at, b.constant(INT32, 0)] if name in ("ADD", "MUL") else [at], [made])
        at = made
    return b.finish([first], [at])


X = np.array([0.5, -1.5, 2.0, 3.0, -0.25, 1.0], np.float32)


def test_operations_that_move_elements_leave_no_tolerance() -> None:
    found = evaluate(chain(["ABS", "NEG", "RELU"]), [X])
    assert not found.rooms[0].any()
    assert found.differences([np.zeros(6, np.float32)]) == ""
    assert "must be 0 within 0" in found.differences([np.full(6, 1e-7, np.float32)])


def test_errors_grow_with_the_operations_behind_them() -> None:
    (near,), (far,) = evaluate(chain(["TANH"]), [X]).rooms, evaluate(chain(["TANH", *["ADD"] * 6]), [X]).rooms
    assert (far > 32 * near / 4).all() and (far < 1e-2).all()  # six doublings: 64 times the error


def test_a_correct_result_in_double_precision_is_within_the_tolerance() -> None:
    wanted = np.tanh(X.astype("f8")) * 8
    found = evaluate(chain(["TANH", "ADD", "ADD", "ADD"]), [X])
    assert found.differences([wanted.astype("f4")]) == ""
    assert found.differences([(wanted * 1.001).astype("f4")])


def test_each_quantised_element_has_a_step_of_tolerance_behind_a_pad() -> None:
    """Padding, which has no errors, lowers the average of the tensor."""
    b, size = ModelBuilder("padded"), 4096
    x = b.operand(Q8, (size,), scale=0.05, zero_point=128)
    y, padded = (b.operand(Q8, (n,), scale=1 / 256) for n in (size, 16 * size))
    b.operation("LOGISTIC", [x], [y])
    b.operation("PAD", [y, b.constant(I32, [[0, 15 * size]])], [padded])
    found = evaluate(b.finish([x], [padded]), [np.arange(size).astype(np.uint8) % 100 + 80])
    assert (found.rooms[0][:size] >= 1).all() and (found.rooms[0][size:] < 1).all()


# ----------------------------------------------------------------------------------------------------------- reduction


def test_a_reduction_ends_with_the_operation_and_the_size_that_fail() -> None:
    def fails(candidate: ReductionCandidate) -> bool:
        widest = max((s for _, s in sizes_of(candidate.model)), default=1)
        return "TANH" in names_of(candidate.model) and widest >= 5

    found = Reduction(fails).reduce(ReductionCandidate(chain(["ABS", "ADD", "TANH", "NEG", "MUL", "RELU"], 100))).model
    assert list(names_of(found)) == ["TANH"] and [s for _, s in sizes_of(found)] == [5]


def test_a_reduction_passes_intermediate_values_to_what_is_left() -> None:
    def values(candidate: ReductionCandidate) -> dict[int, np.ndarray]:
        assert candidate.inputs is not None
        main = candidate.model.main
        found = dict(zip(main.inputs, candidate.inputs, strict=True))
        for operation in main.operations:  # by hand: NEG and ABS
            x = found[operation.inputs[0]]
            found[operation.outputs[0]] = -x if operation.type == OperationType.NEG else np.abs(x)
        return found

    def fails(candidate: ReductionCandidate) -> bool:
        assert candidate.inputs is not None
        return list(names_of(candidate.model))[-1] == "NEG" and float(candidate.inputs[0].min()) >= 0

    first = ReductionCandidate(chain(["ABS", "NEG"]), (X,))
    found = Reduction(fails, values).reduce(first)
    assert list(names_of(found.model)) == ["NEG"] and found.inputs is not None and (found.inputs[0] >= 0).all()


def counting(body: Callable[[ModelBuilder, int, int], tuple[int, int]], limit: int = 3) -> Model:
    """A WHILE over a counter and two variables of 12 elements."""
    b = ModelBuilder("counting")
    given = [b.operand(I32, (1,)), b.operand(F32, (12,)), b.operand(F32, (12,))]
    first, second = b.subgraph(), b.subgraph()
    inputs = [[each.operand(I32, (1,)), each.operand(F32, (12,)), each.operand(F32, (12,))] for each in (first, second)]
    goes_on = first.operand(B8, (1,))
    first.operation("LESS", [inputs[0][0], first.constant(I32, [limit])], [goes_on])
    condition = first.finish_subgraph(inputs[0], [goes_on])
    n = second.operand(I32, (1,))
    second.operation("ADD", [inputs[1][0], second.constant(I32, [1]), second.constant(INT32, 0)], [n])
    inside = second.finish_subgraph(inputs[1], [n, *body(second, *inputs[1][1:])])
    results = [b.operand(I32, (1,)), b.operand(F32, (12,)), b.operand(F32, (12,))]
    graphs = [b.subgraph_operand(OperandType.SUBGRAPH, each) for each in (condition, inside)]
    b.operation("WHILE", [*graphs, *given], results)
    return b.finish(given, results)


def unary(b: ModelBuilder, name: str, x: int) -> int:
    made = b.operand(F32, (12,))
    b.operation(name, [x], [made])
    return made


def branching(b: ModelBuilder, x: int) -> int:
    """An IF whose branches are ABS and NEG; it takes the first."""
    branches = []
    for name in ("ABS", "NEG"):
        sub = b.subgraph()
        given = sub.operand(F32, (12,))
        branches.append(sub.finish_subgraph([given], [unary(sub, name, given)]))
    made = b.operand(F32, (12,))
    graphs = [b.subgraph_operand(OperandType.SUBGRAPH, each) for each in branches]
    b.operation("IF", [b.constant(B8, [True]), *graphs, x], [made])
    return made


def test_a_reduction_leaves_one_operation_and_copies_in_a_body_and_the_size_that_fails() -> None:
    def fails(candidate: ReductionCandidate) -> bool:
        inside = [o.type for graph in candidate.model.referenced for o in graph.operations]
        return OperationType.NEG in inside and max((s for _, s in sizes_of(candidate.model)), default=1) >= 5

    model = counting(lambda b, x, y: (unary(b, "TANH", unary(b, "NEG", unary(b, "ABS", y))), unary(b, "ABS", x)))
    found = Reduction(fails).reduce(ReductionCandidate(model)).model
    assert [operation_name(o.type) for o in found.referenced[1].operations] == ["MAXIMUM", "NEG", "MAXIMUM", "MAXIMUM"]
    assert {o.dimensions for o in found.referenced[1].operands if o.type == F32} == {(5,)}


@pytest.mark.parametrize("given", [False, True], ids=["without-inputs", "with-inputs"])
def test_a_called_subgraph_that_fails_alone_is_what_a_reduction_ends_with(given: bool) -> None:
    """The body of the loop calls the branch that fails."""

    def fails(candidate: ReductionCandidate) -> bool:
        everywhere = [o.type for graph in candidate.model.subgraphs for o in graph.operations]
        return OperationType.NEG in everywhere and (candidate.inputs is None) is not given

    def values(candidate: ReductionCandidate) -> dict[int, np.ndarray]:
        run = Evaluation(candidate.model)
        run.graph(0, candidate.inputs or ())
        return run.values

    arrays = np.zeros(1, np.int32), np.full(12, 2, np.float32), np.full(12, -3, np.float32)
    first = ReductionCandidate(
        counting(lambda b, x, y: (branching(b, x), unary(b, "ABS", y))), arrays if given else None
    )
    found = Reduction(fails, values if given else None).reduce(first)
    assert list(names_of(found.model)) == ["NEG"] and not found.model.referenced
    assert found.inputs is None or [x.tolist() for x in found.inputs] == [[2.0]]


def test_a_reduction_removes_subgraphs_that_nothing_calls_any_more() -> None:
    def fails(candidate: ReductionCandidate) -> bool:
        return any(o.type == OperationType.NEG for graph in candidate.model.referenced[-1:] for o in graph.operations)

    model = counting(lambda b, x, y: (branching(b, x), unary(b, "NEG", y)))
    assert len(model.referenced) == 4
    assert len(Reduction(fails).reduce(ReductionCandidate(model)).model.referenced) == 2


def test_a_loop_that_a_reduction_made_endless_fails() -> None:
    model = counting(lambda b, x, y: (unary(b, "ABS", x), unary(b, "ABS", y)), 2**31 - 1)
    with pytest.raises(OperationFailed, match="WHILE: has made 64 iterations, must end within these"):
        evaluate(model, [np.zeros(1, np.int32), np.ones(12, np.float32), np.ones(12, np.float32)])


def test_a_state_is_an_ordinary_input_where_the_runtime_executes_control_flow() -> None:
    model = counting(lambda b, x, y: (unary(b, "ABS", y), unary(b, "NEG", x)))
    model = replace(model, states=(State(1, 1, np.zeros(12, np.float32)),))
    inputs = [np.zeros(1, np.int32), np.ones(12, np.float32), np.full(12, 2, np.float32)]
    assert failure("interpreted", Subjects(discovery.cpu(), model, [inputs], lambda stage: None)) == ("", "")


def test_the_program_of_a_failure_runs_control_flow_by_the_runtime(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = counting(lambda b, x, y: (unary(b, "ABS", y), unary(b, "NEG", x)))
    write_model(model, tmp_path / "model.nnhal")
    np.savez(
        tmp_path / "inputs.npz", input_0=np.zeros(1, np.int32), input_1=np.ones(12, "f4"), input_2=np.ones(12, "f4")
    )
    program = python_of(model, "model.nnhal", "inputs.npz", "reference", 3)
    exec(compile(program, "repro.py", "exec"), {"__file__": str(tmp_path / "repro.py"), "__name__": "repro"})
    assert "interpreted_model(model, discovery.load_one(device), share, 3)" in program
    assert capsys.readouterr().out.splitlines() == [f"output {n}: off by at most 0" for n in (0, 1, 2)] * 2


def test_a_reduction_that_never_fails_returns_what_it_was_given() -> None:
    first = ReductionCandidate(chain(["ABS", "NEG"]))
    assert Reduction(lambda _: False).reduce(first) is first


def test_a_result_of_another_shape_than_the_exact_one_gets_no_error() -> None:
    rng = np.random.default_rng(0)
    assert np.array_equal(moved(X[:5], np.ones(6), rng), X[:5])
    assert not np.array_equal(moved(X, np.ones(6), rng), X)
