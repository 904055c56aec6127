"""nnhal's null driver in a process whose waits never spin, for `transport_peers.nnhal_peer`.

A service offers no switch for it: it is only of interest to a comparison with other transports that block.
"""

from nnhal.drivers.null import device
from nnhal.ipc.transport import _native

__all__ = ["device"]


def _without_spin(make):
    def made(*arguments):
        waiter = make(*arguments)
        waiter.spin = False
        return waiter

    return made


_native.Lane, _native.Queues = _without_spin(_native.Lane), _without_spin(_native.Queues)
