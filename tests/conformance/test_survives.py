"""Whatever a driver does costs the vector at which it does it, and no other; in process and isolated find the same."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from nnhal.base.errors import DeviceUnavailable
from nnhal.conformance.parallel import run_vectors
from nnhal.conformance.selection import Selection
from nnhal.conformance.suite import Outcome
from nnhal.conformance.suites.run import repeat_command
from nnhal.conformance.suites.suite import CaseOutcome, SuiteRun
from nnhal.conformance.vectors import index

TIMEOUT = 8.0  # seconds; a crash takes a fraction of one, and several beside other work
DRIVER = """
import ctypes
from nnhal.base.codes import operation_name
from nnhal.drivers.reference import Reference
from nnhal.drivers.samples.faulty import FAULTS
from nnhal.hal.device import Prepared


def overflow(_):
    nested = ()
    for _ in range(1 << 18):
        nested = (nested,)
    hash(nested)  # on the stack of C; `repr` would search all levels in each


def scribble(_):
    raise AssertionError("is done where the arrays are")


ACTS = {name: fault.act for name, fault in FAULTS.items()} | {"overflow": overflow, "scribble": scribble}
ORDERS = %r


def obey(model, stage):
    for operation in model.main.operations:
        at, what = ORDERS.get(operation_name(operation.type), ("", ""))
        if at == stage and what in ("short", "scribble"):
            return what
        if at == stage:
            ACTS[what](0.0)
    return ""


class Wrong(Prepared):
    def __init__(self, inner, model):
        self.inner, self.held = inner, model

    def run(self, request, control):
        if obey(self.held, "run") == "scribble":
            ctypes.memset(request.inputs[0].ctypes.data, 0, request.inputs[0].nbytes)
        return self.inner.run(request, control)

    def close(self):
        obey(self.held, "close")


class Device(Reference):
    name = "wrong"

    def supports(self, model):
        verdicts = super().supports(model)
        return verdicts[:-1] if obey(model, "supports") == "short" else verdicts

    def prepare(self, model, hints):
        obey(model, "prepare")
        return Wrong(super().prepare(model, hints), model)


def device():
    return Device()
