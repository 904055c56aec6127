"""Determines which operations a device supports, by the worked example of each record."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from nnhal.base.codes import OperationType
from nnhal.base.errors import NnhalError
from nnhal.frontends.python import Builder
from nnhal.frontends.tensor import Tensor
from nnhal.hal.claims import query_verdicts
from nnhal.hal.device import Device, Verdict
from nnhal.model.graph import Model
from nnhal.ops import OPS
from nnhal.ops.schema import F32, Op, Stored, T


def probe(device: Device) -> dict[str, Verdict]:
    """Return a verdict for each operation that has an example without subgraphs; other shapes may have other verdicts."""
    verdicts = {}
    for name, model in _models():
        try:
            verdicts[name] = query_verdicts(device, model)[-1]
        except NnhalError as error:
            verdicts[name] = Verdict(False, str(error))
    return verdicts


_made: dict[str, Model] = {}


def _models() -> Iterator[tuple[str, Model]]:
    if not _made:
        for name, record in OPS.items():
            if name in OperationType.__members__ and record.example is not None and not record.example.code:
                _made[name] = example_model(record)
    yield from _made.items()


def example_model(record: Op) -> Model:
    """Return the example as a model of one operation, whose input is the first plain tensor."""
    assert record.example is not None
    b = Builder(record.name)
    inputs: list[Tensor] = []
    own = {a.name for form in record.forms for a in form if a.spec is T and a.many is None and F32 in record.types}
    arguments: dict[str, Any] = dict(record.example.arguments)
    for name, value in arguments.items():
        if isinstance(value, Stored):
            arguments[name] = b.constant(value.values, value.type, value.scale, value.zero_point)
    first = next((n for n, v in arguments.items() if n in own and _floats(v)), None)
    if first is not None:
        inputs.append(b.input(np.shape(arguments[first]), name=first))
        arguments[first] = inputs[0]
    outputs = b.operation(record.name, **arguments)
    return b.finish(inputs, [outputs] if isinstance(outputs, Tensor) else list(outputs))


def _floats(value: Any) -> bool:
    return isinstance(value, list) and np.asarray(value).dtype.kind in "fi"
