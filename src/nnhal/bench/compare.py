"""Compares devices: every intermediate of a model, or each operation by itself on another device's intermediates."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.operands import Array, quantised
from nnhal.base.records import Record
from nnhal.hal.device import Device, Hints, prepared_by
from nnhal.hal.request import UNLIMITED
from nnhal.model.graph import Model, operation_label
from nnhal.model.parts import cut

FLOAT_TOLERANCE = 5e-4  # of the greatest expected magnitude, for whole models: correct engines drift apart


class Difference(Record, frozen=True):
    """How far one operand is off. `worst` is in LSB of a quantised type, else relative to `magnitude`, the greatest."""

    operation: int
    label: str
    operand: int
    name: str
    type: OperandType
    worst: float
    differing: int
    size: int
    spread: int  # distinct expected values: a comparison of constants proves nothing
    magnitude: float = 1.0

    def within(self, rtol: float, lsb: float, atol: float = 0.0) -> bool:
        """Whether it is within the tolerance of its kind.

        Args:
            rtol: of floats, relative to the greatest magnitude of the operand.
            lsb: of quantised types and integers, in quantisation steps.
            atol: of floats, in their unit, beside `rtol`.
        """
        return self.worst <= (lsb if quantised(self.type) else rtol + atol / max(self.magnitude, 1e-30))


class Drift(Record, frozen=True):
    """How far one output of a whole model is off, over several inputs.

    worst: as of `Difference`. lean: of the elements that differ the mean difference, in steps of a quantised type, else
    relative to the greatest magnitude: far from 0 where an engine rounds to one side. rows: along the last dimension, as of
    scores for classes; changed: those whose greatest element is another one, beyond a tie.
    """

    name: str
    type: OperandType
    worst: float
    differing: int
    size: int
    lean: float
    rows: int
    changed: int


def drifts(
    model: Model, pairs: Sequence[tuple[Sequence[Array], Sequence[Array]]], names: Sequence[str]
) -> Iterator[Drift]:
    """Of each output. pairs: for each input what a device gives, and what is right."""
    for place, (index, name) in enumerate(zip(model.main.outputs, names, strict=True)):
        operand = model.main.operands[index]
        off, scales, rows, changed = [], [], 0, 0
        for actual, expected in pairs:
            a, e = actual[place].astype(np.float64), expected[place].astype(np.float64)
            if a.shape != e.shape:
                a = np.full_like(e, np.nan)
            off.append(signed_differences(a, e).ravel())
            scales.append(magnitude(e))
            if e.ndim and e.shape[-1] > 1 and e.size:
                first, second = (np.reshape(x, (-1, e.shape[-1])) for x in (a, e))
                rows += len(second)
                picked, greatest = second[np.arange(len(second)), first.argmax(1)], second.max(1)
                changed += int(np.count_nonzero(signed_differences(picked, greatest)))
        every = np.concatenate(off) / (1.0 if quantised(operand.type) else max(*scales, 1e-30))
        apart = every[every != 0]
        worst, lean = float(np.abs(every).max(initial=0.0)), float(apart.mean()) if apart.size else 0.0
        yield Drift(name, OperandType(operand.type), worst, apart.size, every.size, lean, rows, changed)


def intermediates(model: Model, device: Device, inputs: Sequence[Array | None]) -> dict[int, Array]:
    """Every value that an operation of the main subgraph writes, from one run on the device; keys are operands."""
    written = [i for operation in model.main.operations for i in operation.outputs]
    part = cut(model, range(len(model.main.operations)), also=written)
    by_operand = dict(zip(model.main.inputs, inputs, strict=True))
    outputs = execute(part.model, device, [by_operand[i] for i in part.inputs])
    return dict(zip(part.outputs, outputs, strict=True))


def execute(model: Model, device: Device, inputs: Sequence[Array | None]) -> list[Array]:
    """Prepare and run once, without the runtime around it."""
    prepared = prepared_by(device, model, Hints())
    try:
        request = prepared.request(inputs)
        request.execute(prepared.run, UNLIMITED)
    finally:
        prepared.close()
    return request.results


def compare(model: Model, actual: Mapping[int, Array], expected: Mapping[int, Array]) -> Iterator[Difference]:
    """The difference of each operand that both have, in the order of the operations."""
    for n, operation in enumerate(model.main.operations):
        for index in operation.outputs:
            if index in actual and index in expected:
                yield difference(model, n, index, actual[index], expected[index])


def each_operation(
    model: Model, device: Device, inputs: Sequence[Array | None], values: Mapping[int, Array], operations: Iterable[int]
) -> Iterator[Difference]:
    """Run operations by themselves on `device`, fed with `values` (another device's intermediates), and compare."""
    known: dict[int, Array | None] = {**dict(zip(model.main.inputs, inputs, strict=True)), **values}
    for n in operations:
        part = cut(model, [n], also=model.main.operations[n].outputs)
        outputs = execute(part.model, device, [known[i] for i in part.inputs])
        for index, array in zip(part.outputs, outputs, strict=True):
            yield difference(model, n, index, array, values[index])


def difference(model: Model, operation: int, index: int, actual: Array, expected: Array) -> Difference:
    """How far `actual` is from `expected`."""
    operand = model.main.operands[index]
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    label = operation_label(model.main.operations[operation].type, operation)
    if a.shape != e.shape:
        worst, differing = float("inf"), e.size
    else:
        off = np.abs(signed_differences(a, e))
        worst = float(off.max(initial=0.0)) / (1.0 if quantised(operand.type) else max(magnitude(e), 1e-30))
        differing = int((off != 0).sum())
    spread = int(np.unique(e).size)
    kind = OperandType(operand.type)
    return Difference(operation, label, index, operand.name, kind, worst, differing, e.size, spread, magnitude(e))


def signed_differences(actual: Array, expected: Array) -> Array:
    """The difference of each element: 0 where both are the same, infinite where one of them alone is NaN."""
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    off = np.subtract(actual, expected, where=~same, out=np.zeros_like(expected))
    return np.where(np.isnan(off), np.inf, off)


def magnitude(array: Array) -> float:
    """The greatest of its finite elements."""
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
