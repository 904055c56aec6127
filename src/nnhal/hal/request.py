"""One execution as a driver sees it: inputs, outputs, and the control it runs under."""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nnhal.base.codes import LOOP_TIMEOUT_DEFAULT_NS
from nnhal.base.errors import Cancelled, MissedDeadline
from nnhal.base.log import logger
from nnhal.base.operands import Array

if TYPE_CHECKING:
    from nnhal.hal.buffers import Buffer


_log = logger("driver")


class Timing(NamedTuple):
    """Durations in nanoseconds; None where not measured. Time on the device is part of the time in the driver."""

    on_device: int | None = None
    in_driver: int | None = None


def summed(times: Iterable[int | None]) -> int | None:
    """Durations together; None where any was not measured."""
    known = list(times)
    return None if None in known else sum(t for t in known if t is not None)


def plausible(timing: Timing | None, where: str) -> Timing | None:
    """What a driver measured; None, and a line in the log, where it cannot be true."""
    if timing is None:
        return None
    device, driver = timing
    if (device is not None and (device < 0 or (driver is not None and device > driver))) or (driver or 0) < 0:
        _log.warning("%s: says %s ns on the device of %s ns in the driver; dropped", where, device, driver)
        return None
    return timing


@dataclass(slots=True)
class Control:
    """How long an execution may take, whether it is still wanted, what is to be measured.

    deadline: a point on the monotonic clock in nanoseconds, None for no limit. loop_timeout: nanoseconds for each WHILE.
    """

    deadline: int | None = None
    loop_timeout: int = LOOP_TIMEOUT_DEFAULT_NS
    measure: bool = False
    cancelled: threading.Event | None = None

    def check(self) -> None:
        """Raise Cancelled or MissedDeadline where the execution should end; drivers call it between operations."""
        if self.cancelled is not None and self.cancelled.is_set():
            raise Cancelled("execution: cancelled by its owner")
        if self.deadline is not None and time.monotonic_ns() > self.deadline:
            raise MissedDeadline("execution: the deadline has passed")


UNLIMITED = Control()


@dataclass(slots=True)
class Request:
    """Inputs and outputs of one execution as arrays over the caller's memory.

    inputs: one array an input, with the operand's element type and its shape of this execution; None for an omitted one.
    outputs: where results go: an array of the output's shape, an array of bytes where only the room is known, or None where
    the driver provides the array. `write` fills them; `shapes` and `sufficient` tell what became of each.
    input_buffers, output_buffers: arguments that lie in driver buffers, by index; their arrays are None. A driver sees
    only buffers of a class of its own there, host buffers reach it as arrays.
    """

    inputs: Sequence[Array | None]
    outputs: list[Array | None]
    shapes: list[tuple[int, ...] | None] = field(default_factory=list)
    sufficient: list[bool] = field(default_factory=list)
    input_buffers: "Mapping[int, Buffer]" = field(default_factory=dict)
    output_buffers: "Mapping[int, Buffer]" = field(default_factory=dict)

    def write(self, index: int, value: Array) -> None:
        """Give output `index` its value; where its room is too small, only the shape is kept."""
        while len(self.shapes) <= index:
            self.shapes.append(None)
            self.sufficient.append(True)
        self.shapes[index] = value.shape
        target = self.outputs[index]
        if target is None:
            self.outputs[index] = value
        elif target.shape == value.shape and target.dtype == value.dtype:
            np.copyto(target, value)
        elif target.nbytes < value.nbytes:
            self.sufficient[index] = False
        else:
            data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            target.reshape(-1).view(np.uint8)[: data.size] = data
