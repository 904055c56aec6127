"""Replays a capture: prepares each captured model on a device, executes each request, and compares the outcomes.

The driver runs in processes of `pool`: one that crashes or hangs costs one request. `replay_worker` is their side.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from statistics import median
from typing import Any, NamedTuple

from nnhal.base.errors import DeviceUnavailable, InvalidArgument, error_text
from nnhal.base.records import Record, Struct, field, replace
from nnhal.conformance.device_under_test import Bundle, Subject
from nnhal.conformance.pool import Work, run_all
from nnhal.runtime.capturing.reader import CaptureReader, PreparedPart

PASSED, FAILED, HUNG, REFUSED, PREPARED, SKIPPED = "passed", "failed", "hung", "refused", "prepared", "skipped"
VERDICTS = PASSED, FAILED, HUNG, REFUSED, PREPARED, SKIPPED
PREPARATION = -1  # the place of a model's preparation before its requests
JUDGING = "judge"  # the stage in which nnhal reads the capture, or compares
SLOW = "the comparison with the reference has not ended in time: give --rtol and --atol, or a longer --timeout"
MOST_HUNG = 3  # requests of a model that hang before the others are skipped


class ReplayOptions(Subject, frozen=True):
    """Selects what to replay, where, and how to compare.

    device: "" for that of the first driver, or the captured ones. isolate: as captured if False. timeout: seconds for
    a preparation, and for a request. rtol, atol: in place of the operations' tolerances; None for those. pattern: of
    the titles of the models to replay. extensions: files of extensions. file: the capture, which `replay` sets.
    """

    rtol: float | None = None
    atol: float | None = None
    pattern: str = ""
    extensions: tuple[str, ...] = ()
    file: str = ""

    def takes(self, title: str) -> bool:
        """Whether a model is to be replayed."""
        return re.search(self.pattern, title) is not None

    def __post_init__(self) -> None:
        """Raise InvalidArgument for an invalid pattern, tolerance or time."""
        super().__post_init__()
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InvalidArgument(f"{name} is {value}, must be 0 or above, and finite")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise InvalidArgument(f"filter is {self.pattern!r}, must be a regular expression: {error}") from None


class ReplayedRequest(Record, frozen=True):
    """The outcome of a request: "passed", "failed", "hung" or "skipped".

    worst: the largest difference from the captured output.
    """

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


class ReplayItem(NamedTuple):
    """A preparation, or one of its requests. place: among those, or `PREPARATION`."""

    part: int
    place: int


class PartOrders(Struct):
    """The common data of a preparation's items. hung: requests that have hung so far."""

    part: int
    hung: int = 0


class ReplayOutcome(NamedTuple):
    """The outcome of an item: a part without requests, or a request."""

    item: ReplayItem
    found: ReplayedPart | ReplayedRequest

    @property
    def verdict(self) -> str:
        """The verdict."""
        return self.found.verdict


def title_of(capture: CaptureReader, part: PreparedPart) -> str:
    """Return the title of a captured preparation: the model's number and name, and the device."""
    return f"{model_title(capture, part)} on {part.given.device}"


def model_title(capture: CaptureReader, part: PreparedPart) -> str:
    """Return the number and name of a captured preparation's model."""
    model = capture.models[part.given.model]
    return f"{model.number} {model.name or 'model'}"


def empty_part(capture: CaptureReader, part: PreparedPart, device: str) -> ReplayedPart:
    """Return the outcome of a preparation to fill in."""
    model, title = capture.models[part.given.model], model_title(capture, part)
    return ReplayedPart(part.given.number, part.given.model, title, device, len(model.operations))


