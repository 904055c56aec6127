"""Discovers drivers: by entry point (group `nnhal.drivers`; samples by name only), or by path during development.

A driver loads on its first use, once. No lock is held meanwhile: it may use others, and others may load at the same
time.
"""

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from nnhal.base import trace
from nnhal.base.answers import driver_call, raise_application_error, safe_repr
from nnhal.base.errors import DeviceUnavailable, InvalidArgument, bounded_text, error_text
from nnhal.base.installed import EntryPoint, entry_points
from nnhal.base.log import logger
from nnhal.base.names import is_path, suggestion
from nnhal.base.once import OnceTable
from nnhal.base.records import PartlyCompared
from nnhal.base.stacks import store_stack, without_frames
from nnhal.hal.answers import driver_capabilities
from nnhal.hal.code import CreationArguments
from nnhal.hal.device import Device, identity_of
from nnhal.runtime.sources import Source

GROUP = "nnhal.drivers"
ENGINES = "nnhal.engines"  # used if they are named, and candidates once they are measured on this machine
SAMPLES = "nnhal.samples"  # used only if they are named
CPU = "reference"  # always nnhal's reference: another driver of this name cannot replace the fallback
_CPU_ORIGIN = "nnhal.drivers.reference:device"
_log = logger("manager")


class DiscoveredDriver(PartlyCompared, frozen=True):
    """A discovered driver.

    Attributes:
        name: The name of the device.
        origin: The entry point or file.
        device: The device; None if the driver did not load.
        problem: Why it did not load, or "".
        error: The exception that it raised.
    """

    name: str
    origin: str
    device: Device | None
    problem: str = ""
    error: BaseException | None = None

    _not_compared = _not_shown = frozenset({"error"})

    def loaded(self, what: str = "") -> Device:
        """Return the device, or raise DeviceUnavailable with the problem.

        Args:
            what: The beginning of the message.
        """
        if self.device is None:
            error = DeviceUnavailable(f"{what or f'device {self.name!r} does not load'}: {self.problem}")
            error.__cause__ = self.error
            store_stack(error)
            try:
                raise error
            finally:
                del error  # its traceback holds this frame
        return self.device


_registered: dict[str, DiscoveredDriver] = {}  # registered by the application, by device name
_loaded: OnceTable[str, DiscoveredDriver] = OnceTable(
    lambda name: f"driver {name!r}"
)  # installed drivers, by entry point


@cache
def _installed() -> dict[str, EntryPoint]:
    """Return the entry points by name. They are read once for each process."""
    points = {CPU: EntryPoint(CPU, _CPU_ORIGIN, GROUP)}
    for point in entry_points((GROUP, ENGINES, SAMPLES)):
        points.setdefault(point.name, point)
    return points


def names(*, samples: bool = True) -> list[str]:
    """Return the names of all drivers, without loading any; the samples last.

    Args:
        samples: Whether to include the samples.
    """
    known = [name for name, point in _installed().items() if samples or point.group == GROUP]
    return list(dict.fromkeys([*_registered, *known]))


def origins() -> frozenset[str]:
    """Return the origins of the installed drivers, in the format of `source_of`."""
    return frozenset(point.value for point in _installed().values())


def engines() -> list[str]:
    """Return the names of the engines: drivers that are candidates only once they are measured."""
    return [name for name, point in _installed().items() if point.group == ENGINES and name not in _registered]


def candidates() -> list[str]:
    """Return the names of the candidates of a compilation that names no device."""
    return list(dict.fromkeys([*names(samples=False), *_measured_engines()]))


def _measured_engines() -> list[str]:
    from nnhal.runtime.measured import is_measured

    if not is_measured():
        return []
    from nnhal.runtime.measured.record import profile

    known = profile()
    return [] if known is None else [name for name in engines() if name in known.devices]


def drivers_named(names: Sequence[str]) -> list[DiscoveredDriver]:
    """Return the drivers of these names, from any group.

    Args:
        names: The names of drivers or devices.

    Raises:
        DeviceUnavailable: No driver has one of the names.
    """
    known = _installed()
    for name in names:
        if name not in known and name not in _registered:
            raise unknown(name)
    return [_one(name) for name in names]


def load_candidates() -> list[DiscoveredDriver]:
    """Load every candidate of a compilation that names no device; the CPU last.

    Engines are included if they were measured on this machine.
    """
    return sorted(map(_one, candidates()), key=lambda f: (f.name == CPU, f.name))


def found_with_engines() -> list[DiscoveredDriver]:
    """Load the same drivers as `load_candidates` and all engines; the CPU last."""
    *others, cpu = load_candidates()
    more = [name for name in engines() if all(name != other.name for other in others)]
    return [*others, *drivers_named(more), cpu]


def devices() -> list[Device]:
    """Return the devices that loaded, the CPU last."""
    return [f.device for f in load_candidates() if f.device is not None]


def _one(name: str) -> DiscoveredDriver:
    """Return the driver with this entry point or registered name; load no other."""
    return _registered.get(name) or _from_entry(_installed()[name])


def _from_entry(point: EntryPoint) -> DiscoveredDriver:
    return _loaded.get(point.name, lambda: _load(point.name, point.value, point.load))


def cpu() -> Device:
    """Return the CPU reference device."""
    return _from_entry(_installed()[CPU]).loaded()


