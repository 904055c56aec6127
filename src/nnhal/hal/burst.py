"""Bursts: executions of one prepared model, one at a time, that keep resources in between.

In this process, a burst informs the driver of its begin and end. Between processes it also transports the executions
(`nnhal.ipc.client.burst`). The runtime uses both through the same class.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from nnhal.base.memory import Memory
from nnhal.hal.request import Control, Request, RequestExecutor, Timing


class Bursts(RequestExecutor, Protocol):
    """Receives the begin and end of bursts."""

    def burst_opened(self) -> None:
        """As `Prepared.burst_opened`."""

    def burst_closed(self) -> None:
        """As `Prepared.burst_closed`."""


class Burst(ABC):
    """A series of executions; a context manager.

    Attributes:
        ended: Whether it cannot be used any more, although it was not closed.
        plain: Why executions were plain calls, and how many.
        way: A description for people.
    """

    ended = False
    way = "burst"
    plain: Mapping[str, int] = MappingProxyType({})

    @abstractmethod
    def run(self, request: Request, control: Control) -> Timing | None:
        """Execute as `Prepared.run` does.

        Raises:
            BadState: Another execution of this burst runs.
            Closed: The burst was closed.
        """

    def free_memory(self, memory: Memory) -> None:
        """Release what is cached for a memory that the burst will not use again."""

    def close(self) -> None:
        """End the burst; a second call has no effect."""

    def __enter__(self) -> "Burst":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BurstExecutor(ABC):
    """A driver's executor for bursts from another process, with a cache of what it derives from memories.

    Slots identify memories. A slot is added once, before the first execution that uses it, and remains the same memory
    until it is removed.
    """

    @abstractmethod
    def add(self, slot: int, memory: Memory) -> None:
        """Add a memory that executions will use: map it, or register it with the device."""

    @abstractmethod
    def remove(self, slot: int) -> None:
        """Remove a slot that the client will not use again."""

    @abstractmethod
    def execute(self, request: Request, slots: Sequence[int], control: Control) -> Timing | None:
        """Execute as `Prepared.run` does. slots: of the memories that the request's arrays lie in."""
