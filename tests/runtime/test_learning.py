"""What executions took is remembered, where a profile says that devices were measured; what failed is kept against them."""

import json
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.records import replace
from nnhal.frontends.python import Builder
from nnhal.model.graph import Model
from nnhal.runtime import discovery, execute, isolation, learning, tuning
from nnhal.runtime.judgement import identity_of
from nnhal.runtime.learning import COUNTED, LEAST, UNCOUNTED
from nnhal.runtime.measured import place, record
from nnhal.runtime.measured.later import queue_write, wait_for_writes
from nnhal.runtime.measured.profile import CrossingCost, DeviceProfile, LinearCost, MachineProfile
from tests.waiting import LIMIT, Clock, pass_time

US = 1e-6
SLOW = """
import sys, time
from nnhal.hal.device import Capabilities, Device, Prepared, YES
from nnhal.runtime import discovery


class Slowed(Prepared):
    def __init__(self, inner, seconds):
        self.inner, self.seconds = inner, seconds

    def run(self, request, control):
        {spend}(self.seconds)
        {on_run}
        return self.inner.run(request, control)


class {name}(Device):
    name, version = "{device}", "{version}"

    def capabilities(self):
        return Capabilities.uniform({stated})

    def supports(self, model):
        return discovery.cpu().supports(model)

    def prepare(self, model, hints):
        {on_prepare}
        return Slowed(discovery.cpu().prepare(model, hints), {seconds})


def device():
    return {name}()
"""
X = np.ones((1, 4), np.float32)


played: Clock | None = None  # the time that executions take here, where a test plays it


