"""IF and WHILE drawn: models that are what they are said to be, and drivers whose control flow is wrong."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import OperationType, operation_name
from nnhal.base.errors import LoopTimeout
from nnhal.conformance.control import COUNTINGS, ROUNDS, IfCall, WhileCall, endless_loop, sources
from nnhal.conformance.differential import arrays_of, compare_outputs, model_of, other_constants, with_other_values
from nnhal.conformance.draw import Call
from nnhal.conformance.validate import limits
from nnhal.conformance.validate.drawing import Drawing
from nnhal.conformance.validate.trial import NotAccepted, Trial, by_reference, open_trial
from nnhal.drivers.reference import Reference
from nnhal.hal.device import Hints, Prepared, Verdict
from nnhal.hal.request import Control
from nnhal.model.graph import CONSTANTS, Model
from nnhal.model.validate import validate
from nnhal.ops.schema import F32
from nnhal.runtime import discovery
from tests.conformance.test_checks import looked, trial_of


def drawn(name: str, *operations: str) -> list[Call]:
    """Calls around these operations, or around all."""

    def takes(model: Model) -> bool:
        return not operations or operation_name(model.main.operations[0].type) in operations

    rng = np.random.default_rng(0)
    return [call for source in sources(name, rng, takes) if (call := source(rng)) is not None]


def contents_of(call: Call) -> list[Any]:
    """What is equal for equal models, wherever their constants lie."""
    model = model_of(call)
    return [
        (
            graph.operations,
            [(o, model.constant(o).tobytes() if o.lifetime in CONSTANTS else b"") for o in graph.operands],
        )
        for graph in model.subgraphs
    ]


def given(call: Call) -> list[Any]:
    """What the reference gives for it."""
    return by_reference(model_of(call), arrays_of(call))


# ------------------------------------------------------------------------------------------------------------ what is drawn


@pytest.mark.parametrize("name", ["IF", "WHILE"])
def test_each_is_valid_and_runs_on_the_reference_as_it_is_judged(name: str) -> None:
    several = drawn(name)
    assert len(several) >= 16 and len({call.cell.inner for call in several}) > 8  # type: ignore[attr-defined]
    for call in several:
        assert [operation.type for operation in model_of(call).main.operations] == [OperationType[name]]
        assert compare_outputs(call, given(call), given(call)) == ""
        assert contents_of(call) == contents_of(call)


def test_an_if_gives_what_its_branch_gives_and_the_other_one_something_else() -> None:
    several = drawn("IF", "ADD", "MUL", "CONV_2D", "RESHAPE")
    differ = 0
    for call in several:
        assert isinstance(call, IfCall)
        branch, other = (call.then, call.other) if call.condition else (call.other, call.then)
        assert compare_outputs(branch, given(branch), given(call)) == ""
        differ += compare_outputs(other, given(other), given(call)) != ""
    assert differ > 0.5 * len(several)  # some saturate


def test_conditions_are_true_and_false_given_and_constant() -> None:
    assert {call.variety for call in drawn("IF")} >= {(True, True), (False, True), (False, False)}


@pytest.mark.parametrize(("name", "every"), [("IF", 4), ("WHILE", 5)])
def test_the_last_of_so_many_has_a_constant_condition_or_limit(name: str, every: int) -> None:
    rng = np.random.default_rng(0)
    made = [source(rng) for source in sources(name, rng, lambda _: True)]
    constant = {
        n for n, call in enumerate(made) if not getattr(call, "condition_given", getattr(call, "limit_given", 1))
    }
    assert len(constant) > 2 and {n % every for n in constant} == {every - 1}


def test_a_while_gives_its_start_after_no_round_and_what_the_body_gives_after_others() -> None:
    seen = set()
    for call in drawn("WHILE"):
        assert isinstance(call, WhileCall)
        counter, *results = given(call)
        seen.add((call.rounds, call.carried is None))
        assert abs(counter) == call.rounds
        if not call.rounds:
            assert [r.tobytes() for r in results] == [v.array.tobytes() for v in call.start]
        elif call.carried is None:
            assert compare_outputs(call.inner, given(call.inner), results) == ""
        else:
            inner = call.inner
            for _ in range(call.rounds):
                y = replace(inner.inputs[call.carried], data=given(inner)[0])  # type: ignore[type-var]
                inner = replace(inner, inputs=(*inner.inputs[: call.carried], y, *inner.inputs[call.carried + 1 :]))
            np.testing.assert_array_equal(y.data, results[0])
    assert {rounds for rounds, _ in seen} == {*ROUNDS} and len(seen) > len(ROUNDS)


@pytest.mark.parametrize("counting", COUNTINGS, ids=lambda c: f"{c.kind}-{c.comparison}")
def test_each_way_of_counting_is_drawn_where_it_is_taken(counting: Any) -> None:
    calls = drawn("WHILE")
    assert any(isinstance(call, WhileCall) and call.counting == counting for call in calls)


def test_loops_count_by_what_is_taken() -> None:
    for call in drawn("WHILE", "GREATER", "SUB", "TANH"):
        assert isinstance(call, WhileCall) and (call.counting.comparison, call.counting.step) == ("GREATER", "SUB")
    for call in drawn("WHILE", "TANH"):
        assert isinstance(call, WhileCall) and call.counting == COUNTINGS[0]


def test_other_inputs_take_the_other_branch_and_go_round_another_number_of_times() -> None:
    rng = np.random.default_rng(0)
    for call in drawn("IF", "ADD"):
        assert isinstance(call, IfCall)
        other = with_other_values(call, rng)
        assert (other.condition != call.condition) == call.condition_given
        assert contents_of(other) == contents_of(call)
        assert compare_outputs(other, given(other), given(other)) == ""
    for call in drawn("WHILE", "ADD", "LESS"):
        assert isinstance(call, WhileCall)
        other_loop = with_other_values(call, rng)
        assert (other_loop.rounds != call.rounds) == call.limit_given
        assert contents_of(other_loop) == contents_of(call)
        assert compare_outputs(other_loop, given(other_loop), given(other_loop)) == ""


def test_other_constants_are_those_inside() -> None:
    rng = np.random.default_rng(0)
    for name in ("IF", "WHILE"):
        several = [call for call in drawn(name, "CONV_2D", "ADD", "LESS") if call.constants]
        changed = [contents_of(other_constants(call, rng)) != contents_of(call) for call in several]
        assert sum(changed) > 0.75 * len(several) > 0  # one number in another order is itself


@pytest.mark.parametrize("number", range(len(COUNTINGS)))
def test_a_loop_without_an_end_has_none(number: int) -> None:
    call = next(c for c in drawn("WHILE", "TANH", "LESS", "GREATER", "NOT_EQUAL", "ADD", "SUB")
                if isinstance(c, WhileCall) and c.counting == COUNTINGS[number])  # fmt: skip
    prepared = Reference().prepare(model_of(endless_loop(call)), Hints())
    request = prepared.request(arrays_of(endless_loop(call)))
    with pytest.raises(Exception, match="must end within its loop time-out"):
        request.execute(prepared.run, Control(loop_timeout=20_000_000))


def test_small_errors_of_a_carried_result_may_add_up_and_no_more() -> None:
    call = next(
        c
        for c in drawn("WHILE", "ADD", "LESS")
        if isinstance(c, WhileCall) and c.carried is not None and c.rounds == 5 and c.inner.cell.kind == F32
    )
    counter, y = given(call)
    fine, bad = ((y + n * np.abs(y) * 1e-5 + n * 1e-5).astype(np.float32) for n in (0.5, 50))
    assert compare_outputs(call, [counter, y], [counter, fine]) == ""
    assert "after 5 iterations: output 1 differs" in compare_outputs(call, [counter, y], [counter, bad])
    assert "the counter" in compare_outputs(call, [counter, y], [counter + 1, y])
    assert "must be" in compare_outputs(call, [counter, y], [counter, None])


@pytest.mark.parametrize("rounds", [0, 5])
def test_nan_agrees_with_nan_and_with_no_number(rounds: int) -> None:
    call = next(
        c
        for c in drawn("WHILE", "ADD", "LESS")
        if isinstance(c, WhileCall) and c.carried is not None and c.rounds == rounds and c.inner.cell.kind == F32
    )
    counter, y = given(call)
    none = y.copy()
    none.flat[0] = np.nan
    assert compare_outputs(call, [counter, none], [counter, none.copy()]) == ""
    for wanted, actual in ((y, none), (none, y)):
        said = compare_outputs(call, [counter, wanted], [counter, actual])
        assert said == f"after {rounds} iterations: output 1 differs in 1 of {y.size}"


# ---------------------------------------------------------------------------------------------------------- who is found


class Altered(Prepared):
    """What an execution is given is changed before the reference runs it."""

    def __init__(self, inner: Prepared, model: Model, alter: Callable[[Any, list[Any]], Control | None]) -> None:
        self.inner, self.held, self.alter, self.first = inner, model, alter, {}  # type: ignore[var-annotated]

    def run(self, request: Any, control: Any) -> Any:
        arrays = list(request.inputs)
        control = self.alter(self, arrays) or control
        inner = request.inside(arrays, None)
        inner.execute(self.inner.run, control)
        for n, result in enumerate(inner.results):
            request.write(n, result)

    def place(self, operand: int) -> int | None:
        """The input of the model that an input of the operation is, None where it is a constant."""
        main = self.held.main
        index = main.operations[0].inputs[operand]
        return main.inputs.index(index) if index in main.inputs else None


def altered(alter: Callable[[Any, list[Any]], Control | None]) -> Reference:
    """A device that has its faults in control flow only."""

    class Device(Reference):
        name = "altered"

        def prepare(self, model: Any, hints: Any) -> Any:
            inner = super().prepare(model, hints)
            control = model.main.operations[0].type in (OperationType.IF, OperationType.WHILE)
            return Altered(inner, model, alter) if control else inner

    return Device()


def then_always(self: Any, arrays: list[Any]) -> None:
    place = self.place(0)
    if place is not None:
        arrays[place] = np.ones_like(arrays[place])


def first_condition(self: Any, arrays: list[Any]) -> None:
    place = self.place(0)
    if place is not None:
        arrays[place] = self.first.setdefault(place, arrays[place].copy())


def limit_of(self: Any) -> int | None:
    outputs = len(self.held.main.outputs)
    return self.place(2 + outputs)  # type: ignore[no-any-return]


def one_too_many(self: Any, arrays: list[Any]) -> None:
    place = limit_of(self)
    if place is not None and arrays[place] > 0:
        arrays[place] = arrays[place] + arrays[place].dtype.type(1)


def once_at_least(self: Any, arrays: list[Any]) -> None:
    place = limit_of(self)
    if place is not None and arrays[place] == 0:
        arrays[place] = arrays[place] + arrays[place].dtype.type(1)


def stale_state(self: Any, arrays: list[Any]) -> None:
    """Loops begin where those of the first execution did."""
    for n in range(len(self.held.main.outputs)):
        place = self.place(2 + n)
        arrays[place] = self.first.setdefault(place, arrays[place].copy())


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("alter", "operation", "check"),
    [
        (then_always, "IF", "values"), (first_condition, "IF", "stale-output"), (first_condition, "IF", "order"),
        (one_too_many, "WHILE", "values"), (once_at_least, "WHILE", "values"), (stale_state, "WHILE", "stale-output"),
    ],
)  # fmt: skip
def test_control_flow_that_is_wrong_is_found(alter: Any, operation: str, check: str) -> None:
    assert looked(altered(alter), check, operation)[0] == "failed"
    assert looked(altered(lambda *_: None), check, operation)[0] == "passed"


def test_a_loop_that_does_not_look_at_its_time_out_is_found() -> None:
    def patient(self: Any, arrays: list[Any]) -> Control:
        return Control(loop_timeout=400_000_000)

    verdict, reason, _ = looked(altered(patient), "loop-timeout", "WHILE")
    assert verdict == "failed" and "after the timeout of its loop" in reason
    assert looked(Reference(), "loop-timeout", "WHILE") == ("passed", "", "")


def test_a_loop_that_gives_up_early_or_has_a_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Early(Altered):
        def run(self, request: Any, control: Any) -> Any:
            if control.loop_timeout == limits.SHORT_NS:
                raise LoopTimeout("at once")
            return super().run(request, control)

    class Device(Reference):
        name = "early"

        def prepare(self, model: Any, hints: Any) -> Any:
            return Early(super().prepare(model, hints), model, lambda *_: None)

    def ended(self: Any, arrays: list[Any]) -> None:
        place = limit_of(self)
        if (place is not None and abs(arrays[place]) > 10) or arrays[place] < 0:
            arrays[place] = np.zeros_like(arrays[place])

    with monkeypatch.context() as patched:
        patched.setattr(limits, "time", SimpleNamespace(monotonic_ns=lambda: 0))
        verdict, reason, _ = looked(Device(), "loop-timeout", "WHILE")
    assert (verdict, reason) == ("failed", "LoopTimeout after 0.0 ms, must be after the timeout of 20 ms")
    verdict, reason, _ = looked(altered(ended), "loop-timeout", "WHILE")
    assert (verdict, reason) == ("failed", "an endless loop has a result, must be LoopTimeout")


def test_what_stands_inside_is_what_the_driver_takes() -> None:
    class Few(Reference):
        def supports(self, model: Any) -> Any:
            names = "IF", "WHILE", "MUL", "LESS", "ADD"
            graphs = validate(model).subgraphs
            inside = all(a.op.name in names for graph in graphs for a in graph.operations)  # type: ignore[union-attr]
            return [Verdict(inside, "few")] * len(model.main.operations)

    for operation in ("IF", "WHILE"):
        trial = trial_of(Few(), operation)
        assert {call.cell.inner for call, _ in trial.calls.taken()} <= {"MUL", "LESS", "ADD"}  # type: ignore[attr-defined]
        assert len(trial.calls.taken()) == len(trial.calls.drawing.calls) >= 4


def test_a_driver_without_control_flow_is_asked_and_its_reason_told() -> None:
    class Plain(Reference):
        def supports(self, model: Any) -> Any:
            return [Verdict(not model.referenced, "no branches here")] * len(model.main.operations)

    with pytest.raises(NotAccepted, match="no branches here"):
        trial_of(Plain(), "WHILE").calls.samples()


def test_samples_go_round_no_time_once_and_several_times() -> None:
    with open_trial(Trial(discovery.cpu(), Drawing("WHILE", 0, 1), lambda stage: None, isolated=False)) as trial:
        rounds = [call.rounds for call, _ in trial.calls.samples()]  # type: ignore[attr-defined]
    assert len({*rounds}) >= 3
