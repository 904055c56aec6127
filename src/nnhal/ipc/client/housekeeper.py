"""The housekeeping of a session: notifications, releases, abandoned calls, the watch on the process, and the end."""

import contextlib
import os
import select
import socket
import subprocess
import time

from nnhal.base.errors import DeadObject, NnhalError
from nnhal.ipc.client.channels import Channels
from nnhal.ipc.client.endings import Endings
from nnhal.ipc.client.first_channel import FirstChannel
from nnhal.ipc.client.peer import ServicePeer
from nnhal.ipc.client.pending import Notifications
from nnhal.ipc.transport.channel import Channel

_WISH_MS = 20  # between checks whether a call is still wanted
_LATE_MS = 250  # between checks whether a late call has ended


class Housekeeper:
    """Keeps house for one session, in a thread. It does not refer to the session, which ends when nobody uses it."""

    def __init__(
        self,
        peer: ServicePeer,
        first: FirstChannel,
        callbacks: Channel,
        channels: Channels,
        endings: Endings,
        notifications: Notifications,
    ) -> None:
        """callbacks: the channel for notifications, which it closes at the end, as it does with all channels."""
        self._peer, self._first, self._callbacks = peer, first, callbacks
        self._channels, self._endings, self._notifications = channels, endings, notifications

    def end(self) -> None:
        """End the session, and with it an own process, without a wait: safe in finalizers."""
        if self._peer.close():
            os.eventfd_write(self._endings.wake, 1)

    def run(self) -> None:
        """Keep house until the session is dead, then clean up."""
        peer, endings, channels, notifications = self._peer, self._endings, self._channels, self._notifications
        poll, callbacks = select.poll(), self._callbacks.socket.fileno()
        for fd in (callbacks, endings.wake, peer.watch):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        try:
            while peer.dead is None:
                late = channels.late or notifications.late
                ready = dict(poll.poll(_WISH_MS if endings.wishes else _LATE_MS if late else None))
                if callbacks in ready:
                    notifications.take(self._callbacks.receive(0))
                if endings.wake in ready:
                    os.eventfd_read(endings.wake)
                    if endings.unused:
                        self.end()
                    if endings.released or endings.cancelled:
                        endings.send(self._first)
                if endings.wishes:
                    endings.look()
                now = time.monotonic_ns()
                notifications.look(now)
                channels.look(now)
                if peer.watch in ready:
                    peer.process_ended()
        except NnhalError as error:
            peer.died(error)
        except OSError as error:
            peer.died(DeadObject(f"{peer.where}: {error}"))
        finally:
            self._tidy()

    def _tidy(self) -> None:
        for channel in (self._first.channel, self._callbacks):
            with contextlib.suppress(OSError):
                channel.socket.shutdown(socket.SHUT_RDWR)
        self._channels.end()
        self._peer.wake_recipients()
        self._first.close()
        self._callbacks.close()
        process = self._peer.process
        if process is not None:
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