def replay(
    capture: CaptureReader, options: ReplayOptions, progress: Callable[[], object] = lambda: None
) -> list[ReplayedPart]:
    """Replay each captured preparation; return their outcomes in order. progress: called after each request.

    Raises:
        DeviceUnavailable: The device does not exist here, or does not load.
    """
    chosen = bool(options.device or options.drivers)
    options = replace(options, file=str(capture.path.absolute()))
    groups: dict[tuple[str, bool], list[PreparedPart]] = defaultdict(list)  # by device and isolation
    for part in capture.parts.values():
        if options.takes(title_of(capture, part)):
            isolated = not chosen and part.given.where.get("isolation") == "process"
            groups[options.device if chosen else part.given.device, options.isolate or isolated].append(part)
    found: list[ReplayedPart] = []
    for (device, isolate), parts in groups.items():
        try:
            found += _replayed(capture, replace(options, device=device, isolate=isolate), parts, progress)
        except DeviceUnavailable as error:
            if chosen:
                raise
            given = parts[0].given
            raise DeviceUnavailable(
                f"{error_text(error)}; the capture's device was {given.device} of {given.where.get('origin', '')}: name"
                " another with --device, or load its driver with --driver"
            ) from None
    return sorted(found, key=lambda part: part.number)


def _replayed(
    capture: CaptureReader, subject: ReplayOptions, parts: Sequence[PreparedPart], progress: Callable[[], object]
) -> list[ReplayedPart]:
    """Return the outcomes of parts on one device."""
    work = _ReplayWork(capture, subject, parts)
    with closing(run_all(work, 1)) as results:
        for result, _, _ in results:
            work.device = result.device
            for outcome in result.outcomes:
                work.take(outcome)
                if outcome.item.place != PREPARATION:
                    progress()
    return [_judged(part) for part in work.found.values()]


def _judged(part: ReplayedPart) -> ReplayedPart:
    """Give a prepared part the verdict of its requests."""
    if part.verdict != PREPARED:
        return part
    part.requests.sort(key=lambda request: request.number)  # an earlier one may run again after a hang
    bad = next((r for verdict in (HUNG, FAILED) for r in part.requests if r.verdict == verdict), None)
    if bad is not None:
        part.verdict, part.reason = bad.verdict, f"request {bad.number}: {bad.reason}"
    else:
        part.verdict = PASSED if any(r.verdict == PASSED for r in part.requests) else PREPARED
        part.reason = next((r.reason for r in part.requests if r.verdict == SKIPPED), "")
    return part


class _ReplayWork(Work):
    """Preparations, each with its requests as soon as it has succeeded."""

    module = "nnhal.conformance.replay_worker"

    def __init__(self, capture: CaptureReader, subject: ReplayOptions, parts: Iterable[PreparedPart]) -> None:
        self._capture, self._parts = capture, {part.given.number: part for part in parts}
        self._orders = {number: PartOrders(number) for number in self._parts}
        self.found: dict[int, ReplayedPart] = {}
        self.device = subject.device
        bundles = [Bundle(orders, (ReplayItem(number, PREPARATION),)) for number, orders in self._orders.items()]
        super().__init__(subject, bundles)

    def take(self, outcome: ReplayOutcome) -> None:
        """Add an outcome to its part."""
        if isinstance(outcome.found, ReplayedPart):
            self.found[outcome.item.part] = outcome.found
        else:
            self.found[outcome.item.part].requests.append(outcome.found)

    def is_own(self, stage: str) -> bool:
        return stage == JUDGING

    def tries_again(self, verdict: str, stage: str) -> bool:
        return False

    def lost(
        self, item: ReplayItem, verdict: str, reason: str, nanoseconds: int, stack: str, type: str
    ) -> ReplayOutcome:
        verdict = {"hung": HUNG, "skipped": SKIPPED}.get(verdict, FAILED)
        reason = SLOW if verdict == SKIPPED else reason.partition(": ")[2]  # without the device's name
        part = self._parts[item.part]
        if item.place == PREPARATION:
            found = empty_part(self._capture, part, self.device)
            found.verdict, found.reason = verdict, f"preparation: {reason}"
            return ReplayOutcome(item, found)
        self._orders[item.part].hung += verdict != FAILED
        given = part.requests[item.place].given
        return ReplayOutcome(item, ReplayedRequest(given.number, given.way, verdict, reason))

    def late(self, first: Any, second: Any, before: Sequence[Any]) -> Any:
        return first  # nothing is tried again

    def after(self, outcome: ReplayOutcome) -> tuple[Sequence[Bundle], Sequence[Any]]:
        part, place = outcome.item
        if place != PREPARATION or outcome.verdict != PREPARED or not self._parts[part].requests:
            return (), ()
        places = range(len(self._parts[part].requests))
        return [Bundle(self._orders[part], tuple(ReplayItem(part, place) for place in places))], ()
