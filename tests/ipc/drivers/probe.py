"""A driver that tells what was done to it: the reason of a verdict is its counters, as JSON. On the reference kernels.

Options of `prepare`: {"meet": 8} lets a run end only when 8 runs are inside at once, {"sleep": 0.5} makes each run take that
long, {"gate": PATH} has preparation wait for such a file, {"fail": 1} makes every run fail, {"pool": 1} tells the
addresses of a run's arrays by their pools, {"waits": 1} has each run wait while the first number of its input is below 0.
"""

import gc
import json
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

from nnhal.base.errors import OperationFailed
from nnhal.base.memory import Memory
from nnhal.drivers.reference import Reference
from nnhal.hal.background import FencedExecution
from nnhal.hal.device import Device, Hints, Prepared, Verdict
from nnhal.hal.fence import Fence
from nnhal.hal.host import HostBuffer
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model

TOGETHER = 60.0  # seconds until runs that should meet count as not parallel


class Counters:
    """Counts of events, from any thread."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.executions: weakref.WeakSet[FencedExecution] = weakref.WeakSet()

    def add(self, name: str, number: int = 1) -> None:
        with self.lock:
            self.counts[name] += number

    def text(self) -> str:
        gc.collect()
        alive = {"executions": len(self.executions), "memories": _alive(Memory), "threads": threading.active_count()}
        alive["lanes"] = sum(thread.name == "nnhal-lane" for thread in threading.enumerate())
        with self.lock:
            return json.dumps({**self.counts, **alive})


def _alive(kind: type) -> int:
    return sum(
        issubclass(type(item), kind) for item in gc.get_objects()
    )  # objects of other tests lie about their class


class ProbePrepared(Prepared):
    """A prepared model that counts."""

    def __init__(self, inner: Prepared, counters: Counters, options: dict[str, Any]) -> None:
        self._inner, self._counters, self._options = inner, counters, options
        self._meeting = threading.Barrier(int(options.get("meet", 1)))
        counters.add("prepared")

    def run(self, request: Request, control: Control) -> Timing | None:
        self._counters.add("runs")
        self._counters.add("inside")
        try:
            if "meet" in self._options:
                self._meeting.wait(TOGETHER)
            end = time.monotonic() + self._options.get("sleep", 0)
            while time.monotonic() < end:
                time.sleep(0.005)
                control.check()
            while "waits" in self._options and request.inputs[0].flat[0] < 0:  # type: ignore[union-attr]
                time.sleep(0.005)
                control.check()
            if "fail" in self._options:
                raise OperationFailed("probe: failed on command")
            return self._inner.run(request, control)
        finally:
            self._counters.add("inside", -1)

    def execute_fenced(
        self, request: Request, control: Control, wait_for: Sequence[Fence] = (), after: int | None = None
    ) -> FencedExecution:
        execution = super().execute_fenced(request, control, wait_for, after)
        self._counters.executions.add(execution)
        return execution

    def burst_opened(self) -> None:
        self._counters.add("bursts")

    def burst_closed(self) -> None:
        self._counters.add("bursts", -1)

    def close(self) -> None:
        self._counters.add("closed while running", self._counters.counts["inside"])
        self._counters.add("prepared", -1)


class ProbeBuffer(HostBuffer):
    """A buffer that counts."""

    def __init__(self, desc: BufferDesc, roles: Sequence[BufferRole], counters: Counters) -> None:
        super().__init__(desc, roles)
        self._counters = counters
        counters.add("buffers")

    def close(self) -> None:
        super().close()
        self._counters.add("buffers", -1)


class Probe(Reference):
    """The device."""

    name = "probe"
    at_once = 64  # runs that are to meet
    version = "1"

    def __init__(self) -> None:
        super().__init__()
        self._counters = Counters()

    def supports(self, model: Model) -> list[Verdict]:
        text = self._counters.text()
        return [Verdict(v.ok, text) for v in super().supports(model)]

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        self._counters.add("begun")
        while "gate" in hints.options and not os.path.exists(hints.options["gate"]):
            time.sleep(0.005)
        prepared = ProbePrepared(super().prepare(model, hints), self._counters, dict(hints.options))
        self._counters.add("came")
        return prepared

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        return ProbeBuffer(desc, roles, self._counters)


def device() -> Device:
    """The entry point."""
    return Probe()
