"""Planted faults for the suite fuzz: a driver (`--option fault=NAME`), and targets with faults.

Faults of the driver: `crash`, `hang`, `raise` and `refuse` at a NaN in the last element of an input, `unchecked` trusts
its cache files, "" has none.
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnhal import api
from nnhal.base.errors import OperationFailed
from nnhal.base.memory import Memory
from nnhal.conformance.suites.fuzz.target import FuzzTarget, ProcessSpent, WrongAnswer
from nnhal.conformance.suites.fuzz.targets.importers import TfliteTarget
from nnhal.drivers.reference import Interpreter, Reference
from nnhal.hal.cache.files import CacheFiles
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model
from nnhal.model.stored import pack_device_view, unpack_device_view


class Planted(Reference):
    """The device."""

    name = "planted-fuzz"

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        fault = str(hints.options.get("fault", ""))
        if fault == "unchecked" and hints.cache is not None:
            parts = [pack_device_view(model), *(pool.bytes().tobytes() for pool in model.pools)]
            os.write(hints.cache.files[0], b"".join(len(part).to_bytes(4, "little") + part for part in parts))
        return Rare(model, fault)

    def number_of_cache_files(self) -> CacheFiles:
        return CacheFiles(model=1, data=0)

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        assert hints.cache is not None
        fd = hints.cache.files[0]
        data, parts = os.pread(fd, os.fstat(fd).st_size, 0), []
        while data:
            size = int.from_bytes(data[:4], "little")
            parts.append(data[4 : 4 + size])
            data = data[4 + size :]
        pools = tuple(Memory.wrap(np.frombuffer(part, np.uint8)) for part in parts[1:])
        return Rare(unpack_device_view(parts[0], pools), "")


class Rare(Interpreter):
    """Crashes, hangs or fails if the last element of an input is a NaN."""

    def __init__(self, model: Model, fault: str) -> None:
        super().__init__(model)
        self._fault = fault

    def run(self, request: Request, control: Control) -> Timing | None:
        if any(x is not None and x.dtype.kind == "f" and x.size and np.isnan(x.flat[-1]) for x in request.inputs):
            if self._fault == "crash":
                os.abort()
            if self._fault == "raise":
                raise KeyError("a NaN")
            if self._fault == "refuse":
                raise OperationFailed("NaN is not supported")
            while self._fault == "hang":
                time.sleep(0.01)
        return super().run(request, control)


def device() -> Planted:
    """The device."""
    return Planted()


class PlantedTarget(FuzzTarget):
    """Does what its input names."""

    name = "planted"
    seconds = 0.2
    memory = 256 << 20

    def run(self, data: bytes) -> str:
        acts: Mapping[bytes, Any] = {
            b"crash": os.abort,
            b"exit": lambda: os._exit(3),
            b"loop": lambda: [None for _ in iter(int, 1)],
            b"memory": lambda: bytearray(1 << 30),
        }
        if b"raise" in data:
            raise KeyError("not an error of nnhal's")
        if data == b"wrong":
            raise WrongAnswer("2 is 3, must be 2")
        if data == b"spent":
            raise ProcessSpent("spent")
        if data in acts:
            acts[data]()
        return "right"


class SleepingTarget(FuzzTarget):
    """Waits for something that does not come."""

    name = "sleeping"
    patience = 1.0

    def run(self, data: bytes) -> str:
        threading.Event().wait()
        return "never"


class BuggyImporter(TfliteTarget):
    """An importer that fails on a rare size."""

    def run(self, data: bytes) -> str:
        ended = super().run(data)
        if ended == "run: right" and any({17, 64, 1000} & set(o.dimensions) for o in api.load(data).main.operands):
            return {}["a rare size"]
        return ended


class IdleTarget(PlantedTarget):
    """Ends its process before any input."""

    def seeds(self) -> Sequence[bytes]:
        os._exit(0)
