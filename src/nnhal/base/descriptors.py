"""Opens descriptors directly into an owner: an interrupt comes between two calls, never within one.

Create an `Owner`, written in C, and open into it: `owner.fds.extend(map(os.dup, [fd]))`. All of this is one call,
because `map` and its callee are written in C too. `store_in_owners` fills several owners.
"""

from collections import deque
from collections.abc import Iterable

from nnhal.base.native import Owner

__all__ = ["Owner", "store_in_owners"]


def store_in_owners(owners: Iterable[Owner], opened: Iterable[int]) -> None:
    """Store each descriptor in its owner as soon as it is open. opened: an iterator written in C."""
    deque(map(list.append, [owner.fds for owner in owners], opened), 0)
