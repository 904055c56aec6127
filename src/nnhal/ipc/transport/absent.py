"""Replaces `_native` if it is not built: the names that modules need to load. Any use raises an error with the remedy."""

from typing import Any

from nnhal.base.errors import DeviceUnavailable

TIMEOUT, DEAD, CLOSED, CORRUPT, TOO_LARGE, FULL = range(-1, -7, -1)
CLIENT, SERVICE = range(2)


class Descriptors:
    """Descriptors of a message; there are never any."""


NONE = Descriptors()


def refusal() -> DeviceUnavailable:
    """Return the error for any use of another process."""
    return DeviceUnavailable(
        "isolation: nnhal was installed without its extension nnhal.ipc.transport._native, which processes of drivers and "
        "services need; install a C compiler and then nnhal again (pip install --force-reinstall --no-deps), or a wheel, "
        "or run without isolation"
    )


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise refusal()
