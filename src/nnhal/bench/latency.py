"""Latency: how long preparing, the first run and the steady state take; pairs of two runners, interleaved."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Runner = Callable[[], object]
BOOTSTRAPS = 2000
BINS = 24
BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Latency:
    """Durations in nanoseconds: of preparing, of the first run, of each run after it."""

    compile: int
    first: int
    runs: tuple[int, ...]

    def quantile(self, q: float) -> float:
        """The q-quantile of the steady runs, in nanoseconds."""
        return float(np.quantile(self.runs, q))


@dataclass(frozen=True)
class Ratio:
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


def steady(run: Runner, seconds: float, least: int = 10, most: int = 100_000) -> tuple[int, ...]:
    """Durations of calls for about `seconds`."""
    runs: list[int] = []
    end = time.perf_counter() + seconds
    while len(runs) < least or (time.perf_counter() < end and len(runs) < most):
        runs.append(timed(run))
    return tuple(runs)


def interleaved(one: Runner, other: Runner, pairs: int, inner: int = 1, seed: int = 0) -> list[tuple[float, float]]:
    """Durations in nanoseconds of `one` and `other` in turn, the first of each pair drawn by chance.

    inner: how many calls make one duration, for calls too short for the clock; durations are of one call.
    """
    order = random.Random(seed)
    result = []
    for _ in range(pairs):
        spent = [0.0, 0.0]
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
    peak = max(int(counts.max()), 1)
    return "".join(BARS[-(-int(c) * (len(BARS) - 1) // peak)] for c in counts)
