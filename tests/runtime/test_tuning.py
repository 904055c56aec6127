"""`tune` measures candidate placements of one model and takes the fastest."""

import itertools
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import OperationFailed
from nnhal.base.records import replace
from nnhal.frontends.python import Builder
from nnhal.hal.device import Hints, Prepared
from nnhal.model.graph import Model
from nnhal.runtime import measured, tuning
from nnhal.runtime.measured import record
from nnhal.runtime.partition import Expectation, Forecast
from nnhal.runtime.tuning import _chosen
from tests.models import make_model
from tests.runtime.devices import Fake, failing
from tests.runtime.measured_drivers import (
    X,
    chain,
    clock,  # noqa: F401
    driver,
    profiled,
    spend,
    tuned_rows,
    two,  # noqa: F401
    used,
    where,
)
from tests.waiting import LIMIT, Clock


def tuned(*devices: Any, seconds: float = 0.5, fallback: Any = "allow", **more: Any) -> nnhal.Compiled:
    return nnhal.compile(chain(), devices=list(devices), tune=seconds, fallback=fallback, cache_dir=False, **more)


def test_the_fastest_is_taken_whatever_devices_state(tmp_path: Path) -> None:
    driver(tmp_path, "slow", seconds=0.005, stated=0.001)
    driver(tmp_path, "quick", stated=0.9)
    with tuned("slow", "quick", "reference") as compiled:
        found = compiled.placement
        assert set(where(found)) <= {"quick", "reference"}
        assert "(tuned)" in str(found) and found.forecasts[0].known
        np.testing.assert_array_equal(compiled(X), X)


def test_what_was_measured_is_known_to_the_next_compilation(tmp_path: Path) -> None:
    driver(tmp_path, "slow", seconds=0.005, stated=0.001)
    driver(tmp_path, "quick", stated=0.9)
    tuned("slow", "quick").close()
    again = nnhal.compile(chain(), devices=["slow", "quick"], cache_dir=False)
    assert where(again.placement) == ["quick", "quick"] and again.placement.forecasts[0].known
    assert measured.is_measured() and record.profile() is None
    assert len(tuned_rows()) >= 2 and "(tuned)" in str(again.placement)


def test_on_a_single_device_what_was_tuned_without_that_counts(tmp_path: Path) -> None:
    driver(tmp_path, "slow", seconds=0.005, stated=0.001)
    driver(tmp_path, "quick", stated=0.9)
    tuned("slow", "quick").close()
    again = nnhal.compile(chain(), devices=["slow", "quick"], placement="single", cache_dir=False)
    assert where(again.placement) == ["quick", "quick"]
    assert again.placement.source == "single device" and "(on a single device)" not in again.placement.summary()


def test_a_prediction_without_a_profile_is_not_said_to_be_of_one(tmp_path: Path) -> None:
    driver(tmp_path, "slow", seconds=0.005, stated=0.001)
    driver(tmp_path, "quick", stated=0.9)
    found = nnhal.compile(chain(), devices=["quick", "slow"], cache_dir=False, placement="measured").placement
    assert found.expected and found.source == "declared" and "profile" not in str(found)


def test_placement_is_by_the_profile_however_often_a_model_has_run_until_it_is_tuned(two: None) -> None:  # noqa: F811
    for _ in range(3):
        found = used("quick", "slow", runs=15)
        assert where(found) == ["slow", "slow"] and not found.forecasts[0].known
        assert "predicted 21 µs (measured profile)" in str(found)
    assert tuned_rows() == []
    tuned("quick", "slow", fallback="forbid").close()
    for _ in range(3):
        found = used("quick", "slow")
        assert where(found) == ["quick", "quick"] and found.forecasts[0].known
    times = dict(tuned_rows())
    (step,) = found.to_dict()["steps"]
    assert step["took"] == step["predicted"] == found.forecasts[0].seconds and step["took"] in times.values()


