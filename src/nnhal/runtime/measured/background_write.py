"""Writes the record in the background, because another process may lock it for long."""

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from nnhal.base.errors import ResourceExhausted
from nnhal.base.log import logger
from nnhal.base.native import Gate
from nnhal.hal.background import start

_writing: deque[Callable[[], object]] = deque()  # in order
_turn = threading.Lock()
_log = logger("compilation")


def queue_write(write: Callable[[], object]) -> None:
    """Queue a write, after all earlier ones. The log has the reason if there is no free thread."""
    _writing.append(write)
    try:
        start(_write_next)
    except ResourceExhausted as error:
        _forget(write)
        _log.warning("cannot record measurements: %s", error)


def _write_next() -> Gate:
    with _turn:
        if _writing:
            write = _writing[0]
            try:
                write()
            finally:
                _forget(write)
    return Gate()


def _forget(write: Callable[[], object]) -> None:
    with suppress(ValueError):  # another thread did
        _writing.remove(write)


def wait_for_writes(seconds: float = 1.0) -> None:
    """Wait until all is written, at most this long."""
    end = time.monotonic() + seconds
    while _writing and time.monotonic() < end:
        time.sleep(0.001)


def _forked() -> None:
    """Reset a forked child: it has no thread that writes."""
    global _turn  # noqa: PLW0603
    _turn = threading.Lock()
    _writing.clear()


atexit.register(wait_for_writes)
os.register_at_fork(after_in_child=_forked)
