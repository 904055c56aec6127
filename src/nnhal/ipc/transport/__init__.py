from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnhal.ipc.transport import _native
else:
    try:
        from nnhal.ipc.transport import _native
    except ImportError:
        from nnhal.ipc.transport import absent as _native

__all__ = ["_native", "require"]


def require() -> None:
    """Raise DeviceUnavailable, with the remedy, if the extension is missing."""
    from nnhal.ipc.transport import absent

    if _native is absent:
        raise absent.refusal()
