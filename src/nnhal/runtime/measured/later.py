"""What nobody waits for: the record is written in the background, as another process may have it locked for long."""

import atexit
import os
import time
from collections.abc import Callable

from nnhal.base.errors import ResourceExhausted
from nnhal.base.log import logger
from nnhal.base.native import Gate
from nnhal.hal.background import start

_writing: set[object] = set()  # what is being written
_log = logger("compilation")


def later(write: Callable[[], object]) -> None:
    """Have it written. What cannot be, as no thread is to be had, is told in the log."""

    def work() -> Gate:
        try:
            write()
        finally:
            _writing.discard(work)
        return Gate()

    _writing.add(work)
    try:
        start(work)
    except ResourceExhausted as error:
        _writing.discard(work)
        _log.warning("what was measured is not remembered: %s", error)


def settle(seconds: float = 1.0) -> None:
    """Wait until all is written, so long at most."""
    end = time.monotonic() + seconds
    while _writing and time.monotonic() < end:
        time.sleep(0.001)


atexit.register(settle)
os.register_at_fork(after_in_child=_writing.clear)
