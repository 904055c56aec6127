"""The memory of a prepared model, in bytes, as far as its driver knows."""

from collections.abc import Iterable
from typing import NamedTuple

from nnhal.hal.request import summed

MOST = 1 << 62  # bytes; more is an error of the driver


class MemoryUse(NamedTuple):
    """The bytes that a prepared model holds; None for a figure that the driver does not know.

    Attributes:
        weights_copied: Constants in the driver's or engine's own memory.
        weights_in_place: Constants that the driver reads in the model's pools.
        working: Memory that it keeps between executions.
        per_execution: The most intermediates that a running execution holds at once, without temporary memory of
            kernels.
    """

    weights_copied: int | None = None
    weights_in_place: int | None = None
    working: int | None = None
    per_execution: int | None = None


def combined_use(uses: Iterable[MemoryUse]) -> MemoryUse:
    """Add up models that run one after the other; an execution is in one of them at a time."""
    several = list(uses)
    copied, in_place, working = (summed(use[place] for use in several) for place in range(3))
    each = [use.per_execution for use in several]
    most = None if None in each else max((n for n in each if n is not None), default=0)
    return MemoryUse(copied, in_place, working, most)
