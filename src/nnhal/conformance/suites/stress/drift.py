"""Whether latency drifts upwards or has a long tail, beside a computation of the suite that does neither."""

import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import NamedTuple

from nnhal.base.digests import blake2b
from nnhal.conformance.suites.stress.growth import slope

WINDOWS = 16
SERIES = 3  # of windows; the drift must go on in each
LEAST_WINDOW, MOST_WINDOW = 16, 2000  # executions
RISE = 0.3  # of the latency, since the begin
GOES_ON = 0.3  # the slope of each further series, as a share of the first one's
ORDERED = 0.6  # Kendall's tau of a drift: 1 if each window is slower than all before
SUSPECT = 0.3  # Kendall's tau from which on further series are measured: a small drift shows after them
WAITED = 0.1  # the share of time that threads waited for a core, from which on no slowness is the driver's
SLOW, SLOW_NS = 10, 5_000_000  # a slow execution takes so many times the median, and so much longer
TAIL = 0.01  # the share of slow executions in each series that is a long tail
LEAST_SLOW = 4  # slow executions in each series: fewer may be garbage collections of this process
PAUSES = 4  # times as many slow executions as pauses of the machine explain
_BLOCK = bytes(1 << 14)


class LatencyTrend(NamedTuple):
    """The latency of executions.

    rise: of the latency, 0.0 if it does not drift. tail: the share of slow executions, 0.0 if the tail is not long.
    waited: the share of the time that the thread waited for a core. found: figures by name.
    """

    rise: float
    tail: float
    waited: float
    found: dict[str, float]


def _now() -> int:
    return time.perf_counter_ns()


def drifts(latencies: Sequence[float]) -> float:
    """Return the relative rise over series of equidistant latencies, 0 if it is small, not steady, or has ended."""
    first = median(latencies[: WINDOWS // 4])
    rise = slope(latencies) * (len(latencies) - 1) / first if first else 0.0
    series = [slope(latencies[start : start + WINDOWS]) for start in range(0, len(latencies), WINDOWS)]
    goes_on = all(each >= GOES_ON * series[0] for each in series)
    return rise if rise >= RISE and kendall_tau(latencies) >= ORDERED and goes_on else 0.0


def kendall_tau(latencies: Sequence[float]) -> float:
    """Return the rank correlation of latencies with their order, -1 to 1."""
    pairs = list(combinations(latencies, 2))
    return sum((b > a) - (b < a) for a, b in pairs) / len(pairs)


def waited() -> tuple[int, int] | None:
    """Return the nanoseconds that the calling thread ran and waited for a core; None if unknown."""
    try:
        ran, waits, *_ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
    except (OSError, ValueError):
        return None
    return ran, waits


def waiting(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float:
    """Return the share of the time between two readings of `waited` that threads waited for a core; 0 if unknown."""
    if before is None or after is None:
        return 0.0
    ran, waits = (max(0, later - earlier) for earlier, later in zip(before, after, strict=True))
    return waits / (ran + waits) if ran + waits else 0.0


def tail(series: Sequence[Sequence[int]], control: Sequence[int]) -> float:
    """Return the least share of slow executions of several series; 0 if it is small, or the machine explains them.

    A machine that pauses this process for long also pauses it in computations of the suite, by their share of the time.

    Args:
        series: latencies of executions.
        control: the times of a fixed computation, one after each execution.
    """
    usual = median(series[0])
    slow = max(SLOW * usual, usual + SLOW_NS)
    counts = [sum(each > slow for each in several) for several in series]
    share = min(count / len(several) for count, several in zip(counts, series, strict=True))
    paused, spent = sum(each > SLOW_NS for each in control), sum(control)
    explained = paused * sum(map(sum, series)) / spent if spent else 0.0
    enough = share >= TAIL and min(counts) >= LEAST_SLOW
    return share if enough and sum(counts) > PAUSES * explained else 0.0


def measured(once: Callable[[], object], seconds: float, least_window: int = LEAST_WINDOW) -> LatencyTrend:
    """Execute for about so many seconds, at most; longer if something seems to be wrong.

    The least latency of a window is undisturbed even on a loaded machine. It is divided by the least time of a fixed
    computation in the same window, so that a change of the clock frequency cancels out.

    Args:
        once: executes once.
        seconds: the duration.
        least_window: the least number of executions of a window.
    """
    begin = time.monotonic()
    for _ in range(4 * least_window):
        once()
    each = max((time.monotonic() - begin) / (4 * least_window), 1e-7)
    count = max(least_window, min(MOST_WINDOW, int(seconds / (WINDOWS * SERIES) / each / 2)))
    least: list[float] = []
    ratios: list[float] = []
    series: list[list[int]] = []
    control: list[int] = []
    before = waited()
    for _ in range(SERIES):
        series.append([])
        for _ in range(WINDOWS):
            for _ in range(count):
                start = _now()
                once()
                end = _now()
                blake2b(_BLOCK).digest()
                control.append(_now() - end)
                series[-1].append(end - start)
            least.append(min(series[-1][-count:]))
            ratios.append(least[-1] / (min(control[-count:]) or 1))
        if kendall_tau(ratios) < SUSPECT and not tail(series, control):
            break
    whole = len(ratios) == WINDOWS * SERIES
    share = waiting(before, waited())
    found = {"first_us": least[0] / 1e3, "last_us": least[-1] / 1e3, "executions": count * len(least)}
    found["waited"] = round(share, 3)
    return LatencyTrend(drifts(ratios) if whole else 0.0, tail(series, control) if whole else 0.0, share, found)
