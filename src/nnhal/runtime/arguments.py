"""The arguments of an execution: their specification, and checks of the application's arrays."""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnhal.base.answers import safe_repr
from nnhal.base.brief import short_repr, tensor
from nnhal.base.codes import (
    LOOP_TIMEOUT_DEFAULT_NS,
    LOOP_TIMEOUT_MAXIMUM_NS,
    OperandType,
    type_name,
)
from nnhal.base.errors import InvalidRequest
from nnhal.base.memory import Memory, address
from nnhal.base.names import printable
from nnhal.base.operands import Array, Shape, fixed
from nnhal.base.records import Record
from nnhal.base.time import nanoseconds, point_in_time
from nnhal.base.values import convert_argument
from nnhal.hal.request import Control, argument_of
from nnhal.hal.utilities import is_extension
from nnhal.model.graph import EdgeForm, Model
from nnhal.model.validate import optional_inputs
from nnhal.ops.schema import agree, show
from nnhal.runtime.allocation import Allocation
from nnhal.runtime.job import EdgeConversion, Job

AS_IS = EdgeForm()


class Spec(Record, frozen=True):
    """An input or output as the application sees it: name, shape (None: open), numpy element type.

    type: of the operand (an extension's is a number), or of the integers that the application has for its values. form:
    how the application's shape and element type differ.
    """

    name: str
    type: int
    shape: Shape | None
    dtype: np.dtype[Any]
    scale: float
    zero_point: int
    form: EdgeForm = AS_IS

    @property
    def kind(self) -> str:
        """The type's name."""
        return self.form.named(type_name(self.type))

    @property
    def fixed(self) -> tuple[int, ...] | None:
        """The shape if all of it is known, else None."""
        return fixed(self.shape)

    def __repr__(self) -> str:
        return short_repr("Spec", [tensor(self.name, self.kind, self.shape)])

    def __str__(self) -> str:
        quant = f" scale {self.scale:g} zero point {self.zero_point}" if self.scale else ""
        return f"{printable(self.name)}: {self.kind}{show(self.shape)}{quant}"


