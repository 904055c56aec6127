"""The exception tree. Every error carries the HAL ErrorStatus and the NDK ResultCode that it stands for.

    NnhalError                      GENERAL_FAILURE          OP_FAILED
    ├── InvalidArgument             INVALID_ARGUMENT         BAD_DATA          (also a ValueError)
    │   ├── InvalidModel            a model, operand or operation breaks a rule of its definition
    │   │   └── UnsupportedModel    a valid model that NNAPI cannot express or no permitted device supports
    │   ├── ShapeNeeded             a model file leaves dimensions open that the caller has to give
    │   ├── InvalidRequest          inputs, outputs or memories of one execution
    │   └── BadFile                 a damaged model file
    ├── BadState                    INVALID_ARGUMENT         BAD_STATE         (also a RuntimeError)
    │   └── Closed                  use after close, or in a forked child
    ├── OperationFailed             GENERAL_FAILURE          OP_FAILED         a kernel or driver failed
    │   ├── DriverFailed            a driver raised another exception than these
    │   └── ContractBroken          a driver broke its contract: a wrong type or shape, no answer, two, or a late one
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

LONGEST = 18_000  # characters of a message, including the escapes for names from outside


class NnhalError(Exception):
    """The base of all errors that nnhal raises on purpose.

    Attributes:
        status: The HAL's `ErrorStatus`.
        code: The NDK's `ResultCode`.
        stack: The stack frames of the driver's code where it raised the error, as text; "" if no driver did.
        driver_fault: When a driver's process ended: the evidence that the driver caused it ("crash", "exit" or
            "protocol"); "" without evidence.
    """

    status = ErrorStatus.GENERAL_FAILURE
    code = ResultCode.OP_FAILED
    stack = ""
    driver_fault: Literal["crash", "exit", "protocol", ""] = ""

    def __str__(self) -> str:
        return printable(super().__str__()[:LONGEST], keep="\n\t")[:LONGEST]


class InvalidArgument(NnhalError, ValueError):
    """An argument breaks a rule. The message names the argument, its value and the rule."""

    status = ErrorStatus.INVALID_ARGUMENT
    code = ResultCode.BAD_DATA


class InvalidModel(InvalidArgument):
    """A model, operand or operation breaks a rule of its definition."""


class UnsupportedModel(InvalidModel):
    """A valid model that NNAPI cannot express, or that no permitted device supports. The message lists every reason.

    Attributes:
        refused: For each operator of a file that NNAPI cannot express: its name, its place (`#3`, or `#3 of subgraph
            1`) and the reason.
    """

    refused: Sequence[tuple[str, str, str]] = ()


class ShapeNeeded(InvalidArgument):
    """A model file leaves dimensions open, and no default size is possible. The message names the inputs."""


class InvalidRequest(InvalidArgument):
    """The inputs, outputs or memories of an execution do not fit the model."""


class BadFile(InvalidArgument):
    """A model file is damaged or does not exist. The message names the place in the file."""


class BadState(NnhalError, RuntimeError):
    """An object was used in a state that does not allow it."""

    status = ErrorStatus.INVALID_ARGUMENT
    code = ResultCode.BAD_STATE


class Closed(BadState):
    """The object was closed, or belongs to the parent of this forked process."""


class OperationFailed(NnhalError):
    """An operation failed during an execution."""


class DriverFailed(OperationFailed):
    """A driver raised an exception that is not an `NnhalError`.

    The message has its class and text. `__cause__` has the exception itself if the driver runs in this process.
    """


class ContractBroken(OperationFailed):
    """A driver broke a rule of the driver contract. The message names the driver, the method and the rule."""


class Cancelled(NnhalError):
    """The execution was cancelled by its owner."""


class OutputInsufficientSize(NnhalError):
    """An output buffer is too small.

    Attributes:
        shapes: The true shape of each output, in order; None for one that is not known. Empty if none is known.
    """

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
    """A memory cannot be mapped by the process that needs its contents."""

    code = ResultCode.UNMAPPABLE


class OutOfMemory(NnhalError, MemoryError):
    """An allocation was refused."""

    code = ResultCode.OUT_OF_MEMORY


class MissedDeadline(NnhalError, TimeoutError):
    """The deadline passed.

    Attributes:
        status: MISSED_DEADLINE_PERSISTENT if the same call would miss the deadline again, else
            MISSED_DEADLINE_TRANSIENT.
    """

    def __init__(self, message: str, *, persistent: bool = False) -> None:
        super().__init__(message)
        kind = "PERSISTENT" if persistent else "TRANSIENT"
        self.status = ErrorStatus[f"MISSED_DEADLINE_{kind}"]
        self.code = ResultCode[f"MISSED_DEADLINE_{kind}"]


class LoopTimeout(MissedDeadline):
    """A WHILE ran longer than its loop time-out. nnhal does not retry it on another device."""


class ResourceExhausted(NnhalError):
    """Memory, descriptors or another resource ran out.

    Attributes:
        status: RESOURCE_EXHAUSTED_PERSISTENT if the same call would fail again, else RESOURCE_EXHAUSTED_TRANSIENT.
    """

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
    """Return the error for a status whose error is not known: from old drivers, fences and other processes."""
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


def bounded_text(text: str, most: int = 16000) -> str:
    """Return the text as valid Unicode of bounded length."""
    text = text[: most + 1].encode(errors="backslashreplace").decode()  # paths may hold bytes that are not Unicode
    return text if len(text) <= most else text[:most] + " ..."


def error_text(error: BaseException) -> str:
    """Return the message of an error, with its type unless the error is an NnhalError."""
    try:
        text = bounded_text(str.__str__(str(error)), LONGEST)
    except BaseException:  # the class is not trusted
        text = "an error without a readable message"
    if isinstance(error, NnhalError):
        return text
    name = type.__dict__["__name__"].__get__(type(error))  # not from the instance: a metaclass may override it
    return f"{bounded_text(name, 200)}: {text}"


def copy_of_error(error: NnhalError) -> NnhalError:
    """Return a copy to raise. A stored error would collect the tracebacks of all that raise it."""
    raised = copy.copy(error)
    raised.__cause__ = error.__cause__
    return raised


_SHORT = errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EAGAIN
_NO_THREAD = "can't start new thread"  # CPython's message; it has no class for this error


def is_out_of_resources(error: BaseException) -> bool:
    """Whether memory, descriptors, threads or disk space ran out, by this error or by its cause in a driver."""
    cause = error.__cause__ if isinstance(error, DriverFailed) else error
    if isinstance(cause, MemoryError | ResourceExhausted):
        return True
    if isinstance(cause, OSError):
        return cause.errno in _SHORT
    return isinstance(cause, RuntimeError) and _NO_THREAD in str(cause)


def as_error(error: BaseException, where: str) -> NnhalError:
    """Return a driver's exception as an NnhalError, with the exception as its cause."""
    if isinstance(error, NnhalError):
        return error
    failed = DriverFailed(f"{where}: {error_text(error)}")
    failed.__cause__ = error
    return failed
