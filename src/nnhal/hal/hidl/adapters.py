"""Adapts drivers written for NN HAL 1.0, 1.1 or 1.2 (or 1.3, with the HAL's names).

The runtime uses `hal.device.Device` only; `adapt` returns one for an object with the HAL's methods (`interfaces`).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nnhal.base.codes import DeviceStatus, DeviceType, ErrorStatus
from nnhal.base.errors import (
    InvalidArgument,
    InvalidModel,
    NnhalError,
    OperationFailed,
    OutputInsufficientSize,
    error_of,
)
from nnhal.base.levels import V1_1, V1_2, V1_3, Level
from nnhal.base.operands import dtype_of
from nnhal.hal.background import asynchronous
from nnhal.hal.burst import Burst, BurstExecutor
from nnhal.hal.cache.files import TOKEN_SIZE, Cache, CacheFiles
from nnhal.hal.code import CodeIdentity, CreationArguments, code_of
from nnhal.hal.device import Capabilities, Device, Hints, Prepared, Verdict
from nnhal.hal.hidl.arguments import HalTiming, OutputBuffer, OutputShape, PlacedRequest, collect, lay_out
from nnhal.hal.hidl.burst import Call, HalExecutor, burst_of
from nnhal.hal.hidl.calls import Callback, Calls, Trace
from nnhal.hal.hidl.interfaces import InlinedModel, hal_level, newest_method
from nnhal.hal.host import LocalBurst
from nnhal.hal.lowering import lowered, refusals, with_neighbours
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.hal.request import Control, Request, Timing
from nnhal.hal.utilities import OldCapabilities, upgrade
from nnhal.model.graph import Model
from nnhal.model.parts import extract_part
from nnhal.model.validate import validate
from nnhal.ops.schema import agree, show

GUESSED_ROOM = 4096  # the least bytes for an output of unknown shape in its first execution
ATTEMPTS = 6  # executions of one request, each with larger buffers if the last ones were too small


def adapt(driver: object, name: str = "", trace: Trace | None = None) -> Device:
    """Return a device for a HAL driver. trace: receives the HAL name of every method that is called.

    InvalidArgument if the object is not a HAL driver or lacks a method; OperationFailed, or the error of its status, if
    its identity cannot be read.
    """
    level = hal_level(driver)
    if level is None:
        raise InvalidArgument(
            f"{type(driver).__name__} is not a driver, must have the methods of IDevice or be a Device"
        )
    return Adapted(driver, level, name or getattr(driver, "name", "") or type(driver).__name__, trace)


# --------------------------------------------------------------------------------------------------------------- device


class Adapted(Device):
    """A device for a HAL driver."""

    def __init__(self, driver: object, level: Level, name: str, trace: Trace | None = None) -> None:
        self.driver, self.level, self.name = driver, level, name
        self._device_state.made_with = CreationArguments.of(getattr(driver, "__dict__", {}))
        self.one_at_a_time = getattr(driver, "one_at_a_time", False)
        self.at_once = getattr(driver, "at_once", 0)
        self.calls = Calls(name, level, trace)
        self._capabilities: Capabilities | None = None
        self.version, self.type = "unknown", DeviceType.OTHER
        if level >= V1_2:
            self.version = str(self._ask("getVersionString"))
            self.type = self._type(self._ask("getType"))
            self.extensions = tuple(map(str, self._ask("getSupportedExtensions")))

    @property
    def code_identity(self) -> CodeIdentity:
        """The identity of the driver's code, and of the object's attributes when it was adapted."""
        return code_of(type(self.driver), self._device_state.made_with)

    def _ask(self, method: str) -> Any:
        return self.calls.answer(self.driver, method, 1)[0]

    def _type(self, given: Any) -> DeviceType:
        if given not in DeviceType.__members__.values():
            there = ", ".join(DeviceType.__members__)
            raise OperationFailed(f"driver {self.name}: getType gave {given!r}, must be one of {there}")
        return DeviceType(given)

    def capabilities(self) -> Capabilities:
        """Return the declared performance, read once; old versions as a table."""
        if self._capabilities is None:
            given = self._ask("getCapabilities")
            wanted = Capabilities if self.level >= V1_2 else OldCapabilities
            if not isinstance(given, wanted):
                kind = type(given).__name__
                raise OperationFailed(f"driver {self.name}: getCapabilities gave {kind}, must be {wanted.__name__}")
            self._capabilities = upgrade(given) if isinstance(given, OldCapabilities) else given
        return self._capabilities

    def status(self) -> DeviceStatus:
        """Return the driver's status; UNKNOWN without such a method."""
        if newest_method(self.driver, "getStatus", self.level) is None:
            return DeviceStatus.UNKNOWN
        given = self.calls.call(self.driver, "getStatus")
        if given not in DeviceStatus.__members__.values():
            raise OperationFailed(f"driver {self.name}: getStatus gave {given!r}, must be a DeviceStatus")
        return DeviceStatus(given)

    def supports(self, model: Model) -> Sequence[Verdict]:
        """Return the driver's verdicts on the part of the model that its level can express, and reasons for the rest."""
        reasons = refusals(model, self.level)
        asked = [n for n, reason in enumerate(reasons) if not reason]
        if not asked:
            return [Verdict(False, reason) for reason in reasons]
        part = _form(lowered(extract_part(model, asked).model, self.level), self.level)
        (answers,) = self.calls.answer(self.driver, "getSupportedOperations", 1, part)
        if not isinstance(answers, Sequence) or len(answers) != len(asked):
            count = len(answers) if isinstance(answers, Sequence) else "no"
            raise OperationFailed(
                f"driver {self.name}: getSupportedOperations gave {count} verdicts, "
                f"must be {len(asked)}, one an operation"
            )
        for n, answer in zip(asked, answers, strict=True):
            reasons[n] = "" if answer else "the driver rejects it"
        return [Verdict(not reason, reason) for reason in with_neighbours(model, reasons, self.level)]

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        """Have the driver prepare the model at its level, and wait for its callback or the deadline.

        The driver receives no options: INVALID_ARGUMENT is about the model, and becomes InvalidModel.
        """
        try:
            return self._prepare(model, hints)
        except InvalidModel:
            raise
        except InvalidArgument as error:
            raise InvalidModel(str(error)) from None

    def _prepare(self, model: Model, hints: Hints) -> Prepared:
        old = _form(lowered(model, self.level), self.level)
        form = newest_method(self.driver, "prepareModel", self.level)
        assert form is not None  # `adapt` has checked it
        return self._notified(form, self._arguments(form[0], old, hints), old, hints)

    def number_of_cache_files(self) -> CacheFiles:
        """Return the driver's numbers; none if it cannot prepare from cache files."""
        here = [
            newest_method(self.driver, each, self.level)
            for each in ("getNumberOfCacheFilesNeeded", "prepareModelFromCache")
        ]
        if None in here:
            return CacheFiles()
        return CacheFiles(*self.calls.answer(self.driver, "getNumberOfCacheFilesNeeded", 2))

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        """Have the driver prepare from the files. As in the HAL, the driver verifies their integrity."""
        form = newest_method(self.driver, "prepareModelFromCache", self.level)
        if form is None:
            raise OperationFailed(f"driver {self.name}: has no prepareModelFromCache")
        until = (hints.deadline,) if form[0] == "prepareModelFromCache_1_3" else ()
        old = _form(outline, self.level)
        return self._notified(form, (*until, *_kept(hints)), old, hints)

    def _notified(
        self, form: tuple[str, Callable[..., Any]], arguments: Sequence[Any], old: Model, hints: Hints
    ) -> Prepared:
        """Return what a preparing method hands to its callback."""
        method = form[0].partition("_")[0]
        callback = Callback(f"driver {self.name}: {method}")
        try:
            launched = self.calls.exactly(*form, *arguments, callback)
            self.calls.expect(launched, form[0])
        except NnhalError:
            callback.close()
            raise
        result = callback.wait(hints.deadline)
        status = self.calls.status(result[0] if result else None, "notify")
        if status != ErrorStatus.NONE:
            raise error_of(status, f"driver {self.name}: {method} ended with {status.name}")
        prepared = result[1] if len(result) > 1 else None
        if not any(newest_method(prepared, name, self.level) for name in ("execute", "executeSynchronously")):
            raise OperationFailed(
                f"driver {self.name}: {method} gave {type(prepared).__name__}, must be a prepared model"
            )
        return AdaptedPrepared(self.calls, prepared, old)

    @staticmethod
    def _arguments(form: str, model: Model, hints: Hints) -> tuple[Any, ...]:
        """Return the arguments of a version of prepareModel, except for the callback."""
        kept = _kept(hints)
        return {
            "prepareModel": (model,),
            "prepareModel_1_1": (model, hints.preference),
            "prepareModel_1_2": (model, hints.preference, *kept),
            "prepareModel_1_3": (model, hints.preference, hints.priority, hints.deadline, *kept),
        }[form]

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        """Raise OperationFailed: HAL versions below 1.3 have no driver buffers. The runtime then uses shared memory."""
        if self.level < V1_3:
            raise OperationFailed(f"allocate needs level {V1_3}, device {self.name} is at {self.level}")
        return super().allocate(desc, roles)


