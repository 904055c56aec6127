"""Replaces `_native` if it was not built: it has the names that modules import; any other use raises the remedy."""

from typing import Any

from nnhal.base.errors import DeviceUnavailable

TIMEOUT, DEAD, CLOSED, CORRUPT, TOO_LARGE, FULL = range(-1, -7, -1)
CLIENT, SERVICE = range(2)


class Descriptors:
    """Descriptors of a message; always empty."""


NONE = Descriptors()


def refusal() -> DeviceUnavailable:
    """Return the error for anything that needs another process."""
    return DeviceUnavailable(
        "isolation: nnhal was installed without its extension nnhal.ipc.transport._native, which isolated drivers and "
        "services need; install a C compiler and then nnhal again (pip install --force-reinstall --no-deps), or a wheel, "
        "or run without isolation"
    )


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise refusal()
