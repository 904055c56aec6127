"""What the tests of isolation share: small models, requests, and a view of what happens inside a service."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nnhal.base.codes import OperandType
from nnhal.base.memory import Memory
from nnhal.frontends.python import Builder
from nnhal.hal.device import Device, Hints, Prepared, prepared_by
from nnhal.hal.request import Control, Request
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.process import start
from nnhal.ipc.service.quota import Capacity, Quotas, QuotaTable, Share
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from tests import requests

PROBE = str(Path(__file__).parent / "drivers" / "probe.py")
LIMIT = 60.0  # seconds after which something that has to happen counts as hanging


CAPACITY = Capacity(descriptors=32_640, threads=1024, mappings=32_765, addresses=1 << 46, memory=4 << 30)


def a_share(*, shared: bool = False, **less: int) -> Share:
    """The share of a client of a service, with less of some resources where they are named."""
    return Quotas(QuotaTable(CAPACITY._replace(**less), shared=shared)).connect(1)


def doubling(size: int = 4, name: str = "") -> Model:
    """y = x + x on `size` floats."""
    b = Builder(name)
    x = b.input((size,))
    return b.finish([x], [b.add(x, x)])


def shifting(size: int, by: float) -> Model:
    """y = x + by."""
    b = Builder()
    x = b.input((size,))
    return b.finish([x], [b.add(x, np.full(size, by, np.float32))])


def wide(count: int) -> Model:
    """The sum of all inputs, of a float each."""
    b = Builder()
    given = [b.input((1,)) for _ in range(count)]
    total = given[0]
    for x in given[1:]:
        total = b.add(total, x)
    return b.finish(given, [total])


def over(count: int) -> Model:
    """y = x + 0 + 1 + ..., each constant in a memory of its own."""
    b = ModelBuilder()
    kind = OperandType.TENSOR_FLOAT32
    x = total = b.operand(kind, (1,))
    none = b.constant(OperandType.INT32, 0)
    for n in range(count):
        constant = b.reference(kind, (1,), b.add_pool(Memory.from_array(np.float32([n]))), 0, 4)
        sum_ = b.operand(kind, (1,))
        b.operation("ADD", [total, constant, none], [sum_])
        total = sum_
    return b.finish([x], [total])


def numbers(size: int = 4, start: float = 0.0) -> np.ndarray:
    """start, start + 1, ..."""
    return np.arange(size, dtype=np.float32) + np.float32(start)


def request_for(prepared: Prepared, x: np.ndarray) -> Request:
    """A request of one input, and room for one output of its shape."""
    return prepared.request([x], [np.full_like(x, np.nan)])


def run(prepared: Prepared, x: np.ndarray, control: Control | None = None) -> np.ndarray:
    """Execute plainly; the output."""
    output: np.ndarray = requests.run(prepared, [x], control or Control(), [np.full_like(x, np.nan)]).results[0]
    return output


def prepare(device: Device, model: Model | None = None, **options: Any) -> Prepared:
    """Prepare a model, `doubling` where none is given, with options of the driver."""
    return prepared_by(device, model or doubling(), Hints(options=options))


def inside(device: Device) -> dict[str, int]:
    """The probe driver's counters."""
    return dict(json.loads(device.supports(doubling())[0].reason))


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Wait for what must come to be at some time."""
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end, f"{what}: not within {LIMIT:.0f} s"
        time.sleep(0.01)


@contextlib.contextmanager
def own_process(driver: str = PROBE, **named: Any) -> Iterator[RemoteDevice]:
    """A device in a process of its own, ended afterwards."""
    device = RemoteDevice(start(driver, **named))
    try:
        yield device
    finally:
        device.close()
        assert device.session.process is not None
        device.session.process.wait(LIMIT)
