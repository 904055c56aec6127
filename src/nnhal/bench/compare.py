"""Compares devices: every intermediate of a model, or each operation alone on another device's intermediates."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.operands import Array, quantised
from nnhal.base.records import Record
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints
from nnhal.hal.request import UNLIMITED
from nnhal.model.graph import Model, operation_label
from nnhal.model.parts import extract_part

FLOAT_TOLERANCE = 5e-4  # of the greatest expected magnitude, for whole models: correct engines drift apart


class Difference(Record, frozen=True):
    """The difference of one operand between two devices.

    Attributes:
        operation: The operation that writes it.
        label: The operation for messages.
        operand: The operand's index.
        name: The operand's name.
        type: The operand's type.
        worst: The greatest difference: in LSB of a quantised type, else relative to `magnitude`.
        differing: The number of elements that differ.
        size: The number of elements.
        spread: The number of distinct expected values; a comparison of constants verifies nothing.
        magnitude: The greatest expected magnitude.
    """

    operation: int
    label: str
    operand: int
    name: str
    type: OperandType
    worst: float
    differing: int
    size: int
    spread: int
    magnitude: float = 1.0

    def within(self, rtol: float, lsb: float, atol: float = 0.0) -> bool:
        """Returns whether the difference is within the tolerance.

        Args:
            rtol: The tolerance of floats, relative to the greatest magnitude of the operand.
            lsb: The tolerance of quantised types and integers, in LSB.
            atol: The absolute tolerance of floats, added to that of `rtol`.
        """
        return self.worst <= (lsb if quantised(self.type) else rtol + atol / max(self.magnitude, 1e-30))


class Drift(Record, frozen=True):
    """The difference of one output of a whole model, over several inputs.

    Attributes:
        name: The output's name.
        type: The output's type.
        worst: The greatest difference, as in `Difference`.
        differing: The number of elements that differ.
        size: The number of elements.
        lean: The mean difference of the elements that differ, in LSB of a quantised type, else relative to the greatest
            magnitude. It is far from 0 if an engine rounds to one side.
        rows: The number of rows along the last dimension, such as scores for classes.
        changed: The number of rows whose greatest element changed; a tie does not count.
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
    """Yields the difference of each output of a model.

    Args:
        model: The model.
        pairs: For each input, the actual and the expected outputs.
        names: The names of the outputs.
    """
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
    """Runs a model once and returns every value that an operation of the main subgraph writes, by operand."""
    written = [i for operation in model.main.operations for i in operation.outputs]
    part = extract_part(model, range(len(model.main.operations)), also=written)
    by_operand = dict(zip(model.main.inputs, inputs, strict=True))
    outputs = execute(part.model, device, [by_operand[i] for i in part.inputs])
    return dict(zip(part.outputs, outputs, strict=True))


def execute(model: Model, device: Device, inputs: Sequence[Array | None]) -> list[Array]:
    """Prepares a model on a device and runs it once, without the runtime; returns the outputs."""
    prepared = checked_prepared(device, model, Hints())
    try:
        request = prepared.request(inputs)
        request.execute(prepared.run, UNLIMITED)
    finally:
        prepared.close()
    return request.results


def compare(model: Model, actual: Mapping[int, Array], expected: Mapping[int, Array]) -> Iterator[Difference]:
    """Yields the difference of each operand that both have, in the order of the operations."""
    for n, operation in enumerate(model.main.operations):
        for index in operation.outputs:
            if index in actual and index in expected:
                yield difference(model, n, index, actual[index], expected[index])


def each_operation(
    model: Model, device: Device, inputs: Sequence[Array | None], values: Mapping[int, Array], operations: Iterable[int]
) -> Iterator[Difference]:
    """Runs each operation alone on a device and compares its outputs.

    Args:
        model: The model.
        device: The device under test.
        inputs: The inputs of the model.
        values: The intermediates of another device, by operand: inputs of the operations, and expected outputs.
        operations: The operations to run.

    Yields:
        The difference of each output.
    """
    known: dict[int, Array | None] = {**dict(zip(model.main.inputs, inputs, strict=True)), **values}
    for n in operations:
        part = extract_part(model, [n], also=model.main.operations[n].outputs)
        outputs = execute(part.model, device, [known[i] for i in part.inputs])
        for index, array in zip(part.outputs, outputs, strict=True):
            yield difference(model, n, index, array, values[index])


def difference(model: Model, operation: int, index: int, actual: Array, expected: Array) -> Difference:
    """Returns the difference of an operand.

    Args:
        model: The model.
        operation: The operation that writes the operand.
        index: The operand.
        actual: The value of the device under test.
        expected: The value of the other device.
    """
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
    """Returns the difference of each element: 0 if both are equal, infinity if only one is NaN."""
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    off = np.subtract(actual, expected, where=~same, out=np.zeros_like(expected))
    return np.where(np.isnan(off), np.inf, off)


def magnitude(array: Array) -> float:
    """Returns the greatest absolute value of the finite elements; 0 if there are none."""
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
