"""Where exactly a check draws its lines: numbers at a limit and one beyond it, and what it goes on with."""

import ctypes
import gc
import itertools
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nnhal.base import time as base_time
from nnhal.base.errors import (
    Cancelled,
    ContractBroken,
    DeadObject,
    DriverFailed,
    InvalidArgument,
    MissedDeadline,
    OperationFailed,
)
from nnhal.base.memory import Memory
from nnhal.base.operands import Value
from nnhal.base.records import as_dict
from nnhal.conformance.differential import arrays_of, model_of
from nnhal.conformance.draw import Call
from nnhal.conformance.place import place_of
from nnhal.conformance.pool import children_of
from nnhal.conformance.suite import Outcome
from nnhal.conformance.validate import limits, numbers, other_ways, outputs, queries
from nnhal.conformance.validate.check import CHECKS, CheckOutcome
from nnhal.conformance.validate.trial import NotAsked, RequirementNotMet, SupportedCalls, Trial, open_trial
from nnhal.conformance.validate.worker import outcome_of
from nnhal.hal import queue, request
from nnhal.hal.device import Capabilities, Hints, Verdict
from nnhal.hal.host import HostBuffer
from nnhal.hal.request import UNLIMITED, Timing
from nnhal.hal.wrappers import Wrapper
from nnhal.ipc.client.process import ReconnectingModel
from nnhal.runtime import discovery
from tests.conformance.test_checks import looked, trial_of
from tests.conformance.test_differential import F32, Q8, added
from tests.conformance.test_validate import ADD, FAULTS, Healthy, HealthyDevice, device, giving, in_place, running
from tests.waiting import Clock

