"""The edge of an execution: what inputs and outputs must be, and checks of what the application gives."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnhal.base.codes import LOOP_TIMEOUT_DEFAULT_NS, LOOP_TIMEOUT_MAXIMUM_NS, OperandType, type_name
from nnhal.base.errors import InvalidRequest
from nnhal.base.memory import Memory
from nnhal.base.operands import Array, Shape, dtype_of
from nnhal.hal.request import Control
from nnhal.model.graph import Model
from nnhal.model.validate import validate
from nnhal.ops.schema import agree, show
from nnhal.runtime.domains import Allocation


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


class Edge:
    """Inputs and outputs of a model as an application gives and gets them; the states that a model carries are left out.

    given, kept: their places among all inputs and outputs of the main subgraph. plain: element type and shape of each input
    where a call may be as short as that, None otherwise.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        carried = {s.input for s in model.states}, {s.output for s in model.states}
        specs = [spec_of(model, i) for i in model.main.inputs]
        self._results = [spec_of(model, i) for i in model.main.outputs]
        self.given = [i for i in range(len(specs)) if i not in carried[0]]
        self.kept = [i for i in range(len(self._results)) if i not in carried[1]]
        self.inputs = tuple(specs[i] for i in self.given)
        self.outputs = tuple(self._results[i] for i in self.kept)
        self.fresh: list[Any] = [
            None if s.shape is None or None in s.shape else (s.shape, s.dtype) for s in self._results
        ]
        simple = not model.states and None not in self.fresh
        self.plain: list[tuple[Any, Any]] | None = None
        if simple and not any(s.shape is None or None in s.shape for s in specs):
            self.plain = [(s.dtype, s.shape) for s in specs]

    def accept(self, inputs: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
        """The caller's inputs as arrays or allocations in the model's order, state inputs left open."""
        if isinstance(inputs, Mapping):
            names = [spec.name for spec in self.inputs]
            wrong = [repr(k) for k in inputs if k not in names] + [f"no {n!r}" for n in names if n not in inputs]
            if wrong:
                raise InvalidRequest(f"inputs: {', '.join(wrong)}, must be exactly {', '.join(map(repr, names))}")
            inputs = [inputs[name] for name in names]
        if len(inputs) != len(self.inputs):
            wanted = ", ".join(str(spec) for spec in self.inputs)
            raise InvalidRequest(f"inputs: got {len(inputs)}, must be {len(self.inputs)}: {wanted}")
        arrays: list[Any] = [None] * len(self.model.main.inputs)
        for place, (at, spec) in enumerate(zip(self.given, self.inputs, strict=True)):
            value = inputs[place]
            arrays[at] = value if isinstance(value, Allocation) else accept(value, spec, f"input {place}")
        return arrays

    def place(self, out: Any) -> list[Any]:
        """Where outputs go: fresh arrays where the shape is known, the caller's arrays or allocations where given."""
        if out is None:
            return [None if f is None else np.empty(*f) for f in self.fresh]
        given = [out] if isinstance(out, np.ndarray | Allocation | Memory) else list(out)
        if len(given) != len(self.kept):
            raise InvalidRequest(f"out: got {len(given)} arrays, must be {len(self.kept)}")
        room: list[Any] = [None] * len(self.fresh)
        for place, (at, value) in enumerate(zip(self.kept, given, strict=True)):
            if value is not None:
                spec = self._results[at]
                room[at] = value if isinstance(value, Allocation) else writable(value, spec, f"out {place}")
        return [np.empty(*f) if x is None and f is not None else x for x, f in zip(room, self.fresh, strict=True)]

    def take(self, inputs: Sequence[Any], out: Any) -> tuple[list[Any], list[Any], bool]:
        """Inputs and outputs of one call in the model's order, states at their initial values; whether it was a mapping."""
        named = len(inputs) == 1 and isinstance(inputs[0], Mapping)
        arrays, outputs = self.accept(inputs[0] if named else inputs), self.place(out)
        for state in self.model.states:
            arrays[state.input] = state.initial
        no_overlap(arrays, outputs)
        return arrays, outputs, named

    def results(self, outputs: Sequence[Any], named: bool) -> Any:
        """What the application gets."""
        kept = [outputs[i] for i in self.kept]
        if named:
            return {spec.name: array for spec, array in zip(self.outputs, kept, strict=True)}
        return kept[0] if len(kept) == 1 else tuple(kept)


def make_control(deadline: float | None, loop_timeout: float | None, measure: bool) -> Control:
    """Durations of the API, in seconds, as a Control; made once, at the edge."""
    point = None if deadline is None else time.monotonic_ns() + int(deadline * 1e9)
    loop = LOOP_TIMEOUT_DEFAULT_NS if loop_timeout is None else int(loop_timeout * 1e9)
    if not 0 < loop <= LOOP_TIMEOUT_MAXIMUM_NS:
        raise InvalidRequest(f"loop_timeout is {loop_timeout} s, must be above 0 and at most 15 s")
    return Control(point, loop, measure)


def accept(value: Any, spec: Spec, label: str) -> Array:
    """A caller's input as a contiguous array of the operand's type; lists and numbers are converted, arrays never are."""
    if isinstance(value, Memory):
        value = _whole(value, spec, label)
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
    """A caller's output array, checked: of the type and shape, or bytes that give the room."""
    if isinstance(array, Memory):
        array = _whole(array, spec, label)
    if not isinstance(array, np.ndarray) or not array.flags.writeable or not array.flags.c_contiguous:
        raise InvalidRequest(f"{label} ({spec.name}) must be a writable contiguous numpy array")
    if array.dtype not in (spec.dtype, np.uint8):
        raise InvalidRequest(
            f"{label} ({spec.name}) is {array.dtype}, must be {spec.dtype}, or uint8 for room in bytes"
        )
    if array.dtype == spec.dtype and spec.shape is not None and not agree(array.shape, spec.shape):
        raise InvalidRequest(f"{label} ({spec.name}) has shape {show(array.shape)}, must be {show(spec.shape)}")
    return array


def _whole(memory: Memory, spec: Spec, label: str) -> Array:
    """A memory that holds exactly one value, as an array over it; Unmappable where it is opaque."""
    if spec.shape is None or None in spec.shape:
        raise InvalidRequest(f"{label} ({spec.name}) is a memory, must be a view of it: its shape is not known")
    known = tuple(d or 0 for d in spec.shape)
    size = math.prod(known) * spec.dtype.itemsize
    if memory.size != max(1, size):
        raise InvalidRequest(
            f"{label} ({spec.name}) is a memory of {memory.size} bytes, must have {size}, or be a view"
        )
    return memory.view(0, size, spec.dtype, known)


def no_overlap(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """InvalidRequest where an output array shares memory with another output or an input."""
    given = [x for x in outputs if isinstance(x, np.ndarray)]
    for place, one in enumerate(given):
        for other in [*given[:place], *(x for x in inputs if isinstance(x, np.ndarray))]:
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
