"""What a prepared model holds, in bytes, as far as its driver knows."""

from collections.abc import Iterable
from typing import NamedTuple

from nnhal.hal.request import summed

MOST = 1 << 62  # bytes that can be meant


class MemoryUse(NamedTuple):
    """Bytes that a prepared model holds; None for what its driver does not know.

    weights_copied: constants in memory of the driver's own, as it packs them or its engine does. weights_in_place: constants
    that it reads where they lie, in the pools of the model. working: what it keeps between executions. per_execution: what
    each execution in flight has besides: the intermediates that it holds at once, at most; not what single kernels take.
    """

    weights_copied: int | None = None
    weights_in_place: int | None = None
    working: int | None = None
    per_execution: int | None = None


def together(uses: Iterable[MemoryUse]) -> MemoryUse:
    """Of several that run one after the other: what they hold is added up, an execution is in one at a time."""
    several = list(uses)
    copied, in_place, working = (summed(use[place] for use in several) for place in range(3))
    each = [use.per_execution for use in several]
    most = None if None in each else max((n for n in each if n is not None), default=0)
    return MemoryUse(copied, in_place, working, most)
