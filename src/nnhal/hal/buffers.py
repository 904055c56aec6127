"""Memory domains: memory of a driver's own, allocated for the roles it will play.

`HostBuffer` is what a driver has for nothing: an array in its process. `Buffer` is what the runtime sees of any.
"""

import itertools
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nnhal.base.codes import type_name
from nnhal.base.errors import Closed, InvalidArgument, InvalidRequest, OperationFailed, OutOfMemory
from nnhal.base.memory import Memory
from nnhal.base.operands import Array, ChannelQuant, dtype_of, is_tensor
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.validate import validate
from nnhal.ops.schema import agree, show

if TYPE_CHECKING:
    from nnhal.hal.device import Prepared


class BufferDesc(NamedTuple):
    """What a buffer must be: dimensions, 0 for one that is not said; () where even the rank is not."""

    dimensions: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class BufferRole:
    """One use of a buffer: input or output `index` of a prepared model. frequency: how often, above 0 to 1."""

    prepared: "Prepared"
    index: int
    output: bool = False
    frequency: float = 1.0

    def __str__(self) -> str:
        return f"{'output' if self.output else 'input'} {self.index}"


class Facts(NamedTuple):
    """What all roles together say of a buffer; a dimension of 0 changes from use to use, as does the rank of None."""

    type: int
    dimensions: tuple[int, ...] | None
    scale: float
    zero_point: int
    channel: ChannelQuant | None

    @property
    def stored(self) -> str:
        """How elements are stored, for messages."""
        if self.channel is not None:
            return f"{type_name(self.type)} scales {list(self.channel.scales)} along axis {self.channel.axis}"
        return f"{type_name(self.type)} scale {self.scale:g} zero point {self.zero_point}"

    @property
    def fixed(self) -> tuple[int, ...] | None:
        """The dimensions, None where any may change."""
        return self.dimensions if self.dimensions is not None and 0 not in self.dimensions else None


_tokens = itertools.count(1)


class Buffer(ABC):
    """A buffer of a driver. token: names it in this process; 0 is never one."""

    def __init__(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> None:
        self.facts = merge(desc, roles)
        self.roles = tuple(roles)
        self.token = next(_tokens)

    def check_role(self, prepared: "Prepared", index: int, output: bool) -> None:
        """InvalidRequest where the buffer was not allocated for this use."""
        if not any(r.prepared is prepared and r.index == index and r.output == output for r in self.roles):
            roles = ", ".join(map(str, self.roles))
            use = "output" if output else "input"
            raise InvalidRequest(f"buffer {self.token} is used as {use} {index}, must be one of its roles: {roles}")

    @abstractmethod
    def copy_to(self, memory: Memory) -> None:
        """Copy the contents to a memory of exactly their size; OperationFailed while there are none."""

    @abstractmethod
    def copy_from(self, memory: Memory, dimensions: tuple[int, ...] = ()) -> None:
        """Take contents, with their dimensions where those of the buffer may change. InvalidArgument where they disagree.

        A copy that fails leaves the buffer without contents.
        """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...] | None:
        """Shape of the contents, None while there are none."""

    def close(self) -> None:
        """Give the memory back."""


def merge(desc: BufferDesc, roles: Sequence[BufferRole]) -> Facts:
    """One description out of all roles and the dimensions asked for; InvalidArgument where they contradict each other."""
    if not roles:
        raise InvalidArgument("buffer: no role is given, must be at least one")
    found: Facts | None = None
    for role in roles:
        facts = _facts_of(role)
        if found is None:
            found = facts
        elif found._replace(dimensions=None) != facts._replace(dimensions=None):
            raise InvalidArgument(f"buffer: {role} is {facts.stored}, must be as the first role: {found.stored}")
        else:
            found = found._replace(dimensions=_both(found.dimensions, facts.dimensions, str(role)))
    if len({(id(r.prepared), r.index, r.output) for r in roles}) < len(roles):
        raise InvalidArgument("buffer: a role is given twice, must be given once")
    assert found is not None
    return found._replace(dimensions=_both(found.dimensions, desc.dimensions or None, "the description"))


