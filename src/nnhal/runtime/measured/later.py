"""What nobody waits for: the record is written in the background, as another process may have it locked for long."""

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

_writing: deque[Callable[[], object]] = deque()  # in order: what a trial took is written after the note that it began
_turn = threading.Lock()
_log = logger("compilation")


def later(write: Callable[[], object]) -> None:
    """Have it written, after all that came before. The log says what cannot be, as no thread is to be had."""
    _writing.append(write)
    try:
        start(_write_next)
    except ResourceExhausted as error:
        _forget(write)
        _log.warning("what was measured is not remembered: %s", error)


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


def settle(seconds: float = 1.0) -> None:
    """Wait until all is written, so long at most."""
    end = time.monotonic() + seconds
    while _writing and time.monotonic() < end:
        time.sleep(0.001)


def _forked() -> None:
    """A forked child has no thread that writes."""
    global _turn  # noqa: PLW0603
    _turn = threading.Lock()
    _writing.clear()


atexit.register(settle)
os.register_at_fork(after_in_child=_forked)
