"""Memory domains of the API: driver memory for inputs and outputs.

If no driver grants it, the memory is a shared pool, with the reason. Everything works then, but data is copied.
"""

import math
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nnhal.base.answers import safe_repr
from nnhal.base.brief import quoted_name, short_repr, tensor
from nnhal.base.errors import Closed, DeadObject, InvalidArgument, InvalidRequest, NnhalError, OperationFailed
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.base.operands import Array, dtype_of
from nnhal.base.threads import held_lock
from nnhal.base.uncopied import NotCopyable
from nnhal.base.values import convert_argument
from nnhal.base.values import dimensions as checked
from nnhal.hal.answers import allocated_by
from nnhal.hal.device import identity_of
from nnhal.hal.host import HostBuffer, contents_of, fill
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole, merge
from nnhal.hal.request import BelongsToModel
from nnhal.hal.utilities import is_extension, size_of_data
from nnhal.runtime.compilation import Plan

_log = logger("memory")


class PoolBuffer(HostBuffer):
    """A buffer in a shared memory of the runtime, which every driver can map."""

    def make(self, shape: tuple[int, ...]) -> Array:
        """Allocate a shared memory, and return a view of it."""
        count = math.prod(shape)
        self._pool = Memory.allocate(max(1, count * self.dtype.itemsize), "nnhal-buffer")
        return self._pool.view(0, count * self.dtype.itemsize, self.dtype, shape)


