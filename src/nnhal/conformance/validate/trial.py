"""One operation of a driver under test: its supported calls, prepared and run, each driver call announced."""

import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import numpy as np

from nnhal.base.answers import close_quietly, driver_call
from nnhal.base.codes import type_name
from nnhal.base.errors import DeadObject, NnhalError
from nnhal.base.levels import Level
from nnhal.base.operands import Array
from nnhal.conformance.differential import Outputs, arrays_of, compare_outputs, with_other_values
from nnhal.conformance.draw import Call
from nnhal.conformance.execution_paths import close_and_wait
from nnhal.conformance.place import place_of
from nnhal.conformance.validate.drawing import Drawing
from nnhal.conformance.verdict import TypeVerdicts
from nnhal.hal.chain import PreparedChain, checked_prepared
from nnhal.hal.claims import query_verdicts
from nnhal.hal.device import Device, Hints, Prepared, Verdict, where_of
from nnhal.hal.lowering import refusals
from nnhal.hal.request import UNLIMITED, Control, Request, Signature
from nnhal.model.graph import Model
from nnhal.ops import OPS
from nnhal.runtime import discovery

DRAWING = "draw"  # the stage before the driver's first call
AFTER = "after "  # prefix of the last driver call, as the stage while the suite itself works
SAMPLES = 3  # the calls of an operation for all checks but those of values
PLAIN = Hints(threads=1)
MakeRequest = Callable[[Signature, Sequence[Array]], Request]


class RequirementNotMet(Exception):
    """A rule is broken; the text describes it. place: FILE:LINE of the driver, "" if it is unknown."""

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(text)
        self.place = place


class NotAsked(Exception):
    """A rule cannot be checked here; the text has the reason."""


class ProcessDied(Exception):
    """The driver's process died; the text describes it. It is not an error of the driver that a check may expect."""


class NotAccepted(NotAsked):
    """The driver supports no call of the operation."""


class NoSample(NotAsked):
    """None of the few calls for most checks serves."""


class DriverStages:
    """Announces each call of the driver before it begins, and the suite's own work after it.

    at: receives the stage: the name of the driver's call, and `AFTER` it when no thread is in the driver any more.
    last: the driver's last call, "" before any.
    """

    def __init__(self, at: Callable[[str], None]) -> None:
        self._at, self.last = at, ""
        self._lock, self._inside = threading.Lock(), 0  # how many threads are in a call of the driver now

    @contextmanager
    def enter(self, stage: str) -> Iterator[None]:
        """Enter a call of the driver, which ends with the context. ProcessDied if that ends its process."""
        with self._lock:
            self._inside += 1
            self.last = stage
            self._at(stage)
        try:
            yield
        except DeadObject as error:
            raise ProcessDied(str(error)) from error
        finally:
            with self._lock:
                self._inside -= 1
            self.suite_works()

    def suite_works(self) -> None:
        """Announce that the suite itself works, unless another thread is still in the driver."""
        with self._lock:
            if not self._inside:
                self._at(AFTER + self.last if self.last else DRAWING)


