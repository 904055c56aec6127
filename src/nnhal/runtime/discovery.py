"""Which drivers there are: by entry point (group `nnhal.drivers`; samples by name only), or by path while under development.

A driver loads when it is first asked for, once. No lock is held meanwhile: it may ask for others, and others load beside it.
"""

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from nnhal.base import trace
from nnhal.base.answers import answering, raise_own, shown
from nnhal.base.errors import DeviceUnavailable, InvalidArgument, clipped, told
from nnhal.base.installed import EntryPoint, entry_points
from nnhal.base.log import logger
from nnhal.base.names import is_path, meant
from nnhal.base.once import Once
from nnhal.base.records import PartlyCompared
from nnhal.base.stacks import let_frames_go, note_stack
from nnhal.hal.code import MadeWith
from nnhal.hal.device import Device, capabilities_by, identity_of
from nnhal.runtime.sources import Source

GROUP = "nnhal.drivers"
ENGINES = "nnhal.engines"  # used where they are named, and candidates once they were measured on this machine
SAMPLES = "nnhal.samples"  # found by name only, no candidates where no device is named
CPU = "reference"  # nnhal's own, whatever else calls itself so: what everything can fall back to
_CPU_ORIGIN = "nnhal.drivers.reference:device"
_log = logger("manager")


class Found(PartlyCompared, frozen=True):
    """A driver that was found: its device, or the problem that kept it from loading. error: what it raised."""

    name: str
    origin: str
    device: Device | None
    problem: str = ""
    error: BaseException | None = None

    _not_compared = _not_shown = frozenset({"error"})

    def loaded(self, what: str = "") -> Device:
        """The device; DeviceUnavailable with the problem where there is none. what: to begin that with."""
        if self.device is None:
            error = DeviceUnavailable(f"{what or f'device {self.name!r} does not load'}: {self.problem}")
            error.__cause__ = self.error
            note_stack(error)
            try:
                raise error
            finally:
                del error  # its traceback holds this frame
        return self.device


_registered: dict[str, Found] = {}  # by the application, by name of the device
_loaded: Once[str, Found] = Once(lambda name: f"driver {name!r}")  # of what is installed, by name of the entry point


@cache
def _installed() -> dict[str, EntryPoint]:
    """Entry points by name. Scanned once: what is installed later is there in the next process."""
    points = {CPU: EntryPoint(CPU, _CPU_ORIGIN, GROUP)}
    for point in entry_points((GROUP, ENGINES, SAMPLES)):
        points.setdefault(point.name, point)
    return points


def names(*, samples: bool = True) -> list[str]:
    """Names of all drivers that can be loaded, without loading any; the samples last."""
    known = [name for name, point in _installed().items() if samples or point.group == GROUP]
    return list(dict.fromkeys([*_registered, *known]))


def origins() -> frozenset[str]:
    """Where the drivers that are installed come from, as `source_of` says it."""
    return frozenset(point.value for point in _installed().values())


def engines() -> list[str]:
    """Names of the drivers that are used where they are named, and candidates where they were measured."""
    return [name for name, point in _installed().items() if point.group == ENGINES and name not in _registered]


def candidates() -> list[str]:
    """Names of the drivers that are candidates where none is named."""
    return list(dict.fromkeys([*names(samples=False), *_measured_engines()]))


def _measured_engines() -> list[str]:
    from nnhal.runtime.measured.place import there

    if not there():
        return []
    from nnhal.runtime.measured.record import profile

    known = profile()
    return [] if known is None else [name for name in engines() if name in known.devices]


def found_of(names: Sequence[str]) -> list[Found]:
    """The drivers of these names, whichever group they are of; DeviceUnavailable for a name that nothing has."""
    known = _installed()
    for name in names:
        if name not in known and name not in _registered:
            raise unknown(name)
    return [_one(name) for name in names]


def found() -> list[Found]:
    """Every driver that is a candidate where none is named, loaded now or before, or why it does not load; the CPU last.

    The engines are among them where they were measured on this machine.
    """
    return sorted(map(_one, candidates()), key=lambda f: (f.name == CPU, f.name))


def found_with_engines() -> list[Found]:
    """As `found`, with the engines before the CPU."""
    *others, cpu = found()
    more = [name for name in engines() if all(name != other.name for other in others)]
    return [*others, *found_of(more), cpu]


def devices() -> list[Device]:
    """The devices that loaded, the CPU last."""
    return [f.device for f in found() if f.device is not None]


def _one(name: str) -> Found:
    """A driver by the name of its entry point or of its registered device; no other is loaded."""
    return _registered.get(name) or _from_entry(_installed()[name])


