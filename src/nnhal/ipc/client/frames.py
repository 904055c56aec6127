"""Frames: shared memory for the arguments of one execution, laid out and bound once and reused.

An execution with the same shapes takes a free frame, fills in its inputs, and collects the outputs. Arrays in a pool
are not copied: the frame refers to the pool. Guard bytes follow each output: they reveal a driver that writes past its
output, and its results are dropped.

A frame is dropped if it is not kept for another execution, if a pool that it refers to is released, or if a driver may
still be using it. The service drops its binding too.
"""

import weakref
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from nnhal.base import trace
from nnhal.base.errors import ContractBroken, InvalidRequest
from nnhal.base.memory import ALIGNMENT, Memory, aligned
from nnhal.base.operands import Array, typed
from nnhal.hal.binding import Where
from nnhal.hal.request import Argument, Request

GUARD = bytes(range(0xA0, 0xA0 + ALIGNMENT))
_KEPT = 4  # free frames kept for each set of shapes
_SETS = 16  # sets of shapes with frames
_PROVIDED: Where = (-1, 0, 0, ())  # the driver provides the memory

Key = tuple[Any, ...]
# Whether it is an input, its index, bytes and dimensions, type and shape of the view; no shape if the driver reports
# it.
_Own = tuple[bool, int, int, tuple[int, ...], np.dtype[Any], tuple[int, ...] | None]


def key_of(request: Request, apart: bool = False) -> Key:
    """Return what two requests must share to use the same frame. apart: see `Frame`."""
    inputs = [None if x is None else (x.shape, x.dtype) if x.base is None else _key(x) for x in request.given]
    rooms = [_room_key(request, n, apart) for n in range(len(request.shapes))]
    if not (request.input_buffers or request.output_buffers):
        return (*inputs, *rooms)
    read, written = request.input_buffers.items(), request.output_buffers.items()
    return (*inputs, *rooms, *((n, b.token) for n, b in read), *((~n, b.token) for n, b in written))


def _key(array: Array) -> Key:
    at = Memory.of(array) if array.flags.c_contiguous else None
    return (array.shape, array.dtype) if at is None else (array.shape, array.dtype, id(at[0]), at[1])


def _room_key(request: Request, index: int, apart: bool) -> Key | None:
    """Return None if the frame's memory has an output of known size, or the driver provides the memory."""
    room = request.room(index)
    if room is None:
        return None
    key = _key(room) if room.base is not None and not apart else ()
    argument = request.signature.outputs[index]
    return key if len(key) == 4 else None if argument.fixed is not None else (room.nbytes, _dims(argument, room))


def _dims(argument: Argument, room: Array) -> tuple[int, ...]:
    """Return the dimensions that an output buffer defines; () if it is only bytes."""
    return room.shape if argument.specified_by(room) else ()


