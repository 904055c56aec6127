"""Requests in the HAL's form: arguments as places in pools, results as statuses, shapes and microseconds.

`lay_out` makes the form from the caller's arrays, `collect` gives the results back; a driver reads a form with `to_arrays`
and answers with `output_shapes`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nnhal.base.memory import Memory, aligned
from nnhal.base.operands import Array
from nnhal.hal.binding import bind_request, shapes_of
from nnhal.hal.request import Request, Timing
from nnhal.model.graph import Model

NOT_MEASURED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class RequestArgument:
    """One input or output: `length` bytes at `offset` of pool number `pool`, or no value.

    dimensions: those of this execution, 0 for one that is not known; () where the operand's own hold, or of a scalar.
    """

    has_no_value: bool = False
    pool: int = 0
    offset: int = 0
    length: int = 0
    dimensions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HalRequest:
    """What one execution reads and writes, as drivers of the HAL get it."""

    inputs: tuple[RequestArgument, ...]
    outputs: tuple[RequestArgument, ...]
    pools: tuple[Memory, ...]


class OutputShape(NamedTuple):
    """Shape of an output after the execution, 0 for a dimension that is not known; whether its room was enough."""

    dimensions: tuple[int, ...] = ()
    is_sufficient: bool = True


class HalTiming(NamedTuple):
    """Durations in microseconds, NOT_MEASURED where there is none."""

    time_on_device: int = NOT_MEASURED
    time_in_driver: int = NOT_MEASURED

    @classmethod
    def of(cls, timing: Timing | None) -> "HalTiming":
        """The HAL's form of what was measured."""
        return cls(*(NOT_MEASURED if t is None else t // 1000 for t in timing or (None, None)))

    def measured(self) -> Timing:
        """In nanoseconds. Time on the device is not believed where it exceeds that in the driver."""
        device, driver = (None if t == NOT_MEASURED else t * 1000 for t in self)
        if device is not None and driver is not None and device > driver:
            device = None
        return Timing(device, driver)


class Room(NamedTuple):
    """What an output may take: its element type, its shape where that is known before, and bytes."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...] | None
    size: int


@dataclass(frozen=True, slots=True)
class Laid:
    """A request in the HAL's form, and the bytes of each output's place.

    places: whose these are: the "caller"'s array itself, "fresh" memory, or part of a "pool" that is used again.
    """

    request: HalRequest
    outputs: tuple[Array, ...]
    places: tuple[str, ...]


# ------------------------------------------------------------------------------------------------------ for the runtime


def lay_out(request: Request, rooms: Sequence[Room]) -> Laid:
    """The HAL's form of a request, each argument a pool over the caller's own array: nothing is copied.

    Inputs with gaps are copied; outputs that the caller left to the driver, or gave too little room for, get fresh memory.
    """
    pools: list[Memory] = []

    def place(data: Array, dimensions: tuple[int, ...]) -> RequestArgument:
        pools.append(Memory.wrap(data))
        return RequestArgument(False, len(pools) - 1, 0, data.nbytes, dimensions)

    inputs = [RequestArgument(True) if x is None else place(_flat(x), x.shape) for x in request.inputs]
    outputs, targets, whose = [], [], []
    for target, room in zip(request.outputs, rooms, strict=True):
        mine = target is None or not target.flags.c_contiguous or target.nbytes < room.size
        data = np.empty(room.size, np.uint8) if mine else _flat(target)  # type: ignore[arg-type]
        if room.shape is not None:
            data = data[: room.size]
        outputs.append(place(data, room.shape or ()))
        targets.append(data)
        whose.append("fresh" if mine else "caller")
    return Laid(HalRequest(tuple(inputs), tuple(outputs), tuple(pools)), tuple(targets), tuple(whose))


def lay_out_in(request: Request, rooms: Sequence[Room], allocate: Callable[[int], Memory]) -> Laid:
    """The HAL's form of a request in one pool of at least the size that `allocate` is asked for; inputs are copied."""
    sizes = [0 if x is None else x.nbytes for x in request.inputs] + [room.size for room in rooms]
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += aligned(size)
    pool = allocate(max(end, 1))
    inputs = []
    for x, offset in zip(request.inputs, offsets, strict=False):
        if x is None:
            inputs.append(RequestArgument(True))
            continue
        pool.view(offset, x.nbytes)[:] = _flat(x)
        inputs.append(RequestArgument(False, 0, offset, x.nbytes, x.shape))
    places = list(zip(rooms, offsets[len(inputs) :], strict=True))
    outputs = [RequestArgument(False, 0, offset, room.size, room.shape or ()) for room, offset in places]
    targets = tuple(pool.view(offset, room.size) for room, offset in places)
    return Laid(HalRequest(tuple(inputs), tuple(outputs), (pool,)), targets, ("pool",) * len(targets))


def collect(laid: Laid, request: Request, rooms: Sequence[Room], shapes: Sequence[OutputShape] = ()) -> None:
    """Give the caller's request its results. shapes: as the driver reports them; none where all were known before."""
    for index, (data, room) in enumerate(zip(laid.outputs, rooms, strict=True)):
        shape = shapes[index].dimensions if shapes else room.shape
        if shapes and not shapes[index].is_sufficient:
            note(request, index, shape, False)
            continue
        assert shape is not None
        if laid.places[index] == "caller":
            note(request, index, shape, True)
            continue
        value = data[: math.prod(shape) * room.dtype.itemsize].view(room.dtype).reshape(shape)
        # Room that was guessed may be much larger than the result that would keep it alive.
        keep = laid.places[index] == "fresh" and data.nbytes <= 2 * value.nbytes
        request.write(index, value if keep or request.outputs[index] is not None else value.copy())


def note(request: Request, index: int, shape: tuple[int, ...] | None, sufficient: bool) -> None:
    """Say what became of an output that needs no copy."""
    while len(request.shapes) <= index:
        request.shapes.append(None)
        request.sufficient.append(True)
    request.shapes[index] = shape
    request.sufficient[index] = sufficient


def _flat(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


# ---------------------------------------------------------------------------------------------------------- for drivers


def to_arrays(form: HalRequest, model: Model) -> Request:
    """A request as arrays over its pools. InvalidRequest names an argument that does not fit model or pool."""
    inputs = [None if a.has_no_value else (a.pool, a.offset, a.length, a.dimensions) for a in form.inputs]
    outputs = [None if a.has_no_value else (a.pool, a.offset, a.length, a.dimensions) for a in form.outputs]
    return bind_request(model, inputs, outputs, form.pools).request()


def output_shapes(request: Request) -> list[OutputShape]:
    """What a driver reports of the outputs of a request that it has run."""
    return [OutputShape(shape, enough) for shape, enough in zip(*shapes_of(request), strict=True)]
