"""Locks and weak sets that several threads use."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def held_lock(lock: threading.Lock, seconds: float = -1) -> Iterator[bool]:
    """Hold a lock; yield whether it was free in time. It is released whatever a signal handler raises, and whenever.

    seconds: the longest wait, -1 for no limit.
    """
    taken: list[bool] = []
    try:
        # One call, so that no interrupt comes before the result is known
        taken.extend(map(lock.acquire, (True,), (min(seconds, threading.TIMEOUT_MAX),)))
        yield taken[0]
    finally:
        if taken == [True]:
            lock.release()


def members(of: "weakref.WeakSet[T]") -> list[T]:
    """Return the members; other threads may add and discard some meanwhile, which an iteration does not allow."""
    while True:
        with suppress(RuntimeError):
            return list(of)
