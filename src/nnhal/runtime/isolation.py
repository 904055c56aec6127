"""Isolated devices: one process for each driver, or a running service."""

import atexit
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from nnhal.base.errors import DeviceUnavailable, InvalidArgument, NnhalError
from nnhal.base.log import logger
from nnhal.base.names import is_path
from nnhal.base.once import OnceTable
from nnhal.base.records import Record
from nnhal.base.time import map_in_threads
from nnhal.base.values import parsed_level
from nnhal.hal.device import Device, code_by, identity_of
from nnhal.runtime import discovery

if TYPE_CHECKING:
    from nnhal.ipc.client.process import ReconnectingDevice

Isolation = Literal["none", "process"]
STARTING = "driver processes"
RUNTIME = "nnhal.runtime.flow:ControlFlow"  # the origin of the runtime as a device
_log = logger("manager")


class DriverLocation(Record, frozen=True):
    """The place of a driver: name, what its process loads, whether this client owns the process."""

    name: str
    driver: str
    own: bool


# The devices of this process with the code that isolated drivers had when they were started.
_started_as: "WeakKeyDictionary[ReconnectingDevice, Device]" = WeakKeyDictionary()
_devices: "OnceTable[DriverLocation, ReconnectingDevice]" = OnceTable(
    lambda place: f"the process of device {place.name!r}"
)


def isolated(name: str) -> "ReconnectingDevice":
    """Return the device of a driver in this client's process for it, which is started if necessary.

    If the application has loaded the driver again since then, with other code, it is started again. Models that were
    compiled before keep the old process.
    """
    from nnhal.ipc.client.process import ReconnectingDevice, start

    driver = discovery.origin_of(name)

    def started() -> ReconnectingDevice:
        loaded = discovery.registered(name)
        device = ReconnectingDevice(name, lambda: start(driver))
        if loaded is not None:
            _started_as[device] = loaded
        return device

    return _kept(DriverLocation(name, driver, True), started)


def _has_old_code(device: "ReconnectingDevice") -> bool:
    """Whether the application has loaded an isolated driver again, with other code than it was started with."""
    then, now = _started_as.get(device), discovery.registered(device.name)
    if then is None or now is None or then is now:
        return False
    before, after = code_by(then), code_by(now)
    return bool(before.unknown or after.unknown) or before.digest != after.digest


def service(name: str) -> "ReconnectingDevice":
    """Return the device of a running service of this user."""
    from nnhal.ipc.client.process import ReconnectingDevice
    from nnhal.ipc.names import connect

    return _kept(DriverLocation(name, name, False), lambda: ReconnectingDevice(name, lambda: connect(name)))


def _kept(place: DriverLocation, make: "Callable[[], ReconnectingDevice]") -> "ReconnectingDevice":
    def checked() -> "ReconnectingDevice":
        device = make()
        try:
            discovery.check(device)
            if is_path(place.driver) and (said := device.remote().name) != place.name:
                raise DeviceUnavailable(
                    f"device {place.name}: its driver {place.driver} calls itself {said}, must be as when it was loaded; "
                    "load it again"
                )
        except BaseException:
            device.close()
            raise
        return device

    return _devices.get(place, checked, stale=lambda device: device.is_unusable or _has_old_code(device))


class SandboxStatus(Record, frozen=True):
    """The sandbox of a driver's process: the applied mechanisms, and why others are not; or why it does not start."""

    applied: Mapping[str, str]
    problem: str = ""


def confinement(names: Sequence[str]) -> dict[str, SandboxStatus]:
    """Start an isolated process for each driver, all at once, and return their sandboxes."""

    def ask(name: str) -> SandboxStatus:
        try:
            return SandboxStatus(isolated(name).confinement)
        except NnhalError as error:
            return SandboxStatus({}, str(error))

    return dict(zip(names, map_in_threads(STARTING, ask, names), strict=True))


