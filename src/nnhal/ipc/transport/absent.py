"""In place of `_native` where it was not built: what modules name as they load; all else is refused with the remedy."""

from typing import Any

from nnhal.base.errors import DeviceUnavailable

TIMEOUT, DEAD, CLOSED, CORRUPT, TOO_LARGE, FULL = range(-1, -7, -1)
CLIENT, SERVICE = range(2)


class Descriptors:
    """Descriptors that came with a message: none ever do."""


NONE = Descriptors()


def refusal() -> DeviceUnavailable:
    """The error for whatever needs another process."""
    return DeviceUnavailable(
        "isolation: nnhal was installed without its extension nnhal.ipc.transport._native, which processes of drivers and "
        "services need; install a C compiler and then nnhal again (pip install --force-reinstall --no-deps), or a wheel, "
        "or run without isolation"
    )


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise refusal()
