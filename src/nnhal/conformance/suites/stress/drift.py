"""Whether the latency of executions drifts upwards, beside a computation of the suite that does not."""

import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median

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
_BLOCK = bytes(1 << 14)


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


def measured(once: Callable[[], object], seconds: float) -> tuple[float, float, dict[str, float]]:
    """Execute for about so many seconds, at most; return rise, share of waiting, and what was measured.

    The least latency of a window is undisturbed even on a loaded machine. It is divided by the least time of a fixed
    computation in the same window, so that a change of the clock frequency cancels out.
    """
    begin = time.monotonic()
    for _ in range(4 * LEAST_WINDOW):
        once()
    each = max((time.monotonic() - begin) / (4 * LEAST_WINDOW), 1e-7)
    count = max(LEAST_WINDOW, min(MOST_WINDOW, int(seconds / (WINDOWS * SERIES) / each / 2)))
    least: list[float] = []
    ratios: list[float] = []
    before = waited()
    for _ in range(SERIES):
        for _ in range(WINDOWS):
            best = control = 1 << 62
            for _ in range(count):
                start = _now()
                once()
                end = _now()
                blake2b(_BLOCK).digest()
                best, control = min(best, end - start), min(control, _now() - end)
            least.append(best)
            ratios.append(best / (control or 1))
        if kendall_tau(ratios) < SUSPECT:
            break
    rise = drifts(ratios) if len(ratios) == WINDOWS * SERIES else 0.0
    share = waiting(before, waited())
    found = {"first_us": least[0] / 1e3, "last_us": least[-1] / 1e3, "executions": count * len(least)}
    return rise, share, {**found, "waited": round(share, 3)}
