"""Bursts: a series of executions of one prepared model, one at a time, that keep resources in between.

In process a burst tells the driver when it begins and ends; over the wire it also carries the executions
(`nnhal.ipc.client.burst`). Both are the same class to the runtime.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from nnhal.base.memory import Memory
from nnhal.hal.request import Control, Request, Runs, Timing


class Bursts(Runs, Protocol):
    """What is told when a burst of it begins and ends."""

    def burst_opened(self) -> None:
        """As `Prepared.burst_opened`."""

    def burst_closed(self) -> None:
        """As `Prepared.burst_closed`."""


class Burst(ABC):
    """A series of executions; a context manager.

    of: the prepared model, where it is known. ended: it is of no use any more, though nobody closed it. plain: why
    executions were plain calls, and how often. way: what it is, for people.
    """

    of: Runs | None = None
    ended = False
    way = "burst"
    plain: Mapping[str, int] = MappingProxyType({})

    @abstractmethod
    def run(self, request: Request, control: Control) -> Timing | None:
        """As `Prepared.run`; BadState while another execution of this burst runs, Closed after `close`."""

    def free_memory(self, memory: Memory) -> None:
        """The application will not use this memory in the burst again: what is cached of it can go."""

    def close(self) -> None:
        """End the burst; does nothing the second time."""

    def __enter__(self) -> "Burst":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BurstExecutor(ABC):
    """An executor of a driver's own for bursts from another process, with a cache of what it derives from memories.

    Memories are named by slots. A slot is added once, before the first execution that names it, and stays the same memory
    until it is removed.
    """

    @abstractmethod
    def add(self, slot: int, memory: Memory) -> None:
        """A memory that executions will name by this slot: time to map or register it with the device."""

    @abstractmethod
    def remove(self, slot: int) -> None:
        """The client will not use the slot again."""

    @abstractmethod
    def execute(self, request: Request, slots: Sequence[int], control: Control) -> Timing | None:
        """As `Prepared.run`; slots: the memories that the request's arrays lie in."""
