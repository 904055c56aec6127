"""One operation of a driver under test: calls of it that the driver takes, prepared and run, each thing asked announced."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from nnhal.base.answers import answering, let_go
from nnhal.base.errors import NnhalError
from nnhal.base.operands import Array
from nnhal.conformance.differential import OPEN, Outputs, again, arrays_of, judge, model_of
from nnhal.conformance.draw import Call, cells, draw
from nnhal.conformance.validate.place import place_of
from nnhal.hal.device import Device, Hints, Prepared, prepared_by, verdicts_by, where_of
from nnhal.hal.request import UNLIMITED, Control, Request
from nnhal.model.graph import Model
from nnhal.ops import OPS
from nnhal.runtime import discovery

SAMPLES = 3  # calls of an operation that all checks but those of values look at
PLAIN = Hints(threads=1)
MakeRequest = Callable[[Prepared, Sequence[Array]], Request]


class Unmet(Exception):
    """A promise is broken; the text says how. place: FILE:LINE of the driver, "" where it is not known."""

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(text)
        self.place = place


class NotAsked(Exception):
    """A promise cannot be looked at here; the text says why."""


class NotTaken(NotAsked):
    """The driver takes no call of the operation."""


class Drawing:
    """Calls of one operation that are drawn for a driver, with what it says of each; the same for the same seed."""

    def __init__(self, operation: str, seed: int, draws: int) -> None:
        self.operation = operation
        self.calls: list[tuple[Call, Model]] = []
        rng = np.random.default_rng([seed, zlib.crc32(operation.encode())])
        for cell in cells([operation]):
            for _ in range(draws):
                call = draw(cell, rng, open=bool(rng.random() < OPEN))
                self.calls.append((call, model_of(call)))
        self.rng = rng
        self.taken: list[tuple[Call, Model]] | None = None
        self.refused: list[str] = []


class Trial:
    """What a check is given: a device, and calls of an operation.

    at: is told what the driver is asked, before it is. isolated: the device is in a process of its own. prepared: what the
    driver prepared last, for `place`.
    """

    def __init__(self, device: Device, drawing: Drawing, at: Callable[[str], None], *, isolated: bool) -> None:
        self.device, self.drawing, self.at, self.isolated = device, drawing, at, isolated
        self.where = where_of(device)
        self.operation = drawing.operation
        self.prepared: Prepared | None = None
        self.found: tuple[str, ...] = ()
        self._open: list[Prepared] = []
        record = OPS.get(drawing.operation)
        self.random = record is not None and record.context
        self.rng = np.random.default_rng(zlib.crc32(drawing.operation.encode()))

    # ------------------------------------------------------------------------------------------------- what there is

    def taken(self) -> list[tuple[Call, Model]]:
        """The calls that the driver says it takes; NotAsked where that is none."""
        drawing = self.drawing
        if drawing.taken is None:
            taken = []
            for call, model in drawing.calls:
                self.at("supports")
                verdict = verdicts_by(self.device, model)[0]
                if verdict.ok:
                    taken.append((call, model))
                else:
                    drawing.refused.append(verdict.reason)
            drawing.taken = taken
        if not drawing.taken:
            raise NotTaken(drawing.refused[0] if drawing.refused else "has no calls to be drawn")
        return drawing.taken

    def samples(self) -> list[tuple[Call, Model]]:
        """A few of them, of different types, with something to write and much to read, which the reference can run."""
        chosen: dict[Any, tuple[Call, Model]] = {}
        ordered = sorted(self.taken(), key=lambda pair: (pair[0].cell.values != "ordinary", -_room(pair[0])))
        for call, model in ordered:
            if call.open or call.cell.kind in chosen or len(chosen) == SAMPLES:
                continue
            try:
                wanted = self.wanted(model, arrays_of(call))
            except NnhalError:
                continue
            if any(w is not None and w.size for w in wanted):
                chosen[call.cell.kind] = call, model
        if not chosen:
            raise NotAsked("none of the calls that it takes has an element to write that the reference can")
        return list(chosen.values())

    def others(self, call: Call, count: int) -> Iterator[Call]:
        """The same call with other values, so many times."""
        for _ in range(count):
            call = again(call, self.rng)
            yield call

    def fixed(self) -> None:
        """NotAsked where the results are drawn at random."""
        if self.random:
            raise NotAsked("its results are random")

    @staticmethod
    def wanted(model: Model, arrays: Sequence[Array]) -> Outputs:
        """What the reference gives."""
        prepared = prepared_by(discovery.cpu(), model, Hints())
        request = prepared.request(arrays)
        request.execute(prepared.run, UNLIMITED)
        return request.results

    # ----------------------------------------------------------------------------------------------- what is asked

    def prepare(self, model: Model, hints: Hints = PLAIN) -> Prepared:
        """Prepare; closed with the trial where the check does not."""
        self.at("prepare")
        prepared = prepared_by(self.device, model, hints)
        self._open.append(prepared)
        self.prepared = prepared
        return prepared

    def close(self, prepared: Prepared) -> None:
        """Close; raises what the driver raises."""
        self._open = [each for each in self._open if each is not prepared]
        self.at("close")
        with answering(self.where, "close() of a prepared model"):
            prepared.close()

    def run(
        self, prepared: Prepared, arrays: Sequence[Array], control: Control = UNLIMITED, make: MakeRequest | None = None
    ) -> Outputs:
        """One execution. make: the request, where it is not an ordinary one."""
        self.at("run")
        request = prepared.request(arrays) if make is None else make(prepared, arrays)
        request.execute(prepared.run, control)
        return request.results

    def alone(self, model: Model, arrays: Sequence[Array]) -> Outputs:
        """What a prepared model that runs once gives: what all other ways to the same result are held against."""
        prepared = self.prepare(model)
        results = [None if r is None else r.copy() for r in self.run(prepared, [x.copy() for x in arrays])]
        self.close(prepared)
        return results

    def same(self, call: Call, wanted: Outputs, actual: Outputs, what: str) -> None:
        """Unmet where results are not those of `alone`, by more than the definition leaves open."""
        problem = self.differs(call, wanted, actual)
        if problem:
            self.unmet(f"{what}: {problem}")

    def differs(self, call: Call, wanted: Outputs, actual: Outputs) -> str:
        """How; "" where they agree."""
        if all(_bits(w) == _bits(a) for w, a in zip(wanted, actual, strict=True)):
            return ""
        return judge(call, wanted, actual, self.device.relaxations)

    def unmet(self, text: str) -> NoReturn:
        """The promise is broken."""
        raise Unmet(text, self.place())

    def place(self, what: str = "run") -> str:
        """FILE:LINE of the driver's own method."""
        return place_of(self.device, self.prepared, what)

    def end(self) -> None:
        """Close what is open; what that raises is the business of another check."""
        for prepared in self._open:
            self.at("close")
            let_go(self.where, "close() of a prepared model", prepared.close)
        self._open.clear()


def _room(call: Call) -> int:
    """How many elements are given at run time."""
    return sum(x.size for x in arrays_of(call))


def _bits(array: Array | None) -> Any:
    return None if array is None else (array.shape, array.dtype, array.tobytes())


@contextmanager
def trying(trial: Trial) -> Iterator[Trial]:
    """A trial that ends."""
    try:
        yield trial
    finally:
        trial.end()