GRACE_NS = 300_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time as `limits` sees it, and those who end an execution in time."""
    return Clock().play(monkeypatch, limits, queue, request, base_time)


def with_samples(made: Any, name: str, *calls: Call) -> tuple[str, str, str]:
    """What comes of a check that looks at these calls."""
    with open_trial(trial_of(made)) as trial:
        trial.calls.drawing.taken = trial.calls.drawing.samples = [(call, model_of(call)) for call in calls]
        return outcome_of(CHECKS[name], trial)


SMALL = added([[1, 2]], [[3, 4]])
LARGE = replace(added([[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [1, 2, 3]]), given=(0,))  # with a constant


def of(call: Call, model: Any) -> bool:
    """Whether a model is that of a call."""
    return model.main.operands[model.main.outputs[0]].dimensions == call.outputs[0].shape


# ------------------------------------------------------------------------------------------------------- each sample

OF_ONE = {"growth", "many-prepared", "options", "allocation-roles", "constants-pools"}
OF_ALL_CALLS = {"verdicts", "values", "steps", "invalid-values"}
OF_THE_DEVICE = {"stable-verdicts", "intermediates", "allocation"}  # whose faults are not of what is prepared
SLOW = {"threads", "deadline", "cancellation"}
EACH = [
    name
    for name, check in CHECKS.items()
    if not check.whole and name in FAULTS and name not in OF_ONE | OF_ALL_CALLS | OF_THE_DEVICE | SLOW
]


@pytest.mark.parametrize("name", EACH)
def test_a_fault_at_the_second_sample_alone_is_found(name: str) -> None:
    make, _, _ = FAULTS[name][0]
    faulty = make()

    class Half(HealthyDevice):
        prepared = getattr(type(faulty), "prepared", Healthy)

        def prepare(self, model: Any, hints: Any) -> Any:
            return Healthy(model, self) if of(SMALL, model) else faulty.prepare(model, hints)

    assert with_samples(Half(), name, SMALL, LARGE)[0] == "failed"
    assert with_samples(Half(), name, SMALL)[0] in ("passed", "skipped")


def failing_at(call: Call, error: Exception, otherwise: Callable[[Any, Any, Any], None]) -> Any:
    """A device whose executions of one call fail, and those of others do what they do."""

    def give(self: Any, request: Any, result: Any) -> None:
        if result.shape == call.outputs[0].shape:
            raise error
        otherwise(self, request, result)

    return giving(give)


def unwritten(self: Any, request: Any, result: Any) -> None:
    request.outputs[0][0] = result[0]  # of two rows


def read_only_by_the_array(self: Any, request: Any, result: Any) -> None:
    x = request.inputs[0]
    ctypes.memset(x.ctypes.data, 7, x.nbytes)
    request.write(0, result)


@pytest.mark.parametrize(
    ("name", "act"), [("output-filled", unwritten), ("inputs-kept", read_only_by_the_array)]
)  # fmt: skip
def test_a_sample_that_fails_by_another_rule_is_passed_over_and_the_next_is_not(name: str, act: Any) -> None:
    made = failing_at(SMALL, OperationFailed("no"), act)
    assert with_samples(made, name, SMALL, LARGE)[0] == "failed"
    assert with_samples(made, name, SMALL)[0] == "skipped"


def test_an_option_that_is_an_invalid_argument_is_no_reason_not_to_ask_for_the_next() -> None:
    def prepare(self: Any, model: Any, hints: Hints) -> Any:
        for value in hints.options.values():
            raise InvalidArgument("no such option") if value == 1 else OperationFailed("what is this?")
        return Healthy(model, self)

    verdict, reason, _ = looked(device(prepare=prepare), "options", ADD)
    assert verdict == "failed" and "{'an unknown option': 'text'}" in reason and "what is this?" in reason


def test_a_call_that_fails_by_right_with_other_constants_is_passed_over_and_the_next_is_not() -> None:
    def prepare(self: Any, model: Any, hints: Any) -> Any:
        made = Healthy(model, self)
        self.count = getattr(self, "count", 0) + of(SMALL, model)
        if self.count == 2 and of(SMALL, model):  # that of other constants, alone

            def fail(request: Any, control: Any) -> None:
                raise OperationFailed("by right")

            made.run = fail  # type: ignore[method-assign]
        if of(LARGE, model):
            self.large = getattr(self, "large", 0) + 1
            if self.large == 3:  # behind those that run alone
                made.give = lambda request, y: request.write(0, y + 1)  # type: ignore[method-assign]
        return made

    verdict, reason, _ = with_samples(device(prepare=prepare), "interleaved", SMALL, LARGE)
    assert (verdict, reason.partition(":")[0]) == ("failed", "alternating with another prepared model")


def test_a_call_that_the_reference_cannot_run_is_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, failed = SupportedCalls.wanted, []

    def first_fails(calls: Any, model: Any, arrays: Any) -> Any:
        if not failed:
            failed.append(model)
            raise OperationFailed("no")
        return wanted(calls, model, arrays)

    monkeypatch.setattr(SupportedCalls, "wanted", first_fails)
    trial = trial_of(device())
    samples = trial.calls.samples()
    assert samples and failed[0] not in [model for _, model in samples]

    def fails(model: Any, arrays: Any) -> Any:
        raise OperationFailed("no")

    monkeypatch.setattr(SupportedCalls, "wanted", staticmethod(fails))
    with pytest.raises(
        NotAsked, match="none of the supported calls has an output element that the reference can compute"
    ):
        trial_of(device()).calls.samples()


@pytest.mark.parametrize(
    ("wanted", "sample"),
    [
        ([np.zeros(0), np.ones(2)], True), ([None, np.ones(1)], True), ([np.ones(1), np.zeros((0, 2))], True),
        ([None, np.zeros(0)], False),
    ],
)  # fmt: skip
def test_a_sample_has_an_element_to_write(wanted: Any, sample: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SupportedCalls, "wanted", staticmethod(lambda model, arrays: wanted))
    trial = trial_of(device())
    if sample:
        assert trial.calls.samples()
    else:
        with pytest.raises(NotAsked, match="has an output element"):
            trial.calls.samples()


def test_a_sample_has_as_much_to_read_as_there_is_of_its_type() -> None:
    calls = trial_of(discovery.cpu(), ADD, draws=3).calls
    ordinary = [call for call, _ in calls.taken() if call.cell.values == "ordinary" and not (call.open or call.late)]

    def read(call: Call) -> int:
        return sum(x.size for x in arrays_of(call))

    for call, _ in calls.samples()[:3]:
        assert read(call) == max(read(each) for each in ordinary if each.cell.kind == call.cell.kind)


def test_models_are_prepared_for_one_thread_where_hints_are_not_looked_at() -> None:
    seen = set()

    def prepare(self: Any, model: Any, hints: Hints) -> Any:
        seen.add(hints.threads)
        return Healthy(model, self)

    assert looked(device(prepare=prepare), "stale-output", ADD)[0] == "passed"
    assert seen == {1}


@pytest.mark.parametrize(("alive", "did"), [(True, ["close", "end"]), (False, ["close", "close()"])])
def test_a_prepared_model_of_another_process_is_ended_where_that_lives(alive: bool, did: list[str]) -> None:
    class Remote(ReconnectingModel):
        def __init__(self) -> None:
            pass

        alive = property(lambda self: lives)  # type: ignore[assignment]

        def end(self) -> None:
            stages.append("end")

        def close(self) -> None:
            stages.append("close()")

    lives, stages = alive, list[str]()
    trial_of(device(), stages=stages).close(Remote())
    assert stages == did  # the stage, and what is asked


# ------------------------------------------------------------------------------------------------ deadlines, cancellation


def late_by(clock: Clock, nanoseconds: int, bounded: Callable[[Any], bool]) -> Any:
    """A device that takes so long where its time is bounded. runs: how often that was."""

    def run(self: Any, request: Any, control: Any) -> None:
        if bounded(control):
            self.device.runs = getattr(self.device, "runs", 0) + 1
            clock.ns += nanoseconds
        self.give(request, self.result(request))

    return running(run)


@pytest.mark.parametrize(
    ("late", "tries", "verdict"),
    [(0, 1, "passed"), (GRACE_NS - 1, 1, "passed"), (GRACE_NS, 3, "passed"), (GRACE_NS + 1, 3, "failed")],
)
def test_one_of_three_executions_in_time_is_enough(clock: Clock, late: int, tries: int, verdict: str) -> None:
    shortly = lambda control: control.deadline is not None and control.deadline - clock.ns < 10**9  # noqa: E731
    made = late_by(clock, late + limits.SHORT_NS, shortly)
    found, reason, _ = with_samples(made, "deadline", SMALL)
    assert (found, made.runs) == (verdict, tries)
    assert verdict == "passed" or reason == "returned 0.3 s after its deadline, must poll control.check()"
    made = late_by(clock, late, lambda control: control.cancelled is not None)
    found, reason, _ = with_samples(made, "cancellation", SMALL)
    assert (found, made.runs) == (verdict, 6 if verdict == "passed" else 3)
    assert verdict == "passed" or reason == "returned 0.3 s after it was cancelled, must poll control.check()"


def test_a_deadline_lies_far_ahead_and_shortly_ahead_and_one_behind_never_comes_to_the_driver(clock: Clock) -> None:
    seen = []

    def run(self: Any, request: Any, control: Any) -> None:
        if control.deadline is not None:
            seen.append((control.deadline - clock.ns) / 1e9)
        self.give(request, self.result(request))

    assert with_samples(running(run), "deadline", SMALL)[0] == "passed"
    far, short = seen
    assert far > 60 and 0 < short < 1


def test_a_deadline_that_is_far_is_not_missed_and_one_of_the_compilation_may_be() -> None:
    def run(self: Any, request: Any, control: Any) -> None:
        if control.deadline is not None:
            raise MissedDeadline("already?")
        self.give(request, self.result(request))

    verdict, reason, _ = with_samples(running(run), "deadline", SMALL)
    assert (verdict, reason) == ("failed", "MissedDeadline long before the deadline")

    def prepare(self: Any, model: Any, hints: Hints) -> Any:
        if hints.deadline is not None:
            assert hints.deadline < time.monotonic_ns()
            raise MissedDeadline("too late")
        made = Healthy(model, self)
        if of(LARGE, model):
            made.run = lambda request, control: run(made, request, control)  # type: ignore[method-assign]
        return made

    assert with_samples(device(prepare=prepare), "deadline", SMALL)[0] == "passed"
    assert with_samples(device(prepare=prepare), "deadline", SMALL, LARGE)[0] == "failed"


class Behind(Clock):
    """The clock of a check whose thread does not get the processor for a tenth of a second after it has looked at it."""

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() - 100_000_000


def test_a_driver_has_its_deadline_ahead_however_long_the_machine_keeps_the_check_from_executing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Executions that the runtime refused on the way said nothing about a driver, which passed."""
    monkeypatch.setattr(limits, "time", Behind())
    entered: list[int] = []

    def run(self: Any, request: Any, control: Any) -> None:
        if control.deadline is not None and control.deadline - time.monotonic_ns() < 10**9:
            entered.append(control.deadline)
            raise OperationFailed("not with so little time")
        self.give(request, self.result(request))

    verdict, reason, _ = with_samples(running(run), "deadline", SMALL)
    assert (verdict, reason) == (
        "failed",
        "OperationFailed: not with so little time, must be a result or MissedDeadline",
    )
    assert len(entered) == 1