class Allocation(NotCopyable, instead="`read` gives a copy of its contents"):
    """Memory for the inputs and outputs that it was allocated for. Pass it in place of an array, as input or `out`.

    It has contents after `write`, `copy_from` or an execution that wrote it. An execution that fails leaves it without.
    So does the death of the driver's process, which held the memory: the next use that sets contents allocates it again.

    Attributes:
        device: The label of the device that owns the memory; None for a shared pool.
        reason: Why it is a shared pool, or "".
    """

    def __init__(
        self,
        buffer: Buffer,
        roles: Sequence[BufferRole],
        device: str | None,
        reason: str,
        again: Callable[[], Buffer] | None = None,
    ) -> None:
        """again: allocates the memory again if it was lost; None if the owner does."""
        self._buffer, self._roles, self.device, self.reason = buffer, tuple(roles), device, reason
        self._token, self._again, self._renewing = buffer.token, again, threading.Lock()
        self._host = buffer if isinstance(buffer, HostBuffer) else None  # in ordinary memory
        self._uses = {(id(r.prepared), r.output, r.index) for r in roles}
        self._spoiled, self._closed = False, ""  # why it cannot be used any more, or ""
        self._writer: object = None  # the last writer that began
        _alive.add(self)

    @property
    def token(self) -> int:
        """The number that identifies it in this process, never 0."""
        return self._token

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the contents; None without contents."""
        return None if self._spoiled or self._buffer.lost else self._open().shape

    def read(self) -> Array:
        """Return a copy of the contents.

        Raises:
            OperationFailed: There are no contents.
            DeadObject: The driver's process died, and the contents with it.
            Closed: The allocation was closed.
        """
        self._check_contents()
        return contents_of(self._open())

    def write(self, array: Any) -> None:
        """Set the contents.

        Args:
            array: An array with the type and shape of the roles.

        Raises:
            InvalidArgument: The type or shape is another one.
            Closed: The allocation was closed.
        """
        dtype = dtype_of(self._buffer.facts.type)
        if type(array) is not np.ndarray or array.dtype != dtype:
            array = convert_argument(array, dtype, f"{self}: what is written")
        self._writer = None
        fill(self._usable(), array)
        self._spoiled = False

    def copy_to(self, memory: Memory) -> None:
        """Copy the contents to a memory.

        Args:
            memory: A memory of exactly the size of the contents.

        Raises:
            InvalidArgument: The size is another one.
            OperationFailed: There are no contents.
        """
        self._check_contents()
        self._open().copy_to(_memory(memory))

    def copy_from(self, memory: Memory, dimensions: Sequence[int] = ()) -> None:
        """Set the contents from a memory.

        Args:
            memory: A memory of exactly the size of the contents.
            dimensions: The shape of the contents, if the roles leave dimensions open.

        Raises:
            InvalidArgument: The size or the dimensions do not fit.
        """
        memory, dimensions = _memory(memory), checked(dimensions, f"{self}: dimensions")
        self._writer = None
        self._usable().copy_from(memory, dimensions)
        self._spoiled = False

    def close(self) -> None:
        """Release the memory. Later uses raise `Closed`."""
        self._closed = self._closed or "used after close"
        self._buffer.close()

    def _check_use(self, whole: BelongsToModel, output: bool, place: int) -> None:
        """Raise InvalidRequest unless it was allocated for this input or output of the compiled model."""
        if (id(whole), output, place) not in self._uses:
            use, roles = "output" if output else "input", ", ".join(map(str, self._roles))
            name = whole.model.name or "this model"
            raise InvalidRequest(f"{self}: is used as {use} {place} of {name}, must be one of its roles: {roles}")
        if output:
            self._usable()
        else:
            self._check_contents()

    def _begin(self, writer: object) -> None:
        """Note that an execution will write it: from now on its buffer knows whether it has contents."""
        self._writer, self._spoiled = writer, False

    def _wrote(self, writer: object, success: bool) -> None:
        """Note the outcome of the execution that was to write it, unless another one has begun since."""
        if self._writer is writer:
            self._spoiled = not success

    def _open(self) -> Buffer:
        """Return the buffer; Closed after `close`, and in a forked child."""
        if self._closed:
            raise Closed(f"{self}: {self._closed}")
        return self._buffer

    def _usable(self) -> Buffer:
        """Return the buffer to set its contents, in other memory if the first was lost."""
        buffer = self._open()
        if buffer.lost and self._again is not None:
            with held_lock(self._renewing):
                if self._buffer is buffer:
                    self._buffer = self._again()
                    buffer.close()
        return self._open()

    def _check_contents(self) -> None:
        """Raise OperationFailed if the execution that was to write it failed, DeadObject if its memory was lost."""
        if self._spoiled:
            raise OperationFailed(
                f"{self}: has no contents since an execution that was to write it failed; write it again"
            )
        if not self._closed and self._buffer.lost:
            raise DeadObject(
                f"{self}: has no contents since the driver's process ended with its memory; set them again"
            )

    def __repr__(self) -> str:  # without the shape of the contents: another process may have to be queried for it
        empty = self._spoiled or self._buffer.lost
        facts, state = self._buffer.facts, "closed" if self._closed else "no contents" if empty else "open"
        dims = None if facts.dimensions is None else [d or None for d in facts.dimensions]
        where = quoted_name(self.device)[1:-1] if self.device is not None else "a shared pool"
        words = f"Allocation {self.token} on {where}, {tensor('', facts.type, dims)}, {state}"
        return short_repr(words, map(str, self._roles))

    def __str__(self) -> str:
        where = f"on {self.device}" if self.device is not None else "in a shared pool"
        return f"buffer {self.token} {where}"


_alive: "weakref.WeakSet[Allocation]" = weakref.WeakSet()


def _after_fork() -> None:
    for allocation in list(_alive):
        allocation._closed = "it was allocated before this process was forked, and is the other's"


os.register_at_fork(after_in_child=_after_fork)


def _memory(memory: Any) -> Memory:
    if not isinstance(memory, Memory):
        raise InvalidArgument(f"memory is {safe_repr(memory)}, must be a nnhal.Memory")
    return memory


class Use(NamedTuple):
    """One use of an allocation: input or output `place` of a compiled model's main subgraph."""

    whole: BelongsToModel
    plan: Plan
    output: bool
    place: int
    frequency: float = 1.0


def allocate_for(uses: Sequence[Use], shape: Sequence[int] | None = None, *, renewed: bool = False) -> Allocation:
    """Allocate memory for these uses on the one device that all of them lie on, or a shared pool.

    renewed: whether it is allocated again if it was lost with the driver's process.
    """
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
        again = partial(allocated_by, device, desc, parts)
        try:
            try:
                buffer = again()
            except DeadObject:  # this call is the first to notice the process's death; the next use starts it again
                buffer = again()
            return Allocation(buffer, whole, identity_of(device).name, "", again if renewed else None)
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
