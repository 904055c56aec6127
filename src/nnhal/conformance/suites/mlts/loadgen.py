"""Scenarios of MLPerf's LoadGen. Their results do not conform to MLPerf's rules: runs are short, no model is MLPerf's."""

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnhal.base.operands import Array
from nnhal.conformance.suites.suite import NotApplicable

MILLISECONDS = 500  # of a scenario at scale 1; MLPerf asks for 60,000 and more
QUERIES, FEWEST = 32, 4  # of SingleStream; fewer than the first number for a slow device
SLOW = 4_000_000_000  # nanoseconds that all queries of a slow device may take
LABEL = "non-conforming: shorter than MLPerf's rules ask, and not a model of its benchmarks"
_LINE = re.compile(r"^(.+?)\s*:\s*(.+?)\s*$", re.MULTILINE)
_FIGURES = {
    "90.0th percentile latency (ns)": "single_stream_p90_ns",
    "Samples per second": "offline_samples_per_second",
    "Result is": "result",
}


def scenarios(
    run: Callable[[int], Sequence[Array]], samples: int, expected_ns: int, scale: float, at: Callable[[str], None]
) -> dict[str, Any]:
    """Run SingleStream and Offline.

    Args:
        run: runs the sample of an index.
        samples: their number.
        expected_ns: how long one takes.
        scale: factor of the duration.
        at: called before each scenario.

    Returns:
        LoadGen's figures by scenario, with `LABEL`.

    Raises:
        NotApplicable: LoadGen is not installed.
        Exception: what `run` raised.
    """
    try:
        import mlperf_loadgen as loadgen
    except ImportError:
        raise NotApplicable("LoadGen is not installed: pip install 'nnhal[loadgen]'") from None
    found: dict[str, Any] = {"label": LABEL}
    for name in ("SingleStream", "Offline"):
        at(name)
        settings = loadgen.TestSettings()
        settings.scenario = getattr(loadgen.TestScenario, name)
        settings.mode = loadgen.TestMode.PerformanceOnly
        settings.min_duration_ms = max(1, int(MILLISECONDS * scale))
        settings.min_query_count = queries(expected_ns) if name == "SingleStream" else 1
        settings.single_stream_expected_latency_ns = expected_ns
        settings.offline_expected_qps = max(1e9 / expected_ns, 1.0)
        found[name] = _scenario(loadgen, settings, run, samples)
    return found


def queries(expected_ns: int) -> int:
    """Return the least number of queries of SingleStream for a device that takes so long for one."""
    return max(FEWEST, min(QUERIES, SLOW // max(1, expected_ns)))


def _scenario(loadgen: Any, settings: Any, run: Callable[[int], Sequence[Array]], samples: int) -> dict[str, Any]:
    errors: list[BaseException] = []
    answered = 0

    def issue(queries: Sequence[Any]) -> None:
        nonlocal answered
        for query in queries:
            size, address = 0, 0
            if not errors:  # LoadGen waits for every answer, also after an error
                try:
                    output = np.ascontiguousarray(run(query.index)[0])
                    size, address = output.nbytes, output.ctypes.data
                    answered += 1
                except BaseException as error:
                    errors.append(error)
            loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(query.id, address, size)])

    def nothing(*_: Any) -> None:
        pass

    with tempfile.TemporaryDirectory(prefix="nnhal-loadgen-") as folder:
        logs = loadgen.LogSettings()
        logs.log_output.outdir = folder
        logs.log_output.copy_summary_to_stdout = False
        logs.enable_trace = False
        system = loadgen.ConstructSUT(issue, nothing)
        library = loadgen.ConstructQSL(samples, samples, nothing, nothing)
        try:
            loadgen.StartTestWithLogSettings(system, library, settings, logs)
        finally:
            loadgen.DestroyQSL(library)
            loadgen.DestroySUT(system)
        if errors:
            raise errors[0]
        return {"answered": answered, **figures((Path(folder) / "mlperf_log_summary.txt").read_text("utf-8"))}


def figures(summary: str) -> dict[str, Any]:
    """Return the figures of a summary that LoadGen wrote."""
    found: dict[str, Any] = {}
    for name, value in _LINE.findall(summary):
        key = _FIGURES.get(name)
        if key is not None:
            found[key] = value if key == "result" else float(value)
    return found