@pytest.mark.parametrize("name", ["deadline", "cancellation"])
def test_a_limit_that_never_came_to_the_driver_is_no_verdict_about_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, bounded = Trial.run, []

    def refused(self: Trial, prepared: Any, arrays: Any, control: Any = UNLIMITED, **how: Any) -> Any:
        """As where a queue refuses them; the first deadline is far, and has to give a result."""
        bounded.extend([control] * control.bounded)
        if control.bounded and name == "cancellation":
            raise Cancelled("in the queue")
        if control.bounded and len(bounded) > 1:
            raise MissedDeadline("in the queue")
        return run(self, prepared, arrays, UNLIMITED, **how)

    monkeypatch.setattr(Trial, "run", refused)
    assert with_samples(device(), name, SMALL) == ("skipped", "the check saw nothing to judge", "")


def test_an_execution_is_cancelled_before_it_begins_and_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, bool]] = []
    to_come: list[Callable[[], None]] = []

    class Timer:
        """One whose time comes while the execution runs."""

        def __init__(self, seconds: float, call: Callable[[], None]) -> None:
            self.call = call

        def start(self) -> None:
            to_come.append(self.call)

        def cancel(self) -> None:
            pass

    def run(self: Any, request: Any, control: Any) -> None:
        if control.cancelled is not None:
            before = control.cancelled.is_set()
            for call in to_come:
                call()
            seen.append((before, control.cancelled.is_set()))
        self.give(request, self.result(request))

    monkeypatch.setattr(limits, "threading", SimpleNamespace(Event=threading.Event, Timer=Timer))
    assert with_samples(running(run), "cancellation", SMALL)[0] == "passed"
    assert seen == [(True, True)] * 3 + [(False, True)] * 3


# ----------------------------------------------------------------------------------------------------------------- growth

KIB = 1024


def grown(clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float, what: str, *steps: int) -> tuple[int, str]:
    """How many rounds there are of what takes so long, and what is said of something that grows so in each block."""
    rounds: list[int] = []
    totals = iter([0, *np.cumsum(steps).tolist()])
    counts = {"descriptors": 3, "threads": 1, "processes": 0, "resident memory": 10**6, "address space": 10**7}
    monkeypatch.setattr(limits, "_held", lambda pid: counts | {what: counts[what] + next(totals)})

    def once() -> None:
        rounds.append(1)
        clock.ns += int(seconds * 1e9)

    trial = SimpleNamespace(place=lambda what="run": f"{what}.py:1")
    try:
        limits._look(trial, 1, "run", once)  # type: ignore[arg-type]
        return len(rounds), ""
    except RequirementNotMet as error:
        assert error.place == "run.py:1"
        return len(rounds), str(error)


@pytest.mark.parametrize(("seconds", "rounds"), [(1.0, 5), (0.009, 5), (0.0024, 20), (0.001, 40), (0.0, 40)])
def test_a_block_is_of_5_to_40_rounds_and_about_50_ms_after_5_of_warming_up(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float, rounds: int
) -> None:
    assert grown(clock, monkeypatch, seconds, "threads", 0, 0, 0) == (5 + 3 * rounds, "")


@pytest.mark.parametrize(
    ("seconds", "what", "steps", "said"),
    [
        (1.0, "descriptors", (2, 2, 2), "each run leaks 0.4 descriptors (15 iterations)"),
        (1.0, "descriptors", (2, 1, 9), ""),
        (1.0, "threads", (5, 5, 5), "each run leaks 1 threads (15 iterations)"),
        (1.0, "processes", (5, 0, 5), ""),
        (0.0, "processes", (20, 20, 20), "each run leaks 0.5 processes (120 iterations)"),
        (0.0, "processes", (19, 20, 20), ""),
        (1.0, "resident memory", (256 * KIB,) * 3, "each run leaks 51 KiB of resident memory (15 iterations)"),
        (1.0, "resident memory", (256 * KIB, 256 * KIB - 1, 256 * KIB), ""),
        (0.0, "address space", (320 * KIB,) * 3, "each run leaks 8 KiB of address space (120 iterations)"),
        (0.0, "address space", (320 * KIB - 1,) * 3, ""),
    ],
)
def test_what_grows_in_each_block_by_more_than_noise_is_left_behind(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float, what: str, steps: tuple[int, ...], said: str
) -> None:
    assert grown(clock, monkeypatch, seconds, what, *steps)[1] == said


def test_what_cannot_be_read_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(pid: int) -> dict[str, int]:
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(limits, "_held", held)
    verdict, reason, _ = with_samples(device(), "growth", SMALL)
    assert verdict == "skipped" and reason.endswith("cannot be read: Permission denied")


def test_what_a_process_holds_is_what_the_system_says() -> None:
    """Of one that only waits."""
    code = "import subprocess as s; s.Popen(['cat']); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        found, at = limits._held(process.pid), Path(f"/proc/{process.pid}")
        lines = (at / "status").read_text().splitlines()
        assert found["threads"] == len(os.listdir(at / "task")) == 1
        assert found["descriptors"] == len(os.listdir(at / "fd"))
        assert found["processes"] == len(children_of(process.pid)) == 1
        process.stdin.close()
    said = {
        name: int(rest.split()[0]) * KIB for name, _, rest in (each.partition(":") for each in lines) if "kB" in rest
    }
    assert 0.8 < found["resident memory"] / said["VmRSS"] < 1.25
    assert 0.8 < found["address space"] / said["VmSize"] < 1.25


