"""What bursts of HAL drivers are made of: requests as packets, queues of them, memories as slots.

Where the HAL has fast message queues a driver in Python has two `PacketQueue`s, each packet whole.
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
    """A packet that asks for one execution. An argument's `pool` is a place in `slots`."""

    measure: bool
    inputs: tuple[RequestArgument, ...]
    outputs: tuple[RequestArgument, ...]
    slots: tuple[int, ...]

    def over(self, memories: Sequence[Memory]) -> HalRequest:
        """The same as a plain request. memories: those of the slots, in their order."""
        return HalRequest(self.inputs, self.outputs, tuple(memories))


class PacketQueue:
    """Packets in one direction."""

    def __init__(self) -> None:
        self._packets: deque[Any] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def writeBlocking(self, packet: Any) -> bool:  # noqa: N802 - the HAL's name
        """Send a packet; False after the end."""
        with self._changed:
            if not self._closed:
                self._packets.append(packet)
                self._changed.notify()
            return not self._closed

    def readBlocking(self, seconds: float | None = None) -> Any:  # noqa: N802
        """The next packet; None at the end, or where none has come for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._packets or self._closed, seconds)
            return self._packets.popleft() if self._packets and not self._closed else None

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._closed

    def close(self) -> None:
        """The end: what has not been read is dropped."""
        with self._changed:
            self._closed = True
            self._packets.clear()
            self._changed.notify_all()


class Memories:
    """The callback of a burst: what slots are."""

    def __init__(self) -> None:
        self.known: dict[int, Memory] = {}

    def getMemories(self, slots: Sequence[int]) -> tuple[ErrorStatus, Sequence[Memory]]:  # noqa: N802
        """The memories of these slots; INVALID_ARGUMENT where one is none of the request at hand."""
        found = [self.known.get(slot) for slot in slots]
        if None in found:
            return ErrorStatus.INVALID_ARGUMENT, ()
        return ErrorStatus.NONE, [memory for memory in found if memory is not None]
