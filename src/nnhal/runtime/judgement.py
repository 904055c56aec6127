"""Knowledge about candidate devices: profiles, earlier times of the model's partitions, and failures."""

import json
from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

import msgspec

from nnhal.base.codes import Preference
from nnhal.base.digests import blake2b
from nnhal.base.errors import (
    Cancelled,
    DeadObject,
    DeviceUnavailable,
    MissedDeadline,
    bounded_text,
    is_out_of_resources,
)
from nnhal.base.log import logger
from nnhal.base.names import is_path
from nnhal.base.records import Record, field, replace
from nnhal.hal.device import Device
from nnhal.model.graph import Model
from nnhal.runtime import costs, discovery
from nnhal.runtime.isolation import DeviceKey, key_of
from nnhal.runtime.measured.later import queue_write, wait_for_writes
from nnhal.runtime.measured.place import is_measured
from nnhal.runtime.partition import Measured, Offer, Partition, Steps
from nnhal.runtime.schedule import StepPlan
from nnhal.runtime.strategies import Strategy, check, manual_placement, placed

if TYPE_CHECKING:
    from nnhal.runtime.measured.profile import DeviceProfile, MachineProfile

SOON = 0.2  # seconds until new measurements are written, unless another process has the record
HINT = "placement uses declared performance: nnhal calibrate measures it on this machine"
PASSING = (
    MissedDeadline,
    Cancelled,
    DeviceUnavailable,
)  # not a permanent fault of the device
_log = logger("compilation")


class PlacementKey(Record, frozen=True):
    """The settings that determine a model's speed apart from the device: preference, threads, options by device."""

    preference: Preference
    threads: int = 0
    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


class Placer(Record, frozen=True):
    """Places one model. keys: of the devices, by label. measured: None to use the declared performance.

    name: identifies the model; "" until it is needed. learns: whether execution times are recorded. held: whether the
    profile is pinned, so that nothing is recorded and earlier records do not count.
    """

    name: str
    keys: Mapping[str, DeviceKey]
    strategy: Strategy
    asking: PlacementKey
    measured: Measured | None = None
    learns: bool = False
    held: bool = False

    def partition(self, model: Model, offers: Sequence[Offer]) -> Partition:
        """Place each operation."""
        return placed(model, offers, self.asking.preference, self.strategy, self.measured)

    def identity(self, label: str) -> str:
        """Return a device's identity with its options; "" for one that another process cannot have."""
        key = self.keys[label]
        return identity_of(key, self.asking.options.get(key.name, {}))

    def record_times(self, found: Sequence[tuple[Steps, float]], settled: bool = False) -> None:
        """Record the times of assignments, in seconds.

        Not for devices that another process cannot have, with a pinned profile, or if the preference is not time.
        settled: as in `record.record_times`.
        """
        if self.held or self.asking.preference != Preference.FAST_SINGLE_ANSWER:
            return
        from nnhal.runtime.measured import record

        rows = [(text, seconds) for steps, seconds in found if (text := self._text(steps))]
        if rows:
            queue_write(lambda: record.record_times(self.name, rows, settled))

    def begun(self, steps: Steps) -> None:
        """Note that a compilation has this assignment. If it is a trial, record that."""
        text = self._text(steps)
        if self.measured is not None and self.measured.is_trial(steps) and text:
            from nnhal.runtime.measured import record

            _log.info("placement: all on %s is tried, as it may take less than what is known", steps[0].device)
            queue_write(lambda: record.record_trial(self.name, text))

    def _text(self, steps: Steps) -> str:
        """Return an assignment in the record's format; "" if a device cannot be recorded."""
        known = [(self.identity(device), list(operations)) for device, operations in steps]
        return json.dumps(known) if all(identity for identity, _ in known) else ""

    def failed(self, model: Model, label: str, operations: Sequence[int], phase: str, error: BaseException) -> None:
        """Record that a device failed at operations that it supports. Not for transient failures, or the CPU."""
        lost = isinstance(error, DeadObject) and error.driver_fault != "crash"  # an exit may have been requested
        if lost or isinstance(error, PASSING) or is_out_of_resources(error) or self.keys[label].name == discovery.CPU:
            return
        identity = self.identity(label)
        if not identity:
            return
        from nnhal.runtime.measured import record

        why = bounded_text(" ".join(str(error).split()), 500)
        name = self.name or _key_of(model, self.asking)
        failure = record.StoredFailure(identity, name, tuple(operations), phase, why, label)
        queue_write(lambda: record.record_failure(failure))


