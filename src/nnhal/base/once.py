"""Values that are created once for each key, on first use."""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future, wait
from typing import Any, Generic, TypeVar

from nnhal.base.answers import application_error
from nnhal.base.errors import BadState, MissedDeadline
from nnhal.base.records import Record, field
from nnhal.base.time import seconds_until

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
REMEMBERED = 256  # keys of dropped values
THRASHES = 3  # values created again for dropped keys, before nnhal warns


class _Entry(Record, Generic[V], frozen=True):
    value: Future[V] = field(default_factory=Future)
    maker: int = field(default_factory=threading.get_ident)


class OnceTable(Generic[K, V]):
    """A table whose values are created on first use: once for a key, and in parallel for different keys.

    No lock is held while a value is created, so its creation may use other values. A circular wait raises BadState. An
    error goes to all that wait, and the next caller tries again. An interrupt stays in its thread, and one of the
    waiting threads tries again. A wait may have a deadline. A forked child creates unfinished values again. what: names
    a key in messages. most: above this number, the least recently used value is dropped.
    """

    def __init__(self, what: Callable[[K], str], most: int | None = None) -> None:
        self._what, self._most = what, most
        self._again = 0  # values created again for dropped keys
        self._dropped: OrderedDict[K, None] = OrderedDict()
        self._noted = False
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()  # the most recently used at the end
        self._waits: dict[int, K] = {}  # threads, and the keys that they wait for
        _tables.add(self)

    def get(
        self, key: K, make: Callable[[], V], stale: Callable[[V], bool] = lambda _: False, until: int | None = None
    ) -> V:
        """Return the value of a key, and create it if there is none or a stale one.

        until: the time, in nanoseconds, when a wait for another thread ends with MissedDeadline.
        """
        while True:
            entry = mine = _Entry[V]()
            try:
                entry = self._entry(key, mine, stale)
                if entry is mine:
                    mine.value.set_result(make())
                return self._result(key, entry, until)
            except BaseException as error:
                self._give_up(key, mine, error)
                if not (isinstance(error, CancelledError) and entry.value.cancelled()):
                    raise
            finally:
                self._waits.pop(threading.get_ident(), None)

    def _result(self, key: K, entry: _Entry[V], until: int | None) -> V:
        if until is not None and not wait([entry.value], seconds_until(until)).done:
            raise MissedDeadline(f"{self._what(key)}: another thread has not made it by the deadline")
        return entry.value.result()

    def _entry(self, key: K, new: _Entry[V], stale: Callable[[V], bool]) -> _Entry[V]:
        """Return the entry of a key; insert the new one if there is none, or a stale one."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or (entry.value.done() and stale(entry.value.result())):
                entry = self._entries[key] = new
                if key in self._dropped:
                    del self._dropped[key]
                    self._again += 1
            elif not entry.value.done():
                self._refuse_circle(key, new.maker)
                self._waits[new.maker] = key
            self._entries.move_to_end(key)
            if self._most is not None and len(self._entries) > self._most:
                self._dropped[self._entries.popitem(last=False)[0]] = None
                if len(self._dropped) > REMEMBERED:
                    self._dropped.popitem(last=False)
            return entry

    def _give_up(self, key: K, entry: _Entry[V], error: BaseException) -> None:
        """Remove an entry whose creation failed, and wake those that wait for it; after an interrupt they try again."""
        with self._lock:
            if self._entries.get(key) is entry:
                del self._entries[key]
        if not entry.value.done():
            if isinstance(error, Exception) and application_error(error) is None:
                entry.value.set_exception(error)
            else:
                entry.value.cancel()

    def _refuse_circle(self, key: K, me: int) -> None:
        """Raise BadState if the creator of this key waits, directly or indirectly, for this thread."""
        wanted: K | None = key
        while wanted is not None:
            entry = self._entries.get(wanted)
            if entry is None or entry.value.done():
                return
            if entry.maker == me:
                raise BadState(f"{self._what(key)}: is asked for by what it waits for itself, must be there first")
            wanted = self._waits.get(entry.maker)

    def thrashes(self) -> bool:
        """Whether values are dropped and created again and again. It returns True once."""
        if self._again < THRASHES or self._noted:
            return False
        self._noted = True
        return True

    def values(self) -> dict[K, V]:
        with self._lock:
            return {key: entry.value.result() for key, entry in self._entries.items() if entry.value.done()}

    def forget(self) -> list[V]:
        """Drop all values, and return them."""
        with self._lock:
            made = [key for key, entry in self._entries.items() if entry.value.done()]
            return [self._entries.pop(key).value.result() for key in made]

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._waits = {}
        self._entries = OrderedDict((key, entry) for key, entry in self._entries.items() if entry.value.done())


_tables: "weakref.WeakSet[OnceTable[Any, Any]]" = weakref.WeakSet()


def _after_fork() -> None:
    for table in list(_tables):
        table._after_fork()


os.register_at_fork(after_in_child=_after_fork)