def _facts_of(role: BufferRole) -> Facts:
    main = role.prepared.model.main
    places = main.outputs if role.output else main.inputs
    if not 0 <= role.index < len(places):
        raise InvalidArgument(f"buffer: {role} is not there, the model has {len(places)}")
    if not 0 < role.frequency <= 1:
        raise InvalidArgument(f"buffer: frequency of {role} is {role.frequency}, must be above 0 and at most 1")
    operand = main.operands[places[role.index]]
    value = validate(role.prepared.model).subgraphs[0].values[places[role.index]]
    dimensions: tuple[int, ...] | None = operand.dimensions
    if value is not None and value.shape is not None:  # what validation inferred says more
        dimensions = tuple(d or 0 for d in value.shape)
    elif not dimensions and is_tensor(operand.type):
        dimensions = None
    return Facts(operand.type, dimensions, operand.scale, operand.zero_point, operand.channel)


def _both(one: tuple[int, ...] | None, other: tuple[int, ...] | None, where: str) -> tuple[int, ...] | None:
    if other is not None and any(d < 0 for d in other):
        raise InvalidArgument(f"buffer: dimensions {show(other)} of {where} must all be at least 0")
    if one is None or other is None:
        return one if other is None else other
    if len(one) != len(other) or any(a and b and a != b for a, b in zip(one, other, strict=True)):
        raise InvalidArgument(f"buffer: dimensions {show(other)} of {where} must agree with {show(one)}")
    return tuple(a or b for a, b in zip(one, other, strict=True))


