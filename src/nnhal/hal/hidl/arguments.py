"""Requests of HAL drivers: arguments as places in pools; results as statuses, shapes and microseconds.

`lay_out` converts the caller's arrays, and `collect` returns the results. A driver reads a request with `to_arrays` and
answers with `output_shapes`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.base.records import Record
from nnhal.hal.binding import bind_request, flat_bytes
from nnhal.hal.request import Request, Timing, sufficient
from nnhal.model.graph import Model

NOT_MEASURED = 2**64 - 1
PACKED = 4096  # bytes of the largest input that is copied to the pool of small inputs
LEAD = 8  # bytes of a pool of small inputs, or of an output, before the first argument
ALIGNMENT = 8  # bytes, at least those of an element


class RequestArgument(Record, frozen=True):
    """One input or output: `length` bytes at `offset` of pool number `pool`, or no value.

    dimensions: of this execution, 0 for an unknown one; () for a scalar, or to use the operand's own.
    """

    has_no_value: bool = False
    pool: int = 0
    offset: int = 0
    length: int = 0
    dimensions: tuple[int, ...] = ()


class HalRequest(Record, frozen=True):
    """The inputs and outputs of one execution, as HAL drivers receive them."""

    inputs: tuple[RequestArgument, ...]
    outputs: tuple[RequestArgument, ...]
    pools: tuple[Memory, ...]


class OutputShape(NamedTuple):
    """The shape of an output after the execution, 0 for an unknown dimension, and whether its buffer was large enough."""

    dimensions: tuple[int, ...] = ()
    is_sufficient: bool = True


class HalTiming(NamedTuple):
    """Durations in microseconds; NOT_MEASURED for none."""

    time_on_device: int = NOT_MEASURED
    time_in_driver: int = NOT_MEASURED

    @classmethod
    def of(cls, timing: Timing | None) -> "HalTiming":
        """Convert measured times."""
        return cls(*(NOT_MEASURED if t is None else t // 1000 for t in timing or (None, None)))

    def measured(self) -> Timing:
        """Return the times in nanoseconds. A device time that exceeds the driver time is dropped."""
        device, driver = (None if t == NOT_MEASURED else t * 1000 for t in self)
        if device is not None and driver is not None and device > driver:
            device = None
        return Timing(device, driver)


class OutputBuffer(NamedTuple):
    """The buffer for an output: its element type, its shape if known before, and its bytes."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...] | None
    size: int


class PlacedRequest(Record, frozen=True):
    """A HAL request, and the elements of each output's place."""

    request: HalRequest
    outputs: tuple[Array, ...]


# ------------------------------------------------------------------------------------------------------ for the runtime


def lay_out(request: Request, rooms: Sequence[OutputBuffer]) -> PlacedRequest:
    """Convert a request to places in pools.

    As in Android, small inputs share a pool, into which they are copied, so the first byte of an argument is not the
    first byte of its pool, and is aligned for its elements only. A larger input is a pool over the caller's array, or
    over a copy if that has gaps. Each output has a new pool.
    """
    pools: list[Memory] = []

    def pool_over(data: Array) -> int:
        pools.append(Memory.wrap(data))
        return len(pools) - 1

    def place(data: Array, dimensions: tuple[int, ...], pool: int, offset: int) -> RequestArgument:
        return RequestArgument(False, pool, offset, data.nbytes, dimensions)

    given = [None if x is None else flat_bytes(x) for x in request.inputs]
    small = [data for data in given if data is not None and data.nbytes <= PACKED]
    shared = np.zeros(LEAD + sum(map(_room, small)), np.uint8)
    to_read = shared.view()
    to_read.flags.writeable = False
    shared_pool = pool_over(to_read) if small else 0
    end, inputs = LEAD, []
    for x, data in zip(request.inputs, given, strict=True):
        if x is None or data is None:
            inputs.append(RequestArgument(True))
        elif data.nbytes > PACKED:
            inputs.append(place(data, x.shape, pool_over(data), 0))
        else:
            shared[end : end + data.nbytes] = data
            inputs.append(place(data, x.shape, shared_pool, end))
            end += _room(data)
    outputs, targets = [], []
    for room in rooms:
        lead = LEAD // room.dtype.itemsize
        whole = request.memory.blank((lead + room.size // room.dtype.itemsize,), room.dtype)
        targets.append(whole[lead:])
        outputs.append(place(flat_bytes(targets[-1]), room.shape or (), pool_over(flat_bytes(whole)), LEAD))
    return PlacedRequest(HalRequest(tuple(inputs), tuple(outputs), tuple(pools)), tuple(targets))


def _room(data: Array) -> int:
    """Return the bytes for an input in the pool of small inputs."""
    return -(-data.nbytes // ALIGNMENT) * ALIGNMENT


def collect(
    laid: PlacedRequest, request: Request, rooms: Sequence[OutputBuffer], shapes: Sequence[OutputShape] = ()
) -> None:
    """Write the results to the request. shapes: as the driver reports them; empty if all were known before.

    ContractBroken if the driver left an output unwritten, or wrote past its end.
    """
    for index, (data, room) in enumerate(zip(laid.outputs, rooms, strict=True)):
        shape = shapes[index].dimensions if shapes else room.shape
        assert shape is not None
        request.take(index, data[: math.prod(shape)].reshape(shape))


# ---------------------------------------------------------------------------------------------------------- for drivers


def to_arrays(form: HalRequest, model: Model) -> Request:
    """Convert a HAL request to arrays over its pools. InvalidRequest names an argument that does not fit."""
    inputs = [None if a.has_no_value else (a.pool, a.offset, a.length, a.dimensions) for a in form.inputs]
    outputs = [None if a.has_no_value else (a.pool, a.offset, a.length, a.dimensions) for a in form.outputs]
    return bind_request(model, inputs, outputs, form.pools).request()


def output_shapes(request: Request) -> list[OutputShape]:
    """Return the output shapes that a driver reports after an execution."""
    return [OutputShape(shape, enough) for shape, enough in zip(request.shapes, sufficient(request), strict=True)]
