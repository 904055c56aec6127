"""A small driver with a fault by name, for the suites stress and crash: `NNHAL_PLANTED=leak`. "" is the healthy one."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.errors import Cancelled
from nnhal.hal.device import Device, Hints, Prepared, Verdict
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import CONSTANTS, Model
from nnhal.model.validate import validate

VARIABLE = "NNHAL_PLANTED"
KERNELS: dict[str, Callable[..., Any]] = {
    "ADD": np.add,
    "MUL": np.multiply,
    "SUB": np.subtract,
    "RELU": lambda x: np.maximum(x, 0),
    "TANH": np.tanh,
}
_kept: list[Any] = []  # of the process, on purpose


class Engine(Prepared):
    """A prepared model of float32."""

    def __init__(self, device: "Planted", model: Model) -> None:
        self.device, self.main = device, model.main
        self.bound = validate(model).subgraphs[0].operations
        self.constants = {
            place: self.constant(model, operand)
            for place, operand in enumerate(self.main.operands)
            if operand.lifetime in CONSTANTS
        }

    def constant(self, model: Model, operand: Any) -> Any:
        return model.constant(operand)

    def run(self, request: Request, control: Control) -> Timing | None:
        for place, result in enumerate(self.computed(dict(zip(self.main.inputs, request.inputs, strict=True)))):
            request.write(place, result)
        return None

    def computed(self, values: dict[int, Any]) -> list[Any]:
        values |= self.constants
        for operation, bound in zip(self.main.operations, self.bound, strict=True):
            assert bound is not None
            tensors = bound.form.tensors([values.get(i) for i in operation.inputs])
            result = KERNELS[bound.op.name](*tensors)
            activation = bound.activation if bound.op.name in ("ADD", "MUL", "SUB") else 0
            low, high = [(-np.inf, np.inf), (0, np.inf), (-1, 1), (0, 6)][int(activation)]
            values[operation.outputs[0]] = np.clip(result, low, high).astype(np.float32)
            self.between()
        return [values[i] for i in self.main.outputs]

    def between(self) -> None:
        """After each operation."""


class Leak(Engine):
    """Keeps 4 KiB of each execution."""

    def run(self, request: Request, control: Control) -> Timing | None:
        _kept.append(np.ones(4096, np.uint8))
        return super().run(request, control)


class Descriptors(Engine):
    """Keeps a descriptor of each execution."""

    def run(self, request: Request, control: Control) -> Timing | None:
        _kept.append(os.memfd_create("planted"))
        return super().run(request, control)


class Arena(Engine):
    """Has one arena for all executions of a model."""

    def __init__(self, device: "Planted", model: Model) -> None:
        super().__init__(device, model)
        self.arena: dict[int, Any] = {}

    def computed(self, values: dict[int, Any]) -> list[Any]:
        self.arena.update(values)
        return super().computed(self.arena)

    def between(self) -> None:
        time.sleep(0.0005)  # others run meanwhile


class Drift(Engine):
    """Does one unit of work more in each execution, which the device's `tick` counts."""

    runs = 0

    def run(self, request: Request, control: Control) -> Timing | None:
        self.runs += 1
        self.device.tick(1000 + self.device.growth * self.runs)
        return super().run(request, control)


class Changes(Engine):
    """Changes the process in the 20th execution, as the device's `change` does."""

    runs = 0

    def run(self, request: Request, control: Control) -> Timing | None:
        self.runs += 1
        if self.runs == 20:
            self.device.change()
        return super().run(request, control)


class ConstantsByHead(Engine):
    """Knows constants by their shape and first 64 bytes."""

    known: dict[Any, Any] = {}

    def constant(self, model: Model, operand: Any) -> Any:
        x = super().constant(model, operand)
        return self.known.setdefault((x.shape, x.tobytes()[:64]), x)


class SharedConstants(Engine):
    """Has the constants of the last prepared model."""

    def __init__(self, device: "Planted", model: Model) -> None:
        super().__init__(device, model)
        device.last = list(self.constants.values())

    def computed(self, values: dict[int, Any]) -> list[Any]:
        last = {value.shape: value for value in self.device.last}
        self.constants = {place: last.get(value.shape, value) for place, value in self.constants.items()}
        return super().computed(values)


class Aligned(Engine):
    """Reads constants of pools from the 64-byte boundary before them."""

    def constant(self, model: Model, operand: Any) -> Any:
        at = operand.location
        if not model.pools or operand.type != OperandType.TENSOR_FLOAT32:
            return super().constant(model, operand)
        raw = model.pools[at.pool].view(at.offset // 64 * 64, at.length)
        return raw.view(np.float32).reshape(operand.dimensions)


class DiesWithClient(Engine):
    """Ends its process when a client is gone in the middle of an execution."""

    def run(self, request: Request, control: Control) -> Timing | None:
        try:
            for _ in range(20):
                control.check()
                time.sleep(0.001)  # a call that lasts, and ends if it is cancelled
        except Cancelled:
            os._exit(1)
        return super().run(request, control)


class KeepsClients(Engine):
    """Never closes the descriptor that each prepared model has."""

    def __init__(self, device: "Planted", model: Model) -> None:
        super().__init__(device, model)
        _kept.append(os.memfd_create("planted"))


class LocksForEver(Engine):
    """Keeps a lock of the device if its client is gone in the middle of an execution."""

    def run(self, request: Request, control: Control) -> Timing | None:
        self.device.lock.acquire()
        for _ in range(5):
            control.check()
            time.sleep(0.001)  # holds the lock while its process may be killed
        super().run(request, control)
        self.device.lock.release()
        return None


ENGINES: dict[str, type[Engine]] = {
    "": Engine,
    "leak": Leak,
    "descriptors": Descriptors,
    "arena": Arena,
    "drift": Drift,
    "changes": Changes,
    "constants-by-head": ConstantsByHead,
    "shared-constants": SharedConstants,
    "aligned": Aligned,
    "dies-with-client": DiesWithClient,
    "keeps-clients": KeepsClients,
    "locks-for-ever": LocksForEver,
}


class Planted(Device):
    """The device."""

    version = "1"
    growth = 0

    def __init__(self, fault: str = "") -> None:
        self.fault, self.name = fault, f"planted-{fault}" if fault else "planted"
        self.tick: Callable[[int], object] = lambda units: None
        self.change: Callable[[], object] = lambda: None
        self.last: Sequence[Any] = ()
        self.lock = threading.Lock()

    def supports(self, model: Model) -> Any:
        return [
            Verdict(bound is not None and bound.op.name in KERNELS and bound.T == OperandType.TENSOR_FLOAT32)
            for bound in validate(model).subgraphs[0].operations
        ]

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return ENGINES[self.fault](self, model)


def device() -> Planted:
    """The device with the fault that is asked for."""
    return Planted(os.environ.get(VARIABLE, ""))
