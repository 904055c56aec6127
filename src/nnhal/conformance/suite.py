"""Runs one vector on a device and judges it: passed, failed, crashed, unsupported. The caller detects hangs."""

import ctypes
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from nnhal.base.answers import close_quietly
from nnhal.base.errors import (
    Cancelled,
    ContractBroken,
    DeadObject,
    DeviceUnavailable,
    DriverFailed,
    InvalidModel,
    LoopTimeout,
    NnhalError,
)
from nnhal.base.levels import V1_2
from nnhal.base.memory import address, aligned
from nnhal.base.operands import Array, dtype_of
from nnhal.base.records import PartlyCompared
from nnhal.conformance.compare import compare_all, compare_frequencies
from nnhal.conformance.execution_paths import WAYS
from nnhal.conformance.vectors import Vector
from nnhal.conformance.verdict import fault_of
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Device, Hints, Prepared, where_of
from nnhal.hal.prepared import unwrapped
from nnhal.hal.request import Control, Request
from nnhal.ipc.client.process import ReconnectingDevice, ReconnectingModel
from nnhal.model.graph import Model
from nnhal.model.validate import validate

ENDLESS_LOOP_TIMEOUT_NS = 1_000_000
VERDICTS = "passed", "failed", "crashed", "hung", "unsupported"
BAD = "failed", "crashed", "hung"
# The calls of a driver, in order; before the first, there is no current vector.
BUILDING = "build"
STAGES = "", BUILDING, "supports", "prepare", "run", "close"
# never a valid failure, whatever the vector expects
NO_ANSWERS = DriverFailed, ContractBroken, DeviceUnavailable, Cancelled


class Outcome(PartlyCompared, frozen=True):
    """The outcome of one vector: one of `VERDICTS`, and why.

    hint: the likely cause. place: FILE:LINE of the driver, "" if unknown. outputs: of a failed vector. alone: the
    verdict of a vector alone in a new process, if it ended only a process in which others had run. before: the names
    of those others, in order.
    """

    id: str
    verdict: str
    reason: str = ""
    variant: str = ""
    primary: str = ""  # the operation under test
    nanoseconds: int = 0
    hint: str = ""
    outputs: tuple[Array | None, ...] = ()
    alone: str = ""
    before: tuple[str, ...] = ()
    place: str = ""

    _not_compared = _not_shown = frozenset({"outputs"})


def variants(flags: Iterable[str]) -> Iterator[str]:
    """Yield the variants of a vector: as published, and those of its flags."""
    yield ""
    if "dynamicOutputShape" in flags:
        yield "dynamic"
    if "quantCoupling" in flags:
        yield "signed"


def run_vector(
    vector: Vector,
    device: Device,
    variant: str = "",
    way: str = "plain",
    at: Callable[[str], None] = lambda stage: None,
) -> Outcome:
    """Build, prepare, execute in one of `WAYS` and compare one vector on one device.

    at: is called before each of `STAGES`.
    """

    def outcome(
        verdict: str, reason: str = "", hint: str = "", outputs: Sequence[Array | None] = (), place: str = ""
    ) -> Outcome:
        return Outcome(vector.id, verdict, reason, variant, hint=hint, outputs=tuple(outputs), place=place)

    stages = [""]

    def reached(stage: str) -> None:
        stages.append(stage)
        at(stage)

    try:
        ran = _run(vector, device, variant, way, reached)
    except BaseException as error:  # a driver's bug is a failed vector, not the end of the run
        if _expected(vector, error):
            return outcome("passed", f"fails as expected: {error}")
        raised = next(stage for stage in reversed(stages) if stage != "close" or isinstance(device, ReconnectingDevice))
        fault = fault_of(error, raised)
        where = f"{where_of(device)}: " if fault.verdict == "crashed" else ""
        return outcome(fault.verdict, f"{where}{fault.reason}", place=fault.place)
    if isinstance(ran, str):
        return outcome("unsupported", ran)
    if vector.expect_failure:
        return outcome("failed", "ran, must end in an error")
    if ran.small:
        return outcome("failed", f"the buffers of outputs {list(ran.small)} are too small for shapes {ran.shapes}")
    if vector.multinomial:
        reason, hint = compare_frequencies(vector, ran.given, ran.results)
    else:
        reason, hint = compare_all(vector, ran.results, vector.expected(signed=variant == "signed"))
    return outcome("failed", reason, hint, ran.results) if reason else outcome("passed")


