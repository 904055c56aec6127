"""Times: compilation without a cache, saving and restoring, and the latency of the steady state."""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from nnhal import api
from nnhal.hal.device import Device
from nnhal.measure.latency import Runner, measure_calls, timed
from nnhal.model.graph import Model
from nnhal.runtime.compiled import Compiled

PERCENTILES = 50.0, 90.0, 99.0, 99.9
COMPILATIONS = 3
NO_ENTRY = "there is no entry"  # the reason of a miss if the device saved nothing
WARMUP, ROUNDS = 3, 5
SECONDS = 0.8  # of the steady state of each engine, at scale 1
BINS = 40
MS = 1e6  # nanoseconds
SLOW = 500 * MS  # of a first run, after which an engine has no warm-up


class Compilations(NamedTuple):
    """Times in nanoseconds; size: bytes of the cache's files. states: of the last restore, with reasons.

    lost: why an entry that the device had saved was not restored, "" if none was.
    """

    plain: int
    saving: int
    restoring: int | None
    size: int
    states: list[str]
    lost: str

    def to_dict(self) -> dict[str, Any]:
        """Return milliseconds and bytes by name."""
        return {
            "compile_ms": self.plain / MS,
            "save_ms": self.saving / MS if self.size else None,
            "restore_ms": None if self.restoring is None else self.restoring / MS,
            "cache_bytes": self.size,
            "cache": self.states,
        }


def compiled_on(model: Model, device: Device, cache: Path | None = None) -> Compiled:
    """Compile the whole model for one device."""
    return api.compile(model, devices=[device], fallback="forbid", cache_dir=cache if cache is not None else False)


def compilations(
    model: Model, device: Device, at: Callable[[str], None], look: Callable[[Compiled], None]
) -> Compilations:
    """Time compilation on the device without a cache, with an empty one, and from a full one.

    look: called with a restored compilation.
    """
    plain, saving, restoring, size, states, lost = [], [], [], 0, [""], ""
    for _ in range(COMPILATIONS):
        at("prepare")
        with tempfile.TemporaryDirectory(prefix="nnhal-mlts-") as root:
            folder = Path(root)
            folder.chmod(0o700)
            start = time.perf_counter_ns()
            compiled_on(model, device).close()
            plain.append(time.perf_counter_ns() - start)
            at("prepare_cached")
            start = time.perf_counter_ns()
            compiled_on(model, device, folder).close()
            saving.append(time.perf_counter_ns() - start)
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            at("restore")
            start = time.perf_counter_ns()
            with compiled_on(model, device, folder) as restored:
                taken = time.perf_counter_ns() - start
                states = [f"{each.device}: {each}" for each in restored.cache]
                missed = (each for each in restored.cache if each.state == "miss" and NO_ENTRY not in each.reason)
                lost = lost or next((each.reason for each in missed), "")
                if all(each.state == "hit" for each in restored.cache):
                    restoring.append(taken)
                    look(restored)
    whole = len(restoring) == COMPILATIONS
    return Compilations(
        int(median(plain)), int(median(saving)), int(median(restoring)) if whole else None, size, states, lost
    )


def latencies(
    runners: dict[str, Runner], seconds: float, at: Callable[[str], None], iterations: int = 0
) -> dict[str, dict[str, Any]]:
    """Time engines alternately, so that a disturbance meets all of them.

    Args:
        runners: run each engine once.
        seconds: of the steady state of each engine.
        at: called with the engine before each of its rounds.
        iterations: of each engine instead, without a warm-up, for a slow one.
    """
    runs: dict[str, list[int]] = {name: [] for name in runners}
    first = {}
    for name, run in runners.items():
        at(name)
        first[name] = timed(run)
        for _ in range(0 if iterations or first[name] > SLOW else WARMUP):
            run()
    for _ in range(1 if iterations else ROUNDS):
        for name, run in runners.items():
            at(name)
            runs[name] += measure_calls(run, seconds / ROUNDS, iterations)[0]
    return {name: summary(first[name], spent) for name, spent in runs.items()}


def summary(first: int, runs: Sequence[int]) -> dict[str, Any]:
    """Return the figures of a latency in milliseconds, and its histogram up to the 99th percentile."""
    found = np.array(runs) / MS
    counts, edges = np.histogram(found[found <= np.quantile(found, 0.99)], BINS)
    return {
        "runs": len(runs),
        "first_ms": first / MS,
        "min_ms": float(found.min()),
        **{f"p{q:g}_ms": float(np.quantile(found, q / 100)) for q in PERCENTILES},
        "counts": counts.tolist(),
        "edges": edges.tolist(),
    }
