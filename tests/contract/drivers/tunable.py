"""A driver whose options change between executions and which says that it has consumed its weights: y = gain * (x + w).

Options: `gain`, which may change; `slow`: seconds that a run takes, half before it reads the gain; `until`: a file that a
run waits for, once it has made its folder; `late`: what it asks of
its model when it runs, against its own word; `nonsense`: what `changeable` or `weights_consumed` is; `fails`: gains that
`reconfigure` fails at. How many executions were at work during changes it tells as its working memory.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nnhal.base.errors import OperationFailed
from nnhal.hal.device import YES, Capabilities, Device, Hints, Prepared, Verdict, each_operation
from nnhal.hal.memory import MemoryUse
from nnhal.hal.request import Control, Request
from nnhal.model.graph import CONSTANTS, Model
from nnhal.model.validate import validate

LATE: dict[str, Callable[[Model], object]] = {
    "a constant": lambda model: [model.constant(o) for o in model.main.operands if o.lifetime in CONSTANTS],
    "a pool": lambda model: model.pools[0],
    "all pools": lambda model: [pool.size for pool in model.pools],
    "how many pools": lambda model: len(model.pools),
    "values": lambda model: np.frombuffer(model.values, np.uint8),
    "a bound operation": lambda model: validate(model).subgraphs[0].operations[0],
}


class Tuned(Prepared):
    changeable = ("gain", "slow")
    weights_consumed = True

    def __init__(self, model: Model, options: Mapping[str, Any]) -> None:
        self.given, self.inside, self.overlapping = model, 0, 0
        (operation,) = model.main.operations
        self.weights = np.array(model.constant(model.main.operands[operation.inputs[1]]))
        self.options = dict(options)
        for what, value in options.get("nonsense", {}).items():
            setattr(self, what, value)

    def run(self, request: Request, control: Control) -> None:
        if "late" in self.options:
            LATE[self.options["late"]](self.given)
        self.inside += 1
        try:
            if "until" in self.options:
                file = Path(self.options["until"])
                file.parent.mkdir(exist_ok=True)
                while not file.exists():
                    time.sleep(0.005)
            slow = self.options.get("slow", 0) / 2
            time.sleep(slow)
            gain = np.float32(self.options.get("gain", 1))
            (x,) = request.inputs
            time.sleep(slow)
            request.write(0, gain * (x + self.weights))  # type: ignore[operator]
        finally:
            self.inside -= 1

    def memory(self) -> MemoryUse:
        return MemoryUse(self.weights.nbytes, 0, self.overlapping, 0)

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        self.overlapping += self.inside
        if options.get("gain") in self.options.get("fails", ()):
            raise OperationFailed("told to")
        self.options = dict(options)


class Tunable(Device):
    name, version = "tunable", "1"

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(0.1)

    def supports(self, model: Model) -> list[Verdict]:
        bounds = dict(zip(model.main.operations, validate(model).subgraphs[0].operations, strict=True))
        return each_operation(model, lambda _, o: YES if bounds[o].op.name == "ADD" else "only ADD")

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return Tuned(model, hints.options)


def device() -> Device:
    return Tunable()
