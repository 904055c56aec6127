"""A plugin of pytest: coverage takes and gives its lock in C, so that no interrupt that a test makes leaves it locked.

Without it the first line of a file that an interrupted call runs can leave all that follows waiting for ever.
"""

from coverage.collector import Collector

_reset = Collector.reset


def _with_locks_in_c(self: Collector) -> None:
    _reset(self)
    if self.data_lock is not None:
        vars(self).update(lock_data=self.data_lock.acquire, unlock_data=self.data_lock.release)


Collector.reset = _with_locks_in_c  # type: ignore[method-assign]