@pytest.mark.parametrize(
    "other",
    [
        {"devices": ["quick", "slow", "litert"]},
        {"placement": [nnhal.Rule("slow", "#1")]},
        {"placement": "stated"},
        {"threads": 1},
        {"preference": "LOW_POWER"},
    ],
    ids=str,
)
def test_what_was_tuned_answers_no_other_question(two: None, other: dict[str, Any]) -> None:  # noqa: F811
    tuned("quick", "slow", fallback="forbid").close()
    asked = {"devices": ["slow", "quick"], **other}
    again = nnhal.compile(chain(), fallback="allow", cache_dir=False, **asked)
    assert not again.placement.forecasts or not again.placement.forecasts[0].known
    assert used("slow", "quick").forecasts[0].known


def test_a_model_is_tuned_whatever_its_file_is_called(two: None) -> None:  # noqa: F811
    tuned("quick", "slow", fallback="forbid").close()
    other = replace(chain(), name="copy")
    with nnhal.compile(other, devices=["quick", "slow"], cache_dir=False) as compiled:
        assert compiled.placement.forecasts[0].known


def test_what_was_tuned_is_not_of_a_driver_under_development_whose_code_has_changed(
    two: None,  # noqa: F811
    tmp_path: Path,
) -> None:
    tuned("quick", "slow", fallback="forbid").close()
    assert used("quick", "slow").source == "tuned"
    driver(tmp_path, "quick", seconds=0.02)
    assert not any(each.known for each in used("quick", "slow").expected)
    driver(tmp_path, "quick")
    assert used("quick", "slow").source == "tuned"


def test_what_was_tuned_stays_when_other_devices_are_tuned(two: None, tmp_path: Path) -> None:  # noqa: F811
    driver(tmp_path, "other", seconds=0.02)
    tuned("quick", "slow", fallback="forbid").close()
    tuned("slow", "other", fallback="forbid").close()
    assert (where(used("quick", "slow")), used("quick", "slow").source) == (["quick"] * 2, "tuned")
    assert (where(used("slow", "other")), used("slow", "other").source) == (["slow"] * 2, "tuned")
    assert used("quick", "slow", "other").source != "tuned"


def test_tuning_with_rules_is_known_to_compilations_with_the_same_rules(two: None) -> None:  # noqa: F811
    rules = [nnhal.Rule("slow", "#0")]
    tuned("quick", "slow", placement=rules, fallback="forbid").close()
    found = used("quick", "slow", placement=rules)
    assert where(found)[0] == "slow" and {e.known for e in found.expected[:1]} == {True}
    assert not used("quick", "slow").forecasts[0].known


def test_a_candidate_that_fails_is_left_out(tmp_path: Path) -> None:
    driver(tmp_path, "broken", on_prepare="raise RuntimeError('no')", stated=0.001)
    driver(tmp_path, "burnt", on_run="raise RuntimeError('no')", stated=0.001)
    driver(tmp_path, "quick", stated=0.9)
    with tuned("broken", "burnt", "quick") as compiled:
        assert not set(where(compiled.placement)) & {"broken", "burnt"}


def test_it_reports_what_it_did_not_measure_and_why(tmp_path: Path) -> None:
    driver(tmp_path, "broken", on_prepare="raise RuntimeError('no tile')")
    driver(tmp_path, "burnt", on_run="raise RuntimeError('no power')")
    driver(tmp_path, "late", on_run="self.n = getattr(self, 'n', 0) + 1; assert self.n < 4, 'worn out'", seconds=0.001)
    driver(tmp_path, "quick")
    with tuned("broken", "burnt", "late", "quick") as compiled:
        found = compiled.placement
    for device, why in (("broken", "no tile"), ("burnt", "no power"), ("late", "worn out")):
        (event,) = (each for each in found.events if each.startswith(f"tuning did not measure {device}: "))
        assert why in event and f"tuning did not measure {device}: " in str(found)
    assert len(found.events) == 3


