"""What placement promises where several of its parts meet: rules, tuning, deadlines, failures."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base import time as base_time
from nnhal.runtime import discovery, isolation, measured, tuning
from nnhal.runtime.measured import record
from nnhal.runtime.measured.background_write import wait_for_writes
from nnhal.runtime.measured.profile import MachineProfile
from nnhal.runtime.placer import identity_of
from tests.models import make_model
from tests.runtime.devices import Fake, failing
from tests.runtime.measured_drivers import X, chain, clock, driver, profiled, two, where  # noqa: F401
from tests.waiting import LIMIT, Clock


def compiled_for(*devices: Any, **more: Any) -> nnhal.Compiled:
    return nnhal.compile(chain(), devices=list(devices), cache_dir=False, **{"fallback": "allow", **more})


class SecondFake(Fake):
    name = "other"


def test_what_is_tuned_keeps_to_rules(tmp_path: Path) -> None:
    driver(tmp_path, "slow", seconds=0.003)
    driver(tmp_path, "quick")
    with compiled_for("slow", "quick", placement=nnhal.Rule("slow", "#0"), tune=0.2) as compiled:
        assert where(compiled.placement)[0] == "slow"


def test_what_is_tuned_keeps_to_a_function(tmp_path: Path) -> None:
    driver(tmp_path, "slow", seconds=0.003)
    driver(tmp_path, "quick")
    with compiled_for("slow", "quick", placement=lambda *_: ["slow", ""], tune=0.2) as compiled:
        assert where(compiled.placement)[0] == "slow"


def test_what_is_tuned_and_single_is_on_one_device(tmp_path: Path) -> None:
    driver(tmp_path, "slow", seconds=0.003)
    first, second = Fake(takes=lambda n: n == 0), SecondFake(takes=lambda n: n == 1)
    devices = first, second, "slow"
    with compiled_for(*devices, fallback="forbid", placement="single", tune=0.2) as compiled:
        assert where(compiled.placement) == ["slow"] * 2


def test_tuning_leaves_time_for_what_is_to_end_by_a_deadline(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: Clock = request.getfixturevalue("clock")
    played.play(monkeypatch, tuning, base_time)
    for n in range(3):
        driver(tmp_path, f"slow{n}", seconds=0.1)
    with compiled_for("slow0", "slow1", "slow2", fallback="forbid", deadline=2.0, tune=60) as compiled:
        np.testing.assert_array_equal(compiled(X), X)


def test_a_function_whose_device_fails_to_prepare_falls_back() -> None:
    broken = Fake(on_prepare=failing(nnhal.OperationFailed("no")))
    with compiled_for(broken, placement=lambda *_: ["fake", "fake"]) as compiled:
        assert where(compiled.placement) == ["reference"] * 2


@pytest.mark.parametrize("by_hand", [nnhal.Rule("broken"), lambda *_: ["broken"] * 2])
def test_what_is_placed_by_hand_and_failed_before_falls_back_again(tmp_path: Path, by_hand: Any) -> None:
    driver(tmp_path, "broken", on_prepare="raise RuntimeError('no')")
    for _ in range(2):
        with compiled_for("broken", placement=by_hand) as compiled:
            np.testing.assert_array_equal(compiled(X), X)


def test_a_candidate_that_fails_later_is_left_out(tmp_path: Path) -> None:
    driver(tmp_path, "quick")
    count = [0]

    def strike() -> None:
        count[0] += 1
        if count[0] > 3:
            raise nnhal.OperationFailed("worn out")

    with compiled_for(Fake(on_run=strike), "quick", fallback="forbid", tune=0.2) as compiled:
        assert where(compiled.placement) == ["quick"] * 2


def test_what_fell_back_while_it_was_measured_is_no_measurement(tmp_path: Path) -> None:
    counting = "globals().__setitem__('n', globals().get('n', 0) + 1)"
    driver(
        tmp_path, "worn", seconds=0.001, on_run=f"{counting}\n        if globals()['n'] > 2: raise RuntimeError('no')"
    )
    driver(tmp_path, "steady", seconds=0.0015)
    identity = identity_of(isolation.key_of(discovery.load_one("worn")), {})
    compiled_for("worn", "steady", tune=0.3).close()
    wait_for_writes(10)
    assert len(record.failures([identity])) == 1
    with closing(sqlite3.connect(measured.path())) as c:
        assert not [row for row in c.execute("select assignment from tuned") if identity in row[0]]


# ----------------------------------------------------------------------------------------------- whose failure it was


def failures_of(device: str) -> list[str]:
    wait_for_writes(10)
    if not measured.is_measured():
        return []
    with closing(sqlite3.connect(measured.path())) as c:
        return [why for (why,) in c.execute("select why from failures where name = ?", (device,))]


def test_what_the_cpu_fails_at_too_is_not_kept_against_the_device(tmp_path: Path) -> None:
    """Inputs that do not fit were: the device was not asked for the model again."""
    driver(tmp_path, "picky", on_run="raise ValueError('shapes differ')")
    model = make_model(lambda b, x, y: b.add(x, y), (4,), (None,))
    with nnhal.compile(model, devices=["picky"], fallback="allow", cache_dir=False) as compiled:
        with pytest.raises(nnhal.NnhalError):
            compiled(np.ones(4, np.float32), np.ones(3, np.float32))
        assert failures_of("picky") == []
        compiled(np.ones(4, np.float32), np.ones(4, np.float32))
        (why,) = failures_of("picky")
        assert "shapes differ" in why


@pytest.mark.parametrize(
    "raised",
    ["MemoryError()", "OSError(24, 'files')", "OSError(12, 'memory')", 'RuntimeError("can\'t start new thread")'],
)
@pytest.mark.parametrize("when", ["on_run", "on_prepare"])
def test_a_driver_that_runs_short_of_something_is_asked_again(tmp_path: Path, when: str, raised: str) -> None:
    driver(tmp_path, "short", **{when: f"raise {raised}"})
    with compiled_for("short") as compiled:
        np.testing.assert_array_equal(compiled(X), X)
    assert failures_of("short") == []


def test_a_record_that_another_process_holds_breaks_no_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_WAIT_TO_WRITE", 600)
    driver(tmp_path, "broken", on_run="raise ValueError('no')")
    record.keep_profile(profile_of_nothing())
    with closing(sqlite3.connect(measured.path(), isolation_level=None)) as other, compiled_for("broken") as compiled:
        other.execute("begin immediate")
        compiled.run(X, deadline=LIMIT)
        with compiled_for("broken", deadline=LIMIT) as again:
            again(X)
        other.execute("rollback")
    assert failures_of("broken") != []


def profile_of_nothing() -> MachineProfile:
    return MachineProfile(record.processor(), 1, {})


def test_failures_are_forgotten_from_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST_FAILURES", 3)
    times = iter(range(100, 110))
    monkeypatch.setattr(record.time, "time", lambda: next(times))
    for number in range(6):
        record.record_failure(record.StoredFailure("device", f"model {number}", (0,), "execution", "no", "name"))
    assert [failure.model for failure in record.failures(["device"])] == [f"model {n}" for n in (2, 3, 4, 5)]
