"""A device that is slowed on purpose. options: `ms` that a run takes, asleep, or at work where `spin` is set, whatever it is
told meanwhile; `prepare_ms` that preparing takes. It runs one execution at a time; `device_of(n)` makes one that runs n.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any

from nnhal.hal.device import Device, Hints, Prepared, Verdict
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model


class Slowed(Device):
    """order: what was executed, by its first element. prepared: for which priorities. inside, most: executions that run,
    and ran at once. gate, prepare_gate: what executions, and what is prepared, waits for. spend: what passes the time.
    """

    name = "slowed"
    one_at_a_time = True

    def __init__(self) -> None:
        self.lock, self.order, self.prepared = threading.Lock(), list[float](), list[str]()
        self.inside = self.most = 0
        self.gate, self.prepare_gate, self.spend = threading.Event(), threading.Event(), time.sleep
        self.gate.set()
        self.prepare_gate.set()

    def supports(self, model: Model) -> Sequence[Verdict]:
        return [Verdict(True)] * len(model.main.operations)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        self.prepared.append(hints.priority.name)
        self.prepare_gate.wait()
        self.spend(float(hints.options.get("prepare_ms", 0)) / 1e3)
        return Slow(self, hints.options)


class Slow(Prepared):
    """A model that doubles."""

    def __init__(self, device: Slowed, options: Any) -> None:
        self.device, self.spin = device, bool(options.get("spin"))
        self.seconds = float(options.get("ms", 5)) / 1e3

    def run(self, request: Request, control: Control) -> Timing | None:
        device, x = self.device, request.inputs[0]
        assert x is not None
        with device.lock:
            device.inside += 1
            device.most = max(device.most, device.inside)
            device.order.append(float(x.flat[0]))
        try:
            end = time.monotonic() + self.seconds
            if self.spin:
                while time.monotonic() < end:
                    pass
            else:
                device.gate.wait()
                device.spend(self.seconds)
            request.write(0, x + x)
        finally:
            with device.lock:
                device.inside -= 1
        return None


def device_of(at_once: int) -> Slowed:
    """One that runs so many at once."""
    device = Slowed()
    device.one_at_a_time, device.at_once = False, at_once
    return device


device = Slowed
