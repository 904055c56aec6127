"""A capture of a HAL session, from its begin to its file: the result of `nnhal.capture`."""

import itertools
import os
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from nnhal.base.answers import safe_repr
from nnhal.base.codes import ErrorStatus, operation_name
from nnhal.base.ending import at_end
from nnhal.base.errors import BadState, InvalidArgument, NnhalError, as_error, bounded_text, error_text
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.base.operands import Array
from nnhal.base.records import replace
from nnhal.base.uncopied import NotCopyable
from nnhal.base.version import __version__
from nnhal.hal.background import signal_after
from nnhal.hal.chain import PreparedChain
from nnhal.hal.device import Device, Hints, identity_of
from nnhal.hal.fence import Fence
from nnhal.hal.request import Control, Request, Signature, Timing
from nnhal.model.file import head_of
from nnhal.model.graph import Model
from nnhal.runtime.captured import PreparationCapture, running
from nnhal.runtime.capturing.file import CaptureFile
from nnhal.runtime.capturing.records import (
    CapturedArray,
    CapturedCompilation,
    CapturedModel,
    CapturedPlacement,
    CapturedPreparation,
    CapturedRequest,
    CapturedRoom,
    CaptureHead,
    CaptureRecord,
    PreparationEnd,
    RequestEnd,
)
from nnhal.runtime.capturing.requests import CapturedSignature, RecordedRequest

VARIABLE = "NNHAL_CAPTURE"
BYTES = "NNHAL_CAPTURE_BYTES"
DATA = "NNHAL_CAPTURE_DATA"
MOST = 1 << 30  # bytes of a file
LEAST = 1 << 16
WORDS, LONGEST = 64, 1000  # of the command in the first record, and characters of each
_log = logger("execution")


