"""Knowledge about candidate devices: profiles, times that tuning measured for the model, and failures."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

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
from nnhal.base.log import logger, warn_once
from nnhal.base.names import is_path
from nnhal.base.records import Record, field, replace
from nnhal.hal.device import Device, code_by
from nnhal.model.graph import Model
from nnhal.runtime import costs, discovery
from nnhal.runtime.isolation import RUNTIME, DeviceKey, key_of
from nnhal.runtime.measured import is_measured
from nnhal.runtime.measured.background_write import queue_write, wait_for_writes
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
T = TypeVar("T")


class PlacementKey(Record, frozen=True):
    """The settings that determine a model's speed apart from the device: preference, threads, options by device."""

    preference: Preference
    threads: int = 0
    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


class Placer(Record, frozen=True):
    """Places one model. keys: of the devices, by label. measured: None to use the declared performance.

    name: identifies the model and its settings; "" until it is needed.
    """

    name: str
    keys: Mapping[str, DeviceKey]
    strategy: Strategy
    placement_key: PlacementKey
    measured: Measured | None = None

    def partition(self, model: Model, offers: Sequence[Offer]) -> Partition:
        """Place each operation."""
        return placed(model, offers, self.placement_key.preference, self.strategy, self.measured)

    def identity(self, label: str) -> str:
        """Return a device's identity with its options; "" for one that another process cannot have."""
        key = self.keys[label]
        return identity_of(key, self.placement_key.options.get(key.name, {}))

    def record_tuned(self, found: Mapping[Steps, float]) -> None:
        """Record the seconds of the assignments that tuning measured, in place of those of an earlier tuning.

        Not if later compilations cannot ask the same question: see `tuning_key`.
        """
        identities = _with_runtime({label: self.identity(label) for label in self.keys}, self.keys)
        key = tuning_key(self.name, identities, self.strategy, self.placement_key)
        if not key:
            return
        from nnhal.runtime.measured import record

        rows = {json.dumps([(identities[d], list(ns)) for d, ns in steps]): took for steps, took in found.items()}
        devices = json.dumps(sorted(identities.values()))
        queue_write(lambda: record.record_tuned(key, devices, rows))

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
        name = self.name or _key_of(model, self.placement_key)
        failure = record.StoredFailure(identity, name, tuple(operations), phase, why, label)
        queue_write(lambda: record.record_failure(failure))


def identity_of(key: DeviceKey, options: Mapping[str, object] | None = None) -> str:
    """Return a device's identity with regard to speed; "" for a device that the application created.

    A driver under development has its code in it: its author changes that without a new version. The identity does not
    include the place: a profile has both.
    """
    from nnhal.runtime.measured.record import processor

    if key.isolation == "none" and not is_path(key.origin) and key.origin not in discovery.origins():
        return ""
    facts = [key.name, key.version, processor(), *([key.origin, _code(key)] if is_path(key.origin) else [])]
    facts += [] if options is None else [key.isolation, repr(sorted(options.items()))]
    return blake2b("\0".join(facts).encode(), digest_size=8).hexdigest()


def _code(key: DeviceKey) -> str:
    """Return a digest of the code of a driver under development as it was loaded here; "" if it is not known."""
    device = discovery.registered(key.name)
    code = None if device is None else code_by(device)
    return "" if code is None or code.unknown else code.digest.hex()


def tuning_key(name: str, identities: Mapping[str, str], strategy: Strategy, placement_key: PlacementKey) -> str:
    """Return the key of tuned placements: the model, its settings and the rules.

    "" if another process cannot have a device or the placing function, or if the preference is not time.
    """
    if not all(identities.values()) or (strategy.decide is not None and not strategy.kind):
        return ""
    if placement_key.preference != Preference.FAST_SINGLE_ANSWER:
        return ""
    rules = [(identities.get(rule.device), rule.operation, rule.name, rule.type) for rule in strategy.rules]
    by = strategy.kind if strategy.decide is not None else strategy.single
    return blake2b(f"{name} {by} {rules}".encode(), digest_size=16).hexdigest()


def _with_runtime(identities: Mapping[str, str], keys: Mapping[str, DeviceKey]) -> dict[str, str]:
    """Return the identities, with one for the runtime, which interprets control flow: its failures are not recorded."""
    return {
        label: identity or ("runtime" if keys[label].origin == RUNTIME else "")
        for label, identity in identities.items()
    }


def default_candidates(devices: Sequence[Device]) -> tuple[list[Device], list[str]]:
    """Return the devices without engines that have changed since they were measured, and a line about each of these."""
    found, left, keys, measured = [], list[str](), [key_of(device) for device in devices], None
    if {key.name for key in keys}.intersection(discovery.engines()):
        from nnhal.runtime.measured import record

        measured = record.profile()
    for device, key in zip(devices, keys, strict=True):
        why = changed_since_measured(key, measured)
        if why:
            left.append(f"{key.name} is left out: {why}")
            warn_once(_log, f"device {left[-1]}")
        else:
            found.append(device)
    return found, left


def changed_since_measured(key: DeviceKey, profile: "MachineProfile | None") -> str:
    """Return why the profile is not about an engine as it is now; "" for other devices. It has no other prediction."""
    if key.name not in discovery.engines() or (profile is not None and _profiled(profile, key)):
        return ""
    before = None if profile is None else profile.devices.get(key.name)
    if before is None:
        was = "it was not measured"
    elif before.version == key.version:
        was = f"{key.version} was measured on another processor or in another place"
    else:
        was = f"{before.version} was measured, now it is {key.version}"
    return f"{was}; nnhal calibrate -d {key.name}"


