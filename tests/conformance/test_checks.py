"""How far each check looks: at which of its executions a fault is seen, what it does not ask, and what it lets pass."""

import itertools
import os
from collections import Counter
from copy import copy
from functools import cache
from typing import Any

import numpy as np
import pytest

from nnhal.base.errors import DeadObject, InvalidArgument, OperationFailed
from nnhal.base.levels import V1_1, V1_2, V1_3
from nnhal.conformance.differential import other_constants
from nnhal.conformance.validate.check import CHECKS
from nnhal.conformance.validate.drawing import Drawing
from nnhal.conformance.validate.run import Validation
from nnhal.conformance.validate.trial import (
    AFTER,
    NotAccepted,
    ProcessDied,
    RequirementNotMet,
    Trial,
    open_trial,
)
from nnhal.conformance.validate.worker import outcome_of
from nnhal.hal.device import Hints, Verdict
from nnhal.hal.host import HostBuffer, LocalBurst
from nnhal.hal.request import Timing
from nnhal.runtime import discovery
from tests.conformance.test_validate import ADD, QUANTIZE, Healthy, device, giving, running, timed


@cache
def drawn(operation: str, draws: int) -> Drawing:
    """As it is drawn: no device has seen it."""
    return Drawing(operation, 0, draws)


def trial_of(made: Any, operation: str = ADD, draws: int = 1, stages: list[str] | None = None) -> Trial:
    drawing = copy(drawn(operation, draws))
    drawing.refused, drawing.kept = [], []
    asked = [] if stages is None else stages
    return Trial(made, drawing, lambda at: at.startswith(AFTER) or asked.append(at), isolated=False)


def looked(made: Any, name: str, operation: str) -> tuple[str, str, str]:
    with open_trial(trial_of(made, operation)) as trial:
        return outcome_of(CHECKS[name], trial)


def spoilt(y: Any) -> Any:
    return y + y.dtype.type(3) if np.isfinite(y).all() else np.zeros_like(y)


def wrong_at(number: int) -> Any:
    """A device that is wrong at one execution of each prepared model, counted from 0."""

    def give(self: Any, request: Any, result: Any) -> None:
        self.count = getattr(self, "count", -1) + 1
        request.write(0, spoilt(result) if self.count == number else result)

    return giving(give)


# How often a check runs one prepared model.
RUNS = {"stale-output": 5, "same-memory": 2, "order": 9, "deterministic": 8, "interleaved": 5, "prepared-twice": 2}


@pytest.mark.parametrize(("name", "number"), [(name, n) for name, runs in RUNS.items() for n in range(1, runs)])
def test_every_execution_but_the_first_is_compared(name: str, number: int) -> None:
    verdict, reason, place = looked(wrong_at(number), name, ADD)
    assert verdict == "failed" and "output 0 differs" in reason and place.startswith("test_validate.py:")


@pytest.mark.parametrize("name", RUNS)
def test_a_prepared_model_runs_so_often_and_no_more(name: str) -> None:
    assert looked(wrong_at(RUNS[name]), name, ADD) == ("passed", "", "")


@pytest.mark.parametrize("number", range(12))
def test_each_execution_of_two_bursts_is_compared(number: int) -> None:
    count = []

    class Burst(LocalBurst):
        def run(self, request: Any, control: Any) -> Any:
            count.append(request)
            if len(count) == number + 1:
                request.write(0, np.zeros(request.signature.outputs[0].fixed, np.float32))
                return None
            return super().run(request, control)

    def burst(self: Any) -> Burst:
        return Burst(self)

    made = device(prepared=type("P", (Healthy,), {"burst": burst}))
    verdict, reason, _ = looked(made, "burst", ADD)
    same = ", in the memory of the execution before" * (number % 6 > 3)
    assert (verdict, f"in a burst{same}: output 0 differs" in reason) == ("failed", True)


def test_a_burst_that_was_closed_executes_nothing() -> None:
    class Open(LocalBurst):
        def close(self) -> None:
            pass

    def burst(self: Any) -> Open:
        return Open(self)

    made = device(prepared=type("P", (Healthy,), {"burst": burst}))
    verdict, reason, _ = looked(made, "burst", ADD)
    assert (verdict, reason) == ("failed", "a burst that was closed executes, must raise Closed")


