"""A driver with planted faults: results are off by one for inputs that begin with 7; 11 ends its process."""

import os
from typing import Any

from nnhal.driver import Device
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.request import Control, Request
from nnhal.model.graph import Model
from nnhal.runtime import discovery


class Wrong(Prepared):
    def __init__(self, inner: Prepared) -> None:
        self.inner = inner

    def run(self, request: Request, control: Control) -> None:
        inner = self.inner.request(request.given)
        inner.execute(self.inner.run, control)
        first = request.inputs[0]
        fault = first is not None and first.size and first.flat[0] == 7
        if first is not None and first.size and first.flat[0] == 11:
            os._exit(3)
        for place, result in enumerate(inner.results):
            request.write(place, result + 1 if fault else result)


class WrongDevice(Device):
    name = "wrong"

    def supports(self, model: Model) -> Any:
        return discovery.cpu().supports(model)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return Wrong(discovery.cpu().prepare(model, hints))


device = WrongDevice