def _expected(vector: Vector, error: BaseException) -> bool:
    """Whether a vector that must fail fails with this error."""
    if not vector.expect_failure or isinstance(error, (DeadObject, *NO_ANSWERS)):
        return False
    return isinstance(error, NnhalError) and isinstance(error, LoopTimeout) == ("while_infinite_loop" in vector.id)


def _run(vector: Vector, device: Device, variant: str, way: str, at: Callable[[str], None]) -> Request | str:
    """Return the request after its execution, or why the device does not support the vector.

    Raises the driver's errors.
    """
    at(BUILDING)
    model = vector.model(dynamic=variant == "dynamic", signed=variant == "signed")
    _require_valid(vector, model)
    given = read_only(vector.inputs(signed=variant == "signed"))
    at("supports")
    claims = consider_support(device, model, Hints())
    try:
        for why in claims.refused().values():
            return why
        at("prepare")
        prepared = checked_prepared(device, model, claims.hints(Hints()))
    finally:
        claims.release_work()
    try:
        at("run")
        request = prepared.request(given, _room(vector, variant, way, device))
        endless = vector.expect_failure and "WHILE" in vector.operations
        control = Control(loop_timeout=ENDLESS_LOOP_TIMEOUT_NS) if endless else Control()
        WAYS[way](device, prepared, request, control)
        return request
    finally:
        _close(device, prepared, at)


def _require_valid(vector: Vector, model: Model) -> None:
    """Raise InvalidModel for a vector that must run and whose model breaks a rule: no driver is at fault."""
    if vector.expect_failure:
        return
    try:
        validate(model)
    except InvalidModel as error:
        raise InvalidModel(f"the model of the vector is invalid: {error}") from None


def _close(device: Device, prepared: Prepared, at: Callable[[str], None]) -> None:
    """Close, and return after the driver's own `close`. DeadObject if that ends its process."""
    if isinstance(inner := unwrapped(prepared), ReconnectingModel):
        if inner.alive:
            at("close")
            inner.end()
    else:
        at("close")
        close_quietly(where_of(device), "close() of a prepared model", prepared.close)


def _room(vector: Vector, variant: str, way: str, device: Device) -> list[Array | None]:
    """Return memory for the outputs: the driver's if that is allowed, else of the expected shapes."""
    expected = vector.expected(signed=variant == "signed")
    if way in ("plain", "callback") and device.level >= V1_2:
        return [None] * len(expected)
    return [np.empty(e.shape, dtype_of(e.type)) for e in expected]


_libc = ctypes.CDLL(None, use_errno=True)


def read_only(arrays: Sequence[Array | None]) -> list[Array | None]:
    """Return copies that are read-only even through a pointer: a write is a SIGSEGV, as for an isolated driver."""
    places, size = [], 0
    for array in arrays:
        places.append(size)
        size = aligned(size + (0 if array is None else array.nbytes))
    if not size:
        return [None if array is None else array.copy() for array in arrays]
    mapping = mmap.mmap(-1, size)
    for array, place in zip(arrays, places, strict=True):
        if array is not None:
            mapping[place : place + array.nbytes] = array.tobytes()
    whole = np.frombuffer(mapping, np.uint8)
    if _libc.mprotect(ctypes.c_void_p(address(whole)), ctypes.c_size_t(size), mmap.PROT_READ):
        raise OSError(ctypes.get_errno(), "mprotect")
    whole.flags.writeable = False
    return [
        None if array is None else whole[place : place + array.nbytes].view(array.dtype).reshape(array.shape)
        for array, place in zip(arrays, places, strict=True)
    ]