"""
KILLED = "{}\\(\\): the driver process was killed by SIGSEGV"
LATE = "{}\\(\\) has not ended within 8 s"
# What happens where, and what is to be found.
FAULTS = {
    "ABS": ("supports", "hang", "hung", LATE),
    "MAXIMUM": ("prepare", "spin", "hung", LATE),
    "FLOOR": ("run", "freeze", "hung", LATE),  # with the interpreter held
    "MINIMUM": ("close", "hang", "hung", LATE),
    "NEG": ("supports", "exit", "crashed", r"{}\(\): the driver process ended with exit status 0"),
    "POW": ("prepare", "segv", "crashed", KILLED),
    "PRELU": ("run", "segv", "crashed", KILLED),
    "SQRT": ("close", "segv", "crashed", KILLED),
    "RELU": ("run", "overflow", "crashed", KILLED),
    "RELU1": ("run", "scribble", "crashed", KILLED),
    "RELU6": ("prepare", "abort", "crashed", r"{}\(\): the driver process was killed by SIGABRT"),
    "TANH": ("run", "sys-exit", "failed", "DriverFailed: .*SystemExit: 1"),
    "LOGISTIC": ("prepare", "raise", "failed", r"DriverFailed: .*prepare\(\) raised RuntimeError: raised on command"),
    "L2_NORMALIZATION": ("run", "fail", "failed", "OperationFailed: .*faulty: failed on command"),
    "LOGICAL_NOT": (
        "supports",
        "short",
        "failed",
        r"ContractBroken: .*supports\(\) gave 0 verdicts, must be 1, one an",
    ),
}


def one_of_each(vectors: Path) -> str:
    """An expression for one vector of each operation that a fault is ordered for, and all of ADD, which are in between."""
    chosen: dict[str, str] = {}
    for id, entry in index(vectors).items():
        if len(entry["operations"]) == 1 and "expectFailure" not in entry["flags"]:
            chosen.setdefault(entry["primary"], id)
    ids = "|".join(re.escape(chosen[operation]) for operation in FAULTS)
    return f"^({ids}|V1_./add.*)$"


def run(selection: Selection, jobs: int = 2) -> list[Outcome]:
    return [outcome for some, _, _ in run_vectors(selection, jobs) for outcome in some.outcomes]


@pytest.fixture(scope="module", params=[False, True], ids=["in process", "isolated"])
def outcomes(request: pytest.FixtureRequest, vectors: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    driver = tmp_path_factory.mktemp("driver") / "wrong.py"
    driver.write_text(DRIVER % {operation: order[:2] for operation, order in FAULTS.items()})
    pattern = one_of_each(vectors)
    chosen = Selection(
        vectors, drivers=(str(driver),), pattern=pattern, rerun=False, isolate=request.param, timeout=TIMEOUT
    )
    return run(chosen, jobs=4)  # as many as hang: they are waited for at once


@pytest.mark.sampled(2)
def test_every_fault_costs_its_own_vector_and_is_named(outcomes: list[Outcome]) -> None:
    for operation, (stage, _, verdict, reason) in FAULTS.items():
        found = [outcome for outcome in outcomes if outcome.primary == operation]
        assert [outcome.verdict for outcome in found] == [verdict], found
        assert re.search(reason.format(stage), found[0].reason), found
    places = {outcome.primary: outcome.place for outcome in outcomes}
    assert all(places[name].startswith(("wrong.py:", "faulty.py:")) for name in ("PRELU", "TANH", "LOGISTIC")), places


def test_the_healthy_vectors_between_them_pass_each_once(outcomes: list[Outcome], vectors: Path) -> None:
    healthy = [outcome for outcome in outcomes if outcome.primary not in FAULTS]
    assert {outcome.verdict for outcome in healthy} == {"passed"}
    pattern = one_of_each(vectors)
    assert sorted(o.id for o in outcomes) == sorted(id for id in index(vectors) if re.search(pattern, id))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("act", ["os._exit(1)", "os.closerange(3, 1000)"])
def test_what_passed_just_before_a_crash_is_not_lost(act: str, vectors: Path, tmp_path: Path) -> None:
    driver = tmp_path / "ranks.py"
    driver.write_text(
        """
import os
from nnhal.drivers.reference import Reference

class Ranks(Reference):
    name = "ranks"
    def prepare(self, model, hints):
        print("hello", flush=True)
        if len(model.main.operands[model.main.inputs[0]].dimensions) == 2:
            ACT
        return super().prepare(model, hints)

def device():
    return Ranks()
""".replace("ACT", act)
    )
    found = run(Selection(vectors, drivers=(str(driver),), pattern="^V1_2/add_v1_2/", rerun=False), 1)
    verdicts = {outcome.id.split("/")[2]: outcome.verdict for outcome in found}
    assert len(found) == len(verdicts) > 3
    assert verdicts == {
        name: "crashed" if name.endswith("_2_2") or "internal_2" in name else "passed" for name in verdicts
    }
    assert set(verdicts.values()) == {"passed", "crashed"}


LATE_CRASH = """
import os
from nnhal.drivers.reference import Reference
from nnhal.hal.device import Prepared

RAN = []

class Fifth(Prepared):
    def __init__(self, inner):
        self.inner = inner
    def run(self, request, control):
        RAN.append(request)
        if len(RAN) == 5:  # damage that the third has done, say
            os.abort()
        return self.inner.run(request, control)

class Late(Reference):
    name = "late"
    def prepare(self, model, hints):
        return Fifth(super().prepare(model, hints))

def device():
    return Late()
