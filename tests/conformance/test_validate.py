"""The suite contract is judged: each check names the driver that breaks its promise; a healthy one keeps all of them."""

import itertools
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import Activation, OperandType, OperationType
from nnhal.base.errors import InvalidArgument
from nnhal.conformance.place import place_first, place_in
from nnhal.conformance.validate.check import CHECKS, CheckOutcome, ContractCheck
from nnhal.conformance.validate.drawing import Drawing
from nnhal.conformance.validate.run import CheckItem, Validation, _Checks, run_checks
from nnhal.conformance.validate.table import of_operation
from nnhal.conformance.validate.trial import Trial, open_trial
from nnhal.conformance.validate.worker import outcome_of
from nnhal.hal.device import Device, Hints, Prepared, Verdict
from nnhal.hal.host import HostBuffer
from nnhal.hal.request import Timing
from nnhal.model.graph import CONSTANTS
from nnhal.model.validate import validate
from tests.suites.faulty.driver import memory
from tests.suites.faulty.driver.faults import made, table
from tests.waiting import pass_time, until

ADD, QUANTIZE = "ADD", "QUANTIZE"


class Healthy(Prepared):
    """ADD of float32 without an activation, and QUANTIZE."""

    trimmable = True

    def __init__(self, model: Any, device: Any) -> None:
        main = self.main = model.main
        self.device, self.operation = device, main.operations[0]
        self.inputs, self.operands = main.inputs, main.operands
        self.constants = {i: model.constant(o) for i, o in enumerate(main.operands) if o.lifetime in CONSTANTS}

    def run(self, request: Any, control: Any) -> Any:
        control.check()
        self.give(request, self.result(request))

    def result(self, request: Any) -> Any:
        arrays = self.constants | dict(zip(self.inputs, request.inputs, strict=True))
        x = arrays[self.operation.inputs[0]]
        if self.operation.type == OperationType.ADD:
            with np.errstate(all="ignore"):
                return x + arrays[self.operation.inputs[1]]
        return self.quantized(x)

    def quantized(self, x: Any) -> Any:
        to = self.operands[self.operation.outputs[0]]
        limits = np.iinfo(np.uint8 if to.type == OperandType.TENSOR_QUANT8_ASYMM else np.int8)
        with np.errstate(all="ignore"):
            steps = np.rint(x.astype(np.float64) / to.scale) + to.zero_point
        return np.clip(np.nan_to_num(steps, nan=to.zero_point), limits.min, limits.max).astype(limits.dtype)

    def give(self, request: Any, result: Any) -> None:
        request.write(0, result)


class HealthyDevice(Device):
    name = "judged"
    prepared: Any = Healthy

    def supports(self, model: Any) -> Any:
        operations = validate(model).subgraphs[0].operations
        several = len(operations) > 1 and not issubclass(self.prepared, Several)
        return [Verdict(False, "one at a time") if several else self.judge(a) for a in operations]

    def judge(self, a: Any) -> Any:
        if a.op.name == QUANTIZE:
            return Verdict(a.T == OperandType.TENSOR_FLOAT32, "only of float32")
        plain = a.op.name == ADD and a.T == OperandType.TENSOR_FLOAT32
        return Verdict(plain and a.__dict__.get("activation") == Activation.NONE, "only plain ADD")

    def prepare(self, model: Any, hints: Any) -> Any:
        return self.prepared(model, self)


def device(*, prepared: type[Prepared] = Healthy, **methods: Any) -> Device:
    return type("Faulty", (HealthyDevice,), {"prepared": prepared, **methods})()


def running(run: Callable[[Any, Any, Any], Any]) -> Device:
    """A device whose `run` is another."""
    return device(prepared=type("P", (Healthy,), {"run": run}))


def giving(give: Callable[[Any, Any, Any], Any]) -> Device:
    """A device that gives its result otherwise."""
    return device(prepared=type("P", (Healthy,), {"give": give}))


# ----------------------------------------------------------------------------------------------------------- the faults


def stale(self: Any, request: Any, result: Any) -> None:
    self.kept = getattr(self, "kept", result)
    request.write(0, self.kept)


