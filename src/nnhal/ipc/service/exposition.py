"""A service's counters as families of Prometheus metrics."""

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from nnhal.ipc.service import scrapes
from nnhal.ipc.service.metrics import EXECUTION, PREPARATION, Metrics, Times
from nnhal.ipc.service.quota import Quotas


class _Kind(NamedTuple):
    """A metric: its kind, labels and help text."""

    kind: Callable[..., Any]
    labels: tuple[str, ...]
    what: str


METRICS = {
    "nnhal_service": _Kind(InfoMetricFamily, (), "Device, driver version and HAL version of the service, always 1"),
    "nnhal_executions": _Kind(
        CounterMetricFamily,
        ("device", "client", "outcome"),
        "Executions that have ended, by client process and outcome",
    ),
    "nnhal_execution_seconds": _Kind(
        HistogramMetricFamily, ("device", "client"), "Duration of executions in the service, including waiting"
    ),
    "nnhal_executions_inside": _Kind(
        GaugeMetricFamily, ("device", "client"), "Executions that have begun and not ended"
    ),
    "nnhal_executions_running": _Kind(GaugeMetricFamily, ("device",), "Executions in progress that are running"),
    "nnhal_executions_waiting": _Kind(GaugeMetricFamily, ("device",), "Executions in progress that are waiting"),
    "nnhal_preparations": _Kind(
        CounterMetricFamily,
        ("device", "source", "outcome"),
        "Models that were prepared, from the model itself or from a client's cache files",
    ),
    "nnhal_preparation_seconds": _Kind(HistogramMetricFamily, ("device", "source"), "Duration of preparations"),
    "nnhal_cache": _Kind(
        CounterMetricFamily,
        ("device", "result"),
        "Preparations of clients with a cache: hit, unusable (invalid files), absent",
    ),
    "nnhal_connections_ended": _Kind(
        CounterMetricFamily, ("how",), "Connections that have ended or were refused, by cause"
    ),
    "nnhal_connections": _Kind(GaugeMetricFamily, (), "Open connections"),
    "nnhal_quota_used": _Kind(
        GaugeMetricFamily, ("client", "quota"), "Resources that a client process holds; memory and addresses in bytes"
    ),
    "nnhal_quota_most": _Kind(GaugeMetricFamily, ("quota",), "Limit of one connection"),
    "nnhal_quota_refusals": _Kind(CounterMetricFamily, ("quota",), "Requests refused for a quota"),
}


class ServiceCollector(Collector):
    """Makes the families of `METRICS` from the counters."""

    def __init__(self, metrics: Metrics, quotas: Quotas, facts: dict[str, str]) -> None:
        """Collect for a service. facts: `device`, `version`, `level`."""
        self._metrics, self._quotas, self._facts = metrics, quotas, facts

    def collect(self) -> Iterator[Metric]:
        """Yield all families, from one reading."""
        device, reading, depth = self._facts["device"], self._metrics.read(), self._metrics.depth()
        service = InfoMetricFamily("nnhal_service", METRICS["nnhal_service"].what)
        service.add_metric([], self._facts)
        yield service
        clients = reading.executions
        yield _family(
            "nnhal_executions",
            (((device, c.client, outcome), n) for c in clients for outcome, n in c.outcomes.items()),
        )
        yield _histogram("nnhal_execution_seconds", EXECUTION, (((device, c.client), c.times) for c in clients))
        yield _family("nnhal_executions_inside", (((device, c.client), c.inside) for c in clients))
        yield _family("nnhal_executions_running", [((device,), depth.running)])
        yield _family("nnhal_executions_waiting", [((device,), depth.waiting)])
        yield _family("nnhal_preparations", (((device, *which), n) for which, n in reading.preparations.items()))
        times = (((device, source), times) for source, times in reading.preparing.items())
        yield _histogram("nnhal_preparation_seconds", PREPARATION, times)
        yield _family("nnhal_cache", (((device, result), n) for result, n in reading.cache.items()))
        yield _family("nnhal_connections_ended", (((how,), n) for how, n in reading.connections.items()))
        yield from self._held()

    def _held(self) -> Iterator[Metric]:
        usage, rows = self._quotas.usage(), self._quotas.table.rows
        used: dict[tuple[str, str], int] = {}
        for pid, of_connection in usage:
            for name, amount in of_connection.items():
                used[str(pid), name] = used.get((str(pid), name), 0) + amount
        yield _family("nnhal_connections", [((), len(usage))])
        yield _family("nnhal_quota_used", used.items())
        yield _family("nnhal_quota_most", (((name,), row.most) for name, row in rows.items()))
        yield _family("nnhal_quota_refusals", (((name,), n) for name, n in self._quotas.refusals().items()))


def _family(name: str, samples: Iterable[tuple[Sequence[str], int]]) -> Metric:
    """Make a counter or gauge. samples: labels and value of each."""
    kind = METRICS[name]
    family = kind.kind(name, kind.what, labels=kind.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _histogram(name: str, bounds: Sequence[float], samples: Iterable[tuple[Sequence[str], Times]]) -> Metric:
    """Make a histogram. bounds: upper bounds of its buckets, in seconds."""
    kind = METRICS[name]
    family = HistogramMetricFamily(name, kind.what, labels=kind.labels)
    names = [*map(str, map(float, bounds)), "+Inf"]
    for labels, times in samples:
        family.add_metric(labels, list(zip(names, accumulate(times.buckets), strict=True)), times.total / 1e9)
    return family


def start(listener: socket.socket, quotas: Quotas, facts: dict[str, str]) -> Metrics:
    """Serve all metrics on a listening socket, in a separate thread; return the counters. facts: see the collector."""
    metrics = Metrics()
    registry = CollectorRegistry()
    for collector in (ServiceCollector(metrics, quotas, facts), scrapes.PROCESS):
        registry.register(collector)
    scrapes.start(listener, registry)
    return metrics
