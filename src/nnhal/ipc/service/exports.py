"""The objects that a service holds for one client, by number, private to the connection."""

import fcntl
import os
import stat
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar

from nnhal.base import trace
from nnhal.base.answers import close_quietly
from nnhal.base.codes import Priority
from nnhal.base.descriptors import Owner
from nnhal.base.errors import Closed, InvalidArgument, NnhalError
from nnhal.hal.chain import PreparedChain
from nnhal.hal.claims import SupportReport
from nnhal.hal.device import Hints
from nnhal.hal.memory import Buffer
from nnhal.hal.request import Signature
from nnhal.ipc.service.metrics import ExecutionTally
from nnhal.ipc.service.quota import Claim, ClientShare
from nnhal.ipc.transport.channel import Descriptors
from nnhal.model.graph import Model

T = TypeVar("T")


class ConsideredModel(NamedTuple):
    """A device's answers about a model under some hints. memory: the model's bytes, for the quota."""

    claims: SupportReport
    hints: Hints
    memory: int


class ClientFiles:
    """Cache files of the client, open while anything refers to this."""

    def __init__(self, fds: Descriptors, count: int) -> None:
        """Take the attached descriptors.

        Files of a read-only folder are not writable: a driver can restore from them. Raises InvalidArgument for a
        descriptor that is not a readable file.
        """
        self.owner = Owner()
        while len(fds):
            self.owner.fds.append(fds.take())
        if len(self.owner.fds) != count:
            raise InvalidArgument(f"cache files: {len(self.owner.fds)} descriptors are attached, must be {count}")
        for fd in self.owner.fds:
            regular = stat.S_ISREG(os.fstat(fd).st_mode)
            if not regular or fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
                raise InvalidArgument("cache files: a descriptor is not a readable file, must be")


class Export:
    """A prepared model and its executions.

    It is closed after the client's release, when the last execution has ended.
    """

    def __init__(
        self,
        prepared: PreparedChain,
        model: Model,
        where: str,
        claim: Claim,
        priority: Priority = Priority.MEDIUM,
        tally: ExecutionTally | None = None,
    ) -> None:
        """Hold a prepared model.

        where: the owner of the executions, for messages. claim: its quota, until it is closed. tally: counts its
        executions.
        """
        self.priority = priority
        self.prepared, self.model, self.signature = prepared, model, Signature.of(model, where, prepared)
        self._claim, self.tally = claim, tally
        self.alive = True
        self._users: deque[None] = deque()  # appends and pops are atomic
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> "Export":
        self._users.append(None)
        if not self.alive:
            self.__exit__()
            self.refuse()
        return self

    def __exit__(self, *_: object) -> None:
        self._users.pop()
        if not self.alive:
            self._close_if_idle()

    def refuse(self) -> NoReturn:
        """Raise the error for a use after the release."""
        raise Closed("prepared model: was released")

    def release(self) -> None:
        """Release it for the client; close now, or when the last user leaves."""
        self.alive = False
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        with self._lock:
            if self._users or self._closed:
                return
            self._closed = True
        where = self.signature.where
        with self._claim, trace.span("driver", "termination", "close", where):
            close_quietly(self.signature.where, "close() of a prepared model", self.prepared.close)


class Exports:
    """Objects by the numbers that the client chose, until it releases them or is gone; later ones end immediately.

    ends: runs an object's end, elsewhere. share: the client's; an object counts until its end is done.
    """

    def __init__(self, ends: Callable[[Callable[[], object]], object], share: ClientShare) -> None:
        self._ends, self._share = ends, share
        self._objects: dict[int, tuple[Any, Callable[[], object]]] = {}  # number: object, its end
        self._closed = False
        self._lock = threading.Lock()

    def claim(self, number: int) -> None:
        """Reserve a number. Raises InvalidArgument if it is in use, ResourceExhausted if the quota is exhausted."""
        claim = self._share.take(objects=1)
        with self._lock:
            self._check(number)
            self._objects[number] = None, claim.moved_to().give

    def fill(self, number: int, item: Any, end: Callable[[], object]) -> None:
        """Store the object of a reserved number; end it immediately if the client has released the number."""
        with self._lock:
            found = self._objects.get(number)
            if found is not None:
                self._objects[number] = item, partial(_ended, end, found[1])
                return
        self._ends(end)
        raise Closed(f"object {number}: was released before it was made")

    def add(self, number: int, item: Any, end: Callable[[], object], claim: Claim | None = None) -> None:
        """Store a new object under its number. end: called exactly once, when the client no longer holds it.

        claim: an additional quota, until then.
        """
        whole = end if claim is None else partial(_ended, end, claim.moved_to().give)
        try:
            self.claim(number)
        except NnhalError:
            self._ends(whole)
            raise
        self.fill(number, item, whole)

    def _check(self, number: int) -> None:
        if self._closed:
            raise Closed("connection: has ended")
        if number in self._objects:
            raise InvalidArgument(f"object {number} is held already, must be a new number")

    def holds(self, number: int) -> bool:
        """Whether an object exists or is being made."""
        return number in self._objects

    def get(self, number: int, kind: type[T], what: str) -> T:
        """Return the object. Raises InvalidArgument for a number of another connection or of another kind of object."""
        found = self._objects.get(number)
        if found is None or not isinstance(found[0], kind):
            raise InvalidArgument(f"{what} {number} is not held by this connection, must be one that it holds")
        item: T = found[0]
        return item

    def prepared(self, number: int) -> Export:
        """Return a prepared model."""
        return self.get(number, Export, "prepared model")

    def buffer(self, number: int) -> Buffer:
        """Return driver memory."""
        return self.get(number, Buffer, "buffer")  # type: ignore[type-abstract]  # it is only an argument of isinstance

    def release(self, number: int) -> None:
        """End an object; ignore unknown numbers."""
        with self._lock:  # otherwise `fill` may put it back
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


def _ended(end: Callable[[], object], give: Callable[[], object]) -> None:
    """End an object, and release its quota."""
    try:
        end()
    finally:
        give()