class HostBuffer(Buffer):
    """A buffer in ordinary memory. Any number of readers; writers at the same time leave undefined contents."""

    def __init__(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> None:
        super().__init__(desc, roles)
        self.dtype = dtype_of(self.facts.type)
        self._lock = threading.Lock()
        self._closed = False
        self._contents: Array | None = None
        self._room = None if self.facts.fixed is None else self.make(self.facts.fixed)

    def make(self, shape: tuple[int, ...]) -> Array:
        """An array for contents of this shape; OutOfMemory where there is none."""
        try:
            return np.empty(shape, self.dtype)
        except (MemoryError, ValueError):  # numpy has a limit of its own
            size = math.prod(shape) * self.dtype.itemsize
            raise OutOfMemory(f"buffer: {size} bytes could not be allocated") from None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of the contents, None while there are none."""
        contents = self._contents
        return None if contents is None else contents.shape

    def array(self) -> Array:
        """The contents; OperationFailed while there are none."""
        contents = self._contents
        if contents is None:
            if self._closed:
                raise Closed(f"buffer {self.token}: used after close")
            raise OperationFailed(f"buffer {self.token} has no contents, must be written or copied to first")
        return contents

    def room(self) -> Array | None:
        """Where an execution writes; None where the shape may change. The contents are gone from now on."""
        with self._lock:
            if self._closed:
                raise Closed(f"buffer {self.token}: used after close")
            self._contents = None
            return self._room

    def discard(self) -> None:
        """The contents are gone: what was to write them failed."""
        with self._lock:
            self._contents = None

    def store(self, array: Array) -> None:
        """Take what an execution wrote; InvalidRequest where its shape is not the buffer's."""
        wanted = None if self.facts.dimensions is None else tuple(d or None for d in self.facts.dimensions)
        if wanted is not None and not agree(array.shape, wanted):
            raise InvalidRequest(f"buffer {self.token} was given shape {show(array.shape)}, must be {show(wanted)}")
        with self._lock:
            self._contents = None if self._closed else array

    def copy_to(self, memory: Memory) -> None:
        """Copy the contents out."""
        contents = self.array()
        target = memory.writable()
        if memory.size != max(1, contents.nbytes):  # no memory is empty
            raise InvalidArgument(f"memory has {memory.size} bytes, must be the {contents.nbytes} of the contents")
        target[: contents.nbytes] = np.ascontiguousarray(contents).reshape(-1).view(np.uint8)

    def copy_from(self, memory: Memory, dimensions: tuple[int, ...] = ()) -> None:
        """Copy contents in."""
        room = self.room()
        shape = self.shape_of_copy(dimensions)
        size = math.prod(shape) * self.dtype.itemsize
        source = memory.bytes()
        if memory.size != max(1, size):
            raise InvalidArgument(f"memory has {memory.size} bytes, must be the {size} of shape {show(shape)}")
        target = self.make(shape) if room is None else room
        np.copyto(target.reshape(-1).view(np.uint8), source[:size])
        self.store(target)

    def shape_of_copy(self, dimensions: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of contents that are said to have these dimensions, () for those of the buffer."""
        shape = _both(self.facts.dimensions, dimensions or None, "the contents")
        if shape is None or (0 in shape and shape != dimensions):
            raise InvalidArgument(f"buffer {self.token}: dimensions {show(shape)} of the contents must all be given")
        return shape

    def close(self) -> None:
        """Drop the array."""
        with self._lock:
            self._closed = True
            self._contents = self._room = None


Run = Callable[[Request, Control], Timing | None]


def run_resolved(prepared: "Prepared", request: Request, control: Control, run: "Run | None" = None) -> Timing | None:
    """`prepared.run` (or another `run` of the same model) with host buffers as arrays.

    Checks the use of each buffer, InvalidRequest, before anything happens; keeps the state of host buffers by the contract:
    what was to be written by an execution that failed has no contents.
    """
    run = run or prepared.run
    if not request.input_buffers and not request.output_buffers:
        return run(request, control)
    check_use(prepared, request)
    hosted = {i: b for i, b in request.output_buffers.items() if isinstance(b, HostBuffer)}
    try:
        inputs = list(request.inputs)
        for index, buffer in request.input_buffers.items():
            inputs[index] = buffer.array() if isinstance(buffer, HostBuffer) else None
        inner = Request(
            inputs,
            [hosted[i].room() if i in hosted else x for i, x in enumerate(request.outputs)],
            input_buffers={i: b for i, b in request.input_buffers.items() if not isinstance(b, HostBuffer)},
            output_buffers={i: b for i, b in request.output_buffers.items() if i not in hosted},
        )
        timing = run(inner, control)
        request.shapes[:], request.sufficient[:] = inner.shapes, inner.sufficient
        _store(inner, hosted)
    except BaseException:
        for host in hosted.values():
            host.discard()
        raise
    for index, array in enumerate(inner.outputs):
        if index not in hosted:
            request.outputs[index] = array
    return timing


def check_use(prepared: "Prepared", request: Request) -> None:
    """InvalidRequest where a buffer of the request is used for what it may not be."""
    for index, buffer in request.input_buffers.items():
        buffer.check_role(prepared, index, False)
    for index, buffer in request.output_buffers.items():
        buffer.check_role(prepared, index, True)
        if any(buffer is other for other in request.input_buffers.values()):
            raise InvalidRequest(f"buffer {buffer.token} is input and output of one execution, must be one of them")
    if len({id(b) for b in request.output_buffers.values()}) < len(request.output_buffers):
        raise InvalidRequest("a buffer is given for two outputs, must be given for one")


def _store(request: Request, hosted: "dict[int, HostBuffer]") -> None:
    """Give host buffers what an execution wrote; none of them where an output did not fit."""
    if request.sufficient and not all(request.sufficient):
        for buffer in hosted.values():
            buffer.discard()
        return
    for index, buffer in hosted.items():
        array = request.outputs[index]
        if array is None:
            raise OperationFailed(f"driver: gave no value to output {index}, must write all of them")
        written = request.shapes[index] if index < len(request.shapes) else None
        if written is not None and written != array.shape:
            shape = show(written)
            raise InvalidRequest(f"buffer {buffer.token} was given shape {shape}, must be {show(array.shape)}")
        buffer.store(array)


def contents_of(buffer: Buffer) -> Array:
    """A copy of what any buffer holds, as an array; OperationFailed while there is nothing."""
    shape = buffer.shape
    if shape is None:
        raise OperationFailed(f"buffer {buffer.token} has no contents, must be written or copied to first")
    dtype = dtype_of(buffer.facts.type)
    size = math.prod(shape) * dtype.itemsize
    memory = Memory.allocate(max(1, size), "nnhal-copy")
    buffer.copy_to(memory)
    return memory.view(0, size, dtype, shape)


def fill(buffer: Buffer, array: Array) -> None:
    """Give any buffer contents."""
    buffer.copy_from(Memory.from_array(array), array.shape)
