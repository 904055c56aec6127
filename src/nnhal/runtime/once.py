"""Values that are made once for each key, by whoever asks first."""

import os
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from nnhal.base.errors import BadState

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True)
class _Entry(Generic[V]):
    value: Future[V] = field(default_factory=Future)
    maker: int = field(default_factory=threading.get_ident)


class Once(Generic[K, V]):
    """A table whose values are made when they are first asked for: one at a time for a key, different ones side by side.

    No lock is held while a value is made: making one may ask for others. Who asks for what waits for him gets BadState.
    What was raised goes to all who waited, and the next who asks tries again. In a forked child values that were being
    made are made anew. what: names a key in messages.
    """

    def __init__(self, what: Callable[[K], str]) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._entries: dict[K, _Entry[V]] = {}
        self._waits: dict[int, K] = {}  # threads, and what they wait for
        os.register_at_fork(after_in_child=self._after_fork)

    def get(self, key: K, make: Callable[[], V], stale: Callable[[V], bool] = lambda _: False) -> V:
        """The value of a key, made now where there is none, or one that is stale."""
        me = threading.get_ident()
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry.value.done() and stale(entry.value.result()):
                entry = None
            mine = entry is None
            if entry is None:
                entry = self._entries[key] = _Entry()
            elif not entry.value.done():
                self._refuse_circle(key, me)
                self._waits[me] = key
        if mine:
            return self._make(key, entry, make)
        try:
            return entry.value.result()
        finally:
            self._waits.pop(me, None)

    def _make(self, key: K, entry: _Entry[V], make: Callable[[], V]) -> V:
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                if self._entries.get(key) is entry:
                    del self._entries[key]
            entry.value.set_exception(error)
            raise
        entry.value.set_result(value)
        return value

    def _refuse_circle(self, key: K, me: int) -> None:
        """BadState where the maker of this key waits, by whatever way, for this thread."""
        wanted: K | None = key
        while wanted is not None:
            entry = self._entries.get(wanted)
            if entry is None or entry.value.done():
                return
            if entry.maker == me:
                raise BadState(f"{self._what(key)}: is asked for by what it waits for itself, must be there first")
            wanted = self._waits.get(entry.maker)

    def values(self) -> dict[K, V]:
        """What has been made."""
        with self._lock:
            return {key: entry.value.result() for key, entry in self._entries.items() if entry.value.done()}

    def forget(self) -> list[V]:
        """Drop all that has been made; what that was."""
        with self._lock:
            made = [key for key, entry in self._entries.items() if entry.value.done()]
            return [self._entries.pop(key).value.result() for key in made]

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._waits = {}
        self._entries = {key: entry for key, entry in self._entries.items() if entry.value.done()}
