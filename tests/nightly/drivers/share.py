"""A driver that takes a share of all operations, by the kernels of the reference: its options say which.

Its name is that of its file, and its stated performance comes of that: copies of it under other names are other devices.
`driver_options={NAME: {"seed": 1, "share": 50, "control": 20}}`: of 100 operations it takes so many, and so many of those of
control flow, always the same ones of the same model. `"fail": 10`: so many of 100 executions fail.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnhal.base.codes import DeviceType, OperandType, OperationType
from nnhal.base.digests import blake2b
from nnhal.base.errors import OperationFailed
from nnhal.drivers.reference import Reference
from nnhal.hal.device import Capabilities, Considered, Device, Hints, Performance, Prepared, Verdict
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model

CONTROL = OperationType.IF, OperationType.WHILE


def number(*of: Any) -> int:
    """0 to 99, the same for the same."""
    return int.from_bytes(blake2b(repr(of).encode(), digest_size=8).digest(), "little") % 100


class Share(Reference):
    """The device."""

    name = Path(__file__).stem
    type = DeviceType.ACCELERATOR

    def capabilities(self) -> Capabilities:
        """Between a hundredth of the CPU's time and twice that, another for each type."""
        each: dict[int, Performance] = {
            int(t): Performance((1 + 2 * number(self.name, int(t))) / 100) for t in OperandType
        }
        flow = [Performance((1 + number(self.name, what)) / 100) for what in CONTROL]
        return Capabilities(each, Performance(), Performance(), *flow)

    def consider(self, model: Model, hints: Hints) -> Considered:
        """Its share."""
        return Considered(self._verdicts(model, hints.options))

    def _verdicts(self, model: Model, options: Any) -> Sequence[Verdict]:
        seed, graph = options.get("seed", 0), len(model.main.operands)
        found = []
        for n, operation in enumerate(model.main.operations):
            share = options.get("control" if operation.type in CONTROL else "share", 0)
            ok = number(seed, self.name, graph, n, int(operation.type)) < share
            found.append(Verdict(ok, "" if ok else "of another's share"))
        return found

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        """By the reference; `fail` is its own."""
        prepared, often = super().prepare(model, hints), hints.options.get("fail", 0)
        return Failing(prepared, often, hints.options.get("seed", 0)) if often else prepared


class Failing(Prepared):
    """Fails now and then, always at the same executions, and often after it wrote something."""

    def __init__(self, inner: Prepared, often: int, seed: int) -> None:
        self._inner, self._often, self._seed, self._runs = inner, often, seed, itertools.count()

    def run(self, request: Request, control: Control) -> Timing | None:
        """As the reference does, or not."""
        run = next(self._runs)
        if number(self._seed, run) >= self._often:
            return self._inner.run(request, control)
        if run % 2:
            self._inner.run(request, control)
        raise OperationFailed("one of those executions that fail")


def device() -> Device:
    """The driver's entry point."""
    return Share()
