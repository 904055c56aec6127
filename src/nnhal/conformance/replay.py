"""Replays a capture: prepares each captured model on a device, executes each request, and compares the outcomes."""

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from math import prod
from statistics import median
from typing import Any

import numpy as np

from nnhal.base.codes import ErrorStatus, Preference, Priority
from nnhal.base.errors import (
    BadFile,
    DeadObject,
    DeviceUnavailable,
    InvalidArgument,
    NnhalError,
    OperationFailed,
    OutputInsufficientSize,
    error_text,
)
from nnhal.base.operands import Array
from nnhal.base.records import Record, Struct, field
from nnhal.conformance.replay_judge import NothingToCompare, ResultJudge
from nnhal.conformance.ways import WAYS, Way
from nnhal.hal.burst import Burst
from nnhal.hal.claims import consider_support
from nnhal.hal.device import (
    EXACT,
    NUMERICS,
    Device,
    Hints,
    Prepared,
    can_be_exact,
    checked_burst,
    checked_prepared,
    identity_of,
)
from nnhal.hal.request import Argument, Control, Request, Signature
from nnhal.ops.schema import agree, show
from nnhal.runtime.capturing.reader import CaptureReader, ExecutedRequest, PreparedPart
from nnhal.runtime.isolation import at_level

MOST_ROOM = 1 << 32  # bytes of an output's memory that a capture may ask for
CALLERS = frozenset((ErrorStatus.INVALID_ARGUMENT, ErrorStatus.OUTPUT_INSUFFICIENT_SIZE))  # errors that must come again
PASSED, FAILED, REFUSED, PREPARED, SKIPPED = "passed", "failed", "refused", "prepared", "skipped"
VERDICTS = PASSED, FAILED, REFUSED, PREPARED, SKIPPED


class ReplayOptions(Record, frozen=True):
    """Selects what to replay, where, and how to compare.

    device: "" for the captured ones. isolate: as captured if False. rtol, atol: in place of the operations' tolerances;
    None for those. pattern: of the titles of the models to replay.
    """

    device: str = ""
    isolate: bool = False
    rtol: float | None = None
    atol: float | None = None
    pattern: str = ""

    def takes(self, title: str) -> bool:
        """Whether a model is to be replayed."""
        return re.search(self.pattern, title) is not None

    def __post_init__(self) -> None:
        """Raise InvalidArgument for an invalid pattern or tolerance."""
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InvalidArgument(f"{name} is {value}, must be 0 or above, and finite")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise InvalidArgument(f"filter is {self.pattern!r}, must be a regular expression: {error}") from None


class ReplayedRequest(Record, frozen=True):
    """The outcome of a request: "passed", "failed" or "skipped". worst: the largest difference from the captured output."""

    number: int
    way: str
    verdict: str
    reason: str = ""
    worst: float | None = None
    captured_ns: int | None = None
    nanoseconds: int | None = None


class ReplayedPart(Struct):
    """The outcome of a captured preparation and its requests.

    verdict: "refused" if the device does not support the model, "prepared" if there was nothing to compare, "skipped" if
    the capture lacks the model.
    """

    number: int
    model: int
    title: str
    device: str
    operations: int
    verdict: str = SKIPPED
    reason: str = ""
    requests: list[ReplayedRequest] = field(default_factory=list)

    @property
    def worst(self) -> float | None:
        """The largest difference of all requests."""
        return max((r.worst for r in self.requests if r.worst is not None), default=None)

    @property
    def captured_ns(self) -> int | None:
        """The median time of the captured requests."""
        return _median(r.captured_ns for r in self.requests)

    @property
    def nanoseconds(self) -> int | None:
        """The median time of the replayed requests."""
        return _median(r.nanoseconds for r in self.requests)


def _median(times: Iterator[int | None]) -> int | None:
    known = [n for n in times if n is not None]
    return int(median(known)) if known else None


def title_of(capture: CaptureReader, part: PreparedPart) -> str:
    """Return the title of a captured preparation: the model's number and name, and the device."""
    model = capture.models[part.given.model]
    return f"{model.number} {model.name or 'model'} on {part.given.device}"


def replay(
    capture: CaptureReader, options: ReplayOptions, progress: Callable[[], object] = lambda: None
) -> Iterator[ReplayedPart]:
    """Replay each captured preparation; yield its outcome. progress: called after each request.

    Raises:
        DeviceUnavailable: The device does not exist here, or does not load.
    """
    for part in capture.parts.values():
        if options.takes(title_of(capture, part)):
            yield _Replay(capture, part, options, progress).outcome()


