"""Descriptors that have an owner before they are opened: an interrupt comes between two calls, never within one.

Who opens one makes an `Owner`, written in C, and opens into it: `owner.fds.extend(map(os.dup, [fd]))`, all in one call, as
`map` and what it calls are written in C too. `open_into` is for several owners.
"""

from collections import deque
from collections.abc import Iterable

from nnhal.base.native import Owner

__all__ = ["Owner", "open_into"]


def open_into(owners: Iterable[Owner], opened: Iterable[int]) -> None:
    """Put each descriptor into an owner of its own as it is opened. opened: an iterator written in C."""
    deque(map(list.append, [owner.fds for owner in owners], opened), 0)