@pytest.mark.parametrize("number", [0, 7, 15, 16, 31])
def test_each_of_many_prepared_models_is_compared_and_those_that_come_after_them(number: int) -> None:
    def prepare(self: Any, model: Any, hints: Any) -> Any:
        self.count = getattr(self, "count", -1) + 1
        made = Healthy(model, self)
        if self.count == number + 1:  # behind the one that runs alone
            made.give = lambda request, y: request.write(0, spoilt(y))  # type: ignore[method-assign]
        return made

    verdict, reason, _ = looked(device(prepare=prepare), "many-prepared", ADD)
    assert verdict == "failed" and reason.startswith(f"prepared model {number % 16 + 1} of 16: output 0 differs")


# ------------------------------------------------------------------------------------------------------ what is not asked

RANDOM = (
    *("values", "steps", "stale-output", "same-memory", "order", "deterministic", "interleaved", "intermediates"),
    "relaxed",
    *("threads", "burst", "fenced", "allocation", "many-prepared", "hints"),
)


def test_samples_of_another_generator_are_no_wrong_values_and_of_what_is_not_taken_nothing_is_said() -> None:
    sampling = "RANDOM_MULTINOMIAL"
    assert looked(discovery.cpu(), "values", sampling) == ("skipped", "its results are random", "")
    assert looked(discovery.cpu(), "values", "ADD")[0] == "passed"
    assert looked(device(), "values", sampling)[0] == "unsupported"


def of_random_results(made: Any, name: str) -> tuple[str, str, str]:
    with open_trial(trial_of(made)) as trial:
        trial.calls.random = True
        return outcome_of(CHECKS[name], trial)


@pytest.mark.parametrize("name", RANDOM)
def test_random_results_are_not_compared(name: str) -> None:
    assert of_random_results(device(), name) == ("skipped", "its results are random", "")


@pytest.mark.parametrize("name", ["cancellation", "malformed-request", "prepared-twice", "callback", "deadline"])
def test_other_checks_are_of_operations_with_random_results_too_and_compare_none(name: str) -> None:
    made = giving(lambda self, request, y: request.write(0, np.random.default_rng().random(y.shape, np.float32)))
    assert of_random_results(made, name) == ("passed", "", "")
    assert looked(made, name, ADD)[0] == "failed"


@pytest.mark.parametrize(
    ("name", "what", "since", "below"),
    [
        ("burst", "bursts", V1_2, V1_1), ("fenced", "fenced executions", V1_3, V1_2),
        ("allocation", "driver memory", V1_3, V1_2),
        ("allocation-roles", "driver memory", V1_3, V1_2),
    ],
)  # fmt: skip
def test_what_a_level_does_not_have_is_not_asked(name: str, what: str, since: Any, below: Any) -> None:
    told = f"{what} exist since HAL {since}, the device has HAL {below}"
    assert looked(device(level=below), name, ADD) == ("skipped", told, "")
    assert looked(device(level=since), name, ADD)[0] == "passed"
    assert looked(device(level=below), name, "MUL")[0] == "unsupported"  # of what is not taken nothing is said


def test_what_needs_the_driver_in_this_process_is_not_asked_of_another() -> None:
    for name, check in CHECKS.items():
        if check.inside:
            with open_trial(trial_of(device())) as trial:
                trial.isolated = True
                told = "needs the driver in this process (without --isolate)"
                assert outcome_of(check, trial) == ("skipped", told, ""), name
    assert Counter(check.inside for check in CHECKS.values())[True] == 7


# ---------------------------------------------------------------------------------------------------------- what is true


