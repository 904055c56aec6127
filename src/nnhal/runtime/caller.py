"""What can be called with arrays: a compiled model, and a burst of one."""

from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from nnhal.base.errors import Closed, InvalidRequest
from nnhal.hal.buffers import Buffer
from nnhal.hal.request import UNLIMITED, Control
from nnhal.runtime.compilation import Plan
from nnhal.runtime.domains import Allocation
from nnhal.runtime.execution import NO_BUFFERS, Report, Runner, Whole, by_operand
from nnhal.runtime.specs import Edge, make_control


class Caller:
    """Executions of a plan. running: one entry an execution in flight; its appends and pops are atomic."""

    def __init__(self, plan: Plan, edge: Edge, runner: Runner, whole: Whole, running: "deque[None]") -> None:
        self.plan, self.edge, self.whole = plan, edge, whole
        self._runner, self._running = runner, running
        self._plain, self._fresh = edge.plain, edge.fresh
        self._closed = ""

    def __call__(self, *inputs: Any, out: Any = None) -> Any:
        """Run once and wait.

        inputs: arrays in order, or one mapping from input names to arrays; what `nnhal.allocate` gave may stand for any.
        Returns the output array, a tuple of them where the model has several, or, for a mapping, a dict. out: an array or
        allocation (or a sequence of them, None for a fresh one) that results are written to. Raises InvalidRequest,
        OutputInsufficientSize, or what the execution raised.
        """
        if out is None and self._plain is not None and len(inputs) == len(self._plain):
            for x, (dtype, shape) in zip(inputs, self._plain):  # noqa: B905 (as many, see above)
                if type(x) is not np.ndarray or x.dtype != dtype or x.shape != shape or not x.flags.c_contiguous:
                    break
            else:
                outputs: list[Any] = [np.empty(shape, dtype) for shape, dtype in self._fresh]
                self._running.append(None)
                try:
                    if self._closed:
                        self._refuse()
                    self._runner.run(inputs, outputs, UNLIMITED)
                finally:
                    self._running.pop()
                return outputs[0] if len(outputs) == 1 else tuple(outputs)
        return self.run(*inputs, out=out)[0]

    def run(
        self,
        *inputs: Any,
        out: Any = None,
        deadline: float | None = None,
        loop_timeout: float | None = None,
        measure: bool = False,
    ) -> tuple[Any, Report | None]:
        """Run once and wait, with everything that can be asked for.

        deadline: seconds from now. loop_timeout: seconds for each WHILE, 15 at most. measure: return a Report as well.
        Returns the outputs as `__call__` does, and the report or None.
        """
        control = make_control(deadline, loop_timeout, measure)
        report = Report() if measure else None
        return self._run(inputs, out, control, report), report

    def _run(self, inputs: Sequence[Any], out: Any, control: Control, report: Report | None) -> Any:
        arrays, outputs, named = self.edge.take(inputs, out)
        self.execute(arrays, outputs, control, report)
        return self.edge.results(outputs, named)

    def execute(self, inputs: list[Any], outputs: list[Any], control: Control, report: Report | None) -> None:
        """Run once, with everything already checked and in the model's order; fills the outputs."""
        self._running.append(None)
        try:
            if self._closed:
                self._refuse()
            if not any(isinstance(x, Allocation) for x in (*inputs, *outputs)):
                self._runner.run(inputs, outputs, control, report, NO_BUFFERS)
            else:
                self._execute_in_buffers(inputs, outputs, control, report)
        finally:
            self._running.pop()

    def _execute_in_buffers(
        self, inputs: list[Any], outputs: list[Any], control: Control, report: Report | None
    ) -> None:
        read, written = self.buffers_in(inputs, outputs)
        buffers = by_operand(self.plan.model, read, written)
        arrays = [None if n in read else x for n, x in enumerate(inputs)]
        room = [None if n in written else x for n, x in enumerate(outputs)]
        success = False
        try:
            found = self._runner.run(arrays, room, control, report, buffers)
            outputs[:] = [outputs[n] if n in written else x for n, x in enumerate(found)]
            success = True
        finally:
            for n in written:
                outputs[n].wrote(success)

    def buffers_in(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[dict[int, Buffer], dict[int, Buffer]]:
        """The buffers of the allocations among all inputs and outputs; InvalidRequest where one may not be used so."""
        given = {n: x for n, x in enumerate(inputs) if isinstance(x, Allocation)}
        taken = {n: x for n, x in enumerate(outputs) if isinstance(x, Allocation)}
        for n, x in taken.items():
            if any(x is other for other in (*given.values(), *(y for m, y in taken.items() if m < n))):
                raise InvalidRequest(f"output {n}: {x} is also another output or an input, must be one of them")
        read = {n: x.for_use(self.whole, False, n) for n, x in given.items()}
        return read, {n: x.for_use(self.whole, True, n) for n, x in taken.items()}

    def check_open(self) -> None:
        """Closed where nothing can be run any more."""
        if self._closed:
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise Closed(f"{self.plan.model.name or 'model'}: {self._closed}; compile it again")