@trace.traced_function("driver", "initialisation", "load driver", lambda name: f"device {name}")
def _load(name: str, origin: str, load: Callable[[], Callable[[], object]]) -> DiscoveredDriver:
    try:
        factory = load()
        made = factory()
        device = made if isinstance(made, Device) else _adapted(made, name, origin)
        state = device.cached_as._device_state
        known = state.made_with if device is made else CreationArguments()
        state.made_with = known.by(factory)  # its code decides what it creates the device with
        check(device)
    except BaseException as error:
        raise_application_error(error)
        problem = bounded_text(error_text(error))
        _log.debug("driver %s (%s) does not load: %s", name, origin, problem)
        return DiscoveredDriver(name, origin, None, problem, without_frames(error))
    own = identity_of(device).name
    _log.debug("driver %s (%s) loaded as device %s", name, origin, own)
    return DiscoveredDriver(own, origin, device)


def _adapted(driver: object, name: str, origin: str) -> Device:
    """Return the device for a driver that implements the HAL's methods."""
    from nnhal.hal.hidl.adapters import adapt
    from nnhal.hal.hidl.interfaces import hal_level

    if hal_level(driver) is None:
        kind = type(driver).__name__
        raise DeviceUnavailable(f"{origin} gave {kind}, must give a nnhal.hal.device.Device or a driver of the HAL")
    return adapt(driver, getattr(driver, "name", name))


def load_one(name: str) -> Device:
    """Return the device of one driver.

    Args:
        name: The entry point. If there is none, all drivers are loaded, and the name of a device counts.

    Raises:
        DeviceUnavailable: It does not load, or does not exist; the message has the reason or the known names.
    """
    if name in names():
        return _one(name).loaded()
    for entry in load_candidates():
        if entry.name == name:
            return entry.loaded()
    raise unknown(name)


def unknown(name: str) -> DeviceUnavailable:
    """Return the error for an unknown device name."""
    there = ", ".join([*names(samples=False), *engines()])
    return DeviceUnavailable(f"device {name!r} is not known, must be one of {there}{suggestion(name, names())}")


def select(names: Sequence[str] | None) -> list[Device]:
    """Return the named devices in this order, or all devices.

    Args:
        names: The names; None for all.

    Raises:
        DeviceUnavailable: A device does not load or does not exist.
    """
    if names is None:
        return devices()
    return [load_one(name) for name in names]


def origin_of(name: str) -> str:
    """Return the path or name with which an isolated process loads this driver."""
    if name not in names():
        raise unknown(name)
    entry = _registered.get(name)
    return entry.origin if entry is not None and is_path(entry.origin) else name


def source_of(device: Device) -> str:
    """Return the origin of a device in this process: an entry point, a file, or the class of a given object."""
    for entry in (*_registered.values(), *_loaded.values().values()):
        if entry.device is device:
            return entry.origin
    made = _class_of(device)
    return f"{made}()" if made in origins() else made  # an entry point may be a class, of which this is another object


def _class_of(device: Device) -> str:
    return f"{type(device).__module__}:{type(device).__qualname__}"


def load_driver(path: str | Path) -> Device:
    """Load a driver from a Python file or package that defines `device()`.

    The device replaces a device of the same name.

    Args:
        path: The file, or the folder of the package. The driver may import modules beside the file or in the package.

    Returns:
        The device.

    Raises:
        InvalidArgument: The path does not exist, or is not a Python file or package.
        DeviceUnavailable: The driver does not load.
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidArgument(f"driver is {safe_repr(path)}, must be the path of a Python file that defines device()")
    source = Source(Path(path))

    def factory() -> Callable[[], object]:
        module = source.load()
        if not hasattr(module, "device"):
            raise InvalidArgument(
                f"driver {source.path}: defines no device(), must be a function that returns a Device"
            )
        made: Callable[[], object] = module.device
        return made

    entry = _load(source.path.stem, str(source.path), factory)
    device = entry.loaded(f"driver {source.path}")
    register(device, entry.origin)
    return device


def loaded_name(path: str) -> str:
    """Return the name of the device of a driver's file or package, which is loaded unless it is already.

    Raises the errors of `load_driver`.
    """
    origin = str(Source(Path(path)).path)
    there = next((entry.name for entry in _registered.values() if entry.origin == origin), None)
    return there or identity_of(load_driver(path)).name


def load_extension(path: str | Path) -> None:
    """Run a Python file or package that registers extensions, operations and custom operators in this process.

    A driver with its own extension does not need this: `load_driver` runs its file.

    Args:
        path: The file, or the folder of the package. It may import modules beside the file or in the package.

    Raises:
        InvalidArgument: The path does not exist, or is not a Python file or package.
        DriverFailed: The code raised an exception.
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidArgument(f"extension is {safe_repr(path)}, must be the path of a Python file")
    source = Source(Path(path), "extension")
    with driver_call(f"extension {source.path}", "the file"):
        source.load()


def registered(name: str) -> Device | None:
    """Return the device that the application registered under this name; None if there is none."""
    entry = _registered.get(name)
    return None if entry is None else entry.device


def register(device: Device, origin: str = "registered") -> None:
    """Register a device in this process. It replaces a device of the same name, except for the CPU reference.

    Args:
        device: The device.
        origin: Its origin in messages and placements.
    """
    check(device)
    name = identity_of(device).name
    _registered[name] = DiscoveredDriver(name, origin, device)


def check(device: Device) -> None:
    """Raise an error for a device with invalid attributes; the message names the attribute."""
    identity_of(device)
    driver_capabilities(device)