def test_garbage_in_circles_is_not_left_behind() -> None:
    def give(self: Any, request: Any, result: Any) -> None:
        circle: list[Any] = [np.ones(1 << 18, np.uint8)]
        circle.append(circle)
        request.write(0, result)

    gc.disable()
    try:
        assert with_samples(giving(give), "growth", SMALL) == ("passed", "", "")
    finally:
        gc.enable()


def test_growth_is_looked_for_where_the_driver_runs_and_with_one_model_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[Any] = []

    def look(trial: Any, pid: int, what: str, once: Callable[[], object]) -> None:
        looked_at.append((pid, what, made.open))
        for _ in range(3):
            once()
            assert made.open == (what == "run")

    monkeypatch.setattr(limits, "_look", look)
    for process, pid in ((None, os.getpid()), (SimpleNamespace(pid=77), 77)):
        monkeypatch.setattr(limits, "process_of", lambda device, process=process: process)
        made = counting()
        assert with_samples(made, "growth", SMALL, LARGE) == ("passed", "", "")
        assert looked_at == [(pid, "run", 1), (pid, "prepare, run and close", 0)]
        assert (made.opened, made.most, made.open) == (4, 1, 0)
        looked_at.clear()


def test_what_is_prepared_to_look_for_growth_runs_before_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    class Noted(Healthy):
        def __init__(self, model: Any, device: Any) -> None:
            super().__init__(model, device)
            did.append("prepare")

        def run(self, request: Any, control: Any) -> Any:
            did.append("run")
            return super().run(request, control)

        def close(self) -> None:
            did.append("close")

    def look(trial: Any, pid: int, what: str, once: Callable[[], object]) -> None:
        did.clear()
        once()
        assert did == (["run"] if what == "run" else ["prepare", "run", "close"])

    monkeypatch.setattr(limits, "_look", look)
    assert with_samples(device(prepared=Noted), "growth", SMALL) == ("passed", "", "")


