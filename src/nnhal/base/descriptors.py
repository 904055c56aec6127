"""Descriptors that have an owner before they are opened: an interrupt comes between two calls, never within one.

An owner makes a list, and `weakref.finalize(self, close_all, it)`, and opens into it. `open_into` is for several owners; one
does `its.extend(map(os.dup, [fd]))`: all in one call, as `map` and what it calls are written in C.
"""

import os
import weakref
from collections import deque
from collections.abc import Iterable
from itertools import repeat


class Owner:
    """Descriptors that are open for as long as anybody holds this: who sends one holds its owner until it was sent.

    Else another thread might close it meanwhile, and what is opened next has its number.
    """

    __slots__ = ("__weakref__", "fds")

    def __init__(self, *fds: int) -> None:
        self.fds = [*fds]
        weakref.finalize(self, close_all, self.fds)


def open_into(owned: Iterable[list[int]], opened: Iterable[int]) -> None:
    """Put each descriptor into a list of its own as it is opened. opened: an iterator written in C."""
    deque(map(list.append, owned, opened), 0)


def close_all(descriptors: list[int]) -> None:
    """Close them, and forget them: no interrupt comes between."""
    deque(map(os.close, map(descriptors.pop, repeat(-1, len(descriptors)))), 0)
