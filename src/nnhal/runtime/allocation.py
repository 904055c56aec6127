"""Memory domains at the API: memory of a driver's own for the inputs and outputs it is named for.

Where no driver grants it, it is a shared pool, with the reason: everything works, only the bytes move.
"""

import math
import os
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.answers import shown
from nnhal.base.brief import brief, named, tensor
from nnhal.base.errors import Closed, DeadObject, InvalidArgument, InvalidRequest, NnhalError, OperationFailed
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.base.operands import Array, dtype_of
from nnhal.base.uncopied import Uncopied
from nnhal.base.values import dimensions as checked
from nnhal.base.values import given
from nnhal.hal.device import allocated_by, identity_of
from nnhal.hal.host import HostBuffer, contents_of, fill
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole, merge
from nnhal.hal.request import Of
from nnhal.hal.utilities import is_extension, size_of_data
from nnhal.runtime.compilation import Plan

_log = logger("memory")


class PoolBuffer(HostBuffer):
    """A buffer in shared memory of the runtime's, which every driver can map."""

    def make(self, shape: tuple[int, ...]) -> Array:
        """A view of a pool."""
        count = math.prod(shape)
        self._pool = Memory.allocate(max(1, count * self.dtype.itemsize), "nnhal-buffer")
        return self._pool.view(0, count * self.dtype.itemsize, self.dtype, shape)


class Allocation(Uncopied, instead="`read` gives a copy of its contents"):
    """Memory for the inputs and outputs that it was allocated for; give it in place of an array, as input or `out`.

    It has contents after `write`, `copy_from` or an execution that wrote it; an execution that fails leaves it without.
    device: whose memory it is; None for a shared pool. reason: why it is a pool, "" otherwise.
    """

    def __init__(self, buffer: Buffer, roles: Sequence[BufferRole], device: str | None, reason: str) -> None:
        self._buffer, self._roles, self.device, self.reason = buffer, tuple(roles), device, reason
        self._host = buffer if isinstance(buffer, HostBuffer) else None  # in ordinary memory
        self._uses = {(id(r.prepared), r.output, r.index) for r in roles}
        self._spoiled, self._closed = False, ""  # why it cannot be used any more
        self._writer: object = None  # who began last to give it contents
        _alive.add(self)

    @property
    def token(self) -> int:
        """Its number in this process, never 0."""
        return self._buffer.token

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of the contents, None while there are none."""
        return None if self._spoiled else self._open().shape

    def read(self) -> Array:
        """A copy of the contents; OperationFailed while there are none."""
        self._check_contents()
        return contents_of(self._open())

    def write(self, array: Any) -> None:
        """Give it contents; InvalidArgument where type or shape are not those of its roles."""
        dtype = dtype_of(self._buffer.facts.type)
        if type(array) is not np.ndarray or array.dtype != dtype:
            array = given(array, dtype, f"{self}: what is written")
        self._writer = None
        fill(self._open(), array)
        self._spoiled = False

    def copy_to(self, memory: Memory) -> None:
        """Copy the contents to a memory of exactly their size; OperationFailed while there are none."""
        self._check_contents()
        self._open().copy_to(_memory(memory))

    def copy_from(self, memory: Memory, dimensions: Sequence[int] = ()) -> None:
        """Take contents, with their dimensions where those of the buffer may change; as `Buffer.copy_from`."""
        memory, dimensions = _memory(memory), checked(dimensions, f"{self}: dimensions")
        self._writer = None
        self._open().copy_from(memory, dimensions)
        self._spoiled = False

    def close(self) -> None:
        """Give the memory back; later uses raise Closed."""
        self._closed = self._closed or "used after close"
        self._buffer.close()

    def _check_use(self, whole: Of, output: bool, place: int) -> None:
        """InvalidRequest where it was not allocated for input or output `place` of a compiled model as a whole."""
        if (id(whole), output, place) not in self._uses:
            use, roles = "output" if output else "input", ", ".join(map(str, self._roles))
            name = whole.model.name or "this model"
            raise InvalidRequest(f"{self}: is used as {use} {place} of {name}, must be one of its roles: {roles}")
        if not output:
            self._check_contents()

    def _begin(self, writer: object) -> None:
        """An execution that will write it begins: from now on its buffer knows whether it has contents."""
        self._writer, self._spoiled = writer, False

    def _wrote(self, writer: object, success: bool) -> None:
        """What became of the execution that was to write it; nothing where another has begun since."""
        if self._writer is writer:
            self._spoiled = not success

    def _open(self) -> Buffer:
        """The driver's buffer, or that in a pool; Closed after `close`, and in a forked child."""
        if self._closed:
            raise Closed(f"{self}: {self._closed}")
        return self._buffer

    def _check_contents(self) -> None:
        """OperationFailed where an execution that was to write it failed."""
        if self._spoiled:
            raise OperationFailed(
                f"{self}: has no contents since an execution that was to write it failed; write it again"
            )

    def __repr__(self) -> str:  # without the shape of the contents, which another process may have to be asked for
        facts, state = self._buffer.facts, "closed" if self._closed else "no contents" if self._spoiled else "open"
        dims = None if facts.dimensions is None else [d or None for d in facts.dimensions]
        where = named(self.device)[1:-1] if self.device is not None else "a shared pool"
        words = f"Allocation {self._buffer.token} on {where}, {tensor('', facts.type, dims)}, {state}"
        return brief(words, map(str, self._roles))

    def __str__(self) -> str:
        where = f"on {self.device}" if self.device is not None else "in a shared pool"
        return f"buffer {self._buffer.token} {where}"