def spend(seconds: float) -> None:
    """What an execution does that takes so long."""
    assert played is not None
    played.advance(seconds or 1e-4)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time by which executions are measured."""
    made = Clock().play(monkeypatch, execute, learning, tuning)
    monkeypatch.setattr(sys.modules[__name__], "played", made)
    return made


def driver(folder: Path, device: str, **given: Any) -> str:
    """A driver in a file, which another run would find too."""
    facts = {"version": "1", "stated": 0.1, "seconds": 0.0, "on_run": "pass", "on_prepare": "pass", **given}
    facts["spend"] = "time.sleep" if played is None else f"sys.modules[{__name__!r}].spend"
    path = folder / f"{device}.py"
    path.write_text(SLOW.format(name=device.title(), device=device, **facts))
    nnhal.load_driver(path)
    return device


def chain(length: int = 2) -> Model:
    b = Builder("learnt")
    x = y = b.input((1, 4))
    for _ in range(length):
        y = b.neg(y)
    return b.finish([x], [y])


def profiled(**each: float) -> None:
    """A profile in which an operation takes so many seconds on each device."""
    devices = {}
    for name, seconds in each.items():
        key = isolation.key_of(discovery.load_one(name))
        lines = {"float32": {"relu": LinearCost(seconds, 0.0, 0.0)}}
        devices[name] = DeviceProfile(identity_of(key), key.version, lines, {"none": 1 * US})
    crossings = {f"{a} > {b}": {"none": CrossingCost(US, 0.0)} for a in each for b in each if a != b}
    record.keep_profile(MachineProfile(record.processor(), 1, devices, crossings))


def used(*devices: str, runs: int = UNCOUNTED + COUNTED, length: int = 2, **more: Any) -> nnhal.Placement:
    with nnhal.compile(chain(length), devices=list(devices), fallback="allow", cache_dir=False, **more) as compiled:
        for _ in range(runs):
            np.testing.assert_array_equal(compiled(X), X * (-1) ** length)
        found = compiled.placement
    wait_for_writes(10)
    return found


def where(placement: nnhal.Placement) -> list[str]:
    return [choice.device for choice in placement]


@pytest.fixture(autouse=True)
def what_a_test_learns_is_written_before_the_next() -> Iterator[None]:
    yield
    wait_for_writes(10)


def written() -> None:
    """What is written in the background has been."""
    wait_for_writes(10)
    assert learnt_rows()


def learnt_rows() -> list[Any]:
    with closing(sqlite3.connect(place.path())) as connection:
        return connection.execute("select assignment, seconds, count from learnt order by assignment").fetchall()


@pytest.fixture
def two(tmp_path: Path, clock: Clock) -> Iterator[None]:
    """Devices quick and slow, each predicted to be what the other is."""
    driver(tmp_path, "quick")
    driver(tmp_path, "slow", seconds=0.01)
    profiled(quick=1e-3, slow=10 * US, reference=0.5)
    yield


def test_the_second_compilation_knows_what_the_first_took(two: None) -> None:
    first = used("quick", "slow")
    assert where(first) == ["slow", "slow"] and not first.forecasts[0].known
    assert len(first.live.took) == 1 and first.live.took[0] >= 0.01
    assert first.forecasts[0].seconds == pytest.approx(21 * US) and "predicted 21 µs (measured profile)" in str(first)
    written()
    second = used("quick", "slow")
    assert where(second) == ["quick", "quick"]
    written()
    third = used("quick", "slow")
    assert where(third) == ["quick", "quick"] and third.forecasts[0].known
    assert [step["predicted"] for step in third.to_dict()["steps"]] == [third.forecasts[0].seconds]


def test_what_a_device_states_that_was_not_measured_is_of_the_cpus_time_as_it_was(tmp_path: Path) -> None:
    driver(tmp_path, "quick")
    driver(tmp_path, "unknown", stated=0.001)
    profiled(quick=20 * US, reference=50e-3)
    assert where(used("quick", "unknown", runs=0)) == ["quick", "quick"]  # 0.001 of 50 ms
    profiled(quick=20 * US, reference=5e-3)
    assert where(used("quick", "unknown", runs=0)) == ["unknown", "unknown"]


@pytest.fixture
def near(tmp_path: Path, clock: Clock) -> Iterator[None]:
    """Slow is predicted less than it takes, and quick more, a tenth more than slow takes."""
    driver(tmp_path, "quick")
    driver(tmp_path, "slow", seconds=0.0102)
    profiled(quick=5.6e-3, slow=4e-3, reference=0.5)
    yield


def test_what_may_be_faster_than_what_is_known_is_tried_once(near: None) -> None:
    assert where(used("quick", "slow")) == ["slow", "slow"]
    written()
    assert where(used("quick", "slow")) == ["quick", "quick"]
    written()
    found = used("quick", "slow")
    assert where(found) == ["quick", "quick"] and found.forecasts[0].known and found.forecasts[0].seconds < 0.005


def both_measured_once(quick: float, slow: float) -> None:
    """Each by one compilation, which took so many seconds, whatever it took here."""
    for _ in range(2):
        used("quick", "slow")
        written()
    with closing(sqlite3.connect(place.path())) as connection:
        connection.execute("update learnt set seconds = case when seconds < 0.005 then ? else ? end", (quick, slow))
        connection.commit()


def devices_of_next(compilations: int, **more: Any) -> list[str]:
    found = []
    for _ in range(compilations):
        found.append(where(used("quick", "slow", **more))[0])
        written()
    return found


def test_a_device_that_one_unlucky_compilation_measured_has_another_chance(near: None) -> None:
    both_measured_once(quick=0.012, slow=0.0105)
    assert devices_of_next(4) == ["slow", "quick", "quick", "quick"]


def test_one_that_was_not_unlucky_is_measured_once_more_and_no_more(near: None) -> None:
    both_measured_once(quick=0.0045, slow=0.004)
    assert devices_of_next(5, runs=0) == ["slow", "quick", "slow", "slow", "slow"]


def test_what_was_tried_and_did_not_run_often_enough_is_not_tried_again(near: None) -> None:
    used("quick", "slow")
    written()
    assert where(used("quick", "slow", runs=2)) == ["quick", "quick"]
    for _ in range(2):
        found = used("quick", "slow", runs=2)
        assert where(found) == ["slow", "slow"] and found.forecasts[0].known
    nnhal.compile(chain(), devices=["quick", "slow"], tune=True).close()
    written()
    assert where(used("quick", "slow", runs=2)) == ["quick", "quick"]


def test_nothing_is_tried_beside_a_profile_that_is_held_to_nor_where_nothing_is_learnt(near: None) -> None:
    used("quick", "slow")
    written()
    for preference in ("low_power", "sustained_speed"):
        assert where(used("quick", "slow", preference=preference)) == ["slow", "slow"]
    profile = record.profile()
    assert profile is not None
    record.keep_profile(replace(profile, pinned=True))
    assert where(used("quick", "slow")) == ["slow", "slow"]


def test_each_step_of_several_is_learnt(tmp_path: Path, clock: Clock) -> None:
    driver(tmp_path, "quick")
    driver(tmp_path, "slow", seconds=0.003)
    profiled(quick=1e-3, slow=10 * US)
    found = used("quick", "slow", placement=[nnhal.Rule("quick", "#0"), nnhal.Rule("slow", "#1")])
    assert len(found.live.took) == 2 and found.live.took[1] >= 0.003 > found.live.took[0]
    written()
    rows = {len(json.loads(assignment)): seconds for assignment, seconds, _ in learnt_rows()}
    assert len(learnt_rows()) == 3 and rows[2] >= 0.003


def test_too_few_executions_teach_nothing(two: None) -> None:
    used("quick", "slow", runs=UNCOUNTED + 2)
    wait_for_writes(10)
    assert learnt_rows() == []


@pytest.mark.parametrize(("shape", "rows"), [((1, 4), 1), ((0, 4), 0)])
def test_a_scalar_is_as_much_to_do_every_time_and_a_shape_that_is_open_is_not(
    two: None, shape: tuple[int, ...], rows: int
) -> None:
    b = Builder("scaled")
    x, beta = b.input(shape), b.input((), "FLOAT32")
    model = b.finish([x, beta], [b.softmax(x, beta)])
    with nnhal.compile(model, devices=["quick", "slow"], fallback="allow", cache_dir=False) as compiled:
        for _ in range(UNCOUNTED + COUNTED):
            np.testing.assert_allclose(compiled(X, np.float32(1.0)), X / 4)
    wait_for_writes(10)
    assert len(learnt_rows()) == rows


def test_an_application_that_closes_early_teaches_what_it_can(two: None) -> None:
    used("quick", "slow", runs=UNCOUNTED + 4)
    written()
    assert len(learnt_rows()) == 1


def test_executions_beside_others_teach_nothing(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    both, over = threading.Barrier(2), threading.Event()

    def stay() -> None:
        if not over.is_set() and threading.current_thread() is first:
            both.wait(LIMIT)
            assert over.wait(LIMIT)

    monkeypatch.setattr(sys.modules[__name__], "stay", stay, raising=False)
    driver(tmp_path, "slow", seconds=0.01, on_run=f"sys.modules[{__name__!r}].stay()")
    profiled(slow=10 * US, reference=0.5)
    with nnhal.compile(chain(), devices=["slow"], fallback="allow", cache_dir=False) as compiled:
        first = threading.Thread(target=compiled, args=(X,))
        first.start()
        both.wait(LIMIT)
        for _ in range(UNCOUNTED + COUNTED):
            compiled(X)
        over.set()
        first.join(LIMIT)
    wait_for_writes(10)
    assert learnt_rows() == []


class Measured:
    """A runner of one partition whose executions take what the test says, by a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.rows = 0, []
        monkeypatch.setattr(learning, "time", SimpleNamespace(perf_counter_ns=lambda: self.now))
        self.live = SimpleNamespace(total=0, took=())
        judge = SimpleNamespace(record_times=self.rows.extend)
        plan = SimpleNamespace(partition=SimpleNamespace(steps=["all of it"]), live=self.live, judge=judge)
        self.runner: Any = _Runner(plan, self)
        self.learning = learning.Learning(self.runner)
        self.meanwhile: Callable[[], None] = lambda: None

    def runs(self, *milliseconds: int) -> None:
        for each in milliseconds:
            self.runner.run(SimpleNamespace(report=None, takes=each * 1_000_000))

    def learnt(self) -> list[float]:
        self.learning.end()
        return [seconds for _, seconds in self.rows]