class Several(Healthy):
    """Any number of ADDs."""

    over = False  # each over the memory of its first input, where it may write to it

    def result(self, request: Any) -> Any:
        arrays = self.constants | dict(zip(self.inputs, request.inputs, strict=True))
        for operation in self.main.operations:
            x, y = (arrays[i] for i in operation.inputs[:2])
            with np.errstate(all="ignore"):
                result = x + y
            if self.over and x.flags.writeable and x.shape == result.shape:
                x[...] = result
            arrays[operation.outputs[0]] = result
        return [arrays[i] for i in self.main.outputs]

    def give(self, request: Any, result: Any) -> None:
        for place, array in enumerate(result):
            request.write(place, array)


def in_place(act: Callable[[Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    def give(self: Any, request: Any, result: Any) -> None:
        own = request.outputs[0]
        if own is None:
            request.write(0, result)
        else:
            act(own, result)

    return give


def late(self: Any, request: Any, result: Any) -> None:
    request.write(0, result)

    def again() -> None:
        with pytest.raises(Exception, match="is written"):
            request.write(0, result)

    timer = threading.Timer(0.02, again)
    timer.daemon = True
    timer.start()


def ignoring(self: Any, request: Any, control: Any) -> None:
    if control.bounded:
        pass_time(0.35)
    self.give(request, self.result(request))


def raising_when(bounded: Callable[[Any], bool]) -> Callable[[Any, Any, Any], None]:
    def run(self: Any, request: Any, control: Any) -> None:
        if bounded(control):
            raise RuntimeError("what is this?")
        self.give(request, self.result(request))

    return run


def after_none(self: Any, request: Any, control: Any) -> None:
    """Wrong for ever once an input was missing."""
    if request.inputs and request.inputs[0] is None:
        self.spoilt = True
    self.give(request, self.result(request) + getattr(self, "spoilt", 0))


def timed(timing: Any) -> Callable[[Any, Any, Any], Any]:
    def run(self: Any, request: Any, control: Any) -> Any:
        self.give(request, self.result(request))
        return timing

    return run


def unfenced(self: Any, request: Any, control: Any, wait_for: Any = (), after: Any = None) -> Any:
    """Does not wait, and gives what it finds."""
    inner = request.inside([x * 0 for x in request.given], request.rooms)
    launched = Prepared.execute_fenced(self, inner, control, wait_for, after)
    launched.when_ended(lambda: request.adopt(inner))
    return launched


class Forgetful(HostBuffer):
    """Has contents before anything was written."""

    def copy_to(self, memory: Any) -> None:
        if self.shape is not None:
            super().copy_to(memory)


class Counted:
    """Another answer each time."""

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.answer, self.count = answer, itertools.count()

    def __call__(self, *_: Any) -> Any:
        return self.answer(next(self.count))


class Tired(Healthy):
    def run(self, request: Any, control: Any) -> Any:
        self.device.ran = True
        return super().run(request, control)


def no_after_a_run(self: Any, model: Any) -> Any:
    told = HealthyDevice.supports(self, model)
    return [Verdict(False, "tired")] if getattr(self, "ran", False) else told


def by_hints(self: Any, model: Any, hints: Hints) -> Any:
    made = Healthy(model, self)
    if hints.threads == 2:
        made.give = lambda request, result: request.write(0, result + 1)  # type: ignore[method-assign]
    return made


def by_relaxation(self: Any, model: Any, hints: Hints) -> Any:
    made = Healthy(model, self)
    if getattr(self, "relaxed", False):
        made.give = lambda request, result: request.write(0, result + 1)  # type: ignore[method-assign]
    self.relaxed = model.relaxed
    return made


def raises(error: BaseException) -> Callable[..., Any]:
    def act(*_: Any, **__: Any) -> Any:
        raise error

    return act


def wrong_kind(self: Any, model: Any, hints: Hints) -> Any:
    known = {"threads"}
    for option in hints.options:
        if option not in known:
            raise KeyError(option)
    return Healthy(model, self)


def of(fault: str) -> Callable[[], Device]:
    """The device with a fault of the catalogue, `tests.suites.faulty.driver`."""
    return partial(made, fault)


# What is wrong, the operation at which it is looked for, and what the line has to say, by check.
FAULTS: dict[str, list[tuple[Callable[[], Device], str, str]]] = {
    "identity": [(lambda: device(version=property(Counted(lambda n: f"1.{n}"))), "", r"version is 1\.\d, then 1\.\d")],
    "capabilities": [
        (of("capabilities-change"), "", "must stay the same"),
        (lambda: device(capabilities=lambda self: None), "", "must be Capabilities"),
        (of("capabilities-raise"), "", "raised ZeroDivisionError"),
    ],
    "status": [(of("status-nonsense"), "", "must be a DeviceStatus")],
    "extensions": [(lambda: device(extensions=("com.nobody.knows",)), "", "must be registered")],
    "verdicts": [
        (of("verdicts-change"), ADD, "returns (yes, then no|no, then yes) for"),
        (of("verdict-too-few"), ADD, "gave 0 verdicts, must be 1"),
        (of("supports-raises"), ADD, "raised KeyError"),
    ],
    "prepares": [
        (of("prepare-raises"), ADD, "accepts it, prepare.*KeyError"), (of("prepare-nothing"), ADD, "must give a Prepared"),
    ],
    "close": [
        (of("close-raises"), ADD, "RuntimeError: was never open"),
        (of("contexts-kept"), ADD, r"after \d+ like models were prepared and closed: ResourceExhausted"),
    ],
    "prepared-anew": [(of("prepare-the-same"), ADD, "that it gave before")],
    "runs": [(of("run-raises"), ADD, "KeyError"), (of("run-exits"), ADD, "SystemExit")],
    "output-type": [(of("wrong-type"), ADD, "given int32, must be")],
    "output-shape": [(of("wrong-shape"), ADD, "given shape")],
    "output-once": [(of("nothing-written"), ADD, "was not written, must be"), (of("written-twice"), ADD, "written twice")],
    "output-filled": [
        (of("half-filled"), ADD, "are unchanged"),
        (of("left-unfilled"), ADD, "are unchanged|filled wholly"),
        (of("half-filled"), QUANTIZE, "are unchanged"),
    ],
    "past-end": [
        (of("past-the-end"), ADD, "past its end"),
        (of("before-the-start"), ADD, "before the start of an output was written to"),
    ],
    "inputs-kept": [
        (of("writes-input-by-pointer"), ADD, "input 0 was written to"),
        (of("writes-input"), ADD, "writes to an input or a constant"),
    ],
    "constants-pools": [(of("second-pool"), "CONV_2D", "with constants in several memory pools")],
    "constants-kept": [(of("writes-constant-by-pointer"), ADD, "a constant of the model was written to")],
    "prepared-twice": [(of("close-frees-shared"), ADD, "other of the same model was closed")],
    "many-prepared": [(of("eight-contexts"), ADD, "prepared model 9 of 16")],
    "stable-verdicts": [
        (lambda: device(prepared=Tired, supports=no_after_a_run), ADD, "yes, and no while the model is prepared")
    ],
    "hints": [(lambda: device(prepare=by_hints), ADD, "with threads 2: output 0 differs")],
    "options": [(lambda: device(prepare=wrong_kind), ADD, "must be ignored or InvalidArgument")],
    "late-write": [(lambda: giving(late), ADD, "written after the execution ended")],
    "values": [(of("scale-of-the-other"), ADD, r"\d+ of \d+ calls: output 0 differs")],
    "steps": [(of("zero-point"), QUANTIZE, "not at a half|too high, zero point")],
    "stale-output": [
        (of("stale-output"), ADD, "run 2 equals the previous run with other inputs"),
        (of("request-by-sum"), ADD, "run 5 equals the previous run with other inputs"),
    ],
    "same-memory": [(of("address-kept"), ADD, "in the same memory equals the previous run")],
    "order": [(of("third-wrong"), ADD, "after other runs")],
    "deterministic": [(of("third-wrong"), ADD, "on the inputs of run 1")],
    "interleaved": [(of("shared-weights"), ADD, "alternating with another prepared model")],
    "relaxed": [
        (lambda: device(prepare=by_relaxation), ADD, "prepared after a relaxed model: output 0 differs"),
        (of("relaxed-stays"), ADD, "prepared after a relaxed model: output 0 differs"),
    ],
    "intermediates": [(of("arena-early"), ADD, "of two equal operations")],
    "threads": [(of("shared-scratch"), ADD, r"\d+ of 100 runs of 4 threads are wrong")],
    "trimmed": [
        (of("trim-loses-weights"), ADD, "after it was trimmed"),
        (of("trim-loses-itself"), ADD, "KeyError: 'ADD'"),
        (of("trim-raises"), ADD, r"trim\(\) raised KeyError"),
    ],
    "malformed-request": [(lambda: running(after_none), ADD, "after invalid requests")],
    "invalid-values": [
        (of("error-before"), "GATHER", r"with -?\d+ in \w+ gives the results of the execution before, must fail: GATHER")
    ],
    "deadline": [
        (lambda: running(ignoring), ADD, r"returned \d+\.\d s after its deadline"),
        (lambda: running(raising_when(lambda c: c.deadline is not None)), ADD, "must be a result or MissedDeadline"),
    ],
    "cancellation": [
        (lambda: running(ignoring), ADD, r"returned \d+\.\d s after it was cancelled"),
        (lambda: running(raising_when(lambda c: c.cancelled is not None)), ADD, "must be a result or Cancelled"),
    ],
    "timing": [
        (of("impossible-timing"), ADD, "within the time in the driver"),
        (lambda: running(timed(Timing(None, 10**15))), ADD, "must be at most the"),
        (lambda: running(timed("fast")), ADD, "must be a Timing"),
    ],
    "growth": [
        (of("leaks-memory"), ADD, r"leaks \d+ KiB of"), (of("leaks-descriptors"), ADD, "leaks 1 descriptors"),
        (of("leaks-threads"), ADD, "leaks 1 threads"),
    ],
    "burst": [(of("burst-stale"), ADD, "in a burst: output 0 differs")],
    "fenced": [
        (lambda: device(prepared=type("P", (Healthy,), {"execute_fenced": unfenced})), ADD, "fenced: output 0"),
        (of("fences-ignored"), ADD, "ended before its fence"),
    ],
    "callback": [(of("notifies-twice"), ADD, "notified 2 times")],
    "allocation": [(lambda: device(allocate=lambda s, d, r: Forgetful(d, r)), ADD, "from unwritten memory")],
    "allocation-roles": [(lambda: device(allocate=lambda s, d, r: HostBuffer(d, r[:1])), ADD, "memory for a role twice")],
}  # fmt: skip


def looked(made: Device, name: str, operation: str) -> tuple[str, str, str]:
    with open_trial(Trial(made, Drawing(operation, 0, 2), lambda stage: None, isolated=False)) as trial:
        return outcome_of(CHECKS[name], trial)


def in_a_thread(call: Callable[[], Any]) -> Any:
    """As a worker does: where a driver's SystemExit is not the application's own."""
    came: list[Any] = []
    worker = threading.Thread(target=lambda: came.append(call()))
    worker.start()
    worker.join()
    return came[0]


def test_there_is_a_driver_for_each_check():
    loops = {name for name, each in CHECKS.items() if each.only}  # test_control.py has drivers with loops
    kept = {fault.check for fault in table().values() if fault.check.startswith("cache-")}  # test_validate_cache.py
    assert (
        set(FAULTS) == set(CHECKS) - loops - kept and loops == {"loop-timeout"} and len(kept) == 6 and len(CHECKS) >= 45
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "place"), [(name, n) for name, found in FAULTS.items() for n in range(len(found))])
def test_a_broken_promise_is_named_by_its_check_and_says_how(name, place):
    make, operation, said = FAULTS[name][place]
    try:
        verdict, reason, _ = in_a_thread(lambda: looked(make(), name, operation))
    finally:
        memory.release()
    assert verdict == "failed"
    assert re.search(said, reason), reason


# What there is nothing of, in the calls that are drawn, for the check to judge.
UNSEEN = {
    ("steps", ADD), ("intermediates", QUANTIZE), ("constants-kept", QUANTIZE), ("interleaved", QUANTIZE),
    ("constants-pools", QUANTIZE),
    ("invalid-values", ADD), ("invalid-values", QUANTIZE),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FAULTS)
def test_a_healthy_driver_keeps_each_promise(name):
    kinds = {"intermediates": Several, "timing": type("P", (Healthy,), {"run": timed(Timing(0, 1))})}
    for operation in [""] if CHECKS[name].whole else [ADD, QUANTIZE]:
        found = looked(device(prepared=kinds.get(name, Healthy)), name, operation)
        unseen = ("skipped", CHECKS[name].unseen, "")
        assert found == (unseen if (name, operation) in UNSEEN else ("passed", "", ""))


def test_a_check_that_saw_nothing_is_skipped_and_one_that_saw_something_passes():
    with open_trial(Trial(device(), Drawing(ADD, 0, 1), lambda stage: None, isolated=False)) as trial:
        for seen, verdict in ((0, ("skipped", "there are none", "")), (1, ("passed", "", ""))):
            made = ContractCheck(
                "name", "A promise.", lambda trial, seen=seen: seen, "there are none", (), False, False, ()
            )
            assert outcome_of(made, trial) == verdict


class Same(Healthy):
    """Its results are the same whatever its inputs."""

    def result(self, request: Any) -> Any:
        return np.zeros_like(super().result(request))


@pytest.mark.parametrize("name", ["stale-output", "same-memory", "order", "threads", "interleaved"])
def test_results_that_no_input_changes_are_no_evidence_that_each_execution_has_its_own(name):
    assert looked(device(prepared=Same), name, ADD) == ("skipped", CHECKS[name].unseen, "")


# --------------------------------------------------------------------------------------------------- where, and in order


def test_the_place_of_a_wrong_result_is_the_run_of_the_driver():
    _, _, place = looked(giving(stale), "stale-output", ADD)
    line = Healthy.run.__code__.co_firstlineno
    assert place == f"{Path(__file__).name}:{line}"


def test_the_place_of_an_error_is_the_innermost_line_of_the_driver():
    _, _, place = looked(device(prepare=wrong_kind), "options", ADD)
    lines = Path(__file__).read_text().splitlines()
    assert lines[int(place.rpartition(":")[2]) - 1].strip() == "raise KeyError(option)"


def test_a_place_is_read_off_a_stack_from_either_end():
    stack = '  File "/a/first.py", line 3, in run\n    x\n  File "/a/second.py", line 5, in helper'
    assert (place_in(stack), place_first(stack), place_in("")) == ("second.py:5", "first.py:3", "")


def test_what_a_check_needs_comes_before_it_in_the_table():
    seen: set[str] = set()
    rounds = of_operation(ADD)
    while rounds:
        ready = [each for each in rounds if seen.issuperset(each.needs)]
        assert ready, f"a circle of needs: {[each.name for each in rounds]}"
        seen.update(each.name for each in ready)
        rounds = [each for each in rounds if each.name not in seen]


# ------------------------------------------------------------------------------------------------------------ processes

CRASHING = """
import ctypes, os, threading
import numpy as np
from nnhal.base.codes import OperationType
from nnhal.drivers.reference import Reference
from nnhal.hal.device import Prepared, Verdict

ACTS = {OperationType.ABS: lambda: ctypes.string_at(0), OperationType.NEG: lambda: wait_for_ever(),
        OperationType.SQRT: lambda: os._exit(7), OperationType.FLOOR: lambda: None}

def wait_for_ever():
    threading.Event().wait()

class P(Prepared):
    def __init__(self, inner, model):
        self.inner, self.type = inner, model.main.operations[0].type
    def run(self, request, control):
        ACTS[self.type]()
        self.inner.run(request, control)

class Crashing(Reference):
    name = "crashing"
    def supports(self, model):
        return [Verdict(o.type in ACTS, "not this") for o in model.main.operations]
    def prepare(self, model, hints):
        return P(super().prepare(model, hints), model)

device = Crashing
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("isolate", [False, True], ids=["in process", "isolated"])
def test_crashes_and_hangs_cost_one_check_of_their_operation_and_say_where(isolate: bool, tmp_path: Path) -> None:
    driver = tmp_path / "crashing.py"
    driver.write_text(CRASHING)
    only = "/ABS", "/NEG", "/SQRT", "/FLOOR", "/MUL"
    chosen = Validation(drivers=(str(driver),), only=only, timeout=3.0, isolate=isolate, draws=1)
    outcomes: list[CheckOutcome] = [o for some, _, _ in run_checks(chosen, 2) for o in some.outcomes]
    assert len({(o.check, o.operation) for o in outcomes}) == len(outcomes)
    bad = {o.operation: o for o in outcomes if o.verdict in ("failed", "crashed", "hung")}
    assert {name: (o.check, o.verdict) for name, o in bad.items()} == {
        "ABS": ("runs", "crashed"), "NEG": ("runs", "hung"), "SQRT": ("runs", "crashed"),
    }  # fmt: skip
    assert "SIGSEGV" in bad["ABS"].reason and "exit status 7" in bad["SQRT"].reason
    lines = CRASHING.splitlines()
    assert "threading.Event().wait()" in lines[int(bad["NEG"].place.rpartition(":")[2]) - 1]
    assert "in wait_for_ever" in bad["NEG"].reason and bad["ABS"].place.startswith("crashing.py:")
    for operation, found in bad.items():
        skipped = [o.reason for o in outcomes if o.operation == operation and o.verdict == "skipped"]
        assert len(skipped) > 20 and set(skipped) == {f"runs/{operation} {found.verdict} before"}
    healthy = [o for o in outcomes if o.operation == "FLOOR"]
    assert len(healthy) == len(asked_of_who_keeps_nothing())
    assert {o.verdict for o in healthy if o.check != "cache-saved"} <= {"passed", "skipped"}
    assert [o.verdict for o in outcomes if o.operation == "MUL"] == ["unsupported"]


def asked_of_who_keeps_nothing() -> list[str]:
    """The checks of an operation that a driver without cache files hears of: one of those asks for them."""
    return [each.name for each in of_operation(ADD) if each.name == "cache-saved" or not each.name.startswith("cache-")]


LEAVING = """
import os, time
from nnhal.base.codes import OperationType
from nnhal.drivers.reference import Reference
from nnhal.hal.device import Verdict

THERE = set()

class Leaving(Reference):
    name = "leaving"
    def supports(self, model):
        types = {o.type for o in model.main.operations}
        if OperationType.NEG in types and OperationType.ABS in THERE:
            os._exit(9)
        return [Verdict(o.type in (OperationType.ABS, OperationType.NEG), "not this") for o in model.main.operations]
    def prepare(self, model, hints):
        THERE.update(o.type for o in model.main.operations)
        return super().prepare(model, hints)

device = Leaving
"""


def test_what_another_check_left_behind_costs_one_check_and_is_not_blamed_on_the_operation(tmp_path: Path) -> None:
    driver = tmp_path / "leaving.py"
    driver.write_text(LEAVING)
    chosen = Validation(drivers=(str(driver),), only=("/ABS", "/NEG"), draws=1)
    outcomes: list[CheckOutcome] = [o for some, _, _ in run_checks(chosen, 1) for o in some.outcomes]
    assert len({(o.check, o.operation) for o in outcomes}) == len(outcomes) == 2 * len(asked_of_who_keeps_nothing()) + 1
    (bad,) = [o for o in outcomes if o.verdict in ("failed", "crashed", "hung")]
    assert (bad.operation, bad.verdict, bad.alone) == ("NEG", "crashed", "passed")
    assert bad.reason.startswith("supports(): ") and "exit status 9 (not in a new process" in bad.reason
    assert not [o for o in outcomes if o.reason.endswith(" before")]


def test_copies_that_a_driver_makes_of_its_process_are_found_and_end_with_it(tmp_path: Path) -> None:
    driver, told = tmp_path / "leaving.py", tmp_path / "pids"
    forks = f"""
        child = os.fork()
        if not child:
            time.sleep(600)
        with open({str(told)!r}, "a") as file:
            print(child, file=file)
        return super().prepare"""
    driver.write_text(LEAVING.replace("        return super().prepare", forks[1:]))
    chosen = Validation(drivers=(str(driver),), only=("growth/ABS",), draws=1)
    (outcome,) = [o for some, _, _ in run_checks(chosen, 1) for o in some.outcomes if o.check == "growth"]
    assert outcome.verdict == "failed" and "leaks 1 processes" in outcome.reason
    pids = [int(line) for line in told.read_text().split()]
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the end of the copies")


def played(work: _Checks, verdict: Callable[[CheckItem], str]) -> list[int]:
    """Give each check its verdict; return how many outcomes there are in all, as is known after each."""
    queue, done = deque(work.bundles), 0
    totals = [sum(len(bundle.items) for bundle in queue) + work.expected()]
    while queue:
        for item in queue.popleft().items:
            bundles, known = work.after(CheckOutcome(*item, verdict(item)))
            queue.extendleft(bundles)
            done += 1 + len(known)
        totals.append(done + sum(len(bundle.items) for bundle in queue) + work.expected())
    assert work.expected() == 0 and totals[-1] == done
    return totals


@pytest.mark.parametrize("bad", ["", "verdicts", "runs", "stale-output"])
def test_the_number_of_checks_is_known_from_the_begin(bad: str) -> None:
    work = _Checks(Validation(names="/(ADD|MUL|CONV_2D)$"))
    totals = played(work, lambda item: "failed" if item.check == bad else "passed")
    assert set(totals) == {totals[-1]} and totals[-1] > 100


def test_checks_that_need_an_unsupported_one_are_no_longer_expected() -> None:
    totals = played(
        _Checks(Validation(names="/ADD$")), lambda item: "unsupported" if item.check == "cache-saved" else "passed"
    )
    assert totals[0] - totals[-1] == len([name for name in CHECKS if name.startswith("cache-")]) - 2


def test_operations_that_are_not_supported_lower_what_is_expected_of_others() -> None:
    chosen = Validation(names="/(ADD|MUL|SUB|DIV)$")
    totals = played(_Checks(chosen), lambda item: "unsupported" if item.check == "verdicts" else "passed")
    assert totals == sorted(totals, reverse=True) and totals[-1] == 5
    assert totals[0] > 140 and [round(each / totals[0], 1) for each in totals[2:5]] == [0.4, 0.2, 0.1]


def test_a_single_check_runs_whatever_others_say(tmp_path: Path) -> None:
    driver = tmp_path / "crashing.py"
    driver.write_text(CRASHING)
    chosen = Validation(drivers=(str(driver),), only=("stale-output/FLOOR",), draws=1, seed=3)
    (outcome,) = [o for some, _, _ in run_checks(chosen, 1) for o in some.outcomes if o.operation]
    assert (outcome.check, outcome.operation, outcome.verdict) == ("stale-output", "FLOOR", "passed")


def test_a_check_that_there_is_none_of_is_refused_with_what_may_be_meant() -> None:
    with pytest.raises(InvalidArgument, match="stale-output"):
        Validation(only=("stale-outputs/ADD",))


@pytest.mark.parametrize(
    ("asked", "said"), [("growth/NOSUCH", "no case is selected"), ("growth/MUL", "1 of 1 cases: not this")]
)
def test_asking_for_what_is_not_checked_is_no_success(asked: str, said: str, tmp_path: Path) -> None:
    driver = tmp_path / "crashing.py"
    driver.write_text(CRASHING)
    program = [
        sys.executable,
        "-m",
        "nnhal.cli.main",
        "test",
        "contract",
        "--driver",
        str(driver),
        "--filter",
        f"^{asked}$",
    ]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "nothing was tested" in done.stderr and said in done.stderr
