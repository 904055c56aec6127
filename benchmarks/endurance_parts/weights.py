"""A large model in a driver's process: what it adds to the client's memory, and how often the driver holds it."""

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from endurance_parts.usage import Usage, usage
from nnhal.base.codes import Activation, OperandType
from nnhal.base.memory import Memory
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints
from nnhal.hal.request import UNLIMITED
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.process import start
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model

ADDED = 5_000_000  # bytes of private memory that client and driver may have more, each


class Held(NamedTuple):
    """Before and after the model was prepared and run. size: bytes of its weights."""

    size: int
    client: tuple[Usage, Usage]
    service: tuple[Usage, Usage]

    @property
    def client_private(self) -> int:
        """Bytes of private memory that the client has more."""
        return self.client[1].private - self.client[0].private

    @property
    def service_private(self) -> int:
        """Bytes of private memory that the driver's process has more, besides its view of the weights' file."""
        return self.service[1].anonymous - self.service[0].anonymous

    @property
    def times(self) -> float:
        """How many times the weights' size the driver's resident memory grew."""
        return (self.service[1].resident - self.service[0].resident) / self.size

    @property
    def ok(self) -> bool:
        """Little private memory on both sides, the weights resident once."""
        return self.client_private < ADDED and self.service_private < ADDED and 0.9 < self.times < 1.5


def dense(path: Path, units: int, inputs: int) -> Model:
    """FULLY_CONNECTED whose weights lie in a file."""
    b = ModelBuilder()
    pool = b.add_pool(Memory.from_file(path))
    kind = OperandType.TENSOR_FLOAT32
    x, y = b.operand(kind, (1, inputs)), b.operand(kind, (1, units))
    weights = b.reference(kind, (units, inputs), pool, 0, 4 * units * inputs)
    bias = b.constant(kind, np.zeros(units, np.float32))
    activation = b.constant(OperandType.INT32, np.int32(Activation.NONE))
    b.operation("FULLY_CONNECTED", [x, weights, bias, activation], [y])
    return b.finish([x], [y])


def held(mebibytes: int) -> Held:
    """Prepare and run in a process of its own."""
    units, inputs = mebibytes << 8, 1024
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "weights"
        np.ones((units, inputs), np.float32).tofile(path)
        model = dense(path, units, inputs)
        device = RemoteDevice(start("reference", options=["--unconfined"]))
        try:
            pid = device.session.welcome.pid
            before = usage(os.getpid()), usage(pid)
            prepared = checked_prepared(device, model, Hints())
            x, y = np.ones((1, inputs), np.float32), np.empty((1, units), np.float32)
            for _ in range(2):
                prepared.request([x], [y]).execute(prepared.run, UNLIMITED)
            assert np.all(y == inputs)
            after = usage(os.getpid()), usage(pid)
        finally:
            device.close()
    return Held(4 * units * inputs, (before[0], after[0]), (before[1], after[1]))