def identity_of(key: DeviceKey, options: Mapping[str, object] | None = None) -> str:
    """Return a device's identity with regard to speed; "" for a device that the application created.

    It does not include the place: a profile has both.
    """
    from nnhal.runtime.measured.record import processor

    if key.isolation == "none" and not is_path(key.origin) and key.origin not in discovery.origins():
        return ""
    facts = [key.name, key.version, processor(), *([key.origin] if is_path(key.origin) else [])]
    facts += [] if options is None else [key.isolation, repr(sorted(options.items()))]
    return blake2b("\0".join(facts).encode(), digest_size=8).hexdigest()


def without_stale_engines(devices: Sequence[Device]) -> list[Device]:
    """Return the default candidates, without engines that have changed since they were measured."""
    engines, found, profile = {*discovery.engines()}, [], None
    for device in devices:
        key = key_of(device)
        if key.name in engines:
            from nnhal.runtime.measured import record

            profile = profile or record.profile()
            if profile is None or not _profiled(profile, key):
                _log.info("device %s is left out, another than was measured: nnhal calibrate -d %s", key.name, key.name)
                continue
        found.append(device)
    return found


def with_measurements(
    model: Model,
    offers: Sequence[Offer],
    keys: Mapping[str, DeviceKey],
    strategy: Strategy,
    asking: PlacementKey,
    *,
    forgive: bool,
    tune: bool,
) -> tuple[list[Offer], Placer]:
    """Return the offers with what is known about their devices, and the judge.

    keys: by label. forgive: whether to ignore earlier failures, because there is no fallback. tune: whether placements
    are about to be measured.
    """
    check(strategy, model, list(keys))
    wait_for_writes(SOON)
    if not is_measured() and not tune:
        _log.info("%s", HINT)
        return list(offers), Placer("", keys, strategy, asking, Measured() if strategy.kind == "measured" else None)
    from nnhal.runtime.measured import record

    options = {label: asking.options.get(key.name, {}) for label, key in keys.items()}
    identities = {label: identity_of(key, options[label]) for label, key in keys.items()}
    name = _key_of(model, asking)
    profile = record.profile()
    held = profile is not None and profile.pinned
    found = list(offers) if forgive else _without_failures(model, offers, identities, name, strategy)
    known = set() if profile is None else {label for label, key in keys.items() if _profiled(profile, key)}
    counts = asking.preference == Preference.FAST_SINGLE_ANSWER and not held
    learnt, tried = _learnt(name, identities) if counts else ({}, frozenset())
    if strategy.kind == "stated" or not (known or learnt or tune or strategy.kind == "measured"):
        _log.info("%s", HINT)
        return found, Placer(name, keys, strategy, asking, held=held)
    if profile is None or not known:
        return found, Placer(name, keys, strategy, asking, Measured(learnt=learnt), learns=tune and not held, held=held)
    found = [_predicted(o, model, profile, keys[o.device], asking) if o.device in known else o for o in found]
    crossings = _crossings(profile, {o.device: keys[o.device] for o in found})
    cpu = profile.devices.get(discovery.CPU)
    unknown = any(offer.predicted is None for offer in found)
    measured = Measured(crossings, learnt, tried, _seconds(cpu, model, asking) if unknown and cpu is not None else None)
    return found, Placer(name, keys, strategy, asking, measured, learns=not held, held=held)


def _key_of(model: Model, asking: PlacementKey) -> str:
    """Return a 32-character key for a model and its settings."""
    from nnhal.model.stored import pack_device_view

    asked = f"{int(asking.preference)} {asking.threads}".encode()
    return blake2b(pack_device_view(model) + asked, digest_size=16).hexdigest()