_alive: "weakref.WeakSet[Allocation]" = weakref.WeakSet()


def _after_fork() -> None:
    for allocation in list(_alive):
        allocation._closed = "it was allocated before this process was forked, and is the other's"


os.register_at_fork(after_in_child=_after_fork)


def _memory(memory: Any) -> Memory:
    if not isinstance(memory, Memory):
        raise InvalidArgument(f"memory is {shown(memory)}, must be a nnhal.Memory")
    return memory


class Use(NamedTuple):
    """One use of an allocation: input or output `place` among all of the main subgraph of a compiled model."""

    whole: Of
    plan: Plan
    output: bool
    place: int
    frequency: float = 1.0


def allocate_for(uses: Sequence[Use], shape: Sequence[int] | None = None) -> Allocation:
    """Memory for these uses, of the one device that all of them lie on, or a shared pool."""
    desc = BufferDesc(() if shape is None else checked(shape, "allocate: shape"))
    whole, parts, devices = [], [], {}
    for prepared, plan, output, place, frequency in uses:
        whole.append(BufferRole(prepared, place, output, frequency))
        main = plan.model.main
        operand = (main.outputs if output else main.inputs)[place]
        for step in plan.steps:
            if operand in step.part.inputs:
                parts.append(BufferRole(step.prepared, step.part.inputs.index(operand), False, frequency))
                devices[id(step.device)] = step.device
            if operand in step.part.outputs:
                parts.append(BufferRole(step.prepared, step.part.outputs.index(operand), True, frequency))
                devices[id(step.device)] = step.device
    facts = merge(desc, whole)
    if not is_extension(facts.type):
        size_of_data(facts.type, facts.fixed or ())
    if len(devices) == 1:
        (device,) = devices.values()
        try:
            try:
                buffer = allocated_by(device, desc, parts)
            except DeadObject:  # the first to notice a death; the next use starts the process again
                buffer = allocated_by(device, desc, parts)
            return Allocation(buffer, whole, identity_of(device).name, "")
        except NnhalError as error:
            name = identity_of(device).name
            reason = f"{name} refused: {str(error).removeprefix(f'device {name}: ')}"
    elif devices:
        reason = (
            f"the roles lie on {' and '.join(identity_of(d).name for d in devices.values())}, must be on one device"
        )
    else:
        reason = "no operation reads it"
    _log.info("buffer for %s in a shared pool: %s", ", ".join(map(str, whole)), reason)
    return Allocation(PoolBuffer(desc, [*whole, *parts]), whole, None, reason)
