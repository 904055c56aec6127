"""The channels of a session for calls: one for each call that runs, so any number of threads may call at once."""

import contextlib
import socket
import threading
import time
import weakref
from collections import deque
from typing import NamedTuple

from nnhal.base.errors import Cancelled, DeadObject, MissedDeadline, NnhalError, ResourceExhausted, copy_of_error
from nnhal.base.threads import members
from nnhal.base.time import QUERY_NS
from nnhal.hal.request import Control
from nnhal.ipc.client.endings import Endings
from nnhal.ipc.client.first_channel import ATTACH_NS, FirstChannel
from nnhal.ipc.client.peer import ServicePeer
from nnhal.ipc.client.pending import GRACE_NS, Notifications
from nnhal.ipc.protocol import wire
from nnhal.ipc.transport.channel import Channel, Message

MAX_LANES = 32  # for calls at once; as many may be abandoned and not have ended
KEPT_LANES = 4  # of them, the number that each lower priority leaves to higher ones
_WANT = 0.005  # seconds between checks for a channel


class Abandoned(NamedTuple):
    """A channel with an abandoned call, and when. late: by a missed deadline. made: the number of its result, or 0."""

    channel: Channel
    since: int
    late: bool
    made: int


class Channels:
    """Reserves a channel for each call: a free one, or a new one up to the limit.

    A channel is free, reserved for one call, or abandoned with it. An abandoned one (deadline, interrupt) is never used
    again: it is hung up, and watched until the service has ended the call.

    opened: all but the abandoned ones; an unreferenced one is closed. free: those of them that no call uses. abandoned:
    by the channel's number, until the service has ended the call.
    """

    def __init__(self, first: FirstChannel, peer: ServicePeer, endings: Endings, notifications: Notifications) -> None:
        self._first, self._peer, self._endings, self._notifications = first, peer, endings, notifications
        self.opened: weakref.WeakSet[Channel] = weakref.WeakSet()
        self.free: deque[Channel] = deque()
        self.abandoned: dict[int, Abandoned] = {}
        self._in_want: deque[threading.Event] = deque()  # of the threads that wait for a channel
        self._ended = False  # then every caller closes what the housekeeping thread left behind
        peer.add_recipient(self)

    def reserve(self, control: Control, most: int) -> Channel:
        """Return a channel when fewer than `most` calls are running: a free one, or a new one up to the limit.

        Raises MissedDeadline, Cancelled, or ResourceExhausted if there will not be one. A process that has not provided
        a new channel within `QUERY_NS` is silent, which is a MissedDeadline too.
        """
        if most == MAX_LANES or len(self.opened) <= most:
            try:
                return self.free.pop()
            except IndexError:
                pass
        return self._wait(control, most)

    def _wait(self, control: Control, most: int) -> Channel:
        deadline, cancelled = control.deadline, control.cancelled
        where = self._peer.where
        asked = 0  # the time of the first request
        while True:
            if self._peer.dead is not None:
                raise copy_of_error(self._peer.dead)
            few = False
            if len(self.opened) - len(self.free) < most:
                try:
                    return self.free.pop()
                except IndexError:
                    few = len(self.opened) < MAX_LANES
            if few and not self._first.attaching.locked():
                self._check_abandoned()
                left = ATTACH_NS if deadline is None else deadline + GRACE_NS - time.monotonic_ns()
                channel = self._first.attach(min(ATTACH_NS, max(0, left)))
                if channel is not None:
                    self.opened.add(channel)
                    self._call_in()
                    return channel
                asked = asked or time.monotonic_ns()
                if deadline is None and time.monotonic_ns() - asked > QUERY_NS:
                    raise MissedDeadline(f"{where}: provided no channel in time")
            else:
                self._await_free()
            if deadline is not None and time.monotonic_ns() > deadline + GRACE_NS:
                if not few:
                    raise MissedDeadline(f"{where}: no channel was free by the deadline")
                self._first.overdue = self._first.overdue or time.monotonic_ns()
                self._endings.rouse()
                raise MissedDeadline(f"{where}: the deadline has passed without an answer")
            if cancelled is not None and cancelled.is_set():
                raise Cancelled("execution: cancelled by its owner")

    def _check_abandoned(self) -> None:
        """Refuse one more channel if the most allowed have abandoned calls that do not end."""
        if len(self.abandoned) >= MAX_LANES:
            where = self._peer.where
            if self._peer.process is not None:
                raise self._peer.died(DeadObject(f"{where}: {MAX_LANES} abandoned calls do not end; it is replaced"))
            raise ResourceExhausted(f"{where}: {MAX_LANES} abandoned calls have not ended, must be fewer")

    def _await_free(self) -> None:
        """Wait briefly for a free channel, while this thread is first in line."""
        gate = threading.Event()
        self._in_want.append(gate)
        if not gate.wait(_WANT):
            with contextlib.suppress(ValueError):
                self._in_want.remove(gate)

    def _call_in(self) -> None:
        """Wake the first thread that waits for a channel."""
        if self._in_want:
            with contextlib.suppress(IndexError):
                self._in_want.popleft().set()

    def give_back(self, channel: Channel) -> None:
        """Return a channel for the next call."""
        self.free.append(channel)
        if self._in_want:
            self._call_in()
        if self._ended:
            self._close_unused()

    def abandon(self, lane: Abandoned) -> None:
        """Abandon a channel: no thread waits for the answer."""
        self.opened.discard(lane.channel)
        if self._peer.dead is None:  # otherwise all channels end, and waiting threads must still hear of it
            lane.channel.hang_up()
        self._endings.cancelled.append(lane.channel.number)
        self._notifications.abandon(lane.made)
        self.abandoned[lane.channel.number] = lane
        self._endings.rouse()
        if self._ended:
            self._close_unused()

    @property
    def late(self) -> bool:
        """Whether a channel is overdue, or an abandoned call has not ended, as far as is known."""
        return bool(self.abandoned or self._first.overdue)

    def look(self, now: int) -> None:
        """Check abandoned calls: they end when the service has handled them. A process that never does hangs."""
        if self._first.overdue:
            self._take_overdue(now)
        for number, lane in list(self.abandoned.items()):
            if self._has_ended(lane):
                self.abandoned.pop(number, None)  # another thread may have closed it: the session has died
                lane.channel.close()
                if lane.made:  # the service has made it by now, and did not know it when its owner was released
                    self._endings.cancelled.append(lane.made)
                    self._endings.release(lane.made)
            elif lane.late:
                self._peer.look_whether_hangs(now - lane.since)

    def _take_overdue(self, now: int) -> None:
        """Receive the channel that no thread waits for, if it is there; a process that never provides it hangs."""
        since = self._first.overdue
        with contextlib.suppress(ResourceExhausted):
            channel = self._first.attach(0)
            if channel is not None:
                self.opened.add(channel)
                self.give_back(channel)
            elif since:
                self._peer.look_whether_hangs(now - since)

    def _has_ended(self, lane: Abandoned) -> bool:
        """Whether the service has ended an abandoned channel; further answers on it are ignored.

        A refused call has no notification.
        """
        while True:
            try:
                if _refuses(lane.channel.receive(0)):
                    self._notifications.pending.pop(lane.made, None)
            except MissedDeadline:
                return False
            except DeadObject:
                return True
            except NnhalError:  # an invalid answer
                continue

    @property
    def busy(self) -> bool:
        """Whether a call is running."""
        return len(self.opened) > len(self.free)

    def session_died(self) -> None:
        """Wake the threads that wait for a channel."""
        while self._in_want:
            self._call_in()

    def end(self) -> None:
        """End every call, and close the channels that none uses."""
        for channel in members(self.opened):
            with contextlib.suppress(OSError):
                channel.socket.shutdown(socket.SHUT_RDWR)
        self._ended = True
        self._close_unused()

    def _close_unused(self) -> None:
        while self.free:
            with contextlib.suppress(IndexError):
                self.free.pop().close()
        while self.abandoned:
            with contextlib.suppress(KeyError):
                self.abandoned.popitem()[1].channel.close()

    def forked(self) -> None:
        """Close the channels in a forked child."""
        for channel in [*self.opened, *(lane.channel for lane in self.abandoned.values())]:
            channel.close()


def _refuses(answer: Message) -> bool:
    """Whether an answer is an error."""
    try:
        return answer[0] != wire.ENCODED_DONE and isinstance(wire.decode_reply(answer[0]), wire.Failed)
    except wire.WireError:
        return False
