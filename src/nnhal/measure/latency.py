"""Latency: how long loading, preparing, the first run and the steady state take; pairs of two runners, interleaved."""

import itertools
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from nnhal.base.records import Record

Runner = Callable[[], object]
LEAST = 10  # calls, however long they take
BOOTSTRAPS = 2000
BINS = 24
BARS = " ▁▂▃▄▅▆▇█"


class Latency(Record, frozen=True):
    """Durations in nanoseconds: of reading the model, of preparing it, of the first run, of each run after the warm-up.

    wall: of all those runs together, several at once or one after the other.
    """

    load: int
    compile: int
    first: int
    runs: tuple[int, ...]
    wall: int

    @property
    def throughput(self) -> float:
        """Runs in a second."""
        return len(self.runs) / (self.wall / 1e9)

    def quantile(self, q: float) -> float:
        """The q-quantile of the steady runs, in nanoseconds."""
        return float(np.quantile(self.runs, q))


class Ratio(Record, frozen=True):
    """Median of paired ratios with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def timed(run: Runner) -> int:
    """Duration of one call in nanoseconds."""
    start = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start


def steady(run: Runner, seconds: float, iterations: int = 0, streams: int = 1) -> tuple[tuple[int, ...], int]:
    """Durations of calls, and of all together. iterations: so many calls; 0 for as many as `seconds` last, at least 10.

    streams: threads that call, each as soon as its call before has come back. An error of a call is raised.
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


def interleaved(one: Runner, other: Runner, pairs: int, inner: int = 1, seed: int = 0) -> list[tuple[float, float]]:
    """Durations in nanoseconds of `one` and `other` alternately, the first of each pair drawn by chance.

    inner: how many calls make one duration, for calls too short for the clock; durations are of one call.
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
    """Median ratio of the first to the second of each pair, with a bootstrap interval of 95 %."""
    ratios = np.array([a / b for a, b in pairs])
    generator = np.random.default_rng(seed)
    medians = np.median(generator.choice(ratios, (BOOTSTRAPS, ratios.size)), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return Ratio(float(np.median(ratios)), float(low), float(high))


def histogram(runs: Sequence[float]) -> str:
    """A histogram in one line of the terminal, from the least to the 99th percentile."""
    low, high = min(runs), float(np.quantile(runs, 0.99))
    counts, _ = np.histogram(np.clip(runs, low, high), BINS, (low, high if high > low else low + 1))
    peak = int(counts.max())
    return "".join(BARS[-(-int(c) * (len(BARS) - 1) // peak)] for c in counts)
