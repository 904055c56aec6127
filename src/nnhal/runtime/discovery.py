"""Finds device drivers: by entry point (group `nnhal.drivers`; samples by name only), or a Python file under development."""

import importlib.util
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nnhal.base.errors import DeviceUnavailable, InvalidArgument, NnhalError
from nnhal.base.log import logger
from nnhal.hal.device import Device
from nnhal.hal.utilities import validate_capabilities

GROUP = "nnhal.drivers"
SAMPLES = "nnhal.samples"  # found by name only, no candidates where no device is named
CPU = "reference"  # the device that everything can fall back to
_log = logger("manager")


@dataclass(frozen=True)
class Found:
    """A driver that was found: its device, or the problem that kept it from loading."""

    name: str
    origin: str
    device: Device | None
    problem: str = ""


_lock = threading.Lock()
_found: dict[str, Found] = {}
_samples: dict[str, Found] = {}
_scanned = False


def found() -> list[Found]:
    """Every driver known, loaded or not, the CPU last. Loading happens once; a driver's engine is imported here."""
    global _scanned  # noqa: PLW0603
    with _lock:
        if not _scanned:
            from importlib.metadata import entry_points

            for point in entry_points(group=GROUP):
                if point.name not in _found:
                    _found[point.name] = _load(point.name, point.value, point.load)
            _scanned = True
        return sorted(_found.values(), key=lambda f: (f.name == CPU, f.name))


def _load(name: str, origin: str, load: object) -> Found:
    try:
        factory = load()  # type: ignore[operator]
        device = factory()
        if not isinstance(device, Device):
            device = _adapted(device, name, origin)
        check(device)
    except Exception as error:
        _log.debug("driver %s (%s) does not load: %s", name, origin, error)
        problem = str(error) if isinstance(error, NnhalError) else f"{type(error).__name__}: {error}"
        return Found(name, origin, None, problem)
    _log.debug("driver %s (%s) loaded as device %s", name, origin, device.name)
    return Found(device.name, origin, device)


def _adapted(driver: object, name: str, origin: str) -> Device:
    """The device over a driver that is written against the HAL's own methods."""
    from nnhal.hal.adapters import adapt
    from nnhal.hal.interfaces import hal_level

    if hal_level(driver) is None:
        kind = type(driver).__name__
        raise DeviceUnavailable(f"{origin} gave {kind}, must give a nnhal.hal.device.Device or a driver of the HAL")
    return adapt(driver, getattr(driver, "name", name))


def sample(name: str) -> Found | None:
    """A driver of the second group by its name, loaded once; None where there is none."""
    with _lock:
        if name not in _samples:
            from importlib.metadata import entry_points

            for point in entry_points(group=SAMPLES, name=name):
                _samples[name] = _load(point.name, point.value, point.load)
        return _samples.get(name)


def names(*, samples: bool = True) -> list[str]:
    """Names of all drivers that can be loaded, without loading any; the samples last."""
    from importlib.metadata import entry_points

    known = [point.name for group in (GROUP, SAMPLES)[: 1 + samples] for point in entry_points(group=group)]
    return list(dict.fromkeys([*_found, *known]))


def origin_of(name: str) -> str:
    """What a process of its own has to load for a driver: the path of its file, or its name."""
    entry = _found.get(name)
    return entry.origin if entry is not None and entry.origin.endswith(".py") else name


def load_one(name: str) -> Device:
    """The device of one driver, found by name; no other is loaded. DeviceUnavailable says why not."""
    from importlib.metadata import entry_points

    for group in (GROUP, SAMPLES):
        for point in entry_points(group=group, name=name):
            entry = _load(point.name, point.value, point.load)
            if entry.device is None:
                raise DeviceUnavailable(f"device {name!r} does not load: {entry.problem}")
            return entry.device
    raise DeviceUnavailable(f"device {name!r} is not known, must be one of {', '.join(names())}")


def check(device: Device) -> None:
    """Refuse a device whose statements cannot be true: InvalidArgument names the statement."""
    try:
        validate_capabilities(device.capabilities())
    except InvalidArgument as error:
        raise InvalidArgument(f"device {device.name}: {error}") from None


def load_driver(path: str | Path) -> Device:
    """Load a driver from a Python file that defines `device()`; it takes the place of a device of the same name."""
    file = Path(path)
    if not file.is_file():
        raise InvalidArgument(f"driver {file}: is no file, must be a Python file that defines device()")
    spec = importlib.util.spec_from_file_location(f"nnhal_driver_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise InvalidArgument(f"driver {file}: cannot be imported, must be a Python file that defines device()")
    module = importlib.util.module_from_spec(spec)
    loader = spec.loader

    def factory() -> object:
        loader.exec_module(module)
        if not hasattr(module, "device"):
            raise InvalidArgument(f"driver {file}: defines no device(), must be a function that returns a Device")
        return module.device

    entry = _load(file.stem, str(file), factory)
    if entry.device is None:
        raise DeviceUnavailable(f"driver {file}: {entry.problem}")
    register(entry.device, str(file))
    return entry.device


def register(device: Device, origin: str = "registered") -> None:
    """Make a device known to this process; it takes the place of one of the same name."""
    check(device)
    with _lock:
        _found[device.name] = Found(device.name, origin, device)


def devices() -> list[Device]:
    """The devices that loaded, the CPU last."""
    return [f.device for f in found() if f.device is not None]


def select(names: Sequence[str | Device] | None) -> list[Device]:
    """The devices named, in that order, or all; DeviceUnavailable says why one is not there and lists the others."""
    if names is None:
        return devices()
    table = {f.name: f for f in found()}
    chosen = []
    for name in names:
        if isinstance(name, Device):
            chosen.append(name)
            continue
        entry = table.get(name) or sample(name)
        if entry is None:
            there = ", ".join(n for n, f in table.items() if f.device is not None)
            raise DeviceUnavailable(f"device {name!r} is not known, must be one of {there}")
        if entry.device is None:
            raise DeviceUnavailable(f"device {name!r} does not load: {entry.problem}")
        chosen.append(entry.device)
    if not chosen:
        raise InvalidArgument("devices: none is named, must be at least one")
    return chosen


def cpu() -> Device:
    """The CPU reference device."""
    return select([CPU])[0]
