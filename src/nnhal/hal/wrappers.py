"""Behaviour added to any device by wrapping it."""

from collections.abc import Callable, Sequence

from nnhal.hal.device import Capabilities, Device, Hints, Prepared, Verdict
from nnhal.model.graph import Model


class Limited(Device):
    """A device that takes only some of what it could: `takes(model, place)` decides for each operation of a model.

    For experiments with placement: `Limited(litert, lambda model, n: n % 2 == 0, "every other operation is left out")`.
    """

    def __init__(self, inner: Device, takes: Callable[[Model, int], bool], reason: str = "left out on purpose") -> None:
        self.inner, self.takes, self.reason = inner, takes, reason
        self.name, self.version, self.type, self.level = inner.name, inner.version, inner.type, inner.level
        self.extensions = inner.extensions

    def capabilities(self) -> Capabilities:
        """Those of the device itself."""
        return self.inner.capabilities()

    def supports(self, model: Model) -> Sequence[Verdict]:
        """The device's own verdicts, and no for what is left out."""
        verdicts = self.inner.supports(model)
        return [v if self.takes(model, n) else Verdict(False, self.reason) for n, v in enumerate(verdicts)]

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        """As the device does."""
        return self.inner.prepare(model, hints)
