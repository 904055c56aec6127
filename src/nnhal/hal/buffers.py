"""Memory domains: memory of a driver's own, allocated for the roles it will play.

`HostBuffer` is what a driver has for nothing: an array in its process. `Buffer` is what the runtime sees of any.
"""

import itertools
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nnhal.base.codes import type_name
from nnhal.base.errors import InvalidArgument, OperationFailed, OutOfMemory
from nnhal.base.memory import Memory
from nnhal.base.operands import Array, ChannelQuant, dtype_of
from nnhal.hal.request import Control, Request, Timing
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
        """InvalidArgument where the buffer was not allocated for this use."""
        if not any(r.prepared is prepared and r.index == index and r.output == output for r in self.roles):
            roles = ", ".join(map(str, self.roles))
            use = "output" if output else "input"
            raise InvalidArgument(f"buffer {self.token} is used as {use} {index}, must be one of its roles: {roles}")

    @abstractmethod
    def copy_to(self, memory: Memory) -> None:
        """Copy the contents to a memory of exactly their size; OperationFailed while there are none."""

    @abstractmethod
    def copy_from(self, memory: Memory, dimensions: tuple[int, ...] = ()) -> None:
        """Take contents, with their dimensions where those of the buffer may change. InvalidArgument where they disagree."""

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
            raise InvalidArgument(
                f"buffer: {role} is {type_name(facts.type)} scale {facts.scale:g} zero point {facts.zero_point}, "
                f"must be as the first role: {type_name(found.type)} scale {found.scale:g} zero point {found.zero_point}"
            )
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
    return Facts(operand.type, operand.dimensions or None, operand.scale, operand.zero_point, operand.channel)


def _both(one: tuple[int, ...] | None, other: tuple[int, ...] | None, where: str) -> tuple[int, ...] | None:
    if one is None or other is None:
        return one if other is None else other
    if len(one) != len(other) or any(a and b and a != b for a, b in zip(one, other, strict=True)):
        raise InvalidArgument(f"buffer: dimensions {show(other)} of {where} must agree with {show(one)}")
    return tuple(a or b for a, b in zip(one, other, strict=True))


class HostBuffer(Buffer):
    """A buffer in ordinary memory. Any number of readers; writers at the same time leave undefined contents."""

    def __init__(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> None:
        super().__init__(desc, roles)
        self._dtype = dtype_of(self.facts.type)
        self._lock = threading.Lock()
        self._contents: Array | None = None
        self._room: Array | None = None
        if self.facts.fixed is not None:
            try:
                self._room = np.empty(self.facts.fixed, self._dtype)
            except MemoryError:
                size = math.prod(self.facts.fixed) * self._dtype.itemsize
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
            raise OperationFailed(f"buffer {self.token} has no contents yet, must be written or copied to first")
        return contents

    def room(self) -> Array | None:
        """Where an execution writes; None where the shape may change. The contents are gone from now on."""
        with self._lock:
            self._contents = None
            return self._room

    def store(self, array: Array) -> None:
        """Take what an execution wrote; InvalidArgument where its shape is not the buffer's."""
        if self.facts.dimensions is not None and not agree(
            array.shape, tuple(d or None for d in self.facts.dimensions)
        ):
            wanted = show(tuple(d or None for d in self.facts.dimensions))
            raise InvalidArgument(f"buffer {self.token} was given shape {show(array.shape)}, must be {wanted}")
        with self._lock:
            self._contents = array

    def copy_to(self, memory: Memory) -> None:
        """Copy the contents out."""
        contents = self.array()
        if memory.size != contents.nbytes:
            raise InvalidArgument(f"memory has {memory.size} bytes, must be the {contents.nbytes} of the contents")
        memory.writable()[:] = np.ascontiguousarray(contents).reshape(-1).view(np.uint8)

    def copy_from(self, memory: Memory, dimensions: tuple[int, ...] = ()) -> None:
        """Copy contents in."""
        shape = _both(self.facts.dimensions, dimensions or None, "the contents")
        if shape is None or 0 in shape:
            raise InvalidArgument(f"buffer {self.token}: dimensions {show(shape)} must all be given")
        size = math.prod(shape) * self._dtype.itemsize
        if memory.size != size:
            raise InvalidArgument(f"memory has {memory.size} bytes, must be the {size} of shape {show(shape)}")
        contents = np.array(memory.bytes()).view(self._dtype).reshape(shape)
        with self._lock:
            if self._room is not None and self._room.shape == shape:
                self._room[...] = contents
                contents = self._room
            self._contents = contents

    def close(self) -> None:
        """Drop the array."""
        self._contents = self._room = None


def run_resolved(prepared: "Prepared", request: Request, control: Control) -> Timing | None:
    """`prepared.run` with host buffers as arrays; checks roles, and keeps the buffers' state by the contract."""
    if not request.input_buffers and not request.output_buffers:
        return prepared.run(request, control)
    for index, buffer in request.input_buffers.items():
        buffer.check_role(prepared, index, False)
    for index, buffer in request.output_buffers.items():
        buffer.check_role(prepared, index, True)
        if any(buffer is other for other in request.input_buffers.values()):
            raise InvalidArgument(f"buffer {buffer.token} is input and output of one execution, must be one of them")
    if len({id(b) for b in request.output_buffers.values()}) < len(request.output_buffers):
        raise InvalidArgument("a buffer is given for two outputs, must be given for one")
    inputs = list(request.inputs)
    for index, buffer in request.input_buffers.items():
        inputs[index] = buffer.array() if isinstance(buffer, HostBuffer) else None
    hosted = {i: b for i, b in request.output_buffers.items() if isinstance(b, HostBuffer)}
    outputs = [hosted[i].room() if i in hosted else x for i, x in enumerate(request.outputs)]
    inner = Request(
        inputs,
        outputs,
        input_buffers={i: b for i, b in request.input_buffers.items() if not isinstance(b, HostBuffer)},
        output_buffers={i: b for i, b in request.output_buffers.items() if i not in hosted},
    )
    timing = prepared.run(inner, control)
    request.shapes[:], request.sufficient[:] = inner.shapes, inner.sufficient
    for index, array in enumerate(inner.outputs):
        if index not in hosted:
            request.outputs[index] = array
        elif array is not None and (not inner.sufficient or inner.sufficient[index]):
            hosted[index].store(array)
    return timing