class Capture(NotCopyable, instead="its file can be read anywhere"):
    """A running capture of this process. A context manager.

    Attributes:
        path: The file; for a forked child, the file that it writes instead.
    """

    def __init__(
        self, path: "str | os.PathLike[str]", max_bytes: int = MOST, data: bool = True, *, early: bool = True
    ) -> None:
        """As in `capture`. early: create the file at once, and replace an existing one."""
        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
            raise InvalidArgument(f"capture: path is {safe_repr(path)}, must be that of a file to write")
        if type(max_bytes) is not int or max_bytes < LEAST:
            raise InvalidArgument(
                f"capture: max_bytes is {safe_repr(max_bytes)}, must be an integer of at least {LEAST}"
            )
        if not isinstance(data, bool):
            raise InvalidArgument(f"capture: data is {safe_repr(data)}, must be true or false")
        self._asked, self._limit, self.data = Path(path).absolute(), max_bytes, data
        self._early = early
        self._reset()

    def _reset(self) -> None:
        self._lock, self.path = threading.Lock(), self._asked
        self._file: CaptureFile | None = None
        self._started = time.monotonic_ns()
        self._numbers = {kind: itertools.count() for kind in ("model", "compilation", "preparation", "request")}
        self._models: dict[tuple[bytes, bytes, tuple[bytes, ...]], int] = {}
        self._pools: weakref.WeakKeyDictionary[Memory, bytes] = weakref.WeakKeyDictionary()

    def start(self) -> "Capture":
        """Begin the capture.

        Returns:
            This object.

        Raises:
            BadState: Another capture is running.
            InvalidArgument: The file cannot be written.
        """
        if running.session is not None:
            raise BadState(f"capture to {self.path}: another one is running in this process, must be ended first")
        self._reset()
        if self._early:
            self._open()
        running.session = self
        return self

    def stop(self) -> None:
        """End the capture. Further calls have no effect."""
        if running.session is self:
            running.session = None
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> "Capture":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Capture to {self.path}, {'running' if running.session is self else 'not running'}>"

    # ------------------------------------------------------------------------------------------------------ the records

    def compiling(self, model: Model, token: bytes | None) -> "_Compilation | None":
        """Record a model before it is compiled; None if that is impossible. For the runtime."""
        try:
            self._open()
        except NnhalError as error:
            _log.warning("%s; nothing is captured", error)
            running.session = None
            return None
        number = next(self._numbers["compilation"])
        self._add(CapturedCompilation(number, self._model(model), token))
        return _Compilation(self, self._file, number)

    def _open(self) -> None:
        with self._lock:
            if self._file is not None:
                return
            path = Path(str(self._asked).replace("%p", str(os.getpid())))
            self._file = CaptureFile(path, self._limit, replaces=self._early)
            self.path = self._file.path
            words = tuple(bounded_text(word, LONGEST) for word in sys.orig_argv[:WORDS])
            system, now = os.uname(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            where = f"{system.sysname} {system.release} {system.machine}"
            self._file.add(CaptureHead(__version__, os.getpid(), words, now, where, self.data, self._limit))

    def _add(self, record: CaptureRecord) -> bool:
        return self._file is not None and self._file.add(record)

    def _model(self, model: Model) -> int:
        assert self._file is not None
        lacks = ""
        try:
            head = head_of(replace(model, values=b""))
            values = self._file.store(model.values)
            pools = tuple(self._pool(pool) for pool in model.pools)
            if b"" in (values, *pools):
                lacks = self._file.full or "weights lie in memory that this process cannot read"
        except NnhalError as error:
            head, values, pools, lacks = b"", b"", (), error_text(error)
        key = head, values, pools
        with self._lock:
            number = self._models.get(key)
            if number is not None:
                return number
            number = self._models[key] = next(self._numbers["model"])
        names = tuple(operation_name(operation.type) for operation in model.main.operations)
        self._add(CapturedModel(number, model.name, names, head, values, pools, lacks))
        return number

    def _pool(self, pool: Memory) -> bytes:
        assert self._file is not None
        digest = self._pools.get(pool, b"")
        if not digest and pool.mappable:
            digest = self._file.store(pool.bytes().data)
            if digest:
                self._pools[pool] = digest
        return digest

    def _forked(self) -> None:
        """Close the parent's file. The child creates one if it compiles a model."""
        if self._file is not None:
            self._file.abandon()
        self._early = False
        self._reset()


class _Compilation:
    def __init__(self, capture: Capture, file: CaptureFile | None, number: int) -> None:
        self._capture, self._file, self._number = capture, file, number

    def handed(self, device: Device, model: Model, hints: Hints, where: Mapping[str, str]) -> "_Preparation | None":
        """As in `CompilationCapture`."""
        capture = self._capture
        if capture._file is None or capture._file is not self._file or capture._file.problem:
            return None
        own, number = identity_of(device), next(capture._numbers["preparation"])
        options, lacks = _plain(hints.options)
        left = None if hints.deadline is None else max(0, hints.deadline - time.monotonic_ns())
        record = CapturedPreparation(
            number,
            self._number,
            capture._model(model),
            own.name,
            own.version,
            str(own.level),
            dict(where),
            int(hints.preference),
            int(hints.priority),
            hints.threads,
            left,
            options,
            lacks,
        )
        return _Preparation(capture, capture._file, number) if capture._add(record) else None

    def placed(self, placement: Mapping[str, Any], parts: Sequence[PreparationCapture | None]) -> None:
        """As in `CompilationCapture`."""
        if self._capture._file is self._file:
            numbers = tuple(-1 if part is None else part.number for part in parts)
            data = msgspec.json.encode(placement, enc_hook=str)
            self._capture._add(CapturedPlacement(self._number, numbers, data))


class _Preparation:
    def __init__(self, capture: Capture, file: CaptureFile, number: int) -> None:
        self._capture, self._file, self.number = capture, file, number
        self._fenced = False  # whether the device has fences

    def failed(self, error: BaseException, nanoseconds: int) -> None:
        """As in `PreparationCapture`."""
        failed = as_error(error, "prepare()")
        self._file.add(PreparationEnd(self.number, int(failed.status), error_text(failed), nanoseconds))

    def prepared(self, prepared: PreparedChain, nanoseconds: int, cached: str) -> None:
        """As in `PreparationCapture`."""
        self._fenced = prepared.fenced_by_driver
        self._file.add(PreparationEnd(self.number, int(ErrorStatus.NONE), "", nanoseconds, cached))

    def signature(self, plain: Signature, way: str) -> Signature:
        """As in `PreparationCapture`."""
        return CapturedSignature(plain, self, way)

    def fenced(self, request: Request, control: Control, wait_for: Sequence[Fence]) -> Sequence[Fence]:
        """As in `PreparationCapture`. Inputs may be written until the fences are signalled."""
        if not isinstance(request, RecordedRequest):
            return wait_for
        request.way = "fenced"
        if not self._fenced:  # the request waits before it executes
            return wait_for
        if all(fence.status() == ErrorStatus.NONE for fence in wait_for):
            request.begin(control)
            return wait_for
        return [signal_after(wait_for, partial(request.begin, control))]

    # ----------------------------------------------------------------------------------------- as in `RequestRecorder`

    @property
    def open(self) -> bool:
        """Whether the capture still runs."""
        return not self._file.problem

    def store(self, array: Array) -> CapturedArray:
        """Store an input or output."""
        facts = array.dtype.str, array.shape
        if not self._capture.data:
            return CapturedArray(*facts, lacks="the capture has no data")
        digest = self._file.store(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return CapturedArray(*facts, digest, "" if digest else self._file.full or self._file.problem)

    def begun(
        self,
        way: str,
        inputs: Sequence[CapturedArray | None],
        rooms: Sequence[CapturedRoom | None],
        control: Control,
    ) -> int | None:
        """Record a request."""
        capture = self._capture
        number, now = next(capture._numbers["request"]), time.monotonic_ns()
        left = None if control.deadline is None else max(0, control.deadline - now)
        limits = left, control.loop_timeout, control.measure, now - capture._started
        given = CapturedRequest(number, self.number, way, tuple(inputs), tuple(rooms), *limits)
        return number if self._file.add(given) else None

    def ended(
        self,
        number: int,
        outcome: tuple[int, str],
        outputs: Sequence[CapturedArray | None],
        shapes: Sequence[Any],
        small: Sequence[int],
        spent: tuple[int, Timing | None],
    ) -> None:
        """Record the end of a request."""
        known = tuple(tuple(shape) if isinstance(shape, tuple | list) else None for shape in shapes)
        nanoseconds, timing = spent
        self._file.add(RequestEnd(number, *outcome, tuple(outputs), known, tuple(small), nanoseconds, *timing or ()))


def _plain(options: Mapping[str, Any]) -> tuple[dict[str, bool | int | float | str | None], str]:
    """Return options as plain values, and which are not."""
    others = [key for key, value in options.items() if not isinstance(value, bool | int | float | str | None)]
    found = {key: repr(value) if key in others else value for key, value in options.items()}
    return found, f"options {', '.join(others)} are recorded as text" if others else ""


def capture(path: "str | os.PathLike[str]", *, max_bytes: int = MOST, data: bool = True) -> Capture:
    """Capture the HAL session within `with nnhal.capture("session.nnhalcap"):` in a file for `nnhal replay`.

    The capture has each model that is compiled meanwhile, whole and as each device prepares it, the placement, and each
    request of these models with its outcome. It covers all threads of this process. A forked child that compiles a
    model writes another file, with its process ID in the name. The file is complete up to a crash.

    Args:
        path: The file; an existing one is replaced.
        max_bytes: The most bytes of the file. Beyond them, nnhal leaves data out and notes that in the file.
        data: Whether to record the contents of inputs and outputs. Weights are always recorded.

    Returns:
        The capture, a context manager.

    Raises:
        InvalidArgument: The file cannot be written.
        BadState: Another capture is running.
    """
    return Capture(path, max_bytes, data)


def from_environment() -> None:
    """Capture this process to its end if NNHAL_CAPTURE names a file; %p in it stands for the process ID."""
    path, most = os.environ.get(VARIABLE, ""), os.environ.get(BYTES, "")
    if not path or running.session is not None:
        return
    if most and not most.isdecimal():
        raise InvalidArgument(f"{BYTES} is {most!r}, must be a number of bytes")
    session = Capture(path, int(most) if most else MOST, os.environ.get(DATA) != "0", early=False).start()
    at_end(session.stop)


def _after_fork() -> None:
    if isinstance(running.session, Capture):
        running.session._forked()


os.register_at_fork(after_in_child=_after_fork)
