"""The exception tree. Every error carries the HAL ErrorStatus and the NDK ResultCode it stands for.

    NnhalError                      GENERAL_FAILURE          OP_FAILED
    ├── InvalidArgument             INVALID_ARGUMENT         BAD_DATA          (also a ValueError)
    │   ├── InvalidModel            a model, operand or operation breaks a rule of its definition
    │   │   └── UnsupportedModel    well formed, but holds what NNAPI or no given device can do
    │   ├── ShapeNeeded             a model file leaves dimensions open that have to be given
    │   ├── InvalidRequest          inputs, outputs or memories of one execution
    │   └── BadFile                 a model file that lies or is damaged
    ├── BadState                    INVALID_ARGUMENT         BAD_STATE         (also a RuntimeError)
    │   └── Closed                  use after close, or in a process that was forked
    ├── OperationFailed             GENERAL_FAILURE          OP_FAILED         a kernel or driver failed
    │   ├── DriverFailed            a driver raised what is none of these
    │   └── ContractBroken          a driver gave what it may not: another type or shape, nothing, twice, too late
    ├── Cancelled                   GENERAL_FAILURE          OP_FAILED
    ├── OutputInsufficientSize      OUTPUT_INSUFFICIENT_SIZE OUTPUT_INSUFFICIENT_SIZE
    ├── DeviceUnavailable           DEVICE_UNAVAILABLE       UNAVAILABLE_DEVICE
    ├── Unmappable                  GENERAL_FAILURE          UNMAPPABLE
    ├── OutOfMemory                 GENERAL_FAILURE          OUT_OF_MEMORY     (also a MemoryError)
    ├── MissedDeadline              MISSED_DEADLINE_TRANSIENT or _PERSISTENT   (also a TimeoutError)
    │   └── LoopTimeout             a WHILE ran past its loop time-out
    ├── ResourceExhausted           RESOURCE_EXHAUSTED_TRANSIENT or _PERSISTENT
    └── DeadObject                  DEAD_OBJECT              DEAD_OBJECT       the driver's process died

Messages have one grammar: *where* is *what*, *must be* rule, and the alternatives.
"""

import copy
import errno
from collections.abc import Sequence
from typing import Literal

from nnhal.base.codes import ErrorStatus, ResultCode
from nnhal.base.names import printable

LONGEST = 18_000  # characters of a message, with escapes for what names of others hold


class NnhalError(Exception):
    """Base of all errors that nnhal raises on purpose.

    stack: where a driver raised it, or what it was made of: the frames of the driver's own code, as text. driver_fault: of
    the end of a driver's process: the evidence that it caused that itself ("crash", "exit" or "protocol"), "" for none.
    """

    status = ErrorStatus.GENERAL_FAILURE
    code = ResultCode.OP_FAILED
    stack = ""
    driver_fault: Literal["crash", "exit", "protocol", ""] = ""

    def __str__(self) -> str:
        return printable(super().__str__()[:LONGEST], keep="\n\t")[:LONGEST]


class InvalidArgument(NnhalError, ValueError):
    """An argument breaks a rule; the message says where, what, which rule."""

    status = ErrorStatus.INVALID_ARGUMENT
    code = ResultCode.BAD_DATA


class InvalidModel(InvalidArgument):
    """A model, operand or operation is not valid by its definition."""


class UnsupportedModel(InvalidModel):
    """A well-formed model with something that cannot be expressed or placed; lists all of it.

    refused: of a file's operators that NNAPI cannot express the name, the place (`#3`, `#3 of subgraph 1`) and why.
    """

    refused: Sequence[tuple[str, str, str]] = ()


class ShapeNeeded(InvalidArgument):
    """A model file leaves dimensions open, and the sizes that stand in for them are not possible; names what to give."""


class InvalidRequest(InvalidArgument):
    """The inputs, outputs or memories of an execution do not fit the model."""


class BadFile(InvalidArgument):
    """A model file is damaged or lies; the message names the place in the file."""


class BadState(NnhalError, RuntimeError):
    """An object was used in a state that does not allow it."""

    status = ErrorStatus.INVALID_ARGUMENT
    code = ResultCode.BAD_STATE


class Closed(BadState):
    """The object was closed, or belongs to the process that this one was forked from."""


class OperationFailed(NnhalError):
    """An operation failed while it ran."""


class DriverFailed(OperationFailed):
    """A driver raised an exception of its own; the message has its class and text, `__cause__` itself where it is here."""


class ContractBroken(OperationFailed):
    """A driver broke a rule of the interface; the message says whose driver, which output, which rule."""


class Cancelled(NnhalError):
    """The execution was cancelled by its owner."""


