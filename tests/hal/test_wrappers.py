"""Behaviour added to a device by wrapping it."""

import threading
import time
from functools import partial

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import MissedDeadline, OperationFailed
from nnhal.base.levels import FL8, V1_0, V1_1, V1_2, V1_3
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Capabilities, Device, Hints, Prepared
from nnhal.hal.host import run_resolved
from nnhal.hal.memory import BufferDesc, BufferRole
from nnhal.hal.request import Control, Timing
from nnhal.hal.wrappers import Limited, Recorded, WithHalLevel
from nnhal.runtime import discovery
from tests.hal.hidl.old_drivers import X
from tests.models import doubling, make_model
from tests.runtime.devices import for_nothing

OLD = [V1_0, V1_1, V1_2]


class Witness(Device):
    """Keeps what it is told; computes with the reference kernels."""

    name = "witness"

    def __init__(self):
        self.hints, self.controls = [], []

    def capabilities(self):
        return Capabilities.uniform(0.5)

    def supports(self, model):
        return discovery.cpu().supports(model)

    def prepare(self, model, hints):
        self.hints.append(hints)
        inner, controls = discovery.cpu().prepare(model, hints), self.controls

        class Keeping(Prepared):
            def run(self, request, control):
                controls.append(control)
                inner.run(request, control)
                return Timing(1, 2) if control.measure else None

        return Keeping()


def mixed() -> nnhal.Model:
    return make_model(lambda b, x: b.elu(b.abs(b.sub(b.add(x, x), x)), 1.0), (3, 4))


@pytest.mark.parametrize(
    ("level", "verdicts"),
    [(V1_0, [1, 0, 0, 0]), (V1_1, [1, 1, 0, 0]), (V1_2, [1, 1, 1, 0]), (V1_3, [1, 1, 1, 1]), (FL8, [1, 1, 1, 1])],
)
def test_operations_above_the_level_are_refused_with_the_reason(level, verdicts):
    found = WithHalLevel(discovery.cpu(), level).supports(mixed())
    assert [v.ok for v in found] == [bool(v) for v in verdicts]
    assert all(f"the device is at {level}" in v.reason for v in found if not v.ok)


@pytest.mark.parametrize("level", [*OLD, V1_3])
def test_the_driver_is_told_what_its_level_tells(level):
    witness = Witness()
    wanted = Hints(nnhal.Preference.LOW_POWER, nnhal.Priority.HIGH, deadline=time.monotonic_ns() + 10**12)
    prepared = checked_prepared(WithHalLevel(witness, level), doubling(3, 4), wanted)
    control = Control(time.monotonic_ns() + 10**12, 1234, True)
    timing = prepared.request([X]).execute(prepared.run, control)
    hints, seen = witness.hints[0], witness.controls[0]
    assert (hints.preference == wanted.preference) == (level >= V1_1)
    assert (hints.priority == wanted.priority, hints.deadline is not None) == (level >= V1_3, level >= V1_3)
    assert (seen.deadline is not None, seen.loop_timeout == 1234) == (level >= V1_3, level >= V1_3)
    assert seen.measure == (timing == Timing(1, 2)) == (level >= V1_2)


@pytest.mark.parametrize("level", [*OLD, V1_3])
def test_a_cancellation_reaches_the_driver_at_each_level_and_callbacks_come_by_run(level):
    witness, over, told = Witness(), threading.Event(), []
    prepared = checked_prepared(WithHalLevel(witness, level), doubling(3, 4), Hints())
    request, cancelled = prepared.request([X]), threading.Event()
    prepared.execute(request, Control(cancelled=cancelled), lambda *arguments: (told.append(arguments), over.set()))
    assert over.wait(30) and told == [(None, None)]
    np.testing.assert_array_equal(request.results[0], 2 * X)
    assert witness.controls[0].cancelled is cancelled


def test_a_deadline_that_the_driver_was_not_told_of_is_missed_all_the_same():
    prepared = checked_prepared(WithHalLevel(Witness(), V1_2), doubling(3, 4), Hints())
    with pytest.raises(MissedDeadline):
        prepared.request([X]).execute(prepared.run, Control(deadline=time.monotonic_ns() - 1))


@pytest.mark.parametrize("level", [*OLD, V1_3])
def test_methods_of_later_levels_are_refused_by_name(level):
    device = WithHalLevel(Witness(), level)
    prepared = checked_prepared(device, doubling(3, 4), Hints())
    calls = {
        "configureExecutionBurst": (V1_2, lambda: prepared.burst().close()),
        "executeFenced": (V1_3, lambda: prepared.execute_fenced(prepared.request([X]), Control())),
        "allocate": (V1_3, lambda: device.allocate(BufferDesc(), [BufferRole(prepared, 0)])),
    }
    for name, (since, call) in calls.items():
        if level >= since:
            call()
        else:
            with pytest.raises(OperationFailed, match=f"{name} needs level {since}, device witness is at {level}"):
                call()


def test_a_level_above_the_devices_own_changes_nothing():
    assert WithHalLevel(WithHalLevel(Witness(), V1_1), V1_3).level == V1_1


def test_a_wrapped_device_takes_part_in_a_compilation(monkeypatch):
    for_nothing(monkeypatch)
    device = WithHalLevel(discovery.cpu(), V1_0)
    device.name = "old"
    compiled = nnhal.compile(mixed(), devices=[device, "reference"])
    assert [c.device for c in compiled.placement.choices] == ["old", "reference", "reference", "reference"]
    np.testing.assert_array_equal(compiled(-X), X)


def test_a_buffer_of_a_wrapped_device_knows_its_roles():
    device = Recorded(Limited(Witness(), lambda model, n: True), calls := [])
    prepared = checked_prepared(device, doubling(3, 4), Hints())
    buffer = device.allocate(BufferDesc(), [BufferRole(prepared, 0, output=True)])
    request = prepared.request([X], output_buffers={0: buffer})
    request.execute(partial(run_resolved, prepared), Control())
    np.testing.assert_array_equal(buffer.array(), 2 * X)
    assert calls == ["prepare", "allocate", "run"]


def test_every_call_is_recorded_in_order():
    device = Recorded(Witness(), calls := [])
    device.capabilities()
    device.supports(doubling(3, 4))
    device.consider(doubling(3, 4), Hints())
    prepared = checked_prepared(device, doubling(3, 4), Hints())
    prepared.request([X]).execute(prepared.run, Control())
    with prepared.burst() as burst:
        prepared.request([X]).execute(burst.run, Control())
    fence = prepared.execute_fenced(prepared.request([X]), Control()).fence
    if fence is not None:
        fence.wait(30)
    device.status()
    prepared.close()
    device.close()
    assert calls == [
        "capabilities", "supports", "consider", "prepare", "run", "burst", "execute_fenced", "status", "close", "close",
    ]  # fmt: skip
