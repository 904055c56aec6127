"""What a service holds for one client: objects by number, counted, private to the connection."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from nnhal.base.answers import let_go
from nnhal.base.errors import Closed, InvalidArgument, ResourceExhausted
from nnhal.hal.device import Prepared
from nnhal.hal.request import Signature
from nnhal.model.graph import Model

MAX_OBJECTS = 1 << 16
T = TypeVar("T")


class Export:
    """A prepared model with the executions that use it: it is closed when the last has ended after the client let go."""

    def __init__(self, prepared: Prepared, model: Model, where: str = "driver") -> None:
        """where: whose executions they are, for messages."""
        self.prepared, self.model, self.signature = prepared, model, Signature.of(model, where)
        self.alive = True
        self._users: deque[None] = deque()  # appends and pops are atomic
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> "Export":
        self._users.append(None)
        if not self.alive:
            self.__exit__()
            raise Closed("prepared model: was released")
        return self

    def __exit__(self, *_: object) -> None:
        self._users.pop()
        if not self.alive:
            self._close_if_idle()

    def release(self) -> None:
        """The client let go; close now, or when the last user leaves."""
        self.alive = False
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        with self._lock:
            if self._users or self._closed:
                return
            self._closed = True
        let_go(self.signature.where, "close() of a prepared model", self.prepared.close)


class Exports:
    """Objects by number. Each time a number is sent to the client counts; the client gives the counts back."""

    def __init__(self) -> None:
        self._objects: dict[int, list[Any]] = {}  # number: object, count, what to do at the end
        self._next = 1
        self._lock = threading.Lock()

    def add(self, item: Any, end: Callable[[], None]) -> int:
        """The number of a new object, counted once. end: called when the client holds it no longer."""
        with self._lock:
            if len(self._objects) >= MAX_OBJECTS:
                raise ResourceExhausted(f"connection: holds {MAX_OBJECTS} objects, must be no more; release some")
            number, self._next = self._next, self._next + 1
            self._objects[number] = [item, 1, end]
            return number

    def get(self, number: int, kind: type[T], what: str) -> T:
        """The object; InvalidArgument where the number is none of this connection's, or stands for something else."""
        found = self._objects.get(number)
        if found is None or not isinstance(found[0], kind):
            raise InvalidArgument(f"{what} {number} is not held by this connection, must be one that it was given")
        item: T = found[0]
        return item

    def release(self, number: int, count: int) -> None:
        """Take counts back; the last one ends the object."""
        with self._lock:
            found = self._objects.get(number)
            if found is None:
                return
            found[1] -= count
            if found[1] > 0:
                return
            del self._objects[number]
        found[2]()

    def close(self) -> None:
        """End all objects, newest first."""
        with self._lock:
            left, self._objects = list(self._objects.values()), {}
        for _, _, end in reversed(left):
            end()

    def __len__(self) -> int:
        return len(self._objects)
