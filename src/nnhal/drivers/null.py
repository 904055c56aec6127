"""The null device: supports every operation, computes nothing, returns zeros. It measures the overhead around a driver."""

import numpy as np

from nnhal.hal.device import YES, Capabilities, Device, Hints, Prepared, Verdict, each_operation
from nnhal.hal.memory import MemoryUse
from nnhal.hal.request import Control, Request, Signature, Timing
from nnhal.model.graph import Model


class Null(Device):
    """A device that does nothing, as fast as possible."""

    name = "null"
    version = "1"

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(1.0)

    def supports(self, model: Model) -> list[Verdict]:
        return each_operation(model, lambda *_: YES)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return NullPrepared(model)


class NullPrepared(Prepared):
    """A prepared model that always returns the same zeros; unknown dimensions are 1."""

    def __init__(self, model: Model) -> None:
        outputs = Signature.of(model).outputs
        self._zeros = [np.zeros([1 if d is None else d for d in o.shape or ()], o.dtype) for o in outputs]

    def run(self, request: Request, control: Control) -> Timing | None:
        for index, zeros in enumerate(self._zeros):
            request.write(index, zeros)
        return None

    def memory(self) -> MemoryUse:
        return MemoryUse(0, 0, sum(zeros.nbytes for zeros in self._zeros), 0)


def device() -> Device:
    """Return the driver's device."""
    return Null()
