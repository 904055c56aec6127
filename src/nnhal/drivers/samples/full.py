"""Sample drivers that support every operation of their HAL version, on the reference kernels: one for each HAL version.

Those of 1.0 to 1.2 implement the methods of the HAL interface and are adapted; that of 1.3 is a `Device`.
"""
# ruff: noqa: N801, N802 - names are the HAL's

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnhal.base.codes import DeviceStatus, DeviceType, ErrorStatus, Preference
from nnhal.base.errors import NnhalError
from nnhal.base.levels import V1_3
from nnhal.base.memory import Memory
from nnhal.drivers.reference import Interpreter, Reference
from nnhal.hal.cache.files import CacheContent, CacheFiles
from nnhal.hal.device import Capabilities, Device, Hints, Performance, Prepared
from nnhal.hal.hidl.arguments import HalRequest, HalTiming, OutputShape, output_shapes, to_arrays
from nnhal.hal.hidl.interfaces import ExecutionCallback, InlinedModel, PreparedModelCallback
from nnhal.hal.request import Control, Request
from nnhal.hal.utilities import OldCapabilities
from nnhal.model.graph import Model
from nnhal.model.stored import pack_device_view, unpack_device_view

STATED = Performance(1.1, 1.1)
VERSION = "sample"


class PreparedV1_0:
    """A prepared model of 1.0 and 1.1: executes on a new thread, reports a status."""

    def __init__(self, model: InlinedModel) -> None:
        self.model, self.interpreter = model, Interpreter(model)

    def execute(self, request: HalRequest, callback: ExecutionCallback) -> ErrorStatus:
        """Check the request, then run it in the background."""
        try:
            arrays = to_arrays(request, self.model)
        except NnhalError as error:
            callback.notify(error.status)
            return error.status
        threading.Thread(target=self._run, args=(arrays, callback), daemon=True).start()
        return ErrorStatus.NONE

    def _run(self, arrays: Request, callback: ExecutionCallback) -> None:
        try:
            arrays.execute(self.interpreter.run, Control())
            callback.notify(ErrorStatus.GENERAL_FAILURE if arrays.small else ErrorStatus.NONE)
        except NnhalError as error:
            callback.notify(error.status)
        except BaseException:
            callback.notify(ErrorStatus.GENERAL_FAILURE)
            raise


class FullV1_0:
    """A driver of 1.0."""

    name = "sample-full-1.0"

    def getCapabilities(self) -> tuple[ErrorStatus, OldCapabilities]:
        """Declare to be a little slower than the CPU, in both respects."""
        return ErrorStatus.NONE, OldCapabilities(STATED, STATED)

    def getSupportedOperations(self, model: InlinedModel) -> tuple[ErrorStatus, Sequence[bool]]:
        """Return whether each operation has a kernel."""
        try:
            return ErrorStatus.NONE, [verdict.ok for verdict in Reference().supports(model)]
        except NnhalError as error:
            return error.status, ()

    def prepareModel(self, model: InlinedModel, callback: PreparedModelCallback) -> ErrorStatus:
        """Prepare at once."""
        return self.notified(callback.notify, PreparedV1_0, model)

    def getStatus(self) -> DeviceStatus:
        """Return that the device is never busy."""
        return DeviceStatus.AVAILABLE

    def notified(self, notify: Any, kind: Any, model: InlinedModel) -> ErrorStatus:
        """Prepare a model and pass it to the callback, or the reason of the failure; return the same status."""
        try:
            prepared, status = kind(model), ErrorStatus.NONE
        except NnhalError as error:
            prepared, status = None, error.status
        notify(status, prepared)
        return status


class FullV1_1(FullV1_0):
    """A driver of 1.1: receives the preference, and may compute with relaxed precision."""

    name = "sample-full-1.1"

    def getCapabilities_1_1(self) -> tuple[ErrorStatus, OldCapabilities]:
        """Declare relaxed float32 too."""
        return ErrorStatus.NONE, OldCapabilities(STATED, STATED, STATED)

    def getSupportedOperations_1_1(self, model: InlinedModel) -> tuple[ErrorStatus, Sequence[bool]]:
        """Return whether each operation has a kernel."""
        return FullV1_0.getSupportedOperations(self, model)

    def prepareModel_1_1(
        self, model: InlinedModel, preference: Preference, callback: PreparedModelCallback
    ) -> ErrorStatus:
        """Prepare at once, whatever the preference."""
        if preference not in Preference.__members__.values():
            callback.notify(ErrorStatus.INVALID_ARGUMENT, None)
            return ErrorStatus.INVALID_ARGUMENT
        return self.notified(callback.notify, PreparedV1_0, model)


