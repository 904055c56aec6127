"""What an optimising compiler does wrongly: operations that it fuses, shares or leaves out."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import Activation, operation_name
from nnhal.base.operands import Array
from nnhal.base.records import replace
from nnhal.drivers.reference import ReadyOperation
from nnhal.hal.request import Control
from nnhal.model.graph import CONSTANTS
from nnhal.ops.schema import Bound

from .faults import RANDOM
from .operations import Every, Kernel, Kernels, of_engine, with_fields

PADDED = "AVERAGE_POOL_2D", "CONV_2D", "DEPTHWISE_CONV_2D", "MAX_POOL_2D"


class BeforeRelu(Kernels):
    """An ADD whose result a RELU reads may be another."""

    operation = "ADD"

    def _changed(self, step: ReadyOperation) -> ReadyOperation:
        return super()._changed(step) if step.outputs[0] in self.fused(self.readers("RELU")) else step

    def readers(self, *names: str) -> set[int]:
        """The first inputs of operations in the main subgraph."""
        return {each.inputs[0] for each in self.model.main.operations if operation_name(each.type) in names}

    def fused(self, read: set[int]) -> Collection[int]:
        """Which of the results that a RELU reads are changed."""
        return read


@of_engine("fused-activation", "a RELU replaces the activation of the ADD before it", "ADD", (RANDOM,))
class FusedActivation(BeforeRelu):
    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        return kernel(with_fields(a, activation=Activation.NONE), *arguments)


@of_engine("fused-second-reader", "all readers of an ADD get the result of the RELU after it", "ADD", (RANDOM,))
class FusedSecondReader(BeforeRelu):
    def fused(self, read: set[int]) -> Collection[int]:
        return read - {*self.model.main.outputs}

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        result = kernel(a, *arguments)
        return np.maximum(result, result.dtype.type(a.out.zero_point))


@of_engine("fused-output", "an ADD that is an output gives the result of the RELU after it", "ADD", (RANDOM,))
class FusedOutput(FusedSecondReader):
    def fused(self, read: set[int]) -> Collection[int]:
        return read & {*self.model.main.outputs}


@of_engine("shared-results", "averages of one tensor are computed once for each size", "AVERAGE_POOL_2D", (RANDOM,))
class SharedResults(Kernels):
    operation = "AVERAGE_POOL_2D"

    def call(self, number: int, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        self.known: dict[Any, tuple[Array, Array]] = {}
        return super().call(number, inputs, control)

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        (x,) = arguments
        return self.known.setdefault((id(x), a.shapes[0], a.out.scale), (x, kernel(a, x)))[1]


@of_engine("first-unread", "an operation of whose results nothing needs the first is left out", "SPLIT", (RANDOM,))
class FirstUnread(Kernels):
    operation = "SPLIT"

    def _changed(self, step: ReadyOperation) -> ReadyOperation:
        main = self.model.main
        needed = {*main.outputs, *(i for each in main.operations for i in each.inputs)}
        return step if step.outputs[0] in needed else super()._changed(step)

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        return [np.zeros_like(each) for each in kernel(a, *arguments)]


@of_engine("quantised-again", "QUANTIZE of a DEQUANTIZE copies 8 bits to 8 bits", "DEQUANTIZE", (RANDOM,))
class QuantisedAgain(Kernels):
    def _changed(self, step: ReadyOperation) -> ReadyOperation:
        op, stored = step.bound.op, self.__dict__.setdefault("stored", {})

        def dequantise(a: Bound, x: Array) -> Any:
            stored[step.outputs[0]] = x
            return op.kernel(a, x)

        def quantise(a: Bound, x: Array) -> Any:
            before = stored.get(step.inputs[0])
            return op.kernel(a, x) if before is None or before.dtype != a.out.dtype else before

        changed = {"DEQUANTIZE": dequantise, "QUANTIZE": quantise}.get(op.name)
        return step if changed is None else replace(step, bound=with_fields(step.bound, op=replace(op, kernel=changed)))


@of_engine(
    "padding-folded", "PAD_V2 pads with zeros where a layer or a pool reads it", "AVERAGE_POOL_2D", (RANDOM,), Every
)
class PaddingFolded(BeforeRelu):
    operation = "PAD_V2"

    def _changed(self, step: ReadyOperation) -> ReadyOperation:
        return Kernels._changed(self, step) if step.outputs[0] in self.readers(*PADDED) else step

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        return kernel(with_fields(a, value=a.input.zero_point), *arguments)


@of_engine("joined-constants", "of two constants added one after the other, their sum is added", "", (RANDOM,))
class JoinedConstants(Kernels):
    operation = "ADD"

    def _changed(self, step: ReadyOperation) -> ReadyOperation:
        op, added = step.bound.op, self.__dict__.setdefault("added", {})
        if op.name != self.operation or self.model.main.operands[step.inputs[1]].lifetime not in CONSTANTS:
            return step

        def kernel(a: Bound, x: Array, y: Array) -> Any:
            before = added.get(step.inputs[0])
            if before is not None and before[1].shape == y.shape:
                x, y = before[0], before[1] + y
            added[step.outputs[0]] = x, y
            return op.kernel(a, x, y)

        return replace(step, bound=with_fields(step.bound, op=replace(op, kernel=kernel)))
