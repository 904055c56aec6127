"""What a driver in another process works out stays there, by number, and is let go of whatever becomes of the client."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import DeadObject, InvalidArgument, NnhalError
from nnhal.frontends.python import Builder
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Hints
from nnhal.hal.request import UNLIMITED
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.process import ReconnectingDevice, start
from nnhal.ipc.protocol import wire
from nnhal.model.parts import extract_part
from nnhal.runtime import discovery
from tests import requests
from tests.ipc.drivers.considering import Considering, Made
from tests.ipc.support import a_table, served_here, wait_until
from tests.models import relus
from tests.runtime.devices import for_nothing

DRIVER = Path(__file__).parent / "drivers" / "considering.py"
X = np.float32([-1, 0, 2, 3])


@pytest.fixture
def served() -> Iterator[tuple[RemoteDevice, Considering]]:
    """The driver as a service in this process."""
    driver, Made.made, Made.gone = Considering(), 0, 0
    with served_here(driver, a_table(considered=2)) as device:
        yield device, driver


@pytest.fixture
def named(monkeypatch) -> str:
    monkeypatch.setattr(discovery, "_registered", {})
    nnhal.load_driver(DRIVER)
    return "considering"


def told(device: Any) -> dict[str, Any]:
    (verdict,) = consider_support(device, relus(1), Hints(options={"tell": True})).verdicts
    return dict(json.loads(verdict.reason))


def usage(device: RemoteDevice) -> dict[str, int]:
    found = device.session.call(wire.GetUsage(), wire.Usage, UNLIMITED)[0]
    return dict(zip([q.name for q in found.quotas], found.clients[0].used, strict=True))


def nothing_left(device: RemoteDevice) -> None:
    gc.collect()
    wait_until(lambda: Made.made == Made.gone and usage(device)["considered"] == 0, "all was let go of")


def test_the_whole_model_is_prepared_from_what_was_considered_and_travels_once(served):
    device, driver = served
    model = relus(3)
    claims = consider_support(device, model, Hints())
    assert usage(device)["considered"] == 1
    prepared = checked_prepared(device, model, claims.hints(Hints()))
    assert driver.came == [["Made", [0, 1, 2], True, True]]
    assert requests.run(prepared, [X]).results[0].tolist() == [0, 0, 2, 3]
    assert device.session.calls["getSupportedOperations_1_3"] == device.session.calls["prepareModel_1_3"] == 1
    claims.release_work()
    nothing_left(device)
    assert requests.run(prepared, [X]).results[0].tolist() == [0, 0, 2, 3]


def test_a_part_is_cut_in_the_drivers_process(served):
    device, driver = served
    model = relus(4)
    claims = consider_support(device, model, Hints())
    part = extract_part(model, (1, 2))
    prepared = checked_prepared(device, part.model, claims.hints(Hints(), (1, 2)))
    assert driver.came == [["Made", [1, 2], False, False]]
    assert requests.run(prepared, [X]).results[0].tolist() == [0, 0, 2, 3]
    claims.release_work()
    nothing_left(device)


def test_what_is_kept_goes_with_the_client():
    driver, Made.made, Made.gone = Considering(), 0, 0
    with served_here(driver) as device:
        kept = consider_support(device, relus(1), Hints())
        assert (Made.made, Made.gone) == (1, 0)
    assert kept.verdicts
    wait_until(lambda: (Made.made, Made.gone) == (1, 1), "it was let go of")


@pytest.mark.parametrize("fallback", ["forbid", "allow"])
def test_a_compilation_leaves_nothing_however_it_ends(served, monkeypatch, fallback):
    device, driver = served
    nnhal.compile(relus(3), devices=device, fallback=fallback).close()
    assert driver.came == [["Made", [0, 1, 2], True, True]]
    nothing_left(device)
    monkeypatch.setattr(Considering, "prepare", lambda self, model, hints: 1 / 0)
    kept = None
    try:
        nnhal.compile(relus(3), devices=device, fallback=fallback)
    except NnhalError as error:
        kept = error
    assert (kept is None) == (fallback == "allow") and Made.made == 2
    nothing_left(device)


def test_in_process_and_isolated_an_option_is_a_verdict_and_a_group_stands_alike(named, monkeypatch):
    for_nothing(monkeypatch)
    for isolation in ("none", "process"):
        off = {named: {"off": True}}
        compiled = nnhal.compile(
            relus(2), devices=[named, "reference"], isolation=isolation, driver_options=off, fallback="allow"
        )
        assert {c.others.get(named) for c in compiled.placement} == {"is switched off"}
        fused = {named: {"fused": [1, 2]}}
        compiled = nnhal.compile(relus(4), devices=[named, "reference"], isolation=isolation, driver_options=fused)
        assert [c.device.split(" ")[0] for c in compiled.placement] == ["reference", named, named, "reference"]
        assert compiled.placement.choices[1].reason == (
            f"fused: {named} runs 2 operations as one, declared 0.01x reference time"
        )
        assert compiled(X).tolist() == [0, 0, 2, 3]


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_driver_that_fuses_gets_what_it_fuses_and_nothing_of_it_alone(monkeypatch, isolation):
    monkeypatch.setattr(discovery, "_registered", {})
    nnhal.load_driver(DRIVER.with_name("fusing.py"))
    b = Builder()
    x = b.input((1, 64, 64, 8))
    y = x
    for at in range(3):
        weights = np.random.default_rng(at).standard_normal((8, 3, 3, 8), np.float32)
        y = b.conv_2d(y, weights, np.zeros(8, np.float32), padding="same", stride=1)
        y = b.relu(y) if at else b.tanh(y)
    model = b.finish([x], [b.relu(y)])
    given = np.random.default_rng(9).standard_normal((1, 64, 64, 8), np.float32)
    with nnhal.compile(model, devices=["fusing", "reference"], isolation=isolation) as compiled:
        where = [c.device.split(" ")[0] for c in compiled.placement]
        assert where == ["fusing", "reference", *["fusing"] * 4, "reference"]
        assert [c.together for c in compiled.placement] == [(), (), (2, 3), (2, 3), (4, 5), (4, 5), ()]
        assert (
            compiled.placement.choices[3].reason
            == "fused: fusing runs 2 operations as one, declared 0.05x reference time"
        )
        assert np.array_equal(compiled(given), nnhal.compile(model, devices="reference")(given))


def test_options_that_do_not_travel_are_the_applications_error(named):
    with pytest.raises(InvalidArgument, match="must be values that JSON can represent"):
        nnhal.compile(
            relus(1), devices=named, isolation="process", driver_options={named: {"x": object()}}, fallback="allow"
        )


def test_a_driver_that_dies_meanwhile_begins_anew_in_its_next_process():
    device = ReconnectingDevice("considering", lambda: start(str(DRIVER)))
    try:
        model = relus(2)
        claims = consider_support(device, model, Hints())
        with pytest.raises(DeadObject):
            consider_support(device, model, Hints(options={"die": True}))
        prepared = checked_prepared(device, model, claims.hints(Hints()))
        assert told(device) == {"made": 0, "gone": 0, "came": [None]}
        assert requests.run(prepared, [X]).results[0].tolist() == [0, 0, 2, 3]
        claims.release_work()
        again = consider_support(device, model, Hints(options={"die later": True}))
        with pytest.raises(DeadObject):
            checked_prepared(device, model, again.hints(Hints(options={"die later": True})))
    finally:
        device.close()