"""


@pytest.mark.parametrize("isolate", [False, True], ids=["in process", "isolated"])
def test_a_crash_that_what_ran_before_has_done_is_named_so_with_what_that_was(
    isolate: bool, vectors: Path, tmp_path: Path
) -> None:
    driver = tmp_path / "late.py"
    driver.write_text(LATE_CRASH)
    selection = Selection(vectors, drivers=(str(driver),), pattern="^V1_0/(add|mul)", rerun=False, isolate=isolate)
    found = run(selection, 1)
    late = [outcome for outcome in found if outcome.verdict != "passed"]
    assert 5 < len(found) == len({outcome.id for outcome in found}) and late
    for outcome in late:
        assert (outcome.verdict, outcome.alone, len(outcome.before)) == ("crashed", "passed", 4)
        assert outcome.reason.startswith(
            "crashed late, passed alone in a new process: device late: run(): the driver pro"
        )
        assert "SIGABRT" in outcome.reason and outcome.id not in outcome.before
    case = CaseOutcome("vectors", late[0].id, "crashed", before=late[0].before)
    words = shlex.split(repeat_command(SuiteRun(), case))
    assert words[words.index("--jobs") + 1] == "1"
    pattern = words[words.index("--filter") + 1]
    again = run(replace(selection, pattern=pattern), 1)
    assert {outcome.id for outcome in again} == {late[0].id, *late[0].before}
    assert [outcome.verdict for outcome in again].count("crashed") == 1


@pytest.mark.parametrize("isolate", [False, True], ids=["in process", "isolated"])
def test_crashes_that_come_late_again_and_again_end_with_each_vector_counted_once(
    isolate: bool, vectors: Path, tmp_path: Path
) -> None:
    driver = tmp_path / "late.py"
    driver.write_text(LATE_CRASH)
    chosen = Selection(vectors, drivers=(str(driver),), pattern="^V1_0/(add|mul)", rerun=False, isolate=isolate)
    found = run(chosen, 2)
    assert sorted(o.id for o in found) == sorted(id for id in index(vectors) if re.search(chosen.pattern, id))
    assert {outcome.verdict for outcome in found} <= {"passed", "crashed"}
    assert all(outcome.alone == "passed" for outcome in found if outcome.verdict == "crashed")


def test_a_driver_that_forks_has_each_vector_counted_once(vectors: Path, tmp_path: Path) -> None:
    driver = tmp_path / "forks.py"
    driver.write_text(
        """
import os
from nnhal.drivers.reference import Reference

class Forks(Reference):
    name = "forks"
    def prepare(self, model, hints):
        os.fork()
        return super().prepare(model, hints)

def device():
    return Forks()
"""
    )
    found = run(Selection(vectors, drivers=(str(driver),), pattern="^V1_0/add", rerun=False), 1)
    ids = [outcome.id for outcome in found]
    assert len(ids) == len(set(ids)) > 1
    assert {outcome.verdict for outcome in found} == {"passed"}


def test_a_driver_that_dies_or_fails_as_it_loads_is_an_error_that_says_how(vectors: Path, tmp_path: Path) -> None:
    driver = tmp_path / "dies.py"
    for text, wanted in (("import os\nos._exit(7)", "exit status 7"), ("import nothing_like_it", "nothing_like_it")):
        driver.write_text(text)
        with pytest.raises(DeviceUnavailable, match=wanted):
            run(Selection(vectors, drivers=(str(driver),)), 1)


def test_a_driver_that_does_not_load_again_has_crashed_at_all_that_is_left(vectors: Path, tmp_path: Path) -> None:
    driver, used = tmp_path / "once.py", tmp_path / "used"
    driver.write_text(f"""
import os
from nnhal.drivers.reference import Reference

class Once(Reference):
    name = "once"
    def prepare(self, model, hints):
        os._exit(5)

def device():
    os.close(os.open({str(used)!r}, os.O_CREAT | os.O_EXCL))
    return Once()
""")
    found = run(Selection(vectors, drivers=(str(driver),), pattern="V1_0/add_", rerun=False), 1)
    assert {outcome.verdict for outcome in found} == {"crashed"} and len(found) > 1
    assert "exit status 5" in found[0].reason
    assert all("no longer loads" in outcome.reason and "used" in outcome.reason for outcome in found[1:])


def test_a_run_of_several_processes_is_one_of_all_vectors(vectors: Path) -> None:
    one, several = (run(Selection(vectors, operations=frozenset({"RELU"})), jobs) for jobs in (1, 3))
    assert sorted((o.id, o.variant, o.verdict) for o in one) == sorted((o.id, o.variant, o.verdict) for o in several)
    assert len(one) > 10
