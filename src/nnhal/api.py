"""The Python API: `load`, `compile`, `devices`. Everything here is an edge: arguments are checked, then passed on."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from nnhal.base.codes import Preference, Priority
from nnhal.base.errors import BadFile, InvalidArgument
from nnhal.hal.device import Device
from nnhal.hal.utilities import validate_preference, validate_priority
from nnhal.model.graph import Model
from nnhal.runtime import discovery
from nnhal.runtime import isolation as isolation_of_devices
from nnhal.runtime.compilation import Fallback, Wishes, compile_plan
from nnhal.runtime.compiled import Compiled
from nnhal.runtime.discovery import Found
from nnhal.runtime.isolation import Isolation

Path = str | os.PathLike[str]


def load(
    path: Path | bytes,
    *,
    signature: str | None = None,
    shapes: Mapping[str, Sequence[int]] | Sequence[Sequence[int]] | None = None,
) -> Model:
    """Read a `.tflite` file (or its bytes) as a model. It is copied once: what becomes of the file does not matter.

    signature: which of several entry points. shapes: input shapes by name or in order, 0 for a dimension left open.
    Raises BadFile for a damaged file, UnsupportedModel listing every operation that NNAPI cannot express.
    """
    from nnhal.frontends.tflite import load as read

    if not isinstance(path, bytes) and not os.path.isfile(path):
        raise BadFile(f"{os.fspath(path)}: is no file, must be a .tflite model")
    return read(path, signature=signature, shapes=shapes)


def compile(
    model: Model | Path,
    *,
    devices: Sequence[str | Device] | str | Device | None = None,
    preference: Preference | str = Preference.FAST_SINGLE_ANSWER,
    priority: Priority | str = Priority.MEDIUM,
    fallback: Fallback | None = None,
    threads: int = 0,
    relaxed: bool | None = None,
    deadline: float | None = None,
    driver_options: Mapping[str, Mapping[str, Any]] | None = None,
    isolation: Isolation = "none",
) -> Compiled:
    """Compile a model for the devices named (default: all that there are, with fallback to the CPU).

    fallback: "allow", "warn" (a FallbackWarning) or "forbid"; where devices are named, "forbid" is the default.
    threads: how many an engine may use, 0 for its own choice. relaxed: float32 may be computed as float16; None leaves it
    as the model says. deadline: seconds from now. driver_options: a mapping for each device name.
    isolation: "process" runs each driver in a process of its own, which may crash or hang without harm to this one.
    Raises InvalidModel, UnsupportedModel, DeviceUnavailable, MissedDeadline, or what a driver raised.
    """
    if not isinstance(model, Model):
        model = load(model)
    named = [devices] if isinstance(devices, str | Device) else devices
    if isolation not in get_args(Isolation):
        raise InvalidArgument(f"isolation is {isolation!r}, must be one of {', '.join(get_args(Isolation))}")
    chosen = isolation_of_devices.select(named, isolation)
    fallback = fallback or ("allow" if devices is None else "forbid")
    if fallback not in get_args(Fallback):
        raise InvalidArgument(f"fallback is {fallback!r}, must be one of {', '.join(get_args(Fallback))}")
    if threads < 0:
        raise InvalidArgument(f"threads is {threads}, must be at least 0")
    options = driver_options or {}
    for name in options:
        if name not in [device.name for device in chosen]:
            there = ", ".join(device.name for device in chosen)
            raise InvalidArgument(f"driver_options: {name!r} is none of the devices, must be one of {there}")
    if relaxed is not None and relaxed != model.relaxed:
        model = replace(model, relaxed=relaxed)
    wishes = Wishes(
        tuple(chosen),
        fallback,
        validate_preference(preference),
        validate_priority(priority),
        threads,
        None if deadline is None else time.monotonic_ns() + int(deadline * 1e9),
        options,
    )
    return Compiled(compile_plan(model, wishes))


def devices() -> list[Found]:
    """Every device there is, and every driver that does not load, with the reason."""
    return discovery.found()
