"""Drivers written against NN HAL 1.0 and 1.2, whose notifications, statuses and memory are not as the HAL has it."""
# ruff: noqa: N802 - names are the HAL's

import ctypes
import threading
import time
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from nnhal.base.codes import DeviceStatus, ErrorStatus
from nnhal.base.errors import NnhalError
from nnhal.hal.device import Performance
from nnhal.hal.hidl.arguments import HalRequest, RequestArgument, to_arrays
from nnhal.hal.hidl.interfaces import InlinedModel
from nnhal.hal.request import Control
from nnhal.hal.utilities import OldCapabilities

from .faults import BOTH, CONTRACT, fault
from .healthy import Engine, Healthy

LATE = 0.02  # seconds
HANGING = {"alone": True, "hangs": True}


class PreparedModel:
    """A prepared model of 1.0."""

    def __init__(self, model: InlinedModel) -> None:
        self.model, self.engine = model, Engine(Healthy(), model)

    def execute(self, request: HalRequest, callback: Any) -> Any:
        status = self.executed(request)
        callback.notify(status)
        return status

    def executed(self, request: HalRequest) -> ErrorStatus:
        """Do the work."""
        try:
            to_arrays(request, self.model).execute(self.engine.run, Control())
        except NnhalError as error:
            return error.status
        return ErrorStatus.NONE


class HalDriver:
    """A driver of 1.0 that is right."""

    prepared: type[PreparedModel] = PreparedModel

    def getCapabilities(self) -> Any:
        return ErrorStatus.NONE, OldCapabilities(*[Performance(0.05, 0.5)] * 2)

    def getStatus(self) -> Any:
        return DeviceStatus.AVAILABLE

    def getSupportedOperations(self, model: InlinedModel) -> Any:
        return ErrorStatus.NONE, [verdict.ok for verdict in Healthy().supports(model)]

    def prepareModel(self, model: InlinedModel, callback: Any) -> Any:
        callback.notify(ErrorStatus.NONE, self.prepared(model))
        return ErrorStatus.NONE


def executing(prepared: type[PreparedModel]) -> type[HalDriver]:
    """A driver whose prepared models are of this class."""
    return type(f"{prepared.__name__}Driver", (HalDriver,), {"prepared": prepared})


class ExecutionNotifiedTwice(PreparedModel):
    def execute(self, request: HalRequest, callback: Any) -> Any:
        status = super().execute(request, callback)
        callback.notify(ErrorStatus.GENERAL_FAILURE)
        return status


class ExecutionNeverNotified(PreparedModel):
    def execute(self, request: HalRequest, callback: Any) -> Any:
        return self.executed(request)


class ExecutionFails(PreparedModel):
    def execute(self, request: HalRequest, callback: Any) -> Any:
        callback.notify(ErrorStatus.GENERAL_FAILURE)
        return ErrorStatus.NONE


class ExecutionContradicts(PreparedModel):
    def execute(self, request: HalRequest, callback: Any) -> Any:
        super().execute(request, callback)
        return ErrorStatus.GENERAL_FAILURE


class StatusIsNone(PreparedModel):
    def execute(self, request: HalRequest, callback: Any) -> Any:
        callback.notify(42)
        return ErrorStatus.NONE


class NothingWritten(PreparedModel):
    def executed(self, request: HalRequest) -> ErrorStatus:
        return ErrorStatus.NONE


class NotifiedBeforeDone(PreparedModel):
    def execute(self, request: HalRequest, callback: Any) -> Any:
        def work() -> None:
            time.sleep(LATE)
            self.executed(request)

        threading.Thread(target=work, daemon=True).start()
        callback.notify(ErrorStatus.NONE)
        return ErrorStatus.NONE


class PastTheEnd(PreparedModel):
    def executed(self, request: HalRequest) -> ErrorStatus:
        status = super().executed(request)
        for place in request.outputs:
            view = request.pools[place.pool].view(place.offset, place.length, "u1", (place.length,))
            ctypes.memset(view.ctypes.data + view.nbytes, 0x11, 16)
        return status


class InputsWithoutOffsets(PreparedModel):
    def executed(self, request: HalRequest) -> ErrorStatus:
        return super().executed(replace(request, inputs=without_offsets(request.inputs)))


class OutputsWithoutOffsets(PreparedModel):
    def executed(self, request: HalRequest) -> ErrorStatus:
        return super().executed(replace(request, outputs=without_offsets(request.outputs)))


def without_offsets(arguments: Sequence[RequestArgument]) -> tuple[RequestArgument, ...]:
    """Arguments at the start of their pools."""
    return tuple(replace(each, offset=0) for each in arguments)


HAL_EXECUTIONS = {
    "hal-notified-twice": (
        ExecutionNotifiedTwice,
        "notifies the end of an execution twice",
        "callback",
        (CONTRACT,),
    ),
    "hal-never-notified": (ExecutionNeverNotified, "never notifies the end of an execution", "runs", BOTH),
    "hal-execution-fails": (ExecutionFails, "fails whatever it is asked", "runs", BOTH),
    "hal-contradicts": (
        ExecutionContradicts,
        "reports of one execution both a failure and a success",
        "runs",
        BOTH,
    ),
    "hal-status-nonsense": (StatusIsNone, "notifies an undefined status", "runs", BOTH),
    "hal-nothing-written": (NothingWritten, "reports success without writing anything", "output-filled", BOTH),
    "hal-notified-early": (NotifiedBeforeDone, "notifies before it has written its outputs", "output-filled", BOTH),
    "hal-input-offsets": (InputsWithoutOffsets, "reads its inputs at the start of their pools", "values", BOTH),
    "hal-output-offsets": (
        OutputsWithoutOffsets,
        "writes its outputs at the start of their pools",
        "output-filled",
        BOTH,
    ),
    "hal-past-the-end": (PastTheEnd, "writes 16 bytes past its output's memory", "past-end", BOTH),
}
for name, (kind, what, check, seen_by) in HAL_EXECUTIONS.items():
    special = {ExecutionNeverNotified: HANGING, InputsWithoutOffsets: {"numbers": True}}
    fault(name, f"HAL 1.0: {what}", check, seen_by, **special.get(kind, {}))(executing(kind))


@fault("hal-prepared-twice", "HAL 1.0: notifies a prepared model twice", "callback", (CONTRACT,))
class PreparedTwice(HalDriver):
    def prepareModel(self, model: InlinedModel, callback: Any) -> Any:
        super().prepareModel(model, callback)
        return super().prepareModel(model, callback)


@fault("hal-never-prepared", "HAL 1.0: never notifies a prepared model", "prepares", **HANGING)
class NeverPrepared(HalDriver):
    def prepareModel(self, model: InlinedModel, callback: Any) -> Any:
        return ErrorStatus.NONE


@fault("hal-prepares-nothing", "HAL 1.0: notifies NONE and gives no prepared model", "prepares")
class PreparesNothing(HalDriver):
    def prepareModel(self, model: InlinedModel, callback: Any) -> Any:
        callback.notify(ErrorStatus.NONE, None)
        return ErrorStatus.NONE


@fault("hal-verdict-too-few", "HAL 1.0: gives a verdict too few", "verdicts")
class HalVerdictTooFew(HalDriver):
    def getSupportedOperations(self, model: InlinedModel) -> Any:
        status, verdicts = super().getSupportedOperations(model)
        return status, verdicts[:-1]
