"""A driver whose executions end when the client lets them, whatever becomes of them meanwhile. On the reference kernels.

A run waits while the first number of its first input is below 0: an input in memory that the client shares and changes.
The reasons of `supports` are how many runs began to wait, and how many of those have ended.
"""

import time

from nnhal.drivers.reference import Reference
from nnhal.hal.device import Device, Hints, Prepared, Verdict
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model


class Holding(Prepared):
    """A prepared model that waits."""

    def __init__(self, inner: Prepared, device: "HoldingDevice") -> None:
        self._inner, self._device = inner, device

    def run(self, request: Request, control: Control) -> Timing | None:
        (first, *_), device = request.inputs, self._device
        assert first is not None
        if first.flat[0] >= 0:
            return self._inner.run(request, Control())
        device.begun += 1
        while first.flat[0] < 0:
            time.sleep(0.005)
        try:
            return self._inner.run(request, Control())
        finally:
            device.ended += 1


class HoldingDevice(Reference):
    """The device."""

    name = "holding"
    version = "1"
    begun = ended = 0

    def supports(self, model: Model) -> list[Verdict]:
        return [Verdict(True, f"{self.begun} {self.ended}")] * len(model.main.operations)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return Holding(super().prepare(model, hints), self)


def device() -> Device:
    """The driver's entry point."""
    return HoldingDevice()