def _from_entry(point: EntryPoint) -> Found:
    return _loaded.get(point.name, lambda: _load(point.name, point.value, point.load))


def cpu() -> Device:
    """The CPU reference device, nnhal's own."""
    return _from_entry(_installed()[CPU]).loaded()


@trace.spanning("driver", "initialisation", "load driver", lambda name: f"device {name}")
def _load(name: str, origin: str, load: Callable[[], Callable[[], object]]) -> Found:
    try:
        factory = load()
        made = factory()
        device = made if isinstance(made, Device) else _adapted(made, name, origin)
        facts = vars(device.cached_as)  # the code of a driver decides on what its own factory makes a device with
        known = facts.get("_made_with", MadeWith()) if device is made else MadeWith()
        facts["_made_with"] = known.by(factory)
        check(device)
    except BaseException as error:
        raise_own(error)
        problem = clipped(told(error))
        _log.debug("driver %s (%s) does not load: %s", name, origin, problem)
        return Found(name, origin, None, problem, let_frames_go(error))
    own = identity_of(device).name
    _log.debug("driver %s (%s) loaded as device %s", name, origin, own)
    return Found(own, origin, device)


def _adapted(driver: object, name: str, origin: str) -> Device:
    """The device over a driver that is written against the HAL's own methods."""
    from nnhal.hal.hidl.adapters import adapt
    from nnhal.hal.hidl.interfaces import hal_level

    if hal_level(driver) is None:
        kind = type(driver).__name__
        raise DeviceUnavailable(f"{origin} gave {kind}, must give a nnhal.hal.device.Device or a driver of the HAL")
    return adapt(driver, getattr(driver, "name", name))


def load_one(name: str) -> Device:
    """The device of one driver; no other is loaded. DeviceUnavailable says why it does not load, or which there are.

    name: of the entry point; that of a device which calls itself otherwise is found too, after all have loaded.
    """
    if name in names():
        return _one(name).loaded()
    for entry in found():
        if entry.name == name:
            return entry.loaded()
    raise unknown(name)


def unknown(name: str) -> DeviceUnavailable:
    """The error for a name that is no device's."""
    there = ", ".join([*names(samples=False), *engines()])
    return DeviceUnavailable(f"device {name!r} is not known, must be one of {there}{meant(name, names())}")


def select(names: Sequence[str] | None) -> list[Device]:
    """The devices named, in that order, or all; DeviceUnavailable says why one is not there and lists the others."""
    if names is None:
        return devices()
    return [load_one(name) for name in names]


def origin_of(name: str) -> str:
    """What a process of its own has to load for a driver: its path, or its name."""
    if name not in names():
        raise unknown(name)
    entry = _registered.get(name)
    return entry.origin if entry is not None and is_path(entry.origin) else name


def source_of(device: Device) -> str:
    """Where a device in this process comes from: an entry point, a file, or its class where the application made it."""
    for entry in (*_registered.values(), *_loaded.values().values()):
        if entry.device is device:
            return entry.origin
    return _class_of(device)


def _class_of(device: Device) -> str:
    return f"{type(device).__module__}:{type(device).__qualname__}"


def load_driver(path: str | Path) -> Device:
    """Load a driver from a Python file, or a package, that defines `device()`; it takes the place of a device of its name.

    path: of the file, or of the package's folder. Modules beside the file, or in the package, are the driver's own. Returns
    its device. Raises InvalidArgument for what is no such path, DeviceUnavailable where it does not load.
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidArgument(f"driver is {shown(path)}, must be the path of a Python file that defines device()")
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


def load_extension(path: str | Path) -> None:
    """Run a Python file, or package, that registers extensions, operations and custom operators with this process.

    A driver that brings its extension along needs none of this: `load_driver` runs its file. Modules beside the file are its
    own. Raises InvalidArgument for what is no such path, or DriverFailed with what it raised.
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidArgument(f"extension is {shown(path)}, must be the path of a Python file")
    source = Source(Path(path), "extension")
    with answering(f"extension {source.path}", "the file"):
        source.load()


def registered(name: str) -> Device | None:
    """The device that the application made known by this name; None where it did not."""
    entry = _registered.get(name)
    return None if entry is None else entry.device


def register(device: Device, origin: str = "registered") -> None:
    """Make a device known to this process; it takes the place of one of the same name, but not that of the CPU."""
    check(device)
    name = identity_of(device).name
    _registered[name] = Found(name, origin, device)


def check(device: Device) -> None:
    """Refuse a device whose statements cannot be true: the error names the statement."""
    identity_of(device)
    capabilities_by(device)
