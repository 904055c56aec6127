"""Threads that alternate more often than usual, so that unprotected state shows."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 1e-5  # between switches of Python's threads


@contextmanager
def switching_often() -> Iterator[None]:
    """Let threads alternate every `SECONDS` inside the context."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