@pytest.mark.parametrize(
    ("timing", "verdict"),
    [
        (None, "skipped"), (Timing(None, None), "skipped"), (Timing(0, 0), "passed"), (Timing(1, 1), "passed"),
        (Timing(1, None), "passed"), (Timing(None, 1), "passed"), (Timing(1, 2), "passed"), (Timing(2, 1), "failed"),
        (Timing(-1, 2), "failed"), (Timing(None, -1), "failed"), (Timing(10**15, None), "failed"),
        (Timing(1, 10**15), "failed"), ((1, 2, 3), "failed"), ((1,), "failed"), ((1.0, 2), "failed"), ([1, 2], "failed"),
        ((True, 2), "failed"),
    ],
)  # fmt: skip
def test_times_are_whole_not_negative_part_of_each_other_and_of_the_call(timing: Any, verdict: str) -> None:
    assert looked(running(timed(timing)), "timing", ADD)[0] == verdict


@pytest.mark.parametrize("before", [None, "1"])
def test_a_callback_is_asked_for_and_the_environment_is_as_before(before: str | None, monkeypatch: Any) -> None:
    seen = []
    monkeypatch.delenv("NNHAL_SYNC_EXEC", raising=False)
    if before is not None:
        monkeypatch.setenv("NNHAL_SYNC_EXEC", before)

    def execute(self: Any, request: Any, control: Any, notify: Any) -> None:
        seen.append(os.environ["NNHAL_SYNC_EXEC"])
        super(type(self), self).execute(request, control, notify)

    made = device(prepared=type("P", (Healthy,), {"execute": execute}))
    assert looked(made, "callback", ADD)[0] == "passed"
    assert set(seen) == {"0"} and os.environ.get("NNHAL_SYNC_EXEC") == before


def test_a_callback_with_an_error_is_that_error() -> None:
    def execute(self: Any, request: Any, control: Any, notify: Any) -> None:
        notify(OperationFailed("not today"), None)

    made = device(prepared=type("P", (Healthy,), {"execute": execute}))
    verdict, reason, _ = looked(made, "callback", ADD)
    assert (verdict, reason) == ("failed", "OperationFailed: not today")


BAD_ROLES = {
    "no roles": lambda desc, roles: not roles,
    "an unknown input": lambda desc, roles: bool(roles) and roles[0].index == 99,
    "a role twice": lambda desc, roles: len(roles) == 2,
    "another shape than the input's": lambda desc, roles: desc.dimensions[-1:] == (7,) and len(roles) == 1,
}


@pytest.mark.parametrize("what", BAD_ROLES)
def test_memory_is_given_for_none_of_the_roles_that_cannot_be(what: str) -> None:
    def lax(self: Any, desc: Any, roles: Any) -> Any:
        return Given() if BAD_ROLES[what](desc, roles) else HostBuffer(desc, roles)

    def other(self: Any, desc: Any, roles: Any) -> Any:
        if BAD_ROLES[what](desc, roles):
            raise OperationFailed("no")
        return HostBuffer(desc, roles)

    class Given:
        def close(self) -> None:
            pass

    verdict, reason, _ = looked(device(allocate=lax), "allocation-roles", ADD)
    assert (verdict, reason) == ("failed", f"allocate() returns memory for {what}, must be InvalidArgument")
    verdict, reason, _ = looked(device(allocate=other), "allocation-roles", ADD)
    assert (verdict, reason) == ("failed", f"allocate() for {what}: OperationFailed: no, must be InvalidArgument")


# ---------------------------------------------------------------------------------------------------------------- a trial


def test_calls_are_the_same_of_the_same_seed_and_others_of_another() -> None:
    def seen(seed: int) -> list[Any]:
        return [
            (str(c.cell), [None if v is None else v.array.tobytes() for v in c.inputs])
            for c, _ in Drawing(ADD, seed, 2).calls
        ]

    assert seen(0) == seen(0) != seen(1)
    found = Counter(str(call.cell) for call, _ in Drawing(ADD, 0, 3).calls if not call.late)
    assert set(found.values()) == {3} and len(found) > 20
    assert 0.05 < sum(call.open for call, _ in Drawing(ADD, 0, 3).calls) / sum(found.values()) < 0.3


def test_more_calls_are_three_times_as_many_of_the_cells_that_are_taken() -> None:
    calls = trial_of(device()).calls
    taken = {str(call.cell) for call, _ in calls.taken()}
    assert taken and all(cell.startswith("ADD/0/FLOAT32/") for cell in taken)
    assert Counter(str(call.cell) for call, _ in calls.drawing.more(calls.taken())) == dict.fromkeys(taken, 3)
    several = list(calls.many())
    assert [pair[0] for pair in several[: len(calls.taken())]] == [pair[0] for pair in calls.taken()]
    assert len(several) > len(calls.taken())