def at_level(
    name: str, level: str = "", *, own_process: bool = False, options: Mapping[str, Any] | None = None
) -> Device:
    """Return a driver's device, optionally isolated, or at a lower HAL version.

    options: its additional options in each compilation.
    """
    from nnhal.hal.wrappers import WithHalLevel, WithOptions

    if options:
        return WithOptions(at_level(name, level, own_process=own_process), options)

    if own_process:
        from nnhal.ipc.client.process import ReconnectingDevice, start

        driver = discovery.origin_of(name)
        return ReconnectingDevice(name, lambda: start(driver, level=level)) if level else isolated(name)
    device = select([name], "none")[0]
    return WithHalLevel(device, parsed_level(level)) if level else device


def select(names: Sequence[str | Device] | None, isolation: Isolation) -> list[Device]:
    """Return the named devices, each once, or all.

    With isolation "process", each driver is isolated, except for the CPU reference as the fallback. A name that no
    driver has may be that of a running service.
    """
    if names is None:
        return discovery.devices() if isolation == "none" else [*_all_isolated(), discovery.cpu()]
    if not names:
        raise InvalidArgument("devices: none is named, must be at least one")
    by_name = discovery.load_one if isolation == "none" else isolated

    def device(name: str | Device) -> Device:
        return name if isinstance(name, Device) else _named(name, by_name)

    return _each_once(
        map(device, names) if isolation == "none" else map_in_threads(STARTING, device, list(dict.fromkeys(names)))
    )


def _all_isolated() -> "list[ReconnectingDevice]":
    def started(name: str) -> "ReconnectingDevice | None":
        try:
            return isolated(name)
        except NnhalError as error:
            _log.info("device %s is left out: %s", name, error)
            return None

    names = [name for name in discovery.candidates() if name != discovery.CPU]
    return [device for device in map_in_threads(STARTING, started, names) if device is not None]


def _named(name: str, by_name: Callable[[str], Device]) -> Device:
    if is_path(name):
        name = discovery.loaded_name(name)
    if name not in discovery.names():
        from nnhal.ipc.names import running

        if name in running():
            return service(name)
    return by_name(name)


def _each_once(devices: Iterable[Device]) -> list[Device]:
    return list({id(device): device for device in devices}.values())


# ------------------------------------------------------------------------------------------------------------- identity


class DeviceKey(Record, frozen=True):
    """The identity of a device; several may have the same name.

    origin: an entry point, a file, a service, or the class of a device that the application created. isolation: "none",
    "process" (of this client) or "service".
    """

    name: str
    version: str
    origin: str
    isolation: str


def key_of(device: Device) -> DeviceKey:
    """Return the identity of a device; InvalidArgument names an invalid attribute."""
    name, version, *_ = identity_of(device)
    if not device.timely:
        return DeviceKey(name, version, discovery.source_of(device), "none")
    from nnhal.ipc.client.process import ReconnectingDevice

    if not isinstance(device, ReconnectingDevice):
        return DeviceKey(name, version, discovery.source_of(device), "none")
    drivers = (place.driver for place, kept in _devices.values().items() if kept is device)
    return DeviceKey(name, version, next(drivers, name), "process" if device.isolated else "service")


_WHERE = {"none": "in this process", "process": "in its own process", "service": "as a service"}


def labels(keys: Sequence[DeviceKey]) -> tuple[str, ...]:
    """Return a unique label for each device: its name, extended by its place or a number if necessary."""
    taken: dict[str, DeviceKey] = {}
    for key in keys:
        alike = [k for k in taken.values() if k.name == key.name]
        label = key.name
        if alike and all(k.isolation != key.isolation for k in alike):
            label = f"{key.name} ({_WHERE[key.isolation]})"
        number = 2
        while label in taken:
            label = f"{key.name} ({number})"
            number += 1
        taken[label] = key
    return tuple(taken)


# ------------------------------------------------------------------------------------------------------------- the end


def close_all() -> None:
    """End all processes and connections; the next use of a device starts new ones."""
    for device in _devices.forget():
        device.close()


atexit.register(close_all)
os.register_at_fork(after_in_child=_devices.forget)
