"""The published vectors through a driver in a process of its own: in every way to execute, and at every level."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nnhal.base.errors import DeviceUnavailable, InvalidArgument
from nnhal.conformance.execution_paths import WAYS
from nnhal.conformance.parallel import run_vectors
from nnhal.conformance.selection import Selection
from nnhal.conformance.suite import Outcome
from nnhal.conformance.vectors import index

SMALL, TENTH = 0.02, 0.1  # parts of all vectors
PUBLISHED = 7072
VERSIONS = "V1_0", "V1_1", "V1_2", "V1_3"  # as the index states them; later ones begin with AIDL

# What the .hal files call a way's methods; copyTo, copyFrom are IBuffer's, GetShape and Bind are nnhal's own.
PREPARED = {"getSupportedOperations_1_3", "prepareModel_1_3"}
METHODS_OF_WAYS = {
    "plain": {"executeSynchronously_1_3"},
    "burst": {"configureExecutionBurst"},  # the executions themselves go through its queues
    "fenced": {"executeFenced", "getExecutionInfo"},
    "memory": {"executeSynchronously_1_3", "allocate", "copyFrom", "copyTo", "GetShape"},
    "callback": {"execute_1_3"},
}
FLAG_OF_WAYS = dict.fromkeys(("fenced", "memory"), "deviceMemory")  # they want outputs whose shape can be stated
METHODS_OF_LEVELS = {
    "1.0": {"getSupportedOperations", "prepareModel", "execute"},
    "1.1": {"getSupportedOperations_1_1", "prepareModel_1_1", "execute"},
    "1.2": {"getSupportedOperations_1_2", "prepareModel_1_2", "executeSynchronously"},
    "1.3": PREPARED | METHODS_OF_WAYS["plain"],
}


@dataclass(frozen=True)
class Run:
    """Outcomes of a selection, the calls that its driver got, and the index' entries of the vectors that ran."""

    outcomes: list[Outcome]
    calls: Counter[str]
    entries: list[dict[str, Any]]

    def failed(self) -> list[str]:
        return [f"{o.id} {o.variant}: {o.reason}" for o in self.outcomes if o.verdict == "failed"]

    def verdicts(self) -> Counter[str]:
        return Counter(o.verdict for o in self.outcomes)

    def that_must_run(self) -> int:
        return sum("expectFailure" not in e["flags"] for e in self.entries)


def isolated(path: Path, *, jobs: int = 1, **named: Any) -> Run:
    """Run a selection on the reference in a process of its own."""
    outcomes: list[Outcome] = []
    calls: Counter[str] = Counter()
    for done, _, _ in run_vectors(Selection(path, device="reference", isolate=True, **{"rerun": False} | named), jobs):
        outcomes += done.outcomes
        calls += done.calls
    entries = index(path)
    return Run(outcomes, calls, [entries[o.id] for o in outcomes])


def all_cpus() -> int:
    return len(os.sched_getaffinity(0))


# ------------------------------------------------------------------------------------------------------ ways to execute


def check_way(run: Run, way: str) -> None:
    """All passed, by the methods of this way and no other."""
    assert run.failed() == []
    assert set(run.verdicts()) == {"passed"}
    assert set(run.calls) == {"Bind", *PREPARED, *METHODS_OF_WAYS[way]}
    for method in METHODS_OF_WAYS[way] - {"copyFrom", "copyTo", "GetShape"}:
        assert run.calls[method] >= run.that_must_run() > 0, method


def test_every_way_to_execute_is_tested() -> None:
    assert set(METHODS_OF_WAYS) == set(WAYS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", METHODS_OF_WAYS)
def test_a_share_of_the_vectors_passes_in_every_way(vectors: Path, way: str) -> None:
    run = isolated(vectors, way=way, share=SMALL, flag=FLAG_OF_WAYS.get(way, ""))
    assert abs(len(run.outcomes) / PUBLISHED - SMALL) < SMALL / 4
    check_way(run, way)


@pytest.mark.parametrize("way", ["plain", "burst"])
def test_a_shape_that_depends_on_an_input_left_out_at_run_time_is_accepted(vectors: Path, way: str) -> None:
    run = isolated(vectors, way=way, pattern="lstm2", rerun=True)  # no input gate: its scratch buffer is smaller
    assert any(o.variant == "dynamic" for o in run.outcomes)
    check_way(run, way)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_all_vectors_and_reruns_pass_by_plain_calls(vectors: Path) -> None:
    run = isolated(vectors, rerun=True, jobs=all_cpus())
    assert len({o.id for o in run.outcomes}) == PUBLISHED
    assert Counter(o.variant for o in run.outcomes) == {"": PUBLISHED, "dynamic": 6426, "signed": 656}
    check_way(run, "plain")


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", sorted(set(METHODS_OF_WAYS) - {"plain"}))
def test_a_tenth_of_the_vectors_passes_in_every_way(vectors: Path, way: str) -> None:
    flag = FLAG_OF_WAYS.get(way, "")
    run = isolated(vectors, way=way, share=TENTH, flag=flag, jobs=all_cpus())
    assert abs(len(run.outcomes) / PUBLISHED - TENTH) < TENTH / 10
    assert all(flag in e["flags"] for e in run.entries if flag)
    check_way(run, way)


# --------------------------------------------------------------------------------------------------------------- levels


def check_level(run: Run, level: str) -> None:
    """What is stated for the level passed, what is stated for a later one is refused, by methods of the level only."""
    up_to = VERSIONS[: VERSIONS.index("V" + level.replace(".", "_")) + 1]
    assert run.failed() == []
    ran = 0
    for outcome, entry in zip(run.outcomes, run.entries, strict=True):
        stated = entry.get("minSupportedVersion")
        if stated in up_to:
            ran += 1
            assert outcome.verdict == "passed", outcome
        elif stated is not None and "expectFailure" not in entry["flags"]:
            assert outcome.verdict == "unsupported", outcome
            assert f"the device is at {level}" in outcome.reason, outcome
    assert ran > 0
    assert set(run.calls) == {"Bind", *METHODS_OF_LEVELS[level]}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", METHODS_OF_LEVELS)
def test_a_share_of_the_vectors_passes_on_a_driver_of_an_old_level(vectors: Path, level: str) -> None:
    check_level(isolated(vectors, level=level, share=SMALL), level)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("level", METHODS_OF_LEVELS)
def test_all_vectors_of_an_old_level_pass_on_a_driver_of_that_level(vectors: Path, level: str) -> None:
    run = isolated(vectors, level=level, jobs=all_cpus())
    assert len(run.outcomes) == PUBLISHED
    check_level(run, level)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("isolate", [False, True])
def test_a_device_that_is_not_there_is_said_not_to_be_by_however_many_processes(
    jobs: int, isolate: bool, vectors: Path
) -> None:
    with pytest.raises(DeviceUnavailable, match="nosuch"):
        list(run_vectors(Selection(vectors, device="nosuch", isolate=isolate), jobs))


@pytest.mark.parametrize(("named", "rule"), [
    ({"pattern": "("}, "regular expression"), ({"share": 0.0}, "share"), ({"share": float("nan")}, "share"),
    ({"level": "9.9"}, "level"),
])  # fmt: skip
def test_what_selects_no_vectors_by_a_mistake_is_refused_before_anything_runs(named: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidArgument, match=rule):
        Selection(Path("anywhere"), device="reference", **named)