def test_it_reports_for_what_the_time_was_too_short(two: None) -> None:  # noqa: F811
    with tuned("quick", "slow", seconds=1e-9) as compiled:
        assert "tuning did not measure quick, reference: the time was over" in compiled.placement.events


def test_every_device_that_may_be_the_fastest_is_measured_however_short_the_time(two: None) -> None:  # noqa: F811
    """The fastest engine was prepared for longer than there was time, and another was remembered as the fastest."""
    profiled(quick=3e-3, slow=1e-3, reference=0.5)
    with tuned("quick", "slow", seconds=1e-9) as compiled:
        assert set(where(compiled.placement)) == {"quick"}
        assert "tuning did not measure reference: the time was over" in compiled.placement.events


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"preference": "LOW_POWER"}, "preference is LOW_POWER: must be FAST_SINGLE_ANSWER, or tune must be false"),
        ({"preference": "SUSTAINED_SPEED"}, "preference is SUSTAINED_SPEED: must be FAST_SINGLE_ANSWER"),
        ({"placement": "stated"}, "placement is 'stated': must be another, or tune must be false"),
    ],
    ids=str,
)
def test_what_measured_latency_cannot_decide_is_not_tuned(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(nnhal.InvalidArgument, match=said):
        tuned(Fake(), **asked)


def test_it_ends_when_its_time_is_over(clock: Clock) -> None:  # noqa: F811
    ran = list[int]()

    def slow(number: int) -> None:
        ran.append(number)
        clock.advance(0.1)

    tuned(*[Fake(on_run=partial(slow, n)) for n in range(4)], seconds=0.05).close()
    assert sorted(ran) == [0, 0, 1, 1, 2, 2, 3, 3]  # no round, and the first time is not like the others


def test_candidates_that_fail_late_take_no_longer_than_others(clock: Clock) -> None:  # noqa: F811
    ran = list[int]()

    def late(number: int) -> None:
        ran.append(number)
        clock.advance(0.1)
        raise OperationFailed("worn out")

    tuned(*[Fake(on_run=partial(late, n)) for n in range(4)], seconds=0.05).close()
    assert sorted(ran) == [0, 1, 2, 3]


def test_a_round_in_which_threads_waited_for_a_core_does_not_count(
    clock: Clock,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, waited = itertools.count(), [0.0]

    def unsteady() -> None:
        quick = next(turns) % 2
        clock.advance(0.01 if quick else 0.08)
        waited[0] = 0.5 * quick

    def steady() -> None:
        clock.advance(0.05)
        waited[0] = 0.0

    monkeypatch.setattr(tuning, "share", lambda before, after: waited[0])
    with tuned(Fake(on_run=unsteady), Fake(on_run=steady), seconds=2.0, fallback="forbid") as compiled:
        assert set(where(compiled.placement)) == {"fake (2)"}


def test_a_candidate_that_does_not_come_back_costs_no_more_than_it_may() -> None:
    over = threading.Event()
    try:
        compiled = tuned(Fake(on_run=lambda: over.wait(10 * LIMIT) and None), seconds=0.5, deadline=LIMIT)
        late, left = compiled.placement.events
        assert "deadline" in late and left == "tuning did not measure reference: the time was over"
    finally:
        over.set()
    compiled.close()


def test_a_candidate_that_is_prepared_for_long_leaves_half_of_the_time_to_a_deadline() -> None:
    deadlines = list[int | None]()

    class Asked(Fake):
        def prepare(self, model: Model, hints: Hints) -> Prepared:
            deadlines.append(hints.deadline)
            return super().prepare(model, hints)

    tuned(Asked(), fallback="forbid", deadline=LIMIT).close()
    measuring, last = deadlines
    assert measuring is not None and last is not None and measuring < last


def test_candidates_are_closed_and_only_the_winner_stays() -> None:
    devices = [Fake(), Fake()]
    with tuned(*devices) as compiled:
        made = [prepared for device in devices for prepared in device.prepared]
        assert len(made) >= 2 and sum(not prepared.closed for prepared in made) <= 1
        np.testing.assert_array_equal(compiled(X), X)
    assert all(prepared.closed for prepared in made)


def test_where_every_candidate_fails_it_is_as_without_tuning() -> None:
    with tuned(Fake(on_prepare=failing(nnhal.OperationFailed("no")))) as compiled:
        assert where(compiled.placement) == ["reference"] * 2


def test_interrupted_it_closes_what_it_had() -> None:
    first = Fake()
    count = [0]

    def strike() -> None:
        count[0] += 1
        if count[0] == 5:
            raise KeyboardInterrupt

    second = Fake(on_run=strike)
    second.name = "other"
    with pytest.raises(KeyboardInterrupt):
        tuned(first, second)
    assert all(prepared.closed for device in (first, second) for prepared in device.prepared)


def test_a_shape_that_is_not_known_cannot_be_measured() -> None:
    with pytest.raises(nnhal.InvalidArgument, match=r"tune: input 0 is .*, must have a shape that is known"):
        nnhal.compile(make_model(lambda b, x: b.neg(x), (None, 4)), devices=["reference"], tune=True)


@pytest.mark.parametrize("tune", [0, -1, float("nan"), float("inf"), "long", None, [1]])
def test_what_is_no_time_is_refused(tune: Any) -> None:
    with pytest.raises(nnhal.InvalidArgument, match=r"tune is .*, must be true, false, or a number of seconds"):
        nnhal.compile(chain(), devices="reference", tune=tune)


def test_inputs_of_every_type_are_drawn() -> None:
    b = Builder()
    q = b.input((1, 4), "TENSOR_QUANT8_ASYMM", 0.1, 3)
    i, t, h = b.input((2,), np.int32), b.input((1,), bool), b.input((1, 4), np.float16)
    outputs = [b.dequantize(q), b.add(i, i), b.logical_not(t), b.abs(h)]
    model = b.finish([q, i, t, h], outputs)
    with nnhal.compile(model, devices=["reference"], tune=0.01) as compiled:
        assert compiled.placement.forecasts[0].known


def test_with_a_profile_the_best_splits_are_candidates_too(tmp_path: Path) -> None:
    driver(tmp_path, "quick")
    driver(tmp_path, "other")
    profiled(quick=1e-3, other=1e-3)
    with tuned("quick", "other") as compiled:
        assert len(set(where(compiled.placement))) == 1
    assert record.profile() is not None


def test_what_runs_on_one_device_is_measured_before_what_does_on_several() -> None:
    """The first split took all the time that there was, and was the best of one."""
    forecast = Forecast(0.0, False)
    split = [Expectation(seconds, ("a", "b"), (forecast, forecast)) for seconds in (1.0, 2.0, 3.0, 4.0)]
    one = [Expectation(seconds, ("a",), (forecast,)) for seconds in (5.0, 29.0, 31.0)]
    found, near = _chosen(sorted([*split, *one], key=lambda each: each.seconds))
    assert [each.seconds for each in found] == [5.0, 29.0, 1.0, 2.0, 3.0, 31.0] and near == 2


def test_a_model_with_states_is_tuned() -> None:
    model = nnhal.load("tiny_lstm")
    with nnhal.compile(model, devices=["litert", "reference"], tune=0.05, cache_dir=False) as compiled:
        assert compiled.placement.forecasts[0].known


@pytest.mark.usefixtures("clock")
def test_a_device_whose_first_executions_are_slow_is_not_given_up_at_once(tmp_path: Path) -> None:
    """It dropped out after one round, and was remembered as slow."""
    warming = f"self.n = getattr(self, 'n', 0) + 1; sys.modules[{spend.__module__!r}].spend(0.02 * (self.n < 4))"
    driver(tmp_path, "warming", on_run=warming)
    driver(tmp_path, "steady", seconds=0.005)
    with nnhal.compile(chain(), devices=["warming", "steady"], cache_dir=False, tune=2.0) as compiled:
        assert {choice.device for choice in compiled.placement.choices} == {"warming"}
