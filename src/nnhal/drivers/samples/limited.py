"""Sample drivers that support only some operations, on the reference kernels, each with its own declared performance.

The numbers are those of AOSP's sample drivers, so that known results of partitioning there hold here.
"""

import os
import random
from collections.abc import Callable, Sequence
from functools import partial

from nnhal.base.codes import DeviceType, OperandType, OperationType, operation_name
from nnhal.base.errors import UnsupportedModel
from nnhal.drivers.reference import Reference
from nnhal.drivers.samples.full import VERSION
from nnhal.hal.device import Capabilities, Device, Hints, Performance, Prepared, Verdict
from nnhal.model.graph import Model, Operation
from nnhal.ops import OPS

SEED = "NNHAL_SAMPLE_SEED"  # selects the half of the operations that sample-partial supports
Judge = Callable[[Model, Operation], str]

FLOATS = OperandType.TENSOR_FLOAT32, OperandType.FLOAT32
QUANTISED = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED


def stated(other: Performance, float32: Performance, relaxed: Performance) -> Capabilities:
    """Return capabilities with separate values for float32, full and relaxed, and others for the rest."""
    table: dict[int, Performance] = {**dict.fromkeys(OperandType, other), **dict.fromkeys(FLOATS, float32)}
    return Capabilities(table, relaxed, relaxed, other, other)


class Sample(Reference):
    """The reference kernels behind a function that returns why an operation is rejected, "" if it is supported."""

    version = VERSION
    type = DeviceType.CPU
    extensions = ()

    def __init__(self, name: str, capabilities: Capabilities, takes: Judge) -> None:
        self.name, self._capabilities, self._takes = name, capabilities, takes

    def capabilities(self) -> Capabilities:
        return self._capabilities

    def supports(self, model: Model) -> list[Verdict]:
        reasons = [self._takes(model, operation) for operation in model.main.operations]
        return [Verdict(False, why) if why else v for why, v in zip(reasons, super().supports(model), strict=True)]

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        for n, verdict in enumerate(self.supports(model)):
            if not verdict.ok:
                label = f"{operation_name(model.main.operations[n].type)} #{n}"
                raise UnsupportedModel(f"{self.name}: {label}: {verdict.reason}")
        return super().prepare(model, hints)


def _first(model: Model, operation: Operation, allowed: Sequence[OperandType], place: int = 0) -> str:
    if place >= len(operation.inputs):
        return f"has no input {place}"
    found = model.main.operands[operation.inputs[place]].type
    return "" if found in allowed else f"input {place} must be {' or '.join(t.name for t in allowed)}"


def takes_float(model: Model, operation: Operation) -> str:
    """Support only operations on float32 tensors."""
    return _first(model, operation, (OperandType.TENSOR_FLOAT32,))


def takes_quantised(model: Model, operation: Operation) -> str:
    """Support only operations on 8-bit asymmetric tensors; the first input of SELECT is its condition."""
    return _first(model, operation, QUANTISED, int(operation.type == OperationType.SELECT))


def takes_little(model: Model, operation: Operation) -> str:
    """Support only three operations, on float32 tensors."""
    few = OperationType.ADD, OperationType.CONCATENATION, OperationType.CONV_2D
    return takes_float(model, operation) if operation.type in few else f"supports only {', '.join(t.name for t in few)}"


def takes_half(chosen: frozenset[str], model: Model, operation: Operation) -> str:
    """Support only the operations chosen."""
    return "" if operation_name(operation.type) in chosen else "is not in the half that this seed selects"


def chosen_by(seed: str) -> frozenset[str]:
    """Return half of the operations, the same for the same seed on every machine."""
    names = sorted(OPS)
    return frozenset(random.Random(seed).sample(names, len(names) // 2))


CPU = Performance(1.0, 1.0)


def float_fast() -> Device:
    """Return a device that is faster than the CPU for float32, at more power."""
    figures = stated(CPU, Performance(0.8, 1.2), Performance(0.7, 1.1))
    return Sample("sample-float-fast", figures, takes_float)


def float_slow() -> Device:
    """Return a device that is slower than the CPU for float32, at less power."""
    figures = stated(CPU, Performance(1.3, 0.7), Performance(1.2, 0.6))
    return Sample("sample-float-slow", figures, takes_float)


def minimal() -> Device:
    """Return a device that supports a few operations, much better than the CPU."""
    figures = stated(CPU, Performance(0.4, 0.5), Performance(0.4, 0.5))
    return Sample("sample-minimal", figures, takes_little)


def quant() -> Device:
    """Return a device that supports only quantised operations, very slowly."""
    slow = Performance(50.0, 1.0)
    return Sample("sample-quant", stated(slow, slow, slow), takes_quantised)


def partial_() -> Device:
    """Return a device that supports a random half of the operations: NNHAL_SAMPLE_SEED selects it, "0" by default."""
    taken = chosen_by(os.environ.get(SEED, "0"))
    return Sample("sample-partial", Capabilities.uniform(0.9, 0.9), partial(takes_half, taken))
