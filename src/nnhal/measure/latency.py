"""Latency of loading, compilation, the first inference and the steady state; interleaved pairs of two runners."""

import itertools
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from nnhal.base.records import Record

Runner = Callable[[], object]
LEAST = 10  # minimum number of calls
BOOTSTRAPS = 2000
BINS = 24
BARS = " ▁▂▃▄▅▆▇█"


class Latency(Record, frozen=True):
    """Durations in nanoseconds.

    Attributes:
        load: Reading the model.
        compile: Compiling it.
        first: The first inference.
        runs: Each inference after the warm-up.
        wall: The wall-clock time of all `runs`, in one stream or several.
    """

    load: int
    compile: int
    first: int
    runs: tuple[int, ...]
    wall: int

    @property
    def throughput(self) -> float:
        """Inferences per second."""
        return len(self.runs) / (self.wall / 1e9)

    def quantile(self, q: float) -> float:
        """Returns the quantile `q` (0 to 1) of the inferences after the warm-up, in nanoseconds."""
        return float(np.quantile(self.runs, q))


class Ratio(Record, frozen=True):
    """The median of paired ratios with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def timed(run: Runner) -> int:
    """Returns the duration of one call in nanoseconds."""
    start = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start


def measure_calls(run: Runner, seconds: float, iterations: int = 0, streams: int = 1) -> tuple[tuple[int, ...], int]:
    """Calls a runner again and again, and measures each call.

    Args:
        run: The runner; an exception that it raises ends the measurement.
        seconds: How long to measure, with at least 10 calls. Ignored if `iterations` is given.
        iterations: The number of calls; 0 to measure for `seconds`.
        streams: The number of threads that call at once.

    Returns:
        The duration of each call, and the wall-clock time of all, in nanoseconds.
    """
    count = itertools.count()
    start = time.perf_counter_ns()
    end = start + int(seconds * 1e9)

    def goes_on() -> bool:
        number = next(count)
        return number < iterations if iterations else number < LEAST or time.perf_counter_ns() < end

    def stream() -> list[int]:
        runs = []
        while goes_on():
            runs.append(timed(run))
        return runs

    if streams == 1:
        runs = stream()
    else:
        with ThreadPoolExecutor(streams, "nnhal-stream") as pool:
            runs = [ns for future in [pool.submit(stream) for _ in range(streams)] for ns in future.result()]
    return tuple(runs), time.perf_counter_ns() - start


def timed_pairs(one: Runner, other: Runner, pairs: int, inner: int = 1, seed: int = 0) -> list[tuple[float, float]]:
    """Measures two runners alternately; chance decides which is first in a pair.

    Args:
        one: The first runner.
        other: The second runner.
        pairs: The number of pairs.
        inner: The number of calls in one measurement, for calls that are too short for the clock.
        seed: The seed of the order.

    Returns:
        The duration of one call of each runner in nanoseconds, for each pair.
    """
    order = random.Random(seed)
    result = []
    for _ in range(pairs):
        spent: dict[int, float] = {}
        for which in order.sample((0, 1), 2):
            run = (one, other)[which]
            start = time.perf_counter_ns()
            for _ in range(inner):
                run()
            spent[which] = (time.perf_counter_ns() - start) / inner
        result.append((spent[0], spent[1]))
    return result


def ratio(pairs: Sequence[tuple[float, float]], seed: int = 0) -> Ratio:
    """Returns the median ratio of the first to the second of each pair, with a bootstrap interval drawn by `seed`."""
    ratios = np.array([a / b for a, b in pairs])
    generator = np.random.default_rng(seed)
    medians = np.median(generator.choice(ratios, (BOOTSTRAPS, ratios.size)), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return Ratio(float(np.median(ratios)), float(low), float(high))


def histogram(runs: Sequence[float]) -> str:
    """Draws a histogram in one line of the terminal, from the minimum to p99."""
    low, high = min(runs), float(np.quantile(runs, 0.99))
    counts, _ = np.histogram(np.clip(runs, low, high), BINS, (low, high if high > low else low + 1))
    peak = int(counts.max())
    return "".join(BARS[-(-int(c) * (len(BARS) - 1) // peak)] for c in counts)
