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
    """Refuse what needs another process where the extension is not there: DeviceUnavailable with the remedy."""
    from nnhal.ipc.transport import absent

    if _native is absent:
        raise absent.refusal()