class Frame:
    """Memory for one request. inputs, outputs: the place of each argument; pool -1 means that the driver provides it.

    pools: the memories, until the frame is bound. direct: the outputs that the driver writes into the caller's memory.
    apart: all outputs lie in the frame's memory, not in the caller's pools, because the driver may continue to write
    after the caller has abandoned the execution.
    """

    def __init__(self, request: Request, apart: bool = False) -> None:
        # The frame's memories: of inputs, which only this process writes, and of outputs
        self.memories: list[Memory] = []
        self.pools: list[Memory] = []
        self.mark = object()  # identifies the frame without keeping it alive
        self.inputs: list[Where | None] = []
        self.outputs: list[Where | None] = []
        self.binding: Any = None
        self._in: list[tuple[int, Array]] = []
        self._out: list[tuple[int, Array, bool]] = []  # index, view, whether it has the output's type and shape
        self.direct: list[int] = []
        self._guards: list[memoryview] = []
        own: list[_Own] = []
        signature = request.signature
        if len(request.given) != len(signature.inputs):
            raise InvalidRequest(
                f"{signature.where}: request has {len(request.given)} inputs, must have {len(signature.inputs)}"
            )
        for index, array in enumerate(request.given):
            place = None if array is None else self._shared(array, array.shape, False)
            if array is not None and array.dtype != signature.inputs[index].dtype:
                name, dtype, _ = signature.inputs[index]
                raise InvalidRequest(f"{signature.where}: {name} is {array.dtype}, must be {dtype}")
            self.inputs.append(place)
            if array is not None and place is None:
                own.append((True, index, array.nbytes, array.shape, array.dtype, array.shape))
        for index, argument in enumerate(signature.outputs):
            room, fixed = request.room(index), argument.fixed
            self.outputs.append(None)
            if index in request.output_buffers:
                continue
            if room is not None and not apart:
                at = self._shared(room, _dims(argument, room), True)
                if at is not None:
                    self.direct.append(index)
                    self.outputs[index] = at
                    continue
            if fixed is not None:
                size = int(np.prod(fixed)) * argument.dtype.itemsize
                own.append((False, index, size, fixed, argument.dtype, fixed))
            elif room is not None:
                size = room.nbytes
                own.append((False, index, size, _dims(argument, room), np.dtype(np.uint8), None))
            else:
                self.outputs[index] = _PROVIDED
        self._count = len(request.given)
        for inputs in (True, False):
            self._lay_out([each for each in own if each[0] == inputs], inputs)
        self._intact = [bytes(guard) for guard in self._guards]
        self._plain = len(self._in) == self._count and len(self._out) == len(request.shapes)
        self._plain = self._plain and all(known for _, _, known in self._out)
        self._givens = [(index, view, view.shape, view.dtype) for index, view in self._in]
        self._views, self._shapes = [view for _, view, _ in self._out], [view.shape for _, view, _ in self._out]

    def bound(self, binding: object) -> None:
        """Store the binding. The service has the memories now, so pools are released and descriptors closed."""
        self.binding, self.pools = binding, []
        for memory in self.memories:
            memory.close_descriptors()

    def _shared(self, array: Array, dims: tuple[int, ...], output: bool) -> Where | None:
        """Return where an array lies in a pool that the driver may map; None if it does not."""
        at = _pool_of(array, output)
        if at is None:
            return None
        number = next((n for n, m in enumerate(self.pools) if m is at[0]), len(self.pools))
        if number == len(self.pools):
            self.pools.append(at[0])
        return number, at[1], array.nbytes, dims

    def _lay_out(self, own: "Sequence[_Own]", inputs: bool) -> None:
        """Allocate a memory of the frame, and the views into it."""
        guard = 0 if inputs else ALIGNMENT
        ends = list(accumulate(aligned(max(1, size)) + guard for _, _, size, *_ in own))
        if not own:
            return
        memory = Memory.allocate(ends[-1], "nnhal-frame", one_way=inputs)
        number = len(self.pools)
        self.pools.append(memory)
        self.memories.append(memory)
        whole = memoryview(memory.bytes().data)
        for start, end, (_, index, size, dims, dtype, shape) in zip([0, *ends], ends, own, strict=False):
            view = memory.view(start, size, dtype, shape)
            if inputs:
                self.inputs[index] = number, start, size, dims
                self._in.append((index, view))
                continue
            self.outputs[index] = number, start, size, dims
            self._out.append((index, view, shape is not None))
            behind = whole[start + size : end]
            behind[:] = (GUARD * 2)[: len(behind)]
            self._guards.append(behind)

    @property
    def copies(self) -> bool:
        return bool(self._in)

    def try_fill(self, request: Request) -> bool:
        """Copy the inputs in if all are ordinary arrays that fit this frame; otherwise return False, quickly.

        The request must not have driver buffers.
        """
        if not self._plain or len(request.given) != self._count:
            return False
        for room in request.rooms or ():
            if room is not None and room.base is not None:
                return False
        given = request.given
        for index, view, shape, dtype in self._givens:
            x = given[index]
            if x is None or x.base is not None or x.shape != shape or x.dtype != dtype:
                return False
            view[...] = x
        return True

    def fill(self, request: Request) -> None:
        """Copy in the inputs that do not lie in a pool."""
        given = request.given
        for index, view in self._in:
            view[...] = given[index]

    @trace.traced_method("ipc", "results", "take outputs")
    def collect(self, request: Request, shapes: Sequence[tuple[int, ...]] = ()) -> None:
        """Write the outputs to the request; ContractBroken if the driver wrote past one of them.

        shapes: as the driver reports them; empty if all match the signature.
        """
        if self._guards and self._guards != self._intact:
            place = next(n for n, guard in enumerate(self._guards) if guard != self._intact[n])
            for guard, intact in zip(self._guards, self._intact, strict=True):
                guard[:] = intact
            name = request.signature.outputs[self._out[place][0]].name
            where = request.signature.where
            raise ContractBroken(f"{where}: wrote past the end of {name}, must stay within it; the results are dropped")
        if self._plain and not shapes:
            request.write_all(self._views, self._shapes)
            return
        for index, view, known in self._out:
            if shapes and not (known and tuple(shapes[index]) == view.shape):
                request.write(index, _reported(request, index, view, tuple(shapes[index])))
            else:
                request.write(index, view)
        for index in self.direct:
            fixed = request.signature.outputs[index].fixed
            request.filled(index, tuple(shapes[index]) if shapes else fixed or ())


