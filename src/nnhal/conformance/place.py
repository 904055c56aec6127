"""Finds locations in a driver's files."""

import inspect
import re
from pathlib import Path

from nnhal.base.stacks import is_driver_code
from nnhal.hal.device import Device, Prepared

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_INNER = "inner", "driver", "_prepared"  # attributes of wrappers and of the HAL adapter
_OF_THE_HAL = {
    "run": ("executeSynchronously_1_3", "executeSynchronously", "execute_1_3", "execute_1_2", "execute"),
    "prepare": ("prepareModel_1_3", "prepareModel_1_2", "prepareModel_1_1", "prepareModel"),
    "supports": (
        *("getSupportedOperations_1_3", "getSupportedOperations_1_2"),
        *("getSupportedOperations_1_1", "getSupportedOperations"),
    ),
}


def place_of(device: Device, prepared: Prepared | None, what: str) -> str:
    """Return FILE:LINE of a method of the prepared model's class, or of the device's; "" if it is not in this process."""
    owner: object = device if what in ("supports", "prepare", "capabilities") or prepared is None else prepared
    owner = _innermost(owner)
    for name in (what, *_OF_THE_HAL.get(what, ())):
        method = getattr(type(owner), name, None) or getattr(owner, name, None)
        code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
        if code is not None and is_driver_code(code.co_filename):
            return f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    return ""


def _innermost(owner: object) -> object:
    """Return the innermost wrapped object."""
    for _ in range(8):
        held = vars(owner) if hasattr(owner, "__dict__") else {}
        inner = next((held[name] for name in _INNER if name in held), None)
        if inner is None or not type(owner).__module__.startswith(("nnhal.hal", "nnhal.conformance")):
            return owner
        owner = inner
    return owner


def frames_in(stack: str) -> list[tuple[str, str]]:
    """Return file and line of each frame in a stack's text, in its order."""
    return _FRAME.findall(stack)


def place_in(stack: str) -> str:
    """Return FILE:LINE of the innermost frame in a stack's text, which Python prints last; "" if there is none."""
    frames = [(file, line) for file, line in frames_in(stack) if is_driver_code(file)]
    return f"{Path(frames[-1][0]).name}:{frames[-1][1]}" if frames else ""


def place_first(stack: str) -> str:
    """Return as `place_in`, for a stack whose innermost frame is first, as `dumped` writes it."""
    frames = frames_in(stack)
    return f"{Path(frames[0][0]).name}:{frames[0][1]}" if frames else ""
