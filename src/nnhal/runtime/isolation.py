"""Devices in processes of their own: one process for each driver, or a service that somebody started."""

import atexit
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from nnhal.base.errors import DeviceUnavailable, InvalidArgument, NnhalError
from nnhal.base.levels import Level
from nnhal.base.log import logger
from nnhal.hal.device import Device
from nnhal.ipc import names as services
from nnhal.ipc.process import Resilient, start
from nnhal.runtime import discovery

Isolation = Literal["none", "process"]
_log = logger("manager")
_lock = threading.Lock()
_devices: dict[tuple[str, str], Resilient] = {}


def isolated(name: str) -> Resilient:
    """The device of a driver in a process of this client's own, which is started now where it does not run yet."""
    if name not in discovery.names():
        raise DeviceUnavailable(f"device {name!r} is not known, must be one of {', '.join(discovery.names())}")
    driver = discovery.origin_of(name)
    return _kept("process", name, lambda: Resilient(name, lambda: start(driver)))


@dataclass(frozen=True)
class Confined:
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

    with ThreadPoolExecutor(max(1, len(names))) as pool:
        return dict(zip(names, pool.map(ask, names), strict=True))


def at_level(name: str, level: str = "", *, own_process: bool = False) -> Device:
    """A driver's device, at a lower HAL level where one is given, in a process of its own where that is asked for."""
    from nnhal.hal.wrappers import AtLevel

    if own_process:
        driver = discovery.origin_of(name)
        return Resilient(name, lambda: start(driver, level=level)) if level else isolated(name)
    device = select([name], "none")[0]
    return AtLevel(device, Level.parse(level)) if level else device


def service(name: str) -> Resilient:
    """The device of a running service of this user."""
    return _kept("service", name, lambda: Resilient(name, lambda: services.connect(name)))


def _kept(kind: str, name: str, make: Callable[[], Resilient]) -> Resilient:
    with _lock:
        device = _devices.get((kind, name))
        if device is None or device.unusable:
            device = make()
            try:
                discovery.check(device)
            except InvalidArgument:
                device.close()
                raise
            _devices[kind, name] = device
        return device


def select(names: Sequence[str | Device] | None, isolation: Isolation) -> list[Device]:
    """The devices named, or all; with isolation "process" each driver in a process of its own, but for the CPU reference
    where everything can fall back to it. A name that is no driver's may be that of a running service.
    """
    if isolation == "none":
        return discovery.devices() if names is None else [_by_name(n) for n in _some(names)]
    if names is not None:
        return [n if isinstance(n, Device) else _isolated_or_service(n) for n in _some(names)]
    devices: list[Device] = []
    for name in discovery.names(samples=False):
        if name != discovery.CPU:
            try:
                devices.append(isolated(name))
            except NnhalError as error:
                _log.info("device %s is left out: %s", name, error)
    return [*devices, discovery.cpu()]


def _some(names: Sequence[str | Device]) -> Sequence[str | Device]:
    if not names:
        raise InvalidArgument("devices: none is named, must be at least one")
    return names


def _by_name(name: str | Device) -> Device:
    if isinstance(name, str) and name not in discovery.names() and name in services.running():
        return service(name)
    return discovery.select([name])[0]


def _isolated_or_service(name: str) -> Device:
    if name not in discovery.names() and name in services.running():
        return service(name)
    return isolated(name)


def _end() -> None:
    for device in _devices.values():
        device.close()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 (the parent's may be held)
    _lock = threading.Lock()
    _devices.clear()


atexit.register(_end)
os.register_at_fork(after_in_child=_after_fork)
