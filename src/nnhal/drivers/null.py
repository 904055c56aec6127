"""The null device: takes every operation, computes nothing, leaves outputs as they are.

For measuring what lies around a driver.
"""

from nnhal.hal.device import YES, Capabilities, Device, Hints, Prepared, Verdict, each_operation
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model


class Null(Device):
    """Does nothing, as fast as possible."""

    name = "null"
    version = "1"

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(1.0)

    def supports(self, model: Model) -> list[Verdict]:
        return each_operation(model, lambda *_: YES)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return Nothing()


class Nothing(Prepared):
    """A prepared model that does nothing."""

    def run(self, request: Request, control: Control) -> Timing | None:
        return None


def device() -> Device:
    """The driver's entry point."""
    return Null()
