"""Frames: shared memory with room for the arguments of one execution, laid out once and used again.

An execution of the same shapes takes a frame that is free, fills in its inputs, and takes the outputs out. Arrays that lie
in a pool already are not copied: the frame refers to the pool. Each output is followed by guard bytes: a driver that writes
past its output is found out, and its results are dropped.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.base.errors import OperationFailed
from nnhal.base.memory import ALIGNMENT, Memory, aligned
from nnhal.base.operands import Array
from nnhal.hal.binding import Where
from nnhal.hal.request import Request

GUARD = bytes(range(0xA0, 0xA0 + ALIGNMENT))
_KEPT = 4  # free frames kept for each set of shapes

Key = tuple[Any, ...]


def key_of(request: Request) -> Key:
    """What two requests must share to use the same frame."""
    return (
        *[None if x is None else (x.shape, x.dtype) if x.base is None else _key(x) for x in request.inputs],
        *[None if x is None else (x.shape, x.dtype) if x.base is None else _key(x) for x in request.outputs],
        *request.output_buffers,
    )


def _key(array: Array) -> Key:
    at = Memory.of(array) if array.flags.c_contiguous else None
    return (array.shape, array.dtype) if at is None else (array.shape, array.dtype, id(at[0]), at[1])


class Frame:
    """Room for one request. inputs, outputs: where each argument lies; -1 as a pool: the driver provides the memory."""

    def __init__(self, request: Request, types: list[np.dtype[Any]]) -> None:
        """types: the element types of the model's outputs; arrays of other types are room in bytes."""
        self.pools: list[Memory] = []
        self.inputs: list[Where | None] = []
        self.outputs: list[Where | None] = []
        self.notes: dict[Any, Any] = {}  # what users of the frame keep with it: encoded messages, last replies
        own: list[tuple[list[Where | None], int, Array, bool]] = []
        size = 0
        for index, array in enumerate(request.inputs):
            size = self._place(array, index, self.inputs, own, size, False)
        for index, array in enumerate(request.outputs):
            typed = array is None or array.dtype == types[index]
            size = self._place(array, index, self.outputs, own, size, True, typed)
            if array is None and index not in request.output_buffers:
                self.outputs[index] = (-1, 0, 0, ())
        self._in: list[tuple[int, Array]] = []
        self._out: list[tuple[int, Array]] = []
        self._guards: list[memoryview] = []
        self._count = len(request.inputs)
        if own:
            self._lay_out(own, size)

    def _place(
        self,
        array: Array | None,
        index: int,
        places: list[Where | None],
        own: list[tuple[list[Where | None], int, Array, bool]],
        size: int,
        output: bool,
        typed: bool = True,
    ) -> int:
        if array is None:
            places.append(None)
            return size
        at = Memory.of(array) if array.base is not None and array.flags.c_contiguous else None
        dims = array.shape if typed else ()
        if at is not None and at[0].sealed and not (output and at[0].readonly):
            memory = next((n for n, m in enumerate(self.pools) if m is at[0]), len(self.pools))
            if memory == len(self.pools):
                self.pools.append(at[0])
            places.append((memory, at[1], array.nbytes, dims))
            return size
        places.append((-2, size, array.nbytes, dims))  # in the frame's own memory, whose number comes last
        own.append((places, index, array, output))
        size += aligned(max(1, array.nbytes))
        return size + ALIGNMENT if output else size

    def _lay_out(self, own: list[tuple[list[Where | None], int, Array, bool]], size: int) -> None:
        self.memory = Memory.allocate(size, "nnhal-frame")
        number = len(self.pools)
        self.pools.append(self.memory)
        whole = memoryview(self.memory.bytes().data)
        for places, index, array, output in own:
            _, offset, length, dims = places[index] or (0, 0, 0, ())
            places[index] = (number, offset, length, dims)
            view = self.memory.view(offset, length, array.dtype, array.shape)
            if output:
                self._out.append((index, view))
                end = offset + length
                limit = offset + aligned(max(1, length)) + ALIGNMENT
                guard = whole[end:limit]
                guard[:] = (GUARD * 2)[: len(guard)]
                self._guards.append(guard)
            else:
                self._in.append((index, view))
        self._intact = [bytes(guard) for guard in self._guards]

    def try_fill(self, request: Request) -> bool:
        """Copy the inputs in where the request is all of ordinary arrays that fit this frame; else False, in a moment."""
        outputs = request.outputs
        if len(request.inputs) != self._count or len(outputs) != len(self._out) or self._count != len(self._in):
            return False
        for x, (_, view) in zip(request.inputs, self._in):  # noqa: B905 (as many, see above)
            if x is None or x.base is not None or x.shape != view.shape or x.dtype != view.dtype:
                return False
            view[...] = x
        for x, (_, view) in zip(outputs, self._out):  # noqa: B905
            if x is None or x.base is not None or x.shape != view.shape or x.dtype != view.dtype:
                return False
        return True

    def fill(self, request: Request) -> None:
        """Copy the inputs in that do not lie in a pool."""
        inputs = request.inputs
        for index, view in self._in:
            view[...] = inputs[index]

    def collect(self, request: Request) -> None:
        """Copy the outputs out; OperationFailed where the driver wrote past one of them."""
        if self._guards and self._guards != self._intact:
            place = next(n for n, guard in enumerate(self._guards) if guard != self._intact[n])
            for guard, intact in zip(self._guards, self._intact, strict=True):
                guard[:] = intact
            index = self._out[place][0]
            raise OperationFailed(f"driver: wrote past the end of output {index}; the results are dropped")
        outputs = request.outputs
        for index, view in self._out:
            target = outputs[index]
            assert target is not None
            target[...] = view

    def collect_sufficient(self, request: Request, sufficient: Sequence[bool]) -> None:
        """As `collect`, leaving out what did not fit its memory."""
        if all(sufficient):
            self.collect(request)
            return
        kept, self._out = self._out, [(n, view) for n, view in self._out if n < len(sufficient) and sufficient[n]]
        try:
            self.collect(request)
        finally:
            self._out = kept


class Frames:
    """Frames of one prepared model, by shapes; any number of threads."""

    def __init__(self, types: list[np.dtype[Any]]) -> None:
        self._types = types
        self._free: dict[Key, deque[Frame]] = {}
        self._last: tuple[Key, deque[Frame]] | None = None

    def take(self, request: Request) -> tuple[Frame, deque[Frame]]:
        """A frame for this request alone, filled with its inputs, and where to append it afterwards."""
        last = self._last
        if last is not None:
            try:
                frame = last[1].pop()
            except IndexError:
                pass
            else:
                if frame.try_fill(request):
                    return frame, last[1]
                last[1].append(frame)
        key = key_of(request)
        if len(self._free) >= 4 * _KEPT and key not in self._free:
            self._free.clear()
        free = self._free.setdefault(key, deque(maxlen=_KEPT))
        self._last = key, free
        try:
            frame = free.pop()
        except IndexError:
            frame = Frame(request, self._types)
        frame.fill(request)
        return frame, free