class _Replay:
    """The replay of one captured preparation."""

    def __init__(
        self, capture: CaptureReader, part: PreparedPart, options: ReplayOptions, progress: Callable[[], object]
    ) -> None:
        self._capture, self._part, self._options, self._progress = capture, part, options, progress

    def outcome(self) -> ReplayedPart:
        """Prepare the model, and execute the requests."""
        given, model = self._part.given, self._capture.models[self._part.given.model]
        device = self._device()
        title = f"{model.number} {model.name or 'model'}"
        found = ReplayedPart(given.number, given.model, title, identity_of(device).name, len(model.operations))
        try:
            self._model = self._capture.model(given.model)
        except NnhalError as error:
            found.reason = error_text(error)
            return found
        self._device_here = device
        in_a_row = "long_sums" in identity_of(device).relaxations
        self._judge = ResultJudge(self._model, self._options.rtol, self._options.atol, in_a_row=in_a_row)
        with ExitStack() as held:
            try:
                prepared = self._prepared(held)
            except _Refused as refused:
                found.verdict, found.reason = REFUSED, str(refused)
                return found
            except NnhalError as error:
                found.verdict, found.reason = FAILED, f"preparation: {error_text(error)}{self._as_before(error)}"
                return found
            self._run_all(prepared, found, held)
        failed = [r for r in found.requests if r.verdict == FAILED]
        if failed:
            found.verdict, found.reason = FAILED, f"request {failed[0].number}: {failed[0].reason}"
        else:
            found.verdict = PASSED if any(r.verdict == PASSED for r in found.requests) else PREPARED
            found.reason = next((r.reason for r in found.requests if r.verdict == SKIPPED), "")
        return found

    def _device(self) -> Device:
        given, options = self._part.given, self._options
        isolate = options.isolate or (not options.device and given.where.get("isolation") == "process")
        try:
            return at_level(options.device or given.device, own_process=isolate)
        except DeviceUnavailable as error:
            if options.device:
                raise
            origin = given.where.get("origin", "")
            raise DeviceUnavailable(
                f"{error_text(error)}; the capture's device was {given.device} of {origin}: name another with --device,"
                " or load its driver with --driver"
            ) from None

    def _hints(self) -> Hints:
        given = self._part.given
        options = dict(given.options) if identity_of(self._device_here).name == given.device and not given.lacks else {}
        if given.options.get(NUMERICS) == EXACT and can_be_exact(self._device_here):
            options[NUMERICS] = EXACT
        try:
            told_of = Preference(given.preference), Priority(given.priority)
        except ValueError as error:
            raise BadFile(f"capture: preparation {given.number}: {error}") from None
        return Hints(*told_of, min(given.threads, 1024), None, options)

    def _prepared(self, held: ExitStack) -> Prepared:
        hints = self._hints()
        claims = consider_support(self._device_here, self._model, hints)
        held.callback(claims.release_work)
        refused = claims.refused()
        if refused:
            n, why = next(iter(refused.items()))
            raise _Refused(f"{len(refused)} operations, the first #{n}: {why or 'refused without a reason'}")
        return held.enter_context(closing(checked_prepared(self._device_here, self._model, claims.hints(hints))))

    def _as_before(self, error: NnhalError) -> str:
        """Return a remark if the preparation failed in the same way when it was captured."""
        end = self._part.end
        return ", as captured" if end is not None and end.status == error.status else ""

    def _run_all(self, prepared: Prepared, found: ReplayedPart, held: ExitStack) -> None:
        bursts: list[Burst] = []
        dead = ""
        for request in self._part.requests:
            if dead:
                found.requests.append(ReplayedRequest(request.given.number, request.given.way, SKIPPED, dead))
                continue
            try:
                found.requests.append(self._one(prepared, bursts, request, held))
            except _Died as died:
                found.requests.append(died.outcome)
                bursts.clear()
                try:
                    prepared = self._prepared(held)
                except NnhalError as error:
                    dead = f"the driver's process died and did not prepare the model again: {error_text(error)}"
            self._progress()

    def _one(
        self, prepared: Prepared, bursts: list[Burst], request: ExecutedRequest, held: ExitStack
    ) -> ReplayedRequest:
        given, end = request.given, request.end
        try:
            inputs = self._inputs(request)
            made = prepared.request(inputs, self._rooms(request))
            wanted = self._outputs(request)
        except BadFile as error:
            return ReplayedRequest(given.number, given.way, SKIPPED, error_text(error))
        control = Control(loop_timeout=given.loop_timeout, measure=given.measure)
        start = time.monotonic_ns()
        try:
            self._way(prepared, bursts, request, held)(self._device_here, prepared, made, control)
            if made.small:
                raise OutputInsufficientSize("an output is larger than its memory", made.shapes)
        except NnhalError as error:
            spent = time.monotonic_ns() - start
            problem, worst = self._problem_of(error, made, request), None
            outcome = ReplayedRequest(*_facts(request, problem, worst, spent))
            if isinstance(error, DeadObject):
                raise _Died(outcome) from error
            return outcome
        spent = time.monotonic_ns() - start
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

    def _way(self, prepared: Prepared, bursts: list[Burst], request: ExecutedRequest, held: ExitStack) -> Way:
        """Return the captured way to execute. One burst serves all requests in bursts."""
        if request.given.way == "plain" and self._in_buffers(request):
            return WAYS["memory"]
        if request.given.way != "burst":
            return WAYS.get(request.given.way, WAYS["plain"])
        if not bursts:
            try:
                bursts.append(held.enter_context(checked_burst(prepared, "replay")))
            except OperationFailed:  # the device has no bursts
                return WAYS["plain"]

        def in_burst(_: Device, __: Prepared, made: Request, control: Control) -> None:
            made.execute(bursts[0].run, control)

        return in_burst


class _Refused(NnhalError):
    """The device does not support the model."""


class _Died(Exception):
    """The driver's process died in a request."""

    def __init__(self, outcome: ReplayedRequest) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


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