def test_an_operation_of_which_nothing_is_taken_has_the_first_reason() -> None:
    reasons = iter(["the first", *["another"] * 10_000])
    refusing = device(supports=lambda self, model: [Verdict(False, next(reasons))])
    with pytest.raises(NotAccepted, match=r"^the first$"):
        trial_of(refusing).calls.samples()
    with pytest.raises(NotAccepted, match="no call of the operation can be drawn"):
        trial_of(refusing, "NO_SUCH_OPERATION").calls.taken()


def test_samples_are_of_different_types_ordinary_and_closed_and_one_has_constants_one_late_parameters() -> None:
    trial = trial_of(discovery.cpu(), "CONV_2D")
    samples = trial.calls.samples()
    assert trial.calls.samples() is samples and 4 <= len(samples) <= 5
    assert samples.pop()[0].late and not any(call.late for call, _ in samples)
    assert len({call.cell.kind for call, _ in samples[:3]}) == 3
    assert all(call.cell.values == "ordinary" and not call.open for call, _ in samples[:3])
    taken = [call for call, _ in trial.calls.taken() if not call.open]

    def constants(call: Any) -> int:
        arguments = call.bound.form.each(len(call.inputs))
        sizes = [
            v.array.size
            for p, (a, v) in enumerate(zip(arguments, call.inputs, strict=True))
            if v is not None and p not in call.given and not a.scalar and v.array.dtype != np.int32
        ]
        return sum(sizes)

    assert constants(samples[-1][0]) == max(map(constants, taken))


def test_what_is_prepared_is_closed_once_and_what_is_left_at_the_end() -> None:
    closed: list[Any] = []
    stages: list[str] = []

    def close(self: Any) -> None:
        closed.append(self)

    made = device(prepared=type("P", (Healthy,), {"close": close}))
    with open_trial(trial_of(made, stages=stages)) as trial:
        (_, model), *_ = trial.calls.samples()
        stages.clear()
        one, other, kept = (trial.prepare(model) for _ in range(3))
        assert trial.prepared is kept and stages == ["prepare"] * 3
        trial.keep(kept)
        assert trial.calls.drawing.kept == [(None, kept)]
        trial.close(one)
        assert closed == [one.inner] and trial.stages.last == "close"
    assert closed == [one.inner, other.inner]


def test_the_end_of_the_drivers_process_is_no_error_that_a_check_expects() -> None:
    trial = trial_of(device())
    with pytest.raises(ProcessDied, match="gone"), trial.stages.enter("run"):
        raise DeadObject("gone")
    assert trial.stages.last == "run"


def test_another_call_has_other_constants_and_the_same_of_what_is_given() -> None:
    trial = trial_of(discovery.cpu(), "CONV_2D")
    changed = 0
    for call, _ in trial.calls.taken():
        other = other_constants(call, trial.calls.rng)
        for place, (x, y) in enumerate(zip(call.inputs, other.inputs, strict=True)):
            constant = x is not None and place not in call.given and x.rank and x.array.dtype != np.int32
            assert (x is y) is not bool(constant)
            changed += bool(constant) and x.array.tobytes() != y.array.tobytes()
    assert changed > 5
    call = trial.calls.taken()[0][0]
    several = list(trial.calls.others(call, 3))
    assert len(several) == 3 and len({tuple(v.array.tobytes() for v in c.inputs if v) for c in (call, *several)}) == 4


def test_results_are_the_same_to_the_bit_or_within_the_definition() -> None:
    trial = trial_of(device())
    call, model = trial.calls.samples()[0]
    wanted = trial.calls.wanted(model, [v.array for p, v in enumerate(call.inputs) if p in call.given])
    trial.same(call, wanted, wanted, "twice")
    with pytest.raises(RequirementNotMet, match="twice: output 0 differs") as raised:
        trial.same(call, wanted, [wanted[0] + 9], "twice")
    assert raised.value.place.startswith("test_validate.py:") or raised.value.place == ""
    with pytest.raises(ValueError, match="zip"):
        trial.differs(call, wanted, [])


