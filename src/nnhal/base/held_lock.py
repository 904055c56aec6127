"""A lock that is released whatever a signal handler raises, and whenever it does."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_lock(lock: threading.Lock, seconds: float = -1) -> Iterator[bool]:
    """Hold a lock; yield whether it was free in time.

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
