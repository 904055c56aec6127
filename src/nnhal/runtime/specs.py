"""The edge of an execution: what inputs and outputs must be, and checks of what the application gives."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnhal.base.codes import LOOP_TIMEOUT_DEFAULT_NS, LOOP_TIMEOUT_MAXIMUM_NS, OperandType, type_name
from nnhal.base.errors import InvalidRequest
from nnhal.base.operands import Array, Shape, dtype_of
from nnhal.hal.request import Control
from nnhal.model.graph import Model
from nnhal.model.validate import validate
from nnhal.ops.schema import agree, show


@dataclass(frozen=True)
class Spec:
    """An input or output: name, operand type, shape (None in it: free), numpy element type, quantisation."""

    name: str
    type: OperandType
    shape: Shape | None
    dtype: np.dtype[Any]
    scale: float
    zero_point: int

    def __str__(self) -> str:
        quant = f" scale {self.scale:g} zero point {self.zero_point}" if self.scale else ""
        return f"{self.name}: {type_name(self.type)}{show(self.shape)}{quant}"


def make_control(deadline: float | None, loop_timeout: float | None, measure: bool) -> Control:
    """Durations of the API, in seconds, as a Control; made once, at the edge."""
    point = None if deadline is None else time.monotonic_ns() + int(deadline * 1e9)
    loop = LOOP_TIMEOUT_DEFAULT_NS if loop_timeout is None else int(loop_timeout * 1e9)
    if not 0 < loop <= LOOP_TIMEOUT_MAXIMUM_NS:
        raise InvalidRequest(f"loop_timeout is {loop_timeout} s, must be above 0 and at most 15 s")
    return Control(point, loop, measure)


def accept(value: Any, spec: Spec, label: str) -> Array:
    """A caller's input as a contiguous array of the operand's type; lists and numbers are converted, arrays never are."""
    if not isinstance(value, np.ndarray):
        try:
            value = np.asarray(value, spec.dtype)
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidRequest(f"{label} ({spec.name}): {error}; must be an array of {spec.dtype}") from None
    if value.dtype != spec.dtype:
        raise InvalidRequest(f"{label} ({spec.name}) is {value.dtype}, must be {spec.dtype}")
    if spec.shape is not None and not agree(value.shape, spec.shape):
        raise InvalidRequest(f"{label} ({spec.name}) has shape {show(value.shape)}, must be {show(spec.shape)}")
    return value if value.flags.c_contiguous else value.copy()


def writable(array: Any, spec: Spec, label: str) -> Array:
    """A caller\'s output array, checked: of the type and shape, or bytes that give the room."""
    if not isinstance(array, np.ndarray) or not array.flags.writeable or not array.flags.c_contiguous:
        raise InvalidRequest(f"{label} ({spec.name}) must be a writable contiguous numpy array")
    if array.dtype not in (spec.dtype, np.uint8):
        raise InvalidRequest(
            f"{label} ({spec.name}) is {array.dtype}, must be {spec.dtype}, or uint8 for room in bytes"
        )
    if array.dtype == spec.dtype and spec.shape is not None and not agree(array.shape, spec.shape):
        raise InvalidRequest(f"{label} ({spec.name}) has shape {show(array.shape)}, must be {show(spec.shape)}")
    return array


def no_overlap(inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
    """InvalidRequest where an output shares memory with another output or an input."""
    given = [x for x in outputs if x is not None]
    for place, one in enumerate(given):
        for other in [*given[:place], *(x for x in inputs if x is not None)]:
            if np.may_share_memory(one, other):
                raise InvalidRequest(f"output {place} overlaps another output or an input, must lie apart from them")


def spec_of(model: Model, index: int) -> Spec:
    """What an application may know of main operand `index`."""
    operand = model.main.operands[index]
    value = validate(model).subgraphs[0].values[index]
    shape = value.shape if value is not None else None
    kind = OperandType(operand.type)
    name = operand.name or f"operand {index}"
    return Spec(name, kind, shape, dtype_of(operand.type), operand.scale, operand.zero_point)