class PreparedV1_2(PreparedV1_0):
    """A prepared model of 1.2: also synchronous, with shapes and timing."""

    def executeSynchronously(
        self, request: HalRequest, measure: bool
    ) -> tuple[ErrorStatus, Sequence[OutputShape], HalTiming]:
        """Run the request in the caller's thread."""
        try:
            arrays = to_arrays(request, self.model)
            timing = arrays.execute(self.interpreter.run, Control(measure=measure))
        except NnhalError as error:
            return error.status, (), HalTiming()
        shapes = output_shapes(arrays)
        if arrays.small:
            return ErrorStatus.OUTPUT_INSUFFICIENT_SIZE, shapes, HalTiming()
        return ErrorStatus.NONE, shapes, HalTiming.of(timing)

    def execute_1_2(self, request: HalRequest, measure: bool, callback: ExecutionCallback) -> ErrorStatus:
        """Run the request in the background."""

        def run() -> None:
            try:
                result = self.executeSynchronously(request, measure)
            except BaseException:
                callback.notify_1_2(ErrorStatus.GENERAL_FAILURE, (), HalTiming())
                raise
            callback.notify_1_2(*result)

        threading.Thread(target=run, daemon=True).start()
        return ErrorStatus.NONE


class FullV1_2(FullV1_1):
    """A driver of 1.2."""

    name = "sample-full-1.2"

    def getVersionString(self) -> tuple[ErrorStatus, str]:
        """Return the version."""
        return ErrorStatus.NONE, VERSION

    def getType(self) -> tuple[ErrorStatus, DeviceType]:
        """Return that it computes on the CPU."""
        return ErrorStatus.NONE, DeviceType.CPU

    def getSupportedExtensions(self) -> tuple[ErrorStatus, Sequence[str]]:
        """Return no extensions."""
        return ErrorStatus.NONE, ()

    def getNumberOfCacheFilesNeeded(self) -> tuple[ErrorStatus, int, int]:
        """Return that it uses no compilation cache."""
        return ErrorStatus.NONE, 0, 0

    def getCapabilities_1_2(self) -> tuple[ErrorStatus, Capabilities]:
        """Declare the same performance for every type."""
        return ErrorStatus.NONE, Capabilities.uniform(*STATED)

    def getSupportedOperations_1_2(self, model: InlinedModel) -> tuple[ErrorStatus, Sequence[bool]]:
        """Return whether each operation has a kernel."""
        return FullV1_0.getSupportedOperations(self, model)

    def prepareModel_1_2(
        self,
        model: InlinedModel,
        preference: Preference,
        model_cache: Sequence[int],
        data_cache: Sequence[int],
        token: bytes,
        callback: PreparedModelCallback,
    ) -> ErrorStatus:
        """Prepare at once, without a cache entry."""
        if preference not in Preference.__members__.values():
            callback.notify_1_2(ErrorStatus.INVALID_ARGUMENT, None)
            return ErrorStatus.INVALID_ARGUMENT
        return self.notified(callback.notify_1_2, PreparedV1_2, model)


class PreparedV1_3(Interpreter):
    """A prepared model that can be cached: the model in the model file, constants in the data file."""

    def save(self, files: CacheContent) -> bool:
        files.model[0]["model"] = pack_device_view(self.model)
        for n, pool in enumerate(self.model.pools):
            files.data[0][f"pool {n}"] = pool.bytes()
        return True


class FullV1_3(Reference):
    """A driver of 1.3, which supports the compilation cache."""

    name = "sample-full-1.3"
    version = VERSION
    level = V1_3

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(*STATED)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return PreparedV1_3(model)

    def number_of_cache_files(self) -> CacheFiles:
        return CacheFiles(model=1, data=1)

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Prepared:
        pools = tuple(Memory.wrap(np.frombuffer(data, np.uint8)) for data in files.data[0].values())
        return PreparedV1_3(unpack_device_view(files.model[0]["model"], pools))


v1_0, v1_1, v1_2 = FullV1_0, FullV1_1, FullV1_2


def v1_3() -> Device:
    """Return the driver's device."""
    return FullV1_3()
