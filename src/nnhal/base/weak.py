"""Weak sets that several threads use."""

import weakref
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def members(of: "weakref.WeakSet[T]") -> list[T]:
    """Return the members; other threads may add and discard some meanwhile, which an iteration does not allow."""
    while True:
        with suppress(RuntimeError):
            return list(of)
