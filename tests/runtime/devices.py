"""Devices for tests: the reference kernels behind a driver that misbehaves on request."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from nnhal.base.codes import Priority
from nnhal.hal.device import YES, Capabilities, Device, Hints, Prepared, Verdict, each_operation
from nnhal.hal.queue import RunQueue
from nnhal.hal.request import Control, Request, Timing
from nnhal.hal.waiting import FIRST, OWN, LatencyEstimator
from nnhal.ipc.client.process import ReconnectingDevice, start
from nnhal.model.graph import Model
from nnhal.runtime import costs, discovery


class Wrapped(Prepared):
    def __init__(self, inner: Prepared, before: Callable[[], None]) -> None:
        self.inner, self.before, self.closed = inner, before, False

    def run(self, request: Request, control: Control) -> Timing | None:
        self.before()
        return self.inner.run(request, control)

    def close(self) -> None:
        self.closed = True


class Fake(Device):
    """Fast by its own words; `takes` picks operations by place, `on_prepare` and `on_run` may raise."""

    name = "fake"

    def __init__(
        self,
        takes: Callable[[int], bool] = lambda n: True,
        on_prepare: Callable[[], None] = lambda: None,
        on_run: Callable[[], None] = lambda: None,
    ) -> None:
        self.takes, self.on_prepare, self.on_run = takes, on_prepare, on_run
        self.prepared: list[Wrapped] = []

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(0.1)

    def supports(self, model: Model) -> Sequence[Verdict]:
        places = iter(range(len(model.main.operations)))
        return each_operation(model, lambda *_: YES if self.takes(next(places)) else "not this one")

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        self.on_prepare()
        self.prepared.append(Wrapped(discovery.cpu().prepare(model, hints), self.on_run))
        return self.prepared[-1]


def for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and crossings cost nothing: each operation goes to the device that states the best performance."""
    for name in ("STEP", "STEP_ELSEWHERE", "CROSSING", "BYTE", "RUN"):
        monkeypatch.setattr(costs, name, 0.0)


def to_be_killed() -> ReconnectingDevice:
    """The reference driver in a process of its own, which no other test uses: deaths add up to a quarantine."""
    return ReconnectingDevice("reference", lambda: start(discovery.origin_of("reference")))


def refused() -> None:
    """Ask a queue for an execution that needs an hour, with a minute left: it refuses that."""
    pace, hour = LatencyEstimator(), 3_600_000_000_000
    for _ in range(FIRST):
        pace.add_time(hour)
    act = RunQueue("device fake", 1, strict=False).queued(lambda *_: None, OWN, Priority.MEDIUM, pace=pace)
    act(None, Control(time.monotonic_ns() + hour // 60))


def driver_file(path: Path, **attributes: object) -> Path:
    """Write the file of a driver that is the reference driver but for these attributes."""
    own = "".join(f" {name} = {value!r}\n" for name, value in attributes.items())
    path.write_text(
        f"from nnhal.drivers.reference import Reference\nclass Own(Reference):\n{own}def device(): return Own()\n"
    )
    return path


def failing(error: BaseException | type[BaseException]) -> Callable[..., Any]:
    """Raises an error, whatever it is called with."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail
