"""A driver with planted faults, by the first element of an input.

7: results are off by one. 11, 17: it ends its process, with exit status 3 or 0. 13: it hangs. A copy of this file as
`hanging.py` hangs while it prepares a model with two inputs.
"""

import os
import threading
from pathlib import Path
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
        if first is not None and first.size and first.flat[0] == 17:
            os._exit(0)
        if first is not None and first.size and first.flat[0] == 13:
            threading.Event().wait()
        for place, result in enumerate(inner.results):
            request.write(place, result + 1 if fault else result)


class WrongDevice(Device):
    name = "wrong"

    def supports(self, model: Model) -> Any:
        return discovery.cpu().supports(model)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        if Path(__file__).stem == "hanging" and len(model.main.inputs) == 2:
            threading.Event().wait()
        return Wrong(discovery.cpu().prepare(model, hints))


device = WrongDevice
