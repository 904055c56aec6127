"""The resources of a process, and whether that grows with the executions: a slope, confirmed by longer runs."""

import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from nnhal.conformance.pool import children_of
from nnhal.hal.idle import give_back_free_memory

BLOCKS = 8  # of executions; what a process holds is read before and after each
CONFIRMATIONS = 2  # further series, each as long as all before together: caches that fill end within them
LEAK = 1 << 10  # bytes per execution
LEAST_BYTES = 512 << 10  # that must have come together: less is the allocator's and the kernel's counting
LEAST_COUNT = 0.1  # per execution, of what is counted: one in ten executions
SOON = 0.5  # per execution, of what is counted, in each of the first blocks
LEAST_BLOCK = 24  # executions; `BLOCKS` of them keep more than `LEAST_BYTES` if each keeps 4 KiB
FIRST_BLOCK = (
    8,
    40,
)  # executions, least and most, between the first looks at what is counted: a process can soon have no more of it
STEADY = 0.75  # the share of blocks in which a leak shows
PAGE = os.sysconf("SC_PAGESIZE")
MEMORY = "resident memory", "address space"


class Growth(NamedTuple):
    """The growth of a resource. each: bytes, or a number, per execution."""

    what: str
    each: float
    executions: int

    def __str__(self) -> str:
        much = f"{self.each / 1024:.1f} KiB of {self.what}" if self.what in MEMORY else f"{self.each:.2g} {self.what}"
        return f"{much} ({self.executions} executions)"


def resources_of(pid: int) -> dict[str, int]:
    """Return what a process holds: bytes of memory, descriptors, threads, child processes; OSError if it has ended."""
    if pid == os.getpid():
        gc.collect()
        give_back_free_memory()  # a leak would fill it before the process grows
    with open(f"/proc/{pid}/statm") as statm:
        size, resident = (int(pages) * PAGE for pages in statm.read().split()[:2])
    counts = {what: len(os.listdir(f"/proc/{pid}/{folder}")) for what, folder in COUNTED.items()}
    return {**counts, "processes": len(children_of(pid)), MEMORY[0]: resident, MEMORY[1]: size}


COUNTED = {"descriptors": "fd", "threads": "task"}


def slope(values: Sequence[float]) -> float:
    """Return the median slope between all pairs of equidistant values (Theil and Sen): outliers do not change it."""
    return statistics.median((b - a) / (j - i) for (i, a), (j, b) in combinations(enumerate(values), 2))


def grows(values: Sequence[float], block: int, *, memory: bool) -> float:
    """Return the growth per execution of equidistant readings, 0 if it is not steady or too small to be a leak."""
    each = slope(values) / block
    least = LEAK if memory else LEAST_COUNT
    steps = [after - before for before, after in pairwise(values)]
    # The allocator takes memory in large blocks, so that not each block of a leak shows in it.
    steady = sum(step >= least * block / 2 for step in steps) >= STEADY * len(steps)
    enough = values[-1] - values[0] >= (LEAST_BYTES if memory else len(steps))
    return each if each >= least and steady and enough else 0.0


def growth(pids: Sequence[int], once: Callable[[], object], seconds: float) -> tuple[list[Growth], dict[str, float]]:
    """Execute for about so many seconds, longer if something seems to grow; return what does, and what was measured.

    The first quarter is for caches to fill and allocators to take their arenas. Growth must go on in each of
    `CONFIRMATIONS` further series, so that neither noise nor a cache that fills up is taken for a leak.

    Args:
        pids: the processes that are watched.
        once: executes once.
        seconds: the duration without confirmations.
    """
    begin = time.monotonic()
    for _ in range(LEAST_BLOCK):
        once()
    each = max((time.monotonic() - begin) / LEAST_BLOCK, 1e-7)
    least, most = FIRST_BLOCK
    first = max(least, min(most, int(seconds / BLOCKS / 4 / each)))
    grown, found = _series(pids, once, first, LEAST_BLOCK)
    if any(one.each >= SOON and one.what not in MEMORY for one in grown):
        return [one for one in grown if one.what not in MEMORY], found
    block = max(LEAST_BLOCK, int(seconds / (BLOCKS + 2) / each))
    for _ in range(2 * block):
        once()
    executions, suspects = LEAST_BLOCK + BLOCKS * first + 2 * block, None
    for series in range(1 + CONFIRMATIONS):
        grown, found = _series(pids, once, block << series, executions)
        executions += BLOCKS * (block << series)
        suspects = [one for one in grown if suspects is None or one.what in {other.what for other in suspects}]
        if not suspects:
            break
    return suspects or [], found


def _series(
    pids: Sequence[int], once: Callable[[], object], block: int, before: int
) -> tuple[list[Growth], dict[str, float]]:
    """Execute `BLOCKS` blocks; return what grows, and all growth. before: the number of executions until now."""
    readings = [_read(pids)]
    for _ in range(BLOCKS):
        for _ in range(block):
            once()
        readings.append(_read(pids))
    executions, grown, found = before + BLOCKS * block, list[Growth](), dict[str, float]()
    for name in readings[0]:
        values = [reading[name] for reading in readings]
        found[f"{name} per execution"] = round(slope(values) / block, 3)
        rate = grows(values, block, memory=name in MEMORY)
        if rate:
            grown.append(Growth(name, rate, executions))
    return grown, {**found, "executions": executions}


def _read(pids: Sequence[int]) -> dict[str, int]:
    """Return what the processes hold together."""
    several = [resources_of(pid) for pid in pids]
    return {name: sum(each[name] for each in several) for name in several[0]}