class _Runner:
    def __init__(self, plan: Any, measured: Measured) -> None:
        self.plan, self.measured = plan, measured
        self.before_close: Callable[[], None] | None = None

    def run(self, job: Any) -> None:
        self.measured.now += job.takes
        meanwhile, self.measured.meanwhile = self.measured.meanwhile, lambda: None
        meanwhile()


def test_the_first_executions_do_not_count_and_the_lower_quartile_of_the_others_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Measured(monkeypatch)
    made.runs(*[1] * UNCOUNTED, 90, 20, 50, 40)
    assert made.learnt() == [0.040]  # the second of 20, 40, 50, 90


@pytest.mark.parametrize(("counted", "learnt"), [(LEAST - 1, []), (LEAST, [0.007])])
def test_so_many_executions_are_enough_and_no_fewer(
    counted: int, learnt: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Measured(monkeypatch)
    made.runs(*[1] * UNCOUNTED, *[7] * counted)
    assert made.learnt() == learnt


def test_neither_of_two_executions_counts_of_which_one_ran_while_the_other_did(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Measured(monkeypatch)
    made.runs(*[1] * UNCOUNTED)
    for _ in range(LEAST):
        made.meanwhile = lambda: made.runs(100)
        made.runs(2)  # 102 with the other
    assert made.learnt() == []


@pytest.mark.parametrize("counted", [LEAST, COUNTED])
def test_where_an_execution_fell_back_nothing_is_learnt(counted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Measured(monkeypatch)
    made.live.total = 1
    made.runs(*[1] * (UNCOUNTED + counted))
    assert made.learnt() == []


def test_without_a_profile_nothing_is_learnt_and_no_record_is_made(tmp_path: Path) -> None:
    driver(tmp_path, "quick")
    used("quick")
    assert not place.is_measured()


def test_what_is_held_to_learns_nothing(two: None) -> None:
    known = record.profile()
    assert known is not None
    record.keep_profile(MachineProfile("elsewhere", 1, known.devices, known.crossings, pinned=True))
    for _ in range(2):
        assert where(used("quick", "slow")) == ["slow", "slow"]
    wait_for_writes(10)
    assert learnt_rows() == []


def test_another_version_of_a_driver_is_not_measured_yet(two: None, tmp_path: Path) -> None:
    driver(tmp_path, "slow", seconds=0.0, version="2", stated=0.000001)
    assert where(used("quick", "slow")) == ["slow", "slow"]  # by what it states now
    driver(tmp_path, "slow", seconds=0.0, version="3", stated=1000.0)
    assert where(used("quick", "slow")) == ["quick", "quick"]


def test_preferences_have_measurements_of_their_own(two: None) -> None:
    used("quick", "slow")
    written()
    assert where(used("quick", "slow", preference="LOW_POWER")) == ["slow", "slow"]
    assert where(used("quick", "slow")) == ["quick", "quick"]


def test_stated_stays_stated(two: None) -> None:
    assert where(used("quick", "slow", placement="stated")) == ["quick", "quick"]  # the first of equals
    assert where(used("slow", "quick", placement="stated")) == ["slow", "slow"]


def test_a_report_that_was_asked_for_is_told_while_it_learns(tmp_path: Path) -> None:
    driver(tmp_path, "quick")
    driver(tmp_path, "slow")
    profiled(quick=1e-3, slow=10 * US)
    rules = [nnhal.Rule("quick", "#0"), nnhal.Rule("slow", "#1")]
    with nnhal.compile(chain(), devices=["quick", "slow"], placement=rules, cache_dir=False) as compiled:
        for _ in range(UNCOUNTED + COUNTED + 2):
            _, none = compiled.run(X)
            _, report = compiled.run(X, measure=True)
            assert none is None and report is not None and len(report.steps) == 2


def test_what_is_written_in_the_background_is_written_in_order() -> None:
    order, gate = list[str](), threading.Event()
    queue_write(lambda: (gate.wait(LIMIT), order.append("begun")))
    queue_write(lambda: order.append("took"))
    pass_time(0.05)
    gate.set()
    wait_for_writes(LIMIT)
    assert order == ["begun", "took"]


# ------------------------------------------------------------------------------------------------------------- failures


def test_what_fails_to_prepare_is_not_asked_again_until_its_version_changes(tmp_path: Path) -> None:
    fails = "raise RuntimeError('no such tile')"
    driver(tmp_path, "npu", on_prepare=fails)
    first = used("npu")
    assert where(first) == ["reference"] * 2 and "failed to prepare" in first.events[0]
    second = used("npu")
    assert where(second) == ["reference"] * 2 and not second.events
    why = second.choices[0].others["npu"]
    assert why.startswith("failed in preparation before: ") and "no such tile" in why
    driver(tmp_path, "npu", version="2")
    assert where(used("npu")) == ["npu"] * 2


def test_what_fails_to_run_is_not_asked_again(tmp_path: Path) -> None:
    driver(tmp_path, "npu", on_run="raise RuntimeError('burnt')")
    first = used("npu")
    assert where(first) == ["npu"] * 2 and first.live.total
    second = used("npu")
    assert where(second) == ["reference"] * 2 and not second.live.total
    assert second.choices[0].others["npu"].startswith("failed in execution before: ")


def test_another_model_is_not_held_against_it(tmp_path: Path) -> None:
    driver(tmp_path, "npu", on_prepare="if len(model.main.operations) == 2: raise RuntimeError('no')")
    used("npu")
    assert where(used("npu", length=3)) == ["npu"] * 3


def test_where_nothing_may_take_over_it_is_asked_again(tmp_path: Path) -> None:
    driver(
        tmp_path, "npu", on_prepare="if not getattr(self, 'once', False): self.once = True; raise RuntimeError('no')"
    )
    with pytest.raises(nnhal.OperationFailed):
        nnhal.compile(chain(), devices="npu", cache_dir=False)
    nnhal.compile(chain(), devices="npu", cache_dir=False).close()


@pytest.mark.parametrize("error", ["MissedDeadline", "ResourceExhausted", "OutOfMemory", "DeviceUnavailable"])
def test_what_may_pass_is_not_kept(tmp_path: Path, error: str) -> None:
    driver(tmp_path, "npu", on_prepare=f"import nnhal; raise nnhal.{error}('later')")
    with pytest.raises(nnhal.NnhalError) if error == "MissedDeadline" else _as_it_is():
        used("npu")
    assert not place.is_measured()


def _as_it_is() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def test_a_device_that_an_application_made_leaves_no_trace() -> None:
    from tests.runtime.devices import Fake, failing

    for _ in range(2):
        fake = Fake(on_prepare=failing(nnhal.OperationFailed("no")))
        compiled = nnhal.compile(chain(), devices=[fake], fallback="allow", cache_dir=False)
        assert "failed to prepare" in compiled.placement.events[0]
    assert not place.is_measured()