def _pool_of(array: Array, output: bool) -> tuple[Memory, int] | None:
    """Return the pool of an array that the driver may map, and the array's offset in it; otherwise None."""
    at = Memory.of(array) if array.base is not None and array.flags.c_contiguous else None
    if at is None or not at[0].sealed or (at[0].readonly if output else not array.flags.aligned):
        return None
    return at


def in_pools(request: Request) -> bool:
    """Whether the caller requests an output in a pool that the driver may map."""
    return any(room is not None and _pool_of(room, True) is not None for room in request.rooms or ())


def _reported(request: Request, index: int, view: Array, shape: tuple[int, ...]) -> Array:
    """Return the bytes of an output as an array of the shape that the driver reports."""
    argument = request.signature.outputs[index]
    size = int(np.prod(shape, dtype=object)) * argument.dtype.itemsize
    if size > view.nbytes:
        where = f"{request.signature.where}: {argument.name} is given shape {list(shape)}"
        raise ContractBroken(f"{where}, must fit the {view.nbytes} bytes of its memory")
    return typed(view, argument.dtype, shape)


class Frames:
    """The frames of one prepared model, by shapes; thread-safe."""

    def __init__(self) -> None:
        self._free: dict[Key, deque[Frame]] = {}
        self._last: tuple[Key, deque[Frame]] | None = None
        self._in_pools: weakref.WeakKeyDictionary[Memory, set[Key]] = weakref.WeakKeyDictionary()

    @trace.traced_method("ipc", "transfers", "stage inputs")
    def take(self, request: Request, apart: bool = False) -> tuple[Frame, deque[Frame]]:
        """Return a frame for this request alone, filled with its inputs, and the queue to return it to."""
        last = self._last
        if last is not None and not (request.input_buffers or request.output_buffers):
            try:
                frame = last[1].pop()
            except IndexError:
                pass
            else:
                if frame.try_fill(request):
                    return frame, last[1]
                last[1].append(frame)
        key = key_of(request, apart)
        free = self._free.get(key)
        if free is None:
            if len(self._free) >= _SETS:
                self._free.pop(next(iter(list(self._free)), ()), None)  # the oldest
            free = self._free[key] = deque(maxlen=_KEPT)
        self._last = key, free
        try:
            frame = free.pop()
        except IndexError:
            frame = Frame(request, apart)
            for memory in frame.pools:
                if memory not in frame.memories:
                    self._note(memory, key)
        frame.fill(request)
        return frame, free

    def _note(self, memory: Memory, key: Key) -> None:
        """Record that frames of that key refer to a pool of the caller: they are dropped with it."""
        keys = self._in_pools.get(memory)
        if keys is None:
            keys = self._in_pools[memory] = set()
            weakref.finalize(memory, _forget, weakref.ref(self), keys).atexit = False
        if len(keys) >= 4 * _SETS:
            keys &= {*list(self._free)}
        keys.add(key)

    def close(self) -> None:
        """Drop all free frames."""
        self._last, self._free = None, {}

    def forget(self, keys: "set[Key]") -> None:
        """Drop the free frames of some keys."""
        self._last = None
        for key in keys:
            self._free.pop(key, None)

    def forget_pool(self, memory: Memory) -> None:
        """Drop the free frames that refer to a pool of the caller."""
        self.forget(self._in_pools.pop(memory, set()))


def _forget(frames: "weakref.ref[Frames]", keys: "set[Key]") -> None:
    """Drop the frames of a pool, through a weak reference: a pool may outlive many prepared models."""
    there = frames()
    if there is not None:
        there.forget(keys)