def _profiled(profile: "MachineProfile", key: DeviceKey) -> bool:
    device = profile.devices.get(key.name)
    return device is not None and (profile.pinned or device.identity == identity_of(key))


def _without_failures(
    model: Model, offers: Sequence[Offer], identities: Mapping[str, str], name: str, strategy: Strategy
) -> list[Offer]:
    """Return the offers without operations that failed before; manual placements are tried again."""
    from nnhal.runtime.measured import record

    asked = {o.device: i for o in offers if (i := identities[o.device]) and o.device != discovery.CPU}
    lost: dict[str, dict[int, str]] = {}
    for failure in record.failures(asked.values(), name):
        text = f"failed in {failure.phase} before: {failure.why} (kept until its version changes: nnhal devices)"
        for device in (device for device, identity in asked.items() if identity == failure.device):
            lost.setdefault(device, {}).update(dict.fromkeys(failure.operations, text))
    for n, (device, _) in manual_placement(model, offers, strategy).items() if lost else ():
        lost.get(device, {}).pop(n, None)
    return [
        replace(offer, excluded=offer.excluded | why.keys(), excluded_why=next(iter(why.values())))
        if (why := lost.get(offer.device))
        else offer
        for offer in offers
    ]


def _predicted(offer: Offer, model: Model, profile: "MachineProfile", key: DeviceKey, asking: PlacementKey) -> Offer:
    device = profile.devices[key.name]
    seconds = _seconds(device, model, asking)
    if seconds is None:
        return offer
    here = device.steps.get("none", costs.STEP)
    step = here if key.isolation == "none" else device.steps.get("process", here + costs.STEP_ELSEWHERE)
    return replace(offer, predicted=seconds, step=step)


def _seconds(device: "DeviceProfile", model: Model, asking: PlacementKey) -> list[float] | None:
    """Return the predicted cost of each operation, in the preference's unit; None without enough measurements."""
    from nnhal.runtime.measured.families import work_of_operations

    seconds = device.predicted(work_of_operations(model), asking.threads)
    if seconds is None:
        return None
    factor = 1.0
    if asking.preference == Preference.LOW_POWER:
        factor = device.cores()
    elif asking.preference == Preference.SUSTAINED_SPEED:
        factor = device.sustained()
    return [each * factor for each in seconds]


def _crossings(profile: "MachineProfile", keys: Mapping[str, DeviceKey]) -> dict[tuple[str, str], tuple[float, float]]:
    found = {}
    for one, its in keys.items():
        for other, theirs in keys.items():
            place = "none" if its.isolation == theirs.isolation == "none" else "process"
            crossing = profile.crossing(its.name, theirs.name, place)
            if crossing is not None:
                found[one, other] = crossing.fixed, crossing.byte
    return found


def _learnt(model: str, identities: Mapping[str, str]) -> tuple[dict[Steps, float], frozenset[Steps]]:
    """Return the times of a model's assignments on these devices, and the assignments that need no more trials."""
    from nnhal.runtime.measured import record

    labels = {identity: label for label, identity in identities.items() if identity}
    found: dict[Steps, float] = {}
    tried: set[Steps] = set()
    for text, (seconds, settled) in record.assignment_times(model).items():
        rows = _assignment(text)
        if rows and all(identity in labels for identity, _ in rows):
            steps = tuple(StepPlan(labels[identity], operations) for identity, operations in rows)
            if settled:
                tried.add(steps)
            if seconds is not None and 0 <= seconds < inf:
                found[steps] = seconds
    return found, frozenset(tried)


def _assignment(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return the operations of each partition, by identity; empty for an invalid record."""
    try:
        return msgspec.json.decode(text, type=list[tuple[str, tuple[int, ...]]])
    except msgspec.DecodeError as error:
        _log.warning("partition times: %s is not an assignment: %s", bounded_text(text, 50), error)
        return []
