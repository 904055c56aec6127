"""The devices that buffers, fences and bursts are tested on, each real, and small models with requests for them."""

import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.frontends.python import Builder
from nnhal.hal.binding import flat_bytes
from nnhal.hal.chain import PreparedChain, checked_prepared
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.host import run_resolved
from nnhal.hal.memory import Buffer
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model
from nnhal.runtime import discovery
from nnhal.runtime.isolation import isolated

LIMIT = 60.0  # seconds after which something that has to happen counts as hanging
LITERT = pytest.mark.skipif(find_spec("ai_edge_litert") is None, reason="LiteRT is not installed")
DEVICES = ["reference", pytest.param("litert", marks=LITERT), "isolated reference"]
X = np.arange(12, dtype=np.float32).reshape(3, 4)


def device_of(name: str) -> Device:
    """A device by its name, "isolated" before it for one in a process of its own."""
    kind, _, driver = name.rpartition(" ")
    return isolated(driver) if kind else discovery.select([driver])[0]


def prepare(device: Device, model: Model, **options: object) -> PreparedChain:
    return checked_prepared(device, model, Hints(options=options))


def adding(amount: float = 1, shape: tuple[int, ...] = (3, 4)) -> Model:
    """y = x + amount."""
    b = Builder(f"adding {amount}")
    x = b.input(shape)
    return b.finish([x], [b.add(x, np.full((1,) * max(1, len(shape)), amount, np.float32))])


def nan(shape: tuple[int, ...] = (3, 4)) -> Array:
    """Where an output goes, of contents that no execution gives."""
    return np.full(shape, np.nan, np.float32)


def asked(prepared: Prepared, x: Array | Buffer = X, y: Array | Buffer | None = None) -> Request:
    """A request of one input and one output."""
    return prepared.request(
        [None if isinstance(x, Buffer) else x],
        [None if isinstance(y, Buffer) else y],
        input_buffers={0: x} if isinstance(x, Buffer) else {},
        output_buffers={0: y} if isinstance(y, Buffer) else {},
    )


def execute(
    prepared: Prepared, x: Array | Buffer, y: Array | Buffer | None, control: Control | None = None
) -> tuple[Request, Timing | None]:
    """Run once; the request afterwards, and what was measured."""
    made = asked(prepared, x, y)
    return made, made.execute(partial(run_resolved, prepared), control or Control())


class Own(Prepared):
    """A prepared model of the reference, of which a test says what `run` does beside."""

    def __init__(self, run: Callable[[Request, Control], Timing | None]) -> None:
        self.inner, self.also = prepare(device_of("reference"), adding(1)), run
        self.model = self.inner.model

    def run(self, request: Request, control: Control) -> Timing | None:
        self.inner.run(request, Control())
        return self.also(request, control)


def late() -> Control:
    """A deadline that has passed."""
    return Control(deadline=time.monotonic_ns() - 1)


class OwnBuffer(Buffer):
    """Memory of a driver's own, whose contents cannot be had as an array; counts how often it is closed."""

    contents: Array | None = None
    closed = 0

    @property
    def shape(self) -> tuple[int, ...] | None:
        return None if self.contents is None else self.contents.shape

    def copy_to(self, memory: Memory) -> None:
        assert self.contents is not None and memory.size == max(1, self.contents.nbytes)
        memory.writable()[: self.contents.nbytes] = flat_bytes(self.contents)

    def copy_from(self, memory: Memory, dimensions: tuple[int, ...] = ()) -> None:
        shape = dimensions or self.facts.fixed
        assert shape is not None
        self.contents = memory.view(0, 4 * int(np.prod(shape)), np.dtype(np.float32), shape).copy()

    def close(self) -> None:
        self.closed += 1
