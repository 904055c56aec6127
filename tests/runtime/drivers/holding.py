"""A driver whose executions end when the client lets them, whatever becomes of them meanwhile. On the reference kernels.

A run waits while the first number of its first input is below 0: an input in memory that the client shares and changes.
"""

import time

from nnhal.drivers.reference import Reference
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model


class Holding(Prepared):
    """A prepared model that waits."""

    def __init__(self, inner: Prepared) -> None:
        self._inner = inner

    def run(self, request: Request, control: Control) -> Timing | None:
        while request.inputs[0].flat[0] < 0:  # type: ignore[union-attr]
            time.sleep(0.005)
        return self._inner.run(request, Control())


class HoldingDevice(Reference):
    """The device."""

    name = "holding"
    version = "1"

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return Holding(super().prepare(model, hints))


def device() -> Device:
    """The driver's entry point."""
    return HoldingDevice()
