"""A driver that fails on command, to test its clients. Otherwise it runs on the reference kernels.

Set `NNHAL_FAULTY="supports=hang,capabilities=nan"`, which is read when the device is made. For `prepare` and `run` you
can also pass `driver_options={"faulty": {"run": "segv", "after": 3}}`. A fault may have a value: `sleep:0.5`. `after`
is the number of calls of that stage that succeed first.
"""

import ctypes
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnhal.base.errors import InvalidArgument, OperationFailed
from nnhal.base.records import Record
from nnhal.drivers.reference import Reference
from nnhal.drivers.samples.full import VERSION
from nnhal.hal.device import YES, Capabilities, Device, Hints, Prepared, Verdict
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model

VARIABLE = "NNHAL_FAULTY"
STAGES = "make", "capabilities", "supports", "prepare", "run"
_kept: list[Any] = []  # memory that leaks on purpose, until the process ends


class Fault(Record, frozen=True):
    """A fault, and the stages that can have it.

    Its function receives the value after the colon, or the default.
    """

    act: Callable[[float], None]
    default: float = 0.0
    stages: Sequence[str] = STAGES


def _hang(_: float) -> None:
    while True:
        threading.Event().wait(3600)


def _spin(_: float) -> None:
    while True:
        pass


def _freeze(_: float) -> None:
    """Hang with the interpreter lock held: no other thread of the process can run."""
    ctypes.PyDLL(None).pause()


def _segv(_: float) -> None:
    ctypes.string_at(0)


def _kill(number: float) -> None:
    os.kill(os.getpid(), int(number))
    time.sleep(60)  # the kernel may deliver a process's signal to another thread


def _raise(_: float) -> None:
    raise RuntimeError("raised on command")


def _fail(_: float) -> None:
    raise OperationFailed("faulty: failed on command")


def _leave(_: float) -> None:
    sys.exit(1)


def _leak_memory(mebibytes: float) -> None:
    _kept.append(np.ones(int(mebibytes) << 20, np.uint8))


def _leak_descriptors(count: float) -> None:
    _kept.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(int(count)))


def _allocate(mebibytes: float) -> None:
    """Touch memory block by block, so that a limit or the kernel ends the process before the machine suffers."""
    blocks = [np.ones(1 << 24, np.uint8) for _ in range(int(mebibytes) >> 4)]
    del blocks


def _read_file(_: float) -> None:
    with open("/etc/passwd", "rb") as file:
        file.read()


def _write_file(_: float) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"faulty")


def _connect(_: float) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()


def _execute(_: float) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def _lie(_: float) -> None:
    """Do nothing: the stage returns the wrong answer."""


FAULTS: Mapping[str, Fault] = {
    "hang": Fault(_hang),
    "spin": Fault(_spin),
    "freeze": Fault(_freeze),
    "sleep": Fault(time.sleep, 0.1),
    "segv": Fault(_segv),
    "kill": Fault(_kill, signal.SIGKILL),
    "abort": Fault(lambda _: os.abort()),
    "exit": Fault(lambda code: os._exit(int(code)), 3),
    "sys-exit": Fault(_leave),
    "raise": Fault(_raise),
    "fail": Fault(_fail),
    "leak-memory": Fault(_leak_memory, 16),
    "leak-descriptors": Fault(_leak_descriptors, 8),
    "allocate": Fault(_allocate, 4096),
    "read-file": Fault(_read_file),
    "write-file": Fault(_write_file),
    "socket": Fault(_connect),
    "exec": Fault(_execute),
    "nan": Fault(_lie, stages=("capabilities",)),
    "negative": Fault(_lie, stages=("capabilities",)),
    "short": Fault(_lie, stages=("supports",)),
    "long": Fault(_lie, stages=("supports",)),
    "nothing": Fault(_lie, stages=("supports", "prepare")),
    "wrong-shape": Fault(_lie, stages=("run",)),
    "wrong-value": Fault(_lie, stages=("run",)),
}


class Orders:
    """The faults ordered for each stage. InvalidArgument for an unknown stage or fault."""

    def __init__(self, orders: Mapping[str, Any], source: str) -> None:
        self._after = int(orders.get("after", 0))
        self._orders = {stage: str(order) for stage, order in orders.items() if stage != "after"}
        self._calls: Counter[str] = Counter()
        for stage, order in self._orders.items():
            if stage not in STAGES:
                raise InvalidArgument(f"{source}: stage is {stage!r}, must be one of {', '.join(STAGES)} (or after)")
            name, _, value = order.partition(":")
            there = [n for n, fault in FAULTS.items() if stage in fault.stages]
            if name not in there:
                raise InvalidArgument(f"{source}: {stage} is {name!r}, must be one of {', '.join(there)}")
            try:
                float(value or 0)
            except ValueError:
                raise InvalidArgument(f"{source}: {stage} is {order!r}, must have a number after the colon") from None

    def obey(self, stage: str) -> str:
        """Raise or perform the fault ordered for a stage; return the ordered wrong answer, or ""."""
        order = self._orders.get(stage)
        self._calls[stage] += 1
        if order is None or self._calls[stage] <= self._after:
            return ""
        name, _, value = order.partition(":")
        fault = FAULTS[name]
        fault.act(float(value) if value else fault.default)
        return name


class FaultyPrepared(Prepared):
    """A prepared model of the faulty driver."""

    def __init__(self, inner: Prepared, orders: Sequence[Orders]) -> None:
        self._inner, self._orders = inner, orders

    def run(self, request: Request, control: Control) -> Timing | None:
        lies = {orders.obey("run") for orders in self._orders}
        if "wrong-shape" in lies:
            for index in range(len(request.outputs)):
                request.write(index, np.zeros((7, 7, 7), np.float32))
        if "wrong-value" not in lies:
            return self._inner.run(request, control)
        inner = self._inner.request(request.given)
        timing = inner.execute(self._inner.run, control)
        for index, result in enumerate(inner.results):
            request.write(index, np.invert(result.view(np.uint8)).view(result.dtype))
        return timing


class Faulty(Reference):
    """The device."""

    name = "faulty"
    version = VERSION

    def __init__(self, orders: str = "") -> None:
        pairs = [item.partition("=") for item in orders.replace(" ", "").split(",") if item]
        self._orders = Orders({stage: order for stage, _, order in pairs}, VARIABLE)
        self._orders.obey("make")

    def capabilities(self) -> Capabilities:
        lie = self._orders.obey("capabilities")
        return Capabilities.uniform({"nan": math.nan, "negative": -1.0}.get(lie, 1.0))

    def supports(self, model: Model) -> list[Verdict]:
        lie = self._orders.obey("supports")
        verdicts = super().supports(model)
        answers: Mapping[str, Any] = {"short": verdicts[:-1], "long": [*verdicts, YES], "nothing": None}
        return answers.get(lie, verdicts)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        orders = self._orders, Orders(hints.options, "driver_options")
        if "nothing" in [o.obey("prepare") for o in orders]:
            return None  # type: ignore[return-value]
        return FaultyPrepared(super().prepare(model, hints), orders)


def device() -> Device:
    """Return the driver's device."""
    return Faulty(os.environ.get(VARIABLE, ""))
