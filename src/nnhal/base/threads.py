"""Locks and weak sets that several threads use, and Ctrl-C, which the main thread receives."""

import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

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


@contextmanager
def on_interrupt(handler: Any) -> Iterator[None]:
    """Handle Ctrl-C meanwhile, as `signal.signal` does; only the main thread receives it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


def members(of: "weakref.WeakSet[T]") -> list[T]:
    """Return the members; other threads may add and discard some meanwhile, which an iteration does not allow."""
    while True:
        with suppress(RuntimeError):
            return list(of)
