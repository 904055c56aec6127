"""What a driver does wrongly with certain values: those that saturate, count from the end, or make an error."""

from typing import Any

import numpy as np

from nnhal.base.codes import operation_name
from nnhal.base.errors import OperationFailed
from nnhal.base.operands import Array, Value
from nnhal.base.records import replace
from nnhal.conformance.suites.run import VECTORS
from nnhal.drivers.reference import ReadyOperation
from nnhal.hal.request import Control, Request, Timing
from nnhal.ops.schema import Bound

from .faults import CONTRACT, RANDOM
from .operations import Every, Kernel, Kernels, of_engine, with_fields


@of_engine(
    "error-before",
    "an execution whose values make an error gives the results of the one before",
    "GATHER",
    (CONTRACT,),
    Every,
    check="invalid-values",
)
class ErrorBefore(Kernels):
    before: list[Array] | None = None

    def run(self, request: Request, control: Control) -> Timing | None:
        try:
            self.before = [np.array(y) for y in self.call(0, request.inputs, control)]
        except OperationFailed:
            if self.before is None:
                raise
        for place, result in enumerate(self.before):
            request.write(place, result)
        return None


class OffsetFromZero(Kernels):
    """Negative elements of an argument of STRIDED_SLICE count from 0, which leaves 0 of them."""

    operation = "STRIDED_SLICE"
    argument = ""

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        read = getattr(a, self.argument)
        changed = with_fields(a, **{self.argument: replace(read, data=np.maximum(read.array, 0))})
        result = np.array(kernel(a, *arguments))
        wrong = arguments[0][tuple(_parts(changed))].reshape(-1)
        result[...] = np.resize(wrong, result.shape) if wrong.size else 0
        return result


def _parts(a: Bound) -> list[slice]:
    """The slice of each dimension."""
    rows = zip(a.begin.array.tolist(), a.end.array.tolist(), a.strides.array.tolist(), strict=True)
    return [
        slice(None if a.begin_mask >> i & 1 else b, None if a.end_mask >> i & 1 else e, s)
        for i, (b, e, s) in enumerate(rows)
    ]


@of_engine(
    "begin-from-zero",
    "a negative begin of STRIDED_SLICE counts from 0",
    "STRIDED_SLICE",
    (CONTRACT, RANDOM),
    Every,
    check="values",
)
class BeginFromZero(OffsetFromZero):
    argument = "begin"


@of_engine(
    "end-from-zero",
    "a negative end of STRIDED_SLICE counts from 0",
    "STRIDED_SLICE",
    (CONTRACT, RANDOM),
    Every,
    check="values",
)
class EndFromZero(OffsetFromZero):
    argument = "end"


class PairLeftOut(Kernels):
    """Two operations that undo each other are left out, if the result has the type of what they begin with."""

    pair: tuple[str, str]

    def joined(self, a: Bound, kernel: Kernel, x: Array, value: Value, y: Array) -> Array:
        """The second result, from the first operation's argument and the second's."""
        same = (value.type, value.scale, value.zero_point) == (a.out.type, a.out.scale, a.out.zero_point)
        return x if same else kernel(a, y)

    def _changed(self, step: ReadyOperation) -> ReadyOperation:
        op, given = step.bound.op, self.__dict__.setdefault("given", {})
        first, second = self.pair
        before = {o.outputs[0]: operation_name(o.type) for o in self.model.main.operations}

        def begin(a: Bound, x: Array) -> Any:
            given[step.outputs[0]] = x, a.inputs[0][1]
            return op.kernel(a, x)

        def end(a: Bound, y: Array) -> Any:
            x, value = given.get(step.inputs[0], (None, None))
            return op.kernel(a, y) if value is None else self.joined(a, op.kernel, x, value, y)

        ends = op.name == second and before.get(step.inputs[0]) == first
        changed = end if ends else begin if op.name == first else None
        return step if changed is None else replace(step, bound=with_fields(step.bound, op=replace(op, kernel=changed)))


@of_engine(
    "quantise-left-out",
    "QUANTIZE and the DEQUANTIZE after it are left out",
    "QUANTIZE",
    (RANDOM,),
)
class QuantiseLeftOut(PairLeftOut):
    pair = "QUANTIZE", "DEQUANTIZE"


@of_engine("cast-left-out", "CAST to another type and the CAST back are left out", "CAST", (RANDOM,), Every)
class CastLeftOut(PairLeftOut):
    pair = "CAST", "CAST"


@of_engine(
    "requantise-wraps",
    "QUANTIZE of a DEQUANTIZE takes the low 8 bits of what saturates",
    "DEQUANTIZE",
    (RANDOM,),
)
class RequantiseWraps(PairLeftOut):
    pair = "DEQUANTIZE", "QUANTIZE"

    def joined(self, a: Bound, kernel: Kernel, x: Array, value: Value, y: Array) -> Array:
        steps = np.rint(y.astype(np.float64) / a.out.scale) + a.out.zero_point
        return steps.astype(np.int64).astype(a.out.dtype)


class NextStep(Kernels):
    """Results are one too high, where their type has the next number."""

    def kernel(self, a: Bound, kernel: Kernel, *arguments: Any) -> Any:
        result = kernel(a, *arguments)
        if result.dtype.kind not in "iu":
            return result
        return result + (result < np.iinfo(result.dtype).max).astype(result.dtype)


@of_engine("index-next", "the index of ARGMAX is one too high", "ARGMAX", (VECTORS, CONTRACT), Every, check="values")
class IndexNext(NextStep):
    operation = "ARGMAX"


@of_engine(
    "gathered-next", "integers that GATHER moves are one too high", "GATHER", (VECTORS, CONTRACT), Every, check="values"
)
class GatheredNext(NextStep):
    operation = "GATHER"
