"""Bursts: a series of executions of one prepared model, one at a time, that keep resources in between.

In process a burst tells the driver when it begins and ends; over the wire it also carries the executions
(`nnhal.ipc.burst`). Both are the same class to the runtime.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from nnhal.base.errors import BadState, Closed
from nnhal.base.memory import Memory
from nnhal.hal.buffers import run_resolved
from nnhal.hal.request import Control, Request, Timing

if TYPE_CHECKING:
    from nnhal.hal.device import Prepared


class Burst(ABC):
    """A series of executions; a context manager.

    ended: it is of no use any more, though nobody closed it. plain: why executions were plain calls, and how often.
    """

    ended = False
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


class LocalBurst(Burst):
    """A burst in the driver's own process."""

    def __init__(self, prepared: "Prepared") -> None:
        self._prepared, self._run = prepared, prepared.run
        self._busy = threading.Lock()
        prepared.burst_opened()
        self._closed = False

    def run(self, request: Request, control: Control) -> Timing | None:
        """As `Prepared.run`."""
        if not self._busy.acquire(blocking=False):
            raise BadState("burst: an execution is running, must be one at a time; open one burst a thread")
        try:
            if self._closed:
                raise Closed("burst: used after close")
            if request.input_buffers or request.output_buffers:
                return run_resolved(self._prepared, request, control, self._run)
            return self._run(request, control)
        finally:
            self._busy.release()

    def close(self) -> None:
        """End the burst when the execution in it has ended."""
        with self._busy:
            if self._closed:
                return
            self._closed = True
        self._prepared.burst_closed()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.close()
