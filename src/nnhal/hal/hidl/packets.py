"""The parts of HAL driver bursts: requests as packets, queues of packets, memories as slots.

The HAL uses fast message queues here; a driver in Python gets two `PacketQueue`s.
"""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from nnhal.base.codes import ErrorStatus
from nnhal.base.memory import Memory
from nnhal.base.records import Record
from nnhal.hal.hidl.arguments import HalRequest, RequestArgument


class BurstRequest(Record, frozen=True):
    """A packet that requests one execution. An argument's `pool` is an index into `slots`."""

    measure: bool
    inputs: tuple[RequestArgument, ...]
    outputs: tuple[RequestArgument, ...]
    slots: tuple[int, ...]

    def over(self, memories: Sequence[Memory]) -> HalRequest:
        """Return it as a plain request. memories: of the slots, in their order."""
        return HalRequest(self.inputs, self.outputs, tuple(memories))


class PacketQueue:
    """A queue of packets in one direction."""

    def __init__(self) -> None:
        self._packets: deque[Any] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def writeBlocking(self, packet: Any) -> bool:  # noqa: N802 - the HAL's name
        """Send a packet; return False after the end."""
        with self._changed:
            if not self._closed:
                self._packets.append(packet)
                self._changed.notify()
            return not self._closed

    def readBlocking(self, seconds: float | None = None) -> Any:  # noqa: N802
        """Return the next packet; None at the end, or if none came in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._packets or self._closed, seconds)
            return self._packets.popleft() if self._packets and not self._closed else None

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._closed

    def close(self) -> None:
        """End it; unread packets are dropped."""
        with self._changed:
            self._closed = True
            self._packets.clear()
            self._changed.notify_all()


class Memories:
    """The callback of a burst, which resolves slots."""

    def __init__(self) -> None:
        self.known: dict[int, Memory] = {}

    def getMemories(self, slots: Sequence[int]) -> tuple[ErrorStatus, Sequence[Memory]]:  # noqa: N802
        """Return the memories of these slots; INVALID_ARGUMENT if one is not of the current request."""
        found = [self.known.get(slot) for slot in slots]
        if None in found:
            return ErrorStatus.INVALID_ARGUMENT, ()
        return ErrorStatus.NONE, [memory for memory in found if memory is not None]