class ModelInterface:
    """The inputs and outputs of a model as an application sees them, without the model's states.

    given, kept: their places among all inputs and outputs of the main subgraph. plain: element type and shape of each
    input if calls can use the short path, else None. room: those of the output if there is one. alike: as in `Model`.
    """

    def __init__(self, model: Model) -> None:
        self._inputs, self._states = len(model.main.inputs), model.states
        carried = {s.input for s in model.states}, {s.output for s in model.states}
        specs = [spec_of(model, i) for i in model.main.inputs]
        self._results = [spec_of(model, i) for i in model.main.outputs]
        self._optional = optional_inputs(model)
        self.given = [i for i in range(len(specs)) if i not in carried[0]]
        self.kept = [i for i in range(len(self._results)) if i not in carried[1]]
        self.inputs = tuple(specs[i] for i in self.given)
        self.outputs = tuple(self._results[i] for i in self.kept)
        self._formed = {n: s for n, s in enumerate(specs) if s.form != AS_IS}
        self._formed_results = {n: s for n, s in enumerate(self._results) if s.form != AS_IS}
        self.alike = model.alike
        self.plain = None if model.states or model.edge or model.alike else [(s.dtype, s.shape) for s in specs]
        self.room = (self._results[0].dtype, self._results[0].shape) if len(self._results) == 1 else None

    def accept(self, inputs: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
        """Return the caller's inputs as arrays or allocations in the model's order; state inputs are open."""
        if isinstance(inputs, Mapping):
            inputs = self._by_name(inputs)
        if len(inputs) != len(self.inputs):
            wanted = ", ".join(str(spec) for spec in self.inputs)
            raise InvalidRequest(f"inputs: got {len(inputs)}, must be {len(self.inputs)}: {wanted}")
        arrays: list[Any] = [None] * self._inputs
        for place, (at, spec) in enumerate(zip(self.given, self.inputs, strict=True)):
            value = inputs[place]
            if value is None and at not in self._optional:
                raise InvalidRequest(f"input {place} ({spec.name}) is None, must be given")
            if value is not None:
                arrays[at] = value if isinstance(value, Allocation) else accept(value, spec, f"input {place}")
        if self.alike:
            self.require_alike(arrays)
        return arrays

    def inside(self, arrays: Sequence[Array]) -> list[Array]:
        """Return all inputs of the model in its types: the caller's arrays, and initial states."""
        found = {state.input: state.initial for state in self._states}
        for n, (at, spec) in enumerate(zip(self.given, self.inputs, strict=True)):
            found[at] = spec.form.inside(arrays[n], f"input {n} ({spec.name})")
        return [found[at] for at in range(self._inputs)]

    def require_alike(self, arrays: Sequence[Any]) -> None:
        """Raise InvalidRequest if dimensions of one name have several sizes, as far as inputs have contents."""
        for name, places in self.alike:
            sizes = [(at, axis, shape[axis]) for at, axis in places if (shape := getattr(arrays[at], "shape", None))]
            wrong = next((each for each in sizes if each[2] != sizes[0][2]), None)
            if wrong is not None:
                one, other = (f"{size} in dimension {axis} of input {at}" for at, axis, size in (sizes[0], wrong))
                raise InvalidRequest(f"inputs: {printable(name)!r} is {one} and {other}, must be one size")

    def require_magnitudes(self, read: Mapping[int, Allocation]) -> None:
        """Raise InvalidRequest if the contents of an input's allocation are greater than the model takes."""
        for at, spec in self._formed.items():
            if spec.form.most and at in read and read[at].shape is not None:
                spec.form.require_magnitude(read[at].read(), f"input {at} ({spec.name})")

    def _by_name(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Return named inputs in order; omitted optional ones are None."""
        specs = {spec.name: spec for spec in self.inputs}
        needed = [s.name for at, s in zip(self.given, self.inputs, strict=True) if at not in self._optional]
        wrong = [repr(k) for k in inputs if k not in specs] + [f"no {n!r}" for n in needed if n not in inputs]
        if wrong or len(specs) < len(self.inputs):
            names = ", ".join(repr(s.name) + ("" if s.name in needed else " (optional)") for s in self.inputs)
            raise InvalidRequest(f"inputs: {', '.join(wrong) or 'names are not unique'}, must be exactly {names}")
        return [inputs.get(spec.name) for spec in self.inputs]

    def place(self, out: Any) -> list[Any] | None:
        """Return the targets of outputs: the caller's arrays or allocations, None if there is none."""
        if out is None:
            return None
        rooms = [out] if isinstance(out, np.ndarray | Allocation | Memory) else out
        if not isinstance(rooms, list | tuple):
            raise InvalidRequest(f"out is {safe_repr(out)}, must be an array, an allocation, or a list of them")
        if len(rooms) != len(self.kept):
            raise InvalidRequest(f"out: got {len(rooms)} arrays, must be {len(self.kept)}")
        room: list[Any] = [None] * len(self._results)
        for place, (at, value) in enumerate(zip(self.kept, rooms, strict=True)):
            if value is not None:
                spec = self._results[at]
                room[at] = value if isinstance(value, Allocation) else writable(value, spec, f"out {place}")
        return room

    def job(self, inputs: Sequence[Any], out: Any) -> Job:
        """Return the job of one call, with initial states; allocations replace arrays."""
        named = len(inputs) == 1 and isinstance(inputs[0], Mapping)
        accepted = self.accept(inputs[0] if named else inputs)
        for state in self._states:
            accepted[state.input] = state.initial
        job = Job(accepted, self.place(out))
        job.named = named
        if job.rooms is not None:
            require_no_overlap(accepted, job.rooms)
        if self._formed:
            job.given, job.taken = _crossed(job.given, self._formed, "input")
        if self._formed_results and job.rooms is not None:
            job.rooms, job.left = _crossed(job.rooms, self._formed_results, "output")
        return job

    def results(self, job: Job) -> Any:
        """Return the application's results: its allocations, and arrays."""
        kept = [job.written.get(i, job.results[i]) for i in self.kept]
        if self._formed_results:
            for n, at in enumerate(self.kept):
                if at in job.left:
                    kept[n] = job.left[at].result(job.results[at])
                elif at in self._formed_results and at not in job.written:
                    kept[n] = self._formed_results[at].form.outside(job.results[at])
        if job.named:
            return {spec.name: array for spec, array in zip(self.outputs, kept, strict=True)}
        return kept[0] if len(kept) == 1 else tuple(kept)


def _crossed(
    arrays: Sequence[Any], formed: Mapping[int, Spec], what: str
) -> tuple[list[Any], dict[int, EdgeConversion]]:
    """Return the arguments in the model's types, and the conversions of those that differ."""
    found = {
        at: EdgeConversion(spec.form, arrays[at], f"{what} {at} ({spec.name})")
        for at, spec in formed.items()
        if isinstance(arrays[at], np.ndarray)
    }
    return [found[at].inner if at in found else x for at, x in enumerate(arrays)], found


def make_control(
    deadline: float | None, loop_timeout: float | None, measure: bool, cancelled: threading.Event | None = None
) -> Control:
    """Convert the API's durations, in seconds, to a Control."""
    point = point_in_time(deadline)
    loop = LOOP_TIMEOUT_DEFAULT_NS if loop_timeout is None else nanoseconds(loop_timeout, "loop_timeout")
    if loop is None or not 0 < loop <= LOOP_TIMEOUT_MAXIMUM_NS:
        raise InvalidRequest(f"loop_timeout is {loop_timeout} s, must be above 0 and at most 15 s")
    asked = None if point is None else time.monotonic_ns()
    return Control(point, loop, measure, cancelled, asked=asked)


def accept(value: Any, spec: Spec, label: str) -> Array:
    """Return a caller's input as a contiguous array of the operand's type. Only lists and numbers are converted."""
    if (
        type(value) is np.ndarray
        and value.dtype is spec.dtype
        and value.shape == spec.shape
        and value.flags.c_contiguous
    ):
        return value
    if isinstance(value, Memory):
        value = _whole(value, spec, label)
    value = convert_argument(value, spec.dtype, f"{label} ({spec.name})", InvalidRequest)
    if spec.shape is None and not value.shape:
        raise InvalidRequest(f"{label} ({spec.name}) is a number, must be a tensor of one dimension or more")
    if spec.shape is not None and not agree(value.shape, spec.shape):
        raise InvalidRequest(f"{label} ({spec.name}) has shape {show(value.shape)}, must be {show(spec.shape)}")
    return value if value.flags.c_contiguous else value.copy()


def writable(array: Any, spec: Spec, label: str) -> Array:
    """Check a caller's output array: of the type and shape, or bytes of at least the size."""
    if isinstance(array, Memory):
        array = _whole(array, spec, label)
    if not isinstance(array, np.ndarray) or not array.flags.writeable or not array.flags.c_contiguous:
        raise InvalidRequest(f"{label} ({spec.name}) must be a writable contiguous numpy array")
    if isinstance(array, np.ma.MaskedArray):  # a hard mask would suppress writes
        raise InvalidRequest(f"{label} ({spec.name}) is a masked array, must be one without a mask")
    if array.dtype not in (spec.dtype, np.uint8):
        raise InvalidRequest(
            f"{label} ({spec.name}) is {array.dtype}, must be {spec.dtype}, or uint8 for a buffer of bytes"
        )
    if array.dtype == spec.dtype and spec.shape is not None and not agree(array.shape, spec.shape):
        raise InvalidRequest(f"{label} ({spec.name}) has shape {show(array.shape)}, must be {show(spec.shape)}")
    return array


def _whole(memory: Memory, spec: Spec, label: str) -> Array:
    """Return a memory that holds exactly one value as an array; Unmappable if it is opaque."""
    known = spec.fixed
    if known is None:
        raise InvalidRequest(f"{label} ({spec.name}) is a memory, must be a view of it: its shape is not known")
    size = math.prod(known) * spec.dtype.itemsize
    if memory.size != max(1, size):
        raise InvalidRequest(
            f"{label} ({spec.name}) is a memory of {memory.size} bytes, must have {size}, or be a view"
        )
    return memory.view(0, size, spec.dtype, known)


def require_no_overlap(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raise InvalidRequest if an output array shares memory with another output or an input."""
    rooms = [(n, x) for n, x in enumerate(outputs) if isinstance(x, np.ndarray)]
    if not rooms:
        return
    read = [x for x in inputs if isinstance(x, np.ndarray)]
    if all(x.base is None for _, x in rooms) and all(x.base is None for x in read):  # none is a view of other memory
        seen = {id(x) for x in read}
        for place, array in rooms:
            if id(array) in seen:
                raise _overlapping(place)
            seen.add(id(array))
        return
    spans = [
        (start := address(x), start + x.nbytes, place) for place, x in [*((-1, x) for x in read), *rooms] if x.size
    ]
    # The furthest byte so far, and its argument: an output's place, -1 for an input; likewise of outputs.
    end = written = (0, -1)
    for start, stop, place in sorted(spans):
        last = end if place >= 0 else written
        if start < last[0]:
            raise _overlapping(max(place, last[1]))
        end = max(end, (stop, place))
        if place >= 0:
            written = max(written, (stop, place))


def _overlapping(place: int) -> InvalidRequest:
    return InvalidRequest(f"output {place} overlaps another output or an input, must lie apart from them")


def spec_of(model: Model, index: int) -> Spec:
    """Return the specification of operand `index` of the main subgraph."""
    operand = model.main.operands[index]
    _, dtype, shape = argument_of(model, index, "")
    form = model.edge.get(index, AS_IS)
    dtype, shape = form.dtype(dtype), () if form.scalar else shape
    kind = operand.type if is_extension(operand.type) else OperandType(operand.type)
    scale, kind = (form.scale, OperandType.TENSOR_QUANT16_SYMM) if form.scale else (operand.scale, kind)
    return Spec(operand.name or f"operand {index}", kind, shape, dtype, scale, operand.zero_point, form)