# --------------------------------------------------------------------------------------------------------- what is chosen


def test_checks_are_chosen_by_name_by_operation_or_both() -> None:
    for only, wanted in {
        (): [True] * 4,
        ("runs",): [True, True, False, False],
        ("/add",): [True, False, True, False],
        ("runs/add",): [True, False, False, False],
        ("runs/add", "close/mul"): [True, False, False, True],
    }.items():
        chosen = Validation(only=only)
        asked = [("runs", "ADD"), ("runs", "MUL"), ("close", "ADD"), ("close", "MUL")]
        assert [chosen.takes(*each) for each in asked] == wanted, only


def test_single_checks_of_operations_are_chosen_and_the_drivers_own_choose_nothing() -> None:
    chooses = {("runs",): True, ("runs/ADD", "/MUL"): True, ("identity",): False, ("/ADD",): False, (): False}
    assert {only: Validation(only=only).chooses for only in chooses} == chooses


def test_there_is_at_least_one_draw() -> None:
    assert Validation(draws=1).draws == 1
    with pytest.raises(InvalidArgument, match="draws is 0, must be at least 1"):
        Validation(draws=0)


def test_hints_and_options_are_asked_for_as_they_are_told() -> None:
    seen: list[Hints] = []

    def prepare(self: Any, model: Any, hints: Hints) -> Any:
        seen.append(hints)
        return Healthy(model, self)

    assert looked(device(prepare=prepare), "hints", ADD)[0] == "passed"
    assert {h.threads for h in seen} == {0, 1, 2}
    assert len({h.preference for h in seen}) == 3 == len({h.priority for h in seen})
    assert 10 * sum(h.deadline is not None for h in seen) == len(seen)  # of each sample
    seen.clear()
    assert looked(device(prepare=prepare), "options", QUANTIZE)[0] == "passed"
    assert [dict(h.options) for h in seen if h.options] == [{"an unknown option": value} for value in (1, "text")]


def test_an_intermediate_is_read_by_two_like_operations_in_place_of_what_is_given() -> None:
    seen: list[Any] = []

    def supports(self: Any, model: Any) -> Any:
        if len(model.main.operations) > 1:
            seen.append(model)
        return [Verdict(len(model.main.operations) == 1, "one at a time") for _ in model.main.operations]

    verdict, reason, _ = looked(device(supports=supports), "intermediates", QUANTIZE)
    assert (verdict, seen) == ("skipped", [])  # what it gives cannot be what it is given
    verdict, reason, _ = looked(device(supports=supports, judge=None), "intermediates", ADD)
    assert (verdict, reason) == (
        "skipped",
        "no model in which two such operations read the result of a third is supported",
    )
    assert seen
    for model in seen:
        first, *both = model.main.operations
        (made,) = first.outputs
        assert len(both) == 2 and {each.type for each in both} == {first.type}
        (place,) = [p for p, (x, y) in enumerate(zip(first.inputs, both[0].inputs, strict=True)) if x != y]
        assert both[0].inputs == both[1].inputs == (*first.inputs[:place], made, *first.inputs[place + 1 :])
        assert first.inputs[place] in model.main.inputs
        assert model.main.outputs == (both[0].outputs[0], both[1].outputs[0])
        like = [model.main.operands[each] for each in (first.inputs[place], made, *model.main.outputs)]
        assert len({(o.type, o.dimensions, o.scale, o.zero_point) for o in like}) == 1


def test_other_values_in_the_same_memory_are_other_values() -> None:
    given: list[Any] = []

    def run(self: Any, request: Any, control: Any) -> None:
        given.append((self, [(x.ctypes.data, x.tobytes()) for x in request.given]))
        self.give(request, self.result(request))

    assert looked(running(run), "same-memory", ADD)[0] == "passed"
    alike = [(one[1], other[1]) for one, other in itertools.pairwise(given) if one[0] is other[0]]
    assert alike
    for one, other in alike:
        assert [place for place, _ in one] == [place for place, _ in other]
        assert all(x != y for (_, x), (_, y) in zip(one, other, strict=True))
