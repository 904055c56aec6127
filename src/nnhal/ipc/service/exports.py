"""What a service holds for one client: objects by number, private to the connection."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from nnhal.base.answers import let_go
from nnhal.base.errors import Closed, InvalidArgument, NnhalError, ResourceExhausted
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
    """Objects by the numbers that the client picked, until it lets go of them or is gone; what comes after that is ended
    at once.

    ends: has an object's end done, elsewhere.
    """

    def __init__(self, ends: Callable[[Callable[[], object]], object]) -> None:
        self._ends = ends
        self._objects: dict[int, tuple[Any, Callable[[], None]]] = {}  # number: object, what to do at the end
        self._closed = False
        self._lock = threading.Lock()

    def claim(self, number: int) -> None:
        """A number for what is being made. InvalidArgument where it is taken."""
        with self._lock:
            self._check(number)
            self._objects[number] = None, _nothing

    def fill(self, number: int, item: Any, end: Callable[[], None]) -> None:
        """What was made for a number that was claimed; ended at once where the client has let go of it meanwhile."""
        with self._lock:
            if number in self._objects:
                self._objects[number] = item, end
                return
        self._ends(end)
        raise Closed(f"object {number}: was released before it was made")

    def add(self, number: int, item: Any, end: Callable[[], None]) -> None:
        """A new object under its number. end: called, exactly once, when the client holds it no longer."""
        try:
            with self._lock:
                self._check(number)
                self._objects[number] = item, end
        except NnhalError:
            self._ends(end)
            raise

    def _check(self, number: int) -> None:
        if self._closed:
            raise Closed("connection: has ended")
        if number in self._objects:
            raise InvalidArgument(f"object {number} is held already, must be a new number")
        if len(self._objects) >= MAX_OBJECTS:
            raise ResourceExhausted(f"connection: holds {MAX_OBJECTS} objects, must be no more; release some")

    def holds(self, number: int) -> bool:
        """Whether there is an object, or one is being made."""
        return number in self._objects

    def get(self, number: int, kind: type[T], what: str) -> T:
        """The object; InvalidArgument where the number is none of this connection's, or stands for something else."""
        found = self._objects.get(number)
        if found is None or not isinstance(found[0], kind):
            raise InvalidArgument(f"{what} {number} is not held by this connection, must be one that it holds")
        item: T = found[0]
        return item

    def release(self, number: int) -> None:
        """End an object; nothing happens where there is none."""
        with self._lock:  # else `fill` may put it back
            found = self._objects.pop(number, None)
        if found is not None:
            self._ends(found[1])

    def close(self) -> None:
        """End all objects, newest first."""
        with self._lock:
            self._closed = True
            left, self._objects = list(self._objects.values()), {}
        for _, end in reversed(left):
            self._ends(end)

    def __len__(self) -> int:
        return len(self._objects)


def _nothing() -> None:
    """The end of what was not made yet."""
