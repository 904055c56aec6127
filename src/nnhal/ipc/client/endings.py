"""The endings that a client orders: of objects that it released, and of calls whose results it no longer wants."""

import os
import threading
import time
from collections import deque

from nnhal.base.descriptors import Owner
from nnhal.base.errors import ResourceExhausted
from nnhal.ipc.client.first_channel import FirstChannel
from nnhal.ipc.client.peer import ServicePeer
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.wire import INLINE

# Releases come one after the other: so long, more are awaited for one message.
_BATCH_SECONDS = 0.002
_MOST = INLINE // 10  # numbers of one message, of at most 9 bytes each; a longer one would need a free descriptor


class Endings:
    """The numbers of what the service must end. Any thread or finalizer adds; the housekeeping thread alone sends.

    released, cancelled: the numbers to send. wishes: of running calls, by their number: events that are set when a call
    is no longer wanted. unused: not empty once nobody refers to the session. own: the eventfd that wakes the
    housekeeping thread; holders of the session may use it.
    """

    busy = False

    def __init__(self, peer: ServicePeer) -> None:
        self._peer = peer
        self.released: deque[int] = deque()
        self.cancelled: deque[int] = deque()
        self.unused: deque[int] = deque()
        self.wishes: dict[int, threading.Event] = {}
        self.own = Owner()
        try:
            self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError as error:
            raise ResourceExhausted(f"{peer.where}: no descriptor for its connection: {error.strerror}") from None
        self.own.fds.append(self.wake)
        peer.add_recipient(self)

    def release(self, number: int) -> None:
        """Release an object, in a batch with others. Safe in finalizers."""
        self.released.append(number)
        self.rouse()

    def cancel(self, number: int) -> None:
        """Inform the service immediately that a call or an object is no longer wanted."""
        self.cancelled.append(number)
        self.rouse()

    def watch_cancellation(self, number: int, cancelled: threading.Event | None) -> None:
        """Until `unwatch_cancellation`, inform the service when a call's result is no longer wanted."""
        if cancelled is not None:
            self.wishes[number] = cancelled
            self.rouse()

    def unwatch_cancellation(self, number: int) -> None:
        """Stop watching: the call's work has ended."""
        self.wishes.pop(number, None)

    def look(self) -> None:
        """Cancel the watched calls that are no longer wanted."""
        for number, cancelled in list(self.wishes.items()):
            if cancelled.is_set():
                self.unwatch_cancellation(number)
                self.cancel(number)

    def send(self, first: FirstChannel) -> None:
        """Send cancellations immediately, and releases in batches."""
        if self.cancelled:
            first.send(wire.Cancel(_some(self.cancelled)))
        if self.released:
            time.sleep(_BATCH_SECONDS)
            first.send(wire.Release(_some(self.released)))
        if self.released or self.cancelled:
            self.rouse()

    def rouse(self) -> None:
        """Wake the housekeeping thread of a session that lives."""
        if self._peer.dead is None:
            os.eventfd_write(self.wake, 1)

    def session_died(self) -> None:
        """Wake the housekeeping thread, unless the end of the process does."""
        if self.own.fds and (self._peer.process is None or self._peer.watch < 0):
            os.eventfd_write(self.wake, 1)


def _some(numbers: deque[int]) -> tuple[int, ...]:
    """Remove and return as many numbers as fit one message."""
    return tuple(numbers.popleft() for _ in range(min(len(numbers), _MOST)))
