"""Drivers that run one execution at a time, and one that is told to stop; each notes what happens in it."""

import threading
import time
from pathlib import Path

import numpy as np

from nnhal.base.errors import OperationFailed
from nnhal.hal.burst import BurstExecutor
from nnhal.hal.device import Device, Prepared


class Queued(Device):
    """Output: how many runs were inside at most so far.

    options: `gate`, a path: a run prints which it is, by the number that it is given, and waits until the path exists.
    """

    name = "queued"
    one_at_a_time = True

    def __init__(self):
        self.lock, self.inside, self.most, self.order = threading.Lock(), 0, 0, []

    def supports(self, model):
        return [True] * len(model.main.operations)

    def prepare(self, model, hints):
        return Run(self, hints.options)


class Run(Prepared):
    def __init__(self, device, options):
        self.device, self.options = device, options

    def run(self, request, control):
        device = self.device
        with device.lock:
            device.inside += 1
            device.most = max(device.most, device.inside)
            device.order.append(float(request.inputs[0][0]))
        try:
            self.pass_gate(device.order[-1])
            if self.options.get("fails"):
                raise OperationFailed("as it was told to")
            request.write(0, np.full(4, device.most, np.float32))
        finally:
            with device.lock:
                device.inside -= 1

    def pass_gate(self, number):
        if "gate" not in self.options:
            time.sleep(0.02)  # others come meanwhile
            return
        print(f"inside: {number:g}", flush=True)
        while not Path(self.options["gate"]).exists():
            time.sleep(0.001)

    def burst_executor(self):
        return Executor(self) if self.options.get("executor") else None


class Executor(BurstExecutor):
    def __init__(self, prepared):
        self.prepared = prepared

    def add(self, slot, memory):
        pass

    def remove(self, slot):
        pass

    def execute(self, request, slots, control):
        return type(self.prepared).run(self.prepared, request, control)


device = Queued