class SupportedCalls:
    """The drawn calls of an operation that a driver supports: it is asked for its verdicts, and announced each time.

    types: receives the type of each call. kind: the type under test, to which all calls are restricted; None: the calls
    of all types. has_one: whether the check looks at one call alone, and has found it. random: whether the operation's
    results are random. rng: draws other values.
    """

    def __init__(self, device: Device, drawing: Drawing, stages: DriverStages, types: TypeVerdicts) -> None:
        self.drawing = drawing
        self._device, self._stages, self._types = device, stages, types
        self.kind: int | None = None
        self.has_one = False
        record = OPS.get(drawing.operation)
        self.random = record is not None and record.random
        self.rng = np.random.default_rng(zlib.crc32(drawing.operation.encode()))

    def kinds(self) -> list[int | None]:
        """The types of the drawn calls, those of the samples first; None alone for a driver as a whole."""
        if not self.drawing.operation:
            return [None]
        kinds: dict[int | None, None] = {}
        with suppress(NotAsked):
            kinds = {call.cell.kind: None for call, _ in self.samples()}
        return list(kinds | {call.cell.kind: None for call, _ in self.drawing.calls}) or [None]

    def restrict(self, kind: int | None) -> None:
        """Look at the calls of one type from now on, or at all for None."""
        self.kind, self.has_one = kind, False
        if kind is not None:
            self._types.begin(type_name(kind))

    def drawn(self) -> list[tuple[Call, Model]]:
        """The drawn calls; NotAccepted if the driver supports none, of any type."""
        drawing = self.drawing
        if drawing.taken is None:
            taken, before = [], self._types.now
            drawing.begin(lambda model: self.verdict(model).ok)
            for call, model in drawing.calls:
                self._types.at(type_name(call.cell.kind))
                verdict = self.verdict(model)
                if verdict.ok:
                    taken.append((call, model))
                else:
                    drawing.refused.append((call.cell.kind, verdict.reason))
            drawing.taken = taken
            self._types.at(before)
        if not drawing.taken:
            raise self._not_accepted()
        return self._of_kind(drawing.calls)

    def taken(self) -> list[tuple[Call, Model]]:
        """The calls that the driver declares to support; NotAccepted if there are none."""
        self.drawn()
        taken = self._of_kind(self.drawing.taken or [])
        if not taken:
            raise self._not_accepted()
        return taken

    def _not_accepted(self) -> NotAccepted:
        reasons = (why for kind, why in self.drawing.refused if self.kind in (None, kind))
        return NotAccepted(next(reasons, "no call of the operation can be drawn"))

    def _of_kind(self, calls: list[tuple[Call, Model]]) -> list[tuple[Call, Model]]:
        return calls if self.kind is None else [pair for pair in calls if pair[0].cell.kind == self.kind]

    def many(self) -> Iterator[tuple[Call, Model]]:
        """Yield the supported calls, and more of their kinds."""
        taken = self.taken()
        yield from taken
        for call, model in self.drawing.more(taken):
            if self.verdict(model).ok:
                yield call, model

    def first(self) -> tuple[Call, Model]:
        """The first sample, for a check that looks at one call; NotAsked without any."""
        sample = self.samples()[0]
        self.has_one = True
        return sample

    def samples(self) -> list[tuple[Call, Model]]:
        """A few of the supported calls, of different types, with outputs and many inputs, which the reference can run.

        One of them has the most constants of all, one has parameters that are given at execution.
        """
        if self.drawing.samples is None:
            self.taken()  # NotAccepted has precedence
            self.drawing.samples = self._samples(self.drawing.taken or [])
        samples = self._of_kind(self.drawing.samples)
        if not samples:
            self.taken()
            raise NoSample("none of the supported calls has an output element that the reference can compute")
        return samples

    def _samples(self, all_taken: Sequence[tuple[Call, Model]]) -> list[tuple[Call, Model]]:
        chosen: dict[Any, tuple[Call, Model]] = {}
        shut = [pair for pair in all_taken if not pair[0].open]
        taken = [pair for pair in shut if not pair[0].late]
        ordered = sorted(taken, key=lambda pair: (pair[0].cell.values != "ordinary", -_room(pair[0])))
        by_constants = sorted(taken, key=lambda pair: -pair[0].constants)
        for kind, call, model in [
            *((call.variety, call, model) for call, model in ordered),
            *(("constants", call, model) for call, model in by_constants if call.constants),
            *(("late", call, model) for call, model in shut if call.late),
        ]:
            if kind in chosen or (len(chosen) == SAMPLES and kind not in ("constants", "late")):
                continue
            try:
                wanted = self.wanted(model, arrays_of(call))
            except NnhalError:
                continue
            if any(w is not None and w.size for w in wanted):
                chosen[kind] = call, model
        return list(chosen.values())

    def others(self, call: Call, count: int) -> Iterator[Call]:
        """Yield the call with other values, so many times."""
        for _ in range(count):
            call = with_other_values(call, self.rng)
            yield call

    def fixed(self) -> None:
        """Raise NotAsked if the results are random."""
        if self.random:
            self.taken()  # NotAccepted has precedence
            raise NotAsked("its results are random")

    def wanted(self, model: Model, arrays: Sequence[Array]) -> Outputs:
        """Return the reference's results."""
        self._stages.suite_works()
        return by_reference(model, arrays)

    def verdict(self, model: Model) -> Verdict:
        """Return the driver's verdict of the one operation of a model."""
        return self.verdicts(model)[0]

    def verdicts(self, model: Model) -> list[Verdict]:
        """Return the driver's verdict of each operation; no if its HAL version lacks one, as no runtime would ask."""
        lacking = refusals(model, self._device.level)
        if any(lacking):
            return [Verdict(not why, why) for why in lacking]
        with self._stages.enter("supports"):
            return query_verdicts(self._device, model)


