"""Requests of a captured session: each is recorded before the device executes it, and after its end.

Nothing stands between the runtime and the device: a captured partition makes requests of these classes.
"""

import time
from collections.abc import Sequence
from typing import Any, Protocol

from nnhal.base.codes import ErrorStatus
from nnhal.base.errors import Cancelled, NnhalError, as_error, error_text
from nnhal.base.operands import Array
from nnhal.hal.host import contents_of
from nnhal.hal.request import (
    UNLIMITED,
    Argument,
    CheckedRequest,
    Control,
    Request,
    Run,
    Signature,
    Timing,
    checked_timing,
)
from nnhal.runtime.capturing.records import CapturedArray, CapturedRoom

SINCE_LAUNCH = "callback", "fenced"  # ways whose time begins when the request is made


class RequestRecorder(Protocol):
    """Records the requests of a prepared model."""

    @property
    def open(self) -> bool:
        """Whether the capture still runs."""

    def store(self, array: Array) -> CapturedArray:
        """Store an input or output."""

    def begun(
        self,
        way: str,
        inputs: Sequence[CapturedArray | None],
        rooms: Sequence[CapturedRoom | None],
        control: Control,
    ) -> int | None:
        """Record a request; return its number, or None if the capture has ended."""

    def ended(
        self,
        number: int,
        outcome: tuple[int, str],
        outputs: Sequence[CapturedArray | None],
        shapes: Sequence[Any],
        small: Sequence[int],
        spent: tuple[int, Timing | None],
    ) -> None:
        """Record its end. outcome: the status and the message. spent: nanoseconds, and the driver's times."""


class CapturedSignature(Signature):
    """A signature that makes captured requests. way: how they execute."""

    __slots__ = ("recorder", "way")

    def __init__(self, plain: Signature, recorder: RequestRecorder, way: str) -> None:
        super().__init__(plain.inputs, plain.outputs, plain.where, timely=plain.timely, profiled=plain.profiled)
        self.recorder, self.way = recorder, way
        self.make = RecordedCheckedRequest if plain.make is CheckedRequest else RecordedRequest


class RecordedRequest(Request):
    """A request that records itself."""

    _number: int | None = None
    _inside = False  # another request, for the same execution, records it
    _finished = False
    _limits = UNLIMITED
    way = ""

    def __init__(self, signature: Signature, *given: Any, **buffers: Any) -> None:
        super().__init__(signature, *given, **buffers)
        assert isinstance(signature, CapturedSignature)
        self._recorder, self.way = signature.recorder, signature.way
        self._since = time.monotonic_ns()

    def begin(self, control: Control) -> None:
        """Record the request with its inputs, unless that is done."""
        if self._number is not None or self._inside or not self._recorder.open:
            return
        stored = zip(self.signature.inputs, self.given, strict=True)
        inputs = [
            self._in_buffer(argument, self.input_buffers[n])
            if n in self.input_buffers
            else None
            if array is None
            else self._recorder.store(array)
            for n, (argument, array) in enumerate(stored)
        ]
        self._limits = control
        self._number = self._recorder.begun(self.way, inputs, self._rooms(), control)

    def execute(self, run: Run, control: Control) -> Timing | None:
        """Execute as `Request` does."""
        self.begin(control)
        if self._number is None:
            return super().execute(run, control)
        start = self._since if self.way in SINCE_LAUNCH else time.monotonic_ns()
        try:
            timing = super().execute(run, control)
        except BaseException as error:
            self._end(error, None, time.monotonic_ns() - start)
            raise
        self._end(None, checked_timing(timing, self.signature.where), time.monotonic_ns() - start)
        return timing

    def abandon(self) -> None:
        """End without a result as `Request` does."""
        super().abandon()
        limits, now = self._limits, time.monotonic_ns()
        if limits.cancelled is not None and limits.cancelled.is_set():
            status, why = Cancelled.status, "cancelled by its owner"
        elif limits.deadline is not None and now > limits.deadline:
            status, why = ErrorStatus.MISSED_DEADLINE_TRANSIENT, "the deadline has passed"
        else:
            status, why = ErrorStatus.GENERAL_FAILURE, "the runtime abandoned it"
        self._write(status, f"{self.signature.where}: {why}", (), (now - self._since, None))

    def contain(self, inner: Request) -> Request:
        """Link a request as `Request` does; only this one is recorded."""
        if isinstance(inner, RecordedRequest):
            inner._inside = True
        return super().contain(inner)

    def _rooms(self) -> list[CapturedRoom | None]:
        return [
            None if (room := self.room(n)) is None else CapturedRoom(room.shape, room.dtype != argument.dtype)
            for n, argument in enumerate(self.signature.outputs)
        ]

    def _end(self, error: BaseException | None, timing: Timing | None, spent: int) -> None:
        if error is not None:
            failed = as_error(error, self.signature.where)
            self._write(failed.status, error_text(failed), (), (spent, timing))
        elif self.small:
            outputs = [None if n in self.small else self._output(n) for n in range(len(self.results))]
            self._write(
                ErrorStatus.OUTPUT_INSUFFICIENT_SIZE, "an output is larger than its memory", outputs, (spent, timing)
            )
        else:
            outputs = [self._output(n) for n in range(len(self.results))]
            self._write(ErrorStatus.NONE, "", outputs, (spent, timing))

    def _output(self, index: int) -> CapturedArray | None:
        result = self.results[index]
        if result is not None:
            return self._recorder.store(result)
        buffer = self.output_buffers.get(index)
        return None if buffer is None else self._in_buffer(self.signature.outputs[index], buffer)

    def _in_buffer(self, argument: Argument, buffer: Any) -> CapturedArray:
        try:
            stored = self._recorder.store(contents_of(buffer))
            return CapturedArray(stored.dtype, stored.shape, stored.contents, stored.lacks, True)
        except NnhalError as error:
            why = f"the device's buffer cannot be read: {error_text(error)}"
            return CapturedArray(argument.dtype.str, argument.fixed or (), b"", why, True)

    def _write(
        self, status: int, text: str, outputs: Sequence[CapturedArray | None], spent: tuple[int, Timing | None]
    ) -> None:
        if self._finished or self._number is None:  # abandoned before
            return
        self._finished = True
        self._recorder.ended(self._number, (int(status), text), outputs, self.shapes, self.small, spent)

    def reopen(self) -> None:
        """Allow another `execute` as `Request` does; its end replaces the recorded one."""
        super().reopen()
        self._finished = self._given_up


class RecordedCheckedRequest(RecordedRequest, CheckedRequest):
    """A request that records itself, under `NNHAL_CHECK=1`."""
