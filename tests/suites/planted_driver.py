"""A driver over the reference with a fault in how it runs graphs: `--option fault=NAME`, one of `FAULTS`."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import Lifetime, OperationType
from nnhal.drivers.reference import Reference
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.request import Control, Request
from nnhal.model.graph import CONSTANTS, Model
from nnhal.model.parts import extract_part
from nnhal.model.validate import validate

ADDS = "ADD", "MUL", "SUB", "MAXIMUM", "MINIMUM"
Arrays = dict[int, Any]


class Planted(Reference):
    """The device."""

    name = "planted"

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return Runner(self, model, str(hints.options.get("fault", "")))


class Runner(Prepared):
    """Runs operation by operation, each by the reference."""

    def __init__(self, device: Reference, model: Model, fault: str) -> None:
        self.model, self._fault = model, fault
        main = model.main
        self._parts = []
        for n, operation in enumerate(main.operations):
            part = extract_part(model, [n], operation.outputs)
            self._parts.append((part, Reference.prepare(device, part.model, Hints())))
        self._constants: Arrays = {i: model.constant(o) for i, o in enumerate(main.operands) if o.lifetime in CONSTANTS}
        self._arena: Arrays = {}
        validate(model)

    def run(self, request: Request, control: Control) -> None:
        main = self.model.main
        arena = self._arena if self._fault == "shared-arena" else {}
        arena.update(self._constants)
        arena.update(zip(main.inputs, request.inputs, strict=True))
        readers: dict[int, int] = {}
        for number, (part, prepared) in enumerate(self._parts):
            operation = main.operations[number]
            inputs = [arena[i] for i in part.inputs]
            if self._fault == "unaligned":
                inputs = [x[..., ::-1] if x.size and x.ctypes.data % 16 and x.ndim else x for x in inputs]
            results = prepared_results(prepared, inputs)
            name = OperationType(operation.type).name
            results = [self._spoilt(name, operation, arena, x) for x in results]
            if self._fault == "shared-arena":
                time.sleep(0)  # others run meanwhile
            arena.update(zip(part.outputs, results, strict=True))
            if self._fault == "first-reader":
                for i in operation.inputs:
                    readers[i] = readers.get(i, 0) + 1
                    if readers[i] == 1 and main.operands[i].lifetime == Lifetime.TEMPORARY_VARIABLE:
                        arena[i] = np.zeros_like(arena[i])
        for n, i in enumerate(main.outputs):
            request.write(n, arena[i])

    def _spoilt(self, name: str, operation: Any, arena: Arrays, x: Any) -> Any:
        values = [arena.get(i) for i in operation.inputs]
        if self._fault == "repeated-operand" and name in ADDS and operation.inputs[0] == operation.inputs[1]:
            return x // 2 if x.dtype.kind in "iu" else x / 2
        if self._fault == "wide" and x.ndim and x.shape[-1] > 64:
            x = x.copy()
            x[..., 64:] = 0
        if self._fault == "broadcast" and name in ADDS:
            one, other = values[0], values[1]
            if one is not None and other is not None and one.ndim > other.ndim and other.ndim == 1 and other.size > 1:
                return x[..., ::-1].copy()
        return x


def prepared_results(prepared: Prepared, inputs: Sequence[Any]) -> list[Any]:
    """Execute one operation."""
    request = prepared.request([np.ascontiguousarray(x) for x in inputs])
    request.execute(prepared.run, Control())
    return list(request.results)


FAULTS: tuple[str, ...] = ("shared-arena", "first-reader", "repeated-operand", "wide", "broadcast", "unaligned")
Made = Callable[[], Reference]
LOCK = threading.Lock()


def device() -> Reference:
    """The device."""
    return Planted()
