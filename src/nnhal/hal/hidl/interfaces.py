"""The HAL's interfaces by version, as a driver in Python implements them.

HIDL's generated callbacks are return values: `getCapabilities() -> (ErrorStatus, OldCapabilities)`. A driver is any
object with the methods of its level. The newest version of a method (`prepareModel`, `prepareModel_1_1`) is called.
"""
# ruff: noqa: N801, N802, N803 - names are the HAL's

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from nnhal.base.codes import DeviceStatus, DeviceType, ErrorStatus, Preference, Priority
from nnhal.base.errors import InvalidArgument
from nnhal.base.levels import V1_0, V1_1, V1_2, V1_3, Level
from nnhal.hal.device import Capabilities
from nnhal.hal.hidl.arguments import HalRequest, HalTiming, OutputShape
from nnhal.hal.hidl.packets import Memories, PacketQueue
from nnhal.hal.utilities import OldCapabilities
from nnhal.model.graph import Model, Operand, Operation

DEVICE_METHODS: Mapping[str, Level] = {
    "getCapabilities": V1_0,
    "getSupportedOperations": V1_0,
    "prepareModel": V1_0,
    "getStatus": V1_0,
    "getCapabilities_1_1": V1_1,
    "getSupportedOperations_1_1": V1_1,
    "prepareModel_1_1": V1_1,
    "getVersionString": V1_2,
    "getType": V1_2,
    "getSupportedExtensions": V1_2,
    "getCapabilities_1_2": V1_2,
    "getSupportedOperations_1_2": V1_2,
    "getNumberOfCacheFilesNeeded": V1_2,
    "prepareModel_1_2": V1_2,
    "prepareModelFromCache": V1_2,
    "getCapabilities_1_3": V1_3,
    "getSupportedOperations_1_3": V1_3,
    "prepareModel_1_3": V1_3,
    "prepareModelFromCache_1_3": V1_3,
    "allocate": V1_3,
}
PREPARED_METHODS: Mapping[str, Level] = {
    "execute": V1_0,
    "execute_1_2": V1_2,
    "executeSynchronously": V1_2,
    "configureExecutionBurst": V1_2,
    "execute_1_3": V1_3,
    "executeSynchronously_1_3": V1_3,
    "executeFenced": V1_3,
}
SINCE: Mapping[str, Level] = {**DEVICE_METHODS, **PREPARED_METHODS}
NEEDED = "getCapabilities", "getSupportedOperations", "prepareModel"  # required of every device


class InlinedModel(Model, frozen=True):
    """A model for drivers below 1.3: the fields of the main subgraph are part of the model."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        return self.main.operands

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations, in execution order."""
        return self.main.operations

    @property
    def input_indexes(self) -> tuple[int, ...]:
        """The operands that are inputs."""
        return self.main.inputs

    @property
    def output_indexes(self) -> tuple[int, ...]:
        """The operands that are outputs."""
        return self.main.outputs

    @property
    def operand_values(self) -> bytes:
        """The bytes of CONSTANT_COPY operands."""
        return self.values


class ExecutionCallback(Protocol):
    """Receives the end of an execution: exactly once, from any thread, through the newest version that the driver knows."""

    def notify(self, status: ErrorStatus) -> None:
        """1.0 and 1.1: a status only."""

    def notify_1_2(self, status: ErrorStatus, outputShapes: Sequence[OutputShape], timing: HalTiming) -> None:
        """1.2: also the shape of each output (empty if all were known), and the measured times."""

    def notify_1_3(self, status: ErrorStatus, outputShapes: Sequence[OutputShape], timing: HalTiming) -> None:
        """1.3: the same, with the statuses of 1.3."""


class PreparedModelV1_0(Protocol):
    """A prepared model of 1.0 and 1.1."""

    def execute(self, request: HalRequest, callback: ExecutionCallback) -> ErrorStatus:
        """Launch an execution and return the launch's status. `callback` is notified exactly once, also on failure."""


class PreparedModelV1_2(PreparedModelV1_0, Protocol):
    """A prepared model of 1.2."""

    def execute_1_2(self, request: HalRequest, measure: bool, callback: ExecutionCallback) -> ErrorStatus:
        """Launch an execution, and measure it on request."""

    def executeSynchronously(
        self, request: HalRequest, measure: bool
    ) -> tuple[ErrorStatus, Sequence[OutputShape], HalTiming]:
        """Execute. Shapes are returned on success and with OUTPUT_INSUFFICIENT_SIZE only."""

    def configureExecutionBurst(
        self, callback: Memories, requestChannel: PacketQueue, resultChannel: PacketQueue
    ) -> tuple[ErrorStatus, "BurstContext"]:
        """Open a burst. A status other than NONE refuses it.

        From now on, read a `BurstRequest` from `requestChannel` until it returns None, and write the status, shapes and
        timing of each to `resultChannel`.
        """


class BurstContext(Protocol):
    """A driver's end of a burst."""

    def freeMemory(self, slot: int) -> None:
        """Release what was derived from the memory of this slot, which is not used again."""


class PreparedModelCallback(Protocol):
    """Receives a prepared model: exactly once, from any thread; None with an error."""

    def notify(self, status: ErrorStatus, preparedModel: Any) -> None:
        """1.0 and 1.1."""

    def notify_1_2(self, status: ErrorStatus, preparedModel: Any) -> None:
        """1.2."""

    def notify_1_3(self, status: ErrorStatus, preparedModel: Any) -> None:
        """1.3."""