class OutputInsufficientSize(NnhalError):
    """An output buffer is too small. `shapes` holds the true shape of every output as far as known."""

    status = ErrorStatus.OUTPUT_INSUFFICIENT_SIZE
    code = ResultCode.OUTPUT_INSUFFICIENT_SIZE

    def __init__(self, message: str, shapes: Sequence[tuple[int, ...] | None] = ()) -> None:
        super().__init__(message)
        self.shapes = tuple(shapes)


class DeviceUnavailable(NnhalError):
    """The device is gone, offline or quarantined."""

    status = ErrorStatus.DEVICE_UNAVAILABLE
    code = ResultCode.UNAVAILABLE_DEVICE


class Unmappable(NnhalError):
    """A memory cannot be mapped by the side that needs its contents."""

    code = ResultCode.UNMAPPABLE


class OutOfMemory(NnhalError, MemoryError):
    """An allocation was refused."""

    code = ResultCode.OUT_OF_MEMORY


class MissedDeadline(NnhalError, TimeoutError):
    """The deadline passed. `persistent` says that the same call would miss it again."""

    def __init__(self, message: str, *, persistent: bool = False) -> None:
        super().__init__(message)
        kind = "PERSISTENT" if persistent else "TRANSIENT"
        self.status = ErrorStatus[f"MISSED_DEADLINE_{kind}"]
        self.code = ResultCode[f"MISSED_DEADLINE_{kind}"]


class LoopTimeout(MissedDeadline):
    """A WHILE ran longer than its loop time-out; never retried on another device."""


class ResourceExhausted(NnhalError):
    """Memory, descriptors or another resource ran out."""

    def __init__(self, message: str, *, persistent: bool = False) -> None:
        super().__init__(message)
        kind = "PERSISTENT" if persistent else "TRANSIENT"
        self.status = ErrorStatus[f"RESOURCE_EXHAUSTED_{kind}"]
        self.code = ResultCode[f"RESOURCE_EXHAUSTED_{kind}"]


class DeadObject(NnhalError):
    """The process that held the object died."""

    status = ErrorStatus.DEAD_OBJECT
    code = ResultCode.DEAD_OBJECT


def error_of(status: ErrorStatus, message: str) -> NnhalError:
    """The error that a status stands for, where only the status is known (old drivers, fences, other processes)."""
    kinds: dict[ErrorStatus, type[NnhalError]] = {
        ErrorStatus.INVALID_ARGUMENT: InvalidArgument,
        ErrorStatus.DEVICE_UNAVAILABLE: DeviceUnavailable,
        ErrorStatus.OUTPUT_INSUFFICIENT_SIZE: OutputInsufficientSize,
        ErrorStatus.DEAD_OBJECT: DeadObject,
        ErrorStatus.MISSED_DEADLINE_TRANSIENT: MissedDeadline,
        ErrorStatus.MISSED_DEADLINE_PERSISTENT: MissedDeadline,
        ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT: ResourceExhausted,
        ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT: ResourceExhausted,
    }
    kind = kinds.get(status, OperationFailed)
    if kind in (MissedDeadline, ResourceExhausted):
        return kind(message, persistent=status.name.endswith("PERSISTENT"))
    return kind(message)


def clipped(text: str, most: int = 16000) -> str:
    """Text that can travel: Unicode, of bounded length."""
    text = text[: most + 1].encode(errors="backslashreplace").decode()  # paths may hold what is no Unicode
    return text if len(text) <= most else text[:most] + " ..."


def told(error: BaseException) -> str:
    """What an error says, with its type where it is none of nnhal's own."""
    try:
        text = clipped(str.__str__(str(error)), LONGEST)
    except BaseException:  # of a class of somebody's own
        text = "an error that cannot be told"
    if isinstance(error, NnhalError):
        return text
    name = type.__dict__["__name__"].__get__(type(error))  # whatever a metaclass says
    return f"{clipped(name, 200)}: {text}"


def again(error: NnhalError) -> NnhalError:
    """A copy to be raised of an error that is kept, which would collect the tracebacks of all its raisers."""
    raised = copy.copy(error)
    raised.__cause__ = error.__cause__
    return raised


_SHORT = errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EAGAIN
_NO_THREAD = "can't start new thread"  # what CPython says, which has no class for it


def ran_short(error: BaseException) -> bool:
    """Whether memory, descriptors, threads or room ran out, as what was raised says, or what a driver raised before it."""
    cause = error.__cause__ if isinstance(error, DriverFailed) else error
    if isinstance(cause, MemoryError | ResourceExhausted):
        return True
    if isinstance(cause, OSError):
        return cause.errno in _SHORT
    return isinstance(cause, RuntimeError) and _NO_THREAD in str(cause)


def as_error(error: BaseException, where: str) -> NnhalError:
    """What a driver raised as an error of nnhal's, which has it as its cause."""
    if isinstance(error, NnhalError):
        return error
    failed = DriverFailed(f"{where}: {told(error)}")
    failed.__cause__ = error
    return failed
