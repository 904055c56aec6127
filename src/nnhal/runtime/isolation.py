"""Devices in processes of their own: one process for each driver, or a service that somebody started."""

import atexit
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from nnhal.base.errors import DeviceUnavailable, InvalidArgument, NnhalError
from nnhal.base.log import logger
from nnhal.base.names import is_path
from nnhal.base.once import Once
from nnhal.base.records import Record
from nnhal.base.time import at_once
from nnhal.base.values import parsed_level
from nnhal.hal.device import Device, identity_of
from nnhal.runtime import discovery

if TYPE_CHECKING:
    from nnhal.ipc.client.process import Resilient

Isolation = Literal["none", "process"]
STARTING = "driver processes"
_log = logger("manager")


class Place(Record, frozen=True):
    """Where the driver of a device is: name, what its process loads, whether the process is this client's own."""

    name: str
    driver: str
    own: bool


_devices: "Once[Place, Resilient]" = Once(lambda place: f"the process of device {place.name!r}")


def isolated(name: str) -> "Resilient":
    """The device of a driver in a process of this client's own, which is started now where it does not run yet."""
    from nnhal.ipc.client.process import Resilient, start

    driver = discovery.origin_of(name)
    return _kept(Place(name, driver, True), lambda: Resilient(name, lambda: start(driver)))


def service(name: str) -> "Resilient":
    """The device of a running service of this user."""
    from nnhal.ipc.client.process import Resilient
    from nnhal.ipc.names import connect

    return _kept(Place(name, name, False), lambda: Resilient(name, lambda: connect(name)))


def _kept(place: Place, make: "Callable[[], Resilient]") -> "Resilient":
    def checked() -> "Resilient":
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

    return _devices.get(place, checked, stale=lambda device: device.unusable)


class Confined(Record, frozen=True):
    """How a driver's own process is confined: what was applied, and why not; or why it does not start."""

    applied: Mapping[str, str]
    problem: str = ""


def confinement(names: Sequence[str]) -> dict[str, Confined]:
    """Start each driver in a process of its own, all at once, and ask."""

    def ask(name: str) -> Confined:
        try:
            return Confined(isolated(name).confinement)
        except NnhalError as error:
            return Confined({}, str(error))

    return dict(zip(names, at_once(STARTING, ask, names), strict=True))


def at_level(
    name: str, level: str = "", *, own_process: bool = False, options: Mapping[str, Any] | None = None
) -> Device:
    """A driver's device, at a lower HAL level where one is given, in a process of its own where that is asked for.

    options: that it is given at each compilation.
    """
    from nnhal.hal.wrappers import AtLevel, WithOptions

    if options:
        return WithOptions(at_level(name, level, own_process=own_process), options)

    if own_process:
        from nnhal.ipc.client.process import Resilient, start

        driver = discovery.origin_of(name)
        return Resilient(name, lambda: start(driver, level=level)) if level else isolated(name)
    device = select([name], "none")[0]
    return AtLevel(device, parsed_level(level)) if level else device


def select(names: Sequence[str | Device] | None, isolation: Isolation) -> list[Device]:
    """The devices named, each once, or all; with isolation "process" each driver in a process of its own, but for the CPU
    reference where everything can fall back to it. A name that is no driver's may be that of a running service.
    """
    if names is None:
        return discovery.devices() if isolation == "none" else [*_all_isolated(), discovery.cpu()]
    if not names:
        raise InvalidArgument("devices: none is named, must be at least one")
    by_name = discovery.load_one if isolation == "none" else isolated

    def device(name: str | Device) -> Device:
        return name if isinstance(name, Device) else _named(name, by_name)

    return _each_once(
        map(device, names) if isolation == "none" else at_once(STARTING, device, list(dict.fromkeys(names)))
    )


def _all_isolated() -> "list[Resilient]":
    def started(name: str) -> "Resilient | None":
        try:
            return isolated(name)
        except NnhalError as error:
            _log.info("device %s is left out: %s", name, error)
            return None

    names = [name for name in discovery.candidates() if name != discovery.CPU]
    return [device for device in at_once(STARTING, started, names) if device is not None]


def _named(name: str, by_name: Callable[[str], Device]) -> Device:
    if name not in discovery.names():
        from nnhal.ipc.names import running

        if name in running():
            return service(name)
    return by_name(name)


def _each_once(devices: Iterable[Device]) -> list[Device]:
    return list({id(device): device for device in devices}.values())


# ------------------------------------------------------------------------------------------------------------- identity


class DeviceKey(Record, frozen=True):
    """What a device is. Its name alone may be that of others.

    origin: an entry point, a file, a service, or the class of a device that the application made.
    isolation: "none", "process" (of this client's own) or "service".
    """

    name: str
    version: str
    origin: str
    isolation: str


def key_of(device: Device) -> DeviceKey:
    """What a device is; InvalidArgument names the attribute that cannot be."""
    name, version, *_ = identity_of(device)
    if not device.timely:
        return DeviceKey(name, version, discovery.source_of(device), "none")
    from nnhal.ipc.client.process import Resilient

    if not isinstance(device, Resilient):
        return DeviceKey(name, version, discovery.source_of(device), "none")
    drivers = (place.driver for place, kept in _devices.values().items() if kept is device)
    return DeviceKey(name, version, next(drivers, name), "process" if device.isolated else "service")


_WHERE = {"none": "in this process", "process": "in its own process", "service": "as a service"}


def labels(keys: Sequence[DeviceKey]) -> tuple[str, ...]:
    """A name for each device that no other has: its own, with where it runs, or a number, where that is taken."""
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
    """End all processes and connections; who asks for a device again gets a new one."""
    for device in _devices.forget():
        device.close()


atexit.register(close_all)
os.register_at_fork(after_in_child=_devices.forget)