class DeviceV1_0(Protocol):
    """A driver of 1.0. Its attribute `name`, or else its class name, names the device."""

    def getCapabilities(self) -> tuple[ErrorStatus, OldCapabilities]:
        """Return the declared performance."""

    def getSupportedOperations(self, model: InlinedModel) -> tuple[ErrorStatus, Sequence[bool]]:
        """Return whether each operation is supported, in order."""

    def prepareModel(self, model: InlinedModel, callback: PreparedModelCallback) -> ErrorStatus:
        """Launch a compilation and return the launch's status."""

    def getStatus(self) -> DeviceStatus:
        """Return whether the device is available."""


class DeviceV1_1(DeviceV1_0, Protocol):
    """A driver of 1.1."""

    def getCapabilities_1_1(self) -> tuple[ErrorStatus, OldCapabilities]:
        """Return the declared performance, including that of relaxed float32."""

    def getSupportedOperations_1_1(self, model: InlinedModel) -> tuple[ErrorStatus, Sequence[bool]]:
        """Return whether each operation is supported."""

    def prepareModel_1_1(
        self, model: InlinedModel, preference: Preference, callback: PreparedModelCallback
    ) -> ErrorStatus:
        """Launch a compilation."""


class DeviceV1_2(DeviceV1_1, Protocol):
    """A driver of 1.2."""

    def getVersionString(self) -> tuple[ErrorStatus, str]:
        """Return the driver's version."""

    def getType(self) -> tuple[ErrorStatus, DeviceType]:
        """Return the kind of device."""

    def getSupportedExtensions(self) -> tuple[ErrorStatus, Sequence[str]]:
        """Return the names of the supported vendor extensions."""

    def getCapabilities_1_2(self) -> tuple[ErrorStatus, Capabilities]:
        """Return the declared performance, by operand type."""

    def getSupportedOperations_1_2(self, model: InlinedModel) -> tuple[ErrorStatus, Sequence[bool]]:
        """Return whether each operation is supported."""

    def getNumberOfCacheFilesNeeded(self) -> tuple[ErrorStatus, int, int]:
        """Return the number of model and data cache files of a compilation."""

    def prepareModel_1_2(
        self,
        model: InlinedModel,
        preference: Preference,
        modelCache: Sequence[int],
        dataCache: Sequence[int],
        token: bytes,
        callback: PreparedModelCallback,
    ) -> ErrorStatus:
        """Launch a compilation. Cache files are descriptors; empty without a cache."""

    def prepareModelFromCache(
        self, modelCache: Sequence[int], dataCache: Sequence[int], token: bytes, callback: PreparedModelCallback
    ) -> ErrorStatus:
        """Launch the preparation of the cached compilation for the token."""


class DeviceV1_3(DeviceV1_2, Protocol):
    """A driver of 1.3, as far as nnhal adapts it: without driver buffers and fences."""

    def getCapabilities_1_3(self) -> tuple[ErrorStatus, Capabilities]:
        """Return the declared performance, including that of IF and WHILE."""

    def getSupportedOperations_1_3(self, model: Model) -> tuple[ErrorStatus, Sequence[bool]]:
        """Return whether each operation of the main subgraph is supported."""

    def prepareModel_1_3(
        self,
        model: Model,
        preference: Preference,
        priority: Priority,
        deadline: int | None,
        modelCache: Sequence[int],
        dataCache: Sequence[int],
        token: bytes,
        callback: PreparedModelCallback,
    ) -> ErrorStatus:
        """Launch a compilation. deadline: nanoseconds on the monotonic clock."""

    def prepareModelFromCache_1_3(
        self,
        deadline: int | None,
        modelCache: Sequence[int],
        dataCache: Sequence[int],
        token: bytes,
        callback: PreparedModelCallback,
    ) -> ErrorStatus:
        """Launch the preparation of the cached compilation for the token."""


def newest_method(owner: object, method: str, level: Level) -> tuple[str, Callable[..., Any]] | None:
    """Return the newest version of a method that the object has at this level, with its name; None without one."""
    for at in sorted((V1_0, V1_1, V1_2, V1_3), reverse=True):
        name = method if SINCE.get(method) == at else f"{method}_1_{at - 1}"
        found = getattr(owner, name, None) if SINCE.get(name) == at and at <= level else None
        if callable(found):
            return name, found
    return None


def hal_level(driver: object) -> Level | None:
    """Return the level of a HAL driver: its attribute `level`, or that of its newest `prepareModel`.

    None if it has none of the HAL's methods; InvalidArgument if it lacks some that its level needs.
    """
    if not any(callable(getattr(driver, name, None)) for name in DEVICE_METHODS if name != "allocate"):
        return None
    form = newest_method(driver, "prepareModel", V1_3)
    missing = [name for name in NEEDED if newest_method(driver, name, V1_3) is None]
    if form is None or missing:
        raise InvalidArgument(
            f"driver {type(driver).__name__} has no {', '.join(missing)}, must have {', '.join(NEEDED)}"
        )
    said = getattr(driver, "level", None)
    level = SINCE[form[0]] if said is None else Level(said)
    for name in NEEDED:
        if newest_method(driver, name, level) is None:
            raise InvalidArgument(f"driver {type(driver).__name__} has no {name} of level {level}, must have one")
    return min(level, V1_3)
