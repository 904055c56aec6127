"""Compilation: ask the devices, partition, cut the parts, prepare each on its device, fall back by the contract."""

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from nnhal.base.codes import Preference, Priority
from nnhal.base.errors import (
    DeviceUnavailable,
    InvalidArgument,
    MissedDeadline,
    OperationFailed,
    UnsupportedModel,
    as_error,
)
from nnhal.base.log import logger
from nnhal.base.operands import dtype_of
from nnhal.hal.device import Device, Hints, Prepared, Verdict, prepared_by
from nnhal.hal.utilities import is_extension
from nnhal.model.graph import Model
from nnhal.model.parts import Part, cut
from nnhal.model.validate import validate
from nnhal.runtime import discovery
from nnhal.runtime.partition import Offer, Partition, partition

Fallback = Literal["allow", "warn", "forbid"]
_log = logger("compilation")


class FallbackWarning(UserWarning):
    """Something runs on another device than the one that was chosen for it."""


@dataclass(frozen=True)
class Wishes:
    """What `compile` was asked for, checked.

    deadline: point on the monotonic clock in nanoseconds by which compilation has to end, None for no limit.
    """

    devices: tuple[Device, ...]
    fallback: Fallback
    preference: Preference = Preference.FAST_SINGLE_ANSWER
    priority: Priority = Priority.MEDIUM
    threads: int = 0
    deadline: int | None = None
    driver_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def hints(self, device: str) -> Hints:
        """What the driver of a device is told."""
        options = self.driver_options.get(device, {})
        return Hints(self.preference, self.priority, self.threads, self.deadline, options)


@dataclass(frozen=True)
class Step:
    """One part of the model, prepared. `fresh`: shape and element type of each output, None where not known before."""

    device: Device
    part: Part
    prepared: Prepared
    fresh: tuple[tuple[tuple[int, ...], Any] | None, ...]
    nanoseconds: int  # that preparing it took


@dataclass(frozen=True)
class Plan:
    """A compiled model: steps in execution order, where each operation went and why, and what fell back."""

    model: Model
    partition: Partition
    steps: tuple[Step, ...]
    wishes: Wishes
    events: tuple[str, ...]


def compile_plan(model: Model, wishes: Wishes) -> Plan:
    """Partition and prepare.

    Raises UnsupportedModel, DeviceUnavailable, MissedDeadline or what the last device tried raised.
    """
    validate(model)
    devices = list(wishes.devices)
    cpu = discovery.cpu()
    unavailable: list[DeviceUnavailable] = []
    offers = [_offer(device, model, unavailable) for device in devices]
    if wishes.fallback != "forbid" and cpu not in devices:
        devices.append(cpu)
        offers.append(_cpu_offer(cpu, model))
    events: list[str] = []
    try:
        plan = _attempt(model, wishes, offers, devices, events)
    except UnsupportedModel:
        if unavailable:  # that is why
            raise unavailable[0] from None
        raise
    if isinstance(plan, Plan):
        return plan
    culprit, operations, error = plan
    if wishes.fallback == "forbid":
        raise error
    _note(
        wishes, events, f"{culprit} failed to prepare operations {_span(operations)}: {error}; placing them elsewhere"
    )
    why = f"failed to prepare: {error}"
    again = [replace(o, excluded=frozenset(operations), excluded_why=why) if o.device == culprit else o for o in offers]
    try:
        plan = _attempt(model, wishes, again, devices, events)
    except InvalidArgument as unplaced:
        plan = culprit, operations, unplaced
    if isinstance(plan, Plan):
        return plan
    _note(wishes, events, f"{plan[0]} failed to prepare as well: {plan[2]}; the whole model goes to the CPU")
    whole = _attempt(model, wishes, [_cpu_offer(cpu, model)], [cpu], events)
    if isinstance(whole, Plan):
        return whole
    raise whole[2]


def _note(wishes: Wishes, events: list[str], text: str) -> None:
    events.append(text)
    _log.info("%s", text)
    if wishes.fallback == "warn":
        warnings.warn(text, FallbackWarning, stacklevel=5)


def _span(operations: Sequence[int]) -> str:
    return f"#{operations[0]}" if len(operations) == 1 else f"#{min(operations)} to #{max(operations)}"


def _offer(device: Device, model: Model, unavailable: list[DeviceUnavailable]) -> Offer:
    """What a device says of the model; a driver that fails to answer, or answers nonsense, takes nothing."""
    count = len(model.main.operations)
    try:
        verdicts = list(device.supports(model))
        if len(verdicts) != count:
            raise OperationFailed(f"supports() gave {len(verdicts)} verdicts, must be {count}, one an operation")
    except DeviceUnavailable as error:
        unavailable.append(error)
        verdicts = [Verdict(False, str(error))] * count
    except Exception as error:
        _log.warning("device %s: %s", device.name, error)
        verdicts = [Verdict(False, f"the driver failed to say: {error}")] * count
    return Offer(device.name, device.level, device.capabilities(), verdicts, tuple(device.extensions))


def _cpu_offer(cpu: Device, model: Model) -> Offer:
    """What falls back to the CPU: everything but the operations of extensions."""
    own = frozenset(n for n, o in enumerate(model.main.operations) if is_extension(o.type))
    return replace(_offer(cpu, model, []), excluded=own, excluded_why="operations of extensions never fall back")


def _attempt(
    model: Model, wishes: Wishes, offers: Sequence[Offer], devices: Sequence[Device], events: list[str]
) -> Plan | tuple[str, tuple[int, ...], Exception]:
    """A plan, or the device that failed, the operations it failed on and its error."""
    found = partition(model, offers, wishes.preference)
    table = {device.name: device for device in devices}
    steps: list[Step] = []
    for planned in found.steps:
        part = cut(model, planned.operations)
        try:
            steps.append(prepare(table[planned.device], part, wishes))
        except MissedDeadline:
            _close(steps)
            raise
        except Exception as error:
            _close(steps)
            return planned.device, planned.operations, as_error(error, f"device {planned.device}")
    return Plan(model, found, tuple(steps), wishes, tuple(events))


def _close(steps: Sequence[Step]) -> None:
    for step in steps:
        step.prepared.close()


def prepare(device: Device, part: Part, wishes: Wishes) -> Step:
    """Prepare one part on one device."""
    start = time.monotonic_ns()
    if wishes.deadline is not None and start > wishes.deadline:
        raise MissedDeadline(f"compilation: the deadline passed before {device.name} prepared its part")
    prepared = prepared_by(device, part.model, wishes.hints(device.name))
    end = time.monotonic_ns()
    if wishes.deadline is not None and end > wishes.deadline:
        prepared.close()
        raise MissedDeadline(f"compilation: {device.name} took {(end - start) / 1e6:.1f} ms, past the deadline")
    _log.debug(
        "%s prepared %d operations in %.1f ms", device.name, len(part.model.main.operations), (end - start) / 1e6
    )
    return Step(device, part, prepared, _fresh(part), end - start)


def _fresh(part: Part) -> tuple[tuple[tuple[int, ...], Any] | None, ...]:
    values = validate(part.model).subgraphs[0].values
    result: list[tuple[tuple[int, ...], Any] | None] = []
    for index in part.model.main.outputs:
        value = values[index]
        if value is None or value.shape is None or None in value.shape:
            result.append(None)
        else:
            result.append((value.known, dtype_of(value.type)))
    return tuple(result)
