"""A process that replays preparations of a capture: `nnhal.conformance.worker`, whose items are `ReplayItem`s."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from nnhal.base.answers import close_quietly
from nnhal.base.codes import ErrorStatus, Preference, Priority
from nnhal.base.errors import (
    BadFile,
    NnhalError,
    OperationFailed,
    OutputInsufficientSize,
    error_text,
)
from nnhal.base.operands import Array
from nnhal.conformance.execution_paths import WAYS, Way
from nnhal.conformance.replay import (
    FAILED,
    JUDGING,
    MOST_HUNG,
    PASSED,
    PREPARATION,
    PREPARED,
    REFUSED,
    SKIPPED,
    PartOrders,
    ReplayedPart,
    ReplayedRequest,
    ReplayItem,
    ReplayOptions,
    ReplayOutcome,
    empty_part,
)
from nnhal.conformance.replay_judge import NothingToCompare, ResultJudge
from nnhal.conformance.worker import Worker, serve_with
from nnhal.hal.answers import can_be_exact
from nnhal.hal.burst import Burst
from nnhal.hal.chain import checked_burst, checked_prepared
from nnhal.hal.claims import consider_support
from nnhal.hal.device import EXACT, NUMERICS, Device, Hints, Prepared, identity_of, where_of
from nnhal.hal.request import Argument, Control, Request, Signature
from nnhal.ops.schema import agree, show
from nnhal.runtime import discovery
from nnhal.runtime.capturing.reader import CaptureReader, ExecutedRequest, PreparedPart

MOST_ROOM = 1 << 32  # bytes of an output's memory that a capture may ask for
CALLERS = frozenset((ErrorStatus.INVALID_ARGUMENT, ErrorStatus.OUTPUT_INSUFFICIENT_SIZE))  # errors that must come again


class _Replays(Worker):
    """Prepares captured models, and executes their requests."""

    subject: ReplayOptions

    def begin(self) -> None:
        """Load the extensions, and open the capture."""
        for path in self.subject.extensions:
            discovery.load_extension(path)
        self._capture = CaptureReader(Path(self.subject.file))
        self._current: _PartReplay | None = None

    def run(self, of: PartOrders, items: Sequence[ReplayItem]) -> Iterator[ReplayOutcome]:
        for item in items:
            self.at(JUDGING)
            found = self._prepared(item.part) if item.place == PREPARATION else self._request(of, item)
            if item is items[-1] and (item.place != PREPARATION or not self._capture.parts[item.part].requests):
                self._close()
            yield ReplayOutcome(item, found)

    def _prepared(self, number: int) -> ReplayedPart:
        self._close()
        current = _PartReplay(self._capture, self._capture.parts[number], self.subject, self.device, self.at)
        found = current.prepare()
        if found.verdict == PREPARED:
            self._current = current
        else:
            self.at("close")
            current.close()
        return found

    def _request(self, orders: PartOrders, item: ReplayItem) -> ReplayedRequest:
        request = self._capture.parts[item.part].requests[item.place]
        skipped = ""
        if orders.hung >= MOST_HUNG:
            skipped = f"{orders.hung} requests of the model have hung"
        elif self._current is None or self._current.number != item.part or self._current.device is not self.device:
            found = self._prepared(item.part)
            if found.verdict != PREPARED:
                skipped = f"the driver's process died and did not prepare the model again: {found.reason}"
        if skipped or self._current is None:
            return ReplayedRequest(request.given.number, request.given.way, SKIPPED, skipped)
        return self._current.execute(request)

    def _close(self) -> None:
        if self._current is not None:
            self.at("close")
            self._current.close()
            self._current = None


class _PartReplay:
    """The replay of one captured preparation. at: announces the driver's next call."""

    def __init__(
        self,
        capture: CaptureReader,
        part: PreparedPart,
        options: ReplayOptions,
        device: Device,
        at: Callable[[str], None],
    ) -> None:
        self._capture, self._part, self._options, self.device, self._at = capture, part, options, device, at
        self.number = part.given.number
        self._held = ExitStack()
        self._bursts: list[Burst] = []

    def prepare(self) -> ReplayedPart:
        """Prepare the model."""
        found = empty_part(self._capture, self._part, identity_of(self.device).name)
        try:
            self._model = self._capture.model(self._part.given.model)
        except NnhalError as error:
            found.reason = error_text(error)
            return found
        in_a_row = "long_sums" in identity_of(self.device).relaxations
        self._judge = ResultJudge(self._model, self._options.rtol, self._options.atol, in_a_row=in_a_row)
        try:
            self._prepared = self._ready()
            found.verdict = PREPARED
        except _Refused as refused:
            found.verdict, found.reason = REFUSED, str(refused)
        except NnhalError as error:
            found.verdict, found.reason = FAILED, f"preparation: {error_text(error)}{self._as_before(error)}"
        return found

    def close(self) -> None:
        """Release what the driver holds for it."""
        self._held.close()

    def _hold(self, query: str, call: Callable[[], object]) -> None:
        self._held.callback(close_quietly, where_of(self.device), query, call)

    def _hints(self) -> Hints:
        given = self._part.given
        options = dict(given.options) if identity_of(self.device).name == given.device and not given.lacks else {}
        if given.options.get(NUMERICS) == EXACT and can_be_exact(self.device):
            options[NUMERICS] = EXACT
        try:
            told_of = Preference(given.preference), Priority(given.priority)
        except ValueError as error:
            raise BadFile(f"capture: preparation {given.number}: {error}") from None
        return Hints(*told_of, min(given.threads, 1024), None, options)

    def _ready(self) -> Prepared:
        hints = self._hints()
        self._at("supports")
        claims = consider_support(self.device, self._model, hints)
        self._hold("release of a model", claims.release_work)
        refused = claims.refused()
        if refused:
            n, why = next(iter(refused.items()))
            raise _Refused(f"{len(refused)} operations, the first #{n}: {why or 'refused without a reason'}")
        self._at("prepare")
        prepared = checked_prepared(self.device, self._model, claims.hints(hints))
        self._hold("close() of a prepared model", prepared.close)
        return prepared

    def _as_before(self, error: NnhalError) -> str:
        """Return a remark if the preparation failed in the same way when it was captured."""
        end = self._part.end
        return ", as captured" if end is not None and end.status == error.status else ""

    def execute(self, request: ExecutedRequest) -> ReplayedRequest:
        """Execute a request, and compare."""
        given, end, prepared = request.given, request.end, self._prepared
        try:
            inputs = self._inputs(request)
            made = prepared.request(inputs, self._rooms(request))
            wanted = self._outputs(request)
        except BadFile as error:
            return ReplayedRequest(given.number, given.way, SKIPPED, error_text(error))
        control = Control(loop_timeout=given.loop_timeout, measure=given.measure)
        way = self._way(request)
        self._at("run")
        start = time.monotonic_ns()
        try:
            way(self.device, prepared, made, control)
            if made.small:
                raise OutputInsufficientSize("an output is larger than its memory", made.shapes)
        except NnhalError as error:
            spent = time.monotonic_ns() - start
            return ReplayedRequest(*_facts(request, self._problem_of(error, made, request), None, spent))
        spent = time.monotonic_ns() - start
        self._at(JUDGING)
        if end is not None and end.status in CALLERS:
            problem, worst = f"status is NONE, must be {ErrorStatus(end.status).name} as captured", None
        else:
            digests = [None if x is None else x.contents for x in given.inputs]
            try:
                problem, worst = self._judge.compared(inputs, wanted, made.results, digests)
            except NothingToCompare as error:
                return ReplayedRequest(given.number, given.way, SKIPPED, error_text(error))
        return ReplayedRequest(*_facts(request, problem, worst, spent))

    def _problem_of(self, error: NnhalError, made: Request, request: ExecutedRequest) -> str:
        """Return what is wrong with an execution that failed; "" for an error of the caller that is the captured one."""
        end = request.end
        same = end is not None and end.status == error.status
        if end is None or not same or error.status not in CALLERS:
            return f"{error.status.name}: {error_text(error)}" + (", as captured" if same else "")
        shapes = [None if shape is None else tuple(shape) for shape in made.shapes]
        if error.status != ErrorStatus.OUTPUT_INSUFFICIENT_SIZE or shapes == list(end.shapes):
            return ""
        return f"OUTPUT_INSUFFICIENT_SIZE with shapes {shapes}, must be {list(end.shapes)} as captured"

    # -------------------------------------------------------------------------------------------- from the capture

    def _inputs(self, request: ExecutedRequest) -> list[Array | None]:
        arguments = Signature.of(self._model).inputs
        given = request.given.inputs
        if len(given) != len(arguments):
            raise BadFile(f"request {request.given.number} has {len(given)} inputs, must have {len(arguments)}")
        found = [None if each is None else self._capture.array(each) for each in given]
        for argument, array in zip(arguments, found, strict=True):
            _require_fit(argument, array)
        return found

    def _outputs(self, request: ExecutedRequest) -> list[Array | None] | None:
        """Return the captured outputs; None if the request failed then, or did not end."""
        end = request.end
        if end is None or end.status != ErrorStatus.NONE:
            return None
        return [None if each is None else self._capture.array(each) for each in end.outputs]

    def _rooms(self, request: ExecutedRequest) -> list[Array | None]:
        arguments = Signature.of(self._model).outputs
        rooms: list[Array | None] = []
        if len(request.given.rooms) != len(arguments):
            raise BadFile(f"request {request.given.number} has other outputs than its model")
        for argument, room in zip(arguments, request.given.rooms, strict=True):
            if room is None:
                rooms.append(None)
                continue
            dtype = np.dtype(np.uint8) if room.of_bytes else argument.dtype
            if prod(room.shape) * dtype.itemsize > MOST_ROOM:
                raise BadFile(f"request {request.given.number}: {argument.name} has memory of shape {show(room.shape)}")
            rooms.append(np.empty(room.shape, dtype))
        if self._in_buffers(request):  # they are allocated by shape
            ends = request.end.shapes if request.end is not None else ()
            for n, argument in enumerate(arguments):
                shape = argument.fixed or (ends[n] if n < len(ends) else None)
                if rooms[n] is None and shape is not None and prod(shape) * argument.dtype.itemsize <= MOST_ROOM:
                    rooms[n] = np.empty(shape, argument.dtype)
        return rooms

    def _in_buffers(self, request: ExecutedRequest) -> bool:
        outputs = () if request.end is None else request.end.outputs
        return any(each is not None and each.buffer for each in (*request.given.inputs, *outputs))

    def _way(self, request: ExecutedRequest) -> Way:
        """Return the captured way to execute. One burst serves all requests in bursts."""
        if request.given.way == "plain" and self._in_buffers(request):
            return WAYS["memory"]
        if request.given.way != "burst":
            return WAYS.get(request.given.way, WAYS["plain"])
        if not self._bursts:
            self._at("burst")
            try:
                burst = checked_burst(self._prepared, "replay")
                self._hold("close() of a burst", burst.close)
                self._bursts.append(burst)
            except OperationFailed:  # the device has no bursts
                return WAYS["plain"]

        def in_burst(_: Device, __: Prepared, made: Request, control: Control) -> None:
            made.execute(self._bursts[0].run, control)

        return in_burst


class _Refused(NnhalError):
    """The device does not support the model."""


def _require_fit(argument: Argument, array: Array | None) -> None:
    if array is None:
        return
    if array.dtype != argument.dtype or (argument.shape is not None and not agree(array.shape, argument.shape)):
        raise BadFile(
            f"{argument.name} of a captured request is {array.dtype}{list(array.shape)}, must be"
            f" {argument.dtype}{show(argument.shape)}"
        )


def _facts(request: ExecutedRequest, problem: str, worst: float | None, spent: int) -> tuple[Any, ...]:
    then = None if request.end is None else request.end.nanoseconds
    return request.given.number, request.given.way, FAILED if problem else PASSED, problem, worst, then, spent


def main() -> None:
    """Run the process."""
    serve_with(_Replays)