def test_the_place_of_growth_is_what_was_done(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    held = itertools.count(0, 10**6)
    monkeypatch.setattr(limits, "_held", lambda pid: {"address space": next(held)})
    trial: Any = SimpleNamespace(place=lambda what="run": f"{what}.py:1")
    for what, place in (("run", "run.py:1"), ("prepare, run and close", "prepare.py:1")):
        with pytest.raises(RequirementNotMet, match=f"^each {what} leaks ") as found:
            limits._look(trial, 1, what, lambda: None)
        assert found.value.place == place


# ---------------------------------------------------------------------------------------------------------------- numbers


class Told:
    """A trial, and its calls: only what the reference and the driver give is asked. An error is raised."""

    operation = "ADD"
    device = SimpleNamespace(relaxations=())

    def __init__(self, *pairs: tuple[Any, Any]) -> None:
        self._pairs, self.calls = iter(pairs), self
        self._actual: Any = None

    def fixed(self) -> None:
        pass

    def wanted(self, model: Any, arrays: Any) -> Any:
        wanted, self._actual = next(self._pairs)
        return self._given(wanted)

    def alone(self, model: Any, arrays: Any) -> Any:
        return self._given(self._actual)

    def unmet(self, text: str) -> None:
        raise RequirementNotMet(text)

    @staticmethod
    def _given(what: Any) -> Any:
        if isinstance(what, Exception):
            raise what
        return what


@pytest.mark.parametrize(
    ("wanted", "actual", "said"),
    [
        ([np.float32([4])], [np.float32([4])], ""),
        ([np.float32([4])], [np.float32([5])], "output 0 differs in 1 of 1, the first at [0]: 5, must be 4"),
        (OperationFailed("no"), [np.float32([4])], "runs, must fail: no"),
        (OperationFailed("no"), OperationFailed("not at all"), ""),
        (OperationFailed("no"), InvalidArgument("not that"), "InvalidArgument: not that"),
        (OperationFailed("no"), ContractBroken("oops"), "ContractBroken: oops"),
        ([np.float32([4])], OperationFailed("not today"), "OperationFailed: not today"),
    ],
)
def test_a_result_is_held_against_the_reference_and_so_is_an_error(wanted: Any, actual: Any, said: str) -> None:
    found: Any = numbers._problem(Told((wanted, actual)), added([1], [3]), None)  # type: ignore[arg-type]
    assert found == said


@pytest.mark.parametrize("error", [DriverFailed("a bug"), ContractBroken("a bug")])
def test_a_bug_of_the_reference_is_no_error_that_a_driver_may_have_too(error: Exception) -> None:
    with pytest.raises(type(error), match="a bug"):
        numbers._problem(Told((error, error)), added([1], [3]), None)  # type: ignore[arg-type]


def quantised(values: str = "ordinary", *kinds: int) -> Any:
    return SimpleNamespace(
        cell=SimpleNamespace(values=values),
        outputs=[Value(kind, (1,), 1.0, 0) for kind in kinds or (Q8,)],
        bound=SimpleNamespace(form_has=lambda name: False),
    )


def steps(monkeypatch: pytest.MonkeyPatch, *calls: tuple[Any, Any, Any]) -> str:
    """What the check says of calls with what is wanted and what came."""
    monkeypatch.setattr(numbers, "model_of", lambda call: call)
    monkeypatch.setattr(numbers, "arrays_of", lambda call: [])
    run = [each for each in calls if each[0].cell.values != "far" and each[0].outputs[-1].type == Q8]
    trial: Any = Told(*((wanted, actual) for _, wanted, actual in run))
    trial.many = lambda: ((call, None) for call, *_ in calls)
    try:
        numbers.steps(trial)
    except RequirementNotMet as error:
        return str(error)
    return ""


def off_by(*offs: int) -> tuple[Any, Any]:
    middle = np.full(len(offs), 100, np.uint8)
    return [middle], [(middle + np.array(offs)).astype(np.uint8)]


NAME = "output 0 (TENSOR_QUANT8_ASYMM)"


@pytest.mark.parametrize(
    ("offs", "said"),
    [
        ((1,) * 10, f"{NAME}: 10 of 10 elements are too high, 0 too low: zero point?"),
        ((-2,) * 10, f"{NAME}: 10 of 10 elements are too low, 0 too high: zero point, or rounded down?"),
        ((1,) * 9, ""),
        ((0, -1) * 50, f"{NAME}: 50 of 100 elements are too low, 0 too high: zero point, or rounded down?"),
        ((0, -1) * 40, ""),
        ((0, 1, 0, 0) * 1000, ""),
        ((1, -1) * 1000, ""),
        ((1, 1, 1, -1) * 100, f"{NAME}: 300 of 400 elements are too high, 100 too low: zero point?"),
    ],
)
def test_results_are_shifted_where_rounding_halves_otherwise_explains_it_once_in_a_million(
    monkeypatch: pytest.MonkeyPatch, offs: tuple[int, ...], said: str
) -> None:
    assert steps(monkeypatch, (quantised(), *off_by(*offs))) == said


@pytest.mark.parametrize(
    ("off", "said"),
    [
        (-1, "100 of 200 elements are too near to the zero point, 0 too far from it: cut off instead of rounded?"),
        (1, "100 of 200 elements are too far from the zero point, 0 too near to it: rounded up?"),
    ],
)
def test_results_that_are_shifted_to_or_from_the_zero_point_are_found_on_both_sides_of_it(
    monkeypatch: pytest.MonkeyPatch, off: int, said: str
) -> None:
    call = quantised()
    call.outputs = [Value(Q8, (200,), 1.0, 100)]
    wanted = np.tile(np.uint8([90, 90, 110, 110]), 50)
    actual = np.tile(np.uint8([90, 90 - off, 110, 110 + off]), 50)
    assert steps(monkeypatch, (call, [wanted], [actual])) == f"{NAME}: {said}"


def test_the_chance_bounds_the_exact_probability() -> None:
    for count in (10, 30, 100):
        for more in range(count + 1):
            exact = sum(math.comb(count, k) * 0.25**k * 0.75 ** (count - k) for k in range(more, count + 1))
            assert exact <= numbers.chance(more, count) * (1 + 1e-9)
    assert numbers.chance(0, 0) == 1.0


def test_elements_of_all_calls_count_together_but_for_those_that_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    half, most = off_by(*(1,) * 5), off_by(*(1,) * 9)
    said = f"{NAME}: 10 of 10 elements are too high, 0 too low: zero point?"
    assert steps(monkeypatch, (quantised(), *half), (quantised(), *half)) == said
    for other in (
        (quantised("far"), *half),
        (quantised("ordinary", F32), *half),
        (quantised(), [np.full(12, 255, np.uint8)], [np.full(12, 254, np.uint8)]),
        (quantised(), [np.full(12, 0, np.uint8)], [np.full(12, 1, np.uint8)]),
        (quantised(), [None], [None]),
        (quantised(), half[0], [None]),
        (quantised(), [None], half[1]),
        (quantised(), [half[0][0]], [half[1][0].astype(np.int8)]),
        (quantised(), [half[0][0]], [half[1][0][:3]]),
        (quantised(), OperationFailed("no"), [None]),
        (quantised(), half[0], OperationFailed("no")),
    ):
        assert steps(monkeypatch, (quantised(), *most), other) == ""
        assert steps(monkeypatch, (quantised(), *most), other, (quantised(), *off_by(1))) == said


def test_each_output_counts_by_itself_and_one_that_is_not_quantised_hides_none(monkeypatch: pytest.MonkeyPatch) -> None:
    (wanted,), (actual,) = off_by(*(1,) * 10)
    real = np.zeros(10, np.float32)
    found = steps(monkeypatch, (quantised("ordinary", F32, Q8), [real, wanted], [real, actual]))
    assert found == "output 1 (TENSOR_QUANT8_ASYMM): 10 of 10 elements are too high, 0 too low: zero point?"


@pytest.mark.parametrize(
    ("share", "exact"), [(0.5, False), (0.4995, False), (0.4985, True), (0.5015, True), (0.25, True)]
)
def test_an_element_of_quantize_is_exact_where_it_is_a_thousandth_of_a_step_away_from_a_half(
    share: float, exact: bool
) -> None:
    from nnhal.conformance.validate.numbers import _exact

    source = Value(F32, (1,), 0.0, 0, data=np.float32([share]))
    asked: Any = SimpleNamespace(
        inputs=[source],
        outputs=[Value(Q8, (1,), 1.0, 0)],
        cell=SimpleNamespace(op=SimpleNamespace(leaves_open=None)),
    )
    right = np.uint8([share > 0.5])
    trial: Any = Told()
    if not exact:
        assert _exact(trial, asked, right, 1 - right) == 0
        return
    assert _exact(trial, asked, right, right) == 1
    with pytest.raises(
        RequirementNotMet, match="output 0 is off in 1 of 1 elements that are not at a half, the first at"
    ):
        _exact(trial, asked, right, 1 - right)


def test_what_quantize_leaves_open_and_what_is_not_there_or_of_another_shape_need_not_be_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Value(F32, (2,), 0.0, 0, data=np.float32([0.25, 7.2]))
    asked: Any = SimpleNamespace(inputs=[source], outputs=[Value(Q8, (2,), 2.0, 0)], cell="cell")
    right, wrong, trial = np.uint8([0, 4]), np.uint8([1, 4]), Told()
    for mask in (np.bool_([True, False]), np.bool_([False, False])):
        monkeypatch.setattr(numbers, "open_masks", lambda call, count, mask=mask: [mask])
        if mask.any():
            numbers._exact(trial, asked, right, wrong)  # type: ignore[arg-type]
            continue
        with pytest.raises(
            RequirementNotMet,
            match=r"1 of 2 elements that are not at a half, the first at \[0\]: 1, must be 0 \(cell\)",
        ):
            numbers._exact(trial, asked, right, wrong)  # type: ignore[arg-type]
        for wanted, actual in ((None, wrong), (right, None), (right, wrong[:1])):
            numbers._exact(trial, asked, wanted, actual)  # type: ignore[arg-type]
        asked.inputs = [None]
        numbers._exact(trial, asked, right, wrong)  # type: ignore[arg-type]


def test_the_smallest_call_that_is_wrong_is_told_of_and_how_many_are(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"nine": (4, 5), "two": (1, 1), "five": (5,), "right": (1,)}
    calls = [SimpleNamespace(cell=name) for name in sizes]
    monkeypatch.setattr(numbers, "arrays_of", lambda call: [np.zeros(n) for n in sizes[call.cell]])
    monkeypatch.setattr(numbers, "_problem", lambda t, call, m: "" if call.cell == "right" else f"wrong at {call.cell}")
    trial: Any = Told()
    trial.many = lambda: ((call, None) for call in calls)
    with pytest.raises(RequirementNotMet, match=r"^3 of 4 calls: wrong at two \(two\)$"):
        numbers.values(trial)
    trial.many = lambda: ((call, None) for call in calls if call.cell == "right")
    numbers.values(trial)


# ---------------------------------------------------------------------------------------------------------------- queries


@pytest.mark.parametrize(
    ("others", "verdict"), [((2, 3), "failed"), ((2,), "failed"), ((3,), "failed"), ((4,), "passed")]
)
def test_a_query_is_asked_three_times_and_the_first_answer_must_stay(others: tuple[int, ...], verdict: str) -> None:
    count: list[int] = []

    def answered(self: Any) -> Capabilities:
        count.append(1)
        return Capabilities.uniform(2.0 if len(count) in others else 1.0)

    stages: list[str] = []
    with open_trial(trial_of(device(capabilities=answered), stages=stages)) as trial:
        found, reason, place = outcome_of(CHECKS["capabilities"], trial)
    assert (found, len(count), stages) == (verdict, 3, ["capabilities"] * 3)
    assert verdict == "passed" or (reason.endswith(", must stay the same") and place.startswith("test_looks.py:"))


def test_what_changed_is_named_and_cut() -> None:
    one, other = (Outcome("same", letter * 101, letter) for letter in "xy")
    assert queries._difference(one, other) == f"verdict is {'x' * 100}, then {'y' * 100}"
    assert queries._difference(Timing(1, 2), Timing(1, 3)) == "in_driver is 2, then 3"


def test_a_device_is_asked_for_its_status() -> None:
    stages: list[str] = []
    with open_trial(trial_of(device(), stages=stages)) as trial:
        assert outcome_of(CHECKS["status"], trial)[0] == "passed"
    assert stages == ["status"]


def test_operations_of_extensions_that_are_named_are_found_and_each_has_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {5 << 16: "com.one.FIRST", 5 << 16 | 1: "com.one.SECOND", 6 << 16: "com.other.THIRD"}
    monkeypatch.setattr(queries, "FOREIGN_OPERATIONS", names)
    monkeypatch.setattr(queries, "operation_name", names.__getitem__)
    monkeypatch.setattr(queries, "EXTENSIONS", {"com.one": None, "com.other": None})
    monkeypatch.setattr(queries, "identity_of", lambda device: SimpleNamespace(extensions=("com.one",)))
    monkeypatch.setattr(queries, "OPS", {"com.one.FIRST": None})
    assert looked(device(), "extensions", "")[:2] == (
        "failed",
        "com.one.SECOND has no record, must have one as the definition to compare with (ops.schema.register)",
    )
    monkeypatch.setattr(queries, "OPS", dict.fromkeys(names.values()))
    with open_trial(trial_of(device())) as trial:
        assert outcome_of(CHECKS["extensions"], trial)[0] == "passed"
        assert trial.found == ("com.one.FIRST", "com.one.SECOND")


@pytest.mark.parametrize(("first", "then"), [(True, False), (False, True)])
def test_a_verdict_is_the_same_of_the_same_model_and_of_one_built_anew(first: bool, then: bool) -> None:
    seen: list[Any] = []
    texts = {True: "yes", False: "no"}

    def again(self: Any, model: Any) -> Any:
        known = any(model is each for each in seen)
        seen.append(model)
        return [Verdict(then if known else first, "tired")]

    def anew(self: Any, model: Any) -> Any:
        known = any(model is each for each in seen) or len(seen) < len(trial.calls.drawing.calls)
        seen.append(model)
        return [Verdict(first if known else then, "tired")]

    for supports, how in ((again, "for the same model"), (anew, "for an equal model")):
        if not first:  # one is taken, or nothing is asked
            inner = supports

            def supports(self: Any, model: Any, inner: Any = inner) -> Any:
                return [Verdict(True)] if model == trial.calls.drawing.calls[0][1] else inner(self, model)

        seen.clear()
        with open_trial(trial_of(device(supports=supports))) as trial:
            found, reason, _ = outcome_of(CHECKS["verdicts"], trial)
        said = f"supports() returns {texts[first]}, then {texts[then]} {how}"
        assert found == "failed" and reason.startswith(said), reason


def counting() -> Any:
    """A healthy device that counts what is open, and the most at once."""

    class Counting(Healthy):
        def __init__(self, model: Any, made: Any) -> None:
            super().__init__(model, made)
            made.opened = getattr(made, "opened", 0) + 1
            made.open = getattr(made, "open", 0) + 1
            made.most = max(getattr(made, "most", 0), made.open)

        def close(self) -> None:
            self.device.open -= 1

    return device(prepared=Counting)


@pytest.mark.parametrize(
    ("name", "opened", "most"),
    [
        ("prepared-anew", 6, 3), ("prepared-twice", 4, 2), ("many-prepared", 33, 16), ("hints", 20, 1),
        ("options", 2, 1), ("close", 18, 1), ("interleaved", 8, 2),
    ],
)  # fmt: skip
def test_a_check_prepares_so_many_and_lets_them_go_before_it_goes_on(name: str, opened: int, most: int) -> None:
    made = counting()
    assert with_samples(made, name, SMALL, LARGE)[0] == "passed"
    assert (made.opened, made.most, made.open) == (opened, most, 0)


@pytest.mark.parametrize(
    ("name", "told", "at_runs"),
    [
        ("growth", set(), {"run"}), ("malformed-request", set(), {"run"}), ("burst", {"burst"}, {"run"}),
        ("fenced", {"execute_fenced"}, {"run", "execute_fenced"}), ("callback", {"execute"}, {"run", "execute"}),
        ("allocation", {"allocate"}, {"run", "allocate"}), ("late-write", {"wait"}, {"run"}),
    ],
)  # fmt: skip
def test_what_the_driver_is_asked_is_told_before_it_is(name: str, told: set[str], at_runs: set[str]) -> None:
    stages: list[str] = []
    found: set[str] = set()

    def run(self: Any, request: Any, control: Any) -> None:
        found.add(stages[-1])
        self.give(request, self.result(request))

    with open_trial(trial_of(running(run), stages=stages)) as trial:
        trial.calls.drawing.taken = trial.calls.drawing.samples = [(SMALL, model_of(SMALL))]
        assert outcome_of(CHECKS[name], trial)[0] == "passed"
    assert set(stages) == {"prepare", "run", "close"} | told and found == at_runs


def test_each_memory_of_the_drivers_own_has_a_time_of_its_own_and_is_closed() -> None:
    stages: list[str] = []
    held: list[Any] = []

    class Held(HostBuffer):
        def copy_to(self, memory: Memory) -> None:
            assert memory.size == 8 == np.zeros((1, 2), np.float32).nbytes  # else that alone would be refused
            super().copy_to(memory)

        def close(self) -> None:
            held.remove(self)
            super().close()

    def allocate(self: Any, desc: Any, roles: Any) -> Any:
        held.append(Held(desc, roles))
        return held[-1]

    with open_trial(trial_of(device(allocate=allocate), stages=stages)) as trial:
        trial.calls.drawing.taken = trial.calls.drawing.samples = [(SMALL, model_of(SMALL))]
        assert outcome_of(CHECKS["allocation"], trial)[0] == "passed"
    assert stages.count("allocate") == 2 and held == []


def test_what_was_prepared_first_is_kept_for_the_check_that_closes() -> None:
    made = counting()
    with open_trial(trial_of(made)) as trial:
        assert outcome_of(CHECKS["prepares"], trial)[0] == "passed"
        several = len(trial.calls.samples())
        assert len(trial.calls.drawing.kept) == several == made.open
        trial.end()
        assert made.open == several
        assert outcome_of(CHECKS["close"], trial)[0] == "passed"
        assert made.open == 0 and trial.calls.drawing.kept == []


def test_verdicts_after_a_close_are_looked_at_too() -> None:
    def close(self: Any) -> None:
        self.device.closed = True

    def supports(self: Any, model: Any) -> Any:
        return [Verdict(not getattr(self, "closed", False), "tired")]

    made = device(prepared=type("P", (Healthy,), {"close": close}), supports=supports)
    with open_trial(trial_of(made)) as trial:
        trial.calls.drawing.taken = trial.calls.drawing.samples = [(SMALL, model_of(SMALL))]
        found, reason, _ = outcome_of(CHECKS["stable-verdicts"], trial)
    assert (found, reason) == ("failed", "supports() returns yes, and no after the model was closed")


def test_hints_are_told_by_what_differs_and_their_deadline_is_far() -> None:
    assert queries._told(Hints(threads=1)) == "the default hints"
    assert queries._told(Hints(threads=2, deadline=7)) == "threads 2, deadline 7"
    left, differ, default = [], [], as_dict(Hints(threads=1))

    def prepare(self: Any, model: Any, hints: Hints) -> Any:
        left.extend([] if hints.deadline is None else [hints.deadline - time.monotonic_ns()])
        differ.append(sum(value != default[name] for name, value in as_dict(hints).items()))
        return Healthy(model, self)

    assert looked(device(prepare=prepare), "hints", ADD)[0] == "passed"
    assert left and min(left) > 60e9
    assert set(differ) == {0, 1}  # one thing at a time


# ---------------------------------------------------------------------------------------------------------------- outputs


def test_what_is_another_checks_business_runs() -> None:
    for give in (
        lambda s, r, y: r.write(0, y.astype(np.float64)),
        lambda s, r, y: r.write(0, y.reshape(-1)),
        lambda s, r, y: None,
        lambda s, r, y: [r.write(0, y), r.write(0, y)],
    ):
        assert with_samples(giving(give), "runs", SMALL) == ("passed", "", "")
    verdict, reason, _ = with_samples(giving(lambda s, r, y: 1 // 0), "runs", SMALL)
    assert verdict == "failed" and reason.startswith("run(): DriverFailed: ") and reason.endswith(f"({SMALL.cell})")


@pytest.mark.parametrize("pattern", [0x5A, 0xA5])
def test_an_element_that_is_the_pattern_by_right_is_no_element_that_was_left(pattern: int) -> None:
    element = np.frombuffer(bytes([pattern] * 4), np.float32)[0]
    assert with_samples(giving(lambda s, r, y: r.write(0, np.full_like(y, element))), "output-filled", SMALL) == (
        "passed", "", "",
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------- other ways


def test_a_fenced_execution_wants_outputs_whose_shape_is_known_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "signature_of", lambda self, prepared: SimpleNamespace(closed=False))
    assert with_samples(device(), "fenced", SMALL) == (
        "skipped",
        "the shapes of its outputs are unknown before the execution",
        "",
    )


def test_a_callback_that_never_comes_is_said_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_ways, "WAIT", 0.01)
    made = device(prepared=type("P", (Healthy,), {"execute": lambda *_: None}))
    assert with_samples(made, "callback", SMALL)[:2] == ("failed", "has not notified within 0.01 s")


def test_a_callback_that_the_hal_swallowed_is_heard_and_nothing_else_is() -> None:
    def execute(said: str) -> Any:
        def act(self: Any, request: Any, control: Any, notify: Any) -> None:
            logging.getLogger("nnhal.driver").warning("device judged: %s", said)
            super(type(self), self).execute(request, control, notify)

        return device(prepared=type("P", (Healthy,), {"execute": act}))

    said = "notified again or too late"
    assert with_samples(execute(said), "callback", SMALL)[:2] == ("failed", f"device judged: {said}".partition(": ")[2])
    assert with_samples(execute("is slow"), "callback", SMALL) == ("passed", "", "")


@pytest.mark.parametrize(("level", "before"), [(logging.ERROR, None), (logging.NOTSET, "1")])
def test_who_heard_of_notifications_leaves_the_log_and_the_environment_as_they_were(
    level: int, before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, seen = logging.getLogger("nnhal.driver"), []

    def execute(self: Any, *given: Any) -> None:
        seen.append((log.level, os.environ.get("NNHAL_SYNC_EXEC")))
        super(type(self), self).execute(*given)

    monkeypatch.setattr(log, "level", level)
    handlers = list(log.handlers)
    if before is None:
        monkeypatch.delenv("NNHAL_SYNC_EXEC", raising=False)
    else:
        monkeypatch.setenv("NNHAL_SYNC_EXEC", before)
    with_samples(device(prepared=type("P", (Healthy,), {"execute": execute})), "callback", SMALL)
    assert seen == [(logging.WARNING, "0")]
    assert (log.level, log.handlers, os.environ.get("NNHAL_SYNC_EXEC")) == (level, handlers, before)


def test_memory_has_roles_of_inputs_where_there_are_some() -> None:
    constant = replace(SMALL, given=())
    assert with_samples(device(), "allocation-roles", constant) == ("skipped", "it has no inputs", "")


# ------------------------------------------------------------------------------------------------------------ late writes


@pytest.mark.parametrize("at", [0, 1])
def test_memory_that_was_lent_is_looked_at_with_what_lies_behind_it(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    lent: list[Any] = []

    def settle(seconds: float) -> None:
        own = lent[0]
        ctypes.memset(own.ctypes.data + (0, own.nbytes + 1)[at], 1, 1)

    def give(own: Any, result: Any) -> None:
        own[...] = result
        lent.append(own)

    monkeypatch.setattr(outputs, "time", SimpleNamespace(sleep=settle))
    said = "memory for an output is written to after the execution ended, must be before"
    assert with_samples(giving(in_place(give)), "late-write", SMALL)[:2] == ("failed", said)


# ---------------------------------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize(
    ("error", "verdict", "said"),
    [
        (OperationFailed("busy"), "failed", "with 4 threads: OperationFailed: busy"),
        (DeadObject("the driver process ended"), "crashed", "run(): the driver process ended"),
    ],
)
def test_what_fails_beside_others_is_said_to_have(error: Exception, verdict: str, said: str) -> None:
    def run(self: Any, request: Any, control: Any) -> None:
        if threading.current_thread().name == "nnhal-validate":
            raise error
        self.give(request, self.result(request))

    found, reason, place = with_samples(running(run), "threads", SMALL)
    assert (found, reason) == (verdict, said)
    raised = run.__code__.co_firstlineno + 2
    assert verdict == "crashed" or place == f"test_looks.py:{raised}"


def test_inputs_come_in_one_order_then_in_another_and_the_first_twice_in_a_row() -> None:
    ran: dict[str, list[tuple[int, bytes]]] = {}

    def run(self: Any, request: Any, control: Any) -> None:
        ran[name].append((id(self), request.given[0].tobytes()))
        self.give(request, self.result(request))

    def of_the_last(count: int) -> list[int]:
        """Which inputs each of the last executions had, by when they first came."""
        values = [value for _, value in ran[name][-count:]]
        first = list(dict.fromkeys(values))
        return [first.index(value) for value in values]

    for name in ("order", "burst"):
        ran[name] = []
        assert with_samples(running(run), name, SMALL) == ("passed", "", "")
    name = "order"
    order = of_the_last(9)
    assert order[:4] == [0, 1, 2, 3] and set(order[4:]) == {0, 1, 2, 3} and (0, 0) in itertools.pairwise(order)
    name = "burst"
    order = of_the_last(12)
    assert order[:6] == order[6:] == [0, 1, 2, 0, 0, 1]  # in each of two bursts
    name = "interleaved"
    ran[name] = []
    assert with_samples(running(run), name, replace(SMALL, given=(0,))) == ("passed", "", "")
    which = [prepared for prepared, _ in ran[name][-8:]]
    turns = list(itertools.pairwise(which[:-1]))
    one, other = dict.fromkeys(which)
    assert {(one, other), (other, one), (other, other)} <= set(turns) and which[-1] == other  # the one that is left


@pytest.mark.parametrize("number", range(4))
def test_one_thread_that_fails_is_enough_and_threads_take_turns_often(number: int) -> None:
    before, often, failed = sys.getswitchinterval(), [], []

    def run(self: Any, request: Any, control: Any) -> None:
        if threading.current_thread().name == "nnhal-validate":
            often.append(sys.getswitchinterval())
            if len(often) == 10 + number and not failed:
                failed.append(number)
                raise OperationFailed("busy")
        self.give(request, self.result(request))

    assert with_samples(running(run), "threads", SMALL)[0] == "failed"
    assert max(often) < 1e-3 and sys.getswitchinterval() == before


# ------------------------------------------------------------------------------------------------------------------ places


def test_wrappers_are_looked_through_and_a_circle_of_them_is_no_trap() -> None:
    class Looking(HealthyDevice):
        def supports(self, model: Any) -> Any:
            return super().supports(model)

    line = Looking.supports.__code__.co_firstlineno
    wrapped: Any = Looking()
    for _ in range(8):
        wrapped = Wrapper(wrapped)
        assert place_of(wrapped, None, "supports") == f"test_looks.py:{line}"
    wrapped.inner = wrapped
    assert place_of(wrapped, None, "supports") == ""
    assert place_of(discovery.cpu(), None, "no such method") == ""


def test_a_malformed_request_is_wrong_in_one_input_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[Any]] = []
    request = Trial.request

    def noted(self: Trial, prepared: Any, arrays: Any, rooms: Any = None) -> Any:
        asked.append(list(arrays))
        return request(self, prepared, arrays, rooms)

    with monkeypatch.context() as patched:
        patched.setattr(Trial, "request", noted)
        with_samples(device(), "malformed-request", SMALL)
    right = arrays_of(SMALL)
    bad = [given for given in asked if any(x is None or x.shape != y.shape for x, y in zip(given, right, strict=True))]
    alike = [[x is not None and x.shape == y.shape for x, y in zip(given, right, strict=True)] for given in bad]
    assert alike.count([False, True]) == alike.count([True, False]) == len(bad) // 2 >= 3


def test_an_outcome_that_nothing_was_asked_for_took_no_time() -> None:
    assert CheckOutcome("runs", ADD, "skipped").nanoseconds == 0
