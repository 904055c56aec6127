"""Calibration: chains give lines, networks check them, what crosses is measured; and what it makes of times is right."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.bench import calibrate, workloads
from nnhal.bench.calibrate import Calibration, fitted
from nnhal.measure import latency
from nnhal.runtime import discovery
from nnhal.runtime.measured.families import OperationWork, work_of_operations
from nnhal.runtime.measured.profile import FAMILIES, decoded, encoded
from nnhal.zoo import ZooError
from tests.runtime.devices import Fake, failing
from tests.runtime.test_measured_profile import device, network
from tests.waiting import Clock


@pytest.mark.parametrize("kind", workloads.VALUES)
def test_a_chain_of_each_family_is_a_model_of_that_family_and_kind(kind: str) -> None:
    for family in workloads.families(kind):
        for size in range(len(workloads.SIZES)):
            links = calibrate.LINKS[size]
            few, many = (work_of_operations(workloads.chain(family, kind, size, number)) for number in links)
            assert [w for w in few if w.family == family.name], family.name
            assert {w.family for w in many} <= {family.name, *family.beside}, family.name
            assert len(many) * links[0] == len(few) * links[1]
            assert few[0].kind == kind


def test_every_family_but_reshapes_is_measured() -> None:
    assert {each.name for each in workloads.FAMILIES} == set(FAMILIES) - {"reshape"}


def of(macs: float, bytes: float, turns: int = 1) -> OperationWork:
    return OperationWork("add", "float32", int(macs), int(bytes), turns)


@pytest.mark.parametrize("true", [(1e-6, 1e-11, 1e-10), (0.0, 1e-11, 0.0), (5e-6, 0.0, 2e-10), (1e-6, 0.0, 0.0)])
def test_a_line_goes_through_points_that_lie_on_one(true: tuple[float, float, float]) -> None:
    sizes = [of(1e3, 1e3), of(1e6, 1e5, 20), of(1e8, 1e6), of(1e5, 1e6, 3)]
    points = [(work, true[0] * work.turns + true[1] * work.macs + true[2] * work.bytes) for work in sizes]
    line = fitted(points)
    assert [line.seconds(work) for work, _ in points] == pytest.approx([seconds for _, seconds in points], rel=1e-6)


@pytest.mark.parametrize(("wrong", "factor"), [(0, 1e-4), (0, 0.1), (1, 1e-4), (1, 0.1), (1, 10.0), (1, 1e4)])
def test_one_point_that_was_measured_wrong_does_not_bend_a_line(wrong: int, factor: float) -> None:
    sizes = [of(12_544, 7376), of(802_816, 204_944), of(12_845_056, 1_622_288)]
    true = [20e-12 * work.macs for work in sizes]
    line = fitted(
        [(work, t * factor if n == wrong else t) for n, (work, t) in enumerate(zip(sizes, true, strict=True))]
    )
    others = [n for n in range(3) if n != wrong]
    said = [line.seconds(sizes[n]) for n in others]
    assert said == pytest.approx([true[n] for n in others], rel=0.05)


def test_no_term_of_a_line_is_below_zero_whatever_was_measured() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        drawn = [10.0 ** random.uniform((0, 1, 0, -7), (8, 7, 3, -1)) for _ in range(random.integers(1, 5))]
        line = fitted([(of(macs, bytes, int(turns)), seconds) for macs, bytes, turns, seconds in drawn])
        assert min(line.fixed, line.mac, line.byte) >= 0 and line.seconds(of(1e6, 1e6)) > 0


def test_operations_without_multiplications_have_a_line_too() -> None:
    points = [(of(0, 100), 1e-6), (of(0, 10_000), 2e-6)]
    line = fitted(points)
    assert line.mac == 0 and [line.seconds(work) for work, _ in points] == pytest.approx([1e-6, 2e-6])


def measured(*names: str, only: Any, **more: Any) -> Any:
    found = Calibration(names, quick=True, isolated=False, **more)
    for text, measure in found.tasks():
        if any(word in text for word in only):
            measure()
    return found.result(7, None)


def test_a_calibration_measures_steps_lines_networks_and_crossings() -> None:
    only = (
        "a partition",
        "depthwise of float32",
        "relu of",
        "add of",
        "mean of float32",
        "if",
        "while",
        "reference to",
        "to reference",
    )
    profile = measured("reference", "litert", only=only)
    assert decoded(encoded(profile), "f") == profile and profile.made == 7
    for name in ("reference", "litert"):
        device = profile.devices[name]
        assert device.steps["none"] > 0 and {"depthwise", "relu", "add", "mean"} <= device.lines["float32"].keys()
        assert device.identity
    slow, fast = (
        profile.devices[n].lines["float32"]["depthwise"].seconds(of(1e7, 1e5)) for n in ("reference", "litert")
    )
    assert slow > 3 * fast
    assert profile.devices["reference"].workloads.keys() == {"if", "while"}
    assert (
        profile.devices["reference"].workloads["while"].seconds > profile.devices["reference"].workloads["if"].seconds
    )
    assert set(profile.crossings) == {"reference > litert", "litert > reference"}


def test_what_a_device_does_not_take_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "load_one", lambda name: Fake(takes=lambda n: False))
    profile = measured("fake", only=["relu of float32", "if"])
    assert not profile.devices["fake"].lines and not profile.devices["fake"].workloads


@pytest.mark.parametrize(
    ("fake", "failed"),
    [
        ({"takes": lambda n: False}, {}),
        ({"on_prepare": failing(RuntimeError("no tile"))}, {"fake": ["relu of float32", "if"]}),
        ({"on_run": failing(RuntimeError("no power"))}, {"fake": ["relu of float32", "if"]}),
        ({"takes": lambda n: [][n]}, {"fake": ["relu of float32", "if"]}),
    ],
    ids=["rejects", "prepares not", "runs not", "answers not"],
)
def test_a_driver_that_fails_while_it_is_measured_is_noted_and_one_that_rejects_is_not(
    monkeypatch: pytest.MonkeyPatch, fake: dict[str, Any], failed: dict[str, list[str]]
) -> None:
    monkeypatch.setattr(discovery, "load_one", lambda name: Fake(**fake))
    found = Calibration(["fake"], quick=True, isolated=False)
    for text, measure in found.tasks():
        if text in ("fake: relu of float32", "fake: if"):
            measure()
    assert {name: [text.split(": ")[0] for text in texts] for name, texts in found.failed.items()} == failed


def test_what_others_had_measured_stays() -> None:
    before = measured("litert", only=["relu of float32"])
    after = Calibration(["reference"], quick=True, isolated=False, crossed=["litert"])
    assert {text for text, _ in after.tasks() if " to " in text} == {"reference to litert", "litert to reference"}
    assert after.result(9, before).devices.keys() == {"litert", "reference"}


def test_how_long_an_execution_takes_is_that_of_one_and_the_best_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock().play(monkeypatch, latency, calibrate)
    slow = Fake(on_run=lambda: clock.advance(0.002))
    with nnhal.compile(workloads.single(), devices=[slow]) as compiled:
        assert calibrate.best_seconds(compiled) == pytest.approx(0.002)


def test_a_network_with_states_is_measured_too() -> None:
    profile = measured("reference", only=["speech_lstm_20"])
    (found,) = profile.devices["reference"].workloads.values()
    assert (found.family, found.bytes > 20_000_000) == ("lstm", True)  # what its weights alone are
    assert profile.devices["reference"].workloads.keys() == {"speech_lstm_20"}


def test_no_network_predicts_itself() -> None:
    """A profile with one network of a kind claimed a perfect prediction."""
    networks = {"a": network(took=2.0), "b": network(took=8.0), "c": network(kind="if", took=5.0)}
    assert [*calibrate.predictions(device(workloads=networks))] == [
        ("a", pytest.approx(8.0), 2.0),
        ("b", pytest.approx(2.0), 8.0),
        ("c", pytest.approx(4.0), 5.0),
    ]
    assert [*calibrate.predictions(device(workloads={"a": network(took=2.0)}))] == [("a", 1.0, 2.0)]


class Waits:
    """Looks of which each one after a measurement says how much of it was waiting."""

    def __init__(self, *shares: float) -> None:
        self.shares, self.ran, self.waited, self.looks = list(shares), 0, 0, 0

    def __call__(self) -> tuple[int, int]:
        self.looks += 1
        if self.looks % 2 == 0:
            share = self.shares.pop(0)
            self.ran, self.waited = self.ran + int(1000 * (1 - share)), self.waited + int(1000 * share)
        return self.ran, self.waited


@pytest.mark.parametrize(
    ("shares", "left", "disturbed"), [((0.0, 9), 1, 0.0), ((0.5, 0.0, 9), 1, 0.0), ((0.5, 0.5, 0.5, 9), 1, 1.0)]
)
def test_what_is_disturbed_is_measured_again_and_counted_where_it_stays_so(
    monkeypatch: pytest.MonkeyPatch, shares: tuple[float, ...], left: int, disturbed: float
) -> None:
    waits = Waits(*shares)
    monkeypatch.setattr(calibrate, "process_cpu_time", waits)
    monkeypatch.setattr(calibrate, "best_seconds", lambda compiled: 1.0)
    found = Calibration([], quick=True, isolated=False)
    assert found._took(None) == 1.0  # type: ignore[arg-type]
    assert len(waits.shares) == left and found.disturbed == disturbed


def test_a_rate_that_no_processor_has_is_measured_again_and_then_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 1.0, 1.0, 2.0])
    monkeypatch.setattr(Calibration, "_took", lambda self, compiled: next(times))
    found, fastest = Calibration([], quick=True, isolated=False), calibrate.FASTEST
    two: Any = [None, None]
    assert found._slope(two, (1, 2), int(fastest / 2)) == 1.0  # 0.02 seconds are too few, one is not
    monkeypatch.setattr(Calibration, "_took", lambda self, compiled: 1.0)
    with pytest.raises(calibrate.ImplausibleRate, match="multiplications a second, must be 1e\\+13 at most"):
        found._slope(two, (1, 2), int(fastest))


def test_a_network_that_cannot_be_had_is_one_network_less(monkeypatch: pytest.MonkeyPatch) -> None:
    def path(name: str) -> Path:
        raise ZooError(f"{name} cannot be made")

    monkeypatch.setattr(calibrate.maker, "path", path)
    assert measured("reference", only=["mobilenet", "if"]).devices["reference"].workloads.keys() == {"if"}
