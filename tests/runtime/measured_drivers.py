"""Drivers in files, with a profile that predicts what they take, on a clock that their executions move."""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.model.graph import Model
from nnhal.runtime import discovery, execute, isolation, measured, tuning
from nnhal.runtime.measured import record
from nnhal.runtime.measured.background_write import wait_for_writes
from nnhal.runtime.measured.profile import CrossingCost, DeviceProfile, LinearCost, MachineProfile
from nnhal.runtime.placer import identity_of
from tests import models
from tests.waiting import Clock

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
    made = Clock().play(monkeypatch, execute, tuning)
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
    return models.chain("neg", length, (1, 4), name="learnt")


def profiled(**each: float) -> None:
    """A profile in which an operation takes so many seconds on each device."""
    devices = {}
    for name, seconds in each.items():
        key = isolation.key_of(discovery.load_one(name))
        lines = {"float32": {"relu": LinearCost(seconds, 0.0, 0.0)}}
        devices[name] = DeviceProfile(identity_of(key), key.version, lines, {"none": 1 * US})
    crossings = {f"{a} > {b}": {"none": CrossingCost(US, 0.0)} for a in each for b in each if a != b}
    record.keep_profile(MachineProfile(record.processor(), 1, devices, crossings))


def used(*devices: str, runs: int = 1, length: int = 2, **more: Any) -> nnhal.Placement:
    with nnhal.compile(chain(length), devices=list(devices), fallback="allow", cache_dir=False, **more) as compiled:
        for _ in range(runs):
            np.testing.assert_array_equal(compiled(X), X * (-1) ** length)
        found = compiled.placement
    wait_for_writes(10)
    return found


def where(placement: nnhal.Placement) -> list[str]:
    return [choice.device for choice in placement]


def tuned_rows() -> list[Any]:
    """The recorded assignments and their seconds."""
    wait_for_writes(10)
    with closing(sqlite3.connect(measured.path())) as connection:
        return connection.execute("select assignment, seconds from tuned order by assignment").fetchall()


@pytest.fixture
def two(tmp_path: Path, clock: Clock) -> Iterator[None]:
    """Devices quick and slow, each predicted to be what the other is."""
    driver(tmp_path, "quick")
    driver(tmp_path, "slow", seconds=0.01)
    profiled(quick=1e-3, slow=10 * US, reference=0.5)
    yield