def with_measurements(
    model: Model,
    offers: Sequence[Offer],
    keys: Mapping[str, DeviceKey],
    strategy: Strategy,
    placement_key: PlacementKey,
    *,
    forgive: bool,
    tune: bool,
) -> tuple[list[Offer], Placer]:
    """Return the offers with what is known about their devices, and the placer.

    keys: by label. forgive: whether to ignore earlier failures, because there is no fallback. tune: whether placements
    are about to be measured.
    """
    check(strategy, model, list(keys))
    wait_for_writes(SOON)
    if not is_measured() and not tune:
        _log.info("%s", HINT)
        return list(offers), Placer(
            "", keys, strategy, placement_key, Measured() if strategy.kind == "measured" else None
        )
    from nnhal.runtime.measured import record

    options = {label: placement_key.options.get(key.name, {}) for label, key in keys.items()}
    identities = {label: identity_of(key, options[label]) for label, key in keys.items()}
    name = _key_of(model, placement_key)
    profile = record.profile()
    found = list(offers) if forgive else _without_failures(model, offers, identities, name, strategy)
    known = set() if profile is None else {label for label, key in keys.items() if _profiled(profile, key)}
    named = _with_runtime(identities, keys)
    tuned: dict[Steps, float] = {}
    # With "single", times of single devices count that were measured without it.
    for each in () if tune else (strategy, replace(strategy, single=False)):
        tuned = tuned or _tuned(tuning_key(name, named, each, placement_key), named, keys)
    if strategy.kind == "stated" or not (known or tuned or tune or strategy.kind == "measured"):
        _log.info("%s", HINT)
        return found, Placer(name, keys, strategy, placement_key)
    if profile is None or not known:
        return found, Placer(name, keys, strategy, placement_key, Measured(tuned=tuned))
    found = [_predicted(o, model, profile, keys[o.device], placement_key) if o.device in known else o for o in found]
    crossings = _crossings(profile, {o.device: keys[o.device] for o in found})
    cpu = profile.devices.get(discovery.CPU)
    unknown = any(offer.predicted is None for offer in found)
    measured = Measured(crossings, tuned, _seconds(cpu, model, placement_key) if unknown and cpu is not None else None)
    return found, Placer(name, keys, strategy, placement_key, measured)


def _key_of(model: Model, placement_key: PlacementKey) -> str:
    """Return a 32-character key for a model, whatever its name, and its settings."""
    from nnhal.model.stored import pack_device_view

    asked = f"{int(placement_key.preference)} {placement_key.threads}".encode()
    return blake2b(pack_device_view(replace(model, name="")) + asked, digest_size=16).hexdigest()


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
        text = f"failed in {failure.phase} before: {failure.why} (kept until the driver changes: nnhal devices)"
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


def _predicted(
    offer: Offer, model: Model, profile: "MachineProfile", key: DeviceKey, placement_key: PlacementKey
) -> Offer:
    device = profile.devices[key.name]
    seconds = _seconds(device, model, placement_key)
    if seconds is None:
        return offer
    here = device.steps.get("none", costs.STEP)
    step = here if key.isolation == "none" else device.steps.get("process", here + costs.STEP_ELSEWHERE)
    return replace(offer, predicted=seconds, step=step)


def _seconds(device: "DeviceProfile", model: Model, placement_key: PlacementKey) -> list[float] | None:
    """Return the predicted cost of each operation, in the preference's unit; None without enough measurements."""
    from nnhal.runtime.measured.families import work_of_operations

    seconds = device.predicted(work_of_operations(model), placement_key.threads)
    if seconds is None:
        return None
    factor = 1.0
    if placement_key.preference == Preference.LOW_POWER:
        factor = device.cores()
    elif placement_key.preference == Preference.SUSTAINED_SPEED:
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


def _tuned(key: str, identities: Mapping[str, str], keys: Mapping[str, DeviceKey]) -> dict[Steps, float]:
    """Return the seconds of the assignments that the latest tuning measured for a key of `tuning_key`.

    A tuning counts if it measured all of these devices, and an assignment that needs no others. The CPU, which may be
    there for fallbacks only, need not be measured.
    """
    if not key:
        return {}
    from nnhal.runtime.measured import record

    labels = {identity: label for label, identity in identities.items()}
    asked = {identities[label] for label, each in keys.items() if each.name != discovery.CPU}
    for devices, measured in groupby(record.tuned_times(key), key=itemgetter(0)):
        found: dict[Steps, float] = {}
        for _, text, seconds in measured if asked <= {*_decoded(devices, list[str])} else ():
            rows = _decoded(text, list[tuple[str, tuple[int, ...]]])
            if rows and all(identity in labels for identity, _ in rows):
                found[tuple(StepPlan(labels[identity], operations) for identity, operations in rows)] = seconds
        if found:
            return found
    return {}


def _decoded(text: str, kind: type[list[T]]) -> list[T]:
    """Return a list of the record; empty for an invalid text."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        _log.warning("tuned times: %s is not a valid row: %s", bounded_text(text, 50), error)
        return []
