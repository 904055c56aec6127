"""Behaviour when a client dies in the middle of an execution."""

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.base.errors import Cancelled
from nnhal.base.operands import Array
from nnhal.hal.request import Control
from nnhal.model.graph import Model

from .faults import CRASH, fault
from .healthy import Engine, Healthy

_kept: list[Any] = []  # of the process, on purpose


class Lasting(Engine):
    """An execution that lasts 20 ms, and ends if it is cancelled."""

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        for _ in range(20):
            control.check()
            time.sleep(0.001)
        return super().computed(inputs, control)


@fault("dies-with-client", "ends its process if a client dies in an execution", "", (CRASH,))
class DiesWithClient(Lasting):
    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        try:
            return super().computed(inputs, control)
        except Cancelled:
            os._exit(1)


@fault("keeps-clients", "never closes the descriptor that each prepared model has", "", (CRASH,))
class KeepsClients(Engine):
    def __init__(self, device: Healthy, model: Model) -> None:
        super().__init__(device, model)
        _kept.append(os.memfd_create("faulty"))


@fault("keeps-cancelled", "keeps 4 MiB if a client dies in an execution", "", (CRASH,))
class KeepsCancelled(Lasting):
    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        try:
            return super().computed(inputs, control)
        except Cancelled:
            _kept.append(np.ones(4 << 20, np.uint8))
            raise


@fault("locks-for-ever", "keeps a lock of the device if a client dies in an execution", "", (CRASH,))
class LocksForEver(Lasting):
    lock = threading.Lock()

    def computed(self, inputs: Sequence[Array | None], control: Control) -> list[Array]:
        self.lock.acquire()
        results = super().computed(inputs, control)
        self.lock.release()
        return results