def _kept(hints: Hints) -> tuple[tuple[int, ...], tuple[int, ...], bytes]:
    """Return the cache files and the token as in the HAL; empty without a cache."""
    cache = hints.cache or Cache(bytes(TOKEN_SIZE))
    return cache.model_files, cache.data_files, cache.token


def _form(model: Model, level: Level) -> Model:
    if level >= V1_3:
        return model
    old = InlinedModel(
        model.main, model.referenced, model.values, model.pools, model.relaxed, model.extensions, (), model.name
    )
    old._memo.update(model._memo)
    return old


# ------------------------------------------------------------------------------------------------------- prepared model


class AdaptedPrepared(Prepared):
    """A prepared model of a HAL driver. It writes to pools of one execution, which are read at its end."""

    def __init__(self, calls: Calls, prepared: object, model: Model) -> None:
        self._calls, self._prepared = calls, prepared
        self.model = model
        forms = (
            newest_method(prepared, "executeSynchronously", calls.level),
            newest_method(prepared, "execute", calls.level),
        )
        wanted = (forms[1] or forms[0]) if asynchronous() else (forms[0] or forms[1])
        assert wanted is not None  # the device has checked it
        self._name, self._method = wanted
        self._synchronous = self._name.startswith("executeSynchronously")
        self._main = model.main
        values = validate(model).subgraphs[0].values
        self._types = [dtype_of(self._main.operands[i].type) for i in self._main.outputs]
        self._declared = [None if (v := values[i]) is None else v.shape for i in self._main.outputs]
        self._known = self._rooms(None) if all(s is not None and None not in s for s in self._declared) else None
        self._learned = [0] * len(self._types)  # bytes that outputs of unknown shape have needed

    def run(self, request: Request, control: Control) -> Timing | None:
        """Execute; repeat with larger buffers if an output of unknown shape turns out larger."""
        return self._run(self._call, request, control)

    def burst(self) -> Burst:
        """Return the driver's burst, or one of plain executions."""
        burst, own = LocalBurst(self), burst_of(self._calls, self._prepared, self._call)
        if own is not None:
            burst.runs_by(partial(self._run, own.exchange), own.close)
        return burst

    def burst_executor(self) -> BurstExecutor | None:
        """Return the driver's burst for another process."""
        own = burst_of(self._calls, self._prepared, self._call)
        return None if own is None else HalExecutor(partial(self._run, own.exchange))

    def _run(self, call: Call, request: Request, control: Control) -> Timing | None:
        control.check()
        for _ in range(ATTEMPTS):
            rooms = self._known or self._rooms(request)
            shapes, timing, small = self._once(call, request, rooms, control)
            if not small:
                return timing.measured() if control.measure else None
            if not self._grow(request, rooms, shapes):
                request.lacks([s.dimensions for s in shapes], [s.is_sufficient for s in shapes])
                return None
        needs = ", ".join(f"output {i}: {show(s.dimensions)}" for i, s in enumerate(shapes) if not s.is_sufficient)
        raise OutputInsufficientSize(
            f"driver {self._calls.device}: still wants more room after {ATTEMPTS} executions: {needs}",
            [s.dimensions for s in shapes],
        )

    def _rooms(self, request: Request | None) -> list[OutputBuffer]:
        """Return the buffer for each output; `request` is needed if a shape is unknown."""
        rooms = []
        for index, (dtype, declared) in enumerate(zip(self._types, self._declared, strict=True)):
            if declared is not None and None not in declared:
                size = math.prod(declared) * dtype.itemsize  # type: ignore[arg-type]
                rooms.append(OutputBuffer(dtype, declared, size))  # type: ignore[arg-type]
                continue
            assert request is not None
            target = request.room(index)
            given = sum(x.nbytes for x in request.given if x is not None)
            guess = self._learned[index] or max(GUESSED_ROOM, given)
            rooms.append(OutputBuffer(dtype, None, guess if target is None else target.nbytes))
        return rooms

    def _grow(self, request: Request, rooms: Sequence[OutputBuffer], shapes: Sequence[OutputShape]) -> bool:
        """Note the sizes that outputs need; return False if the caller's buffer for one is too small."""
        for index, (room, shape) in enumerate(zip(rooms, shapes, strict=True)):
            if shape.is_sufficient:
                continue
            if request.room(index) is not None or room.shape is not None:
                return False
            known = shape.dimensions and 0 not in shape.dimensions
            exact = math.prod(shape.dimensions) * room.dtype.itemsize if known else 0
            self._learned[index] = max(exact, 0 if exact > room.size else 4 * room.size)
        return True

    def _once(
        self, call: Call, request: Request, rooms: Sequence[OutputBuffer], control: Control
    ) -> tuple[Sequence[OutputShape], HalTiming, bool]:
        """Execute once; return shapes (empty if all were known), timing, and whether an output was too small."""
        laid = lay_out(request, rooms)
        status, shapes, timing = self._judged(call(laid, control))
        if status == ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
            shapes = self._checked(shapes, rooms)
            if all(s.is_sufficient for s in shapes):
                raise OperationFailed(f"{self._where}: OUTPUT_INSUFFICIENT_SIZE, must name the output")
            return shapes, timing, True
        self._calls.expect(status, self._name)
        if shapes or any(room.shape is None for room in rooms):
            shapes = self._checked(shapes, rooms)
        if any(not s.is_sufficient for s in shapes):
            raise OperationFailed(
                f"{self._where}: gave NONE, must be OUTPUT_INSUFFICIENT_SIZE where an output is too small"
            )
        collect(laid, request, rooms, shapes)
        return shapes, timing, False

    @property
    def _where(self) -> str:
        return f"driver {self._calls.device}: {self._name}"

    def _call(self, laid: PlacedRequest, control: Control) -> Any:
        """Return the driver's answer to a plain execution."""
        arguments: list[Any] = [laid.request]
        if self._name != "execute":
            arguments.append(control.measure)
        if self._name.endswith("_1_3"):
            arguments += [control.deadline, control.loop_timeout]
        if self._synchronous:
            return self._calls.exactly(self._name, self._method, *arguments)
        callback = Callback(self._where)
        try:
            self._calls.expect(self._calls.exactly(self._name, self._method, *arguments, callback), self._name)
        except NnhalError:
            callback.close()
            raise
        return callback.wait(control.deadline, control.cancelled)

    def _judged(self, result: Any) -> tuple[ErrorStatus, Sequence[OutputShape], HalTiming]:
        """Verify the answer to an execution."""
        if not isinstance(result, tuple) or len(result) not in {1, 3} or (self._synchronous and len(result) == 1):
            raise OperationFailed(f"{self._where}: gave {result!r}, must give a status, shapes and timing")
        status = self._calls.status(result[0], self._name)
        if len(result) == 1 or self._calls.level <= V1_1:
            return status, (), HalTiming()
        if not isinstance(result[1], Sequence):
            raise OperationFailed(f"{self._where}: gave {result[1]!r}, must give output shapes")
        return status, tuple(result[1]), result[2] if isinstance(result[2], HalTiming) else HalTiming()

    def _checked(self, shapes: Sequence[Any], rooms: Sequence[OutputBuffer]) -> Sequence[OutputShape]:
        """Return the shapes that a driver reports; OperationFailed if they do not fit the model's outputs."""
        if len(shapes) != len(rooms) or not all(isinstance(s, OutputShape) for s in shapes):
            raise OperationFailed(f"{self._where}: gave {len(shapes)} output shapes, must be {len(rooms)}")
        for index, (shape, room, declared) in enumerate(zip(shapes, rooms, self._declared, strict=True)):
            if shape.is_sufficient and shape.dimensions == room.shape:
                continue
            if not all(isinstance(d, int) and d >= 0 for d in shape.dimensions):
                raise OperationFailed(f"{self._where}: output {index} has shape {shape.dimensions!r}, must be sizes")
            partly = tuple(d or None for d in shape.dimensions) if not shape.is_sufficient else shape.dimensions
            if declared is not None and (partly or shape.is_sufficient) and not agree(partly, declared):
                raise OperationFailed(
                    f"{self._where}: output {index} has shape {show(shape.dimensions)}, must be {show(declared)}"
                )
            size = math.prod(shape.dimensions) * room.dtype.itemsize
            if shape.is_sufficient and size > room.size:
                raise OperationFailed(
                    f"{self._where}: output {index} of shape {show(shape.dimensions)} has {size} bytes, "
                    f"must fit the {room.size} that it was given"
                )
        return shapes

    def close(self) -> None:
        """Drop the driver's prepared model: references determine its lifetime."""
        self._prepared = self._method = None  # type: ignore[assignment]