class Trial:
    """The arguments of a check: a device that prepares and runs models, and the calls that it supports.

    isolated: whether the device is isolated. stages: announces the calls of the driver. types: the verdict of each
    operand type. prepared: the driver's last prepared model, for `place`.
    """

    def __init__(
        self,
        device: Device,
        drawing: Drawing,
        at: Callable[[str], None],
        *,
        isolated: bool,
        types: TypeVerdicts | None = None,
    ) -> None:
        self.device, self.operation, self.isolated = device, drawing.operation, isolated
        self.stages, self.types = DriverStages(at), types or TypeVerdicts()
        self.calls = SupportedCalls(device, drawing, self.stages, self.types)
        self.where = where_of(device)
        self.prepared: Prepared | None = None
        self.found: tuple[str, ...] = ()
        self._open: list[Prepared] = []

    def since(self, level: Level, what: str) -> None:
        """Raise NotAsked if the device's HAL version lacks a feature."""
        if self.device.level < level:
            raise NotAsked(f"{what} exist since HAL {level}, the device has HAL {self.device.level}")

    def prepare(self, model: Model, hints: Hints = PLAIN, through: Device | None = None) -> PreparedChain:
        """Prepare; closed with the trial unless the check closes it. through: the device, wrapped."""
        with self.stages.enter("prepare"):
            prepared = checked_prepared(through or self.device, model, hints)
        self.opened(prepared)
        return prepared

    def opened(self, prepared: Prepared) -> Prepared:
        """Register a new prepared model; closed with the trial unless the check closes it."""
        self._open.append(prepared)
        self.prepared = prepared
        return prepared

    def close(self, prepared: Prepared) -> None:
        """Close, and return after the driver's own `close`; raises the driver's errors."""
        self._open = [each for each in self._open if each is not prepared]
        with self.stages.enter("close"), driver_call(self.where, "close() of a prepared model"):
            close_and_wait(prepared)

    def keep(self, prepared: Prepared) -> None:
        """Leave it open, for a later check to close."""
        self._open.remove(prepared)
        self.calls.drawing.kept.append((self.calls.kind, prepared))

    def kept(self) -> list[Prepared]:
        """Return the models that an earlier check has left open, once."""
        drawing, kind = self.calls.drawing, self.calls.kind
        found = [prepared for each, prepared in drawing.kept if kind in (None, each)]
        drawing.kept = [each for each in drawing.kept if each[1] not in found]
        return found

    def request(
        self, prepared: Prepared, arrays: Sequence[Array | None], rooms: Sequence[Array | None] | None = None
    ) -> Request:
        """Make a request for one execution, with exactly these arrays."""
        return Request(self.signature_of(prepared), arrays, rooms)

    def with_rooms(self, prepared: Prepared, call: Call) -> Request:
        """Make a request for one execution of a call, with memory for each output of known shape."""
        outputs = self.signature_of(prepared).outputs
        rooms: list[Array | None] = [None if a.fixed is None else np.empty(a.fixed, a.dtype) for a in outputs]
        return self.request(prepared, copies(arrays_of(call)), rooms)

    def signature_of(self, prepared: Prepared) -> Signature:
        """Return the signature of a prepared model."""
        return Signature.of(prepared.model, self.where)

    def run(
        self, prepared: Prepared, arrays: Sequence[Array], control: Control = UNLIMITED, make: MakeRequest = Request
    ) -> Outputs:
        """Execute once, with exactly these arrays. make: makes the request, if it is not an ordinary one."""
        request = make(self.signature_of(prepared), arrays)
        with self.stages.enter("run"):
            request.execute(prepared.run, control)
        return request.results

    def alone(self, model: Model, arrays: Sequence[Array]) -> Outputs:
        """Return the results of a prepared model that runs once, to which all other ways are compared."""
        prepared = self.prepare(model)
        results = [None if r is None else r.copy() for r in self.run(prepared, copies(arrays))]
        self.close(prepared)
        return results

    def same(self, call: Call, wanted: Outputs, actual: Outputs, what: str) -> None:
        """Raise RequirementNotMet if results differ from those of `alone` by more than the definition leaves open.

        Random results are not compared.
        """
        problem = "" if self.calls.random else self.differs(call, wanted, actual)
        if problem:
            self.unmet(f"{what}: {problem}")

    def differs(self, call: Call, wanted: Outputs, actual: Outputs) -> str:
        """Return the difference; "" if they agree."""
        if all(_bits(w) == _bits(a) for w, a in zip(wanted, actual, strict=True)):
            return ""
        return compare_outputs(call, wanted, actual, self.device.relaxations)

    def unmet(self, text: str) -> NoReturn:
        """Raise RequirementNotMet."""
        raise RequirementNotMet(text, self.place())

    def place(self, what: str = "run") -> str:
        """Return FILE:LINE of the driver's method."""
        return place_of(self.device, self.prepared, what)

    def end(self) -> None:
        """Close open models; another check reports errors of that."""
        for prepared in self._open:
            with self.stages.enter("close"):
                close_quietly(self.where, "close() of a prepared model", prepared.close)
        self._open.clear()


def by_reference(model: Model, arrays: Sequence[Array]) -> Outputs:
    """Return the reference's results for a model and its inputs."""
    prepared = checked_prepared(discovery.cpu(), model, Hints())
    request = prepared.request(arrays)
    request.execute(prepared.run, UNLIMITED)
    return request.results


def copies(arrays: Sequence[Array]) -> list[Array]:
    """Return arrays that a driver may overwrite."""
    return [x.copy() for x in arrays]


def distinct(*results: Outputs) -> int:
    """Count the results that differ from all earlier ones: 0 if all are alike, so that they cannot be distinguished."""
    return len({tuple(map(_bits, each)) for each in results}) - 1


def _room(call: Call) -> int:
    """Count the elements that are given at execution."""
    return sum(x.size for x in arrays_of(call))


def _bits(array: Array | None) -> Any:
    return None if array is None else (array.shape, array.dtype, array.tobytes())


@contextmanager
def open_trial(trial: Trial) -> Iterator[Trial]:
    """Return a trial that ends with the context."""
    try:
        yield trial
    finally:
        trial.end()
